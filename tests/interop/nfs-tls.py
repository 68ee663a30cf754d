#!/usr/bin/env python3
"""NFS by TLS (RFC 9289), with Python's TLS, which is OpenSSL: probes, handshakes, a file, and what is refused.

nfs-tls.py PORT TLS_PATH MUTUAL_PATH SERVER_CERTIFICATE CLIENT_CERTIFICATE CLIENT_KEY STRANGER_CERTIFICATE STRANGER_KEY
TLS_PATH is a share that wants TLS, MUTUAL_PATH one that wants a certificate of the client, too. Prints a line for each step."""
import os
import socket
import ssl
import struct
import sys

import nfs3

AUTH_TLS = 7
ACCESS_DENIED = 13
port, tls_path, mutual_path, server = int(sys.argv[1]), *sys.argv[2:5]
clients = {"known": sys.argv[5:7], "stranger": sys.argv[7:9]}


def probe(xid, flavour=AUTH_TLS, program=nfs3.NFS):
    """RFC 9289, 4.1: a NULL with AUTH_TLS and an empty credential."""
    call = struct.pack(">IIIIII", xid, 0, 2, program, 3, 0) + struct.pack(">IIII", flavour, 0, 0, 0)
    return struct.pack(">I", 0x80000000 | len(call)) + call


def answer(stream):
    (mark,) = struct.unpack(">I", stream.recv(4))
    return stream.recv(mark & 0x7FFFFFFF)


def connected():
    stream = socket.create_connection(("127.0.0.1", port))
    stream.settimeout(20)
    return stream


def context(client=None, newest=ssl.TLSVersion.TLSv1_3):
    made = ssl.create_default_context(cafile=server)
    made.maximum_version = newest
    made.set_alpn_protocols(["sunrpc"])
    if client:
        made.load_cert_chain(*clients[client])
    return made


class TlsClient(nfs3.Client):
    def __init__(self, path, client=None):
        self.how = client
        super().__init__(port, path)

    def connect(self, _port, _source):
        stream = connected()
        stream.sendall(probe(1))
        reply = answer(stream)
        # Accepted, with the verifier "STARTTLS", no results.
        expect = struct.pack(">IIII", 1, 1, 0, 0) + nfs3.opaque(b"STARTTLS") + bytes(4)
        assert reply == expect, reply.hex()
        return context(self.how).wrap_socket(stream, server_hostname="localhost")

    def receive(self, count):
        return nfs3.receive(self.stream, count)


def mounts(path, client=None):
    try:
        TlsClient(path, client)
        return "admitted"
    except AssertionError as error:
        assert str(error) == f"MOUNT: {ACCESS_DENIED:08x}", error
        return "denied"
    except (ssl.SSLError, OSError) as error:
        return type(error).__name__


def plainly(path):
    try:
        nfs3.Client(port, path)
        return "admitted"
    except AssertionError as error:
        assert str(error) == f"MOUNT: {ACCESS_DENIED:08x}", error
        return "denied"


client = TlsClient(tls_path)
print("protocol:", client.stream.version(), client.stream.selected_alpn_protocol())
handle = client.create("file")
data = os.urandom(700_000)
assert client.write(handle, 0, data, nfs3.FILE_SYNC) == 0
assert client.read(handle, 0, len(data)) == 0
read = client.call(nfs3.NFS, nfs3.READ, nfs3.opaque(handle) + struct.pack(">QI", 0, len(data)))
assert data in read, "other data came back"
print("file: written and read")
client.stream.sendall(probe(77))
(mark,) = struct.unpack(">I", client.receive(4))
reply = client.receive(mark & 0x7FFFFFFF)
# MSG_DENIED, AUTH_ERROR, AUTH_BADCRED.
print("probe within TLS:", struct.unpack(">IIIII", reply)[2:])
print("without TLS:", plainly(tls_path), plainly(mutual_path))
print("TLS without a certificate:", mounts(tls_path), mounts(mutual_path))
print("TLS with a known certificate:", mounts(tls_path, "known"), mounts(mutual_path, "known"))
# TLS 1.3: the client's certificate is refused after the client takes the handshake for done.
print("TLS with a stranger's:", "refused" if "rror" in mounts(mutual_path, "stranger") else "not refused")

stream = connected()
stream.sendall(probe(5) + probe(6, 0))
print("plain text behind the probe:", stream.recv(100))
stream = connected()
stream.sendall(probe(5))
answer(stream)
try:
    context(newest=ssl.TLSVersion.TLSv1_2).wrap_socket(stream, server_hostname="localhost")
    print("TLS 1.2: taken")
except ssl.SSLError as error:
    print("TLS 1.2:", error.reason)
stream = connected()
stream.sendall(probe(5))
answer(stream)
stream.sendall(b"\x80\x00\x00\x28 this is no handshake of TLS at all, is it")
print("no handshake:", "closed" if not stream.recv(100)[7:] else "answered")
print("afterwards:", mounts(tls_path))
