#!/bin/bash
# A directory of a million entries: made, listed, looked up, emptied, through FUSE; with the time of each and the
# server's memory. env ENTRIES (default 1000000).
set -euo pipefail
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] && [ -e /dev/fuse ] || skip "needs root and /dev/fuse"
entries=${ENTRIES:-1000000}
truncate -s 8G "$w/disks/d0"
zpool create -O mountpoint="$w/mnt" -O atime=off -O sharenfs=rw,no_root_squash tank "$w/disks/d0"
serve --mount --memory 256M
memory() { awk '/^VmHWM/ {print int($2 / 1024)}' /proc/$pid/status; }
cat >"$w/work.py" <<'P'
import os, random, sys, time
step, root, entries = sys.argv[1], sys.argv[2], int(sys.argv[3])
started = time.monotonic()
name = lambda n: f"{root}/dir/entry-{n:07}-of-a-directory-that-grows"
if step == "make":
    os.mkdir(f"{root}/dir")
    # Hard links need no object each; every hundredth is a file of its own.
    for n in range(entries):
        if n % 100 == 0:
            os.close(os.open(name(n), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)); source = name(n)
        else:
            os.link(source, name(n))
elif step == "list":
    seen = set(os.listdir(f"{root}/dir"))
    assert len(seen) == entries, f"{len(seen)} names of {entries}"
    assert all(os.path.basename(name(n)) in seen for n in range(0, entries, 997))
elif step == "lookup":
    r = random.Random(5)
    for _ in range(20000):
        n = r.randrange(entries)
        assert os.stat(name(n)).st_nlink == 100
        assert not os.path.exists(name(n) + "x")
elif step == "remove":
    # In an order of its own, half while listing, as `rm -r` does it.
    left = [n for n in range(entries) if n % 2]
    random.Random(6).shuffle(left)
    for n in left: os.unlink(name(n))
    with os.scandir(f"{root}/dir") as listing:
        for entry in listing: os.unlink(entry.path)
    assert os.listdir(f"{root}/dir") == []
    os.rmdir(f"{root}/dir")
print(f"{time.monotonic() - started:.1f}")
P
for step in make list lookup remove; do
  if [ $step = list ]; then
    # What is listed comes from disk: a fresh server.
    zpool sync tank; stop; : >"$w/log"; serve --mount --memory 256M
    seconds=$(python3 "$w/work.py" list "$w/mnt" "$entries") || fail list
    echo "interop million: list: $entries entries in $seconds s, cold; the server's peak memory $(memory) MiB"
    if command -v nfs-ls >/dev/null; then
      start=$SECONDS
      count=$(nfs-ls "nfs://127.0.0.1$w/mnt/dir?nfsport=$port&mountport=$port&version=3" | wc -l)
      [ "$count" = "$entries" ] || fail "nfs-ls shows $count of $entries"
      echo "interop million: list over NFS (with attributes): $((SECONDS - start)) s; peak memory $(memory) MiB"
    fi
    continue
  fi
  seconds=$(python3 "$w/work.py" $step "$w/mnt" "$entries") || fail $step
  case $step in make | remove) count=$entries ;; *) count=40000 ;; esac
  echo "interop million: $step: $count in $seconds s; the server's peak memory $(memory) MiB"
done
[ "$(memory)" -lt 2048 ] || fail "the server took $(memory) MiB"
stop
judge tank
echo "interop million: zdb clean"
