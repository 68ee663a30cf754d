//! Counters of a running log.

/// Counters of a log since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ZilStats {
    /// Commits asked for.
    pub commits: u64,
    /// Times blocks were written and flushed, each for all commits that waited.
    pub batches: u64,
    /// Of these, issued while others were under way.
    pub overlapped: u64,
    /// Times commits became durable with their txg, since a device failed the log.
    pub fallbacks: u64,
    /// Times they did, since there was no room for log blocks or the chain had to begin anew.
    pub stalls: u64,
    /// Records written.
    pub records: u64,
    /// Of these, writes that hold a copy of their data.
    pub copied: u64,
    /// Bytes of that data.
    pub copied_bytes: u64,
    /// Of the records, writes that point to their block instead.
    pub indirect: u64,
    /// Bytes of those blocks.
    pub indirect_bytes: u64,
    /// Records of an earlier session that were replayed when the log was opened.
    pub replayed: u64,
    /// Nanoseconds that took.
    pub replay_ns: u64,
    /// Log blocks on the devices of the data.
    pub normal: LogBlocks,
    /// Log blocks on log devices.
    pub separate: LogBlocks,
}

impl ZilStats {
    /// Returns all log blocks.
    #[must_use]
    pub fn blocks(&self) -> LogBlocks {
        let mut sum = self.normal;
        sum.add(&self.separate);
        sum
    }

    /// Adds the counters of another log.
    pub fn add(&mut self, other: &Self) {
        self.commits += other.commits;
        self.batches += other.batches;
        self.overlapped += other.overlapped;
        self.fallbacks += other.fallbacks;
        self.stalls += other.stalls;
        self.records += other.records;
        self.copied += other.copied;
        self.copied_bytes += other.copied_bytes;
        self.indirect += other.indirect;
        self.indirect_bytes += other.indirect_bytes;
        self.replayed += other.replayed;
        self.replay_ns += other.replay_ns;
        self.normal.add(&other.normal);
        self.separate.add(&other.separate);
    }
}

/// Log blocks written, and what they took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogBlocks {
    /// How many.
    pub count: u64,
    /// Bytes of headers and records in them.
    pub used_bytes: u64,
    /// Bytes written: the former, in whole pages.
    pub written_bytes: u64,
    /// Bytes allocated.
    pub allocated_bytes: u64,
}

impl LogBlocks {
    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.used_bytes += other.used_bytes;
        self.written_bytes += other.written_bytes;
        self.allocated_bytes += other.allocated_bytes;
    }
}
