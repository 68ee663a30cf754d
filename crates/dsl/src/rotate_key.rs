//! The exchange of what a dataset holds, all its snapshots with it, for a copy of it with other keys (`zfs rotate-key`).
//!
//! ```text
//!   before: dataset: head, s1 <- s2, key object K    copy: head', s1' <- s2', key object K'
//!   after:  dataset: head, s1' <- s2', K'            copy: head', s1 <- s2, K
//! ```
//!
//! Guarantees: it is one txg: after a crash the dataset has the old keys with the old blocks, or the new ones with the new blocks. The head
//! keeps its object, guid and fsid, and its directory the name, properties, quotas and delegated permissions; snapshots keep names,
//! guids, times, holds and user properties. Whatever would be lost with it is refused before, but for bookmarks without their snapshot,
//! which [`KeyRotationPlan`] names: the copy has no history that an increment could count from there.
//! It does not know how the copy is made.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use codec::crypt::WrappingKey;
use dmu::Tx;
use dmu::zap;
use ondisk::bookmark::BookmarkPhys;
use ondisk::dsl::{DslDatasetPhys, UsedBy, dataset_flags, zapified_keys};
use ondisk::{Guid, ObjectId, Txg};

use crate::change_log::Concerned;
use crate::dataset_state::DatasetState;
use crate::dsl_dir::DslDir;
use crate::dsl_pool::{DslPool, Found};
use crate::error::{DslError, KeyRotationError, Result};
use crate::hierarchy::Hierarchy;
use crate::key_format::{KeyFormat, NewKey};
use crate::new_encryption::key_phys;
use crate::property::{DatasetKind, Property, Setting, Value};
use crate::space::{Delta, Sizes, signed};
use crate::stream::swap::take_contents;
use crate::sync_task::SyncTask;

/// What a rotation of the keys of a dataset begins with.
#[derive(Clone, Debug)]
pub struct KeyRotationPlan {
    /// Object of the head in the meta-objset.
    pub object: ObjectId,
    /// Object of the directory, which a rename does not change.
    pub directory: ObjectId,
    /// Identity of the head.
    pub guid: Guid,
    /// File system or volume.
    pub kind: DatasetKind,
    /// Bytes that the dataset and its snapshots take, and so about what the copy will.
    pub used: u64,
    /// Bytes that the pool has left for it.
    pub available: u64,
    /// Names of bookmarks, without the dataset's, whose snapshot is gone: they are destroyed by the exchange.
    pub lost_bookmarks: Vec<String>,
    /// Properties that the copy is to be made with: its cipher, the form of its wrapping key, and what decides how blocks are stored.
    pub settings: Vec<Setting>,
    /// What wraps the keys of the dataset, and will wrap those of the copy.
    pub key: NewKey,
}

impl Hierarchy {
    /// Checks that the keys of a dataset can be replaced; returns what is needed for it.
    ///
    /// # Errors
    /// `NotFound`; `WrongKind`; `KeyRotation` with the reason; `KeyNotLoaded`; `Busy` while something is received into it.
    pub async fn plan_key_rotation(&self, name: &str) -> Result<KeyRotationPlan> {
        let pool = self.pool();
        let _names = pool.config.read().await;
        pool.plan_key_rotation(name).await
    }

    /// Returns the name and the head's guid of the dataset of a directory; `None` when there is none any more.
    ///
    /// # Errors
    /// Of reading.
    pub async fn dataset_of_directory(
        &self,
        directory: ObjectId,
    ) -> Result<Option<(String, Guid)>> {
        let pool = self.pool();
        let _names = pool.config.read().await;
        let all = pool.all_dirs().await?;
        let Some(dir) = all.into_iter().find(|dir| dir.object == directory) else {
            return Ok(None);
        };
        let head = ObjectId(dir.phys().head_dataset_obj);
        let guid = Guid(pool.dataset_phys(head).await?.guid);
        Ok(Some((pool.name_of(&dir), guid)))
    }

    /// Loads the wrapping key of a dataset as that of an encryption root, where that is not done.
    ///
    /// # Errors
    /// `KeyNotLoaded` when that of the dataset is not loaded; `WrongKey` when it is not that of the root; those of [`Hierarchy::load_key`].
    pub async fn share_wrapping_key(&self, from: &str, root: &str) -> Result<()> {
        let pool = self.pool();
        let _names = pool.config.read().await;
        let dir = pool.find(from).await?.dir;
        let (_, key, _) = pool.wrapping_of(&dir).await?;
        match pool.load_key(root, key, false).await {
            Err(DslError::KeyLoaded { .. }) => Ok(()),
            other => other,
        }
    }

    /// Exchanges what a dataset and a copy of it hold, and sets `mark` on the dataset that `mark` names in the same txg. The
    /// dataset has the keys of the copy afterwards, wrapped as its own were.
    ///
    /// # Errors
    /// As [`Hierarchy::plan_key_rotation`]; `Modified` when the copy has not all that the dataset has; `Busy` when one of both is open.
    pub async fn exchange_with_copy(
        &self,
        dataset: &str,
        copy: &str,
        mark: (String, Vec<Setting>),
    ) -> Result<()> {
        let task = ExchangeWithCopy {
            dataset: dataset.to_owned(),
            copy: copy.to_owned(),
            mark,
        };
        self.pool().run(task).await
    }
}

/// Exchanges what a dataset and its copy hold.
struct ExchangeWithCopy {
    dataset: String,
    copy: String,
    mark: (String, Vec<Setting>),
}

/// A head and its snapshots, newest first.
struct Line {
    head: Rc<DatasetState>,
    snapshots: Vec<Rc<DatasetState>>,
}

/// What is exchanged.
struct Exchange {
    ours: Line,
    theirs: Line,
    mark: Found,
    /// Bookmarks that go, by their full names.
    lost: Vec<String>,
    /// The encryption root, whose key wraps the keys of the dataset.
    root: ObjectId,
    wrapping: Arc<WrappingKey>,
    format: KeyFormat,
}

impl SyncTask for ExchangeWithCopy {
    type Checked = Exchange;
    type Output = ();

    fn name(&self) -> &'static str {
        "rotate-key"
    }

    fn concerned(&self) -> Concerned {
        Concerned::All
    }

    async fn check(&self, pool: &Rc<DslPool>, txg: Option<Txg>) -> Result<Exchange> {
        let plan = pool.plan_key_rotation(&self.dataset).await?;
        let found = pool.find(&self.dataset).await?;
        let copy = pool.find(&self.copy).await?;
        let mark = pool.find(&self.mark.0).await?;
        let (root, wrapping, format) = pool.wrapping_of(&found.dir).await?;
        let ours = pool.line_of(&found.dir).await?;
        let theirs = pool.line_of(&copy.dir).await?;
        pool.check_lines(&self.dataset, &ours, &theirs).await?;
        for (line, name) in [(&ours, &self.dataset), (&theirs, &self.copy)] {
            pool.check_closed(&line.head, name, txg).await?;
        }
        // What they are wrapped with is known to be the right one before anything is changed.
        pool.block_keys(&found.dir).await?;
        pool.block_keys(&copy.dir).await?;
        let lost = plan.lost_bookmarks.into_iter();
        let lost = lost.map(|name| format!("{}#{name}", self.dataset));
        Ok(Exchange {
            lost: lost.collect(),
            ours,
            theirs,
            mark,
            root,
            wrapping,
            format,
        })
    }

    async fn prepare(&self, pool: &Rc<DslPool>, _: Exchange) -> Result<()> {
        // What was written through handles that are closed must not be synced after the exchange.
        Ok(pool.services.clock.sync_all().await?)
    }

    async fn apply(self, pool: &Rc<DslPool>, exchange: Exchange, tx: &Tx) -> Result<()> {
        let kept = pool.bookmarks_to_move(&exchange, tx).await?;
        pool.exchange_space(&exchange.ours, &exchange.theirs)
            .await?;
        pool.exchange_lines(&exchange.ours, &exchange.theirs, tx)
            .await?;
        pool.exchange_key_objects(&exchange, tx).await?;
        let head = exchange.ours.head.object;
        for (name, bookmark) in kept {
            pool.store_bookmark_at(head, &name, bookmark, &exchange.theirs, tx)
                .await?;
        }
        pool.snapshots_changed(&exchange.ours.head.dir(), tx)
            .await?;
        pool.apply_settings(&exchange.mark, &self.mark.1, tx)
            .await?;
        let snapshots = exchange.ours.snapshots.len();
        let text = format!("copy={} snapshots={snapshots}", self.copy);
        pool.event("rotate key", &self.dataset, head, text, tx);
        Ok(())
    }
}

impl DslPool {
    async fn plan_key_rotation(self: &Rc<Self>, name: &str) -> Result<KeyRotationPlan> {
        let found = self.find(name).await?;
        if found.snapshot.is_some() {
            return Err(DslError::WrongKind { name: name.into() });
        }
        let dir = found.dir;
        let Some(key_object) = self.key_object(&dir).await? else {
            return Err(KeyRotationError::NotEncrypted.into());
        };
        if self.is_clone(&dir) {
            let origin = self.snapshot_name(ObjectId(dir.phys().origin_obj)).await?;
            return Err(KeyRotationError::Clone { origin }.into());
        }
        let head = self.load_dataset(found.dataset, None).await?;
        let busy = || DslError::Busy { name: name.into() };
        if head.phys().flags & dataset_flags::INCONSISTENT != 0
            || self.has_resume_state(head.object).await?
        {
            return Err(busy());
        }
        let mut clones = Vec::new();
        for clone in self.cloned_heads(&dir).await? {
            let clone = self.dir(ObjectId(self.dataset_phys(clone).await?.dir_obj));
            let clone = clone.await?;
            // The hidden one of a receive.
            if clone.name.borrow().starts_with('%') {
                return Err(busy());
            }
            clones.push(self.name_of(&clone));
        }
        if !clones.is_empty() {
            clones.sort();
            return Err(KeyRotationError::Clones { clones }.into());
        }
        if self.redacted_by(&head).await?.is_some() {
            return Err(KeyRotationError::Redacted.into());
        }
        let (_, key, format) = self.wrapping_of(&dir).await?;
        let line = self.line_of(&dir).await?;
        let suite = self.read_key(key_object).await?.suite;
        let breakdown = dir.phys().used_breakdown;
        let root = self.dir(self.root_dir()).await?;
        Ok(KeyRotationPlan {
            object: head.object,
            directory: dir.object,
            guid: Guid(head.phys().guid),
            kind: self.kind_of(&dir).await?,
            used: breakdown[UsedBy::Head as usize] + breakdown[UsedBy::Snapshots as usize],
            available: crate::dsl_dir::available(&root, self.pool_size(0), false),
            lost_bookmarks: self.bookmarks_without_snapshot(&line).await?,
            settings: settings_of_copy(&head, suite, format),
            key: NewKey { format, key },
        })
    }

    /// The encryption root of a directory with its wrapping key.
    async fn wrapping_of(
        self: &Rc<Self>,
        dir: &Rc<DslDir>,
    ) -> Result<(ObjectId, Arc<WrappingKey>, KeyFormat)> {
        let missing = || DslError::KeyNotLoaded {
            name: self.name_of(dir),
        };
        self.root_wrapping(dir).await?.ok_or_else(missing)
    }

    /// The head of a directory that is no clone, with its snapshots.
    async fn line_of(self: &Rc<Self>, dir: &Rc<DslDir>) -> Result<Line> {
        let head = ObjectId(dir.phys().head_dataset_obj);
        let head = self.load_dataset(head, None).await?;
        let mut snapshots = Vec::new();
        let mut at = ObjectId(head.phys().prev_snap_obj);
        let mut younger = u64::MAX;
        while at.0 != 0 && !self.is_origin_snap(at) {
            self.yield_every(snapshots.len()).await;
            let snapshot = self.load_dataset(at, None).await?;
            let phys = snapshot.phys();
            // Each is older than the one before: a chain closed to a ring ends here.
            if phys.creation_txg >= younger || phys.dir_obj != dir.object.0 {
                return Err(DslError::corrupt("chain of snapshots", head.object));
            }
            younger = phys.creation_txg;
            at = ObjectId(phys.prev_snap_obj);
            snapshots.push(snapshot);
        }
        Ok(Line { head, snapshots })
    }

    /// Checks that a copy has what a dataset has: the same snapshots by the same names, and nothing written since the newest.
    async fn check_lines(self: &Rc<Self>, name: &str, ours: &Line, theirs: &Line) -> Result<()> {
        let modified = || DslError::Modified { name: name.into() };
        let (own, copied) = (
            self.snapshot_names(&ours.head.phys()).await?,
            self.snapshot_names(&theirs.head.phys()).await?,
        );
        let with_names = |line: &Line, names: &BTreeMap<u64, Vec<u8>>| -> Vec<_> {
            let snapshots = line.snapshots.iter();
            let named = snapshots.map(|it| (it.phys().guid, names.get(&it.object.0).cloned()));
            named.collect()
        };
        // One may have been renamed since the copy was made to follow.
        if with_names(ours, &own) != with_names(theirs, &copied) {
            return Err(modified());
        }
        for line in [ours, theirs] {
            let newest = line.snapshots.first().ok_or_else(modified)?;
            if self.is_modified_since(&line.head, newest).await? {
                return Err(modified());
            }
        }
        Ok(())
    }

    /// Checks that nothing uses a head, and that it is as it is on the disks; in syncing context it is tried again where that is under way.
    async fn check_closed(
        self: &Rc<Self>,
        head: &DatasetState,
        name: &str,
        txg: Option<Txg>,
    ) -> Result<()> {
        if head.handles() != 0 || zil::has_log(&self.zil_header(head).await?) {
            return Err(DslError::Busy { name: name.into() });
        }
        let Some(txg) = txg else { return Ok(()) };
        let dirty = head.objset().is_some_and(|os| os.is_dirty(txg));
        if dirty || head.is_dirty_later(txg) || head.phys().prev_snap_txg >= txg.0 {
            return Err(DslError::Again);
        }
        Ok(())
    }

    async fn bookmarks_without_snapshot(self: &Rc<Self>, line: &Line) -> Result<Vec<String>> {
        let stored = self.stored_bookmarks(line.head.object).await?;
        let guids: BTreeSet<u64> = line
            .snapshots
            .iter()
            .map(|state| state.phys().guid)
            .collect();
        let is_lost = |bookmark: &BookmarkPhys| !guids.contains(&bookmark.guid);
        let lost = stored.into_iter().filter(|(_, b)| is_lost(b));
        Ok(lost.map(|(name, _)| name).collect())
    }

    /// Destroys the bookmarks that are lost; returns the others. Syncing context.
    async fn bookmarks_to_move(
        self: &Rc<Self>,
        exchange: &Exchange,
        tx: &Tx,
    ) -> Result<Vec<(String, BookmarkPhys)>> {
        assert!(tx.is_syncing(), "bookmarks are moved in syncing context");
        for name in &exchange.lost {
            self.destroy_bookmark(name, tx).await?;
        }
        self.stored_bookmarks(exchange.ours.head.object).await
    }

    /// Makes a bookmark one of the snapshot of the same guid in a line. Syncing context.
    async fn store_bookmark_at(
        self: &Rc<Self>,
        head: ObjectId,
        name: &str,
        bookmark: BookmarkPhys,
        line: &Line,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "bookmarks are moved in syncing context");
        let mut snapshots = line.snapshots.iter();
        let snapshot = snapshots.find(|state| state.phys().guid == bookmark.guid);
        let Some(snapshot) = snapshot else {
            return Err(DslError::corrupt("bookmarks", head));
        };
        self.rebase_bookmark(head, name, bookmark, snapshot, tx)
            .await
    }

    /// Exchanges what the directories of two lines are charged for. Before the lines change places.
    async fn exchange_space(self: &Rc<Self>, ours: &Line, theirs: &Line) -> Result<()> {
        let (dir, copy_dir) = (ours.head.dir(), theirs.head.dir());
        let (before, after) = (self.held_by(ours).await?, self.held_by(theirs).await?);
        let part = |dir: &DslDir, part: UsedBy| signed(dir.phys().used_breakdown[part as usize]);
        let change = |of: UsedBy| part(&copy_dir, of) - part(&dir, of);
        let snapshots = Delta {
            used: change(UsedBy::Snapshots),
            ..Delta::default()
        };
        let head = Delta {
            used: change(UsedBy::Head),
            compressed: signed(after.compressed) - signed(before.compressed),
            uncompressed: signed(after.uncompressed) - signed(before.uncompressed),
        };
        let reserved = ours.head.ref_reserved.get();
        let unfilled = |state: &DatasetState| signed(state.phys().unique_bytes.min(reserved));
        let refreservation = Delta {
            used: unfilled(&ours.head) - unfilled(&theirs.head),
            ..Delta::default()
        };
        dir.did_use(UsedBy::Snapshots, snapshots);
        copy_dir.did_use(UsedBy::Snapshots, -snapshots);
        dir.did_use(UsedBy::Head, head);
        copy_dir.did_use(UsedBy::Head, -head);
        if refreservation.used != 0 {
            dir.did_use(UsedBy::Refreservation, refreservation);
        }
        Ok(())
    }

    /// What a head and its snapshots hold together.
    async fn held_by(self: &Rc<Self>, line: &Line) -> Result<Sizes> {
        let phys = line.head.phys();
        let mut sizes = Sizes {
            used: phys.referenced_bytes,
            compressed: phys.compressed_bytes,
            uncompressed: phys.uncompressed_bytes,
        };
        // A block that the head does not refer to is on the deadlist of the first dataset without it.
        let states = line.snapshots.iter().chain(std::iter::once(&line.head));
        for (number, state) in states.enumerate() {
            self.yield_every(number).await;
            sizes.add(self.deadlist_of(state).await?.totals());
        }
        Ok(sizes)
    }

    /// Exchanges the contents of two heads, and their snapshots. Syncing context.
    async fn exchange_lines(self: &Rc<Self>, ours: &Line, theirs: &Line, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "lines change places in syncing context");
        assert!(
            ours.head.handles() == 0 && theirs.head.handles() == 0,
            "closed heads change places"
        );
        let (head, copy) = (&ours.head, &theirs.head);
        let (dir, copy_dir) = (head.dir(), copy.dir());
        self.swap_features(head, copy, tx).await?;
        self.swap_remap_deadlists(head.object, copy.object, tx)
            .await?;
        let lists = (self.deadlist_of(head).await?, self.deadlist_of(copy).await?);
        for (state, list) in [(head, lists.1), (copy, lists.0)] {
            state.set_objset(None);
            *state.deadlist.borrow_mut() = Some(list);
        }
        let (h, c) = (head.phys(), copy.phys());
        take_line(head, &c);
        take_line(copy, &h);
        head.prev.swap(&copy.prev);
        for (line, next, dir) in [(ours, copy, &copy_dir), (theirs, head, &dir)] {
            for (number, snapshot) in line.snapshots.iter().enumerate() {
                self.yield_every(number).await;
                snapshot.set_dir(Rc::clone(dir));
                if number == 0 {
                    snapshot.change(|phys| phys.next_snap_obj = next.object.0);
                }
            }
        }
        for (old, new) in ours.snapshots.iter().zip(&theirs.snapshots) {
            let (o, n) = (old.phys(), new.phys());
            take_attributes(new, &o);
            take_attributes(old, &n);
        }
        Ok(())
    }

    /// Exchanges the key objects of two directories: the new keys are wrapped as the old ones were, and the old ones belong to a
    /// directory that is their encryption root. Syncing context.
    async fn exchange_key_objects(self: &Rc<Self>, exchange: &Exchange, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "keys change places in syncing context");
        let (dir, copy_dir) = (exchange.ours.head.dir(), exchange.theirs.head.dir());
        let missing = || DslError::corrupt("encryption keys", dir.object);
        let of = async |dir: &Rc<DslDir>| -> Result<_> {
            let object = self.key_object(dir).await?.ok_or_else(missing)?;
            let keys = self.block_keys(dir).await?.ok_or_else(missing)?;
            Ok((object, keys))
        };
        let (old, new) = (of(&dir).await?, of(&copy_dir).await?);
        for ((object, keys), dir, root) in [
            (new, &dir, exchange.root),
            (old, &copy_dir, copy_dir.object),
        ] {
            let wrapped = self.wrap(keys.dataset_keys(), &exchange.wrapping)?;
            let phys = key_phys(&wrapped, root, exchange.format);
            self.write_key(object, &phys, tx).await?;
            zap::update_u64(
                &self.mos,
                dir.object,
                zapified_keys::CRYPTO_KEY,
                object.0,
                tx,
            )
            .await?;
            self.keys.move_to(object, root);
        }
        self.keys
            .load(copy_dir.object, Arc::clone(&exchange.wrapping));
        Ok(())
    }
}

/// What the copy of a dataset is made with, so that its blocks are stored as those of the dataset are.
fn settings_of_copy(head: &DatasetState, suite: u64, format: KeyFormat) -> Vec<Setting> {
    let (number, _, iterations) = format.numbers();
    let number_of = |property, value| Setting::Native(property, Value::Number(value));
    let mut settings = vec![
        number_of(Property::Encryption, suite),
        number_of(Property::KeyFormat, number),
        Setting::Native(Property::KeyLocation, Value::Text("prompt".to_owned())),
    ];
    if let KeyFormat::Passphrase { .. } = format {
        settings.push(number_of(Property::Pbkdf2Iters, iterations));
    }
    for property in [
        Property::Checksum,
        Property::Compression,
        Property::Copies,
        Property::Dedup,
        Property::RedundantMetadata,
        Property::SpecialSmallBlocks,
    ] {
        let value = head.effective(property, Value::number);
        settings.extend(value.map(|value| number_of(property, value)));
    }
    settings
}

/// Gives a head the contents and the snapshots of another.
fn take_line(state: &DatasetState, from: &DslDatasetPhys) {
    take_contents(state, from);
    state.change(|phys| {
        phys.prev_snap_obj = from.prev_snap_obj;
        phys.prev_snap_txg = from.prev_snap_txg;
        phys.snapnames_zapobj = from.snapnames_zapobj;
    });
}

/// Gives a snapshot what users gave another: its holds, user properties and the identity that handles of its files have.
fn take_attributes(state: &DatasetState, from: &DslDatasetPhys) {
    state.change(|phys| {
        phys.userrefs_obj = from.userrefs_obj;
        phys.props_obj = from.props_obj;
        phys.fsid_guid = from.fsid_guid;
        phys.flags &= !dataset_flags::DEFER_DESTROY;
        phys.flags |= from.flags & dataset_flags::DEFER_DESTROY;
    });
}
