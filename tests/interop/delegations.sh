#!/bin/bash
# Read delegations of NFSv4.1: whoever else changes a delegated file, by NFSv3, NFSv4.1 or a mount by FUSE, waits until it is given back; a
# rollback revokes it. The holder is pynfs' client.
#
#   PYNFS=CHECKOUT tests/interop/delegations.sh        (a checkout as nfs4.sh wants it)
set -euo pipefail
. "$(dirname "$0")/lib.sh"
python=${PYTHON:-/usr/bin/python3}
[ -n "${PYNFS:-}" ] || skip "pynfs is not here (PYNFS)"
mkdir -p "$SANBOX_STATE"
printf '[nfs]\nlease_seconds = 15\n' >"$SANBOX_STATE/sanbox.toml"
truncate -s 1G "$w/disks/d0"
sanbox zpool create tank "$w/disks/d0"
sanbox zfs create -o sharenfs='rw,no_root_squash' -o mountpoint="$w/mnt" tank/share
sanbox zfs snapshot tank/share@before
serve --mount
mount=
if mountpoint -q "$w/mnt"; then mount=$w/mnt; else echo "SKIPPED interop $name: no mount by FUSE" >&2; fi
timeout 120 "$python" "$here/delegations.py" "$PYNFS" 127.0.0.1 "$port" "$w/mnt" "$mount" \
  "'$w/bin/zfs' rollback -r tank/share@before" >"$w/out" 2>"$w/err" || { cat "$w/out"; tail -5 "$w/err" >&2; fail "a way that does not wait"; }
cat "$w/out"
stop
judge tank
