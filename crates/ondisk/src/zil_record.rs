//! Bodies of the intent log's records: what follows the common header, by kind.
//!
//! A decoder returns `None` where a body does not hold what its numbers promise. Whether objects and names exist is not its
//! question. Names are the bytes before a NUL, and may be empty.
//! Facts: docs/format/10-zil-arc.md section 4; OpenZFS: include/sys/zil.h, `lr_*_t`.

use crate::{BlockPointer, MAX_BLOCK_SIZE};

use self::record_kind as kind;
use crate::acl::{Ace, ace_flags};
use crate::bytes::{index, put_bytes, put_u64, slice_at, u16_at, u32_at, u64_at};

/// Kinds of records (without the case-insensitive bit 63).
pub mod record_kind {
    pub const CREATE: u64 = 1;
    pub const MKDIR: u64 = 2;
    pub const MKXATTR: u64 = 3;
    pub const SYMLINK: u64 = 4;
    pub const REMOVE: u64 = 5;
    pub const RMDIR: u64 = 6;
    pub const LINK: u64 = 7;
    pub const RENAME: u64 = 8;
    pub const WRITE: u64 = 9;
    pub const TRUNCATE: u64 = 10;
    pub const SETATTR: u64 = 11;
    pub const ACL_V0: u64 = 12;
    pub const ACL: u64 = 13;
    pub const CREATE_ACL: u64 = 14;
    pub const CREATE_ATTR: u64 = 15;
    pub const CREATE_ACL_ATTR: u64 = 16;
    pub const MKDIR_ACL: u64 = 17;
    pub const MKDIR_ATTR: u64 = 18;
    pub const MKDIR_ACL_ATTR: u64 = 19;
    pub const WRITE2: u64 = 20;
    pub const SETSAXATTR: u64 = 21;
    pub const RENAME_EXCHANGE: u64 = 22;
    pub const RENAME_WHITEOUT: u64 = 23;
    pub const CLONE_RANGE: u64 = 24;
}

/// Bits of an object's number; in the last byte above is the number of the dnode's slots less one, where a record makes it.
// OpenZFS: LR_FOID_GET_SLOTS
const OBJECT_BITS: u32 = 48;
const SLOTS_AT: u32 = 56;

/// Bits of a setattr record's mask. OpenZFS: Linux's `ATTR_*`, and `ATTR_XVATTR`.
pub mod setattr_mask {
    pub const MODE: u64 = 1;
    pub const UID: u64 = 2;
    pub const GID: u64 = 4;
    pub const SIZE: u64 = 8;
    pub const ATIME: u64 = 0x10;
    pub const MTIME: u64 = 0x20;
    pub const OPTIONAL: u64 = 1 << 31;
}

/// Bits of optional attributes. OpenZFS: include/sys/xvattr.h, `XAT0_*`.
pub mod optional_attribute {
    pub const CRTIME: u32 = 0x1;
    pub const ARCHIVE: u32 = 0x2;
    pub const SYSTEM: u32 = 0x4;
    pub const READONLY: u32 = 0x8;
    pub const HIDDEN: u32 = 0x10;
    pub const NOUNLINK: u32 = 0x20;
    pub const IMMUTABLE: u32 = 0x40;
    pub const APPENDONLY: u32 = 0x80;
    pub const NODUMP: u32 = 0x100;
    pub const OPAQUE: u32 = 0x200;
    pub const AV_QUARANTINED: u32 = 0x400;
    pub const AV_MODIFIED: u32 = 0x800;
    pub const REPARSE: u32 = 0x2000;
    pub const OFFLINE: u32 = 0x8000;
    pub const SPARSE: u32 = 0x1_0000;
    pub const PROJINHERIT: u32 = 0x2_0000;
    pub const PROJECT: u32 = 0x4_0000;
}

/// Attributes beyond the plain ones. OpenZFS: `lr_attr_t`, `lr_attr_end_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OptionalAttributes {
    /// Bits of [`optional_attribute`]: which of them are given.
    pub asked: u32,
    /// The same bits: which of the flags are on.
    pub on: u64,
    /// Seconds and nanoseconds; given with `CRTIME`.
    pub crtime: [u64; 2],
    /// Given with `PROJECT`.
    pub project: u64,
}

impl OptionalAttributes {
    /// Words in the map of what is given. OpenZFS: XVA_MAPSIZE.
    const MAP_WORDS: u32 = 3;
    const MAP_WORDS_MAX: u32 = 64;
    /// Bytes of the scan stamp, of which a project takes the first eight. OpenZFS: AV_SCANSTAMP_SZ.
    const STAMP: usize = 32;

    fn decode(body: &mut Reader<'_>) -> Option<Self> {
        let count = u32_at(body.take(4)?, 0);
        if !(1..=Self::MAP_WORDS_MAX).contains(&count) {
            return None;
        }
        let asked = u32_at(body.take(4 * index(u64::from(count)))?, 0);
        let [on, seconds, nanoseconds, project] = body.words()?;
        body.take(Self::STAMP - 8)?;
        Some(Self {
            asked,
            on,
            crtime: [seconds, nanoseconds],
            project,
        })
    }

    fn encode(&self, body: Body) -> Body {
        let mut map = Vec::with_capacity(16);
        for word in [Self::MAP_WORDS, self.asked, 0, 0] {
            map.extend_from_slice(&word.to_le_bytes());
        }
        body.bytes(&map)
            .words([self.on, self.crtime[0], self.crtime[1], self.project])
            .bytes(&[0; Self::STAMP - 8])
    }
}

/// A list of access control entries within a record. OpenZFS: the fields of `lr_acl_t`, and `ace_t`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecordAcl {
    /// The entries. Those about single kinds of objects have no layout here: their kind is all that is right of them.
    pub aces: Vec<Ace>,
    /// Bytes of the table of domains, 0 where all numbers are of this machine.
    pub domains: u64,
    /// How many of the numbers are of such a domain.
    pub fuids: u64,
    /// Flags of the whole list.
    pub flags: u64,
}

impl RecordAcl {
    /// Bytes of an entry.
    const ACE: usize = 12;

    fn aces(entries: &[u8], count: u64) -> Option<Vec<Ace>> {
        let wanted = index(count).checked_mul(Self::ACE)?;
        let entries = entries.get(..wanted)?;
        let one = |entry: &[u8]| {
            let flags = u16_at(entry, 8);
            // Owner, owning group and everyone need no number.
            let has_number = !matches!(
                flags & ace_flags::WHO,
                ace_flags::OWNER | ace_flags::EVERYONE | ace_flags::OWNING_GROUP
            );
            Ace {
                kind: u16_at(entry, 10),
                flags,
                mask: u32_at(entry, 4),
                fuid: if has_number {
                    u64::from(u32_at(entry, 0))
                } else {
                    0
                },
                object: [0; 32],
            }
        };
        Some(entries.chunks_exact(Self::ACE).map(one).collect())
    }

    fn entries(&self) -> Vec<u8> {
        let mut entries = Vec::with_capacity(self.aces.len() * Self::ACE);
        for ace in &self.aces {
            let who = u32::try_from(ace.fuid).unwrap_or(u32::MAX);
            entries.extend_from_slice(&who.to_le_bytes());
            entries.extend_from_slice(&ace.mask.to_le_bytes());
            entries.extend_from_slice(&ace.flags.to_le_bytes());
            entries.extend_from_slice(&ace.kind.to_le_bytes());
        }
        entries
    }

    fn head(&self) -> [u64; 5] {
        let count = crate::bytes::len64(self.aces.len());
        let bytes = count * crate::bytes::len64(Self::ACE);
        [count, self.domains, self.fuids, bytes, self.flags]
    }
}

/// A file that a record makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NewObject {
    /// Its number.
    pub object: u64,
    /// Slots of its dnode, 1 to 256.
    pub slots: u16,
    pub mode: u64,
    pub uid: u64,
    pub gid: u64,
    pub generation: u64,
    /// Seconds and nanoseconds.
    pub crtime: [u64; 2],
    /// Device number, 0 for other kinds of files.
    pub rdev: u64,
}

impl NewObject {
    fn decode(body: &mut Reader<'_>) -> Option<Self> {
        let [word, mode, uid, gid, generation, seconds, nanoseconds, rdev] = body.words()?;
        Some(Self {
            object: word & ((1 << OBJECT_BITS) - 1),
            slots: u16::try_from((word >> SLOTS_AT) + 1).unwrap_or(u16::MAX),
            mode,
            uid,
            gid,
            generation,
            crtime: [seconds, nanoseconds],
            rdev,
        })
    }

    fn words(&self) -> [u64; 8] {
        let slots = u64::from(self.slots.max(1)) - 1;
        [
            self.object | slots << SLOTS_AT,
            self.mode,
            self.uid,
            self.gid,
            self.generation,
            self.crtime[0],
            self.crtime[1],
            self.rdev,
        ]
    }
}

/// A new file with its first name: all kinds of `CREATE` and `MKDIR`, `SYMLINK` and `MKXATTR`.
// OpenZFS: lr_create_t, lr_acl_create_t
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateRecord<'a> {
    /// The directory, or the owner of a hidden one.
    pub dir: u64,
    pub file: NewObject,
    /// In the kinds with `ACL`.
    pub acl: Option<RecordAcl>,
    /// In the kinds with `ATTR`.
    pub optional: Option<OptionalAttributes>,
    pub name: &'a [u8],
    /// Of a symbolic link.
    pub target: &'a [u8],
}

impl<'a> CreateRecord<'a> {
    fn has_acl(kind: u64) -> bool {
        matches!(
            kind,
            kind::CREATE_ACL | kind::CREATE_ACL_ATTR | kind::MKDIR_ACL | kind::MKDIR_ACL_ATTR
        )
    }

    fn has_optional(kind: u64) -> bool {
        matches!(
            kind,
            kind::CREATE_ATTR | kind::MKDIR_ATTR | kind::CREATE_ACL_ATTR | kind::MKDIR_ACL_ATTR
        )
    }

    /// Takes the body of a record of this kind apart.
    #[must_use]
    pub fn decode(kind: u64, body: &'a [u8]) -> Option<Self> {
        let mut body = Reader(body);
        let [dir] = body.words()?;
        let file = NewObject::decode(&mut body)?;
        let head = if Self::has_acl(kind) {
            Some(body.words::<5>()?)
        } else {
            None
        };
        let optional = if Self::has_optional(kind) {
            Some(OptionalAttributes::decode(&mut body)?)
        } else {
            None
        };
        let acl = match head {
            Some([count, domains, fuids, bytes, flags]) => {
                let entries = body.take(index(bytes.checked_next_multiple_of(8)?))?;
                Some(RecordAcl {
                    aces: RecordAcl::aces(entries, count)?,
                    domains,
                    fuids,
                    flags,
                })
            }
            None => None,
        };
        let name = body.text()?;
        let target = match kind {
            kind::SYMLINK => body.text()?,
            _ => &[],
        };
        Some(Self {
            dir,
            file,
            acl,
            optional,
            name,
            target,
        })
    }

    /// Encodes the body of a record of this kind.
    ///
    /// # Panics
    /// When there are lists or attributes that the kind has no place for, or none where it has.
    #[must_use]
    pub fn encode(&self, kind: u64) -> Vec<u8> {
        assert!(
            self.acl.is_some() == Self::has_acl(kind)
                && self.optional.is_some() == Self::has_optional(kind),
            "the kind of a record says what it holds"
        );
        let mut body = Body::default().words([self.dir]).words(self.file.words());
        if let Some(acl) = &self.acl {
            body = body.words(acl.head());
        }
        if let Some(optional) = &self.optional {
            body = optional.encode(body);
        }
        if let Some(acl) = &self.acl {
            body = body.bytes(&acl.entries()).padded();
        }
        body = body.text(self.name);
        if kind == kind::SYMLINK {
            body = body.text(self.target);
        }
        body.0
    }
}

/// A name taken away: `REMOVE` and `RMDIR`. OpenZFS: `lr_remove_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoveRecord<'a> {
    pub dir: u64,
    pub name: &'a [u8],
}

impl<'a> RemoveRecord<'a> {
    /// Takes the body of a record apart.
    #[must_use]
    pub fn decode(body: &'a [u8]) -> Option<Self> {
        let mut body = Reader(body);
        let [dir] = body.words()?;
        let name = body.text()?;
        Some(Self { dir, name })
    }

    /// Encodes the body.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        Body::default().words([self.dir]).text(self.name).0
    }
}

/// One more name: `LINK`. OpenZFS: `lr_link_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkRecord<'a> {
    pub dir: u64,
    pub object: u64,
    pub name: &'a [u8],
}

impl<'a> LinkRecord<'a> {
    /// Takes the body of a record apart.
    #[must_use]
    pub fn decode(body: &'a [u8]) -> Option<Self> {
        let mut body = Reader(body);
        let [dir, object] = body.words()?;
        let name = body.text()?;
        Some(Self { dir, object, name })
    }

    /// Encodes the body.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let words = [self.dir, self.object];
        Body::default().words(words).text(self.name).0
    }
}

/// A name changed: `RENAME`, `RENAME_EXCHANGE`, `RENAME_WHITEOUT`. OpenZFS: `lr_rename_t`, `lr_rename_whiteout_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenameRecord<'a> {
    pub from: u64,
    pub to: u64,
    /// What takes the old name, in a `RENAME_WHITEOUT`.
    pub whiteout: Option<NewObject>,
    pub from_name: &'a [u8],
    pub to_name: &'a [u8],
}

impl<'a> RenameRecord<'a> {
    /// Takes the body of a record of this kind apart.
    #[must_use]
    pub fn decode(kind: u64, body: &'a [u8]) -> Option<Self> {
        let mut body = Reader(body);
        let [from, to] = body.words()?;
        let whiteout = match kind {
            kind::RENAME_WHITEOUT => Some(NewObject::decode(&mut body)?),
            _ => None,
        };
        let (from_name, to_name) = (body.text()?, body.text()?);
        Some(Self {
            from,
            to,
            whiteout,
            from_name,
            to_name,
        })
    }

    /// Encodes the body; a whiteout makes it one of a `RENAME_WHITEOUT`.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Body::default().words([self.from, self.to]);
        if let Some(whiteout) = &self.whiteout {
            body = body.words(whiteout.words());
        }
        body.text(self.from_name).text(self.to_name).0
    }
}

/// Bytes freed (`TRUNCATE`: to the end with length 0), or written where the txg brings them (`WRITE2`).
// OpenZFS: lr_truncate_t, the first fields of lr_write_t
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeRecord {
    pub object: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

impl RangeRecord {
    /// Takes the body of a record apart.
    #[must_use]
    pub fn decode(body: &[u8]) -> Option<Self> {
        let [object, offset, length] = Reader(body).words()?;
        Some(Self {
            object,
            offset,
            length,
        })
    }

    /// Encodes the body.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let words = [self.object, self.offset, self.length];
        Body::default().words(words).0
    }
}

/// A `WRITE` without its bytes, which follow, or are in the block of the pointer. OpenZFS: `lr_write_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteRecord {
    pub object: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The block that holds them, where nothing follows; else of no meaning.
    pub block: BlockPointer,
}

impl WriteRecord {
    /// Bytes in front of those written.
    pub const SIZE: usize = 160;
    const POINTER: usize = 32;

    /// Takes the front of a body apart.
    #[must_use]
    pub fn decode(body: &[u8]) -> Option<Self> {
        let front = body.get(..Self::SIZE)?;
        let [object, offset, length] = Reader(front).words()?;
        let block =
            BlockPointer::decode(slice_at(front, Self::POINTER, BlockPointer::SIZE)).ok()?;
        Some(Self {
            object,
            offset,
            length,
            block,
        })
    }

    /// Writes it to the front of `out`.
    pub fn put(&self, out: &mut [u8]) {
        put_u64(out, 0, self.object);
        put_u64(out, 8, self.offset);
        put_u64(out, 16, self.length);
        put_bytes(out, Self::POINTER, &self.block.encode());
    }
}

/// Attributes set: `SETATTR`. OpenZFS: `lr_setattr_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetattrRecord {
    pub object: u64,
    /// Bits of [`setattr_mask`]: which of those below are set; `OPTIONAL` follows from `optional`.
    pub mask: u64,
    pub mode: u64,
    pub uid: u64,
    pub gid: u64,
    pub size: u64,
    /// Seconds and nanoseconds.
    pub atime: [u64; 2],
    /// Seconds and nanoseconds.
    pub mtime: [u64; 2],
    pub optional: Option<OptionalAttributes>,
}

impl SetattrRecord {
    /// Takes the body of a record apart.
    #[must_use]
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut body = Reader(body);
        let [object, mask, mode, uid, gid, size, a0, a1, m0, m1] = body.words()?;
        let optional = if mask & setattr_mask::OPTIONAL != 0 {
            Some(OptionalAttributes::decode(&mut body)?)
        } else {
            None
        };
        Some(Self {
            object,
            mask,
            mode,
            uid,
            gid,
            size,
            atime: [a0, a1],
            mtime: [m0, m1],
            optional,
        })
    }

    /// Encodes the body.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let optional = self.optional.map_or(0, |_| setattr_mask::OPTIONAL);
        let body = Body::default().words([
            self.object,
            self.mask & !setattr_mask::OPTIONAL | optional,
            self.mode,
            self.uid,
            self.gid,
            self.size,
            self.atime[0],
            self.atime[1],
            self.mtime[0],
            self.mtime[1],
        ]);
        match &self.optional {
            Some(optional) => optional.encode(body).0,
            None => body.0,
        }
    }
}

/// A list of access control entries set: `ACL_V0` and `ACL`. OpenZFS: `lr_acl_v0_t`, `lr_acl_t`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AclRecord {
    pub object: u64,
    pub acl: RecordAcl,
}

impl AclRecord {
    /// Takes the body of a record of this kind apart.
    #[must_use]
    pub fn decode(kind: u64, body: &[u8]) -> Option<Self> {
        let mut body = Reader(body);
        let [object, count] = body.words()?;
        let [domains, fuids, _, flags] = match kind {
            kind::ACL => body.words()?,
            _ => [0; 4],
        };
        let aces = RecordAcl::aces(body.0, count)?;
        let acl = RecordAcl {
            aces,
            domains,
            fuids,
            flags,
        };
        Some(Self { object, acl })
    }

    /// Encodes the body of an `ACL`.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        Body::default()
            .words([self.object])
            .words(self.acl.head())
            .bytes(&self.acl.entries())
            .0
    }
}

/// An entry of a file's list of extended attributes set, or (no value) removed: `SETSAXATTR`. OpenZFS: `lr_setsaxattr_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetSaXattrRecord<'a> {
    pub object: u64,
    pub name: &'a [u8],
    pub value: &'a [u8],
}

impl<'a> SetSaXattrRecord<'a> {
    /// Takes the body of a record apart.
    #[must_use]
    pub fn decode(body: &'a [u8]) -> Option<Self> {
        let mut body = Reader(body);
        let [object, len] = body.words()?;
        let name = body.text()?;
        let value = body.take(index(len))?;
        Some(Self {
            object,
            name,
            value,
        })
    }

    /// Encodes the body.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let words = [self.object, crate::bytes::len64(self.value.len())];
        Body::default()
            .words(words)
            .text(self.name)
            .bytes(self.value)
            .0
    }
}

/// The body of a record of blocks cloned into a file or volume.
// OpenZFS: include/sys/zil.h, lr_clone_range_t
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloneRange {
    /// The object cloned into.
    pub object: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes; the last block may hold more.
    pub length: u64,
    /// Bytes of a block.
    pub block_size: u64,
    /// The blocks in order, those that are holes as holes.
    pub blocks: Vec<BlockPointer>,
}

impl CloneRange {
    /// Bytes of a body before its pointers.
    const FIXED: usize = 40;

    /// Takes the body of a record apart; `None` when its numbers do not fit together.
    #[must_use]
    pub fn decode(body: &[u8]) -> Option<Self> {
        let blocks = Self::pointers(body)?;
        let [object, offset, length, block_size] = std::array::from_fn(|n| u64_at(body, 8 * n));
        let covered = block_size.checked_mul(blocks.len() as u64)?;
        let fits = length <= covered && covered - length < block_size.max(1);
        if !fits
            || block_size == 0
            || block_size > MAX_BLOCK_SIZE
            || offset.checked_add(covered).is_none()
        {
            return None;
        }
        let right =
            |bp: &BlockPointer| bp.is_hole() || (bp.level() == 0 && bp.lsize() == block_size);
        blocks.iter().all(right).then_some(Self {
            object,
            offset,
            length,
            block_size,
            blocks,
        })
    }

    /// Most pointers that OpenZFS puts into one record.
    // OpenZFS: module/zfs/zil.c, zil_max_log_data; 128 KiB less zil_chain_t and lr_clone_range_t
    pub const BLOCKS_MAX: usize = ((128 << 10) - 192 - 32 - Self::FIXED) / BlockPointer::SIZE;

    /// Puts the body of a record together.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut body = vec![0; Self::FIXED + BlockPointer::SIZE * self.blocks.len()];
        let count = self.blocks.len() as u64;
        let words = [
            self.object,
            self.offset,
            self.length,
            self.block_size,
            count,
        ];
        let (fixed, rest) = body.split_at_mut(Self::FIXED);
        for (place, word) in fixed.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        for (place, bp) in rest.chunks_exact_mut(BlockPointer::SIZE).zip(&self.blocks) {
            bp.encode_into(place);
        }
        body
    }

    /// The blocks of a record that may be encrypted: its pointers are in the clear, the rest of its numbers may mean nothing.
    /// `None` when there are not as many as it says.
    #[must_use]
    pub fn pointers(body: &[u8]) -> Option<Vec<BlockPointer>> {
        let (fixed, rest) = body.split_at_checked(Self::FIXED)?;
        let count = usize::try_from(u64_at(fixed, 32)).ok()?;
        let pointers = rest.get(..count.checked_mul(BlockPointer::SIZE)?)?;
        Some(BlockPointer::decode_all(pointers).collect())
    }

    /// The blocks that the record shares with their other owner; each such record counts as one more reference.
    pub fn shared(&self) -> impl Iterator<Item = &BlockPointer> {
        self.blocks.iter().filter(|bp| Self::is_shared(bp))
    }

    /// Whether a pointer of such a record is of a block with another owner.
    #[must_use]
    pub fn is_shared(bp: &BlockPointer) -> bool {
        !bp.is_hole() && !bp.is_embedded()
    }
}

/// The object whose content or attributes a record is about, in every kind that is about one alone.
#[must_use]
pub fn object_of(body: &[u8]) -> Option<u64> {
    let [object] = Reader(body).words()?;
    Some(object)
}

/// Takes a body apart, front to back.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn words<const N: usize>(&mut self) -> Option<[u64; N]> {
        let bytes = self.take(8 * N)?;
        Some(std::array::from_fn(|i| u64_at(bytes, 8 * i)))
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(front)
    }

    /// Text up to its NUL.
    fn text(&mut self) -> Option<&'a [u8]> {
        let len = self.0.iter().position(|&b| b == 0)?;
        let text = self.take(len)?;
        self.take(1)?;
        Some(text)
    }
}

/// Puts a body together.
#[derive(Default)]
struct Body(Vec<u8>);

impl Body {
    fn words<const N: usize>(mut self, words: [u64; N]) -> Self {
        for word in words {
            self.0.extend_from_slice(&word.to_le_bytes());
        }
        self
    }

    fn text(mut self, text: &[u8]) -> Self {
        self.0.extend_from_slice(text);
        self.0.push(0);
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn padded(mut self) -> Self {
        let len = self.0.len().next_multiple_of(8);
        self.0.resize(len, 0);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digit = |c: char| u8::try_from(c.to_digit(16).expect("hex")).expect("a digit");
        let digits: Vec<u8> = hex.chars().map(digit).collect();
        digits.chunks_exact(2).map(|d| d[0] << 4 | d[1]).collect()
    }

    /// A file made by OpenZFS (golden pool `l1-zil-inpool`).
    const CREATE: &str = "2200000000000000db00000000000000a4810000000000000000000000000000\
        00000000000000001600000000000000c282006b0000000003abb32200000000\
        0000000000000000736d616c6c313100";
    /// A directory made by OpenZFS.
    const MKDIR: &str = "22000000000000009400000000000000e8410000000000000000000000000000\
        00000000000000001700000000000000e782006b00000000f482c71300000000\
        00000000000000006e65776469720000";
    /// Attributes set by OpenZFS.
    const SETATTR: &str = "d4000000000000004100000000000000e9890000000000000000000000000000\
        00000000000000000000000000000000c282006b00000000f2e6a23800000000\
        c282006b00000000f2e6a23800000000";

    #[test]
    fn what_openzfs_wrote_is_read_and_written_alike() {
        let body = bytes(CREATE);
        let made = CreateRecord::decode(kind::CREATE, &body).expect("decodes");
        assert_eq!((made.dir, made.name), (34, b"small11".as_slice()));
        assert_eq!((made.file.object, made.file.slots), (219, 1));
        assert_eq!((made.file.mode, made.file.generation), (0o10_0644, 22));
        assert_eq!(made.encode(kind::CREATE), body);
        // Records are padded to eight bytes.
        let body = bytes(MKDIR);
        let made = CreateRecord::decode(kind::MKDIR, &body).expect("decodes");
        assert_eq!(
            (made.name, made.file.mode),
            (b"newdir".as_slice(), 0o4_0750)
        );
        assert_eq!(made.encode(kind::MKDIR), body[..79]);
        let body = bytes(SETATTR);
        let set = SetattrRecord::decode(&body).expect("decodes");
        assert_eq!((set.object, set.mode), (212, 0o10_4751));
        assert_eq!(set.mask & setattr_mask::MODE, setattr_mask::MODE);
        assert_eq!(set.encode(), body);
    }

    fn sample_acl() -> RecordAcl {
        let ace = |kind, flags, fuid| Ace {
            fuid,
            ..Ace::about(kind, flags, 0x12_00a9)
        };
        RecordAcl {
            aces: vec![
                ace(0, ace_flags::OWNER, 0),
                ace(1, ace_flags::IDENTIFIER_GROUP, 77),
                ace(2, ace_flags::EVERYONE, 0),
            ],
            domains: 0,
            fuids: 0,
            flags: 8,
        }
    }

    #[test]
    fn every_kind_is_read_as_it_was_written_and_not_when_it_is_cut() {
        let optional = OptionalAttributes {
            asked: optional_attribute::CRTIME | optional_attribute::PROJECT,
            on: 0,
            crtime: [5, 6],
            project: 7,
        };
        let file = NewObject {
            object: 300,
            slots: 2,
            mode: 0o10_0600,
            ..NewObject::default()
        };
        for (kind, acl, optional) in [
            (kind::CREATE, None, None),
            (kind::SYMLINK, None, None),
            (kind::MKXATTR, None, None),
            (kind::MKDIR_ATTR, None, Some(optional)),
            (kind::CREATE_ACL, Some(sample_acl()), None),
            (kind::MKDIR_ACL_ATTR, Some(sample_acl()), Some(optional)),
        ] {
            let record = CreateRecord {
                dir: 34,
                file,
                acl,
                optional,
                name: b"name",
                target: if kind == kind::SYMLINK { b"to" } else { b"" },
            };
            let body = record.encode(kind);
            assert_eq!(CreateRecord::decode(kind, &body), Some(record));
            for len in 0..body.len() {
                assert_eq!(
                    CreateRecord::decode(kind, &body[..len]),
                    None,
                    "{kind} {len}"
                );
            }
        }
        let set = SetattrRecord {
            object: 3,
            mask: setattr_mask::SIZE | setattr_mask::OPTIONAL,
            size: 9,
            optional: Some(optional),
            ..SetattrRecord::default()
        };
        let body = set.encode();
        assert_eq!(SetattrRecord::decode(&body), Some(set));
        assert!((0..body.len()).all(|len| SetattrRecord::decode(&body[..len]).is_none()));
        for whiteout in [None, Some(file)] {
            let kind = whiteout.map_or(kind::RENAME, |_| kind::RENAME_WHITEOUT);
            let record = RenameRecord {
                from: 1,
                to: 2,
                whiteout,
                from_name: b"old",
                to_name: b"new",
            };
            let body = record.encode();
            assert_eq!(RenameRecord::decode(kind, &body), Some(record));
            assert!((0..body.len()).all(|len| RenameRecord::decode(kind, &body[..len]).is_none()));
        }
        let record = AclRecord {
            object: 3,
            acl: sample_acl(),
        };
        let body = record.encode();
        assert_eq!(body.len(), 48 + 3 * 12);
        assert_eq!(AclRecord::decode(kind::ACL, &body), Some(record));
        assert!((0..body.len()).all(|len| AclRecord::decode(kind::ACL, &body[..len]).is_none()));
        let record = SetSaXattrRecord {
            object: 3,
            name: b"user.x",
            value: b"abc",
        };
        let body = record.encode();
        assert_eq!(SetSaXattrRecord::decode(&body), Some(record));
        assert!((0..body.len()).all(|len| SetSaXattrRecord::decode(&body[..len]).is_none()));
    }

    #[test]
    fn counts_that_the_body_does_not_hold_are_refused() {
        let many = AclRecord {
            object: 3,
            acl: sample_acl(),
        };
        let mut body = many.encode();
        for count in [4, u64::MAX / 12, u64::MAX] {
            put_u64(&mut body, 8, count);
            assert_eq!(AclRecord::decode(kind::ACL, &body), None, "{count}");
        }
        let mut body = bytes(SETATTR);
        put_u64(&mut body, 8, setattr_mask::OPTIONAL);
        for words in [0_u32, 65, u32::MAX] {
            let mut body = body.clone();
            body.extend_from_slice(&words.to_le_bytes());
            body.resize(body.len() + 400, 0);
            assert_eq!(SetattrRecord::decode(&body), None, "{words}");
        }
    }
}
