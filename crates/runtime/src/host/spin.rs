//! Spinning for a moment before parking.
//!
//! Parking costs the thread that unparks a system call, and the parked one 5 to 50 us until it has a processor again (on a virtual machine an
//! idle processor must be woken by its host). A synchronous write of one client has six of them in a row, which take as long as
//! its disk. Where waits have been short, it is quicker to spin until the end of the next one than to park. The durations of
//! earlier waits decide: a thread does not spin where waits are long.

use std::cell::RefCell;
use std::future::Future;
use std::hint;
use std::num::NonZero;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use super::clock;
use crate::time::Instant;

/// The longest spin for a disk or the next request, and the longest wait that is short then: what a flash disk takes for a write and a flush,
/// and a client until its next call.
pub(crate) const DISK_SPIN_MAX: Duration = Duration::from_micros(160);
/// The same for the answer of another thread. One that comes from memory is there in a few microseconds; for one that waits for a disk, too, a
/// second processor would spin beside that of the thread that has the disk, for a wake-up that costs a fifth of it
/// (docs/measurements/2026-11-29-sync-writes.md).
const ANSWER_SPIN_MAX: Duration = Duration::from_micros(80);
/// The longest wait that is over before another thread could make use of the processor: a small read from memory.
const QUICK: Duration = Duration::from_micros(4);
/// Long waits in a row after which a waiter does not spin any more.
const CREDIT_MAX: u8 = 4;
/// Waits without a spin after which there is one, where only spins are measured: less than a hundredth of the time of waits that are long.
const TRIED_AFTER: u8 = 64;

/// Whether to spin before parking, from the durations of earlier waits.
pub struct SpinPolicy {
    /// The longest spin.
    longest: Duration,
    credit: u8,
    /// The last wait was a quick one.
    quick: bool,
    /// Waits in a row without a spin, of [`spin_thread_on`].
    unspun: u8,
    /// For the tasks that wait with this policy, one after the other.
    flag: Arc<WakeFlag<ParkedTask>>,
}

/// How long to spin for the end of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SpinPlan {
    /// From then on each round yields the processor.
    yields_from: Instant,
    until: Instant,
}

impl SpinPlan {
    /// Returns the same spin, ending at `until` at the latest.
    pub(crate) fn at_most(self, until: Option<Instant>) -> Self {
        let until = until.map_or(self.until, |until| until.min(self.until));
        Self { until, ..self }
    }
}

impl Default for SpinPolicy {
    /// For the answers of another thread.
    fn default() -> Self {
        Self::up_to(ANSWER_SPIN_MAX)
    }
}

impl SpinPolicy {
    pub(crate) fn up_to(longest: Duration) -> Self {
        Self {
            longest,
            credit: 0,
            quick: false,
            unspun: 0,
            flag: Arc::default(),
        }
    }

    /// Returns how to spin before parking, if that is worth it, for a wait that begins now.
    pub(crate) fn plan(&self, now: Instant) -> Option<SpinPlan> {
        (self.credit > 0 && has_processors()).then(|| SpinPlan {
            yields_from: if self.quick { now + QUICK } else { now },
            until: now + self.longest,
        })
    }

    /// As [`Self::plan`], and a spin after many waits without one.
    fn plan_or_try(&mut self, now: Instant) -> Option<SpinPlan> {
        self.unspun = self.unspun.saturating_add(1);
        if self.unspun >= TRIED_AFTER && self.credit == 0 {
            self.credit = 1;
        }
        let plan = self.plan(now)?;
        self.unspun = 0;
        Some(plan)
    }

    /// Records how long a wait was, parked or not.
    pub(crate) fn record_wait(&mut self, took: Duration) {
        self.quick = took <= QUICK;
        self.credit = if took <= self.longest {
            CREDIT_MAX
        } else {
            self.credit.saturating_sub(1)
        };
    }
}

/// Whether there is a second processor: a spin on the only one keeps from it the thread that would end the wait.
fn has_processors() -> bool {
    static MANY: OnceLock<bool> = OnceLock::new();
    *MANY.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get) > 1)
}

/// Spins until `is_seen`, or to the end of the plan. Yields the processor to other threads, if there are any: the one that ends the wait may
/// need it (a spin without yields cost two thirds of the requests on two processors). A yield takes half a microsecond
/// even if no other thread is runnable, though, which is a sixth of a small read from memory.
pub(crate) fn spin(plan: SpinPlan, mut is_seen: impl FnMut() -> bool) {
    while !is_seen() {
        let now = clock::now();
        if now >= plan.until {
            return;
        }
        if now < plan.yields_from {
            hint::spin_loop();
        } else {
            thread::yield_now();
        }
    }
}

/// Runs a future on a plain thread, which spins for its end, then parks.
pub fn block_thread_on<F: Future>(future: F) -> F::Output {
    thread_local! {
        static POLICY: RefCell<SpinPolicy> = RefCell::default();
    }
    let mut future = pin!(future);
    let flag = Arc::new(WakeFlag::of(thread::current()));
    let waker = Waker::from(flag.clone());
    let mut cx = Context::from_waker(&waker);
    let mut began = None;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            if let Some(began) = began {
                POLICY.with_borrow_mut(|policy| policy.record_wait(clock::now().since(began)));
            }
            return output;
        }
        let began = *began.get_or_insert_with(clock::now);
        flag.spin(POLICY.with_borrow(|policy| policy.plan(began)));
        while !flag.take() {
            thread::park();
        }
    }
}

/// Polls a future on a plain thread, and spins for its end if that has been worth it. `None` if it has not ended then: it is to be polled by
/// another one. Now and then it spins all the same, since waits that others see to the end are not measured here.
pub fn spin_thread_on<F: Future + Unpin>(
    policy: &mut SpinPolicy,
    future: &mut F,
) -> Option<F::Output> {
    let waker = Waker::from(policy.flag.clone());
    let mut cx = Context::from_waker(&waker);
    policy.flag.take();
    if let Poll::Ready(output) = Pin::new(&mut *future).poll(&mut cx) {
        return Some(output);
    }
    let began = clock::now();
    let plan = policy.plan_or_try(began)?;
    loop {
        policy.flag.spin(Some(plan));
        if !policy.flag.take() {
            policy.record_wait(policy.longest * 2);
            return None;
        }
        if let Poll::Ready(output) = Pin::new(&mut *future).poll(&mut cx) {
            policy.record_wait(clock::now().since(began));
            return Some(output);
        }
    }
}

/// A flag that a waker sets, and the parked task or thread that it wakes.
#[derive(Default)]
struct WakeFlag<S> {
    is_set: AtomicBool,
    parked: S,
}

impl<S> WakeFlag<S> {
    fn of(parked: S) -> Self {
        Self {
            is_set: AtomicBool::new(false),
            parked,
        }
    }

    /// Spins until the flag is set, if that is worth it.
    fn spin(&self, plan: Option<SpinPlan>) {
        if let Some(plan) = plan {
            spin(plan, || self.is_set.load(Ordering::Acquire));
        }
    }

    fn take(&self) -> bool {
        self.is_set.swap(false, Ordering::SeqCst)
    }
}

impl Wake for WakeFlag<Thread> {
    fn wake(self: Arc<Self>) {
        self.is_set.store(true, Ordering::SeqCst);
        // No system call when the thread is awake.
        self.parked.unpark();
    }
}

/// The waker of the parked task, if there is one.
type ParkedTask = Mutex<Option<Waker>>;

impl Wake for WakeFlag<ParkedTask> {
    fn wake(self: Arc<Self>) {
        self.is_set.store(true, Ordering::SeqCst);
        let parked = self
            .parked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(parked) = parked {
            parked.wake();
        }
    }
}

/// Future of [`spin_then_park`].
pub struct SpinThenPark<'a, F, A> {
    future: F,
    policy: &'a mut SpinPolicy,
    is_alone: A,
    state: SpinStage,
}

#[derive(Clone, Copy)]
enum SpinStage {
    New,
    /// Yielded to the other tasks of the thread; the wait began then.
    Yielded(Instant),
    Spun(Instant),
}

/// Waits for a future that another thread ends, spinning before the task is parked, as long as that has been
/// worth it. The other tasks of the thread have their turn first; then, while `is_alone` says that nothing else is under way here,
/// the thread spins for up to 80 us.
pub fn spin_then_park<F, A>(
    policy: &mut SpinPolicy,
    is_alone: A,
    future: F,
) -> SpinThenPark<'_, F, A>
where
    F: Future + Unpin,
    A: Fn() -> bool + Unpin,
{
    SpinThenPark {
        future,
        policy,
        is_alone,
        state: SpinStage::New,
    }
}

impl<F, A> SpinThenPark<'_, F, A>
where
    F: Future + Unpin,
{
    fn poll_once(&mut self) -> Poll<F::Output> {
        self.policy.flag.take();
        let waker = Waker::from(self.policy.flag.clone());
        let poll = Pin::new(&mut self.future).poll(&mut Context::from_waker(&waker));
        if let (Poll::Ready(_), SpinStage::Yielded(began) | SpinStage::Spun(began)) =
            (&poll, self.state)
        {
            self.policy.record_wait(clock::now().since(began));
        }
        poll
    }
}

impl<F, A> Future for SpinThenPark<'_, F, A>
where
    F: Future + Unpin,
    A: Fn() -> bool + Unpin,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            if let Poll::Ready(output) = this.poll_once() {
                return Poll::Ready(output);
            }
            match this.state {
                SpinStage::New => {
                    let began = clock::now();
                    this.state = SpinStage::Yielded(began);
                    // At once, though the flag may be set: a set of futures wakes itself when it has polled all of them.
                    if this.policy.plan(began).is_some() {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
                SpinStage::Yielded(began) => {
                    this.state = SpinStage::Spun(began);
                    if (this.is_alone)() {
                        this.policy.flag.spin(this.policy.plan(began));
                        if this.policy.flag.is_set.load(Ordering::SeqCst) {
                            continue;
                        }
                    }
                }
                SpinStage::Spun(_) => {}
            }
            let flag = &this.policy.flag;
            *flag.parked.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
            // Set before the waker was stored: no other wake-up follows.
            if flag.is_set.load(Ordering::SeqCst) {
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;
    use crate::reply::reply;

    /// Replies that come at once, soon, and late: each arrives, whether the waiter spun or parked.
    #[test]
    fn no_end_is_missed() {
        for pause_us in [0_u64, 5, 40, 60, 300, 0, 0, 20] {
            for _ in 0..if cfg!(miri) { 2 } else { 200 } {
                let (sender, answer) = reply();
                let server = thread::spawn(move || {
                    thread::sleep(Duration::from_micros(pause_us));
                    sender.send(7);
                });
                assert_eq!(block_thread_on(answer), Ok(7));
                server.join().expect("no panic");
                let (sender, answer) = reply();
                let server = thread::spawn(move || sender.send(8));
                let mut policy = SpinPolicy {
                    credit: CREDIT_MAX,
                    ..SpinPolicy::default()
                };
                let waiting = spin_then_park(&mut policy, || true, answer);
                assert_eq!(block_thread_on(waiting), Ok(8));
                server.join().expect("no panic");
            }
        }
    }

    /// A set of futures wakes its own waker when it has polled all of them. The other tasks have their turn all the same.
    #[test]
    fn other_tasks_run_before_the_spin() {
        let mut policy = SpinPolicy {
            credit: CREDIT_MAX,
            ..SpinPolicy::default()
        };
        let spins = policy.plan(clock::now()).is_some();
        let spun = Cell::new(false);
        let calls_itself = poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        let is_alone = || {
            spun.set(true);
            false
        };
        let mut waiting = pin!(spin_then_park(&mut policy, is_alone, calls_itself));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        assert_eq!(spun.get(), !spins);
        if spins {
            assert!(waiting.as_mut().poll(&mut cx).is_pending());
            assert!(spun.get());
        }
    }

    #[test]
    fn long_waits_end_the_spinning_and_a_short_one_begins_it() {
        let mut policy = SpinPolicy::default();
        let now = clock::now();
        assert_eq!(policy.plan(now), None);
        policy.record_wait(Duration::from_micros(20));
        let spins = policy.plan(now).is_some();
        assert_eq!(spins, has_processors());
        for _ in 0..CREDIT_MAX {
            assert_eq!(policy.plan(now).is_some(), spins);
            policy.record_wait(Duration::from_millis(2));
        }
        assert_eq!(policy.plan(now), None);
    }

    /// Replies that come soon and late: one that is not spun for is left to be polled by others.
    #[test]
    fn what_is_not_spun_for_is_left_to_others() {
        let mut policy = SpinPolicy::default();
        let (mut ended, mut left) = (0, 0);
        for pause_us in [0_u64, 20, 2000, 0, 30, 3000].into_iter().cycle().take(180) {
            let (sender, mut answer) = reply();
            let server = thread::spawn(move || {
                thread::sleep(Duration::from_micros(pause_us));
                sender.send(7);
            });
            let seen = match spin_thread_on(&mut policy, &mut answer) {
                Some(seen) => {
                    ended += 1;
                    seen
                }
                None => {
                    left += 1;
                    block_thread_on(answer)
                }
            };
            assert_eq!(seen, Ok(7));
            server.join().expect("no panic");
        }
        assert_eq!(ended + left, 180);
        assert!(left > 0);
    }

    #[test]
    fn a_spin_is_tried_after_many_waits_without_one() {
        let mut policy = SpinPolicy::default();
        let tried = (0..200).filter(|_| {
            let plan = policy.plan_or_try(clock::now());
            plan.map(|_| policy.record_wait(Duration::from_millis(1)))
                .is_some()
        });
        assert_eq!(tried.count(), if has_processors() { 3 } else { 0 });
    }

    #[test]
    fn a_spin_yields_at_once_unless_the_last_wait_was_quick() {
        let mut policy = SpinPolicy::default();
        let now = clock::now();
        for (took_us, yields_after) in [(2, QUICK), (60, Duration::ZERO), (3, QUICK)] {
            policy.record_wait(Duration::from_micros(took_us));
            if let Some(plan) = policy.plan(now) {
                assert_eq!(plan.yields_from, now + yields_after);
                assert_eq!(plan.at_most(Some(now)).until, now);
            }
        }
    }
}
