#!/bin/bash
# Replication between two daemons of this machine by the protocol of appliances: the rounds that find nothing to send, and a push beside what
# sending and receiving give by themselves.
#   tests/bench/replication.sh [DATASETS [MIB [ROUNDS]]]        (default 1000 datasets, a file of 1024 MiB, 5 rounds)
# env: SANBOX (default target/release/sanbox)   WORK a directory on a disk (default /var/tmp)
#      CORES="SOURCE TARGET" the cores that each side has for itself (default "0 1", as two machines have; "" for none)
# Needs root. Prints: what, seconds or MB/s (of stream), CPU seconds of both daemons. `idle` is a daemon with the job for 30 s between rounds.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); datasets=${1:-1000}; mib=${2:-1024}; rounds=${3:-5}
sanbox=$(readlink -e "${SANBOX:-$here/../../target/release/sanbox}")
w=$(mktemp -d "${WORK:-/var/tmp}/sanbox-bench.XXXXXX"); daemons=()
finish() { for one in "${daemons[@]}"; do kill "$one" 2>/dev/null && wait "$one" 2>/dev/null || true; done; rm -rf "$w"; }
trap finish EXIT
mkdir -p "$w/bin"; for tool in sanbox zpool zfs; do ln -s "$sanbox" "$w/bin/$tool"; done
export PATH=$w/bin:$PATH
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')

# Both sides on the same cores would share what each has on a machine of its own, and a push takes what both take.
read -r source_cores target_cores <<<"${CORES-0 1}" || true
pinned() { # SIDE: sets pin
  local cores=$source_cores; [ "$1" = source ] || cores=$target_cores
  pin=(); [ -z "$cores" ] || pin=(taskset -c "$cores")
}
# at SIDE COMMAND...: on the appliance of that side.
at() { local side=$1 pin; shift; pinned "$side"; SANBOX_STATE=$w/$side/state "${pin[@]}" "$@"; }
serve() { # SIDE PORT
  mkdir -p "$w/$1"
  local pin; pinned "$1"
  SANBOX_STATE=$w/$1/state ZFS_HOSTID=0000be0$(( ${#daemons[@]} + 1 )) \
    "${pin[@]}" sanbox serve --listen 127.0.0.1 --nfs-port 0 --https-port 0 --no-portmap --replication-port "$2" >"$w/$1/log" 2>&1 &
  daemons+=($!)
  for _ in $(seq 300); do grep -q 'sanbox: ready' "$w/$1/log" && return; sleep 0.1; done; cat "$w/$1/log" >&2; exit 1
}
ticks() { local sum=0 one; for one in "${daemons[@]}"; do sum=$((sum + $(sed 's/.*) //' "/proc/$one/stat" | awk '{print $12 + $13}'))); done; echo $sum; }
timed() { # WHAT BYTES COMMAND...
  local what=$1 bytes=$2 before began took; shift 2; before=$(ticks); began=$(date +%s.%N)
  "$@" >/dev/null
  took=$(awk "BEGIN {print $(date +%s.%N) - $began}")
  awk -v n="$what" -v b="$bytes" -v t="$took" -v d="$(($(ticks) - before))" \
    'BEGIN { printf "%s,%s,%.2f\n", n, (b > 0 ? sprintf("%.1f MB/s", b / t / 1e6) : sprintf("%.2f s", t)), d / 100 }'
}

serve source 0; serve target "$port"
truncate -s 12G "$w/a" "$w/b"
at source zpool create -f -O mountpoint=none tank "$w/a"; at target zpool create -f -O mountpoint=none back "$w/b"
code=$(at target sanbox peer invite box --datasets back --push --failover | awk '/sanbox peer add/ {print $NF}')
at source sanbox peer add vault "127.0.0.1:$port" "$code" >/dev/null
at source zfs create tank/many
for n in $(seq "$datasets"); do echo "tank/many/d$n"; done | SANBOX_STATE=$w/source/state xargs -n 1 -P 4 zfs create
at source zfs snapshot -r tank/many@s1
at source sanbox replication create many --from tank/many --to peer://vault/back/many -r --every 1h
timed "first of $datasets" 0 at source sanbox replication run many
for _ in 1 2 3; do timed "nothing new in $datasets" 0 at source sanbox replication run many; done
before=$(ticks); sleep 30; echo "idle,30.00 s,$(awk "BEGIN {print ($(ticks) - $before) / 100}")"

head -c $((mib << 20)) /dev/urandom >"$w/file"
at source zfs create tank/big; at source sanbox put "$w/file" tank/big:/f; at source zfs snapshot tank/big@s1
bytes=$((mib << 20))
at source zfs send -Lec tank/big@s1 >"$w/stream"
receive() { at target zfs receive "back/alone$1" <"$w/stream"; }
# What TCP gives by itself, from one process to another.
tcp() {
  python3 - "$w/stream" <<'P'
import os, socket, sys
listening = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    with open(sys.argv[1], "rb") as stream:
        socket.create_connection(listening.getsockname()).sendfile(stream)
    os._exit(0)
come, into = listening.accept()[0], bytearray(1 << 20)
while come.recv_into(into):
    pass
P
}
# By turns, since other work of the machine comes and goes; the first round takes memory for the first time, and does not count.
for round in $(seq 0 "$rounds"); do
  timed "send $round" "$bytes" at source zfs send -Lec tank/big@s1
  timed "receive $round" "$bytes" receive "$round"
  timed "tcp $round" "$bytes" tcp
  at source sanbox replication create "big$round" --from tank/big --to "peer://vault/back/big$round" --every 1h
  at source sanbox replication pause "big$round"
  timed "push $round" "$bytes" at source sanbox replication run "big$round"
  # Their space is free for the next round.
  at source sanbox replication remove "big$round" >/dev/null
  at target zfs destroy -r "back/alone$round"; at target zfs destroy -r "back/big$round"
done | tee "$w/rows"
awk -F '[ ,]' '$2 > 0 { rates[$1] = rates[$1] " " $3 }
  function half(what,  list, n, i, j, t) {
    n = split(rates[what], list, " ")
    for (i = 2; i <= n; i++) for (j = i; j > 1 && list[j - 1] + 0 > list[j] + 0; j--) { t = list[j]; list[j] = list[j - 1]; list[j - 1] = t }
    return list[int((n + 1) / 2)]
  }
  END {
    send = half("send"); receive = half("receive"); tcp = half("tcp"); push = half("push"); least = send < receive ? send : receive
    if (tcp < least) least = tcp
    printf "median MB/s: send %.0f, receive %.0f, tcp %.0f, push %.0f: %.2f of the slowest\n", send, receive, tcp, push, push / least
  }' "$w/rows"
