//! Loading and unloading keys, and the keys of a dataset for its blocks.
//!
//! Guarantees: a wrapping key is kept only if it opened the key of its encryption root; unloading it is refused as long as a
//! dataset that needs it is open. Merely cached state of a dataset is no use.

use std::rc::Rc;
use std::sync::Arc;

use codec::crypt::{CryptError, Suite, WrappedKeys, WrappingKey};
use dmu::zap::{self, ZapValue};
use ondisk::crypt::{KeyPhys, key_entries};
use ondisk::dsl::zapified_keys;
use ondisk::{ObjectId, Txg};
use zio::BlockKeys;

use crate::change_log::Concerned;
use crate::dataset_state::DatasetState;
use crate::dsl_dir::DslDir;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};

/// Syncs waited for until what a dataset left in memory is on disk.
const UNLOAD_TRIES: u32 = 8;

impl DslPool {
    /// The key object of a directory, if its datasets are encrypted.
    pub(crate) async fn key_object(&self, dir: &DslDir) -> Result<Option<ObjectId>> {
        let object = self.dir_count(dir, zapified_keys::CRYPTO_KEY).await?;
        Ok(object.map(ObjectId))
    }

    /// The entries of a key object.
    pub(crate) async fn read_key(&self, object: ObjectId) -> Result<KeyPhys> {
        let mut numbers: Vec<(&'static str, u64)> = Vec::new();
        let mut arrays: Vec<(&'static str, Vec<u8>)> = Vec::new();
        for name in key_entries::ALL {
            match zap::lookup(&self.mos, object, name).await? {
                Some(ZapValue::U64(value)) if value.len() == 1 => numbers.push((name, value[0])),
                Some(ZapValue::U8(value)) => arrays.push((name, value)),
                _ => {}
            }
        }
        let number = |name: &str| {
            let found = numbers.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| *value)
        };
        let bytes = |name: &str| {
            let found = arrays.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.as_slice())
        };
        KeyPhys::from_entries(number, bytes).map_err(|source| DslError::Decode {
            what: "encryption key",
            object,
            source,
        })
    }

    /// The keys of a directory's datasets, ready for use; `None` when they are not encrypted.
    pub(crate) async fn block_keys(self: &Rc<Self>, dir: &Rc<DslDir>) -> Result<Option<BlockKeys>> {
        let Some(object) = self.key_object(dir).await? else {
            return Ok(None);
        };
        if let Some(keys) = self.keys.opened(object) {
            return Ok(Some(keys));
        }
        let root = ObjectId(self.read_key(object).await?.root_dir);
        let Some(wrapping) = self.keys.wrapping_key(root) else {
            let name = self.name_of(dir);
            return Err(DslError::KeyNotLoaded { name });
        };
        let keys = self.open_key(object, &wrapping).await?;
        Ok(Some(self.keys.keep(object, root, keys)))
    }

    /// The keys in a key object, opened with the wrapping key of its encryption root, which has opened the root's own.
    pub(crate) async fn open_key(
        &self,
        object: ObjectId,
        wrapping: &WrappingKey,
    ) -> Result<BlockKeys> {
        if let Some(keys) = self.keys.opened(object) {
            return Ok(keys);
        }
        let keys = wrapped(&self.read_key(object).await?)?
            .unwrap_with(wrapping)
            .map_err(|error| match error {
                CryptError::Forged => DslError::corrupt("encryption key", object),
                other => DslError::Crypt(other),
            })?;
        Ok(BlockKeys::new(&self.services.handle, keys))
    }

    /// The keys of a directory's datasets if they are encrypted and loaded.
    pub(crate) async fn keys_if_loaded(
        self: &Rc<Self>,
        dir: &Rc<DslDir>,
    ) -> Result<Option<BlockKeys>> {
        match self.block_keys(dir).await {
            Err(DslError::KeyNotLoaded { .. }) => Ok(None),
            other => other,
        }
    }

    /// An encryption root by its name, with its key.
    async fn encryption_root(self: &Rc<Self>, name: &str) -> Result<(Rc<DslDir>, KeyPhys)> {
        let found = self.find(name).await?;
        if found.snapshot.is_some() {
            return Err(DslError::WrongKind { name: name.into() });
        }
        let Some(object) = self.key_object(&found.dir).await? else {
            return Err(DslError::NotEncrypted { name: name.into() });
        };
        let key = self.read_key(object).await?;
        if key.root_dir != found.dir.object.0 {
            let root = self.dir(ObjectId(key.root_dir)).await?;
            return Err(DslError::NotEncryptionRoot {
                name: name.into(),
                root: self.name_of(&root),
            });
        }
        Ok((found.dir, key))
    }

    /// Loads the wrapping key of an encryption root; with `check_only`, only says whether it is the right one.
    pub(crate) async fn load_key(
        self: &Rc<Self>,
        name: &str,
        key: Arc<WrappingKey>,
        check_only: bool,
    ) -> Result<()> {
        let (root, stored) = self.encryption_root(name).await?;
        wrapped(&stored)?
            .unwrap_with(&key)
            .map_err(|error| match error {
                CryptError::Forged => DslError::WrongKey { name: name.into() },
                other => DslError::Crypt(other),
            })?;
        if check_only {
            return Ok(());
        }
        if self.keys.is_loaded(root.object) {
            return Err(DslError::KeyLoaded { name: name.into() });
        }
        self.keys.load(root.object, key);
        self.changes.record(Concerned::All);
        Ok(())
    }

    /// The wrapping key of an encryption root.
    pub(crate) async fn loaded_wrapping_key(
        self: &Rc<Self>,
        name: &str,
    ) -> Result<Arc<WrappingKey>> {
        let (root, _) = self.encryption_root(name).await?;
        let key = self.keys.wrapping_key(root.object);
        key.ok_or_else(|| DslError::KeyNotLoaded { name: name.into() })
    }

    /// Those of the datasets in memory whose key is wrapped by that of a directory.
    pub(crate) async fn datasets_of_root(
        self: &Rc<Self>,
        root: ObjectId,
    ) -> Result<Vec<Rc<DatasetState>>> {
        let mut found = Vec::new();
        for (state, _) in self.loaded.open_objsets() {
            if let Some(object) = self.key_object(&state.dir()).await?
                && self.read_key(object).await?.root_dir == root.0
            {
                found.push(state);
            }
        }
        Ok(found)
    }

    /// The objects of the open datasets that use the key of an encryption root.
    pub(crate) async fn key_users(self: &Rc<Self>, name: &str) -> Result<Vec<ObjectId>> {
        let (root, _) = self.encryption_root(name).await?;
        let users = self.datasets_of_root(root.object).await?;
        Ok(users.into_iter().map(|state| state.object).collect())
    }

    /// Unloads the key of an encryption root, after what datasets have left in memory has been written.
    pub(crate) async fn unload_key(self: &Rc<Self>, name: &str) -> Result<()> {
        let (root, _) = self.encryption_root(name).await?;
        let root = root.object;
        if !self.keys.is_loaded(root) {
            return Err(DslError::KeyUnloaded { name: name.into() });
        }
        let busy = || DslError::Busy { name: name.into() };
        for _ in 0..UNLOAD_TRIES {
            let users = self.datasets_of_root(root).await?;
            if users.iter().any(|state| state.handles() > 0) {
                return Err(busy());
            }
            // From here to the end nothing is awaited when all is clean: nothing can be opened meanwhile.
            let open = self.services.clock.open_txg();
            if users.iter().all(|state| is_clean(state, open)) {
                for state in &users {
                    state.set_objset(None);
                }
                if self.keys.is_in_use(root) {
                    // A dataset is just being opened.
                    return Err(busy());
                }
                self.keys.unload(root);
                self.changes.record(Concerned::All);
                self.services.cache().forget_keyed();
                return Ok(());
            }
            for log in users.iter().filter_map(|state| state.log()) {
                log.retire();
            }
            self.services.clock.wait_synced(open).await?;
        }
        Err(busy())
    }
}

/// Whether nothing of a dataset waits to be written in the txgs under way.
fn is_clean(state: &DatasetState, open: Txg) -> bool {
    let under_way = (open.0.saturating_sub(2)..=open.0).map(Txg);
    let objset = state.objset();
    let is_dirty = |txg| objset.as_ref().is_some_and(|objset| objset.is_dirty(txg));
    !under_way.into_iter().any(is_dirty) && state.log().is_none_or(|log| !log.has_chain())
}

/// The keys as they are stored, in the form that a cipher takes.
pub(crate) fn wrapped(key: &KeyPhys) -> Result<WrappedKeys> {
    let suite = Suite::from_number(key.suite).ok_or(DslError::Unsupported {
        what: "the encryption suite",
    })?;
    // OpenZFS: module/zfs/dsl_crypt.c, dsl_dir_incompatible_encryption_version
    if key.version != codec::crypt::DatasetKeys::VERSION {
        return Err(DslError::Unsupported {
            what: "this version of encryption",
        });
    }
    Ok(WrappedKeys {
        suite,
        guid: key.guid,
        version: key.version,
        iv: key.iv,
        mac: key.mac,
        master_key: key.master_key,
        hmac_key: key.hmac_key,
    })
}
