//! The procedures that change names and attributes. Each answers when its change is on stable storage: callers' file systems are
//! [`answering_when_stable`](engine::FsHandle::answering_when_stable).

use super::{Answer, Request, Target, attr};
use crate::server::Caller;
use crate::v3::PATH_BYTES_MAX;
use crate::v3::status::Status;
use crate::written;
use crate::xdr::{self, Malformed, Reader};
use engine::{Change, CreateMode, DeviceNumber, FileType, FsError, FsResult, Made, SetAttr};

impl Request<'_> {
    /// Ends with a status and the attributes of a file that was not changed.
    pub(super) async fn fail_wcc(mut self, error: FsError, of: &Target) -> Answer {
        self.status(error.into());
        let now = of.attr().await;
        attr::wcc_unchanged(&mut self.reply, &of.handle, now.as_ref());
        Ok(self.reply.into())
    }

    pub(super) async fn setattr(mut self) -> Answer {
        let target = self.target()?;
        let set = attr::sattr(&mut self.arguments)?;
        let guard = self.arguments.option(attr::read_time)?;
        let target = match target {
            Ok(target) => target,
            Err(status) => return self.fail(status, 2),
        };
        let Caller { fs, cred, .. } = &target.caller;
        let result = match target.writable() {
            Ok(()) => {
                written::given_back(self.server, &target.handle, fs, true).await;
                fs.setattr(target.handle.file, &set, guard, cred).await
            }
            Err(error) => Err(error),
        };
        self.changed(result, &target).await
    }

    pub(super) async fn create(mut self) -> Answer {
        let dir = self.target()?;
        let name = self.name()?;
        let (mode, set) = match self.arguments.u32()? {
            0 => (CreateMode::Unchecked, attr::sattr(&mut self.arguments)?),
            1 => (CreateMode::Guarded, attr::sattr(&mut self.arguments)?),
            // The client sets the mode afterwards; until then only the owner may open the file.
            2 => (
                CreateMode::Exclusive(self.arguments.u64()?),
                SetAttr {
                    mode: Some(0o600),
                    ..SetAttr::default()
                },
            ),
            _ => {
                return Err(Malformed {
                    what: "createmode3",
                });
            }
        };
        let dir = match dir {
            Ok(dir) => dir,
            Err(status) => return self.fail(status, 2),
        };
        let Caller { fs, cred, .. } = &dir.caller;
        let result = match dir.writable() {
            Ok(()) => fs.create(dir.handle.file, name, mode, &set, cred).await,
            Err(error) => Err(error),
        };
        self.made(result, &dir).await
    }

    pub(super) async fn mkdir(mut self) -> Answer {
        let dir = self.target()?;
        let name = self.name()?;
        let set = attr::sattr(&mut self.arguments)?;
        let dir = match dir {
            Ok(dir) => dir,
            Err(status) => return self.fail(status, 2),
        };
        let Caller { fs, cred, .. } = &dir.caller;
        let result = match dir.writable() {
            Ok(()) => fs.mkdir(dir.handle.file, name, &set, cred).await,
            Err(error) => Err(error),
        };
        self.made(result, &dir).await
    }

    pub(super) async fn symlink(mut self) -> Answer {
        let dir = self.target()?;
        let name = self.name()?;
        let set = attr::sattr(&mut self.arguments)?;
        let path = self.arguments.opaque(PATH_BYTES_MAX)?;
        let dir = match dir {
            Ok(dir) => dir,
            Err(status) => return self.fail(status, 2),
        };
        let Caller { fs, cred, .. } = &dir.caller;
        let result = match dir.writable() {
            Ok(()) => fs.symlink(dir.handle.file, name, path, &set, cred).await,
            Err(error) => Err(error),
        };
        self.made(result, &dir).await
    }

    pub(super) async fn mknod(mut self) -> Answer {
        let dir = self.target()?;
        let name = self.name()?;
        let kind = self.arguments.u32()?;
        let node = node(kind, &mut self.arguments)?;
        let dir = match dir {
            Ok(dir) => dir,
            Err(status) => return self.fail(status, 2),
        };
        let Some((file_type, set, device)) = node else {
            return self.fail(Status::BadType, 2);
        };
        let Caller { fs, cred, .. } = &dir.caller;
        let result = match dir.writable() {
            Ok(()) => {
                fs.mknod(dir.handle.file, name, file_type, device, &set, cred)
                    .await
            }
            Err(error) => Err(error),
        };
        self.made(result, &dir).await
    }

    pub(super) async fn remove(mut self, directory: bool) -> Answer {
        let dir = self.target()?;
        let name = self.name()?;
        let dir = match dir {
            Ok(dir) => dir,
            Err(status) => return self.fail(status, 2),
        };
        let Caller { fs, cred, .. } = &dir.caller;
        let result = match dir.writable() {
            Ok(()) if directory => fs.rmdir(dir.handle.file, name, cred).await,
            Ok(()) => fs.remove(dir.handle.file, name, cred).await,
            Err(error) => Err(error),
        };
        self.changed(result, &dir).await
    }

    pub(super) async fn rename(mut self) -> Answer {
        let from = self.target()?;
        let from_name = self.name()?;
        let to = self.target()?;
        let to_name = self.name()?;
        let (from, to) = match (from, to) {
            (Ok(from), Ok(to)) => (from, to),
            (Err(status), _) | (_, Err(status)) => return self.fail(status, 4),
        };
        let Caller { fs, cred, .. } = &from.caller;
        let result = match (from.writable(), to.writable()) {
            _ if !from.is_beside(&to) => Err(FsError::CrossDevice),
            (Ok(()), Ok(())) => {
                fs.rename(from.handle.file, from_name, to.handle.file, to_name, cred)
                    .await
            }
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
        match result {
            Ok(renamed) => {
                self.status(Status::Ok);
                attr::wcc(&mut self.reply, &from.handle, &renamed.from);
                attr::wcc(&mut self.reply, &to.handle, &renamed.to);
            }
            Err(error) => {
                self.status(error.into());
                for dir in [&from, &to] {
                    let now = dir.attr().await;
                    attr::wcc_unchanged(&mut self.reply, &dir.handle, now.as_ref());
                }
            }
        }
        Ok(self.reply.into())
    }

    pub(super) async fn link(mut self) -> Answer {
        let file = self.target()?;
        let dir = self.target()?;
        let name = self.name()?;
        let (file, dir) = match (file, dir) {
            (Ok(file), Ok(dir)) => (file, dir),
            (Err(status), _) | (_, Err(status)) => return self.fail(status, 3),
        };
        let Caller { fs, cred, .. } = &dir.caller;
        let result = match dir.writable() {
            _ if !file.is_beside(&dir) => Err(FsError::CrossDevice),
            Ok(()) => fs.link(file.handle.file, dir.handle.file, name, cred).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(made) => {
                self.status(Status::Ok);
                attr::post_op(&mut self.reply, &file.handle, Some(&made.file));
                attr::wcc(&mut self.reply, &dir.handle, &made.dir);
            }
            Err(error) => {
                self.status(error.into());
                let (of_file, of_dir) = (file.attr().await, dir.attr().await);
                attr::post_op(&mut self.reply, &file.handle, of_file.as_ref());
                attr::wcc_unchanged(&mut self.reply, &dir.handle, of_dir.as_ref());
            }
        }
        Ok(self.reply.into())
    }

    /// Ends a procedure that changed one file.
    async fn changed(mut self, result: FsResult<Change>, of: &Target) -> Answer {
        match result {
            Ok(change) => {
                self.status(Status::Ok);
                attr::wcc(&mut self.reply, &of.handle, &change);
                Ok(self.reply.into())
            }
            Err(error) => self.fail_wcc(error, of).await,
        }
    }

    /// Ends a procedure that made a file in a directory.
    async fn made(mut self, result: FsResult<Made>, dir: &Target) -> Answer {
        match result {
            Ok(made) => {
                self.status(Status::Ok);
                if engine::is_unopened(made.file.id) {
                    // A snapshot: LOOKUP tells its handle.
                    self.reply.bool(false).bool(false);
                } else {
                    self.reply
                        .bool(true)
                        .opaque(&dir.sibling(&made.file).encode());
                    attr::post_op(&mut self.reply, &dir.handle, Some(&made.file));
                }
                attr::wcc(&mut self.reply, &dir.handle, &made.dir);
                Ok(self.reply.into())
            }
            Err(error) => self.fail_wcc(error, dir).await,
        }
    }
}

type Node = (FileType, SetAttr, DeviceNumber);

/// Reads `mknoddata3`, or `None` for a type that MKNOD does not make.
fn node(kind: u32, arguments: &mut Reader<'_>) -> xdr::Result<Option<Node>> {
    let file_type = match kind {
        3 => FileType::Block,
        4 => FileType::Character,
        6 => FileType::Socket,
        7 => FileType::Fifo,
        _ => return Ok(None),
    };
    let set = attr::sattr(arguments)?;
    let device = if matches!(file_type, FileType::Block | FileType::Character) {
        DeviceNumber {
            major: arguments.u32()?,
            minor: arguments.u32()?,
        }
    } else {
        DeviceNumber::default()
    };
    Ok(Some((file_type, set, device)))
}
