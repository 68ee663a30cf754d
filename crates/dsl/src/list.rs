//! Listing of datasets with their space and properties (`zfs list`, `zfs get`).

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use dmu::Objset;
use dmu::zap::{self, ZapValue};
use ondisk::bookmark::BookmarkPhys;
use ondisk::dsl::{DslDatasetPhys, dataset_flags, zapified_keys};
use ondisk::{BlockPointer, Guid, ObjectId, ObjsetPhys, Txg};
use zio::{Bookmark, IoClass, ReadProps};

use crate::deadlist::Deadlist;
use crate::dsl_dir::{DslDir, available};
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::namecheck::split;
use crate::property::{DatasetKind, Kinds, PROPERTIES, Property, Source, Value, split_user_space};
use crate::property_zap::{EffectiveValue, PropertyScope};
use crate::space::{available_to_dataset, ratio};
use crate::types::{DatasetInfo, DatasetProperties, ListSpec, PropertyEntry, SpaceInfo};

/// The master node of a file system; of a volume, the data and the properties.
const MASTER_NODE: ObjectId = ObjectId(1);
const VOLUME_DATA: ObjectId = ObjectId(1);
const VOLUME_PROPERTIES: ObjectId = ObjectId(2);

/// The properties a caller asks for; others are not computed.
#[derive(Clone, Debug)]
pub(crate) struct PropertySelection {
    natives: BTreeSet<Property>,
    /// Names that are no native property's; `None` is all user properties.
    others: Option<Vec<String>>,
}

impl PropertySelection {
    pub(crate) fn all() -> Self {
        let visible = PROPERTIES.iter().filter(|d| d.visible);
        Self {
            natives: visible.map(|d| d.property).collect(),
            others: None,
        }
    }

    pub(crate) fn these(names: &[String]) -> Self {
        let mut natives = BTreeSet::new();
        let mut others = Vec::new();
        for name in names {
            match Property::from_name(name) {
                Some(property) => drop(natives.insert(property)),
                None => others.push(name.clone()),
            }
        }
        Self {
            natives,
            others: Some(others),
        }
    }

    fn native(&self, property: Property) -> bool {
        self.natives.contains(&property)
    }

    /// The user properties wanted, of those in force.
    fn user(&self, scope: &PropertyScope) -> Vec<String> {
        match &self.others {
            None => scope.user_properties(),
            Some(names) => names.iter().filter(|n| n.contains(':')).cloned().collect(),
        }
    }

    /// Names of computed properties: `written@SNAPSHOT` and `written#BOOKMARK`.
    fn computed(&self) -> Vec<&String> {
        let since = |name: &&String| name.starts_with("written@") || name.starts_with("written#");
        self.others.iter().flatten().filter(since).collect()
    }

    /// Names of the space and quotas of users, groups and projects.
    fn of_users(&self) -> Vec<&String> {
        let all = self.others.iter().flatten();
        all.filter(|name| split_user_space(name).is_some())
            .collect()
    }
}

/// Properties kept in a dataset's own objects, which must be read to know them.
const IN_OBJECTS: [Property; 6] = [
    Property::VolSize,
    Property::VolBlockSize,
    Property::Version,
    Property::Utf8Only,
    Property::Normalization,
    Property::CaseSensitivity,
];

/// A dataset found by a listing, with what its properties are computed from.
pub(crate) struct ListedDataset {
    pub(crate) info: DatasetInfo,
    dir: Rc<DslDir>,
    /// The properties of a snapshot, or the redaction list of a bookmark; 0 if it has none.
    props: u64,
}

impl DslPool {
    /// The children of a directory that are listed: not what a receive fills.
    async fn children_shown(self: &Rc<Self>, dir: &Rc<DslDir>) -> Result<Vec<Rc<DslDir>>> {
        let mut children = self.children(dir).await?;
        children.retain(|child| !child.name.borrow().starts_with('%'));
        Ok(children)
    }

    /// Names of the heads that receives left which did not end, and which cannot go on: nothing refers to them.
    // OpenZFS: module/zfs/dsl_destroy.c, dsl_destroy_inconsistent
    pub(crate) async fn left_receives(self: &Rc<Self>) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for dir in self.all_dirs().await? {
            let head = ObjectId(dir.phys().head_dataset_obj);
            let phys = self.dataset_phys(head).await?;
            if phys.flags & dataset_flags::INCONSISTENT == 0 {
                continue;
            }
            let snapshots = zap::count(&self.mos, ObjectId(phys.snapnames_zapobj)).await?;
            if snapshots == 0 && self.resume_token(&dir).await?.is_none() {
                names.push(self.name_of(&dir));
            }
        }
        Ok(names)
    }

    /// The children of a directory, but for those of the pool itself.
    pub(crate) async fn children(self: &Rc<Self>, dir: &Rc<DslDir>) -> Result<Vec<Rc<DslDir>>> {
        let map = ObjectId(dir.phys().child_dir_zapobj);
        let mut children = Vec::new();
        for entry in zap::entries(&self.mos, map).await? {
            let (Ok(name), ZapValue::U64(value)) = (String::from_utf8(entry.name), entry.value)
            else {
                return Err(DslError::corrupt("child map", map));
            };
            let object = ObjectId(value.first().copied().unwrap_or(0));
            if !name.starts_with('$') {
                children.push(self.child_by_object(dir, &name, object).await?);
            }
        }
        Ok(children)
    }

    /// All directories below one, without it.
    pub(crate) async fn dirs_below(self: &Rc<Self>, dir: &Rc<DslDir>) -> Result<Vec<Rc<DslDir>>> {
        let mut all = self.children(dir).await?;
        let mut next = 0;
        while let Some(dir) = all.get(next).cloned() {
            all.extend(self.children(&dir).await?);
            next += 1;
        }
        Ok(all)
    }

    pub(crate) async fn list(
        self: &Rc<Self>,
        name: &str,
        spec: ListSpec,
        selection: &PropertySelection,
    ) -> Result<Vec<ListedDataset>> {
        let parts = split(name);
        if parts.snapshot.is_some() || parts.bookmark.is_some() {
            return Ok(vec![self.listed(name, selection).await?]);
        }
        let missing = || DslError::NotFound { name: name.into() };
        let start = self.find_dir(parts.head).await?.ok_or_else(missing)?;
        // By dataset, so that sorting need not compare whole names of all snapshots.
        let mut datasets: Vec<(String, Vec<ListedDataset>)> = Vec::new();
        let mut work = vec![(start, 0)];
        while let Some((dir, depth)) = work.pop() {
            let below = spec.depth.is_none_or(|max| depth < max);
            let kind = self.kind_of(&dir).await?;
            let mut found = Vec::new();
            if spec.kinds.contains(kind) {
                found.push(self.head_info(&dir, selection).await?);
            }
            if below && spec.kinds.contains(DatasetKind::Snapshot) {
                self.list_snapshots(&dir, selection, &mut found).await?;
            }
            if below && spec.kinds.contains(DatasetKind::Bookmark) {
                self.list_bookmarks(&dir, &mut found).await?;
            }
            found.sort_by(|a, b| order(&a.info, &b.info));
            if !found.is_empty() {
                datasets.push((self.name_of(&dir), found));
            }
            if below {
                for child in self.children_shown(&dir).await? {
                    work.push((child, depth + 1));
                }
            }
        }
        datasets.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(datasets.into_iter().flat_map(|(_, found)| found).collect())
    }

    /// Names of the heads of a subtree.
    pub(crate) async fn names(self: &Rc<Self>, name: &str, spec: ListSpec) -> Result<Vec<String>> {
        let missing = || DslError::NotFound { name: name.into() };
        let start = self.find_dir(name).await?.ok_or_else(missing)?;
        let mut names = Vec::new();
        let mut work = vec![(start, 0)];
        while let Some((dir, depth)) = work.pop() {
            if spec.kinds.contains(self.kind_of(&dir).await?) {
                names.push(self.name_of(&dir));
            }
            if spec.depth.is_none_or(|max| depth < max) {
                for child in self.children_shown(&dir).await? {
                    work.push((child, depth + 1));
                }
            }
        }
        Ok(names)
    }

    async fn list_snapshots(
        self: &Rc<Self>,
        dir: &Rc<DslDir>,
        selection: &PropertySelection,
        found: &mut Vec<ListedDataset>,
    ) -> Result<()> {
        let full = self.name_of(dir);
        let head = self
            .dataset_phys(ObjectId(dir.phys().head_dataset_obj))
            .await?;
        let map = ObjectId(head.snapnames_zapobj);
        let mut cookie = 0;
        loop {
            let entries = zap::cursor(&self.mos, map, cookie, 512).await?;
            let Some(last) = entries.last() else {
                return Ok(());
            };
            cookie = last.next_cookie;
            for entry in entries {
                let (Ok(name), ZapValue::U64(value)) = (String::from_utf8(entry.name), entry.value)
                else {
                    return Err(DslError::corrupt("snapshot names", map));
                };
                let object = ObjectId(value.first().copied().unwrap_or(0));
                let name = format!("{full}@{name}");
                found.push(self.snapshot_info(dir, name, object, selection).await?);
            }
            // Long lists yield to other tasks.
            self.services.handle.yield_now().await;
        }
    }

    async fn list_bookmarks(
        self: &Rc<Self>,
        dir: &Rc<DslDir>,
        found: &mut Vec<ListedDataset>,
    ) -> Result<()> {
        let head = ObjectId(dir.phys().head_dataset_obj);
        let Some(map) = self.bookmarks_of(head).await? else {
            return Ok(());
        };
        for entry in zap::entries(&self.mos, map).await? {
            let (Ok(name), ZapValue::U64(words)) = (String::from_utf8(entry.name), entry.value)
            else {
                return Err(DslError::corrupt("bookmarks", map));
            };
            let info = self.bookmark_info(dir, &name, &words).await?;
            found.push(ListedDataset {
                info,
                dir: dir.clone(),
                props: BookmarkPhys::decode(&words).redaction_obj,
            });
        }
        Ok(())
    }

    pub(crate) async fn info(self: &Rc<Self>, name: &str) -> Result<DatasetInfo> {
        Ok(self.listed(name, &PropertySelection::all()).await?.info)
    }

    async fn listed(
        self: &Rc<Self>,
        name: &str,
        selection: &PropertySelection,
    ) -> Result<ListedDataset> {
        let parts = split(name);
        if let Some(bookmark) = parts.bookmark {
            let missing = || DslError::NotFound { name: name.into() };
            let dir = self.find_dir(parts.head).await?.ok_or_else(missing)?;
            let head = ObjectId(dir.phys().head_dataset_obj);
            let map = self.bookmarks_of(head).await?.ok_or_else(missing)?;
            let words = match zap::lookup(&self.mos, map, bookmark).await? {
                Some(ZapValue::U64(words)) => words,
                Some(_) => return Err(DslError::corrupt("bookmarks", map)),
                None => return Err(missing()),
            };
            return Ok(ListedDataset {
                info: self.bookmark_info(&dir, bookmark, &words).await?,
                dir,
                props: BookmarkPhys::decode(&words).redaction_obj,
            });
        }
        let found = self.find(name).await?;
        match found.snapshot {
            Some(snapshot) => {
                let full = format!("{}@{snapshot}", self.name_of(&found.dir));
                self.snapshot_info(&found.dir, full, found.dataset, selection)
                    .await
            }
            None => self.head_info(&found.dir, selection).await,
        }
    }

    pub(crate) async fn head_info(
        self: &Rc<Self>,
        dir: &Rc<DslDir>,
        selection: &PropertySelection,
    ) -> Result<ListedDataset> {
        let object = ObjectId(dir.phys().head_dataset_obj);
        let phys = self.dataset_phys(object).await?;
        let kind = self.kind_of(dir).await?;
        let props = self.props_of(dir).await?;
        let stored = |p: Property| props.get(p.name()).and_then(Value::number).unwrap_or(0);
        let room = available(dir, self.pool_size(0), false);
        let mut space = self.head_space(dir, &phys);
        space.available = available_to_dataset(
            room,
            phys.unique_bytes,
            phys.referenced_bytes,
            stored(Property::RefReservation),
            stored(Property::RefQuota),
        );
        if selection.native(Property::Written) {
            space.written = self.written(&phys).await?;
        }
        let origin = ObjectId(dir.phys().origin_obj);
        let origin = if origin.0 == 0 || self.is_origin_snap(origin) {
            None
        } else {
            Some(self.snapshot_name(origin).await?)
        };
        let info = DatasetInfo {
            origin,
            ..self.base_info(self.name_of(dir), kind, kind, object, &phys, space)
        };
        Ok(ListedDataset {
            info,
            dir: dir.clone(),
            props: 0,
        })
    }

    async fn snapshot_info(
        self: &Rc<Self>,
        dir: &Rc<DslDir>,
        full: String,
        object: ObjectId,
        selection: &PropertySelection,
    ) -> Result<ListedDataset> {
        let phys = self.dataset_phys(object).await?;
        let head_kind = self.kind_of(dir).await?;
        let compress_ratio = ratio(phys.uncompressed_bytes, phys.compressed_bytes);
        let space = SpaceInfo {
            used: phys.unique_bytes,
            referenced: phys.referenced_bytes,
            logical_referenced: phys.uncompressed_bytes,
            written: if selection.native(Property::Written) {
                self.written(&phys).await?
            } else {
                0
            },
            compress_ratio,
            ref_compress_ratio: compress_ratio,
            unique: phys.unique_bytes,
            ..SpaceInfo::default()
        };
        let mut clones = Vec::new();
        let asked = selection.native(Property::Clones);
        if asked && phys.num_children > 1 && phys.next_clones_obj != 0 {
            for entry in zap::entries(&self.mos, ObjectId(phys.next_clones_obj)).await? {
                if let ZapValue::U64(value) = entry.value {
                    let clone = ObjectId(value.first().copied().unwrap_or(0));
                    let dir = ObjectId(self.dataset_phys(clone).await?.dir_obj);
                    clones.push(self.name_of(&self.dir(dir).await?));
                }
            }
        }
        let user_refs = match phys.userrefs_obj {
            0 => 0,
            map => zap::count(&self.mos, ObjectId(map)).await?,
        };
        let info = DatasetInfo {
            clones,
            user_refs,
            defer_destroy: phys.flags & dataset_flags::DEFER_DESTROY != 0,
            ..self.base_info(full, DatasetKind::Snapshot, head_kind, object, &phys, space)
        };
        Ok(ListedDataset {
            info,
            dir: dir.clone(),
            props: phys.props_obj,
        })
    }

    fn base_info(
        &self,
        name: String,
        kind: DatasetKind,
        head_kind: DatasetKind,
        object: ObjectId,
        phys: &DslDatasetPhys,
        space: SpaceInfo,
    ) -> DatasetInfo {
        DatasetInfo {
            name,
            kind,
            head_kind,
            guid: Guid(phys.guid),
            object,
            create_txg: Txg(phys.creation_txg),
            creation: phys.creation_time,
            space,
            space_known: true,
            origin: None,
            clones: Vec::new(),
            user_refs: 0,
            defer_destroy: false,
            inconsistent: phys.flags & dataset_flags::INCONSISTENT != 0,
        }
    }

    async fn bookmark_info(
        self: &Rc<Self>,
        dir: &Rc<DslDir>,
        name: &str,
        words: &[u64],
    ) -> Result<DatasetInfo> {
        let bookmark = BookmarkPhys::decode(words);
        let phys = DslDatasetPhys {
            guid: bookmark.guid,
            creation_txg: bookmark.creation_txg,
            creation_time: bookmark.creation_time,
            ..DslDatasetPhys::default()
        };
        let [referenced, compressed, logical_referenced] = bookmark.referenced;
        let space = SpaceInfo {
            referenced,
            logical_referenced,
            ref_compress_ratio: ratio(logical_referenced, compressed),
            ..SpaceInfo::default()
        };
        let head_kind = self.kind_of(dir).await?;
        let full = format!("{}#{name}", self.name_of(dir));
        Ok(DatasetInfo {
            space_known: bookmark.has_space(),
            ..self.base_info(
                full,
                DatasetKind::Bookmark,
                head_kind,
                ObjectId(0),
                &phys,
                space,
            )
        })
    }

    /// Bytes referenced now that were not when the previous snapshot was taken.
    async fn written(&self, phys: &DslDatasetPhys) -> Result<u64> {
        if phys.prev_snap_obj == 0 {
            return Ok(phys.referenced_bytes);
        }
        let prev = self.dataset_phys(ObjectId(phys.prev_snap_obj)).await?;
        let dead = Deadlist::totals_of(&self.mos, ObjectId(phys.deadlist_obj)).await?;
        let kept = prev.referenced_bytes.saturating_sub(dead.used);
        Ok(phys.referenced_bytes.saturating_sub(kept))
    }

    /// Names of heads whose intent log is not empty.
    pub(crate) async fn unreplayed_logs(self: &Rc<Self>) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for dir in self.all_dirs().await? {
            if self.has_log_on_disk(&dir).await? {
                names.push(self.name_of(&dir));
            }
        }
        names.sort();
        Ok(names)
    }

    /// Names of the datasets whose intent log may have blocks on a top-level vdev.
    pub(crate) async fn logs_on(self: &Rc<Self>, vdev: u32) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for dir in self.all_dirs().await? {
            let head = ObjectId(dir.phys().head_dataset_obj);
            let open = self.loaded.dataset(head);
            let may_be = match open.and_then(|state| state.log()) {
                Some(log) => log.may_be_on(vdev),
                None => self.has_log_on_disk(&dir).await?,
            };
            if may_be {
                names.push(self.name_of(&dir));
            }
        }
        Ok(names)
    }

    /// The pool's root and everything below it, in no order.
    pub(crate) async fn all_dirs(self: &Rc<Self>) -> Result<Vec<Rc<DslDir>>> {
        let root = self.dir(self.root_dir()).await?;
        let mut dirs = self.dirs_below(&root).await?;
        dirs.push(root);
        Ok(dirs)
    }

    /// Whether the intent log header of a dataset, as it is on disk, tells of a log.
    async fn has_log_on_disk(&self, dir: &DslDir) -> Result<bool> {
        let head = ObjectId(dir.phys().head_dataset_obj);
        let phys = self.dataset_phys(head).await?;
        Ok(zil::has_log(&self.zil_header_of(head, &phys.bp).await?))
    }

    /// The intent log header of a dataset that is not open.
    pub(crate) async fn zil_header_of(
        &self,
        object: ObjectId,
        bp: &BlockPointer,
    ) -> Result<ondisk::zil::ZilHeader> {
        if bp.is_hole() {
            return Ok(ondisk::zil::ZilHeader::default());
        }
        Ok(self.objset_phys_of(object, bp).await?.zil_header)
    }

    /// The root block of a dataset's objects.
    pub(crate) async fn objset_phys_of(
        &self,
        object: ObjectId,
        bp: &BlockPointer,
    ) -> Result<ObjsetPhys> {
        let bookmark = Bookmark {
            objset: object.0,
            object: 0,
            level: -1,
            block: 0,
        };
        let props = ReadProps {
            class: IoClass::SyncRead,
            bookmark,
        };
        let bytes = self.services.cache().read(bp, props).await?;
        ObjsetPhys::decode(&bytes).map_err(|source| DslError::Decode {
            what: "object set",
            object,
            source,
        })
    }

    /// Opens a dataset's objects for reading, or returns those that are open.
    pub(crate) async fn objset_for_reading(self: &Rc<Self>, object: ObjectId) -> Result<Objset> {
        let open = self.loaded.dataset(object).and_then(|s| s.objset());
        match open {
            Some(objset) => Ok(objset),
            None => {
                let phys = self.dataset_phys(object).await?;
                let keys = if phys.bp.uses_crypt() {
                    let dir = self.dir(ObjectId(phys.dir_obj)).await?;
                    self.keys_if_loaded(&dir).await?
                } else {
                    None
                };
                self.open_stored(object, phys.bp, keys.as_ref()).await
            }
        }
    }

    /// What a file system had fixed at its creation.
    pub(crate) async fn fixed_properties(
        self: &Rc<Self>,
        dir: &Rc<DslDir>,
    ) -> Result<BTreeMap<Property, u64>> {
        let head = ObjectId(dir.phys().head_dataset_obj);
        let objset = self.objset_for_reading(head).await?;
        if is_closed(&objset) {
            // What it hands down is encrypted like its files.
            return Err(DslError::NoKey);
        }
        self.master_node(&objset).await
    }

    async fn master_node(&self, objset: &Objset) -> Result<BTreeMap<Property, u64>> {
        let mut values = BTreeMap::new();
        for (property, key, default) in [
            (Property::Version, "VERSION", 5),
            (Property::Utf8Only, "utf8only", 0),
            (Property::Normalization, "normalization", 0),
            (Property::CaseSensitivity, "casesensitivity", 0),
        ] {
            let value = match zap::lookup_u64(objset, MASTER_NODE, key).await {
                // Objects that are no file system's: nothing was fixed.
                Err(error) if error.is_not_found() => None,
                other => other?,
            };
            values.insert(property, value.unwrap_or(default));
        }
        Ok(values)
    }

    async fn volume_properties(&self, objset: &Objset) -> Result<BTreeMap<Property, u64>> {
        let size = zap::lookup_u64(objset, VOLUME_PROPERTIES, "size")
            .await?
            .unwrap_or(0);
        let block = objset.object_info(VOLUME_DATA).await?.block_size;
        Ok(BTreeMap::from([
            (Property::VolSize, size),
            (Property::VolBlockSize, u64::from(block)),
        ]))
    }

    /// The properties wanted of one dataset.
    pub(crate) async fn properties(
        self: &Rc<Self>,
        name: &str,
        selection: &PropertySelection,
    ) -> Result<DatasetProperties> {
        let listed = self.listed(name, selection).await?;
        self.properties_of(listed, selection, &mut None).await
    }

    /// The properties wanted of a dataset that was found. Snapshots without properties of their own
    /// share what is inherited, which is kept in `last`.
    pub(crate) async fn properties_of(
        self: &Rc<Self>,
        listed: ListedDataset,
        selection: &PropertySelection,
        last: &mut Option<(ObjectId, Rc<PropertyScope>)>,
    ) -> Result<DatasetProperties> {
        let ListedDataset { info, dir, props } = listed;
        if info.kind == DatasetKind::Bookmark {
            let mut properties = bookmark_properties(&info);
            if props != 0 {
                let list = self.list_header(ObjectId(props)).await?;
                properties.push(PropertyEntry {
                    name: Property::RedactSnaps.name().into(),
                    property: Some(Property::RedactSnaps),
                    value: Value::Text(guids_text(&list.snapshots)),
                    source: Source::None,
                    received: None,
                });
            }
            return Ok(DatasetProperties {
                properties,
                info,
                set_aside: Vec::new(),
            });
        }
        let own = (info.kind == DatasetKind::Snapshot).then_some(ObjectId(props));
        let scope = match last {
            Some((of, scope)) if *of == dir.object && props == 0 && own.is_some() => scope.clone(),
            _ => Rc::new(self.scope(&dir, own).await?),
        };
        if props == 0 && own.is_some() {
            *last = Some((dir.object, scope.clone()));
        }
        let fixed = if IN_OBJECTS.iter().any(|p| selection.native(*p)) {
            let objset = self.objset_for_reading(info.object).await?;
            match info.head_kind {
                DatasetKind::Volume => self.volume_properties(&objset).await?,
                // What a file system had fixed is encrypted like its files, and not there yet when a stream came in part.
                _ if is_closed(&objset) || info.inconsistent => BTreeMap::new(),
                _ => self.master_node(&objset).await?,
            }
        } else {
            BTreeMap::new()
        };
        let mut properties = Vec::new();
        for property in selection.natives.iter().copied() {
            let descriptor = property.descriptor();
            let only_snapshots = descriptor.kinds == Kinds::SNAPSHOT;
            let applies = property.applies_to(info.kind)
                && (info.kind != DatasetKind::Snapshot
                    || only_snapshots
                    || property.applies_to(info.head_kind));
            if !applies {
                continue;
            }
            let Some(lookup) = self.property(property, &info, &dir, &scope, &fixed).await? else {
                continue;
            };
            properties.push(PropertyEntry {
                name: descriptor.name.into(),
                property: Some(property),
                value: lookup.value,
                source: lookup.source,
                received: scope.received(descriptor.name),
            });
        }
        let mut set_aside = Vec::new();
        for name in selection.user(&scope) {
            let received = scope.received(&name);
            match (scope.lookup(&name, true), received) {
                (Some(lookup), received) => properties.push(PropertyEntry {
                    name,
                    property: None,
                    value: lookup.value,
                    source: lookup.source,
                    received,
                }),
                (None, Some(value)) if selection.others.is_some() => set_aside.push((name, value)),
                (None, _) => {}
            }
        }
        let of_users = selection.of_users();
        if !of_users.is_empty() && info.head_kind == DatasetKind::Filesystem {
            let objset = self.objset_for_reading(info.object).await?;
            let readable = !is_closed(&objset);
            for name in of_users.into_iter().filter(|_| readable) {
                if let Some(number) = self.user_property(&objset, name).await? {
                    properties.push(PropertyEntry {
                        name: name.clone(),
                        property: None,
                        value: Value::Number(number),
                        source: Source::Local,
                        received: None,
                    });
                }
            }
        }
        for name in selection.computed() {
            let since = &name["written".len()..];
            let head = split(&info.name).head;
            // A short name is of the same dataset.
            let since = if since[1..].contains(['@', '#']) {
                since[1..].to_owned()
            } else {
                format!("{head}{since}")
            };
            match self.written_since(&info.name, &since).await {
                Ok(bytes) => properties.push(PropertyEntry {
                    name: name.clone(),
                    property: None,
                    value: Value::Number(bytes),
                    source: Source::None,
                    received: None,
                }),
                Err(DslError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(DatasetProperties {
            info,
            properties,
            set_aside,
        })
    }

    async fn property(
        self: &Rc<Self>,
        property: Property,
        info: &DatasetInfo,
        dir: &Rc<DslDir>,
        scope: &PropertyScope,
        fixed: &BTreeMap<Property, u64>,
    ) -> Result<Option<EffectiveValue>> {
        let d = dir.phys();
        let space = &info.space;
        let number = |n: u64| {
            Some(EffectiveValue {
                value: Value::Number(n),
                source: Source::None,
            })
        };
        let text = |t: String| {
            Some(EffectiveValue {
                value: Value::Text(t),
                source: Source::None,
            })
        };
        // Zero (or no limit) is shown as the default.
        let or_default = |n: u64, unset: u64| {
            let source = if n == unset {
                Source::Default
            } else {
                Source::Local
            };
            Some(EffectiveValue {
                value: Value::Number(n),
                source,
            })
        };
        Ok(match property {
            Property::Type => text(info.kind.to_string()),
            Property::Creation => number(info.creation),
            Property::Used => number(space.used),
            Property::Available => number(space.available),
            Property::Referenced => number(space.referenced),
            Property::CompressRatio => number(space.compress_ratio),
            Property::RefCompressRatio => number(space.ref_compress_ratio),
            Property::Mounted => number(0),
            Property::Origin => info.origin.clone().and_then(text),
            Property::Clones if info.clones.is_empty() => None,
            Property::Clones => text(info.clones.join(",")),
            Property::Quota => or_default(d.quota, 0),
            Property::Reservation => or_default(d.reserved, 0),
            Property::RefQuota | Property::RefReservation => or_default(scope.number(property), 0),
            Property::FilesystemLimit | Property::SnapshotLimit => {
                or_default(scope.number(property), u64::MAX)
            }
            Property::FilesystemCount => {
                let count = self.dir_count(dir, zapified_keys::FILESYSTEM_COUNT).await?;
                or_default(count.unwrap_or(u64::MAX), u64::MAX)
            }
            Property::SnapshotCount => {
                let count = self.dir_count(dir, zapified_keys::SNAPSHOT_COUNT).await?;
                or_default(count.unwrap_or(u64::MAX), u64::MAX)
            }
            Property::VolSize => Some(EffectiveValue {
                value: Value::Number(fixed.get(&property).copied().unwrap_or(0)),
                source: Source::Local,
            }),
            Property::VolBlockSize => {
                let block = fixed.get(&property).copied().unwrap_or(0);
                let default = property.descriptor().default_number;
                let source = if block == default {
                    Source::Default
                } else {
                    Source::None
                };
                Some(EffectiveValue {
                    value: Value::Number(block),
                    source,
                })
            }
            Property::MountPoint => Some(self.mount_point(&info.name, scope)),
            Property::CreateTxg => number(info.create_txg.0),
            Property::Guid => number(info.guid.0),
            Property::ObjsetId => number(info.object.0),
            Property::Version
            | Property::Utf8Only
            | Property::Normalization
            | Property::CaseSensitivity => fixed.get(&property).copied().and_then(number),
            Property::UsedBySnapshots => number(space.used_by_snapshots),
            Property::UsedByDataset => number(space.used_by_dataset),
            Property::UsedByChildren => number(space.used_by_children),
            Property::UsedByRefReservation => number(space.used_by_refreservation),
            Property::DeferDestroy => number(u64::from(info.defer_destroy)),
            Property::UserRefs => number(info.user_refs),
            Property::Written => number(space.written),
            Property::LogicalUsed => number(space.logical_used),
            Property::LogicalReferenced => number(space.logical_referenced),
            Property::SnapshotsChanged => {
                let key = zapified_keys::SNAPSHOTS_CHANGED;
                self.dir_time(dir, key).await?.and_then(number)
            }
            Property::Unique => number(space.unique),
            Property::Inconsistent => number(u64::from(info.inconsistent)),
            Property::Name
            | Property::NumClones
            | Property::PrevSnap
            | Property::UserAccounting
            | Property::KeyGuid
            | Property::RemapTxg
            | Property::IvsetGuid => None,
            Property::Redacted => {
                let snapshots = self.stored_redaction(info.object).await?;
                number(u64::from(snapshots.is_some()))
            }
            Property::RedactSnaps => {
                let snapshots = self.stored_redaction(info.object).await?;
                snapshots.and_then(|guids| text(guids_text(&guids)))
            }
            Property::ReceiveResumeToken => self.resume_token(dir).await?.and_then(text),
            Property::EncryptionRoot | Property::KeyStatus => {
                self.encryption_property(property, dir).await?
            }
            Property::Encryption | Property::KeyFormat | Property::Pbkdf2Iters => {
                let encrypted = self.encryption_property(property, dir).await?;
                Some(encrypted.unwrap_or_else(|| scope.native(property)))
            }
            _ => Some(scope.native(property)),
        })
    }

    /// The seconds of a time stored in a zapified directory.
    pub(crate) async fn dir_time(&self, dir: &DslDir, key: &str) -> Result<Option<u64>> {
        let info = self.mos.object_info(dir.object).await?;
        if info.object_type != ondisk::ObjectType::ZAP_METADATA {
            return Ok(None);
        }
        Ok(match zap::lookup(&self.mos, dir.object, key).await? {
            Some(ZapValue::U64(words)) => words.first().copied().filter(|seconds| *seconds != 0),
            _ => None,
        })
    }

    /// Where a file system is to be mounted: an inherited path is continued by the names below.
    fn mount_point(&self, name: &str, scope: &PropertyScope) -> EffectiveValue {
        let EffectiveValue { value, source } = scope.native(Property::MountPoint);
        let path = value.text().unwrap_or("").to_owned();
        if !path.starts_with('/') {
            return EffectiveValue { value, source };
        }
        let below = match &source {
            Source::Inherited(from) => name.strip_prefix(from.as_str()).unwrap_or(""),
            Source::Default => name,
            _ => "",
        };
        let below = below.trim_start_matches('/');
        let root = self.altroot().unwrap_or_default();
        let root = if root == "/" { "" } else { root.as_str() };
        let mut path = path.as_str();
        if path == "/" && (!root.is_empty() || !below.is_empty()) {
            path = "";
        }
        let slash = if below.is_empty() { "" } else { "/" };
        EffectiveValue {
            value: Value::Text(format!("{root}{path}{slash}{below}")),
            source,
        }
    }
}

/// The order of `zfs list` within a dataset: itself before its snapshots, those by age, then bookmarks.
/// OpenZFS: cmd/zfs/zfs_iter.c, `zfs_compare`.
fn order(a: &DatasetInfo, b: &DatasetInfo) -> std::cmp::Ordering {
    let rank = |info: &DatasetInfo| match info.kind {
        DatasetKind::Snapshot => 1,
        DatasetKind::Bookmark => 2,
        _ => 0,
    };
    rank(a)
        .cmp(&rank(b))
        .then_with(|| a.create_txg.cmp(&b.create_txg))
        .then_with(|| a.name.cmp(&b.name))
}

/// Redaction snapshots as OpenZFS shows them.
// OpenZFS: lib/libzfs/libzfs_dataset.c, get_rsnaps_string
fn guids_text(guids: &[u64]) -> String {
    if guids.is_empty() {
        return "none".to_owned();
    }
    let guids = guids.iter().map(u64::to_string);
    guids.collect::<Vec<_>>().join(",")
}

fn bookmark_properties(info: &DatasetInfo) -> Vec<PropertyEntry> {
    let mut entries = Vec::new();
    let mut add = |property: Property, value: Value| {
        entries.push(PropertyEntry {
            name: property.name().into(),
            property: Some(property),
            value,
            source: Source::None,
            received: None,
        });
    };
    add(Property::Type, Value::Text(info.kind.to_string()));
    add(Property::Creation, Value::Number(info.creation));
    if info.space_known {
        add(Property::Referenced, Value::Number(info.space.referenced));
    }
    add(Property::CreateTxg, Value::Number(info.create_txg.0));
    add(Property::Guid, Value::Number(info.guid.0));
    if info.space_known {
        add(
            Property::LogicalReferenced,
            Value::Number(info.space.logical_referenced),
        );
    }
    entries
}

/// Whether the contents of file systems here are encrypted, and cannot be read.
fn is_closed(objset: &Objset) -> bool {
    objset.root().uses_crypt() && objset.services().keys().is_none()
}
