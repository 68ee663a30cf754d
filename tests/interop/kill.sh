#!/bin/bash
# Real cuts: the server is killed with SIGKILL in the middle of the work of an NFS client (libnfs), a FUSE mount, an NBD and
# an iSCSI initiator, started again, and everything it had acknowledged must be there; hundreds of rounds (ROUNDS, default
# 100). The pool is a mirror with a log device. At the end the pool is exported and zdb finds nothing wrong.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
w=$(mktemp -d); mount=
# What a killed server had mounted stays, dead, until it is taken away.
trap 'for at in $(grep -o " $w/[^ ]*" /proc/self/mounts); do umount -l "$at" || true; done; rm -rf "$w"' EXIT
python3 -c 'import ctypes; ctypes.CDLL("libnfs.so.13")' 2>/dev/null || { echo "SKIPPED interop kill: libnfs is not installed" >&2; exit 77; }
export SANBOX_STATE=$w/state
port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
nfs=${PORT:-$(port)} iscsi=$(port)
mkdir "$w/disks"; truncate -s 1G "$w/disks/d0.img" "$w/disks/d1.img"; truncate -s 256M "$w/disks/log.img"
bytes=4194304
"$SANBOX" zpool create -O mountpoint=none tank mirror "$w/disks/d0.img" "$w/disks/d1.img" log "$w/disks/log.img"
"$SANBOX" zfs create -o sharenfs='rw,no_root_squash' tank/files
"$SANBOX" zfs create -o sharenfs='rw,no_root_squash' -o logbias=throughput tank/throughput
"$SANBOX" zfs create -V $bytes tank/nbd
"$SANBOX" zfs create -V $bytes tank/iscsi
target=iqn.2026-11.org.example:kill
"$SANBOX" target create $target
"$SANBOX" target map $target tank/iscsi
fuse=()
if [ -e /dev/fuse ] && [ "$(id -u)" = 0 ]; then
    mount=$w/mnt; mkdir "$mount"; fuse=(--fuse "$mount")
    "$SANBOX" zfs create -o mountpoint="$mount" tank/mounted
else
    echo "interop kill: without FUSE here" >&2
fi
python3 "$here/kill.py" --state "$SANBOX_STATE" --sanbox "$SANBOX" --nfs-port "$nfs" --iscsi-port "$iscsi" --target $target \
    --volume-bytes $bytes --rounds "${ROUNDS:-100}" ${SEED:+--seed "$SEED"} "${fuse[@]}"
"$SANBOX" zpool export tank
! command -v zdb >/dev/null || zdb -e -p "$w/disks" -bcc tank >"$w/zdb" 2>&1 || { tail -20 "$w/zdb"; exit 1; }
echo "interop kill: done"
