//! Goal: encrypted datasets are changed like others, and OpenZFS opens what comes of it with the same keys. Method: in a pool that
//! OpenZFS encrypted, snapshots and bookmarks are taken, clones made, written, promoted, rolled back, renamed and destroyed, with
//! keys and without; after the export zdb accounts for every block, and OpenZFS's own code in userland loads the keys and reads
//! every object, whose digests are compared with ours.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use engine::{
    Cred, DestroyOptions, Ending, EngineError, IoBuf, PoolHandle, PropertyQuery, SnapshotRequest,
    Stability,
};
use tests::golden::Golden;
use tests::{block_on, oracle};

use crate::encrypted::{sums, wrapping_key};
use crate::golden_read::load_keys;
use crate::golden_write::{import, judge};
use crate::written_pools::{Model, bytes, create, verify};

const POOL: &str = "m-encrypted";

fn snapshot(pool: &PoolHandle, names: &[&str]) -> Result<()> {
    let names = names.iter().map(|name| format!("{POOL}/{name}")).collect();
    let request = SnapshotRequest {
        names,
        ..SnapshotRequest::default()
    };
    let refused = block_on(pool.snapshot(request))?;
    ensure!(refused.is_empty(), "{refused:?}");
    Ok(())
}

fn clone(pool: &PoolHandle, of: &str, name: &str) -> Result<()> {
    let (of, name) = (format!("{POOL}/{of}"), format!("{POOL}/{name}"));
    block_on(pool.clone_snapshot(&of, &name, &[], false)).with_context(|| format!("clone {name}"))
}

fn destroy(pool: &PoolHandle, name: &str) -> Result<()> {
    let name = format!("{POOL}/{name}");
    if name.contains('@') {
        let refused = block_on(pool.destroy_snapshots(&[name], false))?;
        ensure!(refused.is_empty(), "{refused:?}");
        return Ok(());
    }
    let options = DestroyOptions::default();
    block_on(pool.destroy_dataset(&name, options)).with_context(|| format!("destroy {name}"))
}

fn rename(pool: &PoolHandle, from: &str, to: &str) -> Result<(), EngineError> {
    let (from, to) = (format!("{POOL}/{from}"), format!("{POOL}/{to}"));
    block_on(pool.rename_dataset(&from, &to, false))
}

fn promote(pool: &PoolHandle, name: &str) -> Result<(), EngineError> {
    block_on(pool.promote(&format!("{POOL}/{name}")))
}

/// Writes a file, and says what it holds.
fn write(pool: &PoolHandle, name: &str, file: &str, seed: u64) -> Result<(String, Vec<u8>)> {
    let fs = block_on(pool.open_fs(&format!("{POOL}/{name}")))?;
    let content = bytes(seed, 200_000, true);
    create(&fs, block_on(fs.root())?.id, file, &content)
        .with_context(|| format!("write in {name}"))?;
    block_on(fs.sync())?;
    Ok((file.to_owned(), content))
}

fn root_of(pool: &PoolHandle, name: &str) -> Result<(String, bool)> {
    let info = block_on(pool.key_info(&format!("{POOL}/{name}")))?;
    let info = info.with_context(|| format!("{name} is not encrypted"))?;
    let root = info.root.strip_prefix("m-encrypted/").unwrap_or_default();
    Ok((root.to_owned(), info.loaded))
}

fn value(pool: &PoolHandle, name: &str, property: &str) -> Result<String> {
    let query = PropertyQuery::Named(vec![property.to_owned()]);
    let info = block_on(pool.dataset(&format!("{POOL}/{name}"), &query))?;
    let property = info.property(property).context("no such property")?;
    Ok(format!("{:?} {:?}", property.value, property.source))
}

/// Encryption roots after the changes, each with the one whose key it had before.
const ROOTS: [(&str, &str); 4] = [
    ("pass", "pass"),
    ("pass/raw", "pass/raw"),
    ("hex-clone", "hex"),
    ("pass/ccm", "ccm256"),
];

/// Changes datasets whose keys are loaded; returns what files hold.
fn change(pool: &PoolHandle) -> Result<BTreeMap<String, Model>> {
    let mut models: BTreeMap<String, Model> = BTreeMap::new();
    let mut wrote = |name: &str, file: (String, Vec<u8>)| {
        models.entry(name.to_owned()).or_default().extend([file]);
    };
    wrote("hex", write(pool, "hex", "before", 1)?);
    snapshot(
        pool,
        &[
            "pass@a",
            "pass/inherits@a",
            "pass/vol@a",
            "hex@a",
            "ccm256@a",
        ],
    )?;
    let bookmark = (format!("{POOL}/hex#mark"), format!("{POOL}/hex@a"));
    ensure!(block_on(pool.create_bookmarks(&[bookmark]))?.is_empty());
    let held = [format!("{POOL}/pass@a")];
    block_on(pool.hold(&held, "kept", false))?;
    ensure!(
        destroy(pool, "pass@a").is_err(),
        "a held snapshot is destroyed"
    );
    block_on(pool.release(&held, "kept", false))?;

    // Clones use the key of their origin, wherever they lie.
    clone(pool, "pass@a", "pass/second")?;
    clone(pool, "hex@a", "hex-clone")?;
    clone(pool, "pass/vol@a", "pass/vol-clone")?;
    clone(pool, "pass/inherits@a", "outside")?;
    ensure!(root_of(pool, "hex-clone")? == ("hex".to_owned(), true));
    ensure!(root_of(pool, "outside")? == ("pass".to_owned(), true));
    wrote("pass/second", write(pool, "pass/second", "cloned", 2)?);
    wrote("hex-clone", write(pool, "hex-clone", "cloned", 3)?);
    wrote("outside", write(pool, "outside", "cloned", 4)?);
    let volume = block_on(pool.open_volume(&format!("{POOL}/pass/vol-clone")))?;
    let noise = IoBuf::copy_from(&bytes(5, 100_000, true));
    block_on(volume.write(0, noise, Stability::FileSync))?;
    drop(volume);

    // What was written since a snapshot goes with the rollback.
    write(pool, "hex", "gone", 6)?;
    block_on(pool.rollback(&format!("{POOL}/hex"), None))?;
    wrote("hex", write(pool, "hex", "after", 7)?);

    // The root is passed on with its key and the place of it.
    let before = value(pool, "hex", "keylocation")?;
    promote(pool, "hex-clone")?;
    ensure!(root_of(pool, "hex")? == ("hex-clone".to_owned(), true));
    ensure!(root_of(pool, "hex-clone")? == ("hex-clone".to_owned(), true));
    ensure!(value(pool, "hex-clone", "keylocation")? == before);
    ensure!(value(pool, "hex", "keylocation")?.contains("none"));
    wrote("hex", write(pool, "hex", "promoted", 8)?);
    let refused = promote(pool, "outside").expect_err("another root above");
    ensure!(refused.to_string() == "cannot promote dataset outside its encryption root");
    promote(pool, "pass/second")?;
    ensure!(root_of(pool, "pass")? == ("pass/second".to_owned(), true));
    ensure!(root_of(pool, "pass/inherits")? == ("pass/second".to_owned(), true));
    promote(pool, "pass")?;
    ensure!(root_of(pool, "pass/second")? == ("pass".to_owned(), true));

    // A root goes where it likes; what needs its parent's key stays below it.
    rename(pool, "ccm256", "pass/ccm")?;
    ensure!(root_of(pool, "pass/ccm")? == ("pass/ccm".to_owned(), true));
    rename(pool, "pass/second", "pass/inherits/second")?;
    let second = models.remove("pass/second").context("it was written")?;
    models.insert("pass/inherits/second".to_owned(), second);
    for to in ["inherits", "pass/ccm/inherits"] {
        let refused = rename(pool, "pass/inherits", to).expect_err("another root");
        ensure!(
            refused.to_string() == "cannot move encrypted child outside of its encryption root",
            "{refused}"
        );
    }
    Ok(models)
}

/// Changes what needs no key; the key of `hex-clone` is not loaded.
fn change_without_key(pool: &PoolHandle) -> Result<()> {
    block_on(pool.unload_key(&format!("{POOL}/hex-clone")))?;
    snapshot(pool, &["hex@keyless"])?;
    clone(pool, "hex@keyless", "keyless")?;
    ensure!(root_of(pool, "keyless")? == ("hex-clone".to_owned(), false));
    let opened = block_on(pool.open_fs(&format!("{POOL}/keyless")))
        .and_then(|fs| Ok(block_on(fs.root()).map(drop)?));
    ensure!(opened.is_err(), "it is read without its key");
    block_on(pool.rollback(&format!("{POOL}/hex"), None))?;
    clone(pool, "hex@keyless", "short-lived")?;
    rename(pool, "short-lived", "shorter-lived")?;
    destroy(pool, "shorter-lived")?;
    Ok(())
}

/// Has OpenZFS's code in userland load keys and read a pool: it finds these sums of objects.
pub(crate) fn compare(golden: &Golden, lines: &[String], keys: &[String]) -> Result<()> {
    let mut operations = keys.to_vec();
    operations.push(format!("sums:{POOL}"));
    operations.push(format!("scrub:{POOL}"));
    let said = oracle::refpool_does(POOL, &golden.images(), &operations)?;
    ensure!(said.contains(": 0 errors"), "{said}");
    let found: Vec<&str> = said.lines().collect();
    for line in lines {
        ensure!(found.contains(&line.as_str()), "{line} is not of OpenZFS");
    }
    ensure!(!said.contains("locked ") && !said.contains("unreadable"));
    Ok(())
}

fn history(golden: &Golden) -> Result<()> {
    let (engine, pool) = import(golden)?;
    load_keys(golden, &pool)?;
    let models = change(&pool)?;
    let (mut lines, mut keys) = (Vec::new(), Vec::new());
    let datasets = [
        "pass",
        "pass@a",
        "pass/inherits",
        "pass/inherits/second",
        "outside",
        "hex",
        "hex-clone",
        "hex-clone@a",
        "pass/ccm",
        "pass/ccm@a",
        "pass/vol-clone",
    ];
    for name in datasets {
        let found = sums(&pool, &format!("{POOL}/{name}"))?;
        ensure!(found.len() > 1, "{name} has objects");
        lines.extend(found);
    }
    for (root, before) in ROOTS {
        let info = block_on(pool.key_info(&format!("{POOL}/{root}")))?.context("a key")?;
        let key = wrapping_key(golden, &format!("{POOL}/{before}"), info.format)?;
        keys.push(format!("key:{POOL}/{root}={key}"));
    }
    change_without_key(&pool)?;
    drop(pool);
    block_on(engine.end_pool(POOL, Ending::Export { command: None })).context("export")?;
    block_on(engine.close())?;
    judge(golden).context("after the changes")?;
    if oracle::refpool().is_some() {
        compare(golden, &lines, &keys)?;
    }

    let (engine, pool) = import(golden)?;
    for (root, before) in ROOTS {
        let entry = &golden.manifest["keys"][&format!("{POOL}/{before}")];
        let root = format!("{POOL}/{root}");
        let info = block_on(pool.key_info(&root))?.context("a key")?;
        let key = crate::golden_read::key_of(entry, info.format)?;
        block_on(pool.load_key(&root, key, false))?;
    }
    for (name, model) in &models {
        let fs = block_on(pool.open_fs(&format!("{POOL}/{name}")))?;
        verify(&fs, model).with_context(|| name.clone())?;
        let root = block_on(fs.root())?.id;
        ensure!(block_on(fs.lookup(root, b"gone", &Cred::root())).is_err());
    }
    // The last dataset that uses a key object takes it along; the others stay readable.
    destroy(&pool, "outside")?;
    destroy(&pool, "keyless")?;
    destroy(&pool, "hex@keyless")?;
    destroy(&pool, "hex")?;
    let fs = block_on(pool.open_fs(&format!("{POOL}/hex-clone")))?;
    verify(&fs, &models["hex-clone"])?;
    drop(fs);
    destroy(&pool, "hex-clone@a")?;
    destroy(&pool, "hex-clone")?;
    drop(pool);
    block_on(engine.end_pool(POOL, Ending::Export { command: None })).context("export")?;
    block_on(engine.close())?;
    judge(golden).context("after the destructions")
}

#[test]
fn encrypted_datasets_are_changed_like_others() {
    let golden = Golden::unpack(POOL).expect("unpack the golden pool");
    history(&golden).unwrap_or_else(|error| panic!("{error:#}"));
}
