//! Encrypted datasets as they are shown: their encryption properties, and what is known of their keys.
//!
//! Guarantees: without its key, a dataset is listed with its kind, and its properties and holds can be changed.

use std::rc::Rc;
use std::sync::Arc;

use ondisk::ObjectId;

use crate::dsl_dir::DslDir;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::hierarchy::Hierarchy;
use crate::key_format::{KeyFormat, PlannedKey};
use crate::new_encryption::Asked;
use crate::property::{Property, Setting, Source, Value};
use crate::property_zap::EffectiveValue;
use codec::crypt::{ENCRYPTED_WRAPPING_KEY_LEN, IV_LEN, WrappingKey};

/// Values of the property `keystatus`.
const UNAVAILABLE: u64 = 1;
const AVAILABLE: u64 = 2;

/// What is known of the key of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// The dataset whose key wraps this one's: itself, if it is an encryption root.
    pub root: String,
    /// How the wrapping key is made.
    pub format: KeyFormat,
    /// Whether it is loaded.
    pub loaded: bool,
    /// Identity of the keys of the dataset, which stays when they are wrapped anew, and in raw streams (`keyguid`).
    pub guid: u64,
}

impl Hierarchy {
    /// Returns what is known of the key of a file system or volume; `None` when it is not encrypted.
    ///
    /// # Errors
    /// `NotFound`, `Unsupported` for a format of keys that is not known; errors of reading.
    pub async fn key_info(&self, name: &str) -> Result<Option<KeyInfo>> {
        let pool = self.pool();
        let _names = pool.config.read().await;
        let found = pool.find(name).await?;
        let Some(object) = pool.key_object(&found.dir).await? else {
            return Ok(None);
        };
        let key = pool.read_key(object).await?;
        let root = pool.dir(ObjectId(key.root_dir)).await?;
        Ok(Some(KeyInfo {
            root: pool.name_of(&root),
            format: pool.format_of_root(root.object).await?,
            loaded: pool.keys.is_loaded(root.object),
            guid: key.guid,
        }))
    }

    /// Returns the key of its own that a dataset to be made with these properties needs; `None` when it is not encrypted, or
    /// inherits the key of its parent. Where ancestors are missing, the nearest one that is there counts: those between
    /// inherit from it.
    ///
    /// # Errors
    /// `Property` when the properties do not go together; errors of reading.
    pub async fn plan_key(&self, name: &str, settings: &[Setting]) -> Result<Option<PlannedKey>> {
        let pool = self.pool();
        let _names = pool.config.read().await;
        let mut above = name;
        while let Some((parent, _)) = above.rsplit_once('/') {
            if let Some(dir) = pool.find_dir(parent).await? {
                return Ok(pool.plan_encryption(Some(&dir), settings).await?.1);
            }
            above = parent;
        }
        Ok(None)
    }

    /// Returns the key of its own that these properties ask for, whatever the dataset is made below; `None` when they ask for none.
    ///
    /// # Errors
    /// `Property` when the properties do not go together.
    pub fn plan_own_key(&self, settings: &[Setting]) -> Result<Option<PlannedKey>> {
        Asked::of(settings).key(|| self.pool().new_guid().0)
    }

    /// Loads the wrapping key of an encryption root, so that the datasets below it can be opened; with `check_only`, only says
    /// whether it is the right one. It stays in memory until [`Hierarchy::unload_key`] or the pool's end.
    ///
    /// # Errors
    /// `NotFound`, `NotEncrypted`, `NotEncryptionRoot`, `WrongKey`, `KeyLoaded`; errors of reading.
    pub async fn load_key(&self, name: &str, key: WrappingKey, check_only: bool) -> Result<()> {
        let pool = self.pool();
        let _names = pool.config.read().await;
        pool.load_key(name, Arc::new(key), check_only).await
    }

    /// Returns the loaded wrapping key of an encryption root, encrypted under another key with AES-256-GCM; `about` is authenticated
    /// with it. `iv` must not have been used with the other key.
    ///
    /// # Errors
    /// `NotFound`, `NotEncrypted`, `NotEncryptionRoot`, `KeyNotLoaded`; errors of reading.
    pub async fn encrypted_key(
        &self,
        name: &str,
        outer: &WrappingKey,
        iv: [u8; IV_LEN],
        about: &[u8],
    ) -> Result<[u8; ENCRYPTED_WRAPPING_KEY_LEN]> {
        let pool = self.pool();
        let _names = pool.config.read().await;
        let key = pool.loaded_wrapping_key(name).await?;
        Ok(key.encrypt_under(outer, iv, about)?)
    }

    /// Unloads the key of an encryption root. What datasets left in memory is written first.
    ///
    /// # Errors
    /// `NotFound`, `NotEncrypted`, `NotEncryptionRoot`, `KeyUnloaded`; `Busy` while a dataset that needs the key is open.
    pub async fn unload_key(&self, name: &str) -> Result<()> {
        self.pool().unload_key(name).await
    }

    /// Returns the objects of the datasets in memory that use the key of an encryption root.
    ///
    /// # Errors
    /// `NotFound`, `NotEncrypted`, `NotEncryptionRoot`; errors of reading.
    pub async fn key_users(&self, name: &str) -> Result<Vec<ObjectId>> {
        let pool = self.pool();
        let _names = pool.config.read().await;
        pool.key_users(name).await
    }
}

impl DslPool {
    /// How the wrapping key of an encryption root is made.
    pub(crate) async fn format_of_root(self: &Rc<Self>, root: ObjectId) -> Result<KeyFormat> {
        // Only the key object of the encryption root has its parameters for certain.
        let of_root = self.key_object(&*self.dir(root).await?).await?;
        let of_root = of_root.ok_or_else(|| DslError::corrupt("encryption root", root))?;
        let key = self.read_key(of_root).await?;
        let format = KeyFormat::of(key.key_format, key.pbkdf2_salt, key.pbkdf2_iters);
        format.ok_or(DslError::Unsupported {
            what: "the format of the key",
        })
    }

    /// A property that says how a dataset is encrypted.
    pub(crate) async fn encryption_property(
        self: &Rc<Self>,
        property: Property,
        dir: &Rc<DslDir>,
    ) -> Result<Option<EffectiveValue>> {
        let Some(object) = self.key_object(dir).await? else {
            return Ok(None);
        };
        let key = self.read_key(object).await?;
        let root = ObjectId(key.root_dir);
        let value = match property {
            Property::Encryption => Value::Number(key.suite),
            Property::KeyFormat => Value::Number(key.key_format),
            Property::Pbkdf2Iters => Value::Number(key.pbkdf2_iters),
            Property::KeyStatus => Value::Number(if self.keys.is_loaded(root) {
                AVAILABLE
            } else {
                UNAVAILABLE
            }),
            Property::EncryptionRoot => Value::Text(self.name_of(&self.dir(root).await?)),
            _ => return Ok(None),
        };
        let source = match (&value, property) {
            (Value::Number(0), Property::Pbkdf2Iters) => Source::Default,
            _ => Source::None,
        };
        Ok(Some(EffectiveValue { value, source }))
    }
}
