#!/bin/bash
# "SAN in a box": one machine with two disks and a flash device gives files by NFS and LUNs by iSCSI, keeps snapshots by the day,
# and loses a disk without its clients noticing. The commands are those of the seed's owner (NexentaStor on OpenSolaris).
set -euo pipefail
. "$(dirname "$0")/lib.sh"
disks 512M c1t5d0 c1t6d0 c1t7d0
disks 128M c1t4d0
start
# One disk first, the second attached later: not added.
zpool create testpool $(at c1t5d0)
zfs create testpool/testing
zfs set compression=on testpool/testing
zfs set sharenfs=rw,root=127.0.0.1 testpool/testing
data guest.vmdk 40000000
put guest.vmdk /testpool/testing/guest.vmdk
refused "mismatched replication level" zpool add testpool mirror $(at c1t6d0 c1t7d0)
zpool attach testpool $(at c1t5d0 c1t6d0)
zpool wait -t resilver testpool
contains "the mirror" "$(zpool status testpool)" mirror-0
same guest.vmdk /testpool/testing/guest.vmdk
# Writes that wait for a log device, and the proof that they do.
zpool add testpool log $(at c1t4d0)
zfs set sync=always testpool/testing
put guest.vmdk /testpool/testing/second.vmdk
contains "the log device at work" "$(zpool iostat -v testpool)" logs
[ "$(zpool list -vHp testpool | awk -v disk="$w/disks/c1t4d0" '$1 == disk || $1 ~ /c1t4d0/ {print ($3 >= 0)}')" = 1 ] || fail "the log device is not listed"
zfs set sync=standard testpool/testing
# Snapshots by the day with a moving 'latest', listed, and a month of them destroyed in a loop of the shell.
for day in 20 21 22; do zfs snapshot "testpool/testing@snap-daily-1-2011-01-$day-2122"; done
zfs snapshot testpool/testing@snap-daily-1-2011-02-01-2122
zfs snapshot testpool/testing@snap-daily-1-latest
expect "snapshots" "$(zfs list -H -o name -t snapshot | wc -l)" 5
for snapshot in $(zfs list -t snapshot | grep testing | grep snap-daily-1-2011-01 | awk '{print $1}'); do zfs destroy "$snapshot"; done
expect "snapshots left" "$(zfs list -H -o name -t snapshot | sed 's/.*@//' | xargs)" "snap-daily-1-2011-02-01-2122 snap-daily-1-latest"
same guest.vmdk /testpool/testing/.zfs/snapshot/snap-daily-1-latest/guest.vmdk
# A LUN in COMSTAR's words.
zfs create -s -V 256M testpool/lun
guid=$(sbdadm create-lu /dev/zvol/rdsk/testpool/lun | awk '/lun/ {print $1}')
stmfadm add-view "$guid"
itadm create-target -n iqn.2011-01.org.example:box >/dev/null
listed=$(iscsi-ls -s "iscsi://127.0.0.1:$iscsi")
contains "the initiator's list" "$listed" iqn.2011-01.org.example:box
lun=iscsi://127.0.0.1:$iscsi/iqn.2011-01.org.example:box/0
contains "the LUN's inquiry" "$(iscsi-inq "$lun")" "Peripheral Device Type:DIRECT_ACCESS"
data disk.img 67108864
qemu-img convert -n -f raw -O raw "$w/disk.img" "$lun" || fail "writing the LUN"
zfs snapshot testpool/lun@before
# A disk is pulled while files and the LUN are read: nobody notices, and it comes back by itself when it is there again.
zpool offline testpool $(at c1t6d0)
same guest.vmdk /testpool/testing/second.vmdk
qemu-img convert -f raw -O raw "$lun" "$w/back" || fail "reading the LUN without a disk"
cmp -n 67108864 "$w/back" "$w/disk.img" || fail "the LUN is not what was written"
contains "a degraded pool" "$(zpool status testpool)" DEGRADED
zpool online testpool $(at c1t6d0)
zpool wait -t resilver testpool
expect "health" "$(zpool list -H -o health testpool)" ONLINE
zpool scrub -w testpool
contains "the scrub" "$(zpool status testpool)" "with 0 errors"
contains "what was done" "$(zpool history testpool)" "zpool attach testpool"
stop
judge testpool
