//! Blocks of intent logs: allocated in the open txg, written once and raw, chained by the log itself.
//!
//! Guarantees: a place given out is recorded in the space maps of its txg, so that it is either part of that txg's
//! state on disk or was never allocated; after a crash [`BlockStore::claim`] takes it again.
//! Does not know records, headers or checksums of log blocks.
// OpenZFS: module/zfs/zio.c, zio_alloc_zil (order of the classes, fields of the pointer)

use ondisk::{BlockPointer, ChecksumKind, Compression, Dva, NewBlock, ObjectType, Txg};
use runtime::IoBuf;
use vdev::{AllocationBias, IoClass, Location};

use crate::alloc::{AllocCursor, Request};
use crate::checks::padded;
use crate::error::corrupt;
use crate::{BlockKeys, BlockStore, Bookmark, CorruptReason, ZioError, checks};

impl BlockStore {
    /// Returns the vdevs that are for intent logs alone.
    #[must_use]
    pub fn log_vdevs(&self) -> Vec<u32> {
        self.with_allocator(|allocator| allocator.log_vdevs())
            .unwrap_or_default()
    }

    /// Whether the pool has vdevs for intent logs alone.
    #[must_use]
    pub fn has_logs(&self) -> bool {
        self.with_allocator(|allocator| !allocator.log_vdevs().is_empty())
            .unwrap_or(false)
    }

    /// Sets a block of `size` bytes (a multiple of 512, at most 16 MiB) aside for an intent log: one copy, on the log
    /// vdevs if one that takes writes has room, else on the ordinary ones if `anywhere`. `txg` is the open one or any that has not begun to sync. The
    /// pointer is complete but for its checksum words, which the log sets to the block's place in its chain. With the keys of an
    /// encrypted dataset it has salt and IV of a block to be encrypted.
    ///
    /// Nothing is written. The place becomes part of the space maps with `txg`; it is given back with
    /// [`BlockStore::free`] while a later (or the same) txg syncs.
    ///
    /// # Errors
    /// [`ZioError::NoSpace`]: no vdev has a free range of that size; [`ZioError::ReadOnly`], [`ZioError::BadSize`].
    pub async fn allocate_log(
        &self,
        txg: Txg,
        size: u64,
        anywhere: bool,
        keys: Option<&BlockKeys>,
    ) -> Result<BlockPointer, ZioError> {
        if size == 0 || size > ondisk::MAX_BLOCK_SIZE || !size.is_multiple_of(512) {
            return Err(ZioError::BadSize { size });
        }
        // Devices come and go; the caller is about to wait for one.
        self.with_allocator(|allocator| {
            let logs = allocator.log_vdevs().into_iter();
            allocator.close_logs(logs.filter(|&id| !self.tree().takes_writes(id)).collect());
        })?;
        let request = Request {
            txg,
            psize: size,
            copies: 1,
            cursor: AllocCursor::Log,
            class: AllocationBias::Log,
            only_class: !anywhere,
            dvas: Vec::new(),
        };
        let dvas = self.allocate(request).await?;
        let Some(&[dva]) = dvas.as_deref() else {
            return Err(ZioError::NoSpace { asize: size });
        };
        let mut bp = BlockPointer::new(&NewBlock {
            dvas: [dva, Dva::ABSENT, Dva::ABSENT],
            lsize: size,
            psize: size,
            compression: Compression::OFF,
            checksum_kind: ChecksumKind::ZILOG2,
            object_type: ObjectType::INTENT_LOG,
            level: 0,
            birth: txg,
            fill: 0,
            checksum: [0; 4],
        });
        if let Some(keys) = keys {
            bp.set_crypt(Some(keys.new_params()), None);
        }
        Ok(bp)
    }

    /// Writes the bytes of a log block (complete) to the front of its place: as many as the pointer says, or fewer
    /// when the rest of the block means nothing. They are durable after the next flush of that vdev
    /// ([`vdev::Tree::flush_vdev`]), or at once if they go `through`. Never waits for a suspended pool: the log falls back to the txg.
    ///
    /// # Errors
    /// [`ZioError::Device`] when no device of the vdev takes them; [`ZioError::Corrupt`] when the pointer is impossible
    /// or the bytes are more than it says.
    pub async fn write_log(
        &self,
        bp: &BlockPointer,
        bytes: IoBuf,
        through: bool,
    ) -> Result<(), ZioError> {
        let bookmark = Bookmark::default();
        let fail = |what| corrupt(bp, bookmark, CorruptReason::Pointer(what));
        if bytes.is_empty() || bytes.len() as u64 > bp.psize() {
            return Err(fail("not a log block of this size"));
        }
        for dva in bp.copies() {
            let mut at = self.log_location(bp, &dva)?;
            let ashift = self.tree().ashift(dva.vdev).unwrap_or(9);
            // Where columns and parity depend on the size, only the whole block can be written.
            if dva.asize == at.size {
                at.size = (bytes.len() as u64).next_multiple_of(1 << ashift);
            }
            let padded = padded(&bytes, at.size);
            let (tree, class) = (self.tree(), IoClass::SyncWrite);
            let written = match through {
                true => tree.write_through(at, padded, class).await,
                false => tree.write(at, padded, class).await,
            };
            written.map_err(|source| ZioError::Device { bookmark, source })?;
        }
        Ok(())
    }

    /// Reads a log block (all bytes the pointer says) and returns what `check` makes of it; copies it rejects are
    /// rewritten from one it accepts.
    ///
    /// # Errors
    /// [`ZioError::Corrupt`] when the pointer is impossible or no copy is accepted, which is how a chain ends;
    /// [`ZioError::Device`] when one that might be cannot be read.
    pub async fn read_log<T: Send + 'static>(
        &self,
        bp: &BlockPointer,
        check: vdev::Check<T>,
    ) -> Result<T, ZioError> {
        let bookmark = Bookmark::default();
        let mut failure = corrupt(bp, bookmark, CorruptReason::Pointer("no place"));
        for dva in bp.copies() {
            let at = self.log_location(bp, &dva)?;
            let class = IoClass::SyncRead;
            match self.tree().read_speculative(at, class, check.clone()).await {
                Ok(Some(value)) => return Ok(value),
                // No device's fault: each chain ends with a block that was never written.
                Ok(None) => {
                    if !matches!(failure, ZioError::Device { .. }) {
                        failure = corrupt(bp, bookmark, CorruptReason::Checksum);
                    }
                }
                Err(source) => failure = ZioError::Device { bookmark, source },
            }
        }
        Err(failure)
    }

    /// Writes what of a log block did not reach all devices before the power failed from what did, which is no device's
    /// fault. Durable after the next flush.
    ///
    /// # Errors
    /// [`ZioError::Corrupt`] when the pointer is impossible; [`ZioError::Device`] when its place is none.
    pub async fn complete_log(
        &self,
        bp: &BlockPointer,
        check: vdev::Check<()>,
    ) -> Result<(), ZioError> {
        for dva in bp.copies() {
            let at = self.log_location(bp, &dva)?;
            let completed = self
                .tree()
                .complete(at, IoClass::SyncRead, check.clone())
                .await;
            completed.map_err(|source| ZioError::Device {
                bookmark: Bookmark::default(),
                source,
            })?;
        }
        Ok(())
    }

    fn log_location(&self, bp: &BlockPointer, dva: &Dva) -> Result<Location, ZioError> {
        let fail = |what| corrupt(bp, Bookmark::default(), CorruptReason::Pointer(what));
        if bp.is_hole() || bp.is_embedded() || bp.is_gang() {
            return Err(fail("not a log block"));
        }
        let size = checks::check_dva(self.tree(), dva, bp.psize()).map_err(fail)?;
        Ok(Location {
            vdev: dva.vdev,
            offset: dva.offset,
            size,
            born: bp.physical_birth(),
        })
    }
}
