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
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
import importlib.util

HERE = os.path.dirname(os.path.abspath(__file__))


class Gone(Exception):
    """The server went away."""


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
            if other == name:
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
        self.context = ctypes.c_void_p(lib.nfs_init_context())
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
        if self.context:
            self.lib.nfs_destroy_context(self.context)
            self.context = None

    def check(self, code):
        if code < 0:
            raise Gone(f"{code} {self.lib.nfs_get_error(self.context)}")
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
            raise Gone(str(error)) from error

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


class Server:
    def __init__(self, arguments):
        self.arguments, self.process = arguments, None

    def start(self):
        a = self.arguments
        words = [a.sanbox, "serve", "--listen", "127.0.0.1", "--nfs-port", str(a.nfs_port), "--iscsi-port", str(a.iscsi_port)]
        words += ["--nbd-port", "0", "--no-portmap"] + (["--mount"] if a.fuse else [])
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=open(a.state + "/kill.log", "ab"))
        while line := self.process.stdout.readline():
            if b"ready" in line:
                return
        raise SystemExit("kill: the server did not start; see kill.log in its state directory")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


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
    server = Server(arguments)
    began = time.time()
    for number in range(1, arguments.rounds + 1):
        server.start()
        for client in clients:
            client.connect()
        problems = []

        def work(client):
            try:
                while True:
                    client.do()
            except Gone:
                pass
            except BaseException as error:  # noqa: B902
                problems.append(f"{client.kind}: {type(error).__name__}: {error}")

        threads = [threading.Thread(target=work, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        time.sleep(r.choice([0.02, 0.1, 0.3, 1.0]) * r.random() + 0.01)
        server.kill()
        for thread in threads:
            thread.join(60)
            if thread.is_alive():
                problems.append("a client hangs")
        for client in clients:
            client.disconnect()
        server.start()
        for client in clients:
            client.connect()
            try:
                client.look()
            except Wrong as error:
                problems.append(str(error))
            client.disconnect()
        server.kill()
        if problems:
            print(f"round {number}: " + "; ".join(problems))
            return 1
        if number % 20 == 0:
            done = {client.kind: client.operations for client in clients}
            print(f"{number} rounds, {2 * number} kills, {time.time() - began:.0f} s, acknowledged operations: {done}", flush=True)
    done = [f"{client.kind} {client.operations}" for client in clients]
    print(f"{arguments.rounds} rounds, {2 * arguments.rounds} kills, nothing acknowledged was lost ({', '.join(done)} operations)")
    return 0


sys.exit(main())
