//! Block compression in ZFS's framings.
//!
//! Decoders produce exactly the logical size or an error, never read past their input, and refuse sizes the input cannot
//! possibly hold before allocating for them. Bytes after the compressed data are ignored: blocks are padded to sectors.

mod gzip;
mod lz4;
mod lzjb;
mod zle;
mod zstd;

use std::cell::Cell;

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

thread_local! {
    /// What encoders write to. Some of them want room for the worst case; a block gets memory when its size is known.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Most bytes that a thread keeps for its next block: enough for 1 MiB that does not compress. Larger blocks are rare, and there are many threads.
const SCRATCH_KEPT: usize = (1 << 20) + (16 << 10);

/// Compresses `src` with ZFS's framing, or returns `None` when the result would be longer than `max_out` bytes.
#[must_use]
pub fn compress(alg: Algorithm, src: &[u8], max_out: usize) -> Option<Vec<u8>> {
    compress_with(alg, src, max_out, <[u8]>::to_vec)
}

/// As [`compress`], and shows the result to `then` instead of giving it memory of its own; returns what that returns.
pub fn compress_with<R>(
    alg: Algorithm,
    src: &[u8],
    max_out: usize,
    then: impl FnOnce(&[u8]) -> R,
) -> Option<R> {
    let room = match alg {
        Algorithm::Lz4 => lz4::room(src.len()),
        Algorithm::Zstd(_) => zstd::room(src.len()),
        Algorithm::Lzjb | Algorithm::Gzip(_) | Algorithm::Zle => {
            max_out.min(src.len() + src.len() / 8 + 64)
        }
    };
    // Taken, so that `then` may compress, too.
    let mut scratch = SCRATCH.take();
    if scratch.len() < room {
        scratch = vec![0; room];
    }
    let out = &mut scratch[..room];
    let len = match alg {
        Algorithm::Lzjb => lzjb::compress(src, out),
        Algorithm::Gzip(level) => gzip::compress(level, src, out),
        Algorithm::Zle => zle::compress(src, out),
        Algorithm::Lz4 => lz4::compress(src, out),
        Algorithm::Zstd(level) => zstd::compress(level, src, out),
    };
    let result = len.filter(|&len| len <= max_out);
    let result = result.map(|len| then(&out[..len]));
    if scratch.len() <= SCRATCH_KEPT {
        SCRATCH.set(scratch);
    }
    result
}

/// Decompresses to exactly `lsize` bytes. Bytes of `src` after the compressed data are ignored (sector padding). The
/// level of `alg` does not matter.
///
/// # Errors
/// [`CompressError`] when `src` is not such data, or does not hold `lsize` bytes.
pub fn decompress(alg: Algorithm, src: &[u8], lsize: usize) -> Result<Vec<u8>, CompressError> {
    check_ratio(alg, src, lsize)?;
    let mut out = vec![0; lsize];
    decompress_into(alg, src, &mut out)?;
    Ok(out)
}

/// Says whether `src` can hold `lsize` bytes at all: to be asked before memory is taken for them.
///
/// # Errors
/// [`CompressError`] when it cannot.
pub fn check_ratio(alg: Algorithm, src: &[u8], lsize: usize) -> Result<(), CompressError> {
    // The most output a byte of input can stand for, generously.
    let ratio = match alg {
        Algorithm::Lzjb => 34,
        Algorithm::Zle => 192,
        Algorithm::Lz4 => 256,
        Algorithm::Gzip(_) => 1100,
        // A three-byte block header and one byte can repeat to a whole 128 KiB block.
        Algorithm::Zstd(_) => 128 << 10,
    };
    if lsize > src.len().saturating_mul(ratio) {
        return Err(CompressError {
            algorithm: alg,
            what: "too short for its size",
        });
    }
    Ok(())
}

/// Decompresses to fill `out` exactly; see [`decompress`]. After an error its contents are unspecified.
///
/// # Errors
/// As [`decompress`].
pub fn decompress_into(alg: Algorithm, src: &[u8], out: &mut [u8]) -> Result<(), CompressError> {
    let result = match alg {
        Algorithm::Lzjb => lzjb::decompress(src, out),
        Algorithm::Gzip(_) => gzip::decompress(src, out),
        Algorithm::Zle => zle::decompress(src, out),
        Algorithm::Lz4 => lz4::decompress(src, out),
        Algorithm::Zstd(_) => zstd::decompress(src, out),
    };
    result.map_err(|what| CompressError {
        algorithm: alg,
        what,
    })
}

#[cfg(test)]
mod tests;
