//! Taking out entries of blocks that have one reference.
//!
//! A block whose entry was taken out is a block like any other: freed with its pointer, not found by equal ones that are
//! written later.
// OpenZFS: module/zfs/ddt.c, ddt_prune_unique_entries

use std::rc::Rc;

use dmu::{Tx, zap};
use ondisk::ddt::{DdtEntry, DdtKey};
use zap::ZapValue;

use super::{DedupTable, DedupTables, UNIQUE, unpack};
use crate::PoolError;

/// Entries looked at in one transaction group.
const ENTRIES_A_TXG: usize = 50_000;
/// Entries in memory at once.
const ENTRIES_AT_ONCE: usize = 1024;
/// An hour in seconds: ages are counted in powers of two of it.
const HOUR: u64 = 3600;
/// Which entries of unique blocks are taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prune {
    /// Those of this many seconds and more.
    Age(u64),
    /// The oldest, about so many in a hundred.
    Percent(u64),
}

/// Where a walk over the entries of unique blocks is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Position {
    table: usize,
    cookie: u64,
}

impl DedupTables {
    /// Whether there are tables.
    pub(crate) fn is_used(&self) -> bool {
        !self.tables.borrow().is_empty()
    }

    /// The age in seconds of the youngest entry of a unique block that is among the `percent` oldest in a hundred, to a power
    /// of two of hours; `None` when there are none.
    pub(crate) async fn age_of_oldest(
        &self,
        percent: u64,
        now: u64,
    ) -> Result<Option<u64>, PoolError> {
        let mut by_age = [0_u64; 64];
        let mut at = Some(Position::default());
        while let Some(from) = at {
            let (next, entries) = self.unique_entries(from).await?;
            for (_, _, entry) in &entries {
                by_age[bin_of(entry, now)] += 1;
            }
            at = next;
        }
        let mut left = by_age.iter().sum::<u64>().saturating_mul(percent.min(100)) / 100;
        let mut youngest = None;
        for (bin, count) in by_age.into_iter().enumerate().rev().filter(|bin| bin.1 > 0) {
            if left == 0 {
                break;
            }
            youngest = Some(if bin == 0 { 0 } else { HOUR << (bin - 1) });
            left = left.saturating_sub(count);
        }
        Ok(youngest)
    }

    /// Takes out the entries before `cutoff` (seconds since 1970) among the next ones. Returns where to go on, and how many.
    pub(crate) async fn prune_some(
        &self,
        from: Position,
        cutoff: u64,
        tx: &Tx,
    ) -> Result<(Option<Position>, u64), PoolError> {
        assert!(tx.is_syncing(), "prune happens in syncing context");
        let (mut at, mut seen, mut pruned) = (Some(from), 0, 0);
        while let Some(position) = at.filter(|_| seen < ENTRIES_A_TXG) {
            let (next, entries) = self.unique_entries(position).await?;
            seen += entries.len();
            for (table, key, entry) in entries {
                if entry.variants[0].since <= cutoff && self.load(&table, &key).await? {
                    pruned += u64::from(table.prune(&key));
                }
            }
            at = next;
        }
        Ok((at, pruned))
    }

    /// The next entries of unique blocks of tables of the fast form, and where to go on; `None` behind the last table.
    async fn unique_entries(
        &self,
        from: Position,
    ) -> Result<(Option<Position>, Vec<(Rc<DedupTable>, DdtKey, DdtEntry)>), PoolError> {
        let tables = self.all();
        let Some(table) = tables.get(from.table) else {
            return Ok((None, Vec::new()));
        };
        let next_table = Position {
            table: from.table + 1,
            cookie: 0,
        };
        let Some(object) = table.objects.get()[UNIQUE].filter(|_| table.flat) else {
            return Ok((Some(next_table), Vec::new()));
        };
        let some = zap::cursor(&self.mos, object, from.cookie, ENTRIES_AT_ONCE).await?;
        let Some(last) = some.last() else {
            return Ok((Some(next_table), Vec::new()));
        };
        let next = Position {
            cookie: last.next_cookie,
            ..from
        };
        let mut entries = Vec::with_capacity(some.len());
        for found in &some {
            let entry = match &found.value {
                ZapValue::U8(value) => unpack(value, table.flat),
                _ => None,
            };
            let key = DdtKey::from_be_bytes(&found.name);
            let (Some(key), Some(entry)) = (key, entry) else {
                return Err(table.bad("has a damaged entry"));
            };
            entries.push((Rc::clone(table), key, entry));
        }
        Ok((Some(next), entries))
    }
}

impl DedupTable {
    /// Takes out an entry that is among this txg's changes, if its block has one reference still.
    fn prune(&self, key: &DdtKey) -> bool {
        let mut changed = self.changed.borrow_mut();
        let Some(change) = changed.get_mut(key) else {
            return false;
        };
        let is_unique = change.class == Some(UNIQUE) && change.now.references(self.flat) == 1;
        if is_unique {
            change.now = DdtEntry::empty(self.flat);
        }
        is_unique
    }
}

/// Hours since an entry came to its class, as a power of two.
fn bin_of(entry: &DdtEntry, now: u64) -> usize {
    let hours = now.saturating_sub(entry.variants[0].since) / HOUR;
    hours.checked_ilog2().map_or(0, |log2| log2 as usize + 1)
}
