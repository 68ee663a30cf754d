//! Initiator ports, and their relation to target ports.

use std::net::IpAddr;

/// The relation between an initiator port and a target port: one session.
#[derive(Debug)]
pub(crate) struct Nexus {
    /// Unique while the server runs.
    pub(crate) id: u64,
    /// Initiator name and session id, and the portal group: what reservations remember.
    pub(crate) port: Port,
    /// Where the session was opened from.
    pub(crate) peer: IpAddr,
}

/// An initiator port's name (RFC 7143 section 4.4.1, names of SCSI ports), and the target port it speaks to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Port {
    pub(crate) initiator: String,
    pub(crate) isid: [u8; 6],
    /// Tag of the portal group: the target port's number.
    pub(crate) group: u16,
}

#[cfg(test)]
impl Port {
    /// The port of a host by number, for tests.
    pub(crate) fn of_host(number: u8) -> Self {
        Self {
            initiator: format!("iqn.2026-01.org.example:host{number}"),
            isid: [0x80, 0, 0, 0, 0, number],
            group: 1,
        }
    }
}

impl std::fmt::Display for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{},i,0x", self.initiator)?;
        self.isid
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
