//! Writing one batch of commits: records into log blocks, log blocks to stable storage.
//!
//! A batch that cannot be written to the log becomes durable with the txgs of its records instead. The states of batches and
//! their order are in `group_commit`.

use std::collections::{BTreeSet, VecDeque};

use codec::checksum::Algorithm;
use dmu::Tx;
use ondisk::zil::{ChainId, LogBlock};
use ondisk::{BlockPointer, ObjectId};
use runtime::IoBuf;
use zio::{Bookmark, ZioError};

use crate::error::{Result, ZilError};
use crate::itx::{Intent, Itx};
use crate::log::LogState;
use crate::pack::{self, FilledBlock};

/// Record bytes of a commit above which it waits for its txg: so much data is written there anyway, and only once.
const COMMIT_BYTES_MAX: usize = 32 << 20;
/// Blocks of one commit that are in memory and being written at once.
const BLOCKS_AT_ONCE: usize = 32;

/// A batch whose records have their places in the chain.
struct PlacedBatch {
    /// See [`LogState::place`].
    _tx: Tx,
    /// To be written.
    blocks: Vec<(BlockPointer, IoBuf)>,
    /// Written, though not durable.
    written: Vec<BlockPointer>,
    /// Vdevs to be flushed for those, and for data blocks that were written early.
    unflushed: BTreeSet<u32>,
}

impl LogState {
    /// Makes everything chosen so far durable: by the log, else by its txgs. Ends after all batches issued before. The
    /// caller leads the gathering batch.
    pub(crate) async fn write_batch(&self) -> Result<()> {
        let (mut itxs, end) = self.itxs.borrow_mut().take_commit_list();
        let (number, is_beside) = self.commits.borrow_mut().issue(end);
        self.stats.borrow_mut().overlapped += u64::from(is_beside);
        let newest = itxs.iter().map(|itx| itx.txg).max();
        let unlogged = itxs.iter().any(|itx| itx.intent.is_unlogged());
        let size = record_bytes(&itxs);
        let placed = match newest {
            // All or nothing: what follows a change without a record must not be found without it.
            Some(newest) if unlogged || size > COMMIT_BYTES_MAX => {
                let synced = self.clock.wait_synced(newest).await;
                synced.map(|()| None).map_err(ZilError::from)
            }
            Some(_) => match self.place(&mut itxs, number).await {
                Ok(placed) => Ok(placed),
                Err(reason) => {
                    self.broke(number, &reason);
                    Ok(None)
                }
            },
            None => Ok(None),
        };
        self.commits.borrow_mut().placed(number);
        if self.may_issue() {
            self.written.notify_all();
        }
        let result = placed;
        if let Ok(Some(placed)) = &result
            && let Err(reason) = self.write_placed(placed).await
        {
            self.broke(number, &reason);
        }
        // Ends the batch's transaction: if the chain broke before this batch, the batches before it wait for that txg.
        let mut result = result.map(drop);
        self.wait_until_oldest(number).await;
        let is_unreachable = self.commits.borrow_mut().is_unreachable(number);
        if is_unreachable && let (Ok(()), Some(newest)) = (&result, newest) {
            result = self.clock.wait_synced(newest).await.map_err(Into::into);
        }
        self.commits.borrow_mut().finish(number, result.is_ok());
        result
    }

    /// Waits until all batches before this one are done.
    async fn wait_until_oldest(&self, number: u64) {
        while !self.commits.borrow().is_oldest(number) {
            self.written.wait().await;
        }
    }

    /// Records that a batch is not in the log. A reader finds the chain's end before it, so nothing may be added, and what
    /// follows is not found either.
    fn broke(&self, number: u64, reason: &ZilError) {
        self.chain.borrow_mut().broken = true;
        self.commits.borrow_mut().lose_from(number);
        let mut stats = self.stats.borrow_mut();
        if reason.is_want_of_room() {
            stats.stalls += 1;
        } else {
            stats.fallbacks += 1;
        }
    }

    /// Gives records their places in the chain, after those of all batches issued before. When there are too many blocks to
    /// be in memory at once, the first of them are written on return.
    async fn place(&self, itxs: &mut VecDeque<Itx>, number: u64) -> Result<Option<PlacedBatch>> {
        // Until the last block is durable this transaction keeps the txg open in which the blocks of this batch are
        // allocated: were it synced before, a crash would leave blocks allocated that no chain leads to. When one cannot be
        // written, this very txg frees the chain: that of all batches under way.
        let tx = loop {
            self.begin_chain().await?;
            let tx = self.clock.begin_now()?;
            if self.commits.borrow_mut().use_txg(number, tx.txg()) {
                break tx;
            }
            drop(tx);
            self.wait_until_oldest(number).await;
        };
        let synced = self.clock.last_synced();
        itxs.retain(|itx| itx.txg > synced);
        if itxs.is_empty() {
            return Ok(None);
        }
        let mut unflushed = self.write_early(itxs, &tx).await?;
        self.sizes.borrow_mut().note(record_bytes(itxs));
        let log_vdevs = self.store.log_vdevs();
        let mut left = record_bytes(itxs);
        let mut blocks: Vec<(BlockPointer, IoBuf)> = Vec::new();
        let mut written: Vec<BlockPointer> = Vec::new();
        loop {
            blocks.push(self.fill_block(itxs, &mut left, &log_vdevs, &tx).await?);
            if itxs.is_empty() {
                break;
            }
            if blocks.len() == BLOCKS_AT_ONCE {
                self.write_blocks(&blocks).await?;
                written.extend(blocks.drain(..).map(|(bp, _)| bp));
            }
        }
        unflushed.extend(written.iter().map(|bp| bp.dvas()[0].vdev));
        Ok(Some(PlacedBatch {
            _tx: tx,
            blocks,
            written,
            unflushed,
        }))
    }

    /// Moves records into the last block of the chain, and allocates the one after it. `left` counts the record bytes that
    /// are in no block yet.
    async fn fill_block(
        &self,
        itxs: &mut VecDeque<Itx>,
        left: &mut usize,
        log_vdevs: &[u32],
        tx: &Tx,
    ) -> Result<(BlockPointer, IoBuf)> {
        let bp = self.chain.borrow().last().ok_or(ZilError::Broken)?;
        let size = usize::try_from(bp.psize()).map_err(|_| ZilError::Broken)?;
        let first = self.seq.get();
        let mut seq = first;
        let mut filled = pack::fill(itxs, size, &mut seq);
        assert!(
            seq >= first && filled.used <= size,
            "a log block holds records of rising numbers, and no more bytes than it has"
        );
        self.seq.set(seq);
        *left = left.saturating_sub(filled.used);
        let next = match itxs.front() {
            None => self.sizes.borrow().next(),
            Some(itx) => pack::block_size((*left).max(itx.intent.size())),
        };
        self.chain.borrow_mut().filled(&bp, filled.newest);
        let id = ChainId::of(&bp);
        // Before the block is written: its header points to the next one.
        let next = self.allocate_block(next, id.next(), tx).await?;
        let fletcher4 =
            |data: &[u8]| codec::checksum::compute(Algorithm::Fletcher4, &[0; 32], data);
        let mut failure = None;
        let encrypt =
            |block: &mut [u8]| match self.objset.services().keys()?.encrypt_log(&bp, block) {
                Ok(mac) => Some(mac),
                Err(error) => {
                    failure = Some(error);
                    None
                }
            };
        LogBlock::complete(
            &mut filled.bytes,
            id,
            &next,
            filled.used,
            encrypt,
            fletcher4,
        );
        if let Some(error) = failure {
            return Err(error.into());
        }
        self.count_block(&bp, &filled, seq - first, log_vdevs);
        Ok((bp, filled.bytes.freeze()))
    }

    fn count_block(
        &self,
        bp: &BlockPointer,
        filled: &FilledBlock,
        records: u64,
        log_vdevs: &[u32],
    ) {
        let mut stats = self.stats.borrow_mut();
        stats.records += records;
        stats.copied += filled.copied;
        stats.copied_bytes += filled.copied_bytes;
        let counted = if log_vdevs.contains(&bp.dvas()[0].vdev) {
            &mut stats.separate
        } else {
            &mut stats.normal
        };
        counted.count += 1;
        counted.used_bytes += filled.used as u64;
        counted.written_bytes += filled.bytes.len() as u64;
        counted.allocated_bytes += bp.psize();
    }

    async fn write_blocks(&self, blocks: &[(BlockPointer, IoBuf)]) -> Result<()> {
        let running = blocks
            .iter()
            .map(|(bp, bytes)| self.store.write_log(bp, bytes.clone(), false));
        let results = runtime::join_all(running).await;
        Ok(results
            .into_iter()
            .collect::<std::result::Result<(), _>>()?)
    }

    /// Makes the blocks of a batch durable.
    async fn write_placed(&self, placed: &PlacedBatch) -> Result<()> {
        if let ([(bp, bytes)], true) = (placed.blocks.as_slice(), placed.unflushed.is_empty()) {
            self.store.write_log(bp, bytes.clone(), true).await?;
        } else {
            self.write_blocks(&placed.blocks).await?;
            let mut vdevs = placed.unflushed.clone();
            vdevs.extend(placed.blocks.iter().map(|(bp, _)| bp.dvas()[0].vdev));
            let flushes = vdevs
                .into_iter()
                .map(|vdev| self.store.tree().flush_vdev(vdev));
            for result in runtime::join_all(flushes).await {
                result.map_err(|source| ZioError::Device {
                    bookmark: Bookmark::default(),
                    source,
                })?;
            }
        }
        let mut chain = self.chain.borrow_mut();
        let blocks = placed.blocks.iter().map(|(bp, _)| bp);
        for bp in placed.written.iter().chain(blocks) {
            chain.flushed(bp);
        }
        self.stats.borrow_mut().batches += 1;
        Ok(())
    }

    /// Writes whole blocks of `tx`'s txg to their final location, as far as their writers allow it, and replaces their
    /// records by ones that point to them. Returns the vdevs that have to be flushed for it.
    async fn write_early(&self, itxs: &mut VecDeque<Itx>, tx: &Tx) -> Result<BTreeSet<u32>> {
        let mut vdevs = BTreeSet::new();
        if !itxs.iter().any(|itx| itx.intent.whole_blocks().is_some()) || self.is_nearly_full(0) {
            return Ok(vdevs);
        }
        let mut cut: VecDeque<Itx> = VecDeque::new();
        for itx in itxs.drain(..) {
            match itx.intent.whole_blocks() {
                Some(blocks) if itx.txg == tx.txg() => cut.extend(itx.cut(blocks)),
                _ => cut.push_back(itx),
            }
        }
        *itxs = cut;
        let mut failure = None;
        let parts = itxs.make_contiguous();
        for some in parts.chunks_mut(BLOCKS_AT_ONCE) {
            let written = some
                .iter()
                .map(|itx| self.write_block_early(&itx.intent, tx));
            let written = runtime::join_all(written).await;
            for (itx, result) in std::iter::zip(some, written) {
                match result {
                    Ok(Some((object, offset, bp))) => {
                        vdevs.extend(bp.copies().map(|dva| dva.vdev));
                        {
                            let mut stats = self.stats.borrow_mut();
                            stats.indirect += 1;
                            stats.indirect_bytes += bp.lsize();
                        }
                        itx.intent = Intent::Indirect { object, offset, bp };
                    }
                    Ok(None) => {}
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
        }
        failure.map_or(Ok(vdevs), Err)
    }

    async fn write_block_early(
        &self,
        intent: &Intent,
        tx: &Tx,
    ) -> Result<Option<(ObjectId, u64, BlockPointer)>> {
        let &Intent::Write {
            object,
            offset,
            ref data,
            block,
        } = intent
        else {
            return Ok(None);
        };
        if block == 0 || data.len() != block as usize || !offset.is_multiple_of(u64::from(block)) {
            return Ok(None);
        }
        let bp = self.objset.write_early(object, offset, data, tx).await?;
        Ok(bp.map(|bp| (object, offset, bp)))
    }

    /// Whether so many bytes more could take what writing out the txg needs: what is dirty, and a part of what is reserved
    /// for changes of metadata.
    fn is_nearly_full(&self, size: u64) -> bool {
        let space = self.store.space();
        let reserved = space.slop / 2 + self.clock.dirty_bytes_total();
        space.free < reserved.saturating_add(size)
    }

    /// Makes sure that there is a chain, and that the header on disk points to it.
    async fn begin_chain(&self) -> Result<()> {
        // One chain at a time: the header can point to one only.
        while self.chain.borrow().is_empty() && self.discard.borrow().is_some() {
            self.clock.wait_synced(self.clock.open_txg()).await?;
        }
        if self.unreplayed.get() || self.chain.borrow().broken {
            return Err(ZilError::Broken);
        }
        if !self.chain.borrow().is_empty() {
            return Ok(());
        }
        let id = ChainId {
            guid: [self.handle.random_u64(), self.handle.random_u64()],
            objset: self.objset.id(),
            seq: 1,
        };
        let size = self.sizes.borrow().next();
        let first = {
            let tx = self.clock.begin_now()?;
            self.allocate_block(size, id, &tx).await?
        };
        // The header is part of the objset's block: it gets there with a txg.
        Ok(self.clock.wait_synced(first.birth()).await?)
    }

    /// Allocates a log block in the txg of `tx`, and puts it at the end of the chain.
    async fn allocate_block(&self, size: u64, id: ChainId, tx: &Tx) -> Result<BlockPointer> {
        // The log of a nearly full pool is on its log vdevs or nowhere. Without a log block, commits wait for the txg.
        let anywhere = !self.is_nearly_full(size);
        let keys = self.objset.services().keys();
        let mut bp = self
            .store
            .allocate_log(tx.txg(), size, anywhere, keys)
            .await?;
        assert!(
            bp.uses_crypt() == keys.is_some(),
            "records of an encrypted dataset are encrypted, and no others"
        );
        assert!(
            bp.birth() == tx.txg() && bp.psize() >= size,
            "a log block is born in the txg that its batch keeps open"
        );
        bp.set_checksum(id.words());
        self.chain.borrow_mut().push(bp);
        Ok(bp)
    }
}

/// Bytes of the records of some itxs.
fn record_bytes(itxs: &VecDeque<Itx>) -> usize {
    itxs.iter().map(|itx| itx.intent.size()).sum()
}
