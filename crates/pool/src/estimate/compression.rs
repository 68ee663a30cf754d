//! What compression would save: a sample of blocks is read and compressed by each algorithm, as writes would.

use std::collections::BTreeMap;
use std::time::Duration;

use codec::compress;
use ondisk::{Compression, ObjectId};
use runtime::IoBuf;
use zio::{BlockKeys, Packed, Packing};

use super::sample::BlockSample;
use super::walk::{BlockWalk, DataBlock};
use super::{EstimateProgress, Z95, real};
use crate::PoolError;
use crate::pool::{ImportedPool, Pool};

/// The level that `gzip` without a number means.
// OpenZFS: include/sys/zio.h, ZIO_COMPRESS_GZIP_6
const GZIP_6: Compression = Compression(10);

/// What is tried, by the words of the property: with the level, for zstd.
const ALGORITHMS: &[(&str, Compression, u8)] = &[
    ("zle", Compression::ZLE, 0),
    ("lz4", Compression::LZ4, 0),
    ("zstd-1", Compression::ZSTD, 1),
    ("zstd-3", Compression::ZSTD, 3),
    ("zstd-9", Compression::ZSTD, 9),
    ("gzip-6", GZIP_6, 0),
];

/// An estimate under way; see [`Pool::estimate_compression`].
#[derive(Clone, Debug)]
pub struct CompressionEstimate {
    walk: BlockWalk,
    sample: BlockSample,
    /// Blocks taken into the sample, once the walk is over.
    wanted: Option<u64>,
    sums: Vec<TrialSums>,
    found: CompressionFigures,
}

/// What an estimate says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CompressionFigures {
    /// Blocks of files and volumes that were looked at: how many, bytes before compression, stored now.
    pub totals: [u64; 3],
    /// Blocks that were compressed, and their bytes.
    pub sample: (u64, u64),
    /// Each algorithm.
    pub trials: Vec<Trial>,
    /// Blocks of the sample that could not be read: their key is not loaded.
    pub locked_blocks: u64,
    /// Blocks of the sample that were freed or overwritten meanwhile, or are damaged.
    pub lost_blocks: u64,
    /// Pointers whose blocks below could not be read.
    pub unreadable: u64,
    /// All blocks were looked at.
    pub complete: bool,
}

/// What one algorithm makes of the data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trial {
    /// The property's value.
    pub name: &'static str,
    /// Bytes before compression for each stored (`compressratio`); infinite when nothing is stored.
    pub ratio: f64,
    /// How far the ratio may be off on each side, in 95 of 100 estimates.
    pub ratio_error: f64,
    /// Seconds of a processor to compress a GiB, and to decompress what is stored of one.
    pub seconds_per_gib: (f64, f64),
}

/// Sums over the blocks that were compressed: for the ratio of two means and its error.
#[derive(Clone, Copy, Debug, Default)]
struct TrialSums {
    blocks: f64,
    lsize: f64,
    stored: f64,
    lsize_squares: f64,
    products: f64,
    stored_squares: f64,
    compressing: Duration,
    decompressing: Duration,
}

impl TrialSums {
    fn add(&mut self, lsize: u64, outcome: &TrialOutcome) {
        let (lsize, stored) = (real(lsize), real(outcome.stored));
        self.blocks += 1.0;
        self.lsize += lsize;
        self.stored += stored;
        self.lsize_squares += lsize * lsize;
        self.products += lsize * stored;
        self.stored_squares += stored * stored;
        self.compressing += outcome.compressing;
        self.decompressing += outcome.decompressing;
    }

    /// The ratio, with the error of a ratio of means of a sample without replacement out of `blocks` (Cochran 1977, 2.11).
    fn trial(&self, name: &'static str, blocks: u64) -> Trial {
        let gib = self.lsize / f64::from(1 << 30);
        let speed = |time: Duration| {
            if gib > 0.0 {
                time.as_secs_f64() / gib
            } else {
                0.0
            }
        };
        let mut trial = Trial {
            name,
            ratio: 1.0,
            ratio_error: 0.0,
            seconds_per_gib: (speed(self.compressing), speed(self.decompressing)),
        };
        if self.stored > 0.0 {
            let ratio = self.lsize / self.stored;
            let residues = self.lsize_squares - 2.0 * ratio * self.products
                + ratio * ratio * self.stored_squares;
            let n = self.blocks;
            let left_out = (1.0 - n / real(blocks).max(n)).max(0.0);
            let mean = self.stored / n;
            let variance = left_out * residues.max(0.0) / (n * (n - 1.0).max(1.0) * mean * mean);
            trial.ratio = ratio;
            trial.ratio_error = Z95 * variance.sqrt();
        } else if self.lsize > 0.0 {
            trial.ratio = f64::INFINITY;
        }
        trial
    }
}

/// What an algorithm made of one block.
#[derive(Clone, Copy, Debug, Default)]
struct TrialOutcome {
    stored: u64,
    compressing: Duration,
    decompressing: Duration,
}

impl CompressionEstimate {
    /// Returns how far it is.
    #[must_use]
    pub fn progress(&self) -> EstimateProgress {
        let read = self
            .wanted
            .map(|wanted| wanted - ondisk::bytes::len64(self.sample.len()));
        EstimateProgress {
            visited_bytes: self.walk.visited_bytes,
            total_bytes: self.walk.total_bytes,
            read_blocks: read.unwrap_or(0),
            wanted_blocks: self.wanted.unwrap_or(0),
            walked: self.wanted.is_some(),
            done: self.wanted.is_some() && self.sample.len() == 0,
        }
    }

    /// Ends the walk where it is: what it has not visited is left out.
    pub fn end_walk(&mut self) {
        if self.wanted.is_none() {
            self.wanted = Some(ondisk::bytes::len64(self.sample.len()));
        }
    }

    /// Returns what it says so far.
    #[must_use]
    pub fn figures(&self) -> CompressionFigures {
        let named = ALGORITHMS.iter().zip(&self.sums);
        let [blocks, ..] = self.found.totals;
        assert!(
            self.sums.len() == ALGORITHMS.len() && self.found.sample.0 <= blocks,
            "each algorithm was tried on blocks that were seen"
        );
        CompressionFigures {
            trials: named
                .map(|((name, ..), sums)| sums.trial(name, blocks))
                .collect(),
            unreadable: self.walk.unreadable,
            complete: self.walk.is_done(),
            ..self.found.clone()
        }
    }

    fn note(&mut self, block: &DataBlock) {
        let bp = &block.bp;
        let stored = if bp.is_embedded() { 0 } else { bp.psize() };
        for (sum, part) in self.found.totals.iter_mut().zip([1, bp.lsize(), stored]) {
            *sum = sum.saturating_add(part);
        }
        self.sample.offer(block);
    }
}

/// The keys of datasets, as far as they are known.
type Keys = BTreeMap<u64, Option<BlockKeys>>;

impl Pool {
    /// Begins to find out what compression would save of a file system or volume with what lies below it and all snapshots, or of one
    /// snapshot (by its object in the meta-objset): of `blocks_max` blocks, at most, about 200 bytes of memory each.
    ///
    /// # Errors
    /// Those of reading the pool's own metadata.
    pub async fn estimate_compression(
        &self,
        dataset: ObjectId,
        blocks_max: usize,
    ) -> Result<CompressionEstimate, PoolError> {
        Ok(CompressionEstimate {
            walk: self.0.begin_walk(dataset).await?,
            sample: BlockSample::new(blocks_max),
            wanted: None,
            sums: vec![TrialSums::default(); ALGORITHMS.len()],
            found: CompressionFigures::default(),
        })
    }

    /// Goes on with an estimate for about so long.
    ///
    /// # Errors
    /// Those of reading the pool's own metadata; what cannot be read of datasets is counted.
    pub async fn continue_compression_estimate(
        &self,
        estimate: &mut CompressionEstimate,
        time: Duration,
    ) -> Result<(), PoolError> {
        let until = self.0.handle().now() + time;
        if estimate.wanted.is_none() {
            let mut walk = std::mem::take(&mut estimate.walk);
            let note = |block: &DataBlock| estimate.note(block);
            let walked = self.0.walk_blocks(&mut walk, until, note).await;
            estimate.walk = walk;
            walked?;
            if estimate.walk.is_done() {
                estimate.end_walk();
            }
        }
        let (packings, mut keys) = (self.0.packings()?, Keys::new());
        while estimate.wanted.is_some() && self.0.handle().now() < until {
            // Two at a time: one is read while the other is compressed.
            let (one, other) = (estimate.sample.take(), estimate.sample.take());
            if one.is_none() {
                break;
            }
            for block in one.iter().chain(&other) {
                self.0.find_keys(block.objset, &mut keys).await;
            }
            let try_out = async |block: Option<DataBlock>| match block {
                Some(block) => Some(self.0.try_out(&block, &packings, &keys).await),
                None => None,
            };
            let (one, other) = runtime::join(try_out(one), try_out(other)).await;
            for outcome in one.into_iter().chain(other) {
                estimate.count(outcome);
            }
        }
        Ok(())
    }
}

/// How trying a block out ended.
enum Tried {
    Done(u64, Vec<TrialOutcome>),
    Locked,
    Lost,
}

impl CompressionEstimate {
    fn count(&mut self, tried: Tried) {
        match tried {
            Tried::Locked => self.found.locked_blocks += 1,
            Tried::Lost => self.found.lost_blocks += 1,
            Tried::Done(lsize, outcomes) => {
                self.found.sample.0 += 1;
                self.found.sample.1 += lsize;
                for (sums, outcome) in self.sums.iter_mut().zip(&outcomes) {
                    sums.add(lsize, outcome);
                }
            }
        }
    }
}

impl ImportedPool {
    fn packings(&self) -> Result<Vec<(Packing, compress::Algorithm)>, PoolError> {
        let embed = self.hierarchy().features().is_enabled("embedded_data");
        let all = ALGORITHMS.iter().map(|&(_, compression, level)| {
            let packing = self.store().packing(compression, level, embed)?;
            Ok((packing, packing.algorithm()))
        });
        all.collect()
    }

    async fn find_keys(&self, objset: u64, keys: &mut Keys) {
        if let std::collections::btree_map::Entry::Vacant(entry) = keys.entry(objset) {
            let found = self.hierarchy().keys_of(ObjectId(objset)).await;
            entry.insert(found.ok().flatten());
        }
    }

    async fn try_out(
        &self,
        block: &DataBlock,
        packings: &[(Packing, compress::Algorithm)],
        keys: &Keys,
    ) -> Tried {
        let keys = keys.get(&block.objset).and_then(Option::as_ref);
        if block.bp.is_wholly_encrypted() && keys.is_none() {
            return Tried::Locked;
        }
        let read = self.store().read_forms(&block.bp, block.read_props(), keys);
        let Ok(forms) = read.await else {
            return Tried::Lost;
        };
        let (data, packings, clock) = (forms.logical, packings.to_vec(), self.handle().cpu_clock());
        let lsize = ondisk::bytes::len64(data.len());
        let job = move || {
            packings
                .iter()
                .map(|with| measure(&data, with, clock))
                .collect()
        };
        Tried::Done(lsize, self.handle().compute(job).await)
    }
}

/// Compresses a block and decompresses it again.
fn measure(
    data: &IoBuf,
    (packing, algorithm): &(Packing, compress::Algorithm),
    clock: fn() -> Duration,
) -> TrialOutcome {
    let begun = clock();
    let packed = packing.pack(data);
    let compressed = clock();
    let mut decompressed = compressed;
    let stored = match &packed {
        Packed::Hole | Packed::Embedded(_) => 0,
        Packed::AsIs => data.len(),
        Packed::Stored(bytes) => {
            let back = compress::decompress(*algorithm, bytes, data.len());
            decompressed = clock();
            assert!(
                back.is_ok_and(|back| back == data[..]),
                "what was compressed comes back"
            );
            bytes.len()
        }
    };
    TrialOutcome {
        stored: ondisk::bytes::len64(stored),
        compressing: compressed.saturating_sub(begun),
        decompressing: decompressed.saturating_sub(compressed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_ratio_covers_the_truth() {
        // Blocks of 8 KiB and of 128 KiB, of which every third is not compressible.
        let block = |n: u64| {
            let lsize = if n.is_multiple_of(4) { 8192 } else { 131_072 };
            let stored = match n % 3 {
                0 => lsize,
                _ => lsize / (2 + n % 7) / 512 * 512,
            };
            (lsize, stored)
        };
        let all: Vec<_> = (0..30_000).map(block).collect();
        let sum = |part: fn(&(u64, u64)) -> u64| real(all.iter().map(part).sum());
        let truth = sum(|b| b.0) / sum(|b| b.1);
        let mut off = 0;
        for seed in 0..40_u64 {
            let mut sums = TrialSums::default();
            for n in 0..300_u64 {
                let words = codec::checksum::sha256(&(seed << 32 | n).to_le_bytes());
                let (lsize, stored) = block(words[0] % 30_000);
                let outcome = TrialOutcome {
                    stored,
                    ..TrialOutcome::default()
                };
                sums.add(lsize, &outcome);
            }
            let trial = sums.trial("lz4", 30_000);
            assert!(trial.ratio_error < 0.2 * truth, "{trial:?}");
            off += u32::from((trial.ratio - truth).abs() > trial.ratio_error);
        }
        assert!(off <= 6, "{off} of 40 lie outside of an error for 95 %");
        // All of them: no error is left.
        let mut sums = TrialSums::default();
        for &(lsize, stored) in &all {
            let outcome = TrialOutcome {
                stored,
                ..TrialOutcome::default()
            };
            sums.add(lsize, &outcome);
        }
        let trial = sums.trial("lz4", 30_000);
        assert!((trial.ratio - truth).abs() < 1e-9 && trial.ratio_error == 0.0);
    }
}
