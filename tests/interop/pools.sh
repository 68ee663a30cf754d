#!/bin/bash
# A pool made and filled by sanbox: zdb finds it clean, OpenZFS's own code in userland scrubs it, the real kernel module
# imports it read-write, scrubs it with 0 errors, reads every file with equal hashes, writes to it and exports it; sanbox
# then imports it back and sees the module's files, and what sanbox writes after that is clean again.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); root=$(cd "$here/../.." && pwd)
w=$(mktemp -d); trap 'rm -rf "$w"' EXIT
export SANBOX_STATE=$w/state
mkdir "$w/disks" "$w/share" "$w/tree"
git -C "$root" archive HEAD crates docs | tar -x -C "$w/tree"
mkdir "$w/tree/odd"
python3 - "$w/tree/odd" <<'P'
import os, random, sys
d, r = sys.argv[1], random.Random(7)
for size in (0, 1, 511, 512, 513, 4096, 100_000, 131_072, 131_073, 1_000_000, 5_000_000):
    open(f"{d}/f{size}", "wb").write(r.randbytes(size))
with open(f"{d}/sparse", "wb") as f:
    f.seek(40_000_000); f.write(b"end")
open(f"{d}/zeros", "wb").write(bytes(300_000))
for i in range(3000): open(f"{d}/many-{i:05}-{'x' * (i % 60)}", "w").write(str(i))
os.symlink("f4096", f"{d}/link"); os.link(f"{d}/f513", f"{d}/hard"); os.mkfifo(f"{d}/fifo")
P
hashes() { (cd "$1" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum); }
hashes "$w/tree" >"$w/share/expect"

for layout in single mirror "mirror mirror"; do
  name=${layout// /_}; images=()
  rm -rf "$w/disks" "$w/share/"*.img; mkdir "$w/disks"
  spec=()
  for kind in $layout; do
    n=1; [ "$kind" = single ] || { n=2; spec+=(mirror); }
    for _ in $(seq $n); do
      image=$w/disks/d${#images[@]}.img; truncate -s 320M "$image"; images+=("$image"); spec+=("$image")
    done
  done
  "$SANBOX" zpool create -f ours "${spec[@]}"
  "$SANBOX" zfs create -o compression=zstd ours/z
  "$SANBOX" zfs create -o compression=off -o recordsize=16k ours/off
  for fs in ours ours/z ours/off; do "$SANBOX" put -r "$w/tree" "$fs:/tree"; done
  "$SANBOX" rm -r ours/off:/tree/odd
  "$SANBOX" put -r "$w/tree/odd" ours/off:/tree/odd
  "$SANBOX" zpool export ours
  zdb -e -p "$w/disks" -bcc ours >"$w/zdb" 2>&1 || { tail -20 "$w/zdb"; exit 1; }
  grep -q 'No leaks' "$w/zdb" || { tail -20 "$w/zdb"; exit 1; }
  zdb -e -p "$w/disks" -dddd ours >"$w/zdb" 2>&1 || { tail -20 "$w/zdb"; exit 1; }

  cp --sparse=always "$w"/disks/*.img "$w/share/"
  cat >"$w/guest" <<'G'
set -eu
cp --sparse=always /share/*.img /tmp/
zpool import -d /tmp ours
zpool scrub -w ours
zpool status -v ours
zpool status ours | grep -q 'repaired 0B.*with 0 errors'
zpool status ours | grep -q 'errors: No known data errors'
for m in /ours /ours/z /ours/off; do
  (cd $m/tree && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) | cmp - /share/expect
  [ "$(readlink $m/tree/odd/link)" = f4096 ] && [ -p $m/tree/odd/fifo ] && [ "$(stat -c %h $m/tree/odd/hard)" = 2 ]
done
zfs list -o name,used,avail,refer,compressratio
mkdir /ours/theirs
for i in $(seq 200); do echo "$i from the module" >/ours/theirs/t$i; done
cp -a /ours/tree/docs /ours/z/theirs-docs
rm -r /ours/off/tree/odd
dd if=/dev/urandom of=/ours/theirs/big bs=1M count=20 2>/dev/null
truncate -s 3000 /ours/tree/odd/f100000
sync
(cd /ours && find . -xdev -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) >/share/theirs
zpool export ours
cp --sparse=always /tmp/*.img /share/
echo POOL-OK
G
  "$root/tests/realvm/realvm" run "$w/guest" --share "$w/share" --timeout 600 >"$w/out" 2>"$w/err" || { tail -n 40 "$w/out" "$w/err"; exit 1; }
  grep -q POOL-OK "$w/out" || { tail -n 40 "$w/out" "$w/err"; exit 1; }
  grep -E 'scan:|errors:' "$w/out"

  cp --sparse=always "$w"/share/*.img "$w/disks/"
  "$SANBOX" zpool import -d "$w/disks" ours
  rm -rf "$w/back"; "$SANBOX" get -r ours:/ "$w/back"
  hashes "$w/back" | cmp - "$w/share/theirs"
  "$SANBOX" put -r "$w/tree/docs" ours:/again
  "$SANBOX" rm -r ours:/theirs
  "$SANBOX" zpool export ours
  zdb -e -p "$w/disks" -bcc ours >"$w/zdb" 2>&1 || { tail -20 "$w/zdb"; exit 1; }
  grep -q 'No leaks' "$w/zdb" || { tail -20 "$w/zdb"; exit 1; }
  echo "interop pools: $name: module and zdb agree ($(wc -l <"$w/share/expect") files, three file systems)"
done
