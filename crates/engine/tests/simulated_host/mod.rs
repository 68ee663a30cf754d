//! An engine whose pool threads are tasks of the simulated machine, for the tests of its boundary.

use std::cell::RefCell;
use std::path::PathBuf;

use engine::{Engine, Host, HostIdentity, PoolBody, PoolHandle, PoolSpec, VdevSpec};
use runtime::Handle;
use world::{Ended, World};

/// The disk that pools of these tests lie on.
pub(crate) const DISK: &str = "/disks/d0";

thread_local! {
    /// The simulated machine of this thread: a `Host` must be `Send`, which a runtime's handle is not.
    static MACHINE: RefCell<Option<Handle>> = const { RefCell::new(None) };
}

/// Runs pool threads as tasks of the simulated machine.
struct SimulatedHost;

impl Host for SimulatedHost {
    fn start(&self, _name: &str, body: PoolBody) -> Result<(), String> {
        let handle = MACHINE.with(|machine| machine.borrow().clone());
        let handle = handle.ok_or("no machine runs on this thread")?;
        drop(handle.spawn("pool", body(handle.clone())));
        Ok(())
    }
}

pub(crate) fn identity() -> HostIdentity {
    HostIdentity {
        hostid: 7,
        hostname: "here".into(),
        kernel: String::new(),
    }
}

/// Boots the machine of `world` and runs `main` with an engine that has no pools, to its end or to a power cut.
pub(crate) fn boot<T>(world: &World, main: impl AsyncFnOnce(Handle, Engine) -> T) -> Ended<T> {
    let ended = world.run(|handle| {
        MACHINE.with(|machine| *machine.borrow_mut() = Some(handle.clone()));
        async move {
            let engine = Engine::new(SimulatedHost);
            engine.set_admin_snapshots(true);
            main(handle, engine).await
        }
    });
    MACHINE.with(|machine| machine.borrow_mut().take());
    ended
}

/// Runs a test, on the machine of `world`, with an engine that has an imported pool `tank` on [`DISK`]; `properties` are those of its root
/// file system. The test is given the machine, too.
pub(crate) fn run_with_pool(
    world: &World,
    properties: &[(&str, &str)],
    test: impl AsyncFnOnce(Handle, Engine, PoolHandle),
) {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let properties: Vec<_> = properties.iter().map(owned).collect();
    let ended = boot(world, async |handle, engine: Engine| {
        let spec = PoolSpec {
            name: "tank".into(),
            vdevs: vec![VdevSpec::Single(PathBuf::from(DISK))],
            host: identity(),
            ..PoolSpec::default()
        };
        let pool = engine.create_pool(spec, &properties).await;
        test(handle, engine.clone(), pool.expect("creates")).await;
        engine.close().await.expect("closes");
    });
    assert!(matches!(ended, Ended::Done(())));
}
