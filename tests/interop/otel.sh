#!/bin/bash
# Metrics and spans by OTLP, read by the classes that OpenTelemetry publishes (PyPI's opentelemetry-proto, made an environment under target/ when
# missing): what make test reads by field numbers is what other people's collectors read.
#   env OTEL   a python that has opentelemetry-proto (default: an environment of ours)
set -euo pipefail
. "$(dirname "$0")/lib.sh"
python=${OTEL:-$root/target/conformance/otel/bin/python3}
if [ ! -x "$python" ] && [ -z "${OTEL:-}" ]; then
  mkdir -p "$root/target/conformance"
  { python3 -m venv "$root/target/conformance/otel" && "$root/target/conformance/otel/bin/pip" -q install opentelemetry-proto >"$w/pip" 2>&1; } \
    || { rm -rf "$root/target/conformance/otel"; skip "opentelemetry-proto could not be had from PyPI; give OTEL"; }
fi
cd "$w"; echo 200 >status; mkdir -p "$SANBOX_STATE"
printf "[otel]\nendpoint = 'http://127.0.0.1:%d'\ninterval_seconds = 1\n" $((port + 1)) >"$SANBOX_STATE/sanbox.toml"
"$python" "$here/otel.py" $((port + 1)) official >told 2>&1 & collector=$!
trap 'kill $collector 2>/dev/null || true; finish' EXIT
export OTEL_EXPORTER_OTLP_HEADERS=api-key=key%3D1
truncate -s 128M disks/d0
serve --nbd-port 0 --iscsi-port 0
zpool create tank "$w/disks/d0"; zfs create tank/fs; zfs destroy tank/none 2>/dev/null || true
want() {
  for _ in $(seq 200); do if grep -qE "$1" told; then return; fi; sleep 0.1; done
  head -c 4000 told >&2; fail "the collector was not told of '$1'"
}
want '^resource sanbox$'
want '^span \[zfs create\] internal .* parent=- error=0  process.command_line=zfs create tank/fs process.exit.code=0'
want '^span \[zfs destroy\] internal .* error=2 exit code 1 '
want '^metric zfs_pool_size_bytes\{pool=tank\} gauge [0-9]+$'
want '^metric sanbox_arc_whatif_reads_total\{.*\} sum [0-9]+$'
want '^metric zfs_pool_deduplication_ratio\{pool=tank\} gauge [0-9.]+$'
! grep -q Error told || { tail -20 told >&2; fail "the collector cannot read what it is sent"; }
stop
echo "interop otel: $(grep '^metric' told | sed 's/{.*//' | sort -u | wc -l) metrics and $(grep -c '^span' told) spans read by OpenTelemetry's classes"
