//! One appliance: the engine, the state directory, and what this process does with the pools
//! besides (mounts, shares). Commands act on it alike in the daemon and in a process of their own.
//!
//! Pools that the state directory remembers as imported are opened when a command first asks for
//! them; so a command without a daemon opens only what it needs, and leaves it open for the next
//! one (closed cleanly, not exported).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use engine::property::{DatasetKind, Property, Source, Value};
use engine::{
    AllocationBias, Candidate, DatasetInfo, Ending, Engine, EngineError, Health, HostIdentity,
    ImportPolicy, PoolError, PoolHandle, PoolSpec, PoolState, PoolStatus, PropertyQuery, Rewound,
    StatusReason, Subject, TuningChange, VdevStatus,
};
use manage::api::Api;
use manage::config::Config;
use manage::jobs::Jobs;
use manage::replication::Replications;
use manage::state::{CachedVdev, PoolCache, StateDirectory};
use tokio::sync::Mutex;

use crate::logging::SANBOX;
use crate::memory::{self, Plan};
use crate::paths;
use crate::serve::devices::Devices;
use crate::serve::fuse::{Lists, MountFlags, Mounts};
use crate::serve::iscsi::Iscsi;
use crate::serve::nbd;
use manage::api::Share;

use crate::serve::shares::Shares;
use crate::serve::smb::Smb;
use crate::tuning::{self, Tunables};

pub(crate) use manage::state::CachedPool;

/// How long a device that is there may be busy: in use by a process on its way out.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a start looks for mounts that a killed process left: a mount of another process may not answer.
const STALE_MOUNTS_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait before trying again.
const DEVICE_PAUSE: Duration = Duration::from_millis(50);

/// A protocol by which file systems are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShareProtocol {
    /// NFS.
    Nfs,
    /// SMB.
    Smb,
}

impl ShareProtocol {
    /// All of them.
    pub(crate) const ALL: [Self; 2] = [Self::Nfs, Self::Smb];
}

/// A pool that the state directory knows as imported.
#[allow(clippy::large_enum_variant, reason = "few at a time, and not for long")]
pub(crate) enum KnownPool {
    /// It is open.
    Open(PoolHandle),
    /// It could not be opened.
    Closed(CachedPool, EngineError),
}

tokio::task_local! {
    /// The user that gave the command that this task runs, if it is not the one that runs the appliance.
    static SUBJECT: Subject;
}

/// Runs a command of a user that may only do what was delegated: the pools it reaches check that.
pub(crate) async fn as_subject<T>(subject: Option<Subject>, command: impl Future<Output = T>) -> T {
    match subject {
        Some(subject) => SUBJECT.scope(subject, command).await,
        None => command.await,
    }
}

/// Whether the command that runs may do only what was delegated. Mounting and unmounting never is: this process may be root's,
/// and the mount point would be the user's choice.
pub(crate) fn is_delegated() -> bool {
    SUBJECT.try_with(|_| ()).is_ok()
}

/// A pool as the command that runs may use it.
fn handed(pool: PoolHandle) -> PoolHandle {
    match SUBJECT.try_with(Clone::clone) {
        Ok(subject) => pool.for_caller(subject),
        Err(_) => pool,
    }
}

/// See the module.
pub(crate) struct Appliance {
    engine: Engine,
    state: StateDirectory,
    config: Config,
    identity: HostIdentity,
    /// The remembered pools; held while one of them is opened or ended, so that this happens one at
    /// a time.
    cache: Mutex<PoolCache>,
    mounts: Mounts,
    /// Present in a daemon.
    shares: OnceLock<Shares>,
    /// Present in a daemon that serves NBD.
    nbd: OnceLock<nbd::Server>,
    /// Present in a daemon that serves iSCSI.
    iscsi: OnceLock<Iscsi>,
    /// Present in a daemon that serves SMB.
    smb: OnceLock<Smb>,
    /// Present in a daemon that makes block devices of volumes.
    devices: OnceLock<Devices>,
    /// Present in a daemon, and in a command about what it holds.
    api: OnceLock<Arc<Api>>,
    replications: Arc<Replications>,
    /// Limits that can be changed.
    tunables: std::sync::Mutex<Tunables>,
    memory: Plan,
}

/// How a pool was imported that the next process must import in the same way.
#[derive(Clone, Copy, Default)]
struct How {
    missing_logs: bool,
    at_checkpoint: bool,
}

impl Appliance {
    /// Has commands use what manages the appliance; what shells change is in its log of jobs from now on.
    pub(crate) fn keep_api(&self, api: Arc<Api>) {
        // It is opened once in a process.
        let _ = self.api.set(api);
    }

    /// Returns what manages the appliance, if it was opened.
    pub(crate) fn api(&self) -> Option<Arc<Api>> {
        self.api.get().cloned()
    }

    /// Returns the jobs of replication.
    pub(crate) fn replications(&self) -> &Arc<Replications> {
        &self.replications
    }

    /// Returns the log of jobs, if it was opened.
    pub(crate) fn jobs(&self) -> Option<Arc<Jobs>> {
        self.api.get().map(|api| api.jobs.clone())
    }

    /// Sets up an appliance on a state directory whose lock the caller holds.
    pub(crate) fn new(
        engine: Engine,
        state: StateDirectory,
        config: Config,
    ) -> anyhow::Result<Arc<Self>> {
        let cache = state.read_pools()?;
        engine.events().load(&state.read_events());
        engine.set_admin_snapshots(config.mount.admin_snapshots);
        let identity = HostIdentity {
            hostid: hostid(&state)?,
            hostname: hostname(),
        };
        let mounts = Mounts::new(config.mount.threads);
        let tunables = tuning::from_config(&config.tuning).map_err(anyhow::Error::msg)?;
        let memory = Plan::of(memory_ceiling(&config));
        runtime::register_at_most(usize::try_from(memory.registered).unwrap_or(usize::MAX));
        Ok(Arc::new(Self {
            tunables: std::sync::Mutex::new(tunables),
            memory,
            engine,
            replications: Replications::new(state.path()),
            state,
            config,
            identity,
            cache: Mutex::new(cache),
            mounts,
            shares: OnceLock::new(),
            nbd: OnceLock::new(),
            iscsi: OnceLock::new(),
            smb: OnceLock::new(),
            devices: OnceLock::new(),
            api: OnceLock::new(),
        }))
    }

    /// Makes an appliance for commands that need no pools: nothing is opened or written.
    pub(crate) fn detached(engine: Engine, state: &Path) -> Arc<Self> {
        let config = Config::default();
        let mounts = Mounts::new(config.mount.threads);
        Arc::new(Self {
            tunables: std::sync::Mutex::default(),
            memory: Plan::of(0),
            engine,
            replications: Replications::new(state),
            state: StateDirectory::unopened(state),
            config,
            identity: HostIdentity::default(),
            cache: Mutex::default(),
            mounts,
            shares: OnceLock::new(),
            nbd: OnceLock::new(),
            iscsi: OnceLock::new(),
            smb: OnceLock::new(),
            devices: OnceLock::new(),
            api: OnceLock::new(),
        })
    }

    /// Ends sharing at the end of the process.
    pub(crate) async fn stop_sharing(&self) {
        if let Some(shares) = self.shares.get() {
            shares.close().await;
        }
        if let Some(nbd) = self.nbd.get() {
            nbd.close().await;
        }
        if let Some(iscsi) = self.iscsi.get() {
            iscsi.close().await;
        }
        if let Some(smb) = self.smb.get() {
            smb.close().await;
        }
        if let Some(devices) = self.devices.get() {
            devices.close().await;
        }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn state(&self) -> &StateDirectory {
        &self.state
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn mounts(&self) -> &Mounts {
        &self.mounts
    }

    /// Clears away the mounts that a killed process of this state directory left.
    pub(crate) async fn clear_stale_mounts(&self) {
        let cache = self.cache.lock().await;
        let pools: Vec<String> = cache.pools.iter().map(|pool| pool.name.clone()).collect();
        drop(cache);
        let volumes = self.state.path().join("volumes");
        let at = volumes.clone();
        let clear = move || paths::clear_stale(&pools, &at);
        let cleared = paths::call_within(STALE_MOUNTS_TIMEOUT, &volumes, clear);
        if let Err(why) = cleared.await {
            tracing::warn!(target: SANBOX, "mounts that a killed process may have left: {why}");
        }
    }

    /// Turns this into a daemon, which serves shares and holds mounts.
    pub(crate) fn enter_daemon(&self, shares: Shares) {
        let _ = self.shares.set(shares);
    }

    /// Takes the NBD server along.
    pub(crate) fn serve_nbd(&self, server: nbd::Server) {
        let _ = self.nbd.set(server);
    }

    /// Takes the iSCSI target along.
    pub(crate) fn serve_iscsi(&self, server: Iscsi) {
        let _ = self.iscsi.set(server);
    }

    /// Takes the SMB service along.
    pub(crate) fn serve_smb(&self, smb: Smb) {
        let _ = self.smb.set(smb);
    }

    /// Returns what is shared by SMB and what its clients do; `None` in a process that does not serve it.
    pub(crate) async fn smb_status(&self) -> Option<manage::samba::status::SmbStatus> {
        match self.smb.get() {
            Some(smb) => Some(smb.status().await),
            None => None,
        }
    }

    /// Takes the block devices of volumes along.
    pub(crate) fn serve_devices(&self, devices: Devices) {
        let _ = self.devices.set(devices);
    }

    /// Takes a volume's block device away, unless it is in use.
    ///
    /// # Errors
    /// It is in use.
    pub(crate) async fn release_device(&self, guid: u64) -> Result<(), EngineError> {
        match self.devices.get() {
            Some(devices) => devices
                .release(Some(guid), "")
                .await
                .map_err(EngineError::Busy),
            None => Ok(()),
        }
    }

    /// Lists what is to be shared by NFS.
    pub(crate) fn shares(&self) -> Vec<Share> {
        self.shares.get().map(Shares::list).unwrap_or_default()
    }

    /// Lists the sessions of iSCSI initiators.
    pub(crate) fn iscsi_sessions(&self) -> Vec<::iscsi::SessionInfo> {
        self.iscsi.get().map(Iscsi::sessions).unwrap_or_default()
    }

    /// How many iSCSI sessions can reach a volume.
    pub(crate) fn volume_users(&self, guid: u64) -> usize {
        self.iscsi.get().map_or(0, |iscsi| iscsi.users_of(guid))
    }

    /// Whether this process mounts file systems without being asked.
    pub(crate) fn mounts_by_itself(&self) -> bool {
        self.is_daemon() && self.config.mount.automatic
    }

    /// Whether this process is a daemon.
    pub(crate) fn is_daemon(&self) -> bool {
        self.shares.get().is_some()
    }

    /// Returns the pools that are open now.
    pub(crate) fn open_pools(&self) -> Vec<PoolHandle> {
        self.engine.pools()
    }

    /// Returns the names of the pools known as imported; of those that are open when another task has the list, as while a
    /// pool is being opened.
    pub(crate) fn remembered_pools(&self) -> Vec<String> {
        match self.cache.try_lock() {
            Ok(cache) => cache.pools.iter().map(|pool| pool.name.clone()).collect(),
            Err(_) => self
                .open_pools()
                .iter()
                .map(|pool| pool.name().to_owned())
                .collect(),
        }
    }

    /// Returns this machine's name, if it has one.
    pub(crate) fn host_name(&self) -> Option<String> {
        let name = &self.identity.hostname;
        (!name.is_empty()).then(|| name.clone())
    }

    /// What is planned of the memory.
    pub(crate) fn memory_plan(&self) -> Plan {
        self.memory
    }

    /// The limits that can be changed, as they are now.
    pub(crate) fn tunables(&self) -> Tunables {
        let now = self.tunables.lock();
        now.unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone()
    }

    /// Changes a limit, here and in the pools that are open.
    pub(crate) async fn tune(&self, name: &str, value: &str) -> Result<(), String> {
        let after = {
            let now = self.tunables.lock();
            let mut now = now.unwrap_or_else(std::sync::PoisonError::into_inner);
            tuning::set(&mut now, name, value)?;
            now.clone()
        };
        self.set_tunables(after).await;
        Ok(())
    }

    /// Sets all limits, of open pools too.
    pub(crate) async fn set_tunables(&self, after: Tunables) {
        let now = self.tunables.lock();
        *now.unwrap_or_else(std::sync::PoisonError::into_inner) = after.clone();
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

    /// Returns all pools known as imported, opening them.
    pub(crate) async fn pools(&self) -> Vec<KnownPool> {
        let names: Vec<String> = self
            .cache
            .lock()
            .await
            .pools
            .iter()
            .map(|pool| pool.name.clone())
            .collect();
        let mut known = Vec::new();
        for name in names {
            known.extend(self.known_pool(&name).await);
        }
        known
    }

    /// Returns the pool of a name, if it is known as imported, opening it.
    pub(crate) async fn known_pool(&self, name: &str) -> Option<KnownPool> {
        let mut cache = self.cache.lock().await;
        if let Ok(pool) = self.engine.pool(name) {
            return Some(KnownPool::Open(handed(pool)));
        }
        let cached = cache.pools.iter().find(|pool| pool.name == name)?.clone();
        if is_delegated() {
            // What happens when a pool comes (mounts, shares) is not done in the name of a user.
            return Some(KnownPool::Closed(cached, EngineError::Permission));
        }
        match self.reopen(&cached).await {
            Ok(pool) => {
                let hostid = Some(self.identity.hostid);
                // A read-only import leaves the host id of before on the labels.
                if cached.hostid != hostid && !cached.readonly {
                    cache.put(CachedPool { hostid, ..cached });
                    self.write(&cache);
                }
                drop(cache);
                self.opened(&pool, true).await;
                Some(KnownPool::Open(handed(pool)))
            }
            Err(error) => Some(KnownPool::Closed(cached, error)),
        }
    }

    /// Returns the pool of a name, opening it.
    pub(crate) async fn pool(&self, name: &str) -> Result<PoolHandle, EngineError> {
        match self.known_pool(name).await {
            Some(KnownPool::Open(pool)) => Ok(pool),
            Some(KnownPool::Closed(_, error)) => Err(error),
            None => Err(EngineError::PoolNotFound(name.to_owned())),
        }
    }

    /// Returns the pool that a dataset lies in, opening it.
    pub(crate) async fn pool_of(&self, dataset: &str) -> Result<PoolHandle, EngineError> {
        self.pool(crate::cli::pool_part(dataset)).await
    }

    /// Returns the guids of the pools known as imported.
    pub(crate) async fn known_guids(&self) -> BTreeSet<u64> {
        self.cache
            .lock()
            .await
            .pools
            .iter()
            .map(|pool| pool.guid)
            .collect()
    }

    /// Opens a remembered pool. Devices that are there and cannot be had are waited for a little:
    /// after a process was killed, the kernel takes a moment to end its disk operations and to let go
    /// of the files.
    async fn reopen(&self, cached: &CachedPool) -> Result<PoolHandle, EngineError> {
        let began = std::time::Instant::now();
        loop {
            let outcome = self.reopen_now(cached).await;
            let Err(EngineError::Pool(error)) = &outcome else {
                return outcome;
            };
            let is_missing = matches!(error, PoolError::MissingDevices { .. });
            let may_be_held =
                is_missing || matches!(error, PoolError::Vdev(_) | PoolError::Disk(_));
            if !may_be_held
                || began.elapsed() >= DEVICE_TIMEOUT
                || !all_exist(&cached.devices).await
                || is_missing && self.is_displaced(cached).await
            {
                return outcome;
            }
            tokio::time::sleep(DEVICE_PAUSE).await;
        }
    }

    /// Whether all devices of a pool can be read and one of them is another pool's: waiting would not bring it back.
    async fn is_displaced(&self, cached: &CachedPool) -> bool {
        let Ok(found) = self.engine.discover(cached.devices.clone()).await else {
            return false;
        };
        let (own, foreign): (Vec<_>, Vec<_>) = found
            .pools
            .iter()
            .partition(|pool| pool.guid == cached.guid);
        let holds = |pools: &[&Candidate], device: &PathBuf| {
            let mut known = pools.iter().flat_map(|pool| pool.devices.values());
            known.any(|known| known == device)
        };
        let devices = || cached.devices.iter();
        devices().any(|device| holds(&foreign, device))
            && devices().all(|device| holds(&foreign, device) || holds(&own, device))
    }

    async fn reopen_now(&self, cached: &CachedPool) -> Result<PoolHandle, EngineError> {
        let is_it = |candidate: &Candidate| candidate.guid == cached.guid;
        let mut found = self.engine.discover(cached.devices.clone()).await?.pools;
        if !found
            .iter()
            .any(|c| is_it(c) && c.health == engine::Health::Online)
        {
            // A device has moved, perhaps to another name beside the old one.
            let mut places: Vec<PathBuf> = cached
                .devices
                .iter()
                .filter_map(|device| device.parent().map(Path::to_owned))
                .collect();
            places.sort();
            places.dedup();
            let wider = self.engine.discover(places).await?.pools;
            if wider.iter().any(is_it) {
                found = wider;
            }
        }
        let Some(candidate) = found.into_iter().find(is_it) else {
            let missing = cached
                .devices
                .iter()
                .map(|path| path.to_string_lossy().into_owned())
                .collect();
            return Err(EngineError::Pool(PoolError::MissingDevices { missing }));
        };
        // A read-only import writes nothing, so the labels of its pool may say anything.
        if candidate.state != PoolState::Active && !cached.readonly {
            return Err(EngineError::Dataset(
                "the pool was exported or destroyed by another system; 'zpool export' makes this one \
                 forget it, then it can be imported again"
                    .to_owned(),
            ));
        }
        // The labels name the host id that this state directory had: it is the machine's that changed, not the machine.
        let hostid_changed =
            candidate.hostid != self.identity.hostid && cached.hostid == Some(candidate.hostid);
        if hostid_changed {
            tracing::warn!(
                target: SANBOX,
                "the host id changed from {:x} to {:x}; '{}' is opened, because this system used it last",
                candidate.hostid,
                self.identity.hostid,
                cached.name
            );
        }
        let new_name = (candidate.name != cached.name).then(|| cached.name.clone());
        let cachefile = cached.cachefile.clone();
        let policy = ImportPolicy {
            force: hostid_changed,
            readonly: cached.readonly,
            missing_logs: cached.missing_logs,
            rewind_to_checkpoint: cached.at_checkpoint,
            properties: cachefile
                .map(|path| ("cachefile".to_owned(), path))
                .into_iter()
                .collect(),
            altroot: cached.altroot.clone(),
            temporary_name: new_name.is_some(),
            new_name,
            host: self.identity.clone(),
            tuning: self.tuning(),
            ..ImportPolicy::default()
        };
        self.engine.import(candidate, policy).await
    }

    /// Creates a pool and remembers it.
    pub(crate) async fn create_pool(
        &self,
        mut spec: PoolSpec,
        root_properties: &[(String, String)],
    ) -> Result<PoolHandle, EngineError> {
        spec.host = self.identity.clone();
        spec.tuning = self.tuning();
        // With an alternate root a pool is not remembered, unless it is asked for.
        // OpenZFS: cmd/zpool/zpool_main.c, zpool_do_create
        let has_cachefile = spec.properties.iter().any(|(name, _)| name == "cachefile");
        if spec.altroot.is_some() && !has_cachefile {
            spec.properties
                .push(("cachefile".to_owned(), "none".to_owned()));
        }
        let temporary = spec.altroot.is_some()
            || spec
                .properties
                .iter()
                .any(|(name, value)| name == "cachefile" && value == "none");
        let pool = {
            let _one = self.cache.lock().await;
            self.engine.create_pool(spec, root_properties).await?
        };
        self.remember(&pool, temporary, How::default()).await?;
        self.opened(&pool, true).await;
        Ok(pool)
    }

    /// Says which older state of a damaged pool could be imported.
    pub(crate) async fn assess_rewind(
        &self,
        candidate: Candidate,
        mut policy: ImportPolicy,
    ) -> Option<Rewound> {
        policy.host = self.identity.clone();
        policy.tuning = self.tuning();
        let _one = self.cache.lock().await;
        self.engine.assess_rewind(candidate, policy).await.ok()?
    }

    /// Finds out whether a pool that was found is another host's, and says so in it.
    // OpenZFS: lib/libzfs/libzfs_status.c, check_status (order)
    pub(crate) async fn judge_host(&self, candidate: &mut Candidate) {
        let foreign = candidate.state == PoolState::Active
            && candidate.hostid != 0
            && candidate.hostid != self.identity.hostid;
        if !foreign {
            return;
        }
        let looked = self
            .engine
            .is_in_use_elsewhere(candidate.clone(), self.identity.clone());
        if looked.await.unwrap_or(false) {
            candidate.reason = StatusReason::HostidActive;
            candidate.health = Health::Unavail;
            candidate.root.health = Health::Unavail;
            candidate.root.note = Some("currently in use".to_owned());
        } else if candidate.reason == StatusReason::Ok {
            candidate.reason = StatusReason::HostidMismatch;
        }
    }

    /// Imports a pool and remembers it. With `mount` a daemon mounts its file systems.
    pub(crate) async fn import_pool(
        &self,
        candidate: Candidate,
        mut policy: ImportPolicy,
        mount: bool,
    ) -> Result<PoolHandle, EngineError> {
        policy.host = self.identity.clone();
        policy.tuning = self.tuning();
        let temporary = policy.altroot.is_some()
            || policy
                .properties
                .get("cachefile")
                .is_some_and(|value| value == "none");
        let how = How {
            missing_logs: policy.missing_logs,
            at_checkpoint: policy.rewind_to_checkpoint && policy.readonly,
        };
        let pool = {
            let _one = self.cache.lock().await;
            self.engine.import(candidate, policy).await?
        };
        self.remember(&pool, temporary, how).await?;
        self.opened(&pool, mount).await;
        Ok(pool)
    }

    async fn remember(
        &self,
        pool: &PoolHandle,
        temporary: bool,
        how: How,
    ) -> Result<(), EngineError> {
        let status = pool.status().await?;
        let cachefile = self.write_cache_file(pool).await?;
        let mut cache = self.cache.lock().await;
        cache.put(CachedPool {
            name: pool.name().to_owned(),
            guid: pool.guid(),
            devices: all_devices(&status),
            vdevs: cached_vdevs(&status.root.children),
            spares: cached_vdevs(&status.spares),
            caches: cached_vdevs(&status.caches),
            altroot: pool.altroot().map(Path::to_owned),
            readonly: pool.readonly(),
            missing_logs: how.missing_logs,
            at_checkpoint: how.at_checkpoint,
            hostid: Some(self.identity.hostid),
            cachefile,
            until_boot: if temporary {
                manage::state::boot_identifier()
            } else {
                None
            },
        });
        self.write(&cache);
        Ok(())
    }

    /// Remembers where the devices of a pool are, after some joined or left it.
    pub(crate) async fn devices_changed(&self, pool: &PoolHandle) {
        let Ok(status) = pool.status().await else {
            return;
        };
        drop(self.write_cache_file(pool).await);
        let mut cache = self.cache.lock().await;
        let known = cache.pools.iter().find(|known| known.guid == pool.guid());
        let Some(mut known) = known.cloned() else {
            return;
        };
        let before = known.clone();
        known.devices = all_devices(&status);
        known.vdevs = cached_vdevs(&status.root.children);
        known.spares = cached_vdevs(&status.spares);
        known.caches = cached_vdevs(&status.caches);
        if known != before {
            cache.put(known);
            self.write(&cache);
        }
    }

    /// Changes where the pool is remembered besides the state directory (the property `cachefile`).
    pub(crate) async fn set_cachefile(
        &self,
        pool: &PoolHandle,
        value: &str,
    ) -> Result<(), EngineError> {
        let (before, _) = pool.cache_entry().await?;
        pool.set_property("cachefile", value).await?;
        let (after, _) = pool.cache_entry().await?;
        if before != after
            && let Some(path) = before
        {
            change_cache_file(&path, pool.guid(), None).await;
        }
        drop(self.write_cache_file(pool).await);
        let mut cache = self.cache.lock().await;
        let known = cache.pools.iter().find(|known| known.guid == pool.guid());
        if let Some(mut known) = known.cloned() {
            known.until_boot = match after.as_deref() {
                Some("none") => manage::state::boot_identifier(),
                _ => None,
            };
            known.cachefile = after;
            cache.put(known);
            self.write(&cache);
        }
        Ok(())
    }

    /// Brings the pool's own cache file, if it has one, up to date, and returns where it is.
    async fn write_cache_file(&self, pool: &PoolHandle) -> Result<Option<String>, EngineError> {
        let (path, entry) = pool.cache_entry().await?;
        if let Some(path) = &path {
            let (name, guid) = (pool.name().to_owned(), pool.guid());
            change_cache_file(path, guid, Some((name, entry))).await;
        }
        Ok(path)
    }

    /// Remembers a pool under its new guid.
    pub(crate) async fn guid_changed(&self, before: u64, pool: &PoolHandle) {
        let mut cache = self.cache.lock().await;
        let known = cache.pools.iter().find(|known| known.guid == before);
        let Some(mut known) = known.cloned() else {
            return;
        };
        cache.remove(before);
        known.guid = pool.guid();
        cache.put(known);
        self.write(&cache);
    }

    /// Forgets a pool: the next command does not know it.
    pub(crate) async fn forget(&self, guid: u64) {
        let mut cache = self.cache.lock().await;
        cache.remove(guid);
        self.write(&cache);
    }

    fn write(&self, cache: &PoolCache) {
        if let Err(error) = self.state.write_pools(cache) {
            // The pools are as they should be; only the memory of them is behind.
            tracing::warn!(
                target: SANBOX,
                "the list of imported pools could not be written: {error}"
            );
        }
    }

    /// Exports or destroys a pool, and forgets it.
    pub(crate) async fn end_pool(
        &self,
        name: &str,
        ending: Ending,
        force: bool,
    ) -> Result<(), EngineError> {
        let pool = self.engine.pool(name)?;
        let mounted = self.mounts.list();
        let inside = |dataset: &String| crate::cli::pool_part(dataset) == name;
        let derived = derived_mountpoints(&pool).await;
        let mut directories = Vec::new();
        for (dataset, point) in mounted
            .into_iter()
            .rev()
            .filter(|(dataset, _)| inside(dataset))
        {
            if self.mounts.unmount_name(&dataset, force).await.is_err() {
                return Err(EngineError::Busy(dataset));
            }
            if derived.contains(&dataset) {
                directories.push(point);
            }
        }
        if let Some(devices) = self.devices.get() {
            devices
                .release(None, name)
                .await
                .map_err(EngineError::Busy)?;
        }
        if let Some(shares) = self.shares.get() {
            shares.withdraw_pool(&self.engine, name).await;
        }
        if let Some(smb) = self.smb.get() {
            smb.withdraw_pool(name).await;
        }
        let cachefile = pool.cache_entry().await.ok().and_then(|(path, _)| path);
        let ended = self.engine.end_pool(name, ending).await;
        if ended.is_ok() {
            if let Some(path) = cachefile {
                change_cache_file(&path, pool.guid(), None).await;
            }
            self.forget(pool.guid()).await;
            remove_directories(directories).await;
        }
        self.datasets_changed().await;
        ended
    }

    /// What is to be done once a pool is open: in a daemon, its shares and mounts come up.
    async fn opened(&self, pool: &PoolHandle, mount: bool) {
        if !self.is_daemon() {
            return;
        }
        self.datasets_changed().await;
        if mount && self.config.mount.automatic {
            self.mount_all(pool).await;
        }
    }

    /// Brings up what could not be before the keys of a pool were loaded: shares, and mounts where mounting is automatic.
    pub(crate) async fn keys_loaded(&self, pool: &PoolHandle) {
        self.opened(pool, true).await;
    }

    /// Makes shares follow datasets and their properties.
    pub(crate) async fn datasets_changed(&self) {
        if let Some(shares) = self.shares.get() {
            shares.refresh(&self.engine).await;
        }
        if let Some(nbd) = self.nbd.get() {
            nbd.follow().await;
        }
        if let Some(iscsi) = self.iscsi.get() {
            iscsi.follow().await;
        }
        if let Some(smb) = self.smb.get() {
            smb.follow().await;
        }
        if let Some(devices) = self.devices.get() {
            devices.follow().await;
        }
    }

    /// Shares again what was withdrawn: one dataset, or all; by these protocols.
    pub(crate) async fn share_again(&self, guid: Option<u64>, protocols: &[ShareProtocol]) {
        if protocols.contains(&ShareProtocol::Nfs)
            && let Some(shares) = self.shares.get()
        {
            shares.restore(guid);
            shares.refresh(&self.engine).await;
        }
        if protocols.contains(&ShareProtocol::Smb)
            && let Some(smb) = self.smb.get()
        {
            smb.restore(guid);
            smb.follow().await;
        }
    }

    /// Withdraws the share of a dataset by these protocols, until `zfs share` or the next start.
    pub(crate) async fn unshare(&self, guid: u64, protocols: &[ShareProtocol]) {
        if protocols.contains(&ShareProtocol::Nfs)
            && let Some(shares) = self.shares.get()
        {
            shares.withdraw(guid);
            shares.refresh(&self.engine).await;
        }
        if protocols.contains(&ShareProtocol::Smb)
            && let Some(smb) = self.smb.get()
        {
            smb.withdraw(guid);
            smb.follow().await;
        }
    }

    /// Fills in what the engine does not know of a dataset.
    pub(crate) fn fill_in(&self, info: &mut DatasetInfo) {
        if info.kind != DatasetKind::Filesystem {
            return;
        }
        let mounted = self.mounts.mounted(info.guid).is_some();
        let overridden = self.mounts.overridden(info.guid);
        for property in &mut info.properties {
            if property.native == Some(Property::Mounted) {
                property.value = Value::Number(u64::from(mounted));
            }
            let temporary = overridden.iter().find(|(p, _)| property.native == Some(*p));
            if let Some((_, on)) = temporary
                && property.value != Value::Number(u64::from(*on))
            {
                property.value = Value::Number(u64::from(*on));
                property.source = Source::Temporary;
            }
        }
    }

    /// Mounts a file system.
    pub(crate) async fn mount(
        &self,
        pool: &PoolHandle,
        info: &DatasetInfo,
        point: &Path,
    ) -> Result<(), String> {
        if is_delegated() {
            return Err("permission denied".to_owned());
        }
        let failed = |error: EngineError| error.to_string();
        let fs = pool.open_fs(&info.name).await.map_err(failed)?;
        let flags = mount_flags(pool, &info.name).await.map_err(failed)?;
        self.mounts.mount(fs, &info.name, point, flags).await
    }

    async fn mount_all(&self, pool: &PoolHandle) {
        let filter = engine::DatasetFilter {
            root: pool.name().to_owned(),
            depth: None,
            kinds: vec![DatasetKind::Filesystem],
        };
        let Ok(mut datasets) = pool.datasets(&filter, &mount_query()).await else {
            return;
        };
        // A mount would hide those below its mount point that came before it, whatever the names of the datasets.
        // OpenZFS: lib/libzfs/libzfs_mount.c, mountpoint_cmp
        datasets.sort_by_cached_key(|info| {
            let point = info.property("mountpoint");
            let point = point.and_then(|property| property.value.text());
            PathBuf::from(point.unwrap_or_default())
        });
        for info in datasets {
            self.mount_if_wanted(pool, &info).await;
        }
    }

    /// Mounts a dataset that was just created, where mounting is automatic.
    pub(crate) async fn mount_created(&self, pool: &PoolHandle, name: &str) {
        if !self.mounts_by_itself() {
            return;
        }
        if let Ok(info) = pool.dataset(name, &mount_query()).await {
            self.mount_if_wanted(pool, &info).await;
        }
    }

    async fn mount_if_wanted(&self, pool: &PoolHandle, info: &DatasetInfo) {
        let text = |name: &str| match info.property(name).map(|property| &property.value) {
            Some(Value::Text(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            None => String::new(),
        };
        let point = text("mountpoint");
        // canmount: 1 is on.
        if text("canmount") != "1"
            || !point.starts_with('/')
            || self.mounts.mounted(info.guid).is_some()
        {
            return;
        }
        if let Err(why) = self.mount(pool, info, Path::new(&point)).await {
            tracing::warn!(target: SANBOX, "cannot mount '{}' at {point}: {why}", info.name);
        }
    }

    /// Ends the mount of a dataset that is to be destroyed.
    pub(crate) async fn unmount_for(&self, name: &str) -> Result<(), String> {
        if self
            .mounts
            .list()
            .iter()
            .any(|(dataset, _)| dataset == name)
        {
            self.mounts.unmount_name(name, false).await?;
        }
        if let Some(smb) = self.smb.get() {
            smb.withdraw_dataset(name).await;
        }
        Ok(())
    }

    fn tuning(&self) -> engine::Tuning {
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

    /// Ends everything at the end of the process: mounts, then pools, which stay imported.
    pub(crate) async fn close(&self) -> Result<(), EngineError> {
        for (dataset, _) in self.mounts.list().into_iter().rev() {
            let _ = self.mounts.unmount_name(&dataset, true).await;
        }
        let closed = self.engine.close().await;
        // The next process shows them, too; without them it only shows less.
        drop(self.state.write_events(&self.engine.events().save()));
        closed
    }
}

/// The memory the process is to stay below, in bytes: what was chosen, at most what there is; else half of what there is.
fn memory_ceiling(config: &Config) -> u64 {
    let here = memory::available();
    match (config.memory_bytes().ok().flatten(), here) {
        (Some(chosen), Some(here)) => chosen.min(here),
        (Some(chosen), None) => chosen,
        (None, Some(here)) => here / 2,
        (None, None) => 1 << 30,
    }
}

/// Returns how the properties of a dataset want it mounted.
pub(crate) async fn mount_flags(
    pool: &PoolHandle,
    dataset: &str,
) -> Result<MountFlags, EngineError> {
    let names = ["readonly", "devices", "setuid", "exec", "acltype"];
    let query = PropertyQuery::Named(names.iter().map(|name| (*name).to_owned()).collect());
    let info = pool.dataset(dataset, &query).await?;
    let number = |name: &str| match info.property(name).map(|property| &property.value) {
        Some(Value::Number(number)) => Some(*number),
        _ => None,
    };
    let is = |name: &str, wanted: u64| number(name) == Some(wanted);
    Ok(MountFlags {
        readonly: pool.readonly() || is("readonly", 1) || info.kind == DatasetKind::Snapshot,
        no_devices: is("devices", 0),
        no_setuid: is("setuid", 0),
        no_exec: is("exec", 0),
        lists: match number("acltype").and_then(|number| Property::AclType.index_name(number)) {
            Some("posix") => Lists::Posix,
            Some("nfsv4") => Lists::Nfsv4,
            _ => Lists::Off,
        },
    })
}

/// The properties that say where and whether a file system is mounted.
pub(crate) fn mount_query() -> PropertyQuery {
    let names = ["mountpoint", "canmount", "acltype"];
    PropertyQuery::Named(names.map(str::to_owned).to_vec())
}

/// Returns the paths of the leaves of a vdev tree.
pub(crate) fn devices(root: &VdevStatus) -> Vec<PathBuf> {
    // Distributed spares have no path.
    let own = root.path.iter().filter(|path| path.is_absolute());
    let mut found: Vec<PathBuf> = own.cloned().collect();
    for child in &root.children {
        found.extend(devices(child));
    }
    found
}

/// Changes what a cache file (`zpool.cache`) says of a pool. A file that says nothing any more goes away.
async fn change_cache_file(path: &str, guid: u64, entry: Option<(String, Vec<u8>)>) {
    if path.is_empty() || path == "none" {
        return;
    }
    let named = Path::new(path);
    let path = named.to_owned();
    let change = move || -> std::io::Result<()> {
        let entry = entry
            .as_ref()
            .map(|(name, entry)| (name.as_str(), &entry[..]));
        let path = path.as_path();
        let old = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        match engine::cache_file_with(&old, guid, entry) {
            Some(bytes) => {
                let mut beside = path.as_os_str().to_owned();
                beside.push(".tmp");
                std::fs::write(&beside, bytes)?;
                std::fs::File::open(&beside)?.sync_all()?;
                std::fs::rename(&beside, path)
            }
            None if old.is_empty() => Ok(()),
            None => std::fs::remove_file(path),
        }
    };
    let changed = paths::call(named, change).await;
    if let Err(error) = changed.and_then(|changed| changed.map_err(|error| error.to_string())) {
        // The pool is as it should be; only the file is behind.
        tracing::warn!(target: SANBOX, "{}: {error}", named.display());
    }
}

/// Returns the file systems of a pool whose mount point follows from their name: its directory was made for them.
// OpenZFS: lib/libzfs/libzfs_mount.c, remove_mountpoint
async fn derived_mountpoints(pool: &PoolHandle) -> BTreeSet<String> {
    let filter = engine::DatasetFilter {
        root: pool.name().to_owned(),
        depth: None,
        kinds: vec![DatasetKind::Filesystem],
    };
    let datasets = pool.datasets(&filter, &mount_query()).await;
    let is_derived = |info: &DatasetInfo| {
        let property = info.property("mountpoint");
        property.is_some_and(|property| {
            matches!(property.source, Source::Default | Source::Inherited(_))
        })
    };
    let derived = datasets.unwrap_or_default().into_iter().filter(is_derived);
    derived.map(|info| info.name).collect()
}

/// Removes directories that are empty, in this order.
async fn remove_directories(directories: Vec<PathBuf>) {
    let Some(first) = directories.first().cloned() else {
        return;
    };
    let remove = move || {
        for directory in directories {
            // One that is not empty stays.
            let _ = std::fs::remove_dir(directory);
        }
    };
    if let Err(why) = paths::call(&first, remove).await {
        tracing::warn!(target: SANBOX, "{why}");
    }
}

/// Whether something is at all of these paths.
async fn all_exist(devices: &[PathBuf]) -> bool {
    let Some(first) = devices.first() else {
        return true;
    };
    let all = devices.to_vec();
    let looked = paths::call(first, move || all.iter().all(|device| device.exists()));
    looked.await.unwrap_or(false)
}

/// Returns where all devices of a pool are, spares and cache devices included.
fn all_devices(status: &PoolStatus) -> Vec<PathBuf> {
    let mut found = devices(&status.root);
    for other in status.spares.iter().chain(&status.caches) {
        let path = other.path.clone().filter(|path| path.is_absolute());
        if let Some(path) = path.filter(|path| !found.contains(path)) {
            found.push(path);
        }
    }
    found
}

/// Returns what is remembered of vdevs.
fn cached_vdevs(vdevs: &[VdevStatus]) -> Vec<CachedVdev> {
    let cached = |vdev: &VdevStatus| CachedVdev {
        name: vdev.name.clone(),
        kind: vdev.kind.clone(),
        guid: vdev.guid,
        path: vdev.path.clone(),
        class: match vdev.bias {
            AllocationBias::None => None,
            AllocationBias::Log => Some("log".to_owned()),
            AllocationBias::Special => Some("special".to_owned()),
            AllocationBias::Dedup => Some("dedup".to_owned()),
        },
        children: cached_vdevs(&vdev.children),
    };
    vdevs.iter().map(cached).collect()
}

/// Says what is wrong with the share options among some settings, if anything.
pub(crate) fn check_share_settings(settings: &[(String, String)]) -> Option<String> {
    let smb = settings.iter().find(|(name, _)| name == "sharesmb");
    if let Some(error) = smb.and_then(|(_, value)| manage::samba::share::parse(value).err()) {
        return Some(format!(
            "'sharesmb' cannot be set to invalid options: {error}"
        ));
    }
    let (_, value) = settings.iter().find(|(name, _)| name == "sharenfs")?;
    if matches!(value.as_str(), "on" | "off") {
        return None;
    }
    let error = nfs::exports::Rules::parse(value).err()?;
    Some(format!(
        "'sharenfs' cannot be set to invalid options: {error}"
    ))
}

fn hostname() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
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
