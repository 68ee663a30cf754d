//! Dirty-time logs: which txgs each leaf has missed, in memory and as space maps in the meta-objset.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use dmu::{Objset, Tx};
use ondisk::{Guid, ObjectId};
use range_tree::RangeTree;

use crate::PoolError;
use crate::space_map::{self, Encoder, Header, MapType, Scale};

/// The txgs that leaves have missed.
#[derive(Default)]
pub(crate) struct Dtls {
    leaves: RefCell<BTreeMap<u64, Dtl>>,
    /// Missed writes that could not be recorded in their own txg: leaf, txgs.
    unrecorded: RefCell<Vec<MissedWrites>>,
}

/// A leaf, and the txgs of which it missed writes.
type MissedWrites = (Guid, Vec<Range<u64>>);

#[derive(Clone, Debug, Default)]
struct Dtl {
    /// Space map in the meta-objset, once there is one.
    stored: Option<(ObjectId, Header)>,
    /// Txgs missing on the leaf.
    missing: RangeTree,
}

/// Dirty-time logs count txgs one by one from 0.
const DTL_SCALE: Scale = Scale {
    start: 0,
    size: 1 << 62,
    shift: 0,
};

impl Dtls {
    /// Keeps missed writes until [`Dtls::take_unrecorded`].
    pub(crate) fn defer(&self, missed: Vec<MissedWrites>) {
        self.unrecorded.borrow_mut().extend(missed);
    }

    /// Whether missed writes wait to be recorded.
    pub(crate) fn has_unrecorded(&self) -> bool {
        !self.unrecorded.borrow().is_empty()
    }

    /// Takes the missed writes that wait to be recorded.
    pub(crate) fn take_unrecorded(&self) -> Vec<MissedWrites> {
        self.unrecorded.take()
    }

    /// Reads the stored log of a leaf.
    pub(crate) async fn open(
        &self,
        mos: &Objset,
        leaf: u64,
        object: ObjectId,
    ) -> Result<(), PoolError> {
        let header = space_map::header(mos, object).await?;
        let missing = space_map::load(mos, object, &header, DTL_SCALE).await?;
        self.leaves.borrow_mut().insert(
            leaf,
            Dtl {
                stored: Some((object, header)),
                missing,
            },
        );
        Ok(())
    }

    /// Records that a leaf has missed writes of some txgs.  Returns the object of a log created for it.
    pub(crate) async fn record(
        &self,
        mos: &Objset,
        leaf: u64,
        txgs: Range<u64>,
        histogram: bool,
        tx: &Tx,
    ) -> Result<Option<ObjectId>, PoolError> {
        assert!(tx.is_syncing(), "record happens in syncing context");
        assert!(!txgs.is_empty(), "a write was missed in a txg");
        let covers = |dtl: &Dtl| dtl.missing.covers(&txgs);
        if self.leaves.borrow().get(&leaf).is_some_and(covers) {
            return Ok(None);
        }
        self.record_range(mos, leaf, txgs, histogram, tx).await
    }

    /// As [`Dtls::record`], without asking whether they are known already.
    pub(crate) async fn record_range(
        &self,
        mos: &Objset,
        leaf: u64,
        txgs: Range<u64>,
        histogram: bool,
        tx: &Tx,
    ) -> Result<Option<ObjectId>, PoolError> {
        assert!(tx.is_syncing(), "record range happens in syncing context");
        let mut dtl = self.leaves.borrow().get(&leaf).cloned().unwrap_or_default();
        dtl.missing.union(txgs);
        let created = dtl.stored.is_none();
        let (object, mut header) = match dtl.stored.take() {
            Some(stored) => stored,
            None => space_map::create(mos, histogram, tx).await?,
        };
        // The log is small (merged ranges of txgs): rewriting it whole keeps it so.
        self.rewrite(mos, object, &mut header, &dtl.missing, tx)
            .await?;
        dtl.stored = Some((object, header));
        self.leaves.borrow_mut().insert(leaf, dtl);
        Ok(created.then_some(object))
    }

    async fn rewrite(
        &self,
        mos: &Objset,
        object: ObjectId,
        header: &mut Header,
        missing: &RangeTree,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        *header = Header::empty(header.histogram.is_some());
        let mut encoder = Encoder::new(DTL_SCALE, header, space_map::BLOCK_SIZE, false);
        for range in missing.iter() {
            encoder.range(MapType::Alloc, &range);
        }
        encoder.append(mos, object, header, tx).await?;
        space_map::set_header(mos, object, header, tx).await
    }

    /// Takes txgs off what a leaf misses, after it was brought up to date for them.
    pub(crate) async fn subtract(
        &self,
        mos: &Objset,
        leaf: u64,
        ranges: &[Range<u64>],
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "subtract happens in syncing context");
        let Some(mut dtl) = self.leaves.borrow().get(&leaf).cloned() else {
            return Ok(());
        };
        for done in ranges {
            dtl.missing.subtract(done);
        }
        if let Some((object, mut header)) = dtl.stored.take() {
            self.rewrite(mos, object, &mut header, &dtl.missing, tx)
                .await?;
            dtl.stored = Some((object, header));
        }
        self.leaves.borrow_mut().insert(leaf, dtl);
        Ok(())
    }

    /// Forgets a leaf that has gone.
    pub(crate) fn forget(&self, leaf: u64) {
        self.leaves.borrow_mut().remove(&leaf);
    }

    /// Returns the txgs a leaf misses writes of.
    pub(crate) fn missing(&self, leaf: u64) -> Vec<Range<u64>> {
        let leaves = self.leaves.borrow();
        let dtl = leaves.get(&leaf);
        dtl.map(|dtl| dtl.missing.iter().collect())
            .unwrap_or_default()
    }

    /// Returns the leaves that miss something, with the txg ranges.
    pub(crate) fn outdated(&self) -> BTreeMap<u64, Vec<Range<u64>>> {
        self.leaves
            .borrow()
            .iter()
            .filter(|(_, dtl)| !dtl.missing.is_empty())
            .map(|(leaf, dtl)| (*leaf, dtl.missing.iter().collect()))
            .collect()
    }
}
