//! An administrator that changes the pool's devices while clients work: vdevs, logs and spares join it and leave it, also vdevs with data,
//! half of whose removals are given up, or fail; and cache devices, which may rot. Checkpoints come and go.
//!
//! What a power cut leaves of it must import: the pool before or after each change. What was acknowledged stays.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use engine::{
    AddSpec, AllocationBias, EngineError, LeafActivity, LeafActivityRequest, PoolError, PoolHandle,
    PoolStatus, RemovalStage, TuningChange, VdevSpec, VdevStatus,
};
use runtime::Handle;
use world::{Image, Rng, World};

/// Where the data of a disk begins: in front of it are labels.
const DATA_START: u64 = 4 << 20;
/// How often it is looked whether an evacuation has failed.
const LOOK: Duration = Duration::from_millis(1);
/// Looks after which it never will.
const LOOKS_MAX: u32 = 600_000;
/// Changes tried in one boot at most.
const CHANGES_MAX: u64 = 6;

/// What the administrator does with vdevs that hold data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Habit {
    /// They stay, once added.
    Keep,
    /// Now and then one leaves.
    Remove,
    /// They come and go all the time, and little else is done.
    MostlyRemove,
}

/// How many removals of vdevs that hold data there were.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Removals {
    pub begun: u64,
    pub given_up: u64,
    /// Seen to have ended, at least.
    pub ended: u64,
    /// Given up by the pool, as the vdev could not be read.
    pub failed: u64,
}

impl Removals {
    /// Both counts together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            begun: self.begun + other.begun,
            given_up: self.given_up + other.given_up,
            ended: self.ended + other.ended,
            failed: self.failed + other.failed,
        }
    }
}

/// Changes the devices until it has had enough. `disks` are those that are no part of the pool when it is created.
///
/// # Errors
/// An answer that nothing explains.
pub async fn work(
    pool: PoolHandle,
    handle: Handle,
    mut rng: Rng,
    disks: Vec<PathBuf>,
    caches: Vec<PathBuf>,
    habit: Habit,
    removals: Rc<Cell<Removals>>,
) -> Result<(), String> {
    let (data_leaves, mostly) = (habit != Habit::Keep, habit == Habit::MostlyRemove);
    let changes = rng.below(CHANGES_MAX) + 1;
    let (changes, pause) = match mostly {
        true => (changes + CHANGES_MAX, 300_000),
        false => (changes, 1_500_000),
    };
    let mut was_leaving = false;
    for _ in 0..changes {
        handle.sleep(Duration::from_micros(rng.below(pause))).await;
        let status = pool.status().await.map_err(|error| error.to_string())?;
        let stage = status.removal.as_ref().map(|removal| removal.stage);
        let is_leaving = stage == Some(RemovalStage::Evacuating);
        if was_leaving && stage == Some(RemovalStage::Finished) {
            count(&removals, |removals| removals.ended += 1);
        }
        was_leaving = is_leaving;
        if mostly {
            // They take some milliseconds: to meet them half-way they stand still most of the time.
            if is_leaving {
                pause_removals(&pool, false).await?;
                handle.sleep(Duration::from_micros(rng.below(2_000))).await;
            }
            pause_removals(&pool, rng.below(3) != 0).await?;
        }
        let begun_before = removals.get().begun;
        let free: Vec<&PathBuf> = disks
            .iter()
            .filter(|disk| !is_used(&status, disk))
            .collect();
        let logs: Vec<u64> = status
            .root
            .children
            .iter()
            .filter(|top| top.bias == AllocationBias::Log)
            .map(|top| top.guid)
            .collect();
        let spares: Vec<u64> = status.spares.iter().map(|spare| spare.guid).collect();
        let mut spec = AddSpec {
            force: true,
            any_sector_size: true,
            ..AddSpec::default()
        };
        let is_in_the_way = mostly && status.checkpoint.is_some();
        if is_in_the_way || rng.below(if mostly { 16 } else { 4 }) == 0 {
            let outcome = match status.checkpoint {
                None => pool.checkpoint().await,
                Some(_) => pool.discard_checkpoint().await,
            };
            match outcome {
                Ok(()) | Err(EngineError::Pool(PoolError::DiscardingCheckpoint)) => continue,
                // A vdev is being emptied.
                Err(EngineError::Pool(PoolError::InUse(_))) if data_leaves => continue,
                Err(error) => return Err(format!("checkpoint: {error}")),
            }
        }
        if rng.below(3) == 0 {
            work_on_free_space(&pool, &status, &mut rng).await?;
        }
        if data_leaves
            && (rng.coin() || mostly)
            && change_data(&pool, &status, &mut rng, &disks, &removals).await?
        {
            was_leaving |= removals.get().begun > begun_before;
            continue;
        }
        let idle = caches.iter().find(|disk| !is_used(&status, disk));
        let is_cache = rng.below(3) == 0;
        let outcome = if is_cache {
            match (idle, status.caches.first()) {
                (Some(disk), _) => {
                    spec.caches.push(disk.clone());
                    pool.add(spec).await
                }
                (None, Some(cache)) if rng.below(3) == 0 => pool.remove(cache.guid).await,
                _ => continue,
            }
        } else {
            match (rng.below(6), free.first()) {
                (0, Some(disk)) => {
                    spec.vdevs.push(VdevSpec::Single((*disk).clone()));
                    pool.add(spec).await
                }
                (1 | 2, Some(disk)) => {
                    spec.logs.push(VdevSpec::Single((*disk).clone()));
                    pool.add(spec).await
                }
                (3, Some(disk)) => {
                    spec.spares.push((*disk).clone());
                    pool.add(spec).await
                }
                (4, _) if !spares.is_empty() => pool.remove(*rng.choose(&spares)).await,
                _ if !logs.is_empty() => pool.remove(*rng.choose(&logs)).await,
                _ => continue,
            }
        };
        match outcome {
            Ok(()) => {}
            // A log of a dataset that has not been opened yet, or a spare that stands in for a disk.
            Err(EngineError::Pool(PoolError::InUse(_) | PoolError::NoSpace)) => {}
            // Nothing leaves before the checkpoint does.
            Err(EngineError::Pool(
                PoolError::CheckpointExists | PoolError::DiscardingCheckpoint,
            )) => {}
            Err(EngineError::OutOfSpace) => {}
            // A device that fails while it gets its label is refused.
            Err(EngineError::Pool(PoolError::Disk(_) | PoolError::Vdev(_))) if is_cache => {}
            Err(error) => return Err(format!("change of devices: {error}")),
        }
    }
    Ok(())
}

fn count(removals: &Cell<Removals>, add: impl FnOnce(&mut Removals)) {
    let mut now = removals.get();
    add(&mut now);
    removals.set(now);
}

async fn pause_removals(pool: &PoolHandle, paused: bool) -> Result<(), String> {
    let change = TuningChange {
        removal_paused: Some(paused),
        ..TuningChange::default()
    };
    let tuned = pool.tune(change).await;
    tuned.map_err(|error| error.to_string())
}

/// Adds a vdev, removes one that has data, or gives a removal up; whether there was anything to do.
async fn change_data(
    pool: &PoolHandle,
    status: &PoolStatus,
    rng: &mut Rng,
    disks: &[PathBuf],
    removals: &Cell<Removals>,
) -> Result<bool, String> {
    let data = data_vdevs(status, disks);
    let outcome = if is_leaving(status) {
        match rng.coin() {
            true => {
                let given_up = pool.cancel_removal().await;
                count(removals, |now| now.given_up += u64::from(given_up.is_ok()));
                given_up
            }
            false => return Ok(false),
        }
    } else if data.is_empty() {
        let Some(disk) = disks.iter().find(|disk| !is_used(status, disk)) else {
            return Ok(false);
        };
        let spec = AddSpec {
            force: true,
            any_sector_size: true,
            vdevs: vec![VdevSpec::Single(disk.clone())],
            ..AddSpec::default()
        };
        pool.add(spec).await
    } else {
        let begun = pool.remove(*rng.choose(&data)).await;
        count(removals, |now| now.begun += u64::from(begun.is_ok()));
        begun
    };
    not_refused(outcome).map(|_| true)
}

/// Whether it was done, and not refused for a reason that there may be.
fn not_refused(outcome: Result<(), EngineError>) -> Result<bool, String> {
    match outcome {
        Ok(()) => Ok(true),
        // Another sector size, an old log that has not been opened; it ended meanwhile.
        Err(
            EngineError::Pool(
                PoolError::Invalid(_)
                | PoolError::InUse(_)
                | PoolError::NoSpace
                | PoolError::NoSuchDevice
                | PoolError::CheckpointExists
                | PoolError::DiscardingCheckpoint,
            )
            | EngineError::OutOfSpace,
        ) => Ok(false),
        Err(error) => Err(format!("change of vdevs: {error}")),
    }
}

fn is_leaving(status: &PoolStatus) -> bool {
    let removal = status.removal.as_ref();
    removal.is_some_and(|removal| removal.stage == RemovalStage::Evacuating)
}

/// The vdevs of some disks that hold data.
fn data_vdevs(status: &PoolStatus, disks: &[PathBuf]) -> Vec<u64> {
    let is_data = |top: &&VdevStatus| {
        top.bias == AllocationBias::None
            && top.path.as_ref().is_some_and(|path| disks.contains(path))
    };
    let tops = status.root.children.iter();
    tops.filter(is_data).map(|top| top.guid).collect()
}

/// When no client reads: has a vdev that leaves be unreadable here and there until its removal has ended, and begins one if
/// there is none. What cannot be read must not leave; all of it is there when the disk is well again.
///
/// # Errors
/// An answer that nothing explains, or an evacuation that goes on for ever.
pub async fn fail_removal(
    pool: &PoolHandle,
    handle: &Handle,
    world: &World,
    rng: &mut Rng,
    disks: &[PathBuf],
    removals: &Cell<Removals>,
) -> Result<(), String> {
    let look = async || pool.status().await.map_err(|error| error.to_string());
    pause_removals(pool, true).await?;
    let status = look().await?;
    if !is_leaving(&status) {
        let data = data_vdevs(&status, disks);
        if data.is_empty() || !not_refused(pool.remove(*rng.choose(&data)).await)? {
            return Ok(());
        }
        count(removals, |now| now.begun += 1);
    }
    let status = look().await?;
    let leaving = status.root.children.iter().find(|top| top.removing);
    let Some(disk) = leaving.and_then(|top| top.path.clone()) else {
        return Ok(());
    };
    let parts = world.written(&disk).into_iter();
    for part in parts.filter(|&part| part >= DATA_START) {
        if rng.coin() {
            world.add_latent_error(&disk, part + rng.below(Image::PART));
        }
    }
    pause_removals(pool, false).await?;
    let mut looks = 0;
    let stage = loop {
        let removal = look().await?.removal;
        match removal.map(|removal| removal.stage) {
            Some(RemovalStage::Evacuating) if looks < LOOKS_MAX => looks += 1,
            Some(RemovalStage::Evacuating) | None => {
                return Err("the removal of an unreadable vdev does not end".to_owned());
            }
            Some(stage) => break stage,
        }
        handle.sleep(LOOK).await;
    };
    count(removals, |now| match stage {
        RemovalStage::Canceled => now.failed += 1,
        _ => now.ended += 1,
    });
    world.forget_latent_errors(&disk);
    let cleared = pool.clear(None).await;
    cleared.map_err(|error| format!("clear after a removal has failed: {error}"))
}

/// Has a device discard its free space or write it, or stop that; or freed space discarded by itself.
async fn work_on_free_space(
    pool: &PoolHandle,
    status: &PoolStatus,
    rng: &mut Rng,
) -> Result<(), String> {
    fn leaves(vdev: &engine::VdevStatus, into: &mut Vec<u64>) {
        if vdev.children.is_empty() {
            into.push(vdev.guid);
        }
        vdev.children.iter().for_each(|child| leaves(child, into));
    }
    if rng.below(4) == 0 {
        let value = *rng.choose(&["on", "off"]);
        let set = pool.set_property("autotrim", value).await;
        return set.map_err(|error| format!("autotrim: {error}"));
    }
    let mut found = Vec::new();
    leaves(&status.root, &mut found);
    let what = *rng.choose(&[LeafActivity::Trim, LeafActivity::Initialize]);
    let request = match rng.below(4) {
        0 => LeafActivityRequest::Suspend,
        1 => LeafActivityRequest::Cancel,
        _ => LeafActivityRequest::Start {
            // Written free space would be most of what a seed does.
            rate: Some(8 << 20),
        },
    };
    match pool
        .request_leaf_activity(what, *rng.choose(&found), request)
        .await
    {
        // It runs already, or does not; it left meanwhile, or is no leaf (a spare's place).
        Ok(()) | Err(EngineError::Pool(PoolError::InUse(_) | PoolError::NoSuchDevice)) => Ok(()),
        Err(error) => Err(format!("{what:?}: {error}")),
    }
}

pub(super) fn is_used(status: &PoolStatus, disk: &PathBuf) -> bool {
    fn holds(vdev: &engine::VdevStatus, disk: &PathBuf) -> bool {
        vdev.path.as_ref() == Some(disk) || vdev.children.iter().any(|child| holds(child, disk))
    }
    holds(&status.root, disk)
        || status.spares.iter().any(|spare| holds(spare, disk))
        || status.caches.iter().any(|cache| holds(cache, disk))
}
