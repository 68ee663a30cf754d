//! Reading redaction lists, for streams.
//!
//! What is read is checked: entries come in order, none is of no object, and as many are believed as the list has bytes for.
//!
//! OpenZFS: module/zfs/dsl_bookmark.c, dsl_redaction_list_traverse.

use std::rc::Rc;

use dmu::Objset;
use ondisk::ObjectId;
use ondisk::redaction::{RedactedBlocks, RedactionHeader};
use runtime::IoBuf;

use crate::dsl_pool::DslPool;
use crate::error::{DslError, RedactionError, Result};
use crate::lists_in_use::ListHold;
use crate::redaction_list::ENTRIES_OF_BLOCK;

/// Bytes of an entry.
const ENTRY_BYTES: u64 = RedactedBlocks::SIZE as u64;

impl DslPool {
    /// Opens a complete list to read it from an object and block on.
    ///
    /// # Errors
    /// `Redaction(Incomplete)`; `Corrupt` and `Decode` for what is no list; of reading.
    pub(crate) async fn read_list(
        self: &Rc<Self>,
        list: ObjectId,
        from: (u64, u64),
    ) -> Result<ListReader> {
        let hold = self.lists_in_use.hold(list);
        let header = self.list_header(list).await?;
        if !header.is_complete() {
            return Err(RedactionError::Incomplete.into());
        }
        Ok(ListReader {
            mos: self.mos.clone(),
            header,
            hold,
            from,
            next: 0,
            block: None,
            end: (0, 0),
        })
    }
}

/// Reads a list, one block of it at a time.
pub(crate) struct ListReader {
    mos: Objset,
    header: RedactionHeader,
    hold: ListHold,
    /// Object and block from which on entries are given.
    from: (u64, u64),
    /// Number of the next entry.
    next: u64,
    /// The block of the list that the last entry stands in.
    block: Option<IoBuf>,
    /// Object and block behind the last entry.
    end: (u64, u64),
}

impl ListReader {
    /// The guids of the snapshots that the list was made from.
    pub(crate) fn snapshots(&self) -> &[u64] {
        &self.header.snapshots
    }

    /// Gives what comes from an object and block on, and nothing before.
    pub(crate) fn skip_to(&mut self, from: (u64, u64)) {
        self.from = from;
    }

    /// The next entry.
    ///
    /// # Errors
    /// `Corrupt` for entries that are empty or not in order; of reading.
    pub(crate) async fn next(&mut self) -> Result<Option<RedactedBlocks>> {
        loop {
            let Some(entry) = self.next_stored().await? else {
                return Ok(None);
            };
            let (object, block) = self.from;
            if (entry.object, entry.block) >= self.from {
                return Ok(Some(entry));
            }
            let end = entry.block + entry.count();
            if entry.object == object && end > block {
                let count = end - block;
                return Ok(Some(RedactedBlocks {
                    block,
                    size_and_count: entry.size_and_count - entry.count() + count,
                    ..entry
                }));
            }
        }
    }

    async fn next_stored(&mut self) -> Result<Option<RedactedBlocks>> {
        if self.next >= self.header.entries {
            return Ok(None);
        }
        let corrupt = || DslError::corrupt("redaction list", self.hold.list());
        let at = usize::try_from(self.next % ENTRIES_OF_BLOCK as u64).expect("4096 at most");
        let bytes = match self.block.take().filter(|_| at != 0) {
            Some(bytes) => bytes,
            None => {
                let offset = self.next.checked_mul(ENTRY_BYTES).ok_or_else(corrupt)?;
                let len = ENTRIES_OF_BLOCK * RedactedBlocks::SIZE;
                self.mos.read(self.hold.list(), offset, len).await?
            }
        };
        let entry = RedactedBlocks::decode(&bytes[at * RedactedBlocks::SIZE..])
            .expect("a block has whole entries");
        self.block = Some(bytes);
        self.next += 1;
        let end = entry.block.checked_add(entry.count());
        let sound = entry.object != 0
            && entry.block_bytes() != 0
            && (entry.object, entry.block) >= self.end;
        let end = end.filter(|_| sound).ok_or_else(corrupt)?;
        self.end = (entry.object, end);
        Ok(Some(entry))
    }
}
