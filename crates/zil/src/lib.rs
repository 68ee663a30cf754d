//! The intent log of one objset. For now only what an import must know: whether a log waits to be replayed.

#![forbid(unsafe_code)]

use ondisk::Txg;
use ondisk::zil::{LogBlock, ZilHeader};
use std::sync::Arc;
use vdev::{IoClass, Location, Tree, VdevError};

/// What an intent log found at import holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogState {
    /// Nothing: there is no log.
    None,
    /// A first block that was set aside for records and got none: what a file system leaves that was unmounted cleanly.
    Empty,
    /// Records, acknowledged and perhaps on disk nowhere else. They must be replayed before the dataset is written.
    Records,
}

/// Finds out whether a log holds records, by reading its first block.
///
/// `synced` is the txg of the uberblock the pool was opened with. A log that cannot be read, or whose first block was
/// set aside after that uberblock, counts as one with records.
/// Facts: docs/format/10-zil-arc.md, sections 1 to 3 (a block that does not verify ends the chain).
///
/// # Errors
/// [`VdevError`] when no copy of the block can be read.
pub async fn log_state(
    tree: &Tree,
    header: &ZilHeader,
    synced: Txg,
) -> Result<LogState, VdevError> {
    let bp = header.log;
    if bp.is_hole() {
        return Ok(LogState::None);
    }
    let dva = bp.dvas()[0];
    if bp.is_embedded() || bp.is_gang() || header.claim_txg != 0 || bp.birth() > synced {
        return Ok(LogState::Records);
    }
    let at = Location {
        vdev: dva.vdev,
        offset: dva.offset,
        size: bp.psize(),
    };
    let check = Arc::new(move |bytes: &runtime::IoBuf| {
        let salt = [0; 32];
        let sum = |kind| move |data: &[u8]| codec::checksum::compute(kind, &salt, data);
        let fletcher4 = sum(codec::checksum::Algorithm::Fletcher4);
        let fletcher2 = sum(codec::checksum::Algorithm::Fletcher2);
        let block = LogBlock::open(bytes, &bp, fletcher4, fletcher2);
        Some(block.map_or(LogState::Empty, |block| {
            // A block without records may still lead to one with some.
            if block.next.is_hole() && block.records.is_empty() {
                LogState::Empty
            } else {
                LogState::Records
            }
        }))
    });
    tree.read_with(at, IoClass::SyncRead, check).await
}

/// Whether the objset with this intent log header has records that only the log holds.
///
/// A header is also non-empty while a file system is mounted elsewhere; either way the dataset must not be written
/// before the log was replayed or thrown away. OpenZFS: module/zfs/zil.c.
#[must_use]
pub fn has_log(header: &ZilHeader) -> bool {
    !header.is_empty()
}

/// As [`has_log`], from the header bytes of an objset block; bytes that do not decode count as a log.
#[must_use]
pub fn has_log_bytes(header: &[u8]) -> bool {
    ZilHeader::decode(header).map_or(true, |h| has_log(&h))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_and_not() {
        assert!(!has_log_bytes(&[0; ZilHeader::SIZE]));
        assert!(has_log_bytes(&[]));
        let mut bytes = [0; ZilHeader::SIZE];
        bytes[16] = 1;
        assert!(has_log_bytes(&bytes));
    }
}
