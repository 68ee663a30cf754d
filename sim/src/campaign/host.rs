//! Runs the engine's pool threads as tasks of the simulated machine's one thread.

use std::cell::RefCell;

use engine::{Host, PoolBody};
use runtime::Handle;

thread_local! {
    /// The machine that runs on this thread now. The engine's host must be `Send`, a runtime's handle is not; both
    /// stay on one thread in simulation.
    static MACHINE: RefCell<Option<Handle>> = const { RefCell::new(None) };
}

/// The host of an engine inside a simulated machine.
pub struct SimHost;

/// Makes `handle`'s machine the current one until dropped.
pub struct Machine(());

impl Machine {
    #[must_use]
    pub fn enter(handle: &Handle) -> Self {
        MACHINE.with(|machine| *machine.borrow_mut() = Some(handle.clone()));
        Self(())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let handle = MACHINE.with(|machine| machine.borrow_mut().take());
        drop(handle);
    }
}

impl Host for SimHost {
    fn start(&self, _name: &str, body: PoolBody) -> Result<(), String> {
        let handle = MACHINE.with(|machine| machine.borrow().clone());
        let handle = handle.ok_or("no simulated machine runs on this thread")?;
        let pool = body(handle.clone());
        drop(handle.spawn("pool", pool));
        Ok(())
    }
}
