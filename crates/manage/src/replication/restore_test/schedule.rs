//! When restores are tested: one period, written as in a policy of snapshots.

use std::str::FromStr;

use jiff::Timestamp;

use crate::policy::{Naming, Policy, latest_boundary, next_boundary};

/// Periods that are a word.
const WORDS: &[&str] = &["hourly", "daily", "weekly", "monthly", "yearly"];

/// A schedule: `daily at=03:00`, `weekly weekday=sun at=03:00 zone=Europe/Berlin` or `cron="0 3 1,15 * *"`.
#[derive(Clone, Debug, PartialEq)]
pub struct TestSchedule(Policy);

impl FromStr for TestSchedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let word = text.split(' ').next().unwrap_or_default();
        let policy = match word {
            word if WORDS.contains(&word) => format!("{word}=1{}", &text[word.len()..]),
            word if word.starts_with("cron=") => format!("{text} keep=1"),
            _ => {
                return Err(format!(
                    "it begins with {} or cron=\"EXPRESSION\"",
                    WORDS.join(", ")
                ));
            }
        };
        let policy: Policy = policy.parse().map_err(|error| format!("{error}"))?;
        let is_when = policy.classes.len() == 1
            && policy.naming == Naming::Auto
            && !policy.skip_unchanged
            && policy.immutable_hours == 0
            && policy.hooks.is_empty()
            && policy.take;
        match is_when {
            true => Ok(Self(policy)),
            false => Err("at, weekday and zone may follow the period, and nothing else".to_owned()),
        }
    }
}

impl TestSchedule {
    /// Whether a test is due, by when the last one began: once in each period. None before is due, and one of the future is of a clock that
    /// was set back since.
    #[must_use]
    pub fn is_due(&self, last: Option<Timestamp>, now: Timestamp) -> bool {
        let Some(last) = last.filter(|last| *last <= now) else {
            return true;
        };
        let period = &self.0.classes[0].period;
        latest_boundary(&self.0, period, now).is_some_and(|boundary| boundary > last)
    }

    /// Returns when the next test is due, as [`TestSchedule::is_due`] has it; `None` when the calendar has no such day.
    #[must_use]
    pub fn next(&self, last: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
        if self.is_due(last, now) {
            return Some(now);
        }
        next_boundary(&self.0, &self.0.classes[0].period, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    #[test]
    fn a_test_is_due_once_in_each_period() {
        let weekly: TestSchedule = "weekly weekday=sun at=03:00".parse().expect("a schedule");
        let (sunday, monday) = (time("2026-11-29T03:00:00Z"), time("2026-11-30T12:00:00Z"));
        // The first one, and one that was missed while the machine was off.
        assert!(weekly.is_due(None, monday));
        assert!(weekly.is_due(Some(time("2026-11-29T02:59:59Z")), monday));
        assert!(!weekly.is_due(Some(sunday), monday));
        assert!(!weekly.is_due(Some(monday), monday));
        assert_eq!(
            weekly.next(Some(sunday), monday),
            Some(time("2026-12-06T03:00:00Z"))
        );
        assert_eq!(weekly.next(None, monday), Some(monday));
        // The clock was set back: one test, which is the last one from then on.
        assert!(weekly.is_due(Some(time("2027-01-01T00:00:00Z")), monday));
        let cron: TestSchedule = "cron=\"0 3 1,15 * *\"".parse().expect("a schedule");
        assert_eq!(
            cron.next(Some(monday), monday),
            Some(time("2026-12-01T03:00:00Z"))
        );
    }

    #[test]
    fn what_is_no_schedule_is_refused() {
        for bad in [
            "",
            "sometimes",
            "daily=3",
            "daily hourly=1",
            "daily naming=zrepl",
            "daily take=no",
            "daily at=25:00",
            "cron=\"x\"",
            "at=03:00 daily",
        ] {
            assert!(bad.parse::<TestSchedule>().is_err(), "{bad}");
        }
    }
}
