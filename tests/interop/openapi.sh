#!/bin/bash
# The description of the API before tools that we did not write: openapi-spec-validator finds nothing to mend, and a client that openapi-python-client
# generates from it, as the server hands it out, does the work of a day (openapi.py).
set -euo pipefail
. "$(dirname "$0")/lib.sh"
environment=$root/target/conformance/openapi/bin
if [ ! -x "$environment/openapi-python-client" ]; then
  mkdir -p "$root/target/conformance"
  { python3 -m venv "$root/target/conformance/openapi" \
    && "$environment/pip" -q install 'openapi-spec-validator==0.9.0' 'openapi-python-client==0.29.1' >"$w/pip" 2>&1; } \
    || rm -rf "$root/target/conformance/openapi"
fi
[ -x "$environment/openapi-python-client" ] || skip "openapi-python-client cannot be installed"
truncate -s 256M "$w/disks/a"
zpool create -O mountpoint=none tank "$w/disks/a"
zfs create tank/fs
echo 'first' >"$w/note"; sanbox put "$w/note" tank/fs:/note
serve --nbd-port 0 --iscsi-port 0 --metrics-port 0 --https-port $((port + 1))
key=$(sanbox user key create day --role owner 2>/dev/null)
url=https://localhost:$((port + 1))
curl -sS --fail --cacert "$SANBOX_STATE/console-cert.pem" "$url/api/v1/openapi.json" >"$w/openapi.json"
"$environment/openapi-spec-validator" "$w/openapi.json" || fail "the description is not OpenAPI 3.1"
"$environment/openapi-python-client" generate --path "$w/openapi.json" --output-path "$w/sanbox_client" --meta none >"$w/generated" 2>&1 \
  || { cat "$w/generated" >&2; fail "no client can be generated"; }
PYTHONPATH=$w "$environment/python" "$here/openapi.py" "$url" "$SANBOX_STATE/console-cert.pem" "$key" || fail "the day of a generated client"
stop
judge tank
