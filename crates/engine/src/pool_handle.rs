//! A pool, callable from any thread.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use dsl::{DatasetChanges, Subject};
use pool::{HistoryRecord, PoolStatus, Rewound};

use crate::delegation::{creation, of_property, on, with_below};
use crate::pool_mailbox::{Ending, PoolMailbox, Request};
use crate::pool_property::PropertyEntry;
use crate::statistics::{PoolStatistics, Replay, Replays, TuningChange};
use crate::{
    CreateDataset, DatasetFilter, DatasetInfo, DatasetPage, DatasetProperty, DestroyOptions,
    EngineError, FsHandle, Invalidation, PropertyQuery, SnapshotPage, SnapshotPosition,
    VolumeHandle, VolumePlan,
};

/// Value of the property `keystatus` of a dataset whose key is not loaded.
const KEY_UNAVAILABLE: u64 = 1;
/// The property that decides whether the root directory lists `.zfs`.
const SNAPDIR: &str = "snapdir";

/// An imported pool. Calls after its export answer [`EngineError::PoolClosed`].
#[derive(Clone, Debug)]
pub struct PoolHandle {
    pub(crate) mailbox: PoolMailbox,
    facts: Arc<PoolFacts>,
    /// The subject this handle is for, if not root.
    pub(crate) caller: Option<Arc<Subject>>,
}

/// What hardly ever changes while a pool is imported.
#[derive(Debug)]
pub(crate) struct PoolFacts {
    pub(crate) name: String,
    /// Changes when the administrator gives the pool another one.
    pub(crate) guid: AtomicU64,
    pub(crate) altroot: Option<PathBuf>,
    pub(crate) readonly: bool,
    pub(crate) rewound: Option<Rewound>,
    /// Intent logs that were replayed and have not been reported yet.
    pub(crate) replays: Replays,
}

/// An opening of a pool: equal as long as it is not closed and opened again. It keeps nothing open.
#[derive(Clone, Debug)]
pub struct PoolOpening(Weak<PoolFacts>);

impl PartialEq for PoolOpening {
    fn eq(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl Eq for PoolOpening {}

/// The cache file that remembers a pool, when that is not the usual one, and the entry for the pool in it.
type CacheEntry = (Option<String>, Vec<u8>);

impl PoolHandle {
    pub(crate) fn new(mailbox: PoolMailbox, facts: PoolFacts) -> Self {
        Self {
            mailbox,
            facts: Arc::new(facts),
            caller: None,
        }
    }

    /// Returns what tells this opening of the pool from a later one.
    #[must_use]
    pub fn opening(&self) -> PoolOpening {
        PoolOpening(Arc::downgrade(&self.facts))
    }

    /// Returns the pool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.facts.name
    }

    /// Returns the pool's guid.
    #[must_use]
    pub fn guid(&self) -> u64 {
        self.facts.guid.load(Ordering::Relaxed)
    }

    pub(crate) fn set_guid(&self, guid: u64) {
        self.facts.guid.store(guid, Ordering::Relaxed);
    }

    /// Returns the alternate root the pool was imported with.
    #[must_use]
    pub fn altroot(&self) -> Option<&std::path::Path> {
        self.facts.altroot.as_deref()
    }

    /// Returns whether the pool was imported read-only.
    #[must_use]
    pub fn readonly(&self) -> bool {
        self.facts.readonly
    }

    /// Returns what the import gave up, if it went back to an older state.
    #[must_use]
    pub fn rewound(&self) -> Option<Rewound> {
        self.facts.rewound
    }

    /// Returns the intent logs that were replayed since the last call (at most the first 1024), as datasets were opened.
    #[must_use]
    pub fn take_replays(&self) -> Vec<Replay> {
        self.facts.replays.take()
    }

    /// Returns the state of the pool and its vdevs, with their error and I/O counters.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`].
    pub fn status(&self) -> Request<'_, Result<PoolStatus, EngineError>> {
        Box::pin(async move {
            self.query(|context| async move { Ok(context.pool.status()) })
                .await
        })
    }

    /// Returns what the pool counts: cache, cache devices, logs, requests, dirty data.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`].
    pub fn statistics(&self) -> Request<'_, Result<PoolStatistics, EngineError>> {
        Box::pin(async move {
            self.query(|context| async move { Ok(context.statistics()) })
                .await
        })
    }

    /// Returns the bytes the pool's cache holds, and its limit now.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`].
    pub fn cache_size(&self) -> Request<'_, Result<(u64, u64), EngineError>> {
        Box::pin(async move {
            self.query(|context| async move {
                let (held, limit) = context.pool.cache().size();
                Ok((held as u64, limit as u64))
            })
            .await
        })
    }

    /// Changes limits of the cache while it is in use; what is `None` stays.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`].
    pub fn tune(&self, change: TuningChange) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move {
                context.tune(change);
                Ok(())
            })
            .await
        })
    }

    /// Returns all native and feature properties in the order of `zpool get all`.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`], or reading the pool failed.
    pub fn properties(&self) -> Request<'_, Result<Vec<PropertyEntry>, EngineError>> {
        Box::pin(async move {
            self.query(|context| async move { Ok(context.pool.properties().await?) })
                .await
        })
    }

    /// Returns the properties of a vdev, by guid: native ones in the order of `zpool get all`, then those of users.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`], or there is no such vdev.
    pub fn vdev_properties(
        &self,
        vdev: u64,
    ) -> Request<'_, Result<Vec<PropertyEntry>, EngineError>> {
        Box::pin(async move {
            self.query(move |context| async move { Ok(context.pool.vdev_properties(vdev)?) })
                .await
        })
    }

    /// Sets a property of a vdev, by guid: a native one or one of users, which an empty value takes away.
    ///
    /// The change is on stable storage when this returns.
    ///
    /// # Errors
    /// The property or its value is refused; there is no such vdev; the pool is read-only.
    pub fn set_vdev_property<'a>(
        &'a self,
        vdev: u64,
        name: &'a str,
        value: &'a str,
    ) -> Request<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let (name, value) = (name.to_owned(), value.to_owned());
            self.run_as_root(move |context| async move {
                Ok(context.pool.set_vdev_property(vdev, &name, &value).await?)
            })
            .await
        })
    }

    /// Returns what the deduplication tables hold.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`], or reading the pool failed.
    pub fn dedup_statistics(&self) -> Request<'_, Result<pool::DedupStatistics, EngineError>> {
        Box::pin(async move {
            self.query(|context| async move { Ok(context.pool.dedup_statistics().await?) })
                .await
        })
    }

    /// Returns the file that remembers the pool (property `cachefile`), when that is not the usual one, and what it is to
    /// say of it (see [`crate::cache_file_with`]).
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`].
    pub fn cache_entry(&self) -> Request<'_, Result<CacheEntry, EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move {
                Ok((context.pool.cachefile(), context.pool.cache_entry()))
            })
            .await
        })
    }

    /// Returns the pool's version: 1 to 28, or 5000 when features say what it knows.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`].
    pub fn version(&self) -> Request<'_, Result<u64, EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move { Ok(context.pool.version()) })
                .await
        })
    }

    /// Upgrades the pool to a newer version, 2 to 28 or 5000; nothing happens when it is of that or a newer one. The change is on
    /// stable storage when this returns; older software cannot use the pool any more.
    ///
    /// # Errors
    /// The version is not known, or the pool is read-only.
    pub fn upgrade(&self, version: u64) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(move |context| async move { Ok(context.pool.upgrade(version).await?) })
                .await
        })
    }

    /// Sets a pool property, a feature (`feature@x=enabled`) or a user property.
    ///
    /// The change is on stable storage when this returns.
    ///
    /// # Errors
    /// The property or its value is refused; the pool is read-only.
    pub fn set_property<'a>(
        &'a self,
        name: &'a str,
        value: &'a str,
    ) -> Request<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let (name, value) = (name.to_owned(), value.to_owned());
            self.run_as_root(move |context| async move {
                Ok(context.pool.set_property(&name, &value).await?)
            })
            .await
        })
    }

    /// Returns the pool's history, oldest first.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`], or reading the pool failed.
    pub fn history(&self) -> Request<'_, Result<Vec<HistoryRecord>, EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move { Ok(context.pool.history().await?) })
                .await
        })
    }

    /// Records a command of the user `uid` in the pool's history, with the next transaction group.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`].
    pub fn log_command<'a>(
        &'a self,
        command: &'a str,
        uid: u32,
    ) -> Request<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let command = command.to_owned();
            let uid = self.caller.as_ref().map_or(uid, |caller| caller.uid);
            self.query(move |context| async move {
                context.pool.log_command(&command, u64::from(uid));
                Ok(())
            })
            .await
        })
    }

    /// Writes out everything that was accepted before the call.
    ///
    /// # Errors
    /// The pool is suspended or was closed.
    pub fn sync(&self) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move {
                context.pool.sync().await?;
                Ok(())
            })
            .await
        })
    }

    /// Returns the newest txg on disk when nothing that was accepted waits to be written, else `None`. As long as it is the same number,
    /// nothing in the pool has changed.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`].
    pub fn unchanged_since(&self) -> Request<'_, Result<Option<u64>, EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move {
                Ok(context.pool.unchanged_since().map(|txg| txg.0))
            })
            .await
        })
    }

    /// Opens a dataset and those below it whose intent logs hold something, so that it is carried out. It is on stable storage with the next
    /// transaction group ([`PoolHandle::sync`]). One whose key is not loaded is passed over.
    ///
    /// # Errors
    /// Of reading; of a log that cannot be replayed.
    pub fn replay_logs<'a>(&'a self, root: &'a str) -> Request<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let logs = self
                .run_as_root(|context| async move {
                    Ok(context.pool.hierarchy().unreplayed_logs().await?)
                })
                .await?;
            let below = format!("{root}/");
            let logs = logs
                .iter()
                .filter(|name| *name == root || name.starts_with(&below));
            for name in logs {
                let keys = PropertyQuery::Named(vec!["keystatus".to_owned()]);
                let info = match self.dataset(name, &keys).await {
                    Err(EngineError::DatasetNotFound(_)) => continue,
                    info => info?,
                };
                let is_locked = |property: &crate::DatasetProperty| {
                    property.value == crate::property::Value::Number(KEY_UNAVAILABLE)
                };
                if info.properties.first().is_some_and(is_locked) {
                    continue;
                }
                match info.kind {
                    crate::DatasetKind::Volume => {
                        let volume = self.volume_by_number(info.object, info.guid);
                        volume.info().await?;
                    }
                    _ => {
                        let fs = self.fs_by_number(info.object, info.guid);
                        fs.root().await?;
                    }
                }
            }
            Ok(())
        })
    }

    /// As [`PoolHandle::sync`], with the configuration in the labels of all devices, though nothing has changed.
    ///
    /// # Errors
    /// As [`PoolHandle::sync`].
    pub fn sync_labels(&self) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.run_as_root(|context| async move {
                context.pool.sync_labels().await?;
                Ok(())
            })
            .await
        })
    }

    /// Returns a dataset, with the properties asked for.
    ///
    /// # Errors
    /// [`EngineError::DatasetNotFound`].
    pub fn dataset<'a>(
        &'a self,
        name: &'a str,
        query: &'a PropertyQuery,
    ) -> Request<'a, Result<DatasetInfo, EngineError>> {
        Box::pin(async move {
            let (name, query) = (name.to_owned(), query.clone());
            self.query(move |context| async move { context.dataset(&name, &query).await })
                .await
        })
    }

    /// Returns datasets in the order of their names, parents first.
    ///
    /// # Errors
    /// [`EngineError::DatasetNotFound`] when the one to start at does not exist.
    pub fn datasets<'a>(
        &'a self,
        filter: &'a DatasetFilter,
        query: &'a PropertyQuery,
    ) -> Request<'a, Result<Vec<DatasetInfo>, EngineError>> {
        Box::pin(async move {
            let (filter, query) = (filter.clone(), query.clone());
            self.query(move |context| async move { context.datasets(&filter, &query).await })
                .await
        })
    }

    /// Returns which file systems and volumes have changed in names and properties since the moment `seen` of an earlier answer of the same
    /// opening of the pool ([`PoolHandle::opening`]); 0 is told of the whole pool. Who lists what is named here has seen all that changed before
    /// this answer.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`].
    pub fn dataset_changes(&self, seen: u64) -> Request<'_, Result<DatasetChanges, EngineError>> {
        Box::pin(async move {
            self.query(
                move |context| async move { Ok(context.pool.hierarchy().changes_since(seen)) },
            )
            .await
        })
    }

    /// Returns the file systems and volumes at and below `root` whose names come behind `after` (none: all), in the order of their names,
    /// parents first: at most `max` whose names contain `filter`, with the properties named. Only what is on the page is read.
    ///
    /// # Errors
    /// [`EngineError::DatasetNotFound`] when the one to start at does not exist.
    pub fn dataset_page<'a>(
        &'a self,
        root: &'a str,
        after: Option<&'a str>,
        filter: &'a str,
        max: usize,
        wanted: Vec<String>,
    ) -> Request<'a, Result<DatasetPage, EngineError>> {
        Box::pin(async move {
            let (root, filter) = (root.to_owned(), filter.to_owned());
            let after = after.map(str::to_owned);
            self.query(move |context| async move {
                let page = context.dataset_page(&root, after.as_deref(), &filter, max, wanted);
                page.await
            })
            .await
        })
    }

    /// Returns the snapshots of a dataset that are older than `after` (none: all), the newest first: at most `max` whose names contain
    /// `filter`.
    ///
    /// # Errors
    /// [`EngineError::DatasetNotFound`].
    pub fn snapshot_page<'a>(
        &'a self,
        dataset: &'a str,
        after: Option<SnapshotPosition>,
        filter: &'a str,
        max: usize,
    ) -> Request<'a, Result<SnapshotPage, EngineError>> {
        Box::pin(async move {
            let (dataset, filter) = (dataset.to_owned(), filter.to_owned());
            self.query(move |context| async move {
                let hierarchy = context.pool.hierarchy();
                let page = hierarchy.snapshot_page(&dataset, after, &filter, max);
                Ok(page.await?)
            })
            .await
        })
    }

    /// Returns one property of a dataset; user properties by their full names.
    ///
    /// # Errors
    /// [`EngineError::DatasetNotFound`], [`EngineError::Property`].
    pub fn property<'a>(
        &'a self,
        dataset: &'a str,
        property: &'a str,
    ) -> Request<'a, Result<Option<DatasetProperty>, EngineError>> {
        Box::pin(async move {
            let query = PropertyQuery::Named(vec![property.to_owned()]);
            Ok(self
                .dataset(dataset, &query)
                .await?
                .properties
                .into_iter()
                .next())
        })
    }

    /// Creates a file system or volume.
    ///
    /// It is on stable storage when this returns.
    ///
    /// # Errors
    /// The name is taken or has no parent, a property is refused, no space.
    pub fn create_dataset(&self, request: CreateDataset) -> Request<'_, Result<(), EngineError>> {
        Box::pin(async move {
            let needs = vec![creation(
                &request.name,
                request.parents,
                &request.properties,
            )];
            let creator = self.creator();
            self.run_permitted(needs, move |context| async move {
                context.create_dataset(request, creator).await
            })
            .await
        })
    }

    /// Destroys a dataset, with its children when `options` says so. The last of them is gone from
    /// stable storage when this returns; its space comes back in the background.
    ///
    /// # Errors
    /// [`EngineError::HasChildren`], [`EngineError::Busy`].
    pub fn destroy_dataset<'a>(
        &'a self,
        name: &'a str,
        options: DestroyOptions,
    ) -> Request<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let mut needs = vec![with_below(name, options.recursive, &["mount", "destroy"])];
            if options.recursive {
                // Snapshots go, too: whatever their names are.
                needs.push(with_below(
                    &format!("{name}@-"),
                    true,
                    &["mount", "destroy"],
                ));
            }
            let name = name.to_owned();
            self.run_permitted(needs, move |context| async move {
                context.destroy_dataset(&name, options).await
            })
            .await
        })
    }

    /// Renames a dataset within the pool; its file handles stay good.
    ///
    /// # Errors
    /// The new name is taken or has no parent, or lies below the old one.
    pub fn rename_dataset<'a>(
        &'a self,
        from: &'a str,
        to: &'a str,
        create_parents: bool,
    ) -> Request<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let needs = vec![
                on(from, &["rename", "mount"]),
                creation(to, create_parents, &[]),
            ];
            let creator = self.creator();
            let (from, to) = (from.to_owned(), to.to_owned());
            self.run_permitted(needs, move |context| async move {
                context
                    .rename_dataset(&from, &to, create_parents, creator)
                    .await
            })
            .await
        })
    }

    /// Sets properties of a dataset, all or none.
    ///
    /// # Errors
    /// [`EngineError::Property`] and what the values may contradict.
    pub fn set_dataset_properties<'a>(
        &'a self,
        dataset: &'a str,
        settings: &'a [(String, String)],
    ) -> Request<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let permissions: Vec<String> =
                settings.iter().map(|(name, _)| of_property(name)).collect();
            let permissions: Vec<&str> = permissions.iter().map(String::as_str).collect();
            let needs = vec![on(dataset, &permissions)];
            let shows_control = settings.iter().any(|(name, _)| name == SNAPDIR);
            let (dataset, settings) = (dataset.to_owned(), settings.to_vec());
            let set = self.run_permitted(needs, move |context| async move {
                context.set_dataset_properties(&dataset, &settings).await
            });
            let set = set.await;
            if shows_control {
                self.notify(None, Invalidation::Root).await;
            }
            set
        })
    }

    /// Removes a local value, so that the property is inherited or default again; with `received`,
    /// so that a received value shows.
    ///
    /// # Errors
    /// The property cannot be inherited, or the dataset does not exist.
    pub fn inherit<'a>(
        &'a self,
        dataset: &'a str,
        property: &'a str,
        received: bool,
    ) -> Request<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let needs = vec![on(dataset, &[&of_property(property)])];
            let shows_control = property == SNAPDIR;
            let (dataset, property) = (dataset.to_owned(), property.to_owned());
            let inherited = self.run_permitted(needs, move |context| async move {
                context.inherit(&dataset, &property, received).await
            });
            let inherited = inherited.await;
            if shows_control {
                self.notify(None, Invalidation::Root).await;
            }
            inherited
        })
    }

    /// Returns a handle for the files of a file system or snapshot.
    ///
    /// # Errors
    /// [`EngineError::DatasetNotFound`], [`EngineError::WrongKind`] for a volume.
    pub fn open_fs<'a>(&'a self, dataset: &'a str) -> Request<'a, Result<FsHandle, EngineError>> {
        Box::pin(async move {
            // For `zfs diff`; nothing else reaches content for subjects other than root.
            let (needs, name) = (vec![on(dataset, &["diff"])], dataset.to_owned());
            let info = self
                .run_permitted(needs, move |context| async move {
                    context.dataset(&name, &PropertyQuery::None).await
                })
                .await?;
            if info.kind == crate::DatasetKind::Volume {
                return Err(EngineError::WrongKind(dataset.to_owned()));
            }
            Ok(FsHandle::new(self.mailbox.clone(), info.object, info.guid))
        })
    }

    /// Closes a file system that was used and is not in use, so that it can be sent as it is, without a snapshot. One with files that a
    /// client holds open stays open. The next request opens it again.
    ///
    /// # Errors
    /// [`EngineError::DatasetNotFound`]; writing its log out failed.
    pub fn close_idle_fs<'a>(&'a self, dataset: &'a str) -> Request<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let name = dataset.to_owned();
            self.run_as_root(move |context| async move {
                let info = context.dataset(&name, &PropertyQuery::None).await?;
                if info.kind != crate::DatasetKind::Filesystem || context.is_held(info.object) {
                    return Ok(());
                }
                context.without(info.object, async { Ok(()) }).await
            })
            .await
        })
    }

    /// Returns a handle for a dataset known by number and guid (from a file handle). Nothing is
    /// checked here: calls on a handle of a dataset that is gone answer
    /// [`FsError::Stale`](crate::FsError::Stale).
    #[must_use]
    pub fn fs_by_number(&self, dataset: u64, guid: u64) -> FsHandle {
        FsHandle::new(self.mailbox.clone(), dataset, guid)
    }

    /// Completes the properties of a volume to be created: block size, size as a multiple of it, and (unless `sparse`) the
    /// reservation that lets it be written completely. `properties` are as typed, `size` is in bytes.
    ///
    /// # Errors
    /// [`EngineError::Property`] for a property that is refused.
    pub fn plan_volume<'a>(
        &'a self,
        size: u64,
        sparse: bool,
        properties: &'a [(String, String)],
    ) -> Request<'a, Result<VolumePlan, EngineError>> {
        Box::pin(async move {
            let properties = properties.to_vec();
            self.query(move |context| async move {
                context.plan_volume(size, sparse, &properties).await
            })
            .await
        })
    }

    /// Returns a handle for the bytes of a volume, or of a snapshot of one.
    ///
    /// # Errors
    /// [`EngineError::DatasetNotFound`]; [`EngineError::Volume`] when the dataset is no volume.
    pub fn open_volume<'a>(
        &'a self,
        dataset: &'a str,
    ) -> Request<'a, Result<VolumeHandle, EngineError>> {
        Box::pin(async move {
            if !self.is_trusted() {
                return Err(EngineError::Permission);
            }
            let info = self.dataset(dataset, &PropertyQuery::None).await?;
            let handle = self.volume_by_number(info.object, info.guid);
            handle.info().await?;
            Ok(handle)
        })
    }

    /// Returns a handle for a volume known by number and guid. Nothing is checked here: calls on a handle of a dataset that is
    /// gone answer [`VolumeError::Gone`](crate::VolumeError::Gone).
    #[must_use]
    pub fn volume_by_number(&self, dataset: u64, guid: u64) -> VolumeHandle {
        VolumeHandle::new(self.mailbox.clone(), self.guid(), dataset, guid)
    }

    pub(crate) async fn end(&self, ending: Ending) -> Result<(), EngineError> {
        self.mailbox.end(ending).await
    }
}
