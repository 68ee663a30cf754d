#!/bin/bash
# A pool of another system moves in and out (docs/guide/9-moving-in.md): pools that OpenZFS made are looked at read-only, imported,
# shared, written to, and handed back.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
archive=$root/tests/golden/d-raidz2-6.tar.zst
[ -e "$archive" ] || skip "there are no golden pools"
command -v zstd >/dev/null || skip "zstd is not installed"
tar -I zstd -xf "$archive" -C "$w/disks"
images=$(dirname "$(find "$w/disks" -type f -size +1M | head -1)")
listing=$(zpool import -d "$images")
pool=$(echo "$listing" | awk '$1 == "pool:" {print $2; exit}')
[ -n "$pool" ] || fail "no pool is found: $listing"
zpool import -f -o readonly=on -d "$images" "$pool"
names=$(zfs list -H -o name -r "$pool")
[ -n "$names" ] || fail "no datasets"
if zfs snapshot "$pool@no" 2>/dev/null; then fail "a pool opened read-only was written to"; fi
zpool export "$pool"
start
zpool import -f -d "$images" "$pool"
expect "the datasets" "$(zfs list -H -o name -r "$pool")" "$names"
zfs create -o sharenfs=rw,root=127.0.0.1 "$pool/moved"
data file 5000000
put file "/$pool/moved/file"
same file "/$pool/moved/file"
zpool scrub -w "$pool"
contains "the scrub" "$(zpool status "$pool")" "with 0 errors"
stop
zpool export "$pool"
zdb -e -p "$images" -bcc "$pool" >"$w/zdb" 2>&1 || { tail -20 "$w/zdb"; fail "zdb"; }
