//! How new datasets are encrypted: what follows from their properties and their parent, and the keys that are made for them.
//!
//! Guarantees: a dataset whose properties or parent ask for encryption is encrypted from its first block, or is not made. Its
//! master key is made here, at random, and is stored under the wrapping key alone.
// OpenZFS: lib/libzfs/libzfs_crypto.c, zfs_crypto_create (rules, words); module/zfs/dsl_crypt.c, dsl_dataset_create_crypt_sync

use std::rc::Rc;
use std::sync::Arc;

use codec::crypt::{DatasetKeys, IV_LEN, Suite, WrappedKeys, WrappingKey};
use dmu::Tx;
use ondisk::ObjectId;
use ondisk::crypt::KeyPhys;
use zio::BlockKeys;

use crate::dataset_state::DatasetState;
use crate::dsl_dir::DslDir;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::key_format::{KeyFormat, NewKey, PlannedKey};
use crate::property::{Property, PropertyError, Setting, Value};

/// The feature of pools with encrypted datasets.
pub(crate) const FEATURE: &str = "encryption";
/// Values of the property `encryption`: the default suite, and no encryption.
const ON: u64 = 1;
const OFF: u64 = 2;
const ON_SUITE: u64 = 8;
/// Iterations for a passphrase unless others are asked for.
// OpenZFS: include/sys/zfs_ioctl.h, DEFAULT_PBKDF2_ITERATIONS
const ITERATIONS: u64 = 350_000;

/// What properties say of the encryption of a dataset.
#[derive(Default)]
pub(crate) struct Asked {
    suite: Option<u64>,
    pub(crate) format: Option<u64>,
    pub(crate) location: Option<String>,
    pub(crate) iterations: Option<u64>,
}

impl Asked {
    pub(crate) fn of(settings: &[Setting]) -> Self {
        let mut asked = Self::default();
        for setting in settings {
            match setting {
                Setting::Native(Property::Encryption, Value::Number(ON)) => {
                    asked.suite = Some(ON_SUITE);
                }
                Setting::Native(Property::Encryption, value) => asked.suite = value.number(),
                Setting::Native(Property::KeyFormat, value) => {
                    asked.format = value.number().filter(|format| *format != 0);
                }
                Setting::Native(Property::KeyLocation, Value::Text(text)) => {
                    asked.location = Some(text.clone());
                }
                Setting::Native(Property::Pbkdf2Iters, value) => asked.iterations = value.number(),
                _ => {}
            }
        }
        asked
    }

    /// Whether something is said that has a meaning for encrypted datasets alone.
    // OpenZFS: lib/libzfs/libzfs_crypto.c, proplist_has_encryption_props
    fn of_encrypted(&self) -> bool {
        self.suite.is_some_and(|suite| suite != OFF)
            || self.format.is_some()
            || self
                .location
                .as_deref()
                .is_some_and(|place| place != "none")
            || self.iterations.is_some()
    }

    /// Whether anything is said of encryption.
    pub(crate) fn is_anything(&self) -> bool {
        self.suite.is_some() || self.location.is_some() || self.of_encrypted()
    }

    /// The suite of the dataset, `None` when it is not encrypted, and the key of its own that it needs. `inherited` is the
    /// suite of the parent, if that is encrypted.
    fn plan(
        &self,
        is_enabled: bool,
        inherited: Option<u64>,
        salt: impl FnOnce() -> u64,
    ) -> Result<(Option<Suite>, Option<PlannedKey>)> {
        let refused = if is_enabled {
            PropertyError::EncryptionOff
        } else {
            PropertyError::EncryptionFeature
        };
        let suite = self.suite.or(inherited).unwrap_or(OFF);
        if suite == OFF || !is_enabled {
            return if self.of_encrypted() {
                Err(refused.into())
            } else {
                Ok((None, None))
            };
        }
        let suite = Suite::from_number(suite).ok_or(DslError::Unsupported {
            what: "the encryption suite",
        })?;
        let key = self.key(salt)?;
        if key.is_none() && inherited.is_none() {
            return Err(PropertyError::KeyFormatNeeded.into());
        }
        Ok((Some(suite), key))
    }

    /// The key of its own that the dataset is to have.
    pub(crate) fn key(&self, salt: impl FnOnce() -> u64) -> Result<Option<PlannedKey>> {
        let Some(format) = self.format else {
            return match &self.location {
                Some(_) => Err(PropertyError::KeyFormatNeeded.into()),
                None => Ok(None),
            };
        };
        let location = self.location.as_deref().unwrap_or("prompt").to_owned();
        let format = new_format(format, self.iterations, salt)?;
        Ok(Some(PlannedKey { format, location }))
    }
}

/// The format of a new wrapping key, with a salt of its own.
pub(crate) fn new_format(
    number: u64,
    iterations: Option<u64>,
    salt: impl FnOnce() -> u64,
) -> Result<KeyFormat> {
    let format = KeyFormat::of(number, 0, 0).ok_or(PropertyError::KeyFormatNeeded)?;
    match (format, iterations) {
        (KeyFormat::Passphrase { .. }, given) => Ok(KeyFormat::Passphrase {
            salt: salt(),
            iterations: given.unwrap_or(ITERATIONS),
        }),
        (_, Some(_)) => Err(PropertyError::IterationsWithoutPassphrase.into()),
        (format, None) => Ok(format),
    }
}

/// Returns the key that the root dataset of a new pool with these properties needs; `None` when it is not encrypted. `has_feature`
/// says whether the pool will have the feature `encryption`, `salt` is a random number other than 0.
///
/// # Errors
/// `Property` when the properties do not go together.
pub fn plan_root_key(
    settings: &[Setting],
    has_feature: bool,
    salt: u64,
) -> Result<Option<PlannedKey>> {
    Ok(Asked::of(settings).plan(has_feature, None, || salt)?.1)
}

impl DslPool {
    /// The suite of a new dataset, `None` when it is not encrypted, and the key of its own that it needs.
    pub(crate) async fn plan_encryption(
        &self,
        parent: Option<&DslDir>,
        settings: &[Setting],
    ) -> Result<(Option<Suite>, Option<PlannedKey>)> {
        let inherited = match parent {
            Some(parent) => match self.key_object(parent).await? {
                Some(object) => Some(self.read_key(object).await?.suite),
                None => None,
            },
            None => None,
        };
        let asked = Asked::of(settings);
        let is_enabled = self.features.is_enabled(FEATURE);
        asked.plan(is_enabled, inherited, || self.new_guid().0)
    }

    /// Checks that a new dataset can be encrypted as its properties ask for: its own key is given, or that of its parent loaded.
    pub(crate) async fn check_new_encryption(
        &self,
        parent: Option<&DslDir>,
        settings: &[Setting],
        key: Option<&NewKey>,
    ) -> Result<Option<Suite>> {
        let (suite, planned) = self.plan_encryption(parent, settings).await?;
        let is_there = match (suite, planned, parent) {
            (None, ..) => key.is_none(),
            (Some(_), Some(planned), _) => {
                key.is_some_and(|key| key.format.is_like(planned.format))
            }
            (Some(_), None, Some(parent)) => {
                let root = self.encryption_root_of(parent).await?;
                key.is_none() && root.is_some_and(|root| self.keys.is_loaded(root))
            }
            (Some(_), None, None) => false,
        };
        if is_there {
            Ok(suite)
        } else {
            Err(DslError::NoKey)
        }
    }

    /// Makes the keys of a new dataset, wrapped by its own wrapping key or by that of its parent, and counts the feature. Syncing
    /// context; the checks were made.
    pub(crate) async fn create_key(
        self: &Rc<Self>,
        state: &DatasetState,
        suite: Suite,
        new: Option<NewKey>,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "create key happens in syncing context");
        let dir = state.dir();
        let (root, wrapping, format) = match new {
            Some(NewKey { format, key }) => {
                self.keys.load(dir.object, key.clone());
                (dir.object, key, format)
            }
            None => self.wrapping_of_parent(&dir).await?,
        };
        let handle = &self.services.handle;
        let guid = self.new_guid().0;
        let keys = DatasetKeys::generate(suite, guid, |bytes| handle.fill_random(bytes))?;
        let wrapped = self.wrap(&keys, &wrapping)?;
        let phys = key_phys(&wrapped, root, format);
        let object = self.add_key(&dir, &phys, tx).await?;
        self.keys.keep(object, root, BlockKeys::new(handle, keys));
        self.activate(state, FEATURE, tx).await
    }

    /// The encryption root that a directory inherits, with its wrapping key.
    async fn wrapping_of_parent(
        self: &Rc<Self>,
        dir: &DslDir,
    ) -> Result<(ObjectId, Arc<WrappingKey>, KeyFormat)> {
        let parent = dir.parent().ok_or(DslError::NoKey)?;
        self.root_wrapping(&parent).await?.ok_or(DslError::NoKey)
    }

    /// The encryption root of a directory with its wrapping key, if that is loaded.
    pub(crate) async fn root_wrapping(
        self: &Rc<Self>,
        dir: &DslDir,
    ) -> Result<Option<(ObjectId, Arc<WrappingKey>, KeyFormat)>> {
        let Some(root) = self.encryption_root_of(dir).await? else {
            return Ok(None);
        };
        let Some(wrapping) = self.keys.wrapping_key(root) else {
            return Ok(None);
        };
        let format = self.format_of_root(root).await?;
        Ok(Some((root, wrapping, format)))
    }

    /// Encrypts keys under a wrapping key, with an IV of their own.
    pub(crate) fn wrap(&self, keys: &DatasetKeys, wrapping: &WrappingKey) -> Result<WrappedKeys> {
        let mut iv = [0; IV_LEN];
        self.services.handle.fill_random(&mut iv);
        Ok(keys.wrap_with(wrapping, iv)?)
    }
}

/// The key object of wrapped keys that one directory uses.
pub(crate) fn key_phys(wrapped: &WrappedKeys, root: ObjectId, format: KeyFormat) -> KeyPhys {
    let (key_format, pbkdf2_salt, pbkdf2_iters) = format.numbers();
    KeyPhys {
        suite: wrapped.suite.number(),
        guid: wrapped.guid,
        iv: wrapped.iv,
        mac: wrapped.mac,
        master_key: wrapped.master_key,
        hmac_key: wrapped.hmac_key,
        root_dir: root.0,
        refcount: 1,
        version: wrapped.version,
        key_format,
        pbkdf2_salt,
        pbkdf2_iters,
    }
}
