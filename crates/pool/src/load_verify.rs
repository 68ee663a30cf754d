//! Whether all metadata of a state can be read, before an import goes back to it.
// OpenZFS: module/zfs/spa.c, spa_load_verify

use dmu::{Traversal, TraverseOptions};
use ondisk::Txg;

use crate::PoolError;
use crate::pool::ImportedPool;
use crate::scan::{all_datasets, is_unreadable_by_design};

impl ImportedPool {
    /// Reads the metadata of all txgs after `min_birth`.
    ///
    /// # Errors
    /// `Corrupt`, when some of it has no copy that is right.
    pub(crate) async fn verify_metadata(&self, min_birth: Txg) -> Result<(), PoolError> {
        let mut roots = vec![(0, self.mos().root())];
        for (object, phys) in all_datasets(self.mos()).await? {
            roots.push((object, phys.bp));
        }
        for (objset, root) in roots {
            if root.is_hole() {
                continue;
            }
            let options = TraverseOptions {
                objset_id: objset,
                min_birth,
                skip_errors: true,
                ..TraverseOptions::default()
            };
            let mut traversal = Traversal::new(self.services(), root, options);
            while let Some(item) = traversal.next().await? {
                if let Some(error) = item.error
                    && !is_unreadable_by_design(&error)
                {
                    let object = item.object.0;
                    return Err(PoolError::Corrupt(format!(
                        "metadata of object {object} of objset {objset} is damaged: {error}"
                    )));
                }
            }
        }
        Ok(())
    }
}
