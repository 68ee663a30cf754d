"""What nfs3-locks.sh runs in its machine: agents on four mounts of one share lock the same file by fcntl as they are told.

`locks.py agent DIRECTORY` is an agent: it reads commands and answers each with a line.
"""

import errno, fcntl, os, signal, struct, subprocess, sys, threading, time

LAYOUT = "hhqqi4x"


def lock(fd, kind, first, length, wait=False):
    flock = struct.pack(LAYOUT, kind, os.SEEK_SET, first, length, 0)
    fcntl.fcntl(fd, fcntl.F_SETLKW if wait else fcntl.F_SETLK, flock)


def agent(directory):
    fd = os.open(directory + "/locked", os.O_RDWR | os.O_CREAT, 0o666)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.siginterrupt(signal.SIGALRM, True)
    print("ready", flush=True)
    for line in sys.stdin:
        what, *words = line.split()
        try:
            if what in ("try", "wait"):
                kind = {"r": fcntl.F_RDLCK, "w": fcntl.F_WRLCK}[words[0]]
                # Not through Python's fcntl alone: it begins again after a signal.
                alarm = int(words[3]) if len(words) > 3 else 0
                if alarm:
                    print("ok" if interrupted(fd, kind, int(words[1]), int(words[2]), alarm) else "locked", flush=True)
                    continue
                lock(fd, kind, int(words[1]), int(words[2]), what == "wait")
                print("ok", flush=True)
            elif what == "unlock":
                lock(fd, fcntl.F_UNLCK, int(words[0]), int(words[1]))
                print("ok", flush=True)
            elif what == "test":
                flock = struct.pack(LAYOUT, fcntl.F_WRLCK, os.SEEK_SET, int(words[0]), int(words[1]), 0)
                kind, _, first, length, _ = struct.unpack(LAYOUT, fcntl.fcntl(fd, fcntl.F_GETLK, flock))
                print("free" if kind == fcntl.F_UNLCK else f"{'r' if kind == fcntl.F_RDLCK else 'w'} {first} {length}", flush=True)
            elif what == "add":
                # Adds one to a number under an exclusive lock, so often.
                number = os.open(directory + "/number", os.O_RDWR | os.O_CREAT, 0o666)
                for _ in range(int(words[0])):
                    lock(number, fcntl.F_WRLCK, 0, 0, True)
                    value = int(os.pread(number, 32, 0) or b"0")
                    os.pwrite(number, b"%d" % (value + 1), 0)
                    lock(number, fcntl.F_UNLCK, 0, 0)
                os.close(number)
                print("ok", flush=True)
        except OSError as error:
            busy = error.errno in (errno.EAGAIN, errno.EACCES)
            print("busy" if busy else errno.errorcode.get(error.errno, str(error.errno)), flush=True)


def interrupted(fd, kind, first, length, seconds):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    flock = ctypes.create_string_buffer(struct.pack(LAYOUT, kind, os.SEEK_SET, first, length, 0))
    libc.siginterrupt(signal.SIGALRM, 1)
    signal.alarm(seconds)
    result = libc.fcntl(fd, fcntl.F_SETLKW, flock)
    signal.alarm(0)
    return result == -1 and ctypes.get_errno() == errno.EINTR


class Agent:
    def __init__(self, name, command):
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.lines, self.more = [], threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()
        assert self.answer(120) == "ready", name

    def read(self):
        for line in self.process.stdout:
            with self.more:
                self.lines.append(line.strip())
                self.more.notify()

    def tell(self, command):
        self.process.stdin.write(command + "\n")

    def answer(self, seconds):
        with self.more:
            if not self.more.wait_for(lambda: self.lines, seconds):
                return None
            return self.lines.pop(0)

    def ask(self, command, expect=None, seconds=100):
        self.tell(command)
        got = self.answer(seconds)
        if expect is not None and got != expect:
            raise SystemExit(f"{self.name}: {command}: {got}, not {expect}")
        return got

    def kill(self):
        self.process.kill()
        self.process.wait()


def run(*command, **options):
    return subprocess.run(command, check=True, **options)


def serve():
    log = open("/tmp/sanbox.log", "a")
    begin = log.tell()
    server = subprocess.Popen(["/tmp/sanbox", "serve", "--mount", "--nfs-port", "2049"], stdout=log, stderr=log)
    for _ in range(600):
        if "sanbox: ready" in open("/tmp/sanbox.log").read()[begin:]:
            return server
        time.sleep(0.1)
    print(open("/tmp/sanbox.log").read())
    raise SystemExit("the server did not start")


CLIENT = r"""
set -eu
n=$1; here=10.9.0.$n
mount -t tmpfs none /run; mkdir -p /run/rpcbind /run/sendsigs.omit.d
cp -r /var/lib/nfs /tmp/nfs-$n; mount --bind /tmp/nfs-$n /var/lib/nfs; chown -R 106 /var/lib/nfs/sm /var/lib/nfs/sm.bak
rpcbind -f & sleep 1
rpc.statd -F --no-notify & sleep 1
mkdir -p /mnt/v3 /mnt/v4
mount -t nfs -o vers=3,proto=tcp,hard,timeo=50 10.9.0.1:/tank/share /mnt/v3
# One of NFSv4 only: both would have the machine's name, and each take the other's state.
[ $n = 2 ] || mount -t nfs -o vers=4.2,proto=tcp,hard,timeo=50 10.9.0.1:/tank/share /mnt/v4
touch /tmp/client-$n
exec sleep infinity
"""


def client(number):
    process = subprocess.Popen(["ip", "netns", "exec", f"c{number}", "unshare", "-m", "bash", "-c", CLIENT, "client", str(number)])
    for _ in range(1200):
        if os.path.exists(f"/tmp/client-{number}"):
            return process
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise SystemExit(f"client {number} did not mount")


def main():
    # sm-notify sends from addresses with names only.
    open("/etc/hosts", "a").write("10.9.0.1 server\n10.9.0.2 one\n10.9.0.3 two\n")
    os.environ["SANBOX_STATE"] = "/tmp/state"
    os.makedirs("/tmp/state"); os.makedirs("/tmp/disks")
    open("/tmp/state/sanbox.toml", "w").write("[nfs]\nlease_seconds = 30\n")
    run("cp", "/share/sanbox", "/tmp/sanbox")
    for tool in ("zpool", "zfs"):
        os.symlink("/tmp/sanbox", f"/tmp/{tool}")
    run("truncate", "-s", "512M", "/tmp/disks/d0")
    server = serve()
    run("/tmp/zpool", "create", "tank", "/tmp/disks/d0")
    run("/tmp/zfs", "create", "-o", "sharenfs=rw,no_root_squash", "tank/share")
    print(run("rpcinfo", "-p", "10.9.0.1", capture_output=True, text=True).stdout)
    inside = {n: client(n).pid for n in (2, 3)}
    me = ["python3", "-u", "/share/locks.py", "agent"]

    def enter(n):
        return ["nsenter", "-t", str(inside[n]), "-m", "-n"]

    def start(name):
        return Agent(name, {
            "one": enter(2) + me + ["/mnt/v3"], "two": enter(3) + me + ["/mnt/v3"],
            "four": enter(3) + me + ["/mnt/v4"], "local": me + ["/tank/share"]}[name])

    agents = {name: start(name) for name in ("one", "two", "four", "local")}
    names = list(agents)
    for holder in names:
        for other in names:
            if other == holder:
                continue
            agents[holder].ask("try w 10 10", "ok")
            agents[other].ask("try w 15 1", "busy")
            agents[other].ask("try r 0 0", "busy")
            assert agents[other].ask("test 0 100") == "w 10 10", (holder, other)
            agents[other].ask("try w 20 10", "ok")
            agents[holder].ask("unlock 0 0", "ok")
            agents[other].ask("try r 15 1", "ok")
            agents[holder].ask("try r 15 1", "ok")
            agents[holder].ask("try w 15 1", "busy")
            for name in (holder, other):
                agents[name].ask("unlock 0 0", "ok")
    print("ok: locks of each are in the way of all others")

    slowest = 0
    for holder in names:
        for waiter in ("one", "two", "local"):
            if waiter == holder:
                continue
            agents[holder].ask("try w 0 0", "ok")
            agents[waiter].tell("wait w 5 5")
            early = agents[waiter].answer(3)
            assert early is None, f"{waiter} did not wait for {holder}: {early}"
            agents[holder].ask("unlock 0 0", "ok")
            began = time.monotonic()
            # The Linux client asks again by itself after 30 s.
            assert agents[waiter].answer(20) == "ok", f"{waiter} was not granted what {holder} had"
            slowest = max(slowest, time.monotonic() - began)
            agents[holder].ask("try r 5 1", "busy")
            agents[waiter].ask("unlock 0 0", "ok")
    print(f"ok: waits are granted by call-back, the slowest after {slowest:.2f} s")

    for waiter in ("one", "local"):
        agents["two"].ask("try w 0 0", "ok")
        agents[waiter].ask("wait w 5 5 2", "ok", 20)
        agents["two"].ask("unlock 0 0", "ok")
        agents["four"].ask("try w 0 0", "ok")
        agents["four"].ask("unlock 0 0", "ok")
        agents["two"].ask("try w 0 0", "ok")
        agents[waiter].tell("wait w 5 5")
        assert agents[waiter].answer(2) is None
        began = time.monotonic()
        agents[waiter].kill()
        assert time.monotonic() - began < 10, f"{waiter} could not be killed while it waited"
        agents["two"].ask("unlock 0 0", "ok")
        agents["four"].ask("try w 0 0", "ok")
        agents["four"].ask("unlock 0 0", "ok")
        agents[waiter] = start(waiter)
    for name in names:
        agents[name].ask("try w 0 0", "ok")
        agents[name].kill()
        other = "two" if name != "two" else "one"
        for _ in range(50):
            if agents[other].ask("try w 0 0") == "ok":
                break
            time.sleep(0.2)
        else:
            raise SystemExit(f"what {name} had was kept when it was killed")
        agents[other].ask("unlock 0 0", "ok")
        agents[name] = start(name)
    print("ok: waits end by signals, and locks with their process")

    agents["one"].ask("try w 0 10", "ok")
    agents["two"].ask("try r 20 10", "ok")
    agents["four"].ask("try w 40 10", "ok")
    for name in ("one", "two", "four"):
        agents[name].tell("add 150")
    time.sleep(2)
    server.kill(); server.wait()
    agents["local"].kill()
    server = serve()
    for name in ("one", "two", "four"):
        assert agents[name].answer(300) == "ok", f"{name} could not go on adding"
    agents["local"] = start("local")
    agents["local"].ask("try w 0 10", "busy")
    agents["two"].ask("try w 5 1", "busy")
    agents["one"].ask("try w 25 1", "busy")
    agents["one"].ask("try r 25 1", "ok")
    agents["local"].ask("try w 45 1", "busy")
    for name in names:
        agents[name].tell("add 100")
    for name in names:
        assert agents[name].answer(300) == "ok", f"{name} could not add"
    number = int(open("/tank/share/number").read())
    assert number == 3 * 150 + 4 * 100, number
    print(f"ok: after SIGKILL locks are reclaimed, and none of {number} additions is lost")

    run(*enter(3), "sm-notify", "-f", "-v", "10.9.0.3")
    for _ in range(100):
        if agents["one"].ask("try w 20 10") == "ok":
            break
        time.sleep(0.2)
    else:
        raise SystemExit("what a client had that restarted was kept")
    print("ok: a client that restarted has no locks")
    for name in names:
        agents[name].kill()
    server.terminate()
    print(subprocess.run(["bash", "-c", "dmesg | grep -iE 'lockd|nfs|statd' | tail -5"], capture_output=True, text=True).stdout)
    print("LOCKS-OK")


if __name__ == "__main__":
    if sys.argv[1:2] == ["agent"]:
        agent(sys.argv[2])
    else:
        try:
            main()
        except BaseException:
            print(subprocess.run(["bash", "-c", "tail -40 /tmp/sanbox.log; dmesg | tail -5; cat /proc/mounts"], capture_output=True, text=True).stdout)
            raise
