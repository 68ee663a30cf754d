//! The state of a sequential resilver of a top-level vdev: an entry of the vdev's ZAP.
//!
//! OpenZFS: include/sys/vdev_rebuild.h (vdev_rebuild_phys_t), include/sys/fs/zfs.h (vdev_rebuild_state_t).

/// Key of the entry.
pub const REBUILD_KEY: &str = "org.openzfs:vdev_rebuild";

/// Values of [`RebuildPhys::state`].
pub mod rebuild_state {
    /// There was none, or it was forgotten.
    pub const NONE: u64 = 0;
    /// Under way.
    pub const ACTIVE: u64 = 1;
    /// Ended early.
    pub const CANCELED: u64 = 2;
    /// Came to its end.
    pub const COMPLETE: u64 = 3;
}

/// How far a sequential resilver has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RebuildPhys {
    /// One of [`rebuild_state`].
    pub state: u64,
    /// Bytes of the vdev up to which everything is done.
    pub last_offset: u64,
    /// What is brought was written after this txg.
    pub min_txg: u64,
    /// What is brought was written before this txg.
    pub max_txg: u64,
    /// Seconds since 1970.
    pub start_time: u64,
    /// Seconds since 1970; 0 before the end.
    pub end_time: u64,
    /// Milliseconds in which it was worked on.
    pub scan_time_ms: u64,
    /// Allocated bytes passed.
    pub bytes_scanned: u64,
    /// Of those, bytes that were put together.
    pub bytes_issued: u64,
    /// Bytes written to devices.
    pub bytes_rebuilt: u64,
    /// Allocated bytes in all.
    pub bytes_est: u64,
    /// Ranges that could not be brought.
    pub errors: u64,
}

impl RebuildPhys {
    /// Number of words.
    pub const WORDS: usize = 12;

    /// Decodes the entry's value; `None` when it is too short. Newer writers may append words.
    #[must_use]
    pub fn from_words(words: &[u64]) -> Option<Self> {
        let words = words.first_chunk::<{ Self::WORDS }>()?;
        let [
            state,
            last_offset,
            min_txg,
            max_txg,
            start_time,
            end_time,
            scan_time_ms,
            bytes_scanned,
            bytes_issued,
            bytes_rebuilt,
            bytes_est,
            errors,
        ] = *words;
        Some(Self {
            state,
            last_offset,
            min_txg,
            max_txg,
            start_time,
            end_time,
            scan_time_ms,
            bytes_scanned,
            bytes_issued,
            bytes_rebuilt,
            bytes_est,
            errors,
        })
    }

    /// Encodes the entry's value.
    #[must_use]
    pub fn to_words(&self) -> Vec<u64> {
        vec![
            self.state,
            self.last_offset,
            self.min_txg,
            self.max_txg,
            self.start_time,
            self.end_time,
            self.scan_time_ms,
            self.bytes_scanned,
            self.bytes_issued,
            self.bytes_rebuilt,
            self.bytes_est,
            self.errors,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_in_the_order_of_the_format() {
        let words: Vec<u64> = (1..=12).collect();
        let phys = RebuildPhys::from_words(&words).expect("twelve words");
        assert_eq!((phys.state, phys.last_offset, phys.errors), (1, 2, 12));
        assert_eq!(phys.to_words(), words);
        let longer: Vec<u64> = (1..=14).collect();
        assert_eq!(RebuildPhys::from_words(&longer), Some(phys));
        assert_eq!(RebuildPhys::from_words(&words[..11]), None);
    }
}
