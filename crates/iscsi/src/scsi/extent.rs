//! Blocks that commands name.

/// Blocks that a command names, as bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl Extent {
    pub(super) fn bytes(self) -> usize {
        usize::try_from(self.len).unwrap_or(usize::MAX)
    }
}
