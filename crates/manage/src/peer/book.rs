//! What an appliance knows of its peers: those that were paired, and the invitations that wait to be redeemed.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::definition::{Peer, PeerError, Peers};
use super::identity::Fingerprint;
use super::pairing::{Code, Grant, Invitations, Proof};

/// See the module.
#[derive(Debug)]
pub struct PeerBook {
    state: PathBuf,
    /// Held while the file is changed.
    changing: Mutex<()>,
    invitations: Mutex<Invitations>,
    /// As the file is; `None` before it was read.
    peers: watch::Sender<Option<Arc<Peers>>>,
}

impl PeerBook {
    /// Returns the peers of a state directory; nothing is read yet.
    #[must_use]
    pub fn new(state: &Path) -> Arc<Self> {
        Arc::new(Self {
            state: state.to_owned(),
            changing: Mutex::default(),
            invitations: Mutex::default(),
            peers: watch::Sender::new(None),
        })
    }

    /// Returns the peers. The file is read at the first time.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn peers(&self) -> Result<Arc<Peers>, PeerError> {
        if let Some(known) = self.peers.borrow().as_ref() {
            return Ok(known.clone());
        }
        let read = Arc::new(Peers::read(&self.state)?);
        // Another thread that read it, too, found the same.
        self.peers.send_replace(Some(read.clone()));
        Ok(read)
    }

    /// Changes the peers. They are on the disk when this returns.
    ///
    /// # Errors
    /// The change is refused, or cannot be written.
    pub fn change<T>(
        &self,
        change: impl FnOnce(&mut Peers) -> Result<T, PeerError>,
    ) -> Result<T, PeerError> {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        // What was added by hand since it was read stays.
        let mut peers = Peers::read(&self.state)?;
        let done = change(&mut peers)?;
        peers.write(&self.state)?;
        self.peers.send_replace(Some(Arc::new(peers)));
        Ok(done)
    }

    /// Returns what becomes of the peers.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Option<Arc<Peers>>> {
        self.peers.subscribe()
    }

    /// Returns the peer that has this certificate.
    #[must_use]
    pub fn of(&self, certificate: &Fingerprint) -> Option<Peer> {
        self.peers().ok()?.of(certificate).cloned()
    }

    /// Invites a peer.
    ///
    /// # Errors
    /// What is granted has no meaning, or the kernel gives no random bytes.
    pub fn invite(&self, grant: Grant, now: u64) -> Result<Code, PeerError> {
        let unnamed = Fingerprint::of(b"");
        grant.peer(unnamed, "peer").check()?;
        if !grant.name.is_empty() && self.peers()?.named(&grant.name).is_ok() {
            let why = format!("there is a peer '{}' already", grant.name);
            return Err(PeerError::Refused(why));
        }
        let code = self.invitations().invite(grant, now);
        // Those that listen for peers begin.
        self.peers.send_modify(|_| {});
        code.map_err(|error| PeerError::Refused(format!("no code can be made: {error}")))
    }

    /// Whether an invitation waits to be redeemed.
    #[must_use]
    pub fn is_inviting(&self, now: u64) -> bool {
        self.invitations().is_any(now)
    }

    /// Whether a connection from who has this certificate is of use: it is a peer's, or may become one.
    #[must_use]
    pub fn is_welcome(&self, certificate: &Fingerprint, now: u64) -> bool {
        self.of(certificate).is_some() || self.is_inviting(now)
    }

    /// Makes a peer of who redeems an invitation; returns it and the proof that it is owed.
    ///
    /// # Errors
    /// The code is not good, or the peer cannot be kept.
    pub fn redeem(
        &self,
        from: IpAddr,
        (id, proof, calls_itself): (&str, &Proof, &str),
        (inviter, redeemer): (&Fingerprint, &Fingerprint),
        now: u64,
    ) -> Result<(Peer, Proof), PeerError> {
        let redeemed = self
            .invitations()
            .redeem(from, id, proof, (inviter, redeemer), now);
        let (grant, answer) = redeemed.map_err(|error| PeerError::Refused(error.to_string()))?;
        let peer = self.change(|peers| peers.grant(grant.peer(*redeemer, calls_itself)))?;
        Ok((peer, answer))
    }

    fn invitations(&self) -> MutexGuard<'_, Invitations> {
        self.invitations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::pairing::PairingSide;
    use super::*;

    #[test]
    fn who_redeems_an_invitation_becomes_a_peer_with_what_it_grants() {
        let directory = tempfile::tempdir().expect("a directory");
        let book = PeerBook::new(directory.path());
        let inviter = Fingerprint::of(b"inviter");
        let redeem = |redeemer: &Fingerprint, name: &str| {
            let grant = Grant {
                datasets: vec!["tank/vm".to_owned()],
                pull: true,
                ..Grant::default()
            };
            let code = book.invite(grant, 100).expect("a code");
            let proof = code.proof(PairingSide::Redeemer, &inviter, redeemer);
            let from = IpAddr::V4(Ipv4Addr::LOCALHOST);
            book.redeem(from, (code.id(), &proof, name), (&inviter, redeemer), 100)
        };
        let (first, second) = (Fingerprint::of(b"first"), Fingerprint::of(b"second"));
        assert!(!book.is_welcome(&first, 100));
        let (peer, _) = redeem(&first, "box").expect("a peer");
        assert_eq!(
            (peer.name.as_str(), peer.push, peer.pull),
            ("box", false, true)
        );
        assert!(book.is_welcome(&first, 100) && !book.is_welcome(&second, 100));
        let (peer, _) = redeem(&second, "box").expect("a peer");
        assert_eq!(peer.name, "box-2");
        let (peer, _) = redeem(&second, "again").expect("known");
        assert_eq!(peer.name, "box-2");
        // By a name that is none, and by one that is taken.
        assert!(redeem(&Fingerprint::of(b"third"), "a/b").is_err());
        let grant = Grant {
            name: "box".to_owned(),
            ..Grant::default()
        };
        assert!(book.invite(grant, 100).is_err());
        let read = PeerBook::new(directory.path()).peers().expect("read");
        assert_eq!(read.peer.len(), 2);

        // Added by hand while it is in use: known from the next change on.
        let path = directory.path().join("peers.toml");
        let text = std::fs::read_to_string(&path).expect("read");
        let third = Fingerprint::of(b"third");
        let by_hand = format!("{text}\n[[peer]]\nname = 'third'\ncertificate = '{third}'\n");
        std::fs::write(&path, by_hand).expect("written");
        assert!(book.of(&third).is_none());
        book.change(|peers| peers.remove("box-2")).expect("removed");
        assert!(book.of(&third).is_some() && book.of(&second).is_none());
    }
}
