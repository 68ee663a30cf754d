//! What was last told of files, for other threads to tell again without a request to the pool's thread: attributes, what names
//! lead to, and who may do what.
//!
//! Nothing is told that is not so any more. Every file shares a count with the files of the same hash. The count grows on the
//! pool's thread in the moment in which the file's attributes or lists change, and again before the lock on it is given up,
//! which covers names: so before anybody is told of the change. An entry has the count that it was made at, and is good
//! while the count is still that. Counts are read before what they stand for, so what changes meanwhile is never kept.
//!
//! Space used, the one attribute that changes without the file, settles when the transaction group of the last change reaches
//! the disk: an entry made before that is good until then. Settings and whole datasets change seldom; then all is forgotten.
//!
//! Bounded: a new entry takes the place of another of its hash.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ondisk::Txg;

use crate::{Access, Attr, Cred, FileId};

/// Entries of each kind at most: 5 MiB when all are taken, a third of a megabyte when none is.
const ENTRIES: usize = 16384;
/// Counts: files that share one cost each other entries, never truth.
const COUNTS: usize = 16384;
/// Longer names, and callers in more groups, are not remembered.
const NAME_BYTES_MAX: usize = 255;
const GROUPS_MAX: usize = 64;

/// One pool's table, for any thread.
pub struct Lookaside {
    counts: Box<[AtomicU64]>,
    /// Grows when everything is forgotten.
    epoch: AtomicU64,
    /// The last transaction group on disk.
    synced: Arc<AtomicU64>,
    attrs: Table<Attr>,
    names: Table<Named>,
    rights: Table<Rights>,
}

impl fmt::Debug for Lookaside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lookaside")
    }
}

/// When something was seen to be so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    epoch: u64,
    count: u64,
    /// Good until this group is on disk.
    until: u64,
}

/// A name in a directory that this caller may search.
struct Named {
    dir: FileId,
    name: Box<[u8]>,
    caller: Caller,
    file: FileId,
}

/// What a caller may do to a file.
struct Rights {
    of: FileId,
    caller: Caller,
    granted: Access,
}

#[derive(PartialEq, Eq)]
struct Caller {
    uid: u32,
    gid: u32,
    groups: Box<[u32]>,
}

impl Caller {
    fn new(cred: &Cred) -> Self {
        Self {
            uid: cred.uid,
            gid: cred.gid,
            groups: cred.groups.as_slice().into(),
        }
    }

    fn is(&self, cred: &Cred) -> bool {
        self.uid == cred.uid && self.gid == cred.gid && *self.groups == *cred.groups
    }
}

/// Entries by hash, each of a file system.
struct Table<T>(Box<[Place<T>]>);

/// A place for an entry: the file system it is of, when it was so, and what.
type Place<T> = Mutex<Option<Box<(u64, Seen, T)>>>;

impl<T> Table<T> {
    fn new() -> Self {
        Self((0..ENTRIES).map(|_| Mutex::new(None)).collect())
    }

    fn place(&self, hash: u64) -> MutexGuard<'_, Option<Box<(u64, Seen, T)>>> {
        // Entries are put in whole: a panic elsewhere leaves none half made.
        self.0[slot(hash, ENTRIES)]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, hash: u64, fs: u64, seen: Seen, entry: T) {
        match &mut *self.place(hash) {
            Some(place) => **place = (fs, seen, entry),
            empty => *empty = Some(Box::new((fs, seen, entry))),
        }
    }

    fn get<A>(
        &self,
        hash: u64,
        fs: u64,
        wanted: impl FnOnce(&T) -> bool,
        answer: impl FnOnce(&T) -> A,
    ) -> Option<(Seen, A)> {
        let place = self.place(hash);
        let (of, seen, entry) = place.as_deref()?;
        (*of == fs && wanted(entry)).then(|| (*seen, answer(entry)))
    }
}

impl Lookaside {
    /// Makes an empty table of a pool whose last transaction group on disk is `synced`.
    #[must_use]
    pub fn new(synced: Arc<AtomicU64>) -> Self {
        Self {
            counts: (0..COUNTS).map(|_| AtomicU64::new(0)).collect(),
            epoch: AtomicU64::new(0),
            synced,
            attrs: Table::new(),
            names: Table::new(),
            rights: Table::new(),
        }
    }

    /// Returns a file's attributes, as [`Fs::getattr`](crate::Fs::getattr) would now, if they are known. `fs` is the number the
    /// file system was opened with.
    #[must_use]
    pub fn attr(&self, fs: u64, id: FileId) -> Option<Attr> {
        self.seen_attr(fs, id).map(|(_, attr)| attr)
    }

    fn seen_attr(&self, fs: u64, id: FileId) -> Option<(Seen, Attr)> {
        let found = self.attrs.get(
            of_file(fs, id.object),
            fs,
            |attr| attr.id == id,
            Attr::clone,
        );
        found.filter(|(seen, _)| self.is_so(*seen, fs, id))
    }

    /// Returns the attributes of the file that a name leads to, and those of the directory, if they are known and the caller is
    /// known to be allowed to search it.
    #[must_use]
    pub fn search(&self, fs: u64, dir: FileId, name: &[u8], cred: &Cred) -> Option<(Attr, Attr)> {
        let (seen, file) = self.names.get(
            of_name(fs, dir, name, cred),
            fs,
            |named| named.dir == dir && *named.name == *name && named.caller.is(cred),
            |named| named.file,
        )?;
        let (_, attr) = self.seen_attr(fs, file)?;
        // Last, and of the same count: the name led there while the file's attributes were looked at.
        let (seen_dir, dir_attr) = self.seen_attr(fs, dir)?;
        (seen.epoch == seen_dir.epoch && seen.count == seen_dir.count).then_some((attr, dir_attr))
    }

    /// Returns which of the wanted rights the caller has, if that is known.
    #[must_use]
    pub fn access(&self, fs: u64, id: FileId, wanted: Access, cred: &Cred) -> Option<Access> {
        let (seen, granted) = self.rights.get(
            of_caller(of_file(fs, id.object), cred),
            fs,
            |rights| rights.of == id && rights.caller.is(cred),
            |rights| rights.granted,
        )?;
        self.is_so(seen, fs, id)
            .then_some(Access(granted.0 & wanted.0))
    }

    /// Forgets everything: a dataset is closed, or settings changed.
    pub fn forget(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    fn is_so(&self, seen: Seen, fs: u64, id: FileId) -> bool {
        seen.count == self.count(fs, id.object).load(Ordering::SeqCst)
            && seen.epoch == self.epoch.load(Ordering::SeqCst)
            && self.synced.load(Ordering::SeqCst) < seen.until
    }

    fn count(&self, fs: u64, object: u64) -> &AtomicU64 {
        &self.counts[slot(of_file(fs, object), COUNTS)]
    }
}

/// One file system's part of the table, on the pool's thread.
#[derive(Debug, Clone)]
pub(crate) struct Telling {
    table: Arc<Lookaside>,
    fs: u64,
    begun: Rc<Cell<bool>>,
}

impl Telling {
    pub(crate) fn new(table: Arc<Lookaside>, fs: u64) -> Self {
        Self {
            table,
            fs,
            begun: Rc::default(),
        }
    }

    /// From here on others are told. Before, the log has to be replayed: what files are like meanwhile is their past.
    pub(crate) fn begin(&self) {
        self.begun.set(true);
    }

    /// A file changes now.
    pub(crate) fn changed(&self, object: u64) {
        self.table
            .count(self.fs, object)
            .fetch_add(1, Ordering::SeqCst);
    }

    /// Returns what makes an entry of what is looked at from here on.
    pub(crate) fn seen(&self, object: u64) -> Seen {
        Seen {
            epoch: self.table.epoch.load(Ordering::SeqCst),
            count: self.table.count(self.fs, object).load(Ordering::SeqCst),
            until: u64::MAX,
        }
    }

    /// Remembers attributes that are so now; `settles` is the group in which the space used was changed last.
    pub(crate) fn attr(&self, attr: &Attr, settles: Txg) {
        if !self.begun.get() {
            return;
        }
        let mut seen = self.seen(attr.id.object);
        if self.table.synced.load(Ordering::SeqCst) < settles.0 {
            seen.until = settles.0;
        }
        let hash = of_file(self.fs, attr.id.object);
        self.table.attrs.put(hash, self.fs, seen, attr.clone());
    }

    /// Remembers what a name leads to, and that the caller may search the directory.
    pub(crate) fn name(&self, seen: Seen, dir: FileId, name: &[u8], cred: &Cred, file: FileId) {
        if !self.begun.get() || name.len() > NAME_BYTES_MAX || cred.groups.len() > GROUPS_MAX {
            return;
        }
        let hash = of_name(self.fs, dir, name, cred);
        let named = Named {
            dir,
            name: name.into(),
            caller: Caller::new(cred),
            file,
        };
        self.table.names.put(hash, self.fs, seen, named);
    }

    /// Remembers everything that the caller may do to a file.
    pub(crate) fn rights(&self, seen: Seen, of: FileId, cred: &Cred, granted: Access) {
        if !self.begun.get() || cred.groups.len() > GROUPS_MAX {
            return;
        }
        let hash = of_caller(of_file(self.fs, of.object), cred);
        let rights = Rights {
            of,
            caller: Caller::new(cred),
            granted,
        };
        self.table.rights.put(hash, self.fs, seen, rights);
    }
}

fn of_file(fs: u64, object: u64) -> u64 {
    mix(mix(fs, object), 0)
}

fn of_caller(hash: u64, cred: &Cred) -> u64 {
    let ids = u64::from(cred.uid) << 32 | u64::from(cred.gid);
    cred.groups
        .iter()
        .fold(mix(hash, ids), |hash, group| mix(hash, u64::from(*group)))
}

fn of_name(fs: u64, dir: FileId, name: &[u8], cred: &Cred) -> u64 {
    let hash = name.chunks(8).fold(of_file(fs, dir.object), |hash, part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        mix(hash, u64::from_le_bytes(word))
    });
    of_caller(hash, cred)
}

/// Adds a word to a hash: the finalizer of splitmix64 (Steele, Lea, Flood 2014).
fn mix(hash: u64, word: u64) -> u64 {
    let mut z = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns the place of a hash among so many, a power of two.
fn slot(hash: u64, places: usize) -> usize {
    usize::try_from(hash & (places as u64 - 1)).expect("below the number of places")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceNumber, FileType, Timestamp};

    const FS: u64 = 77;

    fn id(object: u64) -> FileId {
        FileId {
            object,
            generation: 5,
        }
    }

    fn attr(object: u64, size: u64) -> Attr {
        let time = Timestamp {
            seconds: 1,
            nanoseconds: 2,
        };
        Attr {
            id: id(object),
            file_type: FileType::Regular,
            mode: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            size,
            used: 512,
            rdev: DeviceNumber::default(),
            block_size: 512,
            fsid: FS,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            change: 0,
            flags: 0,
            project: 0,
            parent: 2,
        }
    }

    fn table(synced: u64) -> (Arc<Lookaside>, Telling, Arc<AtomicU64>) {
        let synced = Arc::new(AtomicU64::new(synced));
        let table = Arc::new(Lookaside::new(synced.clone()));
        let telling = Telling::new(table.clone(), FS);
        telling.attr(&attr(3, 1), Txg(1));
        assert_eq!(table.attr(FS, id(3)), None, "it has not begun");
        telling.begin();
        (table, telling, synced)
    }

    #[test]
    fn attributes_are_told_until_they_change() {
        let (table, telling, _) = table(10);
        assert_eq!(table.attr(FS, id(3)), None);
        telling.attr(&attr(3, 7), Txg(10));
        assert_eq!(table.attr(FS, id(3)), Some(attr(3, 7)));
        assert_eq!(table.attr(FS + 1, id(3)), None, "another file system");
        let other = FileId {
            object: 3,
            generation: 6,
        };
        assert_eq!(table.attr(FS, other), None, "another file of the number");
        telling.changed(3);
        assert_eq!(table.attr(FS, id(3)), None);
        telling.attr(&attr(3, 8), Txg(10));
        assert_eq!(table.attr(FS, id(3)).map(|attr| attr.size), Some(8));
        table.forget();
        assert_eq!(table.attr(FS, id(3)), None);
    }

    /// Space used is what it will be when the group of the last change is on disk.
    #[test]
    fn what_has_not_settled_is_told_until_it_has() {
        let (table, telling, synced) = table(10);
        telling.attr(&attr(3, 7), Txg(12));
        synced.store(11, Ordering::SeqCst);
        assert!(table.attr(FS, id(3)).is_some());
        synced.store(12, Ordering::SeqCst);
        assert_eq!(table.attr(FS, id(3)), None);
        telling.attr(&attr(3, 7), Txg(12));
        synced.store(99, Ordering::SeqCst);
        assert!(table.attr(FS, id(3)).is_some());
    }

    #[test]
    fn a_name_is_told_to_who_may_search_while_nothing_changed() {
        let (table, telling, _) = table(10);
        let user = |uid, group| Cred {
            uid,
            gid: 1,
            groups: vec![group],
            opened: false,
        };
        let tell = |cred: &Cred| {
            let seen = telling.seen(2);
            telling.attr(&attr(2, 3), Txg(1));
            telling.attr(&attr(3, 7), Txg(1));
            telling.name(seen, id(2), b"a name", cred, id(3));
        };
        tell(&user(1, 8));
        let expected = Some((attr(3, 7), attr(2, 3)));
        let search = |cred: &Cred, name: &[u8]| table.search(FS, id(2), name, cred);
        assert_eq!(search(&user(1, 8), b"a name"), expected);
        assert_eq!(search(&user(2, 8), b"a name"), None, "another user");
        assert_eq!(search(&user(1, 9), b"a name"), None, "another group");
        assert_eq!(search(&user(1, 8), b"a nam"), None, "another name");
        for changes in [2, 3] {
            telling.changed(changes);
            assert_eq!(search(&user(1, 8), b"a name"), None);
            tell(&user(1, 8));
            assert_eq!(search(&user(1, 8), b"a name"), expected);
        }
        // Looked at before the change: not to be kept.
        let before = telling.seen(2);
        telling.changed(2);
        telling.attr(&attr(2, 3), Txg(1));
        telling.name(before, id(2), b"a name", &user(1, 8), id(3));
        assert_eq!(search(&user(1, 8), b"a name"), None);
    }

    #[test]
    fn rights_are_those_of_one_caller() {
        let (table, telling, _) = table(10);
        let user = |uid| Cred {
            uid,
            ..Cred::default()
        };
        telling.rights(telling.seen(3), id(3), &user(4), Access(0b111));
        let asked = |uid| table.access(FS, id(3), Access(0b1010), &user(uid));
        assert_eq!(asked(4), Some(Access(0b10)));
        assert_eq!(asked(5), None);
        telling.changed(3);
        assert_eq!(asked(4), None);
    }

    /// Readers on other threads, while files change: nobody is told a state older than one he was told of before.
    #[test]
    fn no_reader_sees_the_past() {
        let (table, telling, _) = table(10);
        let told = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    loop {
                        let known = told.load(Ordering::SeqCst);
                        if known == u64::MAX {
                            return;
                        }
                        if let Some(attr) = table.attr(FS, id(3)) {
                            assert!(attr.size >= known, "{} after {known}", attr.size);
                        }
                    }
                });
            }
            for size in 1..20_000 {
                telling.changed(3);
                told.store(size, Ordering::SeqCst);
                telling.attr(&attr(3, size), Txg(1));
            }
            told.store(u64::MAX, Ordering::SeqCst);
        });
    }
}
