#!/usr/bin/env python3
"""Browsers with open pages: streams of events and of live samples, as the console opens them. Prints when an event reaches all of them, and the
processor time of the server without any, with one live page and with all. With --hold they are open until the program is ended.
browsers.py URL CERTIFICATE KEY PID COUNT [--hold]"""
import http.client
import json
import os
import ssl
import sys
import threading
import time
import urllib.parse

url, certificate, key, pid, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
place = urllib.parse.urlparse(url)
tls = ssl.create_default_context(cafile=certificate)
headers = {"Authorization": f"Bearer {key}"}
SECONDS = 20


def ask(method, path, body=None):
    connection = http.client.HTTPSConnection(place.hostname, place.port, context=tls, timeout=30)
    extra = {"content-type": "application/json"} if body else {}
    connection.request(method, path, body and json.dumps(body), headers | extra)
    answer = connection.getresponse()
    return answer.status, answer.read()


class Stream(threading.Thread):
    """A stream of events: counts them, and notes when one with the text `wanted` came."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.connection = http.client.HTTPSConnection(place.hostname, place.port, context=tls, timeout=60)
        self.connection.request("GET", path, None, headers)
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200, f"{path}: {self.answer.status}"
        self.events, self.bytes, self.wanted, self.came = 0, 0, None, None
        self.start()

    def run(self):
        try:
            while line := self.answer.readline():
                self.bytes += len(line)
                self.events += line.startswith(b"event:")
                if self.wanted and self.came is None and self.wanted in line:
                    self.came = time.monotonic()
        except OSError:
            pass


def processor_seconds():
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percent_of_a_core():
    before, began = processor_seconds(), time.monotonic()
    time.sleep(SECONDS)
    return 100 * (processor_seconds() - before) / (time.monotonic() - began)


if sys.argv[6:] == ["--hold"]:
    held = [Stream(f"/api/v1/{what}") for _ in range(count) for what in ("live", "events")]
    while True:
        time.sleep(1)
        assert all(stream.is_alive() for stream in held), "a stream has ended"

idle = percent_of_a_core()
live = [Stream("/api/v1/live")]
one = percent_of_a_core()
events = [Stream("/api/v1/events") for _ in range(count)]
live += [Stream("/api/v1/live") for _ in range(count - 1)] if 2 * count <= 100 else []
all_of_them = percent_of_a_core()
samples = [stream.events for stream in live[1:]]
times = []
for number in range(20):
    name = f"tank/many@event{number}-{os.getpid()}"
    for stream in events:
        stream.wanted, stream.came = name.encode(), None
    began = time.monotonic()
    status, body = ask("POST", "/api/v1/commands", {"tool": "zfs", "arguments": ["snapshot", name]})
    assert status == 202, body
    while not all(stream.came for stream in events):
        assert time.monotonic() - began < 10, "an event did not come"
        time.sleep(0.001)
    times.append(max(stream.came for stream in events) - began)
times.sort()
print(f"processor time of the server, percent of a core: {idle:.1f} without a page, {one:.1f} with a live page, {all_of_them:.1f} with "
      f"{len(live)} live pages and {len(events)} streams of events")
if samples:
    print(f"samples in {SECONDS} s at each of {len(samples)} live pages: {min(samples)} to {max(samples)}")
print(f"an event at all of {len(events)} browsers: median {1000 * times[len(times) // 2]:.0f} ms, slowest {1000 * times[-1]:.0f} ms")
