//! `zfs change-key`.

use engine::{EngineError, KeyChange, PoolHandle, PropertyQuery};

use super::keys::{self, KeyInput};
use super::open;
use crate::cli::command::{Command, Word, options};
use crate::cli::{Exit, Outcome, Session, setting};

options! {
    ChangeKeyOption {
        Load = short('l', "load the key first, if it is not loaded"),
        Inherit = short('i', "inherit the key of the parent"),
        Property(String) = valued('o', "property=value", "keyformat, keylocation or pbkdf2iters"),
    }
}

/// The declaration of `zfs change-key`.
pub(super) const CHANGE_KEY: Command = Command {
    name: "change-key",
    summary: "change the key of an encrypted dataset",
    usage: "\tchange-key [-l] [-o keyformat=<value>]\n\
         \t    [-o keylocation=<value>] [-o pbkdf2iters=<value>]\n\
         \t    <filesystem|volume>\n\
         \tchange-key -i [-l] <filesystem|volume>\n",
    flags: ChangeKeyOption::FLAGS,
    says_missing: false,
    words: &[Word::Dataset],
    examples: &[
        ("zfs change-key tank/secret", "asks for a new passphrase"),
        (
            "zfs change-key -o keyformat=raw -o keylocation=file:///root/secret.key tank/secret",
            "from now on a file of 32 bytes",
        ),
        ("zfs change-key -i tank/secret/a", "the key of tank/secret"),
    ],
    ..Command::NEW
};

/// Properties that may be given.
const PROPERTIES: [&str; 3] = ["keyformat", "keylocation", "pbkdf2iters"];

// OpenZFS: cmd/zfs/zfs_main.c, zfs_do_change_key
pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let (mut load, mut inherit) = (false, false);
    let mut properties: Vec<(String, String)> = Vec::new();
    let operands = session.read_options(arguments, |session, option| {
        match option {
            ChangeKeyOption::Load => load = true,
            ChangeKeyOption::Inherit => inherit = true,
            ChangeKeyOption::Property(text) => {
                let Some((name, value)) = setting(&text) else {
                    return Err(session.fail("missing '=' for property=value argument"));
                };
                if properties.iter().any(|(known, _)| *known == name) {
                    return Err(session.fail(format!("property '{name}' specified multiple times")));
                }
                properties.push((name, value));
            }
        }
        Ok(())
    })?;
    if inherit && !properties.is_empty() {
        return Err(session.misuse("Properties not allowed for inheriting"));
    }
    let name = match operands.as_slice() {
        [name] => name,
        [] => return Err(session.misuse("Missing dataset argument")),
        _ => return Err(session.misuse("Too many arguments")),
    };
    let (pool, _) = open(session, name, &PropertyQuery::None).await?;
    // Both keys may come from standard input, the old one first.
    let mut input = KeyInput::new(session);
    if load {
        keys::load_itself(session, &mut input, &pool, name).await?;
    }
    change(session, &mut input, &pool, name, inherit, &properties).await?;
    session.record(&pool).await;
    Ok(())
}

// OpenZFS: lib/libzfs/libzfs_crypto.c, zfs_crypto_rewrap (words)
async fn change(
    session: &Session,
    input: &mut KeyInput,
    pool: &PoolHandle,
    name: &str,
    inherit: bool,
    properties: &[(String, String)],
) -> Outcome {
    let fail = |why: &str| {
        session.out.error(format!("Key change error: {why}"));
        Exit(255)
    };
    let refused = |error: EngineError| match error {
        EngineError::Permission => fail("Permission denied."),
        other => fail(&other.to_string()),
    };
    if inherit {
        return pool
            .change_key(name, KeyChange::Inherit)
            .await
            .map_err(refused);
    }
    let is_of_key = |(name, _): &(String, String)| PROPERTIES.contains(&name.as_str());
    if !properties.iter().all(is_of_key) {
        return Err(fail(
            "Only keyformat, keylocation and pbkdf2iters may be set with this command.",
        ));
    }
    let planned = pool
        .plan_key_change(name, properties)
        .await
        .map_err(refused)?;
    let key = keys::new_key(session, input, &planned, Some(name)).await;
    let change = KeyChange::New {
        key: key.map_err(|why| fail(&why))?,
        location: Some(planned.location),
    };
    pool.change_key(name, change).await.map_err(refused)
}
