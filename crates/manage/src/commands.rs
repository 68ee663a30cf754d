//! Which commands may be given by whom: over the API by role, by users of the machine for what was delegated to them.
//!
//! [`RULES`] has a row for each command that the program declares, and no others: a test beside the declarations compares both. A
//! command that is not named here is refused.

use crate::accounts::Role;

/// A tool and what follows its name.
pub type GivenWords = (String, Vec<String>);

/// Whether giving a command may change anything, as far as its name tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It only shows something.
    Shows,
    /// It may change something.
    Changes,
}

/// Which users of the machine may give a command without a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delegation {
    /// None.
    Refused,
    /// All of them: what is changed is checked dataset by dataset, against what was delegated.
    Checked,
}

/// Commands of one tool that are alike in who may give them.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// `zfs`, `zpool` or `sanbox`.
    pub tool: &'static str,
    /// The role that gives them over the API; none for commands that read input, write binary output, never end, or run in the
    /// process of the client.
    pub role: Option<Role>,
    /// What giving them may do.
    pub effect: Effect,
    /// Users without a role.
    pub delegation: Delegation,
    /// Names of commands, aliases among them.
    pub names: &'static [&'static str],
}

const fn rule(
    tool: &'static str,
    role: Option<Role>,
    effect: Effect,
    delegation: Delegation,
    names: &'static [&'static str],
) -> Rule {
    Rule {
        tool,
        role,
        effect,
        delegation,
        names,
    }
}

const VIEWER: Option<Role> = Some(Role::Viewer);
const OPERATOR: Option<Role> = Some(Role::Operator);
const OWNER: Option<Role> = Some(Role::Owner);

/// All commands.
pub const RULES: &[Rule] = {
    use Delegation::{Checked, Refused};
    use Effect::{Changes, Shows};
    &[
        rule(
            "zfs",
            VIEWER,
            Shows,
            Checked,
            &[
                "get",
                "groupspace",
                "holds",
                "list",
                "projectspace",
                "userspace",
            ],
        ),
        rule("zfs", VIEWER, Shows, Refused, &["version"]),
        rule("zfs", OPERATOR, Shows, Checked, &["diff"]),
        rule(
            "zfs",
            OPERATOR,
            Changes,
            Checked,
            &[
                "bookmark", "clone", "create", "destroy", "hold", "inherit", "promote", "release",
                "rename", "rollback", "set", "snap", "snapshot",
            ],
        ),
        // What a program can do, operators can do by other commands.
        rule(
            "zfs",
            OPERATOR,
            Changes,
            Refused,
            &["mount", "program", "share", "unmount", "unshare"],
        ),
        rule("zfs", OWNER, Changes, Checked, &["allow", "unallow"]),
        rule(
            "zfs",
            OPERATOR,
            Changes,
            Refused,
            &["load-key", "project", "redact", "rewrite", "unload-key"],
        ),
        rule(
            "zfs",
            OWNER,
            Changes,
            Refused,
            &["change-key", "rotate-key", "upgrade"],
        ),
        rule("zfs", None, Changes, Refused, &["key"]),
        rule("zfs", None, Changes, Checked, &["receive", "recv"]),
        rule("zfs", None, Shows, Checked, &["send"]),
        rule(
            "zfs",
            None,
            Shows,
            Refused,
            &["umount", "unzone", "wait", "zone"],
        ),
        rule(
            "zpool",
            VIEWER,
            Shows,
            Checked,
            &["get", "iostat", "list", "status"],
        ),
        rule(
            "zpool",
            VIEWER,
            Shows,
            Refused,
            &["events", "history", "version"],
        ),
        rule(
            "zpool",
            OPERATOR,
            Changes,
            Refused,
            &["clear", "scrub", "trim"],
        ),
        rule(
            "zpool",
            OWNER,
            Changes,
            Refused,
            &[
                "add",
                "attach",
                "checkpoint",
                "create",
                "ddtprune",
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
        rule("zpool", OPERATOR, Shows, Refused, &["prefetch"]),
        rule(
            "sanbox",
            VIEWER,
            Shows,
            Refused,
            &["doctor", "estimate", "snapshots", "why"],
        ),
        rule(
            "sanbox",
            OPERATOR,
            Changes,
            Refused,
            &[
                "immutable",
                "policy",
                "replication",
                "restore",
                "target",
                "trash",
                "undo",
            ],
        ),
        rule("sanbox", OWNER, Shows, Refused, &["access"]),
        rule(
            "sanbox",
            OWNER,
            Changes,
            Refused,
            &[
                "acl",
                "alert",
                "certificate",
                "checks",
                "itadm",
                "log",
                "ls",
                "mkdir",
                "peer",
                "report",
                "rm",
                "sbdadm",
                "ssh-keys",
                "support",
                "stmfadm",
                "tune",
                "zinject",
            ],
        ),
        rule(
            "sanbox",
            None,
            Changes,
            Refused,
            &["config", "group", "put", "user"],
        ),
        rule(
            "sanbox",
            None,
            Shows,
            Refused,
            &[
                "arcstat",
                "authorized-keys",
                "cat",
                "completion",
                "console",
                "get",
                "job",
                "lab",
                "man",
                "mount",
                "mount.zfs",
                "nfsstat",
                "serve",
                "smb",
                "ssh-session",
                "sums",
                "top",
                "zfs",
                "zilstat",
                "zpool",
                "zstream",
            ],
        ),
    ]
};

/// Returns the rule of a command, by its tool and its first word.
fn rule_of(tool: &str, arguments: &[String]) -> Option<&'static Rule> {
    let command = arguments.first()?.as_str();
    let mut rules = RULES.iter();
    rules.find(|rule| rule.tool == tool && rule.names.contains(&command))
}

/// Properties that act on the machine rather than on the data: a mount point may hide a directory of the system, files of a dataset may be
/// programs that run as root, and a key may be looked for in any file.
const OF_THE_MACHINE: &[&str] = &[
    "devices=",
    "exec=",
    "keylocation=",
    "mountpoint=",
    "setuid=",
];

/// Parts of `sanbox replication` that operators give. The others choose what is run as root to reach a host, or give data up.
const REPLICATION_OF_OPERATORS: &[&str] = &[
    "cancel",
    "list",
    "pause",
    "reports",
    "reset",
    "resume",
    "run",
    "show",
    "test",
    "test-restore",
];

/// Returns the role that a command needs; none when it cannot be given over the API.
#[must_use]
pub fn role_needed(tool: &str, arguments: &[String]) -> Option<Role> {
    let command = arguments.first()?.as_str();
    let role = rule_of(tool, arguments)?.role?;
    // A file of this machine would be written as root. 'to' may be abbreviated.
    if command == "report" && arguments.iter().any(|word| word.starts_with("--t")) {
        return None;
    }
    let raised = match role {
        // 'zpool events -c' forgets the events.
        Role::Viewer => command == "events" && arguments.iter().any(|word| word.starts_with("-c")),
        Role::Operator if command == "replication" => {
            let part = arguments.get(1).map_or("", String::as_str);
            !REPLICATION_OF_OPERATORS.contains(&part)
        }
        Role::Operator => arguments.iter().any(|word| {
            let sets = OF_THE_MACHINE.iter().any(|name| word.contains(name));
            let has_flag = |letter| word.starts_with('-') && word.contains(letter);
            // 'zfs mount -o suid' is 'setuid=on' until the file system is unmounted.
            sets || command == "mount" && has_flag('o')
                // A file of this machine, or what it can reach.
                || command == "load-key" && has_flag('L')
        }),
        Role::Owner => false,
    };
    Some(if raised { Role::Owner } else { role })
}

/// Returns the role that a command needs at the control socket, which carries streams, too: as [`role_needed`]; an operator may have all data
/// read, and an owner received with whatever properties it has.
#[must_use]
pub fn role_at_socket(tool: &str, arguments: &[String]) -> Option<Role> {
    let command = arguments.first()?.as_str();
    match (tool, command) {
        ("zfs", "send") => OPERATOR,
        ("zfs", "receive" | "recv") => OWNER,
        _ => role_needed(tool, arguments),
    }
}

/// Whether a user of the machine without a role may give a command at all; what it changes is then checked dataset by dataset.
#[must_use]
pub fn is_delegable(tool: &str, arguments: &[String]) -> bool {
    rule_of(tool, arguments).is_some_and(|rule| rule.delegation == Delegation::Checked)
}

/// Commands of `zfs` that a key for some datasets may give, with the letters of their options that take a value, and how many operands
/// come before the names of datasets.
pub const WITHIN: &[(&str, &str, usize)] = &[
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
            "groups" | "history" | "list" | "preview" | "sessions" | "show"
        ) || word.starts_with("list-")
    });
    match tool {
        "zfs" if is_dry_run(arguments) => false,
        "sanbox" if lists || is_look(arguments) => false,
        _ => rule_of(tool, arguments).is_some_and(|rule| {
            // 'zpool events -c'.
            let raised = rule.role != role_needed(tool, arguments);
            rule.effect == Effect::Changes || rule.effect == Effect::Shows && raised
        }),
    }
}

/// Whether a command of our own that has parts is one of those that only look.
fn is_look(arguments: &[String]) -> bool {
    let words: Vec<&str> = arguments.iter().take(3).map(String::as_str).collect();
    // Without further words they list.
    matches!(
        words[..],
        ["user", "key", "list"] | ["zinject" | "certificate" | "checks" | "trash" | "report"]
    ) || words.first() == Some(&"undo") && has_letter(&arguments[1..], 'n')
}

/// Whether one of the words is a group of short options with this letter.
fn has_letter(words: &[String], letter: char) -> bool {
    let mut groups = words.iter().filter_map(|word| word.strip_prefix('-'));
    groups.any(|letters| !letters.starts_with('-') && letters.contains(letter))
}

/// Returns the number of the job that a command undoes, if it is one that undoes.
#[must_use]
pub fn undoes(tool: &str, arguments: &[String]) -> Option<u64> {
    let (command, rest) = arguments.split_first()?;
    let mut numbers = rest.iter().filter_map(|word| word.parse().ok());
    numbers
        .next()
        .filter(|_| tool == "sanbox" && command == "undo")
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
        if has_secret && (index >= 2 || argument.starts_with('-')) {
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
    let mut words = arguments.iter().map(String::as_str);
    let first = words.next();
    // Options may stand before the verb.
    let has = |known: &dyn Fn(&str) -> bool| words.clone().any(known);
    tool == "sanbox"
        && match first {
            Some("target") => has(&|word| matches!(word, "chap" | "discovery")),
            Some("peer") => has(&|word| word == "add"),
            // The address of a web service may be all that it asks for.
            Some("alert") => has(&|word| word == "channel") && has(&|word| word.contains("://")),
            _ => false,
        }
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
    } else if word.chars().any(is_unseen) {
        line.push_str(&marked(word));
    } else {
        line.push_str(&quoted(word));
    }
}

/// Whether a letter is not seen, or turns around what stands behind it (Unicode's bidirectional controls): a line with it looks like
/// another one.
fn is_unseen(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2060}' | '\u{feff}'
        )
        || matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns a word in `$'...'`, as bash, ksh and zsh read it, with marks in place of letters that are not seen.
fn marked(word: &str) -> String {
    let letter = |letter: char| match letter {
        '\n' => "\\n".to_owned(),
        '\\' | '\'' => format!("\\{letter}"),
        _ if is_unseen(letter) => format!("\\u{:04x}", u32::from(letter)),
        _ => letter.to_string(),
    };
    format!("$'{}'", word.chars().map(letter).collect::<String>())
}

/// Returns a word as a shell reads it whatever it holds: in single quotes.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
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
            ("sanbox", "replication list", Some(Role::Operator), false),
            ("sanbox", "replication run vm", Some(Role::Operator), true),
            ("sanbox", "replication failover vm", Some(Role::Owner), true),
            (
                "sanbox",
                "replication --ssh=x create vm",
                Some(Role::Owner),
                true,
            ),
            ("sanbox", "snapshots why tank", Some(Role::Viewer), false),
            (
                "sanbox",
                "immutable --for 30d tank@a",
                Some(Role::Operator),
                true,
            ),
            ("sanbox", "checks", Some(Role::Owner), false),
            ("sanbox", "report", Some(Role::Owner), false),
            ("sanbox", "report --daily --to /etc/x", None, true),
            ("sanbox", "report --t=/etc/x", None, true),
            ("sanbox", "checks off clock", Some(Role::Owner), true),
            ("sanbox", "trash", Some(Role::Operator), false),
            ("sanbox", "trash empty -a", Some(Role::Operator), true),
            ("sanbox", "undo 17", Some(Role::Operator), true),
            ("sanbox", "undo -n 17", Some(Role::Operator), false),
            ("sanbox", "tune", Some(Role::Owner), true),
            ("sanbox", "log nfs=debug", Some(Role::Owner), true),
            ("sanbox", "config export", None, true),
            ("sanbox", "user add ann", None, true),
            ("sanbox", "user list", None, false),
            ("sanbox", "user key create ci", None, true),
            ("sanbox", "user key list", None, false),
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
    fn users_without_a_role_give_what_is_checked_by_dataset() {
        for (tool, arguments, may) in [
            ("zfs", "snapshot tank/a@b", true),
            ("zfs", "snap tank/a@b", true),
            ("zfs", "allow ann create tank", true),
            ("zfs", "mount tank/a", false),
            ("zfs", "send tank/a@b", true),
            ("zfs", "receive -u tank/a", true),
            ("zfs", "key tank/a", false),
            ("zfs", "version", false),
            ("zpool", "list", true),
            ("zpool", "history", false),
            ("zpool", "destroy tank", false),
            ("sanbox", "why", false),
            ("zfs", "", false),
        ] {
            let arguments = words(arguments);
            assert_eq!(is_delegable(tool, &arguments), may, "{tool} {arguments:?}");
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
        // Shown as it is, the name would look like that of a picture, and the rest of the line would be turned around.
        let turned = ["rm", "tank/fs:/it's \\\u{202e}gpj.exe\n"].map(str::to_owned);
        assert_eq!(
            line("sanbox", &turned),
            "sanbox rm $'tank/fs:/it\\'s \\\\\\u202egpj.exe\\n'"
        );
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
                "target --secret topsecret chap iqn.x",
                "sanbox target --secret *** *** iqn.x",
            ),
            (
                "target --secret=topsecret chap iqn.x",
                "sanbox target --secret=*** *** iqn.x",
            ),
            (
                "alert channel add webhook https://hooks.example.org/TOKEN --form slack",
                "sanbox alert channel *** *** *** --form ***",
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
