//! Records in memory: what was appended and is on disk nowhere yet.
//!
//! Records that any commit writes (changes of names) keep their order among each other; records of one object keep
//! theirs. Between the two kinds order may change on disk, as in OpenZFS: replay passes over records of objects that are
//! gone. What is left of a removed object must be dropped ([`Pending::forget`]), for its number may come back.

use std::collections::{BTreeMap, VecDeque};

use ondisk::zil::LogRecord;
use ondisk::{ObjectId, Txg};
use runtime::IoBuf;

/// Which commits write a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Every commit: changes of names, on which everything else depends.
    Always,
    /// Commits of this object, and those of everything.
    Object(ObjectId),
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
            Self::Record { .. } | Self::Write { .. } => false,
        }
    }

    /// Bytes of the record on disk, were it in one piece.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Record { body, .. } => (LogRecord::HEADER + body.len()).next_multiple_of(8),
            Self::Write { data, .. } => LogRecord::WRITE_HEADER + data.len().next_multiple_of(8),
            Self::Group(parts) => parts.iter().map(Self::size).sum(),
            Self::Unlogged => 0,
        }
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
    pub(crate) fn append(&mut self, scope: Scope, intent: Intent, txg: Txg) {
        let entry = Entry {
            order: self.next_order,
            txg,
            intent,
        };
        self.next_order += 1;
        match scope {
            Scope::Always => self.always.push_back(entry),
            Scope::Object(object) => self.objects.entry(object).or_default().push_back(entry),
        }
    }

    /// Drops the records of an object that no commit has chosen.
    pub(crate) fn forget(&mut self, object: ObjectId) {
        self.objects.remove(&object);
    }

    /// Makes an object's records ones that every commit writes: a change of names depends on them.
    pub(crate) fn promote(&mut self, object: ObjectId) {
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
        pending.append(Scope::Object(a), note(1), Txg(4));
        pending.append(Scope::Always, note(2), Txg(4));
        pending.append(Scope::Object(b), note(3), Txg(4));
        pending.append(Scope::Object(a), note(4), Txg(5));
        assert_eq!(pending.choose(Some(a)), 3);
        assert_eq!(kinds(&mut pending), [1, 2, 4]);
        assert_eq!(pending.choose(None), 4);
        assert_eq!(kinds(&mut pending), [3]);
    }

    #[test]
    fn what_has_synced_or_is_gone_is_dropped() {
        let mut pending = Pending::default();
        let a = ObjectId(7);
        pending.append(Scope::Object(a), note(1), Txg(4));
        pending.append(Scope::Always, note(2), Txg(5));
        pending.append(Scope::Object(ObjectId(9)), note(3), Txg(5));
        pending.synced(Txg(4));
        pending.forget(ObjectId(9));
        assert_eq!(pending.choose(None), 1);
        assert_eq!(kinds(&mut pending), [2]);
        assert_eq!(pending.counts(), (0, 0));
    }
}
