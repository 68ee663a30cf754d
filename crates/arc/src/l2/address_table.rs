//! Addresses of blocks on the cache devices, in little memory.
//!
//! A block is named by 64 bits of hash of its address and birth, and its address is one word: 16 bytes a block, in tables that
//! grow by a quarter, so at most 24; the order on a device costs 8 more. Two blocks of one name, or an address that was
//! overwritten meanwhile, cost a re-read: what comes from a cache device is checked against the block's own checksum.

use std::collections::VecDeque;

/// Tables that grow one by one, so that growing never needs twice the memory.
const SEGMENTS: usize = 256;
/// Slots a segment begins with.
const SLOTS_FIRST: usize = 4;
/// Names in a full chunk of an order.
const CHUNK: usize = 1024;

/// An address: bit 63 set, device (8 bits), sectors less one (15 bits), first sector (40 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct L2Address(u64);

impl L2Address {
    /// `daddr` and `psize` in bytes, multiples of 512; `None` when they do not fit (512 TiB, 16 MiB).
    pub(super) fn new(device: u8, daddr: u64, psize: u64) -> Option<Self> {
        let (sector, count) = (daddr >> 9, (psize >> 9).checked_sub(1)?);
        if sector >> 40 != 0 || count >> 15 != 0 {
            return None;
        }
        Some(Self(
            1 << 63 | u64::from(device) << 55 | count << 40 | sector,
        ))
    }

    pub(super) fn device(self) -> u8 {
        u8::try_from(self.0 >> 55 & 0xff).unwrap_or(0)
    }

    pub(super) fn psize(self) -> u64 {
        ((self.0 >> 40 & 0x7fff) + 1) << 9
    }

    pub(super) fn daddr(self) -> u64 {
        (self.0 & ((1 << 40) - 1)) << 9
    }
}

/// Addresses by name.
pub(super) struct Table {
    segments: Vec<Segment>,
}

#[derive(Default)]
struct Segment {
    /// Name and address; an address of 0 is a free slot.
    slots: Vec<(u64, u64)>,
    used: usize,
}

impl Default for Table {
    fn default() -> Self {
        let mut segments = Vec::new();
        segments.resize_with(SEGMENTS, Segment::default);
        Self { segments }
    }
}

impl Table {
    pub(super) fn get(&self, name: u64) -> Option<L2Address> {
        let segment = &self.segments[segment_of(name)];
        segment
            .find(name)
            .map(|slot| L2Address(segment.slots[slot].1))
    }

    /// Adds a block, or moves it; returns where it was.
    pub(super) fn insert(&mut self, name: u64, address: L2Address) -> Option<L2Address> {
        let segment = &mut self.segments[segment_of(name)];
        if let Some(slot) = segment.find(name) {
            let old = std::mem::replace(&mut segment.slots[slot].1, address.0);
            return Some(L2Address(old));
        }
        if (segment.used + 1) * 100 > segment.slots.len() * 85 {
            segment.grow();
        }
        segment.put(name, address.0);
        segment.used += 1;
        None
    }

    pub(super) fn remove(&mut self, name: u64) -> Option<L2Address> {
        self.segments[segment_of(name)].remove(name)
    }

    /// Blocks in the table.
    pub(super) fn len(&self) -> usize {
        self.segments.iter().map(|segment| segment.used).sum()
    }

    /// Bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        let slots: usize = self.segments.iter().map(|s| s.slots.capacity()).sum();
        slots * size_of::<(u64, u64)>() + SEGMENTS * size_of::<Segment>()
    }
}

fn segment_of(name: u64) -> usize {
    usize::try_from(name >> 56).unwrap_or(0)
}

impl Segment {
    fn home(&self, name: u64) -> usize {
        // The bits below those that chose the segment, scaled to any number of slots.
        let bits = u128::from(name << 8);
        usize::try_from((bits * self.slots.len() as u128) >> 64).unwrap_or(0)
    }

    fn next(&self, slot: usize) -> usize {
        if slot + 1 == self.slots.len() {
            0
        } else {
            slot + 1
        }
    }

    fn find(&self, name: u64) -> Option<usize> {
        if self.used == 0 {
            return None;
        }
        let mut slot = self.home(name);
        while self.slots[slot].1 != 0 {
            if self.slots[slot].0 == name {
                return Some(slot);
            }
            slot = self.next(slot);
        }
        None
    }

    fn put(&mut self, name: u64, address: u64) {
        let mut slot = self.home(name);
        while self.slots[slot].1 != 0 {
            slot = self.next(slot);
        }
        self.slots[slot] = (name, address);
    }

    fn remove(&mut self, name: u64) -> Option<L2Address> {
        let mut hole = self.find(name)?;
        let address = L2Address(self.slots[hole].1);
        self.used -= 1;
        let len = self.slots.len();
        let distance = |from: usize, to: usize| (to + len - from) % len;
        let mut at = self.next(hole);
        // What follows moves up, so that no search ends too early.
        while self.slots[at].1 != 0 {
            let home = self.home(self.slots[at].0);
            if distance(home, at) >= distance(hole, at) {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
            at = self.next(at);
        }
        self.slots[hole] = (0, 0);
        Some(address)
    }

    fn grow(&mut self) {
        let len = (self.slots.len() + self.slots.len() / 4).max(self.slots.len() + SLOTS_FIRST);
        let mut larger = Vec::with_capacity(len);
        larger.resize(len, (0, 0));
        let old = std::mem::replace(&mut self.slots, larger);
        for (name, address) in old {
            if address != 0 {
                self.put(name, address);
            }
        }
    }
}

/// Names of the blocks of one device in the order in which they lie there, oldest in front.
#[derive(Default)]
pub(super) struct Order {
    chunks: VecDeque<VecDeque<u64>>,
}

impl Order {
    pub(super) fn push_newest(&mut self, name: u64) {
        match self.chunks.back_mut() {
            Some(chunk) if chunk.len() < chunk.capacity() => chunk.push_back(name),
            _ => {
                let mut chunk = VecDeque::with_capacity(CHUNK);
                chunk.push_back(name);
                self.chunks.push_back(chunk);
            }
        }
    }

    /// Adds blocks that lie before all others, in order.
    pub(super) fn push_oldest(&mut self, names: Vec<u64>) {
        if !names.is_empty() {
            self.chunks.push_front(names.into());
        }
    }

    pub(super) fn oldest(&self) -> Option<u64> {
        self.chunks.front()?.front().copied()
    }

    pub(super) fn pop_oldest(&mut self) {
        if let Some(chunk) = self.chunks.front_mut() {
            chunk.pop_front();
            if chunk.is_empty() {
                self.chunks.pop_front();
            }
        }
    }

    /// Names of all blocks.
    pub(super) fn names(&self) -> impl Iterator<Item = u64> + '_ {
        self.chunks.iter().flatten().copied()
    }

    /// Bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        let names: usize = self.chunks.iter().map(VecDeque::capacity).sum();
        names * size_of::<u64>() + self.chunks.capacity() * size_of::<VecDeque<u64>>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn name(number: u64) -> u64 {
        (number ^ number >> 7).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn it_equals_a_map() {
        let mut table = Table::default();
        let mut model = BTreeMap::new();
        for step in 0..60_000_u64 {
            let number = name(step) % 5000;
            if step % 3 == 0 {
                assert_eq!(table.remove(name(number)), model.remove(&number));
            } else {
                let address = L2Address::new(3, step << 12, 4096).expect("fits");
                assert_eq!(
                    table.insert(name(number), address),
                    model.insert(number, address)
                );
            }
        }
        assert_eq!(table.len(), model.len());
        for (&number, &address) in &model {
            assert_eq!(table.get(name(number)), Some(address));
        }
    }

    #[test]
    fn a_block_takes_at_most_forty_bytes_at_any_size() {
        let mut table = Table::default();
        let mut order = Order::default();
        let mut worst = 0;
        for number in 0..2_000_000_u64 {
            let address = L2Address::new(0, number << 13, 8192).expect("fits");
            table.insert(name(number), address);
            order.push_newest(name(number));
            if number > 200_000 && number % 1009 == 0 {
                let bytes = table.bytes() + order.bytes();
                worst = worst.max(bytes * 10 / table.len());
            }
        }
        assert!(worst < 400, "{worst} tenths of a byte");
    }

    #[test]
    fn places_keep_their_parts() {
        let address = L2Address::new(200, 0x1234_5678_9a00, 16 << 20).expect("fits");
        assert_eq!(
            (address.device(), address.daddr(), address.psize()),
            (200, 0x1234_5678_9a00, 16 << 20)
        );
        assert_eq!(L2Address::new(0, 1 << 50, 512), None);
        assert_eq!(L2Address::new(0, 512, 17 << 20), None);
        assert_eq!(L2Address::new(0, 512, 0), None);
    }
}
