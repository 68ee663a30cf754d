//! The datasets of an open pool (`dsl_pool`): loading directories and datasets, finding them by name.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use dmu::zap::{self, ZapValue};
use dmu::{Objset, ObjsetOptions, Services, Tx, WritePolicy};
use ondisk::dsl::{DslDatasetPhys, DslDirPhys, UsedBy};
use ondisk::{
    BlockPointer, Compression, Guid, ObjectId, ObjectType, ObjsetType, Txg, feature, pool_version,
};
use runtime::Instant;
use runtime::sync::RwLock;
use zio::{BlockKeys, Bookmark, IoClass, Protection, ReadProps};

use crate::async_destroy::AsyncDestroy;
use crate::bpobj::Bpobj;
use crate::change_log::ChangeLog;
use crate::dataset_state::DatasetState;
use crate::deadlist::Deadlist;
use crate::dsl_dir::{DslDir, PropMap};
use crate::empty_bpobj::EmptyBpobj;
use crate::error::{DslError, Result};
use crate::features::Features;
use crate::file_owner::owner_of;
use crate::key_ring::KeyRing;
use crate::lists_in_use::ListsInUse;
use crate::loaded::Loaded;
use crate::namecheck::{NameParts, split};
use crate::object_directory;
use crate::property::DatasetKind;
use crate::property_zap::{PropertyScope, read_map};
use crate::space::{self, Delta};
use crate::sync_state::SyncState;
use crate::types::{Estimate, HierarchyOptions, HistoryEvent, SpaceInfo};
use crate::write_policy::{most_copies, write_policy};

/// Blocks of an entry of a livelist after which the next txg begins a new one: 8 MiB of pointers. (OpenZFS: 500,000, a
/// tunable.)
const LIVELIST_BLOCKS_MAX: u64 = 1 << 16;
/// A cycle or absurd depth of directories is corruption.
const DIR_DEPTH_MAX: usize = 256;

/// Objects of a pool beside the root directory.
#[derive(Clone, Copy)]
pub(crate) struct SpecialObjects {
    pub(crate) mos_dir: ObjectId,
    /// What is freed in the background, from version 26 on.
    pub(crate) free_dir: Option<ObjectId>,
    /// The empty snapshot all datasets descend from, from version 11 on.
    pub(crate) origin_snap: Option<ObjectId>,
}

/// The datasets of an open pool.
pub(crate) struct DslPool {
    pub(crate) mos: Objset,
    pub(crate) services: Services,
    pub(crate) read_only: bool,
    pub(crate) features: Features,
    pub(crate) empty_bpobj: EmptyBpobj,
    root_dir: OnceCell<ObjectId>,
    special: Cell<Option<SpecialObjects>>,
    pool_name: RefCell<String>,
    altroot: RefCell<Option<String>>,
    /// Names and links of the tree: sync tasks hold it exclusively.
    pub(crate) config: RwLock<()>,
    /// Which datasets have changed in names and properties.
    pub(crate) changes: ChangeLog,
    pub(crate) loaded: Loaded,
    pub(crate) keys: KeyRing,
    pub(crate) sync: SyncState<Self>,
    pub(crate) async_destroy: AsyncDestroy,
    pub(crate) lists_in_use: ListsInUse,
    /// Blocks of an entry of a clone's livelist after which the next txg begins a new one.
    livelist_blocks_max: Cell<u64>,
    pub(crate) opened: OpenedAt,
    /// The highest time that was seen, as it was stored when the pool was opened.
    pub(crate) time_seen_at_open: OnceCell<u64>,
}

/// What a name stands for.
pub(crate) struct Found {
    pub(crate) dir: Rc<DslDir>,
    /// Object of the head or of the snapshot.
    pub(crate) dataset: ObjectId,
    pub(crate) snapshot: Option<String>,
}

/// The clocks when a pool was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenedAt {
    pub(crate) monotonic: Instant,
    /// Seconds since 1970.
    pub(crate) seconds: u64,
}

impl DslPool {
    pub(crate) async fn open(mos: &Objset, options: HierarchyOptions) -> Result<Rc<Self>> {
        let features = Features::open(mos, options.version).await?;
        let directory = object_directory::OBJECT_DIRECTORY;
        let find = async |name: &str| -> Result<ObjectId> {
            match zap::lookup_u64(mos, directory, name).await? {
                Some(object) if object != 0 => Ok(ObjectId(object)),
                _ => Err(DslError::corrupt("object directory", directory)),
            }
        };
        let find_optional = async |name: &str| -> Result<Option<ObjectId>> {
            let found = zap::lookup_u64(mos, directory, name).await?;
            Ok(found.filter(|object| *object != 0).map(ObjectId))
        };
        let root_dir = find(object_directory::ROOT_DATASET).await?;
        let sync_bplist = Bpobj::open(mos, find(object_directory::SYNC_BPLIST).await?).await?;
        let free_bpobj = if features.has_version(pool_version::DEADLISTS) {
            let object = find(object_directory::FREE_BPOBJ).await?;
            Some(Bpobj::open(mos, object).await?)
        } else {
            None
        };
        let bptree = if features.is_active("async_destroy") {
            find_optional(object_directory::BPTREE_OBJ).await?
        } else {
            None
        };
        let empty_bpobj = EmptyBpobj::open(mos, &features).await?;
        let pool = Self::new(mos, options, features, empty_bpobj, sync_bplist, free_bpobj);
        pool.set_root_dir(root_dir);
        pool.async_destroy.set_bptree(bptree);
        let deleted_clones = find_optional(object_directory::DELETED_CLONES).await?;
        pool.async_destroy.set_deleted_clones(deleted_clones);
        pool.load_obsolete_bpobj().await?;
        pool.find_special().await?;
        pool.apply_mos_policy();
        Ok(pool)
    }

    /// A pool without its root directory and special objects, which the caller creates or finds.
    pub(crate) fn new(
        mos: &Objset,
        options: HierarchyOptions,
        features: Features,
        empty_bpobj: EmptyBpobj,
        sync_bplist: Bpobj,
        free_bpobj: Option<Bpobj>,
    ) -> Rc<Self> {
        Rc::new(Self {
            mos: mos.clone(),
            services: mos.services().clone(),
            read_only: options.read_only,
            features,
            empty_bpobj,
            root_dir: OnceCell::new(),
            special: Cell::new(None),
            pool_name: RefCell::new(options.pool_name),
            altroot: RefCell::new(None),
            config: RwLock::new("the names of datasets", ()),
            changes: ChangeLog::default(),
            loaded: Loaded::default(),
            keys: KeyRing::default(),
            sync: SyncState::new(sync_bplist),
            async_destroy: AsyncDestroy::new(free_bpobj),
            lists_in_use: ListsInUse::default(),
            livelist_blocks_max: Cell::new(LIVELIST_BLOCKS_MAX),
            opened: OpenedAt {
                monotonic: mos.services().handle.now(),
                seconds: u64::try_from(mos.services().handle.wall_clock().seconds).unwrap_or(0),
            },
            time_seen_at_open: OnceCell::new(),
        })
    }

    async fn find_special(self: &Rc<Self>) -> Result<()> {
        let root = self.dir(self.root_dir()).await?;
        let child = async |name: &str| -> Result<Rc<DslDir>> {
            let dir = self.child(&root, name).await?;
            dir.ok_or_else(|| DslError::corrupt("special directories", root.object))
        };
        let mos_dir = child(object_directory::MOS_DIR).await?.object;
        let free_dir = if self.features.has_version(pool_version::DEADLISTS) {
            Some(child(object_directory::FREE_DIR).await?.object)
        } else {
            None
        };
        let origin_snap = if self.features.has_version(pool_version::ORIGIN) {
            let origin = child(object_directory::ORIGIN_DIR).await?;
            let head = ObjectId(origin.phys().head_dataset_obj);
            Some(ObjectId(self.dataset_phys(head).await?.prev_snap_obj))
        } else {
            None
        };
        self.set_special(SpecialObjects {
            mos_dir,
            free_dir,
            origin_snap,
        });
        Ok(())
    }

    pub(crate) fn set_root_dir(&self, object: ObjectId) {
        let set = self.root_dir.set(object);
        assert!(set.is_ok(), "the root directory is set once");
    }

    pub(crate) fn root_dir(&self) -> ObjectId {
        *self.root_dir.get().expect("set when the pool was opened")
    }

    pub(crate) fn set_special(&self, special: SpecialObjects) {
        self.special.set(Some(special));
    }

    pub(crate) fn special(&self) -> SpecialObjects {
        self.special.get().expect("set when the pool was opened")
    }

    /// Whether this is the empty snapshot that datasets which are no clones descend from.
    pub(crate) fn is_origin_snap(&self, object: ObjectId) -> bool {
        let special = self.special.get();
        special.is_some_and(|special| special.origin_snap == Some(object))
    }

    /// Charges the directory of what is freed in the background, if the pool has one.
    pub(crate) async fn free_dir_did_use(self: &Rc<Self>, delta: Delta) -> Result<()> {
        if let Some(object) = self.special().free_dir {
            self.dir(object).await?.did_use(UsedBy::Head, delta);
        }
        Ok(())
    }

    pub(crate) fn set_pool_name(&self, name: &str) {
        *self.pool_name.borrow_mut() = name.into();
    }

    pub(crate) fn altroot(&self) -> Option<String> {
        self.altroot.borrow().clone()
    }

    pub(crate) fn set_altroot(&self, altroot: Option<String>) {
        *self.altroot.borrow_mut() = altroot;
    }

    pub(crate) fn livelist_blocks_max(&self) -> u64 {
        self.livelist_blocks_max.get()
    }

    pub(crate) fn set_livelist_blocks_max(&self, blocks: u64) {
        self.livelist_blocks_max.set(blocks.max(1));
    }

    pub(crate) fn pool_name(&self) -> String {
        self.pool_name.borrow().clone()
    }

    /// The full name of a directory.
    pub(crate) fn name_of(&self, dir: &Rc<DslDir>) -> String {
        dir.full_name(&self.pool_name.borrow())
    }

    /// A directory by its object; loads those above it too.
    pub(crate) async fn dir(self: &Rc<Self>, object: ObjectId) -> Result<Rc<DslDir>> {
        // Up to a loaded one or the root, then down again.
        let mut missing = Vec::new();
        let mut at = object;
        let mut above = loop {
            if let Some(dir) = self.loaded.dir(at) {
                break Some(dir);
            }
            if missing.len() > DIR_DEPTH_MAX {
                return Err(DslError::corrupt("chain of directories", object));
            }
            let phys = self.read_dir(at).await?;
            missing.push((at, phys));
            if phys.parent_obj == 0 {
                break None;
            }
            at = ObjectId(phys.parent_obj);
        };
        for (object, phys) in missing.into_iter().rev() {
            let name = match &above {
                None => String::new(),
                Some(parent) => self.child_name(parent, object).await?,
            };
            above = Some(self.load_dir(object, phys, above, name).await?);
        }
        above.ok_or_else(|| DslError::corrupt("directory", object))
    }

    /// The child of a directory with the given name.
    pub(crate) async fn child(
        self: &Rc<Self>,
        parent: &Rc<DslDir>,
        name: &str,
    ) -> Result<Option<Rc<DslDir>>> {
        let map = ObjectId(parent.phys().child_dir_zapobj);
        match zap::lookup_u64(&self.mos, map, name).await? {
            None => Ok(None),
            Some(object) => self
                .child_by_object(parent, name, ObjectId(object))
                .await
                .map(Some),
        }
    }

    /// The child of a directory whose name and object are known.
    pub(crate) async fn child_by_object(
        self: &Rc<Self>,
        parent: &Rc<DslDir>,
        name: &str,
        object: ObjectId,
    ) -> Result<Rc<DslDir>> {
        if let Some(dir) = self.loaded.dir(object) {
            return Ok(dir);
        }
        let phys = self.read_dir(object).await?;
        self.load_dir(object, phys, Some(parent.clone()), name.to_owned())
            .await
    }

    async fn read_dir(&self, object: ObjectId) -> Result<DslDirPhys> {
        let bonus = self.mos.bonus(object).await?;
        if bonus.bonus_type != ObjectType::DSL_DIR {
            return Err(DslError::corrupt("directory", object));
        }
        DslDirPhys::decode(&bonus.bytes).map_err(|source| DslError::Decode {
            what: "directory",
            object,
            source,
        })
    }

    async fn load_dir(
        self: &Rc<Self>,
        object: ObjectId,
        phys: DslDirPhys,
        parent: Option<Rc<DslDir>>,
        name: String,
    ) -> Result<Rc<DslDir>> {
        let origin = phys.origin_obj;
        let origin_txg = if origin == 0 || self.is_origin_snap(ObjectId(origin)) {
            0
        } else {
            self.dataset_phys(ObjectId(origin)).await?.creation_txg
        };
        let dir = DslDir::new(
            object,
            parent,
            name,
            phys,
            origin_txg,
            self.loaded.dirty_dirs(),
        );
        Ok(self.loaded.add_dir(dir))
    }

    async fn child_name(&self, parent: &Rc<DslDir>, object: ObjectId) -> Result<String> {
        let map = ObjectId(parent.phys().child_dir_zapobj);
        self.name_by_value(map, object)
            .await?
            .ok_or_else(|| DslError::corrupt("child map", map))
    }

    /// The key of a ZAP whose value is the given object.
    pub(crate) async fn name_by_value(
        &self,
        map: ObjectId,
        object: ObjectId,
    ) -> Result<Option<String>> {
        let mut cookie = 0;
        loop {
            let entries = zap::cursor(&self.mos, map, cookie, 256).await?;
            let Some(last) = entries.last() else {
                return Ok(None);
            };
            cookie = last.next_cookie;
            for entry in entries {
                if matches!(&entry.value, ZapValue::U64(v) if v.first() == Some(&object.0)) {
                    return Ok(Some(String::from_utf8_lossy(&entry.name).into_owned()));
                }
            }
        }
    }

    /// The stored fields of a dataset, in their newest version.
    pub(crate) async fn dataset_phys(&self, object: ObjectId) -> Result<DslDatasetPhys> {
        if let Some(state) = self.loaded.dataset(object) {
            return Ok(state.phys());
        }
        let bonus = self.mos.bonus(object).await?;
        if bonus.bonus_type != ObjectType::DSL_DATASET {
            return Err(DslError::corrupt("dataset", object));
        }
        DslDatasetPhys::decode(&bonus.bytes).map_err(|source| DslError::Decode {
            what: "dataset",
            object,
            source,
        })
    }

    /// The directory a name lies in; `None` if some component does not exist.
    pub(crate) async fn find_dir(self: &Rc<Self>, name: &str) -> Result<Option<Rc<DslDir>>> {
        let mut components = name.split('/');
        if components.next() != Some(self.pool_name.borrow().as_str()) {
            return Ok(None);
        }
        let mut dir = self.dir(self.root_dir()).await?;
        for component in components {
            // `$MOS` and the like are not for users.
            if component.starts_with('$') {
                return Ok(None);
            }
            match self.child(&dir, component).await? {
                Some(child) => dir = child,
                None => return Ok(None),
            }
        }
        Ok(Some(dir))
    }

    /// What a name of a file system, volume or snapshot stands for.
    pub(crate) async fn find(self: &Rc<Self>, name: &str) -> Result<Found> {
        let missing = || DslError::NotFound { name: name.into() };
        let NameParts {
            head,
            snapshot,
            bookmark,
        } = split(name);
        if bookmark.is_some() {
            return Err(missing());
        }
        let dir = self.find_dir(head).await?.ok_or_else(missing)?;
        let head = ObjectId(dir.phys().head_dataset_obj);
        let Some(snapshot) = snapshot else {
            return Ok(Found {
                dir,
                dataset: head,
                snapshot: None,
            });
        };
        let phys = self.dataset_phys(head).await?;
        let map = ObjectId(phys.snapnames_zapobj);
        let object = zap::lookup_u64(&self.mos, map, snapshot)
            .await?
            .ok_or_else(missing)?;
        Ok(Found {
            dir,
            dataset: ObjectId(object),
            snapshot: Some(snapshot.into()),
        })
    }

    /// The full name of a snapshot given its object.
    pub(crate) async fn snapshot_name(self: &Rc<Self>, object: ObjectId) -> Result<String> {
        let phys = self.dataset_phys(object).await?;
        let dir = self.dir(ObjectId(phys.dir_obj)).await?;
        let head = self
            .dataset_phys(ObjectId(dir.phys().head_dataset_obj))
            .await?;
        let map = ObjectId(head.snapnames_zapobj);
        let name = self.name_by_value(map, object).await?;
        let name = name.ok_or_else(|| DslError::corrupt("snapshot names", map))?;
        Ok(format!("{}@{name}", self.name_of(&dir)))
    }

    /// The kind of a directory's dataset. Reads the objset block the first time.
    pub(crate) async fn kind_of(self: &Rc<Self>, dir: &Rc<DslDir>) -> Result<DatasetKind> {
        if let Some(kind) = dir.kind.get() {
            return Ok(kind);
        }
        let head = ObjectId(dir.phys().head_dataset_obj);
        let open = self.loaded.dataset(head).and_then(|state| state.objset());
        let kind = match open {
            Some(objset) => kind_of(objset.kind()),
            None => {
                let root = self.dataset_phys(head).await?.bp;
                self.kind_at(head, &root).await?
            }
        };
        dir.kind.set(Some(kind));
        Ok(kind)
    }

    /// The kind of the objects at a root.
    pub(crate) async fn kind_at(
        &self,
        object: ObjectId,
        root: &BlockPointer,
    ) -> Result<DatasetKind> {
        Ok(kind_of(self.objset_type(object, root).await?))
    }

    async fn objset_type(&self, object: ObjectId, bp: &BlockPointer) -> Result<ObjsetType> {
        if bp.is_hole() {
            return Err(DslError::corrupt("dataset without an object set", object));
        }
        let bookmark = Bookmark {
            objset: object.0,
            object: 0,
            level: -1,
            block: 0,
        };
        let props = ReadProps {
            class: IoClass::SyncRead,
            bookmark,
        };
        let bytes = self.services.cache().read(bp, props).await?;
        ObjsetType::of_block(&bytes).map_err(|_| DslError::corrupt("object set", object))
    }

    /// What the pool offers to datasets: its size without slop space and deferred frees. The slop
    /// is divided by `2^reserve`.
    pub(crate) fn pool_size(&self, reserve: u32) -> u64 {
        let space = self.services.store().space();
        let deferred = self.sync.sync_bplist.sizes().used;
        space
            .deflated_size
            .saturating_sub(deferred)
            .saturating_sub(space.slop >> reserve)
    }

    /// The most that a transaction may take of the pool. Data is taken as incompressible; whatever is wrong here is
    /// wrong by all that a txg holds, and a full pool cannot sync the txg.
    pub(crate) fn worst_asize(&self, estimate: Estimate, copies: u64) -> u64 {
        const POINTER_BYTES: u64 = 128;
        // Indirect blocks above the lowest and dnodes add less than an eighth.
        let with_eighth = |bytes: u64| bytes.saturating_add(bytes / 8);
        let block = self.services.store().worst_dsize(estimate.block_size);
        // Metadata has a copy more than data.
        let pointer = POINTER_BYTES * (copies + 1).min(3);
        let blocks = estimate
            .blocks
            .saturating_mul(block.saturating_mul(copies) + with_eighth(pointer));
        with_eighth(estimate.bytes)
            .saturating_mul(copies)
            .saturating_add(blocks)
            .saturating_add(estimate.shared)
            .max(512)
    }

    /// A dataset's identity that no other dataset of this pool loaded now has; 56 bits.
    pub(crate) fn new_fsid(&self) -> u64 {
        loop {
            let id = self.services.handle.random_u64() >> 8;
            if id != 0 && !self.loaded.has_fsid(id) {
                return id;
            }
        }
    }

    pub(crate) fn new_guid(&self) -> Guid {
        loop {
            let guid = self.services.handle.random_u64();
            if guid != 0 {
                return Guid(guid);
            }
        }
    }

    pub(crate) fn event(
        &self,
        name: &'static str,
        dataset: &str,
        object: ObjectId,
        text: String,
        tx: &Tx,
    ) {
        let event = HistoryEvent {
            name,
            dataset: dataset.into(),
            object,
            text,
            txg: tx.txg(),
        };
        self.sync.add_event(event);
    }

    /// Seconds since 1970.
    pub(crate) fn seconds(&self) -> u64 {
        u64::try_from(self.services.handle.wall_clock().seconds).unwrap_or(0)
    }

    /// Loads a dataset's fields and what accounting needs; its objects stay closed.
    pub(crate) async fn load_dataset(
        self: &Rc<Self>,
        object: ObjectId,
        snapshot: Option<String>,
    ) -> Result<Rc<DatasetState>> {
        if let Some(state) = self.loaded.dataset(object) {
            state.set_name_if_unknown(snapshot);
            return Ok(state);
        }
        let phys = self.dataset_phys(object).await?;
        let dir = self.dir(ObjectId(phys.dir_obj)).await?;
        let state = DatasetState::new(
            object,
            dir.clone(),
            snapshot.clone(),
            phys,
            self.log_writing(),
            self.loaded.dirty_datasets(),
        );
        if !phys.is_snapshot() {
            let scope = self.scope(&dir, None).await?;
            state.apply_scope(&scope, &self.features);
            if phys.prev_snap_obj != 0 {
                let prev = ObjectId(phys.prev_snap_obj);
                let prev = Box::pin(self.load_dataset(prev, None)).await?;
                *state.prev.borrow_mut() = Some(prev);
            }
        }
        *state.features.borrow_mut() = self.dataset_features(object).await?;
        let state = self.loaded.add_dataset(state);
        state.set_name_if_unknown(snapshot);
        Ok(state)
    }

    /// Features counted for a dataset: keys of its object when that is zapified.
    async fn dataset_features(&self, object: ObjectId) -> Result<BTreeSet<&'static str>> {
        let mut active = BTreeSet::new();
        if self.mos.object_info(object).await?.object_type != ObjectType::ZAP_METADATA {
            return Ok(active);
        }
        for feature in feature::ALL.iter().filter(|f| f.per_dataset) {
            if zap::lookup(&self.mos, object, feature.guid)
                .await?
                .is_some()
            {
                active.insert(feature.name);
            }
        }
        Ok(active)
    }

    /// The deadlist of a dataset, open.
    pub(crate) async fn deadlist_of(&self, state: &DatasetState) -> Result<Rc<Deadlist>> {
        if let Some(list) = state.deadlist.borrow().clone() {
            return Ok(list);
        }
        let object = ObjectId(state.phys().deadlist_obj);
        let list = Rc::new(Deadlist::open(&self.mos, object).await?);
        *state.deadlist.borrow_mut() = Some(list.clone());
        Ok(list)
    }

    /// Opens a dataset's objects, if they are not.
    pub(crate) async fn open_objset(self: &Rc<Self>, state: &Rc<DatasetState>) -> Result<()> {
        if state
            .objset()
            .is_some_and(|objset| !objset.services().is_raw())
        {
            return Ok(());
        }
        let phys = state.phys();
        let keys = self.block_keys(&state.dir()).await?;
        self.close_raw(state)?;
        if phys.bp.uses_crypt() != keys.is_some() {
            // Authentication begins with the objset's block: without it nothing of an encrypted dataset may be believed.
            return Err(DslError::corrupt("encrypted dataset", state.object));
        }
        let protection = keys.map_or(Protection::None, Protection::Keys);
        self.open_protected(state, protection).await
    }

    /// Opens an encrypted dataset's objects without its keys, if they are not open: to claim its log, or to receive a raw stream.
    /// Where its objects are open with keys, they stay so.
    pub(crate) async fn open_objset_raw(self: &Rc<Self>, state: &Rc<DatasetState>) -> Result<()> {
        if state.objset().is_some() {
            return Ok(());
        }
        self.open_protected(state, Protection::Raw).await
    }

    /// Opens a dataset's objects with their keys where those are loaded, and else without.
    pub(crate) async fn open_objset_as_possible(
        self: &Rc<Self>,
        state: &Rc<DatasetState>,
    ) -> Result<()> {
        match self.open_objset(state).await {
            Err(DslError::KeyNotLoaded { .. }) => self.open_objset_raw(state).await,
            other => other,
        }
    }

    /// Closes objects that were opened without keys and are of no use any more.
    fn close_raw(&self, state: &DatasetState) -> Result<()> {
        let Some(objset) = state.objset().filter(|objset| objset.services().is_raw()) else {
            return Ok(());
        };
        let open = self.services.clock.open_txg();
        let mut under_way = (open.0.saturating_sub(2)..=open.0).map(Txg);
        // The handle that is being opened is counted already.
        if state.handles() > 1 || under_way.any(|txg| objset.is_dirty(txg)) {
            let name = self.name_of(&state.dir());
            return Err(DslError::Busy { name });
        }
        state.set_objset(None);
        Ok(())
    }

    /// What finds the owners of objects; none where space is not counted by owner.
    pub(crate) fn owner_of(&self) -> Option<dmu::OwnerOf> {
        let counted = self.features.has_version(pool_version::USERSPACE);
        counted.then_some(owner_of)
    }

    /// Whether logs are written. Slim blocks came with version 23; before version 27 a snapshot must not have a log in it.
    // OpenZFS: module/zfs/zil.c, zil_alloc_lwb (SPA_VERSION_SLIM_ZIL); module/zfs/dsl_dataset.c, dsl_dataset_snapshot_sync_impl
    fn log_writing(&self) -> zil::LogWriting {
        if self.features.has_version(pool_version::FAST_SNAPSHOTS) {
            zil::LogWriting::Records
        } else {
            zil::LogWriting::Never
        }
    }

    async fn open_protected(
        self: &Rc<Self>,
        state: &Rc<DatasetState>,
        protection: Protection,
    ) -> Result<()> {
        let phys = state.phys();
        let snapshot = phys.is_snapshot();
        let props = snapshot.then_some(ObjectId(phys.props_obj));
        let scope = self.scope(&state.dir(), props).await?;
        let options = ObjsetOptions {
            policy: write_policy(&scope, &self.features),
            read_only: snapshot || self.read_only,
            // Bonus buffers that are encrypted tell of no owner.
            owner_of: self
                .owner_of()
                .filter(|_| !matches!(protection, Protection::Raw)),
            ..ObjsetOptions::dataset(state.object.0)
        };
        let services = self.services.protected(protection);
        let objset = Objset::open(&services, phys.bp, options).await?;
        // There must be one objset of each, also if two tasks opened it at once.
        if state.objset().is_none() {
            state.set_objset(Some(objset));
        }
        state.apply_scope(&scope, &self.features);
        Ok(())
    }

    /// The services that objsets of a dataset with these keys work with.
    pub(crate) fn services_with(&self, keys: Option<&BlockKeys>) -> Services {
        match keys {
            Some(keys) => self.services.protected(Protection::Keys(keys.clone())),
            None => self.services.clone(),
        }
    }

    /// Opens the objects of a dataset as they are on stable storage, apart from those that are written to; without `keys` encrypted ones
    /// as they are stored.
    pub(crate) async fn open_stored(
        &self,
        dataset: ObjectId,
        bp: BlockPointer,
        keys: Option<&BlockKeys>,
    ) -> Result<Objset> {
        let options = ObjsetOptions {
            read_only: true,
            ..ObjsetOptions::dataset(dataset.0)
        };
        let services = self.services_with(keys);
        Ok(Objset::open(&services, bp, options).await?)
    }

    /// Space numbers of a loaded head.
    pub(crate) fn head_space(&self, dir: &Rc<DslDir>, phys: &DslDatasetPhys) -> SpaceInfo {
        let d = dir.phys();
        let [
            head,
            snapshots,
            children,
            child_reservations,
            refreservation,
        ] = d.used_breakdown;
        SpaceInfo {
            used: d.used_bytes,
            available: 0,
            referenced: phys.referenced_bytes,
            used_by_snapshots: snapshots,
            used_by_dataset: head,
            used_by_children: children.saturating_add(child_reservations),
            used_by_refreservation: refreservation,
            logical_used: d.uncompressed_bytes,
            logical_referenced: phys.uncompressed_bytes,
            written: 0,
            compress_ratio: space::ratio(d.uncompressed_bytes, d.compressed_bytes),
            ref_compress_ratio: space::ratio(phys.uncompressed_bytes, phys.compressed_bytes),
            unique: phys.unique_bytes,
        }
    }

    /// The stored properties of a directory, from memory after the first time.
    pub(crate) async fn props_of(&self, dir: &Rc<DslDir>) -> Result<Rc<PropMap>> {
        if let Some(map) = dir.props.borrow().clone() {
            return Ok(map);
        }
        let map = Rc::new(read_map(&self.mos, ObjectId(dir.phys().props_zapobj)).await?);
        *dir.props.borrow_mut() = Some(map.clone());
        Ok(map)
    }

    /// Everything a property lookup of a dataset needs. `snapshot` is the snapshot's own
    /// ZAP (0 if it has none), for snapshots.
    pub(crate) async fn scope(
        &self,
        dir: &Rc<DslDir>,
        snapshot: Option<ObjectId>,
    ) -> Result<PropertyScope> {
        let mut levels = Vec::new();
        for level in dir.chain() {
            let map = self.props_of(&level).await?;
            levels.push((self.name_of(&level), map));
        }
        let snapshot = match snapshot {
            Some(object) => Some(read_map(&self.mos, object).await?),
            None => None,
        };
        let levels = Rc::new(levels);
        Ok(PropertyScope { snapshot, levels })
    }

    /// Applies the features to the write policy of the meta-objset: lz4, embedded blocks, births of holes.
    pub(crate) fn apply_mos_policy(&self) {
        let features = &self.features;
        let lz4 = features.is_active("lz4_compress");
        let compression = if lz4 {
            Compression::LZ4
        } else {
            Compression::LZJB
        };
        let copies = most_copies(features);
        self.mos.set_policy(WritePolicy {
            copies,
            metadata_copies: copies,
            indirect_copies: copies,
            compression,
            metadata_compression: compression,
            embedded_data: features.is_active("embedded_data"),
            hole_birth: features.is_active("hole_birth"),
            accounting_room: features.has_version(pool_version::USERSPACE),
            counts_bytes: features.has_version(pool_version::RAIDZ_DEFLATE),
            ..WritePolicy::meta_objset()
        });
    }
}

fn kind_of(objset: ObjsetType) -> DatasetKind {
    match objset {
        ObjsetType::ZVOL => DatasetKind::Volume,
        _ => DatasetKind::Filesystem,
    }
}
