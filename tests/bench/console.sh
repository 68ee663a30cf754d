#!/bin/bash
# How long the first pages of the console's lists take at the server, with many datasets and snapshots: the median and the slowest of 20 calls
# over TLS from this machine, each with a connection of its own, and the same while nothing of the pool is in memory (right after an import).
#   env SANBOX (the program), DATASETS (1000), SNAPSHOTS (3000: of one dataset, taken one by one), PORT (12851)
set -euo pipefail
. "$(dirname "$0")/../interop/lib.sh"
datasets=${DATASETS:-1000} snapshots=${SNAPSHOTS:-3000}
truncate -s 20G "$w/disks/d0"
serve --nbd-port 0 --iscsi-port 0 --https-port $((port + 1))
for _ in $(seq 100); do grep -q fingerprint "$w/log" && break; sleep 0.1; done
zpool create -O mountpoint=none tank "$w/disks/d0"
zfs create tank/many
for i in $(seq "$datasets"); do zfs create "tank/f$i"; done
seq -f 'tank/many@s%g' "$snapshots" | xargs -P 4 -n 1 zfs snapshot
key=$(sanbox user key create bench --role owner)
url=https://localhost:$((port + 1))
ask() { curl -sS --max-time 20 --cacert "$SANBOX_STATE/console-cert.pem" -H "Authorization: Bearer $key" -o /dev/null -w '%{time_total} %{http_code}\n' "$url$1"; }
measure() {
  for _ in $(seq 20); do ask "$2"; done | sort -n >"$w/times"
  awk -v name="$1" -v when="$3" '$2 != 200 { bad = 1 } { time[NR] = $1 * 1000 } END { if (bad) exit 1
    printf "| %s | %s | %.0f | %.0f |\n", name, when, time[int((NR + 1) / 2)], time[NR] }' "$w/times" || fail "$2"
}
echo "| page | | median ms | slowest ms |"; echo "| --- | --- | --- | --- |"
pages() {
  measure "datasets, first 100 of $((datasets + 2))" "/api/v1/datasets?limit=100" "$1"
  measure "datasets, first 1000" "/api/v1/datasets?limit=1000" "$1"
  measure "datasets, filtered by name" "/api/v1/datasets?limit=100&filter=f77" "$1"
  measure "snapshots, first 200 of $snapshots" "/api/v1/snapshots?dataset=tank/many&limit=200" "$1"
  measure "snapshots, filtered by name" "/api/v1/snapshots?dataset=tank/many&limit=200&filter=77" "$1"
  measure "a dataset" "/api/v1/datasets/tank%2Fmany" "$1"
  measure "policies" "/api/v1/policies" "$1"
  measure "pools" "/api/v1/pools" "$1"
  measure "jobs" "/api/v1/jobs?limit=100" "$1"
  measure "jobs of replication" "/api/v1/replications" "$1"
  measure "settings" "/api/v1/settings" "$1"
}
pages "in memory"
zpool export tank
zpool import -d "$w/disks" tank
pages "after an import"
