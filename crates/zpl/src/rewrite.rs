//! Blocks of a file written anew as they are, so that the properties and the devices of now apply to them: another compression or
//! checksum, other numbers of copies, devices that joined the pool.
//!
//! As a write, it takes the range, then the file's lock, then a transaction. Nothing of the file changes, so nothing is logged: after
//! a power cut the blocks are the new ones or those of before.
//! Facts: OpenZFS: man/man8/zfs-rewrite.8 (what stays: times, holes, the size of blocks).

use dmu::Rewritten;

use crate::backing::Weight;
use crate::data::CHUNK_BYTES;
use crate::fs::Fs;
use crate::permission::{self, WRITE};
use crate::{Cred, FileId, FsError, FsResult, flags};

impl Fs {
    /// Writes the blocks of a part of a regular file anew, as many as one transaction takes (1 MiB, or one block that is longer),
    /// from the first of them at or after `offset` that is no hole. Blocks that snapshots or clones have stay theirs, so that more
    /// space is in use then. Durable with the transaction group; until then the blocks of before are.
    ///
    /// # Errors
    /// Those of [`Fs::read`] and [`Fs::write`].
    pub async fn rewrite(
        &self,
        id: FileId,
        offset: u64,
        len: u64,
        cred: &Cred,
    ) -> FsResult<Rewritten> {
        self.check_writable()?;
        let znode = self.regular(id).await?;
        permission::check_content(&znode.attrs.borrow(), cred, WRITE)?;
        if znode.flags() & (flags::IMMUTABLE | flags::READONLY) != 0 {
            return Err(FsError::NotPermitted);
        }
        let attrs = znode.attrs.borrow().clone();
        self.check_quota(&attrs, false).await?;
        let object = znode.object_id();
        let limit = offset.saturating_add(len);
        let found = self.os().next_data(object, offset).await?;
        let end = limit.min(znode.size());
        let Some(data) = found.filter(|&data| data < end) else {
            return Ok(Rewritten {
                bytes: 0,
                next: None,
            });
        };
        let block = u64::from(znode.block_size.get().max(512));
        let from = data - data % block;
        let to = from + (CHUNK_BYTES / block).max(1) * block;
        let _range = znode.ranges.exclusive(from..to).await;
        if znode.dead.get() {
            return Err(FsError::Stale);
        }
        let hole = self.os().next_hole_before(object, from, to - 1).await?;
        // What is there may have changed while the range was waited for.
        let until = to.min(hole).min(znode.size());
        let same_blocks = u64::from(znode.block_size.get().max(512)) == block;
        if until <= from || !same_blocks {
            return Ok(Rewritten {
                bytes: 0,
                next: Some(if same_blocks { to } else { offset }).filter(|&next| next < limit),
            });
        }
        let bytes = until - from;
        let wanted = usize::try_from(bytes).map_err(|_| FsError::Invalid)?;
        let pieces = self.os().read_bufs(object, from, wanted).await?;
        let _lock = znode.exclusive().await?;
        let blocks = bytes.div_ceil(block);
        let tx = self.begin(Weight::Content { blocks, block }).await?;
        let mut at = from;
        for piece in pieces {
            let len = piece.len() as u64;
            self.os().write_anew(object, at, piece, &tx).await?;
            at += len;
        }
        assert!(at == until, "what was read is written");
        if let Some(dataset) = self.dataset() {
            dataset.note_written(bytes);
        }
        Ok(Rewritten {
            bytes,
            next: (until < limit.min(znode.size())).then_some(until),
        })
    }
}
