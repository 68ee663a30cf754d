//! Blocks of a snapshot that are damaged on every disk, and come back from a stream of it (`zfs receive -c`), also when power is cut
//! meanwhile.
//!
//! What is damaged is found on the disks by its stored bytes, as a stream has them. Only blocks are taken that are stored once, because
//! others may be those of another dataset with the same contents, which the stream does not heal.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use engine::stream::{RECORD_SIZE, SendOptions, StreamReader, StreamRecord};
use engine::{Ending, Engine, PoolHandle, PropertyQuery, ReceiveNote, ReceiveRequest, SendRequest};
use world::{Ended, Rng, World};

use super::datasets::{DatasetHistory, Names, ROOT, head_of, is_snapshot, print, text};
use super::encryption::Opened;
use super::replicas::{COPY, bytes_of};
use super::scenario::{self, Layout, POOL, Plan, Trouble};

/// Types of the objects that hold what users wrote: files and volumes.
// OpenZFS: include/sys/dmu.h, DMU_OT_PLAIN_FILE_CONTENTS, DMU_OT_ZVOL
const CONTENTS: [u32; 2] = [19, 23];
/// The least a block takes, and what its place is a multiple of.
const SECTOR_BYTES: usize = 512;
/// Bytes by which blocks are looked for.
const BEGINNING: usize = 16;
/// Boots in which power may be cut while it is healed.
const CUTS: u64 = 2;

/// A snapshot that is to be healed.
struct Patient {
    snapshot: String,
    volume: bool,
    /// The stream that heals it.
    stream: Vec<u8>,
    raw: bool,
    /// The blocks of its contents, as they are stored.
    blocks: Vec<Vec<u8>>,
    /// How often each is in the pool.
    copies: usize,
    /// Disks that have each of them, at the same place.
    sides: usize,
}

/// Damages blocks of a snapshot that `names` has and heals them; returns how many, and how often power was cut.
///
/// # Errors
/// A sentence: damage is not noticed, or does not go.
pub(super) fn run(
    plan: &Plan,
    world: &World,
    rng: &mut Rng,
    names: &Rc<RefCell<DatasetHistory>>,
) -> Result<(u64, u32), String> {
    let sides = match plan.layout {
        _ if plan.trouble != Trouble::None => return Ok((0, 0)),
        Layout::Single | Layout::Stripe => 1,
        Layout::Mirror | Layout::TwoMirrors => 2,
        // Blocks lie there in parts.
        Layout::Raidz1 | Layout::Raidz2 | Layout::Raidz3 | Layout::Grid { .. } => {
            return Ok((0, 0));
        }
    };
    let known = names.borrow().names().clone();
    let Some(mut patient) = choose(plan, world, rng, &known)? else {
        return Ok((0, 0));
    };
    patient.sides = sides;
    let damaged = damage(world, rng, &patient);
    if damaged == 0 {
        return Ok((0, 0));
    }
    let snapshot = &patient.snapshot;
    let seen = scenario::uncut(with_pool(plan, world, None, async |pool| {
        Opened::default().key_of(&pool, head_of(snapshot)).await?;
        Ok(print(&pool, snapshot, patient.volume).await.is_err())
    }))?;
    if !seen {
        return Err(format!("{snapshot} is read with {damaged} lost blocks"));
    }
    let (mut healed, mut cuts) = (0, 0);
    for _ in 0..rng.below(CUTS + 1) {
        let cut = rng.between(1, 120);
        match with_pool(plan, world, Some(cut), async |pool| {
            heal(&pool, &patient).await
        }) {
            Ended::Done(result) => healed += result?,
            Ended::PowerCut => cuts += 1,
        }
    }
    healed += scenario::uncut(with_pool(plan, world, None, async |pool| {
        heal(&pool, &patient).await
    }))?;
    if cuts == 0 && healed != damaged {
        return Err(format!(
            "{snapshot}: {healed} of {damaged} blocks were healed"
        ));
    }
    Ok((damaged, cuts))
}

/// Boots, imports, works, and exports; power is cut at a write, if that is said.
fn with_pool<T>(
    plan: &Plan,
    world: &World,
    cut: Option<u64>,
    work: impl AsyncFnOnce(PoolHandle) -> Result<T, String>,
) -> Ended<Result<T, String>> {
    let prepare = || {
        if let Some(count) = cut {
            world.plan_cut_at_write(count);
        }
    };
    scenario::boot(world, prepare, |_, engine: Engine| async move {
        let pool = scenario::import(plan, &engine).await?;
        let done = work(pool).await?;
        let ending = Ending::Export { command: None };
        let ended = engine.end_pool(POOL, ending).await;
        ended.map_err(|error| format!("export: {error}"))?;
        Ok(done)
    })
}

/// Chooses a snapshot, and sends it: as it is stored, and as what heals it.
fn choose(
    plan: &Plan,
    world: &World,
    rng: &mut Rng,
    names: &Names,
) -> Result<Option<Patient>, String> {
    let fits = |name: &&String| {
        let head = head_of(name);
        is_snapshot(name) && head != ROOT && !name.starts_with(COPY) && names[*name].print.is_some()
    };
    let all: Vec<&String> = names.keys().filter(fits).collect();
    if all.is_empty() {
        return Ok(None);
    }
    let snapshot = (*rng.choose(&all)).clone();
    let is_encrypted = names[&snapshot].key.is_some();
    let as_stored = SendOptions {
        raw: is_encrypted,
        compressed: true,
        large_blocks: true,
        // Blocks that lie in their pointers are no blocks on a disk: one with the same bytes there is another dataset's.
        embedded: !is_encrypted,
        ..SendOptions::default()
    };
    let with = SendOptions {
        raw: is_encrypted && rng.coin(),
        compressed: rng.coin(),
        large_blocks: true,
        ..SendOptions::default()
    };
    let (name, volume) = (snapshot.clone(), names[&snapshot].volume);
    let patient = with_pool(plan, world, None, async |pool| {
        Opened::default().key_of(&pool, head_of(&name)).await?;
        let request = |options| SendRequest {
            snapshot: name.clone(),
            options,
            ..SendRequest::default()
        };
        let stored = bytes_of(&pool, &request(as_stored)).await.map_err(text)?;
        let stream = bytes_of(&pool, &request(with)).await.map_err(text)?;
        let query = PropertyQuery::Named(vec!["copies".to_owned()]);
        let info = pool.dataset(head_of(&name), &query).await.map_err(text)?;
        let copies = info
            .property("copies")
            .and_then(|copies| copies.value.number());
        Ok(Patient {
            volume,
            stream,
            raw: with.raw,
            blocks: blocks_of(&stored),
            copies: usize::try_from(copies.unwrap_or(1)).expect("three at most"),
            sides: 1,
            snapshot: name,
        })
    });
    scenario::uncut(patient).map(Some)
}

/// The blocks of files and volumes in a stream.
fn blocks_of(stream: &[u8]) -> Vec<Vec<u8>> {
    let mut reader = StreamReader::default();
    let (mut rest, mut blocks) = (stream, Vec::new());
    while let Some((record, behind)) = rest.split_first_chunk::<RECORD_SIZE>() {
        let record = reader.record(record).expect("a record of ours");
        let len = usize::try_from(reader.payload_left()).expect("small");
        let (payload, behind) = behind.split_at(len);
        reader.payload(payload);
        let is_content =
            matches!(&record, StreamRecord::Write(write) if CONTENTS.contains(&write.object_type));
        if is_content && len >= SECTOR_BYTES {
            blocks.push(payload.to_vec());
        }
        rest = behind;
    }
    blocks
}

/// Overwrites the beginnings of some blocks on all disks that have them; returns how many blocks.
fn damage(world: &World, rng: &mut Rng, patient: &Patient) -> u64 {
    let mut beginnings = BTreeMap::<&[u8], Vec<usize>>::new();
    for (number, block) in patient.blocks.iter().enumerate() {
        beginnings
            .entry(&block[..BEGINNING])
            .or_default()
            .push(number);
    }
    let mut places = vec![Vec::<(PathBuf, u64)>::new(); patient.blocks.len()];
    for (path, image) in world.images() {
        let mut part = vec![0; usize::try_from(world::Image::PART).expect("small")];
        for offset in image.written() {
            image.read(offset, &mut part);
            for (sector, bytes) in part.chunks(SECTOR_BYTES).enumerate() {
                let Some(numbers) = beginnings.get(&bytes[..BEGINNING]) else {
                    continue;
                };
                let at = offset + (sector * SECTOR_BYTES) as u64;
                for number in numbers {
                    let block = &patient.blocks[*number];
                    let mut found = vec![0; block.len()];
                    if at + block.len() as u64 <= image.size() {
                        image.read(at, &mut found);
                    }
                    if found == *block {
                        places[*number].push((path.clone(), at));
                    }
                }
            }
        }
    }
    let mut damaged = 0;
    for places in places {
        if is_only(&places, patient) && rng.below(3) > 0 {
            for (path, at) in places {
                world.damage(path, at, &[0x5a; SECTOR_BYTES]);
            }
            damaged += 1;
        }
    }
    damaged
}

/// Whether these are the places of one block. As many as it has copies and sides may be those of two: on a vdev of one disk beside
/// mirrors, such as a special one.
fn is_only(places: &[(PathBuf, u64)], patient: &Patient) -> bool {
    let mut offsets = BTreeMap::<u64, usize>::new();
    for (_, at) in places {
        *offsets.entry(*at).or_default() += 1;
    }
    let is_whole = |count: &usize| *count == patient.sides;
    offsets.len() == patient.copies && offsets.values().all(is_whole)
}

/// Heals a snapshot; returns how many blocks.
async fn heal(pool: &PoolHandle, patient: &Patient) -> Result<u64, String> {
    let snapshot = &patient.snapshot;
    if !patient.raw {
        Opened::default().key_of(pool, head_of(snapshot)).await?;
    }
    let request = ReceiveRequest {
        target: snapshot.clone(),
        heal: true,
        ..ReceiveRequest::default()
    };
    let receiving = pool.receive(request).await.map_err(text)?;
    receiving.write(patient.stream.clone()).await;
    let received = receiving.finish().await;
    received.result.map_err(text)?;
    let last = received.notes.last();
    let said = match last {
        Some(ReceiveNote::Progress(said)) => said.as_str(),
        _ => "",
    };
    let number = said
        .strip_prefix("healed ")
        .and_then(|rest| rest.split(' ').next());
    let number = number.and_then(|number| number.parse().ok());
    number.ok_or_else(|| format!("{snapshot}: healed, and it says {last:?}"))
}
