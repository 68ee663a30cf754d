//! The exchange of what two heads of one snapshot hold: a dataset's, and that of the hidden clone beside it.
//!
//! OpenZFS: module/zfs/dsl_dataset.c, dsl_dataset_clone_swap_sync_impl.

use std::collections::BTreeSet;
use std::rc::Rc;

use dmu::Tx;
use ondisk::dsl::{DslDatasetPhys, UsedBy};

use crate::dataset_state::DatasetState;
use crate::deadlist::Deadlist;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::redacted::REDACTED;
use crate::space::{Delta, Sizes, signed};

impl DslPool {
    /// Exchanges the contents of a head and of a clone of its newest snapshot, with the space they are charged for. Syncing context;
    /// both are closed and written out.
    pub(super) async fn swap_heads(
        self: &Rc<Self>,
        head: &Rc<DatasetState>,
        clone: &Rc<DatasetState>,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "heads change places in syncing context");
        let (dir, clone_dir) = (head.dir(), clone.dir());
        let (h, c) = (head.phys(), clone.phys());
        assert!(
            h.prev_snap_obj == c.prev_snap_obj && head.handles() == 0 && clone.handles() == 0,
            "closed heads of one snapshot change places"
        );
        let origin = head.prev.borrow().clone();
        let origin = origin.ok_or_else(|| DslError::corrupt("previous snapshot", head.object))?;
        self.remove_livelist(&dir, tx).await?;
        self.remove_livelist(&clone_dir, tx).await?;
        self.swap_features(head, clone, tx).await?;
        head.set_objset(None);
        clone.set_objset(None);
        let head_list = self.deadlist_of(head).await?;
        let clone_list = self.deadlist_of(clone).await?;
        let young = async |list: &Deadlist, from: u64| {
            list.space_range(from, u64::MAX, &self.empty_bpobj).await
        };
        let unique = young(&clone_list, origin.phys().prev_snap_txg).await?;
        origin.change(|origin| origin.unique_bytes = unique.used);
        let (before, after) = (held(&h, &head_list), held(&c, &clone_list));
        let delta = Delta {
            used: signed(after.used) - signed(before.used),
            compressed: signed(after.compressed) - signed(before.compressed),
            uncompressed: signed(after.uncompressed) - signed(before.uncompressed),
        };
        dir.did_use(UsedBy::Head, delta);
        clone_dir.did_use(UsedBy::Head, -delta);
        let origin_txg = dir.origin_txg.get();
        let moved = signed(young(&clone_list, origin_txg).await?.used)
            - signed(young(&head_list, origin_txg).await?.used);
        dir.move_part(moved, UsedBy::Head, UsedBy::Snapshots);
        let reserved = head.ref_reserved.get();
        let unfilled = signed(h.unique_bytes.min(reserved)) - signed(c.unique_bytes.min(reserved));
        if unfilled != 0 {
            let delta = Delta {
                used: unfilled,
                ..Delta::default()
            };
            dir.did_use(UsedBy::Refreservation, delta);
        }
        take_contents(head, &c);
        take_contents(clone, &h);
        *head.deadlist.borrow_mut() = Some(clone_list);
        *clone.deadlist.borrow_mut() = Some(head_list);
        self.swap_remap_deadlists(head.object, clone.object, tx)
            .await?;
        self.bookmarks_next_changed(head.object, &origin.phys(), tx)
            .await?;
        let text = format!("parent={}", self.name_of(&dir));
        let name = self.name_of(&clone_dir);
        self.event("clone swap", &name, clone.object, text, tx);
        Ok(())
    }

    /// Exchanges the features counted for two heads.
    pub(crate) async fn swap_features(
        &self,
        head: &DatasetState,
        clone: &DatasetState,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "features are counted in syncing context");
        assert!(head.object != clone.object, "two heads change places");
        let of =
            |state: &DatasetState| -> BTreeSet<&'static str> { state.features.borrow().clone() };
        let (h, c) = (of(head), of(clone));
        let redacted_by = (
            self.redacted_by(head).await?,
            self.redacted_by(clone).await?,
        );
        for (state, has, gets) in [(head, &h, &c), (clone, &c, &h)] {
            for feature in has.difference(gets) {
                self.deactivate(state, feature, tx).await?;
            }
            for feature in gets.difference(has).filter(|name| **name != REDACTED) {
                self.activate(state, feature, tx).await?;
            }
        }
        self.set_redacted_by(head, redacted_by.1, tx).await?;
        self.set_redacted_by(clone, redacted_by.0, tx).await
    }
}

/// What a head holds, and what of it died since its newest snapshot.
fn held(phys: &DslDatasetPhys, list: &Deadlist) -> Sizes {
    let mut sizes = Sizes {
        used: phys.referenced_bytes,
        compressed: phys.compressed_bytes,
        uncompressed: phys.uncompressed_bytes,
    };
    sizes.add(list.totals());
    sizes
}

/// Gives a head the contents of another.
pub(crate) fn take_contents(state: &DatasetState, from: &DslDatasetPhys) {
    state.change(|phys| {
        phys.bp = from.bp;
        phys.deadlist_obj = from.deadlist_obj;
        phys.referenced_bytes = from.referenced_bytes;
        phys.compressed_bytes = from.compressed_bytes;
        phys.uncompressed_bytes = from.uncompressed_bytes;
        phys.unique_bytes = from.unique_bytes;
    });
}
