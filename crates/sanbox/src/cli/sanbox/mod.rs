//! The commands of our own.

mod archive;
mod arcstat;
mod comstar;
mod copy;
mod digests;
pub(crate) mod directory;
mod doctor;
mod documents;
mod files;
mod job;
mod log;
mod policy;
mod remote_path;
pub(crate) mod sample;
mod tar;
mod target;
mod top;
mod tune;
mod user;
mod volume;
mod zilstat;

use super::declare::{COMMANDS, Command, help};
use super::getopt::Opt;
use super::{Exit, Outcome, Session};

/// Runs a command of our own; the first argument is its name.
pub(crate) async fn run(session: &mut Session, arguments: &[String]) -> Outcome {
    let Some((name, rest)) = arguments.split_first() else {
        session.out.push(super::out::Stream::Err, help().as_bytes());
        return Err(Exit(2));
    };
    let Some(command) = COMMANDS.iter().find(|command| command.name == name) else {
        session
            .out
            .error(format!("sanbox: unknown command '{name}'"));
        session.out.push(super::out::Stream::Err, help().as_bytes());
        return Err(Exit(2));
    };
    session.enter((command.name, &command.usage()), None);
    let args = Arguments::read(session, command, rest)?;
    match command.name {
        "ls" => files::ls(session, &args).await,
        "cat" => files::cat(session, &args).await,
        "rm" => files::rm(session, &args).await,
        "mkdir" => files::mkdir(session, &args).await,
        "get" => copy::get(session, &args).await,
        "put" => copy::put(session, &args).await,
        "mount" => files::mount(session, &args).await,
        "target" => target::run(session, &args).await,
        "arcstat" => arcstat::run(session, &args).await,
        "zilstat" => zilstat::run(session, &args).await,
        "sums" => digests::run(session, &args).await,
        "top" => top::run(session, &args).await,
        "tune" => tune::run(session, &args).await,
        "log" => log::run(session, &args),
        "user" => user::run(session, &args).await,
        "job" => job::run(session, &args).await,
        "policy" => policy::run(session, &args).await,
        "snapshots" => policy::snapshots(session, &args).await,
        "stmfadm" | "sbdadm" => comstar::units(session, command.name, &args).await,
        "itadm" => comstar::targets(session, &args).await,
        "doctor" => doctor::run(session).await,
        "completion" => documents::completion(session, &args),
        "man" => documents::man(session, &args),
        other => Err(session.fail(format!("sanbox {other}: cannot be run here"))),
    }
}

/// The options and operands given to a command.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    letters: Vec<(char, Option<String>)>,
    longs: Vec<(&'static str, Option<String>)>,
    /// What is no option.
    pub(crate) operands: Vec<String>,
}

impl Arguments {
    /// Reads the arguments of a command by its declaration.
    pub(crate) fn read(
        session: &Session,
        command: &Command,
        arguments: &[String],
    ) -> Result<Self, Exit> {
        let (letters, longs) = command.options();
        let mut args = Self::default();
        args.operands = session.options(arguments, &letters, &longs, |_, option| {
            match option {
                Opt::Short(letter, value) => args.letters.push((letter, value)),
                Opt::Long(name, value) => args.longs.push((name, value)),
            }
            Ok(())
        })?;
        Ok(args)
    }

    /// Whether a letter was given.
    pub(crate) fn has(&self, letter: char) -> bool {
        self.letters.iter().any(|(given, _)| *given == letter)
    }

    /// Whether a long option was given.
    pub(crate) fn has_long(&self, name: &str) -> bool {
        self.longs.iter().any(|(given, _)| *given == name)
    }

    /// The last value of a long option.
    pub(crate) fn long(&self, name: &str) -> Option<&str> {
        self.longs
            .iter()
            .rev()
            .find(|(given, _)| *given == name)?
            .1
            .as_deref()
    }

    /// The last value of an option that has both, or a letter only.
    pub(crate) fn either(&self, letter: char, name: &str) -> Option<&str> {
        self.value(letter).or_else(|| self.long(name))
    }

    /// Whether an option that has both was given.
    pub(crate) fn has_either(&self, letter: char, name: &str) -> bool {
        self.has(letter) || self.has_long(name)
    }

    /// All values of an option that has both, letters first.
    pub(crate) fn all(&self, letter: char, name: &str) -> Vec<&str> {
        let letters = self.letters.iter().filter(|(given, _)| *given == letter);
        let longs = self.longs.iter().filter(|(given, _)| *given == name);
        letters
            .filter_map(|(_, value)| value.as_deref())
            .chain(longs.filter_map(|(_, value)| value.as_deref()))
            .collect()
    }

    /// All values of a long option.
    pub(crate) fn longs(&self, name: &str) -> Vec<&str> {
        let given = self.longs.iter().filter(|(given, _)| *given == name);
        given.filter_map(|(_, value)| value.as_deref()).collect()
    }

    /// The last value of a letter.
    pub(crate) fn value(&self, letter: char) -> Option<&str> {
        self.letters
            .iter()
            .rev()
            .find(|(given, _)| *given == letter)?
            .1
            .as_deref()
    }
}
