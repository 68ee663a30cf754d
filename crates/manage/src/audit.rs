//! The log of accounts: who logged in or failed to, from where, and what was changed of users, keys, second factors and settings.
//!
//! What commands change is in the log of jobs. The newest entries are in memory, more are in the database, as far as the disk takes
//! them. Many failures in a row of one kind are one entry with a count, so that a flood of them pushes nothing else out.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::params;
use serde::Serialize;
use utoipa::ToSchema;

use crate::database::{self, Database, DatabaseError, seconds_since_epoch};

/// Entries in memory.
const ENTRIES_MAX: usize = 2000;
/// Entries in the database.
const STORED_MAX: u64 = 20_000;
/// Seconds within which the same again is counted and not written anew.
const REPEATED_SECONDS: u64 = 60;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct AuditEntry {
    /// Number: later entries have higher ones.
    pub id: u64,
    /// Seconds since 1970.
    pub time: u64,
    /// Who did it, or as whom it was tried.
    pub user: String,
    /// From where: an address, or `shell`.
    pub origin: String,
    /// What it was.
    pub event: String,
    /// How often it was, in a minute; of those after the first the time is not kept.
    pub count: u64,
}

#[derive(Debug, Default)]
struct AuditTable {
    entries: VecDeque<AuditEntry>,
    last: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Audit {
    database: Database,
    table: Mutex<AuditTable>,
}

impl Audit {
    /// Reads the newest entries.
    ///
    /// # Errors
    /// The database gives no answer.
    pub async fn open(database: Database) -> Result<Arc<Self>, DatabaseError> {
        let entries = database.call(|sql| load(sql)).await?;
        let last = entries.back().map_or(0, |entry| entry.id);
        Ok(Arc::new(Self {
            database,
            table: Mutex::new(AuditTable { entries, last }),
        }))
    }

    /// Writes an entry. `user` may be what a stranger typed: it is cut to the length of a name.
    pub fn note(&self, user: &str, origin: &str, event: impl Into<String>) {
        let time = seconds_since_epoch();
        let printable = user.chars().filter(|letter| !letter.is_control());
        let user: String = printable.take(80).collect();
        let event = event.into();
        let mut table = self.table();
        let same = |entry: &&mut AuditEntry| {
            entry.user == user && entry.origin == origin && entry.event == event
        };
        if let Some(entry) = table.entries.back_mut().filter(same)
            && time.saturating_sub(entry.time) < REPEATED_SECONDS
        {
            entry.count += 1;
            return;
        }
        table.last += 1;
        let entry = AuditEntry {
            id: table.last,
            time,
            user,
            origin: origin.to_owned(),
            event,
            count: 1,
        };
        if table.entries.len() >= ENTRIES_MAX {
            table.entries.pop_front();
        }
        table.entries.push_back(entry.clone());
        drop(table);
        self.database.record(move |sql| {
            sql.execute(
                "INSERT INTO audit VALUES (?1, ?2, ?3, ?4, ?5)",
                params![entry.id, entry.time, entry.user, entry.origin, entry.event],
            )?;
            let oldest = entry.id.saturating_sub(STORED_MAX);
            sql.execute("DELETE FROM audit WHERE id <= ?1", [oldest])
                .map(|_| ())
        });
    }

    /// Returns the entries before the one with the number `before`, the newest first: at most `max` whose user, origin or event
    /// contains `filter`.
    #[must_use]
    pub fn list(&self, before: Option<u64>, filter: &str, max: usize) -> Vec<AuditEntry> {
        let table = self.table();
        let entries = table.entries.iter().rev();
        entries
            .filter(|entry| before.is_none_or(|before| entry.id < before))
            .filter(|entry| {
                [&entry.user, &entry.origin, &entry.event]
                    .iter()
                    .any(|text| text.contains(filter))
            })
            .take(max)
            .cloned()
            .collect()
    }

    fn table(&self) -> MutexGuard<'_, AuditTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn load(sql: &rusqlite::Connection) -> rusqlite::Result<VecDeque<AuditEntry>> {
    if !database::has_table(sql, "audit")? {
        return Ok(VecDeque::new());
    }
    let mut rows =
        sql.prepare("SELECT id, time, user, origin, event FROM audit ORDER BY id DESC LIMIT ?1")?;
    let read = |row: &rusqlite::Row<'_>| {
        Ok(AuditEntry {
            id: row.get(0)?,
            time: row.get(1)?,
            user: row.get(2)?,
            origin: row.get(3)?,
            event: row.get(4)?,
            count: 1,
        })
    };
    let mut entries = VecDeque::new();
    for entry in rows.query_map([ENTRIES_MAX as u64], read)? {
        entries.push_front(entry?);
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn entries_outlive_the_process_and_floods_are_counted() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("state.db");
        let (database, _) = Database::open(path.clone()).await.expect("made");
        let audit = Audit::open(database.clone()).await.expect("read");
        audit.note("ann", "192.0.2.1", "logged in");
        for _ in 0..1000 {
            audit.note("ev\ne", "192.0.2.2", "log-in failed");
        }
        let newest = &audit.list(None, "", 10)[0];
        assert_eq!((newest.user.as_str(), newest.count), ("eve", 1000));
        assert_eq!(audit.list(Some(2), "", 10).len(), 1);
        assert_eq!(audit.list(None, "192.0.2.1", 10).len(), 1);
        database.call(|_| Ok(())).await.expect("stored");
        let audit = Audit::open(database).await.expect("read");
        assert_eq!(audit.list(None, "", 10).len(), 2);
        audit.note("ann", "shell", "made user 'bob'");
        assert_eq!(audit.list(None, "", 1)[0].id, 3);
    }
}
