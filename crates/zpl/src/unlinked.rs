//! Files without a name: freed at once when small and unused, else kept in the unlinked set and freed in the background.
//!
//! The set is on disk, so a crash between the last unlink and the last release loses no space: the next open drains it.
//! Big files are freed in steps of bounded size, each a transaction of its own, so that no transaction group gets too
//! large and a crash in between keeps what is done.

use std::rc::Rc;

use dmu::Tx;
use dmu::zap;
use ondisk::ObjectId;

use crate::backing::Weight;
use crate::fs::Fs;
use crate::znode::Znode;
use crate::{FileId, FsError, FsResult};
use runtime::sync::WHOLE_RANGE;

/// Most bytes of a file's content freed in one transaction, in blocks.
const STEP_BLOCKS: u64 = 4096;
/// A file of at most so many blocks is freed in the transaction that removes its last name.
const SMALL_BLOCKS: u64 = 256;
/// Entries of the set read at a time.
const BATCH: usize = 256;

impl Fs {
    /// Takes note, under `tx`, that `znode` has lost its last name: frees it, or puts it into the unlinked set.
    /// The caller holds the znode's lock and has stored its attributes. Returns whether a background free is due
    /// ([`Fs::queue_free`], after the transaction).
    pub(crate) async fn unlink_last(&self, znode: &Rc<Znode>, tx: &Tx) -> FsResult<bool> {
        self.log_gone(znode);
        let blocks = znode.size() / u64::from(znode.block_size.get().max(512));
        // Two owners: the cache and the caller. Any other may be in the middle of reading or writing it.
        let idle = znode.holds.get() == 0 && Rc::strong_count(znode) <= 2;
        let plain = znode.attrs.borrow().xattr.is_none();
        if idle && plain && (znode.is_dir() || blocks <= SMALL_BLOCKS) {
            znode.set_dead();
            self.clear_atime_pending(znode);
            self.0.znodes.remove(znode.object);
            self.free_acl_object(&znode.acl_object, tx).await?;
            self.os().free_object(znode.object_id(), tx).await?;
            return Ok(false);
        }
        let set = self
            .0
            .master
            .unlinked
            .ok_or(FsError::Corrupt("the file system has no unlinked set"))?;
        zap::add_int(self.os(), set, znode.object, tx).await?;
        znode.set_unlinked();
        Ok(true)
    }

    /// Has an unlinked file freed in the background unless it is held.
    pub(crate) fn queue_free(&self, znode: &Znode) {
        if znode.unlinked.get() && znode.holds.get() == 0 && !znode.dead.get() {
            self.0.reaper.borrow_mut().push(znode.object);
            self.start_reaper();
        }
    }

    /// Keeps a file alive although its last name goes, until as many releases.
    ///
    /// # Errors
    /// [`FsError::Stale`].
    pub async fn hold(&self, id: FileId) -> FsResult<crate::Attr> {
        let znode = self.znode(id).await?;
        znode.holds.set(znode.holds.get() + 1);
        match self.attr_of(&znode).await {
            Ok(attr) => Ok(attr),
            Err(error) => {
                self.release(id);
                Err(error)
            }
        }
    }

    /// Ends a hold; frees the file in the background if it has no name left. Releasing what is not held does nothing.
    pub fn release(&self, id: FileId) {
        let Some(znode) = self.0.znodes.find(id.object) else {
            return;
        };
        if znode.generation != id.generation || znode.holds.get() == 0 {
            return;
        }
        znode.holds.set(znode.holds.get() - 1);
        if !self.0.closed.get() && !self.settings().read_only {
            self.queue_free(&znode);
        }
    }

    /// Starts freeing what the unlinked set on disk holds.
    pub(crate) async fn drain_unlinked(&self) -> FsResult<()> {
        let Some(set) = self.0.master.unlinked else {
            return Ok(());
        };
        if zap::count(self.os(), set).await? > 0 {
            self.0.reaper.borrow_mut().set_rest(0);
            self.start_reaper();
        }
        Ok(())
    }

    /// Returns the number of files without a name that are not freed yet: those that are held, and those whose turn has not come.
    ///
    /// # Errors
    /// Those of reading the unlinked set.
    pub async fn unlinked_count(&self) -> FsResult<u64> {
        match self.0.master.unlinked {
            Some(set) => Ok(zap::count(self.os(), set).await?),
            None => Ok(0),
        }
    }

    /// Waits until everything that can be freed now is free.
    ///
    /// # Errors
    /// [`FsError::Busy`] when the file system was closed.
    pub async fn wait_unlinked_drained(&self) -> FsResult<()> {
        loop {
            let task = self.0.reaper.borrow_mut().take_task();
            match task {
                Some(task) => task.await,
                None if self.0.reaper.borrow().is_running() => self.0.handle.yield_now().await,
                None => {
                    return if self.0.closed.get() {
                        Err(FsError::Busy)
                    } else {
                        Ok(())
                    };
                }
            }
        }
    }

    pub(crate) async fn stop_reaper(&self) {
        let _ = self.wait_unlinked_drained().await;
    }

    fn start_reaper(&self) {
        let mut reaper = self.0.reaper.borrow_mut();
        if reaper.is_running() || self.0.closed.get() {
            return;
        }
        let fs = self.clone();
        reaper.start(self.0.handle.spawn("free unlinked files", async move {
            fs.reap_all().await;
            fs.0.reaper.borrow_mut().stopped();
        }));
    }

    async fn reap_all(&self) {
        while !self.0.closed.get() {
            let next = self.0.reaper.borrow_mut().pop();
            if let Some(object) = next {
                // A file that cannot be freed now (a damaged block, a stopped pool) stays in the set for the next open.
                let _ = self.reap(object).await;
                continue;
            }
            let rest = self.0.reaper.borrow_mut().take_rest();
            let (Some(cookie), Some(set)) = (rest, self.0.master.unlinked) else {
                return;
            };
            let Ok(entries) = zap::cursor(self.os(), set, cookie, BATCH).await else {
                return;
            };
            let Some(last) = entries.last() else { continue };
            let mut reaper = self.0.reaper.borrow_mut();
            reaper.set_rest(last.next_cookie);
            for entry in &entries {
                if let dmu::zap::ZapValue::U64(value) = &entry.value
                    && let Some(&object) = value.first()
                {
                    reaper.push(object);
                }
            }
        }
    }

    /// Frees one object of the unlinked set.
    pub(crate) async fn reap(&self, object: u64) -> FsResult<()> {
        let set = self
            .0
            .master
            .unlinked
            .ok_or(FsError::Corrupt("the file system has no unlinked set"))?;
        let znode = match self.0.znodes.find(object) {
            Some(znode) => znode,
            None => match self.load(object, true).await {
                Ok(znode) => znode,
                Err(FsError::Stale) => {
                    // The set names an object that is not there: only the entry is left to go.
                    let tx = self.begin(Weight::Frees).await?;
                    zap::remove_int(self.os(), set, object, &tx).await?;
                    return Ok(());
                }
                Err(error) => return Err(error),
            },
        };
        if znode.attrs.borrow().links != 0 || znode.dead.get() || znode.holds.get() > 0 {
            return Ok(());
        }
        znode.set_unlinked();
        let _all = znode.ranges.exclusive(WHOLE_RANGE).await;
        let _lock = znode.exclusive().await?;
        if znode.holds.get() > 0 {
            return Ok(());
        }
        let xattr_dir = znode.attrs.borrow().xattr;
        if let Some(dir) = xattr_dir {
            self.free_xattr_dir(dir).await?;
        }
        if !znode.is_dir() {
            self.free_in_steps(&znode, 0).await?;
        }
        if znode.holds.get() > 0 || self.0.closed.get() {
            return Ok(());
        }
        let tx = self.begin(Weight::Frees).await?;
        znode.set_dead();
        self.clear_atime_pending(&znode);
        self.0.znodes.remove(object);
        self.free_acl_object(&znode.acl_object, &tx).await?;
        self.os().free_object(znode.object_id(), &tx).await?;
        zap::remove_int(self.os(), set, object, &tx).await?;
        Ok(())
    }

    /// Frees the blocks of a file from `from` on until what is left fits one transaction. The caller holds the whole
    /// range and the lock; the size stays.
    pub(crate) async fn free_in_steps(&self, znode: &Znode, from: u64) -> FsResult<()> {
        let block = u64::from(znode.block_size.get().max(512));
        let step = block.saturating_mul(STEP_BLOCKS);
        if znode.size().saturating_sub(from) <= step {
            return Ok(());
        }
        let id = znode.object_id();
        let mut at = from.next_multiple_of(block);
        while let Some(data) = self.os().next_data(id, at).await? {
            let tx = self.begin(Weight::Frees).await?;
            self.os().free_range(id, data, step, &tx).await?;
            self.dirtied(znode, tx.txg());
            at = data.saturating_add(step);
            if self.0.closed.get() {
                return Err(FsError::Busy);
            }
        }
        Ok(())
    }

    /// Frees a hidden directory of extended attributes with all its files, in one transaction each.
    async fn free_xattr_dir(&self, dir: u64) -> FsResult<()> {
        let id = ObjectId(dir);
        loop {
            let entries = match zap::cursor(self.os(), id, 0, BATCH).await {
                Ok(entries) => entries,
                // Freed before a crash.
                Err(error) if error.is_not_found() => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            if entries.is_empty() {
                break;
            }
            for entry in entries {
                let tx = self.begin(Weight::Frees).await?;
                if let dmu::zap::ZapValue::U64(value) = &entry.value
                    && let Some(&value) = value.first()
                {
                    let file = value & crate::names::OBJECT_MASK;
                    self.0.znodes.remove(file);
                    match self.os().free_object(ObjectId(file), &tx).await {
                        Err(error) if !error.is_not_found() => return Err(error.into()),
                        _ => {}
                    }
                }
                zap::remove(self.os(), id, &entry.name, &tx).await?;
            }
        }
        let tx = self.begin(Weight::Frees).await?;
        self.0.znodes.remove(dir);
        match self.os().free_object(id, &tx).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }
}
