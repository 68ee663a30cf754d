//! Clones of blocks: the tables that count their references, and what becomes of a block that is cloned, overwritten and freed.
//!
//! A log that names blocks of other files, as OpenZFS logs a clone: the claim holds them, the replay reads them though
//! their owner has gone, and nothing is left of them afterwards.

use dmu::{Cloneable, Traversal, TraverseOptions, zap};
use dsl::property::DatasetKind;
use dsl::{Dataset, Estimate, NewDataset};
use ondisk::brt::BrtVdevPhys;
use ondisk::bytes::put_u64;
use ondisk::zil_record::{CloneRange, record_kind};
use ondisk::{BlockPointer, ObjectId, Txg};
use pool::{Pool, PropertyValue};
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
        let pool = new_pool(&handle).await;
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

/// Makes a pool.
async fn new_pool(handle: &runtime::Handle) -> Pool {
    let pool = Pool::create(handle, spec(mirror()), empty_root).await;
    pool.expect("create the pool")
}

/// Writes an object of a few blocks, and has it on disk.
async fn source(pool: &Pool, dataset: &Dataset) -> ObjectId {
    let object = make(dataset, BLOCK).await;
    let begun = dataset.begin(Estimate::bytes(1 << 20)).await;
    let tx = begun.expect("begin");
    let written = dataset.objset().write(object, 0, &bytes(), &tx).await;
    written.expect("write");
    drop(tx);
    pool.sync().await.expect("sync");
    object
}

/// Clones all blocks of an object into another one.
async fn clone_all(dataset: &Dataset, from: ObjectId, to: ObjectId, first: u64) {
    let os = dataset.objset();
    let found = os.cloneable(from, 0, BLOCKS as u64).await;
    let Cloneable::Blocks(blocks) = found.expect("pointers") else {
        panic!("the source is on disk");
    };
    assert!(blocks.iter().all(|bp| !bp.is_hole()), "blocks of data");
    let begun = dataset.begin(Estimate::bytes(1 << 20)).await;
    let tx = begun.expect("begin");
    let cloned = os.clone_blocks(to, first, &blocks, &tx).await;
    cloned.expect("clone");
}

async fn free(dataset: &Dataset, object: ObjectId) {
    let begun = dataset.begin(Estimate::bytes(1 << 20)).await;
    let tx = begun.expect("begin");
    let freed = dataset.objset().free_object(object, &tx).await;
    freed.expect("free");
}

async fn holds(dataset: &Dataset, object: ObjectId, offset: usize) -> bool {
    let os = dataset.objset();
    let read = os.read(object, offset as u64, BLOCK * BLOCKS);
    read.await.expect("read")[..] == bytes()[..]
}

#[test]
fn a_new_pool_counts_its_first_clones() {
    let world = world(4_402, 2, 136 * MIB);
    let (one, two) = run(&world, async |handle| {
        let pool = new_pool(&handle).await;
        let root = root(&pool).await;
        let from = source(&pool, &root).await;
        let (one, two) = (make(&root, BLOCK).await, make(&root, BLOCK).await);
        // Several clones of one block in one txg, one of them over the other's blocks, and a clone of a clone.
        clone_all(&root, from, one, 0).await;
        clone_all(&root, from, one, 2).await;
        clone_all(&root, from, two, 0).await;
        clone_all(&root, two, two, BLOCKS as u64).await;
        assert!(holds(&root, one, 2 * BLOCK).await, "readable at once");
        assert!(holds(&root, two, BLOCK * BLOCKS).await, "readable at once");
        pool.sync().await.expect("sync");
        assert_eq!(
            pool.hierarchy().features().refcount("block_cloning"),
            Some(1)
        );
        // 2 + 5 blocks of one, 5 + 5 of two.
        let per_block = saved(&pool).await / 17;
        assert_eq!(saved(&pool).await, 17 * per_block);
        assert!(per_block >= BLOCK as u64, "{per_block}");
        pool.abandon();
        (one, two)
    });
    zdb_clean(&world, "with clones");
    run(&world, async |handle| {
        let pool = import(&handle, 2).await;
        let root = root(&pool).await;
        assert!(holds(&root, one, 2 * BLOCK).await);
        assert!(holds(&root, two, 0).await);
        assert!(holds(&root, two, BLOCK * BLOCKS).await);
        free(&root, one).await;
        pool.sync().await.expect("sync");
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "with fewer clones");
    run(&world, async |handle| {
        let pool = import(&handle, 2).await;
        let root = root(&pool).await;
        free(&root, two).await;
        pool.sync().await.expect("sync");
        assert_eq!(saved(&pool).await, 0);
        assert_eq!(
            pool.hierarchy().features().refcount("block_cloning"),
            Some(0)
        );
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "without clones");
}

#[test]
fn a_block_is_cloned_and_freed_in_one_txg() {
    let world = world(4_403, 2, 136 * MIB);
    let to = run(&world, async |handle| {
        let pool = new_pool(&handle).await;
        let root = root(&pool).await;
        let from = source(&pool, &root).await;
        // What is cloned and lost before the sync has no reference.
        let gone = make(&root, BLOCK).await;
        clone_all(&root, from, gone, 0).await;
        free(&root, gone).await;
        let over = make(&root, BLOCK).await;
        clone_all(&root, from, over, 0).await;
        let begun = root.begin(Estimate::bytes(1 << 20)).await;
        let tx = begun.expect("begin");
        let os = root.objset();
        let whole = vec![7; BLOCK];
        os.write(over, 0, &whole, &tx).await.expect("write");
        os.write(over, BLOCK as u64 + 9, b"in part", &tx)
            .await
            .expect("write");
        os.free_range(over, 2 * BLOCK as u64, 3 * BLOCK as u64, &tx)
            .await
            .expect("free");
        drop(tx);
        pool.sync().await.expect("sync");
        assert_eq!(saved(&pool).await, 0);
        assert_eq!(
            pool.hierarchy().features().refcount("block_cloning"),
            Some(0)
        );
        let now = os.read(over, 0, 3 * BLOCK).await.expect("read");
        let mut expected = bytes()[..3 * BLOCK].to_vec();
        expected[..BLOCK].fill(7);
        expected[BLOCK + 9..BLOCK + 16].copy_from_slice(b"in part");
        expected[2 * BLOCK..].fill(0);
        assert!(now[..] == expected[..]);
        // The first owner goes in the txg of the clone: there is one reference, and it is not an extra one.
        let to = make(&root, BLOCK).await;
        clone_all(&root, from, to, 0).await;
        free(&root, from).await;
        pool.sync().await.expect("sync");
        assert_eq!(saved(&pool).await, 0);
        assert!(holds(&root, to, 0).await);
        pool.sync().await.expect("sync");
        pool.abandon();
        to
    });
    zdb_clean(&world, "after clones and frees in one txg");
    run(&world, async |handle| {
        let pool = import(&handle, 2).await;
        let root = root(&pool).await;
        assert!(holds(&root, to, 0).await);
        free(&root, to).await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "after the last reference");
}

#[test]
fn a_block_of_this_txg_is_cloned_when_it_is_on_disk() {
    let world = world(4_404, 2, 136 * MIB);
    run(&world, async |handle| {
        let pool = new_pool(&handle).await;
        let root = root(&pool).await;
        let from = source(&pool, &root).await;
        let begun = root.begin(Estimate::bytes(1 << 20)).await;
        let tx = begun.expect("begin");
        let os = root.objset();
        os.write(from, 5, b"new", &tx).await.expect("write");
        let found = os.cloneable(from, 0, 2).await.expect("pointers");
        assert_eq!(found, Cloneable::NotBefore(tx.txg()));
        let found = os.cloneable(from, 1, 2).await.expect("pointers");
        assert!(matches!(found, Cloneable::Blocks(_)));
        drop(tx);
        pool.sync().await.expect("sync");
        let found = os.cloneable(from, 0, 2).await.expect("pointers");
        assert!(matches!(found, Cloneable::Blocks(_)));
    });
}

#[test]
fn counts_that_contradict_the_entries_are_made_again() {
    let world = world(4_405, 2, 136 * MIB);
    let objects = run(&world, async |handle| {
        let pool = new_pool(&handle).await;
        let root = root(&pool).await;
        let from = source(&pool, &root).await;
        let to = make(&root, BLOCK).await;
        clone_all(&root, from, to, 0).await;
        pool.sync().await.expect("sync");
        // As a table whose counts were lost.
        let mos = pool.mos().clone();
        let key = "com.fudosecurity:brt:vdev:0";
        let found = zap::lookup_u64(&mos, ObjectId(1), key).await;
        let table = ObjectId(found.expect("read").expect("a table"));
        let bonus = mos.bonus(table).await.expect("bonus");
        let mut header = BrtVdevPhys::decode(&bonus.bytes).expect("a header");
        header.total = 0;
        let counts = mos.object_info(table).await.expect("info").block_size;
        let tx = root.begin(Estimate::bytes(1 << 20)).await.expect("begin");
        let zeros = vec![0; counts as usize];
        mos.write(table, 0, &zeros, &tx).await.expect("write");
        mos.set_bonus(table, bonus.bonus_type, &header.encode(), &tx)
            .await
            .expect("bonus");
        drop(tx);
        pool.sync().await.expect("sync");
        pool.abandon();
        [from, to]
    });
    run(&world, async |handle| {
        let pool = import(&handle, 2).await;
        let root = root(&pool).await;
        for (freed, left) in objects.into_iter().zip([BLOCKS, 0]) {
            let before = saved(&pool).await;
            free(&root, freed).await;
            pool.sync().await.expect("a free does not fail");
            assert_eq!(before == 0, left == 0, "references are given up");
        }
        assert_eq!(saved(&pool).await, 0);
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "after the counts were made again");
}
