#!/bin/bash
# Jobs of replication to and from a host with the real OpenZFS module, by ssh: a throw-away machine in which nothing but OpenSSH's server and the
# module run. Push and pull, each with a tree, increments, properties, and a stream that is cut off and resumed: the run is cancelled, our daemon is
# killed, zfs is killed there. Then the copy there is put in use and brought back. Prints how long each part took. Judged by the digests of all files and volumes as the module reads them, its scrub, and zdb -bcc on our pool.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
share=$w/share; mkdir "$share"; guest=
command -v ssh >/dev/null || skip "there is no ssh"
ssh-keygen -q -t ed25519 -N '' -f "$w/key"; cp "$w/key.pub" "$share/"
forward=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
link="ssh -p $forward -i $w/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
there() { $link root@127.0.0.1 "$@"; }
ended() { [ -z "$guest" ] || { touch "$share/stop"; wait "$guest" 2>/dev/null || true; }; finish; }
trap ended EXIT

cat >"$w/guest.sh" <<'G'
set -e
grep -q ^sshd: /etc/passwd || echo 'sshd:x:199:65534::/run/sshd:/usr/sbin/nologin' >>/etc/passwd
mkdir -p /run/sshd /root/.ssh; cp /share/key.pub /root/.ssh/authorized_keys; chown -R 0:0 /root; chmod 700 /root /root/.ssh; chmod 600 /root/.ssh/*
ssh-keygen -q -t ed25519 -N '' -f /tmp/host
# PID 1 starts scripts with an environment of its own; what is logged in finds zfs in /usr/sbin all the same.
/usr/sbin/sshd -f /dev/null -o UsePAM=no -o HostKey=/tmp/host -o SetEnv=PATH=/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin
zpool create -O mountpoint=legacy far $(rvraw vdb)
zfs create -o org.example:note=theirs -o compression=zstd far/src; zfs create -o recordsize=16K far/src/kid; zfs create -s -V 8M far/src/vol
touch /share/ready
until [ -e /share/stop ]; do sleep 0.2; done
zpool scrub -w far; zpool status far; zpool export far
G
truncate -s 2G "$w/far.img"
"$root/tests/realvm/realvm" run "$w/guest.sh" --disk "$w/far.img" --share "$share" --fwd "$forward:22" --timeout 1800 >"$w/guest.log" 2>&1 & guest=$!
for _ in $(seq 900); do [ -e "$share/ready" ] && break; kill -0 $guest 2>/dev/null || break; sleep 0.2; done
[ -e "$share/ready" ] || { tail -20 "$w/guest.log" >&2; fail "the machine did not start"; }

truncate -s 2G "$w/disks/d0.img"
zpool create -O mountpoint=none tank "$w/disks/d0.img"; zfs create -o org.example:note=ours -o compression=gzip tank/vm; zfs create -o recordsize=16K tank/vm/kid
zfs create -s -V 8M tank/vm/vol; zfs create tank/vm/scratch
options=(--https-port 0 --replication-port 0 --iscsi-port 0)
serve "${options[@]}"

# Digests of all files of a dataset, and of the bytes of a volume: ours, and those of the module.
ours() { # DATASET[@SNAPSHOT]
  if [ "$(zfs get -Ho value type "${1%@*}")" = volume ]; then rm -f "$w/bytes"; sanbox get "$1" "$w/bytes" >/dev/null; sha256sum <"$w/bytes"; return; fi
  rm -rf "$w/copy"; sanbox get -r "$1:/" "$w/copy" >/dev/null; (cd "$w/copy"; find . -type f -print0 | LC_ALL=C sort -z | xargs -0r sha256sum)
}
theirs() { # DATASET[@SNAPSHOT], read where it is mounted
  there "set -e; if [ \$(zfs get -Ho value type '${1%@*}') = volume ]; then zfs set snapdev=visible '${1%@*}'; udevadm settle; sha256sum </dev/zvol/'$1'; exit; fi
    mkdir -p /tmp/at; mount -t zfs '$1' /tmp/at; cd /tmp/at; find . -type f -print0 | LC_ALL=C sort -z | xargs -0r sha256sum; cd /; umount /tmp/at"
}
same() { # OURS THEIRS
  ours "$1" >"$w/ours"; theirs "$2" >"$w/theirs"; [ -s "$w/ours" ] || fail "nothing in $1"
  diff "$w/ours" "$w/theirs" || fail "$1 and $2 differ"
}
fill() { # ROUND: files of ours
  head -c 3000000 /dev/urandom >"$w/noise"; seq "$1" 70000 >"$w/text"; sanbox put "$w/noise" "tank/vm:/noise$1"; sanbox put "$w/text" tank/vm/kid:/text
  sanbox put "$w/text" "tank/vm/scratch:/s$1"
}
fill_there() { there "set -e; mkdir -p /tmp/in; mount -t zfs far/src /tmp/in; head -c 3000000 /dev/urandom >/tmp/in/noise$1; umount /tmp/in
  mount -t zfs far/src/kid /tmp/in; seq $1 70000 >/tmp/in/text; umount /tmp/in; head -c 3000000 /dev/urandom >/dev/zvol/far/src/vol; zfs snapshot -r far/src@s$1"; }

began=$SECONDS
told() { echo "$* ($((SECONDS - began)) s)"; began=$SECONDS; }

# What ends a run.
cancelled() { sanbox replication cancel "$1"; }
our_kill() { kill -9 "$pid"; wait "$pid" || true; : >"$w/log"; serve "${options[@]}"; }
their_kill() { there 'pkill -9 -x zfs'; }

# Begins a run, and ends it when more than 8 MB of its stream were sent; then there is something to resume.
cut() { # JOB HOW DATASET
  sanbox replication change "$1" --bandwidth 4M
  sanbox replication run "$1" >"$w/run" 2>&1 & local run=$! token=-
  for _ in $(seq 600); do sanbox replication list -H | grep -qE "^$1.*sending: ([89]|[1-9][0-9])[0-9.]*M" && break; sleep 0.1; done
  "$2" "$1"; wait $run && fail "$1 was not cut off" || true
  for _ in $(seq 50); do
    case $1 in
    push) token=$(there zfs get -Ho value receive_resume_token "$3") ;;
    pull) token=$(zfs get -Ho value receive_resume_token "$3") ;;
    esac
    [ "$token" = - ] || break; sleep 0.2
  done
  [ "$token" != - ] || fail "nothing to resume in $3 ($2)"
  sanbox replication change "$1" --bandwidth ''
}

# There from here.
fill 1
sanbox replication create push --from tank/vm --to "root@127.0.0.1:far/vm" -r -X tank/vm/scratch --take --every 1h --ssh "$link"
sanbox replication pause push
sanbox replication run push >"$w/run" || { cat "$w/run"; fail "the first run"; }
zfs snapshot -r tank/vm@s1; sanbox replication run push >/dev/null; for d in "" /kid /vol; do same "tank/vm$d@s1" "far/vm$d@s1"; done
there zfs list -Ho name -r far/vm >"$w/names"; ! grep -q scratch "$w/names" || fail "what is excluded came"
[ "$(there zfs get -Ho value org.example:note,compression,readonly far/vm/kid | tr '\n' ' ')" = "ours gzip on " ] || fail "properties of the copy"
fill 2; zfs snapshot -r tank/vm@s2; sanbox replication run push >/dev/null; for d in "" /kid /vol; do same "tank/vm$d@s2" "far/vm$d@s2"; done
told "push: a tree, increments, exclusions, properties"
# Cut off in the middle, and resumed.
for how in cancelled our_kill their_kill; do
  head -c 60000000 /dev/urandom >"$w/big"; sanbox put "$w/big" tank/vm:/big; zfs snapshot -r "tank/vm@$how"
  cut push $how far/vm
  sanbox replication run push >"$w/run"; grep -q "@$how" "$w/run" || fail "not resumed: $(cat "$w/run")"
  same "tank/vm@$how" "far/vm@$how"
  told "push: resumed ($how)"
done

# Here from there.
fill_there 1
sanbox replication create pull --from "root@127.0.0.1:far/src" --to tank/src -r --every 1h --ssh "$link"; sanbox replication pause pull
sanbox replication run pull >/dev/null; for d in "" /kid /vol; do same "tank/src$d@s1" "far/src$d@s1"; done
[ "$(zfs get -Ho value org.example:note,compression,readonly tank/src/kid | tr '\n' ' ')" = "theirs zstd on " ] || fail "properties of what was pulled"
fill_there 2; fill_there 3; there zfs destroy -r far/src@s1
sanbox replication run pull >/dev/null; for d in "" /kid /vol; do same "tank/src$d@s3" "far/src$d@s3"; done
told "pull: a tree, increments, a lost snapshot, properties"
for how in cancelled our_kill their_kill; do
  there "mount -t zfs far/src /tmp/in; head -c 60000000 /dev/urandom >/tmp/in/big; umount /tmp/in; zfs snapshot -r far/src@$how"
  cut pull $how tank/src
  sanbox replication run pull >/dev/null; same "tank/src@$how" "far/src@$how"
  told "pull: resumed ($how)"
done

# The copy there is used, and comes back.
sanbox replication failover push >"$w/run" || { cat "$w/run"; fail "failover"; }
[ "$(zfs get -Ho value org.sanbox:fenced,readonly tank/vm | tr '\n' ' ')" = "1:push on " ] || fail "the source is not fenced"
[ "$(there zfs get -Ho value readonly far/vm)" = off ] || fail "the copy is read-only"
there "mount -t zfs far/vm /tmp/in; echo written there >/tmp/in/note; umount /tmp/in"
sanbox replication failback push >"$w/run" || { cat "$w/run"; fail "failback"; }
[ "$(sanbox cat tank/vm:/note)" = "written there" ] || fail "what was written there did not come back"
fill 3; zfs snapshot -r tank/vm@s5; sanbox replication run push >/dev/null; for d in "" /kid /vol; do same "tank/vm$d@s5" "far/vm$d@s5"; done
told "turned round, and back"

touch "$share/stop"; wait "$guest" || { tail -30 "$w/guest.log"; fail "the machine"; }; guest=
grep -q 'repaired 0B.*with 0 errors' "$w/guest.log" || { tail -30 "$w/guest.log"; fail "the module's scrub"; }
stop; judge tank
