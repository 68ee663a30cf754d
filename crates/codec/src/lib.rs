//! Pure transforms of buffers: checksums, compression, encryption and raidz parity, with their SIMD forms.
//!
//! Guarantees: no I/O, no state, no panics on any input; decoders never produce more than the caller allows.
//! What it does not know: block pointers, objects, or which function a block should use.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod checksum;
pub mod compress;
pub mod crypt;
pub mod parity;
