//! The checkpoint of a pool: one older state of everything, kept so that an import can go back to it.
//!
//! ```text
//! none --checkpoint--> exists --discard--> discarding --its places freed, txg by txg--> none
//!                        \--import with rewind--> none, at the older state
//! ```
//! Its uberblock lies in the directory of the meta-objset. While it exists, blocks of its state are never allocated anew
//! (`zio` and `checkpoint_space`); what would change devices it knows is refused.
// OpenZFS: module/zfs/spa_checkpoint.c

mod state;

use std::cell::Cell;
use std::rc::{Rc, Weak};

use dmu::{Objset, Tx, zap};
use ondisk::bytes::u64s;
use ondisk::{ObjectId, Txg, Uberblock};

pub(crate) use self::state::CheckpointState;
use crate::PoolError;
use crate::objects::DIRECTORY;
use crate::pool::{ImportedPool, Pool};
use crate::space::checkpoint::CheckpointVdev;
use crate::status::CheckpointStatus;

/// Key of the uberblock in the directory.
const ENTRY: &str = "com.delphix:zpool_checkpoint";
const FEATURE: &str = "zpool_checkpoint";
/// Entries freed in one txg while a checkpoint is discarded, in bytes.
const DISCARD_BYTES: u64 = 1 << 20;
const _: () = assert!(DISCARD_BYTES.is_multiple_of(8), "entries are words");

impl Pool {
    /// Keeps the state of the pool as it is now (`zpool checkpoint`). Durable on return.
    ///
    /// # Errors
    /// `CheckpointExists`, `DiscardingCheckpoint`; `Unsupported` when the feature is not enabled; `ReadOnly`, `Suspended`.
    pub async fn checkpoint(&self) -> Result<(), PoolError> {
        let imported = &self.0;
        imported.writable()?;
        imported.refuse_with_checkpoint()?;
        imported.refuse_with_removal()?;
        imported.refuse_with_expansion()?;
        if !imported.hierarchy().features().is_enabled(FEATURE) {
            return Err(PoolError::Invalid(
                "unsupported version or feature".to_owned(),
            ));
        }
        // All that was asked for so far belongs to it.
        self.sync().await?;
        imported
            .run_early(async move |imported: Rc<ImportedPool>, tx: Rc<Tx>| {
                imported.create_checkpoint(&tx).await
            })
            .await
    }

    /// Discards the checkpoint (`zpool checkpoint -d`). On return it cannot be rewound to any more; what it kept is freed in
    /// the background, also after another import.
    ///
    /// # Errors
    /// `NoCheckpoint`, `DiscardingCheckpoint`, `ReadOnly`, `Suspended`.
    pub async fn discard_checkpoint(&self) -> Result<(), PoolError> {
        let imported = &self.0;
        imported.writable()?;
        imported
            .run_early(async move |imported: Rc<ImportedPool>, tx: Rc<Tx>| {
                if imported.activities.checkpoint.discarding.get() {
                    return Err(PoolError::DiscardingCheckpoint);
                }
                if imported.activities.checkpoint.uberblock.get().is_none() {
                    return Err(PoolError::NoCheckpoint);
                }
                zap::remove(imported.mos(), DIRECTORY, ENTRY, &tx).await?;
                imported.activities.checkpoint.uberblock.set(None);
                imported.activities.checkpoint.discarding.set(true);
                imported.store().set_checkpoint(None);
                let text = "started discarding checkpointed state from the pool";
                imported
                    .log_internal("spa discard checkpoint", text, &tx)
                    .await
            })
            .await?;
        imported.discard_in_background();
        Ok(())
    }
}

impl ImportedPool {
    /// The task of [`Pool::checkpoint`], before anything of its txg is freed.
    async fn create_checkpoint(&self, tx: &Tx) -> Result<(), PoolError> {
        assert!(
            tx.is_syncing(),
            "create checkpoint happens in syncing context"
        );
        self.refuse_with_checkpoint()?;
        self.refuse_with_removal()?;
        self.refuse_with_expansion()?;
        let mut uberblock = self.sync.last_uberblock();
        if uberblock.txg.next() != tx.txg() {
            return Err(PoolError::Busy);
        }
        uberblock.checkpoint_txg = uberblock.txg;
        // What is kept of each vdev is noted in its ZAP.
        self.create_vdev_objects(tx).await?;
        let mut bytes = vec![0; Uberblock::SIZE];
        uberblock.encode(&mut bytes);
        let value = zap::ZapValue::U64(u64s(&bytes).collect());
        zap::add(self.mos(), DIRECTORY, ENTRY, &value, tx).await?;
        self.hierarchy().features().incr(FEATURE, tx).await?;
        self.activities.checkpoint.uberblock.set(Some(uberblock));
        self.store().set_checkpoint(Some(uberblock.txg));
        let text = format!("checkpointed uberblock txg={}", uberblock.txg);
        self.log_internal("spa checkpoint", &text, tx).await
    }

    /// Refuses what a pool with a checkpoint, or one that is being discarded, does not do.
    ///
    /// # Errors
    /// `CheckpointExists`, `DiscardingCheckpoint`.
    pub(crate) fn refuse_with_checkpoint(&self) -> Result<(), PoolError> {
        if self.activities.checkpoint.discarding.get() {
            return Err(PoolError::DiscardingCheckpoint);
        }
        match self.activities.checkpoint.uberblock.get() {
            Some(_) => Err(PoolError::CheckpointExists),
            None => Ok(()),
        }
    }

    /// Reads what there is of a checkpoint at import.
    pub(crate) async fn load_checkpoint(&self) -> Result<(), PoolError> {
        for place in self.checkpoint_vdevs() {
            self.space().open_checkpoint_map(&place).await?;
        }
        self.store()
            .set_checkpoint_space(self.space().checkpoint_bytes_by_vdev());
        let uberblock = stored(self.mos()).await?;
        self.activities.checkpoint.uberblock.set(uberblock);
        self.store()
            .set_checkpoint(uberblock.map(|checkpointed| checkpointed.txg));
        let active = self.hierarchy().features().is_active(FEATURE);
        self.activities
            .checkpoint
            .discarding
            .set(active && uberblock.is_none());
        Ok(())
    }

    /// The vdevs with their ZAPs.
    fn checkpoint_vdevs(&self) -> Vec<CheckpointVdev> {
        let config = self.tree().config();
        let tops = self.tree().tops().into_iter();
        tops.filter_map(|top| {
            let mut known = config.tops.iter();
            let vdev = known.find(|vdev| vdev.guid == top.guid)?;
            let vdev_zap = vdev.zap_top.filter(|&object| object != 0)?;
            Some(CheckpointVdev {
                top,
                vdev_zap: ObjectId(vdev_zap),
            })
        })
        .collect()
    }

    /// Writes down what one pass of `txg` freed but for the checkpoint. Syncing context.
    pub(crate) async fn write_checkpoint_frees(
        &self,
        txg: Txg,
        pass: u32,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(
            tx.is_syncing(),
            "write checkpoint frees happens in syncing context"
        );
        let checkpointed = self.store().take_checkpoint_frees(txg);
        if checkpointed.is_empty() {
            return Ok(());
        }
        let places = self.checkpoint_vdevs();
        let written = self
            .space()
            .write_checkpoint_frees(checkpointed, &places, (txg, pass), tx)
            .await;
        let features = self.hierarchy().features();
        for _ in 0..written? {
            features.incr("spacemap_histogram", tx).await?;
        }
        self.store()
            .set_checkpoint_space(self.space().checkpoint_bytes_by_vdev());
        Ok(())
    }

    /// Goes on to free what a checkpoint kept, if it is being discarded.
    pub(crate) fn discard_in_background(self: &Rc<Self>) {
        if !self.activities.checkpoint.discarding.get() || self.session.readonly {
            return;
        }
        let weak = Rc::downgrade(self);
        let task = self
            .handle()
            .spawn("discarding a checkpoint", discard(weak));
        self.activities.checkpoint.task.replace(Some(task));
    }

    /// Ends the work on a checkpoint before the pool is closed; the next import continues it.
    pub(crate) async fn stop_discarding(&self) {
        self.activities.checkpoint.stopped.set(true);
        let task = self.activities.checkpoint.task.borrow_mut().take();
        if let Some(task) = task {
            task.await;
        }
    }

    /// Frees some of what a checkpoint kept; returns whether there is more.
    async fn discard_batch(self: &Rc<Self>) -> Result<bool, PoolError> {
        let more = Rc::new(Cell::new(true));
        let from_task = more.clone();
        self.run_in_sync(async move |imported: Rc<Self>, tx: Rc<Tx>| {
            let features = imported.hierarchy().features();
            let places = imported.checkpoint_vdevs();
            let taken = imported
                .space()
                .take_checkpoint_frees(DISCARD_BYTES, &places, &tx);
            if let Some((vdev, ranges, long_header)) = taken.await? {
                for range in ranges {
                    imported.store().free_checkpointed(tx.txg(), vdev, &range)?;
                }
                if long_header {
                    features.decr("spacemap_histogram", &tx).await?;
                }
                imported
                    .store()
                    .set_checkpoint_space(imported.space().checkpoint_bytes_by_vdev());
                return Ok(());
            }
            features.decr(FEATURE, &tx).await?;
            imported.activities.checkpoint.discarding.set(false);
            from_task.set(false);
            let text = "finished discarding checkpointed state from the pool";
            imported
                .log_internal("spa discard checkpoint", text, &tx)
                .await
        })
        .await?;
        Ok(more.get())
    }

    /// Returns what `zpool status` says of the checkpoint.
    pub(crate) fn checkpoint_status(&self) -> Option<CheckpointStatus> {
        let uberblock = self.activities.checkpoint.uberblock.get();
        if uberblock.is_none() && !self.activities.checkpoint.discarding.get() {
            return None;
        }
        let checkpointed = self.space().checkpoint_bytes_by_vdev();
        Some(CheckpointStatus {
            time: uberblock.map(|checkpointed| checkpointed.timestamp),
            bytes: checkpointed.iter().map(|(_, bytes)| bytes).sum(),
        })
    }

    /// The txg of the checkpoint to which this import has gone back, until its first txg is written.
    pub(crate) fn rewound_to(&self) -> Option<Txg> {
        Some(self.sync.last_uberblock().checkpoint_txg).filter(|txg| txg.0 != 0)
    }
}

/// Frees what a checkpoint kept, until nothing is left or the pool is closed.
async fn discard(weak: Weak<ImportedPool>) {
    while let Some(imported) = weak.upgrade() {
        if imported.activities.checkpoint.stopped.get() {
            return;
        }
        match imported.discard_batch().await {
            Ok(true) => {}
            // It goes on after the next import if it could not now.
            Ok(false) | Err(_) => break,
        }
    }
    // Replacements that had to wait.
    if let Some(imported) = weak.upgrade()
        && !imported.activities.checkpoint.stopped.get()
    {
        drop(imported.finish_replacements().await);
    }
}

/// Returns the uberblock of the checkpoint that a meta-objset knows.
pub(crate) async fn stored(mos: &Objset) -> Result<Option<Uberblock>, PoolError> {
    let damaged = || PoolError::Corrupt("the checkpoint's uberblock is damaged".to_owned());
    match zap::lookup(mos, DIRECTORY, ENTRY).await? {
        Some(zap::ZapValue::U64(words)) => {
            let bytes = ondisk::bytes::of_u64s(&words);
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
