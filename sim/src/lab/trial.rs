//! One seed of the lab: the run, the moments kept of it, and the cuts tried at each.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use world::{CutModel, Ended, Moment, Presence, Rng, World};

use crate::campaign::datasets::DatasetHistory;
use crate::campaign::history::{History, judge};
use crate::campaign::judge::by_checker;
use crate::campaign::model::Tree;
use crate::campaign::scenario::{Plan, Trouble, create, look_until, set_faults, uncut, work};
use crate::campaign::volume::VolumeHistory;

/// Moments kept of a run at most: each is a few hundred KiB of changed chunks.
const MOMENTS_MAX: usize = 150;
/// Writes and flushes between two moments, at most, in a short run.
const GAP_MAX: u64 = 24;
/// One of so many cuts is followed by another one during the import.
const NESTED_ONE_IN: u64 = 6;
/// One of so many cuts is judged by the checker as well: what the cut left, and what an export leaves.
const CHECKED_ONE_IN: u64 = 24;

/// How a seed is run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Only this cut.
    pub only: Option<u64>,
    /// Where the disks of a violation are written.
    pub dump: Option<PathBuf>,
    /// Every cut is judged by the checker as well, not a sample of them.
    pub check_all: bool,
    /// Every pool has a cache device, which may rot or fail.
    pub caches: bool,
    /// Where the events of the import after the cut `only` are written.
    pub trace: Option<PathBuf>,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Client operations in the run.
    pub operations: u64,
    /// Power cuts, each with an import and a judgement.
    pub cuts: u64,
    /// Of these, cuts in the middle of an import after a cut.
    pub nested: u64,
    /// Of these, cuts that took a log device with them.
    pub lost_logs: u64,
    /// Images given to the checker.
    pub checked: u64,
    /// A number made of all that happened: the same for the same seed.
    pub hash: u64,
}

/// Something acknowledged was lost, or a pool was not what it should be.
#[derive(Clone, Debug)]
pub struct Violation {
    pub seed: u64,
    /// The number of the cut, `None` when the run itself went wrong.
    pub cut: Option<u64>,
    pub text: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {}", self.seed)?;
        if let Some(cut) = self.cut {
            write!(f, " cut {cut}")?;
        }
        write!(f, ": {}", self.text)
    }
}

/// What was promised at a moment.
#[derive(Clone)]
struct Promise {
    histories: Vec<History>,
    names: DatasetHistory,
    volume: VolumeHistory,
}

/// Runs a seed with all its cuts.
///
/// # Errors
/// The first violation.
pub fn run(plan: &Plan, options: &Options) -> Result<Counts, Violation> {
    let fail = |text: String| Violation {
        seed: plan.seed,
        cut: None,
        text,
    };
    let world = World::new(plan.seed);
    for path in plan.all_disks() {
        let model = world::DiskModel::new(plan.disk_bytes)
            .with_sectors(plan.sector_bytes, plan.sector_bytes);
        world.add_disk(path, model);
    }
    match create(plan, &world, || {}) {
        Ended::Done(result) => result.map_err(|text| fail(format!("create: {text}")))?,
        Ended::PowerCut => return Err(fail("no power cut was planned".to_owned())),
    }
    set_faults(plan, &world);
    let names = Rc::new(RefCell::new(DatasetHistory::new()));
    let volume = Rc::new(RefCell::new(VolumeHistory::default()));
    let moments: Rc<RefCell<Vec<(Moment, Promise)>>> = Rc::default();
    let before = vec![Tree::empty(0o755).visible(); plan.clients];
    let mut rng = world.rng();
    let gaps = RefCell::new(rng.fork());
    let mut counts = Counts::default();
    {
        let watch = |histories: &Rc<RefCell<Vec<History>>>| {
            let gaps = RefCell::new(gaps.borrow_mut().fork());
            let gap_max = std::cell::Cell::new(GAP_MAX);
            let (kept, seen) = (moments.clone(), world.clone());
            let (histories, names, volume) = (histories.clone(), names.clone(), volume.clone());
            let probe = move || {
                let mut kept = kept.borrow_mut();
                let promise = Promise {
                    histories: histories.borrow().clone(),
                    names: names.borrow().clone(),
                    volume: volume.borrow().clone(),
                };
                kept.push((seen.capture(), promise));
                if kept.len() >= MOMENTS_MAX {
                    // A long run: every other one goes, and from now on there are half as many.
                    let mut odd = false;
                    kept.retain(|_| {
                        odd = !odd;
                        odd
                    });
                    gap_max.set(gap_max.get() * 2);
                }
                gaps.borrow_mut().between(1, gap_max.get())
            };
            world.set_probe(1, Rc::new(probe));
        };
        let done = work(
            plan,
            &world,
            &mut rng,
            &before,
            &names,
            &volume,
            Some(&watch),
        );
        let histories = done.map_err(fail)?.histories;
        counts.operations = histories.iter().map(|history| history.len() as u64).sum();
        let promise = Promise {
            histories,
            names: names.borrow().clone(),
            volume: volume.borrow().clone(),
        };
        moments.borrow_mut().push((world.capture(), promise));
    }
    counts.hash = world.event_hash().value();
    drop(world);
    let mut number = 0;
    for (moment, promise) in moments.take() {
        // Without a cache to lose, every cut at this moment is the same.
        let tries = if moment.has_unflushed() { 2 } else { 1 };
        for _ in 0..tries {
            number += 1;
            if options.only.is_none_or(|only| only == number) {
                try_cut(plan, &moment, promise.clone(), number, options, &mut counts).map_err(
                    |text| Violation {
                        seed: plan.seed,
                        cut: Some(number),
                        text,
                    },
                )?;
            }
        }
    }
    Ok(counts)
}

/// Cuts the power at a moment and judges what is left.
fn try_cut(
    plan: &Plan,
    moment: &Moment,
    mut promise: Promise,
    number: u64,
    options: &Options,
    counts: &mut Counts,
) -> Result<(), String> {
    let mut rng = Rng::new(plan.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let world = moment.cut(rng.next_u64(), None::<CutModel>);
    counts.cuts += 1;
    for path in plan.disks() {
        match moment.presence(&path) {
            // Power is also what brings a disk to its senses.
            Some(Presence::Stuck) => world.unstick(&path),
            Some(Presence::Vanished) => world.bring_back(&path),
            _ => {}
        }
    }
    lose_a_log(plan, &world, &mut rng, counts);
    if options.trace.is_some() {
        world.start_trace();
    }
    let is_checked = rng.below(CHECKED_ONE_IN) == 0 || options.check_all;
    let is_nested = rng.below(NESTED_ONE_IN) == 0;
    let outcome = judged(
        plan,
        &world,
        &mut promise,
        &mut rng,
        (is_checked, is_nested),
        counts,
    );
    counts.hash = (counts.hash ^ world.event_hash().value()).wrapping_mul(0x9fb2_1c65_1e98_df25);
    if let Some(path) = &options.trace {
        std::fs::write(path, world.take_trace().join("\n"))
            .map_err(|error| format!("write the trace: {error}"))?;
    }
    if let (Err(_), Some(dir)) = (&outcome, &options.dump) {
        moment
            .cut(
                Rng::new(plan.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).next_u64(),
                None,
            )
            .dump(dir)
            .map_err(|error| format!("write the disks: {error}"))?;
    }
    outcome
}

/// One side of mirrored logs may be lost with the power: the other one has everything.
fn lose_a_log(plan: &Plan, world: &World, rng: &mut Rng, counts: &mut Counts) {
    let logs = plan.log_disks();
    let is_mirror = plan.logs == crate::campaign::scenario::Logs::Mirror;
    if is_mirror && plan.trouble != Trouble::LogsFail && rng.below(3) == 0 {
        world.vanish(rng.choose(&logs));
        counts.lost_logs += 1;
    }
}

fn judged(
    plan: &Plan,
    world: &World,
    promise: &mut Promise,
    rng: &mut Rng,
    (is_checked, is_nested): (bool, bool),
    counts: &mut Counts,
) -> Result<(), String> {
    if is_checked {
        counts.checked += 1;
        by_checker(plan, world, true).map_err(|text| format!("after the cut: {text}"))?;
    }
    let mut ended = None;
    if is_nested {
        let count = rng.between(1, 60);
        match look_until(plan, world, || world.plan_cut_at_write(count), is_checked) {
            Ended::PowerCut => {
                counts.cuts += 1;
                counts.nested += 1;
            }
            Ended::Done(result) => ended = Some(result),
        }
    }
    let found = match ended {
        Some(result) => result,
        None => uncut(look_until(plan, world, || {}, is_checked)),
    };
    let (visible, datasets, bytes) = found.map_err(|text| format!("after the cut: {text}"))?;
    promise.names.judge(datasets)?;
    if let Some(bytes) = bytes {
        promise.volume.judge(bytes)?;
    }
    judge(&promise.histories, &visible)?;
    if is_checked {
        counts.checked += 1;
        by_checker(plan, world, false).map_err(|text| format!("after export: {text}"))?;
    }
    Ok(())
}
