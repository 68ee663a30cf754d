//! Calls of the server to its clients: a lock that was waited for is granted (NLM), a restart is told (NSM). Made here, carried elsewhere:
//! what carries one finds the client's port by its port mapper, and reports the answer.

use crate::rpc;
use crate::xdr::{Reader, Writer};
use engine::{ByteRange, LockOwner, LockedFile};
use std::net::IpAddr;

/// Program number of the port mapper.
pub(crate) const PORT_MAPPER: u32 = 100_000;

const TCP: u32 = 6;
const UDP: u32 = 17;
/// The longest answer that is read, in bytes: a status with a cookie.
const ANSWER_BYTES_MAX: usize = 2048;

/// Carries calls to clients.
pub trait ClientCalls: Send + Sync {
    /// Takes a call, and returns at once. Where it cannot be taken, it is as if the client did not answer.
    ///
    /// # Errors
    /// The call, when too many are under way.
    fn send(&self, call: ClientCall) -> Result<(), Box<ClientCall>>;
}

/// What a call is about: what its answer, or that there is none, leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A lock was granted that the client waited for.
    Granted {
        file: LockedFile,
        owner: LockOwner,
        range: ByteRange,
    },
    /// The server was restarted.
    Notify,
    /// The answer to a call that is answered by another call (NLM's messages).
    Answer,
}

/// A call to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCall {
    /// The client.
    pub to: IpAddr,
    /// The address of this machine that the client knows.
    pub from: IpAddr,
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) procedure: u32,
    pub(crate) arguments: Vec<u8>,
    pub(crate) purpose: Purpose,
}

/// How a call travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// A connection, with record marks.
    Tcp,
    /// A datagram.
    Udp,
}

impl ClientCall {
    /// Returns how often it is to be tried while the client does not answer, and what it is, for messages.
    #[must_use]
    pub fn tries(&self) -> (u32, &'static str) {
        match self.purpose {
            Purpose::Granted { .. } => (3, "a lock was granted"),
            Purpose::Notify => (12, "the server was restarted"),
            Purpose::Answer => (1, "an answer"),
        }
    }

    /// Returns the RPC message, without a record mark.
    #[must_use]
    pub fn message(&self, xid: u32) -> Vec<u8> {
        let mut w = rpc::call_as_root(xid, self.program, self.version, self.procedure);
        w.bytes(&self.arguments);
        w.into_bytes()
    }

    /// Returns the question to the client's port mapper, an RPC message: where the program is (RFC 1833: GETPORT of version 2 for
    /// IPv4, GETADDR of version 4 otherwise).
    #[must_use]
    pub fn port_query(&self, xid: u32, transport: Transport) -> Vec<u8> {
        let version = if self.to.is_ipv4() { 2 } else { 4 };
        let mut w = rpc::call_as_root(xid, PORT_MAPPER, version, 3);
        w.u32(self.program).u32(self.version);
        match (version, transport) {
            (2, Transport::Tcp) => w.u32(TCP).u32(0),
            (2, Transport::Udp) => w.u32(UDP).u32(0),
            (_, Transport::Tcp) => w.opaque(b"tcp6").opaque(b"").opaque(b""),
            (_, Transport::Udp) => w.opaque(b"udp6").opaque(b"").opaque(b""),
        };
        w.into_bytes()
    }

    /// Returns the port that a port mapper's answer names.
    #[must_use]
    pub fn port_of_answer(&self, answer: &[u8]) -> Option<u16> {
        let mut reader = rpc::result_of(answer)?;
        if self.to.is_ipv4() {
            let port = u16::try_from(reader.u32().ok()?).ok()?;
            return (port != 0).then_some(port);
        }
        // RFC 5665, section 5.2.3.3: the port's two bytes are behind the last two dots.
        let address = std::str::from_utf8(reader.opaque(256).ok()?).ok()?;
        let mut parts = address.rsplit('.');
        let mut byte = || parts.next()?.parse::<u8>().ok();
        let (low, high) = (byte()?, byte()?);
        let port = u16::from_be_bytes([high, low]);
        (port != 0).then_some(port)
    }

    /// Returns whether the client agreed: for a granted lock, that it wanted it.
    pub(crate) fn is_accepted(&self, answer: &[u8]) -> bool {
        let Some(mut reader) = rpc::result_of(answer) else {
            return false;
        };
        match self.purpose {
            Purpose::Granted { .. } => granted(&mut reader).unwrap_or(false),
            Purpose::Notify | Purpose::Answer => true,
        }
    }
}

/// Reads an `nlm4_res`: whether it says LCK_GRANTED.
fn granted(reader: &mut Reader<'_>) -> crate::xdr::Result<bool> {
    reader.opaque(ANSWER_BYTES_MAX)?;
    Ok(reader.u32()? == 0)
}

/// Returns a new call's arguments.
pub(crate) fn arguments(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut w = Writer::default();
    write(&mut w);
    w.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(to: &str) -> ClientCall {
        ClientCall {
            to: to.parse().expect("an address"),
            from: IpAddr::from([10, 0, 0, 9]),
            program: 100_021,
            version: 4,
            procedure: 5,
            arguments: vec![0, 0, 0, 7],
            purpose: Purpose::Notify,
        }
    }

    fn answer(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut w = rpc::success(1, 16);
        write(&mut w);
        w.into_bytes()
    }

    #[test]
    fn ports_are_found_in_answers_and_garbage_names_none() {
        let four = call("10.0.0.1");
        let port = |port| {
            answer(|w| {
                w.u32(port);
            })
        };
        assert_eq!(four.port_of_answer(&port(4045)), Some(4045));
        assert_eq!(four.port_of_answer(&port(0)), None);
        assert_eq!(four.port_of_answer(&port(70_000)), None);
        let six = call("fd00::1");
        let address = |text: &[u8]| {
            answer(|w| {
                w.opaque(text);
            })
        };
        assert_eq!(six.port_of_answer(&address(b"::.8.1")), Some(2049));
        for bad in [&b""[..], b"8.1", b"::.8.", b"::.256.1", b"\xff"] {
            let found = six.port_of_answer(&address(bad));
            assert!(found.is_none() || bad == b"8.1", "{bad:?}");
        }
        for cut in 0..24 {
            assert_eq!(
                four.port_of_answer(port(4045).get(..cut).expect("24")),
                None
            );
        }
    }

    #[test]
    fn a_message_carries_its_arguments_behind_the_envelope() {
        let bytes = call("10.0.0.1").message(9);
        assert!(bytes.ends_with(&[0, 0, 0, 7]));
        let mut reader = Reader::new(&bytes);
        let decoded = rpc::Call::decode(&mut reader).expect("a call");
        assert_eq!(
            (decoded.xid, decoded.program, decoded.procedure),
            (9, 100_021, 5)
        );
        assert_eq!(reader.left(), 4);
    }
}
