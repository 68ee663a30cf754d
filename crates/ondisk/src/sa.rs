//! System attributes: the packed attributes of a file in its bonus buffer (and spill block).
//!
//! ```text
//! u32 magic | u16 layout | header size/8 << 10 | u16 lengths of variable attributes | pad to 8 | attributes, 8-aligned
//! ```
//! A layout is a list of attribute numbers; each dataset has its layouts and attribute numbers in ZAPs.
//! OpenZFS: include/sys/sa_impl.h, zfs_sa.h.

use std::ops::Range;

use crate::bytes::{need, slice_at, u16_at, u32_at};
use crate::byteswap::words;
use crate::{DecodeError, Result};

const MAGIC: u32 = 0x002f_505a;
/// First byte of the lengths in the header.
const LENGTHS_AT: usize = 6;
/// Layout numbers have ten bits in the header.
pub const LAYOUT_MAX: u16 = 0x3ff;
/// Most bytes of a header: six bits count eight bytes each.
pub const HEADER_SIZE_MAX: usize = 0x3f * 8;

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

/// How an attribute is swapped, by its registry value; what is not known stays as it is.
// OpenZFS: include/sys/sa_impl.h, ATTR_BSWAP
#[must_use]
pub fn byteswap_of_registry_value(value: u64) -> SaByteswap {
    match value >> 16 & 0xff {
        0 => SaByteswap::U64,
        1 => SaByteswap::U32,
        2 => SaByteswap::U16,
        4 => SaByteswap::Acl,
        _ => SaByteswap::U8,
    }
}

/// Whether a bonus or spill buffer was written in the other byte order. Blocks of system attributes are not swapped when they are read:
/// only their file system knows what is in them.
#[must_use]
pub fn is_swapped(buf: &[u8]) -> bool {
    buf.len() >= 8 && u32_at(buf, 0) == MAGIC.swap_bytes()
}

/// Swaps the header of a buffer of the other byte order, so that [`SaHeader::decode`] reads it.
// OpenZFS: module/zfs/sa.c, sa_byteswap
pub fn swap_header(buf: &mut [u8]) {
    let info = u16_at(buf, 4).swap_bytes();
    let size = usize::from(info >> 10) * 8;
    let len = buf.len();
    words(buf.get_mut(..4).unwrap_or_default(), 4);
    words(
        buf.get_mut(4..size.clamp(LENGTHS_AT, len))
            .unwrap_or_default(),
        2,
    );
}

/// Swaps the attributes of a buffer whose header is in this byte order already.
///
/// `layout` lists attribute numbers; `registered` gives the length of a number (0 variable, `None` unknown) and how it is swapped.
///
/// # Errors
/// As [`attributes`].
// OpenZFS: module/zfs/sa.c, sa_byteswap_cb
pub fn swap_attributes(
    buf: &mut [u8],
    layout: &[u16],
    registered: impl Fn(u16) -> Option<(u16, SaByteswap)>,
) -> Result<()> {
    let length_of = |number| registered(number).map(|(length, _)| length);
    let found: Vec<_> = attributes(buf, layout, length_of)?.collect::<Result<_>>()?;
    for (number, range) in found {
        let value = buf.get_mut(range).unwrap_or_default();
        match registered(number).map(|(_, how)| how) {
            Some(SaByteswap::U64) => words(value, 8),
            Some(SaByteswap::U32) => words(value, 4),
            Some(SaByteswap::U16) => words(value, 2),
            Some(SaByteswap::Acl) => crate::byteswap::acl(value),
            Some(SaByteswap::U8) | None => {}
        }
    }
    Ok(())
}

/// The header of an attribute buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaHeader<'a> {
    pub layout: u16,
    /// Bytes of the header: where attributes start.
    pub size: usize,
    /// Lengths of the variable attributes in layout order (with padding entries at the end).
    lengths: &'a [u8],
}

impl<'a> SaHeader<'a> {
    /// Decodes the header of a bonus or spill buffer.
    ///
    /// # Errors
    /// [`DecodeError`] when the magic or the header size is wrong.
    pub fn decode(buf: &'a [u8]) -> Result<Self> {
        need(buf, 8, "system attribute header")?;
        if u32_at(buf, 0) != MAGIC {
            return Err(DecodeError::new("system attribute magic", 0));
        }
        let info = u16_at(buf, 4);
        let size = usize::from(info >> 10) * 8;
        if size < 8 || size > buf.len() {
            return Err(DecodeError::new("system attribute header size", 4));
        }
        Ok(Self {
            layout: info & LAYOUT_MAX,
            size,
            lengths: slice_at(buf, LENGTHS_AT, size - LENGTHS_AT),
        })
    }

    /// The length of the variable attribute that is the `index`th in the layout; `None` when the header ends before it.
    #[must_use]
    pub fn length(&self, index: usize) -> Option<u16> {
        let pair = self.lengths.chunks_exact(2).nth(index)?;
        Some(u16_at(pair, 0))
    }
}

/// Appends a header; `lengths` are those of the variable attributes in layout order.
///
/// # Errors
/// [`DecodeError`] when the layout number or the lengths do not fit the format's fields; nothing was appended.
pub fn put_header(
    out: &mut Vec<u8>,
    layout: u16,
    lengths: impl Iterator<Item = u16> + Clone,
) -> Result<()> {
    let size = header_size(lengths.clone().count());
    if layout > LAYOUT_MAX || size > HEADER_SIZE_MAX {
        return Err(DecodeError::new("system attribute header", 4));
    }
    let end = out.len() + size;
    let info = layout | crate::bytes::low16(size as u64 / 8) << 10;
    out.extend_from_slice(&MAGIC.to_le_bytes());
    out.extend_from_slice(&info.to_le_bytes());
    for length in lengths {
        out.extend_from_slice(&length.to_le_bytes());
    }
    out.resize(end, 0);
    Ok(())
}

/// Appends an attribute, behind the header or another attribute of a buffer that begins at the start of `out`.
pub fn put_attribute(out: &mut Vec<u8>, value: &[u8]) {
    out.resize(out.len().next_multiple_of(8), 0);
    out.extend_from_slice(value);
}

/// Bytes of a header with this many variable attributes.
#[must_use]
pub const fn header_size(variable: usize) -> usize {
    (8 + 2 * variable.saturating_sub(1)).next_multiple_of(8)
}

/// Finds each attribute of a buffer: its number and its byte range in `buf`, in layout order, up to the first
/// [`DecodeError`]: when an attribute is unknown or lies outside the buffer.
///
/// `layout` lists attribute numbers; `length_of` gives the registered length of a number (0 variable, `None` unknown).
///
/// # Errors
/// [`DecodeError`] as [`SaHeader::decode`].
pub fn attributes(
    buf: &[u8],
    layout: &[u16],
    length_of: impl Fn(u16) -> Option<u16>,
) -> Result<impl Iterator<Item = Result<(u16, Range<usize>)>>> {
    let header = SaHeader::decode(buf)?;
    let mut variable = 0;
    let mut at = header.size;
    Ok(layout.iter().map(move |&number| {
        let length = match length_of(number) {
            None => return Err(DecodeError::new("system attribute number", at)),
            Some(0) => {
                variable += 1;
                let length = header.length(variable - 1);
                length.ok_or(DecodeError::new("system attribute lengths", at))?
            }
            Some(length) => length,
        };
        let start = at;
        let end = start + usize::from(length);
        if end > buf.len() {
            return Err(DecodeError::new("system attribute, ends early", start));
        }
        at = end.next_multiple_of(8);
        Ok((number, start..end))
    }))
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
    let variable = attributes.iter().filter(|(_, is_variable)| *is_variable);
    let lengths = variable.map(|(value, _)| u16::try_from(value.len()));
    let lengths: Vec<u16> = lengths
        .collect::<std::result::Result<_, _>>()
        .map_err(|_| DecodeError::new("system attribute length", LENGTHS_AT))?;
    let mut out = Vec::new();
    put_header(&mut out, layout, lengths.into_iter())?;
    for (value, _) in attributes {
        put_attribute(&mut out, value);
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

    fn found(buf: &[u8], layout: &[u16]) -> Result<Vec<(u16, Range<usize>)>> {
        attributes(buf, layout, length)?.collect()
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
        let found = found(&buf, &layout).unwrap();
        assert_eq!(
            found[11],
            (8, 8 + fixed_offset::LINKS..8 + fixed_offset::LINKS + 8)
        );
        assert_eq!(found[13], (19, 144..168));
        assert_eq!(SaHeader::decode(&buf).unwrap().layout, 2);
        assert!(self::found(&buf[..160], &layout).is_err());
        assert!(self::found(&buf, &[99]).is_err());
        assert!(build(LAYOUT_MAX + 1, []).is_err());
    }

    /// A buffer of a big-endian writer reads as one of ours does.
    #[test]
    fn the_other_byte_order_is_swapped() {
        let registered = |n: u16| {
            let known = ATTRIBUTES.get(usize::from(n));
            known.map(|known| (known.length, known.byteswap))
        };
        let layout = [5, 0, 17, 19, 20];
        let ace = [1, 0, 2, 0, 3, 0, 0, 0];
        let native = build(
            2,
            [
                (&7u64.to_le_bytes()[..], false),
                (&[9u64.to_le_bytes(), 8u64.to_le_bytes()].concat(), false),
                (&b"target"[..], true),
                (&ace, true),
                (&b"list"[..], true),
            ],
        )
        .unwrap();
        let mut foreign = native.clone();
        swap_attributes(&mut foreign, &layout, registered).unwrap();
        assert!(!is_swapped(&foreign) && foreign != native);
        words(&mut foreign[..4], 4);
        words(&mut foreign[4..16], 2);
        assert!(is_swapped(&foreign));
        swap_header(&mut foreign);
        swap_attributes(&mut foreign, &layout, registered).unwrap();
        assert_eq!(foreign, native);
        // A size that is longer than the buffer, and a buffer of nothing but a magic number.
        for len in 0..foreign.len() {
            swap_header(&mut foreign[..len.max(6)]);
            let _ = swap_attributes(&mut foreign[..len], &layout, registered);
        }
    }

    #[test]
    fn two_variable_attributes_need_a_longer_header() {
        let buf = build(3, [(&b"abc"[..], true), (&b"0123456789"[..], true)]).unwrap();
        assert_eq!(SaHeader::decode(&buf).unwrap().size, 16);
        let found = found(&buf, &[17, 20]).unwrap();
        assert_eq!(bytes_of(&buf, &found[1].1), b"0123456789");
        assert_eq!(found[1].1.start, 24);
    }
}
