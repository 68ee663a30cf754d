//! EXTENDED COPY and RECEIVE COPY RESULTS: units copied to units without their bytes crossing the network. SPC-4 sections 6.3,
//! 6.4 and 6.20 ff. (the forms with one-byte list identifiers).

use std::sync::Arc;

use engine::VolumeError;

use super::cdb::{service, service_action};
use super::copy_results::CopyResult;
use super::extent::Extent;
use super::sense::{Sense, asc, key};
use super::{Command, CommandClass, Executed, LogicalUnit, Reply};
use crate::bytes::{Field as _, index, len16, len32, put};

/// Target descriptors of one list.
pub(super) const TARGETS_MAX: usize = 16;
/// Segment descriptors of one list.
pub(super) const SEGMENTS_MAX: usize = 64;
/// Bytes of one segment.
pub(super) const SEGMENT_BYTES_MAX: usize = 64 << 20;
/// Bytes of all descriptors.
pub(super) const LIST_BYTES_MAX: usize = TARGETS_MAX * 32 + SEGMENTS_MAX * 32;
/// Kinds of descriptors: block to block, the same with offsets in bytes, identification of a target.
pub(super) const DESCRIPTORS: &[u8] = &[0x02, 0x0a, 0xe4];
/// A target descriptor: the designator of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Designator {
    kind: u8,
    id: Vec<u8>,
}

/// A segment to be copied, in logical blocks or, with offsets, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    source: usize,
    target: usize,
    from_lba: u64,
    to_lba: u64,
    amount: u64,
    in_bytes: bool,
    from_offset: u64,
    to_offset: u64,
}

/// A parameter list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct List {
    id: u8,
    /// List identifiers are not used, and no results are kept.
    discard: bool,
    targets: Vec<Designator>,
    segments: Vec<Segment>,
}

/// Reads a parameter list.
pub(super) fn parse(list: &[u8]) -> Result<Option<List>, Sense> {
    if list.is_empty() {
        return Ok(None);
    }
    if list.len() < 16 {
        return Err(Sense::illegal(asc::PARAMETER_LENGTH));
    }
    let (targets_len, segments_len) = (usize::from(list.u16_at(2)), index(list.u32_at(8)));
    let inline_len = index(list.u32_at(12));
    let described = targets_len.saturating_add(segments_len);
    if described > LIST_BYTES_MAX || described.saturating_add(inline_len) > list.len() - 16 {
        return Err(Sense::illegal(asc::PARAMETER_LENGTH));
    }
    if inline_len != 0 {
        return Err(Sense::parameter(12));
    }
    if targets_len / 32 > TARGETS_MAX {
        return Err(Sense::illegal(asc::TOO_MANY_TARGETS));
    }
    let mut targets = Vec::new();
    let mut at = 16;
    while at < 16 + targets_len {
        let bytes = list.part(at, 32);
        if bytes.len() < 32 || at + 32 > 16 + targets_len {
            return Err(Sense::illegal(asc::PARAMETER_LENGTH));
        }
        if bytes.u8_at(0) != 0xe4 {
            return Err(Sense::illegal(asc::UNSUPPORTED_TARGET));
        }
        let len = usize::from(bytes.u8_at(7)).min(20);
        targets.push(Designator {
            kind: bytes.u8_at(5) & 0x0f,
            id: bytes.part(8, len).to_vec(),
        });
        at += 32;
    }
    let end = at + segments_len;
    let mut segments = Vec::new();
    while at < end {
        if segments.len() >= SEGMENTS_MAX {
            return Err(Sense::illegal(asc::TOO_MANY_SEGMENTS));
        }
        let kind = list.u8_at(at);
        if !matches!(kind, 0x02 | 0x0a) {
            return Err(Sense::illegal(asc::UNSUPPORTED_SEGMENT));
        }
        let len = 4 + usize::from(list.u16_at(at + 2));
        let wanted = if kind == 0x02 { 28 } else { 32 };
        if len != wanted || at + len > end {
            return Err(Sense::parameter(at + 2));
        }
        let bytes = list.part(at, len);
        let in_bytes = kind == 0x0a;
        segments.push(Segment {
            source: usize::from(bytes.u16_at(4)),
            target: usize::from(bytes.u16_at(6)),
            from_lba: bytes.u64_at(12),
            to_lba: bytes.u64_at(20),
            amount: if in_bytes {
                u64::from(bytes.u32_at(8))
            } else {
                u64::from(bytes.u16_at(10))
            },
            in_bytes,
            from_offset: if in_bytes {
                u64::from(bytes.u16_at(28))
            } else {
                0
            },
            to_offset: if in_bytes {
                u64::from(bytes.u16_at(30))
            } else {
                0
            },
        });
        at += len;
    }
    Ok(Some(List {
        id: list.u8_at(0),
        discard: list.u8_at(1) >> 3 & 3 == 3,
        targets,
        segments,
    }))
}

fn aborted(what: super::sense::Asc) -> Sense {
    Sense::new(key::COPY_ABORTED, what)
}

/// Finds the unit that a designator names, among those the initiator can reach here.
fn find(command: &Command, designator: &Designator) -> Option<Arc<LogicalUnit>> {
    let seen = command.target.units_for(&command.nexus);
    seen.into_iter().find(|unit| {
        let naa = unit.naa();
        let guid = unit.identity().to_be_bytes();
        match designator.kind {
            3 => designator.id == naa,
            2 => designator.id == guid,
            1 => designator.id.ends_with(unit.serial().as_bytes()),
            _ => false,
        }
    })
}

impl LogicalUnit {
    pub(super) async fn extended_copy(&self, command: &Command) -> Executed {
        let Some(list) = parse(&command.data.bytes())? else {
            return Ok(Reply::good());
        };
        let units: Vec<Option<Arc<Self>>> = list
            .targets
            .iter()
            .map(|designator| find(command, designator))
            .collect();
        let (mut done, mut bytes) = (0_u16, 0);
        let mut outcome = Ok(());
        for segment in &list.segments {
            match copy_segment(command, &units, segment).await {
                Ok(copied) => {
                    done += 1;
                    bytes += copied;
                }
                Err(sense) => {
                    outcome = Err(sense);
                    break;
                }
            }
        }
        if !list.discard {
            self.state().copies.add(CopyResult {
                nexus: command.nexus.id,
                list: list.id,
                segments: done,
                bytes,
                failed: outcome.is_err(),
            });
        }
        outcome.map(|()| Reply::good())
    }

    pub(super) fn receive_copy_results(&self, command: &Command) -> Executed {
        let cdb = &command.cdb;
        let allocated = index(cdb.u32_at(10));
        if service_action(cdb) == service::RECEIVE_COPY_OPERATING_PARAMETERS {
            return Ok(Reply::data(operating_parameters(), allocated));
        }
        let nexus = command.nexus.id;
        let Some(found) = self.state().copies.take(nexus, cdb[2]) else {
            return Err(Sense::cdb(2));
        };
        let mut bytes = vec![0; 12];
        put(&mut bytes, 0, &8_u32.to_be_bytes());
        put(&mut bytes, 4, &[if found.failed { 2 } else { 1 }]);
        put(&mut bytes, 5, &found.segments.to_be_bytes());
        // Transfer counts in units of 1024 bytes when they are large.
        let (unit, count) = match u32::try_from(found.bytes) {
            Ok(count) => (0, count),
            Err(_) => (1, u32::try_from(found.bytes >> 10).unwrap_or(u32::MAX)),
        };
        put(&mut bytes, 7, &[unit]);
        put(&mut bytes, 8, &count.to_be_bytes());
        Ok(Reply::data(bytes, allocated))
    }
}

async fn copy_segment(
    command: &Command,
    units: &[Option<Arc<LogicalUnit>>],
    segment: &Segment,
) -> Result<u64, Sense> {
    let unit = |index: usize| units.get(index).cloned().flatten();
    let (Some(source), Some(target)) = (unit(segment.source), unit(segment.target)) else {
        return Err(aborted(asc::UNREACHABLE_TARGET));
    };
    let len = if segment.in_bytes {
        segment.amount
    } else {
        segment.amount * source.block()
    };
    if len > SEGMENT_BYTES_MAX as u64 {
        return Err(Sense::parameter(0));
    }
    let place = |unit: &LogicalUnit, lba: u64, offset: u64| -> Result<Extent, Sense> {
        let offset = lba
            .checked_mul(unit.block())
            .and_then(|at| at.checked_add(offset));
        let end = unit.blocks() * unit.block();
        match offset.and_then(|offset| Some((offset, offset.checked_add(len)?))) {
            Some((offset, last)) if last <= end => Ok(Extent { offset, len }),
            _ => Err(aborted(asc::NONE)),
        }
    };
    let from = place(&source, segment.from_lba, segment.from_offset)?;
    let to = place(&target, segment.to_lba, segment.to_offset)?;
    copy(command, &source, from, &target, to.offset).await
}

/// Copies bytes between units, checking what a read and a write would check. Returns how many.
pub(super) async fn copy(
    command: &Command,
    source: &LogicalUnit,
    from: Extent,
    target: &LogicalUnit,
    to: u64,
) -> Result<u64, Sense> {
    let read = super::Cdb::default();
    if source.conflicts(&command.nexus, &read, CommandClass::Read)
        || target.conflicts(&command.nexus, &read, CommandClass::Write)
    {
        return Err(aborted(asc::UNREACHABLE_TARGET));
    }
    let mut write = super::Cdb::default();
    write[0] = super::op::WRITE_16;
    if let Some(refusal) = target.access_refusal(&write, CommandClass::Write) {
        return Err(aborted(refusal.asc));
    }
    if from.len == 0 {
        return Ok(0);
    }
    target.tokens.revoke(to, from.len);
    let stability = target.stability(false);
    let copied = target
        .volume
        .copy_from(&source.volume, from.offset, to, from.len, stability)
        .await;
    match copied {
        Ok(()) => Ok(from.len),
        // Another pool: the bytes go through us.
        Err(VolumeError::NotSupported) => relay(source, from, target, to).await,
        Err(error) => Err(Sense::of(error, true)),
    }
}

async fn relay(
    source: &LogicalUnit,
    from: Extent,
    target: &LogicalUnit,
    to: u64,
) -> Result<u64, Sense> {
    let mut at = 0;
    while at < from.len {
        let step = (from.len - at).min(1 << 20);
        let len = usize::try_from(step).unwrap_or(0);
        let pieces = source.volume.read(from.offset + at, len).await;
        let pieces = pieces.map_err(|error| Sense::of(error, false))?;
        let bytes: Vec<u8> = pieces
            .iter()
            .flat_map(|piece| piece.iter().copied())
            .collect();
        let last = at + step == from.len;
        let stability = if last {
            target.stability(false)
        } else {
            engine::Stability::Unstable
        };
        let written = target
            .volume
            .write(to + at, engine::IoBuf::from(bytes), stability)
            .await;
        written.map_err(|error| Sense::of(error, true))?;
        at += step;
    }
    Ok(from.len)
}

fn operating_parameters() -> Vec<u8> {
    let mut bytes = vec![0; 44];
    // SNLID: a list may go without an identifier.
    put(&mut bytes, 4, &[1]);
    put(&mut bytes, 8, &len16(TARGETS_MAX).to_be_bytes());
    put(&mut bytes, 10, &len16(SEGMENTS_MAX).to_be_bytes());
    put(&mut bytes, 12, &len32(LIST_BYTES_MAX).to_be_bytes());
    put(&mut bytes, 16, &len32(SEGMENT_BYTES_MAX).to_be_bytes());
    put(&mut bytes, 34, &[0, 64, 64, 9]);
    put(
        &mut bytes,
        43,
        &[u8::try_from(DESCRIPTORS.len()).unwrap_or(0)],
    );
    bytes.extend_from_slice(DESCRIPTORS);
    let len = len32(bytes.len() - 4);
    put(&mut bytes, 0, &len.to_be_bytes());
    bytes
}
