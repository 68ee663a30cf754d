//! Finding out what a cache device holds, from the log it keeps.
//!
//! The chain is followed from the newest log block backwards, until one is not what its pointer says or was overwritten.
//! Nothing is believed but addresses: a wrong entry costs a read.

use std::rc::Rc;

use codec::compress;
use ondisk::l2arc::{HEADER_AT, Header, LOG_BLOCK_BYTES, LogBlock, LogPointer, in_ring};
use ondisk::label;

use super::Device;
use super::address_table::L2Address;
use super::feed::{fletcher4, sha256};
use crate::Cache;
use crate::identity::block_hash;

impl Cache {
    /// Reads the header and begins to read the log, or writes a new header. A header that does not fit is no error.
    pub(super) async fn begin_rebuild(&self, device: &Rc<Device>, fresh: bool) {
        let wanted = self.0.l2.borrow().tuning.rebuild && !fresh;
        let found = if fresh {
            None
        } else {
            self.read_header(device).await
        };
        let Some(header) = found else {
            if device.writable {
                self.write_header(device).await;
            }
            device.rebuilding.set(false);
            return;
        };
        device.ring.borrow_mut().adopt(&header);
        if !header.first {
            // A device that was full before its import has had its first filling.
            let (allowance, then) = device.allowance.get();
            device.allowance.set((allowance / 10, then));
        }
        if !wanted {
            device.rebuilding.set(false);
            return;
        }
        let (cache, device) = (self.clone(), Rc::clone(device));
        drop(
            self.0
                .handle
                .spawn("rebuild of a cache device", async move {
                    cache.rebuild(&device, &header).await;
                    device.rebuilding.set(false);
                    cache.charge_index();
                }),
        );
    }

    async fn read_header(&self, device: &Device) -> Option<Header> {
        let sector = usize::try_from(device.ring.borrow().sector).ok()?;
        let bytes = device.disk.read(HEADER_AT, sector).await.ok()?;
        if !label::verify(&bytes, label::label_verifier(HEADER_AT), sha256) {
            return None;
        }
        let header = Header::decode(&bytes).ok()?;
        device.ring.borrow().accepts(&header).then_some(header)
    }

    async fn rebuild(&self, device: &Device, header: &Header) {
        let hand = device.ring.borrow().hand;
        let entries = usize::try_from(header.log_entries).unwrap_or(0);
        let mut pointers = header.newest;
        let mut passed = 0;
        loop {
            let [pointer, next] = pointers;
            passed += pointer.asize;
            let too_far = passed > header.end - header.start;
            if !pointer.is_valid(header, hand) || too_far || device.gone.get() {
                return;
            }
            let Some(block) = self.read_log(device, &pointer, entries).await else {
                return;
            };
            if !self.restore(device, pointer, &block) {
                return;
            }
            let looped = in_ring(next.payload_start, pointer.payload_start, header.evict);
            if looped && !header.first {
                return;
            }
            pointers = [next, block.previous];
        }
    }

    async fn read_log(
        &self,
        device: &Device,
        pointer: &LogPointer,
        entries: usize,
    ) -> Option<LogBlock> {
        let len = usize::try_from(pointer.asize).ok()?;
        let bytes = device.disk.read(pointer.offset, len).await.ok()?;
        if fletcher4(&bytes) != pointer.checksum {
            return None;
        }
        let block = if pointer.compressed {
            let plain = compress::decompress(compress::Algorithm::Lz4, &bytes, LOG_BLOCK_BYTES);
            LogBlock::decode(&plain.ok()?, entries)
        } else {
            LogBlock::decode(&bytes, entries)
        };
        block.ok()
    }

    /// Takes the blocks of a log block into the index; false when memory does not allow more.
    fn restore(&self, device: &Device, pointer: LogPointer, block: &LogBlock) -> bool {
        let limit = self.0.state.borrow().limit;
        let mut l2 = self.0.l2.borrow_mut();
        let memory = limit / 100 * usize::from(l2.tuning.memory_percent);
        if l2.index_bytes() > memory || device.gone.get() {
            return false;
        }
        let (start, end) = {
            let ring = device.ring.borrow();
            (ring.header.start, ring.header.end)
        };
        let mut names = Vec::with_capacity(block.entries.len());
        let mut bytes = 0;
        for entry in &block.entries {
            let asize = device.ring.borrow().asize(entry.psize);
            let inside = entry.daddr >= start
                && entry
                    .daddr
                    .checked_add(asize)
                    .is_some_and(|last| last <= end);
            let name = block_hash(entry.vdev, entry.offset, entry.birth);
            let address = L2Address::new(device.number, entry.daddr, entry.psize);
            if let (true, Some(address), None) = (inside, address, l2.table.get(name)) {
                l2.table.insert(name, address);
                names.push(name);
                bytes += asize;
            }
        }
        l2.stats.rebuilt_blocks += names.len() as u64;
        device.ring.borrow_mut().restored(pointer, names, bytes);
        true
    }
}
