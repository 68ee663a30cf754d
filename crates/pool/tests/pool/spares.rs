//! Hot spares that take over by themselves and go back, and devices that leave a pool for good.

use std::path::PathBuf;
use std::time::Duration;

use pool::{AddSpec, Health, Pool, PoolError, PoolSpec, VdevSpec, VdevStatus};
use world::World;

use crate::support::*;
use crate::workload::{Recorder, compare, root, work};

fn find_leaf(vdev: &VdevStatus, disk: usize) -> Option<VdevStatus> {
    if vdev.children.is_empty() && vdev.path.as_deref() == Some(path(disk).as_path()) {
        return Some(vdev.clone());
    }
    let mut children = vdev.children.iter();
    children.find_map(|child| find_leaf(child, disk))
}

fn leaf(pool: &Pool, disk: usize) -> VdevStatus {
    let status = pool.status();
    find_leaf(&status.root, disk).unwrap_or_else(|| panic!("d{disk} is not in {status:?}"))
}

fn spare(pool: &Pool, disk: usize) -> Option<Health> {
    let spares = pool.status().spares;
    let found = spares
        .iter()
        .find(|s| s.path.as_deref() == Some(path(disk).as_path()));
    found.map(|spare| spare.health)
}

/// Waits until the spare is in this state and no scan runs.
async fn until(handle: &runtime::Handle, pool: &Pool, disk: usize, state: Health) {
    for _ in 0..1200 {
        let scanning = pool.status().scan.is_some_and(|scan| scan.running);
        if spare(pool, disk) == Some(state) && !scanning {
            return;
        }
        handle.sleep(Duration::from_millis(100)).await;
    }
    panic!("the spare never was {state:?}: {:?}", pool.status());
}

fn spare_spec(vdevs: Vec<VdevSpec>, spares: &[usize]) -> PoolSpec {
    PoolSpec {
        spares: spares.iter().copied().map(path).collect(),
        ..spec(vdevs)
    }
}

fn scrubbed_by_openzfs(world: &World, disks: &[usize], what: &str) {
    let dir = tempfile::tempdir().expect("temporary directory");
    world.dump(dir.path()).expect("dump the disks");
    let files: Vec<PathBuf> = disks
        .iter()
        .map(|disk| dir.path().join(format!("d{disk}")))
        .collect();
    if refpool_run(dir.path(), "ds", &files, &["--", "scrub:tank"]) {
        zdb_clean_dir(dir.path(), what);
    }
}

#[test]
fn a_spare_takes_over_goes_back_and_at_last_stays() {
    let world = world(401, 3, 128 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    run(&world, async |handle| {
        let spec = spare_spec(mirror(), &[2]);
        let pool = Pool::create(&handle, spec, empty_root)
            .await
            .expect("create");
        assert_eq!(spare(&pool, 2), Some(Health::Available));
        work(&pool, &mut rng, &mut recorder, 30).await;
        world.vanish(path(1));
        work(&pool, &mut rng, &mut recorder, 10).await;
        until(&handle, &pool, 2, Health::InUse).await;
        assert_eq!(leaf(&pool, 2).health, Health::Online);
        let refused = pool.remove(leaf(&pool, 2).guid).await;
        assert!(matches!(refused, Err(PoolError::InUse(_))), "{refused:?}");
        work(&pool, &mut rng, &mut recorder, 10).await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "with the spare in use");
    run(&world, async |handle| {
        let pool = import(&handle, 3).await;
        assert_eq!(spare(&pool, 2), Some(Health::InUse), "also after an import");
        work(&pool, &mut rng, &mut recorder, 10).await;
        world.bring_back(path(1));
        assert_eq!(pool.reopen().await.expect("reopen"), 1);
        until(&handle, &pool, 2, Health::Available).await;
        assert_eq!(pool.status().root.children[0].children.len(), 2);
        let scan = pool.scrub().await.expect("scrub");
        assert_eq!((scan.errors, scan.processed_bytes), (0, 0), "{scan:?}");
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "the spare waits again");
    scrubbed_by_openzfs(&world, &[0, 1], "scrubbed by OpenZFS");
    run(&world, async |handle| {
        let pool = import(&handle, 3).await;
        assert_eq!(spare(&pool, 2), Some(Health::Available), "it waits");
        world.vanish(path(1));
        work(&pool, &mut rng, &mut recorder, 5).await;
        until(&handle, &pool, 2, Health::InUse).await;
        pool.detach(leaf(&pool, 1).guid).await.expect("detach");
        assert_eq!(spare(&pool, 2), None, "no spare any more");
        let mirror = &pool.status().root.children[0];
        assert_eq!((mirror.kind.as_str(), mirror.children.len()), ("mirror", 2));
        world.vanish(path(0));
        compare(
            &root(&pool).await,
            &recorder.now,
            "on the former spare alone",
        )
        .await;
        work(&pool, &mut rng, &mut recorder, 5).await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "on the former spare alone");
}

#[test]
fn a_raidz_gets_a_spare_and_a_successor_sends_it_back() {
    let world = world(402, 6, 128 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    let vdevs = vec![VdevSpec::Raidz {
        parity: 1,
        paths: (0..4).map(path).collect(),
    }];
    run(&world, async |handle| {
        let pool = Pool::create(&handle, spec(vdevs), empty_root)
            .await
            .expect("create");
        pool.add(AddSpec {
            spares: vec![path(4)],
            ..AddSpec::default()
        })
        .await
        .expect("add a spare");
        let twice = AddSpec {
            spares: vec![path(4)],
            force: true,
            ..AddSpec::default()
        };
        let twice = pool.add(twice).await;
        assert!(
            matches!(twice, Err(PoolError::DeviceInUse { .. })),
            "{twice:?}"
        );
        work(&pool, &mut rng, &mut recorder, 30).await;
        world.vanish(path(2));
        work(&pool, &mut rng, &mut recorder, 10).await;
        until(&handle, &pool, 4, Health::InUse).await;
        // The spare has everything: another disk may go.
        world.vanish(path(0));
        compare(&root(&pool).await, &recorder.now, "with two of four gone").await;
        // Noticed by the next writes; a disk without missed writes would not be opened again.
        work(&pool, &mut rng, &mut recorder, 5).await;
        world.bring_back(path(0));
        assert_eq!(pool.reopen().await.expect("reopen"), 1);
        until(&handle, &pool, 4, Health::InUse).await;
        pool.attach(leaf(&pool, 2).guid, &path(5), true, false)
            .await
            .expect("replace");
        until(&handle, &pool, 4, Health::Available).await;
        let raidz = &pool.status().root.children[0];
        assert!(
            raidz.children.iter().all(|c| c.children.is_empty()),
            "{raidz:?}"
        );
        let scan = pool.scrub().await.expect("scrub");
        let status = pool.status();
        assert_eq!((scan.errors, scan.processed_bytes), (0, 0), "{status:#?}");
        compare(&root(&pool).await, &recorder.now, "at the end").await;
        pool.remove(pool.status().spares[0].guid)
            .await
            .expect("remove the spare");
        assert!(pool.status().spares.is_empty());
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "after a successor");
    scrubbed_by_openzfs(&world, &[0, 1, 5, 3], "scrubbed by OpenZFS");
}

#[test]
fn a_power_cut_during_a_takeover_loses_nothing() {
    for seed in 0..24 {
        let world = world(4200 + seed, 3, 96 * MIB);
        let mut recorder = Recorder::default();
        let mut rng = world.rng();
        run(&world, async |handle| {
            let spec = spare_spec(mirror(), &[2]);
            let pool = Pool::create(&handle, spec, empty_root)
                .await
                .expect("create");
            work(&pool, &mut rng, &mut recorder, 15).await;
            pool.export().await.expect("export");
        });
        world.vanish(path(1));
        let runtime = world.boot();
        world.plan_cut_at_write(rng.below(350) + 1);
        let ended = world.run_on(&runtime, async |handle| {
            let pool = import(&handle, 3).await;
            until(&handle, &pool, 2, Health::InUse).await;
            pool.detach(leaf(&pool, if seed % 2 == 0 { 1 } else { 2 }).guid)
                .await
                .expect("detach");
        });
        drop(runtime);
        if matches!(ended, world::Ended::Done(())) {
            world.power_cut();
        }
        run(&world, async |handle| {
            let pool = import(&handle, 3).await;
            if spare(&pool, 2).is_some() {
                until(&handle, &pool, 2, Health::InUse).await;
            }
            let scan = pool.scrub().await.expect("scrub");
            assert_eq!(scan.errors, 0, "seed {seed}: {scan:?}");
            compare(&root(&pool).await, &recorder.now, &format!("seed {seed}")).await;
            pool.export().await.expect("export");
        });
        if seed % 6 == 0 {
            zdb_clean(&world, &format!("takeover cut, seed {seed}"));
        }
    }
}

#[test]
fn a_log_vdev_comes_and_goes() {
    let world = world(403, 4, 128 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = create(&handle, single()).await;
        work(&pool, &mut rng, &mut recorder, 20).await;
        pool.add(AddSpec {
            logs: vec![VdevSpec::Mirror(vec![path(1), path(2)])],
            caches: vec![path(3)],
            ..AddSpec::default()
        })
        .await
        .expect("add a log");
        let txg = pool.clock().open_txg();
        let held = pool
            .store()
            .allocate_log(txg, 8192, true, None)
            .await
            .expect("log space");
        assert_eq!(held.dvas()[0].vdev, 1, "logs go to the log vdev");
        pool.sync().await.expect("sync");
        let log = pool.status().root.children[1].guid;
        // The only vdev that holds data has nowhere to go.
        let refused = pool.remove(pool.status().root.children[0].guid).await;
        assert!(matches!(refused, Err(PoolError::NoSpace)), "{refused:?}");
        // An allocation that is not freed keeps the vdev; then it is used as before.
        let busy = pool.remove(log).await;
        assert!(matches!(busy, Err(PoolError::InUse(_))), "{busy:?}");
        let more = pool
            .store()
            .allocate_log(pool.clock().open_txg(), 8192, true, None)
            .await;
        assert_eq!(more.expect("log space").dvas()[0].vdev, 1);
        pool.abandon();
    });
    run(&world, async |handle| {
        let pool = import(&handle, 4).await;
        let log = pool.status().root.children[1].clone();
        if log.allocated_bytes == 0 {
            pool.remove(log.guid).await.expect("remove the log");
            assert_eq!(pool.status().root.children.len(), 1);
        }
        pool.abandon();
    });
}

#[test]
fn a_removed_log_leaves_a_hole_that_openzfs_accepts() {
    let world = world(404, 4, 128 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = create(&handle, single()).await;
        let add_log = |disk: usize| AddSpec {
            logs: vec![VdevSpec::Single(path(disk))],
            ..AddSpec::default()
        };
        pool.add(add_log(1)).await.expect("add a log");
        pool.add(AddSpec {
            vdevs: vec![VdevSpec::Single(path(2))],
            caches: vec![path(3)],
            ..AddSpec::default()
        })
        .await
        .expect("add a vdev");
        work(&pool, &mut rng, &mut recorder, 20).await;
        let log = pool.status().root.children[1].guid;
        pool.remove(log).await.expect("remove the log");
        assert_eq!(pool.status().root.children.len(), 2);
        work(&pool, &mut rng, &mut recorder, 10).await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "with a hole");
    run(&world, async |handle| {
        let pool = import(&handle, 4).await;
        let status = pool.status();
        assert_eq!((status.root.children.len(), status.caches.len()), (2, 1));
        // The disk is free again, and its old label does not claim otherwise.
        pool.add(AddSpec {
            logs: vec![VdevSpec::Single(path(1))],
            ..AddSpec::default()
        })
        .await
        .expect("add it again");
        work(&pool, &mut rng, &mut recorder, 10).await;
        pool.remove(status.caches[0].guid)
            .await
            .expect("remove the cache");
        compare(&root(&pool).await, &recorder.now, "with a hole").await;
        let scan = pool.scrub().await.expect("scrub");
        assert_eq!((scan.errors, scan.processed_bytes), (0, 0), "{scan:?}");
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "with a hole and a new log");
}
