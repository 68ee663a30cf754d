#!/bin/bash
# The plug is pulled: sanbox serves from a QEMU machine with three disks (a mirror and a log), which is killed with SIGKILL at any
# moment and booted again (ROUNDS, default 20), under four workers of the Linux NFS client in a second machine. What the disks were
# not told to flush may be lost with it. Everything acknowledged is looked for as in kill-nfs.sh; at the end this machine imports the
# disks, and zdb finds the pool in order.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
command -v nbdkit >/dev/null || skip "nbdkit is not installed"
truncate -s 1G "$w/disks/d0.img" "$w/disks/d1.img"; truncate -s 256M "$w/disks/log.img"
mkdir "$w/share"; strip -o "$w/share/sanbox" "$SANBOX"
python3 "$here/kill-vm.py" guest --sanbox "$SANBOX" --realvm "$root/tests/realvm/realvm" --dir "$w" --port "$port" \
  --rounds "${ROUNDS:-20}" ${SEED:+--seed "$SEED"} || { [ -z "${KEEP:-}" ] || cp -a "$w" "$KEEP"; fail "see above"; }
zpool import -f -d "$w/disks" tank || fail "the disks are not imported"
compare tank/files
judge tank
echo "interop kill-guest: done"
