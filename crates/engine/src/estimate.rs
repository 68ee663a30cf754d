//! What a property would save, found out step by step before it is set. The caller keeps the estimate between the steps, so that it ends
//! with the caller, and a pool may be exported meanwhile.

use std::time::Duration;

use ondisk::ObjectId;
use pool::{CompressionEstimate, DedupEstimate};

use crate::pool_mailbox::{PoolContext, Request};
use crate::property::DatasetKind;
use crate::{EngineError, PoolHandle, PropertyQuery};

impl PoolHandle {
    /// Begins to find out what deduplication would save of a file system or volume with what lies below it and all snapshots, or of one
    /// snapshot, with so many rows in the sample at most (about 100 bytes of memory each). Nothing is read yet but the list of datasets.
    ///
    /// # Errors
    /// [`EngineError::DatasetNotFound`], [`EngineError::WrongKind`].
    pub fn estimate_dedup<'a>(
        &'a self,
        dataset: &'a str,
        rows_max: usize,
    ) -> Request<'a, Result<Box<DedupEstimate>, EngineError>> {
        Box::pin(async move {
            let name = dataset.to_owned();
            self.run_as_root(move |context| async move {
                let object = context.estimated(&name).await?;
                let estimate = context.pool.estimate_dedup(object, rows_max).await?;
                Ok(Box::new(estimate))
            })
            .await
        })
    }

    /// Goes on with an estimate for about so long, and gives it back.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`]; the pool's own metadata cannot be read. The estimate is lost then.
    pub fn continue_dedup_estimate(
        &self,
        mut estimate: Box<DedupEstimate>,
        time: Duration,
    ) -> Request<'_, Result<Box<DedupEstimate>, EngineError>> {
        Box::pin(async move {
            self.run_as_root(move |context| async move {
                let pool = &context.pool;
                pool.continue_dedup_estimate(&mut estimate, time).await?;
                Ok(estimate)
            })
            .await
        })
    }

    /// As [`PoolHandle::estimate_dedup`], for compression: of so many blocks at most (about 200 bytes of memory each).
    ///
    /// # Errors
    /// As [`PoolHandle::estimate_dedup`].
    pub fn estimate_compression<'a>(
        &'a self,
        dataset: &'a str,
        blocks_max: usize,
    ) -> Request<'a, Result<Box<CompressionEstimate>, EngineError>> {
        Box::pin(async move {
            let name = dataset.to_owned();
            self.run_as_root(move |context| async move {
                let object = context.estimated(&name).await?;
                let estimate = context
                    .pool
                    .estimate_compression(object, blocks_max)
                    .await?;
                Ok(Box::new(estimate))
            })
            .await
        })
    }

    /// As [`PoolHandle::continue_dedup_estimate`].
    ///
    /// # Errors
    /// As [`PoolHandle::continue_dedup_estimate`].
    pub fn continue_compression_estimate(
        &self,
        mut estimate: Box<CompressionEstimate>,
        time: Duration,
    ) -> Request<'_, Result<Box<CompressionEstimate>, EngineError>> {
        Box::pin(async move {
            self.run_as_root(move |context| async move {
                let pool = &context.pool;
                pool.continue_compression_estimate(&mut estimate, time)
                    .await?;
                Ok(estimate)
            })
            .await
        })
    }
}

impl PoolContext {
    async fn estimated(&self, name: &str) -> Result<ObjectId, EngineError> {
        let info = self.dataset(name, &PropertyQuery::None).await?;
        match info.kind {
            DatasetKind::Bookmark => Err(EngineError::WrongKind(name.to_owned())),
            _ => Ok(ObjectId(info.object)),
        }
    }
}
