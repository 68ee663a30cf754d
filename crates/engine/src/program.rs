//! Programs that change and look at the datasets of a pool as one unit.
//!
//! The program itself runs on a thread of its caller. Its questions come through a mailbox and are answered on the pool's thread, one
//! after the other, within one task of one txg (`dsl::ProgramStep`): a program that computes for long delays the sync of that txg and
//! everything that waits for it, and nothing else.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use dsl::{DslError, ProgramStep};
use ondisk::ObjectId;
use runtime::mailbox::{Receiver, Sender, mailbox};
use runtime::reply::ReplySender;

use crate::invalidation::Invalidation;
use crate::pool_mailbox::{PoolContext, Request};
use crate::property::PropertyError;
use crate::{DatasetInfo, EngineError, PoolHandle, PropertyQuery};

pub use dsl::{ProgramChange, ProgramItem, ProgramList};

/// What a program asks of its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramCall {
    /// Makes a change.
    Change(ProgramChange),
    /// Checks a change without making it.
    Check(ProgramChange),
    /// Whether there is such a dataset or snapshot.
    Find(String),
    /// Properties of a dataset or snapshot.
    Properties {
        /// Its name.
        dataset: String,
        /// Which.
        query: PropertyQuery,
    },
    /// The next item of a list.
    Next {
        /// Which list.
        list: ProgramList,
        /// The object of the dataset or snapshot that it is of.
        of: u64,
        /// Where the list goes on; 0 for its first item.
        cookie: u64,
    },
}

/// The answer to a [`ProgramCall`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramAnswer {
    /// The change was made, or would be possible.
    Done,
    /// The object of a dataset or snapshot.
    Found {
        /// The number.
        object: u64,
        /// Whether it is a snapshot.
        is_snapshot: bool,
    },
    /// Properties.
    Properties(Box<DatasetInfo>),
    /// The next item; none at the end.
    Item(Option<ProgramItem>),
}

/// Why a call was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramRefusal {
    /// The number of the error, as OpenZFS's functions return it on Linux.
    pub number: i32,
    /// Snapshots that are in the way of a promotion.
    pub conflicts: Vec<String>,
}

impl ProgramRefusal {
    fn number(number: i32) -> Self {
        Self {
            number,
            conflicts: Vec::new(),
        }
    }
}

type Answered = Result<ProgramAnswer, ProgramRefusal>;

/// The program's end of the way to its pool.
#[derive(Clone)]
pub struct ProgramCalls(Sender<(ProgramCall, ReplySender<Answered>)>);

/// The pool's end: calls that wait for [`PoolHandle::run_program`].
pub struct ProgramQueue(Receiver<(ProgramCall, ReplySender<Answered>)>);

/// Makes the way of a program to its pool.
#[must_use]
pub fn program_calls() -> (ProgramCalls, ProgramQueue) {
    let (sender, receiver) = mailbox(1);
    (ProgramCalls(sender), ProgramQueue(receiver))
}

impl ProgramCalls {
    /// Asks, and waits for the answer on this thread, which is none of a pool. `None` when the pool does not run the program any more.
    #[must_use]
    pub fn ask(&self, call: ProgramCall) -> Option<Answered> {
        let (sender, reply) = runtime::reply();
        runtime::host::block_thread_on(async {
            self.0.send((call, sender)).await.ok()?;
            reply.await.ok()
        })
    }
}

/// How a program is run.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ProgramRun {
    /// It may change something.
    pub changes: bool,
    /// File systems that are mounted, which are neither destroyed nor rolled back.
    pub mounted: BTreeSet<String>,
}

/// What a program did that others have to know.
#[derive(Default)]
struct ProgramEffects {
    /// Objects of datasets that were closed and must not be opened before the program has ended.
    closed: RefCell<Vec<u64>>,
    destroyed: RefCell<Vec<u64>>,
    rolled_back: RefCell<Vec<u64>>,
}

impl PoolHandle {
    /// Answers the calls of a program until its end is gone, in one txg. What the program changed is on stable storage when this
    /// returns, all of it; after a crash before that, none of it is there.
    ///
    /// # Errors
    /// [`EngineError::Permission`] for handles of others than root; the pool is read-only, for a program that may change something, or
    /// closed.
    pub fn run_program(
        &self,
        queue: ProgramQueue,
        run: ProgramRun,
    ) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            let work = move |context: Rc<PoolContext>| async move {
                let _with_others = context.changing.read().await;
                context.clone().run_program(queue, run).await
            };
            let rolled_back = self.run_as_root(work).await?;
            for guid in rolled_back {
                self.notify(Some(guid), Invalidation::Everything).await;
            }
            self.notify(None, Invalidation::Snapshots).await;
            Ok(())
        })
    }
}

impl PoolContext {
    /// Returns the guids of the datasets that were rolled back.
    async fn run_program(
        self: Rc<Self>,
        queue: ProgramQueue,
        run: ProgramRun,
    ) -> Result<Vec<u64>, EngineError> {
        let hierarchy = self.pool.hierarchy().clone();
        let effects = Rc::new(ProgramEffects::default());
        let (context, seen) = (self.clone(), effects.clone());
        if !run.changes {
            let answer =
                async |step: &ProgramStep<'_>| context.answer_calls(step, queue, &run, &seen).await;
            hierarchy.look_with_program(answer).await;
            return Ok(Vec::new());
        }
        self.writable()?;
        // What was written to datasets that are not used any more must not be on its way when they are destroyed or rolled back.
        hierarchy.retire_logs();
        self.pool.clock().sync_all().await.map_err(DslError::from)?;
        let answer = async move |step: &ProgramStep<'_>| {
            context.answer_calls(step, queue, &run, &seen).await;
        };
        let ended = hierarchy.run_program(answer).await;
        for object in effects.closed.take() {
            self.leaving.borrow_mut().remove(&object);
        }
        ended?;
        for object in effects.destroyed.take() {
            self.pool.dataset_destroyed(object);
        }
        self.reload_properties().await?;
        Ok(effects.rolled_back.take())
    }

    async fn answer_calls(
        &self,
        step: &ProgramStep<'_>,
        queue: ProgramQueue,
        run: &ProgramRun,
        effects: &ProgramEffects,
    ) {
        let mut queue = queue.0;
        while let Some((call, reply)) = queue.receive().await {
            let answer = self.answer_call(step, call, run, effects).await;
            reply.send(answer.map_err(refusal));
        }
    }

    async fn answer_call(
        &self,
        step: &ProgramStep<'_>,
        call: ProgramCall,
        run: &ProgramRun,
        effects: &ProgramEffects,
    ) -> Result<ProgramAnswer, DslError> {
        match call {
            ProgramCall::Check(change) => {
                self.refuse_mounted(&change, run)?;
                step.check(&change).await?;
                Ok(ProgramAnswer::Done)
            }
            ProgramCall::Change(change) => {
                self.refuse_mounted(&change, run)?;
                self.change(step, change, effects).await?;
                Ok(ProgramAnswer::Done)
            }
            ProgramCall::Find(name) => {
                let (object, is_snapshot) = step.find(&name).await?;
                Ok(ProgramAnswer::Found {
                    object: object.0,
                    is_snapshot,
                })
            }
            ProgramCall::Properties { dataset, query } => {
                let wanted = match &query {
                    PropertyQuery::None => Some([].as_slice()),
                    PropertyQuery::Named(names) => Some(names.as_slice()),
                    PropertyQuery::All => None,
                };
                let found = step.properties(&dataset, wanted).await?;
                Ok(ProgramAnswer::Properties(Box::new(
                    self.describe(found, &query),
                )))
            }
            ProgramCall::Next { list, of, cookie } => {
                let item = step.next(list, ObjectId(of), cookie).await?;
                Ok(ProgramAnswer::Item(item))
            }
        }
    }

    fn refuse_mounted(&self, change: &ProgramChange, run: &ProgramRun) -> Result<(), DslError> {
        match change {
            ProgramChange::Destroy { name, .. } | ProgramChange::Rollback { name }
                if run.mounted.contains(name) =>
            {
                let name = name.clone();
                Err(DslError::Busy { name })
            }
            _ => Ok(()),
        }
    }

    async fn change(
        &self,
        step: &ProgramStep<'_>,
        change: ProgramChange,
        effects: &ProgramEffects,
    ) -> Result<(), DslError> {
        let (ProgramChange::Destroy { name, .. } | ProgramChange::Rollback { name }) = &change
        else {
            return step.apply(change).await;
        };
        let Ok((object, _)) = step.find(name).await else {
            // The change says what it means.
            return step.apply(change).await;
        };
        let is_rollback = matches!(change, ProgramChange::Rollback { .. });
        let guid = step.properties(name, Some(&[])).await?.info.guid.0;
        effects.closed.borrow_mut().push(object.0);
        self.forget_idle(object.0);
        step.apply(change).await?;
        if is_rollback {
            effects.rolled_back.borrow_mut().push(guid);
        } else {
            effects.destroyed.borrow_mut().push(object.0);
        }
        Ok(())
    }
}

fn refusal(error: DslError) -> ProgramRefusal {
    match error {
        DslError::Conflicts { names, .. } => ProgramRefusal {
            number: 17,
            conflicts: names,
        },
        error => ProgramRefusal::number(number_of(&error)),
    }
}

/// The number of an error on Linux. OpenZFS: module/zfs/dsl_destroy.c, dsl_dataset.c, dsl_prop.c, dsl_bookmark.c (which it is);
/// include/sys/fs/zfs.h, ZFS_ERR_BOOKMARK_SOURCE_NOT_ANCESTOR
fn number_of(error: &DslError) -> i32 {
    /// Numbers of Linux: asm-generic/errno-base.h and errno.h.
    mod errno {
        pub(super) const NOENT: i32 = 2;
        pub(super) const SRCH: i32 = 3;
        pub(super) const IO: i32 = 5;
        pub(super) const AGAIN: i32 = 11;
        pub(super) const ACCES: i32 = 13;
        pub(super) const BUSY: i32 = 16;
        pub(super) const EXIST: i32 = 17;
        pub(super) const XDEV: i32 = 18;
        pub(super) const INVAL: i32 = 22;
        pub(super) const NOSPC: i32 = 28;
        pub(super) const ROFS: i32 = 30;
        pub(super) const NAMETOOLONG: i32 = 36;
        pub(super) const NOTSUP: i32 = 95;
        pub(super) const DQUOT: i32 = 122;
        pub(super) const NOT_ANCESTOR: i32 = 1039;
    }
    match error {
        DslError::NotFound { .. } | DslError::ParentNotFound { .. } => errno::NOENT,
        DslError::NoSnapshot { .. } => errno::SRCH,
        DslError::Again => errno::AGAIN,
        DslError::KeyNotLoaded { .. } => errno::ACCES,
        DslError::Busy { .. } | DslError::HasSnapshots { .. } | DslError::Immutable(_) => {
            errno::BUSY
        }
        DslError::Exists { .. }
        | DslError::HasChildren { .. }
        | DslError::HasClones { .. }
        | DslError::NotNewest { .. } => errno::EXIST,
        DslError::CrossPool => errno::XDEV,
        DslError::WrongKind { .. }
        | DslError::BadName { .. }
        | DslError::NotAClone { .. }
        | DslError::Property(
            PropertyError::Invalid(_)
            | PropertyError::NotForType(_)
            | PropertyError::ReadOnly(_)
            | PropertyError::NotInherited(_),
        ) => errno::INVAL,
        DslError::NoSpace => errno::NOSPC,
        DslError::Quota { .. } | DslError::CountLimit { .. } => errno::DQUOT,
        DslError::ReadOnly => errno::ROFS,
        DslError::NameTooLong { .. } => errno::NAMETOOLONG,
        DslError::FeatureDisabled { .. } | DslError::Unsupported { .. } => errno::NOTSUP,
        DslError::NotAncestor { .. } => errno::NOT_ANCESTOR,
        _ => errno::IO,
    }
}
