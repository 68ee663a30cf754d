#!/bin/bash
# Delegations of NFSv4.1: changes of a delegated file by NFSv3, by other clients of NFSv4.1 and by a mount wait until it is given
# back, and so does reading one that is delegated to be written; clients that write in their caches and others work at once for SECONDS_AT_ONCE
# (default 20), and none finds what is stale; a server that was killed gives back what it had given, which nobody changes before; a rollback revokes. The
# holders are pynfs' clients.
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
python() { timeout 120 "$python" "$here/delegations.py" "$PYNFS" 127.0.0.1 "$port" "$w/mnt" "$mount" "$@"; }
check() {
  python "$@" >"$w/out" 2>"$w/err" ||
    { cat "$w/out"; tail -5 "$w/err" >&2; fail "a change that does not wait, or waits in vain"; }
  cat "$w/out"
}
check at-once "${SECONDS_AT_ONCE:-20}"
check "$w/handles"
# What is replayed from the intent log counts as changed since.
sanbox zpool sync tank
{ kill -9 $pid; wait $pid; } 2>/dev/null || true
[ -z "$mount" ] || umount -l "$w/mnt" 2>/dev/null || true
: >"$w/log"
serve --mount
check "$w/handles" "'$w/bin/zfs' rollback -r tank/share@before"
stop
judge tank
