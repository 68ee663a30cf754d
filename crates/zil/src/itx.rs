//! Intent transactions (itxs): records in memory, appended and not yet on disk.
//!
//! Sync itxs (changes of names) keep their order among each other; async itxs of one object keep theirs. Between the two
//! kinds order may change on disk, as in OpenZFS: replay passes over records of objects that no longer exist. The async itxs
//! of a removed object must be dropped ([`Itxs::remove_async`]), for its number may be used again.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use ondisk::zil::LogRecord;
use ondisk::{BlockPointer, ObjectId, Txg};
use runtime::IoBuf;

/// Which commits write a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItxKind {
    /// Every commit: changes of names, on which everything else depends.
    Sync,
    /// Commits of this object, and those of everything.
    Async(ObjectId),
}

/// A change, as the log stores it.
#[derive(Debug, Clone)]
pub enum Intent {
    /// A record that is opaque to the log.
    Record {
        /// One of [`ondisk::zil_record::record_kind`].
        kind: u64,
        /// What follows the common header. At most some 128,000 bytes.
        body: Vec<u8>,
    },
    /// Bytes written to an object; of any length, as the log splits it.
    Write {
        /// The object.
        object: ObjectId,
        /// First byte.
        offset: u64,
        /// The bytes; shared, not copied.
        data: IoBuf,
        /// Size of the object's blocks, if those written whole may be written to their final location at a commit instead
        /// of being copied to the log; else 0.
        block: u32,
    },
    /// A whole block that is at its final location. A commit makes it of a write.
    Indirect {
        /// The object.
        object: ObjectId,
        /// First byte.
        offset: u64,
        /// Where the bytes are.
        bp: BlockPointer,
    },
    /// Records of one change: all of them are found after a crash, or none. Together at most some 128,000 bytes.
    Group(Vec<Self>),
    /// A change without a record type: a commit that should write it waits for its txg instead.
    Unlogged,
}

impl Intent {
    /// Whether (a part of) it has no record.
    pub(crate) fn is_unlogged(&self) -> bool {
        match self {
            Self::Group(parts) => parts.iter().any(Self::is_unlogged),
            Self::Unlogged => true,
            Self::Record { .. } | Self::Write { .. } | Self::Indirect { .. } => false,
        }
    }

    /// Bytes of the record on disk, were it in one piece.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Record { body, .. } => (LogRecord::HEADER + body.len()).next_multiple_of(8),
            Self::Write { data, .. } => LogRecord::WRITE_HEADER + data.len().next_multiple_of(8),
            Self::Indirect { .. } => LogRecord::WRITE_HEADER,
            Self::Group(parts) => parts.iter().map(Self::size).sum(),
            Self::Unlogged => 0,
        }
    }

    /// How many writes that hold their data it is, and how many bytes of data.
    pub(crate) fn copied(&self) -> (u64, u64) {
        match self {
            Self::Write { data, .. } => (1, data.len() as u64),
            Self::Group(parts) => parts
                .iter()
                .map(Self::copied)
                .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1)),
            Self::Record { .. } | Self::Indirect { .. } | Self::Unlogged => (0, 0),
        }
    }
}

impl Intent {
    /// The part of a write, as a range of its data, that is whole blocks which may be written early.
    pub(crate) fn whole_blocks(&self) -> Option<Range<usize>> {
        let &Self::Write {
            offset,
            ref data,
            block,
            ..
        } = self
        else {
            return None;
        };
        let size = u64::from(block);
        if size == 0 {
            return None;
        }
        let end = offset.checked_add(data.len() as u64)?;
        let (first, last) = (offset.next_multiple_of(size), end - end % size);
        if first >= last {
            return None;
        }
        let at = |byte: u64| usize::try_from(byte - offset).ok();
        Some(at(first)?..at(last)?)
    }
}

impl Itx {
    /// Cuts a write in pieces: what is before its whole blocks, each of these, and what is after.
    pub(crate) fn cut(self, blocks: Range<usize>) -> Vec<Self> {
        let Intent::Write {
            object,
            offset,
            data,
            block,
        } = &self.intent
        else {
            return vec![self];
        };
        let mut ends = vec![blocks.start];
        ends.extend(
            blocks
                .clone()
                .skip(*block as usize)
                .step_by(*block as usize),
        );
        ends.extend([blocks.end, data.len()]);
        let mut pieces = Vec::with_capacity(ends.len());
        let mut from = 0;
        for end in ends {
            if from < end {
                pieces.push(Self {
                    order: self.order,
                    txg: self.txg,
                    intent: Intent::Write {
                        object: *object,
                        offset: offset + from as u64,
                        data: data.slice(from..end),
                        block: *block,
                    },
                });
                from = end;
            }
        }
        pieces
    }
}

/// A record in memory.
#[derive(Debug)]
pub(crate) struct Itx {
    /// Position among all records appended.
    pub(crate) order: u64,
    pub(crate) txg: Txg,
    pub(crate) intent: Intent,
}

/// The records of one log that are in memory.
// OpenZFS: include/sys/zil_impl.h, itxs_t and zl_itx_commit_list
#[derive(Debug, Default)]
pub(crate) struct Itxs {
    next_order: u64,
    sync_list: VecDeque<Itx>,
    async_lists: BTreeMap<ObjectId, VecDeque<Itx>>,
    /// Chosen to be written, in the order in which they will be.
    commit_list: VecDeque<Itx>,
    /// Records ever chosen.
    chosen: u64,
}

impl Itxs {
    pub(crate) fn append(&mut self, kind: ItxKind, intent: Intent, txg: Txg) {
        let itx = Itx {
            order: self.next_order,
            txg,
            intent,
        };
        self.next_order += 1;
        match kind {
            ItxKind::Sync => self.sync_list.push_back(itx),
            ItxKind::Async(object) => self.async_lists.entry(object).or_default().push_back(itx),
        }
    }

    /// Drops the async itxs of an object that no commit has chosen.
    // OpenZFS: module/zfs/zil.c, zil_remove_async
    pub(crate) fn remove_async(&mut self, object: ObjectId) {
        self.async_lists.remove(&object);
    }

    /// Makes an object's async itxs sync ones: a change of names depends on them.
    // OpenZFS: module/zfs/zil.c, zil_async_to_sync
    pub(crate) fn async_to_sync(&mut self, object: ObjectId) {
        self.sync_list
            .extend(self.async_lists.remove(&object).unwrap_or_default());
    }

    /// Chooses what a commit of `object`, or of everything, writes. Returns the number of records ever chosen: when so
    /// many are durable, the commit is done.
    pub(crate) fn choose(&mut self, object: Option<ObjectId>) -> u64 {
        let mut list: Vec<Itx> = self.sync_list.drain(..).collect();
        match object {
            Some(object) => list.extend(self.async_lists.remove(&object).unwrap_or_default()),
            None => list.extend(
                std::mem::take(&mut self.async_lists)
                    .into_values()
                    .flatten(),
            ),
        }
        list.sort_unstable_by_key(|itx| itx.order);
        self.chosen += list.len() as u64;
        self.commit_list.extend(list);
        self.chosen
    }

    /// Takes everything chosen; with it the number of records ever chosen.
    pub(crate) fn take_commit_list(&mut self) -> (VecDeque<Itx>, u64) {
        (std::mem::take(&mut self.commit_list), self.chosen)
    }

    /// Drops what a synced txg has made durable.
    pub(crate) fn synced(&mut self, txg: Txg) {
        self.sync_list.retain(|itx| itx.txg > txg);
        self.commit_list.retain(|itx| itx.txg > txg);
        self.async_lists.retain(|_, itxs| {
            itxs.retain(|itx| itx.txg > txg);
            !itxs.is_empty()
        });
    }

    /// Records in memory that no commit has chosen, and those that wait to be written.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let objects: usize = self.async_lists.values().map(VecDeque::len).sum();
        (self.sync_list.len() + objects, self.commit_list.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(kind: u64) -> Intent {
        Intent::Record {
            kind,
            body: Vec::new(),
        }
    }

    fn kinds(itxs: &mut Itxs) -> Vec<u64> {
        let (queue, _) = itxs.take_commit_list();
        queue
            .into_iter()
            .map(|itx| match itx.intent {
                Intent::Record { kind, .. } => kind,
                _ => 0,
            })
            .collect()
    }

    #[test]
    fn a_commit_of_one_object_leaves_the_others() {
        let mut itxs = Itxs::default();
        let (a, b) = (ObjectId(7), ObjectId(8));
        itxs.append(ItxKind::Async(a), note(1), Txg(4));
        itxs.append(ItxKind::Sync, note(2), Txg(4));
        itxs.append(ItxKind::Async(b), note(3), Txg(4));
        itxs.append(ItxKind::Async(a), note(4), Txg(5));
        assert_eq!(itxs.choose(Some(a)), 3);
        assert_eq!(kinds(&mut itxs), [1, 2, 4]);
        assert_eq!(itxs.choose(None), 4);
        assert_eq!(kinds(&mut itxs), [3]);
    }

    #[test]
    fn a_write_is_cut_at_whole_blocks() {
        let itx = |offset: u64, len: usize| Itx {
            order: 3,
            txg: Txg(4),
            intent: Intent::Write {
                object: ObjectId(2),
                offset,
                data: IoBuf::zeroed(len),
                block: 4096,
            },
        };
        assert_eq!(itx(100, 5000).intent.whole_blocks(), None);
        assert_eq!(itx(0, 4095).intent.whole_blocks(), None);
        assert_eq!(itx(5000, 100).intent.whole_blocks(), None);
        for (offset, len, expected) in [
            (0, 4096, vec![(0, 4096)]),
            (
                4000,
                9000,
                vec![(4000, 96), (4096, 4096), (8192, 4096), (12288, 712)],
            ),
            (
                8192,
                12288,
                vec![(8192, 4096), (12288, 4096), (16384, 4096)],
            ),
        ] {
            let itx = itx(offset, len);
            let blocks = itx.intent.whole_blocks().expect("whole blocks");
            let pieces: Vec<(u64, usize)> = itx
                .cut(blocks)
                .into_iter()
                .map(|piece| match piece.intent {
                    Intent::Write { offset, data, .. } => (offset, data.len()),
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!(pieces, expected);
        }
    }

    #[test]
    fn what_has_synced_or_is_gone_is_dropped() {
        let mut itxs = Itxs::default();
        let a = ObjectId(7);
        itxs.append(ItxKind::Async(a), note(1), Txg(4));
        itxs.append(ItxKind::Sync, note(2), Txg(5));
        itxs.append(ItxKind::Async(ObjectId(9)), note(3), Txg(5));
        itxs.synced(Txg(4));
        itxs.remove_async(ObjectId(9));
        assert_eq!(itxs.choose(None), 1);
        assert_eq!(kinds(&mut itxs), [2]);
        assert_eq!(itxs.counts(), (0, 0));
    }
}
