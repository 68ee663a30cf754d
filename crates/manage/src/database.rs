//! The SQLite database of the state directory: users, sessions, jobs, runs of replication.
//!
//! One thread owns the connection and takes work from a bounded queue. A caller waits for an answer until a deadline and no longer:
//! the disk of the state directory may be slow, full, read-only or hang, and the appliance goes on.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, ErrorCode, OpenFlags};
use tokio::sync::oneshot;

/// How long a caller waits.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// Such waits for what is to be done yet as the process ends.
const SETTLE_TRIES: usize = 5;
/// How long a start waits for the database to open.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Calls that wait for the thread.
const QUEUE_MAX: usize = 64;
/// What a database holds.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// The form of the tables; a program refuses what a newer one made.
    pub version: i64,
    /// The tables. Times are seconds since 1970.
    pub tables: &'static str,
    /// Tables that a database of this version may lack: an older program, which does without, made it.
    pub later_tables: &'static str,
    /// SQLite's `synchronous`: whether what was committed is on the disk after a power cut.
    pub synchronous: &'static str,
}

/// Between the name of a damaged database that was moved out of the way and the time of that.
const DAMAGED: &str = ".damaged-";

/// The form of the tables of users and jobs.
const SCHEMA_VERSION: i64 = 1;
const STATE: Form = Form {
    version: SCHEMA_VERSION,
    tables: SCHEMA,
    later_tables: LATER_TABLES,
    synchronous: "FULL",
};
const SCHEMA: &str = "
    CREATE TABLE user (
        name TEXT PRIMARY KEY, role TEXT NOT NULL, password TEXT NOT NULL, created INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE session (
        hash BLOB PRIMARY KEY, user TEXT NOT NULL, csrf TEXT NOT NULL, created INTEGER NOT NULL, used INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE setup_token (hash BLOB PRIMARY KEY, created INTEGER NOT NULL) STRICT;
";
const LATER_TABLES: &str = "
    CREATE TABLE IF NOT EXISTS job (
        id INTEGER PRIMARY KEY, user TEXT NOT NULL, origin TEXT NOT NULL, command TEXT NOT NULL, state TEXT NOT NULL,
        exit INTEGER, started INTEGER NOT NULL, ended INTEGER, output TEXT NOT NULL
    ) STRICT;
    CREATE TABLE IF NOT EXISTS job_undo (job INTEGER PRIMARY KEY, plan TEXT NOT NULL, undone INTEGER NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS api_key (
        id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, user TEXT NOT NULL, name TEXT NOT NULL, role TEXT NOT NULL,
        datasets TEXT NOT NULL, created INTEGER NOT NULL, expires INTEGER, used INTEGER
    ) STRICT;
    CREATE TABLE IF NOT EXISTS ssh_key (
        id INTEGER PRIMARY KEY, user TEXT NOT NULL, kind TEXT NOT NULL, blob TEXT NOT NULL UNIQUE, comment TEXT NOT NULL,
        created INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE IF NOT EXISTS second_factor (
        user TEXT PRIMARY KEY, secret BLOB NOT NULL, confirmed INTEGER NOT NULL, step INTEGER NOT NULL, recovery TEXT NOT NULL
    ) STRICT;
    CREATE TABLE IF NOT EXISTS user_group (
        name TEXT PRIMARY KEY, number INTEGER NOT NULL UNIQUE, role TEXT, created INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE IF NOT EXISTS group_member (name TEXT NOT NULL, user TEXT NOT NULL, PRIMARY KEY (name, user)) STRICT;
    CREATE TABLE IF NOT EXISTS directory_user (user TEXT PRIMARY KEY, source TEXT NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS alert (
        id INTEGER PRIMARY KEY, key TEXT NOT NULL, severity TEXT NOT NULL, subject TEXT NOT NULL, fact TEXT NOT NULL,
        effect TEXT NOT NULL, next_step TEXT NOT NULL, state TEXT NOT NULL, by TEXT, muted_until INTEGER,
        opened INTEGER NOT NULL, seen INTEGER NOT NULL, cleared INTEGER
    ) STRICT;
    CREATE TABLE IF NOT EXISTS replication_run (
        job TEXT NOT NULL, began INTEGER NOT NULL, ended INTEGER NOT NULL, runs INTEGER NOT NULL, snapshots INTEGER NOT NULL,
        bytes INTEGER NOT NULL, cause TEXT, problem TEXT, PRIMARY KEY (job, began)
    ) STRICT;
    CREATE TABLE IF NOT EXISTS restore_test (id INTEGER PRIMARY KEY, job TEXT NOT NULL, report TEXT NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS check_setting (name TEXT PRIMARY KEY, is_on INTEGER NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS check_run (
        name TEXT NOT NULL, began INTEGER NOT NULL, ended INTEGER NOT NULL, runs INTEGER NOT NULL, found INTEGER NOT NULL, error TEXT,
        PRIMARY KEY (name, began)
    ) STRICT;
    CREATE TABLE IF NOT EXISTS noted_time (name TEXT PRIMARY KEY, time INTEGER NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS audit (
        id INTEGER PRIMARY KEY, time INTEGER NOT NULL, user TEXT NOT NULL, origin TEXT NOT NULL, event TEXT NOT NULL
    ) STRICT;
";

/// Why the database gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// It has not answered in time, or too many wait for it.
    #[error("the disk of the state directory does not answer")]
    Unanswered,
    /// Its thread cannot be started.
    #[error("starting the thread of the database: {0}")]
    Thread(std::io::Error),
    /// A newer version of the program made it.
    #[error("{}: made by a newer version of sanbox", .0.display())]
    Newer(PathBuf),
    /// SQLite's own.
    #[error("the state directory's database: {0}")]
    Sqlite(#[from] rusqlite::Error),
}

/// How the database was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// It is there, or was made.
    Whole,
    /// It was damaged, is kept at this path, and an empty one has taken its place.
    Replaced(PathBuf),
    /// It cannot be written, for this reason.
    ReadOnly(String),
}

type Work = Box<dyn FnOnce(&mut Connection) + Send>;

/// See the module.
#[derive(Clone, Debug)]
pub struct Database {
    queue: SyncSender<Work>,
}

impl Database {
    /// Opens the database of users and jobs at `path`, or makes one.
    ///
    /// # Errors
    /// It can be neither read nor made, or not in time.
    pub async fn open(path: PathBuf) -> Result<(Self, Opened), DatabaseError> {
        Self::open_as(path, STATE).await
    }

    /// Opens a database of this form at `path`, or makes one.
    ///
    /// # Errors
    /// It can be neither read nor made, or not in time.
    pub async fn open_as(path: PathBuf, form: Form) -> Result<(Self, Opened), DatabaseError> {
        let (queue, work) = sync_channel(QUEUE_MAX);
        let (sender, opened) = oneshot::channel();
        std::thread::Builder::new()
            .name("database".to_owned())
            .spawn(move || match open(&path, &form) {
                Ok((connection, how)) => {
                    let _ = sender.send(Ok(how));
                    serve(connection, &work);
                }
                Err(error) => {
                    let _ = sender.send(Err(error));
                }
            })
            .map_err(DatabaseError::Thread)?;
        let opened = tokio::time::timeout(OPEN_TIMEOUT, opened).await;
        let how = opened
            .map_err(|_| DatabaseError::Unanswered)?
            .map_err(|_| DatabaseError::Unanswered)??;
        Ok((Self { queue }, how))
    }

    /// Does work on the connection and returns its result. The work is done even when the caller has stopped waiting.
    ///
    /// # Errors
    /// SQLite's, or no answer in time.
    pub async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, DatabaseError> {
        let (sender, result) = oneshot::channel();
        let work: Work = Box::new(move |connection| {
            let _ = sender.send(work(connection));
        });
        if self.queue.try_send(work).is_err() {
            return Err(DatabaseError::Unanswered);
        }
        match tokio::time::timeout(CALL_TIMEOUT, result).await {
            Ok(Ok(result)) => Ok(result?),
            _ => Err(DatabaseError::Unanswered),
        }
    }

    /// Has work done whose result decides nothing; it is dropped when too much waits.
    pub fn record(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<()> + Send + 'static,
    ) {
        let _ = self.queue.try_send(Box::new(move |connection| {
            let _ = work(connection);
        }));
    }

    /// Waits until all that was given before is done, 15 s at most: as the process ends, so that what was recorded is kept.
    pub async fn settle(&self) {
        for _ in 0..SETTLE_TRIES {
            let began = Instant::now();
            if self.call(|_| Ok(())).await.is_ok() {
                return;
            }
            // Where the queue is full there is no waiting for an answer.
            tokio::time::sleep(CALL_TIMEOUT.saturating_sub(began.elapsed())).await;
        }
    }

    /// Notes when something of this name was done, in seconds since 1970; dropped when too much waits.
    pub fn note_time(&self, name: &'static str, time: u64) {
        self.record(move |sql| {
            let noted = "INSERT OR REPLACE INTO noted_time VALUES (?1, ?2)";
            sql.execute(noted, rusqlite::params![name, time])
                .map(|_| ())
        });
    }

    /// Returns when something of this name was done last, in seconds since 1970, if it was noted.
    ///
    /// # Errors
    /// SQLite's, or no answer in time.
    pub async fn noted_time(&self, name: &'static str) -> Result<Option<u64>, DatabaseError> {
        let read = self.call(move |sql| {
            if !has_table(sql, "noted_time")? {
                return Ok(None);
            }
            let mut rows = sql.prepare("SELECT time FROM noted_time WHERE name = ?1")?;
            let mut times = rows.query_map([name], |row| row.get(0))?;
            times.next().transpose()
        });
        read.await
    }
}

fn serve(mut connection: Connection, work: &Receiver<Work>) {
    while let Ok(work) = work.recv() {
        work(&mut connection);
    }
}

fn open(path: &Path, form: &Form) -> Result<(Connection, Opened), DatabaseError> {
    // SQLite would make it readable as the umask says. Without this the directory, which is its owner's alone, protects it.
    let _ = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path);
    match prepare(path, form) {
        Ok(connection) => Ok((connection, Opened::Whole)),
        Err(DatabaseError::Sqlite(error)) if is_damage(&error) => {
            let aside = set_aside(path);
            Ok((prepare(path, form)?, Opened::Replaced(aside)))
        }
        Err(DatabaseError::Sqlite(error)) => {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection = Connection::open_with_flags(path, flags)?;
            check(&connection, path, form)?;
            Ok((connection, Opened::ReadOnly(error.to_string())))
        }
        Err(error) => Err(error),
    }
}

fn prepare(path: &Path, form: &Form) -> Result<Connection, DatabaseError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_secs(1))?;
    // One file beside a journal of its own, which a read-only disk does not need.
    connection.query_row("PRAGMA journal_mode = TRUNCATE", [], |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", form.synchronous)?;
    if check(&connection, path, form)? == 0 {
        let transaction = connection.transaction()?;
        transaction.execute_batch(form.tables)?;
        transaction.pragma_update(None, "user_version", form.version)?;
        transaction.commit()?;
    } else {
        // What cannot be written is found out here, not by the first user. A file on a disk that is read-only is opened without a word.
        if connection.is_readonly("main")? {
            let denied = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_READONLY);
            return Err(rusqlite::Error::SqliteFailure(denied, None).into());
        }
        connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK;")?;
    }
    connection.execute_batch(form.later_tables)?;
    Ok(connection)
}

/// Returns the version of the tables of a whole database; 0 of an empty one.
fn check(connection: &Connection, path: &Path, form: &Form) -> Result<i64, DatabaseError> {
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict != "ok" {
        let damage = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
        return Err(rusqlite::Error::SqliteFailure(damage, Some(verdict)).into());
    }
    let version = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version > form.version {
        return Err(DatabaseError::Newer(path.to_owned()));
    }
    Ok(version)
}

/// Whether there is such a table.
///
/// # Errors
/// SQLite's.
pub fn has_table(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    let count = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?1";
    connection.query_row(count, [name], |row| row.get::<_, bool>(0))
}

fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    )
}

/// Returns the names of the damaged databases in a directory that were moved out of the way; of one that cannot be listed, none.
#[must_use]
pub fn set_aside_in(directory: &Path) -> Vec<String> {
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    let is_one = |name: &String| {
        let seconds = name.split_once(DAMAGED).map(|(_, seconds)| seconds);
        seconds.is_some_and(|seconds| seconds.bytes().all(|digit| digit.is_ascii_digit()))
    };
    names.filter(is_one).collect()
}

/// Moves a damaged database, and its journal, out of the way.
fn set_aside(path: &Path) -> PathBuf {
    let seconds = seconds_since_epoch();
    let named = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let aside = named(&format!("{DAMAGED}{seconds}"));
    let _ = std::fs::rename(path, &aside);
    let journal = format!("{DAMAGED}{seconds}-journal");
    let _ = std::fs::rename(named("-journal"), named(&journal));
    aside
}

/// Returns the time in seconds since 1970.
#[must_use]
pub fn seconds_since_epoch() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn count(database: &Database) -> i64 {
        let count = database
            .call(|sql| sql.query_row("SELECT count(*) FROM setup_token", [], |row| row.get(0)));
        count.await.expect("a number")
    }

    #[tokio::test]
    async fn a_damaged_database_is_set_aside_and_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("state.db");
        std::fs::write(
            &path,
            "this is no database, and long enough to be taken for one".repeat(100),
        )
        .expect("written");
        let (database, how) = Database::open(path.clone()).await.expect("made anew");
        let Opened::Replaced(aside) = how else {
            panic!("{how:?}");
        };
        assert!(aside.exists());
        let name = aside.file_name().expect("a name").to_string_lossy();
        assert_eq!(set_aside_in(aside.parent().expect("a directory")), [name]);
        assert_eq!(count(&database).await, 0);
        drop(database);
        let (_, how) = Database::open(path).await.expect("opens");
        assert_eq!(how, Opened::Whole);
    }

    #[tokio::test]
    async fn a_newer_database_is_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("state.db");
        let connection = Connection::open(&path).expect("made");
        connection
            .pragma_update(None, "user_version", SCHEMA_VERSION + 1)
            .expect("set");
        drop(connection);
        let error = Database::open(path).await.expect_err("refused");
        assert!(matches!(error, DatabaseError::Newer(_)), "{error}");
    }

    #[tokio::test]
    async fn a_hanging_disk_is_waited_for_no_longer_than_the_deadline() {
        let directory = tempfile::tempdir().expect("a directory");
        let (database, _) = Database::open(directory.path().join("state.db"))
            .await
            .expect("made");
        let (free, held) = std::sync::mpsc::channel::<()>();
        database.record(move |_| {
            let _ = held.recv();
            Ok(())
        });
        let began = std::time::Instant::now();
        let answer = database.call(|_| Ok(())).await;
        assert!(matches!(answer, Err(DatabaseError::Unanswered)));
        assert!(began.elapsed() < 2 * CALL_TIMEOUT);
        drop(free);
        assert_eq!(count(&database).await, 0);
    }

    #[tokio::test]
    async fn what_was_recorded_is_kept_as_the_process_ends() {
        let directory = tempfile::tempdir().expect("a directory");
        let (database, _) = Database::open(directory.path().join("state.db"))
            .await
            .expect("made");
        // A disk that is slower than a call waits.
        database.record(|_| {
            std::thread::sleep(CALL_TIMEOUT + Duration::from_secs(1));
            Ok(())
        });
        let (kept, is_kept) = std::sync::mpsc::channel();
        database.record(move |_| {
            let _ = kept.send(());
            Ok(())
        });
        database.settle().await;
        assert_eq!(is_kept.try_recv(), Ok(()));
    }
}
