//! READ, WRITE and COMMIT. What RFC 1813, section 4.4 allows the owner of a file beyond its mode, the file system decides from the
//! credential.

use super::{Answer, Request, attr};
use crate::limits::TRANSFER_BYTES_MAX;
use crate::outcome::{Outcome, Piece, Reply};
use crate::server::Caller;
use crate::v3::status::Status;
use crate::written;
use crate::xdr::{self, Malformed};
use engine::{IoBuf, Stability};

impl Request<'_> {
    pub(super) async fn read(mut self) -> Answer {
        let target = self.target()?;
        let (offset, count) = (self.arguments.u64()?, self.arguments.u32()?);
        let target = match target {
            Ok(target) => target,
            Err(status) => return self.fail(status, 1),
        };
        let count = usize::try_from(count)
            .unwrap_or(usize::MAX)
            .min(TRANSFER_BYTES_MAX);
        let file = target.handle.file;
        let Caller { fs, cred, .. } = &target.caller;
        written::given_back(self.server, &target.handle, fs, false).await;
        match fs.read(file, offset, count, cred).await {
            Ok(data) => {
                let length = u32::try_from(data.len()).map_err(|_| Malformed { what: "read" })?;
                self.status(Status::Ok);
                attr::post_op(&mut self.reply, &target.handle, Some(&data.attr));
                self.reply.u32(length).bool(data.eof).u32(length);
                let padding = data.len().wrapping_neg() % 4;
                let mut reply = Reply::from(self.reply.into_bytes());
                reply
                    .pieces
                    .extend(data.pieces.into_iter().map(Piece::Shared));
                if padding > 0 {
                    reply.pieces.push(Piece::Owned(vec![0; padding]));
                }
                Ok(Outcome::Reply(reply))
            }
            Err(error) => self.fail_at(error, &target).await,
        }
    }

    pub(super) async fn write(mut self) -> Answer {
        let target = self.target()?;
        let (offset, count) = (self.arguments.u64()?, self.arguments.u32()?);
        let stability = match self.arguments.u32()? {
            0 => Stability::Unstable,
            1 => Stability::DataSync,
            2 => Stability::FileSync,
            _ => return Err(Malformed { what: "stable_how" }),
        };
        let data = self.data()?;
        let target = match target {
            Ok(target) => target,
            Err(status) => return self.fail(status, 2),
        };
        if let Err(error) = target.writable() {
            return self.fail_wcc(error, &target).await;
        }
        // RFC 1813, section 3.3.7: `count` says how much of the data is meant.
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(data.len());
        let data = data.slice(0..count);
        let Caller { fs, cred, .. } = &target.caller;
        let file = target.handle.file;
        written::given_back(self.server, &target.handle, fs, true).await;
        match fs.write(file, offset, data, stability, cred).await {
            Ok(written) => {
                self.status(Status::Ok);
                attr::wcc(&mut self.reply, &target.handle, &written.change);
                self.reply
                    .u32(u32::try_from(written.count).unwrap_or(u32::MAX));
                self.reply.u32(match written.stability {
                    Stability::Unstable => 0,
                    Stability::DataSync => 1,
                    Stability::FileSync => 2,
                });
                self.reply.u64(self.server.boot_verifier());
                Ok(self.reply.into())
            }
            Err(error) => self.fail_wcc(error, &target).await,
        }
    }

    /// The data of a WRITE: what was read apart, else a copy of what is among the arguments.
    fn data(&mut self) -> xdr::Result<IoBuf> {
        let Some(data) = self.data.take() else {
            return Ok(IoBuf::copy_from(self.arguments.opaque(TRANSFER_BYTES_MAX)?));
        };
        let length = self.arguments.u32()?;
        if usize::try_from(length).ok() == Some(data.len()) {
            Ok(data)
        } else {
            Err(Malformed { what: "length" })
        }
    }

    pub(super) async fn commit(mut self) -> Answer {
        let target = self.target()?;
        let (offset, count) = (self.arguments.u64()?, self.arguments.u32()?);
        let target = match target {
            Ok(target) => target,
            Err(status) => return self.fail(status, 2),
        };
        let file = target.handle.file;
        match target
            .caller
            .fs
            .commit(file, offset, u64::from(count))
            .await
        {
            Ok(after) => {
                self.status(Status::Ok);
                let known = target.if_known(Some(after));
                attr::wcc_unchanged(&mut self.reply, &target.handle, known.as_ref());
                self.reply.u64(self.server.boot_verifier());
                Ok(self.reply.into())
            }
            Err(error) => self.fail_wcc(error, &target).await,
        }
    }
}
