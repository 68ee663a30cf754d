//! Programs: many changes and look-ups as one unit, in one txg.
//!
//! A program that changes something runs as one task in syncing context (`sync_task`): no other change of datasets comes between its
//! steps, each step sees what those before it did, and all of them are on disk with one txg or, after a crash, none. While it runs the
//! sync of its txg waits for it. A program that only looks holds the lock of names from its first step to its last.
//!
//! OpenZFS: module/zfs/zcp.c, zcp_eval; module/zfs/zcp_synctask.c.

use std::cell::Cell;
use std::rc::Rc;

use dmu::Tx;
use dmu::zap::{self, ZapEntry, ZapValue};
use ondisk::{ObjectId, Txg};

use crate::bookmark::{CreateBookmarks, NewBookmark};
use crate::change::{DestroyDataset, RenameDataset};
use crate::change_log::Concerned;
use crate::clone::{PromoteClone, RollBack};
use crate::dsl_dir::available;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::hierarchy::Hierarchy;
use crate::list::PropertySelection;
use crate::property::{PropertyError, Setting};
use crate::setprop::{InheritProperty, SetProperties};
use crate::snapshot::{DestroySnapshots, TakeSnapshots};
use crate::sync_task::{Each, SyncTask};
use crate::types::DatasetProperties;

/// A change that a program asks for. Names are full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramChange {
    /// Destroys a snapshot, with `defer` once nothing uses it, or a file system or volume.
    Destroy {
        /// What.
        name: String,
        /// For snapshots.
        defer: bool,
    },
    /// Exchanges a clone's place with its origin's.
    Promote {
        /// The clone.
        name: String,
    },
    /// Makes a dataset what its newest snapshot is.
    Rollback {
        /// The dataset.
        name: String,
    },
    /// Takes a snapshot.
    Snapshot {
        /// The snapshot.
        name: String,
    },
    /// Renames a snapshot.
    RenameSnapshot {
        /// Its dataset.
        dataset: String,
        /// Its name, without the dataset's.
        from: String,
        /// The new one.
        to: String,
    },
    /// Clears a property.
    Inherit {
        /// The dataset or snapshot.
        name: String,
        /// The property.
        property: String,
    },
    /// Makes a bookmark.
    Bookmark {
        /// The snapshot or bookmark that it is made of.
        source: String,
        /// The new bookmark.
        name: String,
    },
    /// Sets a user property.
    SetUserProperty {
        /// The dataset or snapshot.
        name: String,
        /// The property.
        property: String,
        /// The value.
        value: String,
    },
}

impl ProgramChange {
    /// Blocks of metadata that the change may take. OpenZFS: module/zfs/zcp_synctask.c, blocks_modified
    fn blocks(&self) -> u64 {
        match self {
            Self::Destroy { .. } => 0,
            Self::Rollback { .. } | Self::RenameSnapshot { .. } | Self::Bookmark { .. } => 1,
            Self::Inherit { .. } | Self::SetUserProperty { .. } => 2,
            Self::Promote { .. } | Self::Snapshot { .. } => 3,
        }
    }

    /// Whether the last space of a full pool is not for it.
    fn is_ordinary(&self) -> bool {
        matches!(self, Self::Snapshot { .. } | Self::Bookmark { .. })
    }
}

/// What a program goes through one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramList {
    /// File systems and volumes just below a dataset.
    Children,
    /// Snapshots of a dataset.
    Snapshots,
    /// Bookmarks of a dataset.
    Bookmarks,
    /// Clones of a snapshot.
    Clones,
    /// Holds on a snapshot, with the times of their making.
    Holds,
}

/// An item of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramItem {
    /// Where the list goes on.
    pub cookie: u64,
    /// The full name, or the tag of a hold.
    pub name: String,
    /// The seconds since 1970 of a hold's making; 0 otherwise.
    pub time: u64,
}

/// Bytes of a block of metadata, with its copies. OpenZFS: module/zfs/zcp_synctask.c, DST_AVG_BLKSHIFT
const BLOCK_BYTES: u64 = 3 << 14;

/// What a program does while it runs.
pub struct ProgramStep<'a> {
    pool: &'a Rc<DslPool>,
    /// None for a program that only looks.
    tx: Option<&'a Tx>,
    /// What the changes so far may take: it is not accounted before the txg is synced.
    taken_bytes: Cell<u64>,
}

impl Hierarchy {
    /// Runs a program that may change datasets, in one txg. What it did is on disk when this returns.
    ///
    /// It runs in syncing context: it must not wait for a txg, and while it waits for anything else nothing is written. What was
    /// written to datasets that are closed has to be on disk before.
    ///
    /// # Errors
    /// `ReadOnly`; `Dmu(Stopped)` when the pool takes no more transactions.
    pub async fn run_program<T: 'static>(
        &self,
        program: impl AsyncFnOnce(&ProgramStep<'_>) -> T + 'static,
    ) -> Result<T> {
        let run = async move |pool: &Rc<DslPool>, tx: &Tx| {
            let step = ProgramStep {
                pool,
                tx: Some(tx),
                taken_bytes: Cell::new(0),
            };
            Ok(program(&step).await)
        };
        let name = "channel program";
        self.pool().submit(name, Concerned::All, run).await
    }

    /// Runs a program that only looks.
    pub async fn look_with_program<T>(
        &self,
        program: impl AsyncFnOnce(&ProgramStep<'_>) -> T,
    ) -> T {
        let pool = self.pool();
        let _names = pool.config.read().await;
        let step = ProgramStep {
            pool,
            tx: None,
            taken_bytes: Cell::new(0),
        };
        program(&step).await
    }
}

impl ProgramStep<'_> {
    fn txg(&self) -> Option<Txg> {
        self.tx.map(Tx::txg)
    }

    /// Checks a change without making it.
    ///
    /// # Errors
    /// Those of the change; `Again` when it needs another txg than this program's.
    pub async fn check(&self, change: &ProgramChange) -> Result<()> {
        self.check_room(change).await?;
        self.with_task(change.clone(), false).await?;
        self.take(change);
        Ok(())
    }

    /// Makes a change.
    ///
    /// # Errors
    /// As [`ProgramStep::check`]: nothing was changed then. An error in the middle of the change poisons the txg.
    ///
    /// # Panics
    /// In a program that only looks.
    pub async fn apply(&self, change: ProgramChange) -> Result<()> {
        assert!(
            self.tx.is_some(),
            "a program that only looks changes nothing"
        );
        self.check_room(&change).await?;
        self.with_task(change.clone(), true).await?;
        self.take(&change);
        Ok(())
    }

    fn take(&self, change: &ProgramChange) {
        let taken = change.blocks() * BLOCK_BYTES;
        self.taken_bytes.set(self.taken_bytes.get() + taken);
    }

    async fn check_room(&self, change: &ProgramChange) -> Result<()> {
        let wanted = self.taken_bytes.get() + change.blocks() * BLOCK_BYTES;
        let root = self.pool.dir(self.pool.root_dir()).await?;
        if change.is_ordinary() && available(&root, self.pool.pool_size(0), false) < wanted {
            return Err(DslError::NoSpace);
        }
        Ok(())
    }

    /// Runs the task of a change, or only its check.
    async fn with_task(&self, change: ProgramChange, applies: bool) -> Result<()> {
        match change {
            ProgramChange::Destroy { name, defer } if name.contains('@') => {
                // One that does not exist counts as destroyed.
                let names = vec![name];
                let task = Each(DestroySnapshots { names, defer });
                self.run(task, applies).await
            }
            ProgramChange::Destroy { name, .. } => self.run(DestroyDataset { name }, applies).await,
            ProgramChange::Promote { name } => self.run(PromoteClone { name }, applies).await,
            ProgramChange::Rollback { name } => {
                self.run(RollBack { name, target: None }, applies).await
            }
            ProgramChange::Snapshot { name } => {
                let names = vec![name];
                let settings = Vec::new();
                self.run(TakeSnapshots { names, settings }, applies).await
            }
            ProgramChange::RenameSnapshot { dataset, from, to } => {
                let task = RenameDataset {
                    from: format!("{dataset}@{from}"),
                    to: format!("{dataset}@{to}"),
                    recursive: false,
                };
                self.run(task, applies).await
            }
            ProgramChange::Inherit { name, property } => {
                let task = InheritProperty {
                    name,
                    property,
                    received: false,
                };
                self.run(task, applies).await
            }
            ProgramChange::Bookmark { source, name } => {
                let task = Each(CreateBookmarks(vec![NewBookmark { name, source }]));
                self.run(task, applies).await
            }
            ProgramChange::SetUserProperty {
                name,
                property,
                value,
            } => {
                if !crate::property::is_user_property(&property) {
                    return Err(PropertyError::Invalid(property).into());
                }
                let settings = vec![Setting::User(property, value)];
                self.run(SetProperties { name, settings }, applies).await
            }
        }
    }

    async fn run<T: SyncTask>(&self, task: T, applies: bool) -> Result<()> {
        let checked = task
            .check(self.pool, self.txg())
            .await
            .map_err(DslError::of_one)?;
        match self.tx {
            Some(tx) if applies => {
                let change = task.apply(self.pool, checked, tx);
                self.pool.poison_on_error(change).await?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The object of a dataset or snapshot, and whether it is a snapshot.
    ///
    /// # Errors
    /// `NotFound`; of reading.
    pub async fn find(&self, name: &str) -> Result<(ObjectId, bool)> {
        let found = self.pool.find(name).await?;
        Ok((found.dataset, found.snapshot.is_some()))
    }

    /// Properties of a dataset or snapshot: those named, or all.
    ///
    /// # Errors
    /// `NotFound`; of reading.
    pub async fn properties(
        &self,
        name: &str,
        wanted: Option<&[String]>,
    ) -> Result<DatasetProperties> {
        let selection = wanted.map_or_else(PropertySelection::all, PropertySelection::these);
        self.pool.properties(name, &selection).await
    }

    /// The next item of a list of a dataset or snapshot, given by its object; the first for the cookie 0. `None` at the end.
    ///
    /// # Errors
    /// `NotFound` when the dataset is gone; of reading.
    pub async fn next(
        &self,
        list: ProgramList,
        of: ObjectId,
        cookie: u64,
    ) -> Result<Option<ProgramItem>> {
        let pool = self.pool;
        let phys = match pool.dataset_phys(of).await {
            Err(DslError::Dmu(error)) if error.is_not_found() => {
                let name = format!("objset {of}");
                return Err(DslError::NotFound { name });
            }
            other => other?,
        };
        let dir = pool.dir(ObjectId(phys.dir_obj)).await?;
        let map = match list {
            ProgramList::Children => dir.phys().child_dir_zapobj,
            ProgramList::Snapshots => phys.snapnames_zapobj,
            ProgramList::Bookmarks => pool.bookmarks_of(of).await?.map_or(0, |map| map.0),
            ProgramList::Clones => phys.next_clones_obj,
            ProgramList::Holds => phys.userrefs_obj,
        };
        let Some((entry, name)) = self.next_entry(list, ObjectId(map), cookie).await? else {
            return Ok(None);
        };
        let number = match &entry.value {
            ZapValue::U64(words) => words.first().copied().unwrap_or(0),
            _ => 0,
        };
        let above = pool.name_of(&dir);
        let name = match list {
            ProgramList::Children => format!("{above}/{name}"),
            ProgramList::Snapshots => format!("{above}@{name}"),
            ProgramList::Bookmarks => format!("{above}#{name}"),
            ProgramList::Holds => name,
            ProgramList::Clones => {
                let clone = pool.dataset_phys(ObjectId(number)).await?;
                pool.name_of(&pool.dir(ObjectId(clone.dir_obj)).await?)
            }
        };
        Ok(Some(ProgramItem {
            cookie: entry.next_cookie,
            name,
            time: if list == ProgramList::Holds {
                number
            } else {
                0
            },
        }))
    }

    /// The next entry that is shown. Keys of clones are numbers, and have no text.
    async fn next_entry(
        &self,
        list: ProgramList,
        map: ObjectId,
        cookie: u64,
    ) -> Result<Option<(ZapEntry, String)>> {
        let mut cookie = cookie;
        loop {
            if map.0 == 0 {
                return Ok(None);
            }
            let Some(entry) = zap::cursor(&self.pool.mos, map, cookie, 1).await?.pop() else {
                return Ok(None);
            };
            if list == ProgramList::Clones {
                return Ok(Some((entry, String::new())));
            }
            let Ok(name) = String::from_utf8(entry.name.clone()) else {
                return Err(DslError::corrupt("names", map));
            };
            // The pool's own datasets, and what a receive fills.
            let is_hidden = list == ProgramList::Children && name.starts_with(['$', '%']);
            if !is_hidden {
                return Ok(Some((entry, name)));
            }
            cookie = entry.next_cookie;
        }
    }
}

impl DslError {
    /// The error of a change to a single name.
    fn of_one(self) -> Self {
        match self {
            Self::Refused(mut refused) if refused.len() == 1 => {
                let (_, error) = refused.pop().expect("there is one");
                error
            }
            other => other,
        }
    }
}
