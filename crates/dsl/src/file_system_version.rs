//! The version of a file system's layout, in its master node: which ones a pool can hold, and the upgrade to a newer one.
//!
//! Files keep their form until they are changed: an upgrade writes the version alone, and makes the place for the attribute
//! tables of version 5. What has the file system open goes on writing the older form, which the newer version can read.
//!
//! OpenZFS: module/os/linux/zfs/zfs_vfsops.c, zfs_set_version.

use std::rc::Rc;

use dmu::Tx;
use dmu::zap::{self, ZapSpec};
use ondisk::znode::{MASTER_NODE_OBJ, ZPL_VERSION, master_keys};
use ondisk::{ObjectId, ObjectType, ObjsetType, pool_version};

use crate::dsl_pool::{DslPool, Found};
use crate::error::{DslError, Result};
use crate::property::{Property, PropertyError};

const MASTER_NODE: ObjectId = ObjectId(MASTER_NODE_OBJ);

impl DslPool {
    /// Checks that the pool can hold a file system of a version.
    pub(crate) fn check_file_system_version(&self, version: u64) -> Result<()> {
        let newest = pool_version::newest_file_system(self.features.pool_version());
        if version == 0 || version > newest {
            return Err(DslError::PoolVersionTooOld {
                what: "set this property or value",
            });
        }
        Ok(())
    }

    /// Checks that a file system can become one of `version`.
    pub(crate) async fn check_file_system_upgrade(
        self: &Rc<Self>,
        found: &Found,
        version: u64,
    ) -> Result<()> {
        self.check_file_system_version(version)?;
        let fixed = self.fixed_properties(&found.dir).await?;
        match fixed.get(&Property::Version) {
            Some(&current) if current > version => Err(PropertyError::Downgrade(current).into()),
            _ => Ok(()),
        }
    }

    /// Makes a file system one of `version`, if it is there and of an older one. Syncing context.
    pub(crate) async fn upgrade_file_system(
        self: &Rc<Self>,
        found: &Found,
        version: u64,
        tx: &Tx,
    ) -> Result<()> {
        assert!(
            tx.is_syncing(),
            "a file system is upgraded in syncing context"
        );
        let state = self.load_dataset(found.dataset, None).await?;
        if state.objset().is_none() && state.phys().bp.is_hole() {
            // Its objects are about to be made.
            return Ok(());
        }
        self.open_objset(&state).await?;
        let objset = state.objset().expect("it was opened just now");
        if objset.kind() != ObjsetType::ZFS {
            return Ok(());
        }
        let key = master_keys::VERSION;
        let old = zap::lookup_u64(&objset, MASTER_NODE, key).await?;
        let old = old.ok_or_else(|| DslError::corrupt("file system version", state.object))?;
        if old >= version {
            return Ok(());
        }
        zap::update_u64(&objset, MASTER_NODE, key, version, tx).await?;
        let tables = master_keys::SA_ATTRS;
        if version >= ZPL_VERSION
            && zap::lookup_u64(&objset, MASTER_NODE, tables)
                .await?
                .is_none()
        {
            let spec = ZapSpec::new(ObjectType::SA_MASTER_NODE);
            let object = zap::create(&objset, &spec, tx).await?;
            zap::add_u64(&objset, MASTER_NODE, tables, object.0, tx).await?;
        }
        let name = self.name_of_found(found);
        let text = format!("from {old} to {version}");
        self.event("upgrade", &name, state.object, text, tx);
        Ok(())
    }
}
