//! Host names of access lists, by the machine's resolver, remembered for a while.

use crate::names::{self, ids_of};
use std::collections::BTreeMap;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long an answer is trusted.
const TRUSTED: Duration = Duration::from_secs(60);
/// Names remembered at most.
const NAMES_MAX: usize = 4096;

/// See the module.
pub(crate) struct HostNames {
    /// Where the daemon listens; at all addresses of the machine if there is none.
    listen: Vec<IpAddr>,
    addresses: Mutex<BTreeMap<String, (Instant, Vec<IpAddr>)>>,
}

impl HostNames {
    /// The names of a machine whose daemon listens at these addresses, or at all there are.
    pub(crate) fn new(listen: Vec<IpAddr>) -> Self {
        Self {
            listen,
            addresses: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, (Instant, Vec<IpAddr>)>> {
        self.addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Finds a number by the name in a list in the form of `/etc/passwd` or `/etc/group`.
fn number_of(list: &str, name: &str) -> Option<u32> {
    ids_of(list, name).find_map(|id| id.parse().ok())
}

impl nfs::Resolver for HostNames {
    fn user(&self, name: &str) -> Option<u32> {
        number_of(&names::users(), name)
    }

    fn group(&self, name: &str) -> Option<u32> {
        number_of(&names::groups(), name)
    }

    fn own_addresses(&self) -> Vec<IpAddr> {
        let is_any = |address: &IpAddr| address.is_unspecified();
        if !self.listen.is_empty() && !self.listen.iter().any(is_any) {
            return self.listen.clone();
        }
        // A client elsewhere reaches neither loopback nor what holds for one link.
        let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
        let reached = interfaces
            .iter()
            .filter(|interface| !interface.is_loopback() && !interface.is_link_local());
        reached.map(if_addrs::Interface::ip).collect()
    }

    fn addresses(&self, host: &str) -> Vec<IpAddr> {
        if let Some((at, addresses)) = self.known().get(host)
            && at.elapsed() < TRUSTED
        {
            return addresses.clone();
        }
        let found: Vec<IpAddr> = (host, 0)
            .to_socket_addrs()
            .map(|found| found.map(|address| address.ip().to_canonical()).collect())
            .unwrap_or_default();
        let mut known = self.known();
        if known.len() >= NAMES_MAX {
            known.clear();
        }
        known.insert(host.to_owned(), (Instant::now(), found.clone()));
        found
    }

    /// Names of addresses are taken from this machine's hosts file only: asking a name server
    /// would trust the owner of the address's reverse zone.
    fn names(&self, address: IpAddr) -> Vec<String> {
        let Ok(hosts) = std::fs::read_to_string("/etc/hosts") else {
            return Vec::new();
        };
        hosts
            .lines()
            .filter_map(|line| {
                let mut words = line.split('#').next()?.split_whitespace();
                let found: IpAddr = words.next()?.parse().ok()?;
                (found.to_canonical() == address).then(|| words.map(str::to_owned).collect())
            })
            .flat_map(|names: Vec<String>| names)
            .collect()
    }
}
