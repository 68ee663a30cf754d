//! What a property would save, found out before it is set: deduplication from the block pointers there are, compression from blocks that
//! are read and compressed.
//!
//! An estimate is plain data that its owner keeps between steps; a step works for so long and leaves the pool as it is. Memory is bounded
//! by the size of the sample, whatever the size of the pool; what the sample leaves open is told as an error.

mod compression;
mod dedup;
mod sample;
mod sketch;
mod walk;

pub use self::compression::{CompressionEstimate, CompressionFigures, Trial};
pub use self::dedup::{DedupEstimate, DedupFigures};

/// How far an estimate has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EstimateProgress {
    /// Bytes in use that block pointers were looked at of.
    pub visited_bytes: u64,
    /// Bytes in use in all, as the datasets count them.
    pub total_bytes: u64,
    /// Blocks read so far in the second part, and how many that will be at most.
    pub read_blocks: u64,
    /// See `read_blocks`.
    pub wanted_blocks: u64,
    /// All pointers have been looked at: the second part has begun.
    pub walked: bool,
    /// Nothing is left to be done.
    pub done: bool,
}

/// Standard errors on each side within which 95 of 100 estimates lie.
const Z95: f64 = 1.96;

/// A count as a number to reckon with; exact to 2^53.
#[allow(
    clippy::cast_precision_loss,
    reason = "an estimate has fewer than 53 bits"
)]
fn real(count: u64) -> f64 {
    count as f64
}
