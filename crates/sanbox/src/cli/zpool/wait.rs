//! `zpool wait`.

use std::time::{Duration, Instant};

use engine::{EngineError, LeafActivity, PoolHandle, PoolStatus, RebuildState, VdevStatus};

use super::activity::{LOOK_EVERY, is_active, is_discarding, is_expanding, is_removing};
use super::{Stamp, open_pool, repeat};
use crate::cli::command::{Command, Word, options};
use crate::cli::format::nice_number;
use crate::cli::{Exit, Outcome, Session};

options! {
    WaitOption {
        Scripted = short('H', "no headings, tabs between the columns"),
        Exact = short('p', "exact numbers"),
        Stamp(String) = valued('T', "d|u", "print the time before each round, as a date or in seconds since 1970"),
        Activities(String) = valued('t', "activity[,...]", "these: discard, free, initialize, replace, remove, resilver, scrub, trim, raidz_expand"),
    }
}

/// The declaration of `zpool wait`.
pub(super) const WAIT: Command = Command {
    name: "wait",
    summary: "wait until activities have ended",
    usage: "\twait [-Hp] [-T d|u] [-t <activity>[,...]] <pool> [interval]\n",
    flags: WaitOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool],
    ..Command::NEW
};

/// What is waited for, in OpenZFS's order; the title of each column is the name in capitals.
const ACTIVITIES: [&str; 9] = [
    "discard",
    "free",
    "initialize",
    "replace",
    "remove",
    "resilver",
    "scrub",
    "trim",
    "raidz_expand",
];

#[derive(Default)]
struct Options {
    scripted: bool,
    exact: bool,
    stamp: Option<Stamp>,
    /// The activities waited for.
    wanted: Vec<&'static str>,
}

impl Options {
    fn read(session: &Session, arguments: &[String]) -> Result<(Self, Vec<String>), Exit> {
        let mut options = Self::default();
        let operands = session.read_options(arguments, |session, option| {
            match option {
                WaitOption::Scripted => options.scripted = true,
                WaitOption::Exact => options.exact = true,
                WaitOption::Stamp(form) => options.stamp = Some(Stamp::of(session, &form)?),
                WaitOption::Activities(list) => options.wanted = activities(session, &list)?,
            }
            Ok(())
        })?;
        if options.wanted.is_empty() {
            options.wanted = ACTIVITIES.to_vec();
        }
        Ok((options, operands))
    }

    fn waits_for(&self, activity: &str) -> bool {
        self.wanted.contains(&activity)
    }
}

/// Reads `-t`; the columns are in the order of [`ACTIVITIES`].
fn activities(session: &Session, list: &str) -> Result<Vec<&'static str>, Exit> {
    let words: Vec<&str> = list.split(',').collect();
    if let Some(unknown) = words.iter().find(|word| !ACTIVITIES.contains(word)) {
        return Err(session.misuse(format!("invalid activity '{unknown}'")));
    }
    let wanted = ACTIVITIES.into_iter().filter(|known| words.contains(known));
    Ok(wanted.collect())
}

// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_wait
pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let (options, mut operands) = Options::read(session, arguments)?;
    let again = repeat(session, &mut operands)?;
    if again.count.is_some() {
        return Err(session.misuse("too many arguments"));
    }
    let name = match operands.as_slice() {
        [] => return Err(session.misuse("missing 'pool' argument")),
        [name] => name,
        _ => return Err(session.misuse("too many arguments")),
    };
    let pool = open_pool(session, name).await?;
    let mut rows = 0;
    let mut next_row = again.interval.map(|_| Instant::now());
    loop {
        let (status, freeing) = match look(&pool).await {
            Ok(seen) => seen,
            // A pool that is exported meanwhile is not waited for.
            Err(EngineError::PoolClosed) => return Ok(()),
            Err(error) => {
                return Err(session.fail(format!("failed to wait for '{name}': {error}")));
            }
        };
        if let (Some(due), Some(interval)) = (next_row, again.interval)
            && Instant::now() >= due
        {
            row(session, &options, &status, freeing, rows == 0);
            session.out.flush().await?;
            rows += 1;
            next_row = Some(Instant::now() + interval);
        }
        let frees = options.waits_for("free") && freeing > 0;
        if !frees && !options.wanted.iter().any(|word| is_active(&status, word)) {
            return Ok(());
        }
        if let Some(reason) = status.freeing_stopped.filter(|_| frees) {
            return Err(session.fail(format!(
                "cannot wait for '{name}' to free what was destroyed: {reason}"
            )));
        }
        let until_row = next_row.map(|due| due.saturating_duration_since(Instant::now()));
        tokio::time::sleep(until_row.unwrap_or(Duration::MAX).min(LOOK_EVERY)).await;
    }
}

/// The pool's status, and the bytes that are to be freed.
async fn look(pool: &PoolHandle) -> Result<(PoolStatus, u64), EngineError> {
    let status = pool.status().await?;
    let properties = pool.properties().await?;
    let freeing = properties.iter().find(|entry| entry.name == "freeing");
    let bytes = match freeing.map(|entry| &entry.value) {
        Some(engine::pool_property::PropertyValue::Number(bytes)) => *bytes,
        _ => 0,
    };
    Ok((status, bytes))
}

/// Prints the bytes that each activity has left, the first time with a heading.
// OpenZFS: cmd/zpool/zpool_main.c, print_wait_status_row
fn row(session: &Session, options: &Options, status: &PoolStatus, freeing: u64, first: bool) {
    options.stamp.unwrap_or(Stamp::None).print(session);
    let width = |activity: &str| activity.len().max(6) + 2;
    if first && !options.scripted {
        let titles = options
            .wanted
            .iter()
            .map(|activity| format!("{:>1$}", activity.to_uppercase(), width(activity)));
        session.out.line(titles.collect::<String>());
    }
    let mut line = String::new();
    for activity in &options.wanted {
        let bytes = remaining(activity, status, freeing);
        let text = match options.exact {
            true => bytes.to_string(),
            false => nice_number(bytes),
        };
        if !options.scripted {
            line.push_str(&format!(" {text:>0$}", width(activity) - 1));
        } else if *activity == ACTIVITIES[0] {
            line.push_str(&text);
        } else {
            // OpenZFS, too, leaves out no tab for the columns that are not shown.
            line.push_str(&format!("\t{text}"));
        }
    }
    session.out.line(line);
}

/// The bytes that an activity has left.
fn remaining(activity: &str, status: &PoolStatus, freeing: u64) -> u64 {
    match activity {
        "discard" if is_discarding(status) => status.checkpoint.map_or(0, |kept| kept.bytes),
        "free" => freeing,
        "initialize" => of_leaves(&status.root, LeafActivity::Initialize),
        "trim" => of_leaves(&status.root, LeafActivity::Trim),
        "remove" if is_removing(status) => status.removal.map_or(0, |removal| {
            removal.to_copy_bytes.saturating_sub(removal.copied_bytes)
        }),
        "scrub" => scan(status, false).unwrap_or(0),
        "raidz_expand" if is_expanding(status) => status.expansion.map_or(0, |expansion| {
            expansion
                .to_copy_bytes
                .saturating_sub(expansion.copied_bytes)
        }),
        "resilver" => resilver(status),
        // A replacement ends with the resilver.
        "replace" if stands_in(&status.root) => resilver(status),
        _ => 0,
    }
}

/// What a scan that is not paused has left.
fn scan(status: &PoolStatus, resilver: bool) -> Option<u64> {
    let scan = status.scan.as_ref()?;
    let active = scan.running && scan.paused_since == 0 && scan.resilver == resilver;
    active.then(|| scan.to_examine_bytes.saturating_sub(scan.issued_bytes))
}

fn resilver(status: &PoolStatus) -> u64 {
    let rebuilds = status.root.children.iter().filter_map(|top| top.rebuild);
    let rebuilding: u64 = rebuilds
        .filter(|rebuild| rebuild.state == RebuildState::Active)
        .map(|rebuild| {
            rebuild
                .estimated_bytes
                .saturating_sub(rebuild.rebuilt_bytes)
        })
        .sum();
    scan(status, true).unwrap_or(rebuilding)
}

fn of_leaves(vdev: &VdevStatus, what: LeafActivity) -> u64 {
    let own = match what {
        LeafActivity::Trim => vdev.trim.remaining_bytes,
        LeafActivity::Initialize => vdev.initialize.remaining_bytes,
    };
    let below = vdev.children.iter().map(|child| of_leaves(child, what));
    own + below.sum::<u64>()
}

/// Whether a device stands in for another, or replaces one.
fn stands_in(vdev: &VdevStatus) -> bool {
    matches!(vdev.kind.as_str(), "replacing" | "spare" | "dspare")
        || vdev.children.iter().any(stands_in)
}

#[cfg(test)]
mod tests {
    use engine::{LeafActivityStatus, ScanStatus};

    use super::*;

    #[test]
    fn what_is_left_is_what_openzfs_counts() {
        let scan = |resilver, paused_since| ScanStatus {
            running: true,
            resilver,
            paused_since,
            to_examine_bytes: 100,
            issued_bytes: 30,
            ..ScanStatus::default()
        };
        let leaf = |kind: &str, remaining_bytes| VdevStatus {
            kind: kind.to_owned(),
            trim: LeafActivityStatus {
                remaining_bytes,
                ..LeafActivityStatus::default()
            },
            ..VdevStatus::default()
        };
        let mut status = PoolStatus {
            scan: Some(scan(false, 0)),
            ..PoolStatus::default()
        };
        let check = |status: &PoolStatus, activity, expect| {
            assert_eq!(remaining(activity, status, 7), expect, "{activity}");
        };
        check(&status, "scrub", 70);
        check(&status, "resilver", 0);
        check(&status, "free", 7);
        check(&status, "raidz_expand", 0);
        status.scan = Some(scan(false, 12));
        check(&status, "scrub", 0);
        status.scan = Some(scan(true, 0));
        check(&status, "resilver", 70);
        check(&status, "replace", 0);
        status.root.children = vec![leaf("replacing", 5), leaf("disk", 6)];
        check(&status, "replace", 70);
        check(&status, "trim", 11);
        check(&status, "initialize", 0);
    }
}
