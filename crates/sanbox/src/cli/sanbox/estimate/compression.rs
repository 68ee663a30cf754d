//! What compression would save, by algorithm.

use std::time::{Duration, Instant};

use engine::{CompressionFigures, Trial};
use serde_json::json;

use super::dedup::ratio;
use super::{STEP, Work, percent, real, whole};
use crate::cli::format::{Column, table};
use crate::cli::{Exit, Outcome};

/// Blocks of the sample: half a GiB of records of 128 KiB.
const BLOCKS: usize = 4096;
/// How long they are read and compressed.
const TIME: Duration = Duration::from_secs(30);
/// Another algorithm is worth its time from so much less space on.
const WORTH_PERCENT: f64 = 8.0;

pub(super) async fn run(work: &Work<'_>) -> Outcome {
    let figures = look(work).await?;
    if work.json {
        let text = serde_json::to_string_pretty(&as_json(work.name, &figures));
        let text = text.map_err(|error| work.session.fail(error.to_string()))?;
        work.session.out.line(text);
    } else {
        print(work, &figures);
    }
    Ok(())
}

async fn look(work: &Work<'_>) -> Result<CompressionFigures, Exit> {
    let blocks = work.sample.unwrap_or(BLOCKS);
    let begun = work.pool.estimate_compression(work.name, blocks).await;
    let mut estimate = begun.map_err(|error| work.fail(&error))?;
    let mut pace = work.pace();
    let mut reading = None;
    loop {
        let step = work
            .pool
            .continue_compression_estimate(estimate, STEP)
            .await;
        estimate = step.map_err(|error| work.fail(&error))?;
        let progress = estimate.progress();
        if progress.done {
            break;
        }
        let time = work.time.unwrap_or(TIME);
        if progress.walked {
            let since: &Instant = reading.get_or_insert_with(Instant::now);
            if since.elapsed() >= time {
                break;
            }
        } else if work.time.is_some_and(|time| pace.elapsed() >= time) {
            estimate.end_walk();
        }
        pace.tell(&progress).await?;
    }
    Ok(estimate.figures())
}

/// Bytes before compression, divided by the ratio.
fn stored(figures: &CompressionFigures, trial: &Trial) -> f64 {
    real(figures.totals[1]) / trial.ratio
}

fn ratio_now(figures: &CompressionFigures) -> f64 {
    let [_, lsize, psize] = figures.totals;
    match (lsize, psize) {
        (0, _) => 1.0,
        _ => real(lsize) / real(psize),
    }
}

fn as_json(name: &str, f: &CompressionFigures) -> serde_json::Value {
    let [blocks, lsize, psize] = f.totals;
    let trial = |trial: &Trial| {
        json!({
            "algorithm": trial.name,
            "ratio": trial.ratio, "ratio_error": trial.ratio_error,
            "stored_bytes": whole(stored(f, trial)),
            "compress_seconds_per_gib": trial.seconds_per_gib.0,
            "decompress_seconds_per_gib": trial.seconds_per_gib.1,
        })
    };
    json!({
        "dataset": name,
        "complete": f.complete,
        "blocks": blocks, "lsize": lsize, "psize": psize,
        "ratio_now": ratio_now(f),
        "sample": { "blocks": f.sample.0, "bytes": f.sample.1 },
        "trials": f.trials.iter().map(trial).collect::<Vec<_>>(),
        "left_out": { "locked_blocks": f.locked_blocks, "lost_blocks": f.lost_blocks, "unreadable": f.unreadable },
        "advice": advice(f),
    })
}

fn print(work: &Work<'_>, f: &CompressionFigures) {
    let [blocks, lsize, psize] = f.totals;
    let line = |head: &str, text: String| work.session.out.line(format!("{head:<10}  {text}"));
    let part = if f.complete {
        ""
    } else {
        " (a part: the time was over)"
    };
    line(
        "looked at",
        format!(
            "{} blocks, {} before compression, {} stored{part}",
            work.number(real(blocks)),
            work.bytes(real(lsize)),
            work.bytes(real(psize))
        ),
    );
    line(
        "compressed",
        format!(
            "{} blocks at random, {}",
            f.sample.0,
            work.bytes(real(f.sample.1))
        ),
    );
    let head = |title| Column::right(title);
    let columns = [
        Column::left("COMPRESSION"),
        head("RATIO"),
        head("STORED"),
        head("LESS"),
        head("COMPRESS s/GiB"),
        head("DECOMPRESS s/GiB"),
    ];
    let mut rows = vec![vec![
        "(now)".to_owned(),
        ratio(ratio_now(f), 0.0),
        work.bytes(real(psize)),
        "-".to_owned(),
        "-".to_owned(),
        "-".to_owned(),
    ]];
    for trial in f.trials.iter().filter(|_| f.sample.0 > 0) {
        let stored = stored(f, trial);
        let less = real(psize) - stored;
        rows.push(vec![
            trial.name.to_owned(),
            ratio(trial.ratio, trial.ratio_error),
            work.bytes(stored),
            match less < 0.0 {
                true => format!("-{}", work.bytes(-less)),
                false => work.bytes(less),
            },
            format!("{:.2}", trial.seconds_per_gib.0),
            format!("{:.2}", trial.seconds_per_gib.1),
        ]);
    }
    work.session.out.text(table(&columns, &rows, false));
    if f.locked_blocks > 0 {
        let text = "blocks of the sample are encrypted, and their key is not loaded: left out";
        line("locked", format!("{} {text}", f.locked_blocks));
    }
    let lost = f.lost_blocks + f.unreadable;
    if lost > 0 {
        let text = "blocks are damaged or were freed meanwhile: left out";
        line("lost", format!("{lost} {text}"));
    }
    line("advice", advice(f));
}

fn advice(f: &CompressionFigures) -> String {
    let by_name = |name: &str| f.trials.iter().find(|trial| trial.name == name);
    let (Some(lz4), Some(zstd)) = (by_name("lz4"), by_name("zstd-3")) else {
        return String::new();
    };
    if f.sample.0 == 0 {
        return "there is nothing that could be compressed".to_owned();
    }
    let (now, light, strong) = (real(f.totals[2]), stored(f, lz4), stored(f, zstd));
    if light.min(strong) > 0.97 * real(f.totals[1]) {
        return "the data cannot be compressed, as media, archives and encrypted files cannot; compression=lz4 does no harm, for blocks that \
                do not get smaller are stored as they are"
            .to_owned();
    }
    let better = percent(light - strong, light);
    let (name, best) = match better >= WORTH_PERCENT {
        true => ("zstd-3", strong),
        false => ("lz4", light),
    };
    let gained = percent(now - best, now);
    if gained < WORTH_PERCENT {
        return "stay with what is set: nothing here saves much more".to_owned();
    }
    let why = match name {
        "lz4" => format!(
            "compression=lz4 saves {gained:.0}% of what is stored, for hardly any time; zstd-3 saves {better:.0}% more"
        ),
        _ => format!(
            "compression=zstd-3 saves {gained:.0}% of what is stored ({better:.0}% less than lz4 takes)"
        ),
    };
    format!(
        "{why}; what is there already becomes smaller when it is written anew ('zfs rewrite -r')"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(psize: u64, lz4: f64, zstd: f64) -> CompressionFigures {
        let trial = |name, ratio| Trial {
            name,
            ratio,
            ..Trial::default()
        };
        CompressionFigures {
            totals: [1000, 128_000_000, psize],
            sample: (100, 12_800_000),
            trials: vec![trial("lz4", lz4), trial("zstd-3", zstd)],
            ..CompressionFigures::default()
        }
    }

    #[test]
    fn advice_is_for_what_saves_space() {
        let starts = |f: CompressionFigures, text: &str| {
            let said = advice(&f);
            assert!(said.starts_with(text), "{said}");
        };
        starts(figures(128_000_000, 2.0, 2.05), "compression=lz4 saves 50%");
        starts(
            figures(128_000_000, 2.0, 3.0),
            "compression=zstd-3 saves 67%",
        );
        starts(
            figures(128_000_000, 1.0, 1.01),
            "the data cannot be compressed",
        );
        starts(figures(64_000_000, 2.0, 2.05), "stay with what is set");
        let none = CompressionFigures {
            sample: (0, 0),
            ..figures(0, 1.0, 1.0)
        };
        starts(none, "there is nothing");
    }
}
