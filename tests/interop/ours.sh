#!/bin/bash
# Pools of ours in all layouts, with a history each that a seed decides: files of every compression, checksum and record size,
# snapshots, clones, rollbacks and what is destroyed again; devices attached, replaced (by checksum and sequentially), taken
# offline and back, distributed spares put to work, vdevs added and removed. Then
#
#   - OpenZFS's own code in userland imports the pool, scrubs it with 0 errors, reads every object as we do, and exports it;
#   - zdb accounts for every block of it;
#   - we import what it exported, scrub it without an error, and read the same again.
#
# A raidz is not expanded here: such pools are read only.
#
#   tests/interop/ours.sh [SEED...]      (default: OURS_POOLS seeds from OURS_START on: 100 from 1; OURS_KEEP=DIR keeps failures)
set -uo pipefail
. "$(dirname "$0")/lib.sh"
command -v zdb >/dev/null || skip "zdb is not installed"
refpool=$w/refpool
cc -O1 -o "$refpool" "$root/tests/probes/refpool.c" -l:libzpool.so.6 -l:libnvpair.so.3 2>"$w/cc" || skip "OpenZFS's library is not installed"
start=${OURS_START:-1}
[ $# -gt 0 ] || set -- $(seq "$start" $((start + ${OURS_POOLS:-100} - 1)))
passed=0 failed=0

# D is a new disk. The first word says what can be done to the devices.
LAYOUTS=(
  "flat D" "flat D D D" "mirror mirror D D" "mirror mirror D D D" "mirror mirror D D mirror D D" "raidz raidz1 D D D" "raidz raidz2 D D D D D"
  "raidz raidz3 D D D D D D" "raidz raidz1 D D D raidz1 D D D" "draid draid1:2d:6c:1s D D D D D D" "draid draid2:3d:9c:2s D D D D D D D D D"
  "draid draid3:2d:8c:1s D D D D D D D D" "mirror mirror D D special mirror D D" "flat D log D" "mirror mirror D D log mirror D D cache D"
  "raidz raidz2 D D D D special mirror D D log D" "mirror mirror D D dedup mirror D D" "mirror mirror D D spare D" "flat D D special D")
COMPRESSIONS=(off lz4 zstd gzip-3 zle lzjb) CHECKSUMS=(on sha256 fletcher4 on)

# A new disk: its path in $disk.
count=0
new_disk() { disk=$w/disks/d$count; count=$((count + 1)); truncate -s 192M "$disk"; }

settle() { zpool wait -t resilver,replace,remove ours; zpool wait -t scrub ours; }

# One change of devices that leaves the pool as redundant as it was.
devices() {
  local first=$w/disks/d0 how=; [ $((RANDOM % 2)) = 0 ] || how=-s
  case $1 in
  flat | mirror)
    case $((RANDOM % 4)) in
    0) new_disk; zpool attach $how ours "$first" "$disk"; settle; sanbox put "$w/blob" ours/f1:/attached; zpool detach ours "$disk" ;;
    1) # The first disk keeps its name: the new one goes, or stays.
      new_disk; zpool attach $how ours "$first" "$disk"; settle ;;
    2) new_disk
      local added=$disk vdev=$disk
      if [ "$1" = flat ]; then zpool add -f ours "$added"; else new_disk; zpool add -f ours mirror "$added" "$disk"; fi
      sanbox put "$w/blob" ours/f2:/spread
      [ "$1" = flat ] || vdev=$(zpool list -vHP ours | awk -v disk="$added" '$1 ~ /^(mirror|raidz|draid)/ { top = $1 } $1 == disk { print top }')
      zpool remove -w ours "$vdev" ;;
    3) [ "$1" = mirror ] || return 0
      zpool offline ours "$first"; sanbox put "$w/blob" ours/f3:/away; zpool online ours "$first"; settle ;;
    esac ;;
  raidz)
    local last; last=$(zpool list -vHP ours | awk -v dir="$w/disks" 'index($1, dir) == 1 { print $1; exit }')
    if [ -n "$how" ]; then
      zpool offline ours "$last"; sanbox put "$w/blob" ours/f3:/away; zpool online ours "$last"
    else
      new_disk; zpool replace ours "$last" "$disk"
    fi
    settle ;;
  draid)
    local first spare
    first=$(zpool list -vHP ours | awk -v dir="$w/disks" 'index($1, dir) == 1 { print $1; exit }')
    spare=$(zpool status ours | awk '/^\tspares/ { on = 1 } on && $2 == "AVAIL" { print $1; exit }')
    if [ $((RANDOM % 3)) != 0 ] && [ -n "$spare" ]; then
      zpool replace $how ours "$first" "$spare"; settle; sanbox put "$w/blob" ours/f3:/spared
      new_disk; zpool replace $how ours "$first" "$disk"
    else
      zpool offline ours "$first"; sanbox put "$w/blob" ours/f3:/away; zpool online ours "$first"
    fi
    settle ;;
  esac
}

history() {
  local i step fs one
  for i in 1 2 3; do
    zfs create -o compression=${COMPRESSIONS[$((RANDOM % 6))]} -o checksum=${CHECKSUMS[$((RANDOM % 4))]} -o recordsize=$((4 << (RANDOM % 9)))k \
      -o copies=$((1 + (RANDOM % 5 == 0))) ours/f$i
  done
  zfs create -s -V 16M ours/v
  head -c $((RANDOM * 100 + 4096)) /dev/urandom >"$w/blob"
  for step in $(seq $((8 + RANDOM % 12))); do
    fs=ours/f$((1 + RANDOM % 3))
    case $((RANDOM % 11)) in
    0 | 1) head -c $((RANDOM * 120)) /dev/urandom >"$w/new"; sanbox put "$w/new" $fs:/b$step ;;
    2) sanbox put "$w/blob" $fs:/again ;;
    3) sanbox put -r "$root/crates/codec/src" $fs:/tree$step ;;
    4) zfs snapshot $fs@s$step ;;
    5) one=$(zfs list -H -o name -t snapshot -r ours | head -1); [ -z "$one" ] || zfs destroy -R "$one" ;;
    6) one=$(zfs list -H -o name -t snapshot -r ours | tail -1); [ -z "$one" ] || zfs clone "$one" ours/c$step ;;
    7) one=$(sanbox ls $fs:/ | head -1); [ -z "$one" ] || sanbox rm -r "$fs:/$one" ;;
    8) one=$(zfs list -H -o name -t snapshot -d 1 $fs | tail -1); [ -z "$one" ] || zfs rollback "$one" ;;
    *) devices "$1" ;;
    esac || return 1
  done
  devices "$1"
}

sums() { awk 'NF == 5 && length($5) == 64' "$1" | LC_ALL=C sort; }

one() {
  local seed=$1 word words spec=() kind disks=() file
  rm -rf "$w/disks" "$w/state"; mkdir "$w/disks"; count=0
  read -ra words <<<"${LAYOUTS[$((seed % ${#LAYOUTS[@]}))]}"
  kind=${words[0]}; words=("${words[@]:1}")
  for word in "${words[@]}"; do
    if [ "$word" = D ]; then new_disk; spec+=("$disk"); else spec+=("$word"); fi
  done
  RANDOM=$seed
  local ashift=$((9 + RANDOM % 4))
  what="${words[*]}, ashift $ashift"
  zpool create -f -o ashift=$ashift ours "${spec[@]}" >"$w/out" 2>&1 || { why="create: $(tail -1 "$w/out")"; return 1; }
  history "$kind" >>"$w/out" 2>&1 && ! [ -s "$w/out" ] || { why="history: $(tail -2 "$w/out" | tr '\n' ' ')"; zpool export -f ours; return 1; }
  sanbox sums -r ours >"$w/ours.raw" 2>"$w/ours.err" && sums "$w/ours.raw" >"$w/ours" || { why="sums: $(tail -1 "$w/ours.err")"; zpool export -f ours; return 1; }
  zpool export ours >"$w/out" 2>&1 || { why="export: $(tail -1 "$w/out")"; return 1; }
  for file in "$w"/disks/*; do zdb -l "$file" 2>/dev/null | grep -q vdev_tree && disks+=("$file"); done
  timeout 300 "$refpool" ds ours "${disks[@]}" -- scrub:ours sums:ours >"$w/theirs.raw" 2>"$w/theirs.err" || { why="OpenZFS: $(tail -n 2 "$w/theirs.err" | tr '\n' ' ')"; return 1; }
  grep -q 'scrub ours: 0 errors' "$w/theirs.raw" || { why="OpenZFS: $(grep scrub "$w/theirs.raw" | tail -1)"; return 1; }
  sums "$w/theirs.raw" >"$w/theirs"
  cmp -s "$w/ours" "$w/theirs" || { why="content: $(diff "$w/ours" "$w/theirs" | head -4 | tr '\n' ' ')"; return 1; }
  timeout 300 zdb -e -p "$w/disks" -bcc ours >"$w/zdb" 2>&1 && grep -q 'No leaks' "$w/zdb" || {
    why="zdb: $(grep -iE 'error|leak|mismatch|assert|failed|cannot' "$w/zdb" | head -3 | tr '\n' ' ')"; return 1; }
  zpool import -d "$w/disks" ours >"$w/out" 2>&1 && zpool scrub -w ours >"$w/out" 2>&1 || { why="back: $(tail -1 "$w/out")"; return 1; }
  zpool status -v ours >"$w/status"
  sanbox sums -r ours >"$w/ours.raw" 2>"$w/ours.err"; sums "$w/ours.raw" >"$w/again"
  zpool export ours
  grep -q 'errors: No known data errors' "$w/status" && grep -q 'with 0 errors' "$w/status" && grep -q 'state: ONLINE' "$w/status" || {
    why="back: $(grep -E 'state:|scan:|errors:' "$w/status" | tr '\n' ' ')"; return 1; }
  cmp -s "$w/theirs" "$w/again" || { why="content, back: $(diff "$w/theirs" "$w/again" | head -4 | tr '\n' ' ')"; return 1; }
}

for seed in "$@"; do
  what= why=
  if one "$seed"; then
    passed=$((passed + 1)); echo "ours $seed: clean ($what; $(wc -l <"$w/ours") objects)"
  else
    failed=$((failed + 1)); echo "ours $seed: FAILED ($what): ${why:0:400}" >&2
    zpool export -f ours 2>/dev/null
    if [ -n "${OURS_KEEP:-}" ]; then rm -rf "$OURS_KEEP/$seed"; mkdir -p "$OURS_KEEP/$seed"; cp -r --sparse=always "$w/disks" "$OURS_KEEP/$seed"; cp "$w"/{out,ours,theirs,theirs.err,status,zdb} "$OURS_KEEP/$seed" 2>/dev/null; fi
  fi
done
echo "ours: $passed imported, scrubbed and exported by OpenZFS without a difference, $failed failed"
[ $failed = 0 ]
