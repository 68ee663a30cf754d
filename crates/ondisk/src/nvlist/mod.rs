//! Name-value lists, the format's self-describing structure: labels, pool configuration, history, xattrs.
//!
//! Order of pairs is kept. Names and strings are bytes (the format does not say UTF-8); the typed getters give `&str`
//! where it is valid. Two encodings: XDR ([`NvList::encode_xdr`], big-endian, for everything portable) and native
//! ([`NvList::encode_native`], little-endian, for history records).

mod native;
mod text;
mod xdr;

use std::fmt;

use crate::{DecodeError, Result};

/// Deepest nesting accepted when decoding.
const DEPTH_MAX: usize = 24;
/// Flag of every list written: names are unique.
const UNIQUE_NAME: u32 = 1;
const ENCODING_NATIVE: u8 = 0;
const ENCODING_XDR: u8 = 1;

/// The value of a pair.
#[derive(Debug, Clone, PartialEq)]
pub enum NvValue {
    /// Present, without a value.
    Boolean,
    Byte(u8),
    I16(i16),
    U16(u16),
    I32(i32),
    U32(u32),
    I64(i64),
    U64(u64),
    Str(Vec<u8>),
    ByteArray(Vec<u8>),
    I16Array(Vec<i16>),
    U16Array(Vec<u16>),
    I32Array(Vec<i32>),
    U32Array(Vec<u32>),
    I64Array(Vec<i64>),
    U64Array(Vec<u64>),
    StrArray(Vec<Vec<u8>>),
    /// Nanoseconds.
    HrTime(i64),
    List(NvList),
    Lists(Vec<NvList>),
    BoolValue(bool),
    I8(i8),
    U8(u8),
    BoolArray(Vec<bool>),
    I8Array(Vec<i8>),
    U8Array(Vec<u8>),
    /// Bits of an IEEE double.
    Double(u64),
}

impl NvValue {
    /// The type number on disk.
    #[must_use]
    pub const fn type_number(&self) -> u32 {
        match self {
            Self::Boolean => 1,
            Self::Byte(_) => 2,
            Self::I16(_) => 3,
            Self::U16(_) => 4,
            Self::I32(_) => 5,
            Self::U32(_) => 6,
            Self::I64(_) => 7,
            Self::U64(_) => 8,
            Self::Str(_) => 9,
            Self::ByteArray(_) => 10,
            Self::I16Array(_) => 11,
            Self::U16Array(_) => 12,
            Self::I32Array(_) => 13,
            Self::U32Array(_) => 14,
            Self::I64Array(_) => 15,
            Self::U64Array(_) => 16,
            Self::StrArray(_) => 17,
            Self::HrTime(_) => 18,
            Self::List(_) => 19,
            Self::Lists(_) => 20,
            Self::BoolValue(_) => 21,
            Self::I8(_) => 22,
            Self::U8(_) => 23,
            Self::BoolArray(_) => 24,
            Self::I8Array(_) => 25,
            Self::U8Array(_) => 26,
            Self::Double(_) => 27,
        }
    }

    /// The element count stored with the value.
    fn element_count(&self) -> usize {
        match self {
            Self::Boolean => 0,
            Self::ByteArray(v) | Self::U8Array(v) => v.len(),
            Self::I16Array(v) => v.len(),
            Self::U16Array(v) => v.len(),
            Self::I32Array(v) => v.len(),
            Self::U32Array(v) => v.len(),
            Self::I64Array(v) => v.len(),
            Self::U64Array(v) => v.len(),
            Self::StrArray(v) => v.len(),
            Self::Lists(v) => v.len(),
            Self::BoolArray(v) => v.len(),
            Self::I8Array(v) => v.len(),
            _ => 1,
        }
    }

    /// Bytes of the value in native memory: what OpenZFS's decoder will allocate.
    fn native_len(&self) -> usize {
        match self {
            Self::Boolean => 0,
            Self::Byte(_) | Self::I8(_) | Self::U8(_) => 1,
            Self::I16(_) | Self::U16(_) => 2,
            Self::I32(_) | Self::U32(_) | Self::BoolValue(_) => 4,
            Self::I64(_) | Self::U64(_) | Self::HrTime(_) | Self::Double(_) => 8,
            Self::Str(s) => s.len() + 1,
            Self::ByteArray(v) | Self::U8Array(v) => v.len(),
            Self::I8Array(v) => v.len(),
            Self::I16Array(v) => 2 * v.len(),
            Self::U16Array(v) => 2 * v.len(),
            Self::I32Array(v) => 4 * v.len(),
            Self::U32Array(v) => 4 * v.len(),
            Self::BoolArray(v) => 4 * v.len(),
            Self::I64Array(v) => 8 * v.len(),
            Self::U64Array(v) => 8 * v.len(),
            Self::StrArray(v) => v.iter().map(|s| 8 + s.len() + 1).sum(),
            Self::List(_) => 24,
            Self::Lists(v) => 32 * v.len(),
        }
    }
}

macro_rules! from {
    ($($type:ty => $variant:ident),* $(,)?) => {
        $(impl From<$type> for NvValue {
            fn from(v: $type) -> Self {
                Self::$variant(v)
            }
        })*
    };
}

from! {
    u64 => U64, i64 => I64, u32 => U32, i32 => I32, bool => BoolValue,
    NvList => List, Vec<NvList> => Lists, Vec<u64> => U64Array,
}

impl From<&str> for NvValue {
    fn from(v: &str) -> Self {
        Self::Str(v.as_bytes().to_vec())
    }
}

impl From<String> for NvValue {
    fn from(v: String) -> Self {
        Self::Str(v.into_bytes())
    }
}

/// An ordered list of named values.
#[derive(Clone, PartialEq)]
pub struct NvList {
    flags: u32,
    pairs: Vec<(Vec<u8>, NvValue)>,
}

impl Default for NvList {
    fn default() -> Self {
        Self {
            flags: UNIQUE_NAME,
            pairs: Vec::new(),
        }
    }
}

impl NvList {
    /// An empty list with unique names.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes a packed list: a 4-byte header naming the encoding, then XDR or little-endian native. Bytes after the
    /// list are ignored.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes end early, nest too deep, or contradict themselves.
    pub fn decode(buf: &[u8]) -> Result<Self> {
        Self::decode_prefix(buf).map(|(list, _)| list)
    }

    /// Like [`Self::decode`], and returns how many bytes the list took with its header.
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub fn decode_prefix(buf: &[u8]) -> Result<(Self, usize)> {
        match buf {
            [ENCODING_XDR, _, _, _, ..] => xdr::decode(buf),
            [ENCODING_NATIVE, 1, _, _, ..] => native::decode(buf),
            [ENCODING_NATIVE, ..] => Err(DecodeError::new(
                "nvlist in native encoding of the other byte order",
                1,
            )),
            _ => Err(DecodeError::new("nvlist encoding", 0)),
        }
    }

    /// Encodes with the 4-byte header, in XDR.
    #[must_use]
    pub fn encode_xdr(&self) -> Vec<u8> {
        xdr::encode(self)
    }

    /// Encodes with the 4-byte header, in little-endian native form.
    #[must_use]
    pub fn encode_native(&self) -> Vec<u8> {
        native::encode(self)
    }

    /// Sets `name` to `value`: replaces it in place when present, else appends.
    pub fn insert(&mut self, name: impl AsRef<[u8]>, value: impl Into<NvValue>) {
        let (name, value) = (name.as_ref(), value.into());
        match self.pairs.iter_mut().find(|(n, _)| n == name) {
            Some((_, v)) => *v = value,
            None => self.pairs.push((name.to_vec(), value)),
        }
    }

    /// Sets `name` without a value.
    pub fn insert_flag(&mut self, name: impl AsRef<[u8]>) {
        self.insert(name, NvValue::Boolean);
    }

    /// [`Self::insert`] for building in one expression.
    #[must_use]
    pub fn with(mut self, name: impl AsRef<[u8]>, value: impl Into<NvValue>) -> Self {
        self.insert(name, value);
        self
    }

    /// Removes `name` and returns its value.
    pub fn remove(&mut self, name: impl AsRef<[u8]>) -> Option<NvValue> {
        let i = self.pairs.iter().position(|(n, _)| n == name.as_ref())?;
        Some(self.pairs.remove(i).1)
    }

    /// The value of `name`.
    #[must_use]
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&NvValue> {
        self.pairs
            .iter()
            .find(|(n, _)| n == name.as_ref())
            .map(|(_, v)| v)
    }

    /// The value of `name`, to change in place.
    pub fn get_mut(&mut self, name: impl AsRef<[u8]>) -> Option<&mut NvValue> {
        self.pairs
            .iter_mut()
            .find(|(n, _)| n == name.as_ref())
            .map(|(_, v)| v)
    }

    /// True when `name` is present, whatever its value.
    #[must_use]
    pub fn has(&self, name: impl AsRef<[u8]>) -> bool {
        self.get(name).is_some()
    }

    /// The `u64` called `name`.
    #[must_use]
    pub fn u64(&self, name: &str) -> Option<u64> {
        match self.get(name)? {
            NvValue::U64(v) => Some(*v),
            _ => None,
        }
    }

    /// The `i64` called `name`.
    #[must_use]
    pub fn i64(&self, name: &str) -> Option<i64> {
        match self.get(name)? {
            NvValue::I64(v) => Some(*v),
            _ => None,
        }
    }

    /// The string called `name`, when it is UTF-8.
    #[must_use]
    pub fn str(&self, name: &str) -> Option<&str> {
        match self.get(name)? {
            NvValue::Str(v) => std::str::from_utf8(v).ok(),
            _ => None,
        }
    }

    /// The list called `name`.
    #[must_use]
    pub fn list(&self, name: &str) -> Option<&Self> {
        match self.get(name)? {
            NvValue::List(v) => Some(v),
            _ => None,
        }
    }

    /// The array of lists called `name`.
    #[must_use]
    pub fn lists(&self, name: &str) -> Option<&[Self]> {
        match self.get(name)? {
            NvValue::Lists(v) => Some(v),
            _ => None,
        }
    }

    /// The `u64` array called `name`.
    #[must_use]
    pub fn u64s(&self, name: &str) -> Option<&[u64]> {
        match self.get(name)? {
            NvValue::U64Array(v) => Some(v),
            _ => None,
        }
    }

    /// The byte array called `name`.
    #[must_use]
    pub fn bytes(&self, name: impl AsRef<[u8]>) -> Option<&[u8]> {
        match self.get(name)? {
            NvValue::ByteArray(v) | NvValue::U8Array(v) => Some(v),
            _ => None,
        }
    }

    /// All pairs in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &NvValue)> {
        self.pairs.iter().map(|(n, v)| (n.as_slice(), v))
    }

    /// The names that are UTF-8, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.pairs
            .iter()
            .filter_map(|(n, _)| std::str::from_utf8(n).ok())
    }

    /// Number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// True without pairs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Keeps a pair that a decoder read, whether or not its name is new.
    fn push(&mut self, name: Vec<u8>, value: NvValue) {
        self.pairs.push((name, value));
    }
}

impl fmt::Debug for NvList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(
                self.pairs
                    .iter()
                    .map(|(n, v)| (String::from_utf8_lossy(n), v)),
            )
            .finish()
    }
}

/// A bounded reader of one packed list.
struct Source<'a> {
    buf: &'a [u8],
    pos: usize,
}

impl<'a> Source<'a> {
    fn fail<T>(&self, what: &'static str) -> Result<T> {
        Err(DecodeError::new(what, self.pos))
    }

    fn remaining(&self) -> usize {
        self.buf.len().saturating_sub(self.pos)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let end = self.pos.checked_add(len);
        let Some(bytes) = end.and_then(|end| self.buf.get(self.pos..end)) else {
            return self.fail("nvlist, ends early");
        };
        self.pos += len;
        Ok(bytes)
    }

    /// Checks that `count` elements of at least `each` bytes can follow, before anything is allocated for them.
    fn room_for(&self, count: usize, each: usize) -> Result<()> {
        if count.checked_mul(each).is_none_or(|n| n > self.remaining()) {
            return self.fail("nvlist element count");
        }
        Ok(())
    }
}

const fn align(n: usize, to: usize) -> usize {
    n.next_multiple_of(to)
}

#[cfg(test)]
mod tests;
