//! Vdevs that join a pool in use: every class, under load, with the power cut at any moment.

use std::cell::RefCell;
use std::rc::Rc;

use pool::{AddSpec, AllocationBias, Pool, PoolError, VdevSpec};
use world::Ended;

use crate::support::*;
use crate::workload::{Recorder, compare, root, step};

fn single_disk(disk: usize) -> Vec<VdevSpec> {
    vec![VdevSpec::Single(path(disk))]
}

fn pair(disk: usize) -> Vec<VdevSpec> {
    vec![VdevSpec::Mirror(vec![path(disk), path(disk + 1)])]
}

fn biases(pool: &Pool) -> Vec<AllocationBias> {
    let root = pool.status().root;
    root.children.iter().map(|top| top.bias).collect()
}

#[test]
fn vdevs_of_every_class_join_a_pool_in_use() {
    let world = world(301, 9, 128 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = create(&handle, mirror()).await;
        let dataset = root(&pool).await;
        for _ in 0..20 {
            step(&dataset, &mut rng, &mut recorder).await.expect("step");
        }
        let before = pool.store().space().size;
        let spec = AddSpec {
            vdevs: pair(2),
            special: pair(4),
            dedup: single_disk(6),
            logs: single_disk(7),
            ..AddSpec::default()
        };
        pool.add(spec).await.expect("add");
        assert!(pool.store().space().size > 3 * before, "there is more room");
        for _ in 0..40 {
            step(&dataset, &mut rng, &mut recorder).await.expect("step");
        }
        pool.sync().await.expect("sync");
        let status = pool.status();
        let used: Vec<u64> = status
            .root
            .children
            .iter()
            .map(|top| top.allocated_bytes)
            .collect();
        assert!(
            used[1] > 0 && used[3] > 0,
            "new vdevs take blocks: {used:?}"
        );
        // A device is not taken twice, nor one that holds another pool.
        for disk in [0, 2, 7] {
            let spec = AddSpec {
                vdevs: single_disk(disk),
                force: true,
                ..AddSpec::default()
            };
            let again = pool.add(spec).await;
            assert!(
                matches!(
                    again,
                    Err(PoolError::DeviceInUse {
                        forceable: false,
                        ..
                    })
                ),
                "{again:?}"
            );
        }
        let other_sectors = AddSpec {
            vdevs: single_disk(8),
            ashift: Some(13),
            ..AddSpec::default()
        };
        let refused = pool.add(other_sectors).await;
        assert!(
            matches!(refused, Err(PoolError::SectorSizes)),
            "{refused:?}"
        );
        drop(dataset);
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "after the additions");
    run(&world, async |handle| {
        let pool = import(&handle, 9).await;
        use AllocationBias::{Dedup, Log, None, Special};
        assert_eq!(biases(&pool), [None, None, Dedup, Special, Log]);
        let scan = pool.scrub().await.expect("scrub");
        assert_eq!((scan.errors, scan.processed_bytes), (0, 0), "{scan:?}");
        compare(&root(&pool).await, &recorder.now, "after the additions").await;
        pool.export().await.expect("export");
    });
    let dir = tempfile::tempdir().expect("temporary directory");
    world.dump(dir.path()).expect("dump the disks");
    let files: Vec<_> = (0..9)
        .map(|disk| dir.path().join(format!("d{disk}")))
        .collect();
    if refpool_run(dir.path(), "ds", &files[..8], &["--", "scrub:tank"]) {
        zdb_clean_dir(dir.path(), "scrubbed by OpenZFS");
    }
}

/// One pool that grows three times, the power cut at a write or flush; returns how many vdevs it has afterwards.
fn cut_while_growing(seed: u64) -> usize {
    let world = world(4000 + seed, 4, 96 * MIB);
    run(&world, async |handle| {
        let pool = create(&handle, single()).await;
        pool.export().await.expect("export");
    });
    let shared = Rc::new(RefCell::new((Recorder::default(), 0, 1)));
    let told = shared.clone();
    let mut rng = world.rng();
    let runtime = world.boot();
    if seed.is_multiple_of(3) {
        world.plan_cut_at_flush(rng.below(50) + 1);
    } else {
        world.plan_cut_at_write(rng.below(900) + 1);
    }
    let ended = world.run_on(&runtime, async |handle| {
        let pool = import(&handle, 4).await;
        let dataset = root(&pool).await;
        let mut recorder = Recorder::default();
        for round in 0..3 {
            for _ in 0..4 {
                step(&dataset, &mut rng, &mut recorder).await.expect("step");
                told.borrow_mut().0 = recorder.clone();
            }
            let mut spec = AddSpec::default();
            match round {
                0 => spec.vdevs = single_disk(1),
                1 => spec.special = single_disk(2),
                _ => spec.logs = single_disk(3),
            }
            pool.add(spec).await.expect("add");
            told.borrow_mut().2 += 1;
            for _ in 0..4 {
                step(&dataset, &mut rng, &mut recorder).await.expect("step");
                told.borrow_mut().0 = recorder.clone();
            }
            let txg = pool.sync().await.expect("sync");
            told.borrow_mut().1 = txg.0;
        }
    });
    drop(runtime);
    if matches!(ended, Ended::Done(())) {
        world.power_cut();
    }
    let (recorder, acknowledged, tops) = shared.take();
    let found = run(&world, async |handle| {
        let found = find(&handle, 4).await;
        assert_eq!(found.len(), 1, "seed {seed}: one pool");
        assert!(found[0].txg >= acknowledged, "seed {seed}");
        let pool = Pool::import(&handle, &found[0], policy())
            .await
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let model = recorder.at(found[0].txg);
        let dataset = root(&pool).await;
        compare(&dataset, &model, &format!("seed {seed}")).await;
        let count = biases(&pool).len();
        assert!(count >= tops, "seed {seed}: an addition was acknowledged");
        let scan = pool.scrub().await.expect("scrub");
        assert_eq!(scan.errors, 0, "seed {seed}: {scan:?}");
        drop(dataset);
        pool.export().await.expect("export");
        count
    });
    if seed.is_multiple_of(10) {
        zdb_clean(&world, &format!("after a cut, seed {seed}"));
    }
    found
}

#[test]
fn a_power_cut_leaves_the_pool_before_or_after_an_addition() {
    let mut seen = [0; 5];
    for seed in 0..40 {
        seen[cut_while_growing(seed)] += 1;
    }
    assert!(seen[1..].iter().all(|&count| count > 0), "{seen:?}");
}
