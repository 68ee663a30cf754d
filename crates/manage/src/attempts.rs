//! How often a log-in may fail: by the client's address and by the user's name, each failure beyond the first few doubles a wait.
//! In memory only, and bounded.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Keys remembered; beyond, the one that failed least often is forgotten, of several the one that failed longest ago: made-up
/// names push out each other, and not the client that makes them up.
const KEYS_MAX: usize = 4096;
/// Seconds without a failure after which all is forgotten.
const FORGOTTEN_SECONDS: u64 = 1800;

/// What is counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AttemptKey {
    /// A client: its IPv4 address, or the /64 of its IPv6 address.
    Address(IpAddr),
    /// A user, whether one of that name exists or not.
    User(String),
}

/// Failures of one key.
#[derive(Clone, Copy, Debug, Default)]
struct Failures {
    count: u32,
    last: u64,
    blocked_until: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Attempts {
    failures: BTreeMap<AttemptKey, Failures>,
}

impl AttemptKey {
    fn of(address: IpAddr, user: &str) -> [Self; 2] {
        let network = match address.to_canonical() {
            IpAddr::V6(address) => {
                let bits = address.to_bits() >> 64 << 64;
                IpAddr::V6(bits.into())
            }
            v4 @ IpAddr::V4(_) => v4,
        };
        [Self::Address(network), Self::User(user.to_owned())]
    }

    /// Failures without a wait, and the longest wait in seconds. That of a user is short: who wants to keep the owner out could
    /// fail in the owner's name.
    fn limits(&self) -> (u32, u64) {
        match self {
            Self::Address(_) => (5, 300),
            Self::User(_) => (20, 30),
        }
    }
}

impl Attempts {
    /// Returns the seconds that a log-in of `user` from `address` has to wait, if any. `now` is in seconds.
    #[must_use]
    pub fn wait(&self, address: IpAddr, user: &str, now: u64) -> Option<u64> {
        AttemptKey::of(address, user)
            .iter()
            .filter_map(|key| self.failures.get(key)?.blocked_until.checked_sub(now))
            .max()
            .filter(|seconds| *seconds > 0)
    }

    /// Counts a failure.
    pub fn failed(&mut self, address: IpAddr, user: &str, now: u64) {
        for key in AttemptKey::of(address, user) {
            let (free, longest) = key.limits();
            if self.failures.len() >= KEYS_MAX && !self.failures.contains_key(&key) {
                let oldest = self
                    .failures
                    .iter()
                    .min_by_key(|(_, known)| (known.count, known.last));
                if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                    self.failures.remove(&oldest);
                }
            }
            let known = self.failures.entry(key).or_default();
            if now.saturating_sub(known.last) > FORGOTTEN_SECONDS {
                known.count = 0;
            }
            known.count += 1;
            known.last = now;
            if let Some(beyond) = known.count.checked_sub(free) {
                let wait = (1_u64 << beyond.min(16)).min(longest);
                known.blocked_until = now + wait;
            }
        }
    }

    /// Forgets the failures of a client that has logged in. Those of the user's name stay: others may have made them.
    pub fn succeeded(&mut self, address: IpAddr, user: &str) {
        let [address, _] = AttemptKey::of(address, user);
        self.failures.remove(&address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_cost_time_by_address_and_by_user() {
        let mut attempts = Attempts::default();
        let client: IpAddr = "192.0.2.1".parse().expect("an address");
        let other: IpAddr = "192.0.2.2".parse().expect("an address");
        for _ in 0..4 {
            attempts.failed(client, "ann", 100);
        }
        assert_eq!(attempts.wait(client, "ann", 100), None);
        attempts.failed(client, "ann", 100);
        assert_eq!(attempts.wait(client, "ann", 100), Some(1));
        assert_eq!(attempts.wait(client, "bob", 100), Some(1));
        assert_eq!(attempts.wait(other, "ann", 100), None);
        assert_eq!(attempts.wait(client, "ann", 101), None);
        for _ in 0..40 {
            attempts.failed(client, "ann", 101);
        }
        assert_eq!(attempts.wait(client, "bob", 101), Some(300));
        assert_eq!(attempts.wait(other, "ann", 101), Some(30));
        attempts.succeeded(client, "bob");
        assert_eq!(attempts.wait(client, "bob", 101), None);
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_together_and_memory_is_bounded() {
        let mut attempts = Attempts::default();
        for host in 0..10_000_u128 {
            let address = IpAddr::V6((0x2001_0db8_u128 << 96 | host).into());
            attempts.failed(address, &format!("user{host}"), 5);
        }
        assert!(attempts.failures.len() <= KEYS_MAX);
        let one: IpAddr = "2001:db8::ffff".parse().expect("an address");
        assert!(attempts.wait(one, "ann", 5).is_some());
    }
}
