//! Results of EXTENDED COPY, for RECEIVE COPY RESULTS. SPC-4 section 6.20 ff.

use std::collections::VecDeque;

/// Results kept for one unit.
const RESULTS_MAX: usize = 64;

/// The result of a copy.
#[derive(Debug, Clone)]
pub(super) struct CopyResult {
    /// The session that copied.
    pub(super) nexus: u64,
    /// Its list identifier.
    pub(super) list: u8,
    /// Segments copied.
    pub(super) segments: u16,
    /// Bytes copied.
    pub(super) bytes: u64,
    /// It ended before its last segment.
    pub(super) failed: bool,
}

/// The results of a unit, newest last: one for each session and list identifier.
#[derive(Debug, Default)]
pub(super) struct CopyResults(VecDeque<CopyResult>);

impl CopyResults {
    /// Keeps a result in place of the one with its list identifier, or of the oldest.
    pub(super) fn add(&mut self, result: CopyResult) {
        self.0
            .retain(|known| known.nexus != result.nexus || known.list != result.list);
        if self.0.len() >= RESULTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(result);
    }

    /// Takes a session's result out: it is told once.
    pub(super) fn take(&mut self, nexus: u64, list: u8) -> Option<CopyResult> {
        let mut known = self.0.iter();
        let at = known.position(|known| known.nexus == nexus && known.list == list)?;
        self.0.remove(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(nexus: u64, list: u8, bytes: u64) -> CopyResult {
        CopyResult {
            nexus,
            list,
            segments: 1,
            bytes,
            failed: false,
        }
    }

    #[test]
    fn a_result_is_told_once_to_the_session_that_copied() {
        let mut results = CopyResults::default();
        results.add(result(1, 7, 10));
        results.add(result(1, 7, 20));
        assert!(results.take(2, 7).is_none());
        assert_eq!(results.take(1, 7).map(|found| found.bytes), Some(20));
        assert!(results.take(1, 7).is_none());
    }

    #[test]
    fn the_oldest_go_first() {
        let mut results = CopyResults::default();
        for nexus in 0..=RESULTS_MAX as u64 {
            results.add(result(nexus, 0, 0));
        }
        assert!(results.take(0, 0).is_none());
        assert!(results.take(1, 0).is_some());
    }
}
