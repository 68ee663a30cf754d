#!/bin/bash
# Rates and server CPU of an iSCSI volume beside other userland targets (tgt, istgt), in interleaved rounds on this machine.
#
#   iscsi-bench.sh OUT.csv [ROUNDS] [PEER...]      peers: sanbox sanbox-nfs tgt-rdwr tgt-aio istgt (default: all that are installed)
#
# Needs fio with the libiscsi engine (and libnfs for sanbox-nfs, a file on the same kind of pool), in $FIO; root. Plain files on one
# disk carry everything: the pool's device, tgt's and istgt's LUN. Blocks of the volume: $VOLBLOCK (16k). Seconds a run: $RUNTIME (3).
# Each peer is filled $FILLS (3) times before its rates are taken, so that the memory it takes has been touched before: a virtual
# machine's own host may need seconds a GiB for that. Ours takes at most $MEMORY (its
# own default: half of the machine's; the peers use the kernel's page cache, which is all of it).
# Each line: round, load, peer, workload, rate (operations or MB a second), microseconds of server CPU an operation.
set -u
[ $# -ge 1 ] || { sed -n 2,11p "$0"; exit 2; }
out=$(readlink -m "$1"); rounds=${2:-5}; shift; [ $# = 0 ] || shift
fio=${FIO:-fio}; sanbox=${SANBOX:-sanbox}; run=${RUNTIME:-3}; size=${SIZE:-512m}; fills=${FILLS:-3}; volblock=${VOLBLOCK:-16k}
peers=${*:-sanbox sanbox-nfs tgt-rdwr tgt-aio istgt}
w=$(mktemp -d "${TMPDIR:-/var/tmp}/sanbox-bench.XXXXXX"); pid=  peer_=
trap 'end; rm -rf "$w"' EXIT
iqn=iqn.2026-11.test:perf; port=13400
end() { # tgtd does not end on a signal while it has targets
  [ -z "$pid" ] || { case $peer_ in sanbox*) kill "$pid" ;; *) kill -9 "$pid" ;; esac; wait "$pid"; } 2>/dev/null; pid=; }
ready() { for _ in $(seq 100); do (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && return; sleep 0.1; done; echo "no $1" >&2; return 1; }
start() { # peer: starts it; sets $where
  peer_=$1
  case $1 in
  sanbox | sanbox-nfs)
    export SANBOX_STATE=$w/state; rm -rf "$w/state" "$w/d0"; truncate -s 8G "$w/d0"
    "$sanbox" zpool create perf "$w/d0"; "$sanbox" zfs create -s -b "$volblock" -V 1200M perf/v 2>/dev/null
    "$sanbox" zfs create -o recordsize="$volblock" -o sharenfs=rw,no_root_squash perf/f
    "$sanbox" target create $iqn; "$sanbox" target map $iqn perf/v
    if [ "$1" = sanbox ]; then nfs=0 iscsi=$port; else nfs=$port iscsi=0; fi
    "$sanbox" serve --listen 127.0.0.1 --nfs-port $nfs --no-portmap --nbd-port 0 --iscsi-port $iscsi ${MEMORY:+--memory "$MEMORY"} >"$w/log" 2>&1 & pid=$!
    where=iscsi://127.0.0.1:$port/$iqn/0 ;;
  tgt-*)
    truncate -s 1200M "$w/lun"; tgtd -f -C 9 --iscsi portal=127.0.0.1:$port >"$w/log" 2>&1 & pid=$!
    ready tgt || return 1; t="tgtadm -C 9 --lld iscsi"
    $t --op new --mode target --tid 1 -T $iqn; $t --op new --mode logicalunit --tid 1 --lun 1 -b "$w/lun" --bstype "${1#tgt-}"
    $t --op bind --mode target --tid 1 -I ALL; where=iscsi://127.0.0.1:$port/$iqn/1 ;;
  istgt)
    truncate -s 1200M "$w/lun"; mkdir -p "$w/istgt"; : >"$w/istgt/auth"
    cat >"$w/istgt/c" <<C
[Global]
  NodeBase "iqn.2026-11.test"
  PidFile $w/istgt/pid
  AuthFile $w/istgt/auth
  LogFacility "local7"
  Timeout 30
  NopInInterval 20
  DiscoveryAuthMethod None
  MaxSessions 16
  MaxConnections 4
  MaxR2T 32
  MaxOutstandingR2T 16
  DefaultTime2Wait 2
  DefaultTime2Retain 60
  FirstBurstLength 262144
  MaxBurstLength 1048576
  MaxRecvDataSegmentLength 262144
  InitialR2T Yes
  ImmediateData Yes
  DataPDUInOrder Yes
  DataSequenceInOrder Yes
  ErrorRecoveryLevel 0
[UnitControl]
  AuthMethod None
  AuthGroup None
  Portal UC1 127.0.0.1:$((port + 1))
  Netmask 127.0.0.1/32
[PortalGroup1]
  Portal DA1 127.0.0.1:$port
[InitiatorGroup1]
  InitiatorName "ALL"
  Netmask 127.0.0.1/32
[LogicalUnit1]
  TargetName perf
  Mapping PortalGroup1 InitiatorGroup1
  AuthMethod None
  UseDigest Auto
  UnitType Disk
  QueueDepth 64
  LUN0 Storage $w/lun 1200MB
C
    istgt -D -c "$w/istgt/c" >"$w/log" 2>&1 & pid=$!; where=iscsi://127.0.0.1:$port/$iqn/0 ;;
  esac
  ready "$1"
}
ticks() { sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | awk '{print $12+$13}'; }
one() { # round peer workload fio-options...
  local round=$1 peer=$2 name=$3 a b load; shift 3
  local where_=(--ioengine=libiscsi "--filename=${where//:/\\:}")
  [ "$peer" != sanbox-nfs ] || where_=(--ioengine=nfs "--nfs_url=nfs://127.0.0.1/perf/f?nfsport=$port&mountport=$port&version=3" --filename=file)
  load=$(cut -d' ' -f1 /proc/loadavg); a=$(ticks)
  timeout -k 5 $((run * 3 + 60)) "$fio" --name="$name" "${where_[@]}" --size="$size" --randrepeat=0 --norandommap=1 --buffer_compress_percentage=50 --buffer_compress_chunk=4096 \
    --output-format=json --output="$w/fio" "$@" >"$w/err" 2>&1 || { echo "$round $peer $name failed: $(tail -1 "$w/err")" >&2; return; }
  b=$(ticks)
  python3 - "$w/fio" "$((b - a))" "$name" <<'P' | sed "s/^/$round,$load,$peer,$name,/" >>"$out"
import json, sys
text = open(sys.argv[1]).read(); job = json.loads(text[text.index("{"):])["jobs"][0]
r, x = job["read"], job["write"]; n = r["total_ios"] + x["total_ios"]
rate = (r["bw_bytes"] + x["bw_bytes"]) / 1e6 if sys.argv[3].startswith(("seq", "fill")) else r["iops"] + x["iops"]
print(f"{rate:.1f},{int(sys.argv[2]) * 10000 / max(n, 1):.1f}")
P
}
[ -s "$out" ] || echo "round,load,peer,workload,rate,cpu_us" >"$out"
for round in $(seq "$rounds"); do
  for peer in $peers; do
    start "$peer" || { end; continue; }
    for fill in $(seq "$fills"); do one "$round" "$peer" fill-$fill --rw=write --bs=1m --iodepth=8; done
    one "$round" "$peer" seq-write-1m --rw=write --bs=1m --iodepth=8
    timed=(--runtime="$run" --time_based=1)
    one "$round" "$peer" seq-read-1m --rw=read --bs=1m --iodepth=8 "${timed[@]}"
    for depth in 1 8 32; do
      one "$round" "$peer" read-8k-$depth --rw=randread --bs=8k --iodepth=$depth "${timed[@]}"
      one "$round" "$peer" write-8k-$depth --rw=randwrite --bs=8k --iodepth=$depth "${timed[@]}"
      one "$round" "$peer" mix-8k-$depth --rw=randrw --rwmixread=70 --bs=8k --iodepth=$depth "${timed[@]}"
    done
    end; rm -f "$w/lun" "$w/d0"
  done
done
python3 - "$out" <<'P'
import csv, statistics as s, sys
rows = list(csv.DictReader(open(sys.argv[1]))); peers = list(dict.fromkeys(r["peer"] for r in rows))
print("| workload | " + " | ".join(peers) + " |\n|" + "---|" * (len(peers) + 1))
for w in dict.fromkeys(r["workload"] for r in rows):
    cells = []
    for p in peers:
        mine = [r for r in rows if r["peer"] == p and r["workload"] == w]
        v, c = [float(r["rate"]) for r in mine], [float(r["cpu_us"]) for r in mine]
        cells.append(f"{s.median(v):,.0f} ({min(v):,.0f}-{max(v):,.0f}); {s.median(c):.0f} us" if v else "")
    print(f"| {w} | " + " | ".join(cells) + " |")
P
