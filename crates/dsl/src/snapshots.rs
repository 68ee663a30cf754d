//! Snapshots, clones, bookmarks and holds: the public interface.

use std::pin::Pin;
use std::rc::Rc;

use dmu::Tx;
use ondisk::ObjectId;
use ondisk::dsl::zapified_keys;

use crate::bookmark::{freed_before_next, referenced};
use crate::deadlist::Deadlist;
use crate::dsl_pool::{DslPool, Found};
use crate::error::{DslError, Result};
use crate::hierarchy::Hierarchy;
use crate::namecheck::{self, split};
use crate::property::{DatasetKind, Setting};
use crate::space::Sizes;

/// A task that can be made anew when it has to run again.
type LocalTask<T> =
    Box<dyn for<'a> FnOnce(Hierarchy, &'a Tx) -> Pin<Box<dyn Future<Output = Result<T>> + 'a>>>;

/// Names that stood in the way, each with its reason. When there is one, nothing was done.
pub type Refusals = Vec<(String, DslError)>;

/// Snapshots destroyed in one txg: more would delay every waiter of that txg.
const DESTROYED_AT_ONCE: usize = 500;

impl Hierarchy {
    /// Runs a task again in the next txg as long as it answers `Again`.
    async fn submit_until_done<T: 'static>(
        &self,
        name: &'static str,
        mut task: impl FnMut() -> LocalTask<T>,
    ) -> Result<T> {
        loop {
            let once = task();
            let run = async move |this: &Self, tx: &Tx| once(this.clone(), tx).await;
            match self.submit(name, run).await {
                Err(DslError::Again) => {}
                other => return other,
            }
        }
    }

    /// Takes snapshots of several datasets at one moment, with user properties. All are taken, or
    /// none when a name is refused. On disk when it returns.
    ///
    /// # Errors
    /// Of reading and of the pool; what is wrong with single names (`NotFound`, `Exists`,
    /// `BadName`, `NameTooLong`, `NoSpace`, `CountLimit`, `Busy`) is returned as refusals.
    pub async fn snapshot(&self, wanted: &[String], settings: &[Setting]) -> Result<Refusals> {
        {
            let _names = self.pool().config.read().await;
            let refused = self.pool().check_snapshots(wanted, None).await?;
            if !refused.is_empty() {
                return Ok(refused);
            }
        }
        let (wanted, settings) = (Rc::new(wanted.to_vec()), Rc::new(settings.to_vec()));
        self.submit_until_done("snapshot", || {
            let (wanted, settings) = (wanted.clone(), settings.clone());
            Box::new(move |this, tx| {
                Box::pin(async move {
                    let pool = this.pool();
                    let refused = pool.check_snapshots(&wanted, Some(tx.txg().0)).await?;
                    if !refused.is_empty() {
                        return Ok(refused);
                    }
                    this.apply(async {
                        for (number, name) in wanted.iter().enumerate() {
                            pool.yield_every(number).await;
                            let state = pool.create_snapshot(name, tx).await?;
                            if settings.is_empty() {
                                continue;
                            }
                            let found = pool.find(name).await?;
                            debug_assert_eq!(found.dataset, state.object, "made just now");
                            pool.apply_settings(&found, &settings, tx).await?;
                        }
                        Ok(Vec::new())
                    })
                    .await
                })
            })
        })
        .await
    }

    /// Destroys snapshots; with `defer`, those held or cloned are destroyed with their last hold or
    /// clone. Names that do not exist are skipped. All are destroyed, or none when one is refused; many
    /// are destroyed
    /// in several txgs, so that no txg takes long.
    ///
    /// # Errors
    /// Of reading and of the pool; `Busy` (held or open) and `HasClones` are refusals.
    pub async fn destroy_snapshots(&self, targets: &[String], defer: bool) -> Result<Refusals> {
        {
            let _names = self.pool().config.read().await;
            let refused = check_destroy_snapshots(self.pool(), targets, defer).await?;
            if !refused.is_empty() {
                return Ok(refused);
            }
        }
        for part in targets.chunks(DESTROYED_AT_ONCE) {
            let refused = self.destroy_together(part.to_vec(), defer).await?;
            if !refused.is_empty() {
                return Ok(refused);
            }
        }
        Ok(Vec::new())
    }

    /// Destroys snapshots in one txg.
    async fn destroy_together(&self, targets: Vec<String>, defer: bool) -> Result<Refusals> {
        self.submit("destroy snapshots", async move |this: &Self, tx: &Tx| {
            let pool = this.pool();
            let refused = check_destroy_snapshots(pool, &targets, defer).await?;
            if !refused.is_empty() {
                return Ok(refused);
            }
            this.apply(async {
                for (number, name) in targets.iter().enumerate() {
                    pool.yield_every(number).await;
                    if let Some(state) = pool.check_destroy_snapshot(name, defer).await? {
                        pool.destroy_snapshot(&state, defer, tx).await?;
                    }
                }
                Ok(Vec::new())
            })
            .await
        })
        .await
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
        {
            let _names = self.pool().config.read().await;
            self.check_clone(snapshot, name, &settings).await?;
        }
        let request = Rc::new((snapshot.to_owned(), name.to_owned(), settings));
        self.submit_until_done("clone", || {
            let request = request.clone();
            Box::new(move |this, tx| {
                Box::pin(async move {
                    let (snapshot, name, settings) = &*request;
                    this.clone_now(snapshot, name, settings, creator, tx).await
                })
            })
        })
        .await
    }

    async fn clone_now(
        &self,
        snapshot: &str,
        name: &str,
        settings: &[Setting],
        creator: u32,
        tx: &Tx,
    ) -> Result<()> {
        let pool = self.pool();
        let parent = self.check_clone(snapshot, name, settings).await?;
        let found = pool.find(snapshot).await?;
        let origin = pool.load_dataset(found.dataset, found.snapshot).await?;
        // What the clone writes must be younger than the snapshot.
        if origin.phys().creation_txg >= tx.txg().0 {
            return Err(DslError::Again);
        }
        self.apply(async {
            let (_, component) = name.rsplit_once('/').expect("the name was checked");
            let dir = pool.create_dir(Some(&parent), component, tx).await?;
            pool.grant_to_creator(&dir, creator, tx).await?;
            pool.adjust_count(&parent, zapified_keys::FILESYSTEM_COUNT, 1, tx)
                .await?;
            pool.start_counts(&dir, tx).await?;
            let state = pool.create_clone(dir, &origin, settings, tx).await?;
            let text = format!("origin={snapshot} ({})", origin.object);
            pool.event("clone", name, state.object, text, tx);
            Ok(())
        })
        .await
    }

    async fn check_clone(
        &self,
        snapshot: &str,
        name: &str,
        settings: &[Setting],
    ) -> Result<Rc<crate::dsl_dir::DslDir>> {
        let pool = self.pool();
        let found = pool.find(snapshot).await?;
        if found.snapshot.is_none() {
            return Err(DslError::WrongKind {
                name: snapshot.into(),
            });
        }
        pool.require_key(&found.dir).await?;
        namecheck::check(name, DatasetKind::Filesystem)?;
        let pool_name = self.pool_name();
        let in_pool = name
            .strip_prefix(&pool_name)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if !in_pool {
            return Err(DslError::CrossPool);
        }
        self.check_new(name, settings).await
    }

    /// Promotes a clone: the snapshots up to its origin become the clone's, and the old head becomes a
    /// clone of the origin.
    ///
    /// # Errors
    /// `NotFound`, `NotAClone`, `Conflicts`, `NoSpace`, `NameTooLong`, `CountLimit`.
    pub async fn promote(&self, name: &str) -> Result<()> {
        {
            let _names = self.pool().config.read().await;
            self.pool().check_promote(name).await?;
        }
        let name = name.to_owned();
        self.submit("promote", async move |this: &Self, tx: &Tx| {
            let promotion = this.pool().check_promote(&name).await?;
            this.apply(this.pool().promote(&promotion, tx)).await
        })
        .await
    }

    /// Rolls a dataset back to its newest snapshot, which must be `target` if given. No handle of
    /// the dataset may be open.
    ///
    /// # Errors
    /// `NotFound`, `NoSnapshot`, `NotNewest`, `Busy`, `Quota`, `NoSpace`.
    pub async fn rollback(&self, name: &str, target: Option<&str>) -> Result<()> {
        {
            let _names = self.pool().config.read().await;
            self.pool().check_rollback(name, target, None).await?;
        }
        // Data written through handles that are closed must not be synced after the rollback.
        self.pool().services.clock.sync_all().await?;
        let name = Rc::new(name.to_owned());
        let target = Rc::new(target.map(str::to_owned));
        self.submit_until_done("rollback", || {
            let (name, target) = (name.clone(), target.clone());
            Box::new(move |this, tx| {
                Box::pin(async move {
                    let pool = this.pool();
                    let txg = tx.txg();
                    let state = pool
                        .check_rollback(&name, target.as_deref(), Some(txg))
                        .await?;
                    if state.is_dirty_later(txg) {
                        return Err(DslError::Busy {
                            name: name.to_string(),
                        });
                    }
                    this.apply(pool.rollback(&state, tx)).await
                })
            })
        })
        .await
    }

    /// Makes bookmarks: pairs of the new name and a snapshot or bookmark. All or none.
    ///
    /// # Errors
    /// Of reading and of the pool; `Exists`, `NotFound`, `NotAncestor`, `BadName` and
    /// `FeatureDisabled` are refusals.
    pub async fn create_bookmarks(&self, wanted: &[(String, String)]) -> Result<Refusals> {
        let wanted = wanted.to_vec();
        self.submit("bookmark", async move |this: &Self, tx: &Tx| {
            let pool = this.pool();
            let mut refused = Vec::new();
            let mut sources = Vec::new();
            for (name, source) in &wanted {
                match pool.check_bookmark(name, source).await {
                    Ok(source) => sources.push((name, source)),
                    Err(error) => refused.push((name.clone(), error)),
                }
            }
            if !refused.is_empty() {
                return Ok(refused);
            }
            this.apply(async {
                for (name, source) in sources {
                    pool.create_bookmark(name, source, tx).await?;
                }
                Ok(Vec::new())
            })
            .await
        })
        .await
    }

    /// Destroys bookmarks; names that do not exist are skipped.
    ///
    /// # Errors
    /// Of reading and of the pool.
    pub async fn destroy_bookmarks(&self, targets: &[String]) -> Result<Refusals> {
        let targets = targets.to_vec();
        self.submit("destroy bookmarks", async move |this: &Self, tx: &Tx| {
            let pool = this.pool();
            let mut refused = Vec::new();
            let mut existing = Vec::new();
            for name in &targets {
                match pool.check_destroy_bookmark(name).await {
                    Ok(Some(_)) => existing.push(name),
                    Ok(None) => {}
                    Err(error) => refused.push((name.clone(), error)),
                }
            }
            if !refused.is_empty() {
                return Ok(refused);
            }
            this.apply(async {
                for name in existing {
                    pool.destroy_bookmark(name, tx).await?;
                }
                Ok(Vec::new())
            })
            .await
        })
        .await
    }

    /// Adds a hold with one tag to snapshots: all or none.
    ///
    /// # Errors
    /// Of reading and of the pool; `NotFound`, `TagExists`, `WrongKind` and `NameTooLong` are
    /// refusals.
    pub async fn hold(&self, names: &[String], tag: &str) -> Result<Refusals> {
        let (names, tag) = (names.to_vec(), tag.to_owned());
        self.submit("hold", async move |this: &Self, tx: &Tx| {
            let pool = this.pool();
            let mut refused = Vec::new();
            let mut states = Vec::new();
            for name in &names {
                match pool.check_hold(name, &tag).await {
                    Ok(state) => states.push(state),
                    Err(error) => refused.push((name.clone(), error)),
                }
            }
            if !refused.is_empty() {
                return Ok(refused);
            }
            this.apply(async {
                for state in states {
                    pool.add_hold(&state, &tag, tx).await?;
                }
                Ok(Vec::new())
            })
            .await
        })
        .await
    }

    /// Removes the holds with one tag from snapshots: all or none. A snapshot marked for
    /// deferred destruction is destroyed with its last hold.
    ///
    /// # Errors
    /// Of reading and of the pool; `NotFound`, `NoSuchTag`, `WrongKind` and `Busy` are refusals.
    pub async fn release(&self, names: &[String], tag: &str) -> Result<Refusals> {
        let (names, tag) = (names.to_vec(), tag.to_owned());
        self.submit("release", async move |this: &Self, tx: &Tx| {
            let pool = this.pool();
            let mut refused = Vec::new();
            let mut states = Vec::new();
            for name in &names {
                match pool.check_release(name, &tag).await {
                    Ok(state) => states.push(state),
                    Err(error) => refused.push((name.clone(), error)),
                }
            }
            if !refused.is_empty() {
                return Ok(refused);
            }
            this.apply(async {
                for state in states {
                    pool.remove_hold(&state, &tag, tx).await?;
                }
                Ok(Vec::new())
            })
            .await
        })
        .await
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

async fn check_destroy_snapshots(
    pool: &Rc<DslPool>,
    targets: &[String],
    defer: bool,
) -> Result<Refusals> {
    let mut refused = Vec::new();
    for (number, name) in targets.iter().enumerate() {
        pool.yield_every(number).await;
        if let Err(error) = pool.check_destroy_snapshot(name, defer).await {
            refused.push((name.clone(), error));
        }
    }
    Ok(refused)
}

impl DslPool {
    /// Yields to other tasks every few steps of a long loop.
    pub(crate) async fn yield_every(&self, step: usize) {
        /// Some milliseconds of work.
        const STEPS: usize = 16;
        if step % STEPS == STEPS - 1 {
            self.services.handle.yield_now().await;
        }
    }

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
