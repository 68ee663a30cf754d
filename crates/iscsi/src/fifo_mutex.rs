//! An asynchronous lock that is given in the order of arrival, for tasks that run on different threads.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use runtime::reply::ReplySender;

/// A lock for tasks of any thread.
#[derive(Default)]
pub(crate) struct FifoMutex {
    state: Mutex<FifoState>,
}

#[derive(Default)]
struct FifoState {
    locked: bool,
    waiting: VecDeque<ReplySender<()>>,
}

/// The lock, until it is dropped.
pub(crate) struct FifoGuard<'a>(&'a FifoMutex);

impl FifoMutex {
    fn state(&self) -> MutexGuard<'_, FifoState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn lock(&self) -> FifoGuard<'_> {
        let wait = {
            let mut state = self.state();
            if state.locked {
                let (sender, answer) = runtime::reply();
                state.waiting.push_back(sender);
                Some(answer)
            } else {
                state.locked = true;
                None
            }
        };
        if let Some(wait) = wait {
            // The lock is handed over with the answer.
            let _ = wait.await;
        }
        FifoGuard(self)
    }
}

impl Drop for FifoGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        assert!(state.locked, "the guard of a lock that is free");
        loop {
            match state.waiting.pop_front() {
                Some(next) if next.is_closed() => {}
                Some(next) => {
                    next.send(());
                    return;
                }
                None => {
                    state.locked = false;
                    return;
                }
            }
        }
    }
}
