//! Looking a moment longer before sleeping.
//!
//! A sleep costs whoever ends it a system call, and the sleeper 5 to 50 us until it has a processor again (on a virtual machine an
//! idle processor must be woken by its host). A synchronous write of one client has six of them in a row, which take as long as
//! its disk. Where waits have been short, it is quicker to look for the end of the next one than to sleep through it. What waits
//! took decides: nobody looks where nothing comes soon.

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

/// The longest look, and the longest wait that is short: what a flash disk takes for a write and a flush, and a client until
/// its next call.
const SHORT: Duration = Duration::from_micros(160);
/// The longest wait that is over before anybody else could make use of the processor: a small read from memory.
const QUICK: Duration = Duration::from_micros(4);
/// Long waits in a row after which nobody looks any more.
const CREDIT_MAX: u8 = 4;

/// What a waiter has learnt about its waits.
#[derive(Default)]
pub struct Patience {
    credit: u8,
    /// The last wait was a quick one.
    quick: bool,
    /// Of the tasks that wait with it, one after the other.
    bell: Arc<Bell<Sleeper>>,
}

/// How to look for the end of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Look {
    /// Others may have the processor from then on, if there are any.
    yields_from: Instant,
    until: Instant,
}

impl Look {
    /// The same look, but no longer than that.
    pub(crate) fn at_most(self, until: Option<Instant>) -> Self {
        let until = until.map_or(self.until, |until| until.min(self.until));
        Self { until, ..self }
    }
}

impl Patience {
    /// Returns how to look before sleeping, if that is worth it, for a wait that begins now.
    pub(crate) fn look(&self, now: Instant) -> Option<Look> {
        (self.credit > 0 && has_processors()).then(|| Look {
            yields_from: if self.quick { now + QUICK } else { now },
            until: now + SHORT,
        })
    }

    /// Takes note of how long a wait was, asleep or not.
    pub(crate) fn waited(&mut self, took: Duration) {
        self.quick = took <= QUICK;
        self.credit = if took <= SHORT {
            CREDIT_MAX
        } else {
            self.credit.saturating_sub(1)
        };
    }
}

/// A look on the only processor keeps from it what is looked for.
fn has_processors() -> bool {
    static MANY: OnceLock<bool> = OnceLock::new();
    *MANY.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get) > 1)
}

/// Looks until it is seen, or to the end of the look. Lets others have the processor, if there are any: what is looked for may
/// be theirs to give (a look that kept it cost two thirds of the requests on two processors). A yield takes half a microsecond
/// even if there is nobody, though, which is a sixth of a small read from memory.
pub(crate) fn look(look: Look, mut is_seen: impl FnMut() -> bool) {
    while !is_seen() {
        let now = clock::now();
        if now >= look.until {
            return;
        }
        if now < look.yields_from {
            hint::spin_loop();
        } else {
            thread::yield_now();
        }
    }
}

/// Runs a future on a plain thread, which sleeps when it has looked for its end in vain.
pub fn block_thread_on<F: Future>(future: F) -> F::Output {
    thread_local! {
        static PATIENCE: RefCell<Patience> = RefCell::default();
    }
    let mut future = pin!(future);
    let bell = Arc::new(Bell::of(thread::current()));
    let waker = Waker::from(bell.clone());
    let mut cx = Context::from_waker(&waker);
    let mut began = None;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            if let Some(began) = began {
                PATIENCE.with_borrow_mut(|patience| patience.waited(clock::now().since(began)));
            }
            return output;
        }
        let began = *began.get_or_insert_with(clock::now);
        bell.await_ring(PATIENCE.with_borrow(|patience| patience.look(began)));
        while !bell.take_ring() {
            thread::park();
        }
    }
}

/// Wakes a sleeper, and tells one that looks.
#[derive(Default)]
struct Bell<S> {
    rung: AtomicBool,
    sleeper: S,
}

impl<S> Bell<S> {
    fn of(sleeper: S) -> Self {
        Self {
            rung: AtomicBool::new(false),
            sleeper,
        }
    }

    /// Looks for a ring, if that is worth it.
    fn await_ring(&self, how: Option<Look>) {
        if let Some(how) = how {
            look(how, || self.rung.load(Ordering::Acquire));
        }
    }

    fn take_ring(&self) -> bool {
        self.rung.swap(false, Ordering::SeqCst)
    }
}

impl Wake for Bell<Thread> {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::SeqCst);
        // No system call when the thread is awake.
        self.sleeper.unpark();
    }
}

/// The waker of the task that sleeps, if it does.
type Sleeper = Mutex<Option<Waker>>;

impl Wake for Bell<Sleeper> {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::SeqCst);
        let sleeper = self
            .sleeper
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
    }
}

/// Future of [`patiently`].
pub struct Patiently<'a, F, A> {
    future: F,
    patience: &'a mut Patience,
    is_alone: A,
    state: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    New,
    /// Others have been let by, since then.
    LetOthersBy(Instant),
    Looked(Instant),
}

/// Waits for a future that another thread ends, looking for its end before the task sleeps, as long as that has been
/// worth it. The other tasks of the thread have their turn first; then, while `is_alone` says that nothing else is under way here,
/// the thread does nothing but look for up to 160 us.
pub fn patiently<F, A>(patience: &mut Patience, is_alone: A, future: F) -> Patiently<'_, F, A>
where
    F: Future + Unpin,
    A: Fn() -> bool + Unpin,
{
    Patiently {
        future,
        patience,
        is_alone,
        state: Stage::New,
    }
}

impl<F, A> Patiently<'_, F, A>
where
    F: Future + Unpin,
{
    fn poll_once(&mut self) -> Poll<F::Output> {
        self.patience.bell.take_ring();
        let waker = Waker::from(self.patience.bell.clone());
        let poll = Pin::new(&mut self.future).poll(&mut Context::from_waker(&waker));
        if let (Poll::Ready(_), Stage::LetOthersBy(began) | Stage::Looked(began)) =
            (&poll, self.state)
        {
            self.patience.waited(clock::now().since(began));
        }
        poll
    }
}

impl<F, A> Future for Patiently<'_, F, A>
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
                Stage::New => {
                    let began = clock::now();
                    this.state = Stage::LetOthersBy(began);
                    // At once, though the bell may have rung: a set of futures rings for itself when it has polled all of them.
                    if this.patience.look(began).is_some() {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
                Stage::LetOthersBy(began) => {
                    this.state = Stage::Looked(began);
                    if (this.is_alone)() {
                        this.patience.bell.await_ring(this.patience.look(began));
                        if this.patience.bell.rung.load(Ordering::SeqCst) {
                            continue;
                        }
                    }
                }
                Stage::Looked(_) => {}
            }
            let bell = &this.patience.bell;
            *bell.sleeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
            // Rung before the sleeper was known: nobody else would wake it.
            if bell.rung.load(Ordering::SeqCst) {
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

    /// Replies that come at once, soon, and late: each arrives, whether the waiter looked or slept.
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
                let mut patience = Patience {
                    credit: CREDIT_MAX,
                    ..Patience::default()
                };
                let waiting = patiently(&mut patience, || true, answer);
                assert_eq!(block_thread_on(waiting), Ok(8));
                server.join().expect("no panic");
            }
        }
    }

    /// A set of futures wakes whoever polls it when it has polled all of them. That is no reason not to let others by.
    #[test]
    fn others_are_let_by_before_the_look() {
        let mut patience = Patience {
            credit: CREDIT_MAX,
            ..Patience::default()
        };
        let looks = patience.look(clock::now()).is_some();
        let looked = Cell::new(false);
        let calls_itself = poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        let is_alone = || {
            looked.set(true);
            false
        };
        let mut waiting = pin!(patiently(&mut patience, is_alone, calls_itself));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        assert_eq!(looked.get(), !looks);
        if looks {
            assert!(waiting.as_mut().poll(&mut cx).is_pending());
            assert!(looked.get());
        }
    }

    #[test]
    fn long_waits_end_the_looking_and_a_short_one_begins_it() {
        let mut patience = Patience::default();
        let now = clock::now();
        assert_eq!(patience.look(now), None);
        patience.waited(Duration::from_micros(20));
        let looks = patience.look(now).is_some();
        assert_eq!(looks, has_processors());
        for _ in 0..CREDIT_MAX {
            assert_eq!(patience.look(now).is_some(), looks);
            patience.waited(Duration::from_millis(2));
        }
        assert_eq!(patience.look(now), None);
    }

    #[test]
    fn others_have_the_processor_at_once_unless_the_last_wait_was_quick() {
        let mut patience = Patience::default();
        let now = clock::now();
        for (took_us, yields_after) in [(2, QUICK), (60, Duration::ZERO), (3, QUICK)] {
            patience.waited(Duration::from_micros(took_us));
            if let Some(look) = patience.look(now) {
                assert_eq!(look.yields_from, now + yields_after);
                assert_eq!(look.at_most(Some(now)).until, now);
            }
        }
    }
}
