//! Sequential resilvers: devices that join a mirror or a draid get everything in the order of the vdev, over exports, crashes and
//! OpenZFS's own hands. The judge is a scrub that finds nothing to repair, and the old device taken away.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use pool::{
    Health, ImportPolicy, Pool, PoolError, PoolSpec, RebuildState, RebuildStatus, RebuildTuning,
    ScanRefusal, StatusReason, Tuning, VdevSpec, VdevStatus,
};
use runtime::Handle;
use world::{Ended, World};

use crate::support::*;
use crate::workload::{Recorder, compare, fill, root, step, work_unsynced};

/// Pieces and batches so small that a rebuild takes many groups, each of which records how far it came.
fn short() -> Tuning {
    Tuning {
        rebuild: RebuildTuning {
            segment_bytes: 48 << 10,
            batch_bytes: 384 << 10,
            store_every: Duration::ZERO,
            ..RebuildTuning::default()
        },
        ..Tuning::default()
    }
}

async fn create_with(handle: &Handle, vdevs: Vec<VdevSpec>, tuning: &Tuning) -> Pool {
    let spec = PoolSpec {
        tuning: tuning.clone(),
        ..spec(vdevs)
    };
    Pool::create(handle, spec, empty_root)
        .await
        .expect("create")
}

async fn import_with(handle: &Handle, disks: usize, tuning: &Tuning) -> Pool {
    let found = find(handle, disks).await;
    assert_eq!(found.len(), 1, "one pool on the disks");
    let policy = ImportPolicy {
        tuning: tuning.clone(),
        ..policy()
    };
    Pool::import(handle, &found[0], policy)
        .await
        .expect("import")
}

fn find_leaf(vdev: &VdevStatus, disk: usize) -> Option<VdevStatus> {
    if vdev.children.is_empty() && vdev.path.as_deref() == Some(path(disk).as_path()) {
        return Some(vdev.clone());
    }
    let mut children = vdev.children.iter();
    children.find_map(|child| find_leaf(child, disk))
}

fn leaf(pool: &Pool, disk: usize) -> u64 {
    let status = pool.status();
    let found = find_leaf(&status.root, disk);
    found
        .unwrap_or_else(|| panic!("d{disk} is not in {status:?}"))
        .guid
}

fn rebuild(pool: &Pool) -> Option<RebuildStatus> {
    pool.status().root.children[0].rebuild
}

fn state(pool: &Pool) -> Option<RebuildState> {
    rebuild(pool).map(|rebuild| rebuild.state)
}

/// Lets a paused rebuild go on until it has done so many bytes.
async fn go_some_way(handle: &Handle, pool: &Pool, bytes: u64) {
    pool.pause_rebuilds(false);
    while rebuild(pool).is_some_and(|rebuild| rebuild.scanned_bytes < bytes) {
        handle.sleep(Duration::from_micros(100)).await;
    }
    pool.pause_rebuilds(true);
}

/// Waits until nothing runs and no device is outdated.
async fn settled(handle: &Handle, pool: &Pool) {
    for _ in 0..6000 {
        let status = pool.status();
        let scanning = status.scan.as_ref().is_some_and(|scan| scan.running);
        let rebuilding = state(pool) == Some(RebuildState::Active);
        let quiet = matches!(status.reason, StatusReason::Ok | StatusReason::RebuildScrub);
        if !scanning && !rebuilding && quiet {
            return;
        }
        handle.sleep(Duration::from_millis(10)).await;
    }
    panic!("never settled: {:?}", pool.status());
}

async fn scrub_is_clean(pool: &Pool) {
    let scan = pool.scrub().await.expect("scrub");
    assert_eq!((scan.errors, scan.processed_bytes), (0, 0), "{scan:?}");
    assert_eq!(pool.status().root.health, Health::Online);
}

/// Without the first disk everything is on the second.
async fn stands_alone(pool: &Pool, recorder: &Recorder) {
    scrub_is_clean(pool).await;
    pool.detach(leaf(pool, 0)).await.expect("detach");
    scrub_is_clean(pool).await;
    compare(&root(pool).await, &recorder.now, "on the new half").await;
}

#[test]
fn a_new_half_gets_everything_in_use_or_not() {
    for (seed, tuning, steps) in [(1001, Tuning::default(), 0), (1002, short(), 3)] {
        let world = world(seed, 2, 192 * MIB);
        let mut recorder = Recorder::default();
        let mut rng = world.rng();
        run(&world, async |handle| {
            let pool = create_with(&handle, single(), &tuning).await;
            fill(&pool, &mut rng, &mut recorder, 10).await;
            work_unsynced(&pool, &mut rng, &mut recorder, 40).await;
            pool.attach_and_rebuild(leaf(&pool, 0), &path(1), false, false)
                .await
                .expect("attach");
            for _ in 0..20 {
                work_unsynced(&pool, &mut rng, &mut recorder, steps).await;
                handle.sleep(Duration::from_millis(2)).await;
            }
            settled(&handle, &pool).await;
            let rebuild = rebuild(&pool).expect("there was one");
            assert_eq!((rebuild.state, rebuild.errors), (RebuildState::Complete, 0));
            assert!(rebuild.rebuilt_bytes > 4 * MIB, "{rebuild:?}");
            assert!(rebuild.rebuilt_bytes == rebuild.issued_bytes, "{rebuild:?}");
            let scan = pool.status().scan.expect("a scrub follows");
            assert!(!scan.resilver && !scan.cancelled, "{scan:?}");
            assert_eq!((scan.errors, scan.processed_bytes), (0, 0), "{scan:?}");
            assert_eq!(pool.status().reason, StatusReason::Ok);
            pool.sync().await.expect("sync");
            pool.export().await.expect("export");
        });
        zdb_clean(&world, "rebuilt");
        run(&world, async |handle| {
            let pool = import_with(&handle, 2, &tuning).await;
            assert_eq!(state(&pool), Some(RebuildState::Complete), "it is kept");
            stands_alone(&pool, &recorder).await;
            pool.export().await.expect("export");
        });
        world.vanish(path(0));
        zdb_clean(&world, "alone");
    }
}

#[test]
fn a_replaced_disk_goes_when_the_new_one_has_everything() {
    let world = world(1011, 3, 192 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = create_with(&handle, mirror(), &short()).await;
        fill(&pool, &mut rng, &mut recorder, 10).await;
        pool.attach_and_rebuild(leaf(&pool, 1), &path(2), true, false)
            .await
            .expect("replace");
        let refused = pool.attach(leaf(&pool, 0), &path(1), true, true).await;
        assert!(
            matches!(refused, Err(PoolError::Scan(ScanRefusal::Rebuilding))),
            "{refused:?}"
        );
        let refused = pool.start_scrub().await;
        assert!(
            matches!(refused, Err(PoolError::Scan(ScanRefusal::Resilvering))),
            "{refused:?}"
        );
        work_unsynced(&pool, &mut rng, &mut recorder, 10).await;
        settled(&handle, &pool).await;
        let status = pool.status();
        assert!(find_leaf(&status.root, 1).is_none(), "{status:?}");
        scrub_is_clean(&pool).await;
        pool.sync().await.expect("sync");
        pool.export().await.expect("export");
    });
    world.vanish(path(0));
    world.vanish(path(1));
    run(&world, async |handle| {
        let pool = import_with(&handle, 3, &short()).await;
        compare(&root(&pool).await, &recorder.now, "on the new disk").await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "replaced");
}

#[test]
fn a_raidz_and_a_pool_without_the_feature_refuse() {
    let world = world(1021, 4, 96 * MIB);
    run(&world, async |handle| {
        let raidz = VdevSpec::Raidz {
            parity: 1,
            paths: (0..3).map(path).collect(),
        };
        let pool = create(&handle, vec![raidz]).await;
        let words = |result: Result<u64, PoolError>| result.expect_err("refused").to_string();
        let there = path(3);
        let replaced = pool.attach_and_rebuild(leaf(&pool, 1), &there, true, false);
        assert_eq!(
            words(replaced.await),
            "only mirror and dRAID vdevs support sequential reconstruction"
        );
        let there = path(3);
        let attached = pool.attach_and_rebuild(leaf(&pool, 1), &there, false, false);
        assert_eq!(
            words(attached.await),
            "can only attach to mirrors and top-level disks"
        );
        pool.destroy().await.expect("destroy");
        let spec = PoolSpec {
            properties: vec![("feature@device_rebuild".to_owned(), "disabled".to_owned())],
            ..spec(single())
        };
        let pool = Pool::create(&handle, spec, empty_root)
            .await
            .expect("create");
        let there = path(3);
        let attached = pool.attach_and_rebuild(leaf(&pool, 0), &there, false, false);
        assert_eq!(
            words(attached.await),
            "device_rebuild feature must be enabled in order to use sequential reconstruction"
        );
        pool.export().await.expect("export");
    });
}

/// One that is detached takes its rebuild along; a second that joins has it begin again for both.
#[test]
fn devices_come_and_go_while_others_are_rebuilt() {
    let world = world(1031, 3, 192 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = create_with(&handle, single(), &short()).await;
        fill(&pool, &mut rng, &mut recorder, 10).await;
        pool.pause_rebuilds(true);
        pool.attach_and_rebuild(leaf(&pool, 0), &path(1), false, false)
            .await
            .expect("attach");
        assert_eq!(pool.status().reason, StatusReason::Resilvering);
        pool.detach(leaf(&pool, 1)).await.expect("detach");
        // The vdev is the old disk again, with its ZAP.
        assert_eq!(state(&pool), Some(RebuildState::Canceled));
        pool.attach_and_rebuild(leaf(&pool, 0), &path(1), false, false)
            .await
            .expect("attach again");
        go_some_way(&handle, &pool, 1).await;
        work_unsynced(&pool, &mut rng, &mut recorder, 10).await;
        let before = rebuild(&pool).expect("one runs");
        pool.attach_and_rebuild(leaf(&pool, 0), &path(2), false, false)
            .await
            .expect("attach a third");
        let after = rebuild(&pool).expect("one runs");
        assert_eq!(before.state, RebuildState::Active, "{before:?}");
        assert!(before.rebuilt_bytes > 0 && after.rebuilt_bytes == 0);
        pool.detach(leaf(&pool, 1)).await.expect("detach");
        assert_eq!(state(&pool), Some(RebuildState::Active), "for the third");
        pool.attach_and_rebuild(leaf(&pool, 0), &path(1), false, true)
            .await
            .expect("attach again");
        pool.pause_rebuilds(false);
        settled(&handle, &pool).await;
        assert_eq!(state(&pool), Some(RebuildState::Complete));
        scrub_is_clean(&pool).await;
        pool.detach(leaf(&pool, 2)).await.expect("detach");
        stands_alone(&pool, &recorder).await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "after all that");
}

/// A target that is away for a moment is left to the healing resilver.
#[test]
fn a_target_that_was_away_is_healed() {
    let world = world(1041, 2, 192 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = create_with(&handle, single(), &short()).await;
        fill(&pool, &mut rng, &mut recorder, 10).await;
        pool.pause_rebuilds(true);
        pool.attach_and_rebuild(leaf(&pool, 0), &path(1), false, false)
            .await
            .expect("attach");
        go_some_way(&handle, &pool, 1).await;
        pool.offline(leaf(&pool, 1), true).await.expect("offline");
        work_unsynced(&pool, &mut rng, &mut recorder, 10).await;
        pool.sync().await.expect("sync");
        pool.online(leaf(&pool, 1)).await.expect("online");
        pool.pause_rebuilds(false);
        for _ in 0..1000 {
            if pool.status().scan.is_some_and(|scan| scan.resilver) {
                break;
            }
            handle.sleep(Duration::from_millis(10)).await;
        }
        settled(&handle, &pool).await;
        assert_eq!(state(&pool), None, "the resilver has it forgotten");
        stands_alone(&pool, &recorder).await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "healed");
}

fn dumped(world: &World) -> (tempfile::TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir().expect("temporary directory");
    world.dump(dir.path()).expect("dump the disks");
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir.path())
        .expect("read the directory")
        .flatten()
        .map(|entry| entry.path())
        .collect();
    files.sort();
    (dir, files)
}

/// Lets OpenZFS go on with a copy of a pool, to the end. `None` without it.
///
/// OpenZFS 2.3.2 ends the transaction of a read before it puts the read below the root I/O of the transaction group
/// (`vdev_rebuild_range`): a group that is synced in between has taken its root away, and OpenZFS dies. It gets another copy then.
fn ended_by_openzfs(world: &World) -> Option<(tempfile::TempDir, Vec<PathBuf>)> {
    for _ in 0..5 {
        let (dir, files) = dumped(world);
        let operations = ["--", "waitresilver:tank", "scrub:tank"];
        match refpool_try(dir.path(), "ds", &files, &operations)? {
            Ok(()) => return Some((dir, files)),
            Err(failure) if failure.contains("zio_add_child_first") => eprintln!("{failure}"),
            Err(failure) => panic!("{failure}"),
        }
    }
    panic!("OpenZFS dies each time");
}

/// Begun here, exported half-way: OpenZFS goes on with it to the end, or we do.
#[test]
fn openzfs_goes_on_with_ours() {
    let world = world(1051, 2, 192 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = create_with(&handle, single(), &short()).await;
        fill(&pool, &mut rng, &mut recorder, 10).await;
        pool.pause_rebuilds(true);
        pool.attach_and_rebuild(leaf(&pool, 0), &path(1), false, false)
            .await
            .expect("attach");
        go_some_way(&handle, &pool, MIB).await;
        work_unsynced(&pool, &mut rng, &mut recorder, 10).await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "half-way");
    if let Some((dir, files)) = ended_by_openzfs(&world) {
        zdb_clean_dir(dir.path(), "ended by OpenZFS");
        let theirs = world_of_files(1, &files);
        run(&theirs, async |handle| {
            let pool = import_with(&handle, 2, &Tuning::default()).await;
            assert_eq!(state(&pool), Some(RebuildState::Complete));
            assert_eq!(rebuild(&pool).map(|rebuild| rebuild.errors), Some(0));
            stands_alone(&pool, &recorder).await;
            pool.export().await.expect("export");
        });
    }
    run(&world, async |handle| {
        let pool = import_with(&handle, 2, &short()).await;
        let begun = rebuild(&pool).expect("it goes on");
        assert!(begun.scanned_bytes >= MIB, "from where it was: {begun:?}");
        settled(&handle, &pool).await;
        assert_eq!(state(&pool), Some(RebuildState::Complete));
        stands_alone(&pool, &recorder).await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "ended by us");
}

/// Begun by OpenZFS and left by it half-way, ended by us.
#[test]
fn we_go_on_with_openzfs_s() {
    if refpool().is_none() {
        return;
    }
    let world = world(1061, 2, 192 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = create(&handle, single()).await;
        fill(&pool, &mut rng, &mut recorder, 10).await;
        work_unsynced(&pool, &mut rng, &mut recorder, 30).await;
        pool.sync().await.expect("sync");
        pool.export().await.expect("export");
    });
    let (dir, files) = dumped(&world);
    let attach = format!("rebuild:tank={},{}", files[0].display(), files[1].display());
    let operations = ["--", "standstill:tank", &attach];
    refpool_run(dir.path(), "ds", &files[..1], &operations);
    let world = world_of_files(1, &files);
    run(&world, async |handle| {
        let pool = import_with(&handle, 2, &short()).await;
        assert_eq!(state(&pool), Some(RebuildState::Active), "it goes on");
        settled(&handle, &pool).await;
        assert_eq!(state(&pool), Some(RebuildState::Complete));
        stands_alone(&pool, &recorder).await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "begun by OpenZFS");
}

/// Returns the two of so many disks that most was written to. The blocks of a draid's group of rows lie on as many of its disks as
/// the group is wide, so a pool with little data leaves some disks empty: without those nothing would be missing.
fn fullest(world: &World, disks: usize) -> [usize; 2] {
    let mut sizes: Vec<(usize, usize)> = (0..disks)
        .map(|disk| (world.written(path(disk)).len(), disk))
        .collect();
    sizes.sort_unstable();
    let [.., (_, second), (_, first)] = sizes[..] else {
        panic!("two disks at least");
    };
    [first, second]
}

/// A distributed spare is filled sequentially by itself, in small pieces and with the pool in use; then one more disk than the
/// parity allows can go.
#[test]
fn a_distributed_spare_is_filled() {
    for (seed, tuning) in [(1071, short()), (1072, Tuning::default())] {
        let world = world(seed, 6, 160 * MIB);
        let mut recorder = Recorder::default();
        let mut rng = world.rng();
        let second = run(&world, async |handle| {
            let draid = VdevSpec::Draid {
                parity: 1,
                data: 2,
                spares: 1,
                paths: (0..6).map(path).collect(),
            };
            let pool = create_with(&handle, vec![draid], &tuning).await;
            fill(&pool, &mut rng, &mut recorder, 10).await;
            let [first, second] = fullest(&world, 6);
            world.vanish(path(first));
            for _ in 0..10 {
                work_unsynced(&pool, &mut rng, &mut recorder, 2).await;
                pool.sync().await.expect("sync");
            }
            let mut waited = 0;
            while state(&pool) != Some(RebuildState::Complete) {
                handle.sleep(Duration::from_millis(100)).await;
                waited += 1;
                let history = pool.history().await.expect("history");
                assert!(waited < 300, "no spare was filled: {history:?}");
            }
            let rebuild = rebuild(&pool).expect("there was one");
            assert_eq!(rebuild.errors, 0, "{rebuild:?}");
            assert!(rebuild.issued_bytes > 0, "{rebuild:?}");
            while pool.status().scan.is_some_and(|scan| scan.running) {
                handle.sleep(Duration::from_millis(10)).await;
            }
            let scan = pool.status().scan.expect("a scrub follows");
            assert!(!scan.resilver && !scan.cancelled, "{scan:?}");
            assert_eq!((scan.errors, scan.processed_bytes), (0, 0), "{scan:?}");
            work_unsynced(&pool, &mut rng, &mut recorder, 10).await;
            pool.sync().await.expect("sync");
            pool.export().await.expect("export");
            second
        });
        zdb_clean(&world, "with the spare at work");
        world.vanish(path(second));
        zdb_clean(&world, "without two disks");
        run(&world, async |handle| {
            let pool = import_with(&handle, 6, &tuning).await;
            compare(&root(&pool).await, &recorder.now, "without two disks").await;
            pool.export().await.expect("export");
        });
    }
}

/// The power goes at some write or flush of a rebuild in a pool in use. What was acknowledged is there, the rebuild goes on, and
/// then the new disk has everything.
fn cut_while_rebuilding(seed: u64) {
    let world = world(seed, 2, 80 * MIB);
    let mut rng = world.rng();
    let mut before = Recorder::default();
    run(&world, async |handle| {
        let pool = create(&handle, single()).await;
        fill(&pool, &mut rng, &mut before, 10).await;
        pool.export().await.expect("export");
    });
    let shared = Rc::new(std::cell::RefCell::new((before, 0)));
    let outcome = shared.clone();
    let runtime = world.boot();
    if rng.below(3) == 0 {
        world.plan_cut_at_flush(rng.below(60) + 8);
    } else {
        world.plan_cut_at_write(rng.below(900) + 60);
    }
    let mut steps = rng.clone();
    let ended = world.run_on(&runtime, async |handle| {
        let pool = import_with(&handle, 1, &short()).await;
        pool.attach_and_rebuild(leaf(&pool, 0), &path(1), false, false)
            .await
            .expect("attach");
        let dataset = root(&pool).await;
        let mut recorder = outcome.borrow().0.clone();
        for round in 0.. {
            for _ in 0..steps.below(if round < 12 { 4 } else { 1 }) {
                step(&dataset, &mut steps, &mut recorder)
                    .await
                    .expect("step");
                outcome.borrow_mut().0 = recorder.clone();
            }
            if steps.below(3) == 0 {
                let txg = pool.sync().await.expect("sync");
                outcome.borrow_mut().1 = txg.0;
            }
            handle.sleep(Duration::from_millis(1)).await;
            if state(&pool) != Some(RebuildState::Active) {
                break;
            }
        }
    });
    drop(runtime);
    if matches!(ended, Ended::Done(())) {
        world.power_cut();
    }
    let (recorder, acknowledged) = shared.take();
    let what = format!("seed {seed}");
    run(&world, async |handle| {
        let found = find(&handle, 2).await;
        assert_eq!(found.len(), 1, "{what}: one pool");
        assert!(found[0].txg >= acknowledged, "{what}: {acknowledged}");
        let mut now = Recorder {
            now: recorder.at(found[0].txg),
            ..Recorder::default()
        };
        let pool = import_with(&handle, 2, &short()).await;
        compare(&root(&pool).await, &now.now, &what).await;
        work_unsynced(&pool, &mut rng, &mut now, 5).await;
        settled(&handle, &pool).await;
        if find_leaf(&pool.status().root, 1).is_some() {
            stands_alone(&pool, &now).await;
        }
        pool.export().await.expect("export");
    });
    if seed.is_multiple_of(8) {
        zdb_clean(&world, &what);
    }
}

#[test]
fn a_rebuild_survives_power_cuts() {
    let count = std::env::var("POOL_CRASH_SEEDS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(16);
    for seed in 0..count {
        cut_while_rebuilding(10_000 + seed);
    }
}
