//! The port mapper (RFC 1833): tells clients on which port NFS and MOUNT are, and registers them with a running one.

use crate::outcome::Outcome;
use crate::rpc::{self, Call, Refusal};
use crate::xdr::{Reader, Writer};
use crate::{mount, nlm, nsm, v3, v4};
use std::net::{IpAddr, SocketAddr};

pub(crate) use crate::client_call::PORT_MAPPER as PROGRAM;

const TCP: u32 = 6;
const UDP: u32 = 17;
/// Longest string in rpcbind's arguments: no transport's name or address is longer.
const STRING_MAX: usize = 256;
/// What is served, on the one port: program, version and protocol.
const SERVED: [(u32, u32, u32); 4] = [
    (v3::PROGRAM, v3::VERSION, TCP),
    (v3::PROGRAM, v4::VERSION, TCP),
    (mount::PROGRAM, 3, TCP),
    (mount::PROGRAM, 1, TCP),
];
/// What locks, on the same port; clients that were restarted say so by datagrams.
const LOCKING: [(u32, u32, u32); 4] = [
    (nlm::PROGRAM, nlm::VERSION, TCP),
    (nlm::PROGRAM, nlm::VERSION, UDP),
    (nsm::PROGRAM, nsm::VERSION, TCP),
    (nsm::PROGRAM, nsm::VERSION, UDP),
];
/// Versions of the port mapper itself, which it lists as others: `rpcinfo -p HOST` asks for version 2 before it calls it.
const OWN_VERSIONS: [u32; 3] = [4, 3, 2];

/// A program, as it is listed.
struct Listed {
    program: u32,
    version: u32,
    protocol: u32,
    port: u16,
}

/// Everything that is listed; the port mapper is at the port that the call came to.
fn listed(nfs_port: u16, local: SocketAddr) -> impl Iterator<Item = Listed> {
    let own = OWN_VERSIONS.map(|version| (PROGRAM, version, TCP, local.port()));
    let at_port = move |(program, version, protocol)| (program, version, protocol, nfs_port);
    let served = SERVED.into_iter().chain(LOCKING).map(at_port);
    let all = own.into_iter().chain(served);
    all.map(|(program, version, protocol, port)| Listed {
        program,
        version,
        protocol,
        port,
    })
}

/// The port of a program. RFC 1833, section 3: that of another version is still an answer; the call then says which are served.
fn port_of(program: u32, protocol: u32, nfs_port: u16, local: SocketAddr) -> Option<u16> {
    let mut listed = listed(nfs_port, local);
    let found = listed.find(|at| at.program == program && at.protocol == protocol);
    found.map(|at| at.port)
}

pub(crate) fn call(
    nfs_port: u16,
    local: SocketAddr,
    call: &Call,
    mut arguments: Reader<'_>,
) -> Outcome {
    let mut w = rpc::success(call.xid, 128);
    let result = match (call.version, call.procedure) {
        (_, 0) => Ok(()),
        (2, 3) => get_port(nfs_port, local, &mut arguments, &mut w),
        (2, 4) => {
            for at in listed(nfs_port, local) {
                w.bool(true).u32(at.program).u32(at.version);
                w.u32(at.protocol).u32(u32::from(at.port));
            }
            w.bool(false);
            Ok(())
        }
        (3 | 4, 3) => get_address(nfs_port, local, &mut arguments, &mut w),
        (3 | 4, 4) => {
            for at in listed(nfs_port, local) {
                w.bool(true).u32(at.program).u32(at.version);
                w.opaque(netid(local.ip(), at.protocol))
                    .opaque(universal(local.ip(), at.port).as_bytes())
                    .opaque(b"superuser");
            }
            w.bool(false);
            Ok(())
        }
        // SET and UNSET are for services of this host, of which there are none but ours.
        (_, 1 | 2) => {
            w.bool(false);
            Ok(())
        }
        _ => return Outcome::Refused(Refusal::ProcedureUnavailable),
    };
    match result {
        Ok(()) => w.into(),
        Err(malformed) => malformed.into(),
    }
}

fn get_port(
    nfs_port: u16,
    local: SocketAddr,
    arguments: &mut Reader<'_>,
    w: &mut Writer,
) -> crate::xdr::Result<()> {
    let (program, _version, protocol) = (arguments.u32()?, arguments.u32()?, arguments.u32()?);
    let port = port_of(program, protocol, nfs_port, local);
    w.u32(port.map_or(0, u32::from));
    Ok(())
}

fn get_address(
    nfs_port: u16,
    local: SocketAddr,
    arguments: &mut Reader<'_>,
    w: &mut Writer,
) -> crate::xdr::Result<()> {
    let (program, _version) = (arguments.u32()?, arguments.u32()?);
    let transport = arguments.opaque(STRING_MAX)?;
    let protocol = if transport.starts_with(b"tcp") {
        TCP
    } else {
        UDP
    };
    let port = port_of(program, protocol, nfs_port, local);
    let address = port.map(|port| universal(local.ip(), port));
    w.opaque(address.unwrap_or_default().as_bytes());
    Ok(())
}

fn netid(address: IpAddr, protocol: u32) -> &'static [u8] {
    match (address.is_ipv4(), protocol) {
        (true, UDP) => b"udp",
        (false, UDP) => b"udp6",
        (true, _) => b"tcp",
        (false, _) => b"tcp6",
    }
}

/// Returns a "universal address" (RFC 5665, section 5.2.3.3): the port's two bytes follow the address.
fn universal(address: IpAddr, port: u16) -> String {
    format!("{}.{}.{}", address.to_canonical(), port >> 8, port & 0xff)
}

/// Returns the calls that register NFS and MOUNT on `port` with a port mapper of this host, one RPC message each.
#[must_use]
pub fn set_calls(port: u16) -> Vec<Vec<u8>> {
    registration(1, port, &SERVED)
}

/// Returns the calls that register NLM and NSM, which the machine's own may have registered already.
#[must_use]
pub fn set_lock_calls(port: u16) -> Vec<Vec<u8>> {
    registration(1, port, &LOCKING)
}

/// Returns the calls that take the registration back.
#[must_use]
pub fn unset_calls(port: u16) -> Vec<Vec<u8>> {
    registration(2, port, &SERVED)
}

/// Returns the calls that take the registration of NLM and NSM back.
#[must_use]
pub fn unset_lock_calls(port: u16) -> Vec<Vec<u8>> {
    registration(2, port, &LOCKING)
}

fn registration(procedure: u32, port: u16, programs: &[(u32, u32, u32)]) -> Vec<Vec<u8>> {
    programs
        .iter()
        .zip(1..)
        .map(|((program, version, protocol), xid)| {
            let mut w = Writer::with_capacity(56);
            w.u32(xid).u32(0).u32(2).u32(PROGRAM).u32(2).u32(procedure);
            w.u32(0).u32(0).u32(0).u32(0);
            w.u32(*program).u32(*version).u32(*protocol);
            w.u32(u32::from(port));
            w.into_bytes()
        })
        .collect()
}

/// Returns whether a port mapper's answer to a registration says that it was taken.
#[must_use]
pub fn registered(reply: &[u8]) -> bool {
    let mut reader = Reader::new(reply);
    let words: crate::xdr::Result<Vec<u32>> = (0..7).map(|_| reader.u32()).collect();
    matches!(words.as_deref(), Ok([_, 1, 0, _, _, 0, 1]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::Credential;

    fn ask(version: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
        let call_ = Call {
            xid: 1,
            program: PROGRAM,
            version,
            procedure,
            credential: Credential::None,
        };
        let local = "127.0.0.1:111".parse().expect("an address");
        match call(2049, local, &call_, Reader::new(arguments)) {
            Outcome::Reply(reply) => reply
                .pieces
                .iter()
                .flat_map(AsRef::as_ref)
                .copied()
                .collect(),
            _ => panic!("refused"),
        }
    }

    #[test]
    fn ports_of_served_programs_only() {
        let mut w = Writer::default();
        w.u32(v3::PROGRAM).u32(3).u32(TCP).u32(0);
        assert!(ask(2, 3, &w.into_bytes()).ends_with(&2049_u32.to_be_bytes()));
        let mut w = Writer::default();
        w.u32(100_021).u32(4).u32(UDP).u32(0);
        assert!(ask(2, 3, &w.into_bytes()).ends_with(&2049_u32.to_be_bytes()));
        for (program, protocol) in [(v3::PROGRAM, UDP), (100_011, TCP)] {
            let mut w = Writer::default();
            w.u32(program).u32(1).u32(protocol).u32(0);
            assert!(ask(2, 3, &w.into_bytes()).ends_with(&0_u32.to_be_bytes()));
        }
    }

    /// What rpcinfo -p does: it asks where the port mapper's version 2 is (GETADDR), and calls its DUMP there.
    #[test]
    fn the_port_mapper_lists_itself() {
        let mut w = Writer::default();
        w.u32(PROGRAM).u32(2).opaque(b"tcp").opaque(b"").opaque(b"");
        let mut address = Writer::default();
        address.opaque(b"127.0.0.1.0.111");
        assert!(ask(4, 3, &w.into_bytes()).ends_with(&address.into_bytes()));
        let dump = ask(2, 4, &[]);
        let mut own = Writer::default();
        own.bool(true).u32(PROGRAM).u32(2).u32(TCP).u32(111);
        let own = own.into_bytes();
        assert!(dump.windows(own.len()).any(|row| row == own));
    }

    #[test]
    fn universal_addresses_carry_the_port() {
        assert_eq!(universal(IpAddr::from([10, 0, 0, 1]), 2049), "10.0.0.1.8.1");
    }

    #[test]
    fn a_taken_registration_is_recognised() {
        let mut w = rpc::success(1, 4);
        w.bool(true);
        assert!(registered(&w.into_bytes()));
        let mut w = rpc::success(1, 4);
        w.bool(false);
        assert!(!registered(&w.into_bytes()));
    }
}
