//! References to blocks beyond the first (clones) that a txg will have.
//!
//! ```text
//!   a clone in the open txg  --> PendingReference --> sync of the txg takes them all, and counts them before it frees anything
//!                                                \--> dropped before (the clone was overwritten, its file removed): not counted
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use ondisk::{BlockPointer, Txg};

/// Of one txg, by vdev and offset of their first copy: blocks, and how many references each gets.
type OfTxg = BTreeMap<(u32, u64), (BlockPointer, u64)>;

/// The references that txgs which have not synced will have. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct PendingReferences(Rc<RefCell<BTreeMap<Txg, OfTxg>>>);

impl PendingReferences {
    /// Notes one more reference to a block, which the sync of `txg` counts unless what is returned has been dropped before.
    #[must_use]
    pub fn add(&self, txg: Txg, bp: &BlockPointer) -> PendingReference {
        assert!(
            !bp.is_hole() && !bp.is_embedded(),
            "what takes no space is not referred to"
        );
        let place = place_of(bp);
        let mut pending = self.0.borrow_mut();
        let of_block = pending.entry(txg).or_default().entry(place);
        of_block.or_insert((*bp, 0)).1 += 1;
        PendingReference {
            pending: self.clone(),
            txg,
            place,
        }
    }

    /// Takes the references of a txg that is about to sync: blocks, and how many each gets. No more may be added to it.
    #[must_use]
    pub fn take(&self, txg: Txg) -> Vec<(BlockPointer, u64)> {
        let taken = self.0.borrow_mut().remove(&txg).unwrap_or_default();
        taken.into_values().collect()
    }

    fn remove(&self, txg: Txg, place: (u32, u64)) {
        let mut pending = self.0.borrow_mut();
        // Counted already, if the txg is being synced.
        let Some(of_txg) = pending.get_mut(&txg) else {
            return;
        };
        let (_, count) = of_txg
            .get_mut(&place)
            .expect("a pending reference is noted until it is dropped");
        *count -= 1;
        if *count == 0 {
            of_txg.remove(&place);
        }
        if of_txg.is_empty() {
            pending.remove(&txg);
        }
    }
}

/// A reference that a txg will have. Dropped before the txg syncs, it never was.
#[derive(Debug)]
pub struct PendingReference {
    pending: PendingReferences,
    txg: Txg,
    place: (u32, u64),
}

impl Drop for PendingReference {
    fn drop(&mut self) {
        self.pending.remove(self.txg, self.place);
    }
}

fn place_of(bp: &BlockPointer) -> (u32, u64) {
    let dva = bp.dvas()[0];
    (dva.vdev, dva.offset)
}

#[cfg(test)]
mod tests {
    use ondisk::{ChecksumKind, Compression, Dva, NewBlock, ObjectType};

    use super::*;

    fn block(offset: u64) -> BlockPointer {
        let dva = Dva {
            vdev: 1,
            offset,
            asize: 512,
            gang: false,
        };
        BlockPointer::new(&NewBlock {
            dvas: [dva, Dva::ABSENT, Dva::ABSENT],
            lsize: 512,
            psize: 512,
            compression: Compression::OFF,
            checksum_kind: ChecksumKind::FLETCHER4,
            object_type: ObjectType::PLAIN_FILE_CONTENTS,
            level: 0,
            birth: Txg(3),
            fill: 1,
            checksum: [0; 4],
        })
    }

    #[test]
    fn what_is_dropped_before_the_sync_is_not_counted() {
        let pending = PendingReferences::default();
        let first = pending.add(Txg(7), &block(512));
        let second = pending.add(Txg(7), &block(512));
        let other = pending.add(Txg(7), &block(1024));
        let later = pending.add(Txg(8), &block(512));
        drop((first, other));
        assert_eq!(pending.take(Txg(7)), vec![(block(512), 1)]);
        // Of a txg that is being synced it is too late.
        drop(second);
        assert_eq!(pending.take(Txg(7)), Vec::new());
        drop(later);
        assert_eq!(pending.take(Txg(8)), Vec::new());
    }
}
