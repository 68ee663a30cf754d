//! The scan of a pool in memory: at most one at a time, and what is known of the last.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use ondisk::scan::{SCRUB_PAUSED, ScanPhys, scan_func, scan_state};
use ondisk::txg_times::TxgTimes;
use runtime::JoinHandle;
use runtime::sync::{Event, Mutex};

use super::order::DatasetOrder;
use crate::status::ScanStatus;

/// Counts of this session, which are not kept on disk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScanPass {
    pub(super) start_time: u64,
    pub(super) examined: u64,
    pub(super) issued: u64,
    pub(super) unrepaired_copies: u64,
    /// Seconds since 1970, 0 when not paused.
    pub(super) paused_since: u64,
    pub(super) spent_paused: u64,
}

/// The scan of a pool: at most one at a time, and the memory of the last.
pub(crate) struct ScanState {
    pub(super) phys: RefCell<ScanPhys>,
    pub(super) order: RefCell<DatasetOrder>,
    pub(super) pass: Cell<ScanPass>,
    /// The stored state is older than `phys`.
    pub(super) dirty: Cell<bool>,
    /// The walk is to end at the next window.
    pub(super) stopping: Cell<bool>,
    pub(super) task: RefCell<Option<JoinHandle<()>>>,
    /// Notified at every step.
    pub(super) changed: Event,
    /// Leaves a resilver works for, and how often each had been away when it began.
    pub(super) resilvering: RefCell<BTreeMap<u64, u64>>,
    /// Bytes of each leaf that had been rewritten from good copies when the scan began.
    pub(super) healed_before: RefCell<BTreeMap<u64, u64>>,
    /// A walk ended with an error: why.
    pub(super) failure: RefCell<Option<String>>,
    /// Held while it is decided which scan runs next.
    pub(super) deciding: Mutex<()>,
    /// The txg up to which the last complete scrub looked; 0 before there was one.
    pub(super) last_scrubbed_txg: Cell<u64>,
    /// When txgs were.
    pub(super) txg_times: RefCell<TxgTimes>,
    /// When the next time is to be noted, in seconds since 1970.
    pub(super) txg_time_due: Cell<u64>,
}

impl Default for ScanState {
    fn default() -> Self {
        Self {
            phys: RefCell::default(),
            order: RefCell::default(),
            pass: Cell::default(),
            dirty: Cell::new(false),
            stopping: Cell::new(false),
            task: RefCell::default(),
            changed: Event::new("a step of a scan"),
            resilvering: RefCell::default(),
            healed_before: RefCell::default(),
            failure: RefCell::default(),
            deciding: Mutex::new("another start of a scan", ()),
            last_scrubbed_txg: Cell::new(0),
            txg_times: RefCell::default(),
            txg_time_due: Cell::new(0),
        }
    }
}

impl ScanState {
    pub(super) fn is_scanning(&self) -> bool {
        self.phys.borrow().state == scan_state::SCANNING
    }

    pub(super) fn is_resilver(&self) -> bool {
        self.phys.borrow().func == scan_func::RESILVER
    }

    pub(super) fn is_paused(&self) -> bool {
        self.phys.borrow().flags & SCRUB_PAUSED != 0
    }

    /// Whether there is something to be stored with the next txg.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.get()
    }

    /// Returns the txg up to which the last complete scrub looked; 0 before there was one.
    pub(crate) fn last_scrubbed_txg(&self) -> u64 {
        self.last_scrubbed_txg.get()
    }

    /// Returns whether a resilver is under way.
    pub(crate) fn is_resilvering(&self) -> bool {
        self.is_scanning() && self.is_resilver()
    }

    /// Returns what `zpool status` says; `None` when there never was a scan.
    /// Whether a scrub is under way that has rewritten some of a leaf.
    pub(crate) fn is_repairing(&self, leaf: &vdev::VdevStatus) -> bool {
        let healed = leaf.stats.self_healed_bytes;
        let before = self.healed_before.borrow().get(&leaf.guid.0).copied();
        self.is_scanning() && !self.is_resilver() && before.is_some_and(|before| healed > before)
    }

    pub(crate) fn status(&self) -> Option<ScanStatus> {
        let phys = self.phys.borrow();
        if phys.func == scan_func::NONE || phys.state == scan_state::NONE {
            return None;
        }
        let pass = self.pass.get();
        let running = phys.state == scan_state::SCANNING;
        Some(ScanStatus {
            resilver: phys.func == scan_func::RESILVER,
            running,
            cancelled: phys.state == scan_state::CANCELED,
            start_time: phys.start_time,
            end_time: if running { 0 } else { phys.end_time },
            to_examine_bytes: phys.to_examine,
            examined_bytes: phys.examined,
            issued_bytes: phys.examined.saturating_sub(phys.skipped),
            skipped_bytes: phys.skipped,
            processed_bytes: phys.processed,
            errors: phys.errors,
            pass_start_time: pass.start_time,
            pass_examined_bytes: pass.examined,
            pass_issued_bytes: pass.issued,
            pass_spent_paused: pass.spent_paused,
            paused_since: if phys.flags & SCRUB_PAUSED != 0 {
                pass.paused_since.max(1)
            } else {
                0
            },
        })
    }
}
