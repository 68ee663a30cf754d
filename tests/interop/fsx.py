#!/usr/bin/env python3
"""Random operations on one file, each checked against a copy in memory.

    fsx.py FILE [OPERATIONS] [SEED] [BYTES_MAX]

Reads, writes, truncation both ways, appends, mmap reads and writes, holes punched, ranges zeroed and allocated (where the
file system has them), fsync, closing and opening again, and at the end a comparison of the whole file, its size and its
holes. Prints what it did, and the seed to do it again; ends with 1 at the first difference."""
import ctypes, errno, hashlib, mmap, os, random, sys

path = sys.argv[1]
operations = int(sys.argv[2]) if len(sys.argv) > 2 else 5000
seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
most = int(sys.argv[4]) if len(sys.argv) > 4 else 1 << 20
r = random.Random(seed)
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
good = bytearray()
fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
done, unsupported = {}, set()


def differ(n, what):
    print(f"fsx: seed {seed}, operation {n}: {what}", file=sys.stderr)
    sys.exit(1)


def extend(to):
    good.extend(bytes(max(0, to - len(good))))


def fallocate(mode, at, length):
    if libc.fallocate(fd, mode, at, length) == 0:
        return True
    if ctypes.get_errno() in (errno.EOPNOTSUPP, errno.ENOSYS):
        return False
    raise OSError(ctypes.get_errno(), "fallocate")


def whole(n):
    got = b""
    while len(got) <= len(good):
        part = os.pread(fd, 1 << 20, len(got))
        if not part:
            break
        got += part
    if got != good:
        at = next((i for i, (a, b) in enumerate(zip(got, good)) if a != b), min(len(got), len(good)))
        differ(n, f"content differs from byte {at} of {len(good)} on (the file has {len(got)})")


KINDS = "write write read read truncate append mapread mapwrite punch zero allocate fsync reopen size".split()
for n in range(operations):
    kind = r.choice(KINDS)
    if kind in unsupported:
        continue
    at, length = r.randrange(most), r.randrange(1, 70_000)
    if r.random() < 0.2:
        at &= ~4095
    length = min(length, most - at)
    if kind == "append":
        at, length = len(good), min(length, max(0, most - len(good)))
    if length == 0:
        continue
    if kind in ("write", "append"):
        data = r.randbytes(length) if r.random() < 0.9 else bytes(length)
        if os.pwrite(fd, data, at) != length:
            differ(n, "a short write")
        extend(at)
        good[at : at + length] = data
    elif kind == "read":
        if os.pread(fd, length, at) != bytes(good[at : at + length]):
            differ(n, f"read of {length} at {at}")
    elif kind == "truncate":
        os.ftruncate(fd, at)
        del good[at:]
        extend(at)
    elif kind in ("mapread", "mapwrite"):
        if len(good) < 2:
            continue
        at %= len(good) - 1
        length = min(length, len(good) - at)
        with mmap.mmap(fd, len(good)) as m:
            if kind == "mapread":
                if m[at : at + length] != bytes(good[at : at + length]):
                    differ(n, f"mapped read of {length} at {at}")
            else:
                data = r.randbytes(length)
                m[at : at + length] = data
                good[at : at + length] = data
                if r.random() < 0.5:
                    m.flush()
    elif kind in ("punch", "zero", "allocate"):
        # FALLOC_FL_KEEP_SIZE | PUNCH_HOLE, FALLOC_FL_ZERO_RANGE, plain
        if not fallocate({"punch": 3, "zero": 16, "allocate": 0}[kind], at, length):
            unsupported.add(kind)
            continue
        if kind != "punch":
            extend(at + length)
        if kind != "allocate":
            end = min(at + length, len(good))
            if at < end:
                good[at:end] = bytes(end - at)
    elif kind == "fsync":
        os.fsync(fd)
    elif kind == "reopen":
        os.close(fd)
        fd = os.open(path, os.O_RDWR)
    if os.fstat(fd).st_size != len(good):
        differ(n, f"size {os.fstat(fd).st_size} instead of {len(good)} after {kind}")
    done[kind] = done.get(kind, 0) + 1
    if n % 500 == 499:
        whole(n)
whole(operations)
# What is said to be a hole is zero.
at = 0
while at < len(good):
    try:
        data = os.lseek(fd, at, os.SEEK_DATA)
    except OSError as e:
        if e.errno != errno.ENXIO:
            raise
        data = len(good)
    if any(good[at:data]):
        differ(operations, f"a hole from {at} to {data} that has data")
    if data >= len(good):
        break
    at = os.lseek(fd, data, os.SEEK_HOLE)
os.close(fd)
if hashlib.sha256(open(path, "rb").read()).digest() != hashlib.sha256(good).digest():
    differ(operations, "content after closing")
print(f"fsx: seed {seed}, {sum(done.values())} operations, {len(good)} bytes agree; not supported: {' '.join(sorted(unsupported)) or 'none'}")
