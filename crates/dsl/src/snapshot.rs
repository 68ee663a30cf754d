//! Creation and destruction of snapshots, with their space accounting.
//!
//! A snapshot takes the head's objset and its deadlist; the head gets an empty deadlist with one
//! entry more. Destroying a snapshot moves the blocks only it refers to to `free_bpobj`, and merges
//! its deadlist into the next newer dataset's. OpenZFS: module/zfs/dsl_dataset.c,
//! `dsl_dataset_snapshot_sync_impl`; module/zfs/dsl_destroy.c, `dsl_destroy_snapshot_sync_impl`.

use std::collections::BTreeMap;
use std::rc::Rc;

use dmu::Tx;
use dmu::zap::{self, ZapValue};
use ondisk::dsl::{DslDatasetPhys, UsedBy, dataset_flags, zapified_keys};
use ondisk::{ObjectId, ObjectType, Txg};

use crate::change_log::Concerned;
use crate::dataset_state::DatasetState;
use crate::dsl_dir::{DslDir, SpaceCharged, available, available_beside};
use crate::dsl_pool::DslPool;
use crate::error::{DslError, ImmutableError, Refusals, Result};
use crate::immutable::{IMMUTABLE_PROPERTY, parse_time};
use crate::namecheck::{self, split};
use crate::property::{DatasetKind, Property, Setting, Value};
use crate::space::{Delta, Sizes, signed};
use crate::sync_task::{EachName, SyncTask};

/// What the pool must have free for a snapshot to be taken.
const ROOM_BYTES: u64 = 1 << 18;

fn used(bytes: i64) -> Delta {
    Delta {
        used: bytes,
        ..Delta::default()
    }
}

/// Takes snapshots of several datasets at one moment, with user properties.
pub(crate) struct TakeSnapshots {
    pub(crate) names: Vec<String>,
    pub(crate) settings: Vec<Setting>,
}

impl SyncTask for TakeSnapshots {
    type Checked = ();
    type Output = ();

    fn name(&self) -> &'static str {
        "snapshot"
    }

    fn concerned(&self) -> Concerned {
        Concerned::Nothing
    }

    async fn check(&self, pool: &Rc<DslPool>, txg: Option<Txg>) -> Result<()> {
        for setting in &self.settings {
            if let Setting::User(name, text) = setting
                && name == IMMUTABLE_PROPERTY
                && parse_time(text).is_none()
            {
                return Err(ImmutableError::BadTime.into());
            }
        }
        pool.check_snapshots(&self.names, txg).await
    }

    async fn apply(self, pool: &Rc<DslPool>, (): (), tx: &Tx) -> Result<()> {
        for (number, name) in self.names.iter().enumerate() {
            pool.yield_every(number).await;
            let state = pool.create_snapshot(name, tx).await?;
            if self.settings.is_empty() {
                continue;
            }
            let found = pool.find(name).await?;
            assert_eq!(found.dataset, state.object, "the snapshot made just now");
            pool.apply_settings(&found, &self.settings, tx).await?;
        }
        Ok(())
    }
}

/// Destroys snapshots; with `defer`, those held or cloned are destroyed with their last hold or clone.
pub(crate) struct DestroySnapshots {
    pub(crate) names: Vec<String>,
    pub(crate) defer: bool,
}

impl EachName for DestroySnapshots {
    type Item = String;
    type Checked = ();

    fn name(&self) -> &'static str {
        "destroy snapshots"
    }

    fn items(&self) -> &[String] {
        &self.names
    }

    async fn check_one(&self, pool: &Rc<DslPool>, name: &String) -> Result<Option<()>> {
        let found = pool.check_destroy_snapshot(name, self.defer).await?;
        Ok(found.map(|_| ()))
    }

    async fn apply_one(&self, pool: &Rc<DslPool>, name: &String, (): (), tx: &Tx) -> Result<()> {
        // The names may hold one twice, and a destruction changes the next snapshot: it is looked at anew.
        match pool.check_destroy_snapshot(name, self.defer).await? {
            Some(state) => pool.destroy_snapshot(&state, self.defer, tx).await,
            None => Ok(()),
        }
    }
}

impl DslPool {
    /// Checks snapshots to be taken together. `txg` is the txg they would be taken in, when in syncing context.
    async fn check_snapshots(self: &Rc<Self>, wanted: &[String], txg: Option<Txg>) -> Result<()> {
        let mut refused = Refusals::new();
        // The last space of a full pool is reserved for changes that free space.
        let root = self.dir(self.root_dir()).await?;
        if available(&root, self.pool_size(0), false) < ROOM_BYTES
            && let Some(name) = wanted.first()
        {
            return DslError::if_refused(vec![(name.clone(), DslError::NoSpace)]);
        }
        let mut more: BTreeMap<ObjectId, (Rc<DslDir>, u64)> = BTreeMap::new();
        let mut charged = SpaceCharged::default();
        for (number, name) in wanted.iter().enumerate() {
            self.yield_every(number).await;
            match self.check_snapshot(name, txg, &mut charged).await {
                Ok(dir) => {
                    for dir in dir.chain() {
                        more.entry(dir.object).or_insert((dir, 0)).1 += 1;
                    }
                }
                Err(DslError::Again) => return Err(DslError::Again),
                Err(error) => refused.push((name.clone(), error)),
            }
        }
        if refused.is_empty() {
            for (dir, count) in more.into_values() {
                if let Err(error) = self.check_snapshot_limit(&dir, count).await {
                    refused.push((self.name_of(&dir), error));
                    break;
                }
            }
        }
        DslError::if_refused(refused)
    }

    /// Checks one of several snapshots; those before it take the space that was `charged`.
    async fn check_snapshot(
        self: &Rc<Self>,
        name: &str,
        txg: Option<Txg>,
        charged: &mut SpaceCharged,
    ) -> Result<Rc<DslDir>> {
        namecheck::check(name, DatasetKind::Snapshot)?;
        let parts = split(name);
        let missing = || DslError::NotFound {
            name: parts.head.into(),
        };
        let dir = self.find_dir(parts.head).await?.ok_or_else(missing)?;
        let head = self
            .load_dataset(ObjectId(dir.phys().head_dataset_obj), None)
            .await?;
        let phys = head.phys();
        // One snapshot in a txg, and only of an objset that is written out: one created in this txg, or
        // dirtied by another task, is written later in it.
        let dirty = |txg: Txg| head.objset().is_some_and(|os| os.is_dirty(txg));
        if txg.is_some_and(|txg| phys.prev_snap_txg >= txg.0 || dirty(txg)) {
            return Err(DslError::Again);
        }
        let snapshot = parts.snapshot.expect("the name was checked");
        let map = ObjectId(phys.snapnames_zapobj);
        if self.snapshot_object(&phys, map, snapshot).await?.is_some() {
            return Err(DslError::Exists { name: name.into() });
        }
        if phys.flags & dataset_flags::INCONSISTENT != 0 {
            return Err(DslError::Busy { name: name.into() });
        }
        // The unique space that becomes the snapshot's is charged in addition to the refreservation. It is known in syncing
        // context, where what was written in this txg is counted already, and what comes later is in no snapshot.
        // OpenZFS: module/zfs/dsl_dataset.c, dsl_dataset_snapshot_reserve_space
        let charge = phys.unique_bytes.min(head.ref_reserved.get());
        if txg.is_some() && charge > 0 {
            if charge > available_beside(&dir, self.pool_size(0), charged) {
                return Err(DslError::NoSpace);
            }
            charged.add(&dir, charge);
        }
        Ok(dir)
    }

    /// Looks a snapshot up; names of datasets without case are compared so.
    pub(crate) async fn snapshot_object(
        &self,
        head: &DslDatasetPhys,
        map: ObjectId,
        name: &str,
    ) -> Result<Option<ObjectId>> {
        if head.flags & dataset_flags::CASE_INSENSITIVE != 0 {
            let found = zap::lookup_normalized(&self.mos, map, name).await?;
            return Ok(match found {
                Some((ZapValue::U64(value), ..)) => value.first().copied().map(ObjectId),
                _ => None,
            });
        }
        let found = zap::lookup_u64(&self.mos, map, name).await?;
        Ok(found.map(ObjectId))
    }

    async fn check_snapshot_limit(&self, dir: &Rc<DslDir>, more: u64) -> Result<()> {
        if !self.features.is_active("filesystem_limits") {
            return Ok(());
        }
        let limit = self
            .props_of(dir)
            .await?
            .get(Property::SnapshotLimit.name())
            .and_then(Value::number);
        let count = self.dir_count(dir, zapified_keys::SNAPSHOT_COUNT).await?;
        if let (Some(limit), Some(count)) = (limit, count)
            && count.saturating_add(more) > limit
        {
            return Err(DslError::CountLimit {
                name: self.name_of(dir),
            });
        }
        Ok(())
    }

    /// Takes a snapshot. Syncing context, after what is dirty was written; the checks were made.
    pub(crate) async fn create_snapshot(
        self: &Rc<Self>,
        name: &str,
        tx: &Tx,
    ) -> Result<Rc<DatasetState>> {
        assert!(
            tx.is_syncing(),
            "create snapshot happens in syncing context"
        );
        let parts = split(name);
        let missing = || DslError::NotFound { name: name.into() };
        let dir = self.find_dir(parts.head).await?.ok_or_else(missing)?;
        let short = parts.snapshot.ok_or_else(missing)?;
        let head = self
            .load_dataset(ObjectId(dir.phys().head_dataset_obj), None)
            .await?;
        let mos = &self.mos;
        let h = head.phys();
        self.adjust_count(&dir, zapified_keys::SNAPSHOT_COUNT, 1, tx)
            .await?;
        let object = self.allocate_dataset(tx).await?;
        let phys = self.snapshot_phys(&head, tx).encode();
        mos.set_bonus(object, ObjectType::DSL_DATASET, &phys, tx)
            .await?;
        let state = self.load_dataset(object, Some(short.to_owned())).await?;
        self.activate_features_of(&head, &state, tx).await?;
        self.name_ivset(&dir, object, tx).await?;
        let prev = head.prev.borrow().clone();
        if let Some(prev) = prev {
            self.replace_next(&prev, head.object, object, tx).await?;
        }
        let charge = h.unique_bytes.min(head.ref_reserved.get());
        if charge > 0 {
            dir.did_use(UsedBy::Refreservation, used(signed(charge)));
        }
        let old = self.deadlist_of(&head).await?;
        let newest = ObjectId(h.prev_snap_obj);
        let added = Some(h.prev_snap_txg);
        let new = self.clone_deadlist(&old, u64::MAX, newest, added, tx);
        let new = Rc::new(new.await?);
        self.add_bookmark_keys(&head, &new, tx).await?;
        self.move_remap_deadlist(head.object, object, tx).await?;
        head.change(|p| {
            p.deadlist_obj = new.object().0;
            p.prev_snap_obj = object.0;
            p.prev_snap_txg = tx.txg().0;
            p.unique_bytes = 0;
            p.flags |= self.flags_of_heads();
        });
        *state.deadlist.borrow_mut() = Some(old);
        *head.deadlist.borrow_mut() = Some(new);
        *head.prev.borrow_mut() = Some(state.clone());
        let map = ObjectId(h.snapnames_zapobj);
        zap::add_u64(mos, map, short, object.0, tx).await?;
        self.snapshots_changed(&dir, tx).await?;
        self.event("snapshot", name, object, String::new(), tx);
        Ok(state)
    }

    /// What a snapshot of a head holds that is taken now: all of the head's, before it loses any of that.
    fn snapshot_phys(&self, head: &DatasetState, tx: &Tx) -> DslDatasetPhys {
        let h = head.phys();
        DslDatasetPhys {
            dir_obj: h.dir_obj,
            fsid_guid: self.new_fsid(),
            guid: self.new_guid().0,
            prev_snap_obj: h.prev_snap_obj,
            prev_snap_txg: h.prev_snap_txg,
            next_snap_obj: head.object.0,
            num_children: 1,
            creation_time: self.seconds(),
            creation_txg: tx.txg().0,
            deadlist_obj: h.deadlist_obj,
            referenced_bytes: h.referenced_bytes,
            compressed_bytes: h.compressed_bytes,
            uncompressed_bytes: h.uncompressed_bytes,
            flags: h.flags,
            bp: h.bp,
            ..DslDatasetPhys::default()
        }
    }

    /// Puts `new` behind a snapshot in the place of `old`, which is its next dataset (returns true) or a clone of it.
    async fn replace_next(
        &self,
        prev: &DatasetState,
        old: ObjectId,
        new: ObjectId,
        tx: &Tx,
    ) -> Result<bool> {
        let p = prev.phys();
        if p.next_snap_obj == old.0 {
            prev.change(|p| p.next_snap_obj = new.0);
            return Ok(true);
        }
        let clones = ObjectId(p.next_clones_obj);
        if clones.0 != 0 {
            zap::remove_int(&self.mos, clones, old.0, tx).await?;
            zap::add_int(&self.mos, clones, new.0, tx).await?;
        }
        Ok(false)
    }

    /// Notes in a directory that its snapshots changed now.
    pub(crate) async fn snapshots_changed(&self, dir: &DslDir, tx: &Tx) -> Result<()> {
        if !self.features.is_enabled("extensible_dataset") {
            return Ok(());
        }
        let now = self.services.handle.wall_clock();
        let seconds = u64::try_from(now.seconds).unwrap_or(0);
        let value = ZapValue::U64(vec![seconds, u64::from(now.nanoseconds)]);
        self.zapify(dir.object, tx).await?;
        let key = zapified_keys::SNAPSHOTS_CHANGED;
        zap::update(&self.mos, dir.object, key, &value, tx).await?;
        Ok(())
    }

    /// Number of holds on a snapshot.
    pub(crate) async fn user_refs(&self, phys: &DslDatasetPhys) -> Result<u64> {
        match phys.userrefs_obj {
            0 => Ok(0),
            map => Ok(zap::count(&self.mos, ObjectId(map)).await?),
        }
    }

    /// Checks that a snapshot can be destroyed; `None` when it does not exist.
    async fn check_destroy_snapshot(
        self: &Rc<Self>,
        name: &str,
        defer: bool,
    ) -> Result<Option<Rc<DatasetState>>> {
        if split(name).snapshot.is_none() {
            return Err(DslError::WrongKind { name: name.into() });
        }
        let found = match self.find(name).await {
            Err(DslError::NotFound { .. }) => return Ok(None),
            other => other?,
        };
        let state = self.load_dataset(found.dataset, found.snapshot).await?;
        if state.handles() != 0 {
            return Err(DslError::Busy { name: name.into() });
        }
        let phys = state.phys();
        // Neither later, when the last hold is gone: that would be a promise to destroy it.
        self.check_not_immutable(&phys).await?;
        if !defer {
            if self.keeping_refs(&phys).await? > 0 {
                return Err(DslError::Busy { name: name.into() });
            }
            if phys.num_children > 1 {
                return Err(DslError::HasClones { name: name.into() });
            }
        }
        Ok(Some(state))
    }

    /// The head of a directory.
    pub(crate) async fn head_of(self: &Rc<Self>, dir: &DslDir) -> Result<Rc<DatasetState>> {
        let head = ObjectId(dir.phys().head_dataset_obj);
        self.load_dataset(head, None).await
    }

    /// Destroys a snapshot; with `defer`, when its last hold or clone is gone. Syncing context; the
    /// checks were made.
    pub(crate) async fn destroy_snapshot(
        self: &Rc<Self>,
        state: &Rc<DatasetState>,
        defer: bool,
        tx: &Tx,
    ) -> Result<()> {
        assert!(
            tx.is_syncing(),
            "destroy snapshot happens in syncing context"
        );
        let s = state.phys();
        let object = state.object;
        let dir = state.dir();
        let name = self.snapshot_name(object).await?;
        if defer && (s.num_children > 1 || self.keeping_refs(&s).await? > 0) {
            state.change(|p| p.flags |= dataset_flags::DEFER_DESTROY);
            self.event("defer_destroy", &name, object, String::new(), tx);
            return Ok(());
        }
        self.event("destroy", &name, object, String::new(), tx);
        let head = self.head_of(&dir).await?;
        let next = self.load_dataset(ObjectId(s.next_snap_obj), None).await?;
        let bookmarked = self
            .bookmarks_snapshot_destroyed(state, &next, &head, tx)
            .await?;
        let features = state.features.borrow().clone();
        for feature in features {
            self.features.decr(feature, tx).await?;
        }
        let prev = match s.prev_snap_obj {
            0 => None,
            prev => Some(self.load_dataset(ObjectId(prev), None).await?),
        };
        let mut same_line = false;
        if let Some(prev) = &prev {
            let new = ObjectId(s.next_snap_obj);
            same_line = self.replace_next(prev, object, new, tx).await?;
        }
        let unique_before = next.phys().unique_bytes;
        next.change(|n| {
            n.prev_snap_obj = s.prev_snap_obj;
            n.prev_snap_txg = s.prev_snap_txg;
        });
        self.merge_deadlist_into_next(state, &next, prev.as_ref().filter(|_| same_line), tx)
            .await?;
        self.merge_remap_deadlist_into_next(state, &next, tx)
            .await?;
        if !bookmarked {
            self.remove_clones_key(&dir, s.creation_txg, tx).await?;
        }
        if next.phys().is_snapshot() {
            self.own_shared(&s, &next).await?;
            if !bookmarked {
                let list = self.deadlist_of(&head).await?;
                list.remove_key(s.creation_txg, &self.empty_bpobj, tx)
                    .await?;
            }
            // Bookmarks do not need keys of remap deadlists.
            self.remove_remap_key(head.object, s.creation_txg, tx)
                .await?;
        } else {
            self.own_more(&next, prev, unique_before).await?;
        }
        self.remove_snapshot(state, &head, &dir, tx).await
    }

    /// Gives the next snapshot the blocks that only it and a destroyed one shared: they died after it.
    async fn own_shared(
        self: &Rc<Self>,
        destroyed: &DslDatasetPhys,
        next: &DatasetState,
    ) -> Result<()> {
        let after = ObjectId(next.phys().next_snap_obj);
        let after = self.load_dataset(after, None).await?;
        let deadlist = self.deadlist_of(&after).await?;
        let (from, to) = (destroyed.prev_snap_txg, destroyed.creation_txg);
        let shared = deadlist.space_range(from, to, &self.empty_bpobj).await?;
        next.change(|n| n.unique_bytes += shared.used);
        Ok(())
    }

    /// Counts anew what only a head refers to, whose newest snapshot was destroyed: `prev` is the newest one now. What it has more
    /// than `unique_before` fills its refreservation.
    async fn own_more(
        self: &Rc<Self>,
        head: &Rc<DatasetState>,
        prev: Option<Rc<DatasetState>>,
        unique_before: u64,
    ) -> Result<()> {
        *head.prev.borrow_mut() = prev;
        self.count_unique(head).await?;
        let reserved = head.ref_reserved.get();
        if unique_before < reserved {
            let more = head.phys().unique_bytes.saturating_sub(unique_before);
            let filled = more.min(reserved - unique_before);
            let charge = used(-signed(filled));
            head.dir().did_use(UsedBy::Refreservation, charge);
        }
        Ok(())
    }

    /// Counts what only a head refers to. Before version 9 that number was not always right. Syncing context.
    // OpenZFS: module/zfs/dsl_dataset.c, dsl_dataset_recalc_head_uniq
    pub(crate) async fn count_unique(self: &Rc<Self>, head: &Rc<DatasetState>) -> Result<()> {
        let kept = head
            .prev
            .borrow()
            .as_ref()
            .map_or(0, |p| p.phys().referenced_bytes);
        let dead = self.deadlist_of(head).await?.totals().used;
        let flags = self.flags_of_heads();
        head.change(|h| {
            h.unique_bytes = h.referenced_bytes.saturating_sub(kept.saturating_sub(dead));
            h.flags |= flags;
        });
        Ok(())
    }

    /// Moves the blocks only the snapshot refers to to `free_bpobj`, and merges its deadlist into the next dataset's.
    /// `prev` is the previous snapshot when this one is its next.
    async fn merge_deadlist_into_next(
        self: &Rc<Self>,
        state: &Rc<DatasetState>,
        next: &Rc<DatasetState>,
        prev: Option<&Rc<DatasetState>>,
        tx: &Tx,
    ) -> Result<()> {
        let s = state.phys();
        let list = self.deadlist_of(next).await?;
        if list.flat().is_some() {
            return self
                .free_from_flat_deadlist(state, next, &list, prev, tx)
                .await;
        }
        if let Some(prev) = prev {
            let shared = list
                .space_range(
                    prev.phys().prev_snap_txg,
                    s.prev_snap_txg,
                    &self.empty_bpobj,
                )
                .await?;
            prev.change(|p| p.unique_bytes += shared.used);
        }
        let freed: Sizes = list
            .space_range(s.prev_snap_txg, u64::MAX, &self.empty_bpobj)
            .await?;
        let delta = Delta::from(freed);
        state.dir().did_use(UsedBy::Snapshots, -delta);
        let queue = self.async_destroy.free_bpobj()?;
        list.move_to(&queue, s.prev_snap_txg, &self.empty_bpobj, tx)
            .await?;
        self.free_dir_did_use(delta).await?;
        let own = self.deadlist_of(state).await?;
        list.merge(&own, &self.empty_bpobj, tx).await?;
        *state.deadlist.borrow_mut() = None;
        Ok(())
    }

    /// Removes a key from the deadlists of all heads cloned, directly or not, from snapshots of a
    /// directory that are younger.
    pub(crate) async fn remove_clones_key(
        self: &Rc<Self>,
        dir: &Rc<DslDir>,
        key: u64,
        tx: &Tx,
    ) -> Result<()> {
        let mut work = vec![dir.clone()];
        while let Some(dir) = work.pop() {
            for clone in self.cloned_heads(&dir).await? {
                let clone = self.load_dataset(clone, None).await?;
                if clone.dir().origin_txg.get() > key {
                    let list = self.deadlist_of(&clone).await?;
                    list.remove_key(key, &self.empty_bpobj, tx).await?;
                    self.remove_remap_key(clone.object, key, tx).await?;
                    work.push(clone.dir());
                }
            }
        }
        Ok(())
    }

    /// Removes a snapshot from its dataset's names and frees its objects.
    async fn remove_snapshot(
        self: &Rc<Self>,
        state: &Rc<DatasetState>,
        head: &Rc<DatasetState>,
        dir: &Rc<DslDir>,
        tx: &Tx,
    ) -> Result<()> {
        let mos = &self.mos;
        let s = state.phys();
        let map = ObjectId(head.phys().snapnames_zapobj);
        let name = self
            .name_by_value(map, state.object)
            .await?
            .ok_or_else(|| DslError::corrupt("snapshot names", map))?;
        zap::remove(mos, map, &name, tx).await?;
        self.adjust_count(dir, zapified_keys::SNAPSHOT_COUNT, -1, tx)
            .await?;
        self.snapshots_changed(dir, tx).await?;
        for object in [s.next_clones_obj, s.props_obj, s.userrefs_obj] {
            if object != 0 {
                mos.free_object(ObjectId(object), tx).await?;
            }
        }
        self.free_zapified(state.object, tx).await?;
        self.loaded.remove_dataset(state);
        Ok(())
    }

    /// What destroying the snapshots from `first` to `last` of one dataset would free.
    pub(crate) async fn would_free(self: &Rc<Self>, first: &str, last: &str) -> Result<Sizes> {
        let mismatch = || DslError::WrongKind { name: last.into() };
        let (first, last) = (self.find(first).await?, self.find(last).await?);
        if first.snapshot.is_none() || last.snapshot.is_none() {
            return Err(mismatch());
        }
        let from = self.dataset_phys(first.dataset).await?;
        let to = self.dataset_phys(last.dataset).await?;
        if from.dir_obj != to.dir_obj || from.creation_txg > to.creation_txg {
            return Err(mismatch());
        }
        let mut sizes = Sizes::default();
        let mut at = ObjectId(to.next_snap_obj);
        while at != first.dataset {
            let phys = self.dataset_phys(at).await?;
            let list = crate::deadlist::Deadlist::open(&self.mos, ObjectId(phys.deadlist_obj));
            sizes.add(
                list.await?
                    .space_range(from.prev_snap_txg, u64::MAX, &self.empty_bpobj)
                    .await?,
            );
            if phys.prev_snap_obj == 0 {
                return Err(DslError::corrupt("chain of snapshots", at));
            }
            at = ObjectId(phys.prev_snap_obj);
        }
        Ok(sizes)
    }
}
