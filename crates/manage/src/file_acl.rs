//! Access control lists of files, as they are shown and typed: from and to the extended attributes in which the file system gives and
//! takes them.
//!
//! Two forms of text, those of the tools that people know. NFSv4's, of nfs4_acl(5): `A:fd:OWNER@:rwaxtTnNcCoy`, where a number, with the
//! flag `g` that of a group, takes the place of `OWNER@`, `GROUP@` and `EVERYONE@`. POSIX's, of acl(5): `u::rwx`, `u:1001:r-x`, `g::r-x`,
//! `g:100:r--`, `m::rwx`, `o::---`, and `d:` before those that new files of a directory get. What lists mean is the file system's.

use engine::{Attr, Cred, FileType, FsError, FsHandle};
use serde::Serialize;
use utoipa::ToSchema;

/// The attribute of NFSv4 lists. Layout: struct nfsacl41i of TrueNAS's nfs41acl.h, words of 32 bits in network order.
pub const NFS4_ATTRIBUTE: &[u8] = b"system.nfs4_acl_xdr";
/// The attributes of POSIX lists. Layout: Linux include/uapi/linux/posix_acl_xattr.h.
pub const POSIX_ATTRIBUTE: &[u8] = b"system.posix_acl_access";
/// The list that new files of a directory get.
pub const POSIX_DEFAULT_ATTRIBUTE: &[u8] = b"system.posix_acl_default";

/// Entries of a list that are taken; OpenZFS's bound.
const ENTRIES_MAX: usize = 1024;
/// Letters of rights from bit 0 on; RFC 7530, 6.2.1.3.1.
const NFS4_RIGHTS: [(char, u32); 14] = [
    ('r', 0x1),
    ('w', 0x2),
    ('a', 0x4),
    ('D', 0x40),
    ('d', 0x1_0000),
    ('x', 0x20),
    ('t', 0x80),
    ('T', 0x100),
    ('n', 0x8),
    ('N', 0x10),
    ('c', 0x2_0000),
    ('C', 0x4_0000),
    ('o', 0x8_0000),
    ('y', 0x10_0000),
];
/// Letters of flags; RFC 7530, 6.2.1.4.1. `I` is RFC 8881's ACE4_INHERITED_ACE.
const NFS4_FLAGS: [(char, u32); 5] = [('f', 0x1), ('d', 0x2), ('n', 0x4), ('i', 0x8), ('I', 0x80)];
const NFS4_GROUP_FLAG: u32 = 0x40;
const NFS4_TYPES: [(char, u32); 4] = [('A', 0), ('D', 1), ('U', 2), ('L', 3)];
const NFS4_SPECIAL: [&str; 3] = ["OWNER@", "GROUP@", "EVERYONE@"];
const POSIX_VERSION: u32 = 2;
const POSIX_NO_ID: u32 = u32::MAX;
/// Tags of POSIX entries with their letters; Linux include/uapi/linux/posix_acl.h. Named ones follow the owner's and the group's.
const POSIX_TAGS: [(char, bool, u16); 6] = [
    ('u', false, 0x01),
    ('u', true, 0x02),
    ('g', false, 0x04),
    ('g', true, 0x08),
    ('m', false, 0x10),
    ('o', false, 0x20),
];

/// Which kind of list a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AclKind {
    /// NFSv4's.
    Nfs4,
    /// POSIX's.
    Posix,
}

/// A list as extended attributes hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAcl {
    /// Which kind.
    pub kind: AclKind,
    /// The list of the file itself.
    pub list: Vec<u8>,
    /// Of a POSIX list: what new files get; empty for nothing.
    pub default: Vec<u8>,
}

/// Who may do what with a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct FileAccess {
    /// It is a directory, whose list may say what new files get.
    pub is_directory: bool,
    /// Permissions, set-id and sticky bits, as a number.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Which lists files of the dataset may have: `nfsv4`, `posix` or `off`.
    pub acltype: &'static str,
    /// Entries of the list, in their order; none where the mode says all.
    pub entries: Vec<String>,
}

/// Reads who may do what with a file.
///
/// # Errors
/// Those of reading, and [`FsError::Corrupt`].
pub async fn of_file(fs: &FsHandle, attr: &Attr) -> Result<FileAccess, FsError> {
    let root = Cred::root();
    let corrupt = FsError::Corrupt("access control list");
    let mut access = FileAccess {
        is_directory: attr.file_type == FileType::Directory,
        mode: attr.mode & 0o7777,
        uid: attr.uid,
        gid: attr.gid,
        acltype: "off",
        entries: Vec::new(),
    };
    match fs.xattr(attr.id, NFS4_ATTRIBUTE, &root).await {
        Ok(stored) => {
            access.acltype = "nfsv4";
            access.entries = nfs4_lines(&stored).ok_or(corrupt)?;
            return Ok(access);
        }
        Err(FsError::NoAttribute) => {
            access.acltype = "nfsv4";
            return Ok(access);
        }
        Err(FsError::NotSupported) => {}
        Err(error) => return Err(error),
    }
    for (name, is_default) in [(POSIX_ATTRIBUTE, false), (POSIX_DEFAULT_ATTRIBUTE, true)] {
        match fs.xattr(attr.id, name, &root).await {
            Ok(stored) => {
                let lines = posix_lines(&stored, is_default);
                access.entries.extend(lines.ok_or(corrupt)?);
            }
            Err(FsError::NoAttribute) => {}
            Err(FsError::NotSupported) => return Ok(access),
            Err(error) => return Err(error),
        }
    }
    access.acltype = "posix";
    Ok(access)
}

/// Why a text is no list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AclError {
    /// There is no entry.
    #[error("a list has at least one entry")]
    Empty,
    /// There are more entries than a file can have.
    #[error("a list has at most {ENTRIES_MAX} entries")]
    TooLong,
    /// An entry is not understood.
    #[error("'{0}' is no entry: neither as A:fd:OWNER@:rwx (NFSv4) nor as u:1001:r-x (POSIX)")]
    Entry(String),
    /// Entries of both kinds.
    #[error("a list is NFSv4's or POSIX's, and not both")]
    Mixed,
}

/// Returns the lines of an NFSv4 list; none when the bytes are no such list.
#[must_use]
pub fn nfs4_lines(stored: &[u8]) -> Option<Vec<String>> {
    let (words, rest) = stored.as_chunks::<4>();
    let words: Vec<u32> = words.iter().map(|word| u32::from_be_bytes(*word)).collect();
    let [_, count, entries @ ..] = words.as_slice() else {
        return None;
    };
    let (entries, beyond) = entries.as_chunks::<5>();
    let whole = rest.is_empty() && beyond.is_empty() && *count as usize == entries.len();
    whole.then(|| entries.iter().map(nfs4_line).collect::<Option<_>>())?
}

fn nfs4_line(&[kind, flags, is_special, rights, who]: &[u32; 5]) -> Option<String> {
    let (kind, _) = NFS4_TYPES.iter().find(|(_, known)| *known == kind)?;
    let group = flags & NFS4_GROUP_FLAG != 0;
    let who = match is_special {
        0 => who.to_string(),
        _ => {
            let at = usize::try_from(who).ok()?.checked_sub(1)?;
            (*NFS4_SPECIAL.get(at)?).to_owned()
        }
    };
    let mut letters = letters_of(flags, &NFS4_FLAGS);
    if group {
        letters.push('g');
    }
    let rights = letters_of(rights, &NFS4_RIGHTS);
    Some(format!("{kind}:{letters}:{who}:{rights}"))
}

fn letters_of(bits: u32, known: &[(char, u32)]) -> String {
    let set = known.iter().filter(|(_, bit)| bits & bit != 0);
    set.map(|(letter, _)| *letter).collect()
}

fn bits_of(letters: &str, known: &[(char, u32)]) -> Option<u32> {
    letters.chars().try_fold(0, |bits, letter| {
        let (_, bit) = known.iter().find(|(known, _)| *known == letter)?;
        Some(bits | bit)
    })
}

/// Returns the lines of a POSIX list, with `d:` before each where it is the one for new files; none when the bytes are no such list.
#[must_use]
pub fn posix_lines(stored: &[u8], is_default: bool) -> Option<Vec<String>> {
    let (version, entries) = stored.split_at_checked(4)?;
    let (entries, rest) = entries.as_chunks::<8>();
    let version = u32::from_le_bytes(version.try_into().ok()?);
    if version != POSIX_VERSION || !rest.is_empty() {
        return None;
    }
    let line = |&[t0, t1, p0, p1, i0, i1, i2, i3]: &[u8; 8]| {
        let tag = u16::from_le_bytes([t0, t1]);
        let rights = u32::from(u16::from_le_bytes([p0, p1]));
        let (letter, named, _) = POSIX_TAGS.iter().find(|(.., known)| *known == tag)?;
        let id = match named {
            true => u32::from_le_bytes([i0, i1, i2, i3]).to_string(),
            false => String::new(),
        };
        let bit = |bit, letter| if rights & bit != 0 { letter } else { '-' };
        let (read, write, execute) = (bit(4, 'r'), bit(2, 'w'), bit(1, 'x'));
        let prefix = if is_default { "d:" } else { "" };
        Some(format!("{prefix}{letter}:{id}:{read}{write}{execute}"))
    };
    entries.iter().map(line).collect()
}

/// Reads a list, entries with commas or white space between, into the form of the attributes.
///
/// # Errors
/// [`AclError`].
pub fn parse(text: &str) -> Result<StoredAcl, AclError> {
    let entries = text.split([',', ' ', '\n', '\t']);
    let entries: Vec<&str> = entries.filter(|entry| !entry.is_empty()).collect();
    if entries.is_empty() {
        return Err(AclError::Empty);
    }
    if entries.len() > ENTRIES_MAX {
        return Err(AclError::TooLong);
    }
    let wrong = |entry: &str| AclError::Entry(entry.to_owned());
    let nfs4: Vec<_> = entries.iter().map(|entry| nfs4_entry(entry)).collect();
    if nfs4.iter().all(Option::is_some) {
        // Flags of the whole list, and how many entries there are.
        let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        let words = [0, count]
            .into_iter()
            .chain(nfs4.into_iter().flatten().flatten());
        return Ok(StoredAcl {
            kind: AclKind::Nfs4,
            list: words.flat_map(u32::to_be_bytes).collect(),
            default: Vec::new(),
        });
    }
    let (mut own, mut default) = (Vec::new(), Vec::new());
    for (entry, as_nfs4) in entries.iter().zip(&nfs4) {
        let text = entry
            .strip_prefix("d:")
            .or_else(|| entry.strip_prefix("default:"));
        let read = posix_entry(text.unwrap_or(entry));
        let Some(read) = read else {
            let mixed = as_nfs4.is_some() && !(own.is_empty() && default.is_empty());
            return Err(if mixed { AclError::Mixed } else { wrong(entry) });
        };
        if text.is_some() {
            default.push(read);
        } else {
            own.push(read);
        }
    }
    if own.is_empty() {
        return Err(AclError::Empty);
    }
    Ok(StoredAcl {
        kind: AclKind::Posix,
        list: posix_bytes(own),
        default: match default.is_empty() {
            true => Vec::new(),
            false => posix_bytes(default),
        },
    })
}

fn nfs4_entry(entry: &str) -> Option<[u32; 5]> {
    let parts: Vec<&str> = entry.split(':').collect();
    let [kind, flags, who, rights] = parts[..] else {
        return None;
    };
    let mut letters = kind.chars();
    let letter = letters.next().filter(|_| letters.next().is_none())?;
    let (_, kind) = NFS4_TYPES.iter().find(|(known, _)| *known == letter)?;
    let mut bits = bits_of(&flags.replace('g', ""), &NFS4_FLAGS)?;
    let special = NFS4_SPECIAL.iter().position(|name| *name == who);
    let special = special.and_then(|at| u32::try_from(at + 1).ok());
    let (is_special, number) = match special {
        Some(number) => (1, number),
        None => (0, who.parse().ok()?),
    };
    // RFC 7530, 6.2.1.5: of GROUP@ the flag is set or not, as clients like it; the file system's form has it.
    let group = match special {
        Some(number) => number == 2,
        None => flags.contains('g'),
    };
    if group {
        bits |= NFS4_GROUP_FLAG;
    }
    Some([
        *kind,
        bits,
        is_special,
        bits_of(rights, &NFS4_RIGHTS)?,
        number,
    ])
}

/// Tag, rights and number.
type PosixWords = (u16, u16, u32);

fn posix_entry(entry: &str) -> Option<PosixWords> {
    let parts: Vec<&str> = entry.split(':').collect();
    let (who, id, rights) = match parts[..] {
        [who, id, rights] => (who, id, rights),
        // 'o:r--' and 'm:rwx', as setfacl(1) takes them.
        [who, rights] => (who, "", rights),
        _ => return None,
    };
    let letter = match who {
        "u" | "user" => 'u',
        "g" | "group" => 'g',
        "m" | "mask" => 'm',
        "o" | "other" => 'o',
        _ => return None,
    };
    let named = !id.is_empty();
    let (.., tag) = POSIX_TAGS
        .iter()
        .find(|(known, is_named, _)| *known == letter && *is_named == named)?;
    let id = match named {
        true => id.parse().ok().filter(|id| *id != POSIX_NO_ID)?,
        false => POSIX_NO_ID,
    };
    let bits = rights.chars().try_fold(0, |bits, letter| match letter {
        'r' => Some(bits | 4),
        'w' => Some(bits | 2),
        'x' => Some(bits | 1),
        '-' => Some(bits),
        _ => None,
    });
    Some((
        *tag,
        bits.filter(|_| !rights.is_empty() && rights.len() <= 3)?,
        id,
    ))
}

/// Entries in the order that the file system wants, with the mask that lists with names need where none is given: the rights of all that it
/// bounds, as setfacl(1) does.
fn posix_bytes(mut entries: Vec<PosixWords>) -> Vec<u8> {
    const BOUND: [u16; 3] = [0x02, 0x04, 0x08];
    const NAMED: [u16; 2] = [0x02, 0x08];
    let has =
        |tags: &[u16], entries: &[PosixWords]| entries.iter().any(|(tag, ..)| tags.contains(tag));
    if has(&NAMED, &entries) && !has(&[0x10], &entries) {
        let bound = entries.iter().filter(|(tag, ..)| BOUND.contains(tag));
        let all = bound.fold(0, |all, (_, rights, _)| all | rights);
        entries.push((0x10, all, POSIX_NO_ID));
    }
    entries.sort_by_key(|(tag, _, id)| (*tag, *id));
    let mut bytes = POSIX_VERSION.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(rights.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<String> {
        let stored = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        match stored.kind {
            AclKind::Nfs4 => nfs4_lines(&stored.list).expect("a list"),
            AclKind::Posix => {
                let mut lines = posix_lines(&stored.list, false).expect("a list");
                if !stored.default.is_empty() {
                    lines.extend(posix_lines(&stored.default, true).expect("a list"));
                }
                lines
            }
        }
    }

    #[test]
    fn what_is_typed_is_shown_again() {
        let nfs4 = [
            "A:fd:OWNER@:rwaDdxtTnNcCoy",
            "D::1001:w",
            "A:fdig:100:rxtncy",
            "A:g:GROUP@:rx",
            "A:I:EVERYONE@:r",
        ];
        assert_eq!(shown(&nfs4.join(",")), nfs4);
        // GROUP@ without the flag gets it.
        assert_eq!(shown("A::GROUP@:r"), ["A:g:GROUP@:r"]);
        let posix = "u::rwx u:1001:r-x g::r-x m::r-x o::---";
        assert_eq!(shown(posix).join(" "), posix);
        // In any order, by long names, with a mask made and rights in any order.
        assert_eq!(
            shown("o:r,d:user:7:xw,group:100:r,u::rwx,g::-,d:u::r,d:g::r,d:o::-").join(" "),
            "u::rwx g::--- g:100:r-- m::r-- o::r-- d:u::r-- d:u:7:-wx d:g::r-- d:m::rwx d:o::---"
        );
    }

    /// Of ext4, after: setfacl -m u:1000:rw,g:100:r-x,m::rwx
    #[test]
    fn a_list_that_linux_stored_is_read_and_made_again() {
        let hex = "0200000001000600ffffffff02000600e803000004000400ffffffff\
                   080005006400000010000700ffffffff20000400ffffffff";
        let stored = data_encoding::HEXLOWER.decode(hex.as_bytes()).expect("hex");
        let lines = posix_lines(&stored, false).expect("a list");
        assert_eq!(
            lines,
            [
                "u::rw-",
                "u:1000:rw-",
                "g::r--",
                "g:100:r-x",
                "m::rwx",
                "o::r--"
            ]
        );
        assert_eq!(parse(&lines.join(",")).expect("read").list, stored);
    }

    #[test]
    fn nonsense_is_named() {
        for (text, why) in [
            ("", "at least one entry"),
            (" ,", "at least one entry"),
            ("A:fd:OWNER@", "'A:fd:OWNER@' is no entry"),
            ("A::bob:r", "'A::bob:r' is no entry"),
            ("A:q:1:r", "is no entry"),
            ("AA::1:r", "is no entry"),
            ("u:1:rwxr", "is no entry"),
            ("u:4294967295:r", "is no entry"),
            ("m:5:r", "is no entry"),
            ("u::r,A::1:r", "not both"),
            ("d:u::r", "at least one entry"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        let many = vec!["A::1:r"; ENTRIES_MAX + 1].join(",");
        assert_eq!(parse(&many), Err(AclError::TooLong));
        for bytes in [&b""[..], b"\0\0\0\0", b"\0\0\0\0\0\0\0\x01", &[0xff; 28]] {
            assert_eq!(nfs4_lines(bytes), None, "{bytes:?}");
        }
        for bytes in [
            &b""[..],
            b"\x02\0\0",
            b"\x02\0\0\0abc",
            b"\x03\0\0\0",
            &[2, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9],
        ] {
            assert_eq!(posix_lines(bytes, false), None, "{bytes:?}");
        }
    }
}
