//! Mounts follow what changes about datasets: their mount points, whether they may be mounted, their names.
//!
//! A change is made between [`Affected::unmount`] and [`Affected::mount_again`]: file systems whose place
//! depends on it are unmounted first (and the change is refused when one is busy), then mounted where they
//! belong now. Nothing of it happens in a process that holds no mounts.
// OpenZFS: lib/libzfs/libzfs_changelist.c (which file systems a change concerns, which are mounted again)

use std::collections::BTreeSet;
use std::path::Path;

use engine::property::{DatasetKind, Source, Value};
use engine::{DatasetFilter, DatasetInfo, EngineError, PoolHandle};

use crate::appliance::{Appliance, mount_flags, mount_query, remove_directories};
use crate::logging::SANBOX;
use crate::redacted::is_redacted;

/// What is about to change of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// `mountpoint`, of the dataset and what inherits it.
    Point,
    /// `mountpoint`, of everything below as well.
    Points,
    /// `canmount` becomes `off`: a file system that is mounted leaves, for a moment with what lies below its mount point.
    Off,
    /// Its name.
    Name,
    /// `acltype`, of the dataset and what inherits it: the kernel learns of it when it mounts.
    Lists,
    /// `acltype`, of everything below as well.
    AllLists,
}

/// The file systems that a change concerns.
#[derive(Debug, Default)]
pub(crate) struct Affected {
    /// All of them, by guid.
    all: BTreeSet<u64>,
    /// Those that were mounted.
    mounted: BTreeSet<u64>,
    /// Those that were not are mounted too afterwards, where that is done without being asked.
    others_too: bool,
}

fn filesystems(root: &str) -> DatasetFilter {
    DatasetFilter {
        root: root.to_owned(),
        depth: None,
        kinds: vec![DatasetKind::Filesystem],
    }
}

/// Whether a property of a file system, say its mount point, comes from above `root` (so that its name
/// decides), or from `root` at the lowest.
fn inherits(info: &DatasetInfo, property: &str, root: &str, from_root_too: bool) -> bool {
    match info.property(property).map(|property| &property.source) {
        Some(Source::Default) => true,
        Some(Source::Inherited(from)) => {
            let below = from
                .strip_prefix(root)
                .is_some_and(|rest| rest.starts_with('/'));
            !below && (from_root_too || from != root)
        }
        _ => false,
    }
}

impl Affected {
    /// Unmounts what a change of the dataset `root` concerns; nothing, when there is no change of that kind.
    ///
    /// # Errors
    /// What `zfs` says when one is busy; then everything is mounted as it was.
    pub(crate) async fn unmount(
        appliance: &Appliance,
        pool: &PoolHandle,
        root: &str,
        change: Option<Change>,
        force: bool,
    ) -> Result<Self, String> {
        let Some(change) = change.filter(|_| appliance.is_daemon()) else {
            return Ok(Self::default());
        };
        let Ok(found) = pool.datasets(&filesystems(root), &mount_query()).await else {
            return Ok(Self::default());
        };
        let mounts = appliance.mounts();
        let is_mounted = |info: &DatasetInfo| mounts.mounted(info.guid).is_some();
        if change == Change::Off && !found.first().is_some_and(is_mounted) {
            return Ok(Self::default());
        }
        let concerns = |info: &&DatasetInfo| match change {
            Change::Points | Change::AllLists => true,
            Change::Point | Change::Off => {
                info.name == root || inherits(info, "mountpoint", root, true)
            }
            Change::Lists => info.name == root || inherits(info, "acltype", root, true),
            Change::Name => inherits(info, "mountpoint", root, false),
        };
        let mut affected = Self {
            others_too: matches!(change, Change::Point | Change::Points),
            ..Self::default()
        };
        for info in found.iter().filter(concerns).rev() {
            affected.all.insert(info.guid);
            let Some(point) = mounts.mounted(info.guid) else {
                continue;
            };
            if let Err(why) = mounts.unmount_name(&info.name, force).await {
                affected.others_too = false;
                affected.mount_again(appliance, pool, root).await.ok();
                return Err(format!("cannot unmount '{}': {why}", point.display()));
            }
            affected.mounted.insert(info.guid);
        }
        Ok(affected)
    }

    /// Mounts again what was unmounted; `root` is the dataset's name now.
    ///
    /// # Errors
    /// What `zfs` says when one could not be mounted; the others are.
    pub(crate) async fn mount_again(
        &self,
        appliance: &Appliance,
        pool: &PoolHandle,
        root: &str,
    ) -> Result<(), String> {
        if self.all.is_empty() {
            return Ok(());
        }
        let others_too = self.others_too && appliance.mounts_by_itself();
        let found = pool.datasets(&filesystems(root), &mount_query()).await;
        let found = found.map_err(|error| error.to_string())?;
        let mut outcome = Ok(());
        for info in &found {
            let (point, may) = (text(info, "mountpoint"), text(info, "canmount"));
            // canmount: 0 is off, 1 on, 2 noauto.
            let wanted = self.mounted.contains(&info.guid) && may != "0"
                || others_too && self.all.contains(&info.guid) && may == "1" && !is_redacted(info);
            let free = appliance.mounts().mounted(info.guid).is_none();
            if wanted
                && free
                && point.starts_with('/')
                && let Err(why) = appliance.mount(pool, info, Path::new(&point), false).await
            {
                outcome = Err(format!("cannot mount '{}': {why}", info.name));
            }
        }
        outcome
    }
}

fn text(info: &DatasetInfo, name: &str) -> String {
    match info.property(name).map(|property| &property.value) {
        Some(Value::Text(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        None => String::new(),
    }
}

/// Gives mounts below a dataset its new name: their places did not change.
pub(crate) async fn renamed(appliance: &Appliance, pool: &PoolHandle, root: &str) {
    if let Ok(found) = pool.datasets(&filesystems(root), &mount_query()).await {
        for info in found {
            appliance.mounts().renamed(info.guid, &info.name);
        }
    }
}

/// After a receive: file systems that it destroyed are unmounted, those that it renamed are mounted where they belong now.
// OpenZFS: lib/libzfs/libzfs_sendrecv.c, recv_rename, recv_destroy
pub(crate) async fn received(appliance: &Appliance, pool: &PoolHandle) {
    let mounts = appliance.mounts();
    let mounted = mounts.of_pool(pool.name());
    if mounted.is_empty() {
        return;
    }
    let Ok(found) = pool
        .datasets(&filesystems(pool.name()), &mount_query())
        .await
    else {
        return;
    };
    let now = |guid: u64| found.iter().find(|info| info.guid == guid);
    let (mut moved, mut left) = (Vec::new(), Vec::new());
    for (guid, name, point) in mounted.iter().rev() {
        let info = now(*guid);
        if info.is_some_and(|info| info.name == *name) {
            continue;
        }
        if let Err(why) = mounts.unmount_name(name, true).await {
            tracing::warn!(target: SANBOX, "cannot unmount '{name}', which a receive took away: {why}");
        }
        moved.extend(info);
        left.push(point.clone());
    }
    remove_directories(left).await;
    for info in moved.into_iter().rev() {
        let point = text(info, "mountpoint");
        if point.starts_with('/')
            && let Err(why) = appliance.mount(pool, info, Path::new(&point), false).await
        {
            tracing::warn!(target: SANBOX, "cannot mount '{}' at {point}: {why}", info.name);
        }
    }
}

/// Makes the mounts at and below a dataset obey `readonly`, `devices`, `setuid` and `exec` as they are now.
///
/// # Errors
/// The kernel refuses.
pub(crate) async fn obey(
    appliance: &Appliance,
    pool: &PoolHandle,
    root: &str,
) -> Result<(), String> {
    let failed = |error: EngineError| error.to_string();
    if appliance.mounts().list().is_empty() {
        return Ok(());
    }
    let found = pool.datasets(&filesystems(root), &mount_query()).await;
    for info in found.map_err(failed)? {
        if appliance.mounts().mounted(info.guid).is_some() {
            let flags = mount_flags(pool, &info.name).await.map_err(failed)?;
            appliance.mounts().remount(info.guid, flags).await?;
        }
    }
    Ok(())
}
