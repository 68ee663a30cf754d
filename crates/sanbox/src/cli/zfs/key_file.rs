//! `zfs key export` and `zfs key import`: a copy of the key of an encryption root, kept outside of the pool under a passphrase of its own.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use engine::{EngineError, KeyInfo, PoolHandle, PropertyQuery};
use manage::database::seconds_since_epoch;
use manage::key_file::{FILE_BYTES_MAX, KeyFileHead, KeyOwner};

use super::keys::{self, Form, KeyInput};
use super::open;
use crate::cli::command::{Command, Word, options};
use crate::cli::format::plain_words;
use crate::cli::{Exit, Outcome, Session};
use crate::paths;

options! {
    KeyOption {
        CheckOnly = short('n', "import: only say whether the file opens the dataset"),
        Location(String) = valued('L', "keylocation", "where the passphrase of the file is; by default it is asked for"),
    }
}

/// The declaration of `zfs key`.
pub(super) const KEY: Command = Command {
    name: "key",
    summary: "keep a copy of a dataset's key in a file, and load it from there",
    usage: "\tkey export [-L <keylocation>] <filesystem|volume> <file>\n\
         \tkey import [-n] [-L <keylocation>] <filesystem|volume> <file>\n",
    flags: KeyOption::FLAGS,
    says_missing: false,
    words: &[Word::Text, Word::Dataset, Word::Text],
    examples: &[
        (
            "zfs key export tank/secret /media/stick/secret.key",
            "asks for a passphrase that the file is to have",
        ),
        (
            "zfs key import tank/secret /media/stick/secret.key",
            "loads the key from the file, when the dataset's own passphrase is lost",
        ),
    ],
    ..Command::NEW
};

/// What is asked for.
struct Asked {
    dataset: String,
    file: std::path::PathBuf,
    passphrase: String,
    check_only: bool,
}

pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let Some((part, rest)) = arguments.split_first() else {
        return Err(session.misuse("Missing 'export' or 'import'"));
    };
    let imports = match part.as_str() {
        "export" => false,
        "import" => true,
        other => return Err(session.misuse(format!("'{other}' is neither 'export' nor 'import'"))),
    };
    let (mut check_only, mut passphrase) = (false, "prompt".to_owned());
    let operands = session.read_options(rest, |session, option| {
        match option {
            KeyOption::CheckOnly if !imports => {
                return Err(session.misuse("-n is for 'import'"));
            }
            KeyOption::CheckOnly => check_only = true,
            KeyOption::Location(place) => passphrase = place,
        }
        Ok(())
    })?;
    let [dataset, file] = operands.as_slice() else {
        return Err(session.misuse("A dataset and a file are needed"));
    };
    let asked = Asked {
        dataset: dataset.clone(),
        file: session.path(file),
        passphrase,
        check_only,
    };
    if !session.may_read_files() {
        return Err(session.fail(format!("cannot open '{file}': Permission denied")));
    }
    let (pool, info) = open(session, dataset, &PropertyQuery::None).await?;
    let key = key_of(session, &pool, dataset).await?;
    if imports {
        import(session, &pool, &asked, &key).await
    } else {
        export(session, &pool, &asked, &key, info.guid).await
    }
}

async fn key_of(session: &Session, pool: &PoolHandle, name: &str) -> Result<KeyInfo, Exit> {
    match pool.key_info(name).await {
        Ok(Some(info)) if info.root == name => Ok(info),
        Ok(Some(info)) => Err(session.fail(format!(
            "'{name}' has the key of its encryption root '{}': name that",
            info.root
        ))),
        Ok(None) => Err(session.fail(format!("'{name}' is not encrypted"))),
        Err(error) => Err(session.fail(format!("cannot open '{name}': {error}"))),
    }
}

async fn export(
    session: &Session,
    pool: &PoolHandle,
    asked: &Asked,
    key: &KeyInfo,
    guid: u64,
) -> Outcome {
    let name = &asked.dataset;
    let fail = |why: &str| session.fail(format!("cannot export the key of '{name}': {why}"));
    if !key.loaded {
        return Err(fail("it is not loaded"));
    }
    let mut input = KeyInput::new(session);
    let (form, of) = (Form::Passphrase, Some("the file"));
    let passphrase = keys::read_key(session, &mut input, form, &asked.passphrase, of, true).await;
    let passphrase = passphrase.map_err(|error| fail(&error.why))?;
    let head = KeyFileHead::new(KeyOwner {
        dataset: name.clone(),
        guid,
        key_guid: key.guid,
        exported: seconds_since_epoch(),
    });
    let head = head.map_err(|error| fail(&error.to_string()))?;
    let outer = head.outer_key(&passphrase);
    let outer = outer.map_err(|error| fail(&error.to_string()))?;
    let encrypted = pool
        .encrypted_key(name, outer, head.iv(), head.about())
        .await;
    let encrypted = encrypted.map_err(|error| fail(&error.to_string()))?;
    let (file, text) = (asked.file.clone(), head.text(&encrypted));
    let written = paths::call(&asked.file, move || write(&file, text.as_bytes())).await;
    let shown = asked.file.display();
    written
        .map_err(|why| fail(&why))?
        .map_err(|error| fail(&format!("{shown}: {}", plain_words(&error))))?;
    session.out.line(format!(
        "{shown} opens '{name}' and what inherits its key, until 'zfs change-key {name}': then export it anew"
    ));
    Ok(())
}

/// Writes a new file that its owner alone may read, and nothing when that fails.
fn write(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let written = file.write_all(text).and_then(|()| file.sync_all());
    if written.is_err() {
        let _ = std::fs::remove_file(path);
    }
    written
}

async fn import(session: &Session, pool: &PoolHandle, asked: &Asked, key: &KeyInfo) -> Outcome {
    let name = &asked.dataset;
    let fail = |why: &str| session.fail(format!("cannot import the key of '{name}': {why}"));
    if key.loaded && !asked.check_only {
        return Err(fail("it is loaded"));
    }
    let file = asked.file.clone();
    let text = paths::call(&asked.file, move || read(&file)).await;
    let shown = asked.file.display();
    let text = text
        .map_err(|why| fail(&why))?
        .map_err(|error| fail(&format!("{shown}: {}", plain_words(&error))))?;
    let parsed = KeyFileHead::parse(&text);
    let (head, encrypted) = parsed.map_err(|error| fail(&format!("{shown}: {error}")))?;
    let owner = head.owner();
    if owner.key_guid != key.guid {
        return Err(fail(&format!(
            "{shown} holds the key of another dataset ('{}')",
            owner.dataset
        )));
    }
    let mut input = KeyInput::new(session);
    let (form, of) = (Form::Passphrase, Some("the file"));
    let passphrase = keys::read_key(session, &mut input, form, &asked.passphrase, of, false).await;
    let passphrase = passphrase.map_err(|error| fail(&error.why))?;
    keys::leave_no_core_dump();
    let opened = head.open(&encrypted, &passphrase);
    let opened = opened.map_err(|error| fail(&format!("{shown}: {error}")))?;
    match pool.load_key(name, opened, asked.check_only).await {
        Ok(()) => {}
        Err(EngineError::WrongKey(_)) => {
            return Err(fail(
                "it was changed after the file was written, which opens nothing any more",
            ));
        }
        Err(error) => return Err(fail(&error.to_string())),
    }
    if asked.check_only {
        session.out.line(format!("{shown} opens '{name}'"));
    } else {
        keys::warn_of_swap(session);
        session.appliance.datasets_changed().await;
        session.out.line(format!(
            "the key of '{name}' is loaded; 'zfs change-key -o keyformat=passphrase {name}' gives it a new passphrase"
        ));
    }
    Ok(())
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path)?;
    file.take(FILE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut text)?;
    Ok(text)
}
