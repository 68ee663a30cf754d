//! Setting and clearing properties.

use std::rc::Rc;

use dmu::Tx;
use dmu::zap;
use ondisk::dsl::{dataset_flags, zapified_keys};
use ondisk::{Compression, ObjectId, Txg, pool_version};

use crate::change_log::Concerned;
use crate::dataset_state::DatasetState;
use crate::dsl_dir::{DslDir, available};
use crate::dsl_pool::{DslPool, Found};
use crate::error::{DslError, Result};
use crate::property::{DEDUP_VERIFY, DatasetKind, Property, PropertyError, Setting, Value};
use crate::property_zap::{self, PropertyWrite};
use crate::sync_task::SyncTask;

/// Sets properties of a dataset, or user properties of a snapshot.
pub(crate) struct SetProperties {
    pub(crate) name: String,
    pub(crate) settings: Vec<Setting>,
}

impl SyncTask for SetProperties {
    type Checked = Found;
    type Output = ();

    fn name(&self) -> &'static str {
        "set"
    }

    fn concerned(&self) -> Concerned {
        Concerned::subtree(&self.name)
    }

    async fn check(&self, pool: &Rc<DslPool>, _: Option<Txg>) -> Result<Found> {
        let found = pool.find(&self.name).await?;
        pool.check_settings(&found, &self.settings).await?;
        Ok(found)
    }

    async fn apply(self, pool: &Rc<DslPool>, found: Found, tx: &Tx) -> Result<()> {
        pool.apply_settings(&found, &self.settings, tx).await
    }
}

/// Clears a property, or with `received` goes back to its received value.
pub(crate) struct InheritProperty {
    pub(crate) name: String,
    pub(crate) property: String,
    pub(crate) received: bool,
}

impl SyncTask for InheritProperty {
    /// The limit that comes into force, for a property that is also stored outside of the ZAP.
    type Checked = (Found, Option<Setting>);
    type Output = ();

    fn name(&self) -> &'static str {
        "inherit"
    }

    fn concerned(&self) -> Concerned {
        Concerned::subtree(&self.name)
    }

    async fn check(&self, pool: &Rc<DslPool>, _: Option<Txg>) -> Result<Self::Checked> {
        let found = pool.find(&self.name).await?;
        pool.check_immutable_clear(&found, &self.property).await?;
        let limit = pool.received_limit(&found, &self.property).await?;
        if let Some(limit) = &limit {
            pool.check_settings(&found, std::slice::from_ref(limit))
                .await?;
        }
        Ok((found, limit))
    }

    async fn apply(self, pool: &Rc<DslPool>, checked: Self::Checked, tx: &Tx) -> Result<()> {
        let (found, limit) = checked;
        pool.clear_property(&found, &self.property, self.received, limit, tx)
            .await
    }
}

impl DslPool {
    /// Checks settings of a dataset against features and space.
    pub(crate) async fn check_settings(
        self: &Rc<Self>,
        found: &Found,
        settings: &[Setting],
    ) -> Result<()> {
        self.check_immutable_settings(found, settings).await?;
        for setting in settings {
            let Setting::Native(property, value) = setting else {
                self.check_other_setting(found, setting)?;
                continue;
            };
            if found.snapshot.is_some() {
                return Err(PropertyError::NotForSnapshots.into());
            }
            self.check_feature(*property, value)?;
            let number = value.number().unwrap_or(0);
            let dir = &found.dir;
            match property {
                Property::Quota => {
                    let d = dir.phys();
                    let used = d.used_bytes.saturating_add(dir.inflight());
                    if number != 0 && (number < d.reserved || number < used) {
                        return Err(DslError::QuotaBelowUsed);
                    }
                }
                Property::RefQuota => {
                    let state = self.load_dataset(found.dataset, None).await?;
                    let least = state.phys().referenced_bytes.max(state.ref_reserved.get());
                    if number != 0 && number < least {
                        return Err(DslError::QuotaBelowUsed);
                    }
                }
                Property::KeyLocation => self.check_key_location(dir, value).await?,
                Property::Reservation => self.check_reservation(dir, number)?,
                Property::RefReservation => {
                    let state = self.load_dataset(found.dataset, None).await?;
                    self.check_ref_reservation(&state, number)?;
                }
                Property::FilesystemLimit | Property::SnapshotLimit
                    if number != u64::MAX && !self.features.is_enabled("filesystem_limits") =>
                {
                    return Err(DslError::FeatureDisabled {
                        feature: "filesystem_limits",
                    });
                }
                // The size is stored in the volume's objset and changed there.
                Property::VolSize => {
                    return Err(DslError::Unsupported {
                        what: "a volume's size at this place",
                    });
                }
                Property::Version => self.check_file_system_upgrade(found, number).await?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks a setting that is no native property's.
    fn check_other_setting(&self, found: &Found, setting: &Setting) -> Result<()> {
        let has_properties = self.features.has_version(pool_version::SNAPSHOT_PROPERTIES);
        if found.snapshot.is_some() && !has_properties {
            return Err(DslError::PoolVersionTooOld {
                what: "set properties of snapshots",
            });
        }
        if matches!(setting, Setting::UserQuota(..)) {
            // Stored in the file system's objset: `Dataset::set_user_quota`.
            return Err(DslError::Unsupported {
                what: "a user quota at this place",
            });
        }
        Ok(())
    }

    /// Checks that the pool has the version and the feature a value needs.
    pub(crate) fn check_feature(&self, property: Property, value: &Value) -> Result<()> {
        if !self.features.has_version(version_needed(property, value)) {
            return Err(DslError::PoolVersionTooOld {
                what: "set this property or value",
            });
        }
        match feature_needed(property, value) {
            Some(feature) if !self.features.is_enabled(feature) => {
                Err(DslError::FeatureDisabled { feature })
            }
            _ => Ok(()),
        }
    }

    /// Checks a key location: encryption roots have one, and no other dataset.
    // OpenZFS: lib/libzfs/libzfs_dataset.c, zfs_valid_proplist; module/zfs/dsl_crypt.c, dsl_crypto_can_set_keylocation
    async fn check_key_location(&self, dir: &DslDir, value: &Value) -> Result<()> {
        let is_none = value.text() == Some("none");
        match (self.encryption_root_of(dir).await?, is_none) {
            (None, true) => Ok(()),
            (None, false) => Err(PropertyError::KeyLocationUnencrypted.into()),
            (Some(_), true) => Err(PropertyError::KeyLocationEncrypted.into()),
            (Some(root), false) if root != dir.object => {
                Err(PropertyError::KeyLocationInherited.into())
            }
            (Some(_), false) => Ok(()),
        }
    }

    fn check_reservation(&self, dir: &Rc<DslDir>, reserved: u64) -> Result<()> {
        let d = dir.phys();
        let room = match dir.parent() {
            Some(parent) => available(&parent, self.pool_size(0), true),
            None => self.pool_size(0).saturating_sub(d.used_bytes),
        };
        let before = d.used_bytes.max(d.reserved);
        let after = d.used_bytes.max(reserved);
        if after > before && (after - before > room || (d.quota > 0 && reserved > d.quota)) {
            return Err(DslError::ReservationAboveAvailable);
        }
        Ok(())
    }

    fn check_ref_reservation(&self, state: &DatasetState, reserved: u64) -> Result<()> {
        let unique = state.phys().unique_bytes;
        let before = unique.max(state.ref_reserved.get());
        let after = unique.max(reserved);
        if after > before {
            let room = available(&state.dir(), self.pool_size(0), false);
            let quota = state.ref_quota.get();
            if after - before > room || (quota > 0 && reserved > quota) {
                return Err(DslError::ReservationAboveAvailable);
            }
        }
        Ok(())
    }

    /// Stores settings. Syncing context; the checks were made.
    pub(crate) async fn apply_settings(
        self: &Rc<Self>,
        found: &Found,
        settings: &[Setting],
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "apply settings happens in syncing context");
        let map = match &found.snapshot {
            None => ObjectId(found.dir.phys().props_zapobj),
            Some(_) => self.snapshot_props(found.dataset, tx).await?,
        };
        for setting in settings {
            let (name, value) = match setting {
                Setting::Native(property, value) => (property.name(), value.clone()),
                Setting::User(name, text) => (name.as_str(), Value::Text(text.clone())),
                Setting::UserQuota(..) => continue,
            };
            if let Setting::Native(property, value) = setting {
                let number = value.number().unwrap_or(0);
                self.change_limit(found, *property, number).await?;
                match property {
                    Property::FilesystemLimit | Property::SnapshotLimit if number != u64::MAX => {
                        if !self.features.is_active("filesystem_limits") {
                            self.features.incr("filesystem_limits", tx).await?;
                        }
                        self.init_counts(&found.dir, tx).await?;
                    }
                    // The feature is in use from now on, whether or not a block is.
                    // OpenZFS: module/zfs/dsl_dataset.c, dsl_dataset_set_compression_sync
                    Property::Compression
                        if number & 0x7f == u64::from(Compression::ZSTD.0)
                            && found.snapshot.is_none() =>
                    {
                        let state = self.load_dataset(found.dataset, None).await?;
                        self.activate(&state, "zstd_compress", tx).await?;
                    }
                    // Kept in the file system.
                    Property::Version => {
                        self.upgrade_file_system(found, number, tx).await?;
                        continue;
                    }
                    // Fixed at creation, kept in the file system.
                    Property::Utf8Only
                    | Property::Normalization
                    | Property::CaseSensitivity
                    | Property::Encryption
                    | Property::KeyFormat
                    | Property::Pbkdf2Iters
                    // Kept in the volume.
                    | Property::VolSize
                    | Property::VolBlockSize => continue,
                    _ => {}
                }
            }
            property_zap::write(&self.mos, map, name, Some(&value), PropertyWrite::Local, tx)
                .await?;
            let text = format!("{name}={}", history_text(&value));
            let dataset = self.name_of_found(found);
            self.event("set", &dataset, found.dataset, text, tx);
        }
        match found.snapshot {
            None => self.refresh_properties(&found.dir).await,
            Some(_) => self.hold_immutable(found, tx).await,
        }
    }

    pub(crate) fn name_of_found(&self, found: &Found) -> String {
        let name = self.name_of(&found.dir);
        match &found.snapshot {
            Some(snapshot) => format!("{name}@{snapshot}"),
            None => name,
        }
    }

    /// The value of a limit that reverts to its received value, if the property is one that is also stored outside of the ZAP. OpenZFS: module/zfs/dsl_prop.c, `dsl_prop_predict`.
    pub(crate) async fn received_limit(
        &self,
        found: &Found,
        name: &str,
    ) -> Result<Option<Setting>> {
        let Some(property) = Property::from_name(name).filter(|property| {
            matches!(
                property,
                Property::Quota
                    | Property::RefQuota
                    | Property::Reservation
                    | Property::RefReservation
            )
        }) else {
            return Ok(None);
        };
        let scope = self.scope(&found.dir, None).await?;
        let value = scope.received(name).unwrap_or(Value::Number(0));
        Ok(Some(Setting::Native(property, value)))
    }

    /// Clears a property; a limit becomes `limit`, which was checked. Syncing context.
    pub(crate) async fn clear_property(
        self: &Rc<Self>,
        found: &Found,
        name: &str,
        received: bool,
        limit: Option<Setting>,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "clear property happens in syncing context");
        let map = match &found.snapshot {
            None => ObjectId(found.dir.phys().props_zapobj),
            Some(_) => ObjectId(self.dataset_phys(found.dataset).await?.props_obj),
        };
        if map.0 == 0 {
            return Ok(());
        }
        let how = if received {
            PropertyWrite::Received
        } else {
            let scope = self.scope(&found.dir, None).await?;
            let received = scope.lookup(property_zap::HAS_RECEIVED, true).is_some();
            PropertyWrite::Inherit { received }
        };
        if let Some(Setting::Native(property, value)) = limit {
            let number = value.number().unwrap_or(0);
            self.change_limit(found, property, number).await?;
        }
        property_zap::write(&self.mos, map, name, None, how, tx).await?;
        let own = found.snapshot.is_some().then_some(map);
        if found.snapshot.is_none() {
            self.refresh_properties(&found.dir).await?;
        }
        let scope = self.scope(&found.dir, own).await?;
        let value = match Property::from_name(name) {
            Some(native) => Some(scope.native(native).value),
            None => scope.lookup(name, true).map(|found| found.value),
        };
        let dataset = self.name_of_found(found);
        let text = format!(
            "{name}={}",
            value.as_ref().map(history_text).unwrap_or_default()
        );
        self.event("inherit", &dataset, found.dataset, text, tx);
        Ok(())
    }

    /// Changes a limit that is also stored outside of the ZAP. Does nothing for other properties.
    pub(crate) async fn change_limit(
        self: &Rc<Self>,
        found: &Found,
        property: Property,
        number: u64,
    ) -> Result<()> {
        match property {
            Property::Quota => found.dir.change(|d| d.quota = number),
            Property::Reservation => self.change_reservation(&found.dir, number),
            Property::RefReservation => {
                let state = self.load_dataset(found.dataset, None).await?;
                if state.phys().flags & dataset_flags::UNIQUE_ACCURATE == 0 {
                    self.count_unique(&state).await?;
                }
                self.change_ref_reservation(&state, number);
            }
            _ => {}
        }
        Ok(())
    }

    /// A snapshot's own property ZAP, created when there is none.
    pub(crate) async fn snapshot_props(
        self: &Rc<Self>,
        object: ObjectId,
        tx: &Tx,
    ) -> Result<ObjectId> {
        let state = self.load_dataset(object, None).await?;
        if state.phys().props_obj == 0 {
            let map = property_zap::create_map(&self.mos, tx).await?;
            state.change(|s| s.props_obj = map.0);
        }
        Ok(ObjectId(state.phys().props_obj))
    }

    /// Reads stored properties anew for a directory and what is open below it.
    pub(crate) async fn refresh_properties(self: &Rc<Self>, dir: &Rc<DslDir>) -> Result<()> {
        *dir.props.borrow_mut() = None;
        for state in self.loaded.datasets_below(dir) {
            let phys = state.phys();
            let props = phys.is_snapshot().then_some(ObjectId(phys.props_obj));
            let scope = self.scope(&state.dir(), props).await?;
            state.apply_scope(&scope, &self.features);
        }
        Ok(())
    }

    /// Counts file systems and snapshots below a directory and keeps the counts from now on.
    async fn init_counts(self: &Rc<Self>, dir: &Rc<DslDir>, tx: &Tx) -> Result<()> {
        let mut all = self.dirs_below(dir).await?;
        all.push(dir.clone());
        // Deeper ones first, so that a directory finds its children counted.
        all.sort_by_key(|d| std::cmp::Reverse(d.chain().len()));
        for dir in all {
            if self
                .dir_count(&dir, zapified_keys::FILESYSTEM_COUNT)
                .await?
                .is_some()
            {
                continue;
            }
            let mut filesystems = 0;
            let mut snapshots = 0;
            for child in self.children(&dir).await? {
                let below = self
                    .dir_count(&child, zapified_keys::FILESYSTEM_COUNT)
                    .await?;
                filesystems += 1 + below.unwrap_or(0);
                let below = self
                    .dir_count(&child, zapified_keys::SNAPSHOT_COUNT)
                    .await?;
                snapshots += below.unwrap_or(0);
            }
            let head = self
                .dataset_phys(ObjectId(dir.phys().head_dataset_obj))
                .await?;
            snapshots += zap::count(&self.mos, ObjectId(head.snapnames_zapobj)).await?;
            self.zapify(dir.object, tx).await?;
            for (key, count) in [
                (zapified_keys::FILESYSTEM_COUNT, filesystems),
                (zapified_keys::SNAPSHOT_COUNT, snapshots),
            ] {
                zap::add_u64(&self.mos, dir.object, key, count, tx).await?;
            }
        }
        Ok(())
    }

    /// Makes settings complete for a new file system: what is fixed at creation comes from the
    /// parent unless given.
    pub(crate) async fn complete_for_creation(
        self: &Rc<Self>,
        parent: Option<&Rc<DslDir>>,
        kind: DatasetKind,
        mut settings: Vec<Setting>,
    ) -> Result<Vec<Setting>> {
        let above = parent.map(|dir| &**dir);
        let (_, key) = self.plan_encryption(above, &settings).await?;
        if let Some(key) = key {
            let is_place = |s: &Setting| matches!(s, Setting::Native(Property::KeyLocation, _));
            settings.retain(|setting| !is_place(setting));
            let location = Value::Text(key.location);
            settings.push(Setting::Native(Property::KeyLocation, location));
        }
        if kind != DatasetKind::Filesystem {
            return Ok(settings);
        }
        crate::property::complete_settings(&mut settings)?;
        let fixed = match parent {
            Some(parent) => self.fixed_properties(parent).await?,
            None => Default::default(),
        };
        for property in [
            Property::Version,
            Property::Normalization,
            Property::Utf8Only,
            Property::CaseSensitivity,
        ] {
            let given = settings
                .iter()
                .any(|s| matches!(s, Setting::Native(p, _) if *p == property));
            if !given {
                let number = match property {
                    Property::Version => {
                        pool_version::newest_file_system(self.features.pool_version())
                    }
                    _ => fixed.get(&property).copied().unwrap_or(0),
                };
                settings.push(Setting::Native(property, Value::Number(number)));
            }
        }
        Ok(settings)
    }
}

fn history_text(value: &Value) -> String {
    match value {
        Value::Number(n) => n.to_string(),
        Value::Text(text) => text.clone(),
    }
}

/// Returns the oldest version of pools in which a property can have a value.
// OpenZFS: module/zfs/zfs_ioctl.c, zfs_check_settable
#[must_use]
pub fn version_needed(property: Property, value: &Value) -> u64 {
    /// Values of `compression` from `gzip-1` to `gzip-9`. OpenZFS: include/sys/zio.h, zio_compress
    const GZIP: std::ops::RangeInclusive<u64> = 5..=13;
    const ZLE: u64 = 14;
    /// The value `passthrough-x` of `aclinherit`. OpenZFS: include/sys/fs/zfs.h
    const PASSTHROUGH_X: u64 = 5;
    let number = value.number().unwrap_or(0);
    match property {
        Property::Compression if GZIP.contains(&number) => pool_version::GZIP_COMPRESSION,
        Property::Compression if number == ZLE => pool_version::ZLE_COMPRESSION,
        Property::Copies if number > 1 => pool_version::DITTO_BLOCKS,
        Property::Dedup if number != 2 => pool_version::DEDUP,
        Property::RefQuota | Property::RefReservation if number != 0 => {
            pool_version::REFRESERVATION
        }
        Property::AclInherit if number == PASSTHROUGH_X => pool_version::PASSTHROUGH_X,
        _ => pool_version::INITIAL,
    }
}

/// Returns the feature that a pool needs so that a property can have a value; `None` when it needs none.
#[must_use]
pub fn feature_needed(property: Property, value: &Value) -> Option<&'static str> {
    let number = value.number().unwrap_or(0);
    let method = u8::try_from(number & 0x7f).unwrap_or(0);
    Some(match property {
        Property::Compression if Compression(method) == Compression::LZ4 => "lz4_compress",
        Property::Compression if Compression(method) == Compression::ZSTD => "zstd_compress",
        Property::Checksum | Property::Dedup => match number & !DEDUP_VERIFY {
            11 => "sha512",
            12 => "skein",
            13 => "edonr",
            14 => "blake3",
            _ => return None,
        },
        Property::RecordSize | Property::VolBlockSize if number > ondisk::OLD_MAX_BLOCK_SIZE => {
            "large_blocks"
        }
        Property::DnodeSize if number != 0 => "large_dnode",
        Property::LongName if number != 0 => "longname",
        Property::SpecialSmallBlocks if number != 0 => "allocation_classes",
        Property::Encryption if number != 2 => "encryption",
        _ => return None,
    })
}
