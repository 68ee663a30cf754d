//! Delegations (RFC 8881, section 10.4): a client opens and reads a file without asking, or opens, reads, writes and locks it, until it
//! is called to give it back.
//!
//! What this table knows of a delegation decides what NFSv4's clients may open; changes of the file, by whichever protocol, and reads of
//! what a client writes, wait for `zpl`'s table, which has it recalled here. A delegation that was recalled and is not given back
//! within a lease is revoked, at once if its client's lease has run out.
//! What a file is like that a client writes, others are told by way of that client (section 10.4.3).

use super::back_channel::WriterAttributes;
use super::clients::{Client, ClientRequest};
use super::{ClientId, FileState, ShareMode, StateEntry, StateKey, StateKind, StateTable, TOLD_NS};
use crate::handle::FileHandle;
use crate::v4::operation::StateId;
use crate::v4::status::Status;
use engine::{LockedFile, Recalled, Reply, ReplySender};
use std::sync::Arc;

/// Delegations of one client, and of all.
const CLIENT_DELEGATIONS_MAX: usize = 4096;
const DELEGATIONS_MAX: usize = 1 << 16;
/// A file that was recalled is not delegated for so long: 30 s.
const PAUSE_NS: u64 = 30_000_000_000;
/// Files of which that is remembered.
const PAUSES_MAX: usize = 4096;
/// How long a client may take to tell the attributes of a file that it writes, before it is to give it back: 2 s. Time is told about
/// once a second, so who waits is answered within 4 s.
const ATTRIBUTES_NS: u64 = 2_000_000_000;
/// Requests that wait for one file.
const WAITING_MAX: usize = 64;
/// How long a request waits for a file that is being given back, before its client is told to ask again: 2 s, as time is told.
const GIVE_BACK_NS: u64 = 2_000_000_000;
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

/// What a client may do in its own cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DelegationType {
    Read,
    Write,
}

/// What a delegation has.
#[derive(Debug, Clone)]
pub(super) struct DelegationState {
    delegation_type: DelegationType,
    /// The user and the access of the open that it was given with.
    opened: (u32, u32),
    /// `change` as it was given.
    change: u64,
    /// Ends it in the table of all protocols.
    give_back: GiveBack,
    /// Since when the client is called to give it back.
    recalled_ns: Option<u64>,
    /// The call for that was sent.
    called: bool,
    /// The client was told that it has it.
    given: bool,
}

/// A delegation that is to be given.
pub(crate) struct DelegationRequest {
    pub(crate) client: ClientId,
    pub(crate) file: FileHandle,
    pub(crate) delegation_type: DelegationType,
    /// The user that opens the file, and what for: reading (1) and writing (2).
    pub(crate) opened: (u32, u32),
    pub(crate) give_back: GiveBack,
    pub(crate) minor: u32,
}

/// A delegation that was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BegunDelegation {
    pub(crate) key: StateKey,
    /// How often the client has the file open, and holds it therefore.
    pub(crate) own_holds: u64,
}

/// Those who wait for what a client tells of a file.
pub(super) struct AttributeQuery {
    since_ns: u64,
    asking: Vec<ReplySender<Option<WriterAttributes>>>,
}

impl std::fmt::Debug for AttributeQuery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} since {} ns", self.asking.len(), self.since_ns)
    }
}

/// Those who wait for a file that is being given back.
pub(super) struct GiveBackWaits {
    since_ns: u64,
    waiting: Vec<ReplySender<()>>,
}

impl std::fmt::Debug for GiveBackWaits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} since {} ns", self.waiting.len(), self.since_ns)
    }
}

/// What becomes of a question for the attributes of a file that a client writes.
pub(crate) enum AskedAttributes {
    /// The client is asked. `None` is answered, or nothing, if it does not tell: the file is being given back then.
    Asked {
        /// What `change` was as the file was delegated.
        change: u64,
        answer: Reply<Option<WriterAttributes>>,
    },
    /// The file is not delegated any more, or not yet.
    NotDelegated,
    /// It is being given back: the caller asks again.
    Later,
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
    /// Whether an open is in the way of a delegation of another client: one to read lets it open the file to read and to write nothing.
    fn ends(self, delegation_type: DelegationType) -> bool {
        self.access & WRITE != 0
            || self.deny & READ != 0
            || delegation_type == DelegationType::Write
    }
}

impl DelegationState {
    /// Returns the user that has the file open by the delegation for an access, reading (1) or writing (2), as far as that is known.
    ///
    /// # Errors
    /// [`Status::OpenMode`].
    pub(super) fn user_of(&self, access: u32) -> Result<Option<u32>, Status> {
        let (uid, opened) = self.opened;
        match self.delegation_type {
            DelegationType::Read if access & WRITE != 0 => Err(Status::OpenMode),
            // Who opened it is not known here: the caller's permission is checked.
            DelegationType::Read => Ok(None),
            DelegationType::Write => Ok((opened & access == access).then_some(uid)),
        }
    }
}

impl StateTable {
    /// Begins to delegate a file that a client has opened: opens of others have it recalled from now on. `None` where it cannot be:
    /// the client cannot be called, others have the file open (to write, if it is to be read), it was recalled lately, there are too
    /// many.
    pub(crate) fn begin_delegation(
        &mut self,
        request: DelegationRequest,
    ) -> Option<BegunDelegation> {
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
        let file = self.files.get(&request.file);
        let own_holds = match file {
            Some(file) if self.forbids_delegation(file, &request) => return None,
            Some(file) => file.opens.len() as u64,
            None => 0,
        };
        let entry = StateEntry {
            client: request.client,
            owner: 0,
            file: request.file,
            sequence: 0,
            kind: StateKind::Delegation(DelegationState {
                delegation_type: request.delegation_type,
                opened: request.opened,
                change: 0,
                give_back: request.give_back,
                recalled_ns: None,
                called: false,
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
        self.record_delegated(request.file.dataset);
        if let Some(client) = self.clients.get_mut(&request.client) {
            client.delegations += 1;
        }
        Some(BegunDelegation { key, own_holds })
    }

    /// Whether a file is open in a way that a delegation forbids, or delegated already.
    fn forbids_delegation(&self, file: &FileState, request: &DelegationRequest) -> bool {
        let writes = request.delegation_type == DelegationType::Write;
        let changes = |share: &ShareMode| share.access & WRITE != 0 || share.deny & READ != 0;
        let in_the_way = |entry: &StateEntry| match &entry.kind {
            // One that is not held yet would be taken for another's.
            StateKind::Open(open) if writes => entry.client != request.client || !open.held,
            StateKind::Open(open) => changes(&open.share),
            StateKind::Delegation(held) => {
                let alone = writes || held.delegation_type == DelegationType::Write;
                alone || entry.client == request.client || held.recalled_ns.is_some()
            }
            _ => false,
        };
        let mut states = file.opens.iter().chain(&file.delegations);
        states.any(|key| self.states.get(key).is_some_and(in_the_way))
            || file.outside.values().any(|share| writes || changes(share))
    }

    /// Ends what [`Self::begin_delegation`] began: returns the delegation's state id, or `None` if another client came in between.
    /// `change` is that of the file as it was delegated, `None` where it was not.
    pub(crate) fn end_delegation(&mut self, key: StateKey, change: Option<u64>) -> Option<StateId> {
        let entry = self.states.get(&key)?;
        let file = entry.file.locked();
        let free = match &entry.kind {
            StateKind::Delegation(held) if held.recalled_ns.is_some() => false,
            StateKind::Delegation(held) => match held.delegation_type {
                DelegationType::Read => !self.locks.denies_readers(file),
                DelegationType::Write => !self.locks.is_locked_outside_nfs4(file),
            },
            _ => false,
        };
        let Some(change) = change.filter(|_| free) else {
            self.remove_state(key);
            return None;
        };
        if let Some(StateKind::Delegation(held)) =
            self.states.get_mut(&key).map(|entry| &mut entry.kind)
        {
            held.given = true;
            held.change = change;
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
        if self.delegations.held == 0 {
            return Ok(());
        }
        let ends = |of: ClientId, held: &DelegationState| {
            Some(of) != client && share.ends(held.delegation_type)
        };
        for key in self.delegations_of(file, ends) {
            self.recall(key);
        }
        // Those of clients that are gone are revoked by now.
        match self.delegations_of(file, ends).is_empty() {
            true => Ok(()),
            false => Err(Status::Delay),
        }
    }

    /// Begins to ask a client for the attributes of a file that it has delegated to write.
    pub(crate) fn ask_attributes(
        &mut self,
        file: &FileHandle,
        client: ClientId,
    ) -> AskedAttributes {
        let given = |of: ClientId, held: &DelegationState| {
            of == client && held.given && held.delegation_type == DelegationType::Write
        };
        let Some(key) = self.delegations_of(file, given).first().copied() else {
            return AskedAttributes::NotDelegated;
        };
        let held = match self.states.get(&key).map(|entry| &entry.kind) {
            Some(StateKind::Delegation(held)) if held.recalled_ns.is_none() => held,
            _ => return AskedAttributes::Later,
        };
        let change = held.change;
        if self.is_expired(client) || !self.can_be_called(client) {
            self.recall(key);
            return AskedAttributes::Later;
        }
        let since_ns = self.now_ns;
        let fresh = !self.asked.contains_key(&key);
        let query = self.asked.entry(key).or_insert_with(|| AttributeQuery {
            since_ns,
            asking: Vec::new(),
        });
        if query.asking.len() >= WAITING_MAX {
            return AskedAttributes::Later;
        }
        let (sender, answer) = engine::reply();
        query.asking.push(sender);
        if let (true, Some(client)) = (fresh, self.clients.get_mut(&client)) {
            let request = ClientRequest::Attributes(key);
            client.requests.push_back(request);
        }
        self.call_back(client);
        AskedAttributes::Asked { change, answer }
    }

    /// Answers those who wait for the attributes of a file. What its client does not tell (`None`) it is to give back.
    pub(super) fn attributes_told(&mut self, key: StateKey, told: Option<WriterAttributes>) {
        let Some(query) = self.asked.remove(&key) else {
            return;
        };
        if told.is_none() {
            self.recall(key);
        }
        for sender in query.asking {
            sender.send(told);
        }
    }

    /// Begins to wait until a file that is being given back is. `None` if it is not being given back, or too many wait; the wait ends
    /// without an answer if it takes too long.
    pub(crate) fn wait_given_back(&mut self, file: &FileHandle) -> Option<Reply<()>> {
        let recalled = |_, held: &DelegationState| held.recalled_ns.is_some();
        if self.delegations_of(file, recalled).is_empty() {
            return None;
        }
        let since_ns = self.now_ns;
        let waits = self.given_back.entry(*file).or_insert(GiveBackWaits {
            since_ns,
            waiting: Vec::new(),
        });
        if waits.waiting.len() >= WAITING_MAX {
            return None;
        }
        let (sender, wait) = engine::reply();
        waits.waiting.push(sender);
        Some(wait)
    }

    fn delegations_of(
        &self,
        file: &FileHandle,
        of: impl Fn(ClientId, &DelegationState) -> bool,
    ) -> Vec<StateKey> {
        let wanted = |entry: &StateEntry| match &entry.kind {
            StateKind::Delegation(held) => of(entry.client, held),
            _ => false,
        };
        let held = self
            .files
            .get(file)
            .into_iter()
            .flat_map(|file| &file.delegations);
        held.copied()
            .filter(|key| self.states.get(key).is_some_and(wanted))
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
        for key in self.delegations_of(&file, |of, _| of == client) {
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
                client.requests.push_back(ClientRequest::Recall(key));
            }
        }
        if self.is_expired(client) {
            self.revoke(key);
        } else {
            self.call_back(client);
        }
    }

    /// Notes that a client is called. It has a lease's time to give a file back from the first call for it on: calls for others may have been
    /// before it.
    pub(super) fn note_called(&mut self, request: ClientRequest) {
        let ClientRequest::Recall(key) = request else {
            return;
        };
        if let Some(StateKind::Delegation(held)) =
            self.states.get_mut(&key).map(|entry| &mut entry.kind)
            && !std::mem::replace(&mut held.called, true)
        {
            self.recalled.insert(key, self.now_ns);
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
        let id = entry.client;
        self.remove_state(key);
        self.delegations.revoked += 1;
        if let (true, Some(client)) = (given, self.clients.get_mut(&id)) {
            client.revoked += 1;
            self.states.insert(key, entry);
            self.record_revoked(id);
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
        // Who waits for its attributes asks again.
        self.asked.remove(&key);
        self.delegations.held = self.delegations.held.saturating_sub(1);
        self.note_undelegated(entry.file.dataset);
        if let Some(client) = self.clients.get_mut(&entry.client) {
            client.delegations = client.delegations.saturating_sub(1);
        }
        if let Some(file) = self.files.get_mut(&entry.file) {
            file.delegations.remove(&key);
        }
        (held.give_back.0)();
        let waits = self.given_back.remove(&entry.file);
        for sender in waits.into_iter().flat_map(|waits| waits.waiting) {
            sender.send(());
        }
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

    /// Returns whether a client has a file delegated.
    pub(super) fn has_delegated(&self, file: &FileHandle, client: ClientId) -> bool {
        let given = |of: ClientId, held: &DelegationState| of == client && held.given;
        !self.delegations_of(file, given).is_empty()
    }

    /// Returns whether a client may have a file open in a way by what it has delegated by a state id.
    pub(crate) fn is_delegated(
        &self,
        id: &StateId,
        client: ClientId,
        share: ShareMode,
    ) -> Result<bool, Status> {
        let (_, entry) = self.find(id, Some(client), 1)?;
        match &entry.kind {
            StateKind::Delegation(held) => Ok(match held.delegation_type {
                DelegationType::Read => share.access == READ && share.deny == 0,
                DelegationType::Write => true,
            }),
            _ => Err(Status::BadStateId),
        }
    }

    /// Revokes what its client was called for a lease ago, or could not be called for in a lease's time, and recalls what its client says nothing of.
    pub(super) fn advance_recalls(&mut self) {
        let (now_ns, lease_ns) = (self.now_ns, self.lease_ns);
        self.pauses
            .retain(|_, since| now_ns.saturating_sub(*since) < PAUSE_NS);
        let due = self
            .recalled
            .iter()
            .filter(|(_, since)| now_ns.saturating_sub(**since) > lease_ns + TOLD_NS);
        for key in due.map(|(key, _)| *key).collect::<Vec<_>>() {
            // What it was allowed to change is changed before others may.
            let client = self.states.get(&key).map(|entry| entry.client);
            let client = client.and_then(|client| self.clients.get(&client));
            if !client.is_some_and(Client::has_changes_under_way) {
                self.revoke(key);
            }
        }
        self.given_back
            .retain(|_, waits| now_ns.saturating_sub(waits.since_ns) <= GIVE_BACK_NS);
        let silent = self
            .asked
            .iter()
            .filter(|(_, query)| now_ns.saturating_sub(query.since_ns) > ATTRIBUTES_NS);
        for key in silent.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.attributes_told(key, None);
        }
    }

    /// Returns the clients that are to give something back, or to tell something.
    pub(super) fn clients_to_call(&self) -> Vec<ClientId> {
        let keys = self.recalled.keys().chain(self.asked.keys());
        let entries = keys.filter_map(|key| self.states.get(key));
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
