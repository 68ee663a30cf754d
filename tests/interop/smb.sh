#!/bin/bash
# smbtorture, Samba's conformance suites of SMB2 and SMB3 and of what macOS uses, on a share: all tests pass but those of smb.list. With BESIDE=1 the same
# smbd with the same configuration but the path serves a directory of this machine, too, and is judged by the same suites: what
# fails there is Samba's, or the suite's, and not the file system's.
#
#   tests/interop/smb.sh [SUITE...]        (default: 52 of smb2.* and 5 of vfs.*)      BESIDE=1      SUITE_S=150 (seconds a suite may take)
#   OUT=DIRECTORY                          keeps the verdicts (ours.tsv, beside.tsv) and the logs there
#
# The users are two that every Debian has, games and man, with passwords of Samba alone.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "only root mounts for Samba"
for program in smbd smbtorture smbclient; do
  command -v $program >/dev/null || skip "$program is not installed (samba, samba-testsuite, smbclient)"
done
[ -e /dev/fuse ] || skip "there is no FUSE"
out=${OUT:-$w/out}; mkdir -p "$out"
suites=("$@")
# All of smb2.* but those that need a share of their own kind (change_notify_disabled), come to no end by themselves (hold-oplock,
# hold-sharemode, notify-inotify), measure (bench, scan, aio_delay, async_dosmode, durable-v2-delay), or ask the kernel for
# oplocks (kernel-oplocks). twrp needs a snapshot (tests/system/smb.rs has it).
[ ${#suites[@]} -gt 0 ] || suites=(
  acls acls_non_canonical charset check-sharemode compound compound_async compound_find connect create create_no_streams credits
  delete-on-close-perms deny dir dosmode durable-open durable-open-disconnect durable-v2-open ea fileid getinfo ioctl
  ioctl-on-stream lease lock mangle maxfid maximum_allowed mkdir multichannel notify openattr oplock read rename replay rw
  samba3misc sdread secleak session session-id session-require-signing set-sparse-ioctl setinfo sharemode streams tcon
  timestamp_resolution timestamps winattr zero-data-ioctl
  vfs.fruit vfs.fruit_file_id vfs.fruit_conversion vfs.streams_xattr vfs.acl_xattr)

# verdicts NAME PORT SHARE: runs the suites, one at a time; a line for each test in NAME.tsv: verdict, suite, test, what was seen.
verdicts() {
  local name=$1 port=$2 share=$3 suite full log rc
  mkdir -p "$out/$name"; : >"$out/$name.tsv"
  for suite in "${suites[@]}"; do
    log=$out/$name/$suite.log; rc=0
    case $suite in vfs.*) full=$suite ;; *) full=smb2.$suite ;; esac
    (cd "$out/$name" && timeout -k 5 "${SUITE_S:-150}" smbtorture -s /dev/null -p "$port" -U games%pw1 \
      --option=torture:user2=man%pw2 --fullname "//127.0.0.1/$share" "$full") >"$log" 2>&1 || rc=$?
    awk -v OFS='\t' -v s="$suite" '
      function name(x) { sub(/^[a-z]+: /, "", x); sub(/ \[$/, "", x); sub("^(smb2\\.)?" s "\\.", "", x); return x }
      /^success: / { print "PASS", s, name($0), "" }
      /^(failure|error): / { n = name($0); getline x; print "FAIL", s, n, substr(x, 1, 160) }
      /^skip: / { n = name($0); getline x; print "SKIP", s, n, substr(x, 1, 160) }' "$log" >"$w/$name.verdicts"
    # A suite that does not come to its end, or says nothing, is a failure by itself.
    if [ $rc = 124 ] || [ $rc -ge 128 ]; then printf 'FAIL\t%s\t(suite)\tended with status %d (124: out of time)\n' "$suite" $rc >>"$w/$name.verdicts"
    elif [ ! -s "$w/$name.verdicts" ]; then printf 'FAIL\t%s\t(suite)\tno verdict, status %d\n' "$suite" $rc >>"$w/$name.verdicts"; fi
    cat "$w/$name.verdicts" >>"$out/$name.tsv"
  done
  awk -F'\t' -v name="$name" '{ group = $2 ~ /^vfs\./ ? "vfs" : "smb2"; n[group, $1]++ }
    END { for (i = split("smb2 vfs", g, " "); i > 0; i--)
      printf "interop smb: %s: %s: %d passed, %d failed, %d skipped\n", name, g[i], n[g[i], "PASS"], n[g[i], "FAIL"], n[g[i], "SKIP"] }' "$out/$name.tsv"
}

truncate -s 2G "$w/disks/d0"
mkdir "$w/mnt"
sanbox zpool create -O mountpoint=none -O xattr=sa -O acltype=posix tank "$w/disks/d0"
sanbox zfs create -o mountpoint="$w/mnt" -o sharesmb=name=share tank/share
echo pw1 | sanbox smb passwd games
echo pw2 | sanbox smb passwd man
serve --mount --iscsi-port 0 --https-port 0 --metrics-port 0 --smb-port $((port + 1))
for _ in $(seq 300); do ! grep -q 'SMB is served' "$w/log" || break; sleep 0.1; done
grep -q 'SMB is served' "$w/log" || fail "SMB is not served"
for _ in $(seq 300); do ! mountpoint -q "$w/mnt" || break; sleep 0.1; done
mountpoint -q "$w/mnt" || fail "tank/share is not mounted"
chown games "$w/mnt"; chmod 777 "$w/mnt"

if [ -n "${BESIDE:-}" ]; then
  mkdir -p "$w/beside/dir"; chmod 755 "$w" "$w/beside"; chown games "$w/beside/dir"; chmod 777 "$w/beside/dir"
  for name in private lock state cache pid ncalrpc log; do mkdir -m 700 "$w/beside/$name"; done
  chmod 755 "$w/beside/lock"
  cp "$SANBOX_STATE/smb/users" "$w/beside/users"
  sed -e "s|$SANBOX_STATE/smb|$w/beside|" -e "s|/run/sanbox-locks|$w/beside/lock|" -e "s| glusterfs_fuse||" -e "s|^\tpath = .*|\tpath = $w/beside/dir|" -e "s|^\tsmb ports = .*|\tsmb ports = $((port + 2))|" \
    "$SANBOX_STATE/smb/smb.conf" >"$w/beside/smb.conf"
  # It ends its process group with itself.
  setsid smbd --foreground --no-process-group -s "$w/beside/smb.conf" </dev/null >"$w/beside/start" 2>&1 & beside=$!
  trap 'kill $beside 2>/dev/null || true; finish' EXIT
  for _ in $(seq 100); do ! smbclient -s /dev/null -U games%pw1 -p $((port + 2)) //127.0.0.1/share -c ls >/dev/null 2>&1 || break; sleep 0.1; done
  verdicts beside $((port + 2)) share & verdicts=$!
  verdicts ours $((port + 1)) share
  wait $verdicts
  kill $beside || { cat "$w/beside/start" "$w"/beside/log/*; fail "smbd ended"; }
else
  verdicts ours $((port + 1)) share
fi

bad=0
grep ^FAIL "$out/ours.tsv" | cut -f2,3 | tr '\t' ' ' | LC_ALL=C sort >"$w/failed" || true
grep -E '^(PASS|FAIL)' "$out/ours.tsv" | cut -f2,3 | tr '\t' ' ' | LC_ALL=C sort >"$w/ran"
grep -v '^#' "$here/smb.list" | cut -f1,2 | tr '\t' ' ' | tr -d '?' | LC_ALL=C sort >"$w/expected" || true
grep '^?' "$here/smb.list" | cut -f1,2 | tr '\t' ' ' | tr -d '?' | LC_ALL=C sort >"$w/sometimes" || true
LC_ALL=C comm -23 "$w/failed" "$w/expected" >"$w/new"
while read -r suite test; do
  echo "interop smb: $suite $test fails: $(grep -P "^FAIL\t\Q$suite\E\t\Q$test\E\t" "$out/ours.tsv" | cut -f4)" >&2
  bad=1
done <"$w/new"
LC_ALL=C comm -13 "$w/failed" "$w/expected" | LC_ALL=C comm -12 - "$w/ran" | LC_ALL=C comm -23 - "$w/sometimes" >"$w/mended"
while read -r suite test; do
  echo "interop smb: $suite $test passes: take it out of smb.list" >&2
  bad=1
done <"$w/mended"
if [ -n "${BESIDE:-}" ]; then
  grep ^PASS "$out/beside.tsv" | cut -f2,3 | tr '\t' ' ' | LC_ALL=C sort >"$w/passed"
  echo "interop smb: passed beside and failed by ours:"; LC_ALL=C comm -12 "$w/failed" "$w/passed"
fi
[ $bad = 0 ] || exit 1
