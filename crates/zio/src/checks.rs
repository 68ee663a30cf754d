//! What is checked of a block pointer before anything is done with it, and the mapping of its numbers to algorithms.
//!
//! What is computed from the bytes of a block alone stands here, too.
//!
//! Guarantees: after [`check_stored`] every size is within bounds and every place used lies inside its vdev.

use ondisk::{BlockPointer, ChecksumKind, Compression, Dva, ObjectType};
use runtime::{IoBuf, IoBufMut};
use vdev::Tree;

/// Largest number of nested gang headers. Three children per header and at least 512 bytes per child cover 16 MiB in 10.
pub(crate) const GANG_DEPTH_MAX: u32 = 10;
/// Children in a gang header.
pub(crate) const GANG_CHILDREN: usize = 3;
/// Bytes of a gang header.
pub(crate) const GANG_HEADER_BYTES: u64 = 512;

/// Returns the algorithm of a checksum over a block's bytes, `None` for numbers that are not that.
pub(crate) fn checksum_algorithm(kind: ChecksumKind) -> Option<codec::checksum::Algorithm> {
    use codec::checksum::Algorithm;
    Some(match kind {
        ChecksumKind::OFF | ChecksumKind::NOPARITY => Algorithm::Off,
        ChecksumKind::FLETCHER2 => Algorithm::Fletcher2,
        ChecksumKind::FLETCHER4 => Algorithm::Fletcher4,
        ChecksumKind::SHA256 => Algorithm::Sha256,
        ChecksumKind::SHA512 => Algorithm::Sha512,
        ChecksumKind::SKEIN => Algorithm::Skein,
        ChecksumKind::EDONR => Algorithm::Edonr,
        ChecksumKind::BLAKE3 => Algorithm::Blake3,
        _ => return None,
    })
}

/// Returns the algorithm of a compression, `Ok(None)` for uncompressed, `Err` for numbers that are not compressions.
pub(crate) fn compression_algorithm(
    kind: Compression,
    zstd_level: u8,
) -> Result<Option<codec::compress::Algorithm>, ()> {
    use codec::compress::Algorithm;
    Ok(Some(match kind {
        Compression::OFF => return Ok(None),
        Compression::LZJB => Algorithm::Lzjb,
        Compression::ZLE => Algorithm::Zle,
        Compression::LZ4 => Algorithm::Lz4,
        Compression::ZSTD => Algorithm::Zstd(zstd_level),
        other => Algorithm::Gzip(other.gzip_level().ok_or(())?),
    }))
}

/// Checks a pointer that is neither a hole nor embedded, apart from its places.
pub(crate) fn check_stored(bp: &BlockPointer) -> Result<(), &'static str> {
    bp.check().map_err(|error| error.what)?;
    if checksum_algorithm(bp.checksum_kind()).is_none() {
        return Err("checksum function of block pointer");
    }
    if bp.psize() > bp.lsize() {
        return Err("stored size above logical size");
    }
    if bp.compression() == Compression::OFF && bp.psize() != bp.lsize() {
        return Err("uncompressed block of another stored size");
    }
    if bp.copies().next().is_none() {
        return Err("no place");
    }
    Ok(())
}

/// Checks one place of a block of `psize` bytes. Returns the bytes to read there.
pub(crate) fn check_dva(tree: &Tree, dva: &Dva, psize: u64) -> Result<u64, &'static str> {
    let held = if dva.gang { GANG_HEADER_BYTES } else { psize };
    let asize = tree
        .asize_of(dva.vdev, held)
        .map_err(|_| "vdev id of block pointer")?;
    let ashift = tree
        .ashift(dva.vdev)
        .map_err(|_| "vdev id of block pointer")?;
    let limit = tree.asize(dva.vdev).ok_or("vdev id of block pointer")?;
    if dva.offset & ((1 << ashift) - 1) != 0 {
        return Err("offset of block pointer");
    }
    // The allocated size may be larger than needed (a gang counts its children), never smaller.
    if dva.asize < asize {
        return Err("allocated size of block pointer");
    }
    let used = if dva.gang { asize } else { dva.asize };
    if dva.offset.checked_add(used).is_none_or(|end| end > limit) {
        return Err("offset of block pointer");
    }
    tree.io_size(dva.vdev, held)
        .map_err(|_| "vdev id of block pointer")
}

/// Returns the space one place that was checked holds itself: all of a block, of a gang only the header.
pub(crate) fn held_space(tree: &Tree, dva: &Dva) -> u64 {
    if dva.gang {
        tree.asize_of(dva.vdev, GANG_HEADER_BYTES).unwrap_or(0)
    } else {
        dva.asize
    }
}

/// Whether the checksum of a block is one that only adds words up.
pub(crate) fn is_sum_of_words(bp: &BlockPointer) -> bool {
    use codec::checksum::Algorithm;
    let algorithm = checksum_algorithm(bp.checksum_kind());
    let adds = matches!(
        algorithm,
        Some(Algorithm::Off | Algorithm::Fletcher2 | Algorithm::Fletcher4)
    );
    adds && bp.is_little_endian()
}

/// Whether stored bytes have the checksum of their pointer; `None` for a checksum of a kind that is not known.
pub(crate) fn sum_agrees(bp: &BlockPointer, salt: &[u8; 32], stored: &[u8]) -> Option<bool> {
    let algorithm = checksum_algorithm(bp.checksum_kind())?;
    if algorithm == codec::checksum::Algorithm::Off {
        return Some(true);
    }
    let mut sum = if bp.is_little_endian() {
        codec::checksum::compute(algorithm, salt, stored)
    } else {
        foreign_sum(algorithm, salt, stored)
    };
    let mut expect = bp.checksum();
    if bp.uses_crypt() && bp.object_type() != ObjectType::OBJSET {
        sum = beside_mac(algorithm, sum);
        (expect[2], expect[3]) = (0, 0);
    }
    Some(sum == expect)
}

/// The checksum that a big-endian writer computes: those that add up words add words of its own order.
// OpenZFS: module/zcommon/zfs_fletcher.c, fletcher_2_byteswap and fletcher_4_byteswap
fn foreign_sum(algorithm: codec::checksum::Algorithm, salt: &[u8; 32], stored: &[u8]) -> [u64; 4] {
    use codec::checksum::Algorithm::{Fletcher2, Fletcher4};
    let word = match algorithm {
        Fletcher2 => 8,
        Fletcher4 => 4,
        _ => return codec::checksum::compute(algorithm, salt, stored),
    };
    let mut swapped = stored.to_vec();
    ondisk::byteswap::words(&mut swapped, word);
    codec::checksum::compute(algorithm, salt, &swapped)
}

/// A checksum as it stands beside a MAC, which takes the upper half of its words: of a checksum that is not made to be cut, the
/// upper half is folded into the lower one.
// OpenZFS: module/zfs/zio_checksum.c, zio_checksum_handle_crypt; it folds those without ZCHECKSUM_FLAG_DEDUP
pub(crate) fn beside_mac(algorithm: codec::checksum::Algorithm, sum: [u64; 4]) -> [u64; 4] {
    use codec::checksum::Algorithm::{Edonr, Fletcher2, Fletcher4};
    match algorithm {
        Fletcher2 | Fletcher4 | Edonr => [sum[0] ^ sum[2], sum[1] ^ sum[3], 0, 0],
        _ => [sum[0], sum[1], 0, 0],
    }
}

/// Returns `bytes` with zeros appended up to `size`; the same buffer if it has that length.
pub(crate) fn padded(bytes: &IoBuf, size: u64) -> IoBuf {
    let size = to_usize(size);
    if bytes.len() == size {
        return bytes.clone();
    }
    zero_padded(&bytes[..bytes.len().min(size)], size)
}

/// A copy of bytes with zeros behind them, `len` in all.
pub(crate) fn zero_padded(bytes: &[u8], len: usize) -> IoBuf {
    let mut buf = IoBufMut::scratch(len);
    let (start, rest) = buf.split_at_mut(bytes.len());
    start.copy_from_slice(bytes);
    rest.fill(0);
    buf.freeze()
}

/// Returns the SHA-256 checksum of bytes.
pub(crate) fn sha256(bytes: &[u8]) -> [u64; 4] {
    codec::checksum::compute(codec::checksum::Algorithm::Sha256, &[0; 32], bytes)
}

/// Sizes of blocks are at most 16 MiB here, or checked right after.
pub(crate) fn to_usize(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// Returns the logical bytes, in the byte order of this software, `None` if the stored ones are not what the pointer says.
pub(crate) fn decompressed(bp: &BlockPointer, stored: &IoBuf) -> Option<IoBuf> {
    let logical = plain(bp, stored)?;
    if bp.is_little_endian() || bp.is_embedded() {
        return Some(logical);
    }
    let mut block = IoBufMut::scratch(logical.len());
    block.copy_from_slice(&logical);
    ondisk::byteswap::swap_block(bp.object_type(), u64::from(bp.level()), &mut block);
    Some(block.freeze())
}

/// Returns the logical bytes in the byte order they were written in.
fn plain(bp: &BlockPointer, stored: &IoBuf) -> Option<IoBuf> {
    let lsize = to_usize(bp.lsize());
    match compression_algorithm(bp.compression(), 0) {
        Ok(None) => (stored.len() == lsize).then(|| stored.clone()),
        Ok(Some(algorithm)) => {
            codec::compress::check_ratio(algorithm, stored, lsize).ok()?;
            let mut out = IoBufMut::scratch(lsize);
            codec::compress::decompress_into(algorithm, stored, &mut out).ok()?;
            Some(out.freeze())
        }
        Err(()) => None,
    }
}
