//! Goal: volumes hold what is written to them, and OpenZFS finds their pools clean. Method: volumes of each block size, sparse and
//! thick, get random writes, zeroes, discards and resizes beside a model in memory; the pool is exported, judged by zdb,
//! OpenZFS's own code in userland and our checker, and read again after another import.

use anyhow::{Context as _, Result, bail, ensure};
use engine::pool_property::PropertyValue;
use engine::{
    CreateDataset, Ending, Engine, ImportPolicy, IoBuf, PoolHandle, PoolSpec, PropertyQuery,
    SnapshotRequest, Stability, Threads, VolumeError, VolumeHandle, property::Value,
};
use tests::block_on;

use crate::written_pools::{Disks, bytes, judge};

fn create(
    pool: &PoolHandle,
    name: &str,
    size: u64,
    sparse: bool,
    more: &[(&str, &str)],
) -> Result<VolumeHandle> {
    let mut properties: Vec<(String, String)> = more
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let plan = block_on(pool.plan_volume(size, sparse, &properties))?;
    properties.push(("volsize".to_owned(), plan.size.to_string()));
    if let Some(bytes) = plan.reservation {
        properties.push(("refreservation".to_owned(), bytes.to_string()));
    }
    let request = CreateDataset {
        name: name.to_owned(),
        volume: true,
        properties,
        ..CreateDataset::default()
    };
    block_on(pool.create_dataset(request)).with_context(|| format!("create {name}"))?;
    Ok(block_on(pool.open_volume(name))?)
}

fn number(pool: &PoolHandle, name: &str, property: &str) -> u64 {
    let found = block_on(pool.property(name, property)).expect("it exists");
    match found.map(|property| property.value) {
        Some(Value::Number(number)) => number,
        other => panic!("{property} of {name} is {other:?}"),
    }
}

fn read(volume: &VolumeHandle, offset: u64, len: usize) -> Result<Vec<u8>, VolumeError> {
    let pieces = block_on(volume.read(offset, len))?;
    Ok(pieces.iter().flat_map(|piece| piece.to_vec()).collect())
}

/// Writes, zeroes and discards at random, in the model too.
fn exercise(volume: &VolumeHandle, model: &mut [u8], seed: u64, rounds: u64) -> Result<()> {
    let size = model.len() as u64;
    let block = block_on(volume.info())?.block_size;
    for round in 0..rounds {
        let dice = bytes(seed + round, 24, true);
        let word = |at: usize| u64::from_le_bytes(dice[at..at + 8].try_into().expect("8 bytes"));
        let offset = (word(0) % size) & !511;
        let len = ((word(8) % 400_000) & !511).clamp(512, size - offset);
        let range = usize::try_from(offset)?..usize::try_from(offset + len)?;
        let stability = if round % 16 == 3 {
            Stability::FileSync
        } else {
            Stability::Unstable
        };
        match word(16) % 9 {
            0..=4 => {
                let data = bytes(word(16), range.len(), round % 2 == 0);
                model[range].copy_from_slice(&data);
                block_on(volume.write(offset, IoBuf::from(data), stability))?;
            }
            5 => {
                model[range].fill(0);
                block_on(volume.zero(offset, len, stability))?;
            }
            6 => {
                let (from, to) = (
                    offset.next_multiple_of(block),
                    (offset + len) / block * block,
                );
                if from < to {
                    model[usize::try_from(from)?..usize::try_from(to)?].fill(0);
                }
                block_on(volume.discard(offset, len, stability))?;
            }
            7 => {
                let mut at = Some(offset);
                while let Some(from) = at {
                    at = block_on(volume.rewrite(from, offset + len - from))?.next;
                }
            }
            _ => {
                let found = read(volume, offset, range.len())?;
                ensure!(found == model[range], "{len} bytes at {offset} differ");
            }
        }
    }
    Ok(())
}

fn same(volume: &VolumeHandle, model: &[u8]) -> Result<()> {
    ensure!(
        block_on(volume.info())?.size == model.len() as u64,
        "the size"
    );
    for (at, expected) in model.chunks(1 << 20).enumerate() {
        let found = read(volume, (at << 20) as u64, expected.len())?;
        ensure!(found == expected, "MiB {at} differs");
    }
    let map = block_on(volume.allocation(0, model.len() as u64, usize::MAX))?;
    for part in map.iter().filter(|part| !part.data) {
        let range = usize::try_from(part.offset)?..usize::try_from(part.offset + part.len)?;
        ensure!(model[range].iter().all(|b| *b == 0), "a hole over data");
    }
    Ok(())
}

/// Copies ranges, holes with them: between volumes of different block sizes, within one, and onto the range's own end.
fn copies(pool: &PoolHandle, models: &mut [(String, Vec<u8>)]) -> Result<()> {
    const PIECE: usize = 1 << 20;
    let handles = models
        .iter()
        .map(|(name, _)| block_on(pool.open_volume(name)))
        .collect::<Result<Vec<_>, _>>()?;
    for (source, from, target, to, len) in [
        (1, 516 << 10, 4, PIECE + 4096, 5 * PIECE + 8192),
        (4, 0, 4, 5 * PIECE, 3 * PIECE),
        (5, 0, 5, 2 * PIECE, 4 * PIECE),
    ] {
        let place = |at: usize| at as u64;
        let copy = handles[target].copy_from(
            &handles[source],
            place(from),
            place(to),
            place(len),
            Stability::FileSync,
        );
        block_on(copy)?;
        // In order, a MiB of the target at a time.
        let mut at = 0;
        while at < len {
            let step = (PIECE - (to + at) % PIECE).min(len - at);
            let piece = models[source].1[from + at..from + at + step].to_vec();
            models[target].1[to + at..to + at + step].copy_from_slice(&piece);
            at += step;
        }
        same(&handles[target], &models[target].1)
            .with_context(|| format!("{len} bytes of {from} at {to}"))?;
    }
    Ok(())
}

#[test]
#[ignore = "long: each block size; one is tested elsewhere"]
fn volumes_of_every_block_size_are_clean() {
    let run = || -> Result<()> {
        let disks = Disks::new(2, 512);
        let engine = Engine::new(Threads::default());
        let spec = PoolSpec {
            name: "vols".to_owned(),
            vdevs: vec![disks.mirror(0, 2)],
            properties: vec![("ashift".to_owned(), "12".to_owned())],
            ..PoolSpec::default()
        };
        let pool = block_on(engine.create_pool(spec, &[]))?;
        let mut models = Vec::new();
        for (i, (block, sparse, more)) in [
            ("512", true, ("compression", "off")),
            ("4K", true, ("compression", "lz4")),
            ("8K", false, ("checksum", "sha256")),
            ("16K", false, ("compression", "zstd")),
            ("128K", true, ("copies", "2")),
            ("1M", true, ("sync", "disabled")),
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("vols/v{block}");
            let volume = create(
                &pool,
                &name,
                9 << 20,
                sparse,
                &[("volblocksize", block), more],
            )?;
            let mut model = vec![0; usize::try_from(block_on(volume.info())?.size)?];
            exercise(&volume, &mut model, 7 + i as u64 * 1000, 60)?;
            same(&volume, &model).with_context(|| name.clone())?;
            models.push((name, model));
        }
        // Larger, smaller and larger again: what was cut off is zeros.
        let (name, model) = &mut models[3];
        let reserved = number(&pool, name, "refreservation");
        for mib in [12_u64, 3, 8] {
            let setting = ("volsize".to_owned(), format!("{mib}M"));
            block_on(pool.set_dataset_properties(name, &[setting]))?;
            model.resize(usize::try_from(mib << 20)?, 0);
            same(&block_on(pool.open_volume(name))?, model)?;
        }
        ensure!(
            number(&pool, name, "refreservation") < reserved,
            "it follows the size"
        );
        let odd = [("volsize".to_owned(), "1000000".to_owned())];
        let refused = block_on(pool.set_dataset_properties(name, &odd)).expect_err("refused");
        ensure!(
            refused.to_string() == "'volsize' must be a multiple of volume block size (16K)",
            "{refused}"
        );
        copies(&pool, &mut models)?;
        block_on(engine.end_pool("vols", Ending::Export { command: None }))?;
        judge(&disks, "vols")?;

        let pool = import_again(&engine, &disks)?;
        for (name, model) in &models {
            same(&block_on(pool.open_volume(name))?, model).with_context(|| name.clone())?;
        }
        for (name, _) in models.iter().skip(1) {
            block_on(pool.destroy_dataset(name, engine::DestroyOptions::default()))?;
            ensure!(
                block_on(pool.dataset(name, &PropertyQuery::None)).is_err(),
                "gone"
            );
        }
        block_on(engine.end_pool("vols", Ending::Export { command: None }))?;
        judge(&disks, "vols").context("after destroying")
    };
    run().expect("a clean pool");
}

#[test]
fn volumes_refuse_what_makes_no_sense() {
    let run = || -> Result<()> {
        let disks = Disks::new(1, 128);
        let engine = Engine::new(Threads::default());
        let spec = PoolSpec {
            name: "small".to_owned(),
            vdevs: vec![disks.single(0)],
            ..PoolSpec::default()
        };
        let pool = block_on(engine.create_pool(spec, &[]))?;
        let volume = create(&pool, "small/v", 1 << 20, true, &[])?;
        let end = 1 << 20;
        let data = || IoBuf::from(vec![1; 512]);
        let out_of_range = Err(VolumeError::OutOfRange);
        ensure!(block_on(volume.write(end, data(), Stability::Unstable)) == out_of_range);
        ensure!(block_on(volume.write(u64::MAX, data(), Stability::Unstable)) == out_of_range);
        ensure!(block_on(volume.zero(end - 512, 1024, Stability::Unstable)) == out_of_range);
        ensure!(block_on(volume.read(end - 512, 1024)).is_err());
        // Too large for the pool, thick: refused by name; sparse: made.
        let large = create(&pool, "small/large", 1 << 40, false, &[]).expect_err("refused");
        ensure!(format!("{large:#}").contains("out of space"), "{large:#}");
        create(&pool, "small/large", 1 << 40, true, &[])?;
        // A full pool says so, and giving space back works.
        let mut at = 0;
        let full = loop {
            let data = IoBuf::from(bytes(at, 1 << 20, true));
            let large = block_on(pool.open_volume("small/large"))?;
            match block_on(large.write(at, data, Stability::Unstable)) {
                Ok(()) => at += 1 << 20,
                Err(error) => break error,
            }
        };
        ensure!(full == VolumeError::NoSpace, "{full}");
        let large = block_on(pool.open_volume("small/large"))?;
        block_on(large.discard(0, 1 << 40, Stability::FileSync))?;
        let mut freed = false;
        for _ in 0..8 {
            block_on(pool.sync())?;
            let data = IoBuf::from(bytes(1, 1 << 20, true));
            freed |= block_on(large.write(5 << 20, data, Stability::Unstable)).is_ok();
        }
        ensure!(freed, "space came back");
        // Read-only, and snapshots' rules.
        let setting = [("readonly".to_owned(), "on".to_owned())];
        block_on(pool.set_dataset_properties("small/v", &setting))?;
        ensure!(
            block_on(volume.write(0, data(), Stability::Unstable)) == Err(VolumeError::ReadOnly)
        );
        ensure!(block_on(pool.open_fs("small/v")).is_err(), "no file system");
        ensure!(block_on(pool.open_volume("small")).is_err(), "no volume");
        block_on(pool.destroy_dataset("small/v", engine::DestroyOptions::default()))?;
        ensure!(block_on(volume.read(0, 512)) == Err(VolumeError::Gone));
        block_on(engine.end_pool("small", Ending::Export { command: None }))?;
        ensure!(block_on(volume.read(0, 512)) == Err(VolumeError::Busy));
        judge(&disks, "small")
    };
    run().expect("as expected");
}

fn pool_number(pool: &PoolHandle, name: &str) -> Result<u64> {
    let all = block_on(pool.properties())?;
    let found = all.iter().find(|entry| entry.name == name);
    match &found.context("a property of the pool")?.value {
        PropertyValue::Number(number) => Ok(*number),
        other => bail!("{name} is {other:?}"),
    }
}

fn import_again(engine: &Engine, disks: &Disks) -> Result<PoolHandle> {
    let found = block_on(engine.discover(vec![disks.directory.path().to_path_buf()]))?;
    let candidate = found.pools.into_iter().next().context("found again")?;
    Ok(block_on(engine.import(candidate, ImportPolicy::default()))?)
}

/// Copies ranges between volumes of one block size at random, beside models, with writes and snapshots in between. Returns the
/// snapshots.
fn copy_at_random(
    pool: &PoolHandle,
    models: &mut [(String, Vec<u8>)],
    seed: u64,
    rounds: u64,
) -> Result<Vec<String>> {
    const BLOCK: usize = 16 << 10;
    let mut snapshots = Vec::new();
    for round in 0..rounds {
        let dice = bytes(seed + round, 48, true);
        let word =
            |at: usize| u64::from_le_bytes(dice[at * 8..at * 8 + 8].try_into().expect("8 bytes"));
        let below = |at: usize, end: usize| usize::try_from(word(at) % end as u64).expect("small");
        let (source, target) = (below(0, models.len()), below(1, models.len()));
        let size = models[source].1.len();
        // Two of three are whole blocks at both ends.
        let unit = if word(2) % 3 == 0 { 512 } else { BLOCK };
        let len = unit * (1 + below(3, size / unit / 2));
        let from = (below(4, size - len + 1)) / unit * unit;
        let to = (below(5, size - len + 1)) / unit * unit;
        let stability = match round % 5 {
            0 => Stability::FileSync,
            _ => Stability::Unstable,
        };
        if source != target || from.abs_diff(to) >= len {
            let theirs = block_on(pool.open_volume(&models[source].0))?;
            let ours = block_on(pool.open_volume(&models[target].0))?;
            block_on(ours.copy_from(&theirs, from as u64, to as u64, len as u64, stability))?;
            let piece = models[source].1[from..from + len].to_vec();
            models[target].1[to..to + len].copy_from_slice(&piece);
        }
        if round % 3 == 1 {
            let (name, model) = &mut models[target];
            exercise(&block_on(pool.open_volume(name))?, model, word(2), 2)?;
        }
        match round % 7 {
            2 | 4 => block_on(pool.sync())?,
            6 => {
                snapshots.push(format!("{}@{seed}-{round}", models[target].0));
                let request = SnapshotRequest {
                    names: snapshots.last().cloned().into_iter().collect(),
                    ..SnapshotRequest::default()
                };
                ensure!(block_on(pool.snapshot(request))?.is_empty(), "a snapshot");
            }
            _ => {}
        }
    }
    for (name, model) in models.iter() {
        same(&block_on(pool.open_volume(name))?, model).with_context(|| name.clone())?;
    }
    Ok(snapshots)
}

#[test]
#[ignore = "long: ranges at random; files are cloned in other tests"]
fn ranges_of_volumes_are_cloned() {
    let run = || -> Result<()> {
        let disks = Disks::new(2, 512);
        let engine = Engine::new(Threads::default());
        let spec = PoolSpec {
            name: "clones".to_owned(),
            vdevs: vec![disks.mirror(0, 2)],
            ..PoolSpec::default()
        };
        let pool = block_on(engine.create_pool(spec, &[]))?;
        let mut models = Vec::new();
        for (name, more) in [
            ("clones/a", ("compression", "lz4")),
            ("clones/b", ("compression", "off")),
            ("clones/c", ("checksum", "sha256")),
        ] {
            let volume = create(
                &pool,
                name,
                12 << 20,
                true,
                &[("volblocksize", "16K"), more],
            )?;
            let mut model = vec![0; 12 << 20];
            exercise(&volume, &mut model, 77, 40)?;
            models.push((name.to_owned(), model));
        }
        block_on(pool.sync())?;
        let mut snapshots = copy_at_random(&pool, &mut models, 9_000, 60).context("at first")?;
        ensure!(
            pool_number(&pool, "bclonesaved")? > 1 << 20,
            "blocks are shared"
        );
        // What was answered as stable outlives a crash, clones in the log with it.
        block_on(pool.sync())?;
        let before = pool_number(&pool, "bclonesaved")?;
        let (theirs, ours) = (
            block_on(pool.open_volume("clones/a"))?,
            block_on(pool.open_volume("clones/b"))?,
        );
        let copied = ours.copy_from(&theirs, 0, 0, 12 << 20, Stability::FileSync);
        block_on(copied).context("a stable copy")?;
        models[1].1 = models[0].1.clone();
        block_on(engine.end_pool("clones", Ending::Abandon)).context("given up")?;
        drop((pool, theirs, ours));
        let pool = import_again(&engine, &disks).context("imported after that")?;
        for (name, model) in &models {
            let volume = block_on(pool.open_volume(name)).with_context(|| name.clone())?;
            same(&volume, model).with_context(|| name.clone())?;
        }
        block_on(pool.sync())?;
        let after = pool_number(&pool, "bclonesaved")?;
        ensure!(
            after > before,
            "cloned again at replay: {after} after {before}"
        );
        let more = copy_at_random(&pool, &mut models, 19_000, 30).context("after the crash")?;
        snapshots.extend(more);
        block_on(engine.end_pool("clones", Ending::Export { command: None }))?;
        judge(&disks, "clones")?;

        let pool = import_again(&engine, &disks)?;
        for (name, model) in &models {
            same(&block_on(pool.open_volume(name))?, model).with_context(|| name.clone())?;
        }
        snapshots.retain(|name| !name.starts_with("clones/b"));
        ensure!(block_on(pool.destroy_snapshots(&snapshots, false))?.is_empty());
        for name in ["clones/c", "clones/a"] {
            block_on(pool.destroy_dataset(name, engine::DestroyOptions::default()))?;
        }
        same(&block_on(pool.open_volume("clones/b"))?, &models[1].1)?;
        block_on(engine.end_pool("clones", Ending::Export { command: None }))?;
        judge(&disks, "clones").context("after the origins went")
    };
    run().expect("a clean pool");
}
