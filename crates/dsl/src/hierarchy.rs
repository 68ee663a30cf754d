//! The datasets of one pool: the public interface.

use std::rc::Rc;

use dmu::{Objset, Tx};
use ondisk::{BlockPointer, ObjectId, Txg};
use zio::BlockKeys;

use crate::change::{DestroyDataset, RenameDataset};
use crate::change_log::{Concerned, DatasetChanges};
use crate::create::{CreateDataset, case_insensitive_flag};
use crate::dataset::Dataset;
use crate::dsl_pool::{DslPool, Found};
use crate::error::{DslError, Result};
use crate::features::Features;
use crate::list::PropertySelection;
use crate::property::{DatasetKind, Property, Setting};
use crate::setprop::{InheritProperty, SetProperties};
use crate::sync_task::SyncTask as _;
use crate::types::{
    DatasetInfo, DatasetProperties, HierarchyOptions, HistoryEvent, ListSpec, NewDataset,
    NewHierarchy,
};

/// The datasets of one pool. Clones are handles to the same ones.
///
/// Changes run as tasks in the sync of a txg; when a method that changes something
/// returns, the change is on disk.
#[derive(Clone)]
pub struct Hierarchy(Rc<DslPool>);

impl Hierarchy {
    pub(crate) fn pool(&self) -> &Rc<DslPool> {
        &self.0
    }

    /// Makes the hierarchy of a new pool in an empty meta-objset: the object directory (object 1),
    /// the special directories, the feature objects, the free lists and the root dataset, which
    /// `init` fills. `tx` is the syncing transaction of the pool's first txg; call
    /// [`Hierarchy::sync`] for it next.
    ///
    /// # Errors
    /// Of the object layer, and of `init`.
    pub async fn create(
        mos: &Objset,
        options: HierarchyOptions,
        new: NewHierarchy,
        init: impl AsyncFnOnce(&Objset, &Tx, &[Setting]) -> Result<()>,
        tx: &Tx,
    ) -> Result<Self> {
        let pool = DslPool::create(mos, options, &new, tx).await?;
        let kind = DatasetKind::Filesystem;
        let settings = pool.complete_for_creation(None, kind, new.settings).await?;
        let suite = pool.check_new_encryption(None, &settings, new.key.as_ref());
        let suite = suite.await?;
        let root = pool.dir(pool.root_dir()).await?;
        let state = pool
            .create_head(&root, case_insensitive_flag(&settings), tx)
            .await?;
        if let Some(suite) = suite {
            pool.create_key(&state, suite, new.key, tx).await?;
        }
        let found = Found {
            dir: root,
            dataset: state.object,
            snapshot: None,
        };
        pool.apply_settings(&found, &settings, tx).await?;
        pool.create_objects(&state, kind, &settings, init, tx)
            .await?;
        // Accounting starts with the first pass; fields made so far are written now.
        pool.write_back(tx).await?;
        Ok(Self(pool))
    }

    /// Opens the hierarchy of an existing pool.
    ///
    /// # Errors
    /// When an object every pool has is missing or damaged.
    pub async fn open(mos: &Objset, options: HierarchyOptions) -> Result<Self> {
        Ok(Self(DslPool::open(mos, options).await?))
    }

    /// Returns the meta-objset.
    #[must_use]
    pub fn mos(&self) -> &Objset {
        &self.0.mos
    }

    /// Returns the pool's features.
    #[must_use]
    pub fn features(&self) -> &Features {
        &self.0.features
    }

    /// Makes the pool one of version `to`: nothing happens when it is of that or a newer one. Syncing context.
    ///
    /// # Errors
    /// Of the object layer, after which the txg must not be committed.
    pub async fn upgrade(&self, to: u64, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "a pool is upgraded in syncing context");
        if self.0.features.has_version(to) {
            return Ok(());
        }
        self.0.upgrade(to, tx).await
    }

    /// Enables a feature and those it depends on, and what follows from them; a pool without features is upgraded first. Syncing
    /// context.
    ///
    /// # Errors
    /// `Unsupported` for an unknown name.
    pub async fn enable_feature(&self, name: &str, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "enable feature happens in syncing context");
        self.upgrade(ondisk::SPA_VERSION_FEATURES, tx).await?;
        self.0.features.enable(name, tx).await?;
        self.0.apply_mos_policy();
        let root = self.0.dir(self.0.root_dir()).await?;
        self.0.refresh_properties(&root).await
    }

    /// Returns the pool's name: the first component of every dataset's.
    #[must_use]
    pub fn pool_name(&self) -> String {
        self.0.pool_name()
    }

    /// Changes the pool's name in memory (import under a new name).
    pub fn set_pool_name(&self, name: &str) {
        self.0.set_pool_name(name);
    }

    /// Sets the directory all mount points are shown below.
    pub fn set_altroot(&self, altroot: Option<String>) {
        self.0.set_altroot(altroot);
    }

    /// Opens a file system, volume or snapshot by name. The handle keeps it from being destroyed.
    ///
    /// # Errors
    /// `NotFound`; `Busy` while it is owned, or not received whole; errors of reading.
    pub async fn dataset(&self, name: &str) -> Result<Dataset> {
        let _names = self.0.config.read().await;
        let found = self.0.find(name).await?;
        self.0.open_whole(found).await
    }

    /// As [`Hierarchy::dataset`], but the objects of an encrypted dataset whose key is not loaded are opened without it: its intent
    /// log can be claimed, and nothing encrypted be read.
    ///
    /// # Errors
    /// As [`Hierarchy::dataset`], but for a missing key.
    pub async fn dataset_to_claim(&self, name: &str) -> Result<Dataset> {
        let _names = self.0.config.read().await;
        let found = self.0.find(name).await?;
        self.0.open_dataset_raw(found).await
    }

    /// Returns the keys that blocks of a head or snapshot are encrypted with; `None` of one that is not encrypted.
    ///
    /// # Errors
    /// `KeyNotLoaded`; errors of reading.
    pub async fn keys_of(&self, object: ObjectId) -> Result<Option<BlockKeys>> {
        let phys = self.0.dataset_phys(object).await?;
        let dir = self.0.dir(ObjectId(phys.dir_obj)).await?;
        self.0.block_keys(&dir).await
    }

    /// Opens a head or snapshot by its object in the meta-objset.
    ///
    /// # Errors
    /// `NotFound` when the object is no dataset; as [`Hierarchy::dataset`].
    pub async fn dataset_by_object(&self, object: ObjectId) -> Result<Dataset> {
        let _names = self.0.config.read().await;
        let missing = || DslError::NotFound {
            name: format!("objset {object}"),
        };
        let phys = match self.0.dataset_phys(object).await {
            Err(DslError::Dmu(error)) if error.is_not_found() => return Err(missing()),
            Err(DslError::Corrupt { .. }) => return Err(missing()),
            other => other?,
        };
        let dir = self.0.dir(ObjectId(phys.dir_obj)).await?;
        let snapshot = if phys.is_snapshot() {
            let name = self.0.snapshot_name(object).await?;
            name.split_once('@')
                .map(|(_, snapshot)| snapshot.to_owned())
        } else {
            None
        };
        self.0
            .open_whole(Found {
                dir,
                dataset: object,
                snapshot,
            })
            .await
    }

    /// Returns what is known of one dataset, snapshot or bookmark.
    ///
    /// # Errors
    /// `NotFound`; errors of reading.
    pub async fn info(&self, name: &str) -> Result<DatasetInfo> {
        let _names = self.0.config.read().await;
        self.0.info(name).await
    }

    /// Returns the objects of those of some datasets and snapshots that exist.
    ///
    /// # Errors
    /// Errors of reading.
    pub async fn existing(&self, names: &[String]) -> Result<Vec<ObjectId>> {
        let _names = self.0.config.read().await;
        let mut objects = Vec::new();
        for (number, name) in names.iter().enumerate() {
            self.0.yield_every(number).await;
            match self.0.find(name).await {
                Ok(found) => objects.push(found.dataset),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(objects)
    }

    /// Returns the dataset named and those below it that the spec asks for, sorted as `zfs list`
    /// sorts: by name, snapshots by age.
    ///
    /// # Errors
    /// `NotFound`; errors of reading.
    pub async fn list(&self, name: &str, spec: ListSpec) -> Result<Vec<DatasetInfo>> {
        let _names = self.0.config.read().await;
        let found = self.0.list(name, spec, &PropertySelection::all()).await?;
        Ok(found.into_iter().map(|listed| listed.info).collect())
    }

    /// As [`Hierarchy::list`], with properties: those named, or none. Properties not asked for are not
    /// computed, so that long lists are quick; `written` of the information is 0 unless asked for.
    ///
    /// # Errors
    /// `NotFound`; errors of reading.
    pub async fn list_properties(
        &self,
        name: &str,
        spec: ListSpec,
        wanted: Option<&[String]>,
    ) -> Result<Vec<DatasetProperties>> {
        let _names = self.0.config.read().await;
        let selection = wanted.map_or_else(PropertySelection::all, PropertySelection::these);
        let mut all = Vec::new();
        let mut last = None;
        for listed in self.0.list(name, spec, &selection).await? {
            all.push(self.0.properties_of(listed, &selection, &mut last).await?);
        }
        Ok(all)
    }

    /// Returns the names of the file systems and volumes that the spec asks for, in no order,
    /// without looking at their space.
    ///
    /// # Errors
    /// `NotFound`; errors of reading.
    pub async fn names(&self, name: &str, spec: ListSpec) -> Result<Vec<String>> {
        let _names = self.0.config.read().await;
        self.0.names(name, spec).await
    }

    /// Returns all properties of one dataset, snapshot or bookmark.
    ///
    /// # Errors
    /// `NotFound`; errors of reading.
    pub async fn properties(&self, name: &str) -> Result<DatasetProperties> {
        let _names = self.0.config.read().await;
        self.0.properties(name, &PropertySelection::all()).await
    }

    /// Returns the properties named, and `written@SNAPSHOT` ones, of a dataset or snapshot.
    ///
    /// # Errors
    /// `NotFound`; errors of reading.
    pub async fn properties_named(
        &self,
        name: &str,
        wanted: &[String],
    ) -> Result<DatasetProperties> {
        let _names = self.0.config.read().await;
        self.0
            .properties(name, &PropertySelection::these(wanted))
            .await
    }

    /// Destroys what receives left that did not end before the pool was closed, and that cannot go on.
    ///
    /// # Errors
    /// Of reading. What cannot be destroyed stays.
    pub async fn destroy_left_receives(&self) -> Result<()> {
        let left = {
            let _names = self.0.config.read().await;
            self.0.left_receives().await?
        };
        for name in left {
            let _ = self.destroy(&name).await;
        }
        Ok(())
    }

    /// Names of the datasets whose intent log is not empty: they must not be written before it is
    /// replayed.
    ///
    /// # Errors
    /// Of reading.
    pub async fn unreplayed_logs(&self) -> Result<Vec<String>> {
        let _names = self.0.config.read().await;
        self.0.unreplayed_logs().await
    }

    /// Returns the bytes that the datasets can still take all together, without what is on its way to the disks.
    ///
    /// # Errors
    /// Of reading.
    pub async fn available_bytes(&self) -> Result<u64> {
        let root = self.0.dir(self.0.root_dir()).await?;
        Ok(crate::dsl_dir::available(&root, self.0.pool_size(0), false))
    }

    /// Names of the datasets whose intent log may have blocks on a top-level vdev: of those in use the ones that do, of
    /// the others all that wait for their replay.
    ///
    /// # Errors
    /// Of reading.
    pub async fn logs_on(&self, vdev: u32) -> Result<Vec<String>> {
        let _names = self.0.config.read().await;
        self.0.logs_on(vdev).await
    }

    /// Retires the intent logs of all open datasets with the txgs that are now open; a log that is used again starts
    /// a new chain.
    pub fn retire_logs(&self) {
        self.0.retire_logs();
    }

    /// Creates a file system or volume; `init` fills it and gets the settings completed with what
    /// the parent hands down at creation (version, normalization, utf8only, casesensitivity).
    ///
    /// # Errors
    /// `Exists`, `ParentNotFound`, `ParentNotFilesystem`, `BadName`, `NameTooLong`, `CountLimit`,
    /// `FeatureDisabled`, errors about space, and of `init`.
    pub async fn create_dataset(
        &self,
        new: NewDataset,
        init: impl AsyncFnOnce(&Objset, &Tx, &[Setting]) -> Result<()> + 'static,
    ) -> Result<()> {
        let mut task = CreateDataset { new, init };
        {
            let _names = self.0.config.read().await;
            let (parent, _) = task.check(&self.0, None).await?;
            let new = &mut task.new;
            let given = std::mem::take(&mut new.settings);
            new.settings = self
                .0
                .complete_for_creation(Some(&parent), new.kind, given)
                .await?;
        }
        self.0.run_checked(task).await
    }

    /// Destroys a file system or volume that has no snapshots and children and is not open. Its
    /// blocks are freed in the background, and its name is free when this returns.
    ///
    /// # Errors
    /// `NotFound`, `HasChildren`, `HasSnapshots`, `Busy`, `WrongKind` for a pool's root.
    pub async fn destroy(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.0.run(DestroyDataset { name }).await
    }

    /// Renames a dataset within the pool, or a snapshot within its dataset. Datasets below move
    /// along; open handles stay good. With `recursive`, snapshots of the same name below are
    /// renamed too.
    ///
    /// # Errors
    /// `NotFound`, `Exists`, `ParentNotFound`, `ParentNotFilesystem`, `CrossPool`,
    /// `RenameBelowItself`, `NameTooLong`, `BadName`, `NoSpace`, `CountLimit`.
    pub async fn rename(&self, from: &str, to: &str, recursive: bool) -> Result<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        let task = RenameDataset {
            from,
            to,
            recursive,
        };
        self.0.run(task).await
    }

    /// Sets properties of a dataset, or user properties of a snapshot: all or none.
    ///
    /// # Errors
    /// `NotFound`, `FeatureDisabled`, `QuotaBelowUsed`, `ReservationAboveAvailable`, `Property`.
    pub async fn set_properties(&self, name: &str, settings: Vec<Setting>) -> Result<()> {
        let name = name.to_owned();
        self.0.run(SetProperties { name, settings }).await
    }

    /// Clears a property so that it is inherited or the default again; with `received`, goes back
    /// to the received value (`zfs inherit -S`).
    ///
    /// # Errors
    /// `NotFound`; `Property` for a native property that is not inherited.
    pub async fn inherit_property(&self, name: &str, property: &str, received: bool) -> Result<()> {
        let native = Property::from_name(property);
        if let Some(native) = native.filter(|p| !p.inheritable() && !received) {
            let name = native.name().into();
            return Err(crate::property::PropertyError::NotInherited(name).into());
        }
        let property = native.map_or_else(|| property.to_owned(), |p| p.name().to_owned());
        let name = name.to_owned();
        let task = InheritProperty {
            name,
            property,
            received,
        };
        self.0.run(task).await
    }

    /// Runs `task` in syncing context and waits until its txg is on disk. The task must check
    /// everything before it changes anything: an error means that nothing was changed.
    ///
    /// # Errors
    /// Those of the task; `Dmu(Stopped)` when the pool takes no more transactions.
    pub async fn submit<T: 'static>(
        &self,
        name: &'static str,
        task: impl AsyncFnOnce(&Self, &Tx) -> Result<T> + 'static,
    ) -> Result<T> {
        self.submit_for(name, Concerned::All, task).await
    }

    /// As [`Hierarchy::submit`], of a change that concerns the names and properties of no other datasets than these.
    pub(crate) async fn submit_for<T: 'static>(
        &self,
        name: &'static str,
        concerned: Concerned,
        task: impl AsyncFnOnce(&Self, &Tx) -> Result<T> + 'static,
    ) -> Result<T> {
        let run = async move |pool: &Rc<DslPool>, tx: &Tx| task(&Self(pool.clone()), tx).await;
        self.0.submit(name, concerned, run).await
    }

    /// Returns which file systems and volumes have changed in names and properties since the moment `seen` of an earlier answer, as long as the
    /// pool is open; 0 is told of the whole pool. What changes while this is asked is told in the next answer at the latest.
    #[must_use]
    pub fn changes_since(&self, seen: u64) -> DatasetChanges {
        self.0.changes.since(seen)
    }

    /// Notes that a property of a dataset has changed that is stored in the dataset itself.
    pub fn property_changed(&self, name: &str) {
        self.0.changes.record(Concerned::subtree(name));
    }

    /// As [`DslPool::poison_on_error`].
    pub(crate) async fn apply<T>(&self, change: impl Future<Output = Result<T>>) -> Result<T> {
        self.0.poison_on_error(change).await
    }

    /// One pass of the sync of `txg`: dirty datasets, deadlists, directories, the meta-objset, and
    /// in pass 1 the queued tasks, deferred frees of the txg before and a bounded step of
    /// asynchronous destruction. Returns the meta-objset's root. The caller writes space maps after
    /// each pass and repeats while [`Hierarchy::is_dirty`].
    ///
    /// # Errors
    /// Any error means that the txg must not be committed: the pool suspends.
    pub async fn sync(&self, txg: Txg, pass: u32) -> Result<BlockPointer> {
        self.0.sync_pass(txg, pass).await
    }

    /// Tells that `txg` is on disk: reservations of its transactions end.
    pub fn synced(&self, txg: Txg) {
        self.0.loaded.synced(txg);
    }

    /// Whether blocks of destroyed datasets wait to be freed: the pool should keep syncing.
    #[must_use]
    pub fn has_background_work(&self) -> bool {
        self.0.has_background_work()
    }

    /// Sets how many blocks of destroyed datasets are freed in one txg.
    pub fn set_background_blocks(&self, blocks: u64) {
        self.0.async_destroy.set_blocks_max(blocks);
    }

    /// Sets how many blocks an entry of a clone's livelist has before the next one is begun, and after two are made one.
    pub fn set_livelist_blocks(&self, blocks: u64) {
        self.0.set_livelist_blocks_max(blocks);
    }

    /// Returns why asynchronous freeing is suspended, if a block it needs cannot be read.
    #[must_use]
    pub fn background_error(&self) -> Option<DslError> {
        self.0.async_destroy.error()
    }

    /// Whether anything of `txg` waits to be synced: dirty datasets, queued tasks, the
    /// meta-objset.
    #[must_use]
    pub fn is_dirty(&self, txg: Txg) -> bool {
        self.0.needs_pass(txg)
    }

    /// Returns the bytes still to be freed in the background (the pool property `freeing`).
    #[must_use]
    pub fn freeing_bytes(&self) -> u64 {
        let free_dir = self.0.special().free_dir;
        let free_dir = free_dir.and_then(|object| self.0.loaded.dir(object));
        free_dir.map_or(0, |dir| dir.phys().used_bytes)
    }

    /// Returns what happened to datasets since the last call, for the pool's history.
    #[must_use]
    pub fn take_events(&self) -> Vec<HistoryEvent> {
        self.0.sync.take_events()
    }

    /// Frees a block of the pool's own at the right time for the current pass. Syncing context.
    ///
    /// # Errors
    /// Of the block store.
    pub async fn free_block(&self, bp: &BlockPointer, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "free block happens in syncing context");
        self.0.free_blocks(&[*bp], tx).await
    }
}
