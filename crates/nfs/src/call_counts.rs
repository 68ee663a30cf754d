//! How many calls of each kind every client has made, and the bytes they carried.
//!
//! A connection finds the counters of its client once; a call then costs a few additions without a lock. Clients are told apart up to
//! a bound, and those that come later are counted as one.

use crate::v4::OPERATIONS;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Clients told apart: 4 MiB of counters.
const CLIENTS_MAX: usize = 4096;

/// The versions of NFS that are counted apart, as they are written.
pub const VERSIONS: [&str; 4] = ["3", "4.0", "4.1", "4.2"];

/// The procedures of version 3 by number (RFC 1813, section 3).
pub const PROCEDURES_V3: [&str; 22] = [
    "null",
    "getattr",
    "setattr",
    "lookup",
    "access",
    "readlink",
    "read",
    "write",
    "create",
    "mkdir",
    "symlink",
    "mknod",
    "remove",
    "rmdir",
    "rename",
    "link",
    "readdir",
    "readdirplus",
    "fsstat",
    "fsinfo",
    "pathconf",
    "commit",
];

/// What one client has asked for since the service was started.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientCounts {
    /// The client; `None` for all that came when there was no room to tell them apart.
    pub client: Option<IpAddr>,
    /// Calls by version, in the order of [`VERSIONS`]; a COMPOUND is one.
    pub calls: [u64; VERSIONS.len()],
    /// Calls of version 3 by procedure, in the order of [`PROCEDURES_V3`].
    pub procedures_v3: Vec<u64>,
    /// Operations of version 4 by number, in the order of [`OPERATIONS`].
    pub operations_v4: Vec<u64>,
    /// Bytes of calls, of all programs; without record marks.
    pub received_bytes: u64,
    /// Bytes of answers.
    pub sent_bytes: u64,
}

/// The counters of one client.
#[derive(Debug)]
pub(crate) struct ClientCounters {
    calls: [AtomicU64; VERSIONS.len()],
    procedures_v3: [AtomicU64; PROCEDURES_V3.len()],
    operations_v4: [AtomicU64; OPERATIONS.len()],
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

impl Default for ClientCounters {
    fn default() -> Self {
        Self {
            calls: [const { AtomicU64::new(0) }; _],
            procedures_v3: [const { AtomicU64::new(0) }; _],
            operations_v4: [const { AtomicU64::new(0) }; _],
            received_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
        }
    }
}

/// Adds to the counter of a number that came from the wire; a number without one is answered as an error, and not counted.
fn count(counters: &[AtomicU64], number: u32) {
    let index = usize::try_from(number).unwrap_or(usize::MAX);
    if let Some(counter) = counters.get(index) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl ClientCounters {
    pub(crate) fn note_v3(&self, procedure: u32) {
        count(&self.calls, 0);
        count(&self.procedures_v3, procedure);
    }

    /// Notes a COMPOUND of a minor version.
    pub(crate) fn note_compound(&self, minor: u32) {
        count(&self.calls, minor.saturating_add(1));
    }

    pub(crate) fn note_operation(&self, number: u32) {
        count(&self.operations_v4, number);
    }

    pub(crate) fn note_bytes(&self, received: usize, sent: usize) {
        self.received_bytes
            .fetch_add(received as u64, Ordering::Relaxed);
        self.sent_bytes.fetch_add(sent as u64, Ordering::Relaxed);
    }

    fn read(&self, client: Option<IpAddr>) -> ClientCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ClientCounts {
            client,
            calls: self.calls.each_ref().map(read),
            procedures_v3: self.procedures_v3.iter().map(read).collect(),
            operations_v4: self.operations_v4.iter().map(read).collect(),
            received_bytes: read(&self.received_bytes),
            sent_bytes: read(&self.sent_bytes),
        }
    }
}

/// The counters of all clients.
#[derive(Debug, Default)]
pub(crate) struct CallCounts {
    clients: Mutex<BTreeMap<IpAddr, Arc<ClientCounters>>>,
    others: Arc<ClientCounters>,
}

impl CallCounts {
    /// Returns the counters of a client.
    pub(crate) fn of(&self, client: IpAddr) -> Arc<ClientCounters> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(counters) = clients.get(&client) {
            return Arc::clone(counters);
        }
        if clients.len() >= CLIENTS_MAX {
            return Arc::clone(&self.others);
        }
        Arc::clone(clients.entry(client).or_default())
    }

    /// Returns the counters of those that are not told apart.
    pub(crate) fn others(&self) -> Arc<ClientCounters> {
        Arc::clone(&self.others)
    }

    /// Returns what each client has asked for, by address; clients that were not told apart are one, the last.
    pub(crate) fn read(&self) -> Vec<ClientCounts> {
        let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let each = clients.iter().map(|(client, of)| of.read(Some(*client)));
        let mut counts: Vec<ClientCounts> = each.collect();
        let others = self.others.read(None);
        if others.calls.iter().any(|calls| *calls > 0) {
            counts.push(others);
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn clients_beyond_the_bound_are_counted_as_one() {
        let counts = CallCounts::default();
        let address = |number: usize| {
            let number = u32::try_from(number).expect("small");
            IpAddr::V4(Ipv4Addr::from_bits(number))
        };
        for client in 0..CLIENTS_MAX + 2 {
            let counters = counts.of(address(client));
            counters.note_v3(6);
            counters.note_bytes(100, 8192);
        }
        counts.of(address(7)).note_compound(2);
        counts.of(address(7)).note_operation(25);
        let read = counts.read();
        assert_eq!(read.len(), CLIENTS_MAX + 1);
        let seventh = read.get(7).expect("a client");
        assert_eq!(seventh.client, Some(address(7)));
        assert_eq!(seventh.calls, [1, 0, 0, 1]);
        assert_eq!(seventh.procedures_v3.get(6), Some(&1));
        assert_eq!(seventh.operations_v4.get(25), Some(&1));
        let others = read.last().expect("the others");
        assert_eq!((others.client, others.calls), (None, [2, 0, 0, 0]));
        assert_eq!((others.received_bytes, others.sent_bytes), (200, 16_384));
    }

    #[test]
    fn numbers_that_are_not_known_are_not_counted() {
        let counters = ClientCounters::default();
        counters.note_v3(22);
        counters.note_operation(u32::MAX);
        counters.note_compound(u32::MAX);
        let read = counters.read(None);
        assert_eq!(read.calls, [1, 0, 0, 0]);
        assert_eq!(read.procedures_v3.iter().sum::<u64>(), 0);
        assert_eq!(read.operations_v4.iter().sum::<u64>(), 0);
    }
}
