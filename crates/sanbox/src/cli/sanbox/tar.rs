//! A pax archive of a tree (POSIX.1-2024, pax, "pax Interchange Format"): what `sanbox get --tar` writes.
//!
//! ```text
//! entry = [ x header, records ] header, data        each a multiple of 512 bytes
//! ```
//!
//! The ustar header holds what fits; a pax record holds what does not, and what ustar has no field for: nanoseconds, extended
//! attributes (`SCHILY.xattr`, which star introduced, and GNU tar, bsdtar and Python read), the map of a sparse file (GNU's format 1.0).
//! This file knows the format and no file system: an [`Entry`] in, bytes out.

use std::fmt::Write as _;

use engine::Timestamp;

/// Everything in an archive is a multiple of this.
pub(super) const BLOCK_BYTES: usize = 512;
/// An archive is padded to a multiple of this, the record that tar reads at once.
const RECORD_BYTES: u64 = 10_240;
/// Room for a name in a ustar header.
const NAME_BYTES_MAX: usize = 100;
/// Most that the eleven octal digits of a size hold.
const SIZE_MAX: u64 = 0o777_7777_7777;
/// Most that the seven octal digits of an owner or a device number hold.
const NUMBER_MAX: u64 = 0o777_7777;

/// What an entry is, with what only that type has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EntryType {
    /// A file, with its size and where its data lies in it, in order: all the rest is a hole.
    Regular {
        size: u64,
        data: Vec<(u64, u64)>,
    },
    /// Another name of a file that came before, by the name it had there.
    HardLink(Vec<u8>),
    Symlink(Vec<u8>),
    Directory,
    Fifo,
    Character {
        major: u32,
        minor: u32,
    },
    Block {
        major: u32,
        minor: u32,
    },
}

/// An object as an archive tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Name, relative, without a slash at the end.
    pub(super) name: Vec<u8>,
    pub(super) entry_type: EntryType,
    /// The low 12 bits of `st_mode`.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    pub(super) ctime: Timestamp,
    /// Extended attributes with the namespace in the name (`user.color`).
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Entry {
    /// Returns all that comes before the data: headers and, of a sparse file, the map. The data follows, as many bytes as
    /// [`Entry::data_bytes`] says, then [`padding`].
    pub(super) fn head(&self) -> Vec<u8> {
        let mut records = Vec::new();
        let mut name = self.name.clone();
        if self.entry_type == EntryType::Directory {
            name.push(b'/');
        }
        let map = self.sparse_map();
        let (mut type_flag, mut link) = (b'0', Vec::new());
        let (mut major, mut minor) = (0, 0);
        match &self.entry_type {
            EntryType::Regular { .. } => {}
            EntryType::HardLink(first) => (type_flag, link) = (b'1', first.clone()),
            EntryType::Symlink(target) => (type_flag, link) = (b'2', target.clone()),
            EntryType::Character {
                major: of,
                minor: number,
            } => (type_flag, major, minor) = (b'3', *of, *number),
            EntryType::Block {
                major: of,
                minor: number,
            } => (type_flag, major, minor) = (b'4', *of, *number),
            EntryType::Directory => type_flag = b'5',
            EntryType::Fifo => type_flag = b'6',
        }
        if let (Some(_), EntryType::Regular { size, .. }) = (&map, &self.entry_type) {
            // GNU tar: "Sparse Formats", PAX Format, Version 1.0
            record(&mut records, b"GNU.sparse.major", b"1");
            record(&mut records, b"GNU.sparse.minor", b"0");
            record(&mut records, b"GNU.sparse.name", &name);
            record(
                &mut records,
                b"GNU.sparse.realsize",
                size.to_string().as_bytes(),
            );
            // A reader that does not know the format finds the parts of the file under another name.
            let at = name
                .iter()
                .rposition(|byte| *byte == b'/')
                .map_or(0, |at| at + 1);
            name.splice(at..at, *b"GNUSparseFile.0/");
        }
        let bytes = map.as_ref().map_or(0, |map| map.len() as u64) + self.data_bytes();
        if name.len() > NAME_BYTES_MAX {
            record(&mut records, b"path", &name);
        }
        if link.len() > NAME_BYTES_MAX {
            record(&mut records, b"linkpath", &link);
        }
        for (key, number, most) in [
            (&b"size"[..], bytes, SIZE_MAX),
            (b"uid", self.uid.into(), NUMBER_MAX),
            (b"gid", self.gid.into(), NUMBER_MAX),
            (b"SCHILY.devmajor", major.into(), NUMBER_MAX),
            (b"SCHILY.devminor", minor.into(), NUMBER_MAX),
        ] {
            if number > most {
                record(&mut records, key, number.to_string().as_bytes());
            }
        }
        for (key, time) in [
            (b"mtime", self.mtime),
            (b"atime", self.atime),
            (b"ctime", self.ctime),
        ] {
            record(&mut records, key, time_text(time).as_bytes());
        }
        for (name, value) in &self.xattrs {
            let mut key = b"SCHILY.xattr.".to_vec();
            key.extend(escaped(name));
            record(&mut records, &key, value);
        }
        let mut pax_name = b"PaxHeaders/".to_vec();
        pax_name.extend_from_slice(&self.name);
        let mut text = header(&Fields {
            name: &pax_name,
            type_flag: b'x',
            mode: 0o644,
            size: records.len() as u64,
            ..Fields::default()
        });
        text.extend_from_slice(&records);
        text.resize(text.len() + padding(records.len() as u64), 0);
        text.extend(header(&Fields {
            name: &name,
            link: &link,
            type_flag,
            mode: self.mode,
            uid: self.uid.into(),
            gid: self.gid.into(),
            size: bytes,
            mtime: u64::try_from(self.mtime.seconds).unwrap_or(0),
            major: major.into(),
            minor: minor.into(),
        }));
        text.extend(map.unwrap_or_default());
        text
    }

    /// Bytes of data that follow the head; of a sparse file, without its holes.
    pub(super) fn data_bytes(&self) -> u64 {
        match &self.entry_type {
            EntryType::Regular { data, .. } => data.iter().map(|(_, len)| len).sum(),
            _ => 0,
        }
    }

    /// The map of a sparse file, padded: the number of its parts, then offset and length of each, in lines.
    fn sparse_map(&self) -> Option<Vec<u8>> {
        let EntryType::Regular { size, data } = &self.entry_type else {
            return None;
        };
        if self.data_bytes() == *size {
            return None;
        }
        let mut parts = data.clone();
        // An empty part at the end tells of the hole there.
        if parts
            .last()
            .is_none_or(|(offset, len)| offset + len < *size)
        {
            parts.push((*size, 0));
        }
        let mut text = format!("{}\n", parts.len());
        for (offset, len) in parts {
            let _ = writeln!(text, "{offset}\n{len}");
        }
        let mut map = text.into_bytes();
        map.resize(map.len() + padding(map.len() as u64), 0);
        Some(map)
    }
}

/// Returns how many zeros follow so many bytes.
pub(super) fn padding(bytes: u64) -> usize {
    let block = BLOCK_BYTES as u64;
    usize::try_from(bytes.next_multiple_of(block) - bytes).unwrap_or(0)
}

/// Returns how many zeros end an archive that has so many bytes: two blocks, and the rest of a record.
pub(super) fn end(bytes: u64) -> usize {
    let whole = (bytes + 2 * BLOCK_BYTES as u64).next_multiple_of(RECORD_BYTES);
    usize::try_from(whole - bytes).unwrap_or(0)
}

/// The fields of a ustar header.
#[derive(Default)]
struct Fields<'a> {
    name: &'a [u8],
    link: &'a [u8],
    type_flag: u8,
    mode: u32,
    uid: u64,
    gid: u64,
    size: u64,
    mtime: u64,
    major: u64,
    minor: u64,
}

/// Writes a ustar header. What does not fit is cut: a pax record before it holds the whole.
// POSIX.1-2024, pax, "ustar Interchange Format"
fn header(fields: &Fields<'_>) -> Vec<u8> {
    fn text(into: &mut [u8], bytes: &[u8]) {
        let len = bytes.len().min(into.len());
        into[..len].copy_from_slice(&bytes[..len]);
    }
    /// Octal digits and a NUL.
    fn octal(into: &mut [u8], number: u64) {
        let digits = into.len() - 1;
        let most = (1_u64 << (3 * digits)) - 1;
        let number = if number > most { 0 } else { number };
        text(into, format!("{number:0digits$o}").as_bytes());
    }
    let mut block = vec![0; BLOCK_BYTES];
    text(&mut block[0..100], fields.name);
    octal(&mut block[100..108], fields.mode.into());
    octal(&mut block[108..116], fields.uid);
    octal(&mut block[116..124], fields.gid);
    octal(&mut block[124..136], fields.size);
    octal(&mut block[136..148], fields.mtime);
    // The sum counts its own field as spaces.
    text(&mut block[148..156], b"        ");
    block[156] = fields.type_flag;
    text(&mut block[157..257], fields.link);
    text(&mut block[257..265], b"ustar\x0000");
    octal(&mut block[329..337], fields.major);
    octal(&mut block[337..345], fields.minor);
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    text(&mut block[148..156], format!("{sum:06o}\0 ").as_bytes());
    block
}

/// Adds a record, `LENGTH KEY=VALUE\n`, whose length counts its own digits.
fn record(into: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    into.extend_from_slice(format!("{len} ").as_bytes());
    into.extend_from_slice(key);
    into.push(b'=');
    into.extend_from_slice(value);
    into.push(b'\n');
}

/// A time in seconds with nine decimals.
fn time_text(time: Timestamp) -> String {
    let nanoseconds = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let nanoseconds = nanoseconds.unsigned_abs();
    format!(
        "{sign}{}.{:09}",
        nanoseconds / 1_000_000_000,
        nanoseconds % 1_000_000_000
    )
}

/// The name of an attribute in a key: as it is but for the characters that would end it.
fn escaped(name: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(name.len());
    for byte in name {
        match byte {
            b'=' | b'%' => text.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            byte => text.push(*byte),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_count_their_own_digits() {
        let check = |value: &str, expect: &str| {
            let mut text = Vec::new();
            record(&mut text, b"path", value.as_bytes());
            assert_eq!(String::from_utf8_lossy(&text), expect);
            let end = expect.find(' ').expect("a space");
            assert_eq!(expect[..end].parse(), Ok(expect.len()));
        };
        check("a", "9 path=a\n");
        check("", "8 path=\n");
        let long = "x".repeat(90);
        check(&long, &format!("99 path={long}\n"));
        let longer = "x".repeat(91);
        check(&longer, &format!("101 path={longer}\n"));
    }

    #[test]
    fn times_before_1970_have_a_sign() {
        let check = |seconds: i64, nanoseconds: u32, expect: &str| {
            let time = Timestamp {
                seconds,
                nanoseconds,
            };
            assert_eq!(time_text(time), expect);
        };
        check(1, 5, "1.000000005");
        check(0, 0, "0.000000000");
        check(-1, 500_000_000, "-0.500000000");
        check(-2, 0, "-2.000000000");
    }

    #[test]
    fn an_archive_ends_with_a_whole_record() {
        for (bytes, expect) in [(0, 10_240), (512, 9_728), (9_216, 1_024), (9_728, 10_752)] {
            assert_eq!(end(bytes), expect, "{bytes}");
        }
    }
}
