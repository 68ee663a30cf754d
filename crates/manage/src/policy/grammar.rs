//! The line of text that a policy is: `hourly=24 daily=7 weekly=4 zone=Europe/Berlin`.
//!
//! Words are separated by spaces; a value with spaces stands in double quotes. `off` is the policy that does nothing, for a dataset below
//! one that has a policy.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use croner::Cron;
use jiff::civil::{Time, Weekday};
use jiff::tz::TimeZone;
use thiserror::Error;

use super::{Naming, Period};
use crate::config::is_hook_name;

/// Snapshots of one class that a policy may keep: what `zfs list` of one dataset still shows at once.
const KEEP_MAX: u32 = 100_000;

/// The longest immutability: ten years.
const IMMUTABLE_HOURS_MAX: u32 = 3650 * 24;

/// Minutes of a period below the hour: the divisors of 60, so that every hour begins with one.
const MINUTES: &[u32] = &[1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30];

/// A class of snapshots: how often one is taken, and how many are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// How often.
    pub period: Period,
    /// How many of the newest are kept; above zero.
    pub keep: u32,
}

/// A policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Classes, the shortest period first, each period once. Empty: nothing is taken or destroyed (`off`).
    pub classes: Vec<Class>,
    /// When daily, weekly, monthly and yearly snapshots are taken.
    pub at: Time,
    /// The day of weekly snapshots.
    pub weekday: Weekday,
    /// Where the clock hangs that `at` means.
    pub zone: TimeZone,
    /// How snapshots are named.
    pub naming: Naming,
    /// A snapshot is not taken while nothing was written since the newest one.
    pub skip_unchanged: bool,
    /// Hours for which a new snapshot is not destroyed; 0: no such time.
    pub immutable_hours: u32,
    /// Names of hooks (`sanbox.toml`) that run around each snapshot, sorted, each once.
    pub hooks: Vec<String>,
    /// Snapshots are taken here. Where they arrive by replication, only retention is wanted.
    pub take: bool,
}

/// What is wrong with the text of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// A word without `=`.
    #[error("'{0}' is not NAME=VALUE")]
    NotAnAssignment(String),
    /// A name that no policy has.
    #[error(
        "'{0}' is no part of a policy (parts: Nmin, hourly, daily, weekly, monthly, yearly, cron and keep, at, weekday, zone, naming, \
         unchanged, immutable, hook, take)"
    )]
    Unknown(String),
    /// The same name twice.
    #[error("'{0}' is given twice")]
    Twice(String),
    /// A value that the name does not take.
    #[error("'{name}={value}': {expected}")]
    Value {
        /// The part.
        name: String,
        /// Its value.
        value: String,
        /// What may stand there.
        expected: String,
    },
    /// A quotation mark without its second.
    #[error("a quotation mark is not closed")]
    Quote,
    /// `cron` without `keep`, or the other way round.
    #[error("cron=\"EXPRESSION\" and keep=N go together")]
    CronWithoutKeep,
    /// Nothing to take or keep.
    #[error("no period is given (for instance hourly=24 daily=7), and it is not 'off'")]
    Empty,
}

impl Policy {
    /// Returns the policy that does nothing.
    fn off() -> Self {
        Self {
            classes: Vec::new(),
            at: Time::midnight(),
            weekday: Weekday::Monday,
            zone: TimeZone::UTC,
            naming: Naming::Auto,
            skip_unchanged: false,
            immutable_hours: 0,
            hooks: Vec::new(),
            take: true,
        }
    }

    /// Whether this policy does nothing.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.classes.is_empty()
    }

    fn add(&mut self, period: Period, keep: u32) {
        self.classes.push(Class { period, keep });
        self.classes.sort_by(|a, b| a.period.cmp(&b.period));
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), PolicyError> {
        let refused = |expected: &str| PolicyError::Value {
            name: name.to_owned(),
            value: value.to_owned(),
            expected: expected.to_owned(),
        };
        match name {
            "at" => {
                let time = Time::strptime("%H:%M", value);
                self.at = time.map_err(|_| refused("a time of day, HH:MM"))?;
            }
            "weekday" => {
                self.weekday =
                    weekday(value).ok_or_else(|| refused("mon, tue, wed, thu, fri, sat or sun"))?;
            }
            "zone" => {
                let zone = TimeZone::get(value);
                self.zone = zone.map_err(|_| {
                    refused("not a time zone of this machine (Europe/Berlin, UTC, ...)")
                })?;
            }
            "naming" => {
                let naming = Naming::parse(value);
                self.naming =
                    naming.ok_or_else(|| refused("auto, sanoid, zrepl, seed or seed-latest"))?;
            }
            "unchanged" => match value {
                "skip" => self.skip_unchanged = true,
                "take" => self.skip_unchanged = false,
                _ => return Err(refused("skip or take")),
            },
            "immutable" => {
                let hours = hours(value);
                self.immutable_hours = hours.ok_or_else(|| {
                    refused("how long nobody destroys a new snapshot: 12h, 30d, 4w, at most 3650d")
                })?;
            }
            "hook" => {
                let names: BTreeSet<String> = value.split(',').map(str::to_owned).collect();
                if !names.iter().all(|name| is_hook_name(name)) {
                    return Err(refused("names of hooks, separated by commas"));
                }
                self.hooks = names.into_iter().collect();
            }
            "take" => match value {
                "yes" => self.take = true,
                "no" => self.take = false,
                _ => return Err(refused("yes or no")),
            },
            _ => {
                let period = period(name).ok_or_else(|| PolicyError::Unknown(name.to_owned()))?;
                let keep = count(value).ok_or_else(|| refused("how many are kept, 1 to 100000"))?;
                self.add(period, keep);
            }
        }
        Ok(())
    }
}

fn count(value: &str) -> Option<u32> {
    value
        .parse()
        .ok()
        .filter(|keep| (1..=KEEP_MAX).contains(keep))
}

/// Reads hours, days or weeks (`12h`, `30d`, `4w`) as hours, up to ten years. What is immutable cannot be undone: no value is one that a slip
/// of the finger makes endless.
#[must_use]
pub fn hours(value: &str) -> Option<u32> {
    let unit = match value.bytes().last()? {
        b'h' => 1,
        b'd' => 24,
        b'w' => 24 * 7,
        _ => return None,
    };
    let count: u32 = value.get(..value.len() - 1)?.parse().ok()?;
    let hours = count.checked_mul(unit)?;
    (1..=IMMUTABLE_HOURS_MAX).contains(&hours).then_some(hours)
}

fn period(name: &str) -> Option<Period> {
    match name {
        "hourly" => Some(Period::Hourly),
        "daily" => Some(Period::Daily),
        "weekly" => Some(Period::Weekly),
        "monthly" => Some(Period::Monthly),
        "yearly" => Some(Period::Yearly),
        _ => {
            let minutes = name.strip_suffix("min")?.parse().ok()?;
            MINUTES
                .contains(&minutes)
                .then_some(Period::Minutes(minutes))
        }
    }
}

const WEEKDAYS: &[(&str, Weekday)] = &[
    ("mon", Weekday::Monday),
    ("tue", Weekday::Tuesday),
    ("wed", Weekday::Wednesday),
    ("thu", Weekday::Thursday),
    ("fri", Weekday::Friday),
    ("sat", Weekday::Saturday),
    ("sun", Weekday::Sunday),
];

fn weekday(value: &str) -> Option<Weekday> {
    let found = WEEKDAYS.iter().find(|(name, _)| *name == value);
    found.map(|(_, weekday)| *weekday)
}

/// Returns the assignments of a line; quotation marks are gone from the values.
fn assignments(line: &str) -> Result<Vec<(String, String)>, PolicyError> {
    let mut words = Vec::new();
    let (mut word, mut quoted) = (String::new(), false);
    for char in line.chars() {
        match char {
            '"' => quoted = !quoted,
            c if c.is_whitespace() && !quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => word.push(c),
        }
    }
    if quoted {
        return Err(PolicyError::Quote);
    }
    if !word.is_empty() {
        words.push(word);
    }
    let assignment = |word: String| match word.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(PolicyError::NotAnAssignment(word)),
    };
    words.into_iter().map(assignment).collect()
}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(line: &str) -> Result<Self, PolicyError> {
        let mut policy = Self::off();
        if line.trim() == "off" {
            return Ok(policy);
        }
        let (mut seen, mut cron, mut keep) = (Vec::new(), None, None);
        for (name, value) in assignments(line)? {
            if seen.contains(&name) {
                return Err(PolicyError::Twice(name));
            }
            match name.as_str() {
                "cron" => cron = Some(value),
                "keep" => keep = Some(value),
                _ => policy.set(&name, &value)?,
            }
            seen.push(name);
        }
        match (cron, keep) {
            (None, None) => {}
            (Some(cron), Some(keep)) => {
                let refused = |name: &str, value: &str, expected: String| PolicyError::Value {
                    name: name.to_owned(),
                    value: value.to_owned(),
                    expected,
                };
                if let Err(error) = Cron::from_str(&cron) {
                    return Err(refused("cron", &cron, error.to_string()));
                }
                let Some(count) = count(&keep) else {
                    return Err(refused(
                        "keep",
                        &keep,
                        "how many are kept, 1 to 100000".to_owned(),
                    ));
                };
                policy.add(Period::Cron(cron.into()), count);
            }
            _ => return Err(PolicyError::CronWithoutKeep),
        }
        if policy.is_off() {
            return Err(PolicyError::Empty);
        }
        Ok(policy)
    }
}

impl fmt::Display for Policy {
    /// Writes the line that [`Policy::from_str`] reads as this policy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_off() {
            return f.write_str("off");
        }
        let mut words = Vec::new();
        for class in &self.classes {
            words.push(match &class.period {
                Period::Cron(cron) => format!("cron=\"{cron}\" keep={}", class.keep),
                period => format!("{}={}", period.name(), class.keep),
            });
        }
        let default = Self::off();
        if self.at != default.at {
            words.push(format!("at={}", self.at.strftime("%H:%M")));
        }
        if self.weekday != default.weekday
            && let Some((name, _)) = WEEKDAYS.iter().find(|(_, day)| *day == self.weekday)
        {
            words.push(format!("weekday={name}"));
        }
        if self.zone != default.zone
            && let Some(name) = self.zone.iana_name()
        {
            words.push(format!("zone={name}"));
        }
        if self.naming != default.naming {
            words.push(format!("naming={}", self.naming.name()));
        }
        if self.skip_unchanged {
            words.push("unchanged=skip".to_owned());
        }
        match self.immutable_hours {
            0 => {}
            hours if hours.is_multiple_of(24) => words.push(format!("immutable={}d", hours / 24)),
            hours => words.push(format!("immutable={hours}h")),
        }
        if !self.hooks.is_empty() {
            words.push(format!("hook={}", self.hooks.join(",")));
        }
        if !self.take {
            words.push("take=no".to_owned());
        }
        f.write_str(&words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expect: Result<&str, &str>) {
        let read = line.parse::<Policy>();
        let shown = read
            .as_ref()
            .map(ToString::to_string)
            .map_err(ToString::to_string);
        assert_eq!(shown.as_deref().map_err(String::as_str), expect, "{line}");
        if let Ok(policy) = read {
            assert_eq!(policy.to_string().parse::<Policy>(), Ok(policy), "{line}");
        }
    }

    #[test]
    fn lines_are_read_and_written() {
        check("hourly=24 daily=7", Ok("hourly=24 daily=7"));
        check("  daily=7\thourly=24 ", Ok("hourly=24 daily=7"));
        check(
            "15min=96 yearly=2 at=02:30 weekday=sun",
            Ok("15min=96 yearly=2 at=02:30 weekday=sun"),
        );
        check(
            "daily=7 zone=Europe/Berlin naming=sanoid",
            Ok("daily=7 zone=Europe/Berlin naming=sanoid"),
        );
        check(
            "daily=7 unchanged=skip take=no",
            Ok("daily=7 unchanged=skip take=no"),
        );
        check(
            "keep=10 cron=\"0 9 * * 1-5\"",
            Ok("cron=\"0 9 * * 1-5\" keep=10"),
        );
        check("daily=7 immutable=4w", Ok("daily=7 immutable=28d"));
        check("daily=7 immutable=36h", Ok("daily=7 immutable=36h"));
        check("daily=7 hook=vm,db,vm", Ok("daily=7 hook=db,vm"));
        check("off", Ok("off"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        check(
            "",
            Err("no period is given (for instance hourly=24 daily=7), and it is not 'off'"),
        );
        check("daily", Err("'daily' is not NAME=VALUE"));
        check("daily=0", Err("'daily=0': how many are kept, 1 to 100000"));
        check("daily=7 daily=8", Err("'daily' is given twice"));
        check("daily=7 at=25:00", Err("'at=25:00': a time of day, HH:MM"));
        check(
            "daily=7 zone=Mars/Base",
            Err("'zone=Mars/Base': not a time zone of this machine (Europe/Berlin, UTC, ...)"),
        );
        check(
            "cron=\"0 9 * * *\"",
            Err("cron=\"EXPRESSION\" and keep=N go together"),
        );
        for bad in ["30", "0d", "3651d", "d", "-1d", "99999999999d", ""] {
            let line = format!("daily=7 immutable={bad}");
            let expected = "how long nobody destroys a new snapshot: 12h, 30d, 4w, at most 3650d";
            check(&line, Err(&format!("'immutable={bad}': {expected}")));
        }
        check(
            "daily=7 hook=/bin/sh",
            Err("'hook=/bin/sh': names of hooks, separated by commas"),
        );
        check("daily=7 cron=\"0 9", Err("a quotation mark is not closed"));
        let unknown = "7".parse::<Policy>().map_err(|error| error.to_string());
        assert_eq!(unknown, Err("'7' is not NAME=VALUE".to_owned()));
        assert!(
            matches!("7min=3".parse::<Policy>(), Err(PolicyError::Unknown(name)) if name == "7min")
        );
        assert!(
            matches!("cron=\"x y\" keep=3".parse::<Policy>(), Err(PolicyError::Value { name, .. }) if name == "cron")
        );
    }
}
