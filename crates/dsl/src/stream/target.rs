//! Where a stream is received: what it may be received into, and the making of what is filled.
//!
//! OpenZFS: module/zfs/dmu_recv.c, dmu_recv_begin_check and dmu_recv_begin_sync.

use std::rc::Rc;

use codec::crypt::Suite;
use dmu::Tx;
use dmu::zap;
use ondisk::ObjectId;
use ondisk::dsl::dataset_flags;
use ondisk::stream::{ByteOrder, begin_flags, stream_feature};

use super::incoming::Incoming;
use super::malformed;
use crate::change_log::Concerned;
use crate::dataset::Dataset;
use crate::dataset_state::DatasetState;
use crate::dsl_dir::DslDir;
use crate::dsl_pool::{DslPool, Found};
use crate::error::{DslError, RedactionError, Result};
use crate::hierarchy::Hierarchy;
use crate::key_format::NewKey;
use crate::namecheck;
use crate::property::{DatasetKind, Setting};
use crate::resume_token::CLONE_NAME;
use crate::types::ResumePoint;

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
    /// What is set on a new dataset in the txg that makes it: what says whose it is and keeps it from acting, and for one that is no clone
    /// and comes as plain text how it is encrypted (`encryption`, `keyformat`, `keylocation`, `pbkdf2iters`). What is not said of that
    /// follows from its parent.
    pub settings: Vec<Setting>,
    /// Properties come with the stream: a new dataset is marked, in that txg too, as one that received some.
    pub marks: bool,
    /// The key of its own that the new dataset gets, if that is what `settings` ask for.
    pub key: Option<NewKey>,
    /// Byte order of the stream's sender. Payloads come in that of blocks here, but for what they hold embedded.
    pub order: ByteOrder,
}

/// Where a dataset that is not there is made.
struct NewReceive {
    parent: Rc<DslDir>,
    /// The snapshot that it is a clone of.
    origin: Option<Rc<DatasetState>>,
    /// What its blocks are encrypted with when they come as plain text.
    suite: Option<Suite>,
}

/// What a dataset that is filled begins with.
#[derive(Clone, Copy)]
struct FirstContents<'a> {
    /// The snapshot whose contents it has; `None` for no objects at all.
    origin: Option<&'a Rc<DatasetState>>,
    /// What the blocks of one without an origin are encrypted with when they come as plain text.
    suite: Option<Suite>,
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
        incoming: &Incoming,
    ) -> Result<ReceiveDestination> {
        self.check_receive_features(incoming)?;
        if incoming.has(stream_feature::RESUMING) {
            return self.resumed_destination(target, incoming).await;
        }
        let exists = {
            let _names = self.pool().config.read().await;
            self.pool().find_dir(&target.dataset).await?.is_some()
        };
        let is_clone = target.origin.is_some() || incoming.begin.flags & begin_flags::CLONE != 0;
        if exists && (is_clone || (incoming.is_whole() && !target.force)) {
            return Err(DslError::Exists {
                name: target.dataset.clone(),
            });
        }
        let filled = if exists {
            self.receive_into_hidden(target, incoming).await?
        } else if !incoming.is_whole() && target.origin.is_none() {
            return Err(DslError::NotFound {
                name: target.dataset.clone(),
            });
        } else {
            self.receive_into_new(target, incoming).await?;
            target.dataset.clone()
        };
        Ok(ReceiveDestination {
            filled,
            is_new: !exists,
            resumed: None,
        })
    }

    /// Makes the dataset of a whole stream, without objects, or of a clone, with those of its origin.
    async fn receive_into_new(&self, target: &ReceiveTarget, incoming: &Incoming) -> Result<()> {
        namecheck::check(&target.dataset, incoming.kind()?)?;
        {
            let _names = self.pool().config.read().await;
            self.pool().check_receive_new(target, incoming).await?;
        }
        let request = Rc::new((target.clone(), incoming.clone()));
        let concerned = Concerned::subtree(&target.dataset);
        self.until_done(&concerned, || {
            let request = Rc::clone(&request);
            async move |this: &Self, tx: &Tx| {
                let (target, incoming) = &*request;
                let pool = this.pool();
                let new = pool.check_receive_new(target, incoming).await?;
                // What a clone writes must be younger than its origin.
                if new
                    .origin
                    .as_ref()
                    .is_some_and(|origin| origin.phys().creation_txg >= tx.txg().0)
                {
                    return Err(DslError::Again);
                }
                this.apply(pool.create_receiving(&new, target, incoming, tx))
                    .await
            }
        })
        .await
    }

    /// Makes the hidden dataset that fills up beside an existing one: a clone of the snapshot that the stream counts from, or an empty
    /// one; returns its name.
    async fn receive_into_hidden(
        &self,
        target: &ReceiveTarget,
        incoming: &Incoming,
    ) -> Result<String> {
        {
            let _names = self.pool().config.read().await;
            self.pool().check_receive(target, incoming, None).await?;
        }
        let request = Rc::new((target.clone(), incoming.clone()));
        let concerned = Concerned::subtree(&target.dataset);
        self.until_done(&concerned, || {
            let request = Rc::clone(&request);
            async move |this: &Self, tx: &Tx| {
                let (target, incoming) = &*request;
                let pool = this.pool();
                let source = pool
                    .check_receive(target, incoming, Some(tx.txg().0))
                    .await?;
                this.apply(pool.create_receive_clone(&source, target, incoming, tx))
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
        incoming: &Incoming,
    ) -> Result<ReceiveDestination> {
        let pool = self.pool();
        let _names = pool.config.read().await;
        let name = &target.dataset;
        let not_resumable = || DslError::NotResumable { name: name.clone() };
        let left = pool.unfinished_receive(name).await?;
        let filled = left.ok_or_else(not_resumable)?.0;
        let is_new = filled == *name;
        if !is_new && incoming.is_whole() && !target.force {
            return Err(DslError::ResumeExists { name: name.clone() });
        }
        let (found, state) = pool.idle_dataset(name, &filled).await?;
        let point = pool.resume_point(found.dataset, &incoming.begin).await?;
        let point = point.ok_or_else(not_resumable)?;
        check_large_blocks(&state, incoming)?;
        if let Some(by) = &incoming.redacted_by {
            let known = pool.redacted_by(&state).await?.unwrap_or_default();
            if known.len() != by.len() || !known.iter().all(|guid| by.contains(guid)) {
                return Err(RedactionError::Incompatible.into());
            }
        }
        if let Some(raw) = &incoming.raw {
            pool.check_raw_key(&found.dir, raw).await?;
        }
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
        pool.unfinished_receive(dataset).await
    }

    /// Submits a change again while another of the same txg prevents it.
    pub(super) async fn until_done<Task>(
        &self,
        concerned: &Concerned,
        task: impl Fn() -> Task,
    ) -> Result<()>
    where
        Task: AsyncFnOnce(&Self, &Tx) -> Result<()> + 'static,
    {
        loop {
            let attempt = self.submit_for("receive", concerned.clone(), task());
            match attempt.await {
                Err(DslError::Again) => {}
                other => return other,
            }
        }
    }

    /// Refuses what the pool has no features for.
    fn check_receive_features(&self, incoming: &Incoming) -> Result<()> {
        for (bit, feature) in [
            (stream_feature::LARGE_BLOCKS, "large_blocks"),
            (stream_feature::LARGE_DNODE, "large_dnode"),
            (stream_feature::RAW, "encryption"),
            (stream_feature::REDACTED, "redacted_datasets"),
            (stream_feature::LONG_NAMES, "longname"),
            (stream_feature::LARGE_MICROZAP, "large_microzap"),
            (stream_feature::LZ4, "lz4_compress"),
            (stream_feature::ZSTD, "zstd_compress"),
        ] {
            if incoming.has(bit) && !self.features().is_enabled(feature) {
                return Err(DslError::FeatureDisabled { feature });
            }
        }
        Ok(())
    }
}

/// A dataset with large blocks takes no stream that would have cut them.
fn check_large_blocks(state: &DatasetState, incoming: &Incoming) -> Result<()> {
    if state.features.borrow().contains("large_blocks")
        && !incoming.has(stream_feature::LARGE_BLOCKS)
    {
        return Err(DslError::LargeBlockMismatch);
    }
    Ok(())
}

impl DslPool {
    /// Checks a stream for a dataset that is not there.
    async fn check_receive_new(
        self: &Rc<Self>,
        target: &ReceiveTarget,
        incoming: &Incoming,
    ) -> Result<NewReceive> {
        let parent = self.check_new(&target.dataset, &[]).await?;
        let origin = self.check_origin(target, incoming).await?;
        let suite = if origin.is_none() && incoming.raw.is_none() {
            let key = target.key.as_ref();
            self.check_new_encryption(Some(&parent), &target.settings, key)
                .await?
        } else {
            None
        };
        if suite.is_some() && incoming.has(stream_feature::EMBED_DATA) {
            return Err(DslError::EmbeddedForEncrypted);
        }
        Ok(NewReceive {
            parent,
            origin,
            suite,
        })
    }

    /// The snapshot that a stream is received as a clone of, if it is.
    async fn check_origin(
        self: &Rc<Self>,
        target: &ReceiveTarget,
        incoming: &Incoming,
    ) -> Result<Option<Rc<DatasetState>>> {
        let Some(origin) = &target.origin else {
            return Ok(None);
        };
        let found = self.find(origin).await?;
        if found.snapshot.is_none() || self.kind_of(&found.dir).await? != incoming.kind()? {
            return Err(DslError::WrongKind {
                name: origin.clone(),
            });
        }
        let state = self.load_dataset(found.dataset, found.snapshot).await?;
        if !incoming.is_whole() && state.phys().guid != incoming.begin.from_guid {
            return Err(DslError::NoSource {
                name: target.dataset.clone(),
            });
        }
        // A whole stream frees what its snapshot has not only if the sender says so.
        if incoming.is_whole() && incoming.begin.flags & begin_flags::FREE_RECORDS == 0 {
            return Err(DslError::Unsupported {
                what: "receiving this stream as a clone",
            });
        }
        self.check_redaction(&state, incoming).await?;
        check_large_blocks(&state, incoming)?;
        self.check_crypt(&state, incoming).await?;
        Ok(Some(state))
    }

    /// Checks that a stream may come on top of a snapshot, which may have been received redacted.
    async fn check_redaction(&self, from: &DatasetState, incoming: &Incoming) -> Result<()> {
        match self.redacted_by(from).await? {
            Some(by) if !incoming.suits_redaction(&by) => Err(RedactionError::Incompatible.into()),
            _ => Ok(()),
        }
    }

    /// Checks that a stream may change a copy of a snapshot's contents: a raw one with the same keys, or another one with keys that
    /// are loaded.
    async fn check_crypt(
        self: &Rc<Self>,
        from: &Rc<DatasetState>,
        incoming: &Incoming,
    ) -> Result<()> {
        let dir = from.dir();
        if let Some(raw) = &incoming.raw {
            let table = self.meta_dnode(from).await?;
            return self.check_raw_source(from, &table, raw).await;
        }
        let encrypted = self.block_keys(&dir).await?.is_some();
        if encrypted && incoming.has(stream_feature::EMBED_DATA) {
            return Err(DslError::EmbeddedForEncrypted);
        }
        Ok(())
    }

    /// Makes the directory and head that a stream fills from nothing, or from the contents of its origin.
    async fn create_receiving(
        self: &Rc<Self>,
        new: &NewReceive,
        target: &ReceiveTarget,
        incoming: &Incoming,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "a receive begins in syncing context");
        let (name, creator) = (&target.dataset, target.creator);
        let dir = self.create_child(&new.parent, name, creator, tx).await?;
        let base = FirstContents {
            origin: new.origin.as_ref(),
            suite: new.suite,
        };
        self.create_receiving_head(&dir, base, target, incoming, tx)
            .await?;
        // Not in a later txg: an encryption root needs the place of its key, and a user property may say whose copy the dataset is.
        let found = Found {
            dataset: ObjectId(dir.phys().head_dataset_obj),
            dir: dir.clone(),
            snapshot: None,
        };
        self.apply_settings(&found, &target.settings, tx).await?;
        if target.marks {
            self.mark_received(&found, tx).await?;
        }
        self.create_livelist(&dir, tx).await
    }

    async fn create_receiving_head(
        self: &Rc<Self>,
        dir: &Rc<DslDir>,
        base: FirstContents<'_>,
        target: &ReceiveTarget,
        incoming: &Incoming,
        tx: &Tx,
    ) -> Result<()> {
        let flags = incoming.dataset_flags();
        let kind = incoming.kind()?;
        let state = match base.origin {
            Some(origin) => {
                let kept = origin.phys().flags & dataset_flags::CASE_INSENSITIVE;
                let state = self.create_head_from(dir, origin, flags | kept, tx).await?;
                self.share_key(&origin.dir(), dir, tx).await?;
                dir.kind.set(Some(kind));
                match &incoming.raw {
                    Some(raw) => self.prepare_raw_clone(&state, raw, tx).await?,
                    // It would become the dataset's own again when the clone takes its place, with blocks that were freed long ago.
                    None => self.clear_zil_header(&state, tx).await?,
                }
                state
            }
            None => {
                let state = self.create_head(dir, flags, tx).await?;
                // The stream brings all objects, the master node too.
                if let Some(raw) = &incoming.raw {
                    self.create_raw(&state, kind, raw, tx).await?;
                } else {
                    if let Some(suite) = base.suite {
                        let key = target.key.clone();
                        self.create_key(&state, suite, key, tx).await?;
                    }
                    let nothing = async |_: &_, _: &_, _: &_| Ok(());
                    self.create_objects(&state, kind, &[], nothing, tx).await?;
                }
                state
            }
        };
        // What its origin lacks the stream brings, but for what it leaves out itself.
        self.set_redacted_by(&state, incoming.redacted_by.clone(), tx)
            .await?;
        if target.resumable {
            let from = incoming.redacted_from.as_deref();
            self.start_resume_state(state.object, &incoming.begin, from, tx)
                .await?;
        }
        self.event("receive", &target.dataset, state.object, String::new(), tx);
        Ok(())
    }

    /// Opens what a stream fills; for a raw one without keys, whether they are loaded or not.
    pub(super) async fn open_filled(
        self: &Rc<Self>,
        found: Found,
        incoming: &Incoming,
    ) -> Result<Dataset> {
        if incoming.raw.is_none() {
            return self.open_dataset(found).await;
        }
        let state = self.load_dataset(found.dataset, None).await?;
        let dataset = self.hold_dataset(found).await?;
        self.open_objset_raw(&state).await?;
        Ok(dataset)
    }

    /// Checks a stream against the dataset it is for; returns its directory, and the snapshot that the stream is received on top of
    /// (none for a whole stream).
    // OpenZFS: module/zfs/dmu_recv.c, recv_begin_check_existing_impl
    async fn check_receive(
        self: &Rc<Self>,
        target: &ReceiveTarget,
        incoming: &Incoming,
        txg: Option<u64>,
    ) -> Result<(Rc<DslDir>, Option<Rc<DatasetState>>)> {
        let name = &target.dataset;
        let found = self.find(name).await?;
        if found.snapshot.is_some() {
            return Err(DslError::WrongKind { name: name.clone() });
        }
        let same_kind = self.kind_of(&found.dir).await? == incoming.kind()?;
        if !incoming.is_whole() && !same_kind {
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
        if incoming.is_whole() {
            if incoming.raw.is_some() || self.key_object(&found.dir).await?.is_some() {
                return Err(malformed("whole stream in place of an encrypted dataset"));
            }
            if zap::count(&self.mos, map).await? != 0 {
                return Err(DslError::HasSnapshots { name: name.clone() });
            }
            let prev = ObjectId(phys.prev_snap_obj);
            if !self.is_origin_snap(prev) {
                return Err(DslError::NoSource { name: name.clone() });
            }
            return Ok((found.dir, None));
        }
        let source = self
            .source_snapshot(&head, incoming.begin.from_guid)
            .await?;
        let Some(source) = source else {
            return Err(DslError::NoSource { name: name.clone() });
        };
        self.check_redaction(&source, incoming).await?;
        check_large_blocks(&source, incoming)?;
        let newest = ObjectId(phys.prev_snap_obj);
        // The IVs of a raw stream are those of its snapshot alone, not of one without a change since.
        let is_older = incoming.raw.is_some() && source.object != newest;
        let base = if target.force {
            source
        } else if is_older || self.is_modified_since(&head, &source).await? {
            return Err(DslError::Modified { name: name.clone() });
        } else {
            self.load_dataset(newest, None).await?
        };
        self.check_crypt(&base, incoming).await?;
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
    pub(crate) async fn is_modified_since(
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

    async fn create_receive_clone(
        self: &Rc<Self>,
        (parent, base): &(Rc<DslDir>, Option<Rc<DatasetState>>),
        target: &ReceiveTarget,
        incoming: &Incoming,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "a receive begins in syncing context");
        let dir = self.create_dir(Some(parent), CLONE_NAME, tx).await?;
        let base = FirstContents {
            origin: base.as_ref(),
            suite: None,
        };
        self.create_receiving_head(&dir, base, target, incoming, tx)
            .await
    }
}
