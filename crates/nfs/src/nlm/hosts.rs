//! The clients of NLM: their numbers, by which the table of locks knows their processes, and the locks that they wait for.

use crate::monitored::MonitoredHost;
use engine::{ByteRange, LockWait, LockedFile};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Clients known at once.
const HOSTS_MAX: usize = 4096;
/// Locks that one client waits for.
const WAITS_MAX: usize = 1024;
/// How long a client without locks is remembered after its last call, in nanoseconds: less often is its record written.
const IDLE_NS: u64 = 300_000_000_000;

/// What a client waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaitedLock {
    pub(crate) process: u32,
    pub(crate) file: LockedFile,
    pub(crate) range: ByteRange,
}

struct PendingLock {
    wait: LockWait,
    /// It was granted: there is nothing to cancel.
    granted: Arc<AtomicBool>,
}

struct Host {
    number: u32,
    monitored: Option<MonitoredHost>,
    used_ns: u64,
    waits: BTreeMap<WaitedLock, PendingLock>,
}

type HostKey = (IpAddr, Vec<u8>);

/// See the module.
#[derive(Default)]
pub(crate) struct Hosts {
    by_key: BTreeMap<HostKey, Host>,
    last: u32,
}

impl Hosts {
    /// Returns the number of a client, which is a new one if it is not known; `None` when there is no room.
    pub(crate) fn number(&mut self, address: IpAddr, name: &[u8], now_ns: u64) -> Option<u32> {
        let key = (address, name.to_vec());
        if let Some(host) = self.by_key.get_mut(&key) {
            host.used_ns = now_ns;
            return Some(host.number);
        }
        if self.by_key.len() >= HOSTS_MAX {
            return None;
        }
        // Numbers do not come back: locks of a client that is gone are not those of another.
        self.last = self.last.checked_add(1)?;
        let host = Host {
            number: self.last,
            monitored: None,
            used_ns: now_ns,
            waits: BTreeMap::new(),
        };
        self.by_key.insert(key, host);
        Some(self.last)
    }

    /// Returns the number of a client that is known.
    pub(crate) fn known(&self, address: IpAddr, name: &[u8]) -> Option<u32> {
        let host = self.by_key.get(&(address, name.to_vec()))?;
        Some(host.number)
    }

    /// Notes that a client is in the record.
    pub(crate) fn set_monitored(&mut self, monitored: &MonitoredHost) {
        let key = (monitored.address, monitored.name.clone());
        if let Some(host) = self.by_key.get_mut(&key) {
            host.monitored = Some(monitored.clone());
        }
    }

    /// Returns whether a client is in the record with this address of ours.
    pub(crate) fn is_monitored(&self, wanted: &MonitoredHost) -> bool {
        let key = (wanted.address, wanted.name.clone());
        let host = self.by_key.get(&key);
        host.is_some_and(|host| host.monitored.is_some())
    }

    /// Returns whether a client may wait for one lock more, and does not wait for this one yet.
    pub(crate) fn may_wait(&mut self, number: u32, lock: &WaitedLock) -> MayWait {
        let Some(host) = self.by_number(number) else {
            return MayWait::No;
        };
        let is_pending = |pending: &PendingLock| !pending.granted.load(Ordering::Acquire);
        host.waits.retain(|_, pending| is_pending(pending));
        if host.waits.contains_key(lock) {
            MayWait::Waits
        } else if host.waits.len() >= WAITS_MAX {
            MayWait::No
        } else {
            MayWait::Yes
        }
    }

    /// Notes a wait; `granted` becomes true when it ends.
    pub(crate) fn waits(
        &mut self,
        number: u32,
        lock: WaitedLock,
        wait: LockWait,
        granted: Arc<AtomicBool>,
    ) {
        if let Some(host) = self.by_number(number) {
            host.waits.insert(lock, PendingLock { wait, granted });
        }
    }

    /// Takes a wait out, for the caller to cancel it.
    pub(crate) fn take_wait(&mut self, number: u32, lock: &WaitedLock) -> Option<LockWait> {
        let host = self.by_number(number)?;
        host.waits.remove(lock).map(|pending| pending.wait)
    }

    /// Removes clients that were restarted, by their address or, where the caller may be believed, by their name; returns their
    /// numbers and what is recorded of them.
    pub(crate) fn remove(
        &mut self,
        address: IpAddr,
        name: Option<&[u8]>,
    ) -> Vec<(u32, Option<MonitoredHost>)> {
        self.remove_where(|(at, called), _| *at == address || Some(called.as_slice()) == name)
    }

    /// Removes clients that have called nothing for long, and hold nothing, as `holds` says of their number.
    pub(crate) fn remove_idle(
        &mut self,
        now_ns: u64,
        holds: impl Fn(u32) -> bool,
    ) -> Vec<(u32, Option<MonitoredHost>)> {
        self.remove_where(|_, host| {
            let idle = now_ns.saturating_sub(host.used_ns) > IDLE_NS;
            if idle && holds(host.number) {
                // Looked at again after the same time.
                host.used_ns = now_ns;
                return false;
            }
            idle
        })
    }

    fn remove_where(
        &mut self,
        mut gone: impl FnMut(&HostKey, &mut Host) -> bool,
    ) -> Vec<(u32, Option<MonitoredHost>)> {
        let mut removed = Vec::new();
        self.by_key.retain(|key, host| {
            let gone = gone(key, host);
            if gone {
                removed.push((host.number, host.monitored.take()));
            }
            !gone
        });
        removed
    }

    fn by_number(&mut self, number: u32) -> Option<&mut Host> {
        self.by_key.values_mut().find(|host| host.number == number)
    }
}

/// Whether a client may wait for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MayWait {
    Yes,
    /// It does already: it asked again.
    Waits,
    /// There is no room.
    No,
}
