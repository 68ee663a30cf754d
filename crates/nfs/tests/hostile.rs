//! Goal: no RPC message, however malformed, makes the service panic, hang, or answer at length. Method: valid calls of
//! every procedure, damaged by a seeded generator, against a server without exports, which answers at once.

use nfs::{ClientRecord, RECORD_BYTES_MAX, Reply, Resolver, Server, ServerConfig};
use std::future::Future as _;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

struct NoNames;

impl Resolver for NoNames {
    fn addresses(&self, _host: &str) -> Vec<IpAddr> {
        Vec::new()
    }

    fn names(&self, _address: IpAddr) -> Vec<String> {
        Vec::new()
    }
}

struct NoRecord;

impl ClientRecord for NoRecord {
    fn read(&self) -> Vec<u8> {
        Vec::new()
    }

    fn write(&self, _record: &[u8]) -> std::io::Result<()> {
        Ok(())
    }
}

struct NoCalls;

impl nfs::ClientCalls for NoCalls {
    fn send(&self, call: nfs::ClientCall) -> Result<(), Box<nfs::ClientCall>> {
        Err(Box::new(call))
    }
}

fn server() -> Server {
    Server::new(ServerConfig {
        nfs_port: 2049,
        boot_verifier: 1,
        secret: [2, 3],
        record: Box::new(NoRecord),
        resolver: Box::new(NoNames),
        versions: nfs::Versions::default(),
        locks: Arc::default(),
        reclaims: Arc::default(),
        client_calls: Box::new(NoCalls),
        host_name: "here".to_owned(),
        kerberos: None,
    })
}

fn call(server: &Server, record: Vec<u8>) -> Option<Reply> {
    let address: SocketAddr = "127.0.0.1:700".parse().expect("an address");
    let call = pin!(server.call(address, address, record.into()));
    match call.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => reply,
        Poll::Pending => panic!("a server without exports has nothing to wait for"),
    }
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_be_bytes()).collect()
}

/// A call with AUTH_SYS and arguments that begin with a well-formed handle.
fn message(xid: u32, program: u32, version: u32, procedure: u32) -> Vec<u8> {
    let mut m = words(&[xid, 0, 2, program, version, procedure]);
    m.extend(words(&[1, 24, 0, 0, 1000, 100, 1, 100, 0, 0]));
    m.extend(words(&[28]));
    m.extend(*b"sbx1");
    m.extend([7; 24]);
    m.extend(words(&[4, 0x6162_6364, 0, 9, 2, 8, 1, 2, 3, 4, 5, 6, 7, 8]));
    m
}

/// A small generator (xorshift64*), so that a failure repeats by its seed.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let value = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(value).expect("31 bits") % below
    }

    /// Changes up to three bytes of a record, and cuts one record in three.
    fn damage(&mut self, record: &mut Vec<u8>) {
        for _ in 0..self.next(4) {
            let at = self.next(record.len());
            record[at] = [0, 1, 0x7f, 0x80, 0xff][self.next(5)];
        }
        if self.next(3) == 0 {
            record.truncate(self.next(record.len()));
        }
    }
}

#[test]
fn damaged_calls_are_answered_briefly_or_not_at_all() {
    let server = server();
    let mut random = Random(0x5eed);
    let mut answered = 0;
    for round in 0..60_000_u32 {
        let (program, version) =
            [(100_003, 3), (100_005, 3), (100_000, 2), (100_000, 4)][random.next(4)];
        let procedure = u32::try_from(random.next(24)).expect("small");
        let mut record = message(round, program, version, procedure);
        random.damage(&mut record);
        if let Some(reply) = call(&server, record) {
            answered += 1;
            assert!(reply.len() < 1024, "round {round}: {} bytes", reply.len());
            assert_eq!(reply.len() % 4, 0, "round {round}");
        }
    }
    assert!(
        answered > 30_000,
        "most calls keep a readable envelope, {answered} did"
    );
}

/// A COMPOUND of a minor version, with operations as words.
fn compound(xid: u32, minor: u32, operations: &[&[u32]]) -> Vec<u8> {
    let mut m = words(&[xid, 0, 2, 100_003, 4, 1]);
    m.extend(words(&[1, 24, 0, 0, 1000, 100, 1, 100, 0, 0]));
    let count = u32::try_from(operations.len()).expect("few");
    m.extend(words(&[0, minor, count]));
    for operation in operations {
        m.extend(words(operation));
    }
    m
}

/// The numbers and states of the results of a COMPOUND whose results have no bodies, behind its own status.
fn statuses(reply: Option<Reply>) -> Vec<u32> {
    let reply = reply.expect("an answer");
    let bytes: Vec<u8> = reply
        .pieces
        .iter()
        .flat_map(AsRef::as_ref)
        .copied()
        .collect();
    let (words, _) = bytes.as_chunks::<4>();
    let words: Vec<u32> = words.iter().map(|word| u32::from_be_bytes(*word)).collect();
    words[6..].to_vec()
}

#[test]
fn damaged_compounds_are_answered_briefly_or_not_at_all() {
    let server = server();
    let mut random = Random(0x5eed4);
    let state: &[u32] = &[1, 0, 0, 0];
    let with = |number: u32, rest: &[u32]| [&[number], state, rest].concat();
    let valid: Vec<Vec<u32>> = vec![
        vec![24],
        vec![10],
        vec![9, 2, 0x0010_011a, 0x00b0_a23a],
        vec![15, 4, 0x7461_6e6b],
        vec![26, 0, 0, 0, 0, 4096, 4096, 1, 0x0018_0800],
        vec![
            35,
            1,
            2,
            2,
            0x6d65_0000,
            1,
            3,
            0x7463_7000,
            1,
            0x3100_0000,
            1,
        ],
        vec![36, 0, 1, 1, 2],
        vec![
            18,
            1,
            3,
            0,
            0,
            1,
            1,
            0x6f00_0000,
            1,
            0,
            0,
            0,
            0,
            1,
            0x6600_0000,
        ],
        vec![
            12,
            1,
            0,
            0,
            0,
            0,
            9,
            1,
            1,
            1,
            0,
            0,
            0,
            1,
            0,
            1,
            1,
            0x6c00_0000,
        ],
        with(25, &[0, 0, 4096]),
        with(38, &[0, 0, 2, 4, 0x6461_7461]),
        with(34, &[2, 0, 2, 4, 0o644]),
        vec![42, 1, 2, 2, 0x6d65_0000, 0, 0, 0],
        vec![53, 0, 0, 0, 0, 1, 0, 0, 1],
    ];
    let mut answered = 0;
    for round in 0..40_000_u32 {
        let count = 1 + random.next(6);
        let chosen: Vec<&[u32]> = (0..count)
            .map(|_| valid[random.next(valid.len())].as_slice())
            .collect();
        let minor = u32::try_from(random.next(4)).expect("small");
        let mut record = compound(round, minor, &chosen);
        random.damage(&mut record);
        if let Some(reply) = call(&server, record) {
            answered += 1;
            assert!(reply.len() < 8192, "round {round}: {} bytes", reply.len());
            assert_eq!(reply.len() % 4, 0, "round {round}");
        }
    }
    assert!(
        answered > 20_000,
        "most calls keep a readable envelope, {answered} did"
    );
}

/// A call of NLM version 4 with a lock of a file that is not there.
fn lock_call(xid: u32, procedure: u32) -> Vec<u8> {
    let mut m = words(&[xid, 0, 2, 100_021, 4, procedure]);
    m.extend(words(&[1, 24, 0, 0, 1000, 100, 1, 100, 0, 0]));
    m.extend(words(&[4, 0x636f_6f6b, 1, 1, 4, 0x686f_7374, 28]));
    m.extend(*b"sbx1");
    m.extend([7; 24]);
    m.extend(words(&[4, 0x6f77_6e65, 17, 0, 5, 0, 0, 0, 3]));
    m
}

#[test]
fn damaged_locks_are_answered_briefly_or_not_at_all() {
    let server = server();
    let mut random = Random(0x5eed5);
    let mut answered = 0;
    for round in 0..40_000_u32 {
        let procedure = u32::try_from(random.next(26)).expect("small");
        let mut record = lock_call(round, procedure);
        if random.next(8) == 0 {
            // NSM: its arguments are other ones.
            record[15] = 0xb8;
            record[19] = 1;
        }
        random.damage(&mut record);
        if let Some(reply) = call(&server, record) {
            answered += 1;
            assert!(reply.len() < 2048, "round {round}: {} bytes", reply.len());
            assert_eq!(reply.len() % 4, 0, "round {round}");
        }
    }
    assert!(
        answered > 20_000,
        "most calls keep a readable envelope, {answered} did"
    );
}

#[test]
fn locks_are_answered_by_what_the_server_knows_of_the_file() {
    let server = server();
    let status = |procedure| {
        let reply = call(&server, lock_call(1, procedure)).expect("an answer");
        let bytes: Vec<u8> = reply
            .pieces
            .iter()
            .flat_map(AsRef::as_ref)
            .copied()
            .collect();
        // Behind the envelope and the cookie.
        bytes.get(32..36).map(|status| status[3])
    };
    // Not shared yet: the client asks again (LCK_DENIED_GRACE_PERIOD). Afterwards the handle is stale.
    assert_eq!(status(2), Some(4));
    server.pools_are_open();
    server.tick(1);
    assert_eq!(status(22), Some(7));
    // What is not held is unlocked (LCK_GRANTED), and no wait is cancelled (LCK_DENIED).
    assert_eq!((status(4), status(3)), (Some(0), Some(1)));
    // Results of calls that this server never makes, and answers by call, say nothing.
    for silent in [10, 11, 15] {
        assert_eq!(status(silent), None);
    }
}

#[test]
fn operations_come_where_the_standard_has_them() {
    let check = |minor, operations: &[&[u32]], expect: &[u32]| {
        let found = statuses(call(&server(), compound(1, minor, operations)));
        assert_eq!(found, expect, "{minor}: {operations:?}");
    };
    let sequence: &[u32] = &[53, 0, 0, 0, 0, 1, 0, 0, 1];
    // The status of all, an empty tag, how many results; then each operation's number and status.
    check(0, &[], &[0, 0, 0]);
    check(3, &[&[24]], &[10021, 0, 0]);
    check(0, &[&[24], &[32], &[31]], &[0, 0, 3, 24, 0, 32, 0, 31, 0]);
    check(0, &[&[31]], &[10030, 0, 1, 31, 10030]);
    check(0, &[&[10]], &[10020, 0, 1, 10, 10020]);
    check(0, &[&[2]], &[10044, 0, 1, 10044, 10044]);
    check(0, &[&[53]], &[10044, 0, 1, 10044, 10044]);
    check(0, &[&[22, 4, 1]], &[10001, 0, 1, 22, 10001]);
    check(0, &[&[22, 400]], &[10036, 0, 1, 22, 10036]);
    check(1, &[&[24]], &[10071, 0, 1, 24, 10071]);
    check(1, &[sequence], &[10052, 0, 1, 53, 10052]);
    check(1, &[&[57, 0, 1], &[24]], &[10081, 0, 1, 57, 10081]);
    check(1, &[&[57, 0, 1]], &[10022, 0, 1, 57, 10022]);
    check(1, &[&[59]], &[10044, 0, 1, 10044, 10044]);
    let many = vec![[24].as_slice(); 129];
    check(0, &many, &[10018, 0, 0]);
}

#[test]
fn a_record_of_the_largest_size_is_taken() {
    let mut record = message(1, 100_003, 3, 7);
    record.resize(RECORD_BYTES_MAX, 0);
    assert!(call(&server(), record).is_some());
}

#[test]
fn a_repeated_call_gets_the_first_answer() {
    let server = server();
    let bytes = |reply: Option<Reply>| -> Vec<u8> {
        reply
            .expect("an answer")
            .pieces
            .iter()
            .flat_map(AsRef::as_ref)
            .copied()
            .collect()
    };
    let first = bytes(call(&server, message(5, 100_003, 3, 12)));
    assert_eq!(first, bytes(call(&server, message(5, 100_003, 3, 12))));
}
