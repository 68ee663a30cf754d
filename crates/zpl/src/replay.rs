//! Replay: the records of an intent log take effect again, as new changes.
//!
//! Each record and the note that it is done are one transaction, so a crash in the middle goes on where it stopped.
//! Records come from the disk: their numbers and names are taken apart with care, and one that cannot take effect ends
//! the replay. The file system is not served then, and the log stays.
//! Facts: docs/format/10-zil-arc.md sections 4 and 5; OpenZFS: module/zfs/zfs_replay.c (what each record does).

use std::rc::Rc;

use dmu::zap::{self, ZapValue};
use ondisk::ObjectId;
use ondisk::bytes::{index, u32_at, u64_at};
use ondisk::nvlist::NvValue;
use ondisk::zil::{CloneRange, record_kind as kind};
use zil::{Record, ReplayStream};

use crate::backing::{META_BYTES, Weight};
use crate::fs::{Fs, ReplayedIdentity};
use crate::log::{OPTIONAL_CRTIME, OPTIONAL_FLAGS, OPTIONAL_PROJECT, mask};
use crate::make::NewFile;
use crate::names::OBJECT_MASK;
use crate::sa::Attrs;
use crate::sa::attrs::timestamp;
use crate::setattr::set_trivial_acl;
use crate::znode::{XATTR, Znode, device_number};
use crate::{Cred, DeviceNumber, FileType, FsError, FsResult, SetAttr, SetTime, flags};

const DAMAGED: FsError = FsError::Corrupt("record of the intent log");

/// Takes a record's body apart, front to back.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn words<const N: usize>(&mut self) -> FsResult<[u64; N]> {
        let bytes = self.take(8 * N)?;
        Ok(std::array::from_fn(|i| u64_at(bytes, 8 * i)))
    }

    fn take(&mut self, len: usize) -> FsResult<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(len).ok_or(DAMAGED)?;
        self.0 = rest;
        Ok(front)
    }

    /// Text up to its NUL.
    fn text(&mut self) -> FsResult<&'a [u8]> {
        let len = self.0.iter().position(|&b| b == 0).ok_or(DAMAGED)?;
        let text = self.take(len)?;
        self.take(1)?;
        Ok(text)
    }

    fn name(&mut self) -> FsResult<&'a [u8]> {
        match self.text()? {
            b"" | b"." | b".." => Err(DAMAGED),
            name => Ok(name),
        }
    }

    fn optional(&mut self) -> FsResult<Optional> {
        let count = u32_at(self.take(4)?, 0);
        if count == 0 || count > 64 {
            return Err(DAMAGED);
        }
        let asked = u32_at(self.take(4 * index(u64::from(count)))?, 0);
        let [on, seconds, nanoseconds, project] = self.words()?;
        self.take(24)?;
        Ok(Optional {
            asked,
            on,
            crtime: [seconds, nanoseconds],
            project,
        })
    }
}

/// Optional attributes of a record.
struct Optional {
    asked: u32,
    on: u64,
    crtime: [u64; 2],
    project: u64,
}

impl Optional {
    fn flags(&self, old: u64) -> u64 {
        let mut flags = old & flags::SETTABLE;
        for (flag, bit) in OPTIONAL_FLAGS {
            if self.asked & bit != 0 {
                flags &= !flag;
                if self.on & u64::from(bit) != 0 {
                    flags |= flag;
                }
            }
        }
        flags
    }

    fn apply(&self, attrs: &mut Attrs) {
        attrs.flags = (attrs.flags & !flags::SETTABLE) | self.flags(attrs.flags);
        if self.asked & OPTIONAL_CRTIME != 0 {
            attrs.crtime = self.crtime;
        }
    }
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
        if self.0.master.sa.is_none() {
            return Err(FsError::NotSupported);
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
        let mut body = Reader(&record.body);
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
            | kind::MKXATTR => self.replay_create(record.kind, body).await,
            kind::REMOVE | kind::RMDIR => {
                let [dir] = body.words()?;
                let name = body.name()?;
                let dir = self.by_number(dir).await?;
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
                let [dir, file] = body.words()?;
                let name = body.name()?;
                let (dir, file) = (self.by_number(dir).await?, self.by_number(file).await?);
                self.link(file.id(), dir.id(), name, &root).await.map(drop)
            }
            kind::RENAME => {
                let [from, to] = body.words()?;
                let (from_name, to_name) = (body.name()?, body.name()?);
                let (from, to) = (self.by_number(from).await?, self.by_number(to).await?);
                self.rename(from.id(), from_name, to.id(), to_name, &root)
                    .await
                    .map(drop)
            }
            kind::RENAME_EXCHANGE => {
                let [from, to] = body.words()?;
                let (from_name, to_name) = (body.name()?, body.name()?);
                let (from, to) = (self.by_number(from).await?, self.by_number(to).await?);
                self.exchange(from.id(), from_name, to.id(), to_name, &root)
                    .await
                    .map(drop)
            }
            kind::RENAME_WHITEOUT => self.replay_whiteout(record.seq, body).await,
            _ => {
                let [object] = Reader(&record.body).words()?;
                match self.by_number(object & OBJECT_MASK).await {
                    Ok(file) => self.apply_to_file(record, body, &file).await,
                    // Its removal was logged before, or is on disk: changes of content may be logged late.
                    Err(FsError::Stale) => Ok(()),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Replays what changes one file's content and attributes.
    async fn apply_to_file(
        &self,
        record: &Record,
        mut body: Reader<'_>,
        file: &Rc<Znode>,
    ) -> FsResult<()> {
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
                let [_, offset, len] = body.words()?;
                let end = offset.checked_add(len).ok_or(DAMAGED)?;
                if end > file.size() {
                    self.replay_size(file, end).await?;
                }
                Ok(())
            }
            kind::TRUNCATE => {
                let [_, offset, len] = body.words()?;
                let end = offset.checked_add(len).ok_or(DAMAGED)?;
                // OpenZFS: module/os/linux/zfs/zfs_znode_os.c, zfs_freesp.
                if len == 0 && offset <= file.size() {
                    return self.replay_size(file, offset).await;
                }
                if offset < file.size() {
                    self.punch(file.id(), offset, len, &root).await?;
                }
                if end > file.size() {
                    self.replay_size(file, end).await?;
                }
                Ok(())
            }
            kind::SETATTR => self.replay_setattr(body, file).await,
            kind::ACL_V0 => {
                let [_, count] = body.words()?;
                self.replay_acl(file, count, body).await
            }
            kind::ACL => {
                let [_, count, domains, ids, _, _] = body.words()?;
                if domains != 0 || ids != 0 {
                    return Err(FsError::NotSupported);
                }
                self.replay_acl(file, count, body).await
            }
            kind::SETSAXATTR => self.replay_list_entry(body, file).await,
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

    async fn replay_create(&self, record: u64, mut body: Reader<'_>) -> FsResult<()> {
        let [
            dir,
            object,
            mode,
            uid,
            gid,
            generation,
            seconds,
            nanoseconds,
            rdev,
        ] = body.words()?;
        let crtime = [seconds, nanoseconds];
        // Ids of other domains are numbers of a table that only the writer's memory had.
        if uid >> 32 != 0 || gid >> 32 != 0 {
            return Err(FsError::NotSupported);
        }
        let list = match record {
            kind::CREATE_ACL | kind::CREATE_ACL_ATTR | kind::MKDIR_ACL | kind::MKDIR_ACL_ATTR => {
                let [count, domains, ids, bytes, _] = body.words()?;
                if domains != 0 || ids != 0 {
                    return Err(FsError::NotSupported);
                }
                Some((count, bytes))
            }
            _ => None,
        };
        let optional = match record {
            kind::CREATE_ATTR | kind::MKDIR_ATTR | kind::CREATE_ACL_ATTR | kind::MKDIR_ACL_ATTR => {
                Some(body.optional()?)
            }
            _ => None,
        };
        let acl = match list {
            Some((count, bytes)) => {
                let padded = bytes.checked_next_multiple_of(8).ok_or(DAMAGED)?;
                let entries = body.take(index(padded))?;
                (count > 0)
                    .then(|| stored_acl(entries, count))
                    .transpose()?
            }
            None => None,
        };
        let name = body.text()?;
        let target = if record == kind::SYMLINK {
            body.text()?
        } else {
            &[]
        };
        let file_type = FileType::of_mode(mode).ok_or(DAMAGED)?;
        let dir = self.by_number(dir).await?;
        let given = ReplayedIdentity {
            object: ObjectId(object & OBJECT_MASK),
            generation,
            slots: u8::try_from((object >> 56) + 1).unwrap_or(u8::MAX),
        };
        if given.slots > 32 || (name.is_empty() && record != kind::MKXATTR) {
            return Err(DAMAGED);
        }
        self.make_room(given.object).await?;
        let kind = NewFile {
            file_type,
            rdev: if rdev == 0 {
                DeviceNumber::default()
            } else {
                device_number(rdev)
            },
            target,
        };
        let in_hidden = Self::is_in_xattr_tree(&dir) || record == kind::MKXATTR;
        let set = SetAttr::default();
        let mut attrs = self.new_attrs(&dir.attrs.borrow(), &kind, &set, &Cred::root())?;
        attrs.mode = mode & 0xffff;
        attrs.uid = uid;
        attrs.gid = gid;
        attrs.parent = dir.object;
        attrs.crtime = crtime;
        (attrs.atime, attrs.mtime, attrs.ctime) = (crtime, crtime, crtime);
        if in_hidden {
            attrs.flags |= XATTR;
        }
        match acl {
            Some(acl) => set_acl(&mut attrs, &acl)?,
            None if in_hidden => set_trivial_acl(&mut attrs),
            // As when it was made.
            None => self.give_first_list(&dir.attrs.borrow(), &mut attrs)?,
        }
        if let Some(optional) = optional {
            optional.apply(&mut attrs);
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
    async fn replay_whiteout(&self, seq: u64, mut body: Reader<'_>) -> FsResult<()> {
        let [from, to] = body.words()?;
        let [object, mode, uid, gid, generation, seconds, nanoseconds, _] = body.words()?;
        let (from_name, to_name) = (body.name()?, body.name()?);
        let (from, to) = (self.by_number(from).await?, self.by_number(to).await?);
        if self.find(&from, from_name).await?.is_some() {
            // Two transactions: until the second, only what was before this record counts as done. A replay that begins again
            // between them finds no old name.
            self.0.replaying.set(Some(seq - 1));
            let root = Cred::root();
            let moved = self.rename(from.id(), from_name, to.id(), to_name, &root);
            let moved = moved.await.map(drop);
            self.0.replaying.set(Some(seq));
            moved?;
        }
        let mut words = Vec::new();
        for word in [
            from.object,
            object,
            mode,
            uid,
            gid,
            generation,
            seconds,
            nanoseconds,
            0,
        ] {
            words.extend_from_slice(&word.to_le_bytes());
        }
        words.extend_from_slice(from_name);
        words.push(0);
        self.replay_create(kind::CREATE, Reader(&words)).await
    }

    /// Blocks cloned from somewhere: here they become blocks of the file's own, with the same bytes. What they were cloned
    /// from is held until the log is given up.
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

    async fn replay_setattr(&self, mut body: Reader<'_>, file: &Rc<Znode>) -> FsResult<()> {
        let [_, asked, mode, uid, gid, size, a0, a1, m0, m1] = body.words()?;
        let has = |bit: u64| asked & bit != 0;
        let id = |value: u64| u32::try_from(value).map_err(|_| FsError::NotSupported);
        let mut set = SetAttr::default();
        if has(mask::MODE) {
            set.mode = Some(id(mode & 0o7777)?);
        }
        if has(mask::UID) {
            set.uid = Some(id(uid)?);
        }
        if has(mask::GID) {
            set.gid = Some(id(gid)?);
        }
        if has(mask::SIZE) && file.file_type() == FileType::Regular {
            set.size = Some(size);
        }
        if has(mask::ATIME) {
            set.atime = Some(SetTime::Client(timestamp([a0, a1])));
        }
        // OpenZFS: module/os/linux/zfs/zfs_vnops_os.c, zfs_setattr: a new size brings the time with it.
        if has(mask::MTIME) || set.size.is_some() {
            set.mtime = Some(SetTime::Client(timestamp([m0, m1])));
        }
        if has(mask::OPTIONAL) {
            let optional = body.optional()?;
            let old = file.flags();
            let flags = optional.flags(old);
            if flags != old & flags::SETTABLE {
                set.flags = Some(flags);
            }
            if optional.asked & OPTIONAL_CRTIME != 0 {
                set.crtime = Some(timestamp(optional.crtime));
            }
            if optional.asked & OPTIONAL_PROJECT != 0 {
                set.project = Some(id(optional.project)?);
            }
        }
        self.setattr(file.id(), &set, None, &Cred::root())
            .await
            .map(drop)
    }

    async fn replay_acl(&self, file: &Rc<Znode>, count: u64, body: Reader<'_>) -> FsResult<()> {
        let acl = stored_acl(body.0, count)?;
        let _lock = file.exclusive().await?;
        let mut attrs = file.attrs.borrow().clone();
        set_acl(&mut attrs, &acl)?;
        attrs.ctime = self.now();
        attrs.check_lengths()?;
        let plan = self.plan_for(file, &attrs).await?;
        let tx = self.begin(Weight::Bytes(META_BYTES)).await?;
        self.store(file, attrs, &plan, &tx).await?;
        self.note_replayed(&tx);
        Ok(())
    }

    async fn replay_list_entry(&self, mut body: Reader<'_>, file: &Rc<Znode>) -> FsResult<()> {
        let [_, len] = body.words()?;
        let name = body.name()?;
        let value = body.take(index(len))?;
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

/// Gives a file an ACL as stored.
fn set_acl(attrs: &mut Attrs, (bytes, count): &(Vec<u8>, u64)) -> FsResult<()> {
    let aces = ondisk::acl::decode(bytes, index(*count)).map_err(|_| DAMAGED)?;
    let wide = attrs.flags;
    crate::acl::list::give(attrs, &aces, wide);
    Ok(())
}

/// Turns the entries of a record (who u32, rights u32, flags u16, type u16) into stored ones: owner, group and everyone
/// need no id. OpenZFS: include/sys/acl.h, `ace_t`; include/sys/zfs_acl.h, `zfs_ace_t`.
fn stored_acl(entries: &[u8], count: u64) -> FsResult<(Vec<u8>, u64)> {
    const ENTRY: usize = 12;
    const WHO: u16 = 0x1000 | 0x2000 | 0x4000 | 0x40;
    let mut stored = Vec::new();
    let wanted = index(count).checked_mul(ENTRY).ok_or(DAMAGED)?;
    for entry in entries.get(..wanted).ok_or(DAMAGED)?.chunks_exact(ENTRY) {
        let flags = ondisk::bytes::u16_at(entry, 8);
        let what = ondisk::bytes::u16_at(entry, 10);
        if what > 3 {
            // Entries for single kinds of objects have another layout, and nothing here makes them.
            return Err(FsError::NotSupported);
        }
        stored.extend_from_slice(&what.to_le_bytes());
        stored.extend_from_slice(&flags.to_le_bytes());
        stored.extend_from_slice(&entry[4..8]);
        if !matches!(flags & WHO, 0x1000 | 0x4000 | 0x2040) {
            stored.extend_from_slice(&u64::from(u32_at(entry, 0)).to_le_bytes());
        }
    }
    Ok((stored, count))
}
