//! Goal: what sanbox writes, OpenZFS finds clean. Method: pools of each layout, sector size, compression, checksum and
//! record size are made, filled, partly emptied again and exported; zdb accounts for every block, OpenZFS's own code in
//! userland imports and scrubs a copy, our checker agrees, and after another import every file is as it was.

use anyhow::{Context as _, Result, ensure};
use checker::{FileImage, Image, Options};
use engine::{
    CreateDataset, CreateMode, Cred, Ending, Engine, FileId, FsHandle, ImportPolicy, IoBuf,
    PoolHandle, PoolSpec, SetAttr, Stability, Threads, VdevSpec,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use tempfile::TempDir;
use tests::{block_on, oracle};

/// Disk images in a directory of their own.
pub(crate) struct Disks {
    pub(crate) directory: TempDir,
    pub(crate) images: Vec<PathBuf>,
}

impl Disks {
    pub(crate) fn new(count: usize, mib: u64) -> Self {
        let directory = TempDir::new().expect("a directory for the images");
        let images: Vec<_> = (0..count)
            .map(|i| directory.path().join(format!("d{i}.img")))
            .collect();
        for image in &images {
            let file = File::create(image).expect("create an image");
            file.set_len(mib << 20).expect("size an image");
        }
        Self { directory, images }
    }

    pub(crate) fn single(&self, i: usize) -> VdevSpec {
        VdevSpec::Single(self.images[i].clone())
    }

    pub(crate) fn mirror(&self, from: usize, count: usize) -> VdevSpec {
        VdevSpec::Mirror(self.images[from..from + count].to_vec())
    }

    fn raidz(&self, parity: u8, from: usize, count: usize) -> VdevSpec {
        VdevSpec::Raidz {
            parity,
            paths: self.images[from..from + count].to_vec(),
        }
    }
}

/// Makes bytes that repeat by their seed: random where `hard`, else text that compresses.
pub(crate) fn bytes(seed: u64, len: usize, hard: bool) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let byte = u8::try_from(state >> 56).expect("eight bits");
            if hard {
                byte
            } else {
                b"the quick brown fox "[usize::from(byte % 20)]
            }
        })
        .collect()
}

/// What a file system should hold: path to content.
pub(crate) type Model = BTreeMap<String, Vec<u8>>;

pub(crate) fn create(fs: &FsHandle, dir: FileId, name: &str, content: &[u8]) -> Result<FileId> {
    let (mode, cred) = (CreateMode::Guarded, Cred::root());
    let made = block_on(fs.create(dir, name.as_bytes(), mode, &SetAttr::default(), &cred))
        .with_context(|| format!("create {name}"))?;
    for (i, piece) in content.chunks(300_000).enumerate() {
        let offset = (i * 300_000) as u64;
        let data = IoBuf::copy_from(piece);
        block_on(fs.write(made.file.id, offset, data, Stability::Unstable, &cred))
            .with_context(|| format!("write {name} at {offset}"))?;
    }
    Ok(made.file.id)
}

/// Fills a file system with files of many sizes, a sparse one, links and a directory that outgrows its first form;
/// then takes a part away again.
pub(crate) fn fill(fs: &FsHandle, seed: u64) -> Result<Model> {
    fill_directory(fs, block_on(fs.root())?.id, seed)
}

/// As [`fill`], in a directory: the model's paths begin there.
pub(crate) fn fill_directory(fs: &FsHandle, root: FileId, seed: u64) -> Result<Model> {
    let cred = Cred::root();
    let mut model = Model::new();
    let sizes = [
        0, 1, 100, 511, 512, 513, 4095, 4096, 60_000, 131_072, 131_073, 700_001, 3_000_000,
    ];
    for (i, size) in sizes.into_iter().enumerate() {
        for hard in [false, true] {
            let name = format!("file-{size}-{hard}");
            let content = bytes(seed + i as u64, size, hard);
            create(fs, root, &name, &content)?;
            model.insert(name, content);
        }
    }
    let sparse = create(fs, root, "sparse", b"head")?;
    let tail = IoBuf::copy_from(b"tail");
    block_on(fs.write(sparse, 9_000_000, tail, Stability::Unstable, &cred))?;
    let mut content = vec![0; 9_000_004];
    content[..4].copy_from_slice(b"head");
    content[9_000_000..].copy_from_slice(b"tail");
    model.insert("sparse".to_owned(), content);
    let dir = block_on(fs.mkdir(root, b"many", &SetAttr::default(), &cred))?
        .file
        .id;
    for i in 0..1500 {
        let name = format!("entry-{i}-{}", "y".repeat(i % 70));
        create(fs, dir, &name, name.as_bytes())?;
        if i % 3 == 0 {
            block_on(fs.remove(dir, name.as_bytes(), &cred))?;
        } else {
            model.insert(format!("many/{name}"), name.into_bytes());
        }
    }
    block_on(fs.sync())?;
    // A second round over blocks that are on disk: overwrite, truncate, punch, remove.
    let big = block_on(fs.lookup(root, b"file-3000000-true", &cred))?.id;
    let patch = bytes(seed + 99, 200_000, true);
    block_on(fs.write(
        big,
        1_234_567,
        IoBuf::copy_from(&patch),
        Stability::FileSync,
        &cred,
    ))?;
    block_on(fs.punch(big, 300_000, 500_000, &cred))?;
    let set = SetAttr {
        size: Some(2_500_000),
        ..SetAttr::default()
    };
    block_on(fs.setattr(big, &set, None, &cred))?;
    let content = model
        .get_mut("file-3000000-true")
        .context("the model has it")?;
    content[1_234_567..1_434_567].copy_from_slice(&patch);
    content[300_000..800_000].fill(0);
    content.truncate(2_500_000);
    block_on(fs.remove(root, b"file-700001-true", &cred))?;
    model.remove("file-700001-true");
    Ok(model)
}

pub(crate) fn verify(fs: &FsHandle, model: &Model) -> Result<()> {
    for (path, content) in model {
        let mut attr = block_on(fs.root())?;
        for name in path.split('/') {
            attr = block_on(fs.lookup(attr.id, name.as_bytes(), &Cred::root()))
                .with_context(|| format!("look up {path}"))?;
        }
        ensure!(
            attr.size == content.len() as u64,
            "{path} has {} bytes",
            attr.size
        );
        let mut at = 0;
        while at < content.len() {
            let data = block_on(fs.read(attr.id, at as u64, 1 << 20, &Cred::root()))
                .with_context(|| format!("read {path} at {at}"))?
                .to_vec();
            ensure!(!data.is_empty(), "{path}: nothing at {at}");
            ensure!(
                data == content[at..at + data.len()],
                "{path} differs after {at}"
            );
            at += data.len();
        }
    }
    Ok(())
}

/// Asks every judge about the exported pool.
pub(crate) fn judge(disks: &Disks, name: &str) -> Result<()> {
    let files: Vec<FileImage> = disks
        .images
        .iter()
        .map(|i| FileImage::open(i))
        .collect::<std::io::Result<_>>()?;
    let images: Vec<&dyn Image> = files.iter().map(|f| f as &dyn Image).collect();
    let report = checker::check(&images, Options::default());
    ensure!(
        report.is_clean(),
        "our checker: {:#?}",
        report.errors().take(10).collect::<Vec<_>>()
    );
    if oracle::has_zdb() {
        oracle::zdb_clean(disks.directory.path(), name)?;
    }
    if oracle::refpool().is_some() {
        // On a copy: the judge writes.
        let copies = Disks::new(0, 0);
        let mut images = Vec::new();
        for image in &disks.images {
            let copy = copies
                .directory
                .path()
                .join(image.file_name().context("a name")?);
            std::fs::copy(image, &copy)?;
            images.push(copy);
        }
        oracle::refpool_scrub(name, &images)?;
        if oracle::has_zdb() {
            oracle::zdb_clean(copies.directory.path(), name)
                .context("after OpenZFS wrote to it")?;
        }
    }
    Ok(())
}

pub(crate) fn dataset(
    pool: &PoolHandle,
    name: &str,
    properties: &[(&str, &str)],
) -> Result<FsHandle> {
    let properties = properties
        .iter()
        .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
        .collect::<Vec<_>>();
    let request = CreateDataset {
        name: name.to_owned(),
        properties,
        ..CreateDataset::default()
    };
    block_on(pool.create_dataset(request)).with_context(|| format!("create {name}"))?;
    Ok(block_on(pool.open_fs(name))?)
}

/// Makes a pool with one dataset per list of properties; fills, exports, judges, imports and verifies.
pub(crate) fn round_trip(
    name: &str,
    disks: &Disks,
    vdevs: Vec<VdevSpec>,
    ashift: u32,
    datasets: &[&[(&str, &str)]],
) -> Result<()> {
    let spec = PoolSpec {
        name: name.to_owned(),
        vdevs,
        properties: vec![("ashift".to_owned(), ashift.to_string())],
        ..PoolSpec::default()
    };
    round_trip_of(spec, disks, datasets)
}

fn round_trip_of(spec: PoolSpec, disks: &Disks, datasets: &[&[(&str, &str)]]) -> Result<()> {
    let engine = Engine::new(Threads::default());
    let name = &spec.name.clone();
    let is_numbered = spec.properties.iter().any(|(name, _)| name == "version");
    // Our own checker knows pools with features.
    let judge = |disks: &Disks, name: &str| match is_numbered {
        true if oracle::has_zdb() => oracle::zdb_clean(disks.directory.path(), name),
        true => Ok(()),
        false => judge(disks, name),
    };
    let pool = block_on(engine.create_pool(spec, &[])).context("create the pool")?;
    let mut models = Vec::new();
    for (i, properties) in datasets.iter().enumerate() {
        let dataset_name = format!("{name}/fs{i}");
        let fs = dataset(&pool, &dataset_name, properties)?;
        let model = fill(&fs, 1000 * i as u64).with_context(|| format!("fill {properties:?}"))?;
        verify(&fs, &model).with_context(|| format!("verify {properties:?}"))?;
        models.push((dataset_name, model));
    }
    block_on(engine.end_pool(name, Ending::Export { command: None })).context("export")?;
    judge(disks, name)?;

    let found = block_on(engine.discover(vec![disks.directory.path().to_path_buf()]))?;
    let candidate = found
        .pools
        .into_iter()
        .next()
        .context("the pool is found again")?;
    let pool = block_on(engine.import(candidate, ImportPolicy::default())).context("import")?;
    for (dataset_name, model) in &models {
        let fs = block_on(pool.open_fs(dataset_name))?;
        verify(&fs, model).with_context(|| format!("verify {dataset_name} after import"))?;
        // Everything goes again, so that freeing is judged as well.
        let root = block_on(fs.root())?.id;
        for path in model.keys().filter(|path| !path.contains('/')) {
            block_on(fs.remove(root, path.as_bytes(), &Cred::root()))
                .with_context(|| format!("remove {path}"))?;
        }
    }
    block_on(engine.end_pool(name, Ending::Export { command: None })).context("export again")?;
    judge(disks, name).context("after removing")
}

#[test]
#[ignore = "long: each compressor; golden pools with all of them are written to in other tests"]
fn single_disk_with_every_compression() {
    let disks = Disks::new(1, 512);
    let datasets: Vec<&[(&str, &str)]> = vec![
        &[("compression", "off")],
        &[("compression", "lz4")],
        &[("compression", "lzjb")],
        &[("compression", "zle")],
        &[("compression", "gzip-1")],
        &[("compression", "gzip-9")],
        &[("compression", "zstd")],
        &[("compression", "zstd-fast-10")],
    ];
    round_trip("single", &disks, vec![disks.single(0)], 12, &datasets).expect("a clean pool");
}

#[test]
fn mirror_with_checksums_and_copies() {
    let disks = Disks::new(2, 512);
    let datasets: Vec<&[(&str, &str)]> = vec![
        &[("checksum", "sha256"), ("copies", "2")],
        &[("checksum", "fletcher4"), ("copies", "3")],
        &[("atime", "off"), ("xattr", "sa")],
    ];
    round_trip("copies", &disks, vec![disks.mirror(0, 2)], 12, &datasets).expect("a clean pool");
}

/// Pools of versions that lack, one after the other, second copies, deflated space and the history.
#[test]
fn the_oldest_versions() {
    for (version, parity) in [(1, 0), (1, 1), (2, 1), (3, 2), (8, 0)] {
        let disks = Disks::new(4, 256);
        let vdevs = match parity {
            0 => vec![disks.mirror(0, 2), disks.single(2)],
            parity => vec![disks.raidz(parity, 0, 4)],
        };
        let spec = PoolSpec {
            name: format!("v{version}p{parity}"),
            vdevs,
            properties: vec![("version".to_owned(), version.to_string())],
            ..PoolSpec::default()
        };
        let datasets: Vec<&[(&str, &str)]> = vec![&[], &[("compression", "off")]];
        round_trip_of(spec, &disks, &datasets)
            .unwrap_or_else(|error| panic!("version {version}, parity {parity}: {error:#}"));
    }
}

#[test]
#[ignore = "long: each record size; other layouts are written in other tests"]
fn stripe_of_mirrors_with_record_sizes() {
    let disks = Disks::new(5, 256);
    let vdevs = vec![disks.mirror(0, 2), disks.mirror(2, 2), disks.single(4)];
    let datasets: Vec<&[(&str, &str)]> = vec![
        &[("recordsize", "512")],
        &[("recordsize", "4K"), ("compression", "off")],
        &[("recordsize", "1M")],
        &[("recordsize", "16M"), ("compression", "zstd-3")],
    ];
    round_trip("stripe", &disks, vdevs, 9, &datasets).expect("a clean pool");
}

#[test]
#[ignore = "long: each sector size; other layouts are written in other tests"]
fn sectors_of_8k_to_64k() {
    for ashift in [13, 14, 16] {
        let disks = Disks::new(2, 512);
        let name = format!("ashift{ashift}");
        let vdevs = vec![disks.mirror(0, 2)];
        round_trip(&name, &disks, vdevs, ashift, &[&[]])
            .unwrap_or_else(|error| panic!("ashift {ashift}: {error:#}"));
    }
}

#[test]
fn special_dedup_and_log_vdevs() {
    let disks = Disks::new(7, 256);
    let spec = PoolSpec {
        name: "classes".to_owned(),
        vdevs: vec![disks.mirror(0, 2)],
        special: vec![disks.mirror(2, 2)],
        dedup: vec![disks.single(4)],
        logs: vec![disks.mirror(5, 2)],
        ..PoolSpec::default()
    };
    let datasets: Vec<&[(&str, &str)]> = vec![&[("special_small_blocks", "16K")], &[]];
    round_trip_of(spec, &disks, &datasets).expect("a clean pool");
}

#[test]
#[ignore = "long: a full vdev; special vdevs are written in another test"]
fn a_small_special_vdev_overflows() {
    let disks = Disks::new(2, 512);
    let small = disks.images[1].clone();
    File::options()
        .write(true)
        .open(&small)
        .and_then(|file| file.set_len(64 << 20))
        .expect("size an image");
    let spec = PoolSpec {
        name: "overflow".to_owned(),
        vdevs: vec![disks.single(0)],
        special: vec![disks.single(1)],
        ..PoolSpec::default()
    };
    let datasets: Vec<&[(&str, &str)]> = vec![
        &[("special_small_blocks", "128K"), ("compression", "off")],
        &[("special_small_blocks", "128K"), ("compression", "off")],
    ];
    round_trip_of(spec, &disks, &datasets).expect("a clean pool");
}

#[test]
#[ignore = "long: every parity and many widths; other layouts are written in other tests"]
fn raidz_of_every_parity() {
    for (parity, width, ashift) in [(1, 3, 12), (2, 5, 9), (3, 7, 12), (1, 2, 13)] {
        let disks = Disks::new(width, 256);
        let name = format!("rz{parity}w{width}");
        let datasets: Vec<&[(&str, &str)]> = vec![
            &[],
            &[("recordsize", "1M"), ("compression", "off")],
            &[
                ("recordsize", "8K"),
                ("copies", "2"),
                ("checksum", "sha256"),
            ],
        ];
        let vdevs = vec![disks.raidz(parity, 0, width)];
        round_trip(&name, &disks, vdevs, ashift, &datasets)
            .unwrap_or_else(|error| panic!("raidz{parity} of {width}: {error:#}"));
    }
}

#[test]
fn stripe_of_raidz() {
    let disks = Disks::new(8, 128);
    let vdevs = vec![disks.raidz(2, 0, 4), disks.raidz(2, 4, 4)];
    round_trip(
        "rzstripe",
        &disks,
        vdevs,
        12,
        &[&[], &[("recordsize", "16M")]],
    )
    .expect("a clean pool");
}

/// Parity is only shown to be right by those who need it: as many disks as it allows are taken away, and OpenZFS reads
/// and repairs everything without them.
#[test]
fn openzfs_reads_our_raidz_without_the_disks_it_may_lose() {
    if !oracle::has_zdb() {
        return;
    }
    for (parity, width) in [(1_u8, 4), (2, 5), (3, 6)] {
        let disks = Disks::new(width, 128);
        let name = format!("rzlost{parity}");
        let engine = Engine::new(Threads::default());
        let spec = PoolSpec {
            name: name.clone(),
            vdevs: vec![disks.raidz(parity, 0, width)],
            ..PoolSpec::default()
        };
        let pool = block_on(engine.create_pool(spec, &[])).expect("create the pool");
        let fs =
            dataset(&pool, &format!("{name}/fs"), &[("recordsize", "64K")]).expect("a dataset");
        fill(&fs, 77).expect("fill");
        block_on(engine.end_pool(&name, Ending::Export { command: None })).expect("export");
        for lost in 0..=width - usize::from(parity) {
            // Each time another row of neighbours.
            let away = disks.directory.path().join("away");
            std::fs::create_dir_all(&away).expect("a directory");
            let gone = lost..lost + usize::from(parity);
            for image in &disks.images[gone.clone()] {
                let name = image.file_name().expect("a name");
                std::fs::rename(image, away.join(name)).expect("take it away");
            }
            let result = oracle::zdb_clean(disks.directory.path(), &name);
            for image in &disks.images[gone.clone()] {
                let name = image.file_name().expect("a name");
                std::fs::rename(away.join(name), image).expect("bring it back");
            }
            result.unwrap_or_else(|error| panic!("raidz{parity} without {gone:?}: {error:#}"));
        }
    }
}

#[test]
fn a_small_limit_makes_gangs() {
    let disks = Disks::new(3, 256);
    let engine = Engine::new(Threads::default());
    let mut tuning = engine::Tuning::default();
    tuning.blocks.gang_above_bytes = 20 << 10;
    let spec = PoolSpec {
        name: "gangs".to_owned(),
        vdevs: vec![disks.single(0), disks.single(1)],
        special: vec![disks.single(2)],
        tuning,
        ..PoolSpec::default()
    };
    let pool = block_on(engine.create_pool(spec, &[])).expect("create the pool");
    let fs = dataset(&pool, "gangs/fs", &[("copies", "2")]).expect("create a file system");
    let model = fill(&fs, 77).expect("fill it");
    verify(&fs, &model).expect("verify");
    drop((fs, pool));
    let export = || Ending::Export { command: None };
    block_on(engine.end_pool("gangs", export())).expect("export");
    judge(&disks, "gangs").expect("a clean pool");
    if oracle::has_zdb() {
        let count = oracle::zdb_gangs(disks.directory.path(), "gangs").expect("zdb counts");
        assert!(count > 20, "{count} gangs");
    }
    // Read and freed without the tuning.
    let found = block_on(engine.discover(vec![disks.directory.path().to_path_buf()]));
    let candidate = found.expect("discover").pools.remove(0);
    let pool = block_on(engine.import(candidate, ImportPolicy::default())).expect("import");
    let fs = block_on(pool.open_fs("gangs/fs")).expect("open");
    verify(&fs, &model).expect("verify after import");
    let root = block_on(fs.root()).expect("root").id;
    for path in model.keys().filter(|path| !path.contains('/')) {
        block_on(fs.remove(root, path.as_bytes(), &Cred::root())).expect("remove");
    }
    drop((fs, pool));
    block_on(engine.end_pool("gangs", export())).expect("export again");
    judge(&disks, "gangs").expect("a clean pool after freeing");
}
