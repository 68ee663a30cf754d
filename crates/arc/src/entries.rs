//! The cache's entries: the forms a block is held in, and how the bytes stay below the limit.
//!
//! A block that is stored compressed is held so, and decompressed as long as there is room: when bytes are needed, the oldest
//! decompressed forms go first, down to a quarter of the cache; only then blocks go.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use ondisk::{BlockPointer, Compression, ObjectType};
use runtime::IoBuf;

use crate::identity::{Identity, is_metadata};
use crate::policy::{Found, List, NewEntry, PREFETCHED, Policy};
use crate::stats::CacheStats;
use crate::whatif::Models;
use crate::{BlockKinds, CacheTuning, InFlightRead};

/// Bytes charged for an entry besides its block: node, forms, its share of the index, what the allocator adds.
pub(crate) const OVERHEAD_BYTES: usize = 224;
/// Memory of blocks comes in pages.
const PAGE: usize = 4096;

/// A block in memory.
pub(crate) struct CachedBlock {
    /// The logical bytes.
    pub(crate) open: Option<IoBuf>,
    /// The stored bytes, of a block that is compressed and smaller for it in memory, or encrypted.
    pub(crate) stored: Option<IoBuf>,
    pub(crate) lsize: u32,
    pub(crate) facts: BlockFacts,
    /// Names the body in the queue of those held in both forms.
    ticket: u64,
    /// Used since the queue was last looked at.
    used: bool,
}

/// What a cache device's log says of a block, and whether it may go there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockFacts {
    /// Allocated 512-byte sectors of its first copy.
    pub(crate) sectors: u32,
    pub(crate) gang: bool,
    pub(crate) compression: u8,
    /// What is stored is encrypted: only that may leave memory.
    pub(crate) encrypted: bool,
    /// It may go there.
    pub(crate) second_level: bool,
}

impl BlockFacts {
    pub(crate) fn of(bp: &BlockPointer, devices: BlockKinds) -> Self {
        let dva = bp.dvas()[0];
        let is_of_dnodes = bp.object_type() == ObjectType::DNODE && bp.level() == 0;
        Self {
            sectors: u32::try_from(dva.asize >> 9).unwrap_or(u32::MAX),
            gang: dva.gang,
            compression: bp.compression().0,
            encrypted: bp.is_wholly_encrypted() || (bp.uses_crypt() && is_of_dnodes),
            second_level: devices.has(bp),
        }
    }
}

impl CachedBlock {
    /// The bytes as devices have them, if they are in memory.
    pub(crate) fn on_disk(&self) -> Option<&IoBuf> {
        if self.facts.compression == Compression::OFF.0 && !self.facts.encrypted {
            self.open.as_ref()
        } else {
            self.stored.as_ref()
        }
    }

    /// Bytes charged for the decompressed form of a block that has another.
    fn spare(&self) -> usize {
        match (&self.open, &self.stored) {
            (Some(open), Some(_)) => charge(open),
            _ => 0,
        }
    }

    fn charge(&self) -> usize {
        let form = |buf: &Option<IoBuf>| buf.as_ref().map_or(0, charge);
        form(&self.open) + form(&self.stored) + OVERHEAD_BYTES
    }
}

/// Memory that a buffer is charged with: all of what it keeps, or its pages when it shares a larger buffer with others (blocks
/// of one write, which come and go together).
pub(crate) fn charge(buf: &IoBuf) -> usize {
    let memory = buf.memory_bytes();
    if memory <= 2 * buf.len() {
        memory
    } else {
        buf.len().next_multiple_of(PAGE)
    }
}

/// What a look-up found.
pub(crate) enum Hit {
    /// The logical bytes.
    Decompressed(IoBuf),
    /// Compressed bytes.
    Stored(IoBuf),
}

pub(crate) struct Entries {
    pub(crate) tuning: CacheTuning,
    /// The limit now, at most that of the tuning.
    pub(crate) limit: usize,
    pub(crate) policy: Policy<Box<CachedBlock>>,
    pub(crate) reads: BTreeMap<Identity, Rc<InFlightRead>>,
    pub(crate) models: Models,
    pub(crate) stats: CacheStats,
    /// Blocks held in both forms, those that came first in front: place and ticket.
    both: VecDeque<(u32, u64)>,
    /// Bytes of the decompressed forms of those.
    pub(crate) spare_bytes: usize,
    next_ticket: u64,
    /// Bytes being read ahead.
    pub(crate) prefetching: usize,
    /// Recent fate of what was read ahead, fading.
    useful: u32,
    wasted: u32,
    /// Stored bytes are kept even if that saves nothing: cache devices take blocks as they are stored.
    pub(crate) keep_stored: bool,
    /// Bytes of the index of cache devices.
    index_bytes: usize,
}

impl Entries {
    pub(crate) fn new(tuning: CacheTuning) -> Self {
        let limit = tuning.limit_bytes;
        let correlated_ms = tuning.correlated_ms;
        Self {
            tuning,
            limit,
            policy: Policy::new(limit, correlated_ms),
            reads: BTreeMap::new(),
            models: Models::new(limit, correlated_ms),
            stats: CacheStats::default(),
            both: VecDeque::new(),
            spare_bytes: 0,
            next_ticket: 0,
            prefetching: 0,
            useful: 0,
            wasted: 0,
            keep_stored: false,
            index_bytes: 0,
        }
    }

    /// Bytes charged against the limit.
    pub(crate) fn bytes(&self) -> usize {
        self.policy.bytes() + self.policy.ghost_overhead() + self.models.bytes() + self.index_bytes
    }

    /// Charges the memory of the index of cache devices.
    pub(crate) fn charge_index(&mut self, bytes: usize) {
        self.index_bytes = bytes;
        self.make_room(0);
    }

    /// Finds a block (with `open_only`, one that is held decompressed) and notes that it is used. Nothing is allocated.
    pub(crate) fn look_up(
        &mut self,
        identity: &Identity,
        open_only: bool,
        now_ms: impl Fn() -> u32,
    ) -> Option<Hit> {
        let Found::Resident(at) = self.policy.find(identity) else {
            return None;
        };
        if open_only && self.policy.payload(at).open.is_none() {
            return None;
        }
        let used = self.policy.touch(at, &now_ms);
        let metadata = self.policy.is_metadata(at);
        self.stats.hits.count(false, metadata);
        if used.list == List::Recent {
            self.stats.recent_hits += 1;
        } else {
            self.stats.frequent_hits += 1;
        }
        let body = self.policy.payload_mut(at);
        body.used = true;
        let lsize = body.lsize as usize;
        if used.promoted
            && let Some(open) = &body.open
            && open.memory_bytes() > 2 * open.len()
        {
            // It stays longer than the blocks it shares memory with.
            body.open = Some(IoBuf::copy_from(open));
        }
        let hit = match (&body.open, &body.stored) {
            (Some(open), _) => Hit::Decompressed(open.clone()),
            (None, Some(stored)) => Hit::Stored(stored.clone()),
            (None, None) => unreachable!("a block is held in some form"),
        };
        if used.was_prefetched {
            self.prefetch_ended(lsize, true);
        }
        let hash = identity.hash();
        if self.models.is_sampled(hash) {
            self.models.read(identity, lsize, metadata, now_ms());
        }
        Some(hit)
    }

    /// Finds a block for read-ahead, which is no use of it.
    pub(crate) fn look_at(&mut self, identity: &Identity) -> Option<Hit> {
        let Found::Resident(at) = self.policy.find(identity) else {
            return None;
        };
        self.stats.hits.count(true, self.policy.is_metadata(at));
        let body = self.policy.payload(at);
        match (&body.open, &body.stored) {
            (Some(open), _) => Some(Hit::Decompressed(open.clone())),
            (None, stored) => stored.clone().map(Hit::Stored),
        }
    }

    /// Counts a block that was asked for while it was being read ahead.
    pub(crate) fn note_late_prefetch(&mut self) {
        self.stats.prefetch_useful += 1;
        self.useful += 1;
    }

    /// Counts a read that memory does not answer.
    pub(crate) fn note_miss(
        &mut self,
        identity: &Identity,
        bp: &BlockPointer,
        prefetch: bool,
        now_ms: u32,
    ) {
        let metadata = is_metadata(bp);
        self.stats.misses.count(prefetch, metadata);
        if prefetch {
            return;
        }
        match self.policy.find(identity) {
            Found::Ghost(List::RecentGhost) => self.stats.recent_ghost_hits += 1,
            Found::Ghost(_) => self.stats.frequent_ghost_hits += 1,
            _ => {}
        }
        self.policy.note_ghost(identity);
        if self.models.is_sampled(identity.hash()) {
            let size = usize::try_from(bp.lsize()).unwrap_or(0);
            self.models.read(identity, size, metadata, now_ms);
        }
    }

    /// Keeps a block: its logical bytes, and those stored if it is compressed.
    pub(crate) fn insert(
        &mut self,
        identity: Identity,
        bp: &BlockPointer,
        facts: BlockFacts,
        (open, stored): (IoBuf, Option<IoBuf>),
        arrival: EntryOrigin,
        now_ms: u32,
    ) {
        self.remove(&identity);
        let keep = self.keep_stored;
        let stored = stored.filter(|stored| keep || charge(stored) < charge(&open));
        // A block larger than a quarter of the cache would only flush it.
        if open.len() > self.limit / 4 {
            return;
        }
        self.next_ticket += 1;
        let lsize = u32::try_from(open.len()).unwrap_or(u32::MAX);
        let body = CachedBlock {
            open: Some(open),
            stored,
            lsize,
            facts,
            ticket: self.next_ticket,
            used: false,
        };
        let (size, spare, ticket) = (body.charge(), body.spare(), body.ticket);
        self.make_room(size);
        let metadata = is_metadata(bp);
        let (at, _) = self.policy.admit(NewEntry {
            identity,
            payload: Box::new(body),
            size,
            metadata,
            flags: if arrival == EntryOrigin::ReadAhead {
                PREFETCHED
            } else {
                0
            },
            now_ms,
            demanded: arrival == EntryOrigin::Demanded,
        });
        self.stats.uncompressed_bytes += u64::from(lsize);
        if arrival == EntryOrigin::ReadAhead {
            self.stats.prefetch_unused_bytes += lsize as usize;
        }
        if arrival == EntryOrigin::Written && self.models.is_sampled(identity.hash()) {
            self.models
                .written(&identity, lsize as usize, metadata, now_ms);
        }
        if spare > 0 {
            self.spare_bytes += spare;
            self.queue(at, ticket);
        }
    }

    /// Keeps the decompressed form of a block that was only held compressed.
    pub(crate) fn opened(&mut self, identity: &Identity, open: &IoBuf) {
        self.stats.decompressions += 1;
        let Found::Resident(at) = self.policy.find(identity) else {
            return;
        };
        if self.policy.payload(at).open.is_some() {
            return;
        }
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        let body = self.policy.payload_mut(at);
        body.open = Some(open.clone());
        body.ticket = ticket;
        let (size, spare) = (body.charge(), body.spare());
        self.policy.resize(at, size);
        self.spare_bytes += spare;
        self.queue(at, ticket);
        self.make_room(0);
    }

    pub(crate) fn remove(&mut self, identity: &Identity) {
        if let Some((body, flags, _)) = self.policy.remove(identity) {
            self.gone(&body, flags);
        }
    }

    /// Drops what was opened with keys.
    pub(crate) fn remove_keyed(&mut self) {
        for identity in self.policy.residents(|identity| identity.keyed) {
            self.remove(&identity);
        }
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.policy.set_limit(limit);
        self.models.set_limit(limit);
        self.make_room(0);
    }

    /// Bytes that may be read ahead now.
    pub(crate) fn prefetch_room(&self) -> usize {
        let flying = (self.limit / 16).min(self.tuning.prefetch_bytes_max);
        // What was read ahead and is not used yet may not crowd out what is.
        let waiting = self.limit / 8;
        let waste = if self.wasted > 2 * self.useful {
            8
        } else if self.wasted > self.useful {
            2
        } else {
            1
        };
        let flying = (flying / waste).saturating_sub(self.prefetching);
        let waiting = (waiting / waste).saturating_sub(self.stats.prefetch_unused_bytes);
        flying.min(waiting.saturating_sub(self.prefetching))
    }

    fn make_room(&mut self, bytes: usize) {
        while self.bytes() + bytes > self.limit {
            if self.spare_bytes > self.limit / 4 && self.close_oldest() {
                continue;
            }
            let Some(victim) = self.policy.evict() else {
                break;
            };
            self.stats.evictions += 1;
            self.stats.evicted_bytes += victim.size as u64;
            self.gone(&victim.payload, victim.flags);
        }
    }

    /// Gives up the oldest decompressed form that has another.
    fn close_oldest(&mut self) -> bool {
        while let Some((at, ticket)) = self.both.pop_front() {
            let Some(body) = self.policy.resident(at) else {
                continue;
            };
            if body.ticket != ticket || body.open.is_none() {
                continue;
            }
            let body = self.policy.payload_mut(at);
            if std::mem::take(&mut body.used) {
                self.both.push_back((at, ticket));
                continue;
            }
            self.spare_bytes -= body.spare();
            body.open = None;
            let size = body.charge();
            self.policy.resize(at, size);
            return true;
        }
        false
    }

    fn queue(&mut self, at: u32, ticket: u64) {
        self.both.push_back((at, ticket));
        if self.both.len() > 2 * self.policy.len() + 1024 {
            let policy = &self.policy;
            self.both.retain(|&(at, ticket)| {
                policy
                    .resident(at)
                    .is_some_and(|body| body.ticket == ticket && body.spare() > 0)
            });
        }
    }

    /// Takes a block that left out of the sums.
    fn gone(&mut self, body: &CachedBlock, flags: u8) {
        self.spare_bytes -= body.spare();
        self.stats.uncompressed_bytes -= u64::from(body.lsize);
        if flags & PREFETCHED != 0 {
            self.prefetch_ended(body.lsize as usize, false);
        }
    }

    fn prefetch_ended(&mut self, lsize: usize, useful: bool) {
        let unused = &mut self.stats.prefetch_unused_bytes;
        *unused = unused.saturating_sub(lsize);
        if useful {
            self.stats.prefetch_useful += 1;
            self.useful += 1;
        } else {
            self.stats.prefetch_wasted += 1;
            self.wasted += 1;
        }
        if self.useful + self.wasted > 1024 {
            self.useful /= 2;
            self.wasted /= 2;
        }
    }
}

/// How a block came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryOrigin {
    /// It was read.
    Demanded,
    /// It was read ahead.
    ReadAhead,
    /// It was written.
    Written,
}
