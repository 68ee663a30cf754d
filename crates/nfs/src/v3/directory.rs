//! READDIR and READDIRPLUS.
//!
//! A cookie is the engine's: it stays valid while names come and go, and over restarts of the server. The cookie verifier
//! is therefore always zero, and any verifier a client sends is taken.

use super::{Answer, Request, attr};
use crate::handle::{FileHandle, HANDLE_BYTES};
use crate::nested::NESTED_COOKIE_FIRST;
use crate::v3::status::Status;
use crate::xdr::Writer;
use engine::{Attr, DirEntry, FileType, FsError, ListLimit, Listing};

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
        let fs = &dir.caller.fs;
        let nested = self.server.nested_exports(&dir.handle, self.peer).await;
        let listing = if cookie < NESTED_COOKIE_FIRST {
            fs.readdir(dir.handle.file, cookie, limit, cred).await
        } else {
            // All that the directory has was told before.
            let attr = fs.getattr(dir.handle.file).await;
            attr.map(|dir| Listing {
                entries: Vec::new(),
                eof: true,
                dir,
            })
        };
        let mut listing = match listing {
            Ok(listing) => listing,
            Err(FsError::Invalid) => {
                // Not even one entry has room.
                self.status(Status::TooSmall);
                let attr = dir.attr().await;
                attr::post_op(&mut self.reply, &dir.handle, attr.as_ref());
                return Ok(self.reply.into());
            }
            Err(error) => return self.fail_at(error, &dir).await,
        };
        if listing.eof {
            for (nested, number) in nested.iter().zip(NESTED_COOKIE_FIRST + 1..) {
                let there = fs.lookup(dir.handle.file, &nested.name, cred).await.is_ok();
                if number > cookie && !there {
                    listing.entries.push(DirEntry {
                        name: nested.name.clone(),
                        object: nested.attr.id.object,
                        file_type: Some(FileType::Directory),
                        cookie: number,
                        attr: None,
                    });
                }
            }
        }
        let begin = self.reply.len();
        self.status(Status::Ok);
        attr::post_op(&mut self.reply, &dir.handle, Some(&listing.dir));
        self.reply.u64(0);
        let (mut names, mut taken) = (0, 0);
        for entry in &listing.entries {
            let before = self.reply.len();
            let file = match nested.iter().find(|nested| nested.name == entry.name) {
                Some(nested) => Some((&nested.handle, &nested.attr)),
                None => entry.attr.as_ref().map(|attr| (&dir.handle, attr)),
            };
            let known = |attr: &Attr| dir.handle.snapshot.is_some() || fs.writer(attr.id).is_none();
            let known = file.is_none_or(|(_, attr)| known(attr));
            write_entry(&mut self.reply, entry, file, plus.then_some(known));
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
            attr::post_op(&mut self.reply, &dir.handle, Some(&listing.dir));
            return Ok(self.reply.into());
        }
        self.reply
            .bool(false)
            .bool(listing.eof && taken == listing.entries.len());
        Ok(self.reply.into())
    }
}

/// Writes an entry; `file` is a handle of its dataset, and its attributes, if they can be had. With `plus` come its handle, and its
/// attributes where they are known.
fn write_entry(
    w: &mut Writer,
    entry: &DirEntry,
    file: Option<(&FileHandle, &Attr)>,
    plus: Option<bool>,
) {
    w.bool(true)
        .u64(entry.object)
        .opaque(&entry.name)
        .u64(entry.cookie);
    if let Some(known) = plus {
        // A snapshot not looked up yet: what it has, and by which handle, tells LOOKUP.
        let file = file.filter(|(_, attr)| !engine::is_unopened(attr.id));
        match file.filter(|_| known) {
            Some((dataset, attr)) => attr::post_op(w, dataset, Some(attr)),
            None => {
                w.bool(false);
            }
        }
        w.bool(file.is_some());
        if let Some((dataset, attr)) = file {
            let handle = FileHandle {
                file: attr.id,
                ..*dataset
            };
            w.opaque(&handle.encode());
        }
    }
}
