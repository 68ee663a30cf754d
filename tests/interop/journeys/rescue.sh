#!/bin/bash
# Out of a dying pool (docs/guide/9-moving-in.md): one disk of a raidz1 is gone and another has bad sectors. It is opened read-only;
# what has no good copy is named, everything else comes out whole, and not a byte was written to the disks.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
disks 256M sda sdb sdc
zpool create tank raidz1 $(at sda sdb sdc)
zfs create tank/home
zfs create -V 32M tank/vm1
mkdir "$w/tree"
for n in $(seq 40); do data "tree/f$n" 1500000; done
data image 33554432
sanbox put -r "$w/tree" tank/home:/tree
sanbox put "$w/tree/f1" tank/home:/alone
zfs snapshot tank/home@before
zpool export tank
mkdir "$w/gone"; mv "$w/disks/sdb" "$w/gone"
# Found by their bytes, so that files are hit wherever they lie: a part of the first file's data on this disk, and of two others.
python3 - "$w/disks/sdc" "$w/tree" <<'P'
import mmap, sys
with open(sys.argv[1], "r+b") as disk, mmap.mmap(disk.fileno(), 0) as bytes:
    for name in ("f3", "f17", "f30"):
        data = open(f"{sys.argv[2]}/{name}", "rb").read()
        hits = (bytes.find(data[at:at + 4096]) for at in range(0, len(data), 4096))
        at = next(hit for hit in hits if hit >= 0)
        bytes[at:at + 4096] = b"\xa5" * 4096
P
start
before=$(sha256sum "$w"/disks/sd[ac])
contains "what is there" "$(zpool import -d "$w/disks" 2>&1)" DEGRADED
zpool import -o readonly=on -d "$w/disks" tank
status=0; sanbox get -r tank/home:/tree "$w/out" 2>"$w/said" || status=$?
whole=0 bad=0
for n in $(seq 40); do
  if cmp -s "$w/out/f$n" "$w/tree/f$n"; then whole=$((whole + 1)); else
    bad=$((bad + 1)); grep -q "f$n\b" "$w/said" || fail "f$n is damaged and not named: $(cat "$w/said")"
  fi
done
expect "files that are named and not whole" $bad 3
expect "files that came out" $whole 37
expect "the exit code where files are missing" $status 1
contains "the files with no good copy" "$(zpool status -v tank)" "Permanent errors"
sanbox get -r tank/home@before:/tree "$w/earlier" 2>/dev/null || true
[ "$(ls "$w/earlier" | wc -l)" -ge 20 ] || fail "the snapshot does not come out"
zpool export tank
expect "the disks" "$(sha256sum "$w"/disks/sd[ac])" "$before"
stop
# The missing disk is found again: everything is there.
mv "$w/gone/sdb" "$w/disks"
zpool import -o readonly=on -d "$w/disks" tank
rm -rf "$w/out"; sanbox get -r tank/home:/tree "$w/out" || fail "reading with all disks"
diff -r "$w/out" "$w/tree" || fail "trees differ"
zpool export tank
