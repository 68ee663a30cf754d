//! Turns of a runtime that other threads take while its own one sleeps: what they ask of it, and needs no device, is answered without
//! waking that thread, and without waiting for it (docs/adr/0008).
//!
//! The thread that takes a turn runs the tasks which what it asks makes runnable, a few of them. What is left, operations of devices and
//! timers are the runtime's own thread's, which is woken for them.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::driver::Unpark;
use crate::executor::{Handle, Shared};
use crate::gate::Gate;
use crate::host::now;

/// The shortest pause between two requests after which a turn is taken. Where they come sooner, the runtime's own thread is the quicker one, which
/// spins for them, and keeps a processor awake that way for who waits for the answers (docs/measurements/2026-12-01-turns.md).
const PAUSE_MIN: Duration = Duration::from_micros(200);

/// Takes turns of one runtime, from any thread.
#[derive(Clone)]
pub struct Turns {
    /// `None` in a simulated world, where no turns are taken.
    gate: Option<Arc<Gate<Shared>>>,
    unpark: Arc<dyn Unpark>,
    /// When the last request ended, in nanoseconds of the monotonic clock.
    last_end: Arc<AtomicU64>,
}

impl Turns {
    /// Returns what takes turns of the handle's runtime, from now on.
    #[must_use]
    pub fn of(handle: &Handle) -> Self {
        Self {
            gate: handle.gate(),
            unpark: handle.unparker(),
            last_end: Arc::default(),
        }
    }

    /// Whether any are taken: then what is to run in them must be a task.
    #[must_use]
    pub fn are_taken(&self) -> bool {
        self.gate.is_some()
    }

    /// Notes that what was asked has its answer.
    pub fn note_end(&self) {
        if self.are_taken() {
            self.last_end.store(now().as_nanos(), Ordering::Relaxed);
        }
    }

    /// Calls `begin`, such as sending a message to a task, and runs the tasks that become runnable by it, if the runtime's own thread
    /// sleeps, this one is none of a runtime, and the last request ended a while ago. Returns false when not: `begin` has not been called then.
    ///
    /// # Panics
    /// When a task panics: its runtime's thread will panic, too.
    pub fn take(&self, begin: impl FnOnce()) -> bool {
        let Some(gate) = &self.gate else {
            return false;
        };
        let since_last = now()
            .as_nanos()
            .saturating_sub(self.last_end.load(Ordering::Relaxed));
        if u128::from(since_last) < PAUSE_MIN.as_nanos() {
            return false;
        }
        let wakes = Wakes {
            unpark: &*self.unpark,
            // It stays true when a task panics.
            is_needed: Cell::new(true),
        };
        let taken = gate.enter(|shared| shared.visit(begin)).flatten();
        wakes.is_needed.set(taken == Some(true));
        taken.is_some()
    }
}

/// Wakes the runtime's own thread when it is needed, after the gate was left.
struct Wakes<'a> {
    unpark: &'a dyn Unpark,
    is_needed: Cell<bool>,
}

impl Drop for Wakes<'_> {
    fn drop(&mut self) {
        if self.is_needed.get() {
            self.unpark.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    //! These run under miri too, with many schedules: `MIRIFLAGS=-Zmiri-many-seeds=0..16 cargo +nightly miri test -p runtime --lib turns`.

    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::{self, Thread};
    use std::time::Duration;

    use super::*;
    use crate::driver::{Completion, ComputeJob, DiskId, DiskOp, Driver, Sleeper, Token, Waited};
    use crate::executor::Runtime;
    use crate::host::now;
    use crate::mailbox::mailbox;
    use crate::reply::{ReplySender, reply};
    use crate::time::{Instant, Timestamp};

    /// A world without devices, whose thread parks.
    struct Parks(Arc<Parked>);

    struct Parked {
        thread: Thread,
        is_unparked: AtomicBool,
    }

    impl Unpark for Parked {
        fn unpark(&self) {
            self.is_unparked.store(true, Ordering::SeqCst);
            self.thread.unpark();
        }
    }

    struct ParkedUntil(Arc<Parked>, Option<Instant>);

    impl Sleeper for ParkedUntil {
        fn sleep(&mut self) {
            while !self.0.is_unparked.swap(false, Ordering::SeqCst) {
                match self.1 {
                    None => thread::park(),
                    Some(until) if now() >= until => return,
                    Some(until) => thread::park_timeout(until.since(now())),
                }
            }
        }
    }

    impl Driver for Parks {
        fn now(&self) -> Instant {
            now()
        }

        fn wall_clock(&self) -> Timestamp {
            Timestamp {
                seconds: 0,
                nanoseconds: 0,
            }
        }

        fn fill_random(&mut self, _bytes: &mut [u8]) {}

        fn submit(&mut self, _op: DiskOp, _token: Token) {}

        fn offload(&mut self, _job: ComputeJob, _token: Token) {}

        fn wait(&mut self, until: Option<Instant>, _done: &mut Vec<Completion>) -> Waited {
            if until.is_none_or(|until| until > now()) {
                ParkedUntil(self.0.clone(), until).sleep();
            }
            Waited::Progress
        }

        fn sleeps_apart(&self) -> bool {
            true
        }

        fn begin_wait(&mut self, until: Option<Instant>) -> Option<Rc<RefCell<dyn Sleeper>>> {
            Some(Rc::new(RefCell::new(ParkedUntil(self.0.clone(), until))))
        }

        fn close(&mut self, _disk: DiskId) {}

        fn unparker(&self) -> Arc<dyn Unpark> {
            self.0.clone()
        }

        fn name(&self) -> &'static str {
            "parks"
        }
    }

    /// Tasks that count by an `Rc`, some of them after a while, for threads that take turns, and for such as only send: each is counted once.
    #[test]
    fn tasks_that_share_run_on_one_thread_at_a_time() {
        const THREADS: u32 = 3;
        const ROUNDS: u32 = if cfg!(miri) { 6 } else { 500 };
        let (sender, mut receiver) = mailbox::<(u32, ReplySender<u32>)>(THREADS as usize);
        let (came_up, turns) = reply();
        let engine = thread::spawn(move || {
            let runtime = Runtime::new(Box::new(Parks(Arc::new(Parked {
                thread: thread::current(),
                is_unparked: AtomicBool::new(false),
            }))));
            let handle = runtime.handle();
            let count = Rc::new(Cell::new(0));
            let (counted, tasks) = (count.clone(), handle.clone());
            let serving = async move {
                while let Some((number, reply)) = receiver.receive().await {
                    let (count, handle) = (count.clone(), tasks.clone());
                    drop(tasks.spawn("request", async move {
                        if number % 4 == 0 {
                            handle.sleep(Duration::from_micros(20)).await;
                        }
                        count.set(count.get() + 1);
                        reply.send(number);
                    }));
                }
            };
            came_up.send(Turns::of(&handle));
            runtime.block_on(async { handle.spawn("serving", serving).await });
            counted.get()
        });
        let turns = turns.wait().expect("it is up");
        let clients: Vec<_> = (0..THREADS)
            .map(|_| {
                let (sender, turns) = (sender.clone(), turns.clone());
                thread::spawn(move || {
                    for round in 0..ROUNDS {
                        let (reply, answer) = reply();
                        let mut message = Some((round, reply));
                        if round % 3 > 0 {
                            turns.take(|| {
                                let sent = message.take().map(|message| sender.try_send(message));
                                assert!(matches!(sent, Some(Ok(()))), "each thread has one");
                            });
                        }
                        if let Some(message) = message {
                            sender.blocking_send(message).expect("it lives");
                        }
                        assert_eq!(answer.wait(), Ok(round));
                        if round % 2 == 0 {
                            turns.note_end();
                            thread::sleep(PAUSE_MIN);
                        }
                    }
                })
            })
            .collect();
        for client in clients {
            client.join().expect("no panic");
        }
        drop(sender);
        assert_eq!(engine.join().expect("no panic"), THREADS * ROUNDS);
        assert!(!turns.take(|| panic!("it has ended")));
    }
}
