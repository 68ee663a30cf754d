//! What a directory tree should look like: the oracle of one client.
//!
//! Plain maps, changed by [`Op`]s; no knowledge of how files are stored. Cloning a tree is cheap: contents are shared.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use world::Rng;

/// Contents stay below this, so that one operation fits one transaction group.
pub const FILE_BYTES_MAX: u64 = 700 * 1024;

/// Contents that a client repeats.
const REPEATED_CONTENTS: u64 = 9;

/// What a filling client writes at once.
const FILL_BYTES: u64 = 400 * 1024;

/// Most bytes cloned at once: one transaction even with the smallest blocks.
const CLONE_BYTES_MAX: u64 = 512 * 1000;

/// Written to files that are removed while open.
pub const OPEN_WRITE_BYTES: u64 = 9000;

/// What a client does most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// A bit of everything.
    Mixed,
    /// Many names in few directories, some of them long: ZAPs grow and change form.
    Names,
    /// Fewer files, rewritten and truncated again and again.
    Rewrite,
    /// Data until the pool is full, and then removal.
    Fill,
    /// Few small files, and most of what is done is made durable at once.
    Sync,
    /// Files are cloned, whole and in parts, and what they were cloned from is rewritten and removed.
    Clone,
    /// The same few contents are written again and again, to many files and over each other.
    Repeat,
}

/// One step of a client. Paths are relative to its own directory, parts joined by `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Create {
        path: String,
        mode: u32,
    },
    Write {
        path: String,
        offset: u64,
        len: u64,
        fill: u64,
        stable: bool,
    },
    /// Make bytes of a file those of another one, by a clone if that can be.
    Clone {
        from: String,
        at: u64,
        len: u64,
        path: String,
        to: u64,
        stable: bool,
    },
    Truncate {
        path: String,
        size: u64,
    },
    Punch {
        path: String,
        offset: u64,
        len: u64,
    },
    Remove {
        path: String,
    },
    /// Remove the only name while the file is held open, write to it, read it, and let it go.
    RemoveOpen {
        path: String,
        fill: u64,
    },
    Mkdir {
        path: String,
        mode: u32,
    },
    Rmdir {
        path: String,
    },
    Rename {
        from: String,
        to: String,
    },
    Link {
        path: String,
        new: String,
    },
    Symlink {
        path: String,
        target: String,
    },
    SetAttr {
        path: String,
        mode: u32,
        uid: u32,
        gid: u32,
        mtime_seconds: i64,
    },
    SetXattr {
        path: String,
        name: String,
        len: u64,
        fill: u64,
    },
    RemoveXattr {
        path: String,
        name: String,
    },
    /// Make one file's writes stable.
    Commit {
        path: String,
    },
    /// Make everything stable.
    Sync,
    /// Read a file and compare.
    Read {
        path: String,
    },
    /// List a directory and compare.
    List {
        path: String,
    },
}

/// What a name leads to, as both the model and a walk describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    Dir {
        mode: u32,
        uid: u32,
        gid: u32,
        links: u64,
    },
    File(File),
    Symlink {
        target: Vec<u8>,
    },
}

/// A regular file.
#[derive(Clone, PartialEq, Eq)]
pub struct File {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime_seconds: Option<i64>,
    pub content: Rc<Vec<u8>>,
    pub xattrs: BTreeMap<String, Rc<Vec<u8>>>,
    /// All names of the file.
    pub names: BTreeSet<String>,
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (mode, size) = (self.mode, self.content.len());
        write!(
            f,
            "file {mode:o} {}:{} {size} bytes, {} xattrs",
            self.uid,
            self.gid,
            self.xattrs.len()
        )?;
        write!(f, ", names {:?}", self.names)
    }
}

/// Everything below a client's directory, by path.
pub type Visible = BTreeMap<String, Node>;

#[derive(Clone, Debug)]
struct Dir {
    number: u64,
    mode: u32,
    uid: u32,
    gid: u32,
}

#[derive(Clone, Debug)]
enum Inode {
    File {
        mode: u32,
        uid: u32,
        gid: u32,
        mtime_seconds: Option<i64>,
        content: Rc<Vec<u8>>,
        xattrs: BTreeMap<String, Rc<Vec<u8>>>,
    },
    Symlink {
        target: Vec<u8>,
    },
}

/// The oracle's tree.
#[derive(Clone, Debug)]
pub struct Tree {
    dirs: BTreeMap<String, Dir>,
    names: BTreeMap<String, u64>,
    inodes: BTreeMap<u64, Inode>,
    next: u64,
}

/// The bytes of a write: different for each `fill`, and at each offset, so that misplaced data is noticed; some
/// compress, some do not, some are zero.
#[must_use]
pub fn pattern(fill: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(len).expect("small")];
    match fill % 4 {
        0 if fill.is_multiple_of(8) => {}
        0 | 1 => {
            let word = fill.to_le_bytes();
            for (index, chunk) in bytes.chunks_mut(64).enumerate() {
                let tag = word[index % 8];
                chunk.fill(tag);
                chunk[0] = u8::try_from(index % 251).expect("small");
            }
        }
        _ => Rng::new(fill).fill(&mut bytes),
    }
    bytes
}

/// Returns the directory part and the last part of a path.
#[must_use]
pub fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn below(path: &str, dir: &str) -> bool {
    path.len() > dir.len()
        && path.starts_with(dir)
        && (dir.is_empty() || path.as_bytes()[dir.len()] == b'/')
}

impl Op {
    /// Whether it changes names: then any commit makes it stable.
    #[must_use]
    pub fn changes_names(&self) -> bool {
        matches!(
            self,
            Self::Create { .. }
                | Self::Remove { .. }
                | Self::RemoveOpen { .. }
                | Self::Mkdir { .. }
                | Self::Rmdir { .. }
                | Self::Rename { .. }
                | Self::Link { .. }
                | Self::Symlink { .. }
        )
    }

    /// The file that it writes to, and where.
    #[must_use]
    pub fn written(&self) -> Option<(&str, u64, u64)> {
        match self {
            Self::Write {
                path, offset, len, ..
            } => Some((path, *offset, *len)),
            Self::Clone { path, to, len, .. } => Some((path, *to, *len)),
            _ => None,
        }
    }

    /// Whether a full pool may refuse it. Removing must always work, and making
    /// a file shorter (which is judged by the caller, which knows how long it is).
    #[must_use]
    pub fn takes_space(&self) -> bool {
        !matches!(
            self,
            Self::Remove { .. }
                | Self::RemoveOpen { .. }
                | Self::Rmdir { .. }
                | Self::RemoveXattr { .. }
                | Self::Commit { .. }
                | Self::Sync
                | Self::Read { .. }
                | Self::List { .. }
        )
    }
}

impl Tree {
    /// Makes the model of an empty directory with these permissions, owned by root.
    #[must_use]
    pub fn empty(mode: u32) -> Self {
        let dirs = BTreeMap::from([(
            String::new(),
            Dir {
                number: 1,
                mode,
                uid: 0,
                gid: 0,
            },
        )]);
        Self {
            dirs,
            names: BTreeMap::new(),
            inodes: BTreeMap::new(),
            next: 1,
        }
    }

    /// Makes a model of what is there.
    #[must_use]
    pub fn of(visible: &Visible) -> Self {
        let mut tree = Self {
            dirs: BTreeMap::new(),
            ..Self::empty(0)
        };
        for (path, node) in visible {
            match node {
                Node::Dir { mode, uid, gid, .. } => {
                    tree.next += 1;
                    tree.dirs.insert(
                        path.clone(),
                        Dir {
                            number: tree.next,
                            mode: *mode,
                            uid: *uid,
                            gid: *gid,
                        },
                    );
                }
                Node::Symlink { target } => tree.add(
                    path,
                    Inode::Symlink {
                        target: target.clone(),
                    },
                ),
                Node::File(file) => {
                    let first = file.names.first().expect("a file has a name");
                    if first == path {
                        let inode = Inode::File {
                            mode: file.mode,
                            uid: file.uid,
                            gid: file.gid,
                            mtime_seconds: None,
                            content: file.content.clone(),
                            xattrs: file.xattrs.clone(),
                        };
                        tree.add(path, inode);
                    } else {
                        let number = tree.names[first];
                        tree.names.insert(path.clone(), number);
                    }
                }
            }
        }
        tree
    }

    fn add(&mut self, path: &str, inode: Inode) {
        self.next += 1;
        self.names.insert(path.to_owned(), self.next);
        self.inodes.insert(self.next, inode);
    }

    fn drop_name(&mut self, path: &str) {
        let number = self.names.remove(path).expect("the name exists");
        if !self.names.values().any(|&other| other == number) {
            self.inodes.remove(&number);
        }
    }

    fn inode(&mut self, path: &str) -> &mut Inode {
        let number = self.names.get(path).expect("the name exists");
        self.inodes.get_mut(number).expect("named files exist")
    }

    /// Applies an operation that is valid here.
    ///
    /// # Panics
    /// When it is not.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Create { path, mode } => {
                let (content, xattrs) = (Rc::default(), BTreeMap::new());
                self.add(
                    path,
                    Inode::File {
                        mode: *mode,
                        uid: 0,
                        gid: 0,
                        mtime_seconds: None,
                        content,
                        xattrs,
                    },
                );
            }
            Op::Write {
                path,
                offset,
                len,
                fill,
                ..
            } => self.change(path, |content| {
                let (from, to) = (index(*offset), index(offset + len));
                if content.len() < to {
                    content.resize(to, 0);
                }
                content[from..to].copy_from_slice(&pattern(*fill, *len));
            }),
            Op::Clone {
                from,
                at,
                len,
                path,
                to,
                ..
            } => {
                let source = self.content(from).expect("the source exists");
                let source = source[index(*at)..index(at + len)].to_vec();
                self.change(path, |content| {
                    let (from, to) = (index(*to), index(to + len));
                    if content.len() < to {
                        content.resize(to, 0);
                    }
                    content[from..to].copy_from_slice(&source);
                });
            }
            Op::Truncate { path, size } => {
                self.change(path, |content| content.resize(index(*size), 0));
            }
            Op::Punch { path, offset, len } => self.change(path, |content| {
                let to = index(offset + len).min(content.len());
                let from = index(*offset).min(to);
                content[from..to].fill(0);
            }),
            Op::Remove { path } => self.drop_name(path),
            Op::RemoveOpen { path, .. } => self.drop_name(path),
            Op::Mkdir { path, mode } => {
                self.next += 1;
                self.dirs.insert(
                    path.clone(),
                    Dir {
                        number: self.next,
                        mode: *mode,
                        uid: 0,
                        gid: 0,
                    },
                );
            }
            Op::Rmdir { path } => {
                self.dirs.remove(path);
            }
            Op::Rename { from, to } => self.rename(from, to),
            Op::Link { path, new } => {
                let number = self.names[path];
                self.names.insert(new.clone(), number);
            }
            Op::Symlink { path, target } => self.add(
                path,
                Inode::Symlink {
                    target: target.clone().into_bytes(),
                },
            ),
            Op::SetAttr {
                path,
                mode,
                uid,
                gid,
                mtime_seconds,
            } => {
                if let Some(dir) = self.dirs.get_mut(path) {
                    (dir.mode, dir.uid, dir.gid) = (*mode, *uid, *gid);
                } else if let Inode::File {
                    mode: m,
                    uid: u,
                    gid: g,
                    mtime_seconds: t,
                    ..
                } = self.inode(path)
                {
                    (*m, *u, *g, *t) = (*mode, *uid, *gid, Some(*mtime_seconds));
                }
            }
            Op::SetXattr {
                path,
                name,
                len,
                fill,
            } => {
                if let Inode::File { xattrs, .. } = self.inode(path) {
                    xattrs.insert(name.clone(), Rc::new(pattern(*fill, *len)));
                }
            }
            Op::RemoveXattr { path, name } => {
                if let Inode::File { xattrs, .. } = self.inode(path) {
                    xattrs.remove(name);
                }
            }
            Op::Commit { .. } | Op::Sync | Op::Read { .. } | Op::List { .. } => {}
        }
    }

    fn change(&mut self, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
        if let Inode::File {
            content,
            mtime_seconds,
            ..
        } = self.inode(path)
        {
            change(Rc::make_mut(content));
            *mtime_seconds = None;
        }
    }

    fn rename(&mut self, from: &str, to: &str) {
        if from == to {
            return;
        }
        if self.dirs.contains_key(from) {
            let moved = |path: &str| format!("{to}{}", &path[from.len()..]);
            let inside = |path: &str| path == from || below(path, from);
            self.dirs.remove(to);
            for path in self
                .dirs
                .keys()
                .filter(|path| inside(path))
                .cloned()
                .collect::<Vec<_>>()
            {
                let dir = self.dirs.remove(&path).expect("just listed");
                self.dirs.insert(moved(&path), dir);
            }
            for path in self
                .names
                .keys()
                .filter(|path| inside(path))
                .cloned()
                .collect::<Vec<_>>()
            {
                let number = self.names.remove(&path).expect("just listed");
                self.names.insert(moved(&path), number);
            }
            return;
        }
        let number = self.names[from];
        match self.names.get(to) {
            // POSIX: two names of one file stay as they are.
            Some(&other) if other == number => return,
            Some(_) => self.drop_name(to),
            None => {}
        }
        self.names.remove(from);
        self.names.insert(to.to_owned(), number);
    }

    /// Returns what a walk should find.
    #[must_use]
    pub fn visible(&self) -> Visible {
        let mut visible = Visible::new();
        for (path, dir) in &self.dirs {
            let children = self
                .dirs
                .keys()
                .filter(|other| split(other).0 == path && *other != path)
                .count();
            let links = 2 + children as u64;
            visible.insert(
                path.clone(),
                Node::Dir {
                    mode: dir.mode,
                    uid: dir.uid,
                    gid: dir.gid,
                    links,
                },
            );
        }
        for (path, number) in &self.names {
            let node = node_of(&self.inodes[number], || self.names_of(*number));
            visible.insert(path.clone(), node);
        }
        visible
    }

    fn names_of(&self, number: u64) -> BTreeSet<String> {
        self.names
            .iter()
            .filter(|(_, other)| **other == number)
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// The number by which a file or directory is known whatever its name; the same in all later states.
    #[must_use]
    pub fn number(&self, path: &str) -> Option<u64> {
        let dir = self.dirs.get(path).map(|dir| dir.number);
        dir.or_else(|| self.names.get(path).copied())
    }

    /// What the file or directory with this number was like here, with the names it has in a later state, where it is
    /// at `path`.
    #[must_use]
    pub fn node_as_in(&self, number: u64, path: &str, later: &Self) -> Option<Node> {
        if let Some(inode) = self.inodes.get(&number) {
            return Some(node_of(inode, || later.names_of(number)));
        }
        let dir = self.dirs.values().find(|dir| dir.number == number)?;
        let Some(Node::Dir { links, .. }) = later.visible().remove(path) else {
            return None;
        };
        Some(Node::Dir {
            mode: dir.mode,
            uid: dir.uid,
            gid: dir.gid,
            links,
        })
    }

    /// Returns the content of a regular file.
    #[must_use]
    pub fn content(&self, path: &str) -> Option<Rc<Vec<u8>>> {
        match self.inodes.get(self.names.get(path)?)? {
            Inode::File { content, .. } => Some(content.clone()),
            Inode::Symlink { .. } => None,
        }
    }

    /// Returns the names in a directory.
    #[must_use]
    pub fn entries(&self, dir: &str) -> BTreeSet<String> {
        let in_dir = |path: &&String| !path.is_empty() && split(path).0 == dir;
        let paths = self
            .dirs
            .keys()
            .filter(in_dir)
            .chain(self.names.keys().filter(in_dir));
        paths.map(|path| split(path).1.to_owned()).collect()
    }

    /// Chooses an operation that is valid here.
    pub fn choose(&self, rng: &mut Rng, style: Style) -> Op {
        for _ in 0..20 {
            if let Some(op) = self.try_choose(rng, style) {
                return op;
            }
        }
        Op::Sync
    }

    fn try_choose(&self, rng: &mut Rng, style: Style) -> Option<Op> {
        let files: Vec<&String> = self
            .names
            .keys()
            .filter(|path| self.content(path).is_some())
            .collect();
        let names: Vec<&String> = self.names.keys().collect();
        let file =
            |rng: &mut Rng| (!files.is_empty()).then(|| files[rng.index(files.len())].clone());
        let name =
            |rng: &mut Rng| (!names.is_empty()).then(|| names[rng.index(names.len())].clone());
        let size = |path: &str| self.content(path).map_or(0, |content| content.len() as u64);
        let fill = rng.next_u64() >> 8;
        let draw = rng.below(100);
        // The draws of a mixed day, bent towards the style.
        let draw = match style {
            Style::Mixed => draw,
            Style::Names if draw < 70 => *rng.choose(&[0, 0, 0, 0, 0, 51, 58, 65, 65, 73, 77, 99]),
            Style::Rewrite if draw < 70 && files.len() > 3 => {
                *rng.choose(&[14, 14, 14, 43, 48, 89, 92])
            }
            Style::Sync if draw < 60 => *rng.choose(&[14, 14, 14, 14, 14, 89, 0, 51, 65, 43]),
            Style::Clone if draw < 80 => {
                *rng.choose(&[100, 100, 100, 100, 0, 0, 14, 43, 48, 51, 89, 92])
            }
            Style::Repeat if draw < 80 => {
                *rng.choose(&[14, 14, 14, 14, 14, 14, 0, 0, 43, 48, 51, 89, 92])
            }
            Style::Fill if draw < 80 => *rng.choose(&[0, 0, 14, 14, 14, 14, 14, 14, 14, 51]),
            _ => draw,
        };
        Some(match draw {
            0..=13 => Op::Create {
                path: self.fresh(rng, style)?,
                mode: *rng.choose(&[0o644, 0o600, 0o755]),
            },
            14..=42 => {
                let path = file(rng)?;
                if style == Style::Fill {
                    let fill = fill | 2;
                    return Some(Op::Write {
                        path,
                        offset: 0,
                        len: FILL_BYTES,
                        fill,
                        stable: false,
                    });
                }
                if style == Style::Repeat {
                    let len = 1 << rng.between(12, 17);
                    let offset = rng.below(FILE_BYTES_MAX / len) * len;
                    return Some(Op::Write {
                        path,
                        offset,
                        len,
                        fill: 1 + fill % REPEATED_CONTENTS,
                        stable: rng.below(4) == 0,
                    });
                }
                if style == Style::Sync {
                    let offset = if rng.coin() { 0 } else { rng.below(96 << 10) };
                    let len = match rng.below(8) {
                        0 => rng.between(1, 80 << 10),
                        1..=3 => 1 << rng.between(9, 15),
                        _ => rng.between(1, 9000),
                    };
                    return Some(Op::Write {
                        path,
                        offset,
                        len,
                        fill,
                        stable: rng.coin(),
                    });
                }
                let offset = match rng.below(4) {
                    0 => 0,
                    1 => size(&path),
                    2 => rng.below(size(&path) + 1),
                    _ => rng.below(FILE_BYTES_MAX),
                };
                let len = match rng.below(4) {
                    0 => rng.between(1, 600),
                    1 => rng.between(1, 16 * 1024),
                    2 => 1 << rng.between(9, 17),
                    _ => rng.between(1, 200 * 1024),
                };
                let len = len.min(FILE_BYTES_MAX.saturating_sub(offset)).max(1);
                Op::Write {
                    path,
                    offset,
                    len,
                    fill,
                    stable: rng.below(12) == 0,
                }
            }
            43..=47 => {
                let path = file(rng)?;
                let size = if rng.coin() {
                    rng.below(size(&path) + 1)
                } else if style == Style::Sync {
                    rng.below(128 << 10)
                } else {
                    rng.below(FILE_BYTES_MAX)
                };
                Op::Truncate { path, size }
            }
            48..=50 => {
                let path = file(rng)?;
                let offset = rng.below(size(&path) + 1);
                Op::Punch {
                    path,
                    offset,
                    len: rng.between(1, 200 * 1024),
                }
            }
            51..=55 => Op::Remove { path: name(rng)? },
            56..=57 => {
                let path = file(rng)?;
                let number = self.names[&path];
                if self
                    .names
                    .values()
                    .filter(|&&other| other == number)
                    .count()
                    > 1
                {
                    return None;
                }
                Op::RemoveOpen { path, fill }
            }
            58..=62 => Op::Mkdir {
                path: self.fresh(rng, style)?,
                mode: *rng.choose(&[0o755, 0o700]),
            },
            63..=64 => {
                let empty: Vec<&String> = self
                    .dirs
                    .keys()
                    .filter(|path| !path.is_empty() && self.entries(path).is_empty())
                    .collect();
                if empty.is_empty() {
                    return None;
                }
                Op::Rmdir {
                    path: (*rng.choose(&empty)).clone(),
                }
            }
            65..=72 => {
                let dirs: Vec<&String> = self.dirs.keys().filter(|path| !path.is_empty()).collect();
                if rng.below(4) == 0 && !dirs.is_empty() {
                    let from = (*rng.choose(&dirs)).clone();
                    let to = self.fresh(rng, style)?;
                    if to == from || below(&to, &from) {
                        return None;
                    }
                    Op::Rename { from, to }
                } else {
                    let from = name(rng)?;
                    let to = if rng.below(3) == 0 {
                        name(rng)?
                    } else {
                        self.fresh(rng, style)?
                    };
                    Op::Rename { from, to }
                }
            }
            73..=76 => Op::Link {
                path: file(rng)?,
                new: self.fresh(rng, style)?,
            },
            77..=79 => {
                let target = "t".repeat(rng.index(200) + 1);
                Op::Symlink {
                    path: self.fresh(rng, style)?,
                    target,
                }
            }
            80..=83 => {
                let path = if rng.below(4) == 0 {
                    let dirs: Vec<&String> =
                        self.dirs.keys().filter(|path| !path.is_empty()).collect();
                    if dirs.is_empty() {
                        return None;
                    }
                    (*rng.choose(&dirs)).clone()
                } else {
                    file(rng)?
                };
                let mode = *rng.choose(&[0o644, 0o640, 0o777, 0o1755, 0o400]);
                let (uid, gid) = (*rng.choose(&[0, 1000, 70_000]), *rng.choose(&[0, 100]));
                let mtime_seconds = i64::try_from(rng.below(2_000_000_000)).expect("small");
                Op::SetAttr {
                    path,
                    mode,
                    uid,
                    gid,
                    mtime_seconds,
                }
            }
            84..=87 => {
                let name = format!("user.{}", rng.below(4));
                let len = if rng.below(5) == 0 {
                    rng.below(40_000)
                } else {
                    rng.below(300)
                };
                Op::SetXattr {
                    path: file(rng)?,
                    name,
                    len,
                    fill,
                }
            }
            88 => {
                let path = file(rng)?;
                let number = self.names[&path];
                let Inode::File { xattrs, .. } = &self.inodes[&number] else {
                    return None;
                };
                Op::RemoveXattr {
                    name: xattrs.keys().next()?.clone(),
                    path,
                }
            }
            89..=90 => Op::Commit { path: file(rng)? },
            91 => Op::Sync,
            92..=97 => Op::Read { path: file(rng)? },
            100 => {
                let (from, path) = (file(rng)?, file(rng)?);
                self.choose_clone(rng, from, path)?
            }
            _ => {
                let dirs: Vec<&String> = self.dirs.keys().collect();
                Op::List {
                    path: (*rng.choose(&dirs)).clone(),
                }
            }
        })
    }

    /// A clone of some bytes of a file into another one, or another place of the same.
    fn choose_clone(&self, rng: &mut Rng, from: String, path: String) -> Option<Op> {
        let size = self.content(&from)?.len() as u64;
        let unit = *rng.choose(&[512, 4 << 10, 16 << 10, 128 << 10]);
        let (at, len, to) = match rng.below(3) {
            0 => (0, size, 0),
            1 => (0, size, unit * rng.below(5)),
            _ => {
                let at = unit * rng.below(size / unit + 1);
                let len = unit * rng.between(1, 8);
                (at, len.min(size - at), unit * rng.below(20))
            }
        };
        let len = len.min(CLONE_BYTES_MAX);
        let is_same = self.names[&from] == self.names[&path];
        let overlaps = is_same && at < to + len && to < at + len;
        if len == 0 || overlaps || to + len > FILE_BYTES_MAX {
            return None;
        }
        Some(Op::Clone {
            from,
            at,
            len,
            path,
            to,
            stable: rng.below(3) == 0,
        })
    }

    /// A path not in use, in some directory that is not too deep.
    fn fresh(&self, rng: &mut Rng, style: Style) -> Option<String> {
        let dirs: Vec<&String> = self
            .dirs
            .keys()
            .filter(|path| path.matches('/').count() < 3)
            .collect();
        let dir = (*rng.choose(&dirs)).clone();
        let mut name = format!(
            "{}{}",
            rng.choose(&["f", "name", "Ein-ziemlich-langer-Name"]),
            rng.below(if style == Style::Names { 2000 } else { 60 })
        );
        if rng.below(if style == Style::Names { 4 } else { 30 }) == 0 {
            name.push_str(&"x".repeat(rng.index(200)));
        }
        let path = if dir.is_empty() {
            name
        } else {
            format!("{dir}/{name}")
        };
        (!self.names.contains_key(&path) && !self.dirs.contains_key(&path)).then_some(path)
    }
}

fn node_of(inode: &Inode, names: impl FnOnce() -> BTreeSet<String>) -> Node {
    match inode {
        Inode::Symlink { target } => Node::Symlink {
            target: target.clone(),
        },
        Inode::File {
            mode,
            uid,
            gid,
            mtime_seconds,
            content,
            xattrs,
        } => Node::File(File {
            mode: *mode,
            uid: *uid,
            gid: *gid,
            mtime_seconds: *mtime_seconds,
            content: content.clone(),
            xattrs: xattrs.clone(),
            names: names(),
        }),
    }
}

fn index(value: u64) -> usize {
    usize::try_from(value).expect("small")
}

/// Says how two trees differ, briefly.
#[must_use]
pub fn difference(expected: &Visible, found: &Visible) -> String {
    let mut lines = Vec::new();
    for (path, node) in expected {
        match found.get(path) {
            None => lines.push(format!("missing {path:?} ({node:?})")),
            Some(other) if !node_matches(node, other) => {
                let mut line = format!("{path:?}: expected {node:?}, found {other:?}");
                if let (Node::File(a), Node::File(b)) = (node, other) {
                    if let Some(place) = a
                        .content
                        .iter()
                        .zip(b.content.iter())
                        .position(|(a, b)| a != b)
                    {
                        line.push_str(&format!(", content differs from byte {place}"));
                    }
                    if a.mtime_seconds != b.mtime_seconds {
                        line.push_str(&format!(
                            ", mtime {:?} / {:?}",
                            a.mtime_seconds, b.mtime_seconds
                        ));
                    }
                    if a.xattrs != b.xattrs {
                        let lens = |file: &File| {
                            file.xattrs
                                .iter()
                                .map(|(name, value)| format!("{name}:{}", value.len()))
                                .collect::<Vec<_>>()
                        };
                        line.push_str(&format!(", xattrs {:?} / {:?}", lens(a), lens(b)));
                    }
                }
                lines.push(line);
            }
            Some(_) => {}
        }
    }
    lines.extend(
        found
            .keys()
            .filter(|path| !expected.contains_key(*path))
            .map(|path| format!("unexpected {path:?} ({:?})", found[path])),
    );
    lines.truncate(12);
    lines.join("\n    ")
}

/// Equal as far as the model knows: it does not know modification times it did not set.
#[must_use]
pub fn node_matches(model: &Node, found: &Node) -> bool {
    match (model, found) {
        (Node::File(a), Node::File(b)) => {
            (a.mode, a.uid, a.gid) == (b.mode, b.uid, b.gid)
                && (a.mtime_seconds.is_none() || a.mtime_seconds == b.mtime_seconds)
                && a.names == b.names
                && a.xattrs == b.xattrs
                && a.content == b.content
        }
        (a, b) => a == b,
    }
}
