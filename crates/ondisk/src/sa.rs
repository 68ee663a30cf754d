//! System attributes: the packed attributes of a file in its bonus buffer (and spill block).
//!
//! ```text
//! u32 magic | u16 layout | header size/8 << 10 | u16 lengths of variable attributes | pad to 8 | attributes, 8-aligned
//! ```
//! A layout is a list of attribute numbers; each dataset has its layouts and attribute numbers in ZAPs.
//! OpenZFS: include/sys/sa_impl.h, zfs_sa.h.

use std::ops::Range;

use crate::bytes::{need, put_u16, put_u32, slice_at, u16_at, u32_at};
use crate::{DecodeError, Result};

const MAGIC: u32 = 0x002f_505a;
/// First byte of the lengths in the header.
const LENGTHS_AT: usize = 6;

/// How the bytes of an attribute are swapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaByteswap {
    U64 = 0,
    U32 = 1,
    U16 = 2,
    U8 = 3,
    Acl = 4,
}

/// One attribute of the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attribute {
    pub name: &'static str,
    pub number: u16,
    /// Bytes; 0 when variable.
    pub length: u16,
    pub byteswap: SaByteswap,
}

impl Attribute {
    /// The value of its entry in the registry ZAP.
    #[must_use]
    pub fn registry_value(&self) -> u64 {
        u64::from(self.number) | (self.byteswap as u64) << 16 | u64::from(self.length) << 24
    }
}

macro_rules! attributes {
    ($($nr:literal $name:ident $text:literal $len:literal $swap:ident;)*) => {
        /// Attribute numbers as OpenZFS registers them in a new file system; 0..=15 are fixed by the format.
        pub mod attr {
            $(pub const $name: u16 = $nr;)*
        }
        /// The registry of a new file system, in order of number.
        pub const ATTRIBUTES: &[Attribute] = &[
            $(Attribute { name: $text, number: $nr, length: $len, byteswap: SaByteswap::$swap },)*
        ];
    };
}

attributes! {
    0 ATIME "ZPL_ATIME" 16 U64;
    1 MTIME "ZPL_MTIME" 16 U64;
    2 CTIME "ZPL_CTIME" 16 U64;
    3 CRTIME "ZPL_CRTIME" 16 U64;
    4 GEN "ZPL_GEN" 8 U64;
    5 MODE "ZPL_MODE" 8 U64;
    6 SIZE "ZPL_SIZE" 8 U64;
    7 PARENT "ZPL_PARENT" 8 U64;
    8 LINKS "ZPL_LINKS" 8 U64;
    9 XATTR "ZPL_XATTR" 8 U64;
    10 RDEV "ZPL_RDEV" 8 U64;
    11 FLAGS "ZPL_FLAGS" 8 U64;
    12 UID "ZPL_UID" 8 U64;
    13 GID "ZPL_GID" 8 U64;
    14 PAD "ZPL_PAD" 32 U64;
    15 ZNODE_ACL "ZPL_ZNODE_ACL" 88 U8;
    16 DACL_COUNT "ZPL_DACL_COUNT" 8 U64;
    17 SYMLINK "ZPL_SYMLINK" 0 U8;
    18 SCANSTAMP "ZPL_SCANSTAMP" 32 U8;
    19 DACL_ACES "ZPL_DACL_ACES" 0 Acl;
    20 DXATTR "ZPL_DXATTR" 0 U8;
    21 PROJID "ZPL_PROJID" 8 U64;
}

/// Layout number of the legacy znode (not stored as system attributes).
pub const LAYOUT_LEGACY: u16 = 0;
/// First number of a stored layout.
pub const LAYOUT_FIRST: u16 = 2;
/// Most bytes of all attributes together.
pub const SIZE_MAX: usize = 65_536;

/// Keys of the SA master node.
pub const REGISTRY_KEY: &str = "REGISTRY";
/// Keys of the SA master node.
pub const LAYOUTS_KEY: &str = "LAYOUTS";

/// Byte offsets, after the header, of the attributes every object has first; user accounting reads them there.
pub mod fixed_offset {
    pub const MODE: usize = 0;
    pub const SIZE: usize = 8;
    pub const GEN: usize = 16;
    pub const UID: usize = 24;
    pub const GID: usize = 32;
    pub const PARENT: usize = 40;
    pub const FLAGS: usize = 48;
    pub const ATIME: usize = 56;
    pub const MTIME: usize = 72;
    pub const CTIME: usize = 88;
    pub const CRTIME: usize = 104;
    pub const LINKS: usize = 120;
    /// Only when the flags say that there is one.
    pub const PROJID: usize = 128;
}

/// A registry value taken apart: number, length (0 when variable).
#[must_use]
pub fn decode_registry_value(value: u64) -> (u16, u16) {
    (crate::bytes::low16(value), crate::bytes::low16(value >> 24))
}

/// The header of an attribute buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaHeader {
    pub layout: u16,
    /// Bytes of the header: where attributes start.
    pub size: usize,
    /// Lengths of the variable attributes in layout order (with padding entries at the end).
    pub lengths: Vec<u16>,
}

impl SaHeader {
    /// Decodes the header of a bonus or spill buffer.
    ///
    /// # Errors
    /// [`DecodeError`] when the magic or the header size is wrong.
    pub fn decode(buf: &[u8]) -> Result<Self> {
        need(buf, 8, "system attribute header")?;
        if u32_at(buf, 0) != MAGIC {
            return Err(DecodeError::new("system attribute magic", 0));
        }
        let info = u16_at(buf, 4);
        let size = usize::from(info >> 10) * 8;
        if size < 8 || size > buf.len() {
            return Err(DecodeError::new("system attribute header size", 4));
        }
        let lengths = (LENGTHS_AT..size)
            .step_by(2)
            .map(|at| u16_at(buf, at))
            .collect();
        Ok(Self {
            layout: info & 0x3ff,
            size,
            lengths,
        })
    }
}

/// Bytes of a header with this many variable attributes.
#[must_use]
pub const fn header_size(variable: usize) -> usize {
    (8 + 2 * variable.saturating_sub(1)).next_multiple_of(8)
}

/// Finds each attribute of a buffer: its number and its byte range in `buf`, in layout order.
///
/// `layout` lists attribute numbers; `length_of` gives the registered length of a number (0 variable, `None` unknown).
///
/// # Errors
/// [`DecodeError`] when an attribute is unknown or lies outside the buffer.
pub fn attributes(
    buf: &[u8],
    layout: &[u16],
    length_of: impl Fn(u16) -> Option<u16>,
) -> Result<Vec<(u16, Range<usize>)>> {
    let header = SaHeader::decode(buf)?;
    let mut lengths = header.lengths.iter();
    let mut at = header.size;
    let mut out = Vec::with_capacity(layout.len());
    for &number in layout {
        let len = match length_of(number) {
            None => return Err(DecodeError::new("system attribute number", at)),
            Some(0) => *lengths
                .next()
                .ok_or(DecodeError::new("system attribute lengths", at))?,
            Some(len) => len,
        };
        let end = at + usize::from(len);
        if end > buf.len() {
            return Err(DecodeError::new("system attribute, ends early", at));
        }
        out.push((number, at..end));
        at = end.next_multiple_of(8);
    }
    Ok(out)
}

/// Builds a buffer from attributes in layout order: for each its bytes, and whether its length is variable.
///
/// # Errors
/// [`DecodeError`] when the layout number or the header does not fit the format's fields.
pub fn build<'a>(
    layout: u16,
    attributes: impl IntoIterator<Item = (&'a [u8], bool)>,
) -> Result<Vec<u8>> {
    let attributes: Vec<_> = attributes.into_iter().collect();
    let variable: Vec<usize> = attributes
        .iter()
        .filter(|(_, v)| *v)
        .map(|(b, _)| b.len())
        .collect();
    let size = header_size(variable.len());
    if layout > 0x3ff || size / 8 > 0x3f {
        return Err(DecodeError::new("system attribute header", 4));
    }
    let mut out = vec![0; size];
    put_u32(&mut out, 0, MAGIC);
    put_u16(
        &mut out,
        4,
        layout | crate::bytes::low16(size as u64 / 8) << 10,
    );
    for (i, len) in variable.iter().enumerate() {
        let len =
            u16::try_from(*len).map_err(|_| DecodeError::new("system attribute length", i))?;
        put_u16(&mut out, LENGTHS_AT + 2 * i, len);
    }
    for (bytes, _) in attributes {
        out.resize(out.len().next_multiple_of(8), 0);
        out.extend_from_slice(bytes);
    }
    Ok(out)
}

/// The bytes of one attribute of a buffer, by a range that [`attributes`] gave.
#[must_use]
pub fn bytes_of<'a>(buf: &'a [u8], range: &Range<usize>) -> &'a [u8] {
    slice_at(buf, range.start, range.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(n: u16) -> Option<u16> {
        ATTRIBUTES.get(usize::from(n)).map(|a| a.length)
    }

    #[test]
    fn registry_values_are_openzfs_ones() {
        for (n, v) in [
            (0, 0x1000_0000),
            (4, 0x800_0004),
            (15, 0x5803_000f),
            (17, 0x3_0011),
            (19, 0x4_0013),
        ] {
            assert_eq!(ATTRIBUTES[n].registry_value(), v);
        }
        assert!(
            ATTRIBUTES
                .iter()
                .enumerate()
                .all(|(i, a)| usize::from(a.number) == i)
        );
    }

    #[test]
    fn a_file_with_three_aces_takes_168_bytes() {
        let layout = [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19];
        let values: Vec<Vec<u8>> = layout
            .iter()
            .map(|n| vec![0xab; usize::from(length(*n).filter(|l| *l > 0).unwrap_or(24))])
            .collect();
        let attrs = layout
            .iter()
            .zip(&values)
            .map(|(n, v)| (v.as_slice(), length(*n) == Some(0)));
        let buf = build(2, attrs).unwrap();
        assert_eq!(buf.len(), 168);
        let found = attributes(&buf, &layout, length).unwrap();
        assert_eq!(
            found[11],
            (8, 8 + fixed_offset::LINKS..8 + fixed_offset::LINKS + 8)
        );
        assert_eq!(found[13], (19, 144..168));
        assert_eq!(SaHeader::decode(&buf).unwrap().layout, 2);
        assert!(attributes(&buf[..160], &layout, length).is_err());
        assert!(attributes(&buf, &[99], length).is_err());
    }

    #[test]
    fn two_variable_attributes_need_a_longer_header() {
        let buf = build(3, [(&b"abc"[..], true), (&b"0123456789"[..], true)]).unwrap();
        assert_eq!(SaHeader::decode(&buf).unwrap().size, 16);
        let found = attributes(&buf, &[17, 20], length).unwrap();
        assert_eq!(bytes_of(&buf, &found[1].1), b"0123456789");
        assert_eq!(found[1].1.start, 24);
    }
}
