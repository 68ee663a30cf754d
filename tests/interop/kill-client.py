#!/usr/bin/env python3
"""The kernel's NFS client under a server that dies again and again: runs in the guest, for tests/interop/kill-vm.py.

    kill-client.py WORKDIR LOOKDIR WORKERS SEED STOPFILE

The share is mounted twice: WORKDIR as everybody mounts it ("hard": an operation waits until the server is back), LOOKDIR
without any caching of names, attributes (noac) or data (O_DIRECT), so that what is looked at comes from the server. Each worker
has a directory of its own and does one operation after the other; whatever returned is acknowledged. Every acknowledged
operation is told on the standard output, outside the share. After each operation that took long (the server was away), and now
and then, a worker looks whether everything acknowledged is there; at the end it tells what every file must hold.

An NFSv3 client sends a call again that was not answered, and the server that it reaches then may have done it already before it
died: a repeated rename says ENOENT, a repeated mkdir EEXIST. That is taken as done only after a wait, and the look decides.
"""
import errno
import hashlib
import importlib.util
import mmap
import os
import random
import stat
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location("kill", os.path.join(HERE, "kill.py"))
kill = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kill)

# An operation that took longer than this many seconds may have been sent to two servers.
LONG = 0.8
PAGE = 4096


def tell(*words):
    os.write(1, (" ".join(str(word) for word in words) + "\n").encode())


class Kernel(kill.Files):
    kind = "kernel"

    def __init__(self, seed, number, work, look):
        super().__init__(seed)
        self.number, self.work, self.at = number, f"{work}/w{number}", f"{look}/w{number}"
        self.others = {}  # name -> None for a directory, or the target of a symbolic link
        self.repeated, self.last = 0, ""
        os.mkdir(self.work)

    def path(self, name):
        return f"{self.work}/{name}"

    def once(self, do, said_again):
        """Does what cannot be done twice."""
        began = time.monotonic()
        try:
            do()
        except OSError as error:
            if error.errno != said_again or time.monotonic() - began < LONG:
                raise
            self.repeated += 1

    def create(self, name):
        self.last = f"create {name}"
        os.close(os.open(self.path(name), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644))

    def write(self, name, parts, sync):
        how = self.random.choice(["sync", "fsync", "datasync"] if sync else ["fsync", "close", "mmap"])
        self.last = f"{how} {name} " + " ".join(f"{at}+{len(data)}" for at, data in parts)
        flags = {"sync": os.O_SYNC, "datasync": os.O_DSYNC}.get(how, 0)
        fd = os.open(self.path(name), os.O_RDWR | flags)
        try:
            for at, data in parts:
                if how == "mmap" and at + len(data) <= os.fstat(fd).st_size:
                    with mmap.mmap(fd, at + len(data)) as memory:
                        memory[at : at + len(data)] = data
                        memory.flush()
                    continue
                while data:
                    done = os.pwrite(fd, data, at)
                    at, data = at + done, data[done:]
            if how in ("fsync", "mmap"):
                os.fsync(fd)
        finally:
            # Without fsync it is the close that sends what is left and waits until it is safe.
            os.close(fd)

    def rename(self, name, other):
        self.last = f"rename {name} {other}"
        self.once(lambda: os.rename(self.path(name), self.path(other)), errno.ENOENT)

    def remove(self, name):
        self.last = f"unlink {name}"
        self.once(lambda: os.unlink(self.path(name)), errno.ENOENT)

    def do_other(self):
        """Links, directories and symbolic links."""
        r = self.random
        kind = r.choice("lds" + "-" * (len(self.others) // 3))
        if kind == "l" and self.files and len(self.files) < 24:
            name, other = r.choice(list(self.files)), self.fresh()
            self.last = f"link {name} {other}"
            self.once(lambda: os.link(self.path(name), self.path(other)), errno.EEXIST)
            self.files[other] = self.files[name]
        elif kind == "d":
            name = self.fresh()
            self.last = f"mkdir {name}"
            self.once(lambda: os.mkdir(self.path(name)), errno.EEXIST)
            self.others[name] = None
        elif kind == "s":
            name, target = self.fresh(), "x" * r.randrange(1, 300)
            self.last = f"symlink {name} {len(target)}"
            self.once(lambda: os.symlink(target, self.path(name)), errno.EEXIST)
            self.others[name] = target
        elif kind == "-":
            name = r.choice(list(self.others))
            is_directory = self.others[name] is None
            self.last = f"{'rmdir' if is_directory else 'unlink'} {name}"
            remove = os.rmdir if is_directory else os.unlink
            self.once(lambda: remove(self.path(name)), errno.ENOENT)
            del self.others[name]
        else:
            return
        self.operations += 1

    def do(self):
        if self.random.random() < 0.15:
            return self.do_other()
        return super().do()

    def names(self):
        """The files, after a look at everything else."""
        found, files = {}, []
        for entry in os.scandir(self.at):
            mode = os.lstat(entry.path).st_mode
            if stat.S_ISREG(mode):
                files.append(entry.name)
            else:
                found[entry.name] = os.readlink(entry.path) if stat.S_ISLNK(mode) else None
        if found != self.others:
            wrong = {name for name in found.keys() | self.others.keys() if found.get(name, 0) != self.others.get(name, 0)}
            raise kill.Wrong(f"worker {self.number}: directories or links differ: {sorted(wrong)}")
        return files

    def read(self, name):
        """What the server has: not by way of this client's page cache."""
        fd = os.open(f"{self.at}/{name}", os.O_RDONLY | os.O_DIRECT)
        try:
            size = os.fstat(fd).st_size
            found = bytearray()
            with mmap.mmap(-1, 1 << 18) as buffer:
                while len(found) < size:
                    got = os.preadv(fd, [buffer], len(found))
                    if got == 0:
                        break
                    found += buffer[:got]
            return bytes(found)
        finally:
            os.close(fd)


def run(kernel, stop):
    since_look = looks = 0
    while not os.path.exists(stop):
        before, began = kernel.operations, time.monotonic()
        kernel.do()
        took = time.monotonic() - began
        if kernel.operations == before:
            continue
        tell("A", kernel.number, kernel.operations, f"{took:.3f}", kernel.last)
        since_look += 1
        if took > LONG or since_look >= 60:
            kernel.look()
            since_look, looks = 0, looks + 1
    kernel.look()
    for name, file in sorted(kernel.files.items()):
        tell("M", f"w{kernel.number}/{name}", len(file.data), hashlib.sha256(file.data).hexdigest())
    tell("E", kernel.number, kernel.operations, looks + 1, kernel.repeated)


def main():
    work, look, workers, seed, stop = sys.argv[1:6]
    children = []
    for number in range(int(workers)):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                run(Kernel(f"{seed}.{number}", number, work, look), stop)
                status = 0
            except kill.Wrong as error:
                tell("WRONG", number, error)
            except BaseException as error:  # noqa: B902
                tell("WRONG", number, type(error).__name__, error)
            os._exit(status)
        children.append(child)
    failed = [child for child in children if os.waitpid(child, 0)[1]]
    tell("KILL-FAILED" if failed else "KILL-OK")
    return bool(failed)


sys.exit(main())
