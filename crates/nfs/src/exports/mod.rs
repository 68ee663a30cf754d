//! Access to exports: the `sharenfs` grammar, and the decision for one client.
//!
//! Two grammars mean the same thing here. Solaris's and OpenZFS's: `rw=@10.0.0.0/8:esx1,root=esx1,nosuid`. Linux's
//! exports(5): `10.0.0.0/8(rw,no_root_squash) *.lab(ro)`. Both parse to the same [`Rules`].
//!
//! This module does not resolve names: it asks a [`Resolver`].

mod error;
mod flavour;
mod grammar;
mod hosts;

pub use error::GrammarError;
pub use flavour::{Flavour, Flavours};
pub use hosts::{Host, HostList};

use crate::connection::TransportSecurity;
use std::net::IpAddr;

/// The user and group that squashed requests run as, unless `anonuid`, `anongid` or `anon` say otherwise (exports(5)).
pub const NOBODY: u32 = 65534;

/// Turns names into addresses and back. Implementations cache; they may block for as long as a name server takes.
pub trait Resolver: Send + Sync {
    /// Returns the addresses of a host name; none when it is unknown.
    fn addresses(&self, host: &str) -> Vec<IpAddr>;
    /// Returns the names of an address; none when it has none.
    fn names(&self, address: IpAddr) -> Vec<String>;
    /// Returns the addresses at which clients reach this server; none where that is not known. Clients of NFSv4 that ask for them
    /// spread a session over several.
    fn own_addresses(&self) -> Vec<IpAddr> {
        Vec::new()
    }
    /// Returns the number of a user of this machine. NFSv4 clients may name owners so.
    fn user(&self, _name: &str) -> Option<u32> {
        None
    }
    /// Returns the number of a group of this machine.
    fn group(&self, _name: &str) -> Option<u32> {
        None
    }
}

/// What happens to a client's ids (exports(5), "User ID Mapping").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Squash {
    /// Ids are taken as they come.
    None,
    /// Root becomes the anonymous user; the default.
    Root,
    /// Everybody becomes the anonymous user.
    All,
}

/// What one client may do on one share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Writing is allowed.
    pub write: bool,
    /// Which ids are squashed.
    pub squash: Squash,
    /// User that squashed requests run as.
    pub anonymous_uid: u32,
    /// Group that squashed requests run as.
    pub anonymous_gid: u32,
    /// Which security flavours calls may have.
    pub flavours: Flavours,
}

/// How connections may be protected (exports(5), `xprtsec`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Transports {
    plain: bool,
    tls: bool,
    mutual_tls: bool,
}

impl Transports {
    const ALL: Self = Self {
        plain: true,
        tls: true,
        mutual_tls: true,
    };

    /// A verified certificate of the client is more than what `tls` asks for.
    fn allow(self, security: TransportSecurity) -> bool {
        match security {
            TransportSecurity::Plain => self.plain,
            TransportSecurity::Tls => self.tls,
            TransportSecurity::MutualTls => self.mutual_tls || self.tls,
        }
    }
}

/// A line of Linux's grammar, or the whole of Solaris's: clients and what they may do.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    clients: HostList,
    transports: Transports,
    access: Access,
}

/// A parsed `sharenfs` value. The first rule whose clients match decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    rules: Vec<Rule>,
    /// Clients that are not squashed whatever the rule says (Solaris's `root=`).
    roots: HostList,
    /// Clients must call from a port below 1024 (exports(5), `secure`).
    secure_port: bool,
}

impl Rules {
    /// Parses the value of `sharenfs`. `off` is not a share: ask before calling.
    ///
    /// # Errors
    /// The option or client that is not understood.
    pub fn parse(value: &str) -> Result<Self, GrammarError> {
        grammar::parse(value)
    }

    /// Decides what a client may do, or `None` when the share is not for it.
    pub fn access(
        &self,
        client: IpAddr,
        port: u16,
        security: TransportSecurity,
        resolver: &dyn Resolver,
    ) -> Option<Access> {
        if self.secure_port && port >= 1024 {
            return None;
        }
        let client = client.to_canonical();
        let rule = self
            .rules
            .iter()
            .find(|rule| rule.clients.matches(client, resolver))?;
        if !rule.transports.allow(security) {
            return None;
        }
        let mut access = rule.access;
        if access.squash == Squash::Root && self.roots.matches(client, resolver) {
            access.squash = Squash::None;
        }
        Some(access)
    }

    /// Returns the clients as `showmount -e` prints them; empty means all.
    #[must_use]
    pub fn groups(&self) -> Vec<String> {
        let mut groups = Vec::new();
        for rule in &self.rules {
            if rule.clients.is_everybody() {
                return Vec::new();
            }
            groups.extend(rule.clients.shown());
        }
        groups
    }

    /// Returns whether any client may use Kerberos.
    #[must_use]
    pub fn has_kerberos(&self) -> bool {
        let mut flavours = self
            .rules
            .iter()
            .flat_map(|rule| rule.access.flavours.iter());
        flavours.any(|flavour| flavour != Flavour::Sys)
    }

    /// Returns whether no client may do without Kerberos.
    #[must_use]
    pub fn has_kerberos_only(&self) -> bool {
        let mut all = self.rules.iter();
        all.all(|rule| !rule.access.flavours.allow(Flavour::Sys))
    }

    /// Returns whether every client that may mount must be named: nothing is open to all.
    #[must_use]
    pub fn is_restricted(&self) -> bool {
        !self.rules.iter().any(|rule| rule.clients.is_everybody())
    }
}

impl Access {
    /// Returns the ids a request runs as.
    #[must_use]
    pub fn squashed(&self, uid: u32, gid: u32, groups: &[u32]) -> (u32, u32, Vec<u32>) {
        let all = self.squash == Squash::All;
        let user = |id| all || (self.squash == Squash::Root && id == 0);
        if user(uid) {
            return (self.anonymous_uid, self.anonymous_gid, Vec::new());
        }
        // Root's group gives nothing away either: a squashed group 0 must not open root's files.
        let group = |id| if user(id) { self.anonymous_gid } else { id };
        (uid, group(gid), groups.iter().copied().map(group).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Names;

    impl Resolver for Names {
        fn addresses(&self, host: &str) -> Vec<IpAddr> {
            match host {
                "esx1" | "esx1.lab" => vec![ip("10.0.0.11")],
                "guest.cafe.example" => vec![ip("192.168.7.7")],
                "backup.lab" => vec![ip("10.9.9.9"), ip("fd00::9")],
                _ => Vec::new(),
            }
        }

        fn names(&self, address: IpAddr) -> Vec<String> {
            let named = [
                ("10.0.0.11", "esx1.lab"),
                ("192.168.7.7", "Guest.Cafe.example"),
            ];
            named
                .iter()
                .filter(|(a, _)| ip(a) == address)
                .map(|(_, n)| (*n).to_owned())
                .collect()
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// What `client` may do: `-` nothing, then `ro` or `rw`, and what is squashed.
    fn check(share: &str, client: &str, expect: &str) {
        let rules = Rules::parse(share).expect(share);
        let shown = match rules.access(ip(client), 700, TransportSecurity::Plain, &Names) {
            None => "-".to_owned(),
            Some(a) => {
                let squash = match a.squash {
                    Squash::None => "no",
                    Squash::Root => "root",
                    Squash::All => "all",
                };
                format!(
                    "{} {squash} {}",
                    if a.write { "rw" } else { "ro" },
                    a.anonymous_uid
                )
            }
        };
        assert_eq!(shown, expect, "{share} for {client}");
    }

    #[test]
    fn solaris_grammar() {
        check("on", "10.1.1.1", "rw root 65534");
        check("rw", "10.1.1.1", "rw root 65534");
        check("ro", "10.1.1.1", "ro root 65534");
        check("rw,nosuid,root=esx1:host2", "10.0.0.11", "rw no 65534");
        check("rw,nosuid,root=esx1:host2", "10.0.0.12", "rw root 65534");
        check(
            "rw=@10.0.0.0/8,ro=@192.168.0.0/16",
            "10.3.3.3",
            "rw root 65534",
        );
        check(
            "rw=@10.0.0.0/8,ro=@192.168.0.0/16",
            "192.168.1.1",
            "ro root 65534",
        );
        check("rw=@10.0.0.0/8,ro=@192.168.0.0/16", "172.16.0.1", "-");
        check("ro,rw=esx1", "10.0.0.11", "rw root 65534");
        check("ro,rw=esx1", "10.0.0.12", "ro root 65534");
        check("rw=-10.0.0.5:@10.0.0.0/24", "10.0.0.5", "-");
        check("rw=-10.0.0.5:@10.0.0.0/24", "10.0.0.6", "rw root 65534");
        check("rw=.cafe.example", "192.168.7.7", "rw root 65534");
        check("rw=backup.lab", "fd00::9", "rw root 65534");
        check("rw=[fd00::]/16", "fd00::1234", "rw root 65534");
        check("rw,anon=99", "10.1.1.1", "rw root 99");
        check(
            "sec=sys,rw=10.0.0.11,no_root_squash",
            "10.0.0.11",
            "rw no 65534",
        );
        check(
            "all_squash,anonuid=1000,anongid=100",
            "10.0.0.11",
            "rw all 1000",
        );
    }

    #[test]
    fn linux_grammar() {
        check(
            "10.0.0.0/8(rw,no_root_squash) *(ro)",
            "10.2.2.2",
            "rw no 65534",
        );
        check(
            "10.0.0.0/8(rw,no_root_squash) *(ro)",
            "11.2.2.2",
            "ro root 65534",
        );
        check("*.lab(rw,all_squash,anonuid=5)", "10.0.0.11", "rw all 5");
        check("*.lab(rw)", "10.0.0.99", "-");
        check("10.0.0.0/255.0.0.0(ro)", "10.250.0.1", "ro root 65534");
        check("esx1(rw)", "::ffff:10.0.0.11", "rw root 65534");
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        for (share, names) in [
            ("rw,sec=krb5:none", "none"),
            ("rw,sec=", "''"),
            ("rw,sec=sys,sec=krb5", "sec=sys:krb5"),
            ("rw=@10.0.0.0/33", "10.0.0.0/33"),
            ("rw,frobnicate", "frobnicate"),
            ("rw,anonuid=x", "anonuid=x"),
            ("rw,xprtsec=ssl", "xprtsec=ssl"),
            ("rw,xprtsec=", "xprtsec="),
            ("10.0.0.0/8(rw", "10.0.0.0/8(rw"),
            ("", "empty"),
        ] {
            let error = Rules::parse(share).expect_err(share).to_string();
            assert!(error.contains(names), "{share}: {error}");
        }
    }

    #[test]
    fn secure_wants_a_reserved_port() {
        let rules = Rules::parse("rw,secure").expect("a share");
        assert!(
            rules
                .access(ip("10.0.0.1"), 1023, TransportSecurity::Plain, &Names)
                .is_some()
        );
        assert!(
            rules
                .access(ip("10.0.0.1"), 1024, TransportSecurity::Plain, &Names)
                .is_none()
        );
    }

    #[test]
    fn connections_are_protected_as_the_share_asks() {
        use TransportSecurity::{MutualTls, Plain, Tls};
        for (share, expect) in [
            ("rw", [true; 3]),
            ("rw,xprtsec=none:tls:mtls", [true; 3]),
            ("rw,xprtsec=none", [true, false, false]),
            ("rw,xprtsec=tls", [false, true, true]),
            ("*(rw,xprtsec=tls:mtls)", [false, true, true]),
            ("*(rw,xprtsec=mtls)", [false, false, true]),
        ] {
            let rules = Rules::parse(share).expect(share);
            let found = [Plain, Tls, MutualTls]
                .map(|how| rules.access(ip("10.0.0.1"), 1, how, &Names).is_some());
            assert_eq!(found, expect, "{share}");
        }
        // Clients of one line differ from those of another.
        let rules = Rules::parse("10.0.0.0/8(rw) *(rw,xprtsec=mtls)").expect("a share");
        assert!(rules.access(ip("10.1.1.1"), 1, Plain, &Names).is_some());
        assert!(rules.access(ip("11.1.1.1"), 1, Tls, &Names).is_none());
    }

    #[test]
    fn flavours_are_those_of_the_list_in_its_order() {
        for (share, expect) in [
            ("rw", vec![1]),
            ("rw,sec=sys", vec![1]),
            ("rw,sec=krb5p:krb5i:krb5p:sys", vec![390_005, 390_004, 1]),
            ("*(ro,sec=krb5)", vec![390_003]),
        ] {
            let rules = Rules::parse(share).expect(share);
            let access = rules.access(ip("10.0.0.1"), 1, TransportSecurity::Plain, &Names);
            let flavours = access.expect("open to all").flavours;
            let numbers: Vec<u32> = flavours.iter().map(Flavour::number).collect();
            assert_eq!(numbers, expect, "{share}");
            assert_eq!(flavours.allow(Flavour::Sys), expect.contains(&1), "{share}");
            assert_eq!(rules.has_kerberos(), expect != [1], "{share}");
            assert_eq!(rules.has_kerberos_only(), !expect.contains(&1), "{share}");
        }
    }

    #[test]
    fn root_is_squashed_with_its_group() {
        let access = Rules::parse("rw").expect("a share").access(
            ip("10.0.0.1"),
            1,
            TransportSecurity::Plain,
            &Names,
        );
        let access = access.expect("open to all");
        assert_eq!(access.squashed(0, 0, &[0, 4]), (NOBODY, NOBODY, vec![]));
        assert_eq!(
            access.squashed(1000, 0, &[0, 4]),
            (1000, NOBODY, vec![NOBODY, 4])
        );
    }
}
