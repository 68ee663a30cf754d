//! Properties that come with a stream: stored as received values, beside what was set on the dataset here.
//!
//! Each property is checked on its own: one that is refused does not keep the others from being stored.
//! OpenZFS: module/zfs/zfs_ioctl.c, zfs_ioc_recv_impl; module/zfs/dsl_prop.c, dsl_prop_set_sync_impl.

use std::collections::BTreeMap;
use std::rc::Rc;

use dmu::Tx;
use ondisk::ObjectId;

use crate::change_log::Concerned;
use crate::dsl_pool::{DslPool, Found};
use crate::error::{DslError, Result};
use crate::hierarchy::Hierarchy;
use crate::property::{Property, PropertyError, Setting, Value};
use crate::property_zap::{self, HAS_RECEIVED, PropertyWrite};

/// A change of a property that a receive makes.
#[derive(Clone, Debug, PartialEq)]
pub enum ReceivedChange {
    /// The value came with the stream.
    Store(Setting),
    /// The stream has no value any more.
    Forget(String),
    /// Set here, as `zfs receive -o` does.
    Set(Setting),
    /// Inherited here whatever came, as `zfs receive -x` does.
    Inherit(String),
    /// Not set here any more: what came is in force.
    Clear(String),
}

/// What a dataset has of properties, as far as a receive needs to know.
#[derive(Clone, Debug, Default)]
pub struct StoredProperties {
    /// It received properties before.
    pub has_received: bool,
    /// Set here.
    pub local: BTreeMap<String, Value>,
    /// Received.
    pub received: BTreeMap<String, Value>,
}

impl Hierarchy {
    /// Returns what is stored at a dataset or snapshot itself.
    ///
    /// # Errors
    /// `NotFound`; of reading.
    pub async fn stored_properties(&self, name: &str) -> Result<StoredProperties> {
        let pool = self.pool();
        let _names = pool.config.read().await;
        let found = pool.find(name).await?;
        let map = match &found.snapshot {
            None => ObjectId(found.dir.phys().props_zapobj),
            Some(_) => ObjectId(pool.dataset_phys(found.dataset).await?.props_obj),
        };
        let mut stored = StoredProperties::default();
        for (key, value) in property_zap::read_map(&pool.mos, map).await? {
            match key.split_once('$') {
                _ if key == HAS_RECEIVED => stored.has_received = true,
                Some((name, "recvd")) => {
                    stored.received.insert(name.to_owned(), value);
                }
                Some(_) => {}
                None => {
                    stored.local.insert(key, value);
                }
            }
        }
        Ok(stored)
    }

    /// Makes changes of properties in one txg, and marks the dataset as one that received properties if `mark` says so; returns those
    /// that were refused, and why.
    ///
    /// # Errors
    /// `NotFound`; `ReadOnly`.
    pub async fn change_received(
        &self,
        name: &str,
        changes: Vec<ReceivedChange>,
        mark: bool,
    ) -> Result<Vec<(String, DslError)>> {
        {
            let _names = self.pool().config.read().await;
            self.pool().find(name).await?;
        }
        let concerned = Concerned::subtree(name);
        let request = Rc::new((name.to_owned(), changes));
        self.submit_for("receive", concerned, async move |this: &Self, tx: &Tx| {
            let (name, changes) = &*request;
            let pool = this.pool();
            let found = pool.find(name).await?;
            let mut refused = Vec::new();
            if mark {
                this.apply(pool.mark_received(&found, tx)).await?;
            }
            for change in changes {
                match pool.check_received(&found, change).await {
                    Ok(limit) => {
                        this.apply(pool.apply_received(&found, change, limit, tx))
                            .await?;
                    }
                    Err(error) => refused.push((change.name(), error)),
                }
            }
            Ok(refused)
        })
        .await
    }
}

impl ReceivedChange {
    /// Name of the property.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Store(setting) | Self::Set(setting) => setting.name(),
            Self::Forget(name) | Self::Inherit(name) | Self::Clear(name) => name.clone(),
        }
    }
}

/// Name and value of a setting, as they are stored.
fn stored_form(setting: &Setting) -> (String, Value) {
    match setting {
        Setting::Native(property, value) => (property.name().to_owned(), value.clone()),
        Setting::User(name, text) => (name.clone(), Value::Text(text.clone())),
        Setting::UserQuota(prefix, who, bytes) => (format!("{prefix}{who}"), Value::Number(*bytes)),
    }
}

impl DslPool {
    async fn property_map(self: &Rc<Self>, found: &Found, tx: &Tx) -> Result<ObjectId> {
        match &found.snapshot {
            None => Ok(ObjectId(found.dir.phys().props_zapobj)),
            Some(_) => self.snapshot_props(found.dataset, tx).await,
        }
    }

    pub(crate) async fn mark_received(self: &Rc<Self>, found: &Found, tx: &Tx) -> Result<()> {
        let map = self.property_map(found, tx).await?;
        let (value, how) = (Value::Number(0), PropertyWrite::Local);
        property_zap::write(&self.mos, map, HAS_RECEIVED, Some(&value), how, tx).await
    }

    /// Checks a change; returns the limit that is in force after it, where it is of one that is kept outside of the ZAP too.
    async fn check_received(
        self: &Rc<Self>,
        found: &Found,
        change: &ReceivedChange,
    ) -> Result<Option<Setting>> {
        let is_limit = |property: Property| {
            matches!(
                property,
                Property::Quota
                    | Property::RefQuota
                    | Property::Reservation
                    | Property::RefReservation
            )
        };
        match change {
            ReceivedChange::Set(setting) => {
                self.check_settings(found, std::slice::from_ref(setting))
                    .await?;
                Ok(None)
            }
            ReceivedChange::Store(setting) => {
                let Setting::Native(property, _) = setting else {
                    return self.check_received_user(found, setting).await;
                };
                // Fixed when the dataset is made, or kept in its contents: those came with the stream.
                if property.read_only() && !property.set_once() {
                    return Err(PropertyError::ReadOnly(property.name().into()).into());
                }
                let is_set_here =
                    found.snapshot.is_none() && self.is_set_here(found, property.name()).await?;
                if is_set_here {
                    return Ok(None);
                }
                self.check_settings(found, std::slice::from_ref(setting))
                    .await?;
                Ok(is_limit(*property).then(|| setting.clone()))
            }
            ReceivedChange::Forget(name) => {
                self.check_immutable_clear(found, name).await?;
                let property = Property::from_name(name).filter(|property| is_limit(*property));
                let Some(property) = property else {
                    return Ok(None);
                };
                if self.is_set_here(found, name).await? {
                    return Ok(None);
                }
                let limit = Setting::Native(property, Value::Number(0));
                self.check_settings(found, std::slice::from_ref(&limit))
                    .await?;
                Ok(Some(limit))
            }
            ReceivedChange::Clear(name) => {
                self.check_immutable_clear(found, name).await?;
                self.received_limit(found, name).await
            }
            ReceivedChange::Inherit(name) => {
                self.check_immutable_clear(found, name).await?;
                match Property::from_name(name) {
                    Some(property) if !property.inheritable() => {
                        Err(PropertyError::ReadOnly(name.clone()).into())
                    }
                    _ => Ok(None),
                }
            }
        }
    }

    /// Checks a user property that came. Only the immutability of a snapshot has a meaning here; what a dataset has of these names has none.
    async fn check_received_user(
        self: &Rc<Self>,
        found: &Found,
        setting: &Setting,
    ) -> Result<Option<Setting>> {
        if found.snapshot.is_some() {
            self.check_immutable_settings(found, std::slice::from_ref(setting))
                .await?;
        }
        Ok(None)
    }

    async fn is_set_here(&self, found: &Found, name: &str) -> Result<bool> {
        let map = ObjectId(found.dir.phys().props_zapobj);
        Ok(dmu::zap::lookup(&self.mos, map, name).await?.is_some())
    }

    /// Makes a change that was checked. Syncing context.
    async fn apply_received(
        self: &Rc<Self>,
        found: &Found,
        change: &ReceivedChange,
        limit: Option<Setting>,
        tx: &Tx,
    ) -> Result<()> {
        assert!(
            tx.is_syncing(),
            "properties are received in syncing context"
        );
        if let ReceivedChange::Set(setting) = change {
            return self
                .apply_settings(found, std::slice::from_ref(setting), tx)
                .await;
        }
        let map = self.property_map(found, tx).await?;
        let mos = &self.mos;
        if let Some(Setting::Native(property, value)) = &limit {
            self.change_limit(found, *property, value.number().unwrap_or(0))
                .await?;
        }
        match change {
            ReceivedChange::Store(setting) => {
                let (name, value) = stored_form(setting);
                property_zap::write(mos, map, &name, Some(&value), PropertyWrite::Stream, tx)
                    .await?;
                if let (Setting::Native(Property::Compression, value), None) =
                    (setting, &found.snapshot)
                    && value.number().is_some_and(|number| number & 0x7f == 16)
                {
                    let state = self.load_dataset(found.dataset, None).await?;
                    self.activate(&state, "zstd_compress", tx).await?;
                }
            }
            ReceivedChange::Forget(name) => {
                property_zap::write(mos, map, name, None, PropertyWrite::Stream, tx).await?;
            }
            ReceivedChange::Inherit(name) => {
                let how = PropertyWrite::Inherit { received: true };
                property_zap::write(mos, map, name, None, how, tx).await?;
            }
            ReceivedChange::Clear(name) => {
                property_zap::write(mos, map, name, None, PropertyWrite::Received, tx).await?;
            }
            ReceivedChange::Set(_) => {}
        }
        match found.snapshot {
            None => self.refresh_properties(&found.dir).await,
            Some(_) => self.hold_immutable(found, tx).await,
        }
    }
}
