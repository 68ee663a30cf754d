//! Whether a device that is to join a pool is in use: by this pool, another pool, a foreign format, or not at all.
// OpenZFS: cmd/zpool/zpool_vdev.c, check_file_generic and check_slice (words)

use std::path::Path;

use ondisk::Guid;
use runtime::{DiskMode, Handle};
use vdev::{Conflict, DiskUse, Health};

use crate::PoolError;
use crate::config;
use crate::pool::ImportedPool;
use crate::status::PoolState;

/// Says what a device holds that keeps it from being used, `None` when nothing does.
fn reason(found: &DiskUse) -> Option<String> {
    match found {
        DiskUse::Free => None,
        DiskUse::Pool { name, state, .. } => match *state {
            config::STATE_ACTIVE => Some(format!("is part of active pool '{name}'")),
            config::STATE_EXPORTED => Some(format!("is part of exported pool '{name}'")),
            // Spares and cache devices say of no pool that they are its own; a pool that is in use knows them.
            config::STATE_DESTROYED | config::STATE_SPARE | config::STATE_CACHE => None,
            _ => Some(format!("is part of potentially active pool '{name}'")),
        },
        DiskUse::Foreign { what } => Some(format!("contains {what}")),
    }
}

/// Refuses devices that hold something, unless forced.
pub(crate) fn refuse(conflicts: &[Conflict], force: bool) -> Result<(), PoolError> {
    if force {
        return Ok(());
    }
    for conflict in conflicts {
        if let Some(reason) = reason(&conflict.found) {
            return Err(PoolError::DeviceInUse {
                path: conflict.path.clone(),
                reason,
                forceable: true,
            });
        }
    }
    Ok(())
}

/// What the label of a device says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLabel {
    /// Name of the pool; empty on spares and cache devices.
    pub pool: String,
    /// Guid of the pool, 0 on spares and cache devices.
    pub pool_guid: u64,
    /// What use the label speaks of; `None` on spares and cache devices.
    pub state: Option<PoolState>,
}

/// Reads the label of a device; `None` when it has none that is valid.
///
/// # Errors
/// `Vdev` when it cannot be opened.
pub async fn device_label(handle: &Handle, path: &Path) -> Result<Option<DeviceLabel>, PoolError> {
    Ok(match vdev::disk_use(handle, path).await? {
        DiskUse::Pool {
            name,
            state,
            pool_guid,
            ..
        } => Some(DeviceLabel {
            pool: name,
            pool_guid,
            state: config::pool_state(state),
        }),
        DiskUse::Free | DiskUse::Foreign { .. } => None,
    })
}

/// Returns what keeps a device from being used for a new vdev, as `zpool create` says it behind the device's name; `None` when
/// nothing does.
///
/// # Errors
/// `Vdev` when it cannot be opened.
pub async fn device_content(handle: &Handle, path: &Path) -> Result<Option<String>, PoolError> {
    Ok(reason(&vdev::disk_use(handle, path).await?))
}

/// Removes the valid labels of a device that no pool uses (`zpool labelclear`). Durable on return.
///
/// # Errors
/// When it cannot be opened for writing (a pool has it), or written.
pub async fn clear_labels(handle: &Handle, path: &Path) -> Result<(), PoolError> {
    let disk = handle.open_disk(path, DiskMode::ReadWrite).await?;
    Ok(vdev::labels::clear_valid(&disk).await?)
}

impl ImportedPool {
    /// Refuses a device that is part of this pool already.
    pub(crate) fn refuse_own(&self, path: &Path) -> Result<(), PoolError> {
        let own = self.tree().leaves().into_iter();
        let used = own
            .filter(|leaf| leaf.health != Health::Offline && leaf.psize != 0)
            .any(|leaf| Path::new(&leaf.path) == path);
        if used {
            return Err(PoolError::DeviceInUse {
                path: path.to_owned(),
                reason: format!("is part of active pool '{}'", self.config.name()),
                forceable: false,
            });
        }
        let name = self.config.name();
        let reason = if self.devices.auxiliaries.spares.at(path).is_some() {
            format!("is reserved as a hot spare for pool {name}")
        } else if self.devices.auxiliaries.caches.at(path).is_some() {
            format!("is part of active pool '{name}'")
        } else {
            return Ok(());
        };
        Err(PoolError::DeviceInUse {
            path: path.to_owned(),
            reason,
            forceable: false,
        })
    }

    /// Refuses a device that is part of this pool, or holds something and is not forced.
    pub(crate) async fn check_free(&self, path: &Path, force: bool) -> Result<(), PoolError> {
        self.refuse_own(path)?;
        let found = vdev::disk_use(self.handle(), path).await?;
        let path = path.to_owned();
        self.refuse_used(vec![Conflict { path, found }], force)
    }

    /// As [`refuse`], but for devices that this pool once had and has no more.
    // OpenZFS: lib/libzfs/libzfs_import.c, zpool_in_use (an active pool whose configuration lacks the device)
    pub(crate) fn refuse_used(
        &self,
        mut conflicts: Vec<Conflict>,
        force: bool,
    ) -> Result<(), PoolError> {
        let own = self.config.guid();
        conflicts.retain(|conflict| match &conflict.found {
            DiskUse::Pool {
                pool_guid, guid, ..
            } => *pool_guid != own || self.is_in_tree(Guid(*guid)),
            _ => true,
        });
        refuse(&conflicts, force)
    }
}
