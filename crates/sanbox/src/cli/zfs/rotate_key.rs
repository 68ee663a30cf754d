//! `zfs rotate-key`: what a dataset holds is encrypted anew under a new master key (docs/adr/0005-rotation-by-a-copy-that-is-exchanged.md).

use std::time::Duration;

use engine::{EngineError, KeyRotation, KeyRotationStage, PoolHandle, PropertyQuery};

use super::keys::{self, KeyInput};
use super::open;
use crate::cli::command::{Command, Word, options};
use crate::cli::format::nice_bytes;
use crate::cli::{Exit, Outcome, Session, dataset_clause};

options! {
    RotateKeyOption {
        Cancel = short('c', "give the rotation up: the dataset stays as it is"),
        Load = short('l', "load the key first, if it is not loaded"),
        DryRun = short('n', "only say what it would take"),
        Status = short('s', "say how far the rotations of the dataset's pool are"),
        Wait = short('w', "wait for the end, and say how far it is"),
    }
}

/// The declaration of `zfs rotate-key`.
pub(super) const ROTATE_KEY: Command = Command {
    name: "rotate-key",
    summary: "encrypt what a dataset holds under a new master key",
    usage: "\trotate-key [-lnw] <filesystem|volume>\n\
         \trotate-key -c <filesystem|volume>\n\
         \trotate-key -s <filesystem|volume>\n",
    flags: RotateKeyOption::FLAGS,
    says_missing: false,
    words: &[Word::Dataset],
    text: &[
        "What wraps the master key, the passphrase or key file, stays; 'zfs change-key' changes that. The dataset and its snapshots are copied \
         inside the pool, while the dataset is in use, and exchanged for the copy in one moment, for which it pauses. The pool needs the room \
         for both meanwhile; the copy is POOL/rotate-key-GUID/copy.",
        "A daemon goes on with it in the background, and after a restart as soon as the key is loaded; -w waits. Without a daemon the \
         command stays until the end, and goes on where it was when it is given again.",
        "Snapshots keep names, guids, holds and properties. Refused are clones and datasets whose snapshots have clones: they share the key. \
         Datasets below have keys of their own, which stay. Bookmarks whose snapshot is gone are destroyed (-n names them), and raw \
         increments (send -w) do not go on at receivers of before: those begin anew.",
    ],
    examples: &[
        (
            "zfs rotate-key -n tank/secret",
            "what it takes, and what goes",
        ),
        ("zfs rotate-key tank/secret", "begin, or go on"),
        ("zfs rotate-key -s tank/secret", "how far it is"),
        ("zfs rotate-key -c tank/secret", "give it up"),
    ],
    ..Command::NEW
};

/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let (mut cancel, mut load, mut dry_run) = (false, false, false);
    let (mut status, mut wait) = (false, false);
    let operands = session.read_options(arguments, |_, option| {
        match option {
            RotateKeyOption::Cancel => cancel = true,
            RotateKeyOption::Load => load = true,
            RotateKeyOption::DryRun => dry_run = true,
            RotateKeyOption::Status => status = true,
            RotateKeyOption::Wait => wait = true,
        }
        Ok(())
    })?;
    let [name] = operands.as_slice() else {
        return Err(session.misuse("A dataset is needed"));
    };
    if [cancel, dry_run, status]
        .iter()
        .filter(|given| **given)
        .count()
        > 1
    {
        return Err(session.misuse("-c, -n and -s do not go together"));
    }
    let (pool, _) = open(session, name, &PropertyQuery::None).await?;
    let refused = |error: EngineError| {
        let why = dataset_clause(&error);
        session.fail(format!("cannot rotate the master key of '{name}': {why}"))
    };
    if status {
        return tell(session, &pool).await.map_err(refused);
    }
    if cancel {
        pool.cancel_key_rotation(name).await.map_err(refused)?;
        session.record(&pool).await;
        return Ok(());
    }
    if load {
        let mut input = KeyInput::new(session);
        keys::load_itself(session, &mut input, &pool, name).await?;
    }
    if dry_run {
        return tell_needs(session, &pool, name).await.map_err(refused);
    }
    let begun = pool.start_key_rotation(name).await.map_err(refused)?;
    if begun {
        session.record(&pool).await;
    }
    // Without a daemon the rotation stops with this process.
    if wait || !session.appliance.is_daemon() {
        return follow(session, &pool, name).await;
    }
    Ok(())
}

async fn tell_needs(session: &Session, pool: &PoolHandle, name: &str) -> Result<(), EngineError> {
    let needs = pool.key_rotation_needs(name).await?;
    session.out.line(format!(
        "would copy {} of {name}; the pool has room for {}",
        nice_bytes(needs.used_bytes),
        nice_bytes(needs.available_bytes)
    ));
    for bookmark in needs.lost_bookmarks {
        session.out.line(format!(
            "would destroy {name}#{bookmark}, whose snapshot is gone"
        ));
    }
    Ok(())
}

async fn tell(session: &Session, pool: &PoolHandle) -> Result<(), EngineError> {
    for rotation in pool.key_rotations().await? {
        let name = rotation.dataset.as_deref().unwrap_or("-");
        session.out.line(format!("{name}\t{}", state_of(&rotation)));
    }
    Ok(())
}

fn state_of(rotation: &KeyRotation) -> String {
    match (rotation.stage, &rotation.failed) {
        (_, Some(why)) if !rotation.running => format!("stopped: {why}"),
        (_, None) if !rotation.running && !rotation.ready => {
            "waits for its key to be loaded".to_owned()
        }
        (_, None) if !rotation.running => "interrupted".to_owned(),
        (KeyRotationStage::Exchanged, _) => "has the new key; old blocks are destroyed".to_owned(),
        (KeyRotationStage::Copying, _) => format!(
            "{} of {} copied",
            nice_bytes(rotation.copied_bytes),
            nice_bytes(rotation.total_bytes)
        ),
    }
}

/// Waits until the rotation is over, and says each tenth of the way.
async fn follow(session: &Session, pool: &PoolHandle, name: &str) -> Outcome {
    let mut told = 0;
    loop {
        let found = match pool.key_rotations().await {
            Ok(found) => found,
            Err(EngineError::PoolClosed) => return Ok(()),
            Err(error) => return Err(session.fail(format!("failed to wait for '{name}': {error}"))),
        };
        let mut own = found.into_iter();
        let own = own.find(|rotation| rotation.dataset.as_deref() == Some(name));
        let Some(rotation) = own else { return Ok(()) };
        if !rotation.running {
            return stopped(session, name, &rotation);
        }
        let tenth = rotation.copied_bytes.saturating_mul(10) / rotation.total_bytes.max(1);
        if tenth > told && tenth < 10 {
            told = tenth;
            session.out.line(format!("{name}: {}", state_of(&rotation)));
            session.out.flush().await?;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn stopped(session: &Session, name: &str, rotation: &KeyRotation) -> Outcome {
    let why = match &rotation.failed {
        Some(why) => why.as_str(),
        None => "it was interrupted; the same command goes on with it",
    };
    let failed: Exit = session.fail(format!("cannot rotate the master key of '{name}': {why}"));
    Err(failed)
}
