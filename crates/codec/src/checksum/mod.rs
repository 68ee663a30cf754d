//! Block checksums: four 64-bit words over the stored bytes of a block.
//!
//! Words are in the form a little-endian writer puts into block pointers: SHA-256's are big-endian readings of the
//! digest, those of the other digests little-endian readings. OpenZFS: module/zfs/zio_checksum.c.

mod edonr;
mod fletcher;
mod skein;

use sha2::Digest as _;

pub use fletcher::{RunningFletcher4, fletcher2, fletcher4, fletcher4_portable};

/// A checksum function. The embedded kinds (labels, gang headers, intent log) are these functions with a verifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// No checksum: all words zero.
    Off,
    Fletcher2,
    Fletcher4,
    Sha256,
    /// SHA-512/256.
    Sha512,
    /// Skein-512-256, keyed with the pool's salt.
    Skein,
    /// Edon-R 512, salted.
    Edonr,
    /// BLAKE3, keyed with the pool's salt.
    Blake3,
}

impl Algorithm {
    /// True for the functions that use the salt.
    #[must_use]
    pub const fn is_salted(self) -> bool {
        matches!(self, Self::Skein | Self::Edonr | Self::Blake3)
    }
}

/// Returns the checksum words of `data`, in the form block pointers carry. `salt` matters only to `Skein`, `Edonr` and
/// `Blake3`. Bytes beyond the last whole word of the fletcher sums (4 or 16 bytes) do not count, as in OpenZFS.
#[must_use]
pub fn compute(alg: Algorithm, salt: &[u8; 32], data: &[u8]) -> [u64; 4] {
    match alg {
        Algorithm::Off => [0; 4],
        Algorithm::Fletcher2 => fletcher2(data),
        Algorithm::Fletcher4 => fletcher4(data),
        Algorithm::Sha256 => sha256(data),
        Algorithm::Sha512 => words_le(&sha2::Sha512_256::digest(data)),
        Algorithm::Skein => skein::mac_512_256(salt, data),
        Algorithm::Edonr => edonr::salted(salt, data),
        Algorithm::Blake3 => words_le(blake3::keyed_hash(salt, data).as_bytes()),
    }
}

/// SHA-256 as four big-endian words: the form of block pointers and of embedded checksums.
#[must_use]
pub fn sha256(data: &[u8]) -> [u64; 4] {
    words_le(&sha2::Sha256::digest(data)).map(u64::swap_bytes)
}

fn words_le(digest: &[u8]) -> [u64; 4] {
    let mut out = [0; 4];
    for (w, c) in out.iter_mut().zip(digest.chunks_exact(8)) {
        *w = word_le(c);
    }
    out
}

/// The little-endian word of an eight-byte chunk.
fn word_le(chunk: &[u8]) -> u64 {
    u64::from_le_bytes(chunk.try_into().expect("a chunk of eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_digests() {
        // FIPS 180 examples for "abc".
        assert_eq!(sha256(b"abc")[0], 0xba78_16bf_8f01_cfea);
        let sum = compute(Algorithm::Sha512, &[0; 32], b"abc");
        assert_eq!(sum[0].swap_bytes(), 0x5304_8e26_8194_1ef9);
        assert_eq!(compute(Algorithm::Off, &[0; 32], b"abc"), [0; 4]);
    }
}
