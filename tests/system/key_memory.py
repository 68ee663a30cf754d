"""Looks for keys in the memory of a process, as its kernel shows it.

key_memory.py PID secrets       prints the pages that are neither swapped nor dumped, in hexadecimal digits without trailing zeros
key_memory.py PID find          reads such digits and prints where each is found: how often in such pages, how often elsewhere
"""

import re
import struct
import sys

PAGE = 4096
pid, what = sys.argv[1:]


def maps():
    """The mappings as (first address, end, flags)."""
    found = []
    for line in open(f"/proc/{pid}/smaps"):
        place = re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line)
        if place:
            found.append([int(place[1], 16), int(place[2], 16), ()])
        elif re.match(r"[0-9a-f]+-", line):
            found.append([0, 0, ()])
        elif line.startswith("VmFlags:"):
            found[-1][2] = line.split()[1:]
    return found


def present(start, end):
    """The parts of a mapping that have memory, or lie in swap."""
    with open(f"/proc/{pid}/pagemap", "rb") as pagemap:
        pagemap.seek(start // PAGE * 8)
        words = pagemap.read((end - start) // PAGE * 8)
    begin = None
    for index, (word,) in enumerate(struct.iter_unpack("<Q", words)):
        here = bool(word >> 62)
        if here and begin is None:
            begin = start + index * PAGE
        if not here and begin is not None:
            yield begin, start + index * PAGE
            begin = None
    if begin is not None:
        yield begin, start + len(words) // 8 * PAGE


def is_secret(flags):
    return {"lo", "dd", "wf"} <= set(flags)


with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:

    def read(start, end):
        try:
            memory.seek(start)
            return memory.read(end - start)
        except OSError:
            return b""

    if what == "secrets":
        for start, end, flags in maps():
            if is_secret(flags):
                for page in range(start, end, PAGE):
                    print(read(page, page + PAGE).rstrip(b"\0").hex())
    else:
        wanted = [bytes.fromhex(line) for line in sys.stdin.read().split()]
        counts = {needle: [0, 0] for needle in wanted}
        for start, end, flags in maps():
            if end > 1 << 47:
                continue
            for begin, stop in present(start, end):
                # Runs of pages may be long: parts overlap by as much as a needle has.
                for at in range(begin, stop, 16 << 20):
                    part = read(at, min(stop, at + (16 << 20) + 256))
                    for needle in wanted:
                        counts[needle][not is_secret(flags)] += part.count(needle)
        for needle in wanted:
            print(*counts[needle])
