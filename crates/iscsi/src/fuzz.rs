//! Hostile bytes, for fuzzing: whole connections, texts, parameter lists.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use crate::bytes::{Field as _, be24, put};
use crate::connection::Connection;
use crate::environment::{Environment, Transport, Work};
use crate::pdu::{BHS_BYTES, Out, Rest, opcode};
use crate::registry::ServerConfig;
use crate::server::Server;
use crate::spec::TargetSpec;
use crate::wire::Next;

pub use crate::keys::fuzz_text as text;
pub use crate::scsi::fuzz_parameters as parameters;

const NAME: &str = "iqn.2026-11.org.example:fuzz";

struct NullTransport;

impl Transport for NullTransport {
    fn send(&self, _out: Out) {}
    fn close(&self) {}
    fn run(&self, mut work: Work) {
        // There are no volumes, so nothing ever waits.
        let _ = work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
}

struct FixedEnvironment;

impl Environment for FixedEnvironment {
    fn random(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }

    fn now_seconds(&self) -> u64 {
        0
    }

    fn store_reservations<'a>(
        &'a self,
        _name: &'a str,
        _guid: u64,
        _text: Option<String>,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>> {
        Box::pin(async { true })
    }
}

/// Feeds bytes to a connection as they would come from a socket: from the start, or (when the first byte is odd) after a login.
pub fn connection(bytes: &[u8]) {
    let server = Server::new(ServerConfig {
        environment: Arc::new(FixedEnvironment),
        memory_bytes_max: 1 << 20,
        sessions_max: 4,
    });
    server.set_targets(vec![TargetSpec {
        name: NAME.to_owned(),
        alias: String::new(),
        portals: Vec::new(),
        initiators: Vec::new(),
        chap: None,
        mutual: None,
        redirect: None,
        luns: Vec::new(),
    }]);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 3260));
    let connection = server.connect(address, address, Arc::new(NullTransport));
    let after_login = bytes.u8_at(0) & 1 != 0;
    if after_login && log_in(&connection) == Next::End {
        return;
    }
    let mut rest = bytes.get(1..).unwrap_or_default();
    loop {
        let Ok(bhs) = <[u8; BHS_BYTES]>::try_from(rest.part(0, BHS_BYTES)) else {
            return;
        };
        rest = rest.get(BHS_BYTES..).unwrap_or_default();
        let Ok(shape) = connection.shape(&bhs) else {
            return;
        };
        let len = shape.head + shape.data + shape.tail;
        let Some(body) = shape.cut(rest.part(0, len)) else {
            return;
        };
        if connection.receive(bhs, body) == Next::End {
            return;
        }
        rest = rest.get(len..).unwrap_or_default();
    }
}

fn log_in(connection: &Connection) -> Next {
    let mut text =
        format!("InitiatorName=iqn.2026-11.org.example:host\0TargetName={NAME}\0").into_bytes();
    text.extend_from_slice(b"InitialR2T=No\0ImmediateData=Yes\0");
    let mut bhs = [0; BHS_BYTES];
    put(&mut bhs, 0, &[0x40 | opcode::LOGIN, 0x87]);
    put(&mut bhs, 5, &be24(text.len()));
    let tail = vec![0; text.len().next_multiple_of(4) - text.len()];
    let rest = Rest {
        data: vec![text.into()],
        tail,
        ..Rest::default()
    };
    connection.receive(bhs, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_leads_to_full_feature_phase() {
        // NOP-Out, then a command to a unit that is not there, then a logout; the last ends it.
        let mut bytes = vec![1];
        for (code, flags) in [
            (opcode::NOP_OUT, 0x80),
            (opcode::COMMAND, 0xc0),
            (opcode::LOGOUT, 0x80),
        ] {
            let mut bhs = [0; BHS_BYTES];
            put(&mut bhs, 0, &[0x40 | code, flags]);
            put(&mut bhs, 16, &[0, 0, 0, code]);
            bytes.extend_from_slice(&bhs);
        }
        connection(&bytes);
        connection(&[]);
        connection(&[0xff; 200]);
    }
}
