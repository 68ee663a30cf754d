#!/usr/bin/env python3
"""Clients that know what was acknowledged, for tests/interop/kill.sh.

    kill.py --state DIR --sanbox PROGRAM --nfs-port N --target IQN --iscsi-port N --rounds N [--fuse DIR]

Each round starts the server, lets the clients work, kills the server with SIGKILL at some moment, starts it again and looks
whether everything acknowledged is there, in each of:

  nfs    libnfs (NFSv3): FILE_SYNC writes, unstable writes with COMMIT, creations, renames, removals
  fuse   a mount: O_SYNC writes, writes with fsync, creations and renames with fsync of the directory
  nbd    a volume: writes with FUA, writes with flush
  iscsi  a volume: WRITE(16) with FUA, and with SYNCHRONIZE CACHE

What was under way when the server died may be there or not, whole or (in a volume and within one write) in part.
"""
import argparse
import ctypes
import errno
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
import importlib.util

# Seconds that anything may take; half a minute is much more than a loaded machine needs.
LIMIT = 30
HERE = os.path.dirname(os.path.abspath(__file__))


class Gone(Exception):
    """The server went away."""


class Stuck(Exception):
    """Something did not come to its end in time."""


class Wrong(Exception):
    """Something acknowledged is not there."""


class Bytes:
    """What a file or volume holds: certain bytes, and ranges of which each byte may be one of several."""

    def __init__(self, size=0):
        self.data = bytearray(size)
        self.maybe = []

    def write(self, at, data):
        if at + len(data) > len(self.data):
            self.data.extend(bytes(at + len(data) - len(self.data)))
        self.data[at : at + len(data)] = data

    def settle(self, found, name):
        """Compares with what was found, and takes over what was uncertain."""
        possible = {}
        longest = len(self.data)
        for at, data in self.maybe:
            longest = max(longest, at + len(data))
            for i, byte in enumerate(data):
                possible.setdefault(at + i, set()).add(byte)
        if not len(self.data) <= len(found) <= longest:
            raise Wrong(f"{name}: {len(found)} bytes, acknowledged {len(self.data)}")
        if found[: len(self.data)] != self.data or len(found) > len(self.data):
            for i, byte in enumerate(found):
                sure = self.data[i] if i < len(self.data) else 0
                if byte != sure and byte not in possible.get(i, ()):
                    raise Wrong(f"{name}: byte {i} is {byte}, acknowledged {sure}")
        self.data = bytearray(found)
        self.maybe = []


class Files:
    """A client of a file system, with its oracle. `do` is one operation, `look` the judgement after the restart."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.files = {}  # name -> Bytes
        self.pending = None  # (kind, name, other)
        self.count = 0
        self.operations = 0

    def fresh(self):
        self.count += 1
        return f"f{self.count}"

    def do(self):
        r = self.random
        kind = r.choice("cwwwwwwuuurx") if self.files else "c"
        name = r.choice(list(self.files)) if self.files else None
        if kind == "c":
            if len(self.files) > 24:
                return
            name = self.fresh()
            self.pending = ("c", name, None)
            self.create(name)
            self.files[name] = Bytes()
        elif kind == "w":
            at, data = r.choice([0, r.randrange(200_000)]), r.randbytes(r.choice([512, 4096, 8192, r.randrange(1, 60_000)]))
            file = self.files[name]
            file.maybe.append((at, data))
            self.write(name, [(at, data)], True)
            file.write(at, data)
            file.maybe = []
        elif kind == "u":
            file = self.files[name]
            parts = [(r.randrange(200_000), r.randbytes(r.randrange(1, 9000))) for _ in range(r.randrange(1, 5))]
            # A later part may be there without an earlier one: nothing is promised before the commit.
            file.maybe += parts
            self.write(name, parts, False)
            for at, data in parts:
                file.write(at, data)
            file.maybe = []
        elif kind == "r":
            other = self.fresh() if r.random() < 0.5 else r.choice(list(self.files))
            # Two names of one file both stay.
            if other == name or self.files.get(other) is self.files[name]:
                return
            self.pending = ("r", name, other)
            self.rename(name, other)
            self.files[other] = self.files.pop(name)
        elif kind == "x":
            self.pending = ("x", name, None)
            self.remove(name)
            del self.files[name]
        self.pending = None
        self.operations += 1

    def look(self):
        names = set(self.names())
        if self.pending:
            kind, name, other = self.pending
            if kind == "c" and name in names:
                self.files[name] = Bytes()
            elif kind == "x" and name not in names:
                del self.files[name]
            elif kind == "r" and name not in names:
                self.files[other] = self.files.pop(name)
            self.pending = None
        if names != set(self.files):
            raise Wrong(f"{self.kind}: names lost {set(self.files) - names}, unexpected {names - set(self.files)}")
        for name, file in self.files.items():
            file.settle(self.read(name), f"{self.kind} {name}")


class Nfs(Files):
    kind = "nfs"
    lib = None

    def __init__(self, seed, port, export):
        super().__init__(seed)
        self.port, self.export, self.context = port, export, None
        if Nfs.lib is None:
            lib = Nfs.lib = ctypes.CDLL("libnfs.so.13")
            lib.nfs_init_context.restype = ctypes.c_void_p
            lib.nfs_get_error.restype = ctypes.c_char_p
            lib.nfs_readdir.restype = ctypes.c_void_p

    def connect(self):
        lib = self.lib
        self.context, self.is_gone = ctypes.c_void_p(lib.nfs_init_context()), False
        lib.nfs_set_autoreconnect(self.context, 0)
        lib.nfs_set_timeout(self.context, 20_000)
        url = f"nfs://127.0.0.1{self.export}?nfsport={self.port}&mountport={self.port}&version=3&autoreconnect=0".encode()
        lib.nfs_parse_url_dir.restype = ctypes.POINTER(ctypes.c_char_p * 3)
        parts = lib.nfs_parse_url_dir(self.context, url)
        if not parts:
            raise RuntimeError("the URL is not understood")
        server, path, _ = parts.contents
        self.check(lib.nfs_mount(self.context, server, path))

    def disconnect(self):
        if self.context and self.is_gone:
            # The call that failed left its answer's place, on a stack that is no more, in the context: destroying it would
            # write there. It is small, and stays.
            fd = self.lib.nfs_get_fd(self.context)
            if fd >= 0:
                os.close(fd)
        elif self.context:
            self.lib.nfs_destroy_context(self.context)
        self.context = None

    def check(self, code):
        if code < 0:
            why = self.lib.nfs_get_error(self.context)
            # Without an answer libnfs says EIO and this; anything else is the server's answer, and a mistake.
            self.is_gone = code == -errno.EIO and b"nfs_service failed" in why
            raise (Gone if self.is_gone else Wrong)(f"nfs: {code} {why}")
        return code

    def create(self, name):
        handle = ctypes.c_void_p()
        self.check(self.lib.nfs_creat(self.context, b"/" + name.encode(), 0o644, ctypes.byref(handle)))
        self.lib.nfs_close(self.context, handle)

    def write(self, name, parts, sync):
        handle = ctypes.c_void_p()
        flags = os.O_RDWR | (os.O_SYNC if sync else 0)
        self.check(self.lib.nfs_open(self.context, b"/" + name.encode(), flags, ctypes.byref(handle)))
        for at, data in parts:
            done = 0
            while done < len(data):
                rest = data[done:]
                done += self.check(
                    self.lib.nfs_pwrite(self.context, handle, ctypes.c_uint64(at + done), ctypes.c_uint64(len(rest)), rest)
                )
        if not sync:
            self.check(self.lib.nfs_fsync(self.context, handle))
        self.lib.nfs_close(self.context, handle)

    def rename(self, name, other):
        self.check(self.lib.nfs_rename(self.context, b"/" + name.encode(), b"/" + other.encode()))

    def remove(self, name):
        self.check(self.lib.nfs_unlink(self.context, b"/" + name.encode()))

    def names(self):
        handle = ctypes.c_void_p()
        self.check(self.lib.nfs_opendir(self.context, b"/", ctypes.byref(handle)))
        names = []
        while entry := self.lib.nfs_readdir(self.context, handle):
            # struct nfsdirent: next, name, ...
            name = ctypes.cast(entry, ctypes.POINTER(ctypes.c_char_p))[1].decode()
            if name not in (".", ".."):
                names.append(name)
        self.lib.nfs_closedir(self.context, handle)
        return names

    def read(self, name):
        handle = ctypes.c_void_p()
        self.check(self.lib.nfs_open(self.context, b"/" + name.encode(), os.O_RDONLY, ctypes.byref(handle)))
        found = bytearray()
        part = ctypes.create_string_buffer(1 << 16)
        while True:
            got = self.check(
                self.lib.nfs_pread(self.context, handle, ctypes.c_uint64(len(found)), ctypes.c_uint64(len(part)), part)
            )
            if got == 0:
                break
            found += part.raw[:got]
        self.lib.nfs_close(self.context, handle)
        return bytes(found)


class Fuse(Files):
    kind = "fuse"

    def __init__(self, seed, directory):
        super().__init__(seed)
        self.directory = directory

    def guard(self, do):
        try:
            return do()
        except OSError as error:
            is_gone = error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
            raise (Gone if is_gone else Wrong)(f"fuse: {error}") from error

    def connect(self):
        for _ in range(100):
            if os.path.ismount(self.directory):
                return
            time.sleep(0.05)
        raise Gone("not mounted")

    def disconnect(self):
        subprocess.run(["umount", "-l", self.directory], stderr=subprocess.DEVNULL, check=False)

    def path(self, name):
        return os.path.join(self.directory, name)

    def sync_directory(self):
        fd = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def create(self, name):
        def do():
            fd = os.open(self.path(name), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        self.guard(do)

    def write(self, name, parts, sync):
        def do():
            fd = os.open(self.path(name), os.O_RDWR | (os.O_SYNC if sync else 0))
            try:
                for at, data in parts:
                    while data:
                        done = os.pwrite(fd, data, at)
                        at, data = at + done, data[done:]
                if not sync:
                    os.fsync(fd)
            finally:
                os.close(fd)
        self.guard(do)

    def rename(self, name, other):
        def do():
            os.rename(self.path(name), self.path(other))
            self.sync_directory()
        self.guard(do)

    def remove(self, name):
        def do():
            os.unlink(self.path(name))
            self.sync_directory()
        self.guard(do)

    def names(self):
        return self.guard(lambda: os.listdir(self.directory))

    def read(self, name):
        def do():
            with open(self.path(name), "rb") as file:
                return file.read()
        return self.guard(do)


class Volume:
    """A client of a block volume, with its oracle: writes of whole sectors, each durable, or several and a flush."""

    def __init__(self, seed, size):
        self.random, self.bytes, self.size = random.Random(seed), Bytes(size), size
        self.operations = 0

    def do(self):
        r = self.random
        parts = []
        for _ in range(1 if r.random() < 0.6 else r.randrange(2, 5)):
            length = r.choice([512, 4096, 8192, 512 * r.randrange(1, 100)])
            parts.append((512 * r.randrange((self.size - length) // 512), r.randbytes(length)))
        self.bytes.maybe += parts
        if len(parts) == 1:
            self.write(*parts[0], True)
        else:
            for at, data in parts:
                self.write(at, data, False)
            self.flush()
        for at, data in parts:
            self.bytes.write(at, data)
        self.bytes.maybe = []
        self.operations += 1

    def look(self):
        found = bytearray()
        while len(found) < self.size:
            found += self.read(len(found), min(1 << 17, self.size - len(found)))
        self.bytes.settle(bytes(found), self.kind)


class Nbd(Volume):
    kind = "nbd"

    def __init__(self, seed, size, path, export):
        super().__init__(seed, size)
        self.path, self.export, self.socket = path, export, None

    def receive(self, count):
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise Gone("closed")
            data += part
        return data

    def connect(self):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(self.path)
        assert self.receive(16) == b"NBDMAGICIHAVEOPT"
        self.receive(2)
        self.socket.sendall(struct.pack(">I", 3))
        name = self.export.encode()
        self.socket.sendall(b"IHAVEOPT" + struct.pack(">II", 1, len(name)) + name)
        size, _ = struct.unpack(">QH", self.receive(10))
        assert size >= self.size, size

    def disconnect(self):
        if self.socket:
            self.socket.close()
            self.socket = None

    def request(self, kind, flags, at, length, data=b""):
        try:
            self.socket.sendall(struct.pack(">IHHQQI", 0x25609513, flags, kind, 7, at, length) + data)
            magic, error, cookie = struct.unpack(">IIQ", self.receive(16))
            assert (magic, cookie) == (0x67446698, 7)
            if error:
                raise Wrong(f"nbd: error {error}")
            return self.receive(length) if kind == 0 else b""
        except OSError as error:
            raise Gone(str(error)) from error

    def write(self, at, data, fua):
        self.request(1, 1 if fua else 0, at, len(data), data)

    def flush(self):
        self.request(3, 0, 0, 0)

    def read(self, at, length):
        return self.request(0, 0, at, length)


class Iscsi(Volume):
    kind = "iscsi"

    def __init__(self, seed, size, port, target):
        super().__init__(seed, size)
        self.port, self.target, self.session = port, target, None
        spec = importlib.util.spec_from_file_location("initiator", os.path.join(HERE, "iscsi-initiator.py"))
        self.initiator = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.initiator)

    def connect(self):
        self.session = self.initiator.Session(self.port, self.target, 9, False)

    def disconnect(self):
        if self.session:
            self.session.socket.close()
            self.session = None

    def command(self, cdb, out=b"", expected=0):
        try:
            # A fresh session is told first that the target has restarted, which `good` passes over.
            return self.session.good(cdb, want=expected, out=out)
        except OSError as error:
            raise Gone(str(error)) from error
        except AssertionError as error:
            if "closed" in str(error):
                raise Gone("closed") from error
            raise

    def write(self, at, data, fua):
        cdb = struct.pack(">BBQIBB", 0x8A, 8 if fua else 0, at // 512, len(data) // 512, 0, 0)
        self.command(cdb, data)

    def flush(self):
        self.command(struct.pack(">BBQIBB", 0x91, 0, 0, 0, 0, 0))

    def read(self, at, length):
        return self.command(struct.pack(">BBQIBB", 0x88, 0, at // 512, length // 512, 0, 0), b"", length)


class Phases:
    """Where the time goes: seconds by the name of what was waited for. Every wait has a limit and says what it was for."""

    def __init__(self):
        self.seconds, self.longest = {}, {}

    def note(self, name, began):
        took = time.monotonic() - began
        self.seconds[name] = self.seconds.get(name, 0) + took
        if took > self.longest.get(name, 0):
            self.longest[name] = took

    def __str__(self):
        names = sorted(self.seconds, key=self.seconds.get, reverse=True)
        return ", ".join(f"{name} {self.seconds[name]:.1f} (longest {self.longest[name]:.2f})" for name in names)


class Server:
    def __init__(self, arguments, phases):
        self.arguments, self.phases, self.process = arguments, phases, None
        self.log = arguments.state + "/kill.log"

    def start(self, why):
        a = self.arguments
        words = [a.sanbox, "serve", "--listen", "127.0.0.1", "--nfs-port", str(a.nfs_port), "--iscsi-port", str(a.iscsi_port)]
        words += ["--nbd-port", "0", "--no-portmap"] + (["--mount"] if a.fuse else [])
        began = time.monotonic()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log)
            before = log.tell()
        told = b""
        while b"sanbox: ready" not in told:
            ended, late = self.process.poll(), time.monotonic() - began > LIMIT
            with open(self.log, "rb") as log:
                log.seek(before)
                told = log.read()
            if ended is not None or late:
                end = f"was not ready after {LIMIT} s" if ended is None else f"ended with {ended}"
                raise Stuck(f"the server {end} ({why}):\n{told[-2000:].decode(errors='replace')}")
            time.sleep(0.005)
        self.phases.note(why, began)

    def kill(self):
        began = time.monotonic()
        self.process.kill()
        try:
            self.process.wait(LIMIT)
        except subprocess.TimeoutExpired as error:
            raise Stuck(f"the killed server is still there after {LIMIT} s") from error
        self.phases.note("its end", began)

    def stop(self):
        """On the way out, whatever happened."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait(LIMIT)


def one_round(clients, server, phases, r):
    """Returns what is wrong."""
    server.start("start")
    for client in clients:
        phases_of(phases, f"{client.kind} connects", client.connect)
    problems = []

    def work(client):
        try:
            while True:
                client.do()
        except Gone:
            pass
        except BaseException as error:  # noqa: B902
            problems.append(f"{client.kind}: {type(error).__name__}: {error}")

    # As daemons: a client that hangs in a system call must not keep this program from ending.
    threads = [threading.Thread(target=work, args=(client,), daemon=True) for client in clients]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    time.sleep(r.choice([0.02, 0.1, 0.3, 1.0]) * r.random() + 0.01)
    phases.note("work", began)
    server.kill()
    for client, thread in zip(clients, threads):
        began = time.monotonic()
        thread.join(LIMIT)
        phases.note(f"{client.kind} notices", began)
        if thread.is_alive():
            raise Stuck(f"the {client.kind} client still waits {LIMIT} s after the server's end")
    for client in clients:
        phases_of(phases, f"{client.kind} disconnects", client.disconnect)
    if problems:
        return problems
    server.start("start after a kill")
    for client in clients:
        phases_of(phases, f"{client.kind} connects", client.connect)
        try:
            phases_of(phases, f"{client.kind} looks", client.look)
        except Wrong as error:
            problems.append(str(error))
        phases_of(phases, f"{client.kind} disconnects", client.disconnect)
    server.kill()
    return problems


def phases_of(phases, name, do):
    """Does something that has its own limit, or is given up after LIMIT by ending the program."""
    began = time.monotonic()
    watch = threading.Timer(LIMIT, give_up, [name])
    watch.daemon = True
    watch.start()
    try:
        return do()
    finally:
        watch.cancel()
        phases.note(name, began)


def give_up(name):
    print(f"kill: {name}: not done after {LIMIT} s", flush=True)
    os._exit(1)


def main():
    parser = argparse.ArgumentParser()
    for name in ("--state", "--sanbox", "--target", "--fuse"):
        parser.add_argument(name)
    for name in ("--nfs-port", "--iscsi-port", "--rounds", "--volume-bytes", "--seed"):
        parser.add_argument(name, type=int, default=0)
    arguments = parser.parse_args()
    seed = arguments.seed or random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}", flush=True)
    r = random.Random(seed)
    size = arguments.volume_bytes
    clients = [Nfs(r.random(), arguments.nfs_port, "/tank/files"), Nbd(r.random(), size, arguments.state + "/nbd.sock", "tank/nbd")]
    clients.append(Nfs(r.random(), arguments.nfs_port, "/tank/throughput"))
    if arguments.target:
        clients.append(Iscsi(r.random(), size, arguments.iscsi_port, arguments.target))
    if arguments.fuse:
        clients.append(Fuse(r.random(), arguments.fuse))
    phases = Phases()
    server = Server(arguments, phases)
    began = time.monotonic()
    number, problems = 0, []
    try:
        for number in range(1, arguments.rounds + 1):
            problems = one_round(clients, server, phases, r)
            if problems:
                break
            if number % 20 == 0 or os.environ.get("VERBOSE"):
                done = {client.kind: client.operations for client in clients}
                print(f"{number} rounds, {2 * number} kills, {time.monotonic() - began:.0f} s, acknowledged operations: {done}", flush=True)
    except (Stuck, Gone) as error:
        problems = [str(error)]
    finally:
        server.stop()
    print(f"seconds: {phases}")
    if problems:
        print(f"round {number}, seed {seed}: " + "; ".join(problems), flush=True)
        # Not by way of threads that may hang in the kernel.
        os._exit(1)
    done = ", ".join(f"{client.kind} {client.operations}" for client in clients)
    print(f"{number} rounds, {2 * number} kills, {time.monotonic() - began:.0f} s, nothing acknowledged was lost ({done} operations)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
