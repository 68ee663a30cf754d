#!/bin/bash
# Runs libiscsi's conformance suite (iscsi-test-cu, package libiscsi-bin) against a LUN, and says for each test PASS, FAIL or
# SKIP, its name and why, separated by tabs. DESTROYS the LUN's content.
#
#   iscsi-suite.sh URL [SECOND_URL] [FAMILY]
#
# A test that printed [SKIPPED] and failed no assertion counts as skipped (CUnit itself counts it as passed).
set -u
url=$1 second=${2:-} family=${3:-ALL}
tool=${ISCSI_TEST_CU:-iscsi-test-cu}
log=$(mktemp); trap 'rm -f "$log"' EXIT
timeout "${LIMIT_S:-900}" stdbuf -oL "$tool" -d -v -t "$family" "$url" ${second:+"$second"} >"$log" 2>&1
[ $? -ne 124 ] || echo "the time limit was reached"
[ -z "${KEEP:-}" ] || cp "$log" "$KEEP"
awk -v OFS='\t' '
  function finish() { if (t != "") {
      r = fail ? "FAIL" : skip ? "SKIP" : done ? "PASS" : "FAIL"
      if (!fail && !done) why = "no verdict (hang, crash or time limit)"
      print r, s "." t, why; t = "" } }
  /^Suite: /     { finish(); s = $2; next }
  /^  Test: /    { finish(); t = $2; fail = skip = done = 0; why = "" }
  t == ""        { next }
  /\[SKIPPED\]/  { skip = 1; if (why == "") { w = $0; sub(/.*\[SKIPPED\] */, "", w); why = w } }
  /\[FAILED\]/   { w = $0; sub(/.*\[FAILED\] */, "", w); why = w }
  /^FAILED|\.\.\.FAILED/ { fail = 1; done = 1 }
  /^passed|\.\.\.passed/ { done = 1 }
  /^ *[0-9]+\. .*CU_/ { fail = 1; if (why == "") { w = $0; sub(/^ */, "", w); why = w } }
  /^Run Summary/ { finish() }
  END            { finish() }' "$log"
