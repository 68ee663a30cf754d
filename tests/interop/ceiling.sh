#!/bin/bash
# The whole-system tests with every daemon of theirs below a ceiling: --memory 512M, and 1G, in a memory control group of exactly that
# size where this user may make one. None may ever have been above it, or be killed for it.
#
#   tests/interop/ceiling.sh [SIZE...]         (default: 512M 1G)       TESTS="cli:: daemon::" (names; default: all)
#
# The program is the one that cargo builds beside the tests (not $SANBOX): its profile is the caller's.
set -uo pipefail
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || set -- 512M 1G
w=$(mktemp -d); trap 'rm -rf "$w"' EXIT
unset SANBOX
${CARGO:-cargo} test --workspace --test system --no-run >"$w/build" 2>&1 || { tail -20 "$w/build" >&2; exit 1; }
failed=0
for ceiling in "$@"; do
  : >"$w/peaks"; status=0
  # shellcheck disable=SC2086 (names of tests)
  SANBOX_TEST_MEMORY=$ceiling SANBOX_TEST_PEAKS=$w/peaks ${CARGO:-cargo} test --workspace --test system -- ${TESTS:-} >"$w/log" 2>&1 || status=$?
  grep -E '^test .*FAILED|^test result' "$w/log"
  [ $status = 0 ] || { failed=1; grep -E 'panicked|MiB were resident|killed by' "$w/log" | head -20 >&2; }
  sort -k2,2nr "$w/peaks" | awk -v ceiling="$ceiling" '
    { peaks[NR] = $2; killed += $5; groups += $4 == "group"; if (NR <= 5) most = most " " $1 " " $2 ";" }
    END { print "--memory " ceiling ": " NR " daemons, " groups " in groups of that size, " killed + 0 " killed; highest resident " peaks[1] " MiB, half of them below " peaks[int((NR + 1) / 2)] " MiB; most:" most }'
done
exit $failed
