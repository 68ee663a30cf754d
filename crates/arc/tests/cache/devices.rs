//! Cache devices: fed, read, rebuilt; and what happens when they rot, hang or vanish.

use std::path::Path;
use std::time::Duration;

use arc::{BlockKinds, Cache, CacheDevice, CacheTuning, CacheUse, L2Tuning};
use ondisk::l2arc;
use ondisk::{BlockPointer, Compression};
use runtime::{DiskMode, Handle, IoBuf};
use world::{DiskModel, Ended, World};
use zio::WriteProps;

use crate::{READ, content, open, props, write};

const SIZE: u64 = 64 << 20;
const GUID: u64 = 77;

fn in_world<F: Future<Output = ()>>(test: impl FnOnce(Handle, World) -> F) {
    let world = World::new(1);
    world.add_disk("/d0", DiskModel::new(320 << 20));
    world.add_disk("/c0", DiskModel::new(SIZE));
    let inner = world.clone();
    match world.run(|handle| test(handle, inner)) {
        Ended::Done(()) => {}
        Ended::PowerCut => panic!("nobody cut the power"),
    }
}

async fn small(handle: &Handle) -> Cache {
    let tuning = CacheTuning {
        limit_bytes: 2 << 20,
        ..CacheTuning::default()
    };
    open(handle, tuning).await
}

async fn attach(handle: &Handle, cache: &Cache, fresh: bool) {
    let disk = handle.open_disk(Path::new("/c0"), DiskMode::ReadWrite);
    cache
        .add_device(CacheDevice {
            guid: GUID,
            pool_guid: 5,
            disk: disk.await.expect("opens"),
            ashift: 12,
            size: SIZE,
            writable: true,
            fresh,
        })
        .await;
    while cache.devices().iter().any(|device| device.rebuilding) {
        handle.sleep(Duration::from_millis(1)).await;
    }
}

/// Compressible and not, by turns.
fn block(seed: u64) -> IoBuf {
    let noise = content(seed, 16 << 10);
    if seed.is_multiple_of(2) {
        return noise;
    }
    let mut bytes = noise[..6000].to_vec();
    bytes.resize(16 << 10, 7);
    IoBuf::from(bytes)
}

async fn fill(handle: &Handle, cache: &Cache, count: u64) -> Vec<BlockPointer> {
    fill_for(handle, cache, count, CacheUse::default()).await
}

async fn fill_for(handle: &Handle, cache: &Cache, count: u64, keep: CacheUse) -> Vec<BlockPointer> {
    let lz4 = WriteProps {
        compression: Compression::LZ4,
        ..props(false)
    };
    let mut blocks = Vec::new();
    for seed in 0..count {
        let written =
            cache
                .store()
                .write_forms(ondisk::Txg(10), block(seed), &lz4, &zio::Protection::None);
        let (bp, stored) = written.await.expect("writes");
        cache.insert(&bp, block(seed), stored, keep);
        blocks.push(bp);
        if seed % 32 == 0 {
            // The devices get their turn before the blocks are gone.
            handle.sleep(Duration::from_millis(1100)).await;
        }
    }
    blocks
}

#[test]
fn only_what_may_goes_to_the_device() {
    in_world(|handle, _| async move {
        let cache = small(&handle).await;
        attach(&handle, &cache, true).await;
        // Data, in a dataset that wants metadata there, or nothing.
        for devices in [BlockKinds::Metadata, BlockKinds::Nothing] {
            let keep = CacheUse {
                memory: BlockKinds::All,
                devices,
            };
            let blocks = fill_for(&handle, &cache, 200, keep).await;
            assert_eq!(cache.l2_stats().blocks, 0, "{keep:?}");
            for bp in &blocks {
                let read = cache.read_for(bp, READ, keep, None).await;
                read.expect("reads");
            }
            handle.sleep(Duration::from_secs(3)).await;
            assert_eq!(cache.l2_stats().blocks, 0, "read, {keep:?}");
        }
        fill(&handle, &cache, 200).await;
        assert!(cache.l2_stats().blocks > 100);
        cache.remove_device(GUID).await;
    });
}

#[test]
fn blocks_that_left_memory_come_from_the_device_and_again_after_an_import() {
    in_world(|handle, _| async move {
        let cache = small(&handle).await;
        attach(&handle, &cache, true).await;
        let blocks = fill(&handle, &cache, 600).await;
        let before = cache.store().stats().reads;
        for (seed, bp) in (0..).zip(&blocks) {
            assert_eq!(cache.read(bp, READ).await.expect("reads"), block(seed));
        }
        let stats = cache.l2_stats();
        let from_pool = cache.store().stats().reads - before;
        assert!(stats.hits > 400, "{stats:?}");
        assert!(from_pool < 150, "{from_pool} of 600 from the pool");
        assert_eq!((stats.checksum_errors, stats.io_errors), (0, 0));
        assert!(stats.log_blocks_written > 5 && stats.allocated_bytes < SIZE);
        // Another cache, as after an import, knows what the log says.
        cache.remove_device(GUID).await;
        assert_eq!((cache.l2_stats().blocks, cache.devices().len()), (0, 0));
        let tuning = CacheTuning {
            limit_bytes: 2 << 20,
            ..CacheTuning::default()
        };
        let again = Cache::new(&handle, cache.store().clone(), tuning);
        attach(&handle, &again, false).await;
        let rebuilt = again.l2_stats().rebuilt_blocks;
        assert!(rebuilt > 400, "{rebuilt}");
        let mut found = 0;
        for (seed, bp) in (0..).zip(&blocks) {
            let hits = again.l2_stats().hits;
            assert_eq!(again.read(bp, READ).await.expect("reads"), block(seed));
            found += again.l2_stats().hits - hits;
        }
        assert!(found > 400, "{found}");
        // Freed blocks are forgotten there too.
        let known = again.l2_stats().blocks;
        for bp in &blocks {
            again.forget(bp);
        }
        assert!(again.l2_stats().blocks + 400 < known + 1);
        again.remove_device(GUID).await;
    });
}

#[test]
fn a_device_that_rots_or_vanishes_costs_a_read_and_nothing_else() {
    in_world(|handle, world| async move {
        let cache = small(&handle).await;
        attach(&handle, &cache, true).await;
        let blocks = fill(&handle, &cache, 400).await;
        world.damage("/c0", l2arc::HEADER_AT + (1 << 20), &vec![0xa5; 2 << 20]);
        for (seed, bp) in (0..).zip(&blocks) {
            assert_eq!(cache.read(bp, READ).await.expect("reads"), block(seed));
        }
        let stats = cache.l2_stats();
        assert!(stats.checksum_errors > 10 && stats.hits > 50, "{stats:?}");
        world.vanish("/c0");
        for (seed, bp) in (0..).zip(&blocks) {
            assert_eq!(cache.read(bp, READ).await.expect("reads"), block(seed));
            handle.sleep(Duration::from_millis(20)).await;
        }
        let device = cache.devices().remove(0);
        assert!(device.failed && cache.l2_stats().blocks == 0);
        assert!(device.read_errors <= 16 && device.write_errors <= 1);
        assert!(cache.remove_device(GUID).await);
        assert!(!cache.remove_device(GUID).await);
    });
}

#[test]
fn a_device_that_hangs_is_not_waited_for() {
    in_world(|handle, world| async move {
        let cache = small(&handle).await;
        attach(&handle, &cache, true).await;
        let blocks = fill(&handle, &cache, 300).await;
        world.stick("/c0");
        let begun = handle.now();
        for (seed, bp) in (0..).zip(&blocks) {
            assert_eq!(cache.read(bp, READ).await.expect("reads"), block(seed));
        }
        let took = handle.now().since(begun);
        assert!(took < Duration::from_secs(20), "{took:?}");
        assert!(cache.devices()[0].failed);
        world.unstick("/c0");
    });
}

#[test]
fn a_full_device_is_written_no_more_than_it_may_be() {
    in_world(|handle, _| async move {
        let cache = small(&handle).await;
        attach(&handle, &cache, true).await;
        cache.set_l2_tuning(L2Tuning {
            writes_per_day: 1,
            ..L2Tuning::default()
        });
        let mut seed = 0;
        // 160 MiB of new blocks within a few minutes.
        while seed < 5_120 {
            let bp = write(&cache, content(seed % 64, 32 << 10), &props(false)).await;
            cache.insert(&bp, content(seed % 64, 32 << 10), None, CacheUse::default());
            seed += 1;
            if seed % 32 == 0 {
                handle.sleep(Duration::from_secs(1)).await;
            }
        }
        let stats = cache.l2_stats();
        assert!(stats.write_bytes <= SIZE + (2 << 20), "{stats:?}");
        assert!(stats.write_bytes > SIZE / 2, "{stats:?}");
        assert!(stats.feeds_spared > 10);
        assert!(cache.stats().bytes <= 2 << 20);
    });
}
