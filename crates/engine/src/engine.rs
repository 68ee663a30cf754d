//! The registry of imported pools, and the threads they run on.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dsl::{DslError, PlannedKey};
use pool::{
    Candidate, Discovery, EventLog, HostIdentity, ImportPolicy, MultihostTuning, Pool, PoolSpec,
    Rewound,
};
use runtime::{Handle, Turns};
use zpl::ReclaimGrace;

use crate::dataset::{fill_root, parse_settings};
use crate::invalidation::Watches;
use crate::pool_handle::PoolFacts;
use crate::pool_mailbox::{Ending, MAILBOX_BOUND, PoolContext, PoolMailbox, Request};
use crate::property::{DatasetKind, SetContext};
use crate::{DeviceLabel, EngineError, FeatureBase, PoolHandle};

/// The body of a pool's thread: given the thread's runtime, it runs until the pool ends.
pub type PoolBody = Box<dyn FnOnce(Handle) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// The source of pools' threads: the host machine, or a simulation that runs all of them as tasks
/// of one thread.
pub trait Host: Send + Sync {
    /// Starts running `body`.
    ///
    /// # Errors
    /// A sentence, when no thread or no I/O driver is to be had.
    fn start(&self, name: &str, body: PoolBody) -> Result<(), String>;
}

/// Host threads, one per pool, with the best disk driver the kernel allows.
#[derive(Clone, Debug, Default)]
pub struct Threads {
    /// Settings of the threads.
    pub config: runtime::host::HostConfig,
}

impl Host for Threads {
    fn start(&self, name: &str, body: PoolBody) -> Result<(), String> {
        // Detached: the pool's ending tells when the thread has nothing more to do.
        drop(runtime::host::spawn_engine(name, self.config.clone(), body));
        Ok(())
    }
}

/// The engine: all pools that this process has imported.
#[derive(Clone)]
pub struct Engine(Arc<EngineState>);

struct EngineState {
    host: Box<dyn Host>,
    pools: Mutex<Pools>,
    admin_snapshots: AtomicBool,
    events: EventLog,
    reclaims: Arc<ReclaimGrace>,
}

#[derive(Default)]
struct Pools {
    imported: BTreeMap<String, PoolHandle>,
    /// Names of pools being created or imported.
    starting: BTreeSet<String>,
}

/// Keeps a name for a pool on its way in.
struct Reservation<'a> {
    engine: &'a Engine,
    name: String,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.engine.pools_mut().starting.remove(&self.name);
    }
}

impl Engine {
    /// Makes an engine without pools.
    #[must_use]
    pub fn new(host: impl Host + 'static) -> Self {
        Self(Arc::new(EngineState {
            host: Box::new(host),
            pools: Mutex::new(Pools::default()),
            admin_snapshots: AtomicBool::new(false),
            events: EventLog::default(),
            reclaims: Arc::default(),
        }))
    }

    /// Returns where clients may reclaim delegations of before a restart, for who knows: to be told before pools are imported.
    #[must_use]
    pub fn reclaim_grace(&self) -> &Arc<ReclaimGrace> {
        &self.0.reclaims
    }

    /// Says whether directories made, removed and renamed in `.zfs/snapshot` are snapshots made, destroyed and renamed, in
    /// pools that come from now on. They are not unless this was called.
    pub fn set_admin_snapshots(&self, allowed: bool) {
        self.0.admin_snapshots.store(allowed, Ordering::Relaxed);
    }

    /// Creates a pool with an empty root file system that has the properties `root_properties`.
    ///
    /// The pool is on stable storage when this returns.
    ///
    /// # Errors
    /// A name or layout that is refused, devices in use, disk errors.
    pub fn create_pool<'a>(
        &'a self,
        mut spec: PoolSpec,
        root_properties: &'a [(String, String)],
    ) -> Request<'a, Result<PoolHandle, EngineError>> {
        Box::pin(async move {
            let reserved = self.reserve(spec.name_in_use())?;
            let context = SetContext {
                kind: DatasetKind::Filesystem,
                creating: true,
                block_max: 16 << 20,
            };
            spec.settings = parse_settings(root_properties, context)?;
            if pool::plan_root_key(&spec, 1)?.is_some() != spec.key.is_some() {
                return Err(DslError::NoKey.into());
            }
            let name = spec.name_in_use().to_owned();
            spec.events = self.events().clone();
            let body = move |handle: Handle| async move {
                // A new pool enables the feature unless told otherwise; the format allows it then.
                let project_quota =
                    !spec.properties.iter().any(|(name, value)| {
                        name == "feature@project_quota" && value == "disabled"
                    }) && spec.features == FeatureBase::Implemented;
                let init = fill_root(handle.clone(), project_quota);
                let pool = Pool::create(&handle, spec, init).await?;
                Ok(pool)
            };
            self.start(reserved, name, body).await
        })
    }

    /// Returns the key that the root file system of a new pool with the properties `root_properties` needs; `None` when it is not
    /// encrypted. It goes into [`PoolSpec::key`].
    ///
    /// # Errors
    /// What [`Self::create_pool`] would say of the properties; [`EngineError::NoThread`].
    pub fn plan_root_key<'a>(
        &'a self,
        spec: &'a PoolSpec,
        root_properties: &'a [(String, String)],
    ) -> Request<'a, Result<Option<PlannedKey>, EngineError>> {
        Box::pin(async move {
            let context = SetContext {
                kind: DatasetKind::Filesystem,
                creating: true,
                block_max: 16 << 20,
            };
            let mut spec = spec.clone();
            spec.settings = parse_settings(root_properties, context)?;
            let draw = async move |handle: Handle| handle.random_u64().max(1);
            let salt = self.run_apart("salt", draw).await?;
            Ok(pool::plan_root_key(&spec, salt)?)
        })
    }

    /// Checks what can be checked of a new pool without touching its devices.
    ///
    /// # Errors
    /// What [`Self::create_pool`] would say.
    pub fn check_pool(
        spec: &PoolSpec,
        root_properties: &[(String, String)],
    ) -> Result<(), EngineError> {
        let context = SetContext {
            kind: DatasetKind::Filesystem,
            creating: true,
            block_max: 16 << 20,
        };
        let mut spec = spec.clone();
        spec.settings = parse_settings(root_properties, context)?;
        Ok(pool::check_spec(&spec)?)
    }

    /// Looks for pools on the disks of `places`: directories are searched, files and devices taken
    /// as they are.
    ///
    /// # Errors
    /// [`EngineError::NoThread`]; places that cannot be read are part of the answer.
    pub fn discover(&self, places: Vec<PathBuf>) -> Request<'_, Result<Discovery, EngineError>> {
        Box::pin(async move {
            let work = async move |handle: Handle| pool::discover(&handle, &places).await;
            self.run_apart("discover", work).await
        })
    }

    /// Reads the label of a device; `None` when it has no valid one.
    ///
    /// # Errors
    /// The device cannot be opened; [`EngineError::NoThread`].
    pub fn device_label(
        &self,
        path: PathBuf,
    ) -> Request<'_, Result<Option<DeviceLabel>, EngineError>> {
        Box::pin(async move {
            let work = async move |handle: Handle| pool::device_label(&handle, &path).await;
            Ok(self.run_apart("label", work).await??)
        })
    }

    /// Returns what keeps a device from being used for a new vdev, as `zpool create` says it; `None` when nothing does.
    ///
    /// # Errors
    /// The device cannot be opened; [`EngineError::NoThread`].
    pub fn device_content(
        &self,
        path: PathBuf,
    ) -> Request<'_, Result<Option<String>, EngineError>> {
        Box::pin(async move {
            let work = async move |handle: Handle| pool::device_content(&handle, &path).await;
            Ok(self.run_apart("content", work).await??)
        })
    }

    /// Removes the labels of a device that no pool uses.
    ///
    /// # Errors
    /// The device cannot be opened for writing, or written; [`EngineError::NoThread`].
    pub fn clear_labels(&self, path: PathBuf) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            let work = async move |handle: Handle| pool::clear_labels(&handle, &path).await;
            Ok(self.run_apart("label", work).await??)
        })
    }

    /// Whether a pool that was found is in use by another host right now: at once for most, after some twenty seconds for
    /// one with `multihost=on` that a host other than `host` did not export.
    ///
    /// # Errors
    /// Its devices cannot be opened; [`EngineError::NoThread`].
    pub fn is_in_use_elsewhere(
        &self,
        candidate: Candidate,
        host: HostIdentity,
    ) -> Request<'_, Result<bool, EngineError>> {
        Box::pin(async move {
            let work = async move |handle: Handle| {
                let tuning = MultihostTuning::default();
                pool::is_in_use_elsewhere(&handle, &candidate, &host, &tuning).await
            };
            Ok(self.run_apart("multihost", work).await??)
        })
    }

    /// Imports a pool that was discovered.
    ///
    /// # Errors
    /// In use by another host, unknown features, missing devices, damaged metadata.
    pub fn import(
        &self,
        candidate: Candidate,
        mut policy: ImportPolicy,
    ) -> Request<'_, Result<PoolHandle, EngineError>> {
        Box::pin(async move {
            policy.events = self.events().clone();
            let name = policy
                .new_name
                .clone()
                .unwrap_or_else(|| candidate.name.clone());
            let reserved = self.reserve(&name)?;
            let body = move |handle: Handle| async move {
                let pool = Pool::import(&handle, &candidate, policy).await?;
                Ok(pool)
            };
            self.start(reserved, name, body).await
        })
    }

    /// Finds out, without writing anything, which older state of a pool whose newest one is damaged could be imported
    /// (`policy.rewind`), and what would be lost; `None` when none can, or none needs to.
    ///
    /// # Errors
    /// [`EngineError::NoThread`].
    pub fn assess_rewind(
        &self,
        candidate: Candidate,
        policy: ImportPolicy,
    ) -> Request<'_, Result<Option<Rewound>, EngineError>> {
        Box::pin(async move {
            let policy = ImportPolicy {
                readonly: true,
                rewind: Some(policy.rewind.unwrap_or_default()),
                properties: BTreeMap::new(),
                ..policy
            };
            let work = async move |handle: Handle| {
                let pool = Pool::import(&handle, &candidate, policy).await.ok()?;
                pool.abandon();
                pool.rewound()
            };
            self.run_apart("assess", work).await
        })
    }

    /// Returns what happened to pools and devices since this process began, and to those that came and went meanwhile.
    #[must_use]
    pub fn events(&self) -> &EventLog {
        &self.0.events
    }

    /// Returns the imported pools in the order of their names.
    #[must_use]
    pub fn pools(&self) -> Vec<PoolHandle> {
        self.pools_mut().imported.values().cloned().collect()
    }

    /// Returns an imported pool.
    ///
    /// # Errors
    /// [`EngineError::PoolNotFound`].
    pub fn pool(&self, name: &str) -> Result<PoolHandle, EngineError> {
        let found = self.pools_mut().imported.get(name).cloned();
        found.ok_or_else(|| EngineError::PoolNotFound(name.to_owned()))
    }

    /// Returns the imported pool that a dataset (`pool/path@snapshot`) lies in.
    ///
    /// # Errors
    /// [`EngineError::PoolNotFound`].
    pub fn pool_of(&self, dataset: &str) -> Result<PoolHandle, EngineError> {
        let end = dataset.find(['/', '@', '#']).unwrap_or(dataset.len());
        self.pool(&dataset[..end])
    }

    /// Ends a pool: export, destruction, or only closing it at the end of the process. All
    /// requests accepted before are done, and the disks let go, when this returns.
    ///
    /// # Errors
    /// [`EngineError::PoolNotFound`]; writing failed (then the pool stays).
    pub fn end_pool<'a>(
        &'a self,
        name: &'a str,
        ending: Ending,
    ) -> Request<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let pool = self.pool(name)?;
            pool.end(ending).await?;
            let mut pools = self.pools_mut();
            if pools
                .imported
                .get(name)
                .is_some_and(|current| current.guid() == pool.guid())
            {
                pools.imported.remove(name);
            }
            Ok(())
        })
    }

    /// Closes all pools, leaving them marked as in use by this host.
    ///
    /// # Errors
    /// The first pool that could not be written out; the others are closed all the same.
    pub fn close(&self) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            let mut outcome = Ok(());
            for pool in self.pools() {
                let ended = self.end_pool(pool.name(), Ending::Close).await;
                outcome = outcome.and(ended);
            }
            outcome
        })
    }

    fn pools_mut(&self) -> MutexGuard<'_, Pools> {
        self.0.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reserve(&self, name: &str) -> Result<Reservation<'_>, EngineError> {
        let mut pools = self.pools_mut();
        if pools.imported.contains_key(name) || !pools.starting.insert(name.to_owned()) {
            return Err(EngineError::PoolExists(name.to_owned()));
        }
        Ok(Reservation {
            engine: self,
            name: name.to_owned(),
        })
    }

    /// Does work that belongs to no pool in use, on a thread of its own.
    async fn run_apart<T, Work>(&self, name: &str, work: Work) -> Result<T, EngineError>
    where
        T: Send + 'static,
        Work: AsyncFnOnce(Handle) -> T + Send + 'static,
    {
        let (sender, reply) = runtime::reply();
        let body: PoolBody =
            Box::new(move |handle| Box::pin(async move { sender.send(work(handle).await) }));
        self.start_thread(name, body)?;
        reply.await.map_err(|_| EngineError::PoolClosed)
    }

    fn start_thread(&self, name: &str, body: PoolBody) -> Result<(), EngineError> {
        self.0.host.start(name, body).map_err(EngineError::NoThread)
    }

    /// Starts a pool's thread; `opening` brings the pool up on it.
    async fn start<F, Opening>(
        &self,
        _reserved: Reservation<'_>,
        name: String,
        opening: F,
    ) -> Result<PoolHandle, EngineError>
    where
        F: FnOnce(Handle) -> Opening + Send + 'static,
        Opening: Future<Output = Result<Pool, EngineError>> + 'static,
    {
        let (sender, receiver) = runtime::mailbox(MAILBOX_BOUND);
        let (came_up, reply) = runtime::reply();
        let (pool_name, reclaims) = (name.clone(), Arc::clone(&self.0.reclaims));
        let body: PoolBody = Box::new(move |handle| {
            Box::pin(async move {
                match opening(handle.clone()).await {
                    Ok(pool) => {
                        let context = PoolContext::new(handle.clone(), pool, reclaims);
                        let pool = &context.pool;
                        let facts = PoolFacts {
                            name: pool_name,
                            guid: pool.guid().into(),
                            altroot: pool.altroot(),
                            readonly: pool.is_read_only(),
                            rewound: pool.rewound(),
                            replays: context.replays.clone(),
                        };
                        let turns = Turns::of(&handle);
                        let is_run_in_turns = turns.are_taken();
                        came_up.send(Ok((facts, context.fast_path.clone(), turns)));
                        let serving = context.serve(receiver);
                        match is_run_in_turns {
                            true => handle.spawn("mailbox", serving).await,
                            false => serving.await,
                        }
                    }
                    Err(error) => came_up.send(Err(error)),
                }
            })
        });
        self.start_thread(&name, body)?;
        let (facts, fast_path, turns) = reply.await.map_err(|_| EngineError::PoolClosed)??;
        let watches = Watches::new(fast_path.delegations.clone());
        let admin = self.0.admin_snapshots.load(Ordering::Relaxed);
        watches.admin_snapshots.store(admin, Ordering::Relaxed);
        let mailbox = PoolMailbox::new(sender, turns, Arc::new(watches), fast_path);
        let handle = PoolHandle::new(mailbox, facts);
        self.pools_mut().imported.insert(name, handle.clone());
        Ok(handle)
    }
}
