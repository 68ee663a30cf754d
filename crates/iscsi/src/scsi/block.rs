//! Reading, writing, comparing and flushing blocks. SBC-3 section 5.

use std::sync::Arc;

use engine::{IoBuf, Stability};

use super::extent::Extent;
use super::sense::{Sense, asc, key};
use super::{Cdb, Command, Executed, LogicalUnit, Reply, TRANSFER_BYTES_MAX, op};
use crate::bytes::Field as _;
use crate::payload::Payload;

/// First block and number of blocks of a command.
fn range(cdb: &Cdb) -> (u64, u64) {
    match cdb[0] {
        op::READ_6 | op::WRITE_6 => {
            let lba = u64::from(cdb.u24_at(1) & 0x001f_ffff);
            (lba, if cdb[4] == 0 { 256 } else { u64::from(cdb[4]) })
        }
        op::READ_12 | op::WRITE_12 | op::VERIFY_12 | op::WRITE_VERIFY_12 => {
            (u64::from(cdb.u32_at(2)), u64::from(cdb.u32_at(6)))
        }
        op::COMPARE_AND_WRITE => (cdb.u64_at(2), u64::from(cdb[13])),
        op::WRITE_ATOMIC => (cdb.u64_at(2), u64::from(cdb.u16_at(12))),
        0x80..0xa0 => (cdb.u64_at(2), u64::from(cdb.u32_at(10))),
        _ => (u64::from(cdb.u32_at(2)), u64::from(cdb.u16_at(7))),
    }
}

/// Where a command that only writes begins, in bytes; `None` for all others.
pub(crate) fn write_start(cdb: &Cdb, block: u64) -> Option<u64> {
    let writes = matches!(
        cdb[0],
        op::WRITE_6
            | op::WRITE_10
            | op::WRITE_12
            | op::WRITE_16
            | op::WRITE_VERIFY_10
            | op::WRITE_VERIFY_12
            | op::WRITE_VERIFY_16
    );
    let (lba, _) = range(cdb);
    writes.then_some(lba.checked_mul(block)?)
}

/// Whether a command wants its data on stable storage before its status.
fn force_unit_access(cdb: &Cdb) -> bool {
    !matches!(cdb[0], op::READ_6 | op::WRITE_6) && cdb[1] & 0x08 != 0
}

/// Protection information is not kept, so nothing may be asked of it.
fn check_protection(cdb: &Cdb) -> Result<(), Sense> {
    if !matches!(cdb[0], op::READ_6 | op::WRITE_6) && cdb[1] & 0xe0 != 0 {
        Err(Sense::cdb(1))
    } else {
        Ok(())
    }
}

impl LogicalUnit {
    /// Checks a range of blocks and returns it as bytes.
    pub(super) fn extent(&self, lba: u64, count: u64) -> Result<Extent, Sense> {
        let (block, blocks) = (self.block(), self.blocks());
        match lba.checked_add(count) {
            // SBC-3 4.5: a transfer of nothing at the very end is in range only up to the last block.
            Some(end) if end <= blocks && (count > 0 || lba < blocks) => Ok(Extent {
                offset: lba * block,
                len: count * block,
            }),
            _ => Err(Sense::illegal(asc::LBA)),
        }
    }

    fn transfer(&self, cdb: &Cdb) -> Result<Extent, Sense> {
        check_protection(cdb)?;
        let (lba, count) = range(cdb);
        let extent = self.extent(lba, count)?;
        if extent.len > TRANSFER_BYTES_MAX {
            return Err(Sense::cdb(match cdb[0] {
                op::READ_6 | op::WRITE_6 => 4,
                op::READ_12 | op::WRITE_12 | op::VERIFY_12 | op::WRITE_VERIFY_12 => 6,
                op if op >= 0x80 => 10,
                _ => 7,
            }));
        }
        Ok(extent)
    }

    /// When a change must be stable before its status: always without a write cache.
    pub(super) fn stability(&self, forced: bool) -> Stability {
        if forced || !self.state().write_cache {
            Stability::FileSync
        } else {
            Stability::Unstable
        }
    }

    pub(super) async fn test_unit_ready(&self) -> Executed {
        match self.volume.info().await {
            Ok(_) => Ok(Reply::good()),
            Err(error) => Err(Sense::of(error, false)),
        }
    }

    pub(super) async fn read(&self, cdb: &Cdb) -> Executed {
        let extent = self.transfer(cdb)?;
        if extent.len == 0 {
            return Ok(Reply::good());
        }
        // What was written is what a read finds, on stable storage or not: FUA asks for the former, so it is brought there.
        if force_unit_access(cdb) && self.state().write_cache {
            let flushed = Box::pin(self.volume.flush()).await;
            flushed.map_err(|error| Sense::of(error, true))?;
        }
        let pieces = self.volume.read(extent.offset, extent.bytes()).await;
        pieces
            .map(Reply::pieces)
            .map_err(|error| Sense::of(error, false))
    }

    pub(super) async fn write(&self, command: &Command) -> Executed {
        let cdb = &command.cdb;
        let extent = self.transfer(cdb)?;
        self.write_at(extent.offset, &command.data, force_unit_access(cdb))
            .await?;
        Ok(Reply::good())
    }

    async fn write_at(&self, offset: u64, data: &Payload, forced: bool) -> Result<(), Sense> {
        if data.is_empty() {
            return Ok(());
        }
        self.tokens.revoke(offset, data.len() as u64);
        let pieces = data.clone().into_pieces();
        let written = self
            .volume
            .write_pieces(offset, pieces, self.stability(forced))
            .await;
        written.map_err(|error| Sense::of(error, true))
    }

    /// WRITE ATOMIC(16): all of it or nothing, to readers and to power cuts.
    pub(super) async fn write_atomic(&self, command: &Command) -> Executed {
        let cdb = &command.cdb;
        let extent = self.transfer(cdb)?;
        if cdb.u16_at(10) != 0 {
            // Atomic boundaries are not supported.
            return Err(Sense::cdb(10));
        }
        if extent.len > atomic_bytes_max() {
            return Err(Sense::cdb(12));
        }
        self.tokens.revoke(extent.offset, extent.len);
        let written = self
            .volume
            .write_atomic(extent.offset, command.data.whole())
            .await;
        written
            .map(|()| Reply::good())
            .map_err(|error| Sense::of(error, true))
    }

    pub(super) async fn write_verify(&self, command: &Command) -> Executed {
        let cdb = &command.cdb;
        if cdb[1] >> 1 & 3 > 1 {
            return Err(Sense::cdb(1));
        }
        // Bit 3 is reserved here: there is no FUA.
        let extent = self.transfer(cdb)?;
        self.write_at(extent.offset, &command.data, true).await?;
        if extent.len > 0 {
            // The medium is read back only through checksums that a scrub verifies; reading proves what readers will get.
            let data = command.data.bytes();
            self.same(extent.offset, &data, data.len()).await?;
        }
        Ok(Reply::good())
    }

    /// Compares data with what is there.
    async fn same(&self, offset: u64, data: &[u8], len: usize) -> Result<(), Sense> {
        let pieces = self.volume.read(offset, len).await;
        let pieces = pieces.map_err(|error| Sense::of(error, false))?;
        let mut at = 0;
        for piece in pieces {
            let expected = data.part(at, piece.len());
            if let Some(first) = piece.iter().zip(expected).position(|(a, b)| a != b) {
                return Err(Sense::new(key::MISCOMPARE, asc::MISCOMPARE)
                    .with_information((at + first) as u64));
            }
            at += piece.len();
        }
        Ok(())
    }

    pub(super) async fn verify(&self, command: &Command) -> Executed {
        let cdb = &command.cdb;
        check_protection(cdb)?;
        let (lba, count) = range(cdb);
        let extent = self.extent(lba, count)?;
        let compare = cdb[1] >> 1 & 3;
        match compare {
            0 => {
                // Everything is read, so that every checksum is verified.
                let mut at = 0;
                while at < extent.len {
                    let step = (extent.len - at).min(1 << 20);
                    let len = usize::try_from(step).unwrap_or(0);
                    let read = self.volume.read(extent.offset + at, len).await;
                    read.map_err(|error| Sense::of(error, false))?;
                    at += step;
                }
            }
            1 => {
                if extent.len > TRANSFER_BYTES_MAX {
                    return Err(Sense::cdb(1));
                }
                let data = command.data.bytes();
                self.same(extent.offset, &data, data.len()).await?;
            }
            3 => {
                if extent.len > TRANSFER_BYTES_MAX {
                    return Err(Sense::cdb(1));
                }
                let block = usize::try_from(self.block()).unwrap_or(512);
                let data = command.data.bytes();
                for at in (0..extent.len).step_by(block) {
                    self.same(extent.offset + at, &data, block).await?;
                }
            }
            _ => return Err(Sense::cdb(1)),
        }
        Ok(Reply::good())
    }

    /// ORWRITE(16): sets bits; atomic among its own kind.
    pub(super) async fn or_write(self: &Arc<Self>, command: &Command) -> Executed {
        let cdb = &command.cdb;
        let extent = self.transfer(cdb)?;
        if extent.len == 0 {
            return Ok(Reply::good());
        }
        let bits = command.data.bytes();
        loop {
            let pieces = self.volume.read(extent.offset, bits.len()).await;
            let pieces = pieces.map_err(|error| Sense::of(error, false))?;
            let before: Vec<u8> = pieces
                .iter()
                .flat_map(|piece| piece.iter().copied())
                .collect();
            let after: Vec<u8> = before.iter().zip(bits.iter()).map(|(a, b)| a | b).collect();
            if after.len() as u64 > engine::VOLUME_CHUNK_BYTES {
                // Too long to be exchanged at once; others of this kind are kept out meanwhile.
                let _guard = self.read_modify_write.lock().await;
                let after = Payload::new(vec![IoBuf::from(after)]);
                self.write_at(extent.offset, &after, force_unit_access(cdb))
                    .await?;
                return Ok(Reply::good());
            }
            self.tokens.revoke(extent.offset, extent.len);
            let exchanged = self
                .volume
                .compare_and_write(
                    extent.offset,
                    IoBuf::from(before),
                    IoBuf::from(after),
                    self.stability(force_unit_access(cdb)),
                )
                .await;
            match exchanged {
                Ok(()) => return Ok(Reply::good()),
                // Another write came in between: once more.
                Err(engine::VolumeError::Miscompare(_)) => {}
                Err(error) => return Err(Sense::of(error, true)),
            }
        }
    }

    pub(super) async fn compare_and_write(&self, command: &Command) -> Executed {
        let cdb = &command.cdb;
        check_protection(cdb)?;
        let (lba, count) = range(cdb);
        let extent = self.extent(lba, count)?;
        if extent.len == 0 {
            return Ok(Reply::good());
        }
        let half = extent.bytes();
        if command.data.len() != 2 * half || extent.len > engine::VOLUME_CHUNK_BYTES {
            return Err(Sense::cdb(13));
        }
        let both = command.data.whole();
        let (expected, data) = (both.slice(0..half), both.slice(half..2 * half));
        let stability = self.stability(force_unit_access(cdb));
        self.tokens.revoke(extent.offset, extent.len);
        let done = self
            .volume
            .compare_and_write(extent.offset, expected, data, stability)
            .await;
        done.map(|()| Reply::good())
            .map_err(|error| Sense::of(error, true))
    }

    pub(super) async fn prefetch(&self, cdb: &Cdb) -> Executed {
        let (lba, count) = range(cdb);
        let blocks = self.blocks();
        // No blocks means all that follow.
        let count = if count == 0 {
            blocks.saturating_sub(lba)
        } else {
            count
        };
        let extent = self.extent(lba, count)?;
        // Without IMMED the blocks are read before the status, as many as a transfer may have; that they stay cached is not
        // promised, so it is GOOD and never CONDITION MET.
        if cdb[1] & 2 == 0 {
            let bytes = usize::try_from(extent.len.min(TRANSFER_BYTES_MAX)).unwrap_or(0);
            let read = self.volume.read(extent.offset, bytes).await;
            read.map_err(|error| Sense::of(error, false))?;
        }
        Ok(Reply::good())
    }

    pub(super) async fn synchronize(&self, cdb: &Cdb) -> Executed {
        let (lba, count) = range(cdb);
        self.extent(lba, count).or_else(|sense| {
            // No blocks at the very end is the whole unit's end.
            if count == 0 && lba <= self.blocks() {
                Ok(Extent { offset: 0, len: 0 })
            } else {
                Err(sense)
            }
        })?;
        let flushed = self.volume.flush().await;
        flushed.map_err(|error| Sense::of(error, true))?;
        Ok(Reply::good())
    }

    pub(super) async fn start_stop(&self, cdb: &Cdb) -> Executed {
        // Power conditions are accepted; there is nothing to spin.
        if cdb[4] >> 4 != 0 {
            return Ok(Reply::good());
        }
        if cdb[4] & 2 != 0 {
            // Nothing can be loaded or ejected.
            return Err(Sense::cdb(4));
        }
        let start = cdb[4] & 1 != 0;
        if !start {
            let flushed = self.volume.flush().await;
            flushed.map_err(|error| Sense::of(error, true))?;
        }
        self.state().stopped = !start;
        Ok(Reply::good())
    }

    /// There are no defects to list: bad blocks are repaired below.
    pub(super) fn read_defects(&self, cdb: &Cdb) -> Reply {
        if cdb[0] == op::READ_DEFECT_10 {
            let header = vec![0, cdb[2] & 0x1f, 0, 0];
            return Reply::data(header, usize::from(cdb.u16_at(7)));
        }
        let header = vec![0, cdb[1] & 0x1f, 0, 0, 0, 0, 0, 0];
        Reply::data(header, crate::bytes::index(cdb.u32_at(6)))
    }

    pub(super) async fn read_capacity_10(&self) -> Executed {
        self.check_size().await?;
        let (block, blocks) = (self.block(), self.blocks());
        let last = u32::try_from(blocks.saturating_sub(1)).unwrap_or(u32::MAX);
        let mut bytes = last.to_be_bytes().to_vec();
        bytes.extend_from_slice(&u32::try_from(block).unwrap_or(512).to_be_bytes());
        Ok(Reply::data(bytes, 8))
    }

    pub(super) async fn read_capacity_16(&self, cdb: &Cdb) -> Executed {
        self.check_size().await?;
        let (block, blocks) = (self.block(), self.blocks());
        let exponent = self.state().sectors.exponent();
        let mut bytes = blocks.saturating_sub(1).to_be_bytes().to_vec();
        bytes.extend_from_slice(&u32::try_from(block).unwrap_or(512).to_be_bytes());
        bytes.extend_from_slice(&[0, exponent]);
        // Provisioning is managed, and unmapped blocks read as zeros.
        bytes.extend_from_slice(&[0xc0, 0]);
        bytes.resize(32, 0);
        Ok(Reply::data(bytes, crate::bytes::index(cdb.u32_at(10))))
    }

    /// Notices when the volume has another size than before.
    async fn check_size(&self) -> Result<(), Sense> {
        let info = self.volume.info().await;
        let info = info.map_err(|error| Sense::of(error, false))?;
        let mut state = self.state();
        if state.bytes != info.size {
            state.bytes = info.size;
            state.add_attention_to_all(asc::CAPACITY_CHANGED, None);
        }
        Ok(())
    }
}

/// Longest write that is done in one transaction.
pub(super) fn atomic_bytes_max() -> u64 {
    engine::VOLUME_CHUNK_BYTES
}
