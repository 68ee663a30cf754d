//! Trimming and writing free space: only what is free is touched, while others work, over exports and power cuts.

use std::time::Duration;

use pool::{LeafActivity, LeafActivityRequest, LeafActivityState, Pool, VdevSpec};
use runtime::Handle;
use world::{Ended, World};

use crate::support::*;
use crate::workload::{Recorder, compare, root, step, work};

const START: LeafActivityRequest = LeafActivityRequest::Start { rate: None };

fn leaves(pool: &Pool) -> Vec<u64> {
    pool.tree()
        .leaves()
        .iter()
        .map(|leaf| leaf.guid.0)
        .collect()
}

fn states(pool: &Pool, what: LeafActivity) -> Vec<LeafActivityState> {
    fn collect(vdev: &pool::VdevStatus, what: LeafActivity, into: &mut Vec<LeafActivityState>) {
        if vdev.children.is_empty() {
            into.push(match what {
                LeafActivity::Trim => vdev.trim.state,
                LeafActivity::Initialize => vdev.initialize.state,
            });
        }
        for child in &vdev.children {
            collect(child, what, into);
        }
    }
    let mut found = Vec::new();
    collect(&pool.status().root, what, &mut found);
    found
}

async fn wait(handle: &Handle, pool: &Pool, what: LeafActivity) {
    while states(pool, what).contains(&LeafActivityState::Active) {
        handle.sleep(Duration::from_millis(20)).await;
    }
}

fn raidz() -> Vec<VdevSpec> {
    vec![VdevSpec::Raidz {
        parity: 1,
        paths: vec![path(0), path(1), path(2)],
    }]
}

/// How many 4 KiB blocks of a disk begin with the bytes that free space is written with.
fn written_blocks(world: &World, disk: usize) -> usize {
    let images = world.durable_images();
    let (_, image) = images
        .iter()
        .find(|(at, _)| **at == path(disk))
        .expect("the disk");
    let pattern = 0xdead_beef_dead_beee_u64.to_le_bytes();
    (0..image.size() / 4096)
        .filter(|block| {
            let mut bytes = [0; 8];
            image.read(block * 4096, &mut bytes);
            bytes == pattern
        })
        .count()
}

#[test]
fn free_space_is_written_and_discarded_beside_clients() {
    for (seed, disks, vdevs) in [(701, 2, mirror()), (702, 3, raidz())] {
        let world = world(seed, disks, 128 * MIB);
        let mut recorder = Recorder::default();
        let mut rng = world.rng();
        run(&world, async |handle| {
            let pool = create(&handle, vdevs.clone()).await;
            work(&pool, &mut rng, &mut recorder, 60).await;
            for what in [LeafActivity::Initialize, LeafActivity::Trim] {
                for leaf in leaves(&pool) {
                    let idle = pool
                        .request_leaf_activity(what, leaf, LeafActivityRequest::Cancel)
                        .await;
                    assert!(idle.is_err(), "nothing runs");
                    pool.request_leaf_activity(what, leaf, START)
                        .await
                        .expect("start");
                    let again = pool.request_leaf_activity(what, leaf, START).await;
                    assert!(again.is_err(), "it runs");
                }
                // Concurrent allocations get other ranges.
                work(&pool, &mut rng, &mut recorder, 60).await;
                wait(&handle, &pool, what).await;
                let all = vec![LeafActivityState::Complete; disks];
                assert_eq!(states(&pool, what), all);
                compare(&root(&pool).await, &recorder.now, "beside the work").await;
                let written = written_blocks(&world, 0);
                match what {
                    // 128 MiB are 32,768 blocks, most of them free.
                    LeafActivity::Initialize => assert!(written > 20_000, "{written} blocks"),
                    LeafActivity::Trim => assert!(written < 3_000, "{written} blocks left"),
                }
            }
            work(&pool, &mut rng, &mut recorder, 20).await;
            pool.export().await.expect("export");
        });
        zdb_clean(&world, "after initialize and trim");
        run(&world, async |handle| {
            let pool = import(&handle, disks).await;
            compare(&root(&pool).await, &recorder.now, "imported again").await;
            let all = vec![LeafActivityState::Complete; disks];
            assert_eq!(states(&pool, LeafActivity::Trim), all);
            let leaf = leaves(&pool)[0];
            let forget = pool.request_leaf_activity(
                LeafActivity::Initialize,
                leaf,
                LeafActivityRequest::Uninit,
            );
            forget.await.expect("forget");
            assert_eq!(
                states(&pool, LeafActivity::Initialize)[0],
                LeafActivityState::None
            );
            pool.export().await.expect("export");
        });
    }
}

#[test]
fn work_on_free_space_goes_on_after_an_export() {
    let world = world(711, 2, 256 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    let slow = LeafActivityRequest::Start {
        rate: Some(32 * MIB),
    };
    run(&world, async |handle| {
        let pool = create(&handle, mirror()).await;
        work(&pool, &mut rng, &mut recorder, 40).await;
        let disks = leaves(&pool);
        for what in [LeafActivity::Trim, LeafActivity::Initialize] {
            pool.request_leaf_activity(what, disks[0], slow)
                .await
                .expect("start");
        }
        pool.request_leaf_activity(LeafActivity::Trim, disks[1], slow)
            .await
            .expect("start");
        handle.sleep(Duration::from_secs(2)).await;
        pool.request_leaf_activity(LeafActivity::Trim, disks[1], LeafActivityRequest::Suspend)
            .await
            .expect("suspend");
        assert_eq!(
            states(&pool, LeafActivity::Trim),
            [LeafActivityState::Active, LeafActivityState::Suspended]
        );
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "with work to be done");
    run(&world, async |handle| {
        let pool = import(&handle, 2).await;
        assert_eq!(
            states(&pool, LeafActivity::Trim),
            [LeafActivityState::Active, LeafActivityState::Suspended]
        );
        wait(&handle, &pool, LeafActivity::Trim).await;
        wait(&handle, &pool, LeafActivity::Initialize).await;
        assert_eq!(
            states(&pool, LeafActivity::Trim),
            [LeafActivityState::Complete, LeafActivityState::Suspended]
        );
        let disks = leaves(&pool);
        pool.request_leaf_activity(LeafActivity::Trim, disks[1], START)
            .await
            .expect("on it goes");
        wait(&handle, &pool, LeafActivity::Trim).await;
        compare(&root(&pool).await, &recorder.now, "after all of it").await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "after the work");
}

#[test]
fn a_power_cut_during_work_on_free_space_loses_nothing() {
    let mut cuts = 0;
    for seed in 720..732 {
        let world = world(seed, 2, 128 * MIB);
        let mut recorder = Recorder::default();
        let mut rng = world.rng();
        let told = std::cell::RefCell::new(Recorder::default());
        let runtime = world.boot();
        world.plan_cut_at_write(300 + rng.below(1500));
        let ended = world.run_on(&runtime, async |handle| {
            let pool = create(&handle, mirror()).await;
            work(&pool, &mut rng, &mut recorder, 20).await;
            for leaf in leaves(&pool) {
                for what in [LeafActivity::Trim, LeafActivity::Initialize] {
                    pool.request_leaf_activity(what, leaf, START)
                        .await
                        .expect("start");
                }
            }
            loop {
                let dataset = root(&pool).await;
                for _ in 0..4 {
                    step(&dataset, &mut rng, &mut recorder).await.expect("step");
                }
                *told.borrow_mut() = recorder.clone();
                pool.sync().await.expect("sync");
            }
        });
        let ended: Ended<()> = ended;
        assert!(matches!(ended, Ended::PowerCut));
        drop(runtime);
        run(&world, async |handle| {
            let found = find(&handle, 2).await;
            let Some(found) = found.first() else {
                // Before it was created.
                return;
            };
            let pool = Pool::import(&handle, found, policy())
                .await
                .expect("import");
            cuts += 1;
            wait(&handle, &pool, LeafActivity::Trim).await;
            wait(&handle, &pool, LeafActivity::Initialize).await;
            pool.start_scrub().await.expect("scrub");
            while pool.status().scan.is_some_and(|scan| scan.running) {
                handle.sleep(Duration::from_millis(20)).await;
            }
            let scan = pool.status().scan.expect("a scrub");
            assert_eq!((scan.errors, scan.processed_bytes), (0, 0), "seed {seed}");
            pool.export().await.expect("export");
        });
        if seed.is_multiple_of(4) {
            zdb_clean(&world, &format!("seed {seed}"));
        }
    }
    assert!(cuts > 6, "only {cuts} pools after cuts");
}

#[test]
fn freed_space_is_discarded_by_itself() {
    for (seed, disks, vdevs) in [(711, 2, mirror()), (712, 3, raidz())] {
        let world = world(seed, disks, 128 * MIB);
        let mut rng = world.rng();
        let mut recorder = Recorder::default();
        run(&world, async |handle| {
            let trimmed = |pool: &Pool| -> u64 {
                let leaves = pool.tree().leaves();
                let stats = leaves.iter().map(|leaf| pool.tree().leaf_stats(leaf.guid));
                stats.map(|stats| stats.expect("a leaf").trim_bytes).sum()
            };
            let pool = create(&handle, vdevs.clone()).await;
            work(&pool, &mut rng, &mut recorder, 60).await;
            handle.sleep(Duration::from_secs(400)).await;
            assert_eq!(trimmed(&pool), 0, "autotrim is off");
            pool.set_property("autotrim", "on").await.expect("on");
            for _ in 0..6 {
                work(&pool, &mut rng, &mut recorder, 120).await;
                handle.sleep(Duration::from_secs(200)).await;
            }
            let before = trimmed(&pool);
            assert!(before >= 1 << 20, "{before} bytes are discarded");
            pool.set_property("autotrim", "off").await.expect("off");
            handle.sleep(Duration::from_secs(5)).await;
            let before = trimmed(&pool);
            work(&pool, &mut rng, &mut recorder, 120).await;
            handle.sleep(Duration::from_secs(400)).await;
            assert_eq!(trimmed(&pool), before, "no more");
            pool.export().await.expect("export");
        });
        run(&world, async |handle| {
            let pool = import(&handle, disks).await;
            compare(&root(&pool).await, &recorder.now, "imported again").await;
            pool.export().await.expect("export");
        });
        zdb_clean(&world, "after discarding what came free");
    }
}
