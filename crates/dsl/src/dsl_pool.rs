//! The datasets of an open pool (`dsl_pool`): loading directories and datasets, finding them by name.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use dmu::zap::{self, ZapValue};
use dmu::{Objset, Services, Tx};
use ondisk::bytes::u64_at;
use ondisk::dsl::{DslDatasetPhys, DslDirPhys};
use ondisk::{BlockPointer, Guid, ObjectId, ObjectType, Txg};
use runtime::sync::RwLock;
use zio::{Bookmark, IoClass, ReadProps};

use crate::bpobj::Bpobj;
use crate::dataset::DatasetState;
use crate::dir::DslDir;
use crate::empty_bpobj::EmptyBpobj;
use crate::error::{DslError, Result};
use crate::features::Features;
use crate::hierarchy::Hierarchy;
use crate::livelist::{self, SublistFrees};
use crate::namecheck::{NameParts, split};
use crate::object_directory;
use crate::property::DatasetKind;
use crate::space::Delta;
use crate::types::{Estimate, HierarchyOptions, HistoryEvent};

pub(crate) type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;
pub(crate) type LocalTask<T> =
    Box<dyn for<'a> FnOnce(Hierarchy, &'a Tx) -> Pin<Box<dyn Future<Output = Result<T>> + 'a>>>;
pub(crate) type Task = Box<dyn FnOnce(Hierarchy, Rc<Tx>) -> LocalFuture<()>>;

/// A cycle or absurd depth of directories is corruption.
const DIR_DEPTH_MAX: usize = 256;

/// Blocks freed asynchronously in one txg, unless set otherwise: some hundred milliseconds.
const BACKGROUND_BLOCKS: u64 = 20_000;

/// Objects every hierarchy has.
#[derive(Clone, Copy)]
pub(crate) struct SpecialObjects {
    pub(crate) root_dir: ObjectId,
    pub(crate) mos_dir: ObjectId,
    pub(crate) free_dir: ObjectId,
    /// The empty snapshot all datasets descend from.
    pub(crate) origin_snap: ObjectId,
}

pub(crate) struct DslPool {
    pub(crate) mos: Objset,
    pub(crate) services: Services,
    pub(crate) pool_name: RefCell<String>,
    pub(crate) altroot: RefCell<Option<String>>,
    pub(crate) read_only: bool,
    pub(crate) features: Features,
    pub(crate) empty: EmptyBpobj,
    pub(crate) special: Cell<SpecialObjects>,
    /// Blocks whose freeing is deferred to the next txg.
    pub(crate) sync_bplist: Bpobj,
    /// Blocks of destroyed snapshots.
    pub(crate) free_bpobj: Bpobj,
    /// Destroyed datasets, 0 when there are none.
    pub(crate) bptree: Cell<ObjectId>,
    /// The queue of livelists of destroyed clones, 0 when there is none.
    pub(crate) deleted_clones: Cell<ObjectId>,
    /// Pointers to be noted for their removed vdevs, 0 when there are none.
    pub(crate) obsolete_bpobj: Cell<ObjectId>,
    /// Blocks of the clone that is being freed now.
    pub(crate) sublist_frees: RefCell<Option<SublistFrees>>,
    /// Blocks freed asynchronously in one txg.
    pub(crate) background_blocks_max: Cell<u64>,
    /// Blocks of an entry of a clone's livelist after which the next txg begins a new one.
    pub(crate) livelist_blocks: Cell<u64>,
    /// Background freeing ran into an error and rests until the next import.
    pub(crate) background_error: RefCell<Option<DslError>>,
    pub(crate) dirs: RefCell<BTreeMap<ObjectId, Rc<DslDir>>>,
    pub(crate) dirty_dirs: Rc<RefCell<BTreeSet<ObjectId>>>,
    pub(crate) datasets: RefCell<BTreeMap<ObjectId, Rc<DatasetState>>>,
    pub(crate) dirty_datasets: Rc<RefCell<BTreeSet<ObjectId>>>,
    pub(crate) tasks: RefCell<VecDeque<(Txg, Task)>>,
    /// Names and links of the tree: tasks hold it exclusively.
    pub(crate) config: RwLock<()>,
    /// Space of the meta-objset that is not in `$MOS` yet.
    pub(crate) mos_delta: Cell<Delta>,
    /// The pass running now; 0 outside.
    pub(crate) pass: Cell<u32>,
    pub(crate) events: RefCell<Vec<HistoryEvent>>,
    /// A task failed after it changed something.
    pub(crate) poison: RefCell<Option<DslError>>,
}

/// What a name stands for.
pub(crate) struct Found {
    pub(crate) dir: Rc<DslDir>,
    /// Object of the head or of the snapshot.
    pub(crate) dataset: ObjectId,
    pub(crate) snapshot: Option<String>,
}

impl DslPool {
    pub(crate) async fn open(mos: &Objset, options: HierarchyOptions) -> Result<Rc<Self>> {
        let features = Features::open(mos).await?;
        let directory = object_directory::OBJECT_DIRECTORY;
        let find = async |name: &str| -> Result<ObjectId> {
            match zap::lookup_u64(mos, directory, name).await? {
                Some(object) if object != 0 => Ok(ObjectId(object)),
                _ => Err(DslError::corrupt("object directory", directory)),
            }
        };
        let root_dir = find(object_directory::ROOT_DATASET).await?;
        let sync_bplist = Bpobj::open(mos, find(object_directory::SYNC_BPLIST).await?).await?;
        let free_bpobj = Bpobj::open(mos, find(object_directory::FREE_BPOBJ).await?).await?;
        let bptree = if features.is_active("async_destroy") {
            zap::lookup_u64(mos, directory, object_directory::BPTREE_OBJ)
                .await?
                .unwrap_or(0)
        } else {
            0
        };
        let empty = EmptyBpobj::open(mos, &features).await?;
        let zero = ObjectId(0);
        let special = SpecialObjects {
            root_dir,
            mos_dir: zero,
            free_dir: zero,
            origin_snap: zero,
        };
        let pool = Self::assemble(
            mos,
            options,
            features,
            empty,
            special,
            sync_bplist,
            free_bpobj,
        );
        pool.bptree.set(ObjectId(bptree));
        let deleted = zap::lookup_u64(mos, directory, livelist::DELETED_CLONES).await?;
        pool.deleted_clones.set(ObjectId(deleted.unwrap_or(0)));
        pool.load_obsolete_bpobj().await?;
        pool.find_special().await?;
        pool.apply_mos_policy();
        Ok(pool)
    }

    pub(crate) fn assemble(
        mos: &Objset,
        options: HierarchyOptions,
        features: Features,
        empty: EmptyBpobj,
        special: SpecialObjects,
        sync_bplist: Bpobj,
        free_bpobj: Bpobj,
    ) -> Rc<Self> {
        Rc::new(Self {
            mos: mos.clone(),
            services: mos.services().clone(),
            pool_name: RefCell::new(options.pool_name),
            altroot: RefCell::new(None),
            read_only: options.read_only,
            features,
            empty,
            special: Cell::new(special),
            sync_bplist,
            free_bpobj,
            bptree: Cell::new(ObjectId(0)),
            deleted_clones: Cell::new(ObjectId(0)),
            obsolete_bpobj: Cell::new(ObjectId(0)),
            sublist_frees: RefCell::default(),
            background_blocks_max: Cell::new(BACKGROUND_BLOCKS),
            livelist_blocks: Cell::new(crate::livelist::ENTRY_BLOCKS),
            background_error: RefCell::default(),
            dirs: RefCell::default(),
            dirty_dirs: Rc::default(),
            datasets: RefCell::default(),
            dirty_datasets: Rc::default(),
            tasks: RefCell::default(),
            config: RwLock::new("the names of datasets", ()),
            mos_delta: Cell::new(Delta::default()),
            pass: Cell::new(0),
            events: RefCell::default(),
            poison: RefCell::default(),
        })
    }

    async fn find_special(self: &Rc<Self>) -> Result<()> {
        let mut special = self.special.get();
        let root = self.dir(special.root_dir).await?;
        let child = async |name: &str| -> Result<Rc<DslDir>> {
            let dir = self.child(&root, name).await?;
            dir.ok_or_else(|| DslError::corrupt("special directories", root.object))
        };
        special.mos_dir = child(object_directory::MOS_DIR).await?.object;
        special.free_dir = child(object_directory::FREE_DIR).await?.object;
        let origin = child(object_directory::ORIGIN_DIR).await?;
        let head = self
            .dataset_phys(ObjectId(origin.phys().head_dataset_obj))
            .await?;
        special.origin_snap = ObjectId(head.prev_snap_obj);
        self.special.set(special);
        Ok(())
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
            if let Some(dir) = self.dirs.borrow().get(&at) {
                break Some(dir.clone());
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
        if let Some(dir) = self.dirs.borrow().get(&object) {
            return Ok(dir.clone());
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
        let origin_txg = if origin == 0 || origin == self.special.get().origin_snap.0 {
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
            self.dirty_dirs.clone(),
        );
        // Another task may have loaded it meanwhile; there must be one of each.
        Ok(self
            .dirs
            .borrow_mut()
            .entry(object)
            .or_insert_with(|| Rc::new(dir))
            .clone())
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
        if let Some(state) = self.datasets.borrow().get(&object) {
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
        let mut dir = self.dir(self.special.get().root_dir).await?;
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
        let open = self
            .datasets
            .borrow()
            .get(&head)
            .and_then(|state| state.objset());
        let kind = match open {
            Some(objset) => kind_of_code(objset.kind().0),
            None => {
                let root = self.dataset_phys(head).await?.bp;
                if root.uses_crypt() {
                    let name = self.name_of(dir);
                    return Err(DslError::KeyNotLoaded { name });
                }
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
        Ok(kind_of_code(self.objset_type(object, root).await?))
    }

    async fn objset_type(&self, object: ObjectId, bp: &BlockPointer) -> Result<u64> {
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
        Ok(u64_at(&bytes, 704))
    }

    /// What the pool offers to datasets: its size without slop space and deferred frees. The slop
    /// is divided by `2^reserve`.
    pub(crate) fn pool_size(&self, reserve: u32) -> u64 {
        let space = self.services.store().space();
        let deferred = self.sync_bplist.sizes().used;
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
            .max(512)
    }

    /// A dataset's identity that no other dataset of this pool loaded now has; 56 bits.
    pub(crate) fn new_fsid(&self) -> u64 {
        loop {
            let id = self.services.handle.random_u64() >> 8;
            let taken = self
                .datasets
                .borrow()
                .values()
                .any(|d| d.phys().fsid_guid == id);
            if id != 0 && !taken {
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
        self.events.borrow_mut().push(event);
    }

    /// Seconds since 1970.
    pub(crate) fn seconds(&self) -> u64 {
        u64::try_from(self.services.handle.wall_clock().seconds).unwrap_or(0)
    }
}

fn kind_of_code(code: u64) -> DatasetKind {
    match code {
        3 => DatasetKind::Volume,
        _ => DatasetKind::Filesystem,
    }
}
