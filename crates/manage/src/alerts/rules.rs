//! What is not as it should be, from what pools, disks, jobs and the machine tell of themselves: each with what it means for the data and
//! the next step. A cause that shows in several places is one condition: a disk that is gone is not one more where its pool is degraded.

use engine::{Health, PoolStatus, VdevStatus};

use super::{Condition, Severity};
use crate::acme::AcmeFailure;
use crate::history::sample::PoolSpan;
use crate::replication::{Job, ReplicationError, RestoreReport};

/// Percent of a pool at which it is almost full, and full.
const CAPACITY_WARNING: u64 = 80;
const CAPACITY_CRITICAL: u64 = 95;
/// Seconds within which a pool that goes on to grow as it did would be full.
const FORECAST_SECONDS: u64 = 14 * 86_400;
/// Seconds after which a pool should be scrubbed again.
const SCRUB_SECONDS: u64 = 35 * 86_400;
/// Seconds before its end at which a certificate should be replaced.
const CERTIFICATE_SECONDS: u64 = 21 * 86_400;
/// Seconds after which replication that fails, and may go on by itself, is told of.
const REPLICATION_SECONDS: u64 = 900;
/// Seconds for which a snapshot may be due: policies are looked at each 15 s, and a pool that is slow takes its time.
const SCHEDULE_SECONDS: u64 = 600;
/// Seconds that every copy may be old.
const LAG_SECONDS: u64 = 600;
/// Free bytes at which a disk has room for the state directory, however large it is.
const STATE_BYTES: u64 = 256 << 20;
/// Seconds after which the settings should be exported again.
const EXPORT_SECONDS: u64 = 30 * 86_400;
/// Percent of the memory ceiling that the process should stay below.
const MEMORY_PERCENT: u64 = 97;

fn condition(
    key: String,
    severity: Severity,
    subject: &str,
    [fact, effect, next_step]: [String; 3],
) -> Condition {
    Condition {
        key,
        severity,
        subject: subject.to_owned(),
        fact,
        effect,
        next_step,
    }
}

fn leaves<'a>(vdev: &'a VdevStatus, found: &mut Vec<&'a VdevStatus>) {
    if vdev.children.is_empty() {
        found.push(vdev);
    }
    for child in &vdev.children {
        leaves(child, found);
    }
}

fn names(vdevs: &[&VdevStatus]) -> String {
    let mut names: Vec<&str> = vdevs.iter().map(|vdev| vdev.name.as_str()).collect();
    let more = names.len().saturating_sub(5);
    names.truncate(5);
    let mut text = names.join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

/// A pool that is known as imported and is not open.
#[must_use]
pub fn closed_pool(name: &str) -> Condition {
    condition(
        format!("pool/{name}/health"),
        Severity::Critical,
        name,
        [
            format!("Pool '{name}' is not open."),
            "Its data cannot be reached, and nothing of it is shared.".to_owned(),
            format!(
                "'zpool status {name}' says why: most often a disk is missing. What is on the disks is not touched."
            ),
        ],
    )
}

/// A pool that does not answer.
#[must_use]
pub fn hung_pool(name: &str, seconds: u64) -> Condition {
    condition(
        format!("pool/{name}/health"),
        Severity::Critical,
        name,
        [
            format!("Pool '{name}' has not answered for {seconds} s: one of its disks hangs."),
            "Clients wait. What was acknowledged is safe.".to_owned(),
            "The machine's log (dmesg) names the disk; unplug it, or restart its controller."
                .to_owned(),
        ],
    )
}

/// Disks that took requests and answer none.
#[must_use]
pub fn silent_disks(name: &str, disks: &[String]) -> Condition {
    let disks = disks.join(", ");
    condition(
        format!("pool/{name}/silent"),
        Severity::Critical,
        name,
        [
            format!("Pool '{name}' waits for a disk that does not answer: {disks}."),
            "Clients wait for what is on it, and for what is written. What was acknowledged is safe."
                .to_owned(),
            format!(
                "Look at its cable and controller (dmesg). 'zpool offline {name} DISK' lets a pool with redundancy go on without it."
            ),
        ],
    )
}

/// Disks that make errors, and are in use all the same.
fn errors(name: &str, all: &[&VdevStatus]) -> Option<Condition> {
    let made_some = |leaf: &&&VdevStatus| {
        leaf.health == Health::Online
            && leaf.read_errors + leaf.write_errors + leaf.checksum_errors + leaf.slow_ios > 0
    };
    let failing: Vec<&VdevStatus> = all.iter().filter(made_some).copied().collect();
    if failing.is_empty() {
        return None;
    }
    let sum = |count: fn(&VdevStatus) -> u64| failing.iter().map(|leaf| count(leaf)).sum::<u64>();
    Some(condition(
        format!("pool/{name}/errors"),
        Severity::Warning,
        name,
        [
            format!(
                "Disks of pool '{name}' made errors: {} (read {}, write {}, checksum {}, longer than 30 s {}).",
                names(&failing),
                sum(|leaf| leaf.read_errors),
                sum(|leaf| leaf.write_errors),
                sum(|leaf| leaf.checksum_errors),
                sum(|leaf| leaf.slow_ios)
            ),
            "What had redundancy was repaired; a disk that makes errors may fail.".to_owned(),
            format!(
                "Look at cables and SMART values, run 'zpool scrub {name}'; 'zpool clear {name}' sets the counts to zero."
            ),
        ],
    ))
}

/// The vdevs and disks of a pool.
#[must_use]
pub fn devices(status: &PoolStatus) -> Vec<Condition> {
    let name = status.name.as_str();
    let mut found = Vec::new();
    let mut all = Vec::new();
    for top in &status.root.children {
        leaves(top, &mut all);
    }
    let mut ill = all.clone();
    ill.retain(|leaf| leaf.health != Health::Online);
    let see = format!(
        "'zpool status {name}' shows what is the matter; 'zpool replace {name} OLD NEW' puts a new disk in."
    );
    match status.health {
        Health::Online => {}
        Health::Degraded => found.push(condition(
            format!("pool/{name}/health"),
            Severity::Warning,
            name,
            [
                format!("Pool '{name}' is DEGRADED: {}.", names(&ill)),
                "All data is there; the redundancy is not, so that a further failure may lose data.".to_owned(),
                see.clone(),
            ],
        )),
        other => found.push(condition(
            format!("pool/{name}/health"),
            Severity::Critical,
            name,
            [
                format!("Pool '{name}' is {}: {}.", other.as_str(), names(&ill)),
                "Reads or writes fail, or wait. What was acknowledged before is on the disks that are left.".to_owned(),
                format!("Bring the disks back and run 'zpool clear {name}'; {see}"),
            ],
        )),
    }
    // Of a log device that is gone the pool says no more than that it is degraded.
    let logs = status.root.children.iter().filter(|top| top.is_log);
    let gone: Vec<&VdevStatus> = logs
        .filter(|top| !matches!(top.health, Health::Online | Health::Degraded))
        .collect();
    if !gone.is_empty() {
        found.retain(|known| known.severity == Severity::Critical);
        found.push(condition(
            format!("pool/{name}/log"),
            Severity::Warning,
            name,
            [
                format!("The log device of pool '{name}' is gone: {}.", names(&gone)),
                "Synchronous writes wait for the disks of the pool. Nothing acknowledged is lost while the appliance runs.".to_owned(),
                format!("'zpool online {name} DEVICE' or 'zpool replace' brings one back; 'zpool remove {name} DEVICE' does without."),
            ],
        ));
    }
    found.extend(errors(name, &all));
    if status.data_errors > 0 {
        found.push(condition(
            format!("pool/{name}/data"),
            Severity::Critical,
            name,
            [
                format!("Pool '{name}' has {} damaged files or objects.", status.data_errors),
                "They cannot be read whole; the rest is not affected.".to_owned(),
                format!("'zpool status -v {name}' lists them: restore them from a snapshot, another pool or a backup, then scrub."),
            ],
        ));
    }
    found
}

/// How full a pool is, and when it will be: from how full it was `earlier.1` seconds before.
#[must_use]
pub fn capacity(now: &PoolSpan, earlier: Option<(&PoolSpan, u64)>) -> Option<Condition> {
    let name = now.name.as_str();
    let percent = (now.used * 100).checked_div(now.size)?;
    let free = now.size.saturating_sub(now.used);
    let grown = earlier.map(|(before, seconds)| (now.used.saturating_sub(before.used), seconds));
    let left = grown
        .filter(|(grown, _)| *grown > 0)
        .and_then(|(grown, seconds)| {
            (free / 1024)
                .checked_mul(seconds)?
                .checked_div((grown / 1024).max(1))
        });
    let soon = left.is_some_and(|left| left < FORECAST_SECONDS) && percent >= CAPACITY_WARNING / 2;
    if percent < CAPACITY_WARNING && !soon {
        return None;
    }
    let forecast = match left {
        Some(left) if soon => format!(" As it grew lately it is full in {} days.", left / 86_400),
        _ => String::new(),
    };
    let severity = match percent {
        CAPACITY_CRITICAL.. => Severity::Critical,
        _ => Severity::Warning,
    };
    Some(condition(
        format!("pool/{name}/capacity"),
        severity,
        name,
        [
            format!("Pool '{name}' is {percent}% full.{forecast}"),
            "Writing becomes slower above 80%; a full pool takes no writes, what it holds is safe.".to_owned(),
            "Remove snapshots ('zfs list -t snapshot -S used') or files that are not needed, or add devices ('zpool add').".to_owned(),
        ],
    ))
}

/// When a pool was scrubbed last; `created` is its creation. Both in seconds since 1970.
#[must_use]
pub fn scrub(status: &PoolStatus, created: u64, now: u64) -> Option<Condition> {
    let name = status.name.as_str();
    let scrubbed = status.scan.as_ref().filter(|scan| !scan.resilver);
    if scrubbed.is_some_and(|scan| scan.running) || created == 0 {
        return None;
    }
    let last = scrubbed
        .filter(|scan| !scan.cancelled)
        .map_or(0, |scan| scan.end_time);
    let since = now.saturating_sub(last.max(created));
    if since < SCRUB_SECONDS {
        return None;
    }
    let fact = match last {
        0 => format!("Pool '{name}' was never scrubbed to the end."),
        _ => format!("Pool '{name}' was scrubbed {} days ago.", since / 86_400),
    };
    Some(condition(
        format!("pool/{name}/scrub"),
        Severity::Info,
        name,
        [
            fact,
            "Blocks that went bad since then are found when they are read, or when the redundancy that could repair them is gone."
                .to_owned(),
            format!("'zpool scrub {name}', once a month."),
        ],
    ))
}

/// A job that failed or was interrupted, by number, with its command.
#[must_use]
pub fn failed_job(id: u64, command: &str, state: &str) -> Condition {
    condition(
        format!("job/{id}"),
        Severity::Info,
        &format!("job {id}"),
        [
            format!("Job {id} {state}: {command}"),
            "What it had changed until then stays.".to_owned(),
            format!("'sanbox job show {id}' has its output."),
        ],
    )
}

/// The side of a job that is not in use does not allow to be fenced.
#[must_use]
pub fn fence_denied(job: &str, error: &ReplicationError) -> Condition {
    let fact =
        format!("The side of the job '{job}' that is not in use could not be fenced: {error}.");
    let effect =
        "It can be written to beside the other one: what is written there is lost when one of them replaces the other."
            .to_owned();
    let next_step = format!(
        "Keep clients from it; invite this appliance there with --failover, and it is fenced within a minute ('sanbox replication show {job}')."
    );
    let key = format!("replication/{job}/fence");
    condition(key, Severity::Critical, job, [fact, effect, next_step])
}

/// A job of replication whose runs have not been complete for `seconds`. What may be over by itself is told after a while; several jobs that
/// cannot reach one place are one condition.
#[must_use]
pub fn replication(job: &Job, error: &ReplicationError, seconds: u64) -> Option<Condition> {
    if error.is_transient() && seconds < REPLICATION_SECONDS
        || *error == ReplicationError::Cancelled
    {
        return None;
    }
    let name = &job.name;
    let key = match error {
        ReplicationError::Unreachable { place, .. } => format!("replication/unreachable/{place}"),
        _ => format!("replication/{name}/{}", error.cause()),
    };
    let fact = match error {
        ReplicationError::Unreachable { .. } => format!("Replication waits: {error}."),
        _ => format!("The job '{name}' is not complete: {error}."),
    };
    let next_step = match error.is_transient() {
        true => format!(
            "It is tried again by itself, at growing distances; 'sanbox replication run {name}' does it now."
        ),
        false => format!("'sanbox replication show {name}' says what is missing at the target."),
    };
    let effect =
        "The copy becomes older; the source is not affected, and keeps what its policy says."
            .to_owned();
    Some(condition(
        key,
        Severity::Warning,
        name,
        [fact, effect, next_step],
    ))
}

/// A dataset that is fenced: another is in use in place of it. `is_copy` says which of the two it is.
#[must_use]
pub fn fenced(dataset: &str, job: &str, is_copy: bool) -> Condition {
    let (fact, next_step) = match is_copy {
        false => (
            format!(
                "'{dataset}' is fenced: its copy, which the job '{job}' sent, is in use in place of it."
            ),
            format!(
                "'sanbox replication failback {job}' brings back what was written to the copy; 'sanbox replication takeover {dataset}' puts this \
                 one in use again instead, and fences the copy."
            ),
        ),
        true => (
            format!(
                "'{dataset}' is fenced: its source, from which the job '{job}' sent it, was put in use again."
            ),
            format!(
                "'sanbox replication adopt {job} --rollback' where the job is gives up what was written here, and makes it the copy again; \
                 'sanbox replication takeover {dataset}' puts this one in use instead, and fences the source."
            ),
        ),
    };
    let effect =
        "It is read-only, and neither shared nor mapped: clients that had it open wait or end."
            .to_owned();
    let key = format!("replication/fenced/{dataset}");
    let subject = format!("dataset {dataset}");
    condition(key, Severity::Warning, &subject, [fact, effect, next_step])
}

/// The certificate of the console, whose validity begins and ends at these times, in seconds since 1970.
#[must_use]
pub fn certificate((begin, end): (u64, u64), now: u64) -> Option<Condition> {
    let left = end.saturating_sub(now);
    // One of few days is renewed when a third of them is left.
    if left > CERTIFICATE_SECONDS.min(end.saturating_sub(begin) / 4) {
        return None;
    }
    let (severity, fact) = match left {
        0 => (
            Severity::Warning,
            "The certificate of the console has expired.".to_owned(),
        ),
        _ => (
            Severity::Info,
            format!(
                "The certificate of the console ends in {} days.",
                left / 86_400
            ),
        ),
    };
    Some(condition(
        "certificate".to_owned(),
        severity,
        "console",
        [
            fact,
            "Browsers and scripts refuse the connection then; data and shares are not affected.".to_owned(),
            "Put a new one in place of console-cert.pem and console-key.pem in the state directory, or have one issued ('sanbox certificate acme')."
                .to_owned(),
        ],
    ))
}

/// A certificate by ACME that was not issued; the end of the one in use is in seconds since 1970.
#[must_use]
pub fn acme(failure: &AcmeFailure, end: Option<u64>, now: u64) -> Condition {
    let effect = match end.map(|end| end.saturating_sub(now) / 86_400) {
        Some(days) => format!(
            "The certificate in use stays, and ends in {days} days; data and shares are not affected."
        ),
        None => "The console keeps the certificate that it has.".to_owned(),
    };
    condition(
        "certificate/acme".to_owned(),
        Severity::Warning,
        "console",
        [
            format!("No certificate was issued. {}", failure.fact),
            effect,
            failure.next_step.clone(),
        ],
    )
}

/// A clock that went back, or is in the past of the program.
#[must_use]
pub fn clock(now: u64, known: u64) -> Option<Condition> {
    if now + 3600 >= known {
        return None;
    }
    Some(condition(
        "clock".to_owned(),
        Severity::Warning,
        "clock",
        [
            format!(
                "The clock is {} hours behind the last time that the appliance knows.",
                (known - now) / 3600
            ),
            "Times of files and snapshots, schedules and log-ins go wrong; data is safe."
                .to_owned(),
            "Set it, and have it kept ('timedatectl set-ntp true', or chrony).".to_owned(),
        ],
    ))
}

/// What the process takes of what it may.
#[must_use]
pub fn memory(taken: u64, ceiling: u64) -> Option<Condition> {
    let percent = (taken * 100).checked_div(ceiling)?;
    if percent < MEMORY_PERCENT {
        return None;
    }
    Some(condition(
        "memory".to_owned(),
        Severity::Warning,
        "memory",
        [
            format!(
                "The process takes {} MiB of the {} MiB that it may.",
                taken >> 20,
                ceiling >> 20
            ),
            "Caches are as small as they can be: reads are slow. Data is safe.".to_owned(),
            "Give it more ('--memory', 'memory' in sanbox.toml), or have fewer clients at once."
                .to_owned(),
        ],
    ))
}

/// The disk of the state directory takes nothing.
#[must_use]
pub fn state_disk(why: &str) -> Condition {
    condition(
        "state".to_owned(),
        Severity::Warning,
        "state directory",
        [
            format!("The state directory cannot be written: {why}"),
            "Pools and shares go on. The history, jobs and alerts since then are lost at a restart, and users cannot be changed."
                .to_owned(),
            "Make room on its disk, or mount it writable.".to_owned(),
        ],
    )
}

/// A database was damaged, and is kept in the state directory under this name.
#[must_use]
pub fn state_set_aside(name: &str) -> Condition {
    condition(
        format!("state:{name}"),
        Severity::Warning,
        "state directory",
        [
            format!("A database of the appliance was damaged, and began anew; the damaged one is kept as {name}."),
            "Pools and shares are as they were. What it held is not there: users, keys, jobs and alerts (state.db), or the history (history.db)."
                .to_owned(),
            "Check the disk of the state directory, and make users anew, or import an export ('sanbox config import'); then remove the file."
                .to_owned(),
        ],
    )
}

/// Snapshots of a policy that are due and are not taken, for `seconds`; or a policy that cannot be read, with why.
#[must_use]
pub fn schedule(dataset: &str, seconds: u64, unreadable: Option<&str>) -> Option<Condition> {
    if unreadable.is_none() && seconds < SCHEDULE_SECONDS {
        return None;
    }
    let fact = match unreadable {
        Some(why) => format!("The policy of '{dataset}' cannot be read: {why}"),
        None => format!(
            "A snapshot of '{dataset}' has been due for {} minutes and is not taken.",
            seconds / 60
        ),
    };
    Some(condition(
        format!("schedule/{dataset}"),
        Severity::Warning,
        dataset,
        [
            fact,
            "What is changed or deleted there meanwhile cannot be taken back; the snapshots that exist are safe."
                .to_owned(),
            format!("'sanbox policy show {dataset}' and the daemon's log say why; 'sanbox policy set' writes a policy anew."),
        ],
    ))
}

/// A copy that is `lag` seconds old, of a job that is to make it each `interval` seconds.
#[must_use]
pub fn replication_lag(job: &str, lag: u64, interval: u64) -> Option<Condition> {
    if lag < interval.saturating_mul(3).max(LAG_SECONDS) {
        return None;
    }
    Some(condition(
        format!("replication/{job}/lag"),
        Severity::Warning,
        job,
        [
            format!(
                "The copy that the job '{job}' makes is {} minutes old.",
                lag / 60
            ),
            "If the source were lost now, what was written since then would be.".to_owned(),
            format!(
                "'sanbox replication show {job}' says what it does: a bandwidth or a window that is too small, or no runs."
            ),
        ],
    ))
}

/// A copy that the last test of a restore could not read whole, or found to be another than its source.
#[must_use]
pub fn restore_test(job: &str, report: &RestoreReport) -> Option<Condition> {
    let problem = report.problem()?;
    let fact = match report.failed() {
        0 => {
            format!("The test of a restore of the job '{job}' did not come to its end: {problem}.")
        }
        1 => format!("The test of a restore of the job '{job}' failed: {problem}."),
        more => format!(
            "The test of a restore of the job '{job}' failed for {more} objects; the first is {problem}."
        ),
    };
    Some(condition(
        format!("replication/{job}/restore-test"),
        Severity::Critical,
        job,
        [
            fact,
            "If the source were lost now, this could not be restored from the copy.".to_owned(),
            format!(
                "'sanbox replication reports {job}' names what failed, 'zpool status -v' what is damaged; 'sanbox replication test-restore {job}' \
                 tests it again."
            ),
        ],
    ))
}

/// Room on the disk of the state directory, in bytes.
#[must_use]
pub fn state_space(free: u64, size: u64) -> Option<Condition> {
    if free >= STATE_BYTES || free * 20 >= size {
        return None;
    }
    Some(condition(
        "state/space".to_owned(),
        Severity::Warning,
        "state directory",
        [
            format!(
                "The disk of the state directory has {} MiB of {} MiB left.",
                free >> 20,
                size >> 20
            ),
            "When it is full the history, jobs and alerts are kept in memory alone, and settings cannot be changed. Pools go on."
                .to_owned(),
            "Make room on it: old logs and files of others, most often.".to_owned(),
        ],
    ))
}

/// When the settings were exported last; both in seconds since 1970.
#[must_use]
pub fn config_backup(last: Option<u64>, now: u64) -> Option<Condition> {
    let since = last.map(|last| now.saturating_sub(last));
    if since.is_some_and(|since| since < EXPORT_SECONDS) {
        return None;
    }
    let fact = match since {
        Some(since) => format!("The settings were exported {} days ago.", since / 86_400),
        None => "The settings were never exported.".to_owned(),
    };
    Some(condition(
        "config-backup".to_owned(),
        Severity::Info,
        "settings",
        [
            fact,
            "If the disk of the state directory is lost, targets, users, jobs and policies have to be set anew; pools are not touched."
                .to_owned(),
            "'sanbox config export > FILE', and keep the file elsewhere.".to_owned(),
        ],
    ))
}

/// A disk that `sanbox why` calls slow.
#[must_use]
pub fn slow_disk(disk: &str, sentence: &str) -> Condition {
    condition(
        format!("disk/{disk}/slow"),
        Severity::Warning,
        disk,
        [
            sentence.to_owned(),
            "Requests wait for it; data is safe as long as the others hold.".to_owned(),
            "'sanbox why' and 'zpool iostat -vl' show more.".to_owned(),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(name: &str, health: Health) -> VdevStatus {
        VdevStatus {
            name: name.to_owned(),
            health,
            ..VdevStatus::default()
        }
    }

    fn pool(health: Health, leaves: Vec<VdevStatus>) -> PoolStatus {
        let mut status = engine_status();
        status.name = "tank".to_owned();
        status.health = health;
        status.root.children = leaves;
        status
    }

    fn engine_status() -> PoolStatus {
        PoolStatus {
            name: String::new(),
            guid: 1,
            health: Health::Online,
            state: engine::PoolState::Active,
            reason: engine::StatusReason::Ok,
            details: Vec::new(),
            scan: None,
            checkpoint: None,
            removal: None,
            expansion: None,
            freeing_stopped: None,
            root: VdevStatus::default(),
            caches: Vec::new(),
            spares: Vec::new(),
            data_errors: 0,
            readonly: false,
            txg: 1,
            open_nanoseconds: 1,
        }
    }

    fn keys(found: &[Condition]) -> String {
        let keys: Vec<_> = found
            .iter()
            .map(|one| format!("{} {}", one.key, one.severity.as_str()))
            .collect();
        keys.join("; ")
    }

    #[test]
    fn pools_and_disks_are_one_condition_for_a_cause() {
        let fine = || leaf("/dev/sda", Health::Online);
        assert!(devices(&pool(Health::Online, vec![fine()])).is_empty());
        let gone = (0..40).map(|disk| leaf(&format!("/dev/d{disk}"), Health::Faulted));
        let degraded = devices(&pool(Health::Degraded, gone.collect()));
        assert_eq!(keys(&degraded), "pool/tank/health warning");
        assert!(
            degraded[0].fact.contains("/dev/d4 and 35 more"),
            "{}",
            degraded[0].fact
        );
        let suspended = devices(&pool(
            Health::Faulted,
            vec![leaf("/dev/sda", Health::Faulted)],
        ));
        assert_eq!(keys(&suspended), "pool/tank/health critical");
        let log = VdevStatus {
            is_log: true,
            ..leaf("/dev/nvme0", Health::Unavail)
        };
        let without_log = devices(&pool(Health::Degraded, vec![fine(), log]));
        assert_eq!(keys(&without_log), "pool/tank/log warning");
        let failing = VdevStatus {
            checksum_errors: 1000,
            ..fine()
        };
        let mut damaged = pool(Health::Online, vec![failing]);
        damaged.data_errors = 2;
        assert_eq!(
            keys(&devices(&damaged)),
            "pool/tank/errors warning; pool/tank/data critical"
        );
    }

    #[test]
    fn full_pools_are_told_before_they_are() {
        let span = |used: u64| PoolSpan {
            name: "tank".to_owned(),
            used: used << 30,
            size: 1000 << 30,
            ..PoolSpan::default()
        };
        let week = 7 * 86_400;
        for (used, before, severity, word) in [
            (500, None, None, ""),
            (810, None, Some(Severity::Warning), "81% full."),
            (960, None, Some(Severity::Critical), "96%"),
            (600, Some(200), Some(Severity::Warning), "full in 7 days"),
            (600, Some(590), None, ""),
            (600, Some(700), None, ""),
        ] {
            let before = before.map(span);
            let found = capacity(&span(used), before.as_ref().map(|before| (before, week)));
            assert_eq!(
                found.as_ref().map(|found| found.severity),
                severity,
                "{used}"
            );
            assert!(
                found.is_none_or(|found| found.fact.contains(word)),
                "{used}"
            );
        }
        assert_eq!(capacity(&PoolSpan::default(), None), None);
    }

    #[test]
    fn the_machine_and_its_times() {
        let now = 2_000_000_000;
        let fine = pool(Health::Online, Vec::new());
        assert!(scrub(&fine, now - 86_400, now).is_none());
        assert!(scrub(&fine, now - 2 * SCRUB_SECONDS, now).is_some());
        assert!(certificate((now, now + 2 * CERTIFICATE_SECONDS), now).is_none());
        let short = (now, now + 6 * 86_400);
        assert!(certificate(short, now + 4 * 86_400).is_none());
        assert!(certificate(short, now + 5 * 86_400).is_some());
        let failure = AcmeFailure {
            fact: "Nobody answers.".to_owned(),
            next_step: "Wait.".to_owned(),
        };
        let told = acme(&failure, Some(now + 9 * 86_400), now);
        assert!(told.fact.ends_with("Nobody answers.") && told.effect.contains("9 days"));
        let ended = certificate((0, now - 1), now).map(|found| found.severity);
        assert_eq!(ended, Some(Severity::Warning));
        assert!(clock(now, now + 10).is_none());
        assert!(clock(now, now + 86_400).is_some_and(|found| found.fact.contains("24 hours")));
        assert!(memory(50, 100).is_none() && memory(98, 100).is_some() && memory(1, 0).is_none());
        assert!(
            state_space(1 << 30, 1 << 40).is_none() && state_space(100 << 20, 200 << 20).is_none()
        );
        assert!(
            state_space(100 << 20, 100 << 30).is_some_and(|found| found.fact.contains("100 MiB"))
        );
        assert!(config_backup(Some(now - 86_400), now).is_none());
        let old = config_backup(Some(now - 40 * 86_400), now);
        assert!(old.is_some_and(|found| found.fact.contains("40 days")));
        assert!(config_backup(None, now).is_some());
    }

    #[test]
    fn what_is_late_is_told_after_a_while() {
        assert!(schedule("tank/a", 599, None).is_none());
        let late = schedule("tank/a", 3600, None).expect("late");
        assert!(late.fact.contains("60 minutes"), "{}", late.fact);
        let broken = schedule("tank/a", 0, Some("'x' is no class")).expect("told");
        assert!(broken.fact.ends_with("'x' is no class"), "{}", broken.fact);
        for (lag, interval, told) in [
            (500, 60, false),
            (700, 60, true),
            (700, 900, false),
            (2700, 900, true),
        ] {
            assert_eq!(
                replication_lag("vm", lag, interval).is_some(),
                told,
                "{lag}"
            );
        }
    }
}
