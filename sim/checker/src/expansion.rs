//! Raidz that gets or got more children (docs/format/04-raidz.md, section 5): how wide the blocks of a txg are, and where their rows lie.
//!
//! A block keeps the width of its birth. Sectors are numbered in the order of the address space and lie on one child after the other: on all
//! of them once they were moved, on all but the new one before. So each row of a block may begin at another child.

use ondisk::{BlockPointer, NvList, Uberblock, label};

use super::blocks::Checker;

/// Where the boot area of a device begins, between the front labels and the data.
const BOOT_AREA: u64 = 2 * label::LABEL_SIZE;

/// How far an expansion is, as the uberblock says.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reflow {
    offset: u64,
    in_scratch: bool,
    /// Some is under way.
    is_running: bool,
    txg: u64,
}

impl Reflow {
    pub(super) fn of(ub: &Uberblock) -> Self {
        Self {
            txg: ub.txg.0,
            offset: ub.raidz_reflow.offset(),
            in_scratch: ub.raidz_reflow.is_in_scratch(),
            is_running: ub.raidz_reflow.0 != 0,
        }
    }
}

/// What the expansions of a raidz mean for its blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Expansion {
    /// From each of these txgs on blocks are one wider: shortly after all sectors were moved.
    ended: Vec<u64>,
    /// One is under way.
    running: Option<Reflow>,
    /// The last child is listed, but the expansion has not begun.
    pub(super) is_only_listed: bool,
}

/// Where the rows of a block lie: on how many children, and where on those.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowPlace {
    pub(super) children: u64,
    pub(super) base: u64,
}

impl Expansion {
    /// Reads it from the configuration of a top-level vdev, which may be that of a txg after the uberblock's: there an expansion may have
    /// ended that is under way in the pool.
    pub(super) fn read(tree: &NvList, reflow: &Reflow) -> Self {
        let listed = tree.u64s("raidz_expand_txgs").unwrap_or_default();
        let is_whole = |wider_from: u64| wider_from <= reflow.txg || !reflow.is_running;
        let ended: Vec<u64> = listed.iter().copied().filter(|t| is_whole(*t)).collect();
        let is_running = tree.has("raidz_expanding") || ended.len() < listed.len();
        Self {
            ended,
            running: is_running.then_some(*reflow),
            is_only_listed: false,
        }
    }

    /// Children that no block is as wide as yet.
    fn unused(&self) -> u64 {
        u64::from(self.running.is_some()) + u64::from(self.is_only_listed)
    }

    /// Expansions that count in the pool.
    pub(super) fn count(&self) -> u64 {
        self.ended.len() as u64 + u64::from(self.running.is_some())
    }

    /// Children that a block written in a txg is spread over.
    pub(super) fn width(&self, children: u64, birth: u64) -> u64 {
        let later = self.ended.iter().filter(|ended| **ended > birth).count() as u64;
        children.saturating_sub(self.unused() + later)
    }

    /// Whether rows lie elsewhere than on a raidz that always had its children.
    pub(super) fn is_none(&self) -> bool {
        self.ended.is_empty() && self.unused() == 0
    }

    /// Where a row lies that ends at most at `end`, in bytes of the address space.
    pub(super) fn place(&self, children: u64, end: u64) -> RowPlace {
        let old = RowPlace {
            children: children.saturating_sub(self.unused()),
            base: label::DATA_START,
        };
        match self.running {
            Some(reflow) if end <= reflow.offset => RowPlace {
                children,
                base: match reflow.in_scratch {
                    true => BOOT_AREA,
                    false => label::DATA_START,
                },
            },
            _ => old,
        }
    }
}

impl Checker<'_> {
    /// Finds the raidz whose last child is only listed: its copy of the root is where it would be without.
    pub(super) fn settle_listed_children(&mut self, root: &BlockPointer) {
        let len = ondisk::bytes::index(root.psize());
        for dva in root.copies() {
            let is_readable = |checker: &Self| {
                let stripe = checker.stripe(dva, len, root.physical_birth().0);
                stripe.is_none_or(|stripe| {
                    let (found, _) = stripe.solve(&|data| checker.checksum_matches(root, data));
                    found.is_some()
                })
            };
            if is_readable(self) {
                continue;
            }
            self.set_only_listed(dva.vdev, true);
            if !is_readable(self) {
                self.set_only_listed(dva.vdev, false);
            }
        }
    }

    fn set_only_listed(&mut self, vdev: u32, is_only_listed: bool) {
        let top = self.tops.get_mut(&vdev);
        let shape = top.and_then(|top| top.raidz.as_mut());
        if let Some(shape) = shape
            .filter(|shape| shape.expansion.running.is_none() && shape.children > shape.parity + 1)
        {
            shape.expansion.is_only_listed = is_only_listed;
        }
    }
}
