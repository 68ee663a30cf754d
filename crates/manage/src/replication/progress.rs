//! How far a run is: read by those who watch, written by the run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The share of a second's rate that an older rate keeps.
const SMOOTHING: f64 = 0.7;

/// See the module.
#[derive(Debug)]
pub struct Progress {
    began: Instant,
    /// Bytes handed to the target.
    done: AtomicU64,
    /// Bytes of all streams, as they were estimated; 0 while that is not known.
    total: AtomicU64,
    /// The snapshot that is being sent.
    current: Mutex<String>,
    rate: Mutex<Rate>,
}

#[derive(Debug)]
struct Rate {
    at: Instant,
    bytes: u64,
    smoothed: f64,
}

impl Default for Progress {
    fn default() -> Self {
        let began = Instant::now();
        Self {
            began,
            done: AtomicU64::new(0),
            total: AtomicU64::new(0),
            current: Mutex::default(),
            rate: Mutex::new(Rate {
                at: began,
                bytes: 0,
                smoothed: 0.0,
            }),
        }
    }
}

impl Progress {
    pub(super) fn expect(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn begin(&self, snapshot: &str) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        snapshot.clone_into(&mut current);
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "a rate that is shown with three digits"
    )]
    pub(super) fn add(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = rate.at.elapsed();
        if passed >= Duration::from_secs(1) {
            let now = (done - rate.bytes) as f64 / passed.as_secs_f64();
            let is_first = rate.bytes == 0;
            rate.smoothed = if is_first {
                now
            } else {
                rate.smoothed * SMOOTHING + now * (1.0 - SMOOTHING)
            };
            rate.at = Instant::now();
            rate.bytes = done;
        }
    }

    /// Returns the bytes that were handed to the target.
    #[must_use]
    pub fn done_bytes(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Returns how many bytes there will be, as far as that was estimated.
    #[must_use]
    pub fn total_bytes(&self) -> Option<u64> {
        let total = self.total.load(Ordering::Relaxed);
        (total > 0).then(|| total.max(self.done_bytes()))
    }

    /// Returns the snapshot that is being sent; empty before the first.
    #[must_use]
    pub fn current(&self) -> String {
        self.current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns bytes a second: of the last seconds, or since the begin while there are none.
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate that is shown"
    )]
    pub fn rate(&self) -> u64 {
        let rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        if rate.bytes > 0 {
            return rate.smoothed as u64;
        }
        (self.done_bytes() as f64 / self.began.elapsed().as_secs_f64().max(0.001)) as u64
    }

    /// Returns the time that the rest takes at the present rate, as far as there is anything to compute it from.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        let left = self.total_bytes()?.saturating_sub(self.done_bytes());
        let rate = self.rate();
        (rate > 0).then(|| Duration::from_secs(left / rate))
    }
}
