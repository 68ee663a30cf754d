//! `.zfs`: the directory in the root of every file system that shows its snapshots.
//!
//! ```text
//! .zfs            there by name unless snapdir=disabled, in listings when snapdir=visible
//!   snapshot      one directory for each snapshot: the root of its file system
//!   shares        what the file system keeps for shares of other systems; empty in those made on Linux
//! ```
//!
//! The directories are not stored; they have object numbers that no file has. Nothing in them can be written, but names in
//! `snapshot` may be made, removed and renamed where the appliance allows that (as OpenZFS's `zfs_admin_snapshot`): then
//! snapshots are.
//!
//! OpenZFS: include/os/linux/zfs/sys/zfs_ctldir.h (numbers), module/os/linux/zfs/zfs_ctldir.c (behaviour).

use std::rc::Rc;
use std::sync::atomic::Ordering;

use ondisk::ObjectId;
use zpl::{
    Access, Attr, Change, Cred, DirEntry, FileId, FileType, Fs, FsError, FsResult, ListLimit,
    Listing, Made, Renamed, SnapDir, Timestamp,
};

use crate::fs::{FsHandle, as_fs_error};
use crate::invalidation::Invalidation;
use crate::pool_mailbox::{PoolContext, Request};
use crate::{EngineError, SnapshotRequest};

/// The name of the directory.
pub const CONTROL_NAME: &[u8] = b".zfs";
/// `.zfs` itself.
pub const CONTROL_ROOT: FileId = control(0x0000_ffff_ffff_ffff);
/// `.zfs/shares`.
pub const CONTROL_SHARES: FileId = control(0x0000_ffff_ffff_fffe);
/// `.zfs/snapshot`.
pub const CONTROL_SNAPSHOTS: FileId = control(0x0000_ffff_ffff_fffd);
/// Snapshots in listings have numbers from here down (below `shares` by their objects); no object of a file system comes
/// near.
const SNAPSHOT_TOP: u64 = 0x0000_ffff_ffff_fffc;
const CONTROL_FIRST: u64 = 0x0000_ffff_0000_0000;

/// Where `.zfs` comes in a listing of the root directory: behind all that is stored.
pub(crate) const CONTROL_COOKIE: u64 = 0x7fff_fffe_0000_0000;
/// Cookies of `.` and `..`; what follows is moved by the second.
const COOKIE_SELF: u64 = 1;
const COOKIE_PARENT: u64 = 2;
/// Names read at a time.
const BATCH: usize = 256;

const fn control(object: u64) -> FileId {
    FileId {
        object,
        generation: 0,
    }
}

/// Whether a file is one of the directories that are not stored.
#[must_use]
pub fn is_control(id: FileId) -> bool {
    (CONTROL_FIRST..=CONTROL_ROOT.object).contains(&id.object)
}

/// Whether a file is a snapshot as listings have it, before it was looked up: of no use as a handle.
#[must_use]
pub fn is_unopened(id: FileId) -> bool {
    (CONTROL_FIRST..=SNAPSHOT_TOP).contains(&id.object)
}

/// What a name led to.
#[derive(Clone, Debug)]
pub struct Found {
    /// The file.
    pub attr: Attr,
    /// The file system it lies in, when not the one that was asked.
    pub elsewhere: Option<FsHandle>,
}

/// What a search for a name brought.
#[derive(Clone, Debug)]
pub struct Searched {
    /// What the name led to.
    pub found: FsResult<Found>,
    /// The directory, if it can be had.
    pub dir: Option<Attr>,
}

/// What the directories show, of the open file system they belong to.
struct Facts {
    root: FileId,
    fsid: u64,
    snapdir: SnapDir,
    shares: Option<u64>,
    snapshots: u64,
    changed: Timestamp,
}

impl Facts {
    async fn of(context: &PoolContext, fs: &Fs) -> Result<Self, EngineError> {
        let head = ObjectId(fs.head());
        let (snapshots, changed) = context.pool.hierarchy().snapshot_count(head).await?;
        Ok(Self {
            root: fs.root(),
            fsid: fs.fsid(),
            snapdir: fs.snapdir(),
            shares: fs.shares(),
            snapshots,
            changed: Timestamp {
                seconds: i64::try_from(changed).unwrap_or(i64::MAX),
                nanoseconds: 0,
            },
        })
    }

    fn attr(&self, id: FileId) -> Attr {
        let links = match id {
            CONTROL_SNAPSHOTS => 2 + self.snapshots,
            _ => 2,
        };
        Attr {
            id,
            file_type: FileType::Directory,
            mode: 0o777,
            links,
            uid: 0,
            gid: 0,
            size: 2,
            used: 0,
            rdev: zpl::DeviceNumber::default(),
            block_size: 512,
            fsid: self.fsid,
            atime: self.changed,
            mtime: self.changed,
            ctime: self.changed,
            crtime: self.changed,
            change: self.changed.seconds.unsigned_abs(),
            flags: 0,
            project: 0,
            parent: match id {
                CONTROL_ROOT => self.root.object,
                CONTROL_SNAPSHOTS | CONTROL_SHARES => CONTROL_ROOT.object,
                _ => CONTROL_SNAPSHOTS.object,
            },
        }
    }

    fn change(&self, id: FileId) -> Change {
        let after = self.attr(id);
        Change {
            before: after.wcc(),
            after,
        }
    }
}

/// Refuses to make, remove or rename `.zfs` in the root directory.
pub(crate) fn check_free(fs: &Fs, dir: FileId, name: &[u8]) -> FsResult<()> {
    if name == CONTROL_NAME && dir == fs.root() && !fs.is_snapshot() {
        Err(FsError::Exists)
    } else {
        Ok(())
    }
}

/// An error about a snapshot as a file operation tells it.
fn refused(error: &EngineError) -> FsError {
    match error {
        EngineError::DatasetExists(_) => FsError::Exists,
        EngineError::DatasetNotFound(_) => FsError::NotFound,
        // Not "try again later": holds and clones may stay for ever.
        EngineError::HasClones(_) | EngineError::Busy(_) => FsError::Access,
        EngineError::OutOfSpace => FsError::NoSpace,
        EngineError::Permission => FsError::NotPermitted,
        EngineError::Pool(pool::PoolError::ReadOnly) => FsError::ReadOnly,
        other => as_fs_error(other),
    }
}

impl FsHandle {
    /// Runs `work` with what `.zfs` shows.
    async fn control<T, F, Answer>(&self, work: F) -> FsResult<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<PoolContext>, Fs, Facts) -> Answer + Send + 'static,
        Answer: Future<Output = FsResult<T>> + 'static,
    {
        self.call_in(move |context, fs| async move {
            if fs.is_snapshot() {
                return Err(FsError::Stale);
            }
            let facts = Facts::of(&context, &fs)
                .await
                .map_err(|error| as_fs_error(&error))?;
            work(context, fs, facts).await
        })
        .await
    }

    /// Finds a name in a directory, in snapshots and `.zfs` too; `.` is the directory and `..` its parent.
    ///
    /// # Errors
    /// As of [`lookup`](Self::lookup).
    pub fn find<'a>(
        &'a self,
        dir: FileId,
        name: &'a [u8],
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Found>> {
        Box::pin(async move {
            if self.is_special(dir, name) {
                return self.find_control(dir, name, cred).await;
            }
            let attr = self.lookup(dir, name, cred).await?;
            Ok(Found {
                attr,
                elsewhere: None,
            })
        })
    }

    /// As [`find`](Self::find), and returns the directory's attributes too, found or not.
    pub fn search<'a>(
        &'a self,
        dir: FileId,
        name: &'a [u8],
        cred: &'a Cred,
    ) -> Request<'a, Searched> {
        Box::pin(async move {
            if self.is_special(dir, name) {
                return Searched {
                    found: self.find_control(dir, name, cred).await,
                    dir: self.getattr(dir).await.ok(),
                };
            }
            if let Some((attr, dir)) = self.cached(|cache, fs| cache.search(fs, dir, name, cred)) {
                return Searched {
                    found: Ok(Found {
                        attr,
                        elsewhere: None,
                    }),
                    dir: Some(dir),
                };
            }
            let (name, cred) = (name.to_vec(), cred.clone());
            let searched = self
                .call_in(move |_, fs| async move {
                    let found = fs.lookup(dir, &name, &cred).await;
                    Ok((found, fs.getattr(dir).await.ok()))
                })
                .await;
            let (found, dir) = searched.unwrap_or_else(|error| (Err(error), None));
            let found = found.map(|attr| Found {
                attr,
                elsewhere: None,
            });
            Searched { found, dir }
        })
    }

    /// Whether a name may lead into `.zfs` or out of a snapshot.
    fn is_special(&self, dir: FileId, name: &[u8]) -> bool {
        is_control(dir) || name == CONTROL_NAME || (name == b".." && self.head().is_some())
    }

    async fn find_control(&self, dir: FileId, name: &[u8], cred: &Cred) -> FsResult<Found> {
        let here = |attr| {
            Ok(Found {
                attr,
                elsewhere: None,
            })
        };
        if let Some(head) = self.head() {
            // In a snapshot: only the way up from its root is special.
            let root = self.root().await?;
            if name == b".." && dir == root.id {
                return Ok(Found {
                    attr: head.getattr(CONTROL_SNAPSHOTS).await?,
                    elsewhere: Some(head),
                });
            }
            return here(self.lookup(dir, name, cred).await?);
        }
        if !is_control(dir) {
            let name = name.to_vec();
            let cred = cred.clone();
            return here(
                self.call_in(move |context, fs| async move {
                    let shown = dir == fs.root() && !fs.is_snapshot();
                    match fs.snapdir() {
                        _ if !shown => fs.lookup(dir, &name, &cred).await,
                        SnapDir::Disabled => Err(FsError::NotFound),
                        _ => {
                            let facts = Facts::of(&context, &fs).await;
                            Ok(facts
                                .map_err(|error| as_fs_error(&error))?
                                .attr(CONTROL_ROOT))
                        }
                    }
                })
                .await?,
            );
        }
        let (wanted, cred) = (name.to_vec(), cred.clone());
        let found: Result<Attr, (u64, u64)> = self
            .control(move |context, fs, facts| async move {
                if facts.snapdir == SnapDir::Disabled {
                    return Err(FsError::NotFound);
                }
                match (dir, wanted.as_slice()) {
                    (_, b".") => Ok(Ok(facts.attr(dir))),
                    (CONTROL_ROOT, b"..") => Ok(Ok(fs.getattr(facts.root).await?)),
                    (CONTROL_ROOT, b"snapshot") => Ok(Ok(facts.attr(CONTROL_SNAPSHOTS))),
                    (CONTROL_ROOT, b"shares") => Ok(Ok(facts.attr(CONTROL_SHARES))),
                    (CONTROL_SNAPSHOTS | CONTROL_SHARES, b"..") => Ok(Ok(facts.attr(CONTROL_ROOT))),
                    (CONTROL_SHARES, name) => {
                        let shares = facts.shares.ok_or(FsError::NotFound)?;
                        let shares = fs.by_object(shares).await?;
                        Ok(Ok(fs.lookup(shares.id, name, &cred).await?))
                    }
                    (CONTROL_SNAPSHOTS, name) => {
                        let head = ObjectId(fs.head());
                        let found = context
                            .pool
                            .hierarchy()
                            .snapshot_named(head, name)
                            .await
                            .map_err(|_| FsError::Io)?;
                        let (object, guid, _) = found.ok_or(FsError::NotFound)?;
                        Ok(Err((object.0, guid.0)))
                    }
                    (CONTROL_ROOT, _) => Err(FsError::NotFound),
                    _ => Err(FsError::Stale),
                }
            })
            .await?;
        match found {
            Ok(attr) => here(attr),
            Err((object, guid)) => {
                let snapshot = self.snapshot(object, guid);
                Ok(Found {
                    attr: snapshot.root().await?,
                    elsewhere: Some(snapshot),
                })
            }
        }
    }

    pub(crate) async fn control_attr(&self, id: FileId) -> FsResult<Attr> {
        self.control(move |_, _, facts| async move {
            if facts.snapdir == SnapDir::Disabled {
                return Err(FsError::Stale);
            }
            Ok(facts.attr(id))
        })
        .await
    }

    /// Everybody may look; whether names may be changed shows when it is tried.
    pub(crate) fn control_access(&self, id: FileId, wanted: Access) -> Access {
        let mut granted = Access::READ | Access::LOOKUP;
        if id == CONTROL_SNAPSHOTS && self.admin_snapshots() {
            granted = granted | Access::MODIFY | Access::EXTEND | Access::DELETE;
        }
        Access(granted.0 & wanted.0)
    }

    pub(crate) async fn control_readdir(
        &self,
        dir: FileId,
        cookie: u64,
        limit: ListLimit,
        cred: &Cred,
    ) -> FsResult<Listing> {
        let cred = cred.clone();
        self.control(move |context, fs, facts| async move {
            if facts.snapdir == SnapDir::Disabled {
                return Err(FsError::NotFound);
            }
            if let (CONTROL_SHARES, Some(shares)) = (dir, facts.shares) {
                let shares = fs.by_object(shares).await?;
                return fs.readdir(shares.id, cookie, limit, &cred).await;
            }
            let mut lines = Lines::new(limit, cookie, &facts);
            lines.add(b".", dir, COOKIE_SELF);
            lines.add(b"..", control(facts.attr(dir).parent), COOKIE_PARENT);
            match dir {
                CONTROL_ROOT => {
                    lines.add(b"snapshot", CONTROL_SNAPSHOTS, COOKIE_PARENT + 1);
                    lines.add(b"shares", CONTROL_SHARES, COOKIE_PARENT + 2);
                }
                CONTROL_SNAPSHOTS => {
                    let head = ObjectId(fs.head());
                    let mut at = cookie.saturating_sub(COOKIE_PARENT);
                    while !lines.full {
                        let batch = context
                            .pool
                            .hierarchy()
                            .snapshots_after(head, at, BATCH)
                            .await
                            .map_err(|_| FsError::Io)?;
                        if batch.is_empty() {
                            break;
                        }
                        for snapshot in batch {
                            at = snapshot.next_cookie;
                            let id =
                                control(CONTROL_SHARES.object.saturating_sub(snapshot.object.0));
                            lines.add(&snapshot.name, id, at + COOKIE_PARENT);
                        }
                    }
                }
                _ => {}
            }
            if lines.entries.is_empty() && lines.full {
                // Not even one entry fits what the caller has room for.
                return Err(FsError::Invalid);
            }
            Ok(Listing {
                entries: lines.entries,
                eof: !lines.full,
                dir: facts.attr(dir),
            })
        })
        .await
    }

    /// Adds `.zfs` at the end of a listing of the root directory.
    pub(crate) async fn list_with_control(
        &self,
        mut listing: Listing,
        cookie: u64,
        limit: ListLimit,
    ) -> FsResult<Listing> {
        if !listing.eof || cookie >= CONTROL_COOKIE {
            return Ok(listing);
        }
        let taken: usize = listing
            .entries
            .iter()
            .map(|entry| entry.name.len() + limit.entry_overhead_bytes)
            .sum();
        let needed = CONTROL_NAME
            .len()
            .saturating_add(limit.entry_overhead_bytes);
        if listing.entries.len() >= limit.entries || taken.saturating_add(needed) > limit.bytes {
            listing.eof = false;
            return Ok(listing);
        }
        let attr = if limit.attrs {
            Some(self.control_attr(CONTROL_ROOT).await?)
        } else {
            None
        };
        listing.entries.push(DirEntry {
            name: CONTROL_NAME.to_vec(),
            object: CONTROL_ROOT.object,
            file_type: Some(FileType::Directory),
            cookie: CONTROL_COOKIE,
            attr,
        });
        Ok(listing)
    }

    /// Makes a snapshot by making its directory.
    pub(crate) async fn control_mkdir(
        &self,
        dir: FileId,
        name: &[u8],
        cred: &Cred,
    ) -> FsResult<Made> {
        let name = self.admin_name(dir, name)?;
        let cred = cred.clone();
        let made = self
            .control(move |context, fs, facts| async move {
                let dataset = context.name_of(fs.head()).await?;
                context.may(&dataset, &["snapshot"], &cred).await?;
                let request = SnapshotRequest {
                    names: vec![format!("{dataset}@{name}")],
                    ..SnapshotRequest::default()
                };
                match context
                    .snapshot(request)
                    .await
                    .map_err(|e| refused(&e))?
                    .first()
                {
                    Some(refusal) => Err(refused(&refusal.error)),
                    None => Ok(Made {
                        file: facts.attr(control(SNAPSHOT_TOP)),
                        dir: facts.change(dir),
                        created: true,
                    }),
                }
            })
            .await?;
        Ok(made)
    }

    /// Destroys a snapshot by removing its directory.
    pub(crate) async fn control_rmdir(
        &self,
        dir: FileId,
        name: &[u8],
        cred: &Cred,
    ) -> FsResult<Change> {
        let name = self.admin_name(dir, name)?;
        let cred = cred.clone();
        self.admin(move |context, fs, facts| async move {
            let dataset = context.name_of(fs.head()).await?;
            let stored = stored_name(&context, &fs, &name).await?;
            let snapshot = format!("{dataset}@{stored}");
            context.may(&snapshot, &["destroy", "mount"], &cred).await?;
            let outcome = context.destroy_snapshots(&[snapshot], false).await;
            match outcome.map_err(|e| refused(&e))?.first() {
                Some(refusal) => Err(refused(&refusal.error)),
                None => Ok(facts.change(dir)),
            }
        })
        .await
    }

    /// Renames a snapshot by renaming its directory.
    pub(crate) async fn control_rename(
        &self,
        from: FileId,
        from_name: &[u8],
        to: FileId,
        to_name: &[u8],
        cred: &Cred,
    ) -> FsResult<Renamed> {
        if !(is_control(from) && is_control(to)) {
            return Err(FsError::CrossDevice);
        }
        let (old, new) = (
            self.admin_name(from, from_name)?,
            self.admin_name(to, to_name)?,
        );
        let cred = cred.clone();
        self.admin(move |context, fs, facts| async move {
            let dataset = context.name_of(fs.head()).await?;
            let old = format!("{dataset}@{}", stored_name(&context, &fs, &old).await?);
            let new = format!("{dataset}@{new}");
            context.may(&old, &["rename", "mount"], &cred).await?;
            context.may(&dataset, &["create", "mount"], &cred).await?;
            if old != new {
                let renamed = context.pool.hierarchy().rename(&old, &new, false).await;
                renamed.map_err(|error| refused(&error.into()))?;
            }
            Ok(Renamed {
                from: facts.change(from),
                to: facts.change(to),
            })
        })
        .await
    }

    /// Changes snapshots, and has mounts forget their names.
    async fn admin<T, F, Answer>(&self, work: F) -> FsResult<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<PoolContext>, Fs, Facts) -> Answer + Send + 'static,
        Answer: Future<Output = FsResult<T>> + 'static,
    {
        let done = self.control(work).await?;
        self.notify(&[Invalidation::Snapshots]).await;
        Ok(done)
    }

    /// Whether names in `.zfs/snapshot` may be made and removed.
    fn admin_snapshots(&self) -> bool {
        self.watches().admin_snapshots.load(Ordering::Relaxed)
    }

    fn admin_name(&self, dir: FileId, name: &[u8]) -> FsResult<String> {
        if dir != CONTROL_SNAPSHOTS {
            return Err(FsError::ReadOnly);
        }
        // OpenZFS: zfs_ctldir.c answers EACCES while zfs_admin_snapshot is 0.
        if !self.admin_snapshots() {
            return Err(FsError::Access);
        }
        String::from_utf8(name.to_vec()).map_err(|_| FsError::IllegalName)
    }
}

async fn stored_name(context: &PoolContext, fs: &Fs, name: &str) -> FsResult<String> {
    let found = context
        .pool
        .hierarchy()
        .snapshot_named(ObjectId(fs.head()), name.as_bytes())
        .await
        .map_err(|_| FsError::Io)?;
    let (_, _, stored) = found.ok_or(FsError::NotFound)?;
    String::from_utf8(stored).map_err(|_| FsError::IllegalName)
}

impl PoolContext {
    /// The name now of a head that is open.
    async fn name_of(&self, object: u64) -> FsResult<String> {
        let opened = self
            .pool
            .hierarchy()
            .dataset_by_object(ObjectId(object))
            .await;
        Ok(opened.map_err(|_| FsError::Stale)?.name())
    }

    /// Checks that the caller of a file operation may change snapshots of a dataset: root may, others what was delegated.
    async fn may(&self, dataset: &str, permissions: &[&str], cred: &Cred) -> FsResult<()> {
        if cred.uid == 0 {
            return Ok(());
        }
        let subject = dsl::Subject {
            uid: cred.uid,
            groups: [cred.gid].into_iter().chain(cred.groups.clone()).collect(),
        };
        for permission in permissions {
            let granted = self.delegated(dataset, permission, &subject).await;
            if !granted.map_err(|error| refused(&error))? {
                return Err(FsError::NotPermitted);
            }
        }
        Ok(())
    }
}

/// Gathers entries after a cookie, up to a limit.
struct Lines<'a> {
    limit: ListLimit,
    after: u64,
    facts: &'a Facts,
    bytes: usize,
    full: bool,
    entries: Vec<DirEntry>,
}

impl<'a> Lines<'a> {
    fn new(limit: ListLimit, after: u64, facts: &'a Facts) -> Self {
        Self {
            limit,
            after,
            facts,
            bytes: 0,
            full: false,
            entries: Vec::new(),
        }
    }

    fn add(&mut self, name: &[u8], id: FileId, cookie: u64) {
        if self.full || cookie <= self.after {
            return;
        }
        let bytes = name.len().saturating_add(self.limit.entry_overhead_bytes);
        let bytes = self.bytes.saturating_add(bytes);
        if self.entries.len() >= self.limit.entries || bytes > self.limit.bytes {
            self.full = true;
            return;
        }
        self.bytes = bytes;
        let attr = (self.limit.attrs && is_control(id)).then(|| self.facts.attr(id));
        self.entries.push(DirEntry {
            name: name.to_vec(),
            object: id.object,
            file_type: Some(FileType::Directory),
            cookie,
            attr,
        });
    }
}
