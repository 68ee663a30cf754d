//! The history of requests, disks and pools: each second for an hour, each 10 s for a day, each 5 min for 30 days.
//!
//! All of it is in memory, bounded by bytes, and is what questions are answered from: no question waits for a disk. A file of its own in
//! the state directory keeps it over restarts; what cannot be written there stays in memory, and the next attempt writes it. Who
//! takes the samples, and when, is not known here.

mod observe;
pub mod sample;
pub mod why;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::params;

pub use observe::{Observation, pool_span};
pub use sample::Span;
pub use why::{Cause, Explanation, Finding};

use crate::database::{self, Database, DatabaseError, Opened};

/// Seconds of a point, and for how many seconds such points are kept.
const LEVELS: [(u64, u64); 3] = [(1, 3600), (10, 86_400), (300, 30 * 86_400)];
/// Bytes of a level in memory, at most; the oldest points go first.
const LEVEL_BYTES_MAX: usize = 4 << 20;
/// A point costs at least this beside its bytes.
const POINT_BYTES: usize = 48;
/// Seconds by which the clock may go back without the points of the future being dropped.
const CLOCK_BACK_SECONDS: u64 = 60;
/// The form of the tables.
const FORM: database::Form = database::Form {
    version: 1,
    tables: "
        CREATE TABLE point (
            level INTEGER NOT NULL, time INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (level, time)
        ) STRICT, WITHOUT ROWID;
    ",
    later_tables: "",
    // Losing the last seconds at a power cut costs nothing; a sync for each point would.
    synchronous: "NORMAL",
};

/// A point of a level: the end of its span in seconds since 1970, and the span's bytes.
struct Point {
    time: u64,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Level {
    points: VecDeque<Point>,
    bytes: usize,
    /// The end of the newest point that is in the file.
    stored: u64,
    /// What is added up for the next point.
    sum: Option<(u64, Span)>,
}

impl Level {
    fn push(&mut self, time: u64, span: &Span, keep_seconds: u64) {
        let bytes = span.to_bytes();
        self.bytes += bytes.len() + POINT_BYTES;
        self.points.push_back(Point { time, bytes });
        while self.bytes > LEVEL_BYTES_MAX
            || self
                .points
                .front()
                .is_some_and(|point| point.time + keep_seconds < time)
        {
            let Some(oldest) = self.points.pop_front() else {
                break;
            };
            self.bytes -= oldest.bytes.len() + POINT_BYTES;
        }
    }

    /// Adds a span of a finer level to what becomes the next point.
    fn add_up(&mut self, time: u64, span: &Span, seconds: u64, keep_seconds: u64) {
        // Points end at multiples of their length, so that those before and after a restart fall together.
        let end = time.div_ceil(seconds) * seconds;
        match &mut self.sum {
            Some((at, sum)) if *at == end => sum.merge(span),
            sum => {
                let done = sum.replace((end, span.clone()));
                if let Some((at, done)) = done {
                    self.push(at, &done, keep_seconds);
                }
            }
        }
    }

    fn forget_after(&mut self, time: u64) {
        while self.points.back().is_some_and(|point| point.time > time) {
            if let Some(point) = self.points.pop_back() {
                self.bytes -= point.bytes.len() + POINT_BYTES;
            }
        }
        self.stored = self.stored.min(time);
        self.sum = None;
    }
}

#[derive(Default)]
struct Levels {
    levels: [Level; LEVELS.len()],
    /// Why the newest points are in memory alone.
    unsaved: Option<String>,
}

/// A span with its end, in seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryPoint {
    /// End.
    pub time: u64,
    /// What was in the span.
    pub span: Span,
}

/// See the module.
pub struct History {
    levels: Mutex<Levels>,
    database: Option<Database>,
}

impl History {
    /// Opens the history in the file at `path`, making it if need be. Without it the history is in memory, and says so.
    pub async fn open(path: PathBuf) -> Arc<Self> {
        let mut levels = Levels::default();
        let database = match Database::open_as(path, FORM).await {
            Ok((database, how)) => {
                if let Opened::ReadOnly(why) = how {
                    levels.unsaved = Some(why);
                }
                match database.call(|sql| load(sql)).await {
                    Ok(points) => levels.take(points),
                    Err(error) => levels.unsaved = Some(error.to_string()),
                }
                Some(database)
            }
            Err(error) => {
                levels.unsaved = Some(error.to_string());
                None
            }
        };
        Arc::new(Self {
            levels: Mutex::new(levels),
            database,
        })
    }

    /// Adds what was in the span that ended at `time`, in seconds since 1970.
    pub fn push(&self, time: u64, span: &Span) {
        let mut levels = self.levels();
        let newest = levels.levels[0].points.back().map_or(0, |point| point.time);
        if time + CLOCK_BACK_SECONDS < newest {
            for level in &mut levels.levels {
                level.forget_after(time);
            }
        }
        let time = match levels.levels[0].points.back() {
            Some(point) => time.max(point.time + 1),
            None => time,
        };
        for (level, (seconds, keep)) in levels.levels.iter_mut().zip(LEVELS) {
            if seconds == 1 {
                level.push(time, span, keep);
                continue;
            }
            level.add_up(time, span, seconds, keep);
        }
    }

    /// Writes what is new into the file. Returns why it could not.
    ///
    /// # Errors
    /// The disk of the state directory does not take it; the points stay in memory, and the next call tries again.
    pub async fn store(&self) -> Result<(), DatabaseError> {
        let Some(database) = &self.database else {
            return Ok(());
        };
        let mut new = Vec::new();
        let mut oldest = [0; LEVELS.len()];
        {
            let levels = self.levels();
            for (number, level) in levels.levels.iter().enumerate() {
                let points = level.points.iter().rev();
                let points = points.take_while(|point| point.time > level.stored);
                new.extend(points.map(|point| (number, point.time, point.bytes.clone())));
                oldest[number] = level.points.front().map_or(0, |point| point.time);
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        let mut ends = [0; LEVELS.len()];
        for (number, time, _) in &new {
            ends[*number] = ends[*number].max(*time);
        }
        let stored = database
            .call(move |sql| {
                let transaction = sql.transaction()?;
                for (number, time, bytes) in &new {
                    transaction.execute(
                        "INSERT OR REPLACE INTO point VALUES (?1, ?2, ?3)",
                        params![*number as u64, time, bytes],
                    )?;
                }
                for (number, oldest) in oldest.iter().enumerate() {
                    transaction.execute(
                        "DELETE FROM point WHERE level = ?1 AND time < ?2",
                        params![number as u64, oldest],
                    )?;
                }
                transaction.commit()
            })
            .await;
        let mut levels = self.levels();
        levels.unsaved = stored.as_ref().err().map(ToString::to_string);
        if stored.is_ok() {
            for (level, end) in levels.levels.iter_mut().zip(ends) {
                level.stored = level.stored.max(end);
            }
        }
        stored
    }

    /// Returns why the newest points are in memory alone; `None` when they are not.
    #[must_use]
    pub fn unsaved(&self) -> Option<String> {
        self.levels().unsaved.clone()
    }

    /// Returns the points whose spans end after `from` and not after `to`, in seconds since 1970, at most `points_max`: the finest there
    /// are for all of the time, added up to so many. Seconds without any are left out.
    #[must_use]
    pub fn range(&self, from: u64, to: u64, points_max: usize) -> Vec<HistoryPoint> {
        let (from, to) = (from.min(to), to);
        let levels = self.levels();
        let covers = |level: &Level, seconds: u64| {
            let first = level.points.front();
            first.is_some_and(|point| point.time <= from + seconds)
        };
        let mut number = levels
            .levels
            .iter()
            .zip(LEVELS)
            .position(|(level, (seconds, _))| covers(level, seconds));
        if number.is_none() {
            // None goes back so far: the one that goes back farthest, the finest of those.
            let first = |level: &Level| level.points.front().map_or(u64::MAX, |point| point.time);
            let oldest = levels.levels.iter().map(first).min().unwrap_or(u64::MAX);
            number = levels
                .levels
                .iter()
                .position(|level| first(level) == oldest);
        }
        let Some(number) = number else {
            return Vec::new();
        };
        let step = LEVELS[number].0;
        let wanted = (to - from).div_ceil(points_max.max(1) as u64).max(1);
        let each = wanted.div_ceil(step) * step;
        let mut points: Vec<HistoryPoint> = Vec::new();
        let mut take = |time: u64, span: &Span| {
            let end = time.div_ceil(each) * each;
            match points.last_mut() {
                Some(last) if last.time == end => last.span.merge(span),
                _ => points.push(HistoryPoint {
                    time: end,
                    span: span.clone(),
                }),
            }
        };
        for point in &levels.levels[number].points {
            if point.time > from
                && point.time <= to
                && let Some(span) = Span::from_bytes(&point.bytes)
            {
                take(point.time, &span);
            }
        }
        if let Some((time, span)) = &levels.levels[number].sum
            && *time > from
            && *time - LEVELS[number].0 < to
        {
            take(*time, span);
        }
        points
    }

    /// Returns what was between two times, added up.
    #[must_use]
    pub fn sum(&self, from: u64, to: u64) -> Span {
        let mut sum = Span::default();
        for point in self.range(from, to, 1) {
            sum.merge(&point.span);
        }
        sum
    }

    /// Says where the time of requests went between two times, and why: of one client or dataset, or of all.
    #[must_use]
    pub fn explain(
        &self,
        from: u64,
        to: u64,
        client: Option<&str>,
        dataset: Option<&str>,
    ) -> Explanation {
        let window = self.sum(from, to);
        // What was before, to compare disks with themselves.
        let length = (to - from.min(to)).max(60);
        let before = self.sum(from.saturating_sub(10 * length), from);
        why::explain(&window, &before, client, dataset)
    }

    fn levels(&self) -> MutexGuard<'_, Levels> {
        self.levels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Levels {
    fn take(&mut self, points: Vec<(usize, u64, Vec<u8>)>) {
        for (number, time, bytes) in points {
            let Some(level) = self.levels.get_mut(number) else {
                continue;
            };
            level.bytes += bytes.len() + POINT_BYTES;
            level.stored = level.stored.max(time);
            level.points.push_back(Point { time, bytes });
            while level.bytes > LEVEL_BYTES_MAX {
                let Some(oldest) = level.points.pop_front() else {
                    break;
                };
                level.bytes -= oldest.bytes.len() + POINT_BYTES;
            }
        }
        // What had been added up for points that were not complete.
        let [finest, coarser @ ..] = &mut self.levels;
        for (level, (seconds, keep)) in coarser.iter_mut().zip(&LEVELS[1..]) {
            let end = level.points.back().map_or(0, |point| point.time);
            for point in finest.points.iter().filter(|point| point.time > end) {
                if let Some(span) = Span::from_bytes(&point.bytes) {
                    level.add_up(point.time, &span, *seconds, *keep);
                }
            }
        }
    }
}

fn load(sql: &rusqlite::Connection) -> rusqlite::Result<Vec<(usize, u64, Vec<u8>)>> {
    let mut rows = sql.prepare("SELECT level, time, data FROM point ORDER BY level, time")?;
    let points = rows.query_map([], |row| {
        let level: u64 = row.get(0)?;
        let level = usize::try_from(level).unwrap_or(usize::MAX);
        Ok((level, row.get(1)?, row.get(2)?))
    })?;
    points.collect()
}

#[cfg(test)]
mod tests {
    use super::sample::PoolSpan;
    use super::*;

    fn span(hits: u64) -> Span {
        Span {
            seconds: 1,
            pools: vec![PoolSpan {
                name: "tank".to_owned(),
                hits,
                ..PoolSpan::default()
            }],
            ..Span::default()
        }
    }

    fn hits(points: &[HistoryPoint]) -> u64 {
        let pools = points.iter().flat_map(|point| &point.span.pools);
        pools.map(|pool| pool.hits).sum()
    }

    #[tokio::test]
    async fn points_add_up_at_every_level_and_are_bounded() {
        let directory = tempfile::tempdir().expect("a directory");
        let history = History::open(directory.path().join("history.db")).await;
        let begin = 1_000_000_200;
        for second in 0..40_000 {
            history.push(begin + second, &span(1));
        }
        let end = begin + 39_999;
        assert_eq!(history.levels().levels[0].points.len(), 3601);
        let minute = history.range(end - 60, end, 60);
        assert_eq!((minute.len(), hits(&minute)), (60, 60));
        let hours = history.range(end - 36_000, end, 100);
        assert!(hours.len() <= 101, "{}", hours.len());
        assert!(
            (35_990..=36_010).contains(&hits(&hours)),
            "{}",
            hits(&hours)
        );
        let all = history.range(begin - 1, end, 1000);
        assert_eq!(hits(&all), 40_000);
        assert!(history.range(0, 10, 10).is_empty());
        // The clock is set back by a day: what was in the future is gone, and the present is there.
        history.push(begin - 86_400, &span(7));
        assert_eq!(hits(&history.range(begin - 86_410, begin, 10)), 7);
    }

    #[tokio::test]
    async fn the_history_outlives_the_process_and_a_disk_that_takes_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("history.db");
        let history = History::open(path.clone()).await;
        for second in 0..100 {
            history.push(1_000_000_000 + second, &span(1));
        }
        history.store().await.expect("stored");
        assert_eq!(history.unsaved(), None);
        drop(history);
        let history = History::open(path.clone()).await;
        assert_eq!(hits(&history.range(999_999_990, 1_000_000_099, 1000)), 100);
        // A full disk: SQLite may take no further page.
        let database = history.database.clone().expect("open");
        let limit = database.call(|sql| {
            let pages: i64 = sql.query_row("PRAGMA page_count", [], |row| row.get(0))?;
            sql.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
        });
        limit.await.expect("set");
        for second in 100..2000 {
            history.push(1_000_000_000 + second, &span(1));
        }
        history.store().await.expect_err("full");
        assert!(history.unsaved().is_some_and(|why| why.contains("full")));
        assert_eq!(hits(&history.range(999_999_990, 1_000_001_999, 1000)), 2000);
        // There is room again: nothing is missing.
        let limit =
            database.call(|sql| sql.query_row("PRAGMA max_page_count = 100000", [], |_| Ok(())));
        limit.await.expect("set");
        history.store().await.expect("stored");
        assert_eq!(history.unsaved(), None);
        drop((history, database));
        let history = History::open(path).await;
        assert_eq!(hits(&history.range(999_999_990, 1_000_001_999, 1000)), 2000);
    }

    #[tokio::test]
    async fn without_a_file_the_history_is_in_memory_and_says_so() {
        let history = History::open(PathBuf::from("/proc/none/history.db")).await;
        history.push(1_000_000_000, &span(3));
        assert!(history.unsaved().is_some());
        history.store().await.expect("nothing to do");
        assert_eq!(hits(&history.range(999_999_999, 1_000_000_000, 1)), 3);
    }
}
