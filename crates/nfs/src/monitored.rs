//! The clients of NLM that may hold locks, as far as they outlive a restart (NSM's monitor list, X/Open XNFS, chapter 11): these are told
//! of the restart, and reclaim what they had; no others do.
//!
//! Lines of the record that NFSv4's clients are in, too:
//!
//! ```text
//! nsm STATE                        the state number of this start: odd, two more with each
//! nlm CLIENT-ADDRESS OUR-ADDRESS CLIENT-NAME-IN-HEX
//! ```

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;

/// Clients that may hold locks at once.
const HOSTS_MAX: usize = 4096;

/// A client of NLM.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MonitoredHost {
    pub(crate) address: IpAddr,
    /// What it calls itself.
    pub(crate) name: Vec<u8>,
    /// Our address that it locks at.
    pub(crate) local: IpAddr,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct MonitorList {
    state: u32,
    earlier: BTreeSet<MonitoredHost>,
    now: BTreeSet<MonitoredHost>,
}

impl Default for MonitorList {
    fn default() -> Self {
        Self {
            state: 1,
            earlier: BTreeSet::new(),
            now: BTreeSet::new(),
        }
    }
}

impl MonitorList {
    /// Returns the state number of this start: odd, as the server is up (XNFS, chapter 11, "state").
    pub(crate) fn state(&self) -> u32 {
        self.state
    }

    /// Returns the clients of before the restart, while they may reclaim.
    pub(crate) fn earlier(&self) -> &BTreeSet<MonitoredHost> {
        &self.earlier
    }

    /// Ends the time in which clients of before the restart reclaim.
    pub(crate) fn forget_earlier(&mut self) {
        self.earlier.clear();
    }

    /// Returns whether a client may reclaim: it is known from before by its address or its name.
    pub(crate) fn may_reclaim(&self, address: IpAddr, name: &[u8]) -> bool {
        let mut earlier = self.earlier.iter();
        earlier.any(|host| host.address == address || host.name == name)
    }

    /// Adds a client; `None` when there is no room, and otherwise whether it is new.
    pub(crate) fn add(&mut self, host: &MonitoredHost) -> Option<bool> {
        if self.now.contains(host) {
            return Some(false);
        }
        if self.now.len() >= HOSTS_MAX {
            return None;
        }
        Some(self.now.insert(host.clone()))
    }

    /// Takes a client out; returns whether it was there.
    pub(crate) fn remove(&mut self, host: &MonitoredHost) -> bool {
        self.now.remove(host)
    }

    /// Reads a line, the first word of which is `kind`, of the record of before the restart; damaged ones are left out.
    pub(crate) fn read_line<'a>(&mut self, kind: &str, mut words: impl Iterator<Item = &'a str>) {
        if kind == "nsm" {
            let before: Option<u32> = words.next().and_then(|word| word.parse().ok());
            // XNFS: a number that a signed integer holds, which begins anew some day.
            let next = before.map(|before| (before | 1).wrapping_add(2) & 0x7fff_ffff);
            self.state = next.unwrap_or(1);
            return;
        }
        let mut address = || words.next().and_then(|word| word.parse().ok());
        let (client, local) = (address(), address());
        let name = words.next().and_then(crate::hex::decode);
        if let (Some(address), Some(local), Some(name), None) = (client, local, name, words.next())
            && self.earlier.len() < HOSTS_MAX
        {
            self.earlier.insert(MonitoredHost {
                address,
                name,
                local,
            });
        }
    }

    /// Writes the lines of the record: until the time for reclaiming is over also the clients of before.
    pub(crate) fn write(&self, text: &mut String) {
        let _infallible = writeln!(text, "nsm {}", self.state);
        for host in self.now.union(&self.earlier) {
            let _infallible = write!(text, "nlm {} {} ", host.address, host.local);
            crate::hex::encode(&host.name, text);
            text.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> MonitorList {
        let mut list = MonitorList::default();
        for line in text.lines() {
            let mut words = line.split(' ');
            let kind = words.next().unwrap_or_default();
            list.read_line(kind, words);
        }
        list
    }

    #[test]
    fn the_state_grows_by_two_and_hosts_are_those_of_before() {
        let host = MonitoredHost {
            address: IpAddr::from([10, 0, 0, 1]),
            name: b"one".to_vec(),
            local: IpAddr::from([10, 0, 0, 9]),
        };
        let mut before = MonitorList::default();
        assert_eq!(before.add(&host), Some(true));
        assert_eq!(before.add(&host), Some(false));
        let mut text = String::new();
        before.write(&mut text);
        let mut after = read(&text);
        assert_eq!(after.state(), 3);
        assert_eq!(after.earlier().iter().collect::<Vec<_>>(), [&host]);
        assert!(after.may_reclaim(host.address, b"renamed"));
        assert!(!after.may_reclaim(host.local, b"two"));
        // A second restart before the time is over leaves it what it may reclaim; one after it does not.
        let mut text = String::new();
        after.write(&mut text);
        assert_eq!((read(&text).state(), read(&text).earlier().len()), (5, 1));
        after.forget_earlier();
        let mut text = String::new();
        after.write(&mut text);
        assert_eq!(read(&text).earlier().len(), 0);
    }

    #[test]
    fn damaged_lines_are_left_out() {
        let damaged = "nsm x\nnlm 10.0.0.1\nnlm 10.0.0.1 10.0.0.2 6x\nnlm a b 61\nnlm 1.1.1.1 2.2.2.2 61 62\nnsm 4294967295\n";
        let list = read(damaged);
        assert!(list.earlier().is_empty());
        assert_eq!(list.state() % 2, 1);
    }
}
