#!/usr/bin/python3
"""NFS with RPCSEC_GSS (RFC 2203), with MIT's library on the side of the client: files by each flavour, and what is refused.

nfs-kerberos.py PORT open SHARE...         makes shares with no_root_squash world-writable, by AUTH_SYS
nfs-kerberos.py PORT probe                 makes a context
nfs-kerberos.py PORT SHARE KRB5 KRB5P ROOT
SHARE takes every flavour, KRB5 sec=krb5 alone, KRB5P sec=krb5p:krb5i, ROOT sec=krb5:sys with no_root_squash; they are world-writable directories of one
parent. Tickets are in NAME.ccache of the current directory (kdc.sh). Prints a line for each step."""
import os
import socket
import struct
import subprocess
import sys
import time

import gssapi

import nfs3

GSS = 6
DATA, INIT, CONTINUE, DESTROY = range(4)
SERVICES = {"krb5": 1, "krb5i": 2, "krb5p": 3}
KERBEROS = bytes.fromhex("2a864886f712010202")
port = int(sys.argv[1])


class Refused(Exception):
    pass


def words(*values):
    return struct.pack(f">{len(values)}I", *values)


def read_opaque(data):
    (length,) = struct.unpack(">I", data[:4])
    end = 4 + length
    return data[4:end], data[end + -length % 4 :]


class Connection:
    """Sends messages, and gets what comes back."""

    def __init__(self, timeout=20):
        self.stream = socket.create_connection(("127.0.0.1", port))
        self.stream.settimeout(timeout)
        self.xid = int.from_bytes(os.urandom(3), "big")

    def exchange(self, message):
        self.stream.sendall(words(0x80000000 | len(message)) + message)
        return self.reply()

    def reply(self):
        (mark,) = struct.unpack(">I", self.receive(4))
        return self.receive(mark & 0x7FFFFFFF)

    def receive(self, count):
        return nfs3.receive(self.stream, count)

    def header(self, program, version, procedure, flavour, credential):
        self.xid += 1
        return words(self.xid, 0, 2, program, version, procedure, flavour) + nfs3.opaque(credential)


class Context:
    """A context of a user, on a connection."""

    def __init__(self, user, flavour="krb5", connection=None, program=(nfs3.NFS, 3)):
        self.on = connection or Connection()
        self.service = SERVICES[flavour]
        store = {"ccache": f"FILE:{user}.ccache"}
        target = gssapi.Name("nfs@localhost", gssapi.NameType.hostbased_service)
        # RFC 2203, 5.2.2: without detection of replays and order.
        flags = [gssapi.RequirementFlag.mutual_authentication]
        credential = gssapi.Credentials(usage="initiate", store=store)
        self.gss = gssapi.SecurityContext(name=target, creds=credential, flags=flags, usage="initiate")
        status, verifier, rest = self.begin(self.on, self.gss.step(), program)
        self.handle, rest = read_opaque(rest)
        major, minor, self.window = struct.unpack(">III", rest[:12])
        if major:
            raise Refused(f"major {major:#x}")
        token, rest = read_opaque(rest[12:])
        assert rest == b""
        self.gss.step(token)
        assert self.gss.complete
        self.gss.verify_signature(words(self.window), verifier)
        self.sequence = 0

    @staticmethod
    def begin(on, token, program=(nfs3.NFS, 3), procedure=0, gss_procedure=INIT):
        header = on.header(*program, procedure, GSS, words(1, gss_procedure, 0, 1) + nfs3.opaque(b""))
        return accepted(on.exchange(header + words(0, 0) + nfs3.opaque(token)))

    def credential(self, procedure=DATA):
        return words(1, procedure, self.sequence, self.service) + nfs3.opaque(self.handle)

    def message(self, program, version, procedure, body, damage=lambda part, data: data, gss_procedure=DATA):
        header = self.on.header(program, version, procedure, GSS, self.credential(gss_procedure))
        mic = damage("header", self.gss.get_signature(header))
        if gss_procedure == DATA:
            body = words(damage("sequence", self.sequence)) + body if self.service > 1 else body
            if self.service == 2:
                body = nfs3.opaque(body) + nfs3.opaque(damage("body", self.gss.get_signature(body)))
            if self.service == 3:
                wrapped = self.gss.wrap(body, damage("encrypt", True))
                assert wrapped.encrypted == damage("encrypt", True)
                body = nfs3.opaque(damage("body", wrapped.message))
        return header + words(GSS) + nfs3.opaque(mic) + body

    def call(self, program, version, procedure, body, **more):
        """Returns the status of an accepted call and its results."""
        self.sequence += 1
        status, verifier, results = accepted(self.on.exchange(self.message(program, version, procedure, body, **more)))
        self.gss.verify_signature(words(self.sequence), verifier)
        if status or self.service == 1 or more.get("gss_procedure"):
            return status, results
        if self.service == 2:
            signed, rest = read_opaque(results)
            mic, rest = read_opaque(rest)
            self.gss.verify_signature(signed, mic)
        else:
            wrapped, rest = read_opaque(results)
            opened = self.gss.unwrap(wrapped)
            assert opened.encrypted
            signed = opened.message
        assert rest == b"" and signed[:4] == words(self.sequence)
        return status, signed[4:]


def accepted(reply):
    """Returns the status, the verifier and the results of a reply, which is not a denial."""
    _xid, kind, denied = struct.unpack(">III", reply[:12])
    assert kind == 1
    if denied:
        raise Refused("denied: %d %d" % struct.unpack(">II", reply[12:20]))
    (flavour,) = struct.unpack(">I", reply[12:16])
    verifier, rest = read_opaque(reply[16:])
    assert flavour == (GSS if verifier else 0)
    return struct.unpack(">I", rest[:4])[0], verifier, rest[4:]


class Client(nfs3.Client):
    """NFSv3 in a context."""

    def __init__(self, path, user, flavour):
        self.context = Context(user, flavour)
        super().__init__(port, path)

    def connect(self, _port, _source):
        return self.context.on.stream

    def call(self, program, procedure, body):
        status, results = self.context.call(program, 3, procedure, body)
        assert status == 0, f"accepted with status {status}"
        return results

    def owner(self, handle):
        attributes = self.call(nfs3.NFS, 1, nfs3.opaque(handle))
        assert attributes[:4] == bytes(4), attributes[:4].hex()
        # After status, type, mode and links.
        return struct.unpack(">II", attributes[16:24])


class Sys:
    """The same calls with AUTH_SYS as root."""

    def __init__(self):
        self.on = Connection()

    def call(self, program, version, procedure, body):
        header = self.on.header(program, version, procedure, 1, words(0, 0, 0, 0, 0))
        status, _, results = accepted(self.on.exchange(header + words(0, 0) + body))
        return status, results


def mounted(path):
    """Returns the handle of a share, and the flavours that MOUNT says."""
    status, results = Sys().call(nfs3.MOUNT, 3, 1, nfs3.opaque(path.encode()))
    assert status == 0 and results[:4] == bytes(4), results[:4].hex()
    handle, rest = read_opaque(results[4:])
    (count,) = struct.unpack(">I", rest[:4])
    return handle, struct.unpack(f">{count}I", rest[4 : 4 + 4 * count])


def compound(by, *operations):
    """Runs a COMPOUND of NFSv4.0; returns its status, and what is behind the number of results."""
    status, results = by.call(nfs3.NFS, 4, 1, nfs3.opaque(b"") + words(0, len(operations)) + b"".join(operations))
    assert status == 0, status
    (status,) = struct.unpack(">I", results[:4])
    _tag, rest = read_opaque(results[4:])
    return status, rest[4:]


ROOT = words(24)


def lookup(path):
    return [words(15) + nfs3.opaque(name.encode()) for name in path.strip("/").split("/")]


def put(handle):
    return words(22) + nfs3.opaque(handle)


def security(by, path):
    """SECINFO of the last name of a path, as names."""
    *above, name = path.strip("/").split("/")
    walk = [words(15) + nfs3.opaque(part.encode()) for part in above]
    status, rest = compound(by, ROOT, *walk, words(33) + nfs3.opaque(name.encode()))
    if status:
        return status
    # Results of PUTROOTFH and LOOKUP are a number and a status; then SECINFO's own.
    rest = rest[8 * (1 + len(walk)) + 8 :]
    (count,) = struct.unpack(">I", rest[:4])
    rest, names = rest[4:], []
    for _ in range(count):
        (flavour,), rest = struct.unpack(">I", rest[:4]), rest[4:]
        if flavour == GSS:
            oid, rest = read_opaque(rest)
            qop, service = struct.unpack(">II", rest[:8])
            assert (oid, qop) == (KERBEROS, 0)
            names.append({number: name for name, number in SERVICES.items()}[service])
            rest = rest[8:]
        else:
            names.append({1: "sys"}[flavour])
    assert rest == b""
    return ":".join(names)


def attempt(what):
    try:
        return what()
    except Refused as error:
        return str(error)
    except socket.timeout:
        return "nothing"


if sys.argv[2] == "open":
    for path in sys.argv[3:]:
        # Mode 0777, nothing else, no guard.
        settings = words(1, 0o777, 0, 0, 0, 0, 0, 0)
        status, results = Sys().call(nfs3.NFS, 3, 2, nfs3.opaque(mounted(path)[0]) + settings)
        assert status == 0 and results[:4] == bytes(4), results[:4].hex()
    sys.exit()
if sys.argv[2] == "probe":
    Context("daemon")
    print("a context")
    sys.exit()
share, krb5_path, krb5p_path, root_path = sys.argv[2:6]

# Files by each flavour, written by one version and read by the other.
for flavour in SERVICES:
    client = Client(share, "daemon", flavour)
    handle = client.create(f"file-{flavour}")
    data = os.urandom(700_001)
    assert client.write(handle, 0, data, nfs3.FILE_SYNC) == 0
    read = client.call(nfs3.NFS, nfs3.READ, nfs3.opaque(handle) + struct.pack(">QI", 0, len(data)))
    assert data in read, "other data came back"
    path = [ROOT, *lookup(f"{share}/file-{flavour}")]
    status, read = compound(client.context, *path, words(25) + bytes(16) + struct.pack(">QI", 0, len(data)))
    assert status == 0 and data in read, status
    more = os.urandom(70_000)
    status, _ = compound(client.context, *path, words(38) + bytes(16) + struct.pack(">QI", 1000, 2) + nfs3.opaque(more))
    assert status == 0, status
    read = client.call(nfs3.NFS, nfs3.READ, nfs3.opaque(handle) + struct.pack(">QI", 1000, len(more)))
    assert more in read, "what NFSv4 wrote is not there"
    print(f"{flavour}: written and read; the file is", "%d:%d's" % client.owner(handle))

# Whose files they are.
for user in ["root", "stranger", "client"]:
    owners = []
    for path in [share, root_path]:
        client = Client(path, user, "krb5")
        owners.append("%d:%d" % client.owner(client.create(f"{user}'s")))
    print(f"{user} is", *owners)

# Which flavours are taken where.
print("MOUNT:", *(mounted(path)[1] for path in [share, krb5_path, krb5p_path]))
print("SECINFO:", *(security(Sys(), path) for path in [share, krb5_path, krb5p_path]))
for path in [krb5_path, krb5p_path]:
    found = []
    for flavour in ["sys", *SERVICES]:
        by = Sys() if flavour == "sys" else Context("daemon", flavour)
        handle = mounted(path)[0]
        status, results = by.call(nfs3.NFS, 3, 1, nfs3.opaque(handle))
        third = struct.unpack(">I", results[:4])[0]
        fourth = compound(by, ROOT, *lookup(path))[0]
        by_handle = compound(by, put(handle), words(9, 1, 1 << 1))[0]
        info = compound(by, put(handle), words(33) + nfs3.opaque(b"no such name"))[0]
        found.append(f"{flavour} {third}/{fourth}/{by_handle}/{info}")
    print(f"{path.rsplit('/')[-1]}:", ", ".join(found))

# What makes a client is compared by who calls.
setting = words(35) + os.urandom(8) + nfs3.opaque(b"a client") + words(0) + nfs3.opaque(b"tcp") + nfs3.opaque(b"") + words(0)
status, results = compound(Context("daemon", "krb5i"), setting)
assert status == 0
confirm = words(36) + results[8:24]
print("confirmed by another:", compound(Context("stranger", "krb5i"), confirm)[0], "by itself:", compound(Context("daemon", "krb5p"), confirm)[0])

# What is damaged.
flip = lambda data: data[:-1] + bytes([data[-1] ^ 1])
NULL = (nfs3.NFS, 3, 0, b"")
of_header = lambda part, data: flip(data) if part == "header" else data
of_body = lambda part, data: flip(data) if part == "body" else data
of_sequence = lambda part, data: data + 1 if part == "sequence" else data
plain = lambda part, data: False if part == "encrypt" else data
for flavour in SERVICES:
    context = Context("daemon", flavour)
    found = [attempt(lambda: context.call(*NULL, damage=damage)[0]) for damage in (of_header, of_body, of_sequence, plain)]
    print(f"{flavour}, damaged header, body, number, encryption:", ", ".join(map(str, found)) + "; then", context.call(*NULL)[0])

# What comes again, or out of order.
context = Context("daemon", "krb5", Connection(timeout=1))
context.sequence = 5000
print("number 5001:", context.call(*NULL)[0])
context.sequence = 5000
print("5001 again:", attempt(lambda: context.call(*NULL)[0]))
context.sequence = 5001 - context.window
print("the lowest of the window:", context.call(*NULL)[0])
context.sequence = 5000 - context.window
print("below it:", attempt(lambda: context.call(*NULL)[0]))
context.sequence = 0x80000000
print("above all:", attempt(lambda: context.call(*NULL)[0]))
context.sequence = 6000
print("afterwards:", context.call(*NULL)[0])

# CREATE by its transaction id and contents, from two users, with new numbers: run once for each.
makes = nfs3.opaque(mounted(share)[0]) + nfs3.opaque(b"once") + words(1, 0, 0, 0, 0, 0, 0)
found = []
for user in ["daemon", "stranger"]:
    for flavour in ["krb5p", "krb5i"]:
        context = Context(user, flavour)
        for _ in range(2):
            context.on.xid = 0x1000
            found.append(struct.unpack(">I", context.call(nfs3.NFS, 3, nfs3.CREATE, makes)[1][:4])[0])
print("GUARDED CREATE, repeated:", *found)

# Contexts that are not there.
context = Context("daemon")
print("destroyed:", context.call(*NULL, gss_procedure=DESTROY)[0], attempt(lambda: context.call(*NULL)[0]))
context = Context("daemon")
context.handle = flip(context.handle)
print("another's handle:", attempt(lambda: context.call(*NULL)[0]))
context.handle = b""
print("no handle:", attempt(lambda: context.call(*NULL)[0]))
print("continued:", attempt(lambda: Context.begin(Connection(), b"token", gss_procedure=CONTINUE)))
print("a procedure of files:", attempt(lambda: Context.begin(Connection(), b"token", procedure=1)))

# Tokens that prove nothing.
good = gssapi.SecurityContext(
    name=gssapi.Name("nfs@localhost", gssapi.NameType.hostbased_service),
    creds=gssapi.Credentials(usage="initiate", store={"ccache": "FILE:daemon.ccache"}),
    usage="initiate",
).step()
tokens = [b"", b"garbage", os.urandom(5000), good[:-1], good[:40], flip(good), good[:100] + bytes(100) + good[200:], good + good]
# Behind what is not encrypted: what the service is called, and the numbers of keys and versions.
tokens += [good[:at] + flip(good[at : at + 1]) + good[at + 1 :] for at in range(200, len(good), 7)]
refused = 0
for token in tokens:
    status, _verifier, rest = Context.begin(Connection(), token)
    handle, rest = read_opaque(rest)
    refused += status == 0 and handle == b"" and struct.unpack(">I", rest[:4])[0] != 0
print("tokens refused:", "all" if refused == len(tokens) else refused)

# A user with very many contexts loses the oldest, and nobody else loses any.
first, other = Context("stranger"), Context("daemon")
on = Connection()
for _ in range(600):
    last = Context("stranger", connection=on)
print("600 contexts:", attempt(lambda: first.call(*NULL)[0]), last.call(*NULL)[0], other.call(*NULL)[0])

# A ticket that ends.
subprocess.run(["kinit", "-c", "FILE:bin.ccache", "-l", "6s", "bin"], input=b"secret\n", stdout=subprocess.DEVNULL, check=True)
context = Context("bin")
print("a ticket of some seconds:", context.call(*NULL)[0])
time.sleep(10)
print("ended:", str(attempt(lambda: context.call(*NULL)[0])) + "; others:", other.call(*NULL)[0])
