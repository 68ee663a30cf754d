#!/bin/bash
# Disks of a raidz2 of six are pulled, two at a time, while the real Linux NFS client writes, reads and compares: first by
# `zpool offline`, then so that the devices answer every request with an I/O error. They are put back and brought online, and get
# what they missed; the client notices nothing. At the end a scrub finds nothing to repair, every checksum is equal for the
# client, for sanbox and for the real kernel module, which imports the same disks and scrubs them with 0 errors.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); root=$(cd "$here/../.." && pwd)
[ "$(id -u)" = 0 ] && losetup -f >/dev/null 2>&1 || { echo "SKIPPED interop faults: needs root and loop devices" >&2; exit 77; }
w=$(mktemp -d); pid=; vm=; loops=()
unloop() { local disk; for disk in "${loops[@]}"; do losetup -d "$disk" || true; done; loops=(); }
trap '[ -z "$vm" ] || kill $vm 2>/dev/null || true; [ -z "$pid" ] || kill $pid 2>/dev/null || true; unloop; rm -rf "$w"' EXIT
export SANBOX_STATE=$w/state
port=${PORT:-12149} away=${AWAY:-20} rounds=${ROUNDS:-2}
mkdir "$w/share" "$w/disks"
for i in 0 1 2 3 4 5; do
  truncate -s 768M "$w/disks/d$i.img"
  loops+=("$(losetup --show -f "$w/disks/d$i.img")")
done
# A loop device that ends after one sector fails everything but that; without a limit it is whole again.
limit() {
  python3 - "$1" "$2" <<'P'
import fcntl, sys
GET, SET = 0x4C05, 0x4C04                # LOOP_GET_STATUS64, LOOP_SET_STATUS64; lo_sizelimit is the fifth word of loop_info64
with open(sys.argv[1], "rb") as f:
    info = bytearray(232); fcntl.ioctl(f, GET, info); info[32:40] = int(sys.argv[2]).to_bytes(8, "little"); fcntl.ioctl(f, SET, info)
P
}
"$SANBOX" zpool create -O mountpoint=none tank raidz2 "${loops[@]}"
"$SANBOX" zfs create -o sharenfs='rw,no_root_squash' tank/work
"$SANBOX" serve --listen 127.0.0.1 --nfs-port "$port" >>"$w/log" 2>&1 & pid=$!
for _ in $(seq 100); do (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break; kill -0 $pid; sleep 0.1; done

cat >"$w/guest" <<'G'
set -eu
port=$1
mount_it() { mount -t nfs -o vers=3,tcp,nolock,hard,port=$port,mountport=$port,mountproto=tcp,timeo=600 10.0.2.2:/tank/work /mnt/n; }
modprobe nfsv3; mkdir -p /mnt/n; mount_it
cat >/tmp/work.py <<'P'
import hashlib, os, random
r, root, sums, n, written, read = random.Random(5), "/mnt/n", {}, 0, 0, 0
while not os.path.exists("/share/stop"):
    name = f"d{n % 7}/f{n % 150}"; os.makedirs(f"{root}/{os.path.dirname(name)}", exist_ok=True)
    data = r.randbytes(r.choice((300, 5_000, 70_000, 400_000, 1_500_000)))
    with open(f"{root}/{name}", "wb") as f:
        f.write(data); f.flush()
        if n % 3 == 0: os.fsync(f.fileno())
    sums[name] = hashlib.sha256(data).hexdigest(); written += len(data); n += 1
    if n % 4 == 0:                       # from the server, not from the client's cache
        old = r.choice(list(sums)); fd = os.open(f"{root}/{old}", os.O_RDONLY); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        got = b""
        while part := os.read(fd, 1 << 20): got += part
        os.close(fd); read += len(got); assert hashlib.sha256(got).hexdigest() == sums[old], f"{old} changed"
    if n % 11 == 0: old = r.choice(list(sums)); os.unlink(f"{root}/{old}"); del sums[old]
    if n == 40: open("/share/ready", "w")
    if n % 20 == 0: open("/share/count", "w").write(f"{n}\n")
with open("/share/expect", "w") as f: f.writelines(f"{sums[name]}  ./{name}\n" for name in sorted(sums))
print(f"the client wrote {n} files, {written >> 20} MiB, and read {read >> 20} MiB back meanwhile", flush=True)
P
python3 /tmp/work.py
sync; umount /mnt/n; mount_it; cd /mnt/n
sha256sum -c --quiet /share/expect; [ "$(find . -type f | wc -l)" = "$(wc -l </share/expect)" ]
cd /; umount /mnt/n; echo CLIENT-OK
G
"$root/tests/realvm/realvm" run "$w/guest" --no-zfs --share "$w/share" --timeout 3000 -- "$port" >"$w/out" 2>"$w/err" & vm=$!
fail() { echo "interop faults: $*" >&2; tail -n 20 "$w/out" "$w/err" "$w/log" >&2; "$SANBOX" zpool status -v tank >&2 || true; exit 1; }
while [ ! -e "$w/share/ready" ]; do kill -0 $vm 2>/dev/null || fail "the client ended early"; sleep 0.5; done
scan() { "$SANBOX" zpool status tank | sed -n 's/^ *scan: //p'; }
count() { cat "$w/share/count" 2>/dev/null || echo 0; }
for round in $(seq "$rounds"); do
  for how in offline errors; do
    a=${loops[$(((round * 2) % 6))]} b=${loops[$(((round * 2 + 3) % 6))]}; before=$(count)
    for disk in $a $b; do
      if [ $how = offline ]; then "$SANBOX" zpool offline tank "$disk"; else limit "$disk" 512; fi
    done
    sleep "$away"
    kill -0 $vm 2>/dev/null || fail "the client gave up"
    "$SANBOX" zpool status tank >"$w/status"
    for disk in $a $b; do grep -qE "$(basename "$disk") +(OFFLINE|FAULTED|REMOVED|UNAVAIL)" "$w/status" || fail "$disk is not out of service"; done
    grep -q 'state: DEGRADED' "$w/status" || fail "two disks are away, and the pool is not degraded"
    for disk in $a $b; do
      [ $how = offline ] || limit "$disk" 0
      "$SANBOX" zpool online tank "$disk"
    done
    "$SANBOX" zpool wait -t resilver tank
    echo "round $round, $how: $(($(count) - before)) files written meanwhile; $(scan)"
    scan | grep -q 'resilvered .* with 0 errors' || fail "no clean resilver"
    "$SANBOX" zpool clear tank
    "$SANBOX" zpool status tank | grep -q 'state: ONLINE' || fail "the pool is not whole again"
  done
done
touch "$w/share/stop"
status=0; wait $vm || status=$?; vm=
cat "$w/out"
[ $status = 0 ] && grep -q CLIENT-OK "$w/out" || fail "the client failed"
"$SANBOX" zpool scrub -w tank; echo "sanbox: $(scan)"
scan | grep -q 'scrub repaired 0B .* with 0 errors' || fail "the scrub found something"
kill $pid; wait $pid || fail "the server did not end cleanly"
pid=
"$SANBOX" get -r tank/work:/ "$w/back"
(cd "$w/back" && sha256sum -c --quiet "$w/share/expect")
"$SANBOX" zpool export tank
unloop
zdb -e -p "$w/disks" -bcc tank >"$w/zdb" 2>&1 && grep -q 'No leaks' "$w/zdb" || { tail -20 "$w/zdb"; exit 1; }

cat >"$w/module" <<'G'
set -eu
args=(); for disk in /dev/vd[b-g]; do args+=(-d "$disk"); done
zpool import "${args[@]}" tank
zpool scrub -w tank; zpool status -v tank
zpool status tank | grep -q 'scrub repaired 0B .* with 0 errors'
zpool status tank | grep -q 'errors: No known data errors'
zfs set mountpoint=/work tank/work; cd /work
sha256sum -c --quiet /share/expect; [ "$(find . -type f | wc -l)" = "$(wc -l </share/expect)" ]
cd /; zpool export tank; echo MODULE-OK
G
disks=(); for i in 0 1 2 3 4 5; do disks+=(--disk "$w/disks/d$i.img"); done
"$root/tests/realvm/realvm" run "$w/module" "${disks[@]}" --share "$w/share" --timeout 1800 >"$w/out" 2>"$w/err" || fail "the module"
cat "$w/out"; grep -q MODULE-OK "$w/out" || fail "the module"
echo "interop faults: $((rounds * 2)) times two disks of six away, $(wc -l <"$w/share/expect") files equal, zdb clean, the module scrubs with 0 errors"
