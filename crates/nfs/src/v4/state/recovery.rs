//! What outlives a restart: which clients have state with the server, so that these, and no others, reclaim it afterwards
//! (RFC 8881, section 8.4.2; RFC 7530, section 9.6.2).
//!
//! ```text
//!            recorded clients?                  lease over, and no reclaim within the last seconds;
//!   start ----------- yes ------> waiting ----> counting ------------------------------------------> over
//!     |                (pools are opened)          |                                                   ^
//!     +--------------- no ------------------------ | --- each recorded client: RECLAIM_COMPLETE -------+
//! ```
//!
//! Until grace is over new state is refused, and what a client reclaims is granted if the client is in the record of before. What
//! is recorded: clients of minor version 1 and above from RECLAIM_COMPLETE on, those of minor version 0 from their first open;
//! until grace is over also those of before. A client that lost its state leaves the record before an other gets what it had, and
//! the record is stable before the answer goes out ([`StateTable::unstored_record`]): whatever a client that is in it reclaims was
//! given to no other in between (RFC 8881, section 8.4.3).
//!
//! Beside the clients it is recorded in which file systems some had files delegated: there, until grace is over, files of
//! before the restart are changed only by what was reclaimed ([`ReclaimGrace`]).

use super::{CLIENTS_MAX, ClientId, Principal, StateTable, TOLD_NS};
use crate::handle::FileHandle;
use crate::monitored::{MonitorList, MonitoredHost};
use crate::v4::status::Status;
use engine::ReclaimGrace;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

/// First line of a record.
const HEADER: &str = "sanbox nfs clients 1";
/// What a client's line has behind its name that may reclaim no delegations.
const REVOKED: &str = "revoked";
/// What the line of a file system begins with in which files are delegated.
const DELEGATED: &str = "delegated";
/// A client that is in the midst of reclaiming gets this much time for its next request, in nanoseconds.
const RECLAIM_PAUSE_NS: u64 = 2_000_000_000;

/// A client's name, and whether it has sessions.
type ClientName = (bool, Vec<u8>);

/// A client in the record.
#[derive(Debug, Clone)]
struct RecordedClient {
    principal: Principal,
    /// A delegation was revoked, and the client has not said that it knows: after a restart it may reclaim none, for others may have changed
    /// the file meanwhile.
    lost_delegation: bool,
}

/// A client of before the restart.
#[derive(Debug)]
struct EarlierClient {
    recorded: RecordedClient,
    /// It reclaims nothing more.
    complete: bool,
}

/// Delegations in a file system.
#[derive(Debug, Clone, Copy, Default)]
struct DelegatedFs {
    held: u64,
    /// When there were some last.
    since_ns: u64,
}

/// How far the time for reclaiming is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grace {
    /// The pools are not open yet: clients cannot reach their files.
    Waiting,
    /// When it began.
    Since(u64),
    Over,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Recovery {
    /// Names this server to its clients, over restarts.
    identity: u64,
    earlier: BTreeMap<ClientName, EarlierClient>,
    recorded: BTreeMap<ClientName, RecordedClient>,
    /// File systems in which files were delegated before the restart, and since.
    earlier_delegated: BTreeSet<u64>,
    delegated: BTreeMap<u64, DelegatedFs>,
    /// Told who may not change files.
    reclaims: Arc<ReclaimGrace>,
    /// The clients that lock by NLM.
    monitored: MonitorList,
    grace: Grace,
    reclaimed_ns: u64,
    /// Counts changes of what is to be recorded, and which of them is stored.
    version: u64,
    stored: u64,
}

impl Recovery {
    /// Reads the record of before; `identity` is for a server that has none. Lines that are damaged are left out: their clients
    /// reclaim nothing.
    pub(super) fn new(record: &[u8], identity: u64, reclaims: Arc<ReclaimGrace>) -> Self {
        let text = String::from_utf8_lossy(record);
        let mut lines = text.lines();
        let mut recovery = Self {
            identity,
            earlier: BTreeMap::new(),
            recorded: BTreeMap::new(),
            earlier_delegated: BTreeSet::new(),
            delegated: BTreeMap::new(),
            reclaims,
            monitored: MonitorList::default(),
            grace: Grace::Waiting,
            reclaimed_ns: 0,
            version: 1,
            stored: 0,
        };
        if lines.next() == Some(HEADER) {
            for line in lines {
                recovery.read_line(line);
            }
        }
        if recovery.earlier.is_empty() && recovery.monitored.earlier().is_empty() {
            recovery.grace = Grace::Over;
            recovery.earlier_delegated.clear();
        }
        recovery.reclaims.begin(recovery.earlier_delegated.clone());
        recovery
    }

    fn read_line(&mut self, line: &str) {
        let mut words = line.split(' ');
        let has_sessions = match words.next() {
            Some("server") => {
                let identity = words.next().and_then(|w| u64::from_str_radix(w, 16).ok());
                self.identity = identity.unwrap_or(self.identity);
                return;
            }
            Some(DELEGATED) => {
                let guid = words.next().and_then(|w| u64::from_str_radix(w, 16).ok());
                self.earlier_delegated.extend(guid);
                return;
            }
            Some("4.0") => false,
            Some("4.1") => true,
            Some(kind @ ("nsm" | "nlm")) => return self.monitored.read_line(kind, words),
            _ => return,
        };
        let principal = match words.next() {
            Some("-") => Some(Principal::None),
            Some(word) => match word.strip_prefix("krb5:") {
                Some(name) => crate::hex::decode(name)
                    .and_then(|name| String::from_utf8(name).ok())
                    .map(Principal::Kerberos),
                None => word.parse().ok().map(Principal::User),
            },
            None => None,
        };
        let name = words.next().and_then(crate::hex::decode);
        let lost_delegation = match words.next() {
            None => false,
            Some(REVOKED) => true,
            Some(_) => return,
        };
        let (Some(principal), Some(name), None) = (principal, name, words.next()) else {
            return;
        };
        if self.earlier.len() < CLIENTS_MAX {
            let client = EarlierClient {
                recorded: RecordedClient {
                    principal,
                    lost_delegation,
                },
                complete: false,
            };
            self.earlier.insert((has_sessions, name), client);
        }
    }

    fn write(&self) -> Vec<u8> {
        let mut text = format!("{HEADER}\nserver {:016x}\n", self.identity);
        let earlier = self.earlier.iter().map(|(name, c)| (name, &c.recorded));
        let recorded = self.recorded.iter();
        // Until grace is over, who had state before is not displaced by another of the same name.
        let all: BTreeMap<&ClientName, &RecordedClient> = recorded.chain(earlier).collect();
        for ((has_sessions, name), client) in all {
            text.push_str(if *has_sessions { "4.1 " } else { "4.0 " });
            match &client.principal {
                Principal::None => text.push('-'),
                Principal::User(uid) => {
                    let _infallible = write!(text, "{uid}");
                }
                Principal::Kerberos(name) => {
                    text.push_str("krb5:");
                    crate::hex::encode(name.as_bytes(), &mut text);
                }
            }
            text.push(' ');
            crate::hex::encode(name, &mut text);
            if client.lost_delegation {
                text.push(' ');
                text.push_str(REVOKED);
            }
            text.push('\n');
        }
        let delegated: BTreeSet<&u64> = self
            .delegated
            .keys()
            .chain(&self.earlier_delegated)
            .collect();
        for guid in delegated {
            let _infallible = writeln!(text, "{DELEGATED} {guid:016x}");
        }
        self.monitored.write(&mut text);
        text.into_bytes()
    }

    fn is_over(&self) -> bool {
        self.grace == Grace::Over
    }

    /// Ends the time for reclaiming when all reclaimed, or when it has run out.
    fn advance(&mut self, now_ns: u64, lease_ns: u64) {
        // Clients of NLM do not say that they are done.
        let none_more = self.earlier.values().all(|client| client.complete)
            && self.monitored.earlier().is_empty();
        let ends = match self.grace {
            Grace::Over => return self.forget_undelegated(now_ns, lease_ns),
            _ if none_more => true,
            Grace::Waiting => false,
            Grace::Since(began_ns) => {
                let age = now_ns.saturating_sub(began_ns);
                let pause = now_ns.saturating_sub(self.reclaimed_ns);
                age > lease_ns + TOLD_NS && (pause > RECLAIM_PAUSE_NS || age > 2 * lease_ns)
            }
        };
        if ends {
            self.grace = Grace::Over;
            self.earlier.clear();
            self.earlier_delegated.clear();
            self.reclaims.end();
            self.monitored.forget_earlier();
            self.version += 1;
        }
    }

    /// Forgets file systems in which nothing was delegated for a lease: not at once, since what is given next would be recorded again.
    fn forget_undelegated(&mut self, now_ns: u64, lease_ns: u64) {
        let before = self.delegated.len();
        self.delegated
            .retain(|_, fs| fs.held > 0 || now_ns.saturating_sub(fs.since_ns) <= lease_ns);
        self.version += u64::from(self.delegated.len() != before);
    }
}

impl StateTable {
    /// Returns what names this server to its clients: the same after each restart.
    pub(crate) fn identity(&self) -> u64 {
        self.recovery.identity
    }

    /// Begins to count the time for reclaiming: the files are there.
    pub(crate) fn begin_grace(&mut self) {
        if self.recovery.grace == Grace::Waiting {
            self.recovery.grace = Grace::Since(self.now_ns);
        }
    }

    /// Returns whether this is the time for reclaiming, and how many clients have not finished.
    pub(crate) fn grace(&self) -> Option<usize> {
        let recovery = &self.recovery;
        let unfinished = recovery.earlier.values().filter(|c| !c.complete).count();
        let unfinished = unfinished + recovery.monitored.earlier().len();
        (!recovery.is_over()).then_some(unfinished)
    }

    pub(super) fn advance_grace(&mut self) {
        self.recovery.advance(self.now_ns, self.lease_ns);
    }

    /// Checks that a client may get new state now: not while others reclaim, nor before it said that it reclaims nothing more.
    ///
    /// # Errors
    /// [`Status::Grace`].
    pub(crate) fn check_new_state(&self, id: ClientId) -> Result<(), Status> {
        let unfinished = |client: &super::clients::Client| client.has_sessions && !client.reclaimed;
        if !self.recovery.is_over() || self.clients.get(&id).is_none_or(unfinished) {
            return Err(Status::Grace);
        }
        Ok(())
    }

    /// Checks that calls without state may read and write: not while a denial may yet be reclaimed.
    ///
    /// # Errors
    /// [`Status::Grace`].
    pub(crate) fn check_anonymous(&self) -> Result<(), Status> {
        if self.recovery.is_over() {
            Ok(())
        } else {
            Err(Status::Grace)
        }
    }

    /// Checks that a client may change a file otherwise than by what it has open: not while a delegation of it may yet be reclaimed, unless
    /// the client has reclaimed it.
    ///
    /// # Errors
    /// [`Status::Grace`].
    pub(crate) fn check_changes(
        &self,
        file: &FileHandle,
        client: Option<ClientId>,
    ) -> Result<(), Status> {
        let waits = self.recovery.reclaims.is_in(file.dataset)
            && !client.is_some_and(|client| self.has_delegated(file, client));
        if waits { Err(Status::Grace) } else { Ok(()) }
    }

    /// Records that files of a file system are delegated.
    pub(super) fn record_delegated(&mut self, fs: u64) {
        let new = !self.recovery.delegated.contains_key(&fs);
        self.recovery.delegated.entry(fs).or_default().held += 1;
        self.recovery.version += u64::from(new);
    }

    /// Takes note that a file of a file system is not delegated any more.
    pub(super) fn note_undelegated(&mut self, fs: u64) {
        if let Some(fs) = self.recovery.delegated.get_mut(&fs) {
            fs.held = fs.held.saturating_sub(1);
            fs.since_ns = self.now_ns;
        }
    }

    /// Checks that a client may reclaim an open or a lock, or what it has by a delegation: that it was recorded before the restart, and did
    /// not say that it is done.
    ///
    /// # Errors
    /// [`Status::NoGrace`], [`Status::ReclaimBad`].
    pub(crate) fn check_reclaim(&mut self, id: ClientId, delegation: bool) -> Result<(), Status> {
        let client = self.clients.get(&id).ok_or(Status::StaleClientId)?;
        if self.recovery.is_over() || client.reclaimed {
            return Err(Status::NoGrace);
        }
        let name = (client.has_sessions, client.name.clone());
        let earlier = self.recovery.earlier.get(&name);
        let earlier = earlier.filter(|earlier| earlier.recorded.principal == client.principal);
        if earlier.is_none_or(|earlier| delegation && earlier.recorded.lost_delegation) {
            return Err(Status::ReclaimBad);
        }
        self.recovery.reclaimed_ns = self.now_ns;
        Ok(())
    }

    /// Checks that a client of NLM may reclaim a lock: that it is in the record of before the restart, and others may not lock yet.
    pub(crate) fn may_host_reclaim(&mut self, address: IpAddr, name: &[u8]) -> bool {
        let may = !self.recovery.is_over() && self.recovery.monitored.may_reclaim(address, name);
        if may {
            self.recovery.reclaimed_ns = self.now_ns;
        }
        may
    }

    /// Returns NSM's state number, and the clients of NLM that are to be told of the restart.
    pub(crate) fn hosts_to_notify(&self) -> (u32, Vec<MonitoredHost>) {
        let monitored = &self.recovery.monitored;
        (
            monitored.state(),
            monitored.earlier().iter().cloned().collect(),
        )
    }

    /// Records a client of NLM before it gets its first lock.
    ///
    /// # Errors
    /// [`Status::Resource`]: there are too many.
    pub(crate) fn record_host(&mut self, host: &MonitoredHost) -> Result<(), Status> {
        let new = self.recovery.monitored.add(host).ok_or(Status::Resource)?;
        self.recovery.version += u64::from(new);
        Ok(())
    }

    /// Takes a client of NLM out of the record.
    pub(crate) fn unrecord_host(&mut self, host: &MonitoredHost) {
        let was = self.recovery.monitored.remove(host);
        self.recovery.version += u64::from(was);
    }

    /// RECLAIM_COMPLETE.
    pub(crate) fn reclaim_complete(&mut self, id: ClientId) -> Result<(), Status> {
        let client = self.clients.get_mut(&id).ok_or(Status::StaleClientId)?;
        if std::mem::replace(&mut client.reclaimed, true) {
            return Err(Status::CompleteAlready);
        }
        let name = (client.has_sessions, client.name.clone());
        let principal = client.principal.clone();
        if let Some(earlier) = self.recovery.earlier.get_mut(&name)
            && earlier.recorded.principal == principal
        {
            earlier.complete = true;
        }
        self.record(id);
        self.advance_grace();
        Ok(())
    }

    /// Records a client that has state, or may get some.
    pub(super) fn record(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id)
            && !client.recorded
        {
            client.recorded = true;
            let name = (client.has_sessions, client.name.clone());
            let recorded = RecordedClient {
                principal: client.principal.clone(),
                lost_delegation: client.revoked > 0,
            };
            self.recovery.recorded.insert(name, recorded);
            self.recovery.version += 1;
        }
    }

    /// Records whether delegations of a client were revoked that it has not freed.
    pub(super) fn record_revoked(&mut self, id: ClientId) {
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        let name = (client.has_sessions, client.name.clone());
        let lost = client.revoked > 0;
        let recovery = &mut self.recovery;
        let recorded = recovery.recorded.get_mut(&name).filter(|_| client.recorded);
        // What was revoked before the restart, or while it was reclaimed, is not forgotten until the time for that is over.
        let earlier = recovery.earlier.get_mut(&name).filter(|_| lost);
        let both = recorded
            .into_iter()
            .chain(earlier.map(|earlier| &mut earlier.recorded));
        for recorded in both {
            if std::mem::replace(&mut recorded.lost_delegation, lost) != lost {
                recovery.version += 1;
            }
        }
    }

    /// Takes a client that is gone out of the record.
    pub(super) fn unrecord(&mut self, client: &super::clients::Client) {
        if client.recorded {
            let name = (client.has_sessions, client.name.clone());
            self.recovery.recorded.remove(&name);
            self.recovery.version += 1;
        }
    }

    /// Returns whether what is stored is what is to be recorded.
    pub(crate) fn is_record_stored(&self) -> bool {
        self.recovery.stored == self.recovery.version
    }

    /// Returns the record if it is not stored yet, and its number for [`Self::record_stored`].
    pub(crate) fn unstored_record(&self) -> Option<(u64, Vec<u8>)> {
        (!self.is_record_stored()).then(|| (self.recovery.version, self.recovery.write()))
    }

    /// Notes that a record is stable.
    pub(crate) fn record_stored(&mut self, version: u64) {
        self.recovery.stored = self.recovery.stored.max(version);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{StateTable, StateTableConfig};
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn table(record: &[u8]) -> StateTable {
        StateTable::new(&StateTableConfig {
            boot_verifier: 7,
            lease_seconds: 90,
            secret: [3, 4],
            record,
            locks: Default::default(),
            reclaims: Default::default(),
        })
    }

    fn client(table: &mut StateTable, name: &[u8], uid: u32) -> ClientId {
        let principal = Principal::User(uid);
        let exchanged = table.exchange_id(name, [1; 8], principal, false);
        let id = exchanged.expect("a new client").client;
        table.confirm(id);
        id
    }

    fn record_of(table: &mut StateTable) -> Vec<u8> {
        let (version, record) = table.unstored_record().expect("a new record");
        table.record_stored(version);
        assert!(table.unstored_record().is_none());
        record
    }

    /// The record of a server on which two clients said that they reclaim nothing.
    fn two_clients() -> Vec<u8> {
        let mut before = table(b"");
        for name in [&b"one"[..], b"two"] {
            let id = client(&mut before, name, 0);
            assert_eq!(before.check_new_state(id), Err(Status::Grace));
            assert_eq!(before.reclaim_complete(id), Ok(()));
            assert_eq!(before.check_new_state(id), Ok(()));
            assert_eq!(before.check_reclaim(id, false), Err(Status::NoGrace));
        }
        record_of(&mut before)
    }

    #[test]
    fn recorded_clients_reclaim_and_others_wait() {
        let record = two_clients();
        let mut after = table(&record);
        let identity = after.identity();
        assert_eq!(after.grace(), Some(2));
        let one = client(&mut after, b"one", 0);
        assert_eq!(after.check_new_state(one), Err(Status::Grace));
        assert_eq!(after.check_reclaim(one, false), Ok(()));
        let other = client(&mut after, b"other", 0);
        assert_eq!(after.check_reclaim(other, false), Err(Status::ReclaimBad));
        let thief = client(&mut after, b"two", 1000);
        assert_eq!(after.check_reclaim(thief, false), Err(Status::ReclaimBad));
        assert_eq!(after.reclaim_complete(thief), Ok(()));
        assert_eq!(after.reclaim_complete(one), Ok(()));
        assert_eq!(after.reclaim_complete(one), Err(Status::CompleteAlready));
        assert_eq!(after.check_reclaim(one, false), Err(Status::NoGrace));
        assert_eq!(after.check_new_state(one), Err(Status::Grace));
        assert_eq!(after.grace(), Some(1));
        // A second restart in that time leaves them what they may reclaim.
        let again = table(&record_of(&mut after));
        assert_eq!(again.grace(), Some(2));
        assert_eq!(again.identity(), identity);
        // Ended early when all are done.
        let two = after.exchange_id(b"two", [1; 8], Principal::User(1000), false);
        after.remove_client(two.expect("the client").client);
        let two = client(&mut after, b"two", 0);
        assert_eq!(after.check_reclaim(two, false), Ok(()));
        assert_eq!(after.reclaim_complete(two), Ok(()));
        assert_eq!(after.grace(), None);
        assert_eq!(after.check_new_state(one), Ok(()));
    }

    #[test]
    fn a_lease_runs_from_the_request_that_began_it() {
        let mut table = table(b"");
        table.tick(10 * SECOND);
        let id = client(&mut table, b"one", 0);
        // The request came at some time of the second that is told now.
        table.tick(11 * SECOND);
        table.tick(101 * SECOND);
        assert!(table.clients.contains_key(&id));
        table.tick(101 * SECOND + 1);
        assert!(!table.clients.contains_key(&id));
    }

    #[test]
    fn a_client_that_lost_a_delegation_reclaims_none() {
        let mut before = table(b"");
        let one = client(&mut before, b"one", 0);
        assert_eq!(before.reclaim_complete(one), Ok(()));
        let with = |table: &mut StateTable, id, revoked| {
            let client = table.clients.get_mut(&id).expect("the client");
            client.revoked = revoked;
            table.record_revoked(id);
            record_of(table)
        };
        let record = with(&mut before, one, 1);
        let mut after = table(&record);
        let again = client(&mut after, b"one", 0);
        assert_eq!(after.check_reclaim(again, true), Err(Status::ReclaimBad));
        assert_eq!(after.check_reclaim(again, false), Ok(()));
        // So it is after a second restart, and not once the client has said that it knows.
        let mut third = table(&record_of(&mut after));
        let again = client(&mut third, b"one", 0);
        assert_eq!(third.check_reclaim(again, true), Err(Status::ReclaimBad));
        let mut after = table(&with(&mut before, one, 0));
        let again = client(&mut after, b"one", 0);
        assert_eq!(after.check_reclaim(again, true), Ok(()));
    }

    #[test]
    fn the_time_for_reclaiming_begins_with_the_pools_and_waits_for_who_reclaims() {
        let mut after = table(&two_clients());
        after.tick(500 * SECOND);
        assert_eq!(after.grace(), Some(2));
        after.begin_grace();
        after.tick(589 * SECOND);
        let one = client(&mut after, b"one", 0);
        assert_eq!(after.check_reclaim(one, false), Ok(()));
        after.tick(591 * SECOND);
        assert_eq!(after.grace(), Some(2));
        assert_eq!(after.check_reclaim(one, false), Ok(()));
        after.tick(594 * SECOND);
        assert_eq!(after.grace(), None);
        assert_eq!(after.check_reclaim(one, false), Err(Status::NoGrace));
        // One that came too late, and one that did not come, are not in the record any more.
        let left = String::from_utf8(record_of(&mut after)).expect("text");
        assert_eq!(left.lines().count(), 3, "{left}");
    }

    #[test]
    fn state_ids_of_others_and_of_earlier_starts_are_refused() {
        let before = table(b"");
        let id = before.state_id(17, 1);
        assert_eq!(before.key_of(&id, 0), Ok(17));
        for index in 4..12 {
            let mut guess = id;
            if let Some(byte) = guess.other.get_mut(index) {
                *byte ^= 1;
            }
            assert_eq!(before.key_of(&guess, 0), Err(Status::BadStateId));
        }
        let after = StateTable::new(&StateTableConfig {
            boot_verifier: 8,
            lease_seconds: 90,
            secret: [5, 6],
            record: b"",
            locks: Default::default(),
            reclaims: Default::default(),
        });
        assert_eq!(after.key_of(&id, 0), Err(Status::StaleStateId));
        assert_eq!(after.key_of(&id, 1), Err(Status::BadStateId));
        for byte in [0, 0xff] {
            let special = crate::v4::operation::StateId {
                sequence: 0,
                other: [byte; 12],
            };
            assert_eq!(after.key_of(&special, 0), Err(Status::BadStateId));
        }
    }

    #[test]
    fn clients_that_lost_their_state_leave_the_record() {
        let mut before = table(b"");
        let id = client(&mut before, b"one", 0);
        assert_eq!(before.reclaim_complete(id), Ok(()));
        let _with_it = record_of(&mut before);
        before.remove_client(id);
        let record = record_of(&mut before);
        assert_eq!(table(&record).grace(), None);
    }

    #[test]
    fn file_systems_with_delegated_files_are_recorded_until_there_are_none() {
        let mut before = table(&two_clients());
        before.begin_grace();
        before.tick(300 * SECOND);
        assert_eq!(before.grace(), None);
        let _with_clients = record_of(&mut before);
        for _ in 0..2 {
            before.record_delegated(17);
        }
        let record = record_of(&mut before);
        let text = String::from_utf8(record.clone()).expect("text");
        assert!(text.contains("\ndelegated 0000000000000011\n"), "{text}");
        before.note_undelegated(17);
        before.tick(1000 * SECOND);
        before.note_undelegated(17);
        before.tick(1090 * SECOND);
        assert!(before.is_record_stored(), "not at once");
        before.tick(1091 * SECOND);
        let without = String::from_utf8(record_of(&mut before)).expect("text");
        assert!(!without.contains(DELEGATED), "{without}");
        // Nobody is there to reclaim anything.
        let nobody = table(&record);
        assert_eq!(nobody.grace(), None);
        assert!(!nobody.recovery.reclaims.is_in(17));
        let mut after = table(&[two_clients(), b"delegated 0000000000000011\n".to_vec()].concat());
        let is_in = |table: &StateTable| table.recovery.reclaims.is_in(17);
        assert!(is_in(&after) && !after.recovery.reclaims.is_in(18));
        // A second restart in that time.
        assert!(is_in(&table(&record_of(&mut after))));
        after.begin_grace();
        after.tick(100 * SECOND);
        assert!(!is_in(&after));
        assert!(!is_in(&table(&record_of(&mut after))));
    }

    #[test]
    fn a_damaged_record_is_read_as_far_as_it_goes() {
        let good = two_clients();
        for cut in 0..good.len() {
            let _bounded = table(good.get(..cut).expect("within")).grace();
            let mut damaged = good.clone();
            if let Some(byte) = damaged.get_mut(cut) {
                *byte ^= 0xa5;
            }
            assert!(table(&damaged).grace().unwrap_or(0) <= 2);
        }
        let mut long = format!("{HEADER}\n").into_bytes();
        for line in [
            "4.1 0 6",
            "4.1 x 61",
            "4.1 0 61 more",
            "4.1 0 61 revoked more",
            "4.3 0 61",
            "4.1",
            "4.1 0",
        ] {
            long.extend(line.bytes().chain([b'\n']));
        }
        assert_eq!(table(&long).grace(), None);
    }
}
