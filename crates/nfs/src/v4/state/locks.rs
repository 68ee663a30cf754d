//! Byte-range locks (RFC 7530, section 9.2): lock owners have lock states under the open states of files, and ranges in the files'
//! lock tables, which are those of all protocols. A lock that is held is answered at once: clients ask again.

use super::{ClientId, OwnerId, ShareMode, StateEntry, StateKey, StateKind, StateTable, exhausted};
use crate::handle::FileHandle;
use crate::v4::operation::StateId;
use crate::v4::status::Status;
use engine::{ByteRange, HeldLock, LockMode, LockOwner, LockRefusal};

/// Who locks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LockerState {
    /// A lock owner, with the open state that it locks under.
    New { open: StateId, owner: OwnerId },
    /// A lock state.
    Known(StateId),
}

/// A lock to be taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LockRequest {
    pub(crate) client: Option<ClientId>,
    pub(crate) locker: LockerState,
    pub(crate) file: FileHandle,
    pub(crate) range: ByteRange,
    pub(crate) mode: LockMode,
    pub(crate) minor: u32,
}

/// Why there is no lock: a status, or the lock in its way with its owner's client and name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LockDenied {
    Status(Status),
    Held {
        range: ByteRange,
        mode: LockMode,
        client: ClientId,
        owner: Vec<u8>,
    },
}

impl From<Status> for LockDenied {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl StateTable {
    /// Checks that no client but `client` locks a file in its own cache.
    ///
    /// # Errors
    /// [`Status::Delay`]: the client asks again.
    pub(crate) fn check_locked_elsewhere(
        &mut self,
        file: &FileHandle,
        client: Option<ClientId>,
    ) -> Result<(), Status> {
        let share = ShareMode { access: 1, deny: 0 };
        self.check_delegations(file, client, share)
    }

    /// LOCK.
    pub(crate) fn lock(&mut self, request: &LockRequest) -> Result<StateId, LockDenied> {
        let (open, owner, known) = self.locker(request)?;
        let access = match self.states.get(&open).map(|entry| &entry.kind) {
            Some(StateKind::Open(open)) => open.share.access,
            _ => return Err(Status::BadStateId.into()),
        };
        let needed = match request.mode {
            LockMode::Shared => 1,
            LockMode::Exclusive => 2,
        };
        if access & needed == 0 {
            return Err(Status::OpenMode.into());
        }
        self.check_lock(&request.file, owner, request.range, request.mode)?;
        let key = match known {
            Some(key) => key,
            None => self.add_lock_state(request, open, owner)?,
        };
        let (file, by) = (request.file.locked(), LockOwner::Nfs4(owner));
        match self.locks.lock(file, by, request.range, request.mode) {
            Ok(()) => Ok(self.changed(key)),
            Err(refusal) => {
                // Another protocol was faster, or there is no room.
                if known.is_none() {
                    self.remove_state(key);
                }
                Err(match refusal {
                    LockRefusal::Held(held) => self.held_by(&held),
                    _ => exhausted(request.minor).into(),
                })
            }
        }
    }

    /// Returns the open state, the lock owner and its lock state, if it has one, of a request.
    fn locker(
        &self,
        request: &LockRequest,
    ) -> Result<(StateKey, OwnerId, Option<StateKey>), Status> {
        match request.locker {
            LockerState::New { open, owner } => {
                let (key, entry) = self.find(&open, request.client, request.minor)?;
                let is_open = matches!(entry.kind, StateKind::Open(_));
                let confirmed = self.owners.get(&entry.owner).is_some_and(|o| o.confirmed);
                if !is_open || entry.file != request.file || !confirmed {
                    return Err(Status::BadStateId);
                }
                let states = self.owners.get(&owner).map(|owner| &owner.states);
                let known = states.into_iter().flatten().copied().find(|key| {
                    let entry = self.states.get(key);
                    entry.is_some_and(|entry| {
                        entry.file == request.file && matches!(entry.kind, StateKind::Lock { .. })
                    })
                });
                Ok((key, owner, known))
            }
            LockerState::Known(lock) => {
                let (key, entry) = self.find(&lock, request.client, request.minor)?;
                match entry.kind {
                    StateKind::Lock { open } if entry.file == request.file => {
                        Ok((open, entry.owner, Some(key)))
                    }
                    _ => Err(Status::BadStateId),
                }
            }
        }
    }

    fn add_lock_state(
        &mut self,
        request: &LockRequest,
        open: StateKey,
        owner: OwnerId,
    ) -> Result<StateKey, Status> {
        let client = self.states.get(&open).map(|entry| entry.client);
        let entry = StateEntry {
            client: client.ok_or(Status::BadStateId)?,
            owner,
            file: request.file,
            sequence: 0,
            kind: StateKind::Lock { open },
        };
        let key = self.add_state(entry, request.minor)?;
        if let Some(StateKind::Open(open)) = self.states.get_mut(&open).map(|entry| &mut entry.kind)
        {
            open.locks.insert(key);
        }
        Ok(key)
    }

    /// LOCKT: whether a lock would be given. `owner` is the lock owner, if it is known.
    pub(crate) fn test_lock(
        &mut self,
        file: &FileHandle,
        owner: Option<OwnerId>,
        range: ByteRange,
        mode: LockMode,
    ) -> Result<(), LockDenied> {
        // No owner has the number 0.
        self.check_lock(file, owner.unwrap_or(0), range, mode)
    }

    /// Checks a lock against those of other owners. Clients whose lease has run out lose what is in the way.
    fn check_lock(
        &mut self,
        file: &FileHandle,
        owner: OwnerId,
        range: ByteRange,
        mode: LockMode,
    ) -> Result<(), LockDenied> {
        while let Some(held) = self.conflicting_lock(file, owner, range, mode) {
            match self.holder(&held) {
                Some(client) if self.is_expired(client) => self.remove_client(client),
                _ => return Err(self.held_by(&held)),
            }
        }
        Ok(())
    }

    /// Returns the client of NFSv4 that holds a lock.
    fn holder(&self, held: &HeldLock<LockOwner>) -> Option<ClientId> {
        match held.owner {
            LockOwner::Nfs4(owner) => Some(self.owners.get(&owner)?.client),
            _ => None,
        }
    }

    /// What is answered where a lock is in the way. Holders by other protocols have no client number, and a name of ours.
    fn held_by(&self, held: &HeldLock<LockOwner>) -> LockDenied {
        let (client, owner) = match held.owner {
            LockOwner::Nfs4(owner) => match self.owners.get(&owner) {
                Some(holder) => (holder.client, holder.name.clone()),
                None => return Status::ServerFault.into(),
            },
            LockOwner::Nlm { .. } => (0, b"nlm".to_vec()),
            LockOwner::Mount { .. } => (0, b"local".to_vec()),
        };
        LockDenied::Held {
            range: held.range,
            mode: held.mode,
            client,
            owner,
        }
    }

    /// Returns whether a lock owner holds locks in a file.
    pub(super) fn holds_locks(&self, owner: OwnerId, file: &FileHandle) -> bool {
        self.locks.is_held_by(file.locked(), LockOwner::Nfs4(owner))
    }

    /// Ends clients whose lease has run out, and whose locks are in the way of other protocols.
    pub(super) fn end_contested(&mut self) {
        self.contested.extend(self.locks.take_contested());
        let contested = std::mem::take(&mut self.contested);
        for owner in contested {
            let Some(holder) = self.owners.get(&owner) else {
                continue;
            };
            let mut files = holder
                .states
                .iter()
                .filter_map(|key| self.states.get(key).map(|entry| entry.file));
            if !files.any(|file| self.holds_locks(owner, &file)) {
                continue;
            }
            if self.is_expired(holder.client) {
                self.remove_client(holder.client);
            } else {
                // It may yet go silent, and who waits for its lock does not ask again.
                self.contested.insert(owner);
            }
        }
    }

    fn conflicting_lock(
        &self,
        file: &FileHandle,
        owner: OwnerId,
        range: ByteRange,
        mode: LockMode,
    ) -> Option<HeldLock<LockOwner>> {
        let owner = LockOwner::Nfs4(owner);
        self.locks.conflict(file.locked(), owner, range, mode)
    }

    /// LOCKU.
    pub(crate) fn unlock(
        &mut self,
        id: &StateId,
        file: &FileHandle,
        range: ByteRange,
        client: Option<ClientId>,
        minor: u32,
    ) -> Result<StateId, Status> {
        let (key, entry) = self.find(id, client, minor)?;
        if !matches!(entry.kind, StateKind::Lock { .. }) || entry.file != *file {
            return Err(Status::BadStateId);
        }
        let owner = entry.owner;
        let unlocked = self
            .locks
            .unlock(file.locked(), LockOwner::Nfs4(owner), range);
        unlocked.map_err(|_| exhausted(minor))?;
        Ok(self.changed(key))
    }
}
