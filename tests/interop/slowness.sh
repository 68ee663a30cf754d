#!/bin/bash
# Ten causes of slowness, each planted for real under load of NFS clients: 'sanbox why' and the API name the right one first each time.
# The network is at its limit on a TUN device, whose speed the kernel gives as 10 Mbit/s, and needs root.
#   env ONLY ("slow-disk full-pool ...": these), SECONDS_LOAD (8: how long each is under load), PORT
set -euo pipefail
. "$(dirname "$0")/lib.sh"
seconds=${SECONDS_LOAD:-8} missed=0 tried=0
load() { python3 "$here/nfs3.py" "$port" "$@" >>"$w/load" || fail "load: $*"; }
wanted() { [ -z "${ONLY:-}" ] || [[ " $ONLY " == *" $1 "* ]]; }
begin() { # begin [OPTION...]
  [ -z "$pid" ] || stop
  : >"$w/log"
  rm -f "$w/disks/"*; truncate -s 2G "$w/disks/a" "$w/disks/b" "$w/disks/l"
  serve --nbd-port 0 --iscsi-port 0 --metrics-port 0 --https-port $((port + 1)) "$@"
  key=$(sanbox user key create why --role viewer 2>/dev/null)
}
pool() { zpool create -O mountpoint=none tank "$@" && zfs create -o mountpoint=/t/fs -o compression=off -o sharenfs=rw,no_root_squash tank/fs; }
gone() { zpool destroy tank; }
# judge CAUSE SUBJECT [OPTION OF why...]: of the time under load, in a shell and over the API.
judge() {
  local cause=$1 subject=$2 now; shift 2
  now=$(date +%s)
  sanbox why -j --for "$((seconds - 1))s" "$@" >"$w/why"
  local query="from=$((now - seconds + 1))&to=$now"; [ $# = 0 ] || query="$query&client=$2"
  curl -sS --max-time 20 --cacert "$SANBOX_STATE/console-cert.pem" -H "Authorization: Bearer $key" "https://localhost:$((port + 1))/api/v1/history/why?$query" >"$w/api"
  tried=$((tried + 1))
  python3 - "$cause" "$subject" "$w/why" "$w/api" <<'END' || missed=$((missed + 1))
import json, sys
cause, subject, *files = sys.argv[1:]
for where, file in zip(["sanbox why", "API"], files):
    said = json.load(open(file))
    found = [(one["cause"], one["subject"], one["weight"]) for one in said.get("findings", [])]
    right = bool(found) and found[0][0] == cause and subject in found[0][1]
    print(f"interop slowness: {'ok' if right else 'WRONG'} {cause:17} {where:10} {found}")
    if not right:
        print(f"    {said.get('sentence')}\n    phases {said.get('phases')}")
        sys.exit(1)
END
}

begin
if wanted slow-disk; then
  pool "$w/disks/a" "$w/disks/b"
  load /t/fs sync 3
  zinject -d "$w/disks/b" -D 40:1 tank >/dev/null
  load /t/fs sync "$seconds"; judge slow-disk /b
  zinject -c all >/dev/null; gone
fi
if wanted sync-without-log; then
  pool "$w/disks/a"
  load /t/fs sync "$seconds" 127.0.0.1 4; judge sync-without-log tank
  gone
fi
if wanted greedy-client; then
  pool "$w/disks/a"
  load /t/fs sync "$seconds" 127.77.0.2 1 & light=$!
  load /t/fs sync "$seconds" 127.77.0.66 8; wait $light
  judge greedy-client 127.77.0.66 --client 127.77.0.2
  gone
fi
if wanted log-gone; then
  pool "$w/disks/a" log "$w/disks/l"
  load /t/fs sync 2
  zinject -d "$w/disks/l" -e nxio -T all tank >/dev/null
  load /t/fs sync "$seconds" 127.0.0.1 4; judge log-gone tank
  zinject -c all >/dev/null; gone
fi
if wanted full-pool; then
  truncate -s 256M "$w/disks/small"
  pool "$w/disks/small"
  # Almost all that there is: overwriting takes some.
  load /t/fs write 60 127.0.0.1 1 $(($(zfs get -Hpo value available tank/fs) * 92 / 100 >> 20))
  load /t/fs sync "$seconds" 127.0.0.1 1 4; judge full-pool tank
  gone
fi
if wanted txg-throttle; then
  begin --memory 256M
  pool "$w/disks/a"
  # A disk that is not slower than it was, and slower than the writers: each write takes 8 ms, one at a time.
  zinject -d "$w/disks/a" -D 8:1 -T write tank >/dev/null
  zfs set sync=disabled tank/fs
  load /t/fs write $((seconds * 2)) 127.0.0.1 8 64 128
  load /t/fs write "$seconds" 127.0.0.1 8 64 128; judge txg-throttle tank
  zinject -c all >/dev/null; gone
  begin
fi
if wanted scrub; then
  pool "$w/disks/a"
  load /t/fs write 30 127.0.0.1 1 512 128
  zpool sync tank
  (while zpool scrub -w tank 2>/dev/null; do :; done) & scrubs=$!
  load /t/fs sync "$seconds" 127.0.0.1 2; judge scrub tank
  kill $scrubs; wait $scrubs 2>/dev/null || true
  zpool scrub -s tank 2>/dev/null || true
  gone
fi
if wanted network; then
  python3 - 127.0.0.1 "$seconds" <<'END' && judge network network
import ctypes, fcntl, os, socket, struct, subprocess, sys, time
# A device of the kernel that says of itself that it carries 10 Mbit/s; what is sent there is read and thrown away.
tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH", b"sanboxwhy", 0x1001))
subprocess.run("ip addr add 198.18.7.1/24 dev sanboxwhy && ip link set sanboxwhy up", shell=True, check=True)
# linux/ethtool.h: struct ethtool_cmd, ETHTOOL_SSET; the speed is at 12, full duplex at 14.
settings = ctypes.create_string_buffer(struct.pack("=I8xHB", 2, 10, 1), 44)
fcntl.ioctl(socket.socket(), 0x8946, struct.pack("16sP16x", b"sanboxwhy", ctypes.addressof(settings)))
assert open("/sys/class/net/sanboxwhy/speed").read().strip() == "10"
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
until, sent = time.monotonic() + float(sys.argv[2]), 0
began = time.monotonic()
while time.monotonic() < until:
    # 1.3 MB/s: a little more than it carries.
    if sent < (time.monotonic() - began) * 1.3e6:
        udp.sendto(bytes(1400), ("198.18.7.2", 9)); sent += 1428
    else:
        time.sleep(0.002)
    try:
        while os.read(tun, 2048):
            pass
    except BlockingIOError:
        pass
END
fi
if wanted small-memory; then
  begin --memory 256M
  pool "$w/disks/a"
  cache=$(($(sanbox arcstat -p -f c | tail -1) >> 20))
  load /t/fs write 60 127.0.0.1 1 $((cache * 8 / 5)) 128 || true
  load /t/fs read 6 127.0.0.1 4 $((cache * 8 / 5)) 128
  load /t/fs read "$seconds" 127.0.0.1 4 $((cache * 8 / 5)) 128; judge small-memory tank
  gone
fi
if wanted dedup-table; then
  begin --memory 256M
  pool "$w/disks/a"
  zfs set dedup=on recordsize=4k tank/fs
  load /t/fs write 30 127.0.0.1 4 64 4
  # A copy of some of it: the pool says that there is deduplicated data.
  sanbox get tank/fs:/file0 "$w/copy" && sanbox put "$w/copy" tank/fs:/copy
  zpool export tank; zpool import -d "$w/disks" tank
  sleep 62
  load /t/fs sync "$seconds" 127.0.0.1 4 64 4; judge dedup-table tank
  gone
fi
stop
echo "interop slowness: $((tried - missed)) of $tried causes named"
[ "$missed" = 0 ] && [ "$tried" -gt 0 ] || fail "$missed of $tried causes were not named"
