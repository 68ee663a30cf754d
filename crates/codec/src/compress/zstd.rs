//! Zstandard: a big-endian length, a byte of level and three of library version, then a frame without magic.

use std::cell::RefCell;

use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat};

const HEADER: usize = 8;
const LEVEL_DEFAULT: u8 = 3;

thread_local! {
    /// Contexts are large; each thread keeps one of each kind.
    static COMPRESSOR: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

/// The library's level of a level code, or `None` for a code the format does not define.
fn library_level(code: u8) -> Option<i32> {
    let n = i32::from(code);
    match code {
        1..=19 => Some(n),
        103..=112 => Some(-(n - 102)),
        113..=121 => Some(-(n - 111) * 10),
        122 => Some(-500),
        123 => Some(-1000),
        _ => None,
    }
}

/// The room that [`compress`] wants for `len` bytes: the worst case. Given less, the library sometimes fails although its result
/// would have fitted.
pub(super) fn room(len: usize) -> usize {
    HEADER + zstd_safe::compress_bound(len)
}

pub(super) fn compress(code: u8, src: &[u8], out: &mut [u8]) -> Option<usize> {
    let code = if code == 0 { LEVEL_DEFAULT } else { code };
    let level = library_level(code)?;
    let (header, body) = out.split_at_mut_checked(HEADER)?;
    let len = COMPRESSOR.with_borrow_mut(|slot| {
        let cx = match slot {
            Some(cx) => cx,
            None => slot.insert(new_compressor()?),
        };
        cx.set_parameter(CParameter::CompressionLevel(level)).ok()?;
        cx.compress2(body, src).ok()
    })?;
    header[..4].copy_from_slice(&u32::try_from(len).ok()?.to_be_bytes());
    let version = (zstd_safe::version_number() & 0xff_ffff) | u32::from(code) << 24;
    header[4..].copy_from_slice(&version.to_be_bytes());
    Some(HEADER + len)
}

fn new_compressor() -> Option<CCtx<'static>> {
    let mut cx = CCtx::try_create()?;
    cx.set_parameter(CParameter::Format(FrameFormat::Magicless))
        .ok()?;
    cx.set_parameter(CParameter::ContentSizeFlag(false)).ok()?;
    cx.set_parameter(CParameter::ChecksumFlag(false)).ok()?;
    cx.set_parameter(CParameter::DictIdFlag(false)).ok()?;
    Some(cx)
}

pub(super) fn decompress(src: &[u8], out: &mut [u8]) -> Result<(), &'static str> {
    let (header, rest) = src.split_first_chunk::<HEADER>().ok_or("ends early")?;
    let [l0, l1, l2, l3, code, ..] = *header;
    let len = usize::try_from(u32::from_be_bytes([l0, l1, l2, l3])).map_err(|_| "length")?;
    let data = rest.get(..len).ok_or("length beyond the block")?;
    library_level(code).ok_or("level")?;
    let written = DECOMPRESSOR.with_borrow_mut(|slot| {
        let cx = match slot {
            Some(cx) => cx,
            None => slot.insert(new_decompressor().ok_or("out of memory")?),
        };
        cx.decompress(&mut *out, data)
            .map_err(|_| "not a zstd frame")
    })?;
    if written == out.len() {
        Ok(())
    } else {
        Err("less data than its size")
    }
}

fn new_decompressor() -> Option<DCtx<'static>> {
    let mut cx = DCtx::try_create()?;
    cx.set_parameter(DParameter::Format(FrameFormat::Magicless))
        .ok()?;
    Some(cx)
}
