//! The running log: append, group commit, what the sync of a group does with it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use codec::checksum::Algorithm;
use dmu::{Objset, Tx, TxgClock};
use ondisk::zil::{ChainId, LogBlock, ZilHeader};
use ondisk::{BlockPointer, ObjectId, Txg};
use runtime::sync::Event;
use runtime::{Handle, IoBuf};
use zio::{BlockStore, Bookmark, ZioError};

use crate::chain::Chain;
use crate::crowd::Crowd;
use crate::error::{Result, ZilError};
use crate::pack::{self, RECORD_MAX, Sizes};
use crate::pending::{Entry, Intent, ItxKind, Pending};
use crate::replay::ReplayStream;

/// Waits for the chain to go at its close before giving up: each is a whole group, and one is enough.
const CLOSE_TRIES: u32 = 8;

/// Record bytes of a commit above which it waits for its group: so much data is written there anyway, and only once.
const COMMIT_BYTES_MAX: usize = 32 << 20;
/// Writes from here on are not copied to a log among the data. OpenZFS: `zfs_immediate_write_sz`, 32 KiB.
const IMMEDIATE_MAX: usize = 32 << 10;
/// Blocks of one commit that are in memory and being written at once.
const BLOCKS_AT_ONCE: usize = 32;
/// Batches that are on their way to the disk at once.
const BATCHES_AT_ONCE: u64 = 3;

/// The intent log of one objset. Clones share it.
#[derive(Clone)]
pub struct Zilog(Rc<Inner>);

struct Inner {
    handle: Handle,
    objset: Objset,
    store: BlockStore,
    clock: TxgClock,
    pending: RefCell<Pending>,
    chain: RefCell<Chain>,
    /// Number of the last record written.
    seq: Cell<u64>,
    sizes: RefCell<Sizes>,
    /// Records chosen by commits that are durable.
    durable: Cell<u64>,
    /// Records chosen by commits that are in a batch.
    taken: Cell<u64>,
    /// Somebody gives the records of a batch their places in the chain.
    placing: Cell<bool>,
    /// Batches ever begun, and those that are over. They end in the order in which they began, whichever is written first.
    begun: Cell<u64>,
    ended: Cell<u64>,
    /// Of the batches under way those that a reader of the chain would not find.
    unreached: RefCell<BTreeSet<u64>>,
    /// The group in which the blocks of the newest batch are set aside.
    group: Cell<Txg>,
    crowd: RefCell<Crowd>,
    written: Event,
    /// Why nothing can be made durable any more.
    failed: RefCell<Option<ZilError>>,
    /// The log on disk is older than this session and has not been replayed.
    unreplayed: Cell<bool>,
    /// Records replayed, by the group that makes that durable.
    replayed: RefCell<BTreeMap<Txg, u64>>,
    /// Everything on disk goes with the sync of this group or a later one; with it, blocks older than this session.
    discard: RefCell<Option<(Txg, Vec<BlockPointer>)>>,
    stats: RefCell<ZilStats>,
}

/// A batch with its places in the chain.
struct Placed {
    /// See [`Inner::place`].
    _tx: Tx,
    /// To be written.
    blocks: Vec<(BlockPointer, IoBuf)>,
    /// Written, though not durable.
    written: Vec<BlockPointer>,
    /// Vdevs on which that, and blocks at their places, must be flushed.
    unflushed: BTreeSet<u32>,
}

/// Counters of a log since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ZilStats {
    /// Commits asked for.
    pub commits: u64,
    /// Times blocks were written and flushed, each for all commits that waited.
    pub batches: u64,
    /// Of these, begun while others were under way.
    pub overlapped: u64,
    /// Times commits became durable with their group, since a device failed the log.
    pub fallbacks: u64,
    /// Times they did, since there was no room for log blocks or the chain had to begin anew.
    pub stalls: u64,
    /// Records written.
    pub records: u64,
    /// Of these, writes that hold a copy of their data.
    pub copied: u64,
    /// Bytes of that data.
    pub copied_bytes: u64,
    /// Of the records, writes that point to their block instead.
    pub indirect: u64,
    /// Bytes of those blocks.
    pub indirect_bytes: u64,
    /// Log blocks on the devices of the data.
    pub normal: LogBlocks,
    /// Log blocks on log devices.
    pub separate: LogBlocks,
}

impl ZilStats {
    /// Returns all log blocks.
    #[must_use]
    pub fn blocks(&self) -> LogBlocks {
        let mut sum = self.normal;
        sum.add(&self.separate);
        sum
    }

    /// Adds the counters of another log.
    pub fn add(&mut self, other: &Self) {
        self.commits += other.commits;
        self.batches += other.batches;
        self.overlapped += other.overlapped;
        self.fallbacks += other.fallbacks;
        self.stalls += other.stalls;
        self.records += other.records;
        self.copied += other.copied;
        self.copied_bytes += other.copied_bytes;
        self.indirect += other.indirect;
        self.indirect_bytes += other.indirect_bytes;
        self.normal.add(&other.normal);
        self.separate.add(&other.separate);
    }
}

/// Log blocks written, and what they took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogBlocks {
    /// How many.
    pub count: u64,
    /// Bytes of headers and records in them.
    pub used_bytes: u64,
    /// Bytes written: the former, in whole pages.
    pub written_bytes: u64,
    /// Bytes set aside.
    pub allocated_bytes: u64,
}

impl LogBlocks {
    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.used_bytes += other.used_bytes;
        self.written_bytes += other.written_bytes;
        self.allocated_bytes += other.allocated_bytes;
    }
}

/// What the sync of a group leaves to do.
#[derive(Debug, Default)]
pub struct SyncOutcome {
    /// Blocks that are no longer needed, to be freed in the group.
    pub freed: Vec<BlockPointer>,
    /// The group's header is the first that points to a log.
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
    /// Opens the log of an objset; one per objset. A claimed log in its header waits for [`Zilog::replay`], or goes with
    /// the next sync if it is empty.
    #[must_use]
    pub fn new(objset: &Objset) -> Self {
        if !crate::is_own(&objset.zil_header(), objset.id()) {
            objset.discard_zil_header();
        }
        let services = objset.services();
        let log = Self(Rc::new(Inner {
            handle: services.handle.clone(),
            objset: objset.clone(),
            store: services.store().clone(),
            clock: services.clock.clone(),
            pending: RefCell::default(),
            chain: RefCell::default(),
            seq: Cell::new(0),
            sizes: RefCell::default(),
            durable: Cell::new(0),
            taken: Cell::new(0),
            placing: Cell::new(false),
            begun: Cell::new(0),
            ended: Cell::new(0),
            unreached: RefCell::default(),
            group: Cell::new(Txg(0)),
            crowd: RefCell::default(),
            written: Event::new("records to reach the intent log"),
            failed: RefCell::default(),
            unreplayed: Cell::new(false),
            replayed: RefCell::default(),
            discard: RefCell::default(),
            stats: RefCell::default(),
        }));
        log.header_changed();
        log
    }

    /// Takes note that the header in the objset is not what it was when the log was opened: claimed, or forgotten.
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

    /// Returns the size of a write from which its blocks go to their place at a commit, and only pointers into the log: any,
    /// if throughput counts more than latency; long ones, when the log shares its vdevs with the data; else none.
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

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> ZilStats {
        *self.0.stats.borrow()
    }

    /// Returns how many records are in memory: those no commit has asked for, and those waiting to be written.
    #[must_use]
    pub fn backlog(&self) -> (usize, usize) {
        self.0.pending.borrow().counts()
    }

    /// Whether blocks of the log are on disk or set aside.
    #[must_use]
    pub fn has_chain(&self) -> bool {
        !self.0.chain.borrow().is_empty() || self.0.discard.borrow().is_some()
    }

    /// Whether blocks of the log may lie on a top-level vdev, set aside or written. Those of a log that waits for its replay
    /// may lie anywhere.
    #[must_use]
    pub fn may_be_on(&self, vdev: u32) -> bool {
        let inner = &self.0;
        let discard = inner.discard.borrow();
        let old = discard.iter().flat_map(|(_, blocks)| blocks);
        inner.unreplayed.get()
            || inner.chain.borrow().is_on(vdev)
            || old
                .flat_map(BlockPointer::copies)
                .any(|dva| dva.vdev == vdev)
    }

    /// Whether the log of an earlier session waits for [`Zilog::replay`]. Until then nothing may be changed.
    #[must_use]
    pub fn needs_replay(&self) -> bool {
        self.0.unreplayed.get()
    }

    /// Takes note of a change made under `tx`. Call it before the transaction ends, in the order of the changes. What does
    /// not fit a log block, and is no write, becomes durable with its group.
    pub fn append(&self, scope: ItxKind, intent: Intent, tx: &Tx) {
        let splits = matches!(intent, Intent::Write { .. });
        let fits = splits || (intent.size() <= RECORD_MAX && !intent.is_unlogged());
        let intent = if fits { intent } else { Intent::Unlogged };
        self.0.pending.borrow_mut().append(scope, intent, tx.txg());
    }

    /// Drops the records of an object that is gone for good, as far as no commit has asked for them: its number may
    /// come back for another object.
    pub fn remove_async(&self, object: ObjectId) {
        self.0.pending.borrow_mut().remove_async(object);
    }

    /// Has every commit write what was appended for an object so far, as if it were changes of names: one that follows
    /// depends on it.
    pub fn async_to_sync(&self, object: ObjectId) {
        self.0.pending.borrow_mut().async_to_sync(object);
    }

    /// Makes durable what was appended so far: all changes of names, and those of one object, or of all. Never call it
    /// while holding a transaction.
    ///
    /// Commits that arrive while others are being written go to disk together, some of them before the others are there. None
    /// returns before all that were written before it.
    ///
    /// # Errors
    /// When not even the transaction group can be synced: the pool is suspended for good or was closed.
    pub async fn commit(&self, object: Option<ObjectId>) -> Result<()> {
        let inner = &self.0;
        inner.stats.borrow_mut().commits += 1;
        let target = inner.pending.borrow_mut().choose(object);
        if target > inner.taken.get() {
            inner.crowd.borrow_mut().waiting += 1;
        }
        loop {
            if inner.durable.get() >= target {
                return Ok(());
            }
            if let Some(error) = inner.failed.borrow().clone() {
                return Err(error);
            }
            if target <= inner.taken.get() || !inner.may_begin() {
                inner.written.wait().await;
                continue;
            }
            inner.placing.set(true);
            // Who called in the same moment: a batch costs a write and a flush, however many are in it.
            if inner.crowd.borrow().expects_more() {
                inner.handle.yield_now().await;
            }
            // Apart: one request of a group writes, the state of all would have room for it.
            let write = Box::pin(inner.write_batch());
            let result = runtime::waiting_as("records to reach the intent log", write).await;
            if let Err(error) = result {
                *inner.failed.borrow_mut() = Some(error);
            }
            inner.written.notify_all();
        }
    }

    /// Starts the replay of a claimed log. Nothing may be appended before its end.
    #[must_use]
    pub fn replay(&self) -> ReplayStream {
        ReplayStream::new(self)
    }

    /// Takes note that the record `seq` took effect under `tx`.
    pub fn replayed(&self, seq: u64, tx: &Tx) {
        let mut replayed = self.0.replayed.borrow_mut();
        let newest = replayed.entry(tx.txg()).or_insert(0);
        *newest = seq.max(*newest);
    }

    /// Has the log on disk given up as soon as all groups it holds records of have synced. It begins anew with the next
    /// commit. Does not wait.
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

    /// Gives the log up, when nobody changes the objset any more: on return no block of it is left and the header on
    /// disk is empty. An unreplayed log is kept.
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
        // Somebody commits all the time: the log is in use, and stays.
        Ok(())
    }

    /// Frees a replayed log with the next group.
    pub(crate) async fn discard(&self, blocks: Vec<BlockPointer>) -> Result<()> {
        // Of all groups that can have replayed something, the open one is the newest.
        let after = self.0.clock.open_txg();
        *self.0.discard.borrow_mut() = Some((after, blocks));
        self.0.clock.wait_synced(after).await?;
        self.0.unreplayed.set(false);
        Ok(())
    }

    /// Returns the blocks of a log that was never replayed, for its dataset goes.
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
    /// Once per group, in its first pass.
    pub fn sync(&self, txg: Txg, tx: &Tx) -> SyncOutcome {
        let inner = &self.0;
        let old = inner.objset.zil_header();
        let mut header = old;
        let mut outcome = SyncOutcome::default();
        {
            let mut replayed = inner.replayed.borrow_mut();
            let later = replayed.split_off(&txg.next());
            let newest = std::mem::replace(&mut *replayed, later).into_values().max();
            header.replay_seq = header.replay_seq.max(newest.unwrap_or(0));
        }
        let mut chain = inner.chain.borrow_mut();
        let due = inner
            .discard
            .borrow()
            .as_ref()
            .is_some_and(|(after, _)| *after <= txg);
        // Nobody writes to a broken chain, though who broke it may wait for this group; nor to none, though who begins one
        // waits until the old one is gone.
        let in_use = inner.placing.get() || inner.begun.get() != inner.ended.get();
        let may_go = chain.broken || (due && (!in_use || chain.is_empty()));
        if may_go && let Some(blocks) = chain.take_all(txg) {
            outcome.freed = blocks;
            if due && let Some((_, old)) = inner.discard.borrow_mut().take() {
                outcome.freed.extend(old);
            }
            // What waits for its replay is not this session's.
            if due || !inner.unreplayed.get() {
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
            inner.objset.set_zil_header(header, tx);
        }
        outcome
    }

    /// Tells the log that `txg` is on disk: its records are no longer needed.
    pub fn synced(&self, txg: Txg) {
        self.0.pending.borrow_mut().synced(txg);
    }
}

impl Inner {
    /// Whether a commit may begin a batch of its own now, for all who wait. While others are under way only one that is
    /// worth it: a log that many use would else be written for each of them alone.
    fn may_begin(&self) -> bool {
        let under_way = self.begun.get() - self.ended.get();
        // One that is to be given up needs a moment without any.
        let most = if self.discard.borrow().is_some() {
            1
        } else {
            BATCHES_AT_ONCE
        };
        !self.placing.get()
            && under_way < most
            && (under_way == 0 || self.crowd.borrow().is_worth_a_batch())
    }

    /// Makes everything chosen so far durable: by the log, else by its groups. Ends after all batches begun before.
    async fn write_batch(&self) -> Result<()> {
        let (mut entries, end) = self.pending.borrow_mut().take_queue();
        let number = self.begun.get() + 1;
        let is_beside = self.begun.replace(number) != self.ended.get();
        self.stats.borrow_mut().overlapped += u64::from(is_beside);
        self.taken.set(end);
        let commits = self.crowd.borrow_mut().begin();
        let newest = entries.iter().map(|entry| entry.txg).max();
        let unlogged = entries.iter().any(|entry| entry.intent.is_unlogged());
        let size: usize = entries.iter().map(|entry| entry.intent.size()).sum();
        let placed = match newest {
            // All or nothing: what follows a change without a record must not be found without it.
            Some(newest) if unlogged || size > COMMIT_BYTES_MAX => {
                let synced = self.clock.wait_synced(newest).await;
                synced.map(|()| None).map_err(ZilError::from)
            }
            Some(_) => match self.place(&mut entries, number).await {
                Ok(placed) => Ok(placed),
                Err(reason) => {
                    self.broke(number, &reason);
                    Ok(None)
                }
            },
            None => Ok(None),
        };
        self.placing.set(false);
        if self.may_begin() {
            self.written.notify_all();
        }
        let result = placed;
        if let Ok(Some(placed)) = &result
            && let Err(reason) = self.write_placed(placed).await
        {
            self.broke(number, &reason);
        }
        // With its transaction: if the chain broke before this batch, who waits for its turn waits for their group.
        let mut result = result.map(drop);
        self.turn(number).await;
        if self.unreached.borrow_mut().remove(&number)
            && let (Ok(()), Some(newest)) = (&result, newest)
        {
            result = self.clock.wait_synced(newest).await.map_err(Into::into);
        }
        if result.is_ok() {
            self.durable.set(end);
        }
        self.ended.set(number);
        self.crowd.borrow_mut().end(commits);
        result
    }

    /// Waits until all batches before this one are over.
    async fn turn(&self, number: u64) {
        while self.ended.get() + 1 < number {
            self.written.wait().await;
        }
    }

    /// Takes note that a batch is not in the log. The chain ends before it for whoever reads it, so nothing may be added, and
    /// what follows is not found either.
    fn broke(&self, number: u64, reason: &ZilError) {
        self.chain.borrow_mut().broken = true;
        let lost = number..=self.begun.get();
        self.unreached.borrow_mut().extend(lost);
        let mut stats = self.stats.borrow_mut();
        if reason.is_want_of_room() {
            stats.stalls += 1;
        } else {
            stats.fallbacks += 1;
        }
    }

    /// Gives records their places in the chain, after those of all batches begun before. Blocks too many to be in memory at
    /// once are written already.
    async fn place(&self, entries: &mut VecDeque<Entry>, number: u64) -> Result<Option<Placed>> {
        // Until the last block is durable this transaction keeps the group open in which the blocks of this batch are set
        // aside: were it synced before, a crash would leave blocks allocated that no chain leads to. When one cannot be
        // written, this very group gives the chain back: that of all batches under way.
        let tx = loop {
            self.begin_chain().await?;
            let tx = self.clock.begin_now()?;
            if self.ended.get() + 1 == number || self.group.replace(tx.txg()) == tx.txg() {
                break tx;
            }
            drop(tx);
            self.turn(number).await;
        };
        self.group.set(tx.txg());
        let synced = self.clock.last_synced();
        entries.retain(|entry| entry.txg > synced);
        if entries.is_empty() {
            return Ok(None);
        }
        let mut vdevs = self.write_early(entries, &tx).await?;
        let asked: usize = entries.iter().map(|entry| entry.intent.size()).sum();
        self.sizes.borrow_mut().note(asked);
        let logs = self.store.log_vdevs();
        let mut left: usize = entries.iter().map(|entry| entry.intent.size()).sum();
        let mut blocks: Vec<(BlockPointer, IoBuf)> = Vec::new();
        let mut written: Vec<BlockPointer> = Vec::new();
        loop {
            let bp = self.chain.borrow().last().ok_or(ZilError::Broken)?;
            let size = usize::try_from(bp.psize()).map_err(|_| ZilError::Broken)?;
            let mut seq = self.seq.get();
            let mut filled = pack::fill(entries, size, &mut seq);
            let records = seq - self.seq.replace(seq);
            left = left.saturating_sub(filled.used);
            let next = if entries.is_empty() {
                self.sizes.borrow().next()
            } else {
                pack::block_size(left.max(entries[0].intent.size()))
            };
            self.chain.borrow_mut().filled(&bp, filled.newest);
            let id = ChainId::of(&bp);
            // Before the block is written: it carries the place of the next one.
            let next = self.set_aside(next, id.next(), &tx).await?;
            let fletcher4 =
                |data: &[u8]| codec::checksum::compute(Algorithm::Fletcher4, &[0; 32], data);
            LogBlock::seal(&mut filled.bytes, id, &next, filled.used, fletcher4);
            let bytes = filled.bytes.freeze();
            {
                let mut stats = self.stats.borrow_mut();
                stats.records += records;
                stats.copied += filled.copied;
                stats.copied_bytes += filled.copied_bytes;
                let counted = if logs.contains(&bp.dvas()[0].vdev) {
                    &mut stats.separate
                } else {
                    &mut stats.normal
                };
                counted.count += 1;
                counted.used_bytes += filled.used as u64;
                counted.written_bytes += bytes.len() as u64;
                counted.allocated_bytes += bp.psize();
            }
            blocks.push((bp, bytes));
            if entries.is_empty() {
                break;
            }
            if blocks.len() == BLOCKS_AT_ONCE {
                self.write_blocks(&blocks).await?;
                written.extend(blocks.drain(..).map(|(bp, _)| bp));
            }
        }
        vdevs.extend(written.iter().map(|bp| bp.dvas()[0].vdev));
        Ok(Some(Placed {
            _tx: tx,
            blocks,
            written,
            unflushed: vdevs,
        }))
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
    async fn write_placed(&self, placed: &Placed) -> Result<()> {
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
            chain.durable(bp);
        }
        self.stats.borrow_mut().batches += 1;
        Ok(())
    }

    /// Writes whole blocks of `tx`'s group to their place, as far as their writers allow it, and leaves pointers to them in
    /// their records' stead. Returns the vdevs that have to be flushed for it.
    async fn write_early(&self, entries: &mut VecDeque<Entry>, tx: &Tx) -> Result<BTreeSet<u32>> {
        let mut vdevs = BTreeSet::new();
        if !entries
            .iter()
            .any(|entry| entry.intent.whole_blocks().is_some())
            || self.is_nearly_full(0)
        {
            return Ok(vdevs);
        }
        let mut cut: VecDeque<Entry> = VecDeque::new();
        for entry in entries.drain(..) {
            match entry.intent.whole_blocks() {
                Some(blocks) if entry.txg == tx.txg() => cut.extend(entry.cut(blocks)),
                _ => cut.push_back(entry),
            }
        }
        *entries = cut;
        let mut failure = None;
        let parts = entries.make_contiguous();
        for some in parts.chunks_mut(BLOCKS_AT_ONCE) {
            let written = some
                .iter()
                .map(|entry| self.write_block_early(&entry.intent, tx));
            let written = runtime::join_all(written).await;
            for (entry, result) in std::iter::zip(some, written) {
                match result {
                    Ok(Some((object, offset, bp))) => {
                        vdevs.extend(bp.copies().map(|dva| dva.vdev));
                        {
                            let mut stats = self.stats.borrow_mut();
                            stats.indirect += 1;
                            stats.indirect_bytes += bp.lsize();
                        }
                        entry.intent = Intent::Indirect { object, offset, bp };
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

    /// Whether so many bytes more could take what writing out the group needs: what is dirty, and a part of what is kept back
    /// for changes of metadata.
    fn is_nearly_full(&self, size: u64) -> bool {
        let space = self.store.space();
        let kept = space.slop / 2 + self.clock.dirty_bytes_total();
        space.free < kept.saturating_add(size)
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
            self.set_aside(size, id, &tx).await?
        };
        // The header is part of the objset's block: it gets there with a group.
        Ok(self.clock.wait_synced(first.birth()).await?)
    }

    /// Sets a block aside in the group of `tx`, and puts it at the end of the chain.
    async fn set_aside(&self, size: u64, id: ChainId, tx: &Tx) -> Result<BlockPointer> {
        // The log of a nearly full pool is on its log vdevs or nowhere. Without a log block, commits wait for the group.
        let anywhere = !self.is_nearly_full(size);
        let mut bp = self.store.allocate_log(tx.txg(), size, anywhere).await?;
        bp.set_checksum(id.words());
        self.chain.borrow_mut().push(bp);
        Ok(bp)
    }
}
