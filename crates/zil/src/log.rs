//! The running log of an objset: what is appended to it, when a commit returns, and its part in the sync of a txg.
//!
//! How a batch of commits is written is in `batch`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use dmu::{Objset, Tx, TxgClock};
use ondisk::zil::ZilHeader;
use ondisk::{BlockPointer, ObjectId, Txg};
use runtime::Handle;
use runtime::sync::Event;
use zio::BlockStore;

use crate::chain::Chain;
use crate::error::{Result, ZilError};
use crate::group_commit::GroupCommit;
use crate::itx::{Intent, ItxKind, Itxs};
use crate::pack::{RECORD_MAX, Sizes};
use crate::stats::ZilStats;

/// Syncs to wait for at the close of a log before giving up: one is enough unless commits go on.
const CLOSE_TRIES: u32 = 8;
/// Writes from here on are not copied to a log among the data. OpenZFS: `zfs_immediate_write_sz`, 32 KiB.
const IMMEDIATE_MAX: usize = 32 << 10;

/// The intent log of one objset. Clones share it.
#[derive(Clone)]
pub struct Zilog(Rc<LogState>);

/// What the clones of a [`Zilog`] share.
pub(crate) struct LogState {
    pub(crate) handle: Handle,
    pub(crate) objset: Objset,
    pub(crate) store: BlockStore,
    pub(crate) clock: TxgClock,
    /// Records in memory.
    pub(crate) itxs: RefCell<Itxs>,
    pub(crate) chain: RefCell<Chain>,
    /// Number of the last record written.
    pub(crate) seq: Cell<u64>,
    pub(crate) sizes: RefCell<Sizes>,
    pub(crate) commits: RefCell<GroupCommit>,
    /// A batch is done, or may be issued.
    pub(crate) written: Event,
    /// Why nothing can be made durable any more.
    failed: RefCell<Option<ZilError>>,
    /// The log on disk is older than this session and has not been replayed.
    pub(crate) unreplayed: Cell<bool>,
    /// Records replayed, by the txg that makes that durable.
    replayed: RefCell<BTreeMap<Txg, u64>>,
    /// Everything on disk is freed by the sync of this txg or a later one; with it, blocks older than this session.
    pub(crate) discard: RefCell<Option<(Txg, Vec<BlockPointer>)>>,
    pub(crate) stats: RefCell<ZilStats>,
    /// Whether blocks of the log are written.
    writing: LogWriting,
}

/// Whether a log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogWriting {
    /// Commits write records.
    Records,
    /// Commits sync the txg: the pool is of a version whose logs have another form.
    Never,
}

/// What the sync of a txg leaves to do.
#[derive(Debug, Default)]
pub struct SyncOutcome {
    /// Blocks that are no longer needed, to be freed in the txg.
    pub freed: Vec<BlockPointer>,
    /// The txg's header is the first that points to a log.
    pub started: bool,
}

impl std::fmt::Debug for Zilog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zilog")
            .field("objset", &self.0.objset.id())
            .finish_non_exhaustive()
    }
}

impl Zilog {
    /// Opens the log of an objset; one per objset. A claimed log in its header waits for [`Zilog::replay`], or is freed
    /// by the next sync if it is empty.
    #[must_use]
    pub fn new(objset: &Objset, writing: LogWriting) -> Self {
        if !crate::is_own(&objset.zil_header(), objset.id()) {
            objset.discard_zil_header();
        }
        let services = objset.services();
        let log = Self(Rc::new(LogState {
            handle: services.handle.clone(),
            objset: objset.clone(),
            store: services.store().clone(),
            clock: services.clock.clone(),
            itxs: RefCell::default(),
            chain: RefCell::default(),
            seq: Cell::new(0),
            sizes: RefCell::default(),
            commits: RefCell::default(),
            written: Event::new("records to reach the intent log"),
            failed: RefCell::default(),
            unreplayed: Cell::new(false),
            replayed: RefCell::default(),
            discard: RefCell::default(),
            stats: RefCell::default(),
            writing,
        }));
        log.header_changed();
        log
    }

    /// Reads the header in the objset again, which was claimed or discarded since the log was opened.
    pub fn header_changed(&self) {
        let header = self.0.objset.zil_header();
        let unreplayed = crate::needs_replay(&header);
        self.0.unreplayed.set(unreplayed);
        let is_empty_log = header.claim_txg != 0 && crate::has_log(&header) && !unreplayed;
        *self.0.discard.borrow_mut() = is_empty_log.then(|| (Txg(0), vec![header.log]));
    }

    pub(crate) fn objset(&self) -> &Objset {
        &self.0.objset
    }

    pub(crate) fn store(&self) -> &BlockStore {
        &self.0.store
    }

    /// Returns the size of a write from which a commit writes its blocks to their final location, and only pointers into the
    /// log: any, if throughput counts more than latency; long ones, when the log shares its vdevs with the data; else none.
    // OpenZFS: module/zfs/zfs_log.c, zfs_log_write (zfs_immediate_write_sz); module/zfs/zvol.c, zvol_log_write
    #[must_use]
    pub fn indirect_write_min(&self, for_throughput: bool) -> usize {
        if for_throughput {
            0
        } else if self.0.store.has_logs() {
            usize::MAX
        } else {
            IMMEDIATE_MAX
        }
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.0.handle
    }

    pub(crate) fn count_replay(&self, records: u64, replay_ns: u64) {
        let mut stats = self.0.stats.borrow_mut();
        stats.replayed += records;
        stats.replay_ns += replay_ns;
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> ZilStats {
        *self.0.stats.borrow()
    }

    /// Returns how many records are in memory: those no commit has asked for, and those waiting to be written.
    #[must_use]
    pub fn backlog(&self) -> (usize, usize) {
        self.0.itxs.borrow().counts()
    }

    /// Whether blocks of the log are on disk or allocated.
    #[must_use]
    pub fn has_chain(&self) -> bool {
        !self.0.chain.borrow().is_empty() || self.0.discard.borrow().is_some()
    }

    /// Whether blocks of the log may lie on a top-level vdev, allocated or written. Those of a log that waits for its replay
    /// may lie anywhere.
    #[must_use]
    pub fn may_be_on(&self, vdev: u32) -> bool {
        let state = &self.0;
        let discard = state.discard.borrow();
        let old = discard.iter().flat_map(|(_, blocks)| blocks);
        state.unreplayed.get()
            || state.chain.borrow().is_on(vdev)
            || old
                .flat_map(BlockPointer::copies)
                .any(|dva| dva.vdev == vdev)
    }

    /// Whether the log of an earlier session waits for [`Zilog::replay`]. Until then nothing may be changed.
    #[must_use]
    pub fn needs_replay(&self) -> bool {
        self.0.unreplayed.get()
    }

    /// Appends the record of a change made under `tx`. To be called before the transaction ends, in the order of the changes.
    /// A record that does not fit a log block, and is no write, becomes durable with its txg.
    ///
    /// # Panics
    /// When the objset was opened without the keys of its dataset: the record would be written in the clear.
    pub fn append(&self, kind: ItxKind, intent: Intent, tx: &Tx) {
        assert!(
            !self.0.objset.services().is_raw(),
            "an object set without its keys is not changed by what is logged"
        );
        if self.0.writing == LogWriting::Never {
            return;
        }
        let splits = matches!(intent, Intent::Write { .. });
        let fits = splits || (intent.size() <= RECORD_MAX && !intent.is_unlogged());
        let intent = if fits { intent } else { Intent::Unlogged };
        self.0.itxs.borrow_mut().append(kind, intent, tx.txg());
    }

    /// Drops the async records of an object that was freed, as far as no commit has chosen them: another object may get
    /// its number.
    // OpenZFS: module/zfs/zil.c, zil_remove_async
    pub fn remove_async(&self, object: ObjectId) {
        self.0.itxs.borrow_mut().remove_async(object);
    }

    /// Makes the async records of an object sync ones, written by every commit: a change of names that follows depends on
    /// them.
    // OpenZFS: module/zfs/zil.c, zil_async_to_sync
    pub fn async_to_sync(&self, object: ObjectId) {
        self.0.itxs.borrow_mut().async_to_sync(object);
    }

    /// Makes durable what was appended so far: all sync records, and the async ones of one object, or of all. Never to be
    /// called while holding a transaction.
    ///
    /// Commits that arrive while a batch is being written share the next one. Batches overlap, and a commit returns when its
    /// batch and all issued before it are durable.
    ///
    /// # Errors
    /// When not even the txg can be synced: the pool is suspended for good or was closed.
    pub async fn commit(&self, object: Option<ObjectId>) -> Result<()> {
        let state = &self.0;
        state.stats.borrow_mut().commits += 1;
        if state.writing == LogWriting::Never {
            // Not that txg alone: a change of before may be in one that is being synced.
            return Ok(state.clock.wait_synced(state.clock.open_txg()).await?);
        }
        let target = state.itxs.borrow_mut().choose(object);
        state.commits.borrow_mut().join(target);
        loop {
            if state.commits.borrow().is_durable(target) {
                return Ok(());
            }
            if let Some(error) = state.failed.borrow().clone() {
                return Err(error);
            }
            let is_issued = state.commits.borrow().is_issued(target);
            if is_issued || !state.may_issue() {
                state.written.wait().await;
                continue;
            }
            state.commits.borrow_mut().elect();
            // Commits called in the same moment join: a batch costs a write and a flush, however many are in it.
            let expects_more = state.commits.borrow().expects_more();
            if expects_more {
                state.handle.yield_now().await;
            }
            // Boxed: one commit of a batch writes it, and the futures of all others stay small.
            let write = Box::pin(state.write_batch());
            let result = runtime::waiting_as("records to reach the intent log", write).await;
            if let Err(error) = result {
                *state.failed.borrow_mut() = Some(error);
            }
            state.written.notify_all();
        }
    }

    /// Records that the record `seq` took effect under `tx`.
    pub fn replayed(&self, seq: u64, tx: &Tx) {
        let mut replayed = self.0.replayed.borrow_mut();
        let newest = replayed.entry(tx.txg()).or_insert(0);
        *newest = seq.max(*newest);
    }

    /// Frees the log on disk as soon as all txgs it holds records of have synced. The next commit begins a new one. Does
    /// not wait.
    pub fn retire(&self) {
        if self.0.chain.borrow().is_empty() {
            return;
        }
        let after = self.0.clock.open_txg();
        self.0
            .discard
            .borrow_mut()
            .get_or_insert_with(|| (after, Vec::new()));
    }

    /// Frees the log of an objset that is not changed any more: on return no block of it is left and the header on disk is
    /// empty. An unreplayed log is kept, and so is one that commits go on using.
    ///
    /// # Errors
    /// Of the transaction clock.
    pub async fn close(&self) -> Result<()> {
        for _ in 0..CLOSE_TRIES {
            if !self.has_chain() {
                return Ok(());
            }
            self.retire();
            self.0.clock.wait_synced(self.0.clock.open_txg()).await?;
        }
        // Commits went on through all these syncs: the log is in use, and stays.
        Ok(())
    }

    /// Frees a replayed log with the next txg.
    pub(crate) async fn discard(&self, blocks: Vec<BlockPointer>) -> Result<()> {
        // Of all txgs that can have replayed something, the open one is the newest.
        let after = self.0.clock.open_txg();
        *self.0.discard.borrow_mut() = Some((after, blocks));
        self.0.clock.wait_synced(after).await?;
        self.0.unreplayed.set(false);
        Ok(())
    }

    /// Returns the blocks of a log that was never replayed, for the destruction of its dataset.
    ///
    /// # Errors
    /// [`ZilError::Unreadable`].
    pub async fn unreplayed_blocks(&self) -> Result<Vec<BlockPointer>> {
        if !self.0.unreplayed.get() {
            return Ok(Vec::new());
        }
        crate::claim::blocks_to_free(&self.0.store, &self.0.objset.zil_header()).await
    }

    /// Does the log's part in the sync of `txg`, before its objset is written: decides the header, and what is freed.
    /// Once per txg, in its first pass.
    pub fn sync(&self, txg: Txg, tx: &Tx) -> SyncOutcome {
        let state = &self.0;
        assert!(
            txg > state.clock.last_synced() && tx.txg() == txg,
            "a log is part of the sync of the txg that is being synced"
        );
        let old = state.objset.zil_header();
        let mut header = old;
        let mut outcome = SyncOutcome::default();
        {
            let mut replayed = state.replayed.borrow_mut();
            let later = replayed.split_off(&txg.next());
            let newest = std::mem::replace(&mut *replayed, later).into_values().max();
            header.replay_seq = header.replay_seq.max(newest.unwrap_or(0));
        }
        let mut chain = state.chain.borrow_mut();
        let due = state
            .discard
            .borrow()
            .as_ref()
            .is_some_and(|(after, _)| *after <= txg);
        // A broken chain is not written to, though the batch that broke it may wait for this txg; nor is an empty one, though
        // the batch that begins one waits until the old one is freed.
        let in_use = state.commits.borrow().is_busy();
        let may_go = chain.broken || (due && (!in_use || chain.is_empty()));
        if may_go && let Some(blocks) = chain.take_all(txg) {
            outcome.freed = blocks;
            if due && let Some((_, old)) = state.discard.borrow_mut().take() {
                outcome.freed.extend(old);
            }
            // A log that waits for its replay is not this session's.
            if due || !state.unreplayed.get() {
                header = ZilHeader::default();
            }
        } else if !chain.is_empty() {
            outcome.freed = chain.take_done(txg);
            let first = chain.first().unwrap_or(BlockPointer::HOLE);
            outcome.started = old.is_empty();
            header = ZilHeader {
                log: first,
                ..ZilHeader::default()
            };
        }
        if header != old {
            state.objset.set_zil_header(header, tx);
        }
        outcome
    }

    /// Drops the records of `txg`, which is on disk.
    pub fn synced(&self, txg: Txg) {
        self.0.itxs.borrow_mut().synced(txg);
    }
}

impl LogState {
    /// Whether a commit may issue a batch now, for all commits that wait. A chain that is to be freed needs a moment
    /// without any batch.
    pub(crate) fn may_issue(&self) -> bool {
        let exclusive = self.discard.borrow().is_some();
        self.commits.borrow().may_issue(exclusive)
    }
}
