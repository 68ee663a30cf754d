//! `sanbox replication`: the jobs that keep datasets the same in another place.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use engine::PoolHandle;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use manage::replication::{
    self, Compression, Ended, Job, JobError, JobHost, JobState, LocalEndpoint, Location, NotTurned,
    PastRun, Progress, Reached, RecoveryPoint, ReplicaDataset, ReplicationError, Report,
    RestoreProgress, RestoreReport, Switchover, Takeover, TurnNote,
};

use super::foretold::{self, told_plan};
use super::{Arguments, print_table};
use crate::cli::format::nice_bytes;
use crate::cli::{Exit, Outcome, Session};
use crate::paths;
use crate::replication::{run_job, source_of, target_of};
use crate::restore_tests;

/// How often an export or import says how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
/// How long the disk of an export may take to say how much room it has.
const DISK_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Runs of the past that are shown of a job.
const PAST_SHOWN: usize = 5;

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let words: Vec<&str> = args.operands.iter().map(String::as_str).collect();
    if let ["cancel" | "pause" | "resume" | "reset" | "reports", _] = words[..]
        && args.has('n')
    {
        return Err(session.misuse(format!("'{}' takes no -n", words[0])));
    }
    match words[..] {
        ["create" | "add", name] => create(session, args, name).await,
        ["change", name] => change(session, args, name),
        ["list"] => list(session, args),
        ["show", name] => show(session, name).await,
        ["run", name] => run_now(session, args, name).await,
        ["cancel", name] => cancel(session, name),
        ["pause", name] => pause(session, name, true),
        ["resume", name] => pause(session, name, false),
        ["reset", name] => reset(session, name).await,
        ["adopt", name] => adopt(session, args, name).await,
        ["failover", name] => failover(session, args, name).await,
        ["failback", name] => failback(session, args, name).await,
        ["takeover", dataset] => takeover(session, args, dataset).await,
        ["test", name] => test(session, args, name).await,
        ["test-restore", name] => test_restore(session, args, name).await,
        ["reports", name] => reports(session, args, name),
        ["remove", name] => remove(session, args, name).await,
        ["export", name, directory] => export(session, args, name, directory).await,
        ["import", directory] => import(session, args, directory).await,
        _ => Err(session.usage_only()),
    }
}

fn refused(session: &Session, error: &JobError) -> Exit {
    session.fail(format!("cannot replicate: {error}"))
}

fn job(session: &Session, name: &str) -> Result<Job, Exit> {
    let jobs = session.appliance.replications().jobs();
    let found = jobs.and_then(|jobs| jobs.job(name).cloned());
    found.map_err(|error| refused(session, &error))
}

async fn create(session: &Session, args: &Arguments, name: &str) -> Outcome {
    let side = |option: &str| {
        let given = args.long(option).map(str::to_owned);
        given.ok_or_else(|| session.misuse(format!("--{option} is missing")))
    };
    let mut job = Job {
        name: name.to_owned(),
        from: side("from")?,
        to: side("to")?,
        ..Job::default()
    };
    if args.has_long("off") {
        return Err(session.misuse("--off is for 'change': what is not given is off"));
    }
    apply(args, &mut job);
    job.check().map_err(|error| refused(session, &error))?;
    if args.has('n') {
        return foretold::run(session, &job).await;
    }
    let added = session
        .appliance
        .replications()
        .change(|jobs| jobs.add(job));
    added.map_err(|error| refused(session, &error))?;
    if !session.appliance.is_daemon() && session.caller.terminal {
        session.out.error("no daemon runs: jobs are carried out as soon as 'sanbox serve' does, or by 'sanbox replication run'");
    }
    Ok(())
}

/// Puts the settings that are given in the place of a job's own.
fn apply(args: &Arguments, job: &mut Job) {
    for (option, field) in replication::SWITCHES {
        let is_off = args.longs("off").contains(option);
        if is_off || args.has_long(option) {
            *field(job) = !is_off;
        }
    }
    for (option, field) in replication::TEXTS {
        if let Some(text) = args.long(option) {
            text.clone_into(field(job));
        }
    }
    for (option, field) in replication::LISTS {
        let given = args.longs(option);
        if !given.is_empty() {
            let entries = given.into_iter().filter(|entry| !entry.is_empty());
            *field(job) = entries.map(str::to_owned).collect();
        }
    }
}

/// Changes settings of a job; the next run has them.
fn change(session: &Session, args: &Arguments, name: &str) -> Outcome {
    for side in ["from", "to"] {
        if args.has_long(side) {
            return Err(session.misuse(format!(
                "--{side} cannot be changed: a job with another {side} is another job"
            )));
        }
    }
    for switch in args.longs("off") {
        if !replication::SWITCHES
            .iter()
            .any(|(known, _)| *known == switch)
        {
            let known: Vec<_> = replication::SWITCHES
                .iter()
                .map(|(name, _)| *name)
                .collect();
            return Err(session.misuse(format!("--off takes {}, not '{switch}'", known.join(", "))));
        }
    }
    let replications = session.appliance.replications();
    if args.has('n') {
        let mut job = job(session, name)?;
        apply(args, &mut job);
        return job.check().map_err(|error| refused(session, &error));
    }
    let changed = replications.change(|jobs| jobs.change(name, |job| apply(args, job)));
    changed.map_err(|error| refused(session, &error))?;
    replications.hurry(name);
    Ok(())
}

fn list(session: &Session, args: &Arguments) -> Outcome {
    let jobs = session.appliance.replications().jobs();
    let jobs = jobs.map_err(|error| refused(session, &error))?.replication;
    if jobs.is_empty() && !args.has('H') {
        session.out.line("there are no jobs ('sanbox replication create NAME --from DATASET --to DATASET' makes one)");
        return Ok(());
    }
    let is_daemon = session.appliance.is_daemon();
    let row = |job: &Job| {
        let state = session.appliance.replications().state_of(&job.name);
        let (word, next) = (state_word(job, &state), next_run(job, &state, is_daemon));
        vec![
            job.name.clone(),
            job.from.clone(),
            job.to.clone(),
            word,
            next,
        ]
    };
    let rows: Vec<_> = jobs.iter().map(row).collect();
    print_table(
        session,
        args,
        &["NAME", "FROM", "TO", "STATE", "NEXT"],
        &rows,
    );
    Ok(())
}

/// A word or two for what a job does.
fn state_word(job: &Job, state: &JobState) -> String {
    if let Some(progress) = &state.running {
        return running(progress);
    }
    if job.failed_over {
        return "failed over".to_owned();
    }
    if job.paused {
        return "paused".to_owned();
    }
    match state.ended.as_ref().map(|ended| (ended, ended.problem())) {
        None => "-".to_owned(),
        Some((_, Some((_, error)))) => error.cause().to_owned(),
        Some((_, None)) => "complete".to_owned(),
    }
}

fn running(progress: &Progress) -> String {
    let done = progress.done_bytes();
    let share = progress.total_bytes().map_or_else(String::new, |total| {
        format!(
            " of {} ({}%)",
            nice_bytes(total),
            done.saturating_mul(100) / total.max(1)
        )
    });
    let left = progress
        .remaining()
        .map_or_else(String::new, |left| format!(", {} s left", left.as_secs()));
    format!(
        "sending: {}{share} at {}/s{left}",
        nice_bytes(done),
        nice_bytes(progress.rate())
    )
}

fn next_run(job: &Job, state: &JobState, is_daemon: bool) -> String {
    if job.paused || job.failed_over || !is_daemon {
        return "-".to_owned();
    }
    match (&state.running, state.next_in) {
        (Some(_), _) => "now".to_owned(),
        (None, None) => "at once".to_owned(),
        (None, Some(left)) => format!("in {} s", left.as_secs()),
    }
}

async fn show(session: &Session, name: &str) -> Outcome {
    let job = job(session, name)?;
    let state = session.appliance.replications().state_of(name);
    let line = |key: &str, value: String| session.out.line(format!("{key:<10} {value}"));
    line("from", job.from.clone());
    line("to", job.to.clone());
    if let Some(as_of) = state.as_of {
        line("as of", as_of.strftime("%Y-%m-%d %H:%M:%SZ").to_string());
    }
    if let Some(point) = state.recovery_point {
        line("behind", told_point(&point));
    }
    line("state", state_word(&job, &state));
    line(
        "next",
        next_run(&job, &state, session.appliance.is_daemon()),
    );
    if let Some(compression) = told_compression(&job) {
        line("compress", compression);
    }
    if let Some(progress) = &state.running {
        line("sending", progress.current());
    }
    if let Some(ended) = &state.ended {
        line("last run", told(ended));
    }
    if let Some(since) = state.failing_since {
        let since = since.strftime("%Y-%m-%d %H:%M:%SZ");
        line(
            "failing",
            format!("since {since}, {} attempts", state.failures.max(1)),
        );
    }
    for run in state.past.iter().rev().take(PAST_SHOWN) {
        line("past run", told_past(run));
    }
    let tests = session.appliance.replications().restore_tests();
    if let Some(running) = tests.running(name) {
        line("testing", told_testing(&running));
    }
    if let Some(report) = tests.last(name) {
        line("last test", told_report(&report));
    }
    if let Some(next) = tests.next(&job, jiff::Timestamp::now()) {
        line("next test", time(next.as_second()));
    }
    session.out.line("");
    foretold::run(session, &job).await
}

fn time(seconds: i64) -> String {
    let time = jiff::Timestamp::from_second(seconds).unwrap_or_default();
    time.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// How far a test of a restore is, in a line.
fn told_testing(progress: &RestoreProgress) -> String {
    let read = nice_bytes(progress.bytes());
    format!(
        "{}: {} files, {read} read",
        progress.snapshot(),
        progress.files()
    )
}

/// What a test of a restore found, in a line.
fn told_report(report: &RestoreReport) -> String {
    let compared = report
        .datasets
        .iter()
        .filter(|one| one.not_compared.is_none());
    let verdict = match (report.problem(), compared.count()) {
        (Some(problem), _) => format!("FAILED: {problem}"),
        (None, compared) if compared == report.datasets.len() => "all as at the source".to_owned(),
        (None, 0) => "all can be read".to_owned(),
        (None, compared) => format!("all can be read, {compared} datasets are as at the source"),
    };
    format!(
        "{}: {} datasets, {} files, {} in {} s: {verdict}",
        time(report.began),
        report.datasets.len(),
        report.files(),
        nice_bytes(report.bytes()),
        report.ended.saturating_sub(report.began).max(0),
    )
}

/// How a job's streams are compressed on their way; `None` where no peer has a side of it.
fn told_compression(job: &Job) -> Option<String> {
    let is_peer = |location| matches!(location, Ok(Location::Peer { .. }));
    let compression = job.compression().ok()?;
    (is_peer(job.source()) || is_peer(job.target())).then(|| match compression {
        Compression::Off => "off".to_owned(),
        level => format!("{level}, what becomes smaller by it"),
    })
}

/// How far the target was behind, in a line.
fn told_point(point: &RecoveryPoint) -> String {
    let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
    format!(
        "at most {}, half of {} runs {}, 99% {}",
        seconds(point.max),
        point.runs,
        seconds(point.median),
        seconds(point.p99)
    )
}

/// A run of the past, in a line.
fn told_past(run: &PastRun) -> String {
    let at = run.ended.strftime("%Y-%m-%d %H:%M:%SZ");
    let sent = format!("{} snapshots, {}", run.snapshots, nice_bytes(run.bytes));
    match &run.problem {
        None => format!("{at}: {sent}"),
        Some((_, why)) if run.runs > 1 => format!("{at}: {} times, {sent}: {why}", run.runs),
        Some((_, why)) => format!("{at}: {sent}: {why}"),
    }
}

/// A run that ended, in a line.
fn told(ended: &Ended) -> String {
    let at = ended.at.strftime("%Y-%m-%d %H:%M:%SZ");
    match &ended.result {
        Err(error) => format!("{at}: {error}"),
        Ok(report) => {
            let sent = report.sent.len();
            let left_out = match report.problems.len() {
                0 => String::new(),
                more => format!(", {more} left out"),
            };
            format!(
                "{at}: {} datasets, {sent} snapshots sent{left_out}",
                report.datasets
            )
        }
    }
}

async fn run_now(session: &Session, args: &Arguments, name: &str) -> Outcome {
    let job = job(session, name)?;
    if args.has('n') {
        return foretold::run(session, &job).await;
    }
    let ended = match run_job(&session.appliance, &job).await {
        Some(ended) => ended,
        // What was written before it began is in that run.
        None => {
            let ended = session.appliance.replications().ended(name).await;
            ended.ok_or_else(|| session.fail(format!("the run of '{name}' was given up")))?
        }
    };
    let report = ended
        .result
        .map_err(|error| session.fail(format!("cannot replicate '{}': {error}", job.from)))?;
    tell(session, &report)
}

/// Prints what a run did.
fn tell(session: &Session, report: &Report) -> Outcome {
    for snapshot in &report.sent {
        session.out.line(format!("sent {snapshot}"));
    }
    for dataset in &report.without_snapshots {
        session.out.error(format!(
            "'{dataset}' has no snapshot to be sent: a policy takes some, or --take of the job"
        ));
    }
    for dataset in &report.left {
        session.out.error(format!(
            "'{dataset}' is kept: its source does not exist any more"
        ));
    }
    for dataset in &report.not_mounted {
        session.out.error(format!(
            "'{dataset}' is new there and is not mounted by itself: 'zfs set canmount=on {dataset}' at the peer"
        ));
    }
    for (dataset, error) in &report.problems {
        session
            .out
            .error(format!("cannot replicate '{dataset}': {error}"));
    }
    if report.problems.is_empty() {
        Ok(())
    } else {
        Err(Exit(1))
    }
}

fn cancel(session: &Session, name: &str) -> Outcome {
    job(session, name)?;
    let replications = session.appliance.replications();
    let is_tested = replications.restore_tests().cancel(name);
    if replications.cancel(name) || is_tested {
        return Ok(());
    }
    Err(session.fail(format!("the job '{name}' does not run")))
}

/// Ends a run that is under way: what comes next changes what it works on.
async fn stop(session: &Session, name: &str) -> Result<(), Exit> {
    match session.appliance.replications().stop(name).await {
        true => Ok(()),
        false => Err(session.fail(does_not_end(name))),
    }
}

fn does_not_end(name: &str) -> String {
    format!("the job '{name}' runs and does not end: give it again")
}

fn pause(session: &Session, name: &str, paused: bool) -> Outcome {
    let replications = session.appliance.replications();
    let changed = replications.change(|jobs| jobs.change(name, |job| job.paused = paused));
    changed.map_err(|error| refused(session, &error))?;
    if paused {
        replications.cancel(name);
    } else {
        replications.hurry(name);
    }
    Ok(())
}

async fn reset(session: &Session, name: &str) -> Outcome {
    let job = job(session, name)?;
    stop(session, name).await?;
    let done = async {
        let target = target_of(&session.appliance, &job).await?;
        replication::reset(&job, &*target).await
    };
    let given_up = done
        .await
        .map_err(|error| session.fail(format!("cannot reset '{name}': {error}")))?;
    for dataset in given_up {
        session
            .out
            .line(format!("gave up the interrupted receive into {dataset}"));
    }
    session.appliance.replications().hurry(name);
    Ok(())
}

async fn adopt(session: &Session, args: &Arguments, name: &str) -> Outcome {
    let job = job(session, name)?;
    let rollback = args.has_long("rollback");
    let failed = |error: ReplicationError| {
        session.fail(format!("cannot adopt the target of '{name}': {error}"))
    };
    if args.has('n') {
        return foretold::adopt(session, &job, rollback, failed).await;
    }
    let host = CommandHost { session, job: &job };
    let adopted = replication::adopt_job(&job, &host, rollback).await;
    let adopted = adopted.map_err(failed)?;
    if adopted.is_empty() {
        return Err(session.fail(format!(
            "there is nothing to adopt: '{}' does not exist",
            job.to
        )));
    }
    for dataset in adopted {
        session.out.line(format!("adopted {dataset}"));
    }
    session.appliance.datasets_changed().await;
    session.appliance.replications().hurry(name);
    Ok(())
}

/// A job of this appliance that is turned round by a command.
struct CommandHost<'a> {
    session: &'a Session,
    job: &'a Job,
}

impl JobHost for CommandHost<'_> {
    fn source(&self) -> Reached<'_, Box<dyn Switchover>> {
        source_of(&self.session.appliance, self.job).boxed()
    }

    fn target(&self) -> Reached<'_, Box<dyn Switchover>> {
        target_of(&self.session.appliance, self.job).boxed()
    }

    fn stop(&self) -> Reached<'_, ()> {
        async {
            let name = &self.job.name;
            match self.session.appliance.replications().stop(name).await {
                true => Ok(()),
                false => Err(ReplicationError::Failed(does_not_end(name))),
            }
        }
        .boxed()
    }

    fn run<'a>(&'a self, job: &'a Job) -> Reached<'a, Report> {
        async move {
            let appliance = &self.session.appliance;
            loop {
                self.stop().await?;
                // None when it was due meanwhile, and runs again.
                if let Some(ended) = run_job(appliance, job).await {
                    return ended.result;
                }
            }
        }
        .boxed()
    }

    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::now()
    }

    fn write_down(&self, failed_over: bool) -> Result<(), ReplicationError> {
        let replications = self.session.appliance.replications();
        let change = |job: &mut Job| job.failed_over = failed_over;
        let changed = replications.change(|jobs| jobs.change(&self.job.name, change));
        changed.map_err(|error| ReplicationError::Failed(error.to_string()))?;
        replications.hurry(&self.job.name);
        Ok(())
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        self.session.appliance.datasets_changed().boxed()
    }

    fn note(&self, note: &TurnNote) {
        self.session.out.error(match note {
            TurnNote::NotSent(error) => {
                format!("what was written since the last run is not in the copy: {error}")
            }
            TurnNote::SourceGoesOn(error) => format!(
                "'{}' goes on, and what is written there from now on is in no copy: {error}",
                self.job.from
            ),
            TurnNote::StaysFenced(error) => format!(
                "the source stays read-only: {error}; 'sanbox replication takeover {}' there ends that",
                self.job.source_root()
            ),
        });
    }
}

/// Puts the target in use. What the source has still is sent before, if it can be reached.
async fn failover(session: &Session, args: &Arguments, name: &str) -> Outcome {
    let job = job(session, name)?;
    let failed = |error: ReplicationError| {
        session.fail(format!("cannot fail over to '{}': {error}", job.to))
    };
    if args.has('n') {
        return foretold::failover(session, &job, failed).await;
    }
    let _turning = session.appliance.replications().turn(name);
    let host = CommandHost { session, job: &job };
    let datasets = match replication::fail_over_job(&job, &host).await {
        Ok(datasets) => datasets,
        Err(NotTurned::Incomplete(report)) => return tell(session, &report),
        Err(NotTurned::Failed(error)) => return Err(failed(error)),
    };
    for dataset in datasets {
        session.out.line(format!("{dataset} is writable"));
        follow(session, &job.target(), &dataset).await;
    }
    session.appliance.datasets_changed().await;
    Ok(())
}

/// Mounts what became usable on this appliance.
async fn follow(session: &Session, location: &Result<Location, JobError>, dataset: &str) {
    if matches!(location, Ok(Location::Local(_)))
        && let Ok(pool) = session.appliance.pool_of(dataset).await
    {
        session.appliance.mount_created(&pool, dataset).await;
    }
}

/// Puts a copy of a pool of this appliance in use, without the appliance that has the job and the source.
async fn takeover(session: &Session, args: &Arguments, dataset: &str) -> Outcome {
    let failed =
        |error: ReplicationError| session.fail(format!("cannot take over '{dataset}': {error}"));
    let pool = session.appliance.pool_of(dataset).await;
    let pool =
        pool.map_err(|error| session.fail(format!("cannot take over '{dataset}': {error}")))?;
    let side = LocalEndpoint::new(pool.clone());
    let jobs = session.appliance.replications().jobs();
    let jobs = jobs.map_err(|error| refused(session, &error))?.replication;
    let name = match replication::takeover_of(&side, dataset, &jobs)
        .await
        .map_err(failed)?
    {
        Takeover::Sources(sources) => {
            return reclaim(session, args, (&side, &pool), sources, &jobs).await;
        }
        Takeover::TargetOf(name) => return failover(session, args, &name).await,
        Takeover::Copy(name) => name,
    };
    if args.has('n') {
        let foretold = foretold::takeover(session, &side, dataset, &name).await;
        return foretold.map_err(failed);
    }
    let taken = replication::take_over(&side, dataset, &name).await;
    for dataset in taken.map_err(failed)? {
        session.out.line(format!("{dataset} is writable"));
        session.appliance.mount_created(&pool, &dataset).await;
    }
    session.appliance.datasets_changed().await;
    session.out.error(format!(
        "a source that is in use still goes on until its job reaches this appliance, and is fenced then; where it is, 'sanbox replication failback \
         {name}' brings back what is written here from now on"
    ));
    Ok(())
}

/// Puts sources of this appliance that are fenced in use again.
async fn reclaim(
    session: &Session,
    args: &Arguments,
    (side, pool): (&LocalEndpoint, &PoolHandle),
    sources: Vec<ReplicaDataset>,
    jobs: &[Job],
) -> Outcome {
    if args.has('n') {
        for dataset in &sources {
            session.out.line(format!(
                "{} would be writable, and its copy would be fenced",
                dataset.name
            ));
        }
        return Ok(());
    }
    let name = |one: &ReplicaDataset| (one.name.clone(), one.readonly.is_kept);
    let names: Vec<(String, bool)> = sources.iter().map(name).collect();
    let hosts: Vec<CommandHost<'_>> = jobs
        .iter()
        .map(|job| CommandHost { session, job })
        .collect();
    let hosts: Vec<(&Job, &dyn JobHost)> = hosts
        .iter()
        .map(|host| (host.job, host as &dyn JobHost))
        .collect();
    let done = replication::reclaim_sources(side, &sources, &hosts).await;
    done.map_err(|error| session.fail(format!("cannot put the source in use again: {error}")))?;
    for (dataset, is_kept) in names {
        session.out.line(match is_kept {
            true => format!("{dataset} is in use, and read-only as before"),
            false => format!("{dataset} is writable"),
        });
        session.appliance.mount_created(pool, &dataset).await;
    }
    session.appliance.datasets_changed().await;
    Ok(())
}

/// Brings what was written at the target back, and puts the source in use again.
async fn failback(session: &Session, args: &Arguments, name: &str) -> Outcome {
    let job = job(session, name)?;
    let rollback = args.has_long("rollback");
    let failed = |error: ReplicationError| {
        session.fail(format!("cannot fail back to '{}': {error}", job.from))
    };
    let nothing = || {
        session.fail(format!(
            "the job '{name}' is not turned round: there is nothing to bring back"
        ))
    };
    let host = CommandHost { session, job: &job };
    if args.has('n') {
        return match replication::is_turned(&job, &host).await {
            Ok(true) => foretold::failback(session, &job, rollback, failed).await,
            Ok(false) => Err(nothing()),
            Err(error) => Err(failed(error)),
        };
    }
    let done = replication::fail_back_job(&job, &host, rollback).await;
    let report = done.map_err(failed)?.ok_or_else(nothing)?;
    for dataset in &report.made {
        follow(session, &job.source(), dataset).await;
    }
    session.appliance.datasets_changed().await;
    tell(session, &report)
}

/// Makes writable clones of the copy, or with `--end` destroys them.
async fn test(session: &Session, args: &Arguments, name: &str) -> Outcome {
    let job = job(session, name)?;
    let failed = |error: ReplicationError| session.fail(format!("cannot test '{name}': {error}"));
    let target = target_of(&session.appliance, &job).await.map_err(failed)?;
    if args.has('n') {
        let foretold = foretold::test(session, &job, &*target, args.has_long("end")).await;
        return foretold.map_err(failed);
    }
    if args.has_long("end") {
        for clone in replication::test_clones(&job, &*target)
            .await
            .map_err(failed)?
        {
            if matches!(job.target(), Ok(Location::Local(_))) {
                session
                    .appliance
                    .unmount_for(&clone)
                    .await
                    .map_err(|why| session.fail(why))?;
            }
            target.destroy(&clone).await.map_err(failed)?;
            session.out.line(format!("destroyed {clone}"));
        }
    } else {
        for clone in replication::test(&job, &*target).await.map_err(failed)? {
            session.out.line(format!("{clone} is writable"));
            follow(session, &job.target(), &clone).await;
        }
    }
    session.appliance.datasets_changed().await;
    Ok(())
}

/// Clones, reads and compares what the job sent, and prints what was found.
async fn test_restore(session: &Session, args: &Arguments, name: &str) -> Outcome {
    let job = job(session, name)?;
    job.check_testable()
        .map_err(|error| refused(session, &error))?;
    if args.has('n') {
        let foretold = async {
            let target = target_of(&session.appliance, &job).await?;
            replication::foresee_test_restore(&job, &*target).await
        };
        let foretold = foretold.await;
        let snapshots =
            foretold.map_err(|error| session.fail(format!("cannot test '{name}': {error}")))?;
        for snapshot in snapshots {
            let clone = replication::clone_name(&job);
            session
                .out
                .line(format!("{snapshot} would be cloned as {clone} and read"));
        }
        return Ok(());
    }
    let report = restore_tests::run(&session.appliance, &job).await;
    let report = report.ok_or_else(|| {
        session.fail(format!(
            "a test of '{name}' is under way: 'sanbox replication show {name}' says how far it is"
        ))
    })?;
    tell_report(session, &report);
    match report.is_passed() {
        true => Ok(()),
        false => Err(Exit(1)),
    }
}

/// Prints what a test of a restore found, dataset by dataset.
fn tell_report(session: &Session, report: &RestoreReport) {
    session.out.line(told_report(report));
    for tested in &report.datasets {
        let compared = match &tested.not_compared {
            None => "as at the source".to_owned(),
            Some(why) => format!("not compared: {why}"),
        };
        let verdict = match tested.failed {
            0 => compared,
            failed => format!("{failed} FAILED"),
        };
        session.out.line(format!(
            "  {}@{}: {} files, {} others, {}: {verdict}",
            tested.dataset,
            tested.snapshot,
            tested.files,
            tested.others,
            nice_bytes(tested.bytes)
        ));
        for failure in &tested.failures {
            let path = if failure.path.is_empty() {
                "-"
            } else {
                &failure.path
            };
            session.out.line(format!("    {path}: {}", failure.why));
        }
        let unnamed = tested.failed - tested.failures.len() as u64;
        if unnamed > 0 {
            session.out.line(format!("    and {unnamed} more"));
        }
    }
    if let Some(failure) = &report.failure {
        session.out.line(format!("  it ended early: {failure}"));
    }
}

/// Prints what the tests of a restore found, the newest first.
fn reports(session: &Session, args: &Arguments, name: &str) -> Outcome {
    job(session, name)?;
    let reports = session
        .appliance
        .replications()
        .restore_tests()
        .reports(name);
    if args.has('j') {
        let reports: Vec<&RestoreReport> = reports.iter().map(|report| &**report).collect();
        let text =
            serde_json::to_string_pretty(&serde_json::json!({ "job": name, "reports": reports }));
        session.out.line(text.unwrap_or_default());
        return Ok(());
    }
    if reports.is_empty() {
        session.out.line(format!(
            "no restore of '{name}' was tested ('sanbox replication test-restore {name}' does it now, --test-schedule by itself)"
        ));
    }
    for report in reports {
        tell_report(session, &report);
    }
    Ok(())
}

/// Forgets a job. What it holds on both sides is given up before, as far as they can be reached.
async fn remove(session: &Session, args: &Arguments, name: &str) -> Outcome {
    let job = job(session, name)?;
    let keep = args.has_long("keep-holds");
    if args.has('n') {
        told_removal(session, &job, keep);
        return Ok(());
    }
    let replications = session.appliance.replications();
    if !keep {
        // A run meanwhile would take the holds anew.
        let paused = replications.change(|jobs| jobs.change(name, |job| job.paused = true));
        paused.map_err(|error| refused(session, &error))?;
        stop(session, name).await?;
        release(session, &job).await;
    }
    let removed = replications.change(|jobs| jobs.remove(name));
    replications.forget(name);
    removed.map_err(|error| refused(session, &error))?;
    let held = match keep {
        true => format!(
            ", with a hold '{}' on its newest common snapshot",
            job.tag()
        ),
        false => String::new(),
    };
    session
        .out
        .line(format!("'{}' stays as it is: read-only{held}", job.to));
    Ok(())
}

fn told_removal(session: &Session, job: &Job, keep: bool) {
    let (from, to, tag) = (&job.from, &job.to, job.tag());
    session.out.line(match keep {
        true => format!(
            "'{to}' would stay as it is: read-only, with a hold '{tag}' on its newest common snapshot"
        ),
        false => format!(
            "holds '{tag}', bookmarks and snapshots '{tag}-*' of '{from}' would be given up; '{to}' would stay as it is: read-only"
        ),
    });
}

fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// Gives up what a job that is to be removed holds. A side that cannot be reached keeps it.
async fn release(session: &Session, job: &Job) {
    let source = async {
        let source = source_of(&session.appliance, job).await?;
        replication::release_source(job, &*source).await
    };
    let kept = |place: &str, error: &ReplicationError| {
        session.out.error(format!(
            "what the job holds at '{place}' stays there (holds and bookmarks '{}'): {error}",
            job.tag()
        ));
    };
    match source.await {
        Ok(released) if released.is_nothing() => {}
        Ok(released) => {
            let counts = [
                (released.holds, "hold", ""),
                (released.bookmarks as u64, "bookmark", ""),
                (released.snapshots as u64, "snapshot", " of its own"),
            ];
            let counts = counts.into_iter().filter(|(count, ..)| *count > 0);
            let parts: Vec<String> = counts
                .map(|(count, what, more)| format!("{}{more}", counted(count, what)))
                .collect();
            let from = &job.from;
            session
                .out
                .line(format!("'{from}': gave up {}", parts.join(", ")));
        }
        Err(error) => kept(&job.from, &error),
    }
    let target = async {
        let target = target_of(&session.appliance, job).await?;
        replication::release_target(job, &*target).await
    };
    match target.await {
        Ok(0) => {}
        Ok(count) => session
            .out
            .line(format!("'{}': gave up {}", job.to, counted(count, "hold"))),
        Err(error) => kept(&job.to, &error),
    }
}

/// Writes what the target does not have to a disk that is carried there.
async fn export(session: &Session, args: &Arguments, name: &str, directory: &str) -> Outcome {
    let job = job(session, name)?;
    let failed = |error: ReplicationError| session.fail(format!("cannot export '{name}': {error}"));
    let source = source_of(&session.appliance, &job).await.map_err(failed)?;
    if args.has('n') {
        let path = session.path(directory);
        let planned = async {
            let tree = replication::foresee_export(&job, &*source, &path).await?;
            let bytes = replication::foresee_bytes(&job, &*source, &tree).await?;
            Ok((tree, bytes))
        };
        let (tree, bytes) = planned.await.map_err(failed)?;
        told_plan(session, &job, &tree)?;
        told_room(session, path, bytes).await;
        return Ok(());
    }
    // A run meanwhile would begin to send all of it another way.
    if !job.paused {
        pause(session, name, true)?;
        stop(session, name).await?;
    }
    let progress = Arc::<Progress>::default();
    let directory = session.path(directory);
    let now = jiff::Timestamp::now();
    let work = replication::export(&job, &*source, &directory, &progress, now);
    let (streams, report) = with_progress(session, &progress, work)
        .await
        .map_err(failed)?;
    session.out.line(format!(
        "{} snapshots, {} are in {}",
        report.sent.len(),
        nice_bytes(progress.done_bytes()),
        streams.display()
    ));
    if !job.raw {
        session.out.error("note: what is encrypted in the pool is in the clear there, unless the job sends it raw (--raw)");
    }
    session.out.error(format!(
        "'{name}' is paused: give 'sanbox replication import {}' where the target is, then 'sanbox replication resume {name}' here",
        streams.display()
    ));
    tell(
        session,
        &Report {
            sent: Vec::new(),
            ..report
        },
    )
}

/// Says how much an export would write, and whether the disk has room for it.
async fn told_room(session: &Session, directory: PathBuf, bytes: u64) {
    let asked = directory.clone();
    let seen = paths::call_within(DISK_ANSWER_TIMEOUT, &directory, move || {
        rustix::fs::statvfs(&asked)
    });
    let free = match seen.await {
        Ok(Ok(seen)) => Some(seen.f_bavail.saturating_mul(seen.f_frsize)),
        _ => None,
    };
    let room = match free {
        Some(free) if free < bytes => format!(", and only {} are free", nice_bytes(free)),
        Some(free) => format!(", of {} that are free", nice_bytes(free)),
        None => String::new(),
    };
    session.out.line(format!(
        "about {} would be written{room}",
        nice_bytes(bytes)
    ));
}

/// Receives what an export wrote.
async fn import(session: &Session, args: &Arguments, directory: &str) -> Outcome {
    let failed =
        |error: ReplicationError| session.fail(format!("cannot import '{directory}': {error}"));
    let streams = replication::find_streams(&session.path(directory)).map_err(failed)?;
    let to = args.long("to");
    let job = replication::job_of(&streams, to).map_err(failed)?;
    let target = target_of(&session.appliance, &job).await.map_err(failed)?;
    if args.has('n') {
        let tree = replication::foresee_import(&streams, to, &*target).await;
        return told_plan(session, &job, &tree.map_err(failed)?);
    }
    let progress = Arc::<Progress>::default();
    let now = jiff::Timestamp::now();
    let work = replication::import(&streams, to, &*target, &progress, now);
    let imported = with_progress(session, &progress, work).await;
    session.appliance.datasets_changed().await;
    let (_, report) = imported.map_err(failed)?;
    tell(session, &report)
}

/// Waits for the end of a run that writes to a disk or reads from one, and says every now and then how far it is.
async fn with_progress<T>(
    session: &Session,
    progress: &Progress,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    loop {
        match tokio::time::timeout(PROGRESS_EVERY, &mut work).await {
            Ok(done) => return done,
            Err(_) => {
                let text = format!("{}: {}", progress.current(), running(progress));
                session.out.error(text);
                // A client that is gone ends the command.
                let _ = session.out.flush().await;
            }
        }
    }
}
