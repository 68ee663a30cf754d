//! Raidz some of whose disks vanish, lie, rot or fail writes: what was written is read back as long as parity allows.

use std::sync::Arc;

use ondisk::Txg;
use runtime::IoBuf;
use vdev::{Check, Health, IoClass, Join, Location, Tree, VdevError, Verify};
use world::{DiskModel, Faults, World};

use crate::devices::{MIB, done, make_spec, spec};

const PATHS: [&str; 8] = ["/0", "/1", "/2", "/3", "/4", "/5", "/6", "/7"];
/// A block's space: more than any block of the tests takes with parity and padding.
const PITCH: u64 = 128 << 10;

/// Blocks differ in size, so that stripes are full, partial and of one sector.
fn at(block: u64) -> Location {
    Location {
        vdev: 0,
        offset: block * PITCH,
        size: (1 + block * 7 % 9) << 12,
        born: Txg(1),
    }
}

fn content(block: u64, version: u64) -> IoBuf {
    let mut bytes = vec![0; usize::try_from(at(block).size).expect("small")];
    world::Rng::new(block * 1_000_003 + version).fill(&mut bytes);
    IoBuf::from(bytes)
}

fn is(expect: IoBuf) -> Verify {
    Verify::With(Arc::new(move |bytes: &IoBuf| *bytes == expect))
}

fn check_of(expect: IoBuf) -> Check<()> {
    Arc::new(move |bytes: &IoBuf| (*bytes == expect).then_some(()))
}

/// Flips a bit in every sector of a part of the data area that holds all blocks below `end` bytes of the vdev.
fn rot(world: &World, path: &str, from: u64, end: u64) {
    let mut sector = from;
    while sector < end {
        world.rot(path, vdev::LEAF_DATA_START + sector, 4096);
        sector += 4096;
    }
}

fn world_of(seed: u64, disks: usize) -> World {
    let world = World::new(seed);
    for path in &PATHS[..disks] {
        world.add_disk(*path, DiskModel::new(64 * MIB));
    }
    world
}

async fn make(handle: &runtime::Handle, disks: usize, parity: u8) -> Tree {
    let mut spec = spec(&PATHS[..disks], Some(12));
    spec.tops[0].parity = parity;
    make_spec(handle, &spec).await.1
}

async fn write_all(tree: &Tree, blocks: u64, version: u64) {
    for block in 0..blocks {
        tree.write(at(block), content(block, version), IoClass::AsyncWrite)
            .await
            .expect("writes");
    }
    tree.flush().await.expect("flushes");
}

async fn read_all(tree: &Tree, blocks: u64, version: u64) {
    for block in 0..blocks {
        tree.read(at(block), IoClass::SyncRead, is(content(block, version)))
            .await
            .unwrap_or_else(|error| panic!("block {block}: {error}"));
    }
}

/// Scrubs the blocks; all must be there, and mended. Returns the bad copies.
async fn scrub_all(tree: &Tree, blocks: u64, version: u64) -> u32 {
    let mut bad = 0;
    for block in 0..blocks {
        let check = check_of(content(block, version));
        let scrubbed = tree.scrub(at(block), IoClass::Scrub, check).await;
        let scrubbed = scrubbed.expect("scrubs");
        assert!(scrubbed.good.is_some(), "block {block}");
        assert_eq!(scrubbed.bad_copies, scrubbed.repaired_copies);
        bad += scrubbed.bad_copies;
    }
    bad
}

/// Gives the place of the first disk a second leaf, before anything is written.
async fn join_spare(tree: &Tree, path: &str) {
    let first = tree.leaves()[0].guid;
    let spare = tree.join(first, path.as_ref(), Join::Spare, None).await;
    tree.note_resilvered(spare.expect("joins"), &(0..u64::MAX));
}

#[test]
fn any_disks_within_the_parity_may_vanish() {
    for parity in 1..=3_u8 {
        let disks = usize::from(parity) + 3;
        for first in 0..disks {
            let world = world_of(1, disks);
            let inner = world.clone();
            done(world.run(|handle| async move {
                let tree = make(&handle, disks, parity).await;
                write_all(&tree, 20, 1).await;
                for lost in 0..usize::from(parity) {
                    inner.vanish(PATHS[(first + lost) % disks]);
                }
                read_all(&tree, 20, 1).await;
                write_all(&tree, 20, 2).await;
                read_all(&tree, 20, 2).await;
                assert_eq!(tree.status().health, Health::Degraded);
                assert_eq!(tree.take_missed_writes().len(), usize::from(parity));
                inner.vanish(PATHS[(first + usize::from(parity)) % disks]);
                // Block 5 is wide enough to need all disks.
                let read = tree.read(at(5), IoClass::SyncRead, is(content(5, 2))).await;
                assert!(matches!(
                    read,
                    Err(VdevError::Device { .. } | VdevError::Unavailable { .. })
                ));
                assert_eq!(tree.status().health, Health::Unavailable);
            }));
        }
    }
}

#[test]
fn disks_that_lie_are_found_and_mended() {
    for parity in 1..=3_u8 {
        let disks = usize::from(parity) + 4;
        for first in 0..disks {
            let world = world_of(2, disks);
            let inner = world.clone();
            done(world.run(|handle| async move {
                let tree = make(&handle, disks, parity).await;
                write_all(&tree, 20, 1).await;
                for lost in 0..usize::from(parity) {
                    // All that was written, but the labels.
                    let path = PATHS[(first + lost) % disks];
                    rot(&inner, path, 0, 20 * PITCH / disks as u64);
                }
                if first % 2 == 0 {
                    read_all(&tree, 20, 1).await;
                }
                scrub_all(&tree, 20, 1).await;
                let errors = tree.status().stats.checksum_errors;
                assert!(errors > 0, "the liars are counted");
                // Now others lie: everything was mended, parity too.
                for lost in 0..usize::from(parity) {
                    let path = PATHS[(first + lost + usize::from(parity)) % disks];
                    rot(&inner, path, 0, 20 * PITCH / disks as u64);
                }
                read_all(&tree, 20, 1).await;
            }));
        }
    }
}

#[test]
fn one_liar_too_many_is_said_and_costs_only_what_it_hit() {
    let world = world_of(3, 5);
    let inner = world.clone();
    done(world.run(|handle| async move {
        let tree = make(&handle, 5, 2).await;
        write_all(&tree, 20, 1).await;
        for path in &PATHS[..3] {
            // Three rows hold block 5, the widest.
            rot(&inner, path, 5 * PITCH / 5, 5 * PITCH / 5 + (3 << 12));
        }
        let read = tree.read(at(5), IoClass::SyncRead, is(content(5, 1))).await;
        assert!(matches!(read, Err(VdevError::Rejected { .. })));
        for block in 12..20 {
            tree.read(at(block), IoClass::SyncRead, is(content(block, 1)))
                .await
                .expect("was not hit");
        }
    }));
}

#[test]
fn a_disk_that_was_away_is_read_last_and_mended() {
    let world = world_of(4, 4);
    let inner = world.clone();
    done(world.run(|handle| async move {
        let tree = make(&handle, 4, 1).await;
        write_all(&tree, 20, 1).await;
        inner.vanish("/2");
        write_all(&tree, 20, 2).await;
        let missed = tree.take_missed_writes();
        assert_eq!(missed.len(), 1);
        inner.bring_back("/2");
        assert_eq!(tree.reopen().await, 1);
        read_all(&tree, 20, 2).await;
        assert_eq!(
            tree.status().stats.checksum_errors,
            0,
            "a disk is not blamed for what it is known to lack"
        );
        for block in 0..20 {
            let check = check_of(content(block, 2));
            let scrubbed = tree.scrub(at(block), IoClass::Scrub, check).await;
            assert!(scrubbed.expect("scrubs").good.is_some());
        }
        tree.note_resilvered(missed[0].0, &(0..u64::MAX));
        inner.vanish("/0");
        read_all(&tree, 20, 2).await;
    }));
}

/// What no checksum covers rots on one disk, and the scrub makes parity fit it: a disk with parity that is away is told to lack
/// the block, and not blamed for it later.
#[test]
fn a_disk_that_is_away_lacks_what_a_scrub_mends() {
    let world = world_of(6, 4);
    let inner = world.clone();
    done(world.run(|handle| async move {
        let tree = make(&handle, 4, 2).await;
        let scrub = async || {
            let covered = content(0, 1)[..1536].to_vec();
            let check: Check<()> =
                Arc::new(move |bytes: &IoBuf| (bytes[..1536] == covered).then_some(()));
            let scrubbed = tree.scrub(at(0), IoClass::Scrub, check).await;
            let scrubbed = scrubbed.expect("scrubs");
            assert!(scrubbed.good.is_some());
            (scrubbed.bad_copies, scrubbed.repaired_copies)
        };
        // One sector of data, on the disk after those of the parity.
        write_all(&tree, 1, 1).await;
        assert!(tree.take_missed_writes().is_empty());
        // A write shows that a disk has gone, and is missed.
        let notice = async |block: u64| {
            let at = Location {
                born: Txg(1 + block),
                ..at(block)
            };
            let wrote = tree.write(at, content(block, 1), IoClass::AsyncWrite);
            wrote.await.expect("writes");
            tree.flush().await.expect("flushes");
            assert_eq!(tree.take_missed_writes().len(), 1);
        };
        inner.vanish("/1");
        notice(1).await;
        inner.damage("/2", vdev::LEAF_DATA_START + 4000, &[0xa5; 8]);
        assert_eq!(scrub().await, (1, 1));
        tree.flush().await.expect("flushes");
        let away = tree.leaves()[1].guid;
        let missed = tree.take_missed_writes();
        assert_eq!(missed.len(), 1);
        assert_eq!((missed[0].0, missed[0].1.len()), (away, 1));
        assert_eq!(missed[0].1[0], 1..2);
        inner.bring_back("/1");
        assert_eq!(tree.reopen().await, 1);
        // Mending what is known to be missed changes nothing that another disk holds.
        inner.vanish("/0");
        notice(8).await;
        assert_eq!(scrub().await, (1, 1));
        assert!(tree.take_missed_writes().is_empty());
        inner.bring_back("/0");
        assert_eq!(tree.reopen().await, 1);
        tree.note_resilvered(away, &(0..u64::MAX));
        assert_eq!(scrub().await, (0, 0));
        // The first was blamed: its parity did not fit.
        assert_eq!(tree.status().stats.checksum_errors, 1);
    }));
}

#[test]
fn disks_that_lack_more_than_parity_makes_up_for_say_nothing_of_a_block() {
    let world = world_of(5, 4);
    let inner = world.clone();
    done(world.run(|handle| async move {
        let tree = make(&handle, 4, 1).await;
        let ask = |block: u64, born: u64| {
            let at = Location {
                born: Txg(born),
                ..at(block)
            };
            tree.read_speculative(at, IoClass::SyncRead, check_of(content(block, 2)))
        };
        write_all(&tree, 20, 1).await;
        inner.vanish("/2");
        write_all(&tree, 20, 2).await;
        // Block 5 is wide enough to need all disks.
        assert!(matches!(ask(5, 1).await, Ok(Some(()))));
        assert!(matches!(ask(25, 1).await, Ok(None)));
        inner.bring_back("/2");
        assert_eq!(tree.reopen().await, 1);
        inner.vanish("/0");
        assert!(ask(5, 1).await.is_err());
        assert!(matches!(ask(5, 2).await, Ok(None)));
        write_all(&tree, 1, 2).await;
        inner.bring_back("/0");
        assert_eq!(tree.reopen().await, 1);
        // Each of two lacks something, but all answer: who had written it would have reached enough of them.
        assert!(matches!(ask(25, 1).await, Ok(None)));
    }));
}

/// A place with two leaves is whole as long as one of them is right, whichever it is, and whatever happened to as many
/// other places as there is parity.
#[test]
fn what_one_leaf_of_a_place_lacks_the_other_gives() {
    for (parity, wrong) in [(1_u8, 0), (1, 1), (2, 0), (2, 1)] {
        let disks = usize::from(parity) + 2;
        let world = world_of(5, disks + 1);
        let inner = world.clone();
        done(world.run(|handle| async move {
            let tree = make(&handle, disks, parity).await;
            join_spare(&tree, PATHS[disks]).await;
            write_all(&tree, 20, 1).await;
            let end = 20 * PITCH / disks as u64;
            for lost in &PATHS[1..=usize::from(parity)] {
                rot(&inner, lost, 0, end);
            }
            rot(&inner, [PATHS[0], PATHS[disks]][wrong], 0, end);
            read_all(&tree, 20, 1).await;
            scrub_all(&tree, 20, 1).await;
            // Everything was mended, so that the others may rot.
            rot(&inner, [PATHS[disks], PATHS[0]][wrong], 0, end);
            read_all(&tree, 20, 1).await;
        }));
    }
}

/// Scrubs find what is right as reads do, and count what was wrong.
#[test]
fn a_scrub_asks_every_leaf_of_a_place() {
    let world = world_of(6, 4);
    let inner = world.clone();
    done(world.run(|handle| async move {
        let tree = make(&handle, 3, 1).await;
        join_spare(&tree, PATHS[3]).await;
        write_all(&tree, 20, 1).await;
        let end = 20 * PITCH / 3;
        rot(&inner, PATHS[0], 0, end);
        rot(&inner, PATHS[1], 0, end);
        let bad = scrub_all(&tree, 20, 1).await;
        assert!(bad > 20, "{bad} on two leaves");
        assert!(tree.status().stats.checksum_errors > 20);
    }));
}

/// What the power cut kept from one disk is written there, parity as well as data, and is no disk's fault.
#[test]
fn what_was_torn_is_completed_and_nobody_is_blamed() {
    for torn in 0..4 {
        let world = world_of(7, 4);
        let inner = world.clone();
        done(world.run(|handle| async move {
            let tree = make(&handle, 4, 1).await;
            write_all(&tree, 20, 1).await;
            rot(&inner, PATHS[torn], 0, 20 * PITCH / 3);
            for block in 0..20 {
                let check = check_of(content(block, 1));
                let completed = tree.complete(at(block), IoClass::SyncRead, check).await;
                let completed = completed.expect("is completed");
                assert!(completed.good.is_some(), "block {block}");
                assert_eq!(completed.bad_copies, completed.repaired_copies);
            }
            assert_eq!(tree.status().stats.checksum_errors, 0);
            inner.vanish(PATHS[(torn + 1) % 4]);
            read_all(&tree, 20, 1).await;
        }));
    }
}

/// Random writes and reads over raidz of which as many disks as there is parity fail at random, all the time. Every read
/// must give the newest bytes.
#[test]
fn bad_disks_within_the_parity_never_show() {
    for seed in 0..30 {
        world::twice(seed, |world| {
            for path in &PATHS[..6] {
                world.add_disk(*path, DiskModel::new(64 * MIB));
            }
            let inner = world.clone();
            done(world.run(|handle| async move {
                let parity = 1 + u8::try_from(seed % 3).expect("small");
                let tree = make(&handle, 6, parity).await;
                let mut faults = Faults::one_bad_side();
                faults.latent_error *= 20;
                faults.bit_rot *= 20;
                faults.misdirected_write *= 20;
                faults.write_error = if seed % 2 == 0 { 10_000 } else { 0 };
                for bad in 0..usize::from(parity) {
                    inner.set_faults(PATHS[bad * 2], faults.clone());
                }
                let mut rng = inner.rng();
                let mut versions = vec![0; 64];
                for step in 1..300_u64 {
                    let block = rng.below(64);
                    let version = &mut versions[usize::try_from(block).expect("small")];
                    if rng.coin() {
                        *version = step;
                        let data = content(block, step);
                        tree.write(at(block), data, IoClass::AsyncWrite)
                            .await
                            .expect("writes");
                    } else if *version > 0 {
                        let expect = content(block, *version);
                        tree.read(at(block), IoClass::SyncRead, is(expect))
                            .await
                            .expect("reads");
                    }
                    if step % 50 == 0 {
                        tree.flush().await.expect("flushes");
                    }
                }
            }));
        })
        .expect("deterministic");
    }
}
