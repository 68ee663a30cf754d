#!/bin/bash
# Other people's tools, unchanged, on our zpool and zfs: zfs-auto-snapshot and sanoid (Debian) take, keep, prune and report
# snapshots, and syncoid replicates them; Ansible's modules for pools and datasets (PyPI's ansible, made an environment under target/
# when missing) make what a playbook says, and change nothing the second time.
#   env ANSIBLE   a directory with ansible-playbook (default: an environment of ours)
set -euo pipefail
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "needs root (sanoid and zfs-auto-snapshot want it)"
faketime=$(ls /usr/lib/*/faketime/libfaketimeMT.so.1 2>/dev/null) || skip "faketime is not installed (tests/oracles/install admin)"
for tool in sanoid syncoid zfs-auto-snapshot python3; do command -v $tool >/dev/null || skip "$tool is not installed (tests/oracles/install admin)"; done
ansible=${ANSIBLE:-$root/target/conformance/ansible/bin}
if [ ! -x "$ansible/ansible-playbook" ] && [ -z "${ANSIBLE:-}" ]; then
  mkdir -p "$root/target/conformance"
  { python3 -m venv "$root/target/conformance/ansible" && "$ansible/pip" -q install 'ansible<13' >"$w/pip" 2>&1; } \
    || { rm -rf "$root/target/conformance/ansible"; skip "ansible could not be had from PyPI; give ANSIBLE"; }
fi
lines() { zfs list -H -o name -t snapshot | grep -cE "$1" || true; }
expect() { [ "$1" = "$2" ] || { zfs list -t snapshot; fail "$3: $1, not $2"; }; }
fresh() { zfs create -p tank/a/b; zfs create tank/c; zfs create tank/a/with-dash_and.dot; zfs create -V 10M tank/vol; }

truncate -s 512M "$w/disks/d0"
serve --nbd-port 0
zpool create -O mountpoint=none tank "$w/disks/d0"
fresh

# zfs-auto-snapshot names snapshots by the minute, and orders them by second.
mkdir "$w/shim"
cat >"$w/shim/date" <<E2
#!/bin/bash
for word in "\$@"; do case \$word in +%F-%H%M) exec /bin/date -d "@\$(cat "$w/clock")" "\$@" ;; esac; done
exec /bin/date "\$@"
E2
chmod +x "$w/shim/date"
zfs set com.sun:auto-snapshot=false tank/c
for minute in 1 2 3 4; do
  echo $((1700000000 + 60 * minute)) >"$w/clock"
  PATH=$w/shim:$PATH zfs-auto-snapshot --verbose --label=frequent --keep=2 // >"$w/auto" 2>&1 || { cat "$w/auto"; fail "zfs-auto-snapshot"; }
  grep -q ', 0 warnings' "$w/auto" || { cat "$w/auto"; fail "zfs-auto-snapshot warns"; }
  sleep 1.1
done
grep -q '3 created, 3 destroyed, 0 warnings' "$w/auto" || { cat "$w/auto"; fail "zfs-auto-snapshot counts otherwise"; }
for dataset in tank tank/a tank/a/b tank/a/with-dash_and.dot tank/vol; do expect "$(lines "^$dataset@zfs-auto-snap_frequent")" 2 "snapshots kept of $dataset"; done
expect "$(lines '@.*-2216$|@.*-2217$')" 10 "newest snapshots"
expect "$(lines '^tank/c@')" 0 "snapshots of what is excluded"
zfs-auto-snapshot --quiet --destroy-only --label=frequent --keep=1 // || fail "zfs-auto-snapshot --destroy-only"
expect "$(lines zfs-auto-snap)" 0 "snapshots after --destroy-only"
echo "interop admin: zfs-auto-snapshot takes and keeps what it is told"

# sanoid judges by creation times: the first snapshots are taken by a server of last month.
mkdir "$w/conf"
cat >"$w/conf/sanoid.conf" <<E2
[tank/a]
  use_template = kept
  recursive = yes
[tank/c]
  use_template = kept
  recursive = zfs
[tank/vol]
  use_template = kept
[template_kept]
  frequently = 0
  hourly = 3
  daily = 2
  monthly = 0
  yearly = 0
  autosnap = yes
  autoprune = yes
E2
run_sanoid() { sanoid --configdir="$w/conf" --cache-dir="$w/cache" --run-dir="$w/run" --force-update "$@" >"$w/sanoid" 2>&1; }
stop
for days in 40 30 20; do
  LD_PRELOAD=$faketime FAKETIME="-${days}d" sanbox serve --listen 127.0.0.1 --nfs-port "$port" --no-portmap --nbd-port 0 >>"$w/log" 2>&1 & pid=$!
  for _ in $(seq 100); do zfs list tank >/dev/null 2>&1 && [ -S "$SANBOX_STATE/control.sock" ] && break; sleep 0.1; done
  for dataset in tank/a tank/a/b tank/c tank/vol; do
    for kind in daily hourly; do zfs snapshot "$dataset@autosnap_$(date -d "-$days days" +%F)_00:00:00_$kind"; done
  done
  stop
done
serve --nbd-port 0
expect "$(lines autosnap_)" 24 "old snapshots"
old=$(zfs get -Hpo value creation "tank/a@autosnap_$(date -d '-40 days' +%F)_00:00:00_daily")
[ "$old" -lt $(($(date +%s) - 39 * 86400)) ] || fail "the server of last month lives today"
run_sanoid --take-snapshots --verbose || { cat "$w/sanoid"; fail "sanoid --take-snapshots"; }
expect "$(lines "autosnap_$(date +%F).*_(hourly|daily)$")" 10 "snapshots of today"
run_sanoid --monitor-snapshots || { cat "$w/sanoid"; fail "sanoid --monitor-snapshots"; }
grep -q '^OK: all monitored datasets' "$w/sanoid" || { cat "$w/sanoid"; fail "sanoid finds the snapshots stale"; }
run_sanoid --monitor-health && grep -q '^OK ZPOOL tank : ONLINE' "$w/sanoid" || { cat "$w/sanoid"; fail "sanoid --monitor-health"; }
run_sanoid --monitor-capacity && grep -q '^OK ZPOOL tank : [0-9]*%' "$w/sanoid" || { cat "$w/sanoid"; fail "sanoid --monitor-capacity"; }
run_sanoid --prune-snapshots --verbose || { cat "$w/sanoid"; fail "sanoid --prune-snapshots"; }
# Of three old dailies beside one of today one is too many, and of hourlies likewise; as many stay as the policy says.
for dataset in tank/a tank/a/b tank/c tank/vol; do
  expect "$(lines "^$dataset@autosnap_.*_daily$")" 2 "dailies of $dataset"
  expect "$(lines "^$dataset@autosnap_.*_hourly$")" 3 "hourlies of $dataset"
done
run_sanoid --cron --verbose || { cat "$w/sanoid"; fail "sanoid --cron"; }
echo "interop admin: sanoid takes, prunes and reports"

# syncoid copies a tree, and then what has changed, with the daemon; the copy reads the same.
zfs create tank/c/copies
for content in first second; do
  head -c 300000 /dev/urandom >"$w/$content"
  sanbox put "$w/$content" "tank/a/b:/$content"
  sleep 1.1 # its snapshots are named by the second
  syncoid -r --no-privilege-elevation tank/a tank/c/copies/a >"$w/syncoid" 2>&1 || { cat "$w/syncoid"; fail "syncoid, $content"; }
done
grep -q 'Sending incremental tank/a/b@' "$w/syncoid" || { cat "$w/syncoid"; fail "syncoid sends all again"; }
for content in first second; do
  sanbox cat "tank/c/copies/a/b:/$content" | cmp - "$w/$content" || fail "syncoid's copy of $content differs"
done
expect "$(zfs list -H -o name -r tank/c/copies/a | wc -l)" "$(zfs list -H -o name -r tank/a | wc -l)" "datasets of syncoid's copy"
echo "interop admin: syncoid copies a tree, and what has changed"

truncate -s 256M "$w/disks/a0" "$w/disks/a1"
for _ in 1 2; do
  ANSIBLE_LOCALHOST_WARNING=false ANSIBLE_INVENTORY_UNPARSED_WARNING=false ANSIBLE_HOME=$w/ansible \
    "$ansible/ansible-playbook" -e "disks=$w/disks" "$here/admin.yml" >"$w/play" 2>&1 || { tail -60 "$w/play"; fail "Ansible"; }
done
grep -q 'failed=0 .*ignored=0' "$w/play" || { tail -5 "$w/play"; fail "Ansible ignored something"; }
echo "interop admin: Ansible's zpool, zfs, zfs_facts, zpool_facts and zfs_delegate_admin do what the playbook says"
stop
judge tank
