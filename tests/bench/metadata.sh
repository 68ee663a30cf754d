#!/bin/bash
# What a transaction group writes besides its data in a pool that is nearly full and whose free space is fragmented: ours beside OpenZFS's
# code in userland (refpool), both from the same disks. 16 vdevs of 256 MiB on loop devices, 256 metaslabs; a volume with blocks of 8 KiB.
#   tests/bench/metadata.sh [GROUPS [WRITES...]]       (default 40; 20, 500 and 4000 writes in each transaction group)
# env: METADATA_WRITES (default target/debug/examples/metadata_writes)   REFPOOL (default target/refpool)   VOLUME_MIB (default 3264)
#      WORK a directory on a disk with 12 GiB (default /var/tmp)   ROUNDS (default 2)
# Needs root (loop devices). Prints: round, engine, writes in a group, bytes of data, bytes written, both of one group, and their quotient.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); groups=${1:-40}; shift || true; sizes=("$@"); [ $# -gt 0 ] || sizes=(20 500 4000)
ours=$(readlink -e "${METADATA_WRITES:-$here/../../target/debug/examples/metadata_writes}")
theirs=$(readlink -e "${REFPOOL:-$here/../../target/refpool}")
w=$(mktemp -d "${WORK:-/var/tmp}/sanbox-metadata.XXXXXX"); loops=()
unloop() { [ ${#loops[@]} = 0 ] || losetup -d "${loops[@]}"; loops=(); }
trap 'unloop; rm -rf "$w"' EXIT
records=$((${VOLUME_MIB:-3264} * 128))
mkdir "$w/made" "$w/disks" "$w/links"
for i in $(seq -w 16); do truncate -s 256M "$w/made/d$i"; done
"$ours" make "$w/made" $((records * 8192))
# attach: fresh copies of the disks behind loop devices; their statistics in METADATA_STATS
attach() {
  local i loop; METADATA_STATS=
  rm -f "$w/links/"* "$w/disks/"*
  for i in $(seq -w 16); do
    cp --sparse=always "$w/made/d$i" "$w/disks/d$i"
    loop=$(losetup --show --direct-io=on -f "$w/disks/d$i"); loops+=("$loop")
    ln -s "$loop" "$w/links/d$i"; METADATA_STATS+="/sys/block/${loop#/dev/}/stat "
  done
  export METADATA_STATS
}
row() { # ENGINE WRITES BYTES
  local data=$(($2 * 8192)) each=$(($3 / groups))
  echo "$round $1 $2 $data $each $(awk "BEGIN {printf \"%.2f\", $each / $data}")"
}
echo "round engine writes data_bytes written_bytes quotient"
for round in $(seq "${ROUNDS:-2}"); do
  for writes in "${sizes[@]}"; do
    attach; row sanbox "$writes" "$("$ours" over "$w/links" "$groups" "$writes")"; unloop
    attach
    row openzfs "$writes" "$("$theirs" ds measure "$w/links/"* -- "over:measure/volume=1/8192/$records/$groups/$writes" | grep -E '^[0-9]+$')"
    unloop
  done
done
