//! `.zfs`: the directory in the root of every file system that shows its snapshots.
//!
//! ```text
//! .zfs            there by name unless snapdir=disabled, in listings when snapdir=visible
//!   snapshot      one directory for each snapshot: the root of its file system
//!   shares        what the file system keeps for shares of other systems; empty in those made on Linux
//!   shadow        the newest snapshots once more, by when they were taken (@GMT-2026.11.28-09.30.00); there by name only
//! ```
//!
//! `shadow` is what Samba's `shadow_copy2` finds previous versions in, whatever the names of the snapshots are.
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

use crate::error::as_fs_error;
use crate::file_target::{CONTROL_NAME, CONTROL_ROOT, CONTROL_SNAPSHOTS, ControlDir, FileTarget};
use crate::fs::FsHandle;
use crate::invalidation::Invalidation;
use crate::pool_mailbox::{PoolContext, Request};
use crate::{EngineError, SnapshotRequest};

/// Where `.zfs` comes in a listing of the root directory: behind all that is stored.
const CONTROL_COOKIE: u64 = 0x7fff_fffe_0000_0000;
/// Cookies of `.` and `..`; what follows is moved by the second.
const COOKIE_SELF: u64 = 1;
const COOKIE_PARENT: u64 = 2;
/// Snapshots that `shadow` has at most. Windows shows 512 of a volume.
const SHADOW_MAX: usize = 4096;
/// Where the latest snapshot would come in a listing of `shadow`: earlier ones follow.
const SHADOW_COOKIE: u64 = 1 << 62;
/// Names read at a time.
const BATCH: usize = 256;

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

/// What the control directories show of the file system they belong to.
struct ControlView {
    root: FileId,
    fsid: u64,
    snapdir: SnapDir,
    shares: Option<u64>,
    snapshots: u64,
    changed: Timestamp,
}

impl ControlView {
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

    fn attr(&self, dir: ControlDir) -> Attr {
        let links = match dir {
            ControlDir::Snapshots => 2 + self.snapshots,
            ControlDir::Root
            | ControlDir::Shares
            | ControlDir::Shadow
            | ControlDir::Unopened(_) => 2,
        };
        Attr {
            id: dir.id(),
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
            parent: dir.parent(self.root).object,
        }
    }

    fn change(&self, dir: ControlDir) -> Change {
        let after = self.attr(dir);
        Change {
            before: after.wcc(),
            after,
        }
    }
}

/// An error about a snapshot as a file operation tells it.
fn refused(error: &EngineError) -> FsError {
    match error {
        EngineError::DatasetExists(_) => FsError::Exists,
        EngineError::DatasetNotFound(_) => FsError::NotFound,
        // Not "try again later": holds and clones may stay for ever.
        EngineError::HasClones(_) | EngineError::Busy(_) | EngineError::Immutable(_) => {
            FsError::Access
        }
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
        F: FnOnce(Rc<PoolContext>, Fs, ControlView) -> Answer + Send + 'static,
        Answer: Future<Output = FsResult<T>> + 'static,
    {
        self.call_in(move |context, fs| async move {
            if fs.is_snapshot() {
                return Err(FsError::Stale);
            }
            let view = ControlView::of(&context, &fs)
                .await
                .map_err(|error| as_fs_error(&error))?;
            work(context, fs, view).await
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
        matches!(FileTarget::of(dir), FileTarget::Control(_))
            || name == CONTROL_NAME
            || (name == b".." && self.head().is_some())
    }

    /// Finds `.zfs` in the root of a file system; everywhere else that is a name as others.
    async fn find_control_root(&self, dir: FileId, name: &[u8], cred: &Cred) -> FsResult<Attr> {
        let (name, cred) = (name.to_vec(), cred.clone());
        self.call_in(move |context, fs| async move {
            let shown = dir == fs.root() && !fs.is_snapshot();
            match fs.snapdir() {
                _ if !shown => fs.lookup(dir, &name, &cred).await,
                SnapDir::Disabled => Err(FsError::NotFound),
                _ => {
                    let view = ControlView::of(&context, &fs).await;
                    let view = view.map_err(|error| as_fs_error(&error))?;
                    Ok(view.attr(ControlDir::Root))
                }
            }
        })
        .await
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
        let FileTarget::Control(dir) = FileTarget::of(dir) else {
            return here(self.find_control_root(dir, name, cred).await?);
        };
        let (wanted, cred) = (name.to_vec(), cred.clone());
        let found: Result<Attr, (u64, u64)> = self
            .control(move |context, fs, view| async move {
                if view.snapdir == SnapDir::Disabled {
                    return Err(FsError::NotFound);
                }
                let attr = match (dir, wanted.as_slice()) {
                    (_, b".") => view.attr(dir),
                    (ControlDir::Root, b"..") => fs.getattr(view.root).await?,
                    (ControlDir::Root, b"snapshot") => view.attr(ControlDir::Snapshots),
                    (ControlDir::Root, b"shares") => view.attr(ControlDir::Shares),
                    (ControlDir::Root, b"shadow") => view.attr(ControlDir::Shadow),
                    (ControlDir::Snapshots | ControlDir::Shares | ControlDir::Shadow, b"..") => {
                        view.attr(ControlDir::Root)
                    }
                    (ControlDir::Shadow, name) => {
                        return Ok(Err(shadow_named(&context, &fs, name).await?));
                    }
                    (ControlDir::Shares, name) => {
                        let shares = view.shares.ok_or(FsError::NotFound)?;
                        let shares = fs.by_object(shares).await?;
                        fs.lookup(shares.id, name, &cred).await?
                    }
                    (ControlDir::Snapshots, name) => {
                        let hierarchy = context.pool.hierarchy();
                        let found = hierarchy.snapshot_named(ObjectId(fs.head()), name).await;
                        let found = found.map_err(|_| FsError::Io)?;
                        let (object, guid, _) = found.ok_or(FsError::NotFound)?;
                        return Ok(Err((object.0, guid.0)));
                    }
                    (ControlDir::Root, _) => return Err(FsError::NotFound),
                    (ControlDir::Unopened(_), _) => return Err(FsError::Stale),
                };
                Ok(Ok(attr))
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

    pub(crate) async fn control_attr(&self, dir: ControlDir) -> FsResult<Attr> {
        self.control(move |_, _, view| async move {
            if view.snapdir == SnapDir::Disabled {
                return Err(FsError::Stale);
            }
            Ok(view.attr(dir))
        })
        .await
    }

    /// Every caller may read; whether a caller may change names is checked when it does.
    pub(crate) fn control_access(&self, dir: ControlDir, wanted: Access) -> Access {
        let mut granted = Access::READ | Access::LOOKUP;
        if dir == ControlDir::Snapshots && self.admin_snapshots() {
            granted = granted | Access::MODIFY | Access::EXTEND | Access::DELETE;
        }
        Access(granted.0 & wanted.0)
    }

    pub(crate) async fn control_readdir(
        &self,
        dir: ControlDir,
        cookie: u64,
        limit: ListLimit,
        cred: &Cred,
    ) -> FsResult<Listing> {
        let cred = cred.clone();
        self.control(move |context, fs, view| async move {
            if view.snapdir == SnapDir::Disabled {
                return Err(FsError::NotFound);
            }
            if let (ControlDir::Shares, Some(shares)) = (dir, view.shares) {
                let shares = fs.by_object(shares).await?;
                return fs.readdir(shares.id, cookie, limit, &cred).await;
            }
            let mut listing = ListingBuilder::new(limit, cookie, &view);
            listing.add(b".", FileTarget::Control(dir), COOKIE_SELF);
            let parent = FileTarget::of(dir.parent(view.root));
            listing.add(b"..", parent, COOKIE_PARENT);
            match dir {
                ControlDir::Root => {
                    let directories: [(&[u8], ControlDir); 2] = [
                        (b"snapshot", ControlDir::Snapshots),
                        (b"shares", ControlDir::Shares),
                    ];
                    for ((name, dir), cookie) in directories.into_iter().zip(COOKIE_PARENT + 1..) {
                        listing.add(name, FileTarget::Control(dir), cookie);
                    }
                }
                ControlDir::Snapshots => {
                    list_snapshots(&context, &fs, cookie, &mut listing).await?;
                }
                ControlDir::Shadow => {
                    listing.add_shadow(&shadow(&context, &fs).await?);
                }
                ControlDir::Shares | ControlDir::Unopened(_) => {}
            }
            if listing.entries.is_empty() && listing.full {
                // Not even one entry fits what the caller has room for.
                return Err(FsError::Invalid);
            }
            Ok(Listing {
                entries: listing.entries,
                eof: !listing.full,
                dir: view.attr(dir),
            })
        })
        .await
    }

    /// Whether a cookie stands behind all stored names of the root directory.
    pub(crate) fn is_past_stored(cookie: u64) -> bool {
        cookie >= CONTROL_COOKIE
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
            Some(self.control_attr(ControlDir::Root).await?)
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
        dir: ControlDir,
        name: &[u8],
        cred: &Cred,
    ) -> FsResult<Made> {
        let name = self.admin_name(dir, name)?;
        let cred = cred.clone();
        let made = self
            .control(move |context, fs, view| async move {
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
                        file: view.attr(ControlDir::of_new_snapshot()),
                        dir: view.change(dir),
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
        dir: ControlDir,
        name: &[u8],
        cred: &Cred,
    ) -> FsResult<Change> {
        let name = self.admin_name(dir, name)?;
        let cred = cred.clone();
        self.admin(move |context, fs, view| async move {
            let dataset = context.name_of(fs.head()).await?;
            let stored = stored_name(&context, &fs, &name).await?;
            let snapshot = format!("{dataset}@{stored}");
            context.may(&snapshot, &["destroy", "mount"], &cred).await?;
            let outcome = context.destroy_snapshots(&[snapshot], false).await;
            match outcome.map_err(|e| refused(&e))?.first() {
                Some(refusal) => Err(refused(&refusal.error)),
                None => Ok(view.change(dir)),
            }
        })
        .await
    }

    /// Renames a snapshot by renaming its directory.
    pub(crate) async fn control_rename(
        &self,
        from: ControlDir,
        from_name: &[u8],
        to: ControlDir,
        to_name: &[u8],
        cred: &Cred,
    ) -> FsResult<Renamed> {
        let (old, new) = (
            self.admin_name(from, from_name)?,
            self.admin_name(to, to_name)?,
        );
        let cred = cred.clone();
        self.admin(move |context, fs, view| async move {
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
                from: view.change(from),
                to: view.change(to),
            })
        })
        .await
    }

    /// Changes snapshots, and has mounts forget their names.
    async fn admin<T, F, Answer>(&self, work: F) -> FsResult<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<PoolContext>, Fs, ControlView) -> Answer + Send + 'static,
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

    fn admin_name(&self, dir: ControlDir, name: &[u8]) -> FsResult<String> {
        if dir != ControlDir::Snapshots {
            return Err(FsError::ReadOnly);
        }
        // OpenZFS: zfs_ctldir.c answers EACCES while zfs_admin_snapshot is 0.
        if !self.admin_snapshots() {
            return Err(FsError::Access);
        }
        String::from_utf8(name.to_vec()).map_err(|_| FsError::IllegalName)
    }
}

/// Lists the snapshots by their names, from a cookie on.
async fn list_snapshots(
    context: &PoolContext,
    fs: &Fs,
    cookie: u64,
    listing: &mut ListingBuilder<'_>,
) -> FsResult<()> {
    let head = ObjectId(fs.head());
    let mut at = cookie.saturating_sub(COOKIE_PARENT);
    while !listing.full {
        let hierarchy = context.pool.hierarchy();
        let batch = hierarchy.snapshots_after(head, at, BATCH).await;
        let batch = batch.map_err(|_| FsError::Io)?;
        if batch.is_empty() {
            break;
        }
        for snapshot in batch {
            at = snapshot.next_cookie;
            let target = FileTarget::Control(ControlDir::of_snapshot(snapshot.object.0));
            listing.add(&snapshot.name, target, at + COOKIE_PARENT);
        }
    }
    Ok(())
}

/// Finds a snapshot in `shadow`: its object and its guid.
async fn shadow_named(context: &PoolContext, fs: &Fs, name: &[u8]) -> FsResult<(u64, u64)> {
    let mut found = shadow(context, fs).await?.into_iter();
    let taken = found.find(|taken| shadow_name(taken.creation_time).as_bytes() == name);
    let taken = taken.ok_or(FsError::NotFound)?;
    Ok((taken.object.0, taken.guid.0))
}

/// The snapshots that `shadow` has.
async fn shadow(context: &PoolContext, fs: &Fs) -> FsResult<Vec<dsl::SnapshotTime>> {
    let hierarchy = context.pool.hierarchy();
    let found = hierarchy
        .snapshots_by_time(ObjectId(fs.head()), SHADOW_MAX)
        .await;
    found.map_err(|_| FsError::Io)
}

/// The name of a snapshot in `shadow`, as clients of SMB have it. [MS-SMB2] 2.2.32.2 ([MS-SMB] 2.2.1.1.1)
fn shadow_name(creation_time: u64) -> String {
    let time = dsl::time_text(creation_time);
    let (day, time) = time.split_once('T').unwrap_or_default();
    let (day, time) = (day.replace('-', "."), time.replace(':', "."));
    format!("@GMT-{day}-{}", time.trim_end_matches('Z'))
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
struct ListingBuilder<'a> {
    limit: ListLimit,
    after: u64,
    view: &'a ControlView,
    bytes: usize,
    full: bool,
    entries: Vec<DirEntry>,
}

impl<'a> ListingBuilder<'a> {
    fn new(limit: ListLimit, after: u64, view: &'a ControlView) -> Self {
        Self {
            limit,
            after,
            view,
            bytes: 0,
            full: false,
            entries: Vec::new(),
        }
    }

    fn add_shadow(&mut self, snapshots: &[dsl::SnapshotTime]) {
        for taken in snapshots {
            let target = FileTarget::Control(ControlDir::of_snapshot(taken.object.0));
            let cookie = SHADOW_COOKIE.saturating_sub(taken.creation_time);
            let name = shadow_name(taken.creation_time);
            self.add(name.as_bytes(), target, cookie);
        }
    }

    fn add(&mut self, name: &[u8], target: FileTarget, cookie: u64) {
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
        let (object, attr) = match target {
            FileTarget::Stored(id) => (id.object, None),
            FileTarget::Control(dir) => {
                let attr = self.limit.attrs.then(|| self.view.attr(dir));
                (dir.id().object, attr)
            }
        };
        self.entries.push(DirEntry {
            name: name.to_vec(),
            object,
            file_type: Some(FileType::Directory),
            cookie,
            attr,
        });
    }
}
