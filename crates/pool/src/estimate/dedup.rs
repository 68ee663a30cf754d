//! What deduplication would save.
//!
//! Blocks are equal when their checksums and sizes are, which the pointers tell without reading a block. With a checksum that is not
//! cryptographic (fletcher2, fletcher4) that is a presumption: of the contents that seem to be there more than once, some are read and
//! compared. Equal contents have equal checksums of any kind, so nothing is missed; but ciphertexts differ though their plaintexts do not,
//! and blocks compressed in different ways differ, too, as they would for the table.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ondisk::{BlockPointer, ChecksumKind, ObjectId};

use super::EstimateProgress;
use super::sketch::{BlockSize, Sketch};
use super::walk::{BlockWalk, DataBlock};
use crate::PoolError;
use crate::pool::{ImportedPool, Pool};

/// Contents whose first block is remembered, to be compared with a second one.
const PAIRS_MAX: usize = 4096;
const _: () = assert!(PAIRS_MAX > 0 && PAIRS_MAX <= 1 << 16);
/// Bytes of a hash's input: checksum and properties.
const IDENTITY_BYTES: usize = 5 * 8;

/// An estimate under way; see [`Pool::estimate_dedup`].
#[derive(Clone, Debug)]
pub struct DedupEstimate {
    walk: BlockWalk,
    sketch: Sketch,
    pairs: BTreeMap<u128, (DataBlock, Option<DataBlock>)>,
    /// Pairs that are still to be compared, once the walk is over.
    waiting: Option<VecDeque<(DataBlock, DataBlock)>>,
    pairs_wanted: u64,
    found: DedupFigures,
}

/// What an estimate says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DedupFigures {
    /// Blocks of files and volumes that were looked at: how many, bytes before compression, stored, of space.
    pub totals: [u64; 4],
    /// Contents in the sample, and the share of all contents that this is: 1 when everything was counted.
    pub sample: (u64, f64),
    /// Contents in all: entries of the table.
    pub distinct_blocks: f64,
    /// Space that each of them once would take, in bytes.
    pub distinct_bytes: f64,
    /// How many times the space in use takes that (`dedupratio`).
    pub ratio: f64,
    /// How far the ratio may be off on each side, in 95 of 100 estimates.
    pub ratio_error: f64,
    /// Bytes of space that are shared already, by clones or deduplication.
    pub shared_bytes: f64,
    /// By how often contents are referenced: from 1, from 2, from 4 times and so on. Blocks, bytes before compression, stored, of space; the
    /// same times the references.
    pub rows: Vec<[u64; 8]>,
    /// Blocks with a checksum that is not cryptographic.
    pub weak_blocks: u64,
    /// Pairs of them that were read and compared, and those that differed though their checksums do not.
    pub pairs: (u64, u64),
    /// Bytes of space of blocks left out because they are encrypted.
    pub encrypted_bytes: u64,
    /// Bytes of space of blocks left out because they have no checksum.
    pub unchecked_bytes: u64,
    /// Pointers whose blocks below could not be read.
    pub unreadable: u64,
    /// All blocks were looked at.
    pub complete: bool,
}

/// What the pointer of a block tells of its content.
enum Identity {
    /// A hash of checksum and sizes, and whether it proves anything.
    Known {
        hash: u128,
        strong: bool,
    },
    Encrypted,
    Unchecked,
}

impl DedupEstimate {
    /// Returns how far it is.
    #[must_use]
    pub fn progress(&self) -> EstimateProgress {
        let left = self.waiting.as_ref().map(VecDeque::len);
        EstimateProgress {
            visited_bytes: self.walk.visited_bytes,
            total_bytes: self.walk.total_bytes,
            read_blocks: 2 * (self.found.pairs.0),
            wanted_blocks: 2 * self.pairs_wanted,
            walked: left.is_some(),
            done: left == Some(0),
        }
    }

    /// Ends the walk where it is: what it has not visited is left out.
    pub fn end_walk(&mut self) {
        if self.waiting.is_none() {
            let pairs = std::mem::take(&mut self.pairs).into_values();
            let seconds = pairs.filter_map(|(first, second)| Some((first, second?)));
            let waiting: VecDeque<_> = seconds.collect();
            self.pairs_wanted = ondisk::bytes::len64(waiting.len());
            self.waiting = Some(waiting);
        }
    }

    /// Returns what it says so far.
    #[must_use]
    pub fn figures(&self) -> DedupFigures {
        let sketch = self.sketch.figures();
        DedupFigures {
            totals: self.sketch.totals,
            sample: (sketch.rows, sketch.share),
            distinct_blocks: sketch.distinct,
            distinct_bytes: sketch.distinct_dsize,
            ratio: sketch.ratio,
            ratio_error: sketch.ratio_error,
            shared_bytes: sketch.shared_dsize,
            rows: self.sketch.histogram(),
            unreadable: self.walk.unreadable,
            complete: self.walk.is_done(),
            ..self.found.clone()
        }
    }

    fn note(&mut self, block: &DataBlock, dsize: u64) {
        let bp = &block.bp;
        let (hash, strong) = match identity(bp) {
            Identity::Known { hash, strong } => (hash, strong),
            Identity::Encrypted => {
                self.found.encrypted_bytes += dsize;
                return;
            }
            Identity::Unchecked => {
                self.found.unchecked_bytes += dsize;
                return;
            }
        };
        let first = bp.copies().next();
        let size = BlockSize {
            lsize: bp.lsize(),
            psize: bp.psize(),
            dsize,
            place: first.map_or((0, 0), |dva| (dva.vdev, dva.offset)),
        };
        self.sketch.note(hash, size);
        if !strong {
            self.found.weak_blocks += 1;
            self.note_pair(hash, block);
        }
    }

    /// Remembers the blocks of the contents with the lowest hashes, which are a sample of all.
    fn note_pair(&mut self, hash: u128, block: &DataBlock) {
        if let Some((first, second)) = self.pairs.get_mut(&hash) {
            if second.is_none() && !first.bp.is_same_block(&block.bp) {
                *second = Some(*block);
            }
            return;
        }
        if self.pairs.len() < PAIRS_MAX {
            self.pairs.insert(hash, (*block, None));
        } else if self
            .pairs
            .last_key_value()
            .is_some_and(|(last, _)| hash < *last)
        {
            self.pairs.pop_last();
            self.pairs.insert(hash, (*block, None));
        }
        assert!(
            self.pairs.len() <= PAIRS_MAX,
            "no more blocks are remembered than there is room for"
        );
    }
}

impl Pool {
    /// Begins to find out what deduplication would save of a file system or volume with what lies below it and all snapshots, or of one
    /// snapshot (by its object in the meta-objset). `rows_max` contents are kept in the sample, at most: about 100 bytes of memory each.
    ///
    /// # Errors
    /// Those of reading the pool's own metadata.
    pub async fn estimate_dedup(
        &self,
        dataset: ObjectId,
        rows_max: usize,
    ) -> Result<DedupEstimate, PoolError> {
        Ok(DedupEstimate {
            walk: self.0.begin_walk(dataset).await?,
            sketch: Sketch::new(rows_max),
            pairs: BTreeMap::new(),
            waiting: None,
            pairs_wanted: 0,
            found: DedupFigures::default(),
        })
    }

    /// Goes on with an estimate for about so long.
    ///
    /// # Errors
    /// Those of reading the pool's own metadata; what cannot be read of datasets is counted.
    pub async fn continue_dedup_estimate(
        &self,
        estimate: &mut DedupEstimate,
        time: Duration,
    ) -> Result<(), PoolError> {
        let until = self.0.handle().now() + time;
        if estimate.waiting.is_none() {
            let mut walk = std::mem::take(&mut estimate.walk);
            let note = |block: &DataBlock| {
                let dsize = self.0.store().dsize(&block.bp);
                if !block.bp.is_embedded() {
                    estimate.note(block, dsize);
                }
            };
            let walked = self.0.walk_blocks(&mut walk, until, note).await;
            estimate.walk = walk;
            walked?;
            if estimate.walk.is_done() {
                estimate.end_walk();
            }
        }
        while self.0.handle().now() < until {
            let waiting = estimate.waiting.as_mut();
            let Some((first, second)) = waiting.and_then(VecDeque::pop_front) else {
                break;
            };
            if let Some(equal) = self.0.are_equal(&first, &second).await {
                estimate.found.pairs.0 += 1;
                estimate.found.pairs.1 += u64::from(!equal);
            } else {
                estimate.pairs_wanted -= 1;
            }
        }
        Ok(())
    }
}

impl ImportedPool {
    /// Compares two blocks as they are stored; `None` when one of them cannot be read (any more).
    async fn are_equal(&self, first: &DataBlock, second: &DataBlock) -> Option<bool> {
        let read = async |block: &DataBlock| {
            let bytes = self.store().read_stored(&block.bp, block.read_props());
            bytes.await.ok()
        };
        Some(read(first).await?[..] == read(second).await?[..])
    }
}

/// What identifies a content for the table, hashed, so that it is spread evenly.
// OpenZFS: module/zfs/ddt.c, ddt_key_fill (checksum, sizes, compression)
fn identity(bp: &BlockPointer) -> Identity {
    if bp.is_wholly_encrypted() {
        return Identity::Encrypted;
    }
    let kind = bp.checksum_kind();
    let strong = match kind {
        ChecksumKind::OFF | ChecksumKind::NOPARITY => return Identity::Unchecked,
        ChecksumKind::FLETCHER2 | ChecksumKind::FLETCHER4 => false,
        _ => true,
    };
    let sizes = bp.lsize()
        | bp.psize() << 25
        | u64::from(bp.compression().0) << 50
        | u64::from(kind.0) << 58;
    let mut bytes = [0; IDENTITY_BYTES];
    let [a, b, c, d] = bp.checksum();
    for (slot, word) in bytes.chunks_exact_mut(8).zip([a, b, c, d, sizes]) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    let [high, low, ..] = codec::checksum::sha256(&bytes);
    let hash = u128::from(high) << 64 | u128::from(low);
    Identity::Known { hash, strong }
}
