//! Where a stream is received: the making of what is filled, and its change into a snapshot of the dataset.
//!
//! OpenZFS: module/zfs/dmu_recv.c, recv_begin_sync and dmu_recv_end_sync; module/zfs/dsl_dataset.c, dsl_dataset_clone_swap_sync_impl.

use std::collections::BTreeSet;
use std::rc::Rc;

use dmu::Tx;
use dmu::zap;
use ondisk::dsl::{UsedBy, dataset_flags, zapified_keys};
use ondisk::feature::Feature;
use ondisk::stream::{Begin, begin_flags, stream_feature};
use ondisk::{ObjectId, ObjsetType};

use crate::dataset_state::DatasetState;
use crate::deadlist::Deadlist;
use crate::dsl_dir::DslDir;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::hierarchy::Hierarchy;
use crate::namecheck;
use crate::property::DatasetKind;
use crate::space::{Delta, Sizes, signed};
use crate::types::ResumePoint;

/// Name of the hidden clone below the dataset that is received into. OpenZFS: module/zfs/dmu_recv.c, recv_clone_name.
const CLONE_NAME: &str = "%recv";

/// The flags of what is filled.
fn flags_of(begin: &Begin) -> u64 {
    let mut flags = dataset_flags::INCONSISTENT;
    if begin.flags & begin_flags::CASE_INSENSITIVE != 0 {
        flags |= dataset_flags::CASE_INSENSITIVE;
    }
    flags
}

fn kind_of(begin: &Begin) -> Result<DatasetKind> {
    match ObjsetType(u64::from(begin.objset_type)) {
        ObjsetType::ZFS => Ok(DatasetKind::Filesystem),
        ObjsetType::ZVOL => Ok(DatasetKind::Volume),
        _ => Err(DslError::Unsupported {
            what: "receiving what is neither a file system nor a volume",
        }),
    }
}

/// What a stream is received into.
#[derive(Clone, Debug, Default)]
pub struct ReceiveTarget {
    /// Full name of the dataset: an existing one for a stream that counts from a snapshot, else a new one.
    pub dataset: String,
    /// Name of the snapshot to be, without the dataset's.
    pub snapshot: String,
    /// What changed in the dataset since the snapshot that the stream counts from is given up, younger snapshots too (`-F`).
    pub force: bool,
    /// The uid that gets the permissions delegated to creators.
    pub creator: u32,
    /// Full name of the snapshot that the new dataset is a clone of.
    pub origin: Option<String>,
    /// What was received stays when the receive is interrupted (`-s`).
    pub resumable: bool,
}

/// What a stream is received into, once that was found or made.
pub(super) struct ReceiveDestination {
    /// Name of what is filled: the dataset itself, or the hidden clone.
    pub(super) filled: String,
    /// It is the dataset itself, which was not there before.
    pub(super) is_new: bool,
    /// Where an interrupted receive goes on.
    pub(super) resumed: Option<ResumePoint>,
}

impl Hierarchy {
    /// Finds or makes what a stream fills.
    pub(super) async fn destination_of(
        &self,
        target: &ReceiveTarget,
        begin: &Begin,
    ) -> Result<ReceiveDestination> {
        self.check_receive_features(begin)?;
        if begin.features & stream_feature::RESUMING != 0 {
            return self.resumed_destination(target, begin).await;
        }
        let exists = {
            let _names = self.pool().config.read().await;
            self.pool().find_dir(&target.dataset).await?.is_some()
        };
        let is_clone = target.origin.is_some() || begin.flags & begin_flags::CLONE != 0;
        if exists && (is_clone || (begin.from_guid == 0 && !target.force)) {
            return Err(DslError::Exists {
                name: target.dataset.clone(),
            });
        }
        let filled = if exists {
            self.receive_into_hidden(target, begin).await?
        } else if begin.from_guid != 0 && target.origin.is_none() {
            return Err(DslError::NotFound {
                name: target.dataset.clone(),
            });
        } else {
            self.receive_into_new(target, begin).await?;
            target.dataset.clone()
        };
        Ok(ReceiveDestination {
            filled,
            is_new: !exists,
            resumed: None,
        })
    }

    /// Makes the dataset of a whole stream, without objects, or of a clone, with those of its origin.
    async fn receive_into_new(&self, target: &ReceiveTarget, begin: &Begin) -> Result<()> {
        namecheck::check(&target.dataset, kind_of(begin)?)?;
        {
            let _names = self.pool().config.read().await;
            self.check_new(&target.dataset, &[]).await?;
            self.pool().check_origin(target, begin).await?;
        }
        let request = Rc::new((target.clone(), begin.clone()));
        self.until_done(|| {
            let request = Rc::clone(&request);
            async move |this: &Self, tx: &Tx| {
                let (target, begin) = &*request;
                let pool = this.pool();
                let parent = this.check_new(&target.dataset, &[]).await?;
                let origin = pool.check_origin(target, begin).await?;
                // What a clone writes must be younger than its origin.
                if origin
                    .as_ref()
                    .is_some_and(|origin| origin.phys().creation_txg >= tx.txg().0)
                {
                    return Err(DslError::Again);
                }
                let origin = origin.as_ref();
                this.apply(pool.create_receiving(&parent, origin, target, begin, tx))
                    .await
            }
        })
        .await
    }

    /// Makes the hidden dataset that fills up beside an existing one: a clone of the snapshot that the stream counts from, or an empty
    /// one; returns its name.
    async fn receive_into_hidden(&self, target: &ReceiveTarget, begin: &Begin) -> Result<String> {
        {
            let _names = self.pool().config.read().await;
            self.pool().check_receive(target, begin, None).await?;
        }
        let request = Rc::new((target.clone(), begin.clone()));
        self.until_done(|| {
            let request = Rc::clone(&request);
            async move |this: &Self, tx: &Tx| {
                let (target, begin) = &*request;
                let pool = this.pool();
                let source = pool.check_receive(target, begin, Some(tx.txg().0)).await?;
                this.apply(pool.create_receive_clone(&source, target, begin, tx))
                    .await
            }
        })
        .await?;
        Ok(format!("{}/{CLONE_NAME}", target.dataset))
    }

    /// Finds what an interrupted receive left, and checks that the stream goes on with it.
    // OpenZFS: module/zfs/dmu_recv.c, dmu_recv_resume_begin_check
    async fn resumed_destination(
        &self,
        target: &ReceiveTarget,
        begin: &Begin,
    ) -> Result<ReceiveDestination> {
        let pool = self.pool();
        let _names = pool.config.read().await;
        let name = &target.dataset;
        let not_resumable = || DslError::NotResumable { name: name.clone() };
        let hidden = format!("{name}/{CLONE_NAME}");
        let (filled, is_new) = match pool.find_dir(&hidden).await? {
            Some(_) => (hidden, false),
            None => (name.clone(), true),
        };
        if !is_new && begin.from_guid == 0 && !target.force {
            return Err(DslError::ResumeExists { name: name.clone() });
        }
        let found = pool.find(&filled).await?;
        let state = pool.load_dataset(found.dataset, None).await?;
        if state.phys().flags & dataset_flags::INCONSISTENT == 0 {
            return Err(not_resumable());
        }
        if state.handles() != 0 {
            return Err(DslError::Busy { name: name.clone() });
        }
        let point = pool.resume_point(found.dataset, begin).await?;
        let point = point.ok_or_else(not_resumable)?;
        check_large_blocks(&state, begin)?;
        Ok(ReceiveDestination {
            filled,
            is_new,
            resumed: Some(point),
        })
    }

    /// Returns name and object of what an interrupted receive into a dataset left, if it can be resumed.
    ///
    /// # Errors
    /// `NotFound` when there is neither the dataset nor the hidden one beside it; of reading.
    pub async fn interrupted_receive(&self, dataset: &str) -> Result<Option<(String, ObjectId)>> {
        let pool = self.pool();
        let _names = pool.config.read().await;
        let hidden = format!("{dataset}/{CLONE_NAME}");
        for name in [hidden, dataset.to_owned()] {
            let Some(dir) = pool.find_dir(&name).await? else {
                continue;
            };
            let head = ObjectId(dir.phys().head_dataset_obj);
            let phys = pool.dataset_phys(head).await?;
            if phys.flags & dataset_flags::INCONSISTENT != 0 && pool.has_resume_state(head).await? {
                return Ok(Some((name, head)));
            }
        }
        pool.find(dataset).await?;
        Ok(None)
    }

    /// Submits a change again while another of the same txg prevents it.
    async fn until_done<Task>(&self, task: impl Fn() -> Task) -> Result<()>
    where
        Task: AsyncFnOnce(&Self, &Tx) -> Result<()> + 'static,
    {
        loop {
            match self.submit("receive", task()).await {
                Err(DslError::Again) => {}
                other => return other,
            }
        }
    }

    /// Refuses what the pool has no features for.
    fn check_receive_features(&self, begin: &Begin) -> Result<()> {
        for (bit, feature) in [
            (stream_feature::LARGE_BLOCKS, "large_blocks"),
            (stream_feature::LARGE_DNODE, "large_dnode"),
            (stream_feature::LONG_NAMES, "longname"),
            (stream_feature::LARGE_MICROZAP, "large_microzap"),
            (stream_feature::LZ4, "lz4_compress"),
            (stream_feature::ZSTD, "zstd_compress"),
        ] {
            if begin.features & bit != 0 && !self.features().is_enabled(feature) {
                return Err(DslError::FeatureDisabled { feature });
            }
        }
        Ok(())
    }

    /// Makes the snapshot of a new dataset that was filled.
    pub(super) async fn finish_new(&self, name: &str, snapshot: &str, begin: &Begin) -> Result<()> {
        self.pool().services.clock.sync_all().await?;
        let request = Rc::new((format!("{name}@{snapshot}"), begin.clone()));
        self.until_done(|| {
            let request = Rc::clone(&request);
            async move |this: &Self, tx: &Tx| {
                let (name, begin) = &*request;
                let pool = this.pool();
                let found = pool.find(namecheck::split(name).head).await?;
                let head = pool.load_dataset(found.dataset, None).await?;
                pool.check_settled(&head, tx)?;
                this.apply(async {
                    pool.clear_resume_state(head.object, tx).await?;
                    pool.finish_snapshot(&head, name, begin, tx).await
                })
                .await
            }
        })
        .await
    }

    /// Puts the contents of the hidden clone in the place of the dataset's, makes the snapshot, and destroys the clone. With `force`,
    /// snapshots that are younger than the one it is a clone of are destroyed.
    pub(super) async fn finish_clone(
        &self,
        target: &ReceiveTarget,
        clone: &str,
        begin: &Begin,
    ) -> Result<()> {
        self.pool().services.clock.sync_all().await?;
        let request = Rc::new((target.clone(), clone.to_owned(), begin.clone()));
        self.until_done(|| {
            let request = Rc::clone(&request);
            async move |this: &Self, tx: &Tx| {
                let (target, clone, begin) = &*request;
                let name = &target.dataset;
                let pool = this.pool();
                let head = pool.find(name).await?;
                let head = pool.load_dataset(head.dataset, None).await?;
                let clone = pool.find(clone).await?;
                let clone = pool.load_dataset(clone.dataset, None).await?;
                pool.check_settled(&head, tx)?;
                pool.check_settled(&clone, tx)?;
                let younger = pool.younger_snapshots(&head, &clone, target).await?;
                let quota = head.ref_quota.get();
                if quota != 0 && clone.phys().referenced_bytes > quota {
                    return Err(DslError::Quota { name: name.clone() });
                }
                let snapshot = format!("{name}@{}", target.snapshot);
                this.apply(async {
                    for old in &younger {
                        pool.destroy_snapshot(old, false, tx).await?;
                    }
                    pool.swap_heads(&head, &clone, tx).await?;
                    head.dir().kind.set(Some(kind_of(begin)?));
                    pool.finish_snapshot(&head, &snapshot, begin, tx).await?;
                    pool.destroy_head(&clone, tx).await
                })
                .await
            }
        })
        .await
    }
}

/// A dataset with large blocks takes no stream that would have cut them.
fn check_large_blocks(state: &DatasetState, begin: &Begin) -> Result<()> {
    if state.features.borrow().contains("large_blocks")
        && begin.features & stream_feature::LARGE_BLOCKS == 0
    {
        return Err(DslError::LargeBlockMismatch);
    }
    Ok(())
}

impl DslPool {
    /// The snapshot that a stream is received as a clone of, if it is.
    async fn check_origin(
        self: &Rc<Self>,
        target: &ReceiveTarget,
        begin: &Begin,
    ) -> Result<Option<Rc<DatasetState>>> {
        let Some(origin) = &target.origin else {
            return Ok(None);
        };
        let found = self.find(origin).await?;
        if found.snapshot.is_none() || self.kind_of(&found.dir).await? != kind_of(begin)? {
            return Err(DslError::WrongKind {
                name: origin.clone(),
            });
        }
        self.require_plain(&found.dir).await?;
        let state = self.load_dataset(found.dataset, found.snapshot).await?;
        if begin.from_guid != 0 && state.phys().guid != begin.from_guid {
            return Err(DslError::NoSource {
                name: target.dataset.clone(),
            });
        }
        // A whole stream frees what its snapshot has not only if the sender says so.
        if begin.from_guid == 0 && begin.flags & begin_flags::FREE_RECORDS == 0 {
            return Err(DslError::Unsupported {
                what: "receiving this stream as a clone",
            });
        }
        check_large_blocks(&state, begin)?;
        Ok(Some(state))
    }

    /// Makes the directory and head that a stream fills from nothing, or from the contents of its origin.
    async fn create_receiving(
        self: &Rc<Self>,
        parent: &Rc<DslDir>,
        origin: Option<&Rc<DatasetState>>,
        target: &ReceiveTarget,
        begin: &Begin,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "a receive begins in syncing context");
        let name = &target.dataset;
        let (_, component) = name.rsplit_once('/').expect("the name was checked");
        let dir = self.create_dir(Some(parent), component, tx).await?;
        self.adjust_count(parent, zapified_keys::FILESYSTEM_COUNT, 1, tx)
            .await?;
        self.start_counts(&dir, tx).await?;
        self.grant_to_creator(&dir, target.creator, tx).await?;
        self.create_receiving_head(&dir, origin, target, begin, tx)
            .await?;
        self.create_livelist(&dir, tx).await
    }

    async fn create_receiving_head(
        self: &Rc<Self>,
        dir: &Rc<DslDir>,
        origin: Option<&Rc<DatasetState>>,
        target: &ReceiveTarget,
        begin: &Begin,
        tx: &Tx,
    ) -> Result<()> {
        let flags = flags_of(begin);
        let kind = kind_of(begin)?;
        let state = match origin {
            Some(origin) => {
                let kept = origin.phys().flags & dataset_flags::CASE_INSENSITIVE;
                let state = self.create_head_from(dir, origin, flags | kept, tx).await?;
                dir.kind.set(Some(kind));
                state
            }
            None => {
                let state = self.create_head(dir, flags, tx).await?;
                // The stream brings all objects, the master node too.
                self.create_objects(&state, kind, &[], async |_, _, _| Ok(()), tx)
                    .await?;
                state
            }
        };
        if target.resumable {
            self.start_resume_state(state.object, begin, tx).await?;
        }
        self.event("receive", &target.dataset, state.object, String::new(), tx);
        Ok(())
    }

    /// Checks a stream against the dataset it is for; returns its directory, and the snapshot that the stream is received on top of
    /// (none for a whole stream).
    // OpenZFS: module/zfs/dmu_recv.c, recv_begin_check_existing_impl
    async fn check_receive(
        self: &Rc<Self>,
        target: &ReceiveTarget,
        begin: &Begin,
        txg: Option<u64>,
    ) -> Result<(Rc<DslDir>, Option<Rc<DatasetState>>)> {
        let name = &target.dataset;
        let found = self.find(name).await?;
        if found.snapshot.is_some() {
            return Err(DslError::WrongKind { name: name.clone() });
        }
        self.require_plain(&found.dir).await?;
        let same_kind = self.kind_of(&found.dir).await? == kind_of(begin)?;
        if begin.from_guid != 0 && !same_kind {
            return Err(DslError::WrongKind { name: name.clone() });
        }
        let busy = || DslError::Busy { name: name.clone() };
        let clone = format!("{name}/{CLONE_NAME}");
        if self.find_dir(&clone).await?.is_some() || self.has_resume_state(found.dataset).await? {
            return Err(busy());
        }
        let wanted = format!("{name}@{}", target.snapshot);
        namecheck::check(&wanted, DatasetKind::Snapshot)?;
        let head = self.load_dataset(found.dataset, None).await?;
        let phys = head.phys();
        let map = ObjectId(phys.snapnames_zapobj);
        if self
            .snapshot_object(&phys, map, &target.snapshot)
            .await?
            .is_some()
        {
            return Err(DslError::Exists { name: wanted });
        }
        if begin.from_guid == 0 {
            if zap::count(&self.mos, map).await? != 0 {
                return Err(DslError::HasSnapshots { name: name.clone() });
            }
            let prev = ObjectId(phys.prev_snap_obj);
            if !self.is_origin_snap(prev) {
                return Err(DslError::NoSource { name: name.clone() });
            }
            return Ok((found.dir, None));
        }
        let source = self.source_snapshot(&head, begin.from_guid).await?;
        let Some(source) = source else {
            return Err(DslError::NoSource { name: name.clone() });
        };
        check_large_blocks(&source, begin)?;
        let base = if target.force {
            source
        } else if self.is_modified_since(&head, &source).await? {
            return Err(DslError::Modified { name: name.clone() });
        } else {
            let newest = ObjectId(phys.prev_snap_obj);
            self.load_dataset(newest, None).await?
        };
        // What the clone writes must be younger than the snapshot.
        if txg.is_some_and(|txg| base.phys().creation_txg >= txg) {
            return Err(DslError::Again);
        }
        Ok((found.dir, Some(base)))
    }

    /// The snapshot of a head's own line with this guid.
    async fn source_snapshot(
        self: &Rc<Self>,
        head: &DatasetState,
        guid: u64,
    ) -> Result<Option<Rc<DatasetState>>> {
        let mut at = ObjectId(head.phys().prev_snap_obj);
        let mut younger = u64::MAX;
        while at.0 != 0 && !self.is_origin_snap(at) {
            let snapshot = self.load_dataset(at, None).await?;
            let phys = snapshot.phys();
            if phys.dir_obj != head.phys().dir_obj {
                return Ok(None);
            }
            if phys.guid == guid {
                return Ok(Some(snapshot));
            }
            // Each is older than the one before: a chain closed to a ring ends here.
            if phys.creation_txg >= younger {
                return Err(DslError::corrupt("chain of snapshots", head.object));
            }
            younger = phys.creation_txg;
            at = ObjectId(phys.prev_snap_obj);
        }
        Ok(None)
    }

    /// Whether a head has other contents than a snapshot of it: snapshots without a change in between do not count, nor does the
    /// header of the intent log.
    async fn is_modified_since(
        self: &Rc<Self>,
        head: &DatasetState,
        snapshot: &DatasetState,
    ) -> Result<bool> {
        let dirty = head.objset().is_some_and(|os| {
            let now = self.services.clock.open_txg();
            (0..=3).any(|back| os.is_dirty(ondisk::Txg(now.0.saturating_sub(back))))
        });
        if dirty {
            return Ok(true);
        }
        if head.phys().bp.birth().0 <= snapshot.phys().creation_txg {
            return Ok(false);
        }
        let now = self.meta_dnode(head).await?;
        let then = self.meta_dnode(snapshot).await?;
        Ok(now != then)
    }

    async fn meta_dnode(self: &Rc<Self>, state: &DatasetState) -> Result<ondisk::DnodePhys> {
        let phys = self.objset_phys_of(state.object, &state.phys().bp).await?;
        Ok(phys.meta_dnode)
    }

    /// The snapshots between a head and the snapshot that its hidden clone was made of: they go.
    async fn younger_snapshots(
        self: &Rc<Self>,
        head: &DatasetState,
        clone: &DatasetState,
        target: &ReceiveTarget,
    ) -> Result<Vec<Rc<DatasetState>>> {
        let name = &target.dataset;
        let base = clone.phys().prev_snap_obj;
        let mut at = head.phys().prev_snap_obj;
        let mut younger = Vec::new();
        while at != base {
            let snapshot = self.load_dataset(ObjectId(at), None).await?;
            let phys = snapshot.phys();
            // Without -F, one was taken meanwhile.
            if !target.force || phys.dir_obj != head.phys().dir_obj {
                return Err(DslError::NoSource { name: name.clone() });
            }
            if snapshot.handles() != 0 || self.user_refs(&phys).await? > 0 {
                return Err(DslError::Busy { name: name.clone() });
            }
            if phys.num_children > 1 {
                return Err(DslError::HasClones { name: name.clone() });
            }
            at = phys.prev_snap_obj;
            younger.push(snapshot);
        }
        Ok(younger)
    }

    async fn create_receive_clone(
        self: &Rc<Self>,
        (parent, base): &(Rc<DslDir>, Option<Rc<DatasetState>>),
        target: &ReceiveTarget,
        begin: &Begin,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "a receive begins in syncing context");
        let dir = self.create_dir(Some(parent), CLONE_NAME, tx).await?;
        self.create_receiving_head(&dir, base.as_ref(), target, begin, tx)
            .await
    }

    /// Waits for handles and for what is on its way to the disks.
    fn check_settled(&self, state: &DatasetState, tx: &Tx) -> Result<()> {
        let name = || self.name_of(&state.dir());
        if state.handles() != 0 {
            return Err(DslError::Busy { name: name() });
        }
        let dirty = state.objset().is_some_and(|os| os.is_dirty(tx.txg()));
        if dirty || state.is_dirty_later(tx.txg()) || state.phys().prev_snap_txg >= tx.txg().0 {
            return Err(DslError::Again);
        }
        Ok(())
    }

    /// Takes the snapshot that was received: with the guid and time of the sender's. Syncing context.
    async fn finish_snapshot(
        self: &Rc<Self>,
        head: &Rc<DatasetState>,
        name: &str,
        begin: &Begin,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "a receive ends in syncing context");
        head.change(|head| head.flags &= !dataset_flags::INCONSISTENT);
        let snapshot = self.create_snapshot(name, tx).await?;
        snapshot.change(|snapshot| {
            snapshot.guid = begin.to_guid;
            snapshot.creation_time = begin.creation_time;
        });
        Ok(())
    }

    /// Exchanges the contents of a head and of a clone of its newest snapshot, with the space they are charged for. Syncing context;
    /// both are closed and written out.
    async fn swap_heads(
        self: &Rc<Self>,
        head: &Rc<DatasetState>,
        clone: &Rc<DatasetState>,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "heads change places in syncing context");
        let (dir, clone_dir) = (head.dir(), clone.dir());
        let (h, c) = (head.phys(), clone.phys());
        assert!(
            h.prev_snap_obj == c.prev_snap_obj && head.handles() == 0 && clone.handles() == 0,
            "closed heads of one snapshot change places"
        );
        let origin = head.prev.borrow().clone();
        let origin = origin.ok_or_else(|| DslError::corrupt("previous snapshot", head.object))?;
        self.remove_livelist(&dir, tx).await?;
        self.remove_livelist(&clone_dir, tx).await?;
        self.swap_features(head, clone, tx).await?;
        head.set_objset(None);
        clone.set_objset(None);
        let head_list = self.deadlist_of(head).await?;
        let clone_list = self.deadlist_of(clone).await?;
        let young = async |list: &Deadlist, from: u64| {
            list.space_range(from, u64::MAX, &self.empty_bpobj).await
        };
        let unique = young(&clone_list, origin.phys().prev_snap_txg).await?;
        origin.change(|origin| origin.unique_bytes = unique.used);
        let held = |phys: &ondisk::dsl::DslDatasetPhys, list: &Deadlist| {
            let mut sizes = Sizes {
                used: phys.referenced_bytes,
                compressed: phys.compressed_bytes,
                uncompressed: phys.uncompressed_bytes,
            };
            sizes.add(list.totals());
            sizes
        };
        let (before, after) = (held(&h, &head_list), held(&c, &clone_list));
        let delta = Delta {
            used: signed(after.used) - signed(before.used),
            compressed: signed(after.compressed) - signed(before.compressed),
            uncompressed: signed(after.uncompressed) - signed(before.uncompressed),
        };
        dir.did_use(UsedBy::Head, delta);
        clone_dir.did_use(UsedBy::Head, -delta);
        let origin_txg = dir.origin_txg.get();
        let moved = signed(young(&clone_list, origin_txg).await?.used)
            - signed(young(&head_list, origin_txg).await?.used);
        dir.move_part(moved, UsedBy::Head, UsedBy::Snapshots);
        let reserved = head.ref_reserved.get();
        let unfilled = signed(h.unique_bytes.min(reserved)) - signed(c.unique_bytes.min(reserved));
        if unfilled != 0 {
            let delta = Delta {
                used: unfilled,
                ..Delta::default()
            };
            dir.did_use(UsedBy::Refreservation, delta);
        }
        for (state, from) in [(head, c), (clone, h)] {
            state.change(|phys| {
                phys.bp = from.bp;
                phys.deadlist_obj = from.deadlist_obj;
                phys.referenced_bytes = from.referenced_bytes;
                phys.compressed_bytes = from.compressed_bytes;
                phys.uncompressed_bytes = from.uncompressed_bytes;
                phys.unique_bytes = from.unique_bytes;
            });
        }
        *head.deadlist.borrow_mut() = Some(clone_list);
        *clone.deadlist.borrow_mut() = Some(head_list);
        self.swap_remap_deadlists(head.object, clone.object, tx)
            .await?;
        self.bookmarks_next_changed(head.object, &origin.phys(), tx)
            .await?;
        let text = format!("parent={}", self.name_of(&dir));
        let name = self.name_of(&clone_dir);
        self.event("clone swap", &name, clone.object, text, tx);
        Ok(())
    }

    /// Exchanges the features counted for two heads.
    async fn swap_features(
        &self,
        head: &DatasetState,
        clone: &DatasetState,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "features are counted in syncing context");
        assert!(head.object != clone.object, "two heads change places");
        let of =
            |state: &DatasetState| -> BTreeSet<&'static str> { state.features.borrow().clone() };
        let (h, c) = (of(head), of(clone));
        for (state, has, gets) in [(head, &h, &c), (clone, &c, &h)] {
            for feature in has.difference(gets) {
                let known = Feature::by_name(feature).expect("named by this crate");
                self.features.decr(feature, tx).await?;
                zap::remove(&self.mos, state.object, known.guid, tx).await?;
                state.features.borrow_mut().remove(feature);
            }
            for feature in gets.difference(has) {
                self.activate(state, feature, tx).await?;
            }
        }
        Ok(())
    }
}
