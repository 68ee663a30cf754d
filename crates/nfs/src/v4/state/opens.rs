//! Opens and share reservations (RFC 7530, section 9.9): who has a file open for what, and what others are denied.

use super::{ClientId, OutsideHolder, OwnerId, StateEntry, StateKey, StateKind, StateTable};
use crate::handle::FileHandle;
use crate::v4::operation::StateId;
use crate::v4::status::Status;
use engine::FsHandle;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Clients of NLM that have one file open with a share mode.
const FILE_SHARES_MAX: usize = 1024;

/// Reading and writing, as bits 1 and 2: what an open is for, or denies others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShareMode {
    pub(crate) access: u32,
    pub(crate) deny: u32,
}

impl ShareMode {
    /// Returns whether two opens exclude each other.
    fn conflicts(self, other: Self) -> bool {
        self.access & other.deny != 0 || self.deny & other.access != 0
    }
}

/// What an open state has.
#[derive(Debug, Clone)]
pub(super) struct OpenState {
    pub(super) share: ShareMode,
    /// The accesses and denials it was opened with, as sets of their values: a downgrade leads to one of them.
    accesses: u32,
    denials: u32,
    /// The user that the file was opened as.
    uid: u32,
    /// Lock states under it.
    pub(super) locks: BTreeSet<StateKey>,
    /// Where the file is held, and whether it is by now.
    pub(super) fs: FsHandle,
    pub(super) held: bool,
}

/// An open to be registered.
pub(crate) struct OpenRequest {
    pub(crate) client: ClientId,
    pub(crate) owner: OwnerId,
    pub(crate) file: FileHandle,
    pub(crate) share: ShareMode,
    pub(crate) uid: u32,
    pub(crate) fs: FsHandle,
    pub(crate) minor: u32,
    /// It was open before the server was restarted.
    pub(crate) reclaim: bool,
}

/// What an open led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) state: StateId,
    /// The owner did not have the file open before.
    pub(crate) fresh: bool,
    /// The owner has to be confirmed (minor version 0).
    pub(crate) confirm: bool,
}

impl StateTable {
    /// Opens a file for an owner, or adds to what the owner has it open for.
    pub(crate) fn open(&mut self, request: OpenRequest) -> Result<Opened, Status> {
        let share = request.share;
        self.check_delegations(&request.file, Some(request.client), share)?;
        // RFC 7530, section 9.9: what the owner itself has denied is denied it, too.
        self.check_share(&request.file, share)?;
        let owner = self.owners.get(&request.owner).ok_or(Status::Delay)?;
        // RFC 7530, section 16.18.5: an owner that reclaims was confirmed before.
        let confirm = !owner.confirmed && !request.reclaim;
        let known = owner.states.iter().copied().find(|key| {
            let entry = self.states.get(key);
            entry.is_some_and(|e| e.file == request.file && matches!(e.kind, StateKind::Open(_)))
        });
        let (key, fresh) = match known {
            Some(key) => {
                if let Some(StateKind::Open(open)) = self.states.get_mut(&key).map(|e| &mut e.kind)
                {
                    open.share.access |= share.access;
                    open.share.deny |= share.deny;
                    open.accesses |= 1 << share.access;
                    open.denials |= 1 << share.deny;
                }
                (key, false)
            }
            None => {
                let entry = StateEntry {
                    client: request.client,
                    owner: request.owner,
                    file: request.file,
                    sequence: 0,
                    kind: StateKind::Open(OpenState {
                        share,
                        accesses: 1 << share.access,
                        denials: 1 << share.deny,
                        uid: request.uid,
                        locks: BTreeSet::new(),
                        fs: request.fs,
                        held: false,
                    }),
                };
                let key = self.add_state(entry, request.minor)?;
                self.files
                    .entry(request.file)
                    .or_default()
                    .opens
                    .insert(key);
                (key, true)
            }
        };
        if let Some(owner) = self.owners.get_mut(&request.owner) {
            owner.confirmed |= request.reclaim;
        }
        if request.minor == 0 {
            self.record(request.client);
        }
        Ok(Opened {
            state: self.changed(key),
            fresh,
            confirm,
        })
    }

    /// Notes that the file of an open is held.
    pub(crate) fn note_held(&mut self, opened: &Opened) {
        if let Ok(key) = self.key_of(&opened.state, 0)
            && let Some(StateKind::Open(open)) =
                self.states.get_mut(&key).map(|entry| &mut entry.kind)
        {
            open.held = true;
        }
    }

    /// Takes back an open that led to nothing.
    pub(crate) fn undo_open(&mut self, opened: &Opened) {
        if let Ok(key) = self.key_of(&opened.state, 0)
            && opened.fresh
        {
            self.remove_state(key);
        }
    }

    /// Checks a share mode against all opens of a file. Clients whose lease has run out lose what is in the way.
    pub(crate) fn check_share(
        &mut self,
        file: &FileHandle,
        share: ShareMode,
    ) -> Result<(), Status> {
        while let Some(client) = self.share_conflict(file, share) {
            if !self.is_expired(client) {
                return Err(Status::ShareDenied);
            }
            self.remove_client(client);
        }
        let outside = self.files.get(file).into_iter();
        let mut outside = outside.flat_map(|file| file.outside.values());
        if outside.any(|held| held.conflicts(share)) {
            return Err(Status::ShareDenied);
        }
        Ok(())
    }

    /// Opens a file with a share mode for a client of NLM, or replaces the mode that it has it open with.
    pub(crate) fn share_outside(
        &mut self,
        file: &FileHandle,
        holder: OutsideHolder,
        share: ShareMode,
    ) -> Result<(), Status> {
        self.check_delegations(file, None, share)?;
        let before = self.unshare_outside(file, &holder);
        if let Err(denied) = self.check_share(file, share) {
            if let Some(before) = before {
                let state = self.files.entry(*file).or_default();
                state.outside.insert(holder, before);
            }
            return Err(denied);
        }
        let state = self.files.entry(*file).or_default();
        if state.outside.len() >= FILE_SHARES_MAX {
            return Err(Status::Resource);
        }
        state.outside.insert(holder, share);
        Ok(())
    }

    /// Ends a share mode of a client of NLM; returns it.
    pub(crate) fn unshare_outside(
        &mut self,
        file: &FileHandle,
        holder: &OutsideHolder,
    ) -> Option<ShareMode> {
        let ended = self.files.get_mut(file)?.outside.remove(holder);
        self.forget_file_if_idle(file);
        ended
    }

    /// Ends all share modes of a client of NLM.
    pub(crate) fn unshare_host(&mut self, host: u32) {
        for file in self.files.values_mut() {
            file.outside.retain(|(of, _), _| *of != host);
        }
        self.files.retain(|_, file| !file.is_idle());
    }

    /// Returns a client with an open that a share mode conflicts with; one whose lease has run out only if there is no other.
    fn share_conflict(&self, file: &FileHandle, share: ShareMode) -> Option<ClientId> {
        let conflicts = self.files.get(file)?.opens.iter().filter_map(|key| {
            let entry = self.states.get(key)?;
            let StateKind::Open(open) = &entry.kind else {
                return None;
            };
            open.share.conflicts(share).then_some(entry.client)
        });
        conflicts.min_by_key(|client| self.is_expired(*client))
    }

    /// Checks that a state allows reading (1) or writing (2), and returns the user that the file was opened as,
    /// as far as that is known.
    pub(crate) fn check_access(
        &mut self,
        id: &StateId,
        file: &FileHandle,
        access: u32,
        client: Option<ClientId>,
        minor: u32,
    ) -> Result<Option<u32>, Status> {
        let (key, entry) = self.find(id, client, minor)?;
        if entry.file != *file {
            return Err(Status::BadStateId);
        }
        let (of, confirmed) = (entry.client, self.is_confirmed(entry.owner));
        let open = match entry.kind {
            StateKind::Lock { open } => open,
            StateKind::Delegation(ref held) => {
                let uid = held.user_of(access)?;
                self.renew_quietly(of);
                return Ok(uid);
            }
            _ => key,
        };
        let Some(StateKind::Open(open)) = self.states.get(&open).map(|entry| &entry.kind) else {
            return Err(Status::BadStateId);
        };
        if !confirmed {
            return Err(Status::BadStateId);
        }
        if open.share.access & access != access {
            return Err(Status::OpenMode);
        }
        let uid = open.uid;
        self.renew_quietly(of);
        Ok(Some(uid))
    }

    /// Returns the mark that a change has to keep, until it has ended, which a state id allows: its client keeps its locks until then.
    pub(crate) fn change_by(&self, id: &StateId, minor: u32) -> Option<Arc<()>> {
        let (_, entry) = self.find(id, None, minor).ok()?;
        Some(self.clients.get(&entry.client)?.change())
    }

    fn is_confirmed(&self, owner: OwnerId) -> bool {
        self.owners.get(&owner).is_some_and(|owner| owner.confirmed)
    }

    /// Finds the owner of an open or lock state by its id, closed ones included (minor version 0).
    pub(crate) fn owner_of(&self, id: &StateId) -> Result<OwnerId, Status> {
        let key = self.key_of(id, 0)?;
        let entry = self.states.get(&key).ok_or_else(|| self.lost(key, 0))?;
        Ok(entry.owner)
    }

    /// Finds the client of an open or lock state by its id (minor version 0).
    pub(crate) fn client_of_state(&self, id: &StateId) -> Result<ClientId, Status> {
        Ok(self.find(id, None, 0)?.1.client)
    }

    /// OPEN_CONFIRM.
    pub(crate) fn confirm_open(
        &mut self,
        id: &StateId,
        file: &FileHandle,
    ) -> Result<StateId, Status> {
        let (key, entry) = self.find(id, None, 0)?;
        let owner = entry.owner;
        if entry.file != *file || self.is_confirmed(owner) {
            return Err(Status::BadStateId);
        }
        if let Some(owner) = self.owners.get_mut(&owner) {
            owner.confirmed = true;
        }
        Ok(self.changed(key))
    }

    /// Finds an open state that its owner may change.
    fn open_state(
        &self,
        id: &StateId,
        file: &FileHandle,
        client: Option<ClientId>,
        minor: u32,
    ) -> Result<(StateKey, &OpenState), Status> {
        let (key, entry) = self.find(id, client, minor)?;
        match &entry.kind {
            StateKind::Open(open) if entry.file == *file && self.is_confirmed(entry.owner) => {
                Ok((key, open))
            }
            _ => Err(Status::BadStateId),
        }
    }

    /// OPEN_DOWNGRADE.
    pub(crate) fn downgrade(
        &mut self,
        id: &StateId,
        file: &FileHandle,
        share: ShareMode,
        client: Option<ClientId>,
        minor: u32,
    ) -> Result<StateId, Status> {
        let (key, open) = self.open_state(id, file, client, minor)?;
        let within =
            |set: u32, value: u32| (0..4).filter(move |v| set & (1 << v) != 0 && v & value == *v);
        // RFC 7530, section 16.19.4: the union of opens that the owner made and keeps.
        let union = |set: u32, value: u32| within(set, value).fold(0, |all, v| all | v);
        if union(open.accesses, share.access) != share.access
            || union(open.denials, share.deny) != share.deny
        {
            return Err(Status::Invalid);
        }
        let keep = |set: u32, value: u32| within(set, value).fold(0, |kept, v| kept | (1 << v));
        let (accesses, denials) = (
            keep(open.accesses, share.access),
            keep(open.denials, share.deny),
        );
        if let Some(StateKind::Open(open)) = self.states.get_mut(&key).map(|entry| &mut entry.kind)
        {
            open.share = share;
            open.accesses = accesses;
            open.denials = denials;
        }
        Ok(self.changed(key))
    }

    /// CLOSE: what is locked under the open is unlocked.
    pub(crate) fn close(
        &mut self,
        id: &StateId,
        file: &FileHandle,
        client: Option<ClientId>,
        minor: u32,
    ) -> Result<StateId, Status> {
        let (key, _) = self.open_state(id, file, client, minor)?;
        let entry = self.states.get(&key).cloned().ok_or(Status::BadStateId)?;
        self.remove_state(key);
        if minor > 0 {
            self.remove_owner_if_idle(entry.owner);
            // RFC 8881, section 18.2.4: the state id answered is of no use.
            return Ok(StateId {
                sequence: u32::MAX,
                other: [0; 12],
            });
        }
        // The last CLOSE of an owner may be repeated.
        let closed = |key: &StateKey| {
            let kind = self.states.get(key).map(|entry| &entry.kind);
            matches!(kind, Some(StateKind::Closed))
        };
        let owner = self.owners.get(&entry.owner);
        let before = owner.and_then(|owner| owner.states.iter().copied().find(closed));
        if let Some(before) = before {
            self.remove_state(before);
        }
        let sequence = entry.sequence.wrapping_add(1);
        if let Some(client) = self.clients.get_mut(&entry.client) {
            client.states += 1;
        }
        if let Some(owner) = self.owners.get_mut(&entry.owner) {
            owner.states.insert(key);
        }
        let kind = StateKind::Closed;
        self.states.insert(key, StateEntry { kind, ..entry });
        Ok(self.state_id(key, sequence))
    }

    /// FREE_STATEID (RFC 8881, section 18.38): a lock state without locks, a delegation that was revoked.
    pub(crate) fn free_state(&mut self, id: &StateId, client: ClientId) -> Result<(), Status> {
        let key = self.key_of(id, 1)?;
        let revoked =
            |entry: &StateEntry| entry.client == client && matches!(entry.kind, StateKind::Revoked);
        if self.states.get(&key).is_some_and(revoked) {
            self.remove_state(key);
            return Ok(());
        }
        let (key, entry) = self.find(id, Some(client), 1)?;
        let owner = entry.owner;
        match entry.kind {
            StateKind::Lock { .. } => {
                if self.holds_locks(owner, &entry.file) {
                    return Err(Status::LocksHeld);
                }
                self.remove_state(key);
                self.remove_owner_if_idle(owner);
                Ok(())
            }
            _ => Err(Status::LocksHeld),
        }
    }

    /// TEST_STATEID: whether a state id is good.
    pub(crate) fn test_state(&self, id: &StateId, client: ClientId) -> Status {
        match self.find(id, Some(client), 1) {
            Ok(_) => Status::Ok,
            Err(status) => status,
        }
    }
}
