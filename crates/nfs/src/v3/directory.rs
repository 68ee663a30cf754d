//! READDIR and READDIRPLUS.
//!
//! A cookie is the engine's: it stays valid while names come and go, and over restarts of the server. The cookie verifier
//! is therefore always zero, and any verifier a client sends is taken.

use super::{Answer, Request, attr};
use crate::handle::{FileHandle, HANDLE_BYTES};
use crate::v3::status::Status;
use crate::xdr::Writer;
use engine::{DirEntry, ListLimit};

/// What READDIR is best asked for at a time, in bytes: several hundred names.
pub(super) const PREFERRED_BYTES: u32 = 64 * 1024;
/// The most a listing answers at a time, in bytes, whatever the client asks for.
const BYTES_MAX: usize = 1 << 20;
/// `fattr3` with the boolean before it.
const POST_OP_ATTR_BYTES: usize = 88;
/// "Follows", file id, name length, cookie.
const ENTRY_BYTES: usize = 4 + 8 + 4 + 8;
/// Attributes and handle, each behind its boolean.
const PLUS_BYTES: usize = POST_OP_ATTR_BYTES + 4 + 4 + HANDLE_BYTES;

impl Request<'_> {
    pub(super) async fn readdir(mut self, plus: bool) -> Answer {
        let dir = self.target()?;
        let (cookie, _verifier) = (self.arguments.u64()?, self.arguments.u64()?);
        let names_max = self.arguments.u32()?;
        let reply_max = if plus {
            self.arguments.u32()?
        } else {
            names_max
        };
        let dir = match dir {
            Ok(dir) => dir,
            Err(status) => return self.fail(status, 1),
        };
        let clamp = |bytes: u32| usize::try_from(bytes).unwrap_or(BYTES_MAX).min(BYTES_MAX);
        let (names_max, reply_max) = (clamp(names_max), clamp(reply_max));
        let limit = ListLimit {
            entries: reply_max / ENTRY_BYTES + 1,
            bytes: reply_max,
            entry_overhead_bytes: ENTRY_BYTES + if plus { PLUS_BYTES } else { 0 },
            attrs: plus,
        };
        let cred = &dir.caller.cred;
        let listing = match dir
            .caller
            .fs
            .readdir(dir.handle.file, cookie, limit, cred)
            .await
        {
            Ok(listing) => listing,
            Err(error) => return self.fail_at(error, &dir).await,
        };
        let begin = self.reply.len();
        self.status(Status::Ok);
        attr::post_op(&mut self.reply, Some(&listing.dir));
        self.reply.u64(0);
        let (mut names, mut taken) = (0, 0);
        for entry in &listing.entries {
            let before = self.reply.len();
            write_entry(&mut self.reply, entry, dir.handle.dataset, plus);
            names += ENTRY_BYTES + entry.name.len().next_multiple_of(4);
            let whole = self.reply.len() - begin + 8;
            // `dircount` is a hint about the names alone; one entry is answered in any case if it fits `maxcount`.
            if whole > reply_max || (plus && taken > 0 && names > names_max) {
                self.reply.truncate(before);
                break;
            }
            taken += 1;
        }
        if taken == 0 && !listing.entries.is_empty() {
            self.reply.truncate(begin);
            self.status(Status::TooSmall);
            attr::post_op(&mut self.reply, Some(&listing.dir));
            return Ok(self.reply.into());
        }
        self.reply
            .bool(false)
            .bool(listing.eof && taken == listing.entries.len());
        Ok(self.reply.into())
    }
}

fn write_entry(w: &mut Writer, entry: &DirEntry, dataset: u64, plus: bool) {
    w.bool(true)
        .u64(entry.object)
        .opaque(&entry.name)
        .u64(entry.cookie);
    if plus {
        attr::post_op(w, entry.attr.as_ref());
        let handle = entry.attr.as_ref().map(|a| {
            FileHandle {
                dataset,
                file: a.id,
            }
            .encode()
        });
        w.bool(handle.is_some());
        if let Some(handle) = handle {
            w.opaque(&handle);
        }
    }
}
