//! `zpool iostat`: capacity, operations and bandwidth, latencies, queues and histograms, since the import at first
//! and of each interval after it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use engine::{IoClass, IoTotals, LatencyHistogram, PoolStatus, VdevStats, VdevStatus};

use super::{
    NO_SCRIPTS, NameStyle, Stamp, Subject, has_space, repeat, sections, status_width, subject,
    subjects, unavailable,
};
use crate::cli::command::{Command, Word, options};
use crate::cli::format::{nice_number, nice_time};
use crate::cli::{Exit, Outcome, Session};

options! {
    IostatOption {
        Scripts(String) = valued('c', "script,...", "refused: scripts are not run"),
        Guid = short('g', "show devices by guid"),
        RealPath = short('L', "show devices by the path that links lead to"),
        FullPath = short('P', "show devices by their whole path"),
        Stamp(String) = valued('T', "d|u", "print the time before each round, as a date or in seconds since 1970"),
        Verbose = short('v', "devices, too"),
        SkipFirst = short('y', "leave out the first round, which counts since the import"),
        Help = short('h', "print the usage"),
        Exact = short('p', "exact numbers"),
        Latency = short('l', "with average latencies"),
        Queues = short('q', "with operations in queues"),
        SizeHistogram = short('r', "histograms of request sizes"),
        LatencyHistogram = short('w', "histograms of latency"),
        HeaderOnce = short('n', "print the heading once"),
        Scripted = short('H', "no headings, tabs between the columns"),
    }
}

/// The declaration of `zpool iostat`.
pub(super) const IOSTAT: Command = Command {
    name: "iostat",
    summary: "show operations and bytes of pools and devices",
    usage: "\tiostat [[[-c [script1,script2,...][-lq]]|[-rw]] [-T d | u] [-ghHLpPvy]\n\
         \t    [[pool ...]|[pool vdev ...]|[vdev ...]] [[-n] interval [count]]\n",
    flags: IostatOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool],
    text: &[
        "Scripts of -c are not run: a daemon would run them with its own rights, for any user.",
    ],
    examples: &[
        ("zpool iostat 5", "operations and bytes every five seconds"),
        ("zpool iostat -v tank 1 10", "by device, ten times"),
    ],
    ..Command::NEW
};

/// A histogram instead of a line for each vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Histogram {
    /// `-w`: times.
    Latency,
    /// `-r`: sizes of requests.
    Size,
}

#[derive(Clone, Copy, Default)]
struct Options {
    scripted: bool,
    exact: bool,
    verbose: bool,
    latency: bool,
    queues: bool,
    histogram: Option<Histogram>,
    skip_first: bool,
    header_once: bool,
    style: NameStyle,
}

/// The counters as they were when they were last shown, by pool guid and vdev guid.
type PreviousCounters = BTreeMap<(u64, u64), (IoTotals, Arc<VdevStats>)>;

/// A heading over some columns, and the headings of those.
type Group = (&'static str, &'static [&'static str]);

// OpenZFS: cmd/zpool/zpool_main.c, iostat_top_labels, iostat_bottom_labels
const DEFAULT: &[Group] = &[
    ("capacity", &["alloc", "free"]),
    ("operations", &["read", "write"]),
    ("bandwidth", &["read", "write"]),
];
const LATENCY: &[Group] = &[
    ("total_wait", &["read", "write"]),
    ("disk_wait", &["read", "write"]),
    ("syncq_wait", &["read", "write"]),
    ("asyncq_wait", &["read", "write"]),
    ("scrub", &["wait"]),
    ("trim", &["wait"]),
    ("rebuild", &["wait"]),
];
const QUEUES: &[Group] = &[
    ("syncq_read", &["pend", "activ"]),
    ("syncq_write", &["pend", "activ"]),
    ("asyncq_read", &["pend", "activ"]),
    ("asyncq_write", &["pend", "activ"]),
    ("scrubq_read", &["pend", "activ"]),
    ("trimq_write", &["pend", "activ"]),
    ("rebuildq_write", &["pend", "activ"]),
];
const LATENCIES: &[Group] = &[
    ("total_wait", &["read", "write"]),
    ("disk_wait", &["read", "write"]),
    ("syncq_wait", &["read", "write"]),
    ("asyncq_wait", &["read", "write"]),
    ("", &["scrub"]),
    ("", &["trim"]),
    ("", &["rebuild"]),
];
const SIZES: &[Group] = &[
    ("sync_read", &["ind", "agg"]),
    ("sync_write", &["ind", "agg"]),
    ("async_read", &["ind", "agg"]),
    ("async_write", &["ind", "agg"]),
    ("scrub", &["ind", "agg"]),
    ("trim", &["ind", "agg"]),
    ("rebuild", &["ind", "agg"]),
];

/// Buckets of OpenZFS's latency histogram; ours beyond are in the last.
const LATENCY_BUCKETS: usize = 37;
/// The first bucket of sizes: 512 bytes.
const SIZE_FIRST: usize = 9;

impl Options {
    /// Takes the one histogram that is shown.
    fn show(&mut self, session: &Session, kind: Histogram) -> Result<(), Exit> {
        if self.histogram.is_some_and(|other| other != kind) {
            session
                .out
                .error("Only one of [-r|-w] can be passed at a time");
            return Err(session.usage_only());
        }
        self.histogram = Some(kind);
        Ok(())
    }
}

pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let mut options = Options::default();
    let mut stamp = Stamp::None;
    let mut operands = session.read_options(arguments, |session, option| {
        match option {
            IostatOption::Guid => options.style.guid = true,
            IostatOption::RealPath => options.style.real_path = true,
            IostatOption::FullPath => options.style.full_path = true,
            IostatOption::Stamp(form) => stamp = Stamp::of(session, &form)?,
            IostatOption::Verbose => options.verbose = true,
            IostatOption::Exact => options.exact = true,
            IostatOption::Latency => options.latency = true,
            IostatOption::Queues => options.queues = true,
            IostatOption::LatencyHistogram => options.show(session, Histogram::Latency)?,
            IostatOption::SizeHistogram => options.show(session, Histogram::Size)?,
            IostatOption::Scripted => options.scripted = true,
            IostatOption::SkipFirst => options.skip_first = true,
            IostatOption::HeaderOnce => options.header_once = true,
            IostatOption::Help => return Err(session.misuse("")),
            IostatOption::Scripts(_) => return Err(session.fail(NO_SCRIPTS)),
        }
        Ok(())
    })?;
    if options.histogram.is_some() && (options.latency || options.queues) {
        session
            .out
            .error("-r or -w isn't allowed with -c, -l, or -q");
        return Err(session.usage_only());
    }
    let again = repeat(session, &mut operands)?;
    let selection = select(session, &operands, options.style).await?;
    let mut previous = PreviousCounters::new();
    let mut shown_at: Option<Instant> = None;
    let mut failed = false;
    // Counts the round that -y leaves out, which is none of those asked for.
    let mut rounds: u64 = 0;
    let skipped = u64::from(options.skip_first && again.interval.is_some());
    loop {
        let (pools, missing) = subjects(session, &selection.pools).await;
        if missing {
            return Err(Exit(1));
        }
        let mut statuses = Vec::new();
        for pool in &pools {
            match pool {
                Subject::Open(pool) => {
                    if let Ok(status) = pool.status().await {
                        statuses.push(status);
                    }
                }
                Subject::Closed(cached, error) if rounds == 0 => {
                    failed = true;
                    session.out.error(unavailable(&cached.name, error));
                }
                Subject::Closed(..) => {}
            }
        }
        if statuses.is_empty() && failed {
            return Err(Exit(1));
        }
        if statuses.is_empty() {
            session.out.error("no pools available");
            return Ok(());
        }
        let elapsed = shown_at.map(|time| time.elapsed().as_secs_f64());
        stamp.print(session);
        let report = Report {
            session,
            previous: &previous,
            options,
            vdevs: &selection.vdevs,
            width: width(&statuses, options),
        };
        let skip = rounds < skipped;
        if has_header(options, rounds, skip) {
            report.header("", "pool");
        }
        if !skip {
            report.print(&statuses, elapsed);
        }
        previous.clear();
        for status in &statuses {
            remember(&status.root, status.guid, &mut previous);
            for device in &status.caches {
                remember(device, status.guid, &mut previous);
            }
        }
        shown_at = Some(Instant::now());
        rounds += 1;
        let shown = rounds.saturating_sub(skipped);
        if !again.goes_on(session, shown).await? {
            return if failed { Err(Exit(1)) } else { Ok(()) };
        }
    }
}

/// Whether a round begins with the header. The first one has it, even if its numbers are left out (`-y`), so that it stands
/// above those of the next; with `-v` each round that is shown has its own.
// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_iostat (cb_iteration)
fn has_header(options: Options, rounds: u64, skip: bool) -> bool {
    /// Lines of a screen that is not a terminal.
    const SCREEN_LINES: u64 = 20;
    if options.scripted || options.histogram.is_some() || (skip && options.verbose) {
        return false;
    }
    let first = u64::from(options.skip_first && options.verbose);
    let again = !options.header_once && (options.verbose || rounds.is_multiple_of(SCREEN_LINES));
    rounds <= first || again
}

/// The pools and vdevs that a report is about.
#[derive(Default)]
struct Selection {
    /// Names of pools; none means all.
    pools: Vec<String>,
    /// Guids of the vdevs that are shown alone; none means the pools with what `-v` adds.
    vdevs: BTreeSet<u64>,
}

/// Reads the operands: pools, or vdevs, or vdevs of the pool that comes first.
// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_iostat, error_list_unresolved_vdevs (order, words)
async fn select(
    session: &Session,
    operands: &[String],
    style: NameStyle,
) -> Result<Selection, Exit> {
    let Some((first, rest)) = operands.split_first() else {
        return Ok(Selection::default());
    };
    let (known, _) = subjects(session, &[]).await;
    let is_pool = |name: &String| {
        known.iter().any(|pool| match pool {
            Subject::Open(pool) => pool.name() == name,
            Subject::Closed(cached, _) => cached.name == *name,
        })
    };
    if operands.iter().all(is_pool) {
        return Ok(Selection {
            pools: operands.to_vec(),
            vdevs: BTreeSet::new(),
        });
    }
    let statuses = statuses(&known).await;
    let find = |pool: Option<&str>, word: &String| {
        let mut searched = statuses
            .iter()
            .filter(|status| pool.is_none_or(|pool| status.name == pool));
        searched.find_map(|status| Some((status.name.clone(), find_vdev(status, word, style)?)))
    };
    let all = |pool: Option<&str>, words: &[String]| {
        let found = words.iter().map(|word| find(pool, word));
        found.collect::<Option<Vec<_>>>()
    };
    let selection = |found: Vec<(String, u64)>| {
        let mut pools: Vec<String> = found.iter().map(|(pool, _)| pool.clone()).collect();
        pools.sort();
        pools.dedup();
        Selection {
            pools,
            vdevs: found.into_iter().map(|(_, vdev)| vdev).collect(),
        }
    };
    if let Some(found) = all(None, operands) {
        return Ok(selection(found));
    }
    if !is_pool(first) {
        // A name alone is most likely that of a pool.
        if rest.is_empty() {
            subject(session, first).await?;
        }
        return Err(session.fail("Unable to parse pools/vdevs list.\n"));
    }
    if let Some(found) = all(Some(first), rest) {
        return Ok(selection(found));
    }
    session.out.error(format!(
        "Expected either a list of pools, or list of vdevs in \"{first}\", but got:"
    ));
    for word in rest {
        let what = if is_pool(word) {
            "pool"
        } else if find(Some(first), word).is_some() {
            "vdev in this pool"
        } else if find(None, word).is_some() {
            "vdev in another pool"
        } else {
            "unknown"
        };
        session.out.error(format!("\t{word} ({what})"));
    }
    session.out.error("");
    Err(session.usage_only())
}

async fn statuses(pools: &[Subject]) -> Vec<PoolStatus> {
    let mut statuses = Vec::new();
    for pool in pools {
        if let Subject::Open(pool) = pool
            && let Ok(status) = pool.status().await
        {
            statuses.push(status);
        }
    }
    statuses
}

/// Returns the guid of the vdev that a word names: as it is shown, by its path, or by its guid.
pub(super) fn find_vdev(status: &PoolStatus, word: &str, style: NameStyle) -> Option<u64> {
    fn below(vdev: &VdevStatus, word: &str, style: NameStyle) -> Option<u64> {
        let is_it = style.name(vdev) == word
            || vdev.name == word
            || vdev.guid.to_string() == word
            || vdev
                .path
                .as_deref()
                .is_some_and(|path| path == Path::new(word));
        if is_it {
            return Some(vdev.guid);
        }
        vdev.children
            .iter()
            .find_map(|child| below(child, word, style))
    }
    let mut tops = status.root.children.iter().chain(&status.caches);
    tops.find_map(|top| below(top, word, style))
}

fn remember(vdev: &VdevStatus, pool: u64, previous: &mut PreviousCounters) {
    previous.insert((pool, vdev.guid), (vdev.io, vdev.detail.clone()));
    for child in &vdev.children {
        remember(child, pool, previous);
    }
}

fn width(pools: &[PoolStatus], options: Options) -> usize {
    let names = pools.iter().map(|pool| {
        if options.verbose {
            status_width(pool, options.style)
        } else {
            pool.name.len()
        }
    });
    names.fold(10, usize::max)
}

/// One report.
struct Report<'a> {
    session: &'a Session,
    previous: &'a PreviousCounters,
    options: Options,
    /// Guids of the vdevs that are shown alone; none means all.
    vdevs: &'a BTreeSet<u64>,
    width: usize,
}

/// A pool while it is shown: its guid, and the seconds its numbers cover.
#[derive(Clone, Copy)]
struct Interval {
    pool: u64,
    seconds: f64,
}

impl Report<'_> {
    fn print(&self, pools: &[PoolStatus], elapsed: Option<f64>) {
        let options = self.options;
        for pool in pools {
            // The first report covers the whole time since the pool was opened.
            #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
            let seconds = elapsed.unwrap_or(pool.open_nanoseconds as f64 / 1e9);
            let interval = Interval {
                pool: pool.guid,
                seconds: seconds.max(0.001),
            };
            if !self.vdevs.is_empty() {
                for top in pool.root.children.iter().chain(&pool.caches) {
                    self.chosen(top, interval);
                }
                continue;
            }
            self.vdev(&pool.root, &pool.name, 0, interval);
            if !options.verbose {
                continue;
            }
            let mut parts = sections(&pool.root);
            if !pool.caches.is_empty() {
                parts.push((Some("cache"), pool.caches.iter().collect()));
            }
            for (title, tops) in parts {
                if let Some(title) = title.filter(|_| !options.scripted)
                    && options.histogram.is_none()
                {
                    let dashes = self.dashes();
                    self.session.out.line(format!(
                        "{title:-<width$}{}",
                        &dashes[self.width..],
                        width = self.width
                    ));
                }
                for top in tops {
                    self.tree(top, 2, interval);
                }
            }
            if !options.scripted && options.histogram.is_none() {
                self.session.out.line(self.dashes());
            }
        }
        let several = pools.len() > 1 && !options.verbose;
        let is_table = !options.scripted && options.histogram.is_none();
        if is_table && (several || !self.vdevs.is_empty()) {
            self.session.out.line(self.dashes());
        }
    }

    /// Shows those of a tree's vdevs that were named, each without an indent.
    fn chosen(&self, vdev: &VdevStatus, interval: Interval) {
        if self.vdevs.contains(&vdev.guid) {
            self.vdev(vdev, &self.options.style.name(vdev), 0, interval);
        }
        for child in &vdev.children {
            self.chosen(child, interval);
        }
    }

    fn tree(&self, vdev: &VdevStatus, depth: usize, interval: Interval) {
        let name = self.options.style.name(vdev);
        self.vdev(vdev, &name, depth, interval);
        for child in &vdev.children {
            self.tree(child, depth + 2, interval);
        }
    }

    fn vdev(&self, vdev: &VdevStatus, name: &str, depth: usize, interval: Interval) {
        match self.options.histogram {
            Some(kind) => self.histogram(vdev, name, kind, interval),
            None => self.line(vdev, name, depth, interval),
        }
    }

    /// The groups of columns, and the width of each one's columns.
    fn groups(&self) -> Vec<(Group, usize)> {
        let options = self.options;
        let wide = |exact: usize| if options.exact { exact } else { 5 };
        let with = |groups: &[Group], width: usize| -> Vec<(Group, usize)> {
            groups.iter().map(|&group| (group, width)).collect()
        };
        match options.histogram {
            Some(Histogram::Latency) => return with(LATENCIES, wide(10)),
            Some(Histogram::Size) => return with(SIZES, wide(6)),
            None => {}
        }
        let mut groups = with(DEFAULT, wide(15));
        if options.latency {
            groups.extend(with(LATENCY, wide(10)));
        }
        if options.queues {
            groups.extend(with(QUEUES, wide(6)));
        }
        groups
    }

    // OpenZFS: cmd/zpool/zpool_main.c, print_iostat_labels
    fn header(&self, name: &str, title: &str) {
        let mut top = format!("{name:<width$}", width = self.width);
        let mut bottom = format!("{title:<width$}", width = self.width);
        for ((group, columns), width) in self.groups() {
            let room = width * columns.len() + 2 * (columns.len() - 1);
            let start = (room / columns.len()).saturating_sub(group.len() / columns.len());
            let end = room.saturating_sub(start + group.len());
            if !group.is_empty() {
                top.push_str(&format!("  {:start$}{group}{:end$}", "", ""));
            }
            for column in columns {
                bottom.push_str(&format!("  {column:>width$}"));
            }
        }
        self.session.out.line(top);
        self.session.out.line(bottom);
        self.session.out.line(self.dashes());
    }

    fn dashes(&self) -> String {
        let mut line = "-".repeat(self.width);
        for ((_, columns), width) in self.groups() {
            for _ in columns {
                line.push_str("  ");
                line.push_str(&"-".repeat(width));
            }
        }
        line
    }

    fn number(&self, value: u64) -> String {
        if self.options.exact {
            value.to_string()
        } else {
            nice_number(value)
        }
    }

    fn time(&self, nanoseconds: u64) -> String {
        if self.options.exact {
            nanoseconds.to_string()
        } else {
            nice_time(nanoseconds)
        }
    }

    fn line(&self, vdev: &VdevStatus, name: &str, depth: usize, interval: Interval) {
        let nothing = (IoTotals::default(), Arc::default());
        let (old, old_detail) = self
            .previous
            .get(&(interval.pool, vdev.guid))
            .unwrap_or(&nothing);
        let mut cells = if has_space(vdev) {
            vec![
                self.number(vdev.allocated_bytes),
                self.number(vdev.size_bytes.saturating_sub(vdev.allocated_bytes)),
            ]
        } else {
            let none = if self.options.exact { "0" } else { "-" };
            vec![none.to_owned(), none.to_owned()]
        };
        let io = vdev.io;
        for (now, then) in [
            (io.read_ops, old.read_ops),
            (io.write_ops, old.write_ops),
            (io.read_bytes, old.read_bytes),
            (io.write_bytes, old.write_bytes),
        ] {
            cells.push(self.number(rate(now.saturating_sub(then), interval.seconds)));
        }
        if self.options.latency {
            let (now, then) = (latencies(&vdev.detail), latencies(old_detail));
            for (now, then) in now.iter().zip(&then) {
                let count = now.count.saturating_sub(then.count);
                let sum = now.sum_ns.saturating_sub(then.sum_ns);
                cells.push(self.time(sum.checked_div(count).unwrap_or(0)));
            }
        }
        if self.options.queues {
            for class in queue_order() {
                let class = &vdev.detail.classes[class.index()];
                cells.push(self.number(u64::from(class.pending)));
                cells.push(self.number(u64::from(class.active)));
            }
        }
        if self.options.scripted {
            self.session
                .out
                .line(format!("{name}\t{}", cells.join("\t")));
            return;
        }
        let rest = self.width.saturating_sub(depth);
        let mut text = format!("{:depth$}{name:<rest$}", "");
        let widths = self
            .groups()
            .into_iter()
            .flat_map(|((_, columns), width)| columns.iter().map(move |_| width));
        for (cell, width) in cells.iter().zip(widths) {
            text.push_str(&format!("  {cell:>width$}"));
        }
        self.session.out.line(text);
    }

    fn histogram(&self, vdev: &VdevStatus, name: &str, kind: Histogram, interval: Interval) {
        let nothing = (IoTotals::default(), Arc::default());
        let (_, then) = self
            .previous
            .get(&(interval.pool, vdev.guid))
            .unwrap_or(&nothing);
        let title = match kind {
            Histogram::Latency => "latency",
            Histogram::Size => "req_size",
        };
        let (now, then) = match kind {
            Histogram::Latency => (latency_columns(&vdev.detail), latency_columns(then)),
            Histogram::Size => (size_columns(&vdev.detail), size_columns(then)),
        };
        if self.options.scripted {
            self.session.out.line(name);
        } else {
            self.header(name, title);
        }
        let buckets = now.first().map_or(0, Vec::len);
        let first = match kind {
            Histogram::Latency => 0,
            Histogram::Size => SIZE_FIRST,
        };
        let width = self.groups().first().map_or(5, |(_, width)| *width);
        for bucket in first..buckets {
            let cells = now.iter().zip(&then).map(|(now, then)| {
                let count = now[bucket].saturating_sub(then[bucket]);
                self.number(rate(count, interval.seconds))
            });
            let (value, text) = match kind {
                Histogram::Latency => {
                    let end = (1_u64 << (bucket + 1)) - 1;
                    (end, nice_time(end))
                }
                Histogram::Size => (1 << bucket, nice_number(1 << bucket)),
            };
            if self.options.scripted {
                let cells: Vec<_> = cells.collect();
                self.session
                    .out
                    .line(format!("{value}\t{}", cells.join("\t")));
                continue;
            }
            let mut line = format!("{text:<name$}", name = self.width);
            for cell in cells {
                line.push_str(&format!("  {cell:>width$}"));
            }
            self.session.out.line(line);
        }
        if !self.options.scripted {
            let all = self.width + (width + 2) * now.len();
            self.session.out.line("-".repeat(all));
        }
    }
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate for people"
)]
fn rate(count: u64, seconds: f64) -> u64 {
    (count as f64 / seconds) as u64
}

/// Classes in the order in which queues are shown.
fn queue_order() -> [IoClass; 7] {
    [
        IoClass::SyncRead,
        IoClass::SyncWrite,
        IoClass::AsyncRead,
        IoClass::AsyncWrite,
        IoClass::Scrub,
        IoClass::Trim,
        IoClass::Rebuild,
    ]
}

/// The histograms behind the columns of `-l` and `-w`, in their order.
fn latencies(stats: &VdevStats) -> [LatencyHistogram; 11] {
    let class = |class: IoClass| &stats.classes[class.index()];
    let disk = |classes: &[IoClass]| {
        let mut sum = LatencyHistogram::default();
        for one in classes {
            sum.merge(&class(*one).disk_wait);
        }
        sum
    };
    [
        stats.read_total.clone(),
        stats.write_total.clone(),
        disk(&[IoClass::SyncRead, IoClass::AsyncRead]),
        disk(&[IoClass::SyncWrite, IoClass::AsyncWrite]),
        class(IoClass::SyncRead).queue_wait.clone(),
        class(IoClass::SyncWrite).queue_wait.clone(),
        class(IoClass::AsyncRead).queue_wait.clone(),
        class(IoClass::AsyncWrite).queue_wait.clone(),
        class(IoClass::Scrub).queue_wait.clone(),
        class(IoClass::Trim).queue_wait.clone(),
        class(IoClass::Rebuild).queue_wait.clone(),
    ]
}

fn latency_columns(stats: &VdevStats) -> Vec<Vec<u64>> {
    let columns = latencies(stats).map(|histogram| {
        let mut buckets = histogram.buckets[..LATENCY_BUCKETS].to_vec();
        if let Some(last) = buckets.last_mut() {
            *last += histogram.buckets[LATENCY_BUCKETS..].iter().sum::<u64>();
        }
        buckets
    });
    columns.into()
}

/// Requests reach the devices as they were made: the columns of joined ones stay empty.
fn size_columns(stats: &VdevStats) -> Vec<Vec<u64>> {
    let none = || vec![0; stats.classes[0].sizes.len()];
    let mut columns = Vec::new();
    for class in queue_order() {
        columns.push(stats.classes[class.index()].sizes.to_vec());
        columns.push(none());
    }
    columns
}
