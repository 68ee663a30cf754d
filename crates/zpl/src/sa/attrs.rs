//! A file's attributes, decoded, and their encoding under a [`Plan`].

use std::rc::Rc;

use ondisk::DecodeError;
use ondisk::bytes::u64_at;
use ondisk::nvlist::NvList;
use ondisk::sa::{self, SaHeader, attr};

use super::VALUE_MAX_BYTES;
use super::registry::{Plan, Registry};
use crate::acl::posix::PosixAcl;
use crate::{FsError, FsResult, Timestamp};

/// All attributes of one object. Variable ones are shared, so that a clone is cheap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attrs {
    pub(crate) mode: u64,
    pub(crate) size: u64,
    pub(crate) generation: u64,
    /// Owner and group as FUIDs: domain index << 32 | id.
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) parent: u64,
    pub(crate) flags: u64,
    pub(crate) links: u64,
    pub(crate) atime: [u64; 2],
    pub(crate) mtime: [u64; 2],
    pub(crate) ctime: [u64; 2],
    pub(crate) crtime: [u64; 2],
    pub(crate) project: Option<u64>,
    pub(crate) rdev: Option<u64>,
    pub(crate) xattr: Option<u64>,
    pub(crate) acl_count: Option<u64>,
    pub(crate) acl: Option<Rc<[u8]>>,
    pub(crate) symlink: Option<Rc<[u8]>>,
    pub(crate) dxattr: Option<Rc<[u8]>>,
    /// The POSIX ACL, where such are in force and the file has one. Not stored here: it is an extended attribute.
    pub(crate) posix: Option<Rc<PosixAcl>>,
    /// Attributes we carry along without understanding them, by registered number.
    pub(crate) other: Vec<(u16, Rc<[u8]>)>,
    /// Registered numbers in the order they are stored in, bonus first.
    pub(crate) order: Rc<[u16]>,
}

/// What decides how attributes are laid out: which there are, and the lengths of the variable ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Shape {
    present: u32,
    acl: u32,
    symlink: u32,
    dxattr: u32,
    others: u32,
}

impl Attrs {
    /// Returns empty attributes of a new object.
    pub(crate) fn new() -> Self {
        Self {
            mode: 0,
            size: 0,
            generation: 0,
            uid: 0,
            gid: 0,
            parent: 0,
            flags: 0,
            links: 0,
            atime: [0; 2],
            mtime: [0; 2],
            ctime: [0; 2],
            crtime: [0; 2],
            project: None,
            rdev: None,
            xattr: None,
            acl_count: None,
            acl: None,
            posix: None,
            symlink: None,
            dxattr: None,
            other: Vec::new(),
            order: Rc::from([]),
        }
    }

    /// Returns what decides the layout.
    pub(crate) fn shape(&self) -> Shape {
        let bit = |on: bool, number: u16| u32::from(on) << number;
        let len = |v: &Option<Rc<[u8]>>| {
            u32::try_from(v.as_ref().map_or(0, |v| v.len())).unwrap_or(u32::MAX)
        };
        Shape {
            present: bit(self.project.is_some(), attr::PROJID)
                | bit(self.rdev.is_some(), attr::RDEV)
                | bit(self.xattr.is_some(), attr::XATTR)
                | bit(self.acl_count.is_some(), attr::DACL_COUNT)
                | bit(self.acl.is_some(), attr::DACL_ACES)
                | bit(self.symlink.is_some(), attr::SYMLINK)
                | bit(self.dxattr.is_some(), attr::DXATTR),
            acl: len(&self.acl),
            symlink: len(&self.symlink),
            dxattr: len(&self.dxattr),
            others: u32::try_from(self.other.len()).unwrap_or(u32::MAX),
        }
    }

    /// Returns whether the attribute of this usual number is there.
    pub(crate) fn has(&self, standard: u16) -> bool {
        match standard {
            attr::PROJID => self.project.is_some(),
            attr::RDEV => self.rdev.is_some(),
            attr::XATTR => self.xattr.is_some(),
            attr::DACL_COUNT => self.acl_count.is_some(),
            attr::DACL_ACES => self.acl.is_some(),
            attr::SYMLINK => self.symlink.is_some(),
            attr::DXATTR => self.dxattr.is_some(),
            0..=8 | attr::FLAGS | attr::UID | attr::GID => true,
            _ => false,
        }
    }

    /// Returns the bytes an attribute of this usual number takes.
    pub(crate) fn len_of(&self, standard: u16) -> usize {
        match standard {
            attr::ATIME | attr::MTIME | attr::CTIME | attr::CRTIME => 16,
            attr::DACL_ACES => self.acl.as_ref().map_or(0, |v| v.len()),
            attr::SYMLINK => self.symlink.as_ref().map_or(0, |v| v.len()),
            attr::DXATTR => self.dxattr.as_ref().map_or(0, |v| v.len()),
            _ => 8,
        }
    }

    fn set_words(&mut self, standard: u16, v: &[u8]) -> bool {
        let word = |i: usize| u64_at(v, i * 8);
        let expected = match standard {
            attr::ATIME | attr::MTIME | attr::CTIME | attr::CRTIME => 16,
            _ => 8,
        };
        if v.len() != expected {
            return false;
        }
        match standard {
            attr::ATIME => self.atime = [word(0), word(1)],
            attr::MTIME => self.mtime = [word(0), word(1)],
            attr::CTIME => self.ctime = [word(0), word(1)],
            attr::CRTIME => self.crtime = [word(0), word(1)],
            attr::GEN => self.generation = word(0),
            attr::MODE => self.mode = word(0),
            attr::SIZE => self.size = word(0),
            attr::PARENT => self.parent = word(0),
            attr::LINKS => self.links = word(0),
            attr::XATTR => self.xattr = Some(word(0)),
            attr::RDEV => self.rdev = Some(word(0)),
            attr::FLAGS => self.flags = word(0),
            attr::UID => self.uid = word(0),
            attr::GID => self.gid = word(0),
            attr::DACL_COUNT => self.acl_count = Some(word(0)),
            attr::PROJID => self.project = Some(word(0)),
            _ => return false,
        }
        true
    }

    fn word_of(&self, standard: u16) -> [u64; 2] {
        match standard {
            attr::ATIME => self.atime,
            attr::MTIME => self.mtime,
            attr::CTIME => self.ctime,
            attr::CRTIME => self.crtime,
            attr::GEN => [self.generation, 0],
            attr::MODE => [self.mode, 0],
            attr::SIZE => [self.size, 0],
            attr::PARENT => [self.parent, 0],
            attr::LINKS => [self.links, 0],
            attr::XATTR => [self.xattr.unwrap_or(0), 0],
            attr::RDEV => [self.rdev.unwrap_or(0), 0],
            attr::FLAGS => [self.flags, 0],
            attr::UID => [self.uid, 0],
            attr::GID => [self.gid, 0],
            attr::DACL_COUNT => [self.acl_count.unwrap_or(0), 0],
            attr::PROJID => [self.project.unwrap_or(0), 0],
            _ => [0, 0],
        }
    }

    /// The bytes of an attribute of one or two words, the second 0 where there is one.
    fn bytes_of(&self, standard: u16) -> [u8; 16] {
        let mut bytes = [0; 16];
        let words = bytes.chunks_exact_mut(8).zip(self.word_of(standard));
        words.for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    /// Takes the attributes of one buffer (a bonus, then possibly a spill block).
    ///
    /// # Errors
    /// [`FsError::Corrupt`] when the buffer does not hold what its layout says.
    pub(crate) fn decode_buffer(
        &mut self,
        buffer: &[u8],
        registry: &Registry,
        layout: &[u16],
    ) -> FsResult<()> {
        let found = sa::attributes(buffer, layout, |number| registry.length(number));
        for attribute in found.map_err(malformed)? {
            let (number, range) = attribute.map_err(malformed)?;
            let value = sa::bytes_of(buffer, &range);
            match registry.standard(number) {
                Some(attr::DACL_ACES) => self.acl = Some(Rc::from(value)),
                Some(attr::SYMLINK) => self.symlink = Some(Rc::from(value)),
                Some(attr::DXATTR) => self.dxattr = Some(Rc::from(value)),
                Some(standard) if self.set_words(standard, value) => {}
                _ => self.other.push((number, Rc::from(value))),
            }
        }
        Ok(())
    }

    /// Returns the layout number of a buffer.
    ///
    /// # Errors
    /// [`FsError::Corrupt`] when it has no header.
    pub(crate) fn layout_of(buffer: &[u8]) -> FsResult<u16> {
        Ok(SaHeader::decode(buffer).map_err(malformed)?.layout)
    }

    /// Encodes the bonus and, if the plan has one, the spill block.
    pub(crate) fn encode(
        &self,
        registry: &Registry,
        plan: &Plan,
        bonus: &mut Vec<u8>,
        spill: &mut Vec<u8>,
    ) {
        bonus.clear();
        spill.clear();
        self.encode_buffer(registry, plan.bonus.number, &plan.bonus.attrs, bonus);
        if let Some(layout) = &plan.spill {
            // OpenZFS: module/zfs/sa.c, sa_build_layouts: a bonus beside a spill block takes all the room there is.
            bonus.resize(plan.bonus_len, 0);
            self.encode_buffer(registry, layout.number, &layout.attrs, spill);
            spill.resize(spill.len().next_multiple_of(512), 0);
        }
    }

    fn encode_buffer(&self, registry: &Registry, layout: u16, attrs: &[u16], out: &mut Vec<u8>) {
        let variable = attrs.iter().filter(|&&n| registry.length(n) == Some(0));
        let lengths = variable.map(|&number| {
            u16::try_from(self.len_of_number(registry, number)).expect("checked by the plan")
        });
        sa::put_header(out, layout, lengths).expect("checked by the plan");
        for &number in attrs {
            let words;
            let value = match registry.standard(number) {
                Some(attr::DACL_ACES) => self.acl.as_deref(),
                Some(attr::SYMLINK) => self.symlink.as_deref(),
                Some(attr::DXATTR) => self.dxattr.as_deref(),
                Some(standard) if self.has(standard) => {
                    words = self.bytes_of(standard);
                    words.get(..self.len_of(standard))
                }
                _ => {
                    let other = self.other.iter().find(|(n, _)| *n == number);
                    other.map(|(_, value)| &**value)
                }
            };
            sa::put_attribute(out, value.unwrap_or(&[]));
        }
    }

    /// Returns the extended attributes that are kept beside the other attributes, as one list.
    ///
    /// # Errors
    /// [`FsError::Corrupt`] when the list cannot be decoded.
    pub(crate) fn xattr_list(&self) -> FsResult<NvList> {
        match self.dxattr.as_deref() {
            None | Some([]) => Ok(NvList::new()),
            Some(bytes) => {
                NvList::decode(bytes).map_err(|_| FsError::Corrupt("list of extended attributes"))
            }
        }
    }

    /// Returns the bytes the attribute of this registered number takes.
    pub(crate) fn len_of_number(&self, registry: &Registry, number: u16) -> usize {
        match registry.standard(number) {
            Some(standard) if self.has(standard) => self.len_of(standard),
            _ => self
                .other
                .iter()
                .find(|(n, _)| *n == number)
                .map_or(0, |(_, v)| v.len()),
        }
    }

    /// Checks that all values can be stored.
    ///
    /// # Errors
    /// [`FsError::AttributeTooLarge`].
    pub(crate) fn check_lengths(&self) -> FsResult<()> {
        let fits = |v: &Option<Rc<[u8]>>| v.as_ref().is_none_or(|v| v.len() <= VALUE_MAX_BYTES);
        if fits(&self.acl) && fits(&self.symlink) && fits(&self.dxattr) {
            Ok(())
        } else {
            Err(FsError::AttributeTooLarge)
        }
    }
}

fn malformed(error: DecodeError) -> FsError {
    FsError::Corrupt(error.what)
}

/// Returns a stored time as a time.
pub(crate) fn timestamp(stored: [u64; 2]) -> Timestamp {
    Timestamp {
        seconds: stored[0].cast_signed(),
        nanoseconds: u32::try_from(stored[1]).unwrap_or(0).min(999_999_999),
    }
}

/// Returns a time as it is stored.
pub(crate) fn stored_time(time: Timestamp) -> [u64; 2] {
    [time.seconds.cast_unsigned(), u64::from(time.nanoseconds)]
}
