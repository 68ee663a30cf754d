//! Client lists: addresses, networks, names, domains, and their negation.

use super::Resolver;
use super::error::GrammarError;
use std::net::IpAddr;

/// One way to name clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// Everybody (`*`, or no list at all).
    Everybody,
    /// An address or a network: `10.0.0.1`, `@10.0.0.0/8`, `10.0.0.0/255.0.0.0`, `[fd00::]/16`.
    Network {
        /// Any address of the network.
        address: IpAddr,
        /// Leading bits that count.
        prefix: u8,
    },
    /// A host by its name.
    Name(String),
    /// All hosts whose name ends so: `.example.com`.
    Domain(String),
    /// All hosts whose name matches, `*` and `?` being wild: `*.example.com`.
    Pattern(String),
}

/// Clients in the order they were written, each possibly negated (`-host`). The first that matches decides.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostList {
    hosts: Vec<(bool, Host)>,
}

impl HostList {
    /// Returns the list of all clients.
    #[must_use]
    pub fn all() -> Self {
        Self {
            hosts: vec![(true, Host::Everybody)],
        }
    }

    /// Parses hosts separated by colons; colons inside brackets belong to IPv6 addresses.
    ///
    /// # Errors
    /// The host that is not understood.
    pub(super) fn parse(text: &str) -> Result<Self, GrammarError> {
        let mut hosts = Vec::new();
        let (mut start, mut depth) = (0, 0_u32);
        for (at, c) in text.char_indices().chain([(text.len(), ':')]) {
            match c {
                '[' => depth += 1,
                ']' => depth = depth.saturating_sub(1),
                ':' if depth == 0 || at == text.len() => {
                    let host = text.get(start..at).unwrap_or_default();
                    if !host.is_empty() {
                        hosts.push(parse_one(host)?);
                    }
                    start = at + 1;
                }
                _ => {}
            }
        }
        Ok(Self { hosts })
    }

    pub(super) fn single(host: &str) -> Result<Self, GrammarError> {
        Ok(Self {
            hosts: vec![parse_one(host)?],
        })
    }

    /// Returns whether `client` is on the list.
    pub fn matches(&self, client: IpAddr, resolver: &dyn Resolver) -> bool {
        self.hosts
            .iter()
            .find(|(_, host)| host.matches(client, resolver))
            .is_some_and(|(included, _)| *included)
    }

    /// Returns whether the list has all clients.
    #[must_use]
    pub fn is_everybody(&self) -> bool {
        matches!(self.hosts.first(), Some((true, Host::Everybody)))
    }

    /// Returns the list as people write it.
    pub(super) fn shown(&self) -> impl Iterator<Item = String> + '_ {
        self.hosts
            .iter()
            .filter(|(included, _)| *included)
            .map(|(_, host)| match host {
                Host::Everybody => "*".to_owned(),
                Host::Network { address, prefix } if *prefix == full_prefix(*address) => {
                    address.to_string()
                }
                Host::Network { address, prefix } => format!("{address}/{prefix}"),
                Host::Name(name) | Host::Pattern(name) | Host::Domain(name) => name.clone(),
            })
    }
}

impl Host {
    fn matches(&self, client: IpAddr, resolver: &dyn Resolver) -> bool {
        let named = |test: &dyn Fn(&str) -> bool| {
            resolver
                .names(client)
                .iter()
                .any(|name| test(&name.to_ascii_lowercase()))
        };
        match self {
            Self::Everybody => true,
            Self::Network { address, prefix } => in_network(client, *address, *prefix),
            Self::Name(name) => resolver
                .addresses(name)
                .iter()
                .any(|a| a.to_canonical() == client),
            // A name from the reverse zone counts only if it leads back to the client: the client's own name server
            // answers for the reverse zone, and could claim anything.
            Self::Domain(domain) => {
                named(&|name| name.ends_with(domain) && confirms(name, client, resolver))
            }
            Self::Pattern(pattern) => named(&|name| {
                glob(pattern.as_bytes(), name.as_bytes()) && confirms(name, client, resolver)
            }),
        }
    }
}

fn confirms(name: &str, client: IpAddr, resolver: &dyn Resolver) -> bool {
    resolver
        .addresses(name)
        .iter()
        .any(|a| a.to_canonical() == client)
}

fn full_prefix(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn in_network(client: IpAddr, network: IpAddr, prefix: u8) -> bool {
    let shift = u32::from(full_prefix(network).saturating_sub(prefix));
    match (client, network) {
        (IpAddr::V4(c), IpAddr::V4(n)) => {
            let cut = |a: std::net::Ipv4Addr| a.to_bits().checked_shr(shift).unwrap_or(0);
            cut(c) == cut(n)
        }
        (IpAddr::V6(c), IpAddr::V6(n)) => {
            let cut = |a: std::net::Ipv6Addr| a.to_bits().checked_shr(shift).unwrap_or(0);
            cut(c) == cut(n)
        }
        _ => false,
    }
}

fn parse_one(text: &str) -> Result<(bool, Host), GrammarError> {
    let (included, text) = match text.strip_prefix('-') {
        Some(rest) => (false, rest),
        None => (true, text),
    };
    let bad = || GrammarError::Client {
        client: text.to_owned(),
    };
    let host = if text == "*" {
        Host::Everybody
    } else if let Some(network) = network(text.trim_start_matches('@')) {
        network
    } else if text.starts_with('@') || text.contains('/') || text.contains(['[', ']', '(', ')']) {
        return Err(bad());
    } else if text.contains(['*', '?']) {
        Host::Pattern(text.to_ascii_lowercase())
    } else if text.starts_with('.') {
        Host::Domain(text.to_ascii_lowercase())
    } else if text.is_empty()
        || !text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
    {
        return Err(bad());
    } else {
        Host::Name(text.to_ascii_lowercase())
    };
    Ok((included, host))
}

fn network(text: &str) -> Option<Host> {
    let (address, mask) = match text.split_once('/') {
        Some((address, mask)) => (address, Some(mask)),
        None => (text, None),
    };
    let address: IpAddr = address.trim_matches(['[', ']']).parse().ok()?;
    let full = full_prefix(address);
    let prefix = match mask {
        None => full,
        Some(mask) => match mask.parse::<u8>() {
            Ok(prefix) => prefix,
            // A dotted mask: ones, then zeros.
            Err(_) => {
                let bits = mask.parse::<std::net::Ipv4Addr>().ok()?.to_bits();
                let ones = bits.leading_ones();
                if bits.checked_shl(ones).unwrap_or(0) != 0 {
                    return None;
                }
                u8::try_from(ones).ok()?
            }
        },
    };
    (prefix <= full).then_some(Host::Network { address, prefix })
}

/// Matches `*` (any run, dots included, as Linux's exportfs does) and `?` (any one byte).
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p + 1, t));
                p += 1;
            }
            Some(c) if *c == b'?' || text.get(t) == Some(c) => {
                p += 1;
                t += 1;
            }
            _ => match retry {
                Some((after, from)) => {
                    p = after;
                    t = from + 1;
                    retry = Some((after, t));
                }
                None => return false,
            },
        }
    }
    pattern
        .get(p..)
        .unwrap_or_default()
        .iter()
        .all(|c| *c == b'*')
}
