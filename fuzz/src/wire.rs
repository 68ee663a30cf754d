//! What clients send: RPC records in a stream of bytes, and single calls of NFS, MOUNT and the port mapper.
//!
//! The server has no exports, so that every call ends at once; arguments are decoded before a handle is looked up.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use engine::IoBuf;
use manage::control::Frame;
use manage::peer::frame::{FrameKind, FrameReader, FrameWriter, MessageParts, parse};
use manage::peer::message::Request;
use manage::peer::rights::{check, excluded};
use manage::peer::transfer::StreamDecoder;
use manage::peer::{Fingerprint, Peer};
use nfs::record::{Assembler, IncomingWrite, Next, Record, reply_header};
use nfs::{
    AcceptedContext, AcceptedToken, ClientConnection, ClientRecord, KerberosAcceptor, KerberosUser,
    RECORD_BYTES_MAX, Resolver, SecurityContext, Server, ServerConfig,
};

/// Longest answer of a server that has nothing to tell, in bytes; of each operation that a COMPOUND has.
const ANSWER_BYTES_MAX: usize = 1024;

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

/// Takes any token and any checksum, and encrypts nothing: what clients send is looked at as that of one who is known.
struct AnyProof;

impl KerberosAcceptor for AnyProof {
    fn accept(&self, token: Vec<u8>) -> AcceptedToken {
        let accepted = AcceptedContext {
            context: Box::new(Self),
            token,
            user: KerberosUser {
                principal: "user@REALM".to_owned(),
                ids: None,
            },
            lifetime_seconds: None,
        };
        Box::pin(std::future::ready(Ok(accepted)))
    }
}

impl SecurityContext for AnyProof {
    fn mic(&self, _message: &[u8]) -> Option<Vec<u8>> {
        Some(vec![7; 8])
    }

    fn verify_mic(&self, _message: &[u8], _mic: &[u8]) -> bool {
        true
    }

    fn wrap(&self, message: &[u8]) -> Option<Vec<u8>> {
        Some(message.to_vec())
    }

    fn unwrap(&self, wrapped: &[u8]) -> Option<Vec<u8>> {
        self.wrap(wrapped)
    }
}

/// A call of RPCSEC_GSS that makes a context, of the server's start and number 1, which calls name in 16 bytes.
const BEGIN_CONTEXT: [u32; 16] = [1, 0, 2, 100_003, 3, 0, 6, 20, 1, 1, 0, 1, 0, 0, 0, 0];

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
        kerberos: Some(Arc::new(AnyProof)),
    })
}

fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("there is nothing to wait for"),
    }
}

/// The record as the server's sockets read it: the data of a WRITE apart.
fn apart(record: &[u8]) -> Record {
    match IncomingWrite::decode(record, record.len()) {
        Some(write) => {
            let data = write.data();
            write.complete(
                record[..data.start].to_vec(),
                IoBuf::copy_from(&record[data]),
            )
        }
        None => record.to_vec().into(),
    }
}

fn answer(server: &Server, record: &[u8]) {
    let address = SocketAddr::from(([127, 0, 0, 1], 700));
    let call = apart(record);
    let reply_bytes_max = call.reply_bytes_max();
    let by = ClientConnection::new(nfs::TransportSecurity::Plain, |_| true);
    let Some(reply) = now(server.call_by(Some(&by), address, address, call)) else {
        return;
    };
    // An operation has four bytes at least.
    let operations = 1 + record.len() / 4;
    assert!(reply.len() <= ANSWER_BYTES_MAX * operations.min(128) && reply.len() % 4 == 0);
    assert!(reply.len() <= reply_bytes_max);
    assert_eq!(reply_header(reply.len())[0] & 0x80, 0x80);
    let bytes: Vec<u8> = reply
        .pieces
        .iter()
        .flat_map(AsRef::as_ref)
        .copied()
        .collect();
    // RFC 5531, section 9: the call's transaction id, then REPLY.
    assert_eq!(bytes.get(..4), record.get(..4));
    assert_eq!(bytes.get(4..8), Some(&[0, 0, 0, 1][..]));
}

/// One RPC message without its record mark.
pub(crate) fn call(data: &[u8]) {
    let server = server();
    let begin = BEGIN_CONTEXT.map(u32::to_be_bytes);
    answer(&server, begin.as_flattened());
    answer(&server, data);
    std::hint::black_box(nfs::rpcbind::registered(data));
}

/// A connection: records of one or more fragments, until the bytes end or make no sense.
pub(crate) fn stream(data: &[u8]) {
    let server = server();
    let mut assembler = Assembler::new(RECORD_BYTES_MAX);
    let mut rest = data;
    let mut record: Vec<u8> = Vec::new();
    let mut next = assembler.begin();
    loop {
        next = match next {
            Next::Header => {
                let Some((header, after)) = rest.split_first_chunk() else {
                    return;
                };
                rest = after;
                match assembler.header(*header) {
                    Ok(next) => next,
                    Err(_) => return,
                }
            }
            Next::Body(length) => {
                assert!(length > 0 && record.len() + length <= RECORD_BYTES_MAX);
                let Some((body, after)) = rest.split_at_checked(length) else {
                    return;
                };
                record.extend_from_slice(body);
                rest = after;
                assembler.body()
            }
            Next::Complete => {
                answer(&server, &record);
                record.clear();
                assembler.begin()
            }
        };
    }
}

/// The control socket's side of a connection.
pub(crate) fn control(data: &[u8]) {
    let mut rest = data;
    while let Ok(Some(frame)) = now(Frame::receive(&mut rest)) {
        let mut again = Vec::new();
        now(frame.send(&mut again)).expect("a vector takes everything");
        let read = now(Frame::receive(&mut again.as_slice()));
        assert_eq!(read.ok().flatten(), Some(frame));
    }
}

/// A connection of a peer: frames, whose messages are requests and whose chunks are of a stream.
pub(crate) fn peer(data: &[u8]) {
    let peer = Peer {
        name: "box".to_owned(),
        certificate: Fingerprint::of(b"box"),
        address: String::new(),
        datasets: vec!["tank/vm".to_owned()],
        push: true,
        pull: true,
        failover: true,
    };
    let mut frames = FrameReader::new(data);
    let mut message = MessageParts::new(1 << 20);
    let mut stream = StreamDecoder::default();
    while let Ok(Some(frame)) = now(frames.next()) {
        let mut again = Vec::new();
        now(FrameWriter::new(&mut again).send(frame.kind, &[&frame.payload])).expect("it fits");
        let read = now(FrameReader::new(again.as_slice()).next());
        assert_eq!(read.ok().flatten().as_ref(), Some(&frame));
        if !matches!(frame.kind, FrameKind::Part | FrameKind::Message) {
            let _ = stream.take(frame);
            continue;
        }
        let Ok(text) = message.add(frame) else {
            return;
        };
        let Some(Ok(request)) = text.map(|text| parse::<Request>(&text)) else {
            continue;
        };
        if let Ok(allowed) = check(&peer, &request) {
            assert_eq!(allowed.pool, "tank");
        }
        if let Request::Receive { into } = &request {
            let all = excluded(into);
            assert!(into.set.iter().all(|(name, _)| !all.contains(name)));
        }
    }
}
