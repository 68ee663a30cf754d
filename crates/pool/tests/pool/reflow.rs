//! Expansion of a raidz by a device: while the pool is in use, interrupted by power cuts, exports and devices that go away,
//! begun by one implementation and ended by the other; with OpenZFS's tools as judges.

use std::time::Duration;

use pool::{Health, Pool, PoolError, PoolSpec, ReflowTuning, Tuning, VdevSpec};
use runtime::Handle;
use world::{Ended, Rng, World};

use crate::removal::{by_openzfs, import_with, scrub_is_clean};
use crate::support::*;
use crate::workload::{Recorder, compare, fill, root, work_unsynced};

/// Batches so small that an expansion takes many txgs.
fn small() -> Tuning {
    Tuning {
        reflow: ReflowTuning {
            batch_bytes: 1 << 20,
            ..ReflowTuning::default()
        },
        ..Tuning::default()
    }
}

fn raidz(parity: u8, disks: usize) -> Vec<VdevSpec> {
    let paths = (0..disks).map(path).collect();
    vec![VdevSpec::Raidz { parity, paths }]
}

async fn create_with(handle: &Handle, vdevs: Vec<VdevSpec>, tuning: &Tuning) -> Pool {
    let spec = PoolSpec {
        tuning: tuning.clone(),
        ..spec(vdevs)
    };
    let pool = Pool::create(handle, spec, empty_root).await;
    pool.expect("create")
}

fn top(pool: &Pool) -> u64 {
    pool.status().root.children[0].guid
}

fn is_running(pool: &Pool) -> bool {
    pool.status().expansion.is_some_and(|now| now.running)
}

async fn expanded(handle: &Handle, pool: &Pool, width: usize) {
    while is_running(pool) {
        handle.sleep(Duration::from_millis(5)).await;
    }
    let status = pool.status();
    assert!(status.expansion.is_some_and(|now| now.end_time > 0));
    assert_eq!(status.root.children[0].children.len(), width);
}

/// Everything must be there without any `parity` of the devices.
async fn survives_losses(handle: &Handle, disks: usize, parity: usize, recorder: &Recorder) {
    for first in 0..disks {
        let pool = import_with(handle, disks, &small()).await;
        let leaves = pool.tree().leaves();
        for leaf in (0..parity).map(|more| &leaves[(first + more) % disks]) {
            pool.offline(leaf.guid.0, true).await.expect("offline");
        }
        compare(
            &root(&pool).await,
            &recorder.now,
            &format!("without {first}"),
        )
        .await;
        pool.abandon();
    }
}

#[test]
#[ignore = "long: four expansions under load; seeds of them run in a campaign"]
fn a_raidz_is_expanded_while_the_pool_is_in_use() {
    for (seed, parity, disks, tuning) in [
        (901, 1_u8, 3, Tuning::default()),
        (902, 2, 4, small()),
        (903, 1, 2, small()),
        (904, 3, 5, small()),
    ] {
        let world = world(seed, disks + 2, 160 * MIB);
        let mut recorder = Recorder::default();
        let mut rng = world.rng();
        run(&world, async |handle| {
            let pool = create_with(&handle, raidz(parity, disks), &tuning).await;
            fill(&pool, &mut rng, &mut recorder, 30).await;
            work_unsynced(&pool, &mut rng, &mut recorder, 50).await;
            for more in 0..2 {
                let size = pool.status().root.size_bytes;
                let device = path(disks + more);
                let attached = pool.attach(top(&pool), &device, false, false).await;
                attached.expect("attach");
                let again = pool
                    .attach(top(&pool), &path(disks + 1), false, false)
                    .await;
                assert!(again.is_err(), "{again:?}");
                while is_running(&pool) {
                    work_unsynced(&pool, &mut rng, &mut recorder, 3).await;
                    handle.sleep(Duration::from_millis(2)).await;
                }
                expanded(&handle, &pool, disks + more + 1).await;
                compare(&root(&pool).await, &recorder.now, "expanded").await;
                work_unsynced(&pool, &mut rng, &mut recorder, 30).await;
                drop(pool.wait_scan().await);
                handle.sleep(Duration::from_secs(1)).await;
                assert!(pool.status().root.size_bytes > size, "it has grown");
                scrub_is_clean(&pool).await;
            }
            pool.export().await.expect("export");
        });
        zdb_clean(&world, &format!("seed {seed}: expanded twice"));
        run(&world, async |handle| {
            survives_losses(&handle, disks + 2, usize::from(parity), &recorder).await;
        });
    }
}

/// Cuts the power again and again during an expansion; what the newest txg says must be there each time.
fn interrupted(seed: u64, parity: u8, disks: usize) {
    let world = world(seed, disks + 1, 128 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    let tuning = small();
    run(&world, async |handle| {
        let pool = create_with(&handle, raidz(parity, disks), &tuning).await;
        fill(&pool, &mut rng, &mut recorder, 20).await;
        work_unsynced(&pool, &mut rng, &mut recorder, 30).await;
        pool.pause_expansion(true);
        let attached = pool.attach(top(&pool), &path(disks), false, false).await;
        attached.expect("attach");
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "an expansion has begun");
    for round in 0..60 {
        let runtime = world.boot();
        if round % 4 != 3 {
            world.plan_cut_at_write(5 + rng.below(if round < 20 { 150 } else { 400 }));
        }
        let mut log = recorder.clone();
        let ended = world.run_on(&runtime, async |handle| {
            let pool = import_with(&handle, disks + 1, &tuning).await;
            for _ in 0..2 {
                work_unsynced(&pool, &mut rng, &mut log, 2).await;
                handle.sleep(Duration::from_micros(rng.below(3000))).await;
            }
            pool.export().await.expect("export");
        });
        drop(runtime);
        if matches!(ended, Ended::PowerCut) && round % 5 == 0 {
            zdb_clean(&world, &format!("seed {seed} round {round}, just cut"));
        }
        let done = run(&world, async |handle| {
            let txg = find(&handle, disks + 1).await[0].txg;
            let pool = import_with(&handle, disks + 1, &tuning).await;
            pool.pause_expansion(true);
            log.roll_back(txg);
            let what = format!("seed {seed} round {round}");
            compare(&root(&pool).await, &log.now, &what).await;
            let lost = pool.tree().leaves();
            let lost = &lost[usize::try_from(rng.below(disks as u64 + 1)).expect("few")];
            pool.offline(lost.guid.0, true).await.expect("offline");
            compare(&root(&pool).await, &log.now, &format!("{what}, one lost")).await;
            let running = is_running(&pool);
            pool.abandon();
            !running
        });
        world.power_cut();
        recorder = log;
        if done {
            break;
        }
    }
    run(&world, async |handle| {
        let pool = import_with(&handle, disks + 1, &tuning).await;
        drop(pool.wait_scan().await);
        expanded(&handle, &pool, disks + 1).await;
        compare(&root(&pool).await, &recorder.now, "at the end").await;
        drop(pool.wait_scan().await);
        scrub_is_clean(&pool).await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "in spite of everything");
    run(&world, async |handle| {
        survives_losses(&handle, disks + 1, usize::from(parity), &recorder).await;
    });
}

#[test]
#[ignore = "long: power cuts at every step; the campaigns of the simulator cut some, too"]
fn interrupted_expansions_go_on() {
    for (seed, parity, disks) in [(911, 1, 3), (912, 2, 4), (913, 1, 2)] {
        interrupted(seed, parity, disks);
    }
}

/// Stands still in the middle of an expansion.
async fn half_way(handle: &Handle, rng: &mut Rng, recorder: &mut Recorder, parity: u8) -> Pool {
    let pool = create_with(handle, raidz(parity, 4), &small()).await;
    fill(&pool, rng, recorder, 35).await;
    pool.pause_expansion(true);
    let attached = pool.attach(top(&pool), &path(4), false, false).await;
    attached.expect("attach");
    let copied = |pool: &Pool| pool.status().expansion.map_or(0, |now| now.copied_bytes);
    pool.pause_expansion(false);
    while copied(&pool) < 24 << 20 {
        handle.sleep(Duration::from_micros(200)).await;
    }
    pool.pause_expansion(true);
    work_unsynced(&pool, rng, recorder, 30).await;
    pool.sync().await.expect("sync");
    assert!(is_running(&pool), "{:?}", pool.status().expansion);
    pool
}

/// A device is lost in the middle: nothing moves until it was replaced and has everything.
#[test]
fn an_expansion_waits_for_a_device_that_is_lost() {
    for (seed, victim) in [(921, 0), (922, 3), (923, 4)] {
        let world = world(seed, 6, 128 * MIB);
        let mut recorder = Recorder::default();
        let mut rng = world.rng();
        run(&world, async |handle| {
            let pool = half_way(&handle, &mut rng, &mut recorder, 1).await;
            pool.pause_expansion(false);
            let leaf = pool.tree().leaves()[victim].guid.0;
            pool.offline(leaf, true).await.expect("offline");
            work_unsynced(&pool, &mut rng, &mut recorder, 30).await;
            pool.sync().await.expect("sync");
            handle.sleep(Duration::from_secs(5)).await;
            assert!(is_running(&pool));
            compare(&root(&pool).await, &recorder.now, "without it").await;
            let spare = path(5);
            let replaced = pool.attach(leaf, &spare, true, false).await;
            replaced.expect("replace");
            drop(pool.wait_scan().await);
            work_unsynced(&pool, &mut rng, &mut recorder, 30).await;
            expanded(&handle, &pool, 5).await;
            drop(pool.wait_scan().await);
            compare(&root(&pool).await, &recorder.now, "replaced").await;
            scrub_is_clean(&pool).await;
            pool.export().await.expect("export");
        });
        zdb_clean(&world, &format!("seed {seed}"));
        run(&world, async |handle| {
            survives_losses_of(&handle, 6, 5, &recorder).await;
        });
    }
}

async fn survives_losses_of(handle: &Handle, disks: usize, width: usize, recorder: &Recorder) {
    for first in 0..width {
        let pool = import_with(handle, disks, &small()).await;
        let leaf = pool.tree().leaves()[first].guid.0;
        pool.offline(leaf, true).await.expect("offline");
        compare(
            &root(&pool).await,
            &recorder.now,
            &format!("without {first}"),
        )
        .await;
        pool.abandon();
    }
}

#[test]
fn what_cannot_be_expanded_is_refused() {
    let world = world(931, 8, 128 * MIB);
    run(&world, async |handle| {
        let pool = create_with(&handle, raidz(1, 3), &small()).await;
        let leaf = pool.tree().leaves()[0].guid.0;
        let part = pool.attach(leaf, &path(3), false, false).await;
        assert!(matches!(part, Err(PoolError::Invalid(_))), "{part:?}");
        pool.offline(leaf, true).await.expect("offline");
        let degraded = pool.attach(top(&pool), &path(3), false, false).await;
        assert!(
            matches!(degraded, Err(PoolError::Invalid(_))),
            "{degraded:?}"
        );
        pool.online(leaf).await.expect("online");
        drop(pool.wait_scan().await);
        pool.checkpoint().await.expect("checkpoint");
        let kept = pool.attach(top(&pool), &path(3), false, false).await;
        assert!(matches!(kept, Err(PoolError::CheckpointExists)), "{kept:?}");
        pool.discard_checkpoint().await.expect("discard");
        while pool.status().checkpoint.is_some() {
            handle.sleep(Duration::from_millis(5)).await;
        }
        pool.pause_expansion(true);
        let begun = pool.attach(top(&pool), &path(3), false, false).await;
        begun.expect("attach");
        let kept = pool.checkpoint().await;
        assert!(matches!(kept, Err(PoolError::InUse(_))), "{kept:?}");
        let again = pool.attach(top(&pool), &path(4), false, false).await;
        assert!(matches!(again, Err(PoolError::InUse(_))), "{again:?}");
        assert_eq!(pool.status().root.health, Health::Online);
        pool.export().await.expect("export");
    });
}

/// OpenZFS's code ends what was begun here.
#[test]
fn expansions_change_hands() {
    for (seed, parity) in [(941, 1), (942, 2)] {
        let world = world(seed, 5, 128 * MIB);
        let mut recorder = Recorder::default();
        let mut rng = world.rng();
        run(&world, async |handle| {
            let pool = half_way(&handle, &mut rng, &mut recorder, parity).await;
            pool.export().await.expect("export");
        });
        zdb_clean(&world, "under way");
        ended_by_openzfs(&world, seed, &recorder);
    }
}

fn ended_by_openzfs(world: &World, seed: u64, recorder: &Recorder) {
    let what = format!("seed {seed}: ended by OpenZFS");
    let Some(world) = by_openzfs(world, 5, &["reflowed:tank=1000000000000", "scrub:tank"]) else {
        return;
    };
    zdb_clean(&world, &what);
    run(&world, async |handle| {
        let pool = import_with(&handle, 5, &small()).await;
        expanded(&handle, &pool, 5).await;
        compare(&root(&pool).await, &recorder.now, &what).await;
        scrub_is_clean(&pool).await;
        pool.export().await.expect("export");
    });
}
