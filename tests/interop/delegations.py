"""A client of NFSv4.1 (pynfs') has files delegated, and every other way to a file changes one: the change is not made before the
client has given the file back. Of files that are delegated to be written, readers too see what the client wrote in its own cache.

usage: delegations.py PYNFS HOST PORT SHARE MOUNT FILE            changes of all kinds; what is delegated at the end is in FILE
       delegations.py PYNFS HOST PORT SHARE MOUNT FILE ROLLBACK   behind a restart of the server: what may be reclaimed, and is not
       delegations.py PYNFS HOST PORT SHARE MOUNT at-once SECONDS  clients that write in their caches, and others, at once
MOUNT is where the share is mounted by FUSE, or nothing; ROLLBACK is a command that rolls it back.
"""

import itertools
import os
import queue
import random
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

    def call(self, procedure, arguments, program=(100003, 3)):
        self.xid += 1
        credential = struct.pack(">II4sIII", 0, 4, b"here", 0, 0, 0)
        message = struct.pack(">IIIIII", self.xid, 0, 2, *program, procedure)
        message += struct.pack(">II", 1, len(credential)) + credential + struct.pack(">II", 0, 0) + arguments
        self.socket.sendall(struct.pack(">I", 0x80000000 | len(message)) + message)
        length = struct.unpack(">I", self.exactly(4))[0] & 0x7FFFFFFF
        self.reply = self.exactly(length)
        return struct.unpack(">I", self.reply[24:28])[0]

    def read(self, handle):
        """READ: what is in the file, or the status."""
        status = self.call(6, opaque(handle) + struct.pack(">QI", 0, 100))
        if status != 0:
            return status
        at = 32 + (84 if struct.unpack(">I", self.reply[28:32])[0] else 0)
        count, _eof, length = struct.unpack(">III", self.reply[at : at + 12])
        assert count == length
        return self.reply[at + 12 : at + 12 + length]

    def lock(self, handle):
        """NLM's LOCK of the whole file: the status, 1 where another lock is in the way."""
        lock = opaque(b"here") + opaque(handle) + opaque(b"owner") + struct.pack(">IQQ", 1, 0, 0)
        while True:
            self.call(2, opaque(b"cookie") + struct.pack(">II", 0, 1) + lock + struct.pack(">II", 0, 1), (100021, 4))
            length = struct.unpack(">I", self.reply[24:28])[0]
            at = 28 + length + -length % 4
            status = struct.unpack(">I", self.reply[at : at + 4])[0]
            if status != 4:  # not now
                return status
            time.sleep(0.1)

    def size(self, handle):
        """GETATTR: the size, or the status."""
        status = self.call(1, opaque(handle))
        return status or struct.unpack(">Q", self.reply[48:56])[0]

    def lookup(self, root, name):
        """LOOKUP: the handle, and whether attributes come with it."""
        assert self.call(3, opaque(root) + opaque(name)) == 0
        length = struct.unpack(">I", self.reply[28:32])[0]
        behind = 32 + length + -length % 4
        return self.reply[32 : 32 + length], self.reply[behind : behind + 4] != b"\0\0\0\0"

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
        self.session.client.cb_post_hook(OP_CB_GETATTR, self.tell)
        self.told, self.asked = {}, 0
        self.path = [p.encode() for p in SHARE.split("/") if p]

    def recall(self, argument, env):
        env.notify = self.recalled.set

    def tell(self, argument, env, res):
        self.asked += 1
        res.obj_attributes = self.told
        return res

    def dir(self):
        return [op.putrootfh()] + [op.lookup(part) for part in self.path]

    def compound(self, operations):
        return self.session.compound(operations)

    def make(self, name):
        path = self.path + [name]
        access = OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG
        made = environment.create_file(self.session, name, path, access=access)
        while made.status == NFS4ERR_GRACE:  # others may reclaim
            time.sleep(1)
            made = environment.create_file(self.session, name, path, access=access)
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

    def opens(self, name, access, want):
        """Opens a file; returns its handle, the state id and what is delegated."""
        opened = environment.open_file(self.session, name, self.path + [name], access=access | want, want_deleg=True)
        environment.check(opened)
        return opened.resarray[-1].object, opened.resarray[-2].stateid, opened.resarray[-2].delegation

    def make_to_write(self, name):
        """Makes a file with "before" in it, which is delegated to be written, and closed."""
        handle, read = self.make(name)
        self.give_back(handle, read)
        handle, state, delegation = self.opens(name, OPEN4_SHARE_ACCESS_BOTH, OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG)
        assert delegation.delegation_type == OPEN_DELEGATE_WRITE, (name, delegation)
        limit = delegation.write.space_limit
        assert (limit.limitby, limit.filesize) == (NFS_LIMIT_SIZE, 0), limit
        environment.check(environment.close_file(self.session, handle, state))
        self.recalled.clear()
        self.asked = 0
        return handle, delegation.write.stateid

    def flush(self, handle, state, data):
        environment.check(self.compound([op.putfh(handle), op.write(state, 0, FILE_SYNC4, data)]))

    def looks(self, handle, state):
        """What is in the file, and how many names it has."""
        found = self.compound([op.putfh(handle), op.read(state, 0, 100), op.getattr(1 << FATTR4_NUMLINKS | 1 << FATTR4_MODE)])
        environment.check(found)
        attrs = found.resarray[-1].obj_attributes
        return found.resarray[-2].data, attrs[FATTR4_NUMLINKS], attrs[FATTR4_MODE]

    def reclaim(self, handle, deleg_type=OPEN_DELEGATE_READ):
        """Opens a file as it was before the server was restarted; returns what is delegated."""
        access = 1 if deleg_type == OPEN_DELEGATE_READ else OPEN4_SHARE_ACCESS_BOTH
        opened = environment.open_file(
            self.session, b"again", handle, access=access, claim_type=CLAIM_PREVIOUS, want_deleg=True, deleg_type=deleg_type
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


def make_plain(other):
    """Makes the files that doors rename over others."""
    for plain in (b"plain3", b"plain4"):
        access = OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG
        environment.check(environment.create_file(other.session, plain, other.path + [plain], access=access))


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


def readers(three, other):
    """Ways to a file that change nothing, and what each is to find: its content or its size."""
    zero = stateid4(0, b"\0" * 12)
    root = other.compound(other.dir() + [op.getfh()]).resarray[-1].object

    def until(ask, status):
        while (answer := ask()) == status:
            time.sleep(0.1)
        return answer

    def read_by_v4(handle):
        found = other.compound([op.putfh(handle), op.read(zero, 0, 100)])
        return found.status or found.resarray[-1].data

    def open_by_v4(name, handle):
        opened = lambda: environment.open_file(other.session, name, other.path + [name], access=1)
        found = opened()
        while found.status == DELAY:
            time.sleep(0.1)
            found = opened()
        environment.check(found)
        data = read_by_v4(handle)
        environment.check(environment.close_file(other.session, handle, found.resarray[-2].stateid))
        return data

    def stat_by_v3(name, handle):
        found, with_attributes = three.lookup(root, name)
        assert found == handle and not with_attributes, "LOOKUP tells what it cannot know"
        return until(lambda: three.size(handle), JUKEBOX)

    yield "NFSv3 READ", FLUSHED, lambda name, handle: until(lambda: three.read(handle), JUKEBOX)
    yield "NFSv3 GETATTR", len(FLUSHED), stat_by_v3
    yield "NFSv4.1 READ", FLUSHED, lambda name, handle: until(lambda: read_by_v4(handle), DELAY)
    yield "NFSv4.1 OPEN to read", FLUSHED, open_by_v4
    if MOUNT:
        at = lambda name: os.path.join(MOUNT, name.decode())

        def content(name, handle):
            with open(at(name), "rb") as file:
                return file.read()

        yield "a mount's open to read", FLUSHED, content
        yield "a mount's stat", len(FLUSHED), lambda name, handle: os.stat(at(name)).st_size
        yield "a mount's list", len(FLUSHED), lambda name, handle: next(
            entry.stat().st_size for entry in os.scandir(MOUNT) if entry.name == name.decode()
        )


def waits(holder, what, door, name, handle, give_back):
    """Goes by a door; returns what was found there. The client gives the file back half a second after it was called."""
    found, failed = [], []

    def go():
        try:
            found.append(door(name, handle))
        except BaseException as error:  # told below
            failed.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    assert holder.recalled.wait(5), f"{what}: not recalled {failed}"
    time.sleep(0.5)
    assert thread.is_alive(), f"{what}: came to an end while the file was delegated {failed} {found}"
    give_back()
    thread.join(5)
    assert not thread.is_alive() and not failed, f"{what}: {failed}"
    return found[0]


FLUSHED = b"written by who has it"


def writing(holder, other, three):
    """Files that are delegated to be written."""
    for number, (what, expected, door) in enumerate(readers(three, other)):
        name = b"read%d" % number
        if MOUNT:  # the kernel has seen it
            os.path.exists(os.path.join(MOUNT, name.decode()))
        handle, state = holder.make_to_write(name)
        if MOUNT:
            assert name.decode() in os.listdir(MOUNT)

        def give_back():
            holder.flush(handle, state, FLUSHED)
            holder.give_back(handle, state)

        found = waits(holder, what, door, name, handle, give_back)
        assert found == expected, f"{what}: {found}"
        print(f"{what}: found what the client had written", flush=True)
    make_plain(other)
    for number, (what, door) in enumerate(doors(three, other)):
        name = b"write%d" % number
        handle, state = holder.make_to_write(name)
        give_back = lambda: (holder.flush(handle, state, FLUSHED), holder.give_back(handle, state))
        waits(holder, what, door, name, handle, give_back)
        print(f"{what}: waited for the file that was written to be given back", flush=True)


def attributes(holder, other, three):
    """Another client asks what a file is like: the one that writes it is asked, and keeps it."""
    handle, state = holder.make_to_write(b"asked")
    bits = [FATTR4_CHANGE, FATTR4_SIZE, FATTR4_TIME_MODIFY, FATTR4_TIME_METADATA]

    def look(by=other):
        found = environment.do_getattrdict(by.session, handle, bits)
        times = (FATTR4_TIME_MODIFY, FATTR4_TIME_METADATA)
        return found | {time: (found[time].seconds, found[time].nseconds) for time in times}

    before = look(holder)
    assert holder.asked == 0, "asked for its own file"
    holder.told = {FATTR4_CHANGE: before[FATTR4_CHANGE], FATTR4_SIZE: 6}
    assert look() == before, "a file that was not written changes"
    changes = [before[FATTR4_CHANGE]]
    for size in (1000, 2000):
        holder.told = {FATTR4_CHANGE: before[FATTR4_CHANGE] + 1, FATTR4_SIZE: size}
        found = look()
        assert found[FATTR4_SIZE] == size and found[FATTR4_CHANGE] > changes[-1], (found, changes)
        assert found[FATTR4_TIME_MODIFY] == found[FATTR4_TIME_METADATA] != before[FATTR4_TIME_METADATA]
        changes.append(found[FATTR4_CHANGE])
    assert three.size(handle) == 2000, "NFSv3 is told another size"
    assert holder.asked == 4 and not holder.recalled.is_set(), (holder.asked, holder.recalled.is_set())
    root = other.compound(other.dir() + [op.getfh()]).resarray[-1].object
    listed = environment.do_readdir(other.session, root, attrs=1 << FATTR4_SIZE | 1 << FATTR4_FILEID)
    entries = {entry.name: entry.attrs for entry in listed}
    assert FATTR4_SIZE not in entries[b"asked"] and FATTR4_SIZE in entries[b"own"], entries[b"asked"]
    # It had not sent it: the time of the content is as it was, and the change number does not go back.
    holder.give_back(handle, state)
    after = look()
    assert after[FATTR4_SIZE] == 6 and after[FATTR4_CHANGE] > changes[-1], (after, changes)
    assert after[FATTR4_TIME_MODIFY] == before[FATTR4_TIME_MODIFY]
    print("attributes: told by the client that writes the file, which keeps it", flush=True)


def handed_over(holder, other, three):
    """What a client opened and locked by a delegation it hands over before it gives the file back."""
    name = b"handed"
    handle, state = holder.make_to_write(name)
    owner = open_owner4(0, b"local")

    def give_back():
        claim = open_claim4(CLAIM_DELEG_CUR_FH, oc_delegate_stateid=state)
        opened = holder.compound([op.putfh(handle), op.open(0, 3, 0, owner, openflag4(OPEN4_NOCREATE), claim)])
        environment.check(opened)
        own = opened.resarray[-1].stateid
        assert opened.resarray[-1].delegation.delegation_type in (OPEN_DELEGATE_NONE, OPEN_DELEGATE_NONE_EXT)
        locker = locker4(new_lock_owner=True, open_owner=open_to_lock_owner4(0, own, 0, lock_owner4(0, b"local")))
        environment.check(holder.compound([op.putfh(handle), op.lock(WRITE_LT, False, 0, NFS4_UINT64_MAX, locker)]))
        holder.flush(handle, state, FLUSHED)
        holder.give_back(handle, state)

    locked = lambda name, handle: three.lock(handle)
    assert waits(holder, "NFSv3 LOCK", locked, name, handle, give_back) == 1, "locked what another has locked"
    print("NFSv3 LOCK: waited, and was refused by the lock that was handed over", flush=True)
    old = open_claim4(CLAIM_DELEG_PREV_FH)
    refused = holder.compound([op.putfh(handle), op.open(0, 3, 0, owner, openflag4(OPEN4_NOCREATE), old)])
    assert refused.status == NFS4ERR_NOTSUPP, refused.status


def not_given(holder, other):
    """Files that others have open are not delegated to be written."""
    none = (OPEN_DELEGATE_NONE, OPEN_DELEGATE_NONE_EXT)
    want = OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG

    def check(what, name, expected=none):
        handle, state, delegation = holder.opens(name, OPEN4_SHARE_ACCESS_BOTH, want)
        assert delegation.delegation_type in expected, f"{what}: {delegation}"
        environment.check(environment.close_file(holder.session, handle, state))

    handle, state = holder.make(b"shared")
    holder.give_back(handle, state)
    other_handle, other_state, _ = other.opens(b"shared", 1, OPEN4_SHARE_ACCESS_WANT_NO_DELEG)
    check("open to read by another client", b"shared")
    environment.check(environment.close_file(other.session, other_handle, other_state))
    if MOUNT:
        with open(os.path.join(MOUNT, "shared"), "rb"):
            check("open to read by a mount", b"shared")
        time.sleep(0.5)  # the kernel closes it in its own time
    check("open by nobody", b"shared", (OPEN_DELEGATE_WRITE,))
    print("open elsewhere: not delegated to be written", flush=True)


def vanished(others, three):
    """A client that is gone loses what it wrote and did not send; it does not write behind another's back. Others go on meanwhile."""
    holder = Holder(b"vanishing")
    handle, state = holder.make_to_write(b"lost")
    holder.session.client.cb_pre_hook(OP_CB_RECALL, lambda argument, env: None)
    began = time.time()
    while three.read(handle) == JUKEBOX:
        for client in [holder, *others]:  # it is there, and gives nothing back
            environment.check(client.compound([]))
        assert time.time() - began < 60, "not revoked"
        time.sleep(0.5)
    assert time.time() - began > 10, "revoked before its lease ran out"
    assert three.read(handle) == b"before"
    late = holder.compound([op.putfh(handle), op.write(state, 0, FILE_SYNC4, b"late")])
    assert late.status == NFS4ERR_DELEG_REVOKED, late.status
    assert three.read(handle) == b"before"
    environment.check(holder.compound([op.free_stateid(state)]))
    print(f"a client that gives nothing back: revoked after {time.time() - began:.0f} s", flush=True)


class Caching:
    """A client that keeps what it writes in its own cache, for as long as a file is delegated to it, and gives files back as it is
    called to."""

    def __init__(self, number):
        self.holder = Holder(b"caching%d" % number)
        self.lock = threading.RLock()  # of the session and the cache
        self.held, self.dirty = {}, {}  # state ids of delegations, and what was written and not sent
        self.recalls = queue.Queue()
        self.holder.session.client.cb_pre_hook(OP_CB_RECALL, lambda argument, env: self.recalls.put(argument.fh))
        self.holder.session.client.cb_post_hook(OP_CB_GETATTR, self.tell)
        self.cached = self.asked = 0
        threading.Thread(target=self.give_back, daemon=True).start()

    def tell(self, argument, env, res):
        # Not under the lock: the session may wait for the server, which waits for this.
        data, held = self.dirty.get(argument.fh), self.held.get(argument.fh)
        res.obj_attributes = {}
        if held is not None:  # else it was given back, or the answer that gives it is under way
            self.asked += 1
            size = held[2] if data is None else len(data)
            res.obj_attributes = {FATTR4_CHANGE: held[1] + (data is not None), FATTR4_SIZE: size}
        return res

    def give_back(self):
        while True:
            handle = self.recalls.get()
            with self.lock:
                if handle in self.held:
                    self.flush(handle)
                    self.holder.give_back(handle, self.held.pop(handle)[0])

    def flush(self, handle):
        if handle in self.dirty:
            self.store(handle, self.held[handle][0], self.dirty[handle])
            state, change, _ = self.held[handle]
            self.held[handle] = (state, change, len(self.dirty.pop(handle)))

    def store(self, handle, state, data):
        environment.check(self.holder.compound([op.putfh(handle), op.write(state, 0, FILE_SYNC4, data)]))

    def open(self, name, access, want, then):
        """Opens a file, and does something with it, as soon as it can be opened."""
        while True:
            with self.lock:
                opened = environment.open_file(self.holder.session, name, self.holder.path + [name], access=access | want, want_deleg=True)
                if opened.status == NFS4_OK:
                    handle, state = opened.resarray[-1].object, opened.resarray[-2].stateid
                    delegation = opened.resarray[-2].delegation
                    if delegation.delegation_type == OPEN_DELEGATE_WRITE:
                        bits = [FATTR4_CHANGE, FATTR4_SIZE]
                        attributes = environment.do_getattrdict(self.holder.session, handle, bits)
                        self.held[handle] = (delegation.write.stateid, attributes[FATTR4_CHANGE], attributes[FATTR4_SIZE])
                    done = then(handle, state)
                    environment.check(environment.close_file(self.holder.session, handle, state))
                    return done
            assert opened.status == DELAY, opened.status
            time.sleep(0.01)

    def write(self, name, handle, data):
        def by_open(handle, state):
            if handle in self.held:
                self.dirty[handle] = data
            else:
                self.store(handle, state, data)

        with self.lock:
            if handle in self.held:
                self.cached += 1
                self.dirty[handle] = data
                return
        self.open(name, OPEN4_SHARE_ACCESS_BOTH, OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG, by_open)

    def read(self, name, handle):
        def by_state(handle, state):
            found = self.holder.compound([op.putfh(handle), op.read(state, 0, 4096)])
            environment.check(found)
            return found.resarray[-1].data

        with self.lock:
            if handle in self.dirty:
                return self.dirty[handle]
            if handle in self.held:
                return by_state(handle, self.held[handle][0])
        return self.open(name, 1, OPEN4_SHARE_ACCESS_WANT_NO_DELEG, by_state)

    def size(self, name, handle):
        while True:
            with self.lock:
                if handle in self.dirty:
                    return len(self.dirty[handle])
                found = self.holder.compound([op.putfh(handle), op.getattr(1 << FATTR4_SIZE)])
            if found.status == NFS4_OK:
                return found.resarray[-1].obj_attributes[FATTR4_SIZE]
            assert found.status == DELAY, found.status
            time.sleep(0.01)


class Uncached:
    """A client of NFSv3."""

    def __init__(self):
        self.three = V3()

    def until(self, ask):
        while (answer := ask()) == JUKEBOX:
            time.sleep(0.01)
        return answer

    def write(self, name, handle, data):
        arguments = opaque(handle) + struct.pack(">QII", 0, len(data), 2) + opaque(data)
        assert self.until(lambda: self.three.call(7, arguments)) == 0

    def read(self, name, handle):
        return self.until(lambda: self.three.read(handle))

    def size(self, name, handle):
        return self.until(lambda: self.three.size(handle))


class Mounted:
    """A process at a mount."""

    def at(self, name):
        return os.path.join(MOUNT, name.decode())

    def write(self, name, handle, data):
        with open(self.at(name), "r+b", buffering=0) as file:
            file.write(data)

    def read(self, name, handle):
        with open(self.at(name), "rb", buffering=0) as file:
            return file.read(100)

    def size(self, name, handle):
        return os.stat(self.at(name)).st_size


def at_once(seconds):
    """Everybody reads and writes the same files for some time, each write another value of one length. What a read finds was not
    overwritten before the read began, and its write began before the read ended; so there are no two writers and no stale cache."""
    # One that was recalled is not delegated for 30 s: all go on to other files together, five a second.
    names = [b"at-once%d" % number for number in range(4 + int(seconds * 5))]
    maker, handles = Holder(b"maker"), {}
    for name in names:
        made = environment.create_file(maker.session, name, maker.path + [name])
        environment.check(made)
        handles[name], state = made.resarray[-1].object, made.resarray[-2].stateid
        maker.flush(handles[name], state, b"%016d" % 0)
        environment.check(environment.close_file(maker.session, handles[name], state))
    caching = [Caching(number) for number in range(3)]
    clients = caching + [Uncached()] + ([Mounted()] if MOUNT else [])
    start, history, failed = time.monotonic(), [], []
    numbers = itertools.count(1)

    def go(number, client):
        choose = random.Random(number)
        try:
            while (gone := time.monotonic() - start) < seconds and not failed:
                first = int(gone * 5)
                name = choose.choice(names[first : first + 4])
                what = choose.choice(("write", "write", "read", "size"))
                # In bursts: what is delegated is used.
                for _ in range(choose.randint(1, 6)):
                    began = time.monotonic()
                    value = b"%016d" % next(numbers)
                    if what == "write":
                        client.write(name, handles[name], value)
                    elif what == "read":
                        value = client.read(name, handles[name])
                    else:
                        assert client.size(name, handles[name]) == 16
                        continue
                    history.append((name, what, value, began, time.monotonic(), type(client).__name__))
                time.sleep(choose.random() * 0.05)
        except BaseException as error:  # told below
            failed.append(f"{type(client).__name__}: {error!r}")

    threads = [threading.Thread(target=go, args=both, daemon=True) for both in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 60)
        assert not thread.is_alive(), "waits for ever"
    assert not failed, failed
    for name in names:
        history.append((name, "read", Uncached().read(name, handles[name]), time.monotonic(), time.monotonic() + 1, "the end"))
    judge_history(names, history)
    cached, asked = sum(client.cached for client in caching), sum(client.asked for client in caching)
    writes = sum(entry[1] == "write" for entry in history)
    assert cached > writes / 20 and asked > 0, f"{cached} of {writes} writes in caches, {asked} times asked"
    print(f"at once: {writes} writes, {cached} of them in caches, {len(history) - writes} reads, {asked} sizes told: none is stale", flush=True)


def judge_history(names, history):
    for name in names:
        writes = {value: (began, ended) for of, what, value, began, ended, _ in history if (of, what) == (name, "write")}
        writes[b"%016d" % 0] = (0, 0)
        for of, what, value, began, ended, by in history:
            if (of, what) != (name, "read"):
                continue
            assert value in writes, f"{name}: {by} found {value}, which was never written"
            assert writes[value][0] < ended, f"{name}: {by} found {value} before it was written"
            later = [other for other, (first, last) in writes.items() if writes[value][1] < first and last < began]
            assert not later, f"{name}: {by} found {value}, which was overwritten by {later[:3]}"


def main():
    holder, other, three = Holder(b"holder"), Holder(b"other"), V3()
    make_plain(other)
    for number, (what, door) in enumerate(doors(three, other)):
        name = b"file%d" % number
        handle, state = holder.make(name)
        before = holder.looks(handle, state)

        def give_back():
            assert holder.looks(handle, state) == before, f"{what}: changed the file while it was delegated"
            holder.give_back(handle, state)

        waits(holder, what, door, name, handle, give_back)
        print(f"{what}: waited for the file to be given back", flush=True)
    # Its own changes are no conflict.
    handle, state = holder.make(b"own")
    environment.check(holder.compound([op.putfh(handle), op.setattr(state, {FATTR4_MODE: 0o640})]))
    assert not holder.recalled.is_set(), "recalled for its own change"
    print("a client's own change: not recalled", flush=True)
    writing(holder, other, three)
    attributes(holder, other, three)
    handed_over(holder, other, three)
    not_given(holder, other)
    vanished((holder, other), three)
    with open(FILE, "w") as handles:
        for name in (b"kept", b"changed"):
            handles.write(holder.make(name)[0].hex() + "\n")
        for name in (b"kept to write", b"changed to write"):
            handles.write(holder.make_to_write(name)[0].hex() + "\n")


def restarted(rollback):
    with open(FILE) as handles:
        kept, changed, kept_to_write, changed_to_write = (bytes.fromhex(line) for line in handles)
    three = V3()
    change = lambda handle: three.call(7, opaque(handle) + struct.pack(">QII", 0, 5, 2) + opaque(b"after"))
    for handle in (kept, changed, changed_to_write):
        assert change(handle) == JUKEBOX, "a restart: changed while it may be reclaimed"
    holder = Holder(b"holder", reclaims=True)
    written = holder.reclaim(kept_to_write, OPEN_DELEGATE_WRITE)
    assert written.delegation_type == OPEN_DELEGATE_WRITE, f"a restart: {written}"
    delegation = holder.reclaim(kept)
    assert delegation.delegation_type == OPEN_DELEGATE_READ, f"a restart: {delegation}"
    for handle in (changed, changed_to_write):
        assert change(handle) == JUKEBOX, "a restart: changed while others may reclaim"
    environment.check(holder.compound([op.reclaim_complete(False)]))
    for handle in (changed, changed_to_write):
        # The other clients of before the restart do not come back: their time runs out.
        until = time.monotonic() + 60
        while (found := change(handle)) == JUKEBOX and time.monotonic() < until:
            environment.check(holder.compound([op.putrootfh()]))
            time.sleep(0.5)
        assert found == 0, "a restart: not changed although nobody reclaims any more"
    give_back = lambda: (
        holder.flush(kept_to_write, written.write.stateid, FLUSHED),
        holder.give_back(kept_to_write, written.write.stateid),
    )

    def read(name, handle):
        while (found := three.read(handle)) == JUKEBOX:
            time.sleep(0.1)
        return found

    assert waits(holder, "NFSv3 READ", read, b"kept to write", kept_to_write, give_back) == FLUSHED
    holder.recalled.clear()
    state = delegation.read.stateid
    mode = opaque(kept) + struct.pack(">IIIIIIII", 1, 0o600, 0, 0, 0, 0, 0, 0)
    assert three.call(2, mode) == JUKEBOX and holder.recalled.wait(5)
    holder.give_back(kept, state)
    assert three.call(2, mode) == 0
    print("a restart: what may be reclaimed is changed by nobody, and what was not reclaimed by all afterwards", flush=True)
    state = holder.make(b"last")[1]
    subprocess.run(rollback, shell=True, check=True)
    status = holder.compound([op.test_stateid([state])]).resarray[-1].tsr_status_codes[0]
    assert status == NFS4ERR_DELEG_REVOKED, f"a rollback: {status}"
    print("a rollback: revoked", flush=True)


try:
    if FILE == "at-once":
        at_once(float(sys.argv[7]))
    elif sys.argv[7:]:
        restarted(sys.argv[7])
    else:
        main()
    sys.stdout.flush()
    os._exit(0)
except BaseException as error:
    print(f"delegations: {error!r}", file=sys.stderr, flush=True)
    os._exit(1)
