//! Space used by users, groups and projects of a file system, and their quotas (`zfs userspace`).
//!
//! Used space is in the special objects of the object set; quotas are ZAPs named in the
//! master node. OpenZFS: module/zfs/zfs_quota.c.

use std::collections::BTreeMap;
use std::rc::Rc;

use dmu::zap::{self, ZapSpec, ZapValue};
use dmu::{Objset, Owner};
use ondisk::{ObjectId, ObjectType, objset_flags};

use crate::complete_counts::are_complete;
use crate::dataset::Dataset;
use crate::dataset_state::QuotaObjects;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::hierarchy::Hierarchy;
use crate::property::{DatasetKind, split_user_space};
use crate::types::Estimate;

const MASTER_NODE: ObjectId = ObjectId(1);
/// What the names of counts of objects start with, beside the bytes.
const OBJECTS: &str = "obj-";

/// Whose usage is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UsageOf {
    /// By the owner of files.
    Users,
    /// By the group of files.
    Groups,
    /// By the project of files.
    Projects,
}

impl UsageOf {
    fn index(self) -> usize {
        match self {
            Self::Users => 0,
            Self::Groups => 1,
            Self::Projects => 2,
        }
    }

    /// Whether what they use is known of an object set. Of users and groups as much is told as is counted.
    fn is_counted(self, objset: &Objset) -> bool {
        self != Self::Projects
            || are_complete(
                objset,
                objset_flags::USER_ACCOUNTING_COMPLETE | objset_flags::PROJECT_QUOTA_COMPLETE,
            )
    }

    /// Names of the quota ZAPs, of bytes and of objects.
    fn quotas(self) -> [&'static str; 2] {
        let at = 2 * self.index();
        [QUOTAS[at], QUOTAS[at + 1]]
    }
}

/// Names of the quota ZAPs in the master node: bytes and objects of users, of groups, of
/// projects.
const QUOTAS: [&str; 6] = [
    "userquota@",
    "userobjquota@",
    "groupquota@",
    "groupobjquota@",
    "projectquota@",
    "projectobjquota@",
];

/// What one user, group or project uses and may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Its number; the upper half names a domain of Windows identities.
    pub id: u64,
    /// Bytes used.
    pub used: u64,
    /// Files and directories; `None` where they are not counted.
    pub objects: Option<u64>,
    /// Limit of bytes, 0 for none.
    pub quota: u64,
    /// Limit of files, 0 for none.
    pub object_quota: u64,
}

impl Hierarchy {
    /// Returns the usage in a file system or snapshot as of the last sync, by number; nothing of projects where they are not counted.
    ///
    /// # Errors
    /// `NotFound`; `WrongKind` for volumes; errors of reading.
    pub async fn usage(&self, name: &str, of: UsageOf) -> Result<Vec<Usage>> {
        let _names = self.pool().config.read().await;
        self.pool().usage(name, of).await
    }
}

impl Dataset {
    /// Whether an owner has reached a quota and may not take more: bytes, and with `creating` files
    /// too. Usage is as of the last sync, so that a quota can be exceeded by what one txg writes.
    ///
    /// # Errors
    /// Of reading.
    pub async fn over_quota(&self, owner: Owner, creating: bool) -> Result<bool> {
        let objset = self.objset();
        let objects = self.quota_objects(&objset).await?;
        if objects == QuotaObjects::default() {
            return Ok(false);
        }
        let ids = [owner.uid, owner.gid, owner.project];
        for (which, id) in ids.into_iter().enumerate() {
            let [bytes, files] = [objects[2 * which], objects[2 * which + 1]];
            if bytes == 0 && files == 0 {
                continue;
            }
            let (used, count) = objset.usage(which, id).await?;
            if reached(&objset, bytes, id, used).await?
                || (creating && reached(&objset, files, id, count).await?)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn quota_objects(&self, objset: &Objset) -> Result<QuotaObjects> {
        let state = self.state();
        if let Some(objects) = state.quotas.get() {
            return Ok(objects);
        }
        let mut objects = QuotaObjects::default();
        for (slot, name) in objects.iter_mut().zip(QUOTAS) {
            *slot = zap::lookup_u64(objset, MASTER_NODE, name)
                .await?
                .unwrap_or(0);
        }
        state.quotas.set(Some(objects));
        Ok(objects)
    }

    /// Refuses a file system whose version counts no space by owner.
    // OpenZFS: module/zfs/zfs_quota.c, zfs_set_userquota (ZPL_VERSION_USERSPACE)
    async fn check_counts_by_owner(&self, objset: &Objset) -> Result<()> {
        const VERSION_USERSPACE: u64 = 4;
        let version = zap::lookup_u64(objset, MASTER_NODE, "VERSION").await?;
        if version.is_some_and(|version| version < VERSION_USERSPACE) {
            return Err(DslError::PoolVersionTooOld {
                what: "set this quota, and the file system with 'zfs upgrade'",
            });
        }
        Ok(())
    }

    /// Sets a quota of a user, group or project; `name` is the property's up to its `@`, and 0 is no
    /// limit. On disk when it returns.
    ///
    /// # Errors
    /// `ReadOnly`, `FeatureDisabled`, `WrongKind`, errors about space.
    pub async fn set_user_quota(&self, name: &str, id: u64, limit: u64) -> Result<()> {
        let slot = QUOTAS.iter().position(|known| *known == name);
        let slot = slot.ok_or(DslError::Unsupported { what: "this quota" })?;
        if self.head_kind() != DatasetKind::Filesystem {
            return Err(DslError::WrongKind { name: self.name() });
        }
        if name.starts_with("project") {
            self.needs_enabled("project_quota")?;
        }
        let objset = self.objset();
        self.check_counts_by_owner(&objset).await?;
        let mut objects = self.quota_objects(&objset).await?;
        if objects[slot] == 0 && limit == 0 {
            return Ok(());
        }
        let tx = self.begin(Estimate::freeing(QUOTA_BYTES)).await?;
        if objects[slot] == 0 {
            let spec = ZapSpec::new(ObjectType::USERGROUP_QUOTA);
            let object = zap::create(&objset, &spec, &tx).await?;
            zap::add_u64(&objset, MASTER_NODE, QUOTAS[slot], object.0, &tx).await?;
            objects[slot] = object.0;
            self.state().quotas.set(Some(objects));
        }
        let map = ObjectId(objects[slot]);
        if limit != 0 {
            zap::update_u64(&objset, map, format!("{id:x}"), limit, &tx).await?;
        } else if zap::lookup_int_key(&objset, map, id).await?.is_some() {
            zap::remove_int(&objset, map, id, &tx).await?;
        }
        let txg = tx.txg();
        let clock = tx.clock().clone();
        drop(tx);
        clock.wait_synced(txg).await?;
        Ok(())
    }
}

/// What setting a quota makes dirty, roughly.
const QUOTA_BYTES: u64 = 64 << 10;

async fn reached(objset: &Objset, map: u64, id: u64, used: u64) -> Result<bool> {
    if map == 0 {
        return Ok(false);
    }
    let limit = zap::lookup_int_key(objset, ObjectId(map), id).await?;
    Ok(limit.is_some_and(|limit| used >= limit))
}

impl DslPool {
    /// The value of a property like `userused@501`: `None` when it is none.
    pub(crate) async fn user_property(&self, objset: &Objset, name: &str) -> Result<Option<u64>> {
        let Some((prefix, who)) = split_user_space(name) else {
            return Ok(None);
        };
        let Ok(id) = who.parse::<u64>() else {
            return Ok(None);
        };
        if let Some(slot) = QUOTAS.iter().position(|known| *known == prefix) {
            let object = zap::lookup_u64(objset, MASTER_NODE, QUOTAS[slot]).await?;
            let limit = match object {
                Some(object) if object != 0 => {
                    zap::lookup_int_key(objset, ObjectId(object), id).await?
                }
                _ => None,
            };
            return Ok(Some(limit.unwrap_or(0)));
        }
        let which = match prefix {
            "userused@" | "userobjused@" => UsageOf::Users,
            "groupused@" | "groupobjused@" => UsageOf::Groups,
            _ => UsageOf::Projects,
        };
        let counts_objects = prefix.ends_with("objused@");
        if !which.is_counted(objset) || (counts_objects && !counts_objects_of(objset)) {
            return Ok(None);
        }
        let (bytes, objects) = objset.usage(which.index(), id).await?;
        Ok(Some(if counts_objects { objects } else { bytes }))
    }

    async fn usage(self: &Rc<Self>, name: &str, of: UsageOf) -> Result<Vec<Usage>> {
        let found = self.find(name).await?;
        if self.kind_of(&found.dir).await? != DatasetKind::Filesystem {
            return Err(DslError::WrongKind { name: name.into() });
        }
        let objset = self.objset_for_reading(found.dataset).await?;
        let mut all: BTreeMap<u64, Usage> = BTreeMap::new();
        if !of.is_counted(&objset) {
            return Ok(Vec::new());
        }
        let with_objects = counts_objects_of(&objset);
        for (key, value) in objset.usage_entries(of.index()).await? {
            let (hex, counts_objects) = match key.strip_prefix(OBJECTS) {
                Some(hex) => (hex, true),
                None => (key.as_str(), false),
            };
            if counts_objects && !with_objects {
                continue;
            }
            let usage = entry(&mut all, hex)?;
            if counts_objects {
                usage.objects = Some(value);
            } else {
                usage.used = value;
            }
        }
        let [bytes, objects] = of.quotas();
        for (hex, limit) in quotas(&objset, bytes).await? {
            entry(&mut all, &hex)?.quota = limit;
        }
        for (hex, limit) in quotas(&objset, objects).await? {
            entry(&mut all, &hex)?.object_quota = limit;
        }
        Ok(all.into_values().collect())
    }
}

/// Whether objects are counted, all of them.
fn counts_objects_of(objset: &Objset) -> bool {
    are_complete(
        objset,
        objset_flags::USER_ACCOUNTING_COMPLETE | objset_flags::USER_OBJECT_ACCOUNTING_COMPLETE,
    )
}

fn entry<'a>(all: &'a mut BTreeMap<u64, Usage>, hex: &str) -> Result<&'a mut Usage> {
    let id = u64::from_str_radix(hex, 16)
        .map_err(|_| DslError::corrupt("usage of users", MASTER_NODE))?;
    let usage = all.entry(id).or_default();
    usage.id = id;
    Ok(usage)
}

/// A quota ZAP of a file system: empty when there is none.
async fn quotas(objset: &Objset, name: &str) -> Result<Vec<(String, u64)>> {
    let object = zap::lookup_u64(objset, MASTER_NODE, name).await?;
    let Some(object) = object.filter(|object| *object != 0) else {
        return Ok(Vec::new());
    };
    let mut all = Vec::new();
    for entry in zap::entries(objset, ObjectId(object)).await? {
        if let (Ok(name), ZapValue::U64(value)) = (String::from_utf8(entry.name), entry.value) {
            all.push((name, value.first().copied().unwrap_or(0)));
        }
    }
    Ok(all)
}
