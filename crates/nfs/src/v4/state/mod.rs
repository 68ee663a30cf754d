//! What the server knows of NFSv4's clients between their calls: who they are, their sessions, what they have open and locked.
//!
//! Everything here is in memory and bounded. Time comes from outside ([`StateTable::tick`]). A client whose lease has run out keeps
//! its state until a request conflicts with it (a *courtesy* client); the first conflict takes all of it. Not while a change is under way
//! that the state allowed: it would be made after another client was given the lock.
//! Nothing here waits, and nothing knows what a COMPOUND is.

mod back_channel;
mod clients;
mod delegations;
mod locks;
mod opens;
mod owners;
mod recovery;
mod sessions;

pub(super) use clients::{ClientId, Principal};
pub(crate) use delegations::AskedAttributes;
pub use delegations::DelegationCounts;
pub(super) use delegations::{DelegationRequest, DelegationType, GiveBack};
pub(super) use locks::{LockDenied, LockRequest, LockerState};
pub(super) use opens::OpenRequest;
pub(crate) use opens::ShareMode;
pub(super) use owners::{OwnerId, OwnerKind, OwnerSequence, Replay};
pub(super) use sessions::{SequenceOutcome, SlotUse};

use super::operation::StateId;
use super::status::Status;
use crate::handle::FileHandle;
use clients::{Client, ClientNames};
use delegations::{AttributeQuery, GiveBackWaits};
use engine::{FileId, FileLocks, FsHandle, LockOwner, ReclaimGrace};
use owners::Owner;
use recovery::Recovery;
use sessions::Session;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Clients known at once, those not confirmed included.
const CLIENTS_MAX: usize = 8192;
/// Open and lock states of all clients.
const STATES_MAX: usize = 1 << 18;
/// Open and lock states of one client.
const CLIENT_STATES_MAX: usize = 1 << 16;
/// How long a client whose lease has run out keeps its state while no request conflicts with it: 24 hours.
const COURTESY_NS: u64 = 24 * 3600 * 1_000_000_000;

/// What is said to have begun at a time may have begun so much later, for time is told about once a second: 2 s.
const TOLD_NS: u64 = 2_000_000_000;

/// Lost states remembered.
const EXPIRED_MAX: usize = 1 << 14;

/// A session's name.
pub(super) type SessionId = [u8; 16];
/// The number of a state, which its state id carries.
type StateKey = u64;

/// What a state is.
#[derive(Debug, Clone)]
enum StateKind {
    Open(opens::OpenState),
    /// Locks of a lock owner in a file that an open state has open.
    Lock {
        open: StateKey,
    },
    /// A read or write delegation.
    Delegation(delegations::DelegationState),
    /// A delegation that was taken from its client, until the client frees the state id.
    Revoked,
    /// An open that was closed, kept so that a repeated CLOSE finds its owner (minor version 0).
    Closed,
}

/// A state: what one owner has in one file.
#[derive(Debug, Clone)]
struct StateEntry {
    client: ClientId,
    /// 0 of a delegation, which has none.
    owner: OwnerId,
    file: FileHandle,
    /// Counts changes, from 1.
    sequence: u32,
    kind: StateKind,
}

/// What is open in one file.
#[derive(Debug, Default)]
struct FileState {
    opens: BTreeSet<StateKey>,
    /// Clients that have it delegated.
    delegations: BTreeSet<StateKey>,
    /// Share modes of clients of NLM, by client and owner.
    outside: BTreeMap<OutsideHolder, ShareMode>,
}

impl FileState {
    fn is_idle(&self) -> bool {
        self.opens.is_empty() && self.outside.is_empty() && self.delegations.is_empty()
    }
}

/// A client of NLM by its number, and its name for who has a file open.
pub(crate) type OutsideHolder = (u32, Vec<u8>);

/// What a table is told once.
#[derive(Debug, Clone)]
pub(crate) struct StateTableConfig<'a> {
    /// Different after each start.
    pub(crate) boot_verifier: u64,
    pub(crate) lease_seconds: u32,
    /// Random numbers of this start.
    pub(crate) secret: [u64; 2],
    /// What [`StateTable::unstored_record`] gave out before the restart.
    pub(crate) record: &'a [u8],
    /// The locks of all files.
    pub(crate) locks: Arc<FileLocks>,
    /// Where clients may reclaim delegations.
    pub(crate) reclaims: Arc<ReclaimGrace>,
}

/// All of it.
#[derive(Debug)]
pub(crate) struct StateTable {
    /// Different after each start: state ids of an earlier one are told apart by it.
    boot: u32,
    secret: [u64; 2],
    recovery: Recovery,
    next: u64,
    lease_ns: u64,
    now_ns: u64,
    clients: BTreeMap<ClientId, Client>,
    names: BTreeMap<(bool, Vec<u8>), ClientNames>,
    sessions: BTreeMap<SessionId, Session>,
    /// Bytes that the reply caches of all sessions may hold.
    cached_bytes: usize,
    owners: BTreeMap<OwnerId, Owner>,
    owner_ids: BTreeMap<(ClientId, OwnerKind, Vec<u8>), OwnerId>,
    states: BTreeMap<StateKey, StateEntry>,
    files: BTreeMap<FileHandle, FileState>,
    locks: Arc<FileLocks>,
    /// Lock owners whose locks are in the way of other protocols.
    contested: BTreeSet<OwnerId>,
    /// Clients and states that were lost (minor version 0).
    expired: BTreeSet<u64>,
    /// Delegations that are being given back, and since when.
    recalled: BTreeMap<StateKey, u64>,
    /// Attributes that clients are asked for of files that they write.
    asked: BTreeMap<StateKey, AttributeQuery>,
    /// Those who wait for files that are being given back.
    given_back: BTreeMap<FileHandle, GiveBackWaits>,
    /// Files that were recalled lately, and when.
    pauses: BTreeMap<FileHandle, u64>,
    delegations: DelegationCounts,
    /// Calls to clients that are not answered, by their transaction ids.
    calls_back: BTreeMap<u32, SessionId>,
    /// Files that are no longer open, to be let go of by the next caller that can wait.
    released: Vec<(FsHandle, FileId)>,
}

impl StateTable {
    /// Returns a table without clients.
    pub(crate) fn new(config: &StateTableConfig<'_>) -> Self {
        // The upper half changes with the seconds, the lower one within them.
        let boot = (config.boot_verifier >> 32) ^ (config.boot_verifier & 0xffff_ffff);
        Self {
            boot: u32::try_from(boot).unwrap_or(0),
            secret: config.secret,
            recovery: Recovery::new(
                config.record,
                scrambled(config.secret, 0),
                Arc::clone(&config.reclaims),
            ),
            next: 1,
            lease_ns: u64::from(config.lease_seconds) * 1_000_000_000,
            now_ns: 0,
            clients: BTreeMap::new(),
            names: BTreeMap::new(),
            sessions: BTreeMap::new(),
            cached_bytes: 0,
            owners: BTreeMap::new(),
            owner_ids: BTreeMap::new(),
            states: BTreeMap::new(),
            files: BTreeMap::new(),
            locks: Arc::clone(&config.locks),
            contested: BTreeSet::new(),
            expired: BTreeSet::new(),
            recalled: BTreeMap::new(),
            asked: BTreeMap::new(),
            given_back: BTreeMap::new(),
            pauses: BTreeMap::new(),
            delegations: DelegationCounts::default(),
            calls_back: BTreeMap::new(),
            released: Vec::new(),
        }
    }

    /// Tells the time, and forgets what no request can name any more.
    pub(crate) fn tick(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        for client in self.clients.values_mut() {
            client.tick(now_ns);
        }
        self.advance_grace();
        let old: Vec<ClientId> = self
            .clients
            .iter()
            .filter(|(_, client)| {
                let age = client.age_ns(now_ns);
                let idle = !client.confirmed || client.states == 0;
                let over = age > self.lease_ns && (idle || age > COURTESY_NS);
                over && !client.has_changes_under_way()
            })
            .map(|(id, _)| *id)
            .collect();
        for client in old {
            self.remove_client(client);
        }
        self.forget_idle_owners();
        self.end_contested();
        self.advance_recalls();
        self.advance_back_channels();
    }

    /// Takes the files that are no longer open; the caller releases them.
    pub(crate) fn take_released(&mut self) -> Vec<(FsHandle, FileId)> {
        std::mem::take(&mut self.released)
    }

    fn next_number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    fn is_expired(&self, client: ClientId) -> bool {
        self.clients
            .get(&client)
            .is_none_or(|c| c.age_ns(self.now_ns) > self.lease_ns && !c.has_changes_under_way())
    }

    fn state_id(&self, key: StateKey, sequence: u32) -> StateId {
        let other = state_id_other(self.boot, self.secret, key);
        StateId { sequence, other }
    }

    /// Finds the number of a state id of this start of the server.
    fn key_of(&self, id: &StateId, minor: u32) -> Result<StateKey, Status> {
        let [b0, b1, b2, b3, k0, k1, k2, k3, k4, _, _, _] = id.other;
        if u32::from_be_bytes([b0, b1, b2, b3]) == self.boot {
            let key = u64::from_be_bytes([0, 0, 0, k0, k1, k2, k3, k4]);
            let genuine = self.state_id(key, 0).other == id.other;
            return if genuine {
                Ok(key)
            } else {
                Err(Status::BadStateId)
            };
        }
        // The special ones are of no start. RFC 8881, section 15.1.16.5: minor version 1 tells a restart by its sessions.
        let special = id.other == [0; 12] || id.other == [0xff; 12];
        Err(if minor == 0 && !special {
            Status::StaleStateId
        } else {
            Status::BadStateId
        })
    }

    /// Finds the state that a state id names. `client` is the caller where the call says so.
    fn find(
        &self,
        id: &StateId,
        client: Option<ClientId>,
        minor: u32,
    ) -> Result<(StateKey, &StateEntry), Status> {
        let key = self.key_of(id, minor)?;
        let entry = self.states.get(&key).ok_or_else(|| self.lost(key, minor))?;
        if matches!(entry.kind, StateKind::Closed) || client.is_some_and(|c| c != entry.client) {
            return Err(Status::BadStateId);
        }
        if matches!(entry.kind, StateKind::Revoked) {
            return Err(Status::DelegationRevoked);
        }
        // RFC 8881, section 8.2.2: zero is "the newest".
        if minor > 0 && id.sequence == 0 {
            return Ok((key, entry));
        }
        match id.sequence.cmp(&entry.sequence) {
            std::cmp::Ordering::Equal => Ok((key, entry)),
            std::cmp::Ordering::Less => Err(Status::OldStateId),
            std::cmp::Ordering::Greater => Err(Status::BadStateId),
        }
    }

    /// What a state is that is not there: one that its client lost, or none.
    fn lost(&self, key: StateKey, minor: u32) -> Status {
        if minor == 0 && self.expired.contains(&key) {
            Status::Expired
        } else {
            Status::BadStateId
        }
    }

    /// Remembers what a client of minor version 0 lost, the newest of it: it is told so when it comes back.
    fn remember_expired(&mut self, number: u64) {
        self.expired.insert(number);
        if self.expired.len() > EXPIRED_MAX {
            self.expired.pop_first();
        }
    }

    /// Adds a state, if there is room for one.
    fn add_state(&mut self, entry: StateEntry, minor: u32) -> Result<StateKey, Status> {
        let client = self
            .clients
            .get_mut(&entry.client)
            .ok_or(Status::StaleClientId)?;
        if client.states >= CLIENT_STATES_MAX || self.states.len() >= STATES_MAX {
            return Err(exhausted(minor));
        }
        client.states += 1;
        let key = self.next_number();
        if let Some(owner) = self.owners.get_mut(&entry.owner) {
            owner.states.insert(key);
        }
        self.states.insert(key, entry);
        Ok(key)
    }

    /// Counts a change of a state, and returns its state id.
    fn changed(&mut self, key: StateKey) -> StateId {
        let sequence = self.states.get_mut(&key).map_or(0, |entry| {
            // RFC 8881, section 3.3.12: it wraps from the largest value to 1.
            entry.sequence = entry.sequence.checked_add(1).unwrap_or(1);
            entry.sequence
        });
        self.state_id(key, sequence)
    }

    /// Removes a state, and what depends on it.
    fn remove_state(&mut self, key: StateKey) {
        let Some(entry) = self.states.remove(&key) else {
            return;
        };
        if let Some(client) = self.clients.get_mut(&entry.client) {
            let count = match entry.kind {
                StateKind::Revoked => &mut client.revoked,
                _ => &mut client.states,
            };
            *count = count.saturating_sub(1);
        }
        if matches!(entry.kind, StateKind::Revoked) {
            self.record_revoked(entry.client);
        }
        if let Some(owner) = self.owners.get_mut(&entry.owner) {
            owner.states.remove(&key);
            owner.idle_since_ns = self.now_ns;
        }
        match &entry.kind {
            StateKind::Delegation(held) => self.delegation_ended(key, &entry, held),
            StateKind::Open(open) => {
                self.released.push((open.fs.clone(), entry.file.file));
                if let Some(file) = self.files.get_mut(&entry.file) {
                    file.opens.remove(&key);
                }
                for lock in &open.locks {
                    self.remove_state(*lock);
                }
            }
            StateKind::Lock { open } => {
                let owner = LockOwner::Nfs4(entry.owner);
                self.locks.release(entry.file.locked(), owner);
                let open = self.states.get_mut(open).map(|entry| &mut entry.kind);
                if let Some(StateKind::Open(open)) = open {
                    open.locks.remove(&key);
                }
            }
            StateKind::Closed | StateKind::Revoked => {}
        }
        self.forget_file_if_idle(&entry.file);
    }

    /// Returns whether a client of NLM has files open with share modes.
    pub(crate) fn has_outside_shares(&self, host: u32) -> bool {
        let mut files = self.files.values();
        files.any(|file| file.outside.keys().any(|(of, _)| *of == host))
    }

    fn forget_file_if_idle(&mut self, file: &FileHandle) {
        let state = self.files.get(file);
        if state.is_some_and(FileState::is_idle) {
            self.files.remove(file);
        }
    }
}

/// Returns what names a state in its state id.
fn state_id_other(boot: u32, secret: [u64; 2], key: StateKey) -> [u8; 12] {
    // Boot number, five bytes of the key, and three that only this start of the server can make.
    let [b0, b1, b2, b3] = boot.to_be_bytes();
    let [_, _, _, k0, k1, k2, k3, k4] = key.to_be_bytes();
    let [t0, t1, t2, ..] = scrambled(secret, key).to_be_bytes();
    [b0, b1, b2, b3, k0, k1, k2, k3, k4, t0, t1, t2]
}

/// Returns a number that follows from `value` by the secret: who does not know the secret cannot tell it from others, or from
/// `value`. Two rounds of the finalizer of SplitMix64.
fn scrambled(secret: [u64; 2], value: u64) -> u64 {
    secret.iter().fold(value, |value, key| {
        let mixed = (value ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}

/// What a client is told that asks for more than there is room for (RFC 8881, section 15.1: minor version 1 has no
/// NFS4ERR_RESOURCE).
fn exhausted(minor: u32) -> Status {
    if minor == 0 {
        Status::Resource
    } else {
        Status::Delay
    }
}
