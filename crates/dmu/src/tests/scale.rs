//! Many objects, large sparse objects: what must stay cheap, measured in blocks read.

use std::cell::Cell;
use std::rc::Rc;

use ondisk::{ObjectId, ObjectType, ObjsetType};

use super::rig::{Rig, options, run};
use crate::{AllocSpec, TxWeight};

#[test]
fn many_objects() {
    run(1, |handle| async move {
        let mut rig = Rig::new(&handle, ObjsetType::ZFS, options())
            .await
            .expect("a new objset");
        let os = rig.os.clone();
        const OBJECTS: u64 = 100_000;
        let mut first = None;
        let mut last = ObjectId(0);
        for i in 0..OBJECTS {
            let tx = rig
                .services
                .clock
                .begin(TxWeight::unthrottled())
                .await
                .expect("open");
            let spec = AllocSpec::new(ObjectType::PLAIN_FILE_CONTENTS).bonus(ObjectType::SA, 168);
            last = os.allocate(spec, &tx).await.expect("allocates");
            first.get_or_insert(last);
            drop(tx);
            if i % 25_000 == 24_999 {
                rig.sync().await.expect("syncs");
            }
        }
        assert!(last.0 < OBJECTS + 64, "numbers are dense");
        let reads = rig.store.reads();
        let tx = rig
            .services
            .clock
            .begin(TxWeight::unthrottled())
            .await
            .expect("open");
        os.free_object(ObjectId(5000), &tx).await.expect("frees");
        drop(tx);
        rig.sync().await.expect("syncs");
        assert_eq!(os.object_count(), OBJECTS - 1);
        // A free slot found by fill counts after opening again, without reading the whole table.
        let root = os.root();
        let again = crate::Objset::open(&rig.services, root, options())
            .await
            .expect("opens");
        let tx = rig
            .services
            .clock
            .begin(TxWeight::unthrottled())
            .await
            .expect("open");
        let before = rig.store.reads();
        let new = again
            .allocate(AllocSpec::new(ObjectType::PLAIN_FILE_CONTENTS), &tx)
            .await
            .expect("allocates");
        assert!(new.0 >= OBJECTS, "{new}");
        assert!(rig.store.reads() - before < 100, "few blocks are read");
        assert!(reads > 0);
    });
}

#[test]
fn truncating_a_large_sparse_object_reads_little() {
    run(2, |handle| async move {
        let mut rig = Rig::new(&handle, ObjsetType::ZFS, options())
            .await
            .expect("a new objset");
        let os = rig.os.clone();
        let tx = rig
            .services
            .clock
            .begin(TxWeight::unthrottled())
            .await
            .expect("open");
        let spec = AllocSpec::new(ObjectType::PLAIN_FILE_CONTENTS).block_size(131_072);
        let object = os.allocate(spec, &tx).await.expect("allocates");
        // An exabyte with three blocks in it.
        let size = 1_u64 << 60;
        for offset in [0, size / 3, size - 1] {
            os.write(object, offset, b"x", &tx).await.expect("writes");
        }
        drop(tx);
        rig.sync().await.expect("syncs");
        let info = os.object_info(object).await.expect("described");
        assert_eq!(info.fill_count, 3);
        assert_eq!(
            os.next_data(object, 1 << 20).await.expect("finds"),
            Some(size / 3 / 131_072 * 131_072)
        );
        assert_eq!(os.next_hole(object, 0).await.expect("finds"), 131_072);
        let before = rig.store.reads();
        let tx = rig
            .services
            .clock
            .begin(TxWeight::unthrottled())
            .await
            .expect("open");
        os.free_range(object, 4096, u64::MAX, &tx)
            .await
            .expect("truncates");
        os.write(object, size / 2, b"y", &tx)
            .await
            .expect("writes behind the cut");
        assert_eq!(os.read(object, size / 3, 1).await.expect("reads")[0], 0);
        drop(tx);
        let txg = rig.services.clock.quiesce_next().await;
        os.sync(txg, 1, &mut rig.ledger).await.expect("syncs");
        rig.services.clock.synced(txg);
        assert!(
            rig.store.reads() - before < 60,
            "{} blocks read",
            rig.store.reads() - before
        );
        rig.check(os.root()).await.expect("sound");
        assert_eq!(
            os.object_info(object).await.expect("described").fill_count,
            2
        );
        let tx = rig
            .services
            .clock
            .begin(TxWeight::unthrottled())
            .await
            .expect("open");
        os.free_object(object, &tx).await.expect("frees");
        drop(tx);
        rig.sync().await.expect("syncs");
        assert_eq!(rig.ledger.live.len(), 1, "the objset block alone is left");
    });
}

/// Reads at random places of a tree of four levels, all of it in memory and some changed since: nothing is read, and each block is
/// the one asked for.
#[test]
fn what_is_in_memory_is_read_without_the_store() {
    run(3, |handle| async move {
        let mut rig = Rig::new(&handle, ObjsetType::ZFS, options())
            .await
            .expect("a new objset");
        let os = rig.os.clone();
        let tx = rig.services.clock.begin(TxWeight::unthrottled()).await;
        let tx = tx.expect("open");
        // 32 pointers a block: level-1 blocks of 16 KiB of the object, level-2 blocks of 512 KiB.
        let spec = AllocSpec::new(ObjectType::PLAIN_FILE_CONTENTS).indirect_shift(12);
        let object = os.allocate(spec, &tx).await.expect("allocates");
        const BLOCKS: u64 = 4000;
        let content = |block: u64| block.to_le_bytes().repeat(64);
        let hole = 1234;
        for block in (0..BLOCKS).filter(|&block| block != hole) {
            let written = os.write(object, block * 512, &content(block), &tx).await;
            written.expect("writes");
        }
        drop(tx);
        rig.sync().await.expect("syncs");
        rig.store.set_cached(true);
        let before = rig.store.reads();
        let mut random = 1_u64;
        for step in 0..4000_u64 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let block = (random >> 30) % (BLOCKS - 3);
            if step % 500 == 0 && block != hole {
                let tx = rig.services.clock.begin(TxWeight::unthrottled()).await;
                let tx = tx.expect("open");
                let changed = os.write(object, block * 512, &content(block), &tx).await;
                changed.expect("writes");
            }
            let read = os.read_bufs(object, block * 512 + 7, 1500).await;
            let read: Vec<u8> = read
                .expect("reads")
                .iter()
                .flat_map(|b| b.to_vec())
                .collect();
            let expected = (block..block + 4).flat_map(|block| match block {
                block if block == hole => vec![0; 512],
                block => content(block),
            });
            assert_eq!(read, expected.skip(7).take(1500).collect::<Vec<u8>>());
        }
        assert_eq!(rig.store.reads(), before);
    });
}

/// A sync of many small blocks once had hundreds of tasks ready at a time, each of some microseconds. Whoever wrote to the
/// intent log meanwhile waited for all of them at each of its steps.
#[test]
fn others_have_their_turn_beside_the_sync_of_small_blocks() {
    run(3, |handle| async move {
        const BLOCKS: usize = 8192;
        let mut rig = Rig::new(&handle, ObjsetType::ZFS, options())
            .await
            .expect("a new objset");
        rig.store.write_at_once();
        let tx = rig
            .services
            .clock
            .begin(TxWeight::unthrottled())
            .await
            .expect("open");
        let spec = AllocSpec::new(ObjectType::PLAIN_FILE_CONTENTS).block_size(512);
        let object = rig.os.allocate(spec, &tx).await.expect("allocates");
        let data = vec![1; BLOCKS * 512];
        rig.os.write(object, 0, &data, &tx).await.expect("writes");
        drop(tx);
        let (turns, over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let bystander = {
            let (handle, turns, over) = (handle.clone(), turns.clone(), over.clone());
            handle.clone().spawn("a bystander", async move {
                while !over.get() {
                    turns.set(turns.get() + 1);
                    handle.yield_now().await;
                }
            })
        };
        let txg = rig.services.clock.quiesce_next().await;
        rig.os.sync(txg, 1, &mut rig.ledger).await.expect("syncs");
        over.set(true);
        bystander.await;
        rig.services.clock.synced(txg);
        let turns: usize = turns.get();
        assert!(turns > BLOCKS / 24, "{turns} turns");
    });
}
