//! Pools that several hosts can reach: what a host with `multihost=on` shows, which import is refused, and when the host itself stops.

use std::time::Duration;

use ondisk::Uberblock;
use pool::{HostIdentity, ImportPolicy, Pool, PoolError, PoolSpec, StatusReason};
use runtime::Handle;

use crate::support::*;

const MULTIHOST: (&str, &str) = ("multihost", "on");

fn other_host() -> HostIdentity {
    HostIdentity {
        hostid: 0x8765_4321,
        hostname: "there".into(),
        kernel: String::new(),
    }
}

async fn create_multihost(handle: &Handle) -> Pool {
    let spec = PoolSpec {
        properties: vec![(MULTIHOST.0.into(), MULTIHOST.1.into())],
        ..spec(mirror())
    };
    Pool::create(handle, spec, empty_root)
        .await
        .expect("create the pool")
}

async fn import_from(
    handle: &Handle,
    host: HostIdentity,
    force: bool,
) -> (Result<Pool, PoolError>, u64) {
    let found = find(handle, 2).await;
    let policy = ImportPolicy {
        host,
        force,
        ..ImportPolicy::default()
    };
    let began = handle.now();
    let result = Pool::import(handle, &found[0], policy).await;
    let took = handle.now().as_nanos() - began.as_nanos();
    (result, took / 1_000_000_000)
}

/// The uberblocks in the slot that is kept for heartbeats, of both disks.
async fn heartbeats(pool: &Pool) -> Vec<(u64, Uberblock)> {
    let mut found = Vec::new();
    for leaf in pool.tree().leaves() {
        let labels = pool.tree().read_labels(leaf.guid).await.expect("labels");
        let last = labels.uberblocks.iter().map(|found| found.slot).max();
        let kept = labels.uberblocks.iter().filter(|f| Some(f.slot) == last);
        found.extend(kept.map(|kept| (leaf.guid.0, kept.uberblock)));
    }
    found
}

#[test]
fn a_pool_in_use_is_refused_and_a_deserted_one_is_not() {
    let world = world(801, 2, 128 * MIB);
    run(&world, |handle| async move {
        let pool = create_multihost(&handle).await;
        handle.sleep(Duration::from_secs(30)).await;
        let seen = heartbeats(&pool).await;
        let newest = pool.sync().await.expect("sync");
        for leaf in pool.tree().leaves() {
            let own: Vec<_> = seen
                .iter()
                .filter(|(guid, _)| *guid == leaf.guid.0)
                .collect();
            assert!(!own.is_empty(), "every leaf gets heartbeats");
        }
        for (_, beat) in &seen {
            assert!(beat.is_multihost() && beat.mmp_sequence() > 0, "{beat:?}");
            assert_eq!(beat.mmp_interval(), Some(Duration::from_secs(1)));
            assert_eq!(beat.mmp_fail_intervals(), Some(10));
            assert!(beat.txg < newest);
        }
        // Another host sees it, and -f does not help it; it is told soon.
        for force in [false, true] {
            let (refused, seconds) = import_from(&handle, other_host(), force).await;
            let refused = refused.err().expect("refused");
            assert!(
                matches!(&refused, PoolError::ActiveElsewhere { hostname, forced, .. }
                    if hostname == "here" && *forced == force),
                "{refused:?}"
            );
            assert!(seconds <= 3, "{seconds} s");
        }
        // No host has it any more, but it was not exported.
        pool.abandon();
        drop(pool);
        let (refused, seconds) = import_from(&handle, other_host(), false).await;
        let refused = refused.err().expect("refused");
        assert!(
            matches!(refused, PoolError::ForeignHost { .. }),
            "{refused:?}"
        );
        assert!((20..=26).contains(&seconds), "{seconds} s");
        let nameless = HostIdentity::default();
        let (refused, _) = import_from(&handle, nameless, true).await;
        assert!(matches!(refused, Err(PoolError::NoHostId)));
        let (pool, seconds) = import_from(&handle, other_host(), true).await;
        let pool = pool.expect("no host uses it");
        assert!((20..=26).contains(&seconds), "{seconds} s");
        // The same host again does not wait, nor does another host after an export.
        pool.abandon();
        drop(pool);
        let (pool, seconds) = import_from(&handle, other_host(), false).await;
        assert_eq!(seconds, 0);
        pool.expect("its own").export().await.expect("export");
        let (pool, seconds) = import_from(&handle, host(), false).await;
        assert_eq!(seconds, 0);
        let pool = pool.expect("exported");
        pool.set_property("multihost", "off").await.expect("off");
        pool.abandon();
        drop(pool);
        let (refused, seconds) = import_from(&handle, other_host(), false).await;
        assert!(matches!(refused, Err(PoolError::ForeignHost { .. })));
        assert_eq!(seconds, 0);
        let (pool, _) = import_from(&handle, other_host(), true).await;
        pool.expect("forced").export().await.expect("export");
    });
    zdb_clean(&world, "a pool that went from host to host");
}

#[test]
fn a_host_without_heartbeats_stops_writing() {
    let world = world(802, 2, 128 * MIB);
    let devices = world.clone();
    run(&world, |handle| async move {
        let pool = create_multihost(&handle).await;
        handle.sleep(Duration::from_secs(5)).await;
        // The devices take so long that another host may have found the pool unused.
        for disk in 0..2 {
            devices.stick(path(disk));
        }
        handle.sleep(Duration::from_secs(12)).await;
        for disk in 0..2 {
            devices.unstick(path(disk));
        }
        let refused = pool.set_property("comment", "mine").await;
        assert!(matches!(refused, Err(PoolError::Suspended)), "{refused:?}");
        assert_eq!(pool.status().reason, StatusReason::IoFailureMultihost);
        handle.sleep(Duration::from_secs(5)).await;
        let before = devices.counts().writes;
        drop(pool.clear(None).await);
        handle.sleep(Duration::from_secs(60)).await;
        assert_eq!(
            devices.counts().writes,
            before,
            "nothing was written after the end"
        );
        pool.abandon();
        drop(pool);
        let (pool, _) = import_from(&handle, other_host(), true).await;
        pool.expect("no host uses it")
            .export()
            .await
            .expect("export");
    });
    zdb_clean(&world, "a pool whose host had stopped");
}

#[test]
fn heartbeats_begin_and_end_with_the_property() {
    let world = world(803, 2, 128 * MIB);
    run(&world, |handle| async move {
        let pool = create(&handle, mirror()).await;
        pool.set_property(MULTIHOST.0, MULTIHOST.1)
            .await
            .expect("on");
        handle.sleep(Duration::from_secs(3)).await;
        let (refused, _) = import_from(&handle, other_host(), true).await;
        assert!(matches!(refused, Err(PoolError::ActiveElsewhere { .. })));
        pool.set_property("multihost", "off").await.expect("off");
        let before = heartbeats(&pool).await;
        handle.sleep(Duration::from_secs(30)).await;
        assert_eq!(
            heartbeats(&pool).await,
            before,
            "no heartbeat after the end"
        );
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "a pool that is no longer multihost");
}
