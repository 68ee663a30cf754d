//! The checks whose findings become alerts: what each looks at and how often, whether it is on, how its runs went.
//!
//! Which are off, and how runs went, outlives the process as far as the database's disk takes it. Runs that found the same, one after the other,
//! are one entry, so that a check that runs each five seconds does not push what was unusual out of the list.

use std::collections::{BTreeMap, VecDeque};

use rusqlite::{Connection, params};
use serde::Serialize;
use utoipa::ToSchema;

use crate::database;

/// Entries kept of each check.
const RUNS_MAX: usize = 50;
/// Seconds after which an entry that only grew is written again.
const STORE_SECONDS: u64 = 3600;

/// A check.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Name.
    pub name: &'static str,
    /// What it looks at.
    pub about: &'static str,
    /// Seconds between two runs.
    pub interval: u64,
    /// Whether it runs unless it is turned off, or only where it is turned on.
    pub default_on: bool,
}

const fn check(name: &'static str, interval: u64, about: &'static str) -> Check {
    Check {
        name,
        about,
        interval,
        default_on: true,
    }
}

/// All of them.
pub const CHECKS: &[Check] = &[
    check(
        "pools",
        5,
        "pools that are not open, hang, or have disks that are gone or make errors",
    ),
    check("capacity", 60, "how full pools are, and when they will be"),
    check("scrub", 3600, "when pools were scrubbed last"),
    check(
        "slow-disks",
        60,
        "disks that take much longer than those beside them",
    ),
    check("jobs", 10, "commands given over the API that failed"),
    check(
        "schedules",
        60,
        "snapshots that a policy should have taken by now, and policies that cannot be read",
    ),
    check(
        "replication",
        10,
        "jobs of replication that are not complete, tests of restores that failed, and datasets in place of which their copy is in use",
    ),
    check(
        "replication-lag",
        60,
        "copies that are older than the schedule of their job says",
    ),
    check("certificate", 3600, "the end of the console's certificate"),
    check("clock", 60, "a clock that went back"),
    check("memory", 10, "the memory that the process takes"),
    check(
        "state-directory",
        30,
        "whether the state directory can be written",
    ),
    check(
        "state-space",
        300,
        "room on the disk of the state directory",
    ),
    Check {
        default_on: false,
        ..check(
            "config-backup",
            3600,
            "whether the settings were exported within 30 days ('sanbox config export')",
        )
    },
];

/// A check, and how its last run went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct CheckView {
    /// Name.
    pub name: String,
    /// What it looks at.
    pub about: String,
    /// Whether it runs at its interval.
    pub on: bool,
    /// Seconds between two runs.
    pub interval: u64,
    /// Its last run, seconds since 1970; none before the first.
    pub ran: Option<u64>,
    /// How long that took, in milliseconds.
    pub took_ms: u64,
    /// Conditions that it found.
    pub found: u64,
    /// Why it could not be run to its end.
    pub error: Option<String>,
}

/// How a run of a check went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckResult {
    /// How long it took, in milliseconds.
    pub took_ms: u64,
    /// Conditions that it found.
    pub found: u64,
    /// Why it could not be run to its end.
    pub error: Option<String>,
}

/// Runs of a check, one after the other, that found the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct CheckRuns {
    /// The first, seconds since 1970.
    pub from: u64,
    /// The last, seconds since 1970.
    pub to: u64,
    /// How many there were.
    pub runs: u64,
    /// Conditions that each found.
    pub found: u64,
    /// Why they could not be run to their end.
    pub error: Option<String>,
}

struct CheckState {
    view: CheckView,
    /// The newest last.
    runs: VecDeque<CheckRuns>,
    /// When the newest was written.
    stored: Option<u64>,
}

/// The state of all checks.
pub(super) struct CheckTable(BTreeMap<&'static str, CheckState>);

impl CheckTable {
    pub(super) fn load(sql: &Connection) -> rusqlite::Result<Self> {
        let mut table = Self(CHECKS.iter().map(CheckState::of).collect());
        if database::has_table(sql, "check_setting")? {
            let mut rows = sql.prepare("SELECT name, is_on FROM check_setting")?;
            let rows = rows.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))?;
            for row in rows {
                let (name, on) = row?;
                if let Some(state) = table.0.get_mut(name.as_str()) {
                    state.view.on = on;
                }
            }
        }
        if database::has_table(sql, "check_run")? {
            let mut rows = sql.prepare(
                "SELECT name, began, ended, runs, found, error FROM check_run ORDER BY began",
            )?;
            let rows = rows.query_map([], |row| Ok((row.get::<_, String>(0)?, entry(row)?)))?;
            for row in rows {
                let (name, runs) = row?;
                if let Some(state) = table.0.get_mut(name.as_str()) {
                    state.view.ran = Some(runs.to);
                    state.view.found = runs.found;
                    state.view.error.clone_from(&runs.error);
                    state.runs.push_back(runs);
                }
            }
        }
        Ok(table)
    }

    /// Returns all in the order of their names.
    pub(super) fn views(&self) -> Vec<CheckView> {
        self.0.values().map(|state| state.view.clone()).collect()
    }

    pub(super) fn view(&self, name: &str) -> Option<&CheckView> {
        self.0.get(name).map(|state| &state.view)
    }

    /// Returns the runs of a check, the newest first.
    pub(super) fn runs(&self, name: &str) -> Option<Vec<CheckRuns>> {
        let state = self.0.get(name)?;
        Some(state.runs.iter().rev().cloned().collect())
    }

    /// Turns a check on or off; returns whether there is one of this name.
    pub(super) fn turn(&mut self, name: &str, on: bool) -> bool {
        let state = self.0.get_mut(name);
        state.map(|state| state.view.on = on).is_some()
    }

    /// Takes in how a run went at `now`. Returns the entries that are to be written.
    pub(super) fn note(&mut self, name: &str, result: CheckResult, now: u64) -> Vec<CheckRuns> {
        let Some(state) = self.0.get_mut(name) else {
            return Vec::new();
        };
        let CheckResult {
            took_ms,
            found,
            error,
        } = result;
        (state.view.ran, state.view.took_ms) = (Some(now), took_ms);
        (state.view.found, state.view.error) = (found, error.clone());
        let mut changed = Vec::new();
        match state.runs.back_mut() {
            Some(last) if last.found == found && last.error == error => {
                (last.to, last.runs) = (now, last.runs + 1);
            }
            last => {
                // What it was for the last time is of the last run before.
                changed.extend(last.cloned());
                if state.runs.len() >= RUNS_MAX {
                    state.runs.pop_front();
                }
                state.runs.push_back(CheckRuns {
                    from: now,
                    to: now,
                    runs: 1,
                    found,
                    error,
                });
                state.stored = None;
            }
        }
        let is_recent = |at: u64| now.saturating_sub(at) < STORE_SECONDS;
        if !state.stored.is_some_and(is_recent) {
            state.stored = Some(now);
            changed.extend(state.runs.back().cloned());
        }
        changed
    }
}

impl CheckState {
    fn of(check: &Check) -> (&'static str, Self) {
        let view = CheckView {
            name: check.name.to_owned(),
            about: check.about.to_owned(),
            on: check.default_on,
            interval: check.interval,
            ran: None,
            took_ms: 0,
            found: 0,
            error: None,
        };
        let state = Self {
            view,
            runs: VecDeque::new(),
            stored: None,
        };
        (check.name, state)
    }
}

fn entry(row: &rusqlite::Row<'_>) -> rusqlite::Result<CheckRuns> {
    Ok(CheckRuns {
        from: row.get(1)?,
        to: row.get(2)?,
        runs: row.get(3)?,
        found: row.get(4)?,
        error: row.get(5)?,
    })
}

/// Writes entries of a check, and forgets those beyond the bound.
pub(super) fn store(sql: &Connection, name: &str, runs: &[CheckRuns]) -> rusqlite::Result<()> {
    for entry in runs {
        sql.execute(
            "INSERT OR REPLACE INTO check_run VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![
                name,
                entry.from,
                entry.to,
                entry.runs,
                entry.found,
                entry.error
            ],
        )?;
    }
    sql.execute(
        "DELETE FROM check_run WHERE name = ?1 AND began NOT IN
         (SELECT began FROM check_run WHERE name = ?1 ORDER BY began DESC LIMIT ?2)",
        params![name, RUNS_MAX],
    )?;
    Ok(())
}

/// Writes whether a check is on.
pub(super) fn store_setting(sql: &Connection, name: &str, on: bool) -> rusqlite::Result<()> {
    sql.execute(
        "INSERT OR REPLACE INTO check_setting VALUES (?1, ?2)",
        params![name, on],
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(found: u64, error: Option<&str>) -> CheckResult {
        CheckResult {
            took_ms: 1,
            found,
            error: error.map(str::to_owned),
        }
    }

    #[test]
    fn runs_that_found_the_same_are_one_entry_and_all_are_bounded() {
        let sql = Connection::open_in_memory().expect("opens");
        let mut table = CheckTable::load(&sql).expect("loads");
        let written = |changed: Vec<CheckRuns>| changed.len();
        assert_eq!(written(table.note("clock", result(0, None), 10_000)), 1);
        assert_eq!(written(table.note("clock", result(0, None), 10_060)), 0);
        assert_eq!(written(table.note("clock", result(0, None), 13_700)), 1);
        // The end of the one before, and the new one.
        assert_eq!(written(table.note("clock", result(1, None), 13_760)), 2);
        assert_eq!(
            written(table.note("clock", result(0, Some("late")), 14_000)),
            2
        );
        assert!(table.note("none", result(0, None), 1).is_empty());
        let runs = table.runs("clock").expect("a check");
        let shown: Vec<_> = runs
            .iter()
            .map(|run| (run.from, run.to, run.runs))
            .collect();
        assert_eq!(
            shown,
            [
                (14_000, 14_000, 1),
                (13_760, 13_760, 1),
                (10_000, 13_700, 3)
            ]
        );
        for at in 0..200 {
            table.note("clock", result(at % 2, None), 20_000 + at);
        }
        assert_eq!(table.runs("clock").map(|runs| runs.len()), Some(RUNS_MAX));
        assert_eq!(table.runs("none"), None);
    }
}
