//! Records in memory: what was appended and is on disk nowhere yet.
//!
//! Records that any commit writes (changes of names) keep their order among each other; records of one object keep
//! theirs. Between the two kinds order may change on disk, as in OpenZFS: replay passes over records of objects that are
//! gone. What is left of a removed object must be dropped ([`Pending::remove_async`]), for its number may come back.

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

/// A change to be remembered.
#[derive(Debug, Clone)]
pub enum Intent {
    /// A record of which the log knows nothing.
    Record {
        /// One of [`ondisk::zil::record_kind`].
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
        /// Size of the object's blocks, if those written whole may be written to their place at a commit instead of being
        /// copied to the log; else 0.
        block: u32,
    },
    /// A whole block that is at its place. Made of a write by its commit.
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
    /// A change there is no record for: a commit that should write it waits for its group instead.
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
    /// The part of a write, as a range of its data, that is whole blocks which may go to their place.
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
        let at = |place: u64| usize::try_from(place - offset).ok();
        Some(at(first)?..at(last)?)
    }
}

impl Entry {
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

/// A record with its place in order.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) order: u64,
    pub(crate) txg: Txg,
    pub(crate) intent: Intent,
}

/// The records of one log that are in memory.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    next_order: u64,
    always: VecDeque<Entry>,
    objects: BTreeMap<ObjectId, VecDeque<Entry>>,
    /// Chosen to be written, in the order in which they will be.
    queue: VecDeque<Entry>,
    /// Records ever chosen.
    queued: u64,
}

impl Pending {
    pub(crate) fn append(&mut self, scope: ItxKind, intent: Intent, txg: Txg) {
        let entry = Entry {
            order: self.next_order,
            txg,
            intent,
        };
        self.next_order += 1;
        match scope {
            ItxKind::Sync => self.always.push_back(entry),
            ItxKind::Async(object) => self.objects.entry(object).or_default().push_back(entry),
        }
    }

    /// Drops the records of an object that no commit has chosen.
    pub(crate) fn remove_async(&mut self, object: ObjectId) {
        self.objects.remove(&object);
    }

    /// Makes an object's records ones that every commit writes: a change of names depends on them.
    pub(crate) fn async_to_sync(&mut self, object: ObjectId) {
        self.always
            .extend(self.objects.remove(&object).unwrap_or_default());
    }

    /// Chooses what a commit of `object`, or of everything, writes. Returns the number of records ever chosen: when so
    /// many are durable, the commit is done.
    pub(crate) fn choose(&mut self, object: Option<ObjectId>) -> u64 {
        let mut chosen: Vec<Entry> = self.always.drain(..).collect();
        match object {
            Some(object) => chosen.extend(self.objects.remove(&object).unwrap_or_default()),
            None => chosen.extend(std::mem::take(&mut self.objects).into_values().flatten()),
        }
        chosen.sort_unstable_by_key(|entry| entry.order);
        self.queued += chosen.len() as u64;
        self.queue.extend(chosen);
        self.queued
    }

    /// Takes everything chosen; with it the number of records ever chosen.
    pub(crate) fn take_queue(&mut self) -> (VecDeque<Entry>, u64) {
        (std::mem::take(&mut self.queue), self.queued)
    }

    /// Drops what a synced group has made durable.
    pub(crate) fn synced(&mut self, txg: Txg) {
        self.always.retain(|entry| entry.txg > txg);
        self.queue.retain(|entry| entry.txg > txg);
        self.objects.retain(|_, entries| {
            entries.retain(|entry| entry.txg > txg);
            !entries.is_empty()
        });
    }

    /// Records in memory that no commit has chosen, and those that wait to be written.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let objects: usize = self.objects.values().map(VecDeque::len).sum();
        (self.always.len() + objects, self.queue.len())
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

    fn kinds(pending: &mut Pending) -> Vec<u64> {
        let (queue, _) = pending.take_queue();
        queue
            .into_iter()
            .map(|entry| match entry.intent {
                Intent::Record { kind, .. } => kind,
                _ => 0,
            })
            .collect()
    }

    #[test]
    fn a_commit_of_one_object_leaves_the_others() {
        let mut pending = Pending::default();
        let (a, b) = (ObjectId(7), ObjectId(8));
        pending.append(ItxKind::Async(a), note(1), Txg(4));
        pending.append(ItxKind::Sync, note(2), Txg(4));
        pending.append(ItxKind::Async(b), note(3), Txg(4));
        pending.append(ItxKind::Async(a), note(4), Txg(5));
        assert_eq!(pending.choose(Some(a)), 3);
        assert_eq!(kinds(&mut pending), [1, 2, 4]);
        assert_eq!(pending.choose(None), 4);
        assert_eq!(kinds(&mut pending), [3]);
    }

    #[test]
    fn a_write_is_cut_at_whole_blocks() {
        let entry = |offset: u64, len: usize| Entry {
            order: 3,
            txg: Txg(4),
            intent: Intent::Write {
                object: ObjectId(2),
                offset,
                data: IoBuf::zeroed(len),
                block: 4096,
            },
        };
        assert_eq!(entry(100, 5000).intent.whole_blocks(), None);
        assert_eq!(entry(0, 4095).intent.whole_blocks(), None);
        assert_eq!(entry(5000, 100).intent.whole_blocks(), None);
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
            let entry = entry(offset, len);
            let blocks = entry.intent.whole_blocks().expect("whole blocks");
            let pieces: Vec<(u64, usize)> = entry
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
        let mut pending = Pending::default();
        let a = ObjectId(7);
        pending.append(ItxKind::Async(a), note(1), Txg(4));
        pending.append(ItxKind::Sync, note(2), Txg(5));
        pending.append(ItxKind::Async(ObjectId(9)), note(3), Txg(5));
        pending.synced(Txg(4));
        pending.remove_async(ObjectId(9));
        assert_eq!(pending.choose(None), 1);
        assert_eq!(kinds(&mut pending), [2]);
        assert_eq!(pending.counts(), (0, 0));
    }
}
