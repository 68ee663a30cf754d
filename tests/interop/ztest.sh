#!/bin/bash
# Pools that OpenZFS's own stress test makes, in all its layouts (stripes of mirrors, raidz1-3, expanded raidz, dRAID, with logs,
# special and deduplication vdevs, devices taken away and replaced, checkpoints, gang blocks, encrypted datasets), some killed in
# the middle of their work:
#
#   - OpenZFS's own code in userland reads every object of every dataset and snapshot of a copy;
#   - we import another copy read-only, then read-write, and read the same, by digest;
#   - we scrub it without an error, export it, and zdb accounts for every block of it.
#
# A raidz below a mirror, which no command of OpenZFS makes, is not among them.
#
# What ztest leaves is not always whole: it damages devices within their redundancy, and blocks that OpenZFS cannot read either
# count for nothing. A pool that we refuse is counted with the reason, and is a failure but for what README.md says is read only.
#
#   tests/interop/ztest.sh [SEED...]      (default: ZTEST_POOLS seeds from ZTEST_START on: 100 from 1; ZTEST_KEEP=DIR keeps failures)
set -uo pipefail
. "$(dirname "$0")/lib.sh"
command -v ztest >/dev/null && command -v zdb >/dev/null || skip "ztest and zdb are not installed"
refpool=$w/refpool
cc -O1 -o "$refpool" "$root/tests/probes/refpool.c" -l:libzpool.so.6 -l:libnvpair.so.3 2>"$w/cc" || skip "OpenZFS's library is not installed"
# Three seeds of four make no encrypted datasets: pools that have some are read only.
printf 'int dsl_crypto_params_create_nvlist(int c, void *p, void *a, void **out) { (void)c; (void)p; (void)a; *out = 0; return 0; }\n' |
  cc -shared -fPIC -x c -o "$w/plain.so" - || skip "no C compiler"
start=${ZTEST_START:-1}
[ $# -gt 0 ] || set -- $(seq "$start" $((start + ${ZTEST_POOLS:-100} - 1)))
WORTH_MIB=48 passed=0 failed=0 read_only=0 nothing=0

# Options of ztest for a seed: layout, sizes, and how long it may work; the last word says when it is killed (0: not at all).
options() {
  local layouts=(
    '-m 0 -r 1 -K raidz' '-m 2 -r 1 -K raidz' '-m 3 -r 1 -K raidz' '-m 0 -r 3 -R 1 -K raidz' '-m 0 -r 5 -R 2 -K raidz' '-m 0 -r 6 -R 3 -K raidz'
    '-m 0 -r 4 -R 2 -K raidz' '-m 0 -K draid -r 8 -R 1 -D 4 -S 1' '-m 0 -K draid -r 9 -R 2 -D 5 -S 2' '-m 0 -K draid -r 12 -R 3 -D 4 -S 1' '-m 0 -r 4 -R 1 -K eraidz' '-m 2 -r 1 -K raidz')
  local ashifts=(9 12 0) classes=(special=random special=on special=off)
  RANDOM=$1
  local seconds=$((3 + RANDOM % 5)) kill=0
  [ $((RANDOM % 6)) = 0 ] || { kill=$((1 + RANDOM % 6)); seconds=60; }
  echo "${layouts[$(($1 % ${#layouts[@]}))]} -v $((1 + RANDOM % 3)) -a ${ashifts[$((RANDOM % 3))]} -C ${classes[$((RANDOM % 3))]} -d $((1 + RANDOM % 7)) -t $((4 + RANDOM % 12)) -T $seconds -P $seconds $kill"
}

# The copy that the next step may change.
copy() { rm -rf "$w/$1"; mkdir -p "$w/$1"; cp --sparse=always "$w"/made/ztest.[0-9]*[a-z] "$w/made"/ztest.log* "$w/made"/ztest.s* "$w/$1" 2>/dev/null; return 0; }

# Digests that can be compared: not of what is encrypted (of which OpenZFS shows objects without data), nor of objects that OpenZFS
# cannot read either.
comparable() {
  sed -n "s/^cannot read '\(.*\)': encryption key not loaded\$/locked \1/p" "$w/ours.err" >>"$w/theirs"
  awk -v judge="$w/theirs" 'BEGIN { while ((getline line < judge) > 0) { split(line, f, " "); if (f[1] == "locked") skip[f[2]]; else if (f[1] == "unreadable") skip[f[2] " " (f[3] ~ /^[0-9]+$/ ? f[3] : "")] } }
    !($1 in skip) && !(($1 " " $2) in skip) && NF == 5 && length($5) == 64' "$1" | LC_ALL=C sort
}

leaks() { grep 'leaked space:' "$1"; }

one() {
  local seed=$1 words status
  read -ra words <<<"$(options "$seed")"
  local kill=${words[-1]}; unset 'words[-1]'
  rm -rf "$w/made"; mkdir "$w/made"
  local plain=$w/plain.so; [ $((seed % 4)) != 0 ] || plain=
  (cd "$w/made" && LD_PRELOAD=$plain exec setsid timeout -s KILL 120 ztest -f "$w/made" -p ztest -s 160m -k 0 "${words[@]}") >"$w/ztest.out" 2>&1 &
  local child=$!
  if [ "$kill" != 0 ]; then
    # Not before it has begun: the seconds count from when there is something in the pool.
    for _ in $(seq 300); do [ "$(du -sm "$w/made" | cut -f1)" -lt "$WORTH_MIB" ] || break; sleep 0.2; done
    sleep "$kill"; kill -KILL -- -$child 2>/dev/null
  fi
  wait $child 2>/dev/null; status=$?
  : >"$w/ours.err"
  what="${words[*]}, $([ "$kill" = 0 ] && echo "ended with $status" || echo "killed after $kill s")"
  copy theirs.d
  (cd "$w/theirs.d" && timeout 300 "$refpool" ds ztest "$w"/theirs.d/* -- sums:ztest) >"$w/theirs" 2>"$w/theirs.err" || {
    # Killed before there was a pool, or in the middle of making one.
    why="OpenZFS does not import it: $(tail -n 1 "$w/theirs.err" "$w/theirs" | tr '\n' ' ' | cut -c1-120)"; return 2; }
  rm -rf "$w/theirs.d"
  : >"$w/expect"
  copy disks
  for mode in 'readonly=on' ''; do
    if ! timeout 300 zpool import -f ${mode:+-o $mode} -d "$w/disks" ztest >"$w/import" 2>&1; then
      why="import ${mode:-read-write}: $(tr '\n' ' ' <"$w/import" | cut -c1-300)"
      [ -z "$mode" ] && return 3
      return 1
    fi
    sanbox sums -r ztest >"$w/ours.raw" 2>"$w/ours.err"
    comparable "$w/ours.raw" >"$w/ours"
    comparable "$w/theirs" >"$w/expect"
    if ! cmp -s "$w/expect" "$w/ours"; then
      why="content ${mode:-read-write}: $(diff "$w/expect" "$w/ours" | head -4 | tr '\n' ' ' | cut -c1-300) $(head -2 "$w/ours.err" | tr '\n' ' ' | cut -c1-200)"
      zpool export ztest; return 1
    fi
    if [ -n "$mode" ]; then zpool export ztest || { why="export after $mode"; return 1; }; fi
  done
  if ! timeout 300 zpool scrub -w ztest >"$w/scrub" 2>&1; then why="scrub: $(head -2 "$w/scrub" | tr '\n' ' ')"; zpool export ztest; return 1; fi
  zpool status -v ztest >"$w/status"
  grep -q 'errors: No known data errors' "$w/status" && grep -Eq 'scrub repaired .* with 0 errors|resilvered .* with 0 errors' "$w/status" || {
    why="scrub: $(grep -E 'scan:|errors:' "$w/status" | tr '\n' ' ' | cut -c1-300)"; zpool export ztest; return 1; }
  zpool export ztest >"$w/export" 2>&1 || { why="export: $(head -2 "$w/export")"; return 1; }
  timeout 300 zdb -e -p "$w/disks" -bcc ztest >"$w/zdb" 2>&1; status=$?
  if [ $status = 0 ] && ! grep -q 'No leaks' "$w/zdb"; then
    # OpenZFS loses space itself when it is killed while it expands a raidz: the very same must be lost before we open the pool.
    copy found
    timeout 300 zdb -e -p "$w/found" -bcc ztest >"$w/zdb.found" 2>&1
    [ -n "$(leaks "$w/zdb")" ] && [ "$(leaks "$w/zdb")" = "$(leaks "$w/zdb.found")" ] && { what="$what, leaks as found"; return 0; }
  fi
  if [ $status != 0 ] || ! grep -q 'No leaks' "$w/zdb"; then why="zdb says $status: $(grep -vE '^\s*$' "$w/zdb" | grep -iE 'error|leak|mismatch|assert|failed|cannot' | head -3 | tr '\n' ' ' | cut -c1-300)"; return 1; fi
  return 0
}

for seed in "$@"; do
  what= why=
  one "$seed"
  case $? in
  0) passed=$((passed + 1)); echo "ztest $seed: same content ($(wc -l <"$w/expect") objects), clean ($what)" ;;
  2) nothing=$((nothing + 1)); echo "ztest $seed: no pool to look at ($what): $why" ;;
  3) case $why in
     *"read-only"*) read_only=$((read_only + 1)); echo "ztest $seed: same content, read-only ($what): $why" ;;
     *) failed=$((failed + 1)); echo "ztest $seed: FAILED ($what): $why" >&2 ;;
     esac ;;
  *)
    failed=$((failed + 1)); echo "ztest $seed: FAILED ($what): $why" >&2
    if [ -n "${ZTEST_KEEP:-}" ]; then rm -rf "$ZTEST_KEEP/$seed"; mkdir -p "$ZTEST_KEEP/$seed"; copy kept; mv "$w/kept" "$ZTEST_KEEP/$seed/disks"; cp "$w"/{expect,ours,ours.err,theirs,theirs.err,status,zdb,import} "$ZTEST_KEEP/$seed" 2>/dev/null; fi
    ;;
  esac
  zpool list -H -o name 2>/dev/null | grep -qx ztest && zpool export -f ztest
done
echo "ztest: $passed read, scrubbed and written back without a difference, $read_only read without one and refused for writing, $nothing without a pool, $failed failed"
[ $failed = 0 ]
