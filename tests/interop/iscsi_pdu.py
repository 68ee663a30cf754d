"""What the PDUs of our initiators have in common: padding to words, and digests (RFC 7143, section 13.1)."""
import struct

TABLE = []
for i in range(256):
    c = i
    for _ in range(8):
        c = (c >> 1) ^ 0x82F63B78 if c & 1 else c >> 1
    TABLE.append(c)


def crc32c(data):
    c = 0xFFFFFFFF
    for byte in data:
        c = TABLE[(c ^ byte) & 255] ^ (c >> 8)
    return struct.pack("<I", c ^ 0xFFFFFFFF)


def pad(data):
    return data + b"\0" * (-len(data) % 4)
