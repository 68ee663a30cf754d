//! Claiming the log of a pool that was not exported, and freeing one.

use std::collections::BTreeSet;
use std::sync::Arc;

use ondisk::zil::{ChainId, LogRecord, ZilHeader, zil_flags};
use ondisk::zil_record::CloneRange;
use ondisk::{BlockPointer, Txg};
use zio::{BlockStore, IoClass, ZioError};

use crate::error::{Result, ZilError};
use crate::walk::{Walk, complete_block, read_block, records_of};

/// The result of a claim.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// To be stored in the same txg.
    pub header: ZilHeader,
    /// Blocks of files that the log refers to as well (clones that were logged and not written): each of these is one more
    /// reference, to be counted in the same txg, since the file that has the block now may free it before the replay. The replay
    /// gives these references back.
    pub referenced: Vec<LoggedReference>,
}

/// A reference of a log to a block of a file.
#[derive(Clone, Copy, Debug)]
pub struct LoggedReference {
    /// The block.
    pub bp: BlockPointer,
    /// Whether the replay uses it: only then it must be allocated. A record whose txg is on disk counts as well, but its block
    /// may have been freed in that txg.
    pub is_replayed: bool,
}

impl From<ZilHeader> for Claimed {
    fn from(header: ZilHeader) -> Self {
        Self {
            header,
            referenced: Vec::new(),
        }
    }
}

/// Claims the log of a header in `first`, the first txg after the import: marks its blocks as allocated, so that
/// nothing else is allocated there, and records how far it reaches. To be called before anything is allocated in this
/// session. A claimed or empty header is returned as it is. An empty
/// header for one that was not means that nothing of the log can be read: its first block is to be freed, if it is older
/// than `first`.
///
/// A log ends where something else was found, never where a device did not answer: what is there may have been
/// acknowledged. Only on top-level vdevs that are `given_up` an unreadable block ends it.
///
/// Copies of claimed blocks that had not reached their devices are written: after the claim they count as much as any other
/// block, and redundancy must hold for them, too.
///
/// # Errors
/// [`ZilError::Unreadable`], [`ZilError::UnreadableData`] and [`ZilError::Block`] when a device fails;
/// [`ZilError::Unsupported`] for records that cannot be replayed here, [`ZilError::Damaged`]. Nothing on disk has changed
/// then but incomplete copies of what the log holds.
// OpenZFS: module/zfs/zil.c, zil_check_log_chain (all errors but ECKSUM and ENOENT refuse the import)
pub async fn claim(
    store: &BlockStore,
    header: &ZilHeader,
    first: Txg,
    given_up: impl Fn(u32) -> bool,
) -> Result<Claimed> {
    let may_end = |bp: &BlockPointer| bp.copies().any(|dva| given_up(dva.vdev));
    let objset = ChainId::of(&header.log).objset;
    if let Some(header) = settled(store, header, may_end(&header.log)).await? {
        return Ok(header.into());
    }
    let (mut blocks, mut records) = (0_u64, 0_u64);
    let (mut last_block, mut last_record) = (0, 0);
    let mut referenced = Vec::new();
    let mut bp = header.log;
    'chain: while !bp.is_hole() {
        let id = ChainId::of(&bp);
        let block = read_block(store, &bp).await;
        if may_end(&bp) && block.as_ref().is_err_and(is_unreadable) {
            break;
        }
        if id.seq <= last_block || !claim_block(store, &bp, first).await? {
            break;
        }
        blocks += 1;
        last_block = id.seq;
        let Some(block) = block? else {
            break;
        };
        complete_block(store, &bp).await?;
        for record in records_of(&block.records) {
            if record.seq <= last_record {
                break 'chain;
            }
            if record.is_clone_range() {
                match references(&bp, &record, first)? {
                    Some(more) => referenced.extend(more),
                    None => break 'chain,
                }
            }
            if let Some(data) = record.indirect_write()
                && data.birth() >= first
                && !claim_data(store, &data, first, (objset, record.seq), may_end(&data)).await?
            {
                break 'chain;
            }
            last_record = record.seq;
            records += 1;
        }
        bp = block.next;
    }
    let replay = if records > 0 || blocks > 1 {
        zil_flags::REPLAY_NEEDED
    } else {
        0
    };
    let header = ZilHeader {
        claim_txg: first.0,
        claim_blk_seq: last_block,
        claim_lr_seq: last_record,
        flags: header.flags | zil_flags::CLAIM_LR_SEQ_VALID | replay,
        ..*header
    };
    Ok(Claimed { header, referenced })
}

fn is_unreadable(error: &ZilError) -> bool {
    matches!(error, ZilError::Unreadable { .. })
}

/// What [`claim`] makes of a header without claiming anything; `None` when its chain is to be claimed. `given_up` is whether a vdev
/// of the first block is.
async fn settled(
    store: &BlockStore,
    header: &ZilHeader,
    given_up: bool,
) -> Result<Option<ZilHeader>> {
    if header.is_empty() {
        return Ok(Some(*header));
    }
    if given_up {
        let first = read_block(store, &header.log).await;
        if first.as_ref().is_err_and(is_unreadable) {
            return Ok(Some(ZilHeader::default()));
        }
    }
    // Also of one that was claimed there: its replay would find none, and the log would be freed.
    if !header.log.is_little_endian() {
        return Err(ZilError::Unsupported {
            objset: ChainId::of(&header.log).objset,
            what: "records of a machine with the other byte order",
        });
    }
    Ok((header.claim_txg != 0).then_some(*header))
}

/// The blocks that a record of cloned blocks in the block of `bp` shares; `None` when one is younger than what is on disk.
fn references(
    bp: &BlockPointer,
    record: &LogRecord<'_>,
    first: Txg,
) -> Result<Option<Vec<LoggedReference>>> {
    let pointers = cloned(bp, record).ok_or(ZilError::Damaged {
        objset: ChainId::of(bp).objset,
        seq: record.seq,
    })?;
    // A clone of a clone of the same txg has the birth of that txg; its block is older.
    // OpenZFS: module/zfs/zil.c, zil_claim_clone_range (BP_GET_BIRTH)
    if pointers.iter().any(|bp| bp.physical_birth() >= first) {
        return Ok(None);
    }
    let is_replayed = record.txg >= first.0;
    let one = |bp| LoggedReference { bp, is_replayed };
    Ok(Some(pointers.into_iter().map(one).collect()))
}

/// Claims the block of an indirect write, the record `seq` of an objset, and writes its incomplete copies. False when the record
/// reached the disk before its data did, so its commit was never acknowledged, or where its vdev is given up.
async fn claim_data(
    store: &BlockStore,
    data: &BlockPointer,
    first: Txg,
    (objset, seq): (u64, u64),
    given_up: bool,
) -> Result<bool> {
    let whole = match store.is_whole(data, IoClass::SyncRead).await {
        Err(ZioError::Device { .. }) if given_up => false,
        whole => whole.map_err(|source| ZilError::UnreadableData {
            objset,
            seq,
            source: Arc::new(source),
        })?,
    };
    if !whole || !claim_block(store, data, first).await? {
        return Ok(false);
    }
    store.complete(data, IoClass::SyncRead).await?;
    Ok(true)
}

/// Returns the blocks of an unclaimed log that were allocated in `newest` or before, in the order of the chain: what the state
/// to which the pool was rewound has of it. Later blocks are not of that state.
///
/// # Errors
/// [`ZilError::Unreadable`].
// OpenZFS: module/zfs/zil.c, zil_clear_log_block
pub async fn blocks_until(
    store: &BlockStore,
    header: &ZilHeader,
    newest: Txg,
) -> Result<Vec<BlockPointer>> {
    let mut frees = LogFrees::new(header);
    let mut last = 0;
    let mut bp = header.log;
    while !bp.is_hole() && bp.birth() <= newest {
        let seq = ChainId::of(&bp).seq;
        if seq <= last {
            break;
        }
        last = seq;
        frees.chain_block(&bp);
        match read_block(store, &bp).await? {
            Some(block) => bp = block.next,
            None => break,
        }
    }
    Ok(frees.blocks)
}

/// The blocks that a record of cloned blocks shares; `None` when its numbers do not fit together. Those of an encrypted log block
/// are not known, but for the pointers.
fn cloned(bp: &BlockPointer, record: &LogRecord<'_>) -> Option<Vec<BlockPointer>> {
    let mut pointers = if bp.uses_crypt() {
        CloneRange::pointers(record.body)?
    } else {
        CloneRange::decode(record.body)?.blocks
    };
    pointers.retain(CloneRange::is_shared);
    Some(pointers)
}

/// Marks a block as allocated unless the space maps have it already. `false` when its space is another block's, or outside the vdev.
async fn claim_block(store: &BlockStore, bp: &BlockPointer, first: Txg) -> Result<bool> {
    if bp.birth() < first {
        return Ok(true);
    }
    match store.claim(first, bp).await {
        Ok(()) => Ok(true),
        Err(ZioError::Corrupt { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns all blocks of a claimed log, to be freed with it: those of the chain, and the data of indirect
/// writes that nothing else refers to.
///
/// # Errors
/// [`ZilError::Unreadable`].
pub async fn blocks_to_free(store: &BlockStore, header: &ZilHeader) -> Result<Vec<BlockPointer>> {
    let mut walk = Walk::new(store, None, header);
    let mut frees = LogFrees::new(header);
    while let Some(step) = walk.next().await? {
        frees.chain_block(&step.bp);
        for record in records_of(&step.records).filter(|record| walk.is_claimed(record.seq)) {
            frees.record(&record);
        }
    }
    Ok(frees.blocks)
}

/// Collects the blocks to be freed with a log.
#[derive(Debug)]
pub(crate) struct LogFrees {
    claim_txg: Txg,
    seen: BTreeSet<(u32, u64)>,
    pub(crate) blocks: Vec<BlockPointer>,
}

impl LogFrees {
    pub(crate) fn new(header: &ZilHeader) -> Self {
        Self {
            claim_txg: Txg(header.claim_txg),
            seen: BTreeSet::new(),
            blocks: Vec::new(),
        }
    }

    pub(crate) fn chain_block(&mut self, bp: &BlockPointer) {
        let dva = bp.dvas()[0];
        if self.seen.insert((dva.vdev, dva.offset)) {
            self.blocks.push(*bp);
        }
    }

    /// Adds the blocks that only this claimed record refers to.
    pub(crate) fn record(&mut self, record: &LogRecord<'_>) {
        if let Some(data) = record.indirect_write() {
            self.data(&data);
        }
        if record.is_clone_range()
            && let Some(pointers) = CloneRange::pointers(record.body)
        {
            // One reference for each mention.
            let shared = pointers.into_iter().filter(CloneRange::is_shared);
            self.blocks.extend(shared);
        }
    }

    /// Data of an indirect write: only the log has it if it was written after the last synced txg.
    fn data(&mut self, bp: &BlockPointer) {
        if bp.birth() >= self.claim_txg && !bp.is_embedded() {
            self.chain_block(bp);
        }
    }
}
