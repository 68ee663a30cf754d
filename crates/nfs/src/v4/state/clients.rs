//! Clients: EXCHANGE_ID and DESTROY_CLIENTID (RFC 8881, sections 18.35 and 18.50), SETCLIENTID and its confirmation (RFC 7530,
//! sections 16.33 and 16.34), leases.

use super::{CLIENTS_MAX, SessionId, StateKey, StateTable, exhausted, scrambled};
use crate::rpc::Credential;
use crate::v4::status::Status;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// A client's number.
pub(crate) type ClientId = u64;

/// The principal that a client calls as: calls of another one are refused its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Principal {
    /// None that it says.
    None,
    /// The user that it says.
    User(u32),
    /// The one that Kerberos makes sure of.
    Kerberos(String),
}

impl From<&Credential> for Principal {
    fn from(credential: &Credential) -> Self {
        match credential {
            Credential::Sys { uid, .. } => Self::User(*uid),
            Credential::Kerberos { user, .. } => Self::Kerberos(user.principal.clone()),
            _ => Self::None,
        }
    }
}

/// What a client is asked for of a file that it has delegated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientRequest {
    /// To give it back.
    Recall(StateKey),
    /// Its size, and whether it was written.
    Attributes(StateKey),
}

impl ClientRequest {
    pub(super) fn key(self) -> StateKey {
        let (Self::Recall(key) | Self::Attributes(key)) = self;
        key
    }
}

/// A client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) name: Vec<u8>,
    /// Whether it has sessions (minor version 1 and above).
    pub(super) has_sessions: bool,
    verifier: [u8; 8],
    pub(super) principal: Principal,
    pub(super) confirmed: bool,
    /// When its lease began, as far as that is known: a request that came since the time was told last began it at a time that is not
    /// told yet, so that it runs for as long as it is to, however seldom the time is told.
    renewed_ns: u64,
    renewed: bool,
    /// What CREATE_SESSION has to say next, and what it was answered last.
    pub(super) create_sequence: u32,
    pub(super) created: Option<Vec<u8>>,
    pub(super) sessions: usize,
    /// Open and lock states.
    pub(super) states: usize,
    /// Delegations it has, those it lost and was not told of all, and those it is to be called for.
    pub(super) delegations: usize,
    pub(super) revoked: usize,
    pub(super) requests: VecDeque<ClientRequest>,
    /// Sessions by which it is called.
    pub(super) back_sessions: BTreeSet<SessionId>,
    /// Each change of a file that is under way by one of its state ids has a clone.
    changes: Arc<()>,
    /// RECLAIM_COMPLETE was called.
    pub(super) reclaimed: bool,
    /// It is in the record of clients that may reclaim after a restart.
    pub(super) recorded: bool,
    /// What confirms the client (minor version 0), and what is to confirm a change of its callback.
    confirm: u64,
    pending_confirm: Option<u64>,
}

impl Client {
    /// Begins its lease anew.
    pub(super) fn renew(&mut self) {
        self.renewed = true;
    }

    /// Returns whether changes of files are under way that it was allowed to make.
    pub(super) fn has_changes_under_way(&self) -> bool {
        Arc::strong_count(&self.changes) > 1
    }

    /// Returns the mark of a change that is about to be under way.
    pub(super) fn change(&self) -> Arc<()> {
        Arc::clone(&self.changes)
    }

    /// Takes the time.
    pub(super) fn tick(&mut self, now_ns: u64) {
        if std::mem::take(&mut self.renewed) {
            self.renewed_ns = now_ns;
        }
    }

    /// Returns how long ago its lease began at least, in nanoseconds.
    pub(super) fn age_ns(&self, now_ns: u64) -> u64 {
        match self.renewed {
            true => 0,
            false => now_ns.saturating_sub(self.renewed_ns),
        }
    }
}

/// The records that one client name has.
#[derive(Debug, Default)]
pub(super) struct ClientNames {
    confirmed: Option<ClientId>,
    pending: Option<ClientId>,
}

/// What EXCHANGE_ID answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExchangedId {
    pub(crate) client: ClientId,
    pub(crate) sequence: u32,
    pub(crate) confirmed: bool,
}

impl StateTable {
    /// EXCHANGE_ID: finds the client, or makes one that CREATE_SESSION confirms. The cases are those of RFC 8881, section 18.35.4.
    pub(crate) fn exchange_id(
        &mut self,
        name: &[u8],
        verifier: [u8; 8],
        principal: Principal,
        update: bool,
    ) -> Result<ExchangedId, Status> {
        let confirmed = self.confirmed(true, name);
        let known = confirmed.and_then(|id| Some((id, self.clients.get(&id)?)));
        if update {
            // Case 7, 8, 9 and 6.
            let (id, client) = known.ok_or(Status::NoEntry)?;
            if client.verifier != verifier {
                return Err(Status::NotSame);
            }
            if client.principal != principal {
                return Err(Status::NotPermitted);
            }
            return Ok(self.exchanged(id));
        }
        if let Some((id, client)) = known {
            if client.principal != principal {
                // Case 3: a collision, unless the other client is gone.
                if client.states > 0 && !self.is_expired(id) {
                    return Err(Status::ClientIdInUse);
                }
                self.remove_client(id);
            } else if client.verifier == verifier {
                // Case 2.
                self.forget_pending(true, name);
                return Ok(self.exchanged(id));
            }
        }
        // Cases 1, 4 and 5: CREATE_SESSION replaces an earlier incarnation.
        let id = self.add_client(true, name, verifier, principal, 1)?;
        Ok(self.exchanged(id))
    }

    fn exchanged(&self, id: ClientId) -> ExchangedId {
        let client = self.clients.get(&id);
        ExchangedId {
            client: id,
            sequence: client.map_or(0, |c| c.create_sequence),
            confirmed: client.is_some_and(|c| c.confirmed),
        }
    }

    /// SETCLIENTID (RFC 7530, section 16.33.5): returns the client's number and what confirms it.
    pub(crate) fn set_client_id(
        &mut self,
        name: &[u8],
        verifier: [u8; 8],
        principal: Principal,
    ) -> Result<(ClientId, u64), Status> {
        let confirm = scrambled(self.secret, self.next_number());
        if let Some(id) = self.confirmed(false, name)
            && let Some(client) = self.clients.get(&id)
        {
            if client.principal != principal {
                if client.states > 0 && !self.is_expired(id) {
                    return Err(Status::ClientIdInUse);
                }
                self.remove_client(id);
            } else if client.verifier == verifier {
                self.forget_pending(false, name);
                if let Some(client) = self.clients.get_mut(&id) {
                    client.pending_confirm = Some(confirm);
                }
                return Ok((id, confirm));
            }
        }
        let id = self.add_client(false, name, verifier, principal, 0)?;
        if let Some(client) = self.clients.get_mut(&id) {
            client.confirm = confirm;
        }
        Ok((id, confirm))
    }

    /// SETCLIENTID_CONFIRM (RFC 7530, section 16.34.5).
    pub(crate) fn confirm_client_id(
        &mut self,
        id: ClientId,
        confirm: u64,
        principal: Principal,
    ) -> Result<(), Status> {
        let client = self.clients.get_mut(&id).ok_or(Status::StaleClientId)?;
        if client.has_sessions {
            return Err(Status::StaleClientId);
        }
        if client.principal != principal {
            return Err(Status::ClientIdInUse);
        }
        client.renew();
        if client.pending_confirm == Some(confirm) {
            client.confirm = confirm;
            client.pending_confirm = None;
            return Ok(());
        }
        if client.confirm != confirm {
            return Err(Status::StaleClientId);
        }
        if !client.confirmed {
            self.check_earlier(id)?;
            self.confirm(id);
        }
        Ok(())
    }

    /// Checks that nothing is under way any more that an earlier incarnation of a client was allowed to change: its locks are free once the
    /// client is confirmed.
    ///
    /// # Errors
    /// [`Status::Delay`].
    pub(super) fn check_earlier(&self, id: ClientId) -> Result<(), Status> {
        let name = self
            .clients
            .get(&id)
            .map(|c| (c.has_sessions, c.name.as_slice()));
        let earlier = name.and_then(|(has_sessions, name)| self.confirmed(has_sessions, name));
        let earlier = earlier.filter(|earlier| *earlier != id);
        let client = earlier.and_then(|earlier| self.clients.get(&earlier));
        match client.is_some_and(Client::has_changes_under_way) {
            true => Err(Status::Delay),
            false => Ok(()),
        }
    }

    /// Checks that a client of minor version 0 is known, and renews its lease.
    pub(crate) fn renew(&mut self, id: ClientId) -> Result<(), Status> {
        match self.clients.get_mut(&id) {
            Some(client) if client.confirmed && !client.has_sessions => {
                client.renew();
                Ok(())
            }
            None if self.expired.contains(&id) => Err(Status::Expired),
            _ => Err(Status::StaleClientId),
        }
    }

    /// Renews the lease of a client that showed that it is there.
    pub(super) fn renew_quietly(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.renew();
        }
    }

    /// DESTROY_CLIENTID: a client that has nothing any more.
    pub(crate) fn destroy_client(&mut self, id: ClientId) -> Result<(), Status> {
        let client = self.clients.get(&id).ok_or(Status::StaleClientId)?;
        if !client.has_sessions {
            return Err(Status::StaleClientId);
        }
        if client.sessions > 0 || client.states > 0 {
            return Err(Status::ClientIdBusy);
        }
        self.remove_client(id);
        Ok(())
    }

    /// Makes a client the one of its name; an earlier incarnation of it loses everything.
    pub(super) fn confirm(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.confirmed = true;
        let name = (client.has_sessions, client.name.clone());
        let names = self.names.entry(name).or_default();
        let before = names.confirmed.replace(id);
        if names.pending == Some(id) {
            names.pending = None;
        }
        if let Some(before) = before.filter(|before| *before != id) {
            self.remove_client(before);
        }
    }

    /// Removes a client with all that it has.
    pub(super) fn remove_client(&mut self, id: ClientId) {
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        self.unrecord(&client);
        if !client.has_sessions && client.confirmed {
            self.remember_expired(id);
            let of_client = self.states.iter().filter(|(_, entry)| entry.client == id);
            for key in of_client.map(|(key, _)| *key).collect::<Vec<_>>() {
                self.remember_expired(key);
            }
        }
        self.remove_owners_of(id);
        if client.delegations + client.revoked > 0 {
            self.remove_delegations_of(id);
        }
        self.remove_sessions_of(id);
        let name = (client.has_sessions, client.name);
        if let Some(names) = self.names.get_mut(&name) {
            if names.confirmed == Some(id) {
                names.confirmed = None;
            }
            if names.pending == Some(id) {
                names.pending = None;
            }
            if names.confirmed.is_none() && names.pending.is_none() {
                self.names.remove(&name);
            }
        }
    }

    fn confirmed(&self, has_sessions: bool, name: &[u8]) -> Option<ClientId> {
        self.names.get(&(has_sessions, name.to_vec()))?.confirmed
    }

    fn forget_pending(&mut self, has_sessions: bool, name: &[u8]) {
        let names = self.names.get(&(has_sessions, name.to_vec()));
        if let Some(pending) = names.and_then(|names| names.pending) {
            self.remove_client(pending);
        }
    }

    fn add_client(
        &mut self,
        has_sessions: bool,
        name: &[u8],
        verifier: [u8; 8],
        principal: Principal,
        create_sequence: u32,
    ) -> Result<ClientId, Status> {
        self.forget_pending(has_sessions, name);
        if self.clients.len() >= CLIENTS_MAX {
            // Those whose lease has run out make room.
            let expired = self.clients.keys().find(|id| self.is_expired(**id));
            let expired = *expired.ok_or(exhausted(u32::from(has_sessions)))?;
            self.remove_client(expired);
        }
        let id = (u64::from(self.boot) << 32) | (self.next_number() & 0xffff_ffff);
        let client = Client {
            name: name.to_vec(),
            has_sessions,
            verifier,
            principal,
            confirmed: false,
            renewed_ns: self.now_ns,
            renewed: true,
            create_sequence,
            created: None,
            sessions: 0,
            states: 0,
            delegations: 0,
            revoked: 0,
            requests: VecDeque::new(),
            back_sessions: BTreeSet::new(),
            changes: Arc::default(),
            reclaimed: false,
            recorded: false,
            confirm: 0,
            pending_confirm: None,
        };
        self.clients.insert(id, client);
        let names = self.names.entry((has_sessions, name.to_vec()));
        names.or_default().pending = Some(id);
        Ok(id)
    }
}
