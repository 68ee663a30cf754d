//! The queue of one leaf: classes of I/O, priorities and bounded concurrency.

/// Why an I/O is done; decides its priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IoClass {
    /// Somebody waits for the bytes.
    SyncRead,
    /// Somebody waits for durability (intent log, labels).
    SyncWrite,
    /// Prefetch.
    AsyncRead,
    /// Transaction-group writes.
    AsyncWrite,
    /// Scrub and resilver, and repairs.
    Scrub,
    /// Discards.
    Trim,
}
