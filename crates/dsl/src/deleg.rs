//! Delegated permissions: what users other than root may do to a dataset and its descendants (`zfs allow`).
//!
//! A directory has a ZAP of grants; each entry names a ZAP of permissions, or of permission
//! sets.
//! Keys of entries: [`ondisk::deleg`].
//!
//! OpenZFS: module/zfs/dsl_deleg.c (the layout and the order of search).

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use dmu::Tx;
use dmu::zap::{self, ZapSpec, ZapValue};
use ondisk::deleg::{is_key, keys_of_user};
use ondisk::{ObjectId, ObjectType, Txg, pool_version};

use crate::change_log::Concerned;
use crate::dsl_dir::DslDir;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::hierarchy::Hierarchy;
use crate::namecheck::split;
use crate::sync_task::SyncTask;

/// Grants of one dataset: permissions and set names by the key of the entry.
pub type Grants = BTreeMap<String, BTreeSet<String>>;

/// Changes of grants by the key of the entry; `None` removes the whole entry.
pub type GrantChange = Vec<(String, Option<Vec<String>>)>;

/// The user on whose behalf an operation is checked.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Subject {
    /// User.
    pub uid: u32,
    /// Primary and supplementary groups.
    pub groups: Vec<u32>,
}

impl Subject {
    /// The number of a user who is none of the machine: no file is theirs, and nothing is granted to them as creators.
    pub const NOBODY: u32 = u32::MAX;

    /// Keys of the entries that apply to the subject; `kind` is `l` (local) or `d` (descendent).
    fn keys(&self, sets: bool, kind: char) -> Vec<String> {
        keys_of_user(self.uid, &self.groups, sets, kind)
    }
}

impl Hierarchy {
    /// Returns the grants of a dataset and those above it, its own first; those without any are left out.
    ///
    /// # Errors
    /// `NotFound`; errors of reading.
    pub async fn grants(&self, name: &str) -> Result<Vec<(String, Grants)>> {
        let pool = self.pool();
        let _names = pool.config.read().await;
        let found = pool.find(name).await?;
        let mut all = Vec::new();
        for dir in found.dir.chain() {
            let grants = pool.grants_of(&dir).await?;
            if !grants.is_empty() {
                all.push((pool.name_of(&dir), grants));
            }
        }
        Ok(all)
    }

    /// Returns whether a permission on a dataset or snapshot was delegated to a subject.
    ///
    /// # Errors
    /// `NotFound`; errors of reading.
    pub async fn is_delegated(
        &self,
        name: &str,
        permission: &str,
        subject: &Subject,
    ) -> Result<bool> {
        let pool = self.pool();
        let _names = pool.config.read().await;
        let parts = split(name);
        let missing = || DslError::NotFound { name: name.into() };
        let dir = pool.find_dir(parts.head).await?.ok_or_else(missing)?;
        // What is granted on a dataset itself does not hold for its snapshots, whether or not this one exists.
        let own = parts.snapshot.is_none() && parts.bookmark.is_none();
        let mut kind = if own { 'l' } else { 'd' };
        // Sets met so far, and whether they need no further look: the nearest definition counts.
        let mut sets: BTreeMap<String, bool> = BTreeMap::new();
        for dir in dir.chain() {
            let grants = pool.grants_of(&dir).await?;
            if permits(&grants, kind, permission, subject, &mut sets) {
                return Ok(true);
            }
            kind = 'd';
        }
        Ok(false)
    }

    /// Adds grants to a dataset.
    ///
    /// # Errors
    /// `NotFound`, `BadName` for a malformed key.
    pub async fn allow(&self, name: &str, change: GrantChange) -> Result<()> {
        let name = name.to_owned();
        let task = ChangeGrants {
            name,
            change,
            remove: false,
        };
        self.pool().run(task).await
    }

    /// Removes grants of a dataset; those that do not exist are skipped.
    ///
    /// # Errors
    /// `NotFound`, `BadName` for a malformed key.
    pub async fn unallow(&self, name: &str, change: GrantChange) -> Result<()> {
        let name = name.to_owned();
        let task = ChangeGrants {
            name,
            change,
            remove: true,
        };
        self.pool().run(task).await
    }
}

/// Adds grants to a dataset, or removes them.
struct ChangeGrants {
    name: String,
    change: GrantChange,
    remove: bool,
}

impl SyncTask for ChangeGrants {
    type Checked = Rc<DslDir>;
    type Output = ();

    fn name(&self) -> &'static str {
        if self.remove { "unallow" } else { "allow" }
    }

    fn concerned(&self) -> Concerned {
        Concerned::Nothing
    }

    async fn check(&self, pool: &Rc<DslPool>, _: Option<Txg>) -> Result<Rc<DslDir>> {
        if !pool
            .features
            .has_version(pool_version::DELEGATED_PERMISSIONS)
        {
            return Err(DslError::PoolVersionTooOld {
                what: "delegate permissions",
            });
        }
        for (key, permissions) in &self.change {
            let empty = permissions.as_ref().map_or(!self.remove, Vec::is_empty);
            if !is_key(key) || empty {
                return Err(DslError::BadName {
                    name: key.clone(),
                    why: "invalid permission".to_owned(),
                });
            }
        }
        if split(&self.name).snapshot.is_some() {
            let name = self.name.clone();
            return Err(DslError::WrongKind { name });
        }
        Ok(pool.find(&self.name).await?.dir)
    }

    async fn apply(self, pool: &Rc<DslPool>, dir: Rc<DslDir>, tx: &Tx) -> Result<()> {
        for (key, permissions) in &self.change {
            if self.remove {
                pool.remove_grant(&dir, key, permissions.as_deref(), tx)
                    .await?;
            } else {
                pool.add_grant(&dir, key, permissions.iter().flatten(), tx)
                    .await?;
            }
        }
        Ok(())
    }
}

fn permits(
    grants: &Grants,
    kind: char,
    permission: &str,
    subject: &Subject,
    sets: &mut BTreeMap<String, bool>,
) -> bool {
    if grants.is_empty() {
        return false;
    }
    let has = |key: &str| grants.get(key).map(|all| all.contains(permission));
    for key in subject.keys(true, kind) {
        for set in grants.get(&key).into_iter().flatten() {
            sets.entry(set.clone()).or_insert(false);
        }
    }
    loop {
        let open: Vec<String> = sets
            .iter()
            .filter(|(_, done)| !**done)
            .map(|(set, _)| set.clone())
            .collect();
        let mut expanded = false;
        for set in open {
            match has(&format!("s-${set}")) {
                Some(true) => return true,
                Some(false) => {
                    sets.insert(set.clone(), true);
                }
                None => {}
            }
            if let Some(included) = grants.get(&format!("S-${set}")) {
                sets.insert(set, true);
                expanded = true;
                for set in included {
                    sets.entry(set.clone()).or_insert(false);
                }
            }
        }
        if !expanded {
            break;
        }
    }
    subject
        .keys(false, kind)
        .iter()
        .any(|key| has(key) == Some(true))
}

impl DslPool {
    /// The grants of one directory.
    async fn grants_of(&self, dir: &Rc<DslDir>) -> Result<Grants> {
        let mut grants = Grants::new();
        let map = dir.phys().deleg_zapobj;
        if map == 0 {
            return Ok(grants);
        }
        for (key, object) in self.numbers(ObjectId(map)).await? {
            let permissions = self.numbers(ObjectId(object)).await?;
            let names = permissions.into_iter().map(|(name, _)| name);
            grants.insert(key, names.collect());
        }
        Ok(grants)
    }

    async fn numbers(&self, map: ObjectId) -> Result<Vec<(String, u64)>> {
        let entries = zap::entries(&self.mos, map).await?;
        Ok(entries
            .into_iter()
            .filter_map(|entry| match entry.value {
                ZapValue::U64(words) => {
                    let name = String::from_utf8_lossy(&entry.name).into_owned();
                    Some((name, words.first().copied()?))
                }
                _ => None,
            })
            .collect())
    }

    async fn grant_map(&self, tx: &Tx) -> Result<ObjectId> {
        Ok(zap::create(&self.mos, &ZapSpec::new(ObjectType::DSL_PERMS), tx).await?)
    }

    async fn add_grant(
        &self,
        dir: &Rc<DslDir>,
        key: &str,
        permissions: impl Iterator<Item = &String>,
        tx: &Tx,
    ) -> Result<()> {
        let mut map = ObjectId(dir.phys().deleg_zapobj);
        if map.0 == 0 {
            map = self.grant_map(tx).await?;
            dir.change(|phys| phys.deleg_zapobj = map.0);
        }
        let jump = match zap::lookup_u64(&self.mos, map, key).await? {
            Some(jump) => ObjectId(jump),
            None => {
                let jump = self.grant_map(tx).await?;
                zap::add_u64(&self.mos, map, key, jump.0, tx).await?;
                jump
            }
        };
        let name = self.name_of(dir);
        for permission in permissions {
            zap::update_u64(&self.mos, jump, permission, 0, tx).await?;
            let text = format!("{key} {permission}");
            let head = ObjectId(dir.phys().head_dataset_obj);
            self.event("permission update", &name, head, text, tx);
        }
        Ok(())
    }

    async fn remove_grant(
        &self,
        dir: &Rc<DslDir>,
        key: &str,
        permissions: Option<&[String]>,
        tx: &Tx,
    ) -> Result<()> {
        let map = ObjectId(dir.phys().deleg_zapobj);
        let head = ObjectId(dir.phys().head_dataset_obj);
        let name = self.name_of(dir);
        if map.0 == 0 {
            return Ok(());
        }
        let jump = zap::lookup_u64(&self.mos, map, key).await?.map(ObjectId);
        let Some(permissions) = permissions else {
            if let Some(jump) = jump {
                zap::remove(&self.mos, map, key, tx).await?;
                self.mos.free_object(jump, tx).await?;
            }
            self.event("permission who remove", &name, head, key.to_owned(), tx);
            return Ok(());
        };
        let Some(jump) = jump else {
            return Ok(());
        };
        for permission in permissions {
            if zap::lookup(&self.mos, jump, permission).await?.is_some() {
                zap::remove(&self.mos, jump, permission, tx).await?;
            }
            let text = format!("{key} {permission}");
            self.event("permission remove", &name, head, text, tx);
        }
        if zap::count(&self.mos, jump).await? == 0 {
            zap::remove(&self.mos, map, key, tx).await?;
            self.mos.free_object(jump, tx).await?;
        }
        Ok(())
    }

    /// Grants the creator of a dataset what the datasets above grant to creators. Syncing context.
    pub(crate) async fn grant_to_creator(
        &self,
        dir: &Rc<DslDir>,
        creator: u32,
        tx: &Tx,
    ) -> Result<()> {
        assert!(
            tx.is_syncing(),
            "grant to creator happens in syncing context"
        );
        if creator == Subject::NOBODY {
            return Ok(());
        }
        for above in dir.chain().into_iter().skip(1) {
            let grants = self.grants_of(&above).await?;
            for (granted, own) in [("c-$", 'u'), ("C-$", 'U')] {
                if let Some(permissions) = grants.get(granted) {
                    let key = format!("{own}l${creator}");
                    self.add_grant(dir, &key, permissions.iter(), tx).await?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(entries: &[(&str, &[&str])]) -> Grants {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        entries
            .iter()
            .map(|(key, names)| ((*key).to_owned(), set(names)))
            .collect()
    }

    fn allows(grants: &Grants, kind: char, permission: &str) -> bool {
        let subject = Subject {
            uid: 7,
            groups: vec![8, 9],
        };
        permits(grants, kind, permission, &subject, &mut BTreeMap::new())
    }

    #[test]
    fn users_groups_and_everybody() {
        let all = grants(&[
            ("ul$7", &["snapshot"]),
            ("gd$9", &["hold"]),
            ("ed$", &["send"]),
            ("ul$8", &["destroy"]),
        ]);
        assert!(allows(&all, 'l', "snapshot"));
        assert!(!allows(&all, 'd', "snapshot"));
        assert!(allows(&all, 'd', "hold"));
        assert!(allows(&all, 'd', "send"));
        assert!(!allows(&all, 'l', "destroy"));
    }

    #[test]
    fn sets_include_sets() {
        let all = grants(&[
            ("Ul$7", &["@outer"]),
            ("S-$@outer", &["@inner", "@outer"]),
            ("s-$@inner", &["clone"]),
        ]);
        assert!(allows(&all, 'l', "clone"));
        assert!(!allows(&all, 'd', "clone"));
        assert!(!allows(&all, 'l', "destroy"));
    }
}
