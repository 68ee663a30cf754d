"""A client of NFSv4.1 (pynfs') has files delegated, and every other way to a file changes one: the change is not made before the
client has given the file back.

usage: delegations.py PYNFS HOST PORT SHARE MOUNT FILE            changes of all kinds; what is delegated at the end is in FILE
       delegations.py PYNFS HOST PORT SHARE MOUNT FILE ROLLBACK   behind a restart of the server: what may be reclaimed, and is not
MOUNT is where the share is mounted by FUSE, or nothing; ROLLBACK is a command that rolls it back.
"""

import os
import socket
import struct
import subprocess
import sys
import threading
import time

PYNFS, HOST, PORT, SHARE, MOUNT, FILE = sys.argv[1:7]
os.chdir(os.path.join(PYNFS, "nfs4.1"))
sys.path[0:0] = [os.getcwd()]
import use_local  # noqa: F401  (pynfs' own paths)
import nfs4client
import nfs_ops
import rpc.rpc as rpc
import server41tests.environment as environment
from xdrdef.nfs4_const import *
from xdrdef.nfs4_type import *

op = nfs_ops.NFS4ops()
JUKEBOX, DELAY = 10008, NFS4ERR_DELAY


class V3:
    """The few calls of NFSv3 that change a file (RFC 1813)."""

    def __init__(self):
        self.socket = socket.create_connection((HOST, int(PORT)))
        self.xid = 0

    def call(self, procedure, arguments):
        self.xid += 1
        credential = struct.pack(">II4sIII", 0, 4, b"here", 0, 0, 0)
        message = struct.pack(">IIIIII", self.xid, 0, 2, 100003, 3, procedure)
        message += struct.pack(">II", 1, len(credential)) + credential + struct.pack(">II", 0, 0) + arguments
        self.socket.sendall(struct.pack(">I", 0x80000000 | len(message)) + message)
        length = struct.unpack(">I", self.exactly(4))[0] & 0x7FFFFFFF
        reply = self.exactly(length)
        return struct.unpack(">I", reply[24:28])[0]

    def exactly(self, count):
        data = b""
        while len(data) < count:
            data += self.socket.recv(count - len(data))
        return data


def opaque(data):
    return struct.pack(">I", len(data)) + data + b"\0" * (-len(data) % 4)


class Holder:
    """A client that reads from its cache."""

    def __init__(self, name, reclaims=False):
        self.client = nfs4client.NFS4Client(HOST.encode(), int(PORT), 1)
        self.client.set_cred(rpc.security.AuthSys().init_cred(uid=0, gid=0, name=b"here"))
        self.recalled = threading.Event()
        if reclaims:
            self.session = self.client.new_client(name).create_session()
        else:
            self.session = self.client.new_client_session(name)
        self.session.client.cb_pre_hook(OP_CB_RECALL, self.recall)
        self.path = [p.encode() for p in SHARE.split("/") if p]

    def recall(self, argument, env):
        env.notify = self.recalled.set

    def dir(self):
        return [op.putrootfh()] + [op.lookup(part) for part in self.path]

    def compound(self, operations):
        return self.session.compound(operations)

    def make(self, name):
        path = self.path + [name]
        made = environment.create_file(self.session, name, path, access=OPEN4_SHARE_ACCESS_BOTH)
        while made.status == NFS4ERR_GRACE:  # others may reclaim
            time.sleep(1)
            made = environment.create_file(self.session, name, path, access=OPEN4_SHARE_ACCESS_BOTH)
        environment.check(made)
        handle, state = made.resarray[-1].object, made.resarray[-2].stateid
        environment.check(self.compound([op.putfh(handle), op.write(state, 0, FILE_SYNC4, b"before")]))
        environment.check(environment.close_file(self.session, handle, state))
        opened = environment.open_file(self.session, name, path, access=1 | OPEN4_SHARE_ACCESS_WANT_READ_DELEG, want_deleg=True)
        environment.check(opened)
        delegation = opened.resarray[-2].delegation
        assert delegation.delegation_type == OPEN_DELEGATE_READ, (name, delegation)
        state = opened.resarray[-2].stateid
        environment.check(environment.close_file(self.session, handle, state))
        self.recalled.clear()
        return handle, delegation.read.stateid

    def looks(self, handle, state):
        """What is in the file, and how many names it has."""
        found = self.compound([op.putfh(handle), op.read(state, 0, 100), op.getattr(1 << FATTR4_NUMLINKS | 1 << FATTR4_MODE)])
        environment.check(found)
        attrs = found.resarray[-1].obj_attributes
        return found.resarray[-2].data, attrs[FATTR4_NUMLINKS], attrs[FATTR4_MODE]

    def reclaim(self, handle):
        """Opens a file as it was before the server was restarted; returns what is delegated."""
        access = 1 | OPEN4_SHARE_ACCESS_WANT_READ_DELEG
        opened = environment.open_file(
            self.session, b"again", handle, access=access, claim_type=CLAIM_PREVIOUS, want_deleg=True, deleg_type=OPEN_DELEGATE_READ
        )
        environment.check(opened)
        return opened.resarray[-2].delegation

    def give_back(self, handle, state):
        environment.check(self.compound([op.putfh(handle), op.delegreturn(state)]))


def refused(change, status):
    """A door that answers "later": asked until it answers something else."""

    def door(name, handle):
        while True:
            answer = change(name, handle)
            if answer != status:
                assert answer == 0, (name, answer)
                return
            time.sleep(0.1)

    return door


def doors(three, other):
    def v3(procedure, arguments):
        return refused(lambda name, handle: three.call(procedure, arguments(name, handle)), JUKEBOX)

    def v4(operations):
        return refused(lambda name, handle: other.compound(operations(name, handle)).status, DELAY)

    root = other.compound(other.dir() + [op.getfh()]).resarray[-1].object
    nothing = struct.pack(">IIIIII", 0, 0, 0, 0, 0, 0)
    zero = stateid4(0, b"\0" * 12)
    write = lambda name, handle: opaque(handle) + struct.pack(">QII", 0, 5, 2) + opaque(b"after")
    yield "NFSv3 WRITE", v3(7, write)
    yield "NFSv3 SETATTR", v3(2, lambda name, handle: opaque(handle) + struct.pack(">IIIIIIII", 1, 0o600, 0, 0, 0, 0, 0, 0))
    yield "NFSv3 REMOVE", v3(12, lambda name, handle: opaque(root) + opaque(name))
    yield "NFSv3 RENAME", v3(14, lambda name, handle: opaque(root) + opaque(name) + opaque(root) + opaque(name + b".to"))
    yield "NFSv3 RENAME over it", v3(14, lambda name, handle: opaque(root) + opaque(b"plain3") + opaque(root) + opaque(name))
    yield "NFSv3 LINK", v3(15, lambda name, handle: opaque(handle) + opaque(root) + opaque(name + b".link"))
    unchecked = struct.pack(">I", 0) + struct.pack(">IIIIQII", 0, 0, 0, 1, 0, 0, 0)
    yield "NFSv3 CREATE over it", v3(8, lambda name, handle: opaque(root) + opaque(name) + unchecked)
    yield "NFSv4.1 WRITE", v4(lambda name, handle: [op.putfh(handle), op.write(zero, 0, FILE_SYNC4, b"after")])
    yield "NFSv4.1 SETATTR", v4(lambda name, handle: [op.putfh(handle), op.setattr(zero, {FATTR4_MODE: 0o600})])
    yield "NFSv4.1 REMOVE", v4(lambda name, handle: [op.putfh(root), op.remove(name)])
    yield "NFSv4.1 RENAME over it", v4(lambda name, handle: [op.putfh(root), op.savefh(), op.rename(b"plain4", name)])
    yield "NFSv4.1 LINK", v4(lambda name, handle: [op.putfh(handle), op.savefh(), op.putfh(root), op.link(name + b".link")])
    if MOUNT:
        at = lambda name: os.path.join(MOUNT, name.decode())
        yield "a mount's open", lambda name, handle: os.close(os.open(at(name), os.O_RDWR | os.O_TRUNC))
        yield "a mount's truncate", lambda name, handle: os.truncate(at(name), 1)
        yield "a mount's chmod", lambda name, handle: os.chmod(at(name), 0o600)
        yield "a mount's unlink", lambda name, handle: os.unlink(at(name))
        yield "a mount's rename", lambda name, handle: os.rename(at(name), at(name) + ".to")
        yield "a mount's link", lambda name, handle: os.link(at(name), at(name) + ".link")


def main():
    holder, other, three = Holder(b"holder"), Holder(b"other"), V3()
    for plain in (b"plain3", b"plain4"):
        environment.check(environment.create_file(other.session, plain, other.path + [plain]))
    for number, (what, door) in enumerate(doors(three, other)):
        name = b"file%d" % number
        handle, state = holder.make(name)
        before = holder.looks(handle, state)
        failed = []

        def change():
            try:
                door(name, handle)
            except BaseException as error:  # told below
                failed.append(error)

        thread = threading.Thread(target=change)
        thread.start()
        assert holder.recalled.wait(5), f"{what}: not recalled"
        time.sleep(0.5)
        assert thread.is_alive(), f"{what}: came to an end while the file was delegated {failed}"
        assert holder.looks(handle, state) == before, f"{what}: changed the file while it was delegated"
        holder.give_back(handle, state)
        thread.join(5)
        assert not thread.is_alive() and not failed, f"{what}: {failed}"
        print(f"{what}: waited for the file to be given back", flush=True)
    # Its own changes are no conflict.
    handle, state = holder.make(b"own")
    environment.check(holder.compound([op.putfh(handle), op.setattr(state, {FATTR4_MODE: 0o640})]))
    assert not holder.recalled.is_set(), "recalled for its own change"
    print("a client's own change: not recalled", flush=True)
    with open(FILE, "w") as handles:
        for name in (b"kept", b"changed"):
            handles.write(holder.make(name)[0].hex() + "\n")


def restarted(rollback):
    with open(FILE) as handles:
        kept, changed = (bytes.fromhex(line) for line in handles)
    three = V3()
    assert three.call(7, opaque(changed) + struct.pack(">QII", 0, 5, 2) + opaque(b"after")) == 0
    holder = Holder(b"holder", reclaims=True)
    assert holder.reclaim(changed).delegation_type in (OPEN_DELEGATE_NONE, OPEN_DELEGATE_NONE_EXT)
    delegation = holder.reclaim(kept)
    assert delegation.delegation_type == OPEN_DELEGATE_READ, f"a restart: {delegation}"
    environment.check(holder.compound([op.reclaim_complete(False)]))
    state = delegation.read.stateid
    mode = opaque(kept) + struct.pack(">IIIIIIII", 1, 0o600, 0, 0, 0, 0, 0, 0)
    assert three.call(2, mode) == JUKEBOX and holder.recalled.wait(5)
    holder.give_back(kept, state)
    assert three.call(2, mode) == 0
    print("a restart: what was not changed since is reclaimed, and what was is not", flush=True)
    state = holder.make(b"last")[1]
    subprocess.run(rollback, shell=True, check=True)
    status = holder.compound([op.test_stateid([state])]).resarray[-1].tsr_status_codes[0]
    assert status == NFS4ERR_DELEG_REVOKED, f"a rollback: {status}"
    print("a rollback: revoked", flush=True)


try:
    if sys.argv[7:]:
        restarted(sys.argv[7])
    else:
        main()
    sys.stdout.flush()
    os._exit(0)
except BaseException as error:
    print(f"delegations: {error!r}", file=sys.stderr, flush=True)
    os._exit(1)
