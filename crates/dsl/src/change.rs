//! Destroying and renaming datasets.

use std::rc::Rc;

use dmu::Tx;
use dmu::zap::{self, ZapValue};
use ondisk::dsl::{UsedBy, dataset_flags, zapified_keys};
use ondisk::{ObjectId, ObjectType, Txg};

use crate::change_log::Concerned;
use crate::dataset_state::DatasetState;
use crate::deadlist::Deadlist;
use crate::dsl_dir::{DslDir, available_below};
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::namecheck::{self, split};
use crate::property::DatasetKind;
use crate::resume_token::CLONE_NAME;
use crate::space::{Delta, Sizes, signed};
use crate::sync_task::SyncTask;

/// What a rename will do.
pub(crate) enum Rename {
    Dir {
        dir: Rc<DslDir>,
        parent: Rc<DslDir>,
        name: String,
    },
    Snapshots {
        /// Directory, object and old name of each.
        each: Vec<(Rc<DslDir>, ObjectId)>,
        old: String,
        new: String,
    },
}

/// Destroys a file system or volume without snapshots and children.
pub(crate) struct DestroyDataset {
    pub(crate) name: String,
}

impl SyncTask for DestroyDataset {
    type Checked = Rc<DatasetState>;
    type Output = ();

    fn name(&self) -> &'static str {
        "destroy"
    }

    fn concerned(&self) -> Concerned {
        Concerned::subtree(&self.name)
    }

    async fn check(&self, pool: &Rc<DslPool>, txg: Option<Txg>) -> Result<Rc<DatasetState>> {
        let state = pool.check_destroy(&self.name).await?;
        if let Some(txg) = txg {
            let has_log = state.log().is_some_and(|log| log.has_chain());
            if has_log || state.is_dirty_later(txg) {
                let name = self.name.clone();
                return Err(DslError::Busy { name });
            }
        }
        Ok(state)
    }

    async fn prepare(&self, pool: &Rc<DslPool>, state: Rc<DatasetState>) -> Result<()> {
        if let Some(log) = state.log() {
            log.retire();
        }
        drop(state);
        // What was written before its last handle went must not follow the destruction.
        Ok(pool.services.clock.sync_all().await?)
    }

    async fn apply(self, pool: &Rc<DslPool>, state: Rc<DatasetState>, tx: &Tx) -> Result<()> {
        pool.destroy_head(&state, tx).await
    }
}

/// Renames a dataset, or a snapshot within its dataset.
pub(crate) struct RenameDataset {
    pub(crate) from: String,
    pub(crate) to: String,
    /// Snapshots of the same name below are renamed too.
    pub(crate) recursive: bool,
}

impl SyncTask for RenameDataset {
    type Checked = Rename;
    type Output = ();

    fn name(&self) -> &'static str {
        "rename"
    }

    fn concerned(&self) -> Concerned {
        match Concerned::subtree(&self.from) {
            Concerned::Subtrees(from) => {
                Concerned::Subtrees([from, vec![self.to.clone()]].concat())
            }
            other => other,
        }
    }

    async fn check(&self, pool: &Rc<DslPool>, _: Option<Txg>) -> Result<Rename> {
        pool.check_rename(&self.from, &self.to, self.recursive)
            .await
    }

    async fn apply(self, pool: &Rc<DslPool>, rename: Rename, tx: &Tx) -> Result<()> {
        pool.rename(rename, tx).await
    }
}

impl DslPool {
    /// Checks that a head can be destroyed.
    pub(crate) async fn check_destroy(self: &Rc<Self>, name: &str) -> Result<Rc<DatasetState>> {
        let found = self.find(name).await?;
        if found.snapshot.is_some() {
            return Err(DslError::WrongKind { name: name.into() });
        }
        let dir = found.dir;
        if dir.parent().is_none() {
            // OpenZFS words it so: the pool is destroyed instead.
            return Err(DslError::WrongKind { name: name.into() });
        }
        let children = ObjectId(dir.phys().child_dir_zapobj);
        if zap::count(&self.mos, children).await? != 0 {
            return Err(DslError::HasChildren { name: name.into() });
        }
        let state = self.load_dataset(found.dataset, None).await?;
        let snapnames = ObjectId(state.phys().snapnames_zapobj);
        if zap::count(&self.mos, snapnames).await? != 0 {
            return Err(DslError::HasSnapshots { name: name.into() });
        }
        if state.handles() != 0 {
            return Err(DslError::Busy { name: name.into() });
        }
        // An origin that goes with its last clone must not be open either.
        let origin = state.prev.borrow().clone();
        if let Some(origin) = origin
            && origin.handles() != 0
            && self.goes_with_children(&origin, 2).await?
        {
            return Err(DslError::Busy { name: name.into() });
        }
        Ok(state)
    }

    /// Whether a snapshot is marked for deferred destruction, has no hold, and has `children` datasets after it: the one
    /// that follows it in its own line, and its clones.
    // OpenZFS: module/zfs/dsl_destroy.c, dsl_destroy_head_check_impl and dsl_destroy_head_sync_impl
    async fn goes_with_children(
        self: &Rc<Self>,
        origin: &DatasetState,
        children: u64,
    ) -> Result<bool> {
        let phys = origin.phys();
        Ok(phys.flags & dataset_flags::DEFER_DESTROY != 0
            && phys.num_children == children
            && self.user_refs(&phys).await? == 0
            && self.immutable_until(&phys).await?.is_none())
    }

    /// Frees the intent log of a dataset that is being destroyed: a running one, or one that was never replayed.
    async fn free_log(&self, state: &DatasetState, tx: &Tx) -> Result<()> {
        let blocks = match state.log() {
            Some(log) => log.unreplayed_blocks().await?,
            None => {
                let header = self.zil_header(state).await?;
                if zil::is_own(&header, state.object.0) {
                    zil::blocks_to_free(self.services.store(), &header).await?
                } else {
                    Vec::new()
                }
            }
        };
        self.free_blocks(&blocks, tx).await
    }

    pub(crate) async fn zil_header(&self, state: &DatasetState) -> Result<ondisk::zil::ZilHeader> {
        match state.objset() {
            Some(objset) => Ok(objset.zil_header()),
            None => self.zil_header_of(state.object, &state.phys().bp).await,
        }
    }

    /// Removes a head from the tree and queues its blocks for freeing in later txgs. Syncing context; the
    /// checks were made.
    pub(crate) async fn destroy_head(
        self: &Rc<Self>,
        state: &Rc<DatasetState>,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "destroy head happens in syncing context");
        let mos = &self.mos;
        let dir = state.dir();
        let phys = state.phys();
        let name = self.name_of(&dir);
        self.free_log(state, tx).await?;
        if state.ref_reserved.get() != 0 {
            self.change_ref_reservation(state, 0);
        }
        let mut features: Vec<&'static str> = Vec::new();
        features.extend(state.features.borrow().iter());
        for feature in features {
            self.features.decr(feature, tx).await?;
        }
        self.unlink_from_origin(state, tx).await?;
        Deadlist::destroy(mos, ObjectId(phys.deadlist_obj), &self.empty_bpobj, tx).await?;
        self.destroy_remap_deadlist(state.object, tx).await?;
        self.destroy_blocks(state, tx).await?;
        mos.free_object(ObjectId(phys.snapnames_zapobj), tx).await?;
        self.destroy_all_bookmarks(state.object, tx).await?;
        self.free_zapified(state.object, tx).await?;
        self.loaded.remove_dataset(state);
        self.destroy_dir(&dir, tx).await?;
        self.clear_bootfs(state.object, tx).await?;
        self.event("destroy", &name, state.object, String::new(), tx);
        // The origin may be marked for deferred destruction, and this was its last clone.
        let origin = state.prev.borrow_mut().take();
        if let Some(origin) = origin
            && self.goes_with_children(&origin, 1).await?
        {
            self.destroy_snapshot(&origin, false, tx).await?;
        }
        Ok(())
    }

    /// Clears the pool property `bootfs` when it names the dataset being destroyed: its object number will be reused.
    async fn clear_bootfs(&self, object: ObjectId, tx: &Tx) -> Result<()> {
        /// Under this key the pool's properties have the object of the dataset.
        const BOOTFS: &str = "bootfs";
        let directory = crate::object_directory::OBJECT_DIRECTORY;
        let props =
            zap::lookup_u64(&self.mos, directory, crate::object_directory::POOL_PROPS).await?;
        let Some(props) = props.filter(|props| *props != 0).map(ObjectId) else {
            return Ok(());
        };
        if zap::lookup_u64(&self.mos, props, BOOTFS).await? == Some(object.0) {
            zap::remove(&self.mos, props, BOOTFS, tx).await?;
        }
        Ok(())
    }

    async fn unlink_from_origin(self: &Rc<Self>, state: &DatasetState, tx: &Tx) -> Result<()> {
        let Some(prev) = state.prev.borrow().clone() else {
            return Ok(());
        };
        let prev_phys = prev.phys();
        if prev_phys.next_clones_obj != 0 {
            let map = ObjectId(prev_phys.next_clones_obj);
            if zap::lookup_int_key(&self.mos, map, state.object.0)
                .await?
                .is_some()
            {
                zap::remove_int(&self.mos, map, state.object.0, tx).await?;
            }
        }
        prev.change(|p| p.num_children = p.num_children.saturating_sub(1));
        let clones = ObjectId(prev.dir().phys().clones);
        if clones.0 != 0
            && zap::lookup_int_key(&self.mos, clones, state.object.0)
                .await?
                .is_some()
        {
            zap::remove_int(&self.mos, clones, state.object.0, tx).await?;
        }
        Ok(())
    }

    async fn destroy_blocks(self: &Rc<Self>, state: &DatasetState, tx: &Tx) -> Result<()> {
        let phys = state.phys();
        let d = state.dir().phys();
        let sizes = Sizes {
            used: d.used_bytes,
            compressed: d.compressed_bytes,
            uncompressed: d.uncompressed_bytes,
        };
        if phys.bp.is_hole() {
            return self.remove_livelist(&state.dir(), tx).await;
        }
        if self.queue_livelist(&state.dir(), tx).await? {
            return Ok(());
        }
        self.free_objset(phys.bp, phys.prev_snap_txg, sizes, tx)
            .await?;
        state.dir().did_use(UsedBy::Head, -Delta::from(sizes));
        Ok(())
    }

    async fn destroy_dir(self: &Rc<Self>, dir: &Rc<DslDir>, tx: &Tx) -> Result<()> {
        let mos = &self.mos;
        let parent = dir.parent().expect("the root is not destroyed");
        // What an increment is received into was not counted when it was made.
        // OpenZFS: module/zfs/dsl_destroy.c, dsl_dir_destroy_sync
        if *dir.name.borrow() != CLONE_NAME {
            self.adjust_count(&parent, zapified_keys::FILESYSTEM_COUNT, -1, tx)
                .await?;
        }
        self.change_reservation(dir, 0);
        let d = dir.phys();
        mos.free_object(ObjectId(d.child_dir_zapobj), tx).await?;
        mos.free_object(ObjectId(d.props_zapobj), tx).await?;
        if d.clones != 0 {
            mos.free_object(ObjectId(d.clones), tx).await?;
        }
        if d.deleg_zapobj != 0 {
            for entry in zap::entries(mos, ObjectId(d.deleg_zapobj)).await? {
                if let ZapValue::U64(value) = entry.value {
                    let object = value.first().copied().unwrap_or(0);
                    mos.free_object(ObjectId(object), tx).await?;
                }
            }
            mos.free_object(ObjectId(d.deleg_zapobj), tx).await?;
        }
        let name = dir.name.borrow().clone();
        zap::remove(mos, ObjectId(parent.phys().child_dir_zapobj), &name, tx).await?;
        self.release_key(dir, tx).await?;
        self.free_zapified(dir.object, tx).await?;
        self.loaded.remove_dir(dir.object);
        Ok(())
    }

    /// The ZAP of a dataset's bookmarks.
    pub(crate) async fn bookmarks_of(&self, object: ObjectId) -> Result<Option<ObjectId>> {
        if self.mos.object_info(object).await?.object_type != ObjectType::ZAP_METADATA {
            return Ok(None);
        }
        let found = zap::lookup_u64(&self.mos, object, zapified_keys::BOOKMARKS).await?;
        Ok(found.map(ObjectId))
    }

    /// Sets a directory's reservation and what it charges above.
    pub(crate) fn change_reservation(&self, dir: &Rc<DslDir>, reserved: u64) {
        let d = dir.phys();
        let before = d.used_bytes.max(d.reserved);
        let after = d.used_bytes.max(reserved);
        dir.change(|d| d.reserved = reserved);
        if let Some(parent) = dir.parent() {
            let used = signed(after) - signed(before);
            parent.did_use(
                UsedBy::ChildReservations,
                Delta {
                    used,
                    ..Delta::default()
                },
            );
        }
    }

    /// Sets a head's refreservation and what it charges its directory.
    pub(crate) fn change_ref_reservation(&self, state: &DatasetState, reserved: u64) {
        let unique = state.phys().unique_bytes;
        let before = state.ref_reserved.get().saturating_sub(unique);
        let after = reserved.saturating_sub(unique);
        state.ref_reserved.set(reserved);
        let used = signed(after) - signed(before);
        state.dir().did_use(
            UsedBy::Refreservation,
            Delta {
                used,
                ..Delta::default()
            },
        );
    }

    /// Checks a rename.
    pub(crate) async fn check_rename(
        self: &Rc<Self>,
        from: &str,
        to: &str,
        recursive: bool,
    ) -> Result<Rename> {
        let found = self.find(from).await?;
        if let Some(old) = found.snapshot {
            return self
                .check_rename_snapshots(&found.dir, &old, from, to, recursive)
                .await;
        }
        // What a receive fills beside its dataset is found by that name. OpenZFS: lib/libzfs/libzfs_dataset.c, zfs_validate_name
        if from.contains('%') {
            return Err(DslError::BadName {
                name: from.into(),
                why: "invalid character '%' in name".into(),
            });
        }
        namecheck::check(to, DatasetKind::Filesystem)?;
        let pool = self.pool_name();
        let in_pool = to
            .strip_prefix(&pool)
            .is_some_and(|r| r.is_empty() || r.starts_with('/'));
        if !in_pool {
            return Err(DslError::CrossPool);
        }
        let dir = found.dir;
        if dir.parent().is_none() {
            return Err(DslError::WrongKind { name: from.into() });
        }
        if self.find_dir(to).await?.is_some() {
            return Err(DslError::Exists { name: to.into() });
        }
        if to
            .strip_prefix(from)
            .is_some_and(|rest| rest.starts_with('/'))
        {
            return Err(DslError::RenameBelowItself);
        }
        let (above, name) = to
            .rsplit_once('/')
            .expect("a name in the pool below its root");
        let parent = self
            .find_dir(above)
            .await?
            .ok_or_else(|| DslError::ParentNotFound { name: above.into() })?;
        if self.kind_of(&parent).await? != DatasetKind::Filesystem {
            return Err(DslError::ParentNotFilesystem { name: above.into() });
        }
        self.check_new_names(&dir, from, to).await?;
        let old_parent = dir.parent().expect("not the root");
        if old_parent.object != parent.object {
            self.check_rename_within_root(&dir, &parent).await?;
            self.check_transfer(&dir, &parent)?;
            let count = self
                .dir_count(&dir, zapified_keys::FILESYSTEM_COUNT)
                .await?
                .unwrap_or(0);
            if !parent.contains(&old_parent) {
                self.check_filesystem_limit(&parent, count + 1).await?;
            }
        }
        Ok(Rename::Dir {
            dir,
            parent,
            name: name.into(),
        })
    }

    /// Checks a rename of a snapshot, or of those of the same name below too.
    async fn check_rename_snapshots(
        self: &Rc<Self>,
        dir: &Rc<DslDir>,
        old: &str,
        from: &str,
        to: &str,
        recursive: bool,
    ) -> Result<Rename> {
        let parts = split(to);
        namecheck::check(to, DatasetKind::Snapshot)?;
        if parts.head != split(from).head {
            return Err(DslError::BadName {
                name: to.into(),
                why: "snapshots must be part of same dataset".into(),
            });
        }
        let new = parts
            .snapshot
            .expect("the name was checked to be a snapshot's")
            .to_owned();
        let mut dirs = vec![dir.clone()];
        if recursive {
            dirs.extend(self.dirs_below(dir).await?);
        }
        let mut each = Vec::new();
        for dir in dirs {
            let head = ObjectId(dir.phys().head_dataset_obj);
            let snapnames = ObjectId(self.dataset_phys(head).await?.snapnames_zapobj);
            // Datasets below need not have it.
            let Some(object) = zap::lookup_u64(&self.mos, snapnames, old).await? else {
                continue;
            };
            let name = format!("{}@{new}", self.name_of(&dir));
            if name.len() > namecheck::NAME_BYTES_MAX {
                return Err(DslError::NameTooLong { name });
            }
            if zap::lookup_u64(&self.mos, snapnames, &new).await?.is_some() {
                return Err(DslError::Exists { name });
            }
            each.push((dir, ObjectId(object)));
        }
        Ok(Rename::Snapshots {
            each,
            old: old.to_owned(),
            new,
        })
    }

    /// A longer prefix must not make the names below too long or too deep.
    async fn check_new_names(
        self: &Rc<Self>,
        dir: &Rc<DslDir>,
        from: &str,
        to: &str,
    ) -> Result<()> {
        let longer = to.len().saturating_sub(from.len());
        let deeper = to
            .matches('/')
            .count()
            .saturating_sub(from.matches('/').count());
        if longer == 0 && deeper == 0 {
            return Ok(());
        }
        for below in self.dirs_below(dir).await? {
            let name = self.name_of(&below);
            if name.len() + longer > namecheck::NAME_BYTES_MAX
                || name.matches('/').count() + deeper >= namecheck::DEPTH_MAX
            {
                return Err(DslError::NameTooLong { name });
            }
        }
        Ok(())
    }

    fn check_transfer(&self, dir: &Rc<DslDir>, to: &Rc<DslDir>) -> Result<()> {
        let d = dir.phys();
        let space = d.used_bytes.max(d.reserved);
        let common = to.chain().into_iter().find(|above| above.contains(dir));
        let common = common.map(|above| above.object);
        let room = available_below(to, common, space, self.pool_size(0), true);
        if room < space {
            return Err(DslError::NoSpace);
        }
        Ok(())
    }

    /// Renames. Syncing context; the checks were made.
    pub(crate) async fn rename(self: &Rc<Self>, rename: Rename, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "rename happens in syncing context");
        let mos = &self.mos;
        let (dir, parent, name) = match rename {
            Rename::Snapshots { each, old, new } => {
                for (dir, object) in each {
                    let name = format!("{}@{old}", self.name_of(&dir));
                    self.event("rename", &name, object, format!("-> @{new}"), tx);
                    let head = ObjectId(dir.phys().head_dataset_obj);
                    let snapnames = ObjectId(self.dataset_phys(head).await?.snapnames_zapobj);
                    zap::remove(mos, snapnames, &old, tx).await?;
                    zap::add_u64(mos, snapnames, &new, object.0, tx).await?;
                    self.snapshots_changed(&dir, tx).await?;
                    if let Some(state) = self.loaded.dataset(object) {
                        *state.snapshot.borrow_mut() = Some(new.clone());
                    }
                }
                return Ok(());
            }
            Rename::Dir { dir, parent, name } => (dir, parent, name),
        };
        let old_name = self.name_of(&dir);
        let old_parent = dir.parent().expect("the root is not renamed");
        if old_parent.object != parent.object {
            self.move_counts(&dir, &old_parent, &parent, tx).await?;
            let d = dir.phys();
            let delta = Delta::from(Sizes {
                used: d.used_bytes,
                compressed: d.compressed_bytes,
                uncompressed: d.uncompressed_bytes,
            });
            old_parent.did_use(UsedBy::Children, -delta);
            parent.did_use(UsedBy::Children, delta);
            let unfilled = signed(d.reserved.saturating_sub(d.used_bytes));
            if unfilled > 0 {
                let delta = Delta {
                    used: unfilled,
                    ..Delta::default()
                };
                old_parent.did_use(UsedBy::ChildReservations, -delta);
                parent.did_use(UsedBy::ChildReservations, delta);
            }
        }
        let component = dir.name.borrow().clone();
        let old_map = ObjectId(old_parent.phys().child_dir_zapobj);
        zap::remove(mos, old_map, &component, tx).await?;
        *dir.name.borrow_mut() = name.clone();
        *dir.parent.borrow_mut() = Some(parent.clone());
        dir.change(|d| d.parent_obj = parent.object.0);
        zap::add_u64(
            mos,
            ObjectId(parent.phys().child_dir_zapobj),
            &name,
            dir.object.0,
            tx,
        )
        .await?;
        self.refresh_properties(&dir).await?;
        let head = ObjectId(dir.phys().head_dataset_obj);
        let new_name = self.name_of(&dir);
        self.event(
            "rename",
            &new_name,
            head,
            format!("-> {new_name} (was {old_name})"),
            tx,
        );
        Ok(())
    }

    async fn move_counts(
        &self,
        dir: &Rc<DslDir>,
        from: &Rc<DslDir>,
        to: &Rc<DslDir>,
        tx: &Tx,
    ) -> Result<()> {
        for (key, own) in [
            (zapified_keys::FILESYSTEM_COUNT, 1),
            (zapified_keys::SNAPSHOT_COUNT, 0),
        ] {
            if let Some(count) = self.dir_count(dir, key).await? {
                let moved = signed(count) + own;
                self.adjust_count(from, key, -moved, tx).await?;
                self.adjust_count(to, key, moved, tx).await?;
            }
        }
        Ok(())
    }
}
