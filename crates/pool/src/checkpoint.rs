//! The checkpoint of a pool: one older state of everything, kept so that an import can go back to it.
//!
//! ```text
//! none --checkpoint--> exists --discard--> discarding --its places freed, group by group--> none
//!                        \--import with rewind--> none, at the older state
//! ```
//! Its uberblock lies in the directory of the meta-objset. While it exists, blocks of its state are never allocated anew
//! (`zio` and `kept`); what would change devices it knows is refused.
// OpenZFS: module/zfs/spa_checkpoint.c

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use dmu::{Objset, Tx, zap};
use ondisk::bytes::u64s;
use ondisk::{ObjectId, Txg, Uberblock};
use runtime::JoinHandle;

use crate::PoolError;
use crate::kept::KeptPlace;
use crate::pool::{DIRECTORY, Inner, Pool};
use crate::status::CheckpointStatus;

/// Key of the uberblock in the directory.
const ENTRY: &str = "com.delphix:zpool_checkpoint";
const FEATURE: &str = "zpool_checkpoint";
/// Entries freed in one group while a checkpoint is discarded, in bytes.
const DISCARD_BYTES: u64 = 1 << 20;

/// What is known of the checkpoint.
#[derive(Default)]
pub(crate) struct State {
    uberblock: Cell<Option<Uberblock>>,
    /// What it kept is being freed.
    discarding: Cell<bool>,
    /// The pool is being left.
    stopped: Cell<bool>,
    task: RefCell<Option<JoinHandle<()>>>,
}

impl Pool {
    /// Keeps the state of the pool as it is now (`zpool checkpoint`). Durable on return.
    ///
    /// # Errors
    /// `CheckpointExists`, `DiscardingCheckpoint`; `Unsupported` when the feature is not enabled; `ReadOnly`, `Suspended`.
    pub async fn checkpoint(&self) -> Result<(), PoolError> {
        let inner = &self.0;
        inner.writable()?;
        inner.refuse_with_checkpoint()?;
        inner.refuse_with_removal()?;
        if !inner.hierarchy.features().is_enabled(FEATURE) {
            return Err(PoolError::Invalid(
                "unsupported version or feature".to_owned(),
            ));
        }
        // All that was asked for so far belongs to it.
        self.sync().await?;
        inner
            .run_early(async move |inner: Rc<Inner>, tx: Rc<Tx>| inner.keep_state(&tx).await)
            .await
    }

    /// Gives the checkpoint up (`zpool checkpoint -d`). On return it cannot be rewound to any more; what it kept is freed in
    /// the background, also after another import.
    ///
    /// # Errors
    /// `NoCheckpoint`, `DiscardingCheckpoint`, `ReadOnly`, `Suspended`.
    pub async fn discard_checkpoint(&self) -> Result<(), PoolError> {
        let inner = &self.0;
        inner.writable()?;
        inner
            .run_early(async move |inner: Rc<Inner>, tx: Rc<Tx>| {
                if inner.checkpoint.discarding.get() {
                    return Err(PoolError::DiscardingCheckpoint);
                }
                if inner.checkpoint.uberblock.get().is_none() {
                    return Err(PoolError::NoCheckpoint);
                }
                zap::remove(&inner.mos, DIRECTORY, ENTRY, &tx).await?;
                inner.checkpoint.uberblock.set(None);
                inner.checkpoint.discarding.set(true);
                inner.store().set_checkpoint(None);
                let text = "started discarding checkpointed state from the pool";
                inner
                    .log_internal("spa discard checkpoint", text, &tx)
                    .await
            })
            .await?;
        inner.discard_in_background();
        Ok(())
    }
}

impl Inner {
    /// The task of [`Pool::checkpoint`], before anything of its group is freed.
    async fn keep_state(&self, tx: &Tx) -> Result<(), PoolError> {
        self.refuse_with_checkpoint()?;
        self.refuse_with_removal()?;
        let mut uberblock = self.last_uberblock.get();
        if uberblock.txg.next() != tx.txg() {
            return Err(PoolError::Busy);
        }
        uberblock.checkpoint_txg = uberblock.txg;
        // What is kept of each vdev is noted in its dictionary.
        self.create_vdev_objects(tx).await?;
        let mut bytes = vec![0; Uberblock::SIZE];
        uberblock.encode(&mut bytes);
        let value = zap::ZapValue::U64(u64s(&bytes).collect());
        zap::add(&self.mos, DIRECTORY, ENTRY, &value, tx).await?;
        self.hierarchy.features().incr(FEATURE, tx).await?;
        self.checkpoint.uberblock.set(Some(uberblock));
        self.store().set_checkpoint(Some(uberblock.txg));
        let text = format!("checkpointed uberblock txg={}", uberblock.txg);
        self.log_internal("spa checkpoint", &text, tx).await
    }

    /// Refuses what a pool with a checkpoint, or one that is being discarded, does not do.
    ///
    /// # Errors
    /// `CheckpointExists`, `DiscardingCheckpoint`.
    pub(crate) fn refuse_with_checkpoint(&self) -> Result<(), PoolError> {
        if self.checkpoint.discarding.get() {
            return Err(PoolError::DiscardingCheckpoint);
        }
        match self.checkpoint.uberblock.get() {
            Some(_) => Err(PoolError::CheckpointExists),
            None => Ok(()),
        }
    }

    /// Reads what there is of a checkpoint at import.
    pub(crate) async fn load_checkpoint(&self) -> Result<(), PoolError> {
        for place in self.kept_places() {
            self.space.open_kept(&place).await?;
        }
        self.store().set_kept(self.space.kept_bytes());
        let uberblock = stored(&self.mos).await?;
        self.checkpoint.uberblock.set(uberblock);
        self.store().set_checkpoint(uberblock.map(|kept| kept.txg));
        let active = self.hierarchy.features().is_active(FEATURE);
        self.checkpoint
            .discarding
            .set(active && uberblock.is_none());
        Ok(())
    }

    /// The vdevs with their dictionaries.
    fn kept_places(&self) -> Vec<KeptPlace> {
        let config = self.tree.config();
        let tops = self.tree.tops().into_iter();
        tops.filter_map(|top| {
            let mut known = config.tops.iter();
            let vdev = known.find(|vdev| vdev.guid == top.guid)?;
            let dictionary = vdev.zap_top.filter(|&object| object != 0)?;
            Some(KeptPlace {
                top,
                dictionary: ObjectId(dictionary),
            })
        })
        .collect()
    }

    /// Writes down what one pass of `txg` freed but for the checkpoint. Syncing context.
    pub(crate) async fn write_kept(&self, txg: Txg, pass: u32, tx: &Tx) -> Result<(), PoolError> {
        let kept = self.store().take_kept(txg);
        if kept.is_empty() {
            return Ok(());
        }
        let places = self.kept_places();
        let written = self.space.write_kept(kept, &places, (txg, pass), tx).await;
        let features = self.hierarchy.features();
        for _ in 0..written? {
            features.incr("spacemap_histogram", tx).await?;
        }
        self.store().set_kept(self.space.kept_bytes());
        Ok(())
    }

    /// Goes on to free what a checkpoint kept, if it is being discarded.
    pub(crate) fn discard_in_background(self: &Rc<Self>) {
        if !self.checkpoint.discarding.get() || self.readonly {
            return;
        }
        let weak = Rc::downgrade(self);
        let task = self.handle.spawn("discarding a checkpoint", discard(weak));
        self.checkpoint.task.replace(Some(task));
    }

    /// Ends the work on a checkpoint before the pool is left; the next import goes on with it.
    pub(crate) async fn stop_discarding(&self) {
        self.checkpoint.stopped.set(true);
        let task = self.checkpoint.task.borrow_mut().take();
        if let Some(task) = task {
            task.await;
        }
    }

    /// Frees some of what a checkpoint kept; returns whether there is more.
    async fn discard_some(self: &Rc<Self>) -> Result<bool, PoolError> {
        let more = Rc::new(Cell::new(true));
        let told = more.clone();
        self.run_in_sync(async move |inner: Rc<Self>, tx: Rc<Tx>| {
            let features = inner.hierarchy.features();
            let places = inner.kept_places();
            let taken = inner.space.take_kept_tail(DISCARD_BYTES, &places, &tx);
            if let Some((vdev, ranges, long_header)) = taken.await? {
                for range in ranges {
                    inner.store().free_kept(tx.txg(), vdev, &range)?;
                }
                if long_header {
                    features.decr("spacemap_histogram", &tx).await?;
                }
                inner.store().set_kept(inner.space.kept_bytes());
                return Ok(());
            }
            features.decr(FEATURE, &tx).await?;
            inner.checkpoint.discarding.set(false);
            told.set(false);
            let text = "finished discarding checkpointed state from the pool";
            inner
                .log_internal("spa discard checkpoint", text, &tx)
                .await
        })
        .await?;
        Ok(more.get())
    }

    /// Returns what `zpool status` says of the checkpoint.
    pub(crate) fn checkpoint_status(&self) -> Option<CheckpointStatus> {
        let uberblock = self.checkpoint.uberblock.get();
        if uberblock.is_none() && !self.checkpoint.discarding.get() {
            return None;
        }
        let kept = self.space.kept_bytes();
        Some(CheckpointStatus {
            time: uberblock.map(|kept| kept.timestamp),
            bytes: kept.iter().map(|(_, bytes)| bytes).sum(),
        })
    }

    /// The txg of the checkpoint to which this import has gone back, until its first group is written.
    pub(crate) fn rewound_to(&self) -> Option<Txg> {
        Some(self.last_uberblock.get().checkpoint_txg).filter(|txg| txg.0 != 0)
    }
}

/// Frees what a checkpoint kept, until there is nothing left or the pool is left.
async fn discard(weak: Weak<Inner>) {
    while let Some(inner) = weak.upgrade() {
        if inner.checkpoint.stopped.get() {
            return;
        }
        match inner.discard_some().await {
            Ok(true) => {}
            // It goes on after the next import if it could not now.
            Ok(false) | Err(_) => break,
        }
    }
    // Replacements that had to wait.
    if let Some(inner) = weak.upgrade()
        && !inner.checkpoint.stopped.get()
    {
        drop(inner.finish_replacements().await);
    }
}

/// Returns the uberblock of the checkpoint that a meta-objset knows.
pub(crate) async fn stored(mos: &Objset) -> Result<Option<Uberblock>, PoolError> {
    let damaged = || PoolError::Corrupt("the checkpoint's uberblock is damaged".to_owned());
    match zap::lookup(mos, DIRECTORY, ENTRY).await? {
        Some(zap::ZapValue::U64(words)) => {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let uberblock = Uberblock::decode(&bytes).map_err(|_| damaged())?;
            if uberblock.txg.0 == 0 || uberblock.checkpoint_txg != uberblock.txg {
                return Err(damaged());
            }
            Ok(Some(uberblock))
        }
        Some(_) => Err(damaged()),
        None => Ok(None),
    }
}
