//! Whether an imported pool writes.
//!
//! ```text
//! running --no device takes a write--> suspended --zpool clear--> running
//! running or suspended --a txg cannot be completed--> failed: only another import brings the pool back
//! any --export, destroy, close--> closed
//! ```
//! Guarantees: the first reason of a suspension stays until it ends; a failed or closed pool never runs again.

use std::cell::RefCell;

use runtime::sync::Event;

/// Values of the property `failmode`.
// OpenZFS: include/sys/fs/zfs.h, zio_failure_mode
pub(crate) const FAILMODE_WAIT: u64 = 0;
/// See [`FAILMODE_WAIT`].
pub(crate) const FAILMODE_CONTINUE: u64 = 1;
/// See [`FAILMODE_WAIT`].
pub(crate) const FAILMODE_PANIC: u64 = 2;

/// Reason that waiters get when the pool is suspended.
pub(crate) const SUSPENDED: &str = "pool I/O is suspended";
/// Reason that waiters get when the pool was closed.
pub(crate) const CLOSED: &str = "the pool is no longer imported";

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LifecycleState {
    Running,
    /// Writes wait until the pool is resumed or closed.
    Suspended {
        reason: String,
    },
    /// The disks hold the last complete txg.
    Failed {
        reason: String,
        /// The txg did not fit; no device failed.
        out_of_space: bool,
    },
    /// The pool is no longer imported.
    Closed {
        /// State when it was closed; a txg under way may still fail after that.
        before: Box<Self>,
    },
}

/// The state of a pool, with an event for those that wait for the end of a suspension.
pub(crate) struct Lifecycle {
    state: RefCell<LifecycleState>,
    changed: Event,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self {
            state: RefCell::new(LifecycleState::Running),
            changed: Event::new("the pool to be resumed"),
        }
    }
}

impl Lifecycle {
    /// Calls `look` with the state, that before the close for a closed pool.
    fn look<T>(&self, look: impl FnOnce(&LifecycleState) -> T) -> T {
        match &*self.state.borrow() {
            LifecycleState::Closed { before } => look(before),
            state => look(state),
        }
    }

    fn replace(&self, change: impl FnOnce(&LifecycleState) -> LifecycleState) {
        let mut state = self.state.borrow_mut();
        let state = match &mut *state {
            LifecycleState::Closed { before } => before.as_mut(),
            state => state,
        };
        *state = change(state);
        assert!(
            !matches!(state, LifecycleState::Closed { .. }),
            "a pool is closed once"
        );
    }

    /// Whether the pool was closed.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(*self.state.borrow(), LifecycleState::Closed { .. })
    }

    /// Whether a txg could not be completed.
    pub(crate) fn is_failed(&self) -> bool {
        self.look(|state| matches!(state, LifecycleState::Failed { .. }))
    }

    /// Whether nothing will be written any more.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_closed() || self.is_failed()
    }

    /// Whether the pool is suspended or failed, or was when it was closed.
    pub(crate) fn is_suspended(&self) -> bool {
        self.look(|state| !matches!(state, LifecycleState::Running))
    }

    /// Whether the pool failed because a txg did not fit.
    pub(crate) fn is_out_of_space(&self) -> bool {
        self.look(|state| {
            matches!(
                state,
                LifecycleState::Failed {
                    out_of_space: true,
                    ..
                }
            )
        })
    }

    /// Returns why the pool is suspended or failed.
    pub(crate) fn reason(&self) -> Option<String> {
        self.look(|state| match state {
            LifecycleState::Suspended { reason } | LifecycleState::Failed { reason, .. } => {
                Some(reason.clone())
            }
            LifecycleState::Running | LifecycleState::Closed { .. } => None,
        })
    }

    /// Suspends a running pool; changes nothing in other states.
    pub(crate) fn suspend(&self, reason: &str) {
        self.replace(|state| match state {
            LifecycleState::Running => LifecycleState::Suspended {
                reason: reason.to_owned(),
            },
            state => state.clone(),
        });
    }

    /// Makes a suspended pool a failed one.
    pub(crate) fn fail(&self, out_of_space: bool) {
        self.replace(|state| match state {
            LifecycleState::Suspended { reason } => LifecycleState::Failed {
                reason: reason.clone(),
                out_of_space,
            },
            LifecycleState::Failed {
                reason,
                out_of_space: before,
            } => LifecycleState::Failed {
                reason: reason.clone(),
                out_of_space: out_of_space || *before,
            },
            state => panic!("a pool fails after it was suspended, not when it is {state:?}"),
        });
    }

    /// Makes a suspended pool run again, and wakes the writes that wait.
    pub(crate) fn resume(&self) {
        self.replace(|state| {
            assert!(
                !matches!(state, LifecycleState::Failed { .. }),
                "a failed pool is not resumed"
            );
            LifecycleState::Running
        });
    }

    /// Closes the pool. Returns whether it was open.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.state.borrow_mut();
        if matches!(*state, LifecycleState::Closed { .. }) {
            return false;
        }
        let before = Box::new(state.clone());
        *state = LifecycleState::Closed { before };
        true
    }

    /// Wakes those that wait for a change.
    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Waits until the pool is resumed, failed or closed.
    pub(crate) async fn wait_changed(&self) {
        self.changed.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_stays_and_a_failed_pool_stays_failed() {
        let lifecycle = Lifecycle::default();
        assert!(!lifecycle.is_suspended());
        lifecycle.suspend("first");
        lifecycle.suspend("second");
        assert_eq!(lifecycle.reason().as_deref(), Some("first"));
        assert!(lifecycle.is_suspended() && !lifecycle.is_stopped());
        lifecycle.resume();
        assert_eq!(lifecycle.reason(), None);
        lifecycle.suspend("third");
        lifecycle.fail(true);
        lifecycle.fail(false);
        assert!(lifecycle.is_failed() && lifecycle.is_out_of_space());
        assert!(lifecycle.close() && !lifecycle.close());
        assert!(lifecycle.is_closed() && lifecycle.is_failed() && lifecycle.is_suspended());
        assert_eq!(lifecycle.reason().as_deref(), Some("third"));
    }

    #[test]
    fn a_txg_under_way_may_fail_after_the_close() {
        let lifecycle = Lifecycle::default();
        assert!(lifecycle.close());
        assert!(lifecycle.is_stopped() && !lifecycle.is_suspended());
        lifecycle.suspend("device gone");
        lifecycle.fail(false);
        assert!(lifecycle.is_closed() && lifecycle.is_failed());
    }
}
