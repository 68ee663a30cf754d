//! NFS version 3 (RFC 1813): every procedure, each a translation between XDR and one file operation.
//!
//! Nothing here decides about files; what is stable when a reply goes out is what the engine said is. Procedures other
//! than WRITE that change something answer when the change is on stable storage (RFC 1813, section 4.8).

mod attr;
mod change;
mod data;
mod directory;
mod status;

use crate::connection::Peer;
use crate::handle::{FileHandle, HandleRefusal, in_snapshot};
use crate::limits::{ENVELOPE_BYTES, TRANSFER_BYTES_MAX};
use crate::outcome::Outcome;
use crate::rpc::{self, Call, Credential, Refusal};
use crate::server::{Caller, Server};
use crate::written;
use crate::xdr::{self, Malformed, Reader, Writer};
use engine::{Access, Attr, FsError, FsHandle, IoBuf};
use status::Status;

/// Program number of NFS.
pub(crate) const PROGRAM: u32 = 100_003;
/// The version served.
pub(crate) const VERSION: u32 = 3;

/// RFC 1813, section 2.4: NFS3_FHSIZE.
const HANDLE_BYTES_MAX: usize = 64;
/// Longest name taken from the wire; the file system has its own, shorter limit and error.
const NAME_BYTES_MAX: usize = 4096;
/// Longest target of a symbolic link taken from the wire.
const PATH_BYTES_MAX: usize = 65536;

/// The procedures by number (RFC 1813, section 3).
mod procedure {
    pub(super) const NULL: u32 = 0;
    pub(super) const GETATTR: u32 = 1;
    pub(super) const SETATTR: u32 = 2;
    pub(super) const LOOKUP: u32 = 3;
    pub(super) const ACCESS: u32 = 4;
    pub(super) const READLINK: u32 = 5;
    pub(super) const READ: u32 = 6;
    pub(super) const WRITE: u32 = 7;
    pub(super) const CREATE: u32 = 8;
    pub(super) const MKDIR: u32 = 9;
    pub(super) const SYMLINK: u32 = 10;
    pub(super) const MKNOD: u32 = 11;
    pub(super) const REMOVE: u32 = 12;
    pub(super) const RMDIR: u32 = 13;
    pub(super) const RENAME: u32 = 14;
    pub(super) const LINK: u32 = 15;
    pub(super) const READDIR: u32 = 16;
    pub(super) const READDIRPLUS: u32 = 17;
    pub(super) const FSSTAT: u32 = 18;
    pub(super) const FSINFO: u32 = 19;
    pub(super) const PATHCONF: u32 = 20;
    pub(super) const COMMIT: u32 = 21;
}

/// Returns whether running a procedure a second time would do harm or answer something else: those whose answers are kept.
#[must_use]
pub(crate) fn runs_once(procedure: u32) -> bool {
    procedure == procedure::SETATTR || (procedure::CREATE..=procedure::LINK).contains(&procedure)
}

/// Returns the most bytes that the answer to a call has, from what its arguments ask for.
#[must_use]
pub(crate) fn answer_bytes_max(procedure: u32, mut arguments: Reader<'_>) -> usize {
    let mut asked = || -> xdr::Result<u32> {
        arguments.opaque(HANDLE_BYTES_MAX)?;
        // An offset or a cookie.
        arguments.u64()?;
        match procedure {
            procedure::READ => arguments.u32(),
            procedure::READDIR => arguments.u64().and_then(|_| arguments.u32()),
            _ => arguments.u64().and_then(|_| {
                arguments.u32()?;
                arguments.u32()
            }),
        }
    };
    let data = match procedure {
        procedure::READ | procedure::READDIR | procedure::READDIRPLUS => {
            // What does not parse is answered in a word.
            usize::try_from(asked().unwrap_or(0)).unwrap_or(usize::MAX)
        }
        procedure::READLINK => PATH_BYTES_MAX,
        _ => 0,
    };
    data.min(TRANSFER_BYTES_MAX) + ENVELOPE_BYTES
}

/// Reads the arguments of a WRITE up to its data, and returns the data's length in bytes.
#[must_use]
pub(crate) fn write_data_bytes(procedure: u32, arguments: &mut Reader<'_>) -> Option<usize> {
    if procedure != procedure::WRITE {
        return None;
    }
    let mut length = || -> xdr::Result<u32> {
        arguments.opaque(HANDLE_BYTES_MAX)?;
        arguments.u64()?;
        arguments.u64()?;
        arguments.u32()
    };
    usize::try_from(length().ok()?)
        .ok()
        .filter(|length| *length <= TRANSFER_BYTES_MAX)
}

/// One call: its caller, its arguments and its reply.
struct Request<'a> {
    server: &'a Server,
    peer: Peer,
    credential: &'a Credential,
    arguments: Reader<'a>,
    /// The data of a WRITE, where it is not among the arguments.
    data: Option<IoBuf>,
    reply: Writer,
}

/// A file, and what the caller is to its file system.
struct Target {
    handle: FileHandle,
    caller: Caller,
}

pub(crate) async fn call(
    server: &Server,
    peer: Peer,
    call: &Call,
    arguments: Reader<'_>,
    data: Option<IoBuf>,
) -> Outcome {
    let request = Request {
        server,
        peer,
        credential: &call.credential,
        arguments,
        data,
        reply: rpc::success(call.xid, 256),
    };
    let result = match call.procedure {
        procedure::NULL => return request.reply.into(),
        procedure::GETATTR => request.getattr().await,
        procedure::SETATTR => request.setattr().await,
        procedure::LOOKUP => request.lookup().await,
        procedure::ACCESS => request.access().await,
        procedure::READLINK => request.readlink().await,
        procedure::READ => request.read().await,
        procedure::WRITE => request.write().await,
        procedure::CREATE => request.create().await,
        procedure::MKDIR => request.mkdir().await,
        procedure::SYMLINK => request.symlink().await,
        procedure::MKNOD => request.mknod().await,
        procedure::REMOVE => request.remove(false).await,
        procedure::RMDIR => request.remove(true).await,
        procedure::RENAME => request.rename().await,
        procedure::LINK => request.link().await,
        procedure::READDIR => request.readdir(false).await,
        procedure::READDIRPLUS => request.readdir(true).await,
        procedure::FSSTAT => request.fsstat().await,
        procedure::FSINFO => request.fsinfo().await,
        procedure::PATHCONF => request.pathconf().await,
        procedure::COMMIT => request.commit().await,
        _ => return Outcome::Refused(Refusal::ProcedureUnavailable),
    };
    result.unwrap_or_else(Outcome::from)
}

/// What a procedure returns: an answer (good or bad), or arguments that do not parse.
type Answer = xdr::Result<Outcome>;

impl<'a> Request<'a> {
    /// Reads a file handle and finds what it names.
    fn target(&mut self) -> xdr::Result<Result<Target, Status>> {
        let bytes = self.arguments.opaque(HANDLE_BYTES_MAX)?;
        Ok(self
            .server
            .admit(bytes, self.peer, self.credential)
            .map(|(handle, caller)| Target { handle, caller })
            .map_err(|not| match not {
                HandleRefusal::BadHandle => Status::BadHandle,
                HandleRefusal::NotYet => Status::Jukebox,
                HandleRefusal::Stale => Status::Stale,
                HandleRefusal::Forbidden => Status::Access,
            }))
    }

    fn name(&mut self) -> xdr::Result<&'a [u8]> {
        self.arguments.opaque(NAME_BYTES_MAX)
    }

    fn status(&mut self, status: Status) -> &mut Writer {
        self.reply.u32(status as u32)
    }

    /// Ends with a status and `absent` optional items that are not there.
    fn fail(mut self, status: Status, absent: usize) -> Answer {
        self.status(status);
        for _ in 0..absent {
            self.reply.bool(false);
        }
        Ok(self.reply.into())
    }

    /// Ends with a status and the attributes of `of`, if they can be had.
    async fn fail_at(mut self, error: FsError, of: &Target) -> Answer {
        self.status(error.into());
        let attr = of.attr().await;
        attr::post_op(&mut self.reply, &of.handle, attr.as_ref());
        Ok(self.reply.into())
    }

    async fn getattr(mut self) -> Answer {
        let target = match self.target()? {
            Ok(target) => target,
            Err(status) => return self.fail(status, 0),
        };
        let (fs, handle) = (&target.caller.fs, &target.handle);
        let writer = match handle.snapshot {
            Some(_) => None,
            None => fs.writer(handle.file),
        };
        let attr = match writer {
            Some(writer) => written::attributes(self.server, handle, fs, writer).await,
            None => fs.getattr(handle.file).await,
        };
        match attr {
            Ok(attr) => {
                self.status(Status::Ok);
                attr::fattr(&mut self.reply, handle, &attr);
                Ok(self.reply.into())
            }
            Err(error) => self.fail(error.into(), 0),
        }
    }

    async fn lookup(mut self) -> Answer {
        let dir = self.target()?;
        let name = self.name()?;
        let dir = match dir {
            Ok(dir) => dir,
            Err(status) => return self.fail(status, 1),
        };
        if let Some(nested) = self
            .server
            .nested_export(&dir.handle, name, self.peer)
            .await
        {
            self.status(Status::Ok);
            self.reply.opaque(&nested.handle.encode());
            attr::post_op(&mut self.reply, &nested.handle, Some(&nested.attr));
            let of_dir = dir.attr().await;
            attr::post_op(&mut self.reply, &dir.handle, of_dir.as_ref());
            return Ok(self.reply.into());
        }
        let Caller { fs, cred, .. } = &dir.caller;
        let searched = fs.search(dir.handle.file, name, cred).await;
        match searched.found {
            Ok(found) => {
                self.status(Status::Ok);
                let mut handle = dir.sibling(&found.attr);
                if let Some(there) = &found.elsewhere {
                    handle.snapshot = in_snapshot(there);
                }
                self.reply.opaque(&handle.encode());
                let known = is_known(&dir.caller.fs, &handle);
                attr::post_op(
                    &mut self.reply,
                    &handle,
                    Some(&found.attr).filter(|_| known),
                );
            }
            Err(error) => {
                self.status(error.into());
            }
        }
        attr::post_op(&mut self.reply, &dir.handle, searched.dir.as_ref());
        Ok(self.reply.into())
    }

    async fn access(mut self) -> Answer {
        let target = self.target()?;
        let mut wanted = self.arguments.u32()? & 0x3f;
        let target = match target {
            Ok(target) => target,
            Err(status) => return self.fail(status, 1),
        };
        if !target.caller.write {
            let changing = Access::MODIFY | Access::EXTEND | Access::DELETE;
            wanted &= !changing.0;
        }
        // RFC 1813, section 3.3.4: the bits of ACCESS3 are those of `Access`.
        let Caller { fs, cred, .. } = &target.caller;
        match fs
            .access_attr(target.handle.file, Access(wanted), cred)
            .await
        {
            Ok((granted, attr)) => {
                self.status(Status::Ok);
                let known = target.if_known(Some(attr));
                attr::post_op(&mut self.reply, &target.handle, known.as_ref());
                self.reply.u32(granted.0 & wanted);
                Ok(self.reply.into())
            }
            Err(error) => self.fail_at(error, &target).await,
        }
    }

    async fn readlink(mut self) -> Answer {
        let target = match self.target()? {
            Ok(target) => target,
            Err(status) => return self.fail(status, 1),
        };
        match target.caller.fs.readlink(target.handle.file).await {
            Ok(path) => {
                self.status(Status::Ok);
                let attr = target.attr().await;
                attr::post_op(&mut self.reply, &target.handle, attr.as_ref());
                self.reply.opaque(&path);
                Ok(self.reply.into())
            }
            Err(error) => self.fail_at(error, &target).await,
        }
    }

    async fn fsstat(mut self) -> Answer {
        let target = match self.target()? {
            Ok(target) => target,
            Err(status) => return self.fail(status, 1),
        };
        match target.caller.fs.statfs().await {
            Ok(stat) => {
                self.status(Status::Ok);
                let attr = target.attr().await;
                attr::post_op(&mut self.reply, &target.handle, attr.as_ref());
                self.reply
                    .u64(stat.total_bytes)
                    .u64(stat.free_bytes)
                    .u64(stat.available_bytes);
                self.reply
                    .u64(stat.total_files)
                    .u64(stat.free_files)
                    .u64(stat.free_files);
                // invarsec: the numbers may change at any moment.
                self.reply.u32(0);
                Ok(self.reply.into())
            }
            Err(error) => self.fail_at(error, &target).await,
        }
    }

    async fn fsinfo(mut self) -> Answer {
        let target = match self.target()? {
            Ok(target) => target,
            Err(status) => return self.fail(status, 1),
        };
        self.status(Status::Ok);
        let attr = target.attr().await;
        attr::post_op(&mut self.reply, &target.handle, attr.as_ref());
        let transfer = u32::try_from(TRANSFER_BYTES_MAX).map_err(|_| Malformed { what: "size" })?;
        for _ in ["read", "write"] {
            // Maximum, preferred, and the multiple that transfers should be of.
            self.reply.u32(transfer).u32(transfer).u32(4096);
        }
        self.reply
            .u32(directory::PREFERRED_BYTES)
            .u64(i64::MAX.cast_unsigned());
        // Times are kept to the nanosecond. LINK, SYMLINK, HOMOGENEOUS, CANSETTIME.
        self.reply.u32(0).u32(1).u32(0x1 | 0x2 | 0x8 | 0x10);
        Ok(self.reply.into())
    }

    async fn pathconf(mut self) -> Answer {
        let target = match self.target()? {
            Ok(target) => target,
            Err(status) => return self.fail(status, 1),
        };
        match target.caller.fs.statfs().await {
            Ok(stat) => {
                self.status(Status::Ok);
                let attr = target.attr().await;
                attr::post_op(&mut self.reply, &target.handle, attr.as_ref());
                // linkmax, name_max, no_trunc, chown_restricted, case_insensitive, case_preserving.
                self.reply
                    .u32(u32::MAX)
                    .u32(stat.name_max)
                    .bool(true)
                    .bool(true);
                self.reply.bool(stat.case_insensitive).bool(true);
                Ok(self.reply.into())
            }
            Err(error) => self.fail_at(error, &target).await,
        }
    }
}

/// Returns whether a file is as it is here: no client of NFSv4 writes it in its own cache.
fn is_known(fs: &FsHandle, handle: &FileHandle) -> bool {
    handle.snapshot.is_some() || fs.writer(handle.file).is_none()
}

impl Target {
    async fn attr(&self) -> Option<Attr> {
        let attr = self.caller.fs.getattr(self.handle.file).await.ok();
        self.if_known(attr)
    }

    /// Returns the file's attributes, unless a client of NFSv4 writes it in its own cache: they are known to that one alone then, and
    /// who needs them asks for them by GETATTR.
    fn if_known(&self, attr: Option<Attr>) -> Option<Attr> {
        attr.filter(|_| is_known(&self.caller.fs, &self.handle))
    }

    /// Returns the handle of another file of the same file system.
    fn sibling(&self, attr: &Attr) -> FileHandle {
        FileHandle {
            file: attr.id,
            ..self.handle
        }
    }

    /// Whether another file lies in the same file system.
    fn is_beside(&self, other: &Self) -> bool {
        self.handle.dataset == other.handle.dataset && self.handle.snapshot == other.handle.snapshot
    }

    /// Returns the error of a caller that may only read.
    fn writable(&self) -> Result<(), FsError> {
        if self.caller.write {
            Ok(())
        } else {
            Err(FsError::ReadOnly)
        }
    }
}
