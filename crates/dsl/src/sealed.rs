//! What is known of an encrypted dataset without its key: name, kind, space, properties and where its key is kept.
//!
//! Guarantees: nothing changes such a dataset but its properties and holds, and the destruction of its snapshots; whatever
//! would have to write keys, or blocks under one, is refused before anything is changed.

use std::rc::Rc;

use dmu::zap;
use ondisk::ObjectId;
use ondisk::dsl::zapified_keys;

use crate::dir::Dir;
use crate::error::{DslError, Result};
use crate::inner::Inner;
use crate::property::{DatasetKind, Property, Source, Value};
use crate::stored::Lookup;

// OpenZFS: include/sys/dsl_crypt.h, DSL_CRYPTO_KEY_*
const SUITE: &str = "DSL_CRYPTO_SUITE";
const ROOT: &str = "DSL_CRYPTO_ROOT_DDOBJ";
const KEY_FORMAT: &str = "keyformat";
const ITERATIONS: &str = "pbkdf2iters";
/// Value of the property `keystatus`: no key is ever loaded here.
const UNAVAILABLE: u64 = 1;

/// How a dataset is encrypted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sealing {
    suite: u64,
    /// The directory whose key wraps this one's.
    root: ObjectId,
    key_format: u64,
    iterations: u64,
}

impl Inner {
    /// How a directory's datasets are encrypted, if they are.
    pub(crate) async fn sealing(&self, dir: &Dir) -> Result<Option<Sealing>> {
        let Some(key) = self.dir_count(dir, zapified_keys::CRYPTO_KEY).await? else {
            return Ok(None);
        };
        let word = async |map: u64, name| {
            let found = zap::lookup_u64(&self.mos, ObjectId(map), name).await?;
            Ok::<u64, DslError>(found.unwrap_or(0))
        };
        let root = ObjectId(word(key, ROOT).await?);
        Ok(Some(Sealing {
            suite: word(key, SUITE).await?,
            root,
            key_format: word(key, KEY_FORMAT).await?,
            iterations: word(key, ITERATIONS).await?,
        }))
    }

    /// Refuses what needs the key of a dataset.
    pub(crate) async fn need_key(self: &Rc<Self>, dir: &Rc<Dir>) -> Result<()> {
        self.kind_of(dir).await.map(drop)
    }

    /// The kind of a dataset, encrypted or not, to be shown.
    pub(crate) async fn kind_shown(self: &Rc<Self>, dir: &Rc<Dir>) -> Result<DatasetKind> {
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
    pub(crate) async fn sealing_property(
        self: &Rc<Self>,
        property: Property,
        dir: &Rc<Dir>,
    ) -> Result<Option<Lookup>> {
        let Some(sealing) = self.sealing(dir).await? else {
            return Ok(None);
        };
        let value = match property {
            Property::Encryption => Value::Number(sealing.suite),
            Property::KeyFormat => Value::Number(sealing.key_format),
            Property::Pbkdf2Iters => Value::Number(sealing.iterations),
            Property::KeyStatus => Value::Number(UNAVAILABLE),
            Property::EncryptionRoot => {
                let root = self.dir(sealing.root).await?;
                Value::Text(self.name_of(&root))
            }
            _ => return Ok(None),
        };
        let source = match (&value, property) {
            (Value::Number(0), Property::Pbkdf2Iters) => Source::Default,
            _ => Source::None,
        };
        Ok(Some(Lookup { value, source }))
    }
}
