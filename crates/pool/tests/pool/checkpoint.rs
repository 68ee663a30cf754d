//! Checkpoints: kept while the pool works on, given up, gone back to; with OpenZFS's tools as judges, and with the power cut.

use std::path::Path;
use std::time::Duration;

use pool::{AddSpec, Health, ImportPolicy, Pool, PoolError, VdevSpec};
use runtime::Handle;
use world::{Ended, World};

use crate::support::*;
use crate::workload::{Recorder, compare, root, work};

async fn rewind(handle: &Handle, disks: usize, readonly: bool) -> Result<Pool, PoolError> {
    let found = find(handle, disks).await;
    let policy = ImportPolicy {
        rewind_to_checkpoint: true,
        readonly,
        ..policy()
    };
    Pool::import(handle, &found[0], policy).await
}

async fn discarded(handle: &Handle, pool: &Pool) {
    while pool.status().checkpoint.is_some() {
        handle.sleep(Duration::from_millis(10)).await;
    }
}

/// What zdb makes of the state that the checkpoint keeps.
fn zdb_checkpoint_clean(world: &World, what: &str) {
    if !has_zdb() {
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    world.dump(dir.path()).expect("dump the disks");
    zdb_checkpoint_clean_dir(dir.path(), what);
}

fn zdb_checkpoint_clean_dir(dir: &Path, what: &str) {
    for flags in ["-bcc", "-dddd"] {
        let output = oracle::zdb()
            .args(["-k", "-e", "-p"])
            .arg(dir)
            .args([flags, POOL])
            .output()
            .expect("zdb runs");
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        let bad = ["leaked space", "Error counts", "refcount mismatch"];
        let clean = output.status.success() && !bad.iter().any(|bad| out.contains(bad));
        assert!(clean, "{what}: zdb -k {flags}:\n{out}\n{err}");
    }
}

fn for_layouts(test: impl Fn(u64, usize, Vec<VdevSpec>)) {
    let raidz = VdevSpec::Raidz {
        parity: 1,
        paths: vec![path(0), path(1), path(2)],
    };
    test(601, 1, single());
    test(602, 2, mirror());
    test(603, 3, vec![raidz]);
}

#[test]
fn a_checkpoint_is_kept_and_given_up() {
    for_layouts(|seed, disks, vdevs| {
        let world = world(seed, disks, 192 * MIB);
        let mut recorder = Recorder::default();
        let mut rng = world.rng();
        run(&world, async |handle| {
            let pool = create(&handle, vdevs.clone()).await;
            work(&pool, &mut rng, &mut recorder, 60).await;
            let none = pool.discard_checkpoint().await;
            assert!(matches!(none, Err(PoolError::NoCheckpoint)), "{none:?}");
            pool.checkpoint().await.expect("checkpoint");
            let again = pool.checkpoint().await;
            assert!(
                matches!(again, Err(PoolError::CheckpointExists)),
                "{again:?}"
            );
            work(&pool, &mut rng, &mut recorder, 60).await;
            let kept = pool.status().checkpoint.expect("there is one");
            assert!(kept.time.is_some() && kept.bytes > MIB / 4, "{kept:?}");
            let room = root(&pool).await.space().available;
            // Devices that it knows stay.
            let leaf = pool.tree().leaves()[0].guid.0;
            for refused in [
                pool.attach(leaf, &path(7), false, false).await.map(drop),
                pool.detach(leaf).await,
                pool.remove(leaf).await,
                pool.reguid(None).await.map(drop),
                pool.split(pool::SplitSpec {
                    name: "other".into(),
                    ..pool::SplitSpec::default()
                })
                .await,
            ] {
                let exists = matches!(refused, Err(PoolError::CheckpointExists));
                assert!(exists, "{refused:?}");
            }
            pool.export().await.expect("export");
            assert!(room > 0);
        });
        zdb_clean(&world, "with a checkpoint");
        zdb_checkpoint_clean(&world, "the checkpoint");
        run(&world, async |handle| {
            let pool = import(&handle, disks).await;
            let kept = pool.status().checkpoint.expect("there is one");
            assert!(kept.time.is_some() && kept.bytes > MIB / 4, "{kept:?}");
            compare(&root(&pool).await, &recorder.now, "beside a checkpoint").await;
            work(&pool, &mut rng, &mut recorder, 30).await;
            let before = root(&pool).await.space().available;
            let allocated = pool.store().space().allocated;
            pool.discard_checkpoint().await.expect("discard");
            discarded(&handle, &pool).await;
            for _ in 0..4 {
                work(&pool, &mut rng, &mut recorder, 1).await;
            }
            let after = root(&pool).await.space().available;
            assert!(after > before, "{after} after {before} bytes");
            assert!(pool.store().space().allocated < allocated);
            pool.checkpoint().await.expect("another one");
            pool.discard_checkpoint().await.expect("and gone");
            discarded(&handle, &pool).await;
            compare(&root(&pool).await, &recorder.now, "without a checkpoint").await;
            pool.export().await.expect("export");
        });
        zdb_clean(&world, "without a checkpoint");
    });
}

#[test]
fn an_import_goes_back_to_the_checkpoint() {
    for_layouts(|seed, disks, vdevs| {
        let world = world(seed + 10, disks + 1, 192 * MIB);
        let mut recorder = Recorder::default();
        let mut rng = world.rng();
        let mut kept = Recorder::default();
        run(&world, async |handle| {
            let pool = create(&handle, vdevs.clone()).await;
            work(&pool, &mut rng, &mut recorder, 60).await;
            pool.checkpoint().await.expect("checkpoint");
            kept = recorder.clone();
            work(&pool, &mut rng, &mut recorder, 60).await;
            // A device that the checkpoint does not know.
            let spec = AddSpec {
                vdevs: vec![VdevSpec::Single(path(disks))],
                force: true,
                ..AddSpec::default()
            };
            pool.add(spec).await.expect("add");
            work(&pool, &mut rng, &mut recorder, 60).await;
            pool.export().await.expect("export");
        });
        run(&world, async |handle| {
            // First only a look: nothing is written.
            let pool = rewind(&handle, disks + 1, true).await.expect("a look");
            compare(&root(&pool).await, &kept.now, "a look at the checkpoint").await;
            pool.export().await.expect("export");
            let pool = import(&handle, disks + 1).await;
            compare(
                &root(&pool).await,
                &recorder.now,
                "the look changed nothing",
            )
            .await;
            pool.export().await.expect("export");
            let pool = rewind(&handle, disks + 1, false).await.expect("back");
            compare(&root(&pool).await, &kept.now, "back at the checkpoint").await;
            assert_eq!(pool.status().root.children.len(), 1);
            assert_eq!(pool.status().root.health, Health::Online);
            assert!(pool.status().checkpoint.is_none());
            work(&pool, &mut rng, &mut kept, 40).await;
            pool.export().await.expect("export");
        });
        zdb_clean(&world, "after a rewind");
        run(&world, async |handle| {
            let pool = import(&handle, disks + 1).await;
            compare(&root(&pool).await, &kept.now, "after a rewind").await;
            pool.export().await.expect("export");
            let none = rewind(&handle, disks + 1, false).await.map(drop);
            assert!(matches!(none, Err(PoolError::NoCheckpoint)), "{none:?}");
        });
    });
}

#[test]
fn openzfs_works_beside_our_checkpoint() {
    if refpool().is_none() {
        return;
    }
    let world = world(631, 2, 192 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    run(&world, async |handle| {
        let pool = create(&handle, mirror()).await;
        work(&pool, &mut rng, &mut recorder, 60).await;
        pool.checkpoint().await.expect("checkpoint");
        work(&pool, &mut rng, &mut recorder, 60).await;
        pool.export().await.expect("export");
    });
    let dir = tempfile::tempdir().expect("temporary directory");
    let files = world.dump(dir.path()).expect("dump the disks");
    // It makes, fills and frees, and keeps what the checkpoint refers to.
    let names = ["--", "tank/a", "fill:tank/a=8388608", "destroy:tank/a"];
    assert!(refpool_run(dir.path(), "ds", &files, &names));
    zdb_clean_dir(dir.path(), "after OpenZFS");
    zdb_checkpoint_clean_dir(dir.path(), "the checkpoint after OpenZFS");
    let world = world_of_files(632, &files);
    run(&world, async |handle| {
        let pool = import(&handle, 2).await;
        compare(&root(&pool).await, &recorder.now, "after OpenZFS").await;
        pool.discard_checkpoint().await.expect("discard");
        discarded(&handle, &pool).await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "discarded after OpenZFS");
}

/// What the machine did before the power went.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Deed {
    Keep,
    Discard,
    Rewind,
}

fn cut_during(seed: u64, deed: Deed) -> bool {
    let world = world(seed, 2, 128 * MIB);
    let mut recorder = Recorder::default();
    let mut rng = world.rng();
    let mut kept = Recorder::default();
    run(&world, async |handle| {
        let pool = create(&handle, mirror()).await;
        work(&pool, &mut rng, &mut recorder, 40).await;
        if deed != Deed::Keep {
            pool.checkpoint().await.expect("checkpoint");
            kept = recorder.clone();
            work(&pool, &mut rng, &mut recorder, 40).await;
        }
        pool.export().await.expect("export");
    });
    let most = if deed == Deed::Keep { 30 } else { 60 };
    let runtime = world.boot();
    world.plan_cut_at_flush(1 + rng.below(most));
    let before = recorder.clone();
    let ended = world.run_on(&runtime, async |handle| {
        let pool = if deed == Deed::Rewind {
            rewind(&handle, 2, false).await.expect("rewind")
        } else {
            import(&handle, 2).await
        };
        match deed {
            Deed::Keep => pool.checkpoint().await.expect("checkpoint"),
            Deed::Discard => {
                pool.discard_checkpoint().await.expect("discard");
                discarded(&handle, &pool).await;
            }
            Deed::Rewind => {}
        }
        for _ in 0..20 {
            pool.sync().await.expect("sync");
            handle.sleep(Duration::from_millis(10)).await;
            work(&pool, &mut rng, &mut Recorder::default(), 1).await;
        }
        pool.export().await.expect("export");
    });
    drop(runtime);
    let cut = matches!(ended, Ended::PowerCut);
    run(&world, async |handle| {
        // Before, or after; with all that was there.
        let pool = import(&handle, 2).await;
        let dataset = root(&pool).await;
        let objset = dataset.objset();
        let is_of = async |recorder: &Recorder| {
            for (object, bytes) in &recorder.now {
                let read = objset.read(ondisk::ObjectId(*object), 0, bytes.len()).await;
                if read.is_ok_and(|read| read[..] == bytes[..]) {
                    continue;
                }
                return false;
            }
            true
        };
        let whole = is_of(&before).await || deed == Deed::Rewind && is_of(&kept).await;
        assert!(whole, "seed {seed}, {deed:?}: something is lost");
        drop(dataset);
        pool.export().await.expect("export");
    });
    if seed.is_multiple_of(4) {
        zdb_clean(&world, &format!("seed {seed}, {deed:?}"));
    }
    cut
}

#[test]
fn a_power_cut_leaves_the_pool_before_or_after() {
    let mut cuts = 0;
    for (start, deed) in [(640, Deed::Keep), (660, Deed::Discard), (680, Deed::Rewind)] {
        for seed in start..start + 8 {
            cuts += u32::from(cut_during(seed, deed));
        }
    }
    assert!(cuts > 8, "only {cuts} cuts");
}
