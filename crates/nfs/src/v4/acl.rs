//! ACLs on the wire (RFC 7530, section 6; RFC 8881, section 6): from and to the form in which the file system gives and takes them.
//!
//! That form is the extended attribute `system.nfs4_acl_xdr`: flags of the list, the number of entries, and of each entry type,
//! flags, whether it is about the owner, the group or everyone, rights, and which of them, or a user's or group's number. What the
//! lists mean, `aclmode` and `aclinherit` included, is the file system's; those with `acltype=nfsv4` have them.

use super::status::Status;
use crate::exports::Resolver;
use crate::xdr::{Reader, Writer};

/// The extended attribute.
pub(super) const ATTRIBUTE: &[u8] = b"system.nfs4_acl_xdr";
/// ACL4_SUPPORT_ALLOW_ACL and ACL4_SUPPORT_DENY_ACL.
pub(super) const SUPPORTED: u32 = 3;

/// Most entries taken.
const ENTRIES_MAX: u32 = 1024;
/// The longest name in an entry, in bytes.
const WHO_BYTES_MAX: usize = 1024;
/// ACE4_IDENTIFIER_GROUP.
const IDENTIFIER_GROUP: u32 = 0x40;
/// Whom the entries are about that name no one, by their numbers from 1 on.
const SPECIAL: [&[u8]; 3] = [b"OWNER@", b"GROUP@", b"EVERYONE@"];

/// Reads an owner or a group: a number, or the name of a user or group of this machine. The domain behind a name is not looked at,
/// there is one.
///
/// # Errors
/// [`Status::Invalid`] for what is no text, [`Status::BadOwner`] for unknown names.
pub(super) fn identity(text: &[u8], group: bool, names: &dyn Resolver) -> Result<u32, Status> {
    let text = std::str::from_utf8(text).map_err(|_| Status::Invalid)?;
    if text.is_empty() {
        return Err(Status::Invalid);
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map_err(|_| Status::BadOwner);
    }
    let (name, _domain) = text.split_once('@').ok_or(Status::BadOwner)?;
    let known = if group {
        names.group(name)
    } else {
        names.user(name)
    };
    known.ok_or(Status::BadOwner)
}

/// Reads `fattr4_acl`, or with `flags` `fattr4_dacl`, into the file system's form.
///
/// # Errors
/// [`Status::BadXdr`], [`Status::BadOwner`] for names that are not known, [`Status::Invalid`] for lists of no, or too many, entries.
pub(super) fn read(
    r: &mut Reader<'_>,
    flags: bool,
    names: &dyn Resolver,
) -> Result<Vec<u8>, Status> {
    let wide = if flags { r.u32()? } else { 0 };
    let count = r.u32()?;
    if count == 0 || count > ENTRIES_MAX {
        return Err(Status::Invalid);
    }
    let mut stored = Writer::default();
    stored.u32(wide).u32(count);
    for _ in 0..count {
        let (kind, flags, rights) = (r.u32()?, r.u32()?, r.u32()?);
        let who = r.opaque(WHO_BYTES_MAX)?;
        let special = SPECIAL.iter().position(|name| *name == who);
        let special = special.and_then(|index| u32::try_from(index + 1).ok());
        let (is_special, who) = match special {
            Some(number) => (1, number),
            None => (0, identity(who, flags & IDENTIFIER_GROUP != 0, names)?),
        };
        // RFC 7530, section 6.2.1.4.5: of GROUP@ clients set the flag or not.
        let flags = match special {
            Some(2) => flags | IDENTIFIER_GROUP,
            Some(_) => flags & !IDENTIFIER_GROUP,
            None => flags,
        };
        stored
            .u32(kind)
            .u32(flags)
            .u32(is_special)
            .u32(rights)
            .u32(who);
    }
    Ok(stored.into_bytes())
}

/// Writes `fattr4_acl`, or with `flags` `fattr4_dacl`. A list that is not understood is written as an empty one.
pub(super) fn write(w: &mut Writer, stored: &[u8], flags: bool) {
    let before = w.len();
    if write_entries(w, stored, flags).is_err() {
        w.truncate(before);
        if flags {
            w.u32(0);
        }
        w.u32(0);
    }
}

fn write_entries(w: &mut Writer, stored: &[u8], with_flags: bool) -> Result<(), Status> {
    let mut r = Reader::new(stored);
    let (wide, count) = (r.u32()?, r.u32()?);
    if with_flags {
        w.u32(wide);
    }
    w.u32(count);
    for _ in 0..count {
        let (kind, flags, is_special, rights, who) =
            (r.u32()?, r.u32()?, r.u32()?, r.u32()?, r.u32()?);
        w.u32(kind).u32(flags).u32(rights);
        let index = usize::try_from(who.wrapping_sub(1)).unwrap_or(usize::MAX);
        match SPECIAL.get(index) {
            Some(name) if is_special == 1 => w.opaque(name),
            _ => w.opaque(who.to_string().as_bytes()),
        };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    struct Names;

    impl Resolver for Names {
        fn addresses(&self, _host: &str) -> Vec<IpAddr> {
            Vec::new()
        }

        fn names(&self, _address: IpAddr) -> Vec<String> {
            Vec::new()
        }

        fn user(&self, name: &str) -> Option<u32> {
            (name == "anna").then_some(1000)
        }

        fn group(&self, name: &str) -> Option<u32> {
            (name == "staff").then_some(50)
        }
    }

    type Entry<'a> = (u32, u32, u32, &'a [u8]);

    fn wire(entries: &[Entry<'_>]) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(u32::try_from(entries.len()).expect("few"));
        for (kind, flags, rights, who) in entries {
            w.u32(*kind).u32(*flags).u32(*rights).opaque(who);
        }
        w.into_bytes()
    }

    fn stored(entries: &[Entry<'_>]) -> Result<Vec<u8>, Status> {
        read(&mut Reader::new(&wire(entries)), false, &Names)
    }

    #[test]
    fn a_list_comes_back_with_numbers_for_names() {
        let given: &[Entry<'_>] = &[
            (0, 0, 0x1f, b"OWNER@"),
            (1, 0, 2, b"anna@lab"),
            (0, 0x43, 1, b"staff@lab"),
            (0, 0, 1, b"GROUP@"),
            (0, 0, 1, b"77"),
            (0, 0x40, 1, b"EVERYONE@"),
        ];
        let told: &[Entry<'_>] = &[
            (0, 0, 0x1f, b"OWNER@"),
            (1, 0, 2, b"1000"),
            (0, 0x43, 1, b"50"),
            (0, 0x40, 1, b"GROUP@"),
            (0, 0, 1, b"77"),
            (0, 0, 1, b"EVERYONE@"),
        ];
        let mut w = Writer::default();
        write(&mut w, &stored(given).expect("good entries"), false);
        assert_eq!(w.into_bytes(), wire(told));
    }

    #[test]
    fn bad_lists_say_why() {
        assert_eq!(stored(&[]), Err(Status::Invalid));
        assert_eq!(stored(&[(0, 0, 1, b"")]), Err(Status::Invalid));
        assert_eq!(stored(&[(0, 0, 1, b"\xff@x")]), Err(Status::Invalid));
        assert_eq!(stored(&[(0, 0, 1, b"anna")]), Err(Status::BadOwner));
        assert_eq!(stored(&[(0, 0x40, 1, b"anna@x")]), Err(Status::BadOwner));
        assert_eq!(stored(&[(0, 0, 1, b"99999999999")]), Err(Status::BadOwner));
        let many = u32::MAX.to_be_bytes();
        let read = read(&mut Reader::new(&many), false, &Names);
        assert_eq!(read, Err(Status::Invalid));
        for damaged in [&b""[..], &[0, 0, 0, 0, 0, 0, 0, 9]] {
            let mut w = Writer::default();
            write(&mut w, damaged, true);
            assert_eq!(w.into_bytes(), [0; 8]);
        }
    }
}
