//! Making files: regular, directories, symbolic links, special nodes; and further names of existing ones.

use std::cell::Cell;
use std::rc::Rc;

use dmu::zap::{self, ZapSpec};
use dmu::{AllocSpec, Tx};
use ondisk::ObjectId;
use ondisk::nvlist::NvValue;

use crate::acl::posix::{self, PosixAcl};
use crate::backing::{META_BYTES, Weight};
use crate::fs::{Fs, TYPE_DIRECTORY, TYPE_FILE};
use crate::names::OBJECT_MASK;
use crate::permission::{self, EXECUTE, WRITE};
use crate::sa::attrs::stored_time;
use crate::sa::{Attrs, BONUS_SA, BONUS_ZNODE, Plan, StoredAttrs, legacy};
use crate::znode::{ACL_AUTO_INHERIT, PROJID, XATTR, Znode, ZnodeParts, stored_device};
use crate::{
    CreateMode, Cred, DeviceNumber, FileId, FileType, FsError, FsResult, Made, SetAttr, SetTime,
    Timestamp, XattrMode, flags,
};

/// Longest target of a symbolic link; Linux: PATH_MAX without the NUL.
const TARGET_MAX: usize = 4095;
/// Most names of a file. OpenZFS has no limit below 2^64; clients know at most 32 bits.
const LINKS_MAX: u64 = u32::MAX as u64;

/// An extended attribute that a new file is given: name and value.
pub(crate) type Listed = (&'static [u8], Vec<u8>);

/// What kind of file to make.
pub(crate) struct NewFile<'a> {
    pub(crate) file_type: FileType,
    pub(crate) rdev: DeviceNumber,
    pub(crate) target: &'a [u8],
}

impl NewFile<'_> {
    fn plain(file_type: FileType) -> Self {
        NewFile {
            file_type,
            rdev: DeviceNumber::default(),
            target: &[],
        }
    }
}

impl Fs {
    /// Creates a regular file.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::Access`], [`FsError::NameTooLong`], [`FsError::IllegalName`],
    /// [`FsError::NotDirectory`], [`FsError::NotFound`] (the directory is removed), [`FsError::NoSpace`],
    /// [`FsError::Quota`], [`FsError::ReadOnly`].
    pub async fn create(
        &self,
        dir: FileId,
        name: &[u8],
        mode: CreateMode,
        set: &SetAttr,
        cred: &Cred,
    ) -> FsResult<Made> {
        self.make(
            dir,
            name,
            &NewFile::plain(FileType::Regular),
            mode,
            set,
            cred,
        )
        .await
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// Those of [`Fs::create`].
    pub async fn mkdir(
        &self,
        dir: FileId,
        name: &[u8],
        set: &SetAttr,
        cred: &Cred,
    ) -> FsResult<Made> {
        self.make(
            dir,
            name,
            &NewFile::plain(FileType::Directory),
            CreateMode::Guarded,
            set,
            cred,
        )
        .await
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// Those of [`Fs::create`]; [`FsError::NameTooLong`] and [`FsError::Invalid`] for the target too.
    pub async fn symlink(
        &self,
        dir: FileId,
        name: &[u8],
        target: &[u8],
        set: &SetAttr,
        cred: &Cred,
    ) -> FsResult<Made> {
        if target.len() > TARGET_MAX {
            return Err(FsError::NameTooLong);
        }
        if target.contains(&0) {
            return Err(FsError::Invalid);
        }
        let kind = NewFile {
            file_type: FileType::Symlink,
            rdev: DeviceNumber::default(),
            target,
        };
        self.make(dir, name, &kind, CreateMode::Guarded, set, cred)
            .await
    }

    /// Makes a pipe, socket or device node (or an empty regular file).
    ///
    /// # Errors
    /// Those of [`Fs::create`]; [`FsError::NotPermitted`] when a caller other than root makes a device;
    /// [`FsError::Invalid`] for directories and symbolic links.
    pub async fn mknod(
        &self,
        dir: FileId,
        name: &[u8],
        file_type: FileType,
        rdev: DeviceNumber,
        set: &SetAttr,
        cred: &Cred,
    ) -> FsResult<Made> {
        match file_type {
            FileType::Directory | FileType::Symlink => return Err(FsError::Invalid),
            FileType::Block | FileType::Character if cred.uid != 0 => {
                return Err(FsError::NotPermitted);
            }
            _ => {}
        }
        let kind = NewFile {
            file_type,
            rdev,
            target: &[],
        };
        self.make(dir, name, &kind, CreateMode::Guarded, set, cred)
            .await
    }

    async fn make(
        &self,
        dir: FileId,
        name: &[u8],
        kind: &NewFile<'_>,
        mode: CreateMode,
        set: &SetAttr,
        cred: &Cred,
    ) -> FsResult<Made> {
        let dir = self.directory(dir).await?;
        permission::check(&dir.attrs.borrow(), cred, EXECUTE)?;
        match name {
            b"" => return Err(FsError::NotFound),
            b"." | b".." => return Err(FsError::Exists),
            _ => self.check_name(name)?,
        }
        let lock = dir.exclusive().await?;
        let before = dir.wcc();
        if let Some(found) = self.find(&dir, name).await? {
            let file = self.entry_znode(found.object).await?;
            drop(lock);
            return self.existing(&dir, &file, mode, set, cred).await;
        }
        self.check_writable()?;
        if dir.attrs.borrow().links == 0 || dir.unlinked.get() {
            return Err(FsError::NotFound);
        }
        let is_dir = kind.file_type == FileType::Directory;
        permission::check_add(&dir.attrs.borrow(), is_dir, cred)?;
        let mut set = *set;
        let default = if kind.file_type == FileType::Symlink {
            None
        } else {
            self.default_acl(&dir).await?
        };
        if default.is_some() {
            set.umask = 0;
        }
        let mut attrs = self.new_attrs(&dir.attrs.borrow(), kind, &set, cred)?;
        let listed = match default {
            Some(default) => self.give_default(&mut attrs, default)?,
            None => Vec::new(),
        };
        attrs.parent = dir.object;
        if let CreateMode::Exclusive(verifier) = mode {
            (attrs.atime, attrs.mtime) = verifier_times(verifier);
            // Whatever they are set to: the log has to remember them.
            (set.atime, set.mtime) = (Some(SetTime::Server), Some(SetTime::Server));
        }
        self.check_quota(&attrs, true).await?;
        let file = self.insert(&dir, name, attrs, &set, &listed).await?;
        drop(lock);
        if !self.settings().xattr_sa {
            for (attribute, value) in &listed {
                let _lock = file.exclusive().await?;
                let any = XattrMode::Any;
                self.replace_locked(&file, attribute, Some(value), any, &Cred::root())
                    .await?;
            }
        }
        self.cache_xattrs(&file);
        self.settle(&dir).await?;
        let made = self.made(&file, before, &dir, true).await?;
        match set.size {
            Some(size) if size > 0 && kind.file_type == FileType::Regular => {
                self.with_first_size(made, &file, size, cred).await
            }
            _ => Ok(made),
        }
    }

    /// A size given at creation is a hole.
    async fn with_first_size(
        &self,
        made: Made,
        file: &Znode,
        size: u64,
        cred: &Cred,
    ) -> FsResult<Made> {
        let opened = Cred {
            opened: true,
            ..cred.clone()
        };
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        let change = self.setattr(file.id(), &set, None, &opened).await?;
        Ok(Made {
            file: change.after,
            ..made
        })
    }

    /// Makes a file with these attributes and a name that is free; the caller holds the directory's lock.
    pub(crate) async fn insert(
        &self,
        dir: &Rc<Znode>,
        name: &[u8],
        attrs: Attrs,
        set: &SetAttr,
        listed: &[Listed],
    ) -> FsResult<Rc<Znode>> {
        let file_type = FileType::of_mode(attrs.mode).ok_or(FsError::Invalid)?;
        let given = self.0.given.get();
        let slots = given.map_or(self.settings().dnode_slots, |given| given.slots);
        let plan = self.plan(&attrs, slots).await?;
        let mut dir_attrs = dir.attrs.borrow().clone();
        let dir_plan = self.plan_for(dir, &dir_attrs).await?;
        let tx = self.begin(Weight::Bytes(2 * META_BYTES)).await?;
        let file = self.allocate(attrs, &plan, slots, &tx).await?;
        let value = self.entry_value(file_type, file.object);
        if let Err(error) = self.add_name(dir, name, value, &tx).await {
            self.discard(&file, &tx).await;
            return Err(error);
        }
        dir_attrs.size += 1;
        dir_attrs.links += u64::from(file_type == FileType::Directory);
        dir_attrs.mtime = self.now();
        dir_attrs.ctime = dir_attrs.mtime;
        self.store(dir, dir_attrs, &dir_plan, &tx).await?;
        self.dirtied(&file, tx.txg());
        // Lists kept as files are logged as such.
        let listed = if self.settings().xattr_sa {
            listed
        } else {
            &[]
        };
        self.log_create(dir, name, &file, set, listed, &tx);
        Ok(file)
    }

    /// Decides what creating a name that is taken means.
    async fn existing(
        &self,
        dir: &Znode,
        file: &Rc<Znode>,
        mode: CreateMode,
        set: &SetAttr,
        cred: &Cred,
    ) -> FsResult<Made> {
        let regular = file.file_type() == FileType::Regular;
        match mode {
            CreateMode::Unchecked if regular => {
                if let Some(size) = set.size {
                    let size = SetAttr {
                        size: Some(size),
                        ..SetAttr::default()
                    };
                    self.setattr(file.id(), &size, None, cred).await?;
                }
            }
            CreateMode::Exclusive(verifier) if regular => {
                let attrs = file.attrs.borrow();
                if (attrs.atime, attrs.mtime) != verifier_times(verifier) {
                    return Err(FsError::Exists);
                }
            }
            _ => return Err(FsError::Exists),
        }
        self.made(file, dir.wcc(), dir, false).await
    }

    /// Returns the attributes of a new file in a directory, but for its generation and parent.
    pub(crate) fn new_attrs(
        &self,
        dir: &Attrs,
        kind: &NewFile<'_>,
        set: &SetAttr,
        cred: &Cred,
    ) -> FsResult<Attrs> {
        let root = cred.uid == 0;
        let is_dir = kind.file_type == FileType::Directory;
        let now = self.now();
        let time = |set: Option<SetTime>| match set {
            Some(SetTime::Client(time)) => stored_time(time),
            _ => now,
        };
        let mut attrs = Attrs::new();
        attrs.uid = u64::from(if root {
            set.uid.unwrap_or(cred.uid)
        } else {
            cred.uid
        });
        let set_gid_dir = dir.mode & 0o2000 != 0;
        // In a set-gid directory, files take its group and directories the bit too.
        attrs.gid = if set_gid_dir {
            dir.gid
        } else {
            let given = set.gid.filter(|&gid| root || cred.in_group(gid));
            u64::from(given.unwrap_or(cred.gid))
        };
        let mut mode = first_mode(kind.file_type, set);
        let in_group = u32::try_from(attrs.gid).is_ok_and(|gid| cred.in_group(gid));
        if is_dir && set_gid_dir {
            mode |= 0o2000;
        } else if !is_dir && !root && !in_group {
            mode &= !0o2000;
        }
        attrs.mode = kind.file_type.mode_bits() | mode;
        attrs.size = if is_dir { 2 } else { kind.target.len() as u64 };
        attrs.links = if is_dir { 2 } else { 1 };
        attrs.atime = time(set.atime);
        attrs.mtime = time(set.mtime);
        attrs.ctime = now;
        attrs.crtime = set.crtime.map_or(now, stored_time);
        attrs.flags = flags::ARCHIVE | flags::AV_MODIFIED;
        if self.0.master.has_records() {
            attrs.flags &= legacy::flags_known(self.0.master.version);
        }
        if is_dir {
            attrs.flags |= ACL_AUTO_INHERIT;
        }
        if self.settings().project_quota && (is_dir || kind.file_type == FileType::Regular) {
            give_project(dir, &mut attrs, is_dir);
        }
        match kind.file_type {
            FileType::Block | FileType::Character => attrs.rdev = Some(stored_device(kind.rdev)),
            FileType::Symlink => attrs.symlink = Some(Rc::from(kind.target)),
            _ => {}
        }
        if let Some(change) = set.flags.filter(|_| root) {
            attrs.flags |= change.set & flags::SETTABLE;
        }
        self.give_first_list(dir, &mut attrs)?;
        attrs.check_lengths()?;
        Ok(attrs)
    }

    /// Gives a new file the POSIX ACLs that follow from its directory's default. Returns the extended attributes they
    /// are; in a file system that keeps such in a list they are already in it.
    fn give_default(&self, attrs: &mut Attrs, default: PosixAcl) -> FsResult<Vec<Listed>> {
        let mut listed = Vec::new();
        if attrs.mode >> 12 == 4 {
            listed.push((posix::DEFAULT, default.encode()));
        }
        let mut access = default;
        let mode = (attrs.mode & !0o777) | access.meet_mode(attrs.mode);
        self.give_mode(attrs, mode)?;
        if !access.is_minimal() {
            listed.push((posix::ACCESS, access.encode()));
            attrs.posix = Some(Rc::new(access));
        }
        if self.settings().xattr_sa && !listed.is_empty() {
            let mut list = attrs.xattr_list()?;
            for (name, value) in &listed {
                list.insert(*name, NvValue::ByteArray(value.clone()));
            }
            attrs.dxattr = Some(Rc::from(list.encode_xdr()));
            attrs.check_lengths()?;
        }
        Ok(listed)
    }

    /// Allocates an object for attributes and stores them.
    pub(crate) async fn allocate(
        &self,
        mut attrs: Attrs,
        plan: &Plan,
        slots: u8,
        tx: &Tx,
    ) -> FsResult<Rc<Znode>> {
        let given = self.0.given.take();
        attrs.generation = given.map_or(tx.txg().0, |given| given.generation);
        let spill_attrs: &[u16] = plan.spill.as_ref().map_or(&[], |l| &l.attrs);
        attrs.order = plan
            .bonus
            .attrs
            .iter()
            .chain(spill_attrs)
            .copied()
            .collect();
        let acl_object = Cell::new(0);
        let StoredAttrs {
            bonus_type,
            bonus,
            spill,
        } = self.stored_attrs(&attrs, plan, &acl_object, tx).await?;
        let bonus_len = u16::try_from(bonus.len()).expect("a bonus is at most a dnode");
        if slots > 1 {
            self.0.backing.needs_large_dnodes();
        }
        let number = given.map(|given| given.object);
        let object = self
            .allocate_object(&attrs, (bonus_len, slots), number, tx)
            .await?;
        self.os().set_bonus(object, bonus_type, &bonus, tx).await?;
        self.write_long_target(object, &attrs, tx).await?;
        if !spill.is_empty() {
            self.os().set_spill(object, Some(&spill), tx).await?;
        }
        let parts = ZnodeParts {
            object: object.0,
            attrs,
            plan: Some(plan.clone()),
            block_size: 512,
            slots,
            has_spill: !spill.is_empty(),
            legacy: bonus_type == BONUS_ZNODE,
            acl_object: acl_object.get(),
        };
        let znode = Znode::new(parts, self.0.attr_cache.clone(), tx.txg());
        znode.last_txg.set(tx.txg());
        znode.acl_seen.set(self.0.acl_epoch.get());
        // The number may be that of a file just freed: nothing of it may answer for the new one.
        self.0.znodes.remove(object.0);
        Ok(self.0.znodes.insert(znode))
    }

    /// Allocates the object of a file with these attributes; a record under replay says which `number` it has.
    async fn allocate_object(
        &self,
        attrs: &Attrs,
        (bonus_len, slots): (u16, u8),
        number: Option<ObjectId>,
        tx: &Tx,
    ) -> FsResult<ObjectId> {
        let is_dir = attrs.mode >> 12 == 4;
        let bonus_type = if self.0.master.has_records() {
            BONUS_ZNODE
        } else {
            BONUS_SA
        };
        if !is_dir {
            let spec = AllocSpec::new(TYPE_FILE)
                .bonus(bonus_type, bonus_len)
                .slots(slots);
            let Some(number) = number else {
                return Ok(self.os().allocate(spec, tx).await?);
            };
            self.os().allocate_at(number, spec, tx).await?;
            return Ok(number);
        }
        let normalization = if attrs.flags & XATTR != 0 {
            0
        } else {
            self.0.master.directory_flags()
        };
        let spec = ZapSpec {
            normalization,
            bonus: (bonus_type, bonus_len),
            slots,
            ..ZapSpec::new(TYPE_DIRECTORY)
        };
        let Some(number) = number else {
            return Ok(zap::create(self.os(), &spec, tx).await?);
        };
        zap::create_at(self.os(), number, &spec, tx).await?;
        Ok(number)
    }

    /// Writes the target of a symbolic link that does not lie behind its record: it is the object's content.
    // OpenZFS: module/zfs/zfs_sa.c, zfs_sa_symlink
    async fn write_long_target(&self, object: ObjectId, attrs: &Attrs, tx: &Tx) -> FsResult<()> {
        let Some(target) = attrs.symlink.as_deref() else {
            return Ok(());
        };
        if !self.0.master.has_records() || legacy::is_short_target(target) {
            return Ok(());
        }
        let len = u32::try_from(target.len().next_multiple_of(512)).expect("a path's length");
        self.os().set_block_size(object, len, tx).await?;
        self.os().write(object, 0, target, tx).await?;
        Ok(())
    }

    /// Takes back an object that got no name.
    async fn discard(&self, znode: &Znode, tx: &Tx) {
        znode.set_dead();
        self.0.znodes.remove(znode.object);
        // Best effort: the error that made this necessary is the one to report.
        let _ = self.os().free_object(ObjectId(znode.object), tx).await;
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// [`FsError::NotPermitted`] for a directory; [`FsError::Exists`], [`FsError::TooManyLinks`], [`FsError::Access`],
    /// [`FsError::NotFound`] when the file has no name any more.
    pub async fn link(&self, id: FileId, dir: FileId, name: &[u8], cred: &Cred) -> FsResult<Made> {
        self.check_writable()?;
        let file = self.znode(id).await?;
        let dir = self.directory(dir).await?;
        if file.is_dir() {
            return Err(FsError::NotPermitted);
        }
        permission::check(&dir.attrs.borrow(), cred, EXECUTE)?;
        match name {
            b"" => return Err(FsError::NotFound),
            b"." | b".." => return Err(FsError::Exists),
            _ => self.check_name(name)?,
        }
        let dir_lock = dir.exclusive().await?;
        let file_lock = file.exclusive().await?;
        self.check_delegations(&file, cred)?;
        let before = dir.wcc();
        if self.find(&dir, name).await?.is_some() {
            return Err(FsError::Exists);
        }
        if dir.attrs.borrow().links == 0 || dir.unlinked.get() {
            return Err(FsError::NotFound);
        }
        permission::check_add(&dir.attrs.borrow(), false, cred)?;
        let mut attrs = file.attrs.borrow().clone();
        if attrs.links == 0 {
            return Err(FsError::NotFound);
        }
        if attrs.links >= LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }
        if attrs.flags & (flags::IMMUTABLE | flags::APPENDONLY) != 0 || attrs.flags & XATTR != 0 {
            return Err(FsError::NotPermitted);
        }
        let mut dir_attrs = dir.attrs.borrow().clone();
        check_project(&dir_attrs, &attrs)?;
        let now = self.now();
        attrs.links += 1;
        attrs.ctime = now;
        attrs.parent = dir.object;
        dir_attrs.size += 1;
        dir_attrs.mtime = now;
        dir_attrs.ctime = now;
        let plan = self.plan_for(&file, &attrs).await?;
        let dir_plan = self.plan_for(&dir, &dir_attrs).await?;
        let tx = self.begin(Weight::Bytes(META_BYTES)).await?;
        let value = self.entry_value(file.file_type(), file.object & OBJECT_MASK);
        self.add_name(&dir, name, value, &tx).await?;
        self.store(&file, attrs, &plan, &tx).await?;
        self.store(&dir, dir_attrs, &dir_plan, &tx).await?;
        self.log_link(&dir, name, &file, &tx);
        drop(tx);
        drop(file_lock);
        drop(dir_lock);
        self.settle(&dir).await?;
        self.made(&file, before, &dir, true).await
    }
}

/// Checks that a file may get a name in a directory whose project its files take.
///
/// # Errors
/// [`FsError::CrossDevice`], so that callers copy instead.
pub(crate) fn check_project(dir: &Attrs, file: &Attrs) -> FsResult<()> {
    let inherits = dir.flags & flags::PROJINHERIT != 0;
    if inherits && dir.project.unwrap_or(0) != file.project.unwrap_or(0) {
        return Err(FsError::CrossDevice);
    }
    Ok(())
}

/// The permission bits of a new file, before its directory and its group have their say.
fn first_mode(file_type: FileType, set: &SetAttr) -> u64 {
    let default_mode = match file_type {
        FileType::Directory => 0o755,
        FileType::Symlink => return 0o777,
        _ => 0o644,
    };
    u64::from(set.mode.unwrap_or(default_mode) & 0o7777 & !(set.umask & 0o777))
}

/// Gives a new file its project: its directory's, where that says so.
fn give_project(dir: &Attrs, attrs: &mut Attrs, is_dir: bool) {
    let inherits = dir.flags & flags::PROJINHERIT != 0;
    attrs.project = Some(if inherits {
        dir.project.unwrap_or(0)
    } else {
        0
    });
    attrs.flags |= PROJID;
    if inherits && is_dir {
        attrs.flags |= flags::PROJINHERIT;
    }
}

/// Checks write permission on a directory that is itself moved: its entry `..` changes.
pub(crate) fn check_moved_directory(dir: &Attrs, cred: &Cred) -> FsResult<()> {
    permission::check(dir, cred, WRITE)
}

/// Returns the access and modification times that keep the verifier of an exclusive create: clients set both anew when
/// they learn that it succeeded. Seconds stay in 31 bits, so that every client can show them.
fn verifier_times(verifier: u64) -> ([u64; 2], [u64; 2]) {
    let time = |half: u64| {
        stored_time(Timestamp {
            seconds: i64::try_from(half & 0x7fff_ffff).expect("31 bits"),
            nanoseconds: u32::try_from(half >> 31).expect("one bit"),
        })
    };
    (time(verifier & 0xffff_ffff), time(verifier >> 32))
}
