//! The commands of our own.

pub(crate) mod access;
mod acl;
mod alert;
mod alert_channel;
mod archive;
mod arcstat;
mod certificate;
mod checks;
mod comstar;
mod config;
mod copy;
mod digests;
pub(crate) mod directory;
mod doctor;
mod documents;
mod estimate;
mod files;
mod foretold;
mod group;
mod job;
mod log;
mod nfsstat;
mod peer;
mod policy;
pub(crate) mod remote_path;
mod replication;
mod report;
mod restore;
pub(crate) mod sample;
mod smb;
mod ssh_keys;
mod support;
mod tar;
mod target;
mod top;
mod trash;
mod tune;
mod undo;
mod user;
mod volume;
mod why;
mod zilstat;
mod zinject;

use super::command::Flag;
use super::declare::{COMMANDS, help};
use super::format::{Column, table};
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
    session.enter(command, None);
    if command.name == "zinject" {
        // Its words are OpenZFS's, and so are its answers to wrong ones.
        return zinject::run(session, rest).await;
    }
    let args = Arguments::read(session, rest)?;
    match command.name {
        "ls" => files::ls(session, &args).await,
        "cat" => files::cat(session, &args).await,
        "rm" => files::rm(session, &args).await,
        "mkdir" => files::mkdir(session, &args).await,
        "get" if args.has_long("tar") => archive::get(session, &args).await,
        "get" => copy::get(session, &args).await,
        "put" => copy::put(session, &args).await,
        "restore" => restore::run(session, &args).await,
        "mount" => files::mount(session, &args).await,
        "mount.zfs" => files::mount_zfs(session, &args).await,
        "target" => target::run(session, &args).await,
        "arcstat" => arcstat::run(session, &args).await,
        "zilstat" => zilstat::run(session, &args).await,
        "estimate" => estimate::run(session, &args).await,
        "sums" => digests::run(session, &args).await,
        "access" => access::run(session, &args).await,
        "acl" => acl::run(session, &args).await,
        "smb" => smb::run(session, &args).await,
        "nfsstat" => nfsstat::run(session, &args).await,
        "top" => top::run(session, &args).await,
        "trash" => trash::run(session, &args).await,
        "tune" => tune::run(session, &args).await,
        "undo" => undo::run(session, &args).await,
        "log" => log::run(session, &args),
        "user" => user::run(session, &args).await,
        "group" => group::run(session, &args).await,
        "ssh-keys" => ssh_keys::run(session, &args).await,
        "authorized-keys" => ssh_keys::authorized(session, &args).await,
        "job" => job::run(session, &args).await,
        "alert" => alert::run(session, &args).await,
        "certificate" => certificate::run(session, &args).await,
        "checks" => checks::run(session, &args).await,
        "policy" => policy::run(session, &args).await,
        "immutable" => policy::immutable(session, &args).await,
        "snapshots" => policy::snapshots(session, &args).await,
        "replication" => replication::run(session, &args).await,
        "report" => report::run(session, &args).await,
        "peer" => peer::run(session, &args).await,
        "config" => config::run(session, &args).await,
        "why" => why::run(session, &args).await,
        "stmfadm" | "sbdadm" => comstar::units(session, command.name, &args).await,
        "itadm" => comstar::targets(session, &args).await,
        "doctor" => doctor::run(session).await,
        "support" => support::run(session).await,
        "completion" => documents::completion(session, &args),
        "man" => documents::man(session, &args),
        other => Err(session.fail(format!("sanbox {other}: cannot be run here"))),
    }
}

/// Prints a table with headings; with `-H` its cells alone, between tabs.
fn print_table(session: &Session, args: &Arguments, titles: &[&str], rows: &[Vec<String>]) {
    let columns: Vec<Column> = titles.iter().map(|title| Column::left(title)).collect();
    session.out.text(table(&columns, rows, args.has('H')));
}

/// The options and operands given to a command.
#[derive(Debug)]
pub(crate) struct Arguments {
    declared: &'static [Flag],
    options: Vec<(Flag, Option<String>)>,
    /// What is no option.
    pub(crate) operands: Vec<String>,
}

impl Arguments {
    /// Reads the arguments of the command that runs, by its declaration.
    pub(crate) fn read(session: &Session, arguments: &[String]) -> Result<Self, Exit> {
        let declared = session.command().flags;
        let mut options = Vec::new();
        let operands = session.each_option(arguments, |_, given| {
            options.push((declared[given.index], given.value));
            Ok(())
        })?;
        Ok(Self {
            declared,
            options,
            operands,
        })
    }

    /// The values of an option that is declared with this letter or long name, in order.
    fn values(&self, is: impl Fn(&Flag) -> bool) -> impl DoubleEndedIterator<Item = Option<&str>> {
        // What is read is what help and manual say.
        assert!(self.declared.iter().any(&is));
        let given = self.options.iter().filter(move |(flag, _)| is(flag));
        given.map(|(_, value)| value.as_deref())
    }

    /// Whether a letter was given.
    pub(crate) fn has(&self, letter: char) -> bool {
        self.values(|flag| flag.short == Some(letter))
            .next()
            .is_some()
    }

    /// Whether a long option was given.
    pub(crate) fn has_long(&self, name: &str) -> bool {
        self.values(|flag| flag.long == Some(name)).next().is_some()
    }

    /// The last value of a long option.
    pub(crate) fn long(&self, name: &str) -> Option<&str> {
        self.values(|flag| flag.long == Some(name)).next_back()?
    }

    /// All values of an option that has a letter.
    pub(crate) fn all(&self, letter: char) -> Vec<&str> {
        self.values(|flag| flag.short == Some(letter))
            .flatten()
            .collect()
    }

    /// All values of a long option.
    pub(crate) fn longs(&self, name: &str) -> Vec<&str> {
        self.values(|flag| flag.long == Some(name))
            .flatten()
            .collect()
    }

    /// The last value of a letter.
    pub(crate) fn value(&self, letter: char) -> Option<&str> {
        self.values(|flag| flag.short == Some(letter)).next_back()?
    }
}
