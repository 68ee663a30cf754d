//! `zpool iostat`: capacity, operations and bandwidth, since the import at first and of each
//! interval after it.

use std::collections::BTreeMap;
use std::time::Instant;

use engine::{IoTotals, PoolStatus, VdevStatus};

use super::{
    NameStyle, Stamp, Subject, has_space, name_width, repeat, sections, subject, subjects,
};
use crate::cli::format::{nice_number, nice_time};
use crate::cli::getopt::Opt;
use crate::cli::{Exit, Outcome, Session};

#[derive(Clone, Copy, Default)]
struct Options {
    scripted: bool,
    exact: bool,
    verbose: bool,
    latency: bool,
    skip_first: bool,
    header_once: bool,
    style: NameStyle,
}

/// What was counted when it was last shown, by pool guid and vdev guid.
type Before = BTreeMap<(u64, u64), IoTotals>;

pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let mut options = Options::default();
    let mut stamp = Stamp::None;
    let mut operands =
        session.options(arguments, "c:gLPT:vyhplqrwnH", &[], |session, option| {
            match option {
                Opt::Short('g', _) => options.style.guid = true,
                Opt::Short('L', _) => options.style.real_path = true,
                Opt::Short('P', _) => options.style.full_path = true,
                Opt::Short('T', Some(form)) => stamp = Stamp::of(session, &form)?,
                Opt::Short('v', _) => options.verbose = true,
                Opt::Short('p', _) => options.exact = true,
                Opt::Short('l', _) => options.latency = true,
                Opt::Short('H', _) => options.scripted = true,
                Opt::Short('y', _) => options.skip_first = true,
                Opt::Short('n', _) => options.header_once = true,
                Opt::Short('h', _) => {
                    return Err(session.misuse(""));
                }
                Opt::Short(letter, _) => {
                    return Err(session.fail(format!(
                        "zpool iostat -{letter}: not supported by this version of sanbox yet"
                    )));
                }
                Opt::Long(..) => {}
            }
            Ok(())
        })?;
    let again = repeat(session, &mut operands)?;
    for name in &operands {
        subject(session, name).await?;
    }
    let mut before = Before::new();
    let mut shown_at: Option<Instant> = None;
    let mut rounds: u64 = 0;
    loop {
        let (pools, missing) = subjects(session, &operands).await;
        if missing {
            return Err(Exit(1));
        }
        let mut statuses = Vec::new();
        for pool in &pools {
            if let Subject::Open(pool) = pool
                && let Ok(status) = pool.status().await
            {
                statuses.push(status);
            }
        }
        if statuses.is_empty() && operands.is_empty() {
            session.out.error("no pools available");
            return Ok(());
        }
        let elapsed = shown_at.map(|time| time.elapsed().as_secs_f64());
        let quiet = rounds == 0 && options.skip_first && again.interval.is_some();
        if !quiet {
            stamp.print(session);
            print(session, &statuses, &before, elapsed, options, rounds);
        }
        before.clear();
        for status in &statuses {
            remember(&status.root, status.guid, &mut before);
        }
        shown_at = Some(Instant::now());
        rounds += 1;
        let Some(interval) = again.interval else {
            return Ok(());
        };
        if again.count.is_some_and(|count| rounds >= count) {
            return Ok(());
        }
        session.out.flush().await?;
        tokio::time::sleep(interval).await;
    }
}

fn remember(vdev: &VdevStatus, pool: u64, before: &mut Before) {
    before.insert((pool, vdev.guid), vdev.io);
    for child in &vdev.children {
        remember(child, pool, before);
    }
}

fn print(
    session: &Session,
    pools: &[PoolStatus],
    before: &Before,
    elapsed: Option<f64>,
    options: Options,
    rounds: u64,
) {
    let width = pools
        .iter()
        .map(|pool| {
            if options.verbose {
                name_width(&pool.root, options.style)
            } else {
                pool.name.len()
            }
        })
        .fold(10, usize::max);
    let columns = if options.latency { 8 } else { 6 };
    let dashes = || {
        let mut line = "-".repeat(width);
        for _ in 0..columns {
            line.push_str("  -----");
        }
        line
    };
    if !options.scripted
        && (rounds == 0 || !options.header_once && (options.verbose || rounds.is_multiple_of(20)))
    {
        let mut top = format!("{:width$}", "");
        let mut groups = vec!["capacity", "operations", "bandwidth"];
        if options.latency {
            groups.push("total_wait");
        }
        for group in groups {
            let right = (12 - group.len()) / 2;
            let left = 12 - group.len() - right;
            top.push_str(&format!("  {:left$}{group}{:right$}", "", ""));
        }
        session.out.line(top);
        let mut bottom = format!("{:<width$}", "pool");
        for title in [
            "alloc", "free", "read", "write", "read", "write", "read", "write",
        ]
        .iter()
        .take(columns)
        {
            bottom.push_str(&format!("  {title:>5}"));
        }
        session.out.line(bottom);
        session.out.line(dashes());
    }
    for pool in pools {
        // The first report covers the whole time since the pool was opened.
        #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
        let seconds = elapsed.unwrap_or(pool.open_nanoseconds as f64 / 1e9);
        line(
            session, &pool.root, &pool.name, 0, width, pool.guid, before, seconds, options,
        );
        if options.verbose {
            for (title, tops) in sections(&pool.root) {
                if let Some(title) = title.filter(|_| !options.scripted) {
                    session
                        .out
                        .line(format!("{title:-<width$}{}", &dashes()[width..]));
                }
                for top in tops {
                    tree(session, top, 2, width, pool.guid, before, seconds, options);
                }
            }
            if !options.scripted {
                session.out.line(dashes());
            }
        }
    }
    if !options.scripted && !options.verbose && pools.len() > 1 {
        session.out.line(dashes());
    }
}

#[allow(clippy::too_many_arguments, reason = "one line's worth of facts")]
fn tree(
    session: &Session,
    vdev: &VdevStatus,
    depth: usize,
    width: usize,
    pool: u64,
    before: &Before,
    elapsed: f64,
    options: Options,
) {
    let name = options.style.name(vdev);
    line(
        session, vdev, &name, depth, width, pool, before, elapsed, options,
    );
    for child in &vdev.children {
        tree(
            session,
            child,
            depth + 2,
            width,
            pool,
            before,
            elapsed,
            options,
        );
    }
}

#[allow(clippy::too_many_arguments, reason = "one line's worth of facts")]
fn line(
    session: &Session,
    vdev: &VdevStatus,
    name: &str,
    depth: usize,
    width: usize,
    pool: u64,
    before: &Before,
    elapsed: f64,
    options: Options,
) {
    let number = |value: u64| {
        if options.exact {
            value.to_string()
        } else {
            nice_number(value)
        }
    };
    let old = before.get(&(pool, vdev.guid)).copied().unwrap_or_default();
    let seconds = elapsed.max(0.001);
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate for people"
    )]
    let rate = |now: u64, then: u64| (now.saturating_sub(then) as f64 / seconds) as u64;
    let mut cells = if !has_space(vdev) {
        let none = if options.exact { "0" } else { "-" };
        vec![none.to_owned(), none.to_owned()]
    } else {
        vec![
            number(vdev.allocated_bytes),
            number(vdev.size_bytes.saturating_sub(vdev.allocated_bytes)),
        ]
    };
    cells.push(number(rate(vdev.io.read_ops, old.read_ops)));
    cells.push(number(rate(vdev.io.write_ops, old.write_ops)));
    cells.push(number(rate(vdev.io.read_bytes, old.read_bytes)));
    cells.push(number(rate(vdev.io.write_bytes, old.write_bytes)));
    if options.latency {
        let mean = |time: u64, then: u64, ops: u64, ops_then: u64| {
            let mean = time
                .saturating_sub(then)
                .checked_div(ops.saturating_sub(ops_then))
                .unwrap_or(0);
            if options.exact {
                mean.to_string()
            } else {
                nice_time(mean)
            }
        };
        let io = vdev.io;
        cells.push(mean(
            io.read_nanoseconds,
            old.read_nanoseconds,
            io.read_ops,
            old.read_ops,
        ));
        cells.push(mean(
            io.write_nanoseconds,
            old.write_nanoseconds,
            io.write_ops,
            old.write_ops,
        ));
    }
    if options.scripted {
        session.out.line(format!("{name}\t{}", cells.join("\t")));
        return;
    }
    let rest = width.saturating_sub(depth);
    let mut text = format!("{:depth$}{name:<rest$}", "");
    for cell in cells {
        text.push_str(&format!("  {cell:>5}"));
    }
    session.out.line(text);
}
