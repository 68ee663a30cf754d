//! Block checksums: four 64-bit words over the stored bytes of a block.

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

/// Returns the checksum words of `data`, in the form block pointers carry. `salt` matters only to `Skein`, `Edonr` and
/// `Blake3`.
#[must_use]
pub fn compute(alg: Algorithm, salt: &[u8; 32], data: &[u8]) -> [u64; 4] {
    let _ = (alg, salt, data);
    unimplemented!()
}
