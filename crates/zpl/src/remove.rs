//! Taking names away: remove, rmdir, rename.

use std::rc::Rc;

use dmu::Tx;
use dmu::zap::{self, ZapValue};
use runtime::sync::MutexGuard;

use crate::backing::{META_BYTES, Weight};
use crate::fs::Fs;
use crate::make::{check_moved_directory, check_project};
use crate::permission::{self, EXECUTE};
use crate::sa::Attrs;
use crate::znode::{Exclusive, XATTR, Znode};
use crate::{Change, Cred, FileId, FsError, FsResult, Renamed, WccAttr};

/// Deepest chain of directories that is followed upwards; a longer one is a loop in damaged data.
const DEPTH_MAX: usize = 1 << 20;

impl Fs {
    /// Removes a name of anything but a directory.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::IsDirectory`], [`FsError::Access`], [`FsError::NotPermitted`] (sticky
    /// directory, immutable), [`FsError::ReadOnly`]. Works on a full pool.
    pub async fn remove(&self, dir: FileId, name: &[u8], cred: &Cred) -> FsResult<Change> {
        self.take_name(dir, name, false, cred).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotDirectory`], [`FsError::NotEmpty`], [`FsError::Invalid`] for `.`,
    /// [`FsError::Access`], [`FsError::NotPermitted`], [`FsError::ReadOnly`].
    pub async fn rmdir(&self, dir: FileId, name: &[u8], cred: &Cred) -> FsResult<Change> {
        match name {
            b"." => Err(FsError::Invalid),
            b".." => Err(FsError::NotEmpty),
            _ => self.take_name(dir, name, true, cred).await,
        }
    }

    async fn take_name(
        &self,
        dir: FileId,
        name: &[u8],
        is_dir: bool,
        cred: &Cred,
    ) -> FsResult<Change> {
        self.check_writable()?;
        let dir = self.directory(dir).await?;
        permission::check(&dir.attrs.borrow(), cred, EXECUTE)?;
        if name == b"." || name == b".." {
            return Err(FsError::IsDirectory);
        }
        self.check_name(name)?;
        let dir_lock = dir.exclusive().await?;
        let before = dir.wcc();
        let found = self.find(&dir, name).await?.ok_or(FsError::NotFound)?;
        let file = self.entry_znode(found.object).await?;
        match (is_dir, file.is_dir()) {
            (true, false) => return Err(FsError::NotDirectory),
            (false, true) => {
                permission::check_remove(&dir.attrs.borrow(), &file.attrs.borrow(), cred)?;
                return Err(FsError::IsDirectory);
            }
            _ => {}
        }
        let file_lock = file.exclusive().await?;
        permission::check_remove(&dir.attrs.borrow(), &file.attrs.borrow(), cred)?;
        self.check_delegations(&file, cred)?;
        if is_dir && file.size() > 2 {
            return Err(FsError::NotEmpty);
        }
        let mut attrs = file.attrs.borrow().clone();
        let mut dir_attrs = dir.attrs.borrow().clone();
        let now = self.now();
        attrs.links = if is_dir {
            0
        } else {
            attrs.links.saturating_sub(1)
        };
        attrs.ctime = now;
        dir_attrs.size = dir_attrs.size.saturating_sub(1).max(2);
        dir_attrs.links = dir_attrs.links.saturating_sub(u64::from(is_dir));
        dir_attrs.mtime = now;
        dir_attrs.ctime = now;
        let last = attrs.links == 0;
        let plan = self.plan_for(&file, &attrs).await?;
        let dir_plan = self.plan_for(&dir, &dir_attrs).await?;
        let tx = self.begin(Weight::Frees).await?;
        self.remove_name(&dir, &found.stored, &tx).await?;
        self.store(&file, attrs, &plan, &tx).await?;
        let free_later = last && self.unlink_last(&file, &tx).await?;
        self.store(&dir, dir_attrs, &dir_plan, &tx).await?;
        self.log_remove(dir.object, &found.stored, is_dir, &tx);
        drop(tx);
        drop(file_lock);
        drop(dir_lock);
        if free_later {
            self.queue_free(&file);
        }
        self.settle(&dir).await?;
        self.change_of(before, &dir).await
    }

    /// Renames, replacing an existing file or empty directory. Two names of one file stay as they are.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotDirectory`] and [`FsError::IsDirectory`] (one is a directory, the other is
    /// not), [`FsError::NotEmpty`], [`FsError::Invalid`] (a directory into itself, `.` and `..`), [`FsError::Access`],
    /// [`FsError::NotPermitted`], [`FsError::CrossDevice`] (another project), [`FsError::ReadOnly`].
    pub async fn rename(
        &self,
        from: FileId,
        from_name: &[u8],
        to: FileId,
        to_name: &[u8],
        cred: &Cred,
    ) -> FsResult<Renamed> {
        let dirs = self.directories(from, to, cred).await?;
        self.check_renamed_names(&dirs, [from_name, to_name])?;
        let locked = self.lock_directories(&dirs).await?;
        let (from, to) = (&dirs.from, &dirs.to);

        let found = self.find(from, from_name).await?.ok_or(FsError::NotFound)?;
        let source = self.entry_znode(found.object).await?;
        permission::check_remove(&from.attrs.borrow(), &source.attrs.borrow(), cred)?;
        if source.object == to.object || locked.above_to.contains(&source.object) {
            return Err(FsError::Invalid);
        }
        if to.attrs.borrow().links == 0 || to.unlinked.get() {
            return Err(FsError::NotFound);
        }
        let target_found = self.find(to, to_name).await?;
        let target = match &target_found {
            Some(found) => Some(self.entry_znode(found.object).await?),
            None => None,
        };
        // Where case does not count, the new name may find the file itself under its old name.
        let respelled = dirs.are_one()
            && target_found
                .as_ref()
                .is_some_and(|t| t.object == source.object && t.stored == found.stored)
            && found.stored != to_name;
        let target = if respelled { None } else { target };
        if let Some(target) = &target {
            if Rc::ptr_eq(target, &source) {
                return self.renamed(locked.before, from, to).await;
            }
            check_replaced(&source, target)?;
            if target.object == from.object || locked.above_from.contains(&target.object) {
                return Err(FsError::NotEmpty);
            }
            permission::check_remove(&to.attrs.borrow(), &target.attrs.borrow(), cred)?;
        } else {
            permission::check_add(&to.attrs.borrow(), source.is_dir(), cred)?;
        }
        self.check_moved(&dirs, &source, to, cred).await?;

        let children = lock_children(&source, target.as_ref()).await?;
        self.check_all_delegations([Some(&source), target.as_ref()], cred)?;
        if target.as_ref().is_some_and(|t| t.is_dir() && t.size() > 2) {
            return Err(FsError::NotEmpty);
        }
        let move_ = Move {
            dirs: &dirs,
            source: &source,
            target: target.as_ref(),
        };
        let replaced = target_found.as_ref().filter(|_| target.is_some());
        let stored = replaced.map(|found| found.stored.as_slice());
        let free_later = self
            .do_rename(&move_, &found.stored, stored, to_name)
            .await?;
        drop(children);
        if let Some(target) = target.as_ref().filter(|_| free_later) {
            self.queue_free(target);
        }
        self.settle(to).await?;
        self.renamed(locked.before, from, to).await
    }

    /// Changes what a checked rename changes. Returns whether the replaced file is to be freed in the background.
    async fn do_rename(
        &self,
        what: &Move<'_>,
        from_name: &[u8],
        replaced_name: Option<&[u8]>,
        to_name: &[u8],
    ) -> FsResult<bool> {
        let Move {
            dirs,
            source,
            target,
        } = what;
        let (from, to) = (&dirs.from, &dirs.to);
        let now = self.now();
        let source_attrs = moved(source, to, now);
        let (from_attrs, to_attrs) = what.directories_after(now);
        let target_attrs = target.map(|target| {
            let mut attrs = target.attrs.borrow().clone();
            attrs.links = match source.is_dir() {
                true => 0,
                false => attrs.links.saturating_sub(1),
            };
            attrs.ctime = now;
            attrs
        });
        let source_plan = self.plan_for(source, &source_attrs).await?;
        let from_plan = self.plan_for(from, &from_attrs).await?;
        let to_plan = self.plan_for(to, &to_attrs).await?;
        let target_plan = match (target, &target_attrs) {
            (Some(target), Some(attrs)) => Some(self.plan_for(target, attrs).await?),
            _ => None,
        };

        let tx = self.begin(Weight::Bytes(2 * META_BYTES)).await?;
        self.remove_name(from, from_name, &tx).await?;
        self.put_name(what, replaced_name, to_name, &tx).await?;
        self.store(source, source_attrs, &source_plan, &tx).await?;
        self.store(from, from_attrs, &from_plan, &tx).await?;
        if !dirs.are_one() {
            self.store(to, to_attrs, &to_plan, &tx).await?;
        }
        let mut free_later = false;
        if let (Some(target), Some(attrs), Some(plan)) = (target, target_attrs, target_plan) {
            let last = attrs.links == 0;
            self.store(target, attrs, &plan, &tx).await?;
            free_later = last && self.unlink_last(target, &tx).await?;
        }
        self.log_rename(from, from_name, to, to_name, source, &tx);
        Ok(free_later)
    }

    /// Gives the moved file its new name, in place of the one that is replaced.
    async fn put_name(
        &self,
        what: &Move<'_>,
        replaced: Option<&[u8]>,
        name: &[u8],
        tx: &Tx,
    ) -> FsResult<()> {
        let value = self.entry_value(what.source.file_type(), what.source.object);
        let dir = &what.dirs.to;
        match replaced {
            Some(replaced) if replaced == name => {
                self.note_name(name);
                let value = ZapValue::U64(vec![value]);
                Ok(zap::update(self.os(), dir.object_id(), name, &value, tx).await?)
            }
            other => {
                // Where case does not count, the name is from now on spelled as given.
                if let Some(other) = other {
                    self.remove_name(dir, other, tx).await?;
                }
                self.add_name(dir, name, value, tx).await
            }
        }
    }

    /// Has two names change what they stand for, both or none.
    ///
    /// # Errors
    /// As of [`Fs::rename`], where both names must exist.
    pub async fn exchange(
        &self,
        from: FileId,
        from_name: &[u8],
        to: FileId,
        to_name: &[u8],
        cred: &Cred,
    ) -> FsResult<Renamed> {
        let dirs = self.directories(from, to, cred).await?;
        self.check_renamed_names(&dirs, [from_name, to_name])?;
        let locked = self.lock_directories(&dirs).await?;
        let (from, to) = (&dirs.from, &dirs.to);
        let one_found = self.find(from, from_name).await?;
        let one_found = one_found.ok_or(FsError::NotFound)?;
        let other_found = self.find(to, to_name).await?.ok_or(FsError::NotFound)?;
        let one = self.entry_znode(one_found.object).await?;
        let other = self.entry_znode(other_found.object).await?;
        if Rc::ptr_eq(&one, &other) {
            return self.renamed(locked.before, from, to).await;
        }
        // Neither may come to lie in itself.
        for (moved, dir, above) in [
            (&one, to, &locked.above_to),
            (&other, from, &locked.above_from),
        ] {
            if moved.object == dir.object || above.contains(&moved.object) {
                return Err(FsError::Invalid);
            }
        }
        for (dir, moved, target) in [(from, &one, to), (to, &other, from)] {
            permission::check_remove(&dir.attrs.borrow(), &moved.attrs.borrow(), cred)?;
            self.check_moved(&dirs, moved, target, cred).await?;
        }
        // By number, whatever they are: neither is above the other, or one would have come to lie in itself.
        let (low, high) = if one.object < other.object {
            (&one, &other)
        } else {
            (&other, &one)
        };
        let (low_lock, high_lock) = (low.exclusive().await?, high.exclusive().await?);
        self.check_all_delegations([Some(low), Some(high)], cred)?;
        let now = self.now();
        let (one_attrs, other_attrs) = (moved(&one, to, now), moved(&other, from, now));
        let from_attrs = dirs.after_exchange(from, &other, &one, now);
        let to_attrs = dirs.after_exchange(to, &one, &other, now);
        let one_plan = self.plan_for(&one, &one_attrs).await?;
        let other_plan = self.plan_for(&other, &other_attrs).await?;
        let from_plan = self.plan_for(from, &from_attrs).await?;
        let to_plan = self.plan_for(to, &to_attrs).await?;
        let tx = self.begin(Weight::Bytes(2 * META_BYTES)).await?;
        for (dir, found, file) in [(from, &one_found, &other), (to, &other_found, &one)] {
            let value = ZapValue::U64(vec![self.entry_value(file.file_type(), file.object)]);
            zap::update(self.os(), dir.object_id(), &found.stored, &value, &tx).await?;
        }
        self.store(&one, one_attrs, &one_plan, &tx).await?;
        self.store(&other, other_attrs, &other_plan, &tx).await?;
        self.store(from, from_attrs, &from_plan, &tx).await?;
        if !dirs.are_one() {
            self.store(to, to_attrs, &to_plan, &tx).await?;
        }
        let (one_name, other_name) = (&one_found.stored, &other_found.stored);
        self.log_exchange(from, one_name, to, other_name, [&one, &other], &tx);
        drop(tx);
        drop((low_lock, high_lock));
        self.settle(to).await?;
        self.renamed(locked.before, from, to).await
    }

    /// Finds the directories of a rename. The caller may search both.
    async fn directories(&self, from: FileId, to: FileId, cred: &Cred) -> FsResult<Directories> {
        self.check_writable()?;
        let from = self.directory(from).await?;
        let to = self.directory(to).await?;
        for dir in [&from, &to] {
            permission::check(&dir.attrs.borrow(), cred, EXECUTE)?;
        }
        Ok(Directories { from, to })
    }

    /// Checks names that files shall have from now on, or had, before it is known of which.
    fn check_renamed_names(&self, dirs: &Directories, names: [&[u8]; 2]) -> FsResult<()> {
        for name in names {
            if name == b"." || name == b".." {
                return Err(FsError::Invalid);
            }
            self.check_name(name)?;
        }
        match (dirs.from.flags() ^ dirs.to.flags()) & XATTR {
            0 => Ok(()),
            _ => Err(FsError::CrossDevice),
        }
    }

    /// Locks the directories of a rename.
    async fn lock_directories<'a>(&self, dirs: &'a Directories) -> FsResult<LockedDirectories<'a>> {
        let Directories { from, to } = dirs;
        // Only this lock's holder changes which directory lies in which, so what it finds above `to` stays true.
        let topology = match dirs.are_one() {
            true => None,
            false => Some(self.0.rename_lock.lock().await),
        };
        let (above_to, above_from) = match dirs.are_one() {
            true => (Vec::new(), Vec::new()),
            false => (self.ancestors(to).await?, self.ancestors(from).await?),
        };
        // The upper directory first: every other operation locks downwards, too.
        let (first, second) = self
            .lock_pair(from, to, above_from.contains(&to.object))
            .await?;
        Ok(LockedDirectories {
            _second: second,
            _first: first,
            _topology: topology,
            above_from,
            above_to,
            before: (from.wcc(), to.wcc()),
        })
    }

    /// Checks that a file may come to lie in a directory of a rename.
    async fn check_moved(
        &self,
        dirs: &Directories,
        moved: &Rc<Znode>,
        to: &Znode,
        cred: &Cred,
    ) -> FsResult<()> {
        if !dirs.are_one() && moved.is_dir() {
            self.look_at_acl(moved).await?;
            check_moved_directory(&moved.attrs.borrow(), cred)?;
        }
        check_project(&to.attrs.borrow(), &moved.attrs.borrow())
    }

    async fn renamed(
        &self,
        before: (WccAttr, WccAttr),
        from: &Znode,
        to: &Znode,
    ) -> FsResult<Renamed> {
        Ok(Renamed {
            from: self.change_of(before.0, from).await?,
            to: self.change_of(before.1, to).await?,
        })
    }

    /// Returns the directories above one, up to the root.
    async fn ancestors(&self, dir: &Rc<Znode>) -> FsResult<Vec<u64>> {
        let mut above = Vec::new();
        let mut at = Rc::clone(dir);
        while at.object != self.root().object {
            if above.len() >= DEPTH_MAX {
                return Err(FsError::Corrupt("directories form a loop"));
            }
            let parent = at.attrs.borrow().parent;
            above.push(parent);
            if parent == at.object || at.attrs.borrow().links == 0 {
                break;
            }
            at = match self.entry_znode(parent).await {
                Ok(znode) => znode,
                // The directory was removed together with those above it.
                Err(FsError::Stale | FsError::Corrupt(_)) => break,
                Err(error) => return Err(error),
            };
        }
        Ok(above)
    }

    async fn lock_pair<'a>(
        &self,
        from: &'a Rc<Znode>,
        to: &'a Rc<Znode>,
        to_is_above: bool,
    ) -> FsResult<(Exclusive<'a>, Option<Exclusive<'a>>)> {
        if Rc::ptr_eq(from, to) {
            return Ok((from.exclusive().await?, None));
        }
        let (upper, lower) = if to_is_above { (to, from) } else { (from, to) };
        let first = upper.exclusive().await?;
        let second = lower.exclusive().await?;
        Ok((first, Some(second)))
    }
}

/// The directories of a rename, which may be one.
struct Directories {
    from: Rc<Znode>,
    to: Rc<Znode>,
}

impl Directories {
    fn are_one(&self) -> bool {
        Rc::ptr_eq(&self.from, &self.to)
    }

    /// The attributes of one of them when a file came into it and another left.
    fn after_exchange(&self, dir: &Znode, came: &Znode, left: &Znode, now: [u64; 2]) -> Attrs {
        let mut attrs = dir.attrs.borrow().clone();
        attrs.mtime = now;
        attrs.ctime = now;
        if !self.are_one() {
            let links = attrs.links + u64::from(came.is_dir());
            attrs.links = links.saturating_sub(u64::from(left.is_dir()));
        }
        attrs
    }
}

/// The locks of a rename, in the order in which they are given back, and what held when they were taken.
struct LockedDirectories<'a> {
    _second: Option<Exclusive<'a>>,
    _first: Exclusive<'a>,
    /// Held when the directories are two.
    _topology: Option<MutexGuard<()>>,
    /// The directories above each, up to the root; none when they are one.
    above_from: Vec<u64>,
    above_to: Vec<u64>,
    before: (WccAttr, WccAttr),
}

/// A rename whose parts are known and locked.
struct Move<'a> {
    dirs: &'a Directories,
    source: &'a Rc<Znode>,
    target: Option<&'a Rc<Znode>>,
}

impl Move<'_> {
    /// The attributes of both directories after it.
    fn directories_after(&self, now: [u64; 2]) -> (Attrs, Attrs) {
        let mut from = self.dirs.from.attrs.borrow().clone();
        let mut to = self.dirs.to.attrs.borrow().clone();
        for attrs in [&mut from, &mut to] {
            attrs.mtime = now;
            attrs.ctime = now;
        }
        let subdirs = u64::from(self.source.is_dir());
        let replaced = u64::from(self.target.is_some());
        if self.dirs.are_one() {
            from.size = from.size.saturating_sub(replaced).max(2);
            from.links = from.links.saturating_sub(replaced * subdirs);
        } else {
            from.size = from.size.saturating_sub(1).max(2);
            from.links = from.links.saturating_sub(subdirs);
            to.size += 1 - replaced;
            to.links += subdirs * (1 - replaced);
        }
        (from, to)
    }
}

/// The attributes of a file that lies in another directory from now on.
fn moved(file: &Znode, dir: &Znode, now: [u64; 2]) -> Attrs {
    let mut attrs = file.attrs.borrow().clone();
    attrs.ctime = now;
    attrs.parent = dir.object;
    attrs.flags |= crate::flags::AV_MODIFIED;
    attrs
}

/// Only a directory replaces a directory.
fn check_replaced(source: &Znode, target: &Znode) -> FsResult<()> {
    match (source.is_dir(), target.is_dir()) {
        (true, false) => Err(FsError::NotDirectory),
        (false, true) => Err(FsError::IsDirectory),
        _ => Ok(()),
    }
}

/// Locks the moved file and the one it replaces, by number: both are of one kind, and neither lies in the other.
async fn lock_children<'a>(
    source: &'a Znode,
    target: Option<&'a Rc<Znode>>,
) -> FsResult<(Exclusive<'a>, Option<Exclusive<'a>>)> {
    match target {
        None => Ok((source.exclusive().await?, None)),
        Some(target) if target.object < source.object => {
            let first = target.exclusive().await?;
            Ok((source.exclusive().await?, Some(first)))
        }
        Some(target) => {
            let first = source.exclusive().await?;
            Ok((first, Some(target.exclusive().await?)))
        }
    }
}
