//! The cache over a store in a modelled world: what is read is right and read once, and the limit holds.

mod devices;

use std::rc::Rc;
use std::time::Duration;

use arc::{BlockKinds, Cache, CacheTuning, CacheUse};
use ondisk::{BlockPointer, ChecksumKind, Compression, ObjectType, Txg};
use runtime::{Handle, IoBuf};
use vdev::{LeafSpec, OpenMode, TopSpec, Tree, TreeSpec, TreeTuning, plan};
use world::{DiskModel, Ended, Faults, World};
use zio::{
    BlockStore, Bookmark, IoClass, LoadSpaceMap, MetaSource, ReadProps, StoreOptions, WriteProps,
    ZioError,
};

const READ: ReadProps = ReadProps {
    class: IoClass::SyncRead,
    bookmark: Bookmark {
        objset: 0,
        object: 1,
        level: 0,
        block: 0,
    },
};

struct NoMaps;

impl MetaSource for NoMaps {
    fn load_space_map(&self, vdev: u32, metaslab: u32) -> LoadSpaceMap<'_> {
        Box::pin(async move {
            Err(ZioError::SpaceMap {
                vdev,
                metaslab,
                reason: "there is none".into(),
            })
        })
    }
}

async fn open(handle: &Handle, tuning: CacheTuning) -> Cache {
    let leaves = vec![LeafSpec { path: "/d0".into() }];
    let spec = TreeSpec {
        tops: vec![TopSpec {
            parity: 0,
            draid: None,
            leaves,
            bias: vdev::AllocationBias::None,
            ashift: Some(12),
        }],
    };
    let (config, _) = plan(handle, &spec).await.expect("a plan");
    let tree = Tree::open(
        handle,
        &config,
        OpenMode::ReadWrite,
        TreeTuning::default(),
        true,
    )
    .await
    .expect("opens");
    let store = BlockStore::new(handle, tree, StoreOptions::default());
    store.activate(Rc::new(NoMaps), &[]);
    Cache::new(handle, store, tuning)
}

fn content(seed: u64, len: usize) -> IoBuf {
    let mut bytes = vec![0; len];
    world::Rng::new(seed).fill(&mut bytes);
    IoBuf::from(bytes)
}

async fn write(cache: &Cache, data: IoBuf, props: &WriteProps) -> BlockPointer {
    cache
        .store()
        .write(Txg(10), data, props)
        .await
        .expect("writes")
}

fn props(metadata: bool) -> WriteProps {
    WriteProps {
        object_type: if metadata {
            ObjectType::SPACE_MAP
        } else {
            ObjectType::PLAIN_FILE_CONTENTS
        },
        level: 0,
        compression: Compression::OFF,
        skips_compression: false,
        zstd_level: 0,
        checksum: ChecksumKind::FLETCHER4,
        copies: 1,
        special_small_bytes: 0,
        allow_embedded: false,
        fill: 1,
        rewrite: None,
        unless_equal: None,
        dedup: None,
        hole_birth: false,
        class: IoClass::AsyncWrite,
        bookmark: Bookmark::default(),
    }
}

fn in_world<F: Future<Output = ()>>(faults: Faults, test: impl FnOnce(Handle, World) -> F) {
    let world = World::new(1);
    world.add_disk("/d0", DiskModel::new(128 << 20).with_faults(faults));
    let inner = world.clone();
    match world.run(|handle| test(handle, inner)) {
        Ended::Done(()) => {}
        Ended::PowerCut => panic!("nobody cut the power"),
    }
}

#[test]
fn a_block_is_read_once_however_many_ask() {
    let slow = Faults {
        slow: 1_000_000,
        slow_by: Duration::from_millis(5),
        ..Faults::default()
    };
    in_world(slow, |handle, _| async move {
        let cache = open(&handle, CacheTuning::default()).await;
        let bp = write(&cache, content(1, 8192), &props(false)).await;
        let readers: Vec<_> = (0..50)
            .map(|_| {
                let cache = cache.clone();
                handle.spawn("reader", async move {
                    cache.read(&bp, READ).await.expect("reads")
                })
            })
            .collect();
        for reader in readers {
            assert_eq!(reader.await, content(1, 8192));
        }
        assert_eq!(cache.store().stats().reads, 1);
        assert_eq!(
            cache.read(&bp, READ).await.expect("reads"),
            content(1, 8192)
        );
        let stats = cache.stats();
        let demand = |counts: arc::ByPurpose| counts.demand_data;
        assert_eq!(demand(stats.misses), 1);
        assert_eq!((demand(stats.joined), demand(stats.hits)), (49, 1));
    });
}

#[test]
fn errors_reach_all_and_are_not_kept() {
    in_world(Faults::default(), |handle, world| async move {
        let cache = open(&handle, CacheTuning::default()).await;
        let bp = write(&cache, content(1, 8192), &props(false)).await;
        let at = bp.dvas()[0].offset + vdev::LEAF_DATA_START;
        world.damage("/d0", at, &[1; 512]);
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let cache = cache.clone();
                handle.spawn("reader", async move { cache.read(&bp, READ).await })
            })
            .collect();
        for reader in readers {
            assert!(reader.await.expect_err("is damaged").is_corruption());
        }
        world.damage("/d0", at, &content(1, 8192)[..512]);
        assert_eq!(
            cache.read(&bp, READ).await.expect("is whole again"),
            content(1, 8192)
        );
    });
}

#[test]
fn a_place_overwritten_within_a_txg_is_another_block() {
    in_world(Faults::default(), |handle, _| async move {
        let cache = open(&handle, CacheTuning::default()).await;
        let first = write(&cache, content(1, 8192), &props(true)).await;
        cache.insert(&first, content(1, 8192), None, CacheUse::default());
        let again = WriteProps {
            rewrite: Some(first),
            ..props(true)
        };
        let second = write(&cache, content(2, 8192), &again).await;
        assert_eq!(first.dvas(), second.dvas());
        assert_eq!(
            cache.read(&second, READ).await.expect("reads"),
            content(2, 8192)
        );
        assert_eq!(cache.peek(&first, false), Some(content(1, 8192)));
        cache.forget(&first);
        assert_eq!(cache.peek(&first, false), None);
        assert_eq!(cache.peek(&second, false), Some(content(2, 8192)));
    });
}

#[test]
fn what_was_freed_during_its_read_is_not_kept() {
    in_world(Faults::default(), |handle, _| async move {
        let cache = open(&handle, CacheTuning::default()).await;
        let bp = write(&cache, content(1, 64 << 10), &props(false)).await;
        let reader = cache.clone();
        let task = handle.spawn("reader", async move { reader.read(&bp, READ).await });
        handle.yield_now().await;
        cache.forget(&bp);
        assert_eq!(task.await.expect("reads"), content(1, 64 << 10));
        assert_eq!(cache.peek(&bp, false), None);
    });
}

#[test]
fn only_what_is_to_be_kept_stays_in_memory() {
    in_world(Faults::default(), |handle, _| async move {
        let cache = open(&handle, CacheTuning::default()).await;
        let keep = |memory| CacheUse {
            memory,
            devices: BlockKinds::All,
        };
        let blocks = [content(1, 8192), content(2, 8192)];
        let [data, metadata] = &blocks;
        let data_bp = write(&cache, data.clone(), &props(false)).await;
        let metadata_bp = write(&cache, metadata.clone(), &props(true)).await;
        for (kinds, kept) in [
            (BlockKinds::Nothing, [false, false]),
            (BlockKinds::Metadata, [false, true]),
            (BlockKinds::All, [true, true]),
        ] {
            cache.clear();
            cache.insert(&data_bp, data.clone(), None, keep(kinds));
            cache.insert(&metadata_bp, metadata.clone(), None, keep(kinds));
            let has = || [&data_bp, &metadata_bp].map(|bp| cache.has(bp, false));
            assert_eq!(has(), kept, "written, {kinds:?}");
            cache.clear();
            for (bp, bytes) in [(&data_bp, data), (&metadata_bp, metadata)] {
                let read = cache.read_for(bp, READ, keep(kinds), None).await;
                assert_eq!(&read.expect("reads"), bytes);
            }
            assert_eq!(has(), kept, "read, {kinds:?}");
        }
    });
}

#[test]
fn the_limit_holds_and_metadata_stays() {
    in_world(Faults::default(), |handle, _| async move {
        let tuning = CacheTuning {
            limit_bytes: 1 << 20,
            ..CacheTuning::default()
        };
        let cache = open(&handle, tuning).await;
        let metadata = write(&cache, content(0, 16 << 10), &props(true)).await;
        cache.insert(&metadata, content(0, 16 << 10), None, CacheUse::default());
        for seed in 1..200 {
            let bp = write(&cache, content(seed, 32 << 10), &props(false)).await;
            cache.insert(&bp, content(seed, 32 << 10), None, CacheUse::default());
            assert!(cache.stats().bytes <= 1 << 20);
        }
        assert!(cache.peek(&metadata, false).is_some());
        assert!(cache.stats().evictions > 100);
        cache.set_limit(64 << 10);
        assert!(cache.stats().bytes <= 64 << 10);
        // A block that would be most of the cache is not kept at all.
        let bp = write(&cache, content(7, 128 << 10), &props(false)).await;
        cache.insert(&bp, content(7, 128 << 10), None, CacheUse::default());
        assert!(cache.peek(&bp, false).is_none());
        let hole = BlockPointer::hole(8192, ObjectType::PLAIN_FILE_CONTENTS, 0, Txg(3));
        assert_eq!(
            cache.read(&hole, READ).await.expect("reads"),
            IoBuf::zeroed(8192)
        );
    });
}

#[test]
fn compressed_blocks_take_less_and_read_the_same() {
    in_world(Faults::default(), |handle, _| async move {
        let tuning = CacheTuning {
            limit_bytes: 4 << 20,
            ..CacheTuning::default()
        };
        let cache = open(&handle, tuning).await;
        let lz4 = WriteProps {
            compression: Compression::LZ4,
            ..props(false)
        };
        // A quarter of each block is noise: 6 MiB of blocks fit into 4 MiB of cache.
        let block = |seed: u64| {
            let mut bytes = content(seed, 32 << 10).to_vec();
            bytes.resize(128 << 10, 0);
            IoBuf::from(bytes)
        };
        let mut written = Vec::new();
        for seed in 0..48 {
            let (bp, stored) = cache
                .store()
                .write_forms(Txg(10), block(seed), &lz4, &zio::Protection::None)
                .await
                .expect("writes");
            assert!(stored.is_some());
            cache.insert(&bp, block(seed), stored, CacheUse::default());
            written.push((seed, bp));
            assert!(cache.stats().bytes <= 4 << 20);
        }
        let before = cache.store().stats().reads;
        for (seed, bp) in &written {
            assert_eq!(cache.read(bp, READ).await.expect("reads"), block(*seed));
            assert!(cache.stats().bytes <= 4 << 20);
        }
        assert_eq!(cache.store().stats().reads, before, "all were in memory");
        let stats = cache.stats();
        assert_eq!((stats.blocks, stats.evictions), (48, 0));
        assert!(stats.decompressions > 10 && stats.open_bytes > 0);
        assert_eq!(stats.uncompressed_bytes, 48 * (128 << 10));
        for (_, bp) in &written {
            cache.forget(bp);
        }
        let stats = cache.stats();
        assert_eq!(
            (stats.blocks, stats.open_bytes, stats.uncompressed_bytes),
            (0, 0, 0)
        );
    });
}

#[test]
fn what_is_read_ahead_is_counted_as_useful_or_wasted_and_bounded() {
    in_world(Faults::default(), |handle, _| async move {
        let tuning = CacheTuning {
            limit_bytes: 1 << 20,
            ..CacheTuning::default()
        };
        let cache = open(&handle, tuning).await;
        let ahead = ReadProps {
            class: IoClass::AsyncRead,
            ..READ
        };
        let mut blocks = Vec::new();
        for seed in 0..64 {
            blocks.push(write(&cache, content(seed, 32 << 10), &props(false)).await);
        }
        let room = cache.prefetch_room();
        assert!(room > 0 && room <= 1 << 16);
        for bp in &blocks[..3] {
            cache.read(bp, ahead).await.expect("reads");
        }
        assert!(cache.prefetch_room() < room);
        cache.read(&blocks[0], READ).await.expect("reads");
        let stats = cache.stats();
        assert_eq!((stats.prefetch_useful, stats.prefetch_wasted), (1, 0));
        assert_eq!(stats.prefetch_unused_bytes, 64 << 10);
        for bp in &blocks[3..] {
            cache.read(bp, READ).await.expect("reads");
        }
        let stats = cache.stats();
        assert_eq!((stats.prefetch_useful, stats.prefetch_wasted), (1, 2));
        assert_eq!(stats.prefetch_unused_bytes, 0);
        assert_eq!(cache.prefetch_room(), 32 << 10, "waste makes it careful");
    });
}
