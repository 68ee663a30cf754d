//! The real world: kernel time, threads and devices. The only place that asks the kernel for them.
//!
//! [`Threads`] works everywhere (a pool of threads doing `pread`, `pwrite`, `fdatasync`); [`Uring`] is faster where
//! io_uring is allowed. [`driver`] picks. [`spawn_engine`] starts a thread with an executor of its own.

mod clock;
mod file;
mod parker;
mod peer;
mod pool;
mod spin;
mod threads;
mod uring;

use std::future::Future;
use std::thread;

use thiserror::Error;

pub(crate) use clock::now;
pub use peer::peer_groups;
pub use spin::{SpinPolicy, SpinThenPark, block_thread_on, spin_then_park, spin_thread_on};
pub use threads::Threads;
pub use uring::Uring;

use crate::driver::Driver;
use crate::executor::{Handle, Runtime};

/// Which host driver to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DriverChoice {
    /// io_uring where the kernel allows it, else threads.
    #[default]
    Auto,
    Uring,
    Threads,
}

/// How an engine thread meets the host.
#[derive(Clone, Debug)]
pub struct HostConfig {
    pub driver: DriverChoice,
    /// Threads for disk operations of the `Threads` driver: its greatest queue depth over all disks.
    pub io_threads: usize,
    /// Operations in flight in the ring of the `Uring` driver; more wait in memory.
    pub ring_entries: u32,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            driver: DriverChoice::Auto,
            io_threads: 16,
            ring_entries: 256,
        }
    }
}

/// The engine thread ended by a panic.
#[derive(Debug, Error)]
#[error("the engine thread \"{name}\" died: {message}")]
pub struct EngineDied {
    pub name: String,
    pub message: String,
}

/// A running engine thread.
pub struct EngineThread<T> {
    thread: thread::JoinHandle<T>,
    name: String,
}

impl<T> EngineThread<T> {
    /// Waits for the end of the thread's main future.
    ///
    /// # Errors
    /// When the thread panicked.
    pub fn join(self) -> Result<T, EngineDied> {
        let name = self.name;
        self.thread.join().map_err(|panic| EngineDied {
            name,
            message: panic_message(&*panic),
        })
    }

    /// Returns true when the thread has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Returns the text of a panic.
#[must_use]
pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "no message".to_owned()
    }
}

/// Makes a host driver.
///
/// # Panics
/// When the machine has no file descriptors or memory left for one, or `Uring` was demanded and is forbidden.
#[must_use]
pub fn driver(config: &HostConfig) -> Box<dyn Driver> {
    if config.driver != DriverChoice::Threads {
        match Uring::new(config) {
            Ok(uring) => return Box::new(uring),
            Err(error) if config.driver == DriverChoice::Uring => {
                panic!("io_uring is not to be had: {error}")
            }
            Err(_) => {}
        }
    }
    Box::new(Threads::new(config))
}

/// Starts a thread that runs the future made by `main` (on that thread) to its end, with an executor and a host
/// driver of its own.
///
/// # Panics
/// When the machine cannot start a thread.
pub fn spawn_engine<T, M, F>(name: &str, config: HostConfig, main: M) -> EngineThread<T>
where
    T: Send + 'static,
    M: FnOnce(Handle) -> F + Send + 'static,
    F: Future<Output = T>,
{
    let thread = thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            let runtime = Runtime::new(driver(&config));
            let handle = runtime.handle();
            runtime.block_on(async move { main(handle).await })
        })
        .expect("the machine can start a thread");
    EngineThread {
        thread,
        name: name.to_owned(),
    }
}
