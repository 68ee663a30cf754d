#!/bin/bash
# The real Linux initiator (open-iscsi and dm-multipath) on a sanbox volume: login with CHAP in both directions at two portals,
# ext4 and xfs made and checked, random writes verified by fio while one path is pulled and put back and while the server is killed
# with SIGKILL and started again, fstrim that gives space back to the pool, persistent reservations. At the end everything the
# initiator had synced is on the volume, and zdb finds the pool in order.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
iqn=iqn.2026-11.org.sanbox:interop
p1=${PORT:-12060}; p2=$((p1 + 1)); relay=; vm=
trap '[ -z "$vm" ] || kill $vm 2>/dev/null || true; [ -z "$relay" ] || kill $relay 2>/dev/null || true; finish' EXIT
mkdir "$w/share"; truncate -s 1G "$w/disks/d0.img" "$w/disks/d1.img"
zpool create tank mirror "$w/disks/d0.img" "$w/disks/d1.img"
zfs create -s -V 256M tank/v; zfs create -s -V 320M tank/x; zfs set org.sanbox:lun.sector=4kn tank/x
# Without a write cache every write is safe before it is answered, so fio may look for each of them after the kill; the other volume
# has one, and must have kept what was synced.
zfs set org.sanbox:lun.cache=off tank/x
sanbox target create $iqn; sanbox target map $iqn tank/v --lun 1; sanbox target map $iqn tank/x --lun 2
sanbox target chap $iqn --user initiator --secret what-initiators-know --mutual-user target --mutual-secret what-the-target-knows
up() { serve --nbd-port 0 --iscsi-port "$p1"; }
up
# The second path goes through a relay, so that it can be pulled without the server's doing.
cat >"$w/relay.py" <<'P'
import asyncio, sys
async def pump(reader, writer):
    try:
        while data := await reader.read(1 << 16):
            writer.write(data); await writer.drain()
    except OSError: pass
    finally: writer.close()
async def accept(reader, writer):
    try: r, w = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    except OSError: writer.close(); return
    await asyncio.gather(pump(reader, w), pump(r, writer))
async def main():
    async with await asyncio.start_server(accept, "127.0.0.1", int(sys.argv[1])) as s: await s.serve_forever()
asyncio.run(main())
P
path2() { python3 "$w/relay.py" "$p2" "$p1" 2>/dev/null & relay=$!; }
path2
cat >"$w/guest" <<'G'
set -eu
p1=10.0.2.2:$1 p2=10.0.2.2:$2 iqn=$3
say() { echo "PHASE $* $(cut -d. -f1 /proc/uptime)s"; }
ask() { touch "/share/$1"; for i in $(seq 300); do [ -e "/share/$1.done" ] && return; sleep 0.2; done; echo "nobody answered $1"; exit 1; }
modprobe iscsi_tcp; modprobe dm-multipath; modprobe dm-round-robin 2>/dev/null || true
iscsid
say login
wrong() { iscsiadm -m node -T $iqn -p $p1 -o update -n node.session.auth.password -v not-the-password; }
for p in $p1 $p2; do
  iscsiadm -m node -o new -T $iqn -p $p >/dev/null
  set_() { iscsiadm -m node -T $iqn -p $p -o update -n "$1" -v "$2"; }
  set_ node.session.auth.authmethod CHAP
  set_ node.session.auth.username initiator; set_ node.session.auth.password what-initiators-know
  set_ node.session.auth.username_in target; set_ node.session.auth.password_in what-the-target-knows
  set_ node.session.timeo.replacement_timeout 3
  set_ node.conn[0].timeo.noop_out_interval 2; set_ node.conn[0].timeo.noop_out_timeout 2
  set_ node.conn[0].iscsi.HeaderDigest CRC32C; set_ node.conn[0].iscsi.DataDigest CRC32C
done
wrong; if iscsiadm -m node -T $iqn -p $p1 --login >/dev/null 2>&1; then echo "logged in with a wrong password"; exit 1; fi
iscsiadm -m node -T $iqn -p $p1 -o update -n node.session.auth.password -v what-initiators-know
iscsiadm -m node -T $iqn -p $p1 -o update -n node.session.auth.password_in -v not-the-targets-secret
if iscsiadm -m node -T $iqn -p $p1 --login >/dev/null 2>&1; then echo "trusted a target that proves nothing"; exit 1; fi
iscsiadm -m node -T $iqn -p $p1 -o update -n node.session.auth.password_in -v what-the-target-knows
iscsiadm -m node -T $iqn -p $p1 --login >/dev/null; iscsiadm -m node -T $iqn -p $p2 --login >/dev/null
udevadm settle
iscsiadm -m session -P 3 | grep -E 'Digest|Current Portal|username' | sort | uniq -c
cat >/etc/multipath.conf <<'C'
defaults {
  find_multipaths no
  path_grouping_policy multibus
  polling_interval 1
  path_checker tur
  no_path_retry queue
}
C
multipathd; for i in $(seq 100); do [ "$(ls /dev/mapper | grep -vc control)" -ge 2 ] && break; sleep 0.2; done
multipath -ll
lun() { readlink -f /dev/disk/by-path/ip-$p1-iscsi-$iqn-lun-$1; }
map() { echo "/dev/mapper/$(cat /sys/block/"$(basename "$(lun "$1")")"/holders/*/dm/name)"; }
v=$(map 1) x=$(map 2)
[ "$(lsblk -no TYPE "$v" | head -1)" = mpath ] && [ "$(blockdev --getss "$x")" = 4096 ]
sg_inq "$(lun 1)" | grep -E 'Vendor|Product'
say filesystems
mkfs.ext4 -q -E nodiscard "$v"; mkfs.xfs -q -K "$x"; mkdir -p /mnt/e /mnt/x; mount "$v" /mnt/e; mount "$x" /mnt/x
seq 1 200000 >/mnt/e/f; cp /mnt/e/f /mnt/x/f; sync; sum=$(sha256sum </mnt/e/f)
say pull
fio --name=pull --directory=/mnt/e --size=16m --rw=randwrite --bs=4k --ioengine=libaio --iodepth=8 --direct=1 --verify=crc32c --do_verify=1 --time_based=0 --loops=2 --output=/tmp/fio1 & f=$!
sleep 2; ask pull
for i in $(seq 40); do multipath -ll "$v" | grep -qE 'failed|faulty|offline' && break; sleep 0.5; done
if multipath -ll "$v" | grep -E 'failed|faulty|offline'; then echo "one path is gone"; else multipath -ll "$v"; iscsiadm -m session -P 1 | grep -E 'Portal|State'; fi
ask plug
wait $f; grep -E 'err=|WRITE|READ' /tmp/fio1 | head -4; grep -q 'err= 0' /tmp/fio1
both() {
  for i in $(seq 90); do [ "$(multipath -ll "$v" | grep -cE 'active ready running')" = 2 ] && break; sleep 1; done
  [ "$(multipath -ll "$v" | grep -cE 'active ready running')" = 2 ] || { multipath -ll "$v"; iscsiadm -m session -P 1 | grep -E 'Portal|State'; exit 1; }
  echo "both paths are there"
}
both
say kill
fio --name=kill --directory=/mnt/x --size=16m --rw=randwrite --bs=4k --ioengine=libaio --iodepth=8 --direct=1 --verify=crc32c --do_verify=1 --loops=2 --output=/tmp/fio2 & f=$!
dd if=/dev/urandom of=/mnt/e/g bs=64k count=64 conv=fsync 2>/dev/null; sumg=$(sha256sum </mnt/e/g)
sleep 1; ask kill
wait $f; grep -E 'err=|WRITE|READ' /tmp/fio2 | head -4; grep -q 'err= 0' /tmp/fio2
[ "$sum" = "$(sha256sum </mnt/x/f)" ]
say trim
dd if=/dev/urandom of=/mnt/e/big bs=1M count=48 conv=fsync 2>/dev/null; ask full; rm /mnt/e/big; sync; fstrim -v /mnt/e; ask trimmed
say fsck
umount /mnt/e /mnt/x; echo 3 >/proc/sys/vm/drop_caches
fsck.ext4 -fn "$v" | tail -1; xfs_repair -n "$x" >/tmp/xr 2>&1 || { cat /tmp/xr; exit 1; }
mount "$v" /mnt/e; [ "$sum" = "$(sha256sum </mnt/e/f)" ]; [ "$sumg" = "$(sha256sum </mnt/e/g)" ]; umount /mnt/e
both
say reservations
a=$(lun 1); b=$(readlink -f /dev/disk/by-path/ip-$p2-iscsi-$iqn-lun-1)
sg_persist -o -G --param-sark=0xa1 "$a" >/dev/null; sg_persist -o -G --param-sark=0xb2 "$b" >/dev/null
sg_persist -o -R --param-rk=0xa1 --prout-type=1 "$a" >/dev/null; sg_persist -i -r "$a" | grep -E 'Key|type'
! dd if=/dev/zero of="$b" bs=512 count=1 oflag=direct 2>/dev/null && echo "the other path may not write"
sg_persist -o -P --param-rk=0xb2 --param-sark=0xa1 --prout-type=1 "$b" >/dev/null; sg_persist -i -k "$b" | grep -iE '0x'
sg_persist -o -C --param-rk=0xb2 "$b" >/dev/null; sg_persist -i -k "$b" | tail -1
say logout
multipath -F; multipathd -k'shutdown' >/dev/null; iscsiadm -m node -T $iqn --logout >/dev/null
echo INITIATOR-OK
G
"$root/tests/realvm/realvm" run "$w/guest" --no-zfs --share "$w/share" --timeout 1200 -- "$p1" "$p2" $iqn >"$w/out" 2>"$w/err" & vm=$!
referenced() { zfs get -Hpo value referenced tank/v; }
answer() { touch "$w/share/$1.done"; echo "interop initiator: $1"; }
while kill -0 $vm 2>/dev/null; do
  for what in pull plug kill full trimmed; do
    [ -e "$w/share/$what" ] && [ ! -e "$w/share/$what.done" ] || continue
    case $what in
    pull) kill $relay; wait $relay 2>/dev/null || true; relay= ;;
    plug) path2 ;;
    kill) kill -9 $pid; wait $pid 2>/dev/null || true; sleep 2; : >"$w/log"; up ;;
    full) sleep 6; full=$(referenced) ;;
    trimmed) sleep 6; trimmed=$(referenced) ;;
    esac
    answer $what
  done
  sleep 0.2
done
status=0; wait $vm || status=$?; vm=
cat "$w/out"
[ $status = 0 ] && grep -q INITIATOR-OK "$w/out" || { tail -30 "$w/err" >&2; fail "the guest ended with $status"; }
[ "$trimmed" -lt $((full - 40000000)) ] || fail "fstrim gave nothing back: $full bytes before, $trimmed after"
stop
judge tank
echo "interop initiator: two paths, one pulled, the server killed once; $((full - trimmed)) bytes trimmed; zdb clean"
