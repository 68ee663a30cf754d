//! Scrub and resilver: reads every copy of every block that could be wrong, and repairs.
//!
//! A scan walks the trees as they were at its start while the pool goes on.  A block freed since
//! then may have been overwritten; the walk notices by its checksum and starts again from newer
//! roots, so a scan that ends without loss has seen every block that was alive.  Repairs never
//! overwrite what was written after the scan looked (the device tree watches the range).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use dmu::{Traversal, TraverseOptions};
use ondisk::{BlockPointer, Guid, Txg};
use runtime::sync::Semaphore;
use zio::{Bookmark, IoClass, ReadProps};

use crate::PoolError;
use crate::pool::{Inner, Pool};
use crate::status::ScanStatus;

/// Blocks checked at the same time.
const CONCURRENT: usize = 32;
/// Walks started before what is still unreadable counts as lost.
const ATTEMPTS: u32 = 4;

/// What a walk found.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    examined_bytes: u64,
    repaired_bytes: u64,
    unrepaired: u64,
    lost: u64,
}

impl Pool {
    /// Reads every copy of every block and repairs the bad ones; waits until the end.
    ///
    /// # Errors
    /// `Busy` while another scan runs; errors of reading the pool's own metadata.
    pub async fn scrub(&self) -> Result<ScanStatus, PoolError> {
        self.0.scan(false, Txg(0)).await
    }
}

/// Starts bringing outdated leaves up to date, if there are any that can be written.
pub(crate) fn resilver_in_background(pool: &Pool) {
    if pool.0.leaves_to_resilver().is_empty() {
        return;
    }
    let inner = pool.0.clone();
    drop(pool.0.handle.spawn("resilver", async move {
        // What fails stays in the dirty-time logs and is tried again at the next import.
        drop(inner.resilver().await);
    }));
}

impl Inner {
    /// Returns the outdated leaves that are open, with what they miss.
    fn leaves_to_resilver(&self) -> BTreeMap<u64, Vec<Range<u64>>> {
        let mut outdated = self.dtls.outdated();
        let open: Vec<u64> = self
            .tree
            .leaves()
            .into_iter()
            .filter(|leaf| leaf.health == vdev::Health::Online)
            .map(|leaf| leaf.guid.0)
            .collect();
        outdated.retain(|leaf, _| open.contains(leaf));
        outdated
    }

    async fn resilver(self: &Rc<Self>) -> Result<(), PoolError> {
        let leaves = self.leaves_to_resilver();
        let Some(first) = leaves.values().flatten().map(|range| range.start).min() else {
            return Ok(());
        };
        let status = self.scan(true, Txg(first.saturating_sub(1))).await?;
        if status.errors > 0 || self.leaves_to_resilver().len() < leaves.len() {
            return Ok(());
        }
        self.run_in_sync(async move |inner: Rc<Self>, tx: Rc<dmu::Tx>| {
            for (leaf, ranges) in leaves {
                if inner.dtls.subtract(&inner.mos, leaf, &ranges, &tx).await? {
                    inner.tree.mark_whole(Guid(leaf));
                }
            }
            inner.log_internal("resilver", "errors=0", &tx).await
        })
        .await
    }

    async fn scan(self: &Rc<Self>, resilver: bool, after: Txg) -> Result<ScanStatus, PoolError> {
        if self.scan.borrow().as_ref().is_some_and(|scan| scan.running) {
            return Err(PoolError::Busy);
        }
        let status = ScanStatus {
            resilver,
            running: true,
            start_time: self.unix_time(),
            to_examine_bytes: self.store().space().allocated,
            ..ScanStatus::default()
        };
        *self.scan.borrow_mut() = Some(status.clone());
        let result = self.walk_until_whole(after).await;
        let mut scan = self.scan.borrow_mut();
        let status = scan.get_or_insert(status);
        status.running = false;
        status.end_time = self.unix_time();
        match result {
            Ok(found) => {
                status.examined_bytes = found.examined_bytes;
                status.processed_bytes = found.repaired_bytes;
                status.errors = found.lost + found.unrepaired;
                Ok(status.clone())
            }
            Err(error) => {
                status.cancelled = true;
                Err(error)
            }
        }
    }

    async fn walk_until_whole(self: &Rc<Self>, after: Txg) -> Result<Found, PoolError> {
        let mut repaired_bytes = 0;
        let mut attempt = 0;
        loop {
            attempt += 1;
            if !self.readonly {
                self.clock().sync_all().await?;
            }
            let found = Rc::new(RefCell::new(Found::default()));
            for (objset_id, root) in self.roots().await? {
                self.walk(objset_id, root, after, &found).await?;
            }
            let mut found = *found.borrow();
            repaired_bytes += found.repaired_bytes;
            found.repaired_bytes = repaired_bytes;
            if found.lost == 0 || attempt == ATTEMPTS || self.readonly {
                return Ok(found);
            }
        }
    }

    /// Returns the roots of the meta-objset and of every dataset and snapshot.
    async fn roots(&self) -> Result<Vec<(u64, BlockPointer)>, PoolError> {
        let mut roots = vec![(0, self.mos.root())];
        let spec = dsl::ListSpec {
            depth: None,
            kinds: dsl::property::Kinds::DATASET,
        };
        let pool = self.name.borrow().clone();
        for info in self.hierarchy.list(&pool, spec).await? {
            match self.hierarchy.dataset(&info.name).await {
                Ok(dataset) => roots.push((info.object.0, dataset.objset().root())),
                // Destroyed meanwhile.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(roots)
    }

    async fn walk(
        self: &Rc<Self>,
        objset_id: u64,
        root: BlockPointer,
        after: Txg,
        found: &Rc<RefCell<Found>>,
    ) -> Result<(), PoolError> {
        if root.is_hole() {
            return Ok(());
        }
        let options = TraverseOptions {
            objset_id,
            min_birth: after,
            holes: false,
            skip_errors: true,
        };
        let mut traversal = Traversal::new(&self.services, root, options);
        let room = Rc::new(Semaphore::new(
            "room among the blocks being scanned",
            CONCURRENT,
        ));
        while let Some(item) = traversal.next().await? {
            if self.closed.get() || self.suspended.borrow().is_some() {
                return Err(PoolError::Closed);
            }
            if item.error.is_some() {
                found.borrow_mut().lost += 1;
            }
            if item.bp.is_hole() || item.bp.is_embedded() {
                continue;
            }
            let permit = room.acquire(1).await;
            let (inner, found) = (self.clone(), found.clone());
            let props = ReadProps {
                class: IoClass::Scrub,
                bookmark: Bookmark {
                    objset: objset_id,
                    object: item.object.0,
                    level: i64::from(item.level),
                    block: item.block,
                },
            };
            drop(self.handle.spawn("scan of a block", async move {
                inner.check_block(&item.bp, props, &found).await;
                drop(permit);
            }));
        }
        // All permits back: every block has been checked.
        drop(room.acquire(CONCURRENT).await);
        Ok(())
    }

    async fn check_block(&self, bp: &BlockPointer, props: ReadProps, found: &RefCell<Found>) {
        let outcome = self.store().scrub(bp, props).await;
        let mut found = found.borrow_mut();
        found.examined_bytes += bp.copies().map(|dva| dva.asize).sum::<u64>();
        match outcome {
            Ok(outcome) => {
                found.repaired_bytes += outcome.repaired_bytes;
                found.unrepaired += u64::from(outcome.unrepaired_copies);
                found.lost += u64::from(outcome.lost);
            }
            Err(_) => found.lost += 1,
        }
        if let Some(scan) = &mut *self.scan.borrow_mut() {
            scan.examined_bytes = found.examined_bytes;
            scan.processed_bytes = found.repaired_bytes;
        }
    }
}
