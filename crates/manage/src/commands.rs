//! Which commands may be given over the API, and by whom.
//!
//! A command that is not named here is refused: those that read input or write binary output, those that never end, and those
//! that come after this table.

use crate::accounts::Role;

/// Commands that only look.
const LOOKS: &[(&str, &[&str])] = &[
    (
        "zfs",
        &[
            "get",
            "groupspace",
            "holds",
            "list",
            "projectspace",
            "userspace",
            "version",
        ],
    ),
    (
        "zpool",
        &[
            "events", "get", "history", "iostat", "list", "status", "version",
        ],
    ),
    ("sanbox", &["doctor"]),
];

/// Commands that change datasets, snapshots and shares, or look after the disks.
const OPERATIONS: &[(&str, &[&str])] = &[
    (
        "zfs",
        &[
            "bookmark", "clone", "create", "destroy", "diff", "hold", "inherit", "mount",
            "promote", "release", "rename", "rollback", "set", "share", "snap", "snapshot",
            "unmount", "unshare",
        ],
    ),
    ("zpool", &["clear", "scrub", "trim"]),
    ("sanbox", &["target"]),
];

/// All other commands that can be given.
const ADMINISTRATION: &[(&str, &[&str])] = &[
    ("zfs", &["allow", "unallow", "upgrade"]),
    (
        "zpool",
        &[
            "add",
            "attach",
            "checkpoint",
            "create",
            "destroy",
            "detach",
            "export",
            "import",
            "initialize",
            "labelclear",
            "offline",
            "online",
            "reguid",
            "remove",
            "reopen",
            "replace",
            "resilver",
            "set",
            "split",
            "sync",
            "upgrade",
            "wait",
        ],
    ),
    (
        "sanbox",
        &["itadm", "ls", "mkdir", "rm", "sbdadm", "stmfadm", "tune"],
    ),
];

/// Properties that act on the machine rather than on the data: a mount point may hide a directory of the system, and files of a dataset
/// may be programs that run as root.
const OF_THE_MACHINE: &[&str] = &["devices=", "exec=", "mountpoint=", "setuid="];

/// Returns the role that a command needs; none when it cannot be given over the API.
#[must_use]
pub fn role_needed(tool: &str, arguments: &[String]) -> Option<Role> {
    let command = arguments.first()?.as_str();
    let names = |table: &[(&str, &[&str])]| {
        let mut tools = table.iter();
        tools.any(|(known, commands)| *known == tool && commands.contains(&command))
    };
    if names(LOOKS) {
        // 'zpool events -c' forgets the events.
        let clears = command == "events" && arguments.iter().any(|word| word.starts_with("-c"));
        return Some(if clears { Role::Owner } else { Role::Viewer });
    }
    if names(OPERATIONS) {
        let sets = |word: &String| OF_THE_MACHINE.iter().any(|name| word.contains(name));
        // 'zfs mount -o suid' is 'setuid=on' until the file system is unmounted.
        let mounts =
            |word: &String| command == "mount" && word.starts_with('-') && word.contains('o');
        let machine = arguments.iter().any(|word| sets(word) || mounts(word));
        return Some(if machine { Role::Owner } else { Role::Operator });
    }
    names(ADMINISTRATION).then_some(Role::Owner)
}

/// Whether a command may change anything, as far as its name tells.
#[must_use]
pub fn is_change(tool: &str, arguments: &[String]) -> bool {
    // Of COMSTAR's tools those that list are told by their names.
    let lists = arguments.iter().take(2).any(|word| {
        matches!(word.as_str(), "list" | "show" | "groups" | "sessions")
            || word.starts_with("list-")
    });
    match tool {
        "zfs" if arguments.first().is_some_and(|word| word == "diff") => false,
        "sanbox" if lists => false,
        _ => match role_needed(tool, arguments) {
            Some(Role::Viewer) => false,
            Some(_) => true,
            // What comes by the control socket and cannot be given here.
            None => matches!(
                arguments.first().map(String::as_str),
                Some("put" | "receive" | "recv")
            ),
        },
    }
}

/// Returns a command line as it is shown and kept: quoted for a shell, without secrets.
#[must_use]
pub fn line(tool: &str, arguments: &[String]) -> String {
    let mut line = tool.to_owned();
    let named: Vec<_> = arguments.iter().take(2).map(String::as_str).collect();
    let has_secret = tool == "sanbox" && matches!(named[..], ["target", "chap" | "discovery"]);
    for (index, argument) in arguments.iter().enumerate() {
        line.push(' ');
        if has_secret && index >= 2 {
            line.push_str(&without_secret(argument));
        } else {
            quote(&mut line, argument);
        }
    }
    line
}

/// What is shown of a word behind a command that takes secrets: names of options and of targets, which are no secrets anywhere.
fn without_secret(word: &str) -> String {
    match word.split_once('=') {
        Some((option, _)) if option.starts_with("--") => format!("{option}=***"),
        None if word.starts_with("--") || word.starts_with("iqn.") => word.to_owned(),
        _ => "***".to_owned(),
    }
}

fn quote(line: &mut String, word: &str) {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@#%=,+^".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        line.push_str(word);
    } else {
        line.push('\'');
        line.push_str(&word.replace('\'', "'\\''"));
        line.push('\'');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn commands_need_roles() {
        for (tool, arguments, role, change) in [
            ("zpool", "status -v tank", Some(Role::Viewer), false),
            ("zpool", "events -c", Some(Role::Owner), true),
            ("zfs", "snapshot tank@a", Some(Role::Operator), true),
            ("zfs", "set quota=1G tank", Some(Role::Operator), true),
            ("zfs", "set mountpoint=/etc tank", Some(Role::Owner), true),
            ("zfs", "create -o setuid=on tank/x", Some(Role::Owner), true),
            ("zfs", "mount tank/x", Some(Role::Operator), true),
            ("zfs", "mount -o suid tank/x", Some(Role::Owner), true),
            ("zfs", "mount -vosuid tank/x", Some(Role::Owner), true),
            ("zfs", "allow ann create tank", Some(Role::Owner), true),
            ("zpool", "create tank /dev/sda", Some(Role::Owner), true),
            ("zfs", "send tank@a", None, false),
            ("zfs", "receive tank", None, true),
            ("sanbox", "serve", None, false),
            ("sanbox", "mount tank /mnt", None, false),
            ("sanbox", "target list", Some(Role::Operator), false),
            ("sanbox", "target create iqn.x", Some(Role::Operator), true),
            ("sanbox", "tune", Some(Role::Owner), true),
            ("sh", "-c true", None, false),
            ("zfs", "", None, false),
        ] {
            let arguments = words(arguments);
            assert_eq!(role_needed(tool, &arguments), role, "{tool} {arguments:?}");
            assert_eq!(is_change(tool, &arguments), change, "{tool} {arguments:?}");
        }
    }

    #[test]
    fn lines_can_be_pasted_and_hold_no_secret() {
        let arguments = ["snapshot".to_owned(), "tank/a b@it's".to_owned()];
        assert_eq!(line("zfs", &arguments), "zfs snapshot 'tank/a b@it'\\''s'");
        for (words_given, shown) in [
            (
                "target chap iqn.x user topsecret",
                "sanbox target chap iqn.x *** ***",
            ),
            (
                "target chap --secret=topsecret iqn.x",
                "sanbox target chap --secret=*** iqn.x",
            ),
            (
                "target discovery --user a --secret topsecret",
                "sanbox target discovery --user *** --secret ***",
            ),
        ] {
            assert_eq!(line("sanbox", &words(words_given)), shown);
        }
    }
}
