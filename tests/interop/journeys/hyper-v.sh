#!/bin/bash
# LUNs for a cluster of Hyper-V hosts: thin volumes of 64 KiB blocks behind CHAP and an access list, persistent reservations, the
# cost of sync, and two disks pulled at the limit of a raidz2 while a LUN is written. The steps are the seed's (NAS4Free).
set -euo pipefail
. "$(dirname "$0")/lib.sh"
command -v iscsi-test-cu >/dev/null || skip "iscsi-test-cu is not installed (libiscsi-bin)"
iqn=iqn.2014-05.lab.example:csv
disks 512M ada{0..5}
start
zpool create Alpha-Pool raidz2 $(at ada{0..5})
zfs create -s -V 600M -o volblocksize=64k -o compression=lz4 Alpha-Pool/Test2
zfs create -s -V 64M Alpha-Pool/witness
sanbox target create $iqn
sanbox target map --lun 0 $iqn Alpha-Pool/Test2
sanbox target map --lun 1 $iqn Alpha-Pool/witness
printf 'cluster-secret-1' >"$w/chap"
sanbox target chap --user hv --secret-file "$w/chap" $iqn
sanbox target allow $iqn 127.0.0.0/8 'iqn.2014-05.lab.example:*' 'iqn.2007-10.com.github:*' 'iqn.2008-11.org.linux-kvm*'
as=hv%cluster-secret-1@
if iscsi-inq "iscsi://127.0.0.1:$iscsi/$iqn/0" >/dev/null 2>&1; then fail "a stranger is let in"; fi
if iscsi-inq "iscsi://hv%wrong-secret-123@127.0.0.1:$iscsi/$iqn/0" >/dev/null 2>&1; then fail "a wrong secret is taken"; fi
lun=iscsi://${as}127.0.0.1:$iscsi/$iqn/0
contains "the volume" "$(iscsi-inq "$lun")" DIRECT_ACCESS
# What a cluster needs of its shared disks.
suite=$(iscsi-test-cu --dataloss --silent --test=SCSI.ProutRegister.Simple --test=SCSI.ProutReserve.Simple "iscsi://${as}127.0.0.1:$iscsi/$iqn/1" 2>&1 || true)
contains "persistent reservations" "$suite" "asserts"
case $(echo "$suite" | awk '$1 == "asserts" {print $5}') in 0) ;; *) fail "persistent reservations: $suite" ;; esac
# Two drives are pulled while the LUN is written. It must not stop, and nothing may be lost.
data vhdx 200000000
qemu-img convert -n -f raw -O raw "$w/vhdx" "$lun" & writer=$!
sleep 0.3
zpool offline -t Alpha-Pool $(at ada1)
zpool offline -t Alpha-Pool $(at ada4)
wait $writer || fail "the LUN stopped when two disks were pulled"
contains "a degraded pool" "$(zpool status Alpha-Pool)" DEGRADED
refused "no valid replicas" zpool offline -t Alpha-Pool $(at ada2)
qemu-img convert -f raw -O raw "$lun" "$w/back" && cmp -n 200000000 "$w/back" "$w/vhdx" || fail "the LUN is not what was written"
zpool online Alpha-Pool $(at ada1 ada4)
zpool wait -t resilver Alpha-Pool
expect "health" "$(zpool list -H -o health Alpha-Pool)" ONLINE
zpool scrub -w Alpha-Pool
contains "the scrub" "$(zpool status Alpha-Pool)" "with 0 errors"
# Sync modes of the seed's table: all hold what they hold.
for mode in always standard disabled; do
  zfs set sync=$mode Alpha-Pool/Test2
  qemu-img convert -n -f raw -O raw "$w/vhdx" "$lun" || fail "writing with sync=$mode"
done
zfs set sync=standard Alpha-Pool/Test2
# A snapshot of the LUN, shown as another LUN beside it.
zfs snapshot Alpha-Pool/Test2@monday
zfs clone Alpha-Pool/Test2@monday Alpha-Pool/monday
sanbox target map --lun 2 $iqn Alpha-Pool/monday
qemu-img convert -f raw -O raw "iscsi://${as}127.0.0.1:$iscsi/$iqn/2" "$w/back" && cmp -n 200000000 "$w/back" "$w/vhdx" || fail "the clone is another"
contains "sessions" "$(sanbox target list)" "$iqn"
stop
judge Alpha-Pool
