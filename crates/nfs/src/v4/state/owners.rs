//! Owners of opens and of locks. In minor version 0 each counts its requests, and the answer to its last one is kept so that a
//! request repeated is not run twice (RFC 7530, section 9.1.7).

use super::{ClientId, STATES_MAX, StateKey, StateTable, exhausted};
use crate::v4::operation::RawOwner;
use crate::v4::status::Status;
use std::collections::BTreeSet;

/// An owner's number.
pub(crate) type OwnerId = u64;

/// What an owner owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OwnerKind {
    Open,
    Lock,
}

/// The answer to an owner's last request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Replay {
    pub(crate) number: u32,
    pub(crate) status: Status,
    /// The result behind the status.
    pub(crate) body: Vec<u8>,
    /// The current file handle after it.
    pub(crate) handle: Option<Vec<u8>>,
}

/// An owner.
#[derive(Debug)]
pub(super) struct Owner {
    pub(super) client: ClientId,
    kind: OwnerKind,
    pub(super) name: Vec<u8>,
    /// Of the last request; `None` before the first.
    sequence: Option<u32>,
    replay: Option<Replay>,
    pub(super) confirmed: bool,
    pub(super) states: BTreeSet<StateKey>,
    pub(super) idle_since_ns: u64,
}

/// What an owner's number of a request says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OwnerSequence {
    New,
    Repeat(Replay),
}

impl StateTable {
    /// Returns the owner of that name, which is made if there is none.
    pub(crate) fn owner(
        &mut self,
        owner: &RawOwner<'_>,
        client: ClientId,
        kind: OwnerKind,
        minor: u32,
    ) -> Result<OwnerId, Status> {
        let key = (client, kind, owner.name.to_vec());
        if let Some(id) = self.owner_ids.get(&key) {
            return Ok(*id);
        }
        if self.owners.len() >= STATES_MAX {
            return Err(exhausted(minor));
        }
        let id = self.next_number();
        let made = Owner {
            client,
            kind,
            name: key.2.clone(),
            sequence: None,
            replay: None,
            confirmed: minor > 0 || kind == OwnerKind::Lock,
            states: BTreeSet::new(),
            idle_since_ns: self.now_ns,
        };
        self.owners.insert(id, made);
        self.owner_ids.insert(key, id);
        Ok(id)
    }

    /// Returns the owner of that name, if there is one.
    pub(crate) fn known_owner(
        &self,
        owner: &RawOwner<'_>,
        client: ClientId,
        kind: OwnerKind,
    ) -> Option<OwnerId> {
        let key = (client, kind, owner.name.to_vec());
        self.owner_ids.get(&key).copied()
    }

    /// Compares the number of an owner's request with the one that is next.
    pub(crate) fn owner_sequence(
        &mut self,
        owner: OwnerId,
        sequence: u32,
        opens: bool,
    ) -> Result<OwnerSequence, Status> {
        let known = self.owners.get(&owner).ok_or(Status::BadSequenceId)?;
        let Some(last) = known.sequence else {
            return Ok(OwnerSequence::New);
        };
        if sequence == last
            && let Some(replay) = &known.replay
        {
            return Ok(OwnerSequence::Repeat(replay.clone()));
        }
        if sequence == last.wrapping_add(1) {
            return Ok(OwnerSequence::New);
        }
        if opens && !known.confirmed {
            // RFC 7530, section 16.18.5: an owner that was never confirmed begins anew.
            let states: Vec<StateKey> = known.states.iter().copied().collect();
            for state in states {
                self.remove_state(state);
            }
            return Ok(OwnerSequence::New);
        }
        Err(Status::BadSequenceId)
    }

    /// Keeps the answer to an owner's request.
    pub(crate) fn owner_answered(&mut self, owner: OwnerId, sequence: u32, replay: Replay) {
        // RFC 7530, section 9.1.7: after these the number is not counted.
        let uncounted = matches!(
            replay.status,
            Status::StaleClientId
                | Status::StaleStateId
                | Status::BadStateId
                | Status::BadSequenceId
                | Status::BadXdr
                | Status::Resource
                | Status::NoFileHandle
        );
        if uncounted {
            return;
        }
        if let Some(owner) = self.owners.get_mut(&owner) {
            owner.sequence = Some(sequence);
            owner.replay = Some(replay);
            owner.idle_since_ns = self.now_ns;
        }
    }

    /// Begins to count the requests of a lock owner, whose first came with one of its open owner.
    pub(crate) fn begin_lock_owner(&mut self, owner: OwnerId, sequence: u32) {
        if let Some(owner) = self.owners.get_mut(&owner) {
            owner.sequence = Some(sequence);
            owner.replay = None;
        }
    }

    /// RELEASE_LOCKOWNER.
    pub(crate) fn release_lock_owner(&mut self, owner: OwnerId) -> Result<(), Status> {
        let states: Vec<StateKey> = match self.owners.get(&owner) {
            Some(known) => known.states.iter().copied().collect(),
            None => return Ok(()),
        };
        let holds = |key: &StateKey| {
            let entry = self.states.get(key);
            entry.is_some_and(|entry| self.holds_locks(owner, &entry.file))
        };
        if states.iter().any(holds) {
            return Err(Status::LocksHeld);
        }
        for key in states {
            self.remove_state(key);
        }
        self.remove_owner(owner);
        Ok(())
    }

    /// Removes owners that have had nothing for longer than a lease.
    pub(super) fn forget_idle_owners(&mut self) {
        let idle: Vec<OwnerId> = self
            .owners
            .iter()
            .filter(|(_, owner)| {
                let age = self.now_ns.saturating_sub(owner.idle_since_ns);
                let open = owner.states.iter().any(|key| {
                    let kind = self.states.get(key).map(|entry| &entry.kind);
                    !matches!(kind, Some(super::StateKind::Closed))
                });
                !open && age > self.lease_ns
            })
            .map(|(id, _)| *id)
            .collect();
        for owner in idle {
            self.remove_owner(owner);
        }
    }

    /// Removes an owner without states, which in minor version 1 no request can name again.
    pub(super) fn remove_owner_if_idle(&mut self, owner: OwnerId) {
        if self.owners.get(&owner).is_some_and(|o| o.states.is_empty()) {
            self.remove_owner(owner);
        }
    }

    pub(super) fn remove_owners_of(&mut self, client: ClientId) {
        let of_client = self
            .owner_ids
            .range((client, OwnerKind::Open, Vec::new())..)
            .take_while(|((of, _, _), _)| *of == client);
        let owners: Vec<OwnerId> = of_client.map(|(_, owner)| *owner).collect();
        for owner in owners {
            self.remove_owner(owner);
        }
    }

    fn remove_owner(&mut self, id: OwnerId) {
        let states: Vec<StateKey> = match self.owners.get(&id) {
            Some(owner) => owner.states.iter().copied().collect(),
            None => return,
        };
        for key in states {
            self.remove_state(key);
        }
        if let Some(owner) = self.owners.remove(&id) {
            self.owner_ids
                .remove(&(owner.client, owner.kind, owner.name));
        }
    }
}
