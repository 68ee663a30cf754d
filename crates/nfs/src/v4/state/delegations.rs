//! Read delegations (RFC 8881, section 10.4): a client opens and reads a file without asking, until it is called to give it back.
//!
//! What this table knows of a delegation decides what NFSv4's clients may open; changes of the file, by whichever protocol, wait for
//! `zpl`'s table, which has it recalled here. A delegation that was recalled and is not given back within a lease is revoked,
//! at once if its client's lease has run out.

use super::{ClientId, FileState, ShareMode, StateEntry, StateKey, StateKind, StateTable};
use crate::handle::FileHandle;
use crate::v4::operation::StateId;
use crate::v4::status::Status;
use engine::{LockedFile, Recalled};
use std::sync::Arc;

/// Delegations of one client, and of all.
const CLIENT_DELEGATIONS_MAX: usize = 4096;
const DELEGATIONS_MAX: usize = 1 << 16;
/// A file that was recalled is not delegated for so long: 30 s.
const PAUSE_NS: u64 = 30_000_000_000;
/// Files of which that is remembered.
const PAUSES_MAX: usize = 4096;
const READ: u32 = 1;
const WRITE: u32 = 2;

/// Ends a delegation in the table of all protocols.
#[derive(Clone)]
pub(crate) struct GiveBack(pub(crate) Arc<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for GiveBack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GiveBack").finish_non_exhaustive()
    }
}

/// What a delegation has.
#[derive(Debug, Clone)]
pub(super) struct DelegationState {
    /// Ends it in the table of all protocols.
    give_back: GiveBack,
    /// Since when the client is called to give it back.
    recalled_ns: Option<u64>,
    /// The client was told that it has it.
    given: bool,
}

/// A delegation that is to be given.
pub(crate) struct DelegationRequest {
    pub(crate) client: ClientId,
    pub(crate) file: FileHandle,
    pub(crate) give_back: GiveBack,
    pub(crate) minor: u32,
}

/// How many delegations there are, and what became of those that were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DelegationCounts {
    /// Given to clients now.
    pub held: u64,
    /// Given since the start.
    pub given: u64,
    /// Recalled since the start.
    pub recalled: u64,
    /// Of those, revoked since the client did not give them back.
    pub revoked: u64,
}

impl ShareMode {
    /// Whether an open is in the way of a read delegation of another client.
    fn ends_delegations(self) -> bool {
        self.access & WRITE != 0 || self.deny != 0
    }
}

impl StateTable {
    /// Begins to delegate a file that a client has opened to read: opens of others have it recalled from now on. `None` where it
    /// cannot be: the client cannot be called, others have the file open to write, it was recalled lately, there are too many.
    pub(crate) fn begin_delegation(&mut self, request: DelegationRequest) -> Option<StateKey> {
        let client = self.clients.get(&request.client)?;
        if request.file.snapshot.is_some()
            // Those that were revoked are kept until the client frees them.
            || client.delegations + client.revoked >= CLIENT_DELEGATIONS_MAX
            || self.delegations.held >= DELEGATIONS_MAX as u64
            || self.pauses.contains_key(&request.file)
            || !self.can_be_called(request.client)
        {
            return None;
        }
        if self
            .files
            .get(&request.file)
            .is_some_and(|file| self.forbids_delegation(file, request.client))
        {
            return None;
        }
        let entry = StateEntry {
            client: request.client,
            owner: 0,
            file: request.file,
            sequence: 0,
            kind: StateKind::Delegation(DelegationState {
                give_back: request.give_back,
                recalled_ns: None,
                given: false,
            }),
        };
        let key = self.add_state(entry, request.minor).ok()?;
        self.files
            .entry(request.file)
            .or_default()
            .delegations
            .insert(key);
        self.delegations.held += 1;
        if let Some(client) = self.clients.get_mut(&request.client) {
            client.delegations += 1;
        }
        Some(key)
    }

    /// Whether a file is open to write, or delegated to the client or being given back by another one.
    fn forbids_delegation(&self, file: &FileState, client: ClientId) -> bool {
        let writes = |share: &ShareMode| share.access & WRITE != 0 || share.deny & READ != 0;
        let open =
            file.opens
                .iter()
                .any(|key| match self.states.get(key).map(|entry| &entry.kind) {
                    Some(StateKind::Open(open)) => writes(&open.share),
                    _ => false,
                });
        let held = |entry: &StateEntry| match &entry.kind {
            StateKind::Delegation(held) => entry.client == client || held.recalled_ns.is_some(),
            _ => false,
        };
        let delegated = file
            .delegations
            .iter()
            .any(|key| self.states.get(key).is_some_and(held));
        open || delegated || file.outside.values().any(writes)
    }

    /// Ends what [`Self::begin_delegation`] began: returns the delegation's state id, or `None` if another client came in between.
    pub(crate) fn end_delegation(&mut self, key: StateKey, delegated: bool) -> Option<StateId> {
        let locked = |table: &Self, file: &FileHandle| table.locks.denies_readers(file.locked());
        let entry = self.states.get(&key)?;
        let free = match &entry.kind {
            StateKind::Delegation(held) => held.recalled_ns.is_none() && !locked(self, &entry.file),
            _ => false,
        };
        if !delegated || !free {
            self.remove_state(key);
            return None;
        }
        if let Some(StateKind::Delegation(held)) =
            self.states.get_mut(&key).map(|entry| &mut entry.kind)
        {
            held.given = true;
        }
        self.delegations.given += 1;
        Some(self.changed(key))
    }

    /// Has the delegations of others recalled that an open is in the way of.
    ///
    /// # Errors
    /// [`Status::Delay`]: the client asks again.
    pub(super) fn check_delegations(
        &mut self,
        file: &FileHandle,
        client: Option<ClientId>,
        share: ShareMode,
    ) -> Result<(), Status> {
        if !share.ends_delegations() || self.delegations.held == 0 {
            return Ok(());
        }
        let held = self.delegations_of(file, |of| Some(of) != client);
        for key in &held {
            self.recall(*key);
        }
        // Those of clients that are gone are revoked by now.
        match self
            .delegations_of(file, |of| Some(of) != client)
            .is_empty()
        {
            true => Ok(()),
            false => Err(Status::Delay),
        }
    }

    fn delegations_of(&self, file: &FileHandle, of: impl Fn(ClientId) -> bool) -> Vec<StateKey> {
        let held = self
            .files
            .get(file)
            .into_iter()
            .flat_map(|file| &file.delegations);
        held.copied()
            .filter(|key| self.states.get(key).is_some_and(|entry| of(entry.client)))
            .collect()
    }

    /// Has a file recalled from one client, as the table of all protocols asks for.
    pub(crate) fn recall_file(&mut self, locked: LockedFile, client: ClientId, why: Recalled) {
        let file = FileHandle {
            dataset: locked.fs,
            identity: locked.fs,
            snapshot: None,
            file: locked.file,
        };
        for key in self.delegations_of(&file, |of| of == client) {
            match why {
                Recalled::ForChange => self.recall(key),
                Recalled::Replaced => self.revoke(key),
            }
        }
    }

    fn recall(&mut self, key: StateKey) {
        let now_ns = self.now_ns;
        let Some(entry) = self.states.get_mut(&key) else {
            return;
        };
        let (client, file) = (entry.client, entry.file);
        let StateKind::Delegation(held) = &mut entry.kind else {
            return;
        };
        if held.recalled_ns.is_none() {
            held.recalled_ns = Some(now_ns);
            self.delegations.recalled += 1;
            self.recalled.insert(key, now_ns);
            if self.pauses.len() < PAUSES_MAX {
                self.pauses.insert(file, now_ns);
            }
            if let Some(client) = self.clients.get_mut(&client) {
                client.recalls.push_back(key);
            }
        }
        if self.is_expired(client) {
            self.revoke(key);
        } else {
            self.call_back(client);
        }
    }

    /// Takes a delegation from its client, which is told so by SEQUENCE until it frees the state id.
    fn revoke(&mut self, key: StateKey) {
        let Some(entry) = self.states.get(&key) else {
            return;
        };
        let given = matches!(&entry.kind, StateKind::Delegation(held) if held.given);
        let entry = StateEntry {
            kind: StateKind::Revoked,
            ..entry.clone()
        };
        let client = entry.client;
        self.remove_state(key);
        self.delegations.revoked += 1;
        if let (true, Some(client)) = (given, self.clients.get_mut(&client)) {
            client.revoked += 1;
            self.states.insert(key, entry);
        }
    }

    /// Revokes the delegations of files whose dataset is not shared.
    pub(crate) fn revoke_unshared(&mut self, is_shared: impl Fn(u64) -> bool) {
        if self.delegations.held == 0 {
            return;
        }
        let unshared = self.states.iter().filter(|(_, entry)| {
            matches!(entry.kind, StateKind::Delegation(_)) && !is_shared(entry.file.dataset)
        });
        for key in unshared.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.revoke(key);
        }
    }

    /// Ends what a delegation that was removed had.
    pub(super) fn delegation_ended(
        &mut self,
        key: StateKey,
        entry: &StateEntry,
        held: &DelegationState,
    ) {
        self.recalled.remove(&key);
        self.delegations.held = self.delegations.held.saturating_sub(1);
        if let Some(client) = self.clients.get_mut(&entry.client) {
            client.delegations = client.delegations.saturating_sub(1);
        }
        if let Some(file) = self.files.get_mut(&entry.file) {
            file.delegations.remove(&key);
        }
        (held.give_back.0)();
    }

    pub(super) fn remove_delegations_of(&mut self, client: ClientId) {
        let of_client = self
            .states
            .iter()
            .filter(|(_, entry)| entry.client == client && entry.owner == 0);
        for key in of_client.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.remove_state(key);
        }
    }

    /// DELEGRETURN.
    pub(crate) fn return_delegation(
        &mut self,
        id: &StateId,
        file: &FileHandle,
        client: Option<ClientId>,
        minor: u32,
    ) -> Result<(), Status> {
        let (key, entry) = self.find(id, client, minor)?;
        if entry.file != *file || !matches!(entry.kind, StateKind::Delegation(_)) {
            return Err(Status::BadStateId);
        }
        self.remove_state(key);
        Ok(())
    }

    /// Returns the file that a client has delegated by a state id.
    pub(crate) fn delegated_file(
        &self,
        id: &StateId,
        client: ClientId,
    ) -> Result<FileHandle, Status> {
        let (_, entry) = self.find(id, Some(client), 1)?;
        match entry.kind {
            StateKind::Delegation(_) => Ok(entry.file),
            _ => Err(Status::BadStateId),
        }
    }

    /// Revokes what was recalled a lease ago.
    pub(super) fn advance_recalls(&mut self) {
        let (now_ns, lease_ns) = (self.now_ns, self.lease_ns);
        self.pauses
            .retain(|_, since| now_ns.saturating_sub(*since) < PAUSE_NS);
        let due = self
            .recalled
            .iter()
            .filter(|(_, since)| now_ns.saturating_sub(**since) > lease_ns);
        for key in due.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.revoke(key);
        }
    }

    /// Returns the clients that are to give something back.
    pub(super) fn recalled_clients(&self) -> Vec<ClientId> {
        let entries = self.recalled.keys().filter_map(|key| self.states.get(key));
        let mut clients: Vec<ClientId> = entries.map(|entry| entry.client).collect();
        clients.dedup();
        clients
    }

    /// Returns the counts of delegations.
    pub(crate) fn delegation_counts(&self) -> DelegationCounts {
        self.delegations
    }

    /// The flags that SEQUENCE answers a client with (RFC 8881, section 18.46.3).
    pub(super) fn sequence_flags(&self, id: ClientId) -> u32 {
        const CALLBACK_PATH_DOWN: u32 = 0x1;
        const RECALLABLE_STATE_REVOKED: u32 = 0x40;
        let Some(client) = self.clients.get(&id) else {
            return 0;
        };
        let mut flags = 0;
        if client.revoked > 0 {
            flags |= RECALLABLE_STATE_REVOKED;
        }
        if client.delegations > 0 && !self.can_be_called(id) {
            flags |= CALLBACK_PATH_DOWN;
        }
        flags
    }
}

#[cfg(test)]
mod tests;
