//! What changes leave in the intent log: one record each, in the layout OpenZFS reads.
//!
//! Called within the transaction of the change. While a log is replayed nothing is appended; the record under replay is
//! noted as done in the same transaction instead.
//! Facts: docs/format/10-zil-arc.md section 4; OpenZFS: include/sys/zil.h (`lr_*_t`), module/zfs/zfs_log.c (which record
//! for which change).

use dmu::Tx;
use ondisk::acl::Ace;
use ondisk::zil::record_kind as kind;
use ondisk::{ObjectId, Txg};
use runtime::IoBuf;
use zil::{Intent, ItxKind};

use crate::fs::Fs;
use crate::make::Listed;
use crate::sa::Attrs;
use crate::znode::Znode;
use crate::{FileType, FsResult, SetAttr, flags};

/// Bits of a setattr record's mask. OpenZFS: Linux's `ATTR_*`, and `ATTR_XVATTR`.
pub(crate) mod mask {
    pub(crate) const MODE: u64 = 1;
    pub(crate) const UID: u64 = 2;
    pub(crate) const GID: u64 = 4;
    pub(crate) const SIZE: u64 = 8;
    pub(crate) const ATIME: u64 = 0x10;
    pub(crate) const MTIME: u64 = 0x20;
    pub(crate) const OPTIONAL: u64 = 1 << 31;
}

/// Optional attribute: creation time. OpenZFS: include/sys/xvattr.h, XAT0_CREATETIME.
pub(crate) const OPTIONAL_CRTIME: u32 = 0x1;
/// Optional attribute: project. OpenZFS: XAT0_PROJID.
pub(crate) const OPTIONAL_PROJECT: u32 = 0x4_0000;
/// Flags of files and their bits among the optional attributes. OpenZFS: include/sys/xvattr.h, XAT0_*.
pub(crate) const OPTIONAL_FLAGS: [(u64, u32); 15] = [
    (flags::ARCHIVE, 0x2),
    (flags::SYSTEM, 0x4),
    (flags::READONLY, 0x8),
    (flags::HIDDEN, 0x10),
    (flags::NOUNLINK, 0x20),
    (flags::IMMUTABLE, 0x40),
    (flags::APPENDONLY, 0x80),
    (flags::NODUMP, 0x100),
    (flags::OPAQUE, 0x200),
    (flags::AV_QUARANTINED, 0x400),
    (flags::AV_MODIFIED, 0x800),
    (flags::REPARSE, 0x2000),
    (flags::OFFLINE, 0x8000),
    (flags::SPARSE, 0x1_0000),
    (flags::PROJINHERIT, 0x2_0000),
];
/// Words in the map of optional attributes. OpenZFS: XVA_MAPSIZE.
const OPTIONAL_WORDS: u32 = 3;
/// Bytes of the scan stamp, of which a project takes the first eight. OpenZFS: AV_SCANSTAMP_SZ.
const STAMP: usize = 32;

/// Puts a record's body together.
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

    /// The optional attributes that differ between `old` and `new`. OpenZFS: `lr_attr_t`, `lr_attr_end_t`.
    fn optional(mut self, asked: u32, new: &Attrs) -> Self {
        let mut on = 0;
        for (flag, bit) in OPTIONAL_FLAGS {
            if asked & bit != 0 && new.flags & flag != 0 {
                on |= u64::from(bit);
            }
        }
        for word in [OPTIONAL_WORDS, asked, 0, 0] {
            self.0.extend_from_slice(&word.to_le_bytes());
        }
        let project = if asked & OPTIONAL_PROJECT != 0 {
            new.project.unwrap_or(0)
        } else {
            0
        };
        self.words([on, new.crtime[0], new.crtime[1], project])
            .bytes(&[0; STAMP - 8])
    }

    fn record(self, kind: u64) -> Intent {
        Intent::Record { kind, body: self.0 }
    }
}

/// The object field of a record that makes a file: the slots of its dnode are in the upper byte.
/// OpenZFS: LR_FOID_SET_SLOTS.
fn new_object(znode: &Znode) -> u64 {
    znode.object | (u64::from(znode.slots.max(1)) - 1) << 56
}

impl Fs {
    /// Notes the record under replay as done with this transaction.
    pub(crate) fn note_replayed(&self, tx: &Tx) {
        self.log(ItxKind::Sync, || Intent::Unlogged, tx);
    }

    /// Appends a record, or notes the one under replay as done.
    fn log(&self, scope: ItxKind, intent: impl FnOnce() -> Intent, tx: &Tx) {
        let Some(log) = &self.0.log else { return };
        match self.0.replaying.get() {
            Some(seq) => log.replayed(seq, tx),
            None => log.append(scope, intent(), tx),
        }
    }

    /// A file got its object and its first name. Times and flags the record has no room for follow in another.
    pub(crate) fn log_create(
        &self,
        dir: &Znode,
        name: &[u8],
        file: &Znode,
        set: &SetAttr,
        listed: &[Listed],
        tx: &Tx,
    ) {
        let attrs = file.attrs.borrow();
        let mut more = 0;
        if set.atime.is_some() {
            more |= mask::ATIME;
        }
        if set.mtime.is_some() {
            more |= mask::MTIME;
        }
        let asked = if set.flags.is_some() {
            optional_changes(flags::ARCHIVE | flags::AV_MODIFIED, &attrs)
        } else {
            0
        };
        let make = || {
            let kind = match file.file_type() {
                FileType::Directory => kind::MKDIR,
                FileType::Symlink => kind::SYMLINK,
                _ => kind::CREATE,
            };
            let body = create_body(dir.object, file, &attrs).text(name);
            let record = match attrs.symlink.as_deref() {
                Some(target) => body.text(target).record(kind),
                None => body.record(kind),
            };
            let mut records = vec![record];
            if more != 0 || asked != 0 {
                records.push(setattr_record(file.object, more, asked, &attrs));
            }
            for (name, value) in listed {
                records.push(self.list_entry_record(file, name, Some(value)));
            }
            match records.len() {
                1 => records.remove(0),
                _ => Intent::Group(records),
            }
        };
        self.log(ItxKind::Sync, make, tx);
    }

    /// What was logged of a file's content and attributes goes to disk with the changes of names, and in their order.
    pub(crate) fn log_with_names(&self, file: &Znode) {
        if let Some(log) = &self.0.log {
            log.async_to_sync(file.object_id());
        }
    }

    /// An extended attribute was changed by these records; with files, they belong to the changes of names.
    pub(crate) fn log_attribute(
        &self,
        owner: &Znode,
        with_files: bool,
        mut records: Vec<Intent>,
        tx: &Tx,
    ) {
        if owner.unlinked.get() || owner.dead.get() {
            return;
        }
        let scope = if with_files {
            self.log_with_names(owner);
            ItxKind::Sync
        } else {
            ItxKind::Async(owner.object_id())
        };
        let make = || match records.len() {
            1 => records.remove(0),
            _ => Intent::Group(records),
        };
        self.log(scope, make, tx);
    }

    /// The record of an entry of a file's list of extended attributes that was set or (no value) removed.
    pub(crate) fn list_entry_record(
        &self,
        file: &Znode,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Intent {
        // A length of zero means removal, so there is no record for an empty value.
        if value.is_some_and(<[u8]>::is_empty) || !self.0.backing.logs_attributes() {
            return Intent::Unlogged;
        }
        let value = value.unwrap_or_default();
        Body::default()
            .words([file.object, value.len() as u64])
            .text(name)
            .bytes(value)
            .record(kind::SETSAXATTR)
    }

    /// A name was taken away.
    pub(crate) fn log_remove(&self, dir: u64, name: &[u8], is_dir: bool, tx: &Tx) {
        let kind = if is_dir { kind::RMDIR } else { kind::REMOVE };
        let make = || Body::default().words([dir]).text(name).record(kind);
        self.log(ItxKind::Sync, make, tx);
    }

    /// A file has lost its last name: nothing written to it matters any more, and its number may come back.
    pub(crate) fn log_gone(&self, file: &Znode) {
        if let Some(log) = &self.0.log {
            log.remove_async(ObjectId(file.object));
        }
    }

    pub(crate) fn log_link(&self, dir: &Znode, name: &[u8], file: &Znode, tx: &Tx) {
        let make = || {
            Body::default()
                .words([dir.object, file.object])
                .text(name)
                .record(kind::LINK)
        };
        self.log(ItxKind::Sync, make, tx);
    }

    pub(crate) fn log_rename(
        &self,
        from: &Znode,
        from_name: &[u8],
        to: &Znode,
        to_name: &[u8],
        moved: &Znode,
        tx: &Tx,
    ) {
        // A file written and then put in place under its name must not be there without what was written.
        self.log_with_names(moved);
        let make = || {
            Body::default()
                .words([from.object, to.object])
                .text(from_name)
                .text(to_name)
                .record(kind::RENAME)
        };
        self.log(ItxKind::Sync, make, tx);
    }

    pub(crate) fn log_exchange(
        &self,
        from: &Znode,
        from_name: &[u8],
        to: &Znode,
        to_name: &[u8],
        moved: [&Znode; 2],
        tx: &Tx,
    ) {
        for file in moved {
            self.log_with_names(file);
        }
        let make = || {
            Body::default()
                .words([from.object, to.object])
                .text(from_name)
                .text(to_name)
                .record(kind::RENAME_EXCHANGE)
        };
        self.log(ItxKind::Sync, make, tx);
    }

    /// The size of a file's blocks, when a write of so many bytes may be logged by pointers to them; else 0.
    fn indirect_block(&self, file: &Znode, len: usize) -> u32 {
        let for_throughput = self.settings().log_for_throughput;
        let log = self.0.log.as_ref();
        let pays = log.is_some_and(|log| len >= log.indirect_write_min(for_throughput));
        if pays { file.block_size.get() } else { 0 }
    }

    pub(crate) fn log_write(&self, file: &Znode, offset: u64, data: &IoBuf, tx: &Tx) {
        let make = || Intent::Write {
            object: file.object_id(),
            offset,
            data: data.clone(),
            block: self.indirect_block(file, data.len()),
        };
        self.log_content(file, make, tx);
    }

    /// Bytes were freed, within the file's size.
    pub(crate) fn log_punch(&self, file: &Znode, offset: u64, len: u64, tx: &Tx) {
        let make = || {
            Body::default()
                .words([file.object, offset, len])
                .record(kind::TRUNCATE)
        };
        self.log_content(file, make, tx);
    }

    /// Attributes were set: those that differ, and those asked for.
    pub(crate) fn log_setattr(&self, file: &Znode, old: &Attrs, set: &SetAttr, tx: &Tx) {
        let new = file.attrs.borrow();
        let mut changed = 0;
        let mut note = |bit: u64, is: bool| {
            if is {
                changed |= bit;
            }
        };
        note(mask::MODE, set.mode.is_some() || new.mode != old.mode);
        note(mask::UID, set.uid.is_some());
        note(mask::GID, set.gid.is_some());
        note(mask::SIZE, set.size.is_some());
        note(mask::ATIME, set.atime.is_some());
        note(mask::MTIME, set.mtime.is_some() || set.size.is_some());
        let mut asked = if set.flags.is_some() {
            optional_changes(old.flags, &new)
        } else {
            0
        };
        if set.crtime.is_some() {
            asked |= OPTIONAL_CRTIME;
        }
        if set.project.is_some() {
            asked |= OPTIONAL_PROJECT;
        }
        let make = || setattr_record(file.object, changed, asked, &new);
        if (set.flags.is_some() || set.project.is_some()) && !file.unlinked.get() {
            // They decide which changes of names are allowed, so the two must not change places.
            self.log_with_names(file);
            self.log(ItxKind::Sync, make, tx);
        } else {
            self.log_content(file, make, tx);
        }
    }

    /// A file was given a stored ACL. OpenZFS: `lr_acl_t`, and of each entry who, rights, flags and kind.
    pub(crate) fn log_list(&self, file: &Znode, aces: &[Ace], tx: &Tx) {
        const ENTRY: u64 = 12;
        let flags = file.flags() & crate::acl::list::WIDE;
        let make = || {
            let count = aces.len() as u64;
            let mut body = Body::default().words([file.object, count, 0, 0, count * ENTRY, flags]);
            for ace in aces {
                let who = u32::try_from(ace.fuid).unwrap_or(u32::MAX);
                body = body
                    .bytes(&who.to_le_bytes())
                    .bytes(&ace.mask.to_le_bytes())
                    .bytes(&ace.flags.to_le_bytes())
                    .bytes(&ace.kind.to_le_bytes());
            }
            body.record(kind::ACL)
        };
        self.log_content(file, make, tx);
    }

    /// The record of a mode that followed from something else.
    pub(crate) fn mode_record(file: &Znode, attrs: &Attrs) -> Intent {
        setattr_record(file.object, mask::MODE, 0, attrs)
    }

    /// Writing took the set-id bits away.
    pub(crate) fn log_mode(&self, file: &Znode, tx: &Tx) {
        let attrs = file.attrs.borrow();
        let make = || setattr_record(file.object, mask::MODE, 0, &attrs);
        self.log_content(file, make, tx);
    }

    fn log_content(&self, file: &Znode, make: impl FnOnce() -> Intent, tx: &Tx) {
        if !file.unlinked.get() && !file.dead.get() {
            self.log(ItxKind::Async(file.object_id()), make, tx);
        }
    }

    /// Makes durable all changes of names, and those of one file's content and attributes, of which `last` is the newest.
    pub(crate) async fn commit_log(&self, object: ObjectId, last: Txg) -> FsResult<()> {
        match &self.0.log {
            Some(log) => Ok(log.commit(Some(object)).await?),
            None => self.0.backing.wait_synced(last).await,
        }
    }
}

/// OpenZFS: `lr_create_t`, without what follows.
fn create_body(dir: u64, file: &Znode, attrs: &Attrs) -> Body {
    Body::default().words([
        dir,
        new_object(file),
        attrs.mode,
        attrs.uid,
        attrs.gid,
        attrs.generation,
        attrs.crtime[0],
        attrs.crtime[1],
        attrs.rdev.unwrap_or(0),
    ])
}

/// The record of a hidden directory of extended attributes.
pub(crate) fn hidden_dir_record(owner: u64, dir: &Znode) -> Intent {
    create_body(owner, dir, &dir.attrs.borrow())
        .text(b"")
        .record(kind::MKXATTR)
}

/// The records of an extended attribute made as a file, with its whole value.
pub(crate) fn hidden_file_records(
    dir: u64,
    name: &[u8],
    file: &Znode,
    value: &[u8],
) -> Vec<Intent> {
    let made = create_body(dir, file, &file.attrs.borrow())
        .text(name)
        .record(kind::CREATE);
    let mut records = vec![made];
    if !value.is_empty() {
        records.push(Intent::Write {
            object: ObjectId(file.object),
            offset: 0,
            data: IoBuf::copy_from(value),
            block: 0,
        });
    }
    records
}

/// The record of a name of a file that was taken away.
pub(crate) fn remove_record(dir: u64, name: &[u8]) -> Intent {
    Body::default().words([dir]).text(name).record(kind::REMOVE)
}

/// Returns the optional attributes in which `new` differs from old flags.
fn optional_changes(old: u64, new: &Attrs) -> u32 {
    let changed = old ^ new.flags;
    OPTIONAL_FLAGS
        .iter()
        .filter(|(flag, _)| changed & flag != 0)
        .fold(0, |bits, (_, bit)| bits | bit)
}

/// OpenZFS: `lr_setattr_t`.
fn setattr_record(object: u64, changed: u64, asked: u32, new: &Attrs) -> Intent {
    let optional = if asked == 0 { 0 } else { mask::OPTIONAL };
    let body = Body::default().words([
        object,
        changed | optional,
        new.mode,
        new.uid,
        new.gid,
        new.size,
        new.atime[0],
        new.atime[1],
        new.mtime[0],
        new.mtime[1],
    ]);
    let body = if asked == 0 {
        body
    } else {
        body.optional(asked, new)
    };
    body.record(kind::SETATTR)
}
