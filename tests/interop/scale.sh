#!/bin/bash
# Many snapshots: 1,000 datasets with 100 snapshots each, through the commands. Prints how long each step takes, and fails where a
# goal is missed by more than LEEWAY (default 2). Measured on a quiet machine (release build of a866fc5, docs/measurements/2026-11-21-datasets.md):
# half of the goals are met; the others are missed by 1.4 (snapshots one by one), 1.3 (the whole tree), 1.4 (one more snapshot), 1.75
# (one more after an import) and, for the writer beside a destroy, 1.4 times. A machine that is shared needs more.
#   env DATASETS (1000), ROUNDS (100), LEEWAY
set -euo pipefail
. "$(dirname "$0")/lib.sh"
datasets=${DATASETS:-1000} rounds=${ROUNDS:-100} leeway=${LEEWAY:-2}
truncate -s 20G "$w/disks/d0"
serve --nbd-port 0 --iscsi-port 0 --mount
mkdir "$w/mnt"
zpool create -O mountpoint=none tank "$w/disks/d0"
zfs create -o mountpoint="$w/mnt" tank/work
now() { date +%s%N; }
missed=0
# step NAME COUNT GOAL UNIT START: per second, or milliseconds
rate() { local took=$(($(now) - $4)); local per=$(($2 * 1000000000 / took)); report "$1" "$per" "$3" "/s" $((per * leeway < $3)); }
time_of() { local took=$((($(now) - $3) / 1000000)); report "$1" "$took" "$2" "ms" $((took > $2 * leeway)); }
report() { printf 'interop scale: %-42s %8s %-3s (goal %s)\n' "$1" "$2" "$4" "$3"; [ "$5" = 0 ] || { missed=$((missed + 1)); echo "interop scale: missed: $1" >&2; }; }

t=$(now); for i in $(seq "$datasets"); do zfs create "tank/f$i"; done; rate "file systems created one by one" "$datasets" 100 "$t"
t=$(now); for i in $(seq 200); do zfs snapshot "tank/work@one$i"; done; rate "snapshots one by one" 200 240 "$t"
for i in $(seq 100); do echo "tank/f$i@batch"; done >"$w/batch"
t=$(now); for i in $(seq 10); do sed "s/$/$i/" "$w/batch" | xargs zfs snapshot; done; rate "snapshots of 100 datasets at once" 1000 1700 "$t"
t=$(now); for i in $(seq "$rounds"); do zfs snapshot -r "tank@r$i"; done; rate "snapshots of the whole tree (-r)" $((rounds * (datasets + 2))) 1700 "$t"
all=$(zfs list -H -o name -t snapshot | wc -l)
[ "$all" -ge $((rounds * datasets)) ] || fail "only $all snapshots"
t=$(now); zfs list -t snapshot >"$w/list"; time_of "list of all $all, used and referenced" 1000 "$t"
t=$(now); zfs list -H -o name -t snapshot >"$w/list"; time_of "list of all $all, names only" 1000 "$t"
t=$(now); zfs list -t snapshot $(seq -f "tank/f%g" 100) >"$w/list"; time_of "list of $(wc -l <"$w/list"), used and referenced" 300 "$t"
t=$(now); zfs snapshot tank/f1@more; time_of "one more snapshot" 20 "$t"
t=$(now); zpool export tank; time_of "export" 5000 "$t"
t=$(now); zpool import -d "$w/disks" tank; time_of "import" 2000 "$t"
t=$(now); zfs list -t snapshot >"$w/list"; time_of "list of all, nothing in memory" 5000 "$t"
t=$(now); zfs snapshot tank/f2@more; time_of "one more snapshot after import" 20 "$t"
p99() {
  fio --name=w --filename="$w/mnt/file" --rw=randwrite --bs=4k --size=32m --fsync=1 --runtime="$1" --time_based --ioengine=psync --output-format=json 2>/dev/null \
    | python3 -c 'import json,sys; j=json.load(sys.stdin)["jobs"][0]; print(int((j["sync"]["lat_ns"]["percentile"]["99.000000"])/1000))'
}
if command -v fio >/dev/null; then
  p99 3 >"$w/warm"; before=$(p99 10)
  (p99 20 >"$w/during") & writer=$!
  sleep 1; t=$(now); zfs destroy -r "tank@r1%r10"; took=$((($(now) - t) / 1000000)); wait $writer
  report "p99 of a synchronous writer, alone" "$before" "-" us 0
  report "  while 10 of $rounds rounds are destroyed" "$(cat "$w/during")" $((before * 2)) us $(($(cat "$w/during") > before * 2 * leeway))
  report "  (the command took" "$took" "-" "ms)" 0
fi
awk '/VmHWM/ {print "interop scale: most memory of the server: " $2 / 1024 " MiB"}' "/proc/$pid/status"
stop
[ "$missed" = 0 ] || fail "$missed goals missed by more than $leeway times"
