//! Months of jobs that are turned round: failovers, takeovers and ways back at random times and at both appliances, while the link between them
//! comes and goes, requests break off anywhere and the process that has the job ends in the middle.
//!
//! At each moment: once both sides could reach each other for a while, of a dataset and its copy at most one is in use; what is rolled back was
//! not in use in place of the other; nothing that was acknowledged is gone but by a rollback that a person asked for, and no dataset and no
//! snapshot of others. In the end exactly one of the two is in use, and both have all of it.

use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::{BoxFuture, ready};

use super::super::fence::acts_as;
use super::troubled::{Break, Trouble, TroubledSide};
use super::*;

/// What the daemon leaves between two looks at a job that does not run, or fails.
const WATCH: Duration = Duration::from_secs(60);
/// How long both may be in use while the two sides reach each other: until the next run of the job, or look at one that fails.
const BOTH_MAX: Duration = Duration::from_secs(7 * 60);
/// Seeds that failed: datasets in use were rolled back beside others that were brought back; two that were put in use without knowing of each
/// other had the same generation, and neither was fenced; a source that was put in use again after a way back that was cut off kept its mark.
const KEPT: [u64; 6] = [90, 138, 172, 221, 275, 290];
/// Lines of what happened that are shown of a seed that fails.
const LOG_SHOWN: usize = 60;
/// What the source had of `readonly` by itself.
const READ_ONLY: &str = "tank/a/two";

/// What a person gives.
#[derive(Clone, Copy, Debug)]
enum Deed {
    FailOver,
    FailBack { rollback: bool },
    TakeOverCopy,
    TakeOverSource,
    Adopt,
}

struct Campaign {
    seed: u64,
    random: Seeded,
    source: Side,
    target: Side,
    trouble: Trouble,
    job: Job,
    /// The job is the target's.
    pulls: bool,
    passed: Duration,
    /// Since when both sides reach each other, and the process of the job goes on.
    linked_since: Option<Duration>,
    due: Duration,
    watch_due: Duration,
    backoff: Backoff,
    is_failing: bool,
    writes: u64,
    acknowledged: BTreeSet<u64>,
    seen: Seen,
    log: Vec<String>,
}

/// What the campaign is about, and has to meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Situation {
    FailedOver,
    TakenOverWhileCutOff,
    FailedBack,
    SourcePutInUseAgain,
    Adopted,
    /// A command ended in the middle: of its process, or of the link.
    CutOff,
    /// Its copy was in use when the two met.
    SourceFenced,
    /// Its source was put in use again.
    CopyFenced,
}

/// How often each was met.
type Seen = BTreeMap<Situation, u64>;

impl Campaign {
    fn new(seed: u64) -> Self {
        let line =
            ["take = true", "", "continuous = true"][usize::try_from(seed % 3).expect("small")];
        let text =
            format!("name = 'j'\nfrom = 'tank/a'\nto = 'back/a'\nrecursive = true\n{line}\n");
        let (source, target) = (Side::new(1), Side::new(1 << 40));
        for name in DATASETS {
            source.model().make(name);
            source.model().snapshot(&format!("{name}@first"));
        }
        source.model().set(READ_ONLY, "readonly", Some("on"));
        let states = source.model().states.clone();
        target.model().states = states;
        Self {
            seed,
            random: Seeded(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            source,
            target,
            trouble: Trouble::default(),
            job: toml::from_str(&text).expect("a job"),
            pulls: seed % 2 == 1,
            passed: Duration::ZERO,
            linked_since: Some(Duration::ZERO),
            due: Duration::ZERO,
            watch_due: Duration::ZERO,
            backoff: Backoff::default(),
            is_failing: false,
            writes: 0,
            acknowledged: BTreeSet::new(),
            seen: Seen::new(),
            log: Vec::new(),
        }
    }

    fn fail(&self, what: impl std::fmt::Display) -> ! {
        for line in &self.log[self.log.len().saturating_sub(LOG_SHOWN)..] {
            eprintln!("{line}");
        }
        for (source, copy) in self.pairs() {
            eprintln!("{}", brief(&source));
            if let Some(copy) = copy {
                eprintln!("    {}", brief(&copy));
            }
        }
        panic!("seed {}, after {:?}: {what}", self.seed, self.passed)
    }

    /// Keeps what happened, once as long as it stays the same.
    fn note(&mut self, what: String) {
        let is_known = self.log.last().is_some_and(|last| last.ends_with(&what));
        if !is_known {
            self.log.push(format!("{:?}: {what}", self.passed));
        }
    }

    /// The side that the job lies at.
    fn near(&self) -> &Side {
        match self.pulls {
            true => &self.target,
            false => &self.source,
        }
    }

    /// The side that the job does not lie at.
    fn far(&self) -> &Side {
        match self.pulls {
            true => &self.source,
            false => &self.target,
        }
    }

    fn sides(&self) -> (TroubledSide, TroubledSide) {
        let side = |side: &Side| TroubledSide {
            side: side.clone(),
            trouble: self.trouble.clone(),
        };
        (side(&self.source), side(&self.target))
    }

    fn now(&self) -> Timestamp {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        start + SignedDuration::try_from(self.passed).expect("short")
    }

    /// Waits for what the process of the job does; `None`, and it begins anew, when it ended in the middle.
    fn given<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let done = work.now_or_never();
        if done.is_none() {
            self.note("the process ended".to_owned());
            self.restart();
        }
        // What breaks off is the link, whichever side was asked.
        let is_up = self.far().model().reachable && self.near().model().reachable;
        self.near().model().reachable = true;
        self.link(is_up);
        done
    }

    fn link(&mut self, is_up: bool) {
        self.far().model().reachable = is_up;
        match is_up {
            true => {
                self.linked_since.get_or_insert(self.passed);
            }
            false => self.linked_since = None,
        }
    }

    /// The process of the job begins anew: before it serves it asks the other side which of the two is in use.
    fn restart(&mut self) {
        *self.trouble.lock().expect("one thread") = None;
        (self.due, self.watch_due) = (self.passed, self.passed);
        self.backoff = Backoff::default();
        self.linked_since = self.linked_since.map(|_| self.passed);
        let (source, target) = self.sides();
        let settled = settle_fences(&self.job, &source, &target).now_or_never();
        if let Some(Ok(fenced)) = settled {
            self.note(format!("asked before serving: {fenced:?}"));
            self.count_fenced(&fenced);
        }
    }

    fn daemon(&mut self) {
        let is_idle = self.job.failed_over;
        if (is_idle || self.is_failing) && self.passed >= self.watch_due {
            self.settle_fences();
            self.watch_due = self.passed + WATCH;
        }
        if is_idle || self.passed < self.due {
            return;
        }
        let (source, target) = self.sides();
        let job = self.job.clone();
        let Some(result) = self.given(run_job(&job, &source, &target, self.now())) else {
            return;
        };
        let random = u32::try_from(self.random.below(1 << 32)).expect("below");
        let problem = match &result {
            Ok(report) => report.problems.first().map(|(_, error)| error.clone()),
            Err(error) => Some(error.clone()),
        };
        self.is_failing = problem.is_some();
        self.due = self.passed
            + match &problem {
                Some(error) if error.is_transient() => self.backoff.fail(random),
                _ => self.job.interval().expect("one"),
            };
        if problem.is_none() {
            self.backoff.succeed();
        }
        if met_in_use(&result) {
            self.settle_fences();
        }
    }

    fn settle_fences(&mut self) {
        let (source, target) = self.sides();
        let job = self.job.clone();
        let settled = self.given(settle_fences(&job, &source, &target));
        if let Some(Err(error)) = &settled {
            self.note(format!("fences cannot be settled: {error}"));
        }
        if let Some(Ok(fenced)) = settled
            && !fenced.is_empty()
        {
            self.note(format!("fenced {fenced:?}"));
            self.count_fenced(&fenced);
        }
    }

    fn count(&mut self, situation: Situation) {
        *self.seen.entry(situation).or_default() += 1;
    }

    fn count_fenced(&mut self, fenced: &[String]) {
        let is_source = |name: &&String| DATASETS.contains(&name.as_str());
        if fenced.iter().any(|name| is_source(&name)) {
            self.count(Situation::SourceFenced);
        }
        if !fenced.iter().all(|name| is_source(&name)) {
            self.count(Situation::CopyFenced);
        }
    }

    fn count_given(&mut self, deed: Deed, done: Option<&Result<(), ReplicationError>>) {
        let is_linked = self.far().model().reachable;
        match (deed, done) {
            (_, None | Some(Err(ReplicationError::Unreachable { .. }))) => {
                self.count(Situation::CutOff);
            }
            (_, Some(Err(_))) => {}
            (Deed::FailOver | Deed::TakeOverCopy, _) if is_linked => {
                self.count(Situation::FailedOver);
            }
            (Deed::FailOver | Deed::TakeOverCopy, _) => {
                self.count(Situation::TakenOverWhileCutOff);
            }
            (Deed::FailBack { .. }, _) => self.count(Situation::FailedBack),
            (Deed::TakeOverSource, _) => self.count(Situation::SourcePutInUseAgain),
            (Deed::Adopt, _) => self.count(Situation::Adopted),
        }
    }

    /// Gives a command, and what its refusal names in place of it.
    fn give_as_told(&mut self, deed: Deed) {
        let Some(Err(ReplicationError::Refused(refusal))) = self.give(deed) else {
            return;
        };
        match refusal {
            Refusal::Superseded { .. } => self.give(Deed::Adopt),
            Refusal::PartlyTurned { .. } => self.give(Deed::TakeOverSource),
            _ => None,
        };
    }

    /// Gives a command; `None` when the process ended in the middle.
    fn give(&mut self, deed: Deed) -> Option<Result<(), ReplicationError>> {
        let winners = self.winners();
        let given_up = self.given_up();
        // Where the far side is, the link does not matter, and no job is known.
        let is_there = match deed {
            Deed::TakeOverCopy => !self.pulls,
            Deed::TakeOverSource => self.pulls,
            _ => false,
        };
        let done = match is_there {
            true => self.give_there(deed),
            false => {
                let host = self.host();
                let done = self.given(host.give(deed));
                // The table of jobs is on stable storage.
                self.job.failed_over = host.failed_over.into_inner();
                self.due = self.passed;
                done
            }
        };
        let told = match &done {
            None => "cut off".to_owned(),
            Some(Ok(())) => "done".to_owned(),
            Some(Err(error)) => error.to_string(),
        };
        self.note(format!("{deed:?}: {told}"));
        self.count_given(deed, done.as_ref());
        // They meet anew after it.
        self.linked_since = self.linked_since.map(|_| self.passed);
        // What was rolled back was not in use in place of the other.
        let lost: BTreeSet<u64> = self.given_up().difference(&given_up).copied().collect();
        for (name, writes) in winners {
            if !writes.is_disjoint(&lost) {
                self.fail(format!(
                    "{deed:?} gave up what was written to {name}, which was in use"
                ));
            }
        }
        done
    }

    /// Has a command given at the side that the job does not lie at.
    fn give_there(&mut self, deed: Deed) -> Option<Result<(), ReplicationError>> {
        let is_linked = self.far().model().reachable;
        self.far().model().reachable = true;
        let (source, target) = self.sides();
        let done = match deed {
            Deed::TakeOverCopy => take_over_at(&target, "back/a", None).now_or_never(),
            _ => take_over_at(&source, "tank/a", None).now_or_never(),
        };
        self.near().model().reachable = true;
        self.link(is_linked);
        if done.is_none() {
            *self.trouble.lock().expect("one thread") = None;
        }
        done
    }

    fn host(&self) -> SimulatedHost {
        let (source, target) = self.sides();
        SimulatedHost {
            job: self.job.clone(),
            source,
            target,
            now: self.now(),
            failed_over: AtomicBool::new(self.job.failed_over),
        }
    }

    fn given_up(&self) -> BTreeSet<u64> {
        let (source, target) = (self.source.model(), self.target.model());
        source.given_up.union(&target.given_up).copied().collect()
    }

    /// Datasets of the source, each with its copy.
    fn pairs(&self) -> Vec<(ReplicaDataset, Option<ReplicaDataset>)> {
        let (source, target) = (self.source.model(), self.target.model());
        let copy = |name: &str| target.datasets.get(&copy_of(name)).cloned();
        DATASETS
            .iter()
            .map(|name| (source.datasets[*name].clone(), copy(name)))
            .collect()
    }

    /// What is in use with the highest generation, and what was written to it.
    fn winners(&self) -> Vec<(String, BTreeSet<u64>)> {
        let mut winners = Vec::new();
        for (source, copy) in self.pairs() {
            let copy = copy.filter(ReplicaDataset::is_in_use);
            let is_source = source.is_in_use_as_source()
                && copy
                    .as_ref()
                    .is_none_or(|copy| acts_as(&source).generation >= acts_as(copy).generation);
            let (side, name) = match (is_source, copy) {
                (true, _) => (&self.source, source.name),
                (false, Some(copy)) => (&self.target, copy.name),
                (false, None) => continue,
            };
            let written = side.model().written.get(&name).cloned();
            winners.push((name, written.unwrap_or_default()));
        }
        winners
    }

    /// Clients write to what they find in use, and policies take snapshots.
    fn live(&mut self) {
        for side in [self.source.clone(), self.target.clone()] {
            let mut model = side.model();
            let names: Vec<String> = model.datasets.keys().cloned().collect();
            for name in names {
                let dataset = &model.datasets[&name];
                let is_used = match dataset.mark {
                    None => dataset.is_in_use_as_source(),
                    Some(_) => dataset.is_in_use(),
                };
                let is_whole = !dataset.snapshots.is_empty();
                if !is_used || !is_whole || model.is_read_only(&name) {
                    continue;
                }
                if self.random.below(3) == 0 {
                    self.writes += 1;
                    self.acknowledged.insert(self.writes);
                    model
                        .written
                        .entry(name.clone())
                        .or_default()
                        .insert(self.writes);
                    model.datasets.get_mut(&name).expect("there").written_bytes += 1;
                    model.is_unwritten = true;
                }
                if self.random.below(8) == 0 {
                    // Names are those of one side.
                    let own = format!("{name}@auto-{}-{}", &name[..1], model.taken);
                    model.snapshot(&own);
                }
            }
        }
    }

    fn check(&mut self) {
        let lost: Vec<u64> = {
            let (mut source, mut target) = (self.source.model(), self.target.model());
            let mut replaced = std::mem::take(&mut source.replaced);
            replaced.append(&mut target.replaced);
            replaced.retain(|write| {
                let mut written = source.written.values().chain(target.written.values());
                let is_given_up =
                    source.given_up.contains(write) || target.given_up.contains(write);
                !is_given_up && !written.any(|written| written.contains(write))
            });
            replaced.into_iter().collect()
        };
        if !lost.is_empty() {
            self.fail(format!("acknowledged and lost: {lost:?}"));
        }
        for side in [&self.source, &self.target] {
            let destroyed = std::mem::take(&mut side.model().destroyed);
            if let Some(foreign) = destroyed
                .iter()
                .find(|name| tag_of_snapshot(name).is_none())
            {
                self.fail(format!("'{foreign}' was not the job's"));
            }
        }
        let is_met = self
            .linked_since
            .is_some_and(|since| self.passed - since > BOTH_MAX);
        let both = DATASETS.iter().find(|name| {
            let (source, target) = (self.source.model(), self.target.model());
            let copy = target.datasets.get(&copy_of(name));
            source.datasets[**name].is_in_use_as_source()
                && copy.is_some_and(ReplicaDataset::is_in_use)
        });
        if let (true, Some(both)) = (is_met, both) {
            self.fail(format!("{both} is in use, and its copy"));
        }
    }

    fn pass(&mut self, step: u64) {
        // The daemon looks every few seconds; between two looks of a step nothing else changes.
        let end = self.passed + Duration::from_secs(step);
        while self.passed < end {
            self.passed = end.min(self.passed + Duration::from_secs(30));
            for side in [&self.source, &self.target] {
                side.model().clock = self.now().as_second();
            }
            self.daemon();
            self.live();
            self.check();
        }
    }

    fn trouble(&mut self) {
        let deed = match self.random.below(16) {
            0..3 => return self.link(false),
            3 => return self.restart(),
            4 | 5 => {
                let due = Break {
                    requests_left: self.random.below(40),
                    is_after: self.random.below(2) == 0,
                    is_killed: self.random.below(2) == 0,
                };
                *self.trouble.lock().expect("one thread") = Some(due);
                return;
            }
            6 => Deed::FailOver,
            7 => Deed::FailBack { rollback: false },
            8 => Deed::FailBack { rollback: true },
            9 => Deed::TakeOverCopy,
            10 => Deed::TakeOverSource,
            11 => Deed::Adopt,
            _ => return self.mend(),
        };
        self.give(deed);
    }

    fn mend(&mut self) {
        *self.trouble.lock().expect("one thread") = None;
        self.link(true);
    }

    /// The link is up; after some rounds of the daemon, and what people are asked for, one of each pair is in use and has all.
    fn settle(&mut self) {
        self.mend();
        self.pass(8000);
        // What was cut off is given again.
        for round in 0.. {
            let Some(deed) = self.unfinished() else {
                break;
            };
            if round > 10 {
                self.fail(format!("{deed:?} changes nothing"));
            }
            self.give_as_told(deed);
            self.pass(400);
        }
        self.check_one();
        // What was cut off is given again, until the source is in use and its copy waits.
        for round in 0.. {
            let (source, target): (Vec<_>, Vec<_>) = self.pairs().into_iter().unzip();
            let copies: Vec<ReplicaDataset> = target.into_iter().flatten().collect();
            let is_turned = self.job.failed_over || copies.iter().any(ReplicaDataset::is_in_use);
            let is_fenced = copies.iter().any(|copy| copy.fence.is_some());
            if is_fenced && source.iter().all(ReplicaDataset::is_in_use_as_source) {
                self.give_as_told(Deed::Adopt);
            } else if is_fenced && source.iter().any(ReplicaDataset::is_in_use_as_source) {
                // Of some datasets the source is in use, of others the copy: all of the source is put in use.
                self.give_as_told(Deed::TakeOverSource);
            } else if copies.iter().any(ReplicaDataset::is_in_use)
                && source.iter().any(ReplicaDataset::is_in_use_as_source)
            {
                // A takeover of the copy that was cut off.
                self.give_as_told(Deed::TakeOverCopy);
            } else if is_turned || source.iter().any(|one| one.mark.is_some()) {
                self.give_as_told(Deed::FailBack { rollback: true });
            } else if source.iter().any(|one| one.fence.is_some()) {
                self.give_as_told(Deed::TakeOverSource);
            } else if copies.iter().any(|copy| copy.fence.is_some()) || self.is_failing {
                self.give_as_told(Deed::Adopt);
            } else {
                break;
            }
            self.pass(400);
            if round > 10 {
                self.fail("it does not come to rest");
            }
        }
        self.pass(4000);
        self.check_one();
        self.check_end();
    }

    /// What is to be given again where a command was cut off, and neither of a pair is in use; the alert of the fence tells it.
    fn unfinished(&self) -> Option<Deed> {
        let is_none = |(source, copy): &(ReplicaDataset, Option<ReplicaDataset>)| {
            !source.is_in_use_as_source() && !copy.as_ref().is_some_and(ReplicaDataset::is_in_use)
        };
        let mut pairs = self.pairs().into_iter();
        let (source, _) = pairs.find(is_none)?;
        Some(match (self.job.failed_over, source.mark) {
            (true, None) => Deed::FailOver,
            (true, Some(_)) => Deed::FailBack { rollback: true },
            (false, _) => Deed::TakeOverSource,
        })
    }

    /// Exactly one of each pair is in use.
    fn check_one(&self) {
        for (source, copy) in self.pairs() {
            let copy = copy.filter(ReplicaDataset::is_in_use);
            if source.is_in_use_as_source() == copy.is_some() {
                self.fail(format!("not one of {} and its copy is in use", source.name));
            }
        }
    }

    fn check_end(&mut self) {
        for (source, copy) in self.pairs() {
            let Some(copy) = copy else {
                self.fail(format!("{} has no copy", source.name));
            };
            let (here, there) = (self.source.model(), self.target.model());
            let is_as_it_was = here.is_read_only(&source.name) == (source.name == READ_ONLY);
            let is_clean = source.mark.is_none() && source.fence.is_none() && copy.fence.is_none();
            // The note may stay that a dataset is read-only by itself, when it still is.
            let is_plain =
                copy.identity.is_none() && (!source.readonly.is_kept || source.name == READ_ONLY);
            if !is_as_it_was || !is_clean || !is_plain || !there.is_read_only(&copy.name) {
                drop((here, there));
                self.fail(format!("{} and its copy are not as they were", source.name));
            }
        }
        let (source, target) = (self.source.model(), self.target.model());
        let at = |model: &Model| -> BTreeSet<u64> {
            model.written.values().flatten().copied().collect()
        };
        let given_up = source.given_up.union(&target.given_up).copied().collect();
        let lost: Vec<u64> = self
            .acknowledged
            .difference(&given_up)
            .filter(|write| !at(&source).contains(write))
            .copied()
            .collect();
        drop((source, target));
        if !lost.is_empty() {
            self.fail(format!("lost in the end: {lost:?}"));
        }
    }
}

fn copy_of(name: &str) -> String {
    name.replace("tank", "back")
}

/// What a seed that fails shows of a dataset.
fn brief(dataset: &ReplicaDataset) -> String {
    let ReplicaDataset {
        name,
        guid,
        mark,
        identity,
        fence,
        readonly,
        written_bytes,
        ..
    } = dataset;
    let newest = dataset.snapshots.last().map(|point| &point.name);
    format!(
        "{name} {guid}: {mark:?}, {identity:?}, {fence:?}, {readonly:?}, {newest:?} + {written_bytes}"
    )
}

/// A run as the daemon makes it.
async fn run_job(
    job: &Job,
    source: &TroubledSide,
    target: &TroubledSide,
    now: Timestamp,
) -> Result<Report, ReplicationError> {
    let report = run(job, source, target, &Arc::default(), now).await?;
    if !report.fenced_for_none.is_empty() {
        lift_fences(source, job.source_root(), &report.fenced_for_none).await?;
    }
    Ok(report)
}

/// The job as a command finds it.
struct SimulatedHost {
    job: Job,
    source: TroubledSide,
    target: TroubledSide,
    now: Timestamp,
    failed_over: AtomicBool,
}

impl SimulatedHost {
    /// What `sanbox replication` does where the job is.
    async fn give(&self, deed: Deed) -> Result<(), ReplicationError> {
        match deed {
            Deed::FailOver => fail_over_here(self).await,
            Deed::FailBack { rollback } => {
                let report = fail_back_job(&self.job, self, rollback).await?;
                let not_turned = || ReplicationError::Failed("it is not turned round".to_owned());
                report.map(drop).ok_or_else(not_turned)
            }
            Deed::TakeOverCopy => take_over_at(&self.target, "back/a", Some(self)).await,
            Deed::TakeOverSource => take_over_at(&self.source, "tank/a", Some(self)).await,
            Deed::Adopt => adopt_job(&self.job, self, true).await.map(drop),
        }
    }
}

impl JobHost for SimulatedHost {
    fn source(&self) -> Reached<'_, Box<dyn Switchover>> {
        let side: Box<dyn Switchover> = Box::new(self.source.clone());
        ready(Ok(side)).boxed()
    }

    fn target(&self) -> Reached<'_, Box<dyn Switchover>> {
        let side: Box<dyn Switchover> = Box::new(self.target.clone());
        ready(Ok(side)).boxed()
    }

    fn stop(&self) -> Reached<'_, ()> {
        ready(Ok(())).boxed()
    }

    fn run<'a>(&'a self, job: &'a Job) -> Reached<'a, Report> {
        let now = self.now;
        async move { run(job, &self.source, &self.target, &Arc::default(), now).await }.boxed()
    }

    fn now(&self) -> Timestamp {
        self.now
    }

    fn write_down(&self, failed_over: bool) -> Result<(), ReplicationError> {
        self.failed_over.store(failed_over, Ordering::Relaxed);
        Ok(())
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }

    fn note(&self, _note: &TurnNote) {}
}

/// `sanbox replication failover`.
async fn fail_over_here(host: &SimulatedHost) -> Result<(), ReplicationError> {
    match fail_over_job(&host.job, host).await {
        Ok(_) => Ok(()),
        Err(NotTurned::Failed(error)) => Err(error),
        Err(NotTurned::Incomplete(report)) => {
            let first = report.problems.into_iter().next();
            Err(first.expect("something was left out").1)
        }
    }
}

/// `sanbox replication takeover`, where the dataset is; the job is there, or not.
async fn take_over_at(
    side: &TroubledSide,
    root: &str,
    host: Option<&SimulatedHost>,
) -> Result<(), ReplicationError> {
    let jobs: Vec<Job> = host.iter().map(|host| host.job.clone()).collect();
    match takeover_of(side, root, &jobs).await? {
        Takeover::Sources(sources) => {
            let jobs: Vec<(&Job, &dyn JobHost)> = host
                .iter()
                .map(|host| (&host.job, *host as &dyn JobHost))
                .collect();
            reclaim_sources(side, &sources, &jobs).await
        }
        Takeover::TargetOf(_) => fail_over_here(host.expect("it has the job")).await,
        Takeover::Copy(job) => take_over(side, root, &job).await.map(drop),
    }
}

fn campaign(seed: u64) -> Seen {
    let mut campaign = Campaign::new(seed);
    campaign.pass(400);
    for _ in 0..80 {
        campaign.trouble();
        let step = match campaign.random.below(3) {
            0 => 1,
            1 => campaign.random.below(120),
            _ => 60 + campaign.random.below(2400),
        };
        campaign.pass(step);
    }
    campaign.settle();
    campaign.seen
}

#[test]
fn of_a_source_and_its_copy_one_is_in_use_whatever_happens() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let first = number("SANBOX_SEED_FIRST").unwrap_or(0);
    let asked = number("SANBOX_SEEDS");
    let seeds = first..first + asked.unwrap_or(15);
    let kept = KEPT.iter().copied().filter(|_| asked.is_none());
    let (mut seen, mut failed) = (Seen::new(), Vec::new());
    for seed in seeds.clone().chain(kept) {
        match std::panic::catch_unwind(|| campaign(seed)) {
            Ok(met) => {
                for (situation, count) in met {
                    *seen.entry(situation).or_default() += count;
                }
            }
            Err(_) => failed.push(seed),
        }
    }
    eprintln!("{} seeds: {seen:?}", seeds.end - seeds.start);
    assert_eq!(failed, [0; 0]);
    // One seed alone may miss some.
    assert!(seen.len() == 8 || seeds.end - seeds.start < 15, "{seen:?}");
}

/// A command that is cut off at one of its requests, by the end of its process or of the link, and another one given after clients went on;
/// `None` when it came to its end.
fn cut_off(seed: u64, before: &[Deed], deed: Deed, due: Break, after: Deed) -> Option<()> {
    let mut campaign = Campaign::new(seed);
    campaign.pass(400);
    for deed in before {
        campaign.give(*deed);
        campaign.pass(400);
    }
    *campaign.trouble.lock().expect("one thread") = Some(due);
    let done = campaign.give(deed);
    if let Some(Ok(())) = done {
        return None;
    }
    campaign.mend();
    campaign.pass(400);
    campaign.give(after);
    campaign.settle();
    Some(())
}

#[test]
fn a_failover_that_is_given_again_sends_what_was_written_meanwhile() {
    // A job that takes snapshots, at the target.
    let mut begun_anew = 0;
    for requests_left in 0.. {
        let mut campaign = Campaign::new(3);
        campaign.pass(400);
        // The source is not reached, and not fenced.
        campaign.link(false);
        *campaign.trouble.lock().expect("one thread") = Some(Break {
            requests_left,
            is_after: true,
            is_killed: true,
        });
        if campaign.give(Deed::FailOver).is_some() {
            break;
        }
        campaign.mend();
        campaign.live();
        campaign.live();
        let written = campaign.winners();
        if written.iter().any(|(name, _)| name.starts_with("back/")) {
            // A copy is in use, so that nothing is sent to it any more.
            continue;
        }
        begun_anew += usize::from(!written.is_empty() && campaign.job.failed_over);
        campaign
            .give(Deed::FailOver)
            .expect("the process goes on")
            .expect("both sides answer");
        let target = campaign.target.model();
        for (name, writes) in written {
            let copy = &target.written[&copy_of(&name)];
            assert!(writes.is_subset(copy), "{requests_left}: {name}");
        }
    }
    assert!(begun_anew > 0, "none was cut off between");
}

#[test]
fn a_command_that_is_cut_off_anywhere_is_gone_on_with_or_turned_back() {
    let back = Deed::FailBack { rollback: true };
    let commands: [(&[Deed], Deed); 5] = [
        (&[], Deed::FailOver),
        (&[], Deed::TakeOverCopy),
        (&[Deed::FailOver], back),
        (&[Deed::FailOver], Deed::TakeOverSource),
        (&[Deed::FailOver, Deed::TakeOverSource], Deed::Adopt),
    ];
    let mut requests = BTreeMap::new();
    for (seed, is_after, is_killed) in [(1, true, true), (2, false, false)] {
        for (before, deed) in commands {
            let afters = [back, Deed::TakeOverSource, Deed::Adopt, Deed::FailOver];
            let cut = (0..)
                .zip(afters.iter().cycle())
                .find(|(requests_left, after)| {
                    let due = Break {
                        requests_left: *requests_left,
                        is_after,
                        is_killed,
                    };
                    cut_off(seed, before, deed, due, **after).is_none()
                });
            let most: &mut u64 = requests.entry(format!("{deed:?}")).or_default();
            *most = cut.expect("an end").0.max(*most);
        }
    }
    // Each of them was cut off in its middle.
    assert!(
        requests.values().all(|requests| *requests > 5),
        "{requests:?}"
    );
}
