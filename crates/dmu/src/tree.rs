//! The block tree of one object while a transaction group is written: new data goes in at the bottom, new pointers come up.
//!
//! Blocks of one level are written concurrently within a window; an indirect block is written when its children are. A freed
//! range that covers a whole subtree frees it by reading its indirect blocks only, never the data; a hole is never entered.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use ondisk::{BlockPointer, Compression, ObjectId, ObjectType, Txg};
use range_tree::RangeTree;
use runtime::{IoBuf, IoBufMut, JoinHandle};
use zio::{Bookmark, IoClass, StoredForm, WriteProps};

use crate::blocks::{Blocks, DnodeCrypts, EarlyWrites, StoredForms};
use crate::cloned_block::ClonedBlock;
use crate::compressibility::Compressibility;
use crate::dnode::{Core, Dnode, shl, shr, span_shift};
use crate::error::{DmuError, Result};
use crate::types::{Ledger, Services, WritePolicy};
use crate::wait::Limit;

/// From this pass on nothing is compressed, so that sizes stop changing (OpenZFS: `zfs_sync_pass_dont_compress`).
const PASS_WITHOUT_COMPRESSION: u32 = 8;
/// Blocks of one indirect block under way at once.
const WINDOW_DATA: usize = 32;
/// Level-1 blocks of one object under way at once.
const WINDOW_L1: usize = 8;
/// Higher indirect blocks of one object under way at once.
const WINDOW_UPPER: usize = 2;
/// Recorded births and frees that wake the task which drains them.
const EFFECTS_PENDING_MAX: usize = 4096;
const _: () = assert!(0 < WINDOW_UPPER && WINDOW_UPPER <= WINDOW_L1 && WINDOW_L1 <= WINDOW_DATA);
const _: () = assert!(PASS_WITHOUT_COMPRESSION > 1 && EFFECTS_PENDING_MAX > 0);

/// Births and frees on their way to the ledger.
#[derive(Default)]
pub(crate) struct Effects {
    list: RefCell<Vec<(bool, BlockPointer)>>,
    waker: RefCell<Option<Waker>>,
}

impl Effects {
    pub(crate) fn push(&self, born: bool, bp: &BlockPointer) {
        let mut list = self.list.borrow_mut();
        list.push((born, *bp));
        if list.len() >= EFFECTS_PENDING_MAX
            && let Some(waker) = self.waker.borrow_mut().take()
        {
            waker.wake();
        }
    }

    fn drain(&self, ledger: &mut dyn Ledger) {
        for (born, bp) in self.list.take() {
            if born {
                ledger.block_born(&bp);
            } else {
                ledger.block_freed(&bp);
            }
        }
    }

    /// Runs `work` and hands what it records to the ledger while it runs.
    pub(crate) async fn draining<F: Future>(&self, ledger: &mut dyn Ledger, work: F) -> F::Output {
        let mut work = std::pin::pin!(work);
        let out = std::future::poll_fn(|cx| {
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            let polled = work.as_mut().poll(cx);
            self.drain(ledger);
            polled
        })
        .await;
        self.waker.borrow_mut().take();
        self.drain(ledger);
        assert!(
            self.list.borrow().is_empty(),
            "every birth and free is in the ledger"
        );
        out
    }
}

/// What the writes of one `Objset::sync` share.
pub(crate) struct SyncContext {
    pub(crate) services: Services,
    pub(crate) objset: u64,
    pub(crate) txg: Txg,
    pub(crate) pass: u32,
    pub(crate) policy: WritePolicy,
    pub(crate) effects: Effects,
    /// Writes under way of the whole objset.
    pub(crate) limit: Limit,
    /// Blocks of this txg that are at their place already.
    pub(crate) early_writes: RefCell<EarlyWrites>,
    /// Blocks of this txg that came compressed.
    pub(crate) stored_forms: RefCell<StoredForms>,
    /// Blocks of this txg that are to be written, changed or not.
    pub(crate) written_anew: RefCell<BTreeSet<(ObjectId, u64)>>,
    /// Of blocks of dnodes that came encrypted, by number.
    pub(crate) dnode_crypts: RefCell<DnodeCrypts>,
    /// Former contents of places that were written once more: no read asks for them once the new tree is in place.
    pub(crate) overwritten: RefCell<Vec<BlockPointer>>,
}

impl SyncContext {
    fn blocks(&self) -> &Blocks {
        self.services.blocks()
    }

    pub(crate) fn free_block(&self, bp: &BlockPointer) {
        assert!(!bp.is_hole(), "a hole is not freed");
        self.effects.push(false, bp);
    }

    /// The hole that replaces `old`: it remembers its birth if something was born there before.
    pub(crate) fn hole_for(
        &self,
        old: &BlockPointer,
        lsize: u64,
        object_type: ObjectType,
        level: u8,
    ) -> BlockPointer {
        if old.birth().0 != 0 && self.policy.hole_birth {
            BlockPointer::hole(lsize, object_type, level, self.txg)
        } else {
            BlockPointer::HOLE
        }
    }

    pub(crate) async fn read(
        &self,
        bp: &BlockPointer,
        object: ObjectId,
        level: u8,
        block: u64,
    ) -> Result<IoBuf> {
        let bookmark = Bookmark {
            objset: self.objset,
            object: object.0,
            level: i64::from(level),
            block,
        };
        self.blocks()
            .read(bp, IoClass::SyncRead, bookmark, self.policy.cache)
            .await
            .map_err(|source| DmuError::Read {
                objset: self.objset,
                object,
                level,
                block,
                source: std::sync::Arc::new(source),
            })
    }

    /// Writes one block in place of `old` and records birth and free; by `compressibility` compressing it may not be tried. Returns the new
    /// pointer and the change of used bytes.
    pub(crate) async fn write(
        &self,
        data: IoBuf,
        what: &BlockWrite,
        old: &BlockPointer,
        compressibility: Option<&Compressibility>,
    ) -> Result<(BlockPointer, i64)> {
        let lsize = data.len() as u64;
        // A clone is born here, but its bytes belong to others as well.
        let rewrite = (old.physical_birth() == self.txg
            && old.birth() == self.txg
            && !old.is_dedup()
            && !old.is_hole()
            && !old.is_embedded()
            && old.lsize() == lsize)
            .then_some(*old);
        let mut props = props_of(&self.policy, self.pass, self.objset, what, old, rewrite);
        let place = (what.object, what.block);
        if what.level == 0 && self.written_anew.borrow_mut().remove(&place) {
            props.unless_equal = None;
        }
        let early = self.take_early_write(what, &data);
        let written = match early {
            Some(bp) => Ok(bp),
            None => {
                let form = self.take_stored_form(what, &data, old);
                self.store(data, form, &mut props, compressibility).await
            }
        };
        let new = written.map_err(|source| self.write_error(source))?;
        if props.unless_equal == Some(new) {
            return Ok((new, 0));
        }
        if new.is_hole() {
            if old.is_hole() {
                return Ok((*old, 0));
            }
            self.free_block(old);
            let used = -self.signed_dsize(old);
            return Ok((
                self.hole_for(old, lsize, what.object_type, what.level),
                used,
            ));
        }
        if rewrite.is_some() && !new.is_embedded() && new.dvas() == old.dvas() {
            if new.checksum() != old.checksum() {
                self.overwritten.borrow_mut().push(*old);
            }
            return Ok((new, 0));
        }
        assert!(
            new.birth() == self.txg,
            "a block is born in the txg that writes it"
        );
        let mut used = self.signed_dsize(&new);
        if !old.is_hole() {
            self.free_block(old);
            used -= self.signed_dsize(old);
        }
        self.effects.push(true, &new);
        Ok((new, used))
    }

    /// Gives a block to the devices, in the form that it came in, or compressed where that is tried.
    async fn store(
        &self,
        data: IoBuf,
        form: Option<StoredForm>,
        props: &mut WriteProps,
        compressibility: Option<&Compressibility>,
    ) -> std::result::Result<BlockPointer, zio::ZioError> {
        let tried = compressibility.filter(|_| form.is_none());
        let tried = tried.filter(|tried| tried.decide(props));
        let _permit = self
            .limit
            .acquire("a free place among the writes under way")
            .await;
        let blocks = self.blocks();
        let write = blocks.write_later(self.txg, data, form, props, self.policy.cache);
        let bp = write.await?;
        if let Some(tried) = tried {
            tried.note(&bp);
        }
        Ok(bp)
    }

    fn write_error(&self, source: zio::ZioError) -> DmuError {
        match source {
            zio::ZioError::NoSpace { .. } => DmuError::NoSpace,
            source => DmuError::Write {
                objset: self.objset,
                source: std::sync::Arc::new(source),
            },
        }
    }

    pub(crate) fn signed_dsize(&self, bp: &BlockPointer) -> i64 {
        i64::try_from(self.blocks().dsize(bp)).expect("a block's size fits")
    }
}

/// How a block is written in place of `old`: what the policy says for its kind. `rewrite` is `old` when it is of the same
/// txg and size.
pub(crate) fn props_of(
    policy: &WritePolicy,
    pass: u32,
    objset: u64,
    what: &BlockWrite,
    old: &BlockPointer,
    rewrite: Option<BlockPointer>,
) -> WriteProps {
    let metadata = what.level > 0 || what.object_type.is_metadata() || what.is_spill;
    let compression = if pass >= PASS_WITHOUT_COMPRESSION {
        Compression::OFF
    } else if what.level == 0 && what.compression != Compression::INHERIT && !what.is_spill {
        what.compression
    } else if metadata {
        policy.metadata_compression
    } else {
        policy.compression
    };
    let copies = if !metadata {
        policy.copies
    } else if what.level == 1 && !what.object_type.is_metadata() {
        policy.indirect_copies
    } else {
        policy.metadata_copies
    };
    let dedup = policy.dedup.filter(|_| !metadata);
    let checksum = match dedup {
        Some((checksum, _)) => checksum,
        None if metadata => policy.metadata_checksum,
        None => policy.checksum,
    };
    let keeps_equal = !metadata
        && dedup.is_none()
        && rewrite.is_none()
        && compression != Compression::OFF
        && checksum.is_cryptographic();
    WriteProps {
        object_type: what.object_type,
        level: what.level,
        compression,
        skips_compression: false,
        zstd_level: if metadata {
            0
        } else {
            policy.compression_level
        },
        checksum,
        copies,
        special_small_bytes: policy.special_small_bytes,
        allow_embedded: policy.embedded_data
            && what.level == 0
            && what.object_type != ObjectType::DNODE
            && what.object_type != ObjectType::OBJSET,
        fill: what.fill,
        // What is referred to elsewhere is not overwritten, not even in the txg that wrote it.
        rewrite: rewrite.filter(|_| dedup.is_none()),
        // With compression off each write takes its space, as OpenZFS has it.
        unless_equal: Some(*old).filter(|old| keeps_equal && !old.is_hole()),
        dedup: dedup.map(|(_, equal)| equal),
        hole_birth: policy.hole_birth && old.birth().0 != 0,
        class: IoClass::AsyncWrite,
        bookmark: Bookmark {
            objset,
            object: what.object.0,
            level: i64::from(what.level),
            block: what.block,
        },
    }
}

/// What is written.
pub(crate) struct BlockWrite {
    pub(crate) object: ObjectId,
    pub(crate) object_type: ObjectType,
    pub(crate) level: u8,
    pub(crate) block: u64,
    pub(crate) fill: u64,
    pub(crate) is_spill: bool,
    /// The object's own compression, or inherit.
    pub(crate) compression: Compression,
}

/// Where the new bytes of a data block come from.
pub(crate) enum Leaf {
    /// Here they are.
    Data(IoBuf),
    /// Nowhere: another object has them as well.
    Clone(Rc<ClonedBlock>),
    /// The old block of dnodes with some replaced.
    Dnodes(Vec<DnodePatch>),
}

/// A dnode to store in a block of dnodes.
pub(crate) struct DnodePatch {
    pub(crate) dnode: Rc<Dnode>,
    /// Slots it took on disk before this sync.
    pub(crate) old_slots: usize,
}

/// One object's tree while it is written.
pub(crate) struct Tree {
    pub(crate) context: Rc<SyncContext>,
    pub(crate) object: ObjectId,
    pub(crate) object_type: ObjectType,
    pub(crate) compression: Compression,
    /// Of data of files and volumes: what compressing it is worth.
    pub(crate) compressibility: Option<Rc<Compressibility>>,
    pub(crate) block_size: u64,
    pub(crate) indirect_shift: u8,
    pub(crate) levels_old: u8,
    /// Levels that it has at least.
    pub(crate) levels_min: u8,
    pub(crate) bps_old: [BlockPointer; 3],
    pub(crate) pointers: u8,
    pub(crate) dirty: RefCell<BTreeMap<u64, Leaf>>,
    pub(crate) freed: RangeTree,
    /// Change of used bytes so far.
    pub(crate) used: Cell<i64>,
}

/// What a node replaces.
#[derive(Clone, Copy)]
enum Old {
    /// The block this points to.
    Bp(BlockPointer),
    /// Nothing yet: the tree grows, the dnode's former pointers belong below here.
    Grown,
}

/// Result of writing one child.
type Child = JoinHandle<Result<BlockPointer>>;

impl Tree {
    fn fan_shift(&self) -> u32 {
        u32::from(self.indirect_shift) - BlockPointer::SHIFT
    }

    fn indirect_bytes(&self) -> usize {
        1 << self.indirect_shift
    }

    /// Levels needed so that `max_block_id` can be addressed.
    pub(crate) fn levels_for(&self, max_block_id: u64) -> u8 {
        let mut levels = self.levels_old.max(self.levels_min);
        let pointers = u64::from(self.pointers);
        while shr(max_block_id, span_shift(self.fan_shift(), levels - 1)) >= pointers {
            levels += 1;
        }
        levels
    }

    fn range_of(&self, level: u8, index: u64) -> Range<u64> {
        let shift = span_shift(self.fan_shift(), level);
        shl(index, shift)..shl(index.saturating_add(1), shift)
    }

    fn has_dirty(&self, range: &Range<u64>) -> bool {
        self.dirty.borrow().range(range.clone()).next().is_some()
    }

    fn first_change(&self, range: &Range<u64>) -> Option<u64> {
        if range.start >= range.end {
            return None;
        }
        let dirty = self
            .dirty
            .borrow()
            .range(range.clone())
            .next()
            .map(|(&block, _)| block);
        let freed = self.freed.first_in(range).map(|r| r.start);
        match (dirty, freed) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Writes all changes; returns the dnode's new pointers. `levels` is the number of levels it has from now on.
    pub(crate) async fn write(self: &Rc<Self>, levels: u8) -> Result<[BlockPointer; 3]> {
        assert!(
            levels >= self.levels_old,
            "the tree of object {} does not lose levels",
            self.object
        );
        let mut out = [BlockPointer::HOLE; 3];
        for (i, slot) in out.iter_mut().enumerate().take(usize::from(self.pointers)) {
            let index = i as u64;
            let range = self.range_of(levels - 1, index);
            let old = if levels == self.levels_old {
                Old::Bp(self.bps_old[i])
            } else if i == 0 && self.bps_old.iter().any(|bp| !bp.is_zero()) {
                Old::Grown
            } else {
                Old::Bp(BlockPointer::HOLE)
            };
            *slot = match old {
                Old::Bp(bp) if self.first_change(&range).is_none() => bp,
                old => node(Rc::clone(self), levels - 1, index, old).await?,
            };
        }
        assert!(
            self.dirty.borrow().is_empty(),
            "every dirty block of object {} was written",
            self.object
        );
        Ok(out)
    }

    /// Frees the whole old tree.
    pub(crate) async fn free_all(self: &Rc<Self>) -> Result<()> {
        for i in 0..usize::from(self.pointers) {
            free_subtree(
                Rc::clone(self),
                self.levels_old - 1,
                i as u64,
                self.bps_old[i],
            )
            .await?;
        }
        Ok(())
    }

    fn add_used(&self, delta: i64) {
        self.used.set(self.used.get() + delta);
    }

    fn free_block(&self, bp: &BlockPointer) {
        self.add_used(-self.context.signed_dsize(bp));
        self.context.free_block(bp);
    }

    async fn write_block(
        &self,
        level: u8,
        index: u64,
        data: IoBuf,
        fill: u64,
        old: &BlockPointer,
    ) -> Result<BlockPointer> {
        let what = BlockWrite {
            object: self.object,
            object_type: self.object_type,
            level,
            block: index,
            fill,
            is_spill: false,
            compression: self.compression,
        };
        let compressibility = self.compressibility.as_deref().filter(|_| level == 0);
        let write = self.context.write(data, &what, old, compressibility);
        let (bp, used) = write.await?;
        self.add_used(used);
        Ok(bp)
    }

    async fn read_indirect(&self, level: u8, index: u64, bp: &BlockPointer) -> Result<IoBuf> {
        let buf = self.context.read(bp, self.object, level, index).await?;
        if buf.len() != self.indirect_bytes() {
            return Err(DmuError::Corrupt {
                objset: self.context.objset,
                object: self.object,
                level,
                block: index,
                what: "size of indirect block",
            });
        }
        Ok(buf)
    }

    /// Frees a data block and returns the hole in its place.
    fn free_data_block(&self, old: &BlockPointer) -> BlockPointer {
        self.free_block(old);
        self.context
            .hole_for(old, self.block_size, self.object_type, 0)
    }

    /// Writes an indirect block that has changed; one without data below is not stored.
    async fn write_indirect(
        &self,
        level: u8,
        index: u64,
        data: IoBuf,
        old: &BlockPointer,
    ) -> Result<BlockPointer> {
        let mut fill = 0;
        let mut all_holes = true;
        for bp in BlockPointer::decode_all(&data) {
            if !bp.is_hole() {
                all_holes = false;
                fill += bp.fill();
            }
        }
        if !all_holes {
            return self.write_block(level, index, data, fill, old).await;
        }
        if !old.is_hole() {
            self.free_block(old);
        }
        Ok(self.indirect_hole(level, old))
    }

    /// The hole in the place of an indirect block.
    fn indirect_hole(&self, level: u8, old: &BlockPointer) -> BlockPointer {
        let lsize = self.indirect_bytes() as u64;
        self.context.hole_for(old, lsize, self.object_type, level)
    }

    /// Writes or frees data block `index`.
    async fn leaf(&self, index: u64, old: BlockPointer) -> Result<BlockPointer> {
        let leaf = self.dirty.borrow_mut().remove(&index);
        let (data, fill) = match leaf {
            None if self.freed.contains(index) && !old.is_hole() => {
                return Ok(self.free_data_block(&old));
            }
            None => return Ok(old),
            Some(Leaf::Clone(clone)) => return Ok(self.put_clone(&clone, &old)),
            Some(Leaf::Data(data)) => (data, 1),
            Some(Leaf::Dnodes(patches)) => {
                let mut data = if old.is_hole() {
                    IoBufMut::zeroed(usize::try_from(self.block_size).expect("a block size fits"))
                } else {
                    self.context
                        .read(&old, self.object, 0, index)
                        .await?
                        .into_mut()
                };
                patch_dnodes(&mut data, &patches);
                let fill = u64::from(ondisk::dnode_starts(&data).count_ones());
                (data.freeze(), fill)
            }
        };
        let len = data.len() as u64;
        let bp = self.write_block(0, index, data, fill, &old).await?;
        self.context.services.clock.sub_dirty(self.context.txg, len);
        Ok(bp)
    }
}

/// Replaces dnodes in a block of dnodes: first what went is cleared, then what is there is stored.
fn patch_dnodes(data: &mut [u8], patches: &[DnodePatch]) {
    let slots = data.len() / 512;
    let place = |patch: &DnodePatch| {
        usize::try_from(patch.dnode.id.0 % slots as u64).expect("a slot number fits")
    };
    for patch in patches {
        let at = place(patch);
        let end = (at + patch.old_slots).min(slots);
        data[at * 512..end * 512].fill(0);
    }
    for patch in patches {
        let base = patch.dnode.base();
        if !base.core.is_free() {
            let at = place(patch);
            let stored = &mut data[at * 512..(at + usize::from(base.core.slots())) * 512];
            base.to_phys().encode(stored);
            put_encrypted_bonus(&base.core, stored);
        }
    }
}

/// Puts the encrypted bonus area of a dnode that came with one in its place.
fn put_encrypted_bonus(core: &Core, stored: &mut [u8]) {
    let Some(area) = &core.encrypted_bonus else {
        return;
    };
    let start = stored.len() - core.bonus_max(false);
    let len = area.len().min(core.bonus_max(core.has_spill));
    stored[start..start + len].copy_from_slice(&area[..len]);
}

/// Writes the block at `level`, `index` with all changes below it and returns its new pointer.
fn node(
    tree: Rc<Tree>,
    level: u8,
    index: u64,
    old: Old,
) -> Pin<Box<dyn Future<Output = Result<BlockPointer>>>> {
    let old_bp = match old {
        Old::Bp(bp) => bp,
        Old::Grown => BlockPointer::HOLE,
    };
    if level == 0 {
        return Box::pin(async move { tree.leaf(index, old_bp).await });
    }
    Box::pin(async move {
        let range = tree.range_of(level, index);
        if let Old::Bp(bp) = old
            && !tree.has_dirty(&range)
        {
            if bp.is_hole() {
                return Ok(bp);
            }
            if tree.freed.covers(&range) {
                free_subtree(Rc::clone(&tree), level, index, bp).await?;
                return Ok(tree.indirect_hole(level, &bp));
            }
        }
        let mut buf = match old {
            Old::Bp(bp) if !bp.is_hole() => tree.read_indirect(level, index, &bp).await?.into_mut(),
            Old::Bp(bp) => fresh_indirect(&tree, level, &bp),
            Old::Grown => grown_indirect(&tree, level),
        };
        let mut changed = matches!(old, Old::Grown);
        let child_shift = span_shift(tree.fan_shift(), level - 1);
        let mut under_way: VecDeque<(usize, BlockPointer, Child)> = VecDeque::new();
        let grown_child = matches!(old, Old::Grown) && level > tree.levels_old;
        let mut at = range.start;
        loop {
            let change = if grown_child && at == range.start {
                Some(at)
            } else {
                tree.first_change(&(at..range.end))
            };
            let Some(change) = change else { break };
            let child = shr(change, child_shift);
            let slot = usize::try_from(child - shl(index, tree.fan_shift()))
                .expect("a slot of an indirect block");
            at = shl(child + 1, child_shift);
            let place = slot * BlockPointer::SIZE..(slot + 1) * BlockPointer::SIZE;
            let child_old = decode(&buf[place.clone()]);
            let child_grown = grown_child && slot == 0;
            let dirty = child_grown || tree.has_dirty(&tree.range_of(level - 1, child));
            if !dirty {
                if child_old.is_hole() {
                    continue;
                }
                if level == 1 {
                    tree.free_data_block(&child_old)
                        .encode_into(&mut buf[place]);
                    changed = true;
                    continue;
                }
            }
            let what = match child_grown {
                true => Old::Grown,
                false => Old::Bp(child_old),
            };
            let work = node(Rc::clone(&tree), level - 1, child, what);
            changed |=
                start_child(&tree, &mut under_way, &mut buf, (slot, child_old), work).await?;
            if under_way.len() >= window_below(level) {
                changed |= finish_child(&mut under_way, &mut buf).await?;
            }
        }
        while !under_way.is_empty() {
            changed |= finish_child(&mut under_way, &mut buf).await?;
        }
        if !changed {
            return Ok(old_bp);
        }
        tree.write_indirect(level, index, buf.freeze(), &old_bp)
            .await
    })
}

/// Blocks of the level below that are written at once.
fn window_below(level: u8) -> usize {
    match level {
        1 => WINDOW_DATA,
        2 => WINDOW_L1,
        _ => WINDOW_UPPER,
    }
}

/// Starts to write a child. What is done at the first poll is put in its slot; returns whether that pointer differs.
async fn start_child(
    tree: &Tree,
    under_way: &mut VecDeque<(usize, BlockPointer, Child)>,
    buf: &mut IoBufMut,
    (slot, old): (usize, BlockPointer),
    mut work: Pin<Box<dyn Future<Output = Result<BlockPointer>>>>,
) -> Result<bool> {
    let handle = &tree.context.services.handle;
    match std::future::poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await {
        // A small block is compressed here and placed, without a wait for its device. Hundreds of them in a row would keep all
        // other tasks from the processor: a commit of the intent log needs several turns.
        Poll::Ready(result) => {
            let changed = put_child(under_way, buf, (slot, old), result).await?;
            handle.yield_now().await;
            Ok(changed)
        }
        Poll::Pending => {
            let task = handle.spawn("sync of a block", work);
            under_way.push_back((slot, old, task));
            Ok(false)
        }
    }
}

/// Waits for the oldest child and takes its new pointer; returns whether it differs.
async fn finish_child(
    under_way: &mut VecDeque<(usize, BlockPointer, Child)>,
    buf: &mut IoBufMut,
) -> Result<bool> {
    let Some((slot, old, task)) = under_way.pop_front() else {
        return Ok(false);
    };
    let result = task.await;
    put_child(under_way, buf, (slot, old), result).await
}

/// Puts a child's new pointer in its slot; returns whether it differs from the old one.
async fn put_child(
    under_way: &mut VecDeque<(usize, BlockPointer, Child)>,
    buf: &mut IoBufMut,
    (slot, old): (usize, BlockPointer),
    result: Result<BlockPointer>,
) -> Result<bool> {
    let new = match result {
        Ok(new) => new,
        Err(error) => {
            // Nothing may still be writing when the failure is reported.
            while let Some((_, _, task)) = under_way.pop_front() {
                let _ = task.await;
            }
            return Err(error);
        }
    };
    if new == old {
        return Ok(false);
    }
    new.encode_into(&mut buf[slot * BlockPointer::SIZE..(slot + 1) * BlockPointer::SIZE]);
    Ok(true)
}

/// A new indirect block in place of a hole; the hole's birth goes to the holes below.
fn fresh_indirect(tree: &Tree, level: u8, hole: &BlockPointer) -> IoBufMut {
    let mut buf = IoBufMut::zeroed(tree.indirect_bytes());
    if hole.birth().0 != 0 {
        let lsize = if level == 1 {
            tree.block_size
        } else {
            tree.indirect_bytes() as u64
        };
        let child = BlockPointer::hole(lsize, tree.object_type, level - 1, hole.birth());
        for place in buf.chunks_exact_mut(BlockPointer::SIZE) {
            child.encode_into(place);
        }
    }
    buf
}

/// The first indirect block of a level that the tree grows by: the lowest one takes the dnode's former pointers.
fn grown_indirect(tree: &Tree, level: u8) -> IoBufMut {
    let mut buf = IoBufMut::zeroed(tree.indirect_bytes());
    if level == tree.levels_old {
        let former = tree.bps_old.iter().take(usize::from(tree.pointers));
        for (place, bp) in buf.chunks_exact_mut(BlockPointer::SIZE).zip(former) {
            bp.encode_into(place);
        }
    }
    buf
}

/// Frees everything at and below a pointer.
fn free_subtree(
    tree: Rc<Tree>,
    level: u8,
    index: u64,
    bp: BlockPointer,
) -> Pin<Box<dyn Future<Output = Result<()>>>> {
    Box::pin(async move {
        if bp.is_hole() {
            return Ok(());
        }
        if level > 0 {
            let buf = tree.read_indirect(level, index, &bp).await?;
            let mut under_way: VecDeque<JoinHandle<Result<()>>> = VecDeque::new();
            let mut outcome = Ok(());
            for (i, child) in BlockPointer::decode_all(&buf).enumerate() {
                if child.is_hole() {
                    continue;
                }
                if level == 1 {
                    tree.free_block(&child);
                    continue;
                }
                let below = free_subtree(
                    Rc::clone(&tree),
                    level - 1,
                    shl(index, tree.fan_shift()) + i as u64,
                    child,
                );
                under_way.push_back(
                    tree.context
                        .services
                        .handle
                        .spawn("free of a subtree", below),
                );
                if under_way.len() >= WINDOW_L1
                    && let Some(first) = under_way.pop_front()
                {
                    outcome = first.await;
                    if outcome.is_err() {
                        break;
                    }
                }
            }
            // Nothing may still be reading when a failure is reported.
            for task in under_way {
                let result = task.await;
                outcome = outcome.and(result);
            }
            outcome?;
        }
        tree.free_block(&bp);
        Ok(())
    })
}

pub(crate) fn decode(bytes: &[u8]) -> BlockPointer {
    BlockPointer::decode(bytes).expect("128 bytes are a block pointer")
}
