//! The content of regular files: read, write, punch, seek, and getting it onto stable storage.
//!
//! A write takes the range, then the file's lock, then a transaction. Blocks that are written in part are read before
//! the lock is taken, so that no task waits for a disk while it holds the lock.

use std::rc::Rc;

use ondisk::ObjectId;
use runtime::IoBuf;

use crate::backing::{META_BYTES, SyncSetting, Weight};
use crate::fs::{Fs, SIZE_MAX};
use crate::permission::{self, READ, WRITE};
use crate::sa::Attrs;
use crate::znode::Znode;
use crate::{
    Attr, Change, Cred, FileId, FileType, FsError, FsResult, ReadData, SeekTarget, Stability,
    WccAttr, Written, flags,
};
use runtime::sync::WHOLE_RANGE;

/// Bytes written in one transaction: keeps a txg's size under the throttle's control, and is a whole number of blocks
/// of up to 1 MiB. Larger blocks are written one at a time.
pub(crate) const CHUNK_BYTES: u64 = 1 << 20;

impl Fs {
    /// Finds a regular file whose content is asked for.
    pub(crate) async fn regular(&self, id: FileId) -> FsResult<Rc<Znode>> {
        let znode = self.znode(id).await?;
        match znode.file_type() {
            FileType::Regular => Ok(znode),
            FileType::Directory => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid),
        }
    }

    /// Reads bytes of a regular file. At or past the end nothing is read.
    ///
    /// # Errors
    /// [`FsError::Access`], [`FsError::IsDirectory`], [`FsError::Invalid`] for other special files, those of reading;
    /// [`FsError::Delegated`] while another client may have written what is not here.
    pub async fn read(
        &self,
        id: FileId,
        offset: u64,
        len: usize,
        cred: &Cred,
    ) -> FsResult<ReadData> {
        let znode = self.regular(id).await?;
        permission::check_content(&znode.attrs.borrow(), cred, READ)?;
        let end = offset.saturating_add(len as u64);
        let _range = znode
            .ranges
            .shared(offset..end.max(offset + u64::from(offset < u64::MAX)))
            .await;
        if znode.dead.get() {
            return Err(FsError::Stale);
        }
        self.check_written_elsewhere(&znode, cred)?;
        let size = znode.size();
        let end = end.min(size);
        let pieces = if offset < end {
            let len = usize::try_from(end - offset).map_err(|_| FsError::Invalid)?;
            self.os().read_bufs(znode.object_id(), offset, len).await?
        } else {
            Vec::new()
        };
        self.accessed(&znode);
        if let Some(dataset) = self.dataset() {
            dataset.note_read(end.saturating_sub(offset));
        }
        Ok(ReadData {
            pieces,
            eof: end >= size || offset >= size,
            attr: self.attr_of(&znode).await?,
        })
    }

    /// Writes bytes to a regular file. A long write is several transactions; when one in the middle fails, what was
    /// written before it is reported.
    ///
    /// # Errors
    /// [`FsError::Access`], [`FsError::NotPermitted`] (immutable, append-only), [`FsError::TooLarge`],
    /// [`FsError::NoSpace`], [`FsError::Quota`], [`FsError::ReadOnly`], [`FsError::IsDirectory`].
    pub async fn write(
        &self,
        id: FileId,
        offset: u64,
        data: IoBuf,
        stability: Stability,
        cred: &Cred,
    ) -> FsResult<Written> {
        self.write_at(id, Some(offset), data, stability, cred).await
    }

    /// Appends bytes to a regular file; they begin at the size [`Written::change`] has as before.
    ///
    /// # Errors
    /// Those of [`Fs::write`].
    pub async fn append(
        &self,
        id: FileId,
        data: IoBuf,
        stability: Stability,
        cred: &Cred,
    ) -> FsResult<Written> {
        self.write_at(id, None, data, stability, cred).await
    }

    async fn write_at(
        &self,
        id: FileId,
        offset: Option<u64>,
        data: IoBuf,
        stability: Stability,
        cred: &Cred,
    ) -> FsResult<Written> {
        self.check_writable()?;
        let znode = self.regular(id).await?;
        permission::check_content(&znode.attrs.borrow(), cred, WRITE)?;
        let whole = offset.is_none();
        let _append = match offset {
            None => Some(znode.ranges.exclusive(WHOLE_RANGE).await),
            Some(_) => None,
        };
        let start = offset.unwrap_or_else(|| znode.size());
        let forbidden = znode.flags() & (flags::IMMUTABLE | flags::READONLY) != 0
            || (znode.flags() & flags::APPENDONLY != 0 && start != znode.size());
        if forbidden {
            return Err(FsError::NotPermitted);
        }
        let mut before = znode.wcc();
        let total = data.len() as u64;
        if total == 0 {
            return Ok(Written {
                count: 0,
                stability,
                change: self.change_of(before, &znode).await?,
            });
        }
        if start >= SIZE_MAX {
            return Err(FsError::TooLarge);
        }
        let total = total.min(SIZE_MAX - start);
        let attrs = znode.attrs.borrow().clone();
        self.check_quota(&attrs, false).await?;
        let mut done = 0;
        while done < total {
            let at = start + done;
            let chunk = self.chunk_len(&znode, at, total - done);
            assert!(chunk > 0 && chunk <= total - done, "a step of a write");
            let from = usize::try_from(done).map_err(|_| FsError::Invalid)?;
            let to = usize::try_from(done + chunk).map_err(|_| FsError::Invalid)?;
            let piece = if chunk == data.len() as u64 {
                data.clone()
            } else {
                data.slice(from..to)
            };
            let size = at + chunk;
            match self.write_chunk(&znode, at, piece, size, whole, cred).await {
                Ok(seen) if done == 0 => before = seen,
                Ok(_) => {}
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
            done += chunk;
        }
        assert!(done <= total, "no more is written than was given");
        if let Some(dataset) = self.dataset() {
            dataset.note_written(done);
        }
        let stability = self.stabilize(&znode, stability).await?;
        Ok(Written {
            count: done,
            stability,
            change: self.change_of(before, &znode).await?,
        })
    }

    /// Returns how much of a write goes into the next transaction: up to a block boundary.
    fn chunk_len(&self, znode: &Znode, at: u64, left: u64) -> u64 {
        let block = u64::from(znode.block_size.get().max(self.settings().record_size));
        let most = CHUNK_BYTES.max(block);
        if left <= most {
            return left;
        }
        let end = at + most;
        left.min(end - end % block - at)
    }

    /// Returns the block size a file must get before bytes up to `end` are written, if it has to change: a file of one
    /// block has a block of its size, up to the record size.
    fn grown_block_size(&self, znode: &Znode, end: u64) -> Option<u32> {
        let block = znode.block_size.get();
        let record = self.settings().record_size;
        if end <= u64::from(block) || znode.size() > u64::from(block) {
            return None;
        }
        if block.is_power_of_two() && block >= record {
            return None;
        }
        let most = if block > record {
            block.next_power_of_two()
        } else {
            record
        };
        let size = u32::try_from(end.min(u64::from(most))).expect("at most the record size");
        let size = size.next_multiple_of(512);
        (size > block).then_some(size)
    }

    /// Writes bytes in one transaction; the file's size becomes at least `size`.
    pub(crate) async fn write_chunk(
        &self,
        znode: &Rc<Znode>,
        at: u64,
        data: IoBuf,
        size: u64,
        whole_held: bool,
        cred: &Cred,
    ) -> FsResult<WccAttr> {
        let len = data.len() as u64;
        let end = at + len;
        let id = znode.object_id();
        // Growing the only block touches all of it.
        let grows = |z: &Znode| self.grown_block_size(z, end).is_some();
        let mut range = None;
        if !whole_held {
            let guard = znode
                .ranges
                .exclusive(if grows(znode) { WHOLE_RANGE } else { at..end })
                .await;
            range = Some(guard);
            if grows(znode) {
                drop(range.take());
                range = Some(znode.ranges.exclusive(WHOLE_RANGE).await);
            }
        }
        if znode.dead.get() {
            return Err(FsError::Stale);
        }
        self.warm(znode, at, end).await?;
        let _lock = znode.exclusive().await?;
        self.check_delegations(znode, cred)?;
        let before = znode.wcc();
        self.drop_capability(znode).await?;
        let mut attrs = znode.attrs.borrow().clone();
        attrs.size = attrs.size.max(size);
        self.touch_content(&mut attrs, cred);
        let plan = self.plan_for(znode, &attrs).await?;
        let grown = self.grown_block_size(znode, end);
        let block = u64::from(grown.unwrap_or(znode.block_size.get()).max(512));
        let blocks = end.div_ceil(block) - at / block;
        let tx = self.begin(Weight::Content { blocks, block }).await?;
        if let Some(size) = grown {
            self.os().set_block_size(id, size, &tx).await?;
            znode.set_block_size(size);
        }
        let lost_set_id = attrs.mode != znode.attrs.borrow().mode;
        self.os().write_buf(id, at, data.clone(), &tx).await?;
        self.store(znode, attrs, &plan, &tx).await?;
        self.log_write(znode, at, &data, &tx);
        if lost_set_id {
            self.log_mode(znode, &tx);
        }
        drop(range);
        Ok(before)
    }

    /// Reads the blocks a write covers in part, so that writing them needs no disk.
    async fn warm(&self, znode: &Znode, at: u64, end: u64) -> FsResult<()> {
        let block = u64::from(znode.block_size.get().max(512));
        let size = znode.size();
        let first = at - at % block;
        if at != first && first < size {
            self.os().read_bufs(znode.object_id(), first, 1).await?;
        }
        let last = end - end % block;
        if end != last && last < size && (last != first || at == first) && end < size {
            self.os().read_bufs(znode.object_id(), last, 1).await?;
        }
        Ok(())
    }

    /// Sets what changes with every change of content.
    pub(crate) fn touch_content(&self, attrs: &mut Attrs, cred: &Cred) {
        let now = self.now();
        attrs.mtime = now;
        attrs.ctime = now;
        attrs.flags |= flags::ARCHIVE | flags::AV_MODIFIED;
        if cred.uid != 0 {
            attrs.mode = permission::without_set_id(attrs.mode);
        }
    }

    /// Makes a range of a regular file a hole; bytes past the end of file are not touched, the size stays.
    ///
    /// # Errors
    /// Those of [`Fs::write`].
    pub async fn punch(&self, id: FileId, offset: u64, len: u64, cred: &Cred) -> FsResult<Change> {
        self.check_writable()?;
        let znode = self.regular(id).await?;
        permission::check_content(&znode.attrs.borrow(), cred, WRITE)?;
        if znode.flags() & (flags::IMMUTABLE | flags::READONLY | flags::APPENDONLY) != 0 {
            return Err(FsError::NotPermitted);
        }
        let end = offset.saturating_add(len);
        let _range = znode.ranges.exclusive(offset..end).await;
        self.warm(&znode, offset, end.min(SIZE_MAX)).await?;
        let _lock = znode.exclusive().await?;
        self.check_delegations(&znode, cred)?;
        let before = znode.wcc();
        let size = znode.size();
        if offset >= size || len == 0 {
            return self.change_of(before, &znode).await;
        }
        self.drop_capability(&znode).await?;
        let mut attrs = znode.attrs.borrow().clone();
        self.touch_content(&mut attrs, cred);
        let plan = self.plan_for(&znode, &attrs).await?;
        // Bytes past the end of file are zeros already; blocks there do not exist.
        let len = if end >= size { u64::MAX } else { end - offset };
        let tx = self.begin(Weight::Frees).await?;
        self.os()
            .free_range(znode.object_id(), offset, len, &tx)
            .await?;
        self.store(&znode, attrs, &plan, &tx).await?;
        assert_eq!(znode.size(), size, "a hole changes no size");
        self.log_punch(&znode, offset, end.min(size) - offset, &tx);
        drop(tx);
        self.settle(&znode).await?;
        self.change_of(before, &znode).await
    }

    /// Finds the next data or hole at or after `offset`; the end of file counts as a hole.
    ///
    /// # Errors
    /// [`FsError::NoSuchOffset`] at or past the end, or when no data follows.
    pub async fn seek(&self, id: FileId, offset: u64, target: SeekTarget) -> FsResult<u64> {
        let znode = self.regular(id).await?;
        let _range = znode.ranges.shared(WHOLE_RANGE).await;
        if znode.dead.get() {
            return Err(FsError::Stale);
        }
        let size = znode.size();
        if offset >= size {
            return Err(FsError::NoSuchOffset);
        }
        let found = match target {
            SeekTarget::Data => self
                .os()
                .next_data(znode.object_id(), offset)
                .await?
                .ok_or(FsError::NoSuchOffset)?,
            SeekTarget::Hole => self
                .os()
                .next_hole(znode.object_id(), offset)
                .await?
                .min(size),
        };
        if found >= size && target == SeekTarget::Data {
            Err(FsError::NoSuchOffset)
        } else {
            Ok(found)
        }
    }

    /// Brings everything written to the file onto stable storage. The range is a hint.
    ///
    /// # Errors
    /// [`FsError::Stale`]; those of writing.
    pub async fn commit(&self, id: FileId, offset: u64, len: u64) -> FsResult<Attr> {
        let _ = (offset, len);
        let znode = self.znode(id).await?;
        if self.settings().sync != SyncSetting::Disabled {
            self.commit_log(znode.object_id(), znode.last_txg.get())
                .await?;
        }
        self.attr_of(&znode).await
    }

    /// Brings a change of names in a directory, or of a file's attributes, onto stable storage, whether the directory or file is
    /// still there or has been removed meanwhile. If it is, what it is like now is told to others ([`AttrCache`](crate::AttrCache)):
    /// who changes something asks for it next.
    ///
    /// # Errors
    /// Those of writing.
    pub async fn commit_change(&self, of: FileId) -> FsResult<()> {
        if self.settings().sync != SyncSetting::Disabled {
            let open = self.0.backing.open_txg();
            self.commit_log(ObjectId(of.object), open).await?;
        }
        match self.getattr(of).await {
            Ok(_) | Err(FsError::Stale) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Brings the whole file system onto stable storage.
    ///
    /// # Errors
    /// Those of writing.
    pub async fn sync(&self) -> FsResult<()> {
        self.store_atimes().await?;
        if self.settings().read_only {
            return Ok(());
        }
        self.0.backing.wait_synced(self.0.backing.open_txg()).await
    }

    /// Waits, as asked and as the `sync` property says, until a file's changes are on stable storage.
    pub(crate) async fn stabilize(&self, znode: &Znode, wanted: Stability) -> FsResult<Stability> {
        let wait = match self.settings().sync {
            SyncSetting::Disabled => return Ok(wanted),
            SyncSetting::Always => true,
            SyncSetting::Standard => wanted != Stability::Unstable,
        };
        if !wait {
            return Ok(Stability::Unstable);
        }
        self.commit_log(znode.object_id(), znode.last_txg.get())
            .await?;
        Ok(Stability::FileSync)
    }

    /// Waits after a change of names or attributes if the `sync` property is `always`.
    pub(crate) async fn settle(&self, znode: &Znode) -> FsResult<()> {
        if self.settings().sync == SyncSetting::Always && self.0.replaying.get().is_none() {
            self.commit_log(znode.object_id(), znode.last_txg.get())
                .await?;
        }
        Ok(())
    }

    /// Sets the size of a regular file in memory's new attributes and on disk. The caller holds the whole range and the
    /// lock, and stores `attrs` under the returned transaction.
    pub(crate) async fn resize(&self, znode: &Znode, size: u64) -> FsResult<dmu::Tx> {
        let id = znode.object_id();
        if size < znode.size() {
            self.free_in_steps(znode, size).await?;
            let tx = self.begin(Weight::Frees).await?;
            self.os().free_range(id, size, u64::MAX, &tx).await?;
            return Ok(tx);
        }
        let tx = self.begin(Weight::Bytes(META_BYTES)).await?;
        if let Some(block) = self.grown_block_size(znode, size) {
            self.os().set_block_size(id, block, &tx).await?;
            znode.set_block_size(block);
        }
        Ok(tx)
    }
}
