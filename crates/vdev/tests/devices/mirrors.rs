//! A mirror one half of which vanishes, gets stuck, loses flushes or rots: what was written is read back, and what a half
//! missed is told.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ondisk::{Guid, Txg};
use runtime::{Handle, IoBuf};
use vdev::{
    Health, IoClass, LEAF_DATA_START, Location, OpenMode, Tree, TreeTuning, VdevError, VdevStats,
    Verify,
};
use world::{DiskModel, Faults, World};

use crate::devices::{MIB, done, make};

const SIZE: u64 = 16 << 10;

fn at(block: u64) -> Location {
    Location {
        vdev: 0,
        offset: block * SIZE,
        size: SIZE,
        born: Txg(1),
    }
}

fn content(block: u64, version: u64) -> IoBuf {
    let mut bytes = Vec::new();
    world::Rng::new(block * 1_000_003 + version).fill({
        bytes.resize(usize::try_from(SIZE).expect("small"), 0);
        &mut bytes
    });
    IoBuf::from(bytes)
}

fn is(expect: IoBuf) -> Verify {
    Verify::With(Arc::new(move |bytes: &IoBuf| *bytes == expect))
}

fn world_of(seed: u64, disks: &[&str]) -> World {
    let world = World::new(seed);
    for path in disks {
        world.add_disk(*path, DiskModel::new(64 * MIB));
    }
    world
}

/// Returns the leaves that missed writes since the last call.
fn missed(tree: &Tree) -> Vec<Guid> {
    let missed = tree.take_missed_writes().into_iter();
    missed.map(|(leaf, _)| leaf).collect()
}

#[test]
fn a_half_that_vanishes_is_left_behind_and_told() {
    let world = world_of(1, &["/a", "/b"]);
    let inner = world.clone();
    done(world.run(|handle| async move {
        let (config, tree) = make(&handle, &["/a", "/b"], 12).await;
        tree.write(at(0), content(0, 1), IoClass::AsyncWrite)
            .await
            .expect("writes");
        tree.flush().await.expect("flushes");
        assert!(tree.take_missed_writes().is_empty());
        inner.vanish("/a");
        tree.write(at(1), content(1, 1), IoClass::AsyncWrite)
            .await
            .expect("one half takes it");
        tree.flush().await.expect("one half is enough");
        assert_eq!(missed(&tree), [config.tops[0].children[0].guid]);
        assert_eq!(tree.leaves()[0].health, Health::Removed);
        assert_eq!(tree.status().health, Health::Degraded);
        for block in 0..2 {
            tree.read(at(block), IoClass::SyncRead, is(content(block, 1)))
                .await
                .expect("reads");
        }
        inner.bring_back("/a");
        assert_eq!(tree.reopen().await, 1);
        assert_eq!(tree.status().health, Health::Online);
        // What it missed is found by the check and mended.
        for block in 0..2 {
            tree.read(at(block), IoClass::SyncRead, is(content(block, 1)))
                .await
                .expect("reads");
        }
        let scrubbed = tree
            .scrub(
                at(1),
                IoClass::Scrub,
                Arc::new(|b: &IoBuf| (*b == content(1, 1)).then_some(())),
            )
            .await
            .expect("scrubs");
        assert_eq!((scrubbed.bad_copies, scrubbed.repaired_copies), (1, 1));
        tree.note_resilvered(config.tops[0].children[0].guid, &(0..u64::MAX));
        inner.vanish("/b");
        for block in 0..2 {
            tree.read(at(block), IoClass::SyncRead, is(content(block, 1)))
                .await
                .expect("reads");
        }
        inner.vanish("/a");
        let error = tree.read(at(0), IoClass::SyncRead, Verify::None).await;
        assert!(matches!(
            error,
            Err(VdevError::Device { .. } | VdevError::Unavailable { .. })
        ));
        let error = tree.write(at(0), content(0, 2), IoClass::AsyncWrite).await;
        assert!(matches!(
            error,
            Err(VdevError::Device { .. } | VdevError::Unavailable { .. })
        ));
    }));
}

/// Where the half that has everything cannot be read any more, nothing is copied: what the other one missed would be gone for good.
#[test]
fn what_a_half_missed_is_not_copied_from_it() {
    let world = world_of(1, &["/a", "/b"]);
    let inner = world.clone();
    done(world.run(|handle| async move {
        let (_, tree) = make(&handle, &["/a", "/b"], 12).await;
        inner.vanish("/a");
        tree.write(at(0), content(0, 1), IoClass::AsyncWrite)
            .await
            .expect("one half takes it");
        tree.flush().await.expect("one half is enough");
        inner.bring_back("/a");
        assert_eq!(tree.reopen().await, 1);
        assert!(tree.has_whole_copy(0));
        tree.copy(at(0), at(1)).await.expect("from the other half");
        tree.read(at(1), IoClass::SyncRead, is(content(0, 1)))
            .await
            .expect("reads");
        inner.vanish("/b");
        // The first one finds that it is gone.
        for _ in 0..2 {
            let refused = tree.copy(at(0), at(2)).await;
            assert!(
                matches!(refused, Err(vdev::CopyFailure::Source(_))),
                "{refused:?}"
            );
        }
        assert!(!tree.has_whole_copy(0));
    }));
}

#[test]
fn a_write_missed_here_and_a_flush_failed_there_is_a_loss_and_said() {
    let world = world_of(2, &["/a", "/b"]);
    let inner = world.clone();
    done(world.run(|handle| async move {
        let (_, tree) = make(&handle, &["/a", "/b"], 12).await;
        inner.set_faults(
            "/a",
            Faults {
                write_error: 1_000_000,
                ..Faults::default()
            },
        );
        tree.write(at(0), content(0, 1), IoClass::AsyncWrite)
            .await
            .expect("one half takes it");
        inner.set_faults("/a", Faults::default());
        inner.set_faults(
            "/b",
            Faults {
                flush_error: 1_000_000,
                ..Faults::default()
            },
        );
        tree.flush()
            .await
            .expect_err("the only half with the write did not flush it");
    }));
}

#[test]
fn a_failed_flush_takes_the_half_out() {
    let world = world_of(3, &["/a", "/b"]);
    let inner = world.clone();
    done(world.run(|handle| async move {
        let (config, tree) = make(&handle, &["/a", "/b"], 12).await;
        inner.set_faults(
            "/b",
            Faults {
                flush_error: 1_000_000,
                ..Faults::default()
            },
        );
        tree.write(at(0), content(0, 1), IoClass::AsyncWrite)
            .await
            .expect("writes");
        tree.flush().await.expect("one half is enough");
        assert_eq!(missed(&tree), [config.tops[0].children[1].guid]);
        assert_eq!(tree.leaves()[1].health, Health::Faulted);
        let status = tree.status();
        assert_eq!(
            status.children[0].children[1].reason.as_deref(),
            Some("too many errors")
        );
        inner.set_faults("/b", Faults::default());
        tree.clear_errors(None).await;
        assert_eq!(tree.status().health, Health::Online);
    }));
}

#[test]
fn what_is_on_devices_that_failed_a_flush_can_be_read() {
    let world = world_of(5, &["/a", "/b"]);
    let inner = world.clone();
    done(world.run(|handle| async move {
        let (_, tree) = make(&handle, &["/a", "/b"], 12).await;
        tree.write(at(0), content(0, 1), IoClass::AsyncWrite)
            .await
            .expect("writes");
        tree.flush().await.expect("flushes");
        let faults = Faults {
            flush_error: 1_000_000,
            ..Faults::default()
        };
        inner.set_faults("/a", faults.clone());
        inner.set_faults("/b", faults);
        tree.write(at(1), content(1, 1), IoClass::AsyncWrite)
            .await
            .expect("writes");
        tree.flush().await.expect_err("no half flushes");
        tree.read(at(0), IoClass::SyncRead, is(content(0, 1)))
            .await
            .expect("what was flushed before is there");
        tree.write(at(2), content(2, 1), IoClass::AsyncWrite)
            .await
            .expect_err("neither half is in service");
    }));
}

#[test]
fn the_flush_of_what_goes_through_is_counted_apart() {
    let world = world_of(10, &["/a"]);
    done(world.run(|handle| async move {
        let (_, tree) = make(&handle, &["/a"], 12).await;
        let before = tree.status().stats;
        let began = handle.now();
        for block in 0..5 {
            let through = tree.write_through(at(block), content(block, 1), IoClass::SyncWrite);
            through.await.expect("writes");
        }
        let taken = handle.now() - began;
        let stats = tree.status().stats;
        assert_eq!(stats.write_ops - before.write_ops, 5);
        assert_eq!(stats.flushes.count - before.flushes.count, 5);
        let flushes = stats.flushes.sum_ns - before.flushes.sum_ns;
        let writes = stats.write_total.sum_ns - before.write_total.sum_ns;
        assert_eq!(u128::from(flushes + writes), taken.as_nanos());
        // The least that a flush takes in a simulated world.
        assert!(flushes >= 5 * 50_000 && writes > 0, "{flushes}, {writes}");
        let at_device = |stats: &VdevStats| -> u64 {
            stats
                .classes
                .iter()
                .map(|class| class.disk_wait.sum_ns)
                .sum()
        };
        assert_eq!(at_device(&stats) - at_device(&before), writes, "no queue");
    }));
}

#[test]
fn what_goes_through_owes_no_flush_and_tells_when_one_half_missed_it() {
    let world = world_of(9, &["/a", "/b"]);
    let inner = world.clone();
    done(world.run(|handle| async move {
        let (config, tree) = make(&handle, &["/a", "/b"], 12).await;
        let guid = |half: usize| config.tops[0].children[half].guid;
        let log = IoClass::SyncWrite;
        let through = |block: u64| tree.write_through(at(block), content(block, 1), log);
        tree.flush().await.expect("flushes");
        missed(&tree);
        through(0).await.expect("writes");
        // A half that goes now has lost nothing of it.
        inner.vanish("/a");
        assert!(missed(&tree).is_empty());
        through(1).await.expect("one half takes it");
        assert_eq!(missed(&tree), [guid(0)]);
        inner.bring_back("/a");
        assert_eq!(tree.reopen().await, 1);
        tree.write(at(2), content(2, 1), log).await.expect("writes");
        tree.flush().await.expect("flushes");
        missed(&tree);
        let failing = |write_error: u32, flush_error: u32| Faults {
            write_error,
            flush_error,
            ..Faults::default()
        };
        inner.set_faults("/a", failing(1_000_000, 0));
        through(6).await.expect("one half takes it");
        assert_eq!(missed(&tree), [guid(0)]);
        inner.set_faults("/a", Faults::default());
        // A half that took it and could not make it durable is out, with all it was given since the last flush. That is all
        // on the other half: the one that it missed was durable before.
        inner.set_faults("/b", failing(0, 1_000_000));
        tree.write(at(7), content(7, 1), log).await.expect("writes");
        through(3).await.expect("the other half takes it");
        assert_eq!(missed(&tree), [guid(1)]);
        assert_eq!(tree.leaves()[1].health, Health::Faulted);
        tree.flush().await.expect("the other half is enough");
        inner.set_faults("/a", failing(0, 1_000_000));
        assert!(through(4).await.is_err());
        assert!(tree.flush().await.is_ok(), "nothing is owed");
        assert!(through(5).await.is_err());
    }));
    world.power_cut_with(world::CutModel::LoseAll);
    for (half, blocks) in [("/a", vec![0, 2, 3, 7]), ("/b", vec![0, 1, 2, 6])] {
        let image = world.images()[std::path::Path::new(half)].clone();
        for block in blocks {
            let mut bytes = vec![0; usize::try_from(SIZE).expect("small")];
            image.read(LEAF_DATA_START + block * SIZE, &mut bytes);
            assert!(bytes == *content(block, 1), "{half}: block {block}");
        }
    }
}

#[test]
fn a_stuck_half_is_waited_for_some_time_then_left_behind() {
    let world = world_of(4, &["/a", "/b"]);
    let inner = world.clone();
    done(world.run(|handle| async move {
        let (config, tree) = make(&handle, &["/a", "/b"], 12).await;
        tree.write(at(0), content(0, 1), IoClass::AsyncWrite)
            .await
            .expect("writes");
        tree.flush().await.expect("flushes");
        inner.stick("/a");
        let started = handle.now();
        tree.read(at(0), IoClass::SyncRead, is(content(0, 1)))
            .await
            .expect("the other half");
        tree.write(at(1), content(1, 1), IoClass::AsyncWrite)
            .await
            .expect("one half takes it");
        tree.flush().await.expect("one half is enough");
        assert!(handle.now().since(started) < Duration::from_secs(400));
        assert_eq!(missed(&tree), [config.tops[0].children[0].guid]);
        assert_eq!(tree.status().health, Health::Degraded);
        inner.unstick("/a");
    }));
}

/// A mirror that has noticed that its first half was away, which is back and was not opened again yet; and that half's number.
async fn half_was_away(handle: &Handle, world: &World) -> (Tree, Guid) {
    let (config, tree) = make(handle, &["/a", "/b"], 12).await;
    world.vanish("/a");
    tree.write(at(0), content(0, 1), IoClass::AsyncWrite)
        .await
        .expect("one half takes it");
    world.bring_back("/a");
    (tree, config.tops[0].children[0].guid)
}

/// Several can ask for the same device at once: an administrator, and the event that it came back. The second found it in use, by
/// the first, and said so of a device that was open (seed 250348 of the fault campaign).
#[test]
fn a_device_that_two_bring_back_at_once_is_back() {
    let world = world_of(5, &["/a", "/b"]);
    let inner = world.clone();
    done(world.run(|handle| async move {
        let (tree, guid) = half_was_away(&handle, &inner).await;
        let reopened = async {
            runtime::join_all([tree.reopen(), tree.reopen()])
                .await
                .into_iter()
                .sum::<usize>()
        };
        let (back, health) = runtime::join(reopened, tree.bring_online(guid)).await;
        assert!(back <= 1, "it came back {back} times");
        assert_eq!(health.expect("is there"), Health::Online);
        assert_eq!(tree.status().health, Health::Online);
    }));
}

/// An administrator takes a device offline in the moment in which it is opened again.
#[test]
fn a_device_taken_offline_while_it_is_opened_stays_offline() {
    let world = world_of(5, &["/a", "/b"]);
    let inner = world.clone();
    done(world.run(|handle| async move {
        let (tree, guid) = half_was_away(&handle, &inner).await;
        let (back, offline) = runtime::join(tree.reopen(), tree.take_offline(guid)).await;
        offline.expect("the other half has everything");
        assert_eq!(back, 0);
        let half = &tree.status().children[0].children[0];
        assert_eq!((half.guid, half.health), (guid, Health::Offline));
        let health = tree.bring_online(guid).await.expect("is there");
        assert_eq!(health, Health::Online);
    }));
}

/// What is faulted by hand stays so when it is opened again, until that is cleared; that it was offline before is kept.
#[test]
fn a_device_that_is_declared_faulted_stays_so_until_it_is_cleared() {
    let world = world_of(5, &["/a", "/b"]);
    let inner = world.clone();
    done(world.run(|handle| async move {
        let (tree, guid) = half_was_away(&handle, &inner).await;
        let health = || tree.status().children[0].children[0].health;
        let (back, faulted) = runtime::join(tree.reopen(), tree.take_faulted(guid)).await;
        faulted.expect("the other half has everything");
        assert_eq!((back, health()), (0, Health::Faulted));
        assert!(
            !tree.clear_errors(Some(guid)).await,
            "the configuration said nothing"
        );
        assert_eq!(health(), Health::Online);
        tree.take_offline(guid).await.expect("offline");
        tree.take_faulted(guid).await.expect("faulted");
        tree.update_config(guid, |vdev| vdev.faulted = true);
        assert_eq!((tree.reopen().await, health()), (0, Health::Faulted));
        assert!(tree.clear_errors(None).await, "the configuration said so");
        assert_eq!(health(), Health::Offline);
        let other = tree.status().children[0].children[1].guid;
        let refused = tree.take_faulted(other).await;
        assert!(matches!(refused, Err(VdevError::Required)), "{refused:?}");
        let online = tree.bring_online(guid).await.expect("is there");
        assert_eq!(online, Health::Online);
    }));
}

#[test]
fn only_a_half_that_lacks_nothing_can_say_that_nothing_is_there() {
    let world = world_of(8, &["/a", "/b"]);
    let inner = world.clone();
    done(world.run(|handle| async move {
        let (_, tree) = make(&handle, &["/a", "/b"], 12).await;
        let ask = |at: Location| {
            let check = Arc::new(|bytes: &IoBuf| (*bytes == content(0, 2)).then_some(()));
            tree.read_speculative(at, IoClass::SyncRead, check)
        };
        inner.vanish("/a");
        tree.write(at(0), content(0, 2), IoClass::SyncWrite)
            .await
            .expect("one half takes it");
        tree.flush().await.expect("flushes");
        assert!(matches!(ask(at(0)).await, Ok(Some(()))));
        assert!(matches!(ask(at(1)).await, Ok(None)));
        inner.bring_back("/a");
        assert_eq!(tree.reopen().await, 1);
        let born = |txg| Location {
            born: Txg(txg),
            ..at(0)
        };
        inner.add_latent_error("/b", LEAF_DATA_START);
        assert!(matches!(
            ask(born(1)).await,
            Err(VdevError::Device { vdev: 0, .. })
        ));
        // Of that txg it has everything.
        assert!(matches!(ask(born(2)).await, Ok(None)));
        inner.vanish("/b");
        assert!(ask(born(1)).await.is_err());
        assert!(matches!(ask(born(2)).await, Ok(None)));
        assert_eq!(tree.status().stats.checksum_errors, 0);
    }));
}

/// A write that was told as done reached some half: where both answer, each with something else, there was none.
#[test]
fn two_halves_that_lack_something_say_together_that_nothing_is_there() {
    for halves in [&["/a"][..], &["/a", "/b"]] {
        let world = world_of(9, halves);
        let inner = world.clone();
        done(world.run(|handle| async move {
            let (_, tree) = make(&handle, halves, 12).await;
            for (block, half) in (0..).zip(halves) {
                inner.vanish(half);
                let written = tree.write(at(block), content(block, 2), IoClass::SyncWrite);
                assert_eq!(written.await.is_ok(), halves.len() == 2);
                // Fails for the half that is away.
                let _ = tree.flush().await;
                inner.bring_back(half);
                assert_eq!(tree.reopen().await, 1);
            }
            let ask = |block: u64| {
                let check =
                    Arc::new(move |bytes: &IoBuf| (*bytes == content(block, 2)).then_some(()));
                tree.read_speculative(at(block), IoClass::SyncRead, check)
            };
            for block in 0..2 {
                let written = ask(block).await.expect("all answer").is_some();
                assert_eq!(written, halves.len() == 2, "block {block}");
            }
            assert!(matches!(ask(2).await, Ok(None)));
            inner.vanish(halves[0]);
            assert!(ask(2).await.is_err());
        }));
    }
}

/// What the power cut kept from one half is written there, and is no half's fault.
#[test]
fn what_was_torn_is_completed_and_nobody_is_blamed() {
    let world = world_of(1, &["/a", "/b"]);
    let inner = world.clone();
    done(world.run(|handle| async move {
        let (_, tree) = make(&handle, &["/a", "/b"], 12).await;
        let data = content(0, 1);
        tree.write(at(0), data.clone(), IoClass::AsyncWrite)
            .await
            .expect("writes");
        tree.flush().await.expect("flushes");
        inner.rot("/a", LEAF_DATA_START + at(0).offset, SIZE);
        let expect = data.clone();
        let check = Arc::new(move |bytes: &IoBuf| (*bytes == expect).then_some(()));
        let completed = tree.complete(at(0), IoClass::SyncRead, check).await;
        let completed = completed.expect("is completed");
        assert_eq!((completed.bad_copies, completed.repaired_copies), (1, 1));
        assert_eq!(tree.status().stats.checksum_errors, 0);
        inner.vanish("/b");
        tree.read(at(0), IoClass::SyncRead, is(data))
            .await
            .expect("the other half has it now");
    }));
}

/// Random writes and reads over a mirror one half of which fails at random. Every read must give the newest bytes.
#[test]
fn one_bad_half_never_shows() {
    for seed in 0..40 {
        world::twice(seed, |world| {
            world.add_disk("/good", DiskModel::new(64 * MIB));
            world.add_disk("/bad", DiskModel::new(64 * MIB));
            let inner = world.clone();
            done(world.run(|handle| async move {
                let (_, tree) = make(&handle, &["/good", "/bad"], 12).await;
                let mut faults = Faults::one_bad_side();
                faults.latent_error *= 20;
                faults.bit_rot *= 20;
                faults.misdirected_write *= 20;
                faults.write_error = if seed % 3 == 0 { 10_000 } else { 0 };
                inner.set_faults("/bad", faults);
                let mut rng = inner.rng();
                let mut versions = vec![0; 64];
                for step in 1..400_u64 {
                    let block = rng.below(64);
                    if rng.coin() {
                        versions[usize::try_from(block).expect("small")] = step;
                        let data = content(block, step);
                        tree.write(at(block), data, IoClass::AsyncWrite)
                            .await
                            .expect("writes");
                    } else if versions[usize::try_from(block).expect("small")] > 0 {
                        let expect =
                            content(block, versions[usize::try_from(block).expect("small")]);
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

/// Reads that mend race with writes to the same places: new bytes must never be replaced by old ones.
#[test]
fn mending_never_undoes_a_write() {
    for seed in 0..60 {
        let world = world_of(seed, &["/a", "/b"]);
        let inner = world.clone();
        done(world.run(|handle| async move {
            let (_, tree) = make(&handle, &["/a", "/b"], 12).await;
            for block in 0..8 {
                tree.write(at(block), content(block, 1), IoClass::AsyncWrite)
                    .await
                    .expect("writes");
            }
            tree.flush().await.expect("flushes");
            for block in 0..8 {
                let path = if block % 2 == 0 { "/a" } else { "/b" };
                inner.rot(path, vdev::LEAF_DATA_START + block * SIZE, SIZE);
            }
            inner.set_faults("/a", Faults::slow_only());
            inner.set_faults(
                "/b",
                Faults {
                    slow: 500_000,
                    ..Faults::slow_only()
                },
            );
            let tree = Rc::new(tree);
            let mut tasks = Vec::new();
            for block in 0..8 {
                let reader = Rc::clone(&tree);
                let either = Verify::With(Arc::new(move |bytes: &IoBuf| {
                    *bytes == content(block, 1) || *bytes == content(block, 2)
                }));
                tasks.push(handle.spawn("reader", async move {
                    // In the middle of a write both halves may be torn for the reader: an error is fine here.
                    drop(reader.read(at(block), IoClass::SyncRead, either).await);
                }));
                let writer = Rc::clone(&tree);
                tasks.push(handle.spawn("writer", async move {
                    let data = content(block, 2);
                    writer
                        .write(at(block), data, IoClass::AsyncWrite)
                        .await
                        .expect("writes");
                }));
            }
            for task in tasks {
                task.await;
            }
            for path in ["/a", "/b"] {
                let image = inner
                    .images()
                    .remove(std::path::Path::new(path))
                    .expect("an image");
                for block in 0..8 {
                    let mut bytes = vec![0; usize::try_from(SIZE).expect("small")];
                    image.read(vdev::LEAF_DATA_START + block * SIZE, &mut bytes);
                    assert!(
                        *content(block, 2) == *bytes,
                        "seed {seed}: {path} block {block}"
                    );
                }
            }
        }));
    }
}

#[test]
fn a_read_only_tree_writes_nothing() {
    let world = world_of(6, &["/a", "/b"]);
    let inner = world.clone();
    done(world.run(|handle| async move {
        let (config, tree) = make(&handle, &["/a", "/b"], 12).await;
        tree.write(at(0), content(0, 1), IoClass::AsyncWrite)
            .await
            .expect("writes");
        tree.flush().await.expect("flushes");
        tree.close();
        drop(tree);
        inner.rot("/a", vdev::LEAF_DATA_START, SIZE);
        let before = inner.images();
        let mode = OpenMode::ReadOnly;
        let tree = Tree::open(&handle, &config, mode, TreeTuning::default(), false)
            .await
            .expect("opens");
        tree.read(at(0), IoClass::SyncRead, is(content(0, 1)))
            .await
            .expect("the good half");
        assert!(matches!(
            tree.write(at(0), content(0, 2), IoClass::AsyncWrite).await,
            Err(VdevError::ReadOnly)
        ));
        assert!(matches!(
            tree.init_labels(config.tops[0].guid).await,
            Err(VdevError::ReadOnly)
        ));
        tree.flush().await.expect("has nothing to do");
        for (path, image) in inner.images() {
            assert_eq!(image.content_hash(), before[&path].content_hash());
        }
    }));
}
