//! One appliance: the engine, the state directory, and what this process does with the pools
//! besides (mounts, shares). Commands act on it alike in the daemon and in a process of their own.
//!
//! Pools that the state directory remembers as imported are opened when a command first asks for
//! them; so a command without a daemon opens only what it needs, and leaves it open for the next
//! one (closed cleanly, not exported).
//!
//! Its parts own their state: `context` what holds for the life of the process, `known_pools` the list of imported pools,
//! `services` what a daemon serves. Here they are put together: what follows from a pool that comes, changes or goes.

mod cache_file;
pub(crate) mod context;
mod faults;
pub(crate) mod fences;
pub(crate) mod followed;
mod known_pools;
mod mounting;
mod services;
mod subject;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use engine::{Candidate, Ending, Engine, EngineError, ImportPolicy, PoolHandle, PoolSpec, Rewound};
use manage::api::{Api, Share};
use manage::config::{Alerts as AlertSettings, Config};
use manage::jobs::Jobs;
use manage::policy::Hooks;
use manage::replication::Replications;
use manage::state::StateDirectory;
use tokio::sync::watch;

use crate::acme::Acme;
use crate::logging::SANBOX;
use crate::memory::Plan;
use crate::names::pool_part;
use crate::paths;
use crate::peers::PeerService;
use crate::serve::devices::Devices;
use crate::serve::fuse::Mounts;
use crate::serve::iscsi::Iscsi;
use crate::serve::nbd;
use crate::serve::shares::{NfsClients, Shares};
use crate::serve::smb::Smb;
use crate::tuning::Tunables;

pub(crate) use self::context::{Context, Withheld};
pub(crate) use self::faults::Delayed;
use self::faults::Faults;
pub(crate) use self::known_pools::devices;
use self::known_pools::{Asked, KnownPools};
use self::mounting::derived_mountpoints;
pub(crate) use self::mounting::{missing_parents, mount_query, remove_directories};
use self::services::Services;
pub(crate) use self::services::{ShareProtocol, check_share_settings};
use self::subject::handed;
pub(crate) use self::subject::{as_subject, is_delegated};
pub(crate) use crate::serve::fuse::flags::mount_flags;
pub(crate) use manage::state::CachedPool;

/// How long a start looks for mounts that a killed process left: a mount of another process may not answer.
const STALE_MOUNTS_TIMEOUT: Duration = Duration::from_secs(10);

/// A pool that the state directory knows as imported.
#[allow(clippy::large_enum_variant, reason = "few at a time, and not for long")]
pub(crate) enum KnownPool {
    /// It is open.
    Open(PoolHandle),
    /// It could not be opened.
    Closed(CachedPool, EngineError),
}

/// See the module.
pub(crate) struct Appliance {
    context: Arc<Context>,
    known: KnownPools,
    mounts: Arc<Mounts>,
    services: Services,
    /// Present in a daemon, and in a command about what it holds.
    api: OnceLock<Arc<Api>>,
    replications: Arc<Replications>,
    peers: Arc<PeerService>,
    hooks: Hooks,
    faults: Faults,
}

impl Appliance {
    fn of(context: Arc<Context>, known: KnownPools) -> Arc<Self> {
        let mounts = Arc::new(Mounts::new(context.config().mount.threads, Arc::default()));
        Arc::new(Self {
            replications: Replications::new(context.state().path()),
            peers: PeerService::new(context.state()),
            hooks: Hooks::new(context.config().policies.hook.clone()),
            context,
            known,
            mounts,
            services: Services::default(),
            api: OnceLock::new(),
            faults: Faults::default(),
        })
    }

    /// Sets up an appliance on a state directory whose lock the caller holds.
    pub(crate) fn new(
        engine: Engine,
        state: StateDirectory,
        config: Config,
    ) -> anyhow::Result<Arc<Self>> {
        let cache = state.read_pools()?;
        let context = Context::new(engine, state, config)?;
        let known = KnownPools::new(context.clone(), cache);
        Ok(Self::of(context, known))
    }

    /// Makes an appliance for commands that need no pools: nothing is opened or written.
    pub(crate) fn detached(engine: Engine, state: &Path) -> Arc<Self> {
        let context = Context::detached(engine, state);
        let known = KnownPools::new(context.clone(), Default::default());
        Self::of(context, known)
    }

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

    /// Returns the other appliances that this one knows.
    pub(crate) fn peers(&self) -> &Arc<PeerService> {
        &self.peers
    }

    /// Returns what `zinject` injects beside the pools.
    pub(crate) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Returns the hooks of snapshot policies.
    pub(crate) fn hooks(&self) -> &Hooks {
        &self.hooks
    }

    /// Returns the log of jobs, if it was opened.
    pub(crate) fn jobs(&self) -> Option<Arc<Jobs>> {
        self.api.get().map(|api| api.jobs.clone())
    }

    /// What holds for the life of the process, for parts that the appliance holds.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Ends sharing at the end of the process.
    pub(crate) async fn stop_sharing(&self) {
        self.services.close().await;
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.context.engine()
    }

    pub(crate) fn state(&self) -> &StateDirectory {
        self.context.state()
    }

    pub(crate) fn config(&self) -> &Config {
        self.context.config()
    }

    pub(crate) fn mounts(&self) -> &Arc<Mounts> {
        &self.mounts
    }

    /// Clears away the mounts that a killed process of this state directory left.
    pub(crate) async fn clear_stale_mounts(&self) {
        let pools = self.known.names().await;
        let volumes = self.state().path().join("volumes");
        let at = volumes.clone();
        let clear = move || paths::clear_stale(&pools, &at);
        let cleared = paths::call_within(STALE_MOUNTS_TIMEOUT, &volumes, clear);
        if let Err(why) = cleared.await {
            tracing::warn!(target: SANBOX, "mounts that a killed process may have left: {why}");
        }
    }

    /// Turns this into a daemon, which serves shares and holds mounts.
    pub(crate) fn enter_daemon(&self, shares: Shares) {
        let _ = self.services.shares.set(shares);
    }

    /// Takes the NBD server along.
    pub(crate) fn serve_nbd(&self, server: nbd::Server) {
        let _ = self.services.nbd.set(server);
    }

    /// Takes the iSCSI target along.
    pub(crate) fn serve_iscsi(&self, server: Iscsi) {
        let _ = self.services.iscsi.set(server);
    }

    /// Takes the SMB service along.
    pub(crate) fn serve_smb(&self, smb: Smb) {
        let _ = self.services.smb.set(smb);
    }

    /// Returns what is shared by SMB and what its clients do; `None` in a process that does not serve it.
    pub(crate) async fn smb_status(&self) -> Option<manage::samba::status::SmbStatus> {
        match self.services.smb.get() {
            Some(smb) => Some(smb.status().await),
            None => None,
        }
    }

    /// Has the SMB service know that the machine joined a domain, or left it.
    pub(crate) async fn smb_domain_changed(&self) {
        if let Some(smb) = self.services.smb.get() {
            smb.domain_changed().await;
        }
    }

    /// Takes the block devices of volumes along.
    pub(crate) fn serve_devices(&self, devices: Devices) {
        let _ = self.services.devices.set(devices);
    }

    /// Whether a volume's block device is in use.
    pub(crate) async fn device_in_use(&self, guid: u64) -> bool {
        match self.services.devices.get() {
            Some(devices) => devices.in_use(guid).await,
            None => false,
        }
    }

    /// Takes the block devices away of the volumes and snapshots that `which` says, by name, unless one is in use.
    ///
    /// # Errors
    /// The volume or snapshot in use.
    pub(crate) async fn release_devices(&self, which: impl Fn(&str) -> bool) -> Result<(), String> {
        match self.services.devices.get() {
            Some(devices) => devices.release(which).await,
            None => Ok(()),
        }
    }

    /// Returns the datasets that are fenced.
    pub(crate) fn fenced(&self) -> Vec<fences::FencedDataset> {
        self.services.fences.list()
    }

    /// Lists what is to be shared by NFS.
    pub(crate) fn shares(&self) -> Vec<Share> {
        self.services
            .shares
            .get()
            .map(Shares::list)
            .unwrap_or_default()
    }

    /// Returns the clients of NFS; `None` without a daemon.
    pub(crate) fn nfs_clients(&self) -> Option<NfsClients> {
        self.services.shares.get().map(Shares::clients)
    }

    /// Lists the sessions of iSCSI initiators.
    pub(crate) fn iscsi_sessions(&self) -> Vec<::iscsi::SessionInfo> {
        self.services
            .iscsi
            .get()
            .map(Iscsi::sessions)
            .unwrap_or_default()
    }

    /// How many iSCSI sessions can reach a volume.
    pub(crate) fn volume_users(&self, guid: u64) -> usize {
        self.services
            .iscsi
            .get()
            .map_or(0, |iscsi| iscsi.users_of(guid))
    }

    /// Whether this process mounts file systems without being asked.
    pub(crate) fn mounts_by_itself(&self) -> bool {
        self.is_daemon() && self.config().mount.automatic
    }

    /// Whether this process is a daemon.
    pub(crate) fn is_daemon(&self) -> bool {
        self.services.shares.get().is_some()
    }

    /// Returns the pools that are open now.
    pub(crate) fn open_pools(&self) -> Vec<PoolHandle> {
        self.engine().pools()
    }

    /// Returns the names of the pools known as imported; of those that are open when another task has the list, as while a
    /// pool is being opened.
    pub(crate) fn remembered_pools(&self) -> Vec<String> {
        let open = || {
            self.open_pools()
                .iter()
                .map(|pool| pool.name().to_owned())
                .collect()
        };
        self.known.names_now().unwrap_or_else(open)
    }

    /// Returns this machine's name, if it has one.
    pub(crate) fn host_name(&self) -> Option<String> {
        let name = &self.context.identity().hostname;
        (!name.is_empty()).then(|| name.clone())
    }

    /// What is planned of the memory.
    pub(crate) fn memory_plan(&self) -> Plan {
        self.context.memory_plan()
    }

    /// Who is told of alerts, now and from now on.
    pub(crate) fn alert_settings(&self) -> &watch::Sender<AlertSettings> {
        self.context.alerts()
    }

    /// Certificates from an authority.
    pub(crate) fn acme(&self) -> &Acme {
        self.context.acme()
    }

    /// The limits that can be changed, as they are now.
    pub(crate) fn tunables(&self) -> Tunables {
        self.context.tunables()
    }

    /// Changes a limit, here and in the pools that are open.
    pub(crate) async fn tune(&self, name: &str, value: &str) -> Result<(), String> {
        self.context.tune(name, value).await?;
        self.services.follow_devices().await;
        Ok(())
    }

    /// Sets all limits, of open pools too.
    pub(crate) async fn set_tunables(&self, after: Tunables) {
        self.context.set_tunables(after).await;
        self.services.follow_devices().await;
    }

    /// Returns all pools known as imported, opening them.
    pub(crate) async fn pools(&self) -> Vec<KnownPool> {
        let mut known = Vec::new();
        for name in self.known.names().await {
            known.extend(self.known_pool(&name).await);
        }
        known
    }

    /// Returns the pool of a name, if it is known as imported, opening it.
    pub(crate) async fn known_pool(&self, name: &str) -> Option<KnownPool> {
        let is_open = || self.engine().pools().iter().any(|pool| pool.name() == name);
        let withheld = (self.is_daemon() && !is_open()).then(|| self.context.withhold(name));
        Some(match self.known.open(name).await? {
            Asked::Open(pool) => {
                if withheld.is_some() {
                    // What the task that opened it told the services, they may have passed over.
                    drop(withheld);
                    self.datasets_changed().await;
                }
                KnownPool::Open(handed(pool))
            }
            Asked::Opened(pool) => {
                self.opened(&pool, true, withheld).await;
                KnownPool::Open(handed(pool))
            }
            Asked::Closed(cached, error) => KnownPool::Closed(cached, error),
        })
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
        self.pool(pool_part(dataset)).await
    }

    /// Returns the guids of the pools known as imported.
    pub(crate) async fn known_guids(&self) -> BTreeSet<u64> {
        self.known.guids().await
    }

    /// Creates a pool and remembers it.
    pub(crate) async fn create_pool(
        &self,
        spec: PoolSpec,
        root_properties: &[(String, String)],
    ) -> Result<PoolHandle, EngineError> {
        let pool = self.known.create(spec, root_properties).await?;
        self.opened(&pool, true, None).await;
        Ok(pool)
    }

    /// Says which older state of a damaged pool could be imported.
    pub(crate) async fn assess_rewind(
        &self,
        candidate: Candidate,
        policy: ImportPolicy,
    ) -> Option<Rewound> {
        self.known.assess_rewind(candidate, policy).await
    }

    /// Finds out whether a pool that was found is another host's, and says so in it.
    pub(crate) async fn judge_host(&self, candidate: &mut Candidate) {
        self.known.judge_host(candidate).await;
    }

    /// Imports a pool and remembers it. With `mount` a daemon mounts its file systems.
    pub(crate) async fn import_pool(
        &self,
        candidate: Candidate,
        policy: ImportPolicy,
        mount: bool,
    ) -> Result<PoolHandle, EngineError> {
        let began = std::time::Instant::now();
        let name = policy.new_name.as_ref().unwrap_or(&candidate.name);
        let withheld = self.is_daemon().then(|| self.context.withhold(name));
        let pool = self.known.import(candidate, policy).await?;
        // The pool has its name already, so that no other one gets it meanwhile.
        self.faults
            .wait(pool.name(), Delayed::Import, began.elapsed())
            .await;
        self.opened(&pool, mount, withheld).await;
        Ok(pool)
    }

    /// Remembers where the devices of a pool are, after some joined or left it.
    pub(crate) async fn devices_changed(&self, pool: &PoolHandle) {
        self.known.devices_changed(pool).await;
    }

    /// Changes where the pool is remembered besides the state directory (the property `cachefile`).
    pub(crate) async fn set_cachefile(
        &self,
        pool: &PoolHandle,
        value: &str,
    ) -> Result<(), EngineError> {
        self.known.set_cachefile(pool, value).await
    }

    /// Remembers a pool under its new guid.
    pub(crate) async fn guid_changed(&self, before: u64, pool: &PoolHandle) {
        self.known.guid_changed(before, pool).await;
    }

    /// Forgets a pool: the next command does not know it.
    pub(crate) async fn forget(&self, guid: u64) {
        self.known.forget(guid).await;
    }

    /// Exports or destroys a pool, and forgets it.
    pub(crate) async fn end_pool(
        &self,
        name: &str,
        ending: Ending,
        force: bool,
    ) -> Result<(), EngineError> {
        let pool = self.engine().pool(name)?;
        if matches!(ending, Ending::Export { .. }) {
            self.faults
                .wait(name, Delayed::Export, Duration::ZERO)
                .await;
        }
        let mounted = self.mounts.list();
        let inside = |dataset: &String| pool_part(dataset) == name;
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
        self.services.withdraw_pool(&self.context, name).await?;
        let cachefile = pool.cache_entry().await.ok().and_then(|(path, _)| path);
        let ended = self.engine().end_pool(name, ending).await;
        if ended.is_ok() {
            if let Some(path) = cachefile {
                cache_file::change(&path, pool.guid(), None).await;
            }
            self.forget(pool.guid()).await;
            remove_directories(directories).await;
        }
        self.datasets_changed().await;
        ended
    }

    /// Opens a pool anew that cannot be written any more: its disks hold the last complete transaction group, and its intent logs what was
    /// acknowledged since.
    pub(crate) async fn open_again(&self, pool: &PoolHandle) -> Result<PoolHandle, EngineError> {
        let name = pool.name().to_owned();
        // What is in use still is so by a pool that answers nothing.
        let of_pool = |dataset: &str| pool_part(dataset) == name;
        self.mounts.unmount_all(of_pool).await;
        self.services.withdraw_pool(&self.context, &name).await?;
        let ended = self.engine().end_pool(&name, Ending::Abandon).await;
        self.datasets_changed().await;
        ended?;
        self.pool(&name).await
    }

    /// What is to be done once a pool is open: in a daemon, its shares and mounts come up.
    async fn opened(&self, pool: &PoolHandle, mount: bool, withheld: Option<Withheld>) {
        if !self.is_daemon() {
            return;
        }
        fences::before_serving(&self.context, &self.replications, &self.peers, pool).await;
        drop(withheld);
        self.serve(pool, mount).await;
    }

    async fn serve(&self, pool: &PoolHandle, mount: bool) {
        self.datasets_changed().await;
        if mount && self.config().mount.automatic {
            self.mount_all(pool).await;
        }
    }

    /// Brings up what could not be before the keys of a pool were loaded: shares, and mounts where mounting is automatic.
    pub(crate) async fn keys_loaded(&self, pool: &PoolHandle) {
        if self.is_daemon() {
            self.serve(pool, true).await;
        }
    }

    /// Makes shares follow datasets and their properties.
    pub(crate) async fn datasets_changed(&self) {
        self.services.follow(&self.context).await;
    }

    /// As [`Self::datasets_changed`], after snapshots may have come or gone; costs nothing where that concerns no service.
    pub(crate) async fn snapshots_changed(&self) {
        self.services.follow_snapshots().await;
    }

    /// Shares again what was withdrawn: one dataset, or all; by these protocols.
    pub(crate) async fn share_again(&self, guid: Option<u64>, protocols: &[ShareProtocol]) {
        let context = &self.context;
        self.services.share_again(context, guid, protocols).await;
    }

    /// Withdraws the share of a dataset by these protocols, until `zfs share` or the next start.
    pub(crate) async fn unshare(&self, guid: u64, protocols: &[ShareProtocol]) {
        let context = &self.context;
        self.services.unshare(context, guid, protocols).await;
    }

    /// Ends the mount of a dataset that is to be destroyed, and removes its directory where that is the mount point it says, and empty.
    pub(crate) async fn unmount_for(&self, name: &str) -> Result<(), String> {
        if self
            .mounts
            .list()
            .iter()
            .any(|(dataset, _)| dataset == name)
        {
            let point = self.own_mount_point(name).await;
            self.mounts.unmount_name(name, false).await?;
            remove_directories(point.into_iter().collect()).await;
        }
        if let Some(smb) = self.services.smb.get() {
            smb.withdraw_dataset(name).await;
        }
        Ok(())
    }

    /// Returns where a dataset is mounted when that is where its property says.
    async fn own_mount_point(&self, name: &str) -> Option<PathBuf> {
        let pool = self.pool_of(name).await.ok()?;
        let info = pool.dataset(name, &mount_query()).await.ok()?;
        let says = info.property("mountpoint")?.value.text()?;
        self.mounts
            .mounted(info.guid)
            .filter(|point| point == Path::new(says))
    }

    /// Ends everything at the end of the process: mounts, then pools, which stay imported.
    pub(crate) async fn close(&self) -> Result<(), EngineError> {
        self.mounts.unmount_all(|_| true).await;
        let closed = self.engine().close().await;
        // The next process shows them, too; without them it only shows less.
        drop(self.state().write_events(&self.engine().events().save()));
        closed
    }
}
