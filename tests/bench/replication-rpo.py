#!/usr/bin/env python3
"""How far the copy of a continuous job is behind while its source is written to at a steady rate.

    tests/bench/replication-rpo.py [--rate MB/S] [--seconds N] [--sanbox PROGRAM] [--work DIR] [--memory SIZE]
                                              (default 100 MB/s for 60 s, target/release/sanbox, /var/tmp)

Two daemons of this machine, a pool each, the protocol of appliances between them. One thread writes files of noise over and over at the rate;
another writes the time into a file of the same dataset ten times a second. What is asked of the target, without a pause, is that file: the age of
what it holds is how much would be lost if the source ended then, by the clock of this machine, not by what the job says of itself. The first
ten seconds do not count. Prints the rate that was written, the ages (half, p99, most), what the job says, and CPU seconds of both daemons.
"""
import argparse
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

WARM_UP = 10.0
FILE_BYTES = 20_000_000


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Side:
    def __init__(self, work, sanbox, name, hostid, port, memory):
        self.dir, self.sanbox = os.path.join(work, name), sanbox
        os.makedirs(self.dir)
        self.env = dict(os.environ, SANBOX_STATE=os.path.join(self.dir, "state"), ZFS_HOSTID=hostid)
        log = os.path.join(self.dir, "log")
        memory = ["--memory", memory] if memory else []
        self.daemon = subprocess.Popen(
            [sanbox, "serve", "--listen", "127.0.0.1", "--nfs-port", "0", "--iscsi-port", "0", "--https-port", "0", "--no-portmap",
             "--replication-port", str(port), *memory], env=self.env, stdout=open(log, "w"), stderr=subprocess.STDOUT)
        while "sanbox: ready" not in open(log).read():
            assert self.daemon.poll() is None, open(log).read()
            time.sleep(0.05)

    def give(self, *words):
        return subprocess.run([self.sanbox, *words], env=self.env, text=True, check=True, stdout=subprocess.PIPE).stdout

    def pool(self, name):
        disk = os.path.join(self.dir, "disk")
        with open(disk, "w") as f:
            f.truncate(16 << 30)
        self.give("zpool", "create", "-O", "mountpoint=none", name, disk)

    def cpu(self):
        fields = open(f"/proc/{self.daemon.pid}/stat").read().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=100)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--sanbox", default="target/release/sanbox")
    parser.add_argument("--work", default="/var/tmp")
    parser.add_argument("--memory")
    args = parser.parse_args()
    work = tempfile.mkdtemp(prefix="sanbox-rpo.", dir=args.work)
    sides = []
    try:
        port = free_port()
        sanbox = os.path.abspath(args.sanbox)
        for name, hostid, at in (("source", "0000be01", 0), ("target", "0000be02", port)):
            sides.append(Side(work, sanbox, name, hostid, at, args.memory))
        measure(args, work, *sides, port)
    finally:
        for side in sides:
            side.daemon.send_signal(signal.SIGTERM)
            side.daemon.wait()
        shutil.rmtree(work)


def measure(args, work, source, target, port):
    source.pool("tank")
    target.pool("back")
    told = target.give("peer", "invite", "box", "--datasets", "back/db", "--push")
    code = next(line.split()[-1] for line in told.splitlines() if "sanbox peer add" in line)
    source.give("peer", "add", "vault", f"127.0.0.1:{port}", code)
    source.give("zfs", "create", "tank/db")
    noise = os.path.join(work, "noise")
    with open(noise, "wb") as f:
        f.write(os.urandom(FILE_BYTES))
    began = time.monotonic()
    ends = began + WARM_UP + args.seconds
    stamp = os.path.join(work, "stamp")

    def mark():
        # Renamed into its place, so that a reader at the target finds all of it or the one before.
        with open(stamp, "w") as f:
            f.write(f"{time.monotonic():.6f}\n")
        source.give("put", stamp, "tank/db:/stamp")

    mark()
    source.give("replication", "create", "db", "--from", "tank/db", "--to", "peer://vault/back/db", "--continuous")
    written = [0]

    def write():
        number = 0
        while time.monotonic() < ends:
            due = began + written[0] / (args.rate * 1e6)
            time.sleep(max(0.0, due - time.monotonic()))
            source.give("put", noise, f"tank/db:/f{number % 40}")
            number += 1
            written[0] += FILE_BYTES

    def marks():
        while time.monotonic() < ends:
            mark()
            time.sleep(0.1)

    threads = [threading.Thread(target=one) for one in (write, marks)]
    cpu = [side.cpu() for side in (source, target)]
    for thread in threads:
        thread.start()
    ages = []
    while time.monotonic() < ends:
        asked = time.monotonic()
        found = subprocess.run([target.sanbox, "cat", "back/db:/stamp"], env=target.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if asked > began + WARM_UP and found.returncode == 0 and found.stdout.endswith("\n"):
            ages.append(asked - float(found.stdout))
        time.sleep(0.05)
    took = time.monotonic() - began
    for thread in threads:
        thread.join()
    cpu = [side.cpu() - before for side, before in zip((source, target), cpu)]
    ages.sort()
    print(f"written {written[0] / took / 1e6:.0f} MB/s for {took:.0f} s; {len(ages)} looks at the target")
    print(f"age of the copy: half {ages[len(ages) // 2]:.2f} s, p99 {ages[int(len(ages) * 0.99)]:.2f} s, most {ages[-1]:.2f} s")
    for line in source.give("replication", "show", "db").splitlines():
        if line.startswith(("behind", "state", "failing")):
            print(f"the job says: {line}")
    print(f"CPU seconds: source {cpu[0]:.1f}, target {cpu[1]:.1f}")


main()
