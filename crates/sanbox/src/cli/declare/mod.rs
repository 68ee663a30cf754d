//! The declarations of our own commands, by subject.

mod access;
mod check;
mod config;
mod document;
mod files;
mod peer;
mod replication;
mod serve;
mod share;
mod snapshot;
mod watch;

use super::command::Command;
use super::flag::{Flag, both, long};

pub(crate) use check::ZINJECT;

/// Options before the command's name.
pub(crate) const GLOBAL: &[Flag] = &[
    long(
        "state",
        Some("DIR"),
        "state directory: pool cache, configuration and control socket (also SANBOX_STATE)",
    ),
    both('V', "version", None, "print the version"),
    both('h', "help", None, "print this help"),
];

/// All commands of our own, in the order that the help shows.
pub(crate) const COMMANDS: &[Command] = &[
    serve::SERVE,
    serve::ZPOOL,
    serve::ZFS,
    files::LS,
    files::CAT,
    files::GET,
    files::PUT,
    files::RESTORE,
    files::RM,
    files::MKDIR,
    files::MOUNT,
    files::MOUNT_HELPER,
    files::ACCESS,
    files::ACL,
    watch::ARCSTAT,
    watch::ZILSTAT,
    check::ESTIMATE,
    check::SUMS,
    watch::NFSSTAT,
    watch::TOP,
    check::ZSTREAM,
    ZINJECT,
    check::LAB,
    serve::TUNE,
    share::TARGET,
    share::STMFADM,
    share::SBDADM,
    share::ITADM,
    serve::LOG,
    access::USER,
    access::GROUP,
    access::SSH_KEYS,
    access::AUTHORIZED_KEYS,
    access::SSH_SESSION,
    access::JOB,
    access::UNDO,
    snapshot::POLICY,
    snapshot::IMMUTABLE,
    snapshot::SNAPSHOTS,
    snapshot::TRASH,
    replication::REPLICATION,
    peer::PEER,
    config::CONFIG,
    config::CONSOLE,
    config::CERTIFICATE,
    share::SMB,
    watch::ALERT,
    watch::REPORT,
    watch::CHECKS,
    watch::WHY,
    watch::DOCTOR,
    watch::SUPPORT,
    document::COMPLETION,
    document::MAN,
];

/// The whole help text.
pub(crate) fn help() -> String {
    let mut text = "usage: sanbox [--state DIR] COMMAND ...\n\nA storage appliance whose pools are ZFS pools.\n\n".to_owned();
    for command in COMMANDS {
        text.push_str(&format!("  {:<12} {}\n", command.name, command.summary));
    }
    text.push('\n');
    for flag in GLOBAL {
        text.push_str(&format!("  {:<18} {}\n", flag.spelled(), flag.help));
    }
    text.push_str("\nCalled through links named zpool and zfs, the program is these commands.\n");
    text
}
