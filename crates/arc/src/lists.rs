//! The four lists of the cache: entries in one slab, linked by index.
//!
//! Guarantees: every operation takes constant time. Does not know how entries are found.

use runtime::IoBuf;

use crate::Identity;

/// Bytes charged for an entry besides its data.
const OVERHEAD_BYTES: usize = 192;
/// No entry.
const NONE: u32 = u32::MAX;

/// One cached block.
pub(crate) struct Entry {
    pub(crate) identity: Identity,
    pub(crate) data: IoBuf,
    pub(crate) metadata: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum List {
    RecentData = 0,
    FrequentData = 1,
    RecentMetadata = 2,
    FrequentMetadata = 3,
}

struct Node {
    /// `None` while the node is free.
    entry: Option<Entry>,
    list: List,
    newer: u32,
    older: u32,
}

#[derive(Clone, Copy)]
struct Ends {
    newest: u32,
    oldest: u32,
    bytes: usize,
}

pub(crate) struct Lists {
    nodes: Vec<Node>,
    free: Vec<u32>,
    ends: [Ends; 4],
}

impl Default for Lists {
    fn default() -> Self {
        let ends = Ends {
            newest: NONE,
            oldest: NONE,
            bytes: 0,
        };
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
            ends: [ends; 4],
        }
    }
}

impl Lists {
    pub(crate) fn bytes(&self) -> usize {
        self.ends.iter().map(|ends| ends.bytes).sum()
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        self.ends[List::RecentMetadata as usize].bytes
            + self.ends[List::FrequentMetadata as usize].bytes
    }

    /// Adds an entry as most recent of its kind and returns its place.
    pub(crate) fn push(&mut self, entry: Entry) -> u32 {
        let list = if entry.metadata {
            List::RecentMetadata
        } else {
            List::RecentData
        };
        let node = Node {
            entry: Some(entry),
            list,
            newer: NONE,
            older: NONE,
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
        self.link(at, list);
        at
    }

    /// Returns the data of an entry.
    pub(crate) fn data(&self, at: u32) -> IoBuf {
        let entry = self.nodes[at as usize].entry.as_ref();
        entry.expect("the index names live entries").data.clone()
    }

    /// Notes another use. Frequent lists keep to three quarters of the cache, so that new blocks get a chance.
    pub(crate) fn touch(&mut self, at: u32, limit_bytes: usize) {
        let (frequent, recent) = match self.nodes[at as usize].list {
            List::RecentData | List::FrequentData => (List::FrequentData, List::RecentData),
            List::RecentMetadata | List::FrequentMetadata => {
                (List::FrequentMetadata, List::RecentMetadata)
            }
        };
        if self.nodes[at as usize].list == frequent && self.ends[frequent as usize].newest == at {
            return;
        }
        self.unlink(at);
        self.link(at, frequent);
        while self.ends[frequent as usize].bytes > limit_bytes / 4 * 3 {
            let oldest = self.ends[frequent as usize].oldest;
            if oldest == at {
                break;
            }
            self.unlink(oldest);
            self.link(oldest, recent);
        }
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, at: u32) {
        self.unlink(at);
        self.nodes[at as usize].entry = None;
        self.free.push(at);
    }

    /// Drops the least valuable entry and returns its identity: data before metadata unless `metadata_first`, recent
    /// before frequent, oldest first.
    pub(crate) fn evict(&mut self, metadata_first: bool) -> Option<Identity> {
        use List::{FrequentData, FrequentMetadata, RecentData, RecentMetadata};
        let order = if metadata_first {
            [RecentMetadata, FrequentMetadata, RecentData, FrequentData]
        } else {
            [RecentData, FrequentData, RecentMetadata, FrequentMetadata]
        };
        let list = order
            .into_iter()
            .find(|&list| self.ends[list as usize].oldest != NONE)?;
        let at = self.ends[list as usize].oldest;
        let identity = self.nodes[at as usize]
            .entry
            .as_ref()
            .map(|entry| entry.identity);
        self.remove(at);
        identity
    }

    fn charge(&self, at: u32) -> usize {
        let entry = self.nodes[at as usize].entry.as_ref();
        entry.map_or(0, |entry| entry.data.len() + OVERHEAD_BYTES)
    }

    fn link(&mut self, at: u32, list: List) {
        let bytes = self.charge(at);
        let newest = self.ends[list as usize].newest;
        let node = &mut self.nodes[at as usize];
        node.list = list;
        node.newer = NONE;
        node.older = newest;
        if newest != NONE {
            self.nodes[newest as usize].newer = at;
        }
        let ends = &mut self.ends[list as usize];
        ends.newest = at;
        if ends.oldest == NONE {
            ends.oldest = at;
        }
        ends.bytes += bytes;
    }

    fn unlink(&mut self, at: u32) {
        let bytes = self.charge(at);
        let Node {
            list, newer, older, ..
        } = self.nodes[at as usize];
        if newer == NONE {
            self.ends[list as usize].newest = older;
        } else {
            self.nodes[newer as usize].older = older;
        }
        if older == NONE {
            self.ends[list as usize].oldest = newer;
        } else {
            self.nodes[older as usize].newer = newer;
        }
        self.ends[list as usize].bytes -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(offset: u64, len: usize, metadata: bool) -> Entry {
        let identity = Identity {
            offset,
            checksum: 0,
            birth: 1,
            vdev: 0,
        };
        Entry {
            identity,
            data: IoBuf::zeroed(len),
            metadata,
        }
    }

    #[test]
    fn a_scan_pushes_out_neither_metadata_nor_what_is_used_often() {
        let mut lists = Lists::default();
        lists.push(entry(1, 1000, true));
        let hot = lists.push(entry(2, 1000, false));
        lists.touch(hot, 1 << 20);
        for offset in 10..20 {
            lists.push(entry(offset, 1000, false));
        }
        for expect in 10..20 {
            assert_eq!(
                lists.evict(false).map(|identity| identity.offset),
                Some(expect)
            );
        }
        assert_eq!(lists.evict(false).map(|identity| identity.offset), Some(2));
        assert_eq!(lists.evict(false).map(|identity| identity.offset), Some(1));
        assert_eq!(lists.evict(false), None);
        assert_eq!(lists.bytes(), 0);
    }

    #[test]
    fn places_are_reused_and_bytes_add_up() {
        let mut lists = Lists::default();
        let places: Vec<u32> = (0..5)
            .map(|n| lists.push(entry(n, 100, n % 2 == 0)))
            .collect();
        lists.remove(places[2]);
        lists.remove(places[0]);
        assert_eq!(lists.bytes(), 3 * (100 + OVERHEAD_BYTES));
        let again = lists.push(entry(9, 100, true));
        assert_eq!(again, places[0]);
        assert_eq!(lists.metadata_bytes(), 2 * (100 + OVERHEAD_BYTES));
    }
}
