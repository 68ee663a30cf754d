#!/bin/bash
# The engine at its door (engine_bench) beside OpenZFS's own code in userland (openzfs_bench), round by round, and medians at the end.
#   tests/bench/engine.sh OPENZFS_BENCH [ROUNDS]       (default 5; tests/bench/openzfs.sh builds the first)
# An OPENZFS_BENCH called engine_bench is another build of ours, in OpenZFS's place: what a change cost.
# env: ENGINE_BENCH (default target/release/examples/engine_bench)   WORK a directory on a disk (default /var/tmp)
#      MIB of the files (default 256)   ROWS file to which the rows are added   ROUND0 number of the first round (default 1)
#      DISKS a directory where the disks stay for the next time
# Sequential writes are measured the second time over, when the process has its memory. The disks are files written once; both are read and written O_DIRECT. OpenZFS is given jemalloc, which it is faster with, if there is one.
# Prints: round, engine, workload, amount a second, its unit, CPU (seconds a GB, or microseconds an operation), 99th percentile of
# the latency in microseconds, load.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); openzfs=$(readlink -e "$1"); rounds=${2:-5}; first=${ROUND0:-1}; mib=${MIB:-256}
ours=$(readlink -e "${ENGINE_BENCH:-$here/../../target/release/examples/engine_bench}")
w=${DISKS:-$(mktemp -d "${WORK:-/var/tmp}/sanbox-bench.XXXXXX")}; [ -n "${DISKS:-}" ] || trap 'rm -rf "$w"' EXIT
rows=${ROWS:-$w/rows}; jemalloc=$(ldconfig -p | awk '/libjemalloc.so.2/ {print $NF; exit}')
[ -s "$rows" ] || echo "round,engine,workload,value,unit,cpu,p99_us,load" | tee "$rows"
peer() { # OPTION...
  timeout 120 env ${jemalloc:+LD_PRELOAD="$jemalloc"} MALLOC_CONF=dirty_decay_ms:-1,muzzy_decay_ms:-1 BENCH_ODIRECT=1 \
    "$openzfs" -k -d "$w" -s "$mib" -T 2 -a 4096 "$@"
}
before_round() { timeout 200 "$openzfs" "$w" "$mib" write raidz read random sync; }
sanbox_round() { timeout 200 "$ours" "$w" "$mib" write raidz read random sync; }
openzfs_round() {
  local what
  # With the cache that the engine has there.
  for what in off:rand lz4:half zstd3:half; do peer -t seq -a 256 -l disk -r 131072 -c ${what%:*} -D ${what#*:}; done
  peer -t seq -a 256 -l raidz2x6 -r 131072 -c lz4 -D half
  peer -t rand,over -l disk -r 131072 -c lz4 -D half
  peer -t rand,over,sync -l disk -r 8192 -c lz4 -D half
}
beside=openzfs; [ "$(basename "$openzfs")" != engine_bench ] || beside=before
# Ours, written here, stay until the end: engine_bench leaves what it finds.
for number in "" 0 1 2 3 4 5; do
  size=$((mib * 3 + 1024)); [ $size -ge 4096 ] || size=4096; [ -z "$number" ] || size=$((mib + 512))
  [ "$(stat -c %s "$w/bench-disk$number" 2>/dev/null)" = $((size << 20)) ] || dd if=/dev/zero of="$w/bench-disk$number" bs=1M count=$size conv=fsync status=none
done
for round in $(seq "$first" $((first + rounds - 1))); do
  load=$(cut -d' ' -f1 /proc/loadavg)
  # Who goes first finds another disk and another machine than who goes second: they take turns.
  sides=(sanbox "$beside"); [ $((round % 2)) = 1 ] || sides=("$beside" sanbox)
  for side in "${sides[@]}"; do "${side}_round" | sed "s/^/$side /"; done | python3 "$here/engine_rows.py" row "$round" "$load" | tee -a "$rows"
done
python3 "$here/engine_rows.py" table "$rows"
