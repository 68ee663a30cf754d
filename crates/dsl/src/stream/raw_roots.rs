//! Encryption roots of what was received raw: each dataset arrives as a root of its own, and becomes what it is at its sender.
//!
//! Wrapped keys stay as they came, for the sender wrapped them with the key of the root that is named here.
//! OpenZFS: module/zfs/dsl_crypt.c, spa_keystore_change_key_sync_impl (DCP_CMD_FORCE_NEW_KEY, DCP_CMD_FORCE_INHERIT).

use std::rc::Rc;

use dmu::Tx;
use dmu::zap;
use ondisk::ObjectId;
use ondisk::crypt::key_entries;

use crate::change_log::Concerned;
use crate::dsl_dir::DslDir;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::hierarchy::Hierarchy;
use crate::property::Value;

/// What a dataset that was received raw becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceivedRoot {
    /// An encryption root, whose key is found at this place (`keylocation`).
    Own(String),
    /// A dataset whose key is wrapped by the key of its parent's encryption root.
    Parent,
}

impl Hierarchy {
    /// Makes an encrypted file system or volume an encryption root, or one of its parent's, without wrapping keys anew. It is on disk
    /// when this returns.
    ///
    /// # Errors
    /// `NotFound`; `NotEncrypted` for it or its parent; `WrongKind` for a clone, which follows its origin; of reading.
    pub async fn place_received_root(&self, name: &str, root: ReceivedRoot) -> Result<()> {
        let request = Rc::new((name.to_owned(), root));
        self.until_done(&Concerned::All, || {
            let request = Rc::clone(&request);
            async move |this: &Self, tx: &Tx| {
                let (name, root) = &*request;
                let pool = this.pool();
                let (dir, target) = pool.check_received_root(name, root).await?;
                this.apply(pool.move_received_root(&dir, target, root, tx))
                    .await
            }
        })
        .await
    }
}

impl DslPool {
    /// The directory, and the one whose key wraps its own from now on.
    async fn check_received_root(
        self: &Rc<Self>,
        name: &str,
        root: &ReceivedRoot,
    ) -> Result<(Rc<DslDir>, ObjectId)> {
        let found = self.find(name).await?;
        let dir = found.dir;
        let origin = ObjectId(dir.phys().origin_obj);
        if found.snapshot.is_some() || (origin.0 != 0 && !self.is_origin_snap(origin)) {
            return Err(DslError::WrongKind { name: name.into() });
        }
        let plain = || DslError::NotEncrypted { name: name.into() };
        let target = match root {
            ReceivedRoot::Own(_) => Some(dir.object),
            ReceivedRoot::Parent => {
                let parent = dir.parent().ok_or_else(plain)?;
                self.encryption_root_of(&parent).await?
            }
        };
        self.key_object(&dir).await?.ok_or_else(plain)?;
        Ok((dir, target.ok_or_else(plain)?))
    }

    async fn move_received_root(
        self: &Rc<Self>,
        dir: &Rc<DslDir>,
        target: ObjectId,
        root: &ReceivedRoot,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "roots change in syncing context");
        for object in self.keys_of_root(dir).await? {
            zap::update_u64(&self.mos, object, key_entries::ROOT_DIR, target.0, tx).await?;
            self.keys.forget(object);
        }
        if target != dir.object {
            self.keys.unload(dir.object);
        }
        let location = match root {
            ReceivedRoot::Own(location) => Some(Value::Text(location.clone())),
            ReceivedRoot::Parent => None,
        };
        self.set_key_location(dir, location, tx).await
    }
}
