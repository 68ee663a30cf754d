//! Sync tasks: changes of datasets that are checked, and then made as a whole in one txg.
//!
//! ```text
//!   open context      check    an error ends the task before it waits for a txg
//!                     prepare  what has to be on disk before the change
//!   syncing context   check    again, because other tasks ran since; `Again` moves the task to the next txg
//!                     apply    an error poisons the pool: half a change must not be committed
//!   txg on disk       the caller continues
//! ```
//!
//! Events for the pool's history are recorded by the steps that tasks are made of, not by the driver: one task may record
//! several, and a step such as the destruction of a snapshot is part of several tasks. They leave the pool with the txg, so
//! that none is recorded of a change that failed.
//!
//! The tasks of a receive (`stream::target`) use [`DslPool::submit`] and [`DslPool::poison_on_error`] themselves: they have
//! no check in open context once the dataset is filled.
//!
//! OpenZFS: module/zfs/dsl_synctask.c.

use std::rc::Rc;

use dmu::{Tx, TxWeight};
use ondisk::Txg;
use runtime::sync::oneshot;

use crate::change_log::Concerned;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Refusals, Result};
use crate::sync_state::QueuedTask;

/// A change of datasets.
pub(crate) trait SyncTask: Sized + 'static {
    /// What the check found, for `apply`.
    type Checked;
    /// What the caller gets.
    type Output: 'static;

    /// The name under which the caller's wait is observed.
    fn name(&self) -> &'static str;

    /// Whose names or properties it changes.
    fn concerned(&self) -> Concerned;

    /// Checks everything that may refuse the change, and changes nothing. `txg` is the txg the change would be made in, in
    /// syncing context; only there may the answer be `Again`.
    async fn check(&self, pool: &Rc<DslPool>, txg: Option<Txg>) -> Result<Self::Checked>;

    /// Runs in open context between the check and the txg of the change.
    async fn prepare(&self, _pool: &Rc<DslPool>, _checked: Self::Checked) -> Result<()> {
        Ok(())
    }

    /// Makes the change, which was checked just now. Syncing context.
    async fn apply(
        self,
        pool: &Rc<DslPool>,
        checked: Self::Checked,
        tx: &Tx,
    ) -> Result<Self::Output>;
}

/// A change of the same kind to several names: to all, or to none when one is refused.
pub(crate) trait EachName: 'static {
    /// One of them.
    type Item: AsRef<str>;
    /// What the check of one found.
    type Checked;

    /// As [`SyncTask::name`].
    fn name(&self) -> &'static str;

    /// The names.
    fn items(&self) -> &[Self::Item];

    /// Checks one; `None` skips it.
    async fn check_one(
        &self,
        pool: &Rc<DslPool>,
        item: &Self::Item,
    ) -> Result<Option<Self::Checked>>;

    /// Changes one. Syncing context.
    async fn apply_one(
        &self,
        pool: &Rc<DslPool>,
        item: &Self::Item,
        checked: Self::Checked,
        tx: &Tx,
    ) -> Result<()>;
}

/// The sync task of a change to several names, which are snapshots, bookmarks or holds. Refused names end it with [`DslError::Refused`].
pub(crate) struct Each<T>(pub(crate) T);

impl<T: EachName> SyncTask for Each<T> {
    type Checked = Vec<Option<T::Checked>>;
    type Output = ();

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn concerned(&self) -> Concerned {
        Concerned::Nothing
    }

    async fn check(&self, pool: &Rc<DslPool>, _: Option<Txg>) -> Result<Self::Checked> {
        let items = self.0.items();
        let mut all = Vec::with_capacity(items.len());
        let mut refused = Refusals::new();
        for (number, item) in items.iter().enumerate() {
            pool.yield_every(number).await;
            match self.0.check_one(pool, item).await {
                Ok(checked) => all.push(checked),
                Err(error) => refused.push((item.as_ref().to_owned(), error)),
            }
        }
        DslError::if_refused(refused)?;
        Ok(all)
    }

    async fn apply(self, pool: &Rc<DslPool>, checked: Self::Checked, tx: &Tx) -> Result<()> {
        let items = self.0.items();
        assert_eq!(items.len(), checked.len(), "every name was checked");
        for (number, (item, checked)) in items.iter().zip(checked).enumerate() {
            pool.yield_every(number).await;
            if let Some(checked) = checked {
                self.0.apply_one(pool, item, checked, tx).await?;
            }
        }
        Ok(())
    }
}

/// Turns the refusal of names into the answer of a function that returns refusals.
pub(crate) fn refusals(result: Result<()>) -> Result<Refusals> {
    match result {
        Ok(()) => Ok(Refusals::new()),
        Err(DslError::Refused(refused)) => Ok(refused),
        Err(error) => Err(error),
    }
}

/// What came of a task in one txg.
enum Attempt<T: SyncTask> {
    Done(Result<T::Output>),
    /// It runs again in the next txg.
    Again(T),
}

impl DslPool {
    /// Runs a task; what it changed is on disk when this returns.
    ///
    /// # Errors
    /// `ReadOnly`; those of the task; `Dmu(Stopped)` when the pool takes no more transactions.
    pub(crate) async fn run<T: SyncTask>(self: &Rc<Self>, task: T) -> Result<T::Output> {
        if self.read_only {
            return Err(DslError::ReadOnly);
        }
        let checked = {
            let _names = self.config.read().await;
            task.check(self, None).await?
        };
        task.prepare(self, checked).await?;
        self.run_checked(task).await
    }

    /// As [`DslPool::run`], for a task that was checked in open context.
    pub(crate) async fn run_checked<T: SyncTask>(self: &Rc<Self>, task: T) -> Result<T::Output> {
        let name = task.name();
        let mut next = task;
        loop {
            let task = next;
            let concerned = task.concerned();
            let attempt = async move |pool: &Rc<Self>, tx: &Tx| Ok(pool.attempt(task, tx).await);
            match self.submit(name, concerned, attempt).await? {
                Attempt::Done(result) => return result,
                Attempt::Again(task) => next = task,
            }
        }
    }

    /// Checks and makes a change. Syncing context.
    async fn attempt<T: SyncTask>(self: &Rc<Self>, task: T, tx: &Tx) -> Attempt<T> {
        assert!(tx.is_syncing(), "tasks run in syncing context");
        match task.check(self, Some(tx.txg())).await {
            Ok(checked) => {
                let change = task.apply(self, checked, tx);
                Attempt::Done(self.poison_on_error(change).await)
            }
            Err(DslError::Again) => Attempt::Again(task),
            Err(error) => Attempt::Done(Err(error)),
        }
    }

    /// Runs `task` in syncing context and waits until its txg is on disk. The task must check
    /// everything before it changes anything: an error means that nothing was changed.
    /// `concerned` is whose names or properties it changes.
    ///
    /// # Errors
    /// `ReadOnly`; those of the task; `Dmu(Stopped)` when the pool takes no more transactions.
    pub(crate) async fn submit<T: 'static>(
        self: &Rc<Self>,
        name: &'static str,
        concerned: Concerned,
        task: impl AsyncFnOnce(&Rc<Self>, &Tx) -> Result<T> + 'static,
    ) -> Result<T> {
        if self.read_only {
            return Err(DslError::ReadOnly);
        }
        let clock = self.services.clock.clone();
        let (send, receive) = oneshot(name);
        let boxed: QueuedTask<Self> = Box::new(move |pool, tx| {
            Box::pin(async move {
                let result = task(&pool, &tx).await;
                pool.changes.record(concerned);
                // The caller may be gone; the change is made nevertheless.
                let _ = send.send(result);
            })
        });
        let tx = clock.begin(TxWeight::unthrottled()).await?;
        let txg = tx.txg();
        self.sync.queue(txg, boxed);
        drop(tx);
        clock.wait_synced(txg).await?;
        match receive.await {
            Ok(result) => result,
            Err(_) => Err(dmu::DmuError::Stopped {
                reason: "a task was dropped",
            }
            .into()),
        }
    }

    /// Poisons the pool when a change fails half-way: the txg must not be committed.
    pub(crate) async fn poison_on_error<T>(
        &self,
        change: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let result = change.await;
        if let Err(error) = &result {
            self.sync.poison(error.clone());
        }
        result
    }

    /// Yields to other tasks every few steps of a long loop.
    pub(crate) async fn yield_every(&self, step: usize) {
        /// Some milliseconds of work.
        const STEPS: usize = 16;
        if step % STEPS == STEPS - 1 {
            self.services.handle.yield_now().await;
        }
    }
}
