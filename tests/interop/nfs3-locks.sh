#!/bin/bash
# Locks of NFSv3 (NLM, NSM) by the Linux client, two of it in network namespaces of one throw-away QEMU machine that runs the server,
# too: against each other, a client of NFSv4.2 and processes on the FUSE mount (nfs3-locks.py): conflicts, waits that are granted by
# call-back, interrupted waits, killed processes, a client that restarts (sm-notify), and the server killed with SIGKILL while locks are
# held: they are reclaimed, and no addition under locks is lost.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
realvm=${REALVM:-$root/tests/realvm/realvm}
mkdir -p "$w/share"
cp "$SANBOX" "$w/share/sanbox"; cp "$here/nfs3-locks.py" "$w/share/locks.py"
cat >"$w/guest" <<'G'
set -eu
modprobe -a nfsv3 nfsv4 fuse veth bridge
ip link set lo up
ip link add br0 type bridge; ip addr add 10.9.0.1/24 dev br0; ip link set br0 up
for n in 2 3; do
  ip netns add c$n
  ip link add v$n type veth peer name e0 netns c$n
  ip link set v$n master br0 up
  ip -n c$n addr add 10.9.0.$n/24 dev e0; ip -n c$n link set e0 up; ip -n c$n link set lo up
done
exec python3 -u /share/locks.py
G
"$realvm" run "$w/guest" --no-zfs --timeout 900 --mem 2048 --share "$w/share" >"$w/out" 2>&1 ||
  { cat "$w/out" >&2; fail "the clients' day ended badly"; }
grep -q LOCKS-OK "$w/out" || { cat "$w/out" >&2; fail "the clients' day did not end"; }
grep -E '^(ok|locks)' "$w/out"
