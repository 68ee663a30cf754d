//! Pools that are split, that grow with their devices, and that get another guid.

use std::path::Path;

use pool::{AddSpec, Health, Pool, PoolError, PoolSpec, SplitSpec, VdevSpec, discover};
use world::World;

use crate::support::*;
use crate::workload::{Recorder, compare, root, work};

fn pairs() -> Vec<VdevSpec> {
    vec![
        VdevSpec::Mirror(vec![path(0), path(1)]),
        VdevSpec::Mirror(vec![path(2), path(3)]),
    ]
}

fn judged(dir: &Path, pool: &str, what: &str) {
    if !has_zdb() {
        return;
    }
    for flags in ["-bcc", "-dddd"] {
        let output = oracle::zdb()
            .args(["-e", "-p"])
            .arg(dir)
            .args([flags, pool])
            .output()
            .expect("zdb runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && !text.contains("leaked space"),
            "{what}: zdb {flags} {pool}: {complaint}"
        );
    }
}

fn dumped(world: &World) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("temporary directory");
    world.dump(dir.path()).expect("dump the disks");
    dir
}

async fn open(handle: &runtime::Handle, name: &str, disks: usize) -> Option<Pool> {
    let places: Vec<_> = (0..disks).map(path).collect();
    let found = discover(handle, &places).await.pools;
    let candidate = found.iter().find(|candidate| candidate.name == name)?;
    let pool = Pool::import(handle, candidate, policy()).await;
    Some(pool.unwrap_or_else(|error| panic!("{name}: {error}")))
}

/// How many disks have a label of the pool.
async fn halves_of(handle: &runtime::Handle, name: &str, disks: usize) -> usize {
    let mut found = 0;
    for disk in 0..disks {
        let pools = discover(handle, &[path(disk)]).await.pools;
        found += usize::from(pools.iter().any(|candidate| candidate.name == name));
    }
    found
}

#[test]
fn half_of_a_pool_becomes_another() {
    let world = world(501, 7, 96 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    let spec = PoolSpec {
        logs: vec![VdevSpec::Single(path(4))],
        spares: vec![path(5)],
        caches: vec![path(6)],
        ..spec(pairs())
    };
    run(&world, async |handle| {
        let pool = Pool::create(&handle, spec, empty_root)
            .await
            .expect("create");
        work(&pool, &mut rng, &mut recorder, 30).await;
        let leaf = |top: usize, child: usize| pool.status().root.children[top].children[child].guid;
        let two_of_one = pool.plan_split(&[leaf(0, 0), leaf(0, 1)]);
        assert!(
            matches!(two_of_one, Err(PoolError::Invalid(_))),
            "{two_of_one:?}"
        );
        let plan = pool.plan_split(&[leaf(1, 0)]).expect("a plan");
        let paths: Vec<_> = plan.into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, [path(1), path(2)]);
        let spec = SplitSpec {
            name: "copy".into(),
            devices: vec![leaf(1, 0)],
            properties: vec![("comment".into(), "a half".into())],
        };
        for (name, value) in [
            ("bootfs", "tank/fs"),
            ("failmode", "sometimes"),
            ("size", "1"),
        ] {
            let properties = vec![(name.into(), value.into())];
            let refused = pool
                .split(SplitSpec {
                    properties,
                    ..spec.clone()
                })
                .await;
            assert!(
                matches!(refused, Err(PoolError::Invalid(_))),
                "{name}: {refused:?}"
            );
        }
        let tops = pool.status().root.children;
        let whole = tops.iter().filter(|top| top.children.len() == 2);
        assert_eq!(whole.count(), 2, "nothing was parted");
        pool.split(spec).await.expect("split");
        let root = pool.status().root;
        assert_eq!(root.health, Health::Online);
        assert!(
            root.children.iter().all(|top| top.children.is_empty()),
            "{root:?}"
        );
        let again = SplitSpec {
            name: "again".into(),
            ..SplitSpec::default()
        };
        let again = pool.split(again).await;
        assert!(matches!(again, Err(PoolError::Invalid(_))), "{again:?}");
        pool.export().await.expect("export");
    });
    let before = recorder.clone();
    {
        let dir = dumped(&world);
        judged(dir.path(), "tank", "what was split");
        judged(dir.path(), "copy", "the split half");
    }
    run(&world, async |handle| {
        for name in ["copy", "tank"] {
            let pool = open(&handle, name, 7).await.expect("found");
            compare(&root(&pool).await, &before.now, name).await;
            let spares = pool.status().spares.len();
            assert_eq!(spares, usize::from(name == "tank"));
            let mut own = before.clone();
            work(&pool, &mut rng, &mut own, 10).await;
            let scan = pool.scrub().await.expect("scrub");
            assert_eq!((scan.errors, scan.processed_bytes), (0, 0), "{scan:?}");
            pool.export().await.expect("export");
        }
    });
    let dir = dumped(&world);
    judged(dir.path(), "tank", "written to");
    judged(dir.path(), "copy", "written to");
}

#[test]
fn a_power_cut_during_a_split_loses_nothing() {
    let mut copies = 0;
    for seed in 0..24 {
        let world = world(5100 + seed, 4, 96 * MIB);
        let mut recorder = Recorder::default();
        let mut rng = world.rng();
        run(&world, async |handle| {
            let pool = create(&handle, pairs()).await;
            work(&pool, &mut rng, &mut recorder, 15).await;
            pool.export().await.expect("export");
        });
        let runtime = world.boot();
        world.plan_cut_at_write(rng.below(360) + 1);
        let ended = world.run_on(&runtime, async |handle| {
            let pool = import(&handle, 4).await;
            let spec = SplitSpec {
                name: "copy".into(),
                ..SplitSpec::default()
            };
            pool.split(spec).await.expect("split");
        });
        drop(runtime);
        if matches!(ended, world::Ended::Done(())) {
            world.power_cut();
        }
        run(&world, async |handle| {
            let pool = open(&handle, "tank", 4).await.expect("it is always there");
            compare(
                &root(&pool).await,
                &recorder.now,
                &format!("tank, seed {seed}"),
            )
            .await;
            let scan = pool.wait_scan().await.expect("a resilver may run");
            assert_eq!(scan.errors, 0, "seed {seed}");
            pool.export().await.expect("export");
            // Halves that are in both pools belong to the copy. It is there once the labels of all halves are written, and
            // a cut between the first and the last of them leaves one that cannot be imported.
            if halves_of(&handle, "copy", 4).await == 2 {
                let copy = open(&handle, "copy", 4).await.expect("it was just found");
                copies += 1;
                compare(
                    &root(&copy).await,
                    &recorder.now,
                    &format!("copy, seed {seed}"),
                )
                .await;
                copy.export().await.expect("export");
            }
        });
    }
    assert!(
        (3..24).contains(&copies),
        "{copies} cuts after the copy was made"
    );
}

#[test]
fn a_pool_grows_with_its_devices() {
    let shapes = [
        single(),
        mirror(),
        vec![VdevSpec::Raidz {
            parity: 1,
            paths: (0..3).map(path).collect(),
        }],
    ];
    for (number, shape) in shapes.into_iter().enumerate() {
        let disks = shape[0].paths().len();
        let world = world(520 + number as u64, 3, 96 * MIB);
        let mut recorder = Recorder::default();
        let mut rng = world.rng();
        run(&world, async |handle| {
            let pool = create(&handle, shape).await;
            work(&pool, &mut rng, &mut recorder, 20).await;
            let before = pool.store().space().size;
            for disk in 1..disks {
                world.grow(path(disk), 256 * MIB);
            }
            if disks > 1 {
                assert_eq!(
                    pool.expand().await.expect("expand"),
                    0,
                    "one is still small"
                );
            }
            world.grow(path(0), 256 * MIB);
            pool.reopen().await.expect("reopen");
            assert_eq!(pool.store().space().size, before, "only when told");
            assert_eq!(pool.expand().await.expect("expand"), 1);
            assert!(pool.store().space().size > 2 * before);
            work(&pool, &mut rng, &mut recorder, 60).await;
            compare(&root(&pool).await, &recorder.now, "grown").await;
            pool.export().await.expect("export");
        });
        zdb_clean(&world, "grown");
        run(&world, async |handle| {
            let pool = import(&handle, 3).await;
            let size = pool.store().space().size;
            pool.set_property("autoexpand", "on")
                .await
                .expect("autoexpand");
            for disk in 0..disks {
                world.grow(path(disk), 384 * MIB);
            }
            pool.reopen().await.expect("reopen");
            assert!(pool.store().space().size > size, "by itself");
            compare(&root(&pool).await, &recorder.now, "grown twice").await;
            let scan = pool.scrub().await.expect("scrub");
            assert_eq!((scan.errors, scan.processed_bytes), (0, 0), "{scan:?}");
            pool.export().await.expect("export");
        });
        zdb_clean(&world, "grown twice");
    }
}

#[test]
fn a_power_cut_during_growth_leaves_the_pool_small_or_large() {
    for seed in 0..20 {
        let world = world(5300 + seed, 2, 96 * MIB);
        let mut recorder = Recorder::default();
        let mut rng = world.rng();
        run(&world, async |handle| {
            let pool = create(&handle, mirror()).await;
            work(&pool, &mut rng, &mut recorder, 15).await;
            pool.export().await.expect("export");
        });
        world.grow(path(0), 256 * MIB);
        world.grow(path(1), 256 * MIB);
        let runtime = world.boot();
        world.plan_cut_at_write(rng.below(120) + 1);
        let ended = world.run_on(&runtime, async |handle| {
            let pool = import(&handle, 2).await;
            pool.expand().await.expect("expand");
        });
        drop(runtime);
        if matches!(ended, world::Ended::Done(())) {
            world.power_cut();
        }
        run(&world, async |handle| {
            let pool = import(&handle, 2).await;
            compare(&root(&pool).await, &recorder.now, &format!("seed {seed}")).await;
            pool.expand().await.expect("expand");
            work(&pool, &mut rng, &mut recorder, 5).await;
            pool.export().await.expect("export");
        });
        if seed % 5 == 0 {
            zdb_clean(&world, &format!("growth cut, seed {seed}"));
        }
    }
}

#[test]
fn a_pool_gets_another_guid() {
    let world = world(540, 2, 96 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = create(&handle, mirror()).await;
        work(&pool, &mut rng, &mut recorder, 10).await;
        let before = pool.guid();
        let now = pool.reguid(None).await.expect("reguid");
        assert!(now != before && pool.guid() == now);
        assert_eq!(pool.reguid(Some(4711)).await.expect("reguid"), 4711);
        assert!(pool.reguid(Some(0)).await.is_err());
        work(&pool, &mut rng, &mut recorder, 5).await;
        pool.abandon();
    });
    world.power_cut();
    run(&world, async |handle| {
        let pool = import(&handle, 2).await;
        assert_eq!(pool.guid(), 4711);
        compare(&root(&pool).await, &recorder.now, "under its new guid").await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "under its new guid");
}

#[test]
fn a_disk_that_is_back_comes_into_service_by_itself() {
    let world = world(550, 2, 96 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = create(&handle, mirror()).await;
        work(&pool, &mut rng, &mut recorder, 10).await;
        world.vanish(path(1));
        work(&pool, &mut rng, &mut recorder, 10).await;
        assert_eq!(pool.status().root.health, Health::Degraded);
        world.bring_back(path(1));
        for _ in 0..60 {
            if pool.status().root.health == Health::Online {
                break;
            }
            handle.sleep(std::time::Duration::from_secs(1)).await;
        }
        assert_eq!(
            pool.status().root.health,
            Health::Online,
            "{:?}",
            pool.status()
        );
        let scan = pool.scrub().await.expect("scrub");
        assert_eq!((scan.errors, scan.processed_bytes), (0, 0), "{scan:?}");
        // An addition to a pool that has lived through it.
        pool.add(AddSpec::default())
            .await
            .expect("nothing to add is no mistake");
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "back by itself");
}
