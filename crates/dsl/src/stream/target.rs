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

use super::receive::ReceiveTarget;
use crate::dataset_state::DatasetState;
use crate::deadlist::Deadlist;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::hierarchy::Hierarchy;
use crate::namecheck;
use crate::property::DatasetKind;
use crate::space::{Delta, Sizes, signed};

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

impl Hierarchy {
    /// Makes the dataset of a whole stream, without objects.
    pub(super) async fn receive_into_new(
        &self,
        target: &ReceiveTarget,
        begin: &Begin,
    ) -> Result<()> {
        let kind = kind_of(begin)?;
        let flags = flags_of(begin);
        self.check_receive_features(begin)?;
        namecheck::check(&target.dataset, kind)?;
        {
            let _names = self.pool().config.read().await;
            self.check_new(&target.dataset, &[]).await?;
        }
        let target = target.clone();
        self.submit("receive", async move |this: &Self, tx: &Tx| {
            let pool = this.pool();
            let parent = this.check_new(&target.dataset, &[]).await?;
            this.apply(async {
                let name = &target.dataset;
                let (_, component) = name.rsplit_once('/').expect("the name was checked");
                let dir = pool.create_dir(Some(&parent), component, tx).await?;
                pool.adjust_count(&parent, zapified_keys::FILESYSTEM_COUNT, 1, tx)
                    .await?;
                pool.start_counts(&dir, tx).await?;
                pool.grant_to_creator(&dir, target.creator, tx).await?;
                let state = pool.create_head(&dir, flags, tx).await?;
                // The stream brings all objects, the master node too.
                pool.create_objects(&state, kind, &[], async |_, _, _| Ok(()), tx)
                    .await?;
                pool.event("receive", name, state.object, String::new(), tx);
                Ok(())
            })
            .await
        })
        .await
    }

    /// Makes the hidden clone that an incremental stream fills; returns its name.
    pub(super) async fn receive_into_clone(
        &self,
        target: &ReceiveTarget,
        begin: &Begin,
    ) -> Result<String> {
        self.check_receive_features(begin)?;
        {
            let _names = self.pool().config.read().await;
            self.pool().check_receive(target, begin, None).await?;
        }
        let name = format!("{}/{CLONE_NAME}", target.dataset);
        let request = Rc::new((target.clone(), begin.clone()));
        loop {
            let request = Rc::clone(&request);
            let made = self
                .submit("receive", async move |this: &Self, tx: &Tx| {
                    let (target, begin) = &*request;
                    let pool = this.pool();
                    let head = pool.check_receive(target, begin, Some(tx.txg().0)).await?;
                    this.apply(pool.create_receive_clone(&head, begin, tx))
                        .await
                })
                .await;
            match made {
                Err(DslError::Again) => {}
                other => return other.map(|()| name),
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
        loop {
            let request = Rc::clone(&request);
            let made = self
                .submit("receive", async move |this: &Self, tx: &Tx| {
                    let (name, begin) = &*request;
                    let pool = this.pool();
                    let found = pool.find(namecheck::split(name).head).await?;
                    let head = pool.load_dataset(found.dataset, None).await?;
                    pool.check_settled(&head, tx)?;
                    this.apply(pool.finish_snapshot(&head, name, begin, tx))
                        .await
                })
                .await;
            match made {
                Err(DslError::Again) => {}
                other => return other,
            }
        }
    }

    /// Puts the contents of the hidden clone in the place of the dataset's, makes the snapshot, and destroys the clone.
    pub(super) async fn finish_clone(
        &self,
        name: &str,
        clone: &str,
        snapshot: &str,
        begin: &Begin,
    ) -> Result<()> {
        self.pool().services.clock.sync_all().await?;
        let names = (name.to_owned(), clone.to_owned());
        let request = Rc::new((names, format!("{name}@{snapshot}"), begin.clone()));
        loop {
            let request = Rc::clone(&request);
            let made = self
                .submit("receive", async move |this: &Self, tx: &Tx| {
                    let ((name, clone), snapshot, begin) = &*request;
                    let pool = this.pool();
                    let head = pool.find(name).await?;
                    let head = pool.load_dataset(head.dataset, None).await?;
                    let clone = pool.find(clone).await?;
                    let clone = pool.load_dataset(clone.dataset, None).await?;
                    pool.check_settled(&head, tx)?;
                    pool.check_settled(&clone, tx)?;
                    if clone.phys().prev_snap_obj != head.phys().prev_snap_obj {
                        // A snapshot was taken meanwhile.
                        return Err(DslError::NoSource { name: name.clone() });
                    }
                    let quota = head.ref_quota.get();
                    if quota != 0 && clone.phys().referenced_bytes > quota {
                        return Err(DslError::Quota { name: name.clone() });
                    }
                    this.apply(async {
                        pool.swap_heads(&head, &clone, tx).await?;
                        pool.finish_snapshot(&head, snapshot, begin, tx).await?;
                        pool.destroy_head(&clone, tx).await
                    })
                    .await
                })
                .await;
            match made {
                Err(DslError::Again) => {}
                other => return other,
            }
        }
    }
}

impl DslPool {
    /// Checks an incremental stream against the dataset it is for; returns the head.
    async fn check_receive(
        self: &Rc<Self>,
        target: &ReceiveTarget,
        begin: &Begin,
        txg: Option<u64>,
    ) -> Result<Rc<DatasetState>> {
        let name = &target.dataset;
        let found = self.find(name).await?;
        if found.snapshot.is_some() {
            return Err(DslError::WrongKind { name: name.clone() });
        }
        self.require_plain(&found.dir).await?;
        if self.kind_of(&found.dir).await? != kind_of(begin)? {
            return Err(DslError::WrongKind { name: name.clone() });
        }
        let clone = format!("{name}/{CLONE_NAME}");
        if self.find_dir(&clone).await?.is_some() {
            return Err(DslError::Busy { name: name.clone() });
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
        let prev = ObjectId(phys.prev_snap_obj);
        if prev.0 == 0 || self.is_origin_snap(prev) {
            return Err(DslError::NoSource { name: name.clone() });
        }
        let prev = self.load_dataset(prev, None).await?;
        if prev.phys().guid != begin.from_guid {
            return Err(DslError::NoSource { name: name.clone() });
        }
        let written = phys.bp.birth().0 > prev.phys().creation_txg;
        let dirty = head.objset().is_some_and(|os| {
            let now = self.services.clock.open_txg();
            (0..=3).any(|back| os.is_dirty(ondisk::Txg(now.0.saturating_sub(back))))
        });
        if !target.force && (written || dirty) {
            return Err(DslError::Modified { name: name.clone() });
        }
        // What the clone writes must be younger than the snapshot.
        if txg.is_some_and(|txg| prev.phys().creation_txg >= txg) {
            return Err(DslError::Again);
        }
        Ok(head)
    }

    async fn create_receive_clone(
        self: &Rc<Self>,
        head: &Rc<DatasetState>,
        begin: &Begin,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "a receive begins in syncing context");
        let parent = head.dir();
        let prev = head.prev.borrow().clone();
        let prev = prev.ok_or_else(|| DslError::corrupt("previous snapshot", head.object))?;
        let kind = self.kind_of(&parent).await?;
        let dir = self.create_dir(Some(&parent), CLONE_NAME, tx).await?;
        let flags = prev.phys().flags & dataset_flags::CASE_INSENSITIVE;
        let state = self
            .create_head_from(&dir, &prev, flags | flags_of(begin), tx)
            .await?;
        dir.kind.set(Some(kind));
        self.event(
            "receive",
            &self.name_of(&parent),
            state.object,
            String::new(),
            tx,
        );
        Ok(())
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
