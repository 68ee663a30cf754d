//! Goal: datasets that are created encrypted here are OpenZFS's: it opens them with the keys that were given, and with no others.
//! Method: a pool gets file systems of every suite and key format, volumes, and children that inherit; after the export zdb
//! accounts for every block, OpenZFS's own code in userland loads the keys and reads every object, whose digests are compared with
//! ours; after another import the keys that were given open what was written.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use engine::{
    CreateDataset, DatasetKind, Ending, Engine, EngineError, ImportPolicy, IoBuf, KeyFormat,
    NewKey, PoolHandle, PoolSpec, PropertyQuery, Stability, Threads, WrappingKey,
};
use tests::{block_on, oracle};

use crate::encrypted::sums;
use crate::golden_read::hex;
use crate::written_pools::{Disks, Model, bytes, create, fill, judge, verify};

const SUITES: [&str; 6] = [
    "aes-128-ccm",
    "aes-192-ccm",
    "aes-256-ccm",
    "aes-128-gcm",
    "aes-192-gcm",
    "aes-256-gcm",
];

/// What a user gives for an encryption root: 32 bytes, 64 digits or a passphrase.
fn given(format: &str, seed: u64) -> Vec<u8> {
    let raw = bytes(seed, 32, true);
    match format {
        "raw" => raw,
        "hex" => hex(&raw).into_bytes(),
        _ => format!("passphrase {seed}").into_bytes(),
    }
}

fn wrapping_key(format: KeyFormat, given: &[u8]) -> Result<WrappingKey> {
    Ok(match format {
        KeyFormat::Raw => WrappingKey::from_raw(given)?,
        KeyFormat::Hex => WrappingKey::from_hex(given)?,
        KeyFormat::Passphrase { salt, iterations } => {
            WrappingKey::from_passphrase(given, salt, iterations)?
        }
    })
}

/// The wrapping key in digits, derived by other code than ours.
fn derived(format: KeyFormat, given: &[u8]) -> Result<String> {
    let KeyFormat::Passphrase { salt, iterations } = format else {
        let text = String::from_utf8(given.to_vec());
        return Ok(text
            .ok()
            .filter(|text| text.len() == 64)
            .unwrap_or_else(|| hex(given)));
    };
    let passphrase = String::from_utf8(given.to_vec())?;
    let program = format!(
        "import hashlib; print(hashlib.pbkdf2_hmac('sha1', b'{passphrase}', ({salt}).to_bytes(8, 'little'), {iterations}, 32).hex())"
    );
    let output = Command::new("python3").args(["-c", &program]).output()?;
    ensure!(output.status.success(), "python3 derives no key");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn properties(typed: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    typed.iter().map(owned).collect()
}

/// Encryption roots with what was given for them.
type Given = BTreeMap<String, Vec<u8>>;

/// Creates a dataset, with the key that its properties ask for.
fn make(
    pool: &PoolHandle,
    keys: &mut Given,
    name: &str,
    volume: bool,
    typed: &[(&str, &str)],
) -> Result<()> {
    let properties = properties(typed);
    let kind = if volume {
        DatasetKind::Volume
    } else {
        DatasetKind::Filesystem
    };
    let planned = block_on(pool.plan_key(name, kind, &properties))?;
    let mut key = None;
    if let Some(planned) = planned {
        let format = typed
            .iter()
            .find(|(name, _)| *name == "keyformat")
            .context("a format")?
            .1;
        let given = given(format, keys.len() as u64 + 1);
        key = Some(NewKey {
            format: planned.format,
            key: Arc::new(wrapping_key(planned.format, &given)?),
        });
        keys.insert(name.to_owned(), given);
    }
    let request = CreateDataset {
        name: name.to_owned(),
        volume,
        properties,
        key,
        ..CreateDataset::default()
    };
    block_on(pool.create_dataset(request)).with_context(|| format!("create {name}"))
}

fn value(pool: &PoolHandle, name: &str, property: &str) -> Result<String> {
    let query = PropertyQuery::Named(vec![property.to_owned()]);
    let info = block_on(pool.dataset(name, &query))?;
    let found = info.property(property).context("no such property")?;
    Ok(match (&found.value, found.native) {
        (engine::property::Value::Number(_), Some(native)) => {
            engine::property::display(native, &found.value, true)
        }
        (value, _) => value.text().unwrap_or_default().to_owned(),
    })
}

/// Makes the datasets; returns the keys, and what files hold.
fn write_all(pool: &PoolHandle, keys: &mut Given) -> Result<BTreeMap<String, Model>> {
    let mut models = BTreeMap::new();
    for (at, suite) in SUITES.iter().enumerate() {
        for (format, place) in [
            ("raw", "file:///nowhere/raw"),
            ("hex", "file:///nowhere/hex"),
            ("passphrase", "prompt"),
        ] {
            let name = format!("crypt/{suite}-{format}");
            let mut typed = vec![("encryption", *suite), ("keyformat", format)];
            if format == "passphrase" {
                // The place is `prompt` unless another is given.
                typed.push(("pbkdf2iters", "100000"));
            } else {
                typed.push(("keylocation", place));
            }
            if at % 2 == 0 {
                typed.push(("compression", "off"));
            }
            make(pool, keys, &name, false, &typed)?;
            ensure!(value(pool, &name, "encryption")? == *suite);
            ensure!(value(pool, &name, "keyformat")? == format);
            ensure!(value(pool, &name, "keylocation")? == place);
            ensure!(value(pool, &name, "encryptionroot")? == name);
            ensure!(value(pool, &name, "keystatus")? == "available");
            let iterations = if format == "passphrase" {
                "100000"
            } else {
                "0"
            };
            ensure!(value(pool, &name, "pbkdf2iters")? == iterations);
            let fs = block_on(pool.open_fs(&name))?;
            let model = if format == "raw" && at % 3 == 2 {
                fill(&fs, at as u64)?
            } else {
                let content = bytes(at as u64, 300_000, format == "hex");
                create(&fs, block_on(fs.root())?.id, "file", &content)?;
                Model::from([("file".to_owned(), content)])
            };
            block_on(fs.sync())?;
            models.insert(name, model);
        }
    }
    let parent = "crypt/aes-256-gcm-passphrase";
    let children: [(&str, &[(&str, &str)]); 4] = [
        ("inherits", &[]),
        ("other-suite", &[("encryption", "aes-128-ccm")]),
        ("plain", &[("encryption", "off")]),
        (
            "own",
            &[
                ("encryption", "on"),
                ("keyformat", "raw"),
                ("keylocation", "file:///k"),
            ],
        ),
    ];
    for (child, typed) in children {
        let name = format!("{parent}/{child}");
        make(pool, keys, &name, false, typed)?;
        let fs = block_on(pool.open_fs(&name))?;
        let content = bytes(99, 200_000, true);
        create(&fs, block_on(fs.root())?.id, "file", &content)?;
        block_on(fs.sync())?;
        models.insert(name, Model::from([("file".to_owned(), content)]));
    }
    let roots = ["inherits", "other-suite"].map(|child| format!("{parent}/{child}"));
    for name in &roots {
        ensure!(value(pool, name, "encryptionroot")? == parent);
        ensure!(value(pool, name, "keylocation")? == "none");
    }
    ensure!(value(pool, &roots[1], "encryption")? == "aes-128-ccm");
    ensure!(value(pool, &format!("{parent}/own"), "encryption")? == "aes-256-gcm");
    ensure!(value(pool, &format!("{parent}/plain"), "encryption")? == "off");
    for (name, typed) in [
        (format!("{parent}/volume"), vec![]),
        (
            "crypt/volume".to_owned(),
            vec![
                ("encryption", "on"),
                ("keyformat", "hex"),
                ("keylocation", "file:///k"),
            ],
        ),
    ] {
        let typed: Vec<_> = typed.into_iter().chain([("volsize", "8M")]).collect();
        make(pool, keys, &name, true, &typed)?;
        let volume = block_on(pool.open_volume(&name))?;
        let noise = bytes(7, 500_000, true);
        block_on(volume.write(8192, IoBuf::copy_from(&noise), Stability::FileSync))?;
        block_on(volume.flush())?;
    }
    Ok(models)
}

/// OpenZFS opens every block with the keys, and has the same bytes.
fn compare(disks: &Disks, lines: &[String], keys: &[String]) -> Result<()> {
    if oracle::refpool().is_none() {
        return Ok(());
    }
    let mut operations = keys.to_vec();
    operations.extend(["sums:crypt".to_owned(), "scrub:crypt".to_owned()]);
    let said = oracle::refpool_does("crypt", &disks.images, &operations)?;
    ensure!(said.contains(": 0 errors"), "{said}");
    let found: Vec<&str> = said.lines().collect();
    for line in lines {
        ensure!(found.contains(&line.as_str()), "{line} is not of OpenZFS");
    }
    ensure!(
        !said.contains("locked ") && !said.contains("unreadable"),
        "{said}"
    );
    Ok(())
}

fn load(pool: &PoolHandle, keys: &Given) -> Result<()> {
    for (name, given) in keys {
        let info = block_on(pool.key_info(name))?.with_context(|| format!("{name} has no key"))?;
        ensure!(info.root == *name && !info.loaded, "{name}: {info:?}");
        let wrong = block_on(pool.load_key(name, WrappingKey::from_raw(&[9; 32])?, false));
        ensure!(
            matches!(wrong, Err(EngineError::WrongKey(_))),
            "{name}: {wrong:?}"
        );
        block_on(pool.load_key(name, wrapping_key(info.format, given)?, false))?;
    }
    Ok(())
}

fn made_here(root: &[(&str, &str)]) -> Result<()> {
    let disks = Disks::new(1, 512);
    let engine = Engine::new(Threads::default());
    let root = properties(root);
    let mut spec = PoolSpec {
        name: "crypt".to_owned(),
        vdevs: vec![disks.single(0)],
        properties: vec![("ashift".to_owned(), "12".to_owned())],
        ..PoolSpec::default()
    };
    let mut keys = Given::new();
    if let Some(planned) = block_on(engine.plan_root_key(&spec, &root))? {
        let refused = block_on(engine.create_pool(spec.clone(), &root)).err();
        let refused = refused.context("without its key")?.to_string();
        ensure!(
            refused == "encryption root's key is not loaded or provided",
            "{refused}"
        );
        let given = given("passphrase", 50);
        spec.key = Some(NewKey {
            format: planned.format,
            key: Arc::new(wrapping_key(planned.format, &given)?),
        });
        keys.insert("crypt".to_owned(), given);
    }
    let pool = block_on(engine.create_pool(spec, &root)).context("create the pool")?;
    let models = write_all(&pool, &mut keys)?;
    let (mut lines, mut digits) = (Vec::new(), Vec::new());
    for name in models
        .keys()
        .map(String::as_str)
        .chain(["crypt", "crypt/volume"])
    {
        lines.extend(sums(&pool, name)?);
    }
    for (name, given) in &keys {
        let info = block_on(pool.key_info(name))?.context("a key")?;
        digits.push(format!("key:{name}={}", derived(info.format, given)?));
    }
    drop(pool);
    let export = || Ending::Export { command: None };
    block_on(engine.end_pool("crypt", export())).context("export")?;
    judge(&disks, "crypt")?;
    compare(&disks, &lines, &digits)?;

    let found = block_on(engine.discover(vec![disks.directory.path().to_path_buf()]))?;
    let candidate = found
        .pools
        .into_iter()
        .next()
        .context("the pool is found")?;
    let policy = ImportPolicy {
        force: true,
        ..ImportPolicy::default()
    };
    let pool = block_on(engine.import(candidate, policy)).context("import")?;
    load(&pool, &keys)?;
    for (name, model) in &models {
        let fs = block_on(pool.open_fs(name))?;
        verify(&fs, model).with_context(|| name.clone())?;
    }
    drop(pool);
    block_on(engine.end_pool("crypt", export())).context("export")?;
    judge(&disks, "crypt")?;
    block_on(engine.close())?;
    Ok(())
}

#[test]
#[ignore = "long: every suite and key format; one of each is opened in other tests"]
fn openzfs_opens_what_is_created_with_every_suite_and_key_format() {
    made_here(&[]).unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn a_pool_is_encrypted_from_its_root() {
    let root = [("encryption", "aes-256-gcm"), ("keyformat", "passphrase")];
    made_here(&root).unwrap_or_else(|error| panic!("{error:#}"));
}
