//! Goal: what a log acknowledged is found at the next import or nothing is claimed. Method: virtual devices that do not
//! give a sector, give other bytes, or are away.

use dmu::AllocSpec;
use dsl::{Dataset, Estimate};
use ondisk::zil::record_kind;
use ondisk::{ObjectId, ObjectType};
use pool::{ImportPolicy, Pool, PoolError};
use runtime::{Handle, IoBuf};
use world::{DiskModel, World};
use zil::{Intent, Scope};

use crate::support::*;
use crate::workload::root;

const BLOCK: usize = 128 << 10;
/// Labels before the data of a device.
const DATA_START: u64 = 4 << 20;

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    world::Rng::new(seed).fill(&mut bytes);
    bytes
}

async fn make(dataset: &Dataset) -> ObjectId {
    let tx = dataset
        .begin(Estimate::bytes(1 << 20))
        .await
        .expect("begin");
    let block = u32::try_from(BLOCK).expect("small");
    let spec = AllocSpec::new(ObjectType::PLAIN_OTHER).block_size(block);
    let object = dataset.objset().allocate(spec, &tx).await;
    object.expect("allocate")
}

/// Writes a record's worth of bytes and takes note of it in the log. Returns what was written.
async fn write(dataset: &Dataset, object: ObjectId, len: usize, seed: u64) -> Vec<u8> {
    let tx = dataset
        .begin(Estimate::bytes(1 << 20))
        .await
        .expect("begin");
    let bytes = noise(len, seed);
    let objset = dataset.objset();
    objset.write(object, 0, &bytes, &tx).await.expect("write");
    let log = dataset.log().expect("a head has a log");
    let intent = Intent::Write {
        object,
        offset: 0,
        data: IoBuf::copy_from(&bytes),
        block: u32::try_from(BLOCK).expect("small"),
    };
    log.append(Scope::Object(object), intent, &tx);
    bytes
}

async fn logged(dataset: &Dataset, object: ObjectId, len: usize, seed: u64) -> Vec<u8> {
    let bytes = write(dataset, object, len, seed).await;
    let log = dataset.log().expect("a log");
    log.commit(None).await.expect("commit");
    bytes
}

/// Where a device has bytes that begin like these.
fn place_of(world: &World, disk: usize, bytes: &[u8]) -> u64 {
    let images = world.images();
    let image = &images[&path(disk)];
    let mut block = vec![0; 64 << 10];
    let mut at = DATA_START;
    while at + block.len() as u64 <= image.size() {
        image.read(at, &mut block);
        let mut sectors = block.chunks(512);
        if let Some(sector) = sectors.position(|sector| *sector == bytes[..512]) {
            return at + 512 * sector as u64;
        }
        at += block.len() as u64;
    }
    panic!("the bytes are not on {}", path(disk).display());
}

async fn try_import(handle: &Handle, disks: usize, missing_logs: bool) -> Result<Pool, PoolError> {
    let found = find(handle, disks).await;
    let policy = ImportPolicy {
        missing_logs,
        ..policy()
    };
    Pool::import(handle, &found[0], policy).await
}

/// The kinds of the records that wait for their replay.
async fn records(pool: &Pool) -> Vec<u64> {
    let dataset = root(pool).await;
    let mut stream = dataset.log().expect("a log").replay();
    let mut kinds = Vec::new();
    while let Some(record) = stream.next().await.expect("a record") {
        kinds.push(record.kind);
    }
    kinds
}

fn refused(result: Result<Pool, PoolError>) -> String {
    match result {
        Err(PoolError::DirtyIntentLog { reason, .. }) => reason,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("the pool is imported"),
    }
}

#[test]
fn data_that_a_device_does_not_give_refuses_the_import() {
    let world = world(71, 1, 128 * MIB);
    let mut data = Vec::new();
    run(&world, async |handle| {
        let pool = create(&handle, single()).await;
        let dataset = root(&pool).await;
        let object = make(&dataset).await;
        // The first commit of a log waits for a group.
        logged(&dataset, object, 512, 1).await;
        data = logged(&dataset, object, BLOCK, 2).await;
        assert_eq!(dataset.log().expect("a log").stats().indirect, 1);
        pool.abandon();
    });
    let place = place_of(&world, 0, &data);
    world.add_latent_error(path(0), place + 4096);
    for missing_logs in [false, true] {
        run(&world, async |handle| {
            let reason = refused(try_import(&handle, 1, missing_logs).await);
            assert!(reason.contains("cannot be read"), "{reason}");
        });
    }
    zdb_clean(&world, "a log that is not claimed");
    // Read by a device that can, it is all there.
    let image = world.images()[&path(0)].clone();
    let world = World::new(73);
    world.add_disk_with(path(0), DiskModel::new(image.size()), image);
    run(&world, async |handle| {
        let pool = try_import(&handle, 1, false).await.expect("import");
        assert_eq!(records(&pool).await, [record_kind::WRITE]);
        pool.abandon();
    });
}

#[test]
fn data_that_was_never_written_ends_the_log() {
    let world = world(72, 1, 128 * MIB);
    let mut data = Vec::new();
    run(&world, async |handle| {
        let pool = create(&handle, single()).await;
        let dataset = root(&pool).await;
        let object = make(&dataset).await;
        logged(&dataset, object, 512, 1).await;
        logged(&dataset, object, 1024, 2).await;
        data = logged(&dataset, object, BLOCK, 3).await;
        pool.abandon();
    });
    let place = place_of(&world, 0, &data);
    world.damage(path(0), place + 4096, &[0x5a; 512]);
    run(&world, async |handle| {
        let pool = try_import(&handle, 1, false).await.expect("import");
        assert_eq!(records(&pool).await, [record_kind::WRITE]);
        let status = pool.status();
        assert_eq!(status.data_errors, 0, "{status:?}");
        pool.abandon();
    });
}
