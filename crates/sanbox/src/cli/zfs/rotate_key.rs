//! `zfs rotate-key`: refused by its name, with the way that is there (docs/adr/0002-rotation-of-master-keys.md).

use engine::PropertyQuery;

use super::open;
use crate::cli::command::{Command, Word};
use crate::cli::{Outcome, Session};

/// The declaration of `zfs rotate-key`.
pub(super) const ROTATE_KEY: Command = Command {
    name: "rotate-key",
    summary: "say how a dataset gets a new master key",
    usage: "\trotate-key <filesystem|volume>\n",
    says_missing: false,
    words: &[Word::Dataset],
    ..Command::NEW
};

pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let operands = session.operands(arguments)?;
    let [name] = operands.as_slice() else {
        return Err(session.misuse("A dataset is needed"));
    };
    let (pool, _) = open(session, name, &PropertyQuery::None).await?;
    let why = match pool.key_info(name).await {
        Ok(Some(_)) => {
            "the format has one master key for a dataset, its snapshots and its clones, so that it cannot be replaced in place"
        }
        Ok(None) => return Err(session.fail(format!("'{name}' is not encrypted"))),
        Err(error) => return Err(session.fail(format!("cannot open '{name}': {error}"))),
    };
    session
        .out
        .error(format!("cannot rotate the master key of '{name}': {why}"));
    Err(session.fail(
        "a copy has a new one: 'zfs send -R' (without -w) into a new encrypted dataset, then rename it; 'zfs change-key' replaces what wraps it",
    ))
}
