//! The pools that the state directory remembers as imported: opened when they are asked for, remembered as they change.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine::{
    AllocationBias, Candidate, EngineError, Health, ImportPolicy, PoolError, PoolHandle, PoolSpec,
    PoolState, PoolStatus, Rewound, StatusReason, VdevStatus,
};
use manage::state::{CachedPool, CachedVdev, PoolCache};
use tokio::sync::Mutex;

use super::cache_file;
use super::context::Context;
use super::subject::is_delegated;
use crate::logging::SANBOX;
use crate::paths;

/// How long a device that is there may be busy: in use by a process on its way out.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait before trying again.
const DEVICE_PAUSE: Duration = Duration::from_millis(50);

/// What became of asking for a pool that is known as imported.
#[allow(clippy::large_enum_variant, reason = "one at a time, and not for long")]
pub(super) enum Asked {
    /// It was open.
    Open(PoolHandle),
    /// It was opened just now.
    Opened(PoolHandle),
    /// It could not be opened.
    Closed(CachedPool, EngineError),
}

/// How a pool was imported that the next process must import in the same way.
#[derive(Clone, Copy, Default)]
struct How {
    missing_logs: bool,
    at_checkpoint: bool,
}

/// See the module.
pub(super) struct KnownPools {
    context: Arc<Context>,
    /// Held while a pool is opened or ended, so that this happens one at a time.
    cache: Mutex<PoolCache>,
}

impl KnownPools {
    /// The pools that the state directory remembers.
    pub(super) fn new(context: Arc<Context>, cache: PoolCache) -> Self {
        Self {
            context,
            cache: Mutex::new(cache),
        }
    }

    /// Returns the names of the pools known as imported.
    pub(super) async fn names(&self) -> Vec<String> {
        let cache = self.cache.lock().await;
        cache.pools.iter().map(|pool| pool.name.clone()).collect()
    }

    /// As [`KnownPools::names`]; none while another task has the list, as while a pool is being opened.
    pub(super) fn names_now(&self) -> Option<Vec<String>> {
        let cache = self.cache.try_lock().ok()?;
        Some(cache.pools.iter().map(|pool| pool.name.clone()).collect())
    }

    /// Returns the guids of the pools known as imported.
    pub(super) async fn guids(&self) -> BTreeSet<u64> {
        let cache = self.cache.lock().await;
        cache.pools.iter().map(|pool| pool.guid).collect()
    }

    /// Returns the pool of a name, if it is known as imported, opening it.
    pub(super) async fn open(&self, name: &str) -> Option<Asked> {
        let mut cache = self.cache.lock().await;
        if let Ok(pool) = self.context.engine().pool(name) {
            return Some(Asked::Open(pool));
        }
        let cached = cache.pools.iter().find(|pool| pool.name == name)?.clone();
        if is_delegated() {
            // What happens when a pool comes (mounts, shares) is not done in the name of a user.
            return Some(Asked::Closed(cached, EngineError::Permission));
        }
        match self.reopen(&cached).await {
            Ok(pool) => {
                let hostid = Some(self.context.identity().hostid);
                // A read-only import leaves the host id of before on the labels.
                if cached.hostid != hostid && !cached.readonly {
                    cache.put(CachedPool { hostid, ..cached });
                    self.write(&cache);
                }
                Some(Asked::Opened(pool))
            }
            Err(error) => Some(Asked::Closed(cached, error)),
        }
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
        let Ok(found) = self.context.engine().discover(cached.devices.clone()).await else {
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

    /// Finds the devices of a remembered pool, where they were or beside that.
    async fn find(&self, cached: &CachedPool) -> Result<Option<Candidate>, EngineError> {
        let is_it = |candidate: &Candidate| candidate.guid == cached.guid;
        let mut found = self
            .context
            .engine()
            .discover(cached.devices.clone())
            .await?
            .pools;
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
            let wider = self.context.engine().discover(places).await?.pools;
            if wider.iter().any(is_it) {
                found = wider;
            }
        }
        Ok(found.into_iter().find(is_it))
    }

    async fn reopen_now(&self, cached: &CachedPool) -> Result<PoolHandle, EngineError> {
        let Some(candidate) = self.find(cached).await? else {
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
        let hostid_changed = candidate.hostid != self.context.identity().hostid
            && cached.hostid == Some(candidate.hostid);
        if hostid_changed {
            tracing::warn!(
                target: SANBOX,
                "the host id changed from {:x} to {:x}; '{}' is opened, because this system used it last",
                candidate.hostid,
                self.context.identity().hostid,
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
            host: self.context.identity().clone(),
            tuning: self.context.tuning(),
            ..ImportPolicy::default()
        };
        self.context.engine().import(candidate, policy).await
    }

    /// Creates a pool and remembers it.
    pub(super) async fn create(
        &self,
        mut spec: PoolSpec,
        root_properties: &[(String, String)],
    ) -> Result<PoolHandle, EngineError> {
        spec.host = self.context.identity().clone();
        spec.tuning = self.context.tuning();
        // With an alternate root, or another name than it has on disk, a pool is not remembered, unless it is asked for.
        // OpenZFS: cmd/zpool/zpool_main.c, zpool_do_create
        let has_cachefile = spec.properties.iter().any(|(name, _)| name == "cachefile");
        let elsewhere = spec.altroot.is_some() || spec.temporary_name.is_some();
        if elsewhere && !has_cachefile {
            spec.properties
                .push(("cachefile".to_owned(), "none".to_owned()));
        }
        let temporary = elsewhere
            || spec
                .properties
                .iter()
                .any(|(name, value)| name == "cachefile" && value == "none");
        let pool = {
            let _one = self.cache.lock().await;
            self.context
                .engine()
                .create_pool(spec, root_properties)
                .await?
        };
        self.remember(&pool, temporary, How::default()).await?;
        Ok(pool)
    }

    /// Says which older state of a damaged pool could be imported.
    pub(super) async fn assess_rewind(
        &self,
        candidate: Candidate,
        mut policy: ImportPolicy,
    ) -> Option<Rewound> {
        policy.host = self.context.identity().clone();
        policy.tuning = self.context.tuning();
        let _one = self.cache.lock().await;
        self.context
            .engine()
            .assess_rewind(candidate, policy)
            .await
            .ok()?
    }

    /// Finds out whether a pool that was found is another host's, and says so in it.
    // OpenZFS: lib/libzfs/libzfs_status.c, check_status (order)
    pub(super) async fn judge_host(&self, candidate: &mut Candidate) {
        let foreign = candidate.state == PoolState::Active
            && candidate.hostid != 0
            && candidate.hostid != self.context.identity().hostid;
        if !foreign {
            return;
        }
        let looked = self
            .context
            .engine()
            .is_in_use_elsewhere(candidate.clone(), self.context.identity().clone());
        if looked.await.unwrap_or(false) {
            candidate.reason = StatusReason::HostidActive;
            candidate.health = Health::Unavail;
            candidate.root.health = Health::Unavail;
            candidate.root.note = Some("currently in use".to_owned());
        } else if candidate.reason == StatusReason::Ok {
            candidate.reason = StatusReason::HostidMismatch;
        }
    }

    /// Imports a pool and remembers it.
    pub(super) async fn import(
        &self,
        candidate: Candidate,
        mut policy: ImportPolicy,
    ) -> Result<PoolHandle, EngineError> {
        policy.host = self.context.identity().clone();
        policy.tuning = self.context.tuning();
        let temporary = policy.altroot.is_some()
            || policy
                .properties
                .get("cachefile")
                .is_some_and(|value| value == "none");
        let how = How {
            missing_logs: policy.missing_logs,
            at_checkpoint: policy.rewind_to_checkpoint && policy.readonly,
        };
        // Not with the list at hand: pools may be imported at the same time, and the engine lets each name in once.
        let pool = self.context.engine().import(candidate, policy).await?;
        self.remember(&pool, temporary, how).await?;
        Ok(pool)
    }

    async fn remember(
        &self,
        pool: &PoolHandle,
        temporary: bool,
        how: How,
    ) -> Result<(), EngineError> {
        let status = pool.status().await?;
        let cachefile = cache_file::write(pool).await?;
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
            hostid: Some(self.context.identity().hostid),
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
    pub(super) async fn devices_changed(&self, pool: &PoolHandle) {
        let Ok(status) = pool.status().await else {
            return;
        };
        drop(cache_file::write(pool).await);
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
    pub(super) async fn set_cachefile(
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
            cache_file::change(&path, pool.guid(), None).await;
        }
        drop(cache_file::write(pool).await);
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

    /// Remembers a pool under its new guid.
    pub(super) async fn guid_changed(&self, before: u64, pool: &PoolHandle) {
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
    pub(super) async fn forget(&self, guid: u64) {
        let mut cache = self.cache.lock().await;
        cache.remove(guid);
        self.write(&cache);
    }

    fn write(&self, cache: &PoolCache) {
        if let Err(error) = self.context.state().write_pools(cache) {
            // The pools are as they should be; only the memory of them is behind.
            tracing::warn!(
                target: SANBOX,
                "the list of imported pools could not be written: {error}"
            );
        }
    }
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
