//! What is done with a dataset, its keys and its pool while its master key is rotated. Method: the rotation is given some milliseconds of
//! virtual time, more with every turn, so that the other thing meets each of its steps.

use std::path::Path;

use engine::{DestroyOptions, KeyChange};

use super::*;

/// Milliseconds after which the rotation is met.
const PAUSES: [u64; 11] = [0, 2, 5, 10, 20, 30, 40, 60, 80, 120, 200];

async fn change(pool: &PoolHandle, root: &str, secret: u8, location: Option<&str>) {
    let change = KeyChange::New {
        key: NewKey {
            format: KeyFormat::Raw,
            key: Arc::new(wrapping_key(secret)),
        },
        location: location.map(str::to_owned),
    };
    let changed = pool.change_key(root, change).await;
    changed.unwrap_or_else(|error| panic!("change the key of {root}: {error}"));
}

/// Only the key that was given last opens a root.
async fn check_opens(pool: &PoolHandle, root: &str, secret: u8) {
    pool.unload_key(root).await.expect("unloads");
    let wrong = pool
        .load_key(root, wrapping_key(secret - 1), false)
        .await
        .expect_err("an older key");
    assert!(matches!(wrong, EngineError::WrongKey(_)), "{root}: {wrong}");
    let loaded = pool.load_key(root, wrapping_key(secret), false).await;
    loaded.unwrap_or_else(|error| panic!("load {secret} for {root}: {error}"));
}

/// Goes on with what is left of rotations, to the end; nothing is left in the pool then.
async fn end(handle: &Handle, pool: &PoolHandle) {
    wait(handle, pool).await;
    pool.resume_key_rotations().await.expect("goes on");
    assert_eq!(wait(handle, pool).await, Vec::new());
    let left = names(pool).await;
    let left: Vec<_> = left
        .iter()
        .filter(|name| name.contains("rotate-key"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

async fn master_key(pool: &PoolHandle, name: &str) -> u64 {
    let info = pool.key_info(name).await.expect("looks");
    info.expect("is encrypted").guid
}

/// Begins a rotation and lets it go on for so many milliseconds; returns the master key of before.
async fn begin(handle: &Handle, pool: &PoolHandle, name: &str, pause: u64) -> u64 {
    let before = master_key(pool, name).await;
    pool.start_key_rotation(name).await.expect("begins");
    handle.sleep(Duration::from_millis(pause)).await;
    before
}

/// As [`end`], and the dataset has another master key than before.
async fn end_anew(handle: &Handle, pool: &PoolHandle, name: &str, before: u64) {
    end(handle, pool).await;
    assert_ne!(master_key(pool, name).await, before, "{name}");
}

#[test]
fn the_wrapping_key_changes_during_a_rotation() {
    let world = new_world(21);
    run_with_pool(&world, &[], async |handle, _, pool| {
        create_safe(&pool).await;
        let mut versions = fill(&pool, "tank/safe").await;
        versions.extend(fill(&pool, "tank/safe/kid").await);
        let mut secret = 1;
        let mut met = 0;
        for (turn, pause) in PAUSES.into_iter().enumerate() {
            // One that is its own root, and one that has the key of that.
            let name = ["tank/safe", "tank/safe/kid"][turn % 2];
            let before = begin(&handle, &pool, name, pause).await;
            for _ in 0..2 {
                secret += 1;
                change(&pool, "tank/safe", secret, None).await;
            }
            met += usize::from(!pool.key_rotations().await.expect("looks").is_empty());
            end_anew(&handle, &pool, name, before).await;
            check_opens(&pool, "tank/safe", secret).await;
            check_contents(&pool, &versions).await;
        }
        assert!(met > 5, "{met} rotations were under way");
    });
    judge(&world);
}

#[test]
fn a_dataset_becomes_a_root_and_inherits_again_during_a_rotation() {
    let world = new_world(22);
    run_with_pool(&world, &[], async |handle, _, pool| {
        create_safe(&pool).await;
        let kid = "tank/safe/kid";
        let versions = fill(&pool, kid).await;
        let mut secret = 10;
        for (turn, pause) in PAUSES.into_iter().enumerate() {
            let before = begin(&handle, &pool, kid, pause).await;
            let root = if turn % 2 == 0 {
                secret += 2;
                change(&pool, kid, secret, Some("file:///other")).await;
                kid
            } else {
                let inherited = pool.change_key(kid, KeyChange::Inherit).await;
                inherited.expect("inherits");
                "tank/safe"
            };
            end(&handle, &pool).await;
            let info = pool.key_info(kid).await.expect("looks").expect("a key");
            assert_eq!(info.root, root, "after {pause} ms");
            assert_ne!(info.guid, before, "after {pause} ms");
            if root == kid {
                check_opens(&pool, kid, secret).await;
            }
            check_contents(&pool, &versions).await;
        }
    });
    judge(&world);
}

#[test]
fn a_rotation_whose_key_is_unloaded_waits_for_it() {
    let world = new_world(23);
    run_with_pool(&world, &[], async |handle, _, pool| {
        create_safe(&pool).await;
        let versions = fill(&pool, "tank/safe").await;
        let (mut waited, mut refused) = (0, 0);
        for pause in PAUSES {
            let before = begin(&handle, &pool, "tank/safe", pause).await;
            match pool.unload_key("tank/safe").await {
                Ok(()) => {
                    wait(&handle, &pool).await;
                    let found = pool.key_rotations().await.expect("looks");
                    if let Some(rotation) = found.first() {
                        assert!(!rotation.ready, "{rotation:?}");
                        // Nothing that opens a copy of the data stays loaded without it.
                        let copy = names(&pool).await;
                        let copy = copy.iter().find(|name| name.ends_with("/copy"));
                        if let Some(copy) = copy {
                            let info = pool.key_info(copy).await.expect("looks");
                            assert!(!info.expect("is encrypted").loaded, "{copy}");
                        }
                        waited += 1;
                    }
                    assert!(pool.resume_key_rotations().await.expect("looks").is_empty());
                    let loaded = pool.load_key("tank/safe", wrapping_key(1), false).await;
                    loaded.expect("loads");
                }
                // While a snapshot is sent, or closed for the exchange.
                Err(EngineError::Busy(_)) => refused += 1,
                Err(error) => panic!("after {pause} ms: {error}"),
            }
            end_anew(&handle, &pool, "tank/safe", before).await;
            check_contents(&pool, &versions).await;
        }
        assert!(waited > 2, "{waited} waited, {refused} were refused");
    });
    judge(&world);
}

#[test]
fn a_dataset_is_renamed_during_a_rotation() {
    let world = new_world(24);
    run_with_pool(&world, &[], async |handle, _, pool| {
        create_safe(&pool).await;
        let mut versions = fill(&pool, "tank/safe").await;
        let mut name = "tank/safe".to_owned();
        for (turn, pause) in PAUSES.into_iter().enumerate() {
            let before = begin(&handle, &pool, &name, pause).await;
            let next = format!("tank/safe{turn}");
            let renamed = pool.rename_dataset(&name, &next, false).await;
            renamed.unwrap_or_else(|error| panic!("after {pause} ms: {error}"));
            let (old, new) = (format!("{name}@b"), format!("{next}@b"));
            let moved = versions.into_iter();
            versions = moved
                .map(|(key, held)| (key.replacen(&name, &next, 1), held))
                .collect();
            // A snapshot, too, and back again.
            let old = old.replacen(&name, &next, 1);
            let other = format!("{next}@other");
            for (from, to) in [(&old, &other), (&other, &new)] {
                let renamed = pool.rename_snapshot(from, to, false).await;
                renamed.unwrap_or_else(|error| panic!("after {pause} ms: {error}"));
                handle.sleep(Duration::from_millis(3)).await;
            }
            end_anew(&handle, &pool, &next, before).await;
            check_contents(&pool, &versions).await;
            check_kept(&pool, &next).await;
            name = next;
        }
    });
    judge(&world);
}

#[test]
fn all_snapshots_are_destroyed_during_a_rotation() {
    let world = new_world(28);
    run_with_pool(&world, &[], async |handle, _, pool| {
        create_safe(&pool).await;
        let versions = fill(&pool, "tank/safe").await;
        let kept = ["tank/safe@a".to_owned()];
        let released = pool.release(&kept, "kept", false).await;
        assert!(released.expect("releases").is_empty());
        let head = Versions::from([("tank/safe".to_owned(), versions["tank/safe"].clone())]);
        for pause in PAUSES {
            let before = begin(&handle, &pool, "tank/safe", pause).await;
            // Those of the rotation, too; what is being copied is left.
            let all = names(&pool).await.into_iter();
            for name in all.filter(|name| name.starts_with("tank/safe@")) {
                let _ = pool.destroy_snapshots(&[name], false).await;
                handle.sleep(Duration::from_millis(2)).await;
            }
            end_anew(&handle, &pool, "tank/safe", before).await;
            check_contents(&pool, &head).await;
            // For the next turn.
            snapshot(&pool, &format!("tank/safe@after{pause}"), &[]).await;
        }
    });
    judge(&world);
}

#[test]
fn a_dataset_is_rolled_back_during_a_rotation() {
    let world = new_world(25);
    run_with_pool(&world, &[], async |handle, _, pool| {
        create_safe(&pool).await;
        let mut versions = fill(&pool, "tank/safe").await;
        for (turn, pause) in PAUSES.into_iter().enumerate() {
            let fs = pool.open_fs("tank/safe").await.expect("opens");
            let top = fs.root().await.expect("the root directory").id;
            let file = fs.lookup(top, b"file", &Cred::root()).await;
            let version = 10 + u8::try_from(turn).expect("few");
            write(
                &fs,
                file.expect("finds").id,
                3,
                version,
                Stability::FileSync,
            )
            .await;
            let before = begin(&handle, &pool, "tank/safe", pause).await;
            let target = "tank/safe@b";
            roll_back_with_newer(&handle, &pool, "tank/safe", target).await;
            let held = versions[target].clone();
            versions.insert("tank/safe".to_owned(), held);
            end_anew(&handle, &pool, "tank/safe", before).await;
            check_contents(&pool, &versions).await;
        }
    });
    judge(&world);
}

#[test]
fn a_dataset_is_destroyed_during_a_rotation() {
    let world = new_world(26);
    run_with_pool(&world, &[], async |handle, _, pool| {
        for pause in PAUSES {
            create_safe(&pool).await;
            fill(&pool, "tank/safe/kid").await;
            let held = ["tank/safe/kid@a".to_owned()];
            let released = pool.release(&held, "kept", false).await;
            assert!(released.expect("releases").is_empty());
            begin(&handle, &pool, "tank/safe/kid", pause).await;
            destroy_with_snapshots(&handle, &pool, "tank/safe/kid").await;
            end(&handle, &pool).await;
            let gone = pool
                .destroy_dataset("tank/safe", DestroyOptions::default())
                .await;
            gone.expect("destroys");
            assert_eq!(names(&pool).await, ["tank"]);
        }
    });
    judge(&world);
}

/// As `zfs rollback -r`, again while snapshots are busy.
async fn roll_back_with_newer(handle: &Handle, pool: &PoolHandle, name: &str, target: &str) {
    let short_lived = format!("{name}@sanbox-rotate-key-");
    let is_busy =
        |error: &EngineError| matches!(error, EngineError::Busy(_) | EngineError::NotNewest(_));
    let roll_back = async || pool.rollback(name, Some(target)).await;
    without_snapshots(handle, pool, &short_lived, is_busy, roll_back).await;
}

/// As `zfs destroy -r`, again while snapshots are busy.
async fn destroy_with_snapshots(handle: &Handle, pool: &PoolHandle, name: &str) {
    let is_busy = |error: &EngineError| {
        matches!(
            error,
            EngineError::Busy(_) | EngineError::HasChildren { .. }
        )
    };
    let destroy = async || pool.destroy_dataset(name, DestroyOptions::default()).await;
    without_snapshots(handle, pool, &format!("{name}@"), is_busy, destroy).await;
}

/// Destroys the snapshots whose names begin so, and then does what they prevent, until it is not busy.
async fn without_snapshots(
    handle: &Handle,
    pool: &PoolHandle,
    beginning: &str,
    is_busy: impl Fn(&EngineError) -> bool,
    work: impl AsyncFn() -> Result<(), EngineError>,
) {
    for _ in 0..200 {
        let mut snapshots = names(pool).await;
        snapshots.retain(|known| known.starts_with(beginning));
        let refused = match snapshots.is_empty() {
            true => Vec::new(),
            false => pool
                .destroy_snapshots(&snapshots, false)
                .await
                .expect("destroys"),
        };
        if refused.is_empty() {
            match work().await {
                Ok(()) => return,
                Err(error) if is_busy(&error) => {}
                Err(error) => panic!("without {beginning}: {error}"),
            }
        }
        handle.sleep(Duration::from_millis(10)).await;
    }
    panic!("{beginning} is busy for two seconds");
}

async fn scan(handle: &Handle, pool: &PoolHandle) {
    loop {
        let status = pool.status().await.expect("looks");
        match status.scan {
            Some(scan) if scan.running => handle.sleep(Duration::from_millis(20)).await,
            Some(scan) => return assert_eq!(scan.errors, 0, "{scan:?}"),
            None => return,
        }
    }
}

#[test]
fn a_pool_is_scrubbed_and_resilvered_during_rotations() {
    const OTHER: &str = "/disks/d1";
    let world = new_world(27);
    world.add_disk(OTHER, DiskModel::new(192 << 20));
    run_with_pool(&world, &[], async |handle, _, pool| {
        create_safe(&pool).await;
        let versions = fill(&pool, "tank/safe").await;
        let status = pool.status().await.expect("looks");
        let first = status.root.children[0].guid;
        let mut attached = None;
        for (turn, pause) in PAUSES.into_iter().enumerate() {
            begin(&handle, &pool, "tank/safe", pause).await;
            match (turn % 3, attached) {
                (0, None) => {
                    let leaf = pool.attach(first, Path::new(OTHER), false, true).await;
                    attached = Some(leaf.expect("attaches"));
                }
                (0, Some(leaf)) => {
                    pool.detach(leaf).await.expect("detaches");
                    attached = None;
                }
                _ => pool.start_scrub().await.expect("begins"),
            }
            end(&handle, &pool).await;
            scan(&handle, &pool).await;
            check_contents(&pool, &versions).await;
        }
        pool.start_scrub().await.expect("begins");
        scan(&handle, &pool).await;
        assert_eq!(
            pool.damaged_files().await.expect("looks"),
            Vec::<String>::new()
        );
    });
    judge(&world);
}
