//! Power cuts at every step: after each one the pool imports, exactly the txgs up to its newest
//! uberblock are visible, nothing acknowledged is missing, and (for a sample) zdb is content.

use std::cell::RefCell;
use std::rc::Rc;

use world::{Ended, World};

use crate::support::*;
use crate::workload::{Recorder, compare, root, step};

/// What one cut scenario learned before the power went.
#[derive(Default)]
struct Outcome {
    recorder: Recorder,
    acknowledged: u64,
}

fn scenario(seed: u64, disks: usize, at_write: Option<u64>, at_flush: Option<u64>) -> World {
    let world = world(seed, disks, 96 * MIB);
    let vdevs = if disks == 1 { single() } else { mirror() };
    run(&world, async |handle| {
        create(&handle, vdevs).await.export().await.expect("export");
    });
    let outcome = Rc::new(RefCell::new(Outcome::default()));
    let shared = outcome.clone();
    let mut rng = world.rng();
    let runtime = world.boot();
    if let Some(count) = at_write {
        world.plan_cut_at_write(count);
    }
    if let Some(count) = at_flush {
        world.plan_cut_at_flush(count);
    }
    let ended = world.run_on(&runtime, async |handle| {
        let pool = import(&handle, disks).await;
        let dataset = root(&pool).await;
        let mut recorder = Recorder::default();
        for _ in 0..8 {
            for _ in 0..rng.below(12) + 1 {
                step(&dataset, &mut rng, &mut recorder).await.expect("step");
                shared.borrow_mut().recorder = recorder.clone();
            }
            let txg = pool.sync().await.expect("sync");
            shared.borrow_mut().acknowledged = txg.0;
        }
    });
    drop(runtime);
    if matches!(ended, Ended::Done(())) {
        world.power_cut();
    }
    let what = format!("seed {seed} write {at_write:?} flush {at_flush:?}");
    let Outcome {
        recorder,
        acknowledged,
    } = outcome.take();
    run(&world, async |handle| {
        let found = find(&handle, disks).await;
        assert_eq!(found.len(), 1, "{what}: one pool");
        assert!(
            found[0].txg >= acknowledged,
            "{what}: txg {acknowledged} was acknowledged"
        );
        let pool = pool::Pool::import(&handle, &found[0], policy())
            .await
            .expect("import");
        let model = recorder.at(found[0].txg);
        let dataset = root(&pool).await;
        compare(&dataset, &model, &what).await;
        // It must go on working, too.
        let mut rng = handle.random_u64();
        let mut more = Recorder {
            now: model,
            ..Recorder::default()
        };
        for _ in 0..5 {
            let mut step_rng = world::Rng::new(rng);
            rng = rng.wrapping_add(1);
            step(&dataset, &mut step_rng, &mut more)
                .await
                .expect("step");
        }
        pool.sync().await.expect("sync");
        compare(&dataset, &more.now, &what).await;
        drop(dataset);
        pool.abandon();
    });
    world.power_cut();
    world
}

#[test]
fn every_cut_leaves_a_prefix_of_groups() {
    let count = std::env::var("POOL_CRASH_SEEDS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(60);
    for seed in 0..count {
        let disks = if seed % 3 == 0 { 2 } else { 1 };
        let mut rng = world::Rng::new(seed ^ 0x5eed);
        let world = if seed % 4 == 3 {
            scenario(seed, disks, None, Some(rng.below(60) + 1))
        } else {
            scenario(seed, disks, Some(rng.below(1500) + 1), None)
        };
        if seed % 12 == 0 {
            zdb_clean(&world, &format!("seed {seed} after a cut"));
        }
    }
}
