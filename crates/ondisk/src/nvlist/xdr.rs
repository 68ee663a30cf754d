//! The XDR encoding: big-endian, four-byte units; each pair carries its encoded size and its size in native memory.
//!
//! OpenZFS: module/nvpair/nvpair.c, the nvs_xdr functions. The native size must be right: OpenZFS's decoder allocates
//! exactly that much and fails on anything else.

use super::{DEPTH_MAX, ENCODING_XDR, NvList, NvValue, Source, align};
use crate::{DecodeError, Result};

pub(super) fn decode(buf: &[u8]) -> Result<(NvList, usize)> {
    let mut src = Source { buf, pos: 4 };
    let list = read_list(&mut src, 0)?;
    Ok((list, src.pos))
}

pub(super) fn encode(list: &NvList) -> Vec<u8> {
    let mut out = vec![ENCODING_XDR, 1, 0, 0];
    write_list(&mut out, list);
    out
}

fn read_list(src: &mut Source<'_>, depth: usize) -> Result<NvList> {
    if depth > DEPTH_MAX {
        return src.fail("nvlist nesting");
    }
    let version = word(src)?;
    if version != 0 {
        return src.fail("nvlist version");
    }
    let mut list = NvList {
        flags: word(src)?,
        pairs: Vec::new(),
    };
    loop {
        let start = src.pos;
        let encoded = size(src)?;
        let decoded = size(src)?;
        if encoded == 0 && decoded == 0 {
            return Ok(list);
        }
        let name = string(src)?;
        let kind = word(src)?;
        let count = size(src)?;
        let value = read_value(src, kind, count, depth)?;
        // A pair that lies about its length would let two readers see different lists.
        if src.pos - start != encoded {
            return Err(DecodeError::new("nvlist pair size", start));
        }
        list.push(name, value);
    }
}

fn read_value(src: &mut Source<'_>, kind: u32, count: usize, depth: usize) -> Result<NvValue> {
    let scalar = matches!(kind, 2..=9 | 18 | 19 | 21..=23 | 27);
    if (scalar && count != 1) || (kind == 1 && count != 0) {
        return src.fail("nvlist element count");
    }
    Ok(match kind {
        1 => NvValue::Boolean,
        2 => NvValue::Byte(low(word(src)?)),
        3 => NvValue::I16(low(word(src)?)),
        4 => NvValue::U16(low(word(src)?)),
        5 => NvValue::I32(signed(word(src)?)),
        6 => NvValue::U32(word(src)?),
        7 => NvValue::I64(double(src)?.cast_signed()),
        8 => NvValue::U64(double(src)?),
        9 => NvValue::Str(string(src)?),
        10 => {
            let bytes = src.take(count)?.to_vec();
            src.take(align(count, 4) - count)?;
            NvValue::ByteArray(bytes)
        }
        11 => NvValue::I16Array(array(src, count, 4, |s| word(s).map(low))?),
        12 => NvValue::U16Array(array(src, count, 4, |s| word(s).map(low))?),
        13 => NvValue::I32Array(array(src, count, 4, |s| word(s).map(signed))?),
        14 => NvValue::U32Array(array(src, count, 4, word)?),
        15 => NvValue::I64Array(array(src, count, 8, |s| double(s).map(u64::cast_signed))?),
        16 => NvValue::U64Array(array(src, count, 8, double)?),
        17 => {
            src.room_for(count, 4)?;
            let mut strings = Vec::new();
            for _ in 0..count {
                strings.push(string(src)?);
            }
            NvValue::StrArray(strings)
        }
        18 => NvValue::HrTime(double(src)?.cast_signed()),
        19 => NvValue::List(read_list(src, depth + 1)?),
        20 => {
            src.room_for(count, 16)?;
            let mut lists = Vec::new();
            for _ in 0..count {
                lists.push(read_list(src, depth + 1)?);
            }
            NvValue::Lists(lists)
        }
        21 => NvValue::BoolValue(word(src)? != 0),
        22 => NvValue::I8(low(word(src)?)),
        23 => NvValue::U8(low(word(src)?)),
        24 => NvValue::BoolArray(array(src, count, 4, |s| word(s).map(|w| w != 0))?),
        25 => NvValue::I8Array(array(src, count, 4, |s| word(s).map(low))?),
        26 => NvValue::U8Array(array(src, count, 4, |s| word(s).map(low))?),
        27 => NvValue::Double(double(src)?),
        _ => return src.fail("nvlist value type"),
    })
}

fn array<T>(
    src: &mut Source<'_>,
    count: usize,
    each: usize,
    mut read: impl FnMut(&mut Source<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    if size(src)? != count {
        return src.fail("nvlist array count");
    }
    src.room_for(count, each)?;
    (0..count).map(|_| read(src)).collect()
}

fn word(src: &mut Source<'_>) -> Result<u32> {
    let b = src.take(4)?;
    Ok(u32::from_be_bytes(b.try_into().unwrap_or_default()))
}

fn double(src: &mut Source<'_>) -> Result<u64> {
    let b = src.take(8)?;
    Ok(u64::from_be_bytes(b.try_into().unwrap_or_default()))
}

/// A count or size: a signed word on disk, so the top bit must be clear.
fn size(src: &mut Source<'_>) -> Result<usize> {
    let n = word(src)?;
    match i32::try_from(n) {
        Ok(_) => Ok(n as usize),
        Err(_) => src.fail("nvlist size"),
    }
}

fn string(src: &mut Source<'_>) -> Result<Vec<u8>> {
    let len = size(src)?;
    let bytes = src.take(len)?.to_vec();
    src.take(align(len, 4) - len)?;
    Ok(bytes)
}

/// Narrow integers travel as whole words; the low bits are the value.
trait Low {
    fn low(word: u32) -> Self;
}

macro_rules! low {
    ($($t:ty),*) => {$(impl Low for $t {
        #[allow(clippy::cast_possible_truncation, reason = "the low bits are the value")]
        fn low(word: u32) -> Self {
            word as $t
        }
    })*};
}
low!(u8, i8, u16, i16);

fn low<T: Low>(word: u32) -> T {
    T::low(word)
}

fn signed(word: u32) -> i32 {
    word.cast_signed()
}

fn write_list(out: &mut Vec<u8>, list: &NvList) {
    put_word(out, 0);
    put_word(out, list.flags);
    for (name, value) in list.iter() {
        let start = out.len();
        put_size(out, 0);
        put_size(
            out,
            align(16 + name.len() + 1, 8) + align(value.native_len(), 8),
        );
        put_string(out, name);
        put_word(out, value.type_number());
        put_size(out, value.element_count());
        write_value(out, value);
        let encoded = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
        crate::bytes::put_bytes(out, start, &encoded.to_be_bytes());
    }
    put_word(out, 0);
    put_word(out, 0);
}

fn write_value(out: &mut Vec<u8>, value: &NvValue) {
    match value {
        NvValue::Boolean => {}
        NvValue::Byte(v) | NvValue::U8(v) => put_word(out, u32::from(*v)),
        NvValue::I8(v) => put_word(out, i32::from(*v).cast_unsigned()),
        NvValue::I16(v) => put_word(out, i32::from(*v).cast_unsigned()),
        NvValue::U16(v) => put_word(out, u32::from(*v)),
        NvValue::I32(v) => put_word(out, v.cast_unsigned()),
        NvValue::U32(v) => put_word(out, *v),
        NvValue::BoolValue(v) => put_word(out, u32::from(*v)),
        NvValue::I64(v) | NvValue::HrTime(v) => out.extend_from_slice(&v.to_be_bytes()),
        NvValue::U64(v) | NvValue::Double(v) => out.extend_from_slice(&v.to_be_bytes()),
        NvValue::Str(s) => put_string(out, s),
        NvValue::ByteArray(v) => {
            out.extend_from_slice(v);
            pad(out, v.len());
        }
        NvValue::U8Array(v) => put_array(out, v, |o, x| put_word(o, u32::from(*x))),
        NvValue::I8Array(v) => put_array(out, v, |o, x| put_word(o, i32::from(*x).cast_unsigned())),
        NvValue::I16Array(v) => {
            put_array(out, v, |o, x| put_word(o, i32::from(*x).cast_unsigned()));
        }
        NvValue::U16Array(v) => put_array(out, v, |o, x| put_word(o, u32::from(*x))),
        NvValue::I32Array(v) => put_array(out, v, |o, x| put_word(o, x.cast_unsigned())),
        NvValue::U32Array(v) => put_array(out, v, |o, x| put_word(o, *x)),
        NvValue::BoolArray(v) => put_array(out, v, |o, x| put_word(o, u32::from(*x))),
        NvValue::I64Array(v) => put_array(out, v, |o, x| o.extend_from_slice(&x.to_be_bytes())),
        NvValue::U64Array(v) => put_array(out, v, |o, x| o.extend_from_slice(&x.to_be_bytes())),
        NvValue::StrArray(v) => v.iter().for_each(|s| put_string(out, s)),
        NvValue::List(list) => write_list(out, list),
        NvValue::Lists(lists) => lists.iter().for_each(|l| write_list(out, l)),
    }
}

fn put_array<T>(out: &mut Vec<u8>, items: &[T], mut put: impl FnMut(&mut Vec<u8>, &T)) {
    put_size(out, items.len());
    for item in items {
        put(out, item);
    }
}

fn put_word(out: &mut Vec<u8>, v: u32) {
    out.extend_from_slice(&v.to_be_bytes());
}

fn put_size(out: &mut Vec<u8>, n: usize) {
    put_word(out, u32::try_from(n).unwrap_or(u32::MAX));
}

fn put_string(out: &mut Vec<u8>, s: &[u8]) {
    put_size(out, s.len());
    out.extend_from_slice(s);
    pad(out, s.len());
}

fn pad(out: &mut Vec<u8>, len: usize) {
    out.resize(out.len() + align(len, 4) - len, 0);
}
