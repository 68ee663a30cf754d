#!/bin/bash
# How long a newcomer's way takes from the first start of the appliance to a file in a share, in Chromium: password, pool, share by clicks, then a
# file that an NFS client reads. Fails where it is longer than GOAL_S, whose rest is for reading.
#   env SANBOX (the program), GOAL_S (120), PORT (12951), CHROMIUM; web/ with its packages installed (npm ci)
set -euo pipefail
. "$(dirname "$0")/../interop/lib.sh"
export CHROMIUM=${CHROMIUM:-$(command -v chromium || true)}
[ -n "$CHROMIUM" ] || skip "chromium is not installed"
[ -d "$root/web/node_modules/playwright-core" ] || skip "web/ has no packages: npm ci"
command -v nfs-cat >/dev/null || skip "libnfs's tools are not installed"
truncate -s 256M "$w/disks/"{a,b,c,d}
began=$(date +%s%N)
serve --https-port $((port + 1)) --iscsi-port 0 --devices "$w/disks"
for _ in $(seq 100); do grep -q fingerprint "$w/log" && break; sleep 0.1; done
link=$(grep -o 'https://[^ ]*/setup#[0-9a-f]*' "$w/log") || fail "no setup link"
node "$root/web/tests/first-share.mjs" "$link" || fail "the console"
path=$(zfs get -H -o value mountpoint tank/share)
echo 'the first file' >"$w/file"
sanbox put "$w/file" tank/share:/
# Root of a client is nobody there (root_squash), and the directory is root's: reading is what the share gives at once.
[ "$(nfs-cat "nfs://127.0.0.1$path/file?nfsport=$port&mountport=$port")" = 'the first file' ] || fail "the share does not give the file"
took=$((($(date +%s%N) - began) / 1000000))
echo "from the start to a file in the share: $((took / 1000)).$((took / 100 % 10)) s"
[ "$took" -le $((${GOAL_S:-120} * 1000)) ] || fail "longer than ${GOAL_S:-120} s"
stop
