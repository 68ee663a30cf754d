//! What changes leave in the intent log: one record each, in the layout OpenZFS reads.
//!
//! Called within the transaction of the change. While a log is replayed nothing is appended; the record under replay is
//! noted as done in the same transaction instead.
//! Facts: docs/format/10-zil-arc.md section 4; OpenZFS: module/zfs/zfs_log.c (which record for which change).

use dmu::Tx;
use ondisk::acl::Ace;
use ondisk::zil_record::{
    AclRecord, CloneRange, CreateRecord, LinkRecord, NewObject, OptionalAttributes, RangeRecord,
    RecordAcl, RemoveRecord, RenameRecord, SetSaXattrRecord, SetattrRecord, optional_attribute,
    record_kind as kind, setattr_mask as mask,
};
use ondisk::{ObjectId, Txg};
use runtime::IoBuf;
use zil::{Intent, ItxKind};

use crate::fs::Fs;
use crate::make::Listed;
use crate::sa::Attrs;
use crate::znode::Znode;
use crate::{FileType, FsResult, SetAttr, flags};

/// Flags of files and their bits among the optional attributes.
pub(crate) const OPTIONAL_FLAGS: [(u64, u32); 15] = [
    (flags::ARCHIVE, optional_attribute::ARCHIVE),
    (flags::SYSTEM, optional_attribute::SYSTEM),
    (flags::READONLY, optional_attribute::READONLY),
    (flags::HIDDEN, optional_attribute::HIDDEN),
    (flags::NOUNLINK, optional_attribute::NOUNLINK),
    (flags::IMMUTABLE, optional_attribute::IMMUTABLE),
    (flags::APPENDONLY, optional_attribute::APPENDONLY),
    (flags::NODUMP, optional_attribute::NODUMP),
    (flags::OPAQUE, optional_attribute::OPAQUE),
    (flags::AV_QUARANTINED, optional_attribute::AV_QUARANTINED),
    (flags::AV_MODIFIED, optional_attribute::AV_MODIFIED),
    (flags::REPARSE, optional_attribute::REPARSE),
    (flags::OFFLINE, optional_attribute::OFFLINE),
    (flags::SPARSE, optional_attribute::SPARSE),
    (flags::PROJINHERIT, optional_attribute::PROJINHERIT),
];

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
            let target = attrs.symlink.as_deref().unwrap_or_default();
            let mut records = vec![create_record(kind, dir.object, file, name, target, &attrs)];
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
        let entry = SetSaXattrRecord {
            object: file.object,
            name,
            value,
        };
        record(kind::SETSAXATTR, entry.encode())
    }

    /// A name was taken away.
    pub(crate) fn log_remove(&self, dir: u64, name: &[u8], is_dir: bool, tx: &Tx) {
        let kind = if is_dir { kind::RMDIR } else { kind::REMOVE };
        let make = || record(kind, RemoveRecord { dir, name }.encode());
        self.log(ItxKind::Sync, make, tx);
    }

    /// A file has lost its last name: nothing written to it matters any more, and its number may come back.
    pub(crate) fn log_gone(&self, file: &Znode) {
        if let Some(log) = &self.0.log {
            log.remove_async(ObjectId(file.object));
        }
    }

    pub(crate) fn log_link(&self, dir: &Znode, name: &[u8], file: &Znode, tx: &Tx) {
        let link = LinkRecord {
            dir: dir.object,
            object: file.object,
            name,
        };
        let make = || record(kind::LINK, link.encode());
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
        let make = || rename_record(kind::RENAME, from, from_name, to, to_name);
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
        let make = || rename_record(kind::RENAME_EXCHANGE, from, from_name, to, to_name);
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
    pub(crate) fn log_punch(&self, file: &Znode, offset: u64, length: u64, tx: &Tx) {
        let freed = RangeRecord {
            object: file.object,
            offset,
            length,
        };
        let make = || record(kind::TRUNCATE, freed.encode());
        self.log_content(file, make, tx);
    }

    /// Blocks were cloned into the file, no more than one record holds.
    pub(crate) fn log_clones(&self, cloned: CloneRange, file: &Znode, tx: &Tx) {
        assert!(
            cloned.blocks.len() <= CloneRange::BLOCKS_MAX,
            "a record holds so many blocks"
        );
        let make = || record(kind::CLONE_RANGE, cloned.encode());
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
            asked |= optional_attribute::CRTIME;
        }
        if set.project.is_some() {
            asked |= optional_attribute::PROJECT;
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

    /// A file was given a stored ACL.
    pub(crate) fn log_list(&self, file: &Znode, aces: &[Ace], tx: &Tx) {
        let make = || {
            let given = AclRecord {
                object: file.object,
                acl: RecordAcl {
                    aces: aces.to_vec(),
                    flags: file.flags() & crate::acl::list::WIDE,
                    ..RecordAcl::default()
                },
            };
            record(kind::ACL, given.encode())
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

fn record(kind: u64, body: Vec<u8>) -> Intent {
    Intent::Record { kind, body }
}

/// The record of a new file, without a list and optional attributes.
fn create_record(
    kind: u64,
    dir: u64,
    file: &Znode,
    name: &[u8],
    target: &[u8],
    attrs: &Attrs,
) -> Intent {
    let create = CreateRecord {
        dir,
        file: NewObject {
            object: file.object,
            slots: u16::from(file.slots),
            mode: attrs.mode,
            uid: attrs.uid,
            gid: attrs.gid,
            generation: attrs.generation,
            crtime: attrs.crtime,
            rdev: attrs.rdev.unwrap_or(0),
        },
        acl: None,
        optional: None,
        name,
        target,
    };
    record(kind, create.encode(kind))
}

fn rename_record(kind: u64, from: &Znode, from_name: &[u8], to: &Znode, to_name: &[u8]) -> Intent {
    let rename = RenameRecord {
        from: from.object,
        to: to.object,
        whiteout: None,
        from_name,
        to_name,
    };
    record(kind, rename.encode())
}

/// The record of a hidden directory of extended attributes.
pub(crate) fn hidden_dir_record(owner: u64, dir: &Znode) -> Intent {
    create_record(kind::MKXATTR, owner, dir, b"", b"", &dir.attrs.borrow())
}

/// The records of an extended attribute made as a file, with its whole value.
pub(crate) fn hidden_file_records(
    dir: u64,
    name: &[u8],
    file: &Znode,
    value: &[u8],
) -> Vec<Intent> {
    let made = create_record(kind::CREATE, dir, file, name, b"", &file.attrs.borrow());
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
    record(kind::REMOVE, RemoveRecord { dir, name }.encode())
}

/// Returns the optional attributes in which `new` differs from old flags.
fn optional_changes(old: u64, new: &Attrs) -> u32 {
    let changed = old ^ new.flags;
    OPTIONAL_FLAGS
        .iter()
        .filter(|(flag, _)| changed & flag != 0)
        .fold(0, |bits, (_, bit)| bits | bit)
}

fn setattr_record(object: u64, changed: u64, asked: u32, new: &Attrs) -> Intent {
    let set = SetattrRecord {
        object,
        mask: changed,
        mode: new.mode,
        uid: new.uid,
        gid: new.gid,
        size: new.size,
        atime: new.atime,
        mtime: new.mtime,
        optional: (asked != 0).then(|| optional_attributes(asked, new)),
    };
    record(kind::SETATTR, set.encode())
}

fn optional_attributes(asked: u32, new: &Attrs) -> OptionalAttributes {
    let on = OPTIONAL_FLAGS
        .iter()
        .filter(|(flag, bit)| asked & bit != 0 && new.flags & flag != 0)
        .fold(0, |bits, (_, bit)| bits | u64::from(*bit));
    let project = if asked & optional_attribute::PROJECT != 0 {
        new.project.unwrap_or(0)
    } else {
        0
    };
    OptionalAttributes {
        asked,
        on,
        crtime: new.crtime,
        project,
    }
}
