//! Devices that vanish, come back, rot or fill up.

use dsl::Estimate;
use ondisk::ObjectType;
use pool::{Health, HistoryEvent, ImportPolicy, Pool, PoolError, StatusReason, VdevSpec, discover};
use world::Rng;

use crate::support::*;
use crate::workload::{Recorder, compare, root, step};

#[test]
fn a_half_that_was_away_is_kept_out_and_resilvered() {
    let world = world(21, 2, 192 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = create(&handle, mirror()).await;
        let dataset = root(&pool).await;
        for _ in 0..20 {
            step(&dataset, &mut rng, &mut recorder).await.expect("step");
        }
        pool.sync().await.expect("sync");
        world.vanish(path(1));
        for _ in 0..5 {
            for _ in 0..10 {
                step(&dataset, &mut rng, &mut recorder).await.expect("step");
            }
            pool.sync().await.expect("sync with one half");
        }
        assert_eq!(pool.suspended(), None);
        assert_eq!(pool.status().health, Health::Degraded);
        drop(dataset);
        let exported = pool.export().await;
        assert!(exported.is_ok(), "{exported:?} {:?}", pool.suspended());
    });
    zdb_clean(&world, "with one half");
    world.bring_back(path(1));
    // OpenZFS would resilver from the dirty-time log; here we do.
    run(&world, async |handle| {
        let pool = import(&handle, 2).await;
        let status = pool.status();
        assert_eq!(status.reason, StatusReason::Resilvering, "{status:?}");
        for _ in 0..200 {
            if pool.status().reason == StatusReason::Ok {
                break;
            }
            handle.sleep(std::time::Duration::from_millis(100)).await;
        }
        let status = pool.status();
        assert_eq!(status.health, Health::Online, "{status:?}");
        let scan = status.scan.expect("a resilver was recorded");
        assert!(
            scan.resilver && !scan.running && scan.errors == 0 && scan.processed_bytes > 0,
            "{scan:?}"
        );
        compare(&root(&pool).await, &recorder.now, "resilvered").await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "resilvered");
    // The half that was away must now be able to stand alone.
    world.vanish(path(0));
    run(&world, async |handle| {
        let pool = import(&handle, 2).await;
        compare(
            &root(&pool).await,
            &recorder.now,
            "from the resilvered half alone",
        )
        .await;
        let scan = pool.scrub().await.expect("scrub");
        assert_eq!(scan.errors, 0, "{scan:?}");
        pool.abandon();
    });
}

#[test]
fn openzfs_resilvers_what_we_recorded() {
    let world = world(22, 2, 128 * MIB);
    make_exported(&world, mirror());
    world.vanish(path(1));
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = import(&handle, 2).await;
        let dataset = root(&pool).await;
        for _ in 0..30 {
            step(&dataset, &mut rng, &mut recorder).await.expect("step");
        }
        drop(dataset);
        pool.export().await.expect("export");
    });
    world.bring_back(path(1));
    let dir = tempfile::tempdir().expect("temporary directory");
    let files = world.dump(dir.path()).expect("dump");
    // A scrub on import first completes the resilver that the log asks for.
    if refpool_run(dir.path(), "ds", &files, &["--", "scrub:tank"]) {
        zdb_clean_dir(dir.path(), "resilvered by OpenZFS");
    }
}

#[test]
fn damage_on_one_half_is_repaired_by_a_scrub() {
    let world = world(23, 2, 128 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = create(&handle, mirror()).await;
        let dataset = root(&pool).await;
        for _ in 0..40 {
            step(&dataset, &mut rng, &mut recorder).await.expect("step");
        }
        pool.sync().await.expect("sync");
        let mut noise = vec![0; 56 << 20];
        Rng::new(3).fill(&mut noise);
        world.damage(path(0), 4 * MIB, &noise);
        let scan = pool.scrub().await.expect("scrub");
        assert!(scan.processed_bytes > 0 && scan.errors == 0, "{scan:?}");
        let again = pool.scrub().await.expect("scrub");
        assert_eq!((again.processed_bytes, again.errors), (0, 0), "{again:?}");
        drop(dataset);
        pool.export().await.expect("export");
    });
    world.vanish(path(1));
    run(&world, async |handle| {
        let pool = import(&handle, 2).await;
        compare(&root(&pool).await, &recorder.now, "after the scrub").await;
        pool.abandon();
    });
}

#[test]
fn a_pool_without_its_device_suspends_and_loses_nothing_acknowledged() {
    let world = world(24, 1, 128 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    let acknowledged = run(&world, async |handle| {
        let pool = create(&handle, single()).await;
        let dataset = root(&pool).await;
        for _ in 0..10 {
            step(&dataset, &mut rng, &mut recorder).await.expect("step");
        }
        let acknowledged = pool.sync().await.expect("sync");
        world.vanish(path(0));
        for _ in 0..10 {
            step(&dataset, &mut rng, &mut recorder).await.expect("step");
        }
        pool.clock().kick();
        for _ in 0..100 {
            if pool.suspended().is_some() {
                break;
            }
            handle.sleep(std::time::Duration::from_millis(100)).await;
        }
        let status = pool.status();
        assert_eq!(status.health, Health::Suspended);
        assert_eq!(status.reason, StatusReason::IoFailureWait);
        assert!(matches!(pool.export().await, Err(PoolError::Suspended)));
        drop(dataset);
        pool.abandon();
        acknowledged
    });
    world.bring_back(path(0));
    run(&world, async |handle| {
        let pool = import(&handle, 1).await;
        let txg = find(&handle, 1).await[0].txg;
        assert!(txg >= acknowledged.0);
        compare(
            &root(&pool).await,
            &recorder.at(acknowledged.0),
            "after the loss",
        )
        .await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "after the loss");
}

#[test]
fn a_full_pool_refuses_writes_and_still_deletes() {
    let world = world(25, 1, 64 * MIB);
    run(&world, async |handle| {
        let pool = create(&handle, single()).await;
        let dataset = root(&pool).await;
        let os = dataset.objset();
        let mut rng = Rng::new(1);
        let mut data = vec![0; 1 << 20];
        let mut objects = Vec::new();
        let refused = loop {
            let tx = match dataset.begin(Estimate::bytes(2 << 20)).await {
                Ok(tx) => tx,
                Err(error) => break error,
            };
            let spec = dmu::AllocSpec::new(ObjectType::PLAIN_OTHER).block_size(128 << 10);
            let object = os.allocate(spec, &tx).await.expect("allocate");
            rng.fill(&mut data);
            os.write(object, 0, &data, &tx).await.expect("write");
            objects.push(object);
            drop(tx);
            if objects.len() % 4 == 0 {
                pool.sync().await.expect("sync");
            }
            assert!(objects.len() < 200, "the pool fills up");
        };
        assert!(refused.is_no_space(), "{refused}");
        assert!(objects.len() > 20, "only {} MiB fitted", objects.len());
        pool.sync().await.expect("a full pool syncs");
        for object in objects.drain(..objects.len() / 2) {
            let tx = dataset
                .begin(Estimate::freeing(1 << 16))
                .await
                .expect("deleting works");
            os.free_object(object, &tx).await.expect("free");
        }
        for _ in 0..4 {
            pool.sync().await.expect("sync");
            pool.set_property("comment", "room again")
                .await
                .expect("set");
        }
        let tx = dataset
            .begin(Estimate::bytes(2 << 20))
            .await
            .expect("room again");
        os.write(objects[0], 0, &data, &tx).await.expect("write");
        drop(tx);
        drop(dataset);
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "after being full");
}

#[test]
fn foreign_and_damaged_images_are_told_apart() {
    let world = world(26, 4, 128 * MIB);
    make_exported(&world, single());
    // d1: noise where labels are; d2: zeros; d3: too small to hold labels is not a disk here.
    let mut noise = vec![0; 4 << 20];
    Rng::new(5).fill(&mut noise);
    world.damage(path(1), 0, &noise);
    world.damage(path(1), 124 * MIB, &noise);
    run(&world, async |handle| {
        let places = [path(0), path(1), path(2), path(9)];
        let found = discover(&handle, &places).await;
        assert_eq!(found.pools.len(), 1);
        let rejected: Vec<_> = found
            .rejected
            .iter()
            .map(|(path, _)| path.clone())
            .collect();
        assert!(rejected.contains(&path(9)), "{:?}", found.rejected);
        assert!(
            !rejected.contains(&path(2)),
            "an empty disk is not worth a word"
        );
    });
    // One damaged label of the pool's own disk does not matter, four do.
    world.damage(path(0), 16 << 10, &[7; 4096]);
    run(&world, async |handle| {
        assert_eq!(find(&handle, 1).await.len(), 1);
    });
    for label in [
        16 << 10,
        (256 + 16) << 10,
        128 * MIB - (512 - 16) * 1024,
        128 * MIB - (256 - 16) * 1024,
    ] {
        world.damage(path(0), label, &[7; 4096]);
    }
    run(&world, async |handle| {
        let found = discover(&handle, &[path(0)]).await;
        assert!(found.pools.is_empty());
        assert_eq!(found.rejected.len(), 1, "{:?}", found.rejected);
    });
}

#[test]
fn a_read_only_import_of_a_crashed_pool_works() {
    let world = world(27, 1, 128 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = create(&handle, single()).await;
        let dataset = root(&pool).await;
        for _ in 0..20 {
            step(&dataset, &mut rng, &mut recorder).await.expect("step");
        }
        pool.sync().await.expect("sync");
        pool.abandon();
    });
    run(&world, async |handle| {
        let found = find(&handle, 1).await;
        let policy = ImportPolicy {
            readonly: true,
            ..policy()
        };
        let pool = Pool::import(&handle, &found[0], policy)
            .await
            .expect("import");
        compare(&root(&pool).await, &recorder.now, "read-only").await;
        let scan = pool.scrub().await.expect("a scan only reads");
        assert_eq!(scan.errors, 0);
    });
}

/// The names of the internal events of scans, oldest first.
async fn scan_events(pool: &Pool) -> Vec<String> {
    let records = pool.history().await.expect("history");
    let names = records.into_iter().filter_map(|record| match record.event {
        HistoryEvent::Internal { name, .. } if name.starts_with("scan ") => Some(name),
        _ => None,
    });
    names.collect()
}

/// A device that comes back while another one is resilvered: the resilver begins again with both (`zpool reopen`), or goes on and
/// is followed by another one (`zpool reopen -n`).
// OpenZFS: module/zfs/zfs_ioctl.c, zfs_ioc_pool_reopen
#[test]
fn a_reopening_restarts_a_resilver_unless_told_otherwise() {
    for (restart, expect) in [
        (
            true,
            vec!["scan setup", "scan cancelled", "scan setup", "scan done"],
        ),
        (
            false,
            vec!["scan setup", "scan done", "scan setup", "scan done"],
        ),
    ] {
        let world = world(33, 4, 192 * MIB);
        let devices = world.clone();
        let mut recorder = Recorder::default();
        let mut rng = world.rng();
        run(&world, async move |handle| {
            let pool = create(
                &handle,
                [mirror(), vec![VdevSpec::Mirror(vec![path(2), path(3)])]].concat(),
            )
            .await;
            let dataset = root(&pool).await;
            let offline = pool.tree().leaves()[1].guid.0;
            pool.offline(offline, false).await.expect("offline");
            devices.vanish(path(3));
            for _ in 0..100 {
                step(&dataset, &mut rng, &mut recorder).await.expect("step");
            }
            pool.sync().await.expect("sync");
            drop(dataset);
            devices.bring_back(path(3));
            pool.online(offline).await.expect("online");
            assert!(pool.status().scan.expect("a resilver").running);
            let back = match restart {
                true => pool.reopen().await,
                false => pool.reopen_beside_resilver().await,
            };
            assert_eq!(back.expect("reopen"), 1);
            for _ in 0..600 {
                if scan_events(&pool).await.len() >= expect.len() {
                    break;
                }
                handle.sleep(std::time::Duration::from_millis(100)).await;
            }
            assert_eq!(scan_events(&pool).await, expect, "{restart}");
            compare(&root(&pool).await, &recorder.now, "resilvered").await;
            pool.export().await.expect("export");
        });
        zdb_clean(&world, "resilvered");
    }
}
