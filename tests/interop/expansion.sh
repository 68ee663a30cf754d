#!/bin/bash
# Pools whose raidz OpenZFS is in the middle of expanding: stopped at every point of the work in the scratch area, after some of
# the data, while the pool is written meanwhile, and cut off at any moment. Of each
#
#   - OpenZFS's own code in userland reads every object of a copy;
#   - we import the same disks read-only, read the same, by digest, and find nothing wrong with any disk;
#   - we read the same again without as many disks as there is parity, the new one and old ones;
#   - we go on with it to its end, when zdb finds nothing wrong, and read the same, also without a disk.
#
# OpenZFS itself does not import what is left where a new disk is listed and the expansion has not begun (point=0): there the content
# is what it was before, and we refuse to write to it.
#
# One disk has lied before some of the expansions, which spread over all disks what it said, and where there is more parity, others lie
# afterwards: then the content must be the same, too.
#
#   tests/interop/expansion.sh [CASE...]      (default: all of CASES; EXPANSION_MOMENTS="point=4 cut=30" only those; EXPANSION_KEEP=DIR
#   keeps the disks of failures)
set -uo pipefail
. "$(dirname "$0")/lib.sh"
refpool=$w/refpool
cc -O1 -o "$refpool" "$root/tests/probes/refpool.c" -l:libzpool.so.6 -l:libnvpair.so.3 -lz 2>"$w/cc" || skip "OpenZFS's library is not installed"

# Layout, disks before, shift of the sector size, and how often it was expanded before.
CASES=("raidz1 3 9 0" "raidz1 4 12 0" "raidz2 4 12 0" "raidz2 5 9 1" "raidz3 5 12 0" "raidz1 3 12 2")
# Points of OpenZFS's own, bytes moved (with writes to the pool while it stands still there), milliseconds until it is cut off,
# bytes moved of a pool a disk of which was overwritten with noise before, the same with other disks overwritten then.
MOMENTS=(point=0 point=1 point=2 point=3 point=4 point=5 point=6 point=7 moved=1 moved=4000000 lied=5000000 lied=999999999999 lying=5000000 lying=999999999999 cut=30 cut=150 cut=400)
[ -z "${EXPANSION_MOMENTS:-}" ] || read -ra MOMENTS <<<"$EXPANSION_MOMENTS"
[ $# -gt 0 ] || set -- "${CASES[@]}"
passed=0 failed=0 nothing=0
# OpenZFS leaves a cache file where it is cut off.
cd "$w" || exit 1

disks=$w/disks made=$w/made
paths() { local i; for ((i = 0; i < $2; i++)); do echo "$1/d$i"; done; }
# A copy of the disks, in a directory of the same name wherever OpenZFS looks for them by path.
fresh() { rm -rf "$disks"; mkdir "$disks"; cp --sparse=always "$1"/d* "$disks"; }

# noise DISK: all but its labels.
noise() { dd if=/dev/urandom of="$disks/d$1" bs=1M seek=6 count=140 conv=notrunc status=none; }

make_pool() {
  local layout=$1 count=$2 shift=$3 before=$4 i
  rm -rf "$disks"; mkdir "$disks"
  for ((i = 0; i <= count + before; i++)); do truncate -s 160M "$disks/d$i"; done
  local -a now; mapfile -t now < <(paths "$disks" "$count")
  "$refpool" create tank "$layout" -a "$shift" "${now[@]}" &&
    "$refpool" ds tank "${now[@]}" -- tank/a fill:tank/a=9000000 tank/a@one fill:tank/a=5000 fill:tank/a=20000000 tank/b fill:tank/b=700000 || return 1
  for ((i = 0; i < before; i++)); do
    "$refpool" ds tank "${now[@]}" -- "expand:tank=$disks/d0,$disks/d$((count + i))" reflowed:tank=999999999999 "fill:tank/b=2$i"00000 "tank/b@$i" || return 1
    now+=("$disks/d$((count + i))")
  done
  rm -rf "$made"; cp -r --sparse=always "$disks" "$made"
}

expand_until() {
  local -a now; mapfile -t now < <(paths "$disks" "$2")
  local begin="expand:tank=$disks/d0,$disks/d$2" word=${1#*=}
  case $1 in
  point=*) "$refpool" ds tank "${now[@]}" -- "$begin,$word" ;;
  moved=* | lied=* | lying=*) REFPOOL_KEEP=1 "$refpool" ds tank "${now[@]}" -- "halt:$word" "$begin" "reflowed:tank=$word" fill:tank/b=3000000 tank/a@two fill:tank/a=11000 ;;
  cut=*) "$refpool" ds tank "${now[@]}" -- "$begin" "die:tank=$word" ;;
  esac
}

sums() { awk 'NF == 5 && length($5) == 64' "$1" | LC_ALL=C sort; }

# look WHAT: everything as OpenZFS reads it.
look() {
  timeout 300 zpool import -f -o readonly=on -d "$disks" tank >"$w/import" 2>&1 || { why="import $1: $(tr '\n' ' ' <"$w/import" | cut -c1-300)"; return 1; }
  sanbox sums -r tank >"$w/ours.raw" 2>"$w/ours.err"
  zpool status -v tank >"$w/status"
  sums "$w/ours.raw" >"$w/ours"
  zpool export tank || { why="export $1"; return 1; }
  cmp -s "$w/expect" "$w/ours" || { why="content $1: $(diff "$w/expect" "$w/ours" | head -4 | tr '\n' ' ' | cut -c1-300) $(head -2 "$w/ours.err" | tr '\n' ' ' | cut -c1-200)"; return 1; }
  case $1 in *noise*) return 0 ;; esac
  awk '$2 ~ /^(ONLINE|DEGRADED)$/ && NF >= 5 && ($3 != 0 || $4 != 0 || $5 != 0) { bad = 1 } END { exit bad }' "$w/status" || { why="errors $1: $(grep -E 'd[0-9]' "$w/status" | tr -s ' \n' ' ' | cut -c1-300)"; return 1; }
}

one() {
  local moment=$1 parity=$2 count=$3 i
  fresh "$made"
  case $moment in lied=* | lying=*) noise 1 ;; esac
  timeout -s KILL 120 bash -c "$(declare -f expand_until paths); disks=$disks refpool=$refpool; expand_until $moment $count" >"$w/expand" 2>&1
  case $moment in lying=*) for ((i = 2; i <= parity; i++)); do noise "$i"; done ;; esac
  rm -rf "$w/cut"; cp -r --sparse=always "$disks" "$w/cut"
  local -a all; mapfile -t all < <(paths "$disks" $((count + 1)))
  state=$(zdb -lu "$disks/d0" 2>/dev/null | grep -c raidz_expanding)
  if [ "$moment" = point=0 ]; then
    state=1; fresh "$made"; unset 'all[-1]'
  fi
  if ! timeout 300 "$refpool" ds tank "${all[@]}" -- halt:1 sums:tank >"$w/theirs" 2>"$w/theirs.err"; then
    why="OpenZFS does not import it: $(grep -v refpool "$w/theirs.err" | head -2 | tr '\n' ' ' | cut -c1-120)"; return 2
  fi
  sums "$w/theirs" >"$w/expect"
  [ "$(wc -l <"$w/expect")" -gt 2 ] || { why="OpenZFS reads nothing"; return 2; }
  fresh "$w/cut"
  case $moment in lied=* | lying=*) look "with noise"; return ;; esac
  look "with all disks" || return 1
  if timeout 300 zpool import -f -d "$disks" tank >"$w/import" 2>&1; then
    [ "$moment" != point=0 ] || { zpool export tank; why="imported for writing"; return 1; }
    timeout 300 zpool wait -t raidz_expand,scrub tank || { why="it does not end: $(zpool status tank | tr '\n' ' ' | cut -c1-300)"; return 1; }
    zpool export tank || { why="export at the end"; return 1; }
    look "gone on with" || return 1
    zdb -e -p "$disks" -bcc tank >"$w/zdb" 2>&1 || { why="zdb: $(tail -3 "$w/zdb" | tr '\n' ' ' | cut -c1-300)"; return 1; }
    rm "$disks/d$((parity - 1))"; look "gone on with, one lost" || return 1
    fresh "$w/cut"
  else
    { [ "$moment" = point=0 ] && grep -q raidz_expansion "$w/import"; } || { why="refused: $(tr '\n' ' ' <"$w/import" | cut -c1-200)"; return 1; }
  fi
  # The new disk and the ones before it, then the first ones.
  for ((i = 0; i < parity; i++)); do rm "$disks/d$((count - i))"; done
  look "without the last $parity" || return 1
  fresh "$w/cut"
  for ((i = 0; i < parity; i++)); do rm "$disks/d$i"; done
  look "without the first $parity"
}

for case in "$@"; do
  read -r layout count shift before <<<"$case"
  make_pool "$layout" "$count" "$shift" "$before" >"$w/make" 2>&1 || fail "OpenZFS does not make the pool: $(tail -3 "$w/make")"
  for moment in "${MOMENTS[@]}"; do
    case $layout$moment in raidz1lying=*) continue ;; esac
    why=; one "$moment" "${layout#raidz}" $((count + before))
    case $? in
    0) passed=$((passed + 1)); echo "expansion $case, $moment: same content ($(wc -l <"$w/expect") objects; $([ "$state" = 0 ] && echo 'not begun or ended' || echo 'under way'))" ;;
    2) nothing=$((nothing + 1)); echo "expansion $case, $moment: nothing to look at: $why" ;;
    *)
      failed=$((failed + 1)); echo "expansion $case, $moment: FAILED: $why" >&2
      [ -z "${EXPANSION_KEEP:-}" ] || { k="$EXPANSION_KEEP/$(tr ' =' '-' <<<"$case-$moment")"; rm -rf "$k"; mkdir -p "$k"; cp -r --sparse=always "$w/cut" "$k/disks"; cp "$w"/{expect,ours,ours.err,theirs,status,import} "$k" 2>/dev/null; } ;;
    esac
  done
done
echo "expansion: $passed read without a difference, $nothing nothing to look at, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]
