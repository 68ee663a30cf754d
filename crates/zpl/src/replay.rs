//! Replay: the records of an intent log take effect again, as new changes.
//!
//! Each record and the note that it is done are one transaction, so a crash in the middle goes on where it stopped.
//! Records come from the disk: their numbers and names are taken apart with care, and one that cannot take effect ends
//! the replay. The file system is not served then, and the log stays.
//! Facts: docs/format/10-zil-arc.md sections 4 and 5; OpenZFS: module/zfs/zfs_replay.c (what each record does).

use std::rc::Rc;

use dmu::Cloneable;
use dmu::zap::{self, ZapValue};
use ondisk::ObjectId;
use ondisk::acl::{Ace, ace_type};
use ondisk::bytes::index;
use ondisk::nvlist::NvValue;
use ondisk::zil_record::{
    AclRecord, CloneRange, CreateRecord, LinkRecord, NewObject, OptionalAttributes, RangeRecord,
    RecordAcl, RemoveRecord, RenameRecord, SetSaXattrRecord, SetattrRecord, object_of,
    optional_attribute, record_kind as kind, setattr_mask as mask,
};
use runtime::sync::WHOLE_RANGE;
use zil::{Record, ReplayStream};

use crate::backing::{META_BYTES, Weight};
use crate::fs::{Fs, ReplayedIdentity};
use crate::log::OPTIONAL_FLAGS;
use crate::make::NewFile;
use crate::names::OBJECT_MASK;
use crate::sa::Attrs;
use crate::sa::attrs::timestamp;
use crate::setattr::set_trivial_acl;
use crate::znode::{XATTR, Znode, device_number};
use crate::{
    Cred, DeviceNumber, FileType, FlagsChange, FsError, FsResult, SetAttr, SetTime, flags,
};

const DAMAGED: FsError = FsError::Corrupt("record of the intent log");

/// A name in a directory.
fn entry_name(name: &[u8]) -> FsResult<&[u8]> {
    match name {
        b"" | b"." | b".." => Err(DAMAGED),
        name => Ok(name),
    }
}

/// Flags of a file that had `old`.
fn flags_after(optional: &OptionalAttributes, old: u64) -> u64 {
    let mut flags = old & flags::SETTABLE;
    for (flag, bit) in OPTIONAL_FLAGS {
        if optional.asked & bit != 0 {
            flags &= !flag;
            if optional.on & u64::from(bit) != 0 {
                flags |= flag;
            }
        }
    }
    flags
}

/// The entries of a list whose numbers are of this machine. Ids of other domains are numbers of a table that only the writer's
/// memory had; entries for single kinds of objects have another layout, and nothing here makes them.
fn own_aces(acl: &RecordAcl) -> FsResult<&[Ace]> {
    let is_known = |ace: &Ace| ace.kind <= ace_type::ALARM;
    if acl.domains != 0 || acl.fuids != 0 || !acl.aces.iter().all(is_known) {
        return Err(FsError::NotSupported);
    }
    Ok(&acl.aces)
}

impl Fs {
    /// Replays the log an earlier session left, if there is one. On return all of it is on disk.
    ///
    /// # Errors
    /// [`FsError::NotSupported`] and [`FsError::Corrupt`] for records that cannot take effect here; those of writing. The
    /// log is kept then.
    pub(crate) async fn replay_log(&self) -> FsResult<()> {
        let Some(log) = self.0.log.clone() else {
            return Ok(());
        };
        if !log.needs_replay() || self.os().is_read_only() {
            return Ok(());
        }
        let mut stream = log.replay();
        let result = self.replay_records(&mut stream).await;
        self.0.replaying.set(None);
        self.0.given.set(None);
        // Lists were set without being looked at.
        self.0.acl_epoch.set(self.0.acl_epoch.get() + 1);
        result?;
        Ok(stream.finish().await?)
    }

    async fn replay_records(&self, stream: &mut ReplayStream) -> FsResult<()> {
        while let Some(record) = stream.next().await? {
            self.0.replaying.set(Some(record.seq));
            self.0.given.set(None);
            if record.kind == kind::CLONE_RANGE {
                self.replay_clones(&record, stream).await?;
                continue;
            }
            if self.apply(&record).await.is_err() {
                // An object's number may be free only when its removal, also replayed, has synced.
                self.0
                    .backing
                    .wait_synced(self.0.backing.open_txg())
                    .await?;
                self.0.given.set(None);
                self.apply(&record).await?;
            }
        }
        Ok(())
    }

    async fn apply(&self, record: &Record) -> FsResult<()> {
        let body = record.body.as_slice();
        let root = Cred::root();
        match record.kind {
            kind::CREATE
            | kind::MKDIR
            | kind::SYMLINK
            | kind::CREATE_ATTR
            | kind::MKDIR_ATTR
            | kind::CREATE_ACL
            | kind::CREATE_ACL_ATTR
            | kind::MKDIR_ACL
            | kind::MKDIR_ACL_ATTR
            | kind::MKXATTR => {
                let create = CreateRecord::decode(record.kind, body).ok_or(DAMAGED)?;
                self.replay_create(record.kind, &create).await
            }
            kind::REMOVE | kind::RMDIR => {
                let removed = RemoveRecord::decode(body).ok_or(DAMAGED)?;
                let name = entry_name(removed.name)?;
                let dir = self.by_number(removed.dir).await?;
                if Self::is_in_xattr_tree(&dir) {
                    return self.replay_hidden_remove(&dir, name).await;
                }
                if record.kind == kind::RMDIR {
                    self.rmdir(dir.id(), name, &root).await.map(drop)
                } else {
                    self.remove(dir.id(), name, &root).await.map(drop)
                }
            }
            kind::LINK => {
                let link = LinkRecord::decode(body).ok_or(DAMAGED)?;
                let name = entry_name(link.name)?;
                let dir = self.by_number(link.dir).await?;
                let file = self.by_number(link.object).await?;
                self.link(file.id(), dir.id(), name, &root).await.map(drop)
            }
            kind::RENAME | kind::RENAME_EXCHANGE | kind::RENAME_WHITEOUT => {
                let rename = RenameRecord::decode(record.kind, body).ok_or(DAMAGED)?;
                self.replay_rename(record, &rename).await
            }
            _ => {
                let object = object_of(body).ok_or(DAMAGED)?;
                match self.by_number(object & OBJECT_MASK).await {
                    Ok(file) => self.apply_to_file(record, &file).await,
                    // Its removal was logged before, or is on disk: changes of content may be logged late.
                    Err(FsError::Stale) => Ok(()),
                    Err(error) => Err(error),
                }
            }
        }
    }

    async fn replay_rename(&self, record: &Record, rename: &RenameRecord<'_>) -> FsResult<()> {
        let root = Cred::root();
        let from_name = entry_name(rename.from_name)?;
        let to_name = entry_name(rename.to_name)?;
        let from = self.by_number(rename.from).await?;
        let to = self.by_number(rename.to).await?;
        if let Some(whiteout) = rename.whiteout {
            let (old, new) = ((&from, from_name), (&to, to_name));
            return self.replay_whiteout(record.seq, whiteout, old, new).await;
        }
        if record.kind == kind::RENAME {
            let renamed = self.rename(from.id(), from_name, to.id(), to_name, &root);
            renamed.await.map(drop)
        } else {
            let exchanged = self.exchange(from.id(), from_name, to.id(), to_name, &root);
            exchanged.await.map(drop)
        }
    }

    /// Replays what changes one file's content and attributes.
    async fn apply_to_file(&self, record: &Record, file: &Rc<Znode>) -> FsResult<()> {
        let body = record.body.as_slice();
        let root = Cred::root();
        match record.kind {
            kind::WRITE => {
                let write = record.write().ok_or(DAMAGED)?;
                if write.data.is_empty() {
                    return Ok(());
                }
                let len = write.data.len() as u64;
                let end = write.offset.checked_add(len).ok_or(DAMAGED)?;
                if end > crate::fs::SIZE_MAX || file.file_type() != FileType::Regular {
                    return Err(DAMAGED);
                }
                let size = write.end.unwrap_or(end);
                self.write_chunk(file, write.offset, write.data, size, false, &root)
                    .await
                    .map(drop)
            }
            kind::WRITE2 => {
                let range = RangeRecord::decode(body).ok_or(DAMAGED)?;
                let end = range.offset.checked_add(range.length).ok_or(DAMAGED)?;
                if end > file.size() {
                    self.replay_size(file, end).await?;
                }
                Ok(())
            }
            kind::TRUNCATE => {
                let RangeRecord { offset, length, .. } =
                    RangeRecord::decode(body).ok_or(DAMAGED)?;
                let end = offset.checked_add(length).ok_or(DAMAGED)?;
                // OpenZFS: module/os/linux/zfs/zfs_znode_os.c, zfs_freesp.
                if length == 0 && offset <= file.size() {
                    return self.replay_size(file, offset).await;
                }
                if offset < file.size() {
                    self.punch(file.id(), offset, length, &root).await?;
                }
                if end > file.size() {
                    self.replay_size(file, end).await?;
                }
                Ok(())
            }
            kind::SETATTR => {
                let set = SetattrRecord::decode(body).ok_or(DAMAGED)?;
                self.replay_setattr(&set, file).await
            }
            kind::ACL_V0 | kind::ACL => {
                let given = AclRecord::decode(record.kind, body).ok_or(DAMAGED)?;
                self.replay_acl(file, own_aces(&given.acl)?).await
            }
            kind::SETSAXATTR => {
                let entry = SetSaXattrRecord::decode(body).ok_or(DAMAGED)?;
                self.replay_list_entry(&entry, file).await
            }
            _ => Err(FsError::NotSupported),
        }
    }

    async fn replay_size(&self, file: &Znode, size: u64) -> FsResult<()> {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        let done = self.setattr(file.id(), &set, None, &Cred::root()).await;
        done.map(drop)
    }

    /// Finds a file by its number alone.
    async fn by_number(&self, object: u64) -> FsResult<Rc<Znode>> {
        let znode = match self.0.znodes.find(object) {
            Some(znode) => znode,
            None => self.load(object, false).await?,
        };
        if znode.dead.get() || znode.unlinked.get() {
            return Err(FsError::Stale);
        }
        Ok(znode)
    }

    /// Sees to it that an object number is free: a file without a name may still have it.
    async fn make_room(&self, object: ObjectId) -> FsResult<()> {
        let nameless = match self.load(object.0, true).await {
            Ok(znode) => znode.attrs.borrow().links == 0,
            Err(_) => false,
        };
        if !nameless {
            return Ok(());
        }
        match self.reap(object.0).await {
            Err(FsError::Stale) | Ok(()) => {
                let open = self.0.backing.open_txg();
                self.0.backing.wait_synced(open).await
            }
            Err(error) => Err(error),
        }
    }

    async fn replay_create(&self, record: u64, create: &CreateRecord<'_>) -> FsResult<()> {
        let CreateRecord {
            file, name, target, ..
        } = *create;
        // Ids of other domains are numbers of a table that only the writer's memory had.
        if file.uid >> 32 != 0 || file.gid >> 32 != 0 {
            return Err(FsError::NotSupported);
        }
        let acl = match &create.acl {
            Some(acl) => Some(own_aces(acl)?).filter(|aces| !aces.is_empty()),
            None => None,
        };
        let file_type = FileType::of_mode(file.mode).ok_or(DAMAGED)?;
        let dir = self.by_number(create.dir).await?;
        let given = ReplayedIdentity {
            object: ObjectId(file.object & OBJECT_MASK),
            generation: file.generation,
            slots: u8::try_from(file.slots).unwrap_or(u8::MAX),
        };
        if given.slots > 32 || (name.is_empty() && record != kind::MKXATTR) {
            return Err(DAMAGED);
        }
        self.make_room(given.object).await?;
        let kind = NewFile {
            file_type,
            rdev: if file.rdev == 0 {
                DeviceNumber::default()
            } else {
                device_number(file.rdev)
            },
            target,
        };
        let in_hidden = Self::is_in_xattr_tree(&dir) || record == kind::MKXATTR;
        let set = SetAttr::default();
        let mut attrs = self.new_attrs(&dir.attrs.borrow(), &kind, &set, &Cred::root())?;
        attrs.mode = file.mode & 0xffff;
        attrs.uid = file.uid;
        attrs.gid = file.gid;
        attrs.parent = dir.object;
        attrs.crtime = file.crtime;
        (attrs.atime, attrs.mtime, attrs.ctime) = (file.crtime, file.crtime, file.crtime);
        if in_hidden {
            attrs.flags |= XATTR;
        }
        match acl {
            Some(acl) => set_acl(&mut attrs, acl),
            None if in_hidden => set_trivial_acl(&mut attrs),
            // As when it was made.
            None => self.give_first_list(&dir.attrs.borrow(), &mut attrs)?,
        }
        if let Some(optional) = &create.optional {
            attrs.flags = (attrs.flags & !flags::SETTABLE) | flags_after(optional, attrs.flags);
            if optional.asked & optional_attribute::CRTIME != 0 {
                attrs.crtime = optional.crtime;
            }
        }
        attrs.check_lengths()?;
        self.0.given.set(Some(given));
        if record == kind::MKXATTR {
            return self.replay_hidden_dir(&dir, attrs, given.slots).await;
        }
        let _lock = dir.exclusive().await?;
        self.insert(&dir, name, attrs, &set, &[]).await.map(drop)
    }

    /// A rename that left a whiteout, a character device 0:0, under the old name.
    async fn replay_whiteout(
        &self,
        seq: u64,
        whiteout: NewObject,
        (from, from_name): (&Rc<Znode>, &[u8]),
        (to, to_name): (&Rc<Znode>, &[u8]),
    ) -> FsResult<()> {
        if self.find(from, from_name).await?.is_some() {
            // Two transactions: until the second, only what was before this record counts as done. A replay that begins again
            // between them finds no old name.
            self.0.replaying.set(Some(seq - 1));
            let root = Cred::root();
            let moved = self.rename(from.id(), from_name, to.id(), to_name, &root);
            let moved = moved.await.map(drop);
            self.0.replaying.set(Some(seq));
            moved?;
        }
        let create = CreateRecord {
            dir: from.object,
            file: NewObject {
                rdev: 0,
                ..whiteout
            },
            acl: None,
            optional: None,
            name: from_name,
            target: b"",
        };
        self.replay_create(kind::CREATE, &create).await
    }

    /// Blocks cloned from somewhere: they are cloned again, or copied into a file whose blocks have another size. What they were
    /// cloned from is held until the log is given up.
    async fn replay_clones(&self, record: &Record, stream: &ReplayStream) -> FsResult<()> {
        let range = CloneRange::decode(&record.body).ok_or(DAMAGED)?;
        let file = match self.by_number(range.object & OBJECT_MASK).await {
            Ok(file) => file,
            // Its removal is on disk.
            Err(FsError::Stale) => return Ok(()),
            Err(error) => return Err(error),
        };
        let end = range.offset + range.length;
        if end > crate::fs::SIZE_MAX || file.file_type() != FileType::Regular {
            return Err(DAMAGED);
        }
        let root = Cred::root();
        if let Some(grown) = self.can_clone_again(&file, &range) {
            let _range = file.ranges.exclusive(WHOLE_RANGE).await;
            self.put_clones(&file, range, grown, &root).await?;
            return Ok(());
        }
        let last = range.blocks.len().saturating_sub(1);
        let mut at = range.offset;
        for block in 0..range.blocks.len() {
            let data = stream.cloned_block(&range, block).await?;
            let len = (end - at).min(data.len() as u64);
            let data = data.slice(0..index(len));
            // One transaction for each block: the record is done with the last one, and can be done again before.
            let done = record.seq - u64::from(block != last);
            self.0.replaying.set(Some(done));
            self.write_chunk(&file, at, data, at + len, false, &root)
                .await?;
            at += len;
        }
        Ok(())
    }

    /// Whether the blocks of a record can be cloned into a file, and the size that its only block must get for that.
    fn can_clone_again(&self, file: &Znode, range: &CloneRange) -> Option<Option<u32>> {
        let size = u32::try_from(range.block_size).ok()?;
        let ours = file.block_size.get();
        let grows = size != ours;
        let is_aligned = range.offset.is_multiple_of(range.block_size);
        let may_grow = size > ours && size.is_multiple_of(512) && file.size() <= u64::from(ours);
        let fits = is_aligned && (!grows || may_grow) && !range.blocks.is_empty();
        let one_block = range.offset == 0 && range.blocks.len() == 1;
        let allowed = self.0.backing.allows_cloning()
            && (size.is_power_of_two() || one_block)
            && range
                .blocks
                .iter()
                .all(|bp| Cloneable::allows(bp, range.block_size));
        (fits && allowed).then(|| grows.then_some(size))
    }

    async fn replay_hidden_dir(&self, owner: &Rc<Znode>, dir: Attrs, slots: u8) -> FsResult<()> {
        let _lock = owner.exclusive().await?;
        let mut attrs = owner.attrs.borrow().clone();
        if attrs.xattr.is_some() {
            return Err(FsError::Exists);
        }
        attrs.xattr = Some(0);
        let plan = self.plan_for(owner, &attrs).await?;
        let dir_plan = self.plan(&dir, slots).await?;
        let tx = self.begin(Weight::Bytes(2 * META_BYTES)).await?;
        let dir = self.allocate(dir, &dir_plan, slots, &tx).await?;
        attrs.xattr = Some(dir.object);
        self.store(owner, attrs, &plan, &tx).await?;
        self.note_replayed(&tx);
        Ok(())
    }

    async fn replay_hidden_remove(&self, dir: &Rc<Znode>, name: &[u8]) -> FsResult<()> {
        let _lock = dir.exclusive().await?;
        let found = zap::lookup(self.os(), dir.object_id(), name).await?;
        let Some(ZapValue::U64(words)) = found else {
            return Err(FsError::NotFound);
        };
        let file = ObjectId(words.first().copied().unwrap_or(0) & OBJECT_MASK);
        let tx = self.begin(Weight::Frees).await?;
        zap::remove(self.os(), dir.object_id(), name, &tx).await?;
        self.0.znodes.remove(file.0);
        self.os().free_object(file, &tx).await?;
        self.store_hidden_dir(dir, -1, &tx).await?;
        self.note_replayed(&tx);
        Ok(())
    }

    async fn replay_setattr(&self, record: &SetattrRecord, file: &Rc<Znode>) -> FsResult<()> {
        let has = |bit: u64| record.mask & bit != 0;
        let id = |value: u64| u32::try_from(value).map_err(|_| FsError::NotSupported);
        let mut set = SetAttr::default();
        if has(mask::MODE) {
            set.mode = Some(id(record.mode & 0o7777)?);
        }
        if has(mask::UID) {
            set.uid = Some(id(record.uid)?);
        }
        if has(mask::GID) {
            set.gid = Some(id(record.gid)?);
        }
        if has(mask::SIZE) && file.file_type() == FileType::Regular {
            set.size = Some(record.size);
        }
        if has(mask::ATIME) {
            set.atime = Some(SetTime::Client(timestamp(record.atime)));
        }
        // OpenZFS: module/os/linux/zfs/zfs_vnops_os.c, zfs_setattr: a new size brings the time with it.
        if has(mask::MTIME) || set.size.is_some() {
            set.mtime = Some(SetTime::Client(timestamp(record.mtime)));
        }
        if let Some(optional) = &record.optional {
            let old = file.flags();
            let flags = flags_after(optional, old);
            if flags != old & flags::SETTABLE {
                set.flags = Some(FlagsChange::among(flags::SETTABLE, flags));
            }
            if optional.asked & optional_attribute::CRTIME != 0 {
                set.crtime = Some(timestamp(optional.crtime));
            }
            if optional.asked & optional_attribute::PROJECT != 0 {
                set.project = Some(id(optional.project)?);
            }
        }
        self.setattr(file.id(), &set, None, &Cred::root())
            .await
            .map(drop)
    }

    async fn replay_acl(&self, file: &Rc<Znode>, aces: &[Ace]) -> FsResult<()> {
        let _lock = file.exclusive().await?;
        let mut attrs = file.attrs.borrow().clone();
        set_acl(&mut attrs, aces);
        attrs.ctime = self.now();
        attrs.check_lengths()?;
        let plan = self.plan_for(file, &attrs).await?;
        let tx = self.begin(Weight::Bytes(META_BYTES)).await?;
        self.store(file, attrs, &plan, &tx).await?;
        self.note_replayed(&tx);
        Ok(())
    }

    async fn replay_list_entry(
        &self,
        entry: &SetSaXattrRecord<'_>,
        file: &Rc<Znode>,
    ) -> FsResult<()> {
        let (name, value) = (entry_name(entry.name)?, entry.value);
        let _lock = file.exclusive().await?;
        let mut attrs = file.attrs.borrow().clone();
        let mut list = attrs.xattr_list()?;
        if value.is_empty() {
            list.remove(name);
        } else {
            list.insert(name, NvValue::ByteArray(value.to_vec()));
        }
        attrs.dxattr = (!list.is_empty()).then(|| Rc::from(list.encode_xdr()));
        attrs.ctime = self.now();
        attrs.check_lengths()?;
        let plan = self.plan_for(file, &attrs).await?;
        let tx = self.begin(Weight::Bytes(2 * META_BYTES)).await?;
        self.store(file, attrs, &plan, &tx).await?;
        file.acl_seen.set(0);
        self.note_replayed(&tx);
        Ok(())
    }
}

/// Gives a file a list.
fn set_acl(attrs: &mut Attrs, aces: &[Ace]) {
    let wide = attrs.flags;
    crate::acl::list::give(attrs, aces, wide);
}
