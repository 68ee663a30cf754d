//! Thin provisioning: UNMAP, WRITE SAME, GET LBA STATUS, SANITIZE. SBC-3 sections 4.7 and 5.

use engine::IoBuf;

use super::cdb::{service, service_action};
use super::sense::{Sense, asc};
use super::{Cdb, Command, Executed, LogicalUnit, Reply, op};
use crate::bytes::{Field as _, index};

/// Descriptors of one UNMAP.
pub(super) const UNMAP_DESCRIPTORS_MAX: u32 = 256;
/// Blocks of one UNMAP, in logical blocks.
pub(super) const UNMAP_BLOCKS_MAX: u32 = 1 << 20;
/// Blocks of one WRITE SAME.
pub(super) const WRITE_SAME_BLOCKS_MAX: u64 = 1 << 15;
/// Descriptors in one answer to GET LBA STATUS.
const STATUS_DESCRIPTORS_MAX: usize = 1024;

/// A range of UNMAP, in logical blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnmapRange {
    lba: u64,
    count: u64,
}

/// Reads the parameter list of UNMAP.
pub(super) fn parse_unmap(list: &[u8], _block: u64) -> Result<Vec<UnmapRange>, Sense> {
    if list.is_empty() {
        return Ok(Vec::new());
    }
    if list.len() < 8 {
        return Err(Sense::illegal(asc::PARAMETER_LENGTH));
    }
    let described = usize::from(list.u16_at(2)).min(list.len() - 8);
    let (mut ranges, mut blocks) = (Vec::new(), 0_u64);
    for at in (0..described / 16).map(|n| 8 + 16 * n) {
        let range = UnmapRange {
            lba: list.u64_at(at),
            count: u64::from(list.u32_at(at + 8)),
        };
        blocks = blocks.saturating_add(range.count);
        if ranges.len() >= index(UNMAP_DESCRIPTORS_MAX) || blocks > u64::from(UNMAP_BLOCKS_MAX) {
            return Err(Sense::parameter(at));
        }
        ranges.push(range);
    }
    Ok(ranges)
}

impl LogicalUnit {
    pub(super) async fn unmap(&self, command: &Command) -> Executed {
        if command.cdb[1] & 1 != 0 {
            // Anchoring is not supported.
            return Err(Sense::cdb(1));
        }
        let ranges = parse_unmap(&command.data.bytes(), self.block())?;
        let mut extents = Vec::with_capacity(ranges.len());
        for range in ranges {
            // Nothing at the very end is nothing, not an error.
            if range.count == 0 && range.lba <= self.blocks() {
                continue;
            }
            extents.push(self.extent(range.lba, range.count)?);
        }
        for extent in extents {
            self.tokens.revoke(extent.offset, extent.len);
            // Parts of blocks read as zeros too: LBPRZ promises it.
            let freed = self
                .volume
                .zero(extent.offset, extent.len, self.stability(false))
                .await;
            freed.map_err(|error| Sense::of(error, true))?;
        }
        Ok(Reply::good())
    }

    pub(super) async fn write_same(&self, command: &Command) -> Executed {
        let cdb = &command.cdb;
        let wide = cdb[0] == op::WRITE_SAME_16;
        if cdb[1] & 0xe0 != 0 {
            return Err(Sense::cdb(1));
        }
        let no_data = wide && cdb[1] & 0x01 != 0;
        // Anchoring is not supported.
        if cdb[1] & 0x10 != 0 {
            return Err(Sense::cdb(1));
        }
        let (lba, count) = if wide {
            (cdb.u64_at(2), u64::from(cdb.u32_at(10)))
        } else {
            (u64::from(cdb.u32_at(2)), u64::from(cdb.u16_at(7)))
        };
        // No blocks means all that follow. The block limits page says WSNZ=0.
        let count = if count == 0 {
            self.blocks().saturating_sub(lba)
        } else {
            count
        };
        let extent = self.extent(lba, count)?;
        if count > WRITE_SAME_BLOCKS_MAX {
            return Err(Sense::cdb(if wide { 10 } else { 7 }));
        }
        // With UNMAP the data does not matter, as with Linux's own target: what is unmapped reads as zeros.
        let unmap = cdb[1] & 0x08 != 0;
        let zeros = unmap || no_data || command.data.bytes().iter().all(|byte| *byte == 0);
        let stability = self.stability(false);
        if !no_data && command.data.len() as u64 != self.block() {
            return Err(Sense::cdb(0));
        }
        self.tokens.revoke(extent.offset, extent.len);
        if zeros {
            let done = self.volume.zero(extent.offset, extent.len, stability).await;
            return done
                .map(|()| Reply::good())
                .map_err(|error| Sense::of(error, true));
        }
        let step = (1 << 20_u64).min(extent.len.max(1));
        let copies = usize::try_from(step / self.block()).unwrap_or(1);
        let pattern = IoBuf::from(command.data.bytes().repeat(copies));
        let mut at = 0;
        while at < extent.len {
            let len = step.min(extent.len - at);
            let part = pattern.slice(0..usize::try_from(len).unwrap_or(0));
            let last = at + len == extent.len;
            let stability = if last {
                stability
            } else {
                engine::Stability::Unstable
            };
            let done = self.volume.write(extent.offset + at, part, stability).await;
            done.map_err(|error| Sense::of(error, true))?;
            at += len;
        }
        Ok(Reply::good())
    }

    pub(super) async fn get_lba_status(&self, cdb: &Cdb) -> Executed {
        let lba = cdb.u64_at(2);
        let (block, blocks) = (self.block(), self.blocks());
        if lba >= blocks {
            return Err(Sense::illegal(asc::LBA));
        }
        let allocated = index(cdb.u32_at(10));
        let room = (allocated.saturating_sub(8) / 16).clamp(1, STATUS_DESCRIPTORS_MAX);
        let map = self
            .volume
            .allocation(lba * block, (blocks - lba) * block, room + 1)
            .await;
        let map = map.map_err(|error| Sense::of(error, false))?;
        let mut bytes = vec![0; 8];
        let mut at = lba;
        for part in map.iter().take(room) {
            let end = (part.offset + part.len).div_ceil(block).min(blocks);
            let mut left = end.saturating_sub(at);
            while left > 0 && (bytes.len() - 8) / 16 < room {
                let count = u32::try_from(left).unwrap_or(u32::MAX);
                bytes.extend_from_slice(&at.to_be_bytes());
                bytes.extend_from_slice(&count.to_be_bytes());
                // 0 is mapped, 1 is deallocated.
                bytes.extend_from_slice(&[u8::from(!part.data), 0, 0, 0]);
                at += u64::from(count);
                left -= u64::from(count);
            }
        }
        let len = crate::bytes::len32(bytes.len() - 4);
        crate::bytes::put(&mut bytes, 0, &len.to_be_bytes());
        Ok(Reply::data(bytes, allocated))
    }

    /// SANITIZE: overwriting and block erase both leave zeros and free the space; what snapshots hold is theirs.
    pub(super) async fn sanitize(&self, command: &Command) -> Executed {
        let cdb = &command.cdb;
        let action = service_action(cdb);
        // Zoned no-reset and the reserved bytes.
        if cdb[1] & 0x40 != 0 || cdb.part(2, 5).iter().any(|byte| *byte != 0) {
            return Err(Sense::cdb(2));
        }
        let list = &command.data.bytes();
        let size = self.blocks() * self.block();
        match action {
            service::SANITIZE_OVERWRITE => {
                let block = self.block();
                let pattern_len = u64::from(list.u16_at(2));
                if list.len() < 5 || list.u8_at(0) & 0x1f == 0 {
                    return Err(Sense::parameter(0));
                }
                if pattern_len == 0 || pattern_len > block || list.len() as u64 != pattern_len + 4 {
                    return Err(Sense::parameter(2));
                }
                let pattern = list.part(4, usize::MAX).to_vec();
                self.tokens.revoke(0, size);
                self.overwrite(&pattern, size).await?;
            }
            service::SANITIZE_BLOCK_ERASE => {
                if !list.is_empty() {
                    return Err(Sense::cdb(7));
                }
                self.tokens.revoke(0, size);
                let done = self.volume.zero(0, size, engine::Stability::FileSync).await;
                done.map_err(|error| Sense::of(error, true))?;
            }
            // EXIT FAILURE MODE: no sanitize operation ever fails half-way here.
            _ => {
                if !list.is_empty() {
                    return Err(Sense::cdb(7));
                }
            }
        }
        Ok(Reply::good())
    }

    async fn overwrite(&self, pattern: &[u8], size: u64) -> Result<(), Sense> {
        let failed = |error| Sense::of(error, true);
        if pattern.iter().all(|byte| *byte == 0) {
            let done = self.volume.zero(0, size, engine::Stability::FileSync).await;
            return done.map_err(failed);
        }
        let block = usize::try_from(self.block()).unwrap_or(512);
        // The pattern begins anew in each block.
        let one: Vec<u8> = pattern.iter().copied().cycle().take(block).collect();
        let chunk = IoBuf::from(one.repeat((1 << 20) / block));
        let mut at = 0;
        while at < size {
            let len = (size - at).min(chunk.len() as u64);
            let part = chunk.slice(0..usize::try_from(len).unwrap_or(0));
            let done = self
                .volume
                .write(at, part, engine::Stability::Unstable)
                .await;
            done.map_err(failed)?;
            at += len;
        }
        self.volume.flush().await.map_err(failed)
    }
}
