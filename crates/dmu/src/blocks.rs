//! Where blocks come from and go to: the pool's cache and store, or (in tests) a map in memory with the same rules.

use std::collections::BTreeMap;

use arc::CacheUse;
use ondisk::{BlockPointer, ObjectId, Txg};
use runtime::IoBuf;
use zio::{
    IoClass, PendingReference, Protection, ReadProps, StoredCrypt, StoredForm, WriteProps, ZioError,
};

/// Of blocks of one txg, by object and number: the bytes, and their compressed form.
pub(crate) type StoredForms = BTreeMap<(ObjectId, u64), (IoBuf, StoredForm)>;

/// Of blocks of dnodes of one txg, by number: salt, IV and MAC.
pub(crate) type DnodeCrypts = BTreeMap<u64, StoredCrypt>;

/// Blocks of one txg that were written before it syncs, by object and number.
pub(crate) type EarlyWrites = BTreeMap<(ObjectId, u64), Vec<EarlyWrite>>;

/// A block at its final location.
pub(crate) struct EarlyWrite {
    pub(crate) bp: BlockPointer,
    /// The bytes it was written with; `None` when the block has changed since, for old versions must not fill the memory.
    pub(crate) data: Option<IoBuf>,
}

/// The blocks of a pool as this layer uses them.
#[derive(Clone)]
pub(crate) enum Blocks {
    /// A real pool.
    Pool {
        /// Reads.
        cache: arc::Cache,
        /// Writes.
        store: zio::BlockStore,
        /// Of the dataset whose blocks these are.
        protection: Protection,
    },
    /// A map in memory.
    #[cfg(test)]
    Memory(crate::tests::memory::MemoryStore),
}

impl Blocks {
    pub(crate) async fn read(
        &self,
        bp: &BlockPointer,
        class: IoClass,
        bookmark: zio::Bookmark,
        keep: CacheUse,
    ) -> Result<IoBuf, ZioError> {
        match self {
            Self::Pool {
                cache, protection, ..
            } => {
                let props = ReadProps { class, bookmark };
                cache.read_for(bp, props, keep, protection.keys()).await
            }
            #[cfg(test)]
            Self::Memory(store) => store.read(bp).await,
        }
    }

    /// The block if it is in memory.
    pub(crate) fn peek(&self, bp: &BlockPointer) -> Option<IoBuf> {
        match self {
            Self::Pool {
                cache, protection, ..
            } => cache.peek(bp, protection.keys().is_some()),
            #[cfg(test)]
            Self::Memory(store) => store.peek(bp),
        }
    }

    /// Whether the block is in memory or on its way there.
    pub(crate) fn has(&self, bp: &BlockPointer) -> bool {
        match self {
            Self::Pool {
                cache, protection, ..
            } => cache.has(bp, protection.keys().is_some()),
            #[cfg(test)]
            Self::Memory(store) => store.peek(bp).is_some(),
        }
    }

    /// Bytes that may be read ahead now.
    pub(crate) fn prefetch_room(&self) -> u64 {
        match self {
            Self::Pool { cache, .. } => cache.prefetch_room() as u64,
            #[cfg(test)]
            Self::Memory(_) => u64::MAX,
        }
    }

    /// Writes a block and keeps its bytes in the cache; the devices have taken it when this returns.
    pub(crate) async fn write(
        &self,
        txg: Txg,
        data: IoBuf,
        props: &WriteProps,
        keep: CacheUse,
    ) -> Result<BlockPointer, ZioError> {
        match self {
            Self::Pool {
                cache,
                store,
                protection,
            } => {
                let written = store.write_forms(txg, data.clone(), props, protection);
                let (bp, stored) = written.await?;
                if !bp.is_hole() && !bp.is_embedded() {
                    cache.insert(&bp, data, stored, keep);
                }
                Ok(bp)
            }
            #[cfg(test)]
            Self::Memory(store) => store.write(txg, data, props).await,
        }
    }

    /// Begins to write a block (see [`zio::BlockStore::write_behind`]), in the form given if one is, and keeps its bytes in the cache.
    pub(crate) async fn write_later(
        &self,
        txg: Txg,
        data: IoBuf,
        form: Option<StoredForm>,
        props: &WriteProps,
        keep: CacheUse,
    ) -> Result<BlockPointer, ZioError> {
        match self {
            Self::Pool {
                cache,
                store,
                protection,
            } => {
                // The logical bytes of a block that came encrypted are not known.
                let is_known = form.as_ref().is_none_or(|form| form.crypt.is_none());
                let written = store.write_behind(txg, data.clone(), form, props, protection);
                let (bp, stored) = written.await?;
                if is_known && !bp.is_hole() && !bp.is_embedded() {
                    cache.insert(&bp, data, stored, keep);
                }
                Ok(bp)
            }
            #[cfg(test)]
            Self::Memory(store) => {
                drop(form);
                store.write(txg, data, props).await
            }
        }
    }

    /// Whether blocks written here can be read there: they are of one pool, and no key or the same one is needed.
    pub(crate) fn can_share_with(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Pool {
                    store, protection, ..
                },
                Self::Pool {
                    store: others,
                    protection: of_others,
                    ..
                },
            ) => {
                let same_key = match (protection, of_others) {
                    (Protection::None, Protection::None) => true,
                    (Protection::Keys(ours), Protection::Keys(theirs)) => ours.is_same(theirs),
                    _ => false,
                };
                store.is_same(others) && same_key
            }
            #[cfg(test)]
            _ => true,
        }
    }

    /// Checks that a block can have one more reference.
    pub(crate) async fn check_reference(&self, bp: &BlockPointer) -> Result<(), ZioError> {
        match self {
            Self::Pool { store, .. } => store.check_reference(bp).await,
            #[cfg(test)]
            Self::Memory(_) => Ok(()),
        }
    }

    /// Notes one more reference to a block, which the sync of `txg` counts unless what is returned is dropped before.
    pub(crate) fn refer(&self, txg: Txg, bp: &BlockPointer) -> PendingReference {
        match self {
            Self::Pool { store, .. } => store.pending_references().add(txg, bp),
            #[cfg(test)]
            Self::Memory(store) => store.references().add(txg, bp),
        }
    }

    /// Drops a block from memory that can no longer be read.
    pub(crate) fn forget(&self, bp: &BlockPointer) {
        match self {
            Self::Pool { cache, .. } => cache.forget(bp),
            #[cfg(test)]
            Self::Memory(_) => {}
        }
    }

    /// Deflated bytes a block takes.
    pub(crate) fn dsize(&self, bp: &BlockPointer) -> u64 {
        match self {
            Self::Pool { store, .. } => store.dsize(bp),
            #[cfg(test)]
            Self::Memory(_) => bp.asize(),
        }
    }
}
