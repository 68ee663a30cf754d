//! Attributes as they are stored: system attributes in bonus and spill block, or, in file systems before version 5, a record of
//! fixed form in the bonus, with an object of its own for an ACL for which the record has no room.

use std::cell::Cell;

use dmu::{AllocSpec, Tx};
use ondisk::{ObjectId, ObjectType};

use crate::FsResult;
use crate::fs::Fs;
use crate::sa::{Attrs, BONUS_SA, BONUS_ZNODE, Plan, StoredAttrs, layout, legacy};

impl Fs {
    /// Encodes attributes as the file system's version stores them. `acl_object` is the file's object for a long ACL: it is made,
    /// written or freed here.
    pub(crate) async fn stored_attrs(
        &self,
        attrs: &Attrs,
        plan: &Plan,
        acl_object: &Cell<u64>,
        tx: &Tx,
    ) -> FsResult<StoredAttrs> {
        let version = self.0.master.version;
        if !self.0.master.has_records() {
            self.free_acl_object(acl_object, tx).await?;
            let (mut bonus, mut spill) = (Vec::with_capacity(layout::bonus_max(1)), Vec::new());
            attrs.encode(&self.0.sa.registry(), plan, &mut bonus, &mut spill);
            return Ok(StoredAttrs {
                bonus_type: BONUS_SA,
                bonus,
                spill,
            });
        }
        match legacy::long_acl(attrs, version)? {
            Some(bytes) => self.write_acl_object(acl_object, &bytes, tx).await?,
            None => self.free_acl_object(acl_object, tx).await?,
        }
        Ok(StoredAttrs {
            bonus_type: BONUS_ZNODE,
            bonus: legacy::encode(attrs, version, acl_object.get())?,
            spill: Vec::new(),
        })
    }

    // OpenZFS: module/os/linux/zfs/zfs_acl.c, zfs_aclset_common
    async fn write_acl_object(&self, object: &Cell<u64>, bytes: &[u8], tx: &Tx) -> FsResult<()> {
        if object.get() == 0 {
            let kind = if self.0.master.version < legacy::VERSION_FUID {
                ObjectType::OLDACL
            } else {
                ObjectType::ACL
            };
            let len = u32::try_from(bytes.len().next_multiple_of(512)).expect("64 KiB at most");
            let spec = AllocSpec::new(kind).block_size(len);
            object.set(self.os().allocate(spec, tx).await?.0);
        }
        self.os()
            .write(ObjectId(object.get()), 0, bytes, tx)
            .await?;
        Ok(())
    }

    /// Frees a file's object for a long ACL, if it has one.
    pub(crate) async fn free_acl_object(&self, object: &Cell<u64>, tx: &Tx) -> FsResult<()> {
        if object.get() != 0 {
            self.os().free_object(ObjectId(object.get()), tx).await?;
            object.set(0);
        }
        Ok(())
    }
}
