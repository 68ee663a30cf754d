//! Creation of a new pool's hierarchy, of directories and of head datasets.

use std::rc::Rc;

use codec::crypt::Suite;
use dmu::zap::{self, ZapSpec};
use dmu::{AllocSpec, Objset, ObjsetOptions, Tx};
use ondisk::dsl::{DslDatasetPhys, DslDirPhys, dataset_flags, dir_flags, zapified_keys};
use ondisk::{ObjectId, ObjectType, ObjsetType, TXG_INITIAL, Txg, objset_flags, pool_version};

use crate::bpobj::Bpobj;
use crate::change_log::Concerned;
use crate::complete_counts::counted_by_feature;
use crate::dataset_state::DatasetState;
use crate::deadlist::Deadlist;
use crate::dsl_dir::{DslDir, available};
use crate::dsl_pool::{DslPool, Found, SpecialObjects};
use crate::empty_bpobj::EmptyBpobj;
use crate::error::{DslError, Result};
use crate::features::Features;
use crate::namecheck;
use crate::object_directory::{self, LIST_BLOCK, NORMALIZE_TOUPPER, OBJECT_DIRECTORY};
use crate::property::{DatasetKind, Property, Setting, Value};
use crate::sync_task::SyncTask;
use crate::types::{HierarchyOptions, NewDataset, NewHierarchy};
use crate::write_policy::write_policy;

/// Creates a file system or volume, whose settings are complete; `init` fills it.
pub(crate) struct CreateDataset<I> {
    pub(crate) new: NewDataset,
    pub(crate) init: I,
}

impl<I> SyncTask for CreateDataset<I>
where
    I: AsyncFnOnce(&Objset, &Tx, &[Setting]) -> Result<()> + 'static,
{
    /// The parent, and how the dataset is encrypted.
    type Checked = (Rc<DslDir>, Option<Suite>);
    type Output = ();

    fn name(&self) -> &'static str {
        "create"
    }

    fn concerned(&self) -> Concerned {
        Concerned::subtree(&self.new.name)
    }

    async fn check(&self, pool: &Rc<DslPool>, _: Option<Txg>) -> Result<Self::Checked> {
        namecheck::check(&self.new.name, self.new.kind)?;
        let parent = pool.check_new(&self.new.name, &self.new.settings).await?;
        let key = self.new.key.as_ref();
        let suite = pool.check_new_encryption(Some(&parent), &self.new.settings, key);
        let suite = suite.await?;
        Ok((parent, suite))
    }

    async fn apply(self, pool: &Rc<DslPool>, checked: Self::Checked, tx: &Tx) -> Result<()> {
        let (parent, suite) = checked;
        let Self { new, init } = self;
        let dir = pool
            .create_child(&parent, &new.name, new.creator, tx)
            .await?;
        let flags = case_insensitive_flag(&new.settings);
        let state = pool.create_head(&dir, flags, tx).await?;
        if let Some(suite) = suite {
            pool.create_key(&state, suite, new.key, tx).await?;
        }
        let found = Found {
            dir,
            dataset: state.object,
            snapshot: None,
        };
        pool.apply_settings(&found, &new.settings, tx).await?;
        pool.create_objects(&state, new.kind, &new.settings, init, tx)
            .await?;
        pool.event("create", &new.name, state.object, String::new(), tx);
        Ok(())
    }
}

impl DslPool {
    /// Checks that a dataset of a well-formed name can be made; returns where.
    pub(crate) async fn check_new(
        self: &Rc<Self>,
        name: &str,
        settings: &[Setting],
    ) -> Result<Rc<DslDir>> {
        if self.find_dir(name).await?.is_some() {
            return Err(DslError::Exists { name: name.into() });
        }
        let Some((above, _)) = name.rsplit_once('/') else {
            return Err(DslError::ParentNotFound { name: name.into() });
        };
        let missing = || DslError::ParentNotFound { name: above.into() };
        let parent = self.find_dir(above).await?.ok_or_else(missing)?;
        if self.kind_of(&parent).await? != DatasetKind::Filesystem {
            return Err(DslError::ParentNotFilesystem { name: above.into() });
        }
        self.check_filesystem_limit(&parent, 1).await?;
        for setting in settings {
            match setting {
                Setting::Native(property, value) => {
                    self.check_feature(*property, value)?;
                    if *property == Property::Version {
                        self.check_file_system_version(value.number().unwrap_or(0))?;
                    }
                    let reserves =
                        matches!(property, Property::Reservation | Property::RefReservation);
                    let room = available(&parent, self.pool_size(0), true);
                    if reserves && value.number().unwrap_or(0) > room {
                        return Err(DslError::NoSpace);
                    }
                }
                Setting::UserQuota(..) | Setting::User(..) => {}
            }
        }
        // A new dataset takes a few hundred kilobytes; a full pool refuses it here.
        if available(&parent, self.pool_size(0), true) < (1 << 18) {
            return Err(DslError::NoSpace);
        }
        Ok(parent)
    }

    /// Makes the directory of a new dataset whose name was checked, counted above and with what its creator is granted.
    /// Syncing context.
    pub(crate) async fn create_child(
        self: &Rc<Self>,
        parent: &Rc<DslDir>,
        name: &str,
        creator: u32,
        tx: &Tx,
    ) -> Result<Rc<DslDir>> {
        let (_, component) = name.rsplit_once('/').expect("the name was checked");
        let dir = self.create_dir(Some(parent), component, tx).await?;
        self.adjust_count(parent, zapified_keys::FILESYSTEM_COUNT, 1, tx)
            .await?;
        self.start_counts(&dir, tx).await?;
        self.grant_to_creator(&dir, creator, tx).await?;
        Ok(dir)
    }

    /// Makes the hierarchy of a new pool, up to but without the root dataset's contents.
    pub(crate) async fn create(
        mos: &Objset,
        options: HierarchyOptions,
        new: &NewHierarchy,
        tx: &Tx,
    ) -> Result<Rc<Self>> {
        let spec = ZapSpec::new(ObjectType::OBJECT_DIRECTORY);
        zap::create_at(mos, OBJECT_DIRECTORY, &spec, tx).await?;
        let features = Features::create(mos, new.version, tx).await?;
        for feature in &new.features {
            features.enable(feature.name, tx).await?;
        }
        let add = async |name: &str, value: u64| -> Result<()> {
            Ok(zap::add_u64(mos, OBJECT_DIRECTORY, name, value, tx).await?)
        };
        if features.has_version(pool_version::RAIDZ_DEFLATE) {
            add(object_directory::DEFLATE, 1).await?;
        }
        add(object_directory::CREATION_VERSION, new.version).await?;
        let sync_bplist = Bpobj::create_uncompressed(mos, new.version, tx).await?;
        add(object_directory::SYNC_BPLIST, sync_bplist.0).await?;
        let free_bpobj = if features.has_version(pool_version::DEADLISTS) {
            let object = Bpobj::create(mos, LIST_BLOCK, tx).await?;
            add(object_directory::FREE_BPOBJ, object.0).await?;
            Some(Bpobj::open(mos, object).await?)
        } else {
            None
        };
        let sync_bplist = Bpobj::open(mos, sync_bplist).await?;
        let empty = EmptyBpobj::open(mos, &features).await?;
        let pool = Self::new(mos, options, features, empty, sync_bplist, free_bpobj);
        pool.apply_mos_policy();
        let root = pool.create_dir(None, "", tx).await?;
        pool.set_root_dir(root.object);
        add(object_directory::ROOT_DATASET, root.object.0).await?;
        let mos_dir = pool
            .create_dir(Some(&root), object_directory::MOS_DIR, tx)
            .await?;
        pool.set_special(SpecialObjects {
            mos_dir: mos_dir.object,
            free_dir: None,
            origin_snap: None,
        });
        if pool.features.has_version(pool_version::DEADLISTS) {
            pool.create_free_dir(&root, tx).await?;
        }
        if pool.features.has_version(pool_version::ORIGIN) {
            pool.create_origin(&root, tx).await?;
        }
        Ok(pool)
    }

    /// Makes the directory of what is freed in the background.
    pub(crate) async fn create_free_dir(self: &Rc<Self>, root: &Rc<DslDir>, tx: &Tx) -> Result<()> {
        let dir = self
            .create_dir(Some(root), object_directory::FREE_DIR, tx)
            .await?;
        self.set_special(SpecialObjects {
            free_dir: Some(dir.object),
            ..self.special()
        });
        Ok(())
    }

    /// Makes the empty dataset all others are formally clones of, and its snapshot.
    pub(crate) async fn create_origin(self: &Rc<Self>, root: &Rc<DslDir>, tx: &Tx) -> Result<()> {
        let dir = self
            .create_dir(Some(root), object_directory::ORIGIN_DIR, tx)
            .await?;
        let snapshot_deadlist = self.create_deadlist(tx).await?;
        let head_object = self.allocate_dataset(tx).await?;
        let snapshot_object = self.allocate_dataset(tx).await?;
        let snapnames = self.create_snapnames(tx).await?;
        let head_deadlist = self.create_deadlist(tx).await?;
        Deadlist::open(&self.mos, head_deadlist)
            .await?
            .add_key(0, &self.empty_bpobj, tx)
            .await?;
        let common = DslDatasetPhys {
            dir_obj: dir.object.0,
            creation_time: self.seconds(),
            creation_txg: creation_txg(tx),
            flags: dataset_flags::UNIQUE_ACCURATE,
            ..DslDatasetPhys::default()
        };
        let snapshot = DslDatasetPhys {
            // No block is as old, also of a pool that is upgraded. OpenZFS: module/zfs/dsl_dataset.c,
            // dsl_dataset_snapshot_sync_impl
            creation_txg: 1,
            next_snap_obj: head_object.0,
            num_children: 1,
            deadlist_obj: snapshot_deadlist.0,
            fsid_guid: self.new_fsid(),
            guid: self.new_guid().0,
            ..common
        };
        let head = DslDatasetPhys {
            prev_snap_obj: snapshot_object.0,
            prev_snap_txg: snapshot.creation_txg,
            snapnames_zapobj: snapnames.0,
            deadlist_obj: head_deadlist.0,
            fsid_guid: self.new_fsid(),
            guid: self.new_guid().0,
            ..common
        };
        zap::add_u64(
            &self.mos,
            snapnames,
            object_directory::ORIGIN_DIR,
            snapshot_object.0,
            tx,
        )
        .await?;
        for (object, phys) in [(head_object, head), (snapshot_object, snapshot)] {
            self.mos
                .set_bonus(object, ObjectType::DSL_DATASET, &phys.encode(), tx)
                .await?;
        }
        dir.change(|d| d.head_dataset_obj = head_object.0);
        self.set_special(SpecialObjects {
            origin_snap: Some(snapshot_object),
            ..self.special()
        });
        Ok(())
    }

    /// Makes a directory below a parent (or the root). Syncing context.
    pub(crate) async fn create_dir(
        self: &Rc<Self>,
        parent: Option<&Rc<DslDir>>,
        name: &str,
        tx: &Tx,
    ) -> Result<Rc<DslDir>> {
        assert!(tx.is_syncing(), "create dir happens in syncing context");
        let len = u16::try_from(DslDirPhys::SIZE).expect("256 bytes");
        let spec = AllocSpec::new(ObjectType::DSL_DIR).bonus(ObjectType::DSL_DIR, len);
        let object = self.mos.allocate(spec, tx).await?;
        if let Some(parent) = parent {
            let map = ObjectId(parent.phys().child_dir_zapobj);
            zap::add_u64(&self.mos, map, name, object.0, tx).await?;
        }
        let props = crate::property_zap::create_map(&self.mos, tx).await?;
        let children =
            zap::create(&self.mos, &ZapSpec::new(ObjectType::DSL_DIR_CHILD_MAP), tx).await?;
        let phys = DslDirPhys {
            creation_time: self.seconds(),
            parent_obj: parent.map_or(0, |p| p.object.0),
            child_dir_zapobj: children.0,
            props_zapobj: props.0,
            flags: if self.features.has_version(pool_version::USED_BREAKDOWN) {
                dir_flags::USED_BREAKDOWN
            } else {
                0
            },
            ..DslDirPhys::default()
        };
        self.mos
            .set_bonus(object, ObjectType::DSL_DIR, &phys.encode(), tx)
            .await?;
        let dirty = self.loaded.dirty_dirs();
        let dir = DslDir::new(object, parent.cloned(), name.into(), phys, 0, dirty);
        Ok(self.loaded.add_dir(dir))
    }

    pub(crate) async fn allocate_dataset(&self, tx: &Tx) -> Result<ObjectId> {
        let len = u16::try_from(DslDatasetPhys::SIZE).expect("320 bytes");
        let spec = AllocSpec::new(ObjectType::DSL_DATASET).bonus(ObjectType::DSL_DATASET, len);
        Ok(self.mos.allocate(spec, tx).await?)
    }

    async fn create_snapnames(&self, tx: &Tx) -> Result<ObjectId> {
        let spec = ZapSpec {
            normalization: NORMALIZE_TOUPPER,
            ..ZapSpec::new(ObjectType::DSL_DS_SNAP_MAP)
        };
        Ok(zap::create(&self.mos, &spec, tx).await?)
    }

    /// Makes the head dataset of a directory as a clone of the empty snapshot, without objects.
    /// Syncing context.
    pub(crate) async fn create_head(
        self: &Rc<Self>,
        dir: &Rc<DslDir>,
        flags: u64,
        tx: &Tx,
    ) -> Result<Rc<DatasetState>> {
        assert!(tx.is_syncing(), "create head happens in syncing context");
        let Some(origin_object) = self.special().origin_snap else {
            return self.create_head_without_origin(dir, flags, tx).await;
        };
        let origin = self
            .load_dataset(origin_object, Some(object_directory::ORIGIN_DIR.into()))
            .await?;
        self.create_head_from(dir, &origin, flags, tx).await
    }

    /// Makes the head dataset of a directory in a pool before version 11, without objects. Syncing context.
    async fn create_head_without_origin(
        self: &Rc<Self>,
        dir: &Rc<DslDir>,
        flags: u64,
        tx: &Tx,
    ) -> Result<Rc<DatasetState>> {
        let object = self.allocate_dataset(tx).await?;
        let snapnames = self.create_snapnames(tx).await?;
        let deadlist = self.create_deadlist(tx).await?;
        let phys = DslDatasetPhys {
            dir_obj: dir.object.0,
            snapnames_zapobj: snapnames.0,
            creation_time: self.seconds(),
            creation_txg: creation_txg(tx),
            deadlist_obj: deadlist.0,
            fsid_guid: self.new_fsid(),
            guid: self.new_guid().0,
            flags: self.flags_of_heads() | flags,
            ..DslDatasetPhys::default()
        };
        self.mos
            .set_bonus(object, ObjectType::DSL_DATASET, &phys.encode(), tx)
            .await?;
        dir.change(|d| d.head_dataset_obj = object.0);
        self.load_dataset(object, None).await
    }

    /// The flags of every new head and of every head of which a snapshot is taken.
    pub(crate) fn flags_of_heads(&self) -> u64 {
        if self.features.has_version(pool_version::REFRESERVATION) {
            dataset_flags::UNIQUE_ACCURATE
        } else {
            0
        }
    }

    /// Makes the head dataset of a directory as a clone of a snapshot: with the same contents.
    /// Syncing context.
    pub(crate) async fn create_head_from(
        self: &Rc<Self>,
        dir: &Rc<DslDir>,
        origin: &Rc<DatasetState>,
        flags: u64,
        tx: &Tx,
    ) -> Result<Rc<DatasetState>> {
        assert!(
            tx.is_syncing(),
            "create head from happens in syncing context"
        );
        let mos = &self.mos;
        let origin_dir = origin.dir();
        let object = self.allocate_dataset(tx).await?;
        let snapnames = self.create_snapnames(tx).await?;
        let origin_head = self.head_of(&origin_dir).await?;
        let o = origin.phys();
        let keys = self.deadlist_of(&origin_head).await?;
        let deadlist = self
            .clone_deadlist(&keys, o.creation_txg, origin.object, None, tx)
            .await?;
        let phys = DslDatasetPhys {
            dir_obj: dir.object.0,
            prev_snap_obj: origin.object.0,
            prev_snap_txg: o.creation_txg,
            snapnames_zapobj: snapnames.0,
            creation_time: self.seconds(),
            creation_txg: creation_txg(tx),
            deadlist_obj: deadlist.object().0,
            referenced_bytes: o.referenced_bytes,
            compressed_bytes: o.compressed_bytes,
            uncompressed_bytes: o.uncompressed_bytes,
            fsid_guid: self.new_fsid(),
            guid: self.new_guid().0,
            flags: self.flags_of_heads() | flags,
            bp: o.bp,
            ..DslDatasetPhys::default()
        };
        mos.set_bonus(object, ObjectType::DSL_DATASET, &phys.encode(), tx)
            .await?;
        origin.change(|o| o.num_children += 1);
        if self.features.has_version(pool_version::ORIGIN) {
            let mut next_clones = ObjectId(o.next_clones_obj);
            if next_clones.0 == 0 {
                next_clones = zap::create(mos, &ZapSpec::new(ObjectType::NEXT_CLONES), tx).await?;
                origin.change(|o| o.next_clones_obj = next_clones.0);
            }
            zap::add_int(mos, next_clones, object.0, tx).await?;
        }
        if self.features.has_version(pool_version::DEADLISTS) {
            let clones = self.clones_of(&origin_dir, tx).await?;
            zap::add_int(mos, clones, object.0, tx).await?;
        }
        dir.change(|d| {
            d.head_dataset_obj = object.0;
            d.origin_obj = origin.object.0;
        });
        if !self.is_origin_snap(origin.object) {
            dir.origin_txg.set(o.creation_txg);
        }
        let state = self.load_dataset(object, None).await?;
        self.activate_features_of(origin, &state, tx).await?;
        Ok(state)
    }

    /// The ZAP of heads cloned from a directory's snapshots, made when there is none.
    pub(crate) async fn clones_of(&self, dir: &DslDir, tx: &Tx) -> Result<ObjectId> {
        let mut clones = ObjectId(dir.phys().clones);
        if clones.0 == 0 {
            let spec = ZapSpec::new(ObjectType::DSL_CLONES);
            clones = zap::create(&self.mos, &spec, tx).await?;
            dir.change(|d| d.clones = clones.0);
        }
        Ok(clones)
    }

    /// Gives a new head its objects, filled by `init`. Syncing context.
    pub(crate) async fn create_objects(
        self: &Rc<Self>,
        state: &Rc<DatasetState>,
        kind: DatasetKind,
        settings: &[Setting],
        init: impl AsyncFnOnce(&Objset, &Tx, &[Setting]) -> Result<()>,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "create objects happens in syncing context");
        let scope = self.scope(&state.dir(), None).await?;
        let objset_type = match kind {
            DatasetKind::Volume => ObjsetType::ZVOL,
            _ => ObjsetType::ZFS,
        };
        let mut create_flags = 0;
        let mut accounting = Vec::new();
        if objset_type == ObjsetType::ZFS {
            create_flags = if self.features.has_version(pool_version::USERSPACE) {
                objset_flags::USER_ACCOUNTING_COMPLETE
            } else {
                0
            };
            for (feature, flag) in counted_by_feature(&self.features) {
                create_flags |= flag;
                accounting.push(feature);
            }
        }
        let options = ObjsetOptions {
            policy: write_policy(&scope, &self.features),
            owner_of: self.owner_of(),
            create_flags,
            ..ObjsetOptions::dataset(state.object.0)
        };
        let keys = self.block_keys(&state.dir()).await?;
        let services = self.services_with(keys.as_ref());
        let objset = Objset::create(&services, objset_type, options, tx);
        for feature in accounting {
            self.activate(state, feature, tx).await?;
        }
        init(&objset, tx, settings).await?;
        objset.mark_dirty(tx);
        state.set_objset(Some(objset));
        state.dir().kind.set(Some(kind));
        state.apply_scope(&scope, &self.features);
        Ok(())
    }

    /// Adds to the counts of file systems or snapshots, here and above, where they are kept.
    pub(crate) async fn adjust_count(
        &self,
        dir: &Rc<DslDir>,
        key: &str,
        delta: i64,
        tx: &Tx,
    ) -> Result<()> {
        if !self.features.is_active("filesystem_limits") {
            return Ok(());
        }
        for dir in dir.chain() {
            // A directory without counts has none above it either.
            let Some(count) = self.dir_count(&dir, key).await? else {
                return Ok(());
            };
            let count = count.saturating_add_signed(delta);
            zap::update_u64(&self.mos, dir.object, key, count, tx).await?;
        }
        Ok(())
    }

    /// A count stored in a zapified directory.
    pub(crate) async fn dir_count(&self, dir: &DslDir, key: &str) -> Result<Option<u64>> {
        if self.mos.object_info(dir.object).await?.object_type != ObjectType::ZAP_METADATA {
            return Ok(None);
        }
        Ok(zap::lookup_u64(&self.mos, dir.object, key).await?)
    }

    /// Gives a new directory its counts, if such are kept. Syncing context.
    pub(crate) async fn start_counts(&self, dir: &DslDir, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "start counts happens in syncing context");
        if self.features.is_active("filesystem_limits") {
            self.zapify(dir.object, tx).await?;
            for key in [
                zapified_keys::FILESYSTEM_COUNT,
                zapified_keys::SNAPSHOT_COUNT,
            ] {
                zap::add_u64(&self.mos, dir.object, key, 0, tx).await?;
            }
        }
        Ok(())
    }

    /// Checks the limits on the number of file systems above a new one.
    pub(crate) async fn check_filesystem_limit(
        &self,
        parent: &Rc<DslDir>,
        more: u64,
    ) -> Result<()> {
        if !self.features.is_active("filesystem_limits") {
            return Ok(());
        }
        for dir in parent.chain() {
            let map = self.props_of(&dir).await?;
            let limit = map
                .get(Property::FilesystemLimit.name())
                .and_then(Value::number);
            let count = self
                .dir_count(&dir, zapified_keys::FILESYSTEM_COUNT)
                .await?;
            if let (Some(limit), Some(count)) = (limit, count)
                && count.saturating_add(more) > limit
            {
                return Err(DslError::CountLimit {
                    name: self.name_of(&dir),
                });
            }
        }
        Ok(())
    }
}

/// The creation txg recorded for what a transaction makes: a pool's first txg counts as 1.
fn creation_txg(tx: &Tx) -> u64 {
    if tx.txg() == TXG_INITIAL {
        1
    } else {
        tx.txg().0
    }
}

/// The dataset flag that tells of case-insensitive file names.
pub(crate) fn case_insensitive_flag(settings: &[Setting]) -> u64 {
    let sensitivity = settings.iter().find_map(|s| match s {
        Setting::Native(Property::CaseSensitivity, Value::Number(n)) => Some(*n),
        _ => None,
    });
    match sensitivity {
        Some(1 | 2) => dataset_flags::CASE_INSENSITIVE,
        _ => 0,
    }
}
