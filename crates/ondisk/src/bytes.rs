//! Reading and writing integers at byte offsets, without panics.
//!
//! The offset functions read zero and write nothing beyond the end of the buffer: callers check the length of a
//! structure once, with [`need`], and then use constant offsets inside it.

use crate::{DecodeError, Result};

/// Fails with `what` when `buf` is shorter than `len`.
///
/// # Errors
/// [`DecodeError`] at the end of `buf` when it is too short.
pub fn need(buf: &[u8], len: usize, what: &'static str) -> Result<()> {
    if buf.len() < len {
        Err(DecodeError::new(what, buf.len()))
    } else {
        Ok(())
    }
}

fn array<const N: usize>(buf: &[u8], off: usize) -> [u8; N] {
    off.checked_add(N)
        .and_then(|end| buf.get(off..end))
        .and_then(|s| s.try_into().ok())
        .unwrap_or([0; N])
}

/// The byte at `off`.
#[must_use]
pub fn u8_at(buf: &[u8], off: usize) -> u8 {
    buf.get(off).copied().unwrap_or(0)
}

/// The little-endian `u16` at `off`.
#[must_use]
pub fn u16_at(buf: &[u8], off: usize) -> u16 {
    u16::from_le_bytes(array(buf, off))
}

/// The little-endian `u32` at `off`.
#[must_use]
pub fn u32_at(buf: &[u8], off: usize) -> u32 {
    u32::from_le_bytes(array(buf, off))
}

/// The little-endian `u64` at `off`.
#[must_use]
pub fn u64_at(buf: &[u8], off: usize) -> u64 {
    u64::from_le_bytes(array(buf, off))
}

/// The `N` bytes at `off`.
#[must_use]
pub fn bytes_at<const N: usize>(buf: &[u8], off: usize) -> [u8; N] {
    array(buf, off)
}

/// The `len` bytes at `off`, or an empty slice when they are not all there.
#[must_use]
pub fn slice_at(buf: &[u8], off: usize, len: usize) -> &[u8] {
    off.checked_add(len)
        .and_then(|end| buf.get(off..end))
        .unwrap_or(&[])
}

/// Writes `bytes` at `off`; does nothing when they do not fit.
pub fn put_bytes(buf: &mut [u8], off: usize, bytes: &[u8]) {
    debug_assert!(
        off + bytes.len() <= buf.len(),
        "write of {} bytes at {off} past {}",
        bytes.len(),
        buf.len()
    );
    if let Some(slot) = off
        .checked_add(bytes.len())
        .and_then(|end| buf.get_mut(off..end))
    {
        slot.copy_from_slice(bytes);
    }
}

/// Writes one byte at `off`.
pub fn put_u8(buf: &mut [u8], off: usize, v: u8) {
    put_bytes(buf, off, &[v]);
}

/// Writes a little-endian `u16` at `off`.
pub fn put_u16(buf: &mut [u8], off: usize, v: u16) {
    put_bytes(buf, off, &v.to_le_bytes());
}

/// Writes a little-endian `u32` at `off`.
pub fn put_u32(buf: &mut [u8], off: usize, v: u32) {
    put_bytes(buf, off, &v.to_le_bytes());
}

/// Writes a little-endian `u64` at `off`.
pub fn put_u64(buf: &mut [u8], off: usize, v: u64) {
    put_bytes(buf, off, &v.to_le_bytes());
}

/// All little-endian `u64` words of `buf` (a tail shorter than a word is ignored).
pub fn u64s(buf: &[u8]) -> impl Iterator<Item = u64> + '_ {
    buf.chunks_exact(8).map(|c| u64_at(c, 0))
}

/// The words as [`u64s`] reads them.
#[must_use]
pub fn of_u64s(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Numbers of 32 bits one behind the other, little-endian.
#[must_use]
pub fn of_u32s(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
}

/// True when every byte is zero.
#[must_use]
pub fn is_zero(buf: &[u8]) -> bool {
    let mut chunks = buf.chunks_exact(16);
    chunks.by_ref().all(|c| bytes_at::<16>(c, 0) == [0; 16])
        && chunks.remainder().iter().all(|b| *b == 0)
}

/// The low 8 bits.
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "truncation is the purpose")]
pub const fn low8(v: u64) -> u8 {
    v as u8
}

/// The low 16 bits.
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "truncation is the purpose")]
pub const fn low16(v: u64) -> u16 {
    v as u16
}

/// The low 32 bits.
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "truncation is the purpose")]
pub const fn low32(v: u64) -> u32 {
    v as u32
}

/// `v` as an index; the largest index where `usize` is narrower than 64 bits and `v` does not fit.
#[must_use]
pub fn index(v: u64) -> usize {
    usize::try_from(v).unwrap_or(usize::MAX)
}

/// A length as `u64`.
#[must_use]
pub const fn len64(v: usize) -> u64 {
    v as u64
}
