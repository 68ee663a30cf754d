#!/usr/bin/env python3
"""What initiators' tools cannot be made to say to an iSCSI target: PDUs of our own making.

    iscsi-raw.py PORT IQN CASE [ARG...]

Each case prints 'good' when the target did what RFC 7143 and SAM-5 want. LUN 0 has blocks of 512 bytes; its content is destroyed.
"""
import hashlib
import os
import resource
import select
import socket
import struct
import sys
import time

from iscsi_pdu import crc32c, pad


NONE = 0xFFFFFFFF
NOP_OUT, COMMAND, TASK, LOGIN, TEXT, DATA, LOGOUT, SNACK = 0, 1, 2, 3, 4, 5, 6, 0x10
NOP_IN, RESPONSE, TASK_ANSWER, LOGIN_ANSWER, TEXT_ANSWER, DATA_IN, LOGOUT_ANSWER = 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26
R2T, ASYNC, REJECT = 0x31, 0x32, 0x3F
SIMPLE, ORDERED, HEAD, ACA = 1, 2, 3, 4


class Refused(Exception):
    """A login was answered with a status."""


class Numbers:
    """What connections of one session share."""

    def __init__(self):
        self.itt, self.cmd_sn = 0, 1


class Conn:
    def __init__(self, port, host="127.0.0.1"):
        self.socket = socket.create_connection((host, port))
        self.socket.settimeout(20)
        self.digests, self.session, self.tsih, self.cid = False, Numbers(), 0, 0
        self.stat_sn = 0

    # --- PDUs ---
    def pdu(self, op, flags=0x80, data=b"", immediate=False, itt=None, words=(), lun=0, spoil=None, bare=None):
        """Sends a PDU; words are (offset, value) of 32 bits each."""
        header = bytearray(48)
        header[0] = op | (0x40 if immediate else 0)
        header[1] = flags
        header[5:8] = (len(data) if bare is None else bare).to_bytes(3, "big")
        header[8:16] = struct.pack(">Q", lun << 48)
        header[16:20] = struct.pack(">I", self.tag() if itt is None else itt)
        for at, value in words:
            header[at : at + 4] = struct.pack(">I", value & NONE)
        out = bytes(header)
        if self.digests:
            sum_ = crc32c(out)
            out += sum_ if spoil != "header" else bytes([sum_[0] ^ 1]) + sum_[1:]
        if data:
            out += pad(data)
            if self.digests:
                sum_ = crc32c(pad(data))
                out += sum_ if spoil != "data" else bytes([sum_[0] ^ 1]) + sum_[1:]
        self.socket.sendall(out)
        return struct.unpack(">I", header[16:20])[0]

    def tag(self):
        self.session.itt += 1
        return self.session.itt

    def number(self):
        self.session.cmd_sn += 1
        return self.session.cmd_sn - 1

    def read(self, count):
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise EOFError("the connection was closed")
            data += part
        return data

    def receive(self, wait=20):
        self.socket.settimeout(wait)
        header = self.read(48)
        if self.digests:
            assert self.read(4) == crc32c(header), "header digest"
        count = int.from_bytes(header[5:8], "big")
        data = self.read(count + -count % 4)
        if self.digests and count:
            assert self.read(4) == crc32c(data), "data digest"
        return header, data[:count]

    def silent(self, seconds=0.4):
        return not select.select([self.socket], [], [], seconds)[0]

    def closed(self, wait=20):
        """Reads until the target closes; returns the opcodes that came before."""
        seen = []
        try:
            while True:
                seen.append(self.receive(wait)[0][0] & 0x3F)
        except (EOFError, ConnectionResetError):
            return seen

    # --- sessions ---
    def step(self, flags, text, isid):
        data = "".join(f"{k}={v}\0" for k, v in text).encode()
        header = [(24, self.session.cmd_sn)]
        self.login_itt = getattr(self, "login_itt", None) or self.tag()
        out = bytearray(48)
        out[0], out[1] = 0x43, flags
        out[5:8] = len(data).to_bytes(3, "big")
        out[8:14], out[14:16] = isid, struct.pack(">H", self.tsih)
        out[16:20] = struct.pack(">I", self.login_itt)
        out[20:22] = struct.pack(">H", self.cid)
        out[24:28] = struct.pack(">I", self.session.cmd_sn)
        del header
        self.socket.sendall(bytes(out) + pad(data))
        answer, data = self.receive()
        assert answer[0] & 0x3F == LOGIN_ANSWER
        pairs = dict(p.split("=", 1) for p in data.decode().split("\0") if p)
        status = struct.unpack(">H", answer[36:38])[0]
        if status:
            error = Refused(f"{status:04x}")
            error.pairs = pairs
            raise error
        self.answer_tsih = struct.unpack(">H", answer[14:16])[0]
        return pairs

    def login(self, target, host=1, chap=None, keys=(), tsih=0, cid=0, initiator=None, discovery=False):
        isid = b"\x80\x12\x34\x56\x00" + bytes([host])
        self.tsih, self.cid = tsih, cid
        name = initiator or f"iqn.2026-11.org.example:h{host}"
        text = [("InitiatorName", name), ("SessionType", "Discovery" if discovery else "Normal")]
        if target:
            text.append(("TargetName", target))
        if chap:
            self.first = self.step(0x00, text + [("AuthMethod", "CHAP")], isid)
            pairs = self.step(0x00, [("CHAP_A", "5")], isid)
            challenge = bytes.fromhex(pairs["CHAP_C"][2:])
            response = hashlib.md5(bytes([int(pairs["CHAP_I"])]) + chap[1].encode() + challenge).hexdigest()
            self.step(0x81, [("CHAP_N", chap[0]), ("CHAP_R", "0x" + response)], isid)
        else:
            self.first = self.step(0x81, text + [("AuthMethod", "None")], isid)
        wanted = dict([("InitialR2T", "No"), ("ImmediateData", "Yes"), ("MaxRecvDataSegmentLength", "65536")])
        wanted.update(keys)
        self.keys = self.step(0x87, list(wanted.items()), isid)
        self.tsih = self.answer_tsih
        self.digests = wanted.get("HeaderDigest") == "CRC32C"
        return self

    # --- commands ---
    def start(self, cdb, want=0, out=b"", attribute=SIMPLE, final=True, cmd_sn=None, immediate_data=None, lun=0, spoil=None):
        flags = (0x80 if final else 0) | (0x40 if want else 0) | (0x20 if out else 0) | attribute
        data = out[:65536] if immediate_data is None else immediate_data
        sn = self.number() if cmd_sn is None else cmd_sn
        return self.pdu(COMMAND, flags, data, lun=lun, spoil=spoil,
                        words=[(20, len(out) or want), (24, sn)] + [(32 + i, int.from_bytes(bytes(cdb[i : i + 4]).ljust(4, b"\0"), "big")) for i in range(0, len(cdb), 4)])

    def finish(self, itt):
        """Waits for a command; returns status, data and sense."""
        got = b""
        while True:
            header, data = self.receive()
            op = header[0] & 0x3F
            if op == NOP_IN and header[16:20] == b"\xff" * 4:
                continue
            assert struct.unpack(">I", header[16:20])[0] == itt, (header.hex(), itt)
            if op == DATA_IN:
                got += data
                if header[1] & 1:
                    return header[3], got, b""
            elif op == RESPONSE:
                return header[3], got, data[2:]
            else:
                return op, header, data

    def command(self, cdb, **kinds):
        return self.finish(self.start(cdb, **kinds))

    def good(self, cdb, **kinds):
        for _ in range(8):
            status, data, sense = self.command(cdb, **kinds)
            if not (status == 2 and sense[2] & 15 == 6):
                break
        assert status == 0, (status, sense.hex())
        return data


TUR = bytes(6)


def write_cdb(lba, blocks, fua=0):
    return struct.pack(">BBQIBB", 0x8A, 8 * fua, lba, blocks, 0, 0)


def read_cdb(lba, blocks):
    return struct.pack(">BBQIBB", 0x88, 0, lba, blocks, 0, 0)


# --- cases ---
def mcs(port, target):
    a = Conn(port).login(target, keys=[("MaxConnections", "4")])
    assert a.keys["MaxConnections"] == "4", a.keys
    a.good(TUR)
    b = Conn(port)
    b.session = a.session
    b.login(target, keys=[("MaxConnections", "4")], tsih=a.tsih, cid=7)
    assert b.tsih == a.tsih
    b.good(TUR)
    # Numbers run through the session: a command that is ahead waits for the one before it, on another connection.
    data = os.urandom(4096)
    first, second = a.number(), a.number()
    late = b.start(read_cdb(8, 8), want=4096, cmd_sn=second)
    assert b.silent(), "a command ran before its turn"
    early = a.start(write_cdb(8, 8), out=data, cmd_sn=first, attribute=ORDERED)
    assert a.finish(early)[0] == 0
    status, got, _ = b.finish(late)
    assert status == 0 and got in (data, got), status
    assert b.good(read_cdb(8, 8), want=4096) == data
    # One of another initiator may not join; nor may more than were agreed on.
    for wrong in [dict(host=2, tsih=a.tsih, cid=9), dict(host=1, tsih=a.tsih + 1000, cid=9)]:
        try:
            Conn(port).login(target, **wrong)
            raise SystemExit(f"joined: {wrong}")
        except Refused as error:
            assert str(error) in ("0208", "020a"), error
    more = []
    for cid in (8, 9):
        c = Conn(port)
        c.session = a.session
        more.append(c.login(target, tsih=a.tsih, cid=cid))
    try:
        c = Conn(port)
        c.session = a.session
        c.login(target, tsih=a.tsih, cid=10)
        raise SystemExit("a fifth connection")
    except Refused as error:
        assert str(error) == "0206", error
    # One connection logs another out (reason 1), one just goes; the session stays.
    a.pdu(LOGOUT, 0x81, words=[(20, 7 << 16), (24, a.number())])
    assert a.receive()[0][0] & 0x3F == LOGOUT_ANSWER
    assert b.closed() == []
    more[0].socket.close()
    time.sleep(0.2)
    assert more[1].good(read_cdb(8, 8), want=4096) == data
    a.good(TUR)
    # A command lost with its connection can be aborted; the session goes on.
    gap = a.number()
    a.pdu(TASK, 0x81, immediate=True, words=[(20, 0x7777), (24, a.session.cmd_sn), (32, gap)])
    header, _ = a.receive()
    assert header[0] & 0x3F == TASK_ANSWER and header[2] == 0, header.hex()
    a.good(TUR)
    # A command that came twice, or is outside of the window, is dropped.
    a.start(TUR, cmd_sn=a.session.cmd_sn - 1)
    a.start(TUR, cmd_sn=a.session.cmd_sn + 1000)
    assert a.silent()
    a.good(TUR)


def attributes(port, target):
    a, b = Conn(port).login(target, host=1), Conn(port).login(target, host=2)
    a.good(TUR)
    b.good(TUR)
    data = os.urandom(8192)
    # A write that still waits for its data holds up an ordered command of another session, and what comes after that.
    write = a.start(write_cdb(0, 16), out=data, immediate_data=data[:4096])
    header, _ = a.receive()
    assert header[0] & 0x3F == R2T
    ordered = b.start(read_cdb(0, 16), want=8192, attribute=ORDERED)
    after = b.start(TUR)
    assert b.silent(), "an ordered command overtook"
    head = a.start(TUR, attribute=HEAD)
    status = a.finish(head)[0]
    assert status == 0
    a.pdu(DATA, 0x80, data[4096:], itt=write, words=[(20, struct.unpack(">I", header[20:24])[0]), (36, 0), (40, 4096)])
    assert a.finish(write)[0] == 0
    status, got, _ = b.finish(ordered)
    assert status == 0 and got == data, "the ordered read came after the write"
    assert b.finish(after)[0] == 0
    # An aborted one holds nobody up.
    write = a.start(write_cdb(0, 16), out=data, immediate_data=data[:4096])
    a.receive()
    ordered = b.start(TUR, attribute=ORDERED)
    assert b.silent()
    a.pdu(TASK, 0x81, immediate=True, words=[(20, write), (24, a.session.cmd_sn), (32, a.session.cmd_sn - 1)])
    header, _ = a.receive()
    assert header[0] & 0x3F == TASK_ANSWER and header[2] == 0, header.hex()
    assert b.finish(ordered)[0] == 0
    # So does one whose connection goes.
    a.start(write_cdb(0, 16), out=data, immediate_data=data[:4096])
    a.receive()
    ordered = b.start(TUR, attribute=ORDERED)
    assert b.silent()
    a.socket.close()
    assert b.finish(ordered)[0] == 0
    # There is never an ACA.
    status, _, sense = b.command(TUR, attribute=ACA)
    assert (status, sense[2] & 15, sense[12:14]) == (2, 5, b"\x49\x00"), sense.hex()
    page = b.good(bytes([0x12, 1, 0x86, 0, 64, 0]), want=64)
    assert page[5] & 7 == 7, page.hex()


def recovery(port, target):
    """Error recovery level 0: what is damaged ends the connection, nothing else does."""
    digests = [("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C")]
    a = Conn(port).login(target, keys=digests + [("ErrorRecoveryLevel", "2"), ("DefaultTime2Retain", "60")])
    assert a.keys["ErrorRecoveryLevel"] == "0" and a.keys["DefaultTime2Retain"] == "0", a.keys
    a.good(TUR)
    a.pdu(NOP_OUT, 0x80, b"ping" * 10, words=[(20, NONE), (24, a.number())])
    header, data = a.receive()
    assert header[0] & 0x3F == NOP_IN and data == b"ping" * 10
    before = os.urandom(512)
    a.good(write_cdb(0, 1), out=before)
    a.start(write_cdb(0, 1), out=b"x" * 512, spoil="data")
    assert a.closed() == [REJECT]
    b = Conn(port).login(target, keys=digests)
    assert b.good(read_cdb(0, 1), want=512) == before, "damaged data was written"
    b.start(TUR, spoil="header")
    assert b.closed() == []
    # A segment longer than was agreed on, announced or sent.
    c = Conn(port).login(target)
    c.good(TUR)
    c.pdu(COMMAND, 0xA1, b"", bare=0xFFFFFF, words=[(20, 0xFFFFFF), (24, c.number())])
    assert c.closed() == []
    d = Conn(port)
    d.pdu(LOGIN, 0x87, b"", bare=200000)
    assert d.closed() == [], "a login of 200 KB was waited for"
    # SNACK belongs to higher levels, unknown opcodes to none.
    e = Conn(port).login(target)
    e.pdu(SNACK, 0x80, words=[(20, NONE)])
    header, _ = e.receive()
    assert header[0] & 0x3F == REJECT and header[2] == 5
    e.good(TUR)
    # Data out of order: the command fails, and the session does not.
    write = e.start(write_cdb(0, 16), out=b"y" * 8192, immediate_data=b"y" * 4096)
    header, _ = e.receive()
    e.pdu(DATA, 0x80, b"y" * 2048, itt=write, words=[(20, struct.unpack(">I", header[20:24])[0]), (36, 0), (40, 6144)])
    status, _, sense = e.finish(write)
    assert (status, sense[2] & 15) == (2, 0xB), sense.hex()
    assert e.good(read_cdb(0, 1), want=512) == before
    # The same port logs in again: the old session ends, with what it held.
    e.good(bytes([0x16, 0, 0, 0, 0, 0]))
    f = Conn(port).login(target, host=2)
    assert f.command(TUR)[0] in (0x18, 2)
    e2 = Conn(port).login(target)
    assert e.closed() == []
    f.good(TUR)
    # Keys that may not be changed any more; one that may.
    e2.pdu(TEXT, 0x80, b"MaxBurstLength=512\0MaxRecvDataSegmentLength=512\0X-test=1\0", words=[(20, NONE), (24, e2.number())])
    header, data = e2.receive()
    assert header[0] & 0x3F == TEXT_ANSWER and b"MaxBurstLength=Reject" in data, data
    itt = e2.start(read_cdb(0, 2), want=1024)
    header, data = e2.receive()
    assert header[0] & 0x3F == DATA_IN and len(data) == 512
    assert e2.receive()[0][1] & 1
    e2.pdu(LOGOUT, 0x80, words=[(24, e2.number())])
    assert e2.receive()[0][2] == 0
    assert e2.closed() == []
    del itt


def redirect(port, target, where):
    try:
        Conn(port).login(target)
        raise SystemExit("not sent elsewhere")
    except Refused as error:
        assert str(error) == "0101" and error.pairs["TargetAddress"] == where, error.pairs
    host, other = where.rsplit(":", 1)
    Conn(int(other), host.strip("[]")).login(target).good(TUR)


def discovery(port, target, user, secret, *portals):
    try:
        Conn(port).login(None, discovery=True)
        raise SystemExit("discovery without a secret")
    except Refused as error:
        assert str(error) == "0201", error
    a = Conn(port).login(None, discovery=True, chap=(user, secret))
    a.pdu(TEXT, 0x80, b"SendTargets=All\0", words=[(20, NONE), (24, a.number())])
    _, data = a.receive()
    told = [p[14:] for p in data.decode().split("\0") if p.startswith("TargetAddress=")]
    assert told == list(portals), told
    assert f"TargetName={target}" in data.decode().split("\0")
    a.pdu(COMMAND, 0x81, words=[(24, a.number())])
    assert REJECT in a.closed(), "a discovery session took a command"


def portals(port, target, other):
    """The second portal is another group: another target port, and no connection of the same session."""
    a, b = Conn(port).login(target), Conn(int(other)).login(target)
    assert (a.first["TargetPortalGroupTag"], b.first["TargetPortalGroupTag"]) == ("1", "2"), (a.first, b.first)
    a.good(TUR)
    b.good(TUR)
    try:
        c = Conn(int(other))
        c.login(target, tsih=a.tsih, cid=3)
        raise SystemExit("a session over two groups")
    except Refused as error:
        assert str(error) == "0208", error
    groups = a.good(bytes([0xA3, 0x0A, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0]), want=64)
    assert groups[11] == 2 and groups[15] == 1 and groups[19] == 2, groups.hex()
    # Registrations belong to both ports, even of one initiator.
    out = struct.pack(">QQIBBH", 0, 0xABC, 0, 0, 0, 0)
    a.good(bytes([0x5F, 0, 0, 0, 0, 0, 0, 0, 24, 0]), out=out)
    a.good(bytes([0x5F, 1, 1, 0, 0, 0, 0, 0, 24, 0]), out=struct.pack(">QQIBBH", 0xABC, 0, 0, 0, 0, 0))
    status = b.command(write_cdb(0, 1), out=b"z" * 512)[0]
    assert status == 0x18, status
    a.good(bytes([0x5F, 3, 0, 0, 0, 0, 0, 0, 24, 0]), out=struct.pack(">QQIBBH", 0xABC, 0, 0, 0, 0, 0))


def ipv6(port, target):
    a = Conn(port, "::1").login(target)
    data = os.urandom(4096)
    a.good(write_cdb(0, 8), out=data)
    assert a.good(read_cdb(0, 8), want=4096) == data
    b = Conn(port, "::1").login(None, discovery=True)
    b.pdu(TEXT, 0x80, b"SendTargets=All\0", words=[(20, NONE), (24, b.number())])
    assert f"TargetAddress=[::1]:{port},1".encode() in b.receive()[1]


def logout(port, target):
    """The target is about to end: it asks for logout, and we are slow to obey."""
    a = Conn(port).login(target)
    a.good(TUR)
    print("ready", flush=True)
    header, _ = a.receive()
    assert header[0] & 0x3F == ASYNC and header[36] == 1, header.hex()
    assert struct.unpack(">H", header[42:44])[0] == 3 or struct.unpack(">I", header[40:44])[0] == 3
    a.pdu(LOGOUT, 0x80, words=[(24, a.number())])
    assert a.receive()[0][0] & 0x3F == LOGOUT_ANSWER
    assert a.closed() == []


def threshold(port, target):
    a, b = Conn(port).login(target, host=1), Conn(port).login(target, host=2)
    a.good(TUR)
    b.good(TUR)
    page = a.good(bytes([0x12, 1, 0xB2, 0, 64, 0]), want=64)
    assert page[4] == 11 and page[6] & 7 == 2, page.hex()
    mode = a.good(bytes([0x5A, 8, 0x1C, 2, 0, 0, 0, 0, 64, 0]), want=64)
    descriptor = mode[8 + 16 : 8 + 24]
    assert descriptor[:2] == b"\x81\x01" and struct.unpack(">I", descriptor[4:])[0] > 0, mode.hex()
    data = os.urandom(65536)
    warned = {1: 0, 2: 0}
    for n in range(4000):
        status, _, sense = a.command(write_cdb(n * 128, 128), out=data)
        if status == 2:
            assert (sense[2] & 15, sense[12:14]) == (6, b"\x38\x07"), sense.hex()
            warned[1] += 1
            status, _, sense = b.command(TUR)
            assert (status, sense[2] & 15, sense[12:14]) == (2, 6, b"\x38\x07"), sense.hex()
            warned[2] += 1
            break
    assert warned == {1: 1, 2: 1}, warned
    for m in range(40):
        assert a.command(write_cdb((n + m) * 128, 128), out=data)[0] == 0, "warned twice"


def masks(port, target):
    """LUN 0 is everybody's; LUN 5 is one volume to h1 and another to h2, and LUN 6 is for h1 only."""
    a, b = Conn(port).login(target, host=1), Conn(port).login(target, host=2)
    luns = lambda c: [e[1] for e in chunks(c.good(bytes([0xA0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]), want=256)[8:], 8)]
    chunks = lambda data, n: [data[i : i + n] for i in range(0, len(data), n)]
    assert luns(a) == [0, 5, 6], luns(a)
    assert luns(b) == [0, 5], luns(b)
    serial = lambda c: c.good(bytes([0x12, 1, 0x80, 0, 64, 0]), want=64, lun=5)[4:20]
    assert serial(a) != serial(b)
    status, _, sense = b.command(TUR, lun=6)
    assert (status, sense[12]) == (2, 0x25), sense.hex()


def loris(port, target):
    """Connections that say nothing, or a byte now and then, keep nobody out and do not last."""
    limit(4000)
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(700)]
    began = time.time()
    Conn(port).login(target).good(TUR)
    assert time.time() - began < 10, "an honest login was slow"
    time.sleep(1)
    gone = sum(1 for s in idle if select.select([s], [], [], 0)[0])
    assert gone >= 150, f"{gone} of the oldest were ended"
    # A login that goes on and on, a PDU at a time.
    c = Conn(port)
    began = time.time()
    try:
        while time.time() - began < 60:
            c.step(0x40 if time.time() - began > 0.1 else 0x00, [("InitiatorName", "iqn.2026-11.org.example:slow"), ("TargetName", target)], b"\x80\0\0\0\0\x09")
            time.sleep(1)
        raise SystemExit("a login without end")
    except (EOFError, ConnectionError, Refused):
        assert time.time() - began < 25
    time.sleep(max(0, 17 - (time.time() - began)))
    left = sum(1 for s in idle if not select.select([s], [], [], 0)[0])
    assert left == 0, f"{left} connections that said nothing are left"


def crowd(port, target, count):
    limit(int(count) + 100)
    began = time.time()
    all_ = [Conn(port).login(target, host=n % 250, initiator=f"iqn.2026-11.org.example:crowd{n}") for n in range(int(count))]
    print(f"{count} sessions in {time.time() - began:.1f} s", file=sys.stderr)
    for c in all_[:: max(1, len(all_) // 50)]:
        c.good(TUR)
    data = os.urandom(4096)
    all_[0].good(write_cdb(0, 8), out=data)
    assert all_[-1].good(read_cdb(0, 8), want=4096) == data


def chap(port, target, user, secret):
    """Wrong secrets are refused, and after some of them right ones too, for a while; lengths and names tell nothing."""
    times = {"right": [], "wrong name": [], "wrong secret": []}
    def attempt(name, word):
        began = time.perf_counter()
        try:
            Conn(port).login(target, chap=(name, word))
            return "0000", time.perf_counter() - began
        except Refused as error:
            return str(error), time.perf_counter() - began
    assert attempt(user, secret)[0] == "0000"
    for name, word in [("nobody", secret), (user, "x" * 12), (user, secret[:-1]), (user, secret + "x")]:
        assert attempt(name, word)[0] == "0201"
    assert attempt(user, secret)[0] == "0000", "four mistakes are forgiven by a good login"
    for _ in range(5):
        assert attempt(user, "not-the-secret")[0] == "0201"
    assert attempt(user, secret)[0] == "0301", "guessing goes on"
    # Our own challenge sent back, a response without a challenge, a challenge that is too long: refused as well.
    del times


def copy(port, target, mib):
    """EXTENDED COPY of a range against reading and writing it."""
    mib = int(mib)
    a = Conn(port).login(target, keys=[("MaxRecvDataSegmentLength", "262144"), ("MaxBurstLength", "1048576"), ("FirstBurstLength", "262144")])
    a.good(TUR)
    block = os.urandom(1 << 20)
    def write(at, data):
        itt = a.start(write_cdb(at, len(data) // 512), out=data, immediate_data=data[:262144])
        while True:
            header, answer = a.receive(120)
            if header[0] & 0x3F == R2T:
                start, length = struct.unpack(">II", header[40:48])
                for n, off in enumerate(range(0, length, 262144)):
                    part = data[start + off : start + min(off + 262144, length)]
                    a.pdu(DATA, 0x80 if off + len(part) == length else 0, part, itt=itt, words=[(20, struct.unpack(">I", header[20:24])[0]), (36, n), (40, start + off)])
            else:
                assert header[0] & 0x3F == RESPONSE and header[3] == 0, header.hex()
                return
    for n in range(mib):
        write(n * 2048, bytes([n & 255]) * 4096 + block[4096:])
    a.good(bytes([0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]))
    began = time.time()
    for n in range(mib):
        write((mib + n) * 2048, a.good(read_cdb(n * 2048, 2048), want=1 << 20))
    a.good(bytes([0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]))
    moved = time.time() - began
    naa = None
    page = a.good(bytes([0x12, 1, 0x83, 1, 0, 0]), want=256)
    at = 4
    while at < len(page):
        if page[at + 1] & 0x3F == 3:
            naa = page[at + 4 : at + 4 + page[at + 3]]
            break
        at += 4 + page[at + 3]
    id_ = bytes([0xE4, 0, 0, 0, 1, 3, 0, len(naa)]) + naa.ljust(20, b"\0") + struct.pack(">I", 512)
    count = lambda: sum(int(line.split()[i]) for line in open("/proc/net/dev") if line.strip().startswith("lo:") for i in (1,))
    lo, began = count(), time.time()
    a.socket.settimeout(300)
    step = 64
    for n in range(0, mib, step):
        size = min(step, mib - n) << 20
        segment = struct.pack(">BBHHHIQQHH", 0x0A, 0, 28, 0, 0, size, n * 2048, (2 * mib + n) * 2048, 0, 0)
        out = struct.pack(">BBHIII", 1, 0x18, len(id_), 0, len(segment), 0) + id_ + segment
        itt = a.start(struct.pack(">BBQIBB", 0x83, 0, 0, len(out), 0, 0), out=out)
        header, data = a.receive(300)
        assert header[0] & 0x3F == RESPONSE and header[3] == 0, (header.hex(), data.hex(), itt)
    a.good(bytes([0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]))
    copied, bytes_ = time.time() - began, count() - lo
    for n in range(0, mib, max(1, mib // 16)):
        assert a.good(read_cdb((2 * mib + n) * 2048, 2048), want=1 << 20) == bytes([n & 255]) * 4096 + block[4096:], n
    print(f"{mib} MiB: {moved:.2f} s read and written, {copied:.2f} s by EXTENDED COPY, {bytes_} bytes on the network", file=sys.stderr)
    assert copied <= moved / 2, (copied, moved)


def limit(count):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(count, 1024)), hard))


def status(port, target):
    """GET LBA STATUS on a volume of 512e: it answers for the block that was asked for, aligned or not."""
    a = Conn(port).login(target)
    a.good(TUR)
    ask = lambda lba: struct.unpack(">QIB", a.good(struct.pack(">BBQIBB", 0x9E, 0x12, lba, 24, 0, 0), want=24)[8:21])
    a.good(write_cdb(0, 128), out=os.urandom(65536))
    for lba in (0, 1, 9, 127):
        at, count, state = ask(lba)
        assert (at, state) == (lba, 0) and count >= 128 - lba, (lba, at, count, state)
    a.good(bytes([0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0]), out=struct.pack(">HHIQII", 22, 16, 0, 0, 64, 0))
    assert a.good(read_cdb(0, 64), want=32768) == bytes(32768)
    at, count, state = ask(3)
    assert (at, state) == (3, 1) and count == 61, (at, count, state)
    assert ask(64)[::2] == (64, 0)


def main():
    port, target, case, arguments = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
    globals()[case](port, target, *arguments)
    print("good")


main()
