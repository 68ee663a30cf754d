//! The declaration of a command: names, usage, options, operands and examples, once.
//!
//! The option reader, the help, the page of the manual and the completion of shells come from it. Each command of `zpool` and `zfs` has its
//! declaration beside its code: [`options!`] makes an enumeration of the options, and the code matches on it without a wildcard, so that
//! the compiler refuses an option that is declared and not read, and one that is read and not declared. Usages are OpenZFS 2.3's byte for
//! byte, because tools probe them for what a system can do (zrepl looks for `receive_resume_token`); commands that are not
//! implemented are listed for the same reason, and running one says so.

use std::pin::Pin;

pub(crate) use super::flag::Flag;
use super::{Outcome, Session};

/// What an operand, or the value of an option, names: what a shell offers for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// An imported pool.
    Pool,
    /// A file system, a volume, or what is below one.
    Dataset,
    /// A snapshot.
    Snapshot,
    /// A property.
    Property,
    /// `PROPERTY=VALUE`.
    Setting,
    /// A device of a pool, or a path.
    Device,
    /// Text of the user's own.
    Text,
}

/// A command line to copy, and what it does.
pub(crate) type Example = (&'static str, &'static str);

/// A command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    /// Name after the tool's.
    pub(crate) name: &'static str,
    /// Other names.
    pub(crate) aliases: &'static [&'static str],
    /// What it does, in a line.
    pub(crate) summary: &'static str,
    /// Usage as OpenZFS prints it; empty for a command that OpenZFS does not have, whose usage is made of what follows.
    pub(crate) usage: &'static str,
    /// Operands, as the usage shows them after the options.
    pub(crate) operands: &'static str,
    /// Options.
    pub(crate) flags: &'static [Flag],
    /// An option without its value is said to lack it. OpenZFS's commands say so when their getopt string begins with a colon; the
    /// others call the option invalid.
    pub(crate) says_missing: bool,
    /// What the operands name; the last is for all that follow.
    pub(crate) words: &'static [Word],
    /// The usage is followed by the list of properties.
    pub(crate) lists_properties: bool,
    /// The rest of the manual page, paragraph by paragraph.
    pub(crate) text: &'static [&'static str],
    /// Examples.
    pub(crate) examples: &'static [Example],
}

impl Command {
    /// A declaration that says nothing yet.
    pub(crate) const NEW: Self = Self {
        name: "",
        aliases: &[],
        summary: "",
        usage: "",
        operands: "",
        flags: &[],
        says_missing: true,
        words: &[],
        lists_properties: false,
        text: &[],
        examples: &[],
    };

    /// Whether a word is the command's name or another name of it.
    pub(crate) fn is_called(&self, word: &str) -> bool {
        self.name == word || self.aliases.contains(&word)
    }

    /// The usage: OpenZFS's, or one that is made of the options and operands.
    pub(crate) fn usage_text(&self) -> String {
        if self.usage.is_empty() {
            self.own_usage()
        } else {
            self.usage.to_owned()
        }
    }

    /// The usage of a command of our own, in a line.
    fn own_usage(&self) -> String {
        let mut text = format!("\tsanbox {}", self.name);
        let plain: String = self
            .flags
            .iter()
            .filter(|flag| flag.value.is_none())
            .filter_map(|flag| flag.short)
            .collect();
        if !plain.is_empty() {
            text.push_str(&format!(" [-{plain}]"));
        }
        for flag in self.flags {
            match (flag.short, flag.long, flag.value) {
                (_, Some(name), Some(value)) => text.push_str(&format!(" [--{name} {value}]")),
                (_, Some(name), None) => text.push_str(&format!(" [--{name}]")),
                (Some(letter), None, Some(value)) => {
                    text.push_str(&format!(" [-{letter} {value}]"));
                }
                _ => {}
            }
        }
        if !self.operands.is_empty() {
            text.push_str(&format!(" {}", self.operands));
        }
        text.push('\n');
        text
    }
}

/// A command under way.
pub(crate) type Running<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// A command of `zpool` or `zfs`, and the function that carries it out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// The declaration.
    pub(crate) command: &'static Command,
    /// The function; none where the command is not implemented.
    pub(crate) run: Option<for<'a> fn(&'a Session, &'a [String]) -> Running<'a>>,
}

/// The commands of a tool in groups, as its usage shows them with an empty line between.
pub(crate) type Table = &'static [&'static [Entry]];

/// All commands of a table.
pub(crate) fn entries(table: Table) -> impl Iterator<Item = &'static Entry> {
    table.iter().copied().flatten()
}

/// Makes an [`Entry`] of a declaration and an `async fn` of a session and arguments.
macro_rules! entry {
    ($command:expr) => {
        $crate::cli::command::Entry {
            command: &$command,
            run: None,
        }
    };
    ($command:expr, $run:path) => {
        $crate::cli::command::Entry {
            command: &$command,
            run: Some(|session, arguments| Box::pin($run(session, arguments))),
        }
    };
}
pub(crate) use entry;

/// An enumeration of a command's options, made by [`options!`].
pub(crate) trait Declared: Sized + 'static {
    /// The options as declared.
    const DECLARED: &'static [Flag];
    /// Makes the variant of each; the text is the value of an option that takes one.
    const MAKE: &'static [fn(String) -> Self];
}

/// Declares the options of a command, each with the variant that the command matches on; `(String)` is behind those that take a value.
macro_rules! options {
    (@make $name:ident $variant:ident) => {
        |_| $name::$variant
    };
    (@make $name:ident $variant:ident $value:ident) => {
        $name::$variant
    };
    (@valued) => {
        false
    };
    (@valued $value:ident) => {
        true
    };
    ($name:ident { $($variant:ident $(($value:ident))? = $flag:expr,)* }) => {
        /// The options, in the order of the declaration.
        #[derive(Clone, Debug, PartialEq, Eq)]
        enum $name {
            $($variant $(($value))?,)*
        }

        impl $name {
            const FLAGS: &'static [$crate::cli::command::Flag] = {
                use $crate::cli::flag::*;
                &[$($flag,)*]
            };
        }

        const _: () = {
            let valued = [$($crate::cli::command::options!(@valued $($value)?),)*];
            let mut at = 0;
            while at < valued.len() {
                assert!($name::FLAGS[at].value.is_some() == valued[at]);
                at += 1;
            }
        };

        impl $crate::cli::command::Declared for $name {
            const DECLARED: &'static [$crate::cli::command::Flag] = Self::FLAGS;
            const MAKE: &'static [fn(String) -> Self] =
                &[$($crate::cli::command::options!(@make $name $variant $($value)?),)*];
        }
    };
}
pub(crate) use options;

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::cli::declare::COMMANDS;
    use crate::cli::getopt::Getopt;
    use crate::cli::{zfs, zpool};

    /// The getopt string and the long options of OpenZFS 2.3.2's commands, and of 2.3.4's `zfs rewrite`, a value marked by `:`.
    // OpenZFS: cmd/zpool/zpool_main.c, cmd/zfs/zfs_main.c
    const OPENZFS: &str = "
        zpool version j json
        zpool create :fndR:m:o:O:t:
        zpool destroy f
        zpool add fgLno:P allow-in-use allow-replication-mismatch allow-ashift-mismatch
        zpool remove npsw
        zpool labelclear f
        zpool checkpoint :dw discard wait
        zpool list :gjHLo:pPT:v json json-int json-pool-key-guid
        zpool iostat c:gLPT:vyhplqrwnH
        zpool status c:jdDegiLpPstT:vx power json json-int json-flat-vdevs json-pool-key-guid
        zpool online e power
        zpool offline ft power
        zpool clear FnX power
        zpool reopen n
        zpool attach fo:sw
        zpool detach -
        zpool replace fo:sw
        zpool split :gLR:lno:P
        zpool initialize csuw cancel suspend uninit wait
        zpool resilver -
        zpool scrub spweCE:S:
        zpool trim cdr:sw cancel secure rate: suspend wait
        zpool import :aCc:d:DEfFlmnNo:R:stT:VX rewind-to-checkpoint
        zpool export afF
        zpool upgrade :avV:
        zpool reguid g:
        zpool history li
        zpool events vHfc
        zpool get :jHpo: json json-int json-pool-key-guid
        zpool set -
        zpool sync f
        zpool wait HpT:t:
        zpool prefetch t:
        zpool ddtprune d:p:
        zfs version j json
        zfs create :PV:b:nso:puv
        zfs destroy vpndfrR
        zfs snapshot ro:
        zfs rollback rRf
        zfs clone o:p
        zfs promote -
        zfs rename pruf
        zfs bookmark -
        zfs list jHS:d:o:prs:t: json json-int
        zfs set u
        zfs get :d:o:s:jrt:Hp json json-int
        zfs inherit rS
        zfs load-key anrL:
        zfs unload-key ar
        zfs change-key lio:
        zfs upgrade rvV:a
        zfs userspace nHpo:s:S:t:i
        zfs groupspace nHpo:s:S:t:i
        zfs projectspace nHpo:s:S:t:i
        zfs mount :ajRlvo:Of json
        zfs unmount afu
        zfs share al
        zfs unshare :a
        zfs allow ldugecsh
        zfs unallow ldugecsrh
        zfs send :i:I:RsDpVvnPLeht:cwbd:SX: replicate skip-missing redact: props parsable dedup proctitle verbose dryrun \
            large-block embed resume: compressed raw backup holds saved exclude:
        zfs receive :o:x:dehMnuvFsAc
        zfs hold rt
        zfs holds rHp
        zfs release r
        zfs diff FHth
        zfs program nt:m:j json
        zfs wait t:
        zfs rewrite rl:o:vx
        zfs project 0Ccdkp:rs
    ";

    /// Commands of `zfs` that OpenZFS does not have.
    const OURS: &[&str] = &["key", "rotate-key"];

    fn all() -> Vec<(&'static str, &'static Entry)> {
        let of = |tool, table| entries(table).map(move |entry| (tool, entry));
        of("zpool", zpool::TABLE)
            .chain(of("zfs", zfs::TABLE))
            .collect()
    }

    /// The options of a getopt string: names, and whether they take a value.
    fn of_getopt(letters: &str, longs: &[&str]) -> BTreeMap<String, bool> {
        let mut options = BTreeMap::new();
        let letters = letters.trim_start_matches([':', '-']);
        for (at, letter) in letters.char_indices().filter(|(_, letter)| *letter != ':') {
            options.insert(letter.to_string(), letters[at + 1..].starts_with(':'));
        }
        for long in longs {
            options.insert(long.trim_end_matches(':').to_owned(), long.ends_with(':'));
        }
        options
    }

    #[test]
    fn options_are_those_of_openzfs() {
        let mut checked = BTreeSet::new();
        for line in OPENZFS.lines().filter(|line| !line.trim().is_empty()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (_, entry) = all()
                .into_iter()
                .find(|(tool, entry)| *tool == words[0] && entry.command.is_called(words[1]))
                .expect("the command is declared");
            let command = entry.command;
            let mut declared = BTreeMap::new();
            for flag in command.flags {
                let names = flag.short.map(String::from).into_iter();
                for name in names.chain(flag.long.map(str::to_owned)) {
                    let twice = declared.insert(name, flag.value.is_some());
                    assert_eq!(twice, None, "{line}");
                }
                assert!(!flag.help.is_empty(), "{line}");
            }
            assert_eq!(declared, of_getopt(words[2], &words[3..]), "{line}");
            let says_missing = words[2].starts_with(':');
            let valued = declared.values().any(|valued| *valued);
            assert!(!valued || command.says_missing == says_missing, "{line}");
            checked.insert((words[0], command.name));
        }
        for (tool, entry) in all() {
            let known = checked.contains(&(tool, entry.command.name));
            let declares = !entry.command.flags.is_empty();
            let is_ours = OURS.contains(&entry.command.name);
            assert!(!(known && is_ours), "{} is OpenZFS's", entry.command.name);
            assert!(
                known || is_ours || !declares,
                "{tool} {}",
                entry.command.name
            );
        }
    }

    #[test]
    fn every_option_declared_is_read() {
        let own = COMMANDS.iter().map(|command| ("sanbox", command));
        let tools = all().into_iter().map(|(tool, entry)| (tool, entry.command));
        for (tool, command) in tools.chain(own) {
            for (index, flag) in command.flags.iter().enumerate() {
                let short = flag.short.map(|letter| format!("-{letter}"));
                let long = flag.long.map(|name| format!("--{name}"));
                for spelling in short.into_iter().chain(long) {
                    let mut line = vec![spelling];
                    line.extend(flag.value.map(|_| "value".to_owned()));
                    line.push("operand".to_owned());
                    let mut options = Getopt::new(&line, command.flags);
                    let given = options.next().expect("declared").expect("given");
                    assert_eq!(given.index, index, "{tool} {}: {line:?}", command.name);
                    assert_eq!(given.value.is_some(), flag.value.is_some(), "{line:?}");
                    assert_eq!(options.next(), Ok(None), "{line:?}");
                    assert_eq!(options.operands(), ["operand"], "{line:?}");
                }
            }
        }
    }

    #[test]
    fn names_are_one_commands_only() {
        let mut seen = BTreeSet::new();
        let own = COMMANDS.iter().map(|command| ("sanbox", command));
        let tools = all().into_iter().map(|(tool, entry)| (tool, entry.command));
        for (tool, command) in tools.chain(own) {
            for name in command.aliases.iter().chain([&command.name]) {
                assert!(seen.insert((tool, *name)), "{tool} {name}");
            }
            assert!(!command.summary.is_empty(), "{tool} {}", command.name);
        }
    }

    /// A command without a rule is refused to all users: each declared one has a rule, and each rule names a declared command.
    #[test]
    fn every_command_has_one_rule_of_access() {
        use manage::commands::RULES;
        let own = COMMANDS.iter().map(|command| ("sanbox", command));
        let tools = all().into_iter().map(|(tool, entry)| (tool, entry.command));
        let mut known = BTreeSet::new();
        for (tool, command) in tools.chain(own) {
            let is_option = |name: &&str| name.starts_with('-');
            let aliases = command.aliases.iter().filter(|alias| !is_option(alias));
            for name in aliases.chain([&command.name]) {
                let rules = RULES.iter().filter(|rule| rule.tool == tool);
                let rules = rules
                    .flat_map(|rule| rule.names)
                    .filter(|ruled| *ruled == name);
                assert_eq!(
                    rules.count(),
                    1,
                    "rules of '{tool} {name}' in manage::commands"
                );
                known.insert((tool, *name));
            }
        }
        for rule in RULES {
            for name in rule.names {
                assert!(
                    known.contains(&(rule.tool, *name)),
                    "no command '{} {name}'",
                    rule.tool
                );
            }
        }
    }

    /// A key for some datasets reads command lines by the declared options: which of them take a value.
    #[test]
    fn commands_of_keys_take_the_values_that_are_declared() {
        for (name, letters, _) in manage::commands::WITHIN {
            let entry = entries(zfs::TABLE).find(|entry| entry.command.is_called(name));
            let command = entry.expect("a command of zfs").command;
            let valued = command.flags.iter().filter(|flag| flag.value.is_some());
            let declared: BTreeSet<char> = valued.filter_map(|flag| flag.short).collect();
            assert_eq!(
                letters.chars().collect::<BTreeSet<char>>(),
                declared,
                "zfs {name}"
            );
        }
    }
}
