//! Tests of the object layer over a block store in memory.

mod counting;
mod driver;
pub(crate) mod memory;
mod model;
mod passes;
mod rig;
mod scale;
mod zaps;
