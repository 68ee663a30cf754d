//! The native encoding, little-endian: pairs as they lie in memory, pointers as zeros, nested lists after their pair.
//!
//! OpenZFS: module/nvpair/nvpair.c, the nvs_native functions; include/sys/nvpair.h, nvpair_t.

use super::{DEPTH_MAX, ENCODING_NATIVE, NvList, NvValue, Source, align};
use crate::bytes::{u16_at, u32_at, u64_at};
use crate::{DecodeError, Result};

/// Size, name length, reserved, element count, type.
const PAIR_HEADER: usize = 16;
/// The in-memory list header: version, flags, private pointer, flags, pad.
const LIST_HEADER: usize = 24;

pub(super) fn decode(buf: &[u8]) -> Result<(NvList, usize)> {
    let mut src = Source { buf, pos: 4 };
    let head = src.take(8)?;
    if u32_at(head, 0) != 0 {
        return Err(DecodeError::new("nvlist version", 4));
    }
    let list = read_pairs(&mut src, u32_at(head, 4), 0)?;
    Ok((list, src.pos))
}

pub(super) fn encode(list: &NvList) -> Vec<u8> {
    let mut out = vec![ENCODING_NATIVE, 1, 0, 0];
    out.extend_from_slice(&0u32.to_le_bytes());
    out.extend_from_slice(&list.flags.to_le_bytes());
    write_pairs(&mut out, list);
    out
}

fn read_pairs(src: &mut Source<'_>, flags: u32, depth: usize) -> Result<NvList> {
    if depth > DEPTH_MAX {
        return src.fail("nvlist nesting");
    }
    let mut list = NvList {
        flags,
        pairs: Vec::new(),
    };
    loop {
        let start = src.pos;
        let size = u32_at(src.take(4)?, 0) as usize;
        if size == 0 {
            return Ok(list);
        }
        src.pos = start;
        let pair = src.take(size)?;
        let name_len = usize::from(u16_at(pair, 4));
        let count = u32_at(pair, 8) as usize;
        let kind = u32_at(pair, 12);
        let name = pair
            .get(PAIR_HEADER..PAIR_HEADER + name_len)
            .and_then(|n| n.strip_suffix(&[0]));
        let value_at = align(PAIR_HEADER + name_len, 8);
        let (Some(name), Some(bytes)) = (name, pair.get(value_at..)) else {
            return Err(DecodeError::new("nvlist pair size", start));
        };
        let value = match kind {
            19 => {
                if count != 1 || bytes.len() < LIST_HEADER {
                    return Err(DecodeError::new("nvlist nested list", start));
                }
                NvValue::List(read_pairs(src, u32_at(bytes, 4), depth + 1)?)
            }
            20 => {
                if count
                    .checked_mul(8 + LIST_HEADER)
                    .is_none_or(|n| n > bytes.len())
                {
                    return Err(DecodeError::new("nvlist nested list count", start));
                }
                let mut lists = Vec::new();
                for i in 0..count {
                    let flags = u32_at(bytes, 8 * count + LIST_HEADER * i + 4);
                    lists.push(read_pairs(src, flags, depth + 1)?);
                }
                NvValue::Lists(lists)
            }
            _ => read_value(kind, count, bytes).ok_or(DecodeError::new("nvlist value", start))?,
        };
        list.push(name.to_vec(), value);
    }
}

fn read_value(kind: u32, count: usize, b: &[u8]) -> Option<NvValue> {
    let scalar = |len: usize| (count == 1 && b.len() >= len).then_some(());
    Some(match kind {
        1 => (count == 0).then_some(NvValue::Boolean)?,
        2 => scalar(1).map(|()| NvValue::Byte(byte(b)))?,
        3 => scalar(2).map(|()| NvValue::I16(u16_at(b, 0).cast_signed()))?,
        4 => scalar(2).map(|()| NvValue::U16(u16_at(b, 0)))?,
        5 => scalar(4).map(|()| NvValue::I32(u32_at(b, 0).cast_signed()))?,
        6 => scalar(4).map(|()| NvValue::U32(u32_at(b, 0)))?,
        7 => scalar(8).map(|()| NvValue::I64(u64_at(b, 0).cast_signed()))?,
        8 => scalar(8).map(|()| NvValue::U64(u64_at(b, 0)))?,
        9 => scalar(1)
            .and_then(|()| c_string(b))
            .map(|(s, _)| NvValue::Str(s))?,
        10 => NvValue::ByteArray(b.get(..count)?.to_vec()),
        11 => NvValue::I16Array(elements(b, count, 2, |c| u16_at(c, 0).cast_signed())?),
        12 => NvValue::U16Array(elements(b, count, 2, |c| u16_at(c, 0))?),
        13 => NvValue::I32Array(elements(b, count, 4, |c| u32_at(c, 0).cast_signed())?),
        14 => NvValue::U32Array(elements(b, count, 4, |c| u32_at(c, 0))?),
        15 => NvValue::I64Array(elements(b, count, 8, |c| u64_at(c, 0).cast_signed())?),
        16 => NvValue::U64Array(elements(b, count, 8, |c| u64_at(c, 0))?),
        17 => {
            let mut rest = b.get(count.checked_mul(8)?..)?;
            let mut strings = Vec::new();
            for _ in 0..count {
                let (s, used) = c_string(rest)?;
                strings.push(s);
                rest = rest.get(used..)?;
            }
            NvValue::StrArray(strings)
        }
        18 => scalar(8).map(|()| NvValue::HrTime(u64_at(b, 0).cast_signed()))?,
        21 => scalar(4).map(|()| NvValue::BoolValue(u32_at(b, 0) != 0))?,
        22 => scalar(1).map(|()| NvValue::I8(byte(b).cast_signed()))?,
        23 => scalar(1).map(|()| NvValue::U8(byte(b)))?,
        24 => NvValue::BoolArray(elements(b, count, 4, |c| u32_at(c, 0) != 0)?),
        25 => NvValue::I8Array(elements(b, count, 1, |c| byte(c).cast_signed())?),
        26 => NvValue::U8Array(elements(b, count, 1, byte)?),
        27 => scalar(8).map(|()| NvValue::Double(u64_at(b, 0)))?,
        _ => return None,
    })
}

fn byte(b: &[u8]) -> u8 {
    b.first().copied().unwrap_or(0)
}

fn elements<T>(b: &[u8], count: usize, each: usize, read: impl Fn(&[u8]) -> T) -> Option<Vec<T>> {
    Some(
        b.get(..count.checked_mul(each)?)?
            .chunks_exact(each)
            .map(read)
            .collect(),
    )
}

/// The bytes before the first NUL, and how many bytes they took with it.
fn c_string(b: &[u8]) -> Option<(Vec<u8>, usize)> {
    let end = b.iter().position(|c| *c == 0)?;
    Some((b.get(..end)?.to_vec(), end + 1))
}

fn write_pairs(out: &mut Vec<u8>, list: &NvList) {
    for (name, value) in list.iter() {
        write_pair(out, name, value);
    }
    out.extend_from_slice(&0u32.to_le_bytes());
}

fn write_pair(out: &mut Vec<u8>, name: &[u8], value: &NvValue) {
    let start = out.len();
    let value_at = align(PAIR_HEADER + name.len() + 1, 8);
    let size = value_at + align(value.native_len(), 8);
    let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
    out.extend_from_slice(&narrow(size));
    out.extend_from_slice(
        &u16::try_from(name.len() + 1)
            .unwrap_or(u16::MAX)
            .to_le_bytes(),
    );
    out.extend_from_slice(&[0; 2]);
    out.extend_from_slice(&narrow(value.element_count()));
    out.extend_from_slice(&value.type_number().to_le_bytes());
    out.extend_from_slice(name);
    out.resize(start + value_at, 0);
    write_value(out, value);
    out.resize(start + size, 0);
    match value {
        NvValue::List(inner) => write_pairs(out, inner),
        NvValue::Lists(lists) => lists.iter().for_each(|l| write_pairs(out, l)),
        _ => {}
    }
}

fn write_value(out: &mut Vec<u8>, value: &NvValue) {
    match value {
        NvValue::Boolean => {}
        NvValue::Byte(v) | NvValue::U8(v) => out.push(*v),
        NvValue::I8(v) => out.push(v.cast_unsigned()),
        NvValue::I16(v) => out.extend_from_slice(&v.to_le_bytes()),
        NvValue::U16(v) => out.extend_from_slice(&v.to_le_bytes()),
        NvValue::I32(v) => out.extend_from_slice(&v.to_le_bytes()),
        NvValue::U32(v) => out.extend_from_slice(&v.to_le_bytes()),
        NvValue::BoolValue(v) => out.extend_from_slice(&u32::from(*v).to_le_bytes()),
        NvValue::I64(v) | NvValue::HrTime(v) => out.extend_from_slice(&v.to_le_bytes()),
        NvValue::U64(v) | NvValue::Double(v) => out.extend_from_slice(&v.to_le_bytes()),
        NvValue::Str(s) => {
            out.extend_from_slice(s);
            out.push(0);
        }
        NvValue::ByteArray(v) | NvValue::U8Array(v) => out.extend_from_slice(v),
        NvValue::I8Array(v) => out.extend(v.iter().map(|x| x.cast_unsigned())),
        NvValue::I16Array(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        NvValue::U16Array(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        NvValue::I32Array(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        NvValue::U32Array(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        NvValue::BoolArray(v) => out.extend(v.iter().flat_map(|x| u32::from(*x).to_le_bytes())),
        NvValue::I64Array(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        NvValue::U64Array(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        NvValue::StrArray(v) => {
            out.resize(out.len() + 8 * v.len(), 0);
            for s in v {
                out.extend_from_slice(s);
                out.push(0);
            }
        }
        NvValue::List(inner) => write_list_header(out, inner),
        NvValue::Lists(lists) => {
            out.resize(out.len() + 8 * lists.len(), 0);
            for l in lists {
                write_list_header(out, l);
            }
        }
    }
}

fn write_list_header(out: &mut Vec<u8>, list: &NvList) {
    out.extend_from_slice(&0u32.to_le_bytes());
    out.extend_from_slice(&list.flags.to_le_bytes());
    out.extend_from_slice(&0u64.to_le_bytes());
    out.extend_from_slice(&0u32.to_le_bytes());
    out.extend_from_slice(&0u32.to_le_bytes());
}
