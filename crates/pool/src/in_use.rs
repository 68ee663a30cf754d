//! Whose a device is that somebody wants to use: the pool's own, another pool's, something foreign, or free.
// OpenZFS: cmd/zpool/zpool_vdev.c, check_file_generic and check_slice (words)

use std::path::Path;

use vdev::{Conflict, DiskUse, Health};

use crate::PoolError;
use crate::config;
use crate::pool::Inner;

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

impl Inner {
    /// Refuses a device that is part of this pool already.
    pub(crate) fn refuse_own(&self, path: &Path) -> Result<(), PoolError> {
        let own = self.tree.leaves().into_iter();
        let used = own
            .filter(|leaf| leaf.health != Health::Offline && leaf.psize != 0)
            .any(|leaf| Path::new(&leaf.path) == path);
        if used {
            return Err(PoolError::DeviceInUse {
                path: path.to_owned(),
                reason: format!("is part of active pool '{}'", self.name.borrow()),
                forceable: false,
            });
        }
        Ok(())
    }

    /// Refuses a device that is part of this pool, or holds something and is not forced.
    pub(crate) async fn check_free(&self, path: &Path, force: bool) -> Result<(), PoolError> {
        self.refuse_own(path)?;
        let found = vdev::disk_use(&self.handle, path).await?;
        let path = path.to_owned();
        refuse(&[Conflict { path, found }], force)
    }
}
