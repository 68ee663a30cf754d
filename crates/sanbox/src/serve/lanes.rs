//! The threads that serve connections. Each connection stays on one of them, which polls its socket itself: what wakes a
//! connection wakes the thread that has its task and no other, where a runtime of many threads would wake one more to look for
//! work. The threads of the main runtime accept connections and do everything else.
//!
//! A wake from another thread, mostly a pool's with an answer, costs it a system call, and the lane a sleep that ends early. With
//! eight connections of one call each that was half of what a LOOKUP cost, so the wakes for a lane are gathered (see [`Desk`]).

use std::cell::Cell;
use std::future::{Future, pending, poll_fn};
use std::num::NonZero;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};
use std::thread;

use engine::wake_after_turn;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};

use crate::logging::SANBOX;

/// Threads at most: one connection's work is small beside that of the pools behind it.
const LANES_MAX: usize = 16;

/// The threads. Clones share them; they end with the process.
#[derive(Clone)]
pub(crate) struct Lanes(Arc<[Lane]>);

struct Lane {
    runtime: Handle,
    desk: Arc<Desk>,
    connections: AtomicUsize,
}

impl Lanes {
    /// Starts as many threads as there are processors.
    ///
    /// # Errors
    /// The machine has no thread or descriptor left.
    pub(crate) fn start() -> std::io::Result<Self> {
        let count = thread::available_parallelism().map_or(1, NonZero::get);
        let lanes = (0..count.min(LANES_MAX)).map(|number| {
            let desk = Arc::new(Desk::default());
            let (sleeps, wakes, own) = (desk.clone(), desk.clone(), desk.clone());
            let runtime = Builder::new_current_thread()
                .enable_io()
                .enable_time()
                .on_thread_park(move || sleeps.leave())
                .on_thread_unpark(move || wakes.come_back())
                .build()?;
            let handle = runtime.handle().clone();
            thread::Builder::new()
                .name(format!("lane {number}"))
                .spawn(move || {
                    OWN_DESK.set(Arc::as_ptr(&own).addr());
                    runtime.block_on(pending::<()>());
                })?;
            Ok(Lane {
                runtime: handle,
                desk,
                connections: AtomicUsize::new(0),
            })
        });
        Ok(Self(lanes.collect::<std::io::Result<_>>()?))
    }

    /// Serves a connection on the thread that has the fewest.
    pub(crate) fn serve<F>(
        &self,
        stream: TcpStream,
        serve: impl FnOnce(TcpStream) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let stream = match stream.into_std() {
            Ok(stream) => stream,
            Err(error) => {
                return tracing::warn!(
                    target: SANBOX,
                    "a connection could not be handed over: {error}"
                );
            }
        };
        let connections = |index: &usize| {
            let lane = self.0.get(*index);
            lane.map_or(usize::MAX, |lane| lane.connections.load(Ordering::Relaxed))
        };
        let Some(index) = (0..self.0.len()).min_by_key(connections) else {
            return;
        };
        let place = Place::take(self.0.clone(), index);
        let Some(lane) = self.0.get(index) else {
            return;
        };
        let desk = lane.desk.clone();
        lane.runtime.spawn(async move {
            match TcpStream::from_std(stream) {
                Ok(stream) => at_desk(desk, serve(stream)).await,
                Err(error) => {
                    tracing::warn!(target: SANBOX, "a connection could not be taken over: {error}");
                }
            }
            drop(place);
        });
    }
}

thread_local! {
    /// Calls under way of all connections of this lane.
    static CALLS: Cell<usize> = const { Cell::new(0) };
    /// The address of this lane's desk.
    static OWN_DESK: Cell<usize> = const { Cell::new(0) };
}

/// Where other threads leave word for a lane that one of its connections may go on. They call the lane only if it sleeps and
/// nobody has called it yet.
#[derive(Default)]
struct Desk(Mutex<Notes>);

#[derive(Default)]
struct Notes {
    /// Connections to wake.
    connections: Vec<Waker>,
    /// The lane is awake, or called, and looks here before it sleeps again.
    will_look: bool,
}

impl Desk {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_own(&self) -> bool {
        OWN_DESK.get() == std::ptr::from_ref(self).addr()
    }

    /// Wakes a connection, from another thread.
    fn leave_word(&self, connection: Waker) {
        let mut notes = self.notes();
        if notes.will_look {
            notes.connections.push(connection);
            return;
        }
        notes.will_look = true;
        drop(notes);
        wake_after_turn(connection);
    }

    /// Wakes the connections that others left word for, on the lane.
    fn look(&self) {
        let connections = std::mem::take(&mut self.notes().connections);
        for connection in connections {
            connection.wake();
        }
    }

    /// The lane is about to sleep, unless there is something to do.
    fn leave(&self) {
        let mut notes = self.notes();
        notes.will_look = !notes.connections.is_empty();
        drop(notes);
        self.look();
    }

    /// The lane is awake.
    fn come_back(&self) {
        self.notes().will_look = true;
        self.look();
    }
}

/// The waker of a connection.
struct Caller {
    desk: Arc<Desk>,
    connection: Waker,
}

impl Wake for Caller {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.desk.is_own() {
            self.connection.wake_by_ref();
        } else {
            self.desk.leave_word(self.connection.clone());
        }
    }
}

/// Serves a connection whose wakes go by the desk of its lane. A lane that is never idle looks there at each turn of one.
async fn at_desk(desk: Arc<Desk>, served: impl Future<Output = ()>) {
    let mut served = pin!(served);
    let mut known: Option<(Waker, Waker)> = None;
    poll_fn(|cx| {
        desk.look();
        if !matches!(&known, Some((connection, _)) if connection.will_wake(cx.waker())) {
            let connection = cx.waker().clone();
            let caller = Caller {
                desk: desk.clone(),
                connection: connection.clone(),
            };
            known = Some((connection, Arc::new(caller).into()));
        }
        let (_, waker) = known.as_ref().expect("just made");
        served.as_mut().poll(&mut Context::from_waker(waker))
    })
    .await;
}

/// A connection's calls under way, as its lane counts them. Lives and dies on the lane's thread.
#[derive(Default)]
pub(crate) struct CallsUnderWay(usize);

impl CallsUnderWay {
    /// Takes note of how many there are now.
    pub(crate) fn set(&mut self, count: usize) {
        CALLS.set(CALLS.get() - self.0 + count);
        self.0 = count;
    }

    /// Returns true when there are any.
    pub(crate) fn any(&self) -> bool {
        self.0 > 0
    }

    /// Returns true when the lane serves one call and no other.
    pub(crate) fn is_one() -> bool {
        CALLS.get() == 1
    }
}

impl Drop for CallsUnderWay {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A connection's place on its thread.
struct Place {
    lanes: Arc<[Lane]>,
    index: usize,
}

impl Place {
    fn take(lanes: Arc<[Lane]>, index: usize) -> Self {
        if let Some(lane) = lanes.get(index) {
            lane.connections.fetch_add(1, Ordering::Relaxed);
        }
        Self { lanes, index }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(lane) = self.lanes.get(self.index) {
            lane.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use runtime::reply::ReplySender;
    use tokio::net::TcpListener;

    use super::*;

    /// Answers that another thread gives to connections of all lanes, one at a time, many at once, and while a lane falls asleep:
    /// each wakes its connection.
    #[tokio::test]
    async fn no_answer_of_another_thread_is_missed() {
        const CONNECTIONS: usize = 9;
        const ROUNDS: usize = 400;
        let lanes = Lanes::start().expect("lanes start");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("is bound");
        let (asks, asked) = mpsc::channel::<ReplySender<usize>>();
        let (ends, mut ended) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..CONNECTIONS {
            let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
            let (asks, ends) = (asks.clone(), ends.clone());
            lanes.serve(near.expect("connects"), move |stream| async move {
                for round in 0..ROUNDS {
                    let (sender, answer) = runtime::reply();
                    let _ = asks.send(sender);
                    assert_eq!(answer.await, Ok(round % 3));
                }
                drop((stream, far));
                let _ = ends.send(());
            });
        }
        drop((asks, ends));
        thread::spawn(move || {
            let mut rounds = [0; CONNECTIONS];
            let mut held = Vec::new();
            while let Ok(sender) = asked.recv() {
                held.push(sender);
                // All have asked as often: whoever asks waits for one of these.
                if held.len() == CONNECTIONS {
                    for (sender, round) in held.drain(..).zip(&mut rounds) {
                        if *round % 7 == 3 {
                            thread::sleep(Duration::from_micros(60));
                        }
                        sender.send(*round % 3);
                        *round += 1;
                    }
                }
            }
        });
        for _ in 0..CONNECTIONS {
            let end = tokio::time::timeout(Duration::from_secs(30), ended.recv()).await;
            assert_eq!(end.expect("in time"), Some(()));
        }
    }
}
