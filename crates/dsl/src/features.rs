//! The pool's features: which are enabled, how often each is used.
//!
//! A feature is *disabled* when its guid is in neither of two ZAPs, *enabled* with a count
//! of 0, *active* above. Features an older reader may ignore are in `features_for_write`, the
//! others in `features_for_read`. OpenZFS: module/zfs/zfeature.c. Pools of versions 1 to 28 have neither: every feature
//! is disabled in them, and what they know follows from their version.
//!
//! Counts are kept in memory as well, so that asking is cheap and synchronous.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use dmu::zap::{self, ZapSpec, ZapValue};
use dmu::{Objset, Tx};
use ondisk::feature::{self, Feature};
use ondisk::{ObjectId, ObjectType, SPA_VERSION_FEATURES};

use crate::error::{DslError, Result};
use crate::object_directory;

/// Guids with their uses.
pub type FeatureUses = Vec<(String, u64)>;

/// The feature counts of a pool. Clones are handles to the same ones.
#[derive(Clone)]
pub struct Features(Rc<FeaturesShared>);

struct FeaturesShared {
    mos: Objset,
    pool_version: Cell<u64>,
    tables: Cell<FeatureTables>,
    enabled_txg: Cell<ObjectId>,
    counts: RefCell<BTreeMap<String, Count>>,
    version: Cell<u64>,
}

/// The ZAPs of features; zeros in a pool whose version knows none.
#[derive(Clone, Copy, Default)]
struct FeatureTables {
    for_read: ObjectId,
    for_write: ObjectId,
    descriptions: ObjectId,
}

#[derive(Clone, Copy)]
struct Count {
    uses: u64,
    for_write: bool,
}

impl Features {
    /// Reads the feature objects of a pool's meta-objset; `pool_version` is what the uberblock says.
    ///
    /// # Errors
    /// `Corrupt` for a pool whose version and feature objects contradict each other; errors of reading.
    pub async fn open(mos: &Objset, pool_version: u64) -> Result<Self> {
        let directory = object_directory::OBJECT_DIRECTORY;
        let find = async |name: &str| -> Result<ObjectId> {
            Ok(ObjectId(
                zap::lookup_u64(mos, directory, name).await?.unwrap_or(0),
            ))
        };
        let tables = FeatureTables {
            for_read: find(object_directory::FEATURES_FOR_READ).await?,
            for_write: find(object_directory::FEATURES_FOR_WRITE).await?,
            descriptions: find(object_directory::FEATURE_DESCRIPTIONS).await?,
        };
        let found = [tables.for_read, tables.for_write, tables.descriptions];
        let has_features = pool_version >= SPA_VERSION_FEATURES;
        // The objects are made in the txg that makes the version 5000. OpenZFS: module/zfs/spa.c, spa_sync_upgrades
        if found.iter().any(|object| (object.0 != 0) != has_features) {
            return Err(DslError::corrupt(
                "pool version that does not fit the feature objects",
                directory,
            ));
        }
        let mut counts = BTreeMap::new();
        let counted = [(tables.for_read, false), (tables.for_write, true)];
        for (object, is_write) in counted.into_iter().filter(|_| has_features) {
            for entry in zap::entries(mos, object).await? {
                let (ZapValue::U64(value), Ok(guid)) = (entry.value, String::from_utf8(entry.name))
                else {
                    return Err(DslError::corrupt("feature count", object));
                };
                let uses = value.first().copied().unwrap_or(0);
                counts.insert(
                    guid,
                    Count {
                        uses,
                        for_write: is_write,
                    },
                );
            }
        }
        Ok(Self(Rc::new(FeaturesShared {
            mos: mos.clone(),
            pool_version: Cell::new(pool_version),
            tables: Cell::new(tables),
            enabled_txg: Cell::new(find(object_directory::FEATURE_ENABLED_TXG).await?),
            counts: RefCell::new(counts),
            version: Cell::new(1),
        })))
    }

    /// Those of a new pool, with the objects for them where its version has features. Syncing context.
    pub(crate) async fn create(mos: &Objset, pool_version: u64, tx: &Tx) -> Result<Self> {
        assert!(tx.is_syncing(), "create happens in syncing context");
        let features = Self(Rc::new(FeaturesShared {
            mos: mos.clone(),
            pool_version: Cell::new(pool_version),
            tables: Cell::default(),
            enabled_txg: Cell::new(ObjectId(0)),
            counts: RefCell::default(),
            version: Cell::new(1),
        }));
        if pool_version >= SPA_VERSION_FEATURES {
            features.create_tables(tx).await?;
        }
        Ok(features)
    }

    /// Makes the feature objects, in a new pool or in one that becomes of version 5000. Syncing context.
    async fn create_tables(&self, tx: &Tx) -> Result<()> {
        let mos = &self.0.mos;
        let mut objects = [ObjectId(0); 3];
        let names = [
            object_directory::FEATURES_FOR_READ,
            object_directory::FEATURES_FOR_WRITE,
            object_directory::FEATURE_DESCRIPTIONS,
        ];
        for (slot, name) in objects.iter_mut().zip(names) {
            *slot = zap::create(mos, &ZapSpec::new(ObjectType::ZAP_METADATA), tx).await?;
            zap::add_u64(mos, object_directory::OBJECT_DIRECTORY, name, slot.0, tx).await?;
        }
        self.0.tables.set(FeatureTables {
            for_read: objects[0],
            for_write: objects[1],
            descriptions: objects[2],
        });
        Ok(())
    }

    /// The version of the pool: 1 to 28, or 5000 when features say what it knows.
    #[must_use]
    pub fn pool_version(&self) -> u64 {
        self.0.pool_version.get()
    }

    /// Makes the pool one of version `to`; the objects that count features are made where it is the first that has them. Syncing
    /// context.
    pub(crate) async fn set_pool_version(&self, to: u64, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "a pool is upgraded in syncing context");
        if to >= SPA_VERSION_FEATURES && !self.has_version(SPA_VERSION_FEATURES) {
            self.create_tables(tx).await?;
        }
        self.0.pool_version.set(to);
        self.0.version.set(self.0.version.get() + 1);
        Ok(())
    }

    /// Whether the pool is of this version or newer.
    #[must_use]
    pub fn has_version(&self, version: u64) -> bool {
        self.pool_version() >= version
    }

    /// Whether the feature may be used; by short name.
    #[must_use]
    pub fn is_enabled(&self, name: &str) -> bool {
        self.refcount(name).is_some()
    }

    /// Whether the feature is in use; by short name.
    #[must_use]
    pub fn is_active(&self, name: &str) -> bool {
        self.refcount(name).is_some_and(|uses| uses > 0)
    }

    /// Uses of a feature; `None` when disabled; by short name.
    #[must_use]
    pub fn refcount(&self, name: &str) -> Option<u64> {
        let feature = Feature::by_name(name)?;
        self.0
            .counts
            .borrow()
            .get(feature.guid)
            .map(|count| count.uses)
    }

    /// Guids in the pool that this version does not know, with their uses: first those without
    /// which the pool cannot be read, then those without which it cannot be written.
    #[must_use]
    pub fn unknown(&self) -> (FeatureUses, FeatureUses) {
        let counts = self.0.counts.borrow();
        let unknown = counts
            .iter()
            .filter(|(guid, _)| Feature::by_guid(guid).is_none());
        let (write, read): (Vec<_>, Vec<_>) = unknown.partition(|(_, count)| count.for_write);
        let plain = |list: Vec<(&String, &Count)>| {
            list.into_iter()
                .map(|(guid, count)| (guid.clone(), count.uses))
                .collect()
        };
        (plain(read), plain(write))
    }

    /// Every feature the pool has enabled that this version knows, with its uses.
    #[must_use]
    pub fn enabled(&self) -> Vec<(&'static Feature, u64)> {
        let counts = self.0.counts.borrow();
        feature::ALL
            .iter()
            .filter_map(|f| Some((f, counts.get(f.guid)?.uses)))
            .collect()
    }

    /// Active features that the labels and the pool's configuration must name.
    #[must_use]
    pub fn active_in_labels(&self) -> Vec<&'static Feature> {
        let counts = self.0.counts.borrow();
        feature::ALL
            .iter()
            .filter(|f| f.needed_by_mos && counts.get(f.guid).is_some_and(|c| c.uses > 0))
            .collect()
    }

    /// Grows with every change.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.0.version.get()
    }

    /// Enables a feature and those it depends on. Nothing happens when it is enabled. Syncing
    /// context.
    ///
    /// # Errors
    /// `Unsupported` for a name that is not in the table; errors of the object layer.
    pub async fn enable(&self, name: &str, tx: &Tx) -> Result<()> {
        let feature = Feature::by_name(name).ok_or(DslError::Unsupported {
            what: "this feature",
        })?;
        // The dependencies form a shallow tree; a work list keeps this from being recursive.
        let mut order = vec![feature];
        let mut next = 0;
        while let Some(f) = order.get(next) {
            order.extend(f.depends_on.iter().filter_map(|n| Feature::by_name(n)));
            next += 1;
        }
        for feature in order.into_iter().rev() {
            if !self.is_enabled(feature.name) {
                self.enable_one(feature, tx).await?;
            }
        }
        Ok(())
    }

    async fn enable_one(&self, feature: &'static Feature, tx: &Tx) -> Result<()> {
        let shared = &self.0;
        let mut text = feature.description.as_bytes().to_vec();
        text.push(0);
        zap::update(
            &shared.mos,
            shared.tables.get().descriptions,
            feature.guid,
            &ZapValue::U8(text),
            tx,
        )
        .await?;
        self.store(feature, u64::from(feature.activate_on_enable), tx)
            .await?;
        if self.is_enabled("enabled_txg") {
            if shared.enabled_txg.get().0 == 0 {
                let spec = ZapSpec::new(ObjectType::ZAP_METADATA);
                let object = zap::create(&shared.mos, &spec, tx).await?;
                let directory = object_directory::OBJECT_DIRECTORY;
                zap::add_u64(
                    &shared.mos,
                    directory,
                    object_directory::FEATURE_ENABLED_TXG,
                    object.0,
                    tx,
                )
                .await?;
                shared.enabled_txg.set(object);
            }
            self.incr("enabled_txg", tx).await?;
            let object = shared.enabled_txg.get();
            zap::update_u64(&shared.mos, object, feature.guid, tx.txg().0, tx).await?;
        }
        Ok(())
    }

    /// Adds a use. Syncing context.
    ///
    /// # Errors
    /// `FeatureDisabled` when it is not enabled.
    pub async fn incr(&self, name: &'static str, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "incr happens in syncing context");
        let uses = self
            .refcount(name)
            .ok_or(DslError::FeatureDisabled { feature: name })?;
        self.set_refcount(name, uses + 1, tx).await
    }

    /// Removes a use. Syncing context.
    ///
    /// # Errors
    /// `FeatureDisabled` when it is not enabled.
    pub async fn decr(&self, name: &'static str, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "decr happens in syncing context");
        let uses = self
            .refcount(name)
            .ok_or(DslError::FeatureDisabled { feature: name })?;
        self.set_refcount(name, uses.saturating_sub(1), tx).await
    }

    /// Sets the uses of a feature whose uses the pool computes (`spacemap_histogram`). Syncing
    /// context. Writes nothing when the number is the same.
    ///
    /// # Errors
    /// `FeatureDisabled` when it is not enabled.
    pub async fn set_refcount(&self, name: &'static str, uses: u64, tx: &Tx) -> Result<()> {
        let old = self
            .refcount(name)
            .ok_or(DslError::FeatureDisabled { feature: name })?;
        if old == uses {
            return Ok(());
        }
        let feature = Feature::by_name(name).expect("a feature with a count is in the table");
        self.store(feature, uses, tx).await
    }

    async fn store(&self, feature: &'static Feature, uses: u64, tx: &Tx) -> Result<()> {
        let shared = &self.0;
        let for_write = feature.read_only_compatible;
        let tables = shared.tables.get();
        let object = if for_write {
            tables.for_write
        } else {
            tables.for_read
        };
        assert!(object.0 != 0, "a pool with features has objects for them");
        zap::update_u64(&shared.mos, object, feature.guid, uses, tx).await?;
        shared
            .counts
            .borrow_mut()
            .insert(feature.guid.into(), Count { uses, for_write });
        shared.version.set(shared.version.get() + 1);
        Ok(())
    }
}
