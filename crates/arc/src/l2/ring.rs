//! The space of one cache device: a ring that is written round and round, and the chain of log blocks in it.
//!
//! Guarantees: what is about to be overwritten is given up first, in memory and (with the next header) on the device. Does no
//! I/O.

use std::collections::VecDeque;

use ondisk::l2arc::{self, Header, LogBlock, LogEntry, LogPointer};

use super::address_table::{Order, Table};

/// Devices smaller than this are not refilled by OpenZFS after an import.
// OpenZFS: module/zfs/arc.c, l2arc_rebuild_blocks_min_l2size
const PERSISTENT_MIN: u64 = 1 << 30;

/// A ring.
pub(super) struct Ring {
    pub(super) header: Header,
    /// The next byte to write.
    pub(super) hand: u64,
    /// Bytes of a sector, the unit of everything on the device.
    pub(super) sector: u64,
    /// Entries for the next log block.
    entries: Vec<LogEntry>,
    payload_start: u64,
    payload_asize: u64,
    /// Log blocks on the device, oldest in front.
    logs: VecDeque<LogPointer>,
    pub(super) order: Order,
    /// Bytes of blocks and log blocks on the device.
    pub(super) allocated: u64,
}

impl Ring {
    /// The empty ring of a device of `size` bytes (whole labels).
    pub(super) fn new(pool_guid: u64, vdev_guid: u64, size: u64, ashift: u8) -> Option<Self> {
        let sector = (1_u64 << ashift.clamp(9, 16)).max(l2arc::HEADER_BYTES as u64);
        let start = l2arc::HEADER_AT + sector;
        // Two labels at the end.
        let end = size.checked_sub(512 << 10)?;
        let room = end.checked_sub(start)?;
        if room < 1 << 20 {
            return None;
        }
        // OpenZFS: module/zfs/arc.c, l2arc_rebuild_dev. It ignores headers with another number, as it would for a small
        // device, where ours are for ourselves.
        let log_entries = if end < PERSISTENT_MIN {
            (room >> 20).max(4)
        } else {
            room >> 24
        };
        let header = Header {
            pool_guid,
            vdev_guid,
            log_entries: log_entries.min(l2arc::LOG_ENTRIES_MAX as u64),
            evict: start,
            first: true,
            start,
            end,
            ..Header::default()
        };
        Some(Self {
            header,
            hand: start,
            sector,
            entries: Vec::new(),
            payload_start: 0,
            payload_asize: 0,
            logs: VecDeque::new(),
            order: Order::default(),
            allocated: 0,
        })
    }

    /// Whether a header that was read belongs to this device as it is.
    pub(super) fn accepts(&self, found: &Header) -> bool {
        let mine = &self.header;
        found.pool_guid == mine.pool_guid
            && found.vdev_guid == mine.vdev_guid
            && found.log_entries == mine.log_entries
            && found.start == mine.start
            && found.end == mine.end
            && (mine.start..=mine.end).contains(&found.evict)
    }

    /// Goes on where a header left off. Its log blocks are restored one by one.
    pub(super) fn adopt(&mut self, found: &Header) {
        self.header = *found;
        self.header.log_asize = 0;
        self.header.log_count = 0;
        let newest = &found.newest[0];
        self.hand = match newest.offset {
            0 => self.header.start,
            at => (at + newest.asize).clamp(self.header.start, self.header.end),
        };
    }

    /// Notes a log block that was read and lists blocks of the device, older than all noted before.
    pub(super) fn restored(&mut self, pointer: LogPointer, names: Vec<u64>, bytes: u64) {
        self.logs.push_front(pointer);
        self.header.log_asize += pointer.asize;
        self.header.log_count += 1;
        self.order.push_oldest(names);
        self.allocated += bytes + pointer.asize;
    }

    pub(super) fn room(&self) -> u64 {
        self.header.end - self.header.start
    }

    /// Makes `distance` bytes at the hand free to be written (at most half of the room).
    pub(super) fn make_room(&mut self, distance: u64, device: u8, table: &mut Table) {
        let distance = distance.min(self.room() / 2);
        loop {
            let wraps = self.hand + distance > self.header.end;
            let up_to = if wraps {
                self.header.end
            } else {
                self.hand + distance
            };
            if !self.header.first {
                self.header.evict = self.header.evict.max(up_to);
                self.drop_evicted(device, table);
            }
            if !wraps {
                return;
            }
            self.hand = self.header.start;
            self.header.evict = self.header.start;
            self.header.first = false;
        }
    }

    fn drop_evicted(&mut self, device: u8, table: &mut Table) {
        let evicted = self.hand..self.header.evict;
        while let Some(name) = self.order.oldest() {
            match table.get(name) {
                Some(address) if address.device() == device => {
                    if !evicted.contains(&address.daddr()) {
                        break;
                    }
                    table.remove(name);
                    self.give_up(address.psize());
                }
                // Freed meanwhile, or cached on another device since.
                _ => {}
            }
            self.order.pop_oldest();
        }
        while let Some(oldest) = self.logs.front()
            && !oldest.is_valid(&self.header, self.hand)
        {
            self.header.log_asize -= oldest.asize;
            self.header.log_count -= 1;
            self.allocated = self.allocated.saturating_sub(oldest.asize);
            self.logs.pop_front();
        }
    }

    /// A block of the device was freed or given up.
    pub(super) fn give_up(&mut self, psize: u64) {
        let asize = self.asize(psize);
        self.allocated = self.allocated.saturating_sub(asize);
    }

    pub(super) fn asize(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(self.sector)
    }

    /// Places a block at the hand; returns true when a log block is due.
    pub(super) fn append(&mut self, mut entry: LogEntry) -> (u64, bool) {
        entry.daddr = self.hand;
        let asize = self.asize(entry.psize);
        if self.entries.is_empty() {
            self.payload_start = entry.daddr;
        }
        self.hand += asize;
        self.allocated += asize;
        self.payload_asize += asize;
        self.entries.push(entry);
        let due = self.entries.len() as u64 >= self.header.log_entries;
        (entry.daddr, due)
    }

    /// Places a log block at the hand and returns its bytes; the chain begins with it.
    pub(super) fn place_log(
        &mut self,
        pack: impl Fn(&[u8]) -> Option<Vec<u8>>,
        fletcher4: impl Fn(&[u8]) -> [u64; 4],
    ) -> Vec<u8> {
        let block = LogBlock {
            previous: self.header.newest[1],
            entries: std::mem::take(&mut self.entries),
        };
        let plain = block.encode();
        let sector = usize::try_from(self.sector).unwrap_or(512);
        let packed = pack(&plain).map(|mut packed| {
            packed.resize(packed.len().next_multiple_of(sector), 0);
            packed
        });
        let packed = packed.filter(|packed| packed.len() < plain.len());
        let compressed = packed.is_some();
        let bytes = packed.unwrap_or(plain);
        let pointer = LogPointer {
            offset: self.hand,
            payload_asize: std::mem::take(&mut self.payload_asize),
            payload_start: std::mem::take(&mut self.payload_start),
            asize: bytes.len() as u64,
            compressed,
            checksum: fletcher4(&bytes),
        };
        self.header.newest = [pointer, self.header.newest[0]];
        self.header.log_asize += pointer.asize;
        self.header.log_count += 1;
        self.allocated += pointer.asize;
        self.hand += pointer.asize;
        self.logs.push_back(pointer);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::address_table::L2Address;
    use super::*;

    #[test]
    fn the_ring_gives_up_what_it_overwrites_and_no_more() {
        let mut ring = Ring::new(1, 2, 16 << 20, 12).expect("large enough");
        let mut table = Table::default();
        let mut next = 0_u64;
        for round in 0..200 {
            ring.make_room(256 << 10, 0, &mut table);
            for _ in 0..6 {
                next += 1;
                let name = next.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let entry = LogEntry {
                    psize: 8192,
                    lsize: 8192,
                    birth: next,
                    ..LogEntry::default()
                };
                let (daddr, due) = ring.append(entry);
                table.insert(name, L2Address::new(0, daddr, 8192).expect("fits"));
                ring.order.push_newest(name);
                if due {
                    ring.place_log(|_| Some(vec![1; 4000]), |_| [0; 4]);
                }
                assert!(ring.hand <= ring.header.end);
            }
            if !ring.header.first {
                assert!(ring.hand <= ring.header.evict, "round {round}");
            }
            let blocks = table.len() as u64 * 8192;
            assert_eq!(ring.allocated, blocks + ring.header.log_asize);
            assert!(ring.allocated <= ring.room());
        }
        // A full device holds nearly all it has room for.
        assert!(ring.allocated > ring.room() / 10 * 8);
        assert!(Ring::new(1, 2, 4 << 20, 12).is_none());
    }
}
