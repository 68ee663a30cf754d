//! The cache of a pool keeps what is alive, no more. Cache devices: filled, found again at import, and never needed.

use std::time::Duration;

use pool::{AddSpec, Health, Pool, PoolSpec};
use world::World;

use crate::support::*;
use crate::workload::{Recorder, compare, root, work};

fn with_cache() -> PoolSpec {
    PoolSpec {
        caches: vec![path(1)],
        ..spec(single())
    }
}

/// What `zdb -l` says of a disk; `None` where there is no zdb.
fn zdb_label(world: &World, disk: usize) -> Option<String> {
    if !has_zdb() {
        return None;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    world.dump(dir.path()).expect("dump the disks");
    let output = oracle::zdb()
        .arg("-lll")
        .arg(dir.path().join(format!("d{disk}")))
        .output()
        .expect("zdb runs");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

async fn rebuilt(handle: &runtime::Handle, pool: &Pool) {
    while pool.cache().devices().iter().any(|d| d.rebuilding) {
        handle.sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_cache_device_is_filled_found_again_and_leaves() {
    let world = world(501, 3, 128 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = Pool::create(&handle, with_cache(), empty_root)
            .await
            .expect("create");
        work(&pool, &mut rng, &mut recorder, 200).await;
        handle.sleep(Duration::from_secs(5)).await;
        work(&pool, &mut rng, &mut recorder, 50).await;
        handle.sleep(Duration::from_secs(5)).await;
        let cache = pool.status().caches.remove(0);
        assert_eq!(cache.health, Health::Online);
        let (held, size) = (cache.allocated_bytes, cache.size_bytes);
        assert!(held > MIB && size > 120 * MIB, "{held} of {size} bytes");
        assert!(cache.io.write_bytes > MIB);
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "with a cache device");
    if let Some(text) = zdb_label(&world, 1) {
        for wanted in [
            "L2ARC device header",
            "state: 4",
            "lb_count_refcount",
            "0 with invalid cksum",
        ] {
            assert!(text.contains(wanted), "no '{wanted}' in {text}");
        }
    }
    run(&world, async |handle| {
        let pool = import(&handle, 3).await;
        rebuilt(&handle, &pool).await;
        let stats = pool.cache().l2_stats();
        assert!(stats.rebuilt_blocks > 10, "{stats:?}");
        compare(&root(&pool).await, &recorder.now, "partly from the cache").await;
        let stats = pool.cache().l2_stats();
        assert!(stats.hits > 0 && stats.checksum_errors == 0, "{stats:?}");
        let guid = pool.status().caches[0].guid;
        pool.remove(guid).await.expect("remove");
        assert!(pool.status().caches.is_empty());
        compare(&root(&pool).await, &recorder.now, "without the cache").await;
        // The disk is free at once, for anything.
        let log = AddSpec {
            logs: vec![pool::VdevSpec::Single(path(1))],
            caches: vec![path(2)],
            ..AddSpec::default()
        };
        pool.add(log).await.expect("add");
        assert_eq!(pool.status().caches[0].health, Health::Online);
        work(&pool, &mut rng, &mut recorder, 10).await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "with another cache device");
}

#[test]
fn an_import_needs_no_cache_device() {
    let world = world(502, 3, 128 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = Pool::create(&handle, with_cache(), empty_root)
            .await
            .expect("create");
        work(&pool, &mut rng, &mut recorder, 40).await;
        handle.sleep(Duration::from_secs(5)).await;
        pool.export().await.expect("export");
    });
    world.vanish(path(1));
    run(&world, async |handle| {
        let pool = import(&handle, 3).await;
        let status = pool.status();
        assert_eq!(status.caches[0].health, Health::Unavail);
        assert_eq!(status.root.health, Health::Online, "{status:?}");
        compare(&root(&pool).await, &recorder.now, "the cache is away").await;
        work(&pool, &mut rng, &mut recorder, 20).await;
        world.bring_back(path(1));
        pool.reopen().await.expect("reopen");
        assert_eq!(pool.status().caches[0].health, Health::Online, "back");
        rebuilt(&handle, &pool).await;
        // What it holds of blocks that are gone does no harm.
        compare(&root(&pool).await, &recorder.now, "the cache is back").await;
        handle.sleep(Duration::from_secs(5)).await;
        pool.export().await.expect("export");
    });
    // Rot: the header, the log and the blocks.
    for at in (4 << 20..8 << 20).step_by(4096) {
        if rng.below(3) == 0 {
            world.rot(path(1), at + rng.below(4000), 8);
        }
    }
    run(&world, async |handle| {
        let pool = import(&handle, 3).await;
        rebuilt(&handle, &pool).await;
        compare(&root(&pool).await, &recorder.now, "the cache rots").await;
        pool.abandon();
    });
    // A foreign disk at its path.
    world.damage(path(1), 0, &vec![0; 4 << 20]);
    world.damage(path(1), 124 << 20, &vec![0; 4 << 20]);
    run(&world, async |handle| {
        let pool = import(&handle, 3).await;
        assert_eq!(pool.status().caches[0].health, Health::Unavail);
        compare(&root(&pool).await, &recorder.now, "a foreign disk").await;
        let guid = pool.status().caches[0].guid;
        pool.remove(guid).await.expect("remove");
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "after its cache device is gone");
}

/// Each txg rewrites its blocks of metadata in several passes, in place: the former contents are of no use.
#[test]
fn memory_keeps_no_contents_that_are_gone() {
    let world = world(503, 1, 128 * MIB);
    run(&world, async |handle| {
        let pool = Pool::create(&handle, spec(single()), empty_root)
            .await
            .expect("create");
        let mut before = None;
        for number in 0..120 {
            let name = format!("tank@s{number}");
            let taken = pool.hierarchy().snapshot(&[name], &[]).await;
            taken.expect("snapshot");
            if number == 20 {
                before = Some(pool.cache().stats().uncompressed_bytes);
            }
        }
        let grown = pool.cache().stats().uncompressed_bytes - before.expect("counted");
        // What a hundred snapshots really add: objects in the table of dnodes, lists of dead blocks, names, space maps.
        assert!(grown < 4 * MIB, "{grown} bytes for a hundred snapshots");
        pool.export().await.expect("export");
    });
}
