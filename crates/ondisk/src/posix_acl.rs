//! POSIX access control lists, as Linux and OpenZFS keep them in the extended attributes `system.posix_acl_access` and
//! `system.posix_acl_default`: a version, and entries of eight bytes. Which lists make sense is not decided here.
//!
//! Linux: include/uapi/linux/posix_acl_xattr.h, posix_acl_xattr_header and posix_acl_xattr_entry.

use crate::bytes::{need, put_u16, put_u32, u16_at, u32_at};
use crate::{DecodeError, Result};

/// The version of the layout.
pub const VERSION: u32 = 2;
/// The id of entries that name no user or group.
pub const NO_ID: u32 = u32::MAX;

/// What an entry is about.
// Linux: include/uapi/linux/posix_acl.h
pub mod tag {
    pub const USER_OBJ: u16 = 0x01;
    pub const USER: u16 = 0x02;
    pub const GROUP_OBJ: u16 = 0x04;
    pub const GROUP: u16 = 0x08;
    pub const MASK: u16 = 0x10;
    pub const OTHER: u16 = 0x20;
}

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PosixAce {
    /// One of [`tag`].
    pub tag: u16,
    /// Three permission bits.
    pub perm: u16,
    /// The user or group, or [`NO_ID`].
    pub id: u32,
}

impl PosixAce {
    /// Encoded bytes.
    pub const SIZE: usize = 8;
}

/// Bytes before the entries.
const HEADER: usize = 4;

/// The version of the layout that `buf` has; only for [`VERSION`] is the rest known.
///
/// # Errors
/// [`DecodeError`] when it is too short for one.
pub fn version(buf: &[u8]) -> Result<u32> {
    need(buf, HEADER, "POSIX ACL version")?;
    Ok(u32_at(buf, 0))
}

/// The entries in order.
///
/// # Errors
/// [`DecodeError`] when the last one is not whole.
pub fn entries(buf: &[u8]) -> Result<impl Iterator<Item = PosixAce> + '_> {
    need(buf, HEADER, "POSIX ACL version")?;
    let entries = buf.get(HEADER..).unwrap_or_default();
    if !entries.len().is_multiple_of(PosixAce::SIZE) {
        return Err(DecodeError::new("POSIX ACL entry", buf.len()));
    }
    let one = |entry| PosixAce {
        tag: u16_at(entry, 0),
        perm: u16_at(entry, 2),
        id: u32_at(entry, 4),
    };
    Ok(entries.chunks_exact(PosixAce::SIZE).map(one))
}

/// Encodes a list of this [`VERSION`].
#[must_use]
pub fn encode(entries: &[PosixAce]) -> Vec<u8> {
    let mut out = vec![0; HEADER + entries.len() * PosixAce::SIZE];
    put_u32(&mut out, 0, VERSION);
    for (index, entry) in entries.iter().enumerate() {
        let at = HEADER + index * PosixAce::SIZE;
        put_u16(&mut out, at, entry.tag);
        put_u16(&mut out, at + 2, entry.perm);
        put_u32(&mut out, at + 4, entry.id);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_linux_stored() {
        // Of ext4, after: setfacl -m u:1000:rw,g:100:r-x,m::rwx
        let hex = "0200000001000600ffffffff02000600e803000004000400ffffffff\
                   080005006400000010000700ffffffff20000400ffffffff";
        let stored: Vec<u8> = (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect();
        let entry = |tag, perm, id| PosixAce { tag, perm, id };
        let wanted = [
            entry(tag::USER_OBJ, 6, NO_ID),
            entry(tag::USER, 6, 1000),
            entry(tag::GROUP_OBJ, 4, NO_ID),
            entry(tag::GROUP, 5, 100),
            entry(tag::MASK, 7, NO_ID),
            entry(tag::OTHER, 4, NO_ID),
        ];
        assert_eq!(version(&stored), Ok(VERSION));
        assert!(entries(&stored).unwrap().eq(wanted));
        assert_eq!(encode(&wanted), stored);
        assert!(version(&stored[..3]).is_err());
        assert!(entries(&stored[..3]).is_err() && entries(&stored[..13]).is_err());
        assert_eq!(entries(&stored[..4]).unwrap().count(), 0);
    }
}
