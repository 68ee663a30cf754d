#!/bin/bash
# Streams beside what the disk gives: zfs send of a dataset in the cache and of one that is not, receive, a small increment of a large
# dataset, and what encryption adds to writing and reading. Medians at the end.
#   tests/bench/streams.sh [ROUNDS]        (default 5)
# Of each round: a gigabyte of files, of which half compresses (lz4); the stream goes to /dev/null, and for receiving comes from a file in
# memory. `raw` is dd on the same disk (O_DIRECT, 1 MiB) with as many bytes as the pool's disk gives or takes for it: compressed ones.
# env: SANBOX (default target/release/sanbox)   WORK a directory on a disk (default /var/tmp)   MIB of files (default 1024)
#      FILES of the large dataset (default 100000)   ROWS file to which the rows are added
# Needs root. Prints: round, workload, MB/s (of the plain stream, of stored bytes with -c, of the files for encryption; seconds for the
# increment), CPU seconds a GB of the daemon and the command together.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); rounds=${1:-5}; mib=${MIB:-1024}; files=${FILES:-100000}
sanbox=$(readlink -e "${SANBOX:-$here/../../target/release/sanbox}")
w=$(mktemp -d "${WORK:-/var/tmp}/sanbox-bench.XXXXXX"); m=$(mktemp -d /dev/shm/sanbox-bench.XXXXXX); server=
finish() { [ -z "$server" ] || { kill "$server"; wait "$server" 2>/dev/null || true; }; rm -rf "$w" "$m"; }
trap finish EXIT
export SANBOX_STATE=$w/state PATH=$w/bin:$PATH; mkdir "$w/bin"
for tool in sanbox zpool zfs; do ln -s "$sanbox" "$w/bin/$tool"; done
rows=${ROWS:-$w/rows}; : >>"$rows"

serve() {
  sanbox serve --listen 127.0.0.1 --nfs-port 0 --no-portmap --memory 6G >"$w/log" 2>&1 & server=$!
  for _ in $(seq 300); do grep -q 'sanbox: ready' "$w/log" && return; sleep 0.1; done; cat "$w/log" >&2; exit 1
}
stop() { kill "$server"; wait "$server" 2>/dev/null || true; server=; }
ticks() { sed 's/.*) //' "/proc/$server/stat" | awk '{print $12 + $13}'; }

# timed WORKLOAD BYTES COMMAND...: a row; the children's CPU is the shell's own count of them.
timed() {
  local workload=$1 bytes=$2 before began took own; shift 2
  before=$(ticks); began=$(date +%s.%N)
  own=$( { TIMEFORMAT='%U %S'; time "$@" >/dev/null 2>"$w/err"; } 2>&1 ) || { cat "$w/err" >&2; exit 1; }
  took=$(awk "BEGIN {print $(date +%s.%N) - $began}")
  awk -v r="$round" -v n="$workload" -v b="$bytes" -v t="$took" -v d="$(($(ticks) - before))" -v own="$own" \
    'BEGIN { split(own, c, " "); printf "%s,%s,%.3f,%.3f\n", r, n, (b > 0 ? b / t / 1e6 : t), (b > 0 ? (d / 100 + c[1] + c[2]) / b * 1e9 : d / 100) }' | tee -a "$rows"
}
raw() { # WORKLOAD BYTES DD-ARGUMENT...
  local workload=$1 bytes=$2 began; shift 2; began=$(date +%s.%N)
  dd bs=1M count=$((bytes >> 20)) status=none "$@"
  awk -v r="$round" -v n="$workload" -v b="$bytes" -v t="$(date +%s.%N)" -v a="$began" 'BEGIN {printf "%s,%s,%.1f,\n", r, n, b / (t - a) / 1e6}' | tee -a "$rows"
}
python3 - "$m/file" "$mib" <<'P'
import os, sys
with open(sys.argv[1], "wb") as out:
    for _ in range(int(sys.argv[2]) * 16):
        out.write(os.urandom(32 << 10) + bytes(32 << 10))
P
bytes=$((mib << 20))
# Written once, so that the file system below allocates nothing while they are measured.
for disk in disk target; do dd if=/dev/zero of="$w/$disk" bs=1M count=$((mib * 4 + 1024)) conv=fsync status=none; done
serve
zpool create -f -O compression=lz4 -O mountpoint=none bench "$w/disk"; zpool create -f -O compression=lz4 -O mountpoint=none to "$w/target"
zfs create bench/fs; sanbox put "$m/file" bench/fs:/f; zfs snapshot bench/fs@a
head -c 32 /dev/urandom >"$w/key"
# Many files of one block, and a volume of a terabyte, of which a hundred blocks change.
mkdir "$m/many"; (cd "$m/many" && seq "$files" | split -l 1 -a 6 -d)
zfs create bench/large; sanbox put -r "$m/many" bench/large:/many; rm -rf "$m/many"
zfs create -s -V 1T bench/large/volume; zfs snapshot -r bench/large@a
for n in $(seq 100); do sanbox put "$w/key" "bench/large:/many/x$(printf %06d $((n * 37)))"; done
zfs snapshot -r bench/large@b
stored=$(zfs get -Hpo value referenced bench/fs@a)
for round in $(seq "$rounds"); do
  raw raw-read "$stored" if="$w/disk" of=/dev/null iflag=direct
  stop; serve
  timed send-cold "$bytes" zfs send bench/fs@a
  timed send-cached "$bytes" zfs send bench/fs@a
  stop; serve
  timed send-c-cold "$stored" zfs send -c bench/fs@a
  timed send-c-cached "$stored" zfs send -c bench/fs@a
  zfs send bench/fs@a >"$m/stream"
  # Once beforehand: fresh memory of the machine is another matter (nfs.sh).
  zfs receive -u to/fs <"$m/stream"; zfs destroy -r to/fs
  timed receive "$bytes" sh -c "zfs receive -u to/fs <$m/stream && zpool sync to"
  zfs destroy -r to/fs; zfs send -c bench/fs@a >"$m/stream"
  timed receive-c "$stored" sh -c "zfs receive -u to/fs <$m/stream && zpool sync to"
  zfs destroy -r to/fs; rm "$m/stream"
  raw raw-write "$stored" if="$m/file" of="$w/target" oflag=direct seek=$((mib * 3)) conv=notrunc
  timed increment 0 sh -c 'zfs send -i @a bench/large@b && zfs send -i @a bench/large/volume@b'
  for how in plain encrypted; do
    zfs create $([ $how = plain ] || echo -o encryption=aes-256-gcm -o keyformat=raw -o "keylocation=file://$w/key") "bench/$how"
    timed "write-$how" "$bytes" sh -c "sanbox put $m/file bench/$how:/f && zpool sync bench"
    # Not from the cache, which holds what is decrypted.
    stop; serve; [ $how = plain ] || zfs load-key "bench/$how" 2>/dev/null || true
    timed "read-$how" "$bytes" sh -c "sanbox get bench/$how:/f $m/back && rm $m/back"
    zfs destroy "bench/$how"
  done
done
python3 - "$rows" <<'P'
import collections, statistics, sys
found = collections.defaultdict(list)
for line in open(sys.argv[1]):
    _, workload, value, cpu = line.strip().split(",")
    found[workload].append((float(value), float(cpu) if cpu else None))
print("\nworkload            median (range)                     CPU s a GB")
for workload, rows in found.items():
    values, cpu = [value for value, _ in rows], [cpu for _, cpu in rows if cpu is not None]
    spread = f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"
    print(f"{workload:<19} {spread:<34} {statistics.median(cpu):.3f}" if cpu else f"{workload:<19} {spread}")
P
