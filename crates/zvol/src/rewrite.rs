//! Blocks of a volume written anew as they are, so that the properties and the devices of now apply to them.

use dmu::Rewritten;
use dsl::Estimate;

use crate::volume::{META_BYTES, index};
use crate::{DATA, Volume, VolumeResult};

impl Volume {
    /// Writes the blocks of a part of the volume anew, as many as one transaction takes (1 MiB, or one block that is longer), from
    /// the first of them at or after `offset` that is no hole. Blocks that snapshots or clones have stay theirs, so that more space is
    /// in use then. Not logged, since no byte changes: durable with the transaction group, and until then the blocks of before are.
    ///
    /// # Errors
    /// Those of [`Volume::read`] and [`Volume::write`].
    pub async fn rewrite(&self, offset: u64, len: u64) -> VolumeResult<Rewritten> {
        let limit = self.range(offset, len)?.end;
        let found = self.0.os.next_data(DATA, offset).await?;
        let Some(data) = found.filter(|&data| data < limit) else {
            return Ok(Rewritten {
                bytes: 0,
                next: None,
            });
        };
        let from = data - data % self.0.block_size;
        let to = self.chunk_end(from);
        let _lock = self.0.ranges.exclusive(from..to).await;
        self.check_writable()?;
        let hole = self.0.os.next_hole_before(DATA, from, to - 1).await?;
        // It may have shrunk, or been discarded, while the range was waited for.
        let until = to.min(hole).min(self.size());
        let next = Some(until.max(from + self.0.block_size)).filter(|&next| next < limit);
        if until <= from {
            return Ok(Rewritten { bytes: 0, next });
        }
        let bytes = until - from;
        let pieces = self.0.os.read_bufs(DATA, from, index(bytes)).await?;
        let tx = self.begin(Estimate::bytes(bytes + META_BYTES)).await?;
        self.dirtied(&tx);
        let mut at = from;
        for piece in pieces {
            let len = piece.len() as u64;
            self.0.os.write_anew(DATA, at, piece, &tx).await?;
            at += len;
        }
        assert!(at == until, "what was read is written");
        self.0.dataset.note_written(bytes);
        Ok(Rewritten { bytes, next })
    }
}
