//! Goal: what is written to encrypted datasets here, OpenZFS opens with the same keys. Method: a pool that OpenZFS encrypted is
//! imported, its keys are loaded, files are removed and written in each file system and blocks in its volume; after the
//! export zdb accounts for every block, OpenZFS's own code in userland loads the keys and reads every object, whose digests are
//! compared with ours, and scrubs the pool; then it is read here again, with what the manifest says of the rest.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use engine::{Cred, Ending, Engine, FsHandle, IoBuf, KeyFormat, PoolHandle, SetAttr, Stability};
use sha2::{Digest as _, Sha256};
use tests::golden::Golden;
use tests::{block_on, oracle};

use crate::golden_read::{Changed, hex, load_keys};
use crate::golden_write::{import, judge, remove_some};
use crate::intent_log::as_acknowledged;
use crate::written_pools::{Model, bytes, create, fill_directory, verify};

/// The wrapping key of an encryption root in hexadecimal digits, derived by other code than ours.
pub(crate) fn wrapping_key(golden: &Golden, root: &str, format: KeyFormat) -> Result<String> {
    let entry = &golden.manifest["keys"][root];
    let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    let KeyFormat::Passphrase { salt, iterations } = format else {
        return Ok(text("hex_raw") + &text("value"));
    };
    let program = format!(
        "import hashlib; print(hashlib.pbkdf2_hmac('sha1', b'{}', ({salt}).to_bytes(8, 'little'), {iterations}, 32).hex())",
        text("value")
    );
    let output = Command::new("python3").args(["-c", &program]).output()?;
    ensure!(output.status.success(), "python3 derives no key");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// A line for each object of a dataset, as `refpool` prints it.
pub(crate) fn sums(pool: &PoolHandle, dataset: &str) -> Result<Vec<String>> {
    let (mut lines, mut after) = (Vec::new(), 0);
    loop {
        let some = block_on(pool.object_sums(dataset, after))?;
        let Some(last) = some.last() else {
            return Ok(lines);
        };
        after = last.object;
        for one in some {
            let sum = one.sum.map_err(|error| anyhow::anyhow!(error))?;
            let digits: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
            let (object, kind, size) = (one.object, one.object_type, one.block_size);
            lines.push(format!("{dataset} {object} {kind} {size} {digits}"));
        }
    }
}

/// Fills a directory of two of the file systems, with a suite of either mode; the pool has no room for more.
fn write_files(fs: &FsHandle, name: &str, seed: u64) -> Result<Model> {
    let (root, cred) = (block_on(fs.root())?.id, Cred::root());
    let mut model = Model::new();
    if name.ends_with("/pass") || name.ends_with("/ccm256") {
        let made = block_on(fs.mkdir(root, b"written-here", &SetAttr::default(), &cred))?;
        let below = fill_directory(fs, made.file.id, seed)?;
        model.extend(
            below
                .into_iter()
                .map(|(path, content)| (format!("written-here/{path}"), content)),
        );
    } else {
        let content = bytes(seed, 300_000, true);
        create(fs, root, "written-here", &content)?;
        model.insert("written-here".to_owned(), content);
    }
    Ok(model)
}

/// What was written, and what OpenZFS is to find.
struct Written {
    models: BTreeMap<String, Model>,
    sums: Vec<String>,
    keys: Vec<String>,
}

fn write_everywhere(golden: &Golden, changed: &mut Changed) -> Result<Written> {
    let (engine, pool) = import(golden)?;
    load_keys(golden, &pool)?;
    let mut written = Written {
        models: BTreeMap::new(),
        sums: Vec::new(),
        keys: Vec::new(),
    };
    let datasets = golden.manifest["datasets"].as_object().context("none")?;
    for (at, (name, dataset)) in (0..).zip(datasets) {
        if name.contains('@') || block_on(pool.key_info(name))?.is_none() {
            continue;
        }
        if !dataset["volume"].is_null() {
            let volume = block_on(pool.open_volume(name))?;
            let noise = bytes(at, 200_000, true);
            block_on(volume.write(65_536, IoBuf::copy_from(&noise), Stability::FileSync))?;
            continue;
        }
        let fs = block_on(pool.open_fs(name))?;
        remove_some(&fs, name, changed).with_context(|| name.clone())?;
        let model = write_files(&fs, name, at).with_context(|| format!("fill {name}"))?;
        block_on(fs.sync())?;
        written.models.insert(name.clone(), model);
    }
    for name in datasets.keys() {
        if let Some(info) = block_on(pool.key_info(name.split('@').next().unwrap_or(name)))? {
            written.sums.extend(sums(&pool, name)?);
            if info.root == *name {
                let key = wrapping_key(golden, name, info.format)?;
                written.keys.push(format!("key:{name}={key}"));
            }
        }
    }
    block_on(engine.end_pool(&golden.name, Ending::Export { command: None })).context("export")?;
    block_on(engine.close())?;
    Ok(written)
}

/// OpenZFS opens every block with the keys, and has the same bytes.
fn opened_by_openzfs(golden: &Golden, written: &Written) -> Result<()> {
    if oracle::refpool().is_none() {
        return Ok(());
    }
    let mut operations = written.keys.clone();
    operations.push(format!("sums:{}", golden.name));
    operations.push(format!("scrub:{}", golden.name));
    let said = oracle::refpool_does(&golden.name, &golden.images(), &operations)?;
    ensure!(said.contains(": 0 errors"), "{said}");
    let found: Vec<&str> = said.lines().collect();
    for line in &written.sums {
        let object = line.rsplit_once(' ').map_or("", |(object, _)| object);
        ensure!(
            found.contains(&line.as_str()),
            "{line}\nis of OpenZFS:\n{:?}",
            found.iter().find(|line| line.starts_with(object))
        );
    }
    ensure!(!said.contains("locked") && !said.contains("unreadable"));
    Ok(())
}

fn read_again(golden: &Golden, written: &Written) -> Result<()> {
    let (engine, pool) = import(golden)?;
    load_keys(golden, &pool)?;
    for (name, model) in &written.models {
        let fs = block_on(pool.open_fs(name))?;
        verify(&fs, model).with_context(|| name.clone())?;
    }
    block_on(engine.end_pool(&golden.name, Ending::Export { command: None })).context("export")?;
    block_on(engine.close())?;
    Ok(())
}

#[test]
fn openzfs_opens_what_is_written_with_its_keys() {
    let golden = Golden::unpack("m-encrypted").expect("unpack the golden pool");
    let mut changed = Changed::default();
    let written = write_everywhere(&golden, &mut changed).expect("it is written");
    assert!(written.models.len() >= 6, "all file systems are written");
    judge(&golden).expect("zdb and the checker");
    opened_by_openzfs(&golden, &written).expect("OpenZFS opens it");
    read_again(&golden, &written).expect("it is read again");
    judge(&golden).expect("zdb and the checker, after OpenZFS had it");
}

/// The line of `refpool` for a write record: the digest is of all behind the common header.
fn write_record(object: u64, offset: u64, data: &[u8]) -> String {
    let mut body = Vec::new();
    for number in [object, offset, data.len() as u64, 0] {
        body.extend(number.to_le_bytes());
    }
    body.resize(160, 0);
    body.extend(data);
    format!(" 9 {} {}", body.len() + 32, hex(&Sha256::digest(&body)))
}

fn export(engine: &Engine, golden: &Golden) -> Result<()> {
    let ending = Ending::Export { command: None };
    Ok(block_on(engine.end_pool(&golden.name, ending))?)
}

#[test]
fn a_log_is_claimed_without_its_key_and_replayed_with_it() {
    let golden = Golden::unpack("l3-zil-encrypted").expect("unpack the golden pool");
    // Twice without the key: the log is claimed, and kept.
    for _ in 0..2 {
        let (engine, pool) = import(&golden).expect("import");
        let fs = block_on(pool.open_fs("l3-zil-encrypted/enc")).expect("it is there");
        assert!(block_on(fs.root()).is_err(), "it cannot be read");
        drop(fs);
        drop(pool);
        export(&engine, &golden).expect("export");
        block_on(engine.close()).expect("close");
        judge(&golden).expect("zdb and the checker");
    }
    let (engine, pool) = import(&golden).expect("import");
    load_keys(&golden, &pool).expect("the key");
    let files = as_acknowledged(&pool, &golden.manifest).expect("all that was acknowledged");
    assert!(files > 30, "{files} files were compared");
    drop(pool);
    export(&engine, &golden).expect("export");
    judge(&golden).expect("zdb and the checker");
    let (_, pool) = import(&golden).expect("import");
    load_keys(&golden, &pool).expect("the key");
    as_acknowledged(&pool, &golden.manifest).expect("after another import");
}

/// Places and lengths of writes to a file.
const WRITES: [(u64, usize); 3] = [(0, 512), (4096, 10_000), (131_072, 131_072)];

/// Records written here, in the log of a pool that crashed, are decrypted by OpenZFS; its claim needs no key.
#[test]
fn openzfs_reads_the_log_written_here() {
    let golden = Golden::unpack("m-encrypted").expect("unpack the golden pool");
    let names = ["m-encrypted/hex", "m-encrypted/ccm256"];
    let (engine, pool) = import(&golden).expect("import");
    load_keys(&golden, &pool).expect("the keys");
    let (mut keys, mut expected) = (Vec::new(), Vec::new());
    let mut files = Vec::new();
    for name in names {
        let info = block_on(pool.key_info(name)).expect("a key").expect("one");
        let key = wrapping_key(&golden, name, info.format).expect("a key");
        keys.push(format!("key:{name}={key}"));
        let fs = block_on(pool.open_fs(name)).expect("open");
        let root = block_on(fs.root()).expect("a root").id;
        let file = create(&fs, root, "logged", b"first").expect("create");
        // The first commit begins the log, and waits for a group.
        block_on(fs.commit(file, 0, 5)).expect("commit");
        files.push((name, fs, file));
    }
    for (seed, (name, fs, file)) in (0..).zip(&files) {
        // Short ones are in the log, long ones at their place.
        for (at, len) in WRITES {
            let data = bytes(seed + at, len, true);
            let (buf, cred) = (IoBuf::copy_from(&data), Cred::root());
            block_on(fs.write(*file, at, buf, Stability::FileSync, &cred)).expect("write");
            if len < 131_072 {
                expected.push((*name, write_record(file.object, at, &data)));
            }
        }
    }
    drop(files);
    let (_, abandoned) = (
        pool,
        block_on(engine.end_pool(&golden.name, Ending::Abandon)),
    );
    abandoned.expect("as in a crash");
    if oracle::refpool().is_none() {
        return;
    }
    for name in names {
        let mut operations = keys.clone();
        operations.push(format!("log:{name}"));
        let said = oracle::refpool_does(&golden.name, &golden.images(), &operations);
        let said = said.expect("OpenZFS reads the log");
        assert!(said.contains(&format!("log {name}: Success")), "{said}");
        for (_, record) in expected.iter().filter(|(of, _)| *of == name) {
            assert!(said.contains(record), "{record} in\n{said}");
        }
    }
    // OpenZFS has claimed the log; it is replayed here.
    let (_, pool) = import(&golden).expect("import");
    load_keys(&golden, &pool).expect("the keys");
    for (seed, name) in (0..).zip(names) {
        let fs = block_on(pool.open_fs(name)).expect("open");
        let mut content = vec![0; 262_144];
        for (at, len) in WRITES {
            let from = usize::try_from(at).expect("small");
            content[from..from + len].copy_from_slice(&bytes(seed + at, len, true));
        }
        let model = Model::from([("logged".to_owned(), content)]);
        verify(&fs, &model).expect(name);
    }
}
