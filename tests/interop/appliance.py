"""Appliances of which a script needs more than one: each a daemon with a state directory and a disk of its own, at loopback. Not for running by
itself."""
import os
import signal
import socket
import subprocess
import time

# Seconds that a start, an end or a command may take.
LIMIT = 300


class Wrong(Exception):
    """Something is not what it has to be."""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Appliance:
    """In the directory `name` of `work`; peers are answered at `port`, which is 0 for none. `options` are further ones of the daemon."""

    # Of the clients of NFS; 0 for none.
    nfs_port = 0

    def __init__(self, work, sanbox, name, hostid, port=0, options=()):
        self.dir, self.sanbox, self.port, self.options = os.path.join(work, name), sanbox, port, options
        os.makedirs(os.path.join(self.dir, "disks"))
        self.daemon, self.starts = None, 0
        self.env = dict(os.environ, SANBOX_STATE=os.path.join(self.dir, "state"), ZFS_HOSTID=hostid)

    def begin(self, *words):
        return subprocess.Popen([self.sanbox, *words], env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def give(self, *words, code=0):
        """Gives a command and returns what it says; it has to end with `code`, unless that is None."""
        process = self.begin(*words)
        output, _ = process.communicate(timeout=LIMIT)
        if code is not None and process.returncode != code:
            raise Wrong(f"sanbox {' '.join(words)}: exit {process.returncode}: {output[-2000:]}")
        return output

    def pool(self, name, size):
        disk = os.path.join(self.dir, "disks", "d0.img")
        with open(disk, "w") as f:
            f.truncate(size)
        self.give("zpool", "create", "-O", "mountpoint=none", name, disk)

    def invited(self, *grant):
        """Invites another appliance; returns the code."""
        told = self.give("peer", "invite", "box", *grant)
        return next(line.split()[-1] for line in told.splitlines() if "sanbox peer add" in line)

    def serve(self):
        self.starts += 1
        log = os.path.join(self.dir, f"log-{self.starts}")
        with open(log, "w") as out:
            self.daemon = subprocess.Popen(
                [self.sanbox, "serve", "--listen", "127.0.0.1", "--nfs-port", str(self.nfs_port), "--iscsi-port", "0", "--https-port", "0", "--no-portmap",
                 "--replication-port", str(self.port), *self.options], env=self.env, stdout=out, stderr=out)
        began = time.monotonic()
        while "sanbox: ready" not in open(log).read():
            if self.daemon.poll() is not None or time.monotonic() - began > LIMIT:
                raise Wrong(f"{self.dir} does not start: {open(log).read()[-2000:]}")
            time.sleep(0.02)
        if self.starts > 1:
            os.unlink(os.path.join(self.dir, f"log-{self.starts - 1}"))

    def end(self, how=signal.SIGTERM):
        self.daemon.send_signal(how)
        code = self.daemon.wait(timeout=LIMIT)
        if how == signal.SIGTERM and code != 0:
            raise Wrong(f"{self.dir} ended with {code}")

    def cleared(self):
        """Ends the daemon whatever it does, where it runs still."""
        if self.daemon and self.daemon.poll() is None:
            self.daemon.kill()
            self.daemon.wait()

    def cpu(self):
        """CPU seconds of the daemon."""
        fields = open(f"/proc/{self.daemon.pid}/stat").read().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
