//! What compression makes of a block, before it is stored or instead of that.

use ondisk::{BlockPointer, Compression};
use runtime::IoBuf;

use crate::alloc::Sizes;
use crate::checks::{self, to_usize, zero_padded};
use crate::{BlockStore, ZioError};

/// What a block is stored as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packed {
    /// All zeros: nothing.
    Hole,
    /// Small enough to live in its pointer.
    Embedded(Vec<u8>),
    /// Compressed, and padded to the size that is stored.
    Stored(IoBuf),
    /// Compression does not save enough.
    AsIs,
}

/// Compresses blocks as a write would, without writing them.
#[derive(Clone, Copy, Debug)]
pub struct Packing {
    algorithm: codec::compress::Algorithm,
    sizes: Sizes,
    embed: bool,
}

impl Packing {
    /// Returns the algorithm.
    #[must_use]
    pub fn algorithm(&self) -> codec::compress::Algorithm {
        self.algorithm
    }

    /// Returns what a block would be stored as.
    #[must_use]
    pub fn pack(&self, data: &[u8]) -> Packed {
        pack(self.algorithm, self.sizes, self.embed, data)
    }
}

impl BlockStore {
    /// Returns how blocks are compressed here by an algorithm (`zstd_level` as in [`codec::compress::Algorithm::Zstd`]); `embed`: small ones
    /// may live in their pointers.
    ///
    /// # Errors
    /// [`ZioError::Unsupported`] for what is no compression.
    pub fn packing(
        &self,
        compression: Compression,
        zstd_level: u8,
        embed: bool,
    ) -> Result<Packing, ZioError> {
        let unsupported = ZioError::Unsupported {
            what: "compression",
            number: compression.0,
        };
        let algorithm = checks::compression_algorithm(compression, zstd_level);
        // A pool that is not written to does not say which sizes it would choose: those of the devices with the largest sectors do.
        let of_tree = || {
            let ashifts = self.tree().tops().into_iter().map(|top| top.ashift);
            Sizes::of(1 << ashifts.max().unwrap_or(9))
        };
        Ok(Packing {
            algorithm: algorithm.ok().flatten().ok_or(unsupported)?,
            sizes: self.sizes().unwrap_or_else(|_| of_tree()),
            embed,
        })
    }
}

/// Compresses a block, if that saves enough.
pub(crate) fn pack(
    algorithm: codec::compress::Algorithm,
    sizes: Sizes,
    embed: bool,
    data: &[u8],
) -> Packed {
    if is_zero(data) {
        return Packed::Hole;
    }
    // At least an eighth must be saved, in whole allocation units (format/03 section 2).
    let mut limit = data.len() - data.len() / 8;
    if algorithm != codec::compress::Algorithm::Zle {
        limit -= limit % to_usize(sizes.step);
    }
    if (limit as u64) < sizes.least {
        limit = BlockPointer::EMBEDDED_MAX;
    }
    let packed = codec::compress::compress_with(algorithm, data, limit, |packed| {
        if packed.len() >= data.len() || packed.is_empty() {
            return Packed::AsIs;
        }
        if embed && packed.len() <= BlockPointer::EMBEDDED_MAX {
            return Packed::Embedded(packed.to_vec());
        }
        let psize = sizes.round_up(packed.len());
        if psize >= data.len() {
            return Packed::AsIs;
        }
        Packed::Stored(zero_padded(packed, psize))
    });
    packed.unwrap_or(Packed::AsIs)
}

pub(crate) fn is_zero(data: &[u8]) -> bool {
    data.chunks(4096).all(is_zero_chunk)
}

pub(crate) fn is_zero_chunk(chunk: &[u8]) -> bool {
    chunk.iter().fold(0, |all, byte| all | byte) == 0
}
