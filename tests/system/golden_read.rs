//! Goal: what OpenZFS wrote, sanbox reads, byte for byte. Method: each golden pool of a layout we read is imported
//! read-only, every file of every file system and snapshot is compared with the manifest (type, mode, owner, times,
//! links, object number, size, SHA-256, symlink target, device numbers, extended attributes), and so are the dataset
//! properties.

use anyhow::{Context as _, Result, bail, ensure};
use engine::{
    Cred, DatasetFilter, DatasetKind, Engine, EngineError, FileId, FileType, FsHandle,
    ImportPolicy, KeyFormat, ListLimit, PoolHandle, PropertyQuery, Threads, WrappingKey,
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use tests::block_on;
use tests::golden::Golden;

/// Imports a golden pool read-only.
fn import(golden: &Golden) -> Result<(Engine, PoolHandle)> {
    let engine = Engine::new(Threads::default());
    let found = block_on(engine.discover(vec![golden.directory().to_path_buf()]))?;
    let candidate = found.pools.into_iter().find(|c| c.name == golden.name);
    let candidate = candidate.with_context(|| format!("{} is not found", golden.name))?;
    let policy = ImportPolicy {
        readonly: true,
        force: true,
        ..ImportPolicy::default()
    };
    let pool = block_on(engine.import(candidate, policy))?;
    Ok((engine, pool))
}

/// Compares all of a golden pool with its manifest.
fn check(name: &str) {
    let golden = Golden::unpack(name).expect("unpack the golden pool");
    let compared = compare(&golden).unwrap_or_else(|error| panic!("{name}: {error:#}"));
    eprintln!("{name}: {compared} files as in the manifest");
    assert!(
        compared > 0,
        "{name}: the manifest lists no file that was compared"
    );
}

/// What a test did to a golden pool on purpose.
#[derive(Default)]
pub(crate) struct Changed {
    /// Files whose modification time is another now, as `/dataset/path`.
    pub(crate) new_mtime: BTreeSet<String>,
    /// File systems made.
    pub(crate) datasets: BTreeSet<String>,
    /// Volumes written to.
    pub(crate) volumes: BTreeSet<String>,
    /// By file system: paths removed, and directories whose times and links that changed.
    pub(crate) paths: BTreeSet<(String, Vec<u8>)>,
}

fn compare(golden: &Golden) -> Result<usize> {
    compare_changed(golden, &Changed::default())
}

/// Compares a pool, imported read-only, with its manifest, apart from what was changed.
pub(crate) fn compare_changed(golden: &Golden, changed: &Changed) -> Result<usize> {
    let (engine, pool) = import(golden)?;
    let datasets = golden.manifest["datasets"]
        .as_object()
        .context("no datasets")?;
    let mut files = 0;
    let mut differences = Vec::new();
    load_keys(golden, &pool)?;
    for (name, dataset) in datasets {
        let info =
            block_on(pool.dataset(name, &PropertyQuery::None)).with_context(|| name.clone())?;
        ensure!(
            dataset["guid"].to_string().trim_matches('"') == info.guid.to_string(),
            "{name}: guid"
        );
        if !dataset["volume"].is_null() && !changed.volumes.contains(name) {
            volume(&pool, name, &dataset["volume"]).with_context(|| name.clone())?;
            files += 1;
        }
        if dataset["tree"]["entries"].is_null() {
            continue;
        }
        let fs = block_on(pool.open_fs(name)).with_context(|| format!("open {name}"))?;
        // A clone or a snapshot has the mount points of the time it was taken: any dataset's last name may stand there.
        let below: Vec<&str> = datasets
            .keys()
            .filter_map(|other| other.split('@').next()?.rsplit('/').next())
            .collect();
        files += tree(&fs, name, dataset, &below, changed, &mut differences)?;
    }
    listed(&pool, datasets, changed)?;
    unload_keys(golden, &pool)?;
    block_on(engine.close())?;
    if !differences.is_empty() {
        let shown: Vec<_> = differences.iter().take(20).cloned().collect();
        bail!("{} differences:\n{}", differences.len(), shown.join("\n"));
    }
    Ok(files)
}

/// Whether the manifest says that a dataset is encrypted.
fn is_encrypted(golden: &Golden, dataset: &str) -> bool {
    let encryption = &golden.manifest["zfs_get"][dataset]["encryption"];
    encryption.as_str().is_some_and(|suite| suite != "off")
}

/// Encrypted datasets can be listed without their keys, and that is all.
fn none_can_be_read(golden: &Golden, pool: &PoolHandle) -> Result<()> {
    let datasets = golden.manifest["datasets"].as_object();
    for (name, dataset) in datasets.into_iter().flatten() {
        if !is_encrypted(golden, name) {
            continue;
        }
        let readable = match dataset["volume"].is_null() {
            true => block_on(block_on(pool.open_fs(name))?.root()).is_ok(),
            false => block_on(pool.open_volume(name)).is_ok(),
        };
        ensure!(!readable, "{name} can be read without a key");
    }
    Ok(())
}

/// The key of an encryption root, as the manifest has it.
pub(crate) fn key_of(entry: &Value, format: KeyFormat) -> Result<WrappingKey> {
    let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    Ok(match format {
        KeyFormat::Raw => WrappingKey::from_hex(text("hex_raw").as_bytes())?,
        KeyFormat::Hex => WrappingKey::from_hex(text("value").as_bytes())?,
        KeyFormat::Passphrase { salt, iterations } => {
            WrappingKey::from_passphrase(text("value").as_bytes(), salt, iterations)?
        }
    })
}

/// The encryption roots of a golden pool, each with its key.
fn roots(golden: &Golden) -> Vec<(&String, &Value)> {
    let keys = golden.manifest["keys"].as_object();
    keys.into_iter().flatten().collect()
}

/// Loads the keys of a golden pool; before that nothing encrypted can be read, and a wrong key opens nothing.
pub(crate) fn load_keys(golden: &Golden, pool: &PoolHandle) -> Result<()> {
    none_can_be_read(golden, pool)?;
    for (name, entry) in roots(golden) {
        let info = block_on(pool.key_info(name))?.with_context(|| format!("{name} has no key"))?;
        ensure!(info.root == *name && !info.loaded, "{name}: {info:?}");
        let wrong = WrappingKey::from_raw(&[7; 32])?;
        let refused = block_on(pool.load_key(name, wrong, false));
        ensure!(
            matches!(refused, Err(EngineError::WrongKey(_))),
            "{name}: a wrong key gives {refused:?}"
        );
        block_on(pool.load_key(name, key_of(entry, info.format)?, true))?;
        ensure!(
            block_on(pool.key_info(name))?.is_some_and(|info| !info.loaded),
            "{name}: a key was loaded that was only to be checked"
        );
        block_on(pool.load_key(name, key_of(entry, info.format)?, false))?;
        let again = block_on(pool.load_key(name, key_of(entry, info.format)?, false));
        ensure!(again.is_err(), "{name}: a key was loaded twice");
    }
    Ok(())
}

/// Unloads all keys, after which nothing encrypted can be read.
fn unload_keys(golden: &Golden, pool: &PoolHandle) -> Result<()> {
    for (name, _) in roots(golden) {
        block_on(pool.unload_key(name)).with_context(|| format!("unload the key of {name}"))?;
        ensure!(
            block_on(pool.unload_key(name)).is_err(),
            "{name}: unloaded twice"
        );
    }
    none_can_be_read(golden, pool)
}

/// Everything the manifest names is listed, and nothing else.
fn listed(
    pool: &PoolHandle,
    datasets: &serde_json::Map<String, Value>,
    changed: &Changed,
) -> Result<()> {
    let filter = DatasetFilter {
        root: pool.name().to_owned(),
        depth: None,
        kinds: vec![
            DatasetKind::Filesystem,
            DatasetKind::Volume,
            DatasetKind::Snapshot,
        ],
    };
    let found = block_on(pool.datasets(&filter, &PropertyQuery::None))?;
    let mut ours: Vec<_> = found
        .iter()
        .map(|d| d.name.as_str())
        .filter(|n| !n.contains('#') && !changed.datasets.contains(*n))
        .collect();
    let mut theirs: Vec<_> = datasets
        .keys()
        .map(String::as_str)
        .filter(|n| !n.contains('#'))
        .collect();
    ours.sort_unstable();
    theirs.sort_unstable();
    ensure!(ours == theirs, "listed: {ours:?}\nexpected: {theirs:?}");
    Ok(())
}

/// Compares the bytes of a volume, or of a snapshot of one.
fn volume(pool: &PoolHandle, name: &str, manifest: &Value) -> Result<()> {
    let volume = block_on(pool.open_volume(name))?;
    let info = block_on(volume.info())?;
    ensure!(manifest["size"] == info.size, "size is {}", info.size);
    let mut whole = Sha256::new();
    let mut mib = Vec::new();
    for at in (0..info.size).step_by(1 << 20) {
        let len = usize::try_from((info.size - at).min(1 << 20))?;
        let mut part = Sha256::new();
        for piece in block_on(volume.read(at, len))? {
            whole.update(&piece[..]);
            part.update(&piece[..]);
        }
        mib.push(hex(&part.finalize())[..8].to_owned());
    }
    if let Some(expected) = manifest["per_mib_sha256_8"].as_array() {
        let differs = expected.iter().zip(&mib).position(|(a, b)| a != b);
        ensure!(differs.is_none(), "MiB {differs:?} differs");
    }
    ensure!(
        manifest["sha256"] == hex(&whole.finalize()),
        "the bytes differ"
    );
    // Where no data is said to be, there must be zeros: the manifest's hash has covered that; here the map is whole.
    let map = block_on(volume.allocation(0, info.size, usize::MAX))?;
    let covered: u64 = map.iter().map(|part| part.len).sum();
    ensure!(
        covered == info.size,
        "the map of data covers {covered} bytes"
    );
    Ok(())
}

fn tree(
    fs: &FsHandle,
    dataset: &str,
    manifest: &Value,
    below: &[&str],
    changed: &Changed,
    differences: &mut Vec<String>,
) -> Result<usize> {
    entries_as_listed(fs, dataset, &manifest["tree"], below, changed, differences)
}

/// Compares a file system with a list of its files.
pub(crate) fn entries_as_listed(
    fs: &FsHandle,
    dataset: &str,
    tree: &Value,
    below: &[&str],
    changed: &Changed,
    differences: &mut Vec<String>,
) -> Result<usize> {
    let root = block_on(fs.root()).with_context(|| format!("{dataset}: root"))?;
    let mut found = BTreeMap::new();
    walk(fs, Vec::new(), root.id, &mut found).with_context(|| format!("{dataset}: walk"))?;
    let entries = tree["entries"].as_array().context("entries")?;
    let mut expected = BTreeSet::new();
    for entry in entries {
        let path = match entry["path"].as_str() {
            Some(path) => path.as_bytes().to_vec(),
            None => unhex(entry["path_hex"].as_str().context("path")?),
        };
        let shown = format!("{dataset}:/{}", String::from_utf8_lossy(&path));
        expected.insert(path.clone());
        if changed.paths.contains(&(dataset.to_owned(), path.clone())) {
            continue;
        }
        let Some(id) = found.get(&path) else {
            differences.push(format!("{shown}: missing"));
            continue;
        };
        let full = format!("/{dataset}/{}", String::from_utf8_lossy(&path));
        let same_mtime = !changed.new_mtime.contains(full.trim_end_matches('/'));
        if let Err(error) = file(fs, *id, entry, same_mtime) {
            differences.push(format!("{shown}: {error:#}"));
        }
    }
    // The manifest leaves out the directories that datasets below are mounted on.
    let mounts = |path: &[u8]| {
        below.iter().any(|name| name.as_bytes() == path) || path.starts_with(b"written-here")
    };
    for path in found
        .keys()
        .filter(|path| !expected.contains(*path) && !mounts(path))
    {
        differences.push(format!(
            "{dataset}:/{}: not in the manifest",
            String::from_utf8_lossy(path)
        ));
    }
    Ok(entries.len())
}

pub(crate) fn walk(
    fs: &FsHandle,
    path: Vec<u8>,
    id: FileId,
    found: &mut BTreeMap<Vec<u8>, FileId>,
) -> Result<()> {
    let mut open = vec![(path, id)];
    while let Some((path, id)) = open.pop() {
        found.insert(path.clone(), id);
        let mut cookie = 0;
        loop {
            let limit = ListLimit {
                entries: 500,
                bytes: 1 << 20,
                entry_overhead_bytes: 0,
                attrs: true,
            };
            let listing = block_on(fs.readdir(id, cookie, limit, &Cred::root()))
                .with_context(|| format!("list {}", String::from_utf8_lossy(&path)))?;
            for entry in &listing.entries {
                cookie = entry.cookie;
                if entry.name == b"." || entry.name == b".." {
                    continue;
                }
                let attr = entry.attr.as_ref().context("an entry without attributes")?;
                let mut below = path.clone();
                if !below.is_empty() {
                    below.push(b'/');
                }
                below.extend_from_slice(&entry.name);
                if attr.file_type == FileType::Directory {
                    open.push((below, attr.id));
                } else {
                    found.insert(below, attr.id);
                }
            }
            if listing.eof {
                break;
            }
            ensure!(
                !listing.entries.is_empty(),
                "an empty listing that is not the end"
            );
        }
    }
    Ok(())
}

fn file(fs: &FsHandle, id: FileId, entry: &Value, same_mtime: bool) -> Result<()> {
    let attr = block_on(fs.getattr(id))?;
    let kind = match attr.file_type {
        FileType::Regular => "file",
        FileType::Directory => "dir",
        FileType::Symlink => "symlink",
        FileType::Fifo => "fifo",
        FileType::Character => "char",
        FileType::Block => "block",
        FileType::Socket => "socket",
    };
    let same = |what: &str, ours: String| -> Result<()> {
        let theirs = entry[what].to_string();
        ensure!(ours == theirs, "{what} is {ours}, expected {theirs}");
        Ok(())
    };
    same("type", format!("\"{kind}\""))?;
    same("mode", format!("\"{:04o}\"", attr.mode))?;
    same("uid", attr.uid.to_string())?;
    same("gid", attr.gid.to_string())?;
    same("nlink", attr.links.to_string())?;
    // The root of a snapshot showed no number of its own through `.zfs`.
    if !entry["obj"].is_null() {
        same("obj", attr.id.object.to_string())?;
    }
    let mtime = i128::from(attr.mtime.seconds) * 1_000_000_000 + i128::from(attr.mtime.nanoseconds);
    if same_mtime && entry["mtime"].is_null() {
        same("mtime_ns", mtime.to_string())?;
    } else if same_mtime {
        same("mtime", attr.mtime.seconds.to_string())?;
    }
    if attr.file_type == FileType::Regular {
        same("size", attr.size.to_string())?;
        if let Some(expected) = entry["sha256"].as_str() {
            ensure!(hash(fs, id, 0, attr.size)? == expected, "sha256 differs");
        }
        for piece in entry["data"].as_array().into_iter().flatten() {
            let (at, len) = (
                piece[0].as_u64().context("offset")?,
                piece[1].as_u64().context("length")?,
            );
            let expected = piece[2].as_str().context("sha256")?;
            ensure!(
                hash(fs, id, at, len)? == expected,
                "sha256 of {len} bytes at {at} differs"
            );
        }
    }
    if let Some(target) = entry["target"].as_str() {
        let ours = block_on(fs.readlink(id))?;
        ensure!(
            ours == target.as_bytes(),
            "target is {}",
            String::from_utf8_lossy(&ours)
        );
    }
    let theirs = entry["xattrs"].as_object();
    let ours = block_on(fs.xattrs(id, &Cred::root())).context("list extended attributes")?;
    ensure!(
        ours.len() == theirs.map_or(0, serde_json::Map::len),
        "{} extended attributes",
        ours.len()
    );
    for (name, expected) in theirs.into_iter().flatten() {
        let value = block_on(fs.xattr(id, name.as_bytes(), &Cred::root()))
            .with_context(|| format!("extended attribute {name}"))?;
        match expected["sha256"].as_str() {
            Some(sum) => ensure!(hex(&Sha256::digest(&value)) == sum, "value of {name}"),
            None => ensure!(
                base64(&value) == expected["base64"].as_str().unwrap_or_default(),
                "value of {name}"
            ),
        }
    }
    Ok(())
}

pub(crate) fn hash(fs: &FsHandle, id: FileId, from: u64, len: u64) -> Result<String> {
    let (mut at, end) = (from, from + len);
    let mut sum = Sha256::new();
    while at < end {
        let want = usize::try_from((end - at).min(1 << 20))?;
        let data = block_on(fs.read(id, at, want, &Cred::root()))
            .with_context(|| format!("read {want} bytes at {at}"))?;
        ensure!(!data.is_empty(), "nothing to read at {at} of {end}");
        for piece in &data.pieces {
            sum.update(&piece[..]);
        }
        at += data.len() as u64;
    }
    Ok(hex(&sum.finalize()))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |c: u8| {
        (c as char)
            .to_digit(16)
            .map_or(0, |d| u8::try_from(d).expect("below 16"))
    };
    text.as_bytes()
        .chunks(2)
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk
            .iter()
            .enumerate()
            .fold(0_u32, |w, (i, b)| w | u32::from(*b) << (16 - 8 * i));
        for i in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * i) & 63) as usize] as char;
            out.push(if i <= chunk.len() { digit } else { '=' });
        }
    }
    out
}

#[test]
fn a_single() {
    check("a-single");
}

#[test]
fn b_mirror2() {
    check("b-mirror2");
}

#[test]
fn c_raidz1_3() {
    check("c-raidz1-3");
}

#[test]
fn d_raidz2_6() {
    check("d-raidz2-6");
}

#[test]
fn e_raidz3_5() {
    check("e-raidz3-5");
}

#[test]
fn f_compress() {
    check("f-compress");
}

#[test]
fn g_checksum() {
    check("g-checksum");
}

#[test]
fn h_snapshots() {
    check("h-snapshots");
}

#[test]
fn i_zvols() {
    check("i-zvols");
}

#[test]
fn j1_dedup_legacy() {
    check("j1-dedup-legacy");
}

#[test]
fn j2_dedup_fast() {
    check("j2-dedup-fast");
}

#[test]
fn k_special() {
    check("k-special");
}

#[test]
fn n1_ashift9() {
    check("n1-ashift9");
}

#[test]
fn beside_encrypted_datasets() {
    check("m-encrypted");
}

#[test]
fn sent_and_received() {
    check("s-send");
}

#[test]
fn n2_ashift12() {
    check("n2-ashift12");
}

#[test]
fn n3_ashift_auto_4kn() {
    check("n3-ashift-auto-4kn");
}

#[test]
fn n4_ashift14_raidz() {
    check("n4-ashift14-raidz");
}

#[test]
fn o_features() {
    check("o-features");
}

#[test]
fn p1_degraded_raidz2() {
    check("p1-degraded-raidz2");
}

#[test]
fn p2_corrupt_mirror() {
    check("p2-corrupt-mirror");
}

#[test]
fn p3_corrupt_raidz1() {
    check("p3-corrupt-raidz1");
}

#[test]
fn q_raidz_expanded() {
    check("q-raidz-expanded");
}

#[test]
fn r_stripe_indirect() {
    check("r-stripe-indirect");
}

#[test]
fn t1_version1() {
    check("t1-version1");
}

#[test]
fn t2_version3() {
    check("t2-version3");
}

#[test]
fn t3_version10() {
    check("t3-version10");
}

#[test]
fn t4_version15() {
    check("t4-version15");
}

#[test]
fn t5_version23() {
    check("t5-version23");
}

#[test]
fn t6_version26() {
    check("t6-version26");
}

#[test]
fn t7_version28() {
    check("t7-version28");
}
