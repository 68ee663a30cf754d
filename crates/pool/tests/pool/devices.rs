//! Devices that are taken out and put back, attached, detached and replaced while the pool is used.

use std::time::Duration;

use pool::{Health, Pool, PoolError, StatusReason, VdevStatus};

use crate::support::*;
use crate::workload::{Recorder, compare, root, step};

fn leaf(pool: &Pool, disk: usize) -> VdevStatus {
    fn find(vdev: &VdevStatus, disk: usize) -> Option<VdevStatus> {
        if vdev.path.as_deref() == Some(path(disk).as_path()) {
            return Some(vdev.clone());
        }
        vdev.children.iter().find_map(|child| find(child, disk))
    }
    let status = pool.status();
    find(&status.root, disk).unwrap_or_else(|| panic!("d{disk} is not in {status:?}"))
}

async fn settled(handle: &runtime::Handle, pool: &Pool) {
    for _ in 0..600 {
        let status = pool.status();
        let scanning = status.scan.as_ref().is_some_and(|scan| scan.running);
        let replacing = format!("{:?}", status.root).contains("replacing");
        if !scanning && !replacing && status.reason == StatusReason::Ok {
            return;
        }
        handle.sleep(Duration::from_millis(100)).await;
    }
    panic!("never settled: {:?}", pool.status());
}

#[test]
fn a_single_disk_becomes_a_mirror_and_the_new_half_stands_alone() {
    let world = world(81, 2, 128 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = create(&handle, single()).await;
        let dataset = root(&pool).await;
        for _ in 0..30 {
            step(&dataset, &mut rng, &mut recorder).await.expect("step");
        }
        let old = leaf(&pool, 0).guid;
        pool.attach(old, &path(1), false, false)
            .await
            .expect("attach");
        for _ in 0..10 {
            step(&dataset, &mut rng, &mut recorder).await.expect("step");
        }
        settled(&handle, &pool).await;
        assert_eq!(pool.status().root.children[0].kind, "mirror");
        pool.sync().await.expect("sync");
        drop(dataset);
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "attached");
    run(&world, async |handle| {
        let pool = import(&handle, 2).await;
        let scan = pool.scrub().await.expect("scrub");
        assert_eq!((scan.errors, scan.processed_bytes), (0, 0), "{scan:?}");
        pool.detach(leaf(&pool, 0).guid).await.expect("detach");
        assert_eq!(pool.status().root.children[0].kind, "file");
        let needed = pool.offline(leaf(&pool, 1).guid, false).await;
        assert!(matches!(needed, Err(PoolError::NoReplicas)), "{needed:?}");
        compare(&root(&pool).await, &recorder.now, "on the new half").await;
        pool.export().await.expect("export");
    });
    world.vanish(path(0));
    zdb_clean(&world, "detached");
}

#[test]
fn a_disk_put_back_gets_what_it_missed_and_no_more() {
    let world = world(82, 2, 192 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = create(&handle, mirror()).await;
        let dataset = root(&pool).await;
        for _ in 0..60 {
            step(&dataset, &mut rng, &mut recorder).await.expect("step");
        }
        pool.sync().await.expect("sync");
        let away = leaf(&pool, 1).guid;
        pool.offline(away, false).await.expect("offline");
        assert_eq!(leaf(&pool, 1).health, Health::Offline);
        let last = pool.offline(leaf(&pool, 0).guid, false).await;
        assert!(matches!(last, Err(PoolError::NoReplicas)), "{last:?}");
        for _ in 0..3 {
            step(&dataset, &mut rng, &mut recorder).await.expect("step");
        }
        pool.sync().await.expect("sync");
        drop(dataset);
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "with one disk offline");
    run(&world, async |handle| {
        let pool = import(&handle, 2).await;
        assert_eq!(leaf(&pool, 1).health, Health::Offline, "it stays so");
        assert!(pool.online(leaf(&pool, 1).guid).await.expect("online"));
        settled(&handle, &pool).await;
        let status = pool.status();
        let scan = status.scan.expect("a resilver");
        assert!(scan.resilver && scan.errors == 0, "{scan:?}");
        assert!(scan.skipped_bytes > 0 || scan.examined_bytes < scan.to_examine_bytes);
        let scan = pool.scrub().await.expect("scrub");
        assert_eq!((scan.errors, scan.processed_bytes), (0, 0), "{scan:?}");
        compare(&root(&pool).await, &recorder.now, "whole again").await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "back online");
}

#[test]
fn a_replacement_survives_a_crash() {
    let world = world(83, 3, 128 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = create(&handle, mirror()).await;
        let dataset = root(&pool).await;
        for _ in 0..40 {
            step(&dataset, &mut rng, &mut recorder).await.expect("step");
        }
        pool.sync().await.expect("sync");
        let refused = pool.attach(leaf(&pool, 1).guid, &path(0), true, true).await;
        assert!(
            matches!(refused, Err(PoolError::DeviceInUse { .. })),
            "{refused:?}"
        );
        pool.attach(leaf(&pool, 1).guid, &path(2), true, false)
            .await
            .expect("replace");
        pool.abandon();
    });
    zdb_clean(&world, "in the middle of a replacement");
    run(&world, async |handle| {
        let pool = import(&handle, 3).await;
        settled(&handle, &pool).await;
        let mirror = &pool.status().root.children[0];
        assert_eq!(mirror.children.len(), 2, "{mirror:?}");
        assert_eq!(leaf(&pool, 2).health, Health::Online);
        let scan = pool.scrub().await.expect("scrub");
        assert_eq!((scan.errors, scan.processed_bytes), (0, 0), "{scan:?}");
        pool.export().await.expect("export");
    });
    world.vanish(path(0));
    world.vanish(path(1));
    run(&world, async |handle| {
        let pool = import(&handle, 3).await;
        compare(&root(&pool).await, &recorder.now, "from the new disk alone").await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "on the new disk alone");
}
