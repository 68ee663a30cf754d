//! The gate to what belongs to one thread: open while that thread sleeps, so that others may use it meanwhile, one at a time.
//!
//! Does not know runtimes: see `turns`.

use std::hint;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::Duration;

use crate::host::now;

/// How long to wait for another thread that is inside: what a few small reads from memory take.
const WAIT_MAX: Duration = Duration::from_micros(8);

/// The gate. What is inside is there while it is open.
pub(crate) struct Gate<T> {
    inside: Mutex<Option<Inside<T>>>,
}

struct Inside<T>(NonNull<T>);

// SAFETY: it is dereferenced in `Gate::enter` only, with the lock held, while the thread that owns it is in `Gate::open_while`, whose caller
// promised not to use it meanwhile: a thread that uses it has synchronised with all uses before.
unsafe impl<T> Send for Inside<T> {}

/// Closes the gate, as soon as no thread is inside.
struct Closing<'a, T>(&'a Gate<T>);

impl<T> Drop for Closing<'_, T> {
    fn drop(&mut self) {
        let inside = self.0.inside.lock();
        *inside.unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl<T> Gate<T> {
    pub(crate) const fn new() -> Self {
        Self {
            inside: Mutex::new(None),
        }
    }

    /// Lets other threads use `inside` while `sleep` runs on this one.
    ///
    /// # Safety
    /// `sleep` uses nothing of `inside`, nor anything else that what others do inside may use and that is not made for several threads (what
    /// is shared by `Rc`, for one).
    ///
    /// # Panics
    /// When another thread panicked inside: what is there may be half changed.
    pub(crate) unsafe fn open_while(&self, inside: &T, sleep: impl FnOnce()) {
        let closing = Closing(self);
        *self.inside.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Inside(NonNull::from(inside)));
        sleep();
        drop(closing);
        assert!(
            !self.inside.is_poisoned(),
            "a task panicked while another thread ran it"
        );
    }

    /// Does something inside. `None` when the gate is closed, or another thread is inside for longer than a moment.
    pub(crate) fn enter<R>(&self, work: impl FnOnce(&T) -> R) -> Option<R> {
        let mut since = None;
        loop {
            match self.inside.try_lock() {
                Ok(inside) => {
                    // SAFETY: the thread that owns it borrows it until it has closed the gate, for which it needs the lock, and does not
                    // use it. Others that do hold the lock.
                    let inside = inside.as_ref().map(|inside| unsafe { inside.0.as_ref() });
                    return inside.map(work);
                }
                Err(TryLockError::Poisoned(_)) => return None,
                Err(TryLockError::WouldBlock) => {
                    if now().since(*since.get_or_insert_with(now)) > WAIT_MAX {
                        return None;
                    }
                    hint::spin_loop();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! These run under miri too.

    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::thread;

    use super::*;

    /// Two threads count by an `Rc` that belongs to a third one, which counts, too, whenever the gate is closed.
    #[test]
    fn one_thread_at_a_time_is_inside() {
        const ROUNDS: u32 = if cfg!(miri) { 20 } else { 2000 };
        let gate = Arc::new(Gate::<Rc<Cell<u32>>>::new());
        let (ends, entered) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU32::new(0)),
        );
        let visitors: Vec<_> = (0..2)
            .map(|_| {
                let (gate, ends, entered) = (gate.clone(), ends.clone(), entered.clone());
                thread::spawn(move || {
                    while !ends.load(Ordering::Relaxed) {
                        let count = |count: &Rc<Cell<u32>>| {
                            let again = count.clone();
                            again.set(again.get() + 1);
                            entered.fetch_add(1, Ordering::Relaxed);
                        };
                        if gate.enter(count).is_none() {
                            thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let count = Rc::new(Cell::new(0));
        let mut own = 0;
        while own < ROUNDS || entered.load(Ordering::Relaxed) < 10 {
            // SAFETY: the closure uses nothing of the count.
            unsafe { gate.open_while(&count, thread::yield_now) };
            count.set(count.get() + 1);
            own += 1;
        }
        ends.store(true, Ordering::Relaxed);
        for visitor in visitors {
            visitor.join().expect("no panic");
        }
        assert_eq!(count.get(), own + entered.load(Ordering::Relaxed));
        assert_eq!(Rc::strong_count(&count), 1);
        assert_eq!(gate.enter(|_| ()), None, "it is closed");
    }

    #[test]
    fn a_panic_inside_is_one_of_the_thread_that_owns_it() {
        let gate = Arc::new(Gate::<u32>::new());
        let visits = gate.clone();
        let opened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // SAFETY: the closure uses nothing of the number.
            unsafe {
                gate.open_while(&7, || {
                    let visitor =
                        thread::spawn(move || visits.enter(|seven| assert_ne!(*seven, 7)));
                    assert!(visitor.join().is_err());
                });
            }
        }));
        assert!(opened.is_err());
        assert_eq!(gate.enter(|_| ()), None);
    }
}
