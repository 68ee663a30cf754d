//! Tests of the runtime on the real host, in one binary.

mod crossing;
mod disks;
mod tasks;

use runtime::{Runtime, host};

/// A runtime on the given driver.
fn runtime_on(driver: host::DriverChoice) -> Runtime {
    Runtime::new(host::driver(&host::HostConfig {
        driver,
        ..host::HostConfig::default()
    }))
}

/// Runs a check on every host driver.
fn on_all(check: impl Fn(&Runtime)) {
    for driver in [host::DriverChoice::Threads, host::DriverChoice::Auto] {
        check(&runtime_on(driver));
    }
}
