//! The judge: what every client may believe, and what every place in every file may hold.
//!
//! **Holdings.** What a client was given (a share mode, locks, a delegation) it holds from the moment it reads the answer until it sends
//! the request that gives it up, or is told that it lost it, as long as its lease runs: since the last request that was answered was sent.
//! Where two hold what excludes each other, with both leases running, the server failed. Where the lease of one had run out, it has lost
//! what it held, and must be refused when it uses or reclaims it.
//!
//! **Cells.** A cell is eight bytes of a file that are written whole, by one client at a time: the one that holds an exclusive lock, that
//! denies others writing, that has the file delegated to write, or that the cell belongs to. Each value is written once. The judge keeps
//! the set of values that a read may find, and of those that may be there after a power cut; a write that is answered takes the
//! others out of the first, one that is answered as stable (or committed) out of the second.

use std::collections::BTreeSet;

use super::wire::{READ, WRITE};

/// Files that all clients open.
pub const FILES: usize = 3;
/// Cells of a file that all clients lock; behind them each client has one of its own.
pub const SHARED_CELLS: usize = 6;

/// How a file is open, or delegated, or locked, that excludes another use of it: for messages.
type What = &'static str;
/// What a client is given, or reclaims, by LOCK.
pub(super) const LOCK: What = "a lock";

#[derive(Clone, Debug)]
struct DelegationView {
    write: bool,
    /// When the client read that it has it.
    since: u64,
    /// When the server first called the client to give it back.
    recalled: Option<u64>,
}

/// What one client holds of one file.
#[derive(Clone, Debug, Default)]
struct Holding {
    /// Access and denial.
    share: Option<(u32, u32)>,
    /// By cell: nothing (0), shared (1), exclusive (2).
    locks: [u8; SHARED_CELLS],
    delegation: Option<DelegationView>,
    /// When another client was given what this holding excludes.
    taken: Option<(u64, What)>,
}

#[derive(Clone, Debug, Default)]
struct ClientView {
    valid_until: u64,
    /// Until when its lost messages may be why it does not know of a recall.
    disturbed_until: u64,
    /// Its lease ran when the server went down: it may reclaim.
    reclaims: bool,
    files: [Holding; FILES],
    /// Names that it made in the directory, by their numbers: `None` where it is not known whether they are there.
    names: Vec<Option<bool>>,
}

/// The last write of a cell that was answered.
#[derive(Clone, Copy, Debug)]
struct Acknowledged {
    value: u64,
    at: u64,
}

#[derive(Clone, Debug)]
struct Cell {
    /// What a read may find, and since when, the newest last.
    history: Vec<(u64, BTreeSet<u64>)>,
    /// What the server may have.
    server: BTreeSet<u64>,
    /// What may be there after a power cut.
    stable: BTreeSet<u64>,
    /// Sent, and not answered.
    pending: BTreeSet<u64>,
    acknowledged: Option<Acknowledged>,
    /// What a client has written in its cache, by a delegation.
    cached: Option<(usize, u64)>,
}

impl Cell {
    fn new() -> Self {
        let zero = BTreeSet::from([0]);
        Self {
            history: vec![(0, zero.clone())],
            server: zero.clone(),
            stable: zero,
            pending: BTreeSet::new(),
            acknowledged: None,
            cached: None,
        }
    }

    fn note(&mut self, now: u64) {
        let visible = match self.cached {
            Some((_, value)) => BTreeSet::from([value]),
            None => self.server.clone(),
        };
        if self.history.last().is_none_or(|last| last.1 != visible) {
            self.history.push((now, visible));
        }
        if self.history.len() > 128 {
            self.history.drain(..64);
        }
    }

    /// Returns what a read may find that was sent at `sent` and answered by now.
    fn allowed(&self, sent: u64) -> BTreeSet<u64> {
        let before = self.history.iter().rposition(|(since, _)| *since <= sent);
        let from = before.unwrap_or(0);
        self.history[from..]
            .iter()
            .flat_map(|(_, values)| values)
            .copied()
            .collect()
    }
}

/// What was judged, for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    pub opens: u64,
    pub locks: u64,
    pub delegations: u64,
    pub recalls: u64,
    pub writes: u64,
    pub reads: u64,
    /// Reads and writes in caches.
    pub cached: u64,
    /// What was given to one client after the lease of another ran out.
    pub taken: u64,
    pub reclaims: u64,
    /// Requests that were repeated, and answered from their slots.
    pub repeats: u64,
}

/// See the module.
pub struct Model {
    lease_ns: u64,
    clients: Vec<ClientView>,
    files: Vec<Vec<Cell>>,
    /// Since when the server serves.
    serves_since: u64,
    violation: Option<String>,
    next_value: u64,
    /// What happens is printed on standard error.
    pub trace: bool,
    pub judged: Judged,
}

fn shares_conflict(one: (u32, u32), other: (u32, u32)) -> bool {
    one.0 & other.1 != 0 || other.0 & one.1 != 0
}

impl Model {
    /// Returns the model of new files and of clients that hold nothing. One writer more than there are clients has cells of its own:
    /// the machine itself.
    #[must_use]
    pub fn new(clients: usize, lease_ns: u64) -> Self {
        let cells = SHARED_CELLS + clients + 1;
        Self {
            lease_ns,
            clients: vec![ClientView::default(); clients],
            files: vec![vec![Cell::new(); cells]; FILES],
            serves_since: 0,
            violation: None,
            next_value: 0,
            trace: false,
            judged: Judged::default(),
        }
    }

    pub fn fail(&mut self, now: u64, text: &str) {
        let seconds = std::time::Duration::from_nanos(now).as_secs_f64();
        self.violation
            .get_or_insert_with(|| format!("at {seconds:.3} s: {text}"));
    }

    /// Tells what happens, where that is wanted.
    pub fn note(&self, now: u64, text: impl FnOnce() -> String) {
        if self.trace {
            let seconds = std::time::Duration::from_nanos(now).as_secs_f64();
            eprintln!("{seconds:12.6} {}", text());
        }
    }

    /// Returns what the server did that it must not.
    #[must_use]
    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    /// Returns a value that was never written.
    pub fn value(&mut self) -> u64 {
        self.next_value += 1;
        self.next_value
    }

    #[must_use]
    pub fn cells(&self) -> usize {
        self.files[0].len()
    }

    /// A request that was sent at `sent` was answered.
    pub fn renewed(&mut self, client: usize, sent: u64) {
        let until = sent + self.lease_ns;
        let client = &mut self.clients[client];
        client.valid_until = client.valid_until.max(until);
    }

    /// Returns whether a client's lease runs.
    #[must_use]
    pub fn is_valid(&self, client: usize, now: u64) -> bool {
        self.clients[client].valid_until > now
    }

    /// Messages from or to a client are lost until a time.
    pub fn disturbed(&mut self, client: usize, until: u64) {
        let until = until + 2 * self.lease_ns;
        let client = &mut self.clients[client];
        client.disturbed_until = client.disturbed_until.max(until);
    }

    /// A client was given what `other` holds the opposite of.
    fn clash(&mut self, now: u64, by: usize, other: usize, file: usize, what: What) {
        if self.is_valid(other, now) {
            let until = (self.clients[other].valid_until - now) / 1_000_000;
            let text = format!(
                "file {file}: client {by} was given what client {other} excludes by {what}, and has a lease for another {until} ms: {:?}",
                self.clients[other].files[file]
            );
            self.fail(now, &text);
            return;
        }
        self.judged.taken += 1;
        self.clients[other].files[file]
            .taken
            .get_or_insert((now, what));
    }

    /// As [`Self::clash`], for a delegation, which the server takes also from a client that does not give it back within a lease. What a
    /// client was given only while a request was under way is not judged.
    fn clash_delegation(
        &mut self,
        now: u64,
        by: Option<usize>,
        other: usize,
        file: usize,
        sent: u64,
    ) {
        let Some(held) = &self.clients[other].files[file].delegation else {
            return;
        };
        let unprotected = by.is_none() && self.is_to_reclaim(other, file);
        if held.since >= sent || unprotected || self.may_be_revoked(now, other, file) {
            return;
        }
        if self.is_valid(other, now) {
            let who = by.map_or("the machine itself".to_owned(), |by| format!("client {by}"));
            let text = format!(
                "file {file}: {who} was answered as if client {other} did not have it delegated: {held:?}"
            );
            self.fail(now, &text);
        }
    }

    /// Whether a delegation may be gone without its client's knowledge, although its lease runs.
    fn may_be_revoked(&self, now: u64, client: usize, file: usize) -> bool {
        let view = &self.clients[client];
        let Some(held) = &view.files[file].delegation else {
            return true;
        };
        // The server counts time in steps of about a second.
        let overdue = |recalled| now + 3_000_000_000 > recalled + self.lease_ns;
        view.disturbed_until > now || held.recalled.is_some_and(overdue)
    }

    /// Whether the server was restarted since a file was delegated: until it is reclaimed, nothing keeps the machine itself from it. If it
    /// is changed by then, it may not be reclaimed.
    fn is_to_reclaim(&self, client: usize, file: usize) -> bool {
        let held = &self.clients[client].files[file].delegation;
        held.as_ref()
            .is_some_and(|held| held.since < self.serves_since)
    }

    fn others(&self, client: Option<usize>) -> Vec<usize> {
        (0..self.clients.len())
            .filter(|other| Some(*other) != client)
            .collect()
    }

    /// An open was answered that was sent at `sent`.
    pub fn opened(&mut self, now: u64, client: usize, file: usize, share: (u32, u32), sent: u64) {
        self.judged.opens += 1;
        for other in self.others(Some(client)) {
            let held = self.clients[other].files[file].clone();
            if held.share.is_some_and(|held| shares_conflict(held, share)) {
                self.clash(now, client, other, file, "its share mode");
            }
            let ends = share.0 & WRITE != 0 || share.1 & READ != 0;
            if held.delegation.is_some_and(|held| held.write || ends) {
                self.clash_delegation(now, Some(client), other, file, sent);
            }
        }
        let holding = &mut self.clients[client].files[file];
        let (access, deny) = holding.share.unwrap_or_default();
        holding.share = Some((access | share.0, deny | share.1));
    }

    /// A client sends CLOSE.
    pub fn closing(&mut self, client: usize, file: usize) {
        let holding = &mut self.clients[client].files[file];
        holding.share = None;
        holding.locks = [0; SHARED_CELLS];
        if holding.delegation.is_none() {
            holding.taken = None;
        }
    }

    /// A client sends OPEN_DOWNGRADE.
    pub fn downgrading(&mut self, client: usize, file: usize, share: (u32, u32)) {
        self.clients[client].files[file].share = Some(share);
    }

    /// A client sends LOCK with a mode that is less than what it may have locked: it holds no more than that from now on. Returns what it
    /// has locked, which it has still if the lock is refused.
    pub fn locking(
        &mut self,
        client: usize,
        file: usize,
        cells: &std::ops::Range<usize>,
        exclusive: bool,
    ) -> [u8; SHARED_CELLS] {
        let locks = &mut self.clients[client].files[file].locks;
        let before = *locks;
        if !exclusive {
            for lock in &mut locks[cells.clone()] {
                *lock = (*lock).min(1);
            }
        }
        before
    }

    /// A lock was refused.
    pub fn refused_lock(&mut self, client: usize, file: usize, before: [u8; SHARED_CELLS]) {
        self.clients[client].files[file].locks = before;
    }

    /// A lock was given.
    pub fn locked(
        &mut self,
        now: u64,
        client: usize,
        file: usize,
        cells: &std::ops::Range<usize>,
        exclusive: bool,
    ) {
        self.judged.locks += 1;
        let mode = if exclusive { 2 } else { 1 };
        for other in self.others(Some(client)) {
            let held = self.clients[other].files[file].locks;
            if held[cells.clone()].iter().any(|held| held + mode > 2) {
                self.clash(now, client, other, file, LOCK);
            }
        }
        self.clients[client].files[file].locks[cells.clone()].fill(mode);
    }

    /// A client sends LOCKU.
    pub fn unlocking(&mut self, client: usize, file: usize, cells: &std::ops::Range<usize>) {
        self.clients[client].files[file].locks[cells.clone()].fill(0);
    }

    /// A delegation was given by a request that was sent at `sent`.
    pub fn delegated(&mut self, now: u64, client: usize, file: usize, write: bool, sent: u64) {
        self.judged.delegations += 1;
        // An answer that was repeated from its slot tells of a delegation that may have been recalled, and revoked, meanwhile.
        let is_late = self.clients[client].disturbed_until > now;
        for other in self.others(Some(client)).into_iter().filter(|_| !is_late) {
            let held = self.clients[other].files[file].clone();
            let in_the_way =
                |share: (u32, u32)| write || share.0 & WRITE != 0 || share.1 & READ != 0;
            if held.share.is_some_and(in_the_way) {
                self.clash(now, client, other, file, "having it open");
            }
            if held.delegation.is_some_and(|held| held.write || write) {
                self.clash_delegation(now, Some(client), other, file, sent);
            }
        }
        self.clients[client].files[file].delegation = Some(DelegationView {
            write,
            since: now,
            recalled: None,
        });
    }

    /// The server calls a client for a delegation.
    pub fn recalled(&mut self, now: u64, client: usize, file: usize) {
        if let Some(held) = &mut self.clients[client].files[file].delegation
            && held.recalled.is_none()
        {
            held.recalled = Some(now);
            self.judged.recalls += 1;
        }
    }

    /// A client sends DELEGRETURN, or was told that it has lost its delegation.
    pub fn returning(&mut self, now: u64, client: usize, file: usize) {
        self.clients[client].files[file].delegation = None;
        self.drop_caches(now, client, file);
    }

    fn drop_caches(&mut self, now: u64, client: usize, file: usize) {
        for cell in &mut self.files[file] {
            if cell.cached.is_some_and(|(of, _)| of == client) {
                cell.cached = None;
                cell.note(now);
            }
        }
    }

    /// A client lost all that it holds of a file, and knows.
    pub fn lost(&mut self, now: u64, client: usize, file: usize) {
        self.clients[client].files[file] = Holding::default();
        self.drop_caches(now, client, file);
    }

    /// A client was restarted: it knows nothing of what it held.
    pub fn restarted(&mut self, now: u64, client: usize) {
        for file in 0..FILES {
            self.lost(now, client, file);
        }
        self.clients[client].valid_until = 0;
        self.clients[client].reclaims = false;
    }

    /// A request of a client that was sent at `sent` went well by what it holds of a file.
    pub fn used(&mut self, now: u64, client: usize, file: usize, sent: u64, what: What) {
        if let Some((taken, by)) = self.clients[client].files[file].taken
            && taken < sent
        {
            let text = format!(
                "file {file}: {what} of client {client} went well, although another client was given what it had excluded by {by} {} ms before",
                (sent - taken) / 1_000_000
            );
            self.fail(now, &text);
        }
    }

    /// A client reclaimed what it holds of a file, by a request that was run at `ran`.
    pub fn reclaimed(&mut self, now: u64, client: usize, file: usize, ran: u64, what: What) {
        self.judged.reclaims += 1;
        self.used(now, client, file, ran, what);
    }

    /// The server refused what a client reclaims.
    pub fn refused_reclaim(
        &mut self,
        now: u64,
        client: usize,
        file: usize,
        what: What,
        status: u32,
    ) {
        let view = &self.clients[client];
        let in_time = now < self.serves_since + self.lease_ns;
        if view.reclaims && in_time && view.files[file].taken.is_none() {
            let text = format!(
                "file {file}: client {client}, whose lease ran when the server went down, may not reclaim {what} {} ms after it is back: \
                 status {status}",
                (now - self.serves_since) / 1_000_000
            );
            self.fail(now, &text);
        }
        let taken = &mut self.clients[client].files[file].taken;
        if what == LOCK && taken.is_some_and(|(_, by)| by == LOCK) {
            // It knows that the lock is lost. The open it has by a reclaim that went well.
            *taken = None;
        }
    }

    /// A client has reclaimed what it could.
    pub fn reclaim_ended(&mut self, client: usize) {
        self.clients[client].reclaims = false;
    }

    /// Returns whether what a client holds lets it write a cell.
    #[must_use]
    pub fn may_write(&self, client: usize, file: usize, cell: usize) -> bool {
        let holding = &self.clients[client].files[file];
        let open = holding.share.is_some_and(|share| share.0 & WRITE != 0);
        let alone = holding.share.is_some_and(|share| share.1 & WRITE != 0);
        let delegated = holding.delegation.as_ref().is_some_and(|held| held.write);
        if cell >= SHARED_CELLS {
            return cell == SHARED_CELLS + client && (open || delegated);
        }
        delegated || (open && (alone || holding.locks[cell] == 2))
    }

    /// A write is sent.
    pub fn writing(&mut self, now: u64, file: usize, cell: usize, value: u64) {
        let cell = &mut self.files[file][cell];
        cell.server.insert(value);
        cell.stable.insert(value);
        cell.pending.insert(value);
        if cell.cached.is_some_and(|(_, cached)| cached != value) {
            cell.cached = None;
        }
        cell.note(now);
    }

    /// A write that was sent at `sent` was answered.
    pub fn wrote(
        &mut self,
        now: u64,
        client: Option<usize>,
        file: usize,
        cell: usize,
        written: (u64, bool),
        sent: u64,
    ) {
        self.judged.writes += 1;
        let (value, stable) = written;
        for other in self.others(client) {
            self.clash_delegation(now, client, other, file, sent);
        }
        let cell = &mut self.files[file][cell];
        cell.server = BTreeSet::from([value]);
        // What was given up before this was sent is not done after it.
        cell.pending.clear();
        cell.acknowledged = Some(Acknowledged { value, at: now });
        if stable {
            cell.stable = BTreeSet::from([value]);
        }
        if cell.cached.is_some_and(|(_, cached)| cached == value) {
            cell.cached = None;
        }
        cell.note(now);
    }

    /// A write was refused: it was not done.
    pub fn refused_write(&mut self, now: u64, file: usize, cell: usize, value: u64) {
        let cell = &mut self.files[file][cell];
        cell.server.remove(&value);
        cell.stable.remove(&value);
        cell.pending.remove(&value);
        cell.note(now);
    }

    /// A client writes in its cache.
    pub fn cached_write(&mut self, now: u64, client: usize, file: usize, cell: usize, value: u64) {
        self.judged.cached += 1;
        let cell = &mut self.files[file][cell];
        cell.cached = Some((client, value));
        cell.note(now);
    }

    /// A COMMIT of a file that was sent at `sent` was answered: what was answered before is stable.
    pub fn committed(&mut self, file: usize, sent: u64) {
        for cell in &mut self.files[file] {
            if let Some(written) = cell.acknowledged.filter(|written| written.at <= sent) {
                cell.stable = cell.pending.clone();
                cell.stable.insert(written.value);
            }
        }
    }

    /// A read that was sent at `sent` was answered with a value.
    pub fn read(
        &mut self,
        now: u64,
        client: Option<usize>,
        file: usize,
        cell: usize,
        value: u64,
        sent: u64,
    ) {
        self.judged.reads += 1;
        for other in self.others(client) {
            let held = &self.clients[other].files[file].delegation;
            if held.as_ref().is_some_and(|held| held.write) {
                self.clash_delegation(now, client, other, file, sent);
            }
        }
        let at = &self.files[file][cell];
        let mut allowed = at.allowed(sent);
        if let Some((holder, _)) = at.cached
            && (Some(holder) == client
                || !self.is_valid(holder, now)
                || self.may_be_revoked(now, holder, file)
                || self.is_to_reclaim(holder, file))
        {
            allowed.extend(&at.server);
        }
        if !allowed.contains(&value) {
            let text = format!(
                "file {file}: {client:?} read {value} in cell {cell}, asked {} ms before; it may hold {allowed:?}: {at:?}",
                (now - sent) / 1_000_000
            );
            self.fail(now, &text);
            return;
        }
        let at = &mut self.files[file][cell];
        let quiet = at.history.last().is_none_or(|last| last.0 < sent);
        if quiet && at.pending.is_empty() && at.cached.is_none() {
            if at.stable == at.server {
                at.stable = BTreeSet::from([value]);
            }
            at.server = BTreeSet::from([value]);
            at.note(now);
        }
    }

    /// A client reads a value in its cache, by a delegation.
    pub fn cached_read(&mut self, now: u64, client: usize, file: usize, cell: usize, value: u64) {
        let may_be_gone = self.may_be_revoked(now, client, file);
        if !self.is_valid(client, now) || may_be_gone || self.is_to_reclaim(client, file) {
            return;
        }
        self.judged.cached += 1;
        let at = &self.files[file][cell];
        if !at.allowed(now).contains(&value) {
            let text = format!(
                "file {file}: client {client} has {value} in its cache of cell {cell} by a delegation; it was changed: {at:?}"
            );
            self.fail(now, &text);
        }
    }

    /// Power went: what was not stable may be gone, and no message is under way.
    pub fn power_cut(&mut self, now: u64) {
        for cell in self.files.iter_mut().flatten() {
            cell.server.clone_from(&cell.stable);
            cell.pending.clear();
            cell.acknowledged = None;
            cell.note(now);
        }
        for client in &mut self.clients {
            client.reclaims = client.valid_until > now;
        }
    }

    /// The server is back.
    pub fn serves(&mut self, now: u64) {
        self.serves_since = now;
    }

    /// A client makes a name that it never made; returns its number.
    pub fn making(&mut self, client: usize) -> usize {
        let names = &mut self.clients[client].names;
        names.push(None);
        names.len() - 1
    }

    /// A name was made, or removed.
    pub fn named(&mut self, client: usize, name: usize, there: bool) {
        self.clients[client].names[name] = Some(there);
    }

    /// A name is about to be removed, or it is not known any more whether it is there.
    pub fn name_unknown(&mut self, client: usize, name: usize) {
        self.clients[client].names[name] = None;
    }

    /// Returns the names of a client, and which are there, as far as that is known.
    #[must_use]
    pub fn names(&self, client: usize) -> &[Option<bool>] {
        &self.clients[client].names
    }

    /// Returns how a client has a file open: access and denial.
    #[must_use]
    pub fn share(&self, client: usize, file: usize) -> Option<(u32, u32)> {
        self.clients[client].files[file].share
    }

    /// Returns what a client has locked of a file, by cell: nothing (0), shared (1), exclusive (2).
    #[must_use]
    pub fn locks(&self, client: usize, file: usize) -> [u8; SHARED_CELLS] {
        self.clients[client].files[file].locks
    }

    /// Returns whether a client has a file delegated: to read (false) or to write.
    #[must_use]
    pub fn delegation(&self, client: usize, file: usize) -> Option<bool> {
        let held = self.clients[client].files[file].delegation.as_ref();
        held.map(|held| held.write)
    }
}

/// Returns the name of a file that clients make.
#[must_use]
pub fn name_of(client: usize, number: usize) -> String {
    format!("made-{client}-{number}")
}
