//! The log of events of all pools of a process, bounded: the oldest events go.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ondisk::{NvList, NvValue};
use runtime::Timestamp;

/// Events kept.
// OpenZFS: module/zfs/fm.c, zfs_zevent_len_max
pub(super) const EVENTS_MAX: usize = 512;

#[derive(Clone, Default)]
pub struct EventLog(pub(super) Arc<Mutex<Ring>>);

#[derive(Default)]
pub(super) struct Ring {
    pub(super) kept: VecDeque<(u64, Arc<NvList>)>,
    /// Number of the newest event ever.
    pub(super) last: u64,
}

impl fmt::Debug for EventLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventLog({} events)", self.ring().kept.len())
    }
}

impl EventLog {
    pub(super) fn ring(&self) -> MutexGuard<'_, Ring> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn post(&self, mut list: NvList, at: Timestamp) {
        let mut ring = self.ring();
        ring.last += 1;
        let id = ring.last;
        let time = vec![at.seconds, i64::from(at.nanoseconds)];
        list.insert("time", NvValue::I64Array(time));
        list.insert("eid", id);
        if ring.kept.len() == EVENTS_MAX {
            ring.kept.pop_front();
        }
        ring.kept.push_back((id, Arc::new(list)));
    }

    /// Returns the events after the one with the number `id` that are still kept, oldest first, with their numbers.
    #[must_use]
    pub fn after(&self, id: u64) -> Vec<(u64, Arc<NvList>)> {
        let ring = self.ring();
        let newer = ring.kept.iter().filter(|(number, _)| *number > id);
        newer.cloned().collect()
    }

    /// Forgets all events; returns how many there were. Numbers go on.
    pub fn clear(&self) -> usize {
        let mut ring = self.ring();
        let count = ring.kept.len();
        ring.kept.clear();
        count
    }

    /// Returns the log as bytes, for another process to go on with.
    #[must_use]
    pub fn save(&self) -> Vec<u8> {
        let ring = self.ring();
        let lists: Vec<NvList> = ring.kept.iter().map(|(_, list)| (**list).clone()).collect();
        let last = ring.last;
        drop(ring);
        NvList::new()
            .with("last", last)
            .with("events", lists)
            .encode_xdr()
    }

    /// Puts back what [`EventLog::save`] gave, before what has happened since. What cannot be understood is left out.
    pub fn load(&self, bytes: &[u8]) {
        let Ok(saved) = NvList::decode(bytes) else {
            return;
        };
        let mut ring = self.ring();
        let fresh = std::mem::take(&mut ring.kept);
        let events = saved.lists("events").unwrap_or_default();
        for list in events.iter().rev().take(EVENTS_MAX).rev() {
            let Some(id) = list.u64("eid") else { continue };
            ring.kept.push_back((id, Arc::new(list.clone())));
        }
        ring.last = saved.u64("last").unwrap_or(0).saturating_add(ring.last);
        let before = saved.u64("last").unwrap_or(0);
        for (id, list) in fresh {
            let id = id.saturating_add(before);
            let mut list = (*list).clone();
            list.insert("eid", id);
            ring.kept.push_back((id, Arc::new(list)));
        }
        while ring.kept.len() > EVENTS_MAX {
            ring.kept.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(class: &str) -> NvList {
        NvList::new().with("class", class)
    }

    #[test]
    fn the_log_keeps_the_newest_and_goes_on_in_another_process() {
        let log = EventLog::default();
        let at = Timestamp {
            seconds: 5,
            nanoseconds: 7,
        };
        for number in 0..600 {
            log.post(event(&format!("e{number}")), at);
        }
        let kept = log.after(0);
        assert_eq!((kept.len(), kept[0].0), (EVENTS_MAX, 600 - 512 + 1));
        assert_eq!(log.after(599).len(), 1);
        let next = EventLog::default();
        next.post(event("new"), at);
        next.load(&log.save());
        let kept = next.after(600);
        assert_eq!(kept.len(), 1);
        assert_eq!(kept[0].1.u64("eid"), Some(601));
        assert_eq!(next.after(0).len(), EVENTS_MAX);
        next.load(b"nonsense");
        assert_eq!(next.clear(), EVENTS_MAX);
        assert!(next.after(0).is_empty());
        next.post(event("later"), at);
        assert_eq!(next.after(0)[0].0, 602);
    }
}
