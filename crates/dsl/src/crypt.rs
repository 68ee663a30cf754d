//! Encrypted datasets without their key: kind, encryption properties, and the refusal of changes that need the key.
//!
//! Guarantees: only properties and holds of such a dataset are changed, and its snapshots destroyed; a change that would
//! write keys, or blocks encrypted under one, is refused before anything is changed.

use std::rc::Rc;

use dmu::zap;
use ondisk::ObjectId;
use ondisk::dsl::zapified_keys;

use crate::dsl_dir::DslDir;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::property::{DatasetKind, Property, Source, Value};
use crate::property_zap::EffectiveValue;

// OpenZFS: include/sys/dsl_crypt.h, DSL_CRYPTO_KEY_*
const SUITE: &str = "DSL_CRYPTO_SUITE";
const ROOT: &str = "DSL_CRYPTO_ROOT_DDOBJ";
const KEY_FORMAT: &str = "keyformat";
const ITERATIONS: &str = "pbkdf2iters";
/// Value of the property `keystatus`: no key is ever loaded here.
const UNAVAILABLE: u64 = 1;

/// How a dataset is encrypted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncryptionInfo {
    suite: u64,
    /// The directory whose key wraps this one's.
    root: ObjectId,
    key_format: u64,
    iterations: u64,
}

impl DslPool {
    /// How a directory's datasets are encrypted, if they are.
    pub(crate) async fn encryption_info(&self, dir: &DslDir) -> Result<Option<EncryptionInfo>> {
        let Some(key) = self.dir_count(dir, zapified_keys::CRYPTO_KEY).await? else {
            return Ok(None);
        };
        let word = async |map: u64, name| {
            let found = zap::lookup_u64(&self.mos, ObjectId(map), name).await?;
            Ok::<u64, DslError>(found.unwrap_or(0))
        };
        let root = ObjectId(word(key, ROOT).await?);
        Ok(Some(EncryptionInfo {
            suite: word(key, SUITE).await?,
            root,
            key_format: word(key, KEY_FORMAT).await?,
            iterations: word(key, ITERATIONS).await?,
        }))
    }

    /// Fails with `KeyNotLoaded` when a dataset is encrypted.
    pub(crate) async fn require_key(self: &Rc<Self>, dir: &Rc<DslDir>) -> Result<()> {
        self.kind_of(dir).await.map(drop)
    }

    /// The kind of a dataset, encrypted or not, to be shown.
    pub(crate) async fn kind_shown(self: &Rc<Self>, dir: &Rc<DslDir>) -> Result<DatasetKind> {
        match self.kind_of(dir).await {
            Err(DslError::KeyNotLoaded { .. }) => {
                let head = ObjectId(dir.phys().head_dataset_obj);
                let root = self.dataset_phys(head).await?.bp;
                self.kind_at(head, &root).await
            }
            other => other,
        }
    }

    /// A property that says how a dataset is encrypted.
    pub(crate) async fn encryption_property(
        self: &Rc<Self>,
        property: Property,
        dir: &Rc<DslDir>,
    ) -> Result<Option<EffectiveValue>> {
        let Some(encryption_info) = self.encryption_info(dir).await? else {
            return Ok(None);
        };
        let value = match property {
            Property::Encryption => Value::Number(encryption_info.suite),
            Property::KeyFormat => Value::Number(encryption_info.key_format),
            Property::Pbkdf2Iters => Value::Number(encryption_info.iterations),
            Property::KeyStatus => Value::Number(UNAVAILABLE),
            Property::EncryptionRoot => {
                let root = self.dir(encryption_info.root).await?;
                Value::Text(self.name_of(&root))
            }
            _ => return Ok(None),
        };
        let source = match (&value, property) {
            (Value::Number(0), Property::Pbkdf2Iters) => Source::Default,
            _ => Source::None,
        };
        Ok(Some(EffectiveValue { value, source }))
    }
}
