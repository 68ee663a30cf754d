//! When which txg was current: three lists of times and txgs in the meta-objset's directory, by which a range of days becomes
//! a range of txgs (`zpool scrub -S DATE -E DATE`). OpenZFS has them since version 2.4; older ones pass over them.
//!
//! OpenZFS: include/zfs_crrd.h (rrd_t), module/zfs/zfs_crrd.c (which list takes a time), include/sys/dmu.h (names).

/// Most entries of a list; a further one takes the place of the oldest.
pub const TXG_TIMES_MAX: usize = 256;

const HEADER_WORDS: usize = 3;
const DAY_S: u64 = 24 * 60 * 60;
const MONTH_S: u64 = 30 * DAY_S;

/// A time, in seconds since 1970, and the txg that was being synced then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxgTime {
    /// Seconds since 1970 (UTC).
    pub time: u64,
    /// The txg.
    pub txg: u64,
}

/// One list, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TxgTimeList(Vec<TxgTime>);

impl TxgTimeList {
    /// Number of words of its directory entry.
    pub const WORDS: usize = HEADER_WORDS + 2 * TXG_TIMES_MAX;

    /// Decodes the value of a directory entry; `None` when it is too short or its places do not fit together.
    #[must_use]
    pub fn from_words(words: &[u64]) -> Option<Self> {
        let (&[head, tail, length], entries) = words
            .first_chunk::<{ Self::WORDS }>()?
            .split_first_chunk::<HEADER_WORDS>()?;
        let place = |word: u64| usize::try_from(word).ok();
        let (head, tail, length) = (place(head)?, place(tail)?, place(length)?);
        let fits = head < TXG_TIMES_MAX && length <= TXG_TIMES_MAX;
        if !fits || (head + length) % TXG_TIMES_MAX != tail {
            return None;
        }
        let (pairs, _) = entries.as_chunks::<2>();
        let in_order = pairs.iter().cycle().skip(head).take(length);
        let list = in_order.map(|&[time, txg]| TxgTime { time, txg });
        Some(Self(list.collect()))
    }

    /// Encodes to the value of a directory entry.
    #[must_use]
    pub fn to_words(&self) -> Vec<u64> {
        let length = self.0.len();
        assert!(length <= TXG_TIMES_MAX, "a list of {length} entries");
        let mut words = vec![0, (length % TXG_TIMES_MAX) as u64, length as u64];
        words.extend(self.0.iter().flat_map(|entry| [entry.time, entry.txg]));
        words.resize(Self::WORDS, 0);
        words
    }

    fn newest(&self) -> u64 {
        self.0.last().map_or(0, |entry| entry.time)
    }

    fn push(&mut self, entry: TxgTime) {
        if self.0.len() == TXG_TIMES_MAX {
            self.0.remove(0);
        }
        self.0.push(entry);
    }
}

/// All three lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TxgTimes {
    /// Entries of the last hours (OpenZFS adds one every ten minutes).
    pub minutes: TxgTimeList,
    /// An entry a day.
    pub days: TxgTimeList,
    /// An entry every thirty days.
    pub months: TxgTimeList,
}

impl TxgTimes {
    /// Names of the directory entries, of minutes, days and months.
    pub const NAMES: [&'static str; 3] = [
        "com.klarasystems:txg_log_time:minutes",
        "com.klarasystems:txg_log_time:days",
        "com.klarasystems:txg_log_time:months",
    ];

    /// Returns the lists in the order of [`Self::NAMES`].
    #[must_use]
    pub fn lists(&self) -> [&TxgTimeList; 3] {
        [&self.minutes, &self.days, &self.months]
    }

    /// Adds an entry to the coarsest list that is due; returns the name of that list and what it is now. One that is older than
    /// what is there, because a clock was set back, is left out.
    pub fn add(&mut self, entry: TxgTime) -> Option<(&'static str, &TxgTimeList)> {
        let since = |list: &TxgTimeList| entry.time.checked_sub(list.newest());
        let [minutes, days, months] = Self::NAMES;
        let (name, list) = if since(&self.months).is_some_and(|seconds| seconds >= MONTH_S) {
            (months, &mut self.months)
        } else if since(&self.days).is_some_and(|seconds| seconds >= DAY_S) {
            (days, &mut self.days)
        } else if since(&self.minutes).is_some() {
            (minutes, &mut self.minutes)
        } else {
            return None;
        };
        list.push(entry);
        Some((name, list))
    }

    /// Returns the newest txg that was noted at or before `time`; `None` when nothing is known of a time as old.
    #[must_use]
    pub fn at_or_before(&self, time: u64) -> Option<u64> {
        let entries = self.lists().into_iter().flat_map(|list| &list.0);
        let before = entries.filter(|entry| entry.time <= time);
        before
            .max_by_key(|entry| (entry.time, entry.txg))
            .map(|entry| entry.txg)
    }

    /// Returns the oldest txg that was noted at or after `time`; `None` when nothing has been noted since.
    #[must_use]
    pub fn at_or_after(&self, time: u64) -> Option<u64> {
        let entries = self.lists().into_iter().flat_map(|list| &list.0);
        let after = entries.filter(|entry| entry.time >= time);
        after
            .min_by_key(|entry| (entry.time, entry.txg))
            .map(|entry| entry.txg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(entries: &[(u64, u64)]) -> TxgTimes {
        let mut times = TxgTimes::default();
        for &(time, txg) in entries {
            times.add(TxgTime { time, txg });
        }
        times
    }

    #[test]
    fn the_coarsest_list_that_is_due_takes_an_entry() {
        let begin = 20_000 * DAY_S;
        let times = times(&[
            (begin, 1),
            (begin + 1, 2),
            (begin + 600, 3),
            (begin + DAY_S + 1, 4),
            (begin + MONTH_S, 5),
        ]);
        let txgs = |list: &TxgTimeList| list.0.iter().map(|entry| entry.txg).collect::<Vec<_>>();
        assert_eq!(txgs(&times.months), [1, 5]);
        assert_eq!(txgs(&times.days), [2, 4]);
        assert_eq!(txgs(&times.minutes), [3]);
    }

    #[test]
    fn a_date_becomes_the_nearest_txg_on_its_side() {
        let begin = 20_000 * DAY_S;
        let times = times(&[(begin, 10), (begin + 600, 20), (begin + 1200, 30)]);
        assert_eq!(times.at_or_before(begin - 1), None);
        assert_eq!(times.at_or_before(begin + 600), Some(20));
        assert_eq!(times.at_or_before(begin + 1199), Some(20));
        assert_eq!(times.at_or_after(begin + 601), Some(30));
        assert_eq!(times.at_or_after(begin + 1201), None);
    }

    #[test]
    fn what_is_written_is_read_and_the_oldest_make_room() {
        let mut list = TxgTimeList::default();
        for number in 0..TXG_TIMES_MAX as u64 + 10 {
            list.push(TxgTime {
                time: number,
                txg: number,
            });
        }
        let words = list.to_words();
        assert_eq!(words.len(), TxgTimeList::WORDS);
        assert_eq!(TxgTimeList::from_words(&words), Some(list.clone()));
        assert_eq!(list.0[0].txg, 10);
    }

    #[test]
    fn a_list_that_begins_in_the_middle_is_read_in_order() {
        let mut words = vec![0; TxgTimeList::WORDS];
        words[..3].copy_from_slice(&[255, 1, 2]);
        words[3 + 255 * 2..].copy_from_slice(&[7, 70]);
        words[3..5].copy_from_slice(&[8, 80]);
        let list = TxgTimeList::from_words(&words).map(|list| list.0);
        let expected = [TxgTime { time: 7, txg: 70 }, TxgTime { time: 8, txg: 80 }];
        assert_eq!(list, Some(expected.to_vec()));
    }

    #[test]
    fn places_that_do_not_fit_together_are_refused() {
        for header in [[256, 0, 0], [0, 0, 1], [0, 1, 257], [u64::MAX, 1, 2]] {
            let mut words = vec![0; TxgTimeList::WORDS];
            words[..3].copy_from_slice(&header);
            assert_eq!(TxgTimeList::from_words(&words), None, "{header:?}");
        }
        assert_eq!(TxgTimeList::from_words(&[0, 0, 0]), None);
    }
}
