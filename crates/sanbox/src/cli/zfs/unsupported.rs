//! Commands that are declared, because tools look for them in the usage, and not implemented.

use crate::cli::command::{Command, Word};

/// The declaration of `zfs zone`.
pub(super) const ZONE: Command = Command {
    name: "zone",
    summary: "attach a dataset to a user namespace",
    usage: "\tzone <nsfile> <filesystem>\n",
    says_missing: false,
    words: &[Word::Text, Word::Dataset],
    ..Command::NEW
};

/// The declaration of `zfs unzone`.
pub(super) const UNZONE: Command = Command {
    name: "unzone",
    summary: "detach a dataset from a user namespace",
    usage: "\tunzone <nsfile> <filesystem>\n",
    says_missing: false,
    words: &[Word::Text, Word::Dataset],
    ..Command::NEW
};
