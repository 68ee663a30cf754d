//! What holds for the life of the process: the engine, the state directory, the configuration, this machine's identity, and the
//! limits that pools are opened with. The services hold it without holding the appliance, which holds them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use engine::{Engine, HostIdentity, PoolHandle, TuningChange};
use manage::config::{Alerts, Config};
use manage::state::StateDirectory;
use tokio::sync::watch;

use crate::acme::Acme;
use crate::memory::plan::{self, Plan};
use crate::tuning::{self, Tunables};

/// See the module.
pub(crate) struct Context {
    engine: Engine,
    state: StateDirectory,
    config: Config,
    identity: HostIdentity,
    /// Limits that can be changed.
    tunables: Mutex<Tunables>,
    /// Who is told of alerts; it can be changed, too.
    alerts: watch::Sender<Alerts>,
    /// Certificates from an authority.
    acme: Acme,
    memory: Plan,
    /// Pools that are not served yet, by name: of each, how many tasks say so.
    withheld: watch::Sender<BTreeMap<String, usize>>,
}

/// A pool that is not served as long as this lives.
pub(crate) struct Withheld {
    context: Arc<Context>,
    pool: String,
}

impl Drop for Withheld {
    fn drop(&mut self) {
        self.context.withheld.send_modify(|withheld| {
            if let Some(count) = withheld.get_mut(&self.pool) {
                *count -= 1;
                if *count == 0 {
                    withheld.remove(&self.pool);
                }
            }
        });
    }
}

impl Context {
    /// The context of a process that holds the lock of the state directory.
    pub(super) fn new(
        engine: Engine,
        state: StateDirectory,
        config: Config,
    ) -> anyhow::Result<Arc<Self>> {
        crate::names::keep_groups_of(state.path());
        engine.events().load(&state.read_events());
        engine.set_admin_snapshots(config.mount.admin_snapshots);
        let identity = HostIdentity {
            hostid: hostid(&state)?,
            hostname: hostname(),
            kernel: kernel(),
        };
        let tunables = tuning::from_config(&config.tuning).map_err(anyhow::Error::msg)?;
        let memory = Plan::of(memory_ceiling(&config));
        runtime::register_at_most(usize::try_from(memory.registered).unwrap_or(usize::MAX));
        runtime::map_large_blocks_of_heap();
        Ok(Arc::new(Self {
            engine,
            state,
            alerts: watch::Sender::new(config.alerts.clone()),
            acme: Acme::new(config.acme.clone()),
            config,
            identity,
            tunables: Mutex::new(tunables),
            memory,
            withheld: watch::Sender::default(),
        }))
    }

    /// The context of commands that need no pools: nothing is opened or written.
    pub(super) fn detached(engine: Engine, state: &Path) -> Arc<Self> {
        Arc::new(Self {
            engine,
            state: StateDirectory::unopened(state),
            config: Config::default(),
            alerts: watch::Sender::default(),
            acme: Acme::default(),
            identity: HostIdentity::default(),
            tunables: Mutex::default(),
            memory: Plan::of(0),
            withheld: watch::Sender::default(),
        })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Keeps the services from a pool that is about to be opened, until it is known which of its datasets may be served.
    pub(crate) fn withhold(self: &Arc<Self>, pool: &str) -> Withheld {
        self.withheld.send_modify(|withheld| {
            *withheld.entry(pool.to_owned()).or_default() += 1;
        });
        Withheld {
            context: self.clone(),
            pool: pool.to_owned(),
        }
    }

    /// The open pools whose datasets may be served.
    pub(crate) fn served_pools(&self) -> Vec<PoolHandle> {
        let mut pools = self.engine.pools();
        let withheld = self.withheld.borrow();
        pools.retain(|pool| !withheld.contains_key(pool.name()));
        pools
    }

    /// Waits until all open pools may be served: a task that opened one may still find out what of it is fenced.
    pub(crate) async fn all_may_be_served(&self) {
        let may_be = |withheld: &BTreeMap<String, usize>| {
            let pools = self.engine.pools();
            pools.iter().all(|pool| !withheld.contains_key(pool.name()))
        };
        // Its other end is here.
        let _ = self.withheld.subscribe().wait_for(may_be).await;
    }

    pub(crate) fn state(&self) -> &StateDirectory {
        &self.state
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// This machine, as the labels of pools name it.
    pub(super) fn identity(&self) -> &HostIdentity {
        &self.identity
    }

    /// Who is told of alerts, now and from now on.
    pub(crate) fn alerts(&self) -> &watch::Sender<Alerts> {
        &self.alerts
    }

    /// Certificates from an authority.
    pub(crate) fn acme(&self) -> &Acme {
        &self.acme
    }

    /// What is planned of the memory.
    pub(crate) fn memory_plan(&self) -> Plan {
        self.memory
    }

    /// The limits that can be changed, as they are now.
    pub(crate) fn tunables(&self) -> Tunables {
        let now = self.tunables.lock();
        now.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes a limit, here and in the pools that are open.
    pub(crate) async fn tune(&self, name: &str, value: &str) -> Result<(), String> {
        let after = {
            let now = self.tunables.lock();
            let mut now = now.unwrap_or_else(PoisonError::into_inner);
            tuning::set(&mut now, name, value)?;
            now.clone()
        };
        self.set_tunables(after).await;
        Ok(())
    }

    /// Sets all limits, of open pools too.
    pub(crate) async fn set_tunables(&self, after: Tunables) {
        let now = self.tunables.lock();
        *now.unwrap_or_else(PoisonError::into_inner) = after.clone();
        let pools = self.engine.pools();
        let share = self.cache_bytes(&after) / pools.len().max(1);
        for pool in pools {
            let tunes = TuningChange {
                cache_bytes: Some(share),
                pressed_bytes: None,
                l2: Some(after.l2.clone()),
                removal_paused: Some(after.removal_paused),
            };
            // One that was exported meanwhile needs none.
            let _ = pool.tune(tunes).await;
        }
    }

    /// Most bytes of all caches together.
    fn cache_bytes(&self, tunables: &Tunables) -> usize {
        let planned = self.memory.caches;
        let bytes = tunables
            .cache_bytes
            .map_or(planned, |chosen| chosen.min(planned));
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// The tuning that a pool is opened with.
    pub(super) fn tuning(&self) -> engine::Tuning {
        let mut tuning = engine::Tuning::default();
        let tunables = self.tunables();
        // Pools that come later share with those that are there; the task that keeps the memory limit evens it out.
        let pools = self.engine.pools().len() as u64 + 1;
        tuning.cache.limit_bytes = self.cache_bytes(&tunables);
        tuning.cache.devices = tunables.l2;
        tuning.removal.paused = tunables.removal_paused;
        tuning.txg.dirty_bytes_max = (self.memory.dirty / pools).max(16 << 20);
        let most = tuning.txg.dirty_bytes_max / 4;
        tuning.txg.dirty_bytes_sync = tuning.txg.dirty_bytes_sync.min(most);
        tuning.blocks.writing_bytes_max = (self.memory.writing / pools).max(8 << 20);
        tuning
    }
}

/// The memory the process is to stay below, in bytes: what was chosen, at most what there is; else half of what there is.
fn memory_ceiling(config: &Config) -> u64 {
    let here = plan::available();
    match (config.memory_bytes().ok().flatten(), here) {
        (Some(chosen), Some(here)) => chosen.min(here),
        (Some(chosen), None) => chosen,
        (None, Some(here)) => here / 2,
        (None, None) => 1 << 30,
    }
}

fn hostname() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// What runs on this machine: release, version, architecture.
fn kernel() -> String {
    let uname = rustix::system::uname();
    [uname.release(), uname.version(), uname.machine()]
        .map(|text| text.to_string_lossy())
        .join(" ")
}

/// The machine's identifier as OpenZFS reads it, or one of the state directory's own.
fn hostid(state: &StateDirectory) -> anyhow::Result<u64> {
    // OpenZFS: lib/libspl/os/linux/gethostid.c, get_spl_hostid
    let given = std::env::var("ZFS_HOSTID").unwrap_or_default();
    if let Ok(hostid) = u32::from_str_radix(given.trim_start_matches("0x"), 16)
        && hostid != 0
    {
        return Ok(u64::from(hostid));
    }
    // man 5 hostid: four bytes in the machine's order.
    if let Ok(bytes) = std::fs::read("/etc/hostid")
        && let Some(bytes) = bytes.first_chunk::<4>()
    {
        #[allow(
            clippy::host_endian_bytes,
            reason = "the file is in the machine's order"
        )]
        let hostid = u32::from_ne_bytes(*bytes);
        if hostid != 0 {
            return Ok(u64::from(hostid));
        }
    }
    let fresh = || {
        let mut bytes = [0; 4];
        let random = std::fs::File::open("/dev/urandom")
            .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes));
        match random {
            Ok(()) => u32::from_be_bytes(bytes),
            Err(_) => std::process::id(),
        }
    };
    Ok(u64::from(state.hostid(fresh)?))
}
