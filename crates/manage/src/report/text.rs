//! A report in words: as text, and as a page with its picture.

use std::fmt::Write as _;

use engine::property::nice_bytes;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::picture::{escaped, picture};
use super::{PoolReport, Report};
use crate::alerts::Alert;

fn day(time: u64) -> String {
    let seconds = i64::try_from(time).unwrap_or(i64::MAX);
    let at = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
    at.to_zoned(TimeZone::system())
        .strftime("%Y-%m-%d %H:%M")
        .to_string()
}

/// Returns one line that says what it is, with what is open.
#[must_use]
pub fn title(report: &Report) -> String {
    let host = &report.host;
    let what = match report.open.len() {
        0 => "nothing is wrong".to_owned(),
        1 => "1 alert is open".to_owned(),
        more => format!("{more} alerts are open"),
    };
    format!("{host}: report to {}: {what}", day(report.to))
}

/// Returns the whole in words.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut told = format!(
        "{}, from {} to {}\n\n",
        report.host,
        day(report.from),
        day(report.to)
    );
    match report.open.as_slice() {
        [] => told.push_str("Nothing is wrong.\n"),
        open => {
            told.push_str("What is wrong:\n");
            for alert in open {
                tell_alert(&mut told, alert);
            }
        }
    }
    told.push_str("\nPools:\n");
    if report.pools.is_empty() {
        told.push_str("  There was no pool.\n");
    }
    for pool in &report.pools {
        tell_pool(&mut told, report, pool);
    }
    // To a string nothing fails.
    let _ = match report.over_count {
        0 => writeln!(told, "\nThere were no alerts that are over."),
        1 => writeln!(told, "\n1 alert was opened and is over:"),
        count => writeln!(told, "\n{count} alerts were opened and are over:"),
    };
    for alert in &report.over {
        let (from, to) = (
            day(alert.opened),
            alert.cleared.map(day).unwrap_or_default(),
        );
        let _ = writeln!(told, "  {from} to {to}: {}", line(&alert.fact));
    }
    let more = report.over_count - report.over.len();
    if more > 0 {
        let _ = writeln!(told, "  and {more} more ('sanbox alert list -a')");
    }
    told
}

/// Names of pools, files and hosts that are told come from people.
fn line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ")
}

fn tell_alert(told: &mut String, alert: &Alert) {
    let _ = writeln!(
        told,
        "  [{}] since {}: {}\n      {}\n      {}",
        alert.severity.as_str(),
        day(alert.opened),
        line(&alert.fact),
        line(&alert.effect),
        line(&alert.next_step)
    );
}

fn tell_pool(told: &mut String, report: &Report, pool: &PoolReport) {
    let name = &pool.name;
    match pool.points.last() {
        None => {
            let _ = writeln!(told, "  {name}: its sizes are not known");
        }
        Some(last) => {
            let percent = (u128::from(last.used) * 100).checked_div(last.size.into());
            let growth = pool.growth();
            let grown = match growth {
                0 => "as much as before".to_owned(),
                more if more > 0 => format!("{} more", nice_bytes(more.unsigned_abs())),
                less => format!("{} less", nice_bytes(less.unsigned_abs())),
            };
            let full = match pool.full_in_days() {
                Some(days) if days < 3650 => format!("; as it grew it is full in {days} days"),
                _ => String::new(),
            };
            let _ = writeln!(
                told,
                "  {name}: {} of {} ({}%), {grown}{full}",
                nice_bytes(last.used),
                nice_bytes(last.size),
                percent.unwrap_or(0)
            );
        }
    }
    let seconds = report.to.saturating_sub(report.from).max(1);
    let most = |of: fn(&super::PoolPoint) -> u64| pool.points.iter().map(of).max().unwrap_or(0);
    for (what, bytes, most) in [
        ("read", pool.read_bytes, most(|point| point.read)),
        ("written", pool.written_bytes, most(|point| point.written)),
    ] {
        let _ = writeln!(
            told,
            "      {what}: {}, {}/s on average, {}/s at most",
            nice_bytes(bytes),
            nice_bytes(bytes / seconds),
            nice_bytes(most)
        );
    }
    for (disk, errors) in &pool.errors {
        let word = if *errors == 1 { "error" } else { "errors" };
        let _ = writeln!(told, "      {disk}: {errors} {word}");
    }
    if pool.unanswered > 0 {
        let _ = writeln!(told, "      it did not answer for {} s", pool.unanswered);
    }
}

/// Returns a page in HTML with the picture in it, which fetches nothing.
#[must_use]
pub fn page(report: &Report) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{}</title></head>\n<body>\n{}<pre>{}</pre>\n</body></html>\n",
        escaped(&title(report)),
        picture(report),
        escaped(&text(report))
    )
}
