//! What an administrator does to a pool while it is in use: scans, errors, devices.

use crate::door::Room;
use crate::{EngineError, PoolHandle};

impl PoolHandle {
    /// Starts a scrub, or goes on with a paused one; does not wait for its end.
    ///
    /// # Errors
    /// A scan runs; the pool is suspended or closed.
    pub async fn start_scrub(&self) -> Result<(), EngineError> {
        self.door
            .ask(|room| async move { Ok(room.pool.start_scrub().await?) })
            .await
    }

    /// Pauses a scrub.
    ///
    /// # Errors
    /// None runs, it is paused, or a resilver runs.
    pub async fn pause_scrub(&self) -> Result<(), EngineError> {
        self.door
            .ask(|room| async move { Ok(room.pool.pause_scrub().await?) })
            .await
    }

    /// Ends a scrub for good.
    ///
    /// # Errors
    /// None runs, or a resilver does.
    pub async fn cancel_scrub(&self) -> Result<(), EngineError> {
        self.door
            .ask(|room| async move { Ok(room.pool.cancel_scrub().await?) })
            .await
    }

    /// Looks again at the blocks known to be damaged; returns how many still are.
    ///
    /// # Errors
    /// A scan runs; the pool is read-only, suspended or closed.
    pub async fn scrub_errors(&self) -> Result<u64, EngineError> {
        self.door
            .ask(|room| async move { Ok(room.pool.scrub_errors().await?) })
            .await
    }

    /// Starts the resilver anew.
    ///
    /// # Errors
    /// The pool is read-only, suspended or closed.
    pub async fn restart_resilver(&self) -> Result<(), EngineError> {
        self.door
            .ask(|room| async move { Ok(room.pool.restart_resilver().await?) })
            .await
    }

    /// Clears error counters of a vdev (by guid) or the whole pool, tries its devices again, and lets a suspended pool go
    /// on.
    ///
    /// # Errors
    /// No such vdev; the pool cannot go on.
    pub async fn clear(&self, vdev: Option<u64>) -> Result<(), EngineError> {
        self.door
            .ask(move |room| async move { Ok(room.pool.clear(vdev).await?) })
            .await
    }

    /// Returns what is damaged, as `zpool status -v` prints it: `tank/fs:/path`, `tank/fs@snap:<0x2a>` for what has no
    /// path, `<metadata>:<0x2a>` for the pool's own objects.
    ///
    /// # Errors
    /// The pool is closed, or its own metadata cannot be read.
    pub async fn damaged_files(&self) -> Result<Vec<String>, EngineError> {
        self.door
            .ask(|room| async move { room.damaged_files().await })
            .await
    }
}

impl Room {
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
