//! ZAP blocks: the format's objects of names and values, block by block. Which block of an object to read is `dmu`'s business.
//!
//! A small ZAP is one block of 64-byte entries ([`micro`]); a large one is a header block ([`FatHeader`]), a
//! table of leaf numbers indexed by the top bits of the key's hash, and leaf blocks ([`Leaf`]).
//! OpenZFS: include/sys/zap_impl.h, zap_leaf.h.

mod fat;
mod hash;
mod leaf;
mod leaf_check;
pub mod micro;

pub use fat::{FatHeader, PointerTable, zap_flags};
pub use hash::{hash, hash_bits, hash_words, normalize};
pub use leaf::{ARRAY_BYTES, InsertError, Leaf, LeafEntry, NewEntry, chunks_for};
pub use micro::MicroZap;

use crate::bytes::u64_at;

/// log2 of the block size of a new fat ZAP.
pub const FAT_BLOCK_SHIFT: u32 = 14;
/// Longest string key in bytes, without the NUL.
pub const KEY_MAX: usize = 255;
/// Longest string key with the `longname` feature.
pub const KEY_MAX_LONG: usize = 1023;
/// Longest value in bytes.
pub const VALUE_MAX: usize = 8192;

/// Normalization flags of a ZAP.
pub mod norm {
    pub const TOUPPER: u64 = 0x02;
    pub const TOLOWER: u64 = 0x04;
    pub const NFD: u64 = 0x10;
    pub const NFKD: u64 = 0x20;
    pub const NFC: u64 = 0x50;
    pub const NFKC: u64 = 0x60;
}

pub(crate) const MICRO: u64 = 0x8000_0000_0000_0003;
pub(crate) const FAT_HEADER: u64 = 0x8000_0000_0000_0001;
pub(crate) const LEAF: u64 = 0x8000_0000_0000_0000;

/// What a ZAP block is, by its first word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    Micro,
    FatHeader,
    Leaf,
}

/// Tells what a ZAP block is; `None` for anything else (a pointer table block has no mark).
#[must_use]
pub fn block_kind(block: &[u8]) -> Option<BlockKind> {
    match u64_at(block, 0) {
        MICRO => Some(BlockKind::Micro),
        FAT_HEADER => Some(BlockKind::FatHeader),
        LEAF if block.len() >= 512 => Some(BlockKind::Leaf),
        _ => None,
    }
}
