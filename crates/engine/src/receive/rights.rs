//! What a receive in the name of a user other than root may do (`zfs allow`).

use super::Work;
use super::destination::Destination;
use crate::EngineError;
use crate::delegation::{nearest, of_property, on};

impl Work {
    /// Checks that the user may receive into a dataset: it, or the nearest above that exists.
    ///
    /// # Errors
    /// [`EngineError::Permission`].
    pub(super) async fn check_rights(&self, to: &Destination<'_>) -> Result<(), EngineError> {
        let Some(caller) = &self.caller else {
            return Ok(());
        };
        // OpenZFS: module/zfs/zfs_ioctl.c, zfs_secpolicy_recv. Data that is there is given up with 'rollback' alone here.
        let mut permissions = vec!["receive", "mount", "create"];
        if self.request.force {
            permissions.push("rollback");
        }
        // The contents of blocks are written anew.
        if self.request.heal {
            return Err(EngineError::Permission);
        }
        let mut needs = vec![nearest(&to.dataset, &permissions)];
        // A clone shows what its origin holds.
        needs.extend(to.origin.iter().map(|origin| on(origin, &["clone"])));
        self.context.check(&needs, caller).await
    }

    /// Whether the user has permissions on a dataset, or a snapshot of it.
    pub(super) async fn may(&self, name: &str, permissions: &[&str]) -> bool {
        match &self.caller {
            None => true,
            Some(caller) => {
                let needs = [on(name, permissions)];
                self.context.check(&needs, caller).await.is_ok()
            }
        }
    }

    /// Whether the user may set a property of a dataset or snapshot.
    pub(super) async fn may_set(&self, name: &str, property: &str) -> bool {
        self.caller.is_none() || self.may(name, &[of_property(property).as_str()]).await
    }
}
