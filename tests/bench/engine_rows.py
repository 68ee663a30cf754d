#!/usr/bin/env python3
"""For engine.sh: `row ROUND LOAD` makes rows of what both programs print, `table FILE` medians and ratios of rows."""
import csv
import re
import statistics
import sys

# What engine_bench calls a workload, by what openzfs_bench calls it: test, layout, record, compression, threads.
SAME = {
    ("seq_write", "disk", "131072", "off", "1"): "write128k.off.random",
    ("seq_write", "disk", "131072", "lz4", "1"): "write128k.lz4.half",
    ("seq_write", "disk", "131072", "zstd3", "1"): "write128k.zstd-3.half",
    ("seq_write", "raidz2x6", "131072", "lz4", "1"): "raidz2x6.lz4.half",
    ("seq_read_cold", "disk", "131072", "off", "1"): "read128k.cold",
    ("rand_read_8k_warm", "disk", "8192", "lz4", "1"): "read8k.warm.8k.x1",
    ("rand_read_8k_warm", "disk", "131072", "lz4", "1"): "read8k.warm.128k.x1",
    ("rand_write_8k_async", "disk", "8192", "lz4", "1"): "write8k.async.8k.x1",
    ("rand_write_8k_async", "disk", "131072", "lz4", "1"): "write8k.async.128k.x1",
    ("rand_write_8k_sync", "disk", "8192", "lz4", "1"): "write8k.sync.x1",
    ("rand_write_8k_sync", "disk", "8192", "lz4", "8"): "write8k.sync.x8",
    ("rand_write_8k_sync", "disk", "8192", "lz4", "32"): "write8k.sync.x32",
}


def rows(round, load):
    last = None
    for line in sys.stdin:
        engine, line = line.rstrip("\n").split(" ", 1)
        if engine == "openzfs":
            field = line.split(",")
            name = SAME.get((field[1], field[2], field[3], field[4], field[6]))
            if len(field) < 12 or name is None:
                continue
            value, seconds, cpu = float(field[7]), float(field[9]), float(field[10])
            cost = cpu / (value * seconds) * (1e3 if field[8] == "MB/s" else 1e6)
            p99 = re.search(r"p99 (\d+) us", field[11])
            print(f"{round},openzfs,{name},{value:.1f},{field[8]},{cost:.3f},{p99[1] if p99 else ''},{load}")
            continue
        if p99 := re.match(r"(\S+) +p50 \d+ us, p99 (\d+) us", line):
            print(f"{last},{p99[2]},{load}")
            last = None
            continue
        if last:
            print(f"{last},,{load}")
        found = re.match(r"(\S+) +([\d.]+) (\S+) +wall .*? ([\d.]+) (\S+) \(", line)
        name = re.sub(r"^(read128k.cold|raw.read)\.\d$", r"\1", found[1])
        last = f"{round},{'raw' if name == 'raw.read' else engine},{'read128k.cold' if name == 'raw.read' else name},{found[2]},{found[3]},{found[4]}"
    if last:
        print(f"{last},,{load}")


def table(path):
    found = list(csv.DictReader(open(path, encoding="ascii")))

    def values(engine, workload, column):
        by_round = {}
        for row in found:
            if (row["engine"], row["workload"]) == (engine, workload) and row[column]:
                by_round.setdefault(row["round"], []).append(float(row[column]))
        return {round: statistics.median(values) for round, values in by_round.items()}

    def middle(engine, workload, column):
        return statistics.median(values(engine, workload, column).values() or [float("nan")])

    print("\nworkload               peer       here  beside it  ratio by round        CPU: here  beside it  ratio   p99: here  beside it")
    for workload in dict.fromkeys(row["workload"] for row in found):
        measured = [peer for peer in ("openzfs", "before", "raw") if values(peer, workload, "value")]
        for peer in measured or ["openzfs"]:
            ours, theirs = values("sanbox", workload, "value"), values(peer, workload, "value")
            ratios = sorted(ours[round] / theirs[round] for round in ours if theirs.get(round)) or [float("nan")]
            cpu = middle("sanbox", workload, "cpu"), middle(peer, workload, "cpu")
            print(f"{workload:22} {peer:7} {middle('sanbox', workload, 'value'):9.0f} {middle(peer, workload, 'value'):9.0f}  "
                  f"{statistics.median(ratios):5.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})  {cpu[0]:10.2f} {cpu[1]:10.2f} {cpu[0] / cpu[1] if cpu[1] else 0:6.2f}"
                  f"  {middle('sanbox', workload, 'p99_us'):10.0f} {middle(peer, workload, 'p99_us'):10.0f}")


if sys.argv[1] == "row":
    rows(sys.argv[2], sys.argv[3])
else:
    table(sys.argv[2])
