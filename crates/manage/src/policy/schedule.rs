//! When the periods of a policy begin, in its zone, over changes of the clock.

use std::str::FromStr as _;

use croner::Cron;
use jiff::civil::Date;
use jiff::{RoundMode, Timestamp, ToSpan as _, Unit, Zoned, ZonedRound};

use super::{Period, Policy};

/// Returns the beginning of the period that `now` is in: the last moment up to `now` at which a snapshot was due.
///
/// `None` where there is none in the calendar (a cron expression that never was true).
#[must_use]
pub fn latest_boundary(policy: &Policy, period: &Period, now: Timestamp) -> Option<Timestamp> {
    let here = now.to_zoned(policy.zone.clone());
    match period {
        Period::Cron(expression) => {
            let cron = Cron::from_str(expression).ok()?;
            let found: Zoned = cron.find_previous_occurrence(&here, true).ok()?;
            Some(found.timestamp())
        }
        Period::Minutes(minutes) => truncated(&here, Unit::Minute, *minutes),
        Period::Hourly => truncated(&here, Unit::Hour, 1),
        Period::Daily | Period::Weekly | Period::Monthly | Period::Yearly => {
            let mut day = first_day(policy, period, here.date())?;
            // The day's time may not have come yet, or have moved with the clock: two steps back at the most.
            for _ in 0..3 {
                let start = moment(policy, day)?;
                if start <= now {
                    return Some(start);
                }
                day = first_day(policy, period, day.yesterday().ok()?)?;
            }
            None
        }
    }
}

/// Returns the next moment after `now` at which a snapshot of this period is due.
#[must_use]
pub fn next_boundary(policy: &Policy, period: &Period, now: Timestamp) -> Option<Timestamp> {
    let here = now.to_zoned(policy.zone.clone());
    match period {
        Period::Cron(expression) => {
            let cron = Cron::from_str(expression).ok()?;
            let found: Zoned = cron.find_next_occurrence(&here, false).ok()?;
            Some(found.timestamp())
        }
        Period::Minutes(minutes) => {
            let start = truncated(&here, Unit::Minute, *minutes)?;
            start.checked_add(i64::from(*minutes).minutes()).ok()
        }
        Period::Hourly => truncated(&here, Unit::Hour, 1)?.checked_add(1.hour()).ok(),
        Period::Daily | Period::Weekly | Period::Monthly | Period::Yearly => {
            let mut day = first_day(policy, period, here.date())?;
            for _ in 0..3 {
                let start = moment(policy, day)?;
                if start > now {
                    return Some(start);
                }
                day = following(period, day)?;
            }
            None
        }
    }
}

/// The start of the hour, or of the piece of it, in local time.
fn truncated(here: &Zoned, unit: Unit, increment: u32) -> Option<Timestamp> {
    let round = ZonedRound::new()
        .smallest(unit)
        .mode(RoundMode::Trunc)
        .increment(i64::from(increment));
    here.round(round).ok().map(|start| start.timestamp())
}

/// The day on which the period that `day` is in begins.
fn first_day(policy: &Policy, period: &Period, day: Date) -> Option<Date> {
    match period {
        Period::Weekly if day.weekday() == policy.weekday => Some(day),
        Period::Weekly => day.nth_weekday(-1, policy.weekday).ok(),
        Period::Monthly => Some(day.first_of_month()),
        Period::Yearly => Some(day.first_of_year()),
        _ => Some(day),
    }
}

/// The first day of the period behind the one that begins on `day`.
fn following(period: &Period, day: Date) -> Option<Date> {
    let span = match period {
        Period::Weekly => 1.week(),
        Period::Monthly => 1.month(),
        Period::Yearly => 1.year(),
        _ => 1.day(),
    };
    day.checked_add(span).ok()
}

/// The moment of a day at which the policy takes snapshots. In the hour that a clock set forward leaves out, it is as long after the change
/// as it would have been after the hour's start; in one that comes twice, it is the first.
fn moment(policy: &Policy, day: Date) -> Option<Timestamp> {
    let local = day.to_datetime(policy.at);
    local
        .to_zoned(policy.zone.clone())
        .ok()
        .map(|zoned| zoned.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, now: &str, latest: &str, next: &str) {
        let policy: Policy = line.parse().expect("a policy");
        let period = &policy.classes[0].period;
        let now = now.parse().expect("a time");
        let shown =
            |moment: Option<Timestamp>| moment.map_or_else(String::new, |at| at.to_string());
        assert_eq!(
            shown(latest_boundary(&policy, period, now)),
            latest,
            "{line} at {now}: latest"
        );
        assert_eq!(
            shown(next_boundary(&policy, period, now)),
            next,
            "{line} at {now}: next"
        );
    }

    #[test]
    fn periods_begin_where_people_expect_it() {
        check(
            "15min=4",
            "2026-11-25T02:14:59Z",
            "2026-11-25T02:00:00Z",
            "2026-11-25T02:15:00Z",
        );
        check(
            "15min=4",
            "2026-11-25T02:15:00Z",
            "2026-11-25T02:15:00Z",
            "2026-11-25T02:30:00Z",
        );
        check(
            "hourly=4",
            "2026-11-25T02:15:00Z",
            "2026-11-25T02:00:00Z",
            "2026-11-25T03:00:00Z",
        );
        check(
            "daily=4 at=02:30",
            "2026-11-25T02:15:00Z",
            "2026-11-24T02:30:00Z",
            "2026-11-25T02:30:00Z",
        );
        check(
            "weekly=4 weekday=sun",
            "2026-11-25T02:15:00Z",
            "2026-11-22T00:00:00Z",
            "2026-11-29T00:00:00Z",
        );
        check(
            "weekly=4 weekday=wed at=03:00",
            "2026-11-25T02:15:00Z",
            "2026-11-18T03:00:00Z",
            "2026-11-25T03:00:00Z",
        );
        check(
            "monthly=4",
            "2026-12-31T23:59:59Z",
            "2026-12-01T00:00:00Z",
            "2027-01-01T00:00:00Z",
        );
        check(
            "yearly=4",
            "2026-01-01T00:00:00Z",
            "2026-01-01T00:00:00Z",
            "2027-01-01T00:00:00Z",
        );
        check(
            "cron=\"0 9 * * 1-5\" keep=3",
            "2026-11-28T12:00:00Z",
            "2026-11-27T09:00:00Z",
            "2026-11-30T09:00:00Z",
        );
    }

    /// Berlin: 29 March 2026 has no 02:30, 25 October has it twice.
    #[test]
    fn clocks_that_change_lose_no_day_and_give_none_twice() {
        let spring = "daily=4 at=02:30 zone=Europe/Berlin";
        check(
            spring,
            "2026-03-29T00:59:59Z",
            "2026-03-28T01:30:00Z",
            "2026-03-29T01:30:00Z",
        );
        check(
            spring,
            "2026-03-29T01:30:00Z",
            "2026-03-29T01:30:00Z",
            "2026-03-30T00:30:00Z",
        );
        check(
            spring,
            "2026-10-25T00:30:00Z",
            "2026-10-25T00:30:00Z",
            "2026-10-26T01:30:00Z",
        );
        check(
            spring,
            "2026-10-25T01:30:00Z",
            "2026-10-25T00:30:00Z",
            "2026-10-26T01:30:00Z",
        );
        let hourly = "hourly=4 zone=Europe/Berlin";
        check(
            hourly,
            "2026-10-25T00:30:00Z",
            "2026-10-25T00:00:00Z",
            "2026-10-25T01:00:00Z",
        );
        check(
            hourly,
            "2026-10-25T01:30:00Z",
            "2026-10-25T01:00:00Z",
            "2026-10-25T02:00:00Z",
        );
    }

    /// For every period and some odd zones: the latest boundary is not after now, the next one is, and between them is no other.
    #[test]
    fn boundaries_tile_the_years() {
        let zones = [
            "UTC",
            "Europe/Berlin",
            "Australia/Lord_Howe",
            "Asia/Kathmandu",
            "America/St_Johns",
        ];
        let periods = ["30min", "hourly", "daily", "weekly", "monthly", "yearly"];
        for zone in zones {
            for period in periods {
                let policy: Policy = format!("{period}=1 at=02:17 zone={zone}")
                    .parse()
                    .expect("a policy");
                let period = &policy.classes[0].period;
                let mut now: Timestamp = "2025-12-30T23:59:58Z".parse().expect("a time");
                for _ in 0..800 {
                    let latest = latest_boundary(&policy, period, now).expect("one before");
                    let next = next_boundary(&policy, period, now).expect("one after");
                    assert!(latest <= now && now < next, "{zone} {period:?} {now}");
                    let before = next.checked_sub(1.second()).expect("a time");
                    assert_eq!(
                        latest_boundary(&policy, period, before),
                        Some(latest),
                        "{zone} {period:?} {now}"
                    );
                    assert_eq!(
                        latest_boundary(&policy, period, next),
                        Some(next),
                        "{zone} {period:?} {now}"
                    );
                    now = now.checked_add(13.hours().minutes(37)).expect("a time");
                }
            }
        }
    }
}
