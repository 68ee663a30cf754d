#!/usr/bin/env python3
"""What an operation costs as things grow: each curve is the time of single operations (and the memory of the daemon) against how much there is.

    tests/bench/growth.py [--sanbox PROGRAM] [--work DIR] [--rows FILE] [--svg DIR] [--largest N] [CURVE...]
                                              (default target/release/sanbox, /var/tmp, no files, 1000000, all curves)

directory    names in one directory: look up, create, rename, remove one, list a page of it
snapshots    snapshots of one dataset (up to 10,000): take, list, destroy one; a write
datasets     datasets of a pool (up to 10,000): create, show, destroy one; a write; import
size         size of a pool of sparse files, 1 TiB to 1 PiB: import; a write
fill         how full a pool is, 10 to 95 %, after as much was overwritten at random places: a write
dedup        entries of the table of a pool with dedup=on: a write of a block that is new
connections  connections of clients that are open (up to 10,000): a read of one more
age          operations that a daemon has done (up to ten times N): a read

Writes are of 8 KiB, FILE_SYNC, at random places of a file; requests of NFS are made one at a time by a client in Python, which takes some 50 us of each.
Commands are timed with the start of their process. Rows: curve, operation, at, median, 99th percentile, unit. Needs root for what daemons need, and
matplotlib for --svg.
"""
import argparse
import csv
import os
import random
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))
from appliance import Appliance, free_port  # noqa: E402
from nfs3 import FILE_SYNC, NFS, UNSTABLE, Client, opaque  # noqa: E402

LOOKUP, REMOVE, RENAME, READDIR = 3, 12, 14, 16
BLOCK = 8 << 10
# Operations of a kind at each point, of NFS and of commands.
CALLS, COMMANDS = 400, 7


class Bench:
    """A daemon with a pool `bench`, and the rows that are measured of it."""

    def __init__(self, args, work, curve, rows):
        self.args, self.curve, self.rows, self.clients = args, curve, rows, []
        self.box = Appliance(work, os.path.abspath(args.sanbox), curve, "0000be11", options=["--memory", "3G"])
        self.box.nfs_port = free_port()
        self.disks = os.path.join(self.box.dir, "disks")

    def begin(self, disks=1, size=64 << 30):
        self.box.serve()
        names = [os.path.join(self.disks, f"d{number}.img") for number in range(disks)]
        for name in names:
            with open(name, "w") as file:
                file.truncate(size)
        self.box.give("zpool", "create", "-O", "mountpoint=none", "-O", "atime=off", "bench", *names)
        self.share("bench/fs", "-o", "recordsize=8K")

    def share(self, name, *options):
        self.box.give("zfs", "create", "-o", "sharenfs=rw,no_root_squash,insecure", *options, name)

    def client(self, name="bench/fs"):
        """A further client, whose connection stays open."""
        self.clients.append(Client(self.box.nfs_port, "/" + name, f"127.77.{len(self.clients) // 250}.{len(self.clients) % 250 + 1}"))
        return self.clients[-1]

    def row(self, at, operation, values, unit):
        values = sorted(values)
        row = (self.curve, operation, at, round(statistics.median(values), 3), round(values[len(values) * 99 // 100], 3), unit)
        print(",".join(map(str, row)), flush=True)
        self.rows.append(row)

    def times(self, at, operation, call, count=CALLS):
        """Times a call with each number up to a count."""
        took = []
        for number in range(count):
            began = time.perf_counter()
            call(number)
            took.append((time.perf_counter() - began) * 1e6)
        self.row(at, operation, took, "us")

    def commands(self, at, operation, *words):
        """Times a command; `{}` in a word is a number."""
        took = []
        for number in range(COMMANDS):
            filled = [word.format(number) for word in words]
            began = time.perf_counter()
            self.box.give(*filled)
            took.append((time.perf_counter() - began) * 1e3)
        self.row(at, operation, took, "ms")

    def memory(self, at):
        with open(f"/proc/{self.box.daemon.pid}/status") as status:
            kib = next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
        self.row(at, "memory", [kib / 1024], "MiB")

    def writes(self, at, client, handle, span=64 << 20, count=CALLS):
        data = os.urandom(BLOCK)
        places = span // BLOCK
        self.times(at, "write", lambda _: done(client.write(handle, random.randrange(places) * BLOCK, data, FILE_SYNC)), count)

    def restarted(self, at, operation):
        self.box.end()
        began = time.perf_counter()
        self.box.serve()
        self.row(at, operation, [(time.perf_counter() - began) * 1e3], "ms")


def done(status):
    assert status == 0, f"NFS: {status}"


def filled(client, name, span=64 << 20):
    """A file of so many bytes; returns its handle."""
    handle = client.create(name)
    data = os.urandom(1 << 20)
    for offset in range(0, span, len(data)):
        done(client.write(handle, offset, data, UNSTABLE))
    done(client.commit(handle))
    return handle


def powers(first, last):
    at = first
    while at <= last:
        yield at
        at *= 10


def directory(bench):
    bench.begin()
    client = bench.client()

    def call(procedure, body):
        reply = client.call(NFS, procedure, body)
        done(struct.unpack(">I", reply[:4])[0])
        return reply

    source = os.path.join(bench.box.dir, "names")
    for at in powers(1000, bench.args.largest):
        os.mkdir(source)
        for number in range(at):
            os.mknod(os.path.join(source, f"name{number}"))
        bench.box.give("put", "-r", source, f"bench/fs:/d{at}")
        shutil.rmtree(source)
        reply = call(LOOKUP, opaque(client.root) + opaque(f"d{at}".encode()))
        (length,) = struct.unpack(">I", reply[4:8])
        handle = opaque(reply[8 : 8 + length])
        create = struct.pack(">IIIIIIII", 0, 1, 0o644, 0, 0, 0, 0, 0)
        name = lambda text: handle + opaque(text.encode())
        bench.times(at, "look up", lambda _: call(LOOKUP, name(f"name{random.randrange(at)}")))
        bench.times(at, "create", lambda number: call(8, name(f"more{number}") + create))
        bench.times(at, "rename", lambda number: call(RENAME, name(f"more{number}") + name(f"other{number}")))
        bench.times(at, "remove", lambda number: call(REMOVE, name(f"other{number}")))
        bench.times(at, "list a page", lambda _: call(READDIR, handle + struct.pack(">QQI", 0, 0, 8192)), 50)
        bench.memory(at)


def grown(bench, made, make, show, name):
    """Makes more and more by a command, tells at each power of ten what one more costs, and gives that power. `made`: what the rows call it."""
    bench.begin()
    handle = filled(bench.client(), "file")
    there = 0
    for at in powers(10, min(10_000, bench.args.largest)):
        for number in range(there, at):
            bench.box.give(*make, f"{name}n{number}")
        there = at
        more = name + "more{}"
        bench.commands(at, made, *make, more)
        bench.commands(at, "show", *show, more)
        bench.commands(at, "destroy", "zfs", "destroy", more)
        bench.writes(at, bench.client(), handle)
        bench.memory(at)
        yield at


def snapshots(bench):
    for at in grown(bench, "take", ["zfs", "snapshot"], ["zfs", "list", "-t", "snapshot"], "bench/fs@"):
        last = at
    bench.restarted(last, "import")


def datasets(bench):
    for at in grown(bench, "create", ["zfs", "create"], ["zfs", "list"], "bench/"):
        bench.restarted(at, "import")


def size(bench):
    tib = 1 << 40
    for at in (1, 10, 100, 1000):
        # A file of most file systems has less than 16 TiB.
        disks = -(-at // 10)
        bench.begin(disks, at * tib // disks)
        client = bench.client()
        handle = filled(client, "file")
        bench.writes(at, client, handle)
        bench.restarted(at, "import")
        bench.memory(at)
        bench.box.give("zpool", "destroy", "-f", "bench")
        bench.box.end()
        shutil.rmtree(bench.box.dir)
        bench.box = Bench(bench.args, os.path.dirname(bench.box.dir), bench.curve, bench.rows).box


def fill(bench):
    total = 4 << 30
    bench.begin(size=total)
    client = bench.client()
    file, handles = filled(client, "file"), []
    data, places = os.urandom(64 << 10), (64 << 20) // (64 << 10)
    for at in (10, 25, 50, 75, 85, 90, 95):
        while int(bench.box.give("zpool", "list", "-Hp", "-o", "capacity", "bench")) < at:
            handles.append(filled(client, f"f{len(handles)}"))
        # As much as was written is overwritten at random places: what was free in one piece is not any more.
        for _ in range(len(handles) * places // 4):
            done(client.write(random.choice(handles), random.randrange(places) * len(data), data, UNSTABLE))
        bench.writes(at, client, file)
        bench.memory(at)


def dedup(bench):
    bench.begin()
    bench.share("bench/dedup", "-o", "recordsize=8K", "-o", "dedup=on")
    client = bench.client("bench/dedup")
    there, handle = 0, client.create("file")
    for at in powers(1000, bench.args.largest):
        while there < at:
            done(client.write(handle, there * BLOCK, os.urandom(16 * BLOCK), UNSTABLE))
            there += 16
        done(client.commit(handle))
        bench.box.give("zpool", "sync", "bench")
        bench.times(at, "write", lambda number: done(client.write(handle, (there + number) * BLOCK, os.urandom(BLOCK), FILE_SYNC)))
        there += CALLS
        bench.memory(at)


def connections(bench):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    bench.begin()
    client = bench.client()
    handle = filled(client, "file")
    places = (64 << 20) // BLOCK
    for at in powers(1, min(10_000, bench.args.largest)):
        while len(bench.clients) < at:
            assert bench.client().attributes()
            # One that says nothing while thousands come may have to make room.
            client.attributes()
        bench.times(at, "read", lambda _: done(client.read(handle, random.randrange(places) * BLOCK, BLOCK)))
        bench.memory(at)


def age(bench):
    bench.begin()
    client = bench.client()
    handle = filled(client, "file")
    places = (64 << 20) // BLOCK
    program = os.path.join(bench.box.dir, "nfsbench")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nfsbench.c")
    subprocess.run(["gcc", "-O2", "-w", "-o", program, source, "-lnfs"], check=True)
    url = f"nfs://127.0.0.1/bench/fs?nfsport={bench.box.nfs_port}&mountport={bench.box.nfs_port}&version=3"
    did = 0.0
    for at in powers(10_000, bench.args.largest * 10):
        while did < at:
            # Five names are made, looked up, listed, renamed and removed for each file.
            for words in (["unstable", "8192", "32", "1", "5", "64"], ["meta", "2000", "4"]):
                told = subprocess.run([program, url, *words], check=True, capture_output=True, text=True).stdout.split()
                did += float(told[1]) * 5 if words[0] == "unstable" else 2000 * 5
        bench.times(at, "read", lambda _: done(client.read(handle, random.randrange(places) * BLOCK, BLOCK)))
        bench.memory(at)


CURVES = {curve.__name__: curve for curve in (directory, snapshots, datasets, size, fill, dedup, connections, age)}
AXES = {"directory": "names in the directory", "snapshots": "snapshots of the dataset", "datasets": "datasets of the pool", "size": "TiB of the pool",
        "fill": "percent of the pool in use", "dedup": "entries of the table", "connections": "open connections", "age": "operations done"}


def draw(rows, into):
    """A picture for each curve: times on the left, by unit, memory on the right."""
    import matplotlib

    matplotlib.use("svg")
    # The same rows make the same file.
    matplotlib.rcParams["svg.hashsalt"] = "growth"
    from matplotlib import pyplot

    for curve in dict.fromkeys(row[0] for row in rows):
        of_curve = [row for row in rows if row[0] == curve]
        units = [unit for unit in ("us", "ms", "MiB") if any(row[5] == unit for row in of_curve)]
        figure, panels = pyplot.subplots(1, len(units), figsize=(4 * len(units), 3), squeeze=False)
        for unit, panel in zip(units, panels[0]):
            for operation in dict.fromkeys(row[1] for row in of_curve if row[5] == unit):
                points = [(float(row[2]), float(row[3])) for row in of_curve if row[1] == operation]
                panel.plot(*zip(*points), marker="o", label=operation)
            panel.set_xscale("linear" if curve == "fill" else "log")
            panel.set_ylim(bottom=0)
            panel.set_xlabel(AXES[curve])
            panel.set_ylabel({"us": "microseconds, median", "ms": "milliseconds, median", "MiB": "MiB"}[unit])
            panel.legend(fontsize="small")
            panel.grid(alpha=0.3)
        figure.tight_layout()
        figure.savefig(os.path.join(into, f"{curve}.svg"), metadata={"Date": None})
        pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sanbox", default="target/release/sanbox")
    parser.add_argument("--work", default="/var/tmp")
    parser.add_argument("--rows")
    parser.add_argument("--svg")
    parser.add_argument("--largest", type=int, default=1_000_000)
    parser.add_argument("curves", nargs="*", choices=[*CURVES, []], default=[])
    args = parser.parse_args()
    rows = []
    for curve in args.curves or CURVES:
        work = tempfile.mkdtemp(prefix="sanbox-growth.", dir=args.work)
        bench = Bench(args, work, curve, rows)
        try:
            CURVES[curve](bench)
        finally:
            bench.box.cleared()
            shutil.rmtree(work)
    if args.rows:
        with open(args.rows, "w", newline="") as out:
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(("curve", "operation", "at", "median", "p99", "unit"))
            writer.writerows(rows)
    if args.svg:
        os.makedirs(args.svg, exist_ok=True)
        draw(rows, args.svg)


if __name__ == "__main__":
    main()
