//! Datasets as callers see them: plain requests and answers, and how the pool's thread serves them.

use dsl::{ListSpec, NewDataset, NewKey, PlannedKey};
use ondisk::ObjectId;
use pool::PoolError;

use crate::EngineError;
use crate::pool_mailbox::PoolContext;
use crate::property::{self, DatasetKind, Kinds, Property, SetContext, Setting, Source, Value};

/// Which properties a query is to fill in.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum PropertyQuery {
    /// None: only what [`DatasetInfo`] holds itself.
    #[default]
    None,
    /// All native properties of the dataset's kind and all user properties, in the order of
    /// `zfs get all`.
    All,
    /// These, in this order, native or user; the ones that do not apply are left out.
    Named(Vec<String>),
}

/// Which datasets to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetFilter {
    /// Where to start.
    pub root: String,
    /// How many levels below the start (0: only it; `None`: all).
    pub depth: Option<u32>,
    /// Kinds wanted.
    pub kinds: Vec<DatasetKind>,
}

/// File systems and volumes in the order of their names, parents first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetPage {
    /// Those whose names match; fewer than asked for, or none, where few of those looked at do.
    pub datasets: Vec<DatasetInfo>,
    /// The last name that was looked at, behind which the next page begins; none where none was.
    pub last: Option<String>,
    /// There are more behind `last`.
    pub more: bool,
}

/// A dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetInfo {
    /// Full name.
    pub name: String,
    /// Kind.
    pub kind: DatasetKind,
    /// Object number in the pool (`objsetid`).
    pub object: u64,
    /// Unique number.
    pub guid: u64,
    /// Transaction group of its creation.
    pub create_txg: u64,
    /// The properties asked for.
    pub properties: Vec<DatasetProperty>,
    /// User properties asked for by name that have no value in force, with the one that came with a stream.
    pub set_aside: Vec<(String, Value)>,
}

impl DatasetInfo {
    /// Returns a property that was asked for.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<&DatasetProperty> {
        self.properties
            .iter()
            .find(|property| property.name == name)
    }
}

/// One property of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetProperty {
    /// Name.
    pub name: String,
    /// Which native property, or `None` for a user property.
    pub native: Option<Property>,
    /// The value in force.
    pub value: Value,
    /// Where it comes from.
    pub source: Source,
    /// The value that came with a stream, if any.
    pub received: Option<Value>,
}

/// A file system or volume to be created.
#[derive(Clone, Debug, Default)]
pub struct CreateDataset {
    /// Full name.
    pub name: String,
    /// A volume; its `volsize` is among the properties.
    pub volume: bool,
    /// `-o NAME=VALUE`, as typed.
    pub properties: Vec<(String, String)>,
    /// Also create missing parents (`-p`).
    pub parents: bool,
    /// Only check (`-n`).
    pub dry_run: bool,
    /// The key of its own that the properties ask for ([`crate::PoolHandle::plan_key`]).
    pub key: Option<NewKey>,
}

/// How to destroy a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DestroyOptions {
    /// Children too (`-r`).
    pub recursive: bool,
}

impl PoolContext {
    pub(crate) fn context(&self, kind: DatasetKind, creating: bool) -> SetContext {
        let large = self.pool.hierarchy().features().is_enabled("large_blocks");
        SetContext {
            kind,
            creating,
            block_max: if large { 16 << 20 } else { 128 << 10 },
        }
    }

    pub(crate) fn settings(
        &self,
        typed: &[(String, String)],
        kind: DatasetKind,
        creating: bool,
    ) -> Result<Vec<Setting>, EngineError> {
        parse_settings(typed, self.context(kind, creating))
    }

    pub(crate) fn writable(&self) -> Result<(), EngineError> {
        if self.pool.is_read_only() {
            Err(EngineError::Pool(PoolError::ReadOnly))
        } else {
            Ok(())
        }
    }

    pub(crate) async fn dataset(
        &self,
        name: &str,
        query: &PropertyQuery,
    ) -> Result<DatasetInfo, EngineError> {
        let hierarchy = self.pool.hierarchy();
        let found = match query {
            PropertyQuery::None => hierarchy.properties_named(name, &[]).await?,
            PropertyQuery::Named(names) => hierarchy.properties_named(name, names).await?,
            PropertyQuery::All => hierarchy.properties(name).await?,
        };
        Ok(self.describe(found, query))
    }

    pub(crate) fn describe(
        &self,
        found: dsl::DatasetProperties,
        query: &PropertyQuery,
    ) -> DatasetInfo {
        let convert = |entry: dsl::PropertyEntry| DatasetProperty {
            name: entry.name,
            native: entry.property,
            value: entry.value,
            source: entry.source,
            received: entry.received,
        };
        let mut all = found.properties;
        let mut properties = Vec::with_capacity(all.len());
        match query {
            PropertyQuery::None => {}
            PropertyQuery::Named(names) => {
                for name in names {
                    let at = all.iter().position(|entry| entry.name == *name);
                    properties.extend(at.map(|at| convert(all.swap_remove(at))));
                }
            }
            PropertyQuery::All => properties.extend(all.into_iter().map(convert)),
        }
        if let Some(altroot) = self.pool.altroot() {
            under_altroot(&mut properties, &altroot.to_string_lossy());
        }
        let info = found.info;
        DatasetInfo {
            name: info.name,
            kind: info.kind,
            object: info.object.0,
            guid: info.guid.0,
            create_txg: info.create_txg.0,
            properties,
            set_aside: found.set_aside,
        }
    }

    pub(crate) async fn datasets(
        &self,
        filter: &DatasetFilter,
        query: &PropertyQuery,
    ) -> Result<Vec<DatasetInfo>, EngineError> {
        let kinds = filter
            .kinds
            .iter()
            .map(|kind| Kinds::of(*kind))
            .reduce(Kinds::union);
        let Some(kinds) = kinds else {
            return Ok(Vec::new());
        };
        let spec = ListSpec {
            depth: filter.depth,
            kinds,
        };
        let wanted = match query {
            PropertyQuery::None => Some([].as_slice()),
            PropertyQuery::Named(names) => Some(names.as_slice()),
            PropertyQuery::All => None,
        };
        let hierarchy = self.pool.hierarchy();
        let found = hierarchy
            .list_properties(&filter.root, spec, wanted)
            .await?;
        Ok(found
            .into_iter()
            .map(|found| self.describe(found, query))
            .collect())
    }

    pub(crate) async fn dataset_page(
        &self,
        root: &str,
        after: Option<&str>,
        filter: &str,
        max: usize,
        wanted: Vec<String>,
    ) -> Result<DatasetPage, EngineError> {
        let hierarchy = self.pool.hierarchy();
        let page = hierarchy.dataset_page(root, after, filter, max, &wanted);
        let page = page.await?;
        let query = PropertyQuery::Named(wanted);
        let describe = |found| self.describe(found, &query);
        Ok(DatasetPage {
            datasets: page.datasets.into_iter().map(describe).collect(),
            last: page.last,
            more: page.more,
        })
    }

    pub(crate) async fn create_dataset(
        &self,
        request: CreateDataset,
        creator: u32,
    ) -> Result<(), EngineError> {
        self.writable()?;
        let kind = if request.volume {
            DatasetKind::Volume
        } else {
            DatasetKind::Filesystem
        };
        let mut settings = self.settings(&request.properties, kind, true)?;
        let volume = match kind {
            DatasetKind::Volume => Some(self.volume_shape(&mut settings).await?),
            _ => None,
        };
        let hierarchy = self.pool.hierarchy();
        if hierarchy.info(&request.name).await.is_ok() {
            return Err(EngineError::DatasetExists(request.name));
        }
        let mut missing = Vec::new();
        let mut name = request.name.as_str();
        while let Some((parent, _)) = name.rsplit_once('/') {
            match hierarchy.info(parent).await {
                Ok(_) => break,
                Err(error) if error.is_not_found() && request.parents => {
                    missing.push(parent.to_owned());
                }
                Err(error) if error.is_not_found() => {
                    return Err(EngineError::ParentNotFound(parent.to_owned()));
                }
                Err(error) => return Err(error.into()),
            }
            name = parent;
        }
        if request.dry_run {
            return Ok(());
        }
        for parent in missing.into_iter().rev() {
            let new = NewDataset {
                name: parent,
                kind: DatasetKind::Filesystem,
                settings: Vec::new(),
                creator,
                key: None,
            };
            hierarchy.create_dataset(new, self.root_filler()).await?;
        }
        let (quotas, settings) = split_quotas(settings)?;
        let name = request.name.clone();
        let new = NewDataset {
            name: request.name,
            kind,
            settings,
            creator,
            key: request.key,
        };
        match volume {
            Some(shape) => hierarchy.create_dataset(new, shape.filler()).await?,
            None => hierarchy.create_dataset(new, self.root_filler()).await?,
        }
        self.set_user_quotas(&name, quotas).await
    }

    pub(crate) async fn plan_key(
        &self,
        name: &str,
        kind: DatasetKind,
        typed: &[(String, String)],
    ) -> Result<Option<PlannedKey>, EngineError> {
        let settings = self.settings(typed, kind, true)?;
        Ok(self.pool.hierarchy().plan_key(name, &settings).await?)
    }

    fn root_filler(
        &self,
    ) -> impl AsyncFnOnce(&dmu::Objset, &dmu::Tx, &[Setting]) -> dsl::Result<()> + 'static {
        let project_quota = self.pool.hierarchy().features().is_enabled("project_quota");
        fill_root(self.handle.clone(), project_quota)
    }

    pub(crate) async fn destroy_dataset(
        &self,
        name: &str,
        options: DestroyOptions,
    ) -> Result<(), EngineError> {
        self.writable()?;
        let hierarchy = self.pool.hierarchy();
        let spec = ListSpec {
            depth: None,
            kinds: Kinds::DATASET,
        };
        let found = hierarchy.list(name, spec).await?;
        if found.len() > 1 && !options.recursive {
            let children = found.into_iter().skip(1).map(|info| info.name).collect();
            return Err(EngineError::HasChildren { children });
        }
        // Children come after their parents in the list, so they go first.
        for info in found.into_iter().rev() {
            let destroy = async { Ok(hierarchy.destroy(&info.name).await?) };
            self.without(info.object.0, destroy).await?;
            self.pool.dataset_destroyed(info.object.0);
        }
        Ok(())
    }

    pub(crate) async fn rename_dataset(
        &self,
        from: &str,
        to: &str,
        create_parents: bool,
        creator: u32,
    ) -> Result<(), EngineError> {
        self.writable()?;
        let hierarchy = self.pool.hierarchy();
        if create_parents {
            self.create_parents(to, creator).await?;
        }
        hierarchy.rename(from, to, false).await?;
        self.reload_properties().await
    }

    /// Makes the parents of a name that do not exist.
    pub(crate) async fn create_parents(&self, name: &str, creator: u32) -> Result<(), EngineError> {
        let hierarchy = self.pool.hierarchy();
        let Some((parent, _)) = name.rsplit_once('/') else {
            return Ok(());
        };
        match hierarchy.info(parent).await {
            Err(error) if error.is_not_found() => {}
            _ => return Ok(()),
        }
        let request = CreateDataset {
            name: parent.to_owned(),
            parents: true,
            ..CreateDataset::default()
        };
        self.create_dataset(request, creator).await
    }

    pub(crate) async fn set_dataset_properties(
        &self,
        dataset: &str,
        typed: &[(String, String)],
    ) -> Result<(), EngineError> {
        self.writable()?;
        let info = self.pool.hierarchy().info(dataset).await?;
        let settings = self.settings(typed, info.kind, false)?;
        let (quotas, mut settings) = split_quotas(settings)?;
        let resize = if info.kind == DatasetKind::Volume {
            self.volume_settings(dataset, &mut settings).await?
        } else {
            None
        };
        // A smaller volume gives its reservation back once it is smaller.
        if let Some(resize) = resize.filter(|resize| resize.size < resize.old) {
            self.resize_volume(&info, resize.size).await?;
        }
        if !settings.is_empty() {
            let is_version = |s: &Setting| matches!(s, Setting::Native(Property::Version, _));
            let sets_version = settings.iter().any(is_version);
            self.pool
                .hierarchy()
                .set_properties(dataset, settings)
                .await?;
            // At once: what follows may fail, and these are in force.
            self.reload_properties().await?;
            if sets_version {
                // OpenZFS: module/zfs/zfs_ioctl.c, zfs_prop_set_special (ZFS_PROP_VERSION)
                let opened = self.pool.hierarchy().dataset(dataset).await?;
                opened.complete_counts(|| false).await?;
            }
        }
        if let Some(resize) = resize.filter(|resize| resize.size >= resize.old) {
            self.resize_volume(&info, resize.size).await?;
        }
        self.set_user_quotas(dataset, quotas).await
    }

    /// Sets quotas of users, groups and projects, which a file system keeps itself.
    async fn set_user_quotas(
        &self,
        dataset: &str,
        quotas: Vec<(&'static str, u64, u64)>,
    ) -> Result<(), EngineError> {
        if quotas.is_empty() {
            return Ok(());
        }
        let opened = self.pool.hierarchy().dataset(dataset).await?;
        for (name, id, limit) in quotas {
            opened.set_user_quota(name, id, limit).await?;
        }
        Ok(())
    }

    pub(crate) async fn inherit(
        &self,
        dataset: &str,
        property: &str,
        received: bool,
    ) -> Result<(), EngineError> {
        self.writable()?;
        self.pool
            .hierarchy()
            .inherit_property(dataset, property, received)
            .await?;
        self.reload_properties().await
    }

    /// Finds and opens a dataset by its object number.
    pub(crate) async fn open_dataset(
        &self,
        object: u64,
        guid: u64,
    ) -> Result<dsl::Dataset, EngineError> {
        let gone = || EngineError::DatasetNotFound(object.to_string());
        let hierarchy = self.pool.hierarchy();
        let opened = match hierarchy.dataset_by_object(ObjectId(object)).await {
            Err(error) if error.is_not_found() => return Err(gone()),
            other => other?,
        };
        // Numbers are used again, guids are not.
        if opened.guid().0 != guid {
            return Err(gone());
        }
        Ok(opened)
    }
}

/// Mount points lie below the alternate root.
fn under_altroot(properties: &mut [DatasetProperty], altroot: &str) {
    let altroot = altroot.trim_end_matches('/');
    for property in properties {
        if property.native == Some(Property::MountPoint)
            && let Value::Text(path) = &mut property.value
            && path.starts_with('/')
        {
            let below = if path == "/" && !altroot.is_empty() {
                ""
            } else {
                path.as_str()
            };
            *path = format!("{altroot}{below}");
        }
    }
}

/// Quotas of users, groups and projects: the property, whose it is, the limit.
type Quotas = Vec<(&'static str, u64, u64)>;

/// Takes the quotas out of settings.
fn split_quotas(settings: Vec<Setting>) -> Result<(Quotas, Vec<Setting>), EngineError> {
    let mut quotas = Vec::new();
    let mut others = Vec::new();
    for setting in settings {
        match setting {
            Setting::UserQuota(name, who, limit) => {
                // The caller has turned names into numbers: it knows the machine's users.
                let id = who
                    .parse::<u64>()
                    .map_err(|_| property::PropertyError::UserName(format!("{name}{who}")))?;
                quotas.push((name, id, limit));
            }
            other => others.push(other),
        }
    }
    Ok((quotas, others))
}

/// Checks properties as typed.
pub(crate) fn parse_settings(
    typed: &[(String, String)],
    context: SetContext,
) -> Result<Vec<Setting>, EngineError> {
    let mut settings = Vec::new();
    for (name, value) in typed {
        settings.push(property::parse_setting(name, value, context)?);
    }
    if context.creating {
        property::complete_settings(&mut settings)?;
    }
    Ok(settings)
}

/// Returns what fills a new file system: its master node and root directory.
pub(crate) fn fill_root(
    handle: runtime::Handle,
    project_quota: bool,
) -> impl AsyncFnOnce(&dmu::Objset, &dmu::Tx, &[Setting]) -> dsl::Result<()> + 'static {
    async move |objset: &dmu::Objset, tx: &dmu::Tx, settings: &[Setting]| {
        let number = |wanted: Property| {
            settings.iter().find_map(|setting| match setting {
                Setting::Native(property, Value::Number(number)) if *property == wanted => {
                    Some(*number)
                }
                _ => None,
            })
        };
        let props = zpl::RootProps {
            version: number(Property::Version).unwrap_or(ondisk::znode::ZPL_VERSION),
            case: match number(Property::CaseSensitivity) {
                Some(1) => zpl::CaseSensitivity::Insensitive,
                Some(2) => zpl::CaseSensitivity::Mixed,
                _ => zpl::CaseSensitivity::Sensitive,
            },
            normalization: number(Property::Normalization).unwrap_or(0),
            utf8_only: number(Property::Utf8Only) == Some(1),
            project_quota,
            now: handle.wall_clock(),
            ..zpl::RootProps::default()
        };
        zpl::create_root(objset, tx, &props)
            .await
            .map_err(|error| dsl::DslError::Init(error.to_string()))
    }
}
