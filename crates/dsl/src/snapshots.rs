//! Snapshots, clones, bookmarks and holds: the public interface.

use std::rc::Rc;

use ondisk::ObjectId;

use crate::bookmark::{
    CreateBookmarks, DestroyBookmarks, NewBookmark, freed_before_next, referenced,
};
use crate::clone::{CloneSnapshot, PromoteClone, RollBack};
use crate::deadlist::Deadlist;
use crate::dsl_pool::{DslPool, Found};
use crate::error::{DslError, Refusals, Result};
use crate::hierarchy::Hierarchy;
use crate::hold::{Hold, Release};
use crate::namecheck::split;
use crate::property::Setting;
use crate::snapshot::{DestroySnapshots, TakeSnapshots};
use crate::space::Sizes;
use crate::sync_task::{Each, SyncTask as _, refusals};

/// Snapshots destroyed in one txg: more would delay every waiter of that txg.
const DESTROYED_AT_ONCE: usize = 500;

impl Hierarchy {
    /// Takes snapshots of several datasets at one moment, with user properties. All are taken, or
    /// none when a name is refused. On disk when it returns.
    ///
    /// # Errors
    /// Of reading and of the pool; what is wrong with single names (`NotFound`, `Exists`,
    /// `BadName`, `NameTooLong`, `NoSpace`, `CountLimit`, `Busy`) is returned as refusals.
    pub async fn snapshot(&self, wanted: &[String], settings: &[Setting]) -> Result<Refusals> {
        let task = TakeSnapshots {
            names: wanted.to_vec(),
            settings: settings.to_vec(),
        };
        refusals(self.pool().run(task).await)
    }

    /// Destroys snapshots; with `defer`, those held or cloned are destroyed with their last hold or
    /// clone. Names that do not exist are skipped. All are destroyed, or none when one is refused; many
    /// are destroyed
    /// in several txgs, so that no txg takes long.
    ///
    /// # Errors
    /// Of reading and of the pool; `Busy` (held or open) and `HasClones` are refusals.
    pub async fn destroy_snapshots(&self, targets: &[String], defer: bool) -> Result<Refusals> {
        let task = |names: &[String]| {
            let names = names.to_vec();
            Each(DestroySnapshots { names, defer })
        };
        let checked = {
            let _names = self.pool().config.read().await;
            task(targets).check(self.pool(), None).await
        };
        let mut refused = refusals(checked.map(|_| ()))?;
        for part in targets.chunks(DESTROYED_AT_ONCE) {
            if refused.is_empty() {
                refused = refusals(self.pool().run_checked(task(part)).await)?;
            }
        }
        Ok(refused)
    }

    /// Makes a clone of a snapshot: a dataset that starts with its contents.
    ///
    /// # Errors
    /// Those of creating a dataset; `NotFound` and `WrongKind` for the snapshot.
    pub async fn clone_snapshot(
        &self,
        snapshot: &str,
        name: &str,
        settings: Vec<Setting>,
        creator: u32,
    ) -> Result<()> {
        let task = CloneSnapshot {
            snapshot: snapshot.to_owned(),
            name: name.to_owned(),
            settings,
            creator,
        };
        self.pool().run(task).await
    }

    /// Promotes a clone: the snapshots up to its origin become the clone's, and the old head becomes a
    /// clone of the origin.
    ///
    /// # Errors
    /// `NotFound`, `NotAClone`, `Conflicts`, `NoSpace`, `NameTooLong`, `CountLimit`.
    pub async fn promote(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.pool().run(PromoteClone { name }).await
    }

    /// Rolls a dataset back to its newest snapshot, which must be `target` if given. No handle of
    /// the dataset may be open.
    ///
    /// # Errors
    /// `NotFound`, `NoSnapshot`, `NotNewest`, `Busy`, `Quota`, `NoSpace`.
    pub async fn rollback(&self, name: &str, target: Option<&str>) -> Result<()> {
        let task = RollBack {
            name: name.to_owned(),
            target: target.map(str::to_owned),
        };
        self.pool().run(task).await
    }

    /// Makes bookmarks: pairs of the new name and a snapshot or bookmark. All or none.
    ///
    /// # Errors
    /// Of reading and of the pool; `Exists`, `NotFound`, `NotAncestor`, `BadName` and
    /// `FeatureDisabled` are refusals.
    pub async fn create_bookmarks(&self, wanted: &[(String, String)]) -> Result<Refusals> {
        let new = wanted.iter().map(|(name, source)| NewBookmark {
            name: name.clone(),
            source: source.clone(),
        });
        let task = Each(CreateBookmarks(new.collect()));
        refusals(self.pool().run(task).await)
    }

    /// Destroys bookmarks; names that do not exist are skipped.
    ///
    /// # Errors
    /// Of reading and of the pool.
    pub async fn destroy_bookmarks(&self, targets: &[String]) -> Result<Refusals> {
        let task = Each(DestroyBookmarks(targets.to_vec()));
        refusals(self.pool().run(task).await)
    }

    /// Adds a hold with one tag to snapshots: all or none.
    ///
    /// # Errors
    /// Of reading and of the pool; `NotFound`, `TagExists`, `WrongKind` and `NameTooLong` are
    /// refusals.
    pub async fn hold(&self, names: &[String], tag: &str) -> Result<Refusals> {
        let (names, tag) = (names.to_vec(), tag.to_owned());
        refusals(self.pool().run(Each(Hold { names, tag })).await)
    }

    /// Removes the holds with one tag from snapshots: all or none. A snapshot marked for
    /// deferred destruction is destroyed with its last hold.
    ///
    /// # Errors
    /// Of reading and of the pool; `NotFound`, `NoSuchTag`, `WrongKind` and `Busy` are refusals.
    pub async fn release(&self, names: &[String], tag: &str) -> Result<Refusals> {
        let (names, tag) = (names.to_vec(), tag.to_owned());
        refusals(self.pool().run(Each(Release { names, tag })).await)
    }

    /// Returns the holds of a snapshot by tag, with their times in seconds since 1970.
    ///
    /// # Errors
    /// `NotFound`, `WrongKind`; errors of reading.
    pub async fn holds(&self, snapshot: &str) -> Result<Vec<(String, u64)>> {
        let _names = self.pool().config.read().await;
        self.pool().holds_of(snapshot).await
    }

    /// Returns the bytes that would come free if the snapshots of one dataset from `first` to
    /// `last` were destroyed.
    ///
    /// # Errors
    /// `NotFound`; `WrongKind` when they are not of one dataset or not in this order.
    pub async fn would_free(&self, first: &str, last: &str) -> Result<u64> {
        let _names = self.pool().config.read().await;
        Ok(self.pool().would_free(first, last).await?.used)
    }

    /// Returns the bytes a dataset or snapshot refers to that were written after a snapshot or
    /// bookmark of its line (`written@SNAPSHOT`).
    ///
    /// # Errors
    /// `NotFound` when there is no such earlier point.
    pub async fn written_since(&self, name: &str, since: &str) -> Result<u64> {
        let _names = self.pool().config.read().await;
        self.pool().written_since(name, since).await
    }
}

impl DslPool {
    pub(crate) async fn written_since(self: &Rc<Self>, name: &str, since: &str) -> Result<u64> {
        let Found { dataset, .. } = self.find(name).await?;
        let phys = self.dataset_phys(dataset).await?;
        let missing = || DslError::NotFound { name: since.into() };
        let parts = split(since);
        // The space referenced then, and how much of it was freed before the next snapshot, if known.
        let (referenced_then, txg, freed): (u64, u64, Option<Sizes>) = match parts.bookmark {
            Some(short) => {
                let dir = self.find_dir(parts.head).await?.ok_or_else(missing)?;
                let head = ObjectId(dir.phys().head_dataset_obj);
                let all = self.stored_bookmarks(head).await?;
                let (_, bookmark) = all
                    .into_iter()
                    .find(|(known, b)| known == short && b.has_space())
                    .ok_or_else(missing)?;
                let txg = bookmark.creation_txg;
                let freed = freed_before_next(&bookmark);
                (referenced(&bookmark).used, txg, Some(freed))
            }
            None => {
                let found = self.find(since).await?;
                let old = self.dataset_phys(found.dataset).await?;
                if found.snapshot.is_none() {
                    return Err(missing());
                }
                (old.referenced_bytes, old.creation_txg, None)
            }
        };
        if phys.is_snapshot() && txg >= phys.creation_txg {
            return Err(missing());
        }
        let mut written = phys.referenced_bytes;
        let mut at = phys;
        while at.prev_snap_txg > txg {
            let list = Deadlist::open(&self.mos, ObjectId(at.deadlist_obj)).await?;
            written += list.space_range(0, txg, &self.empty_bpobj).await?.used;
            at = self.dataset_phys(ObjectId(at.prev_snap_obj)).await?;
        }
        written += match freed {
            Some(freed) => freed.used,
            None if at.prev_snap_txg == txg => {
                Deadlist::totals_of(&self.mos, ObjectId(at.deadlist_obj))
                    .await?
                    .used
            }
            None => return Err(missing()),
        };
        Ok(written.saturating_sub(referenced_then))
    }
}
