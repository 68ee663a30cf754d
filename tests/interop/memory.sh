#!/bin/bash
# Whether the ceiling of --memory holds: a daemon under a mixed load (files written and read through the control socket and over
# NBD, snapshots, trees of small files, and where libnfs can be built against, NFS clients with 8 connections), for each ceiling; the
# highest resident memory the kernel saw must be below it. Where this user may make one, the daemon is in a control group that is
# killed above the ceiling.
#
#   tests/interop/memory.sh [SIZE...]         (default: 512M 1G)       SECONDS_EACH=60
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); root=$(cd "$here/../.." && pwd)
SANBOX=${SANBOX:-$root/target/release/sanbox}
seconds=${SECONDS_EACH:-60}
[ $# -gt 0 ] || set -- 512M 1G
for tool in nbdcopy; do command -v $tool > /dev/null || { echo "SKIPPED memory: $tool is not installed" >&2; exit 77; }; done
failed=0
nfsbench=
if [ -e /usr/include/nfsc/libnfs.h ] && command -v gcc >/dev/null; then
  nfsbench=$(mktemp -d); gcc -O2 -w -o "$nfsbench/nfsbench" "$root/tests/bench/nfsbench.c" -lnfs
else
  echo "memory: without NFS clients (gcc and libnfs-dev)" >&2
fi
# A group of its own, of the first or the second kind; its limit is set before the daemon joins.
group_for() { # BYTES
  local made
  made=/sys/fs/cgroup/memory/sanbox-memory.$$
  if mkdir "$made" 2>/dev/null && echo "$1" >"$made/memory.limit_in_bytes" 2>/dev/null; then echo "$made"; return; fi
  made=/sys/fs/cgroup/sanbox-memory.$$
  if mkdir "$made" 2>/dev/null && echo "$1" 2>/dev/null >"$made/memory.max"; then echo "$made"; return; fi
  rmdir "$made" 2>/dev/null || true
  echo "memory: without a control group" >&2
}
kills() { grep -hs '^oom_kill ' "$group/memory.oom_control" "$group/memory.events" | awk '{print $2}'; }
for ceiling in "$@"; do
  work=$(mktemp -d); daemon=
  limit=$(numfmt --from=iec "$ceiling"); group=$(group_for "$limit")
  cleanup() { [ -z "$daemon" ] || kill "$daemon" 2> /dev/null || true; [ -z "$daemon" ] || wait "$daemon" 2> /dev/null || true; [ -z "$group" ] || rmdir "$group" || true; rm -rf "$work"; }
  trap cleanup EXIT
  export SANBOX_STATE=$work/state
  truncate -s 6G "$work/a" "$work/b"
  "$SANBOX" zpool create tank mirror "$work/a" "$work/b"
  "$SANBOX" zfs create -o compression=lz4 tank/fs
  "$SANBOX" zfs create -o compression=off -o recordsize=1M tank/large
  "$SANBOX" zfs create -s -V 1G tank/vol
  "$SANBOX" zfs create -o sharenfs=rw,no_root_squash,insecure tank/nfs
  port=0; [ -z "$nfsbench" ] || port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  sh -c '[ -z "$0" ] || echo $$ >"$0/cgroup.procs"; exec "$@"' "$group" \
    "$SANBOX" serve --listen 127.0.0.1 --nfs-port "$port" --no-portmap --iscsi-port 0 --nbd-port 0 --metrics-port 0 --memory "$ceiling" 2> "$work/log" &
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
    four=
    if [ -n "$nfsbench" ]; then
      url="nfs://127.0.0.1/tank/nfs?nfsport=$port&mountport=$port&version=3"
      { "$nfsbench/nfsbench" "$url" unstable 65536 16 4 2 64 && "$nfsbench/nfsbench" "$url" sync 8192 32 2 2 64 &&
        "$nfsbench/nfsbench" "$url" small 200 4096 8; } >"$work/nfs" 2>&1 & four=$!
    fi
    "$SANBOX" put -r "$work/tree" tank/fs:/tree$round
    wait $one $two $three
    [ -z "$four" ] || wait $four || { echo "memory: the NFS clients failed" >&2; tail -3 "$work/nfs" >&2; failed=1; }
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
  echo "--memory $ceiling: highest $((highest >> 20)) MiB resident of $((limit >> 20)), $round rounds in $seconds s; $("$SANBOX" arcstat -p -f size,c,hit% | tr -s ' ')${group:+; in a group of this size, $(kills) killed}"
  [ -z "$group" ] || [ "$(kills)" = 0 ] || { echo "memory: killed" >&2; failed=1; }
  [ "$highest" -le "$limit" ] || { echo "memory: above the ceiling" >&2; failed=1; }
  cleanup; daemon=; trap - EXIT
done
[ -z "$nfsbench" ] || rm -rf "$nfsbench"
exit $failed
