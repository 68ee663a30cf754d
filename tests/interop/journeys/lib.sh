# Shared by the journeys beside it: a server with NFS and iSCSI, clients of both that are not ours, and comparisons.
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
iscsi=$((port + 1))
for tool in stmfadm sbdadm itadm; do ln -s "$SANBOX" "$w/bin/$tool"; done
for tool in nfs-cp nfs-cat nfs-ls iscsi-ls iscsi-inq qemu-img; do
  command -v $tool >/dev/null || skip "$tool is not installed (libnfs-utils, libiscsi-bin, qemu-utils and qemu-block-extra)"
done
qemu-img info iscsi://127.0.0.1:1/iqn.2026-11.test:none/0 2>&1 | grep -q 'Unknown' && skip "this QEMU has no iSCSI driver (qemu-block-extra)"

# disks SIZE NAME...: empty disks under the names that the pools know them by.
disks() { local size=$1; shift; for disk in "$@"; do truncate -s "$size" "$w/disks/$disk"; done; }
# at NAME...: the same as paths.
at() { printf "$w/disks/%s " "$@"; }
start() { serve --iscsi-port "$iscsi" --nbd-port 0 --metrics-port 0 "$@"; }
share() { echo "nfs://127.0.0.1$1?nfsport=$port&mountport=$port&version=3"; }
# expect WHAT FOUND WANTED
expect() { [ "$2" = "$3" ] || fail "$1: '$2', not '$3'"; }
# contains WHAT TEXT WORDS
contains() { case $2 in *"$3"*) ;; *) fail "$1: no '$3' in: $2" ;; esac; }
# refused WORDS COMMAND...: the command fails, and says so.
refused() { local words=$1 said; shift; if said=$("$@" 2>&1); then fail "'$*' was not refused"; fi; contains "'$*'" "$said" "$words"; }
# data NAME BYTES: a file of bytes that do not compress, the same every time.
data() { openssl enc -aes-128-ctr -nosalt -K 00 -iv "$(printf %s "$1" | sha256sum | head -c 32)" </dev/zero 2>/dev/null | head -c "$2" >"$w/$1" || true; }
put() { nfs-cp "$w/$1" "$(share "$2")" >/dev/null || fail "copying $1 to $2"; }
same() { nfs-cat "$(share "$2")" | cmp - "$w/$1" || fail "$2 is not $1"; }
