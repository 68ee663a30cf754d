//! Alerts: what is wrong now, what it means for the data, and what to do; what was wrong before; who was told.
//!
//! Checks give the conditions that hold; each has a key, and there is one alert of a key at a time, however often and in how many places
//! its cause shows. An alert opens when its condition holds, and is cleared when it has not held for a while. Who knows of it can
//! acknowledge it, or mute it for a time. All are in memory, and in the database as far as its disk takes them.

pub mod channel;
pub mod checks;
pub mod forms;
pub mod rules;
pub mod snmp;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::params;
use serde::Serialize;
use tokio::sync::{Notify, broadcast};
use utoipa::ToSchema;

use self::checks::CheckTable;
pub use self::checks::{CheckResult, CheckRuns, CheckView};
use crate::database::{self, Database, DatabaseError};
use crate::jobs::{Jobs, Notice};

/// Alerts kept that are over.
const CLEARED_MAX: usize = 1000;
/// Alerts at a time; a flood of conditions beyond is not an alert each.
const OPEN_MAX: usize = 500;
/// Seconds that a condition has to be away before its alert is cleared: one that comes and goes is one alert.
const CLEARED_AFTER_SECONDS: u64 = 30;
/// Messages on their way to the channels.
const MESSAGES_MAX: usize = 256;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know.
    Info,
    /// Something has to be done, and data is safe.
    Warning,
    /// Data is at risk, or cannot be reached.
    Critical,
}

impl Severity {
    const ALL: [Self; 3] = [Self::Info, Self::Warning, Self::Critical];

    /// Returns its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }

    /// Returns the severity of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// What it is about: there is one alert of a key at a time.
    pub key: String,
    /// How bad it is.
    pub severity: Severity,
    /// Pool, disk, job or other thing.
    pub subject: String,
    /// What is the case.
    pub fact: String,
    /// What it means for the data.
    pub effect: String,
    /// What to do.
    pub next_step: String,
}

/// What became of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AlertState {
    /// Its condition holds.
    Open,
    /// It holds, and was acknowledged.
    Acknowledged,
    /// It holds, and is muted.
    Muted,
    /// It does not hold any more.
    Cleared,
}

impl AlertState {
    const ALL: [Self; 4] = [Self::Open, Self::Acknowledged, Self::Muted, Self::Cleared];

    /// Returns its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Acknowledged => "acknowledged",
            Self::Muted => "muted",
            Self::Cleared => "cleared",
        }
    }
}

/// An alert.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Alert {
    /// Number: later alerts have higher ones.
    pub id: u64,
    /// What it is about: there is one alert of a key at a time.
    pub key: String,
    /// How bad it is.
    pub severity: Severity,
    /// Pool, disk, job or other thing.
    pub subject: String,
    /// What is the case.
    pub fact: String,
    /// What it means for the data.
    pub effect: String,
    /// What to do.
    pub next_step: String,
    /// What became of it.
    pub state: AlertState,
    /// Who acknowledged or muted it.
    pub by: Option<String>,
    /// Until when it is muted, seconds since 1970.
    pub muted_until: Option<u64>,
    /// Begin, seconds since 1970.
    pub opened: u64,
    /// When its condition held last, seconds since 1970.
    pub seen: u64,
    /// End, seconds since 1970.
    pub cleared: Option<u64>,
}

/// What channels are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// An alert opened, or became worse.
    Opened(Alert),
    /// It is over.
    Cleared(Alert),
    /// The channel of this name is tried out, or all.
    Test(Option<String>),
}

/// How a channel does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ChannelView {
    /// Name: its form, and where to.
    pub name: String,
    /// Messages that were taken there.
    pub sent: u64,
    /// When the last was, seconds since 1970.
    pub last_sent: Option<u64>,
    /// Why the last attempt failed; none when it did not.
    pub error: Option<String>,
    /// Messages that wait to be tried again.
    pub waiting: u64,
    /// Messages that were given up.
    pub dropped: u64,
}

struct AlertTable {
    /// By key.
    active: BTreeMap<String, Alert>,
    cleared: VecDeque<Alert>,
    last: u64,
    checks: CheckTable,
    /// Checks that are to run at once.
    wanted: BTreeSet<String>,
    /// What each check found in its last run.
    found: BTreeMap<String, Vec<Condition>>,
    channels: BTreeMap<String, ChannelView>,
}

/// See the module.
pub struct Alerts {
    table: Mutex<AlertTable>,
    database: Database,
    jobs: Arc<Jobs>,
    messages: broadcast::Sender<Message>,
    /// A check is wanted at once.
    wake: Notify,
}

impl Alerts {
    /// Reads the alerts of before. Changes are told to the clients that follow `jobs`.
    ///
    /// # Errors
    /// The database gives no answer.
    pub async fn open(database: Database, jobs: Arc<Jobs>) -> Result<Arc<Self>, DatabaseError> {
        let read = |sql: &mut rusqlite::Connection| Ok((load(sql)?, CheckTable::load(sql)?));
        let (alerts, checks) = database.call(read).await?;
        let mut table = AlertTable {
            active: BTreeMap::new(),
            cleared: VecDeque::new(),
            last: 0,
            checks,
            wanted: BTreeSet::new(),
            found: BTreeMap::new(),
            channels: BTreeMap::new(),
        };
        for alert in alerts {
            table.last = table.last.max(alert.id);
            match alert.state {
                AlertState::Cleared => table.cleared.push_back(alert),
                _ => {
                    table.active.insert(alert.key.clone(), alert);
                }
            }
        }
        Ok(Arc::new(Self {
            table: Mutex::new(table),
            database,
            jobs,
            messages: broadcast::channel(MESSAGES_MAX).0,
            wake: Notify::new(),
        }))
    }

    /// Follows what channels are to be told.
    #[must_use]
    pub fn messages(&self) -> broadcast::Receiver<Message> {
        self.messages.subscribe()
    }

    /// Takes what the check of a name found at `now`, in seconds since 1970, in place of what it found before.
    pub fn checked(&self, name: &str, result: CheckResult, found: Vec<Condition>, now: u64) {
        let mut changed = Vec::new();
        let mut told = Vec::new();
        let runs = {
            let mut table = self.table();
            // A check that failed says nothing of what it found before, and one that was turned off meanwhile nothing at all.
            if result.error.is_none() && table.checks.view(name).is_some_and(|view| view.on) {
                table.found.insert(name.to_owned(), found);
            }
            let runs = table.checks.note(name, result, now);
            let conditions: BTreeMap<String, Condition> = table
                .found
                .values()
                .flatten()
                .map(|condition| (condition.key.clone(), condition.clone()))
                .collect();
            for condition in conditions.into_values() {
                table.hold(condition, now, &mut changed, &mut told);
            }
            table.clear_old(now, &mut changed, &mut told);
            runs
        };
        if !runs.is_empty() {
            let name = name.to_owned();
            self.database
                .record(move |sql| checks::store(sql, &name, &runs));
        }
        for alert in changed {
            self.store(&alert);
            if let Ok(data) = serde_json::to_string(&alert) {
                self.jobs.publish(Notice {
                    event: "alert",
                    data,
                });
            }
        }
        for message in told {
            // There may be no follower.
            let _ = self.messages.send(message);
        }
    }

    /// Returns the alerts whose conditions hold, the worst first, and behind them with `all` those that are over, the newest first.
    #[must_use]
    pub fn list(&self, all: bool) -> Vec<Alert> {
        let table = self.table();
        let mut alerts: Vec<Alert> = table.active.values().cloned().collect();
        alerts.sort_by_key(|alert| std::cmp::Reverse((alert.severity, alert.id)));
        if all {
            alerts.extend(table.cleared.iter().rev().cloned());
        }
        alerts
    }

    /// Returns the checks in the order of their names.
    #[must_use]
    pub fn checks(&self) -> Vec<CheckView> {
        self.table().checks.views()
    }

    /// Returns the check of a name.
    #[must_use]
    pub fn check(&self, name: &str) -> Option<CheckView> {
        self.table().checks.view(name).cloned()
    }

    /// Returns how the runs of a check went, the newest first; `None` when there is none of this name.
    #[must_use]
    pub fn check_runs(&self, name: &str) -> Option<Vec<CheckRuns>> {
        self.table().checks.runs(name)
    }

    /// Turns a check on or off: the alerts of one that is off are cleared. Returns whether there is one of this name.
    #[must_use]
    pub fn turn_check(&self, name: &str, on: bool) -> bool {
        {
            let mut table = self.table();
            if !table.checks.turn(name, on) {
                return false;
            }
            if !on {
                table.found.remove(name);
            }
        }
        let name = name.to_owned();
        self.database
            .record(move |sql| checks::store_setting(sql, &name, on));
        true
    }

    /// Has a check run at once, one that is off too. Returns whether there is one of this name.
    #[must_use]
    pub fn want_check(&self, name: &str) -> bool {
        let mut table = self.table();
        let known = table.checks.view(name).is_some();
        if known {
            table.wanted.insert(name.to_owned());
            self.wake.notify_one();
        }
        known
    }

    /// Returns the checks that are to run at once, and forgets that they are.
    #[must_use]
    pub fn take_wanted_checks(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.table().wanted)
    }

    /// Waits until a check is wanted at once.
    pub async fn check_wanted(&self) {
        self.wake.notified().await;
    }

    /// Returns the channels in the order of their names.
    #[must_use]
    pub fn channels(&self) -> Vec<ChannelView> {
        self.table().channels.values().cloned().collect()
    }

    /// Says how a channel does.
    pub fn note_channel(&self, view: ChannelView) {
        self.table().channels.insert(view.name.clone(), view);
    }

    /// Forgets a channel that is no more.
    pub fn forget_channel(&self, name: &str) {
        self.table().channels.remove(name);
    }

    /// Has a message sent by the channel of this name, or by all. Returns whether there is any such channel.
    #[must_use]
    pub fn test(&self, channel: Option<&str>) -> bool {
        let channels = self.channels();
        let wanted = |view: &ChannelView| channel.is_none_or(|name| view.name == name);
        let known = channels.iter().any(wanted);
        known
            && self
                .messages
                .send(Message::Test(channel.map(str::to_owned)))
                .is_ok()
    }

    /// Acknowledges an alert; `None` when there is none of this number whose condition holds.
    #[must_use]
    pub fn acknowledge(&self, id: u64, by: &str) -> Option<Alert> {
        self.change(id, |alert| {
            alert.state = AlertState::Acknowledged;
            alert.by = Some(by.to_owned());
            alert.muted_until = None;
        })
    }

    /// Mutes an alert until a time, in seconds since 1970; without one until it is over.
    #[must_use]
    pub fn mute(&self, id: u64, by: &str, until: Option<u64>) -> Option<Alert> {
        self.change(id, |alert| {
            alert.state = AlertState::Muted;
            alert.by = Some(by.to_owned());
            alert.muted_until = until;
        })
    }

    /// Opens an alert again that was acknowledged or muted.
    #[must_use]
    pub fn reopen(&self, id: u64) -> Option<Alert> {
        self.change(id, |alert| {
            alert.state = AlertState::Open;
            alert.by = None;
            alert.muted_until = None;
        })
    }

    fn change(&self, id: u64, change: impl FnOnce(&mut Alert)) -> Option<Alert> {
        let alert = {
            let mut table = self.table();
            let alert = table.active.values_mut().find(|alert| alert.id == id)?;
            change(alert);
            alert.clone()
        };
        self.store(&alert);
        Some(alert)
    }

    fn store(&self, alert: &Alert) {
        let alert = alert.clone();
        self.database.record(move |sql| {
            sql.execute(
                "INSERT OR REPLACE INTO alert VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
                params![
                    alert.id,
                    alert.key,
                    alert.severity.as_str(),
                    alert.subject,
                    alert.fact,
                    alert.effect,
                    alert.next_step,
                    alert.state.as_str(),
                    alert.by,
                    alert.muted_until,
                    alert.opened,
                    alert.seen,
                    alert.cleared
                ],
            )?;
            let oldest = alert.id.saturating_sub((CLEARED_MAX + OPEN_MAX) as u64);
            sql.execute(
                "DELETE FROM alert WHERE id <= ?1 AND state = 'cleared'",
                [oldest],
            )
            .map(|_| ())
        });
    }

    fn table(&self) -> MutexGuard<'_, AlertTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AlertTable {
    fn hold(
        &mut self,
        condition: Condition,
        now: u64,
        changed: &mut Vec<Alert>,
        told: &mut Vec<Message>,
    ) {
        let Some(alert) = self.active.get_mut(&condition.key) else {
            if self.active.len() >= OPEN_MAX {
                return;
            }
            self.last += 1;
            let alert = Alert {
                id: self.last,
                key: condition.key.clone(),
                severity: condition.severity,
                subject: condition.subject,
                fact: condition.fact,
                effect: condition.effect,
                next_step: condition.next_step,
                state: AlertState::Open,
                by: None,
                muted_until: None,
                opened: now,
                seen: now,
                cleared: None,
            };
            changed.push(alert.clone());
            told.push(Message::Opened(alert.clone()));
            self.active.insert(condition.key, alert);
            return;
        };
        alert.seen = now;
        let mut differs = alert.fact != condition.fact;
        if alert.state == AlertState::Muted && alert.muted_until.is_some_and(|until| until <= now) {
            alert.state = AlertState::Open;
            (alert.by, alert.muted_until) = (None, None);
            differs = true;
        }
        let worse = condition.severity > alert.severity;
        differs |= condition.severity != alert.severity;
        alert.severity = condition.severity;
        alert.subject = condition.subject;
        alert.fact = condition.fact;
        alert.effect = condition.effect;
        alert.next_step = condition.next_step;
        if worse && alert.state == AlertState::Acknowledged {
            // What was acknowledged was less bad.
            alert.state = AlertState::Open;
        }
        if worse && alert.state != AlertState::Muted {
            told.push(Message::Opened(alert.clone()));
        }
        if differs {
            changed.push(alert.clone());
        }
    }

    fn clear_old(&mut self, now: u64, changed: &mut Vec<Alert>, told: &mut Vec<Message>) {
        let held: Vec<&String> = self
            .found
            .values()
            .flatten()
            .map(|held| &held.key)
            .collect();
        let over = |alert: &&Alert| {
            !held.contains(&&alert.key) && now.saturating_sub(alert.seen) >= CLEARED_AFTER_SECONDS
        };
        let keys: Vec<String> = self
            .active
            .values()
            .filter(over)
            .map(|alert| alert.key.clone())
            .collect();
        for key in keys {
            let Some(mut alert) = self.active.remove(&key) else {
                continue;
            };
            let was_muted = alert.state == AlertState::Muted;
            alert.state = AlertState::Cleared;
            alert.cleared = Some(now);
            changed.push(alert.clone());
            if !was_muted {
                told.push(Message::Cleared(alert.clone()));
            }
            if self.cleared.len() >= CLEARED_MAX {
                self.cleared.pop_front();
            }
            self.cleared.push_back(alert);
        }
    }
}

fn load(sql: &rusqlite::Connection) -> rusqlite::Result<Vec<Alert>> {
    if !database::has_table(sql, "alert")? {
        return Ok(Vec::new());
    }
    let mut rows = sql.prepare(
        "SELECT id, key, severity, subject, fact, effect, next_step, state, by, muted_until, opened, seen, cleared
         FROM alert ORDER BY id",
    )?;
    let read = |row: &rusqlite::Row<'_>| {
        let (severity, state): (String, String) = (row.get(2)?, row.get(7)?);
        let state = AlertState::ALL
            .into_iter()
            .find(|known| known.as_str() == state);
        Ok(Alert {
            id: row.get(0)?,
            key: row.get(1)?,
            severity: Severity::from_name(&severity).unwrap_or(Severity::Warning),
            subject: row.get(3)?,
            fact: row.get(4)?,
            effect: row.get(5)?,
            next_step: row.get(6)?,
            state: state.unwrap_or(AlertState::Open),
            by: row.get(8)?,
            muted_until: row.get(9)?,
            opened: row.get(10)?,
            seen: row.get(11)?,
            cleared: row.get(12)?,
        })
    };
    let found = rows.query_map([], read)?;
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(key: &str, severity: Severity, fact: &str) -> Condition {
        Condition {
            key: key.to_owned(),
            severity,
            subject: "tank".to_owned(),
            fact: fact.to_owned(),
            effect: String::new(),
            next_step: String::new(),
        }
    }

    async fn opened(directory: &tempfile::TempDir) -> Arc<Alerts> {
        let (database, _) = Database::open(directory.path().join("state.db"))
            .await
            .expect("opens");
        let jobs = Jobs::open(database.clone()).await.expect("read");
        Alerts::open(database, jobs).await.expect("read")
    }

    #[tokio::test]
    async fn a_cause_is_one_alert_from_its_begin_to_its_end() {
        let directory = tempfile::tempdir().expect("a directory");
        let alerts = opened(&directory).await;
        let mut messages = alerts.messages();
        let found = |severity, fact: &str| vec![condition("pool/tank", severity, fact)];
        for (second, fact) in (0..40).zip(["1 error", "2 errors"].iter().cycle()) {
            alerts.checked(
                "pools",
                CheckResult::default(),
                found(Severity::Warning, fact),
                second,
            );
        }
        assert!(matches!(messages.try_recv(), Ok(Message::Opened(_))));
        assert!(messages.try_recv().is_err());
        let alert = alerts.acknowledge(1, "ann").expect("there");
        assert_eq!((alert.id, alert.opened, alert.seen), (1, 0, 39));
        // Worse than what was acknowledged.
        alerts.checked(
            "pools",
            CheckResult::default(),
            found(Severity::Critical, "gone"),
            1000,
        );
        assert!(matches!(messages.try_recv(), Ok(Message::Opened(_))));
        assert_eq!(alerts.list(false)[0].state, AlertState::Open);
        // It comes and goes: still one.
        alerts.checked("pools", CheckResult::default(), Vec::new(), 1010);
        alerts.checked(
            "pools",
            CheckResult::default(),
            found(Severity::Critical, "gone"),
            1020,
        );
        let failed = CheckResult {
            error: Some("no answer".to_owned()),
            ..CheckResult::default()
        };
        alerts.checked("pools", failed, Vec::new(), 1100);
        assert_eq!(alerts.list(false).len(), 1);
        alerts.checked("pools", CheckResult::default(), Vec::new(), 1200);
        assert!(matches!(messages.try_recv(), Ok(Message::Cleared(_))));
        assert!(alerts.list(false).is_empty());
        let over = alerts.list(true);
        assert_eq!((over.len(), over[0].cleared), (1, Some(1200)));
        alerts.checked(
            "pools",
            CheckResult::default(),
            found(Severity::Info, "again"),
            1300,
        );
        assert_eq!(alerts.list(false)[0].id, 2);
        alerts.database.call(|_| Ok(())).await.expect("stored");
        let alerts = opened(&directory).await;
        assert_eq!(alerts.list(true).len(), 2);
    }

    #[tokio::test]
    async fn muted_alerts_are_quiet_until_their_time() {
        let directory = tempfile::tempdir().expect("a directory");
        let alerts = opened(&directory).await;
        let found = || vec![condition("disk/a", Severity::Warning, "slow")];
        alerts.checked("slow-disks", CheckResult::default(), found(), 0);
        let mut messages = alerts.messages();
        assert!(alerts.mute(9, "ann", None).is_none());
        let muted = alerts.mute(1, "ann", Some(50)).expect("there");
        assert_eq!(muted.state, AlertState::Muted);
        alerts.checked("slow-disks", CheckResult::default(), found(), 49);
        assert_eq!(alerts.list(false)[0].state, AlertState::Muted);
        alerts.checked("slow-disks", CheckResult::default(), found(), 50);
        assert_eq!(alerts.list(false)[0].state, AlertState::Open);
        let _ = alerts.mute(1, "ann", None).expect("there");
        alerts.checked("slow-disks", CheckResult::default(), Vec::new(), 100);
        assert!(messages.try_recv().is_err());
        assert!(alerts.list(false).is_empty());
        assert!(!alerts.test(None));
    }

    #[tokio::test]
    async fn a_check_that_is_off_has_no_alerts_and_stays_off() {
        let directory = tempfile::tempdir().expect("a directory");
        let alerts = opened(&directory).await;
        let found = || vec![condition("clock", Severity::Warning, "behind")];
        alerts.checked("clock", CheckResult::default(), found(), 0);
        assert_eq!(alerts.list(false).len(), 1);
        assert!(alerts.turn_check("clock", false) && !alerts.turn_check("none", true));
        alerts.checked("memory", CheckResult::default(), Vec::new(), 100);
        assert!(alerts.list(false).is_empty());
        // One that was under way when it was turned off.
        alerts.checked("clock", CheckResult::default(), found(), 110);
        assert!(alerts.list(false).is_empty());
        assert!(alerts.want_check("clock") && !alerts.want_check("none"));
        alerts.check_wanted().await;
        assert_eq!(alerts.take_wanted_checks().len(), 1);
        assert!(alerts.take_wanted_checks().is_empty());
        alerts.database.call(|_| Ok(())).await.expect("stored");
        let alerts = opened(&directory).await;
        let clock = alerts.check("clock").expect("a check");
        // What only grew is written by the hour.
        assert_eq!((clock.on, clock.ran), (false, Some(0)));
        let runs = alerts.check_runs("clock").expect("a check");
        assert_eq!((runs.len(), runs[0].runs, runs[0].from), (1, 1, 0));
        assert!(!alerts.check("config-backup").expect("a check").on);
    }
}
