//! Connection workers: the threads that serve connections. Each connection stays on one of them, which polls its socket itself:
//! what wakes a connection wakes the worker that has its task and no other, where a runtime of many threads would wake one more to
//! look for work. The threads of the main runtime accept connections and do everything else.
//!
//! A wake from another thread, mostly a pool's with an answer, costs that thread a system call, and the worker a sleep that ends
//! early. With eight connections of one call each that was half of what a LOOKUP cost, so the wakes for a worker are gathered in its
//! [`WakeQueue`].

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
const WORKERS_MAX: usize = 16;

/// The workers. Clones share them; they end with the process.
#[derive(Clone)]
pub(crate) struct ConnectionWorkers(Arc<[ConnectionWorker]>);

struct ConnectionWorker {
    runtime: Handle,
    queue: Arc<WakeQueue>,
    /// Connections that it serves.
    connections: AtomicUsize,
}

impl ConnectionWorkers {
    /// Starts as many threads as there are processors.
    ///
    /// # Errors
    /// The machine has no thread or descriptor left.
    pub(crate) fn start() -> std::io::Result<Self> {
        let count = thread::available_parallelism().map_or(1, NonZero::get);
        let workers = (0..count.min(WORKERS_MAX)).map(|number| {
            let queue = Arc::new(WakeQueue::default());
            let (parks, unparks, own) = (queue.clone(), queue.clone(), queue.clone());
            let runtime = Builder::new_current_thread()
                .enable_io()
                .enable_time()
                .on_thread_park(move || parks.on_park())
                .on_thread_unpark(move || unparks.on_unpark())
                .build()?;
            let handle = runtime.handle().clone();
            thread::Builder::new()
                .name(format!("connections {number}"))
                .spawn(move || {
                    OWN_QUEUE.set(Arc::as_ptr(&own).addr());
                    runtime.block_on(pending::<()>());
                })?;
            Ok(ConnectionWorker {
                runtime: handle,
                queue,
                connections: AtomicUsize::new(0),
            })
        });
        Ok(Self(workers.collect::<std::io::Result<_>>()?))
    }

    /// Serves a connection on the worker that has the fewest.
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
            let worker = self.0.get(*index);
            worker.map_or(usize::MAX, |worker| {
                worker.connections.load(Ordering::Relaxed)
            })
        };
        let Some(index) = (0..self.0.len()).min_by_key(connections) else {
            return;
        };
        let served = ServedConnection::new(self.0.clone(), index);
        let Some(worker) = self.0.get(index) else {
            return;
        };
        let queue = worker.queue.clone();
        worker.runtime.spawn(async move {
            match TcpStream::from_std(stream) {
                Ok(stream) => with_wake_queue(queue, serve(stream)).await,
                Err(error) => {
                    tracing::warn!(target: SANBOX, "a connection could not be taken over: {error}");
                }
            }
            drop(served);
        });
    }
}

thread_local! {
    /// Calls under way of all connections of this worker.
    static CALLS: Cell<usize> = const { Cell::new(0) };
    /// The address of this worker's wake queue.
    static OWN_QUEUE: Cell<usize> = const { Cell::new(0) };
}

/// Wakes for a worker's connections by other threads. A thread that queues one wakes the worker only when it sleeps and no other
/// thread has woken it for an earlier one.
#[derive(Default)]
struct WakeQueue(Mutex<PendingWakes>);

#[derive(Default)]
struct PendingWakes {
    /// Connections to wake.
    connections: Vec<Waker>,
    /// The worker is awake, or has been woken, and empties the queue before it sleeps again.
    will_be_emptied: bool,
}

impl WakeQueue {
    fn pending(&self) -> MutexGuard<'_, PendingWakes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_own(&self) -> bool {
        OWN_QUEUE.get() == std::ptr::from_ref(self).addr()
    }

    /// Queues a wake of a connection, from another thread.
    fn defer_wake(&self, connection: Waker) {
        let mut pending = self.pending();
        if pending.will_be_emptied {
            pending.connections.push(connection);
            return;
        }
        pending.will_be_emptied = true;
        drop(pending);
        wake_after_turn(connection);
    }

    /// Does the queued wakes, on the worker.
    fn wake_pending(&self) {
        let connections = std::mem::take(&mut self.pending().connections);
        for connection in connections {
            connection.wake();
        }
    }

    /// The worker is about to sleep, unless a wake is queued.
    fn on_park(&self) {
        let mut pending = self.pending();
        pending.will_be_emptied = !pending.connections.is_empty();
        drop(pending);
        self.wake_pending();
    }

    /// The worker is awake.
    fn on_unpark(&self) {
        self.pending().will_be_emptied = true;
        self.wake_pending();
    }
}

/// The waker of a connection: directly on its own worker, through the queue from other threads.
struct QueuedWaker {
    queue: Arc<WakeQueue>,
    connection: Waker,
}

impl Wake for QueuedWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queue.is_own() {
            self.connection.wake_by_ref();
        } else {
            self.queue.defer_wake(self.connection.clone());
        }
    }
}

/// Serves a connection whose wakes go through the queue of its worker. The queue is emptied at each turn as well, since a worker that
/// is never idle does not park.
async fn with_wake_queue(queue: Arc<WakeQueue>, served: impl Future<Output = ()>) {
    let mut served = pin!(served);
    let mut known: Option<(Waker, Waker)> = None;
    poll_fn(|cx| {
        queue.wake_pending();
        if !matches!(&known, Some((connection, _)) if connection.will_wake(cx.waker())) {
            let connection = cx.waker().clone();
            let queued = QueuedWaker {
                queue: queue.clone(),
                connection: connection.clone(),
            };
            known = Some((connection, Arc::new(queued).into()));
        }
        let (_, waker) = known.as_ref().expect("just made");
        served.as_mut().poll(&mut Context::from_waker(waker))
    })
    .await;
}

/// A connection's calls under way, as its worker counts them. Made and dropped on the worker's thread.
#[derive(Default)]
pub(crate) struct CallsUnderWay(usize);

impl CallsUnderWay {
    /// Sets how many there are now.
    pub(crate) fn set(&mut self, count: usize) {
        CALLS.set(CALLS.get() - self.0 + count);
        self.0 = count;
    }

    /// Returns true when there are any.
    pub(crate) fn any(&self) -> bool {
        self.0 > 0
    }

    /// Returns true when the worker serves one call and no other.
    pub(crate) fn is_one() -> bool {
        CALLS.get() == 1
    }
}

impl Drop for CallsUnderWay {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Counts a connection at its worker until it is dropped.
struct ServedConnection {
    workers: Arc<[ConnectionWorker]>,
    index: usize,
}

impl ServedConnection {
    fn new(workers: Arc<[ConnectionWorker]>, index: usize) -> Self {
        if let Some(worker) = workers.get(index) {
            worker.connections.fetch_add(1, Ordering::Relaxed);
        }
        Self { workers, index }
    }
}

impl Drop for ServedConnection {
    fn drop(&mut self) {
        if let Some(worker) = self.workers.get(self.index) {
            worker.connections.fetch_sub(1, Ordering::Relaxed);
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

    /// Answers that another thread gives to connections of all workers, one at a time, many at once, and while a worker falls asleep:
    /// each wakes its connection.
    #[tokio::test]
    async fn no_answer_of_another_thread_is_missed() {
        const CONNECTIONS: usize = 9;
        const ROUNDS: usize = 400;
        let workers = ConnectionWorkers::start().expect("workers start");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("is bound");
        let (asks, asked) = mpsc::channel::<ReplySender<usize>>();
        let (ends, mut ended) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..CONNECTIONS {
            let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
            let (asks, ends) = (asks.clone(), ends.clone());
            workers.serve(near.expect("connects"), move |stream| async move {
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
                // All have asked as often: each that asks waits for one of these.
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
