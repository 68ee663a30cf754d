//! The commands. Each is a function of a [`Session`] and its arguments, and the same function runs
//! in the daemon, for a client at the control socket, and in a process of its own.

pub(crate) mod command;
pub(crate) mod declare;
pub(crate) mod flag;
pub(crate) mod format;
pub(crate) mod getopt;
pub(crate) mod help;
pub(crate) mod input;
pub(crate) mod json;
pub(crate) mod out;
pub(crate) mod sanbox;
pub(crate) mod version;
pub(crate) mod zfs;
pub(crate) mod zpool;
pub(crate) mod zstream;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use engine::EngineError;

use crate::appliance::Appliance;
pub(crate) use crate::names::pool_part;
use command::{Command, Declared, Entry, Table, entries};
use getopt::{Getopt, Given};
use input::Input;
use out::{Out, OutputClosed};

/// The early end of a command whose messages are printed: its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit(pub(crate) u8);

impl From<OutputClosed> for Exit {
    fn from(_: OutputClosed) -> Self {
        // What a shell reports of a process ended by SIGPIPE.
        Self(141)
    }
}

/// The result of a command.
pub(crate) type Outcome = Result<(), Exit>;

/// What follows the making of a pool or dataset while no daemon runs.
pub(crate) const NOTHING_SERVED: &str =
    "note: nothing is mounted or shared until 'sanbox serve' or 'sanbox mount' runs";

/// The client of a command, as far as commands need to know it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller {
    /// Working directory, for relative paths.
    pub(crate) directory: PathBuf,
    /// The environment variables that commands look at.
    pub(crate) environment: BTreeMap<String, String>,
    /// User.
    pub(crate) uid: u32,
    /// Standard input is a terminal, whose user can be asked for keys; of `zfs send`, standard output is one.
    pub(crate) terminal: bool,
}

/// The name of a user in the machine's own list.
pub(crate) fn user_name(user: u64) -> Option<String> {
    let list = std::fs::read_to_string("/etc/passwd").ok()?;
    list.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let number: u64 = fields.nth(1)?.parse().ok()?;
        (number == user).then(|| name.to_owned())
    })
}

/// One run of one command.
#[derive(Clone)]
pub(crate) struct Session {
    /// The engine and what belongs to it.
    pub(crate) appliance: Arc<Appliance>,
    /// Where the output goes.
    pub(crate) out: Out,
    /// Standard input, of a command that reads it.
    pub(crate) input: Option<Input>,
    /// The client.
    pub(crate) caller: Caller,
    /// The command as typed, for the pool's history (`zpool create tank ...`).
    pub(crate) line: String,
    /// The command's declaration.
    command: &'static Command,
    /// Usage lines of the command, and the list of properties that goes with some.
    usage: String,
}

impl Session {
    /// Prepares the run of a command line; `line` starts with the tool's name.
    pub(crate) fn new(
        appliance: Arc<Appliance>,
        out: Out,
        caller: Caller,
        tool: &str,
        arguments: &[String],
        input: Option<Input>,
    ) -> Self {
        let mut line = tool.to_owned();
        for argument in arguments {
            line.push(' ');
            line.push_str(argument);
        }
        Self {
            appliance,
            out,
            input,
            caller,
            line,
            command: &Command::NEW,
            usage: String::new(),
        }
    }

    /// Begins a command; `properties` follows its usage.
    pub(crate) fn enter(&mut self, command: &'static Command, properties: Option<String>) {
        self.command = command;
        self.usage = format!(
            "usage:\n{}{}",
            command.usage_text(),
            properties.unwrap_or_default()
        );
    }

    /// The declaration of the command that runs.
    pub(crate) fn command(&self) -> &'static Command {
        self.command
    }

    /// Ends the command with a message on standard error and exit code 1.
    pub(crate) fn fail(&self, message: impl AsRef<str>) -> Exit {
        self.out.error(message);
        Exit(1)
    }

    /// Ends the command with a message and its usage on standard error and exit code 2.
    pub(crate) fn misuse(&self, message: impl AsRef<str>) -> Exit {
        self.out.error(message);
        self.out.push(out::Stream::Err, self.usage.as_bytes());
        Exit(2)
    }

    /// Ends the command with its usage on standard error and exit code 2.
    pub(crate) fn usage_only(&self) -> Exit {
        self.print_usage();
        Exit(2)
    }

    /// Prints the command's usage on standard error.
    pub(crate) fn print_usage(&self) {
        self.out.push(out::Stream::Err, self.usage.as_bytes());
    }

    /// Whether files may be read for the caller: this process reads whatever it may read itself.
    pub(crate) fn may_read_files(&self) -> bool {
        self.caller.uid == 0 || self.caller.uid == rustix::process::geteuid().as_raw()
    }

    /// Resolves a path as the caller means it.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.caller.directory.join(path)
    }

    /// Reads the command's options into `take`, which says what is wrong with one, if anything. Returns the operands.
    pub(crate) fn read_options<T: Declared>(
        &self,
        arguments: &[String],
        mut take: impl FnMut(&Self, T) -> Outcome,
    ) -> Result<Vec<String>, Exit> {
        // What is read is what help and manual say.
        assert_eq!(self.command.flags, T::DECLARED, "{}", self.command.name);
        self.each_option(arguments, |session, option| {
            take(
                session,
                T::MAKE[option.index](option.value.unwrap_or_default()),
            )
        })
    }

    /// Returns the operands of a command without options.
    pub(crate) fn operands(&self, arguments: &[String]) -> Result<Vec<String>, Exit> {
        assert_eq!(self.command.flags, &[], "{}", self.command.name);
        self.each_option(arguments, |_, _| Ok(()))
    }

    /// Reads options as they are declared, one after another.
    pub(crate) fn each_option(
        &self,
        arguments: &[String],
        mut take: impl FnMut(&Self, Given) -> Outcome,
    ) -> Result<Vec<String>, Exit> {
        let mut options = Getopt::new(arguments, self.command.flags);
        if self.caller.environment.contains_key("POSIXLY_CORRECT") {
            options = options.ending_at_operands();
        }
        loop {
            match options.next() {
                Ok(Some(option)) => take(self, option)?,
                Ok(None) => return Ok(options.operands()),
                Err(error) if self.command.says_missing => {
                    return Err(self.misuse(error.to_string()));
                }
                Err(error) => return Err(self.misuse(error.without_missing().to_string())),
            }
        }
    }

    /// Records the command in a pool's history, as every successful change is. That the record
    /// could not be written is no failure of the command.
    pub(crate) async fn record(&self, pool: &engine::PoolHandle) {
        if !pool.readonly() {
            let _ = pool.log_command(&self.line, self.caller.uid).await;
        }
    }
}

/// Splits `NAME=VALUE`.
pub(crate) fn setting(text: &str) -> Option<(String, String)> {
    text.split_once('=')
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
}

/// Says why a dataset cannot be reached, in the words scripts match: a missing pool is a missing
/// dataset to `zfs`.
pub(crate) fn dataset_clause(error: &EngineError) -> String {
    match error {
        EngineError::PoolNotFound(_) | EngineError::DatasetNotFound(_) => {
            "dataset does not exist".to_owned()
        }
        other => other.to_string(),
    }
}

/// Runs `zpool` or `zfs` with their arguments, or one of our own commands.
pub(crate) async fn run(mut session: Session, tool: &str, arguments: &[String]) -> Exit {
    let outcome = match tool {
        "zpool" => zpool::run(&mut session, arguments).await,
        "zfs" => zfs::run(&mut session, arguments).await,
        _ => sanbox::run(&mut session, arguments).await,
    };
    if tool == "zfs" && manage::commands::is_change(tool, arguments) {
        session.appliance.snapshots_changed().await;
    }
    let flushed = session.out.flush().await;
    match (outcome, flushed) {
        (Err(exit), _) => exit,
        (Ok(()), Err(gone)) => gone.into(),
        (Ok(()), Ok(())) => Exit(0),
    }
}

/// As [`run`], for commands that give others.
pub(crate) fn run_within<'a>(
    session: Session,
    tool: &'a str,
    arguments: &'a [String],
) -> Pin<Box<dyn Future<Output = Exit> + Send + 'a>> {
    Box::pin(run(session, tool, arguments))
}

/// The usage of a tool with all its commands.
fn usage_of_all(tool: &str, table: Table) -> String {
    let mut text =
        format!("usage: {tool} command args ...\nwhere 'command' is one of the following:\n\n");
    for (index, group) in table.iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        for entry in *group {
            text.push_str(entry.command.usage);
        }
    }
    if tool == "zfs" {
        text.push_str("\nEach dataset is of the form: pool/[dataset/]*dataset[@name]\n");
        text.push_str("\nFor the property list, run: zfs set|get\n");
        text.push_str("\nFor the delegated permission list, run: zfs allow|unallow\n");
    }
    text.push_str("\nFor further help on a command or topic, run: ");
    text.push_str(tool);
    text.push_str(" help [<topic>]\n");
    text
}

/// Finds a command of `zpool` or `zfs`; says how to use the tool when there is none.
fn find(
    session: &Session,
    tool: &str,
    table: Table,
    arguments: &[String],
) -> Result<&'static Entry, Exit> {
    let refuse = |why: String| {
        session.out.error(why);
        let usage = usage_of_all(tool, table);
        session.out.push(out::Stream::Err, usage.as_bytes());
        Exit(2)
    };
    let Some(name) = arguments.first() else {
        return Err(refuse("missing command".to_owned()));
    };
    if matches!(name.as_str(), "-?" | "--help" | "help") {
        session.out.text(usage_of_all(tool, table));
        return Err(Exit(0));
    }
    entries(table)
        .find(|entry| entry.command.is_called(name))
        .ok_or_else(|| refuse(format!("unrecognized command '{name}'")))
}

/// Runs a command of `zpool` or `zfs`; `properties` is what follows the usage of those that list them.
async fn run_entry(
    session: &mut Session,
    tool: &str,
    table: Table,
    properties: impl Fn(&str) -> String,
    arguments: &[String],
) -> Outcome {
    let entry = find(session, tool, table, arguments)?;
    let name = entry.command.name;
    let listing = entry.command.lists_properties.then(|| properties(name));
    session.enter(entry.command, listing);
    match entry.run {
        Some(run) => run(session, &arguments[1..]).await,
        None => Err(session.fail(format!(
            "{tool} {name}: not supported by this version of sanbox yet"
        ))),
    }
}
