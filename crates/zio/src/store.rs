//! The block store: the one door to the blocks of a pool.

use std::rc::Rc;

use ondisk::{BlockPointer, ChecksumKind, Compression, ObjectType, Txg};
use runtime::{Handle, IoBuf};
use vdev::{IoClass, Tree};

use crate::{Bookmark, MetaSource, MetaslabChange, MetaslabSummary, Space, ZioError};

/// Facts of the pool that block I/O depends on.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The pool's checksum salt (`org.illumos:checksum_salt`), zeros if it has none yet.
    pub salt: [u8; 32],
}

/// How to read a block.
#[derive(Debug, Clone, Copy)]
pub struct ReadProps {
    /// Priority.
    pub class: IoClass,
    /// Whose block, for errors.
    pub bookmark: Bookmark,
}

/// How to write a block. Numbers are the on-disk enumerations.
#[derive(Debug, Clone, Copy)]
pub struct WriteProps {
    /// Object type.
    pub object_type: ObjectType,
    /// Level, 0 = data.
    pub level: u8,
    /// Compression, already resolved (never inherit or on).
    pub compression: Compression,
    /// zstd level code or 0 for the default; ignored for other algorithms.
    pub zstd_level: u8,
    /// Checksum, already resolved (never inherit or on).
    pub checksum: ChecksumKind,
    /// Number of copies, 1 to 3.
    pub copies: u8,
    /// Whether an embedded block pointer may be made (feature active and the caller stores the pointer in a dnode or
    /// an indirect block; never for objsets and dnodes).
    pub allow_embedded: bool,
    /// Fill count to store.
    pub fill: u64,
    /// The pointer being replaced. If it was born in the same txg with the same psize and copies, it is overwritten in
    /// place; otherwise it is left alone (the caller frees it).
    pub rewrite: Option<BlockPointer>,
    /// Logical birth of a hole is recorded (hole_birth active and the block had a birth before).
    pub hole_birth: bool,
    /// Priority.
    pub class: IoClass,
    /// Whose block, for errors.
    pub bookmark: Bookmark,
}

/// Counters of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Blocks read from devices.
    pub reads: u64,
    /// Blocks written to devices.
    pub writes: u64,
    /// Logical bytes of those writes.
    pub written_logical_bytes: u64,
    /// Physical bytes of those writes (one copy).
    pub written_physical_bytes: u64,
    /// Blocks that became holes, embedded, were rewritten in place, were split into gangs.
    pub holes: u64,
    /// See `holes`.
    pub embedded: u64,
    /// See `holes`.
    pub rewrites: u64,
    /// See `holes`.
    pub gangs: u64,
    /// Blocks no copy of which was good.
    pub corrupt: u64,
}

/// The blocks of one pool. Clones share it.
#[derive(Clone)]
pub struct BlockStore(Rc<Inner>);

struct Inner {}

impl BlockStore {
    /// Makes a store that can read. Call [`BlockStore::activate`] before the first write.
    pub fn new(handle: &Handle, tree: Tree, options: StoreOptions) -> Self {
        let _ = (handle, tree, options);
        unimplemented!()
    }

    /// Returns the device tree.
    pub fn tree(&self) -> &Tree {
        unimplemented!()
    }

    /// Sets the checksum salt once it is known (a pool's salt is stored in its meta-objset).
    pub fn set_salt(&self, salt: [u8; 32]) {
        let _ = salt;
    }

    /// Gives the store its allocator. `summaries` has one entry per metaslab that was ever used; all others are free.
    /// For a new pool it is empty. `source` is asked when a metaslab is first allocated from.
    pub fn activate(&self, source: Rc<dyn MetaSource>, summaries: &[MetaslabSummary]) {
        let _ = (source, summaries);
    }

    /// Returns the logical bytes of a block: exactly lsize, verified and decompressed. Holes read as zeros.
    pub async fn read(&self, bp: &BlockPointer, props: ReadProps) -> Result<IoBuf, ZioError> {
        let _ = (bp, props);
        unimplemented!()
    }

    /// Writes a block born in `txg` and returns its pointer. `data` is the logical block (a multiple of 512, at most
    /// 16 MiB). On return the devices have taken the bytes; they are durable after the next flush.
    pub async fn write(
        &self,
        txg: Txg,
        data: IoBuf,
        props: &WriteProps,
    ) -> Result<BlockPointer, ZioError> {
        let _ = (txg, data, props);
        unimplemented!()
    }

    /// Frees a block in `txg` (the syncing one): it is free in that txg's space-map changes, and can be handed out again
    /// after txg + 2 has synced. Holes and embedded pointers are ignored. Gang headers are read, hence async.
    pub async fn free(&self, txg: Txg, bp: &BlockPointer) -> Result<(), ZioError> {
        let _ = (txg, bp);
        unimplemented!()
    }

    /// Marks a block as allocated that was written by a log before the crash. Idempotent within one txg.
    pub async fn claim(&self, txg: Txg, bp: &BlockPointer) -> Result<(), ZioError> {
        let _ = (txg, bp);
        unimplemented!()
    }

    /// Returns the space a block is accounted with: sum over its copies of asize/512 times the vdev's deflate ratio.
    pub fn dsize(&self, bp: &BlockPointer) -> u64 {
        let _ = bp;
        unimplemented!()
    }

    /// Returns the space of the pool.
    pub fn space(&self) -> Space {
        unimplemented!()
    }

    /// Returns size and allocated bytes of one top-level vdev.
    pub fn vdev_space(&self, vdev: u32) -> Space {
        let _ = vdev;
        unimplemented!()
    }

    /// Returns and forgets the changes recorded for `txg` since the last call (once per sync pass).
    pub fn take_changes(&self, txg: Txg) -> Vec<MetaslabChange> {
        let _ = txg;
        unimplemented!()
    }

    /// Returns whether [`BlockStore::take_changes`] would return anything.
    pub fn has_changes(&self, txg: Txg) -> bool {
        let _ = txg;
        unimplemented!()
    }

    /// Returns the free ranges of a metaslab as its space map must state them after `txg` (for condensing), loading it
    /// if necessary.
    pub async fn free_ranges(
        &self,
        vdev: u32,
        metaslab: u32,
    ) -> Result<Vec<std::ops::Range<u64>>, ZioError> {
        let _ = (vdev, metaslab);
        unimplemented!()
    }

    /// Tells the store that `txg` is durable: space freed in `txg - 2` becomes usable.
    pub fn txg_synced(&self, txg: Txg) {
        let _ = txg;
    }

    /// Returns the counters.
    pub fn stats(&self) -> StoreStats {
        unimplemented!()
    }
}
