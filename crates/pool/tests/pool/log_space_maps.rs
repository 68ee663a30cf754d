//! Changes of space that wait in logs: judged by zdb while they wait, by OpenZFS's code that goes on with them, and after
//! the removal of a vdev that they name.

use dmu::zap;
use ondisk::ObjectId;
use pool::{AddSpec, Pool, VdevSpec};

use crate::removal::{by_openzfs, scrub_is_clean};
use crate::support::*;
use crate::workload::{Recorder, compare, root, work};

/// The directory of a meta-objset.
const DIRECTORY: ObjectId = ObjectId(1);

/// How many logs the pool has.
async fn logs(pool: &Pool) -> usize {
    let mos = pool.mos();
    let list = zap::lookup_u64(mos, DIRECTORY, "com.delphix:log_spacemap_zap")
        .await
        .expect("look up the logs")
        .expect("a new pool has logs");
    zap::entries(mos, ObjectId(list))
        .await
        .expect("list the logs")
        .len()
}

#[test]
fn logs_wait_are_flushed_and_are_gone_on_with_by_openzfs() {
    let disks = 2;
    let world = world(811, disks, 512 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = create(&handle, mirror()).await;
        let mut most = 0;
        for _ in 0..60 {
            work(&pool, &mut rng, &mut recorder, 4).await;
            most = most.max(logs(&pool).await);
        }
        let left = logs(&pool).await;
        // About twenty metaslabs are in use; one at least is flushed in each txg.
        assert!((2..50).contains(&left) && left <= most, "{left} of {most}");
        pool.close().await.expect("close");
    });
    zdb_clean(&world, "with logs that wait");
    run(&world, async |handle| {
        let pool = import(&handle, disks).await;
        assert!(logs(&pool).await > 1, "an import merges nothing");
        compare(&root(&pool).await, &recorder.now, "imported with logs").await;
        work(&pool, &mut rng, &mut recorder, 20).await;
        scrub_is_clean(&pool).await;
        pool.close().await.expect("close");
    });
    zdb_clean(&world, "logs of two imports");
    let Some(back) = by_openzfs(&world, disks, &["tank/theirs", "scrub:tank"]) else {
        return;
    };
    zdb_clean(&back, "gone on with by OpenZFS");
    run(&back, async |handle| {
        let pool = import(&handle, disks).await;
        compare(&root(&pool).await, &recorder.now, "back from OpenZFS").await;
        work(&pool, &mut rng, &mut recorder, 20).await;
        pool.export().await.expect("export");
        let pool = import(&handle, disks).await;
        assert!(logs(&pool).await <= 3, "an export leaves no logs to read");
        compare(&root(&pool).await, &recorder.now, "exported").await;
        pool.close().await.expect("close");
    });
    zdb_clean(&back, "exported and imported");
}

#[test]
fn a_vdev_that_takes_the_id_of_a_removed_one_has_none_of_its_space() {
    let disks = 3;
    let world = world(812, disks, 256 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    let log_of = |disk: usize| AddSpec {
        logs: vec![VdevSpec::Single(path(disk))],
        ..AddSpec::default()
    };
    run(&world, async |handle| {
        let pool = create(&handle, single()).await;
        for round in 0..4 {
            pool.add(log_of(1 + round % 2))
                .await
                .expect("add a log device");
            work(&pool, &mut rng, &mut recorder, 10).await;
            let guid = pool.status().root.children[1].guid;
            pool.remove(guid).await.expect("remove the log device");
        }
        pool.add(log_of(2)).await.expect("add a log device");
        compare(&root(&pool).await, &recorder.now, "with another log device").await;
        pool.close().await.expect("close");
    });
    zdb_clean(&world, "log devices came and went");
    run(&world, async |handle| {
        let pool = import(&handle, disks).await;
        work(&pool, &mut rng, &mut recorder, 10).await;
        scrub_is_clean(&pool).await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "imported with another log device");
}
