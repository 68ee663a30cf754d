//! Object numbers: finding free slots, allocating, freeing, listing.
//!
//! Allocation keeps the bits of one block of dnodes (32 slots) in memory and moves on when it is full: first to blocks in which
//! objects were freed since the objset was opened, then to blocks that the fill counts of the table's indirect blocks call at
//! least a quarter empty, then to the end of the table.

use std::rc::Rc;

use ondisk::{ChecksumKind, Compression, ObjectId, ObjectType, Txg, block_pointers_for_bonus};

use crate::dnode::{Base, Core, Dnode, NEWEST, OBJECT_MAX, SLOTS};
use crate::error::{DmuError, Result};
use crate::free_slots::slot_mask;
use crate::objset::Objset;
use crate::txg::Tx;
use crate::types::AllocSpec;

/// A block of dnodes with more dnodes than this is not worth a look (three quarters of 32).
const FILL_WORTH_A_LOOK: u64 = 24;
/// Largest block, in bytes.
pub(crate) const BLOCK_SIZE_MAX: u32 = 16 << 20;
const _: () = assert!(BLOCK_SIZE_MAX as u64 == ondisk::MAX_BLOCK_SIZE);
const _: () = assert!(FILL_WORTH_A_LOOK < SLOTS);

impl Objset {
    /// Allocates an object with a number of our choice.
    ///
    /// # Errors
    /// `Invalid` or `TooLarge` for an impossible `spec`; read errors of the table of dnodes.
    pub async fn allocate(&self, spec: AllocSpec, tx: &Tx) -> Result<ObjectId> {
        self.check_writable()?;
        let core = core_of(&spec)?;
        let object = self.free_slots(core.slots()).await?;
        self.install(object, core, tx).await?;
        Ok(object)
    }

    /// Allocates an object with a given number.
    ///
    /// # Errors
    /// `ObjectExists` when a slot it needs is taken; else as `allocate`.
    pub async fn allocate_at(&self, object: ObjectId, spec: AllocSpec, tx: &Tx) -> Result<()> {
        self.check_writable()?;
        let core = core_of(&spec)?;
        if object.0 == 0 || object.0 > OBJECT_MAX {
            return Err(DmuError::Invalid {
                what: "object number out of range",
            });
        }
        let slot = object.0 % SLOTS;
        if slot + u64::from(core.slots()) > SLOTS {
            return Err(DmuError::Invalid {
                what: "a dnode may not cross a block of dnodes",
            });
        }
        let _pass = self.0.allocator.exclusive().await;
        let taken = self.slots_taken(object.0 / SLOTS, Some(tx.txg())).await?;
        if taken & (slot_mask(core.slots()) << slot) != 0 {
            return Err(DmuError::ObjectExists { object });
        }
        self.0.allocator.note_allocated(object, core.slots());
        self.install(object, core, tx).await
    }

    /// Frees an object and everything in it.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub async fn free_object(&self, object: ObjectId, tx: &Tx) -> Result<()> {
        self.check_writable()?;
        let dnode = self.dnode(object).await?;
        let at = self.dirty_layer(&dnode, tx);
        let mut state = dnode.state.borrow_mut();
        for layer in &mut state.layers[at..] {
            layer.core = Core::free();
            layer.reset = true;
            layer.blocks.clear();
            layer.clones.clear();
            layer.freed = range_tree::RangeTree::default();
            layer.spill = None;
        }
        drop(state);
        dnode.bump();
        Ok(())
    }

    /// The next allocated object with a number greater than `after`.
    ///
    /// # Errors
    /// Read errors of the table of dnodes.
    pub async fn next_object(&self, after: ObjectId) -> Result<Option<ObjectId>> {
        let mut at = after.0 + 1;
        while at <= OBJECT_MAX {
            let block = at / SLOTS;
            let on_disk = self.next_base_block(&self.0.meta, block).await?;
            let in_memory = self
                .0
                .dirty
                .borrow()
                .values()
                .filter_map(|objects| objects.range(ObjectId(at)..=ObjectId(OBJECT_MAX)).next())
                .map(|(id, _)| id.0 / SLOTS)
                .min();
            let Some(found) = on_disk.into_iter().chain(in_memory).min() else {
                return Ok(None);
            };
            if found > block {
                at = found * SLOTS;
            }
            let starts = self.objects_in(found).await? & (u32::MAX << (at % SLOTS));
            if starts != 0 {
                return Ok(Some(ObjectId(
                    found * SLOTS + u64::from(starts.trailing_zeros()),
                )));
            }
            at = (found + 1) * SLOTS;
        }
        Ok(None)
    }

    async fn install(&self, object: ObjectId, core: Core, tx: &Tx) -> Result<()> {
        assert!(
            object.0 > 0 && object.0 <= OBJECT_MAX,
            "object {object} is an ordinary one"
        );
        assert!(
            object.0 % SLOTS + u64::from(core.slots()) <= SLOTS,
            "object {object} lies in one block of dnodes"
        );
        let existing = match self.in_memory(object) {
            Some(dnode) => Some(dnode),
            None => self.dnode_any(object).await?,
        };
        let dnode = existing.unwrap_or_else(|| {
            let dnode = Dnode::new(object, Base::free());
            self.insert(Rc::clone(&dnode));
            dnode
        });
        let at = self.dirty_layer(&dnode, tx);
        let mut state = dnode.state.borrow_mut();
        if !state.core(NEWEST).is_free() {
            return Err(DmuError::ObjectExists { object });
        }
        for layer in &mut state.layers[at..] {
            layer.core = core.clone();
            layer.reset = true;
        }
        drop(state);
        dnode.bump();
        Ok(())
    }

    /// Finds and takes `slots` free slots in a row.
    async fn free_slots(&self, slots: u8) -> Result<ObjectId> {
        let allocator = &self.0.allocator;
        if let Some(object) = allocator.take_here(slots) {
            return Ok(ObjectId(object));
        }
        let _pass = allocator.exclusive().await;
        loop {
            if let Some(object) = allocator.take_here(slots) {
                return Ok(ObjectId(object));
            }
            let (block, is_end) = self.next_candidate().await?;
            if block * SLOTS > OBJECT_MAX {
                return Err(DmuError::NoSpace);
            }
            let taken = self.slots_taken(block, None).await?;
            allocator.search_in(block, taken, is_end);
        }
    }

    async fn next_candidate(&self) -> Result<(u64, bool)> {
        let allocator = &self.0.allocator;
        if let Some(block) = allocator.take_freed() {
            return Ok((block, false));
        }
        while let Some(block) = allocator.next_to_scan() {
            let base = self.0.meta.base();
            if block <= base.core.max_block_id {
                let bp = self.base_pointer(&self.0.meta, block).await?;
                if !bp.is_hole() && bp.fill() > FILL_WORTH_A_LOOK {
                    continue;
                }
            }
            allocator.count_scanned();
            return Ok((block, false));
        }
        Ok((allocator.end(), true))
    }

    /// Bits of the slots taken in a block of dnodes: in txg `from` and newer ones, or in any version that is kept.
    pub(crate) async fn slots_taken(&self, block: u64, from: Option<Txg>) -> Result<u32> {
        let (mut taken, _) = self.block_bits(block, from).await?;
        if block == 0 {
            taken |= 1;
        }
        Ok(taken)
    }

    /// Bits of the slots in which objects start, in the newest view.
    async fn objects_in(&self, block: u64) -> Result<u32> {
        let (_, mut starts) = self.block_bits(block, None).await?;
        if block == 0 {
            starts &= !1;
        }
        Ok(starts)
    }

    async fn block_bits(&self, block: u64, from: Option<Txg>) -> Result<(u32, u32)> {
        loop {
            let generation = self.0.meta.state.borrow().generation;
            let bytes = self.base_block(&self.0.meta, block).await?;
            if self.0.meta.state.borrow().generation != generation {
                continue;
            }
            let mut taken = bytes.as_ref().map_or(0, |b| ondisk::dnode_slots(b));
            let mut starts = bytes.as_ref().map_or(0, |b| ondisk::dnode_starts(b));
            let table = self.0.table.borrow();
            let here = || table.range(ObjectId(block * SLOTS)..ObjectId((block + 1) * SLOTS));
            if from.is_some() {
                for (id, dnode) in here() {
                    let base = dnode.base();
                    if !base.core.is_free() {
                        taken &= !(slot_mask(base.core.slots()) << (id.0 % SLOTS));
                    }
                }
            }
            for (id, dnode) in here() {
                let slot = id.0 % SLOTS;
                let mut take = |core: &Core| {
                    if !core.is_free() {
                        taken |= slot_mask(core.slots()) << slot;
                    }
                };
                let state = dnode.state.borrow();
                take(state.core(from.unwrap_or(NEWEST)));
                for layer in state
                    .layers
                    .iter()
                    .filter(|l| from.is_none_or(|from| l.txg > from))
                {
                    take(&layer.core);
                }
                if from.is_none() {
                    take(&state.base.core);
                }
                starts &= !(1 << slot);
                if !state.core(NEWEST).is_free() {
                    starts |= 1 << slot;
                }
            }
            return Ok((taken, starts));
        }
    }
}

/// The first version of a new object.
fn core_of(spec: &AllocSpec) -> Result<Core> {
    let slots = if spec.slots == 0 { 1 } else { spec.slots };
    if u64::from(slots) > SLOTS {
        return Err(DmuError::TooLarge {
            what: "a dnode has at most 32 slots",
        });
    }
    if spec.object_type == ObjectType::NONE {
        return Err(DmuError::Invalid {
            what: "an object needs a type",
        });
    }
    let block_size = if spec.block_size == 0 {
        512
    } else {
        spec.block_size
    };
    check_block_size(block_size)?;
    let indirect_shift = if spec.indirect_shift == 0 {
        17
    } else {
        spec.indirect_shift
    };
    if !(12..=17).contains(&indirect_shift) {
        return Err(DmuError::Invalid {
            what: "indirect blocks are 4 KiB to 128 KiB",
        });
    }
    let bonus_len = usize::from(spec.bonus_len);
    let pointers = block_pointers_for_bonus(spec.bonus_type, bonus_len, slots - 1);
    let core = Core {
        object_type: spec.object_type,
        bonus_type: spec.bonus_type,
        bonus: vec![0; bonus_len].into(),
        block_size,
        indirect_shift,
        extra_slots: slots - 1,
        pointers: u8::try_from(pointers).expect("at most three"),
        checksum: ChecksumKind::INHERIT,
        compression: Compression::INHERIT,
        max_block_id: 0,
        has_spill: false,
        levels_min: 1,
        encrypted_bonus: None,
    };
    if bonus_len > core.bonus_max(false) {
        return Err(DmuError::TooLarge {
            what: "the bonus does not fit the dnode",
        });
    }
    Ok(core)
}

pub(crate) fn check_block_size(bytes: u32) -> Result<()> {
    if bytes == 0 || !bytes.is_multiple_of(512) {
        return Err(DmuError::Invalid {
            what: "block sizes are multiples of 512",
        });
    }
    if bytes > BLOCK_SIZE_MAX {
        return Err(DmuError::TooLarge {
            what: "blocks are at most 16 MiB",
        });
    }
    Ok(())
}
