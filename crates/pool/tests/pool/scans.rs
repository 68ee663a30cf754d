//! Scrubs that are paused, cancelled, cut off and continued; damage that is named, kept and forgotten.

use dsl::Estimate;
use pool::{Pool, PoolError, ScanRefusal};
use world::Rng;

use crate::support::*;
use crate::workload::{Recorder, root, step};

async fn fill(pool: &Pool, steps: usize, rng: &mut Rng) {
    let dataset = root(pool).await;
    let mut recorder = Recorder::default();
    for _ in 0..steps {
        step(&dataset, rng, &mut recorder).await.expect("step");
    }
    pool.sync().await.expect("sync");
}

#[test]
fn a_scrub_stays_paused_over_an_import_and_can_be_cancelled() {
    let world = world(71, 2, 128 * MIB);
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = create(&handle, mirror()).await;
        fill(&pool, 40, &mut rng).await;
        let refused = pool.pause_scrub().await;
        assert!(
            matches!(refused, Err(PoolError::Scan(ScanRefusal::NoScrub))),
            "{refused:?}"
        );
        pool.start_scrub().await.expect("start");
        pool.pause_scrub().await.expect("pause");
        let again = pool.pause_scrub().await;
        assert!(
            matches!(again, Err(PoolError::Scan(ScanRefusal::Paused))),
            "{again:?}"
        );
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "with a paused scrub");
    run(&world, async |handle| {
        let pool = import(&handle, 2).await;
        let scan = pool.status().scan.expect("the scrub is remembered");
        assert!(scan.running && scan.paused_since != 0, "{scan:?}");
        let done = pool.scrub().await.expect("goes on and ends");
        assert!(!done.running && done.errors == 0, "{done:?}");
        assert!(
            done.examined_bytes > 0 && done.examined_bytes <= 2 * done.to_examine_bytes,
            "{done:?}"
        );
        pool.start_scrub().await.expect("another");
        pool.pause_scrub().await.expect("pause");
        pool.cancel_scrub().await.expect("cancel");
        let scan = pool.status().scan.expect("remembered");
        assert!(scan.cancelled && !scan.running, "{scan:?}");
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "after a cancelled scrub");
}

#[test]
fn a_scrub_that_was_cut_off_goes_on_by_itself() {
    let world = world(72, 2, 128 * MIB);
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = create(&handle, mirror()).await;
        fill(&pool, 60, &mut rng).await;
        pool.start_scrub().await.expect("start");
        pool.abandon();
    });
    run(&world, async |handle| {
        let pool = import(&handle, 2).await;
        let done = pool.wait_scan().await.expect("ends");
        assert!(!done.cancelled && done.errors == 0, "{done:?}");
        let scanned = pool.history().await.expect("history");
        assert!(scanned.len() > 2);
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "after a scrub in two sessions");
}

#[test]
fn damage_is_named_until_scrubs_no_longer_meet_it() {
    let world = world(73, 1, 128 * MIB);
    let object = run(&world, async |handle| {
        let pool = create(&handle, single()).await;
        let dataset = root(&pool).await;
        let tx = dataset.begin(Estimate::bytes(1 << 20)).await.expect("tx");
        let objset = dataset.objset();
        let spec =
            dmu::AllocSpec::new(ondisk::ObjectType::PLAIN_FILE_CONTENTS).block_size(128 << 10);
        let object = objset.allocate(spec, &tx).await.expect("object");
        let mut noise = vec![0; 1 << 20];
        Rng::new(7).fill(&mut noise);
        objset.write(object, 0, &noise, &tx).await.expect("write");
        drop(tx);
        pool.sync().await.expect("sync");
        pool.export().await.expect("export");
        object
    });
    // The only copies of some of its blocks: wherever the noise lies on the disk.
    let mut pattern = vec![0; 128 << 10];
    Rng::new(7).fill(&mut pattern);
    let dir = tempfile::tempdir().expect("temporary directory");
    let disk = std::fs::read(&world.dump(dir.path()).expect("dump")[0]).expect("disk");
    let at = disk
        .windows(4096)
        .step_by(4096)
        .position(|window| window == &pattern[..4096])
        .expect("the block is on the disk")
        * 4096;
    world.damage(path(0), at as u64, &[0x55; 4096]);
    run(&world, async |handle| {
        let pool = import(&handle, 1).await;
        let done = pool.scrub().await.expect("scrub");
        assert_eq!(done.errors, 1, "{done:?}");
        let damaged = pool.damaged_objects().await.expect("damage");
        assert_eq!(damaged.len(), 1, "{damaged:?}");
        assert_eq!(damaged[0].object, object.0);
        assert_eq!(damaged[0].dataset.as_deref(), Some(POOL));
        pool.export().await.expect("export");
    });
    run(&world, async |handle| {
        let pool = import(&handle, 1).await;
        assert_eq!(pool.status().data_errors, 1);
        assert_eq!(pool.scrub_errors().await.expect("look again"), 1);
        let dataset = root(&pool).await;
        let tx = dataset.begin(Estimate::bytes(1 << 20)).await.expect("tx");
        let objset = dataset.objset();
        objset.free_object(object, &tx).await.expect("free");
        drop(tx);
        pool.sync().await.expect("sync");
        assert_eq!(pool.scrub_errors().await.expect("look again"), 0);
        assert_eq!(pool.status().data_errors, 0);
        drop(dataset);
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "after the damage was removed");
}

#[test]
fn a_scrub_of_days_looks_at_what_was_written_then() {
    const HOUR: u64 = 3600;
    let world = world(74, 2, 128 * MIB);
    let mut rng = world.rng();
    let scan = async |pool: &Pool, since: Option<u64>, until: Option<u64>| {
        let started = pool.start_scrub_of_time(since, until);
        started.await.expect("a scrub of a range of time");
        pool.wait_scan().await.expect("its end")
    };
    let (begin, whole) = run(&world, async |handle| {
        let pool = create(&handle, mirror()).await;
        fill(&pool, 60, &mut rng).await;
        let begin = pool.scrub().await.expect("scrub").start_time;
        for _ in 0..6 {
            handle.sleep(std::time::Duration::from_secs(HOUR)).await;
            fill(&pool, 1, &mut rng).await;
        }
        fill(&pool, 40, &mut rng).await;
        let whole = pool.scrub().await.expect("scrub").examined_bytes;
        pool.export().await.expect("export");
        (begin, whole)
    });
    zdb_clean(&world, "with the times of its txgs");
    run(&world, async |handle| {
        let pool = import(&handle, 2).await;
        let new = scan(&pool, Some(begin + 5 * HOUR + 1800), None).await;
        let old = scan(&pool, None, Some(begin + HOUR)).await;
        assert!(
            new.examined_bytes > 0 && new.examined_bytes < whole * 3 / 4,
            "{new:?} of {whole}"
        );
        assert!(
            old.examined_bytes > 0 && old.examined_bytes < whole * 3 / 4,
            "{old:?} of {whole}"
        );
        let all = scan(&pool, Some(begin - 2 * HOUR), Some(begin + 100 * HOUR)).await;
        assert!(
            all.examined_bytes >= whole * 9 / 10,
            "a range without known ends is everything: {all:?} of {whole}"
        );
        let none = scan(&pool, Some(begin + 90 * HOUR), Some(begin + 100 * HOUR)).await;
        assert!(none.examined_bytes < whole / 4, "{none:?} of {whole}");
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "after scrubs of ranges");
}
