#!/usr/bin/env python3
"""Kills a server under the kernel's NFS client in a guest (kill-client.py), for kill-nfs.sh and kill-guest.sh.

    kill-vm.py server|guest --sanbox PROGRAM --realvm PROGRAM --dir DIR --rounds N [--seed N] [--workers N]

  server  the server runs on this machine and is killed with SIGKILL, at any moment, its start and the replay of its logs included
  guest   the server runs in a second guest, on three disks; QEMU is killed with SIGKILL. The disks are served by nbdkit, whose cache
          filter forgets on its own SIGKILL what was not flushed: a power cut. For each disk and start a coin decides whether the disk
          has such a cache or keeps all that was written, so that the sides of a mirror come back unequal.

DIR/share is handed to the guests (the client's script, for `guest` also the server's); DIR/disks holds the images; DIR/acked is
the log of the acknowledged operations; DIR/manifest what the files must hold at the end.
"""
import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# Seconds: a guest without hardware help on a loaded machine is slow.
LIMIT = 900

CLIENT = """set -eu
port=$1 workers=$2 seed=$3; modprobe nfsv3; mkdir -p /mnt/work /mnt/look
common=vers=3,tcp,nolock,port=$port,mountport=$port,mountproto=tcp,timeo=50
n=0; until mount -t nfs -o $common,hard 10.0.2.2:/tank/files /mnt/work; do n=$((n + 1)); [ $n -lt 60 ]; sleep 1; done
until mount -t nfs -o $common,hard,noac,lookupcache=none,nosharecache 10.0.2.2:/tank/files /mnt/look; do sleep 1; done
exec python3 /share/kill-client.py /mnt/work /mnt/look $workers $seed /share/stop
"""

SERVER = """set -eu
export SANBOX_STATE=/tmp/state
cp /share/sanbox /tmp/sanbox; chmod +x /tmp/sanbox
if [ -e /share/state.tar ]; then tar -C /tmp -xf /share/state.tar; else
  /tmp/sanbox zpool create -O mountpoint=none tank mirror /dev/vdb /dev/vdc log /dev/vdd
  /tmp/sanbox zfs create -o sharenfs=rw,no_root_squash tank/files
  tar -C /tmp -cf /share/state.tar.new state; mv /share/state.tar.new /share/state.tar
fi
exec /tmp/sanbox serve --listen 0.0.0.0 --nfs-port 2049 --no-portmap --memory 512M 2>&1
"""


class Failed(Exception):
    pass


class Lines:
    """A program whose lines are read as they come."""

    def __init__(self, words, log, **more):
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=open(log, "ab"), **more)
        self.acked, self.ready, self.wrong, self.ended, self.manifest, self.totals = 0, False, [], False, [], []
        self.slow = 0
        self.log = open(log, "ab")
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self):
        for line in self.process.stdout:
            text = line.decode(errors="replace").rstrip()
            if text.startswith("A "):
                self.acked += 1
                self.slow += float(text.split()[3]) > 0.8
            elif text.startswith("M "):
                self.manifest.append(text[2:])
            elif text.startswith("E "):
                self.totals.append([int(word) for word in text.split()[1:]])
            elif text.startswith(("WRONG", "KILL-FAILED")):
                self.wrong.append(text)
            elif text == "KILL-OK":
                self.ended = True
            if "sanbox: ready" in text:
                self.ready = True
            self.log.write(line)
            self.log.flush()


class HostServer:
    """`sanbox serve` on this machine."""

    def __init__(self, a, r):
        self.a, self.r, self.lines = a, r, None

    def start(self):
        words = [self.a.sanbox, "serve", "--listen", "127.0.0.1", "--nfs-port", str(self.a.port), "--no-portmap"]
        # "ready" is told on standard error.
        self.lines = Lines(["sh", "-c", 'exec "$@" 2>&1', "sh", *words], self.a.dir + "/server.log")

    def kill(self):
        self.lines.process.kill()
        self.lines.process.wait()


class GuestServer:
    """A guest that serves, on disks that may forget what was not flushed."""

    def __init__(self, a, r):
        self.a, self.r, self.lines, self.disks = a, r, None, []
        self.pidfile = a.dir + "/qemu.pid"

    def start(self):
        a = self.a
        words = [a.realvm, "run", a.dir + "/server.sh", "--no-zfs", "--no-udev", "--mem", "1536", "--timeout", "3600"]
        words += ["--share", a.dir + "/share", "--fwd", f"{a.port}:2049", "--pidfile", self.pidfile, "--console", a.dir + "/console"]
        if os.path.exists(self.pidfile):
            os.unlink(self.pidfile)
        for name in ("d0", "d1", "log"):
            socket = f"{a.dir}/{name}.sock"
            if os.path.exists(socket):
                os.unlink(socket)
            forgets = self.r.random() < 0.6
            nbdkit = ["nbdkit", "-f", "-U", socket] + (["--filter=cache"] if forgets else []) + ["file", f"{a.dir}/disks/{name}.img"]
            nbdkit += ["cache=writeback"] if forgets else []
            self.disks.append(subprocess.Popen(nbdkit, start_new_session=True))
            words += ["--disk", "nbd:unix:" + socket]
            wait(lambda: os.path.exists(socket), "nbdkit")
        self.lines = Lines(words, a.dir + "/server.log", start_new_session=True)

    def kill(self):
        wait(lambda: os.path.exists(self.pidfile) and open(self.pidfile).read().strip(), "the guest's start")
        os.kill(int(open(self.pidfile).read()), signal.SIGKILL)
        for disk in self.disks:
            disk.kill()
        for disk in self.disks:
            disk.wait()
        self.disks = []
        self.lines.process.wait()


def wait(until, what, limit=LIMIT):
    began = time.monotonic()
    while not until():
        if time.monotonic() - began > limit:
            raise Failed(f"{what}: not after {limit} s")
        time.sleep(0.01)
    return time.monotonic() - began


def rounds(a, r, server, client):
    """Returns how often the server was killed while it came up, and how long clients and server took to come back."""
    early, back, ready = 0, [], []
    for number in range(1, a.rounds + 1):
        server.start()
        began = time.monotonic()
        if number > 1 and r.random() < 0.15:
            # In the middle of the import and the replay.
            time.sleep(r.random() * (0.6 if a.mode == "server" else 20))
            early += 1
        else:
            lines = server.lines
            ready.append(wait(lambda: lines.ready or lines.process.poll() is not None, "the server is ready"))
            if not lines.ready:
                raise Failed(f"round {number}: the server ended; see {a.dir}/server.log")
            before = client.acked

            def moved():
                if client.wrong or client.process.poll() is not None:
                    raise Failed(f"round {number}: " + ("; ".join(client.wrong) or "the client's guest ended"))
                return client.acked > before

            wait(moved, f"round {number}: an operation after the start")
            back.append(time.monotonic() - began)
            time.sleep(r.choice([0.05, 0.5, 2.0, 4.0]) * r.random() * (1 if a.mode == "server" else 3))
        server.kill()
        if number % 20 == 0 or a.mode == "guest":
            print(f"{number} kills, {client.acked} operations acknowledged, {time.monotonic() - a.began:.0f} s", flush=True)
    return early, back, ready


def middle(values):
    return sorted(values)[len(values) // 2] if values else 0.0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["server", "guest"])
    for name in ("--sanbox", "--realvm", "--dir"):
        parser.add_argument(name, required=True)
    for name, value in (("--rounds", 100), ("--seed", 0), ("--workers", 4), ("--port", 0)):
        parser.add_argument(name, type=int, default=value)
    a = parser.parse_args()
    a.began = time.monotonic()
    seed = a.seed or random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}", flush=True)
    r = random.Random(seed)
    share = a.dir + "/share"
    os.makedirs(share, exist_ok=True)
    for name in ("kill.py", "kill-client.py"):
        shutil.copy(f"{HERE}/{name}", share)
    for name, text in (("client.sh", CLIENT), ("server.sh", SERVER)):
        with open(f"{a.dir}/{name}", "w", encoding="ascii") as file:
            file.write(text)
    server = (HostServer if a.mode == "server" else GuestServer)(a, r)
    client = None
    try:
        words = [a.realvm, "run", a.dir + "/client.sh", "--no-zfs", "--mem", "1024", "--share", share, "--timeout", "14400"]
        client = Lines([*words, "--", str(a.port), str(a.workers), str(seed)], a.dir + "/acked", start_new_session=True)
        early, back, ready = rounds(a, r, server, client)
        server.start()
        open(share + "/stop", "w", encoding="ascii").close()
        wait(lambda: client.process.poll() is not None, "the client's end")
        if client.wrong or not client.ended:
            raise Failed("; ".join(client.wrong) or f"the client's guest ended; see {a.dir}/acked")
        server.kill()
    except Failed as failed:
        print(f"seed {seed}: {failed}", flush=True)
        return 1
    finally:
        if client and client.process.poll() is None:
            # The wrapper, and the machine that it started.
            os.killpg(client.process.pid, signal.SIGTERM)
            client.process.wait()
        if server.lines and server.lines.process.poll() is None:
            server.kill()
    with open(a.dir + "/manifest", "w", encoding="ascii") as manifest:
        manifest.writelines(line + "\n" for line in sorted(client.manifest))
    operations, looks, repeated = (sum(column) for column in list(zip(*client.totals))[1:])
    print(f"{a.rounds + 1} kills ({early} before the server was ready), {time.monotonic() - a.began:.0f} s; {operations} operations "
          f"acknowledged, {client.slow} of them had waited for a server, {repeated} said to be done already, {looks} looks at everything: nothing lost")
    print(f"ready after {middle(ready):.2f} s (at most {max(ready):.2f}), an operation acknowledged after {middle(back):.2f} s (at most {max(back):.2f})")
    return 0


sys.exit(main())
