//! What users, groups and projects use of a file system, and their quotas, as stored.
//!
//! Used space is in the special objects of the object set; quotas are dictionaries named in the
//! master node. OpenZFS: module/zfs/zfs_quota.c.

use std::collections::BTreeMap;
use std::rc::Rc;

use dmu::Objset;
use dmu::zap::{self, ZapValue};
use ondisk::ObjectId;

use crate::error::{DslError, Result};
use crate::hierarchy::Hierarchy;
use crate::inner::Inner;
use crate::property::DatasetKind;

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

    /// Names of the quota dictionaries, of bytes and of objects.
    fn quotas(self) -> [&'static str; 2] {
        match self {
            Self::Users => ["userquota@", "userobjquota@"],
            Self::Groups => ["groupquota@", "groupobjquota@"],
            Self::Projects => ["projectquota@", "projectobjquota@"],
        }
    }
}

/// What one user, group or project uses and may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Its number; the upper half names a domain of Windows identities.
    pub id: u64,
    /// Bytes used.
    pub used: u64,
    /// Files and directories.
    pub objects: u64,
    /// Limit of bytes, 0 for none.
    pub quota: u64,
    /// Limit of files, 0 for none.
    pub object_quota: u64,
}

impl Hierarchy {
    /// Returns the usage in a file system or snapshot as of the last sync, by number.
    ///
    /// # Errors
    /// `NotFound`; `WrongKind` for volumes; errors of reading.
    pub async fn usage(&self, name: &str, of: UsageOf) -> Result<Vec<Usage>> {
        let _names = self.inner().config.read().await;
        self.inner().usage(name, of).await
    }
}

impl Inner {
    async fn usage(self: &Rc<Self>, name: &str, of: UsageOf) -> Result<Vec<Usage>> {
        let found = self.find(name).await?;
        if self.kind_of(&found.dir).await? != DatasetKind::Filesystem {
            return Err(DslError::WrongKind { name: name.into() });
        }
        let objset = self.objset_for_reading(found.dataset).await?;
        let mut all: BTreeMap<u64, Usage> = BTreeMap::new();
        for (key, value) in objset.usage_entries(of.index()).await? {
            let (hex, counts_objects) = match key.strip_prefix(OBJECTS) {
                Some(hex) => (hex, true),
                None => (key.as_str(), false),
            };
            let usage = entry(&mut all, hex)?;
            if counts_objects {
                usage.objects = value;
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

fn entry<'a>(all: &'a mut BTreeMap<u64, Usage>, hex: &str) -> Result<&'a mut Usage> {
    let id = u64::from_str_radix(hex, 16)
        .map_err(|_| DslError::corrupt("usage of users", MASTER_NODE))?;
    let usage = all.entry(id).or_default();
    usage.id = id;
    Ok(usage)
}

/// A quota dictionary of a file system: empty when there is none.
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
