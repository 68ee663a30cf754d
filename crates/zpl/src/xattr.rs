//! Extended attributes: as a packed list in the file's system attributes, or as files of a hidden directory.
//!
//! Which of the two new ones take follows the property `xattr`; what exists is found in either. Values too big for the
//! list go to the directory. Names keep their Linux namespace (`user.`, `security.`, `trusted.`, `system.posix_acl_*`);
//! a name without any, as other systems write, is a `user.` one.

use std::rc::Rc;

use dmu::Tx;
use dmu::zap::{self, ZapValue};
use ondisk::ObjectId;
use ondisk::nvlist::{NvList, NvValue};

use crate::acl::list as list_rules;
use crate::acl::posix::{self, PosixAcl};
use crate::attr_cache::CachedXattrs;
use crate::backing::{AclType, META_BYTES, Weight};
use crate::fs::Fs;
use crate::log::{hidden_dir_record, hidden_file_records, remove_record};
use crate::make::NewFile;
use crate::names::OBJECT_MASK;
use crate::permission::{self, READ, WRITE};
use crate::sa::Attrs;
use crate::setattr::set_trivial_acl;
use crate::xattr_names::{SECURITY, TRUSTED, USER, is_posix_list, shown_name, without_namespace};
use crate::znode::{ACL_TRIVIAL, XATTR, Znode};
use crate::{
    Change, Cred, DeviceNumber, FileId, FileType, FsError, FsResult, SetAttr, StoredXattr,
    XattrMode, flags,
};

/// Longest name, with namespace. Linux: XATTR_NAME_MAX.
const NAME_MAX: usize = 255;
/// Longest value. Linux: XATTR_SIZE_MAX.
const VALUE_MAX: usize = 65536;
/// Longest value kept in the list. OpenZFS: include/sys/zfs_sa.h, DXATTR_MAX_ENTRY_SIZE.
const LIST_VALUE_MAX: usize = 32768;
/// Longest list. OpenZFS: DXATTR_MAX_SA_SIZE; an attribute's length is a u16.
const LIST_MAX: usize = crate::sa::VALUE_MAX_BYTES;
/// Most attributes listed of one hidden directory.
const LIST_BATCH: usize = 1024;

/// What a program in the file may do for every user. capabilities(7)
const CAPABILITY: &[u8] = b"security.capability";

/// Puts a value into a file's list of attributes, unless that would be too long for it.
fn insert_in_list(list: &mut NvList, name: &[u8], value: &[u8]) -> bool {
    if value.len() > LIST_VALUE_MAX {
        return false;
    }
    list.insert(name, NvValue::ByteArray(value.to_vec()));
    let fits = list.encode_xdr().len() <= LIST_MAX;
    if !fits {
        list.remove(name);
    }
    fits
}

impl Fs {
    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`], [`FsError::Access`], [`FsError::NotSupported`] for an unknown namespace.
    pub async fn xattr(&self, id: FileId, name: &[u8], cred: &Cred) -> FsResult<Vec<u8>> {
        let znode = self.znode(id).await?;
        self.check_xattr(&znode, name, cred, false)?;
        let _lock = znode.shared().await?;
        if name == list_rules::XDR {
            return list_rules::to_xdr(&znode.attrs.borrow());
        }
        self.cache_xattrs(&znode);
        self.xattr_value(&znode, name)
            .await?
            .ok_or(FsError::NoAttribute)
    }

    /// Caches the extended attributes of a regular file or directory, if all are in its own attributes and can be read.
    pub(crate) fn cache_xattrs(&self, znode: &Znode) {
        let attrs = znode.attrs.borrow();
        let of_kind = matches!(
            FileType::of_mode(attrs.mode),
            Some(FileType::Regular | FileType::Directory)
        );
        let acl_type = self.settings().acl_type;
        if let (None, true, Ok(list)) = (attrs.xattr, of_kind, attrs.xattr_list()) {
            let all = list.iter().filter_map(|(name, value)| match value {
                NvValue::ByteArray(bytes) => Some((name, bytes.as_slice())),
                _ => None,
            });
            if let Some(xattrs) = CachedXattrs::new(znode.id(), acl_type, all) {
                znode.put_xattrs(xattrs);
            }
        }
    }

    pub(crate) async fn xattr_value(
        &self,
        znode: &Znode,
        name: &[u8],
    ) -> FsResult<Option<Vec<u8>>> {
        let bare = without_namespace(name);
        let list = znode.attrs.borrow().xattr_list()?;
        if let Some(value) = list
            .bytes(name)
            .or_else(|| bare.and_then(|bare| list.bytes(bare)))
        {
            return Ok(Some(value.to_vec()));
        }
        let Some(dir) = znode.attrs.borrow().xattr.map(ObjectId) else {
            return Ok(None);
        };
        let mut found = self.xattr_file(dir, name).await?;
        if let (None, Some(bare)) = (found, bare) {
            found = self.xattr_file(dir, bare).await?;
        }
        let Some(file) = found else { return Ok(None) };
        let file = self.entry_znode(file.0).await?;
        let len = usize::try_from(file.size())
            .ok()
            .filter(|&len| len <= VALUE_MAX);
        let len = len.ok_or(FsError::AttributeTooLarge)?;
        Ok(Some(
            self.os().read(file.object_id(), 0, len).await?.to_vec(),
        ))
    }

    async fn xattr_file(&self, dir: ObjectId, name: &[u8]) -> FsResult<Option<ObjectId>> {
        match zap::lookup(self.os(), dir, name).await? {
            None => Ok(None),
            Some(ZapValue::U64(words)) => Ok(words.first().map(|w| ObjectId(w & OBJECT_MASK))),
            Some(_) => Err(FsError::Corrupt("directory entry")),
        }
    }

    /// Lists the extended attributes the caller may see.
    ///
    /// # Errors
    /// [`FsError::Stale`]; those of reading.
    pub async fn xattrs(&self, id: FileId, cred: &Cred) -> FsResult<Vec<StoredXattr>> {
        let znode = self.znode(id).await?;
        let _lock = znode.shared().await?;
        self.cache_xattrs(&znode);
        let mut all: Vec<StoredXattr> = Vec::new();
        for (name, value) in znode.attrs.borrow().xattr_list()?.iter() {
            if let NvValue::ByteArray(bytes) = value {
                all.push(StoredXattr {
                    name: shown_name(name),
                    size: bytes.len() as u64,
                });
            }
        }
        let dir = znode.attrs.borrow().xattr.map(ObjectId);
        if let Some(dir) = dir {
            let mut cookie = 0;
            loop {
                let entries = zap::cursor(self.os(), dir, cookie, LIST_BATCH).await?;
                let Some(last) = entries.last() else { break };
                cookie = last.next_cookie;
                for entry in entries {
                    let ZapValue::U64(words) = &entry.value else {
                        return Err(FsError::Corrupt("directory entry"));
                    };
                    let object = words.first().copied().unwrap_or(0) & OBJECT_MASK;
                    let name = shown_name(&entry.name);
                    if !all.iter().any(|x| x.name == name) {
                        let size = self.entry_znode(object).await?.size();
                        all.push(StoredXattr { name, size });
                    }
                }
            }
        }
        let settings = self.settings();
        let posix = settings.acl_type == AclType::Posix;
        all.retain(|x| {
            (cred.uid == 0 || !x.name.starts_with(TRUSTED)) && (posix || !is_posix_list(&x.name))
        });
        if settings.acl_type == AclType::Nfsv4 {
            let attrs = znode.attrs.borrow();
            // Every file has one; only those that say more than a mode are worth a line.
            if attrs.flags & ACL_TRIVIAL == 0 && attrs.acl.is_some() {
                let name = list_rules::XDR.to_vec();
                let size = list_rules::to_xdr(&attrs)?.len() as u64;
                all.push(StoredXattr { name, size });
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// [`FsError::Exists`] and [`FsError::NoAttribute`] as `mode` asks; [`FsError::Access`],
    /// [`FsError::NotPermitted`], [`FsError::NotSupported`] (unknown namespace, property `xattr=off`),
    /// [`FsError::AttributeTooLarge`], [`FsError::Range`] (name), [`FsError::NoSpace`], [`FsError::ReadOnly`].
    pub async fn set_xattr(
        &self,
        id: FileId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        cred: &Cred,
    ) -> FsResult<Change> {
        self.change_xattr(id, name, Some(value), mode, cred).await
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`]; those of [`Fs::set_xattr`].
    pub async fn remove_xattr(&self, id: FileId, name: &[u8], cred: &Cred) -> FsResult<Change> {
        self.change_xattr(id, name, None, XattrMode::Replace, cred)
            .await
    }

    async fn change_xattr(
        &self,
        id: FileId,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
        cred: &Cred,
    ) -> FsResult<Change> {
        self.check_writable()?;
        let znode = self.znode(id).await?;
        self.check_xattr(&znode, name, cred, true)?;
        if Self::is_in_xattr_tree(&znode) {
            return Err(FsError::NotSupported);
        }
        if name == list_rules::XDR {
            return self.set_list(&znode, value, cred).await;
        }
        if !self.settings().xattr {
            return Err(FsError::NotSupported);
        }
        if name.len() > NAME_MAX {
            return Err(FsError::Range);
        }
        if value.is_some_and(|v| v.len() > VALUE_MAX) {
            return Err(FsError::AttributeTooLarge);
        }
        let _lock = znode.exclusive().await?;
        self.check_delegations(&znode, cred)?;
        let before = znode.wcc();
        self.replace_locked(&znode, name, value, mode, cred).await?;
        self.settle(&znode).await?;
        self.change_of(before, &znode).await
    }

    /// Takes from a file, whose lock the caller holds, the capabilities that a program in it would have: its content or owner is about
    /// to change. Linux: fs/inode.c, `file_remove_privs`
    pub(crate) async fn drop_capability(&self, znode: &Znode) -> FsResult<()> {
        let may_have = {
            let attrs = znode.attrs.borrow();
            let list = attrs.dxattr.as_deref().unwrap_or_default();
            let mut parts = list.windows(CAPABILITY.len());
            attrs.xattr.is_some() || parts.any(|part| part == CAPABILITY)
        };
        // The log has its removal, too.
        if !may_have || self.0.replaying.get().is_some() {
            return Ok(());
        }
        let (any, root) = (XattrMode::Any, Cred::root());
        self.replace_locked(znode, CAPABILITY, None, any, &root)
            .await
    }

    /// Sets or removes an extended attribute of a file whose lock the caller holds, in a transaction of its own.
    pub(crate) async fn replace_locked(
        &self,
        znode: &Znode,
        name: &[u8],
        mut value: Option<&[u8]>,
        mode: XattrMode,
        cred: &Cred,
    ) -> FsResult<()> {
        let mut attrs = znode.attrs.borrow().clone();
        let old_mode = attrs.mode;
        if is_posix_list(name) {
            let given = value.map(PosixAcl::decode).transpose()?;
            if name == posix::ACCESS && self.take_access_list(&mut attrs, given, cred) {
                value = None;
            }
        }
        let mut list = attrs.xattr_list()?;
        // An attribute another system wrote without namespace is replaced under its full name.
        let names = [Some(name), without_namespace(name)];
        let mut names = names.into_iter().flatten();
        let in_dir = self.find_in_dir(&attrs, names.clone()).await?;
        let in_list = names.find(|n| list.has(*n)).map(<[u8]>::to_vec);
        match mode {
            XattrMode::Create if in_list.is_some() || in_dir.is_some() => {
                return Err(FsError::Exists);
            }
            XattrMode::Replace if in_list.is_none() && in_dir.is_none() && !is_posix_list(name) => {
                return Err(FsError::NoAttribute);
            }
            _ => {}
        }
        let nothing_there = value.is_none() && in_list.is_none() && in_dir.is_none();
        if nothing_there && attrs.mode == old_mode {
            return Ok(());
        }
        if let Some(name) = &in_list {
            list.remove(name);
        }
        let use_list = self.settings().xattr_sa;
        let to_dir = value.filter(|value| !use_list || !insert_in_list(&mut list, name, value));
        let in_new_list = value.is_some() && to_dir.is_none();
        attrs.dxattr = (!list.is_empty()).then(|| Rc::from(list.encode_xdr()));
        attrs.ctime = self.now();
        let hidden = self
            .prepare_hidden(znode, &mut attrs, to_dir.is_some(), cred)
            .await?;
        let plan = match self.plan_for(znode, &attrs).await {
            // The list fits but the file's attributes as a whole do not: the directory has room.
            Err(FsError::AttributeTooLarge) => return Err(FsError::NoSpace),
            other => other?,
        };
        let weight = value.map_or(Weight::Frees, |value| {
            Weight::Bytes(value.len() as u64 + 2 * META_BYTES)
        });
        let tx = self.begin(weight).await?;
        let with_files = to_dir.is_some() || in_dir.is_some();
        let mut records = Vec::new();
        if attrs.mode != old_mode {
            // First, so that a replay of it finds the list as it was.
            records.push(Self::mode_record(znode, &attrs));
        }
        let owner = (znode.object, &mut attrs, &mut records);
        self.apply_hidden(owner, hidden, name, in_dir, to_dir, &tx)
            .await?;
        self.store(znode, attrs, &plan, &tx).await?;
        self.cache_xattrs(znode);
        if let Some(old) = in_list.filter(|old| !in_new_list || old != name) {
            records.push(self.list_entry_record(znode, &old, None));
        }
        if in_new_list {
            records.push(self.list_entry_record(znode, name, value));
        }
        self.log_attribute(znode, with_files, records, &tx);
        Ok(())
    }

    /// Gives attributes a POSIX ACL, or takes theirs away. Returns whether the mode says all that the new one says.
    fn take_access_list(&self, attrs: &mut Attrs, given: Option<PosixAcl>, cred: &Cred) -> bool {
        let is_minimal = given.as_ref().is_some_and(PosixAcl::is_minimal);
        if let Some(acl) = &given {
            self.show_list(attrs, acl, cred);
        }
        attrs.posix = given.filter(|_| !is_minimal).map(Rc::new);
        is_minimal
    }

    /// Finds the first of some names in a file's hidden directory of extended attributes, and its file.
    async fn find_in_dir(
        &self,
        attrs: &Attrs,
        names: impl Iterator<Item = &[u8]>,
    ) -> FsResult<Option<(Vec<u8>, ObjectId)>> {
        if let Some(dir) = attrs.xattr.map(ObjectId) {
            for name in names {
                if let Some(file) = self.xattr_file(dir, name).await? {
                    return Ok(Some((name.to_vec(), file)));
                }
            }
        }
        Ok(None)
    }

    /// Gives attributes the mode that shows a POSIX ACL. A stored ACL that says more than a mode stays as it is.
    fn show_list(&self, attrs: &mut Attrs, acl: &PosixAcl, cred: &Cred) {
        attrs.mode = (attrs.mode & !0o777) | acl.mode_bits();
        let in_group = u32::try_from(attrs.gid).is_ok_and(|gid| cred.in_group(gid));
        if cred.uid != 0 && !in_group {
            attrs.mode &= !0o2000;
        }
        if attrs.flags & ACL_TRIVIAL != 0 || attrs.acl.is_none() {
            set_trivial_acl(attrs);
        }
    }

    /// Finds out what a value kept as a file needs, before the transaction: the attributes of the file, and of the
    /// hidden directory if there is none yet.
    async fn prepare_hidden(
        &self,
        owner: &Znode,
        attrs: &mut Attrs,
        wanted: bool,
        cred: &Cred,
    ) -> FsResult<Option<Hidden>> {
        if !wanted {
            return Ok(None);
        }
        let slots = self.settings().dnode_slots;
        let dir = if let Some(dir) = attrs.xattr {
            HiddenDir::Existing(self.entry_znode(dir).await?)
        } else {
            let mut dir = self.hidden_attrs(owner, FileType::Directory, cred)?;
            dir.mode = FileType::Directory.mode_bits() | 0o1777;
            dir.parent = owner.object;
            set_trivial_acl(&mut dir);
            let plan = self.plan(&dir, slots).await?;
            // A placeholder, so that the owner's layout is right; the number follows within the transaction.
            attrs.xattr = Some(0);
            HiddenDir::New(Box::new(dir), plan)
        };
        let file = self.hidden_attrs(owner, FileType::Regular, cred)?;
        let plan = self.plan(&file, slots).await?;
        Ok(Some(Hidden {
            dir,
            file,
            plan,
            slots,
        }))
    }

    fn hidden_attrs(&self, owner: &Znode, file_type: FileType, cred: &Cred) -> FsResult<Attrs> {
        let kind = NewFile {
            file_type,
            rdev: DeviceNumber::default(),
            target: &[],
        };
        let mut attrs = self.new_attrs(&owner.attrs.borrow(), &kind, &SetAttr::default(), cred)?;
        attrs.flags |= XATTR;
        set_trivial_acl(&mut attrs);
        Ok(attrs)
    }

    /// Removes the old file of a name and makes the new one, as asked for.
    async fn apply_hidden(
        &self,
        (owner_id, owner, records): (u64, &mut Attrs, &mut Vec<zil::Intent>),
        hidden: Option<Hidden>,
        name: &[u8],
        old: Option<(Vec<u8>, ObjectId)>,
        value: Option<&[u8]>,
        tx: &Tx,
    ) -> FsResult<()> {
        let os = self.os();
        let had_dir = owner.xattr.filter(|&dir| dir != 0);
        let mut grown: i64 = 0;
        if let (Some((old_name, file)), Some(dir)) = (old, had_dir) {
            zap::remove(os, ObjectId(dir), &old_name, tx).await?;
            records.push(remove_record(dir, &old_name));
            self.0.znodes.remove(file.0);
            os.free_object(file, tx).await?;
            grown -= 1;
        }
        let mut dir = match (hidden.as_ref().map(|h| &h.dir), had_dir) {
            (Some(HiddenDir::Existing(dir)), _) => Some(Rc::clone(dir)),
            (None, Some(dir)) if grown != 0 => Some(self.entry_znode(dir).await?),
            _ => None,
        };
        if let (Some(hidden), Some(value)) = (hidden, value) {
            let dir = match hidden.dir {
                HiddenDir::Existing(dir) => dir,
                HiddenDir::New(attrs, plan) => {
                    let made = self.allocate(*attrs, &plan, hidden.slots, tx).await?;
                    owner.xattr = Some(made.object);
                    records.push(hidden_dir_record(owner_id, &made));
                    made
                }
            };
            let mut attrs = hidden.file;
            attrs.size = value.len() as u64;
            attrs.parent = dir.object;
            let file = self.allocate(attrs, &hidden.plan, hidden.slots, tx).await?;
            if !value.is_empty() {
                let block = value.len().next_multiple_of(512).min(128 << 10);
                let block = u32::try_from(block).expect("bounded");
                if block > 512 {
                    os.set_block_size(file.object_id(), block, tx).await?;
                    file.set_block_size(block);
                }
                os.write(file.object_id(), 0, value, tx).await?;
            }
            zap::add_u64(
                os,
                dir.object_id(),
                name,
                self.entry_value(FileType::Regular, file.object),
                tx,
            )
            .await?;
            records.extend(hidden_file_records(dir.object, name, &file, value));
            grown += 1;
            return self.store_hidden_dir(&dir, grown, tx).await;
        }
        if let Some(dir) = dir.take() {
            self.store_hidden_dir(&dir, grown, tx).await?;
        }
        Ok(())
    }

    pub(crate) async fn store_hidden_dir(&self, dir: &Znode, grown: i64, tx: &Tx) -> FsResult<()> {
        let mut attrs = dir.attrs.borrow().clone();
        attrs.size = attrs.size.saturating_add_signed(grown).max(2);
        attrs.mtime = self.now();
        attrs.ctime = attrs.mtime;
        // Its attributes keep their shape, so its layout is known.
        let plan = dir.plan.borrow().as_ref().map(|(_, plan)| plan.clone());
        match plan {
            Some(plan) => self.store(dir, attrs, &plan, tx).await,
            None => Ok(()),
        }
    }

    /// Checks that the caller may read or change an extended attribute.
    fn check_xattr(&self, znode: &Znode, name: &[u8], cred: &Cred, change: bool) -> FsResult<()> {
        let attrs = znode.attrs.borrow();
        let root = cred.uid == 0;
        if change && attrs.flags & (flags::IMMUTABLE | flags::APPENDONLY) != 0 {
            return Err(FsError::NotPermitted);
        }
        let deny = |wanted: bool| {
            if wanted {
                Err(FsError::NotPermitted)
            } else {
                Err(FsError::NoAttribute)
            }
        };
        let file_type = FileType::of_mode(attrs.mode);
        if name.starts_with(USER) && name.len() > USER.len() {
            if !matches!(file_type, Some(FileType::Regular | FileType::Directory)) {
                return deny(change);
            }
            if change
                && attrs.mode & 0o1000 != 0
                && attrs.mode >> 12 == 4
                && !permission::owns(&attrs, cred)
            {
                return Err(FsError::NotPermitted);
            }
            return permission::check(&attrs, cred, if change { WRITE } else { READ });
        }
        if name.starts_with(TRUSTED) && name.len() > TRUSTED.len() {
            return if root { Ok(()) } else { deny(change) };
        }
        if name.starts_with(SECURITY) && name.len() > SECURITY.len() {
            return if change && !root {
                Err(FsError::NotPermitted)
            } else {
                Ok(())
            };
        }
        if is_posix_list(name) || name == list_rules::XDR {
            return self.check_list_attribute(&attrs, name, cred, change);
        }
        Err(FsError::NotSupported)
    }
}

/// What an attribute kept as a file needs.
struct Hidden {
    dir: HiddenDir,
    file: Attrs,
    plan: crate::sa::Plan,
    slots: u8,
}

enum HiddenDir {
    Existing(Rc<Znode>),
    New(Box<Attrs>, crate::sa::Plan),
}
