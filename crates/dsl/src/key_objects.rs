//! Key objects in the meta-objset: made, shared by clones, wrapped anew, passed on by promotions, destroyed.
//!
//! Guarantees: each change of a key object is part of one txg, so that after a crash it is wrapped by the old key or by the new
//! one. A clone uses its origin's key object. Whatever changes an object here changes the keys in memory that belong to it.
//! It does not know where wrapping keys come from.
// OpenZFS: module/zfs/dsl_crypt.c

use std::collections::BTreeSet;
use std::rc::Rc;

use dmu::Tx;
use dmu::zap::{self, ZapSpec, ZapValue};
use ondisk::crypt::{KeyPhys, key_entries};
use ondisk::dsl::zapified_keys;
use ondisk::{ObjectId, ObjectType};

use crate::dsl_dir::DslDir;
use crate::dsl_pool::{DslPool, Found};
use crate::error::{DslError, Result};
use crate::property::{Property, Value};
use crate::property_zap::{self, PropertyWrite};

impl DslPool {
    /// Writes all entries of a key object. Syncing context.
    pub(crate) async fn write_key(&self, object: ObjectId, key: &KeyPhys, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "write key happens in syncing context");
        for (name, value) in key.numbers() {
            zap::update_u64(&self.mos, object, name, value, tx).await?;
        }
        for (name, bytes) in key.byte_arrays() {
            let value = ZapValue::U8(bytes.to_vec());
            zap::update(&self.mos, object, name, &value, tx).await?;
        }
        Ok(())
    }

    /// Makes a key object, and makes it that of a directory, which has none. Syncing context.
    pub(crate) async fn add_key(&self, dir: &DslDir, key: &KeyPhys, tx: &Tx) -> Result<ObjectId> {
        assert!(tx.is_syncing(), "add key happens in syncing context");
        assert!(key.refcount == 1, "a new key object has one user");
        let object = zap::create(&self.mos, &ZapSpec::new(ObjectType::ZAP_METADATA), tx).await?;
        self.write_key(object, key, tx).await?;
        self.zapify(dir.object, tx).await?;
        zap::add_u64(
            &self.mos,
            dir.object,
            zapified_keys::CRYPTO_KEY,
            object.0,
            tx,
        )
        .await?;
        Ok(object)
    }

    /// Gives the directory of a clone the key object of its origin's. Syncing context.
    pub(crate) async fn share_key(&self, origin: &DslDir, clone: &DslDir, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "share key happens in syncing context");
        let Some(object) = self.key_object(origin).await? else {
            return Ok(());
        };
        let uses = self.key_uses(object).await?;
        zap::update_u64(&self.mos, object, key_entries::REFCOUNT, uses + 1, tx).await?;
        self.zapify(clone.object, tx).await?;
        zap::add_u64(
            &self.mos,
            clone.object,
            zapified_keys::CRYPTO_KEY,
            object.0,
            tx,
        )
        .await?;
        Ok(())
    }

    /// Gives up the key object of a directory that is destroyed; the last of those that use it destroys it. Syncing context.
    pub(crate) async fn release_key(&self, dir: &DslDir, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "release key happens in syncing context");
        let Some(object) = self.key_object(dir).await? else {
            return Ok(());
        };
        let uses = self.key_uses(object).await?;
        if uses > 1 {
            zap::update_u64(&self.mos, object, key_entries::REFCOUNT, uses - 1, tx).await?;
        } else {
            self.mos.free_object(object, tx).await?;
            // Its number may become that of another key object.
            self.keys.forget(object);
        }
        // So may the directory's.
        self.keys.unload(dir.object);
        Ok(())
    }

    /// How many directories use a key object.
    pub(crate) async fn key_uses(&self, object: ObjectId) -> Result<u64> {
        let uses = zap::lookup_u64(&self.mos, object, key_entries::REFCOUNT).await?;
        uses.ok_or_else(|| DslError::corrupt("uses of an encryption key", object))
    }

    /// The directory whose wrapping key the datasets of a directory need; `None` when they are not encrypted.
    pub(crate) async fn encryption_root_of(&self, dir: &DslDir) -> Result<Option<ObjectId>> {
        match self.key_object(dir).await? {
            None => Ok(None),
            Some(object) => Ok(Some(ObjectId(self.read_key(object).await?.root_dir))),
        }
    }

    /// Gives a new snapshot of an encrypted dataset the identity of its set of IVs, which raw streams compare. Syncing context.
    // OpenZFS: module/zfs/dsl_dataset.c, dsl_dataset_snapshot_sync_impl
    pub(crate) async fn name_ivset(&self, dir: &DslDir, snapshot: ObjectId, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "name ivset happens in syncing context");
        if self.key_object(dir).await?.is_none() || !self.features.is_enabled("bookmark_v2") {
            return Ok(());
        }
        self.zapify(snapshot, tx).await?;
        let guid = self.new_fsid();
        zap::add_u64(&self.mos, snapshot, zapified_keys::IVSET_GUID, guid, tx).await?;
        Ok(())
    }

    /// Fails when a rename would take a dataset away from its encryption root.
    pub(crate) async fn check_rename_within_root(
        &self,
        dir: &DslDir,
        parent: &DslDir,
    ) -> Result<()> {
        match self.encryption_root_of(dir).await? {
            Some(root)
                if root != dir.object && self.encryption_root_of(parent).await? != Some(root) =>
            {
                Err(DslError::RenameOutsideRoot)
            }
            _ => Ok(()),
        }
    }

    /// Fails when the origin's keys would have to be wrapped anew by a promotion.
    pub(crate) async fn check_promote_within_root(
        &self,
        clone: &DslDir,
        origin: &DslDir,
    ) -> Result<()> {
        // Of a chain of clones, the first origin decides; and a root is passed on.
        let Some(root) = self.encryption_root_of(origin).await? else {
            return Ok(());
        };
        if self.is_clone(origin) || root == origin.object {
            return Ok(());
        }
        let (Some(above), Some(beside)) = (clone.parent(), origin.parent()) else {
            return Err(DslError::PromoteOutsideRoot);
        };
        let target = self.encryption_root_of(&above).await?;
        if target.is_none() || target != self.encryption_root_of(&beside).await? {
            return Err(DslError::PromoteOutsideRoot);
        }
        Ok(())
    }

    /// Whether a directory's dataset is a clone.
    pub(crate) fn is_clone(&self, dir: &DslDir) -> bool {
        let origin = ObjectId(dir.phys().origin_obj);
        origin.0 != 0 && !self.is_origin_snap(origin)
    }

    /// Makes a clone that is promoted the encryption root that its origin was, for all that used the origin's wrapping key. Syncing
    /// context, before the links between both change.
    // OpenZFS: module/zfs/dsl_crypt.c, dsl_dataset_promote_crypt_sync; there the key has to be loaded again afterwards.
    pub(crate) async fn promote_root(
        self: &Rc<Self>,
        clone: &Rc<DslDir>,
        origin: &Rc<DslDir>,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "promote root happens in syncing context");
        if self.is_clone(origin) || self.encryption_root_of(origin).await? != Some(origin.object) {
            return Ok(());
        }
        let scope = self.scope(origin, None).await?;
        let location = scope.native(Property::KeyLocation).value;
        self.set_key_location(clone, Some(location), tx).await?;
        self.set_key_location(origin, None, tx).await?;
        for object in self.keys_of_root(origin).await? {
            let root = clone.object.0;
            zap::update_u64(&self.mos, object, key_entries::ROOT_DIR, root, tx).await?;
        }
        self.keys.pass_on(origin.object, clone.object);
        Ok(())
    }

    /// Sets the place of a directory's key, or clears it. Syncing context.
    pub(crate) async fn set_key_location(
        self: &Rc<Self>,
        dir: &Rc<DslDir>,
        location: Option<Value>,
        tx: &Tx,
    ) -> Result<()> {
        assert!(
            tx.is_syncing(),
            "set key location happens in syncing context"
        );
        let name = Property::KeyLocation.name();
        let map = ObjectId(dir.phys().props_zapobj);
        let how = match location {
            Some(_) => PropertyWrite::Local,
            None => PropertyWrite::Received,
        };
        property_zap::write(&self.mos, map, name, location.as_ref(), how, tx).await?;
        let found = Found {
            dir: dir.clone(),
            dataset: ObjectId(dir.phys().head_dataset_obj),
            snapshot: None,
        };
        let value = location.as_ref().and_then(Value::text).unwrap_or("none");
        let text = format!("{name}={value}");
        self.event("set", &self.name_of_found(&found), found.dataset, text, tx);
        self.refresh_properties(dir).await
    }

    /// The key objects that are wrapped by the same key as a directory's, from this directory down: its own, those of what
    /// lies below it, and below clones of its snapshots. A clone below it is left to its origin, whose key it uses.
    // OpenZFS: module/zfs/dsl_crypt.c, spa_keystore_change_key_sync_impl
    pub(crate) async fn keys_of_root(self: &Rc<Self>, dir: &Rc<DslDir>) -> Result<Vec<ObjectId>> {
        let mut keys = Vec::new();
        let Some(root) = self.encryption_root_of(dir).await? else {
            return Ok(keys);
        };
        let mut seen = BTreeSet::new();
        // Whether the key object of the directory is wanted, or only what lies below.
        let mut work = vec![(dir.clone(), true)];
        while let Some((dir, wanted)) = work.pop() {
            let is_other = wanted
                && (self.is_clone(&dir) || self.encryption_root_of(&dir).await? != Some(root));
            // An origin may lie below its clone.
            if is_other || !seen.insert(dir.object) {
                continue;
            }
            if wanted {
                keys.extend(self.key_object(&dir).await?);
            }
            let below = self.children(&dir).await?;
            work.extend(below.into_iter().map(|child| (child, true)));
            for clone in self.cloned_heads(&dir).await? {
                let clone_dir = ObjectId(self.dataset_phys(clone).await?.dir_obj);
                work.push((self.dir(clone_dir).await?, false));
            }
        }
        Ok(keys)
    }
}
