//! Files that clients read from their own caches without asking (read delegations), or read and write there (write delegations), and
//! what others do to such files, which is refused until the clients have given them back: changes of both, and reading of what one
//! client writes.
//!
//! A delegation is given on the pool's thread with the file's lock held. So does every change begin, and every read begins on that
//! thread: the later of the two sees the earlier one. A delegation ends on any thread. A change of a file costs one load while no file
//! of its group is delegated, a read one while none is delegated to be written.
//! What a holder is, how it is called and how long it may take is known to who delegates.
//!
//! After a restart there are no holders until clients have reclaimed what they had ([`ReclaimGrace`]). Until the time for that is over, who can hold
//! nothing changes no file of a file system in which some were delegated.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{FsError, FsResult, LockedFile, Timestamp};

/// Groups of files whose delegations are counted together.
const GROUPS: usize = 1024;

/// Has a delegation recalled, or revoked at once where what it was about is gone. Called by any thread that holds no lock of this
/// table; it must not wait.
pub type DelegationRecall = Arc<dyn Fn(LockedFile, u64, Recalled) + Send + Sync>;

/// Why a delegation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recalled {
    /// Another client wants to change the file, or to read what the holder may have written, and waits until it is given back.
    ForChange,
    /// The file is no longer what it was (a rollback, a receive): nothing waits.
    Replaced,
}

/// What a client does in its own cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DelegatedAccess {
    /// It reads, as others may.
    Read,
    /// It reads and writes, alone.
    Write {
        /// How often the client itself holds the file ([`Fs::hold`](crate::Fs::hold)): where it is held more often, others have it
        /// open, and it is not delegated.
        own_holds: u64,
    },
}

/// A file as one client has it delegated.
#[derive(Clone)]
pub struct Delegation {
    /// What for.
    pub access: DelegatedAccess,
    /// The client, by a number that is not 0: changes made by itself ([`Cred::holder`](crate::Cred::holder)) are not in its way.
    pub holder: u64,
    /// If the file was changed at this time or later, it is not delegated.
    pub unchanged_since: Option<Timestamp>,
    /// How the client is made to give it back.
    pub recall: DelegationRecall,
}

/// The holders of a file.
#[derive(Default)]
struct DelegatedFile {
    holders: BTreeMap<u64, FileHolder>,
}

struct FileHolder {
    recall: DelegationRecall,
    writes: bool,
    /// A change was refused: the holder knows, and there is no further one.
    recalled: bool,
}

/// The file systems in which clients may yet reclaim what they had delegated before a restart. One for all pools.
#[derive(Debug, Default)]
pub struct ReclaimGrace {
    any: AtomicBool,
    file_systems: Mutex<BTreeSet<u64>>,
}

impl ReclaimGrace {
    /// Begins it, by the numbers of the file systems: before their pools are opened.
    pub fn begin(&self, file_systems: BTreeSet<u64>) {
        self.any.store(!file_systems.is_empty(), Ordering::Release);
        *self.locked() = file_systems;
    }

    /// Ends it.
    pub fn end(&self) {
        self.begin(BTreeSet::new());
    }

    /// Returns whether it is the time for reclaiming in a file system.
    #[must_use]
    pub fn is_in(&self, fs: u64) -> bool {
        self.any.load(Ordering::Acquire) && self.locked().contains(&fs)
    }

    fn locked(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        // A set is put in whole.
        self.file_systems
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The delegated files of a pool.
pub struct FileDelegations {
    grace: Arc<ReclaimGrace>,
    /// Files of a later generation were made since the pool was opened, and were not delegated before.
    earlier: u64,
    /// Delegations of the files of each group, and those of them that are to write.
    groups: [AtomicU32; GROUPS],
    writers: [AtomicU32; GROUPS],
    files: Mutex<BTreeMap<LockedFile, DelegatedFile>>,
}

impl Default for FileDelegations {
    fn default() -> Self {
        Self::new(Arc::default(), u64::MAX)
    }
}

impl FileDelegations {
    /// Returns the table of a pool without delegations. Files of before the restart have generations up to `earlier`.
    #[must_use]
    pub fn new(grace: Arc<ReclaimGrace>, earlier: u64) -> Self {
        Self {
            grace,
            earlier,
            groups: [const { AtomicU32::new(0) }; GROUPS],
            writers: [const { AtomicU32::new(0) }; GROUPS],
            files: Mutex::default(),
        }
    }
}

impl std::fmt::Debug for FileDelegations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileDelegations").finish_non_exhaustive()
    }
}

impl FileDelegations {
    /// Returns the counts of a file's group: of delegations, and of those that are to write.
    fn group(&self, file: LockedFile) -> (&AtomicU32, &AtomicU32) {
        let mixed = (file.fs ^ file.file.object).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = usize::try_from(mixed >> 40).unwrap_or(0) % GROUPS;
        (&self.groups[index], &self.writers[index])
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<LockedFile, DelegatedFile>> {
        // Entries are whole: a panic elsewhere leaves none half made.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a delegation; false, and nothing is noted, while the file is being recalled, or where one of the delegations that
    /// it would have then is to write.
    pub(crate) fn give(&self, file: LockedFile, delegation: &Delegation) -> bool {
        let writes = delegation.access != DelegatedAccess::Read;
        let mut files = self.files();
        let holders = files.get(&file).map(|entry| &entry.holders);
        let mut others = holders.into_iter().flatten();
        if others.any(|(_, other)| other.recalled || other.writes || writes) {
            return false;
        }
        let holder = FileHolder {
            recall: Arc::clone(&delegation.recall),
            writes,
            recalled: false,
        };
        let entry = files.entry(file).or_default();
        let before = entry.holders.insert(delegation.holder, holder);
        assert!(!writes || entry.holders.len() == 1, "who writes is alone");
        let (group, writers) = self.group(file);
        if before.is_none() {
            group.fetch_add(1, Ordering::Relaxed);
            writers.fetch_add(u32::from(writes), Ordering::Relaxed);
        }
        true
    }

    /// Ends a delegation, if there is one.
    pub fn give_back(&self, file: LockedFile, holder: u64) {
        let mut files = self.files();
        let Some(entry) = files.get_mut(&file) else {
            return;
        };
        if let Some(ended) = entry.holders.remove(&holder) {
            let (group, writers) = self.group(file);
            group.fetch_sub(1, Ordering::Relaxed);
            writers.fetch_sub(u32::from(ended.writes), Ordering::Relaxed);
        }
        if entry.holders.is_empty() {
            files.remove(&file);
        }
    }

    /// Checks that a file may be changed for `holder` (0: for a client that can hold nothing). Those who have it delegated are
    /// made to give it back, with the first change that is refused. While it may be reclaimed, who can hold nothing is refused.
    ///
    /// # Errors
    /// [`FsError::Delegated`].
    pub fn check_change(&self, file: LockedFile, holder: u64) -> FsResult<()> {
        if holder == 0 && file.file.generation <= self.earlier && self.grace.is_in(file.fs) {
            // What was reclaimed already is given back meanwhile.
            self.recall_others(file, holder)?;
            return Err(FsError::Delegated);
        }
        // Who gave a file back may be seen late: then the table is looked at in vain.
        if self.group(file).0.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        self.recall_others(file, holder)
    }

    /// Checks that a file may be read for `holder` (0: for a client that can hold nothing): what another one writes it is made to give
    /// back, as by [`check_change`](Self::check_change).
    ///
    /// # Errors
    /// [`FsError::Delegated`].
    pub fn check_read(&self, file: LockedFile, holder: u64) -> FsResult<()> {
        match self.writer(file) {
            Some(writer) if writer != holder => self.recall_others(file, holder),
            _ => Ok(()),
        }
    }

    /// Returns who has a file delegated to write: what the file is like is known there.
    pub fn writer(&self, file: LockedFile) -> Option<u64> {
        if self.group(file).1.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let files = self.files();
        let mut holders = files.get(&file)?.holders.iter();
        holders.find_map(|(holder, held)| held.writes.then_some(*holder))
    }

    fn recall_others(&self, file: LockedFile, holder: u64) -> FsResult<()> {
        let mut files = self.files();
        let Some(entry) = files.get_mut(&file) else {
            return Ok(());
        };
        if entry.holders.keys().all(|of| *of == holder) {
            return Ok(());
        }
        let mut recalls = Vec::new();
        for (of, held) in entry.holders.iter_mut().filter(|(of, _)| **of != holder) {
            if !std::mem::replace(&mut held.recalled, true) {
                recalls.push((*of, Arc::clone(&held.recall)));
            }
        }
        drop(files);
        for (of, recall) in recalls {
            recall(file, of, Recalled::ForChange);
        }
        Err(FsError::Delegated)
    }

    /// Has all delegations of a file system revoked: its files were replaced.
    pub fn revoke_all(&self, fs: u64) {
        let files = self.files();
        let of_fs = files.iter().filter(|(file, _)| file.fs == fs);
        let recalls: Vec<_> = of_fs
            .flat_map(|(file, entry)| entry.holders.iter().map(|held| (*file, held)))
            .map(|(file, (of, held))| (file, *of, Arc::clone(&held.recall)))
            .collect();
        drop(files);
        for (file, of, recall) in recalls {
            recall(file, of, Recalled::Replaced);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileId;

    fn file(object: u64) -> LockedFile {
        let generation = 3;
        LockedFile {
            fs: 1,
            file: FileId { object, generation },
        }
    }

    type Calls = Arc<Mutex<Vec<(u64, u64, Recalled)>>>;

    fn delegation(holder: u64, calls: &Calls) -> Delegation {
        let calls = Arc::clone(calls);
        Delegation {
            access: DelegatedAccess::Read,
            holder,
            unchanged_since: None,
            recall: Arc::new(move |file, of, why| {
                let mut calls = calls.lock().expect("no panic");
                calls.push((file.file.object, of, why));
            }),
        }
    }

    fn taken(calls: &Calls) -> Vec<(u64, u64, Recalled)> {
        std::mem::take(&mut calls.lock().expect("no panic"))
    }

    #[test]
    fn a_change_is_refused_until_all_others_have_given_the_file_back() {
        let (files, calls) = (FileDelegations::default(), Calls::default());
        assert!(files.give(file(2), &delegation(7, &calls)));
        assert!(files.check_change(file(2), 7).is_ok(), "its own");
        assert!(files.check_change(file(3), 0).is_ok(), "another file");
        assert!(files.give(file(2), &delegation(8, &calls)));
        assert_eq!(files.check_change(file(2), 7), Err(FsError::Delegated));
        assert_eq!(taken(&calls), [(2, 8, Recalled::ForChange)]);
        assert_eq!(files.check_change(file(2), 7), Err(FsError::Delegated));
        assert!(taken(&calls).is_empty(), "recalled once");
        assert!(
            !files.give(file(2), &delegation(9, &calls)),
            "it is recalled"
        );
        files.give_back(file(2), 8);
        files.give_back(file(2), 8);
        assert!(files.check_change(file(2), 7).is_ok());
        files.give_back(file(2), 7);
        assert!(files.check_change(file(2), 0).is_ok());
        assert!(files.files().is_empty());
        let mut counts = files.groups.iter().chain(&files.writers);
        assert!(counts.all(|count| count.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn who_writes_a_file_is_alone_and_is_recalled_for_readers() {
        let (files, calls) = (FileDelegations::default(), Calls::default());
        let writes = |holder| Delegation {
            access: DelegatedAccess::Write { own_holds: 1 },
            ..delegation(holder, &calls)
        };
        assert!(files.give(file(2), &delegation(7, &calls)));
        assert!(files.check_read(file(2), 0).is_ok(), "only read there");
        assert!(!files.give(file(2), &writes(8)), "another one reads");
        assert!(!files.give(file(2), &writes(7)), "it has it");
        files.give_back(file(2), 7);
        assert!(files.give(file(2), &writes(8)));
        assert!(!files.give(file(2), &delegation(7, &calls)) && !files.give(file(2), &writes(7)));
        assert_eq!(
            (files.writer(file(2)), files.writer(file(3))),
            (Some(8), None)
        );
        assert!(files.check_read(file(2), 8).is_ok() && files.check_change(file(2), 8).is_ok());
        assert!(taken(&calls).is_empty());
        assert_eq!(files.check_read(file(2), 7), Err(FsError::Delegated));
        assert_eq!(files.check_change(file(2), 0), Err(FsError::Delegated));
        assert_eq!(taken(&calls), [(2, 8, Recalled::ForChange)], "once");
        files.give_back(file(2), 8);
        assert!(files.check_read(file(2), 7).is_ok());
        let mut counts = files.groups.iter().chain(&files.writers);
        assert!(counts.all(|count| count.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn a_holder_that_its_own_change_spared_is_recalled_for_a_strangers() {
        let (files, calls) = (FileDelegations::default(), Calls::default());
        assert!(files.give(file(2), &delegation(7, &calls)));
        assert!(files.give(file(2), &delegation(8, &calls)));
        assert_eq!(files.check_change(file(2), 7), Err(FsError::Delegated));
        files.give_back(file(2), 8);
        assert_eq!(files.check_change(file(2), 0), Err(FsError::Delegated));
        let all = [(2, 8, Recalled::ForChange), (2, 7, Recalled::ForChange)];
        assert_eq!(taken(&calls), all);
    }

    #[test]
    fn while_clients_reclaim_others_change_no_file_of_before() {
        let (grace, calls) = (Arc::new(ReclaimGrace::default()), Calls::default());
        let files = FileDelegations::new(Arc::clone(&grace), 3);
        let later = |mut of: LockedFile| {
            of.file.generation = 4;
            of
        };
        assert!(files.check_change(file(2), 0).is_ok());
        grace.begin([1].into());
        assert_eq!(files.check_change(file(2), 0), Err(FsError::Delegated));
        assert!(files.check_change(later(file(2)), 0).is_ok(), "a new one");
        let elsewhere = LockedFile { fs: 9, ..file(2) };
        assert!(files.check_change(elsewhere, 0).is_ok());
        assert!(files.check_read(file(2), 0).is_ok());
        assert!(
            files.check_change(file(2), 7).is_ok(),
            "by what it had open"
        );
        assert!(files.give(file(2), &delegation(7, &calls)));
        assert_eq!(files.check_change(file(2), 0), Err(FsError::Delegated));
        assert_eq!(taken(&calls), [(2, 7, Recalled::ForChange)]);
        files.give_back(file(2), 7);
        assert_eq!(files.check_change(file(2), 0), Err(FsError::Delegated));
        grace.end();
        assert!(files.check_change(file(2), 0).is_ok());
    }

    #[test]
    fn files_of_a_file_system_that_was_replaced_are_revoked() {
        let (files, calls) = (FileDelegations::default(), Calls::default());
        assert!(files.give(file(2), &delegation(7, &calls)));
        files.revoke_all(9);
        assert!(taken(&calls).is_empty());
        files.revoke_all(1);
        assert_eq!(taken(&calls), [(2, 7, Recalled::Replaced)]);
    }
}
