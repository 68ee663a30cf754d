//! `zfs rewrite`: what files and volumes hold is written anew, with the properties and on the devices of now.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use engine::property::parse_number;
use engine::{Attr, Cred, FileType, FsError, FsHandle, VolumeHandle};

use crate::cli::command::{Command, Word, options};
use crate::cli::sanbox::directory::entries;
use crate::cli::sanbox::remote_path::{RemotePath, mount_of, walk};
use crate::cli::{Exit, Outcome, Session, dataset_clause};

options! {
    RewriteOption {
        Recursive = short('r', "go into directories"),
        Verbose = short('v', "print the name of each file that was rewritten"),
        OneFilesystem = short('x', "with -r, stay in the file system that a directory is in"),
        Length(String) = valued('l', "length", "at most this many bytes of each file"),
        Offset(String) = valued('o', "offset", "from this byte of each file on"),
    }
}

/// The declaration of `zfs rewrite`.
pub(super) const REWRITE: Command = Command {
    name: "rewrite",
    summary: "write the blocks of files and volumes anew, as they are",
    usage: "\trewrite [-rvx] [-l <length>] [-o <offset>] <directory|file|volume ...>\n",
    flags: RewriteOption::FLAGS,
    says_missing: false,
    words: &[Word::Device],
    text: &[
        "Properties like compression, checksum and copies apply to what is written after they were set, and devices that join a pool get \
         nothing of what is there. This writes it again: what files hold, their times and the size of their blocks stay, holes stay \
         holes. Files are in use meanwhile as always, and it may be broken off at any time.",
        "Blocks that a snapshot has are kept for it, so that the space of what is rewritten is in use twice until the snapshot goes, and \
         increments of send contain all of it.",
        "Files are named by their path in a mounted file system, or as DATASET:/PATH, which needs no mount. A volume is named as such; -l and \
         -o apply to it, too.",
    ],
    examples: &[
        (
            "zfs rewrite -r /tank/photos",
            "compress what was written before compression was set; spread it over devices added since",
        ),
        ("zfs rewrite -v tank/vm1", "the same, of a volume"),
    ],
    ..Command::NEW
};

/// What is rewritten of each file.
struct Rewrite<'a> {
    session: &'a Session,
    recursive: bool,
    verbose: bool,
    one_filesystem: bool,
    offset: u64,
    length: u64,
    cred: Cred,
}

// OpenZFS: man/man8/zfs-rewrite.8
pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let mut rewrite = Rewrite {
        session,
        recursive: false,
        verbose: false,
        one_filesystem: false,
        offset: 0,
        length: u64::MAX,
        cred: Cred::root(),
    };
    let number = |session: &Session, text: &str| {
        parse_number(text).map_err(|_| session.misuse(format!("invalid number '{text}'")))
    };
    let operands = session.read_options(arguments, |session, option| {
        match option {
            RewriteOption::Recursive => rewrite.recursive = true,
            RewriteOption::Verbose => rewrite.verbose = true,
            RewriteOption::OneFilesystem => rewrite.one_filesystem = true,
            RewriteOption::Length(text) => rewrite.length = number(session, &text)?,
            RewriteOption::Offset(text) => rewrite.offset = number(session, &text)?,
        }
        Ok(())
    })?;
    if operands.is_empty() {
        return Err(session.misuse("missing file or directory target(s)"));
    }
    let mut failed = false;
    for operand in &operands {
        failed |= rewrite.operand(operand).await.is_err();
        session.out.flush().await?;
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

impl Rewrite<'_> {
    async fn operand(&self, operand: &str) -> Outcome {
        if RemotePath::parse(operand).is_some() {
            let remote = RemotePath::of(self.session, operand)?;
            let fs = remote.open(self.session).await?;
            let found = walk(&fs, &remote.path, &self.cred).await;
            let attr = found.map_err(|error| self.complaint(operand, error))?;
            return self.tree(&fs, attr, PathBuf::from(operand)).await;
        }
        let path = self.session.path(operand);
        let Some((dataset, point)) = mount_of(self.session, &path) else {
            return self.volume(operand).await;
        };
        let below = path.strip_prefix(&point).unwrap_or(Path::new(""));
        let names: Option<Vec<String>> = below
            .components()
            .map(|part| part.as_os_str().to_str().map(str::to_owned))
            .collect();
        let remote = RemotePath {
            dataset,
            path: names.ok_or_else(|| self.complaint(operand, FsError::Invalid))?,
        };
        let fs = remote.open(self.session).await?;
        let found = walk(&fs, &remote.path, &self.cred).await;
        let attr = found.map_err(|error| self.complaint(operand, error))?;
        let is_directory = attr.file_type == FileType::Directory;
        self.tree(&fs, attr, PathBuf::from(operand)).await?;
        if !is_directory || self.one_filesystem {
            return Ok(());
        }
        let mut failed = false;
        for (dataset, point) in self.session.appliance.mounts().list() {
            if point == path || !point.starts_with(&path) {
                continue;
            }
            let path = Vec::new();
            let root = RemotePath { dataset, path };
            let fs = root.open(self.session).await?;
            let attr = fs.root().await;
            let attr = attr.map_err(|error| self.complaint(point.display(), error))?;
            failed |= self.tree(&fs, attr, point).await.is_err();
        }
        if failed { Err(Exit(1)) } else { Ok(()) }
    }

    fn complaint(&self, what: impl std::fmt::Display, error: impl std::fmt::Display) -> Exit {
        self.session
            .fail(format!("failed to rewrite {what}: {error}"))
    }

    /// Rewrites a file, or the files of a directory and those below it.
    async fn tree(&self, fs: &FsHandle, attr: Attr, path: PathBuf) -> Outcome {
        let mut waiting = vec![(attr, path, true)];
        let mut linked = BTreeSet::new();
        let mut failed = false;
        while let Some((attr, path, named)) = waiting.pop() {
            match attr.file_type {
                // Once, by whichever of its names comes first.
                FileType::Regular if attr.links > 1 && !linked.insert(attr.id.object) => {}
                FileType::Regular => failed |= self.file(fs, &attr, &path).await.is_err(),
                FileType::Directory if self.recursive => {
                    let listed = entries(fs, attr.id, &self.cred).await;
                    let Ok(list) = listed.map_err(|error| self.complaint(path.display(), error))
                    else {
                        failed = true;
                        continue;
                    };
                    for entry in list {
                        // What is removed meanwhile is not there to be rewritten.
                        if let Some(attr) = match entry.attr {
                            Some(attr) => Some(attr),
                            None => fs.lookup(attr.id, &entry.name, &self.cred).await.ok(),
                        } {
                            let name = String::from_utf8_lossy(&entry.name).into_owned();
                            waiting.push((attr, path.join(name), false));
                        }
                    }
                }
                FileType::Directory if named => {
                    let why = "it is a directory; -r rewrites the files in it";
                    self.complaint(path.display(), why);
                    failed = true;
                }
                _ => {}
            }
        }
        if failed { Err(Exit(1)) } else { Ok(()) }
    }

    async fn file(&self, fs: &FsHandle, attr: &Attr, path: &Path) -> Outcome {
        let mut at = Some(self.offset);
        let end = self.offset.saturating_add(self.length);
        while let Some(offset) = at {
            let step = fs.rewrite(attr.id, offset, end - offset, &self.cred).await;
            match step {
                Ok(done) => at = done.next,
                // Removed meanwhile.
                Err(FsError::Stale) => return Ok(()),
                Err(error) => return Err(self.complaint(path.display(), error)),
            }
        }
        self.rewritten(path.display()).await
    }

    async fn volume(&self, name: &str) -> Outcome {
        let opened = async {
            let pool = self.session.appliance.pool_of(name).await?;
            pool.open_volume(name).await
        };
        let volume: VolumeHandle = opened.await.map_err(|error| {
            let why = dataset_clause(&error);
            self.complaint(
                name,
                format!("{why} (neither a path in a mounted file system nor a volume)"),
            )
        })?;
        let size = volume.info().await;
        let size = size.map_err(|error| self.complaint(name, error))?.size;
        let end = self.offset.saturating_add(self.length).min(size);
        let mut at = Some(self.offset).filter(|&offset| offset < end);
        while let Some(offset) = at {
            let step = volume.rewrite(offset, end - offset).await;
            at = step.map_err(|error| self.complaint(name, error))?.next;
        }
        self.rewritten(name).await
    }

    async fn rewritten(&self, what: impl std::fmt::Display) -> Outcome {
        if self.verbose {
            self.session.out.line(what.to_string());
            self.session.out.flush().await?;
        }
        Ok(())
    }
}
