//! Goal: what a log acknowledged is found at the next import or nothing is claimed. Method: virtual devices that do not
//! give a sector, give other bytes, fail writes, or are away; and power cuts while several batches are under way.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use dsl::{Dataset, Estimate};
use ondisk::ObjectId;
use ondisk::zil_record::record_kind;
use pool::{ImportPolicy, Pool, PoolError, PoolSpec, VdevSpec};
use runtime::sync::Mutex;
use runtime::{Handle, IoBuf};
use world::{DiskModel, Ended, Faults, World};
use zil::{Intent, ItxKind};

use crate::support::*;
use crate::workload::{make, root};

const BLOCK: usize = 128 << 10;
/// Labels before the data of a device.
const DATA_START: u64 = 4 << 20;

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    world::Rng::new(seed).fill(&mut bytes);
    bytes
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
    log.append(ItxKind::Async(object), intent, &tx);
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
        let object = make(&dataset, BLOCK).await;
        // The first commit of a log waits for a txg.
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
        let object = make(&dataset, BLOCK).await;
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

/// Bytes of a numbered write; the number is also its place.
const NUMBERED: u64 = 512;

fn numbered(number: u64) -> Vec<u8> {
    let mut bytes = noise(512, number);
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Many writers of numbered bytes, each of which waits for the log after each write.
#[derive(Clone)]
struct ConcurrentWriters {
    object: ObjectId,
    last: Rc<Mutex<u64>>,
    /// The newest of those acknowledged.
    safe: Rc<Cell<u64>>,
    batches: Rc<RefCell<zil::ZilStats>>,
}

impl ConcurrentWriters {
    async fn start(dataset: &Dataset) -> Self {
        let object = make(dataset, BLOCK).await;
        // The first commit of a log waits for a txg, which the object is in too.
        logged(dataset, make(dataset, BLOCK).await, 512, 1).await;
        Self {
            object,
            last: Rc::new(Mutex::new("the number", 0)),
            safe: Rc::default(),
            batches: Rc::default(),
        }
    }

    async fn write(&self, dataset: &Dataset) -> Result<(), zil::ZilError> {
        let log = dataset.log().expect("a log");
        let estimate = Estimate::bytes(1 << 20);
        let (object, number) = {
            let mut last = self.last.lock().await;
            let tx = dataset.begin(estimate).await.expect("begin");
            let (object, number) = (self.object, *last + 1);
            *last = number;
            let (offset, bytes) = (number * NUMBERED, numbered(number));
            let written = dataset.objset().write(object, offset, &bytes, &tx).await;
            written.expect("write");
            let intent = Intent::Write {
                object,
                offset,
                data: IoBuf::from(bytes),
                block: 0,
            };
            log.append(ItxKind::Async(object), intent, &tx);
            (object, number)
        };
        log.commit(Some(object)).await?;
        self.safe.set(self.safe.get().max(number));
        *self.batches.borrow_mut() = log.stats();
        Ok(())
    }

    /// `many` write, each as often as `times`, with pauses.
    async fn work(&self, handle: &Handle, dataset: &Dataset, many: u64, times: u64) {
        let writers = (0..many).map(|writer| {
            let (crowd, handle, dataset) = (self.clone(), handle.clone(), dataset.clone());
            async move {
                for time in 0..times {
                    if crowd.write(&dataset).await.is_err() {
                        // The pool is suspended, and the power goes.
                        return;
                    }
                    let pause = world::Rng::new(writer * 1_000 + time).below(400);
                    handle.sleep(Duration::from_micros(pause)).await;
                }
            }
        });
        runtime::join_all(writers).await;
    }

    /// What there is after a cut: all numbers up to one, and that is none before what was acknowledged.
    async fn check(&self, pool: &Pool, what: &str) {
        let dataset = root(pool).await;
        let mut found = BTreeSet::new();
        let whole = dataset.objset().read(self.object, 0, 1 << 20).await;
        for (place, bytes) in whole.expect("read").chunks(512).enumerate() {
            if bytes == numbered(place as u64) {
                found.insert(place as u64);
            }
        }
        let synced = found.len();
        let mut stream = dataset.log().expect("a log").replay();
        while let Some(record) = stream.next().await.expect("a record") {
            let write = record.write().expect("only writes");
            if write.object == self.object {
                let number = write.offset / NUMBERED;
                assert_eq!(*write.data, *numbered(number), "{what}: bytes of {number}");
                found.insert(number);
            }
        }
        let count = found.len() as u64;
        let gap = (1..=count).find(|number| !found.contains(number));
        assert_eq!(gap, None, "{what}: {count} found, {synced} of them synced");
        let safe = self.safe.get();
        assert!(count >= safe, "{what}: {safe} is safe, {count} are found");
    }
}

#[test]
fn batches_under_way_at_a_power_cut_are_found_in_their_order() {
    let mut at_once = 0;
    for seed in 200..240 {
        let world = world(seed, 1, 128 * MIB);
        let mut rng = world.rng();
        let crowd = RefCell::new(None);
        let machine = world.boot();
        let inner = world.clone();
        let ended = world.run_on(&machine, async |handle| {
            let pool = create(&handle, single()).await;
            let dataset = root(&pool).await;
            let started = ConcurrentWriters::start(&dataset).await;
            *crowd.borrow_mut() = Some(started.clone());
            inner.plan_cut_after(Duration::from_micros(rng.below(40_000)));
            started.work(&handle, &dataset, 8, 1_000).await;
        });
        assert!(matches!(ended, Ended::PowerCut));
        drop(machine);
        let crowd = crowd.into_inner().expect("started");
        at_once += crowd.batches.borrow().overlapped;
        if seed % 8 == 0 {
            zdb_clean(&world, &format!("seed {seed}, before the import"));
        }
        run(&world, async |handle| {
            let pool = import(&handle, 1).await;
            crowd.check(&pool, &format!("seed {seed}")).await;
            pool.abandon();
        });
    }
    assert!(at_once > 100, "{at_once} batches began beside others");
}

/// Once several commits at a time are expected, the first of them waits for the others to share a batch.
#[test]
fn commits_of_the_same_moment_share_a_batch() {
    let world = world(74, 1, 128 * MIB);
    run(&world, async |handle| {
        let pool = create(&handle, single()).await;
        let dataset = root(&pool).await;
        let mut objects = Vec::new();
        for seed in 0..8 {
            let object = make(&dataset, BLOCK).await;
            logged(&dataset, object, 512, seed).await;
            objects.push(object);
        }
        let log = dataset.log().expect("a log");
        let mut batches = Vec::new();
        for round in 0..20 {
            let before = log.stats().batches;
            for &object in &objects {
                write(&dataset, object, 512, round).await;
            }
            let commits = objects.iter().map(|&object| log.commit(Some(object)));
            for committed in runtime::join_all(commits).await {
                committed.expect("commit");
            }
            batches.push(log.stats().batches - before);
        }
        assert!(batches[0] > 1, "the first went alone: {batches:?}");
        assert_eq!(batches[1..], [1; 19], "{batches:?}");
        pool.abandon();
    });
}

#[test]
fn what_follows_a_batch_that_failed_is_safe_with_its_group() {
    let (mut at_once, mut fallbacks) = (0, 0);
    for seed in 300..330 {
        let world = world(seed, 3, 128 * MIB);
        let mut rng = world.rng();
        let crowd = RefCell::new(None);
        let machine = world.boot();
        let inner = world.clone();
        let ended = world.run_on(&machine, async |handle| {
            let spec = PoolSpec {
                logs: vec![VdevSpec::Single(path(2))],
                ..spec(mirror())
            };
            let pool = Pool::create(&handle, spec, empty_root).await;
            let pool = pool.expect("create");
            let dataset = root(&pool).await;
            let started = ConcurrentWriters::start(&dataset).await;
            *crowd.borrow_mut() = Some(started.clone());
            inner.set_faults(
                path(2),
                Faults {
                    write_error: 300_000,
                    flush_error: if seed % 3 == 0 { 30_000 } else { 0 },
                    ..Faults::default()
                },
            );
            inner.plan_cut_after(Duration::from_micros(rng.below(400_000)));
            started.work(&handle, &dataset, 8, 10_000).await;
        });
        assert!(matches!(ended, Ended::PowerCut));
        drop(machine);
        world.set_faults(path(2), Faults::default());
        let crowd = crowd.into_inner().expect("started");
        at_once += crowd.batches.borrow().overlapped;
        fallbacks += crowd.batches.borrow().fallbacks;
        if seed % 8 == 0 {
            zdb_clean(&world, &format!("seed {seed}, before the import"));
        }
        run(&world, async |handle| {
            let pool = import(&handle, 3).await;
            crowd.check(&pool, &format!("seed {seed}")).await;
            pool.abandon();
        });
    }
    assert!(
        at_once > 50 && fallbacks > 10,
        "{at_once} batches began beside others, {fallbacks} fell back"
    );
}

#[test]
fn a_log_can_be_begun_at_once_where_an_empty_one_was_left() {
    let world = world(74, 1, 128 * MIB);
    run(&world, async |handle| {
        let pool = create(&handle, single()).await;
        let dataset = root(&pool).await;
        let object = make(&dataset, BLOCK).await;
        logged(&dataset, object, 512, 1).await;
        pool.sync().await.expect("sync");
        assert!(dataset.log().expect("a log").has_chain());
        pool.abandon();
    });
    run(&world, async |handle| {
        let pool = import(&handle, 1).await;
        let dataset = root(&pool).await;
        let object = make(&dataset, BLOCK).await;
        let began = handle.now();
        logged(&dataset, object, 512, 2).await;
        let took = handle.now().since(began);
        assert!(took < Duration::from_secs(30), "{took:?}");
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "a log begun anew");
}

/// A log device is dispensable: it can be taken out of service, the pool goes on without, also after another import, and uses
/// it again when it is back. What was acknowledged at any time is there.
#[test]
fn a_log_device_is_taken_out_of_service_and_put_back() {
    let world = world(79, 2, 128 * MIB);
    let mut written = Vec::new();
    let mut objects = Vec::new();
    run(&world, async |handle| {
        let mut spec = spec(single());
        spec.logs = vec![VdevSpec::Single(path(1))];
        let pool = Pool::create(&handle, spec, empty_root)
            .await
            .expect("create");
        let dataset = root(&pool).await;
        for seed in 0..3 {
            objects.push(make(&dataset, BLOCK).await);
            written.push(logged(&dataset, objects[seed], 4096, seed as u64).await);
        }
        let separate = |dataset: &Dataset| dataset.log().expect("a log").stats().separate.count;
        let before = separate(&dataset);
        assert!(before > 0, "blocks go to the log device");
        let device = pool.status().root.children[1].clone();
        assert!(device.is_log);
        pool.offline(device.guid, false).await.expect("offline");
        let status = pool.status();
        assert_eq!(status.root.health, pool::Health::Degraded);
        // The first commit of a log waits for a txg.
        written[1] = logged(&dataset, objects[1], 4096, 9).await;
        written[0] = logged(&dataset, objects[0], 4096, 10).await;
        assert_eq!(separate(&dataset), before, "it gets nothing");
        pool.abandon();
    });
    zdb_clean(&world, "without its log device");
    run(&world, async |handle| {
        let pool = try_import(&handle, 2, false).await.expect("import");
        let device = pool.status().root.children[1].clone();
        assert_eq!(device.health, pool::Health::Offline, "it stays so");
        let dataset = root(&pool).await;
        let mut stream = dataset.log().expect("a log").replay();
        let mut records = 0;
        while let Some(record) = stream.next().await.expect("a record") {
            assert_eq!(record.kind, record_kind::WRITE);
            records += 1;
        }
        assert_eq!(records, 1, "what was acknowledged after the last txg");
        let tx = dataset
            .begin(Estimate::bytes(1 << 20))
            .await
            .expect("begin");
        dataset
            .objset()
            .write(objects[0], 0, &written[0], &tx)
            .await
            .expect("write");
        drop(tx);
        stream.finish().await.expect("the log is freed");
        assert!(pool.online(device.guid).await.expect("online"));
        assert_eq!(pool.status().root.health, pool::Health::Online);
        written[1] = logged(&dataset, objects[1], 4096, 11).await;
        written[2] = logged(&dataset, objects[2], 4096, 12).await;
        let stats = dataset.log().expect("a log").stats();
        assert!(stats.separate.count > 0, "it is used again: {stats:?}");
        pool.sync().await.expect("sync");
        for (object, bytes) in objects.iter().zip(&written) {
            let found = dataset
                .objset()
                .read(*object, 0, bytes.len())
                .await
                .expect("read");
            assert_eq!(&found[..], &bytes[..]);
        }
        drop(dataset);
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "with its log device again");
}
