//! Reading a chain of log blocks.

use std::sync::Arc;

use codec::checksum::Algorithm;
use ondisk::zil::{ChainId, LogBlock, SLIM_HEADER, ZilHeader};
use ondisk::{BlockPointer, Compression, ObjectType};
use runtime::IoBuf;
use zio::{BlockKeys, BlockStore, ZioError};

use crate::error::{Result, ZilError};

/// A verified block.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) next: BlockPointer,
    pub(crate) records: Vec<u8>,
    /// All bytes of an encrypted block.
    encrypted: Option<IoBuf>,
}

impl Block {
    /// The records, decrypted with the keys of an encrypted dataset; `None` when they are not authentic.
    fn opened(self, bp: &BlockPointer, keys: Option<&BlockKeys>) -> Option<Vec<u8>> {
        let (Some(keys), Some(encrypted)) = (keys, &self.encrypted) else {
            return Some(self.records);
        };
        let mut block = encrypted.to_vec();
        if !keys.decrypt_log(bp, &mut block) {
            return None;
        }
        let end = SLIM_HEADER.checked_add(self.records.len())?;
        block.get(SLIM_HEADER..end).map(<[u8]>::to_vec)
    }
}

/// Reads a log block. `None` is the normal end of a chain: nothing, or something older, is where the block would be. Of an
/// encrypted one, headers of records and pointers are in the clear.
///
/// # Errors
/// [`ZilError::Unreadable`] when the devices do not give the bytes.
pub(crate) async fn read_block(store: &BlockStore, bp: &BlockPointer) -> Result<Option<Block>> {
    let sound = bp.is_little_endian()
        && bp.object_type() == ObjectType::INTENT_LOG
        && bp.compression() == Compression::OFF
        && bp.psize() == bp.lsize()
        && bp.psize() <= ondisk::MAX_BLOCK_SIZE;
    if !sound {
        return Ok(None);
    }
    let pointer = *bp;
    let check = Arc::new(move |bytes: &IoBuf| {
        opened(bytes, &pointer).map(|block| Block {
            next: block.next,
            records: block.records.to_vec(),
            encrypted: pointer.uses_crypt().then(|| bytes.clone()),
        })
    });
    match store.read_log(bp, check).await {
        Ok(block) => Ok(Some(block)),
        Err(ZioError::Device { .. }) => {
            let id = ChainId::of(bp);
            Err(ZilError::Unreadable {
                objset: id.objset,
                block: id.seq,
            })
        }
        Err(_) => Ok(None),
    }
}

/// Writes what of a log block that could be read did not reach all devices.
///
/// # Errors
/// [`ZilError::Block`] when the pointer is impossible.
pub(crate) async fn complete_block(store: &BlockStore, bp: &BlockPointer) -> Result<()> {
    let pointer = *bp;
    let check = Arc::new(move |bytes: &IoBuf| opened(bytes, &pointer).map(drop));
    Ok(store.complete_log(bp, check).await?)
}

fn opened<'a>(bytes: &'a IoBuf, bp: &BlockPointer) -> Option<LogBlock<'a>> {
    let sum = |kind| move |data: &[u8]| codec::checksum::compute(kind, &[0; 32], data);
    let len = usize::try_from(bp.psize()).ok()?;
    LogBlock::open(
        bytes.get(..len)?,
        bp,
        sum(Algorithm::Fletcher4),
        sum(Algorithm::Fletcher2),
    )
}

/// The records of a block's bytes, with where each starts; an impossible length ends them.
pub(crate) fn records_of(bytes: &[u8]) -> impl Iterator<Item = ondisk::zil::LogRecord<'_>> {
    LogBlock {
        next: BlockPointer::HOLE,
        records: bytes,
    }
    .iter()
}

/// One step of a walk over a claimed chain.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) bp: BlockPointer,
    /// Its records; none when the claim ends before it.
    pub(crate) records: Vec<u8>,
}

/// A walk over a claimed chain, from its header to where the claim ended.
pub(crate) struct Walk {
    store: BlockStore,
    /// To decrypt records with.
    keys: Option<BlockKeys>,
    header: ZilHeader,
    next: BlockPointer,
    last_block: u64,
    /// Highest record number read.
    last_record: u64,
}

impl Walk {
    pub(crate) fn new(store: &BlockStore, keys: Option<&BlockKeys>, header: &ZilHeader) -> Self {
        Self {
            store: store.clone(),
            keys: keys.cloned(),
            header: *header,
            next: header.log,
            last_block: 0,
            last_record: 0,
        }
    }

    fn claimed_records(&self) -> u64 {
        if self.header.flags & ondisk::zil::zil_flags::CLAIM_LR_SEQ_VALID == 0 {
            return u64::MAX;
        }
        self.header.claim_lr_seq
    }

    /// Returns the next block that was claimed.
    ///
    /// # Errors
    /// [`ZilError::Unreadable`] when a block that held records at the claim cannot be read now.
    pub(crate) async fn next(&mut self) -> Result<Option<Step>> {
        let bp = self.next;
        let id = ChainId::of(&bp);
        if bp.is_hole() || id.seq > self.header.claim_blk_seq || id.seq <= self.last_block {
            return Ok(None);
        }
        self.last_block = id.seq;
        self.next = BlockPointer::HOLE;
        if id.seq == self.header.claim_blk_seq && self.last_record == self.claimed_records() {
            // Allocated, never written.
            let records = Vec::new();
            return Ok(Some(Step { bp, records }));
        }
        let Some(block) = read_block(&self.store, &bp).await? else {
            if self.header.flags & ondisk::zil::zil_flags::CLAIM_LR_SEQ_VALID == 0 {
                let records = Vec::new();
                return Ok(Some(Step { bp, records }));
            }
            return Err(ZilError::Unreadable {
                objset: id.objset,
                block: id.seq,
            });
        };
        self.next = block.next;
        let newest = records_of(&block.records).map(|record| record.seq).max();
        self.last_record = self.last_record.max(newest.unwrap_or(0));
        let records = block.opened(&bp, self.keys.as_ref());
        let records = records.ok_or(ZilError::Forged {
            objset: id.objset,
            block: id.seq,
        })?;
        Ok(Some(Step { bp, records }))
    }

    /// Whether a record was part of the log when it was claimed.
    pub(crate) fn is_claimed(&self, seq: u64) -> bool {
        seq <= self.claimed_records()
    }
}
