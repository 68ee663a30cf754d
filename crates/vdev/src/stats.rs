//! Counters of one vdev, as `zpool status` and `zpool iostat` show them.

/// Number of buckets of a latency histogram: bucket i counts times in [2^i, 2^(i+1)) nanoseconds.
pub const LATENCY_BUCKETS: usize = 40;
const _: () = assert!(LATENCY_BUCKETS <= u64::BITS as usize);

/// Latencies by power of two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatencyHistogram {
    /// Count per bucket; bucket i is [2^i, 2^(i+1)) ns.
    pub buckets: [u64; LATENCY_BUCKETS],
    /// Sum of all latencies in nanoseconds.
    pub sum_ns: u64,
    /// How many were recorded.
    pub count: u64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self {
            buckets: [0; LATENCY_BUCKETS],
            sum_ns: 0,
            count: 0,
        }
    }
}

impl LatencyHistogram {
    /// Counts one latency.
    pub fn record(&mut self, nanoseconds: u64) {
        let bucket = (63 - (nanoseconds | 1).leading_zeros()) as usize;
        self.buckets[bucket.min(LATENCY_BUCKETS - 1)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(nanoseconds);
        self.count += 1;
    }

    /// Adds another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.count += other.count;
    }

    /// Returns the mean in nanoseconds, 0 when nothing was counted.
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.count).unwrap_or(0)
    }
}

/// Number of buckets of a histogram of sizes: bucket i counts requests of [2^i, 2^(i+1)) bytes, the last all larger ones.
pub const SIZE_BUCKETS: usize = 25;
const _: () = assert!(
    1 << (SIZE_BUCKETS - 1) == 16 << 20,
    "the last is for the largest block"
);

/// Counters of one class of I/O on one vdev.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClassStats {
    /// Requests by size: bucket i is [2^i, 2^(i+1)) bytes.
    pub sizes: [u64; SIZE_BUCKETS],
    /// Operations completed.
    pub ops: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Waiting in the leaf queue now.
    pub pending: u32,
    /// At the device now.
    pub active: u32,
    /// Time spent in the leaf queue.
    pub queue_wait: LatencyHistogram,
    /// Time spent at the device.
    pub disk_wait: LatencyHistogram,
}

/// Counters of one vdev since it was opened. Interior vdevs show the sums of their leaves for the class counters and
/// their own for the rest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VdevStats {
    /// Reads completed (all classes).
    pub read_ops: u64,
    /// Bytes of those.
    pub read_bytes: u64,
    /// Writes completed (all classes).
    pub write_ops: u64,
    /// Bytes of those.
    pub write_bytes: u64,
    /// Discards completed.
    pub trim_ops: u64,
    /// Bytes of those.
    pub trim_bytes: u64,
    /// Reads the device refused.
    pub read_errors: u64,
    /// Writes the device refused.
    pub write_errors: u64,
    /// Reads whose bytes failed the check.
    pub checksum_errors: u64,
    /// Operations that took longer than 30 seconds.
    pub slow_ios: u64,
    /// Bytes rewritten from a good copy.
    pub self_healed_bytes: u64,
    /// Whole time of reads (queue and device).
    pub read_total: LatencyHistogram,
    /// Whole time of writes (queue and device).
    pub write_total: LatencyHistogram,
    /// Time that the device took to make durable what it had; of a write that goes through, what it took after the write, which
    /// is not counted as the write's.
    pub flushes: LatencyHistogram,
    /// By class, in the order of [`crate::IoClass::ALL`].
    pub classes: [ClassStats; 7],
}

impl VdevStats {
    /// Adds another vdev's counters.
    pub fn merge(&mut self, other: &Self) {
        self.read_ops += other.read_ops;
        self.read_bytes += other.read_bytes;
        self.write_ops += other.write_ops;
        self.write_bytes += other.write_bytes;
        self.trim_ops += other.trim_ops;
        self.trim_bytes += other.trim_bytes;
        self.read_errors += other.read_errors;
        self.write_errors += other.write_errors;
        self.checksum_errors += other.checksum_errors;
        self.slow_ios += other.slow_ios;
        self.self_healed_bytes += other.self_healed_bytes;
        self.read_total.merge(&other.read_total);
        self.write_total.merge(&other.write_total);
        self.flushes.merge(&other.flushes);
        for (mine, theirs) in self.classes.iter_mut().zip(&other.classes) {
            mine.ops += theirs.ops;
            mine.bytes += theirs.bytes;
            for (mine, theirs) in mine.sizes.iter_mut().zip(&theirs.sizes) {
                *mine += theirs;
            }
            mine.pending += theirs.pending;
            mine.active += theirs.active;
            mine.queue_wait.merge(&theirs.queue_wait);
            mine.disk_wait.merge(&theirs.disk_wait);
        }
    }
}
