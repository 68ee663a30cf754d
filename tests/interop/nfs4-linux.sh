#!/bin/bash
# The Linux NFS client on one share by versions 3, 4.0, 4.1 and 4.2 at once (nfs4-linux.py, in a throw-away QEMU machine): files,
# names, holes, extended attributes, NFSv4 lists, locks between the versions; and the server is killed with SIGKILL (ROUNDS, default 3) while
# six processes add to one number under locks: they go on, no addition is lost, and what was locked is locked still.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
rounds=${ROUNDS:-3}
mkdir -p "$SANBOX_STATE" "$w/share"
printf '[nfs]\nlease_seconds = 15\n' >"$SANBOX_STATE/sanbox.toml"
truncate -s 1G "$w/disks/d0" "$w/disks/d1"
zpool create tank mirror "$w/disks/d0" "$w/disks/d1"
zfs create -o sharenfs='rw,no_root_squash' tank/share
zfs create -o sharenfs='rw,no_root_squash' -o acltype=nfsv4 -o aclmode=passthrough -o aclinherit=passthrough tank/lists
serve
cp "$here/nfs4-linux.py" "$w/share/day.py"
cat >"$w/guest" <<'G'
set -eu
port=$1 rounds=$2
modprobe -a nfsv3 nfsv4
for version in 3 4.0 4.1 4.2; do
  mkdir -p "/mnt/$version"
  options=vers=$version,port=$port,proto=tcp,hard,timeo=50
  [ "$version" != 3 ] || options=$options,nolock,mountport=$port,mountproto=tcp
  mount -t nfs -o "$options" 10.0.2.2:/tank/share "/mnt/$version"
  [ "$version" != 3 ] || continue
  mkdir -p "/mnt/lists-$version"
  mount -t nfs -o "$options" 10.0.2.2:/tank/lists "/mnt/lists-$version"
done
grep ' nfs' /proc/mounts
status=0; python3 -u /share/day.py "$rounds" || status=$?
dmesg | grep -i nfs | tail -5
cd /; umount /mnt/lists-* /mnt/3 /mnt/4.0 /mnt/4.1 /mnt/4.2
exit $status
G
"$root/tests/realvm/realvm" run "$w/guest" --no-zfs --timeout 900 --share "$w/share" -- "$port" "$rounds" >"$w/out" 2>&1 & vm=$!
for i in $(seq 0 $((rounds - 1))); do
  while [ ! -e "$w/share/kill-$i" ] && kill -0 $vm 2>/dev/null; do sleep 0.2; done
  kill -0 $vm 2>/dev/null || break
  kill -9 $pid; wait $pid 2>/dev/null || true
  : >"$w/log"
  serve
  touch "$w/share/restarted-$i"
done
wait $vm || { cat "$w/out" >&2; fail "the client's day ended badly"; }
grep -q NFS-DAY-OK "$w/out" || { cat "$w/out" >&2; fail "the client's day did not end"; }
grep -E '^(4|3|locks|written|restart|[0-9]+ kills)' "$w/out"
zpool sync tank
saved=$(zpool get -Hpo value bclonesaved tank)
[ "$saved" -gt $((40 << 20)) ] || fail "the clones share $saved bytes"
echo "$saved bytes shared"
stop
judge tank
