//! The open file system: what is shared by all operations.
//!
//! [`Fs`] finds znodes, stores their attributes, begins transactions and keeps the dataset's settings. The operations
//! themselves are in the modules beside this one, by subject.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use dmu::zap;
use dmu::{Objset, Tx};
use ondisk::{ObjectId, ObjectType, Txg};
use runtime::sync::Mutex;
use runtime::{Handle, Timestamp};
use zil::Zilog;

use crate::attr_cache::{AttrCache, AttrCacheWriter};
use crate::backing::{Backing, Settings, Weight};
use crate::count_task::Counting;
use crate::file_delegations::FileDelegations;
use crate::folded_names::FoldedNames;
use crate::reaper::Reaper;
use crate::sa::attrs::stored_time;
use crate::sa::{Attrs, BONUS_SA, BONUS_ZNODE, Plan, SaTables, StoredAttrs, layout, legacy};
use crate::znode::{XATTR, Znode, ZnodeCache, ZnodeParts};
use crate::{Attr, CaseSensitivity, Change, FileId, FileType, FsError, FsResult, Made, WccAttr};

/// Object type of everything that is not a directory.
pub(crate) const TYPE_FILE: ObjectType = ObjectType::PLAIN_FILE_CONTENTS;
/// Object type of a directory.
pub(crate) const TYPE_DIRECTORY: ObjectType = ObjectType::DIRECTORY_CONTENTS;
/// The master node.
pub(crate) const MASTER: ObjectId = ObjectId(1);
/// Greatest size of a file; OpenZFS: MAXOFFSET_T.
pub(crate) const SIZE_MAX: u64 = i64::MAX.cast_unsigned();
/// The version of file systems whose files have system attributes. OpenZFS: include/sys/zfs_znode.h, ZPL_VERSION_SA
pub(crate) const VERSION_SA: u64 = 5;
/// Znodes that stay in memory without a user: some 40 MiB.
const ZNODES_MAX: usize = 65536;

/// How to open a file system.
#[derive(Debug, Clone, Default)]
pub struct FsOptions {
    /// Refuse every change (besides what the dataset itself says: a snapshot is always read-only).
    pub read_only: bool,
    /// Do not drain the unlinked set (it is drained in the background otherwise).
    pub keep_unlinked: bool,
    /// The pool's attribute cache, and the number of this file system in it. Its owner invalidates it when the file system is
    /// closed and when its properties change.
    pub attr_cache: Option<(Arc<AttrCache>, u64)>,
    /// The pool's delegated files, and the guid of this file system in them.
    pub delegations: Option<(Arc<FileDelegations>, u64)>,
}

/// An open file system. Clones share it. One [`Fs`] per dataset may be open at a time.
#[derive(Clone)]
pub struct Fs(pub(crate) Rc<FsState>);

pub(crate) struct FsState {
    pub(crate) handle: Handle,
    pub(crate) os: Objset,
    pub(crate) backing: Backing,
    pub(crate) log: Option<Zilog>,
    /// Number of the log record being replayed.
    pub(crate) replaying: Cell<Option<u64>>,
    /// Set while a record that makes a file is replayed.
    pub(crate) given: Cell<Option<ReplayedIdentity>>,
    settings: Cell<Settings>,
    settings_version: Cell<u64>,
    /// Grows when files have to be looked at anew for their POSIX ACLs.
    pub(crate) acl_epoch: Cell<u32>,
    /// Writes the entries of the attribute cache.
    pub(crate) attr_cache: Option<AttrCacheWriter>,
    pub(crate) options: FsOptions,
    pub(crate) sa: SaTables,
    pub(crate) master: Master,
    pub(crate) root: Cell<FileId>,
    pub(crate) znodes: ZnodeCache,
    /// Names without regard to case, of directories that were asked for one.
    pub(crate) folded: FoldedNames,
    /// Held while a layout is added, so that no two tasks give out the same number.
    pub(crate) layouts_lock: Mutex<()>,
    /// Held by renames between directories: they alone change which directory lies in which.
    pub(crate) rename_lock: Mutex<()>,
    pub(crate) reaper: RefCell<Reaper>,
    pub(crate) counting: Counting,
    pub(crate) closed: Cell<bool>,
    pub(crate) atimes_pending: Cell<usize>,
    pub(crate) atime_task: Cell<bool>,
}

/// The identity that the next file made has to have: that of the file which the record under replay made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReplayedIdentity {
    pub(crate) object: ObjectId,
    pub(crate) generation: u64,
    pub(crate) slots: u8,
}

/// Which requests see `.zfs` in the root directory, the property `snapdir`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapDir {
    /// Look-ups of the name.
    Hidden,
    /// Listings of the directory, too.
    Visible,
    /// Not at all: the name does not exist.
    Disabled,
}

/// What the master node says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Master {
    pub(crate) version: u64,
    pub(crate) root: u64,
    pub(crate) unlinked: Option<ObjectId>,
    pub(crate) sa: Option<ObjectId>,
    pub(crate) normalization: u64,
    pub(crate) utf8_only: bool,
    pub(crate) case: CaseSensitivity,
    /// The directory of shares, in file systems that have one.
    pub(crate) shares: u64,
}

impl Master {
    async fn read(os: &Objset) -> FsResult<Self> {
        let number = async |key: &str| -> FsResult<Option<u64>> {
            Ok(zap::lookup_u64(os, MASTER, key).await?)
        };
        let normalization = number("normalization").await?.unwrap_or(0);
        let case = match number("casesensitivity").await?.unwrap_or(0) {
            1 => CaseSensitivity::Insensitive,
            2 => CaseSensitivity::Mixed,
            _ => CaseSensitivity::Sensitive,
        };
        Ok(Self {
            version: number("VERSION").await?.unwrap_or(5),
            root: number("ROOT")
                .await?
                .ok_or(FsError::Corrupt("the master node names no root directory"))?,
            unlinked: number("DELETE_QUEUE").await?.map(ObjectId),
            sa: number("SA_ATTRS")
                .await?
                .filter(|&object| object != 0)
                .map(ObjectId),
            normalization,
            utf8_only: normalization != 0 || number("utf8only").await?.unwrap_or(0) != 0,
            case,
            shares: number("SHARES").await?.unwrap_or(0),
        })
    }

    /// Returns the normalization flags of a new directory's ZAP.
    pub(crate) fn directory_flags(&self) -> u64 {
        self.normalization
            | if self.case == CaseSensitivity::Sensitive {
                0
            } else {
                0x02
            }
    }

    /// Whether files have records of fixed form instead of system attributes.
    pub(crate) fn has_records(&self) -> bool {
        self.version < VERSION_SA
    }

    /// Takes back from settings what files of this version cannot have.
    fn limit(&self, mut settings: Settings) -> Settings {
        if self.has_records() {
            settings.xattr_sa = false;
            settings.project_quota = false;
            settings.dnode_slots = 1;
        }
        settings
    }

    /// Returns whether names are looked up by their normalized form.
    pub(crate) fn matches_normalized(&self) -> bool {
        match self.case {
            CaseSensitivity::Insensitive => true,
            CaseSensitivity::Sensitive => self.normalization != 0,
            // Callers of POSIX see names that differ by case as different.
            CaseSensitivity::Mixed => false,
        }
    }
}

impl Fs {
    /// Opens the file system of an objset that belongs to no dataset: default properties, no quotas. For tests and
    /// rescue.
    ///
    /// # Errors
    /// [`FsError::Corrupt`] when it is no file system; those of reading.
    pub async fn open_objset(os: Objset, options: FsOptions) -> FsResult<Self> {
        Self::open_backing(Backing::of_objset(os), options).await
    }

    /// Opens the file system of a dataset. Snapshots, and datasets of pools imported read-only, can only be read.
    ///
    /// # Errors
    /// [`FsError::Corrupt`] when it is no file system; [`FsError::NotSupported`] for a version unknown here; those of
    /// reading.
    pub async fn open(dataset: dsl::Dataset, options: FsOptions) -> FsResult<Self> {
        Self::open_backing(Backing::of_dataset(dataset), options).await
    }

    async fn open_backing(backing: Backing, options: FsOptions) -> FsResult<Self> {
        let os = backing.objset().clone();
        let handle = os.services().handle.clone();
        let master = Master::read(&os).await?;
        let settings_version = backing.settings_version();
        let mut settings = master.limit(backing.settings());
        settings.read_only |= options.read_only;
        if master.version > VERSION_SA {
            return Err(FsError::NotSupported);
        }
        if master.version == 0 || master.sa.is_some() == master.has_records() {
            return Err(FsError::Corrupt(
                "the version of the file system and its attributes",
            ));
        }
        // Where there are none, nothing is looked up in the tables.
        let sa = SaTables::open(&os, master.sa.unwrap_or(MASTER)).await?;
        let root = FileId {
            object: master.root,
            generation: 0,
        };
        let keep_unlinked = options.keep_unlinked;
        let cache = options.attr_cache.clone();
        let attr_cache = cache.map(|(cache, fs)| AttrCacheWriter::new(cache, fs));
        let fs = Self(Rc::new(FsState {
            handle,
            os,
            log: backing.log(),
            replaying: Cell::new(None),
            given: Cell::new(None),
            backing,
            settings: Cell::new(settings),
            settings_version: Cell::new(settings_version),
            acl_epoch: Cell::new(1),
            attr_cache,
            options,
            sa,
            master,
            root: Cell::new(root),
            znodes: ZnodeCache::new(ZNODES_MAX),
            folded: FoldedNames::default(),
            layouts_lock: Mutex::new("attribute layouts", ()),
            rename_lock: Mutex::new("renames between directories", ()),
            reaper: RefCell::default(),
            counting: Counting::default(),
            closed: Cell::new(false),
            atimes_pending: Cell::new(0),
            atime_task: Cell::new(false),
        }));
        let root = fs.load(master.root, false).await?;
        if !root.is_dir() {
            return Err(FsError::Corrupt("the root is not a directory"));
        }
        fs.0.root.set(root.id());
        // Before anything else changes the file system; also where the property makes it read-only.
        fs.replay_log().await?;
        if !settings.read_only && !keep_unlinked {
            fs.drain_unlinked().await?;
        }
        fs.start_counting();
        if let Some(attr_cache) = &fs.0.attr_cache {
            attr_cache.enable();
        }
        Ok(fs)
    }

    /// Ends all background work, writes deferred access times; the file system must not be used afterwards. What is
    /// left of unlinked files goes on at the next open.
    ///
    /// # Errors
    /// Those of writing; the file system is closed all the same.
    pub async fn close(&self) -> FsResult<()> {
        let result = self.store_atimes().await;
        self.0.closed.set(true);
        self.stop_reaper().await;
        self.stop_counting().await;
        if let Some(log) = &self.0.log
            && !self.os().is_read_only()
        {
            log.close().await?;
        }
        result
    }

    /// Takes note that properties changed (atime, readonly, recordsize, xattr, ...). Operations see new values by
    /// themselves; this also starts draining the unlinked set when the file system has become writable.
    ///
    /// # Errors
    /// Those of reading the unlinked set.
    pub async fn reload_properties(&self) -> FsResult<()> {
        let was_read_only = self.0.settings.get().read_only;
        let read_only = self.settings().read_only;
        if was_read_only && !read_only && !self.0.options.keep_unlinked {
            self.drain_unlinked().await?;
            self.start_counting();
        }
        Ok(())
    }

    /// Returns the properties in force.
    pub(crate) fn settings(&self) -> Settings {
        let version = self.0.backing.settings_version();
        if self.0.settings_version.replace(version) != version {
            let mut settings = self.0.master.limit(self.0.backing.settings());
            settings.read_only |= self.0.options.read_only;
            if settings.acl_type != self.0.settings.get().acl_type {
                self.0.acl_epoch.set(self.0.acl_epoch.get() + 1);
            }
            self.0.settings.set(settings);
        }
        self.0.settings.get()
    }

    /// Returns the id of the root directory.
    #[must_use]
    pub fn root(&self) -> FileId {
        self.0.root.get()
    }

    /// Returns the value of `snapdir`.
    #[must_use]
    pub fn snapdir(&self) -> SnapDir {
        match self.settings().snapdir {
            1 => SnapDir::Visible,
            2 => SnapDir::Disabled,
            _ => SnapDir::Hidden,
        }
    }

    /// Returns whether this is a snapshot.
    #[must_use]
    pub fn is_snapshot(&self) -> bool {
        self.0.backing.is_snapshot()
    }

    /// Returns the object of the head dataset that this is or is a snapshot of; 0 of a bare objset. A promotion changes it
    /// for the snapshots that move.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.0.backing.head()
    }

    /// Returns the directory that `.zfs/shares` shows, if the file system has one.
    #[must_use]
    pub fn shares(&self) -> Option<u64> {
        Some(self.0.master.shares).filter(|object| *object != 0)
    }

    /// Returns the file system id in attributes.
    #[must_use]
    pub fn fsid(&self) -> u64 {
        self.0.backing.fsid()
    }

    /// Returns whether a file is held ([`Fs::hold`]).
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.0.znodes.any_held()
    }

    /// Returns the dataset it is in; `None` for a bare objset.
    #[must_use]
    pub fn dataset(&self) -> Option<&dsl::Dataset> {
        self.0.backing.dataset()
    }

    /// Returns the objset of the file system.
    #[must_use]
    pub fn objset(&self) -> &Objset {
        &self.0.os
    }

    pub(crate) fn os(&self) -> &Objset {
        &self.0.os
    }

    pub(crate) fn now(&self) -> [u64; 2] {
        stored_time(self.wall_clock())
    }

    pub(crate) fn wall_clock(&self) -> Timestamp {
        self.0.handle.wall_clock()
    }

    /// Checks that changes are allowed at all.
    pub(crate) fn check_writable(&self) -> FsResult<()> {
        if self.0.closed.get() {
            return Err(FsError::Busy);
        }
        if self.0.replaying.get().is_some() {
            return Ok(());
        }
        if self.settings().read_only {
            Err(FsError::ReadOnly)
        } else {
            Ok(())
        }
    }

    /// Finds the file of an id.
    ///
    /// # Errors
    /// [`FsError::Stale`] when it is gone, or another has its number now.
    pub(crate) async fn znode(&self, id: FileId) -> FsResult<Rc<Znode>> {
        let znode = match self.0.znodes.find(id.object) {
            Some(znode) => znode,
            // Boxed, so that the state of a loading is no part of every request's task.
            None => Box::pin(self.load(id.object, false)).await?,
        };
        let is_gone = || {
            znode.generation != id.generation
                || znode.dead.get()
                || (znode.unlinked.get() && znode.holds.get() == 0)
        };
        if is_gone() {
            return Err(FsError::Stale);
        }
        let looked = self.look_at_acl(&znode).await;
        // A file that lost its last name meanwhile may be half freed: a hold would come too late, and the ACL may be gone.
        if is_gone() {
            return Err(FsError::Stale);
        }
        looked?;
        Ok(znode)
    }

    /// Finds the file of an id and checks that it is a directory.
    pub(crate) async fn directory(&self, id: FileId) -> FsResult<Rc<Znode>> {
        let znode = self.znode(id).await?;
        if znode.is_dir() {
            Ok(znode)
        } else {
            Err(FsError::NotDirectory)
        }
    }

    /// Finds the file an entry of a directory names.
    pub(crate) async fn entry_znode(&self, object: u64) -> FsResult<Rc<Znode>> {
        let znode = match self.0.znodes.find(object) {
            Some(znode) => znode,
            None => match self.load(object, false).await {
                Err(FsError::Stale) => {
                    return Err(FsError::Corrupt(
                        "a directory names an object that is not there",
                    ));
                }
                other => other?,
            },
        };
        if znode.dead.get() {
            Err(FsError::Stale)
        } else {
            Ok(znode)
        }
    }

    /// Reads a file's attributes. With `unlinked`, also of one without names.
    pub(crate) async fn load(&self, object: u64, unlinked: bool) -> FsResult<Rc<Znode>> {
        loop {
            let departures = self.0.znodes.departures();
            let id = ObjectId(object);
            let info = self.os().object_info(id).await?;
            if !matches!(info.object_type, TYPE_FILE | TYPE_DIRECTORY) {
                return Err(FsError::Stale);
            }
            let bonus = self.os().bonus(id).await?;
            let spill = if info.has_spill {
                self.os().spill(id).await?
            } else {
                None
            };
            let mut acl_object = 0;
            let (attrs, plan) = match bonus.bonus_type {
                BONUS_SA => {
                    let (attrs, plan) = self.0.sa.decode(&bonus.bytes, spill.as_deref())?;
                    (attrs, Some(plan))
                }
                BONUS_ZNODE => {
                    let acl = match legacy::external_acl(&bonus.bytes)? {
                        Some((object, len)) => {
                            acl_object = object;
                            Some(self.os().read(ObjectId(object), 0, len).await?)
                        }
                        None => None,
                    };
                    let stays = self.0.master.has_records();
                    (legacy::decode(&bonus.bytes, acl.as_deref(), stays)?, None)
                }
                _ => return Err(FsError::Stale),
            };
            let Some(file_type) = FileType::of_mode(attrs.mode) else {
                return Err(FsError::Corrupt("file mode"));
            };
            if (file_type == FileType::Directory) != (info.object_type == TYPE_DIRECTORY) {
                return Err(FsError::Corrupt("file mode and object type differ"));
            }
            if attrs.links == 0 && !unlinked {
                return Err(FsError::Stale);
            }
            if let Some(znode) = self.0.znodes.find(object) {
                return Ok(znode);
            }
            if departures != self.0.znodes.departures() {
                continue;
            }
            let gone = attrs.links == 0;
            let parts = ZnodeParts {
                object,
                attrs,
                plan,
                block_size: info.block_size,
                slots: info.slots,
                has_spill: info.has_spill,
                legacy: bonus.bonus_type == BONUS_ZNODE,
                acl_object,
            };
            let since = self.0.backing.open_txg();
            let znode = Znode::new(parts, self.0.attr_cache.clone(), since);
            znode.unlinked.set(gone);
            return Ok(self.0.znodes.insert(znode));
        }
    }

    /// Returns the attributes of a znode as callers see them.
    pub(crate) async fn attr_of(&self, znode: &Znode) -> FsResult<Attr> {
        let used = match self.os().object_info(znode.object_id()).await {
            Ok(info) => info.used_bytes + u64::from(info.slots) * 512,
            Err(_) if znode.dead.get() => 0,
            Err(error) => return Err(error.into()),
        };
        let mut attr = znode.attr(used, self.0.backing.fsid());
        // Where `.zfs` is listed it is one of the root's directories. OpenZFS: module/os/linux/zfs/zfs_vnops_os.c, zfs_getattr_fast
        let lists_control = !self.is_snapshot() && self.snapdir() == SnapDir::Visible;
        attr.links += u64::from(attr.id == self.root() && lists_control);
        znode.cache_attr(&attr);
        Ok(attr)
    }

    /// Returns what an operation did to a file.
    pub(crate) async fn change_of(&self, before: WccAttr, znode: &Znode) -> FsResult<Change> {
        Ok(Change {
            before,
            after: self.attr_of(znode).await?,
        })
    }

    /// Returns what an operation that made or named a file did.
    pub(crate) async fn made(
        &self,
        file: &Znode,
        before: WccAttr,
        dir: &Znode,
        created: bool,
    ) -> FsResult<Made> {
        Ok(Made {
            file: self.attr_of(file).await?,
            dir: self.change_of(before, dir).await?,
            created,
        })
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Quota`], [`FsError::Busy`] when the pool is going away.
    pub(crate) async fn begin(&self, weight: Weight) -> FsResult<Tx> {
        let promised = self.0.replaying.get().is_some();
        self.0.backing.begin(weight, promised).await
    }

    /// Refuses what would take more space for an owner that has reached a quota.
    ///
    /// # Errors
    /// [`FsError::Quota`]; those of reading.
    pub(crate) async fn check_quota(&self, attrs: &Attrs, creating: bool) -> FsResult<()> {
        // What the log replays was allowed when it was acknowledged.
        if self.0.replaying.get().is_some() {
            return Ok(());
        }
        self.start_counting();
        self.0.backing.check_quota(attrs, creating).await
    }

    /// Returns the layouts attributes need, storing those that are new. Called before the transaction that uses them.
    pub(crate) async fn plan(&self, attrs: &Attrs, slots: u8) -> FsResult<Plan> {
        if self.0.master.has_records() {
            return Ok(Plan::of_records());
        }
        let bonus_max = layout::bonus_max(slots);
        let sa = &self.0.sa;
        if sa.is_registered(attrs) {
            let split = sa.split(attrs, bonus_max)?;
            if let Some(plan) = sa.find(&split, bonus_max) {
                return Ok(plan);
            }
        }
        let _guard = self.0.layouts_lock.lock().await;
        let tx = self.begin(Weight::Bytes(256 << 10)).await?;
        if !sa.is_registered(attrs) {
            sa.register(self.os(), &tx).await?;
        }
        let split = sa.split(attrs, bonus_max)?;
        match sa.find(&split, bonus_max) {
            Some(plan) => Ok(plan),
            None => sa.add(self.os(), &split, bonus_max, &tx).await,
        }
    }

    /// Returns the layouts for a znode's new attributes.
    pub(crate) async fn plan_for(&self, znode: &Znode, attrs: &Attrs) -> FsResult<Plan> {
        let shape = attrs.shape();
        let known = znode
            .plan
            .borrow()
            .as_ref()
            .filter(|(old, _)| *old == shape)
            .map(|(_, plan)| plan.clone());
        match known {
            Some(plan) => Ok(plan),
            None => self.plan(attrs, znode.slots).await,
        }
    }

    /// Stores a znode's new attributes; the caller holds its lock.
    pub(crate) async fn store(
        &self,
        znode: &Znode,
        mut attrs: Attrs,
        plan: &Plan,
        tx: &Tx,
    ) -> FsResult<()> {
        let id = znode.object_id();
        let shape = attrs.shape();
        if znode
            .plan
            .borrow()
            .as_ref()
            .is_none_or(|(old, _)| *old != shape)
        {
            let spill: &[u16] = plan.spill.as_ref().map_or(&[], |l| &l.attrs);
            attrs.order = plan.bonus.attrs.iter().chain(spill).copied().collect();
        }
        let os = self.os();
        let result: FsResult<bool> = async {
            let StoredAttrs {
                bonus_type,
                bonus,
                spill,
            } = self
                .stored_attrs(&attrs, plan, &znode.acl_object, tx)
                .await?;
            if spill.is_empty() {
                // The room of the spill block's pointer may be needed.
                if znode.has_spill.get() {
                    os.set_spill(id, None, tx).await?;
                }
                os.set_bonus(id, bonus_type, &bonus, tx).await?;
            } else {
                os.set_bonus(id, bonus_type, &bonus, tx).await?;
                let same = znode.has_spill.get()
                    && os.spill(id).await?.is_some_and(|old| old[..] == spill[..]);
                if !same {
                    os.set_spill(id, Some(&spill), tx).await?;
                }
            }
            Ok(!spill.is_empty())
        }
        .await;
        match result {
            Ok(has_spill) => znode.has_spill.set(has_spill),
            Err(error) => {
                // What is stored is not known now: the next access reads it again.
                self.0.znodes.remove(znode.object);
                znode.invalidate_cached();
                znode.invalidate_xattrs();
                return Err(error);
            }
        }
        let same_xattrs = {
            let old = znode.attrs.borrow();
            old.dxattr == attrs.dxattr && old.xattr == attrs.xattr
        };
        znode.legacy.set(self.0.master.has_records());
        self.clear_atime_pending(znode);
        *znode.plan.borrow_mut() = Some((shape, plan.clone()));
        *znode.attrs.borrow_mut() = attrs;
        self.dirtied(znode, tx.txg());
        znode.invalidate_cached();
        if !same_xattrs {
            znode.invalidate_xattrs();
        }
        Ok(())
    }

    pub(crate) fn dirtied(&self, znode: &Znode, txg: Txg) {
        if znode.last_txg.get() < txg {
            znode.last_txg.set(txg);
        }
    }

    pub(crate) fn is_in_xattr_tree(znode: &Znode) -> bool {
        znode.flags() & XATTR != 0
    }
}
