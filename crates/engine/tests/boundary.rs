//! The engine at its own boundary: what handles answer and refuse. Method: a pool on one modelled disk, operations as data, each
//! beside what it has to answer.

mod datasets;
mod simulated_host;

use std::path::PathBuf;

use engine::{
    Access, Attr, CONTROL_ROOT, CONTROL_SHARES, CONTROL_SNAPSHOTS, CreateDataset, CreateMode, Cred,
    DestroyOptions, DeviceNumber, Ending, Engine, EngineError, FileId, FileType, FsError, FsHandle,
    FsResult, ImportPolicy, IoBuf, ListLimit, PoolHandle, PropertyQuery, SeekTarget, SetAttr,
    SnapshotRequest, Stability, Subject, XattrMode,
};
use runtime::Handle;
use world::{DiskModel, Faults, World};

use simulated_host::{DISK, identity, run_with_pool};

/// Runs a test with an engine that has an imported pool `tank`.
fn with_pool(test: impl AsyncFnOnce(Engine, PoolHandle)) {
    with_properties(&[], Faults::default(), async |_, engine, pool| {
        test(engine, pool).await;
    });
}

/// As [`with_pool`], with properties of the pool's root file system and what is wrong with its disk; the test is given
/// the machine, too.
fn with_properties(
    properties: &[(&str, &str)],
    faults: Faults,
    test: impl AsyncFnOnce(Handle, Engine, PoolHandle),
) {
    let world = World::new(1);
    world.add_disk(DISK, DiskModel::new(128 << 20));
    world.set_faults(DISK, faults);
    run_with_pool(&world, properties, test);
}

async fn root(fs: &FsHandle) -> FileId {
    fs.root().await.expect("the root directory").id
}

async fn file(fs: &FsHandle, name: &[u8], mode: u32, cred: &Cred) -> Attr {
    let set = SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    let dir = root(fs).await;
    let made = fs.create(dir, name, CreateMode::Guarded, &set, cred).await;
    made.expect("creates").file
}

fn user(uid: u32) -> Cred {
    Cred {
        uid,
        gid: uid,
        ..Cred::default()
    }
}

fn bytes() -> IoBuf {
    IoBuf::from(vec![1; 100])
}

fn everything() -> ListLimit {
    ListLimit {
        entries: 100,
        bytes: 65536,
        entry_overhead_bytes: 24,
        attrs: true,
    }
}

async fn snapshot(pool: &PoolHandle, name: &str) {
    let request = SnapshotRequest {
        names: vec![name.to_owned()],
        ..SnapshotRequest::default()
    };
    let refused = pool.snapshot(request).await.expect("takes");
    assert!(refused.is_empty(), "{refused:?}");
}

fn check<T: std::fmt::Debug>(what: &str, found: FsResult<T>, expected: FsError) {
    assert_eq!(found.expect_err(what), expected, "{what}");
}

#[test]
fn control_directories_refuse_what_only_stored_files_have() {
    with_pool(async |_, pool| {
        let fs = &pool.open_fs("tank").await.expect("opens");
        let cred = &Cred::root();
        let set = SetAttr::default();
        let (top, guarded) = (root(fs).await, CreateMode::Guarded);
        let stored = file(fs, b"f", 0o644, cred).await.id;
        for dir in [CONTROL_ROOT, CONTROL_SNAPSHOTS, CONTROL_SHARES] {
            let stable = Stability::Unstable;
            check("read", fs.read(dir, 0, 9, cred).await, FsError::IsDirectory);
            let data = SeekTarget::Data;
            check("seek", fs.seek(dir, 0, data).await, FsError::IsDirectory);
            check("readlink", fs.readlink(dir).await, FsError::Invalid);
            check(
                "xattr",
                fs.xattr(dir, b"user.a", cred).await,
                FsError::NotSupported,
            );
            let exchanged = fs.exchange(dir, b"a", top, b"f", cred).await;
            check("exchange", exchanged, FsError::Invalid);
            let renamed = fs.rename(dir, b"a", top, b"b", cred).await;
            check("rename out", renamed, FsError::CrossDevice);
            let renamed = fs.rename(top, b"f", dir, b"b", cred).await;
            check("rename into", renamed, FsError::CrossDevice);
            for (what, refused) in [
                ("write", fs.write(dir, 0, bytes(), stable, cred).await.err()),
                ("append", fs.append(dir, bytes(), stable, cred).await.err()),
                ("punch", fs.punch(dir, 0, 9, cred).await.err()),
                ("setattr", fs.setattr(dir, &set, None, cred).await.err()),
                (
                    "create",
                    fs.create(dir, b"a", guarded, &set, cred).await.err(),
                ),
                (
                    "symlink",
                    fs.symlink(dir, b"a", b"b", &set, cred).await.err(),
                ),
                ("link", fs.link(stored, dir, b"a", cred).await.err()),
                ("link of it", fs.link(dir, top, b"a", cred).await.err()),
                ("remove", fs.remove(dir, b"a", cred).await.err()),
                (
                    "remove_xattr",
                    fs.remove_xattr(dir, b"user.a", cred).await.err(),
                ),
                (
                    "set_xattr",
                    fs.set_xattr(dir, b"user.a", b"b", XattrMode::Any, cred)
                        .await
                        .err(),
                ),
                (
                    "mknod",
                    fs.mknod(
                        dir,
                        b"a",
                        FileType::Fifo,
                        DeviceNumber::default(),
                        &set,
                        cred,
                    )
                    .await
                    .err(),
                ),
            ] {
                assert_eq!(refused, Some(FsError::ReadOnly), "{what}");
            }
            if dir != CONTROL_SNAPSHOTS {
                check(
                    "mkdir",
                    fs.mkdir(dir, b"a", &set, cred).await,
                    FsError::ReadOnly,
                );
                check("rmdir", fs.rmdir(dir, b"a", cred).await, FsError::ReadOnly);
            }
        }
        let made = fs.create(top, b".zfs", guarded, &set, cred).await;
        check("create .zfs", made, FsError::Exists);
        check(
            "mkdir .zfs",
            fs.mkdir(top, b".zfs", &set, cred).await,
            FsError::Exists,
        );
        let renamed = fs.rename(top, b"f", top, b".zfs", cred).await;
        check("rename to .zfs", renamed, FsError::Exists);
    });
}

#[test]
fn control_directories_answer_what_directories_have() {
    with_pool(async |_, pool| {
        let fs = &pool.open_fs("tank").await.expect("opens");
        let cred = &user(9);
        let top = root(fs).await;
        snapshot(&pool, "tank@one").await;
        let control = fs.find(top, b".zfs", cred).await.expect("is there").attr;
        assert_eq!((control.id, control.parent), (CONTROL_ROOT, top.object));
        for (dir, name, expected) in [
            (CONTROL_ROOT, &b"."[..], CONTROL_ROOT),
            (CONTROL_ROOT, b"..", top),
            (CONTROL_ROOT, b"snapshot", CONTROL_SNAPSHOTS),
            (CONTROL_ROOT, b"shares", CONTROL_SHARES),
            (CONTROL_SNAPSHOTS, b"..", CONTROL_ROOT),
        ] {
            let found = fs.lookup(dir, name, cred).await.expect("is there").id;
            assert_eq!(found, expected, "{name:?}");
        }
        for (dir, name, expected) in [
            (CONTROL_ROOT, &b"other"[..], FsError::NotFound),
            (CONTROL_SNAPSHOTS, b"two", FsError::NotFound),
            (CONTROL_SHARES, b"x", FsError::NotFound),
        ] {
            check("lookup", fs.lookup(dir, name, cred).await, expected);
        }
        let wanted = Access::READ | Access::LOOKUP | Access::MODIFY | Access::DELETE;
        let granted = fs.access(CONTROL_ROOT, wanted, cred).await;
        assert_eq!(granted, Ok(Access::READ | Access::LOOKUP));
        assert_eq!(fs.access(CONTROL_SNAPSHOTS, wanted, cred).await, Ok(wanted));
        let listing = fs.readdir(CONTROL_SNAPSHOTS, 0, everything(), cred).await;
        let names: Vec<_> = listing.expect("lists").entries;
        let names: Vec<&[u8]> = names.iter().map(|entry| entry.name.as_slice()).collect();
        assert_eq!(names, [&b"."[..], b"..", b"one"]);
        assert_eq!(fs.xattrs(CONTROL_ROOT, cred).await, Ok(Vec::new()));
        assert!(fs.commit(CONTROL_ROOT, 0, 0).await.is_ok());
    });
}

#[test]
fn snapshots_are_made_and_destroyed_by_their_directories() {
    with_pool(async |_, pool| {
        let fs = &pool.open_fs("tank").await.expect("opens");
        let (admin, set) = (&Cred::root(), &SetAttr::default());
        let dir = CONTROL_SNAPSHOTS;
        let refused = fs.mkdir(dir, b"one", set, &user(9)).await;
        check("nothing is delegated", refused, FsError::NotPermitted);
        fs.mkdir(dir, b"one", set, admin).await.expect("takes");
        check(
            "twice",
            fs.mkdir(dir, b"one", set, admin).await,
            FsError::Exists,
        );
        let illegal = fs.mkdir(dir, b"\xff", set, admin).await;
        check("no text", illegal, FsError::IllegalName);
        let renamed = fs.rename(dir, b"one", dir, b"two", admin).await;
        renamed.expect("renames");
        check(
            "gone",
            fs.rmdir(dir, b"one", admin).await,
            FsError::NotFound,
        );
        let refused = fs.rmdir(dir, b"two", &user(9)).await;
        check("nothing is delegated", refused, FsError::NotPermitted);
        fs.rmdir(dir, b"two", admin).await.expect("destroys");
        let missing = pool.dataset("tank@two", &PropertyQuery::None).await;
        assert!(matches!(missing, Err(EngineError::DatasetNotFound(_))));
    });
}

#[test]
fn handles_of_what_is_gone_are_stale() {
    with_pool(async |_, pool| {
        let request = CreateDataset {
            name: "tank/a".into(),
            ..CreateDataset::default()
        };
        pool.create_dataset(request).await.expect("creates");
        let fs = pool.open_fs("tank/a").await.expect("opens");
        let (cred, top) = (&Cred::root(), root(&fs).await);
        let gone = file(&fs, b"f", 0o644, cred).await.id;
        fs.remove(top, b"f", cred).await.expect("removes");
        let other = FileId {
            generation: top.generation + 1,
            ..top
        };
        for id in [gone, other] {
            check("getattr", fs.getattr(id).await, FsError::Stale);
            check("read", fs.read(id, 0, 1, cred).await, FsError::Stale);
        }
        // A handle of a dataset that is no snapshot must not lead there through another's `.zfs`.
        let tank = pool.open_fs("tank").await.expect("opens");
        let forged = tank.snapshot(fs.dataset(), fs.guid());
        check("forged", forged.root().await, FsError::Stale);
        let guid = pool.fs_by_number(fs.dataset(), fs.guid() ^ 1);
        check("another guid", guid.root().await, FsError::Stale);
        let destroyed = pool.destroy_dataset("tank/a", DestroyOptions::default());
        destroyed.await.expect("destroys");
        check("destroyed", fs.getattr(top).await, FsError::Stale);
        check("destroyed", fs.root().await, FsError::Stale);
    });
}

#[test]
fn a_pool_imported_read_only_changes_nothing() {
    with_pool(async |engine, pool| {
        let fs = pool.open_fs("tank").await.expect("opens");
        let stored = file(&fs, b"f", 0o644, &Cred::root()).await.id;
        snapshot(&pool, "tank@one").await;
        let export = Ending::Export { command: None };
        engine.end_pool("tank", export).await.expect("exports");
        check("exported", fs.getattr(stored).await, FsError::Busy);
        let places = vec![PathBuf::from(DISK)];
        let mut found = engine.discover(places).await.expect("searches").pools;
        let policy = ImportPolicy {
            readonly: true,
            host: identity(),
            ..ImportPolicy::default()
        };
        let candidate = found.pop().expect("the pool");
        let pool = engine.import(candidate, policy).await.expect("imports");
        let fs = &pool.open_fs("tank").await.expect("opens");
        let (cred, set, top) = (&Cred::root(), &SetAttr::default(), root(fs).await);
        assert_eq!(fs.lookup(top, b"f", cred).await.expect("reads").id, stored);
        for (what, refused) in [
            ("mkdir", fs.mkdir(top, b"d", set, cred).await.err()),
            ("remove", fs.remove(top, b"f", cred).await.err()),
            ("setattr", fs.setattr(stored, set, None, cred).await.err()),
            (
                "write",
                fs.write(stored, 0, bytes(), Stability::FileSync, cred)
                    .await
                    .err(),
            ),
            (
                "mkdir of a snapshot",
                fs.mkdir(CONTROL_SNAPSHOTS, b"two", set, cred).await.err(),
            ),
            (
                "rmdir of a snapshot",
                fs.rmdir(CONTROL_SNAPSHOTS, b"one", cred).await.err(),
            ),
        ] {
            assert_eq!(refused, Some(FsError::ReadOnly), "{what}");
        }
        let settings = [("atime".to_owned(), "off".to_owned())];
        let refused = pool.set_dataset_properties("tank", &settings).await;
        assert!(matches!(refused, Err(EngineError::Pool(_))), "{refused:?}");
    });
}

/// RFC 1813, section 4.4: the owner reads and writes whatever the mode says, since the check was done at its open.
#[test]
fn content_is_for_owners_and_for_whom_the_mode_allows() {
    with_pool(async |_, pool| {
        let fs = &pool.open_fs("tank").await.expect("opens");
        let top = root(fs).await;
        let open = SetAttr {
            mode: Some(0o777),
            ..SetAttr::default()
        };
        fs.setattr(top, &open, None, &Cred::root())
            .await
            .expect("sets");
        for (mode, uid, reads, writes) in [
            (0o000, 5, true, true),
            (0o000, 6, false, false),
            (0o000, 0, true, true),
            (0o004, 6, true, false),
            (0o002, 6, false, true),
            (0o001, 6, true, false),
        ] {
            let id = file(fs, b"f", mode, &user(5)).await.id;
            let cred = &user(uid);
            let read = fs.read(id, 0, 1, cred).await.map(|_| ());
            let write = fs.write(id, 0, bytes(), Stability::Unstable, cred).await;
            let allowed = |yes| if yes { Ok(()) } else { Err(FsError::Access) };
            assert_eq!(read, allowed(reads), "{uid} reads {mode:o}");
            assert_eq!(write.map(|_| ()), allowed(writes), "{uid} writes {mode:o}");
            fs.remove(top, b"f", &user(5)).await.expect("removes");
        }
    });
}

#[test]
fn callers_other_than_root_need_delegated_permissions() {
    with_pool(async |_, pool| {
        let subject = Subject {
            uid: 9,
            groups: vec![9],
        };
        let caller = pool.for_caller(subject);
        assert!(pool.is_trusted() && !caller.is_trusted());
        let request = |name: &str| SnapshotRequest {
            names: vec![name.to_owned()],
            ..SnapshotRequest::default()
        };
        let denied = [
            caller.snapshot(request("tank@a")).await.err(),
            caller.open_fs("tank").await.err(),
            caller.sync().await.err(),
            caller.inherit("tank", "atime", false).await.err(),
        ];
        for error in denied {
            assert!(matches!(error, Some(EngineError::Permission)), "{error:?}");
        }
        assert!(caller.status().await.is_ok(), "states are for all");
    });
}

#[test]
fn one_refused_name_refuses_all_snapshots_of_a_request() {
    with_pool(async |_, pool| {
        let request = CreateDataset {
            name: "tank/a".into(),
            ..CreateDataset::default()
        };
        pool.create_dataset(request).await.expect("creates");
        snapshot(&pool, "tank/a@x").await;
        for (names, refused) in [
            (["tank@x", "tank/a@x"], Some("tank/a@x")),
            (["tank@x", "tank/a@y"], None),
        ] {
            let request = SnapshotRequest {
                names: names.map(str::to_owned).to_vec(),
                ..SnapshotRequest::default()
            };
            let found = pool.snapshot(request).await.expect("is answered");
            let found: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
            assert_eq!(found, refused.into_iter().collect::<Vec<_>>());
            let taken = pool.dataset("tank@x", &PropertyQuery::None).await.is_ok();
            assert_eq!(taken, refused.is_none());
        }
    });
}

/// Requests that were accepted before the pool ends are answered; those after it learn that the pool is gone.
#[test]
fn a_pool_that_closes_answers_what_it_has_accepted() {
    with_pool(async |engine, pool| {
        let fs = &pool.open_fs("tank").await.expect("opens");
        let cred = &Cred::root();
        let id = file(fs, b"f", 0o644, cred).await.id;
        let mut writes: Vec<_> = (0..20)
            .map(|at| fs.write(id, at * 100, bytes(), Stability::FileSync, cred))
            .collect();
        // Polled once each: all lie in the mailbox before the end does.
        std::future::poll_fn(|context| {
            for write in &mut writes {
                assert!(write.as_mut().poll(context).is_pending());
            }
            std::task::Poll::Ready(())
        })
        .await;
        engine
            .end_pool("tank", Ending::Close)
            .await
            .expect("closes");
        for write in writes {
            assert_eq!(write.await.map(|written| written.count), Ok(100));
        }
        check("afterwards", fs.getattr(id).await, FsError::Busy);
        assert!(matches!(pool.sync().await, Err(EngineError::PoolClosed)));
        assert!(matches!(
            engine.pool("tank"),
            Err(EngineError::PoolNotFound(_))
        ));
    });
}

/// A file is held while its last name goes: it is refused, or all of it stays until it is released. The hold has to read the
/// file's ACL from a slow disk, so that the removal overtakes it at every place.
#[test]
fn a_hold_that_a_removal_overtakes_is_refused_or_kept() {
    const FILES: usize = 32;
    // More blocks than are freed with the last name.
    const PARTS: usize = 10;
    const PART: usize = 128 << 10;
    /// By which the removal of each file comes later after its hold began than that of the one before it.
    const STEP_US: u64 = 100;
    let slow = Faults {
        slow: 1_000_000,
        slow_by: std::time::Duration::from_millis(1),
        ..Faults::default()
    };
    let properties = [
        ("acltype", "posix"),
        ("xattr", "dir"),
        ("recordsize", "4096"),
    ];
    with_properties(&properties, slow, async |machine, engine, pool| {
        let cred = &Cred::root();
        // posix_acl_xattr.h: the version, then tag, permissions and id of each entry. It takes a block of its own.
        let users = (1..40_u32).map(|user| (2_u16, 6_u16, user * 0x0321_9ab7));
        let entries = [(1, 6, !0)].into_iter().chain(users);
        let mut acl = 2_u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries.chain([(4, 4, !0), (16, 6, !0), (32, 4, !0)]) {
            acl.extend_from_slice(&tag.to_le_bytes());
            acl.extend_from_slice(&permissions.to_le_bytes());
            acl.extend_from_slice(&id.to_le_bytes());
        }
        let fs = pool.open_fs("tank").await.expect("opens");
        let names: Vec<Vec<u8>> = (0..FILES).map(|n| format!("f{n}").into_bytes()).collect();
        let mut ids = Vec::new();
        for name in &names {
            let id = file(&fs, name, 0o644, cred).await.id;
            for part in 0..PARTS {
                let data = IoBuf::from(vec![7; PART]);
                let offset = (part * PART) as u64;
                let written = fs.write(id, offset, data, Stability::Unstable, cred).await;
                written.expect("writes");
            }
            let set = fs.set_xattr(id, b"system.posix_acl_access", &acl, XattrMode::Any, cred);
            set.await.expect("sets");
            ids.push(id);
        }
        drop(fs);
        let ending = Ending::Export { command: None };
        engine.end_pool("tank", ending).await.expect("exports");
        let found = engine
            .discover(vec![PathBuf::from(DISK)])
            .await
            .expect("searches");
        let candidate = found.pools.into_iter().next().expect("a pool");
        let policy = ImportPolicy {
            host: identity(),
            ..ImportPolicy::default()
        };
        let pool = engine.import(candidate, policy).await.expect("imports");
        let fs = &pool.open_fs("tank").await.expect("opens");
        let dir = root(fs).await;
        let (mut kept, mut refused) = (0, 0);
        for (number, (name, id)) in names.iter().zip(&ids).enumerate() {
            let remove = async {
                let delay = std::time::Duration::from_micros(number as u64 * STEP_US);
                machine.sleep(delay).await;
                fs.remove(dir, name, cred).await.expect("removes");
            };
            let (held, ()) = runtime::join(fs.hold(*id), remove).await;
            // Long enough for all that is due to be freed.
            machine.sleep(std::time::Duration::from_secs(2)).await;
            match held {
                Ok(_) => {
                    kept += 1;
                    for part in 0..PARTS {
                        let offset = (part * PART) as u64;
                        let read = fs.read(*id, offset, PART, cred).await.expect("reads");
                        assert!(read.to_vec() == vec![7; PART], "file {number}, part {part}");
                    }
                    fs.release(*id).await.expect("releases");
                }
                Err(FsError::Stale) => refused += 1,
                Err(error) => panic!("file {number}: {error:?}"),
            }
        }
        assert!(kept > 0 && refused > 0, "{kept} kept, {refused} refused");
    });
}
