#!/bin/bash
# Whether the ceiling of --memory holds: a daemon under a mixed load (files written and read through the control socket and over
# NBD, snapshots, trees of small files), for each ceiling; the highest resident memory the kernel saw must be below it.
#
#   tests/interop/memory.sh [SIZE...]         (default: 512M 1G)       SECONDS_EACH=60
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); root=$(cd "$here/../.." && pwd)
SANBOX=${SANBOX:-$root/target/release/sanbox}
seconds=${SECONDS_EACH:-60}
[ $# -gt 0 ] || set -- 512M 1G
for tool in nbdcopy; do command -v $tool > /dev/null || { echo "SKIPPED memory: $tool is not installed" >&2; exit 77; }; done
failed=0
for ceiling in "$@"; do
  work=$(mktemp -d); daemon=
  cleanup() { [ -z "$daemon" ] || kill "$daemon" 2> /dev/null || true; [ -z "$daemon" ] || wait "$daemon" 2> /dev/null || true; rm -rf "$work"; }
  trap cleanup EXIT
  export SANBOX_STATE=$work/state
  truncate -s 6G "$work/a" "$work/b"
  "$SANBOX" zpool create tank mirror "$work/a" "$work/b"
  "$SANBOX" zfs create -o compression=lz4 tank/fs
  "$SANBOX" zfs create -o compression=off -o recordsize=1M tank/large
  "$SANBOX" zfs create -s -V 1G tank/vol
  "$SANBOX" serve --nfs-port 0 --iscsi-port 0 --nbd-port 0 --metrics-port 0 --memory "$ceiling" 2> "$work/log" &
  daemon=$!
  for _ in $(seq 100); do grep -q ready "$work/log" && break; sleep 0.2; done
  head -c 200M /dev/urandom > "$work/noise"
  yes "a line that can be compressed well $RANDOM" | head -c 400M > "$work/text" || true
  mkdir "$work/tree"; for n in $(seq 2000); do echo "$n $RANDOM" > "$work/tree/f$n"; done
  end=$((SECONDS + seconds)) round=0
  while [ $SECONDS -lt $end ]; do
    round=$((round + 1)) slot=$((round % 4))
    "$SANBOX" put "$work/noise" tank/large:/noise$slot &
    one=$!
    "$SANBOX" put "$work/text" tank/fs:/text$slot &
    two=$!
    nbdcopy "$work/noise" "nbd+unix:///tank/vol?socket=$SANBOX_STATE/nbd.sock" &
    three=$!
    "$SANBOX" put -r "$work/tree" tank/fs:/tree$round
    wait $one $two $three
    "$SANBOX" zfs snapshot -r tank@r$round
    "$SANBOX" cat tank/large:/noise$slot | cmp - "$work/noise" &
    one=$!
    "$SANBOX" cat tank/fs:/text$slot | cmp - "$work/text" &
    two=$!
    "$SANBOX" ls tank/fs:/tree$round > "$work/list"
    [ "$(wc -l < "$work/list")" = 2000 ] || { echo "memory: the tree is not complete" >&2; failed=1; }
    wait $one $two || failed=1
    [ $round -le 2 ] || "$SANBOX" zfs destroy -r tank@r$((round - 2))
  done
  kill -0 "$daemon" || { echo "memory: the daemon ended at $ceiling" >&2; cat "$work/log" >&2; exit 1; }
  highest=$(awk '/VmHWM/ {print $2 * 1024}' "/proc/$daemon/status")
  limit=$(numfmt --from=iec "$ceiling")
  echo "--memory $ceiling: highest $((highest >> 20)) MiB resident of $((limit >> 20)), $round rounds in $seconds s; $("$SANBOX" arcstat -p -f size,c,hit% | tr -s ' ')"
  [ "$highest" -le "$limit" ] || { echo "memory: above the ceiling" >&2; failed=1; }
  cleanup; daemon=; trap - EXIT
done
exit $failed
