//! What the tables hold and save, in numbers.

use dmu::zap;
use ondisk::bytes::index;
use ondisk::ddt::{DdtEntry, DdtHistogram, DdtKey};

use super::{DedupTables, places};
use crate::PoolError;

/// Bytes of a table that are read into the cache at once.
const PREFETCH_BYTES: u64 = 1 << 20;

/// What the deduplication tables of a pool hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DedupStatistics {
    /// Entries of all tables.
    pub entries: u64,
    /// Bytes that the tables take on disk.
    pub disk_bytes: u64,
    /// Bytes that the tables take in memory, if all of them is there.
    pub memory_bytes: u64,
    /// By how often the blocks are referenced: from 1, from 2, from 4 times and so on; see [`DdtHistogram::rows`].
    pub rows: Vec<[u64; 8]>,
}

impl DedupTables {
    /// Returns the bytes (deflated) that references beyond each block's first would take.
    pub(crate) fn saved_bytes(&self) -> u64 {
        let (referenced, stored) = self.bytes.get();
        referenced.saturating_sub(stored)
    }

    /// Returns how many times, in hundredths, the references would take what is stored (`dedupratio`).
    // OpenZFS: module/zfs/ddt_stats.c, ddt_get_pool_dedup_ratio
    pub(crate) fn ratio_percent(&self) -> u64 {
        let (referenced, stored) = self.bytes.get();
        let ratio = (u128::from(referenced) * 100).checked_div(u128::from(stored));
        ratio.map_or(100, |ratio| u64::try_from(ratio).unwrap_or(u64::MAX))
    }

    /// Returns the bytes the tables themselves take (`dedup_table_size`).
    pub(crate) async fn table_bytes(&self) -> Result<u64, PoolError> {
        let mut sum = 0_u64;
        for table in self.all() {
            let logs = table.logs.borrow().objects();
            for object in table.objects.get().into_iter().flatten().chain(logs) {
                let info = self.mos.object_info(object).await?;
                sum = sum.saturating_add(info.used_bytes);
            }
        }
        Ok(sum)
    }

    /// Reads the tables into the cache. What does not fit is pushed out again.
    ///
    /// # Errors
    /// Those of reading.
    pub(crate) async fn prefetch(&self) -> Result<(), PoolError> {
        for table in self.all() {
            for object in table.objects.get().into_iter().flatten() {
                let info = self.mos.object_info(object).await?;
                let block = u64::from(info.block_size);
                let end = block.saturating_mul(info.max_block_id.saturating_add(1));
                let mut at = 0;
                while at < end {
                    let len = PREFETCH_BYTES.min(end - at);
                    self.mos.read(object, at, index(len)).await?;
                    at += len;
                }
            }
        }
        Ok(())
    }

    /// Returns what the tables hold, all together.
    ///
    /// # Errors
    /// Those of reading the meta-objset.
    pub(crate) async fn statistics(&self) -> Result<DedupStatistics, PoolError> {
        let mut sum = DedupStatistics::default();
        let mut histogram = DdtHistogram::default();
        for table in self.all() {
            let logs = table.logs.borrow().objects();
            for object in table.objects.get().into_iter().flatten() {
                sum.entries += zap::count(&self.mos, object).await?;
            }
            for object in table.objects.get().into_iter().flatten().chain(logs) {
                let info = self.mos.object_info(object).await?;
                let blocks = info.fill_count.saturating_mul(u64::from(info.block_size));
                sum.disk_bytes = sum.disk_bytes.saturating_add(info.used_bytes);
                sum.memory_bytes = sum.memory_bytes.saturating_add(blocks);
            }
            for of_class in table.histograms.borrow().iter() {
                histogram.merge(of_class);
            }
            for (key, logged) in table.logs.borrow().entries() {
                histogram.change(&self.sums(key, &logged.entry), true);
                sum.entries += u64::from(logged.class.is_none());
            }
        }
        sum.rows = histogram.rows().to_vec();
        Ok(sum)
    }

    /// Adds up what the blocks take, as they are referenced and as they are stored.
    pub(super) fn count_bytes(&self) {
        let mut all = (0_u64, 0_u64);
        let mut add = |referenced: u64, stored: u64| {
            all = (
                all.0.saturating_add(referenced),
                all.1.saturating_add(stored),
            );
        };
        for table in self.all() {
            for histogram in table.histograms.borrow().iter() {
                let (referenced, stored) = histogram.bytes();
                add(referenced, stored);
            }
            for (key, logged) in table.logs.borrow().entries() {
                let sums = self.sums(key, &logged.entry);
                add(sums[7], sums[3]);
            }
        }
        self.bytes.set(all);
    }

    /// The eight sums an entry adds to its histogram's bucket: blocks, logical, physical and deflated bytes; the same
    /// times the references.
    pub(super) fn sums(&self, key: &DdtKey, entry: &DdtEntry) -> [u64; 8] {
        let (lsize, psize) = key.sizes();
        let mut sums = [0_u64; 8];
        for variant in entry.variants.iter().filter(|v| v.birth != 0) {
            let mut dsize = 0;
            for dva in places(key, variant) {
                if dva.is_present() {
                    dsize += (dva.asize >> 9) * self.tree.deflate_ratio(dva.vdev).unwrap_or(512);
                }
            }
            let n = variant.references;
            for (sum, part) in sums.iter_mut().zip([1, lsize, psize, dsize]) {
                *sum = sum.wrapping_add(part);
            }
            for (sum, part) in sums[4..].iter_mut().zip([1, lsize, psize, dsize]) {
                *sum = sum.wrapping_add(part.wrapping_mul(n));
            }
        }
        sums
    }
}
