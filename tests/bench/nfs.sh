#!/bin/bash
# NFS over loopback: this server beside nfs-ganesha on the file system of WORK, round by round, and medians at the end.
#   tests/bench/nfs.sh [ROUNDS]        (default 5)
# Each round: a file of 512 MiB written, written again, read at random in 8 KiB (1 and 32 in flight) and in sequence, all from
# the server's cache; one client, one connection, compression=lz4, data of which half compresses.
# env: SANBOX (default target/release/sanbox)   FIO a fio with the nfs engine (tests/bench/fio.sh builds one)
#      WORK  a directory on a disk (default /var/tmp)   SECONDS_EACH (default 4)
# Needs root, rpcbind and nfs-ganesha with its VFS module; runs in a network of its own, so that no port is in the way.
# Prints: round, server, workload, operations a second, microseconds of the server's CPU an operation, load of the machine.
set -euo pipefail
if [ -z "${BENCH_NS:-}" ]; then BENCH_NS=1 exec unshare --net --mount --propagation private "$0" "$@"; fi
here=$(cd "$(dirname "$0")" && pwd); rounds=${1:-5}
sanbox=$(readlink -e "${SANBOX:-$here/../../target/release/sanbox}"); fio=${FIO:-fio}; seconds=${SECONDS_EACH:-4}
"$fio" --enghelp | grep -qw nfs || { echo "bench: $fio has no nfs engine; tests/bench/fio.sh builds one that has" >&2; exit 2; }
w=$(mktemp -d "${WORK:-/var/tmp}/sanbox-bench.XXXXXX"); server=; rpcbind=
finish() { for p in $server $rpcbind; do kill "$p" 2>/dev/null || true; done; rm -rf "$w"; }
trap finish EXIT
ip link set lo up; mount -t tmpfs tmpfs /run; mkdir -p /run/rpcbind /run/ganesha
rpcbind -f -w >/dev/null 2>&1 & rpcbind=$!
ticks() { sed 's/.*) //' "/proc/$server/stat" | awk '{print $12 + $13}'; }

# measure SERVER WORKLOAD URL FIO-OPTION...
measure() {
  local name=$1 workload=$2 url=$3 before after try=1; shift 3
  while :; do
    before=$(ticks)
    # Where the last answer of a job is still coming in when the time is over, fio's nfs engine (libnfs) drops the connection and
    # waits for ever, whoever the server is: tried again.
    timeout -k 2 $((seconds * 2 + 12)) "$fio" --name=b --ioengine=nfs --nfs_url="$url" --filename=/fio.dat --buffer_compress_percentage=50 \
      --buffer_compress_chunk=4096 --output-format=json --output="$w/out" "$@" >"$w/err" 2>&1 && break
    pkill -9 -f -- "--output=$w/out" || true
    try=$((try + 1)); [ $try -le 4 ] || { echo "$round,$name,$workload,,,"; return 0; }
  done
  after=$(ticks)
  python3 - "$w/out" $((after - before)) "$round,$name,$workload" "$(cut -d' ' -f1 /proc/loadavg)" <<'P'
import json, sys
text = open(sys.argv[1]).read()
job = json.loads(text[text.index("{"):])["jobs"][0]
side = max((job["read"], job["write"]), key=lambda side: side["total_ios"])
print(f'{sys.argv[3]},{side["iops"]:.0f},{int(sys.argv[2]) * 10000 / max(side["total_ios"], 1):.1f},{sys.argv[4]}')
P
}

all() { # SERVER URL
  local read=(--size=256m --runtime="$seconds" --time_based)
  measure "$1" write-1m "$2" --rw=write --bs=1m --iodepth=8 --size=512m
  measure "$1" rewrite-1m "$2" --rw=write --bs=1m --iodepth=8 --size=512m
  for depth in 1 32; do measure "$1" "randread-8k-$depth" "$2" --rw=randread --bs=8k --iodepth="$depth" "${read[@]}"; done
  measure "$1" read-1m "$2" --rw=read --bs=1m --iodepth=8 "${read[@]}"
}

stop() { kill "$server"; wait "$server" 2>/dev/null || true; server=; }

sanbox_round() {
  local d=$w/sanbox tool; mkdir -p "$d/bin" "$d/disks"; export SANBOX_STATE=$d/state
  for tool in sanbox zpool zfs; do ln -s "$sanbox" "$d/bin/$tool"; done
  truncate -s 8G "$d/disks/d0"
  "$d/bin/zpool" create -O compression=lz4 -O atime=off bench "$d/disks/d0"
  "$d/bin/zfs" create -o sharenfs=rw,no_root_squash,insecure bench/fs
  "$sanbox" serve --listen 127.0.0.1 --nfs-port 12049 --no-portmap --memory 6G >"$d/log" 2>&1 & server=$!
  for _ in $(seq 100); do grep -q 'sanbox: ready' "$d/log" && break; sleep 0.1; done
  all sanbox 'nfs://127.0.0.1/bench/fs?nfsport=12049&mountport=12049&version=3'
  stop; rm -rf "$d"
}

ganesha_round() {
  local d=$w/ganesha; mkdir -p "$d"
  cat >"$w/ganesha.conf" <<C
NFS_CORE_PARAM { NFS_Port = 2049; MNT_Port = 20048; Protocols = 3; Enable_NLM = false; Enable_RQUOTA = false; }
NFS_KRB5 { Active_krb5 = false; }
EXPORT { Export_Id = 1; Path = $d; Pseudo = $d; Protocols = 3; Access_Type = RW; Squash = No_Root_Squash; SecType = sys; PrivilegedPort = false; FSAL { Name = VFS; } }
C
  ganesha.nfsd -F -f "$w/ganesha.conf" -L "$w/ganesha.log" -p "$w/ganesha.pid" -N EVENT & server=$!
  for _ in $(seq 60); do sleep 0.25; (exec 3<>/dev/tcp/127.0.0.1/20048) 2>/dev/null && break; done; sleep 1
  all ganesha "nfs://127.0.0.1$d?nfsport=2049&mountport=20048&version=3"
  stop; rm -rf "$d"
}

echo "round,server,workload,ops_per_s,cpu_us_per_op,load" | tee "$w/rows"
for round in $(seq "$rounds"); do { sanbox_round; ganesha_round; } | tee -a "$w/rows"; done
python3 - "$w/rows" <<'P'
import csv, statistics, sys
rows = [row for row in csv.DictReader(open(sys.argv[1])) if row["ops_per_s"]]
print("\nmedians            sanbox/s  ganesha/s   ratio  sanbox us  ganesha us")
for workload in dict.fromkeys(row["workload"] for row in rows):
    def median(server, column):
        values = [float(row[column]) for row in rows if (row["server"], row["workload"]) == (server, workload)]
        return statistics.median(values) if values else float("nan")
    ours, theirs = median("sanbox", "ops_per_s"), median("ganesha", "ops_per_s")
    print(f'{workload:16} {ours:10.0f} {theirs:10.0f} {ours / theirs:7.2f} {median("sanbox", "cpu_us_per_op"):10.1f} {median("ganesha", "cpu_us_per_op"):11.1f}')
P
