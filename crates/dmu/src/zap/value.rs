//! Values and keys of ZAPs, as callers see them and as leaves store them.

use std::borrow::Cow;

use ondisk::zap::{self as codec, zap_flags};

use crate::error::{DmuError, Result};

/// A value: an array of integers of one width.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ZapValue {
    /// Bytes; strings are stored with their terminating NUL.
    U8(Vec<u8>),
    /// 16-bit integers.
    U16(Vec<u16>),
    /// 32-bit integers.
    U32(Vec<u32>),
    /// 64-bit integers.
    U64(Vec<u64>),
}

impl From<u64> for ZapValue {
    fn from(value: u64) -> Self {
        Self::U64(vec![value])
    }
}

impl From<&str> for ZapValue {
    /// A string value, with its NUL.
    fn from(text: &str) -> Self {
        Self::U8(text.bytes().chain([0]).collect())
    }
}

impl ZapValue {
    /// The number, if the value is exactly one 64-bit integer.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::U64(v) if v.len() == 1 => v.first().copied(),
            _ => None,
        }
    }

    /// The 64-bit integers.
    #[must_use]
    pub fn as_u64s(&self) -> Option<&[u64]> {
        match self {
            Self::U64(v) => Some(v),
            _ => None,
        }
    }

    /// The text, if the value is bytes up to a NUL (or the end) in UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        let Self::U8(bytes) = self else { return None };
        std::str::from_utf8(bytes.split(|&b| b == 0).next().unwrap_or_default()).ok()
    }

    /// Width of its integers in bytes.
    #[must_use]
    pub fn int_size(&self) -> u8 {
        match self {
            Self::U8(_) => 1,
            Self::U16(_) => 2,
            Self::U32(_) => 4,
            Self::U64(_) => 8,
        }
    }

    /// The stored form: big-endian integers, packed.
    pub(crate) fn to_stored(&self) -> Vec<u8> {
        match self {
            Self::U8(v) => v.clone(),
            Self::U16(v) => v.iter().flat_map(|i| i.to_be_bytes()).collect(),
            Self::U32(v) => v.iter().flat_map(|i| i.to_be_bytes()).collect(),
            Self::U64(v) => v.iter().flat_map(|i| i.to_be_bytes()).collect(),
        }
    }

    pub(crate) fn from_stored(int_size: u8, bytes: Vec<u8>) -> Self {
        match int_size {
            1 => Self::U8(bytes),
            2 => Self::U16(ints(&bytes, u16::from_be_bytes)),
            4 => Self::U32(ints(&bytes, u32::from_be_bytes)),
            _ => Self::U64(ints(&bytes, u64::from_be_bytes)),
        }
    }
}

fn ints<const N: usize, T>(bytes: &[u8], decode: fn([u8; N]) -> T) -> Vec<T> {
    bytes
        .chunks_exact(N)
        .map(|c| decode(c.try_into().expect("chunks of N bytes")))
        .collect()
}

/// A key as callers give it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Key<'a> {
    /// A name.
    Name(&'a [u8]),
    /// 64-bit integers.
    Words(&'a [u64]),
}

impl Key<'_> {
    /// The stored form: a name with its NUL, or big-endian integers.
    pub(crate) fn to_stored(self) -> Vec<u8> {
        match self {
            Self::Name(name) => name.iter().copied().chain([0]).collect(),
            Self::Words(words) => words.iter().flat_map(|w| w.to_be_bytes()).collect(),
        }
    }

    /// Bytes of each of its integers.
    pub(crate) fn int_size(self) -> u8 {
        match self {
            Self::Name(_) => 1,
            Self::Words(_) => 8,
        }
    }

    /// Refuses keys that no ZAP holds.
    pub(crate) fn check(self, object: ondisk::ObjectId) -> Result<()> {
        let bad = match self {
            Self::Name([]) => "a name is not empty",
            Self::Name(name) if name.contains(&0) => "a name holds no NUL",
            Self::Name(name) if name.len() > codec::KEY_MAX_LONG => "a name is at most 1023 bytes",
            Self::Words(words) if words.is_empty() || words.len() > 32 => {
                "an integer key has 1 to 32 integers"
            }
            _ => return Ok(()),
        };
        Err(DmuError::ZapLimit { object, what: bad })
    }

    /// The hash under a ZAP's salt, normalization and flags.
    pub(crate) fn hash(self, salt: u64, norm: u64, flags: u64) -> Result<u64> {
        match self {
            Self::Name(name) => Ok(codec::hash(salt, &normal(name, norm), flags)),
            Self::Words(words) => Ok(codec::hash_words(salt, words, flags)),
        }
    }

    /// Whether a ZAP with these flags takes this kind of key.
    pub(crate) fn fits(self, flags: u64) -> bool {
        matches!(self, Self::Words(_)) == (flags & zap_flags::UINT64_KEY != 0)
    }
}

/// The form of a name that is hashed.
pub(crate) fn normal(name: &[u8], norm: u64) -> Cow<'_, [u8]> {
    if norm == 0 {
        Cow::Borrowed(name)
    } else {
        codec::normalize(name, norm)
    }
}

/// Position of an entry in hash order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) hash: u64,
    pub(crate) cd: u32,
}

impl Position {
    /// The cookie that continues behind this entry: the hash's top bits below, the next differentiator above; never 0.
    /// OpenZFS: module/zfs/zap.c, zap_cursor_serialize
    pub(crate) fn cookie_after(self, flags: u64) -> u64 {
        let bits = codec::hash_bits(flags);
        let room = u64::MAX >> bits;
        let next = (u64::from(self.cd) + 1).min(room);
        (self.hash >> (64 - bits)) | (next << bits)
    }

    pub(crate) fn from_cookie(cookie: u64, flags: u64) -> Self {
        let bits = codec::hash_bits(flags);
        let hash = (cookie & ((1 << bits) - 1)) << (64 - bits);
        Self {
            hash,
            cd: u32::try_from(cookie >> bits).unwrap_or(u32::MAX),
        }
    }
}
