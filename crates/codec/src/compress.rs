//! Block compression in ZFS's framings.

/// A compression function with its level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    Lzjb,
    /// Level 1 to 9.
    Gzip(u8),
    Zle,
    Lz4,
    /// Level code as in the on-disk header: 1..=19, 103..=112 (fast 1 to 10), 113..=121 (fast 20 to 100), 122 (fast
    /// 500), 123 (fast 1000); 0 means the default (3).
    Zstd(u8),
}

/// Stored bytes did not decompress to the logical size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{algorithm:?} data is corrupt: {what}")]
pub struct CompressError {
    pub algorithm: Algorithm,
    pub what: &'static str,
}

/// Compresses `src` with ZFS's framing, or returns `None` when the result would be longer than `max_out` bytes.
#[must_use]
pub fn compress(alg: Algorithm, src: &[u8], max_out: usize) -> Option<Vec<u8>> {
    let _ = (alg, src, max_out);
    unimplemented!()
}

/// Decompresses to exactly `lsize` bytes. Bytes of `src` after the compressed data are ignored (sector padding). The
/// level of `alg` does not matter.
///
/// # Errors
/// [`CompressError`] when `src` is not such data, or holds more or less than `lsize` bytes.
pub fn decompress(alg: Algorithm, src: &[u8], lsize: usize) -> Result<Vec<u8>, CompressError> {
    let _ = (alg, src, lsize);
    unimplemented!()
}
