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
    ("sanbox", &["doctor", "snapshots", "why"]),
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
    ("sanbox", &["policy", "restore", "target"]),
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

/// Commands of `zfs` that a key for some datasets may give, with the letters of their options that take a value, and how many operands
/// come before the names of datasets.
const WITHIN: &[(&str, &str, usize)] = &[
    ("bookmark", "", 0),
    ("clone", "o", 0),
    ("create", "obV", 0),
    ("destroy", "", 0),
    ("get", "dost", 1),
    ("groupspace", "oSst", 0),
    ("hold", "", 1),
    ("holds", "", 0),
    ("inherit", "", 1),
    ("list", "dosSt", 0),
    ("projectspace", "oSst", 0),
    ("release", "", 1),
    ("rename", "", 0),
    ("rollback", "", 0),
    ("set", "", 0),
    ("snap", "o", 0),
    ("snapshot", "o", 0),
    ("userspace", "oSst", 0),
];

/// Whether a command names datasets that `reached` holds for and no others, and touches no others by itself.
#[must_use]
pub fn stays_within(tool: &str, arguments: &[String], reached: impl Fn(&str) -> bool) -> bool {
    let Some((command, words)) = arguments.split_first().filter(|_| tool == "zfs") else {
        return false;
    };
    let known = WITHIN.iter().find(|(known, ..)| known == command);
    let Some((_, valued, before)) = known else {
        return false;
    };
    let mut operands = Vec::new();
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let letters = match word.strip_prefix('-') {
            // 'zfs rename' and others take what follows as names.
            Some("-") => {
                operands.extend(words.by_ref());
                break;
            }
            Some(letters) if !letters.is_empty() => letters,
            _ => {
                operands.push(word);
                continue;
            }
        };
        if letters.starts_with('-') {
            continue;
        }
        let at = letters.find(|letter| valued.contains(letter));
        let flags = &letters[..at.unwrap_or(letters.len())];
        // 'zfs destroy -R' and 'zfs rollback -R' destroy clones, wherever they are.
        if flags.contains('R') {
            return false;
        }
        if at.is_some_and(|at| at + 1 == letters.len()) {
            words.next();
        }
    }
    let settings = |word: &&str| command == "set" && word.contains('=');
    let mut names = operands
        .into_iter()
        .skip(*before)
        .filter(|word| !settings(word))
        .peekable();
    // Without a name some of them list everything.
    names.peek().is_some() && names.all(|name| name.starts_with('@') || reached(name))
}

/// Whether a command may change anything, as far as its name tells.
#[must_use]
pub fn is_change(tool: &str, arguments: &[String]) -> bool {
    // Of COMSTAR's tools those that list are told by their names.
    let lists = arguments.iter().take(2).any(|word| {
        matches!(
            word.as_str(),
            "groups" | "list" | "preview" | "sessions" | "show"
        ) || word.starts_with("list-")
    });
    match tool {
        "zfs" if arguments.first().is_some_and(|word| word == "diff") => false,
        "zfs" if is_dry_run(arguments) => false,
        "sanbox" if lists || is_look(arguments) => false,
        _ => match role_needed(tool, arguments) {
            Some(Role::Viewer) => false,
            Some(_) => true,
            // What comes by the control socket and cannot be given here.
            None => matches!(
                arguments.first().map(String::as_str),
                Some("alert" | "config" | "put" | "receive" | "recv" | "user")
            ),
        },
    }
}

/// Whether a command of our own that has parts is one of those that only look.
fn is_look(arguments: &[String]) -> bool {
    let mut words = arguments.iter().map(String::as_str);
    let (first, second) = (words.next(), words.next());
    matches!(
        (first, second),
        (Some("config"), Some("export" | "diff")) | (Some("user"), Some("key"))
    ) && (first != Some("user") || words.next() == Some("list"))
}

/// Whether a `zfs destroy` only says what it would do.
fn is_dry_run(arguments: &[String]) -> bool {
    let Some((command, rest)) = arguments.split_first() else {
        return false;
    };
    let options = rest.iter().take_while(|word| word.starts_with('-'));
    command == "destroy" && options.into_iter().any(|word| word.contains('n'))
}

/// Returns a command line as it is shown and kept: quoted for a shell, without secrets.
#[must_use]
pub fn line(tool: &str, arguments: &[String]) -> String {
    let mut line = tool.to_owned();
    let has_secret = takes_secret(tool, arguments);
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

/// Whether a command takes a secret among its words.
#[must_use]
pub fn takes_secret(tool: &str, arguments: &[String]) -> bool {
    let named: Vec<_> = arguments.iter().take(2).map(String::as_str).collect();
    tool == "sanbox" && matches!(named[..], ["target", "chap" | "discovery"])
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
            ("sanbox", "policy show", Some(Role::Operator), false),
            (
                "sanbox",
                "policy preview tank daily=7",
                Some(Role::Operator),
                false,
            ),
            (
                "sanbox",
                "policy set tank daily=7",
                Some(Role::Operator),
                true,
            ),
            ("sanbox", "snapshots why tank", Some(Role::Viewer), false),
            ("sanbox", "tune", Some(Role::Owner), true),
            ("sanbox", "user add ann", None, true),
            ("sanbox", "user list", None, false),
            ("sanbox", "user key create ci", None, true),
            ("sanbox", "user key list", None, false),
            ("sanbox", "config export", None, false),
            ("sanbox", "config import FILE", None, true),
            ("sh", "-c true", None, false),
            ("zfs", "", None, false),
            ("zfs", "destroy -nvp tank@a,b", Some(Role::Operator), false),
            ("zfs", "destroy -r tank/new", Some(Role::Operator), true),
            ("sanbox", "restore tank@a:/x", Some(Role::Operator), true),
        ] {
            let arguments = words(arguments);
            assert_eq!(role_needed(tool, &arguments), role, "{tool} {arguments:?}");
            assert_eq!(is_change(tool, &arguments), change, "{tool} {arguments:?}");
        }
    }

    #[test]
    fn keys_for_datasets_reach_no_others() {
        let reached = |name: &str| {
            name == "tank/ci" || name.starts_with("tank/ci/") || name.starts_with("tank/ci@")
        };
        for (line, within) in [
            ("list tank/ci", true),
            ("list", false),
            ("list -Ho name tank/ci", true),
            ("list -o tank/other", false),
            ("list -t snapshot -r tank/ci", true),
            ("get -H used tank/ci tank", false),
            ("get used tank/ci", true),
            ("get tank/ci", false),
            ("snapshot -r tank/ci@a tank/ci/b@a", true),
            ("snapshot tank/ci@a tank/other@a", false),
            ("destroy -r tank/ci@a", true),
            ("destroy -R tank/ci@a", false),
            ("destroy -rR tank/ci@a", false),
            ("rollback -R tank/ci@a", false),
            ("create -s -V 1G tank/ci/v", true),
            ("create -s tank/other", false),
            ("create -V tank/ci/v tank/other", false),
            ("clone tank/other@a tank/ci/x", false),
            ("set quota=1G tank/ci", true),
            ("set quota=1G", false),
            ("hold tag tank/ci@a", true),
            ("rename tank/ci@a @b", true),
            ("rename tank/ci/a tank/a", false),
            ("rename -- tank/ci/a -x", false),
            ("promote tank/ci", false),
            ("mount -a", false),
        ] {
            assert_eq!(stays_within("zfs", &words(line), reached), within, "{line}");
        }
        assert!(!stays_within("zpool", &words("list tank/ci"), reached));
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
