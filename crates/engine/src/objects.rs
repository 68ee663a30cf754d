//! A digest of everything a dataset holds, object by object: two replicas can be compared without moving their content, and so
//! can what two programs read from the same disks. Knows nothing of files: volumes and what no file system made are read as well.

use ondisk::ObjectId;
use runtime::IoBuf;

use crate::pool_mailbox::{PoolContext, Request};
use crate::property::DatasetKind;
use crate::{EngineError, PoolHandle, PropertyQuery};

/// Objects in one answer.
const OBJECTS_MAX: usize = 512;
/// Bytes a block brings into the chain: the digest so far, its place, its own digest.
const LINK_BYTES: usize = 32 + 8 + 32;
/// Where the bonus is put in the chain: behind all blocks.
const BONUS_PLACE: u64 = u64::MAX;

/// What one object holds, as a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectSum {
    /// The object.
    pub object: u64,
    /// Its type, as stored.
    pub object_type: u8,
    /// Bytes of a data block.
    pub block_size: u32,
    /// SHA-256 over the digests of its blocks and its bonus, each with its place; blocks of zeros count as holes. Otherwise what
    /// kept the object from being read.
    pub sum: Result<[u8; 32], String>,
}

impl PoolHandle {
    /// Returns digests of the objects of a file system, volume or snapshot with numbers above `after` (0: from the first), in
    /// order, at most some hundred of them; an empty answer is the end.
    ///
    /// # Errors
    /// [`EngineError::DatasetNotFound`]; the list of objects cannot be read.
    pub fn object_sums<'a>(
        &'a self,
        dataset: &'a str,
        after: u64,
    ) -> Request<'a, Result<Vec<ObjectSum>, EngineError>> {
        Box::pin(async move {
            if !self.is_trusted() {
                return Err(EngineError::Permission);
            }
            let name = dataset.to_owned();
            self.run_as_root(move |context| async move { context.object_sums(&name, after).await })
                .await
        })
    }
}

impl PoolContext {
    async fn object_sums(&self, name: &str, after: u64) -> Result<Vec<ObjectSum>, EngineError> {
        let info = self.dataset(name, &PropertyQuery::None).await?;
        if info.kind == DatasetKind::Bookmark {
            return Err(EngineError::WrongKind(name.to_owned()));
        }
        let dataset = self.open_dataset(info.object, info.guid).await?;
        let objset = dataset.objset();
        let mut sums = Vec::new();
        let mut at = ObjectId(after);
        while sums.len() < OBJECTS_MAX
            && let Some(object) = objset.next_object(at).await.map_err(dsl::DslError::from)?
        {
            at = object;
            let info = objset
                .object_info(object)
                .await
                .map_err(dsl::DslError::from)?;
            let sum = self.object_sum(&objset, object, info.block_size).await;
            sums.push(ObjectSum {
                object: object.0,
                object_type: info.object_type.0,
                block_size: info.block_size,
                sum: sum.map_err(|error| error.to_string()),
            });
        }
        Ok(sums)
    }

    async fn object_sum(
        &self,
        objset: &dmu::Objset,
        object: ObjectId,
        block_size: u32,
    ) -> Result<[u8; 32], dmu::DmuError> {
        let mut chain = [0; 32];
        let size = u64::from(block_size);
        let mut from = Some(0);
        while let Some(start) = from
            && let Some(at) = objset.next_data(object, start).await?
        {
            let place = at - at % size;
            let bytes = objset.read(object, place, block_size as usize).await?;
            if bytes.iter().any(|byte| *byte != 0) {
                chain = self.link(chain, place, bytes).await;
            }
            from = place.checked_add(size);
        }
        let bonus = objset.bonus(object).await?;
        if !bonus.bytes.is_empty() {
            let bytes = IoBuf::copy_from(&bonus.bytes);
            chain = self.link(chain, BONUS_PLACE, bytes).await;
        }
        Ok(chain)
    }

    /// Adds a block to a chain of digests; on the compute pool, where hashing does not hold up other requests.
    async fn link(&self, chain: [u8; 32], place: u64, bytes: IoBuf) -> [u8; 32] {
        let job = move || {
            let mut link = Vec::with_capacity(LINK_BYTES);
            link.extend_from_slice(&chain);
            link.extend_from_slice(&place.to_le_bytes());
            link.extend_from_slice(&digest(&bytes));
            digest(&link)
        };
        self.handle.compute(job).await
    }
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    for (word, place) in codec::checksum::sha256(bytes)
        .iter()
        .zip(out.chunks_exact_mut(8))
    {
        place.copy_from_slice(&word.to_be_bytes());
    }
    out
}
