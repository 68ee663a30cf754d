//! File systems on modelled disks: random work against a model in memory, and what POSIX says case by case.

mod cached;
mod delegated;
mod folded;
mod model;
mod posix;
mod rig;
