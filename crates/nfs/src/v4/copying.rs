//! COPY and CLONE (RFC 7862, sections 15.2 and 15.13): bytes of one file that become those of another one without crossing the network.
//!
//! Within a pool whole blocks are shared; what cannot be shared a COPY reads and writes here, a part of it at a time. Both are done when they
//! are answered: what is copied is as stable as an unstable write, what is cloned is on stable storage.

use super::compound::{Compound, Done, FileTarget};
use super::data::READ;
use super::operation::CopyRange;
use super::status::Status;
use engine::{CloneOf, Cred, FsError, Stability};

/// Most bytes cloned for one COPY: the client asks again for the rest. A whole number of blocks of any size.
const CLONED_BYTES_MAX: u64 = 1 << 30;
/// Most bytes read and written for one COPY.
const COPIED_BYTES_MAX: u64 = 32 << 20;
/// Bytes read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// A range of the saved file, and where it goes in the current one, checked.
struct Transfer {
    source: FileTarget,
    target: FileTarget,
    source_cred: Cred,
    target_cred: Cred,
    from: u64,
    to: u64,
    len: u64,
}

impl Compound<'_> {
    /// COPY. Its answer may count fewer bytes than were asked for.
    pub(super) async fn copy(&mut self, range: &CopyRange, from_server: bool) -> Done {
        if from_server {
            return Err(Status::NotSupported.into());
        }
        let transfer = self.transfer(range).await?;
        let count = match transfer
            .clone_blocks(CLONED_BYTES_MAX, Stability::Unstable)
            .await
        {
            Err(FsError::CrossDevice | FsError::Invalid | FsError::NotSupported) => {
                transfer.copy_bytes().await?
            }
            other => other?,
        };
        let verifier = self.server.boot_verifier();
        // No state id to wait for; unstable; in order, and done.
        self.w().u32(0).u64(count).u32(0).u64(verifier);
        self.w().bool(true).bool(true);
        Ok(())
    }

    /// CLONE: all of the range, or an error.
    pub(super) async fn clone_range(&mut self, range: &CopyRange) -> Done {
        let transfer = self.transfer(range).await?;
        let cloned = transfer.clone_blocks(u64::MAX, Stability::FileSync).await?;
        match cloned == transfer.len {
            true => Ok(()),
            false => Err(Status::Io.into()),
        }
    }

    /// Checks what both operations check (RFC 7862, sections 15.2.3 and 15.13.3).
    async fn transfer(&self, range: &CopyRange) -> Result<Transfer, Status> {
        let source = self.saved_file(Status::IsDirectory)?;
        let mut target = self.file(Status::IsDirectory)?;
        target.writable()?;
        let source_cred = self.check_io(&range.source, &source, READ)?;
        let target_cred = self.check_change(&range.target, &mut target)?;
        let attr = source.attr().await?;
        self.check_regular(&attr)?;
        self.check_regular(&target.attr().await?)?;
        let left = attr.size.checked_sub(range.from).ok_or(Status::Invalid)?;
        let len = match range.count {
            0 => left,
            count if count <= left => count,
            _ => return Err(Status::Invalid),
        };
        let end = range.to.checked_add(len).ok_or(Status::Invalid)?;
        let is_same = source.handle == target.handle;
        if is_same && range.from < end && range.to < range.from + len {
            return Err(Status::Invalid);
        }
        Ok(Transfer {
            source,
            target,
            source_cred,
            target_cred,
            from: range.from,
            to: range.to,
            len,
        })
    }
}

impl Transfer {
    /// Shares blocks; at most `max` bytes. Returns how many.
    async fn clone_blocks(&self, max: u64, stability: Stability) -> Result<u64, FsError> {
        if self.len == 0 {
            return Ok(0);
        }
        // One user for both files: what one export makes of a user the other one may not.
        let (ours, theirs) = (&self.target_cred, &self.source_cred);
        if (ours.uid, ours.gid, &ours.groups) != (theirs.uid, theirs.gid, &theirs.groups) {
            return Err(FsError::CrossDevice);
        }
        let cred = Cred {
            opened: ours.opened && theirs.opened,
            ..ours.clone()
        };
        let source = CloneOf {
            fs: &self.source.caller.fs,
            file: self.source.handle.file,
            offset: self.from,
            len: self.len.min(max),
            may_be_shorter: max < u64::MAX,
        };
        let fs = &self.target.caller.fs;
        let cloned = fs.clone_range(self.target.handle.file, self.to, source, stability, &cred);
        Ok(cloned.await?.count)
    }

    /// Copies the first bytes. Returns how many.
    async fn copy_bytes(&self) -> Result<u64, FsError> {
        let len = self.len.min(COPIED_BYTES_MAX);
        let mut done = 0;
        while done < len {
            match self.copy_piece(done, len - done).await {
                Ok(0) => break,
                Ok(copied) => done += copied,
                Err(error) if done == 0 => return Err(error),
                // The client asks for the rest, and is told then.
                Err(_) => break,
            }
        }
        Ok(done)
    }

    async fn copy_piece(&self, done: u64, left: u64) -> Result<u64, FsError> {
        let count = usize::try_from(left).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
        let (from, fs) = (self.source.handle.file, &self.source.caller.fs);
        let read = fs.read(from, self.from + done, count, &self.source_cred);
        let (to, fs) = (self.target.handle.file, &self.target.caller.fs);
        let mut copied = 0;
        for piece in read.await?.pieces {
            let at = self.to + done + copied;
            let written = fs.write(to, at, piece, Stability::Unstable, &self.target_cred);
            copied += written.await?.count;
        }
        Ok(copied)
    }
}
