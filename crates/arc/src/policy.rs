//! The replacement policy: adaptive replacement over two kinds of blocks.
//!
//! ```text
//!            forgotten <- ghosts seen once | recent     frequent | ghosts seen again -> forgotten
//!   each for data and for metadata         <- evicted            evicted ->
//! ```
//!
//! A block enters as *recent*; used again (later than a correlated use) it becomes *frequent*. Evicted blocks leave ghosts: identity
//! and size without bytes. A miss that finds a ghost says which list was too small, and moves the target between the two
//! lists (Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003), here in bytes. Ghosts also move the
//! target between data and metadata.
//!
//! Guarantees: a use of a resident entry allocates nothing and takes constant time; ghosts are bounded by the bytes of the cache.
//! Does not know what an entry holds: bytes in the cache, nothing in a model of another size.

use crate::identity::Identity;
use crate::index::Index;

/// No entry.
const NONE: u32 = u32::MAX;
/// Lists of one kind of block.
const LISTS: usize = 4;
/// A miss of metadata holds up everything below it, so it moves the target by so much more.
// OpenZFS: module/zfs/arc.c, zfs_arc_meta_balance (500 percent)
const METADATA_WEIGHT: u64 = 4;
/// Bytes charged for a ghost: a node and its share of the index.
pub(crate) const GHOST_BYTES: usize = 88;

/// Set while a block has been read ahead and not been used yet.
pub(crate) const PREFETCHED: u8 = 1;

/// The lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum List {
    Recent = 0,
    Frequent = 1,
    RecentGhost = 2,
    FrequentGhost = 3,
}

impl List {
    const ALL: [Self; LISTS] = [
        Self::Recent,
        Self::Frequent,
        Self::RecentGhost,
        Self::FrequentGhost,
    ];

    fn is_ghost(self) -> bool {
        matches!(self, Self::RecentGhost | Self::FrequentGhost)
    }
}

/// One entry, resident or ghost. A cache line when the payload is a pointer.
struct Node<T> {
    identity: Identity,
    /// `None` for ghosts and free nodes.
    payload: Option<T>,
    size: u32,
    newer: u32,
    older: u32,
    /// When it became recent, in milliseconds.
    arrived: u32,
    list: List,
    metadata: bool,
    flags: u8,
    in_use: bool,
}

#[derive(Clone, Copy)]
struct Ends {
    newest: u32,
    oldest: u32,
    bytes: u64,
    count: u64,
}

const EMPTY: Ends = Ends {
    newest: NONE,
    oldest: NONE,
    bytes: 0,
    count: 0,
};

/// Where a block was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// Its entry.
    Resident(u32),
    /// It was evicted not long ago, from the list of the same name.
    Ghost(List),
    /// Never seen, or long ago.
    Nowhere,
}

/// What a use of a resident entry did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Use {
    /// The list it was found in.
    pub(crate) list: List,
    /// It was read ahead, and this is its first use.
    pub(crate) was_prefetched: bool,
    /// It became frequent with this use.
    pub(crate) promoted: bool,
}

/// An entry to be admitted.
pub(crate) struct NewEntry<T> {
    pub(crate) identity: Identity,
    pub(crate) payload: T,
    /// Bytes charged.
    pub(crate) size: usize,
    pub(crate) metadata: bool,
    /// [`PREFETCHED`] or 0.
    pub(crate) flags: u8,
    pub(crate) now_ms: u32,
    /// It was asked for: a ghost counts, and becomes frequent.
    pub(crate) demanded: bool,
}

/// An entry that was evicted.
pub(crate) struct Victim<T> {
    pub(crate) payload: T,
    pub(crate) size: usize,
    pub(crate) flags: u8,
}

/// The entries of a cache and the decision which of them goes next.
pub(crate) struct Policy<T> {
    nodes: Vec<Node<T>>,
    free: Vec<u32>,
    index: Index,
    /// Data, then metadata.
    ends: [[Ends; LISTS]; 2],
    /// Target of the recent list, in bytes, by kind.
    recent_target: [u64; 2],
    metadata_target: u64,
    limit: u64,
    /// Uses closer than this to the arrival are one use.
    correlated_ms: u32,
    /// The last ghost hit was in the frequent ghosts of this kind: a tie goes against the recent list.
    tie_against_recent: [bool; 2],
}

impl<T> Policy<T> {
    pub(crate) fn new(limit: usize, correlated_ms: u32) -> Self {
        let limit = limit as u64;
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
            index: Index::default(),
            ends: [[EMPTY; LISTS]; 2],
            recent_target: [0; 2],
            metadata_target: limit / 4,
            limit,
            correlated_ms,
            tie_against_recent: [false; 2],
        }
    }

    /// Bytes of resident entries.
    pub(crate) fn bytes(&self) -> usize {
        to_usize(self.kind_bytes(0) + self.kind_bytes(1))
    }

    /// Bytes charged for ghosts.
    pub(crate) fn ghost_overhead(&self) -> usize {
        to_usize(self.ghosts()) * GHOST_BYTES
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        to_usize(self.kind_bytes(1))
    }

    /// Resident entries.
    pub(crate) fn len(&self) -> usize {
        let count = |kind: &[Ends; LISTS]| kind[0].count + kind[1].count;
        to_usize(count(&self.ends[0]) + count(&self.ends[1]))
    }

    pub(crate) fn ghosts(&self) -> u64 {
        self.ends
            .iter()
            .map(|kind| kind[2].count + kind[3].count)
            .sum()
    }

    /// Bytes in a list of both kinds; of ghosts those they had.
    pub(crate) fn list_bytes(&self, list: List, metadata: bool) -> u64 {
        self.ends[usize::from(metadata)][list as usize].bytes
    }

    /// Target of the recent list, by kind, and of metadata, in bytes.
    pub(crate) fn targets(&self) -> ([u64; 2], u64) {
        (self.recent_target, self.metadata_target)
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        let limit = limit as u64;
        let scale = |target: u64| {
            let scaled = u128::from(target) * u128::from(limit) / u128::from(self.limit.max(1));
            u64::try_from(scaled).unwrap_or(limit).min(limit)
        };
        self.recent_target = self.recent_target.map(scale);
        self.metadata_target = scale(self.metadata_target);
        self.limit = limit;
        for metadata in [false, true] {
            self.trim_ghosts(metadata);
        }
    }

    /// Finds a block without using it.
    pub(crate) fn find(&self, identity: &Identity) -> Found {
        let at = self.index.find(identity.hash(), |at| {
            self.nodes[at as usize].identity == *identity
        });
        match at {
            Some(at) if self.nodes[at as usize].list.is_ghost() => {
                Found::Ghost(self.nodes[at as usize].list)
            }
            Some(at) => Found::Resident(at),
            None => Found::Nowhere,
        }
    }

    pub(crate) fn payload(&self, at: u32) -> &T {
        let payload = self.nodes[at as usize].payload.as_ref();
        payload.expect("the place of a resident entry")
    }

    pub(crate) fn payload_mut(&mut self, at: u32) -> &mut T {
        let payload = self.nodes[at as usize].payload.as_mut();
        payload.expect("the place of a resident entry")
    }

    /// The entry at a place if it is resident: places of queues may be out of date.
    pub(crate) fn resident(&self, at: u32) -> Option<&T> {
        self.nodes.get(at as usize)?.payload.as_ref()
    }

    pub(crate) fn is_metadata(&self, at: u32) -> bool {
        self.nodes[at as usize].metadata
    }

    /// Notes a use of a resident entry.
    pub(crate) fn touch(&mut self, at: u32, now_ms: impl FnOnce() -> u32) -> Use {
        let node = &mut self.nodes[at as usize];
        let list = node.list;
        let kind = usize::from(node.metadata);
        let was_prefetched = node.flags & PREFETCHED != 0;
        let mut done = Use {
            list,
            was_prefetched,
            promoted: false,
        };
        if list == List::Frequent {
            if self.ends[kind][List::Frequent as usize].newest != at {
                self.unlink(at);
                self.link(at, List::Frequent);
            }
            return done;
        }
        let now = now_ms();
        if was_prefetched {
            // The first real use: it is recent from now on, as if it had been read now.
            node.flags &= !PREFETCHED;
            node.arrived = now;
            self.unlink(at);
            self.link(at, List::Recent);
        } else if now.wrapping_sub(node.arrived) >= self.correlated_ms {
            self.unlink(at);
            self.link(at, List::Frequent);
            done.promoted = true;
        }
        done
    }

    /// Adapts the targets to a miss of a block whose ghost was found. Call before room is made for it.
    pub(crate) fn note_ghost(&mut self, identity: &Identity) {
        let at = self.index.find(identity.hash(), |at| {
            self.nodes[at as usize].identity == *identity
        });
        let Some(at) = at else { return };
        let node = &self.nodes[at as usize];
        let (list, metadata, size) = (node.list, node.metadata, u64::from(node.size));
        if !list.is_ghost() {
            return;
        }
        let kind = usize::from(metadata);
        let ghosts = |list: List| self.ends[kind][list as usize].bytes.max(1);
        let (recent, frequent) = (ghosts(List::RecentGhost), ghosts(List::FrequentGhost));
        let target = self.recent_target[kind];
        self.recent_target[kind] = if list == List::RecentGhost {
            let step = size * (frequent / recent).max(1);
            (target + step).min(self.limit)
        } else {
            let step = size * (recent / frequent).max(1);
            target.saturating_sub(step)
        };
        self.tie_against_recent[kind] = list == List::FrequentGhost;
        let ghosts = |kind: usize| (self.ends[kind][2].bytes + self.ends[kind][3].bytes).max(1);
        let (data, meta) = (ghosts(0), ghosts(1));
        self.metadata_target = if metadata {
            let step = size * METADATA_WEIGHT * (data / meta).clamp(1, 64);
            self.metadata_target + step
        } else {
            let step = size * (meta / data).max(1);
            self.metadata_target.saturating_sub(step)
        }
        .clamp(self.limit / 16, self.limit / 16 * 15);
    }

    /// Adds an entry; an older one of the same identity is returned.
    pub(crate) fn admit(&mut self, arrival: NewEntry<T>) -> (u32, Option<T>) {
        let hash = arrival.identity.hash();
        let found = self.index.find(hash, |at| {
            self.nodes[at as usize].identity == arrival.identity
        });
        let mut list = List::Recent;
        let mut before = None;
        if let Some(at) = found {
            let old = self.nodes[at as usize].list;
            if old == List::Frequent || (old.is_ghost() && arrival.demanded) {
                list = List::Frequent;
            }
            before = self.release(at);
        }
        let node = Node {
            identity: arrival.identity,
            payload: Some(arrival.payload),
            size: u32::try_from(arrival.size).unwrap_or(u32::MAX),
            newer: NONE,
            older: NONE,
            arrived: arrival.now_ms,
            list,
            metadata: arrival.metadata,
            flags: arrival.flags,
            in_use: true,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).expect("fewer than 2^32 blocks fit in memory")
            }
        };
        self.index.insert(hash, at);
        self.link(at, list);
        (at, before)
    }

    /// Changes what an entry is charged with.
    pub(crate) fn resize(&mut self, at: u32, size: usize) {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let node = &mut self.nodes[at as usize];
        let old = std::mem::replace(&mut node.size, size);
        let ends = &mut self.ends[usize::from(node.metadata)][node.list as usize];
        ends.bytes = ends.bytes - u64::from(old) + u64::from(size);
    }

    /// Removes an entry or a ghost; returns what it held.
    pub(crate) fn remove(&mut self, identity: &Identity) -> Option<(T, u8, usize)> {
        let at = self.index.find(identity.hash(), |at| {
            self.nodes[at as usize].identity == *identity
        })?;
        let node = &self.nodes[at as usize];
        let (flags, size) = (node.flags, node.size as usize);
        self.release(at).map(|payload| (payload, flags, size))
    }

    /// Turns the least valuable entry into a ghost.
    pub(crate) fn evict(&mut self) -> Option<Victim<T>> {
        let bytes = [self.kind_bytes(0), self.kind_bytes(1)];
        let kind = match bytes {
            [0, 0] => return None,
            [0, _] => 1,
            [_, 0] => 0,
            [_, metadata] => usize::from(metadata > self.metadata_target),
        };
        let recent = self.ends[kind][List::Recent as usize].bytes;
        let target = self.recent_target[kind].min(bytes[kind]);
        let over = recent > target || (recent == target && self.tie_against_recent[kind]);
        let frequent_empty = self.ends[kind][List::Frequent as usize].oldest == NONE;
        let (from, to) = if recent > 0 && (over || frequent_empty) {
            (List::Recent, List::RecentGhost)
        } else {
            (List::Frequent, List::FrequentGhost)
        };
        let at = self.ends[kind][from as usize].oldest;
        self.unlink(at);
        let node = &mut self.nodes[at as usize];
        let victim = Victim {
            payload: node.payload.take().expect("a resident entry"),
            size: node.size as usize,
            flags: std::mem::take(&mut node.flags),
        };
        if victim.flags & PREFETCHED != 0 {
            // It was never used: its ghost would say nothing.
            let hash = self.nodes[at as usize].identity.hash();
            self.index.remove(hash, at);
            self.nodes[at as usize].in_use = false;
            self.free.push(at);
        } else {
            self.link(at, to);
            self.trim_ghosts(kind == 1);
        }
        Some(victim)
    }

    /// Calls `visit` with the entries next to be evicted from a list, oldest first, until it says false.
    pub(crate) fn oldest(
        &self,
        list: List,
        metadata: bool,
        mut visit: impl FnMut(&Identity, &T, u8) -> bool,
    ) {
        let mut at = self.ends[usize::from(metadata)][list as usize].oldest;
        while at != NONE {
            let node = &self.nodes[at as usize];
            if let Some(payload) = &node.payload
                && !visit(&node.identity, payload, node.flags)
            {
                return;
            }
            at = node.newer;
        }
    }

    /// The entries held that are `wanted`.
    pub(crate) fn residents(&self, wanted: impl Fn(&Identity) -> bool) -> Vec<Identity> {
        let held = self.nodes.iter().filter(|node| node.payload.is_some());
        let identities = held.map(|node| node.identity);
        identities.filter(|identity| wanted(identity)).collect()
    }

    /// Drops entries and ghosts that `keep` does not want.
    pub(crate) fn retain(&mut self, keep: impl Fn(&Identity) -> bool) {
        for at in 0..self.nodes.len() {
            if self.nodes[at].in_use && !keep(&self.nodes[at].identity) {
                self.release(u32::try_from(at).expect("places are 32 bits"));
            }
        }
    }

    fn kind_bytes(&self, kind: usize) -> u64 {
        self.ends[kind][0].bytes + self.ends[kind][1].bytes
    }

    /// Ghosts of one kind of recently used blocks and those blocks stay within the limit, and so do both kinds of ghosts.
    fn trim_ghosts(&mut self, metadata: bool) {
        let kind = usize::from(metadata);
        loop {
            let bytes = |list: List| self.ends[kind][list as usize].bytes;
            let seen_once = bytes(List::Recent) + bytes(List::RecentGhost);
            let all: u64 = List::ALL.iter().map(|&list| bytes(list)).sum();
            let list = if seen_once > self.limit && bytes(List::RecentGhost) > 0 {
                List::RecentGhost
            } else if all > 2 * self.limit && bytes(List::FrequentGhost) > 0 {
                List::FrequentGhost
            } else if self.ghosts() * GHOST_BYTES as u64 > self.limit / 16 {
                // Blocks of a sector or two: their ghosts would take what they are to save.
                if bytes(List::RecentGhost) >= bytes(List::FrequentGhost) {
                    List::RecentGhost
                } else {
                    List::FrequentGhost
                }
            } else {
                return;
            };
            let oldest = self.ends[kind][list as usize].oldest;
            if oldest == NONE {
                return;
            }
            self.release(oldest);
        }
    }

    /// Takes a node out of its list and the index.
    fn release(&mut self, at: u32) -> Option<T> {
        self.unlink(at);
        let node = &mut self.nodes[at as usize];
        node.in_use = false;
        let hash = node.identity.hash();
        let payload = node.payload.take();
        self.index.remove(hash, at);
        self.free.push(at);
        payload
    }

    fn link(&mut self, at: u32, list: List) {
        let node = &mut self.nodes[at as usize];
        node.list = list;
        let ends = &mut self.ends[usize::from(node.metadata)][list as usize];
        node.newer = NONE;
        node.older = ends.newest;
        ends.bytes += u64::from(node.size);
        ends.count += 1;
        let next = std::mem::replace(&mut ends.newest, at);
        if ends.oldest == NONE {
            ends.oldest = at;
        }
        if next != NONE {
            self.nodes[next as usize].newer = at;
        }
    }

    fn unlink(&mut self, at: u32) {
        let node = &self.nodes[at as usize];
        let (newer, older) = (node.newer, node.older);
        let ends = &mut self.ends[usize::from(node.metadata)][node.list as usize];
        ends.bytes -= u64::from(node.size);
        ends.count -= 1;
        if newer == NONE {
            ends.newest = older;
        }
        if older == NONE {
            ends.oldest = newer;
        }
        if newer != NONE {
            self.nodes[newer as usize].older = older;
        }
        if older != NONE {
            self.nodes[older as usize].newer = newer;
        }
    }
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(offset: u64) -> Identity {
        Identity {
            offset,
            checksum: 0,
            birth: 1,
            vdev: 0,
            keyed: false,
        }
    }

    fn read(policy: &mut Policy<u64>, offset: u64, metadata: bool, now_ms: u32) -> bool {
        let identity = identity(offset);
        if let Found::Resident(at) = policy.find(&identity) {
            policy.touch(at, || now_ms);
            return true;
        }
        policy.note_ghost(&identity);
        while policy.bytes() + 1000 > to_usize(policy.limit) {
            policy.evict();
        }
        policy.admit(NewEntry {
            identity,
            payload: offset,
            size: 1000,
            metadata,
            flags: 0,
            now_ms,
            demanded: true,
        });
        false
    }

    #[test]
    fn a_scan_pushes_out_neither_what_is_used_often_nor_metadata() {
        let mut policy = Policy::new(100_000, 60);
        for offset in 0..20 {
            read(&mut policy, offset, offset < 10, 0);
            read(&mut policy, offset, offset < 10, 100);
        }
        for offset in 1000..5000 {
            read(&mut policy, offset, false, 200);
        }
        assert!((0..20).all(|offset| read(&mut policy, offset, offset < 10, 300)));
        assert!(policy.bytes() <= 100_000);
    }

    #[test]
    fn uses_close_together_are_one_use() {
        let mut policy = Policy::new(100_000, 60);
        for _ in 0..5 {
            read(&mut policy, 1, false, 10);
        }
        assert_eq!(policy.list_bytes(List::Frequent, false), 0);
        read(&mut policy, 1, false, 80);
        assert_eq!(policy.list_bytes(List::Frequent, false), 1000);
    }

    #[test]
    fn a_ghost_that_is_missed_again_becomes_frequent_and_moves_the_target() {
        let mut policy = Policy::new(10_000, 0);
        for offset in 0..5 {
            read(&mut policy, offset, false, 0);
            read(&mut policy, offset, false, 0);
        }
        for offset in 10..20 {
            read(&mut policy, offset, false, 0);
        }
        assert_eq!(policy.find(&identity(10)), Found::Ghost(List::RecentGhost));
        assert!(!read(&mut policy, 10, false, 0));
        assert!(policy.targets().0[0] >= 1000);
        let Found::Resident(at) = policy.find(&identity(10)) else {
            panic!("it was just read");
        };
        assert_eq!(policy.touch(at, || 0).list, List::Frequent);
    }

    #[test]
    fn what_was_read_ahead_in_vain_leaves_no_ghost_and_places_are_reused() {
        let mut policy = Policy::new(10_000, 0);
        policy.admit(NewEntry {
            identity: identity(1),
            payload: 1,
            size: 1000,
            metadata: false,
            flags: PREFETCHED,
            now_ms: 0,
            demanded: false,
        });
        let victim = policy.evict().expect("one entry");
        assert_eq!(victim.flags, PREFETCHED);
        assert_eq!(policy.find(&identity(1)), Found::Nowhere);
        read(&mut policy, 2, false, 0);
        assert_eq!(policy.nodes.len(), 1);
        assert_eq!(policy.remove(&identity(2)).map(|gone| gone.0), Some(2));
        assert_eq!((policy.bytes(), policy.ghosts()), (0, 0));
    }
}
