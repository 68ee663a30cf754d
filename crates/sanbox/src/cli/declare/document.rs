//! The declarations of the commands that write completion scripts and manual pages.

use super::super::command::Command;

pub(super) const COMPLETION: Command = Command {
    name: "completion",
    summary: "print a completion script",
    operands: "bash|zsh|fish",
    flags: &[],
    text: &[],
    examples: &[(
        "sanbox completion bash >/etc/bash_completion.d/sanbox",
        "for sanbox, zpool and zfs",
    )],
    ..Command::NEW
};

pub(super) const MAN: Command = Command {
    name: "man",
    summary: "write the manual pages into a directory",
    operands: "DIR",
    flags: &[],
    text: &[],
    examples: &[("sanbox man /usr/local/share/man/man8", "then: man sanbox")],
    ..Command::NEW
};
