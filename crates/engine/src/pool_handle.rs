//! A pool, callable from any thread.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dsl::Subject;
use pool::{HistoryRecord, PoolStatus, Rewound};

use crate::delegation::{creation, of_property, on, with_below};
use crate::door::{Door, Ending};
use crate::observe::{Observation, Tunes};
use crate::pool_property::PropertyEntry;
use crate::{
    CreateDataset, DatasetFilter, DatasetInfo, DatasetProperty, DestroyOptions, EngineError,
    FsHandle, PropertyQuery, VolumeHandle, VolumePlan,
};

/// An imported pool. Calls after its export answer [`EngineError::PoolClosed`].
#[derive(Clone, Debug)]
pub struct PoolHandle {
    pub(crate) door: Door,
    facts: Arc<PoolFacts>,
    /// For whom this handle is, if not for root.
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
}

impl PoolHandle {
    pub(crate) fn new(door: Door, facts: PoolFacts) -> Self {
        Self {
            door,
            facts: Arc::new(facts),
            caller: None,
        }
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

    /// Returns the state of the pool and its vdevs, with their error and I/O counters.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`].
    pub async fn status(&self) -> Result<PoolStatus, EngineError> {
        self.look(|room| async move { Ok(room.pool.status()) })
            .await
    }

    /// Returns what the pool counts: cache, cache devices, logs, requests, dirty data.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`].
    pub async fn observe(&self) -> Result<Observation, EngineError> {
        self.look(|room| async move { Ok(crate::observe::observe(&room)) })
            .await
    }

    /// Returns the bytes the pool's cache holds, and its limit now.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`].
    pub async fn cache_size(&self) -> Result<(u64, u64), EngineError> {
        self.look(|room| async move {
            let (held, limit) = room.pool.cache().size();
            Ok((held as u64, limit as u64))
        })
        .await
    }

    /// Changes limits of the cache while it is in use; what is `None` stays.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`].
    pub async fn tune(&self, tunes: Tunes) -> Result<(), EngineError> {
        self.ask(|room| async move {
            crate::observe::tune(&room, tunes);
            Ok(())
        })
        .await
    }

    /// Returns all native and feature properties in the order of `zpool get all`.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`], or reading the pool failed.
    pub async fn properties(&self) -> Result<Vec<PropertyEntry>, EngineError> {
        self.look(|room| async move { Ok(room.pool.properties().await?) })
            .await
    }

    /// Returns the file that remembers the pool (property `cachefile`), when that is not the usual one, and what it is to
    /// say of it (see [`crate::cache_file_with`]).
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`].
    pub async fn cache_entry(&self) -> Result<(Option<String>, Vec<u8>), EngineError> {
        self.ask(|room| async move { Ok((room.pool.cachefile(), room.pool.cache_entry())) })
            .await
    }

    /// Sets a pool property, a feature (`feature@x=enabled`) or a user property.
    ///
    /// The change is on stable storage when this returns.
    ///
    /// # Errors
    /// The property or its value is refused; the pool is read-only.
    pub async fn set_property(&self, name: &str, value: &str) -> Result<(), EngineError> {
        let (name, value) = (name.to_owned(), value.to_owned());
        self.ask(move |room| async move { Ok(room.pool.set_property(&name, &value).await?) })
            .await
    }

    /// Returns the pool's history, oldest first.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`], or reading the pool failed.
    pub async fn history(&self) -> Result<Vec<HistoryRecord>, EngineError> {
        self.ask(|room| async move { Ok(room.pool.history().await?) })
            .await
    }

    /// Records a command of the user `uid` in the pool's history, with the next transaction group.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`].
    pub async fn log_command(&self, command: &str, uid: u32) -> Result<(), EngineError> {
        let command = command.to_owned();
        let uid = self.caller.as_ref().map_or(uid, |caller| caller.uid);
        self.look(move |room| async move {
            room.pool.log_command(&command, u64::from(uid));
            Ok(())
        })
        .await
    }

    /// Writes out everything that was accepted before the call.
    ///
    /// # Errors
    /// The pool is suspended or was closed.
    pub async fn sync(&self) -> Result<(), EngineError> {
        self.ask(|room| async move {
            room.pool.sync().await?;
            Ok(())
        })
        .await
    }

    /// Returns a dataset, with the properties asked for.
    ///
    /// # Errors
    /// [`EngineError::DatasetNotFound`].
    pub async fn dataset(
        &self,
        name: &str,
        query: &PropertyQuery,
    ) -> Result<DatasetInfo, EngineError> {
        let (name, query) = (name.to_owned(), query.clone());
        self.look(move |room| async move { room.dataset(&name, &query).await })
            .await
    }

    /// Returns datasets in the order of their names, parents first.
    ///
    /// # Errors
    /// [`EngineError::DatasetNotFound`] when the one to start at does not exist.
    pub async fn datasets(
        &self,
        filter: &DatasetFilter,
        query: &PropertyQuery,
    ) -> Result<Vec<DatasetInfo>, EngineError> {
        let (filter, query) = (filter.clone(), query.clone());
        self.look(move |room| async move { room.datasets(&filter, &query).await })
            .await
    }

    /// Returns one property of a dataset; user properties by their full names.
    ///
    /// # Errors
    /// [`EngineError::DatasetNotFound`], [`EngineError::Property`].
    pub async fn property(
        &self,
        dataset: &str,
        property: &str,
    ) -> Result<Option<DatasetProperty>, EngineError> {
        let query = PropertyQuery::Named(vec![property.to_owned()]);
        Ok(self
            .dataset(dataset, &query)
            .await?
            .properties
            .into_iter()
            .next())
    }

    /// Creates a file system or volume.
    ///
    /// It is on stable storage when this returns.
    ///
    /// # Errors
    /// The name is taken or has no parent, a property is refused, no space.
    pub async fn create_dataset(&self, request: CreateDataset) -> Result<(), EngineError> {
        let needs = vec![creation(
            &request.name,
            request.parents,
            &request.properties,
        )];
        let creator = self.creator();
        self.ask_permitted(needs, move |room| async move {
            room.create_dataset(request, creator).await
        })
        .await
    }

    /// Destroys a dataset, with its children when `options` says so. The last of them is gone from
    /// stable storage when this returns; its space comes back in the background.
    ///
    /// # Errors
    /// [`EngineError::HasChildren`], [`EngineError::Busy`].
    pub async fn destroy_dataset(
        &self,
        name: &str,
        options: DestroyOptions,
    ) -> Result<(), EngineError> {
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
        self.ask_permitted(needs, move |room| async move {
            room.destroy_dataset(&name, options).await
        })
        .await
    }

    /// Renames a dataset within the pool; its file handles stay good.
    ///
    /// # Errors
    /// The new name is taken or has no parent, or lies below the old one.
    pub async fn rename_dataset(
        &self,
        from: &str,
        to: &str,
        create_parents: bool,
    ) -> Result<(), EngineError> {
        let needs = vec![
            on(from, &["rename", "mount"]),
            creation(to, create_parents, &[]),
        ];
        let creator = self.creator();
        let (from, to) = (from.to_owned(), to.to_owned());
        self.ask_permitted(needs, move |room| async move {
            room.rename_dataset(&from, &to, create_parents, creator)
                .await
        })
        .await
    }

    /// Sets properties of a dataset, all or none.
    ///
    /// # Errors
    /// [`EngineError::Property`] and what the values may contradict.
    pub async fn set_dataset_properties(
        &self,
        dataset: &str,
        settings: &[(String, String)],
    ) -> Result<(), EngineError> {
        let permissions: Vec<String> = settings.iter().map(|(name, _)| of_property(name)).collect();
        let permissions: Vec<&str> = permissions.iter().map(String::as_str).collect();
        let needs = vec![on(dataset, &permissions)];
        let (dataset, settings) = (dataset.to_owned(), settings.to_vec());
        self.ask_permitted(needs, move |room| async move {
            room.set_dataset_properties(&dataset, &settings).await
        })
        .await
    }

    /// Removes a local value, so that the property is inherited or default again; with `received`,
    /// so that a received value shows.
    ///
    /// # Errors
    /// The property cannot be inherited, or the dataset does not exist.
    pub async fn inherit(
        &self,
        dataset: &str,
        property: &str,
        received: bool,
    ) -> Result<(), EngineError> {
        let needs = vec![on(dataset, &[&of_property(property)])];
        let (dataset, property) = (dataset.to_owned(), property.to_owned());
        self.ask_permitted(needs, move |room| async move {
            room.inherit(&dataset, &property, received).await
        })
        .await
    }

    /// Returns a handle for the files of a file system or snapshot.
    ///
    /// # Errors
    /// [`EngineError::DatasetNotFound`], [`EngineError::WrongKind`] for a volume.
    pub async fn open_fs(&self, dataset: &str) -> Result<FsHandle, EngineError> {
        // Who compares what two snapshots have; nothing else reaches content for others than root.
        let (needs, name) = (vec![on(dataset, &["diff"])], dataset.to_owned());
        let info = self
            .ask_permitted(needs, move |room| async move {
                room.dataset(&name, &PropertyQuery::None).await
            })
            .await?;
        if info.kind == crate::DatasetKind::Volume {
            return Err(EngineError::WrongKind(dataset.to_owned()));
        }
        Ok(FsHandle::new(self.door.clone(), info.object, info.guid))
    }

    /// Returns a handle for a dataset known by number and guid (from a file handle). Nothing is
    /// checked here: calls on a handle of a dataset that is gone answer
    /// [`FsError::Stale`](crate::FsError::Stale).
    #[must_use]
    pub fn fs_by_number(&self, dataset: u64, guid: u64) -> FsHandle {
        FsHandle::new(self.door.clone(), dataset, guid)
    }

    /// Completes the properties of a volume to be created: block size, size as a multiple of it, and (unless `sparse`) the
    /// reservation that lets it be written completely. `properties` are as typed, `size` is in bytes.
    ///
    /// # Errors
    /// [`EngineError::Property`] for a property that is refused.
    pub async fn plan_volume(
        &self,
        size: u64,
        sparse: bool,
        properties: &[(String, String)],
    ) -> Result<VolumePlan, EngineError> {
        let properties = properties.to_vec();
        self.look(move |room| async move { room.plan_volume(size, sparse, &properties).await })
            .await
    }

    /// Returns a handle for the bytes of a volume, or of a snapshot of one.
    ///
    /// # Errors
    /// [`EngineError::DatasetNotFound`]; [`EngineError::Volume`] when the dataset is no volume.
    pub async fn open_volume(&self, dataset: &str) -> Result<VolumeHandle, EngineError> {
        if !self.is_trusted() {
            return Err(EngineError::Permission);
        }
        let info = self.dataset(dataset, &PropertyQuery::None).await?;
        let handle = self.volume_by_number(info.object, info.guid);
        handle.info().await?;
        Ok(handle)
    }

    /// Returns a handle for a volume known by number and guid. Nothing is checked here: calls on a handle of a dataset that is
    /// gone answer [`VolumeError::Gone`](crate::VolumeError::Gone).
    #[must_use]
    pub fn volume_by_number(&self, dataset: u64, guid: u64) -> VolumeHandle {
        VolumeHandle::new(self.door.clone(), self.guid(), dataset, guid)
    }

    pub(crate) async fn end(&self, ending: Ending) -> Result<(), EngineError> {
        self.door.end(ending).await
    }
}
