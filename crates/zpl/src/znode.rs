//! Files in memory: attributes decoded once, locks, holds; and the cache of them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use ondisk::{ObjectId, Txg};

use crate::attr_cache::{AttrCacheWriter, CachedXattrs, EntryVersion};
use crate::sa::attrs::{Shape, timestamp};
use crate::sa::{Attrs, Plan};
use crate::{Access, Attr, Cred, DeviceNumber, FileId, FileType, FsError, FsResult, WccAttr};
use runtime::sync::{RangeGuard, RangeLock, WHOLE_RANGE};

/// Flag: an object of the hidden tree of extended attributes.
pub(crate) const XATTR: u64 = 0x1;
/// Flag: the list says what the mode says.
pub(crate) const ACL_TRIVIAL: u64 = 0x4;
/// Flag: set on directories as OpenZFS does.
pub(crate) const ACL_AUTO_INHERIT: u64 = 0x40;
/// Flag: a hint that every user may execute.
pub(crate) const NO_EXECS_DENIED: u64 = 0x100;
/// Flag: the object has a project id.
pub(crate) const PROJID: u64 = 0x8000_0000_0000;

/// One file in memory.
///
/// Lock order: `ranges`, then `lock`, then a transaction. `lock` guards names in a directory and orders all changes of
/// attributes; attributes themselves may be read at any time.
#[derive(Debug)]
pub(crate) struct Znode {
    pub(crate) object: u64,
    pub(crate) generation: u64,
    pub(crate) attrs: RefCell<Attrs>,
    /// Bytes of a data block.
    pub(crate) block_size: Cell<u32>,
    /// Slots of the dnode, for the room in its bonus.
    pub(crate) slots: u8,
    /// Locks on bytes of the content.
    pub(crate) ranges: RangeLock,
    pub(crate) lock: RangeLock,
    /// The layouts of the attributes as last stored, with what they were made for.
    pub(crate) plan: RefCell<Option<(Shape, Plan)>>,
    pub(crate) has_spill: Cell<bool>,
    /// The bonus is the legacy record.
    pub(crate) legacy: Cell<bool>,
    /// The object that holds the ACL for which the legacy record has no room, or 0.
    pub(crate) acl_object: Cell<u64>,
    pub(crate) holds: Cell<u64>,
    /// No name is left; the object is in the unlinked set.
    pub(crate) unlinked: Cell<bool>,
    /// The object is freed.
    pub(crate) dead: Cell<bool>,
    /// The access time in memory is newer than the stored one.
    pub(crate) atime_dirty: Cell<bool>,
    /// Newest txg with a change.
    pub(crate) last_txg: Cell<Txg>,
    /// When the file's POSIX ACL was looked at, see [`Fs::look_at_acl`](crate::Fs).
    pub(crate) acl_seen: Cell<u32>,
    /// Writes the file's entries of the attribute cache.
    attr_cache: Option<AttrCacheWriter>,
    /// The lock is held for changes.
    changing: Cell<bool>,
    /// The attributes as they were told last under that lock, if they did not change since: cached when it is released.
    told: RefCell<Option<Attr>>,
    /// The open txg when it came into memory: space used may have changed until then.
    since: Txg,
    referenced: Cell<bool>,
}

/// The right to change a file's attributes or, of a directory, its names. Its end invalidates what is cached of the file.
pub(crate) struct Exclusive<'a> {
    znode: &'a Znode,
    _lock: RangeGuard<'a>,
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        let told = self.znode.told.take();
        self.znode.changing.set(false);
        self.znode.invalidate_cached();
        if let Some(attr) = told {
            self.znode.cache_attr(&attr);
        }
    }
}

/// What a znode is made from.
pub(crate) struct ZnodeParts {
    pub(crate) object: u64,
    pub(crate) attrs: Attrs,
    pub(crate) plan: Option<Plan>,
    pub(crate) block_size: u32,
    pub(crate) slots: u8,
    pub(crate) has_spill: bool,
    pub(crate) legacy: bool,
    pub(crate) acl_object: u64,
}

impl Znode {
    pub(crate) fn new(parts: ZnodeParts, attr_cache: Option<AttrCacheWriter>, since: Txg) -> Self {
        let shape = parts.attrs.shape();
        Self {
            object: parts.object,
            generation: parts.attrs.generation,
            attrs: RefCell::new(parts.attrs),
            block_size: Cell::new(parts.block_size),
            slots: parts.slots,
            ranges: RangeLock::default(),
            lock: RangeLock::default(),
            plan: RefCell::new(parts.plan.map(|plan| (shape, plan))),
            has_spill: Cell::new(parts.has_spill),
            legacy: Cell::new(parts.legacy),
            acl_object: Cell::new(parts.acl_object),
            holds: Cell::new(0),
            unlinked: Cell::new(false),
            dead: Cell::new(false),
            atime_dirty: Cell::new(false),
            last_txg: Cell::new(Txg(0)),
            acl_seen: Cell::new(0),
            attr_cache,
            changing: Cell::new(false),
            told: RefCell::new(None),
            since,
            referenced: Cell::new(true),
        }
    }

    pub(crate) fn id(&self) -> FileId {
        FileId {
            object: self.object,
            generation: self.generation,
        }
    }

    pub(crate) fn object_id(&self) -> ObjectId {
        ObjectId(self.object)
    }

    pub(crate) fn file_type(&self) -> FileType {
        // The type is checked when the znode is made.
        FileType::of_mode(self.attrs.borrow().mode).unwrap_or(FileType::Regular)
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.attrs.borrow().mode >> 12 == 4
    }

    pub(crate) fn size(&self) -> u64 {
        self.attrs.borrow().size
    }

    pub(crate) fn flags(&self) -> u64 {
        self.attrs.borrow().flags
    }

    pub(crate) fn wcc(&self) -> WccAttr {
        let attrs = self.attrs.borrow();
        WccAttr {
            size: attrs.size,
            mtime: timestamp(attrs.mtime),
            ctime: timestamp(attrs.ctime),
        }
    }

    pub(crate) fn attr(&self, used: u64, fsid: u64) -> Attr {
        let attrs = self.attrs.borrow();
        let ctime = timestamp(attrs.ctime);
        Attr {
            id: self.id(),
            file_type: FileType::of_mode(attrs.mode).unwrap_or(FileType::Regular),
            mode: narrow(attrs.mode & 0o7777),
            links: attrs.links,
            uid: posix_id(attrs.uid),
            gid: posix_id(attrs.gid),
            size: attrs.size,
            used,
            rdev: attrs.rdev.map_or(DeviceNumber::default(), device_number),
            block_size: self.block_size.get(),
            fsid,
            atime: timestamp(attrs.atime),
            mtime: timestamp(attrs.mtime),
            ctime,
            crtime: timestamp(attrs.crtime),
            change: ctime
                .seconds
                .cast_unsigned()
                .wrapping_mul(1_000_000_000)
                .wrapping_add(u64::from(ctime.nanoseconds)),
            flags: attrs.flags & crate::flags::SETTABLE,
            project: narrow(attrs.project.unwrap_or(0) & 0xffff_ffff),
            parent: attrs.parent,
        }
    }

    /// Waits for the right to change the file's attributes or, of a directory, its names.
    ///
    /// # Errors
    /// [`FsError::Stale`] when the file was freed meanwhile.
    pub(crate) async fn exclusive(&self) -> FsResult<Exclusive<'_>> {
        let lock = self.lock.exclusive(WHOLE_RANGE).await;
        if self.dead.get() {
            Err(FsError::Stale)
        } else {
            self.changing.set(true);
            Ok(Exclusive {
                znode: self,
                _lock: lock,
            })
        }
    }

    /// Invalidates what the attribute cache has of the file, but for extended attributes.
    pub(crate) fn invalidate_cached(&self) {
        self.told.take();
        if let Some(attr_cache) = &self.attr_cache {
            attr_cache.invalidate(self.object);
        }
    }

    /// Invalidates what the attribute cache has of the file's extended attributes.
    pub(crate) fn invalidate_xattrs(&self) {
        if let Some(attr_cache) = &self.attr_cache {
            attr_cache.invalidate_xattrs(self.object);
        }
    }

    /// Caches the file's extended attributes of now.
    pub(crate) fn put_xattrs(&self, xattrs: CachedXattrs) {
        if let Some(attr_cache) = self.attr_cache() {
            attr_cache.put_xattrs(xattrs);
        }
    }

    /// The writer of the attribute cache, unless no request can name the file any more.
    fn attr_cache(&self) -> Option<&AttrCacheWriter> {
        let reachable = !self.unlinked.get() && !self.dead.get();
        self.attr_cache.as_ref().filter(|_| reachable)
    }

    /// Caches the file's attributes of now.
    pub(crate) fn cache_attr(&self, attr: &Attr) {
        let Some(attr_cache) = self.attr_cache() else {
            return;
        };
        attr_cache.put_attr(attr, self.last_txg.get().max(self.since));
        if self.changing.get() {
            *self.told.borrow_mut() = Some(attr.clone());
        }
    }

    /// Returns the version for a cache entry of what is looked up from here on.
    pub(crate) fn cache_version(&self) -> Option<EntryVersion> {
        self.attr_cache
            .as_ref()
            .map(|attr_cache| attr_cache.version(self.object))
    }

    /// Caches what a name in this directory leads to, or that there is none, and that the caller may search it.
    pub(crate) fn cache_name(
        &self,
        version: EntryVersion,
        name: &[u8],
        cred: &Cred,
        file: Option<FileId>,
    ) {
        if let Some(attr_cache) = self.attr_cache() {
            attr_cache.put_name(version, self.id(), name, cred, file);
        }
    }

    /// Caches all rights of the caller.
    pub(crate) fn cache_access(&self, version: EntryVersion, cred: &Cred, granted: Access) {
        if let Some(attr_cache) = self.attr_cache() {
            attr_cache.put_access(version, self.id(), cred, granted);
        }
    }

    pub(crate) fn set_unlinked(&self) {
        self.unlinked.set(true);
        self.invalidate_cached();
        self.invalidate_xattrs();
    }

    pub(crate) fn set_dead(&self) {
        self.dead.set(true);
        self.invalidate_cached();
        self.invalidate_xattrs();
    }

    pub(crate) fn set_block_size(&self, bytes: u32) {
        self.block_size.set(bytes);
        self.invalidate_cached();
    }

    /// Waits until no change of the directory's names is under way.
    ///
    /// # Errors
    /// [`FsError::Stale`] when the file was freed meanwhile.
    pub(crate) async fn shared(&self) -> FsResult<RangeGuard<'_>> {
        let guard = self.lock.shared(WHOLE_RANGE).await;
        if self.dead.get() {
            Err(FsError::Stale)
        } else {
            Ok(guard)
        }
    }
}

fn narrow(value: u64) -> u32 {
    u32::try_from(value).expect("masked to 32 bits")
}

/// Returns the POSIX id of an owner; ids of other domains, which need an identity service, have none.
pub(crate) fn posix_id(fuid: u64) -> u32 {
    u32::try_from(fuid).unwrap_or(65534)
}

/// Returns device numbers from their stored form, Linux's `dev_t`: major << 20 | minor.
pub(crate) fn device_number(rdev: u64) -> DeviceNumber {
    DeviceNumber {
        major: narrow((rdev >> 20) & 0xfff_ffff),
        minor: narrow(rdev & 0xf_ffff),
    }
}

/// Returns the stored form of device numbers.
pub(crate) fn stored_device(number: DeviceNumber) -> u64 {
    u64::from(number.major) << 20 | u64::from(number.minor & 0xf_ffff)
}

/// The znodes in memory, by object. Unused ones are dropped when there are too many.
#[derive(Debug)]
pub(crate) struct ZnodeCache {
    map: RefCell<BTreeMap<u64, Rc<Znode>>>,
    hand: Cell<u64>,
    limit: usize,
    /// Grows whenever a znode leaves, so that a task that loads one sees that its bytes may be old.
    departures: Cell<u64>,
}

impl ZnodeCache {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            map: RefCell::default(),
            hand: Cell::new(0),
            limit,
            departures: Cell::new(0),
        }
    }

    pub(crate) fn find(&self, object: u64) -> Option<Rc<Znode>> {
        let found = self.map.borrow().get(&object).cloned();
        if let Some(znode) = &found {
            znode.referenced.set(true);
        }
        found
    }

    pub(crate) fn departures(&self) -> u64 {
        self.departures.get()
    }

    /// Returns the znode of that object, taking `znode` if there is none.
    pub(crate) fn insert(&self, znode: Znode) -> Rc<Znode> {
        let znode = {
            let mut map = self.map.borrow_mut();
            Rc::clone(map.entry(znode.object).or_insert_with(|| Rc::new(znode)))
        };
        self.shrink();
        znode
    }

    pub(crate) fn remove(&self, object: u64) {
        self.departures.set(self.departures.get() + 1);
        self.map.borrow_mut().remove(&object);
    }

    /// Returns all znodes whose access time is to be stored.
    pub(crate) fn with_dirty_atime(&self) -> Vec<Rc<Znode>> {
        self.map
            .borrow()
            .values()
            .filter(|z| z.atime_dirty.get())
            .cloned()
            .collect()
    }

    /// Whether a file is held.
    pub(crate) fn any_held(&self) -> bool {
        self.map.borrow().values().any(|z| z.holds.get() > 0)
    }

    fn shrink(&self) {
        let mut map = self.map.borrow_mut();
        if map.len() <= self.limit {
            return;
        }
        // A hand goes round; what was used since it last came by stays. Bounded, so that an insertion stays cheap.
        let mut victims = [0u64; 16];
        let mut found = 0;
        let mut hand = self.hand.get();
        for _ in 0..64 {
            let next = map
                .range((Bound::Excluded(hand), Bound::Unbounded))
                .next()
                .or_else(|| map.iter().next());
            let Some((&object, znode)) = next else { break };
            hand = object;
            if znode.referenced.replace(false)
                || Rc::strong_count(znode) > 1
                || znode.holds.get() > 0
                || znode.unlinked.get()
                || znode.atime_dirty.get()
            {
                continue;
            }
            victims[found] = object;
            found += 1;
            if found == victims.len() {
                break;
            }
        }
        self.hand.set(hand);
        for object in &victims[..found] {
            let dropped = map.remove(object).expect("found above");
            assert!(
                dropped.holds.get() == 0 && !dropped.atime_dirty.get(),
                "a znode that is held, or not stored, stays in memory"
            );
        }
        if found > 0 {
            self.departures.set(self.departures.get() + 1);
        }
    }
}
