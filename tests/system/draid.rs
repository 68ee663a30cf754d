//! Goal: the draids that sanbox makes are OpenZFS's, whole and without the disks they may lose. Method: pools of several
//! shapes are filled, judged by zdb, by OpenZFS's own code and by our checker; disks go and come back.

use anyhow::{Context as _, Result};
use engine::{
    Ending, Engine, Health, ImportPolicy, PoolHandle, PoolSpec, ScanStatus, Threads, VdevSpec,
    VdevStatus,
};
use tests::{block_on, oracle};

use crate::cli::wait_for;
use crate::written_pools::{Disks, Model, bytes, create, dataset, fill, judge, round_trip, verify};

/// Parity, data, children, spares, sector shift.
const SHAPES: [(u8, u32, usize, u32, u32); 4] = [
    (1, 2, 6, 1, 9),
    (2, 4, 11, 2, 12),
    (3, 8, 14, 1, 9),
    (3, 8, 14, 1, 12),
];

fn draid(disks: &Disks, parity: u8, data: u32, spares: u32) -> VdevSpec {
    VdevSpec::Draid {
        parity,
        data,
        spares,
        paths: disks.images.clone(),
    }
}

fn import(engine: &Engine, disks: &Disks) -> Result<PoolHandle> {
    let found = block_on(engine.discover(vec![disks.directory.path().to_path_buf()]))?;
    let mut pools = found.pools.into_iter();
    let candidate = pools.next().context("the pool is found again")?;
    block_on(engine.import(candidate, ImportPolicy::default())).context("import")
}

fn export(engine: &Engine, name: &str) -> Result<()> {
    block_on(engine.end_pool(name, Ending::Export { command: None })).context("export")
}

/// Waits until a scan has begun and ended.
fn healed(pool: &PoolHandle) -> ScanStatus {
    wait_for("the end of the scan", || {
        let status = block_on(pool.status()).expect("status");
        let ended = status.scan.filter(|scan| !scan.running);
        ended.ok_or_else(|| "it runs".to_owned())
    })
}

#[test]
#[ignore = "long: other widths and parities; one shape is spared and healed in another test"]
fn draids_of_many_shapes() {
    for (parity, data, children, spares, ashift) in SHAPES {
        let disks = Disks::new(children, 160);
        let name = format!("dr{parity}d{data}a{ashift}");
        let datasets: &[&[(&str, &str)]] = &[&[], &[("recordsize", "8K"), ("compression", "off")]];
        let vdevs = vec![draid(&disks, parity, data, spares)];
        round_trip(&name, &disks, vdevs, ashift, datasets)
            .unwrap_or_else(|error| panic!("draid{parity}:{data}d:{children}c: {error:#}"));
    }
}

/// Writes more than a group holds, in blocks that do not divide it, so that some lie in two groups.
#[test]
#[ignore = "long: one case of a draid; others are tested beside it"]
fn blocks_that_lie_in_two_groups() {
    let disks = Disks::new(5, 160);
    let engine = Engine::new(Threads::default());
    let spec = PoolSpec {
        name: "groups".to_owned(),
        vdevs: vec![draid(&disks, 1, 2, 1)],
        ..PoolSpec::default()
    };
    let pool = block_on(engine.create_pool(spec, &[])).expect("create the pool");
    let properties = [("compression", "off"), ("recordsize", "1M")];
    let fs = dataset(&pool, "groups/fs", &properties).expect("a dataset");
    let root = block_on(fs.root()).expect("root").id;
    let mut model = Model::new();
    for i in 0..4 {
        let content = bytes(i, 21_000_000, true);
        let name = format!("file{i}");
        create(&fs, root, &name, &content).expect("write");
        model.insert(name, content);
    }
    drop((fs, pool));
    export(&engine, "groups").expect("export");
    judge(&disks, "groups").expect("a clean pool");
    let pool = import(&engine, &disks).expect("import");
    let fs = block_on(pool.open_fs("groups/fs")).expect("open");
    verify(&fs, &model).expect("verify");
    drop((fs, pool));
    export(&engine, "groups").expect("export again");
}

/// Takes neighbours away, as many as the parity allows, from each place in turn.
#[test]
fn openzfs_reads_our_draid_without_the_disks_it_may_lose() {
    if !oracle::has_zdb() {
        return;
    }
    for (parity, data, children, spares) in [(1_u8, 2, 6_usize, 1), (2, 4, 11, 2)] {
        let disks = Disks::new(children, 128);
        let name = format!("drlost{parity}");
        let engine = Engine::new(Threads::default());
        let spec = PoolSpec {
            name: name.clone(),
            vdevs: vec![draid(&disks, parity, data, spares)],
            ..PoolSpec::default()
        };
        let pool = block_on(engine.create_pool(spec, &[])).expect("create the pool");
        let properties = [("recordsize", "64K"), ("compression", "off")];
        let fs = dataset(&pool, &format!("{name}/fs"), &properties).expect("a dataset");
        let model = fill(&fs, 77).expect("fill");
        drop((fs, pool));
        export(&engine, &name).expect("export");
        for lost in (0..=children - usize::from(parity)).step_by(2) {
            let away = disks.directory.path().join("away");
            std::fs::create_dir_all(&away).expect("a directory");
            let gone = lost..lost + usize::from(parity);
            let moved = |there: bool| {
                for image in &disks.images[gone.clone()] {
                    let other = away.join(image.file_name().expect("a name"));
                    let (from, to) = if there {
                        (image, &other)
                    } else {
                        (&other, image)
                    };
                    std::fs::rename(from, to).expect("move a disk");
                }
            };
            moved(true);
            let result = oracle::zdb_clean(disks.directory.path(), &name);
            moved(false);
            result.unwrap_or_else(|error| panic!("draid{parity} without {gone:?}: {error:#}"));
        }
        let pool = import(&engine, &disks).expect("import");
        let fs = block_on(pool.open_fs(&format!("{name}/fs"))).expect("open");
        verify(&fs, &model).expect("verify");
        drop((fs, pool));
        export(&engine, &name).expect("export again");
    }
}

/// Writes while as many disks are away as may be; they come back and get what they missed, and then as many others go.
#[test]
#[ignore = "long: as many disks away as may be; one is spared in another test"]
fn a_draid_without_disks_is_written_and_healed() {
    let (parity, children) = (2_usize, 8);
    let disks = Disks::new(children, 160);
    let engine = Engine::new(Threads::default());
    let spec = PoolSpec {
        name: "drheal".to_owned(),
        vdevs: vec![draid(&disks, 2, 3, 1)],
        ..PoolSpec::default()
    };
    let pool = block_on(engine.create_pool(spec, &[])).expect("create the pool");
    let properties = [("recordsize", "32K"), ("compression", "off")];
    let before = dataset(&pool, "drheal/before", &properties).expect("a dataset");
    let first = fill(&before, 5).expect("fill");
    drop((before, pool));
    export(&engine, "drheal").expect("export");
    let away = disks.directory.path().join("away");
    std::fs::create_dir_all(&away).expect("a directory");
    let moved = |disk: usize, there: bool| {
        let image = &disks.images[disk];
        let other = away.join(image.file_name().expect("a name"));
        let (from, to) = if there {
            (image, &other)
        } else {
            (&other, image)
        };
        std::fs::rename(from, to).expect("move a disk");
    };
    for disk in 0..parity {
        moved(disk, true);
    }
    let pool = import(&engine, &disks).expect("import without disks");
    let after = dataset(&pool, "drheal/after", &properties).expect("a dataset");
    let second = fill(&after, 6).expect("fill while disks are away");
    verify(&after, &second).expect("verify while disks are away");
    drop((after, pool));
    export(&engine, "drheal").expect("export without disks");
    for disk in 0..parity {
        moved(disk, false);
    }
    let pool = import(&engine, &disks).expect("import with all disks");
    let scan = healed(&pool);
    assert!(scan.resilver && scan.errors == 0, "{scan:?}");
    drop(pool);
    export(&engine, "drheal").expect("export after the resilver");
    judge(&disks, "drheal").expect("a clean pool");
    for disk in 3..3 + parity {
        moved(disk, true);
    }
    let pool = import(&engine, &disks).expect("import without others");
    for (name, model) in [("drheal/before", &first), ("drheal/after", &second)] {
        let fs = block_on(pool.open_fs(name)).expect("open");
        verify(&fs, model).expect("verify without others");
    }
    drop(pool);
    export(&engine, "drheal").expect("the last export");
}

/// A distributed spare takes over by itself for a disk that is away, then another disk goes; then a new disk comes in
/// place of the first, and the spare is free again.
#[test]
fn a_distributed_spare_takes_over_and_is_free_again() {
    let disks = Disks::new(7, 160);
    let (own, fresh) = (&disks.images[..6], &disks.images[6]);
    let engine = Engine::new(Threads::default());
    let spec = PoolSpec {
        name: "drspare".to_owned(),
        vdevs: vec![VdevSpec::Draid {
            parity: 1,
            data: 2,
            spares: 1,
            paths: own.to_vec(),
        }],
        ..PoolSpec::default()
    };
    let pool = block_on(engine.create_pool(spec, &[])).expect("create the pool");
    let properties = [("recordsize", "32K"), ("compression", "off")];
    let before = dataset(&pool, "drspare/before", &properties).expect("a dataset");
    let first = fill(&before, 5).expect("fill");
    drop((before, pool));
    export(&engine, "drspare").expect("export");
    let away = disks.directory.path().join("away");
    std::fs::create_dir_all(&away).expect("a directory");
    let moved = |disk: usize, there: bool| {
        let image = &disks.images[disk];
        let other = away.join(image.file_name().expect("a name"));
        let (from, to) = if there {
            (image, &other)
        } else {
            (&other, image)
        };
        std::fs::rename(from, to).expect("move a disk");
    };
    moved(2, true);
    let pool = import(&engine, &disks).expect("import without a disk");
    let lost = leaf_at(&pool, "d2.img");
    if spare_health(&pool) != Health::InUse {
        let name = std::path::Path::new("draid1-0-0");
        block_on(pool.attach(lost, name, true, false)).expect("the spare");
    }
    let scan = healed(&pool);
    assert_eq!(scan.errors, 0, "{scan:?}");
    let after = dataset(&pool, "drspare/after", &properties).expect("a dataset");
    let second = fill(&after, 6).expect("fill with the spare at work");
    drop((after, pool));
    export(&engine, "drspare").expect("export with the spare at work");
    oracle::zdb_clean(disks.directory.path(), "drspare").expect("zdb with the spare at work");
    // One more than the parity allows, but for the spare.
    moved(4, true);
    oracle::zdb_clean(disks.directory.path(), "drspare").expect("zdb without two disks");
    let pool = import(&engine, &disks).expect("import without two disks");
    for (name, model) in [("drspare/before", &first), ("drspare/after", &second)] {
        let fs = block_on(pool.open_fs(name)).expect("open");
        verify(&fs, model).expect("verify without two disks");
    }
    drop(pool);
    export(&engine, "drspare").expect("export without two disks");
    moved(4, false);
    let pool = import(&engine, &disks).expect("import again");
    healed(&pool);
    block_on(pool.attach(lost, fresh, true, false)).expect("the new disk");
    wait_for("the spare is free", || {
        let health = spare_health(&pool);
        let seen = || format!("{health:?}");
        (health == Health::Available).then_some(()).ok_or_else(seen)
    });
    let status = block_on(pool.status()).expect("status");
    assert_eq!(status.spares[0].health, Health::Available, "{status:#?}");
    assert_eq!(status.root.health, Health::Online, "{status:#?}");
    drop(pool);
    export(&engine, "drspare").expect("the last export");
    let directory = tempfile::TempDir::new().expect("a directory");
    let mut images = Vec::new();
    for image in disks.images.iter().filter(|image| image.exists()) {
        let copy = directory.path().join(image.file_name().expect("a name"));
        std::fs::copy(image, &copy).expect("copy a disk");
        images.push(copy);
    }
    judge(&Disks { directory, images }, "drspare").expect("a clean pool");
}

fn spare_health(pool: &PoolHandle) -> Health {
    block_on(pool.status()).expect("status").spares[0].health
}

/// Returns the guid of the leaf at a path that ends so.
fn leaf_at(pool: &PoolHandle, end: &str) -> u64 {
    fn find(vdev: &VdevStatus, end: &str) -> Option<u64> {
        if vdev.path.as_ref().is_some_and(|path| path.ends_with(end)) {
            return Some(vdev.guid);
        }
        vdev.children.iter().find_map(|child| find(child, end))
    }
    let status = block_on(pool.status()).expect("status");
    find(&status.root, end).expect("a leaf")
}
