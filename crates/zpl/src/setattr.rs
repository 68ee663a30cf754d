//! Changing attributes: mode, owner, times, size, flags, project.

use std::rc::Rc;

use ondisk::acl::{Trivial, ace_mask};
use ondisk::nvlist::NvValue;

use crate::acl::{self, posix};
use crate::backing::{META_BYTES, Weight};
use crate::fs::{Fs, SIZE_MAX};
use crate::permission::{self, WRITE};
use crate::sa::Attrs;
use crate::sa::attrs::stored_time;
use crate::znode::{ACL_TRIVIAL, NO_EXECS_DENIED, PROJID};
use crate::{
    Access, Change, Cred, FileId, FileType, FlagsChange, FsError, FsResult, FsStat, SetAttr,
    SetTime, Timestamp, XattrMode, flags,
};
use runtime::sync::WHOLE_RANGE;

/// Flags only root may change.
const ROOT_FLAGS: u64 = flags::IMMUTABLE | flags::NOUNLINK | flags::APPENDONLY;

/// Gives attributes the trivial ACL of their mode.
pub(crate) fn set_trivial_acl(attrs: &mut Attrs) {
    let list = Trivial::of_mode(attrs.mode);
    if attrs.acl.as_deref() != Some(list.bytes()) {
        attrs.acl = Some(Rc::from(list.bytes()));
    }
    attrs.acl_count = Some(list.count());
    attrs.flags |= ACL_TRIVIAL;
    if attrs.mode & 0o111 == 0o111 {
        attrs.flags |= NO_EXECS_DENIED;
    } else {
        attrs.flags &= !NO_EXECS_DENIED;
    }
}

/// Changes the flags that a caller may set.
fn change_flags(old: &Attrs, new: &mut Attrs, change: FlagsChange, root: bool) -> FsResult<()> {
    let (set, clear) = (change.set & flags::SETTABLE, change.clear & flags::SETTABLE);
    let flags = (old.flags & !clear) | set;
    if !root && (flags ^ old.flags) & ROOT_FLAGS != 0 {
        return Err(FsError::NotPermitted);
    }
    // The flags of a list follow the list.
    let about_list = acl::list::INHERITABLE | acl::list::WIDE | ACL_TRIVIAL | NO_EXECS_DENIED;
    new.flags = (flags & !about_list) | (new.flags & about_list);
    Ok(())
}

/// Replaces an entry of the list of extended attributes, if it is there; then returns its value.
fn rewrite_in_list(attrs: &mut Attrs, name: &[u8], value: &[u8]) -> FsResult<Option<Vec<u8>>> {
    let mut list = attrs.xattr_list()?;
    if !list.has(name) {
        return Ok(None);
    }
    list.remove(name);
    list.insert(name, NvValue::ByteArray(value.to_vec()));
    attrs.dxattr = Some(Rc::from(list.encode_xdr()));
    Ok(Some(value.to_vec()))
}

impl Fs {
    /// Sets attributes. With `guard`, only if the file's ctime still is that.
    ///
    /// # Errors
    /// [`FsError::NotPermitted`] (not the owner, immutable, append-only), [`FsError::Access`], [`FsError::NotSync`],
    /// [`FsError::TooLarge`], [`FsError::IsDirectory`] (size of a directory), [`FsError::Invalid`] (size of a special
    /// file), [`FsError::ReadOnly`], [`FsError::NoSpace`].
    pub async fn setattr(
        &self,
        id: FileId,
        set: &SetAttr,
        guard: Option<Timestamp>,
        cred: &Cred,
    ) -> FsResult<Change> {
        self.check_writable()?;
        let znode = self.znode(id).await?;
        if let Some(size) = set.size {
            match znode.file_type() {
                FileType::Regular => {}
                FileType::Directory => return Err(FsError::IsDirectory),
                _ => return Err(FsError::Invalid),
            }
            if size > SIZE_MAX {
                return Err(FsError::TooLarge);
            }
        }
        let _range = if set.size.is_some() {
            Some(znode.ranges.exclusive(WHOLE_RANGE).await)
        } else {
            None
        };
        let _lock = znode.exclusive().await?;
        self.check_delegations(&znode, cred)?;
        let before = znode.wcc();
        if guard.is_some_and(|guard| guard != before.ctime) {
            return Err(FsError::NotSync);
        }
        let mut old = znode.attrs.borrow().clone();
        let Some(mut attrs) = self.changed(&old, set, cred)? else {
            return self.change_of(before, &znode).await;
        };
        if set.size.is_some() || set.uid.is_some() || set.gid.is_some() {
            self.drop_capability(&znode).await?;
            old = znode.attrs.borrow().clone();
            (attrs.dxattr, attrs.xattr) = (old.dxattr.clone(), old.xattr);
        }
        let relisted = attrs.posix.clone().filter(|_| attrs.posix != old.posix);
        let mut rewritten = None;
        if let Some(acl) = &relisted {
            rewritten = rewrite_in_list(&mut attrs, posix::ACCESS, &acl.encode())?;
        }
        if (attrs.uid, attrs.gid, attrs.project) != (old.uid, old.gid, old.project) {
            self.check_quota(&attrs, true).await?;
        }
        let plan = self.plan_for(&znode, &attrs).await?;
        let tx = match set.size {
            Some(size) => self.resize(&znode, size).await?,
            None => self.begin(Weight::Bytes(META_BYTES)).await?,
        };
        self.store(&znode, attrs, &plan, &tx).await?;
        self.log_setattr(&znode, &old, set, &tx);
        if let Some(value) = &rewritten {
            let record = self.list_entry_record(&znode, posix::ACCESS, Some(value));
            self.log_attribute(&znode, false, vec![record], &tx);
        }
        drop(tx);
        if let (Some(acl), None) = (relisted, rewritten) {
            // The list is a file of its own.
            let name = posix::ACCESS;
            self.replace_locked(&znode, name, Some(&acl.encode()), XattrMode::Any, cred)
                .await?;
        }
        self.settle(&znode).await?;
        self.change_of(before, &znode).await
    }

    /// Checks what is to be set and returns the new attributes, or nothing when nothing changes.
    fn changed(&self, old: &Attrs, set: &SetAttr, cred: &Cred) -> FsResult<Option<Attrs>> {
        if *set == SetAttr::default() {
            return Ok(None);
        }
        let root = cred.uid == 0;
        let owner = permission::owns(old, cred);
        let now = self.now();
        let mut new = old.clone();
        let only_flags = SetAttr {
            flags: None,
            project: None,
            ..*set
        } == SetAttr::default();
        if old.flags & flags::IMMUTABLE != 0 && !only_flags {
            return Err(FsError::NotPermitted);
        }
        // Of an append-only file, only times may move, and only to now.
        if old.flags & flags::APPENDONLY != 0
            && (set.size.is_some() || set.mode.is_some() || set.uid.is_some() || set.gid.is_some())
        {
            return Err(FsError::NotPermitted);
        }
        if let Some(size) = set.size {
            permission::check_content(old, cred, WRITE)?;
            if old.flags & flags::READONLY != 0 {
                return Err(FsError::NotPermitted);
            }
            new.size = size;
            new.mtime = now;
            new.flags |= flags::ARCHIVE | flags::AV_MODIFIED;
            if !root {
                new.mode = permission::without_set_id(new.mode);
            }
        }
        self.change_owner(old, &mut new, set, cred, owner)?;
        if let Some(mode) = set.mode {
            if !owner && !permission::grants(old, cred, ace_mask::WRITE_ACL) {
                return Err(FsError::NotPermitted);
            }
            let mut mode = u64::from(mode & 0o7777);
            let in_group = u32::try_from(new.gid).is_ok_and(|gid| cred.in_group(gid));
            if !root && !in_group {
                mode &= !0o2000;
            }
            self.give_mode(&mut new, (old.mode & !0o7777) | mode)?;
        } else if (new.uid, new.gid) != (old.uid, old.gid) && new.posix.is_none() {
            acl::list::chown(&mut new)?;
        }
        self.change_times(old, &mut new, set, cred, owner)?;
        if !owner && (set.crtime.is_some() || set.flags.is_some() || set.project.is_some()) {
            return Err(FsError::NotPermitted);
        }
        if let Some(time) = set.crtime {
            new.crtime = stored_time(time);
        }
        if let Some(change) = set.flags {
            change_flags(old, &mut new, change, root)?;
        }
        self.change_project(old, &mut new, set.project)?;
        new.ctime = now;
        Ok(Some(new))
    }

    /// Gives a project, and checks that the file can have one and the flag that passes it on.
    ///
    /// OpenZFS: module/os/linux/zfs/zfs_vnops_os.c, zfs_setattr (XAT_PROJID, XAT_PROJINHERIT)
    fn change_project(&self, old: &Attrs, new: &mut Attrs, project: Option<u32>) -> FsResult<()> {
        let passed_on = (new.flags ^ old.flags) & flags::PROJINHERIT != 0;
        let file_type = FileType::of_mode(old.mode);
        let has_one = matches!(file_type, Some(FileType::Regular | FileType::Directory));
        if (project.is_some() || passed_on) && !(has_one && self.settings().project_quota) {
            return Err(FsError::NotSupported);
        }
        if let Some(project) = project {
            self.start_counting();
            new.project = Some(u64::from(project));
            new.flags |= PROJID;
        }
        Ok(())
    }

    fn change_times(
        &self,
        old: &Attrs,
        new: &mut Attrs,
        set: &SetAttr,
        cred: &Cred,
        owner: bool,
    ) -> FsResult<()> {
        let may_touch = permission::grants(old, cred, ace_mask::WRITE_ATTRIBUTES);
        for (time, field) in [(set.atime, &mut new.atime), (set.mtime, &mut new.mtime)] {
            match time {
                None => {}
                Some(SetTime::Server) => {
                    if !owner && !cred.opened && !may_touch {
                        permission::check(old, cred, WRITE)?;
                    }
                    *field = self.now();
                }
                Some(SetTime::Client(time)) => {
                    let replayed = self.0.replaying.get().is_some();
                    let may = owner || may_touch;
                    if !may || (old.flags & flags::APPENDONLY != 0 && !replayed) {
                        return Err(FsError::NotPermitted);
                    }
                    *field = stored_time(time);
                }
            }
        }
        Ok(())
    }

    fn change_owner(
        &self,
        old: &Attrs,
        new: &mut Attrs,
        set: &SetAttr,
        cred: &Cred,
        owner: bool,
    ) -> FsResult<()> {
        let root = cred.uid == 0;
        if let Some(uid) = set.uid {
            if !root && (!owner || u64::from(uid) != old.uid) {
                return Err(FsError::NotPermitted);
            }
            new.uid = u64::from(uid);
        }
        if let Some(gid) = set.gid {
            if !root && (!owner || (u64::from(gid) != old.gid && !cred.in_group(gid))) {
                return Err(FsError::NotPermitted);
            }
            new.gid = u64::from(gid);
        }
        if set.uid.is_some() || set.gid.is_some() {
            // Another identity must not inherit the right to lend it. Linux does so for root's changes too.
            new.mode = permission::without_set_id(new.mode);
        }
        Ok(())
    }

    /// Returns which of the asked permissions the caller has.
    ///
    /// # Errors
    /// [`FsError::Stale`].
    pub async fn access(&self, id: FileId, wanted: Access, cred: &Cred) -> FsResult<Access> {
        let znode = self.znode(id).await?;
        let settings = self.settings();
        let seen = znode.cache_version();
        let mut got = permission::access(&znode.attrs.borrow(), cred, Access::ALL);
        if settings.read_only {
            got.0 &= !(Access::MODIFY | Access::EXTEND | Access::DELETE).0;
        }
        if let Some(seen) = seen {
            znode.cache_access(seen, cred, got);
        }
        Ok(Access(got.0 & wanted.0))
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when it is none.
    pub async fn readlink(&self, id: FileId) -> FsResult<Vec<u8>> {
        let znode = self.znode(id).await?;
        if znode.file_type() != FileType::Symlink {
            return Err(FsError::Invalid);
        }
        self.accessed(&znode);
        let target = znode.attrs.borrow().symlink.clone();
        if let Some(target) = target {
            return Ok(target.to_vec());
        }
        // Long targets of old versions are content.
        let len = usize::try_from(znode.size())
            .ok()
            .filter(|&len| len <= 65536);
        let len = len.ok_or(FsError::Corrupt("length of a symbolic link"))?;
        Ok(self.os().read(znode.object_id(), 0, len).await?.to_vec())
    }

    /// Returns space and objects.
    ///
    /// # Errors
    /// Those of reading.
    pub async fn statfs(&self) -> FsResult<FsStat> {
        let space = self.0.backing.space();
        let settings = self.settings();
        // There is room for an object in each 512 bytes that are free. OpenZFS: module/os/linux/zfs/zfs_vfsops.c
        let free_files = (space.available / 512).min(1 << 48);
        Ok(FsStat {
            total_bytes: space.referenced.saturating_add(space.available),
            free_bytes: space.available,
            available_bytes: space.available,
            total_files: space.objects.saturating_add(free_files),
            free_files,
            block_size: settings.record_size,
            name_max: u32::try_from(self.name_max()).expect("a small constant"),
            fsid: self.0.backing.fsid(),
            read_only: settings.read_only,
            case_insensitive: self.0.master.case == crate::CaseSensitivity::Insensitive,
        })
    }
}
