#!/bin/bash
# Real cuts under the real client: the server is killed with SIGKILL hundreds of times (ROUNDS, default 200), also while it starts and
# replays its logs, under four workers of the Linux NFS client (hard mount, in a throw-away QEMU machine); everything acknowledged is
# looked for from the client, past its caches, after each kill, and at the end on the server; zdb finds the pool in order.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
truncate -s 1G "$w/disks/d0.img" "$w/disks/d1.img"; truncate -s 256M "$w/disks/log.img"
zpool create -O mountpoint=none tank mirror "$w/disks/d0.img" "$w/disks/d1.img" log "$w/disks/log.img"
zfs create -o sharenfs=rw,no_root_squash tank/files
python3 "$here/kill-vm.py" server --sanbox "$SANBOX" --realvm "$root/tests/realvm/realvm" --dir "$w" --port "$port" \
  --rounds "${ROUNDS:-200}" ${SEED:+--seed "$SEED"} || { [ -z "${KEEP:-}" ] || cp -a "$w" "$KEEP"; fail "see above"; }
compare tank/files
judge tank
echo "interop kill-nfs: done"
