//! Goal: no RPC message, however malformed, makes the service panic, hang, or answer at length. Method: valid calls of
//! every procedure, damaged by a seeded generator, against a server without exports, which answers at once.

use nfs::{RECORD_BYTES_MAX, Reply, Resolver, Server, ServerConfig};
use std::future::Future as _;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
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

fn server() -> Server {
    Server::new(ServerConfig {
        nfs_port: 2049,
        boot_verifier: 1,
        resolver: Box::new(NoNames),
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
        for _ in 0..random.next(4) {
            let at = random.next(record.len());
            record[at] = [0, 1, 0x7f, 0x80, 0xff][random.next(5)];
        }
        if random.next(3) == 0 {
            record.truncate(random.next(record.len()));
        }
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
