//! `zpool scrub`, `resilver`, `clear` and `wait`.

use std::time::Duration;

use engine::{EngineError, Health, PoolError, PoolHandle};
use jiff::ToSpan as _;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;

use super::activity::{finish_here, is_scrubbing, vdev_guid, wait_for};
use super::{Subject, subject, subjects, unavailable};
use crate::cli::command::{Command, Word, options};
use crate::cli::{Exit, Outcome, Session};

options! {
    ClearOption {
        Rewind = short('F', "go back to an earlier state: refused, 'zpool import -F' does it"),
        DryRun = short('n', "with -F, only say whether that is possible"),
        Extreme = short('X', "with -F, however far"),
        Power = long("power", None, "refused: sanbox cannot switch the power of disk slots"),
    }
}

/// The declaration of `zpool clear`.
pub(super) const CLEAR: Command = Command {
    name: "clear",
    summary: "clear errors of devices, and resume a suspended pool",
    usage: "\tclear [[--power]|[-nF]] <pool> [device]\n",
    flags: ClearOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool, Word::Device],
    ..Command::NEW
};

/// The declaration of `zpool resilver`.
pub(super) const RESILVER: Command = Command {
    name: "resilver",
    summary: "begin the resilver of pools again",
    usage: "\tresilver <pool> ...\n",
    says_missing: false,
    words: &[Word::Pool],
    ..Command::NEW
};

options! {
    ScrubOption {
        Stop = short('s', "stop it"),
        Pause = short('p', "pause it"),
        Wait = short('w', "wait until it is done"),
        Errors = short('e', "only blocks that are known to be damaged"),
        GoOn = short('C', "begin at the txg where the last scrub ended"),
        Since(String) = valued('S', "date", "only what was written from this date on"),
        Until(String) = valued('E', "date", "only what was written until this date"),
    }
}

/// The declaration of `zpool scrub`.
pub(super) const SCRUB: Command = Command {
    name: "scrub",
    summary: "read and repair everything",
    usage: "\tscrub [-e | -s | -p | -C | [-S date] [-E date]] [-w] <pool> ...\n",
    flags: ScrubOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool],
    examples: &[
        (
            "zpool scrub tank",
            "read every copy of everything, repair what is bad",
        ),
        (
            "zpool scrub -p tank",
            "pause it; 'zpool scrub tank' goes on",
        ),
        (
            "zpool scrub -S 2026-11-01 -E '2026-11-20 12:00' tank",
            "only what was written from the one to the other, which is known to ten minutes for the last day, to a day before",
        ),
    ],
    ..Command::NEW
};

/// What `zpool scrub` is asked to do.
#[derive(Default)]
struct Scrub {
    stop: bool,
    pause: bool,
    wait: bool,
    errors: bool,
    go_on: bool,
    /// Seconds since 1970.
    since: Option<u64>,
    until: Option<u64>,
}

impl Scrub {
    // OpenZFS: cmd/zpool/zpool_main.c, zpool_do_scrub (words)
    fn read(session: &Session, arguments: &[String]) -> Result<(Self, Vec<String>), Exit> {
        let mut wanted = Self::default();
        let names = session.read_options(arguments, |session, option| {
            match option {
                ScrubOption::Stop => wanted.stop = true,
                ScrubOption::Pause => wanted.pause = true,
                ScrubOption::Wait => wanted.wait = true,
                ScrubOption::Errors => wanted.errors = true,
                ScrubOption::GoOn => wanted.go_on = true,
                ScrubOption::Since(date) => wanted.since = Some(seconds(session, &date, false)?),
                ScrubOption::Until(date) => wanted.until = Some(seconds(session, &date, true)?),
            }
            Ok(())
        })?;
        let wrong = |why: String| session.misuse(format!("invalid option combination: {why}"));
        for (both, letters) in [
            (wanted.pause && wanted.stop, "-s and -p"),
            (wanted.errors && wanted.pause, "-e and -p"),
            (wanted.errors && wanted.stop, "-e and -s"),
            (wanted.errors && wanted.go_on, "-e and -C"),
            (wanted.pause && wanted.go_on, "-p and -C"),
            (wanted.stop && wanted.go_on, "-s and -C"),
        ] {
            if both {
                return Err(wrong(format!("{letters} are mutually exclusive")));
            }
        }
        let dated = wanted.since.is_some() || wanted.until.is_some();
        if dated && wanted.go_on {
            return Err(wrong("-C and -S/-E are mutually exclusive".to_owned()));
        }
        if dated && (wanted.errors || wanted.stop || wanted.pause) {
            return Err(wrong(
                "start/end date is available only with normal scrub".to_owned(),
            ));
        }
        if let (Some(since), Some(until)) = (wanted.since, wanted.until)
            && since >= until
        {
            return Err(
                session.misuse("invalid arguments: end date has to be later than start date")
            );
        }
        if wanted.wait && (wanted.stop || wanted.pause) {
            return Err(wrong("-w cannot be used with -p or -s".to_owned()));
        }
        if names.is_empty() {
            return Err(session.misuse("missing pool name argument"));
        }
        Ok((wanted, names))
    }

    /// Does it to one pool; returns how that went, and the words for it.
    async fn apply(&self, pool: &PoolHandle) -> (Result<(), EngineError>, &'static str) {
        if self.stop {
            (pool.cancel_scrub().await, "cancel scrubbing")
        } else if self.pause {
            (pool.pause_scrub().await, "pause scrubbing")
        } else if self.errors {
            (pool.scrub_errors().await.map(drop), "scrub")
        } else if self.go_on {
            (pool.start_scrub_of_new().await, "scrub")
        } else if self.since.is_some() || self.until.is_some() {
            let started = pool.start_scrub_of_time(self.since, self.until);
            (started.await, "scrub")
        } else {
            (pool.start_scrub().await, "scrub")
        }
    }
}

/// Reads a date in the machine's zone, as seconds since 1970: `YYYY-MM-DD`, or with ` HH:MM`; with `end` its last second's end.
// OpenZFS: cmd/zpool/zpool_main.c, date_string_to_sec (forms, words)
fn seconds(session: &Session, text: &str, end: bool) -> Result<u64, Exit> {
    let minute = DateTime::strptime("%Y-%m-%d %H:%M", text).map(|time| (time, 1.minute()));
    let day = || Date::strptime("%Y-%m-%d", text).map(|day| (day.into(), 1.day()));
    let read = minute.or_else(|_| day()).and_then(|(begin, length)| {
        let at = if end {
            begin.checked_add(length)?
        } else {
            begin
        };
        Ok(at.to_zoned(TimeZone::system())?.timestamp().as_second())
    });
    let seconds = read.ok().and_then(|seconds| u64::try_from(seconds).ok());
    seconds.ok_or_else(|| session.misuse("Failed to parse the date."))
}

// OpenZFS: cmd/zpool/zpool_main.c, scrub_callback; lib/libzfs, zpool_scan (words)
pub(super) async fn scrub(session: &Session, arguments: &[String]) -> Outcome {
    let (wanted, names) = Scrub::read(session, arguments)?;
    let (pools, mut failed) = subjects(session, &names).await;
    let mut started = Vec::new();
    for subject in &pools {
        let pool = match subject {
            Subject::Open(pool) => pool,
            Subject::Closed(cached, _) => {
                session.out.error(format!(
                    "cannot scan '{}': pool is currently unavailable",
                    cached.name
                ));
                failed = true;
                continue;
            }
        };
        let (outcome, verb) = wanted.apply(pool).await;
        if outcome.is_ok() {
            session.record(pool).await;
        }
        match outcome {
            Ok(()) if !wanted.stop && !wanted.pause => {
                if pool.status().await.is_ok_and(|s| s.checkpoint.is_some()) {
                    session.out.line(format!(
                        "warning: will not scrub state that belongs to the checkpoint of pool '{}'",
                        pool.name()
                    ));
                }
                started.push(pool.clone());
            }
            Ok(()) => {}
            Err(error) => {
                session
                    .out
                    .error(format!("cannot {verb} {}: {error}", pool.name()));
                failed = true;
            }
        }
    }
    for pool in &started {
        if wanted.wait {
            wait_for(session, pool, is_scrubbing).await?;
        } else {
            finish_here(session, pool).await?;
        }
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

pub(super) async fn resilver(session: &Session, arguments: &[String]) -> Outcome {
    let names = session.operands(arguments)?;
    if names.is_empty() {
        return Err(session.misuse("missing pool name argument"));
    }
    let (pools, mut failed) = subjects(session, &names).await;
    for subject in &pools {
        let Some(pool) = subject.open(session) else {
            failed = true;
            continue;
        };
        let feature = pool.properties().await.unwrap_or_default();
        let deferred = feature.iter().any(|entry| {
            entry.name == "feature@resilver_defer"
                && entry.value != engine::pool_property::PropertyValue::Text("disabled".into())
        });
        let outcome = if deferred {
            pool.restart_resilver().await.map_err(|e| e.to_string())
        } else {
            Err("this action requires the resilver_defer feature".to_owned())
        };
        match outcome {
            Ok(()) => {
                session.record(pool).await;
                finish_here(session, pool).await?;
            }
            Err(error) => {
                session.out.error(format!(
                    "cannot restart resilver on {}: {error}",
                    pool.name()
                ));
                failed = true;
            }
        }
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

pub(super) async fn clear(session: &Session, arguments: &[String]) -> Outcome {
    let (mut dry_run, mut rewind, mut extreme) = (false, false, false);
    let operands = session.read_options(arguments, |session, option| {
        match option {
            ClearOption::DryRun => dry_run = true,
            ClearOption::Rewind => rewind = true,
            ClearOption::Extreme => extreme = true,
            ClearOption::Power => {
                return Err(session.fail("zpool clear --power: disk slots cannot be powered"));
            }
        }
        Ok(())
    })?;
    // OpenZFS: cmd/zpool/zpool_main.c, zpool_do_clear (words)
    if (dry_run || extreme) && !rewind {
        return Err(session.misuse("-n or -X only meaningful with -F"));
    }
    let Some((name, devices)) = operands.split_first() else {
        return Err(session.misuse("missing pool name"));
    };
    if devices.len() > 1 {
        return Err(session.misuse("too many arguments"));
    }
    let pool = match subject(session, name).await? {
        Subject::Open(pool) => pool,
        Subject::Closed(cached, error) => {
            session.out.error(unavailable(&cached.name, &error));
            if rewind {
                session.out.error(format!(
                    "zpool clear -F: an earlier state is recovered by 'zpool export {name}' and 'zpool import -F {name}'"
                ));
            }
            return Err(Exit(1));
        }
    };
    let vdev = match devices.first() {
        None => None,
        Some(device) => {
            let found = vdev_guid(&pool, device).await?;
            if found.is_none() {
                return Err(session.fail(format!(
                    "cannot clear errors for {device}: no such device in pool"
                )));
            }
            found
        }
    };
    if dry_run {
        return Ok(());
    }
    match resume(session, pool, vdev).await {
        Ok(pool) => {
            session.record(&pool).await;
            finish_here(session, &pool).await
        }
        Err(error) => Err(session.fail(format!(
            "cannot clear errors for {}: {error}",
            devices.first().unwrap_or(name)
        ))),
    }
}

/// How long a pool that was resumed may take to write what waited.
const RESUME_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until everything is written.
async fn written(pool: &PoolHandle) -> Result<(), EngineError> {
    let written = tokio::time::timeout(RESUME_TIMEOUT, pool.sync()).await;
    written.unwrap_or(Err(EngineError::Pool(PoolError::Suspended)))
}

/// Clears errors, and sees to it that a pool that was suspended is written again: one whose device lost what it had taken is opened anew.
async fn resume(
    session: &Session,
    pool: PoolHandle,
    vdev: Option<u64>,
) -> Result<PoolHandle, EngineError> {
    let suspended = pool.status().await?.health == Health::Suspended;
    let mut outcome = pool.clear(vdev).await;
    if outcome.is_ok() && suspended {
        outcome = written(&pool).await;
    }
    if !matches!(outcome, Err(EngineError::Pool(PoolError::Suspended))) {
        return outcome.map(|()| pool);
    }
    let status = pool.status().await?;
    let mut tops = status.root.children.iter().filter(|top| !top.is_log);
    if let Some(top) = tops.find(|top| !matches!(top.health, Health::Online | Health::Degraded)) {
        return Err(EngineError::Dataset(format!(
            "'{}' cannot be used yet ({}); attach its devices again, then run 'zpool clear {}'",
            top.name,
            top.health.as_str(),
            pool.name()
        )));
    }
    let pool = session.appliance.open_again(&pool).await?;
    written(&pool).await?;
    session.out.error(format!(
        "note: a device of '{}' had lost what it took before it failed, so that the pool was opened anew: everything that was synced or \
         acknowledged as stable is there, what was not is as after a power cut",
        pool.name()
    ));
    Ok(pool)
}
