//! What is asked of a pool about its deduplication tables: what they hold, to make them smaller, to load them; and whether they
//! have reached their quota.
// OpenZFS: module/zfs/ddt.c, ddt_prune_unique_entries and ddt_over_quota

use std::cell::Cell;
use std::rc::Rc;

use dmu::Tx;
use vdev::AllocationBias;

use crate::PoolError;
use crate::ddt::prune::{Position, Prune};
use crate::ddt::statistics::DedupStatistics;
use crate::pool::{ImportedPool, Pool, unix_time};

/// Percent of the vdevs for tables that they may fill under an automatic quota.
// OpenZFS: module/zfs/ddt.c, ddt_special_over_quota
const CLASS_FULL_PERCENT: u64 = 85;

impl Pool {
    /// Takes entries of blocks with one reference out of the deduplication tables of the fast form (`zpool ddtprune`), in
    /// steps of a transaction group each. Durable on return. Returns how many.
    ///
    /// # Errors
    /// `ReadOnly`, `Suspended`, `Closed`, those of reading.
    pub async fn prune_dedup(&self, which: Prune) -> Result<u64, PoolError> {
        let imported = &self.0;
        imported.writable()?;
        let Some(tables) = imported.space().dedup() else {
            return Ok(0);
        };
        let now = unix_time(imported.handle());
        let age = match which {
            Prune::Age(seconds) => Some(seconds),
            Prune::Percent(percent) => tables.age_of_oldest(percent, now).await?,
        };
        let Some(cutoff) = age.map(|age| now.saturating_sub(age)) else {
            return Ok(0);
        };
        let pruned = Rc::new(Cell::new(0));
        let at = Rc::new(Cell::new(Some(Position::default())));
        while at.get().is_some() {
            let (tables, pruned, at) = (Rc::clone(&tables), Rc::clone(&pruned), Rc::clone(&at));
            let step = async move |_: Rc<ImportedPool>, tx: Rc<Tx>| {
                let from = at.get().unwrap_or_default();
                let (next, count) = tables.prune_some(from, cutoff, &tx).await?;
                at.set(next);
                pruned.set(pruned.get() + count);
                Ok(())
            };
            imported.run_in_sync(step).await?;
        }
        Ok(pruned.get())
    }

    /// Reads the deduplication tables into the cache (`zpool prefetch -t ddt`). What does not fit is pushed out again.
    ///
    /// # Errors
    /// Those of reading.
    pub async fn prefetch_dedup(&self) -> Result<(), PoolError> {
        let Some(tables) = self.0.space().dedup() else {
            return Ok(());
        };
        tables.prefetch().await
    }

    /// Reads the tables of cloned blocks into the cache (`zpool prefetch -t brt`). What does not fit is pushed out again.
    ///
    /// # Errors
    /// Those of reading.
    pub async fn prefetch_clones(&self) -> Result<(), PoolError> {
        match self.0.space().clones() {
            Some(tables) => tables.prefetch().await,
            None => Ok(()),
        }
    }

    /// Returns what the deduplication tables hold.
    ///
    /// # Errors
    /// Those of reading.
    pub async fn dedup_statistics(&self) -> Result<DedupStatistics, PoolError> {
        match self.0.space().dedup() {
            Some(tables) => tables.statistics().await,
            None => Ok(DedupStatistics::default()),
        }
    }
}

impl ImportedPool {
    /// Finds out whether the tables may get new entries in the txg that begins to sync.
    pub(crate) async fn check_dedup_quota(&self) -> Result<(), PoolError> {
        let Some(tables) = self.space().dedup().filter(|tables| tables.is_used()) else {
            return Ok(());
        };
        let quota = match self.properties.number("dedup_table_quota") {
            Some(0) => None,
            None | Some(u64::MAX) => self.bytes_for_dedup(),
            Some(quota) => Some(quota),
        };
        let full = match quota {
            Some(quota) => tables.table_bytes().await? > quota,
            None => false,
        };
        tables.set_full(full);
        Ok(())
    }

    /// What vdevs that were added for tables leave them; `None` in a pool without such vdevs.
    fn bytes_for_dedup(&self) -> Option<u64> {
        let tops = self.tree().config().tops;
        let biased = [AllocationBias::Dedup, AllocationBias::Special];
        let bias = biased
            .into_iter()
            .find(|bias| tops.iter().any(|top| top.bias == *bias))?;
        let infos = self.tree().tops();
        let of_class = infos.iter().filter(|info| {
            tops.iter()
                .any(|top| top.id == u64::from(info.id) && top.bias == bias)
        });
        let bytes = of_class.fold(0_u64, |sum, info| {
            sum.saturating_add(info.metaslab_count << info.metaslab_shift)
        });
        Some(bytes / 100 * CLASS_FULL_PERCENT)
    }
}
