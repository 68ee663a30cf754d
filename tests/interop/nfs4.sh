#!/bin/bash
# pynfs, the conformance suite of NFSv4, on a share: all of its tests but those of nfs4.list pass. At a lease of 15 s, since some
# tests wait until it has run out.
#
#   PYNFS=CHECKOUT tests/interop/nfs4.sh [VERSION...]      (default: 4.0 4.1 4.2)      FLAGS=all  (which of pynfs' tests)
#   SECURITY=krb5p   by Kerberos: krb5, krb5i or krb5p (default: sys); its tests are GSS1 to GSS8 of 4.0; tests that expect a killed server are left out
#
# CHECKOUT is a clone of github.com/kofemann/pynfs in which `python3 setup.py build` was run (Debian: python3-ply python3-gssapi
# swig libkrb5-dev); without PYNFS it is cloned and built, where the network allows.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
python=${PYTHON:-/usr/bin/python3}
"$python" -c 'import ply, gssapi' 2>/dev/null || skip "$python lacks ply or gssapi (python3-ply, python3-gssapi)"
if [ -z "${PYNFS:-}" ]; then
  command -v swig >/dev/null || skip "swig is not installed"
  git clone -q https://github.com/kofemann/pynfs "$w/pynfs" 2>/dev/null || skip "pynfs is not here (PYNFS) and cannot be cloned"
  PYNFS=$w/pynfs
  git -C "$PYNFS" checkout -q 3c14d9e
  (cd "$PYNFS" && PATH=/usr/bin:$PATH "$python" setup.py build) >"$w/build" 2>&1 || { tail -5 "$w/build" >&2; fail "building pynfs"; }
fi
[ $# -gt 0 ] || set -- 4.0 4.1 4.2

mkdir -p "$SANBOX_STATE"
printf '[nfs]\nlease_seconds = 15\n' >"$SANBOX_STATE/sanbox.toml"
flavours=sys security=()
if [ -n "${SECURITY:-}" ]; then
  mkdir "$w/realm"
  (cd "$w/realm" && "$here/kdc.sh" $((port + 1))) || skip "no realm of Kerberos (krb5-kdc, krb5-admin-server, krb5-user)"
  trap 'kill "$(cat "$w/realm/kdc.pid")"; finish' EXIT
  export KRB5_CONFIG=$w/realm/krb5.conf KRB5CCNAME=FILE:$w/realm/root.ccache
  printf "kerberos_keytab = '%s'\\n" "$w/realm/nfs.keytab" >>"$SANBOX_STATE/sanbox.toml"
  # The second client of 4.0 uses AUTH_SYS.
  flavours=$SECURITY:sys security=("--security=$SECURITY")
  # The module's import is one of Python 2.
  cp -r "$PYNFS" "$w/pynfs-gss" && PYNFS=$w/pynfs-gss
  find "$PYNFS/nfs4.0" -name sec_auth_gss.py -exec sed -i 's/^import gss_type/from . import gss_type/' {} +
fi
truncate -s 1G "$w/disks/d0"
sanbox zpool create tank "$w/disks/d0"
sanbox zfs create -o sharenfs="rw,no_root_squash,sec=$flavours" -o acltype=nfsv4 tank/share
serve
bad=0
for version in "$@"; do
  case $version in
  4.0) dir=nfs4.0 minor=() ;;
  4.1) dir=nfs4.1 minor=(--minorversion=1) ;;
  4.2) dir=nfs4.1 minor=(--minorversion=2) ;;
  *) fail "no version $version" ;;
  esac
  # shellcheck disable=SC2086
  (cd "$PYNFS/$dir" && timeout 2400 "$python" -u ./testserver.py "127.0.0.1:$port/tank/share" \
    --maketree --verbose --showomit "${security[@]}" "${minor[@]}" ${FLAGS:-all}) >"$w/out" 2>&1 || true
  # Between rows of asterisks: a line for each test with its verdict, behind it what was seen.
  awk '/^\*\*\*\*\*/ { block++; next }
    block == 1 && /^[A-Za-z0-9_]+ +[A-Za-z0-9_]+\.[^ ]+ +: [A-Z]/ { v = $0; sub(/^[^:]*: /, "", v); print $1, v }' "$w/out" >"$w/verdicts"
  [ -s "$w/verdicts" ] || { tail -5 "$w/out" >&2; fail "pynfs $version came to no end"; }
  grep ' FAILURE' "$w/verdicts" | cut -d' ' -f1 | LC_ALL=C sort >"$w/failed" || true
  { grep "^$version " "$here/nfs4.list" || true; } | cut -d' ' -f2 | LC_ALL=C sort >"$w/expected"
  grep -E ' (FAILURE|PASS|WARNING)' "$w/verdicts" | cut -d' ' -f1 | LC_ALL=C sort >"$w/ran"
  for test in $(LC_ALL=C comm -23 "$w/failed" "$w/expected"); do
    echo "interop nfs4: $version $test fails:" >&2
    sed -n "/^$test .*: FAILURE/,/^[A-Z]/p" "$w/out" | sed -n 2,4p >&2
    bad=1
  done
  for test in $(LC_ALL=C comm -13 "$w/failed" "$w/expected" | LC_ALL=C comm -12 - "$w/ran"); do
    echo "interop nfs4: $version $test passes: take it out of nfs4.list" >&2
    bad=1
  done
  passed=$(grep -cE ' (PASS|WARNING)' "$w/verdicts" || true)
  echo "interop nfs4: NFSv$version: $passed of $(wc -l <"$w/ran") passed, $(wc -l <"$w/failed") failed"
done
[ $bad = 0 ] || exit 1
stop
if [ -n "${SECURITY:-}" ]; then
  judge tank
  exit
fi

# The server killed and started again, and what clients had open reclaimed: a server that comes back whenever it is killed.
keep() {
  while [ ! -e "$w/enough" ]; do
    sanbox serve --listen 127.0.0.1 --nfs-port "$port" --no-portmap >>"$w/log" 2>&1 & echo $! >"$w/server"
    wait $! || true
  done
}
cat >"$w/kill" <<K
#!/bin/bash
: >"$w/log"
kill -9 "\$(cat "$w/server")"
for _ in \$(seq 300); do grep -q 'sanbox: ready' "$w/log" && exit; sleep 0.1; done
K
chmod +x "$w/kill"
trap 'touch "$w/enough"; kill "$(cat "$w/server")" 2>/dev/null || true; wait; finish' EXIT
: >"$w/log"
keep & keeper=$!
for _ in $(seq 300); do ! grep -q 'sanbox: ready' "$w/log" || break; sleep 0.1; done
# The clients of the suites are recorded, and gone: what they may reclaim holds back new opens for one lease.
for _ in $(seq 60); do ! grep -q 'may reclaim' "$w/log" || grep -q 'reclaim no more' "$w/log" || { sleep 1; continue; }; break; done
for version in "$@"; do
  case $version in
  4.0) dir=nfs4.0 minor=(--rundeps) tests="REBT1 REBT2 REBT3" ;;
  *) dir=nfs4.1 minor=("--minorversion=${version#4.}") tests="REBT1 REBT2a REBT2b REBT3a REBT4a REBT5" ;;
  esac
  # shellcheck disable=SC2086
  (cd "$PYNFS/$dir" && timeout 900 "$python" -u ./testserver.py "127.0.0.1:$port/tank/share" --maketree \
    --serverhelper="$w/kill" "${minor[@]}" $tests) >"$w/out" 2>&1 || true
  for test in $tests; do
    grep -q "^$test .*: PASS" "$w/out" || { grep -A5 "^$test " "$w/out" >&2 || tail -5 "$w/out" >&2; fail "pynfs $version: $test"; }
  done
  echo "interop nfs4: NFSv$version: reclaimed after the server was killed: $tests"
done
touch "$w/enough"
kill "$(cat "$w/server")"
wait $keeper
judge tank
