//! The attribute cache: attributes, names, extended attributes and access rights of files, as other threads may answer requests for
//! them without a request to the pool's thread.
//!
//! An entry is never older than the file. Every file has a version counter, shared with the files of the same hash. The counter
//! grows on the pool's thread in the moment in which the file's attributes or ACL change, and again before the lock on it is
//! released, which covers names: so before the change is answered. An entry carries the counter's value from before its content
//! was looked up, and is valid while the counter still has that value; what changes during the lookup makes it invalid at once.
//!
//! Extended attributes have version counters of their own: they outlast changes of a directory's names. Those of a file are cached as a
//! whole, so that one entry also says which there are not.
//!
//! Space used, the one attribute that changes without the file, settles when the txg of the last change is on disk: an entry
//! made before is valid until then. A change of settings, and the end of a dataset's use, invalidate all entries: both are rare.
//!
//! Bounded: a new entry replaces another one of its hash.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ondisk::Txg;

use crate::backing::AclType;
use crate::xattr_names::{Namespace, is_posix_list, namespace, shown_name, without_namespace};
use crate::{Access, Attr, Cred, FileId, FsError, FsResult, StoredXattr};

/// Entries of each table at most: 5 MiB when all are taken, a third of a megabyte when none is.
const ENTRIES: usize = 16384;
/// Version counters: files that share one invalidate each other's entries.
const COUNTERS: usize = 16384;
/// Longer names, and callers in more groups, are not cached.
const NAME_BYTES_MAX: usize = 255;
const GROUPS_MAX: usize = 64;
/// Entries of the table of extended attributes at most, and bytes of names and values of one: 16 MiB when all are as long as that.
const XATTR_ENTRIES: usize = 8192;
const XATTR_BYTES_MAX: usize = 2048;

/// The attribute cache of one pool, for any thread.
pub struct AttrCache {
    versions: Box<[AtomicU64]>,
    xattr_versions: Box<[AtomicU64]>,
    /// Grows when all entries are invalidated.
    epoch: AtomicU64,
    /// The last txg on disk.
    synced: Arc<AtomicU64>,
    attrs: Table<Attr>,
    names: Table<CachedName>,
    access: Table<CachedAccess>,
    xattrs: Table<CachedXattrs>,
}

impl fmt::Debug for AttrCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AttrCache")
    }
}

/// The versions that an entry was made at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryVersion {
    epoch: u64,
    file: u64,
    /// Valid until this txg is on disk.
    until: u64,
}

/// A name in a directory that this caller may search.
struct CachedName {
    dir: FileId,
    name: Box<[u8]>,
    caller: Caller,
    /// `None`: there is none of that name.
    file: Option<FileId>,
}

type Bytes = Box<[u8]>;

/// The extended attributes of a regular file or directory that has all of them in its own attributes.
pub(crate) struct CachedXattrs {
    of: FileId,
    /// Names as they are stored, and values.
    list: Vec<(Bytes, Bytes)>,
    /// Which access control lists are in force.
    acl_type: AclType,
}

/// The rights of a caller to a file.
struct CachedAccess {
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

/// Entries by hash.
struct Table<T>(Box<[Mutex<Slot<T>>]>);

/// An entry, with the file system it belongs to and its version.
type Slot<T> = Option<Box<(u64, EntryVersion, T)>>;

impl CachedXattrs {
    /// Makes an entry of names and values; `None` where they are too long to be cached.
    pub(crate) fn new<'a>(
        of: FileId,
        acl_type: AclType,
        all: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Option<Self> {
        let mut bytes = 0;
        let mut list = Vec::new();
        for (name, value) in all {
            bytes += name.len() + value.len();
            if bytes > XATTR_BYTES_MAX {
                return None;
            }
            list.push((name.into(), value.into()));
        }
        Some(Self { of, list, acl_type })
    }

    /// Returns a value, or that there is none; `None` where what it depends on is not known here.
    fn value(&self, name: &[u8]) -> Option<FsResult<Vec<u8>>> {
        let known = match namespace(name) {
            Some(Namespace::System) => self.acl_type == AclType::Posix && is_posix_list(name),
            Some(_) => true,
            None => false,
        };
        let stored = |wanted: &[u8]| self.list.iter().find(|(name, _)| **name == *wanted);
        let value = || stored(name).or_else(|| stored(without_namespace(name)?));
        known.then(|| match value() {
            Some((_, value)) => Ok(value.to_vec()),
            None => Err(FsError::NoAttribute),
        })
    }

    /// Returns all, as they are listed; `None` where there may be more than are stored.
    fn all(&self) -> Option<Vec<StoredXattr>> {
        let shown = |name: &[u8]| self.acl_type == AclType::Posix || !is_posix_list(name);
        let stored = self.list.iter().filter(|(name, _)| shown(name));
        let mut all: Vec<_> = stored
            .map(|(name, value)| StoredXattr {
                name: shown_name(name),
                size: value.len() as u64,
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        (self.acl_type != AclType::Nfsv4).then_some(all)
    }
}

impl<T> Table<T> {
    fn new(entries: usize) -> Self {
        Self((0..entries).map(|_| Mutex::new(None)).collect())
    }

    fn slot(&self, hash: u64) -> MutexGuard<'_, Slot<T>> {
        // Entries are put in whole: a panic elsewhere leaves none half made.
        self.0[index_of(hash, self.0.len())]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, hash: u64, fs: u64, version: EntryVersion, entry: T) {
        match &mut *self.slot(hash) {
            Some(slot) => **slot = (fs, version, entry),
            empty => *empty = Some(Box::new((fs, version, entry))),
        }
    }

    fn get<A>(
        &self,
        hash: u64,
        fs: u64,
        wanted: impl FnOnce(&T) -> bool,
        answer: impl FnOnce(&T) -> A,
    ) -> Option<(EntryVersion, A)> {
        let slot = self.slot(hash);
        let (of, version, entry) = slot.as_deref()?;
        (*of == fs && wanted(entry)).then(|| (*version, answer(entry)))
    }
}

impl AttrCache {
    /// Makes an empty cache of a pool whose last txg on disk is `synced`.
    #[must_use]
    pub fn new(synced: Arc<AtomicU64>) -> Self {
        Self {
            versions: (0..COUNTERS).map(|_| AtomicU64::new(0)).collect(),
            xattr_versions: (0..COUNTERS).map(|_| AtomicU64::new(0)).collect(),
            epoch: AtomicU64::new(0),
            synced,
            attrs: Table::new(ENTRIES),
            names: Table::new(ENTRIES),
            access: Table::new(ENTRIES),
            xattrs: Table::new(XATTR_ENTRIES),
        }
    }

    /// Returns a file's attributes, as [`Fs::getattr`](crate::Fs::getattr) would now, if they are cached. `fs` is the number the
    /// file system was opened with.
    #[must_use]
    pub fn attr(&self, fs: u64, id: FileId) -> Option<Attr> {
        self.seen_attr(fs, id).map(|(_, attr)| attr)
    }

    fn seen_attr(&self, fs: u64, id: FileId) -> Option<(EntryVersion, Attr)> {
        let found = self.attrs.get(
            of_file(fs, id.object),
            fs,
            |attr| attr.id == id,
            Attr::clone,
        );
        found.filter(|(version, _)| self.is_valid(*version, fs, id))
    }

    /// Returns the attributes of the file that a name leads to, and those of the directory, if they are cached with the caller's
    /// right to search it.
    #[must_use]
    pub fn search(&self, fs: u64, dir: FileId, name: &[u8], cred: &Cred) -> Option<(Attr, Attr)> {
        let (version, file) = self.seen_name(fs, dir, name, cred)?;
        let (_, attr) = self.seen_attr(fs, file?)?;
        // Last, and of the same count: the name led there while the file's attributes were looked at.
        let (dir_version, dir_attr) = self.seen_attr(fs, dir)?;
        (version.epoch == dir_version.epoch && version.file == dir_version.file)
            .then_some((attr, dir_attr))
    }

    /// Returns true if it is cached that the caller may search a directory, and that it has no such name.
    #[must_use]
    pub fn is_absent(&self, fs: u64, dir: FileId, name: &[u8], cred: &Cred) -> bool {
        let seen = self.seen_name(fs, dir, name, cred);
        seen.is_some_and(|(version, file)| file.is_none() && self.is_valid(version, fs, dir))
    }

    fn seen_name(
        &self,
        fs: u64,
        dir: FileId,
        name: &[u8],
        cred: &Cred,
    ) -> Option<(EntryVersion, Option<FileId>)> {
        self.names.get(
            of_name(fs, dir, name, cred),
            fs,
            |named| named.dir == dir && *named.name == *name && named.caller.is(cred),
            |named| named.file,
        )
    }

    /// Returns the value of an extended attribute as root reads it, or that there is none, if that is cached.
    #[must_use]
    pub fn xattr(&self, fs: u64, id: FileId, name: &[u8]) -> Option<FsResult<Vec<u8>>> {
        self.seen_xattrs(fs, id, |xattrs| xattrs.value(name))
    }

    /// Returns the extended attributes of a file as root lists them, if they are cached.
    #[must_use]
    pub fn xattrs(&self, fs: u64, id: FileId) -> Option<Vec<StoredXattr>> {
        self.seen_xattrs(fs, id, CachedXattrs::all)
    }

    fn seen_xattrs<A>(
        &self,
        fs: u64,
        id: FileId,
        look: impl FnOnce(&CachedXattrs) -> Option<A>,
    ) -> Option<A> {
        let (version, seen) =
            self.xattrs
                .get(of_file(fs, id.object), fs, |xattrs| xattrs.of == id, look)?;
        let counter = &self.xattr_versions[index_of(of_file(fs, id.object), COUNTERS)];
        let valid = version.file == counter.load(Ordering::SeqCst)
            && version.epoch == self.epoch.load(Ordering::SeqCst);
        seen.filter(|_| valid)
    }

    /// Returns which of the wanted rights the caller has, if that is cached.
    #[must_use]
    pub fn access(&self, fs: u64, id: FileId, wanted: Access, cred: &Cred) -> Option<Access> {
        let (version, granted) = self.access.get(
            of_caller(of_file(fs, id.object), cred),
            fs,
            |rights| rights.of == id && rights.caller.is(cred),
            |rights| rights.granted,
        )?;
        self.is_valid(version, fs, id)
            .then_some(Access(granted.0 & wanted.0))
    }

    /// Invalidates all entries: a dataset is closed, or settings changed.
    pub fn invalidate_all(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    fn is_valid(&self, version: EntryVersion, fs: u64, id: FileId) -> bool {
        version.file == self.version(fs, id.object).load(Ordering::SeqCst)
            && version.epoch == self.epoch.load(Ordering::SeqCst)
            && self.synced.load(Ordering::SeqCst) < version.until
    }

    fn version(&self, fs: u64, object: u64) -> &AtomicU64 {
        &self.versions[index_of(of_file(fs, object), COUNTERS)]
    }
}

/// Writes the cache entries of one file system, on the pool's thread.
#[derive(Debug, Clone)]
pub(crate) struct AttrCacheWriter {
    cache: Arc<AttrCache>,
    fs: u64,
    enabled: Rc<Cell<bool>>,
}

impl AttrCacheWriter {
    pub(crate) fn new(cache: Arc<AttrCache>, fs: u64) -> Self {
        Self {
            cache,
            fs,
            enabled: Rc::default(),
        }
    }

    /// Begins to cache. Not before the log is replayed: until then files are what they were before the crash.
    pub(crate) fn enable(&self) {
        self.enabled.set(true);
    }

    /// Invalidates the entries of a file that changes now.
    pub(crate) fn invalidate(&self, object: u64) {
        self.cache
            .version(self.fs, object)
            .fetch_add(1, Ordering::SeqCst);
    }

    /// Invalidates the extended attributes of a file: they change now, or it goes.
    pub(crate) fn invalidate_xattrs(&self, object: u64) {
        self.xattr_counter(object).fetch_add(1, Ordering::SeqCst);
    }

    fn xattr_counter(&self, object: u64) -> &AtomicU64 {
        &self.cache.xattr_versions[index_of(of_file(self.fs, object), COUNTERS)]
    }

    /// Caches the extended attributes that a file has now.
    pub(crate) fn put_xattrs(&self, xattrs: CachedXattrs) {
        if !self.enabled.get() {
            return;
        }
        let object = xattrs.of.object;
        let version = EntryVersion {
            epoch: self.cache.epoch.load(Ordering::SeqCst),
            file: self.xattr_counter(object).load(Ordering::SeqCst),
            until: u64::MAX,
        };
        let hash = of_file(self.fs, object);
        self.cache.xattrs.put(hash, self.fs, version, xattrs);
    }

    /// Returns the version for an entry of what is looked up from here on.
    pub(crate) fn version(&self, object: u64) -> EntryVersion {
        EntryVersion {
            epoch: self.cache.epoch.load(Ordering::SeqCst),
            file: self.cache.version(self.fs, object).load(Ordering::SeqCst),
            until: u64::MAX,
        }
    }

    /// Caches a file's attributes of now; `settles` is the txg in which the space used was changed last.
    pub(crate) fn put_attr(&self, attr: &Attr, settles: Txg) {
        if !self.enabled.get() {
            return;
        }
        let mut version = self.version(attr.id.object);
        if self.cache.synced.load(Ordering::SeqCst) < settles.0 {
            version.until = settles.0;
        }
        let hash = of_file(self.fs, attr.id.object);
        self.cache.attrs.put(hash, self.fs, version, attr.clone());
    }

    /// Caches what a name leads to, or that there is none, and that the caller may search the directory.
    pub(crate) fn put_name(
        &self,
        version: EntryVersion,
        dir: FileId,
        name: &[u8],
        cred: &Cred,
        file: Option<FileId>,
    ) {
        if !self.enabled.get() || name.len() > NAME_BYTES_MAX || cred.groups.len() > GROUPS_MAX {
            return;
        }
        let hash = of_name(self.fs, dir, name, cred);
        let named = CachedName {
            dir,
            name: name.into(),
            caller: Caller::new(cred),
            file,
        };
        self.cache.names.put(hash, self.fs, version, named);
    }

    /// Caches all rights of the caller to a file.
    pub(crate) fn put_access(
        &self,
        version: EntryVersion,
        of: FileId,
        cred: &Cred,
        granted: Access,
    ) {
        if !self.enabled.get() || cred.groups.len() > GROUPS_MAX {
            return;
        }
        let hash = of_caller(of_file(self.fs, of.object), cred);
        let rights = CachedAccess {
            of,
            caller: Caller::new(cred),
            granted,
        };
        self.cache.access.put(hash, self.fs, version, rights);
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

/// Returns the index of a hash in a table of `len` slots, a power of two.
fn index_of(hash: u64, len: usize) -> usize {
    usize::try_from(hash & (len as u64 - 1)).expect("below the length of the table")
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

    fn new_cache(synced: u64) -> (Arc<AttrCache>, AttrCacheWriter, Arc<AtomicU64>) {
        let synced = Arc::new(AtomicU64::new(synced));
        let cache = Arc::new(AttrCache::new(synced.clone()));
        let writer = AttrCacheWriter::new(cache.clone(), FS);
        writer.put_attr(&attr(3, 1), Txg(1));
        assert_eq!(cache.attr(FS, id(3)), None, "not enabled yet");
        writer.enable();
        (cache, writer, synced)
    }

    #[test]
    fn attributes_are_cached_until_they_change() {
        let (cache, writer, _) = new_cache(10);
        assert_eq!(cache.attr(FS, id(3)), None);
        writer.put_attr(&attr(3, 7), Txg(10));
        assert_eq!(cache.attr(FS, id(3)), Some(attr(3, 7)));
        assert_eq!(cache.attr(FS + 1, id(3)), None, "another file system");
        let other = FileId {
            object: 3,
            generation: 6,
        };
        assert_eq!(cache.attr(FS, other), None, "another file of the number");
        writer.invalidate(3);
        assert_eq!(cache.attr(FS, id(3)), None);
        writer.put_attr(&attr(3, 8), Txg(10));
        assert_eq!(cache.attr(FS, id(3)).map(|attr| attr.size), Some(8));
        cache.invalidate_all();
        assert_eq!(cache.attr(FS, id(3)), None);
    }

    /// Space used is what it will be when the txg of the last change is on disk.
    #[test]
    fn unsettled_attributes_are_valid_until_their_txg_is_on_disk() {
        let (cache, writer, synced) = new_cache(10);
        writer.put_attr(&attr(3, 7), Txg(12));
        synced.store(11, Ordering::SeqCst);
        assert!(cache.attr(FS, id(3)).is_some());
        synced.store(12, Ordering::SeqCst);
        assert_eq!(cache.attr(FS, id(3)), None);
        writer.put_attr(&attr(3, 7), Txg(12));
        synced.store(99, Ordering::SeqCst);
        assert!(cache.attr(FS, id(3)).is_some());
    }

    #[test]
    fn a_name_is_valid_for_its_caller_until_the_directory_or_file_changes() {
        let (cache, writer, _) = new_cache(10);
        let user = |uid, group| Cred {
            uid,
            gid: 1,
            groups: vec![group],
            opened: false,
            holder: 0,
        };
        let fill = |cred: &Cred| {
            let version = writer.version(2);
            writer.put_attr(&attr(2, 3), Txg(1));
            writer.put_attr(&attr(3, 7), Txg(1));
            writer.put_name(version, id(2), b"a name", cred, Some(id(3)));
        };
        fill(&user(1, 8));
        let expected = Some((attr(3, 7), attr(2, 3)));
        let search = |cred: &Cred, name: &[u8]| cache.search(FS, id(2), name, cred);
        assert_eq!(search(&user(1, 8), b"a name"), expected);
        assert_eq!(search(&user(2, 8), b"a name"), None, "another user");
        assert_eq!(search(&user(1, 9), b"a name"), None, "another group");
        assert_eq!(search(&user(1, 8), b"a nam"), None, "another name");
        for changes in [2, 3] {
            writer.invalidate(changes);
            assert_eq!(search(&user(1, 8), b"a name"), None);
            fill(&user(1, 8));
            assert_eq!(search(&user(1, 8), b"a name"), expected);
        }
        // Looked up before the change: not valid.
        let before = writer.version(2);
        writer.invalidate(2);
        writer.put_attr(&attr(2, 3), Txg(1));
        writer.put_name(before, id(2), b"a name", &user(1, 8), Some(id(3)));
        assert_eq!(search(&user(1, 8), b"a name"), None);
    }

    #[test]
    fn a_name_that_is_not_there_is_cached_until_the_directory_changes() {
        let (cache, writer, _) = new_cache(10);
        let cred = Cred::default();
        let absent = |name: &[u8]| cache.is_absent(FS, id(2), name, &cred);
        writer.put_name(writer.version(2), id(2), b"a name", &cred, None);
        assert!(absent(b"a name") && !absent(b"another"));
        assert!(!cache.is_absent(
            FS,
            id(2),
            b"a name",
            &Cred {
                uid: 7,
                ..cred.clone()
            }
        ));
        assert_eq!(cache.search(FS, id(2), b"a name", &cred), None);
        writer.invalidate(3);
        assert!(absent(b"a name"), "another file changed");
        writer.invalidate(2);
        assert!(!absent(b"a name"));
        writer.put_name(writer.version(2), id(2), b"a name", &cred, Some(id(3)));
        assert!(!absent(b"a name"));
    }

    #[test]
    fn extended_attributes_are_cached_as_a_whole_until_they_change() {
        let (cache, writer, _) = new_cache(10);
        let put = |lists, list: &[(&[u8], &[u8])]| {
            let entry = CachedXattrs::new(id(3), lists, list.iter().copied());
            writer.put_xattrs(entry.expect("short"));
        };
        let value = |name: &str| cache.xattr(FS, id(3), name.as_bytes());
        let there = |value: &[u8]| Some(Ok(value.to_vec()));
        let none = Some(Err(FsError::NoAttribute));
        assert_eq!(value("user.a"), None);
        put(
            AclType::Off,
            &[(b"user.a", b"1"), (b"bare", b"2"), (b"security.x", b"3")],
        );
        assert_eq!(
            (value("user.a"), value("user.b")),
            (there(b"1"), none.clone())
        );
        assert_eq!(
            (value("user.bare"), value("security.x")),
            (there(b"2"), there(b"3"))
        );
        assert_eq!((value("bare"), value("glusterfs.x")), (None, None));
        let listed = |cache: &AttrCache| {
            let all = cache.xattrs(FS, id(3))?;
            let sizes = all.into_iter().map(|x| (x.name, x.size));
            Some(sizes.collect::<Vec<_>>())
        };
        let shown = [(&b"security.x"[..], 1), (b"user.a", 1), (b"user.bare", 1)];
        let shown = shown.map(|(name, size)| (name.to_vec(), size));
        assert_eq!(listed(&cache), Some(shown.to_vec()));
        // Whether there are lists is for the file system to say.
        assert_eq!(value("system.posix_acl_access"), None);
        let another = FileId {
            generation: 6,
            ..id(3)
        };
        assert_eq!(cache.xattr(FS, another, b"user.a"), None);
        // Names of a directory, say.
        writer.invalidate(3);
        assert_eq!(value("user.a"), there(b"1"));
        writer.invalidate_xattrs(3);
        assert_eq!(value("user.a"), None);
        put(AclType::Posix, &[(b"system.posix_acl_access", b"4")]);
        assert_eq!(value("system.posix_acl_access"), there(b"4"));
        assert_eq!(value("system.posix_acl_default"), none);
        assert_eq!(value("system.nfs4_acl_xdr"), None);
        assert_eq!(listed(&cache).map(|all| all.len()), Some(1));
        put(AclType::Nfsv4, &[(b"user.a", b"5")]);
        assert_eq!((value("user.a"), listed(&cache)), (there(b"5"), None));
        cache.invalidate_all();
        assert_eq!(value("user.a"), None);
        let long = [0; XATTR_BYTES_MAX];
        let entry = CachedXattrs::new(
            id(3),
            AclType::Off,
            [(&b"user.a"[..], &long[..])].into_iter(),
        );
        assert!(entry.is_none());
    }

    #[test]
    fn access_is_cached_by_caller() {
        let (cache, writer, _) = new_cache(10);
        let user = |uid| Cred {
            uid,
            ..Cred::default()
        };
        writer.put_access(writer.version(3), id(3), &user(4), Access(0b111));
        let asked = |uid| cache.access(FS, id(3), Access(0b1010), &user(uid));
        assert_eq!(asked(4), Some(Access(0b10)));
        assert_eq!(asked(5), None);
        writer.invalidate(3);
        assert_eq!(asked(4), None);
    }

    /// Readers on other threads, while a file changes: no reader gets attributes older than the last answered change.
    #[test]
    fn no_reader_gets_stale_attributes() {
        let (cache, writer, _) = new_cache(10);
        let answered = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    loop {
                        let known = answered.load(Ordering::SeqCst);
                        if known == u64::MAX {
                            return;
                        }
                        if let Some(attr) = cache.attr(FS, id(3)) {
                            assert!(attr.size >= known, "{} after {known}", attr.size);
                        }
                    }
                });
            }
            for size in 1..20_000 {
                writer.invalidate(3);
                answered.store(size, Ordering::SeqCst);
                writer.put_attr(&attr(3, size), Txg(1));
            }
            answered.store(u64::MAX, Ordering::SeqCst);
        });
    }
}
