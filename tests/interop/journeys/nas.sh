#!/bin/bash
# "A high-performing mid-range NAS": seven disks in a raidz2 with sectors of 4 KiB, a partition of flash as cache and one as log, a
# directory for everybody, clones, quotas, and one large LUN. The commands are the seed's (FreeNAS).
set -euo pipefail
. "$(dirname "$0")/lib.sh"
disks 256M da{0..6}
disks 128M da7p1 da7p2
start
zpool create -o ashift=12 tank raidz2 $(at da{0..6})
expect "sectors" "$(zpool get -H -o value ashift tank)" 12
zpool add tank cache $(at da7p1)
zpool add tank log $(at da7p2)
sanbox tune l2arc_write_max=64M l2arc_noprefetch=0
expect "a limit set at once" "$(sanbox tune -H | awk '$1 == "l2arc_noprefetch" {print $2}')" 0
zfs create -o sharenfs=rw,root=127.0.0.1 tank/big
sanbox mkdir tank/big:/everybody
data film 100000000
put film /tank/big/everybody/film
same film /tank/big/everybody/film
contains "the cache's columns" "$(sanbox arcstat -f time,read,hit%,size 2>&1 | head -2)" "hit%"
contains "layout" "$(zpool status tank)" raidz2-0
contains "cache and log" "$(zpool status tank | awk '$1 ~ /^(logs|cache)$/ {print $1}' | xargs)" "logs cache"
# Disks of the same pool under other names after a move of the box.
zfs snapshot tank/big@moved
stop
for n in 0 1 2 3 4 5 6; do mv "$w/disks/da$n" "$w/disks/sd$(((n + 3) % 7))"; done
start
zpool list >/dev/null
expect "health after the move" "$(zpool list -H -o health tank)" ONLINE
same film /tank/big/everybody/film
# A clone to try something, thrown away; a quota that holds; a rollback.
zfs clone tank/big@moved tank/try
zfs set sharenfs=rw,root=127.0.0.1 tank/try
put film /tank/try/copy
zfs destroy tank/try
zfs set quota=150M tank/big
if nfs-cp "$w/film" "$(share /tank/big/too-much)" >/dev/null 2>&1; then fail "the quota does not hold"; fi
zfs rollback tank/big@moved
expect "what is left after the rollback" "$(nfs-ls "$(share /tank/big/everybody)" | awk '{print $NF}')" film
zfs set quota=none tank/big
# The log device is only a log: it can be taken away, and so can the cache.
zpool remove tank $(at da7p2)
zpool remove tank $(at da7p1)
zpool wait -t remove tank
same film /tank/big/everybody/film
# One large LUN, grown later.
zfs create -V 200M -o volblocksize=64k tank/lun
sanbox target create iqn.2014-10.com.example:nas
sanbox target map --lun 0 iqn.2014-10.com.example:nas tank/lun
lun=iscsi://127.0.0.1:$iscsi/iqn.2014-10.com.example:nas/0
data image 50331648
qemu-img convert -n -f raw -O raw "$w/image" "$lun" || fail "writing the LUN"
zfs set volsize=300M tank/lun
expect "the LUN's new size" "$(iscsi-readcapacity16 "$lun" | awk '/Total size/ {print $NF}' | tr -dc 0-9)" $((300 << 20))
# Everything out again without a client, as a tree and as an archive.
sanbox get -r tank/big:/everybody "$w/out" && cmp "$w/out/film" "$w/film" || fail "reading the tree"
sanbox get --tar -r tank/big:/everybody "$w/out.tar" && tar -xOf "$w/out.tar" --wildcards '*film' | cmp - "$w/film" || fail "reading the archive"
zpool scrub -w tank
contains "the scrub" "$(zpool status tank)" "with 0 errors"
stop
judge tank
