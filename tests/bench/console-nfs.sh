#!/bin/bash
# What open pages of the console cost NFS: 8 KiB writes at random places by libnfs (UNSTABLE, 32 in flight, and FILE_SYNC, 32 in flight), in turns with
# and without BROWSERS (50) browsers, each of which has a live page and a stream of events open. The browsers run on this machine, too: what they take
# of it themselves is counted as the console's. Prints a row for each turn, and the ratio of the medians.
#   tests/bench/console-nfs.sh [ROUNDS]      (default 5)
#   env SANBOX (default target/release/sanbox)   SECONDS_EACH (default 6)   PORT (12851)   Needs gcc and libnfs-dev.
set -euo pipefail
SANBOX=$(readlink -e "${SANBOX:-$(dirname "$0")/../../target/release/sanbox}"); export SANBOX
. "$(dirname "$0")/../interop/lib.sh"
rounds=${1:-5} seconds=${SECONDS_EACH:-6} browsers=
gcc -O2 -w -o "$w/nfsbench" "$here/../bench/nfsbench.c" -lnfs
truncate -s 4G "$w/disks/d0"
serve --nbd-port 0 --iscsi-port 0 --https-port $((port + 1)) --memory 1G
for _ in $(seq 100); do grep -q fingerprint "$w/log" && break; sleep 0.1; done
zpool create -O mountpoint=none -O compression=lz4 tank "$w/disks/d0"
zfs create -o mountpoint=/share -o sharenfs=rw,no_root_squash tank/share
key=$(sanbox user key create bench --role owner)
url="nfs://127.0.0.1/share?nfsport=$port&mountport=$port&version=3"
for round in $(seq 0 "$rounds"); do
  for how in without with; do
    if [ $how = with ]; then
      python3 "$here/../bench/browsers.py" "https://localhost:$((port + 1))" "$SANBOX_STATE/console-cert.pem" "$key" "$pid" "${BROWSERS:-50}" --hold &
      browsers=$!; sleep 2
    fi
    for kind in unstable sync; do
      rate=$("$w/nfsbench" "$url" $kind 8192 32 1 "$seconds" 256 | awk '{print $2}')
      # The first round warms the cache and the machine's memory.
      [ "$round" = 0 ] || echo "$round,$how,$kind,$rate" | tee -a "$w/rows"
    done
    if [ $how = with ]; then kill $browsers; wait $browsers 2>/dev/null || true; fi
  done
done
python3 - "$w/rows" <<'P'
import collections, statistics, sys
found = collections.defaultdict(list)
for line in open(sys.argv[1]):
    _, how, kind, rate = line.strip().split(",")
    found[kind, how].append(float(rate))
for kind in ("unstable", "sync"):
    without, beside = (statistics.median(found[kind, how]) for how in ("without", "with"))
    print(f"{kind}: {without:.0f} a second without pages, {beside:.0f} with: {beside / without:.3f}")
P
