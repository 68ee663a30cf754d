//! Locks on ranges of bytes of one file, by owner: what a lock conflicts with, and what an owner's locks become when it locks and
//! unlocks parts of them (POSIX, fcntl: a range an owner locks again takes the new kind, an unlocked part splits a range).
//!
//! Advisory and in memory: the caller keeps one table for each file, says who owners are, and bounds how many ranges there are.

use std::collections::BTreeMap;

/// Bytes from `first` to `last`, both included; a range to the end of the file ends at `u64::MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteRange {
    first: u64,
    last: u64,
}

impl ByteRange {
    /// Returns the range from `first` to `last`, or `None` when it is empty.
    #[must_use]
    pub fn new(first: u64, last: u64) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    /// Returns the first byte.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Returns the last byte.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Whether others may hold a lock on the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockMode {
    /// Others may hold shared locks (a read lock).
    Shared,
    /// No other owner may hold a lock (a write lock).
    Exclusive,
}

/// A lock that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldLock<Owner> {
    /// Who holds it.
    pub owner: Owner,
    /// What it covers.
    pub range: ByteRange,
    /// Its mode.
    pub mode: LockMode,
}

/// The locks of one file.
#[derive(Debug, Clone)]
pub struct LockTable<Owner> {
    /// By owner and first byte: the last byte and the mode. Ranges of one owner do not overlap.
    held: BTreeMap<(Owner, u64), (u64, LockMode)>,
}

impl<Owner> Default for LockTable<Owner> {
    fn default() -> Self {
        Self {
            held: BTreeMap::new(),
        }
    }
}

impl<Owner: Copy + Ord> LockTable<Owner> {
    /// Returns how many ranges are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Returns whether no lock is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns whether any lock is exclusive.
    #[must_use]
    pub fn is_any_exclusive(&self) -> bool {
        let exclusive = |(_, mode): &(u64, LockMode)| *mode == LockMode::Exclusive;
        self.held.values().any(exclusive)
    }

    /// Returns the owner of each range.
    pub fn owners(&self) -> impl Iterator<Item = Owner> {
        self.held.keys().map(|(owner, _)| *owner)
    }

    /// Returns whether `owner` holds a lock.
    #[must_use]
    pub fn is_held_by(&self, owner: Owner) -> bool {
        self.ranges_of(owner).next().is_some()
    }

    /// Returns a lock of another owner that a lock would conflict with.
    #[must_use]
    pub fn conflict(
        &self,
        owner: Owner,
        range: ByteRange,
        mode: LockMode,
    ) -> Option<HeldLock<Owner>> {
        self.conflicts(owner, range, mode).next()
    }

    /// Returns all locks of other owners that a lock would conflict with.
    pub fn conflicts(
        &self,
        owner: Owner,
        range: ByteRange,
        mode: LockMode,
    ) -> impl Iterator<Item = HeldLock<Owner>> {
        self.held
            .iter()
            .map(|((owner, first), (last, mode))| HeldLock {
                owner: *owner,
                range: ByteRange {
                    first: *first,
                    last: *last,
                },
                mode: *mode,
            })
            .filter(move |held| {
                held.owner != owner
                    && held.range.overlaps(&range)
                    && (mode == LockMode::Exclusive || held.mode == LockMode::Exclusive)
            })
    }

    /// Locks a range: what the owner holds of it takes the new mode.
    ///
    /// # Errors
    /// A lock of another owner that is in the way; nothing has changed then.
    pub fn lock(
        &mut self,
        owner: Owner,
        range: ByteRange,
        mode: LockMode,
    ) -> Result<(), HeldLock<Owner>> {
        if let Some(held) = self.conflict(owner, range, mode) {
            return Err(held);
        }
        self.unlock(owner, range);
        let mut whole = range;
        // What touches the range on either side and has the same mode becomes one with it.
        let touching: Vec<ByteRange> = self
            .ranges_of(owner)
            .filter(|(held, held_mode)| {
                let behind = range.last.checked_add(1) == Some(held.first);
                let before = held.last.checked_add(1) == Some(range.first);
                *held_mode == mode && (behind || before)
            })
            .map(|(held, _)| held)
            .collect();
        for held in touching {
            self.held.remove(&(owner, held.first));
            whole.first = whole.first.min(held.first);
            whole.last = whole.last.max(held.last);
        }
        self.held.insert((owner, whole.first), (whole.last, mode));
        Ok(())
    }

    /// Unlocks a range; what the owner does not hold of it stays unlocked.
    pub fn unlock(&mut self, owner: Owner, range: ByteRange) {
        let overlapping: Vec<(ByteRange, LockMode)> = self
            .ranges_of(owner)
            .filter(|(held, _)| held.overlaps(&range))
            .collect();
        for (held, mode) in overlapping {
            self.held.remove(&(owner, held.first));
            if held.first < range.first {
                self.held
                    .insert((owner, held.first), (range.first - 1, mode));
            }
            if held.last > range.last {
                self.held.insert((owner, range.last + 1), (held.last, mode));
            }
        }
    }

    /// Ends all locks of the owners that `gone` names.
    pub fn release_where(&mut self, gone: impl Fn(Owner) -> bool) {
        self.held.retain(|(owner, _), _| !gone(*owner));
    }

    /// Ends all locks of an owner.
    pub fn release(&mut self, owner: Owner) {
        self.held.retain(|(held_by, _), _| *held_by != owner);
    }

    fn ranges_of(&self, owner: Owner) -> impl Iterator<Item = (ByteRange, LockMode)> {
        self.held
            .range((owner, 0)..=(owner, u64::MAX))
            .map(|((_, first), (last, mode))| {
                let range = ByteRange {
                    first: *first,
                    last: *last,
                };
                (range, *mode)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::LockMode::{Exclusive, Shared};
    use super::*;

    fn range(first: u64, last: u64) -> ByteRange {
        ByteRange::new(first, last).expect("not empty")
    }

    /// The locks of a table, as `owner:first-last` with `r` or `w`.
    fn shown(table: &LockTable<u64>) -> String {
        let locks = table.held.iter().map(|((owner, first), (last, mode))| {
            let mode = if *mode == Shared { 'r' } else { 'w' };
            format!("{owner}:{first}-{last}{mode}")
        });
        locks.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn an_owners_ranges_join_split_and_change_their_mode() {
        type Step = (char, u64, u64);
        let check = |steps: &[Step], expect: &str| {
            let mut table = LockTable::default();
            for (what, first, last) in steps {
                match what {
                    'r' => table.lock(1, range(*first, *last), Shared).expect("free"),
                    'w' => table
                        .lock(1, range(*first, *last), Exclusive)
                        .expect("free"),
                    _ => table.unlock(1, range(*first, *last)),
                }
            }
            assert_eq!(shown(&table), expect, "{steps:?}");
        };
        check(&[('w', 0, 9)], "1:0-9w");
        check(&[('w', 0, 9), ('w', 10, 19)], "1:0-19w");
        check(&[('w', 0, 9), ('w', 5, 19)], "1:0-19w");
        check(&[('w', 0, 9), ('r', 10, 19)], "1:0-9w 1:10-19r");
        check(&[('w', 0, 29), ('u', 10, 19)], "1:0-9w 1:20-29w");
        check(&[('w', 0, 29), ('r', 10, 19)], "1:0-9w 1:10-19r 1:20-29w");
        check(&[('r', 0, u64::MAX), ('u', 10, u64::MAX)], "1:0-9r");
        check(
            &[('r', 0, u64::MAX), ('u', 0, 9)],
            &format!("1:10-{}r", u64::MAX),
        );
        check(&[('w', 0, 4), ('w', 8, 9), ('u', 0, u64::MAX)], "");
        check(&[('w', u64::MAX, u64::MAX), ('u', u64::MAX, u64::MAX)], "");
    }

    #[test]
    fn exclusive_locks_of_others_conflict_and_shared_ones_do_not() {
        let mut table = LockTable::default();
        table.lock(1, range(10, 19), Shared).expect("free");
        table.lock(2, range(0, 15), Shared).expect("shared");
        let held = table.lock(3, range(18, 30), Exclusive).expect_err("held");
        assert_eq!((held.owner, held.range), (1, range(10, 19)));
        table.lock(3, range(20, 30), Exclusive).expect("beside");
        assert!(table.conflict(1, range(30, 40), Shared).is_some());
        assert!(table.lock(1, range(10, 19), Exclusive).is_err());
        table.release(2);
        table.lock(1, range(10, 19), Exclusive).expect("alone");
        assert!(!table.is_held_by(2) && table.is_held_by(3));
        assert_eq!(shown(&table), "1:10-19w 3:20-30w");
    }
}
