//! The empty bpobj that the entries of all deadlists share until a block is added to them.
//!
//! The feature `empty_bpobj` counts the references; without the feature every entry gets its own
//! list. OpenZFS: module/zfs/bpobj.c, `bpobj_alloc_empty`.

use std::cell::Cell;

use dmu::{Objset, Tx, zap};
use ondisk::ObjectId;

use crate::bpobj::Bpobj;
use crate::error::Result;
use crate::features::Features;
use crate::object_directory::{EMPTY_BPOBJ, LIST_BLOCK, OBJECT_DIRECTORY};

const FEATURE: &str = "empty_bpobj";

/// The shared empty bpobj of a pool.
pub(crate) struct EmptyBpobj {
    mos: Objset,
    features: Features,
    object: Cell<ObjectId>,
}

impl EmptyBpobj {
    pub(crate) async fn open(mos: &Objset, features: &Features) -> Result<Self> {
        let object = if features.is_active(FEATURE) {
            zap::lookup_u64(mos, OBJECT_DIRECTORY, EMPTY_BPOBJ)
                .await?
                .unwrap_or(0)
        } else {
            0
        };
        let object = Cell::new(ObjectId(object));
        Ok(Self {
            mos: mos.clone(),
            features: features.clone(),
            object,
        })
    }

    /// Whether this is the shared list.
    pub(crate) fn is_shared(&self, object: ObjectId) -> bool {
        object.0 != 0 && object == self.object.get()
    }

    /// Whether new bpobjs count freed entries, as OpenZFS creates them in pools with livelists.
    pub(crate) fn counts_freed(&self) -> bool {
        self.features.is_active("livelist")
    }

    /// An empty list: the shared one if the feature allows, else a new one. Syncing context.
    pub(crate) async fn alloc(&self, tx: &Tx) -> Result<ObjectId> {
        assert!(tx.is_syncing(), "alloc happens in syncing context");
        match self.alloc_many(1, tx).await? {
            Some(object) => Ok(object),
            None if self.counts_freed() => Bpobj::create_counting_freed(&self.mos, tx).await,
            None => Bpobj::create(&self.mos, LIST_BLOCK, tx).await,
        }
    }

    /// The shared list, with several references; `None` when the feature does not allow it. Syncing
    /// context.
    pub(crate) async fn alloc_many(&self, count: u64, tx: &Tx) -> Result<Option<ObjectId>> {
        let Some(uses) = self.features.refcount(FEATURE) else {
            return Ok(None);
        };
        if self.object.get().0 == 0 {
            let object = Bpobj::create(&self.mos, LIST_BLOCK, tx).await?;
            zap::add_u64(&self.mos, OBJECT_DIRECTORY, EMPTY_BPOBJ, object.0, tx).await?;
            self.object.set(object);
        }
        self.features
            .set_refcount(FEATURE, uses + count, tx)
            .await?;
        Ok(Some(self.object.get()))
    }

    /// Releases one reference; the last one frees the bpobj. Syncing context.
    pub(crate) async fn release(&self, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "release happens in syncing context");
        self.release_many(1, tx).await
    }

    /// Appends a whole list to another one; of the shared list only a reference is released. Syncing context.
    pub(crate) async fn enqueue(&self, object: ObjectId, to: &Bpobj, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "enqueue happens in syncing context");
        if self.is_shared(object) {
            self.release(tx).await
        } else {
            to.enqueue(object, tx).await
        }
    }

    /// Releases several references. Syncing context.
    pub(crate) async fn release_many(&self, count: u64, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "release many happens in syncing context");
        if count == 0 {
            return Ok(());
        }
        let uses = self.features.refcount(FEATURE).unwrap_or(0);
        let left = uses.saturating_sub(count);
        self.features.set_refcount(FEATURE, left, tx).await?;
        if !self.features.is_active(FEATURE) {
            zap::remove(&self.mos, OBJECT_DIRECTORY, EMPTY_BPOBJ, tx).await?;
            Bpobj::destroy(&self.mos, self.object.get(), tx).await?;
            self.object.set(ObjectId(0));
        }
        Ok(())
    }
}
