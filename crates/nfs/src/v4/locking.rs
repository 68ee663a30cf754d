//! LOCK, LOCKT and LOCKU (RFC 7530, sections 16.10 to 16.12). A lock that is held is answered at once; clients ask again.

use super::compound::{Compound, Done, Failure};
use super::operation::{Lock, Locker, RawOwner, StateId};
use super::state::{ClientId, LockDenied, LockRequest, LockerState, OwnerKind};
use super::status::Status;
use crate::xdr::Writer;
use engine::{ByteRange, LockMode};

/// Returns the range of a lock (RFC 7530, section 16.10.4): all ones as length is "to the end".
fn range(offset: u64, length: u64) -> Result<ByteRange, Status> {
    let last = match length {
        0 => return Err(Status::Invalid),
        u64::MAX => u64::MAX,
        _ => offset.checked_add(length - 1).ok_or(Status::Invalid)?,
    };
    ByteRange::new(offset, last).ok_or(Status::Invalid)
}

/// Returns the mode of a lock type: READ_LT, WRITE_LT, and their like for clients that would wait.
fn mode(lock_type: u32) -> Result<LockMode, Status> {
    match lock_type {
        1 | 3 => Ok(LockMode::Shared),
        2 | 4 => Ok(LockMode::Exclusive),
        _ => Err(Status::Invalid),
    }
}

impl From<LockDenied> for Failure {
    fn from(denied: LockDenied) -> Self {
        match denied {
            LockDenied::Status(status) => Self::Status(status),
            LockDenied::Held {
                range,
                mode,
                client,
                owner,
            } => {
                let mut w = Writer::with_capacity(48 + owner.len());
                let length = match range.last() {
                    u64::MAX => u64::MAX,
                    last => last - range.first() + 1,
                };
                w.u64(range.first())
                    .u64(length)
                    .u32(match mode {
                        LockMode::Shared => 1,
                        LockMode::Exclusive => 2,
                    })
                    .u64(client)
                    .opaque(&owner);
                Self::With(Status::Denied, w.into_bytes())
            }
        }
    }
}

impl Compound<'_> {
    pub(super) async fn lock(&mut self, lock: &Lock<'_>) -> Done {
        let file = self.file(Status::IsDirectory)?;
        let client = self.session_client();
        let locker = match &lock.locker {
            Locker::New {
                open_sequence,
                open,
                owner,
                ..
            } => {
                let open = self.state_id(open)?;
                if self.minor == 0 {
                    let by = self.server.v4().owner_of(&open)?;
                    self.begin_owner_request(by, *open_sequence, false)?;
                    self.server.v4().renew(owner.client)?;
                }
                let of = client.unwrap_or(owner.client);
                let owner = self
                    .server
                    .v4()
                    .owner(owner, of, OwnerKind::Lock, self.minor)?;
                LockerState::New { open, owner }
            }
            Locker::Known { lock, sequence } => {
                let id = self.state_id(lock)?;
                if self.minor == 0 {
                    let by = self.server.v4().owner_of(&id)?;
                    self.begin_owner_request(by, *sequence, false)?;
                }
                LockerState::Known(id)
            }
        };
        let (range, mode) = (range(lock.offset, lock.length)?, mode(lock.mode)?);
        let attr = file.attr().await?;
        self.check_regular(&attr)?;
        self.check_grace_of_lock(&locker, client, lock.reclaim)?;
        let request = LockRequest {
            client,
            locker,
            file: file.handle,
            range,
            mode,
            minor: self.minor,
        };
        let locked = self.server.v4().lock(&request);
        let state = locked.map_err(|denied| match denied {
            LockDenied::Held { .. } if lock.reclaim => Status::ReclaimConflict.into(),
            other => Failure::from(other),
        })?;
        if let (LockerState::New { owner, .. }, Locker::New { sequence, .. }) =
            (locker, &lock.locker)
        {
            self.server.v4().begin_lock_owner(owner, *sequence);
        }
        self.state = Some(state);
        self.write_state_id(&state);
        Ok(())
    }

    /// Locks that were held before a restart are for the time after it, and others for later.
    fn check_grace_of_lock(
        &self,
        locker: &LockerState,
        client: Option<ClientId>,
        reclaim: bool,
    ) -> Result<(), Status> {
        let mut state = self.server.v4();
        let client = match (client, locker) {
            (Some(client), _) => client,
            (None, LockerState::New { open: id, .. } | LockerState::Known(id)) => {
                state.client_of_state(id)?
            }
        };
        if reclaim {
            state.check_reclaim(client, false)
        } else {
            state.check_new_state(client)
        }
    }

    pub(super) async fn lock_test(
        &mut self,
        lock_type: u32,
        offset: u64,
        length: u64,
        owner: &RawOwner<'_>,
    ) -> Done {
        let file = self.file(Status::IsDirectory)?;
        let (range, mode) = (range(offset, length)?, mode(lock_type)?);
        let attr = file.attr().await?;
        self.check_regular(&attr)?;
        let client = match self.session_client() {
            Some(client) => client,
            None => {
                self.server.v4().renew(owner.client)?;
                owner.client
            }
        };
        let mut state = self.server.v4();
        state.check_new_state(client)?;
        state.check_locked_elsewhere(&file.handle, Some(client))?;
        let owner = state.known_owner(owner, client, OwnerKind::Lock);
        Ok(state.test_lock(&file.handle, owner, range, mode)?)
    }

    pub(super) fn unlock(&mut self, sequence: u32, id: &StateId, offset: u64, length: u64) -> Done {
        let file = self.file(Status::IsDirectory)?;
        let id = self.state_id(id)?;
        if self.minor == 0 {
            let owner = self.server.v4().owner_of(&id)?;
            self.begin_owner_request(owner, sequence, false)?;
        }
        let range = range(offset, length)?;
        let client = self.session_client();
        let state = self
            .server
            .v4()
            .unlock(&id, &file.handle, range, client, self.minor)?;
        self.state = Some(state);
        self.write_state_id(&state);
        Ok(())
    }

    pub(super) fn release_lock_owner(&mut self, owner: &RawOwner<'_>) -> Done {
        let mut state = self.server.v4();
        state.renew(owner.client)?;
        match state.known_owner(owner, owner.client, OwnerKind::Lock) {
            Some(owner) => Ok(state.release_lock_owner(owner)?),
            None => Ok(()),
        }
    }
}
