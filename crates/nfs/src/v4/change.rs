//! Operations that change names and attributes. Each answers when its change is on stable storage: callers' file systems are
//! [`answering_when_stable`](engine::FsHandle::answering_when_stable).

use super::compound::{Compound, Done, FileTarget, Target};
use super::file::check_name;
use super::operation::{CreateType, RawAttributes, StateId};
use super::status::Status;
use crate::xdr::Writer;
use engine::{Attr, Change, DeviceNumber, FileType, FsError, SetAttr, Timestamp};

/// Returns the `change` attribute of a file as it was at a time of its metadata.
fn change_number(ctime: Timestamp) -> u64 {
    ctime
        .seconds
        .cast_unsigned()
        .wrapping_mul(1_000_000_000)
        .wrapping_add(u64::from(ctime.nanoseconds))
}

/// Writes `change_info4`: nothing else changed the directory in between.
pub(super) fn write_change(w: &mut Writer, change: &Change) {
    w.bool(true)
        .u64(change_number(change.before.ctime))
        .u64(change.after.change);
}

/// Writes `change_info4` of a directory that was not changed.
pub(super) fn write_unchanged(w: &mut Writer, dir: &Attr) {
    w.bool(true).u64(dir.change).u64(dir.change);
}

impl Compound<'_> {
    /// Returns the current directory, for a change of its names.
    async fn directory(&self) -> Result<FileTarget, Status> {
        let dir = self.file(Status::ReadOnly)?;
        Self::check_directory(&dir).await?;
        dir.writable()?;
        Ok(dir)
    }

    pub(super) async fn check_directory(dir: &FileTarget) -> Result<Attr, Status> {
        let attr = dir.attr().await?;
        match attr.file_type {
            FileType::Directory => Ok(attr),
            FileType::Symlink => Err(Status::Symlink),
            _ => Err(Status::NotDirectory),
        }
    }

    pub(super) async fn create(
        &mut self,
        what: &CreateType<'_>,
        name: &[u8],
        attributes: &RawAttributes<'_>,
    ) -> Done {
        self.target()?;
        let file_type = match what {
            CreateType::Symlink(_) => FileType::Symlink,
            CreateType::Device { file_type: 3, .. } => FileType::Block,
            CreateType::Device { .. } => FileType::Character,
            CreateType::Other(2) => FileType::Directory,
            CreateType::Other(6) => FileType::Socket,
            CreateType::Other(7) => FileType::Fifo,
            CreateType::Other(_) => return Err(Status::BadType.into()),
        };
        check_name(name)?;
        let given = self.given(self.target()?, attributes).await?;
        let set = given.set;
        let dir = self.directory().await?;
        self.check_stored_name(&dir, name).await?;
        let (fs, at, cred) = (&dir.caller.fs, dir.handle.file, &dir.caller.cred);
        let made = match what {
            CreateType::Symlink(path) => {
                if path.is_empty() {
                    return Err(Status::Invalid.into());
                }
                fs.symlink(at, name, path, &set, cred).await?
            }
            CreateType::Device { major, minor, .. } => {
                let device = DeviceNumber {
                    major: *major,
                    minor: *minor,
                };
                fs.mknod(at, name, file_type, device, &set, cred).await?
            }
            CreateType::Other(_) if file_type == FileType::Directory => {
                fs.mkdir(at, name, &set, cred).await?
            }
            CreateType::Other(_) => {
                let none = DeviceNumber::default();
                fs.mknod(at, name, file_type, none, &set, cred).await?
            }
        };
        dir.sibling(made.file.id)
            .give_list(given.list.as_deref())
            .await?;
        write_change(self.w(), &made.dir);
        attributes.bits.write(self.w());
        let target = if engine::is_unopened(made.file.id) {
            // A snapshot: a look-up finds its handle.
            self.find(name).await?
        } else {
            Target::File(dir.sibling(made.file.id))
        };
        self.current = Some(target);
        self.state = None;
        Ok(())
    }

    /// Returns the saved file handle's file.
    pub(super) fn saved_file(&self, pseudo: Status) -> Result<FileTarget, Status> {
        match self.saved.as_ref().ok_or(Status::NoFileHandle)? {
            Target::File(file) => Ok(file.clone()),
            Target::Pseudo(_) => Err(pseudo),
        }
    }

    pub(super) async fn link(&mut self, name: &[u8]) -> Done {
        self.target()?;
        let file = self.saved_file(Status::IsDirectory)?;
        check_name(name)?;
        let dir = self.directory().await?;
        if !file.is_beside(&dir) {
            return Err(Status::CrossDevice.into());
        }
        if file.attr().await?.file_type == FileType::Directory {
            return Err(Status::IsDirectory.into());
        }
        self.check_stored_name(&dir, name).await?;
        self.check_reclaims(&file)?;
        let (fs, cred) = (&dir.caller.fs, &dir.caller.cred);
        let made = fs
            .link(file.handle.file, dir.handle.file, name, cred)
            .await?;
        write_change(self.w(), &made.dir);
        Ok(())
    }

    pub(super) async fn remove(&mut self, name: &[u8]) -> Done {
        self.target()?;
        check_name(name)?;
        let dir = self.directory().await?;
        if self.crossing(&dir, name).await.is_some() {
            // A share, or on the way to one.
            return Err(Status::NotEmpty.into());
        }
        self.check_reclaims(&dir)?;
        let (fs, at, cred) = (&dir.caller.fs, dir.handle.file, &dir.caller.cred);
        let change = match fs.remove(at, name, cred).await {
            Err(FsError::IsDirectory | FsError::NotPermitted | FsError::NotSupported) => {
                let found = fs.find(at, name, cred).await?;
                if found.attr.file_type != FileType::Directory {
                    return Err(Status::NotPermitted.into());
                }
                fs.rmdir(at, name, cred).await?
            }
            other => other?,
        };
        write_change(self.w(), &change);
        Ok(())
    }

    pub(super) async fn rename(&mut self, from_name: &[u8], to_name: &[u8]) -> Done {
        self.target()?;
        let from = self.saved_file(Status::ReadOnly)?;
        check_name(from_name)?;
        check_name(to_name)?;
        Self::check_directory(&from).await?;
        let to = self.directory().await?;
        from.writable()?;
        if !from.is_beside(&to) {
            return Err(Status::CrossDevice.into());
        }
        if self.crossing(&from, from_name).await.is_some() {
            return Err(Status::CrossDevice.into());
        }
        self.check_stored_name(&to, to_name).await?;
        self.check_reclaims(&from)?;
        let (fs, cred) = (&from.caller.fs, &from.caller.cred);
        let renamed = fs
            .rename(from.handle.file, from_name, to.handle.file, to_name, cred)
            .await
            .map_err(|error| match error {
                // RFC 7530, section 16.27.4: what is there under the new name is not of the kind that gives way.
                FsError::IsDirectory | FsError::NotDirectory | FsError::NotEmpty => Status::Exists,
                other => other.into(),
            })?;
        write_change(self.w(), &renamed.from);
        write_change(self.w(), &renamed.to);
        Ok(())
    }

    pub(super) async fn set_attributes(
        &mut self,
        state: &StateId,
        attributes: &RawAttributes<'_>,
    ) -> Done {
        let mut file = self.file(Status::ReadOnly)?;
        let given = self.given(self.target()?, attributes).await?;
        file.writable()?;
        let cred = self.check_size(&mut file, &given.set, state).await?;
        if given.set.size.is_none() {
            self.check_reclaims(&file)?;
        }
        if given.any {
            let (fs, id) = (&file.caller.fs, file.handle.file);
            fs.setattr(id, &given.set, None, &cred).await?;
        }
        // RFC 8881, section 6.4.1.3: behind the mode, which changes the list.
        file.give_list(given.list.as_deref()).await?;
        attributes.bits.write(self.w());
        Ok(())
    }

    /// Checks that a file, or what a name in a directory stands for, may be changed: not while others may have it delegated once they
    /// have reclaimed that.
    pub(super) fn check_reclaims(&self, file: &FileTarget) -> Result<(), Status> {
        let client = self.session_client();
        self.server.v4().check_changes(&file.handle, client)
    }

    /// Checks a change of the size, which is a write, and returns the credentials for it.
    async fn check_size(
        &self,
        file: &mut FileTarget,
        set: &SetAttr,
        state: &StateId,
    ) -> Result<engine::Cred, Status> {
        if set.size.is_none() {
            return Ok(file.caller.cred.clone());
        }
        let attr = file.attr().await?;
        match attr.file_type {
            FileType::Regular => self.check_change(state, file),
            FileType::Directory => Err(Status::IsDirectory),
            _ => Err(Status::Invalid),
        }
    }
}
