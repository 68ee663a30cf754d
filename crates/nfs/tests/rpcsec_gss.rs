//! Goal: the bytes of RPCSEC_GSS are those of RFC 2203, and no message makes the service panic, answer at length, or keep much. Method: whole
//! messages, written out by word, with a mechanism whose checksums can be seen; the real one is judged by `tests/system/nfs_kerberos.rs`.

use nfs::{
    AcceptedContext, AcceptedToken, ClientConnection, ClientRecord, KerberosAcceptor, KerberosUser,
    RefusedToken, Resolver, SecurityContext, Server, ServerConfig, TransportSecurity,
};
use std::future::{Future as _, ready};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

struct Nothing;

impl Resolver for Nothing {
    fn addresses(&self, _host: &str) -> Vec<IpAddr> {
        Vec::new()
    }

    fn names(&self, _address: IpAddr) -> Vec<String> {
        Vec::new()
    }
}

impl ClientRecord for Nothing {
    fn read(&self) -> Vec<u8> {
        Vec::new()
    }

    fn write(&self, _record: &[u8]) -> std::io::Result<()> {
        Ok(())
    }
}

impl nfs::ClientCalls for Nothing {
    fn send(&self, call: nfs::ClientCall) -> Result<(), Box<nfs::ClientCall>> {
        Err(Box::new(call))
    }
}

/// A checksum is the number of bytes and their sum; what is encrypted is turned round.
impl SecurityContext for Nothing {
    fn mic(&self, message: &[u8]) -> Option<Vec<u8>> {
        let sum = message.iter().map(|byte| u32::from(*byte)).sum();
        let length = u32::try_from(message.len()).ok()?;
        Some(words(&[length, sum]))
    }

    fn verify_mic(&self, message: &[u8], mic: &[u8]) -> bool {
        self.mic(message).as_deref() == Some(mic)
    }

    fn wrap(&self, message: &[u8]) -> Option<Vec<u8>> {
        Some(message.iter().rev().copied().collect())
    }

    fn unwrap(&self, wrapped: &[u8]) -> Option<Vec<u8>> {
        self.wrap(wrapped)
    }
}

/// Takes the token "good!" of any client.
impl KerberosAcceptor for Nothing {
    fn accept(&self, token: Vec<u8>) -> AcceptedToken {
        let refused = RefusedToken {
            major: 9 << 16,
            minor: 7,
            token: b"why".to_vec(),
        };
        let user = KerberosUser {
            principal: "user@REALM".to_owned(),
            ids: None,
        };
        let accepted = AcceptedContext {
            context: Box::new(Self),
            token: b"welcome".to_vec(),
            user,
            lifetime_seconds: Some(60),
        };
        let is_good = token == b"good!";
        Box::pin(ready(is_good.then_some(accepted).ok_or(refused)))
    }
}

struct Client {
    server: Server,
    connection: Arc<ClientConnection>,
}

const SECOND_NS: u64 = 1_000_000_000;

impl Client {
    fn new(kerberos: bool) -> Self {
        let server = Server::new(ServerConfig {
            nfs_port: 2049,
            boot_verifier: 0x1122_3344_5566_7788,
            secret: [2, 3],
            record: Box::new(Nothing),
            resolver: Box::new(Nothing),
            versions: nfs::Versions::default(),
            locks: Arc::default(),
            reclaims: Arc::default(),
            client_calls: Box::new(Nothing),
            host_name: "here".to_owned(),
            kerberos: kerberos.then(|| Arc::new(Nothing) as Arc<dyn KerberosAcceptor>),
        });
        Self {
            server,
            connection: ClientConnection::new(TransportSecurity::Plain, |_| true),
        }
    }

    /// With a context, whose handle is [`HANDLE`].
    fn established() -> Self {
        let client = Self::new(true);
        assert!(client.call(&begin(b"good!")).is_some());
        assert_eq!(client.server.kerberos_contexts(), 1);
        client
    }

    fn call_by(&self, connection: Option<&Arc<ClientConnection>>, call: &[u8]) -> Option<Vec<u8>> {
        let address: SocketAddr = "127.0.0.1:700".parse().expect("an address");
        let record = call.to_vec().into();
        let call = pin!(self.server.call_by(connection, address, address, record));
        match call.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(reply) => {
                let pieces = reply?.pieces;
                Some(pieces.iter().flat_map(AsRef::as_ref).copied().collect())
            }
            Poll::Pending => panic!("there is nothing to wait for"),
        }
    }

    fn call(&self, call: &[u8]) -> Option<Vec<u8>> {
        self.call_by(Some(&self.connection), call)
    }
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_be_bytes()).collect()
}

fn opaque(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("short");
    let mut whole = words(&[length]);
    whole.extend(bytes);
    whole.resize(whole.len().next_multiple_of(4), 0);
    whole
}

const HANDLE: [u32; 4] = [0x1122_3344, 0x5566_7788, 0, 1];
const XID: u32 = 77;
const DATA: u32 = 0;
const INIT: u32 = 1;
const DESTROY: u32 = 3;

/// INIT with a token: xid, CALL, RPC 2, NFS 3 NULL; flavour 6, 20 bytes of a credential; no verifier.
fn begin(token: &[u8]) -> Vec<u8> {
    let mut message = words(&[XID, 0, 2, 100_003, 3, 0, 6, 20, 1, INIT, 0, 1, 0, 0, 0]);
    message.extend(opaque(token));
    message
}

/// A call in the context, of a procedure of NFSv3, with a service.
fn within(control: u32, number: u32, service: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
    let mut message = words(&[XID, 0, 2, 100_003, 3, procedure, 6, 36]);
    message.extend(words(&[1, control, number, service, 16]));
    message.extend(words(&HANDLE));
    let mic = Nothing.mic(&message).expect("a checksum");
    message.extend(words(&[6]));
    message.extend(opaque(&mic));
    let mut body = words(&[number]);
    body.extend(arguments);
    match service {
        2 => {
            message.extend(opaque(&body));
            message.extend(opaque(&Nothing.mic(&body).expect("a checksum")));
        }
        3 => message.extend(opaque(&Nothing.wrap(&body).expect("encrypted"))),
        _ => message.extend(arguments),
    }
    message
}

/// GETATTR of a file that is not shared.
fn getattr() -> Vec<u8> {
    let mut handle = b"sbx1".to_vec();
    handle.extend([7; 24]);
    opaque(&handle)
}

#[test]
fn a_token_becomes_a_context() {
    let client = Client::new(true);
    // REPLY, accepted; the checksum of the window, 1024; success; a handle of 16 bytes, no error, the window, the token.
    let mut expect = words(&[XID, 1, 0, 6, 8, 4, 4, 0, 16]);
    expect.extend(words(&HANDLE));
    expect.extend(words(&[0, 0, 1024]));
    expect.extend(opaque(b"welcome"));
    assert_eq!(client.call(&begin(b"good!")), Some(expect));
    // No handle, what the mechanism said, no window, and its token; the verifier is empty.
    let mut refused = words(&[XID, 1, 0, 0, 0, 0, 0, 9 << 16, 7, 0]);
    refused.extend(opaque(b"why"));
    assert_eq!(client.call(&begin(b"bad")), Some(refused));
    assert_eq!(client.server.kerberos_contexts(), 1);
}

#[test]
fn calls_and_answers_are_protected_as_their_service_says() {
    let client = Client::established();
    // NULL: the checksum of the number, success, nothing.
    let null = |number, service| client.call(&within(DATA, number, service, 0, &[]));
    assert_eq!(null(1, 1), Some(words(&[XID, 1, 0, 6, 8, 4, 1, 0])));
    let signed = [XID, 1, 0, 6, 8, 4, 2, 0, 4, 2, 8, 4, 2];
    assert_eq!(null(2, 2), Some(words(&signed)));
    let encrypted = [XID, 1, 0, 6, 8, 4, 3, 0, 4, 0x0300_0000];
    assert_eq!(null(3, 3), Some(words(&encrypted)));
    // GETATTR: NFS3ERR_JUKEBOX, 10008, of a server that starts.
    let getattr = |number, service| client.call(&within(DATA, number, service, 1, &getattr()));
    assert_eq!(
        getattr(4, 1),
        Some(words(&[XID, 1, 0, 6, 8, 4, 4, 0, 10008]))
    );
    let sum = 5 + 0x27 + 0x18;
    let signed = [XID, 1, 0, 6, 8, 4, 5, 0, 8, 5, 10008, 8, 8, sum];
    assert_eq!(getattr(5, 2), Some(words(&signed)));
    let turned = [10008_u32.swap_bytes(), 6_u32.swap_bytes()];
    let mut encrypted = words(&[XID, 1, 0, 6, 8, 4, 6, 0, 8]);
    encrypted.extend(words(&turned));
    assert_eq!(getattr(6, 3), Some(encrypted));
    // A procedure that there is not: PROC_UNAVAIL, which has no result that could be protected.
    let unknown = client.call(&within(DATA, 7, 2, 99, &[]));
    assert_eq!(unknown, Some(words(&[XID, 1, 0, 6, 8, 4, 7, 3])));
}

#[test]
fn what_is_not_the_clients_is_refused_or_dropped() {
    let client = Client::established();
    let denied = |problem| Some(words(&[XID, 1, 1, 1, problem]));
    let null = |number| within(DATA, number, 2, 0, &[]);
    assert!(client.call(&null(10)).is_some());
    assert_eq!(client.call(&null(10)), None, "seen before");
    assert_eq!(client.call(&null(0x8000_0001)), denied(14));
    // A bit of the header, of the verifier's flavour, of the number within, of the checksum of the body.
    let damaged = |at: usize, number| {
        let mut message = null(number);
        let end = message.len();
        message[if at == 0 { end - 1 } else { at }] ^= 1;
        client.call(&message)
    };
    assert_eq!(damaged(23, 11), denied(13), "the procedure");
    assert_eq!(damaged(71, 12), denied(13), "the flavour of the verifier");
    let garbage = |number| Some(words(&[XID, 1, 0, 6, 8, 4, number, 4]));
    assert_eq!(damaged(91, 13), garbage(13), "the number within");
    assert_eq!(damaged(0, 14), garbage(14), "the checksum");
    // Handles of another start, and of no context.
    for at in [55, 67] {
        assert_eq!(damaged(at, 15), denied(13), "the handle");
    }
    // Version 2, procedure 4, and service 0 of RPCSEC_GSS.
    for (at, value) in [(35, 2), (39, 4), (47, 0)] {
        let mut message = null(16);
        message[at] = value;
        assert_eq!(client.call(&message), denied(1), "byte {at}");
    }
    // A context is made by a NULL.
    let mut message = begin(b"good!");
    message[23] = 1;
    assert_eq!(client.call(&message), denied(1));
    // None is made of a datagram, or without a keytab.
    assert_eq!(client.call_by(None, &begin(b"good!")), denied(5));
    assert_eq!(Client::new(false).call(&begin(b"good!")), denied(5));
}

#[test]
fn contexts_end_when_they_are_destroyed_and_with_their_tickets() {
    let denied = Some(words(&[XID, 1, 1, 1, 13]));
    let client = Client::established();
    let destroyed = client.call(&within(DESTROY, 1, 2, 0, &[]));
    assert_eq!(destroyed, Some(words(&[XID, 1, 0, 6, 8, 4, 1, 0])));
    assert_eq!(client.server.kerberos_contexts(), 0);
    assert_eq!(client.call(&within(DATA, 2, 2, 0, &[])), denied);

    let client = Client::established();
    client.server.tick(59 * SECOND_NS);
    assert_ne!(client.call(&within(DATA, 1, 1, 0, &[])), denied);
    client.server.tick(60 * SECOND_NS);
    assert_eq!(client.server.kerberos_contexts(), 0);
    assert_eq!(client.call(&within(DATA, 2, 1, 0, &[])), denied);
}

#[test]
fn memory_for_answers_is_set_aside_by_what_can_be_read_of_a_call() {
    // READ of 64 KiB at 0.
    let mut read = getattr();
    read.extend(words(&[0, 0, 65_536]));
    let reserved = |service, procedure, arguments: &[u8]| {
        let record = nfs::record::Record::from(within(DATA, 1, service, procedure, arguments));
        record.reply_bytes_max()
    };
    for service in [1, 2] {
        let bytes = reserved(service, 6, &read);
        assert!((65_536..80_000).contains(&bytes), "{service}: {bytes}");
    }
    assert!(reserved(3, 6, &read) > 1 << 20);
    assert!(reserved(3, 0, &[]) < 4096);
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
    let mut client = Client::established();
    let mut random = Random(0x5eed);
    let mut answered = 0;
    for round in 1..60_000_u32 {
        let service = u32::try_from(1 + random.next(3)).expect("small");
        let control = [DATA, DATA, DATA, INIT, 2, DESTROY][random.next(6)];
        let procedure = u32::try_from(random.next(24)).expect("small");
        let mut message = within(control, round, service, procedure, &getattr());
        for _ in 0..random.next(3) {
            let at = random.next(message.len());
            message[at] = [0, 1, 0x7f, 0x80, 0xff][random.next(5)];
        }
        if random.next(4) == 0 {
            message.truncate(random.next(message.len()));
        }
        let reply_bytes_max = nfs::record::Record::from(message.clone()).reply_bytes_max();
        if let Some(reply) = client.call(&message) {
            answered += 1;
            assert!(reply.len() <= reply_bytes_max.min(1024), "round {round}");
            assert_eq!(reply.len() % 4, 0, "round {round}");
        }
        if client.server.kerberos_contexts() == 0 {
            client = Client::established();
        }
    }
    assert!(
        answered > 30_000,
        "most calls are answered, {answered} were"
    );
}
