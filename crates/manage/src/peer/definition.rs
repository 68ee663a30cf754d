//! The peers of an appliance: `peers.toml` in the state directory, a `[[peer]]` for each. Keys that are not known are refused. No secret is
//! in it: a peer is known by the SHA-256 of its certificate.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use engine::{DatasetKind, namecheck};
use serde::{Deserialize, Serialize};

use super::identity::Fingerprint;
use crate::state::replace_file;

/// Peers of an appliance, at most.
const PEERS_MAX: usize = 1000;
/// Bytes of a peer's name, at most.
const NAME_BYTES_MAX: usize = 40;
/// Roots of a peer, at most.
const DATASETS_MAX: usize = 100;
/// The first line of the file.
const HEAD: &str = "# Written by 'sanbox peer': what is added by hand stays, comments do not.\n";

/// Why peers cannot be used or changed.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file does not hold peers.
    #[error("{}: {message}", path.display())]
    Invalid {
        /// Which file.
        path: PathBuf,
        /// Where and why.
        message: String,
    },
    /// No peer has this name.
    #[error("there is no peer '{0}' ('sanbox peer list' shows those there are)")]
    Unknown(String),
    /// What is asked for is refused.
    #[error("{0}")]
    Refused(String),
}

/// Another appliance that this one knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Name: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// The SHA-256 of its certificate.
    pub certificate: Fingerprint,
    /// Where it is reached, as `HOST:PORT`. Empty: it is not, it comes here.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// Datasets here that it reaches, with those below. Empty: it may do nothing here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub datasets: Vec<String>,
    /// It may send there: make datasets and snapshots, and change and destroy what its jobs made.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub push: bool,
    /// It may take what is there, with snapshots, bookmarks and holds that its jobs need.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pull: bool,
    /// It may put what its jobs sent in use, and take back what was written there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failover: bool,
}

/// Whether a dataset is another one or lies in it.
#[must_use]
pub fn is_within(dataset: &str, root: &str) -> bool {
    dataset
        .strip_prefix(root)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a text is the name of a peer.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    begins && name.len() <= NAME_BYTES_MAX && name.chars().all(is_plain)
}

/// Checks the name of a peer.
///
/// # Errors
/// It is none.
pub fn check_name(name: &str) -> Result<(), PeerError> {
    if !is_name(name) {
        return Err(PeerError::Refused(format!(
            "'{name}' is no name of a peer: letters, digits, '-', '_' and '.', at most {NAME_BYTES_MAX}, and a letter or digit first"
        )));
    }
    Ok(())
}

/// Checks where a peer is reached.
///
/// # Errors
/// It is no `HOST:PORT`.
pub fn check_address(address: &str) -> Result<(), PeerError> {
    let split = address.rsplit_once(':');
    let is_address = split.is_some_and(|(host, port)| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let inner = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let is_host = match inner {
            Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.chars().all(allowed),
        };
        is_host && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    match is_address {
        true => Ok(()),
        false => Err(PeerError::Refused(format!(
            "'{address}' is no address: HOST:PORT, with an IPv6 address in brackets"
        ))),
    }
}

impl Peer {
    /// Checks what is set.
    ///
    /// # Errors
    /// Which has no meaning, and why.
    pub fn check(&self) -> Result<(), PeerError> {
        check_name(&self.name)?;
        if !self.address.is_empty() {
            check_address(&self.address)?;
        }
        if self.datasets.len() > DATASETS_MAX {
            let why = format!("a peer reaches at most {DATASETS_MAX} datasets with those below");
            return Err(PeerError::Refused(why));
        }
        for dataset in &self.datasets {
            namecheck::check(dataset, DatasetKind::Filesystem)
                .map_err(|error| PeerError::Refused(error.to_string()))?;
        }
        Ok(())
    }

    /// Whether a dataset is one that the peer reaches here.
    #[must_use]
    pub fn reaches(&self, dataset: &str) -> bool {
        self.datasets.iter().any(|root| is_within(dataset, root))
    }
}

/// All peers of an appliance, in the order in which they were paired.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peers {
    /// The peers.
    #[serde(default)]
    pub peer: Vec<Peer>,
}

impl Peers {
    fn path(state: &Path) -> PathBuf {
        state.join("peers.toml")
    }

    /// Reads the peers of a state directory.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub fn read(state: &Path) -> Result<Self, PeerError> {
        let path = Self::path(state);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(PeerError::Io { path, source }),
        };
        let invalid = |message: String| PeerError::Invalid {
            path: path.clone(),
            message,
        };
        let read: Self = toml::from_str(&text).map_err(|error| invalid(error.to_string()))?;
        let mut peers = Self::default();
        for peer in read.peer {
            peers
                .add(peer)
                .map_err(|error| invalid(error.to_string()))?;
        }
        Ok(peers)
    }

    /// Replaces the peers of a state directory; after a power cut they are the old or the new ones.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, state: &Path) -> Result<(), PeerError> {
        let path = Self::path(state);
        let text = toml::to_string(self).map_err(|error| PeerError::Invalid {
            path: path.clone(),
            message: error.to_string(),
        })?;
        let written = replace_file(&path, format!("{HEAD}\n{text}").as_bytes());
        written.map_err(|source| PeerError::Io { path, source })
    }

    /// Returns a peer by its name.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn named(&self, name: &str) -> Result<&Peer, PeerError> {
        let found = self.peer.iter().find(|peer| peer.name == name);
        found.ok_or_else(|| PeerError::Unknown(name.to_owned()))
    }

    /// Returns the peer that has this certificate.
    #[must_use]
    pub fn of(&self, certificate: &Fingerprint) -> Option<&Peer> {
        self.peer
            .iter()
            .find(|peer| peer.certificate == *certificate)
    }

    /// Adds a peer.
    ///
    /// # Errors
    /// A setting has no meaning, or the name or the certificate is another peer's.
    pub fn add(&mut self, peer: Peer) -> Result<(), PeerError> {
        peer.check()?;
        if self.named(&peer.name).is_ok() {
            return Err(PeerError::Refused(format!(
                "there is a peer '{}' already",
                peer.name
            )));
        }
        if let Some(known) = self.of(&peer.certificate) {
            return Err(PeerError::Refused(format!(
                "the appliance is known already, as peer '{0}' ('sanbox peer remove {0}' forgets it)",
                known.name
            )));
        }
        if self.peer.len() >= PEERS_MAX {
            let why = format!("there are {PEERS_MAX} peers, which is the most");
            return Err(PeerError::Refused(why));
        }
        self.peer.push(peer);
        Ok(())
    }

    /// Gives a peer that redeemed an invitation what that grants: one that is known by its certificate keeps its name and its address, another
    /// is added, with a number behind a name that is taken. Returns it as it is then.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn grant(&mut self, mut peer: Peer) -> Result<Peer, PeerError> {
        let known = self.peer.iter_mut();
        if let Some(known) = known
            .into_iter()
            .find(|known| known.certificate == peer.certificate)
        {
            known.datasets = peer.datasets;
            known.push = peer.push;
            known.pull = peer.pull;
            known.failover = peer.failover;
            known.check()?;
            return Ok(known.clone());
        }
        let wanted = peer.name.clone();
        let mut number = 2;
        while self.named(&peer.name).is_ok() {
            peer.name = format!("{wanted}-{number}");
            number += 1;
        }
        self.add(peer.clone())?;
        Ok(peer)
    }

    /// Adds a peer that is reached at an address. One of this name is paired anew: it keeps what it may do here if its certificate is the same, and
    /// nothing of it with another one.
    ///
    /// # Errors
    /// As [`Self::add`], but for the name.
    pub fn reach(&mut self, peer: Peer) -> Result<(), PeerError> {
        if self
            .of(&peer.certificate)
            .is_none_or(|known| known.name == peer.name)
            && let Some(known) = self.peer.iter_mut().find(|known| known.name == peer.name)
        {
            known.address = peer.address;
            if known.certificate != peer.certificate {
                known.certificate = peer.certificate;
                known.datasets = Vec::new();
                (known.push, known.pull, known.failover) = (false, false, false);
            }
            return Ok(());
        }
        self.add(peer)
    }

    /// Removes a peer.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn remove(&mut self, name: &str) -> Result<Peer, PeerError> {
        let at = self.peer.iter().position(|peer| peer.name == name);
        let at = at.ok_or_else(|| PeerError::Unknown(name.to_owned()))?;
        Ok(self.peer.remove(at))
    }

    /// Gives a peer another name.
    ///
    /// # Errors
    /// There is none of this name, or the new one is none or another peer's.
    pub fn rename(&mut self, name: &str, to: &str) -> Result<(), PeerError> {
        check_name(to)?;
        self.named(name)?;
        if self.named(to).is_ok() {
            return Err(PeerError::Refused(format!(
                "there is a peer '{to}' already"
            )));
        }
        for peer in self.peer.iter_mut().filter(|peer| peer.name == name) {
            to.clone_into(&mut peer.name);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str) -> Peer {
        Peer {
            name: name.to_owned(),
            certificate: Fingerprint::of(name.as_bytes()),
            address: "192.0.2.7:8444".to_owned(),
            datasets: vec!["tank/vm".to_owned()],
            push: true,
            pull: false,
            failover: false,
        }
    }

    #[test]
    fn peers_are_kept_and_mistakes_are_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut peers = Peers::read(directory.path()).expect("none");
        peers.add(peer("backup")).expect("added");
        assert!(peers.add(peer("backup")).is_err());
        let twice = Peer {
            name: "other".to_owned(),
            ..peer("backup")
        };
        let error = peers.add(twice).expect_err("refused").to_string();
        assert!(error.contains("as peer 'backup'"), "{error}");
        peers.write(directory.path()).expect("written");
        assert_eq!(Peers::read(directory.path()).expect("read"), peers);
        // Invited, too: it keeps its address.
        let grant = Peer {
            name: "calls-itself".to_owned(),
            address: String::new(),
            datasets: vec!["tank/x".to_owned()],
            pull: true,
            ..peer("backup")
        };
        let granted = peers.grant(grant).expect("granted");
        assert_eq!((granted.name.as_str(), granted.pull), ("backup", true));
        assert_eq!(granted.address, "192.0.2.7:8444");
        let elsewhere = Peer {
            address: "192.0.2.8:8444".to_owned(),
            datasets: Vec::new(),
            ..peer("backup")
        };
        peers.reach(elsewhere.clone()).expect("reached");
        let known = peers.named("backup").expect("known");
        assert_eq!(
            (known.address.as_str(), known.datasets.len()),
            ("192.0.2.8:8444", 1)
        );
        let twice = Peer {
            name: "other".to_owned(),
            ..elsewhere
        };
        assert!(peers.reach(twice).is_err());
        let anew = Peer {
            certificate: Fingerprint::of(b"anew"),
            ..peer("backup")
        };
        peers.reach(anew.clone()).expect("paired anew");
        let known = peers.named("backup").expect("known");
        assert_eq!(
            (known.certificate, known.push, known.datasets.len()),
            (anew.certificate, false, 0)
        );
        peers.rename("backup", "vault").expect("renamed");
        assert!(peers.named("backup").is_err() && peers.named("vault").is_ok());
        assert!(peers.rename("vault", "a b").is_err());
        assert!(peers.remove("backup").is_err());
        peers.remove("vault").expect("removed");
        let path = directory.path().join("peers.toml");
        fs::write(&path, "[[peer]]\nname = 'a'\nright = 'all'\n").expect("written");
        assert!(Peers::read(directory.path()).is_err());
    }

    #[test]
    fn settings_of_no_meaning_are_refused() {
        for address in [
            "host",
            "host:0",
            "host:99999",
            ":8444",
            "a b:1",
            "[::1:8444",
            "::1:8444",
            "-x@y:1",
        ] {
            assert!(check_address(address).is_err(), "{address}");
        }
        for address in ["host:8444", "192.0.2.1:1", "[2001:db8::1]:8444"] {
            assert!(check_address(address).is_ok(), "{address}");
        }
        for name in ["", "-a", "a/b", "a b", ".a", &"a".repeat(41)] {
            assert!(check_name(name).is_err(), "{name}");
        }
        for dataset in ["", "/", "tank/", "tank//a", "tank/a@b", "tank/..", "a\n"] {
            let peer = Peer {
                datasets: vec![dataset.to_owned()],
                ..peer("a")
            };
            assert!(peer.check().is_err(), "{dataset}");
        }
    }

    #[test]
    fn a_peer_reaches_its_datasets_and_those_below() {
        let peer = peer("a");
        for (dataset, expected) in [
            ("tank/vm", true),
            ("tank/vm/one", true),
            ("tank/vmware", false),
            ("tank", false),
            ("tank/other", false),
            ("", false),
        ] {
            assert_eq!(peer.reaches(dataset), expected, "{dataset}");
        }
    }
}
