//! Clones and their promotion, and rollback to the newest snapshot.
//!
//! OpenZFS: module/zfs/dsl_dataset.c, `dsl_dataset_promote_sync`, `dsl_dataset_rollback_sync` and
//! `dsl_dataset_clone_swap_sync_impl`.

use std::rc::Rc;

use dmu::Tx;
use dmu::zap::{self, ZapValue};
use ondisk::dsl::{UsedBy, dataset_flags, zapified_keys};
use ondisk::zil::ZilHeader;
use ondisk::{ObjectId, Txg, pool_version};

use crate::bptree;
use crate::change_log::Concerned;
use crate::dataset_state::DatasetState;
use crate::dsl_dir::{DslDir, available, available_below};
use crate::dsl_pool::{DslPool, Found};
use crate::error::{DslError, Result};
use crate::namecheck;
use crate::new_encryption::Asked;
use crate::object_directory::{BPTREE_OBJ, OBJECT_DIRECTORY};
use crate::property::{DatasetKind, PropertyError, Setting};
use crate::space::{Delta, Sizes, signed, sizes_of};
use crate::sync_task::SyncTask;

/// What a promotion needs to know.
pub(crate) struct Promotion {
    /// The clone's head.
    clone: Rc<DatasetState>,
    /// The snapshot it was cloned from.
    origin: Rc<DatasetState>,
    /// The snapshots that move to the clone, the origin first.
    shared_snaps: Vec<Rc<DatasetState>>,
    /// The clone and its own snapshots, newest first.
    clone_snaps: Vec<Rc<DatasetState>>,
    /// The origin's head and its snapshots younger than the origin, newest first.
    origin_snaps: Vec<Rc<DatasetState>>,
}

/// Space that a promotion moves.
struct PromotedSpace {
    sizes: Sizes,
    /// `usedbysnapshots` of the clone afterwards, and of the old head.
    clone_snapshots: u64,
    origin_snapshots: u64,
    /// What only the origin holds afterwards.
    origin_unique: u64,
}

/// Makes a clone of a snapshot.
pub(crate) struct CloneSnapshot {
    pub(crate) snapshot: String,
    pub(crate) name: String,
    pub(crate) settings: Vec<Setting>,
    /// The uid that gets the permissions delegated to creators.
    pub(crate) creator: u32,
}

impl SyncTask for CloneSnapshot {
    /// The parent of the clone, and the snapshot.
    type Checked = (Rc<DslDir>, Rc<DatasetState>);
    type Output = ();

    fn name(&self) -> &'static str {
        "clone"
    }

    fn concerned(&self) -> Concerned {
        Concerned::subtree(&self.name)
    }

    async fn check(&self, pool: &Rc<DslPool>, txg: Option<Txg>) -> Result<Self::Checked> {
        if Asked::of(&self.settings).is_anything() {
            return Err(PropertyError::EncryptionOfClone.into());
        }
        let found = pool.check_clone(&self.snapshot, &self.name).await?;
        let parent = pool.check_new(&self.name, &self.settings).await?;
        let origin = pool.load_dataset(found.dataset, found.snapshot).await?;
        // What the clone writes must be younger than the snapshot.
        if txg.is_some_and(|txg| origin.phys().creation_txg >= txg.0) {
            return Err(DslError::Again);
        }
        Ok((parent, origin))
    }

    async fn apply(self, pool: &Rc<DslPool>, checked: Self::Checked, tx: &Tx) -> Result<()> {
        let (parent, origin) = checked;
        let dir = pool
            .create_child(&parent, &self.name, self.creator, tx)
            .await?;
        let state = pool.create_clone(dir, &origin, &self.settings, tx).await?;
        let text = format!("origin={} ({})", self.snapshot, origin.object);
        pool.event("clone", &self.name, state.object, text, tx);
        Ok(())
    }
}

/// Promotes a clone.
pub(crate) struct PromoteClone {
    pub(crate) name: String,
}

impl SyncTask for PromoteClone {
    type Checked = Promotion;
    type Output = ();

    fn name(&self) -> &'static str {
        "promote"
    }

    fn concerned(&self) -> Concerned {
        // Encryption roots move along.
        Concerned::All
    }

    async fn check(&self, pool: &Rc<DslPool>, _: Option<Txg>) -> Result<Promotion> {
        pool.check_promote(&self.name).await
    }

    async fn apply(self, pool: &Rc<DslPool>, promotion: Promotion, tx: &Tx) -> Result<()> {
        pool.promote(&promotion, tx).await
    }
}

/// Rolls a dataset back to its newest snapshot, which must be `target` if given.
pub(crate) struct RollBack {
    pub(crate) name: String,
    pub(crate) target: Option<String>,
}

impl SyncTask for RollBack {
    type Checked = Rc<DatasetState>;
    type Output = ();

    fn name(&self) -> &'static str {
        "rollback"
    }

    fn concerned(&self) -> Concerned {
        Concerned::subtree(&self.name)
    }

    async fn check(&self, pool: &Rc<DslPool>, txg: Option<Txg>) -> Result<Rc<DatasetState>> {
        let state = pool
            .check_rollback(&self.name, self.target.as_deref(), txg)
            .await?;
        if txg.is_some_and(|txg| state.is_dirty_later(txg)) {
            let name = self.name.clone();
            return Err(DslError::Busy { name });
        }
        Ok(state)
    }

    async fn prepare(&self, pool: &Rc<DslPool>, state: Rc<DatasetState>) -> Result<()> {
        drop(state);
        // Data written through handles that are closed must not be synced after the rollback.
        Ok(pool.services.clock.sync_all().await?)
    }

    async fn apply(self, pool: &Rc<DslPool>, state: Rc<DatasetState>, tx: &Tx) -> Result<()> {
        pool.rollback(&state, tx).await
    }
}

impl DslPool {
    /// Checks the snapshot and the name of a clone to be made; returns the snapshot.
    async fn check_clone(self: &Rc<Self>, snapshot: &str, name: &str) -> Result<Found> {
        let found = self.find(snapshot).await?;
        if found.snapshot.is_none() {
            return Err(DslError::WrongKind {
                name: snapshot.into(),
            });
        }
        namecheck::check(name, DatasetKind::Filesystem)?;
        let pool_name = self.pool_name();
        let in_pool = name
            .strip_prefix(&pool_name)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if !in_pool {
            return Err(DslError::CrossPool);
        }
        Ok(found)
    }

    /// Makes a clone of a snapshot in a new directory. Syncing context; the checks were made.
    pub(crate) async fn create_clone(
        self: &Rc<Self>,
        dir: Rc<DslDir>,
        origin: &Rc<DatasetState>,
        settings: &[Setting],
        tx: &Tx,
    ) -> Result<Rc<DatasetState>> {
        assert!(tx.is_syncing(), "create clone happens in syncing context");
        let kept = dataset_flags::INCONSISTENT | dataset_flags::CASE_INSENSITIVE;
        let flags = origin.phys().flags & kept;
        let kind = self.kind_of(&origin.dir()).await?;
        let state = self.create_head_from(&dir, origin, flags, tx).await?;
        self.share_key(&origin.dir(), &dir, tx).await?;
        dir.kind.set(Some(kind));
        let found = Found {
            dir,
            dataset: state.object,
            snapshot: None,
        };
        self.create_livelist(&found.dir, tx).await?;
        self.apply_settings(&found, settings, tx).await?;
        self.clear_zil_header(&state, tx).await?;
        Ok(state)
    }

    /// Clears the intent log header that a head inherited from the snapshot it shares its objset with.
    pub(crate) async fn clear_zil_header(
        self: &Rc<Self>,
        state: &Rc<DatasetState>,
        tx: &Tx,
    ) -> Result<()> {
        let header = self.zil_header_of(state.object, &state.phys().bp).await?;
        if header != ZilHeader::default() {
            self.open_objset_as_possible(state).await?;
            let objset = state.objset().expect("it was opened just now");
            objset.set_zil_header(ZilHeader::default(), tx);
            if let Some(log) = state.log() {
                log.header_changed();
            }
        }
        Ok(())
    }

    /// The snapshot chain from `newest` back to, but without, `end`; with no end, to the snapshot the
    /// directory was cloned from.
    async fn line(
        self: &Rc<Self>,
        newest: ObjectId,
        end: Option<ObjectId>,
    ) -> Result<Vec<Rc<DatasetState>>> {
        let mut line = Vec::new();
        let mut at = newest;
        let mut end = end;
        while end != Some(at) {
            if at.0 == 0 {
                return Err(DslError::corrupt("chain of snapshots", newest));
            }
            let state = self.load_dataset(at, None).await?;
            let origin = ObjectId(state.dir().phys().origin_obj);
            end.get_or_insert(origin);
            at = ObjectId(state.phys().prev_snap_obj);
            line.push(state);
        }
        Ok(line)
    }

    /// Checks a promotion.
    pub(crate) async fn check_promote(self: &Rc<Self>, name: &str) -> Result<Promotion> {
        let found = self.find(name).await?;
        let not_a_clone = || DslError::NotAClone { name: name.into() };
        let dir = found.dir;
        let origin_object = ObjectId(dir.phys().origin_obj);
        if found.snapshot.is_some() || origin_object.0 == 0 || self.is_origin_snap(origin_object) {
            return Err(not_a_clone());
        }
        let clone = self.load_dataset(found.dataset, None).await?;
        if clone.phys().flags & dataset_flags::NOPROMOTE != 0 {
            return Err(not_a_clone());
        }
        let shared_snaps = self.line(origin_object, None).await?;
        let origin = shared_snaps.first().cloned().ok_or_else(not_a_clone)?;
        let clone_snaps = self.line(clone.object, Some(origin_object)).await?;
        let origin_head = ObjectId(origin.dir().phys().head_dataset_obj);
        let origin_snaps = self.line(origin_head, Some(origin_object)).await?;
        let promotion = Promotion {
            clone,
            origin,
            shared_snaps,
            clone_snaps,
            origin_snaps,
        };
        self.check_promote_within_root(&dir, &promotion.origin.dir())
            .await?;
        self.check_promoted_names(&promotion, name).await?;
        let moved = self.promoted_space(&promotion).await?;
        let from = promotion.origin.dir();
        let common = dir
            .chain()
            .into_iter()
            .find(|above| above.contains(&from))
            .map(|above| above.object);
        let space = moved.sizes.used;
        if available_below(&dir, common, space, self.pool_size(0), true) < space {
            return Err(DslError::NoSpace);
        }
        Ok(promotion)
    }

    async fn check_promoted_names(self: &Rc<Self>, p: &Promotion, name: &str) -> Result<()> {
        let mut names = Vec::new();
        let phys = p.clone.phys();
        let map = ObjectId(phys.snapnames_zapobj);
        for snapshot in &p.shared_snaps {
            let full = self.snapshot_name(snapshot.object).await?;
            let short = full.split_once('@').map_or("", |(_, short)| short);
            if name.len() + 1 + short.len() > namecheck::NAME_BYTES_MAX {
                return Err(DslError::NameTooLong { name: full });
            }
            if self.snapshot_object(&phys, map, short).await?.is_some() {
                names.push(short.to_owned());
            }
        }
        let newest = p.origin.phys().creation_txg;
        let head = ObjectId(p.origin.dir().phys().head_dataset_obj);
        let mine = self.stored_bookmarks(p.clone.object).await?;
        for (bookmark, stored) in self.stored_bookmarks(head).await? {
            if stored.creation_txg <= newest && mine.iter().any(|(known, _)| *known == bookmark) {
                names.push(bookmark);
            }
        }
        if names.is_empty() {
            return Ok(());
        }
        let origin = self.name_of(&p.origin.dir());
        Err(DslError::Conflicts { names, origin })
    }

    /// Sum over the deadlists of a chain of datasets, of blocks born after `since`.
    async fn dead_since(&self, line: &[Rc<DatasetState>], since: u64) -> Result<u64> {
        let mut sum = 0;
        for state in line {
            let list = self.deadlist_of(state).await?;
            sum += list
                .space_range(since, u64::MAX, &self.empty_bpobj)
                .await?
                .used;
        }
        Ok(sum)
    }

    /// The space a promotion moves from the origin's directory to the clone's.
    async fn promoted_space(self: &Rc<Self>, p: &Promotion) -> Result<PromotedSpace> {
        let o = p.origin.phys();
        let mut sizes = Sizes {
            used: o.referenced_bytes,
            compressed: o.compressed_bytes,
            uncompressed: o.uncompressed_bytes,
        };
        // The blocks born in a snapshot are its referenced ones, less those of its predecessor, plus those
        // on its deadlist. Summed over the chain, the first and last and all deadlists remain.
        for snapshot in &p.shared_snaps {
            if snapshot.phys().prev_snap_obj != 0 {
                sizes.add(self.deadlist_of(snapshot).await?.totals());
            }
        }
        let origin_dir = p.origin.dir();
        let oldest = ObjectId(origin_dir.phys().origin_obj);
        if oldest.0 != 0 {
            let before = self.dataset_phys(oldest).await?;
            sizes.sub(Sizes {
                used: before.referenced_bytes,
                compressed: before.compressed_bytes,
                uncompressed: before.uncompressed_bytes,
            });
        }
        let since = origin_dir.origin_txg.get();
        let clone_snapshots = self.dead_since(&p.shared_snaps, since).await?
            + self.dead_since(&p.clone_snaps, since).await?;
        let origin_snapshots = self.dead_since(&p.origin_snaps, o.creation_txg).await?;
        let first = p.clone_snaps.last().expect("the clone itself at least");
        let origin_unique = self
            .deadlist_of(first)
            .await?
            .space_range(o.prev_snap_txg, u64::MAX, &self.empty_bpobj)
            .await?
            .used;
        Ok(PromotedSpace {
            sizes,
            clone_snapshots,
            origin_snapshots,
            origin_unique,
        })
    }

    /// Promotes a clone. Syncing context; the checks were made.
    pub(crate) async fn promote(self: &Rc<Self>, p: &Promotion, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "promote happens in syncing context");
        let mos = &self.mos;
        let moved = self.promoted_space(p).await?;
        let dir = p.clone.dir();
        let old_dir = p.origin.dir();
        let old_head = self.head_of(&old_dir).await?;
        // While the links still say which of both is the clone.
        self.promote_root(&dir, &old_dir, tx).await?;
        // Their entries are relative to the origin txgs, which change here.
        self.remove_livelist(&dir, tx).await?;
        self.remove_livelist(&old_dir, tx).await?;
        let o = p.origin.phys();
        // The origin's next dataset is now of the clone.
        let old_next = o.next_snap_obj;
        let first = p
            .clone_snaps
            .last()
            .expect("the clone itself at least")
            .object;
        p.origin.change(|o| o.next_snap_obj = first.0);
        if o.next_clones_obj != 0 {
            let map = ObjectId(o.next_clones_obj);
            zap::remove_int(mos, map, first.0, tx).await?;
            zap::add_int(mos, map, old_next, tx).await?;
        }
        // Both directories change their origins.
        let oldest = ObjectId(old_dir.phys().origin_obj);
        dir.change(|d| d.origin_obj = oldest.0);
        dir.origin_txg.set(old_dir.origin_txg.get());
        old_dir.change(|d| d.origin_obj = p.origin.object.0);
        old_dir.origin_txg.set(o.creation_txg);
        let lists_clones = self.features.has_version(pool_version::DEADLISTS);
        if lists_clones {
            zap::remove_int(mos, ObjectId(old_dir.phys().clones), p.clone.object.0, tx).await?;
            let clones = self.clones_of(&dir, tx).await?;
            zap::add_int(mos, clones, old_head.object.0, tx).await?;
        }
        if lists_clones && oldest.0 != 0 {
            let above = ObjectId(self.dataset_phys(oldest).await?.dir_obj);
            let above = self.dir(above).await?;
            let clones = self.clones_of(&above, tx).await?;
            zap::remove_int(mos, clones, old_head.object.0, tx).await?;
            zap::add_int(mos, clones, p.clone.object.0, tx).await?;
        }
        self.move_bookmarks(old_head.object, p.clone.object, o.creation_txg, tx)
            .await?;
        self.bookmarks_next_changed(p.clone.object, &p.origin.phys(), tx)
            .await?;
        for snapshot in &p.shared_snaps {
            self.move_snapshot(snapshot, &old_dir, &dir, old_next, tx)
                .await?;
        }
        // Space follows.
        let delta = Delta::from(moved.sizes);
        charge_moved(&dir, delta, moved.clone_snapshots);
        charge_moved(&old_dir, -delta, moved.origin_snapshots);
        p.origin.change(|o| o.unique_bytes = moved.origin_unique);
        self.refresh_properties(&dir).await?;
        let name = self.name_of(&dir);
        self.event("promote", &name, p.clone.object, String::new(), tx);
        Ok(())
    }

    /// Moves a snapshot from one directory to another, with what refers to it there.
    async fn move_snapshot(
        self: &Rc<Self>,
        snapshot: &Rc<DatasetState>,
        from: &Rc<DslDir>,
        to: &Rc<DslDir>,
        old_next: u64,
        tx: &Tx,
    ) -> Result<()> {
        let mos = &self.mos;
        let head_map = |dir: &Rc<DslDir>| ObjectId(dir.phys().head_dataset_obj);
        let from_map = ObjectId(self.dataset_phys(head_map(from)).await?.snapnames_zapobj);
        let to_map = ObjectId(self.dataset_phys(head_map(to)).await?.snapnames_zapobj);
        let name = self
            .name_by_value(from_map, snapshot.object)
            .await?
            .ok_or_else(|| DslError::corrupt("snapshot names", from_map))?;
        zap::remove(mos, from_map, &name, tx).await?;
        self.snapshots_changed(from, tx).await?;
        self.adjust_count(from, zapified_keys::SNAPSHOT_COUNT, -1, tx)
            .await?;
        zap::add_u64(mos, to_map, &name, snapshot.object.0, tx).await?;
        self.adjust_count(to, zapified_keys::SNAPSHOT_COUNT, 1, tx)
            .await?;
        snapshot.set_dir(to.clone());
        let clones = ObjectId(snapshot.phys().next_clones_obj);
        for object in self.clones_listed(clones).await? {
            // The old head, or its oldest snapshot, has been moved already.
            if object.0 == old_next || from.phys().clones == 0 {
                continue;
            }
            let clone_dir = ObjectId(self.dataset_phys(object).await?.dir_obj);
            let head = self.dir(clone_dir).await?.phys().head_dataset_obj;
            zap::remove_int(mos, ObjectId(from.phys().clones), head, tx).await?;
            zap::add_int(mos, ObjectId(to.phys().clones), head, tx).await?;
        }
        Ok(())
    }

    /// The heads of the clones of a directory's snapshots, as its list has them.
    pub(crate) async fn cloned_heads(&self, dir: &DslDir) -> Result<Vec<ObjectId>> {
        self.clones_listed(ObjectId(dir.phys().clones)).await
    }

    /// The datasets in a list of clones: a directory's, or a snapshot's. Object 0 is an empty list.
    async fn clones_listed(&self, list: ObjectId) -> Result<Vec<ObjectId>> {
        if list.0 == 0 {
            return Ok(Vec::new());
        }
        let mut clones = Vec::new();
        for entry in zap::entries(&self.mos, list).await? {
            let ZapValue::U64(value) = entry.value else {
                return Err(DslError::corrupt("list of clones", list));
            };
            clones.push(ObjectId(value.first().copied().unwrap_or(0)));
        }
        Ok(clones)
    }

    /// Checks a rollback to the newest snapshot, which must be `target` if one is named.
    async fn check_rollback(
        self: &Rc<Self>,
        name: &str,
        target: Option<&str>,
        tx: Option<Txg>,
    ) -> Result<Rc<DatasetState>> {
        let found = self.find(name).await?;
        if found.snapshot.is_some() {
            return Err(DslError::WrongKind { name: name.into() });
        }
        let state = self.load_dataset(found.dataset, None).await?;
        let phys = state.phys();
        let prev = ObjectId(phys.prev_snap_obj);
        if prev.0 == 0 || self.is_origin_snap(prev) {
            return Err(DslError::NoSnapshot { name: name.into() });
        }
        if tx.is_some_and(|txg| phys.prev_snap_txg >= txg.0) {
            return Err(DslError::Again);
        }
        if let Some(target) = target {
            let missing = |_| DslError::NoSnapshot { name: name.into() };
            let wanted = self.find(target).await.map_err(missing)?;
            if wanted.dataset != prev {
                let own = wanted.dir.object == found.dir.object
                    || found.dir.phys().origin_obj == wanted.dataset.0;
                return Err(if own {
                    DslError::NotNewest { name: name.into() }
                } else {
                    DslError::NoSnapshot { name: name.into() }
                });
            }
        }
        let bookmarks = self.stored_bookmarks(state.object).await?;
        if bookmarks
            .iter()
            .any(|(_, b)| b.creation_txg > phys.prev_snap_txg)
        {
            return Err(DslError::NotNewest { name: name.into() });
        }
        if state.handles() != 0 {
            return Err(DslError::Busy { name: name.into() });
        }
        if zil::has_log(&self.zil_header(&state).await?) {
            return Err(DslError::Busy { name: name.into() });
        }
        let referenced = self.dataset_phys(prev).await?.referenced_bytes;
        let quota = state.ref_quota.get();
        if quota != 0 && referenced > quota {
            return Err(DslError::Quota { name: name.into() });
        }
        let charge = phys.unique_bytes.min(state.ref_reserved.get());
        if charge > 0 && charge > available(&found.dir, self.pool_size(0), true) {
            return Err(DslError::NoSpace);
        }
        Ok(state)
    }

    /// Makes a head what its newest snapshot is; blocks written since are freed asynchronously.
    /// Syncing context; the checks were made.
    pub(crate) async fn rollback(self: &Rc<Self>, state: &Rc<DatasetState>, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "rollback happens in syncing context");
        let dir = state.dir();
        let h = state.phys();
        let prev = state.prev.borrow().clone();
        let prev = prev.ok_or_else(|| DslError::corrupt("previous snapshot", state.object))?;
        let s = prev.phys();
        self.remove_livelist(&dir, tx).await?;
        let list = self.deadlist_of(state).await?;
        let dead = list.totals();
        let dead_young = list
            .space_range(dir.origin_txg.get(), u64::MAX, &self.empty_bpobj)
            .await?;
        // Referenced now, plus on the deadlist since the snapshot, less what the snapshot refers to.
        let mut freed = Sizes {
            used: h.referenced_bytes,
            compressed: h.compressed_bytes,
            uncompressed: h.uncompressed_bytes,
        };
        freed.add(dead);
        freed.sub(Sizes {
            used: s.referenced_bytes,
            compressed: s.compressed_bytes,
            uncompressed: s.uncompressed_bytes,
        });
        state.set_objset(None);
        self.free_objset(h.bp, h.prev_snap_txg, freed, tx).await?;
        let delta = Delta::from(freed);
        dir.did_use(UsedBy::Head, -delta);
        dir.move_part(-signed(dead_young.used), UsedBy::Head, UsedBy::Snapshots);
        // For a clone the origin's next snapshot is another dataset, and its unique space did not change.
        if s.next_snap_obj == state.object.0 {
            prev.change(|s| s.unique_bytes = 0);
        }
        list.clear(&self.empty_bpobj, tx).await?;
        self.destroy_remap_deadlist(state.object, tx).await?;
        let charge = h.unique_bytes.min(state.ref_reserved.get());
        state.change(|p| {
            p.bp = s.bp;
            p.referenced_bytes = s.referenced_bytes;
            p.compressed_bytes = s.compressed_bytes;
            p.uncompressed_bytes = s.uncompressed_bytes;
            p.unique_bytes = 0;
        });
        if charge > 0 {
            let delta = Delta {
                used: signed(charge),
                ..Delta::default()
            };
            dir.did_use(UsedBy::Refreservation, delta);
        }
        self.copy_features(state, &prev, tx).await?;
        self.bookmarks_next_changed(state.object, &s, tx).await?;
        self.clear_zil_header(state, tx).await?;
        let name = self.name_of(&dir);
        self.event("rollback", &name, state.object, String::new(), tx);
        Ok(())
    }

    /// Makes the features counted for a head exactly those of its snapshot.
    async fn copy_features(
        &self,
        state: &DatasetState,
        snapshot: &DatasetState,
        tx: &Tx,
    ) -> Result<()> {
        let wanted = snapshot.features.borrow().clone();
        let has = state.features.borrow().clone();
        for feature in has.difference(&wanted).copied() {
            self.deactivate(state, feature, tx).await?;
        }
        self.activate_features_of(snapshot, state, tx).await
    }

    /// Frees the blocks of an objset born after `min_birth`, `sizes` in all: in the background, charged to the directory for
    /// that, or at once in a pool that cannot. Syncing context.
    pub(crate) async fn free_objset(
        self: &Rc<Self>,
        bp: ondisk::BlockPointer,
        min_birth: u64,
        sizes: Sizes,
        tx: &Tx,
    ) -> Result<()> {
        if self.features.is_enabled("async_destroy") {
            self.add_to_bptree(bp, min_birth, sizes, tx).await?;
            return self.free_dir_did_use(Delta::from(sizes)).await;
        }
        // OpenZFS: module/zfs/dsl_destroy.c, old_synchronous_dataset_destroy
        let store = self.services.store();
        let free = async |bp: &ondisk::BlockPointer| {
            self.free_blocks(std::slice::from_ref(bp), tx).await?;
            Ok(sizes_of(bp, store.dsize(bp)))
        };
        bptree::free_all(&self.mos, &bp, min_birth, tx, free).await
    }

    /// Queues the blocks of an objset born after `min_birth` for asynchronous destruction.
    async fn add_to_bptree(
        &self,
        bp: ondisk::BlockPointer,
        min_birth: u64,
        sizes: Sizes,
        tx: &Tx,
    ) -> Result<()> {
        let object = match self.async_destroy.bptree() {
            Some(object) => object,
            None => {
                self.features.incr("async_destroy", tx).await?;
                let object = bptree::create(&self.mos, tx).await?;
                zap::add_u64(&self.mos, OBJECT_DIRECTORY, BPTREE_OBJ, object.0, tx).await?;
                self.async_destroy.set_bptree(Some(object));
                object
            }
        };
        bptree::add(&self.mos, object, bp, min_birth, sizes, tx).await
    }
}

/// Charges a directory for what came to it, `snapshots` bytes of which its snapshots hold from now on.
fn charge_moved(dir: &DslDir, delta: Delta, snapshots: u64) {
    let before = dir.phys().used_breakdown[UsedBy::Snapshots as usize];
    let more = signed(snapshots) - signed(before);
    let plain = Delta {
        used: more,
        ..Delta::default()
    };
    dir.did_use(UsedBy::Snapshots, plain);
    let rest = Delta {
        used: delta.used - more,
        ..delta
    };
    dir.did_use(UsedBy::Head, rest);
}
