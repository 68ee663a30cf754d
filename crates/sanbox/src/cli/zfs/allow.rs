//! `zfs allow` and `zfs unallow`.
//!
//! OpenZFS: cmd/zfs/zfs_main.c, `zfs_do_allow_unallow_impl` (grammar and output).

use std::collections::{BTreeMap, BTreeSet};

use engine::property::{Attribute, DatasetKind, PROPERTIES, Property};
use engine::{DatasetFilter, Grants, PropertyQuery};

use super::open;
use super::userspace::name_of;
use crate::cli::command::{Command, Word, options};
use crate::cli::out::Stream;
use crate::cli::{Exit, Outcome, Session};
use crate::names::{self, ids_of};

options! {
    AllowOption {
        Local = short('l', "for the dataset itself"),
        Descendant = short('d', "for what lies below"),
        User = short('u', "the names are users"),
        Group = short('g', "the names are groups"),
        Everyone = short('e', "for everyone"),
        Create = short('c', "for the creator of what is made below"),
        Set = short('s', "define a set of permissions"),
        Help = short('h', "print the permissions there are"),
    }
}

/// The declaration of `zfs allow`.
pub(super) const ALLOW: Command = Command {
    name: "allow",
    summary: "show or grant permissions",
    usage: "\tallow <filesystem|volume>\n\
         \tallow [-ldug] <\"everyone\"|user|group>[,...] <perm|@setname>[,...]\n\
         \t    <filesystem|volume>\n\
         \tallow [-ld] -e <perm|@setname>[,...] <filesystem|volume>\n\
         \tallow -c <perm|@setname>[,...] <filesystem|volume>\n\
         \tallow -s @setname <perm|@setname>[,...] <filesystem|volume>\n",
    flags: AllowOption::FLAGS,
    says_missing: false,
    words: &[Word::Text, Word::Text, Word::Dataset],
    ..Command::NEW
};

options! {
    UnallowOption {
        Local = short('l', "for the dataset itself"),
        Descendant = short('d', "for what lies below"),
        User = short('u', "the names are users"),
        Group = short('g', "the names are groups"),
        Everyone = short('e', "for everyone"),
        Create = short('c', "for the creator of what is made below"),
        Set = short('s', "define a set of permissions"),
        Recursive = short('r', "also what lies below"),
        Help = short('h', "print the permissions there are"),
    }
}

/// The declaration of `zfs unallow`.
pub(super) const UNALLOW: Command = Command {
    name: "unallow",
    summary: "take permissions back",
    usage: "\tunallow [-rldug] <\"everyone\"|user|group>[,...]\n\
         \t    [<perm|@setname>[,...]] <filesystem|volume>\n\
         \tunallow [-rld] -e [<perm|@setname>[,...]] <filesystem|volume>\n\
         \tunallow [-r] -c [<perm|@setname>[,...]] <filesystem|volume>\n\
         \tunallow [-r] -s @setname [<perm|@setname>[,...]] <filesystem|volume>\n",
    flags: UnallowOption::FLAGS,
    says_missing: false,
    words: &[Word::Text, Word::Text, Word::Dataset],
    ..Command::NEW
};

/// Permissions that are no properties: name, kind, remark.
const PERMISSIONS: &[(&str, &str, &str)] = &[
    (
        "allow",
        "subcommand",
        "Must also have the permission that is being\n\t\t\t\tallowed",
    ),
    (
        "clone",
        "subcommand",
        "Must also have the 'create' ability and 'mount'\n\t\t\t\tability in the origin file system",
    ),
    ("create", "subcommand", "Must also have the 'mount' ability"),
    (
        "destroy",
        "subcommand",
        "Must also have the 'mount' ability",
    ),
    (
        "diff",
        "subcommand",
        "Allows lookup of paths within a dataset;\n\t\t\t\tgiven an object number. Ordinary users need this\n\t\t\t\tin order to use zfs diff",
    ),
    (
        "hold",
        "subcommand",
        "Allows adding a user hold to a snapshot",
    ),
    ("mount", "subcommand", "Allows mount/umount of ZFS datasets"),
    (
        "promote",
        "subcommand",
        "Must also have the 'mount'\n\t\t\t\tand 'promote' ability in the origin file system",
    ),
    (
        "receive",
        "subcommand",
        "Must also have the 'mount' and 'create' ability",
    ),
    (
        "release",
        "subcommand",
        "Allows releasing a user hold which\n\t\t\t\tmight destroy the snapshot",
    ),
    (
        "rename",
        "subcommand",
        "Must also have the 'mount' and 'create'\n\t\t\t\tability in the new parent",
    ),
    ("rollback", "subcommand", ""),
    ("send", "subcommand", ""),
    (
        "share",
        "subcommand",
        "Allows sharing file systems over NFS or SMB\n\t\t\t\tprotocols",
    ),
    ("snapshot", "subcommand", ""),
    ("bookmark", "subcommand", ""),
    (
        "load-key",
        "subcommand",
        "Allows loading or unloading an encryption key",
    ),
    (
        "change-key",
        "subcommand",
        "Allows changing or adding an encryption key",
    ),
    (
        "groupquota",
        "other",
        "Allows accessing any groupquota@... property",
    ),
    (
        "groupused",
        "other",
        "Allows reading any groupused@... property",
    ),
    ("userprop", "other", "Allows changing any user property"),
    (
        "userquota",
        "other",
        "Allows accessing any userquota@... property",
    ),
    (
        "userused",
        "other",
        "Allows reading any userused@... property",
    ),
    (
        "userobjquota",
        "other",
        "Allows accessing any userobjquota@... property",
    ),
    (
        "userobjused",
        "other",
        "Allows reading any userobjused@... property",
    ),
    (
        "groupobjquota",
        "other",
        "Allows accessing any \n\t\t\t\tgroupobjquota@... property",
    ),
    (
        "groupobjused",
        "other",
        "Allows reading any groupobjused@... property",
    ),
    (
        "projectused",
        "other",
        "Allows reading any projectused@... property",
    ),
    (
        "projectquota",
        "other",
        "Allows accessing any projectquota@... property",
    ),
    (
        "projectobjused",
        "other",
        "Allows accessing any \n\t\t\t\tprojectobjused@... property",
    ),
    (
        "projectobjquota",
        "other",
        "Allows accessing any \n\t\t\t\tprojectobjquota@... property",
    ),
];

const OPTIONS: &[(&str, &str)] = &[
    ("-h", "show this help message and exit"),
    ("-l", "set permission locally"),
    ("-d", "set permission for descents"),
    ("-u", "set permission for user"),
    ("-g", "set permission for group"),
    ("-e", "set permission for everyone"),
    ("-c", "set create time permission"),
    ("-s", "define permission set"),
    ("-r", "remove permissions recursively"),
];

/// What the options say.
#[derive(Default)]
struct Options {
    local: bool,
    descendant: bool,
    user: bool,
    group: bool,
    everyone: bool,
    create: bool,
    set: bool,
    recursive: bool,
    help: bool,
}

/// The users, groups or set that a grant is for.
enum Grantee {
    Ids(Vec<(char, u64)>),
    Everyone,
    Creators,
    Set(String),
}

pub(super) async fn allow(session: &Session, arguments: &[String]) -> Outcome {
    let mut options = Options::default();
    let words = session.read_options(arguments, |_, option| {
        match option {
            AllowOption::Local => options.local = true,
            AllowOption::Descendant => options.descendant = true,
            AllowOption::User => options.user = true,
            AllowOption::Group => options.group = true,
            AllowOption::Everyone => options.everyone = true,
            AllowOption::Create => options.create = true,
            AllowOption::Set => options.set = true,
            AllowOption::Help => options.help = true,
        }
        Ok(())
    })?;
    grant(session, &options, &words, false).await
}

pub(super) async fn unallow(session: &Session, arguments: &[String]) -> Outcome {
    let mut options = Options::default();
    let words = session.read_options(arguments, |_, option| {
        match option {
            UnallowOption::Local => options.local = true,
            UnallowOption::Descendant => options.descendant = true,
            UnallowOption::User => options.user = true,
            UnallowOption::Group => options.group = true,
            UnallowOption::Everyone => options.everyone = true,
            UnallowOption::Create => options.create = true,
            UnallowOption::Set => options.set = true,
            UnallowOption::Recursive => options.recursive = true,
            UnallowOption::Help => options.help = true,
        }
        Ok(())
    })?;
    grant(session, &options, &words, true).await
}

/// Grants permissions, or with `remove` takes them back.
async fn grant(session: &Session, options: &Options, words: &[String], remove: bool) -> Outcome {
    let usage = Usage { session, remove };
    let Some((grantee, permissions, dataset)) = usage.read(options, words)? else {
        let dataset = words.first().map_or("", String::as_str);
        return show(session, dataset).await;
    };
    let change = changes(&grantee, options, permissions.as_deref());
    let Ok((pool, info)) = open(session, &dataset, &PropertyQuery::None).await else {
        session
            .out
            .error(format!("Failed to open dataset: {dataset}"));
        return Err(Exit(255));
    };
    let mut names = vec![dataset.clone()];
    if options.recursive {
        let filter = DatasetFilter {
            root: dataset.clone(),
            depth: None,
            kinds: vec![DatasetKind::Filesystem, DatasetKind::Volume],
        };
        let below = pool.datasets(&filter, &PropertyQuery::None).await;
        let below = below.map_err(|error| session.fail(error.to_string()))?;
        names.extend(below.into_iter().map(|info| info.name).skip(1));
    }
    if !matches!(info.kind, DatasetKind::Filesystem | DatasetKind::Volume) {
        let kind = "operation not applicable to datasets of this type";
        return Err(session.fail(format!("cannot open '{dataset}': {kind}")));
    }
    for permission in permissions.iter().flatten() {
        if canonical(permission).is_none() {
            return Err(session.fail(format!(
                "cannot set permissions on '{dataset}': invalid permission '{permission}'"
            )));
        }
    }
    for name in names {
        if let Err(error) = pool.change_grants(&name, change.clone(), remove).await {
            return Err(session.fail(format!("cannot set permissions on '{name}': {error}")));
        }
    }
    session.record(&pool).await;
    Ok(())
}

/// The name of a permission or set as it is stored; columns are names of properties too.
fn canonical(permission: &str) -> Option<String> {
    if let Some(set) = permission.strip_prefix('@') {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.: ".contains(&byte);
        return (!set.is_empty() && set.len() < 64 && set.bytes().all(fits))
            .then(|| permission.to_owned());
    }
    if permission == "receive:append" || PERMISSIONS.iter().any(|(name, ..)| *name == permission) {
        return Some(permission.to_owned());
    }
    let property = Property::from_name(permission)?;
    (property.descriptor().attribute != Attribute::ReadOnly).then(|| property.name().to_owned())
}

/// The entries to change.
fn changes(
    grantee: &Grantee,
    options: &Options,
    permissions: Option<&[String]>,
) -> Vec<(String, Option<Vec<String>>)> {
    let both = !options.local && !options.descendant;
    let mut kinds = Vec::new();
    if options.local || both {
        kinds.push('l');
    }
    if options.descendant || both {
        kinds.push('d');
    }
    // The letter for permissions, the kind, what follows.
    let mut keys: Vec<(char, char, String)> = Vec::new();
    match grantee {
        Grantee::Set(name) => keys.push(('s', '-', name.clone())),
        Grantee::Creators => keys.push(('c', '-', String::new())),
        Grantee::Everyone => keys.extend(kinds.iter().map(|kind| ('e', *kind, String::new()))),
        Grantee::Ids(ids) => {
            for (letter, id) in ids {
                keys.extend(kinds.iter().map(|kind| (*letter, *kind, id.to_string())));
            }
        }
    }
    let mut changes = Vec::new();
    for (letter, kind, rest) in keys {
        let plain = format!("{letter}{kind}${rest}");
        let sets = format!("{}{kind}${rest}", letter.to_ascii_uppercase());
        let Some(permissions) = permissions else {
            changes.extend([(plain, None), (sets, None)]);
            continue;
        };
        let names = permissions.iter().filter_map(|name| canonical(name));
        let (set_names, names): (Vec<_>, Vec<_>) = names.partition(|name| name.starts_with('@'));
        for (key, names) in [(plain, names), (sets, set_names)] {
            if !names.is_empty() {
                changes.push((key, Some(names)));
            }
        }
    }
    changes
}

/// A change that was asked for: grantee, permissions (all without), dataset.
type GrantRequest = (Grantee, Option<Vec<String>>, String);

/// The usage text, and reading the words.
struct Usage<'a> {
    session: &'a Session,
    remove: bool,
}

impl Usage<'_> {
    fn read(&self, options: &Options, words: &[String]) -> Result<Option<GrantRequest>, Exit> {
        let count = |flags: &[bool]| flags.iter().filter(|flag| **flag).count();
        let whom = count(&[options.user, options.group, options.everyone]);
        let kinds = whom + count(&[options.create, options.set]);
        let all = kinds + count(&[options.local, options.descendant]);
        if whom > 1 {
            return Err(self.wrong("-u, -g, and -e are mutually exclusive\n"));
        }
        if options.help {
            if words.is_empty() && all == 0 {
                self.print(Stream::Out, "");
                return Err(Exit(0));
            }
            return Err(self.session.usage_only());
        }
        if options.set {
            if kinds > 1 {
                return Err(self.wrong("invalid options combined with -s\n"));
            }
            let (permissions, dataset) = self.tail(words, 3)?;
            let set = words.first().cloned().unwrap_or_default();
            if !set.starts_with('@') {
                return Err(self.wrong("invalid set name: missing '@' prefix\n"));
            }
            return Ok(Some((Grantee::Set(set), permissions, dataset)));
        }
        if options.create {
            if all > 1 {
                return Err(self.wrong("invalid options combined with -c\n"));
            }
            let (permissions, dataset) = self.tail(words, 2)?;
            return Ok(Some((Grantee::Creators, permissions, dataset)));
        }
        if options.everyone {
            if kinds > 1 {
                return Err(self.wrong("invalid options combined with -e\n"));
            }
            let (permissions, dataset) = self.tail(words, 2)?;
            return Ok(Some((Grantee::Everyone, permissions, dataset)));
        }
        if whom == 0 && words.first().is_some_and(|word| word == "everyone") {
            let (permissions, dataset) = self.tail(&words[1..], 2)?;
            return Ok(Some((Grantee::Everyone, permissions, dataset)));
        }
        if words.len() == 1 && !self.remove {
            return Ok(None);
        }
        let (permissions, dataset) = self.tail(words, 3)?;
        let mut ids = Vec::new();
        for name in words[0].split(',').filter(|name| !name.is_empty()) {
            ids.push(self.id(name, options)?);
        }
        Ok(Some((Grantee::Ids(ids), permissions, dataset)))
    }

    /// The permissions and the dataset at the end of `expected` words; `unallow` may leave the permissions out.
    fn tail(
        &self,
        words: &[String],
        expected: usize,
    ) -> Result<(Option<Vec<String>>, String), Exit> {
        let dataset = words.last().cloned().unwrap_or_default();
        if self.remove && words.len() == expected - 1 {
            return Ok((None, dataset));
        }
        if words.len() != expected {
            return Err(self.wrong("wrong number of parameters\n"));
        }
        let list = words[expected - 2].split(',');
        let permissions = list.filter(|name| !name.is_empty()).map(str::to_owned);
        Ok((Some(permissions.collect()), dataset))
    }

    /// The user or group of a name or number.
    fn id(&self, name: &str, options: &Options) -> Result<(char, u64), Exit> {
        let number = name.parse::<u64>().ok();
        let find = |list: String| -> Option<u64> {
            match number {
                Some(number) => name_of(&list, number).map(|_| number),
                None => ids_of(&list, name).find_map(|id| id.parse().ok()),
            }
        };
        let (user, group) = (|| find(names::users()), || find(names::groups()));
        let (found, what) = if options.user {
            (user().or(number).map(|id| ('u', id)), "user")
        } else if options.group {
            (group().or(number).map(|id| ('g', id)), "group")
        } else {
            let found = user().map(|id| ('u', id));
            (found.or_else(|| group().map(|id| ('g', id))), "user/group")
        };
        found.ok_or_else(|| {
            self.print(
                Stream::Out,
                &format!("\nzfs: error: invalid {what} {name}\n"),
            );
            Exit(0)
        })
    }

    fn wrong(&self, message: &str) -> Exit {
        self.print(Stream::Err, &format!("\nzfs: error: {message}"));
        Exit(2)
    }

    fn print(&self, stream: Stream, end: &str) {
        let mut text = format!("Usage: {}\nOptions:\n", self.session.command().usage);
        for (option, meaning) in OPTIONS {
            if self.remove || *option != "-r" {
                text.push_str(&format!("  {option:<10}  {meaning}\n"));
            }
        }
        text.push_str("\nThe following permissions are supported:\n\n");
        let mut line = |name: &str, kind: &str, note: &str| {
            text.push_str(&format!("{name:<16} {kind:<14}\t{note}\n"));
        };
        line("NAME", "TYPE", "NOTES");
        for (name, kind, note) in PERMISSIONS {
            line(name, kind, note);
        }
        let mut properties: Vec<&str> = PROPERTIES
            .iter()
            .filter(|row| row.visible && row.attribute != Attribute::ReadOnly)
            .map(|row| row.name)
            .collect();
        properties.sort_unstable();
        for name in properties {
            line(name, "property", "");
        }
        text.push_str(end);
        self.session.out.push(stream, text.as_bytes());
    }
}

/// Prints the grants of a dataset and those above it.
async fn show(session: &Session, dataset: &str) -> Outcome {
    let Ok((pool, _)) = open(session, dataset, &PropertyQuery::None).await else {
        session
            .out
            .error(format!("Failed to open dataset: {dataset}"));
        return Err(Exit(255));
    };
    let all = pool.grants(dataset).await;
    let all = all
        .map_err(|error| session.fail(format!("cannot get permissions on '{dataset}': {error}")))?;
    let (users, groups) = (names::users(), names::groups());
    for (name, grants) in all {
        for line in lines(&name, &grants, &users, &groups) {
            session.out.line(line);
        }
    }
    Ok(())
}

/// A user, a group or everybody, and the permissions: whether here, whether below.
type Entries = BTreeMap<(u8, String), BTreeMap<String, (bool, bool)>>;

fn lines(name: &str, grants: &Grants, users: &str, groups: &str) -> Vec<String> {
    let begin = format!("---- Permissions on {name} ");
    let mut lines = vec![format!("{begin:-<70}")];
    let (mut sets, mut creators) = (BTreeMap::<String, BTreeSet<String>>::new(), BTreeSet::new());
    let mut entries = Entries::new();
    for (key, permissions) in grants {
        let mut letters = key.chars();
        let (grantee, kind) = (letters.next().unwrap_or(' '), letters.next().unwrap_or(' '));
        let rest = key.get(3..).unwrap_or("").to_owned();
        let order = match grantee.to_ascii_lowercase() {
            's' => {
                sets.entry(rest).or_default().extend(permissions.clone());
                continue;
            }
            'c' => {
                creators.extend(permissions.clone());
                continue;
            }
            'u' => 2,
            'g' => 3,
            _ => 4,
        };
        let entry = entries.entry((order, rest)).or_default();
        for permission in permissions {
            let (local, descendant) = entry.entry(permission.clone()).or_default();
            *local |= kind == 'l';
            *descendant |= kind == 'd';
        }
    }
    let joined = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(",");
    if !sets.is_empty() {
        lines.push("Permission sets:".to_owned());
        for (set, permissions) in &sets {
            lines.push(format!("\t{set} {}", joined(permissions)));
        }
    }
    if !creators.is_empty() {
        lines.push("Create time permissions:".to_owned());
        lines.push(format!("\t{}", joined(&creators)));
    }
    for (title, wanted) in [
        ("Local permissions:", (true, false)),
        ("Descendent permissions:", (false, true)),
        ("Local+Descendent permissions:", (true, true)),
    ] {
        let mut first = true;
        for ((order, id), permissions) in &entries {
            let these: BTreeSet<String> = permissions
                .iter()
                .filter(|(_, places)| **places == wanted)
                .map(|(name, _)| name.clone())
                .collect();
            if these.is_empty() {
                continue;
            }
            if std::mem::take(&mut first) {
                lines.push(title.to_owned());
            }
            let named = |list: &str| {
                let number = id.parse::<u64>().ok();
                let found = number.and_then(|number| name_of(list, number));
                found.unwrap_or_else(|| format!("(unknown: {id})"))
            };
            let grantee = match order {
                2 => format!("user {}", named(users)),
                3 => format!("group {}", named(groups)),
                _ => "everyone".to_owned(),
            };
            lines.push(format!("\t{grantee} {}", joined(&these)));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_shown_as_openzfs_shows_them() {
        let entry = |key: &str, names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            (key.to_owned(), names)
        };
        let grants: Grants = [
            entry("ul$7", &["snapshot", "mount"]),
            entry("ud$7", &["snapshot"]),
            entry("Ud$7", &["@ops"]),
            entry("gl$99", &["hold"]),
            entry("el$", &["send"]),
            entry("ed$", &["send"]),
            entry("c-$", &["destroy"]),
            entry("C-$", &["@ops"]),
            entry("s-$@ops", &["create", "clone"]),
        ]
        .into_iter()
        .collect();
        let shown = lines("tank/a", &grants, "ann:x:7:7::/:/bin/sh", "");
        let expected = "---- Permissions on tank/a -------------------------------------------\n\
            Permission sets:\n\t@ops clone,create\nCreate time permissions:\n\t@ops,destroy\n\
            Local permissions:\n\tuser ann mount\n\tgroup (unknown: 99) hold\n\
            Descendent permissions:\n\tuser ann @ops\n\
            Local+Descendent permissions:\n\tuser ann snapshot\n\teveryone send";
        assert_eq!(shown.join("\n"), expected);
    }
}
