#!/bin/bash
# The console in Chromium: from the setup link to a destroyed snapshot, each screen in light, dark and at a phone's width, judged by axe.
# Pictures are kept in $PICTURES, if set.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
export CHROMIUM=${CHROMIUM:-$(command -v chromium || true)}
[ -n "$CHROMIUM" ] || skip "chromium is not installed"
command -v npm >/dev/null || skip "npm is not installed"
cp -r "$root/web" "$w/web"
(cd "$w/web" && npm ci --no-audit --no-fund) >"$w/npm" 2>&1 || { tail -5 "$w/npm" >&2; skip "npm ci failed"; }
truncate -s 128M "$w/disks/a" "$w/disks/b"
zpool create tank mirror "$w/disks/a" "$w/disks/b"
zfs create tank/fs
echo 'a passphrase' | zfs create -o encryption=on -o keyformat=passphrase tank/safe
zfs set 'org.example:note=<img src=x onerror=alert(1)>' tank/fs
truncate -s 128M "$w/disks/"{c,d,e,f,g}
truncate -s 96M "$w/disks/ext"
mkfs.ext4 -q "$w/disks/ext"
cat >"$SANBOX_STATE/sanbox.toml" <<'END'
[policies.hook.database]
before = ['/bin/true']
timeout_seconds = 5
[policies.hook.vm]
before = ['/bin/sh', '-c', 'echo no licence >&2; exit 3']
END
serve --https-port $((port + 1)) --iscsi-port $((port + 2)) --devices "$w/disks"
for _ in $(seq 100); do grep -q fingerprint "$w/log" && break; sleep 0.1; done
link=$(grep -o 'https://[^ ]*/setup#[0-9a-f]*' "$w/log") || fail "no setup link"
node "$w/web/tests/console.mjs" "$link" "${PICTURES:-}" || fail "the console"
stop
judge tank
