#!/bin/bash
# POSIX on a mounted dataset (FUSE, as root): pjdfstest's 238 files, and random I/O on files against copies in memory.
#   env PJDFSTEST   a built checkout of pjdfstest; without it the pinned commit is cloned and built under target/
#       FSX         xfstests' fsx (ltp/fsx of github.com/kdave/xfstests), run as well when given
#       FSX_OPS     operations of each random run (default 6000)
#       FSSTRESS    xfstests' fsstress, run as well when given: four processes, 3,000 operations each
set -euo pipefail
. "$(dirname "$0")/lib.sh"
commit=85a8aea9e685999ef0540392fd80535f873d7ff7
[ "$(id -u)" = 0 ] || skip "needs root (ids, device nodes)"
[ -e /dev/fuse ] || skip "this machine has no /dev/fuse"
command -v prove >/dev/null || skip "prove (Debian: perl) is not installed"
pjd=${PJDFSTEST:-$root/target/conformance/pjdfstest-$commit}
if [ ! -x "$pjd/pjdfstest" ] && [ -z "${PJDFSTEST:-}" ]; then
  rm -rf "$pjd"; mkdir -p "$pjd"
  { git -C "$pjd" init -q && git -C "$pjd" fetch -q --depth 1 https://github.com/pjd/pjdfstest "$commit" \
      && git -C "$pjd" checkout -q FETCH_HEAD; } || { rm -rf "$pjd"; skip "pjdfstest could not be cloned; give PJDFSTEST"; }
fi
if [ ! -x "$pjd/pjdfstest" ]; then
  # What its configure finds on every Linux of today.
  for have in OPENAT MKNODAT MKFIFOAT LINKAT RENAMEAT SYMLINKAT UNLINKAT FCHMODAT FCHOWNAT FSTATAT MKDIRAT POSIX_FALLOCATE \
    UTIMENSAT SYS_SYSMACROS_H STRUCT_STAT_ST_ATIM STRUCT_STAT_ST_CTIM STRUCT_STAT_ST_MTIM; do echo "#define HAVE_$have 1"; done >"$pjd/config.h"
  cc -O1 -w -D_GNU_SOURCE -DHAVE_CONFIG_H -I"$pjd" -o "$pjd/pjdfstest" "$pjd/pjdfstest.c" || fail "pjdfstest does not build"
fi
truncate -s 1G "$w/disks/d0" "$w/disks/d1"
zpool create -O mountpoint="$w/mnt" tank mirror "$w/disks/d0" "$w/disks/d1"
serve --mount
mountpoint -q "$w/mnt" || fail "the dataset is not mounted"
# Tests become other users, who have to reach the directory.
chmod 755 "$w" "$w/mnt"; mkdir "$w/mnt/pjd"; chmod 755 "$w/mnt/pjd"
(cd "$w/mnt/pjd" && prove -r --timer "$pjd/tests") >"$w/pjd" 2>&1 || { grep -E 'Failed|not ok|Result' "$w/pjd" | tail -40; fail "pjdfstest"; }
grep -q 'Result: PASS' "$w/pjd" || { tail -5 "$w/pjd"; fail "pjdfstest did not end"; }
files=$(sed -n 's/^Files=\([0-9]*\), Tests=\([0-9]*\),.*/\1/p' "$w/pjd") tests=$(sed -n 's/^Files=\([0-9]*\), Tests=\([0-9]*\),.*/\2/p' "$w/pjd")
[ "$tests" -ge 8700 ] || fail "pjdfstest ran $tests tests only"
echo "interop posix: pjdfstest: $files files, $tests tests, all passed"
for run in "1 1048576" "2 4194304" "3 262144" "4 70000"; do
  read -r seed bytes <<<"$run"
  python3 "$here/fsx.py" "$w/mnt/fsx.$seed" "${FSX_OPS:-6000}" "$seed" "$bytes" || fail "fsx, seed $seed"
done
if [ -n "${FSX:-}" ]; then
  "$FSX" -q -S 1 -N "${FSX_OPS:-6000}" -l 1048576 "$w/mnt/fsx.a" >"$w/fsx" 2>&1 || { tail -3 "$w/fsx"; fail "fsx"; }
  "$FSX" -q -S 2 -N "${FSX_OPS:-6000}" -c 50 -l 524288 "$w/mnt/fsx.b" >"$w/fsx" 2>&1 || { tail -3 "$w/fsx"; fail "fsx -c"; }
  "$FSX" -q -S 3 -N "${FSX_OPS:-6000}" -R -W -l 4194304 "$w/mnt/fsx.c" >"$w/fsx" 2>&1 || { tail -3 "$w/fsx"; fail "fsx -R -W"; }
  echo "interop posix: xfstests' fsx agrees"
fi
if [ -n "${FSSTRESS:-}" ]; then
  mkdir "$w/mnt/stress"
  "$FSSTRESS" -d "$w/mnt/stress" -n 3000 -p 4 -s 42 >"$w/fsstress" 2>&1 || { tail -3 "$w/fsstress"; fail "fsstress"; }
  find "$w/mnt/stress" -ls >/dev/null || fail "not everything fsstress left can be read"
  rm -rf "$w/mnt/stress"
  echo "interop posix: xfstests' fsstress runs"
fi
stop
judge tank
echo "interop posix: zdb clean"
