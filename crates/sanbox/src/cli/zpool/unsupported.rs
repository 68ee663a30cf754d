//! Commands that are declared, because tools look for them in the usage, and not implemented.

use crate::cli::command::{Command, Word};

/// The declaration of `zpool prefetch`.
pub(super) const PREFETCH: Command = Command {
    name: "prefetch",
    summary: "load tables of a pool into memory",
    usage: "\tprefetch -t <type> [<type opts>] <pool>\n\
         \t    -t ddt <pool>\n",
    says_missing: false,
    words: &[Word::Pool],
    ..Command::NEW
};

/// The declaration of `zpool ddtprune`.
pub(super) const DDTPRUNE: Command = Command {
    name: "ddtprune",
    summary: "remove unique entries from the deduplication tables",
    usage: "\tddtprune -d|-p <amount> <pool>\n",
    says_missing: false,
    words: &[Word::Pool],
    ..Command::NEW
};
