//! `sanbox arcstat`: the cache, a line for each interval, in the columns of OpenZFS's arcstat.

use engine::{CacheStats, L2Stats};

use super::Arguments;
use super::sample::Sample;
use crate::cli::format::{clock, decimal_number, nice_bytes};
use crate::cli::zpool::repeat;
use crate::cli::{Exit, Outcome, Session};

/// What a column shows.
#[derive(Clone, Copy)]
enum Scale {
    Time,
    Percent,
    Thousands,
    Bytes,
}

/// Name, width, scale, description.
type Column = (&'static str, usize, Scale, &'static str);

// OpenZFS: cmd/arcstat.in, cols; the last four are ours.
const COLUMNS: &[Column] = &[
    ("time", 8, Scale::Time, "Time"),
    ("hits", 4, Scale::Thousands, "ARC hits per second"),
    ("iohs", 4, Scale::Thousands, "ARC I/O hits per second"),
    ("miss", 4, Scale::Thousands, "ARC misses per second"),
    ("read", 4, Scale::Thousands, "Total ARC accesses per second"),
    ("hit%", 4, Scale::Percent, "ARC hit percentage"),
    ("ioh%", 4, Scale::Percent, "ARC I/O hit percentage"),
    ("miss%", 5, Scale::Percent, "ARC miss percentage"),
    ("dhit", 4, Scale::Thousands, "Demand hits per second"),
    ("dmis", 4, Scale::Thousands, "Demand misses per second"),
    ("dread", 5, Scale::Thousands, "Demand accesses per second"),
    ("dh%", 3, Scale::Percent, "Demand hit percentage"),
    ("ddhit", 5, Scale::Thousands, "Demand data hits per second"),
    (
        "ddmis",
        5,
        Scale::Thousands,
        "Demand data misses per second",
    ),
    (
        "ddread",
        6,
        Scale::Thousands,
        "Demand data accesses per second",
    ),
    ("ddh%", 4, Scale::Percent, "Demand data hit percentage"),
    (
        "dmhit",
        5,
        Scale::Thousands,
        "Demand metadata hits per second",
    ),
    (
        "dmmis",
        5,
        Scale::Thousands,
        "Demand metadata misses per second",
    ),
    (
        "dmread",
        6,
        Scale::Thousands,
        "Demand metadata accesses per second",
    ),
    ("dmh%", 4, Scale::Percent, "Demand metadata hit percentage"),
    ("phit", 4, Scale::Thousands, "Prefetch hits per second"),
    ("pmis", 4, Scale::Thousands, "Prefetch misses per second"),
    ("pread", 5, Scale::Thousands, "Prefetch accesses per second"),
    ("ph%", 3, Scale::Percent, "Prefetch hits percentage"),
    ("mhit", 4, Scale::Thousands, "Metadata hits per second"),
    ("mmis", 4, Scale::Thousands, "Metadata misses per second"),
    ("mread", 5, Scale::Thousands, "Metadata accesses per second"),
    ("mh%", 3, Scale::Percent, "Metadata hit percentage"),
    ("arcsz", 5, Scale::Bytes, "ARC size"),
    ("size", 5, Scale::Bytes, "ARC size"),
    ("c", 5, Scale::Bytes, "ARC target size"),
    ("mfu", 4, Scale::Thousands, "MFU list hits per second"),
    ("mru", 4, Scale::Thousands, "MRU list hits per second"),
    (
        "mfug",
        4,
        Scale::Thousands,
        "MFU ghost list hits per second",
    ),
    (
        "mrug",
        4,
        Scale::Thousands,
        "MRU ghost list hits per second",
    ),
    ("unc", 4, Scale::Thousands, "Uncached list hits per second"),
    ("eskip", 5, Scale::Thousands, "evict_skip per second"),
    ("mtxmis", 6, Scale::Thousands, "mutex_miss per second"),
    ("l2hits", 6, Scale::Thousands, "L2ARC hits per second"),
    ("l2miss", 6, Scale::Thousands, "L2ARC misses per second"),
    (
        "l2read",
        6,
        Scale::Thousands,
        "Total L2ARC accesses per second",
    ),
    ("l2hit%", 6, Scale::Percent, "L2ARC access hit percentage"),
    ("l2miss%", 7, Scale::Percent, "L2ARC access miss percentage"),
    (
        "l2asize",
        7,
        Scale::Bytes,
        "Actual (compressed) size of the L2ARC",
    ),
    (
        "l2bytes",
        7,
        Scale::Bytes,
        "Bytes read per second from the L2ARC",
    ),
    (
        "l2wbytes",
        8,
        Scale::Bytes,
        "Bytes written per second to the L2ARC",
    ),
    ("avail", 5, Scale::Bytes, "ARC available memory"),
    (
        "pused",
        5,
        Scale::Thousands,
        "Blocks read ahead and then asked for, per second",
    ),
    (
        "pwaste",
        6,
        Scale::Thousands,
        "Blocks read ahead in vain, per second",
    ),
    (
        "x0.5%",
        5,
        Scale::Percent,
        "What a cache of half the size would hit, since the import",
    ),
    (
        "x2%",
        4,
        Scale::Percent,
        "What a cache of twice the size would hit, since the import",
    ),
    (
        "x4%",
        4,
        Scale::Percent,
        "What a cache of four times the size would hit, since the import",
    ),
];

const DEFAULT: &[&str] = &[
    "time", "read", "ddread", "ddh%", "dmread", "dmh%", "pread", "ph%", "size", "c", "avail",
];
const EXTENDED: &[&str] = &[
    "time", "mfu", "mru", "mfug", "mrug", "unc", "eskip", "mtxmis", "dread", "pread", "read",
];
/// Lines between two headings.
const HEADING_EVERY: u64 = 20;

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let mut operands = args.operands.clone();
    let again = repeat(session, &mut operands)?;
    if let Some(extra) = operands.first() {
        return Err(session.misuse(format!("unexpected argument '{extra}'")));
    }
    if args.has('v') {
        for (name, _, _, text) in COLUMNS {
            session.out.line(format!("{name:>11} : {text}"));
        }
        return Ok(());
    }
    let chosen: Vec<&Column> = match args.value('f') {
        Some(list) => list
            .split(',')
            .map(|name| {
                let found = COLUMNS.iter().find(|column| column.0 == name);
                found
                    .ok_or_else(|| session.fail(format!("Incompatible field specified! -- {name}")))
            })
            .collect::<Result<_, Exit>>()?,
        None => {
            let names = if args.has('x') { EXTENDED } else { DEFAULT };
            let all = args.has('a');
            COLUMNS
                .iter()
                .filter(|column| all || names.contains(&column.0))
                .collect()
        }
    };
    let mut chosen = chosen;
    if args.value('f').is_none() && !args.has('a') {
        let names = if args.has('x') { EXTENDED } else { DEFAULT };
        chosen.sort_by_key(|column| names.iter().position(|name| *name == column.0));
    }
    let separator = args.value('s').unwrap_or("  ");
    let exact = args.has('p');
    let heading: Vec<_> = chosen
        .iter()
        .map(|(name, width, ..)| format!("{name:>width$}"))
        .collect();
    let mut before = CacheSample::default();
    let mut rounds = 0;
    loop {
        let now = CacheSample::of(&Sample::of(session, None).await);
        if !exact && rounds % HEADING_EVERY == 0 {
            session.out.line(heading.join(separator));
        }
        let cells = chosen.iter().map(|&&(name, width, scale, _)| {
            let value = now.value(name, &before);
            let text = match (scale, value) {
                (Scale::Time, _) => clock(),
                (_, value) if exact => value.to_string(),
                (Scale::Percent, value) => value.to_string(),
                (Scale::Bytes, value) => nice_bytes(value),
                (Scale::Thousands, value) => decimal_number(value),
            };
            format!("{text:>width$}")
        });
        session.out.line(cells.collect::<Vec<_>>().join(separator));
        before = now;
        rounds += 1;
        if !again.goes_on(session, rounds).await? {
            return Ok(());
        }
    }
}

/// The counters of all caches, and when they were read.
#[derive(Default)]
struct CacheSample {
    at: Option<std::time::Instant>,
    cache: CacheStats,
    l2: L2Stats,
}

impl CacheSample {
    fn of(sample: &Sample) -> Self {
        let (cache, l2) = sample.cache();
        Self {
            at: Some(sample.at),
            cache,
            l2,
        }
    }

    /// The value of a column: since `before`, a second; the first line tells totals, as OpenZFS's does.
    fn value(&self, column: &str, before: &Self) -> u64 {
        let seconds = match (self.at, before.at) {
            (Some(now), Some(then)) => now.duration_since(then).as_secs_f64().max(0.001),
            _ => 1.0,
        };
        let (now, then) = (&self.cache, &before.cache);
        let since = |count: fn(&CacheStats) -> u64| rate(count(now), count(then), seconds);
        let l2 = |count: fn(&L2Stats) -> u64| rate(count(&self.l2), count(&before.l2), seconds);
        let hits = since(|c| c.hits.total());
        let io = since(|c| c.joined.total());
        let misses = since(|c| c.misses.total());
        let demand_data = [
            since(|c| c.hits.demand_data),
            since(|c| c.joined.demand_data),
            since(|c| c.misses.demand_data),
        ];
        let demand_metadata = [
            since(|c| c.hits.demand_metadata),
            since(|c| c.joined.demand_metadata),
            since(|c| c.misses.demand_metadata),
        ];
        let prefetch = [
            since(|c| c.hits.prefetch_data + c.hits.prefetch_metadata),
            since(|c| c.joined.prefetch_data + c.joined.prefetch_metadata),
            since(|c| c.misses.prefetch_data + c.misses.prefetch_metadata),
        ];
        let metadata = [
            since(|c| c.hits.demand_metadata + c.hits.prefetch_metadata),
            since(|c| c.joined.demand_metadata + c.joined.prefetch_metadata),
            since(|c| c.misses.demand_metadata + c.misses.prefetch_metadata),
        ];
        let demand: [u64; 3] = std::array::from_fn(|i| demand_data[i] + demand_metadata[i]);
        let all = [hits, io, misses];
        let sum = |parts: [u64; 3]| parts.iter().sum::<u64>();
        let share = |part: u64, parts: [u64; 3]| (part * 100).checked_div(sum(parts)).unwrap_or(0);
        let bytes = |bytes: usize| bytes as u64;
        match column {
            "hits" => hits,
            "iohs" => io,
            "miss" => misses,
            "read" => sum(all),
            "hit%" => share(hits, all),
            "ioh%" => share(io, all),
            "miss%" => share(misses, all),
            "dhit" => demand[0],
            "dmis" => demand[2],
            "dread" => sum(demand),
            "dh%" => share(demand[0], demand),
            "ddhit" => demand_data[0],
            "ddmis" => demand_data[2],
            "ddread" => sum(demand_data),
            "ddh%" => share(demand_data[0], demand_data),
            "dmhit" => demand_metadata[0],
            "dmmis" => demand_metadata[2],
            "dmread" => sum(demand_metadata),
            "dmh%" => share(demand_metadata[0], demand_metadata),
            "phit" => prefetch[0],
            "pmis" => prefetch[2],
            "pread" => sum(prefetch),
            "ph%" => share(prefetch[0], prefetch),
            "mhit" => metadata[0],
            "mmis" => metadata[2],
            "mread" => sum(metadata),
            "mh%" => share(metadata[0], metadata),
            "arcsz" | "size" => bytes(now.bytes),
            "c" => bytes(now.limit_bytes),
            "mfu" => since(|c| c.frequent_hits),
            "mru" => since(|c| c.recent_hits),
            "mfug" => since(|c| c.frequent_ghost_hits),
            "mrug" => since(|c| c.recent_ghost_hits),
            "l2hits" => l2(|c| c.hits),
            "l2miss" => l2(|c| c.misses),
            "l2read" => l2(|c| c.hits) + l2(|c| c.misses),
            "l2hit%" => share(l2(|c| c.hits), [l2(|c| c.hits), l2(|c| c.misses), 0]),
            "l2miss%" => share(l2(|c| c.misses), [l2(|c| c.hits), l2(|c| c.misses), 0]),
            "l2asize" => self.l2.allocated_bytes,
            "l2bytes" => l2(|c| c.read_bytes),
            "l2wbytes" => l2(|c| c.write_bytes),
            "avail" => bytes(now.limit_set_bytes.saturating_sub(now.bytes)),
            "pused" => since(|c| c.prefetch_useful),
            "pwaste" => since(|c| c.prefetch_wasted),
            "x0.5%" => what_if(now, 1),
            "x2%" => what_if(now, 4),
            "x4%" => what_if(now, 8),
            // Uncached blocks, skipped evictions and missed locks do not exist here.
            _ => 0,
        }
    }
}

fn what_if(cache: &CacheStats, halves: u64) -> u64 {
    let model = cache.what_if.iter().find(|model| model.halves == halves);
    model.map_or(0, |model| {
        (model.hits * 100).checked_div(model.reads).unwrap_or(0)
    })
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate for people"
)]
pub(super) fn rate(now: u64, then: u64, seconds: f64) -> u64 {
    (now.saturating_sub(then) as f64 / seconds).round() as u64
}
