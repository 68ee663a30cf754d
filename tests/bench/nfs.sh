#!/bin/bash
# NFS over loopback: this server beside nfs-ganesha on the file system of WORK, round by round, and medians at the end.
#   tests/bench/nfs.sh [ROUNDS]        (default 5)
# Each round, one server after the other, one client: 8 KiB FILE_SYNC writes at random places (1 and 32 in flight), UNSTABLE ones
# (32 in flight) and with a COMMIT after each, names and small files made, looked up and removed by 8 connections (nfsbench.c); a
# file of 512 MiB written, written again three times, read at random in 8 KiB (1 and 32 in flight) and in sequence, from the server's cache
# (fio). compression=lz4, data of which half compresses; sanbox-8k is the same server with recordsize=8K. In the same rounds: the raw
# disk (O_DSYNC), one TCP stream over loopback (iperf3), and small files on ganesha before zfs-fuse, if there is a ZFSFUSE.
# env: SANBOX (default target/release/sanbox)   FIO a fio with the nfs engine (tests/bench/fio.sh builds one)
#      WORK  a directory on a disk (default /var/tmp)   SECONDS_EACH (default 4)   ROWS  file to which the rows are added
#      ROUND0  number of the first round (default 1)    ZFSFUSE  a directory with an unpacked zfs-fuse
#      WORKLOADS  a regular expression: only those that match (fio's by name, such as randread-8k-1; nfsbench's by kind and depth, such as sync-32,
#              commit-1, meta-8). Reads need a file that write-1m has written.
#      BEFORE  another build of this server, measured in ganesha's place: what a change cost
# Needs root, rpcbind, iperf3, gcc, libnfs-dev and, without BEFORE, nfs-ganesha with its VFS module; runs in a network of its own, so that no port is
# in the way. Prints: round, server, workload, operations a second, microseconds of the server's CPU an operation, 99th percentile of
# the latency in microseconds, load of the machine.
set -euo pipefail
if [ -z "${BENCH_NS:-}" ]; then BENCH_NS=1 exec unshare --net --mount --propagation private "$0" "$@"; fi
here=$(cd "$(dirname "$0")" && pwd); rounds=${1:-5}; first=${ROUND0:-1}
sanbox=$(readlink -e "${SANBOX:-$here/../../target/release/sanbox}"); other=${BEFORE:+$(readlink -e "$BEFORE")}; fio=${FIO:-fio}; seconds=${SECONDS_EACH:-4}
"$fio" --enghelp | grep -qw nfs || { echo "bench: $fio has no nfs engine; tests/bench/fio.sh builds one that has" >&2; exit 2; }
w=$(mktemp -d "${WORK:-/var/tmp}/sanbox-bench.XXXXXX"); server=; below=; rpcbind=
finish() { for p in $server $below $rpcbind; do kill "$p" 2>/dev/null || true; done; umount -l "$w/zm" 2>/dev/null || true; rm -rf "$w"; }
trap finish EXIT
gcc -O2 -w -o "$w/nfsbench" "$here/nfsbench.c" -lnfs
ip link set lo up; mount -t tmpfs tmpfs /run; mkdir -p /run/rpcbind /run/ganesha /run/lock/zfs /run/zfs
for hidden in /etc/zfs /var/lib/zfs; do [ ! -d $hidden ] || mount -t tmpfs tmpfs $hidden; done # zfs-fuse sees no real pools
rpcbind -f -w >/dev/null 2>&1 & rpcbind=$!
ticks() { for p in $server $below; do sed 's/.*) //' "/proc/$p/stat"; done | awk '{t += $12 + $13} END {print t + 0}'; }
load() { cut -d' ' -f1 /proc/loadavg; }

# small SERVER URL QD NFSBENCH-ARGUMENT...: a row for each workload that nfsbench prints.
small() {
  local name=$1 url=$2 depth=$3 before after lines; shift 3
  [[ "$1-$depth" =~ ${WORKLOADS:-.} ]] || return 0
  before=$(ticks); timeout -k 2 $((seconds * 2 + 40)) "$w/nfsbench" "$url" "$@" >"$w/out" 2>"$w/err" || tail -1 "$w/err" >&2
  after=$(ticks); lines=$(wc -l <"$w/out")
  while read -r workload value unit _ p99; do
    [ "$unit" != failed ] || value=
    local cpu=   # known for a run of one workload
    [ "$lines" != 1 ] || [ -z "$value" ] || cpu=$(awk "BEGIN {printf \"%.1f\", ($after - $before) * 10000 / ($value * $seconds)}")
    echo "$round,$name,$workload-$depth,$value,$cpu,$p99,$(load)"
  done <"$w/out"
}

# measure SERVER WORKLOAD URL FIO-OPTION...
measure() {
  local name=$1 workload=$2 url=$3 before after try=1; shift 3
  [[ $workload =~ ${WORKLOADS:-.} ]] || return 0
  while :; do
    before=$(ticks)
    # Where the last answer of a job is still coming in when the time is over, fio's nfs engine (libnfs) drops the connection and
    # waits for ever, whoever the server is: tried again.
    timeout -k 2 $((seconds * 2 + 8)) "$fio" --name=b --ioengine=nfs --nfs_url="$url" --filename=/fio.dat --buffer_compress_percentage=50 \
      --buffer_compress_chunk=4096 --output-format=json --output="$w/out" "$@" >"$w/err" 2>&1 && break
    pkill -9 -f -- "--output=$w/out" || true
    try=$((try + 1)); [ $try -le 3 ] || { echo "$round,$name,$workload,,,,"; return 0; }
  done
  after=$(ticks)
  row "$name" "$workload" $((after - before))
}

# row SERVER WORKLOAD TICKS: from fio's output.
row() {
  python3 - "$w/out" "$3" "$round,$1,$2" "$(load)" <<'P'
import json, sys
text = open(sys.argv[1]).read()
jobs = json.loads(text[text.index("{"):])["jobs"]
sides = [max((job["read"], job["write"]), key=lambda side: side["total_ios"]) for job in jobs]
count = sum(side["total_ios"] for side in sides)
p99 = max(side["clat_ns"].get("percentile", {}).get("99.000000", 0) for side in sides) / 1000
print(f'{sys.argv[3]},{sum(side["iops"] for side in sides):.0f},{int(sys.argv[2]) * 10000 / max(count, 1):.1f},{p99:.0f},{sys.argv[4]}')
P
}

stable() { # SERVER URL
  small "$1" "$2" 1 sync 8192 1 1 "$seconds" 256
  small "$1" "$2" 32 sync 8192 32 1 "$seconds" 256
  small "$1" "$2" 1 commit 8192 1 1 "$seconds" 256
  small "$1" "$2" 32 unstable 8192 32 1 "$seconds" 256
}
names() { small "$1" "$2" 8 meta 4000 8; }
files() { small "$1" "$2" 8 small 4000 4096 8; }

all() { # SERVER URL
  local read=(--size=256m --runtime="$seconds" --time_based)
  # First, and written again until the server has its memory: fresh pages cost more than anything that is measured here.
  for workload in write-1m write-1m-2nd write-1m-3rd rewrite-1m; do measure "$1" $workload "$2" --rw=write --bs=1m --iodepth=8 --size=512m; done
  for depth in 1 32; do measure "$1" "randread-8k-$depth" "$2" --rw=randread --bs=8k --iodepth="$depth" "${read[@]}"; done
  measure "$1" read-1m "$2" --rw=read --bs=1m --iodepth=8 "${read[@]}"
  stable "$@"; names "$@"; files "$@"
}

stop() { kill "$server"; wait "$server" 2>/dev/null || true; server=; }

ours() { # NAME PROGRAM
  local name=$1 program=$2 d=$w/sanbox tool; mkdir -p "$d/bin"; export SANBOX_STATE=$d/state
  for tool in sanbox zpool zfs; do ln -s "$program" "$d/bin/$tool"; done
  "$d/bin/zpool" create -f -O compression=lz4 -O atime=off bench "$w/disk"
  "$d/bin/zfs" create -o sharenfs=rw,no_root_squash,insecure bench/fs
  "$d/bin/zfs" create -o sharenfs=rw,no_root_squash,insecure -o recordsize=8K bench/small
  "$program" serve --listen 127.0.0.1 --nfs-port 12049 --no-portmap --memory 6G >"$d/log" 2>&1 & server=$!
  for _ in $(seq 100); do grep -q 'sanbox: ready' "$d/log" && break; sleep 0.1; done
  all "$name" 'nfs://127.0.0.1/bench/fs?nfsport=12049&mountport=12049&version=3'
  stable "$name-8k" 'nfs://127.0.0.1/bench/small?nfsport=12049&mountport=12049&version=3'
  stop; rm -rf "$d"
}

sanbox_round() { ours sanbox "$sanbox"; }
before_round() { ours before "$other"; }

ganesha() { # DIRECTORY [FILESYSTEM-ID]
  cat >"$w/ganesha.conf" <<C
NFS_CORE_PARAM { NFS_Port = 2049; MNT_Port = 20048; Protocols = 3; Enable_NLM = false; Enable_RQUOTA = false; }
NFS_KRB5 { Active_krb5 = false; }
EXPORT { Export_Id = 1; Path = $1; Pseudo = $1; Protocols = 3; Access_Type = RW; Squash = No_Root_Squash; SecType = sys; PrivilegedPort = false; ${2:+Filesystem_Id = $2;} FSAL { Name = VFS; } }
C
  ganesha.nfsd -F -f "$w/ganesha.conf" -L "$w/ganesha.log" -p "$w/ganesha.pid" -N EVENT & server=$!
  for _ in $(seq 60); do sleep 0.25; (exec 3<>/dev/tcp/127.0.0.1/20048) 2>/dev/null && break; done; sleep 1
}

ganesha_round() {
  local d=$w/ganesha; mkdir -p "$d"; ganesha "$d"
  all ganesha "nfs://127.0.0.1$d?nfsport=2049&mountport=20048&version=3"
  stop; rm -rf "$d"
}

zfsfuse_round() { # small files only: that is where it is the stronger peer
  local d=$w/zm; mkdir -p "$w/zv"; truncate -s 8G "$w/zv/d0"
  "$ZFSFUSE/sbin/zfs-fuse" -n --max-arc-size 512 -a 1 -e 1 >"$w/zfs-fuse.log" 2>&1 & below=$!
  sleep 1.5; "$ZFSFUSE/sbin/zpool" create -f -m "$d" perfpool "$w/zv/d0"; "$ZFSFUSE/sbin/zfs" set atime=off perfpool; sleep 0.5
  ganesha "$d" 1.1
  files ganesha-zfsfuse "nfs://127.0.0.1$d?nfsport=2049&mountport=20048&version=3"
  stop
  # Busy for a moment after ganesha has gone; one that stays would be there again in the next round.
  for _ in $(seq 20); do "$ZFSFUSE/sbin/zpool" destroy -f perfpool 2>/dev/null && break; sleep 0.25; done
  kill $below; wait $below 2>/dev/null || true; below=; rm -rf "$w/zv"
}

limits_round() {
  local jobs p
  for jobs in 1 32; do
    "$fio" --name=b --filename="$w/raw" --size=512m --ioengine=psync --direct=1 --sync=dsync --thread=1 --numjobs=$jobs --rw=randwrite --bs=8k \
      --runtime="$seconds" --time_based --output-format=json --output="$w/out" >/dev/null 2>&1
    row raw "write_sync_8192-$jobs" 0
  done
  iperf3 -s -1 -B 127.0.0.1 -p 5301 >/dev/null 2>&1 & p=$!; sleep 0.5
  iperf3 -c 127.0.0.1 -p 5301 -t "$seconds" -J >"$w/out" 2>/dev/null; wait $p || true
  # As operations of 1 MiB.
  echo "$round,tcp,read-1m,$(python3 -c 'import json, sys; print(round(json.load(open(sys.argv[1]))["end"]["sum_received"]["bits_per_second"] / 8 / 2**20))' "$w/out"),,,$(load)"
}

rows=${ROWS:-$w/rows}
[ -s "$rows" ] || echo "round,server,workload,ops_per_s,cpu_us_per_op,p99_us,load" | tee "$rows"
# Our disk and the raw file are written once, so that the file system below allocates nothing while they are measured: a disk has
# no holes, and a flush after a write into one costs a commit of ext4's journal.
for made in disk=4096 raw=512; do dd if=/dev/zero of="$w/${made%=*}" bs=1M count="${made#*=}" conv=fsync status=none; done
for round in $(seq "$first" $((first + rounds - 1))); do
  # Who goes first finds another disk and another machine than who goes last: the order turns with each round.
  servers=(sanbox ganesha); [ -z "$other" ] || servers=(sanbox before); [ -z "${ZFSFUSE:-}" ] || servers+=(zfsfuse)
  for turn in "${!servers[@]}"; do "${servers[(turn + round) % ${#servers[@]}]}_round"; done | tee -a "$rows"
  limits_round | tee -a "$rows"
done
python3 - "$rows" <<'P'
import csv, statistics, sys
rows = [row for row in csv.DictReader(open(sys.argv[1])) if row["ops_per_s"]]
def values(server, workload, column):
    return {row["round"]: float(row[column]) for row in rows if (row["server"], row["workload"]) == (server, workload) and row[column]}
def middle(server, workload, column):
    return statistics.median(values(server, workload, column).values() or [float("nan")])
print("\nworkload               server       a second  peer            a second  ratio by round       us: here     peer  p99: here     peer")
for workload in dict.fromkeys(row["workload"] for row in rows):
    servers = list(dict.fromkeys(row["server"] for row in rows if row["workload"] == workload))
    for server in (name for name in servers if name.startswith("sanbox")):
        for peer in (name for name in servers if not name.startswith("sanbox")):
            if peer.startswith("before") and peer.removeprefix("before") != server.removeprefix("sanbox"):
                continue
            ours, theirs = values(server, workload, "ops_per_s"), values(peer, workload, "ops_per_s")
            ratios = sorted(ours[round] / theirs[round] for round in ours if theirs.get(round))
            if not ratios:
                continue
            print(f'{workload:22} {server:10} {middle(server, workload, "ops_per_s"):10.0f}  {peer:15} {middle(peer, workload, "ops_per_s"):8.0f}'
                  f'  {statistics.median(ratios):5.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}) {middle(server, workload, "cpu_us_per_op"):10.1f}'
                  f' {middle(peer, workload, "cpu_us_per_op"):8.1f} {middle(server, workload, "p99_us"):10.0f} {middle(peer, workload, "p99_us"):8.0f}')
P
