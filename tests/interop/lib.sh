# Shared by the scripts beside it: a scratch directory $w, a server that runs in it, and their end whatever happens.
# Set before: $SANBOX (the program). Not for running by itself.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd); root=$(cd "$here/../.." && pwd)
w=$(mktemp -d "${TMPDIR:-/tmp}/sanbox-interop.XXXXXX"); pid=; port=${PORT:-12051}; name=$(basename "$0" .sh)
export SANBOX_STATE=$w/state
mkdir "$w/disks" "$w/bin"
ask=$(dirname "$SANBOX")/sanbox-ask; [ -x "$ask" ] || ask=$SANBOX
for tool in sanbox zinject; do ln -s "$SANBOX" "$w/bin/$tool"; done
for tool in zpool zfs; do ln -s "$ask" "$w/bin/$tool"; done
PATH=$w/bin:$PATH

fail() { zpool status 2>/dev/null | head -20 >&2; echo "interop $name: $*" >&2; [ ! -e "$w/log" ] || tail -20 "$w/log" >&2; exit 1; }

# What cannot be run here: said aloud, and an error where everything is required.
skip() { echo "SKIPPED interop $name: $*" >&2; [ -z "${SANBOX_REQUIRE_ORACLES:-}" ] || exit 1; exit 77; }

# serve [OPTION...]: starts the server and waits until it is ready.
serve() {
  sanbox serve --listen 127.0.0.1 --nfs-port "$port" --no-portmap "$@" >>"$w/log" 2>&1 & pid=$!
  for _ in $(seq 300); do
    grep -q 'sanbox: ready' "$w/log" && return
    kill -0 $pid 2>/dev/null || break
    sleep 0.1
  done
  fail "the server did not start"
}

stop() { kill $pid; wait $pid || fail "the server did not end cleanly"; pid=; }

# compare DATASET: its files are those of $w/manifest (name, size, sha256), read without a client.
compare() {
  sanbox get -r "$1:/" "$w/back" || fail "reading $1"
  (cd "$w/back" && find . -type f -printf '%P %s\n' | while read -r file size; do
    echo "$file $size $(sha256sum <"$file" | cut -d' ' -f1)"; done) | LC_ALL=C sort >"$w/found"
  LC_ALL=C sort "$w/manifest" | diff - "$w/found" >"$w/differences" || { head "$w/differences"; fail "files differ from what was acknowledged"; }
}

# The pool, exported, before zdb: all space accounted for, every object readable.
judge() {
  zpool export "$1" || fail "export of $1"
  if ! command -v zdb >/dev/null; then echo "SKIPPED interop $name: zdb is not installed" >&2; return; fi
  zdb -e -p "$w/disks" -bcc "$1" >"$w/zdb" 2>&1 && grep -q 'No leaks' "$w/zdb" || { tail -20 "$w/zdb"; fail "zdb -bcc $1"; }
  zdb -e -p "$w/disks" -dddd "$1" >"$w/zdb" 2>&1 || { tail -20 "$w/zdb"; fail "zdb -dddd $1"; }
}

finish() {
  [ -z "$pid" ] || kill $pid 2>/dev/null || true
  [ -z "$pid" ] || wait $pid 2>/dev/null || true
  mountpoint -q "$w/mnt" 2>/dev/null && umount -l "$w/mnt"
  rm -rf "$w"
}
trap finish EXIT
trap 'exit 130' INT TERM
