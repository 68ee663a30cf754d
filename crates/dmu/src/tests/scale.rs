//! Many objects, large sparse objects: what must stay cheap, measured in blocks read.

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
