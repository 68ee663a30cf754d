#!/bin/bash
# Two appliances, of which one or both are killed with SIGKILL in the middle of runs of a job, 200 times (ROUNDS) with 100 datasets (DATASETS):
# then both have the same, and zdb finds nothing wrong with either pool. SEED is the first; WORK a directory on a disk.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
w=$(mktemp -d "${WORK:-${TMPDIR:-/tmp}}/sanbox-kill-replication.XXXXXX"); trap 'rm -rf "$w"' EXIT
python3 "$here/kill-replication.py" --work "$w" --sanbox "$SANBOX" --rounds "${ROUNDS:-200}" --datasets "${DATASETS:-100}" \
    ${LOOK:+--look "$LOOK"} ${SEED:+--seed "$SEED"}
! command -v zdb >/dev/null && { echo "SKIPPED interop kill-replication: zdb is not installed" >&2; exit 77; }
for pool in source/tank target/back; do
  at=$w/${pool%/*}/disks name=${pool#*/}
  zdb -e -p "$at" -bcc "$name" >"$w/zdb" 2>&1 && grep -q 'No leaks' "$w/zdb" || { tail -20 "$w/zdb"; exit 1; }
  zdb -e -p "$at" -dddd "$name" >"$w/zdb" 2>&1 || { tail -20 "$w/zdb"; exit 1; }
done
echo "interop kill-replication: done"
