#!/bin/bash
# Backup tools of the ZFS world, unchanged, on our zpool and zfs: each takes snapshots by its schedule, copies a tree with a volume to
# a second pool in full and then what changed, prunes both sides, and the copy is brought back. Files of source, copy and what came
# back are compared with what was written; zdb judges both pools.
#
#   env TOOLS     which of them (default: all): syncoid zfs-autobackup pyznap zrepl platformtest znapzend zstream
#       AUTOBACKUP, PYZNAP  the programs (default: PyPI's, in an environment under target/ that is made when missing)
#       ZREPL     the program (default: zrepl of PATH); ZREPL_PLATFORMTEST  its suite of platform tests, built of internal/platformtest/harness
#       ZNAPZEND  a directory with bin/znapzend and bin/znapzendzetup (default: those of PATH)
#       ZSTREAM   OpenZFS's zstream (default: /usr/sbin/zstream)
#
# syncoid needs pv, mbuffer and lzop to be there (tests/oracles/install admin); it, and nothing else, speaks to "another machine": an ssh
# that runs the command here. A tool that is not there is said so, and is an error where everything is required.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
tools=${TOOLS:-syncoid zfs-autobackup pyznap zrepl platformtest znapzend zstream}
environment=$root/target/conformance/backup/bin
if [ ! -x "$environment/zfs-autobackup" ] && [ -z "${AUTOBACKUP:-}${PYZNAP:-}" ]; then
  mkdir -p "$root/target/conformance"
  { python3 -m venv "$root/target/conformance/backup" && "$environment/pip" -q install 'zfs-autobackup==3.3' 'pyznap==1.6.0' >"$w/pip" 2>&1; } \
    || rm -rf "$root/target/conformance/backup"
fi
autobackup=${AUTOBACKUP:-$environment/zfs-autobackup} pyznap=${PYZNAP:-$environment/pyznap}
zrepl=${ZREPL:-$(command -v zrepl || true)} platformtest=${ZREPL_PLATFORMTEST:-} zstream=${ZSTREAM:-/usr/sbin/zstream}
znapzend=${ZNAPZEND:+$ZNAPZEND/bin}; [ -n "$znapzend" ] || znapzend=$(dirname "$(command -v znapzend || echo /nowhere/x)")

# make TOOL: a tree of its own, live/TOOL, with two file systems and a volume.
make() {
  top=live/$1; copy=store/$1; rm -rf "$w/tree"; mkdir -p "$w/tree/a" "$w/tree/b"; round=0
  zfs create -o recordsize=16k -o org.example:of="$1" "$top"
  zfs create -o compression=zstd "$top/a"; zfs create "$top/b"; zfs create -s -V 16M "$top/vol"
  change
}
# change: some files are added, changed, renamed and removed, here and in the tree.
change() {
  local part; round=$((round + 1))
  for part in a b; do
    head -c 400000 /dev/urandom >"$w/tree/$part/new$round"
    seq -f "$part $round %.0f" 20000 >"$w/tree/$part/text"
    mkdir -p "$w/tree/$part/dir$round/below"; echo "$round" >"$w/tree/$part/dir$round/below/small"
    [ $round -lt 3 ] || rm -rf "$w/tree/$part/new$((round - 2))" "$w/tree/$part/dir$((round - 2))"
    sanbox rm -r "$top/$part:/tree" 2>/dev/null || true
    sanbox put -r "$w/tree/$part" "$top/$part:/tree"
  done
}
# same DATASET: its tree is what was written last, and its volume that of the source.
same() {
  local part
  for part in a b; do
    rm -rf "$w/back"; sanbox get -r "$1/$part:/tree" "$w/back" || fail "$tool: reading $1/$part"
    diff -r "$w/tree/$part" "$w/back" >"$w/differences" || { head "$w/differences"; fail "$tool: $1/$part is not what was written"; }
  done
  [ "$(sanbox sums "$1/vol" | sed "s,^$1/vol,,")" = "$(sanbox sums "$top/vol" | sed "s,^$top/vol,,")" ] || fail "$tool: $1/vol differs"
}
snapshots() { zfs list -H -o name -t snapshot -r "$1" 2>/dev/null | grep -c "${2:-.}" || true; }
between() { [ "$1" -ge "$2" ] && [ "$1" -le "$3" ] || { zfs list -t snapshot; fail "$tool: $4: $1, not $2 to $3"; }; }
said() { "$@" >"$w/said" 2>&1 || { tail -60 "$w/said"; fail "$tool: '$*' has status $?"; }; }
missing() { echo "SKIPPED interop $name $tool: $*" >&2; [ -z "${SANBOX_REQUIRE_ORACLES:-}" ] || exit 1; left=$((left + 1)); }
until_true() { local n; for n in $(seq 600); do "$@" && return; sleep 0.2; done; return 1; }

mkdir "$w/shim"
cat >"$w/shim/ssh" <<'E2'
#!/bin/bash
# ssh to this machine: options are passed over, and the command is run by a shell.
while [ $# -gt 0 ]; do
  case $1 in
  -O) exit 0 ;;
  -[ceiFlopSIJLRWw]) shift 2 ;;
  -*) shift ;;
  *) break ;;
  esac
done
shift
exec sh -c "$*"
E2
chmod +x "$w/shim/ssh"

syncoid_run() { said env PATH="$w/shim:$PATH" /usr/sbin/syncoid -r --debug --no-privilege-elevation --compress=lzo "$@"; sleep 1.1; }
with_syncoid() {
  for helper in syncoid pv mbuffer lzop; do command -v $helper >/dev/null || { missing "$helper is not installed (tests/oracles/install admin)"; return; }; done
  syncoid_run "$top" "root@here:$copy"
  grep -q 'lzop' "$w/said" && grep -q 'mbuffer' "$w/said" && grep -q 'pv ' "$w/said" || { grep DEBUG "$w/said"; fail "syncoid found no pv, mbuffer or lzop"; }
  change; syncoid_run "$top" "root@here:$copy"
  grep -q "Sending incremental $top/a@" "$w/said" || { cat "$w/said"; fail "syncoid sends all again"; }
  same "$copy"; between "$(snapshots "$copy" syncoid_)" 4 8 "snapshots of syncoid at the copy"
  # A send that breaks off is resumed.
  change; zfs snapshot -r "$top@cut"
  (zfs send -I "$(zfs list -H -o name -t snapshot -s creation "$copy/a" | tail -1 | sed 's/.*@/@/')" "$top/a@cut" | head -c 200000 | zfs receive -s "$copy/a") >/dev/null 2>&1 || true
  [ "$(zfs get -Hpo value receive_resume_token "$copy/a")" != - ] || fail "nothing is left to resume"
  syncoid_run "$top" "root@here:$copy"; grep -qi 'resum' "$w/said" || { cat "$w/said"; fail "syncoid did not resume"; }
  same "$copy"
  syncoid_run "root@here:$copy" live/restored; same live/restored
  # Locally and without a snapshot of its own, by a bookmark, raw and compressed.
  zfs destroy -r live/restored; change; zfs snapshot -r "$top@own"
  syncoid_run --no-sync-snap --create-bookmark --sendoptions="L c e" "$top" "$copy"; same "$copy"
  [ "$(zfs list -H -o name -t bookmark -r "$top" | wc -l)" -ge 4 ] || fail "syncoid made no bookmarks"
}

autobackup_run() { said "$autobackup" --verbose --debug "$@"; sleep 1.1; }
with_zfs-autobackup() {
  [ -x "$autobackup" ] || { missing "zfs-autobackup could not be had from PyPI; give AUTOBACKUP"; return; }
  zfs set autobackup:nightly=true "$top"; zfs create "$copy"
  for _ in 1 2 3 4; do
    autobackup_run nightly "$copy" --strip-path 1 --clear-mountpoint --keep-source=2 --keep-target=3 --allow-empty --zfs-compressed --buffer 1M
    same "$copy/$tool"; change
  done
  for part in "" /a /b /vol; do
    between "$(snapshots "$top$part" "$top$part@nightly-")" 2 2 "snapshots kept of $top$part"
    between "$(snapshots "$copy/$tool$part" "$copy/$tool$part@nightly-")" 3 3 "snapshots kept of the copy of $top$part"
  done
  [ -n "$(zfs holds -H "$(zfs list -H -o name -t snapshot -s creation "$top/a" | tail -1)")" ] || fail "zfs-autobackup holds nothing"
  # What was changed at the target is rolled back, what is missing at the source destroyed by its schedule.
  sanbox put "$w/tree/a/text" "$copy/$tool/a:/intruder"
  autobackup_run nightly "$copy" --strip-path 1 --keep-source=2 --keep-target=3 --rollback --allow-empty; same "$copy/$tool"
  zfs set autobackup:back=true "$copy/$tool"; zfs create live/restored
  autobackup_run back live/restored --strip-path 2 --clear-mountpoint --exclude-received --no-snapshot --other-snapshots --no-holds --allow-empty
  same live/restored/"$tool"
}

pyznap_run() { said "$pyznap" --config "$w/pyznap.conf" "$@"; sleep 1.1; grep -E 'ERROR|Traceback' "$w/said" && { cat "$w/said"; fail "pyznap $*"; } || true; }
with_pyznap() {
  [ -x "$pyznap" ] || { missing "pyznap could not be had from PyPI; give PYZNAP"; return; }
  zfs create -p "$copy/all"
  printf '[%s]\nfrequent = 1\nhourly = 1\ndaily = 1\nsnap = yes\nclean = yes\ndest = %s/all\n[%s/all]\nfrequent = 1\nhourly = 1\ndaily = 1\nclean = yes\n' "$top" "$copy" "$copy" >"$w/pyznap.conf"
  # Snapshots that it took the day before yesterday, as far as it knows: it goes by their names.
  for kind in daily hourly frequent; do zfs snapshot -r "$top@pyznap_$(date -d '-2 days' +%F)_00:00:00_$kind"; done
  pyznap_run snap --take; between "$(snapshots "$top/a" pyznap_)" 6 6 "snapshots of pyznap"
  pyznap_run send; same "$copy/all"
  change; zfs snapshot -r "$top@pyznap_$(date +%F_%T)_frequent"; pyznap_run send; same "$copy/all"
  pyznap_run snap --clean; between "$(snapshots "$top/a" pyznap_)" 3 3 "snapshots that pyznap kept"
  between "$(snapshots "$copy/all/a" pyznap_)" 3 3 "snapshots that pyznap kept of the copy"
  zfs create -p live/restored/all
  pyznap_run send -s "$copy/all" -d live/restored/all; same live/restored/all
}

zrepl_config() {
  cat >"$w/zrepl.yml" <<E2
global:
  logging: [{type: stdout, level: debug, format: human}]
  control: {sockpath: $w/zrepl/control}
  serve: {stdinserver: {sockdir: $w/zrepl/stdin}}
jobs:
- {type: sink, name: sink, root_fs: $copy, serve: {type: local, listener_name: sink}, recv: {placeholder: {encryption: inherit}}}
- type: push
  name: push
  connect: {type: local, listener_name: sink, client_identity: here}
  filesystems: {"$top<": true}
  send: {compressed: true, large_blocks: true, embedded_data: true}
  snapshotting: {type: periodic, prefix: zrepl_, interval: 4s}
  pruning:
    keep_sender: [{type: not_replicated}, {type: last_n, count: 2}]
    keep_receiver: [{type: last_n, count: 3}]
- {type: source, name: source, serve: {type: local, listener_name: source}, filesystems: {"$copy/here/$top<": true}, snapshotting: {type: manual}}
- type: pull
  name: pull
  connect: {type: local, listener_name: source, client_identity: back}
  root_fs: live/restored
  interval: manual
  recv: {placeholder: {encryption: inherit}}
  pruning: {keep_sender: [{type: regex, regex: ".*"}], keep_receiver: [{type: regex, regex: ".*"}]}
E2
}
zrepl_has() { [ "$(snapshots "$copy/here/$top/vol" zrepl_)" -ge "$1" ]; }
zrepl_went_round() { [ "$(zfs list -H -o name -t snapshot -s creation "$copy/here/$top/$1" 2>/dev/null | tail -1 | sed 's/.*@//')" \> "$2" ]; }
with_zrepl() {
  [ -x "$zrepl" ] || { missing "give ZREPL"; return; }
  zfs create "$copy"; zfs create live/restored; mkdir -m 700 "$w/zrepl" "$w/zrepl/stdin"; zrepl_config
  said "$zrepl" --config "$w/zrepl.yml" configcheck
  "$zrepl" --config "$w/zrepl.yml" daemon >"$w/zrepl.log" 2>&1 & daemon=$!
  until_true zrepl_has 1 || { tail -40 "$w/zrepl.log"; fail "zrepl copied nothing"; }
  for _ in 1 2 3; do
    change; now=zrepl_$(date -u +%Y%m%d_%H%M%S)_000
    until_true zrepl_went_round vol "$now" && until_true zrepl_went_round a "$now" && until_true zrepl_went_round b "$now" \
      || { grep -iE 'error|warn' "$w/zrepl.log" | tail -20; tail -20 "$w/zrepl.log"; fail "zrepl did not go on"; }
  done
  "$zrepl" --config "$w/zrepl.yml" status --mode raw >"$w/status" || fail "zrepl status"
  kill $daemon; wait $daemon || true
  same "$copy/here/$top"
  between "$(snapshots "$top/a" zrepl_)" 1 4 "snapshots that zrepl kept"; between "$(snapshots "$copy/here/$top/a" zrepl_)" 1 5 "snapshots that zrepl kept of the copy"
  zfs list -H -o name -t bookmark -r "$top" | grep -q '#zrepl_CURSOR' || fail "zrepl set no cursor"
  "$zrepl" --config "$w/zrepl.yml" daemon >"$w/zrepl.log" 2>&1 & daemon=$!
  until_true test -S "$w/zrepl/control"; said "$zrepl" --config "$w/zrepl.yml" signal wakeup pull
  until_true eval '[ "$(snapshots "live/restored/$copy/here/$top/vol")" -ge 1 ]' \
    || { tail -40 "$w/zrepl.log"; fail "zrepl brought nothing back"; }
  kill $daemon; wait $daemon || true
  same "live/restored/$copy/here/$top"
  # What its jobs were in the middle of when it was ended is canceled.
  grep -E '\[(ERRO|WARN)\]' "$w/zrepl.log" | grep -v 'context canceled' && fail "zrepl warns" || true
}

# zrepl's own tests of the zfs command below it: a pool is made and exported for each.
with_platformtest() {
  [ -x "$platformtest" ] || { missing "give ZREPL_PLATFORMTEST"; return; }
  status=0; "$platformtest" -poolname zreplplatformtest -imagepath "$w/platform.img" -mountpoint "$w/platform" -zfs.zpool-export-timeout 20s >"$w/platform.log" 2>&1 || status=$?
  [ $status = 0 ] || { grep -aE 'FAIL|PANIC|panic' "$w/platform.log" | tail -30; cp "$w/platform.log" "${OUT:-$w}/" 2>/dev/null; fail "zrepl's platform tests have status $status"; }
  echo "interop backup: zrepl's platform tests: $(grep -ac 'TEST CASE' "$w/platform.log") ran"
}

znap() { local program=$1; shift; said perl -I"$w/perl" "$znapzend/$program" "$@"; }
with_znapzend() {
  [ -x "$znapzend/znapzend" ] || { missing "give ZNAPZEND"; return; }
  # Debian has no package of the role by which a log is opened anew; nothing is logged to a file here.
  mkdir -p "$w/perl/Mojo/Log/Role"
  printf 'package Mojo::Log::Role::Clearable;\nuse Role::Tiny;\nsub clear_handle { }\n1;\n' >"$w/perl/Mojo/Log/Role/Clearable.pm"
  zfs create "$copy"
  znap znapzendzetup create --recursive --donotask --tsformat=%Y-%m-%d-%H%M%S SRC '3s=>1s' "$top" DST:a '1h=>1s' "$copy/all"
  for _ in 1 2 3 4; do znap znapzend --runonce="$top" --autoCreation --features=compressed,recvu,resume --debug; same "$copy/all"; change; sleep 2; done
  grep -qiE 'error|cannot|warn' "$w/said" && { cat "$w/said"; fail "znapzend warns"; } || true
  between "$(snapshots "$top/a" "@20")" 1 3 "snapshots that znapzend kept"; between "$(snapshots "$copy/all/a" "@20")" 4 4 "snapshots of znapzend's copy"
  znap znapzendzetup list "$top"; grep -q "$copy/all" "$w/said" || { cat "$w/said"; fail "znapzend forgot its plan"; }
  znap znapzend --runonce="$top" --features=compressed,recvu,resume --debug
  zfs send -R "$(zfs list -H -o name -t snapshot -s creation "$copy/all" | tail -1)" | zfs receive -u live/restored || fail "znapzend's copy is not sent back"
  same live/restored
}

# Streams of all kinds: OpenZFS's zstream reads ours with no fault, and says what ours says.
with_zstream() {
  [ -x "$zstream" ] || { missing "zstream is not installed"; return; }
  zfs snapshot -r "$top@1"; change; zfs snapshot -r "$top@2"
  for how in "$top/a@1" "-c $top/a@1" "-L -e -c $top/a@2" "-i @1 $top/a@2" "-I @1 $top/b@2" "-p $top/a@2" "-R $top@2" "-R -I @1 $top@2" "-w $top/b@2" "$top/vol@2" "-c -i @1 $top/vol@2"; do
    zfs send $how >"$w/stream" || fail "zstream: zfs send $how"
    "$zstream" dump -v "$w/stream" >"$w/theirs" 2>&1 || { tail -5 "$w/theirs"; fail "zstream dump refuses our $how"; }
    sanbox zstream dump -v "$w/stream" >"$w/ours" 2>&1 || fail "our zstream dump refuses $how"
    cmp "$w/theirs" "$w/ours" || fail "zstream dump says something else of $how"
    "$zstream" redup "$w/stream" >"$w/again" 2>"$w/said" || { cat "$w/said"; fail "zstream redup refuses our $how"; }
    sanbox zstream redup "$w/stream" | cmp - "$w/again" || fail "our zstream redup makes something else of $how"
  done
  zfs send "$top/a@2" | "$zstream" recompress -l 3 zstd | zfs receive -u live/restored || fail "what zstream recompressed is not received"
  [ "$(sanbox sums live/restored@2 | sed 's,^live/restored,,')" = "$(sanbox sums "$top/a@2" | sed "s,^$top/a,,")" ] || fail "what zstream recompressed differs"
}

mkdir "$w/disks/live" "$w/disks/store"; truncate -s 2G "$w/disks/live/d0"; truncate -s 2G "$w/disks/store/d0"
# zrepl's platform tests write files through a mount.
mounts=--mount; [ "$(id -u)" = 0 ] && [ -e /dev/fuse ] || { mounts=; tools=${tools/platformtest/}; }
serve --nbd-port 0 $mounts
zpool create -O mountpoint=none live "$w/disks/live/d0"; zpool create -O mountpoint=none store "$w/disks/store/d0"
left=0 ran=0
for tool in $tools; do
  before=$left
  make "$tool"; "with_$tool"
  zfs list -H -o name live/restored >/dev/null 2>&1 && zfs destroy -R live/restored
  [ $left != $before ] || { ran=$((ran + 1)); echo "interop backup: $tool does its work"; }
done
for pool in live store; do
  zpool scrub -w $pool; zpool status $pool | grep -q 'errors: No known data errors' || fail "scrub of $pool"
  zpool export $pool
  zdb -e -p "$w/disks/$pool" -bcc $pool >"$w/zdb" 2>&1 && grep -q 'No leaks' "$w/zdb" || { tail -20 "$w/zdb"; fail "zdb -bcc $pool"; }
done
stop
echo "interop backup: $ran tools, $left not here"
[ "$ran" -gt 0 ] || skip "none of the tools is here"
