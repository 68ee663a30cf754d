#!/usr/bin/env python3
"""What a client of SMB 2.1 does to a share, with as little work on its own side as it can: a guest that signs nothing, several requests
under way, packets made once. A connection per process.

  smbbench.py PORT SHARE write MIB DEPTH          a file of MIB written in requests of 1 MiB, and flushed
  smbbench.py PORT SHARE read MIB DEPTH           the same file read, again and again for 4 s
  smbbench.py PORT SHARE small COUNT BYTES CONNS  COUNT files made, written, flushed and closed, in a directory of each connection;
                                                  then opened, read and closed; then deleted
  smbbench.py PORT SHARE names COUNT              COUNT empty files made in one directory, without a flush; then deleted
Lines: name, operations a second, 50th and 99th percentile of the latency in microseconds.
"""
import multiprocessing, os, socket, struct, sys, time

NEGOTIATE, SESSION, TREE, CREATE, CLOSE, FLUSH, READ, WRITE = 0, 1, 3, 5, 6, 7, 8, 9
MORE = 0xC0000016
MIB = 1 << 20
# CREATE's dispositions (2: make it, 1: it is there) and options (directory 1, not a directory 0x40, gone with the handle 0x1000).
MAKE, OPEN = 2, 1


class Smb:
    def __init__(self, port, share):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.id = self.session = self.tree = 0
        self.buffer = bytearray(MIB + 4096)
        self.call(NEGOTIATE, struct.pack("<HHHHI16sQH", 36, 1, 1, 0, 4, os.urandom(16), 0, 0x0210))
        hello = b"NTLMSSP\0" + struct.pack("<II", 1, 0x00088205) + bytes(16)
        self.setup(hello, MORE)
        user, at = "stranger".encode("utf-16le"), 64
        # A user whom the server does not know, with an answer to its challenge that is none: a guest.
        fields = [b"\1" * 24, b"\1" * 24, b"", user, b"", b""]
        proof, body = b"NTLMSSP\0" + struct.pack("<I", 3), b""
        for field in fields:
            proof += struct.pack("<HHI", len(field), len(field), at + len(body))
            body += field
        self.setup(proof + struct.pack("<I", 0x00088205) + body, 0)
        path = f"\\\\127.0.0.1\\{share}".encode("utf-16le")
        self.call(TREE, struct.pack("<HHHH", 9, 0, 72, len(path)) + path)
        self.tree = struct.unpack_from("<I", self.buffer, 36)[0]

    def setup(self, token, expected):
        self.call(SESSION, struct.pack("<HBBIIHHQ", 25, 0, 1, 0, 0, 88, len(token), 0) + token, expected)
        self.session = struct.unpack_from("<Q", self.buffer, 40)[0]

    def send(self, command, body, data=b"", credits=1):
        header = struct.pack("<4sHHIHHIIQIIQ16s", b"\xfeSMB", 64, credits, 0, command, 512, 0, 0, self.id, 0, self.tree, self.session, bytes(16))
        self.id += credits
        length = len(header) + len(body) + len(data)
        parts = [struct.pack(">I", length) + header + body, data]
        sent = self.socket.sendmsg(parts)
        if sent < length + 4:
            rest = b"".join(parts)[sent:]
            self.socket.sendall(rest)

    def receive(self, expected=0):
        """Returns the length of an answer, which is in the buffer then."""
        view = memoryview(self.buffer)
        while True:
            for at, length in ((0, 4), (0, None)):
                length = struct.unpack_from(">I", self.buffer)[0] if length is None else length
                while at < length:
                    got = self.socket.recv_into(view[at:length])
                    if not got:
                        sys.exit("smbbench: the connection was closed")
                    at += got
            status = struct.unpack_from("<I", self.buffer, 8)[0]
            if status == 0x103:  # STATUS_PENDING: the answer follows.
                continue
            if status != expected:
                sys.exit(f"smbbench: command {self.buffer[12]}: status {status:#x}")
            return length

    def call(self, command, body, expected=0):
        self.send(command, body)
        return self.receive(expected)

    def create(self, path, disposition, options=0x40, access=0x00120089 | 0x00010116):
        name = path.encode("utf-16le")
        self.call(CREATE, struct.pack("<HBBIQQIIIIIHHII", 57, 0, 0, 2, 0, 0, access, 0x80, 7, disposition, options, 120, len(name), 0, 0) + (name or b"\0"))
        return bytes(self.buffer[128:144])

    def close(self, file):
        self.call(CLOSE, struct.pack("<HHI16s", 24, 0, 0, file))

    def flush(self, file):
        self.call(FLUSH, struct.pack("<HHI16s", 24, 0, 0, file))

    def send_write(self, file, offset, data):
        charge = max(1, -(-len(data) // 65536))
        self.send(WRITE, struct.pack("<HHIQ16sIIHHI", 49, 112, len(data), offset, file, 0, 0, 0, 0, 0), data, charge)

    def send_read(self, file, offset, length):
        charge = max(1, -(-length // 65536))
        self.send(READ, struct.pack("<HBBIQ16sIIIHHB", 49, 80, 0, length, offset, file, 0, 0, 0, 0, 0, 0), b"", charge)

    def delete(self, path):
        self.close(self.create(path, OPEN, 0x1040, 0x00010080))


def pipeline(smb, depth, total, begin, until=None):
    """Keeps `depth` requests under way; returns how long each took."""
    began, took, sent = [], [], 0
    while len(took) < total:
        while sent < total and sent - len(took) < depth:
            began.append(time.perf_counter())
            begin(sent)
            sent += 1
        smb.receive()
        # Answers of one file come in the order of requests, or nearly.
        took.append(time.perf_counter() - began[len(took)])
        if until and time.perf_counter() > until:
            total = sent
    return took


def report(name, took, seconds):
    took.sort()
    at = lambda share: took[int(len(took) * share)] * 1e6
    print(f"{name} {len(took) / seconds:.1f} {at(0.5):.0f} {at(0.99):.0f}", flush=True)


def half():
    """1 MiB of which half compresses."""
    return b"".join(os.urandom(2048) + bytes(2048) for _ in range(MIB // 4096))


def timed(took, work, *arguments):
    began = time.perf_counter()
    work(*arguments)
    took.append(time.perf_counter() - began)


def files(port, share, me, count, size, barrier, answers):
    smb, data, directory = Smb(port, share), half()[:size], f"d{me}"
    smb.close(smb.create(directory, MAKE, 1))

    def make(path):
        file = smb.create(path, MAKE)
        smb.send_write(file, 0, data)
        smb.receive()
        smb.flush(file)
        smb.close(file)

    def read(path):
        file = smb.create(path, OPEN, access=0x00120089)
        smb.send_read(file, 0, size)
        smb.receive()
        smb.close(file)

    for name, work in (("make", make), ("read", read), ("delete", smb.delete)):
        barrier.wait()
        took, began = [], time.perf_counter()
        for number in range(count):
            timed(took, work, f"{directory}\\file-{number:05}.txt")
        barrier.wait()
        answers.put((name, took, time.perf_counter() - began))
    smb.delete_directory = smb.close(smb.create(directory, OPEN, 0x1001, 0x00010080))


def main():
    port, share, what, *rest = int(sys.argv[1]), *sys.argv[2:]
    numbers = [int(word) for word in rest]
    if what in ("write", "read"):
        (mib, depth), smb = numbers, Smb(port, share)
        file = smb.create("large", 3 if what == "write" else OPEN)
        began = time.perf_counter()
        if what == "write":
            data = half()
            took = pipeline(smb, depth, mib, lambda n: smb.send_write(file, n * MIB, data))
            smb.flush(file)
        else:
            took = pipeline(smb, depth, 1 << 30, lambda n: smb.send_read(file, n % mib * MIB, MIB), began + 4)
        report(f"{what}-1m", took, time.perf_counter() - began)
        smb.close(file)
    elif what == "small":
        count, size, connections = numbers
        barrier, answers = multiprocessing.Barrier(connections), multiprocessing.Queue()
        work = [multiprocessing.Process(target=files, args=(port, share, me, count // connections, size, barrier, answers)) for me in range(connections)]
        for process in work:
            process.start()
        told = [answers.get(timeout=600) for _ in range(3 * connections)]
        for process in work:
            process.join()
        for name in ("make", "read", "delete"):
            mine = [answer for answer in told if answer[0] == name]
            report(f"{name}-small", [one for _, took, _ in mine for one in took], max(seconds for *_, seconds in mine))
    else:
        (count,), smb = numbers, Smb(port, share)
        smb.close(smb.create("many", MAKE, 1))
        for name, work in (("names", lambda path: smb.close(smb.create(path, MAKE))), ("unname", smb.delete)):
            took, began = [], time.perf_counter()
            for number in range(count):
                timed(took, work, f"many\\file-{number:05}.txt")
            report(f"{name}-{count}", took, time.perf_counter() - began)
        smb.close(smb.create("many", OPEN, 0x1001, 0x00010080))


main()
