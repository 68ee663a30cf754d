//! Questions to pools, with a deadline: a pool whose disk hangs may never answer.
//!
//! A question that was given up goes on in the engine, which does not cancel. So each pool has a bounded number of them at a time, and
//! a page that asks again and again costs no memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::{EngineError, PoolHandle, PoolStatus};
use tokio::sync::Semaphore;

use super::Problem;
use crate::silence::silent_disks;

/// How long a question may take, in seconds.
const SECONDS_MAX: u64 = 5;
/// How long a pool's state may take that is one of several on a page.
const STATUS_TIMEOUT: Duration = Duration::from_millis(700);
/// When a question that is still open is first suspected to wait for a disk that hangs.
const SUSPECTED_AFTER: Duration = Duration::from_millis(250);
/// How long such a disk completes nothing, until the question is given up.
const SILENT_AFTER: Duration = Duration::from_millis(350);
/// How long the counters of a pool, which are in memory, may take: the pool's own thread hangs otherwise.
const COUNTERS_TIMEOUT: Duration = Duration::from_millis(100);
/// Questions to a pool at a time.
const QUESTIONS_MAX: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Asking {
    pools: Permits,
    /// Of questions that no disk is needed for: those that hang leave them room.
    statuses: Permits,
}

/// Room for questions, by the guid of the pool.
type Permits = Mutex<BTreeMap<u64, Arc<Semaphore>>>;

impl Asking {
    /// Returns what a pool answers to a question about the pool or dataset `name`.
    pub(super) async fn ask<T, Q>(
        &self,
        pool: &PoolHandle,
        name: &str,
        question: impl FnOnce(PoolHandle) -> Q,
    ) -> Result<T, Problem>
    where
        T: Send + 'static,
        Q: Future<Output = Result<T, EngineError>> + Send + 'static,
    {
        let answer = within(
            &self.pools,
            pool,
            Duration::from_secs(SECONDS_MAX),
            question,
        );
        tokio::select! {
            answer = answer => match answer {
                Some(Ok(answer)) => Ok(answer),
                Some(Err(error)) => Err(Problem::of_engine(name, &error)),
                None => Err(Problem::unanswered(pool.name(), SECONDS_MAX)),
            },
            disks = self.silence(pool) => Err(Problem::silent(pool.name(), &disks)),
        }
    }

    /// As [`Self::ask`], of one of several pools on a page: none when it does not answer. A large pool on a busy machine takes its time; one whose
    /// disk hangs is not waited for.
    pub(super) async fn ask_of_many<T, Q>(
        &self,
        pool: &PoolHandle,
        question: impl FnOnce(PoolHandle) -> Q,
    ) -> Option<T>
    where
        T: Send + 'static,
        Q: Future<Output = Result<T, EngineError>> + Send + 'static,
    {
        self.ask(pool, pool.name(), question).await.ok()
    }

    /// Ends when disks of the pool have requests and complete none of them, with their names; with none when the pool does not even tell
    /// its counters.
    async fn silence(&self, pool: &PoolHandle) -> Vec<String> {
        tokio::time::sleep(SUSPECTED_AFTER).await;
        let counters = || {
            let status = |pool: PoolHandle| async move { pool.status().await };
            within(&self.statuses, pool, COUNTERS_TIMEOUT, status)
        };
        loop {
            let before = counters().await;
            tokio::time::sleep(SILENT_AFTER).await;
            match (before, counters().await) {
                (Some(Ok(before)), Some(Ok(after))) => {
                    let silent = silent_disks(&before, &after);
                    if !silent.is_empty() {
                        return silent;
                    }
                }
                (None, None) => return Vec::new(),
                _ => {}
            }
        }
    }

    /// Returns the state of a pool, for which no disk is asked; `None` when it does not answer at once.
    pub(super) async fn status(&self, pool: &PoolHandle) -> Option<PoolStatus> {
        let status = |pool: PoolHandle| async move { pool.status().await };
        within(&self.statuses, pool, STATUS_TIMEOUT, status)
            .await?
            .ok()
    }

    /// Returns what a pool answers at once; `None` when it does not.
    pub(super) async fn glance<T, Q>(
        &self,
        pool: &PoolHandle,
        question: impl FnOnce(PoolHandle) -> Q,
    ) -> Option<T>
    where
        T: Send + 'static,
        Q: Future<Output = Result<T, EngineError>> + Send + 'static,
    {
        within(&self.pools, pool, STATUS_TIMEOUT, question)
            .await?
            .ok()
    }
}

async fn within<T, Q>(
    permits: &Permits,
    pool: &PoolHandle,
    timeout: Duration,
    question: impl FnOnce(PoolHandle) -> Q,
) -> Option<Result<T, EngineError>>
where
    T: Send + 'static,
    Q: Future<Output = Result<T, EngineError>> + Send + 'static,
{
    let permits = {
        let mut pools = permits.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Semaphore::new(QUESTIONS_MAX));
        pools.entry(pool.guid()).or_insert_with(new).clone()
    };
    let question = question(pool.clone());
    let asked = async {
        let permit = permits.acquire_owned().await.ok()?;
        let task = tokio::spawn(async move {
            let answer = question.await;
            drop(permit);
            answer
        });
        task.await.ok()
    };
    tokio::time::timeout(timeout, asked).await.ok().flatten()
}
