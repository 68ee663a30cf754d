//! Dnodes: one object's shape, its block pointers, its bonus buffer and spill pointer.
//!
//! ```text
//!   0 core (64 bytes) | 64 block pointers (128 each) | bonus ... | [spill pointer in the last 128 bytes]
//! ```
//! 512 bytes times (1 + extra slots). OpenZFS: include/sys/dnode.h, dnode_phys_t.

use crate::bytes::{
    index, need, put_bytes, put_u8, put_u16, put_u64, slice_at, u8_at, u16_at, u64_at,
};
use crate::{BlockPointer, ChecksumKind, Compression, DecodeError, ObjectType, Result, SECTOR};

/// log2 of the smallest dnode.
pub const DNODE_SHIFT: u32 = 9;
/// Bytes of a dnode without extra slots.
pub const DNODE_MIN_SIZE: usize = 512;
/// Byte of a dnode that holds the number of slots it takes beyond the first.
const EXTRA_SLOTS_AT: usize = 12;
/// Largest bonus buffer of a dnode without extra slots and without spill.
pub const BONUS_MAX_SMALL: usize = 320;

const CORE: usize = 64;

/// Bits of [`DnodePhys::flags`].
pub mod dnode_flags {
    /// `used` is in bytes (else in 512-byte sectors).
    pub const USED_BYTES: u8 = 1;
    /// Counted in the user, group and project usage objects.
    pub const USERUSED_ACCOUNTED: u8 = 2;
    /// The last 128 bytes are a block pointer to the spill block.
    pub const SPILL_BLKPTR: u8 = 4;
    /// Counted in the per-user object counts.
    pub const USEROBJUSED_ACCOUNTED: u8 = 8;
}

/// Number of block pointers OpenZFS gives a new dnode with this bonus.
#[must_use]
pub fn block_pointers_for_bonus(
    bonus_type: ObjectType,
    bonus_len: usize,
    extra_slots: u8,
) -> usize {
    if bonus_type == ObjectType::SA {
        return 1;
    }
    let room = BONUS_MAX_SMALL + DNODE_MIN_SIZE * usize::from(extra_slots);
    (1 + (room.saturating_sub(bonus_len) >> 7)).min(3)
}

/// A dnode, decoded. A free slot has type [`ObjectType::NONE`] and no block pointers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DnodePhys {
    pub object_type: ObjectType,
    /// log2 of the indirect block size, 12..=17.
    pub indirect_shift: u8,
    /// 1 when the block pointers point to data.
    pub levels: u8,
    pub bonus_type: ObjectType,
    /// `INHERIT` unless set for this object alone.
    pub checksum: ChecksumKind,
    /// `INHERIT` unless set for this object alone.
    pub compression: Compression,
    /// Bits of [`dnode_flags`]. The spill bit follows [`Self::spill`] when encoding.
    pub flags: u8,
    /// Data block size in 512-byte sectors.
    pub data_block_sectors: u16,
    /// 512-byte slots taken beyond the first.
    pub extra_slots: u8,
    /// Largest data block number ever in use; 0 even if empty.
    pub max_block_id: u64,
    /// Raw space used; see [`Self::used_bytes`].
    pub used: u64,
    /// One to three.
    pub block_pointers: Vec<BlockPointer>,
    pub bonus: Vec<u8>,
    pub spill: Option<BlockPointer>,
}

impl DnodePhys {
    /// Decodes a dnode at the start of `buf`, which must hold all of its slots.
    ///
    /// # Errors
    /// [`DecodeError`] for a dnode OpenZFS would refuse to open: impossible counts, sizes or shifts.
    pub fn decode(buf: &[u8]) -> Result<Self> {
        need(buf, DNODE_MIN_SIZE, "dnode")?;
        let object_type = ObjectType(u8_at(buf, 0));
        if object_type == ObjectType::NONE {
            return Ok(Self::default());
        }
        let bad = |what, offset| Err(DecodeError::new(what, offset));
        let extra_slots = u8_at(buf, EXTRA_SLOTS_AT);
        let size = DNODE_MIN_SIZE * (1 + usize::from(extra_slots));
        if buf.len() < size || extra_slots > 31 {
            return bad("dnode extra slots", EXTRA_SLOTS_AT);
        }
        let levels = u8_at(buf, 2);
        if levels == 0 || levels > 32 {
            return bad("dnode levels", 2);
        }
        let indirect_shift = u8_at(buf, 1);
        if !(10..=17).contains(&indirect_shift) {
            return bad("dnode indirect block shift", 1);
        }
        let count = usize::from(u8_at(buf, 3));
        if !(1..=3).contains(&count) {
            return bad("dnode block pointer count", 3);
        }
        if !object_type.is_valid() {
            return bad("dnode type", 0);
        }
        let bonus_type = ObjectType(u8_at(buf, 4));
        if !bonus_type.is_valid() {
            return bad("dnode bonus type", 4);
        }
        let data_block_sectors = u16_at(buf, 8);
        if data_block_sectors == 0 {
            return bad("dnode data block size", 8);
        }
        let flags = u8_at(buf, 7);
        let bonus_off = CORE + BlockPointer::SIZE * count;
        let has_spill = flags & dnode_flags::SPILL_BLKPTR != 0;
        let bonus_end = size - if has_spill { BlockPointer::SIZE } else { 0 };
        let bonus_len = usize::from(u16_at(buf, 10));
        if bonus_off + bonus_len > bonus_end {
            return bad("dnode bonus length", 10);
        }
        let pointers = slice_at(buf, CORE, BlockPointer::SIZE * count);
        let spill = if has_spill {
            Some(BlockPointer::decode(slice_at(
                buf,
                bonus_end,
                BlockPointer::SIZE,
            ))?)
        } else {
            None
        };
        Ok(Self {
            object_type,
            indirect_shift,
            levels,
            bonus_type,
            checksum: ChecksumKind(u8_at(buf, 5)),
            compression: Compression(u8_at(buf, 6)),
            flags,
            data_block_sectors,
            extra_slots,
            max_block_id: u64_at(buf, 16),
            used: u64_at(buf, 24),
            block_pointers: BlockPointer::decode_all(pointers).collect(),
            bonus: slice_at(buf, bonus_off, bonus_len).to_vec(),
            spill,
        })
    }

    /// Encodes into the first [`Self::size`] bytes of `buf`, all of which are written.
    pub fn encode(&self, buf: &mut [u8]) {
        let size = self.size();
        if let Some(own) = buf.get_mut(..size) {
            own.fill(0);
        }
        if self.is_free() {
            return;
        }
        debug_assert!(
            (1..=3).contains(&self.block_pointers.len()),
            "dnode with {} block pointers",
            self.block_pointers.len()
        );
        debug_assert!(
            self.bonus.len() <= self.bonus_max(),
            "bonus of {} bytes",
            self.bonus.len()
        );
        let count = self.block_pointers.len().min(3);
        put_u8(buf, 0, self.object_type.0);
        put_u8(buf, 1, self.indirect_shift);
        put_u8(buf, 2, self.levels);
        put_u8(buf, 3, u8::try_from(count).unwrap_or(3));
        put_u8(buf, 4, self.bonus_type.0);
        put_u8(buf, 5, self.checksum.0);
        put_u8(buf, 6, self.compression.0);
        let spill_bit = if self.spill.is_some() {
            dnode_flags::SPILL_BLKPTR
        } else {
            0
        };
        put_u8(
            buf,
            7,
            (self.flags & !dnode_flags::SPILL_BLKPTR) | spill_bit,
        );
        put_u16(buf, 8, self.data_block_sectors);
        put_u16(buf, 10, u16::try_from(self.bonus.len()).unwrap_or(u16::MAX));
        put_u8(buf, EXTRA_SLOTS_AT, self.extra_slots);
        put_u64(buf, 16, self.max_block_id);
        put_u64(buf, 24, self.used);
        for (i, bp) in self.block_pointers.iter().take(3).enumerate() {
            put_bytes(buf, CORE + i * BlockPointer::SIZE, &bp.encode());
        }
        put_bytes(buf, CORE + count * BlockPointer::SIZE, &self.bonus);
        if let Some(spill) = &self.spill {
            put_bytes(buf, size - BlockPointer::SIZE, &spill.encode());
        }
    }

    /// True for a slot that holds no object.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.object_type == ObjectType::NONE
    }

    /// Encoded bytes: 512 times the slots.
    #[must_use]
    pub fn size(&self) -> usize {
        DNODE_MIN_SIZE * self.slots()
    }

    /// 512-byte slots taken.
    #[must_use]
    pub fn slots(&self) -> usize {
        1 + usize::from(self.extra_slots)
    }

    /// Most bonus bytes this dnode can hold, given its block pointers and whether it has a spill pointer.
    #[must_use]
    pub fn bonus_max(&self) -> usize {
        let spill = if self.spill.is_some() {
            BlockPointer::SIZE
        } else {
            0
        };
        self.size()
            .saturating_sub(CORE + self.block_pointers.len() * BlockPointer::SIZE + spill)
    }

    /// Data block size in bytes.
    #[must_use]
    pub fn data_block_size(&self) -> u64 {
        u64::from(self.data_block_sectors) * SECTOR
    }

    /// Indirect block size in bytes.
    #[must_use]
    pub fn indirect_block_size(&self) -> u64 {
        1 << self.indirect_shift.min(63)
    }

    /// log2 of the number of pointers in an indirect block.
    #[must_use]
    pub fn pointers_shift(&self) -> u32 {
        u32::from(self.indirect_shift).saturating_sub(BlockPointer::SHIFT)
    }

    /// Bytes of pool space all blocks of the object take.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        if self.flags & dnode_flags::USED_BYTES != 0 {
            self.used
        } else {
            self.used.saturating_mul(SECTOR)
        }
    }

    /// Number of data blocks the pointers and levels can address, saturating.
    #[must_use]
    pub fn addressable_blocks(&self) -> u64 {
        let shift = self.pointers_shift() * u32::from(self.levels.saturating_sub(1));
        let per_pointer = if shift >= 60 { 1 << 60 } else { 1u64 << shift };
        per_pointer.saturating_mul(self.block_pointers.len() as u64)
    }

    /// Which of the dnode's pointers leads to data block `block`, or `None` beyond what it can address.
    #[must_use]
    pub fn top_pointer_index(&self, block: u64) -> Option<usize> {
        let shift = self.pointers_shift() * u32::from(self.levels.saturating_sub(1));
        let i = if shift >= 64 {
            0
        } else {
            index(block >> shift)
        };
        (i < self.block_pointers.len()).then_some(i)
    }
}

/// First slot and number of slots of each dnode in a block of at most 32 slots.
fn dnodes_in(block: &[u8]) -> impl Iterator<Item = (u32, u32)> {
    let count = u32::try_from(block.len() / DNODE_MIN_SIZE).map_or(32, |count| count.min(32));
    let mut slot = 0;
    std::iter::from_fn(move || {
        while slot < count {
            let first = slot;
            let at = first as usize * DNODE_MIN_SIZE;
            slot += 1;
            if u8_at(block, at) != 0 {
                slot += u32::from(u8_at(block, at + EXTRA_SLOTS_AT));
                return Some((first, slot - first));
            }
        }
        None
    })
}

/// Slots of a block of dnodes in which a dnode starts: bit `i` is slot `i`. A block has at most 32 slots.
#[must_use]
pub fn dnode_starts(block: &[u8]) -> u32 {
    dnodes_in(block).fold(0, |starts, (slot, _)| starts | 1 << slot)
}

/// Slots of a block of dnodes that are taken, as in [`dnode_starts`].
#[must_use]
pub fn dnode_slots(block: &[u8]) -> u32 {
    dnodes_in(block).fold(0, |taken, (slot, slots)| {
        let mask = u32::MAX.checked_shr(32_u32.saturating_sub(slots));
        taken | mask.unwrap_or(0) << slot
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Txg;

    fn sample() -> DnodePhys {
        DnodePhys {
            object_type: ObjectType::PLAIN_FILE_CONTENTS,
            indirect_shift: 17,
            levels: 2,
            bonus_type: ObjectType::SA,
            flags: dnode_flags::USED_BYTES,
            data_block_sectors: 256,
            max_block_id: 41,
            used: 4096,
            block_pointers: vec![BlockPointer::hole(
                131_072,
                ObjectType::PLAIN_FILE_CONTENTS,
                1,
                Txg(8),
            )],
            bonus: (0..=167).collect(),
            ..DnodePhys::default()
        }
    }

    #[test]
    fn encodes_and_decodes_to_itself() {
        for (extra, spill) in [(0, false), (0, true), (1, true), (31, false)] {
            let mut dn = sample();
            dn.extra_slots = extra;
            if spill {
                dn.spill = Some(BlockPointer::hole(512, ObjectType::SA, 0, Txg(9)));
                dn.flags |= dnode_flags::SPILL_BLKPTR;
            }
            let mut buf = vec![0xff; dn.size()];
            dn.encode(&mut buf);
            assert_eq!(DnodePhys::decode(&buf).unwrap(), dn);
        }
    }

    #[test]
    fn refuses_impossible_shapes() {
        let mut good = vec![0; 512];
        sample().encode(&mut good);
        for (offset, value) in [
            (1, 9),
            (1, 18),
            (2, 0),
            (2, 33),
            (3, 0),
            (3, 4),
            (8, 0),
            (12, 1),
            (0, 60),
            (4, 60),
        ] {
            let mut b = good.clone();
            b[offset] = value;
            if offset == 8 {
                b[9] = 0;
            }
            assert!(DnodePhys::decode(&b).is_err(), "byte {offset} = {value}");
        }
        good[10] = 0xff;
        good[11] = 0xff;
        assert!(DnodePhys::decode(&good).is_err());
    }

    #[test]
    fn block_pointer_counts_follow_the_bonus() {
        for (len, want) in [
            (0, 3),
            (8, 3),
            (24, 3),
            (40, 3),
            (48, 3),
            (256, 1),
            (320, 1),
        ] {
            assert_eq!(
                block_pointers_for_bonus(ObjectType::DSL_DIR, len, 0),
                want,
                "bonus {len}"
            );
        }
        assert_eq!(block_pointers_for_bonus(ObjectType::SA, 0, 0), 1);
    }

    #[test]
    fn slots_of_a_block() {
        let mut block = vec![0; 32 * DNODE_MIN_SIZE];
        assert_eq!((dnode_starts(&block), dnode_slots(&block)), (0, 0));
        for (slot, extra) in [(1, 0), (4, 2), (30, 200)] {
            block[slot * DNODE_MIN_SIZE] = 1;
            block[slot * DNODE_MIN_SIZE + EXTRA_SLOTS_AT] = extra;
        }
        // Inside a dnode nothing starts.
        block[5 * DNODE_MIN_SIZE] = 1;
        assert_eq!(dnode_starts(&block), 1 << 1 | 1 << 4 | 1 << 30);
        assert_eq!(dnode_slots(&block), 1 << 1 | 7 << 4 | 3 << 30);
        assert_eq!(dnode_slots(&block[..4 * DNODE_MIN_SIZE]), 1 << 1);
        block[0] = 1;
        block[EXTRA_SLOTS_AT] = 31;
        assert_eq!((dnode_starts(&block), dnode_slots(&block)), (1, u32::MAX));
    }
}
