#!/bin/bash
# An NFS store for VMware: a dataset with a mount point of its own, shared in Solaris's grammar to hosts by name, every write
# synchronous on a log device that fails and comes back, and virtual machines cloned from a snapshot. The commands are the seed's
# (OpenSolaris).
set -euo pipefail
. "$(dirname "$0")/lib.sh"
disks 512M c7t0d0 c7t1d0
disks 128M c9t0d0
start
zpool create sp1 mirror $(at c7t0d0 c7t1d0) log $(at c9t0d0)
zfs create -p sp1/nas/vol1
zfs set mountpoint=/export/uss1-nas-vol1 sp1/nas/vol1
# Hosts that no name server knows are no reason to refuse the share: the others mount.
zfs set sharenfs=rw,nosuid,root=vh3-nas:vh2-nas:localhost:127.0.0.1 sp1/nas/vol1
expect "the share" "$(zfs get -H -o value,source sharenfs sp1/nas/vol1 | xargs)" "rw,nosuid,root=vh3-nas:vh2-nas:localhost:127.0.0.1 local"
refused "cannot be set to invalid options" zfs set sharenfs=rw,rooot=x sp1/nas/vol1
zfs set sync=always sp1/nas/vol1
data template.vmdk 64000000
put template.vmdk /export/uss1-nas-vol1/template.vmdk
same template.vmdk /export/uss1-nas-vol1/template.vmdk
contains "writes go to the log device" "$(sanbox zilstat -w 2>&1)" sp1
# The log device fails: the pool says so in words that frighten nobody, and writes go on, safe as before.
zpool offline sp1 $(at c9t0d0)
shown=$(zpool status sp1)
contains "a pool without its log device" "$shown" DEGRADED
case $shown in *"Destroy and re-create"*) fail "destruction is advised for a log device: $shown" ;; esac
put template.vmdk /export/uss1-nas-vol1/while-away.vmdk
zpool online sp1 $(at c9t0d0)
expect "health" "$(zpool list -H -o health sp1)" ONLINE
# A machine from the template in no time and no space, made independent later.
zfs snapshot sp1/nas/vol1@template
zfs clone sp1/nas/vol1@template sp1/nas/vm7
zfs set sharenfs=rw,root=127.0.0.1 sp1/nas/vm7
[ "$(zfs get -Hp -o value used sp1/nas/vm7)" -lt 1000000 ] || fail "a clone takes space"
same template.vmdk /sp1/nas/vm7/template.vmdk
zfs promote sp1/nas/vm7
expect "the origin after the promotion" "$(zfs get -H -o value origin sp1/nas/vol1)" sp1/nas/vm7@template
# The server is killed under its clients: what was acknowledged is there.
put template.vmdk /export/uss1-nas-vol1/last.vmdk
kill -9 $pid; wait $pid 2>/dev/null || true; pid=; : >"$w/log"
start
contains "the log of the start" "$(cat "$w/log")" "did not end in order"
same template.vmdk /export/uss1-nas-vol1/last.vmdk
same template.vmdk /export/uss1-nas-vol1/while-away.vmdk
zpool scrub -w sp1
contains "the scrub" "$(zpool status sp1)" "with 0 errors"
stop
judge sp1
