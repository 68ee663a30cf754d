#!/bin/bash
# Logs of the real kernel module that hold what it alone logs: clones of blocks (within a dataset, across two, partial ones, and
# the source removed afterwards), exchanged names, whiteouts, clones between volumes' worth of files. The module's disks are taken
# in the middle, with all of it in the intent logs only; sanbox imports them and finds what the module shows.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
[ -n "${SANBOX:-}" ] && [ -x "$SANBOX" ] || skip "SANBOX is not set to the program"
mkdir "$w/share"
cat >"$w/share/work.py" <<'P'
import ctypes, hashlib, os, stat, sys
libc = ctypes.CDLL(None, use_errno=True)
EXCHANGE, WHITEOUT = 2, 4
def renameat2(a, b, flags):
    if libc.renameat2(-100, a.encode(), -100, b.encode(), flags):
        raise OSError(ctypes.get_errno(), "renameat2", a)
def clone(source, target, at=0, to=0, length=None):
    s = os.open(source, os.O_RDONLY); t = os.open(target, os.O_RDWR | os.O_CREAT, 0o644)
    left = os.fstat(s).st_size - at if length is None else length
    while left > 0:
        done = os.copy_file_range(s, t, left, at, to)
        assert done > 0; at += done; to += done; left -= done
    os.fsync(t); os.close(s); os.close(t)
def sync(path):
    d = os.open(path, os.O_RDONLY); os.fsync(d); os.close(d)
what = sys.argv[1]
fs, other = "/crash/fs", "/crash/other"
if what == "before":
    for name, size in ("whole", 1 << 20), ("odd", 300_001), ("small", 20_000), ("doomed", 600_000):
        open(f"{fs}/{name}", "wb").write(os.urandom(size))
    hole = open(f"{fs}/holes", "wb"); hole.write(os.urandom(131072)); hole.seek(4 * 131072); hole.write(os.urandom(131072)); hole.close()
    for name in "one", "two", "moved", "under": open(f"{fs}/{name}", "w").write(name)
    os.mkdir(f"{fs}/dir"); open(f"{fs}/dir/in", "w").write("in")
    # The first commit of each log waits for a group.
    for top in fs, other: f = open(f"{top}/first", "w"); f.write("x"); f.flush(); os.fsync(f.fileno())
elif what == "logged":
    for name in "whole", "odd", "small", "holes": clone(f"{fs}/{name}", f"{fs}/{name}.clone")
    clone(f"{fs}/whole", f"{fs}/part", 131072, 262144, 393216)
    clone(f"{fs}/whole", f"{other}/across")
    clone(f"{fs}/doomed", f"{other}/survivor"); clone(f"{fs}/doomed", f"{fs}/heir")
    os.unlink(f"{fs}/doomed"); sync(fs)
    f = open(f"{fs}/odd.clone", "r+b"); f.seek(100); f.write(b"over"); f.flush(); os.fsync(f.fileno())
    renameat2(f"{fs}/one", f"{fs}/dir/in", EXCHANGE); renameat2(f"{fs}/two", f"{fs}/dir", EXCHANGE)
    renameat2(f"{fs}/moved", f"{fs}/gone-away", WHITEOUT); renameat2(f"{fs}/under", f"{fs}/first", WHITEOUT)
    sync(fs)
else:
    for top in fs, other:
        for base, dirs, files in os.walk(top):
            for name in sorted(dirs + files):
                full = f"{base}/{name}"; s = os.lstat(full)
                data = hashlib.sha256(open(full, "rb").read()).hexdigest() if stat.S_ISREG(s.st_mode) else ""
                print(full[7:], oct(s.st_mode), s.st_nlink, s.st_size if data else "-", data)
P
cat >"$w/guest" <<'G'
set -eu
modprobe zfs; mkdir -p /tmp/disks; truncate -s 256M /tmp/disks/a /tmp/disks/b
echo 1 >/sys/module/zfs/parameters/zfs_bclone_enabled 2>/dev/null || true
zpool create crash mirror /tmp/disks/a /tmp/disks/b
zfs create -o recordsize=128K crash/fs; zfs create -o recordsize=128K crash/other
python3 /share/work.py before; zpool sync crash
echo 3600 >/sys/module/zfs/parameters/zfs_txg_timeout; zpool sync crash
before=$(awk '/^[0-9]/ && $3 == "C" {n = $1} END {print n}' /proc/spl/kstat/zfs/crash/txgs)
python3 /share/work.py logged
cp --sparse=always /tmp/disks/a /tmp/disks/b /share/
after=$(awk '/^[0-9]/ && $3 == "C" {n = $1} END {print n}' /proc/spl/kstat/zfs/crash/txgs)
python3 /share/work.py list | LC_ALL=C sort >/share/expect
echo "groups committed before and after: $before $after"
echo REPLAY-OK
G
"$root/tests/realvm/realvm" run "$w/guest" --share "$w/share" --timeout 1800 >"$w/out" 2>"$w/err" || { tail -n 60 "$w/out" "$w/err"; fail "the module did not get that far"; }
grep -q REPLAY-OK "$w/out" || { tail -n 60 "$w/out" "$w/err"; fail "the module did not come to its end"; }
grep '^groups' "$w/out"
[ -z "${KEEP:-}" ] || { mkdir -p "$KEEP"; cp --sparse=always "$w"/share/* "$KEEP/"; }
cp --sparse=always "$w/share/a" "$w/share/b" "$w/disks/"
if command -v zdb >/dev/null; then
  zdb -e -p "$w/disks" -iiiiii crash >"$w/zdb" 2>&1 || true
  for kind in TX_CLONE_RANGE TX_RENAME_EXCHANGE TX_RENAME_WHITEOUT; do grep -q "$kind" "$w/zdb" || fail "there is no $kind in the logs"; done
  echo "in the logs: $(grep -o 'TX_[A-Z_]*' "$w/zdb" | sort | uniq -c | tr -s ' \n' ' ')"
fi
serve --iscsi-port 0 --nbd-port 0 --metrics-port 0
zpool import -f -d "$w/disks" crash
mkdir "$w/back"
sanbox get -r crash/fs:/ "$w/back/fs"; sanbox get -r crash/other:/ "$w/back/other"
python3 - "$w/back" >"$w/found" <<'P'
import hashlib, os, stat, sys
for name in "fs", "other":
    top = f"{sys.argv[1]}/{name}"
    for base, dirs, files in os.walk(top):
        for entry in dirs + files:
            full = f"{base}/{entry}"; s = os.lstat(full)
            if stat.S_ISREG(s.st_mode): print(name + full[len(top):], s.st_size, hashlib.sha256(open(full, "rb").read()).hexdigest())
P
LC_ALL=C sort -o "$w/found" "$w/found"
awk '$5 != "" {print $1, $4, $5}' "$w/share/expect" | LC_ALL=C sort | diff - "$w/found" || fail "the files differ"
# Whiteouts are devices 0:0.
for name in $(awk '$2 ~ /^0o2/ {print $1}' "$w/share/expect"); do sanbox ls -l "crash/${name%%/*}:/" | grep -q "^c.* ${name#*/}\$" || fail "$name is no whiteout"; done
zpool scrub -w crash; zpool status crash | grep -q 'errors: No known data errors' || fail "scrub"
judge crash
echo "interop replay: $(wc -l <"$w/found") files equal, zdb clean"
