"""A day of the Linux NFS client on one share, mounted by every version: files and names, locks between the versions (each is a
client of its own to the server), and the server killed under lock traffic. Run in the machine of nfs4-linux.sh.

Each step prints what it did; the first that finds something wrong ends with an error."""
import ctypes, errno, fcntl, os, random, select, stat, struct, subprocess, sys, time

LIBC = ctypes.CDLL(None, use_errno=True)
MOUNTS = {"3": "/mnt/3", "4.0": "/mnt/4.0", "4.1": "/mnt/4.1", "4.2": "/mnt/4.2"}
NEW = [v for v in MOUNTS if v != "3"]


def fails_with(number, call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == number, f"{errno.errorcode.get(error.errno)} instead of {errno.errorcode[number]}"
        return
    raise AssertionError(f"no {errno.errorcode[number]}")


def drop_caches():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as control:
        control.write("3")


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def fallocate(fd, mode, offset, length):
    if LIBC.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def files(version, base):
    d = f"{base}/day-{version}"
    os.mkdir(d)
    data = random.Random(7).randbytes(8 << 20)
    write(f"{d}/data", data)
    drop_caches()
    assert read(f"{d}/data") == data, "a file of 8 MiB reads differently"
    for i in range(300):
        write(f"{d}/n{i}", b"%d" % i)
    os.rename(f"{d}/n0", f"{d}/renamed")
    os.rename(f"{d}/n1", f"{d}/n2")
    assert read(f"{d}/n2") == b"1"
    os.link(f"{d}/n3", f"{d}/hard")
    os.symlink("n3", f"{d}/soft")
    os.mkfifo(f"{d}/fifo")
    assert stat.S_ISFIFO(os.stat(f"{d}/fifo").st_mode)
    assert os.stat(f"{d}/n3").st_nlink == 2 and read(f"{d}/soft") == b"3" and os.readlink(f"{d}/soft") == "n3"
    drop_caches()
    names = os.listdir(d)
    assert len(names) == len(set(names)) == 303, f"{len(names)} names"
    # The whole of what stat says.
    os.chmod(f"{d}/n4", 0o4750)
    os.chown(f"{d}/n5", 1001, 1002)
    os.utime(f"{d}/n4", ns=(1_000_000_000_123_456_789, 1_500_000_000_987_654_321))
    drop_caches()
    seen = os.stat(f"{d}/n4")
    assert stat.S_IMODE(seen.st_mode) == 0o4750 and seen.st_mtime_ns == 1_500_000_000_987_654_321
    assert seen.st_atime_ns == 1_000_000_000_123_456_789
    seen = os.stat(f"{d}/n5")
    assert (seen.st_uid, seen.st_gid) == (1001, 1002), (seen.st_uid, seen.st_gid)
    # Removed while it is open.
    file = open(f"{d}/n6", "r+b")
    os.unlink(f"{d}/n6")
    file.write(b"still there")
    file.flush()
    drop_caches()
    file.seek(0)
    assert file.read() == b"still there"
    file.close()
    fails_with(errno.ENOENT, os.stat, f"{d}/n6")
    # Made once.
    exclusive = os.O_CREAT | os.O_EXCL | os.O_RDWR
    os.close(os.open(f"{d}/once", exclusive, 0o600))
    fails_with(errno.EEXIST, os.open, f"{d}/once", exclusive)
    # Made unreadable, and written all the same by its maker.
    fd = os.open(f"{d}/secret", exclusive, 0o000)
    os.write(fd, b"x")
    os.close(fd)
    with open(f"{d}/log", "ab") as log:
        for i in range(5):
            log.write(b"line\n")
            log.flush()
    assert read(f"{d}/log") == b"line\n" * 5
    os.truncate(f"{d}/data", 5000)
    assert read(f"{d}/data") == data[:5000]
    fails_with(errno.ENOTEMPTY, os.rmdir, d)
    fails_with(errno.ENAMETOOLONG, os.mkdir, f"{d}/{'x' * 256}")
    os.mkdir(f"{d}/" + "\u00fc" * 100)
    space = os.statvfs(d)
    assert 0 < space.f_bavail <= space.f_blocks
    print(f"{version}: files and names")


def sparse(version, base):
    path = f"{base}/sparse-{version}"
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    block = 1 << 20
    os.pwrite(fd, b"a" * block, 0)
    os.pwrite(fd, b"b" * block, 4 * block)
    os.fsync(fd)
    if version == "4.2":
        hole = os.lseek(fd, 0, os.SEEK_HOLE)
        assert block <= hole < 4 * block, f"the hole is at {hole}"
        after = os.lseek(fd, hole, os.SEEK_DATA)
        assert hole < after <= 4 * block, f"data again at {after}"
        assert os.lseek(fd, 4 * block, os.SEEK_HOLE) == 5 * block
        fails_with(errno.ENXIO, os.lseek, fd, 5 * block, os.SEEK_DATA)
        keep_size, punch = 1, 2
        fallocate(fd, keep_size | punch, 0, block)
        assert os.pread(fd, block, 0) == bytes(block), "a punched hole reads as zeros"
        assert os.lseek(fd, 0, os.SEEK_DATA) >= block
        fallocate(fd, 0, 6 * block, block)
        assert os.fstat(fd).st_size == 7 * block, "space set aside makes a file longer"
        other = os.open(f"{path}-copy", os.O_CREAT | os.O_RDWR, 0o644)
        done = 0
        while done < 7 * block:
            n = os.copy_file_range(fd, other, 7 * block - done, done, done)
            assert n > 0
            done += n
        assert os.pread(other, 8 * block, 0) == os.pread(fd, 8 * block, 0)
        os.close(other)
    os.close(fd)
    print(f"{version}: holes")


def clones(version, base):
    """Files whose blocks are shared: FICLONE, FICLONERANGE, and what copy_file_range makes of ranges that cannot be shared."""
    if version != "4.2":
        return
    FICLONE, FICLONERANGE = 0x40049409, 0x4020940D
    block = 128 << 10
    data = random.Random(9).randbytes(40 * (1 << 20) + 1000)
    write(f"{base}/origin", data)
    source = os.open(f"{base}/origin", os.O_RDWR)
    os.fsync(source)
    whole = os.open(f"{base}/whole", os.O_CREAT | os.O_RDWR, 0o644)
    began = time.time()
    fcntl.ioctl(whole, FICLONE, source)
    took = time.time() - began
    part = os.open(f"{base}/part", os.O_CREAT | os.O_RDWR, 0o644)
    fcntl.ioctl(part, FICLONERANGE, struct.pack("qQQQ", source, 3 * block, 5 * block, block))
    fails_with(errno.EINVAL, fcntl.ioctl, part, FICLONERANGE, struct.pack("qQQQ", source, 100, block, 0))
    ranges = os.open(f"{base}/ranges", os.O_CREAT | os.O_RDWR, 0o644)
    expected = bytearray(len(data) + 2 * block)
    for at, to, length in [(0, 2 * block, len(data)), (100, 0, block + 5), (len(data) - 1000, block + 7, 1000)]:
        done = 0
        while done < length:
            n = os.copy_file_range(source, ranges, length - done, at + done, to + done)
            assert n > 0
            done += n
        expected[to : to + length] = data[at : at + length]
    assert os.copy_file_range(source, ranges, 10, len(data), 0) == 0
    fails_with(errno.EINVAL, os.copy_file_range, source, source, 2 * block, 0, block)
    os.pwrite(whole, b"changed", 5 * block)
    for fd in (source, whole, part, ranges):
        os.close(fd)
    drop_caches()
    assert read(f"{base}/origin") == data
    assert read(f"{base}/whole") == data[: 5 * block] + b"changed" + data[5 * block + 7 :]
    assert read(f"{base}/part") == bytes(block) + data[3 * block : 8 * block]
    assert read(f"{base}/ranges") == bytes(expected)
    print(f"{version}: clones, 40 MiB in {took * 1000:.0f} ms")


def attributes(version, base):
    path = f"{base}/xattr-{version}"
    write(path, b"")
    if version != "4.2":
        return
    os.setxattr(path, "user.colour", b"blue")
    os.setxattr(path, "user.big", b"x" * 20000)
    fails_with(errno.EEXIST, os.setxattr, path, "user.colour", b"red", os.XATTR_CREATE)
    drop_caches()
    assert sorted(os.listxattr(path)) == ["user.big", "user.colour"], os.listxattr(path)
    assert os.getxattr(path, "user.colour") == b"blue" and len(os.getxattr(path, "user.big")) == 20000
    os.removexattr(path, "user.big")
    assert os.listxattr(path) == ["user.colour"]
    fails_with(errno.ENODATA, os.getxattr, path, "user.big")
    print(f"{version}: extended attributes")


def as_user(uid, call):
    """Whether a call is allowed to a user."""
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        try:
            call()
            os._exit(0)
        except PermissionError:
            os._exit(1)
        except BaseException as error:
            print(f"as user {uid}: {error!r}", flush=True)
            os._exit(2)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status < 2
    return status == 0


def lists(version):
    """NFSv4 lists, by the tools of nfs4-acl-tools; the file system has acltype=nfsv4, aclmode=passthrough, aclinherit=passthrough."""

    def tool(*words):
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()

    base = f"/mnt/lists-{version}"
    d = f"{base}/d-{version}"
    os.mkdir(d, 0o755)
    path = f"{d}/file"
    write(path, b"listed")
    os.chmod(path, 0o600)
    assert "A::OWNER@:rwatTnNcCoy" in tool("nfs4_getfacl", path), tool("nfs4_getfacl", path)
    assert not as_user(1001, lambda: read(path))
    tool("nfs4_setfacl", "-a", "A::1001:rtncy", path)
    drop_caches()
    assert "A::1001:rtncy" in tool("nfs4_getfacl", path), tool("nfs4_getfacl", path)
    assert as_user(1001, lambda: read(path)) and not as_user(1002, lambda: read(path))
    assert not as_user(1001, lambda: write(path, b"no"))
    # A denial before it counts.
    tool("nfs4_setfacl", "-a", "D::1001:r", path)
    drop_caches()
    assert not as_user(1001, lambda: read(path))
    # A mode leaves entries of others where aclmode says so.
    os.chmod(path, 0o640)
    assert "D::1001:r" in tool("nfs4_getfacl", path), tool("nfs4_getfacl", path)
    # What new files get.
    tool("nfs4_setfacl", "-a", "A:fd:1002:rwatTnNcCy", d)
    write(f"{d}/new", b"inherited")
    listed = tool("nfs4_getfacl", f"{d}/new")
    assert any(entry.startswith("A:") and ":1002:" in entry for entry in listed), listed
    os.chmod(f"{d}/new", 0o600)
    fails_with(errno.EOPNOTSUPP, os.getxattr, f"{MOUNTS[version]}/shared", "system.nfs4_acl")
    print(f"{version}: lists")


def seen_by_all():
    """What one version writes and closes, all others read when they open it."""
    for i, (version, base) in enumerate(MOUNTS.items()):
        write(f"{base}/shared", b"%d from " % i + version.encode())
        for other in MOUNTS.values():
            # Attributes of a file that was open a moment ago may be three seconds old in version 3.
            until = time.monotonic() + 10
            while (seen := read(f"{other}/shared")) != b"%d from " % i + version.encode():
                assert other == MOUNTS["3"] and time.monotonic() < until, f"{other} reads {seen} after {version} wrote"
                time.sleep(0.5)
    print("written by each, read by all")


def locks():
    """fcntl and flock between each two versions."""
    for one in NEW:
        for two in NEW:
            if one == two:
                continue
            a = os.open(f"{MOUNTS[one]}/locked", os.O_CREAT | os.O_RDWR)
            b = os.open(f"{MOUNTS[two]}/locked", os.O_RDWR)
            fcntl.lockf(a, fcntl.LOCK_EX | fcntl.LOCK_NB, 100, 0)
            child = os.fork()
            if child == 0:
                try:
                    fails_with(errno.EAGAIN, fcntl.lockf, b, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 99)
                    fails_with(errno.EAGAIN, fcntl.lockf, b, fcntl.LOCK_SH | fcntl.LOCK_NB, 0, 0)
                    held = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 50, 200, 0)
                    kind, _, start, length, _ = struct.unpack("hhqqi4x", fcntl.fcntl(b, fcntl.F_GETLK, held))
                    assert (kind, start, length) == (fcntl.F_WRLCK, 0, 100), (kind, start, length)
                    fcntl.lockf(b, fcntl.LOCK_EX | fcntl.LOCK_NB, 100, 100)
                    fcntl.lockf(b, fcntl.LOCK_UN, 100, 100)
                    print(f"waiting {two}", flush=True)
                    # Waits until the other lets go.
                    fcntl.lockf(b, fcntl.LOCK_EX, 10, 0)
                    os._exit(0)
                except BaseException as error:
                    print(f"{one} holds, {two} asks: {error!r}", flush=True)
                    os._exit(1)
            time.sleep(1.5)
            assert os.waitpid(child, os.WNOHANG) == (0, 0), "the other does not wait"
            fcntl.lockf(a, fcntl.LOCK_UN, 100, 0)
            assert os.waitpid(child, 0)[1] == 0
            fcntl.flock(a, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(b, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(b, fcntl.LOCK_UN)
            fcntl.flock(a, fcntl.LOCK_UN)
            fcntl.flock(a, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fails_with(errno.EAGAIN, fcntl.flock, b, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(a)
            fcntl.flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(b)
    print("locks between the versions")


def count(version, stop):
    """Adds one to a number in a file, under a lock, until the pipe `stop` is closed; says how often it did."""
    fd = os.open(f"{MOUNTS[version]}/counter", os.O_RDWR)
    done = 0
    while not select.select([stop], [], [], 0)[0]:
        fcntl.lockf(fd, fcntl.LOCK_EX, 0, 0)
        value = int(os.pread(fd, 20, 0) or b"0")
        os.pwrite(fd, b"%020d" % (value + 1), 0)
        fcntl.lockf(fd, fcntl.LOCK_UN, 0, 0)
        done += 1
        time.sleep(random.random() / 50)
    os.close(fd)
    return done


def killed(rounds):
    write(f"{MOUNTS['4.1']}/counter", b"")
    held = {}
    for version in NEW:
        write(f"{MOUNTS[version]}/held-{version}", b"before")
        held[version] = os.open(f"{MOUNTS[version]}/held-{version}", os.O_RDWR)
        fcntl.lockf(held[version], fcntl.LOCK_EX | fcntl.LOCK_NB, 0, 0)
    stop, stopper = os.pipe()
    workers = []
    for version in NEW * 2:
        answer, said = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(stopper)
            try:
                os.write(said, b"%d" % count(version, stop))
                os._exit(0)
            except BaseException as error:
                print(f"{version}: {error!r}", flush=True)
                os._exit(1)
        os.close(said)
        workers.append((child, answer))
    for i in range(rounds):
        time.sleep(3)
        open(f"/share/kill-{i}", "w").close()
        while not os.path.exists(f"/share/restarted-{i}"):
            time.sleep(0.2)
        # Until all go on again.
        began, before = time.monotonic(), int(read(f"{MOUNTS['3']}/counter") or b"0")
        while True:
            assert time.monotonic() < began + 240, "nobody goes on after the restart"
            time.sleep(1)
            if int(read(f"{MOUNTS['3']}/counter") or b"0") > before + 30:
                break
        print(f"restart {i}: they go on after {time.monotonic() - began:.0f} s", flush=True)
    # What was locked before is locked still: its holder writes, others are refused.
    for version in NEW:
        os.pwrite(held[version], b"after!", 0)
        os.fsync(held[version])
        for other in NEW:
            child = os.fork()
            if child == 0:
                fd = os.open(f"{MOUNTS[other]}/held-{version}", os.O_RDWR)
                try:
                    fails_with(errno.EAGAIN, fcntl.lockf, fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 0, 0)
                    os._exit(0)
                except BaseException as error:
                    print(f"held by {version}, asked for by {other}: {error!r}", flush=True)
                    os._exit(1)
            assert os.waitpid(child, 0)[1] == 0, f"the lock of {version} is not held any more"
    os.close(stopper)
    total = 0
    for child, answer in workers:
        assert os.waitpid(child, 0)[1] == 0, "a worker failed"
        total += int(os.read(answer, 20))
    drop_caches()
    for version, base in MOUNTS.items():
        seen = int(read(f"{base}/counter"))
        assert seen == total, f"{total} additions under locks, and {version} reads {seen}"
    for fd in held.values():
        os.close(fd)
    print(f"{rounds} kills: {total} additions under locks, none lost")


def main():
    for version, base in MOUNTS.items():
        files(version, base)
        sparse(version, base)
        clones(version, base)
        attributes(version, base)
    seen_by_all()
    for version in NEW:
        lists(version)
    locks()
    killed(int(sys.argv[1]))
    print("NFS-DAY-OK")


main()
