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
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))
from appliance import Appliance, free_port  # noqa: E402

WARM_UP = 10.0
FILE_BYTES = 20_000_000


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
        sanbox = os.path.abspath(args.sanbox)
        options = ["--memory", args.memory] if args.memory else []
        for name, hostid, port in (("source", "0000be01", 0), ("target", "0000be02", free_port())):
            sides.append(Appliance(work, sanbox, name, hostid, port, options))
            sides[-1].serve()
        measure(args, work, *sides)
    finally:
        for side in sides:
            side.cleared()
        shutil.rmtree(work)


def measure(args, work, source, target):
    source.pool("tank", 16 << 30)
    target.pool("back", 16 << 30)
    code = target.invited("--datasets", "back/db", "--push")
    source.give("peer", "add", "vault", f"127.0.0.1:{target.port}", code)
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
