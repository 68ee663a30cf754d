//! One object in memory: its version on disk, and one layer of changes per transaction group that has not synced.
//!
//! ```text
//!   newest view   layer T+2 (open)        core, dirty blocks, freed ranges
//!                 layer T+1 (quiescing)
//!                 layer T   (syncing)     frozen: its buffers are immutable and go to the block store
//!                 base                    the dnode on disk and its tree of blocks
//! ```
//! A read goes down from the newest layer to the base; the sync of T reads layer T alone, so it can never see a newer change.
//! A change in txg T made while a newer layer exists is applied to that layer too: the newest view has every change.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::rc::Rc;

use ondisk::{
    BlockPointer, ChecksumKind, Compression, DnodePhys, ObjectId, ObjectType, Txg, dnode_flags,
};
use range_tree::RangeTree;
use runtime::{IoBuf, IoBufMut};

use crate::cloned_block::ClonedBlock;
use crate::compressibility::Compressibility;
use crate::readers::Readers;
use crate::wait::Gate;
use crate::zap::MicroIndex;

/// The view that has every change.
pub(crate) const NEWEST: Txg = Txg(u64::MAX);

/// Bytes of a block of dnodes.
pub(crate) const DNODE_BLOCK: u32 = 16 << 10;
/// 512-byte slots in a block of dnodes.
pub const SLOTS: u64 = 32;
const _: () = assert!(SLOTS << ondisk::DNODE_SHIFT == DNODE_BLOCK as u64);
/// Largest object number (format: 2^48 - 1).
pub(crate) const OBJECT_MAX: u64 = (1 << 48) - 1;
const _: () = assert!((OBJECT_MAX + 1).is_multiple_of(SLOTS));

/// What of a dnode belongs to a version: everything but the block tree.
#[derive(Debug, Clone)]
pub(crate) struct Core {
    pub(crate) object_type: ObjectType,
    pub(crate) bonus_type: ObjectType,
    pub(crate) bonus: Rc<[u8]>,
    pub(crate) block_size: u32,
    pub(crate) indirect_shift: u8,
    pub(crate) extra_slots: u8,
    pub(crate) pointers: u8,
    pub(crate) checksum: ChecksumKind,
    pub(crate) compression: Compression,
    pub(crate) max_block_id: u64,
    pub(crate) has_spill: bool,
    /// Levels that the tree has at least; more than it needs where a raw stream says so.
    pub(crate) levels_min: u8,
    /// The bonus buffer with all behind it, up to the spill pointer, as it came encrypted.
    pub(crate) encrypted_bonus: Option<Rc<[u8]>>,
}

impl Core {
    pub(crate) fn free() -> Self {
        Self {
            object_type: ObjectType::NONE,
            bonus_type: ObjectType::NONE,
            bonus: Rc::from([]),
            block_size: 512,
            indirect_shift: 17,
            extra_slots: 0,
            pointers: 1,
            checksum: ChecksumKind::INHERIT,
            compression: Compression::INHERIT,
            max_block_id: 0,
            has_spill: false,
            levels_min: 1,
            encrypted_bonus: None,
        }
    }

    pub(crate) fn is_free(&self) -> bool {
        self.object_type == ObjectType::NONE
    }

    pub(crate) fn slots(&self) -> u8 {
        self.extra_slots + 1
    }

    /// The bonus area of a stored dnode, whose bonus buffer is encrypted.
    pub(crate) fn bonus_area(&self, stored: &[u8]) -> Option<Rc<[u8]>> {
        if self.bonus.is_empty() {
            return None;
        }
        let size = 512 * usize::from(self.slots());
        let start = size.checked_sub(self.bonus_max(false))?;
        let area = stored.get(start..start + self.bonus_max(self.has_spill))?;
        Some(Rc::from(area))
    }

    /// Longest bonus with or without a spill pointer.
    pub(crate) fn bonus_max(&self, has_spill: bool) -> usize {
        let room = 512 * usize::from(self.slots()) - 64 - 128 * usize::from(self.pointers);
        if has_spill {
            room.saturating_sub(128)
        } else {
            room
        }
    }
}

/// The version on disk.
#[derive(Debug, Clone)]
pub(crate) struct Base {
    pub(crate) core: Core,
    pub(crate) levels: u8,
    pub(crate) bps: [BlockPointer; 3],
    pub(crate) spill: BlockPointer,
    pub(crate) used: u64,
    pub(crate) flags: u8,
}

impl Base {
    /// A slot that holds nothing.
    pub(crate) fn free() -> Self {
        Self {
            core: Core::free(),
            levels: 1,
            bps: [BlockPointer::HOLE; 3],
            spill: BlockPointer::HOLE,
            used: 0,
            flags: 0,
        }
    }

    pub(crate) fn from_phys(phys: &DnodePhys) -> Self {
        if phys.is_free() {
            return Self::free();
        }
        let mut bps = [BlockPointer::HOLE; 3];
        for (to, from) in bps.iter_mut().zip(&phys.block_pointers) {
            *to = *from;
        }
        Self {
            core: Core {
                object_type: phys.object_type,
                bonus_type: phys.bonus_type,
                bonus: Rc::from(phys.bonus.as_slice()),
                block_size: u32::from(phys.data_block_sectors) * 512,
                indirect_shift: phys.indirect_shift,
                extra_slots: phys.extra_slots,
                pointers: u8::try_from(phys.block_pointers.len().min(3)).expect("at most three"),
                checksum: phys.checksum,
                compression: phys.compression,
                max_block_id: phys.max_block_id,
                has_spill: phys.spill.is_some(),
                levels_min: 1,
                encrypted_bonus: None,
            },
            levels: phys.levels,
            bps,
            spill: phys.spill.unwrap_or(BlockPointer::HOLE),
            used: phys.used_bytes(),
            flags: phys.flags & !dnode_flags::SPILL_BLKPTR,
        }
    }

    pub(crate) fn to_phys(&self) -> DnodePhys {
        if self.core.is_free() {
            return DnodePhys::default();
        }
        assert!(
            self.core.block_size.is_multiple_of(512) && (1..=3).contains(&self.core.pointers),
            "a dnode is stored as it can be"
        );
        DnodePhys {
            object_type: self.core.object_type,
            indirect_shift: self.core.indirect_shift,
            levels: self.levels,
            bonus_type: self.core.bonus_type,
            checksum: self.core.checksum,
            compression: self.core.compression,
            flags: self.flags,
            data_block_sectors: u16::try_from(self.core.block_size / 512)
                .expect("block sizes are at most 16 MiB"),
            extra_slots: self.core.extra_slots,
            max_block_id: self.core.max_block_id,
            used: self.stored_used(),
            block_pointers: self.bps[..usize::from(self.core.pointers)].to_vec(),
            bonus: self.core.bonus.to_vec(),
            spill: self.core.has_spill.then_some(self.spill),
        }
    }

    /// The space used, in the unit that the flags say.
    fn stored_used(&self) -> u64 {
        if self.flags & dnode_flags::USED_BYTES != 0 {
            self.used
        } else {
            self.used / 512
        }
    }

    /// log2 of pointers per indirect block.
    pub(crate) fn fan_shift(&self) -> u32 {
        u32::from(self.core.indirect_shift) - BlockPointer::SHIFT
    }

    /// Blocks with data (or allocated dnodes) as the pointers say.
    pub(crate) fn fill(&self) -> u64 {
        self.bps[..usize::from(self.core.pointers)]
            .iter()
            .filter(|bp| !bp.is_hole())
            .map(BlockPointer::fill)
            .sum()
    }
}

/// Blocks addressable by one pointer of a block at `level` (1 for a pointer to data), saturating.
pub(crate) fn span_shift(fan_shift: u32, level: u8) -> u32 {
    fan_shift * u32::from(level)
}

/// Saturating shift left.
pub(crate) fn shl(value: u64, shift: u32) -> u64 {
    if value == 0 {
        0
    } else if shift > value.leading_zeros() {
        u64::MAX
    } else {
        value << shift
    }
}

/// Shift right that gives 0 for large shifts.
pub(crate) fn shr(value: u64, shift: u32) -> u64 {
    if shift >= 64 { 0 } else { value >> shift }
}

/// The bytes of a changed block.
pub(crate) enum Block {
    /// Shared with a reader, or handed to the block store: never modified again.
    Shared(IoBuf),
    /// Ours alone: edited in place.
    Own(IoBufMut),
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Shared(buf) => buf,
            Self::Own(buf) => buf,
        }
    }
}

impl Block {
    /// The bytes for editing; copied first if they are shared.
    pub(crate) fn edit(&mut self) -> &mut [u8] {
        if let Self::Shared(buf) = self {
            let taken = std::mem::replace(buf, IoBuf::empty());
            *self = Self::Own(taken.into_mut());
        }
        match self {
            Self::Own(buf) => buf,
            Self::Shared(_) => unreachable!("was just made our own"),
        }
    }

    /// The bytes as a shareable buffer.
    pub(crate) fn share(&mut self) -> IoBuf {
        let buf = match std::mem::replace(self, Self::Shared(IoBuf::empty())) {
            Self::Own(buf) => buf.freeze(),
            Self::Shared(buf) => buf,
        };
        *self = Self::Shared(buf.clone());
        buf
    }
}

/// The changes of one transaction group.
pub(crate) struct Layer {
    pub(crate) txg: Txg,
    /// Being synced: no more changes.
    pub(crate) frozen: bool,
    /// The object as of this txg; free when it was freed.
    pub(crate) core: Core,
    /// Everything older was freed in this txg.
    pub(crate) reset: bool,
    /// Blocks written in this txg.
    pub(crate) blocks: BTreeMap<u64, Block>,
    /// Blocks cloned in this txg; none of them is in `blocks`.
    pub(crate) clones: BTreeMap<u64, Rc<ClonedBlock>>,
    /// Blocks freed in this txg, unless they are in `blocks` or `clones`.
    pub(crate) freed: RangeTree,
    /// Spill block changed: its bytes, or removed.
    pub(crate) spill: Option<Option<IoBuf>>,
}

impl Layer {
    /// The last block that is written or cloned here.
    pub(crate) fn last_block(&self) -> Option<u64> {
        let written = self.blocks.last_key_value().map(|(&block, _)| block);
        let cloned = self.clones.last_key_value().map(|(&block, _)| block);
        written.max(cloned)
    }
}

/// What a view knows of a block.
pub(crate) enum Peek<'a> {
    /// Its bytes are in memory.
    Data(&'a Block),
    /// It shares the bytes of another.
    Clone(&'a Rc<ClonedBlock>),
    /// It reads as zeros.
    Hole,
    /// It is as on disk.
    Base,
}

/// Changeable part of a dnode.
pub(crate) struct DnodeState {
    pub(crate) base: Rc<Base>,
    /// Changes whenever `base` does, and when a block becomes a clone or is one no more.
    pub(crate) generation: u64,
    /// Oldest first.
    pub(crate) layers: Vec<Layer>,
    /// The level-1 block last used, by its number; belongs to `base`.
    pub(crate) recent_l1: Option<(u64, IoBuf)>,
}

/// An object in memory.
pub(crate) struct Dnode {
    pub(crate) id: ObjectId,
    pub(crate) state: RefCell<DnodeState>,
    /// Orders ZAP operations on the object.
    pub(crate) gate: Gate,
    /// Used since the last sweep for idle dnodes.
    pub(crate) touched: Cell<bool>,
    /// Changes whenever content of the newest view does.
    pub(crate) version: Cell<u64>,
    /// Index of a small ZAP, valid for one `version`.
    pub(crate) micro: RefCell<Option<MicroIndex>>,
    /// The reads in order, for prefetch.
    pub(crate) readers: RefCell<Readers>,
    /// What compressing its blocks is worth.
    pub(crate) compressibility: Rc<Compressibility>,
}

/// What the sync of a txg needs of a dnode.
pub(crate) struct Frozen {
    pub(crate) core: Core,
    pub(crate) reset: bool,
    pub(crate) blocks: BTreeMap<u64, IoBuf>,
    pub(crate) clones: BTreeMap<u64, Rc<ClonedBlock>>,
    pub(crate) freed: RangeTree,
    pub(crate) spill: Option<Option<IoBuf>>,
}

impl Dnode {
    pub(crate) fn new(id: ObjectId, base: Base) -> Rc<Self> {
        Rc::new(Self {
            id,
            state: RefCell::new(DnodeState {
                base: Rc::new(base),
                generation: 0,
                layers: Vec::new(),
                recent_l1: None,
            }),
            gate: Gate::default(),
            touched: Cell::new(true),
            version: Cell::new(0),
            micro: RefCell::new(None),
            readers: RefCell::default(),
            compressibility: Rc::default(),
        })
    }

    /// The version on disk.
    pub(crate) fn base(&self) -> Rc<Base> {
        Rc::clone(&self.state.borrow().base)
    }

    /// Runs `f` on the core of a view.
    pub(crate) fn with_core<R>(&self, view: Txg, f: impl FnOnce(&Core) -> R) -> R {
        f(self.state.borrow().core(view))
    }

    /// Whether something holds for the object in a view and in all newer ones that a change in that txg goes to: those in
    /// which it is not free.
    pub(crate) fn holds_from(&self, view: Txg, f: impl Fn(&Core) -> bool) -> bool {
        let state = self.state.borrow();
        let newer = state.layers[state.visible(view)..].iter();
        std::iter::once(state.core(view))
            .chain(newer.map(|layer| &layer.core))
            .all(|core| core.is_free() || f(core))
    }

    pub(crate) fn is_free(&self, view: Txg) -> bool {
        self.with_core(view, Core::is_free)
    }

    pub(crate) fn is_dirty(&self) -> bool {
        !self.state.borrow().layers.is_empty()
    }

    /// Notes that content changed.
    pub(crate) fn bump(&self) {
        self.version.set(self.version.get() + 1);
    }

    /// Freezes the layer of `txg` for its sync; `None` when there is nothing to sync.
    pub(crate) fn freeze(&self, txg: Txg) -> Option<Frozen> {
        let mut state = self.state.borrow_mut();
        let layer = state
            .layers
            .iter_mut()
            .find(|l| l.txg == txg && !l.frozen)?;
        assert!(!layer.frozen, "a layer is frozen once");
        layer.frozen = true;
        Some(Frozen {
            core: layer.core.clone(),
            reset: layer.reset,
            blocks: layer
                .blocks
                .iter_mut()
                .map(|(&id, block)| (id, block.share()))
                .collect(),
            clones: layer.clones.clone(),
            freed: layer.freed.clone(),
            spill: layer.spill.clone(),
        })
    }

    /// Replaces the base by the synced version and drops the frozen layer it came from.
    pub(crate) fn settle(&self, txg: Txg, base: Base) {
        let mut state = self.state.borrow_mut();
        state.base = Rc::new(base);
        state.generation += 1;
        state.recent_l1 = None;
        let at = state.layers.iter().position(|l| l.txg == txg && l.frozen);
        state
            .layers
            .remove(at.expect("the layer being synced stays until it is settled"));
    }
}

impl DnodeState {
    /// Number of layers a view sees.
    fn visible(&self, view: Txg) -> usize {
        self.layers.partition_point(|l| l.txg <= view)
    }

    /// The core of a view.
    pub(crate) fn core(&self, view: Txg) -> &Core {
        match self.visible(view) {
            0 => &self.base.core,
            n => &self.layers[n - 1].core,
        }
    }

    /// What a view knows of a block, without I/O.
    pub(crate) fn peek(&self, view: Txg, block: u64) -> Peek<'_> {
        for layer in self.layers[..self.visible(view)].iter().rev() {
            if let Some(data) = layer.blocks.get(&block) {
                return Peek::Data(data);
            }
            if let Some(clone) = layer.clones.get(&block) {
                return Peek::Clone(clone);
            }
            if layer.reset || layer.freed.contains(block) {
                return Peek::Hole;
            }
        }
        if self.base.core.is_free() || block > self.base.core.max_block_id {
            return Peek::Hole;
        }
        Peek::Base
    }

    /// The spill block of a view: bytes, or nothing, or `None` for what the base has.
    pub(crate) fn peek_spill(&self, view: Txg) -> Option<Option<IoBuf>> {
        for layer in self.layers[..self.visible(view)].iter().rev() {
            if let Some(spill) = &layer.spill {
                return Some(spill.clone());
            }
            if layer.reset {
                return Some(None);
            }
        }
        None
    }

    /// The block's bytes as a shareable buffer, if the view has them in memory as changed data.
    pub(crate) fn share(&mut self, view: Txg, block: u64) -> Option<IoBuf> {
        let visible = self.visible(view);
        for layer in self.layers[..visible].iter_mut().rev() {
            if let Some(data) = layer.blocks.get_mut(&block) {
                return Some(data.share());
            }
        }
        None
    }

    /// Index of the changeable layer of `txg`, made if needed; the flag says it is new.
    pub(crate) fn layer(&mut self, txg: Txg) -> (usize, bool) {
        let visible = self.visible(txg);
        if visible > 0 && self.layers[visible - 1].txg == txg && !self.layers[visible - 1].frozen {
            return (visible - 1, false);
        }
        let core = self.core(txg).clone();
        self.layers.insert(
            visible,
            Layer {
                txg,
                frozen: false,
                core,
                reset: false,
                blocks: BTreeMap::new(),
                clones: BTreeMap::new(),
                freed: RangeTree::default(),
                spill: None,
            },
        );
        (visible, true)
    }

    /// The next block at or after `from`, in a view, that is in memory as changed data or as a clone.
    pub(crate) fn next_dirty(&self, view: Txg, from: u64) -> Option<u64> {
        let mut best = None;
        for layer in self.layers[..self.visible(view)].iter().rev() {
            let written = layer.blocks.range(from..).next().map(|(&block, _)| block);
            let cloned = layer.clones.range(from..).next().map(|(&block, _)| block);
            best = best.into_iter().chain(written).chain(cloned).min();
            if layer.reset {
                break;
            }
        }
        best
    }

    /// The freed range of a view that hides block `at` of the base, if one does.
    pub(crate) fn hidden(&self, view: Txg, at: u64) -> Option<Range<u64>> {
        for layer in self.layers[..self.visible(view)].iter().rev() {
            if layer.reset {
                return Some(at..u64::MAX);
            }
            if let Some(range) = layer.freed.range_at(at) {
                return Some(range);
            }
        }
        None
    }
}
