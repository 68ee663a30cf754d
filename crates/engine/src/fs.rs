//! File operations on a dataset, callable from any thread.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use dmu::Rewritten;
use zpl::{
    Access, AccessVerdict, Attr, Change, CloneSource, CreateMode, Cred, DelegatedAccess,
    Delegation, DeviceNumber, FileId, FileType, Fs, FsError, FsResult, FsStat, ListLimit, Listing,
    LockedFile, Made, ReadData, Renamed, Right, SeekTarget, SetAttr, Stability, StoredXattr,
    Timestamp, Written, XattrMode,
};

use crate::IoBuf;
use crate::error::as_fs_error;
use crate::file_target::{FileTarget, StoredOperation, check_not_control_name, is_control, stored};
use crate::invalidation::{Invalidation, Watch, Watches};
use crate::pool_mailbox::{PoolContext, PoolMailbox, Request};
use crate::statistics::Client;

/// A file system: a dataset of a pool, opened on the pool's thread at the first use.
///
/// The handle names the dataset by its object number and guid, so that it survives renames. After
/// the dataset was destroyed every call answers [`FsError::Stale`]; while its pool is not imported,
/// [`FsError::Busy`] (try again later).
#[derive(Clone, Debug)]
pub struct FsHandle {
    mailbox: PoolMailbox,
    dataset: u64,
    guid: u64,
    /// Of a snapshot reached through `.zfs`: the object and guid of the file system it was reached from.
    head: Option<(u64, u64)>,
    /// The watch whose owner makes the changes of this handle, or 0.
    watch: u64,
    client: Client,
    /// Changes of names and attributes answer when they are on stable storage.
    stable: bool,
    /// Dropped when a request has ended, also when its caller does not wait for it.
    under_way: Option<Arc<()>>,
}

/// What is cloned into a file, see [`FsHandle::clone_range`].
#[derive(Clone, Copy, Debug)]
pub struct CloneOf<'a> {
    /// The file system, of the same pool.
    pub fs: &'a FsHandle,
    /// The regular file.
    pub file: FileId,
    /// First byte: where a block begins.
    pub offset: u64,
    /// Bytes: whole blocks, unless the range reaches the end of both files.
    pub len: u64,
    /// The whole blocks of another length are enough.
    pub may_be_shorter: bool,
}

/// Which dataset a handle is of.
#[derive(Clone, Copy)]
struct Identity {
    dataset: u64,
    guid: u64,
    head: Option<(u64, u64)>,
}

impl Identity {
    /// Checks that the file system is one that the handle was made for: a handle may be forged, and must not lead out of it.
    fn check(&self, fs: &Fs) -> FsResult<()> {
        let leads_out = |(of, _)| fs.head() != of || !fs.is_snapshot();
        match self.head.is_some_and(leads_out) {
            true => Err(FsError::Stale),
            false => Ok(()),
        }
    }
}

impl FsHandle {
    pub(crate) fn new(mailbox: PoolMailbox, dataset: u64, guid: u64) -> Self {
        Self {
            mailbox,
            dataset,
            guid,
            head: None,
            watch: 0,
            client: Client::Local,
            stable: false,
            under_way: None,
        }
    }

    /// Returns a handle whose requests are counted as this client's.
    #[must_use]
    pub fn for_client(&self, client: Client) -> Self {
        Self {
            client,
            ..self.clone()
        }
    }

    /// Returns a handle whose changes of names and attributes answer when they are on stable storage (as far as the `sync` property
    /// lets them), as if each were followed by a [`commit`](Self::commit) of what it changed.
    #[must_use]
    pub fn answering_when_stable(self) -> Self {
        Self {
            stable: true,
            ..self
        }
    }

    /// Returns a handle each of whose requests keeps the mark until it has ended, also when the caller does not wait for it.
    #[must_use]
    pub fn marked(&self, mark: &Arc<()>) -> Self {
        Self {
            under_way: Some(Arc::clone(mark)),
            ..self.clone()
        }
    }

    /// Returns a handle of a snapshot of this file system, by the snapshot's object number and guid. Nothing is checked
    /// here: calls on a handle of what is no snapshot of it (any more) answer [`FsError::Stale`].
    #[must_use]
    pub fn snapshot(&self, dataset: u64, guid: u64) -> Self {
        let head = self.head.unwrap_or((self.dataset, self.guid));
        Self {
            mailbox: self.mailbox.clone(),
            dataset,
            guid,
            head: Some(head),
            watch: self.watch,
            client: self.client,
            stable: self.stable,
            under_way: self.under_way.clone(),
        }
    }

    /// Returns the file system whose `.zfs` this snapshot was reached through, if it was.
    #[must_use]
    pub fn head(&self) -> Option<Self> {
        let (dataset, guid) = self.head?;
        Some(Self {
            mailbox: self.mailbox.clone(),
            dataset,
            guid,
            head: None,
            watch: self.watch,
            client: self.client,
            stable: self.stable,
            under_way: self.under_way.clone(),
        })
    }

    /// Begins to watch what happens to the file system by other ways than the handle returned and its clones.
    #[must_use]
    pub fn watch(&self) -> (Watch, Self) {
        let (watch, number) = self.mailbox.watches().add(self.guid);
        let own = Self {
            watch: number,
            ..self.clone()
        };
        (watch, own)
    }

    /// Has this handle's watch told only of what `concerns` says: a request that changed something else does not wait for it. It is
    /// asked by the threads of such requests, and must not wait.
    pub fn watch_only(&self, concerns: impl Fn(&Invalidation) -> bool + Send + Sync + 'static) {
        self.watches()
            .limit(self.guid, self.watch, Box::new(concerns));
    }

    pub(crate) fn watches(&self) -> &Watches {
        self.mailbox.watches()
    }

    /// Tells the watchers what this handle did.
    pub(crate) async fn notify(&self, invalidations: &[Invalidation]) {
        self.watches()
            .notify(Some(self.guid), self.watch, invalidations)
            .await;
    }

    /// As [`Self::notify`], of invalidations that are made only if there are watches.
    async fn notify_if_watched<T>(
        &self,
        done: &FsResult<T>,
        what: impl FnOnce(&T) -> Vec<Invalidation>,
    ) {
        if let Ok(done) = done
            && !self.watches().is_empty()
        {
            self.notify(&what(done)).await;
        }
    }

    /// Returns the dataset's object number in its pool (the `objsetid` property).
    #[must_use]
    pub fn dataset(&self) -> u64 {
        self.dataset
    }

    /// Returns the dataset's guid, which no other dataset of any pool shares.
    #[must_use]
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Answers from what was told of files before, if that still holds. Not through `.zfs`, where each request finds out
    /// whether the snapshot is one of the file system it is asked for in.
    pub(crate) fn cached<T>(
        &self,
        look: impl FnOnce(&zpl::AttrCache, u64) -> Option<T>,
    ) -> Option<T> {
        if self.head.is_some() {
            return None;
        }
        let fast_path = self.mailbox.fast_path();
        fast_path.answer(self.guid, self.client, |cache| look(cache, self.guid))
    }

    async fn call<T, F, Answer>(&self, work: F) -> FsResult<T>
    where
        T: Send + 'static,
        F: FnOnce(Fs) -> Answer + Send + 'static,
        Answer: Future<Output = FsResult<T>> + 'static,
    {
        self.call_in(move |_, fs| work(fs)).await
    }

    /// Runs `work`, which changes names or attributes, and tells the watchers `what` it did. What it did to `of` is on stable
    /// storage then, if this handle answers when it is.
    async fn change<T, F, Answer>(
        &self,
        of: FileId,
        work: F,
        what: impl FnOnce(&T) -> Vec<Invalidation>,
    ) -> FsResult<T>
    where
        T: Send + 'static,
        F: FnOnce(Fs) -> Answer + Send + 'static,
        Answer: Future<Output = FsResult<T>> + 'static,
    {
        // Watchers are told before the wait, else they would show for as long what is no more: that takes a second crossing.
        let at_once = self.stable && self.watches().is_empty();
        let (done, stable) = self
            .call(move |fs| async move {
                let done = work(fs.clone()).await?;
                let stable = match at_once {
                    true => fs.commit_change(of).await,
                    false => Ok(()),
                };
                Ok((done, stable))
            })
            .await?;
        if !self.watches().is_empty() {
            self.notify(&what(&done)).await;
        }
        if self.stable && !at_once {
            self.call(move |fs| async move { fs.commit_change(of).await })
                .await?;
        }
        stable?;
        Ok(done)
    }

    /// Runs `work` with the open file system, and the pool's room for what concerns more than it.
    pub(crate) async fn call_in<T, F, Answer>(&self, work: F) -> FsResult<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<PoolContext>, Fs) -> Answer + Send + 'static,
        Answer: Future<Output = FsResult<T>> + 'static,
    {
        let (ours, client) = (self.identity(), self.client);
        let under_way = self.under_way.clone();
        let answer = self
            .mailbox
            .run(move |context| async move {
                let _until_the_end = under_way;
                let lease = match context.dataset_in_use(ours.dataset, ours.guid).await {
                    Ok(lease) => lease,
                    Err(error) => return Ok(Err(as_fs_error(&error))),
                };
                match lease.fs().and_then(|fs| ours.check(fs).map(|()| fs)) {
                    Ok(fs) => {
                        let handle = context.handle.clone();
                        let work = work(context, fs.clone());
                        Ok(lease.timed(&handle, client, work).await)
                    }
                    Err(error) => Ok(Err(error)),
                }
            })
            .await;
        answer.unwrap_or_else(|error| Err(as_fs_error(&error)))
    }

    /// Returns the attributes of the root directory.
    ///
    /// # Errors
    /// As of [`getattr`](Self::getattr).
    pub fn root(&self) -> Request<'_, FsResult<Attr>> {
        Box::pin(async move {
            self.call(|fs| async move { fs.getattr(fs.root()).await })
                .await
        })
    }

    /// Returns the attributes of a file.
    ///
    /// # Errors
    /// [`FsError::Stale`] when the file is gone.
    pub fn getattr(&self, id: FileId) -> Request<'_, FsResult<Attr>> {
        Box::pin(async move {
            if let FileTarget::Control(id) = FileTarget::of(id) {
                return self.control_attr(id).await;
            }
            if let Some(attr) = self.cached(|cache, fs| cache.attr(fs, id)) {
                return Ok(attr);
            }
            self.call(move |fs| async move { fs.getattr(id).await })
                .await
        })
    }

    /// Finds a name in a directory; `.` is the directory and `..` its parent.
    ///
    /// # Errors
    /// [`FsError::NotFound`], or no permission to search the directory.
    pub fn lookup<'a>(
        &'a self,
        dir: FileId,
        name: &'a [u8],
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Attr>> {
        Box::pin(async move {
            if let FileTarget::Control(_) = FileTarget::of(dir) {
                return Ok(Box::pin(self.find(dir, name, cred)).await?.attr);
            }
            let cached = self.cached(|cache, fs| match cache.search(fs, dir, name, cred) {
                Some((attr, _)) => Some(Ok(attr)),
                None => cache
                    .is_absent(fs, dir, name, cred)
                    .then_some(Err(FsError::NotFound)),
            });
            if let Some(found) = cached {
                return found;
            }
            let (name, cred) = (name.to_vec(), cred.clone());
            self.call(move |fs| async move { fs.lookup(dir, &name, &cred).await })
                .await
        })
    }

    /// Returns the name in a directory that is the given one but for case, as it is stored; any of them if there are several.
    ///
    /// # Errors
    /// [`FsError::NotFound`]; [`FsError::NotSupported`] in `.zfs`; no permission to list or search the directory.
    pub fn real_name<'a>(
        &'a self,
        dir: FileId,
        name: &'a [u8],
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Vec<u8>>> {
        Box::pin(async move {
            let FileTarget::Stored(dir) = FileTarget::of(dir) else {
                return Err(FsError::NotSupported);
            };
            let (name, cred) = (name.to_vec(), cred.clone());
            self.call(move |fs| async move { fs.real_name(dir, &name, &cred).await })
                .await
        })
    }

    /// Finds the file with an object number, whatever its generation (for FUSE and rescue).
    ///
    /// # Errors
    /// [`FsError::Stale`] when there is none.
    pub fn by_object(&self, object: u64) -> Request<'_, FsResult<Attr>> {
        Box::pin(async move {
            self.call(move |fs| async move { fs.by_object(object).await })
                .await
        })
    }

    /// Returns which of the wanted permissions the caller has.
    ///
    /// # Errors
    /// As of [`getattr`](Self::getattr).
    pub fn access<'a>(
        &'a self,
        id: FileId,
        wanted: Access,
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Access>> {
        Box::pin(async move {
            if let FileTarget::Control(id) = FileTarget::of(id) {
                return Ok(self.control_access(id, wanted));
            }
            if let Some(granted) = self.cached(|cache, fs| cache.access(fs, id, wanted, cred)) {
                return Ok(granted);
            }
            let cred = cred.clone();
            self.call(move |fs| async move { fs.access(id, wanted, &cred).await })
                .await
        })
    }

    /// Returns whether a caller may use a file, and what decides.
    ///
    /// # Errors
    /// [`FsError::Stale`]; [`FsError::NotSupported`] in `.zfs`, which everybody may read and pass.
    pub async fn explain(&self, id: FileId, right: Right, cred: &Cred) -> FsResult<AccessVerdict> {
        let FileTarget::Stored(id) = FileTarget::of(id) else {
            return Err(FsError::NotSupported);
        };
        let cred = cred.clone();
        self.call(move |fs| async move { fs.explain(id, right, &cred).await })
            .await
    }

    /// Returns whether a caller may take the name of a file out of a directory that it may pass, and what decides.
    ///
    /// # Errors
    /// As of [`explain`](Self::explain).
    pub async fn explain_removal(
        &self,
        dir: FileId,
        id: FileId,
        cred: &Cred,
    ) -> FsResult<AccessVerdict> {
        let (FileTarget::Stored(dir), FileTarget::Stored(id)) =
            (FileTarget::of(dir), FileTarget::of(id))
        else {
            return Err(FsError::NotSupported);
        };
        let cred = cred.clone();
        self.call(move |fs| async move { fs.explain_removal(dir, id, &cred).await })
            .await
    }

    /// As [`access`](Self::access), and returns the file's attributes too.
    ///
    /// # Errors
    /// As of [`getattr`](Self::getattr).
    pub fn access_attr<'a>(
        &'a self,
        id: FileId,
        wanted: Access,
        cred: &'a Cred,
    ) -> Request<'a, FsResult<(Access, Attr)>> {
        Box::pin(async move {
            if let FileTarget::Control(id) = FileTarget::of(id) {
                return Ok((
                    self.control_access(id, wanted),
                    self.control_attr(id).await?,
                ));
            }
            let told = self.cached(|cache, fs| {
                let granted = cache.access(fs, id, wanted, cred)?;
                Some((granted, cache.attr(fs, id)?))
            });
            if let Some(told) = told {
                return Ok(told);
            }
            let cred = cred.clone();
            self.call(move |fs| async move {
                let granted = fs.access(id, wanted, &cred).await?;
                Ok((granted, fs.getattr(id).await?))
            })
            .await
        })
    }

    /// Sets attributes. With `guard`, only if the file's ctime still is that.
    ///
    /// # Errors
    /// Permissions, the guard, a read-only file system, space.
    pub fn setattr<'a>(
        &'a self,
        id: FileId,
        set: &'a SetAttr,
        guard: Option<Timestamp>,
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Change>> {
        Box::pin(async move {
            let id = stored(id, StoredOperation::SetAttr)?;
            let (set, cred) = (*set, cred.clone());
            self.change(
                id,
                move |fs| async move { fs.setattr(id, &set, guard, &cred).await },
                |_| match set.size {
                    Some(_) => vec![Invalidation::Content(id, 0, None)],
                    None => vec![Invalidation::Attributes(id)],
                },
            )
            .await
        })
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when the file is no symbolic link.
    pub fn readlink(&self, id: FileId) -> Request<'_, FsResult<Vec<u8>>> {
        Box::pin(async move {
            let id = stored(id, StoredOperation::ReadLink)?;
            self.call(move |fs| async move { fs.readlink(id).await })
                .await
        })
    }

    /// Reads bytes of a regular file; the pieces are shared with the cache, not copied.
    ///
    /// # Errors
    /// Permissions; [`FsError::Io`] when no good copy of a block is left.
    pub fn read<'a>(
        &'a self,
        id: FileId,
        offset: u64,
        len: usize,
        cred: &'a Cred,
    ) -> Request<'a, FsResult<ReadData>> {
        Box::pin(async move {
            let id = stored(id, StoredOperation::Read)?;
            let cred = cred.clone();
            self.call(move |fs| async move { fs.read(id, offset, len, &cred).await })
                .await
        })
    }

    /// Writes bytes to a regular file, and answers when `stability` is reached.
    ///
    /// # Errors
    /// Permissions, space, quota, a read-only file system.
    pub fn write<'a>(
        &'a self,
        id: FileId,
        offset: u64,
        data: IoBuf,
        stability: Stability,
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Written>> {
        Box::pin(async move {
            let id = stored(id, StoredOperation::Write)?;
            let cred = cred.clone();
            let done = self
                .call(move |fs| async move { fs.write(id, offset, data, stability, &cred).await })
                .await;
            self.notify_if_watched(&done, |done| {
                vec![Invalidation::Content(id, offset, Some(done.count))]
            })
            .await;
            done
        })
    }

    /// Makes bytes of a regular file those of another one of the same pool, without copying them: their blocks belong to both then.
    /// Answers when `stability` is reached.
    ///
    /// # Errors
    /// Where the bytes can be copied, but not cloned, [`FsError::CrossDevice`] (another pool or key, deduplicated blocks),
    /// [`FsError::Invalid`] (not at the ends of blocks, other block sizes, overlapping ranges), [`FsError::NotSupported`] (the
    /// feature `block_cloning` is disabled); those of [`read`](Self::read) and [`write`](Self::write).
    pub fn clone_range<'a>(
        &'a self,
        id: FileId,
        offset: u64,
        source: CloneOf<'a>,
        stability: Stability,
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Written>> {
        Box::pin(async move {
            let id = stored(id, StoredOperation::Write)?;
            let file = stored(source.file, StoredOperation::Read)?;
            if !self.mailbox.is_same(&source.fs.mailbox) {
                return Err(FsError::CrossDevice);
            }
            let theirs = source.fs.identity();
            let CloneOf {
                offset: from,
                len,
                may_be_shorter,
                ..
            } = source;
            let cred = cred.clone();
            let work = move |context: Rc<PoolContext>, fs: Fs| async move {
                let lease = context.dataset_in_use(theirs.dataset, theirs.guid).await;
                let lease = lease.map_err(|error| as_fs_error(&error))?;
                let source = CloneSource {
                    fs: lease.fs()?,
                    file,
                    offset: from,
                    len,
                    may_be_shorter,
                };
                theirs.check(source.fs)?;
                fs.clone_range(id, offset, source, stability, &cred).await
            };
            let done = self.call_in(work).await;
            self.notify_if_watched(&done, |done| {
                vec![Invalidation::Content(id, offset, Some(done.count))]
            })
            .await;
            done
        })
    }

    fn identity(&self) -> Identity {
        Identity {
            dataset: self.dataset,
            guid: self.guid,
            head: self.head,
        }
    }

    /// Appends bytes to a regular file.
    ///
    /// # Errors
    /// As of [`write`](Self::write).
    pub fn append<'a>(
        &'a self,
        id: FileId,
        data: IoBuf,
        stability: Stability,
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Written>> {
        Box::pin(async move {
            let id = stored(id, StoredOperation::Append)?;
            let cred = cred.clone();
            let done = self
                .call(move |fs| async move { fs.append(id, data, stability, &cred).await })
                .await;
            self.notify_if_watched(&done, |_| vec![Invalidation::Content(id, 0, None)])
                .await;
            done
        })
    }

    /// Makes a range of a regular file a hole; the size stays.
    ///
    /// # Errors
    /// As of [`write`](Self::write).
    pub fn punch<'a>(
        &'a self,
        id: FileId,
        offset: u64,
        len: u64,
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Change>> {
        Box::pin(async move {
            let id = stored(id, StoredOperation::Punch)?;
            let cred = cred.clone();
            let done = self
                .call(move |fs| async move { fs.punch(id, offset, len, &cred).await })
                .await;
            self.notify_if_watched(&done, |_| {
                vec![Invalidation::Content(id, offset, Some(len))]
            })
            .await;
            done
        })
    }

    /// Writes blocks of a regular file anew as they are, at most 1 MiB or one longer block, from the first at or after `offset` that
    /// is no hole; says where to go on. Durable with the transaction group; until then the blocks of before are.
    ///
    /// # Errors
    /// Those of [`read`](Self::read) and [`write`](Self::write).
    pub fn rewrite<'a>(
        &'a self,
        id: FileId,
        offset: u64,
        len: u64,
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Rewritten>> {
        Box::pin(async move {
            let id = stored(id, StoredOperation::Write)?;
            let cred = cred.clone();
            self.call(move |fs| async move { fs.rewrite(id, offset, len, &cred).await })
                .await
        })
    }

    /// Finds the next data or hole at or after `offset`.
    ///
    /// # Errors
    /// [`FsError::NoData`] or its like when there is none before the end of file.
    pub fn seek(&self, id: FileId, offset: u64, target: SeekTarget) -> Request<'_, FsResult<u64>> {
        Box::pin(async move {
            let id = stored(id, StoredOperation::Seek)?;
            self.call(move |fs| async move { fs.seek(id, offset, target).await })
                .await
        })
    }

    /// Brings everything written to the file onto stable storage. The range is a hint.
    ///
    /// # Errors
    /// [`FsError::Io`] when that failed: earlier unstable writes may be lost.
    pub fn commit(&self, id: FileId, offset: u64, len: u64) -> Request<'_, FsResult<Attr>> {
        Box::pin(async move {
            if let FileTarget::Control(id) = FileTarget::of(id) {
                return self.control_attr(id).await;
            }
            self.call(move |fs| async move { fs.commit(id, offset, len).await })
                .await
        })
    }

    /// Brings the whole file system onto stable storage.
    ///
    /// # Errors
    /// As of [`commit`](Self::commit).
    pub fn sync(&self) -> Request<'_, FsResult<()>> {
        Box::pin(async move { self.call(|fs| async move { fs.sync().await }).await })
    }

    /// Creates a regular file.
    ///
    /// # Errors
    /// [`FsError::Exists`] as `mode` says, permissions, space.
    pub fn create<'a>(
        &'a self,
        dir: FileId,
        name: &'a [u8],
        mode: CreateMode,
        set: &'a SetAttr,
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Made>> {
        Box::pin(self.create_file(dir, name, mode, set, cred, false))
    }

    /// As [`create`](Self::create), and keeps the file as by [`hold`](Self::hold).
    ///
    /// # Errors
    /// As of [`create`](Self::create).
    pub fn create_held<'a>(
        &'a self,
        dir: FileId,
        name: &'a [u8],
        mode: CreateMode,
        set: &'a SetAttr,
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Made>> {
        Box::pin(self.create_file(dir, name, mode, set, cred, true))
    }

    async fn create_file(
        &self,
        dir: FileId,
        name: &[u8],
        mode: CreateMode,
        set: &SetAttr,
        cred: &Cred,
        held: bool,
    ) -> FsResult<Made> {
        let dir = stored(dir, StoredOperation::Create)?;
        let (name, set, cred) = (name.to_vec(), *set, cred.clone());
        self.change(
            dir,
            move |fs| async move {
                check_not_control_name(&fs, dir, &name)?;
                let made = fs.create(dir, &name, mode, &set, &cred).await?;
                if held {
                    fs.hold(made.file.id).await?;
                }
                Ok(made)
            },
            |made| match made.created {
                true => vec![Invalidation::Attributes(dir)],
                false => vec![Invalidation::Content(made.file.id, 0, None)],
            },
        )
        .await
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// [`FsError::Exists`], permissions, space.
    pub fn mkdir<'a>(
        &'a self,
        dir: FileId,
        name: &'a [u8],
        set: &'a SetAttr,
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Made>> {
        Box::pin(async move {
            if let FileTarget::Control(dir) = FileTarget::of(dir) {
                return self.control_mkdir(dir, name, cred).await;
            }
            let (name, set, cred) = (name.to_vec(), *set, cred.clone());
            self.change(
                dir,
                move |fs| async move {
                    check_not_control_name(&fs, dir, &name)?;
                    fs.mkdir(dir, &name, &set, &cred).await
                },
                |_| vec![Invalidation::Attributes(dir)],
            )
            .await
        })
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As of [`mkdir`](Self::mkdir).
    pub fn symlink<'a>(
        &'a self,
        dir: FileId,
        name: &'a [u8],
        target: &'a [u8],
        set: &'a SetAttr,
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Made>> {
        Box::pin(async move {
            let dir = stored(dir, StoredOperation::Symlink)?;
            let (name, target) = (name.to_vec(), target.to_vec());
            let (set, cred) = (*set, cred.clone());
            self.change(
                dir,
                move |fs| async move {
                    check_not_control_name(&fs, dir, &name)?;
                    fs.symlink(dir, &name, &target, &set, &cred).await
                },
                |_| vec![Invalidation::Attributes(dir)],
            )
            .await
        })
    }

    /// Makes a pipe, socket or device node.
    ///
    /// # Errors
    /// As of [`mkdir`](Self::mkdir); device nodes are root's.
    pub fn mknod<'a>(
        &'a self,
        dir: FileId,
        name: &'a [u8],
        file_type: FileType,
        rdev: DeviceNumber,
        set: &'a SetAttr,
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Made>> {
        Box::pin(async move {
            let dir = stored(dir, StoredOperation::Mknod)?;
            let (name, set, cred) = (name.to_vec(), *set, cred.clone());
            self.change(
                dir,
                move |fs| async move {
                    check_not_control_name(&fs, dir, &name)?;
                    fs.mknod(dir, &name, file_type, rdev, &set, &cred).await
                },
                |_| vec![Invalidation::Attributes(dir)],
            )
            .await
        })
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// As of [`mkdir`](Self::mkdir).
    pub fn link<'a>(
        &'a self,
        id: FileId,
        dir: FileId,
        name: &'a [u8],
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Made>> {
        Box::pin(async move {
            let (id, dir) = (
                stored(id, StoredOperation::Link)?,
                stored(dir, StoredOperation::Link)?,
            );
            let (name, cred) = (name.to_vec(), cred.clone());
            self.change(
                dir,
                move |fs| async move {
                    check_not_control_name(&fs, dir, &name)?;
                    fs.link(id, dir, &name, &cred).await
                },
                |_| vec![Invalidation::Attributes(id), Invalidation::Attributes(dir)],
            )
            .await
        })
    }

    /// Removes a name of anything but a directory.
    ///
    /// # Errors
    /// [`FsError::NotFound`], permissions.
    pub fn remove<'a>(
        &'a self,
        dir: FileId,
        name: &'a [u8],
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Change>> {
        Box::pin(async move {
            let dir = stored(dir, StoredOperation::Remove)?;
            let (name, cred) = (name.to_vec(), cred.clone());
            let gone = name.clone();
            self.change(
                dir,
                move |fs| async move {
                    check_not_control_name(&fs, dir, &name)?;
                    fs.remove(dir, &name, &cred).await
                },
                |_| vec![Invalidation::Name(dir, gone), Invalidation::Attributes(dir)],
            )
            .await
        })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotEmpty`], permissions.
    pub fn rmdir<'a>(
        &'a self,
        dir: FileId,
        name: &'a [u8],
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Change>> {
        Box::pin(async move {
            if let FileTarget::Control(dir) = FileTarget::of(dir) {
                return self.control_rmdir(dir, name, cred).await;
            }
            let (name, cred) = (name.to_vec(), cred.clone());
            let gone = name.clone();
            self.change(
                dir,
                move |fs| async move {
                    check_not_control_name(&fs, dir, &name)?;
                    fs.rmdir(dir, &name, &cred).await
                },
                |_| vec![Invalidation::Name(dir, gone), Invalidation::Attributes(dir)],
            )
            .await
        })
    }

    /// Renames, replacing an existing file or empty directory.
    ///
    /// # Errors
    /// [`FsError::NotFound`], permissions, a directory moved into itself.
    pub fn rename<'a>(
        &'a self,
        from: FileId,
        from_name: &'a [u8],
        to: FileId,
        to_name: &'a [u8],
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Renamed>> {
        Box::pin(async move {
            let (from, to) = match (FileTarget::of(from), FileTarget::of(to)) {
                (FileTarget::Stored(from), FileTarget::Stored(to)) => (from, to),
                (FileTarget::Control(from), FileTarget::Control(to)) => {
                    return self
                        .control_rename(from, from_name, to, to_name, cred)
                        .await;
                }
                _ => return Err(FsError::CrossDevice),
            };
            let (old, new, cred) = (from_name.to_vec(), to_name.to_vec(), cred.clone());
            // One transaction changes both directories, so one of them tells for both.
            self.change(
                to,
                move |fs| async move {
                    check_not_control_name(&fs, from, &old)?;
                    check_not_control_name(&fs, to, &new)?;
                    fs.rename(from, &old, to, &new, &cred).await
                },
                |_| {
                    vec![
                        Invalidation::Name(from, from_name.to_vec()),
                        Invalidation::Name(to, to_name.to_vec()),
                        Invalidation::Attributes(from),
                        Invalidation::Attributes(to),
                    ]
                },
            )
            .await
        })
    }

    /// Has two names change what they stand for, both or none.
    ///
    /// # Errors
    /// [`FsError::NotFound`] unless both exist, permissions, a directory moved into itself.
    pub fn exchange<'a>(
        &'a self,
        from: FileId,
        from_name: &'a [u8],
        to: FileId,
        to_name: &'a [u8],
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Renamed>> {
        Box::pin(async move {
            let (from, to) = (
                stored(from, StoredOperation::Exchange)?,
                stored(to, StoredOperation::Exchange)?,
            );
            let (one, other, cred) = (from_name.to_vec(), to_name.to_vec(), cred.clone());
            self.change(
                to,
                move |fs| async move {
                    check_not_control_name(&fs, from, &one)?;
                    check_not_control_name(&fs, to, &other)?;
                    fs.exchange(from, &one, to, &other, &cred).await
                },
                |_| {
                    vec![
                        Invalidation::Name(from, from_name.to_vec()),
                        Invalidation::Name(to, to_name.to_vec()),
                        Invalidation::Attributes(from),
                        Invalidation::Attributes(to),
                    ]
                },
            )
            .await
        })
    }

    /// Lists a directory after `cookie` (0 = from its start).
    ///
    /// # Errors
    /// [`FsError::NotDirectory`], permissions.
    pub fn readdir<'a>(
        &'a self,
        dir: FileId,
        cookie: u64,
        limit: ListLimit,
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Listing>> {
        Box::pin(async move {
            if let FileTarget::Control(dir) = FileTarget::of(dir) {
                return self.control_readdir(dir, cookie, limit, cred).await;
            }
            let cred = cred.clone();
            let (listing, visible) = self
                .call(move |fs| async move {
                    let visible = fs.snapdir() == zpl::SnapDir::Visible
                        && dir == fs.root()
                        && !fs.is_snapshot();
                    let listing = if visible && Self::is_past_stored(cookie) {
                        Listing {
                            entries: Vec::new(),
                            eof: true,
                            dir: fs.getattr(dir).await?,
                        }
                    } else {
                        fs.readdir(dir, cookie, limit, &cred).await?
                    };
                    Ok((listing, visible))
                })
                .await?;
            if visible {
                return self.list_with_control(listing, cookie, limit).await;
            }
            Ok(listing)
        })
    }

    /// Returns space and objects.
    ///
    /// # Errors
    /// None of its own.
    pub fn statfs(&self) -> Request<'_, FsResult<FsStat>> {
        Box::pin(async move { self.call(|fs| async move { fs.statfs().await }).await })
    }

    /// Has what owners use counted in the background, where the pool counts more of it than the file system does: as a mount begins.
    ///
    /// # Errors
    /// The file system is gone, or cannot be read.
    pub fn start_counting(&self) -> Request<'_, FsResult<()>> {
        Box::pin(async move {
            self.call(|fs| async move {
                fs.start_counting();
                Ok(())
            })
            .await
        })
    }

    /// Returns the number of files without a name that are not freed yet.
    ///
    /// # Errors
    /// The file system is gone, or cannot be read.
    pub fn unlinked_count(&self) -> Request<'_, FsResult<u64>> {
        Box::pin(async move {
            self.call(|fs| async move { fs.unlinked_count().await })
                .await
        })
    }

    /// Delegates a regular file to a client: until it is given back, changes of it and of its names by others answer
    /// [`FsError::Delegated`], and so does reading it by others if it is to be written. Returns its attributes, or `None` where it is
    /// not delegated.
    ///
    /// # Errors
    /// [`FsError::Invalid`] of what is no regular file; those of [`getattr`](Self::getattr).
    pub fn delegate(
        &self,
        id: FileId,
        delegation: Delegation,
    ) -> Request<'_, FsResult<Option<Attr>>> {
        Box::pin(async move {
            if is_control(id) {
                return Ok(None);
            }
            let writes = delegation.access != DelegatedAccess::Read;
            let given = self
                .call(move |fs| async move { fs.delegate(id, &delegation).await })
                .await;
            if writes && matches!(given, Ok(Some(_))) {
                // What the file is like will be known to the client alone: no kernel is to trust what it was told before.
                self.notify(&[Invalidation::Attributes(id)]).await;
            }
            given
        })
    }

    /// Ends the delegation of a file to a client, if there is one.
    pub fn give_back(&self, id: FileId, holder: u64) {
        self.watches()
            .delegations
            .give_back(self.delegated(id), holder);
    }

    /// Checks that no client but `holder` (0: none is spared) has a file delegated, and has those that do give it back: for who
    /// opens a file to change it.
    ///
    /// # Errors
    /// [`FsError::Delegated`]; the caller asks again later.
    pub fn check_delegations(&self, id: FileId, holder: u64) -> FsResult<()> {
        let delegations = &self.watches().delegations;
        delegations.check_change(self.delegated(id), holder)
    }

    /// As [`check_delegations`](Self::check_delegations), for who opens a file to read it or asks for its attributes: a client that
    /// only reads it is not in the way.
    ///
    /// # Errors
    /// [`FsError::Delegated`]; the caller asks again later.
    pub fn check_written_elsewhere(&self, id: FileId, holder: u64) -> FsResult<()> {
        let delegations = &self.watches().delegations;
        delegations.check_read(self.delegated(id), holder)
    }

    /// Returns the client that has a file delegated to write: its size, times and content are known there, and not here.
    #[must_use]
    pub fn writer(&self, id: FileId) -> Option<u64> {
        let delegations = &self.watches().delegations;
        delegations.writer(self.delegated(id))
    }

    fn delegated(&self, file: FileId) -> LockedFile {
        let fs = self.guid;
        LockedFile { fs, file }
    }

    /// Keeps a file alive although its last name goes, until as many releases.
    ///
    /// # Errors
    /// As of [`getattr`](Self::getattr).
    pub fn hold(&self, id: FileId) -> Request<'_, FsResult<Attr>> {
        Box::pin(async move {
            if let FileTarget::Control(id) = FileTarget::of(id) {
                return self.control_attr(id).await;
            }
            self.call(move |fs| async move { fs.hold(id).await }).await
        })
    }

    /// Ends a hold.
    ///
    /// # Errors
    /// Only those of a file system that has gone away.
    pub fn release(&self, id: FileId) -> Request<'_, FsResult<()>> {
        Box::pin(async move {
            self.call(move |fs| async move {
                fs.release(id);
                Ok(())
            })
            .await
        })
    }

    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`] or its like when there is none of that name.
    pub fn xattr<'a>(
        &'a self,
        id: FileId,
        name: &'a [u8],
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Vec<u8>>> {
        Box::pin(async move {
            let id = stored(id, StoredOperation::Xattr)?;
            let for_root = cred.uid == 0;
            let cached = self.cached(|cache, fs| cache.xattr(fs, id, name).filter(|_| for_root));
            if let Some(value) = cached {
                return value;
            }
            let (name, cred) = (name.to_vec(), cred.clone());
            self.call(move |fs| async move { fs.xattr(id, &name, &cred).await })
                .await
        })
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As `mode` says; permissions, space, size.
    pub fn set_xattr<'a>(
        &'a self,
        id: FileId,
        name: &'a [u8],
        value: &'a [u8],
        mode: XattrMode,
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Change>> {
        Box::pin(async move {
            let id = stored(id, StoredOperation::SetXattr)?;
            let (name, value, cred) = (name.to_vec(), value.to_vec(), cred.clone());
            self.change(
                id,
                move |fs| async move { fs.set_xattr(id, &name, &value, mode, &cred).await },
                |_| vec![Invalidation::Attributes(id)],
            )
            .await
        })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As of [`xattr`](Self::xattr).
    pub fn remove_xattr<'a>(
        &'a self,
        id: FileId,
        name: &'a [u8],
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Change>> {
        Box::pin(async move {
            let id = stored(id, StoredOperation::RemoveXattr)?;
            let (name, cred) = (name.to_vec(), cred.clone());
            self.change(
                id,
                move |fs| async move { fs.remove_xattr(id, &name, &cred).await },
                |_| vec![Invalidation::Attributes(id)],
            )
            .await
        })
    }

    /// Lists the extended attributes.
    ///
    /// # Errors
    /// As of [`getattr`](Self::getattr).
    pub fn xattrs<'a>(
        &'a self,
        id: FileId,
        cred: &'a Cred,
    ) -> Request<'a, FsResult<Vec<StoredXattr>>> {
        Box::pin(async move {
            if let FileTarget::Control(_) = FileTarget::of(id) {
                return Ok(Vec::new());
            }
            let for_root = cred.uid == 0;
            let cached = self.cached(|cache, fs| cache.xattrs(fs, id).filter(|_| for_root));
            if let Some(all) = cached {
                return Ok(all);
            }
            let cred = cred.clone();
            self.call(move |fs| async move { fs.xattrs(id, &cred).await })
                .await
        })
    }
}
