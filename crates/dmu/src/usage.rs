//! Who uses how much: per user, group and project, bytes and numbers of objects, kept in three ZAPs.
//!
//! format/06 section 2. An object counts 512 bytes plus its used bytes; each sync adds the differences of the objects it wrote.

use std::cell::RefCell;
use std::collections::BTreeMap;

use ondisk::{ObjectId, ObjectType, Txg, dnode_flags, objset_flags};

use crate::counted_objects::{Counting, ObjectChange};
use crate::dnode::Base;
use crate::error::Result;
use crate::objset::{GROUP_USED, Objset, PROJECT_USED, USER_USED};
use crate::types::OwnerOf;
use crate::zap;

/// Bytes an object counts besides its blocks (OpenZFS: `DNODE_MIN_SIZE`, whatever its slots).
const DNODE_BYTES: i64 = 512;

/// Differences of one sync, by ZAP (0 user, 1 group, 2 project) and id: bytes and objects.
pub(crate) struct UsageDelta {
    owner_of: Option<OwnerOf>,
    /// Flags of what is counted, also where that is not complete.
    flags: u64,
    txg: Txg,
    pass: u32,
    delta: RefCell<BTreeMap<(usize, u64), (i64, i64)>>,
}

/// The counts that an object is in.
#[derive(Clone, Copy)]
struct Counts {
    bytes: bool,
    objects: bool,
    projects: bool,
}

impl UsageDelta {
    /// Counts nothing.
    pub(crate) fn none(txg: Txg) -> Self {
        Self {
            owner_of: None,
            flags: 0,
            txg,
            pass: 1,
            delta: RefCell::default(),
        }
    }

    /// For a sync of objects, in the objset whose flags are `os_flags` then.
    pub(crate) fn new(os: &Objset, os_flags: u64, txg: Txg, pass: u32) -> Self {
        let counting = os.0.counting.borrow();
        let begun = counting.as_ref().filter(|counting| txg >= counting.from);
        Self {
            owner_of: os.0.options.owner_of,
            flags: os_flags | begun.map_or(0, |counting| counting.flags),
            pass,
            ..Self::none(txg)
        }
    }

    /// Adds the difference between two versions of an object and sets the accounting flags of the new one, which was `made` anew or not.
    pub(crate) fn note(
        &self,
        os: &Objset,
        object: ObjectId,
        made: bool,
        old: &Base,
        new: &mut Base,
    ) {
        let Some(owner_of) = self.owner_of else {
            return;
        };
        if self.flags & objset_flags::USER_ACCOUNTING_COMPLETE == 0 {
            return;
        }
        let (was, is) = self.walked(os, object, made, new);
        let counts_projects = self.flags & objset_flags::PROJECT_QUOTA_COMPLETE != 0;
        let counted = Counts {
            bytes: was.bytes && old.flags & dnode_flags::USERUSED_ACCOUNTED != 0,
            objects: was.objects && old.flags & dnode_flags::USEROBJUSED_ACCOUNTED != 0,
            projects: was.projects && counts_projects,
        };
        self.add(owner_of, old, -1, counted);
        if new.core.is_free() {
            return;
        }
        let counted = Counts {
            objects: is.objects && self.flags & objset_flags::USER_OBJECT_ACCOUNTING_COMPLETE != 0,
            projects: is.projects && counts_projects,
            ..is
        };
        for (is_counted, flag) in [
            (counted.bytes, dnode_flags::USERUSED_ACCOUNTED),
            (counted.objects, dnode_flags::USEROBJUSED_ACCOUNTED),
        ] {
            new.flags = new.flags & !flag | if is_counted { flag } else { 0 };
        }
        self.add(owner_of, new, 1, counted);
    }

    /// The counts an object may have been in before this sync, and may be in after it, as far as they are being made.
    fn walked(&self, os: &Objset, object: ObjectId, made: bool, new: &Base) -> (Counts, Counts) {
        let all = |owners, projects| Counts {
            bytes: owners,
            objects: owners,
            projects,
        };
        let mut counting = os.0.counting.borrow_mut();
        let begun = |counting: &&mut Counting| self.txg >= counting.from && counting.begins_empty();
        let Some(counting) = counting.as_mut().filter(begun) else {
            return (all(true, true), all(true, true));
        };
        let change = match (new.core.is_free(), made) {
            (true, _) => ObjectChange::Freed,
            (_, true) => ObjectChange::Made,
            _ => ObjectChange::Changed,
        };
        let (was, is) = counting.pass_over(object, self.txg, self.pass, change);
        let (owners, projects) = (!counting.owners_anew, !counting.projects_anew);
        (
            all(owners || was, projects || was),
            all(owners || is, projects || is),
        )
    }

    fn add(&self, owner_of: OwnerOf, base: &Base, sign: i64, counted: Counts) {
        if !counted.bytes || !matches!(base.core.bonus_type, ObjectType::SA | ObjectType::ZNODE) {
            return;
        }
        let Some(owner) = owner_of(base.core.bonus_type, &base.core.bonus) else {
            return;
        };
        let bytes =
            sign * (DNODE_BYTES + i64::try_from(base.used).unwrap_or(i64::MAX - DNODE_BYTES));
        let objects = if counted.objects { sign } else { 0 };
        let mut map = self.delta.borrow_mut();
        let mut note = |which: usize, id: u64| {
            let entry = map.entry((which, id)).or_insert((0, 0));
            entry.0 += bytes;
            entry.1 += objects;
        };
        note(0, owner.uid);
        note(1, owner.gid);
        if counted.projects {
            note(2, owner.project);
        }
    }

    /// Brings the ZAPs up to date in the syncing txg. They become dirty, to be written next.
    pub(crate) async fn store(&self, os: &Objset, txg: Txg) -> Result<()> {
        let map = self.delta.take();
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
