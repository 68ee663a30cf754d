//! The seam between the executor and the world.
//!
//! A [`Driver`] answers for time, randomness, disks and computing. The host drivers ask the kernel; the simulator
//! models everything. The executor, and all engine code above it, is the same in both.
//!
//! Contract: every operation given to [`Driver::submit`] or [`Driver::offload`] comes back exactly once from
//! [`Driver::wait`] with its token. The driver owns an operation's buffer until then.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::buf::{IoBuf, IoBufMut};
use crate::disk_types::{DiskError, DiskInfo, DiskMode};
use crate::time::{Instant, Timestamp};

/// Names one outstanding operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub usize);

/// Names an open disk within one driver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DiskId(pub u32);

/// What a driver can be asked to do with disks. Offsets and lengths are in bytes.
#[derive(Debug)]
pub enum DiskOp {
    /// Answered by [`Outcome::Opened`].
    Open { path: PathBuf, mode: DiskMode },
    /// Answered by [`Outcome::Listed`].
    List { dir: PathBuf },
    /// Fills the whole buffer; answered by [`Outcome::Read`].
    Read {
        disk: DiskId,
        offset: u64,
        buf: IoBufMut,
    },
    /// Answered by [`Outcome::Done`], and not durable before a later flush; by [`Outcome::Through`], and durable then, if it goes
    /// `through`.
    Write {
        disk: DiskId,
        offset: u64,
        data: IoBuf,
        through: bool,
    },
    /// Makes every write completed before the submission durable; answered by [`Outcome::Done`].
    Flush { disk: DiskId },
    /// Gives the range back to the device; reads of it then return anything the device likes (zeros on files).
    Discard { disk: DiskId, offset: u64, len: u64 },
}

/// The end of an operation.
pub struct Completion {
    pub token: Token,
    pub outcome: Outcome,
}

/// How an operation ended.
pub enum Outcome {
    Opened(Result<(DiskId, DiskInfo), DiskError>),
    Listed(Result<Vec<PathBuf>, DiskError>),
    Read(Result<IoBufMut, DiskError>),
    Done(Result<(), DiskError>),
    /// A write that went through: when the device had the bytes. It made them durable from then on.
    Through(Result<Instant, DiskError>),
    /// A compute job has run; the job itself carries its result.
    Computed,
}

/// A job for the compute pool.
pub type ComputeJob = Box<dyn FnOnce() + Send>;

/// What came of waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// Time passed, something completed, or another thread unparked.
    Progress,
    /// Nothing is outstanding, no time was given, and no other thread could wake the executor: this world can never go on.
    /// Only simulated drivers can know that.
    Stalled,
    /// The world ended (simulated power cut). The executor stops at once.
    Halted,
}

/// Ends a sleep of the executor from any thread.
pub trait Unpark: Send + Sync {
    /// Makes the current or the next [`Driver::wait`] return.
    fn unpark(&self);
}

/// What a driver sleeps in: apart from the driver, which other threads may use meanwhile (see `turns`).
pub trait Sleeper {
    /// Spins before the sleep, where that has been worth it.
    fn spin(&mut self) {}

    /// Sleeps as it was prepared, or until unparked.
    fn sleep(&mut self);
}

/// The world. See the module documentation for the contract.
pub trait Driver {
    /// Returns the monotonic time. Never goes back.
    fn now(&self) -> Instant;

    /// Returns the wall-clock time.
    fn wall_clock(&self) -> Timestamp;

    /// Returns a clock of the processor time that the thread which asks it has used. One that stands still measures nothing.
    fn cpu_clock(&self) -> fn() -> Duration {
        || Duration::ZERO
    }

    /// Fills `bytes` with random data (host: from the kernel; simulation: from the seed).
    fn fill_random(&mut self, bytes: &mut [u8]);

    /// Starts a disk operation.
    fn submit(&mut self, op: DiskOp, token: Token);

    /// Starts a compute job; its completion is [`Outcome::Computed`].
    fn offload(&mut self, job: ComputeJob, token: Token);

    /// Appends completions to `done`, waiting for the first one until `until` (`None`: for ever). With an `until`
    /// that has passed it only looks. Also returns when unparked.
    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> Waited;

    /// Whether [`Driver::begin_wait`] does anything: a simulated thread sleeps in simulated time only.
    fn sleeps_apart(&self) -> bool {
        false
    }

    /// Prepares a [`Driver::wait`] in which the thread sleeps without using the driver: between this and [`Driver::end_wait`] other threads may
    /// submit operations and offload jobs. `None`: there is nothing to sleep for, or this driver cannot do that.
    fn begin_wait(&mut self, until: Option<Instant>) -> Option<Rc<RefCell<dyn Sleeper>>> {
        let _ = until;
        None
    }

    /// Ends what [`Driver::begin_wait`] began, as [`Driver::wait`] does.
    fn end_wait(&mut self, done: &mut Vec<Completion>) -> Waited {
        let _ = done;
        Waited::Progress
    }

    /// Whether there is something to do that only the executor's thread can, such as giving operations to the kernel.
    fn has_submissions(&self) -> bool {
        false
    }

    /// Chooses the next task out of `runnable` (at least 1) in order of becoming runnable.
    fn pick(&mut self, runnable: usize) -> usize {
        debug_assert!(runnable > 0);
        0
    }

    /// Is called before each poll.
    fn note_poll(&mut self, task: u64, name: &'static str) {
        let _ = (task, name);
    }

    /// Ends the use of a disk. Operations still outstanding are completed.
    fn close(&mut self, disk: DiskId);

    /// Returns what other threads use to end a sleep.
    fn unparker(&self) -> Arc<dyn Unpark>;

    /// Names the driver in reports.
    fn name(&self) -> &'static str;
}
