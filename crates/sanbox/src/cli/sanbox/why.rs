//! `sanbox why`: where the time of requests went, and why, in words.

use jiff::civil::{DateTime, Time};

use jiff::{Timestamp, ToSpan as _, Zoned};
use manage::database::seconds_since_epoch;

use super::Arguments;
use crate::cli::format::date_with_seconds;
use crate::cli::{Outcome, Session};
use crate::serve::management;

/// Seconds looked at around a time, or before now.
const SECONDS: u64 = 60;

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    if let Some(extra) = args.operands.first() {
        return Err(session.misuse(format!("unexpected argument '{extra}'")));
    }
    let now = seconds_since_epoch();
    let length = match args.long("for") {
        None => SECONDS,
        Some(text) => super::user::duration(text)
            .ok_or_else(|| session.misuse(format!("--for {text}: a time such as 30s, 5m or 1h")))?,
    };
    let (from, to) = match args.long("at") {
        None => (now.saturating_sub(length), now),
        Some(text) => {
            let at = moment(text, &Zoned::now());
            let at = at.ok_or_else(|| {
                session.misuse(format!(
                    "--at {text}: a time such as 14:05, '2026-11-25 14:05:30' or 10m (ago)"
                ))
            })?;
            (
                at.saturating_sub(length / 2),
                (at + length / 2).min(now.max(at)),
            )
        }
    };
    let api = management::open(&session.appliance).await;
    let history = api
        .map_err(|error| session.fail(format!("{error:#}")))?
        .history
        .clone();
    let explained = history.explain(from, to, args.long("client"), args.long("dataset"));
    if args.has('j') {
        let text = serde_json::to_string_pretty(&explained);
        session
            .out
            .line(text.map_err(|error| session.fail(error.to_string()))?);
        return Ok(());
    }
    session.out.line(format!(
        "{} to {}",
        date_with_seconds(from),
        date_with_seconds(to)
    ));
    session.out.line(&explained.sentence);
    if explained.seconds == 0 {
        session.out.line(
            "Nothing is known of this time: 'sanbox serve' keeps each second for an hour, each 10 s for a day, each 5 min for 30 days.",
        );
    }
    let total = explained.wait_ns.max(1);
    let mut phases: Vec<_> = explained.phases.iter().collect();
    phases.sort_by_key(|(_, ns)| std::cmp::Reverse(**ns));
    for (phase, ns) in phases.iter().filter(|(_, ns)| **ns * 100 / total > 0) {
        session
            .out
            .line(format!("{:>7}%  {phase}", **ns * 100 / total));
    }
    if let Some(why) = history.unsaved() {
        session.out.error(format!(
            "note: the newest part of the history is in memory alone: {why}"
        ));
    }
    Ok(())
}

/// Reads a time: of today (or yesterday, when it is later than now), with a date, or so long ago. In seconds since 1970.
fn moment(text: &str, now: &Zoned) -> Option<u64> {
    let seconds = |at: Timestamp| u64::try_from(at.as_second()).ok();
    if let Some(ago) = super::user::duration(text.trim_end_matches(" ago")) {
        return seconds(now.timestamp())?.checked_sub(ago);
    }
    if let Ok(at) = text.parse::<Timestamp>() {
        return seconds(at);
    }
    // Before times, which may be read out of whole dates.
    let local = |at: DateTime| seconds(at.to_zoned(now.time_zone().clone()).ok()?.timestamp());
    if let Ok(at) = text.parse::<DateTime>() {
        return local(at);
    }
    let time = text.parse::<Time>().ok()?;
    let today = now.date().to_datetime(time);
    let day = match today > now.datetime() {
        true => now.date().checked_sub(1.day()).ok()?,
        false => now.date(),
    };
    local(day.to_datetime(time))
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let now: Zoned = Timestamp::from_second(1_800_000_000)
            .expect("a time")
            .to_zoned(TimeZone::UTC);
        // Friday, 15 January 2027, 08:00:00.
        for (text, at) in [
            ("07:30", Some(1_799_998_200)),
            ("07:30:10", Some(1_799_998_210)),
            ("09:00", Some(1_800_000_000 + 3600 - 86_400)),
            ("2027-01-14 08:00", Some(1_800_000_000 - 86_400)),
            ("2027-01-14T08:00:00Z", Some(1_800_000_000 - 86_400)),
            ("10m", Some(1_799_999_400)),
            ("10m ago", Some(1_799_999_400)),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(moment(text, &now), at, "{text}");
        }
    }
}
