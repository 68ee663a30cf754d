#!/bin/bash
# Streams between us and OpenZFS, in both directions: {ours, OpenZFS} x {send, receive} x {plain, -c, -e, -L, -w, -R, -I, resumed, redacted}.
# OpenZFS is the real kernel module in a throw-away machine, which makes the same trees from the same files, sends, and receives ours while
# this side waits for it. Equal means: every file's name, mode, size, digest, extended attributes and link count; of volumes their bytes; the
# properties that the stream carries; and after all of it zdb -bcc on every pool, the module's scrub, and ours.
#
#   env TABLE   where the table goes, too (default: standard output only); KEEP  a directory for the images and logs
set -euo pipefail
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] && [ -e /dev/fuse ] || skip "needs root and /dev/fuse"
share=$w/share; mkdir -p "$share/files" "$share/ours" "$share/theirs" "$w/mnt"


# The files of both sides. What the first snapshot has is in files/1, and so on.
python3 - "$share/files" <<'P'
import os, random, sys
top = sys.argv[1]
for n in 1, 2, 3:
    d, r = f"{top}/{n}", random.Random(n)
    os.makedirs(f"{d}/dir/below")
    for size in (0, 1, 60, 100, 511, 513, 4096, 100_000, 131_073, 1_000_000, 3_000_000):
        open(f"{d}/f{size}", "wb").write(r.randbytes(size) if size % 2 or n == 2 else (b"text %d " % n) * (size // 7))
    with open(f"{d}/sparse", "wb") as f:
        f.seek(9_000_000 + n); f.write(b"end")
    open(f"{d}/zeros", "wb").write(bytes(300_000))
    for i in range(0, 400, n): open(f"{d}/dir/many-{i:05}-{'x' * (i % 60)}", "w").write(str(i * n))
    os.symlink("f4096", f"{d}/link"); os.link(f"{d}/f513", f"{d}/hard")
    open(f"{d}/only-{n}", "w").write(f"only in {n}")
    open(f"{d}/volume", "wb").write(r.randbytes(2_000_000))
P
cat >"$share/list.py" <<'P'
import hashlib, os, stat, sys
top, lines = sys.argv[1], []
for base, dirs, files in os.walk(top):
    # Other datasets are mounted on these of the tree, or not yet.
    if base == top: dirs[:] = [entry for entry in dirs if entry not in ("kid", "clone")]
    for entry in dirs + files:
        full = os.path.join(base, entry); s = os.lstat(full); what = ""
        if stat.S_ISREG(s.st_mode): what = "%d %s" % (s.st_size, hashlib.sha256(open(full, "rb").read()).hexdigest())
        elif stat.S_ISLNK(s.st_mode): what = os.readlink(full)
        attributes = ["%s=%s" % (n, os.getxattr(full, n, follow_symlinks=False).hex()) for n in sorted(os.listxattr(full, follow_symlinks=False))
                      if n.startswith("user.")]
        lines.append("%s %o %d %d %d %s %s" % (os.path.relpath(full, top), s.st_mode, s.st_uid, s.st_gid,
                     s.st_nlink if not stat.S_ISDIR(s.st_mode) else 0, what, attributes))
print("\n".join(sorted(lines)))
P

# Run by both sides. $S is the shared folder, $M where datasets are mounted, $T what they held when their snapshots were taken.
cat >"$share/both.sh" <<'E2'
phrase=correct-horse; W=$(mktemp -d); printf '%s\n' "$phrase" >"$W/one"; printf '%s\n%s\n' "$phrase" "$phrase" >"$W/two"
put() { # put N DATASET: the files of round N, in the dataset
  local at=$M/$2
  [ "$1" = 1 ] || rm -rf "$at/f1" "$at/f100000" "$at/dir" "$at/hard" "$at/only-$(($1 - 1))"
  cp -a --no-preserve=links "$S/files/$1/." "$at/"; rm -f "$at/volume" "$at/hard"; ln "$at/f513" "$at/hard"
  setfattr -n user.round -v "$1" "$at/f4096"; setfattr -n user.long -v "$(printf "%0600d" "$1")" "$at/f513"
  chmod 0640 "$at/f4096"; chown 1000:1001 "$at/f4096"; truncate -s 70000 "$at/f131073"
}
truth() { mkdir -p "$T/$1"; python3 "$S/list.py" "$M/$2" >"$T/$1/$3"; }
fill() {
  local round name
  zfs create "$1/fs"; zfs create -o recordsize=1M -o compression=zstd "$1/big"; zfs create -o recordsize=16K -o compression=lz4 -o xattr=sa "$1/small"
  zfs create -o encryption=aes-256-gcm -o keyformat=passphrase -o pbkdf2iters=100000 -o keylocation=prompt "$1/enc" <"$W/two"
  zfs create -o org.example:note=top -o quota=200M "$1/tree"; zfs create -o compression=gzip -o atime=off "$1/tree/kid"; zfs create -s -V 8M "$1/tree/vol"
  for round in 1 2 3; do
    for name in fs big small enc tree tree/kid; do put $round "$1/$name"; truth "$name" "$1/$name" $round; done
    volume_write "$1/tree/vol" "$S/files/$round/volume"; mkdir -p "$T/tree/vol"; volume_read "$1/tree/vol" | sha256sum >"$T/tree/vol/$round"
    for name in fs big small enc; do zfs snapshot "$1/$name@$round"; done
    zfs snapshot -r "$1/tree@$round"
    [ $round != 2 ] || { zfs clone "$1/tree/kid@1" "$1/tree/clone"; put 2 "$1/tree/clone"; truth tree/clone "$1/tree/clone" 3; }
  done
  # What this clone has lost or written is left out.
  zfs clone "$1/fs@1" "$1/less"; rm -rf "$M/$1/less/dir"; printf secret >"$M/$1/less/f3000000"; dd if=/dev/zero of="$M/$1/less/f1000000" bs=1k count=4 conv=notrunc 2>/dev/null
  zfs snapshot "$1/less@1"; zfs redact "$1/fs@1" book "$1/less@1"
}
# Name, dataset, what the first stream is made of, and the second.
kinds() {
  cat <<'K'
plain|fs|fs@1|-i @1 fs@2
c|small|-c small@1|-c -i @1 small@2
e|small|-e small@1|-e -i @1 small@2
L|big|-L big@1|-L -i @1 big@2
Lc|big|-L -c big@1|-L -c -i @1 big@2
Lec|big|-L -e -c big@1|-L -e -c -i @1 big@2
cut|big|big@1|-i @1 big@2
w|enc|-w enc@1|-w -i @1 enc@2
w-plain|fs|-w fs@1|-w -i @1 fs@2
p|tree/kid|-p tree/kid@1|-p -i @1 tree/kid@2
volume|tree/vol|tree/vol@1|-c -i @1 tree/vol@2
R|tree|-R tree@1|-R -I @1 tree@3
I|fs|fs@1|-I @1 fs@3
redacted|fs|--redact book fs@1|-i #book fs@2
cI|small|-c small@1|-c -I @1 small@3
K
}
arguments() { local word; for word in $2; do case $word in -* | @* | "#"* | book) echo "$word" ;; *) echo "$1/$word" ;; esac; done; }
send_all() { # send_all POOL DIR
  kinds | while IFS='|' read -r name dataset first second; do
    zfs send $(arguments "$1" "$first") >"$2/$name.1" </dev/null; zfs send $(arguments "$1" "$second") >"$2/$name.2" </dev/null
  done
  zfs send -c "$1/fs@1" >"$2/whole"
}
take_all() { # take_all DIR DATASET: receives all of them below it, and says what was refused
  zfs create "$2"
  kinds | while IFS='|' read -r name dataset first second; do
    for part in 1 2; do
      zfs receive -u "$2/$name" <"$1/$name.$part" 2>"$W/why" || { echo "$name|$(tr '\n' ' ' <"$W/why")"; break; }
    done
  done
}
look() { # look FROM-DATASET NAME ROUND OUT: what came
  mkdir -p "$4/$2"
  if [ "$(zfs get -Ho value type "$1")" = volume ]; then volume_read "$1" | sha256sum >"$4/$2/$3"; return; fi
  case $(zfs get -Ho value keystatus "$1") in unavailable) zfs load-key "$1" <"$W/one" >/dev/null ;; esac
  [ "$(zfs get -Ho value mounted "$1")" = yes ] || zfs mount "$1"
  python3 "$S/list.py" "$(zfs get -Ho value mountpoint "$1")" >"$4/$2/$3"
}
look_all() { # look_all DATASET OUT
  kinds | while IFS='|' read -r name dataset first second; do
    mkdir -p "$2/$name"; round=${second##*@}
    [ "$name" = R ] || { look "$1/$name" "" "$round" "$2/$name" </dev/null 2>"$2/$name/why" || true; continue; }
    for below in "" /kid /clone /vol; do look "$1/R$below" "$below" 3 "$2/$name" </dev/null 2>>"$2/$name/why" || true; done
    zfs get -Hpo property,value compression,atime,quota,org.example:note,volsize -r "$1/R" | grep -v '	-$' >"$2/$name/properties"
  done
}
E2

cat >"$share/guest" <<'G'
set -eu
S=/share M= T=/share/truth.theirs; . /share/both.sh
volume_write() { udevadm settle; dd if="$2" of="/dev/zvol/$1" bs=1M conv=fsync 2>/dev/null; }
volume_read() { for _ in $(seq 300); do [ -e "/dev/zvol/$1" ] && break; sleep 0.1; done; cat "/dev/zvol/$1"; }
zpool create -o cachefile=none theirs $(rvraw vdb)
fill theirs; send_all theirs /share/theirs
head -c 300000 /share/ours/whole | zfs receive -s -u theirs/half 2>/dev/null || true
zfs get -Hpo value receive_resume_token theirs/half >/share/token.theirs
touch /share/theirs/ready
take_all /share/theirs theirs/own >/share/refused.tt; take_all /share/ours theirs/got >/share/refused.ot
until [ -e /share/ours/ready ]; do sleep 1; done
zfs receive -u theirs/half </share/rest.ours
zfs send -t "$(cat /share/token.ours)" >/share/rest.theirs
look_all theirs/own /share/seen.tt; look_all theirs/got /share/seen.ot; mkdir -p /share/seen.ot/resumed; look theirs/half "" 1 /share/seen.ot/resumed
zpool scrub -w theirs; zpool status -v theirs; zpool status theirs | grep -q 'errors: No known data errors'
zpool export theirs
echo STREAMS-OK
G

command -v nbdcopy >/dev/null || skip "nbdcopy is not installed (tests/oracles/install clients)"
S=$share M=$w/mnt T=$w/truth.ours; . "$share/both.sh"
volume_write() { nbdcopy --flush "$2" "nbd+unix:///$1?socket=$SANBOX_STATE/nbd.sock"; }
volume_read() { nbdcopy "nbd+unix:///$1?socket=$SANBOX_STATE/nbd.sock" -; }
mkdir "$w/disks/ours" "$w/disks/theirs"; truncate -s 2G "$w/disks/ours/d0"
serve --mount --nbd-port 0 --iscsi-port 0 --https-port 0
zpool create -O mountpoint="$w/mnt/ours" ours "$w/disks/ours/d0"
fill ours; send_all ours "$share/ours"
"$root/tests/realvm/realvm" run "$share/guest" --share "$share" --disk "$w/disks/theirs/d0:2G" --timeout 2400 >"$w/out" 2>"$w/err" & machine=$!
take_all "$share/ours" ours/own >"$share/refused.oo"
until [ -e "$share/theirs/ready" ]; do kill -0 $machine || { tail -n 40 "$w/out" "$w/err"; fail "the module did not send"; }; sleep 1; done
take_all "$share/theirs" ours/got >"$share/refused.to"
head -c 300000 "$share/theirs/whole" | zfs receive -s -u ours/half 2>/dev/null || true
zfs get -Hpo value receive_resume_token ours/half >"$share/token.ours"
zfs send -t "$(cat "$share/token.theirs")" >"$share/rest.ours" || fail "we do not go on with OpenZFS's token"
touch "$share/ours/ready"
wait $machine || { tail -n 40 "$w/out" "$w/err"; fail "the module did not come to its end"; }
grep -q STREAMS-OK "$w/out" || { tail -n 40 "$w/out" "$w/err"; fail "the module did not come to its end"; }
zfs receive -u ours/half <"$share/rest.theirs" || fail "what OpenZFS sends for our token is not received"
look_all ours/own "$share/seen.oo"; look_all ours/got "$share/seen.to"; mkdir -p "$share/seen.to/resumed"; look ours/half "" 1 "$share/seen.to/resumed"
diff -r "$w/truth.ours" "$share/truth.theirs" >"$w/differences" || { head -5 "$w/differences"; fail "the two sides were not given the same files"; }

bad=0
verdict() { # verdict NAME DATASET ROUND DIRECTION
  local below
  if grep -q "^$1|" "$share/refused.$4" 2>/dev/null; then sed -n "s/^$1|/refused: /p" "$share/refused.$4"; return; fi
  for below in ${5:-.}; do
    cmp -s "$w/truth.ours/$2/$below/$3" "$share/seen.$4/$1/$below/$3" && continue
    # OpenZFS loses the spill blocks of raw streams that are not encrypted: its own and ours.
    case $1$4 in w-plainot | w-plaintt) cmp -s "$share/seen.tt/$1/$below/$3" "$share/seen.$4/$1/$below/$3" && { echo "as OpenZFS makes of its own"; return; } ;; esac
    { echo "differs: $(head -c 100 "$share/seen.$4/$1/why" 2>/dev/null | tr '\n' ' ')"; return; }
  done
  [ "$1" != R ] || sed "s,^[^	]*	,," "$share/seen.$4/R/properties" | cmp -s - <(sed "s,^[^	]*	,," "$share/seen.tt/R/properties") || { echo "differs: properties"; return; }
  echo equal
}
{
  echo "| stream | ours to ours | ours to OpenZFS | OpenZFS to ours | OpenZFS to OpenZFS |"; echo "| --- | --- | --- | --- | --- |"
  kinds | while IFS='|' read -r name dataset first second; do
    below=.; [ "$name" != R ] || below=". kid clone vol"
    echo "| \`$first\`, then \`$second\` | $(for d in oo ot to tt; do verdict "$name" "$dataset" "${second##*@}" $d "$below"; done | paste -sd'|' | sed 's/|/ | /g') |"
  done
  echo "| \`-c fs@1\`, resumed by the other's token | | $(verdict resumed fs 1 ot) | $(verdict resumed fs 1 to) | |"
} | tee "$w/table"
[ -z "${TABLE:-}" ] || cp "$w/table" "$TABLE"
! grep -qE 'refused|differs' "$w/table" || bad=1
zpool scrub -w ours; zpool status ours | grep -q 'errors: No known data errors' || fail "our scrub"
zpool export ours
for pool in ours theirs; do
  zdb -e -p "$w/disks/$pool" -bcc $pool >"$w/zdb" 2>&1 && grep -q 'No leaks' "$w/zdb" || { tail -20 "$w/zdb"; fail "zdb -bcc $pool"; }
done
stop
[ -z "${KEEP:-}" ] || { mkdir -p "$KEEP"; cp -r --sparse=always "$share" "$w/disks" "$w/out" "$w/err" "$KEEP/"; }
[ $bad = 0 ] || fail "not every stream arrives"
echo "interop streams: $(grep -c equal "$w/table") kinds of streams equal, zdb clean at both ends"
