//! `zfs redact`: a bookmark with the list of blocks that redacted streams leave out.
//!
//! OpenZFS: cmd/zfs/zfs_main.c, `zfs_do_redact` (words; its exit code is the error's number).

use engine::property::DatasetKind;
use engine::{EngineError, PropertyQuery, RedactionError};
use rustix::io::Errno;

use super::{bad_name, open};
use crate::cli::command::{Command, Word};
use crate::cli::{Exit, Outcome, Session, pool_part};

/// The declaration of `zfs redact`.
pub(super) const REDACT: Command = Command {
    name: "redact",
    summary: "make a bookmark for redacted send streams",
    usage: "\tredact <snapshot> <bookmark> <redaction_snapshot> ...\n",
    says_missing: false,
    words: &[Word::Snapshot, Word::Text, Word::Snapshot],
    examples: &[(
        "zfs redact tank/data@1 public tank/public@1",
        "what all clones changed is left out by 'zfs send --redact public tank/data@1'",
    )],
    ..Command::NEW
};

pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let operands = session.operands(arguments)?;
    let [snapshot, bookmark, by @ ..] = operands.as_slice() else {
        return Err(session.misuse("too few arguments"));
    };
    if by.is_empty() {
        return Err(session.misuse("too few arguments"));
    }
    let Ok(pool) = session.appliance.pool_of(snapshot).await else {
        return Err(missing(session, snapshot, by).await);
    };
    if by.iter().any(|name| pool_part(name) != pool.name()) {
        let words = "potentially invalid redaction snapshot; full dataset names required";
        return Err(said(session, words, Errno::XDEV));
    }
    match pool.redact(snapshot, bookmark, by).await {
        Ok(()) => {
            session.record(&pool).await;
            Ok(())
        }
        Err(EngineError::DatasetNotFound(_)) => Err(missing(session, snapshot, by).await),
        Err(error) => Err(refused(session, snapshot, bookmark, &error)),
    }
}

/// Says which of the snapshots are not there.
async fn missing(session: &Session, snapshot: &str, by: &[String]) -> Exit {
    for name in std::iter::once(snapshot).chain(by.iter().map(String::as_str)) {
        if open(session, name, &PropertyQuery::None).await.is_err() {
            let text = format!("provided snapshot {name} does not exist");
            session.out.error(text);
        }
    }
    exit(Errno::NOENT)
}

fn refused(session: &Session, snapshot: &str, bookmark: &str, error: &EngineError) -> Exit {
    let head = snapshot.split('@').next().unwrap_or_default();
    let full = format!("{head}#{bookmark}");
    let too_long = "provided bookmark name cannot be used, final name would be too long";
    let (text, number) = match error {
        EngineError::DatasetExists(_) => {
            let text = format!("specified redaction bookmark ({bookmark}) provided already exists");
            (text, Errno::EXIST)
        }
        EngineError::Redaction(error) => (error.to_string(), number_of(*error)),
        _ if full.len() >= 256 => (too_long.to_owned(), Errno::NAMETOOLONG),
        _ if bookmark.contains('#') => {
            let text = "redaction bookmark name must not contain '#'".to_owned();
            (text, Errno::INVAL)
        }
        _ if bad_name(&full, DatasetKind::Bookmark).is_some() => {
            (RedactionError::NotDescendant.to_string(), Errno::INVAL)
        }
        EngineError::Permission => (
            "internal error: Operation not permitted".to_owned(),
            Errno::PERM,
        ),
        EngineError::KeyNotLoaded(_) => (format!("internal error: {error}"), Errno::ACCESS),
        EngineError::Busy(_) => (format!("internal error: {error}"), Errno::BUSY),
        error => (format!("internal error: {error}"), Errno::IO),
    };
    said(session, text, number)
}

fn number_of(error: RedactionError) -> Errno {
    match error {
        RedactionError::TooManySnapshots => Errno::TOOBIG,
        RedactionError::AlreadyRedacted => Errno::ALREADY,
        RedactionError::NotEnabled => Errno::NOTSUP,
        RedactionError::OtherSnapshots => Errno::SRCH,
        RedactionError::NotDescendant
        | RedactionError::NotRedactionBookmark
        | RedactionError::Incomplete
        | RedactionError::OtherSnapshot
        | RedactionError::Incompatible => Errno::INVAL,
    }
}

fn said(session: &Session, text: impl AsRef<str>, number: Errno) -> Exit {
    session.out.error(text);
    exit(number)
}

fn exit(number: Errno) -> Exit {
    Exit(u8::try_from(number.raw_os_error()).unwrap_or(1))
}
