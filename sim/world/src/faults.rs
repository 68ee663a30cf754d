//! What can go wrong with a modelled disk, and how often.

use std::time::Duration;

/// Faults of one disk. Rates are per million operations; all zero (the default) is a perfect disk with a volatile
/// cache.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Faults {
    /// A read finds that a sector of its range has become unreadable, and stays so until it is written.
    pub latent_error: u32,
    /// A write is silently recorded with one bit wrong.
    pub bit_rot: u32,
    /// A write lands on another aligned place of the disk; its own place keeps the old bytes.
    pub misdirected_write: u32,
    /// A write fails with an error; its range holds old, new or mixed sectors.
    pub write_error: u32,
    /// A flush fails with an error, making nothing durable.
    pub flush_error: u32,
    /// An operation takes [`Faults::slow_by`] longer.
    pub slow: u32,
    pub slow_by: Duration,
    /// Flushes answer at once and make nothing durable. No layout survives that together with a power cut; it is here
    /// to observe that the checkers notice.
    pub lying_flush: bool,
}

impl Faults {
    /// Faults that one side of a mirror may have at a time without loss.
    #[must_use]
    pub fn one_bad_side() -> Self {
        Self {
            latent_error: 2_000,
            bit_rot: 2_000,
            misdirected_write: 500,
            write_error: 0,
            flush_error: 0,
            slow: 5_000,
            slow_by: Duration::from_millis(30),
            lying_flush: false,
        }
    }

    /// Writes and flushes fail now and then; what was written can be read.
    #[must_use]
    pub fn failing() -> Self {
        Self {
            write_error: 10_000,
            flush_error: 20_000,
            ..Self::default()
        }
    }

    /// Only delays.
    #[must_use]
    pub fn slow_only() -> Self {
        Self {
            slow: 20_000,
            slow_by: Duration::from_millis(50),
            ..Self::default()
        }
    }
}

/// How unflushed writes fare at a power cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CutModel {
    /// The cache is lost: exactly what was flushed is there.
    LoseAll,
    /// The cache had just been written: everything completed is there, and in-flight writes as well.
    KeepAll,
    /// Writes reached the medium in the order they were submitted, up to some point; the one at the point is torn.
    Prefix,
    /// Any subset of the writes, in any order where they do not overlap; some of them torn at sector boundaries.
    Subset,
}
