//! Flags and projects of files as `lsattr` and `chattr` ask for them: the ioctls of Linux that file systems share.
//!
//! The kernel decodes them, checks that the caller owns the file, or is root where that is wanted, and hands them on in one form, whatever
//! the caller's word size (Linux: fs/fuse/ioctl.c). Other ioctls there are none.

use engine::{Attr, FlagsChange, FsError, SetAttr, flags};

// Linux: include/uapi/linux/fs.h, FS_IOC_*; words are of the order of the architectures we build for, little-endian
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
const GET_VERSION: u32 = 0x8008_7601;
const GET_XATTR: u32 = 0x801c_581f;
const SET_XATTR: u32 = 0x401c_5820;

/// The flags that a file can have: as stored, as `FS_*_FL`, and as `FS_XFLAG_*`.
const FLAGS: [(u64, u32, u32); 4] = [
    (flags::IMMUTABLE, 0x10, 0x8),
    (flags::APPENDONLY, 0x20, 0x10),
    (flags::NODUMP, 0x40, 0x80),
    (flags::PROJINHERIT, 0x2000_0000, 0x200),
];

/// Bytes of `struct fsxattr`: flags, extent size, number of extents, project, size of copied extents, room.
const XATTR_BYTES: usize = 28;
/// Where in it the project is.
const PROJECT_AT: usize = 12;

/// What an ioctl asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AskedOfFile {
    Flags,
    Generation,
    Xattr,
    Change(SetAttr),
}

impl AskedOfFile {
    /// Decodes a request; `None` if there is no such ioctl.
    ///
    /// # Errors
    /// [`FsError::NotSupported`] for flags that no file here has, as on OpenZFS; [`FsError::Invalid`] for a project that is none.
    // OpenZFS: module/os/linux/zfs/zpl_file.c, __zpl_ioctl_setflags, zpl_ioctl_setxattr
    pub(super) fn decode(command: u32, data: &[u8]) -> Result<Option<Self>, FsError> {
        let word = |at: usize| {
            let bytes = data.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u32::from_le_bytes).ok_or(FsError::Invalid)
        };
        let change = match command {
            GET_FLAGS => return Ok(Some(Self::Flags)),
            GET_VERSION => return Ok(Some(Self::Generation)),
            GET_XATTR => return Ok(Some(Self::Xattr)),
            SET_FLAGS => SetAttr {
                flags: Some(flags_change(word(0)?, |(_, flag, _)| flag)?),
                ..SetAttr::default()
            },
            SET_XATTR => SetAttr {
                flags: Some(flags_change(word(0)?, |(_, _, flag)| flag)?),
                project: match word(PROJECT_AT)? {
                    u32::MAX => return Err(FsError::Invalid),
                    project => Some(project),
                },
                ..SetAttr::default()
            },
            _ => return Ok(None),
        };
        Ok(Some(Self::Change(change)))
    }

    /// Returns the bytes of the answer about a file with these attributes.
    pub(super) fn answer(self, attr: &Attr) -> Vec<u8> {
        match self {
            Self::Flags => shown(attr, |(_, flag, _)| flag).to_le_bytes().to_vec(),
            Self::Generation => {
                let low = u32::try_from(attr.id.generation & u64::from(u32::MAX));
                low.expect("masked").to_le_bytes().to_vec()
            }
            Self::Xattr => {
                let mut bytes = shown(attr, |(_, _, flag)| flag).to_le_bytes().to_vec();
                bytes.resize(PROJECT_AT, 0);
                bytes.extend_from_slice(&attr.project.to_le_bytes());
                bytes.resize(XATTR_BYTES, 0);
                bytes
            }
            Self::Change(_) => Vec::new(),
        }
    }
}

/// Returns the flags of a file in one of the kernel's forms.
fn shown(attr: &Attr, form: impl Fn((u64, u32, u32)) -> u32) -> u32 {
    let set = FLAGS.iter().filter(|(flag, _, _)| attr.flags & flag != 0);
    set.fold(0, |all, &flag| all | form(flag))
}

/// Returns the change to the flags that are wanted in one of the kernel's forms.
fn flags_change(
    wanted: u32,
    form: impl Fn((u64, u32, u32)) -> u32,
) -> Result<FlagsChange, FsError> {
    let (mut known, mut all, mut set) = (0, 0, 0);
    for flag in FLAGS {
        known |= form(flag);
        all |= flag.0;
        if wanted & form(flag) != 0 {
            set |= flag.0;
        }
    }
    if wanted & !known != 0 {
        return Err(FsError::NotSupported);
    }
    Ok(FlagsChange::among(all, set))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_projects_both_ways() {
        let mut bytes = [0; XATTR_BYTES];
        bytes[..4].copy_from_slice(&0x208_u32.to_le_bytes());
        bytes[12..16].copy_from_slice(&7_u32.to_le_bytes());
        let decoded = AskedOfFile::decode(SET_XATTR, &bytes);
        let Ok(Some(AskedOfFile::Change(set))) = decoded else {
            panic!("{decoded:?}");
        };
        let change = set.flags.expect("flags");
        assert_eq!(change.set, flags::IMMUTABLE | flags::PROJINHERIT);
        assert_eq!(change.clear & flags::ARCHIVE, 0);
        assert_eq!(set.project, Some(7));
        bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(
            AskedOfFile::decode(SET_XATTR, &bytes),
            Err(FsError::Invalid)
        );
        assert_eq!(
            AskedOfFile::decode(SET_XATTR, &[0; 8]),
            Err(FsError::Invalid)
        );
    }

    #[test]
    fn flags_that_no_file_has_are_refused() {
        // FS_COMPR_FL
        let wanted = 0x14_u32.to_le_bytes();
        assert_eq!(
            AskedOfFile::decode(SET_FLAGS, &wanted),
            Err(FsError::NotSupported)
        );
        assert_eq!(AskedOfFile::decode(0x8008_6603, &wanted), Ok(None));
    }
}
