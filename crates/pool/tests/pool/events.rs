//! Events: what is done to a pool and what its devices do is in the log, under OpenZFS's names.

use std::time::Duration;

use ondisk::NvList;
use pool::{EventLog, ImportPolicy, Pool, PoolSpec};
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

fn class(event: &NvList) -> String {
    event.str("class").expect("a class").to_owned()
}

/// Classes since the last look, without what every change brings.
fn news(log: &EventLog, seen: &mut u64) -> Vec<String> {
    let mut classes = Vec::new();
    for (id, event) in log.after(*seen) {
        assert_eq!(event.u64("eid"), Some(id));
        assert_eq!(event.str("pool"), Some(POOL));
        *seen = id;
        let class = class(&event);
        if !class.ends_with("history_event") && !class.ends_with("config_sync") {
            classes.push(class);
        }
    }
    classes
}

fn events(names: &[&str]) -> Vec<String> {
    let full = |name: &&str| match *name {
        "statechange" | "removed" => format!("resource.fs.zfs.{name}"),
        _ => format!("sysevent.fs.zfs.{name}"),
    };
    names.iter().map(full).collect()
}

#[test]
fn what_is_done_to_a_pool_is_told() {
    let world = world(901, 3, 128 * MIB);
    let mut rng = world.rng();
    let log = EventLog::default();
    run(&world, async |handle| {
        let mut seen = 0;
        let spec = PoolSpec {
            events: log.clone(),
            ..spec(mirror())
        };
        let pool = Pool::create(&handle, spec, empty_root)
            .await
            .expect("create");
        let all: Vec<String> = log.after(0).iter().map(|(_, event)| class(event)).collect();
        for wanted in ["history_event", "config_sync"] {
            assert!(
                all.contains(&format!("sysevent.fs.zfs.{wanted}")),
                "{all:?}"
            );
        }
        assert_eq!(news(&log, &mut seen), events(&["pool_create"]));
        fill(&pool, 40, &mut rng).await;
        pool.scrub().await.expect("scrub");
        assert_eq!(
            news(&log, &mut seen),
            events(&["scrub_start", "scrub_finish"])
        );
        pool.start_scrub().await.expect("start");
        pool.pause_scrub().await.expect("pause");
        pool.start_scrub().await.expect("resume");
        pool.pause_scrub().await.expect("pause");
        pool.cancel_scrub().await.expect("cancel");
        assert_eq!(
            news(&log, &mut seen),
            events(&[
                "scrub_start",
                "scrub_paused",
                "scrub_resume",
                "scrub_paused",
                "scrub_abort"
            ])
        );
        let leaf = pool.tree().leaves()[1].guid.0;
        pool.offline(leaf, false).await.expect("offline");
        fill(&pool, 20, &mut rng).await;
        pool.online(leaf).await.expect("online");
        pool.wait_scan().await.expect("resilvered");
        let told = news(&log, &mut seen);
        for wanted in events(&[
            "statechange",
            "vdev_online",
            "resilver_start",
            "resilver_finish",
        ]) {
            assert!(told.contains(&wanted), "{wanted}: {told:?}");
        }
        let joined = pool
            .attach(leaf, &path(2), false, false)
            .await
            .expect("attach");
        pool.wait_scan().await.expect("resilvered");
        pool.detach(joined).await.expect("detach");
        let told = news(&log, &mut seen);
        for wanted in events(&[
            "vdev_attach",
            "resilver_start",
            "resilver_finish",
            "vdev_remove",
        ]) {
            assert!(told.contains(&wanted), "{wanted}: {told:?}");
        }
        pool.clear(None).await.expect("clear");
        pool.export().await.expect("export");
        assert_eq!(
            news(&log, &mut seen),
            events(&["vdev_clear", "pool_export"])
        );
        let found = find(&handle, 2).await;
        let policy = ImportPolicy {
            events: log.clone(),
            command: Some("zpool import tank".to_owned()),
            ..policy()
        };
        let pool = Pool::import(&handle, &found[0], policy)
            .await
            .expect("import");
        assert_eq!(news(&log, &mut seen), events(&["pool_import"]));
        pool.destroy().await.expect("destroy");
        assert_eq!(news(&log, &mut seen), events(&["pool_destroy"]));
    });
}

#[test]
fn what_devices_do_is_told() {
    let world = world(902, 2, 128 * MIB);
    let mut rng = world.rng();
    let log = EventLog::default();
    let devices = world.clone();
    run(&world, async |handle| {
        let spec = PoolSpec {
            events: log.clone(),
            ..spec(mirror())
        };
        let pool = Pool::create(&handle, spec, empty_root)
            .await
            .expect("create");
        fill(&pool, 60, &mut rng).await;
        let mut noise = vec![0; 24 << 20];
        Rng::new(9).fill(&mut noise);
        devices.damage(path(0), 4 * MIB, &noise);
        log.clear();
        pool.scrub().await.expect("scrub");
        handle.sleep(Duration::from_secs(1)).await;
        let bad = pool.tree().leaves()[0].guid.0;
        let told = log.after(0);
        let lies: Vec<_> = told
            .iter()
            .filter(|(_, event)| class(event) == "ereport.fs.zfs.checksum")
            .collect();
        assert!(
            !lies.is_empty() && lies.len() <= 60,
            "{} reports",
            lies.len()
        );
        for (_, lie) in lies {
            assert_eq!(lie.u64("vdev_guid"), Some(bad));
            assert_eq!(lie.str("vdev_path"), path(0).to_str());
            assert_eq!(lie.str("parent_type"), Some("mirror"));
            assert!(lie.u64("vdev_cksum_errors").is_some_and(|count| count > 0));
            assert!(lie.u64("zio_size").is_some_and(|size| size > 0));
            let detector = lie.list("detector").expect("a detector");
            assert_eq!(detector.u64("vdev"), Some(bad));
        }
        pool.clear(None).await.expect("clear");
        // One goes, and comes back.
        log.clear();
        devices.vanish(path(1));
        fill(&pool, 20, &mut rng).await;
        devices.bring_back(path(1));
        pool.reopen().await.expect("reopen");
        pool.wait_scan().await.expect("resilvered");
        handle.sleep(Duration::from_secs(1)).await;
        let told: Vec<String> = log.after(0).iter().map(|(_, event)| class(event)).collect();
        for wanted in events(&[
            "removed",
            "statechange",
            "resilver_start",
            "resilver_finish",
        ]) {
            assert!(told.contains(&wanted), "{wanted}: {told:?}");
        }
        let io = "ereport.fs.zfs.io".to_owned();
        assert!(told.contains(&io), "{told:?}");
        let gone = pool.tree().leaves()[1].guid.0;
        let told = log.after(0);
        let mut changes = told
            .iter()
            .map(|(_, event)| event)
            .filter(|event| class(event) == "resource.fs.zfs.statechange")
            .filter(|event| event.u64("vdev_guid") == Some(gone));
        let first = changes.next().expect("it went");
        assert_eq!(first.u64("vdev_laststate"), Some(7));
        let last = changes.next_back().expect("it came back");
        assert_eq!(last.u64("vdev_state"), Some(7));
        // Nothing is right any more: the block is named.
        log.clear();
        for disk in 0..2 {
            devices.damage(path(disk), 4 * MIB, &noise);
        }
        pool.scrub().await.expect("scrub");
        let told = log.after(0);
        let data = told
            .iter()
            .find(|(_, event)| class(event) == "ereport.fs.zfs.data");
        let (_, data) = data.expect("damage is told");
        assert!(data.u64("zio_object").is_some() && data.u64("zio_blkid").is_some());
        pool.abandon();
    });
}
