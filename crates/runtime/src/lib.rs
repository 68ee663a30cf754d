//! The world as the engine sees it: tasks, time, randomness, compute jobs, disks, mailboxes.
//!
//! One executor, two kinds of world. A [`Runtime`] runs `async` tasks on one thread over a [`Driver`]: a host driver
//! ([`host::Threads`], [`host::Uring`]) asks the kernel; the simulator's driver (crate `sim`) models time, disks and
//! schedules by seed. The code above cannot tell the difference.
//!
//! Rules for users: futures are `!Send`; no borrow of a `RefCell` is held across an await; tasks are not cancelled by
//! dropping their handle; every wait has a name.
//!
//! Only `host` calls the kernel for time, threads or devices. Does not know ZFS.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod arena;
mod buf;
mod combine;
mod disk;
mod disk_types;
mod driver;
mod executor;
mod gate;
#[allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the one place where the kernel is asked for time and threads"
)]
pub mod host;
pub mod mailbox;
mod mapping;
pub mod reply;
mod slab;
mod stats;
pub mod sync;
mod time;
mod timer;
mod timer_queue;
mod turns;

pub use arena::{
    give_back_free, give_back_idle, keep_free, prefault, register_at_most, wait_for_prefault,
};
pub use buf::{ALIGNMENT, IoBuf, IoBufMut};
pub use combine::{Either, join, join_all, select, timeout, waiting_as};
pub use disk::Disk;
pub use disk_types::{DiskAction, DiskError, DiskInfo, DiskKind, DiskMode};
pub use driver::{
    Completion, ComputeJob, DiskId, DiskOp, Driver, Outcome, Sleeper, Token, Unpark, Waited,
};
pub use executor::{
    COMPUTE_WORTHWHILE_BYTES, Handle, JoinHandle, Runtime, Stopped, note_wait, noted_wait,
    wake_after_turn,
};
pub use mailbox::mailbox;
pub use mapping::map_large_blocks_of_heap;
pub use reply::reply;
pub use stats::{LONG_POLL, StallReport, StalledTask, Stats};
pub use time::{Instant, Timestamp};
pub use timer::Sleep;
pub use turns::Turns;
