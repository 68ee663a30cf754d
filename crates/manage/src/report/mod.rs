//! The report of a day, a week or a month: how full pools became, what their disks carried, what was wrong and what is. Made of the history and
//! the alerts, which are in memory: no report waits for a disk.

mod picture;
mod setting;
mod text;

pub use picture::picture;
pub use setting::set_every;
pub use text::{page, text, title};

pub use crate::config::Every;

use crate::alerts::Alert;
use crate::history::sample::PoolSpan;
use crate::history::{History, HistoryPoint};

/// Points of a picture, at most: an hour each in a week.
const POINTS_MAX: usize = 168;
/// Alerts of the time that a report lists; all are counted.
const ALERTS_MAX: usize = 20;
const DAY_SECONDS: u64 = 86_400;

/// A pool at one moment of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolPoint {
    /// End of the span, in seconds since 1970.
    pub time: u64,
    /// Allocated bytes at that time.
    pub used: u64,
    /// Usable bytes.
    pub size: u64,
    /// Bytes a second that its disks read, on average.
    pub read: u64,
    /// Bytes a second that were written to its disks.
    pub written: u64,
}

/// A pool in the time of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolReport {
    /// Name.
    pub name: String,
    /// The oldest first; spans in which it was not open are left out.
    pub points: Vec<PoolPoint>,
    /// Bytes that its disks read.
    pub read_bytes: u64,
    /// Bytes that were written to its disks.
    pub written_bytes: u64,
    /// Failed operations and wrong blocks, by disk.
    pub errors: Vec<(String, u64)>,
    /// Seconds in which it did not answer.
    pub unanswered: u64,
}

impl PoolReport {
    /// Returns by how many bytes it grew.
    #[must_use]
    pub fn growth(&self) -> i64 {
        let used = |point: Option<&PoolPoint>| {
            point.map_or(0, |point| i64::try_from(point.used).unwrap_or(i64::MAX))
        };
        used(self.points.last()) - used(self.points.first())
    }

    /// Returns in how many days it is full, as it grew; `None` where it did not, or not long enough to tell.
    #[must_use]
    pub fn full_in_days(&self) -> Option<u64> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        let grown = last
            .used
            .checked_sub(first.used)
            .filter(|grown| *grown > 0)?;
        let seconds = last
            .time
            .checked_sub(first.time)
            .filter(|seconds| *seconds >= DAY_SECONDS)?;
        let free = u128::from(last.size.saturating_sub(last.used));
        let days = free * u128::from(seconds) / u128::from(grown) / u128::from(DAY_SECONDS);
        u64::try_from(days).ok()
    }
}

/// What a report says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Name of the appliance.
    pub host: String,
    /// Begin and end, in seconds since 1970.
    pub from: u64,
    /// See `from`.
    pub to: u64,
    /// Pools, in the order of their names.
    pub pools: Vec<PoolReport>,
    /// Alerts that are open.
    pub open: Vec<Alert>,
    /// Alerts that were opened in the time and are over, the newest first: some of them.
    pub over: Vec<Alert>,
    /// How many of those there were.
    pub over_count: usize,
}

impl Report {
    /// Makes the report of the time from `from` to `to`, in seconds since 1970, with the alerts that are known.
    #[must_use]
    pub fn new(host: &str, history: &History, alerts: Vec<Alert>, from: u64, to: u64) -> Self {
        let mut pools: Vec<PoolReport> = Vec::new();
        for point in history.range(from, to, POINTS_MAX) {
            for span in &point.span.pools {
                let known = pools.iter().position(|pool| pool.name == span.name);
                let at = known.unwrap_or_else(|| {
                    pools.push(PoolReport {
                        name: span.name.clone(),
                        ..PoolReport::default()
                    });
                    pools.len() - 1
                });
                pools[at].add(&point, span);
            }
        }
        pools.sort_by(|a, b| a.name.cmp(&b.name));
        let is_over = |alert: &Alert| alert.cleared.is_some();
        let (mut over, open): (Vec<_>, Vec<_>) = alerts.into_iter().partition(is_over);
        over.retain(|alert| (from..=to).contains(&alert.opened));
        over.sort_by_key(|alert| std::cmp::Reverse(alert.opened));
        let over_count = over.len();
        over.truncate(ALERTS_MAX);
        Self {
            host: host.to_owned(),
            from,
            to,
            pools,
            open,
            over,
            over_count,
        }
    }
}

impl PoolReport {
    fn add(&mut self, point: &HistoryPoint, span: &PoolSpan) {
        let seconds = point.span.seconds.max(1);
        let sum = |of: fn(&crate::history::sample::DiskSpan) -> u64| -> u64 {
            span.disks.iter().map(of).sum()
        };
        let (read, written) = (sum(|disk| disk.read_bytes), sum(|disk| disk.written_bytes));
        self.read_bytes += read;
        self.written_bytes += written;
        self.unanswered += span.unanswered;
        for disk in span.disks.iter().filter(|disk| disk.errors > 0) {
            match self.errors.iter_mut().find(|(name, _)| *name == disk.name) {
                Some((_, errors)) => *errors += disk.errors,
                None => self.errors.push((disk.name.clone(), disk.errors)),
            }
        }
        // One that did not answer told no sizes.
        if span.size > 0 {
            self.points.push(PoolPoint {
                time: point.time,
                used: span.used,
                size: span.size,
                read: read / seconds,
                written: written / seconds,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alerts::{AlertState, Severity};
    use crate::history::Span;
    use crate::history::sample::DiskSpan;

    const HOUR: u64 = 3600;

    fn alert(id: u64, opened: u64, cleared: Option<u64>) -> Alert {
        Alert {
            id,
            key: format!("pool/<{id}>"),
            severity: Severity::Warning,
            subject: "tank".to_owned(),
            fact: format!("Pool 'tank' <{id}> & more."),
            effect: "None.".to_owned(),
            next_step: "Look.".to_owned(),
            state: AlertState::Open,
            by: None,
            muted_until: None,
            opened,
            seen: opened,
            cleared,
        }
    }

    async fn week() -> (Report, tempfile::TempDir) {
        let directory = tempfile::tempdir().expect("a directory");
        let history = History::open(directory.path().join("history.db")).await;
        let start = 1_764_547_200;
        for hour in 1..=7 * 24_u64 {
            let pool = PoolSpan {
                name: "tank".to_owned(),
                used: (100 + hour) << 30,
                size: 1000 << 30,
                disks: vec![DiskSpan {
                    name: "sda".to_owned(),
                    read_bytes: HOUR * 1000,
                    written_bytes: HOUR * (2000 + hour),
                    errors: u64::from(hour == 7),
                    ..DiskSpan::default()
                }],
                ..PoolSpan::default()
            };
            let span = Span {
                seconds: HOUR,
                pools: vec![pool],
                ..Span::default()
            };
            history.push(start + hour * HOUR, &span);
        }
        let end = start + 7 * DAY_SECONDS;
        let mut alerts = vec![alert(1, start, None), alert(2, start - 1, Some(start))];
        alerts.extend((3..33).map(|id| alert(id, start + id, Some(end))));
        let report = Report::new("box", &history, alerts, start, end);
        (report, directory)
    }

    #[tokio::test]
    async fn a_week_is_told_in_numbers_and_a_picture() {
        let (report, _directory) = week().await;
        let pool = &report.pools[0];
        assert_eq!(report.pools.len(), 1);
        assert!(
            (160..=168).contains(&pool.points.len()),
            "{}",
            pool.points.len()
        );
        assert_eq!(pool.errors, [("sda".to_owned(), 1)]);
        assert_eq!(pool.read_bytes, 7 * DAY_SECONDS * 1000);
        // 1 GiB an hour, and 732 of them are left.
        assert!(
            pool.full_in_days()
                .is_some_and(|days| (29..=31).contains(&days))
        );
        assert_eq!(
            (report.open.len(), report.over.len(), report.over_count),
            (1, ALERTS_MAX, 30)
        );
        let told = text(&report);
        for said in [
            "tank: 268G of 1000G (26%), 167G more",
            "full in 30 days",
            "sda: 1 error",
            "30 alerts",
            "Pool 'tank' <1> & more.",
        ] {
            assert!(told.contains(said), "{said}: {told}");
        }
        let picture = picture(&report);
        assert!(picture.starts_with("<svg xmlns=") && picture.ends_with("</svg>\n"));
        assert_eq!(picture.matches("<polyline").count(), 3, "{picture}");
        assert!(!picture.contains("NaN") && !picture.contains("inf"));
        let page = page(&report);
        assert!(
            page.contains("&lt;1&gt; &amp; more.") && !page.contains("<1>"),
            "{page}"
        );
        assert!(title(&report).contains("box"));
    }

    #[tokio::test]
    async fn nothing_is_a_report_too() {
        let directory = tempfile::tempdir().expect("a directory");
        let history = History::open(directory.path().join("history.db")).await;
        let report = Report::new("", &history, Vec::new(), 0, 1);
        assert!(text(&report).contains("no pool"), "{}", text(&report));
        assert!(picture(&report).contains("</svg>"));
        let mut one = report.clone();
        one.pools.push(PoolReport {
            name: "a".to_owned(),
            points: vec![PoolPoint::default()],
            ..PoolReport::default()
        });
        let picture = picture(&one);
        assert!(
            !picture.contains("NaN") && !picture.contains("inf"),
            "{picture}"
        );
    }
}
