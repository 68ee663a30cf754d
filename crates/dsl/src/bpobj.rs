//! Lists of block pointers (bpobj) in the meta-objset, which may contain further lists.
//!
//! An object's data is an array of 128-byte pointers (without checksums and fill counts), its
//! bonus holds count and total sizes, and a second object may list whole sub-lists, so that a list
//! is appended to another without copying. Pools before version 26 have no sub-lists, those before version 3 no sums but
//! that of the space. OpenZFS: module/zfs/bpobj.c.
//!
//! Guarantees: memory is bounded whatever the list's length; the totals in the bonus include the
//! sub-lists. Does not know why a block is in a list.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use dmu::{AllocSpec, Objset, Tx};
use ondisk::bytes::{of_u64s, u64_at};
use ondisk::dsl::{
    BPOBJ_FREED_SIZE, BpobjPhys, bpobj_entry, bpobj_num_freed, freed_entry, livelist_entry,
    set_bpobj_num_freed,
};
use ondisk::{BlockPointer, Compression, ObjectId, ObjectType, pool_version};

use crate::error::{DslError, Result};
use crate::object_directory::LIST_BLOCK;
use crate::space::{Sizes, sizes_of};

const POINTER: u64 = 128;
/// Pointers handled at a time: one block of the list.
const CHUNK: u64 = LIST_BLOCK as u64 / POINTER;
/// Lists in lists in lists: OpenZFS flattens them to one level.
const NESTING_MAX: usize = 8;
const _: () = assert!(POINTER * CHUNK == LIST_BLOCK as u64 && NESTING_MAX > 0);
const _: () = assert!(POINTER == BlockPointer::SIZE as u64);

/// Bytes of the header before version 3: the count and the bytes. OpenZFS: include/sys/bpobj.h, BPOBJ_SIZE_V0
const HEADER_V0: usize = 16;
/// Bytes of the header before version 26: all sums. OpenZFS: include/sys/bpobj.h, BPOBJ_SIZE_V1
const HEADER_V1: usize = 32;

/// Bytes of the header of lists that pools of a version make.
// OpenZFS: module/zfs/bpobj.c, bpobj_alloc
fn header_size(version: u64) -> usize {
    if version < pool_version::RAIDZ_DEFLATE {
        HEADER_V0
    } else if version < pool_version::DEADLISTS {
        HEADER_V1
    } else {
        BpobjPhys::SIZE
    }
}

/// An open list. Clones are handles to the same one.
#[derive(Clone)]
pub(crate) struct Bpobj(Rc<BpobjShared>);

struct BpobjShared {
    mos: Objset,
    object: ObjectId,
    phys: Cell<BpobjPhys>,
    /// The bonus as on disk: longer in pools with livelists, where it counts freed entries; shorter in
    /// old pools.
    bonus: RefCell<Vec<u8>>,
}

impl Bpobj {
    /// Makes an empty list with the given block size. Syncing context.
    pub(crate) async fn create(mos: &Objset, block_size: u32, tx: &Tx) -> Result<ObjectId> {
        assert!(tx.is_syncing(), "create happens in syncing context");
        Self::create_with(mos, block_size, BpobjPhys::SIZE, tx).await
    }

    /// Makes an empty list of the form that pools of a version have. Syncing context.
    pub(crate) async fn create_of_version(
        mos: &Objset,
        block_size: u32,
        version: u64,
        tx: &Tx,
    ) -> Result<ObjectId> {
        assert!(
            tx.is_syncing(),
            "create of version happens in syncing context"
        );
        Self::create_with(mos, block_size, header_size(version), tx).await
    }

    /// Makes an empty list that also takes entries that mark a block as freed. Syncing context.
    pub(crate) async fn create_counting_freed(mos: &Objset, tx: &Tx) -> Result<ObjectId> {
        assert!(
            tx.is_syncing(),
            "create counting freed happens in syncing context"
        );
        Self::create_with(mos, LIST_BLOCK, BPOBJ_FREED_SIZE, tx).await
    }

    async fn create_with(mos: &Objset, block_size: u32, bonus: usize, tx: &Tx) -> Result<ObjectId> {
        let len = u16::try_from(bonus).expect("56 bytes at most");
        let spec = AllocSpec::new(ObjectType::BPOBJ)
            .block_size(block_size)
            .bonus(ObjectType::BPOBJ_HDR, len);
        Ok(mos.allocate(spec, tx).await?)
    }

    /// Makes the list of deferred frees, which must not be compressed: it is rewritten in the very
    /// passes that free blocks.
    pub(crate) async fn create_uncompressed(
        mos: &Objset,
        version: u64,
        tx: &Tx,
    ) -> Result<ObjectId> {
        let object = Self::create_of_version(mos, 1 << 14, version, tx).await?;
        mos.set_object_compression(object, Compression::OFF, tx)
            .await?;
        Ok(object)
    }

    /// Opens a list.
    pub(crate) async fn open(mos: &Objset, object: ObjectId) -> Result<Self> {
        let bonus = mos.bonus(object).await?;
        let info = mos.object_info(object).await?;
        if info.object_type != ObjectType::BPOBJ || bonus.bytes.len() < HEADER_V0 {
            return Err(DslError::corrupt("block pointer list", object));
        }
        let bonus = bonus.bytes.to_vec();
        let mut padded = bonus.clone();
        padded.resize(bonus.len().max(BpobjPhys::SIZE), 0);
        let phys = BpobjPhys::decode(&padded).map_err(|source| DslError::Decode {
            what: "block pointer list",
            object,
            source,
        })?;
        let list = Self(Rc::new(BpobjShared {
            mos: mos.clone(),
            object,
            phys: Cell::new(phys),
            bonus: RefCell::new(bonus),
        }));
        if list.0.bonus.borrow().len() < HEADER_V1 {
            // These sums are kept in memory alone.
            let sizes = list.space_range(0, u64::MAX).await?;
            list.0.phys.set(BpobjPhys {
                comp: sizes.compressed,
                uncomp: sizes.uncompressed,
                ..phys
            });
        }
        Ok(list)
    }

    pub(crate) fn object(&self) -> ObjectId {
        self.0.object
    }

    pub(crate) fn is_empty(&self) -> bool {
        let phys = self.0.phys.get();
        phys.num_blkptrs == 0 && phys.num_subobjs == 0
    }

    /// Entries of the list itself.
    pub(crate) fn blocks(&self) -> u64 {
        self.0.phys.get().num_blkptrs
    }

    /// Entries that mark a block as freed.
    pub(crate) fn freed(&self) -> u64 {
        bpobj_num_freed(&self.0.bonus.borrow()).unwrap_or(0)
    }

    /// Total sizes, with sub-lists.
    pub(crate) fn sizes(&self) -> Sizes {
        let phys = self.0.phys.get();
        Sizes {
            used: phys.bytes,
            compressed: phys.comp,
            uncompressed: phys.uncomp,
        }
    }

    /// Appends blocks; holes are left out. Syncing context.
    pub(crate) async fn append(&self, blocks: &[BlockPointer], tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "append happens in syncing context");
        self.append_as(blocks, false, tx).await
    }

    /// Appends entries that mark blocks as freed: totals shrink. Syncing context.
    pub(crate) async fn append_freed(&self, blocks: &[BlockPointer], tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "append freed happens in syncing context");
        if bpobj_num_freed(&self.0.bonus.borrow()).is_none() {
            return Err(DslError::corrupt("list of a clone's blocks", self.object()));
        }
        self.append_as(blocks, true, tx).await
    }

    /// Calls `each` with every entry of a list without sub-lists, the newest first, and whether it marks the block as freed.
    pub(crate) async fn each_backwards(
        &self,
        mut each: impl FnMut(BlockPointer, bool),
    ) -> Result<()> {
        let shared = &self.0;
        let phys = shared.phys.get();
        if phys.num_subobjs != 0 {
            return Err(DslError::corrupt("list of a clone's blocks", shared.object));
        }
        let mut end = phys.num_blkptrs;
        while end > 0 {
            let first = (end - 1) / CHUNK * CHUNK;
            let len = usize::try_from((end - first) * POINTER).expect("one block");
            let bytes = shared.mos.read(shared.object, first * POINTER, len).await?;
            let chunk: Vec<BlockPointer> = BlockPointer::decode_all(&bytes).collect();
            for bp in chunk.iter().rev() {
                let (bp, freed) = livelist_entry(bp);
                each(bp, freed);
            }
            end = first;
        }
        Ok(())
    }

    /// Calls `each` with the entries of a list without sub-lists, block by block, in their order.
    pub(crate) async fn each_chunk(
        &self,
        mut each: impl AsyncFnMut(&[BlockPointer]) -> Result<()>,
    ) -> Result<()> {
        let shared = &self.0;
        let phys = shared.phys.get();
        if phys.num_subobjs != 0 {
            return Err(DslError::corrupt("flat list of blocks", shared.object));
        }
        let mut first = 0;
        while first < phys.num_blkptrs {
            let count = (phys.num_blkptrs - first).min(CHUNK);
            let len = usize::try_from(count * POINTER).expect("one block");
            let bytes = shared.mos.read(shared.object, first * POINTER, len).await?;
            let blocks: Vec<BlockPointer> = BlockPointer::decode_all(&bytes).collect();
            each(&blocks).await?;
            first += count;
        }
        Ok(())
    }

    /// Sizes of the blocks born after `from`, up to and with `to`, in a list without sub-lists.
    // OpenZFS: module/zfs/bpobj.c, bpobj_space_range
    pub(crate) async fn space_range(&self, from: u64, to: u64) -> Result<Sizes> {
        let store = self.0.mos.services().store().clone();
        let mut sizes = Sizes::default();
        self.each_chunk(async |blocks| {
            for bp in blocks {
                if bp.birth().0 > from && bp.birth().0 <= to {
                    sizes.add(sizes_of(bp, store.dsize(bp)));
                }
            }
            Ok(())
        })
        .await?;
        Ok(sizes)
    }

    async fn append_as(&self, blocks: &[BlockPointer], freed: bool, tx: &Tx) -> Result<()> {
        let shared = &self.0;
        let store = shared.mos.services().store().clone();
        let capacity = usize::try_from(CHUNK * POINTER).expect("one block");
        for chunk in blocks.chunks(usize::try_from(CHUNK).expect("one block")) {
            let mut phys = shared.phys.get();
            let mut bytes = Vec::with_capacity(capacity.min(chunk.len() * 128));
            let mut sizes = Sizes::default();
            let mut count = 0;
            for bp in chunk.iter().filter(|bp| !bp.is_hole()) {
                let entry = bpobj_entry(bp);
                let entry = if freed { freed_entry(&entry) } else { entry };
                bytes.extend_from_slice(&entry.encode());
                sizes.add(sizes_of(bp, store.dsize(bp)));
                count += 1;
            }
            if count == 0 {
                continue;
            }
            shared
                .mos
                .write(shared.object, phys.num_blkptrs * POINTER, &bytes, tx)
                .await?;
            phys.num_blkptrs += count;
            if freed {
                phys.bytes = phys.bytes.saturating_sub(sizes.used);
                phys.comp = phys.comp.saturating_sub(sizes.compressed);
                phys.uncomp = phys.uncomp.saturating_sub(sizes.uncompressed);
                let freed = self.freed() + count;
                set_bpobj_num_freed(&mut shared.bonus.borrow_mut(), freed);
            } else {
                phys.bytes += sizes.used;
                phys.comp += sizes.compressed;
                phys.uncomp += sizes.uncompressed;
            }
            self.store(phys, tx).await?;
        }
        Ok(())
    }

    /// Removes up to `max` blocks from the end, giving them to `each` in chunks with their sizes.
    /// Returns how many; emptied sub-lists are freed. Syncing context.
    pub(crate) async fn drain(
        &self,
        max: u64,
        tx: &Tx,
        mut each: impl AsyncFnMut(&[BlockPointer], Sizes) -> Result<()>,
    ) -> Result<u64> {
        assert!(tx.is_syncing(), "drain happens in syncing context");
        let mut removed = 0;
        while removed < max && !self.is_empty() {
            // Down to the last list that has something in it or nothing below it.
            let mut path = vec![self.clone()];
            loop {
                let last = path.last().expect("the path starts with this list");
                let phys = last.0.phys.get();
                if phys.num_blkptrs > 0 || phys.num_subobjs == 0 {
                    break;
                }
                if path.len() > NESTING_MAX {
                    return Err(DslError::corrupt(
                        "nesting of block pointer lists",
                        self.object(),
                    ));
                }
                let sub = last.subobj(phys.num_subobjs - 1).await?;
                path.push(sub);
            }
            let last = path.last().expect("the path starts with this list").clone();
            let blocks = last.take_last_chunk(max - removed, tx).await?;
            let store = self.0.mos.services().store();
            let mut sizes = Sizes::default();
            for bp in &blocks {
                sizes.add(sizes_of(bp, store.dsize(bp)));
            }
            for list in &path {
                list.subtract(sizes, tx).await?;
            }
            removed += u64::try_from(blocks.len()).expect("a chunk");
            each(&blocks, sizes).await?;
            while path.len() > 1 && path.last().is_some_and(Self::is_empty) {
                let empty = path.pop().expect("more than one");
                let parent = path.last().expect("more than one");
                parent.free_last_subobj(&empty, tx).await?;
            }
            if blocks.is_empty() && path.len() == 1 && self.0.phys.get().num_subobjs == 0 {
                break;
            }
        }
        Ok(removed)
    }

    /// Appends a whole list, which then belongs to this one: small ones are copied and freed, so
    /// that nesting stays flat. Syncing context. OpenZFS: `bpobj_enqueue_subobj`.
    pub(crate) async fn enqueue(&self, object: ObjectId, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "enqueue happens in syncing context");
        let shared = &self.0;
        let mos = &shared.mos;
        if shared.bonus.borrow().len() < BpobjPhys::SIZE {
            return Err(DslError::corrupt("list without sub-lists", shared.object));
        }
        let sub = Self::open(mos, object).await?;
        if sub.is_empty() {
            return Self::destroy(mos, object, tx).await;
        }
        let mut phys = shared.phys.get();
        let theirs = sub.0.phys.get();
        let sizes = sub.sizes();
        let one_block = |info: &dmu::ObjectInfo, bytes: u64| bytes <= u64::from(info.block_size);
        let below = ObjectId(theirs.subobjs);
        let copy_below =
            below.0 == 0 || one_block(&mos.object_info(below).await?, theirs.num_subobjs * 8);
        let copy_all = copy_below
            && one_block(
                &mos.object_info(object).await?,
                theirs.num_blkptrs * POINTER,
            );
        if phys.subobjs == 0 && (!copy_all || theirs.num_subobjs > 0) {
            let spec = AllocSpec::new(ObjectType::BPOBJ_SUBOBJ).block_size(LIST_BLOCK);
            phys.subobjs = mos.allocate(spec, tx).await?.0;
        }
        let list = ObjectId(phys.subobjs);
        if copy_below && below.0 != 0 {
            let len = usize::try_from(theirs.num_subobjs * 8).expect("one block");
            let bytes = mos.read(below, 0, len).await?;
            mos.write(list, phys.num_subobjs * 8, &bytes, tx).await?;
            phys.num_subobjs += theirs.num_subobjs;
            mos.free_object(below, tx).await?;
            if !copy_all {
                let flat = BpobjPhys {
                    subobjs: 0,
                    num_subobjs: 0,
                    ..theirs
                };
                sub.store(flat, tx).await?;
            }
        }
        if copy_all {
            let len = usize::try_from(theirs.num_blkptrs * POINTER).expect("one block");
            if len > 0 {
                let bytes = mos.read(object, 0, len).await?;
                mos.write(shared.object, phys.num_blkptrs * POINTER, &bytes, tx)
                    .await?;
            }
            phys.num_blkptrs += theirs.num_blkptrs;
            mos.free_object(object, tx).await?;
        } else {
            let bytes = of_u64s(&[object.0]);
            mos.write(list, phys.num_subobjs * 8, &bytes, tx).await?;
            phys.num_subobjs += 1;
        }
        phys.bytes += sizes.used;
        phys.comp += sizes.compressed;
        phys.uncomp += sizes.uncompressed;
        self.store(phys, tx).await
    }

    async fn subobj(&self, index: u64) -> Result<Self> {
        let shared = &self.0;
        let list = ObjectId(shared.phys.get().subobjs);
        if list.0 == 0 {
            return Err(DslError::corrupt(
                "sub-lists of a block pointer list",
                shared.object,
            ));
        }
        let bytes = shared.mos.read(list, index * 8, 8).await?;
        Box::pin(Self::open(&shared.mos, ObjectId(u64_at(&bytes, 0)))).await
    }

    async fn take_last_chunk(&self, max: u64, tx: &Tx) -> Result<Vec<BlockPointer>> {
        let shared = &self.0;
        let mut phys = shared.phys.get();
        // Within one block of the list, so that whole blocks are given back.
        let block_start = phys.num_blkptrs.saturating_sub(1) / CHUNK * CHUNK;
        let first = phys.num_blkptrs.saturating_sub(max).max(block_start);
        let count = phys.num_blkptrs - first;
        if count == 0 {
            return Ok(Vec::new());
        }
        let len = usize::try_from(count * POINTER).expect("one block");
        let bytes = shared.mos.read(shared.object, first * POINTER, len).await?;
        let blocks = BlockPointer::decode_all(&bytes).collect();
        phys.num_blkptrs = first;
        self.store(phys, tx).await?;
        let start = first * POINTER;
        shared
            .mos
            .free_range(shared.object, start, count * POINTER, tx)
            .await?;
        Ok(blocks)
    }

    async fn free_last_subobj(&self, sub: &Self, tx: &Tx) -> Result<()> {
        let shared = &self.0;
        let mut phys = shared.phys.get();
        shared.mos.free_object(sub.object(), tx).await?;
        phys.num_subobjs -= 1;
        if phys.num_subobjs == 0 {
            shared.mos.free_object(ObjectId(phys.subobjs), tx).await?;
            phys.subobjs = 0;
        }
        self.store(phys, tx).await
    }

    async fn subtract(&self, sizes: Sizes, tx: &Tx) -> Result<()> {
        let mut phys = self.0.phys.get();
        phys.bytes = phys.bytes.saturating_sub(sizes.used);
        phys.comp = phys.comp.saturating_sub(sizes.compressed);
        phys.uncomp = phys.uncomp.saturating_sub(sizes.uncompressed);
        if self.is_empty() {
            // What is left is an error of the past; an empty list must say it is empty.
            (phys.bytes, phys.comp, phys.uncomp) = (0, 0, 0);
        }
        self.store(phys, tx).await
    }

    async fn store(&self, phys: BpobjPhys, tx: &Tx) -> Result<()> {
        let shared = &self.0;
        let bytes = {
            let mut bonus = shared.bonus.borrow_mut();
            let encoded = phys.encode();
            let len = bonus.len().min(encoded.len());
            bonus[..len].copy_from_slice(&encoded[..len]);
            bonus.clone()
        };
        shared
            .mos
            .set_bonus(shared.object, ObjectType::BPOBJ_HDR, &bytes, tx)
            .await?;
        shared.phys.set(phys);
        Ok(())
    }

    /// Frees a list's objects, with its sub-lists; the blocks in it are not freed. Syncing context.
    pub(crate) async fn destroy(mos: &Objset, object: ObjectId, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "destroy happens in syncing context");
        let mut work = vec![object];
        while let Some(object) = work.pop() {
            let list = Self::open(mos, object).await?;
            let phys = list.0.phys.get();
            for index in 0..phys.num_subobjs {
                let bytes = mos.read(ObjectId(phys.subobjs), index * 8, 8).await?;
                work.push(ObjectId(u64_at(&bytes, 0)));
            }
            if phys.subobjs != 0 {
                mos.free_object(ObjectId(phys.subobjs), tx).await?;
            }
            mos.free_object(object, tx).await?;
        }
        Ok(())
    }
}
