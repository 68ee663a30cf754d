//! What is received into encrypted datasets, and blocks that a stream heals. Method: pools on one modelled disk, streams from one dataset into
//! others; what was received is compared with its source, damage is written behind the engine's back to where the stored bytes of a snapshot
//! are found on the disk, and `zdb` judges what is left.

mod simulated_host;

use std::path::PathBuf;
use std::sync::Arc;

use engine::property::Value;
use engine::stream::{RECORD_SIZE, SendOptions, StreamReader, StreamRecord};
use engine::{
    CreateDataset, CreateMode, Cred, EngineError, IoBuf, KeyFormat, NewKey, PoolHandle,
    PropertyOverrides, PropertyQuery, ReceiveNote, ReceiveRequest, SendPackageRequest, SendRequest,
    SetAttr, SnapshotRequest, Stability, WrappingKey,
};
use world::{DiskModel, World};

use simulated_host::{DISK, run_with_pool};

/// Bytes of the file in the source, and of each of its blocks.
const FILE: usize = 1 << 20;
const BLOCK: usize = 128 << 10;

/// Runs a test with an imported pool `tank` on a modelled disk; `zdb` judges the disk afterwards.
fn with_pool(test: impl AsyncFnOnce(World, PoolHandle)) {
    with_pool_of(128 << 20, test);
}

fn with_pool_of(bytes: u64, test: impl AsyncFnOnce(World, PoolHandle)) {
    let world = World::new(1);
    world.add_disk(DISK, DiskModel::new(bytes));
    run_with_pool(&world, &[], async |_, _, pool| {
        test(world.clone(), pool).await;
    });
    if !oracle::has_zdb() {
        return oracle::skip("zdb on what was received", "zdb is not installed");
    }
    let directory = tempfile::tempdir().expect("temporary directory");
    world.dump(directory.path()).expect("dump the disk");
    oracle::zdb_clean(directory.path(), "tank").expect("zdb finds nothing wrong");
}

fn key(number: u8) -> NewKey {
    NewKey {
        format: KeyFormat::Raw,
        key: Arc::new(WrappingKey::from_raw(&[number; 32]).expect("32 bytes")),
    }
}

fn typed(settings: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    settings.iter().map(owned).collect()
}

async fn create(pool: &PoolHandle, name: &str, settings: &[(&str, &str)], key: Option<NewKey>) {
    let made = pool.create_dataset(CreateDataset {
        name: name.to_owned(),
        volume: false,
        properties: typed(settings),
        parents: false,
        dry_run: false,
        key,
    });
    made.await.expect("creates");
}

/// The contents of block `number` of version `version`: half of it is zeros.
fn block(number: usize, version: u8) -> Vec<u8> {
    let mut seed = (number as u64 + 1) * 1_000_003 + u64::from(version);
    let mut data = vec![0; BLOCK];
    for byte in &mut data[..BLOCK / 2] {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = u8::try_from(seed >> 56).expect("eight bits");
    }
    data
}

/// Makes `tank/source` with snapshots `a` and `b`; half of the file's blocks changed in between.
async fn make_source(pool: &PoolHandle) {
    // Stored as no copy is: what is looked for on the disk is found once.
    create(pool, "tank/source", &[("compression", "lzjb")], None).await;
    let fs = pool.open_fs("tank/source").await.expect("opens");
    let cred = &Cred::root();
    let set = SetAttr {
        mode: Some(0o644),
        ..SetAttr::default()
    };
    let root = fs.root().await.expect("the root directory").id;
    let made = fs.create(root, b"file", CreateMode::Guarded, &set, cred);
    let file = made.await.expect("creates").file.id;
    for (version, short) in [(1, "a"), (2, "b")] {
        for number in (0..FILE / BLOCK).filter(|number| version == 1 || number % 2 == 0) {
            let (at, data) = ((number * BLOCK) as u64, IoBuf::from(block(number, version)));
            let written = fs.write(file, at, data, Stability::FileSync, cred).await;
            written.expect("writes");
        }
        let request = SnapshotRequest {
            names: vec![format!("tank/source@{short}")],
            ..SnapshotRequest::default()
        };
        assert!(pool.snapshot(request).await.expect("takes").is_empty());
    }
}

/// A stream of a snapshot: whole, or from an earlier one.
async fn stream(pool: &PoolHandle, snapshot: &str, from: Option<&str>, letters: &str) -> Vec<u8> {
    let request = SendRequest {
        snapshot: snapshot.to_owned(),
        from: from.map(str::to_owned),
        options: SendOptions {
            compressed: letters.contains('c'),
            large_blocks: letters.contains('L'),
            embedded: letters.contains('e'),
            raw: letters.contains('w'),
            ..SendOptions::default()
        },
        ..SendRequest::default()
    };
    let mut sending = pool.send(request).await.expect("sends");
    let mut bytes = Vec::new();
    while let Some(chunk) = sending.next().await.expect("reads") {
        bytes.extend(chunk);
    }
    bytes
}

/// Receives; returns what there was to say.
async fn receive(
    pool: &PoolHandle,
    request: ReceiveRequest,
    bytes: &[u8],
) -> Result<Vec<String>, EngineError> {
    let receiving = pool.receive(request).await?;
    for chunk in bytes.chunks(100_000) {
        if !receiving.write(chunk.to_vec()).await {
            break;
        }
    }
    let received = receiving.finish().await;
    let text = |note| match note {
        ReceiveNote::Progress(text) | ReceiveNote::Warning(text) => text,
    };
    let notes = received.notes.into_iter();
    received.result.map(|()| notes.map(text).collect())
}

fn into(target: &str) -> ReceiveRequest {
    ReceiveRequest {
        target: target.to_owned(),
        ..ReceiveRequest::default()
    }
}

fn with(target: &str, set: &[(&str, &str)], key: Option<NewKey>) -> ReceiveRequest {
    ReceiveRequest {
        overrides: PropertyOverrides {
            set: typed(set),
            excluded: Vec::new(),
        },
        key: key.map(Ok),
        ..into(target)
    }
}

/// The encryption root and suite of a dataset, where its key is, and a user property.
async fn encryption(pool: &PoolHandle, name: &str) -> (Option<String>, u64, String, String) {
    let root = pool
        .key_info(name)
        .await
        .expect("looks")
        .map(|key| key.root);
    let wanted = ["encryption", "keylocation", "a:b"];
    let query = PropertyQuery::Named(wanted.map(str::to_owned).to_vec());
    let info = pool.dataset(name, &query).await.expect("is there");
    let text = |name| {
        let found = info.property(name).and_then(|found| found.value.text());
        found.unwrap_or_default().to_owned()
    };
    let suite = info.property("encryption");
    let suite = suite.and_then(|found| found.value.number());
    (root, suite.unwrap_or(0), text("keylocation"), text("a:b"))
}

async fn contents(pool: &PoolHandle, name: &str) -> Vec<u8> {
    let fs = pool.open_fs(name).await.expect("opens");
    let cred = &Cred::root();
    let root = fs.root().await.expect("the root directory").id;
    let file = fs.lookup(root, b"file", cred).await.expect("finds").id;
    let read = fs.read(file, 0, FILE, cred).await.expect("reads");
    read.pieces.iter().flat_map(|part| part.to_vec()).collect()
}

async fn make_safe(pool: &PoolHandle) {
    let settings = [
        ("encryption", "on"),
        ("keyformat", "raw"),
        ("keylocation", "file:///key"),
    ];
    create(pool, "tank/safe", &settings, Some(key(1))).await;
}

#[test]
fn plain_streams_become_encrypted_datasets() {
    with_pool(async |_, pool| {
        make_source(&pool).await;
        make_safe(&pool).await;
        let own = [
            ("encryption", "aes-128-ccm"),
            ("keyformat", "raw"),
            ("keylocation", "file:///own"),
            ("a:b", "c"),
        ];
        let plain = [("encryption", "off")];
        let suite = [("encryption", "aes-192-gcm")];
        for (round, letters) in ["", "c"].into_iter().enumerate() {
            let named = |name: &str| format!("tank/{name}{round}");
            let (copy, root) = (named("safe/copy"), named("own"));
            let full = stream(&pool, "tank/source@a", None, letters).await;
            let more = stream(&pool, "tank/source@b", Some("tank/source@a"), letters).await;
            let expect = [
                (into(&copy), Some("tank/safe"), 8),
                (with(&root, &own, Some(key(2))), Some(&*root), 3),
                (with(&named("safe/plain"), &plain, None), None, 2),
                (
                    with(&named("safe/suite"), &suite, None),
                    Some("tank/safe"),
                    7,
                ),
            ];
            for (request, root, suite) in expect {
                let name = request.target.clone();
                receive(&pool, request, &full).await.expect("receives");
                let more = receive(&pool, into(&name), &more).await;
                more.expect("receives more");
                let found = encryption(&pool, &name).await;
                assert_eq!(found.0.as_deref(), root, "{name}");
                if root.is_some() {
                    assert_eq!(found.1, suite, "{name}");
                }
                if root == Some(&*name) {
                    assert_eq!((&*found.2, &*found.3), ("file:///own", "c"));
                }
                for short in ["@a", "@b"] {
                    let ours = contents(&pool, &format!("{name}{short}")).await;
                    let theirs = contents(&pool, &format!("tank/source{short}")).await;
                    assert!(ours == theirs, "{name}{short} has other contents");
                }
            }
        }
    });
}

#[test]
fn what_cannot_be_encrypted_is_refused_in_openzfs_words() {
    const NEW: &str = "cannot receive new filesystem stream: ";
    with_pool(async |_, pool| {
        make_source(&pool).await;
        make_safe(&pool).await;
        let full = stream(&pool, "tank/source@a", None, "").await;
        let more = stream(&pool, "tank/source@b", Some("tank/source@a"), "").await;
        receive(&pool, into("tank/copy"), &full)
            .await
            .expect("receives");
        receive(&pool, into("tank/safe/copy"), &full)
            .await
            .expect("receives");
        let raw = stream(&pool, "tank/safe/copy@a", None, "w").await;
        create(&pool, "tank/empty", &[], None).await;
        let forced = |set: &[(&str, &str)], key| ReceiveRequest {
            force: true,
            ..with("tank/empty", set, key)
        };
        let unreadable = ReceiveRequest {
            key: Some(Err("Raw key too short (expected 32).".to_owned())),
            ..with(
                "tank/new",
                &[
                    ("encryption", "on"),
                    ("keyformat", "raw"),
                    ("keylocation", "file:///k"),
                ],
                None,
            )
        };
        for (request, bytes, expect) in [
            (
                with("tank/copy", &[("encryption", "on")], None),
                &more,
                "cannot receive incremental stream: encryption property 'encryption' cannot be set for incremental streams.".to_owned(),
            ),
            (
                with("tank/new", &[("keyformat", "raw")], None),
                &full,
                format!("{NEW}Encryption must be turned on to set encryption properties."),
            ),
            (
                with("tank/new", &[("encryption", "on")], None),
                &full,
                format!("{NEW}Keyformat required for new encryption root."),
            ),
            (
                with("tank/new", &[("encryption", "on"), ("keyformat", "passphrase")], None),
                &full,
                format!("{NEW}Cannot use 'prompt' keylocation because stdin is in use."),
            ),
            (unreadable, &full, format!("{NEW}Raw key too short (expected 32).")),
            (
                forced(&[("encryption", "on"), ("keyformat", "raw"), ("keylocation", "file:///k")], Some(key(3))),
                &full,
                format!(
                    "{NEW}zfs receive -F cannot be used to destroy an encrypted filesystem or overwrite an unencrypted one with an \
                     encrypted one"
                ),
            ),
            (
                with("tank/new", &[("keyformat", "raw")], None),
                &raw,
                format!("{NEW}encryption property 'keyformat' cannot be set or excluded for raw streams."),
            ),
        ] {
            let what = format!("{:?}", request.overrides);
            let refused = receive(&pool, request, bytes).await.expect_err("it is refused");
            assert_eq!(refused.to_string(), expect, "{what}");
            assert!(pool.dataset("tank/new", &PropertyQuery::None).await.is_err(), "{what}");
        }
        pool.unload_key("tank/safe").await.expect("unloads");
        let refused = receive(&pool, into("tank/safe/new"), &full)
            .await
            .expect_err("no key");
        assert_eq!(
            refused.to_string(),
            format!("{NEW}inherited key must be loaded")
        );
    });
}

/// The stored bytes of the blocks of files in a snapshot.
async fn stored_blocks(pool: &PoolHandle, snapshot: &str) -> Vec<Vec<u8>> {
    const PLAIN_FILE: u32 = 19;
    let bytes = stream(pool, snapshot, None, "cw").await;
    let mut reader = StreamReader::default();
    let (mut rest, mut blocks) = (&bytes[..], Vec::new());
    while let Some((record, behind)) = rest.split_first_chunk::<RECORD_SIZE>() {
        let record = reader.record(record).expect("a record");
        let (payload, behind) =
            behind.split_at(usize::try_from(reader.payload_left()).expect("it fits"));
        reader.payload(payload);
        if matches!(&record, StreamRecord::Write(write) if write.object_type == PLAIN_FILE) {
            blocks.push(payload.to_vec());
        }
        rest = behind;
    }
    blocks
}

/// Overwrites the beginning of every second block of a snapshot on the disk; returns how many.
async fn damage(world: &World, pool: &PoolHandle, snapshot: &str) -> usize {
    let blocks = stored_blocks(pool, snapshot).await;
    pool.sync().await.expect("syncs");
    let images = world.images();
    let image = images.get(&PathBuf::from(DISK)).expect("the disk");
    let mut disk = vec![0; usize::try_from(image.size()).expect("it fits")];
    image.read(0, &mut disk);
    let mut damaged = 0;
    for block in blocks.iter().step_by(2) {
        let sectors = disk.chunks(512).enumerate();
        let mut found = sectors.filter(|(_, sector)| *sector == &block[..512]);
        let (at, _) = found.next().expect("the block is on the disk");
        world.damage(DISK, (at * 512) as u64, &[0x5a; 512]);
        damaged += 1;
    }
    damaged
}

fn healing(target: &str) -> ReceiveRequest {
    ReceiveRequest {
        heal: true,
        ..into(target)
    }
}

/// Heals a snapshot; returns what is said of it at the end.
async fn heal(pool: &PoolHandle, snapshot: &str, bytes: &[u8]) -> String {
    let notes = receive(pool, healing(snapshot), bytes).await;
    let notes = notes.unwrap_or_else(|error| panic!("{snapshot}: {error}"));
    notes.last().expect("it says what was done").clone()
}

#[test]
fn lost_blocks_come_back_from_a_stream() {
    with_pool(async |world, pool| {
        make_source(&pool).await;
        make_safe(&pool).await;
        let full = stream(&pool, "tank/source@a", None, "").await;
        let compressed = stream(&pool, "tank/source@a", None, "c").await;
        let copy = into("tank/safe/copy");
        receive(&pool, copy, &full).await.expect("receives");
        let mut copies = vec!["tank/safe/copy".to_owned()];
        for compression in ["off", "lz4", "gzip-6", "zstd-9", "zle"] {
            let name = format!("tank/{compression}");
            let request = with(&name, &[("compression", compression)], None);
            receive(&pool, request, &full).await.expect("receives");
            copies.push(name);
        }
        for name in &copies {
            let snapshot = format!("{name}@a");
            for with in [&full, &compressed] {
                let damaged = damage(&world, &pool, &snapshot).await;
                assert!(damaged >= 4, "{snapshot}: {damaged}");
                let said = heal(&pool, &snapshot, with).await;
                assert_eq!(said, format!("healed {damaged} blocks"), "{snapshot}");
                let again = heal(&pool, &snapshot, with).await;
                assert_eq!(again, "healed 0 blocks", "{snapshot}");
            }
        }
        // Raw, without a key; both datasets have the same bytes on the disk, and one of them is damaged.
        let raw = stream(&pool, "tank/safe/copy@a", None, "w").await;
        receive(&pool, into("tank/raw"), &raw)
            .await
            .expect("receives");
        damage(&world, &pool, "tank/raw@a").await;
        pool.unload_key("tank/safe").await.expect("unloads");
        let one = heal(&pool, "tank/raw@a", &raw).await;
        let other = heal(&pool, "tank/safe/copy@a", &raw).await;
        let mut said = [one, other];
        said.sort();
        assert_eq!(said, ["healed 0 blocks", "healed 4 blocks"]);
        let damaged = pool.damaged_files().await.expect("looks");
        assert_eq!(damaged, Vec::<String>::new());
    });
}

#[test]
fn streams_that_do_not_fit_heal_nothing() {
    const NEW: &str = "cannot receive new filesystem stream: ";
    with_pool(async |world, pool| {
        make_source(&pool).await;
        make_safe(&pool).await;
        let full = stream(&pool, "tank/source@a", None, "").await;
        let more = stream(&pool, "tank/source@b", Some("tank/source@a"), "").await;
        receive(&pool, into("tank/safe/copy"), &full)
            .await
            .expect("receives");
        receive(&pool, into("tank/safe/other"), &full)
            .await
            .expect("receives");
        // The same snapshot, under other keys and IVs.
        let raw = stream(&pool, "tank/safe/other@a", None, "w").await;
        damage(&world, &pool, "tank/safe/copy@a").await;
        let forced = ReceiveRequest {
            force: true,
            ..healing("tank/safe/copy@a")
        };
        for (request, bytes, expect) in [
            (
                healing("tank/safe/copy@a"),
                &more,
                "cannot receive incremental stream: local snapshot doesn't match the snapshot in the provided stream".to_owned(),
            ),
            (
                healing("tank/safe/copy@b"),
                &full,
                format!("{NEW}corrective recv must specify an existing snapshot to heal"),
            ),
            (
                forced,
                &full,
                format!("{NEW}corrective recv can not be used when combined with this flag"),
            ),
            (
                healing("tank/safe/copy@a"),
                &raw,
                format!("{NEW}corrective receive was not able to reconstruct the data needed for healing."),
            ),
        ] {
            let refused = receive(&pool, request, bytes).await.expect_err("it is refused");
            assert_eq!(refused.to_string(), expect);
        }
        pool.unload_key("tank/safe").await.expect("unloads");
        let refused = receive(&pool, healing("tank/safe/copy@a"), &full)
            .await
            .expect_err("no key");
        assert_eq!(
            refused.to_string(),
            format!(
                "{NEW}key must be loaded to do a non-raw corrective recv on an encrypted dataset."
            )
        );
        let key = WrappingKey::from_raw(&[1; 32]).expect("32 bytes");
        pool.load_key("tank/safe", key, false).await.expect("loads");
        let notes = receive(&pool, healing("tank/safe/copy@a"), &full)
            .await
            .expect("heals");
        assert_eq!(notes.last().expect("it says so"), "healed 4 blocks");
    });
}

/// What a sender that is not trusted says reaches no other dataset: not the origin of a clone, which would be looked for in the whole pool, and
/// not what lies below.
#[test]
fn a_stream_of_one_dataset_is_of_no_clone_and_no_other() {
    with_pool(async |_, pool| {
        make_source(&pool).await;
        let cloned = pool.clone_snapshot("tank/source@a", "tank/clone", &[], false);
        cloned.await.expect("clones");
        let request = SnapshotRequest {
            names: vec!["tank/clone@c".to_owned()],
            ..SnapshotRequest::default()
        };
        assert!(pool.snapshot(request).await.expect("takes").is_empty());
        let of_clone = stream(&pool, "tank/clone@c", Some("tank/source@a"), "c").await;
        let single = |target: &str| ReceiveRequest {
            single: true,
            ..into(target)
        };
        let refused = receive(&pool, single("tank/copy"), &of_clone).await;
        assert_eq!(
            refused.expect_err("of a clone").to_string(),
            "cannot receive: a stream of one dataset is expected, not of a clone"
        );
        let package = SendPackageRequest {
            snapshot: "tank/source@b".to_owned(),
            recursive: true,
            ..SendPackageRequest::default()
        };
        let package = pool.plan_send(package).await.expect("planned");
        let refused = receive(&pool, single("tank/copy"), &package.head).await;
        assert_eq!(
            refused.expect_err("a package of a tree").to_string(),
            "cannot receive: a stream of one dataset is expected"
        );
        assert!(
            pool.dataset("tank/copy", &PropertyQuery::None)
                .await
                .is_err()
        );
        let whole = stream(&pool, "tank/source@a", None, "c").await;
        receive(&pool, single("tank/copy"), &whole)
            .await
            .expect("received");
        let increment = stream(&pool, "tank/source@b", Some("tank/source@a"), "c").await;
        receive(&pool, single("tank/copy"), &increment)
            .await
            .expect("received");
        // As 'zfs receive' has it.
        receive(&pool, into("tank/other"), &of_clone)
            .await
            .expect("received");
    });
}

/// A receive that is cut off as soon as its dataset is there goes on by its token and sets nothing then: a replica was writable, and the next
/// stream with properties took the mark away that says whose it is.
#[test]
fn what_keeps_a_copy_from_acting_is_there_as_soon_as_the_copy() {
    with_pool(async |_, pool| {
        make_source(&pool).await;
        let whole = stream(&pool, "tank/source@a", None, "").await;
        let names = ["readonly", "canmount", "org.example:mark"];
        let set = [
            ("readonly", "on"),
            ("canmount", "noauto"),
            ("org.example:mark", "x"),
        ];
        let request = ReceiveRequest {
            resumable: true,
            ..with("tank/copy", &set, None)
        };
        let receiving = pool.receive(request).await.expect("begins");
        assert!(receiving.write(whole[..200_000].to_vec()).await);
        let query = PropertyQuery::Named(names.map(str::to_owned).to_vec());
        let first = loop {
            if let Ok(found) = pool.dataset("tank/copy", &query).await {
                break found;
            }
        };
        let values = names.map(|name| first.property(name).map(|known| known.value.clone()));
        let (on, noauto) = (Value::Number(1), Value::Number(2));
        assert_eq!(
            values,
            [Some(on), Some(noauto), Some(Value::Text("x".to_owned()))]
        );
        assert!(receiving.finish().await.result.is_err());
    });
}

/// Blocks of 16 MiB that wait for their transaction groups take 32 MiB of memory, not two groups full of them.
#[test]
fn few_large_blocks_of_a_receive_wait_for_the_disk() {
    const LARGE: usize = 16 << 20;
    const BLOCKS: usize = 10;
    with_pool_of(768 << 20, async |_, pool| {
        let settings = [("recordsize", "16M"), ("compression", "off")];
        create(&pool, "tank/large", &settings, None).await;
        let fs = pool.open_fs("tank/large").await.expect("opens");
        let cred = &Cred::root();
        let root = fs.root().await.expect("the root directory").id;
        let set = SetAttr::default();
        let made = fs.create(root, b"file", CreateMode::Guarded, &set, cred);
        let file = made.await.expect("creates").file.id;
        let data = |number: usize| block(number, 3).repeat(LARGE / BLOCK);
        for number in 0..BLOCKS {
            let (at, data) = ((number * LARGE) as u64, IoBuf::from(data(number)));
            let written = fs.write(file, at, data, Stability::FileSync, cred).await;
            written.expect("writes");
        }
        let request = SnapshotRequest {
            names: vec!["tank/large@a".to_owned()],
            ..SnapshotRequest::default()
        };
        assert!(pool.snapshot(request).await.expect("takes").is_empty());
        let bytes = stream(&pool, "tank/large@a", None, "L").await;
        let receiving = pool.receive(into("tank/copy")).await.expect("begins");
        let mut most = 0;
        for chunk in bytes.chunks(1 << 20) {
            assert!(receiving.write(chunk.to_vec()).await);
            most = most.max(pool.statistics().await.expect("counts").dirty_bytes);
        }
        receiving.finish().await.result.expect("receives");
        // With what goes along with blocks; without a limit all ten waited.
        let (one, limit) = (LARGE as u64, 34 << 20);
        assert!(one < most && most < limit, "{most} bytes waited");
        let fs = pool.open_fs("tank/copy@a").await.expect("opens");
        let root = fs.root().await.expect("the root directory").id;
        let file = fs.lookup(root, b"file", cred).await.expect("finds").id;
        for number in 0..BLOCKS {
            let read = fs.read(file, (number * LARGE) as u64, LARGE, cred).await;
            let pieces = read.expect("reads").pieces;
            let read: Vec<u8> = pieces.iter().flat_map(|part| part.to_vec()).collect();
            assert!(read == data(number), "block {number} differs");
        }
    });
}
