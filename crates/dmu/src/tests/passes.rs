//! Several passes over one txg, the clock of txgs, and usage accounting.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ondisk::{ObjectType, ObjsetType, Txg};

use super::driver::Random;
use super::rig::{Rig, options, run};
use crate::zap::{self, ZapSpec};
use crate::{
    AllocSpec, DmuError, NoLedger, Traversal, TraverseOptions, TxWeight, TxgClock, TxgOptions,
};

/// As the meta-objset does: later passes change what the first one wrote, in the same txg, and its blocks are rewritten in
/// place. Births and kills must still be what is reachable.
#[test]
fn later_passes_rewrite_in_place() {
    for seed in 0..10 {
        run(seed, |handle| async move {
            let mut rig = Rig::new(&handle, ObjsetType::META, options())
                .await
                .expect("a new objset");
            let os = rig.os.clone();
            let mut random = Random(seed);
            let tx = rig
                .services
                .clock
                .begin(TxWeight::default())
                .await
                .expect("open");
            let mut files = Vec::new();
            for _ in 0..5 {
                let spec = AllocSpec::new(ObjectType::SPACE_MAP)
                    .block_size(4096)
                    .indirect_shift(12)
                    .bonus(ObjectType::SPACE_MAP_HEADER, 24);
                files.push((
                    os.allocate(spec, &tx).await.expect("allocates"),
                    vec![0_u8; 200_000],
                ));
            }
            let names = zap::create(&os, &ZapSpec::new(ObjectType::OBJECT_DIRECTORY), &tx)
                .await
                .expect("creates");
            drop(tx);
            let mut numbers = BTreeMap::new();
            for _ in 0..12 {
                let txg = rig.services.clock.quiesce_next().await;
                let tx = rig.services.clock.syncing_tx(txg);
                let mut root = os.root();
                for pass in 1..=4 {
                    for (object, bytes) in &mut files {
                        for _ in 0..=random.below(3) {
                            let at = usize::try_from(random.below(190_000)).expect("small");
                            let len = usize::try_from(1 + random.below(9000)).expect("small");
                            bytes[at..at + len].fill(random.next().to_le_bytes()[0]);
                            os.write(*object, at as u64, &bytes[at..at + len], &tx)
                                .await
                                .expect("writes");
                        }
                        if random.below(4) == 0 {
                            let at = usize::try_from(random.below(190_000)).expect("small");
                            os.free_range(*object, at as u64, 10_000, &tx)
                                .await
                                .expect("frees");
                            bytes[at..at + 10_000].fill(0);
                        }
                    }
                    for _ in 0..30 {
                        let n = random.below(300);
                        zap::update_u64(&os, names, format!("{n}"), n * u64::from(pass), &tx)
                            .await
                            .expect("updates");
                        numbers.insert(n, n * u64::from(pass));
                    }
                    root = os.sync(txg, pass, &mut rig.ledger).await.expect("syncs");
                    assert!(!os.is_dirty(txg));
                    rig.check(root).await.expect("sound after each pass");
                }
                assert_eq!(
                    os.sync(txg, 5, &mut NoLedger).await.expect("nothing to do"),
                    root
                );
                rig.services.clock.synced(txg);
                rig.ledger.synced();
                let apart = rig.reopened(root).await.expect("opens");
                for (object, bytes) in &files {
                    assert!(
                        apart.read(*object, 0, bytes.len()).await.expect("reads")[..] == bytes[..]
                    );
                    assert!(
                        os.read(*object, 0, bytes.len()).await.expect("reads")[..] == bytes[..]
                    );
                }
                for (n, want) in &numbers {
                    assert_eq!(
                        zap::lookup_u64(&apart, names, format!("{n}"))
                            .await
                            .expect("found"),
                        Some(*want)
                    );
                }
            }
        });
    }
}

/// The first indirect block that the free of an object reads is lost; those beside it are being read. The sync reports the
/// failure when all of them have ended: a read that outlives its sync would meet a pool that is suspended or closed, and what
/// it frees would reach no ledger.
#[test]
fn a_failed_free_of_a_subtree_ends_with_all_its_reads() {
    for seed in 0..10 {
        run(seed, |handle| async move {
            let mut rig = Rig::new(&handle, ObjsetType::ZFS, options())
                .await
                .expect("a new objset");
            let clock = rig.services.clock.clone();
            let tx = clock.begin(TxWeight::default()).await.expect("open");
            let spec = AllocSpec::new(ObjectType::PLAIN_FILE_CONTENTS)
                .block_size(512)
                .indirect_shift(12);
            let object = rig.os.allocate(spec, &tx).await.expect("allocates");
            // 32 pointers an indirect block: 16 of level 1 below one of level 2.
            let bytes = vec![1; 512 * 32 * 16];
            rig.os.write(object, 0, &bytes, &tx).await.expect("writes");
            drop(tx);
            let root = rig.sync().await.expect("syncs");
            let mut traversal = Traversal::new(&rig.services, root, TraverseOptions::default());
            let lost = loop {
                let item = traversal
                    .next()
                    .await
                    .expect("reads")
                    .expect("a level-1 block");
                if item.object == object && item.level == 1 {
                    break item.bp;
                }
            };
            rig.store.lose(&lost);
            let tx = clock.begin(TxWeight::default()).await.expect("open");
            rig.os.free_object(object, &tx).await.expect("frees");
            drop(tx);
            let txg = clock.quiesce_next().await;
            let result = rig.os.sync(txg, 1, &mut rig.ledger).await;
            assert!(
                matches!(result, Err(DmuError::Read { level: 1, .. })),
                "{result:?}"
            );
            let reads = rig.store.reads();
            for _ in 0..100 {
                handle.yield_now().await;
            }
            assert_eq!(rig.store.reads(), reads, "nothing is read after the sync");
        });
    }
}

#[test]
fn groups_wait_for_their_holders_and_waiters_for_groups() {
    run(2, |handle| async move {
        let clock = TxgClock::new(handle.clone(), Txg(4), TxgOptions::default());
        let first = clock.begin(TxWeight::default()).await.expect("open");
        let waiter = {
            let clock = clock.clone();
            handle.spawn("waiter", async move { clock.wait_synced(Txg(4)).await })
        };
        assert!(
            clock.wait_for_work(Duration::from_secs(5)).await,
            "somebody waits"
        );
        let quiesced = {
            let clock = clock.clone();
            handle.spawn("quiesce", async move { clock.quiesce_next().await })
        };
        while clock.open_txg() == Txg(4) {
            handle.yield_now().await;
        }
        let second = clock.begin(TxWeight::default()).await.expect("open");
        assert_eq!((first.txg(), second.txg()), (Txg(4), Txg(5)));
        for _ in 0..50 {
            handle.yield_now().await;
        }
        assert_eq!(clock.syncing_txg(), None, "txg 4 is still held");
        drop(first);
        assert_eq!(quiesced.await, Txg(4));
        assert!(!waiter.is_finished());
        clock.synced(Txg(4));
        waiter.await.expect("synced");
        assert!(!clock.is_sync_wanted());
        drop(second);
        clock.stop("the test is over");
        assert!(matches!(
            clock.begin(TxWeight::default()).await,
            Err(DmuError::Stopped { .. })
        ));
        assert!(matches!(
            clock.wait_synced(Txg(9)).await,
            Err(DmuError::Stopped { .. })
        ));
    });
}

/// What fits the newest version of an object may not fit that of an older txg that is still open: its dnode on disk would be
/// one that cannot be read.
#[test]
fn a_dnode_has_room_for_bonus_and_spill_in_each_group() {
    run(5, |handle| async move {
        let mut rig = Rig::new(&handle, ObjsetType::ZFS, options())
            .await
            .expect("a new objset");
        let (os, clock) = (rig.os.clone(), rig.services.clock.clone());
        let begin = || clock.begin(TxWeight::unthrottled());
        let (small, large) = ([1; 100], [2; 320]);
        let spill = [3; 512];
        let tx = begin().await.expect("open");
        let spec = || AllocSpec::new(ObjectType::PLAIN_FILE_CONTENTS).bonus(ObjectType::SA, 0);
        let [one, other] = [
            os.allocate(spec(), &tx).await.expect("allocates"),
            os.allocate(spec(), &tx).await.expect("allocates"),
        ];
        for object in [one, other] {
            let set = os.set_bonus(object, ObjectType::SA, &small, &tx).await;
            set.expect("fits");
        }
        os.set_spill(one, Some(&spill), &tx).await.expect("fits");
        drop(tx);
        rig.sync().await.expect("syncs");

        let older = begin().await.expect("open");
        let set = os.set_bonus(other, ObjectType::SA, &large, &older).await;
        set.expect("fits without a spill block");
        let quiesced = {
            let clock = clock.clone();
            handle.spawn("quiesce", async move { clock.quiesce_next().await })
        };
        while clock.open_txg() == older.txg() {
            handle.yield_now().await;
        }
        let newer = begin().await.expect("open");
        os.set_spill(one, None, &newer).await.expect("is removed");
        let set = os.set_bonus(other, ObjectType::SA, &small, &newer).await;
        set.expect("fits");

        let too_large = |result| matches!(result, Err(DmuError::TooLarge { .. }));
        let bonus = os.set_bonus(one, ObjectType::SA, &large, &older).await;
        assert!(too_large(bonus), "beside the spill block of the older txg");
        let beside = os.set_spill(other, Some(&spill), &older).await;
        assert!(too_large(beside), "beside the bonus of the older txg");
        os.set_spill(one, None, &older)
            .await
            .expect("is removed there, too");
        let set = os.set_bonus(one, ObjectType::SA, &large, &older).await;
        set.expect("fits in both");
        drop((older, newer));

        let txg = quiesced.await;
        let root = os.sync(txg, 1, &mut rig.ledger).await.expect("syncs");
        clock.synced(txg);
        rig.ledger.synced();
        let apart = rig.reopened(root).await.expect("opens");
        for object in [one, other] {
            let bonus = apart.bonus(object).await.expect("is readable");
            assert_eq!(bonus.bytes[..], large[..]);
            assert_eq!(apart.spill(object).await.expect("is readable"), None);
        }
        rig.sync().await.expect("syncs the newer txg");
    });
}

#[test]
fn a_group_is_large_by_what_changed_or_by_half_the_room() {
    run(4, |handle| async move {
        let options = TxgOptions {
            dirty_bytes_max: 1000 << 10,
            dirty_bytes_sync: 40 << 10,
            ..TxgOptions::default()
        };
        let clock = TxgClock::new(handle.clone(), Txg(4), options);
        let timeout = Duration::from_secs(5);
        let waits = || {
            let (clock, handle) = (clock.clone(), handle.clone());
            async move {
                let began = handle.now();
                clock.wait_for_work(timeout).await;
                let early = handle.now().since(began) < timeout;
                let txg = clock.quiesce_next().await;
                clock.sub_dirty(txg, u64::MAX);
                clock.synced(txg);
                early
            }
        };
        let change = |blocks: u64, times: u64| {
            let tx = clock.begin_now().expect("open");
            for _ in 0..blocks {
                tx.add_block(16 << 10);
            }
            for _ in 0..blocks * times {
                tx.add_changed(512);
            }
        };
        change(20, 1);
        assert!(!waits().await, "a third of the room, and little changed");
        change(2, 50);
        assert!(waits().await, "the same bytes again and again");
        change(30, 0);
        assert!(waits().await, "little changed, but half the room");
        change(1, 10);
        assert!(!waits().await, "each txg counts for itself");
    });
}

#[test]
fn the_throttle_slows_and_then_stops_writers() {
    run(3, |handle| async move {
        let options = TxgOptions {
            dirty_bytes_max: 1000,
            dirty_bytes_sync: 400,
            ..TxgOptions::default()
        };
        let clock = TxgClock::new(handle.clone(), Txg(4), options);
        let clock = Rc::new(clock);
        let began = handle.now();
        drop(clock.begin(TxWeight::default()).await.expect("open"));
        assert_eq!(handle.now(), began, "no delay while little is dirty");
        clock.add_dirty(Txg(4), 700);
        drop(clock.begin(TxWeight::default()).await.expect("open"));
        let light = handle.now().since(began);
        assert!(light > Duration::ZERO, "delayed above 60 %");
        clock.add_dirty(Txg(4), 290);
        let before = handle.now();
        drop(clock.begin(TxWeight::default()).await.expect("open"));
        assert!(
            handle.now().since(before) > light,
            "and more so near the limit"
        );
        clock.add_dirty(Txg(4), 10);
        let blocked = {
            let clock = Rc::clone(&clock);
            handle.spawn("writer", async move {
                clock.begin(TxWeight::default()).await.map(|tx| tx.txg())
            })
        };
        while !clock.is_sync_wanted() {
            handle.yield_now().await;
        }
        assert!(!blocked.is_finished());
        let freed = clock
            .begin(TxWeight::unthrottled())
            .await
            .expect("frees are not held up");
        drop(freed);
        let txg = clock.quiesce_next().await;
        clock.sub_dirty(txg, 900);
        assert_eq!(blocked.await.expect("goes on"), Txg(5));
        clock.synced(txg);
        assert_eq!(clock.dirty_bytes_total(), 0);
    });
}
