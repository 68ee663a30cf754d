#!/usr/bin/env python3
"""Two appliances of which one or both are killed with SIGKILL while a job replicates, for tests/interop/kill-replication.sh.

    kill-replication.py --work DIR --sanbox PROGRAM [--rounds N] [--datasets N] [--look N] [--seed N]

The source has a tree of file systems and volumes. Each round writes to some of them, begins a run, kills the source, the target or both at
some moment of it, and starts them again. Every `--look` rounds nobody is killed until a run is complete: then each dataset has the same
objects on both sides (`sanbox sums`) at a snapshot that was taken of all of them, no dataset of the target has more or other snapshots than
the source, and the job has left at most one snapshot of its own.

Ends with 0 and both appliances stopped, their pools exported: for zdb. Prints what was done.
"""
import argparse
import os
import random
import signal
import sys
import time
from collections import Counter

from appliance import LIMIT, Appliance, Wrong, free_port

JOB = "many"
KINDS = ("source", "target", "both")


class Pair:
    def __init__(self, args):
        self.random = random.Random(args.seed)
        self.source = Appliance(args.work, args.sanbox, "source", "0000ca01")
        self.target = Appliance(args.work, args.sanbox, "target", "0000ca02", free_port())
        for side, pool in ((self.source, "tank"), (self.target, "back")):
            side.pool(pool, 8 << 30)
            side.serve()
        code = self.target.invited("--datasets", "back/many", "--push")
        self.source.give("peer", "add", "vault", f"127.0.0.1:{self.target.port}", code)
        self.source.give("zfs", "create", "tank/many")
        self.names = []
        for n in range(args.datasets):
            # Some lie in others, some are volumes.
            name = f"g{n % 10}" if n < 10 else f"g{n % 10}/d{n}"
            if n >= 10 and n % 7 == 0:
                self.source.give("zfs", "create", "-s", "-V", "4M", f"tank/many/{name}")
            else:
                self.source.give("zfs", "create", f"tank/many/{name}")
                self.names.append(name)
        self.source.give("replication", "create", JOB, "--from", "tank/many", "--to", "peer://vault/back/many", "-r", "--take", "--every", "1h")
        self.file = os.path.join(args.work, "file")
        self.done = Counter()

    def write(self):
        for name in self.random.sample(self.names, min(12, len(self.names))):
            with open(self.file, "wb") as f:
                f.write(self.random.randbytes(self.random.randrange(1, 1_500_000)))
            self.source.give("put", self.file, f"tank/many/{name}:/f{self.random.randrange(3)}")

    def killed_round(self):
        self.write()
        run = self.source.begin("replication", "run", JOB)
        time.sleep(self.random.random() ** 2 * 3)
        self.done["while it ran" if run.poll() is None else "after a run"] += 1
        kind = self.random.choice(KINDS)
        self.done[f"killed {kind}"] += 1
        sides = [side for side in (self.source, self.target) if kind == "both" or side is getattr(self, kind)]
        for side in sides:
            side.end(signal.SIGKILL)
        if kind == "target":
            # The source goes on, and meets a target that is gone.
            time.sleep(self.random.random())
        for side in self.random.sample(sides, len(sides)):
            side.serve()
        run.communicate(timeout=LIMIT)

    def complete(self):
        """Runs until a run is complete."""
        began = time.monotonic()
        while True:
            process = self.source.begin("replication", "run", JOB)
            output, _ = process.communicate(timeout=LIMIT)
            if process.returncode == 0:
                return
            if time.monotonic() - began > LIMIT:
                raise Wrong(f"no run is complete: {output[-2000:]}")
            time.sleep(1)

    def look(self, number):
        self.complete()
        check = f"check{number}"
        self.source.give("zfs", "snapshot", "-r", f"tank/many@{check}")
        self.complete()
        listed = {}
        for side, root in ((self.source, "tank"), (self.target, "back")):
            text = side.give("zfs", "list", "-Hrp", "-t", "all", "-o", "name,type,guid", f"{root}/many")
            rows = [line.split("\t") for line in text.splitlines()]
            listed[root] = {name[len(root):]: (kind, guid if kind == "snapshot" else "") for name, kind, guid in rows if kind != "bookmark"}
        if listed["tank"] != listed["back"]:
            raise Wrong(f"the trees differ: {sorted(set(listed['tank'].items()) ^ set(listed['back'].items()))[:20]}")
        own = Counter(name.split("@")[0] for name in listed["tank"] if f"@replica-{JOB}-" in name)
        if own and max(own.values()) > 1:
            raise Wrong(f"more than one snapshot of the job's own: {own.most_common(3)}")
        for name, (kind, _) in listed["tank"].items():
            if not name.endswith(f"@{check}"):
                continue
            sums = [side.give("sums", root + name).replace(root + name, "") for side, root in ((self.source, "tank"), (self.target, "back"))]
            if sums[0] != sums[1]:
                raise Wrong(f"{name} differs: {sums}")
            self.done["datasets compared"] += 1
        # Else each look would leave one more.
        if number > 1:
            for side, root in ((self.source, "tank"), (self.target, "back")):
                side.give("zfs", "destroy", "-r", f"{root}/many@check{number - 1}")
        self.done["looks"] += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", required=True)
    parser.add_argument("--sanbox", required=True)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--datasets", type=int, default=100)
    parser.add_argument("--look", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    pair = Pair(args)
    try:
        looks = 0
        for number in range(1, args.rounds + 1):
            pair.killed_round()
            if number % args.look == 0 or number == args.rounds:
                looks += 1
                pair.look(looks)
                if number < args.rounds:
                    print(f"after {number} rounds: {pair.done['datasets compared']} datasets compared", flush=True)
        for side, pool in ((pair.source, "tank"), (pair.target, "back")):
            side.end()
            side.give("zpool", "export", pool)
    finally:
        for side in (pair.source, pair.target):
            side.cleared()
    print(f"{args.rounds} rounds, {args.datasets} datasets: " + ", ".join(f"{what} {count}" for what, count in sorted(pair.done.items())))


try:
    main()
except Wrong as wrong:
    sys.exit(f"kill-replication: {wrong}")
