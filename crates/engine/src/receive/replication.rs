//! What `zfs receive` does for an incremental replication stream besides receiving: datasets and snapshots that were renamed, destroyed
//! or promoted at the sender since are so here, too. They are known by the guids of their snapshots.
//!
//! OpenZFS: lib/libzfs/libzfs_sendrecv.c, recv_incremental_replication.

use std::collections::{BTreeMap, BTreeSet};

use dsl::{DslError, ListSpec};

use super::Work;
use super::package::{Package, SentFilesystem};
use crate::property::{Kinds, Property, Value};
use crate::{DestroyOptions, EngineError};

/// More passes than this change nothing any more: each dataset is renamed twice at most.
const PASSES_MAX: usize = 1000;

/// A dataset here.
struct Local {
    name: String,
    /// Guid of the snapshot of its parent that the stream counts from.
    parent_from: u64,
    /// Guid and creation txg of the snapshot that it is a clone of.
    origin: Option<(u64, u64)>,
    /// Names and guids of its snapshots, the oldest first.
    snapshots: Vec<(String, u64)>,
}

/// What a pass came to.
#[derive(Default)]
struct Pass {
    /// Something is left for another pass.
    again: bool,
    /// Something was done.
    progress: bool,
    /// Something could not be done.
    failed: bool,
    /// Guids of snapshots that were destroyed, and of parents of datasets that were.
    destroyed: BTreeSet<u64>,
}

impl Work {
    /// Makes the tree below `top` what it was at the sender; false when something could not be done.
    pub(super) async fn replicate(
        &mut self,
        top: &str,
        package: &Package,
    ) -> Result<bool, EngineError> {
        let Some(from) = &package.from_snapshot else {
            return Ok(true);
        };
        if self.request.dry_run || !self.exists(top).await {
            return Ok(true);
        }
        for _ in 0..PASSES_MAX {
            let locals = self.locals(top, from).await?;
            let mut pass = Pass::default();
            for local in &locals {
                let stop = self
                    .replicate_one(top, local, &locals, package, &mut pass)
                    .await?;
                if stop {
                    break;
                }
            }
            if !(pass.again && pass.progress) {
                return Ok(!pass.again && !pass.failed);
            }
            self.progress("another pass:".to_owned());
        }
        Ok(false)
    }

    /// The datasets from `top` down, parents first.
    async fn locals(&self, top: &str, from: &str) -> Result<Vec<Local>, EngineError> {
        let hierarchy = self.context.pool.hierarchy();
        let wanted = [Property::Origin.name().to_owned()];
        let all = ListSpec {
            depth: None,
            kinds: Kinds::DATASET.union(Kinds::SNAPSHOT),
        };
        let listed = hierarchy.list_properties(top, all, Some(&wanted)).await?;
        let mut locals: Vec<Local> = Vec::new();
        let mut by_name: BTreeMap<String, usize> = BTreeMap::new();
        let mut snapshots = Vec::new();
        for found in listed {
            let info = found.info;
            if let Some((dataset, short)) = info.name.split_once('@') {
                let at = (info.create_txg, dataset.to_owned(), short.to_owned());
                snapshots.push((at, info.guid.0));
                continue;
            }
            let origin = match found.properties.first().map(|entry| &entry.value) {
                Some(Value::Text(origin)) if !origin.is_empty() => {
                    let origin = hierarchy.info(origin).await?;
                    Some((origin.guid.0, origin.create_txg.0))
                }
                _ => None,
            };
            by_name.insert(info.name.clone(), locals.len());
            locals.push(Local {
                name: info.name,
                parent_from: 0,
                origin,
                snapshots: Vec::new(),
            });
        }
        snapshots.sort();
        for ((_, dataset, short), guid) in snapshots {
            if let Some(at) = by_name.get(&dataset) {
                locals[*at].snapshots.push((short, guid));
            }
        }
        for at in 0..locals.len() {
            let parent = locals[at].name.rsplit_once('/').map(|(parent, _)| parent);
            let parent = parent.and_then(|parent| by_name.get(parent)).copied();
            let of_parent = parent.and_then(|parent| {
                let snapshots = &locals[parent].snapshots;
                snapshots.iter().find(|(name, _)| name == from)
            });
            locals[at].parent_from = of_parent.map_or(0, |(_, guid)| *guid);
        }
        Ok(locals)
    }

    /// Looks at one dataset; true when the pass must end.
    async fn replicate_one(
        &mut self,
        top: &str,
        local: &Local,
        locals: &[Local],
        package: &Package,
        pass: &mut Pass,
    ) -> Result<bool, EngineError> {
        let sent = local
            .snapshots
            .iter()
            .find_map(|(_, guid)| package.find(*guid).map(|(sent, _)| sent));
        let origin = local.origin.map_or(0, |(guid, _)| guid);
        if let Some(sent) = sent
            && sent.origin != origin
        {
            self.change_origin(local, sent, locals, pass).await?;
            return Ok(false);
        }
        let from = package.from_snapshot.as_deref().unwrap_or_default();
        let mut sent = None;
        let mut from_guid = 0;
        for (short, guid) in &local.snapshots {
            let Some((found, there)) = package.find(*guid) else {
                if self.request.force {
                    let full = format!("{}@{short}", local.name);
                    self.destroy(&full, local.name.len() + 1, pass).await?;
                    pass.destroyed.insert(*guid);
                }
                continue;
            };
            sent = Some(found);
            let full = format!("{}@{short}", local.name);
            if let Some(properties) = found.properties_of(there) {
                self.receive_snapshot_properties(&full, properties).await;
            }
            if short != there {
                let new = format!("{}@{there}", local.name);
                self.rename(&full, Some(&new), local.name.len() + 1, pass)
                    .await?;
            }
            if there == from {
                from_guid = *guid;
            }
        }
        let Some(sent) = sent else {
            if self.request.force {
                self.destroy(&local.name, top.len() + 1, pass).await?;
                pass.destroyed.insert(local.parent_from);
            }
            return Ok(false);
        };
        if from_guid == 0 {
            self.progress(format!(
                "local fs {} does not have fromsnap ({from} in stream); must have been deleted locally; ignoring",
                local.name
            ));
            return Ok(false);
        }
        self.move_dataset(top, local, sent, locals, pass).await
    }

    /// A dataset whose origin is another one at the sender: it was promoted there.
    async fn change_origin(
        &mut self,
        local: &Local,
        sent: &SentFilesystem,
        locals: &[Local],
        pass: &mut Pass,
    ) -> Result<(), EngineError> {
        pass.again = true;
        let Some((origin, _)) = local.origin else {
            return Ok(());
        };
        let holder = |guid: u64| {
            let mut holders = locals.iter();
            holders.find(|local| local.snapshots.iter().any(|(_, known)| *known == guid))
        };
        // Only where the sender's origin comes before ours, which it does when it has none.
        let earlier = sent.origin == 0
            || match (holder(sent.origin), holder(origin)) {
                (Some(_), Some(_)) => self.is_before(sent.origin, origin, locals).await?,
                _ => false,
            };
        if !earlier {
            return Ok(());
        }
        self.progress(format!("promoting {}", local.name));
        let permitted = self.may(&local.name, &["promote", "mount"]).await;
        match permitted && self.context.promote(&local.name).await.is_ok() {
            true => pass.progress = true,
            false => pass.failed = true,
        }
        Ok(())
    }

    /// Whether one snapshot was made before another.
    async fn is_before(
        &self,
        first: u64,
        second: u64,
        locals: &[Local],
    ) -> Result<bool, EngineError> {
        let hierarchy = self.context.pool.hierarchy();
        let mut txgs = [0; 2];
        for (txg, wanted) in txgs.iter_mut().zip([first, second]) {
            for local in locals {
                let found = local.snapshots.iter().find(|(_, guid)| *guid == wanted);
                if let Some((short, _)) = found {
                    let info = hierarchy.info(&format!("{}@{short}", local.name)).await?;
                    *txg = info.create_txg.0;
                }
            }
        }
        Ok(txgs[0] < txgs[1])
    }

    /// Renames a dataset that has another name or another parent at the sender; true when the pass must end.
    async fn move_dataset(
        &mut self,
        top: &str,
        local: &Local,
        sent: &SentFilesystem,
        locals: &[Local],
        pass: &mut Pass,
    ) -> Result<bool, EngineError> {
        let moved = sent.parent_from != 0
            && local.parent_from != 0
            && sent.parent_from != local.parent_from;
        if moved && pass.destroyed.contains(&local.parent_from) {
            pass.progress = true;
            pass.again = true;
            return Ok(true);
        }
        let prefix = self.request.without_pool || self.request.last_element;
        let last = |name: &str| name.rsplit_once('/').map(|(_, last)| last.to_owned());
        let (here, there) = (last(&local.name), last(&sent.name));
        let renamed =
            (prefix || local.name != top) && here.is_some() && there.is_some() && here != there;
        if !moved && !renamed {
            return Ok(false);
        }
        let parent = locals.iter().find(|parent| {
            let mut snapshots = parent.snapshots.iter();
            snapshots.any(|(_, guid)| *guid == sent.parent_from)
        });
        let new = match (parent, there) {
            (Some(parent), Some(there)) => Some(format!("{}/{there}", parent.name)),
            _ => {
                self.progress(format!("local fs {} new parent not found", local.name));
                None
            }
        };
        let base = top.len() + 1;
        self.rename(&local.name, new.as_deref(), base, pass).await?;
        Ok(false)
    }

    /// Destroys a dataset or snapshot. What cannot be destroyed yet gets a name that is in the way of no other.
    async fn destroy(
        &mut self,
        name: &str,
        base: usize,
        pass: &mut Pass,
    ) -> Result<(), EngineError> {
        self.progress(format!("attempting destroy {name}"));
        let permitted = self.may(name, &["destroy", "mount"]).await;
        let done = if !permitted {
            false
        } else if name.contains('@') {
            let names = [name.to_owned()];
            match self.context.destroy_snapshots(&names, true).await {
                Ok(refused) => refused.is_empty() && !self.exists(name).await,
                Err(_) => false,
            }
        } else {
            let options = DestroyOptions::default();
            self.context.destroy_dataset(name, options).await.is_ok()
        };
        if done {
            self.progress("success".to_owned());
            pass.progress = true;
            return Ok(());
        }
        self.rename(name, None, base, pass).await
    }

    /// Renames a dataset or snapshot; where that cannot be done now, to a name that is in the way of no other.
    async fn rename(
        &mut self,
        name: &str,
        new: Option<&str>,
        base: usize,
        pass: &mut Pass,
    ) -> Result<(), EngineError> {
        if let Some(new) = new {
            self.progress(format!("attempting rename {name} to {new}"));
            if self.rename_now(name, new).await {
                self.progress("success".to_owned());
                pass.progress = true;
                return Ok(());
            }
        }
        pass.again = true;
        let (above, last) = name.split_at(base.min(name.len()));
        if last.is_empty() || last.starts_with("recv-") {
            self.progress("failed".to_owned());
            return Ok(());
        }
        let guid = match self.context.pool.hierarchy().info(name).await {
            Ok(info) => info.guid.0,
            // What is above it was renamed in this pass.
            Err(DslError::NotFound { .. }) => {
                self.progress("failed - will try again on next pass".to_owned());
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let aside = format!("{above}recv-{guid:016x}");
        self.progress(format!("failed - trying rename {name} to {aside}"));
        if self.rename_now(name, &aside).await {
            pass.progress = true;
        } else {
            self.progress("failed - will try again on next pass".to_owned());
        }
        Ok(())
    }

    async fn rename_now(&self, name: &str, new: &str) -> bool {
        let hierarchy = self.context.pool.hierarchy();
        let permitted = self.may(name, &["rename", "mount", "create"]).await;
        let renamed = permitted && hierarchy.rename(name, new, false).await.is_ok();
        renamed && self.context.reload_properties().await.is_ok()
    }
}
