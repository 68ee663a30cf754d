#!/bin/bash
# SMB over loopback: smbd on this server's file systems beside the same smbd, with the same configuration, on the file system of WORK, round by round,
# and medians at the end.
#   tests/bench/smb.sh [ROUNDS]        (default 5)
# Each round, one server after the other: a file of 512 MiB written and flushed, four times, and read from the server's cache, in requests of 1 MiB, 8 under way, by
# one connection; 2,000 files of 4 KiB made (CREATE, WRITE, FLUSH, CLOSE: `strict sync`, Samba's default, makes FLUSH an fsync), read and deleted by 4
# connections; 4,000 empty files made in one directory, and deleted, by one (smbbench.py). Half of the data compresses; compression=lz4.
# env: SANBOX (default target/release/sanbox)   WORK  a directory on a disk (default /var/tmp)   ROWS  file to which the rows are added
#      BEFORE  another build of this server, measured in ext4's place: what a change cost       FILES, NAMES  how many, in place of 2000 and 4000
# Needs root, FUSE and Samba; runs in a network of its own. Prints: round, server, workload, operations a second, microseconds of CPU of the server's
# processes an operation, 50th and 99th percentile of the latency in microseconds, load of the machine.
set -euo pipefail
if [ -z "${BENCH_NS:-}" ]; then BENCH_NS=1 exec unshare --net --mount --propagation private "$0" "$@"; fi
here=$(cd "$(dirname "$0")" && pwd); rounds=${1:-5}
sanbox=$(readlink -e "${SANBOX:-$here/../../target/release/sanbox}"); other=${BEFORE:+$(readlink -e "$BEFORE")}
w=$(mktemp -d "${WORK:-/var/tmp}/sanbox-bench.XXXXXX"); server=
finish() { for p in $server; do kill "$p" 2>/dev/null && wait "$p" 2>/dev/null || true; done; umount -l "$w/ours/mnt" 2>/dev/null || true; rm -rf --one-file-system "$w"; }
trap finish EXIT
chmod 755 "$w"; ip link set lo up
port=4450

# cpu: clock ticks of the server's processes and of all below them, those that ended included.
cpu() {
  python3 - "$server" <<'P'
import os, sys
rows = {}
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
        rows[int(pid)] = (int(words[1]), sum(map(int, words[11:15])))
    except OSError:
        pass
def total(pid):
    return rows.get(pid, (0, 0))[1] + sum(total(child) for child, (parent, _) in rows.items() if parent == pid)
print(total(int(sys.argv[1])))
P
}

# measure SERVER OPERATIONS ARGUMENT...: a row for each line of smbbench.py; its CPU where there is one.
measure() {
  local name=$1 count=$2 before after lines cost; shift 2
  before=$(cpu)
  timeout -k 2 300 "$here/smbbench.py" $port share "$@" >"$w/out" || true
  after=$(cpu); lines=$(wc -l <"$w/out")
  while read -r workload rate p50 p99; do
    cost=; [ "$count" = 0 ] && [ "$lines" = 1 ] && count=$(awk "BEGIN {print $rate * 4}")
    [ "$lines" != 1 ] || cost=$(awk "BEGIN {printf \"%.1f\", ($after - $before) * 10000 / $count}")
    echo "$round,$name,$workload,$rate,$cost,$p50,$p99,$(cut -d' ' -f1 /proc/loadavg)"
  done <"$w/out"
}

all() { # SERVER
  # First, and written again until the server has its memory: fresh pages cost more than anything that is measured here.
  for workload in first second third; do measure "$1" 512 write 512 8 | sed "s/,write-1m,/,write-1m-$workload,/"; done
  measure "$1" 512 write 512 8
  measure "$1" 0 read 512 8
  measure "$1" 1 small "${FILES:-2000}" 4096 4
  measure "$1" 1 names "${NAMES:-4000}"
}

answers() { # waits until Samba answers
  for _ in $(seq 200); do (exec 3<>/dev/tcp/127.0.0.1/$port) 2>/dev/null && return; sleep 0.1; done
  echo "bench: Samba does not answer" >&2; exit 1
}

# ours NAME PROGRAM
ours() {
  local d=$w/ours tool; mkdir -p "$d/bin" "$d/mnt"; export SANBOX_STATE=$d/state
  for tool in sanbox zpool zfs; do ln -s "$2" "$d/bin/$tool"; done
  "$d/bin/zpool" create -f -O compression=lz4 -O atime=off -O xattr=sa -O acltype=posix -O mountpoint=none bench "$w/disk"
  "$d/bin/zfs" create -o mountpoint="$d/mnt" -o sharesmb=name=share,guestok=true,rw=127.0.0.1 bench/fs
  "$2" serve --mount --listen 127.0.0.1 --nfs-port 0 --iscsi-port 0 --https-port 0 --metrics-port 0 --smb-port $port --memory 6G >"$d/log" 2>&1 & server=$!
  answers
  for _ in $(seq 100); do ! mountpoint -q "$d/mnt" || break; sleep 0.1; done
  chmod 777 "$d/mnt"
  all "$1"
  cp "$d/state/smb/smb.conf" "$w/smb.conf"
  kill "$server"; wait "$server" 2>/dev/null || true; server=
  rm -rf "$d"
}

sanbox_round() { ours sanbox "$sanbox"; }
before_round() { ours before "$other"; }

# Those of Samba's modules that only a file system of ours answers are not for another one.
ext4_round() {
  local d=$w/ext4 name; mkdir -p "$d/dir"; chmod 777 "$d/dir"
  for name in private lock state cache pid ncalrpc log; do mkdir -m 700 "$d/$name"; done
  chmod 755 "$d" "$d/lock"; : >"$d/users"
  sed -e "s|$w/ours/state/smb|$d|" -e "s|/run/sanbox-locks|$d/lock|" -e "s|^\tpath = .*|\tpath = $d/dir|" -e 's| glusterfs_fuse||' "$w/smb.conf" >"$d/smb.conf"
  setsid smbd --foreground --no-process-group -s "$d/smb.conf" </dev/null >"$d/start" 2>&1 & server=$!
  answers
  all ext4
  kill "$server"; wait "$server" 2>/dev/null || true; server=
  rm -rf "$d"
}

rows=${ROWS:-$w/rows}
[ -s "$rows" ] || echo "round,server,workload,ops_per_s,cpu_us_per_op,p50_us,p99_us,load" | tee "$rows"
# Written once: a disk has no holes.
dd if=/dev/zero of="$w/disk" bs=1M count=4096 conv=fsync status=none
peer=ext4; [ -z "$other" ] || peer=before
for round in $(seq "$rounds"); do
  servers=(sanbox "$peer")
  # The configuration is that of the first.
  [ "$round" = 1 ] || [ $((round % 2)) = 1 ] || servers=("$peer" sanbox)
  for name in "${servers[@]}"; do "${name}_round"; done | tee -a "$rows"
done
python3 - "$rows" "$peer" <<'P'
import csv, statistics, sys
rows, peer = [row for row in csv.DictReader(open(sys.argv[1])) if row["ops_per_s"]], sys.argv[2]
def values(server, workload, column):
    return {row["round"]: float(row[column]) for row in rows if (row["server"], row["workload"]) == (server, workload) and row[column]}
def middle(server, workload, column):
    return statistics.median(values(server, workload, column).values() or [float("nan")])
print(f"\nworkload        sanbox a second  {peer:>8} a second  ratio by round       us of CPU: sanbox {peer:>8}  p99 us: sanbox {peer:>8}")
for workload in dict.fromkeys(row["workload"] for row in rows):
    ours, theirs = values("sanbox", workload, "ops_per_s"), values(peer, workload, "ops_per_s")
    ratios = sorted(ours[round] / theirs[round] for round in ours if theirs.get(round))
    if ratios:
        print(f'{workload:16} {middle("sanbox", workload, "ops_per_s"):14.1f} {middle(peer, workload, "ops_per_s"):18.1f}  {statistics.median(ratios):5.2f} '
              f'({ratios[0]:.2f}-{ratios[-1]:.2f}) {middle("sanbox", workload, "cpu_us_per_op"):16.1f} {middle(peer, workload, "cpu_us_per_op"):8.1f}'
              f' {middle("sanbox", workload, "p99_us"):14.0f} {middle(peer, workload, "p99_us"):8.0f}')
P
