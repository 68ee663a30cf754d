//! How much memory the process takes: the ceiling, what is planned of it, and the caches giving way when it comes close.
//!
//! The caches are what gives: their limit starts low and rises while the process as a whole (as the kernel counts it) is well
//! below the ceiling, and falls when it is close to it, whatever took the rest. Before they fall, buffers that are free but
//! kept for the next user are given back to the kernel.
//!
//! Guarantees: nothing beyond the plan is waited for; with the parts bounded as planned the process stays below the ceiling.

pub(crate) mod plan;

use std::sync::Weak;
use std::time::Duration;

use engine::TuningChange;

pub(crate) use self::plan::{Plan, available, process_bytes};
use crate::appliance::context::Context;
use crate::logging::SANBOX;

/// Between two looks at the caches, while something has to change.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Between two looks whether free memory should go back to the kernel, close to the ceiling, and the pause after one that
/// brought little.
const GIVE_BACK_EVERY: Duration = Duration::from_millis(25);
const GIVE_BACK_PAUSE: Duration = Duration::from_millis(200);
/// Between two looks whether free memory was of no use: what one transaction group frees the next one takes.
const GIVE_BACK_IDLE_EVERY: Duration = Duration::from_secs(15);
/// From the start until memory is taken ahead of need: pools are opened first, and a program that lives for a moment does without.
const PREFAULT_AFTER: Duration = Duration::from_secs(30);
/// Between two times that memory is taken ahead of need, at least and at most.
const PREFAULT_PAUSE: Duration = Duration::from_millis(20);
const PREFAULT_EVERY: Duration = Duration::from_secs(2);
/// What giving back should bring to be done again soon, in bytes.
const GIVEN_WORTHWHILE: u64 = 4 << 20;
/// Keeps the process below the ceiling for as long as the appliance is there.
pub(crate) async fn keep(context: Weak<Context>) {
    if let Some(plan) = context.upgrade().map(|a| a.memory_plan()) {
        // Free buffers go back when this task says so, not when one is freed.
        runtime::keep_free(usize::try_from(plan.ceiling).unwrap_or(usize::MAX));
    }
    let ahead = context.clone();
    let spawned = std::thread::Builder::new()
        .name("prefault".to_owned())
        .spawn(move || prefault(&ahead));
    if let Err(error) = spawned {
        tracing::warn!(target: SANBOX, "memory is taken only when it is needed: {error}");
    }
    tokio::join!(
        give_back(context.clone()),
        give_back_idle(),
        press_caches(context)
    );
}

/// Keeps a part of the buffers' memory ready, on a thread that runs when nothing else does.
fn prefault(context: &Weak<Context>) {
    // Of this thread alone, as Linux has it. Refused, it runs as the others do.
    let _ = rustix::process::setpriority_process(None, 19);
    std::thread::sleep(PREFAULT_AFTER);
    while let Some(plan) = context.upgrade().map(|context| context.memory_plan()) {
        let ready = usize::try_from(plan.ready).unwrap_or(usize::MAX);
        runtime::prefault(ready, || {
            process_bytes().is_some_and(|process| plan.may_prefault(process))
                && plan::machine_has_spare()
        });
        std::thread::sleep(PREFAULT_PAUSE);
        runtime::wait_for_prefault(PREFAULT_EVERY);
    }
}

/// Gives memory back to the kernel that has not been needed for a while, however much may be taken.
async fn give_back_idle() {
    loop {
        tokio::time::sleep(GIVE_BACK_IDLE_EVERY).await;
        let _ = tokio::task::spawn_blocking(runtime::give_back_idle).await;
    }
}

/// Gives free memory back to the kernel when the process is close to its ceiling: what caches let go of, and what requests
/// took for a moment, is free memory of the program at first. Waits for no pool.
async fn give_back(context: Weak<Context>) {
    let mut pause = GIVE_BACK_EVERY;
    loop {
        tokio::time::sleep(pause).await;
        let (Some(plan), Some(before)) =
            (context.upgrade().map(|a| a.memory_plan()), process_bytes())
        else {
            return;
        };
        pause = plan.quiet(before, GIVE_BACK_EVERY);
        if before > plan.high() {
            // Somewhat more than is too much; all of it would be taken again at once, and cleared by the kernel first.
            let over = before - plan.high() + plan.ceiling / 64;
            let over = usize::try_from(over).unwrap_or(usize::MAX);
            let _ = tokio::task::spawn_blocking(move || runtime::give_back_free(over)).await;
            let given = before.saturating_sub(process_bytes().unwrap_or(before));
            if given < GIVEN_WORTHWHILE {
                pause = GIVE_BACK_PAUSE;
            }
        }
    }
}

/// Moves the limits of the caches.
async fn press_caches(context: Weak<Context>) {
    let mut pause = LOOK_EVERY;
    loop {
        tokio::time::sleep(pause).await;
        let Some(context) = context.upgrade() else {
            return;
        };
        let plan = context.memory_plan();
        let caches_max = context
            .tunables()
            .cache_bytes
            .map_or(plan.caches, |chosen| chosen.min(plan.caches));
        let mut pools = Vec::new();
        for pool in context.engine().pools() {
            if let Ok(seen) = pool.cache_size().await {
                pools.push((pool, seen));
            }
        }
        // Pools may be busy and answer late.
        let Some(process) = process_bytes() else {
            return;
        };
        let held: u64 = pools.iter().map(|(_, (held, _))| held).sum();
        let limit: u64 = pools.iter().map(|(_, (_, limit))| limit).sum();
        let goal = plan.press(held, limit, process, caches_max);
        // Each look wakes the threads of all pools, which may have nothing else to do.
        pause = if goal == limit {
            plan.quiet(process, LOOK_EVERY)
        } else {
            LOOK_EVERY
        };
        let count = pools.len() as u64;
        for (pool, (held_here, limit_here)) in pools {
            // A fair share for each, and what others leave unused for those who use theirs.
            let fair = goal / count.max(1);
            let spare = goal.saturating_sub(held) / count.max(1);
            let share = if count == 1 {
                goal
            } else {
                fair.max(held_here + spare).min(goal)
            };
            if share != limit_here {
                let tunes = TuningChange {
                    pressed_bytes: usize::try_from(share).ok(),
                    ..TuningChange::default()
                };
                // A pool that is being exported needs no telling.
                let _ = pool.tune(tunes).await;
            }
        }
    }
}
