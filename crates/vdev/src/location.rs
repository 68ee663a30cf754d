//! Where bytes are on a top-level vdev.

use ondisk::Txg;

/// A byte range of one top-level vdev. Offset 0 is the first allocatable byte. Offset and size are multiples of the
/// vdev's sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// Top-level vdev id.
    pub vdev: u32,
    /// Bytes from the start of the allocatable area.
    pub offset: u64,
    /// Length in bytes: the block's, in whole sectors, without parity or padding.
    pub size: u64,
    /// Txg in which the bytes were or are written: leaves that lack it are read last, and an expanded raidz lays out
    /// blocks by it.
    pub born: Txg,
}
