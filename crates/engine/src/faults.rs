//! Faults that are injected into a pool in use, to rehearse failures: the requests of `zinject`.

use std::ops::{Range, RangeInclusive};

use ondisk::ObjectId;
use pool::{DeviceAction, Fault, InjectedFault};
use zio::FaultyBlocks;

use crate::pool_mailbox::{PoolContext, Request};
use crate::{EngineError, PoolHandle, PropertyQuery};

/// Bytes of a dnode, the unit that dnodes are counted in.
// OpenZFS: include/sys/dnode.h, DNODE_SHIFT
const DNODE_BYTES: u64 = 512;
/// Log2 of the bytes of a block of dnodes, and of an indirect block above them.
// OpenZFS: include/sys/dnode.h, DNODE_BLOCK_SHIFT, DN_MAX_INDBLKSHIFT
const DNODE_BLOCK_SHIFT: u32 = 14;
/// See [`DNODE_BLOCK_SHIFT`].
const DNODE_INDIRECT_SHIFT: u32 = 17;
/// Log2 of the bytes of a block pointer.
const POINTER_SHIFT: u32 = 7;

/// Which blocks of a file a fault is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlocksOfFile {
    /// Those that hold its content, or point to it: all, or those of a range of bytes that is not empty.
    Content(Option<Range<u64>>),
    /// The one with its dnode, or what points to that.
    Dnode,
}

impl PoolHandle {
    /// Injects a fault from now on, under a number that no other fault of the pool has. It is not stored, and ends with the export.
    ///
    /// # Errors
    /// There are as many as there may be; a delay has no latency or lanes; the caller is not root.
    pub fn inject_fault(&self, id: u64, fault: Fault) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(
                move |context| async move { Ok(context.pool.inject_fault(id, fault)?) },
            )
            .await
        })
    }

    /// Returns the faults that are injected, by number.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`].
    pub fn injected_faults(&self) -> Request<'_, Result<Vec<InjectedFault>, EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move { Ok(context.pool.injected_faults()) })
                .await
        })
    }

    /// Ends a fault; returns whether the pool had one of that number.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`].
    pub fn clear_fault(&self, id: u64) -> Request<'_, Result<bool, EngineError>> {
        Box::pin(async move {
            self.run_as_root(move |context| async move { Ok(context.pool.clear_fault(id)) })
                .await
        })
    }

    /// Makes a device count as one that failed, until its errors are cleared.
    ///
    /// # Errors
    /// No such device; the pool cannot be written.
    pub fn act_on_device(
        &self,
        leaf: u64,
        action: DeviceAction,
    ) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(move |context| async move {
                Ok(context.pool.act_on_device(leaf, action).await?)
            })
            .await
        })
    }

    /// Forgets what the cache holds of the pool: what is read next comes from devices. What waits to be written is not in the cache.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`].
    pub fn flush_cache(&self) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move {
                context.pool.cache().clear();
                Ok(())
            })
            .await
        })
    }

    /// Returns the blocks of an object that a fault is to be for. Ranges are bytes of the object; at a level above 0 they stand for the
    /// blocks that point to theirs.
    ///
    /// # Errors
    /// No such dataset or object; [`EngineError::Dataset`] where the object has no blocks of the level.
    pub fn faulty_blocks<'a>(
        &'a self,
        dataset: &'a str,
        object: u64,
        blocks: BlocksOfFile,
        level: u32,
    ) -> Request<'a, Result<FaultyBlocks, EngineError>> {
        Box::pin(async move {
            let name = dataset.to_owned();
            self.run_as_root(move |context| async move {
                context.faulty_blocks(&name, object, blocks, level).await
            })
            .await
        })
    }
}

impl PoolContext {
    async fn faulty_blocks(
        &self,
        name: &str,
        object: u64,
        part: BlocksOfFile,
        level: u32,
    ) -> Result<FaultyBlocks, EngineError> {
        let info = self.dataset(name, &PropertyQuery::None).await?;
        let at = |object, blocks| FaultyBlocks::Object {
            objset: info.object,
            object,
            level,
            blocks,
        };
        let range = match part {
            BlocksOfFile::Content(None) => return Ok(at(object, 0..=u64::MAX)),
            BlocksOfFile::Content(Some(range)) => range,
            BlocksOfFile::Dnode => {
                let start = object.saturating_mul(DNODE_BYTES);
                let range = start..start.saturating_add(DNODE_BYTES);
                let (data, pointers) = (DNODE_BLOCK_SHIFT, DNODE_INDIRECT_SHIFT - POINTER_SHIFT);
                return Ok(at(0, blocks_of(&range, data, pointers, level)));
            }
        };
        let dataset = self.open_dataset(info.object, info.guid).await?;
        let found = dataset.objset().object_info(ObjectId(object)).await;
        let found = found.map_err(dsl::DslError::from)?;
        if level > 0 && level >= u32::from(found.levels) {
            return Err(EngineError::Dataset(
                "block level exceeds max level of object".to_owned(),
            ));
        }
        // A file of one block may have one of any size.
        let data = found.block_size.max(1).next_power_of_two().trailing_zeros();
        let pointers = u32::from(found.indirect_shift).saturating_sub(POINTER_SHIFT);
        Ok(at(object, blocks_of(&range, data, pointers, level)))
    }
}

/// Returns the numbers of the blocks of a level that a range of bytes lies in, or below.
fn blocks_of(range: &Range<u64>, data: u32, pointers: u32, level: u32) -> RangeInclusive<u64> {
    let shift = data.saturating_add(pointers.saturating_mul(level));
    let number = |byte: u64| byte.checked_shr(shift).unwrap_or(0);
    number(range.start)..=number(range.end.saturating_sub(1).max(range.start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_bytes_are_ranges_of_blocks() {
        let check = |range: Range<u64>, level, expect: RangeInclusive<u64>| {
            assert_eq!(blocks_of(&range, 17, 10, level), expect, "{range:?}");
        };
        let block = 1 << 17;
        check(0..1, 0, 0..=0);
        check(0..block, 0, 0..=0);
        check(0..block + 1, 0, 0..=1);
        check(block..block, 0, 1..=1);
        check(0..block << 10, 1, 0..=0);
        check((block << 10)..(block << 10) + 1, 1, 1..=1);
        check(0..u64::MAX, 0, 0..=(1 << 47) - 1);
        check(5..u64::MAX, 9, 0..=0);
    }
}
