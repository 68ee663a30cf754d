//! Sizes that several versions and the sockets agree on.

/// The most one READ or WRITE moves, in bytes.
pub(crate) const TRANSFER_BYTES_MAX: usize = 1 << 20;
/// What an answer has besides data: the envelope, attributes, a handle; rounded up.
pub(crate) const ENVELOPE_BYTES: usize = 1024;

/// Operations of one COMPOUND. Linux sends up to 16, and ESXi fewer.
pub(crate) const OPERATIONS_MAX: u32 = 128;
/// The longest answer of version 4, in bytes: the largest READ and its envelope.
pub(crate) const REPLY_BYTES_MAX: u32 = (1 << 20) + (64 << 10);
/// The longest request, in bytes: the largest WRITE and its envelope.
pub(crate) const REQUEST_BYTES_MAX: u32 = (1 << 20) + (64 << 10);
