//! The threads that serve connections. Each connection stays on one of them, which polls its socket itself: what wakes a
//! connection wakes the thread that has its task and no other, where a runtime of many threads would wake one more to look for
//! work. The threads of the main runtime accept connections and do everything else.

use std::cell::Cell;
use std::future::{Future, pending};
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};

use super::log;

/// Threads at most: one connection's work is small beside that of the pools behind it.
const LANES_MAX: usize = 16;

/// The threads. Clones share them; they end with the process.
#[derive(Clone)]
pub(crate) struct Lanes(Arc<[Lane]>);

struct Lane {
    runtime: Handle,
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
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let handle = runtime.handle().clone();
            thread::Builder::new()
                .name(format!("lane {number}"))
                .spawn(move || runtime.block_on(pending::<()>()))?;
            Ok(Lane {
                runtime: handle,
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
            Err(error) => return log(format!("a connection could not be handed over: {error}")),
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
        lane.runtime.spawn(async move {
            match TcpStream::from_std(stream) {
                Ok(stream) => serve(stream).await,
                Err(error) => log(format!("a connection could not be taken over: {error}")),
            }
            drop(place);
        });
    }
}

thread_local! {
    /// Calls under way of all connections of this lane.
    static CALLS: Cell<usize> = const { Cell::new(0) };
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
