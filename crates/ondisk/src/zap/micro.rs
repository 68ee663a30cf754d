//! Microzap: one block of fixed entries, each a name of at most 49 bytes with one `u64`.
//!
//! ```text
//! 0 mark | 8 salt | 16 normalization flags | 24 zeros | 64 + 64 i: value 8, cd 4, pad 2, name 50 (NUL-terminated)
//! ```
//! Free entries have an empty name. Functions work on the block's bytes; [`MicroZap`] is the whole decoded.

use super::{MICRO, norm};
use crate::bytes::{put_bytes, put_u32, put_u64, slice_at, u32_at, u64_at};
use crate::{DecodeError, Result};

/// Bytes of the header and of each entry.
pub const ENTRY_SIZE: usize = 64;
/// Longest name in bytes, without the NUL.
pub const NAME_MAX: usize = 49;
/// Largest microzap block without the `large_microzap` feature.
pub const BLOCK_MAX: usize = 128 << 10;

const NAME_AT: usize = 14;

/// One entry, borrowed from its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MicroEntry<'a> {
    /// Which slot of the block holds it.
    pub slot: usize,
    pub name: &'a [u8],
    pub value: u64,
    /// Collision differentiator: unique among entries of equal hash.
    pub cd: u32,
}

/// Entries a block of this many bytes can hold.
#[must_use]
pub const fn slots(block_len: usize) -> usize {
    (block_len / ENTRY_SIZE).saturating_sub(1)
}

/// Salt and normalization flags of a microzap block.
///
/// # Errors
/// [`DecodeError`] when the block is not a microzap.
pub fn header(block: &[u8]) -> Result<(u64, u64)> {
    if block.len() < ENTRY_SIZE || u64_at(block, 0) != MICRO {
        return Err(DecodeError::new("microzap", 0));
    }
    Ok((u64_at(block, 8), u64_at(block, 16)))
}

/// Makes `block` an empty microzap. `salt` must not be 0.
pub fn format(block: &mut [u8], salt: u64, norm_flags: u64) {
    block.fill(0);
    put_u64(block, 0, MICRO);
    put_u64(block, 8, salt);
    put_u64(block, 16, norm_flags);
}

/// The entry in `slot`, when it is used.
#[must_use]
pub fn entry(block: &[u8], slot: usize) -> Option<MicroEntry<'_>> {
    let e = slice_at(
        block,
        slot.checked_add(1)?.checked_mul(ENTRY_SIZE)?,
        ENTRY_SIZE,
    );
    let name = slice_at(e, NAME_AT, ENTRY_SIZE - NAME_AT);
    let len = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    if len == 0 {
        return None;
    }
    Some(MicroEntry {
        slot,
        name: slice_at(name, 0, len),
        value: u64_at(e, 0),
        cd: u32_at(e, 8),
    })
}

/// The used entries in slot order.
pub fn entries(block: &[u8]) -> impl Iterator<Item = MicroEntry<'_>> {
    (0..slots(block.len())).filter_map(|slot| entry(block, slot))
}

/// The first free slot.
#[must_use]
pub fn free_slot(block: &[u8]) -> Option<usize> {
    (0..slots(block.len())).find(|slot| entry(block, *slot).is_none())
}

/// Writes an entry into `slot`; a name longer than [`NAME_MAX`] or a slot outside the block writes nothing.
pub fn put(block: &mut [u8], slot: usize, name: &[u8], value: u64, cd: u32) {
    debug_assert!(name.len() <= NAME_MAX && !name.is_empty() && slot < slots(block.len()));
    if name.len() > NAME_MAX || slot >= slots(block.len()) {
        return;
    }
    clear(block, slot);
    let at = (slot + 1) * ENTRY_SIZE;
    put_u64(block, at, value);
    put_u32(block, at + 8, cd);
    put_bytes(block, at + NAME_AT, name);
}

/// Changes the value in `slot`.
pub fn set_value(block: &mut [u8], slot: usize, value: u64) {
    put_u64(block, (slot + 1) * ENTRY_SIZE, value);
}

/// Frees `slot`.
pub fn clear(block: &mut [u8], slot: usize) {
    put_bytes(block, (slot + 1) * ENTRY_SIZE, &[0; ENTRY_SIZE]);
}

/// A microzap, decoded: for readers and tests that want the whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MicroZap {
    pub salt: u64,
    /// Bits of [`norm`].
    pub norm_flags: u64,
    /// Name, value, collision differentiator; in slot order.
    pub entries: Vec<(Vec<u8>, u64, u32)>,
}

impl MicroZap {
    /// Decodes a microzap block.
    ///
    /// # Errors
    /// [`DecodeError`] when the block is not a microzap.
    pub fn decode(block: &[u8]) -> Result<Self> {
        let (salt, norm_flags) = header(block)?;
        let entries = entries(block)
            .map(|e| (e.name.to_vec(), e.value, e.cd))
            .collect();
        Ok(Self {
            salt,
            norm_flags,
            entries,
        })
    }

    /// Encodes into a block of at least `min_size` bytes (a multiple of 512), more when the entries need it.
    #[must_use]
    pub fn encode(&self, min_size: usize) -> Vec<u8> {
        let needed = (ENTRY_SIZE * (1 + self.entries.len())).next_multiple_of(512);
        let mut block = vec![0; needed.max(min_size)];
        format(&mut block, self.salt, self.norm_flags);
        for (slot, (name, value, cd)) in self.entries.iter().enumerate() {
            put(&mut block, slot, name, *value, *cd);
        }
        block
    }

    /// True when names are compared without case.
    #[must_use]
    pub const fn folds_case(&self) -> bool {
        self.norm_flags & (norm::TOUPPER | norm::TOLOWER) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_put_found_and_cleared() {
        let mut b = vec![0; 512];
        format(&mut b, 3, 0);
        assert_eq!(slots(b.len()), 7);
        let long = [b'x'; NAME_MAX];
        put(&mut b, 0, b"one", 1, 0);
        put(&mut b, 6, &long, u64::MAX, 2);
        assert_eq!(free_slot(&b), Some(1));
        assert_eq!(entry(&b, 6).unwrap().name, long);
        assert_eq!(
            entries(&b).map(|e| e.value).collect::<Vec<_>>(),
            [1, u64::MAX]
        );
        set_value(&mut b, 0, 5);
        clear(&mut b, 6);
        let z = MicroZap::decode(&b).unwrap();
        assert_eq!(z.entries, [(b"one".to_vec(), 5, 0)]);
        assert_eq!(z.encode(512), b);
        assert!(MicroZap::decode(&[0; 512]).is_err());
    }
}
