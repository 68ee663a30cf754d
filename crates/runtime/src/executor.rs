//! The executor: tasks of one thread, their run queue, timers, and the loop around a [`Driver`].
//!
//! Guarantees: between two awaits a task runs alone; which runnable task goes next is the driver's choice (first come
//! first served on the host, by seed in simulation), so a simulated run is a function of its seed; a spawned task runs
//! to its end, dropping its handle only detaches it. Every wait has a name, so [`Handle::stall_report`] can say what
//! each task waits for.
//! Does not know disks beyond passing operations to the driver.

use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use async_task::Runnable;
use thiserror::Error;

use crate::driver::{
    Completion, ComputeJob, DiskId, DiskOp, Driver, Outcome, Token, Unpark, Waited,
};
use crate::gate::Gate;
use crate::slab::Slab;
use crate::stats::{LONG_POLL, StallReport, StalledTask, Stats};
use crate::time::{Instant, Timestamp};
use crate::timer_queue::TimerQueue;

/// Polls between two looks at the driver, so that a busy executor still collects completions. 64: a look costs less
/// than a microsecond, 64 polls some ten.
const POLLS_PER_LOOK: usize = 64;
/// Polls that took so long are enough: what a device has done, and what it is to do next, waits for the look.
const LOOK_AFTER: Duration = Duration::from_micros(100);
/// Polls after which tasks of other threads are woken that were to be woken after the turn: what one of them is given then
/// is worth its wake-up, and the first waits some ten microseconds longer at most.
const POLLS_PER_TURN: usize = 16;
/// Polls of a thread that takes a turn of another one's runtime: of the task that takes messages, of the one it spawns, and a few more. What
/// is left is the other thread's.
const POLLS_PER_VISIT: usize = 8;

/// Why [`Runtime::run`] ended before its future.
#[derive(Debug, Error)]
pub enum Stopped {
    /// Nothing can ever happen again.
    #[error("stalled: no runnable task, no timer, nothing outstanding\n{0}")]
    Stalled(StallReport),
    /// The driver ended the world (simulated power cut).
    #[error("the world was halted")]
    Halted,
}

/// An executor and its driver. Lives on one thread; dropping it drops all its tasks.
pub struct Runtime {
    shared: Rc<Shared>,
}

/// Access to the world for tasks. Cheap to clone; stays on the runtime's thread.
#[derive(Clone)]
pub struct Handle {
    shared: Rc<Shared>,
}

/// What a runtime's tasks, handles and loop share. Used by one thread at a time: the runtime's own, or one that takes a turn while that one
/// sleeps (`turns`).
pub(crate) struct Shared {
    driver: RefCell<Box<dyn Driver>>,
    queue: Arc<RunQueue>,
    tasks: RefCell<Slab<TaskRecord>>,
    ops: RefCell<Slab<OpState>>,
    timers: RefCell<TimerQueue>,
    stats: RefCell<Stats>,
    next_task: Cell<u64>,
    main_waiting_for: Cell<&'static str>,
    /// Made when turns are to be taken.
    gate: OnceCell<Arc<Gate<Self>>>,
}

struct TaskRecord {
    name: &'static str,
    waker: Waker,
    waiting_for: &'static str,
    since: Instant,
}

/// The scheduler's data in each task.
struct TaskMeta {
    number: u64,
    slot: usize,
    name: &'static str,
}

enum OpState {
    Submitted,
    Waiting(Waker),
    Ended(Outcome),
    /// The future is gone; the outcome is dropped when it comes.
    Abandoned,
}

enum Entry {
    Task(Runnable<TaskMeta>),
    Main,
}

/// Runnable tasks. Wakes on the runtime's own thread go to the thread-local queue without locking; wakes from other
/// threads (mailboxes, the compute pool's results excepted, which come as completions) go to `remote`.
struct RunQueue {
    id: u64,
    remote: Mutex<Vec<Entry>>,
    remote_used: AtomicBool,
    unpark: Arc<dyn Unpark>,
}

struct LocalQueue {
    id: u64,
    entries: VecDeque<Entry>,
    /// To be woken after the turn.
    after_turn: Vec<Waker>,
}

thread_local! {
    /// The queue of the runtime whose loop runs on this thread now.
    static LOCAL: RefCell<Option<LocalQueue>> = const { RefCell::new(None) };
    /// What the poll under way said it waits for.
    static WAITING_FOR: Cell<&'static str> = const { Cell::new("") };
}

static NEXT_QUEUE: AtomicU64 = AtomicU64::new(1);

/// Names the wait of the task being polled. Every leaf future calls this before it returns `Pending`.
pub fn note_wait(what: &'static str) {
    WAITING_FOR.with(|cell| cell.set(what));
}

/// Wakes a task of another thread. From a task of a runtime, that happens when the tasks whose turn it is have had it: the thread
/// then finds at once what all of them have for it, and is woken once. From any other thread, it happens now.
pub fn wake_after_turn(waker: Waker) {
    let mut waker = Some(waker);
    let _ = LOCAL.try_with(|local| {
        if let Ok(mut local) = local.try_borrow_mut()
            && let Some(queue) = local.as_mut()
        {
            queue.after_turn.extend(waker.take());
        }
    });
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Ends the turn of the runtime of this thread.
fn end_turn() {
    let wakers = LOCAL.with(|local| {
        let mut local = local.borrow_mut();
        local
            .as_mut()
            .map(|queue| std::mem::take(&mut queue.after_turn))
    });
    for waker in wakers.into_iter().flatten() {
        waker.wake();
    }
}

/// Returns what the poll under way said it waits for: to be asked by a future around another that just returned
/// `Pending`.
#[must_use]
pub fn noted_wait() -> &'static str {
    WAITING_FOR.with(Cell::get)
}

impl RunQueue {
    fn push(&self, entry: Entry) {
        let mut entry = Some(entry);
        // `try_with`: a waker may be called while its thread is being torn down.
        let _ = LOCAL.try_with(|local| {
            if let Ok(mut local) = local.try_borrow_mut()
                && let Some(queue) = local.as_mut()
                && queue.id == self.id
            {
                queue.entries.extend(entry.take());
            }
        });
        if let Some(entry) = entry {
            self.leave([entry]);
            self.unpark.unpark();
        }
    }

    /// Leaves entries to the runtime's own thread.
    fn leave(&self, entries: impl IntoIterator<Item = Entry>) {
        let mut remote = self.remote.lock().unwrap_or_else(PoisonError::into_inner);
        remote.extend(entries);
        self.remote_used.store(true, Ordering::Release);
    }

    fn take_remote(&self) -> Vec<Entry> {
        if self.remote_used.swap(false, Ordering::AcqRel) {
            std::mem::take(&mut *self.remote.lock().unwrap_or_else(PoisonError::into_inner))
        } else {
            Vec::new()
        }
    }
}

/// Makes a runtime's queue the local one of this thread for as long as it lives.
struct Entered<'a> {
    queue: &'a RunQueue,
    outer: Option<LocalQueue>,
}

impl<'a> Entered<'a> {
    fn new(queue: &'a RunQueue) -> Self {
        let own = LocalQueue {
            id: queue.id,
            entries: VecDeque::new(),
            after_turn: Vec::new(),
        };
        let outer = LOCAL.with(|local| local.borrow_mut().replace(own));
        Self { queue, outer }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        end_turn();
        let own =
            LOCAL.with(|local| std::mem::replace(&mut *local.borrow_mut(), self.outer.take()));
        if let Some(own) = own.filter(|own| !own.entries.is_empty()) {
            self.queue.leave(own.entries);
        }
    }
}

fn with_local<T>(f: impl FnOnce(&mut VecDeque<Entry>) -> T) -> T {
    LOCAL.with(|local| {
        f(&mut local
            .borrow_mut()
            .as_mut()
            .expect("a runtime is entered here")
            .entries)
    })
}

struct MainWaker {
    queue: Arc<RunQueue>,
    queued: AtomicBool,
}

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.queue.push(Entry::Main);
        }
    }
}

impl Runtime {
    /// Makes a runtime in the world of `driver`.
    #[must_use]
    pub fn new(driver: Box<dyn Driver>) -> Self {
        let queue = Arc::new(RunQueue {
            id: NEXT_QUEUE.fetch_add(1, Ordering::Relaxed),
            remote: Mutex::new(Vec::new()),
            remote_used: AtomicBool::new(false),
            unpark: driver.unparker(),
        });
        Self {
            shared: Rc::new(Shared {
                driver: RefCell::new(driver),
                queue,
                tasks: RefCell::new(Slab::new()),
                ops: RefCell::new(Slab::new()),
                timers: RefCell::new(TimerQueue::default()),
                stats: RefCell::new(Stats::default()),
                next_task: Cell::new(1),
                main_waiting_for: Cell::new(""),
                gate: OnceCell::new(),
            }),
        }
    }

    /// Returns the access that tasks use.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle {
            shared: self.shared.clone(),
        }
    }

    /// Runs `future`, and all spawned tasks meanwhile, until the future is done. Tasks that are not done stay and go
    /// on in the next call.
    ///
    /// # Panics
    /// When the world stalls or is halted (see [`Runtime::run`]), and when a task panics.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        match self.run(future) {
            Ok(output) => output,
            Err(stopped) => panic!("{stopped}"),
        }
    }

    /// As [`Runtime::block_on`], but tells when the future can never end.
    ///
    /// # Errors
    /// `Stalled` when the driver knows that nothing can happen any more, `Halted` when it ended the world.
    ///
    /// # Panics
    /// When a task panics: the panic is passed on.
    pub fn run<F: Future>(&self, future: F) -> Result<F::Output, Stopped> {
        let shared = &*self.shared;
        let mut future = pin!(future);
        let main = Arc::new(MainWaker {
            queue: shared.queue.clone(),
            queued: AtomicBool::new(true),
        });
        let main_waker = Waker::from(main.clone());
        let _entered = Entered::new(&shared.queue);
        with_local(|entries| entries.push_back(Entry::Main));
        let mut done: Vec<Completion> = Vec::new();
        let mut now = shared.driver.borrow().now();
        loop {
            let remote = shared.queue.take_remote();
            if !remote.is_empty() {
                with_local(|entries| entries.extend(remote));
            }
            let looked = now;
            for poll in 1..=POLLS_PER_LOOK {
                if now.since(looked) >= LOOK_AFTER {
                    break;
                }
                let Some(entry) = shared.pick() else { break };
                match entry {
                    Entry::Main => {
                        shared.driver.borrow_mut().note_poll(0, "main");
                        note_wait("something unnamed");
                        main.queued.store(false, Ordering::Release);
                        let poll = future.as_mut().poll(&mut Context::from_waker(&main_waker));
                        if let Poll::Ready(output) = poll {
                            return Ok(output);
                        }
                        shared.main_waiting_for.set(WAITING_FOR.with(Cell::get));
                        now = shared.account_poll("main", now);
                    }
                    Entry::Task(runnable) => (now, _) = shared.poll_task(runnable, now),
                }
                if poll % POLLS_PER_TURN == 0 {
                    end_turn();
                }
            }
            end_turn();
            let busy = with_local(|entries| !entries.is_empty());
            let until = if busy {
                Some(Instant::ORIGIN)
            } else {
                shared.timers.borrow().next_deadline()
            };
            let waited = shared.wait(until, &mut done);
            now = shared.driver.borrow().now();
            shared.stats.borrow_mut().waits += 1;
            match waited {
                Waited::Progress => {}
                Waited::Halted => return Err(Stopped::Halted),
                Waited::Stalled => {
                    if shared.queue.remote_used.load(Ordering::Acquire) {
                        continue;
                    }
                    return Err(Stopped::Stalled(self.handle().stall_report()));
                }
            }
            for completion in done.drain(..) {
                shared.complete(completion);
            }
            loop {
                let due = shared.timers.borrow_mut().pop_due(now);
                match due {
                    Some(waker) => waker.wake(),
                    None => break,
                }
            }
        }
    }
}

impl Drop for Runtime {
    /// Drops every task. Futures are dropped on this thread, in no promised order.
    fn drop(&mut self) {
        let shared = &*self.shared;
        drop(shared.timers.borrow_mut().clear());
        loop {
            let wakers: Vec<Waker> = shared
                .tasks
                .borrow()
                .iter()
                .map(|(_, record)| record.waker.clone())
                .collect();
            if wakers.is_empty() {
                break;
            }
            for waker in wakers {
                waker.wake();
            }
            // Dropping a runnable drops its future, whose guard then frees the slot. Another thread may be about
            // to push a runnable, hence the loop.
            let runnables = shared.queue.take_remote();
            if runnables.is_empty() {
                std::hint::spin_loop();
            }
            drop(runnables);
        }
        drop(shared.queue.take_remote());
        // Handles that outlive the runtime (in a cycle, or kept by mistake) must not keep the world: disks are closed
        // and unlocked, rings and simulated disks freed, now.
        let ended = EndedDriver {
            now: shared.driver.borrow().now(),
            wall_clock: shared.driver.borrow().wall_clock(),
        };
        let world = shared.driver.replace(Box::new(ended));
        let ops = std::mem::replace(&mut *shared.ops.borrow_mut(), Slab::new());
        drop(ops);
        drop(world);
    }
}

/// The driver of a runtime that was dropped: time stands still, operations never end.
struct EndedDriver {
    now: Instant,
    wall_clock: Timestamp,
}

struct NoUnpark;

impl Unpark for NoUnpark {
    fn unpark(&self) {}
}

impl Driver for EndedDriver {
    fn now(&self) -> Instant {
        self.now
    }

    fn wall_clock(&self) -> Timestamp {
        self.wall_clock
    }

    fn fill_random(&mut self, bytes: &mut [u8]) {
        bytes.fill(0);
    }

    fn submit(&mut self, op: DiskOp, _token: Token) {
        drop(op);
    }

    fn offload(&mut self, job: ComputeJob, _token: Token) {
        drop(job);
    }

    fn wait(&mut self, _until: Option<Instant>, _done: &mut Vec<Completion>) -> Waited {
        Waited::Halted
    }

    fn close(&mut self, _disk: DiskId) {}

    fn unparker(&self) -> Arc<dyn Unpark> {
        Arc::new(NoUnpark)
    }

    fn name(&self) -> &'static str {
        "ended"
    }
}

impl Shared {
    fn pick(&self) -> Option<Entry> {
        with_local(|entries| match entries.len() {
            0 => None,
            1 => entries.pop_front(),
            count => match self.driver.borrow_mut().pick(count) {
                0 => entries.pop_front(),
                index => entries.swap_remove_front(index),
            },
        })
    }

    /// Polls a task once. Returns the time after that, and whether the task woke itself.
    fn poll_task(&self, runnable: Runnable<TaskMeta>, before: Instant) -> (Instant, bool) {
        let &TaskMeta { number, slot, name } = runnable.metadata();
        self.driver.borrow_mut().note_poll(number, name);
        note_wait("something unnamed");
        let yielded = runnable.run();
        let now = self.account_poll(name, before);
        // A finished task's slot may be free or (never within one poll) reused.
        if let Some(record) = self.tasks.borrow_mut().get_mut(slot) {
            record.waiting_for = WAITING_FOR.with(Cell::get);
            record.since = now;
        }
        (now, yielded)
    }

    /// Waits in the driver; while the thread sleeps there, others may take turns.
    fn wait(&self, until: Option<Instant>, done: &mut Vec<Completion>) -> Waited {
        let gate = self.gate.get().filter(|_| until != Some(Instant::ORIGIN));
        let Some(gate) = gate else {
            return self.driver.borrow_mut().wait(until, done);
        };
        let sleeper = self.driver.borrow_mut().begin_wait(until);
        let Some(sleeper) = sleeper else {
            return self.driver.borrow_mut().wait(until, done);
        };
        {
            // Borrowed before the gate opens, so that a driver in use by others sees that.
            let mut asleep = sleeper.borrow_mut();
            asleep.spin();
            // SAFETY: a sleeper uses nothing but what the driver lent it, which it does not use meanwhile. The loop around this holds no
            // borrow of anything that tasks use.
            unsafe { gate.open_while(self, || asleep.sleep()) };
        }
        self.driver.borrow_mut().end_wait(done)
    }

    /// A turn of another thread: calls `begin`, and runs a few of the tasks that become runnable by that. Returns whether the runtime's own
    /// thread is needed for what came of it; `None`, without having called `begin`, when this thread runs a runtime.
    pub(crate) fn visit(&self, begin: impl FnOnce()) -> Option<bool> {
        if LOCAL.with(|local| local.borrow().is_some()) {
            return None;
        }
        let deadline = self.timers.borrow().next_deadline();
        {
            let _entered = Entered::new(&self.queue);
            begin();
            let mut now = self.driver.borrow().now();
            for _ in 0..POLLS_PER_VISIT {
                match self.pick() {
                    Some(Entry::Task(runnable)) => {
                        let yielded;
                        (now, yielded) = self.poll_task(runnable, now);
                        // It waits for what other threads are about to ask for, such as commits that join one.
                        if yielded {
                            break;
                        }
                    }
                    // The future is on the other thread's stack.
                    Some(Entry::Main) => self.queue.leave([Entry::Main]),
                    None => break,
                }
            }
        }
        let earliest = self.timers.borrow().next_deadline();
        let is_earlier = earliest.is_some_and(|earliest| deadline.is_none_or(|at| earliest < at));
        let has_entries = self.queue.remote_used.load(Ordering::Acquire);
        Some(has_entries || is_earlier || self.driver.borrow().has_submissions())
    }

    fn account_poll(&self, name: &'static str, before: Instant) -> Instant {
        let now = self.driver.borrow().now();
        let duration = now.since(before);
        let mut stats = self.stats.borrow_mut();
        stats.polls += 1;
        if duration > LONG_POLL {
            stats.long_polls += 1;
        }
        if duration > stats.longest_poll {
            stats.longest_poll = duration;
            stats.longest_poll_task = name;
        }
        now
    }

    fn complete(&self, completion: Completion) {
        let mut ops = self.ops.borrow_mut();
        let index = completion.token.0;
        let slot = ops
            .get_mut(index)
            .expect("completions are for outstanding operations");
        match std::mem::replace(slot, OpState::Ended(completion.outcome)) {
            OpState::Submitted => {}
            OpState::Waiting(waker) => {
                drop(ops);
                waker.wake();
            }
            OpState::Abandoned => {
                let ended = ops.remove(index);
                drop(ops);
                // A disk whose open was abandoned is closed again.
                if let Some(OpState::Ended(Outcome::Opened(Ok((id, _))))) = ended {
                    self.driver.borrow_mut().close(id);
                }
            }
            OpState::Ended(_) => unreachable!("an operation ends once"),
        }
    }
}

impl Handle {
    /// Returns how many handles there are, this one and the runtime's own among them. Once the runtime is dropped,
    /// more than one mean a reference cycle.
    #[must_use]
    pub fn holders(&self) -> usize {
        Rc::strong_count(&self.shared)
    }

    /// Returns the monotonic time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.shared.driver.borrow().now()
    }

    /// Returns the wall-clock time.
    #[must_use]
    pub fn wall_clock(&self) -> Timestamp {
        self.shared.driver.borrow().wall_clock()
    }

    /// Returns a clock of the processor time that the thread which asks it has used; for jobs of [`Handle::compute`]. It stands still
    /// where nothing measures that (in simulation).
    #[must_use]
    pub fn cpu_clock(&self) -> fn() -> Duration {
        self.shared.driver.borrow().cpu_clock()
    }

    /// Ends the process at once, after printing `why` on standard error (`failmode=panic`).
    pub fn abort(&self, why: &str) -> ! {
        eprintln!("{why}");
        std::process::abort()
    }

    /// Lets the other runnable tasks go first.
    pub fn yield_now(&self) -> impl Future<Output = ()> + use<> {
        let mut yielded = false;
        std::future::poll_fn(move |cx| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            note_wait("its turn");
            cx.waker().wake_by_ref();
            Poll::Pending
        })
    }

    /// Starts a task. It runs to its end even when the handle is dropped. `name` appears in reports.
    pub fn spawn<F>(&self, name: &'static str, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let number = self.shared.next_task.get();
        self.shared.next_task.set(number + 1);
        let since = self.now();
        let slot = self.shared.tasks.borrow_mut().insert(TaskRecord {
            name,
            waker: Waker::noop().clone(),
            waiting_for: "its first turn",
            since,
        });
        let ended = TaskEnd {
            shared: self.shared.clone(),
            slot,
        };
        let queue = self.shared.queue.clone();
        // In a box of its own: the block below would hold the future twice, as what it captures and as what it waits for, and
        // every step of starting it would copy that.
        let future = Box::pin(future);
        let builder = async_task::Builder::new().metadata(TaskMeta { number, slot, name });
        // SAFETY: future and schedule function are 'static, and the latter may be called and dropped by any thread. The future is polled and
        // dropped by the runtime's thread, or by one that has entered its gate, of which there is one at a time.
        let (runnable, task) = unsafe {
            builder.spawn_unchecked(
                move |_| async move {
                    let _ended = ended;
                    future.await
                },
                move |runnable| queue.push(Entry::Task(runnable)),
            )
        };
        if let Some(record) = self.shared.tasks.borrow_mut().get_mut(slot) {
            record.waker = runnable.waker();
        }
        self.shared.stats.borrow_mut().tasks_spawned += 1;
        runnable.schedule();
        JoinHandle {
            task: Some(task),
            name,
        }
    }

    /// Runs `job` on the compute pool (in simulation: at once, charging modelled time). Worth it above some
    /// microseconds of work; see [`COMPUTE_WORTHWHILE_BYTES`].
    ///
    /// # Panics
    /// When the job panics: the panic is passed on.
    pub async fn compute<T, J>(&self, job: J) -> T
    where
        T: Send + 'static,
        J: FnOnce() -> T + Send + 'static,
    {
        type Ran<T> = Result<T, Box<dyn Any + Send>>;
        let output: Arc<Mutex<Option<Ran<T>>>> = Arc::new(Mutex::new(None));
        let target = output.clone();
        let token = self.shared.ops.borrow_mut().insert(OpState::Submitted);
        self.shared.stats.borrow_mut().compute_jobs += 1;
        self.shared.driver.borrow_mut().offload(
            Box::new(move || {
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                *target.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            }),
            Token(token),
        );
        let _computed = Operation {
            shared: self.shared.clone(),
            token: Some(token),
            wait: "compute job",
        }
        .await;
        let result = output.lock().unwrap_or_else(PoisonError::into_inner).take();
        match result.expect("the driver ran the job before completing it") {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Returns random bits.
    #[must_use]
    pub fn random_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill_random(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Fills `bytes` with random data.
    pub fn fill_random(&self, bytes: &mut [u8]) {
        self.shared.driver.borrow_mut().fill_random(bytes);
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.shared.stats.borrow().clone();
        stats.tasks = self.shared.tasks.borrow().len();
        stats.outstanding = self.shared.ops.borrow().len();
        stats
    }

    /// Returns what every task waits for.
    #[must_use]
    pub fn stall_report(&self) -> StallReport {
        let now = self.now();
        let tasks = self.shared.tasks.borrow();
        StallReport {
            tasks: tasks
                .iter()
                .map(|(_, record)| StalledTask {
                    name: record.name,
                    waiting_for: record.waiting_for,
                    since: now.since(record.since),
                })
                .collect(),
            main_waiting_for: self.shared.main_waiting_for.get(),
        }
    }

    /// Names the driver: "uring", "threads", "simulation".
    #[must_use]
    pub fn driver_name(&self) -> &'static str {
        self.shared.driver.borrow().name()
    }

    /// Returns the gate by which other threads take turns; `None` when this world has no sleep in which they could.
    pub(crate) fn gate(&self) -> Option<Arc<Gate<Shared>>> {
        let sleeps = self.shared.driver.borrow().sleeps_apart();
        let gate = || self.shared.gate.get_or_init(|| Arc::new(Gate::new()));
        sleeps.then(|| Arc::clone(gate()))
    }

    pub(crate) fn unparker(&self) -> Arc<dyn Unpark> {
        self.shared.queue.unpark.clone()
    }

    pub(crate) fn timers(&self) -> &RefCell<TimerQueue> {
        &self.shared.timers
    }

    pub(crate) fn close_disk(&self, id: DiskId) {
        self.shared.driver.borrow_mut().close(id);
    }

    pub(crate) fn disk_op(
        &self,
        wait: &'static str,
        op: DiskOp,
    ) -> impl Future<Output = Outcome> + use<> {
        {
            let mut stats = self.shared.stats.borrow_mut();
            match &op {
                DiskOp::Read { buf, .. } => {
                    stats.reads += 1;
                    stats.read_bytes += buf.len() as u64;
                }
                DiskOp::Write { data, .. } => {
                    stats.writes += 1;
                    stats.write_bytes += data.len() as u64;
                }
                DiskOp::Flush { .. } => stats.flushes += 1,
                DiskOp::Discard { .. } => stats.discards += 1,
                DiskOp::Open { .. } | DiskOp::List { .. } => {}
            }
        }
        let token = self.shared.ops.borrow_mut().insert(OpState::Submitted);
        self.shared.driver.borrow_mut().submit(op, Token(token));
        Operation {
            shared: self.shared.clone(),
            token: Some(token),
            wait,
        }
    }
}

/// Below this many bytes, checksumming or compressing inline is cheaper than a hop to the compute pool and back.
/// 32 KiB is a start: a hop costs 5 to 10 microseconds, lz4 does about 5 KiB in one (docs/adr/0001).
pub const COMPUTE_WORTHWHILE_BYTES: usize = 32 * 1024;

/// Frees a task's record when its future ends or is dropped.
struct TaskEnd {
    shared: Rc<Shared>,
    slot: usize,
}

impl Drop for TaskEnd {
    fn drop(&mut self) {
        let record = self.shared.tasks.borrow_mut().remove(self.slot);
        drop(record);
    }
}

struct Operation {
    shared: Rc<Shared>,
    token: Option<usize>,
    wait: &'static str,
}

impl Future for Operation {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let token = self.token.expect("not polled after it ended");
        let mut ops = self.shared.ops.borrow_mut();
        let slot = ops
            .get_mut(token)
            .expect("the slot lives as long as this future");
        if matches!(slot, OpState::Ended(_)) {
            let Some(OpState::Ended(outcome)) = ops.remove(token) else {
                unreachable!("just looked")
            };
            drop(ops);
            self.token = None;
            return Poll::Ready(outcome);
        }
        match slot {
            OpState::Waiting(waker) => waker.clone_from(cx.waker()),
            slot => *slot = OpState::Waiting(cx.waker().clone()),
        }
        drop(ops);
        note_wait(self.wait);
        Poll::Pending
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let Some(token) = self.token else { return };
        let mut ops = self.shared.ops.borrow_mut();
        let Some(slot) = ops.get_mut(token) else {
            return;
        };
        let ended = if matches!(slot, OpState::Ended(_)) {
            ops.remove(token)
        } else {
            Some(std::mem::replace(slot, OpState::Abandoned))
        };
        drop(ops);
        if let Some(OpState::Ended(Outcome::Opened(Ok((id, _))))) = &ended {
            self.shared.driver.borrow_mut().close(*id);
        }
    }
}

/// The end of a spawned task, as a future. Dropping it detaches the task.
pub struct JoinHandle<T> {
    task: Option<async_task::Task<T, TaskMeta>>,
    name: &'static str,
}

impl<T> JoinHandle<T> {
    /// Returns true when the task has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.task.as_ref().is_none_or(async_task::Task::is_finished)
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let name = self.name;
        let task = self.task.as_mut().expect("present until dropped");
        let poll = Pin::new(task).poll(cx);
        if poll.is_pending() {
            note_wait(name);
        }
        poll
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.detach();
        }
    }
}
