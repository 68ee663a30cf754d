//! Months of jobs as a daemon runs them, continuous ones too, with the real table of jobs on a clock of its own: requests that break off
//! anywhere, either side restarted in the middle, a target that is full or changed by hand, renamed and destroyed sources, clocks that jump
//! to 1970 and ten years ahead, and a second job that is after the same target.
//!
//! At each moment: as many snapshots as the policy and the jobs may have, none destroyed that is not a job's own, one alert a cause, no copy
//! that went its own way or lacks something without words. In the end people do what the words say, and both sides are equal.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use super::super::registry::Clock;
use super::troubled::{Break, Trouble, TroubledSide};
use super::*;

/// What is watched and what is not: names of the source.
const TREES: [&[&str]; 2] = [&DATASETS, &["tank/b", "tank/b/one"]];
/// 2026-01-01, where the clock begins.
const START: i64 = 1_767_225_600;
/// Snapshots of a job's own that a side may have: the newest common one, and the next.
const OWN_MAX: usize = 2;

struct SimulatedClock {
    start: Instant,
    /// Time that really passed, and how far the wall clock is off in seconds.
    passed: Mutex<(Duration, i64)>,
    random: Mutex<Seeded>,
}

impl SimulatedClock {
    fn passed(&self) -> Duration {
        self.passed.lock().expect("one thread").0
    }

    fn wall(&self) -> i64 {
        let (passed, error) = *self.passed.lock().expect("one thread");
        START + i64::try_from(passed.as_secs()).expect("short") + error
    }
}

impl Clock for Arc<SimulatedClock> {
    fn instant(&self) -> Instant {
        self.start + self.passed()
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.wall()).expect("a time")
    }

    fn random(&self) -> u32 {
        let random = self.random.lock().expect("one thread").below(1 << 32);
        u32::try_from(random).expect("below")
    }
}

/// A generator whose numbers do not resemble those of the next seed.
fn seeded(seed: u64) -> Seeded {
    Seeded(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
}

/// Whether a copy has the newest snapshot of its source, or what came after it and is there as a bookmark.
fn has_all(dataset: &ReplicaDataset, copy: Option<&ReplicaDataset>) -> bool {
    let Some(newest) = dataset.snapshots.last() else {
        return true;
    };
    let txg_of = |guid: u64| {
        let mut points = dataset.snapshots.iter().chain(&dataset.bookmarks);
        let point = points.find(|point| point.guid == guid)?;
        Some(point.create_txg)
    };
    let copied = copy.map_or(&[][..], |copy| &copy.snapshots[..]).iter();
    let common = copied.rev().find_map(|point| txg_of(point.guid));
    common.is_some_and(|txg| txg >= newest.create_txg)
}

struct Campaign {
    seed: u64,
    random: Seeded,
    clock: Arc<SimulatedClock>,
    source: Side,
    target: Side,
    trouble: Trouble,
    jobs: Vec<Job>,
    replications: Arc<Replications>,
    /// Keys of the alerts that are open.
    open: BTreeSet<String>,
    opened: usize,
    /// Causes that were planted.
    causes: usize,
    /// Runs that began.
    runs: usize,
    /// Hours of which the policy took a snapshot of a dataset.
    hours: BTreeSet<(String, u64)>,
}

impl Campaign {
    fn new(seed: u64) -> Self {
        let lines = [
            "continuous = true",
            "take = true",
            "",
            "newest_only = true",
            "continuous = true\nnewest_only = true\nevery = '1m'",
            "keep = 'hourly=6 zone=UTC'",
        ];
        let line = lines[usize::try_from(seed % 6).expect("small")];
        let job = |name: &str, from: &str, line: &str| -> Job {
            let text = format!(
                "name = '{name}'\nfrom = '{from}'\nto = 'back/a'\nrecursive = true\n{line}\n"
            );
            toml::from_str(&text).expect("a job")
        };
        let clock = Arc::new(SimulatedClock {
            start: Instant::now(),
            passed: Mutex::default(),
            random: Mutex::new(seeded(!seed)),
        });
        let (source, target) = (Side::new(1), Side::new(1 << 40));
        for name in TREES.into_iter().flatten() {
            source.model().make(name);
        }
        Self {
            seed,
            random: seeded(seed),
            source,
            target,
            trouble: Trouble::default(),
            jobs: vec![
                job("j", "tank/a", line),
                job("k", "tank/b", lines[usize::from(seed.is_multiple_of(2))]),
            ],
            replications: Self::started(&clock),
            clock,
            open: BTreeSet::new(),
            opened: 0,
            causes: 0,
            runs: 0,
            hours: BTreeSet::new(),
        }
    }

    fn started(clock: &Arc<SimulatedClock>) -> Arc<Replications> {
        Replications::with_clock(Path::new("/nonexistent"), Box::new(clock.clone()))
    }

    /// The process ends, and another one begins: it knows nothing but what the two sides have.
    fn restart(&mut self) {
        self.replications = Self::started(&self.clock);
        *self.trouble.lock().expect("one thread") = None;
        let mut target = self.target.model();
        target.is_killed_there = false;
        target.loses_marks = false;
        target.link_chunks = u64::MAX;
    }

    fn pass(&mut self, step: Duration) {
        self.clock.passed.lock().expect("one thread").0 += step;
        for side in [&self.source, &self.target] {
            side.model().clock = self.clock.wall();
        }
        self.live();
        self.attempt();
        self.check();
    }

    fn attempt(&mut self) {
        for job in self.jobs.clone() {
            if !self.replications.is_due(&job) {
                continue;
            }
            let side = |side: &Side| TroubledSide {
                side: side.clone(),
                trouble: self.trouble.clone(),
            };
            let (source, target) = (side(&self.source), side(&self.target));
            let (replications, now) = (self.replications.clone(), self.clock.now());
            let work = async {
                if replications.is_settled(&job, &source).await {
                    return None;
                }
                let (job, source, target) = (&job, &source, &target);
                let work = |progress| async move { run(job, source, target, &progress, now).await };
                replications.run(job, work).await
            };
            match work.now_or_never() {
                // Killed in the middle.
                None => self.restart(),
                Some(None) => self.check_settled(&job),
                Some(Some(ended)) => {
                    self.runs += 1;
                    self.check_run(&job, &ended);
                }
            }
        }
        self.alert();
    }

    /// What the daemon's check of alerts does.
    fn alert(&mut self) {
        let problems = self.replications.problems().into_iter();
        let conditions = problems.filter_map(|(job, error, failing)| {
            rules::replication(&job, &error, failing.as_secs())
        });
        let keys: BTreeSet<String> = conditions.map(|condition| condition.key).collect();
        self.opened += keys.difference(&self.open).count();
        self.open = keys;
    }

    fn fail(&self, what: impl std::fmt::Display) -> ! {
        panic!(
            "seed {}, after {:?}: {what}",
            self.seed,
            self.clock.passed()
        )
    }

    /// Datasets of the source, with the newest snapshot that is to be sent of each, and its copy.
    fn pairs(&self, job: &Job) -> Vec<(ReplicaDataset, Option<ReplicaDataset>)> {
        let (source, target) = (self.source.model(), self.target.model());
        let of_job = source.datasets.values().filter(|dataset| {
            dataset.name == job.from || dataset.name.starts_with(&format!("{}/", job.from))
        });
        let copy = |dataset: &ReplicaDataset| target.datasets.get(&job.target_of(&dataset.name));
        of_job
            .map(|dataset| (dataset.clone(), copy(dataset).cloned()))
            .collect()
    }

    /// No run looked at both sides, because the source told that the target has everything.
    fn check_settled(&self, job: &Job) {
        for (dataset, copy) in self.pairs(job) {
            if dataset.written_bytes > 0 || !has_all(&dataset, copy.as_ref()) {
                self.fail(format!("{} has more than its copy", dataset.name));
            }
        }
    }

    /// A run that says nothing has brought everything; one that says something has a reason.
    fn check_run(&self, job: &Job, ended: &Ended) {
        let causes = [
            "unreachable",
            "out of space",
            "source gone",
            "no parent",
            "other job",
            "foreign target",
            "diverged",
            "renamed",
        ];
        let Ok(report) = &ended.result else {
            let (_, error) = ended.problem().expect("an error is a problem");
            let is_collision = error.to_string() == "snapshot exists";
            if !causes.contains(&error.cause()) && !is_collision {
                self.fail(error);
            }
            return;
        };
        for (dataset, copy) in self.pairs(job) {
            let problem = report
                .problems
                .iter()
                .find(|(name, _)| *name == dataset.name);
            let above = |(name, _): &&(String, ReplicationError)| {
                dataset.name.starts_with(&format!("{name}/"))
            };
            if let Some((_, error)) = problem {
                if !causes.contains(&error.cause()) {
                    self.fail(error);
                }
                continue;
            }
            let is_told = report.problems.iter().any(|problem| above(&problem));
            if !has_all(&dataset, copy.as_ref()) && !is_told {
                self.fail(format!("{} is not whole, without words", dataset.name));
            }
        }
    }

    /// What may never be, at any moment.
    fn check(&self) {
        let is_own = |point: &&Point| tag_of_snapshot(&point.name).is_some();
        for dataset in self.source.model().datasets.values() {
            let own = dataset.snapshots.iter().filter(is_own).count();
            let others = dataset.snapshots.len() - own;
            // Two of the policy's may be held for initial streams.
            if own > OWN_MAX || others > POLICY_KEEPS + 2 || dataset.bookmarks.len() > 2 + 32 {
                let (snapshots, bookmarks) = (&dataset.snapshots, &dataset.bookmarks);
                self.fail(format!("{}: {snapshots:?} {bookmarks:?}", dataset.name));
            }
        }
        let mut owners = BTreeSet::new();
        for dataset in self.target.model().datasets.values() {
            let own = dataset.snapshots.iter().filter(is_own).count();
            if own > OWN_MAX {
                self.fail(format!("{}: {:?}", dataset.name, dataset.snapshots));
            }
            owners.extend(dataset.mark.iter().map(|mark| mark.job.clone()));
        }
        if owners.len() > 1 {
            self.fail(format!("two jobs have the target: {owners:?}"));
        }
        let mut destroyed = std::mem::take(&mut self.source.model().destroyed);
        destroyed.append(&mut self.target.model().destroyed);
        for dataset in destroyed {
            let keeps = self.jobs.iter().any(|job| !job.keep.is_empty());
            if tag_of_snapshot(&dataset).is_none() && !(keeps && dataset.starts_with("auto-")) {
                self.fail(format!("'{dataset}' was not the job's"));
            }
        }
        if self.opened > self.causes {
            let (opened, causes) = (self.opened, self.causes);
            self.fail(format!("{opened} alerts of {causes} causes"));
        }
    }

    /// Files are written, and the policy takes a snapshot an hour, of which the newest stay unless they are held.
    fn live(&mut self) {
        let mut model = self.source.model();
        let names: Vec<String> = model.datasets.keys().cloned().collect();
        let hour = self.clock.passed().as_secs() / 3600;
        for name in names {
            if self.random.below(3) == 0 {
                model.datasets.get_mut(&name).expect("there").written_bytes += 1;
                model.is_unwritten = true;
            }
            let full = format!("{name}@auto-{hour}");
            // One that was destroyed or renamed is not taken again.
            if self.hours.insert((name.clone(), hour)) && !model.has(&full) {
                model.snapshot(&full);
            }
            let dataset = model.datasets.get_mut(&name).expect("there");
            let is_auto = |point: &Point| point.name.starts_with("auto-");
            let autos = dataset
                .snapshots
                .iter()
                .filter(|point| is_auto(point))
                .count();
            let mut beyond = autos.saturating_sub(POLICY_KEEPS);
            let before = dataset.snapshots.len();
            dataset.snapshots.retain(|point| {
                let goes = beyond > 0 && is_auto(point) && point.holds == 0;
                beyond -= usize::from(goes);
                !goes
            });
            let is_changed = dataset.snapshots.len() != before;
            model.txg += u64::from(is_changed);
        }
    }

    fn plant(&mut self) {
        self.causes += 1;
        match self.random.below(16) {
            0 | 1 => self.target.model().reachable = false,
            2 => {
                let chunks = self.random.below(3 * CHUNKS);
                let is_killed = self.random.below(2) == 0;
                let mut target = self.target.model();
                target.reachable = true;
                target.link_chunks = chunks;
                target.is_killed_there = is_killed;
                target.loses_marks = is_killed;
            }
            3 => self.target.model().full = true,
            4 => self.restart(),
            5..=7 => {
                let due = Break {
                    requests_left: self.random.below(40),
                    is_after: self.random.below(2) == 0,
                    is_killed: self.random.below(2) == 0,
                };
                *self.trouble.lock().expect("one thread") = Some(due);
            }
            8 => self.jump(),
            9 => self.change_source(),
            10 => self.change_target(),
            11 => self.destroy_snapshots(),
            _ => self.mend(),
        }
        // A cause that is there meets both jobs, and hides another one that comes back when it is over.
        self.causes += 3;
    }

    /// The link and the target are in order.
    fn mend(&mut self) {
        *self.trouble.lock().expect("one thread") = None;
        for side in [&self.source, &self.target] {
            let mut model = side.model();
            model.reachable = true;
            model.full = false;
            model.link_chunks = u64::MAX;
            model.is_killed_there = false;
            model.loses_marks = false;
        }
    }

    /// The clock on the wall is set: to 1970, ten years ahead, anywhere, or right.
    fn jump(&mut self) {
        let hours = i64::try_from(self.random.below(100_000)).expect("small") - 50_000;
        let error = match self.random.below(4) {
            0 => -START,
            1 => 10 * 365 * 86_400,
            2 => hours * 3600,
            _ => 0,
        };
        self.clock.passed.lock().expect("one thread").1 = error;
    }

    /// An administrator renames a dataset of the source, renames it back, destroys one and makes another of its name.
    fn change_source(&mut self) {
        let mut model = self.source.model();
        let renames = [
            ("tank/a/one", "tank/a/new"),
            ("tank/a/new", "tank/a/one"),
            ("tank/a/two", "tank/a/new"),
        ];
        let choice = usize::try_from(self.random.below(5)).expect("small");
        match renames.get(choice) {
            Some((old, new)) => model.rename(old, new),
            None if choice == 3 => {
                model.datasets.remove("tank/a/two");
                model.txg += 1;
            }
            None if !model.datasets.contains_key("tank/a/two") => {
                model.make("tank/a/two");
                model.txg += 1;
            }
            None => {
                // Another name for the same snapshot.
                let dataset = model.datasets.get_mut("tank/a").expect("there");
                if let Some(point) = dataset.snapshots.last_mut()
                    && tag_of_snapshot(&point.name).is_none()
                    && !point.name.ends_with('x')
                {
                    point.name.push('x');
                }
                model.txg += 1;
            }
        }
    }

    /// The copy is written to, or a snapshot of it is taken.
    fn change_target(&mut self) {
        let by_hand = format!("by-hand-{}", self.clock.passed().as_secs());
        let mut model = self.target.model();
        // What has not arrived whole cannot be written to.
        let copy = model.datasets.get("back/a/one");
        if copy.is_none_or(|copy| copy.snapshots.is_empty()) {
            return;
        }
        match self.random.below(2) {
            0 => model.snapshot(&format!("back/a/one@{by_hand}")),
            _ => {
                let one = model.datasets.get_mut("back/a/one");
                one.expect("there").written_bytes += 1;
            }
        }
    }

    /// An administrator destroys snapshots of the source; held ones survive it.
    fn destroy_snapshots(&mut self) {
        let mut model = self.source.model();
        model.txg += 1;
        let third = self.random.below(3);
        let dataset = model.datasets.get_mut("tank/a").expect("there");
        dataset
            .snapshots
            .retain(|point| point.holds > 0 || point.create_txg % 3 != third);
    }

    /// Does what the words of a problem say.
    fn follow(&mut self, job: &Job, dataset: &str, error: &ReplicationError) {
        let copy = job.target_of(dataset);
        match error {
            ReplicationError::Refused(Refusal::Renamed { old, new, .. }) => {
                self.target.model().rename(old, new);
            }
            ReplicationError::Refused(Refusal::Diverged { .. } | Refusal::Written { .. }) => {
                let adopted = adopt(job, &self.source, &self.target, true).now_or_never();
                let adopted = adopted.expect("models answer at once");
                if let Err(error) = adopted
                    && error.cause() != "foreign target"
                {
                    self.fail(error);
                }
            }
            ReplicationError::Refused(
                Refusal::NothingInCommon { target, .. } | Refusal::NotAdopted { target },
            ) => {
                let mut model = self.target.model();
                let aside = format!("aside/{}-{}", target.replace('/', "-"), model.guid);
                model.guid += 1;
                model.rename(target, &aside);
            }
            // It comes with the next snapshot of the one above.
            ReplicationError::Refused(Refusal::NoneAbove { .. }) => {}
            other => self.fail(format!("{copy}: {other}")),
        }
    }

    /// Everything is in order again, people do what is asked for, and some time passes.
    fn settle(&mut self) {
        self.mend();
        // The job that has the target goes on; the other one only ever said so.
        let owner = self
            .target
            .model()
            .datasets
            .values()
            .find_map(|dataset| dataset.mark.clone());
        let owner = owner.map_or_else(|| "j".to_owned(), |mark| mark.job);
        for job in self.jobs.extract_if(.., |job| job.name != owner) {
            self.replications.forget(&job.name);
        }
        self.replications.hurry(&owner);
        let job = self.jobs[0].clone();
        for _ in 0..40 {
            self.causes += 5;
            self.pass(Duration::from_secs(400));
            let ended = self.replications.state_of(&job.name).ended;
            let problems = match ended.map(|ended| ended.result) {
                Some(Ok(report)) => report.problems,
                _ => Vec::new(),
            };
            if let Some((dataset, error)) = problems.first() {
                self.follow(&job, dataset, error);
                self.replications.hurry(&job.name);
            }
        }
        self.check_equal(&job);
        self.check_idle(&job);
    }

    fn check_equal(&self, job: &Job) {
        let problem = self.replications.problems();
        if !problem.is_empty() || !self.open.is_empty() {
            self.fail(format!("{problem:?} {:?}", self.open));
        }
        for (dataset, copy) in self.pairs(job) {
            let Some(copy) = copy else {
                self.fail(format!("{} has no copy", dataset.name));
            };
            let guids = |dataset: &ReplicaDataset| -> Vec<u64> {
                dataset.snapshots.iter().map(|point| point.guid).collect()
            };
            let (has, wanted) = (guids(&copy), guids(&dataset));
            if !has_all(&dataset, Some(&copy)) || copy.interrupted.is_some() {
                self.fail(format!("{dataset:?} {copy:?}"));
            }
            let is_whole = wanted.iter().all(|guid| has.contains(guid));
            if !job.newest_only && job.keep.is_empty() && !is_whole {
                self.fail(format!("snapshots were left out: {dataset:?} {copy:?}"));
            }
        }
    }

    /// While nothing is written a continuous job neither takes snapshots nor looks at the target more often than it says.
    fn check_idle(&mut self, job: &Job) {
        if !job.continuous {
            return;
        }
        self.attempt();
        let (runs, taken) = (self.runs, self.source.model().taken);
        for _ in 0..600 {
            self.clock.passed.lock().expect("one thread").0 += Duration::from_secs(1);
            self.attempt();
        }
        let looks = 600 / job.interval().expect("one").as_secs() + 2;
        let more = u64::try_from(self.runs - runs).expect("few");
        if more > looks || self.source.model().taken > taken + TREES[0].len() {
            self.fail(format!("{more} runs of an idle job"));
        }
    }
}

fn campaign(seed: u64) {
    let mut campaign = Campaign::new(seed);
    for _ in 0..100 {
        campaign.plant();
        for _ in 0..campaign.random.below(6) + 1 {
            let step = match campaign.random.below(3) {
                0 => 1,
                1 => 60 + campaign.random.below(600),
                _ => 60 + campaign.random.below(7200),
            };
            campaign.pass(Duration::from_secs(step));
        }
    }
    campaign.settle();
}

#[test]
fn months_of_a_daemon_end_with_equal_sides() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let first = number("SANBOX_SEED_FIRST").unwrap_or(0);
    let seeds = first..first + number("SANBOX_SEEDS").unwrap_or(100);
    // All of them are tried, and each that fails says how.
    let failed = seeds.filter(|seed| std::panic::catch_unwind(|| campaign(*seed)).is_err());
    assert_eq!(failed.collect::<Vec<_>>(), [0; 0]);
}
