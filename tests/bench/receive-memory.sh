#!/bin/bash
# What a receive of records of 16 MiB takes of memory, of a daemon whose cache is full.
#   tests/bench/receive-memory.sh [MIB]        of noise (default 1000)
# env: SANBOX (default target/release/sanbox)   WORK a directory on a disk (default /var/tmp)   MEMORY the daemon's --memory (default 512M)
# Needs root. Prints, of three receives: anonymous memory at rest, its peak (a look each 20 ms), and the difference, in MiB.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); mib=${1:-1000}
sanbox=$(readlink -e "${SANBOX:-$here/../../target/release/sanbox}")
w=$(mktemp -d "${WORK:-/var/tmp}/sanbox-bench.XXXXXX"); server=
finish() { [ -z "$server" ] || { kill "$server"; wait "$server" 2>/dev/null || true; }; rm -rf "$w"; }
trap finish EXIT
export SANBOX_STATE=$w/state PATH=$w/bin:$PATH; mkdir "$w/bin"
for tool in sanbox zpool zfs; do ln -s "$sanbox" "$w/bin/$tool"; done
anonymous() { awk '/RssAnon/ {print $2}' "/proc/$server/status"; }

truncate -s $((4 * mib + 512))M "$w/disk" "$w/target"
sanbox serve --listen 127.0.0.1 --nfs-port 0 --no-portmap --memory "${MEMORY:-512M}" >"$w/log" 2>&1 & server=$!
for _ in $(seq 300); do grep -q 'sanbox: ready' "$w/log" && break; sleep 0.1; done
zpool create -f -O mountpoint=none -O recordsize=16M bench "$w/disk"; zpool create -f -O mountpoint=none to "$w/target"
head -c "${mib}M" /dev/urandom >"$w/file"
zfs create bench/fs; sanbox put "$w/file" bench/fs:/f; zfs snapshot bench/fs@a
zfs send -L bench/fs@a >"$w/stream"
sanbox get bench/fs:/f "$w/file"
for round in 1 2 3; do
  # What the last one freed may go back first.
  sleep 3
  rest=$(anonymous); peak=0
  zfs receive "to/r$round" <"$w/stream" & receive=$!
  while kill -0 "$receive" 2>/dev/null; do
    now=$(anonymous); [ "$now" -le "$peak" ] || peak=$now
    sleep 0.02
  done
  wait "$receive"
  echo "receive $round: at rest $((rest >> 10)), peak $((peak >> 10)), above rest $(((peak - rest) >> 10)) MiB"
done
