//! Names of snapshots that policies take: one scheme for us, and those that people already have.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::Period;

/// How a policy names its snapshots. Every name is one of a moment (to the second) and says it in UTC where the scheme lets it, so that
/// an hour which the clock shows twice gives two names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// `auto-20261125T020000Z`.
    Auto,
    /// `autosnap_2026-11-25_02:00:00_hourly`, as sanoid names them (in UTC, as its packages configure it).
    Sanoid,
    /// `zrepl_20261125_020000_000`, as zrepl names them.
    Zrepl,
    /// `snap-daily-1-2026-11-25-0200`, as NexentaStor named them, in the policy's zone.
    Seed,
    /// The newest of each kind is `snap-daily-1-latest`, as NexentaStor has it; it gets its name of [`Naming::Seed`] when the next one is taken.
    SeedLatest,
}

/// Ends the name that moves on from snapshot to snapshot.
const LATEST: &str = "-latest";

impl Naming {
    const ALL: [Self; 5] = [
        Self::Auto,
        Self::Sanoid,
        Self::Zrepl,
        Self::Seed,
        Self::SeedLatest,
    ];

    /// Returns the word for it in a policy.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Sanoid => "sanoid",
            Self::Zrepl => "zrepl",
            Self::Seed => "seed",
            Self::SeedLatest => "seed-latest",
        }
    }

    /// Reads the word for it in a policy.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|naming| naming.name() == word)
    }

    /// Returns the name of the snapshot taken at `now` for a class of this period (of several: the longest).
    #[must_use]
    pub fn snapshot_name(self, period: &Period, now: Timestamp, zone: &TimeZone) -> String {
        match self {
            Self::Auto => now.strftime("auto-%Y%m%dT%H%M%SZ").to_string(),
            Self::Sanoid => format!(
                "autosnap_{}_{}",
                now.strftime("%Y-%m-%d_%H:%M:%S"),
                period.name()
            ),
            Self::Zrepl => now.strftime("zrepl_%Y%m%d_%H%M%S_000").to_string(),
            Self::Seed => format!("snap-{}-{}", seed_kind(period), seed_time(now, zone)),
            Self::SeedLatest => format!("snap-{}{LATEST}", seed_kind(period)),
        }
    }

    /// Returns the name that a snapshot taken at `creation` gets when the next one takes this name from it; `None` where names do not move.
    #[must_use]
    pub fn settled_name(self, name: &str, creation: Timestamp, zone: &TimeZone) -> Option<String> {
        let kind = moving_kind(name).filter(|_| self == Self::SeedLatest)?;
        Some(format!("snap-{kind}-{}", seed_time(creation, zone)))
    }
}

/// As [`Naming::settled_name`], where the zone of the policy is not known: in UTC, which the name says.
#[must_use]
pub fn settled_name_in_utc(name: &str, creation: Timestamp) -> Option<String> {
    let kind = moving_kind(name)?;
    let time = creation.strftime("%Y-%m-%d-%H%M");
    Some(format!("snap-{kind}-{time}p0000"))
}

/// The kind of snapshot that a moving name is of: `daily-1`.
fn moving_kind(name: &str) -> Option<&str> {
    name.strip_prefix("snap-")?.strip_suffix(LATEST)
}

fn seed_kind(period: &Period) -> String {
    match period {
        Period::Minutes(minutes) => format!("minute-{minutes}"),
        period => format!("{}-1", period.name()),
    }
}

fn seed_time(at: Timestamp, zone: &TimeZone) -> String {
    // A name must not recur in the hour that a clock set back shows again: it has its offset then.
    let local = at.to_zoned(zone.clone());
    let again = zone.to_ambiguous_zoned(local.datetime()).is_ambiguous();
    let offset = if again {
        local.strftime("%z").to_string()
    } else {
        String::new()
    };
    format!(
        "{}{}",
        local.strftime("%Y-%m-%d-%H%M"),
        offset.replace('+', "p").replace('-', "m")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_schemes() {
        let now: Timestamp = "2011-01-21T20:22:00Z".parse().expect("a time");
        let berlin = TimeZone::get("Europe/Berlin").expect("a zone");
        let name = |naming: Naming| naming.snapshot_name(&Period::Daily, now, &berlin);
        assert_eq!(name(Naming::Auto), "auto-20110121T202200Z");
        assert_eq!(name(Naming::Sanoid), "autosnap_2011-01-21_20:22:00_daily");
        assert_eq!(name(Naming::Zrepl), "zrepl_20110121_202200_000");
        assert_eq!(name(Naming::Seed), "snap-daily-1-2011-01-21-2122");
        let moving = name(Naming::SeedLatest);
        assert_eq!(moving, "snap-daily-1-latest");
        let settled = |naming: Naming| naming.settled_name(&moving, now, &berlin);
        assert_eq!(
            settled(Naming::SeedLatest).as_deref(),
            Some("snap-daily-1-2011-01-21-2122")
        );
        assert_eq!(settled(Naming::Seed), None);
        assert_eq!(
            settled_name_in_utc(&moving, now).as_deref(),
            Some("snap-daily-1-2011-01-21-2022p0000")
        );
        assert_eq!(settled_name_in_utc("mine-latest", now), None);
    }

    #[test]
    fn the_hour_that_comes_twice_gives_two_names() {
        let berlin = TimeZone::get("Europe/Berlin").expect("a zone");
        let at = |text: &str| {
            let now = text.parse().expect("a time");
            Naming::Seed.snapshot_name(&Period::Hourly, now, &berlin)
        };
        assert_eq!(
            at("2026-10-25T00:00:00Z"),
            "snap-hourly-1-2026-10-25-0200p0200"
        );
        assert_eq!(
            at("2026-10-25T01:00:00Z"),
            "snap-hourly-1-2026-10-25-0200p0100"
        );
        assert_eq!(at("2026-10-25T02:00:00Z"), "snap-hourly-1-2026-10-25-0300");
    }
}
