//! Tests of the object layer over a block store in memory.

mod driver;
pub(crate) mod memory;
mod model;
mod rig;
mod zaps;
