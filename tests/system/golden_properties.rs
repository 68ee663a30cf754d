//! Goal: `zfs get all` of a pool that OpenZFS made shows what OpenZFS showed: the same properties in the same order,
//! values (as with `-p`) and sources. Method: golden pools are imported read-only and compared with their manifests.
//! The manifests were taken before the export, which still changed the pool's metadata: its space (a part of the root's
//! `used` that no dataset sees otherwise) may differ by a little, and then by the same bytes wherever it counts.

use anyhow::{Context as _, Result, bail};
use engine::{
    DatasetFilter, DatasetKind, Engine, ImportPolicy, PoolHandle, PropertyQuery, Threads, UsageOf,
    property,
};
use serde_json::Value;
use tests::block_on;
use tests::golden::Golden;

fn check(name: &str) {
    let golden = Golden::unpack(name).expect("unpack the golden pool");
    compare(&golden).unwrap_or_else(|error| panic!("{name}: {error:#}"));
}

fn compare(golden: &Golden) -> Result<()> {
    let engine = Engine::new(Threads::default());
    let found = block_on(engine.discover(vec![golden.directory().to_path_buf()]))?;
    let candidate = found
        .pools
        .into_iter()
        .find(|c| c.name == golden.name)
        .context("not found")?;
    let policy = ImportPolicy {
        readonly: true,
        force: true,
        ..ImportPolicy::default()
    };
    let pool = block_on(engine.import(candidate, policy))?;
    let filter = DatasetFilter {
        root: golden.name.clone(),
        depth: None,
        kinds: vec![
            DatasetKind::Filesystem,
            DatasetKind::Volume,
            DatasetKind::Snapshot,
            DatasetKind::Bookmark,
        ],
    };
    let datasets = block_on(pool.datasets(&filter, &PropertyQuery::All))?;
    let expected = golden.manifest["zfs_get"]
        .as_object()
        .context("no properties in the manifest")?;
    let mut differences = Vec::new();
    let root = datasets.first().context("nothing listed")?;
    let used = root.property("used").context("no used")?;
    let ours = property::display(property::Property::Used, &used.value, true);
    let metadata = number(&ours) - number(&text(&expected[&golden.name]["used"]));
    // Some sixteen blocks; those of sectors of 16 KiB on raidz are large.
    if metadata.abs() > 1 << 20 {
        bail!("the root's used space differs by {metadata} bytes");
    }
    for dataset in &datasets {
        let Some(theirs) = expected.get(&dataset.name).and_then(Value::as_object) else {
            differences.push(format!("{}: not in the manifest", dataset.name));
            continue;
        };
        let ours: Vec<(String, String, String)> = dataset
            .properties
            .iter()
            .map(|p| {
                let value = match (&p.native, &p.value) {
                    (Some(native), value) => property::display(*native, value, true),
                    (None, property::Value::Text(text)) => text.clone(),
                    (None, property::Value::Number(number)) => number.to_string(),
                };
                (p.name.clone(), value, p.source.to_string())
            })
            .collect();
        let encrypted = theirs
            .get("encryption")
            .is_some_and(|value| text(value) != "off" && !value.is_array());
        for (name, value) in theirs {
            if encrypted && needs_key(name) {
                continue;
            }
            // The read-only import of this test mounts nothing, and shows itself in this property.
            if name == "mounted" || name == "readonly" && dataset.kind != DatasetKind::Snapshot {
                continue;
            }
            let (value, source) = match value {
                Value::Array(pair) => (text(&pair[0]), text(&pair[1])),
                single => (text(single), "-".to_owned()),
            };
            match ours.iter().find(|(n, ..)| n == name) {
                // The same list, packed by another deflate.
                Some((_, v, _))
                    if name == "receive_resume_token" && token_shape(v) == token_shape(&value) => {}
                None => differences.push(format!("{} {name}: missing ({value})", dataset.name)),
                Some((_, v, s))
                    if *s == source
                        && explained(&golden.name, &dataset.name, name, v, &value, metadata) => {}
                Some((_, v, s)) if *v != value || *s != source => differences.push(format!(
                    "{} {name}: {v} ({s}), expected {value} ({source})",
                    dataset.name
                )),
                Some(_) => {}
            }
        }
        for (name, value, _) in &ours {
            if !theirs.contains_key(name) {
                differences.push(format!("{} {name}: {value} shown", dataset.name));
            }
        }
        let native = |names: Vec<&str>| -> Vec<String> {
            let native = names.into_iter().filter(|n| !n.contains(':'));
            native.map(str::to_owned).collect()
        };
        let readable = |name: &&str| !(encrypted && needs_key(name));
        let our_order = native(
            ours.iter()
                .map(|(n, ..)| n.as_str())
                .filter(readable)
                .collect(),
        );
        let their_order = native(theirs.keys().map(String::as_str).filter(readable).collect());
        if differences.is_empty() && our_order != their_order {
            differences.push(format!(
                "{}: order {our_order:?}, expected {their_order:?}",
                dataset.name
            ));
        }
    }
    differences.extend(usage(golden, &pool)?);
    block_on(engine.close())?;
    for name in expected.keys() {
        if !datasets.iter().any(|d| d.name == *name) {
            differences.push(format!("{name}: not listed"));
        }
    }
    if !differences.is_empty() {
        let shown: Vec<_> = differences.iter().take(40).cloned().collect();
        bail!("{} differences:\n{}", differences.len(), shown.join("\n"));
    }
    Ok(())
}

/// Compares what users, groups and projects use and may use with what `zfs userspace -np` and its like printed.
fn usage(golden: &Golden, pool: &PoolHandle) -> Result<Vec<String>> {
    let mut differences = Vec::new();
    let Some(all) = golden.manifest["userspace"].as_object() else {
        return Ok(differences);
    };
    for (dataset, tables) in all {
        let encryption = &golden.manifest["zfs_get"][dataset]["encryption"];
        if encryption.as_str().is_some_and(|suite| suite != "off") {
            // The manifest was taken with the keys at hand.
            let refused = block_on(pool.usage(dataset, UsageOf::Users));
            if refused.is_ok() {
                differences.push(format!("userspace {dataset} without a key"));
            }
            continue;
        }
        for (command, of) in [
            ("userspace", UsageOf::Users),
            ("groupspace", UsageOf::Groups),
            ("projectspace", UsageOf::Projects),
        ] {
            let Some(rows) = tables[command].as_array() else {
                continue;
            };
            let mut theirs: Vec<Vec<String>> = rows
                .iter()
                .filter_map(Value::as_array)
                .map(|row| row.iter().skip(1).map(text).collect())
                .collect();
            let mut ours: Vec<Vec<String>> = block_on(pool.usage(dataset, of))
                .with_context(|| format!("{command} {dataset}"))?
                .into_iter()
                .map(|u| {
                    let objects = u
                        .objects
                        .map_or_else(|| "-".to_owned(), |count| count.to_string());
                    let [id, used, quota, limit] =
                        [u.id, u.used, u.quota, u.object_quota].map(|number| number.to_string());
                    vec![id, used, quota, objects, limit]
                })
                .collect();
            ours.sort();
            theirs.sort();
            if ours != theirs {
                differences.push(format!(
                    "{command} {dataset}: {ours:?}, expected {theirs:?}"
                ));
            }
        }
    }
    Ok(differences)
}

/// Properties that say something else, or nothing, when the key of an encrypted dataset is not loaded: what is in the file
/// system's own ZAP, and the key's status itself.
fn needs_key(property: &str) -> bool {
    [
        "version",
        "utf8only",
        "normalization",
        "casesensitivity",
        "keystatus",
    ]
    .contains(&property)
}

/// Whether two values differ by `metadata` bytes more of pool metadata on our side.
fn explained(
    pool: &str,
    dataset: &str,
    property: &str,
    ours: &str,
    theirs: &str,
    metadata: i64,
) -> bool {
    let difference = number(ours) - number(theirs);
    match property {
        "available" => difference == -metadata,
        "used" | "usedbychildren" => dataset == pool && difference == metadata,
        // What the metadata's bytes are before compression is not known here.
        "compressratio" => dataset == pool,
        "logicalused" => dataset == pool && difference.abs() < 256 << 10,
        _ => false,
    }
}

fn number(text: &str) -> i64 {
    text.parse().unwrap_or(0)
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// Version and unpacked length of the token of an interrupted receive.
fn token_shape(token: &str) -> Option<(&str, &str)> {
    let mut parts = token.split('-');
    let version = parts.next()?;
    parts.next()?;
    Some((version, parts.next()?))
}

#[test]
fn defaults_of_a_single_disk() {
    check("a-single");
}

#[test]
fn mirror_with_children() {
    check("b-mirror2");
}

#[test]
fn every_compression() {
    check("f-compress");
}

#[test]
fn every_checksum() {
    check("g-checksum");
}

#[test]
fn snapshots_clones_bookmarks_quotas() {
    check("h-snapshots");
}

#[test]
fn volumes() {
    check("i-zvols");
}

#[test]
fn small_sectors() {
    check("n1-ashift9");
}

/// Without their keys, encrypted datasets show their names and properties.
#[test]
fn encrypted_datasets() {
    check("m-encrypted");
    check("l3-zil-encrypted");
}

/// Properties that came with streams.
#[test]
fn received_properties() {
    check("s-send");
}

/// Layouts, classes, logs and streams: what datasets show does not depend on them.
#[test]
fn every_other_pool() {
    let mut wrong = Vec::new();
    for name in [
        "c-raidz1-3",
        "d-raidz2-6",
        "e-raidz3-5",
        "k-special",
        "l1-zil-inpool",
        "l2-zil-slog",
        "n2-ashift12",
        "n3-ashift-auto-4kn",
        "n4-ashift14-raidz",
        "q-raidz-expanded",
        "r-stripe-indirect",
    ] {
        let golden = Golden::unpack(name).expect("unpack the golden pool");
        if let Err(error) = compare(&golden) {
            wrong.push(format!("{name}: {error:#}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What deduplication and clones save is room for datasets.
#[test]
fn shared_blocks() {
    for name in ["j1-dedup-legacy", "j2-dedup-fast", "o-features"] {
        check(name);
        let golden = Golden::unpack(name).expect("unpack the golden pool");
        shared(&golden).unwrap_or_else(|error| panic!("{name}: {error:#}"));
    }
}

/// The pool's own figures about shared blocks.
fn shared(golden: &Golden) -> Result<()> {
    let engine = Engine::new(Threads::default());
    let found = block_on(engine.discover(vec![golden.directory().to_path_buf()]))?;
    let candidate = found.pools.into_iter().next().context("not found")?;
    let policy = ImportPolicy {
        readonly: true,
        force: true,
        ..ImportPolicy::default()
    };
    let pool = block_on(engine.import(candidate, policy))?;
    let properties = block_on(pool.properties())?;
    for name in ["dedupratio", "bcloneused", "bclonesaved", "bcloneratio"] {
        let ours = properties.iter().find(|entry| entry.name == name);
        let ours = ours.context("not listed")?.exact();
        let theirs = &golden.manifest["zpool_get"][name];
        let theirs = text(theirs.get(0).unwrap_or(theirs));
        if ours != theirs {
            bail!("{name} is {ours}, expected {theirs}");
        }
    }
    block_on(engine.close())?;
    Ok(())
}
