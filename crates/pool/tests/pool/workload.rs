//! A workload of whole objects in a dataset, with a model of what must be there after each txg.

use std::collections::BTreeMap;
use std::rc::Rc;

use dmu::AllocSpec;
use dsl::{Dataset, Estimate};
use ondisk::{ObjectId, ObjectType, Txg};
use pool::Pool;
use world::Rng;

use crate::support::*;

/// Objects and their bytes.
pub(crate) type Model = BTreeMap<u64, Vec<u8>>;

/// The model at the end of each txg.
#[derive(Default, Clone)]
pub(crate) struct Recorder {
    pub(crate) now: Model,
    pub(crate) by_txg: BTreeMap<u64, Rc<Model>>,
}

impl Recorder {
    fn record(&mut self, txg: Txg) {
        self.by_txg.insert(txg.0, Rc::new(self.now.clone()));
    }

    /// What must be there when the newest complete txg is `txg`.
    pub(crate) fn at(&self, txg: u64) -> Model {
        self.by_txg
            .range(..=txg)
            .next_back()
            .map(|(_, model)| (**model).clone())
            .unwrap_or_default()
    }

    /// Goes on from `txg`, the newest complete one after a power cut. Txgs have the numbers of those that were lost again,
    /// and one without a change records nothing: what the lost ones recorded must not be taken for theirs.
    pub(crate) fn roll_back(&mut self, txg: u64) {
        self.now = self.at(txg);
        self.by_txg.retain(|recorded, _| *recorded <= txg);
    }
}

#[test]
fn groups_that_were_lost_record_nothing() {
    let mut recorder = Recorder::default();
    recorder.now.insert(1, Vec::new());
    recorder.record(Txg(5));
    recorder.now.insert(2, Vec::new());
    recorder.record(Txg(9));
    recorder.roll_back(7);
    assert_eq!(Vec::from_iter(recorder.now.keys()), [&1]);
    assert_eq!(recorder.at(10), recorder.now, "9 was another txg since");
}

const LONGEST: u64 = 600_000;

/// One random change of the dataset in its own transaction.
pub(crate) async fn step(
    dataset: &Dataset,
    rng: &mut Rng,
    recorder: &mut Recorder,
) -> dsl::Result<()> {
    let os = dataset.objset();
    let objects: Vec<u64> = recorder.now.keys().copied().collect();
    let tx = dataset.begin(Estimate::bytes(LONGEST)).await?;
    match rng.below(10) {
        0..=2 if objects.len() < 40 => {
            let block = *rng.choose(&[512, 4096, 16_384, 131_072]);
            let spec = AllocSpec::new(ObjectType::PLAIN_OTHER).block_size(block);
            let object = os.allocate(spec, &tx).await?;
            recorder.now.insert(object.0, Vec::new());
        }
        3 if !objects.is_empty() => {
            let object = *rng.choose(&objects);
            os.free_object(ObjectId(object), &tx).await?;
            recorder.now.remove(&object);
        }
        4 if !objects.is_empty() => {
            let object = *rng.choose(&objects);
            let bytes = recorder.now.get_mut(&object).expect("chosen from it");
            let offset = rng.below(LONGEST);
            let len = rng.below(LONGEST);
            os.free_range(ObjectId(object), offset, len, &tx).await?;
            let from = usize::try_from(offset).expect("small").min(bytes.len());
            let to = usize::try_from(offset + len)
                .expect("small")
                .min(bytes.len());
            bytes[from..to].fill(0);
        }
        _ if !objects.is_empty() => {
            let object = *rng.choose(&objects);
            let bytes = recorder.now.get_mut(&object).expect("chosen from it");
            let offset = usize::try_from(rng.below(LONGEST / 2)).expect("small");
            let len = usize::try_from(rng.below(*rng.clone().choose(&[100, 5_000, 200_000])))
                .expect("small")
                + 1;
            let mut data = vec![0; len];
            match rng.below(3) {
                0 => rng.fill(&mut data),
                1 => data.fill(b'a'),
                _ => {
                    for (i, byte) in data.iter_mut().enumerate() {
                        *byte = u8::try_from(i / 7 % 251).expect("below 251");
                    }
                }
            }
            os.write(ObjectId(object), offset as u64, &data, &tx)
                .await?;
            if bytes.len() < offset + len {
                bytes.resize(offset + len, 0);
            }
            bytes[offset..offset + len].copy_from_slice(&data);
        }
        _ => {}
    }
    recorder.record(tx.txg());
    Ok(())
}

/// Compares every object with the model.
pub(crate) async fn compare(dataset: &Dataset, model: &Model, what: &str) {
    let os = dataset.objset();
    let mut found = Vec::new();
    let mut after = ObjectId(0);
    while let Some(object) = os.next_object(after).await.expect("next object") {
        let info = os.object_info(object).await.expect("object info");
        if info.object_type == ObjectType::PLAIN_OTHER {
            found.push(object.0);
        }
        after = object;
    }
    let expected: Vec<u64> = model.keys().copied().collect();
    assert_eq!(found, expected, "{what}: objects");
    for (object, bytes) in model {
        let read = os
            .read(ObjectId(*object), 0, bytes.len())
            .await
            .expect("read");
        assert!(read[..] == bytes[..], "{what}: content of object {object}");
    }
}

pub(crate) async fn root(pool: &Pool) -> Dataset {
    pool.hierarchy()
        .dataset(&pool.name())
        .await
        .expect("root dataset")
}

/// Makes an object with blocks of so many bytes, in a transaction of its own.
pub(crate) async fn make(dataset: &Dataset, block_bytes: usize) -> ObjectId {
    let tx = dataset
        .begin(Estimate::bytes(1 << 20))
        .await
        .expect("begin");
    let block_bytes = u32::try_from(block_bytes).expect("small");
    let spec = AllocSpec::new(ObjectType::PLAIN_OTHER).block_size(block_bytes);
    let object = dataset.objset().allocate(spec, &tx).await;
    object.expect("allocate")
}

/// Steps in the root dataset, synced at the end.
pub(crate) async fn work(pool: &Pool, rng: &mut Rng, recorder: &mut Recorder, steps: usize) {
    work_unsynced(pool, rng, recorder, steps).await;
    pool.sync().await.expect("sync");
}

/// Steps in the root dataset.
pub(crate) async fn work_unsynced(
    pool: &Pool,
    rng: &mut Rng,
    recorder: &mut Recorder,
    steps: usize,
) {
    let dataset = root(pool).await;
    for _ in 0..steps {
        step(&dataset, rng, recorder).await.expect("step");
    }
}

/// Half a megabyte that does not compress in each of so many objects.
pub(crate) async fn fill(pool: &Pool, rng: &mut Rng, recorder: &mut Recorder, objects: usize) {
    let dataset = root(pool).await;
    for block in [16 << 10, 128 << 10].into_iter().cycle().take(objects) {
        let tx = dataset
            .begin(Estimate::bytes(1 << 20))
            .await
            .expect("begin");
        let spec = AllocSpec::new(ObjectType::PLAIN_OTHER).block_size(block);
        let object = dataset
            .objset()
            .allocate(spec, &tx)
            .await
            .expect("allocate");
        let mut data = vec![0; 500_000];
        rng.fill(&mut data);
        let written = dataset.objset().write(object, 0, &data, &tx).await;
        written.expect("write");
        recorder.now.insert(object.0, data);
        recorder.record(tx.txg());
    }
    pool.sync().await.expect("sync");
}

#[test]
#[ignore = "long: 120 groups of random writes; campaigns write at random, too"]
fn many_groups_of_random_writes_stay_clean() {
    for (seed, disks, vdevs) in [(11, 1, single()), (12, 2, mirror())] {
        let world = world(seed, disks, 256 * MIB);
        let mut recorder = Recorder::default();
        let mut rng = world.rng();
        run(&world, async |handle| {
            let pool = create(&handle, vdevs).await;
            let dataset = root(&pool).await;
            for round in 0..60 {
                for _ in 0..rng.below(20) + 1 {
                    step(&dataset, &mut rng, &mut recorder).await.expect("step");
                }
                pool.sync().await.expect("sync");
                if round % 20 == 5 {
                    // What is durable now must be a whole pool of its own.
                    zdb_clean(&world, &format!("seed {seed} round {round}"));
                }
            }
            compare(&dataset, &recorder.now, "before export").await;
            drop(dataset);
            pool.export().await.expect("export");
        });
        zdb_clean(&world, "after export");
        run(&world, async |handle| {
            let pool = import(&handle, disks).await;
            let dataset = root(&pool).await;
            compare(&dataset, &recorder.now, "after import").await;
            for _ in 0..50 {
                step(&dataset, &mut rng, &mut recorder).await.expect("step");
            }
            drop(dataset);
            pool.export().await.expect("export");
        });
        zdb_clean(&world, "after second export");
        let dir = tempfile::tempdir().expect("temporary directory");
        let files = world.dump(dir.path()).expect("dump");
        if refpool_run(
            dir.path(),
            "ds",
            &files,
            &["--", "scrub:tank", "tank/other"],
        ) {
            zdb_clean_dir(dir.path(), "after OpenZFS wrote to it");
            let again = world_of_files(seed, &files);
            run(&again, async |handle| {
                let pool = import(&handle, disks).await;
                compare(&root(&pool).await, &recorder.now, "back from OpenZFS").await;
                pool.export().await.expect("export");
            });
            zdb_clean(&again, "back from OpenZFS");
        }
    }
}
