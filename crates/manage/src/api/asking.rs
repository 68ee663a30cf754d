//! Questions to pools, with a deadline: a pool whose disk hangs may never answer.
//!
//! A question that was given up goes on in the engine, which does not cancel. So each pool has a bounded number of them at a time, and
//! a page that asks again and again costs no memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::{EngineError, PoolHandle};
use tokio::sync::Semaphore;

use super::Problem;

/// How long a question may take, in seconds.
const SECONDS_MAX: u64 = 5;
/// How long a pool's state may take that is one of several on a page.
const STATUS_TIMEOUT: Duration = Duration::from_millis(700);
/// Questions to a pool at a time.
const QUESTIONS_MAX: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Asking {
    pools: Mutex<BTreeMap<u64, Arc<Semaphore>>>,
}

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
        let answer = self.within(pool, Duration::from_secs(SECONDS_MAX), question);
        match answer.await {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => Err(Problem::of_engine(name, &error)),
            None => Err(Problem::unanswered(pool.name(), SECONDS_MAX)),
        }
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
        self.within(pool, STATUS_TIMEOUT, question).await?.ok()
    }

    async fn within<T, Q>(
        &self,
        pool: &PoolHandle,
        timeout: Duration,
        question: impl FnOnce(PoolHandle) -> Q,
    ) -> Option<Result<T, EngineError>>
    where
        T: Send + 'static,
        Q: Future<Output = Result<T, EngineError>> + Send + 'static,
    {
        let permits = {
            let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
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
}
