//! Byte-range locks (RFC 7530, section 9.2): lock owners have lock states under the open states of files, and ranges in the files'
//! lock tables. A lock that is held is answered at once: clients ask again.

use super::{
    ClientId, FILE_LOCKS_MAX, OwnerId, StateEntry, StateKey, StateKind, StateTable, exhausted,
};
use crate::handle::FileHandle;
use crate::v4::operation::StateId;
use crate::v4::status::Status;
use engine::{ByteRange, HeldLock, LockMode};

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
        let file = self.files.entry(request.file).or_default();
        if file.locks.len() >= FILE_LOCKS_MAX {
            return Err(exhausted(request.minor).into());
        }
        let key = match known {
            Some(key) => key,
            None => self.add_lock_state(request, open, owner)?,
        };
        let file = self.files.entry(request.file).or_default();
        let locked = file.locks.lock(owner, request.range, request.mode);
        assert!(locked.is_ok(), "a lock that was found free is free");
        Ok(self.changed(key))
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
            let Some(holder) = self.owners.get(&held.owner) else {
                return Err(Status::ServerFault.into());
            };
            let (client, name) = (holder.client, holder.name.clone());
            if !self.is_expired(client) {
                return Err(LockDenied::Held {
                    range: held.range,
                    mode: held.mode,
                    client,
                    owner: name,
                });
            }
            self.remove_client(client);
        }
        Ok(())
    }

    fn conflicting_lock(
        &self,
        file: &FileHandle,
        owner: OwnerId,
        range: ByteRange,
        mode: LockMode,
    ) -> Option<HeldLock<OwnerId>> {
        self.files.get(file)?.locks.conflict(owner, range, mode)
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
        let state = self.files.entry(*file).or_default();
        if state.locks.len() >= FILE_LOCKS_MAX && range.first() > 0 {
            // A range in the middle of another one makes two of it.
            return Err(exhausted(minor));
        }
        state.locks.unlock(owner, range);
        Ok(self.changed(key))
    }
}
