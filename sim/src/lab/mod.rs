//! The crash lab: very many power cuts, judged against an oracle of everything that was acknowledged.
//!
//! ```text
//!  one seed:  create -- clients at work ------------------------------> end
//!                          | moment | moment | moment ...                | moment
//!                          v        v        v                           v
//!                        cut x2   cut x2   cut x2      each: import, replay, look at everything, judge;
//!                          |                            some: power goes again in the middle of the import
//!                          v
//!                       judged
//! ```
//! A moment keeps the disks (shared, copy on write), what their caches hold, and what had been acknowledged. Cutting the
//! power at a moment is then only the import and the look: the run itself is paid once for all its cuts. A campaign
//! ([`crate::campaign`]) runs on after a cut and is judged by the checker each time; the lab trades that for numbers, and
//! asks the checker for a sample.
//!
//! Each cut is decided by the seed and its number, so one of them can be tried alone (`--cut`).

pub mod command;
pub mod ledger;
mod plan;
mod trial;

pub use plan::plan_of_seed;
pub use trial::{Counts, Options, Violation, run};
