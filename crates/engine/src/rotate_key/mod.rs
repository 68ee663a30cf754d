//! Rotation of master keys: what a dataset holds, its snapshots with it, is encrypted anew while it is in use (`zfs rotate-key`).
//!
//! ```text
//!   POOL/rotate-key-GUID        holds the copy, and says in a user property how far the rotation is
//!   POOL/rotate-key-GUID/copy   an encryption root with a new master key under the dataset's wrapping key
//!
//!   snapshot after snapshot is copied, then what was written meanwhile, by snapshots that are short-lived, until little is left
//!   -> the dataset pauses, the rest is copied, both exchange what they hold in one txg -> the old blocks, now of the copy, go
//! ```
//!
//! Guarantees: at each moment the dataset has all of its data under one key. All that an interruption leaves is found by the name of the
//! holder, which is there before anything else and goes last: it is gone on with, or given up. It does not know commands and jobs.

mod work;

use std::rc::Rc;

use self::work::Work;
use crate::pool_mailbox::{PoolContext, Request};
use crate::rotations::Progress;
use crate::{EngineError, PoolHandle};

/// How far the rotation of a dataset's key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRotationStage {
    /// The dataset is being copied.
    Copying,
    /// The dataset has the new key; the old blocks are being destroyed.
    Exchanged,
}

/// A rotation of a dataset's key that is under way, or was interrupted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRotation {
    /// The dataset; none when it was destroyed meanwhile.
    pub dataset: Option<String>,
    /// How far it is.
    pub stage: KeyRotationStage,
    /// Whether it is being worked on.
    pub running: bool,
    /// Whether it could be gone on with now: its key is loaded, or none is needed any more.
    pub ready: bool,
    /// Bytes of data copied since it was begun or gone on with.
    pub copied_bytes: u64,
    /// Bytes that the dataset had, with its snapshots, when it was begun or gone on with; 0 while it is not running.
    pub total_bytes: u64,
    /// Why it is not running, if it failed since the pool was imported.
    pub failed: Option<String>,
}

/// What the rotation of a dataset's key would take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRotationNeeds {
    /// Bytes that the copy takes, about.
    pub used_bytes: u64,
    /// Bytes that the pool has for it.
    pub available_bytes: u64,
    /// Bookmarks that go, without the dataset's name: their snapshots are gone.
    pub lost_bookmarks: Vec<String>,
}

impl PoolContext {
    /// Begins to rotate the key of a dataset, or goes on with it; true once that is under way, false when it was already.
    async fn start_key_rotation(self: &Rc<Self>, dataset: &str) -> Result<bool, EngineError> {
        self.writable()?;
        let work = Box::pin(Work::begin(self, dataset)).await?;
        Ok(self.go_on(work))
    }

    fn go_on(self: &Rc<Self>, work: Work) -> bool {
        let guid = work.guid();
        let Some(progress) = self.rotations.begin(guid, work.total()) else {
            return false;
        };
        let context = Rc::clone(self);
        let task = async move {
            let outcome = Box::pin(work.run(&progress)).await;
            let failed = outcome.err().map(|error| error.to_string());
            context.rotations.end(guid, failed);
        };
        drop(self.handle.spawn("key rotation", task));
        true
    }

    async fn resume_key_rotations(self: &Rc<Self>) -> Result<Vec<String>, EngineError> {
        self.writable()?;
        let mut names = Vec::new();
        for work in Work::found(self).await? {
            if self.rotations.of(work.guid()).is_none() && work.is_ready().await? {
                let name = work.dataset().await?;
                if self.go_on(work) {
                    names.extend(name);
                }
            }
        }
        Ok(names)
    }

    async fn key_rotations(self: &Rc<Self>) -> Result<Vec<KeyRotation>, EngineError> {
        let mut all = Vec::new();
        for work in Work::found(self).await? {
            let progress = self.rotations.of(work.guid());
            let bytes = |of: fn(&Progress) -> u64| progress.as_deref().map_or(0, of);
            all.push(KeyRotation {
                dataset: work.dataset().await?,
                stage: work.stage(),
                running: progress.is_some(),
                ready: work.is_ready().await?,
                copied_bytes: bytes(Progress::copied),
                total_bytes: bytes(Progress::total),
                failed: self.rotations.failure(work.guid()),
            });
        }
        Ok(all)
    }

    async fn cancel_key_rotation(self: &Rc<Self>, dataset: &str) -> Result<(), EngineError> {
        self.writable()?;
        let guid = self.pool.hierarchy().info(dataset).await?.guid.0;
        while let Some(progress) = self.rotations.of(guid) {
            progress.stop().await;
        }
        let found = Work::found(self).await?;
        let found = found.into_iter().find(|work| work.guid() == guid);
        let Some(work) = found else {
            let none = "its key is not being rotated, or has been by now";
            return Err(EngineError::Dataset(none.to_owned()));
        };
        self.rotations.forget(guid);
        let is_done = work.stage() == KeyRotationStage::Exchanged;
        Box::pin(work.clean()).await?;
        match is_done {
            true => Err(EngineError::Dataset(
                "it has the new key already; what was left of the old blocks is destroyed"
                    .to_owned(),
            )),
            false => Ok(()),
        }
    }
}

impl PoolHandle {
    /// Checks that the key of a dataset can be rotated, and returns what that would take. Nothing is changed.
    ///
    /// # Errors
    /// [`EngineError::Dataset`] with the reason; [`EngineError::KeyNotLoaded`]; [`EngineError::Busy`] while something is received
    /// into the dataset; [`EngineError::Permission`].
    pub fn key_rotation_needs<'a>(
        &'a self,
        dataset: &'a str,
    ) -> Request<'a, Result<KeyRotationNeeds, EngineError>> {
        Box::pin(async move {
            let dataset = dataset.to_owned();
            self.run_as_root(move |context| async move {
                let hierarchy = context.pool.hierarchy();
                let plan = Box::pin(hierarchy.plan_key_rotation(&dataset)).await?;
                Ok(KeyRotationNeeds {
                    used_bytes: plan.used,
                    available_bytes: plan.available,
                    lost_bookmarks: plan.lost_bookmarks,
                })
            })
            .await
        })
    }

    /// Begins to encrypt what a dataset and its snapshots hold under a new master key, or goes on with it, and does not wait for
    /// its end; true when that is under way now, false when it was already. That it is begun is on stable storage when this returns.
    ///
    /// # Errors
    /// As [`PoolHandle::key_rotation_needs`]; [`EngineError::Dataset`] when the pool has not the room for the copy.
    pub fn start_key_rotation<'a>(
        &'a self,
        dataset: &'a str,
    ) -> Request<'a, Result<bool, EngineError>> {
        Box::pin(async move {
            let dataset = dataset.to_owned();
            self.run_as_root(move |context| async move {
                Box::pin(context.start_key_rotation(&dataset)).await
            })
            .await
        })
    }

    /// Goes on with interrupted rotations whose keys are loaded; returns their datasets.
    ///
    /// # Errors
    /// Of reading; the pool is read-only.
    pub fn resume_key_rotations(&self) -> Request<'_, Result<Vec<String>, EngineError>> {
        Box::pin(async move {
            self.run_as_root(
                |context| async move { Box::pin(context.resume_key_rotations()).await },
            )
            .await
        })
    }

    /// Returns the rotations that are under way or were interrupted.
    ///
    /// # Errors
    /// Of reading.
    pub fn key_rotations(&self) -> Request<'_, Result<Vec<KeyRotation>, EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move { Box::pin(context.key_rotations()).await })
                .await
        })
    }

    /// Gives up the rotation of a dataset's key: the dataset stays as it is, and the copy is destroyed.
    ///
    /// # Errors
    /// [`EngineError::Dataset`] when there is none, or the dataset has its new key already; the copy is in use.
    pub fn cancel_key_rotation<'a>(
        &'a self,
        dataset: &'a str,
    ) -> Request<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let dataset = dataset.to_owned();
            self.run_as_root(move |context| async move {
                Box::pin(context.cancel_key_rotation(&dataset)).await
            })
            .await
        })
    }
}
