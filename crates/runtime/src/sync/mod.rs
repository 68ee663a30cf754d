//! Synchronization of tasks on one thread: logical locks, permits, events and values.
//!
//! All primitives are cheap handles (`Clone` shares the same primitive), are fair (first come, first served), carry
//! the name that stall reports show, and give guards that own what they need, so a guard may live in a struct or
//! move into a task. Everything is `!Send`; for crossing threads see [`crate::mailbox`] and [`crate::reply`].

mod event;
mod mutex;
mod oneshot;
mod range_lock;
mod rwlock;
mod semaphore;
mod wait_queue;
mod watch;

pub use event::{Event, EventWait};
pub use mutex::{Mutex, MutexGuard};
pub use oneshot::{Closed, OneshotReceiver, OneshotSender, oneshot};
pub use range_lock::{Acquire, RangeGuard, RangeLock, WHOLE_RANGE};
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use semaphore::{Permit, Semaphore};
pub use watch::Watch;
