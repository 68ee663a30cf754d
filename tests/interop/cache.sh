#!/bin/bash
# A cache device that sanbox filled, before the real kernel module: it imports the pool, rebuilds its L2ARC from our log without
# rejecting anything, answers reads from it, and every byte is right. Then it feeds the device itself, and sanbox finds what it
# left there.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
[ -n "${SANBOX:-}" ] && [ -x "$SANBOX" ] || skip "SANBOX is not set to the program"
mkdir "$w/share" "$w/data"
head -c 48M /dev/urandom >"$w/share/noise"; split -n 12 -d -a 2 "$w/share/noise" "$w/data/f."
truncate -s 512M "$w/disks/a"; truncate -s 1200M "$w/disks/c"     # below 1 GiB OpenZFS keeps no log on a cache device
serve --iscsi-port 0 --nbd-port 0 --metrics-port 0
zpool create tank "$w/disks/a" cache "$w/disks/c"
zfs set compression=off recordsize=16K tank
zfs create tank/fs
for part in "$w"/data/f.*; do sanbox put "$part" tank/fs:/; done
zpool sync tank
sanbox tune zfs_arc_max=8M l2arc_noprefetch=0
filled=0
for round in $(seq 0 90); do
  part=$(printf 'f.%02d' $((round % 12)))
  sanbox cat "tank/fs:/$part" | cmp - "$w/data/$part"
  sleep 1
  filled=$(sanbox arcstat -p -f l2asize | tail -1 | tr -d ' ')
  [ "$filled" -lt $((30 << 20)) ] || break
done
[ "$filled" -ge $((16 << 20)) ] || fail "only $filled bytes went to the cache device"
zpool export tank; stop
cp --sparse=always "$w/disks/a" "$w/disks/c" "$w/share/"
cat >"$w/guest" <<'G'
set -eu
stat() { awk -v name="$1" '$1 == name {print $3}' /proc/spl/kstat/zfs/arcstats; }
modprobe zfs; mkdir /tmp/disks; cp --sparse=always /share/a /share/c /tmp/disks/
echo 0 >/sys/module/zfs/parameters/l2arc_noprefetch
zpool import -d /tmp/disks tank
zpool status tank
for _ in $(seq 60); do [ "$(stat l2_rebuild_success)" = 0 ] || break; sleep 1; done
for name in l2_rebuild_success l2_rebuild_unsupported l2_rebuild_io_errors l2_rebuild_dh_errors l2_rebuild_cksum_lb_errors \
  l2_rebuild_lowmem l2_rebuild_size l2_rebuild_asize l2_rebuild_bufs l2_rebuild_bufs_precached l2_rebuild_log_blks; do echo "$name $(stat $name)"; done
[ "$(stat l2_rebuild_success)" = 1 ] && [ "$(stat l2_rebuild_bufs)" -gt 500 ] && [ "$(stat l2_rebuild_log_blks)" -gt 1 ]
for name in unsupported io_errors dh_errors cksum_lb_errors; do [ "$(stat l2_rebuild_$name)" = 0 ]; done
before=$(stat l2_hits)
cat /tank/fs/f.* | cmp - /share/noise
echo "l2_hits $(($(stat l2_hits) - before)) l2_cksum_bad $(stat l2_cksum_bad) l2_io_error $(stat l2_io_error)"
[ $(($(stat l2_hits) - before)) -gt 500 ] && [ "$(stat l2_cksum_bad)" = 0 ] && [ "$(stat l2_io_error)" = 0 ]
# Now its own turn: a little memory, and everything read again and again.
echo $((64 << 20)) >/sys/module/zfs/parameters/zfs_arc_max
echo $((64 << 20)) >/sys/module/zfs/parameters/l2arc_write_max
head -c 160M /dev/urandom >/tank/fs/more; zpool sync tank
for _ in 1 2 3; do cat /tank/fs/more >/dev/null; sleep 2; done
echo "fed $(stat l2_write_bytes) bytes, device holds $(stat l2_asize)"
[ "$(stat l2_write_bytes)" -gt 10000000 ]
zpool scrub -w tank; zpool status -v tank | grep -q 'errors: No known data errors'
sha256sum /tank/fs/more | cut -d' ' -f1 >/share/more.sum
zpool export tank
cp --sparse=always /tmp/disks/a /tmp/disks/c /share/
echo CACHE-OK
G
"$root/tests/realvm/realvm" run "$w/guest" --share "$w/share" --mem 3072 --timeout 2400 >"$w/out" 2>"$w/err" || { tail -n 60 "$w/out" "$w/err"; fail "the module does not take the pool"; }
grep -q CACHE-OK "$w/out" || { tail -n 60 "$w/out" "$w/err"; fail "the module did not come to its end"; }
grep -E '^(l2_|fed)' "$w/out"
cp --sparse=always "$w/share/a" "$w/share/c" "$w/disks/"
: >"$w/log"
serve --iscsi-port 0 --nbd-port 0 --metrics-port 0
zpool import -d "$w/disks" tank
held=0
for _ in $(seq 60); do held=$(sanbox arcstat -p -f l2asize | tail -1 | tr -d ' '); [ "$held" -lt 10000000 ] || break; sleep 1; done
sanbox cat tank/fs:/more | sha256sum | cut -d' ' -f1 | cmp - "$w/share/more.sum"
for part in "$w"/data/f.*; do sanbox cat "tank/fs:/$(basename "$part")" | cmp - "$part"; done
hits=$(sanbox arcstat -p -f l2hits | tail -1 | tr -d ' ')
[ "$held" -gt 10000000 ] && [ "$hits" -gt 100 ] || fail "of what the module fed, $held bytes were found and $hits reads answered"
judge tank
echo "interop cache: the module rebuilt and used what we fed; of what it fed, $held bytes were found here and $hits reads answered"
