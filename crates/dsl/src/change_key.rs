//! Changing the key of an encryption root, and where a dataset's key comes from (`zfs change-key`).
//!
//! Guarantees: the keys of all datasets that are concerned are wrapped anew in one txg: after a crash the old key opens all of
//! them, or the new one does. Keys of blocks stay, so that no block is written. Everything is opened before anything is changed.
// OpenZFS: lib/libzfs/libzfs_crypto.c, zfs_crypto_rewrap (rules, words); module/zfs/dsl_crypt.c, spa_keystore_change_key

use std::rc::Rc;
use std::sync::Arc;

use codec::crypt::WrappingKey;
use dmu::Tx;
use ondisk::{ObjectId, Txg};
use zio::BlockKeys;

use crate::change_log::Concerned;
use crate::dsl_dir::DslDir;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, KeyChangeError, Result};
use crate::hierarchy::Hierarchy;
use crate::key_format::{KeyFormat, NewKey, PlannedKey};
use crate::new_encryption::{Asked, FEATURE, key_phys, new_format};
use crate::property::{Property, PropertyError, Setting, Value};
use crate::sync_task::SyncTask;

/// What a key is changed to.
#[derive(Clone, Debug)]
pub enum KeyChange {
    /// The dataset gets this key, and becomes an encryption root if it is none.
    New {
        /// The key.
        key: NewKey,
        /// The new value of `keylocation`; a dataset that was an encryption root may keep its own.
        location: Option<String>,
    },
    /// The dataset inherits the key of its parent.
    Inherit,
}

impl Hierarchy {
    /// Returns the key that has to be given to change the key of a dataset with these properties (`keyformat`, `keylocation` and
    /// `pbkdf2iters`).
    ///
    /// # Errors
    /// `NotFound`, `KeyChange`, `Property`; errors of reading.
    pub async fn plan_key_change(&self, name: &str, settings: &[Setting]) -> Result<PlannedKey> {
        let pool = self.pool();
        let _names = pool.config.read().await;
        let (dir, root) = pool.check_key_change(name).await?;
        let asked = Asked::of(settings);
        let (mut number, mut location) = (asked.format, asked.location.clone());
        if root == dir.object {
            let scope = pool.scope(&dir, None).await?;
            let stored = scope.native(Property::KeyLocation).value;
            number = number.or(Some(pool.format_of_root(root).await?.numbers().0));
            location = location.or_else(|| stored.text().map(str::to_owned));
        }
        let number = number.ok_or(PropertyError::KeyFormatNeeded)?;
        Ok(PlannedKey {
            format: new_format(number, asked.iterations, || pool.new_guid().0)?,
            location: location.unwrap_or_else(|| "prompt".to_owned()),
        })
    }

    /// Changes the key of a dataset, and of those that inherit it.
    ///
    /// # Errors
    /// `NotFound`, `KeyChange`, `Property`; errors of reading.
    pub async fn change_key(&self, name: &str, change: KeyChange) -> Result<()> {
        let name = name.to_owned();
        self.pool().run(ChangeKey { name, change }).await
    }
}

/// Changes the key of a dataset.
struct ChangeKey {
    name: String,
    change: KeyChange,
}

/// What is wrapped anew.
struct Rewrapping {
    dir: Rc<DslDir>,
    /// Key objects with what they hold.
    keys: Vec<(ObjectId, BlockKeys)>,
    /// The encryption root afterwards, with its wrapping key.
    root: ObjectId,
    wrapping: Arc<WrappingKey>,
    format: KeyFormat,
    /// The new value of `keylocation`; `Some(None)` clears it.
    location: Option<Option<String>>,
}

impl SyncTask for ChangeKey {
    type Checked = Rewrapping;
    type Output = ();

    fn name(&self) -> &'static str {
        "change-key"
    }

    fn concerned(&self) -> Concerned {
        Concerned::All
    }

    async fn check(&self, pool: &Rc<DslPool>, _: Option<Txg>) -> Result<Rewrapping> {
        let (dir, old_root) = pool.check_key_change(&self.name).await?;
        let (root, wrapping, format, location) = match &self.change {
            KeyChange::New { key, location } => {
                if old_root != dir.object && location.is_none() {
                    return Err(PropertyError::KeyLocation.into());
                }
                let location = location.clone().map(Some);
                (dir.object, key.key.clone(), key.format, location)
            }
            KeyChange::Inherit => {
                let (root, wrapping, format) = pool.check_key_inherit(&dir, old_root).await?;
                (root, wrapping, format, Some(None))
            }
        };
        let Some(old) = pool.keys.wrapping_key(old_root) else {
            return Err(KeyChangeError::NotLoaded.into());
        };
        let mut keys = Vec::new();
        for (number, object) in pool.keys_of_root(&dir).await?.into_iter().enumerate() {
            pool.yield_every(number).await;
            keys.push((object, pool.open_key(object, &old).await?));
        }
        Ok(Rewrapping {
            dir,
            keys,
            root,
            wrapping,
            format,
            location,
        })
    }

    async fn apply(self, pool: &Rc<DslPool>, checked: Rewrapping, tx: &Tx) -> Result<()> {
        let Rewrapping {
            dir,
            keys,
            root,
            wrapping,
            format,
            location,
        } = checked;
        assert!(tx.is_syncing(), "change key happens in syncing context");
        for (number, (object, keys)) in keys.iter().enumerate() {
            pool.yield_every(number).await;
            let uses = pool.key_uses(*object).await?;
            assert!(uses > 0, "a key object that is found is used");
            let wrapped = pool.wrap(keys.dataset_keys(), &wrapping)?;
            let mut phys = key_phys(&wrapped, root, format);
            phys.refcount = uses;
            pool.write_key(*object, &phys, tx).await?;
            pool.keys.move_to(*object, root);
        }
        if root == dir.object {
            pool.keys.load(root, wrapping);
        } else {
            pool.keys.unload(dir.object);
        }
        if let Some(location) = location {
            pool.set_key_location(&dir, location.map(Value::Text), tx)
                .await?;
        }
        Ok(())
    }
}

impl DslPool {
    /// Checks that the key of a dataset may be changed; returns its directory and its encryption root.
    async fn check_key_change(self: &Rc<Self>, name: &str) -> Result<(Rc<DslDir>, ObjectId)> {
        let found = self.find(name).await?;
        if found.snapshot.is_some() {
            return Err(DslError::WrongKind { name: name.into() });
        }
        if !self.features.is_enabled(FEATURE) {
            return Err(PropertyError::EncryptionFeature.into());
        }
        let root = self.encryption_root_of(&found.dir).await?;
        let root = root.ok_or(KeyChangeError::NotEncrypted)?;
        if self.is_clone(&found.dir) {
            return Err(KeyChangeError::Clone.into());
        }
        Ok((found.dir, root))
    }

    /// Checks that an encryption root can inherit the key of its parent; returns the root above with its key.
    async fn check_key_inherit(
        self: &Rc<Self>,
        dir: &DslDir,
        root: ObjectId,
    ) -> Result<(ObjectId, Arc<WrappingKey>, KeyFormat)> {
        if root != dir.object {
            return Err(KeyChangeError::NotRoot.into());
        }
        let parent = dir.parent().ok_or(KeyChangeError::NoParent)?;
        if self.key_object(&parent).await?.is_none() {
            return Err(KeyChangeError::ParentNotEncrypted.into());
        }
        let above = self.root_wrapping(&parent).await?;
        above.ok_or(KeyChangeError::ParentNotLoaded.into())
    }
}
