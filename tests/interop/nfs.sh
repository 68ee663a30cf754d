#!/bin/bash
# The real Linux NFS client on a sanbox share (vers=3, tcp, nolock): unpacks a source tree, runs a build-like workload,
# random I/O with mmap, renames and links; in the middle the server is killed with SIGKILL and started again while the
# client goes on. At the end every hash is equal, seen by the client after a fresh mount and by sanbox itself; and from a
# share the client crosses into the share below it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); root=$(cd "$here/../.." && pwd)
w=$(mktemp -d); pid=; vm=
trap '[ -z "$vm" ] || kill $vm 2>/dev/null || true; [ -z "$pid" ] || kill $pid 2>/dev/null || true; rm -rf "$w"' EXIT
export SANBOX_STATE=$w/state
port=${PORT:-12049}
mkdir "$w/share" "$w/disks"; truncate -s 1G "$w/disks/d0.img" "$w/disks/d1.img"
git -C "$root" archive -o "$w/share/source.tar" HEAD crates docs sim tests/cli
serve() {
  "$SANBOX" serve --listen 127.0.0.1 --nfs-port "$port" >>"$w/log" 2>&1 & pid=$!
  for _ in $(seq 100); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && return
    kill -0 $pid 2>/dev/null || break
    sleep 0.1
  done
  echo "interop nfs: the server did not start" >&2; tail -20 "$w/log" >&2; exit 1
}
"$SANBOX" zpool create tank mirror "$w/disks/d0.img" "$w/disks/d1.img"
"$SANBOX" zfs create -o sharenfs='rw,no_root_squash' tank/src
"$SANBOX" zfs create -o sharenfs='rw,no_root_squash' tank/up
"$SANBOX" zfs create tank/up/down
serve

cat >"$w/guest" <<'G'
set -eu
port=$1
mount_it() { mount -t nfs -o vers=3,tcp,nolock,hard,port=$port,mountport=$port,mountproto=tcp,timeo=50 10.0.2.2:/tank/src /mnt/n; }
modprobe nfsv3; mkdir -p /mnt/n /tmp/local; mount_it; cd /mnt/n
echo PHASE unpack; tar -x --no-same-owner -C /mnt/n -f /share/source.tar; tar -x --no-same-owner -C /tmp/local -f /share/source.tar
diff -r /tmp/local /mnt/n
touch /share/unpacked                    # the host now kills the server and starts it again
echo PHASE build
cat >/tmp/work.py <<'P'
import mmap, os, random, hashlib, sys
root = "/mnt/n"; r = random.Random(11)
def build(round):
    # as a compiler does: read sources, write objects beside them under a temporary name, rename, remove the old ones
    n = 0
    for d, _, names in os.walk(root + "/crates"):
        for name in names:
            if not name.endswith(".rs"): continue
            data = open(f"{d}/{name}", "rb").read()
            tmp = f"{d}/.{name}.tmp"
            with open(tmp, "wb") as f: f.write(hashlib.sha256(data).digest() * (1 + len(data) // 64))
            os.rename(tmp, f"{d}/{name}.o"); n += 1
            if round and n % 5 == 0: os.unlink(f"{d}/{name}.o")
    return n
def fsx(path, ops, size):
    # random reads, writes, truncates and mmap writes on one file, checked against a copy in memory
    good = bytearray(); f = open(path, "w+b", buffering=0)
    for i in range(ops):
        op = r.randrange(6); at = r.randrange(size); n = r.randrange(1, 70000)
        if op == 0:
            data = r.randbytes(n); f.seek(at); f.write(data)
            if at > len(good): good.extend(bytes(at - len(good)))
            good[at:at + n] = data
        elif op == 1:
            f.seek(at); got = f.read(n); want = bytes(good[at:at + n]); assert got == want, f"op {i}: read at {at}+{n}"
        elif op == 2:
            f.truncate(at); del good[at:]; good.extend(bytes(at - len(good)))
        elif op == 3 and len(good) > 8192:
            with mmap.mmap(f.fileno(), len(good)) as m:
                at %= len(good) - 4096; data = r.randbytes(r.randrange(1, 4096)); m[at:at + len(data)] = data; good[at:at + len(data)] = data
                m.flush()
        elif op == 4:
            os.fsync(f.fileno())
        else:
            assert os.fstat(f.fileno()).st_size == len(good), f"op {i}: size"
    f.close(); got = open(path, "rb").read(); assert got == bytes(good), "content after close"
    return hashlib.sha256(good).hexdigest()
print("built", build(0), flush=True)
print("fsx", fsx(root + "/fsx.bin", 1500, 2_000_000), flush=True)
print("built", build(1), flush=True)
os.mkdir(root + "/names")
for i in range(400): open(f"{root}/names/n{i}", "w").write(str(i))
for i in range(0, 400, 2): os.rename(f"{root}/names/n{i}", f"{root}/names/m{i}")
for i in range(1, 400, 4): os.link(f"{root}/names/n{i}", f"{root}/names/h{i}")
for i in range(0, 400, 8): os.symlink(f"m{i}", f"{root}/names/s{i}")
os.rename(f"{root}/names/m0", f"{root}/names/n1")
assert len(os.listdir(root + "/names")) == 400 + 100 + 50 - 1
fd = os.open(f"{root}/names/n3", os.O_RDWR); os.unlink(f"{root}/names/n3"); os.write(fd, b"gone"); os.close(fd)
os.mkfifo(f"{root}/fifo"); os.mknod(f"{root}/null", 0o020666, os.makedev(1, 3))
try: os.open(f"{root}/once", os.O_CREAT | os.O_EXCL); os.open(f"{root}/once", os.O_CREAT | os.O_EXCL); raise SystemExit("O_EXCL twice")
except FileExistsError: pass
P
python3 /tmp/work.py
sync
(cd /mnt/n && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) >/share/before
cd /; umount /mnt/n; mount_it; cd /mnt/n
(cd /mnt/n && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) >/share/after
cmp /share/before /share/after
df -h /mnt/n | tail -1
cd /; umount /mnt/n
echo PHASE crossing                      # from a share into the share below, which the client mounts by itself
mkdir -p /mnt/up; mount -t nfs -o vers=3,tcp,nolock,hard,port=$port,mountport=$port,mountproto=tcp 10.0.2.2:/tank/up /mnt/up
[ "$(ls /mnt/up)" = down ] || { ls -la /mnt/up; exit 1; }
echo below >/mnt/up/down/file; cat /mnt/up/down/file
[ "$(stat -c %d /mnt/up)" != "$(stat -c %d /mnt/up/down)" ] && grep -q ' /mnt/up/down nfs ' /proc/mounts || { cat /proc/mounts; exit 1; }
umount /mnt/up/down; umount /mnt/up; echo NFS-OK
G
"$root/tests/realvm/realvm" run "$w/guest" --no-zfs --share "$w/share" --timeout 1500 -- "$port" >"$w/out" 2>"$w/err" & vm=$!
kills=0
while kill -0 $vm 2>/dev/null; do
  if [ -e "$w/share/unpacked" ] && [ $kills -lt 3 ]; then
    sleep $((6 + kills * 3))
    kill -9 $pid; wait $pid 2>/dev/null || true; sleep 1; serve; kills=$((kills + 1))
  fi
  sleep 0.2
done
status=0; wait $vm || status=$?; vm=
cat "$w/out"
[ $status = 0 ] && grep -q NFS-OK "$w/out" || { tail -n 30 "$w/err" "$w/log"; exit 1; }
[ $kills -gt 0 ] || { echo "interop nfs: the workload ended before the server could be killed" >&2; exit 1; }
kill $pid; wait $pid || { echo "interop nfs: the server did not end cleanly" >&2; tail -5 "$w/log"; exit 1; }
pid=
"$SANBOX" get -r tank/src:/ "$w/back"
(cd "$w/back" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) | cmp - "$w/share/after"
[ "$("$SANBOX" cat tank/up/down:/file)" = below ] || { echo "interop nfs: what was written below a share is not there" >&2; exit 1; }
"$SANBOX" zpool export tank
zdb -e -p "$w/disks" -bcc tank >"$w/zdb" 2>&1 && grep -q 'No leaks' "$w/zdb" || { tail -20 "$w/zdb"; exit 1; }
echo "interop nfs: $kills kills of the server, $(wc -l <"$w/share/after") files equal, zdb clean"
