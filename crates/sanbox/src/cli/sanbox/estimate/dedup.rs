//! What deduplication would save, and what its table would cost.

use std::time::{Duration, Instant};

use engine::DedupFigures;
use serde_json::json;

use super::{STEP, Work, percent, real, whole};
use crate::cli::{Exit, Outcome};

/// Rows of the sample: an error of the ratio below 1 %, in some 30 MB.
const ROWS: usize = 1 << 18;
/// How long blocks are read that seem to be equal.
const COMPARE_FOR: Duration = Duration::from_secs(10);
/// Bytes of an entry of a table of the fast form on disk, with all copies: a little more than a table of 76,800 entries took
/// (docs/measurements/2026-11-28-estimates.md).
const ENTRY_DISK_BYTES: f64 = 240.0;
/// The same in memory.
const ENTRY_MEMORY_BYTES: f64 = 160.0;

/// What the figures come to.
struct Verdict {
    figures: DedupFigures,
    /// Space that would be saved beyond what is shared already.
    saved: f64,
    table_memory: f64,
    table_disk: f64,
    advice: String,
}

pub(super) async fn run(work: &Work<'_>) -> Outcome {
    let figures = look(work).await?;
    let cache = work.pool.cache_size().await;
    let (_, limit) = cache.map_err(|error| work.fail(&error))?;
    let verdict = Verdict::of(figures, limit);
    if work.json {
        let text = serde_json::to_string_pretty(&verdict.json(work.name));
        let text = text.map_err(|error| work.session.fail(error.to_string()))?;
        work.session.out.line(text);
    } else {
        print(work, &verdict);
    }
    Ok(())
}

async fn look(work: &Work<'_>) -> Result<DedupFigures, Exit> {
    let rows = work.sample.unwrap_or(ROWS);
    let begun = work.pool.estimate_dedup(work.name, rows).await;
    let mut estimate = begun.map_err(|error| work.fail(&error))?;
    let mut pace = work.pace();
    let mut comparing = None;
    loop {
        let step = work.pool.continue_dedup_estimate(estimate, STEP).await;
        estimate = step.map_err(|error| work.fail(&error))?;
        let progress = estimate.progress();
        if progress.done {
            break;
        }
        if progress.walked {
            let since: &Instant = comparing.get_or_insert_with(Instant::now);
            if since.elapsed() >= COMPARE_FOR {
                break;
            }
        } else if work.time.is_some_and(|time| pace.elapsed() >= time) {
            estimate.end_walk();
        }
        pace.tell(&progress).await?;
    }
    Ok(estimate.figures())
}

impl Verdict {
    fn of(figures: DedupFigures, cache_limit: u64) -> Self {
        let space = real(figures.totals[3]);
        let saved = (space - figures.distinct_bytes - figures.shared_bytes).max(0.0);
        let table_memory = figures.distinct_blocks * ENTRY_MEMORY_BYTES;
        let table_disk = figures.distinct_blocks * ENTRY_DISK_BYTES;
        let share = percent(saved, space);
        let fits = table_memory <= real(cache_limit) / 4.0;
        let advice = if figures.totals[0] == 0 {
            "there is nothing to be deduplicated"
        } else if share < 5.0 {
            "not worth it: every write and every free would look into the table, for next to nothing; compression is the better way"
        } else if !fits {
            "only with much more memory, or a special or dedup vdev on flash: the table takes more than a quarter of the cache, and writes \
             and frees wait for the disks whenever an entry is not in memory"
        } else if share < 25.0 {
            "hardly: this much is often saved by compression or by clones ('cp --reflink', 'zfs clone') that cost nothing afterwards; consider \
             it for the datasets alone whose ratio is high"
        } else {
            "worth it: the table fits the memory; turn it on for these datasets alone, for it costs every write and every free"
        };
        Self {
            saved,
            table_memory,
            table_disk,
            advice: advice.to_owned(),
            figures,
        }
    }

    fn json(&self, name: &str) -> serde_json::Value {
        let f = &self.figures;
        let [blocks, lsize, psize, dsize] = f.totals;
        let rows = f.rows.iter().enumerate().filter(|(_, row)| row[0] > 0);
        let row = |(log2, row): (usize, &[u64; 8])| {
            json!({
                "references": 1_u64 << log2.min(63),
                "blocks": row[0], "lsize": row[1], "psize": row[2], "dsize": row[3],
                "referenced_blocks": row[4], "referenced_lsize": row[5], "referenced_psize": row[6], "referenced_dsize": row[7],
            })
        };
        json!({
            "dataset": name,
            "complete": f.complete,
            "blocks": blocks, "lsize": lsize, "psize": psize, "dsize": dsize,
            "distinct_blocks": whole(f.distinct_blocks),
            "distinct_dsize": whole(f.distinct_bytes),
            "ratio": f.ratio, "ratio_error": f.ratio_error,
            "shared_bytes": whole(f.shared_bytes),
            "saved_bytes": whole(self.saved),
            "sample": { "blocks": f.sample.0, "share": f.sample.1 },
            "table": {
                "entries": whole(f.distinct_blocks),
                "memory_bytes": whole(self.table_memory),
                "disk_bytes": whole(self.table_disk),
            },
            "weak_checksums": { "blocks": f.weak_blocks, "pairs_compared": f.pairs.0, "pairs_different": f.pairs.1 },
            "left_out": { "encrypted_bytes": f.encrypted_bytes, "unchecked_bytes": f.unchecked_bytes, "unreadable": f.unreadable },
            "histogram": rows.map(row).collect::<Vec<_>>(),
            "advice": self.advice,
        })
    }
}

fn print(work: &Work<'_>, verdict: &Verdict) {
    let f = &verdict.figures;
    let [blocks, _, _, dsize] = f.totals;
    let line = |head: &str, text: String| work.session.out.line(format!("{head:<12}  {text}"));
    let bytes = |bytes: u64| work.bytes(real(bytes));
    let part = if f.complete {
        ""
    } else {
        " (a part: the time was over)"
    };
    line(
        "looked at",
        format!(
            "{} blocks in {}{part}",
            work.number(real(blocks)),
            bytes(dsize)
        ),
    );
    line("dedupratio", ratio(f.ratio, f.ratio_error));
    let doubles = percent(real(blocks) - f.distinct_blocks, real(blocks));
    line("doubles", format!("{doubles:.1}% of the blocks"));
    let mut saved = format!(
        "{} ({:.1}%)",
        work.bytes(verdict.saved),
        percent(verdict.saved, real(dsize))
    );
    if f.shared_bytes >= 1.0 {
        let shared = work.bytes(f.shared_bytes);
        saved.push_str(&format!(
            "; {shared} are shared already, by clones or deduplication"
        ));
    }
    line("saved", saved);
    line(
        "table",
        format!(
            "{} entries: {} of memory, {} on disk",
            work.number(f.distinct_blocks),
            work.bytes(verdict.table_memory),
            work.bytes(verdict.table_disk)
        ),
    );
    line("counted", counted(work, f));
    if f.weak_blocks > 0 {
        line("compared", compared(f));
    }
    if f.encrypted_bytes > 0 {
        let text = "are encrypted, where equal blocks look different: left out";
        line("encrypted", format!("{} {text}", bytes(f.encrypted_bytes)));
    }
    if f.unchecked_bytes > 0 {
        let text = "have no checksum: left out";
        line("unchecked", format!("{} {text}", bytes(f.unchecked_bytes)));
    }
    if f.unreadable > 0 {
        let text = "pointers lead to blocks that cannot be read: what is below is left out";
        line("damaged", format!("{} {text}", f.unreadable));
    }
    line("advice", verdict.advice.clone());
}

/// A ratio with its error.
pub(super) fn ratio(ratio: f64, error: f64) -> String {
    if ratio.is_infinite() {
        return "-".to_owned();
    }
    if error == 0.0 {
        return format!("{ratio:.2}x");
    }
    let digits = if error < 0.01 { 3 } else { 2 };
    format!("{ratio:.digits$}x +- {error:.digits$}")
}

fn counted(work: &Work<'_>, f: &DedupFigures) -> String {
    let (rows, share) = f.sample;
    if share >= 1.0 {
        return "all of them".to_owned();
    }
    format!(
        "a sample of {} contents, one in {:.0}",
        work.number(real(rows)),
        1.0 / share
    )
}

fn compared(f: &DedupFigures) -> String {
    let (pairs, different) = f.pairs;
    match (pairs, different) {
        (0, _) => "nothing: no two blocks have the same checksum".to_owned(),
        (_, 0) => format!("{pairs} pairs with the same fletcher checksum were read: all are equal"),
        _ => format!(
            "{different} of {pairs} pairs with the same fletcher checksum differ: the ratio is that much too high"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(space: u64, distinct: f64, blocks: f64) -> DedupFigures {
        DedupFigures {
            totals: [space >> 17, space, space, space],
            distinct_bytes: distinct,
            distinct_blocks: blocks,
            ..DedupFigures::default()
        }
    }

    #[test]
    fn advice_weighs_what_is_saved_and_what_the_table_takes() {
        let advice = |space, distinct, blocks, cache| {
            let verdict = Verdict::of(figures(space, distinct, blocks), cache);
            verdict.advice.split(':').next().unwrap_or("").to_owned()
        };
        let tib = 1_u64 << 40;
        let half = real(tib) / 2.0;
        assert_eq!(advice(tib, half, 4e6, 16 << 30), "worth it");
        assert!(advice(tib, half, 4e8, 16 << 30).starts_with("only with much more memory"));
        assert_eq!(advice(tib, real(tib) * 0.99, 8e6, 16 << 30), "not worth it");
        assert_eq!(advice(tib, real(tib) * 0.9, 8e6, 64 << 30), "hardly");
        assert!(advice(0, 0.0, 0.0, 64 << 30).starts_with("there is nothing"));
    }

    #[test]
    fn what_is_shared_already_is_not_saved_again() {
        let mut f = figures(100 << 20, 40e6, 100.0);
        f.shared_bytes = 20e6;
        let verdict = Verdict::of(f, 1 << 30);
        assert_eq!(whole(verdict.saved), (100 << 20) - 60_000_000);
    }

    #[test]
    fn ratios_are_told_with_as_many_digits_as_the_error_allows() {
        assert_eq!(ratio(1.5, 0.0), "1.50x");
        assert_eq!(ratio(1.234_56, 0.004_4), "1.235x +- 0.004");
        assert_eq!(ratio(12.34, 0.123), "12.34x +- 0.12");
    }
}
