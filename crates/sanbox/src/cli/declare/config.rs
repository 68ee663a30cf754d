//! The declarations of `sanbox config` and `sanbox console`.

use super::super::command::Command;
use super::super::flag::long;

pub(crate) const CONFIG: Command = Command {
    name: "config",
    summary: "the settings of the appliance as one file",
    operands: "export | diff FILE | import FILE",
    flags: &[long(
        "dry-run",
        None,
        "import: only say what would be changed",
    )],
    text: &[
        "export: writes sanbox.toml with the limits that are in force, users with their roles, iSCSI targets and groups, jobs of replication, and \
         of datasets the properties sharenfs, sharesmb, org.sanbox:lun, org.sanbox:nbd and org.sanbox:policy where they are set. Passwords, \
         keys of scripts and secrets of initiators are not in it; addresses of webhooks are.",
        "diff: what is here alone is shown with '-', what is in the file alone with '+'; the exit code is 1 when there is any difference.",
        "import: what the file names becomes as it says; what it does not name stays, so nothing is destroyed. Limits, users, targets, jobs and \
         properties are changed at once, sanbox.toml from the next start on (the one before is kept as sanbox.toml.before). Users who are new \
         have no password until 'sanbox user passwd' gives them one, and a secret of initiators that is not known here is one that nobody knows, \
         until 'sanbox target chap' gives it. Datasets that are not there are left out, and named.",
    ],
    examples: &[
        (
            "sanbox config export > box.toml",
            "what to keep beside the backups",
        ),
        (
            "sanbox config import --dry-run box.toml",
            "what would be changed on this appliance",
        ),
    ],
    ..Command::NEW
};

pub(crate) const CONSOLE: Command = Command {
    name: "console",
    summary: "a menu in text, for a machine without a browser",
    operands: "",
    flags: &[],
    text: &[
        "Shows the state of the pools, alerts, addresses and shares, gives a user a new password, shares a file system by NFS, and opens a shell. \
         Each choice shows the command that does the same.",
    ],
    ..Command::NEW
};
