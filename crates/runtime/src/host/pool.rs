//! Pools of plain threads: one per driver for blocking file operations, one per process for computing.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;

use crate::driver::ComputeJob;

pub(crate) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    threads_max: usize,
    state: Mutex<PoolState>,
    work: Condvar,
}

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<ComputeJob>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Pool {
    /// Threads start when they are first needed.
    pub(crate) fn new(name: &'static str, threads_max: usize) -> Self {
        let (state, work) = (Mutex::new(PoolState::default()), Condvar::new());
        Self {
            shared: Arc::new(Shared {
                name,
                threads_max: threads_max.max(1),
                state,
                work,
            }),
        }
    }

    /// The pool for computing: as many threads as the machine has cores.
    pub(crate) fn compute() -> &'static Self {
        static COMPUTE: OnceLock<Pool> = OnceLock::new();
        COMPUTE.get_or_init(|| {
            let cores = thread::available_parallelism().map_or(2, std::num::NonZero::get);
            Self::new("compute", cores)
        })
    }

    pub(crate) fn run(&self, job: ComputeJob) {
        let mut state = self
            .shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        state.jobs.push_back(job);
        if state.idle > 0 {
            state.idle -= 1;
            drop(state);
            self.shared.work.notify_one();
        } else if state.threads < self.shared.threads_max {
            state.threads += 1;
            let shared = self.shared.clone();
            let name = format!("{}-{}", shared.name, state.threads);
            drop(state);
            thread::Builder::new()
                .name(name)
                .spawn(move || work(&shared))
                .expect("the machine can start a thread");
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self
            .shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        state.closed = true;
        drop(state);
        self.shared.work.notify_all();
    }
}

/// `idle` counts threads that wait and have not been promised a job, so each job wakes its own thread.
fn work(shared: &Shared) {
    let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(job) = state.jobs.pop_front() {
            drop(state);
            job();
            state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        } else if state.closed {
            return;
        } else {
            state.idle += 1;
            state = shared
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}
