#!/usr/bin/env python3
"""A client of NFSv3 that makes load: it mounts a share from an address of its own, and reads or writes a file there.

nfs3.py PORT PATH MODE SECONDS [SOURCE [STREAMS [SPAN_MIB [BLOCK_KIB]]]]
  write    blocks one behind the other, UNSTABLE, random bytes, a COMMIT every 64 MiB, over the span again and again
  sync     blocks at random places of the span, FILE_SYNC
  read     blocks at random places of the span, which 'write' has filled
Ends with an error when nothing was answered. "No space left" ends a write without one."""
import os
import random
import socket
import struct
import sys
import threading
import time

MOUNT, NFS = 100005, 100003
READ, WRITE, CREATE, COMMIT = 6, 7, 8, 21
UNSTABLE, FILE_SYNC = 0, 2
NO_SPACE = 28


def opaque(data):
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


def receive(stream, count):
    """Receives so many bytes, also where the system cannot wait for all of them."""
    data = b""
    while len(data) < count:
        part = stream.recv(count - len(data))
        assert part, "the connection ended"
        data += part
    return data


class Client:
    """A connection; calls are made one after the other."""

    def __init__(self, port, path, source="127.0.0.1"):
        self.stream = self.connect(port, source)
        self.xid = 0
        reply = self.call(MOUNT, 1, opaque(path.encode()))
        assert reply[:4] == bytes(4), f"MOUNT: {reply[:4].hex()}"
        (length,) = struct.unpack(">I", reply[4:8])
        self.root = reply[8 : 8 + length]

    def connect(self, port, source):
        stream = socket.socket()
        stream.bind((source, 0))
        stream.connect(("127.0.0.1", port))
        return stream

    def receive(self, count):
        return self.stream.recv(count, socket.MSG_WAITALL)

    def call(self, program, procedure, body):
        """Returns the results; the call was accepted."""
        self.xid += 1
        # RFC 5531, 8 and 9: AUTH_SYS as root without further groups.
        credential = struct.pack(">IIIII", 0, 0, 0, 0, 0)
        head = struct.pack(">IIIIII", self.xid, 0, 2, program, 3, procedure)
        message = head + struct.pack(">I", 1) + opaque(credential) + struct.pack(">II", 0, 0) + body
        self.stream.sendall(struct.pack(">I", 0x80000000 | len(message)) + message)
        reply = b""
        last = False
        while not last:
            (mark,) = struct.unpack(">I", self.receive(4))
            last = bool(mark & 0x80000000)
            reply += self.receive(mark & 0x7FFFFFFF)
        return reply[24:]

    def attributes(self):
        return struct.unpack(">I", self.call(NFS, 1, opaque(self.root))[:4])[0] == 0

    def create(self, name):
        # UNCHECKED, mode 0644, nothing else set.
        settings = struct.pack(">IIIIIIII", 0, 1, 0o644, 0, 0, 0, 0, 0)
        reply = self.call(NFS, CREATE, opaque(self.root) + opaque(name.encode()) + settings)
        status, follows, length = struct.unpack(">III", reply[:12])
        assert status == 0 and follows == 1, f"CREATE: {status}"
        return reply[12 : 12 + length]

    def write(self, handle, offset, data, stable):
        body = opaque(handle) + struct.pack(">QII", offset, len(data), stable) + opaque(data)
        return struct.unpack(">I", self.call(NFS, WRITE, body)[:4])[0]

    def read(self, handle, offset, count):
        body = opaque(handle) + struct.pack(">QI", offset, count)
        return struct.unpack(">I", self.call(NFS, READ, body)[:4])[0]

    def commit(self, handle):
        body = opaque(handle) + struct.pack(">QI", 0, 0)
        return struct.unpack(">I", self.call(NFS, COMMIT, body)[:4])[0]


def load(client, mode, name, until, span, block, counts):
    handle = client.create(name)
    places = max(span // block, 1)
    at = 0
    while time.monotonic() < until:
        if mode == "read":
            status = client.read(handle, random.randrange(places) * block, block)
        elif mode == "sync":
            status = client.write(handle, random.randrange(places) * block, os.urandom(block), FILE_SYNC)
        else:
            status = client.write(handle, at % places * block, os.urandom(block), UNSTABLE)
            at += 1
            if at % ((64 << 20) // block) == 0:
                client.commit(handle)
        if status == NO_SPACE:
            break
        assert status == 0, f"{mode}: {status}"
        counts.append(block)
    if mode == "write":
        client.commit(handle)


def main():
    port, path, mode, seconds = int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])
    source, streams, span, block = (sys.argv[5:] + ["127.0.0.1", "1", "64", "64"][len(sys.argv) - 5 :])[:4]
    span, block = int(span) << 20, int(block) << 10
    counts, until = [], time.monotonic() + seconds
    work = lambda name: load(Client(port, path, source), mode, name, until, span, block, counts)
    threads = [threading.Thread(target=work, args=(f"file{number}",)) for number in range(int(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{mode}: {len(counts)} requests, {sum(counts) >> 20} MiB")
    sys.exit(not counts)


if __name__ == "__main__":
    main()
