//! A log that names blocks of other files, as OpenZFS logs a clone: the claim holds them, the replay reads them though
//! their owner has gone, and nothing is left of them afterwards.

use dmu::{Traversal, TraverseOptions};
use dsl::property::DatasetKind;
use dsl::{Dataset, Estimate, NewDataset};
use ondisk::bytes::put_u64;
use ondisk::zil_record::{CloneRange, record_kind};
use ondisk::{BlockPointer, ObjectId, Txg};
use pool::{Pool, PoolSpec, PropertyValue};
use zil::{Intent, ItxKind};

use crate::support::*;
use crate::workload::{make, root};

const BLOCK: usize = 16 << 10;
const BLOCKS: usize = 5;

fn bytes() -> Vec<u8> {
    let mut rng = world::Rng::new(77);
    (0..BLOCK * BLOCKS)
        .map(|_| u8::try_from(rng.below(256)).expect("a byte"))
        .collect()
}

async fn blocks_of(dataset: &Dataset, object: ObjectId) -> Vec<BlockPointer> {
    let os = dataset.objset();
    let mut all = Traversal::new(os.services(), os.root(), TraverseOptions::default());
    let mut found = Vec::new();
    while let Some(item) = all.next().await.expect("traverse") {
        if item.object == object && item.level == 0 {
            found.push(item.bp);
        }
    }
    found
}

async fn saved(pool: &Pool) -> u64 {
    match pool
        .property("bclonesaved")
        .await
        .expect("a property")
        .value
    {
        PropertyValue::Number(number) => number,
        other => panic!("{other:?}"),
    }
}

/// The body of a record that clones these blocks to the front of an object.
/// A clone of a clone of the same txg has that txg as its logical birth.
fn body(object: ObjectId, blocks: &[BlockPointer], birth: Txg) -> Vec<u8> {
    let mut body = vec![0; 40];
    let size = BLOCK as u64;
    let count = blocks.len() as u64;
    let words = [object.0, 0, count * size, size, count];
    for (n, word) in words.into_iter().enumerate() {
        put_u64(&mut body, 8 * n, word);
    }
    for bp in blocks {
        let mut clone = *bp;
        clone.set_birth(birth);
        clone.set_physical_birth(bp.physical_birth());
        body.extend_from_slice(&clone.encode());
    }
    body
}

#[test]
fn a_log_holds_the_blocks_that_it_names() {
    // More than a region of the table is behind the last metaslab of such disks.
    let world = world(4_401, 2, 136 * MIB);
    run(&world, async |handle| {
        let with_clones = PoolSpec {
            properties: vec![("feature@block_cloning".into(), "enabled".into())],
            ..spec(mirror())
        };
        let pool = Pool::create(&handle, with_clones, empty_root).await;
        let pool = pool.expect("create the pool");
        let new = NewDataset {
            name: "tank/from".into(),
            kind: DatasetKind::Filesystem,
            settings: Vec::new(),
            creator: 0,
            key: None,
        };
        pool.hierarchy()
            .create_dataset(new, empty_root)
            .await
            .expect("create");
        let from = pool.hierarchy().dataset("tank/from").await.expect("there");
        let to = root(&pool).await;
        let (source, target) = (make(&from, BLOCK).await, make(&to, BLOCK).await);
        let tx = from.begin(Estimate::bytes(1 << 20)).await.expect("begin");
        from.objset()
            .write(source, 0, &bytes(), &tx)
            .await
            .expect("write");
        drop(tx);
        pool.sync().await.expect("sync");
        let blocks = blocks_of(&from, source).await;
        assert_eq!(blocks.len(), BLOCKS);
        let log = to.log().expect("a head has a log");
        // The first commit of a log waits for a txg; the second one's record is in the log alone. One block twice.
        for named in [&blocks[..1], &blocks[..]] {
            let tx = to.begin(Estimate::bytes(1 << 20)).await.expect("begin");
            let kind = record_kind::CLONE_RANGE;
            let intent = Intent::Record {
                kind,
                body: body(target, named, tx.txg()),
            };
            log.append(ItxKind::Sync, intent, &tx);
            drop(tx);
            log.commit(None).await.expect("commit");
        }
        assert!(log.stats().records > 0);
        drop((from, to, log));
        pool.abandon();
    });
    run(&world, async |handle| {
        let pool = import(&handle, 2).await;
        let held = saved(&pool).await;
        let size = (BLOCK * BLOCKS) as u64;
        assert!(held >= size, "{held}");
        pool.sync().await.expect("sync");
        pool.abandon();
    });
    zdb_clean(&world, "after the claim of a clone");
    run(&world, async |handle| {
        let pool = import(&handle, 2).await;
        let held = saved(&pool).await;
        // Their owner goes, and others take what room there is.
        let from = pool.hierarchy().dataset("tank/from").await.expect("there");
        let mut gone = false;
        for object in (1..64).map(ObjectId) {
            if blocks_of(&from, object).await.len() == BLOCKS {
                let tx = from.begin(Estimate::bytes(1 << 20)).await.expect("begin");
                from.objset().free_object(object, &tx).await.expect("free");
                gone = true;
                break;
            }
        }
        assert!(gone, "the source was found");
        for _ in 0..6 {
            let other = make(&from, BLOCK).await;
            let tx = from.begin(Estimate::bytes(1 << 20)).await.expect("begin");
            let noise = vec![0x5a; BLOCK * BLOCKS];
            from.objset()
                .write(other, 0, &noise, &tx)
                .await
                .expect("write");
            drop(tx);
            pool.sync().await.expect("sync");
        }
        assert!(
            saved(&pool).await < held,
            "the owner's references are given up"
        );
        let to = root(&pool).await;
        let log = to.log().expect("a log");
        assert!(log.needs_replay());
        let mut stream = log.replay();
        let mut replayed = 0;
        while let Some(record) = stream.next().await.expect("a record") {
            let range = CloneRange::decode(&record.body).expect("as it was written");
            for (number, expected) in bytes().chunks(BLOCK).take(range.blocks.len()).enumerate() {
                let data = stream.cloned_block(&range, number).await.expect("held");
                assert!(data[..] == *expected, "block {number}");
                replayed += 1;
            }
        }
        assert!(replayed >= BLOCKS, "{replayed}");
        stream.finish().await.expect("finish");
        drop((from, to, log));
        pool.sync().await.expect("sync");
        assert_eq!(saved(&pool).await, 0, "all references are given up");
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "after the replay of a clone");
}
