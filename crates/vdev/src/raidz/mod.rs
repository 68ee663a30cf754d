//! Blocks spread over several places with parity.
//!
//! Guarantees: a read that was given a check returns only bytes that passed it, as long as no stripe of the block has
//! more bad or missing columns than rows of parity, whether the devices report it or return wrong bytes; columns found bad are rewritten.
//! A write succeeds only if no stripe missed more columns than that.
//! What it does not know: labels, the meaning of transaction groups.

pub(crate) mod draid;
mod interval;
pub(crate) mod latency;
mod map;
mod read;
mod rebuild;
mod reflow;
pub(crate) mod shape;
mod sit_out;
mod solve;
mod write;

pub(crate) use interval::Interval;
pub(crate) use map::{Map, slot_ranges};
pub use reflow::ReflowProgress;
