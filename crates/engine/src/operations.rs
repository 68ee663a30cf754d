//! What an administrator does to a pool while it is in use: scans, errors, devices.

use std::path::{Path, PathBuf};

use crate::pool_mailbox::{PoolContext, Request};
use crate::{
    AddSpec, AllocationBias, EngineError, LeafActivity, LeafActivityRequest, PoolHandle, SplitSpec,
};

impl PoolHandle {
    /// Starts a scrub, or goes on with a paused one; does not wait for its end.
    ///
    /// # Errors
    /// A scan runs; the pool is suspended or closed.
    pub fn start_scrub(&self) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move { Ok(context.pool.start_scrub().await?) })
                .await
        })
    }

    /// Starts a scrub of what was written since the last complete one, or goes on with a paused one; does not wait for its
    /// end.
    ///
    /// # Errors
    /// A scan runs; the pool is suspended or closed.
    pub fn start_scrub_of_new(&self) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move { Ok(context.pool.start_scrub_of_new().await?) })
                .await
        })
    }

    /// Starts a scrub of what was written from `since` to `until` (seconds since 1970), or goes on with a paused one; does not
    /// wait for its end.
    ///
    /// # Errors
    /// A scan runs; the pool is suspended or closed.
    pub fn start_scrub_of_time(
        &self,
        since: Option<u64>,
        until: Option<u64>,
    ) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(move |context| async move {
                Ok(context.pool.start_scrub_of_time(since, until).await?)
            })
            .await
        })
    }

    /// Pauses a scrub.
    ///
    /// # Errors
    /// None runs, it is paused, or a resilver runs.
    pub fn pause_scrub(&self) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move { Ok(context.pool.pause_scrub().await?) })
                .await
        })
    }

    /// Ends a scrub for good.
    ///
    /// # Errors
    /// None runs, or a resilver does.
    pub fn cancel_scrub(&self) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move { Ok(context.pool.cancel_scrub().await?) })
                .await
        })
    }

    /// Looks again at the blocks known to be damaged; returns how many still are.
    ///
    /// # Errors
    /// A scan runs; the pool is read-only, suspended or closed.
    pub fn scrub_errors(&self) -> Request<'_, Result<u64, EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move { Ok(context.pool.scrub_errors().await?) })
                .await
        })
    }

    /// Starts the resilver anew.
    ///
    /// # Errors
    /// The pool is read-only, suspended or closed.
    pub fn restart_resilver(&self) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move { Ok(context.pool.restart_resilver().await?) })
                .await
        })
    }

    /// Clears error counters of a vdev (by guid) or the whole pool, tries its devices again, and lets a suspended pool go
    /// on.
    ///
    /// # Errors
    /// No such vdev; the pool cannot go on.
    pub fn clear(&self, vdev: Option<u64>) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(move |context| async move { Ok(context.pool.clear(vdev).await?) })
                .await
        })
    }

    /// Returns what is damaged, as `zpool status -v` prints it: `tank/fs:/path`, `tank/fs@snap:<0x2a>` for what has no
    /// path, `<metadata>:<0x2a>` for the pool's own objects.
    ///
    /// # Errors
    /// The pool is closed, or its own metadata cannot be read.
    pub fn damaged_files(&self) -> Request<'_, Result<Vec<String>, EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move { context.damaged_files().await })
                .await
        })
    }
}

impl PoolContext {
    // OpenZFS: lib/libzfs/libzfs_pool.c, zpool_obj_to_path (forms)
    async fn damaged_files(&self) -> Result<Vec<String>, EngineError> {
        let mut files = Vec::new();
        for damaged in self.pool.damaged_objects().await? {
            let object = damaged.object;
            files.push(match (&damaged.dataset, damaged.objset) {
                (_, 0) => format!("<metadata>:<{object:#x}>"),
                (None, objset) => format!("<{objset:#x}>:<{object:#x}>"),
                (Some(name), objset) => match self.path_of(objset, object).await {
                    Some(path) => format!("{name}:{}", String::from_utf8_lossy(&path)),
                    None => format!("{name}:<{object:#x}>"),
                },
            });
        }
        Ok(files)
    }

    async fn path_of(&self, objset: u64, object: u64) -> Option<Vec<u8>> {
        let number = ondisk::ObjectId(objset);
        let guid = {
            let dataset = self.pool.hierarchy().dataset_by_object(number).await.ok()?;
            dataset.guid().0
        };
        let lease = self.dataset_in_use(objset, guid).await.ok()?;
        lease.fs().ok()?.path_of(object).await.ok()
    }
}

impl PoolHandle {
    /// Takes a leaf out of service; `temporary` lasts until the next import.
    ///
    /// # Errors
    /// No such device; it is needed; the pool cannot be written.
    pub fn offline(&self, leaf: u64, temporary: bool) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(move |context| async move {
                Ok(context.pool.offline(leaf, temporary).await?)
            })
            .await
        })
    }

    /// Declares a leaf faulted, until its errors are cleared; `temporary` until the next import at most.
    ///
    /// # Errors
    /// As [`PoolHandle::offline`].
    pub fn fault(&self, leaf: u64, temporary: bool) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(move |context| async move {
                Ok(context.pool.fault(leaf, temporary).await?)
            })
            .await
        })
    }

    /// Puts a leaf back into service and starts to resilver what it missed. Returns whether it could be opened.
    ///
    /// # Errors
    /// No such device; the pool cannot be written.
    pub fn online(&self, leaf: u64) -> Request<'_, Result<bool, EngineError>> {
        Box::pin(async move {
            self.run_as_root(move |context| async move { Ok(context.pool.online(leaf).await?) })
                .await
        })
    }

    /// Attaches a device to a leaf as one more copy, or to replace it, and starts to resilver it.
    ///
    /// # Errors
    /// The device is in use or unfit; the layout forbids it; the pool cannot be written.
    pub fn attach<'a>(
        &'a self,
        leaf: u64,
        path: &'a Path,
        replace: bool,
        force: bool,
    ) -> Request<'a, Result<u64, EngineError>> {
        Box::pin(async move {
            let path = path.to_owned();
            self.run_as_root(move |context| async move {
                Ok(context.pool.attach(leaf, &path, replace, force).await?)
            })
            .await
        })
    }

    /// As [`PoolHandle::attach`], with a sequential resilver.
    ///
    /// # Errors
    /// As [`PoolHandle::attach`]; for vdevs that cannot be resilvered so, and while an ordinary resilver runs.
    pub fn attach_and_rebuild<'a>(
        &'a self,
        leaf: u64,
        path: &'a Path,
        replace: bool,
        force: bool,
    ) -> Request<'a, Result<u64, EngineError>> {
        Box::pin(async move {
            let path = path.to_owned();
            self.run_as_root(move |context| async move {
                let pool = &context.pool;
                Ok(pool.attach_and_rebuild(leaf, &path, replace, force).await?)
            })
            .await
        })
    }

    /// Adds devices to the pool; they are part of it on stable storage when this returns.
    ///
    /// # Errors
    /// The layout is refused, a device is in use or unfit, the pool cannot be written.
    pub fn add(&self, spec: AddSpec) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(move |context| async move { Ok(context.pool.add(spec).await?) })
                .await
        })
    }

    /// Starts, suspends, cancels or forgets work on the free space of a leaf (by guid).
    ///
    /// # Errors
    /// No such device; it runs already, or does not; the pool cannot be written.
    pub fn request_leaf_activity(
        &self,
        what: LeafActivity,
        leaf: u64,
        request: LeafActivityRequest,
    ) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(move |context| async move {
                Ok(context
                    .pool
                    .request_leaf_activity(what, leaf, request)
                    .await?)
            })
            .await
        })
    }

    /// Keeps the state of the pool as it is now, for an import to go back to.
    ///
    /// # Errors
    /// There is a checkpoint; the feature is not enabled; the pool cannot be written.
    pub fn checkpoint(&self) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move { Ok(context.pool.checkpoint().await?) })
                .await
        })
    }

    /// Gives the checkpoint up; what it held is freed in the background.
    ///
    /// # Errors
    /// There is none; the pool cannot be written.
    pub fn discard_checkpoint(&self) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move { Ok(context.pool.discard_checkpoint().await?) })
                .await
        })
    }

    /// Takes entries of blocks with one reference out of the deduplication tables of the fast form. Durable on return. Returns
    /// how many.
    ///
    /// # Errors
    /// The pool cannot be written, or the tables not be read.
    pub fn prune_dedup(&self, which: pool::Prune) -> Request<'_, Result<u64, EngineError>> {
        Box::pin(async move {
            self.run_as_root(
                move |context| async move { Ok(context.pool.prune_dedup(which).await?) },
            )
            .await
        })
    }

    /// Reads the deduplication tables into the cache.
    ///
    /// # Errors
    /// The tables cannot be read.
    pub fn prefetch_dedup(&self) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move { Ok(context.pool.prefetch_dedup().await?) })
                .await
        })
    }

    /// Reads the tables of cloned blocks into the cache.
    ///
    /// # Errors
    /// The tables cannot be read.
    pub fn prefetch_clones(&self) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move { Ok(context.pool.prefetch_clones().await?) })
                .await
        })
    }

    /// Takes a spare, a cache device or a log vdev out of the pool for good; begins to evacuate a vdev that holds data, which
    /// goes when that is done.
    ///
    /// # Errors
    /// No such device; it is in use; the layout forbids it; the others have no room; the pool cannot be written.
    pub fn remove(&self, vdev: u64) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(move |context| async move { Ok(context.pool.remove(vdev).await?) })
                .await
        })
    }

    /// Gives up the evacuation of a vdev: it stays.
    ///
    /// # Errors
    /// None is under way; the pool cannot be written.
    pub fn cancel_removal(&self) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move { Ok(context.pool.cancel_removal().await?) })
                .await
        })
    }

    /// Returns about how many bytes of memory would be used for good if a vdev (by guid) was removed; `None` when that is
    /// not known.
    ///
    /// # Errors
    /// The pool is closed.
    pub fn removal_memory(&self, vdev: u64) -> Request<'_, Result<Option<u64>, EngineError>> {
        Box::pin(async move {
            self.run_as_root(move |context| async move { Ok(context.pool.removal_memory(vdev)?) })
                .await
        })
    }

    /// Lets every vdev have all that its devices offer now; returns how many have grown.
    ///
    /// # Errors
    /// The pool cannot be written.
    pub fn expand(&self) -> Request<'_, Result<usize, EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move { Ok(context.pool.expand().await?) })
                .await
        })
    }

    /// Gives the pool another guid, a random one unless told, and returns it.
    ///
    /// # Errors
    /// A device is out of order; the pool cannot be written.
    pub fn reguid(&self, guid: Option<u64>) -> Request<'_, Result<u64, EngineError>> {
        Box::pin(async move {
            let guid = self
                .run_as_root(move |context| async move { Ok(context.pool.reguid(guid).await?) })
                .await?;
            self.set_guid(guid);
            Ok(guid)
        })
    }

    /// Returns the devices that a split would make the new pool of (leaves by guid; the last of each mirror of which none
    /// is named), in the order of its vdevs.
    ///
    /// # Errors
    /// The pool is not made of mirrors, or the devices do not fit.
    pub fn plan_split(
        &self,
        devices: Vec<u64>,
    ) -> Request<'_, Result<Vec<(PathBuf, AllocationBias)>, EngineError>> {
        Box::pin(async move {
            self.run_as_root(move |context| async move { Ok(context.pool.plan_split(&devices)?) })
                .await
        })
    }

    /// Makes a pool of one half of every mirror; it is exported on return.
    ///
    /// # Errors
    /// The pool is not made of mirrors, a half is not whole, or the pool cannot be written.
    pub fn split(&self, spec: SplitSpec) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(move |context| async move { Ok(context.pool.split(spec).await?) })
                .await
        })
    }

    /// Tries again to open devices that are away; returns how many came back. A resilver that runs begins again with them if
    /// `restart`, else they are resilvered when it has ended.
    ///
    /// # Errors
    /// The pool cannot be written.
    pub fn reopen(&self, restart: bool) -> Request<'_, Result<usize, EngineError>> {
        Box::pin(async move {
            self.run_as_root(move |context| async move {
                Ok(match restart {
                    true => context.pool.reopen().await?,
                    false => context.pool.reopen_beside_resilver().await?,
                })
            })
            .await
        })
    }

    /// Takes a leaf out of its mirror or replacement for good.
    ///
    /// # Errors
    /// No such device; it is needed; the layout forbids it; the pool cannot be written.
    pub fn detach(&self, leaf: u64) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(move |context| async move { Ok(context.pool.detach(leaf).await?) })
                .await
        })
    }
}
