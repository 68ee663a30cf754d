//! Datasets judged from outside: they are created, filled, changed, renamed and destroyed at random, also under
//! snapshots that OpenZFS took and across power cuts; zdb then accounts for every block, and an independent reader adds
//! up the space of every dataset and directory.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use dmu::AllocSpec;
use dsl::property::{DatasetKind, Kinds, Property, Setting, Value};
use dsl::{Dataset, DatasetInfo, Estimate, Hierarchy, ListSpec, NewDataset};
use ondisk::{ObjectId, ObjectType};
use pool::Pool;
use world::{Ended, Rng, World};

use crate::support::*;
use crate::workload::{Recorder, compare, root, step};

const SLOW: ListSpec = ListSpec {
    depth: None,
    kinds: Kinds::ALL,
};

/// Lets the independent reader add up the space of every dataset and directory.
fn accounting_is_exact(world: &World, what: &str) {
    let probe = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/probes/zprobe.py");
    let dir = tempfile::tempdir().expect("temporary directory");
    let files = world.dump(dir.path()).expect("dump the disks");
    accounting_of(&probe, &files, what);
}

fn accounting_of(probe: &std::path::Path, files: &[PathBuf], what: &str) {
    let list: Vec<String> = files.iter().map(|f| f.display().to_string()).collect();
    let output = Command::new("python3")
        .arg(probe)
        .arg("acct")
        .arg(format!("0:{}", list.join(",")))
        .output();
    let Ok(output) = output else {
        oracle::skip(
            "accounts by an independent reader",
            "python3 is not installed",
        );
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{what}: the reader failed\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let bad: Vec<&str> = text.lines().filter(|l| !l.ends_with("ok")).collect();
    assert!(bad.is_empty(), "{what}: space is wrong\n{}", bad.join("\n"));
    assert!(text.contains("$MOS"), "{what}: nothing was added up");
}

/// Every dataset below the root, with what was written into it and its own compression.
#[derive(Clone, Default)]
struct Tree(BTreeMap<String, (Recorder, Option<u64>)>);

impl Tree {
    fn random(&self, rng: &mut Rng) -> Option<String> {
        let names: Vec<&String> = self.0.keys().collect();
        (!names.is_empty()).then(|| (*rng.choose(&names)).clone())
    }

    fn below<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a String> {
        let prefix = format!("{name}/");
        self.0.keys().filter(move |n| n.starts_with(&prefix))
    }
}

fn native(property: Property, number: u64) -> Setting {
    Setting::Native(property, Value::Number(number))
}

async fn new_dataset(hierarchy: &Hierarchy, name: &str, settings: Vec<Setting>) -> dsl::Result<()> {
    let new = NewDataset {
        name: name.into(),
        kind: DatasetKind::Filesystem,
        settings,
        creator: 0,
        key: None,
    };
    hierarchy.create_dataset(new, empty_root).await
}

async fn change(hierarchy: &Hierarchy, tree: &mut Tree, rng: &mut Rng, serial: &mut u32) {
    *serial += 1;
    let victim = tree.random(rng);
    match (rng.below(12), victim) {
        (0..=2, parent) if tree.0.len() < 14 => {
            let parent = parent
                .filter(|p| p.matches('/').count() < 4)
                .unwrap_or_else(|| POOL.into());
            let name = format!("{parent}/d{serial}");
            let compression = (rng.below(3) == 0).then(|| *rng.choose(&[2, 3, 10, 14, 15, 16]));
            let mut settings: Vec<Setting> = compression
                .iter()
                .map(|c| native(Property::Compression, *c))
                .collect();
            match rng.below(4) {
                0 => settings.push(native(Property::Reservation, 1 << 20)),
                1 => settings.push(native(Property::RefReservation, 2 << 20)),
                2 => settings.push(Setting::User("a:b".into(), name.clone())),
                _ => {}
            }
            new_dataset(hierarchy, &name, settings)
                .await
                .expect("create");
            tree.0.insert(name, (Recorder::default(), compression));
        }
        (3, Some(name)) => {
            let expect_children = tree.below(&name).next().is_some();
            let result = hierarchy.destroy(&name).await;
            if expect_children {
                assert!(
                    matches!(result, Err(dsl::DslError::HasChildren { .. })),
                    "{result:?}"
                );
            } else {
                result.expect("destroy");
                tree.0.remove(&name);
            }
        }
        (4, Some(name)) => {
            let parent = tree
                .random(rng)
                .filter(|p| p.matches('/').count() < 4)
                .unwrap_or_else(|| POOL.into());
            let to = format!("{parent}/r{serial}");
            let result = hierarchy.rename(&name, &to, false).await;
            if to.starts_with(&format!("{name}/")) {
                assert!(
                    matches!(result, Err(dsl::DslError::RenameBelowItself)),
                    "{result:?}"
                );
                return;
            }
            result.expect("rename");
            let moved: Vec<String> = tree.below(&name).cloned().chain([name.clone()]).collect();
            for old in moved {
                let entry = tree.0.remove(&old).expect("in the tree");
                tree.0.insert(format!("{to}{}", &old[name.len()..]), entry);
            }
        }
        (5, Some(name)) => {
            let compression = *rng.choose(&[2, 3, 5, 14, 15, 16]);
            let settings = vec![native(Property::Compression, compression)];
            hierarchy
                .set_properties(&name, settings)
                .await
                .expect("set");
            tree.0.get_mut(&name).expect("chosen").1 = Some(compression);
        }
        (6, Some(name)) => {
            hierarchy
                .inherit_property(&name, "compression", false)
                .await
                .expect("inherit");
            tree.0.get_mut(&name).expect("chosen").1 = None;
        }
        (7, Some(name)) => {
            let property = *rng.choose(&[Property::Reservation, Property::RefReservation]);
            let settings = vec![native(property, rng.below(3 << 20))];
            hierarchy
                .set_properties(&name, settings)
                .await
                .expect("reserve");
        }
        (8, Some(name)) if rng.below(3) == 0 => {
            let settings = vec![native(Property::FilesystemLimit, 1000)];
            hierarchy
                .set_properties(&name, settings)
                .await
                .expect("limit");
        }
        (_, Some(name)) => {
            let dataset = hierarchy.dataset(&name).await.expect("open");
            let recorder = &mut tree.0.get_mut(&name).expect("chosen").0;
            for _ in 0..rng.below(6) + 1 {
                step(&dataset, rng, recorder).await.expect("step");
            }
        }
        _ => {}
    }
}

async fn matches_model(hierarchy: &Hierarchy, tree: &Tree, what: &str) {
    let listed: Vec<DatasetInfo> = hierarchy.list(POOL, SLOW).await.expect("list");
    let names: Vec<&str> = listed.iter().map(|i| i.name.as_str()).collect();
    let mut expected: Vec<&str> = tree.0.keys().map(String::as_str).collect();
    expected.insert(0, POOL);
    expected.sort_unstable();
    assert_eq!(names, expected, "{what}");
    for (name, (recorder, compression)) in &tree.0 {
        let dataset = hierarchy.dataset(name).await.expect("open");
        compare(&dataset, &recorder.now, &format!("{what}: {name}")).await;
        let mut expect = *compression;
        let mut above = name.as_str();
        while let (None, Some((parent, _))) = (expect, above.rsplit_once('/')) {
            expect = tree.0.get(parent).and_then(|(_, c)| *c);
            above = parent;
        }
        assert_eq!(
            dataset.number(Property::Compression),
            expect.unwrap_or(1),
            "{what}: {name}"
        );
    }
}

#[test]
fn datasets_come_and_go() {
    for seed in 0..2 {
        let world = world(100 + seed, 1, 256 * MIB);
        let mut rng = world.rng();
        let mut tree = Tree::default();
        let mut serial = 0;
        run(&world, async |handle| {
            let pool = create(&handle, single()).await;
            for _ in 0..120 {
                change(pool.hierarchy(), &mut tree, &mut rng, &mut serial).await;
            }
            matches_model(pool.hierarchy(), &tree, "before export").await;
            pool.export().await.expect("export");
        });
        let what = format!("seed {seed}");
        zdb_clean(&world, &what);
        accounting_is_exact(&world, &what);
        run(&world, async |handle| {
            let pool = import(&handle, 1).await;
            matches_model(pool.hierarchy(), &tree, "after import").await;
            for _ in 0..60 {
                change(pool.hierarchy(), &mut tree, &mut rng, &mut serial).await;
            }
            matches_model(pool.hierarchy(), &tree, "changed").await;
            pool.export().await.expect("export");
        });
        zdb_clean(&world, &what);
        accounting_is_exact(&world, &what);
    }
}

/// A snapshot marked for deferred destruction goes with its last clone, which is refused while the snapshot is open.
#[test]
fn an_open_origin_keeps_its_last_clone() {
    let world = world(171, 1, 128 * MIB);
    run(&world, async |handle| {
        let pool = create(&handle, single()).await;
        let hierarchy = pool.hierarchy();
        new_dataset(hierarchy, "tank/a", Vec::new())
            .await
            .expect("create");
        let snapshot = ["tank/a@s".to_owned()];
        hierarchy.snapshot(&snapshot, &[]).await.expect("snapshot");
        hierarchy
            .clone_snapshot("tank/a@s", "tank/c", Vec::new(), 0)
            .await
            .expect("clone");
        let refused = hierarchy.destroy_snapshots(&snapshot, true).await;
        assert!(refused.expect("deferred").is_empty());
        let open = hierarchy.dataset("tank/a@s").await.expect("open it");
        let busy = hierarchy.destroy("tank/c").await;
        assert!(matches!(busy, Err(dsl::DslError::Busy { .. })), "{busy:?}");
        assert!(open.objset().is_read_only());
        drop(open);
        hierarchy.destroy("tank/c").await.expect("destroy");
        let gone = hierarchy.info("tank/a@s").await;
        assert!(gone.is_err(), "it went with its clone: {gone:?}");
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "without the snapshot");
}

/// Blocks a snapshot holds go to the deadlist when the dataset lets go of them.
#[test]
fn writing_under_snapshots_of_openzfs() {
    let world = world(7, 1, 256 * MIB);
    let mut rng = world.rng();
    let mut recorder = Recorder::default();
    run(&world, async |handle| {
        let pool = create(&handle, single()).await;
        new_dataset(pool.hierarchy(), "tank/a", Vec::new())
            .await
            .expect("create");
        let dataset = pool.hierarchy().dataset("tank/a").await.expect("open");
        for _ in 0..60 {
            step(&dataset, &mut rng, &mut recorder).await.expect("step");
        }
        drop(dataset);
        pool.export().await.expect("export");
    });
    let before = recorder.now.clone();
    let mut disks = world;
    for (round, operations) in [
        vec!["tank/a@one", "tank/a@two"],
        vec![
            "tank/a@three",
            "clone:tank/a@two=tank/c",
            "destroy:tank/a@one",
        ],
        vec!["destroy:tank/a@three", "tank/c@four"],
        vec!["promote:tank/c"],
    ]
    .into_iter()
    .enumerate()
    {
        let dir = tempfile::tempdir().expect("temporary directory");
        let files = disks.dump(dir.path()).expect("dump");
        let mut args = vec!["--"];
        args.extend(&operations);
        if !refpool_run(dir.path(), "ds", &files, &args) {
            return;
        }
        disks = world_of_files(20 + round as u64, &files);
        let what = format!("round {round}");
        run(&disks, async |handle| {
            let pool = import(&handle, 1).await;
            let hierarchy = pool.hierarchy();
            let dataset = hierarchy.dataset("tank/a").await.expect("open");
            for _ in 0..40 {
                step(&dataset, &mut rng, &mut recorder).await.expect("step");
                if rng.below(8) == 0 {
                    pool.sync().await.expect("sync");
                }
            }
            compare(&dataset, &recorder.now, &what).await;
            drop(dataset);
            let snapshot = if round < 3 {
                "tank/a@two"
            } else {
                "tank/c@two"
            };
            let snapshot = hierarchy
                .dataset(snapshot)
                .await
                .expect("open the snapshot");
            compare(&snapshot, &before, &what).await;
            drop(snapshot);
            // A clone is destroyed although it still has its origin; a snapshot keeps a dataset.
            if round == 1 {
                let refused = hierarchy.destroy("tank/a").await;
                assert!(
                    matches!(refused, Err(dsl::DslError::HasSnapshots { .. })),
                    "{refused:?}"
                );
            }
            pool.export().await.expect("export");
        });
        zdb_clean(&disks, &what);
        accounting_is_exact(&disks, &what);
    }
}

async fn fill(dataset: &Dataset, objects: u64) -> Vec<ObjectId> {
    let os = dataset.objset();
    let mut made = Vec::new();
    for object in 0..objects {
        let tx = dataset
            .begin(Estimate::bytes(1 << 20))
            .await
            .expect("begin");
        let spec = AllocSpec::new(ObjectType::PLAIN_OTHER).block_size(512);
        let id = os.allocate(spec, &tx).await.expect("allocate");
        let mut data = vec![0; 100_000];
        Rng::new(object).fill(&mut data);
        os.write(id, 0, &data, &tx).await.expect("write");
        made.push(id);
    }
    made
}

/// A destroy that is cut off goes on after the next import, and frees everything.
#[test]
fn an_interrupted_destroy_resumes() {
    for seed in 0..4 {
        let world = world(300 + seed, 1, 128 * MIB);
        let mut free = 0;
        run(&world, async |handle| {
            let pool = create(&handle, single()).await;
            pool.sync().await.expect("sync");
            free = root(&pool).await.space().available;
            new_dataset(pool.hierarchy(), "tank/big", Vec::new())
                .await
                .expect("create");
            let dataset = pool.hierarchy().dataset("tank/big").await.expect("open");
            fill(&dataset, 40).await;
            drop(dataset);
            pool.export().await.expect("export");
        });
        let runtime = world.boot();
        let mut rng = Rng::new(seed);
        world.plan_cut_at_write(rng.below(400) + 30);
        let ended = world.run_on(&runtime, async |handle| {
            let pool = import(&handle, 1).await;
            pool.hierarchy().set_background_blocks(300);
            pool.hierarchy().destroy("tank/big").await.expect("destroy");
            while pool.hierarchy().has_background_work() {
                pool.sync().await.expect("sync");
            }
        });
        drop(runtime);
        if matches!(ended, Ended::Done(())) {
            world.power_cut();
        }
        let what = format!("seed {seed}");
        zdb_clean(&world, &what);
        accounting_is_exact(&world, &what);
        run(&world, async |handle| {
            let pool: Pool = import(&handle, 1).await;
            let hierarchy = pool.hierarchy();
            if hierarchy.info("tank/big").await.is_ok() {
                hierarchy.destroy("tank/big").await.expect("destroy");
            }
            while hierarchy.has_background_work() {
                pool.sync().await.expect("sync");
            }
            assert_eq!(hierarchy.freeing_bytes(), 0, "{what}");
            assert!(!hierarchy.features().is_active("async_destroy"), "{what}");
            let now = root(&pool).await.space().available;
            assert!(now + (1 << 20) > free, "{what}: {now} of {free} available");
            pool.export().await.expect("export");
        });
        zdb_clean(&world, &what);
        accounting_is_exact(&world, &what);
    }
}

/// A clone keeps a list of its own blocks, through imports and cuts; it is destroyed by that list, and a destroy that is cut
/// off goes on after the next import.
#[test]
#[ignore = "long: four pools with cuts; the tests of programs destroy clones by their lists, too"]
fn clones_are_destroyed_by_their_livelists() {
    for seed in 0..4 {
        let world = world(900 + seed, 1, 128 * MIB);
        let mut free = 0;
        let mut objects = Vec::new();
        run(&world, async |handle| {
            let pool = create(&handle, single()).await;
            let hierarchy = pool.hierarchy();
            new_dataset(hierarchy, "tank/big", Vec::new())
                .await
                .expect("create");
            let dataset = hierarchy.dataset("tank/big").await.expect("open");
            objects = fill(&dataset, 40).await;
            drop(dataset);
            hierarchy
                .snapshot(&["tank/big@s".to_owned()], &[])
                .await
                .expect("snapshot");
            pool.sync().await.expect("sync");
            free = root(&pool).await.space().available;
            hierarchy
                .clone_snapshot("tank/big@s", "tank/c", Vec::new(), 0)
                .await
                .expect("clone");
            assert_eq!(hierarchy.features().refcount("livelist"), Some(1));
            write_to_clone(&pool, &objects, seed, 6).await;
            pool.export().await.expect("export");
        });
        let what = format!("seed {seed}");
        zdb_clean(&world, &what);
        zdb_livelists(&world, &what);
        let mut rng = Rng::new(seed);
        // Cut while it is written to.
        let runtime = world.boot();
        world.plan_cut_at_write(rng.below(300) + 20);
        let _ = world.run_on(&runtime, async |handle| {
            let pool = import(&handle, 1).await;
            write_to_clone(&pool, &objects, seed + 100, 20).await;
        });
        drop(runtime);
        world.power_cut();
        run(&world, async |handle| {
            let pool = import(&handle, 1).await;
            write_to_clone(&pool, &objects, seed + 200, 4).await;
            assert!(pool.hierarchy().features().is_active("livelist"), "{what}");
            pool.export().await.expect("export");
        });
        zdb_clean(&world, &what);
        zdb_livelists(&world, &what);
        // Cut while it is destroyed.
        let runtime = world.boot();
        world.plan_cut_at_write(rng.below(300) + 30);
        let ended = world.run_on(&runtime, async |handle| {
            let pool = import(&handle, 1).await;
            let hierarchy = pool.hierarchy();
            hierarchy.set_background_blocks(150);
            hierarchy.destroy("tank/c").await.expect("destroy");
            assert!(!hierarchy.features().is_active("async_destroy"), "{what}");
            while hierarchy.has_background_work() {
                pool.sync().await.expect("sync");
            }
        });
        drop(runtime);
        if matches!(ended, Ended::Done(())) {
            world.power_cut();
        }
        zdb_clean(&world, &what);
        zdb_livelists(&world, &what);
        run(&world, async |handle| {
            let pool: Pool = import(&handle, 1).await;
            let hierarchy = pool.hierarchy();
            if hierarchy.info("tank/c").await.is_ok() {
                hierarchy.destroy("tank/c").await.expect("destroy");
            }
            while hierarchy.has_background_work() {
                pool.sync().await.expect("sync");
            }
            assert_eq!(hierarchy.freeing_bytes(), 0, "{what}");
            assert!(!hierarchy.features().is_active("livelist"), "{what}");
            let now = root(&pool).await.space().available;
            assert!(now + (1 << 20) > free, "{what}: {now} of {free} available");
            pool.export().await.expect("export");
        });
        zdb_clean(&world, &what);
        zdb_livelists(&world, &what);
        // The reader takes half a minute for as many blocks.
        if seed == 0 {
            accounting_is_exact(&world, &what);
        }
    }
}

/// Writes small parts of the clone's objects anew, some of them several times, over several txgs.
async fn write_to_clone(pool: &Pool, objects: &[ObjectId], seed: u64, groups: u64) {
    // So that there are many entries, and some become one.
    pool.hierarchy().set_livelist_blocks(12);
    let dataset = pool.hierarchy().dataset("tank/c").await.expect("open");
    let os = dataset.objset();
    let mut rng = Rng::new(seed);
    for _ in 0..groups {
        for _ in 0..rng.below(6) + 1 {
            let tx = dataset
                .begin(Estimate::bytes(1 << 20))
                .await
                .expect("begin");
            let object = *rng.choose(&objects[..8]);
            let at = rng.below(60_000);
            let mut data = vec![0; 9000];
            rng.fill(&mut data);
            if rng.below(4) == 0 {
                os.free_range(object, at, 9000, &tx).await.expect("free");
            } else {
                os.write(object, at, &data, &tx).await.expect("write");
            }
        }
        pool.sync().await.expect("sync");
    }
}

/// A quota stops writing, and removing makes room again.
#[test]
fn quotas_and_a_full_pool() {
    let world = world(9, 1, 96 * MIB);
    run(&world, async |handle| {
        let pool = create(&handle, single()).await;
        let hierarchy = pool.hierarchy();
        for (name, property) in [("tank/q", Property::Quota), ("tank/r", Property::RefQuota)] {
            new_dataset(hierarchy, name, vec![native(property, 4 << 20)])
                .await
                .expect("create");
            let dataset = hierarchy.dataset(name).await.expect("open");
            let written = until_full(&dataset).await;
            assert!(
                (2 << 20..6 << 20).contains(&written),
                "{name}: {written} bytes"
            );
            make_room(&dataset).await;
            pool.sync().await.expect("sync");
            let tx = dataset.begin(Estimate::bytes(1000)).await;
            tx.expect("there is room again");
        }
        let refused = hierarchy
            .set_properties("tank/q", vec![native(Property::Reservation, 1 << 40)])
            .await;
        assert!(
            matches!(refused, Err(dsl::DslError::ReservationAboveAvailable)),
            "{refused:?}"
        );
        new_dataset(hierarchy, "tank/full", Vec::new())
            .await
            .expect("create");
        let dataset = hierarchy.dataset("tank/full").await.expect("open");
        until_full(&dataset).await;
        make_room(&dataset).await;
        pool.sync().await.expect("sync");
        let tx = dataset.begin(Estimate::bytes(1000)).await;
        tx.expect("there is room again");
        drop(dataset);
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "after quotas");
    accounting_is_exact(&world, "after quotas");
}

async fn until_full(dataset: &Dataset) -> u64 {
    let os = dataset.objset();
    let mut written = 0;
    loop {
        let tx = match dataset.begin(Estimate::bytes(140_000)).await {
            Ok(tx) => tx,
            Err(error) if error.is_no_space() => return written,
            Err(error) => panic!("{error}"),
        };
        let spec = AllocSpec::new(ObjectType::PLAIN_OTHER).block_size(131_072);
        let id = os.allocate(spec, &tx).await.expect("allocate");
        let mut data = vec![0; 131_072];
        Rng::new(written).fill(&mut data);
        os.write(id, 0, &data, &tx).await.expect("write");
        written += 131_072;
        assert!(written < 1 << 30, "the pool is smaller than this");
    }
}

async fn make_room(dataset: &Dataset) {
    let os = dataset.objset();
    let mut after = ondisk::ObjectId(0);
    let mut freed = 0;
    while let Some(object) = os.next_object(after).await.expect("next") {
        after = object;
        if freed < 10 {
            let tx = dataset
                .begin(Estimate::freeing(20_000))
                .await
                .expect("removing is allowed");
            os.free_object(object, &tx).await.expect("free");
            freed += 1;
        }
    }
    assert!(freed > 0);
}
