//! Goal: blocks go to the vdevs set aside for their kind, and elsewhere when those are full; blocks of intent logs are
//! recorded in the txg they were allocated in, can be freed, and claimed after a crash.

use std::rc::Rc;
use std::sync::Arc;

use ondisk::{ObjectType, Txg};
use runtime::IoBuf;
use vdev::AllocationBias::{self, Dedup, Log, Special};
use zio::{BlockStore, StoreOptions, WriteProps, ZioError};

use crate::world::{Maps, World, noise, run, write_props};

const MIB: u64 = 1 << 20;

#[test]
fn each_kind_of_block_goes_to_its_class() {
    run(|handle| async move {
        let tops = [
            (1, AllocationBias::None),
            (1, Log),
            (1, Special),
            (1, Dedup),
        ];
        let world = World::with_classes(&handle, &tops, 64 * MIB, 12).await;
        let data = noise(8192, 1);
        let file = write_props();
        let small = WriteProps {
            special_small_bytes: 8192,
            ..file
        };
        let indirect = WriteProps { level: 1, ..file };
        let metadata = WriteProps {
            object_type: ObjectType::DIRECTORY_CONTENTS,
            ..file
        };
        let table = WriteProps {
            object_type: ObjectType::DDT_ZAP,
            ..file
        };
        for (props, vdev) in [
            (file, 0),
            (small, 2),
            (indirect, 2),
            (metadata, 2),
            (table, 3),
        ] {
            let bp = world.write(10, &data, &props).await;
            assert_eq!(bp.dvas()[0].vdev, vdev, "{bp}");
            assert!(world.read(&bp).await == data);
        }
        // Larger than what may go to special vdevs.
        let bp = world.write(10, &noise(12288, 2), &small).await;
        assert_eq!(bp.dvas()[0].vdev, 0);
        // Only ordinary vdevs count as room for datasets; logs count nowhere.
        let space = world.store.space();
        assert_eq!(space.deflated_size, world.store.vdev_space(0).size);
        assert_eq!(space.size, 3 * world.store.vdev_space(0).size);
        assert_eq!(space.allocated, 5 * 8192 + 12288);
    });
}

#[test]
fn a_full_class_falls_back_and_leaves_room_for_metadata() {
    run(|handle| async move {
        let world = World::with_classes(
            &handle,
            &[(1, AllocationBias::None), (1, Special)],
            128 * MIB,
            12,
        )
        .await;
        let special = world.store.vdev_space(1).size;
        let small = WriteProps {
            special_small_bytes: MIB,
            ..write_props()
        };
        let data = noise(1 << 20, 3);
        for _ in 0..special / MIB {
            world.write(10, &data, &small).await;
        }
        // Files stop at three quarters.
        let used = world.store.vdev_space(1).allocated;
        assert!(
            used >= special / 4 * 3 && used < special / 4 * 3 + 2 * MIB,
            "{used}"
        );
        let metadata = WriteProps {
            level: 1,
            ..write_props()
        };
        let mut on_ordinary = 0;
        for _ in 0..special / MIB / 2 {
            let bp = world.write(10, &data, &metadata).await;
            on_ordinary += u32::from(bp.dvas()[0].vdev == 0);
        }
        assert!(on_ordinary > 0, "metadata goes on when its vdev is full");
        assert!(world.store.vdev_space(1).free < 2 * MIB);
    });
}

#[test]
fn log_blocks_use_log_vdevs_then_ordinary_ones_and_can_be_claimed() {
    run(|handle| async move {
        let world = World::with_classes(
            &handle,
            &[(1, AllocationBias::None), (2, Log)],
            64 * MIB,
            12,
        )
        .await;
        let store = &world.store;
        let bytes = IoBuf::from(noise(128 << 10, 4));
        let size = bytes.len() as u64;
        let first = store
            .allocate_log(Txg(12), size, true, None)
            .await
            .expect("room");
        assert_eq!((first.dvas()[0].vdev, first.birth()), (1, Txg(12)));
        store
            .write_log(&first, bytes.clone(), false)
            .await
            .expect("writes");
        store.tree().flush_vdev(1).await.expect("flushes");
        let too_much = IoBuf::from(noise(256 << 10, 5));
        assert!(store.write_log(&first, too_much, false).await.is_err());
        let front = IoBuf::from(noise(4096, 6));
        store
            .write_log(&first, front.clone(), true)
            .await
            .expect("writes");
        let expected = front.clone();
        let check: vdev::Check<usize> =
            Arc::new(move |read: &IoBuf| read.starts_with(&expected).then_some(read.len()));
        let read = store.read_log(&first, check).await.expect("reads");
        assert_eq!(read as u64, size);
        let check: vdev::Check<()> = Arc::new(|_: &IoBuf| None);
        assert!(matches!(
            store.read_log(&first, check).await,
            Err(ZioError::Corrupt { .. })
        ));
        // It belongs to its own txg, not to the one that syncs meanwhile.
        assert!(!store.has_changes(Txg(11)));
        let changes = store.take_changes(Txg(12));
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].allocs[0].end - changes[0].allocs[0].start, size);
        // When the log vdev is full, ordinary ones take over; no data ever goes the other way.
        let mut elsewhere = Vec::new();
        while elsewhere.is_empty() {
            let bp = store
                .allocate_log(Txg(13), size, true, None)
                .await
                .expect("room");
            if bp.dvas()[0].vdev == 0 {
                elsewhere.push(bp);
            }
        }
        assert!(store.vdev_space(1).free < 2 * MIB);
        store.free(Txg(13), &elsewhere[0]).await.expect("frees");
        store.free(Txg(13), &first).await.expect("frees");

        // After a crash that lost these txgs the blocks of the chain are claimed where they are.
        let again = BlockStore::new(&handle, world.tree.clone(), StoreOptions::default());
        again.activate(Rc::new(Maps::default()), &[]);
        again.claim(Txg(20), &first).await.expect("claims");
        assert_eq!(again.vdev_space(1).allocated, size);
        let next = again
            .allocate_log(Txg(20), size, true, None)
            .await
            .expect("room");
        assert_ne!(next.dvas()[0].offset, first.dvas()[0].offset);
        again.free(Txg(21), &first).await.expect("frees");
    });
}
