//! The byte-range locks of all files, in one table: whichever protocol a lock is taken by, it is in the way of all others.
//!
//! Advisory, in memory, and bounded: by owner's group, by file, and in all. A lock that is held may be waited for; who waits is
//! given the lock when the one in its way ends, in the order of asking, and is told by a function that runs afterwards, outside
//! the table. A wait that would close a circle of waits is refused (POSIX, fcntl: `EDEADLK`).

use crate::locks::{ByteRange, HeldLock, LockMode, LockTable};
use crate::types::FileId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Ranges locked in one file.
const FILE_RANGES_MAX: usize = if cfg!(test) { 1 << 6 } else { 1 << 14 };
/// Ranges locked by one client of NLM or through one mount.
const GROUP_RANGES_MAX: usize = if cfg!(test) { 1 << 8 } else { 1 << 16 };
/// Ranges locked by all clients of NFSv4, whose states are bounded by themselves.
const NFS4_RANGES_MAX: usize = 1 << 19;
/// Ranges locked in all.
const RANGES_MAX: usize = 1 << 20;
/// Waits for locks of one file, and in all.
const FILE_WAITS_MAX: usize = 256;
const WAITS_MAX: usize = 1 << 14;
/// NFSv4 owners remembered whose locks were in the way of others.
const CONTESTED_MAX: usize = 1 << 12;

/// Who holds a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockOwner {
    /// A lock owner of NFSv4, by the number that its server has for it.
    Nfs4(u64),
    /// A process of a client of NLM, which locks files of NFSv3.
    Nlm {
        /// The client's number.
        host: u32,
        /// What the client calls the process.
        process: u32,
    },
    /// A process that locks through a mount.
    Mount {
        /// The mount's number.
        mount: u64,
        /// What the kernel calls the owner.
        owner: u64,
    },
}

impl LockOwner {
    /// Returns which owners share one bound, and the bound in ranges.
    fn group(self) -> ((u8, u64), usize) {
        match self {
            Self::Nfs4(_) => ((0, 0), NFS4_RANGES_MAX),
            Self::Nlm { host, .. } => ((1, host.into()), GROUP_RANGES_MAX),
            Self::Mount { mount, .. } => ((2, mount), GROUP_RANGES_MAX),
        }
    }
}

/// A file of any dataset or snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockedFile {
    /// The dataset's or the snapshot's guid.
    pub fs: u64,
    /// The file in it.
    pub file: FileId,
}

/// Why there is no lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockRefusal {
    /// A lock of another owner is in the way.
    Held(HeldLock<LockOwner>),
    /// A bound is reached.
    TooMany,
    /// To wait would be to wait for oneself.
    Deadlock,
}

/// What a request that may wait led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockOutcome {
    /// The lock is held.
    Locked,
    /// It is waited for; the function that was given runs when it is held.
    Waiting(LockWait),
}

/// A wait, for [`FileLocks::cancel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockWait {
    owner: LockOwner,
    number: u64,
}

type Granted = Box<dyn FnOnce() + Send>;

struct Waiting {
    file: LockedFile,
    range: ByteRange,
    mode: LockMode,
    granted: Granted,
}

#[derive(Default)]
struct FileEntry {
    locks: LockTable<LockOwner>,
    /// In the order of asking.
    waits: Vec<LockWait>,
}

#[derive(Default)]
struct AllLocks {
    files: BTreeMap<LockedFile, FileEntry>,
    waits: BTreeMap<LockWait, Waiting>,
    next_wait: u64,
    mounts: u64,
    /// Ranges by group, and in all.
    by_group: BTreeMap<(u8, u64), usize>,
    ranges: usize,
    contested: BTreeSet<u64>,
}

/// See the module.
#[derive(Default)]
pub struct FileLocks {
    all: Mutex<AllLocks>,
}

impl std::fmt::Debug for FileLocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = self.locked();
        write!(f, "{} ranges, {} waits", all.ranges, all.waits.len())
    }
}

impl FileLocks {
    /// Returns a number for a mount, which no other has or had.
    #[must_use]
    pub fn new_mount(&self) -> u64 {
        let mut all = self.locked();
        all.mounts += 1;
        all.mounts
    }

    /// Locks a range, if no other owner's lock is in the way.
    ///
    /// # Errors
    /// The lock in the way, or a bound that is reached; nothing has changed then.
    pub fn lock(
        &self,
        file: LockedFile,
        owner: LockOwner,
        range: ByteRange,
        mode: LockMode,
    ) -> Result<(), LockRefusal> {
        let mut all = self.locked();
        all.lock(file, owner, range, mode)?;
        // An exclusive lock that became a shared one may be what others wait for.
        let granted = all.grant(file);
        drop(all);
        tell(granted);
        Ok(())
    }

    /// Locks a range, or waits for it: `granted` runs once the lock is held, unless the wait is cancelled before.
    ///
    /// # Errors
    /// A bound that is reached, or a deadlock.
    pub fn lock_or_wait(
        &self,
        file: LockedFile,
        owner: LockOwner,
        range: ByteRange,
        mode: LockMode,
        granted: impl FnOnce() + Send + 'static,
    ) -> Result<LockOutcome, LockRefusal> {
        match self.lock(file, owner, range, mode) {
            Ok(()) => return Ok(LockOutcome::Locked),
            Err(LockRefusal::Held(_)) => {}
            Err(other) => return Err(other),
        }
        let mut all = self.locked();
        let waiting = Waiting {
            file,
            range,
            mode,
            granted: Box::new(granted),
        };
        let wait = all.wait(owner, waiting)?;
        // What was in the way may have ended in between.
        let granted = all.grant(file);
        drop(all);
        tell(granted);
        Ok(LockOutcome::Waiting(wait))
    }

    /// Ends a wait; false when the lock was granted before, or the wait is none.
    pub fn cancel(&self, wait: LockWait) -> bool {
        self.locked().end_wait(wait).is_some()
    }

    /// Returns a lock of another owner that is in the way of a lock.
    #[must_use]
    pub fn conflict(
        &self,
        file: LockedFile,
        owner: LockOwner,
        range: ByteRange,
        mode: LockMode,
    ) -> Option<HeldLock<LockOwner>> {
        let mut all = self.locked();
        let held = all.files.get(&file)?.locks.conflict(owner, range, mode)?;
        all.note_contested(owner, held.owner);
        Some(held)
    }

    /// Unlocks a range; what the owner does not hold of it stays unlocked.
    ///
    /// # Errors
    /// [`LockRefusal::TooMany`] when a range in the midst of another one would make two of it, and there is no room.
    pub fn unlock(
        &self,
        file: LockedFile,
        owner: LockOwner,
        range: ByteRange,
    ) -> Result<(), LockRefusal> {
        let mut all = self.locked();
        let splits = range.first() > 0 && range.last() < u64::MAX;
        if splits {
            all.check_room(file, owner)?;
        }
        all.change(file, owner, |locks| locks.unlock(owner, range));
        let granted = all.grant(file);
        drop(all);
        tell(granted);
        Ok(())
    }

    /// Ends all locks of an owner in a file.
    pub fn release(&self, file: LockedFile, owner: LockOwner) {
        let mut all = self.locked();
        if !all.files.contains_key(&file) {
            return;
        }
        all.change(file, owner, |locks| locks.release(owner));
        let granted = all.grant(file);
        drop(all);
        tell(granted);
    }

    /// Ends all locks and waits of the owners that `gone` names.
    pub fn release_where(&self, gone: impl Fn(LockOwner) -> bool) {
        let mut all = self.locked();
        let waits: Vec<LockWait> = all.waits.keys().copied().collect();
        for wait in waits.into_iter().filter(|wait| gone(wait.owner)) {
            all.end_wait(wait);
        }
        let files: Vec<LockedFile> = all.files.keys().copied().collect();
        let mut granted = Vec::new();
        for entry in all.files.values_mut() {
            entry.locks.release_where(&gone);
        }
        all.recount();
        for file in files {
            granted.extend(all.grant(file));
        }
        all.files
            .retain(|_, entry| !entry.locks.is_empty() || !entry.waits.is_empty());
        drop(all);
        tell(granted);
    }

    /// Returns whether an owner holds a lock in a file.
    #[must_use]
    pub fn is_held_by(&self, file: LockedFile, owner: LockOwner) -> bool {
        let all = self.locked();
        let entry = all.files.get(&file);
        entry.is_some_and(|entry| entry.locks.is_held_by(owner))
    }

    /// Returns whether who reads a file without asking may read what a lock denies it: one is exclusive, or waited for.
    #[must_use]
    pub fn denies_readers(&self, file: LockedFile) -> bool {
        let all = self.locked();
        let entry = all.files.get(&file);
        entry.is_some_and(|entry| entry.locks.is_any_exclusive() || !entry.waits.is_empty())
    }

    /// Returns whether who locks a file without asking would not see all locks: others than clients of NFSv4 hold one, or one is waited
    /// for.
    #[must_use]
    pub fn is_locked_outside_nfs4(&self, file: LockedFile) -> bool {
        let outside = |owner| !matches!(owner, LockOwner::Nfs4(_));
        let all = self.locked();
        let entry = all.files.get(&file);
        entry.is_some_and(|entry| entry.locks.owners().any(outside) || !entry.waits.is_empty())
    }

    /// Returns whether an owner of those that `of` names holds a lock or waits for one.
    #[must_use]
    pub fn is_any_held_by(&self, of: impl Fn(LockOwner) -> bool) -> bool {
        let all = self.locked();
        let holds = |entry: &FileEntry| entry.locks.owners().any(&of);
        all.waits.keys().any(|wait| of(wait.owner)) || all.files.values().any(holds)
    }

    /// Takes the numbers of the NFSv4 owners whose locks were in the way of other protocols: those that have gone silent are to lose
    /// them.
    #[must_use]
    pub fn take_contested(&self) -> BTreeSet<u64> {
        std::mem::take(&mut self.locked().contested)
    }

    fn locked(&self) -> MutexGuard<'_, AllLocks> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs what is to run once a lock is held, outside the table.
fn tell(granted: Vec<Granted>) {
    for granted in granted {
        granted();
    }
}

impl AllLocks {
    fn lock(
        &mut self,
        file: LockedFile,
        owner: LockOwner,
        range: ByteRange,
        mode: LockMode,
    ) -> Result<(), LockRefusal> {
        let locks = self.files.get(&file).map(|entry| &entry.locks);
        if let Some(held) = locks.and_then(|locks| locks.conflict(owner, range, mode)) {
            self.note_contested(owner, held.owner);
            return Err(LockRefusal::Held(held));
        }
        self.check_room(file, owner)?;
        self.change(file, owner, |locks| {
            let locked = locks.lock(owner, range, mode);
            assert!(locked.is_ok(), "a lock that was found free is free");
        });
        Ok(())
    }

    /// Checks that an owner may hold two ranges more: so many a change makes at most.
    fn check_room(&self, file: LockedFile, owner: LockOwner) -> Result<(), LockRefusal> {
        let (group, ranges_max) = owner.group();
        let of_group = self.by_group.get(&group).copied().unwrap_or(0);
        let of_file = self.files.get(&file).map_or(0, |entry| entry.locks.len());
        let full = of_group + 2 > ranges_max
            || of_file + 2 > FILE_RANGES_MAX
            || self.ranges + 2 > RANGES_MAX;
        if full {
            return Err(LockRefusal::TooMany);
        }
        Ok(())
    }

    /// Changes what one owner holds in a file, and counts it.
    fn change(
        &mut self,
        file: LockedFile,
        owner: LockOwner,
        change: impl FnOnce(&mut LockTable<LockOwner>),
    ) {
        let entry = self.files.entry(file).or_default();
        let before = entry.locks.len();
        change(&mut entry.locks);
        let after = entry.locks.len();
        if entry.locks.is_empty() && entry.waits.is_empty() {
            self.files.remove(&file);
        }
        self.ranges = self.ranges + after - before;
        let (group, _) = owner.group();
        let of_group = self.by_group.entry(group).or_default();
        *of_group = *of_group + after - before;
        if *of_group == 0 {
            self.by_group.remove(&group);
        }
    }

    fn recount(&mut self) {
        self.by_group.clear();
        for owner in self.files.values().flat_map(|entry| entry.locks.owners()) {
            *self.by_group.entry(owner.group().0).or_default() += 1;
        }
        self.ranges = self.by_group.values().sum();
    }

    fn wait(&mut self, owner: LockOwner, waiting: Waiting) -> Result<LockWait, LockRefusal> {
        let of_file = self.files.get(&waiting.file).map_or(0, |e| e.waits.len());
        if of_file >= FILE_WAITS_MAX || self.waits.len() >= WAITS_MAX {
            return Err(LockRefusal::TooMany);
        }
        self.check_room(waiting.file, owner)?;
        if self.would_wait_for(owner, &waiting) {
            return Err(LockRefusal::Deadlock);
        }
        self.next_wait += 1;
        let number = self.next_wait;
        let wait = LockWait { owner, number };
        let entry = self.files.entry(waiting.file).or_default();
        entry.waits.push(wait);
        self.waits.insert(wait, waiting);
        Ok(wait)
    }

    /// Returns whether an owner in whose way a wait of `owner` stands waits, itself or through others, for `owner`.
    fn would_wait_for(&self, owner: LockOwner, waiting: &Waiting) -> bool {
        let holders = |of: LockOwner, waiting: &Waiting| -> Vec<LockOwner> {
            let entry = self.files.get(&waiting.file).into_iter();
            entry
                .flat_map(|entry| entry.locks.conflicts(of, waiting.range, waiting.mode))
                .map(|held| held.owner)
                .collect()
        };
        let mut seen = BTreeSet::new();
        let mut to_follow = holders(owner, waiting);
        while let Some(holder) = to_follow.pop() {
            if holder == owner {
                return true;
            }
            if seen.insert(holder) {
                let from = LockWait {
                    owner: holder,
                    number: 0,
                };
                let its = self.waits.range(from..);
                let its = its.take_while(|(wait, _)| wait.owner == holder);
                to_follow.extend(its.flat_map(|(_, waiting)| holders(holder, waiting)));
            }
        }
        false
    }

    /// Gives the locks of a file that are free now to those who wait for them; returns what is to run then.
    fn grant(&mut self, file: LockedFile) -> Vec<Granted> {
        let mut granted = Vec::new();
        // A lock that is granted may make its owner's exclusive one a shared one, which others wait for.
        loop {
            let before = granted.len();
            self.grant_once(file, &mut granted);
            if granted.len() == before {
                return granted;
            }
        }
    }

    fn grant_once(&mut self, file: LockedFile, granted: &mut Vec<Granted>) {
        let waits = self.files.get(&file).map(|entry| entry.waits.clone());
        for wait in waits.into_iter().flatten() {
            let Some(waiting) = self.waits.get(&wait) else {
                continue;
            };
            let (range, mode) = (waiting.range, waiting.mode);
            // Where a bound is reached it goes on waiting.
            if self.lock(file, wait.owner, range, mode).is_ok() {
                granted.extend(self.end_wait(wait).map(|waiting| waiting.granted));
            }
        }
    }

    fn end_wait(&mut self, wait: LockWait) -> Option<Waiting> {
        let waiting = self.waits.remove(&wait)?;
        if let Some(entry) = self.files.get_mut(&waiting.file) {
            entry.waits.retain(|other| *other != wait);
            if entry.locks.is_empty() && entry.waits.is_empty() {
                self.files.remove(&waiting.file);
            }
        }
        Some(waiting)
    }

    fn note_contested(&mut self, wants: LockOwner, holds: LockOwner) {
        let other_protocol = !matches!(wants, LockOwner::Nfs4(_));
        if let (true, LockOwner::Nfs4(owner)) = (other_protocol, holds)
            && self.contested.len() < CONTESTED_MAX
        {
            self.contested.insert(owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LockMode::{Exclusive, Shared};
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const FILE: LockedFile = LockedFile {
        fs: 1,
        file: FileId {
            object: 2,
            generation: 3,
        },
    };

    fn nlm(process: u32) -> LockOwner {
        LockOwner::Nlm { host: 1, process }
    }

    fn mount(owner: u64) -> LockOwner {
        LockOwner::Mount { mount: 1, owner }
    }

    fn range(first: u64, last: u64) -> ByteRange {
        ByteRange::new(first, last).expect("not empty")
    }

    /// Waits for bytes 0 to 9 of a file; the count grows when the lock is granted.
    fn wait(
        locks: &FileLocks,
        file: LockedFile,
        owner: LockOwner,
        count: &Arc<AtomicUsize>,
    ) -> Result<LockOutcome, LockRefusal> {
        let count = Arc::clone(count);
        locks.lock_or_wait(file, owner, range(0, 9), Exclusive, move || {
            count.fetch_add(1, Ordering::Relaxed);
        })
    }

    #[test]
    fn locks_of_one_protocol_are_in_the_way_of_the_others() {
        let locks = FileLocks::default();
        let nfs4 = LockOwner::Nfs4(1);
        assert_eq!(locks.lock(FILE, nfs4, range(0, 9), Exclusive), Ok(()));
        for other in [nlm(1), mount(1), LockOwner::Nfs4(2)] {
            let refused = locks.lock(FILE, other, range(5, 20), Shared);
            assert!(matches!(refused, Err(LockRefusal::Held(held)) if held.owner == nfs4));
        }
        assert_eq!(locks.take_contested(), BTreeSet::from([1]));
        assert_eq!(locks.unlock(FILE, nfs4, range(0, 9)), Ok(()));
        assert_eq!(locks.lock(FILE, mount(1), range(5, 20), Shared), Ok(()));
        assert_eq!(locks.lock(FILE, nlm(1), range(5, 20), Shared), Ok(()));
        assert!(locks.take_contested().is_empty());
        locks.release_where(|owner| owner == nlm(1));
        assert!(!locks.is_held_by(FILE, nlm(1)) && locks.is_held_by(FILE, mount(1)));
    }

    #[test]
    fn waits_are_granted_in_order_and_end_when_cancelled() {
        let (locks, count) = (FileLocks::default(), Arc::default());
        assert_eq!(wait(&locks, FILE, nlm(1), &count), Ok(LockOutcome::Locked));
        let Ok(LockOutcome::Waiting(second)) = wait(&locks, FILE, nlm(2), &count) else {
            panic!("nlm 1 holds it")
        };
        assert!(matches!(
            wait(&locks, FILE, mount(3), &count),
            Ok(LockOutcome::Waiting(_))
        ));
        assert!(locks.cancel(second) && !locks.cancel(second));
        locks.release(FILE, nlm(1));
        assert!(locks.is_held_by(FILE, mount(3)));
        assert_eq!(count.load(Ordering::Relaxed), 1);
        // An exclusive lock that becomes shared lets in who waits for a shared one.
        let shared = locks.lock_or_wait(FILE, nlm(4), range(0, 0), Shared, || {});
        assert!(matches!(shared, Ok(LockOutcome::Waiting(_))));
        assert_eq!(locks.lock(FILE, mount(3), range(0, 9), Shared), Ok(()));
        assert!(locks.is_held_by(FILE, nlm(4)));
    }

    #[test]
    fn a_circle_of_waits_is_refused() {
        let (locks, count) = (FileLocks::default(), Arc::default());
        let file = |object| LockedFile {
            file: FileId {
                object,
                generation: 1,
            },
            ..FILE
        };
        for owner in 0..3_u32 {
            let locked = wait(&locks, file(owner.into()), nlm(owner), &count);
            assert_eq!(locked, Ok(LockOutcome::Locked));
        }
        for owner in 0..2_u32 {
            let waits = wait(&locks, file(u64::from(owner) + 1), nlm(owner), &count);
            assert!(matches!(waits, Ok(LockOutcome::Waiting(_))));
        }
        let circle = wait(&locks, file(0), nlm(2), &count);
        assert_eq!(circle, Err(LockRefusal::Deadlock));
        locks.release_where(|owner| owner == nlm(2));
        assert!(locks.is_held_by(file(2), nlm(1)));
    }

    #[test]
    fn ranges_and_waits_are_bounded_and_counted() {
        let (locks, count) = (FileLocks::default(), Arc::default());
        let mut taken = 0_u64;
        for file in 0..5 {
            let file = LockedFile { fs: file, ..FILE };
            for index in 0..100 {
                let at = range(2 * index, 2 * index);
                if locks.lock(file, nlm(1), at, Shared).is_ok() {
                    taken += 1;
                }
            }
        }
        assert!(taken <= GROUP_RANGES_MAX as u64 && taken > GROUP_RANGES_MAX as u64 - 8);
        let other = LockOwner::Nlm {
            host: 2,
            process: 1,
        };
        let free = LockedFile { fs: 9, ..FILE };
        assert_eq!(locks.lock(free, other, range(0, 9), Exclusive), Ok(()));
        let waits = (2..1000).filter(|process| wait(&locks, free, nlm(*process), &count).is_ok());
        assert_eq!(waits.count(), 0, "its client is at its bound already");
        locks.release_where(|owner| matches!(owner, LockOwner::Nlm { host: 1, .. }));
        let waits = (2..1000).filter(|process| wait(&locks, free, nlm(*process), &count).is_ok());
        assert_eq!(waits.count(), FILE_WAITS_MAX);
        locks.release_where(|_| true);
        let all = locks.locked();
        assert!(all.files.is_empty() && all.waits.is_empty());
        assert!(all.by_group.is_empty() && all.ranges == 0);
    }

    /// What a plain model says of one byte: who holds it, and how.
    type Byte = BTreeMap<LockOwner, LockMode>;

    /// A small generator (xorshift64*), so that a failure repeats by its seed.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: usize) -> usize {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            let value = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
            usize::try_from(value).expect("31 bits") % bound
        }
    }

    const BYTES: usize = 12;

    /// Compares the table with the model, and checks that nothing is waited for that is free.
    fn compare(locks: &FileLocks, model: &[Byte], seed: u64) {
        let all = locks.locked();
        for (at, byte) in (0..).zip(model) {
            for owner in [LockOwner::Nfs4(1), nlm(1), nlm(2), mount(1), mount(2)] {
                let entry = all.files.get(&FILE);
                // Another owner's shared lock would let a shared one in: an owner of none asks for both.
                let stranger = LockOwner::Nfs4(99);
                let held = entry.and_then(|entry| {
                    let held = entry.locks.conflicts(stranger, range(at, at), Exclusive);
                    held.filter(|held| held.owner == owner)
                        .map(|h| h.mode)
                        .next()
                });
                assert_eq!(held, byte.get(&owner).copied(), "seed {seed}, byte {at}");
            }
            let exclusive = byte.values().any(|mode| *mode == Exclusive);
            assert!(!exclusive || byte.len() == 1, "seed {seed}: held by two");
        }
        for (wait, waiting) in &all.waits {
            let locks = &all.files[&waiting.file].locks;
            let held = locks.conflict(wait.owner, waiting.range, waiting.mode);
            assert!(held.is_some(), "seed {seed}: what is waited for is free");
        }
        let ranges = all.files.values().map(|entry| entry.locks.len());
        assert_eq!(ranges.sum::<usize>(), all.ranges, "seed {seed}");
    }

    fn range_of_all() -> ByteRange {
        range(0, u64::MAX)
    }

    fn set(model: &mut [Byte], owner: LockOwner, range: ByteRange, mode: Option<LockMode>) {
        for (at, byte) in (0..).zip(model) {
            if range.first() <= at && at <= range.last() {
                match mode {
                    Some(mode) => byte.insert(owner, mode),
                    None => byte.remove(&owner),
                };
            }
        }
    }

    /// Random requests of five owners of three protocols: the table is what a model by bytes is, waits included.
    #[test]
    fn random_requests_lead_to_what_a_plain_model_has() {
        let owners = [LockOwner::Nfs4(1), nlm(1), nlm(2), mount(1), mount(2)];
        for seed in 1..=150 {
            let mut random = Random(seed);
            let (locks, mut waits) = (FileLocks::default(), Vec::new());
            let mut model = vec![Byte::new(); BYTES];
            let granted: Arc<Mutex<Vec<(LockOwner, ByteRange, LockMode)>>> = Arc::default();
            for _ in 0..120 {
                let owner = owners[random.below(5)];
                let first = random.below(BYTES);
                let last = first + random.below(BYTES - first);
                let range = range(first as u64, last as u64);
                let mode = [Shared, Exclusive][random.below(2)];
                match random.below(6) {
                    0 | 1 => {
                        if locks.lock(FILE, owner, range, mode).is_ok() {
                            set(&mut model, owner, range, Some(mode));
                        }
                    }
                    2 => {
                        let told = Arc::clone(&granted);
                        let tell =
                            move || told.lock().expect("no panic").push((owner, range, mode));
                        match locks.lock_or_wait(FILE, owner, range, mode, tell) {
                            Ok(LockOutcome::Locked) => set(&mut model, owner, range, Some(mode)),
                            Ok(LockOutcome::Waiting(wait)) => waits.push(wait),
                            Err(_) => {}
                        }
                    }
                    3 if !waits.is_empty() => {
                        let index = random.below(waits.len());
                        locks.cancel(waits.swap_remove(index));
                    }
                    4 if random.below(4) == 0 => {
                        locks.release_where(|other| other == owner);
                        set(&mut model, owner, range_of_all(), None);
                    }
                    _ => {
                        locks.unlock(FILE, owner, range).expect("there is room");
                        set(&mut model, owner, range, None);
                    }
                }
                // In the order in which they were granted.
                for (owner, range, mode) in granted.lock().expect("no panic").drain(..) {
                    set(&mut model, owner, range, Some(mode));
                }
                compare(&locks, &model, seed);
            }
        }
    }
}
