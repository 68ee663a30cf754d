//! `zfs project`: the project that the space of files is counted for, and whether what is made in a directory is of its project.

use engine::{Attr, Cred, FileType, FlagsChange, FsError, FsHandle, SetAttr, flags};

use crate::cli::command::{Command, Word, options};
use crate::cli::sanbox::directory::entries;
use crate::cli::sanbox::remote_path::{located, walk};
use crate::cli::{Exit, Outcome, Session};

options! {
    ProjectOption {
        Zero = short('0', "with -c, names that end with a NUL instead of a newline, and nothing else"),
        Clear = short('C', "take the flag away, and the project, which is 0 then"),
        Check = short('c', "name what has another project, or lacks the flag that what is made in it takes its project"),
        Directory = short('d', "the directory itself, not what is in it"),
        Keep = short('k', "with -C, leave the project as it is"),
        Project(String) = valued('p', "id", "the project; with -c and -s without it, that of the file or directory itself"),
        Recursive = short('r', "also what is below"),
        Set = short('s', "set the flag: what is made in a directory takes its project"),
    }
}

/// The declaration of `zfs project`.
pub(super) const PROJECT: Command = Command {
    name: "project",
    summary: "list, set and check the project of files",
    usage: "\tproject [-d|-r] <directory|file ...>\n\
         \tproject -c [-0] [-d|-r] [-p id] <directory|file ...>\n\
         \tproject -C [-k] [-r] <directory ...>\n\
         \tproject [-p id] [-r] [-s] <directory ...>\n",
    flags: ProjectOption::FLAGS,
    says_missing: false,
    words: &[Word::Text],
    text: &[
        "Space and files are counted by project where the pool has the feature project_quota, and limited by the properties projectquota@ID and \
         projectobjquota@ID; 'zfs projectspace' lists them. A directory with the flag (P in the list) gives its project to what is made in it, and \
         nothing of another project may be linked or moved into it.",
        "Files are named by their path in a mounted file system, or as DATASET:/PATH, which needs no mount.",
    ],
    examples: &[
        (
            "zfs project -p 100 -rs /tank/home/anna",
            "all of it is of project 100, and so is what will be made in it",
        ),
        (
            "zfs set projectquota@100=50G tank/home",
            "which may take 50 GiB",
        ),
        (
            "zfs project -c -r /tank/home/anna",
            "what is not of the project",
        ),
    ],
    ..Command::NEW
};

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    List,
    Check,
    Clear,
    Set,
}

#[derive(Clone)]
struct Project<'a> {
    session: &'a Session,
    operation: Option<Operation>,
    zero: bool,
    directory: bool,
    keep: bool,
    recursive: bool,
    set_flag: bool,
    id: Option<u32>,
    cred: Cred,
}

// OpenZFS: cmd/zfs/zfs_main.c, zfs_do_project; cmd/zfs/zfs_project.c
pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let mut project = Project {
        session,
        operation: None,
        zero: false,
        directory: false,
        keep: false,
        recursive: false,
        set_flag: false,
        id: None,
        cred: Cred::root(),
    };
    let operands = session.read_options(arguments, |_, option| project.read_option(option))?;
    let operation = match (project.operation, project.id) {
        (Some(operation), _) => operation,
        (None, Some(_)) => Operation::Set,
        (None, None) => Operation::List,
    };
    project.check_options(operation)?;
    if operands.is_empty() {
        return Err(session.misuse("missing file or directory target(s)"));
    }
    let mut failed = false;
    for operand in &operands {
        failed |= project.operand(operation, operand).await.is_err();
        session.out.flush().await?;
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

impl Project<'_> {
    fn read_option(&mut self, option: ProjectOption) -> Outcome {
        match option {
            ProjectOption::Zero => self.zero = true,
            ProjectOption::Clear => self.choose(Operation::Clear)?,
            ProjectOption::Check => self.choose(Operation::Check)?,
            ProjectOption::Set => {
                self.choose(Operation::Set)?;
                self.set_flag = true;
            }
            ProjectOption::Directory => (self.directory, self.recursive) = (true, false),
            ProjectOption::Recursive => (self.directory, self.recursive) = (false, true),
            ProjectOption::Keep => self.keep = true,
            ProjectOption::Project(text) => self.id = Some(self.number(&text)?),
        }
        Ok(())
    }

    fn choose(&mut self, operation: Operation) -> Outcome {
        if self.operation.replace(operation).is_some() {
            return Err(self
                .session
                .misuse("cannot specify '-C' '-c' '-s' together"));
        }
        Ok(())
    }

    fn number(&self, text: &str) -> Result<u32, Exit> {
        let number = text.parse::<u64>().map_err(|_| {
            self.session
                .misuse(format!("project ID must be less than {}", u32::MAX))
        })?;
        let number = u32::try_from(number).ok().filter(|id| *id < u32::MAX);
        number.ok_or_else(|| self.session.misuse("invalid project ID"))
    }

    /// Refuses options that mean nothing for the operation.
    fn check_options(&self, operation: Operation) -> Outcome {
        let wrong = match operation {
            Operation::Clear if self.directory => "'-d' is useless together with '-C'",
            Operation::Clear if self.id.is_some() => "'-p' is useless together with '-C'",
            Operation::Set if self.directory => {
                "'-d' is useless for set project ID and/or inherit flag"
            }
            _ if self.keep && operation != Operation::Clear => {
                "'-k' is only valid together with '-C'"
            }
            _ if self.zero && operation != Operation::Check => {
                "'-0' is only valid together with '-c'"
            }
            _ => return Ok(()),
        };
        Err(self.session.misuse(wrong))
    }

    fn complaint(&self, what: &str, name: &str, error: &FsError) -> Exit {
        self.session
            .fail(format!("failed to {what} {name}: {error}"))
    }

    async fn operand(&self, operation: Operation, name: &str) -> Outcome {
        let remote = located(self.session, name)?;
        let fs = remote.open(self.session).await?;
        let found = walk(&fs, &remote.path, &self.cred).await;
        let attr = found.map_err(|error| self.complaint("stat", name, &error))?;
        let is_directory = attr.file_type == FileType::Directory;
        if !is_directory && attr.file_type != FileType::Regular {
            return Err(self
                .session
                .fail("only support project quota on regular file or directory"));
        }
        if !is_directory && (self.directory || self.recursive) {
            let letter = if self.directory { 'd' } else { 'r' };
            return Err(self
                .session
                .fail(format!("'-{letter}' option on non-dir target {name}")));
        }
        let id = self.id.unwrap_or(attr.project);
        self.one(operation, &fs, &attr, name, id).await?;
        let lists = matches!(operation, Operation::List | Operation::Check);
        if !is_directory || self.directory || !(self.recursive || lists) {
            return Ok(());
        }
        self.below(operation, &fs, &attr, name, id).await
    }

    /// What is in a directory, and with -r below it.
    async fn below(
        &self,
        operation: Operation,
        fs: &FsHandle,
        top: &Attr,
        name: &str,
        id: u32,
    ) -> Outcome {
        let mut waiting = vec![(top.id, name.trim_end_matches('/').to_owned())];
        while let Some((dir, path)) = waiting.pop() {
            let list = match entries(fs, dir, &self.cred).await {
                Ok(list) => list,
                // Removed meanwhile.
                Err(FsError::Stale | FsError::NotFound) => continue,
                Err(error) => return Err(self.complaint("readdir", &path, &error)),
            };
            for entry in list {
                let attr = match entry.attr {
                    Some(attr) => Some(attr),
                    None => fs.lookup(dir, &entry.name, &self.cred).await.ok(),
                };
                let Some(attr) = attr else { continue };
                let name = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
                match attr.file_type {
                    FileType::Directory | FileType::Regular => {
                        self.one(operation, fs, &attr, &name, id).await?;
                    }
                    _ => continue,
                }
                if self.recursive && attr.file_type == FileType::Directory {
                    waiting.push((attr.id, name));
                }
            }
            self.session.out.flush().await?;
        }
        Ok(())
    }

    async fn one(
        &self,
        operation: Operation,
        fs: &FsHandle,
        attr: &Attr,
        name: &str,
        id: u32,
    ) -> Outcome {
        let out = &self.session.out;
        let inherits = attr.flags & flags::PROJINHERIT != 0;
        let mut set = SetAttr::default();
        match operation {
            Operation::List => {
                let letter = if inherits { 'P' } else { '-' };
                out.line(format!("{:5} {letter} {name}", attr.project));
            }
            Operation::Check if attr.project == id && inherits => {}
            Operation::Check if self.zero => out.text(format!("{name}\0")),
            Operation::Check => {
                if attr.project != id {
                    let (is, should) = (attr.project, id);
                    out.line(format!(
                        "{name} - project ID is not set properly ({is}/{should})"
                    ));
                }
                if !inherits {
                    out.line(format!("{name} - project inherit flag is not set"));
                }
            }
            Operation::Clear => {
                set.flags = inherits.then_some(FlagsChange::among(flags::PROJINHERIT, 0));
                set.project = (!self.keep && attr.project != 0).then_some(0);
            }
            Operation::Set => {
                let sets = self.set_flag && !inherits;
                set.flags =
                    sets.then_some(FlagsChange::among(flags::PROJINHERIT, flags::PROJINHERIT));
                set.project = (attr.project != id).then_some(id);
            }
        }
        if set == SetAttr::default() {
            return Ok(());
        }
        match fs.setattr(attr.id, &set, None, &self.cred).await {
            Ok(_) | Err(FsError::Stale) => Ok(()),
            Err(error) => Err(self.complaint("set xattr for", name, &error)),
        }
    }
}
