//! Blocks of big-endian writers (SPARC), brought into the form of little-endian ones.
//!
//! A block pointer says in which byte order its block was written; data of files and volumes is the same in both, metadata is
//! swapped by the kind of object. What comes out is what a little-endian writer would have written, or, from damaged bytes,
//! something else that decoders refuse: nothing here believes a length.
//!
//! OpenZFS: module/zfs/dmu.c, dmu_ot_byteswap; the functions are named at each place.

use crate::bytes::{u16_at, u64_at};
use crate::object_type::ByteswapClass;
use crate::znode_phys::ZnodePhys;
use crate::{DNODE_MIN_SIZE, ObjectType};

const WORD: usize = 8;
/// Bytes of the dnode before its block pointers.
const DNODE_CORE: usize = 64;
const POINTER: usize = 128;
/// Bytes of an entry of a micro ZAP, and of its header.
const MICRO_ENTRY: usize = 64;
/// Block types of a ZAP. OpenZFS: include/sys/zap_impl.h, zap_leaf.h
const MICRO: u64 = (1 << 63) + 3;
const LEAF: u64 = 1 << 63;
/// Bytes of the header of a leaf, and of its chunks.
const LEAF_HEADER: usize = 48;
const LEAF_CHUNK: usize = 24;
/// Kinds of chunks.
const CHUNK_ENTRY: u8 = 252;
/// Bytes of an entry of an old ACL.
const OLD_ACE: usize = 12;

/// Swaps a block of a big-endian writer in place. `level` is 0 for data, above for indirect blocks.
pub fn swap_block(object_type: ObjectType, level: u64, block: &mut [u8]) {
    if level > 0 {
        return words(block, WORD);
    }
    swap_as(object_type, block);
}

/// Swaps the content of an object, or a bonus, by its type.
pub fn swap_as(object_type: ObjectType, bytes: &mut [u8]) {
    let Some(class) = object_type.byteswap_class() else {
        return;
    };
    match class {
        ByteswapClass::U8 => {}
        ByteswapClass::U16 => words(bytes, 2),
        ByteswapClass::U32 => words(bytes, 4),
        ByteswapClass::U64 => words(bytes, WORD),
        ByteswapClass::Zap => zap(bytes),
        ByteswapClass::Dnode => dnodes(bytes),
        ByteswapClass::Objset => objset(bytes),
        ByteswapClass::Znode => znode(bytes),
        ByteswapClass::OldAcl => old_acl(bytes),
        ByteswapClass::Acl => acl(bytes),
    }
}

/// Swaps whole words of `size` bytes.
pub fn words(bytes: &mut [u8], size: usize) {
    for word in bytes.chunks_exact_mut(size) {
        word.reverse();
    }
}

/// Swaps the words of a part, as far as it is there.
fn part(bytes: &mut [u8], at: usize, len: usize, size: usize) {
    let end = at.saturating_add(len).min(bytes.len());
    if let Some(part) = bytes.get_mut(at..end) {
        words(part, size);
    }
}

// OpenZFS: module/zfs/zap_micro.c, zap_byteswap
fn zap(block: &mut [u8]) {
    let kind = u64_at(block, 0).swap_bytes();
    if kind == MICRO {
        part(block, 0, 3 * WORD, WORD);
        for entry in block.chunks_exact_mut(MICRO_ENTRY).skip(1) {
            part(entry, 0, WORD, WORD);
            part(entry, WORD, 4, 4);
        }
    } else if kind == LEAF {
        leaf(block);
    } else {
        words(block, WORD);
    }
}

// OpenZFS: module/zfs/zap_leaf.c, zap_leaf_byteswap
fn leaf(block: &mut [u8]) {
    let buckets = block.len() / 32;
    part(block, 0, 3 * WORD, WORD);
    part(block, 24, 4, 4);
    part(block, 28, 8, 2);
    part(block, LEAF_HEADER, 2 * buckets, 2);
    let chunks = block.get_mut(LEAF_HEADER + 2 * buckets..);
    for chunk in chunks.unwrap_or_default().chunks_exact_mut(LEAF_CHUNK) {
        if chunk.first() == Some(&CHUNK_ENTRY) {
            part(chunk, 2, 10, 2);
            part(chunk, 12, 4, 4);
            part(chunk, 16, WORD, WORD);
        } else {
            // Values lie in big-endian order everywhere; what follows is the number of the next chunk.
            part(chunk, 22, 2, 2);
        }
    }
}

// OpenZFS: module/zfs/dnode.c, dnode_buf_byteswap
fn dnodes(block: &mut [u8]) {
    let mut at = 0;
    while at + DNODE_MIN_SIZE <= block.len() {
        let slots = 1 + usize::from(block.get(at + 12).copied().unwrap_or(0));
        let is_free = block.get(at).copied() == Some(0);
        let len = if is_free { 1 } else { slots } * DNODE_MIN_SIZE;
        let end = (at + len).min(block.len());
        if let Some(slot) = block.get_mut(at..end).filter(|_| !is_free) {
            dnode(slot);
        }
        at = end;
    }
}

// OpenZFS: module/zfs/dnode.c, dnode_byteswap
fn dnode(slot: &mut [u8]) {
    const SPILL: u8 = 4;
    let byte = |at: usize| slot.get(at).copied().unwrap_or(0);
    let (bonus_type, pointers) = (ObjectType(byte(4)), usize::from(byte(3)));
    let has_spill = byte(7) & SPILL != 0;
    part(slot, 8, 4, 2);
    part(slot, 16, 2 * WORD, WORD);
    part(slot, DNODE_CORE, pointers * POINTER, WORD);
    let mut end = slot.len();
    if has_spill {
        end = end.saturating_sub(POINTER);
        part(slot, end, POINTER, WORD);
    }
    let has_bonus = u16_at(slot, 10) != 0;
    let bonus = slot.get_mut(DNODE_CORE + pointers * POINTER..end);
    if let Some(bonus) = bonus.filter(|_| has_bonus) {
        swap_as(bonus_type, bonus);
    }
}

// OpenZFS: module/zfs/dmu_objset.c, dmu_objset_byteswap
fn objset(block: &mut [u8]) {
    const ZIL_HEADER: usize = 512;
    const FLAGS_END: usize = 720;
    part(block, ZIL_HEADER, FLAGS_END - ZIL_HEADER, WORD);
    for at in [0, 1024, 1536, 2048] {
        let slot = block.get_mut(at..at + DNODE_MIN_SIZE);
        if let Some(slot) = slot.filter(|slot| slot.first() != Some(&0)) {
            dnode(slot);
        }
    }
}

// OpenZFS: module/zfs/zfs_byteswap.c, zfs_znode_byteswap
fn znode(bonus: &mut [u8]) {
    const ACL: usize = 176;
    const VERSION: usize = ACL + 12;
    part(bonus, 0, ACL + WORD, WORD);
    part(bonus, ACL + 8, 4, 4);
    part(bonus, VERSION, 4, 2);
    let version = u16_at(bonus, VERSION);
    if let Some(entries) = bonus.get_mut(ACL + 16..ZnodePhys::SIZE) {
        if version == 0 {
            old_acl(entries);
        } else {
            acl(entries);
        }
    }
}

// OpenZFS: module/zfs/zfs_byteswap.c, zfs_oldace_byteswap
fn old_acl(bytes: &mut [u8]) {
    for entry in bytes.chunks_exact_mut(OLD_ACE) {
        part(entry, 0, 8, 4);
        part(entry, 8, 4, 2);
    }
}

// OpenZFS: module/zfs/zfs_byteswap.c, zfs_ace_byteswap
pub(crate) fn acl(bytes: &mut [u8]) {
    let mut rest = bytes;
    while rest.len() >= WORD {
        part(rest, 0, 4, 2);
        part(rest, 4, 4, 4);
        let size = crate::acl::Ace::size_of(u16_at(rest, 0), u16_at(rest, 2)).min(rest.len());
        if size >= 2 * WORD {
            part(rest, WORD, WORD, WORD);
        }
        rest = rest.get_mut(size.max(WORD)..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the bytes are, nothing panics.
    #[test]
    fn any_bytes_are_swapped() {
        for kind in 0..=u8::MAX {
            for len in [0, 7, 48, 512, 1000, 4096] {
                for fill in [0, 1, 0x80, 0xfc, 0xff] {
                    let mut block = vec![fill; len];
                    swap_block(ObjectType(kind), 0, &mut block);
                    swap_block(ObjectType(kind), 1, &mut block);
                    assert_eq!(block.len(), len);
                }
            }
        }
    }

    #[test]
    fn a_micro_zap_is_swapped() {
        let mut block = vec![0; 128];
        block[..8].copy_from_slice(&MICRO.to_be_bytes());
        block[8..16].copy_from_slice(&7u64.to_be_bytes());
        block[64..72].copy_from_slice(&99u64.to_be_bytes());
        block[72..76].copy_from_slice(&5u32.to_be_bytes());
        block[78..82].copy_from_slice(b"name");
        swap_block(ObjectType::OBJECT_DIRECTORY, 0, &mut block);
        assert_eq!((u64_at(&block, 0), u64_at(&block, 8)), (MICRO, 7));
        assert_eq!((u64_at(&block, 64), u16_at(&block, 72)), (99, 5));
        assert_eq!(&block[78..82], b"name");
    }
}
