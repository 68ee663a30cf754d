#!/usr/bin/env python3
"""A small iSCSI initiator of our own, for what libiscsi's tools cannot be made to do.

    iscsi-initiator.py PORT IQN before|after

'before' writes with digests, registers and reserves with APTPL, copies by token, flushes. Then the daemon is to be killed and
started again; 'after' looks for all of it. The LUN is 0, of 512-byte blocks, 16 MiB or more; its content is destroyed.
"""
import hashlib
import socket
import struct
import sys

from iscsi_pdu import crc32c, pad


class Session:
    def __init__(self, port, target, host, digests):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(20)
        self.itt, self.cmd_sn, self.digests = 1, 1, False
        isid = b"\x80\x12\x34\x56\x00" + bytes([host])
        text = f"InitiatorName=iqn.2026-11.org.example:h{host}\0TargetName={target}\0SessionType=Normal\0AuthMethod=None\0"
        self.login(0x81, isid, text.encode())
        digest = "CRC32C" if digests else "None"
        text = f"HeaderDigest={digest}\0DataDigest={digest}\0InitialR2T=No\0ImmediateData=Yes\0MaxRecvDataSegmentLength=65536\0"
        self.login(0x87, isid, text.encode())
        self.digests = digests

    def login(self, flags, isid, text):
        header = bytearray(48)
        header[0], header[1] = 0x43, flags
        header[5:8] = len(text).to_bytes(3, "big")
        header[8:14] = isid
        header[16:20] = struct.pack(">I", self.itt)
        header[24:28] = struct.pack(">I", self.cmd_sn)
        self.socket.sendall(bytes(header) + pad(text))
        answer, _ = self.receive()
        assert answer[36:38] == b"\0\0", answer[36:38].hex()

    def read(self, count):
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            assert part, "the connection was closed"
            data += part
        return data

    def receive(self):
        header = self.read(48)
        if self.digests:
            assert self.read(4) == crc32c(header), "header digest"
        count = int.from_bytes(header[5:8], "big")
        data = self.read(count + -count % 4)
        if self.digests and count:
            assert self.read(4) == crc32c(data), "data digest"
        return header, data[:count]

    def send(self, header, data):
        out = bytes(header) + (crc32c(bytes(header)) if self.digests else b"")
        data = pad(data)
        out += data + (crc32c(data) if self.digests and data else b"")
        self.socket.sendall(out)

    def command(self, cdb, want=0, out=b""):
        """Returns status, data and sense."""
        self.itt += 1
        immediate = out[:65536]
        header = bytearray(48)
        header[0] = 1
        header[1] = 0x80 | (0x40 if want else 0) | (0x20 if out else 0)
        header[5:8] = len(immediate).to_bytes(3, "big")
        header[16:28] = struct.pack(">III", self.itt, len(out) or want, self.cmd_sn)
        header[32 : 32 + len(cdb)] = cdb
        self.cmd_sn += 1
        self.send(header, immediate)
        got = bytearray(want)
        while True:
            answer, data = self.receive()
            code = answer[0] & 0x3F
            if code == 0x31:
                start, length = struct.unpack(">II", answer[40:48])
                for number, at in enumerate(range(0, length, 131072)):
                    part = out[start + at : start + min(at + 131072, length)]
                    piece = bytearray(48)
                    piece[0] = 5
                    piece[1] = 0x80 if at + len(part) == length else 0
                    piece[5:8] = len(part).to_bytes(3, "big")
                    piece[16:20] = struct.pack(">I", self.itt)
                    piece[20:24] = answer[20:24]
                    piece[36:44] = struct.pack(">II", number, start + at)
                    self.send(piece, part)
            elif code == 0x25:
                at = struct.unpack(">I", answer[40:44])[0]
                got[at : at + len(data)] = data
                if answer[1] & 1:
                    return answer[3], bytes(got), b""
            elif code == 0x21:
                return answer[3], bytes(got), data[2:]

    def good(self, *args, **kinds):
        status, data, sense = self.command(*args, **kinds)
        if status == 2 and sense[2] == 6:
            status, data, sense = self.command(*args, **kinds)
        assert status == 0, (status, sense.hex())
        return data

    def write(self, lba, data, fua=0):
        cdb = struct.pack(">BBQIBB", 0x8A, 8 * fua, lba, len(data) // 512, 0, 0)
        return self.command(cdb, out=data)

    def fetch(self, lba, count):
        return self.good(struct.pack(">BBQIBB", 0x88, 0, lba, count, 0, 0), want=count * 512)


def token_list(lba, count):
    return struct.pack(">QII", lba, count, 0)


def before(port, target, data):
    one, two = Session(port, target, 1, True), Session(port, target, 2, False)
    assert one.write(0, data)[0] == 0
    assert one.fetch(0, 2048) == data
    assert one.write(4096, data[:65536], fua=1)[0] == 0
    # A registration with APTPL, and a reservation for registrants only.
    out = struct.pack(">QQIBBH", 0, 0x1234, 0, 1, 0, 0)
    assert one.command(bytes([0x5F, 6, 0, 0, 0, 0, 0, 0, 24, 0]), out=out)[0] == 0
    out = struct.pack(">QQIBBH", 0x1234, 0, 0, 0, 0, 0)
    assert one.command(bytes([0x5F, 1, 5, 0, 0, 0, 0, 0, 24, 0]), out=out)[0] == 0
    assert two.write(0, b"x" * 512)[0] == 0x18
    assert two.fetch(0, 1) == data[:512]
    # A copy by token; a change of the source revokes the token.
    out = struct.pack(">HBBIIHH", 30, 0, 0, 0, 0, 0, 16) + token_list(0, 2048)
    one.good(struct.pack(">BBIIIBB", 0x83, 0x10, 0, 7, len(out), 0, 0), out=out)
    cdb = struct.pack(">BBIIIBB", 0x84, 7, 7, 0, 1024, 0, 0)
    token = one.good(cdb, want=1024)[38:550]
    out = struct.pack(">HBBIQ", 550, 0, 0, 0, 0) + token + b"\0" * 6 + struct.pack(">H", 16)
    out += token_list(8192, 2048)
    cdb = struct.pack(">BBIIIBB", 0x83, 0x11, 0, 8, len(out), 0, 0)
    one.good(cdb, out=out)
    assert one.fetch(8192, 2048) == data
    assert one.write(100, b"z" * 512)[0] == 0
    status, _, sense = one.command(cdb, out=out)
    assert (status, sense[12:14]) == (2, b"\x23\x06"), sense.hex()
    one.good(bytes([0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]))


def after(port, target, data):
    one, two = Session(port, target, 1, False), Session(port, target, 2, True)
    assert one.fetch(8192, 2048) == data
    assert one.fetch(4096, 128) == data[:65536]
    keys = one.good(bytes([0x5E, 0, 0, 0, 0, 0, 0, 0, 64, 0]), want=64)
    assert keys[7:16] == b"\x08" + (0x1234).to_bytes(8, "big"), keys.hex()
    held = one.good(bytes([0x5E, 1, 0, 0, 0, 0, 0, 0, 64, 0]), want=64)
    assert held[21] == 5, held.hex()
    assert two.write(0, b"x" * 512)[0] == 0x18
    assert one.write(0, b"y" * 512)[0] == 0
    out = struct.pack(">QQIBBH", 0x1234, 0, 0, 0, 0, 0)
    one.good(bytes([0x5F, 3, 0, 0, 0, 0, 0, 0, 24, 0]), out=out)


def main():
    port, target, phase = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    data = b"".join(hashlib.sha256(str(n).encode()).digest() for n in range(1 << 15))
    (before if phase == "before" else after)(port, target, data)
    print("good")


if __name__ == "__main__":
    main()
