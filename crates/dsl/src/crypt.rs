//! Encrypted datasets as they are shown: encryption properties; and the refusal of what encrypted datasets do not take yet.
//!
//! Guarantees: without its key, a dataset is listed with its kind, and its properties and holds can be changed.

use std::rc::Rc;

use ondisk::ObjectId;

use crate::dsl_dir::DslDir;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::hierarchy::Hierarchy;
use crate::property::{Property, Source, Value};
use crate::property_zap::EffectiveValue;
use codec::crypt::WrappingKey;

/// Values of the property `keystatus`.
const UNAVAILABLE: u64 = 1;
const AVAILABLE: u64 = 2;

/// How the wrapping key of an encryption root is made from what a user gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFormat {
    /// 32 bytes.
    Raw,
    /// 64 hexadecimal digits.
    Hex,
    /// Derived from a passphrase.
    Passphrase {
        /// Salt of the derivation.
        salt: u64,
        /// Its iterations.
        iterations: u64,
    },
}

impl KeyFormat {
    /// The format of this number on disk, and in the property `keyformat`.
    // OpenZFS: include/sys/fs/zfs.h, zfs_keyformat
    pub(crate) fn of(number: u64, salt: u64, iterations: u64) -> Option<Self> {
        Some(match number {
            1 => Self::Raw,
            2 => Self::Hex,
            3 => Self::Passphrase { salt, iterations },
            _ => return None,
        })
    }
}

/// What is known of the key of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// The dataset whose key wraps this one's: itself, if it is an encryption root.
    pub root: String,
    /// How the wrapping key is made.
    pub format: KeyFormat,
    /// Whether it is loaded.
    pub loaded: bool,
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
        // Only the key object of the encryption root has its parameters for certain.
        let of_root = pool.key_object(&root).await?;
        let of_root = of_root.ok_or_else(|| DslError::corrupt("encryption root", root.object))?;
        let key = pool.read_key(of_root).await?;
        let format = KeyFormat::of(key.key_format, key.pbkdf2_salt, key.pbkdf2_iters);
        Ok(Some(KeyInfo {
            root: pool.name_of(&root),
            format: format.ok_or(DslError::Unsupported {
                what: "the format of the key",
            })?,
            loaded: pool.keys.is_loaded(root.object),
        }))
    }

    /// Loads the wrapping key of an encryption root, so that the datasets below it can be opened; with `check_only`, only says
    /// whether it is the right one. It stays in memory until [`Hierarchy::unload_key`] or the pool's end.
    ///
    /// # Errors
    /// `NotFound`, `NotEncrypted`, `NotEncryptionRoot`, `WrongKey`, `KeyLoaded`; errors of reading.
    pub async fn load_key(&self, name: &str, key: WrappingKey, check_only: bool) -> Result<()> {
        let pool = self.pool();
        let _names = pool.config.read().await;
        pool.load_key(name, key, check_only).await
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
    /// Fails when a dataset is encrypted: it takes no dataset that is made below it, and no plain stream.
    pub(crate) async fn require_plain(self: &Rc<Self>, dir: &Rc<DslDir>) -> Result<()> {
        match self.block_keys(dir).await? {
            None => Ok(()),
            Some(_) => Err(DslError::Unsupported {
                what: "this below or in an encrypted dataset",
            }),
        }
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
