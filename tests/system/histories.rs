//! Goal: snapshots, clones and what can be done with them leave a pool that OpenZFS finds clean, with exact accounts.
//! Method: random histories of writing, snapshots, clones, promotion, destruction, renaming and rollback, by seed; every
//! snapshot's contents are remembered and compared, what a destruction promises to free is compared with what it freed,
//! and at the end zdb, our checker, OpenZFS's own code and an independent reader's accounts judge the pool.

use anyhow::{Context as _, Result, ensure};
use engine::{
    CreateDataset, Cred, DestroyOptions, Ending, Engine, EngineError, FsHandle, ImportPolicy,
    IoBuf, PoolHandle, PoolSpec, PropertyQuery, SnapshotRequest, Stability, Threads,
};
use std::collections::BTreeMap;
use tests::{block_on, oracle};

use crate::written_pools::{Disks, Model, bytes, create, judge, verify};

/// A seeded sequence of numbers.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).expect("small");
        usize::try_from(self.next() % limit).expect("small")
    }

    pub(crate) fn pick<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        if of.is_empty() {
            return None;
        }
        Some(of[self.below(of.len())].clone())
    }
}

/// What every dataset and snapshot should hold, by name.
#[derive(Default)]
struct World {
    heads: BTreeMap<String, Model>,
    snapshots: BTreeMap<String, Model>,
    /// Snapshots of each head, oldest first.
    lines: BTreeMap<String, Vec<String>>,
    /// A clone's origin.
    origins: BTreeMap<String, String>,
    counter: u32,
}

impl World {
    fn heads(&self) -> Vec<String> {
        self.heads.keys().cloned().collect()
    }

    fn fresh(&mut self, prefix: &str) -> String {
        self.counter += 1;
        format!("{prefix}{}", self.counter)
    }

    fn full(head: &str, short: &str) -> String {
        format!("{head}@{short}")
    }

    fn all_snapshots(&self) -> Vec<(String, String)> {
        self.lines
            .iter()
            .flat_map(|(head, line)| line.iter().map(move |s| (head.clone(), s.clone())))
            .collect()
    }

    fn is_cloned(&self, snapshot: &str) -> bool {
        self.origins.values().any(|origin| origin == snapshot)
    }
}

const POOL: &str = "history";

fn write(pool: &PoolHandle, world: &mut World, dice: &mut Dice) -> Result<()> {
    let Some(head) = dice.pick(&world.heads()) else {
        return Ok(());
    };
    let fs = block_on(pool.open_fs(&head))?;
    let model = world.heads.get_mut(&head).context("the model has it")?;
    let (root, cred) = (block_on(fs.root())?.id, Cred::root());
    for _ in 0..=dice.below(4) {
        let known: Vec<String> = model.keys().cloned().collect();
        match (dice.below(4), dice.pick(&known)) {
            (0, Some(name)) => {
                block_on(fs.remove(root, name.as_bytes(), &cred))?;
                model.remove(&name);
            }
            (1 | 2, Some(name)) => overwrite(&fs, &name, model, dice)?,
            _ => {
                let name = format!("f{}", dice.next() % 1_000_000);
                let sizes = [0, 100, 3000, 131_072, 300_000, 900_000];
                let content = bytes(
                    dice.next(),
                    sizes[dice.below(sizes.len())],
                    dice.below(2) == 0,
                );
                if model.contains_key(&name) {
                    continue;
                }
                create(&fs, root, &name, &content)?;
                model.insert(name, content);
            }
        }
    }
    Ok(())
}

fn overwrite(fs: &FsHandle, name: &str, model: &mut Model, dice: &mut Dice) -> Result<()> {
    let cred = Cred::root();
    let root = block_on(fs.root())?.id;
    let file = block_on(fs.lookup(root, name.as_bytes(), &cred))?.id;
    let content = model.get_mut(name).context("the model has it")?;
    let at = dice.below(content.len() + 1);
    let patch = bytes(dice.next(), 1 + dice.below(200_000), true);
    let data = IoBuf::copy_from(&patch);
    block_on(fs.write(file, at as u64, data, Stability::Unstable, &cred))?;
    if content.len() < at + patch.len() {
        content.resize(at + patch.len(), 0);
    }
    content[at..at + patch.len()].copy_from_slice(&patch);
    Ok(())
}

fn snapshot(pool: &PoolHandle, world: &mut World, dice: &mut Dice) -> Result<()> {
    let short = world.fresh("s");
    let mut heads = world.heads();
    if dice.below(3) > 0 {
        heads = dice.pick(&heads).into_iter().collect();
    }
    let request = SnapshotRequest {
        names: heads.iter().map(|h| World::full(h, &short)).collect(),
        ..SnapshotRequest::default()
    };
    let refused = block_on(pool.snapshot(request))?;
    ensure!(refused.is_empty(), "snapshot: {refused:?}");
    for head in heads {
        let model = world.heads[&head].clone();
        world.snapshots.insert(World::full(&head, &short), model);
        world.lines.entry(head).or_default().push(short.clone());
    }
    Ok(())
}

fn number(pool: &PoolHandle, name: &str, property: &str) -> Result<u64> {
    let found = block_on(pool.property(name, property))?.context("the property is there")?;
    found.value.number().context("a number")
}

/// Destroys a run of snapshots and checks that as much space goes as was said before.
fn destroy_snapshots(pool: &PoolHandle, world: &mut World, dice: &mut Dice) -> Result<()> {
    let Some((head, short)) = dice.pick(&world.all_snapshots()) else {
        return Ok(());
    };
    let line = world.lines[&head].clone();
    let from = line.iter().position(|s| *s == short).context("known")?;
    let to = (from + dice.below(3)).min(line.len() - 1);
    let run = &line[from..=to];
    let names: Vec<String> = run.iter().map(|s| World::full(&head, s)).collect();
    let cloned = names.iter().any(|name| world.is_cloned(name));
    // What is written but not synced would change the sums meanwhile.
    block_on(pool.sync())?;
    let said = block_on(pool.would_free(&names[0], &names[names.len() - 1]))?;
    let before = number(pool, &head, "usedbysnapshots")?;
    let refused = block_on(pool.destroy_snapshots(&names, false))?;
    if cloned {
        ensure!(!refused.is_empty(), "a cloned snapshot went");
        return Ok(());
    }
    ensure!(refused.is_empty(), "destroy {names:?}: {refused:?}");
    let after = number(pool, &head, "usedbysnapshots")?;
    ensure!(
        before - after == said,
        "destroy {names:?} should free {said} and freed {}",
        before - after
    );
    for name in &names {
        world.snapshots.remove(name);
    }
    let line = world.lines.get_mut(&head).context("known")?;
    line.drain(from..=to);
    Ok(())
}

fn clone(pool: &PoolHandle, world: &mut World, dice: &mut Dice) -> Result<()> {
    if world.heads.len() > 7 {
        return Ok(());
    }
    let Some((head, short)) = dice.pick(&world.all_snapshots()) else {
        return Ok(());
    };
    let origin = World::full(&head, &short);
    let name = format!("{POOL}/{}", world.fresh("c"));
    block_on(pool.clone_snapshot(&origin, &name, &[], false))
        .with_context(|| format!("clone {origin} to {name}"))?;
    world
        .heads
        .insert(name.clone(), world.snapshots[&origin].clone());
    world.lines.insert(name.clone(), Vec::new());
    world.origins.insert(name, origin);
    Ok(())
}

fn promote(pool: &PoolHandle, world: &mut World, dice: &mut Dice) -> Result<()> {
    let clones: Vec<String> = world.origins.keys().cloned().collect();
    let Some(clone) = dice.pick(&clones) else {
        return Ok(());
    };
    let origin = world.origins[&clone].clone();
    let (old, short) = origin.split_once('@').context("a snapshot")?;
    match block_on(pool.promote(&clone)) {
        Ok(()) => {}
        Err(EngineError::Conflicts { .. }) => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("promote {clone}")),
    }
    let line = world.lines.get_mut(old).context("known")?;
    let count = line.iter().position(|s| s == short).context("known")? + 1;
    let moved: Vec<String> = line.drain(..count).collect();
    for short in &moved {
        let (from, to) = (World::full(old, short), World::full(&clone, short));
        let model = world.snapshots.remove(&from).context("known")?;
        world.snapshots.insert(to.clone(), model);
        for origin in world.origins.values_mut().filter(|o| **o == from) {
            origin.clone_from(&to);
        }
    }
    let mine = world.lines.get_mut(&clone).context("known")?;
    mine.splice(0..0, moved);
    let above = world.origins.remove(old);
    world.origins.remove(&clone);
    if let Some(above) = above {
        world.origins.insert(clone.clone(), above);
    }
    let origin = World::full(&clone, short);
    world.origins.insert(old.to_owned(), origin);
    Ok(())
}

fn destroy_head(pool: &PoolHandle, world: &mut World, dice: &mut Dice) -> Result<()> {
    let empty: Vec<String> = world
        .lines
        .iter()
        .filter(|(head, line)| line.is_empty() && *head != "history/a")
        .map(|(head, _)| head.clone())
        .collect();
    let Some(head) = dice.pick(&empty) else {
        return Ok(());
    };
    block_on(pool.destroy_dataset(&head, DestroyOptions::default()))
        .with_context(|| format!("destroy {head}"))?;
    world.heads.remove(&head);
    world.lines.remove(&head);
    world.origins.remove(&head);
    Ok(())
}

fn rename(pool: &PoolHandle, world: &mut World, dice: &mut Dice) -> Result<()> {
    let Some((head, short)) = dice.pick(&world.all_snapshots()) else {
        return Ok(());
    };
    let new = world.fresh("r");
    let (from, to) = (World::full(&head, &short), World::full(&head, &new));
    block_on(pool.rename_snapshot(&from, &to, false)).context("rename")?;
    let model = world.snapshots.remove(&from).context("known")?;
    world.snapshots.insert(to.clone(), model);
    for origin in world.origins.values_mut().filter(|o| **o == from) {
        origin.clone_from(&to);
    }
    let line = world.lines.get_mut(&head).context("known")?;
    for name in line.iter_mut().filter(|name| **name == short) {
        name.clone_from(&new);
    }
    Ok(())
}

fn rollback(pool: &PoolHandle, world: &mut World, dice: &mut Dice) -> Result<()> {
    let Some(head) = dice.pick(&world.heads()) else {
        return Ok(());
    };
    let newest = world.lines[&head].last().cloned();
    let target = match (&newest, world.origins.get(&head)) {
        (Some(short), _) => World::full(&head, short),
        (None, Some(origin)) => origin.clone(),
        (None, None) => return Ok(()),
    };
    block_on(pool.rollback(&head, None)).with_context(|| format!("roll {head} back"))?;
    let model = world.snapshots[&target].clone();
    world.heads.insert(head, model);
    Ok(())
}

fn verify_all(pool: &PoolHandle, world: &World) -> Result<()> {
    for (name, model) in world.heads.iter().chain(&world.snapshots) {
        let fs = block_on(pool.open_fs(name)).with_context(|| format!("open {name}"))?;
        verify(&fs, model).with_context(|| format!("contents of {name}"))?;
    }
    for (name, origin) in &world.origins {
        let found = block_on(pool.property(name, "origin"))?.context("an origin")?;
        ensure!(found.value.text() == Some(origin), "origin of {name}");
    }
    let query = PropertyQuery::Named(vec!["used".to_owned(), "usedbysnapshots".to_owned()]);
    for head in world.heads.keys() {
        let info = block_on(pool.dataset(head, &query))?;
        let by = |name: &str| {
            info.property(name)
                .and_then(|p| p.value.number())
                .unwrap_or(0)
        };
        let line = &world.lines[head];
        if let (Some(first), Some(last)) = (line.first(), line.last()) {
            // All of a dataset's snapshots together hold what is charged to its snapshots, unless
            // clones hold some of it as well.
            let cloned = line.iter().any(|s| world.is_cloned(&World::full(head, s)));
            let (first, last) = (World::full(head, first), World::full(head, last));
            if !cloned {
                let all = block_on(pool.would_free(&first, &last))?;
                ensure!(
                    all == by("usedbysnapshots"),
                    "snapshots of {head}: {all} and {}",
                    by("usedbysnapshots")
                );
            }
        } else {
            ensure!(by("usedbysnapshots") == 0, "{head} has no snapshots");
        }
    }
    Ok(())
}

fn history(seed: u64, steps: usize) -> Result<()> {
    let disks = Disks::new(1, 512);
    let engine = Engine::new(Threads::default());
    let spec = PoolSpec {
        name: POOL.to_owned(),
        vdevs: vec![disks.single(0)],
        ..PoolSpec::default()
    };
    let mut pool = block_on(engine.create_pool(spec, &[])).context("create the pool")?;
    let (mut world, mut dice) = (World::default(), Dice(seed));
    for name in ["history/a", "history/a/b"] {
        let request = CreateDataset {
            name: name.to_owned(),
            ..CreateDataset::default()
        };
        block_on(pool.create_dataset(request))?;
        world.heads.insert(name.to_owned(), Model::new());
        world.lines.insert(name.to_owned(), Vec::new());
    }
    let reserve = ("refreservation".to_owned(), "3M".to_owned());
    block_on(pool.set_dataset_properties("history/a/b", &[reserve]))?;
    for step in 0..steps {
        let done = match dice.below(20) {
            0..=6 => write(&pool, &mut world, &mut dice),
            7..=10 => snapshot(&pool, &mut world, &mut dice),
            11..=13 => destroy_snapshots(&pool, &mut world, &mut dice),
            14 => clone(&pool, &mut world, &mut dice),
            15 => promote(&pool, &mut world, &mut dice),
            16 => destroy_head(&pool, &mut world, &mut dice),
            17 => rename(&pool, &mut world, &mut dice),
            18 => rollback(&pool, &mut world, &mut dice),
            _ => Ok(block_on(pool.sync())?),
        };
        done.with_context(|| format!("step {step}"))?;
    }
    verify_all(&pool, &world)?;
    drop(pool);
    block_on(engine.end_pool(POOL, Ending::Export { command: None })).context("export")?;
    judge(&disks, POOL)?;
    oracle::accounts_agree(&disks.images)?;

    let found = block_on(engine.discover(vec![disks.directory.path().to_path_buf()]))?;
    let candidate = found
        .pools
        .into_iter()
        .next()
        .context("it is found again")?;
    pool = block_on(engine.import(candidate, ImportPolicy::default())).context("import")?;
    verify_all(&pool, &world).context("after import")?;
    // Everything goes again: clones and datasets from the youngest on.
    while let Some(head) = world.heads().pop() {
        for step in 0.. {
            ensure!(step < 100, "{head} does not go");
            let clones: Vec<String> = world
                .origins
                .iter()
                .filter(|(_, origin)| origin.starts_with(&format!("{head}@")))
                .map(|(clone, _)| clone.clone())
                .collect();
            let Some(clone) = clones.first() else { break };
            // A clone takes the snapshots over, and the head becomes its clone.
            block_on(pool.promote(clone)).with_context(|| format!("promote {clone}"))?;
            relink(&mut world, clone)?;
        }
        let names: Vec<String> = world.lines[&head]
            .iter()
            .map(|s| World::full(&head, s))
            .collect();
        let refused = block_on(pool.destroy_snapshots(&names, false))?;
        ensure!(refused.is_empty(), "{refused:?}");
        block_on(pool.destroy_dataset(&head, DestroyOptions::default()))
            .with_context(|| format!("destroy {head}"))?;
        world.heads.remove(&head);
        world.lines.remove(&head);
        world.origins.remove(&head);
    }
    block_on(engine.end_pool(POOL, Ending::Export { command: None })).context("export again")?;
    judge(&disks, POOL).context("after destroying everything")?;
    oracle::accounts_agree(&disks.images).context("after destroying everything")
}

/// Follows a promotion in the model, without contents.
fn relink(world: &mut World, clone: &str) -> Result<()> {
    let origin = world.origins[clone].clone();
    let (old, short) = origin.split_once('@').context("a snapshot")?;
    let line = world.lines.get_mut(old).context("known")?;
    let count = line.iter().position(|s| s == short).context("known")? + 1;
    let moved: Vec<String> = line.drain(..count).collect();
    for short in &moved {
        let (from, to) = (World::full(old, short), World::full(clone, short));
        for origin in world.origins.values_mut().filter(|o| **o == from) {
            origin.clone_from(&to);
        }
    }
    let mine = world.lines.get_mut(clone).context("known")?;
    mine.splice(0..0, moved);
    let above = world.origins.remove(old);
    world.origins.remove(clone);
    if let Some(above) = above {
        world.origins.insert(clone.to_owned(), above);
    }
    world
        .origins
        .insert(old.to_owned(), World::full(clone, short));
    Ok(())
}

#[test]
#[ignore = "long: histories at random, with zdb; a campaign has them, too"]
fn histories_of_snapshots_and_clones() {
    let seeds = match std::env::var("SANBOX_HISTORY_SEED") {
        Ok(seed) => vec![seed.parse().expect("a number")],
        Err(_) => vec![1, 2, 3],
    };
    for seed in seeds {
        history(seed, 120).unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
    }
}
