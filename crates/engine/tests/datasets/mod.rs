//! Datasets at the engine's boundary, as data: command lines in order, each beside its answer. The answers are what OpenZFS documents and
//! prints: zfs(8), zfsprops(7), zfs-allow(8), lib/libzfs/libzfs_dataset.c and libzfs_sendrecv.c (texts), POSIX (file operations).

use engine::{
    CreateDataset, CreateMode, Cred, DestroyOptions, EngineError, FileId, FsError, FsHandle, IoBuf,
    PoolHandle, PropertyQuery, ReceiveRequest, Refusal, SendPackageRequest, SendRequest, SetAttr,
    SnapshotRequest, Stability, Subject, property, stream::package_end,
};

use crate::{check, file, root, snapshot, user, with_pool};

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn settings(words: &[&str]) -> Vec<(String, String)> {
    let pairs = words
        .iter()
        .map(|word| word.split_once('=').expect("NAME=VALUE"));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Nothing where it was done, or the reason.
fn outcome(result: Result<(), EngineError>) -> String {
    result
        .err()
        .map_or_else(String::new, |error| error.to_string())
}

/// As [`outcome`] of requests that say what is wrong with single names.
fn refusals(result: Result<Vec<Refusal>, EngineError>) -> String {
    match result {
        Ok(refused) => {
            let texts = refused.iter().map(|one| one.error.to_string());
            texts.collect::<Vec<_>>().join("; ")
        }
        Err(error) => error.to_string(),
    }
}

/// A property as `zfs get -Hpo value,source` prints it.
async fn get(pool: &PoolHandle, name: &str, dataset: &str) -> String {
    let query = PropertyQuery::Named(vec![name.to_owned()]);
    let info = match pool.dataset(dataset, &query).await {
        Ok(info) => info,
        Err(error) => return error.to_string(),
    };
    let Some(found) = info.property(name) else {
        return "not there".to_owned();
    };
    let value = match found.native {
        Some(native) => property::display(native, &found.value, true),
        None => found.value.text().unwrap_or_default().to_owned(),
    };
    format!("{value} {}", found.source)
}

/// A number of bytes that is a property.
async fn bytes_of(pool: &PoolHandle, name: &str, dataset: &str) -> u64 {
    let shown = get(pool, name, dataset).await;
    let number = shown.split(' ').next().and_then(|value| value.parse().ok());
    number.unwrap_or_else(|| panic!("{name} of {dataset}: {shown}"))
}

/// Carries out a line.
async fn answer(pool: &PoolHandle, line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["create", name, ref properties @ ..] => {
            let request = CreateDataset {
                name: name.to_owned(),
                properties: settings(properties),
                ..CreateDataset::default()
            };
            outcome(pool.create_dataset(request).await)
        }
        ["snapshot", ref names @ ..] => {
            let request = SnapshotRequest {
                names: owned(names),
                ..SnapshotRequest::default()
            };
            refusals(pool.snapshot(request).await)
        }
        ["clone", origin, name] => outcome(pool.clone_snapshot(origin, name, &[], false).await),
        ["promote", name] => outcome(pool.promote(name).await),
        ["rollback", name, target] => outcome(pool.rollback(name, Some(target)).await),
        ["rename", from, to] => outcome(pool.rename_dataset(from, to, false).await),
        ["bookmark", of, new] => {
            let wanted = [(new.to_owned(), of.to_owned())];
            refusals(pool.create_bookmarks(&wanted).await)
        }
        ["hold", tag, name] => refusals(pool.hold(&owned(&[name]), tag, false).await),
        ["release", tag, name] => refusals(pool.release(&owned(&[name]), tag, false).await),
        ["destroy", "-d", name] => refusals(pool.destroy_snapshots(&owned(&[name]), true).await),
        ["destroy", name] if name.contains('@') => {
            refusals(pool.destroy_snapshots(&owned(&[name]), false).await)
        }
        ["destroy", name] if name.contains('#') => {
            refusals(pool.destroy_bookmarks(&owned(&[name])).await)
        }
        ["destroy", name] => outcome(pool.destroy_dataset(name, DestroyOptions::default()).await),
        ["set", setting, name] => outcome(
            pool.set_dataset_properties(name, &settings(&[setting]))
                .await,
        ),
        ["inherit", property, name] => outcome(pool.inherit(name, property, false).await),
        ["revert", property, name] => outcome(pool.inherit(name, property, true).await),
        ["get", property, name] => get(pool, property, name).await,
        _ => panic!("a line that means nothing: {line}"),
    }
}

fn check_lines(lines: &'static [(&'static str, &'static str)]) {
    with_pool(async |_, pool| {
        for (line, expected) in lines {
            assert_eq!(answer(&pool, line).await, *expected, "{line}");
        }
    });
}

#[test]
fn clones_depend_on_their_origin_until_one_is_promoted() {
    check_lines(&[
        ("create tank/a", ""),
        ("create tank/a", "dataset already exists"),
        ("create tank/x/y", "parent does not exist"),
        ("snapshot tank/a@s", ""),
        ("snapshot tank/a@s", "dataset already exists"),
        ("clone tank/a@s tank/c", ""),
        ("clone tank/a@none tank/d", "dataset does not exist"),
        ("get origin tank/c", "tank/a@s -"),
        ("destroy tank/a@s", "snapshot has dependent clones"),
        ("destroy tank/a", "filesystem has children"),
        ("promote tank/a", "not a cloned filesystem"),
        ("promote tank/c", ""),
        ("get origin tank/a", "tank/c@s -"),
        ("get guid tank/a@s", "dataset does not exist"),
        ("destroy tank/c@s", "snapshot has dependent clones"),
        ("destroy tank/a", ""),
        ("destroy tank/c@s", ""),
        ("destroy tank/c", ""),
        ("get guid tank/c", "dataset does not exist"),
    ]);
}

#[test]
fn a_held_snapshot_stays_until_its_last_tag_is_released() {
    check_lines(&[
        ("create tank/h", ""),
        ("snapshot tank/h@s", ""),
        ("get userrefs tank/h@s", "0 -"),
        ("hold keep tank/h@s", ""),
        ("hold keep tank/h@s", "tag already exists on this dataset"),
        ("hold other tank/h@s", ""),
        ("get userrefs tank/h@s", "2 -"),
        ("destroy tank/h@s", "dataset is busy"),
        ("get defer_destroy tank/h@s", "off -"),
        ("destroy -d tank/h@s", ""),
        ("get defer_destroy tank/h@s", "on -"),
        ("release none tank/h@s", "no such tag on this dataset"),
        ("release keep tank/h@s", ""),
        ("get userrefs tank/h@s", "1 -"),
        ("release other tank/h@s", ""),
        ("get userrefs tank/h@s", "dataset does not exist"),
        ("destroy tank/h", ""),
    ]);
}

#[test]
fn bookmarks_outlive_their_snapshot_and_rollbacks_go_to_the_newest() {
    check_lines(&[
        ("create tank/r", ""),
        ("create tank/other", ""),
        ("snapshot tank/r@1", ""),
        ("bookmark tank/r@1 tank/r#b", ""),
        ("bookmark tank/r@1 tank/r#b", "dataset already exists"),
        ("bookmark tank/r#b tank/r#c", ""),
        (
            "bookmark tank/r@1 tank/other#b",
            "source is not an ancestor of the new bookmark's dataset",
        ),
        ("snapshot tank/r@2", ""),
        (
            "rollback tank/r tank/r@1",
            "more recent snapshots or bookmarks exist",
        ),
        ("rollback tank/r tank/r@2", ""),
        ("bookmark tank/r@2 tank/r#newer", ""),
        ("destroy tank/r@2", ""),
        (
            "rollback tank/r tank/r@1",
            "more recent snapshots or bookmarks exist",
        ),
        ("destroy tank/r#newer", ""),
        ("rollback tank/r tank/r@1", ""),
        ("destroy tank/r@1", ""),
        ("destroy tank/r#b", ""),
        ("get guid tank/r#b", "dataset does not exist"),
        ("destroy tank/r", ""),
    ]);
}

#[test]
fn values_are_inherited_until_one_is_set_nearer() {
    check_lines(&[
        ("create tank/p", ""),
        ("create tank/p/q", ""),
        ("get compression tank/p/q", "on default"),
        ("set compression=lz4 tank/p", ""),
        ("get compression tank/p", "lz4 local"),
        ("get compression tank/p/q", "lz4 inherited from tank/p"),
        ("set compression=off tank/p/q", ""),
        ("get compression tank/p/q", "off local"),
        ("inherit compression tank/p/q", ""),
        ("get compression tank/p/q", "lz4 inherited from tank/p"),
        ("set org.example:note=1 tank", ""),
        ("snapshot tank/p/q@s", ""),
        ("get org.example:note tank/p/q", "1 inherited from tank"),
        ("get org.example:note tank/p/q@s", "1 inherited from tank"),
        // zfsprops(7): a quota is not inherited.
        ("set quota=10M tank/p", ""),
        ("get quota tank/p", "10485760 local"),
        ("get quota tank/p/q", "0 default"),
        ("set mountpoint=/m tank/p", ""),
        ("get mountpoint tank/p/q", "/m/q inherited from tank/p"),
        ("rename tank/p/q tank/q", ""),
        ("get compression tank/q", "on default"),
        ("get mountpoint tank/q", "/tank/q default"),
        (
            "rename tank/p tank/p/below",
            "New dataset name cannot be a descendant of current dataset name",
        ),
        ("inherit org.example:note tank", ""),
        ("get org.example:note tank/q@s", "not there"),
    ]);
}

#[test]
fn limits_of_space_are_checked_when_they_are_set() {
    check_lines(&[
        ("create tank/s", ""),
        (
            "set reservation=1G tank/s",
            "size is greater than available space",
        ),
        ("set reservation=16M tank/s", ""),
        (
            "set quota=8M tank/s",
            "size is less than current used or reserved space",
        ),
        ("set quota=16M tank/s", ""),
        ("create tank/s/t", ""),
        (
            "set reservation=32M tank/s/t",
            "size is greater than available space",
        ),
        ("set quota=none tank/s", ""),
        ("set reservation=32M tank/s/t", ""),
        ("get reservation tank/s/t", "33554432 local"),
    ]);
}

/// Writes bytes that no compression makes smaller.
async fn fill(
    fs: &FsHandle,
    id: FileId,
    offset: u64,
    len: usize,
    cred: &Cred,
) -> Result<(), FsError> {
    let mut state = offset | 1;
    let bytes: Vec<u8> = (0..len)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state.to_be_bytes()[0]
        })
        .collect();
    let written = fs.write(id, offset, IoBuf::from(bytes), Stability::FileSync, cred);
    written.await.map(|_| ())
}

const RECORD: usize = 128 << 10;

/// zfsprops(7), `used` and what it is made of; a snapshot's `used` is what its destruction would free.
#[test]
fn used_is_the_sum_of_its_parts() {
    with_pool(async |_, pool| {
        assert_eq!(answer(&pool, "create tank/a compression=off").await, "");
        let fs = &pool.open_fs("tank/a").await.expect("opens");
        let cred = &Cred::root();
        let id = file(fs, b"f", 0o644, cred).await.id;
        for at in 0..8 {
            fill(fs, id, at * RECORD as u64, RECORD, cred)
                .await
                .expect("writes");
        }
        snapshot(&pool, "tank/a@1").await;
        assert_eq!(answer(&pool, "clone tank/a@1 tank/c").await, "");
        for at in 0..4 {
            fill(fs, id, (at * RECORD + 1) as u64, RECORD / 2, cred)
                .await
                .expect("writes");
        }
        pool.sync().await.expect("syncs");
        let of = async |name: &str, dataset: &str| bytes_of(&pool, name, dataset).await;
        let parts = async |dataset: &str| {
            let mut sum = 0;
            for part in [
                "usedbydataset",
                "usedbysnapshots",
                "usedbychildren",
                "usedbyrefreservation",
            ] {
                sum += of(part, dataset).await;
            }
            sum
        };
        assert_eq!(of("used", "tank/a").await, parts("tank/a").await);
        assert_eq!(of("used", "tank").await, parts("tank").await);
        assert_eq!(
            of("usedbydataset", "tank/a").await,
            of("referenced", "tank/a").await
        );
        assert_eq!(
            of("referenced", "tank/c").await,
            of("referenced", "tank/a@1").await
        );
        // The four records that were changed are the snapshot's alone, but for blocks of metadata.
        let (alone, changed) = (of("used", "tank/a@1").await, 4 * RECORD as u64);
        assert!((changed..changed + (256 << 10)).contains(&alone), "{alone}");
        assert_eq!(
            pool.would_free("tank/a@1", "tank/a@1")
                .await
                .expect("counts"),
            alone
        );
        assert_eq!(of("usedbysnapshots", "tank/a").await, alone);
        assert_eq!(answer(&pool, "destroy tank/c").await, "");
        assert_eq!(answer(&pool, "destroy tank/a@1").await, "");
        pool.sync().await.expect("syncs");
        assert_eq!(of("usedbysnapshots", "tank/a").await, 0);
        assert_eq!(of("used", "tank/a").await, of("referenced", "tank/a").await);
    });
}

/// A reservation is set aside from all others, and its owner has it besides what is available to all.
#[test]
fn what_a_reservation_keeps_is_available_to_its_owner_alone() {
    with_pool(async |_, pool| {
        for line in [
            "create tank/a",
            "create tank/b",
            "set reservation=16M tank/a",
        ] {
            assert_eq!(answer(&pool, line).await, "", "{line}");
        }
        pool.sync().await.expect("syncs");
        let of = async |name: &str, dataset: &str| bytes_of(&pool, name, dataset).await;
        let kept = (16 << 20) - of("used", "tank/a").await;
        let others = of("available", "tank/b").await;
        assert_eq!(of("available", "tank").await, others);
        assert_eq!(of("available", "tank/a").await, others + kept);
        assert!(of("usedbychildren", "tank").await >= 16 << 20);
    });
}

/// EDQUOT where a limit that an administrator set is in the way: quota(7), `zfs set quota, refquota, userquota@`.
#[test]
fn quotas_end_writes_of_those_they_are_for() {
    with_pool(async |_, pool| {
        let quotas = [
            ("quota=2M", 5, FsError::Quota),
            ("refquota=2M", 5, FsError::Quota),
            ("userquota@5=1M", 5, FsError::Quota),
        ];
        for (number, (setting, uid, expected)) in quotas.into_iter().enumerate() {
            let name = format!("tank/q{number}");
            for line in [
                format!("create {name} compression=off"),
                format!("set {setting} {name}"),
            ] {
                assert_eq!(answer(&pool, &line).await, "", "{line}");
            }
            let fs = &pool.open_fs(&name).await.expect("opens");
            let open = SetAttr {
                mode: Some(0o777),
                ..SetAttr::default()
            };
            let top = root(fs).await;
            fs.setattr(top, &open, None, &Cred::root())
                .await
                .expect("sets");
            let id = file(fs, b"f", 0o644, &user(uid)).await.id;
            let mut refused = None;
            for at in 0..64 {
                // Users are charged when a group syncs.
                pool.sync().await.expect("syncs");
                let written = fill(fs, id, at * RECORD as u64, RECORD, &user(uid)).await;
                if let Err(error) = written {
                    refused = Some((at, error));
                    break;
                }
            }
            let (records, error) = refused.expect("a limit");
            assert_eq!(error, expected, "{setting}");
            assert!(
                (4..32).contains(&records),
                "{setting}: after {records} records"
            );
            // What is removed makes room again.
            fs.remove(top, b"f", &user(uid)).await.expect("removes");
        }
        let fs = &pool.open_fs("tank/q2").await.expect("opens");
        let id = file(fs, b"g", 0o644, &user(6)).await.id;
        for at in 0..16 {
            let written = fill(fs, id, at * RECORD as u64, RECORD, &user(6)).await;
            written.expect("a user without a quota writes");
        }
    });
}

/// POSIX: the errors of names and directories.
#[test]
fn names_and_directories_are_refused_as_posix_says() {
    with_pool(async |_, pool| {
        let fs = &pool.open_fs("tank").await.expect("opens");
        let (cred, set, top) = (&Cred::root(), &SetAttr::default(), root(fs).await);
        let stored = file(fs, b"f", 0o644, cred).await.id;
        let dir = fs.mkdir(top, b"d", set, cred).await.expect("makes").file.id;
        let inner = fs.mkdir(dir, b"e", set, cred).await.expect("makes").file.id;
        let long = [b'x'; 256];
        for name in [&b""[..], b"a/b", b"a\0b"] {
            let made = fs.create(top, name, CreateMode::Guarded, set, cred).await;
            assert!(made.is_err(), "{name:?}");
        }
        let made = fs.create(top, &long, CreateMode::Guarded, set, cred).await;
        check("a long name", made, FsError::NameTooLong);
        let made = fs
            .create(top, &long[1..], CreateMode::Guarded, set, cred)
            .await;
        made.expect("255 bytes");
        let made = fs.create(top, b"f", CreateMode::Guarded, set, cred).await;
        check("create twice", made, FsError::Exists);
        check(
            "mkdir of a file",
            fs.mkdir(top, b"f", set, cred).await,
            FsError::Exists,
        );
        check(
            "lookup in a file",
            fs.lookup(stored, b"x", cred).await,
            FsError::NotDirectory,
        );
        check(
            "lookup of none",
            fs.lookup(top, b"none", cred).await,
            FsError::NotFound,
        );
        check(
            "rmdir of what is full",
            fs.rmdir(top, b"d", cred).await,
            FsError::NotEmpty,
        );
        check(
            "rmdir of a file",
            fs.rmdir(top, b"f", cred).await,
            FsError::NotDirectory,
        );
        check(
            "read of a directory",
            fs.read(dir, 0, 1, cred).await,
            FsError::IsDirectory,
        );
        check(
            "readlink of a file",
            fs.readlink(stored).await,
            FsError::Invalid,
        );
        let moved = fs.rename(top, b"d", inner, b"x", cred).await;
        check("a directory below itself", moved, FsError::Invalid);
        let moved = fs.rename(top, b"f", top, b"d", cred).await;
        check("a file over a directory", moved, FsError::IsDirectory);
        let moved = fs.rename(top, b"d", top, b"f", cred).await;
        check("a directory over a file", moved, FsError::NotDirectory);
        let moved = fs.rename(top, b"none", top, b"x", cred).await;
        check("rename of none", moved, FsError::NotFound);
    });
}

async fn stream_of(
    pool: &PoolHandle,
    snapshot: &str,
    from: Option<&str>,
) -> Result<Vec<u8>, EngineError> {
    let request = SendRequest {
        snapshot: snapshot.to_owned(),
        from: from.map(str::to_owned),
        ..SendRequest::default()
    };
    let mut stream = pool.send(request).await?;
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.next().await? {
        bytes.extend(chunk);
    }
    Ok(bytes)
}

async fn receive(pool: &PoolHandle, target: &str, bytes: &[u8]) -> String {
    let request = ReceiveRequest {
        target: target.to_owned(),
        ..ReceiveRequest::default()
    };
    let stream = pool.receive(request).await.expect("begins");
    for chunk in bytes.chunks(64 << 10) {
        if !stream.write(chunk.to_vec()).await {
            break;
        }
    }
    outcome(stream.finish().await.result)
}

#[test]
fn streams_are_refused_where_they_do_not_fit() {
    with_pool(async |_, pool| {
        for line in [
            "create tank/a",
            "snapshot tank/a@1",
            "snapshot tank/a@2",
            "create tank/other",
            "snapshot tank/other@1",
        ] {
            assert_eq!(answer(&pool, line).await, "", "{line}");
        }
        for (what, from, expected) in [
            ("tank/a@none", None, "dataset does not exist"),
            ("tank/a@2", Some("tank/a@none"), "dataset does not exist"),
            (
                "tank/a@1",
                Some("tank/a@2"),
                "not an earlier snapshot from the same fs",
            ),
            (
                "tank/a@2",
                Some("tank/other@1"),
                "not an earlier snapshot from the same fs",
            ),
        ] {
            let sent = stream_of(&pool, what, from).await;
            assert_eq!(
                sent.expect_err(what).to_string(),
                expected,
                "{what} {from:?}"
            );
        }
        let full = stream_of(&pool, "tank/a@1", None).await.expect("sends");
        let more = stream_of(&pool, "tank/a@2", Some("tank/a@1"))
            .await
            .expect("sends");
        for (target, bytes, expected) in [
            ("tank/b", &b"no stream"[..], "cannot receive"),
            (
                "tank/b",
                &more[..],
                "cannot receive incremental stream: destination 'tank/b' does not exist",
            ),
            ("tank/b", &full[..full.len() / 2], "cannot receive"),
            (
                "tank/a",
                &full[..],
                "cannot receive new filesystem stream: destination 'tank/a' exists",
            ),
            (
                "tank/none/b",
                &full[..],
                "cannot open 'tank/none': dataset does not exist",
            ),
        ] {
            let refused = receive(&pool, target, bytes).await;
            assert!(refused.starts_with(expected), "{target}: {refused}");
            let left = get(&pool, "guid", "tank/b").await;
            assert_eq!(left, "dataset does not exist", "{target}");
        }
        assert_eq!(receive(&pool, "tank/b", &full).await, "");
        let fs = &pool.open_fs("tank/b").await.expect("opens");
        file(fs, b"f", 0o644, &Cred::root()).await;
        pool.sync().await.expect("syncs");
        let refused = receive(&pool, "tank/b", &more).await;
        let expected = "cannot receive incremental stream: destination tank/b has been modified\nsince most recent snapshot";
        assert_eq!(refused, expected);
        assert_eq!(answer(&pool, "rollback tank/b tank/b@1").await, "");
        assert_eq!(receive(&pool, "tank/b", &more).await, "");
        let (sent, received) = (
            get(&pool, "guid", "tank/a@2").await,
            get(&pool, "guid", "tank/b@2").await,
        );
        assert_eq!(sent, received);
    });
}

/// zfs-receive(8) and zfs-inherit(8): a received value is in force until one is set, and returns with `-S`.
#[test]
fn received_values_stand_between_local_and_inherited_ones() {
    with_pool(async |_, pool| {
        for line in [
            "create tank/a compression=lz4",
            "set org.example:note=1 tank/a",
            "snapshot tank/a@1",
        ] {
            assert_eq!(answer(&pool, line).await, "", "{line}");
        }
        let request = SendPackageRequest {
            snapshot: "tank/a@1".to_owned(),
            single: true,
            properties: true,
            ..SendPackageRequest::default()
        };
        let mut bytes = pool.plan_send(request).await.expect("plans").head;
        bytes.extend(stream_of(&pool, "tank/a@1", None).await.expect("sends"));
        bytes.extend(package_end());
        assert_eq!(receive(&pool, "tank/b", &bytes).await, "");
        for (line, expected) in [
            ("get compression tank/b", "lz4 received"),
            ("get org.example:note tank/b", "1 received"),
            ("set compression=off tank/b", ""),
            ("get compression tank/b", "off local"),
            ("revert compression tank/b", ""),
            ("get compression tank/b", "lz4 received"),
            ("inherit compression tank/b", ""),
            ("get compression tank/b", "on default"),
            ("revert compression tank/b", ""),
            ("get compression tank/b", "lz4 received"),
            ("create tank/b/c", ""),
            ("get compression tank/b/c", "lz4 inherited from tank/b"),
        ] {
            assert_eq!(answer(&pool, line).await, expected, "{line}");
        }
    });
}

/// Groups of four records are changed after each of three snapshots: which of them only one snapshot has, and which go with several.
#[test]
fn blocks_are_freed_with_the_last_snapshot_that_has_them() {
    with_pool(async |_, pool| {
        assert_eq!(answer(&pool, "create tank/a compression=off").await, "");
        let fs = &pool.open_fs("tank/a").await.expect("opens");
        let cred = &Cred::root();
        let id = file(fs, b"f", 0o644, cred).await.id;
        let change = async |records: std::ops::Range<usize>| {
            for at in records {
                let offset = (at * RECORD) as u64;
                fill(fs, id, offset, RECORD, cred).await.expect("writes");
            }
        };
        change(0..16).await;
        for (number, changed) in [(1, 0..4), (2, 4..8), (3, 8..12)] {
            snapshot(&pool, &format!("tank/a@{number}")).await;
            change(changed).await;
        }
        pool.sync().await.expect("syncs");
        // Blocks of metadata are less than a group in all.
        let groups = |bytes: u64| bytes / (4 * RECORD as u64);
        let used = async |name: &str| groups(bytes_of(&pool, "used", name).await);
        let freed = async |first: &str, last: &str| {
            let bytes = pool.would_free(first, last).await;
            groups(bytes.expect("counts"))
        };
        assert_eq!(used("tank/a@1").await, 1, "the first group as it was first");
        assert_eq!(
            used("tank/a@2").await,
            0,
            "the first has the second group, too"
        );
        assert_eq!(
            used("tank/a@3").await,
            0,
            "the others have the third group, too"
        );
        assert_eq!(freed("tank/a@1", "tank/a@2").await, 2);
        assert_eq!(freed("tank/a@1", "tank/a@3").await, 3);
        assert_eq!(freed("tank/a@2", "tank/a@3").await, 0);
        let all = bytes_of(&pool, "usedbysnapshots", "tank/a").await;
        assert_eq!(groups(all), 3);
        for (destroyed, left, alone) in [("tank/a@1", "tank/a@2", 1), ("tank/a@2", "tank/a@3", 1)] {
            assert_eq!(answer(&pool, &format!("destroy {destroyed}")).await, "");
            pool.sync().await.expect("syncs");
            assert_eq!(used(left).await, alone, "{left} without {destroyed}");
        }
    });
}

/// zfs-allow(8): local and descendent grants, groups, everyone, and sets; all others are refused.
#[test]
fn grants_hold_where_and_for_whom_they_were_made() {
    with_pool(async |_, pool| {
        for line in ["create tank/a", "create tank/a/b", "create tank/c"] {
            assert_eq!(answer(&pool, line).await, "", "{line}");
        }
        for (dataset, key, permissions) in [
            ("tank/a", "ul$9", &["snapshot"][..]),
            ("tank/a", "ud$10", &["snapshot"]),
            ("tank/a", "gl$20", &["destroy"]),
            ("tank/a", "ed$", &["diff"]),
            ("tank", "s-$@set", &["promote", "rename"]),
            ("tank/a", "Ul$11", &["@set"]),
        ] {
            let change = vec![(key.to_owned(), Some(owned(permissions)))];
            pool.change_grants(dataset, change, false)
                .await
                .expect("grants");
        }
        let check = async |dataset: &str, permission: &str, uid: u32, gid: u32, expected: bool| {
            let subject = Subject {
                uid,
                groups: vec![gid],
            };
            let found = pool.is_delegated(dataset, permission, subject).await;
            assert_eq!(
                found.expect("reads"),
                expected,
                "{permission} on {dataset} for {uid}:{gid}"
            );
        };
        check("tank/a", "snapshot", 9, 9, true).await;
        check("tank/a", "destroy", 9, 9, false).await;
        check("tank/a/b", "snapshot", 9, 9, false).await;
        check("tank/a", "snapshot", 10, 10, false).await;
        check("tank/a/b", "snapshot", 10, 10, true).await;
        check("tank/a", "destroy", 12, 20, true).await;
        check("tank/a/b", "destroy", 12, 20, false).await;
        check("tank/a/b", "diff", 13, 13, true).await;
        check("tank/a", "diff", 13, 13, false).await;
        check("tank/a", "rename", 11, 11, true).await;
        check("tank/a/b", "rename", 11, 11, false).await;
        check("tank/c", "rename", 11, 11, false).await;
        check("tank", "snapshot", 9, 9, false).await;
        let take = vec![("ul$9".to_owned(), None)];
        pool.change_grants("tank/a", take, true)
            .await
            .expect("takes away");
        check("tank/a", "snapshot", 9, 9, false).await;
    });
}
