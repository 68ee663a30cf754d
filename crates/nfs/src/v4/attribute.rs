//! Attributes of files (RFC 7530, section 5; RFC 8881, section 5; RFC 7862, section 12): which are served, how each is written,
//! and what a client sets.

use super::acl;
use super::bitmap::Bitmap;
use super::operation::{RawAttributes, time};
use super::status::Status;
use crate::exports::Resolver;
use crate::file_type::file_type_number;
use crate::handle::FileHandle;
use crate::xdr::{Reader, Writer};
use engine::{Attr, FsStat, SetAttr, SetTime, Timestamp};
use std::net::IpAddr;

/// Attribute numbers.
pub(super) mod number {
    pub(crate) const SUPPORTED_ATTRS: u32 = 0;
    pub(crate) const TYPE: u32 = 1;
    pub(crate) const FH_EXPIRE_TYPE: u32 = 2;
    pub(crate) const CHANGE: u32 = 3;
    pub(crate) const SIZE: u32 = 4;
    pub(crate) const LINK_SUPPORT: u32 = 5;
    pub(crate) const SYMLINK_SUPPORT: u32 = 6;
    pub(crate) const NAMED_ATTR: u32 = 7;
    pub(crate) const FSID: u32 = 8;
    pub(crate) const UNIQUE_HANDLES: u32 = 9;
    pub(crate) const LEASE_TIME: u32 = 10;
    pub(crate) const RDATTR_ERROR: u32 = 11;
    pub(crate) const ACL: u32 = 12;
    pub(crate) const ACLSUPPORT: u32 = 13;
    pub(crate) const CANSETTIME: u32 = 15;
    pub(crate) const CASE_INSENSITIVE: u32 = 16;
    pub(crate) const CASE_PRESERVING: u32 = 17;
    pub(crate) const CHOWN_RESTRICTED: u32 = 18;
    pub(crate) const FILEHANDLE: u32 = 19;
    pub(crate) const FILEID: u32 = 20;
    pub(crate) const FILES_AVAIL: u32 = 21;
    pub(crate) const FILES_FREE: u32 = 22;
    pub(crate) const FILES_TOTAL: u32 = 23;
    pub(crate) const FS_LOCATIONS: u32 = 24;
    pub(crate) const HOMOGENEOUS: u32 = 26;
    pub(crate) const MAXFILESIZE: u32 = 27;
    pub(crate) const MAXLINK: u32 = 28;
    pub(crate) const MAXNAME: u32 = 29;
    pub(crate) const MAXREAD: u32 = 30;
    pub(crate) const MAXWRITE: u32 = 31;
    pub(crate) const MODE: u32 = 33;
    pub(crate) const NO_TRUNC: u32 = 34;
    pub(crate) const NUMLINKS: u32 = 35;
    pub(crate) const OWNER: u32 = 36;
    pub(crate) const OWNER_GROUP: u32 = 37;
    pub(crate) const RAWDEV: u32 = 41;
    pub(crate) const SPACE_AVAIL: u32 = 42;
    pub(crate) const SPACE_FREE: u32 = 43;
    pub(crate) const SPACE_TOTAL: u32 = 44;
    pub(crate) const SPACE_USED: u32 = 45;
    pub(crate) const TIME_ACCESS: u32 = 47;
    pub(crate) const TIME_ACCESS_SET: u32 = 48;
    pub(crate) const TIME_CREATE: u32 = 50;
    pub(crate) const TIME_DELTA: u32 = 51;
    pub(crate) const TIME_METADATA: u32 = 52;
    pub(crate) const TIME_MODIFY: u32 = 53;
    pub(crate) const TIME_MODIFY_SET: u32 = 54;
    pub(crate) const MOUNTED_ON_FILEID: u32 = 55;
    pub(crate) const DACL: u32 = 58;
    pub(crate) const SUPPATTR_EXCLCREAT: u32 = 75;
    pub(crate) const CLONE_BLKSIZE: u32 = 77;
    pub(crate) const CHANGE_ATTR_TYPE: u32 = 79;
    pub(crate) const MODE_UMASK: u32 = 81;
    pub(crate) const XATTR_SUPPORT: u32 = 82;
    pub(crate) const OPEN_ARGUMENTS: u32 = 86;
}
use number as n;

/// Served in every minor version.
const SUPPORTED_0: Bitmap = Bitmap::of(&[
    n::SUPPORTED_ATTRS,
    n::TYPE,
    n::FH_EXPIRE_TYPE,
    n::CHANGE,
    n::SIZE,
    n::LINK_SUPPORT,
    n::SYMLINK_SUPPORT,
    n::NAMED_ATTR,
    n::FSID,
    n::UNIQUE_HANDLES,
    n::LEASE_TIME,
    n::RDATTR_ERROR,
    n::ACLSUPPORT,
    n::CANSETTIME,
    n::CASE_INSENSITIVE,
    n::CASE_PRESERVING,
    n::CHOWN_RESTRICTED,
    n::FILEHANDLE,
    n::FILEID,
    n::FILES_AVAIL,
    n::FILES_FREE,
    n::FILES_TOTAL,
    n::HOMOGENEOUS,
    n::MAXFILESIZE,
    n::MAXLINK,
    n::MAXNAME,
    n::MAXREAD,
    n::MAXWRITE,
    n::MODE,
    n::NO_TRUNC,
    n::NUMLINKS,
    n::OWNER,
    n::OWNER_GROUP,
    n::RAWDEV,
    n::SPACE_AVAIL,
    n::SPACE_FREE,
    n::SPACE_TOTAL,
    n::SPACE_USED,
    n::TIME_ACCESS,
    n::TIME_ACCESS_SET,
    n::TIME_CREATE,
    n::TIME_DELTA,
    n::TIME_METADATA,
    n::TIME_MODIFY,
    n::TIME_MODIFY_SET,
    n::MOUNTED_ON_FILEID,
]);
/// Served from minor version 1 on, besides: clients look among the places of a file system for more addresses of this server,
/// over which they spread a session (RFC 8881, sections 2.10.5 and 11.5.4). The arguments of OPEN are an extension of minor
/// version 2 (RFC 9754, section 3), and true of version 1 too: only clients ask that know them.
const SUPPORTED_1: Bitmap =
    Bitmap::of(&[n::FS_LOCATIONS, n::SUPPATTR_EXCLCREAT, n::OPEN_ARGUMENTS]);
/// Served from minor version 2 on, besides.
const SUPPORTED_2: Bitmap = Bitmap::of(&[
    n::CLONE_BLKSIZE,
    n::CHANGE_ATTR_TYPE,
    n::MODE_UMASK,
    n::XATTR_SUPPORT,
]);
/// Served besides where files have NFSv4 lists.
const LISTS_0: Bitmap = Bitmap::of(&[n::ACL]);
const LISTS_1: Bitmap = Bitmap::of(&[n::ACL, n::DACL]);
/// Those whose values depend on the list of a file, or on whether it has any.
const OF_LIST: Bitmap = Bitmap::of(&[n::SUPPORTED_ATTRS, n::ACL, n::ACLSUPPORT, n::DACL]);
/// Those that are known to the client that has a file delegated to write.
pub(super) const OF_WRITER: Bitmap = Bitmap::of(&[
    n::CHANGE,
    n::SIZE,
    n::SPACE_USED,
    n::TIME_METADATA,
    n::TIME_MODIFY,
]);
/// Left out where it is not told.
const LOCATIONS: Bitmap = Bitmap::of(&[n::FS_LOCATIONS]);
/// Can be set.
const SETTABLE: Bitmap = Bitmap::of(&[
    n::SIZE,
    n::ACL,
    n::DACL,
    n::MODE,
    n::OWNER,
    n::OWNER_GROUP,
    n::TIME_ACCESS_SET,
    n::TIME_CREATE,
    n::TIME_MODIFY_SET,
    n::MODE_UMASK,
]);
/// Can be set and not read.
const WRITE_ONLY: Bitmap = Bitmap::of(&[n::TIME_ACCESS_SET, n::TIME_MODIFY_SET, n::MODE_UMASK]);
/// Those that to ask for is an error (RFC 7530, section 16.7.4).
const TIMES_SET: Bitmap = Bitmap::of(&[n::TIME_ACCESS_SET, n::TIME_MODIFY_SET]);
/// What may be set as a file is created exclusively: not the times, where the verifier is kept.
const SETTABLE_EXCLUSIVE: Bitmap =
    Bitmap::of(&[n::SIZE, n::MODE, n::OWNER, n::OWNER_GROUP, n::MODE_UMASK]);
/// Where the verifier of an exclusive creation is kept: a client sets these afterwards.
pub(super) const EXCLUSIVE_VERIFIER: Bitmap = Bitmap::of(&[n::TIME_ACCESS, n::TIME_MODIFY]);
/// Of the file system, and asked of it apart.
const OF_FILE_SYSTEM: Bitmap = Bitmap::of(&[
    n::CASE_INSENSITIVE,
    n::FILES_AVAIL,
    n::FILES_FREE,
    n::FILES_TOTAL,
    n::MAXNAME,
    n::SPACE_AVAIL,
    n::SPACE_FREE,
    n::SPACE_TOTAL,
    n::CLONE_BLKSIZE,
]);

/// What OPEN takes (RFC 9754, section 3, `open_arguments4`): access to read, to write and both; denials; any delegation, none, and to take
/// back what was wanted; claims by name, of what was open before a restart, by a delegation and a name, by handle, by a delegation and a
/// handle; creation unchecked, guarded, and exclusive in both forms.
const OPEN_ARGUMENTS: [&[u32]; 5] = [
    &[1, 2, 3],
    &[0, 1, 2, 3],
    &[3, 4, 5],
    &[0, 1, 2, 4, 5],
    &[0, 1, 2, 3],
];
/// RFC 7862, section 12.2.3: NFS4_CHANGE_TYPE_IS_TIME_METADATA.
const CHANGE_IS_TIME_METADATA: u32 = 4;

/// Returns the attributes that are served in a minor version, of files that have `lists` or not.
pub(super) fn supported(minor: u32, lists: bool) -> Bitmap {
    let (base, of_lists) = match minor {
        0 => (SUPPORTED_0, LISTS_0),
        1 => (SUPPORTED_0.union(SUPPORTED_1), LISTS_1),
        _ => {
            let base = SUPPORTED_0.union(SUPPORTED_1).union(SUPPORTED_2);
            (base, LISTS_1)
        }
    };
    if lists { base.union(of_lists) } else { base }
}

/// Returns whether any of the attributes needs the list of a file.
pub(super) fn needs_list(bits: Bitmap) -> bool {
    !bits.intersection(OF_LIST).is_empty()
}

/// Returns whether any of the attributes is known to the client that has a file delegated to write.
pub(super) fn needs_writer(bits: Bitmap) -> bool {
    !bits.intersection(OF_WRITER).is_empty()
}

/// Returns whether any of the attributes is of the file system.
pub(super) fn needs_stat(bits: Bitmap) -> bool {
    !bits.intersection(OF_FILE_SYSTEM).is_empty()
}

/// Returns whether one of the attributes is the list of a file.
pub(super) fn tells_list(bits: Bitmap) -> bool {
    !bits.intersection(LISTS_1).is_empty()
}

/// Where a file system is to be found: at one path of this server, at each of its addresses.
pub(super) struct Locations {
    pub(super) path: String,
    pub(super) addresses: Vec<IpAddr>,
}

impl Locations {
    /// Writes `fs_locations4` (RFC 8881, section 11.16).
    fn write(&self, w: &mut Writer) {
        self.write_path(w);
        w.u32(u32::from(!self.addresses.is_empty()));
        if !self.addresses.is_empty() {
            w.u32(u32::try_from(self.addresses.len()).unwrap_or(u32::MAX));
            for address in &self.addresses {
                w.opaque(address.to_string().as_bytes());
            }
            self.write_path(w);
        }
    }

    fn write_path(&self, w: &mut Writer) {
        let names: Vec<&str> = self
            .path
            .split('/')
            .filter(|name| !name.is_empty())
            .collect();
        w.u32(u32::try_from(names.len()).unwrap_or(u32::MAX));
        for name in names {
            w.opaque(name.as_bytes());
        }
    }
}

/// A file as its attributes are told.
pub(super) struct Described<'a> {
    pub(super) attr: &'a Attr,
    pub(super) handle: &'a [u8],
    /// The number of the directory in the file system above, where a file system begins here.
    pub(super) mounted_on: Option<u64>,
    /// Of the file system, if asked for.
    pub(super) stat: Option<&'a FsStat>,
    /// The list of a file that has one, if asked for.
    pub(super) list: Option<&'a [u8]>,
    /// Where its file system is, if asked for; it is not told in lists of directories.
    pub(super) locations: Option<&'a Locations>,
    pub(super) minor: u32,
    pub(super) lease_seconds: u32,
}

impl Described<'_> {
    /// Writes `fattr4`: those of the attributes asked for that are served.
    pub(super) fn write(&self, w: &mut Writer, bits: Bitmap) {
        let mut bits = bits.intersection(self.supported()).without(WRITE_ONLY);
        if self.locations.is_none() {
            bits = bits.without(LOCATIONS);
        }
        bits.write(w);
        w.opaque(&self.values(bits));
    }

    fn supported(&self) -> Bitmap {
        supported(self.minor, self.list.is_some())
    }

    /// Returns the values of attributes, in the order of their numbers.
    pub(super) fn values(&self, bits: Bitmap) -> Vec<u8> {
        let mut w = Writer::with_capacity(192);
        for number in bits.numbers() {
            self.of_server(&mut w, number);
            self.of_file(&mut w, number);
            self.of_file_system(&mut w, number);
        }
        w.into_bytes()
    }

    fn of_server(&self, w: &mut Writer, number: u32) {
        match number {
            n::SUPPORTED_ATTRS => self.supported().write(w),
            n::FH_EXPIRE_TYPE => {
                // FH4_PERSISTENT.
                w.u32(0);
            }
            n::ACLSUPPORT => {
                w.u32(self.list.map_or(0, |_| acl::SUPPORTED));
            }
            n::ACL => acl::write(w, self.list.unwrap_or_default(), false),
            n::DACL => acl::write(w, self.list.unwrap_or_default(), true),
            n::LINK_SUPPORT
            | n::SYMLINK_SUPPORT
            | n::UNIQUE_HANDLES
            | n::CANSETTIME
            | n::CASE_PRESERVING
            | n::CHOWN_RESTRICTED
            | n::HOMOGENEOUS
            | n::NO_TRUNC
            | n::XATTR_SUPPORT => {
                w.bool(true);
            }
            n::NAMED_ATTR => {
                w.bool(false);
            }
            n::LEASE_TIME => {
                w.u32(self.lease_seconds);
            }
            n::RDATTR_ERROR => {
                w.u32(Status::Ok as u32);
            }
            n::MAXFILESIZE => {
                w.u64(i64::MAX.cast_unsigned());
            }
            n::MAXLINK => {
                w.u32(u32::MAX);
            }
            n::MAXREAD | n::MAXWRITE => {
                w.u64(crate::limits::TRANSFER_BYTES_MAX as u64);
            }
            n::TIME_DELTA => {
                w.u64(0).u32(1);
            }
            n::FS_LOCATIONS => {
                if let Some(locations) = self.locations {
                    locations.write(w);
                }
            }
            n::SUPPATTR_EXCLCREAT => SETTABLE_EXCLUSIVE.intersection(self.supported()).write(w),
            n::CHANGE_ATTR_TYPE => {
                w.u32(CHANGE_IS_TIME_METADATA);
            }
            n::OPEN_ARGUMENTS => {
                for values in OPEN_ARGUMENTS {
                    Bitmap::of(values).write(w);
                }
            }
            _ => {}
        }
    }

    /// That of the handle; 0 of the directories above the shares.
    fn fsid(&self) -> u64 {
        let handle = FileHandle::decode(self.handle).filter(|_| self.attr.fsid != 0);
        handle.map_or(0, |handle| handle.fsid())
    }

    fn of_file(&self, w: &mut Writer, number: u32) {
        let attr = self.attr;
        match number {
            n::TYPE => w.u32(file_type_number(attr.file_type)),
            n::CHANGE => w.u64(attr.change),
            n::SIZE => w.u64(attr.size),
            n::FSID => w.u64(self.fsid()).u64(0),
            n::FILEHANDLE => w.opaque(self.handle),
            n::FILEID => w.u64(attr.id.object),
            n::MODE => w.u32(attr.mode),
            n::NUMLINKS => w.u32(u32::try_from(attr.links).unwrap_or(u32::MAX)),
            // RFC 7530, section 5.9: a number without a domain is the id itself.
            n::OWNER => w.opaque(attr.uid.to_string().as_bytes()),
            n::OWNER_GROUP => w.opaque(attr.gid.to_string().as_bytes()),
            n::RAWDEV => w.u32(attr.rdev.major).u32(attr.rdev.minor),
            n::SPACE_USED => w.u64(attr.used),
            n::TIME_ACCESS => write_time(w, attr.atime),
            n::TIME_CREATE => write_time(w, attr.crtime),
            n::TIME_METADATA => write_time(w, attr.ctime),
            n::TIME_MODIFY => write_time(w, attr.mtime),
            n::MOUNTED_ON_FILEID => w.u64(self.mounted_on.unwrap_or(attr.id.object)),
            _ => w,
        };
    }

    fn of_file_system(&self, w: &mut Writer, number: u32) {
        let stat = |value: fn(&FsStat) -> u64| self.stat.map_or(0, value);
        match number {
            n::CASE_INSENSITIVE => w.bool(self.stat.is_some_and(|s| s.case_insensitive)),
            n::FILES_AVAIL | n::FILES_FREE => w.u64(stat(|s| s.free_files)),
            n::FILES_TOTAL => w.u64(stat(|s| s.total_files)),
            n::MAXNAME => w.u32(self.stat.map_or(255, |s| s.name_max)),
            n::CLONE_BLKSIZE => w.u32(self.stat.map_or(0, |s| s.block_size)),
            n::SPACE_AVAIL => w.u64(stat(|s| s.available_bytes)),
            n::SPACE_FREE => w.u64(stat(|s| s.free_bytes)),
            n::SPACE_TOTAL => w.u64(stat(|s| s.total_bytes)),
            _ => w,
        };
    }
}

/// Checks that attributes are not of those that can only be set.
pub(super) fn check_readable(bits: Bitmap) -> Result<(), Status> {
    if bits.intersection(TIMES_SET).is_empty() {
        Ok(())
    } else {
        Err(Status::Invalid)
    }
}

/// Returns whether attributes can be compared with (RFC 7530, section 16.15 and 16.36).
pub(super) fn check_comparable(bits: Bitmap, minor: u32, lists: bool) -> Result<(), Status> {
    if !bits.intersection(WRITE_ONLY).is_empty() || bits.contains(n::RDATTR_ERROR) {
        return Err(Status::Invalid);
    }
    if !bits.is_subset(supported(minor, lists)) {
        return Err(Status::AttributeNotSupported);
    }
    Ok(())
}

/// What a client sets.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) set: SetAttr,
    /// Whether there is anything in `set`.
    pub(super) any: bool,
    /// The list, in the form of the extended attribute.
    pub(super) list: Option<Vec<u8>>,
}

/// Reads what a client sets on files that have `lists` or not; `names` are those of owners.
///
/// # Errors
/// An attribute that is not served, cannot be set, or whose value makes no sense.
pub(super) fn read(
    raw: &RawAttributes<'_>,
    minor: u32,
    lists: bool,
    names: &dyn Resolver,
) -> Result<Given, Status> {
    let bits = raw.bits;
    if !bits.is_subset(supported(minor, lists)) {
        return Err(Status::AttributeNotSupported);
    }
    if !bits.is_subset(SETTABLE) {
        return Err(Status::Invalid);
    }
    let mut given = Given {
        any: !bits.without(LISTS_1).is_empty(),
        ..Given::default()
    };
    let set = &mut given.set;
    let mut r = Reader::new(raw.values);
    for number in bits.numbers() {
        match number {
            n::ACL => given.list = Some(acl::read(&mut r, false, names)?),
            n::DACL => given.list = Some(acl::read(&mut r, true, names)?),
            n::SIZE => set.size = Some(r.u64()?),
            n::MODE => set.mode = Some(mode(r.u32()?)?),
            n::OWNER => set.uid = Some(acl::identity(r.opaque(1024)?, false, names)?),
            n::OWNER_GROUP => set.gid = Some(acl::identity(r.opaque(1024)?, true, names)?),
            n::TIME_ACCESS_SET => set.atime = Some(set_time(&mut r)?),
            n::TIME_CREATE => set.crtime = Some(checked(time(&mut r)?)?),
            n::TIME_MODIFY_SET => set.mtime = Some(set_time(&mut r)?),
            n::MODE_UMASK => {
                set.mode = Some(mode(r.u32()?)?);
                set.umask = mode(r.u32()?)? & 0o777;
            }
            _ => return Err(Status::Invalid),
        }
    }
    if r.left() > 0 {
        return Err(Status::BadXdr);
    }
    Ok(given)
}

/// Reads what a client sets as it creates a file exclusively (RFC 8881, section 18.16.3).
///
/// # Errors
/// As of [`read`], and times.
pub(super) fn read_exclusive(
    raw: &RawAttributes<'_>,
    minor: u32,
    names: &dyn Resolver,
) -> Result<Given, Status> {
    if !raw.bits.is_subset(SETTABLE_EXCLUSIVE) {
        return Err(Status::Invalid);
    }
    read(raw, minor, false, names)
}

fn mode(bits: u32) -> Result<u32, Status> {
    if bits & !0o7777 == 0 {
        Ok(bits)
    } else {
        Err(Status::Invalid)
    }
}

fn set_time(r: &mut Reader<'_>) -> Result<SetTime, Status> {
    match r.u32()? {
        0 => Ok(SetTime::Server),
        1 => Ok(SetTime::Client(checked(time(r)?)?)),
        _ => Err(Status::BadXdr),
    }
}

fn checked(time: Timestamp) -> Result<Timestamp, Status> {
    if time.nanoseconds < 1_000_000_000 {
        Ok(time)
    } else {
        Err(Status::Invalid)
    }
}

fn write_time(w: &mut Writer, time: Timestamp) -> &mut Writer {
    w.u64(time.seconds.cast_unsigned()).u32(time.nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoNames;

    impl Resolver for NoNames {
        fn addresses(&self, _host: &str) -> Vec<std::net::IpAddr> {
            Vec::new()
        }

        fn names(&self, _address: std::net::IpAddr) -> Vec<String> {
            Vec::new()
        }
    }

    fn raw(numbers: &[u32], values: &[u8]) -> Result<SetAttr, Status> {
        let attributes = RawAttributes {
            bits: Bitmap::of(numbers),
            values,
        };
        read(&attributes, 2, false, &NoNames).map(|given| given.set)
    }

    #[test]
    fn what_can_be_set_is_read_in_the_order_of_numbers() {
        let mut w = Writer::default();
        w.u64(5)
            .u32(0o640)
            .opaque(b"1000")
            .u32(0)
            .u32(1)
            .u64(7)
            .u32(9);
        let numbers = [
            n::SIZE,
            n::MODE,
            n::OWNER,
            n::TIME_ACCESS_SET,
            n::TIME_MODIFY_SET,
        ];
        let set = raw(&numbers, &w.into_bytes()).expect("all settable");
        assert_eq!(
            (set.size, set.mode, set.uid),
            (Some(5), Some(0o640), Some(1000))
        );
        assert_eq!(set.atime, Some(SetTime::Server));
        let time = Timestamp {
            seconds: 7,
            nanoseconds: 9,
        };
        assert_eq!(set.mtime, Some(SetTime::Client(time)));
    }

    #[test]
    fn what_cannot_be_set_says_why() {
        let check = |numbers: &[u32], values: &[u8], expect| {
            assert_eq!(raw(numbers, values), Err(expect), "{numbers:?} {values:?}");
        };
        check(&[n::FSID], &[0; 16], Status::Invalid);
        check(&[12], &[0; 4], Status::AttributeNotSupported);
        check(&[127], &[], Status::AttributeNotSupported);
        check(&[n::MODE], &[0, 0], Status::BadXdr);
        check(&[n::MODE], &[0, 0, 0, 1, 9, 9, 9, 9], Status::BadXdr);
        check(&[n::MODE], &[0, 1, 0, 0], Status::Invalid);
        let mut w = Writer::default();
        w.opaque(b"anna@lab");
        check(&[n::OWNER], &w.into_bytes(), Status::BadOwner);
        check(&[n::TIME_CREATE], &[0xff; 12], Status::Invalid);
    }
}
