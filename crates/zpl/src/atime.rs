//! Access times: noted in memory by reads, stored together later.
//!
//! A read makes no transaction. Noted times reach the disk with the next change of the file, when many have gathered,
//! after half a minute, and when the file system is closed.

use std::rc::Rc;
use std::time::Duration;

use crate::backing::Weight;
use crate::fs::Fs;
use crate::znode::Znode;
use crate::{FsError, FsResult};

/// Noted times at which they are stored at once.
const PENDING_MAX: usize = 1024;
/// How long a noted time may wait.
const STORE_AFTER: Duration = Duration::from_secs(30);
/// `relatime`: a stored time older than this is renewed anyway.
const RELATIME_SECONDS: u64 = 24 * 60 * 60;

impl Fs {
    /// Notes that a file was read now, if the dataset's properties want that.
    pub(crate) fn accessed(&self, znode: &Znode) {
        let settings = self.settings();
        if !settings.atime || settings.read_only {
            return;
        }
        let now = self.now();
        {
            let mut attrs = znode.attrs.borrow_mut();
            let fresh = attrs.atime > attrs.mtime && attrs.atime > attrs.ctime;
            if settings.relatime
                && fresh
                && now[0].saturating_sub(attrs.atime[0]) < RELATIME_SECONDS
            {
                return;
            }
            attrs.atime = now;
        }
        znode.invalidate_cached();
        if !znode.atime_dirty.replace(true) {
            let pending = self.0.atimes_pending.get() + 1;
            self.0.atimes_pending.set(pending);
            self.schedule_atimes(pending >= PENDING_MAX);
        }
    }

    fn schedule_atimes(&self, now: bool) {
        if self.0.atime_task.replace(true) {
            return;
        }
        // The task must not keep a closed file system alive.
        let weak = Rc::downgrade(&self.0);
        let handle = self.0.handle.clone();
        drop(self.0.handle.spawn("store access times", async move {
            if !now {
                handle.sleep(STORE_AFTER).await;
            }
            let Some(inner) = weak.upgrade() else { return };
            let fs = Self(inner);
            fs.0.atime_task.set(false);
            if !fs.0.closed.get() {
                // An access time that cannot be stored is not worth failing anything for.
                let _ = fs.store_atimes().await;
            }
        }));
    }

    pub(crate) fn clear_atime_pending(&self, znode: &Znode) {
        if znode.atime_dirty.replace(false) {
            self.0
                .atimes_pending
                .set(self.0.atimes_pending.get().saturating_sub(1));
        }
    }

    /// Stores all noted access times.
    pub(crate) async fn store_atimes(&self) -> FsResult<()> {
        if self.0.atimes_pending.get() == 0 || self.settings().read_only || self.0.closed.get() {
            return Ok(());
        }
        let znodes = self.0.znodes.with_dirty_atime();
        for znode in znodes {
            let Ok(_lock) = znode.exclusive().await else {
                continue;
            };
            if !znode.atime_dirty.get() {
                continue;
            }
            let attrs = znode.attrs.borrow().clone();
            let plan = self.plan_for(&znode, &attrs).await?;
            // A full pool has no room for access times: better to lose them than to refuse a sync or an export.
            let tx = match self.begin(Weight::Bytes(1024)).await {
                Err(FsError::NoSpace | FsError::Quota) => return Ok(()),
                other => other?,
            };
            self.store(&znode, attrs, &plan, &tx).await?;
        }
        Ok(())
    }
}
