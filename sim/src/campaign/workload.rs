//! A client: does random operations in its own directory at the engine's boundary and keeps its history.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use engine::{
    Attr, CloneOf, CreateMode, Cred, FileId, FsError, FsHandle, FsResult, IoBuf, PoolHandle,
    SetAttr, SetTime, Stability, Timestamp, XattrMode,
};
use runtime::Handle;
use world::Rng;

use super::history::{History, Order};
use super::model::{OPEN_WRITE_BYTES, Op, Style, Tree, pattern, split};
use super::walk;

/// Histories of all clients of a boot.
pub type Histories = Rc<RefCell<Vec<History>>>;

/// A client's place in the world.
pub struct Client {
    pub number: usize,
    pub pool: PoolHandle,
    pub fs: FsHandle,
    /// Its directory.
    pub root: FileId,
    pub histories: Histories,
    pub order: Rc<Order>,
    pub rng: Rng,
    pub style: Style,
    /// Clones made, which were no copies.
    pub clones: Rc<Cell<u64>>,
}

/// Why an operation was not done.
enum Refusal {
    NoSpace,
    Wrong(String),
}

impl Refusal {
    fn of(error: FsError) -> Self {
        match error {
            FsError::NoSpace => Self::NoSpace,
            other => Self::Wrong(other.to_string()),
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoSpace => f.write_str("no space, for something that must work on a full pool"),
            Self::Wrong(text) => f.write_str(text),
        }
    }
}

impl Client {
    /// Does `count` operations, with pauses.
    ///
    /// # Errors
    /// A sentence, when the engine answers otherwise than the model.
    pub async fn work(mut self, handle: Handle, count: u64) -> Result<(), String> {
        for _ in 0..count {
            let (op, is_shorter) = {
                let mut histories = self.histories.borrow_mut();
                let history = &mut histories[self.number];
                let op = history.tree().choose(&mut self.rng, self.style);
                let is_shorter = match &op {
                    Op::Truncate { path, size } => history
                        .tree()
                        .content(path)
                        .is_some_and(|content| *size < content.len() as u64),
                    _ => false,
                };
                history.begin(&op, &self.order);
                (op, is_shorter)
            };
            let result = self.execute(&op).await;
            {
                let mut histories = self.histories.borrow_mut();
                let stable = match result {
                    Err(Refusal::NoSpace) if op.takes_space() && !is_shorter => {
                        histories[self.number].refused();
                        if self.style == Style::Fill {
                            // Full: from now on there is also removal.
                            self.style = Style::Mixed;
                        }
                        continue;
                    }
                    Err(refusal) => {
                        return Err(format!("client {}: {op:?}: {refusal}", self.number));
                    }
                    Ok(stable) => stable,
                };
                let begun = histories[self.number].end(&self.order);
                let committed = match &op {
                    Op::Commit { path } => Some(path),
                    Op::Write { path, .. } | Op::Clone { path, .. } if stable => Some(path),
                    _ => None,
                };
                let dataset = histories[self.number].dataset().to_owned();
                for history in histories.iter_mut() {
                    if op == Op::Sync {
                        history.note_stable(begun);
                    } else if committed.is_some() {
                        history.note_names_stable(&dataset, begun);
                    }
                }
                if let Some(path) = committed {
                    histories[self.number].note_file_stable(path);
                }
            }
            if self.rng.below(8) == 0 {
                handle
                    .sleep(Duration::from_micros(self.rng.below(300_000)))
                    .await;
            }
        }
        Ok(())
    }

    fn tree(&self) -> Tree {
        self.histories.borrow()[self.number].tree().clone()
    }

    /// Returns whether everything before is now stable.
    async fn execute(&self, op: &Op) -> Result<bool, Refusal> {
        let text = |error: FsError| Refusal::of(error);
        match op {
            Op::Sync => {
                self.pool
                    .sync()
                    .await
                    .map_err(|error| Refusal::Wrong(error.to_string()))?;
                return Ok(true);
            }
            Op::Read { path } => {
                let id = self.find(path).await.map_err(text)?.id;
                let found = walk::read(&self.fs, id, &Cred::root())
                    .await
                    .map_err(text)?;
                let expected = self.tree().content(path).unwrap_or_default();
                if found != *expected {
                    let place = found.iter().zip(expected.iter()).position(|(a, b)| a != b);
                    let (found, expected) = (found.len(), expected.len());
                    return Err(Refusal::Wrong(format!(
                        "read {found} bytes, expected {expected}, first difference at {place:?}"
                    )));
                }
                return Ok(false);
            }
            Op::List { path } => {
                let id = self.find(path).await.map_err(text)?.id;
                let listed = walk::list(&self.fs, id, &Cred::root())
                    .await
                    .map_err(text)?;
                let count = listed.len();
                let names: std::collections::BTreeSet<String> =
                    listed.into_iter().map(|(name, _)| name).collect();
                if names != self.tree().entries(path) || names.len() != count {
                    return Err(Refusal::Wrong(format!(
                        "listed {names:?}, expected {:?}",
                        self.tree().entries(path)
                    )));
                }
                return Ok(false);
            }
            _ => {}
        }
        self.change(op).await.map_err(text)
    }

    async fn change(&self, op: &Op) -> FsResult<bool> {
        let (fs, cred) = (&self.fs, Cred::root());
        let with_mode = |mode: u32| SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        match op {
            Op::Create { path, mode } => {
                let (dir, name) = self.place(path).await?;
                fs.create(
                    dir,
                    name.as_bytes(),
                    CreateMode::Guarded,
                    &with_mode(*mode),
                    &cred,
                )
                .await?;
            }
            Op::Write {
                path,
                offset,
                len,
                fill,
                stable,
            } => {
                let id = self.find(path).await?.id;
                let data = IoBuf::from(pattern(*fill, *len));
                let stability = if *stable {
                    Stability::FileSync
                } else {
                    Stability::Unstable
                };
                fs.write(id, *offset, data, stability, &cred).await?;
                return Ok(*stable);
            }
            Op::Clone {
                from,
                at,
                len,
                path,
                to,
                stable,
            } => {
                let (source, id) = (self.find(from).await?.id, self.find(path).await?.id);
                let stability = match stable {
                    true => Stability::FileSync,
                    false => Stability::Unstable,
                };
                let clone_of = CloneOf {
                    fs,
                    file: source,
                    offset: *at,
                    len: *len,
                    may_be_shorter: false,
                };
                let cloned = fs.clone_range(id, *to, clone_of, stability, &cred).await;
                match cloned {
                    Ok(done) if done.count == *len => self.clones.set(self.clones.get() + 1),
                    Ok(_) => return Err(FsError::Corrupt("a clone that is too short")),
                    Err(FsError::Invalid | FsError::CrossDevice | FsError::NotSupported) => {
                        let len = usize::try_from(*len).expect("small");
                        let bytes = fs.read(source, *at, len, &cred).await?.to_vec();
                        let data = IoBuf::from(bytes);
                        fs.write(id, *to, data, stability, &cred).await?;
                    }
                    Err(error) => return Err(error),
                }
                return Ok(*stable);
            }
            Op::Truncate { path, size } => {
                let set = SetAttr {
                    size: Some(*size),
                    ..SetAttr::default()
                };
                fs.setattr(self.find(path).await?.id, &set, None, &cred)
                    .await?;
            }
            Op::Punch { path, offset, len } => {
                fs.punch(self.find(path).await?.id, *offset, *len, &cred)
                    .await?;
            }
            Op::Remove { path } => {
                let (dir, name) = self.place(path).await?;
                fs.remove(dir, name.as_bytes(), &cred).await?;
            }
            Op::RemoveOpen { path, fill } => {
                let (dir, name) = self.place(path).await?;
                let id = self.find(path).await?.id;
                fs.hold(id).await?;
                fs.remove(dir, name.as_bytes(), &cred).await?;
                let data = pattern(*fill, OPEN_WRITE_BYTES);
                let write = fs.write(id, 0, IoBuf::copy_from(&data), Stability::Unstable, &cred);
                match write.await {
                    Ok(_) => {
                        let back = fs.read(id, 0, data.len(), &cred).await?;
                        if back.to_vec() != data {
                            return Err(FsError::Corrupt("a removed open file"));
                        }
                    }
                    Err(FsError::NoSpace) => {}
                    Err(error) => return Err(error),
                }
                fs.release(id).await?;
            }
            Op::Mkdir { path, mode } => {
                let (dir, name) = self.place(path).await?;
                fs.mkdir(dir, name.as_bytes(), &with_mode(*mode), &cred)
                    .await?;
            }
            Op::Rmdir { path } => {
                let (dir, name) = self.place(path).await?;
                fs.rmdir(dir, name.as_bytes(), &cred).await?;
            }
            Op::Rename { from, to } => {
                let (from_dir, from_name) = self.place(from).await?;
                let (to_dir, to_name) = self.place(to).await?;
                fs.rename(
                    from_dir,
                    from_name.as_bytes(),
                    to_dir,
                    to_name.as_bytes(),
                    &cred,
                )
                .await?;
            }
            Op::Link { path, new } => {
                let id = self.find(path).await?.id;
                let (dir, name) = self.place(new).await?;
                fs.link(id, dir, name.as_bytes(), &cred).await?;
            }
            Op::Symlink { path, target } => {
                let (dir, name) = self.place(path).await?;
                fs.symlink(
                    dir,
                    name.as_bytes(),
                    target.as_bytes(),
                    &with_mode(0o777),
                    &cred,
                )
                .await?;
            }
            Op::SetAttr {
                path,
                mode,
                uid,
                gid,
                mtime_seconds,
            } => {
                let set = SetAttr {
                    mode: Some(*mode),
                    uid: Some(*uid),
                    gid: Some(*gid),
                    mtime: Some(SetTime::Client(Timestamp {
                        seconds: *mtime_seconds,
                        nanoseconds: 5,
                    })),
                    ..SetAttr::default()
                };
                fs.setattr(self.find(path).await?.id, &set, None, &cred)
                    .await?;
            }
            Op::SetXattr {
                path,
                name,
                len,
                fill,
            } => {
                let id = self.find(path).await?.id;
                fs.set_xattr(
                    id,
                    name.as_bytes(),
                    &pattern(*fill, *len),
                    XattrMode::Any,
                    &cred,
                )
                .await?;
            }
            Op::RemoveXattr { path, name } => {
                fs.remove_xattr(self.find(path).await?.id, name.as_bytes(), &cred)
                    .await?;
            }
            Op::Commit { path } => {
                fs.commit(self.find(path).await?.id, 0, 0).await?;
            }
            Op::Sync | Op::Read { .. } | Op::List { .. } => unreachable!("handled by execute"),
        }
        Ok(false)
    }

    async fn find(&self, path: &str) -> FsResult<Attr> {
        let mut attr = self.fs.getattr(self.root).await?;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            attr = self
                .fs
                .lookup(attr.id, part.as_bytes(), &Cred::root())
                .await?;
        }
        Ok(attr)
    }

    async fn place<'a>(&self, path: &'a str) -> FsResult<(FileId, &'a str)> {
        let (dir, name) = split(path);
        Ok((self.find(dir).await?.id, name))
    }
}
