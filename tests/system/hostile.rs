//! Bad input over the network, against a real daemon: damaged calls of every procedure on a live share, sizes nobody
//! should ask for, thousands of connections that do nothing, and clients that ask and never listen. Each time the daemon
//! goes on serving others, within bounds of time and memory, and the pool stays whole.

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tests::free_port;

use crate::cli::Place;
use crate::rpc::{
    Client, GETATTR, LOOKUP, MKDIR, NFS, READ, READDIRPLUS, WRITE, Xdr, marked, message,
};

/// What a daemon with a small cache may take in all, in MiB, whatever its clients do: the cache (64), requests (256),
/// answers (256), and what the program itself needs.
const MEMORY_MIB_MAX: u64 = 900;

struct Served {
    place: Place,
    address: SocketAddr,
}

impl Served {
    fn new() -> Self {
        let mut place = Place::new();
        let made = place.run(
            "truncate -s 512M a && zpool create tank $PWD/a && \
             zfs create -o mountpoint=/tank/fs -o sharenfs=rw,no_root_squash tank/fs",
        );
        assert_eq!(made, "");
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let port = address.port().to_string();
        place.serve(&[
            "--nfs-port",
            &port,
            "--listen",
            "127.0.0.1",
            "--no-portmap",
            "--memory",
            "64M",
        ]);
        Self { place, address }
    }

    fn client(&self) -> Client {
        Client::new(self.address)
    }

    fn memory_mib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.place.pid()));
        let status = status.expect("the daemon runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1));
        kib.and_then(|kib| kib.parse::<u64>().ok())
            .expect("a resident size")
            / 1024
    }

    /// An honest client gets its work done.
    fn works(&self, name: &str) {
        let began = Instant::now();
        let mut client = self.client();
        let root = client.mount("/tank/fs");
        let file = client.create(&root, name);
        let data: Vec<u8> = (0..=u8::MAX).cycle().take(1 << 20).collect();
        assert_eq!(client.write(&file, 0, &data, 2), 0, "writing {name}");
        assert!(client.read(&file, 0, 1 << 20) == Ok(data), "reading {name}");
        let took = began.elapsed();
        assert!(took < Duration::from_secs(60), "{name} took {took:?}");
        let memory = self.memory_mib();
        assert!(memory < MEMORY_MIB_MAX, "{name}: {memory} MiB");
    }

    /// Ends the daemon, which must end well, and has the pool judged.
    fn end(mut self) {
        let health = self.place.run("zpool status -x");
        assert_eq!(health, "all pools are healthy\n");
        let log = self.place.log();
        assert!(!log.contains("panic"), "{log}");
        self.place.stop();
        assert_eq!(self.place.run("zpool export tank"), "");
        if tests::oracle::has_zdb() {
            tests::oracle::zdb_clean(&self.place.path("work"), "tank").expect("zdb finds nothing");
        }
    }
}

/// A small generator (xorshift64*), so that a failure repeats.
struct Noise(u64);

impl Noise {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let value = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(value).expect("31 bits") % bound
    }
}

/// Arguments of every procedure of NFS, with handles that mean something here.
fn arguments(procedure: u32, dir: &[u8], file: &[u8]) -> Xdr {
    let x = Xdr::default();
    let sattr: &[u32] = &[1, 0o644, 0, 0, 0, 0, 0];
    match procedure {
        2 => x.opaque(file).words(sattr).words(&[0]),
        4 => x.opaque(dir).words(&[0x3f]),
        6 => x.opaque(file).hyper(0).words(&[4096]),
        7 => x.opaque(file).hyper(0).words(&[5, 0]).opaque(b"hello"),
        8 => x.opaque(dir).opaque(b"new").words(&[0]).words(sattr),
        3 | 12 | 13 => x.opaque(dir).opaque(b"name"),
        9 => x.opaque(dir).opaque(b"sub").words(sattr),
        10 => x.opaque(dir).opaque(b"link").words(sattr).opaque(b"to"),
        11 => x
            .opaque(dir)
            .opaque(b"node")
            .words(&[3])
            .words(sattr)
            .words(&[8, 1]),
        14 => x.opaque(dir).opaque(b"name").opaque(dir).opaque(b"other"),
        15 => x.opaque(file).opaque(dir).opaque(b"hard"),
        16 => x.opaque(dir).hyper(0).hyper(0).words(&[4096]),
        17 => x.opaque(dir).hyper(0).hyper(0).words(&[1024, 32768]),
        21 => x.opaque(file).hyper(0).words(&[0]),
        _ => x.opaque(dir),
    }
}

/// Goal: no damaged call of any procedure stops the daemon or hurts the pool. Method: calls with real handles, a few
/// bytes changed or the end cut off; some stay valid and do what they say.
#[test]
fn damaged_calls_on_a_live_share() {
    let served = Served::new();
    let mut client = served.client();
    let root = client.mount("/tank/fs");
    let file = client.create(&root, "file");
    let mut noise = Noise(0x5eed);
    let (mut answered, mut sent_in_all) = (0, 0);
    for round in 0..60 {
        let mut client = served.client();
        client
            .stream
            .set_read_timeout(Some(Duration::from_secs(120)))
            .expect("a time limit");
        let mut sent = 0;
        for _ in 0..22 {
            let procedure = u32::try_from(noise.below(22)).expect("small");
            let arguments = arguments(procedure, &root, &file);
            let mut call = message(1000 + sent, NFS, procedure, &arguments);
            for _ in 0..noise.below(3) {
                // The transaction id and the word after it stay, so that there is an answer to wait for.
                let at = 8 + noise.below(call.len() - 8);
                call[at] = [0, 1, 0x7f, 0x80, 0xff][noise.below(5)];
            }
            if noise.below(4) == 0 {
                call.truncate(64 + noise.below(call.len().saturating_sub(64).max(1)));
            }
            client.stream.write_all(&marked(&call)).expect("sent");
            sent += 1;
        }
        // What is no call at all is not answered; the connection ends when all others are.
        client
            .stream
            .shutdown(std::net::Shutdown::Write)
            .expect("a connection");
        let before = answered;
        while client.receive().is_ok() {
            answered += 1;
        }
        assert!(answered > before, "round {round}: nothing was answered");
        sent_in_all += sent;
    }
    assert!(
        answered * 2 > sent_in_all,
        "{answered} of {sent_in_all} answered"
    );
    served.works("after");
    served.end();
}

#[test]
fn sizes_nobody_should_ask_for() {
    let served = Served::new();
    let mut client = served.client();
    let root = client.mount("/tank/fs");
    let file = client.create(&root, "file");
    assert_eq!(client.write(&file, 0, &[7; 10_000], 2), 0);
    // Reads are cut to what is there and what a call may move.
    assert_eq!(client.read(&file, 0, u32::MAX).map(|d| d.len()), Ok(10_000));
    assert_eq!(client.read(&file, u64::MAX, u32::MAX), Ok(Vec::new()));
    assert_eq!(client.read(&file, 9_999, 0), Ok(Vec::new()));
    // Beyond the largest file: NFS3ERR_FBIG (27) or NFS3ERR_INVAL (22).
    for offset in [u64::MAX, u64::MAX - 2, 1 << 63, (1 << 63) - 1] {
        let status = client.write(&file, offset, b"tail", 2);
        assert!([22, 27].contains(&status), "write at {offset}: {status}");
    }
    // `count` and the data disagree: the smaller is meant.
    let arguments = Xdr::default().opaque(&file).hyper(0).words(&[u32::MAX, 2]);
    let answer = client.call(NFS, WRITE, &arguments.opaque(b"xyz"));
    assert_eq!(answer.word(0), 0);
    assert_eq!(client.read(&file, 0, 4), Ok(b"xyz\x07".to_vec()));
    // Names: too long (NFS3ERR_NAMETOOLONG), empty, with a slash or a zero in them.
    for (name, statuses) in [
        (vec![b'n'; 256], &[63][..]),
        (vec![b'n'; 4096], &[63]),
        (Vec::new(), &[22, 13, 2]),
        (b"a/b".to_vec(), &[22, 13]),
        (b"a\0b".to_vec(), &[22, 13]),
        (b".".to_vec(), &[17, 22]),
        (b"..".to_vec(), &[17, 22]),
    ] {
        let arguments = Xdr::default().opaque(&root).opaque(&name);
        let arguments = arguments.words(&[1, 0o755, 0, 0, 0, 0, 0]);
        let status = client.call(NFS, MKDIR, &arguments).word(0);
        assert!(statuses.contains(&status), "mkdir {name:?}: {status}");
    }
    // A listing of all there is, and one that has room for nothing (NFS3ERR_TOOSMALL).
    for (room, status) in [(u32::MAX, 0), (0, 10005)] {
        let arguments = Xdr::default().opaque(&root).hyper(0).hyper(0);
        let answer = client.call(NFS, READDIRPLUS, &arguments.words(&[room, room]));
        assert_eq!(answer.word(0), status, "a listing of {room} bytes");
    }
    // Handles: too short, too long, of a dataset that is not there (BADHANDLE, garbage, STALE).
    for handle in [&root[..20], &[0; 64], &[&root[..4], &[9; 24]].concat()] {
        let status = client
            .call(NFS, GETATTR, &Xdr::default().opaque(handle))
            .word(0);
        assert!(
            [10001, 70].contains(&status),
            "{} bytes: {status}",
            handle.len()
        );
    }
    // A record longer than any call ends the connection, and only this one.
    let mut greedy = served.client();
    let long = message(1, NFS, WRITE, &Xdr::default().opaque(&vec![0; 2 << 20]));
    let _ = greedy.stream.write_all(&marked(&long));
    assert!(greedy.receive().is_err());
    let found = client.call(NFS, LOOKUP, &Xdr::default().opaque(&root).opaque(b"file"));
    assert_eq!(found.word(0), 0);
    served.works("after");
    served.end();
}

/// More connections than the daemon keeps, idle; and more half-sent records than it has memory for.
#[test]
fn thousands_of_idle_and_half_open_connections() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let served = Served::new();
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("as many files as are allowed");
    let idle = 4_600;
    assert!(
        limit.maximum.is_none_or(|most| most > idle + 1_000),
        "the test needs more file descriptors than {:?}",
        limit.maximum
    );
    let mut early = served.client();
    let root = early.mount("/tank/fs");
    let mut connections = Vec::new();
    for number in 0..idle {
        connections.push(served.client());
        if number % 500 == 0 {
            // A client that is at work now and then is not the one that has to go.
            let answer = early.call(NFS, GETATTR, &Xdr::default().opaque(&root));
            assert_eq!(answer.word(0), 0);
        }
    }
    served.works("among_idle");
    for half in 0..600_usize {
        let mut client = served.client();
        // A record of 1 MiB, of which nothing comes, or a little, or half.
        let mut begin = vec![0x80, 0x10, 0, 0];
        begin.resize(4 + [0, 3, 40_000, 524_288][half % 4], 0);
        let _ = client.stream.set_nonblocking(true);
        let _ = client.stream.write(&begin);
        connections.push(client);
    }
    served.works("among_half_open");
    let answer = early.call(NFS, GETATTR, &Xdr::default().opaque(&root));
    assert_eq!(answer.word(0), 0);
    drop(connections);
    served.works("after");
    served.end();
}

/// Clients that ask for far more than the daemon may hold, and take none of it.
#[test]
fn clients_that_never_listen() {
    let served = Served::new();
    let mut client = served.client();
    let root = client.mount("/tank/fs");
    let file = client.create(&root, "big");
    let mut noise = Noise(3);
    for mib in 0..64 {
        let data: Vec<u8> = (0..1 << 17)
            .flat_map(|_| noise.below(1 << 31).to_le_bytes())
            .collect();
        assert_eq!(client.write(&file, mib << 20, &data, 0), 0);
    }
    let deaf: Vec<Client> = (0..30_u64)
        .map(|number| {
            let mut client = served.client();
            for call in 0..100 {
                let offset = ((number + call) % 64) << 20;
                let arguments = Xdr::default().opaque(&file).hyper(offset).words(&[1 << 20]);
                let call = message(u32::try_from(call).expect("small"), NFS, READ, &arguments);
                let _ = client.stream.write_all(&marked(&call));
            }
            client
        })
        .collect();
    served.works("among_the_deaf");
    drop(deaf);
    served.works("after");
    served.end();
}
