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
use crate::redaction_list::{ENTRIES_OF_BLOCK, ENTRY_BYTES};

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
        let header = self.header_of_entries(list).await?;
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
        self.end = end_of(&entry, self.end).ok_or_else(corrupt)?;
        Ok(Some(entry))
    }
}

/// Object and block behind an entry, if it is sound and begins at or behind `before`. What was never written reads as zeros.
fn end_of(entry: &RedactedBlocks, before: (u64, u64)) -> Option<(u64, u64)> {
    let end = entry.block.checked_add(entry.count())?;
    let is_sound = entry.object != 0
        && entry.block_bytes() != 0
        && entry.block_bytes() <= ondisk::MAX_BLOCK_SIZE
        && (entry.object, entry.block) >= before;
    is_sound.then_some((entry.object, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_are_not_sound_are_refused() {
        let entry = |object, block, count| RedactedBlocks::new(object, block, count, 512);
        let check = |entry: RedactedBlocks, before, expect| {
            assert_eq!(end_of(&entry, before), expect, "{entry:?} after {before:?}");
        };
        check(entry(5, 0, 3), (0, 0), Some((5, 3)));
        check(entry(5, 3, 1), (5, 3), Some((5, 4)));
        check(entry(5, 2, 1), (5, 3), None);
        check(entry(4, 9, 1), (5, 3), None);
        check(entry(0, 9, 1), (0, 0), None);
        check(entry(5, u64::MAX, 1), (0, 0), None);
        check(RedactedBlocks::default(), (0, 0), None);
        let size_and_count = 7;
        let sizeless = RedactedBlocks {
            size_and_count,
            ..entry(5, 0, 1)
        };
        check(sizeless, (0, 0), None);
        let too_large = RedactedBlocks {
            size_and_count: u64::MAX,
            ..entry(5, 0, 1)
        };
        check(too_large, (0, 0), None);
    }
}
