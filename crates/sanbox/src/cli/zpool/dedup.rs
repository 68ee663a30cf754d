//! `zpool ddtprune` and `zpool prefetch`, and what `zpool status -D` tells of the deduplication tables.

use engine::{DedupStatistics, PoolHandle, Prune};
use serde_json::{Map, Value, json};

use super::open_pool;
use crate::cli::command::{Command, Word, options};
use crate::cli::format::{nice_bytes, nice_number};
use crate::cli::{Outcome, Session, json as forms};

const DAY_SECONDS: u64 = 86_400;

options! {
    PruneOption {
        Days(String) = valued('d', "days", "entries of this age in days, and older ones"),
        Percent(String) = valued('p', "percentage", "the oldest entries, so many in a hundred"),
    }
}

/// The declaration of `zpool ddtprune`.
pub(super) const DDTPRUNE: Command = Command {
    name: "ddtprune",
    summary: "remove unique entries from the deduplication tables",
    usage: "\tddtprune -d|-p <amount> <pool>\n",
    flags: PruneOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool],
    examples: &[
        (
            "zpool ddtprune -d 90 tank",
            "forget blocks that nothing has equalled for 90 days: the tables become smaller, the blocks stay as they are",
        ),
        ("zpool ddtprune -p 10 tank", "forget the oldest tenth"),
    ],
    ..Command::NEW
};

// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_ddt_prune
pub(super) async fn prune(session: &Session, arguments: &[String]) -> Outcome {
    let mut which = None;
    let operands = session.read_options(arguments, |session, option| {
        match (option, which) {
            (PruneOption::Days(_), Some(Prune::Percent(_))) => {
                return Err(session.misuse("-d cannot be combined with -p option"));
            }
            (PruneOption::Percent(_), Some(Prune::Age(_))) => {
                return Err(session.misuse("-p cannot be combined with -d option"));
            }
            (PruneOption::Days(text), _) => {
                let days = text.parse::<u64>().ok().filter(|days| *days > 0);
                let days = days.ok_or_else(|| session.misuse("invalid days value"))?;
                which = Some(Prune::Age(days.saturating_mul(DAY_SECONDS)));
            }
            (PruneOption::Percent(text), _) => {
                let percent = text.parse::<u64>().ok();
                let percent = percent.filter(|percent| (1..=100).contains(percent));
                let percent = percent.ok_or_else(|| session.misuse("invalid percentage value"))?;
                which = Some(Prune::Percent(percent));
            }
        }
        Ok(())
    })?;
    let Some(which) = which else {
        return Err(session.misuse("missing amount option (-d|-p <value>)"));
    };
    let pool = one_pool(session, &operands, "missing pool argument").await?;
    if let Err(error) = pool.prune_dedup(which).await {
        return Err(session.fail(format!(
            "cannot prune dedup table on '{}': {error}",
            pool.name()
        )));
    }
    session.record(&pool).await;
    Ok(())
}

options! {
    PrefetchOption {
        Type(String) = valued('t', "type", "ddt: the deduplication tables; brt: the tables of cloned blocks"),
    }
}

/// The declaration of `zpool prefetch`.
pub(super) const PREFETCH: Command = Command {
    name: "prefetch",
    summary: "load tables of a pool into memory",
    usage: "\tprefetch -t <type> [<type opts>] <pool>\n\
         \t    -t ddt|brt <pool>\n",
    flags: PrefetchOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool],
    examples: &[
        (
            "zpool prefetch -t ddt tank",
            "read the deduplication tables, so that the first writes after an import need not wait for the disks",
        ),
        (
            "zpool prefetch -t brt tank",
            "the same for the tables of cloned blocks, before many clones are destroyed",
        ),
    ],
    ..Command::NEW
};

// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_prefetch
pub(super) async fn prefetch(session: &Session, arguments: &[String]) -> Outcome {
    let mut what = None;
    let operands = session.read_options(arguments, |_, PrefetchOption::Type(text)| {
        what = Some(text);
        Ok(())
    })?;
    if operands.is_empty() {
        return Err(session.misuse("missing pool name argument"));
    }
    let clones = match what.as_deref() {
        Some("ddt") => false,
        Some("brt") => true,
        _ => return Err(session.misuse("unsupported prefetch type")),
    };
    let pool = one_pool(session, &operands, "missing pool name argument").await?;
    let (table, outcome) = match clones {
        true => ("block cloning", pool.prefetch_clones().await),
        false => ("dedup", pool.prefetch_dedup().await),
    };
    outcome.map_err(|error| {
        let name = pool.name();
        session.fail(format!(
            "cannot prefetch {table} table of '{name}': {error}"
        ))
    })
}

async fn one_pool(
    session: &Session,
    operands: &[String],
    missing: &str,
) -> Result<PoolHandle, crate::cli::Exit> {
    match operands {
        [name] => open_pool(session, name).await,
        [] => Err(session.misuse(missing)),
        _ => Err(session.misuse("too many arguments")),
    }
}

/// The part of `zpool status -D` of one pool.
// OpenZFS: cmd/zpool/zpool_main.c, print_dedup_stats; lib/libzutil/zutil_pool.c, zpool_dump_ddt
pub(super) fn statistics_text(statistics: &DedupStatistics, exact: bool) -> String {
    if statistics.entries == 0 {
        return "\n dedup: no DDT entries\n".to_owned();
    }
    let size = |bytes: u64| match exact {
        true => bytes.to_string(),
        false => nice_number(bytes),
    };
    let mut text = format!(
        "\n dedup: DDT entries {}, size {} on disk, {} in core\n\n",
        statistics.entries,
        size(statistics.disk_bytes),
        size(statistics.memory_bytes)
    );
    let rule = "______________________________";
    text.push_str(&format!(
        "bucket   {:33}{:30}\n______   {rule}   {rule}\n",
        "           allocated", "          referenced"
    ));
    let names = [
        "blocks", "LSIZE", "PSIZE", "DSIZE", "blocks", "LSIZE", "PSIZE", "DSIZE",
    ];
    text.push_str(&row("refcnt", names));
    let lines = [
        "------", "-----", "-----", "-----", "------", "-----", "-----", "-----",
    ];
    text.push_str(&row("------", lines));
    for (log2, sums) in statistics.rows.iter().enumerate() {
        if sums[0] > 0 {
            text.push_str(&row(
                &nice_number(1 << log2),
                nice_sums(sums).each_ref().map(String::as_str),
            ));
        }
    }
    text.push_str(&row(
        "Total",
        nice_sums(&total(statistics)).each_ref().map(String::as_str),
    ));
    text.push('\n');
    text
}

/// The same as JSON: numbers exactly as they are, or as people read them, as text or integers.
// OpenZFS: cmd/zpool/zpool_main.c, dedup_stats_nvlist (names of keys)
pub(super) fn statistics_json(statistics: &DedupStatistics, exact: bool, integers: bool) -> Value {
    let number = |value: u64, nice: fn(u64) -> String| match exact || integers {
        true => forms::text(&value.to_string(), integers),
        false => Value::from(nice(value)),
    };
    let mut object = json!({ "obj_count": number(statistics.entries, nice_number) });
    if statistics.entries == 0 {
        object["ddt_object_stats"] = json!({});
        return object;
    }
    object["dspace"] = number(statistics.disk_bytes, nice_number);
    object["mspace"] = number(statistics.memory_bytes, nice_number);
    // What of the tables is in memory is asked for apart.
    object["cspace"] = number(0, nice_number);
    let sums_json = |sums: &[u64; 8]| {
        let keys = [
            "blocks",
            "logical_size",
            "physical_size",
            "deflated_size",
            "ref_blocks",
            "ref_lsize",
            "ref_psize",
            "ref_dsize",
        ];
        let cells = keys.iter().zip(sums).map(|(key, &value)| {
            let nice = if key.ends_with("blocks") {
                nice_number
            } else {
                nice_bytes
            };
            ((*key).to_owned(), number(value, nice))
        });
        Value::Object(cells.collect())
    };
    let rows = statistics.rows.iter().enumerate();
    let histogram: Map<String, Value> = rows
        .filter(|(_, sums)| sums[0] > 0)
        .map(|(log2, sums)| (log2.to_string(), sums_json(sums)))
        .collect();
    object["ddt_stats"] = json!({ "total": sums_json(&total(statistics)), "histogram": histogram });
    object
}

/// The sums of all rows.
fn total(statistics: &DedupStatistics) -> [u64; 8] {
    let mut total = [0_u64; 8];
    for sums in &statistics.rows {
        for (total, sum) in total.iter_mut().zip(sums) {
            *total = total.wrapping_add(*sum);
        }
    }
    total
}

fn nice_sums(sums: &[u64; 8]) -> [String; 8] {
    std::array::from_fn(|index| match index {
        0 | 4 => nice_number(sums[index]),
        _ => nice_bytes(sums[index]),
    })
}

fn row(head: &str, [a, b, c, d, e, f, g, h]: [&str; 8]) -> String {
    format!("{head:>6}   {a:>6}   {b:>5}   {c:>5}   {d:>5}   {e:>6}   {f:>5}   {g:>5}   {h:>5}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_told_as_openzfs_tells_them() {
        let mut rows = vec![[0; 8]; 64];
        rows[0] = [
            1282,
            20 << 20,
            20 << 20,
            20 << 20,
            1282,
            20 << 20,
            20 << 20,
            20 << 20,
        ];
        rows[6] = [
            25, 409_600, 102_400, 102_400, 2437, 39_927_808, 9_981_952, 9_981_952,
        ];
        let statistics = DedupStatistics {
            entries: 1307,
            disk_bytes: 749_568,
            memory_bytes: 1 << 20,
            rows,
        };
        // What zdb -D prints of the same tables, but for the words of its title.
        let expected = "
 dedup: DDT entries 1307, size 732K on disk, 1M in core

bucket              allocated                       referenced          
______   ______________________________   ______________________________
refcnt   blocks   LSIZE   PSIZE   DSIZE   blocks   LSIZE   PSIZE   DSIZE
------   ------   -----   -----   -----   ------   -----   -----   -----
     1    1.25K     20M     20M     20M    1.25K     20M     20M     20M
    64       25    400K    100K    100K    2.38K   38.1M   9.52M   9.52M
 Total    1.28K   20.4M   20.1M   20.1M    3.63K   58.1M   29.5M   29.5M

";
        assert_eq!(statistics_text(&statistics, false), expected);
        let none = DedupStatistics::default();
        assert_eq!(statistics_text(&none, false), "\n dedup: no DDT entries\n");
        // The same numbers in JSON.
        let nice = statistics_json(&statistics, false, false);
        assert_eq!(nice["dspace"], "732K");
        assert_eq!(nice["ddt_stats"]["total"]["ref_lsize"], "58.1M");
        assert_eq!(nice["ddt_stats"]["histogram"]["6"]["ref_blocks"], "2.38K");
        let exact = statistics_json(&statistics, true, false);
        assert_eq!(exact["ddt_stats"]["total"]["blocks"], "1307");
        let integers = statistics_json(&statistics, false, true);
        assert_eq!(integers["obj_count"], 1307);
        assert_eq!(
            integers["ddt_stats"]["histogram"]["6"]["logical_size"],
            409_600
        );
        assert_eq!(
            statistics_json(&none, false, false),
            json!({ "obj_count": "0", "ddt_object_stats": {} })
        );
    }
}
