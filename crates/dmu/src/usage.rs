//! Who uses how much: per user, group and project, bytes and numbers of objects, kept in three ZAPs.
//!
//! format/06 section 2. An object counts 512 bytes plus its used bytes; each sync adds the differences of the objects it wrote.

use std::cell::RefCell;
use std::collections::BTreeMap;

use ondisk::{ObjectType, Txg, dnode_flags, objset_flags};

use crate::dnode::Base;
use crate::error::Result;
use crate::objset::{GROUP_USED, Objset, PROJECT_USED, USER_USED};
use crate::types::OwnerOf;
use crate::zap;

/// Bytes an object counts besides its blocks (OpenZFS: `DNODE_MIN_SIZE`, whatever its slots).
const DNODE_BYTES: i64 = 512;

/// Differences of one sync, by ZAP (0 user, 1 group, 2 project) and id: bytes and objects.
#[derive(Default)]
pub(crate) struct UsageDelta(RefCell<BTreeMap<(usize, u64), (i64, i64)>>);

impl UsageDelta {
    /// Adds the difference between two versions of an object and sets the accounting flags of the new one.
    pub(crate) fn note(
        &self,
        owner_of: Option<OwnerOf>,
        os_flags: u64,
        old: &Base,
        new: &mut Base,
    ) {
        let Some(owner_of) = owner_of else { return };
        if os_flags & objset_flags::USER_ACCOUNTING_COMPLETE == 0 {
            return;
        }
        if old.flags & dnode_flags::USERUSED_ACCOUNTED != 0 {
            let counted = old.flags & dnode_flags::USEROBJUSED_ACCOUNTED != 0;
            self.add(owner_of, os_flags, old, -1, counted);
        }
        if new.core.is_free() {
            return;
        }
        let count_objects = os_flags & objset_flags::USER_OBJECT_ACCOUNTING_COMPLETE != 0;
        new.flags |= dnode_flags::USERUSED_ACCOUNTED;
        if count_objects {
            new.flags |= dnode_flags::USEROBJUSED_ACCOUNTED;
        }
        self.add(owner_of, os_flags, new, 1, count_objects);
    }

    fn add(&self, owner_of: OwnerOf, os_flags: u64, base: &Base, sign: i64, count_objects: bool) {
        if !matches!(base.core.bonus_type, ObjectType::SA | ObjectType::ZNODE) {
            return;
        }
        let Some(owner) = owner_of(base.core.bonus_type, &base.core.bonus) else {
            return;
        };
        let bytes =
            sign * (DNODE_BYTES + i64::try_from(base.used).unwrap_or(i64::MAX - DNODE_BYTES));
        let objects = if count_objects { sign } else { 0 };
        let mut map = self.0.borrow_mut();
        let mut note = |which: usize, id: u64| {
            let entry = map.entry((which, id)).or_insert((0, 0));
            entry.0 += bytes;
            entry.1 += objects;
        };
        note(0, owner.uid);
        note(1, owner.gid);
        if os_flags & objset_flags::PROJECT_QUOTA_COMPLETE != 0 {
            note(2, owner.project);
        }
    }

    /// Brings the ZAPs up to date in the syncing txg. They become dirty, to be written next.
    pub(crate) async fn store(&self, os: &Objset, txg: Txg) -> Result<()> {
        let map = self.0.take();
        let tx = os.0.services.clock.syncing_tx(txg);
        for ((which, id), (bytes, objects)) in map {
            if bytes == 0 && objects == 0 {
                continue;
            }
            let object = [USER_USED, GROUP_USED, PROJECT_USED][which];
            if os.0.usage[which].is_free(txg) {
                zap::format_special(os, &os.0.usage[which], ObjectType::USERGROUP_USED, &tx)
                    .await?;
            }
            if bytes != 0 {
                zap::increment(os, object, format!("{id:x}"), bytes, &tx).await?;
            }
            if objects != 0 {
                zap::increment(os, object, format!("obj-{id:x}"), objects, &tx).await?;
            }
        }
        Ok(())
    }
}

impl Objset {
    /// Bytes used by a user, group or project (`which` 0, 1, 2) as of the newest change of the ZAPs; and objects.
    ///
    /// # Errors
    /// Read errors.
    pub async fn usage(&self, which: usize, id: u64) -> Result<(u64, u64)> {
        let Some(dnode) = self.0.usage.get(which) else {
            return Ok((0, 0));
        };
        if dnode.is_free(crate::dnode::NEWEST) {
            return Ok((0, 0));
        }
        let bytes = zap::lookup_u64(self, dnode.id, format!("{id:x}"))
            .await?
            .unwrap_or(0);
        let objects = zap::lookup_u64(self, dnode.id, format!("obj-{id:x}"))
            .await?
            .unwrap_or(0);
        Ok((bytes, objects))
    }

    /// All entries of a usage ZAP (`which`: 0 users, 1 groups, 2 projects): name as stored (`hex` or `obj-hex`), value.
    ///
    /// # Errors
    /// Read errors.
    pub async fn usage_entries(&self, which: usize) -> Result<Vec<(String, u64)>> {
        let Some(dnode) = self.0.usage.get(which) else {
            return Ok(Vec::new());
        };
        if dnode.is_free(crate::dnode::NEWEST) {
            return Ok(Vec::new());
        }
        let entries = zap::entries(self, dnode.id).await?;
        Ok(entries
            .into_iter()
            .filter_map(|e| Some((String::from_utf8(e.name).ok()?, e.value.as_u64()?)))
            .collect())
    }
}
