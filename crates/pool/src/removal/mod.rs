//! Removal of top-level vdevs that hold data: their blocks are copied to the others, and a table says where.
//!
//! ```text
//! ordinary --remove--> takes no new blocks --logs gone--> evacuating --all copied--> removed: only the table is left
//!                                                            \--cancel, or a device fails--> ordinary, as before
//! ```
//! Block pointers are not changed. The state of the newest removal lies in the directory of the meta-objset; an evacuation goes
//! on after an import.
// OpenZFS: module/zfs/vdev_removal.c

mod evacuate;
mod obsolete;
mod state;
mod table;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use dmu::Tx;
use ondisk::ObjectId;
use vdev::{AllocationBias, Layout, TopInfo, VdevConfig};

use self::state::Evacuation;
pub(crate) use self::state::Removals;
pub(crate) use table::load_mappings;

use crate::objects::DIRECTORY;
use crate::pool::{ImportedPool, Pool};
use crate::status::{RemovalStage, RemovalStatus};
use crate::sync::leaves_of;
use crate::{PoolError, log_space_map};
use ondisk::removal::{NO_VDEV, RemovalPhys, Stage};
use table::IndirectTable;

const FEATURE: &str = "device_removal";
/// Txgs that can have placed something on a vdev before it stopped taking blocks.
// OpenZFS: include/sys/txg.h, TXG_CONCURRENT_STATES
const TXGS_UNDER_WAY: u32 = 3;
const _: () = assert!(TXGS_UNDER_WAY > 2);

const BUSY: &str = "Pool busy; removal may already be in progress";
const IN_PROGRESS: &str = "removal for this vdev is already in progress.";
const SHAPE: &str =
    "invalid config; all top-level vdevs must have the same sector size and not be raidz.";
const NOT_SUPPORTED: &str = "operation not supported on this type of vdev";

impl Pool {
    /// Gives up the evacuation of a vdev (`zpool remove -s`): it is an ordinary one again on return, also after a crash.
    ///
    /// # Errors
    /// `InUse` when none is under way; `ReadOnly`, `Suspended`.
    pub async fn cancel_removal(&self) -> Result<(), PoolError> {
        let imported = &self.0;
        imported.writable()?;
        imported.stop_evacuation().await;
        let given_up = imported.cancel_stopped_evacuation().await;
        if given_up.is_err() && imported.writable().is_ok() {
            imported.evacuate_in_background();
        }
        given_up
    }

    /// Returns about how many bytes of memory would be used for good if a vdev was removed; 0 for those that leave nothing
    /// behind. `None` when too little is known of its free space.
    ///
    /// # Errors
    /// `NoSuchDevice`.
    pub fn removal_memory(&self, guid: u64) -> Result<Option<u64>, PoolError> {
        let imported = &self.0;
        let tops = imported.tree().tops();
        let Some(top) = tops.iter().find(|top| top.guid.0 == guid) else {
            return match imported.leaves_below(guid) {
                // A device of a vdev has no table of its own.
                Ok(_) => Ok(None),
                Err(_) => Ok(Some(0)),
            };
        };
        if top.is_log {
            return Ok(Some(0));
        }
        if imported.activities.removal.vdev() == Some(top.id) {
            return Ok(Some(imported.tree().mapping_runs(top.id) * table::ENTRY));
        }
        let Some(free) = imported.space().free_segments(top.id) else {
            return Ok(None);
        };
        // OpenZFS: module/zfs/vdev_label.c, vdev_config_generate (indirect_size)
        let tuning = &imported.activities.removal.tuning;
        let space = imported.store().vdev_space(top.id);
        let mut to_copy = space.allocated + space.deferred;
        let mut runs = 0;
        for (log2, count) in (0_u32..).zip(free) {
            if log2 + 1 < tuning.span_bytes.max(1).ilog2() {
                to_copy += count << (log2 + 1);
            } else {
                runs += count;
            }
        }
        runs += to_copy / tuning.segment_bytes.max(1);
        Ok(Some(runs * table::ENTRY))
    }

    /// Pauses or resumes evacuations, for tests that inspect one under way.
    pub fn pause_removal(&self, paused: bool) {
        self.0.activities.removal.paused.set(paused);
    }
}

impl ImportedPool {
    /// Begins to remove a vdev that holds data (`zpool remove`). On return it is being evacuated in the background, also
    /// after another import.
    pub(crate) async fn remove_data(self: &Rc<Self>, id: u32) -> Result<(), PoolError> {
        if self.activities.removal.preparing.replace(true) {
            return Err(PoolError::InUse(BUSY));
        }
        let begun = self.begin_removal(id).await;
        self.activities.removal.preparing.set(false);
        begun?;
        self.evacuate_in_background();
        Ok(())
    }

    async fn begin_removal(self: &Rc<Self>, id: u32) -> Result<(), PoolError> {
        self.check_removal(id).await?;
        let top = self.top_info(id)?;
        self.store().set_allocating(id, false);
        let prepared = async {
            self.wait_intent_logs_moved(id).await?;
            // Things may have changed meanwhile.
            self.check_removal(id).await?;
            self.stop_leaf_activities_below(id).await;
            self.run_in_sync(async move |imported: Rc<Self>, tx: Rc<Tx>| {
                imported.check_removal(id).await?;
                imported.initiate_removal(id, &tx).await
            })
            .await
        };
        let prepared = prepared.await;
        if prepared.is_err() && self.activities.removal.vdev() != Some(id) {
            if top.allocating {
                self.store().set_allocating(id, true);
            }
            self.continue_leaf_activities_below(id);
        }
        prepared
    }

    fn top_info(&self, id: u32) -> Result<TopInfo, PoolError> {
        let tops = self.tree().tops();
        let found = tops.into_iter().find(|top| top.id == id);
        found.ok_or(PoolError::NoSuchDevice)
    }

    fn top_config(&self, id: u32) -> Result<VdevConfig, PoolError> {
        let config = self.tree().config();
        let found = config.tops.get(id as usize).cloned();
        found.ok_or(PoolError::NoSuchDevice)
    }

    /// Refuses what cannot be removed.
    // OpenZFS: module/zfs/vdev_removal.c, spa_vdev_remove_top_check; lib/libzfs/libzfs_pool.c, zpool_vdev_remove (words)
    async fn check_removal(&self, id: u32) -> Result<(), PoolError> {
        let refuse = |why: &str| Err(PoolError::Invalid(why.to_owned()));
        if !self.hierarchy().features().is_enabled(FEATURE) {
            return refuse(NOT_SUPPORTED);
        }
        match self.activities.removal.vdev() {
            Some(vdev) if vdev == id => return Err(PoolError::InUse(IN_PROGRESS)),
            Some(_) => return Err(PoolError::InUse(BUSY)),
            None => {}
        }
        let top = self.top_info(id)?;
        let space = self.store().vdev_space(id);
        let normal = |top: &&TopInfo| top.bias == AllocationBias::None;
        let tops = self.tree().tops();
        if normal(&&top) {
            // Once it takes no more blocks its room is not counted any more.
            let idle = self.store().is_idle(id);
            let room = self.hierarchy().available_bytes().await?;
            if !idle && room < space.deflated_size {
                return Err(PoolError::NoSpace);
            }
        } else {
            let others = tops.iter().filter(normal);
            let spaces = others.map(|top| self.store().vdev_space(top.id));
            let room: u64 = spaces.map(|space| space.size - space.allocated).sum();
            if room < space.allocated {
                return Err(PoolError::NoSpace);
            }
        }
        // What is copied is read from devices that have all of it; the others need not be there.
        if !self.tree().has_whole_copy(id) {
            return Err(PoolError::InUse(BUSY));
        }
        if !self.tree().takes_writes(id) {
            return refuse("I/O error");
        }
        let mut shifts = tops.iter().filter(normal).map(|top| top.ashift);
        let first = shifts.next().unwrap_or(top.ashift);
        if shifts.any(|shift| shift != first) || top.ashift != first {
            return refuse(SHAPE);
        }
        let alike = |other: &&TopInfo| other.bias == top.bias && other.ashift != top.ashift;
        if tops.iter().any(|other| alike(&other)) {
            return refuse(SHAPE);
        }
        if tops.iter().any(|other| other.layout != Layout::Copies) {
            return refuse(SHAPE);
        }
        let config = self.tree().config();
        let odd = |vdev: &VdevConfig| vdev.children.iter().any(|child| !child.kind.is_leaf());
        if config.tops.iter().any(odd) {
            return refuse(SHAPE);
        }
        let is_other = |other: &&TopInfo| other.id != id && other.allocating;
        if !tops.iter().filter(normal).any(|other| is_other(&other)) {
            return refuse(SHAPE);
        }
        Ok(())
    }

    /// Waits until nothing is on its way to a vdev that takes no new blocks: no txg has placed anything there, and no
    /// intent log has blocks on it, which could be written at any time.
    async fn wait_intent_logs_moved(&self, id: u32) -> Result<(), PoolError> {
        for _ in 0..TXGS_UNDER_WAY {
            let txg = self.clock().open_txg();
            self.clock().kick();
            self.clock().wait_synced(txg).await?;
        }
        self.retire_logs_until(async || Ok(self.hierarchy().logs_on(id).await?.is_empty()))
            .await
    }

    /// The first txg of an evacuation.
    async fn initiate_removal(&self, id: u32, tx: &Tx) -> Result<(), PoolError> {
        let features = self.hierarchy().features();
        self.create_vdev_objects(tx).await?;
        let config = self.top_config(id)?;
        let counts = features.is_enabled(obsolete::FEATURE);
        let table = IndirectTable::create(self.mos(), counts, tx).await?;
        features.incr(FEATURE, tx).await?;
        if counts {
            let vdev_zap = config.zap_top.unwrap_or(0);
            self.begin_counting(ObjectId(vdev_zap), tx).await?;
        }
        self.tree().update_config(config.guid, |vdev| {
            vdev.non_allocating = true;
            vdev.extra.insert(table::IS_REMOVING, 1_u64);
            vdev.extra.insert(table::MAPPING, table.mapping.0);
            vdev.extra.insert(table::BIRTHS, table.births.0);
        });
        self.tree().set_mapping(id, Vec::new(), Vec::new())?;
        let before = self.activities.removal.phys.get();
        let phys = RemovalPhys {
            stage: Stage::Evacuating,
            vdev: u64::from(id),
            previous: before.map_or(NO_VDEV, |phys| phys.previous),
            start: self.unix_time(),
            end: 0,
            to_copy: self.store().vdev_space(id).allocated,
            copied: 0,
        };
        table::write_state(&phys, self.mos(), tx).await?;
        self.rewrite_directory(tx).await?;
        self.activities.removal.phys.set(Some(phys));
        self.adopt_evacuation(id, table, 0)?;
        self.dirty_config();
        self.log_removal("vdev remove started", &config, tx).await
    }

    fn adopt_evacuation(&self, id: u32, table: IndirectTable, next: u64) -> Result<(), PoolError> {
        let top = self.top_info(id)?;
        self.activities
            .removal
            .evacuation
            .replace(Some(Rc::new(Evacuation {
                vdev: id,
                guid: top.guid,
                class: top.bias,
                metaslab_shift: top.metaslab_shift,
                metaslabs: top.metaslab_count,
                ashift: top.ashift,
                table: Cell::new(table),
                next: Cell::new(next),
                pending: RefCell::default(),
                stopped: Cell::new(false),
            })));
        Ok(())
    }

    async fn log_removal(&self, event: &str, vdev: &VdevConfig, tx: &Tx) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "log removal happens in syncing context");
        let path = vdev.path.as_deref().unwrap_or("-");
        let text = format!("{} vdev {} {path}", self.config.name(), vdev.id);
        self.log_internal(event, &text, tx).await
    }

    /// Writes all blocks of the directory anew: what is read before the tables must not lie on the vdev that goes. (All of
    /// the configuration is written anew, too, and what leads to both.)
    async fn rewrite_directory(&self, tx: &Tx) -> Result<(), PoolError> {
        let info = self.mos().object_info(DIRECTORY).await?;
        for block in 0..=info.max_block_id {
            let at = block * u64::from(info.block_size);
            let len = ondisk::bytes::index(u64::from(info.block_size));
            let bytes = self.mos().read(DIRECTORY, at, len).await?;
            self.mos().write(DIRECTORY, at, &bytes, tx).await?;
        }
        Ok(())
    }

    /// Reads at import how far the newest removal is. After the tables, and before the space of the vdevs.
    pub(crate) async fn load_removal(&self) -> Result<(), PoolError> {
        let phys = table::read_state(self.mos()).await?;
        self.activities.removal.phys.set(phys);
        let Some(phys) = phys.filter(|phys| phys.stage == Stage::Evacuating) else {
            return Ok(());
        };
        let id = u32::try_from(phys.vdev).map_err(|_| PoolError::NoSuchDevice)?;
        let table = IndirectTable::open(self.mos(), &self.top_config(id)?).await?;
        let next = self.tree().evacuated_until(id).unwrap_or(0);
        self.adopt_evacuation(id, table, next)
    }

    /// Refuses what must wait for the end of an evacuation.
    pub(crate) fn refuse_with_removal(&self) -> Result<(), PoolError> {
        if self.activities.removal.vdev().is_some() || self.activities.removal.preparing.get() {
            return Err(PoolError::InUse("device removal in progress"));
        }
        Ok(())
    }

    /// Whether vdevs were removed, or one is.
    pub(crate) fn has_removals(&self) -> bool {
        let phys = self.activities.removal.phys.get();
        phys.is_some_and(|phys| phys.stage == Stage::Evacuating || phys.previous != NO_VDEV)
    }

    /// Counts bytes that need not be copied any more, or were. Syncing context.
    async fn note_copied(&self, bytes: u64, tx: &Tx) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "note copied happens in syncing context");
        let Some(mut phys) = self.activities.removal.phys.get() else {
            return Ok(());
        };
        if phys.stage == Stage::Evacuating {
            phys.copied += bytes;
            self.activities.removal.phys.set(Some(phys));
            table::write_state(&phys, self.mos(), tx).await?;
        }
        Ok(())
    }

    /// Returns what `zpool status` says of the newest removal.
    pub(crate) fn removal_status(&self) -> Option<RemovalStatus> {
        let phys = self.activities.removal.phys.get()?;
        let removed = self.tree().removed_tops().into_iter();
        let runs: u64 = removed.map(|top| self.tree().mapping_runs(top.id)).sum();
        Some(RemovalStatus {
            stage: match phys.stage {
                Stage::Evacuating => RemovalStage::Evacuating,
                Stage::Finished => RemovalStage::Finished,
                Stage::Canceled => RemovalStage::Canceled,
            },
            vdev: phys.vdev,
            start_time: phys.start,
            end_time: phys.end,
            to_copy_bytes: phys.to_copy,
            copied_bytes: phys.copied,
            mapping_bytes: runs * table::ENTRY,
        })
    }

    /// The last txg of an evacuation: the vdev becomes a table. Returns its devices.
    async fn complete_removal(&self, tx: &Tx) -> Result<Vec<runtime::Disk>, PoolError> {
        assert!(
            tx.is_syncing(),
            "complete removal happens in syncing context"
        );
        let Some(evacuation) = self.activities.removal.evacuation() else {
            return Ok(Vec::new());
        };
        let id = evacuation.vdev;
        assert!(
            evacuation.pending.borrow().is_empty(),
            "everything was copied and written before"
        );
        let mut phys = self
            .activities
            .removal
            .phys
            .get()
            .ok_or(PoolError::NoSuchDevice)?;
        debug_assert_eq!(phys.copied, phys.to_copy, "each byte is counted once");
        let (old, disks) = self.tree().make_indirect(id)?;
        self.store().remove_vdev(id);
        let long_headers = self.space().remove_vdev(id, tx).await?;
        for _ in 0..long_headers {
            self.hierarchy()
                .features()
                .decr("spacemap_histogram", tx)
                .await?;
        }
        for leaf in leaves_of(&old) {
            self.free_leaf_objects(leaf, tx).await?;
        }
        if let Some(vdev_zap) = old.zap_top.filter(|&object| object != 0) {
            log_space_map::free_list(self.mos(), ObjectId(vdev_zap), tx).await?;
        }
        let config = self.top_config(id)?;
        if phys.previous != NO_VDEV {
            self.tree().update_config(config.guid, |vdev| {
                vdev.extra.insert(table::PREVIOUS, phys.previous);
            });
        }
        phys.previous = u64::from(id);
        self.end_evacuation(phys, Stage::Finished, tx).await?;
        let text = format!("{} vdev {id}", self.config.name());
        self.log_internal("vdev remove completed", &text, tx)
            .await?;
        Ok(disks)
    }

    async fn end_evacuation(
        &self,
        mut phys: RemovalPhys,
        stage: Stage,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "end evacuation happens in syncing context");
        phys.stage = stage;
        phys.end = self.unix_time();
        table::write_state(&phys, self.mos(), tx).await?;
        self.activities.removal.phys.set(Some(phys));
        self.activities.removal.evacuation.replace(None);
        self.dirty_config();
        Ok(())
    }

    /// Makes a vdev that is being evacuated an ordinary one again: what was copied is freed, the vdev still has it.
    async fn cancel_evacuation(&self, tx: &Tx) -> Result<(), PoolError> {
        assert!(
            tx.is_syncing(),
            "cancel evacuation happens in syncing context"
        );
        let Some(evacuation) = self.activities.removal.evacuation() else {
            return Err(none_active());
        };
        let id = evacuation.vdev;
        let phys = self.activities.removal.phys.get().ok_or_else(none_active)?;
        assert!(
            evacuation.pending.borrow().is_empty(),
            "everything copied was written before"
        );
        let until = self.tree().evacuated_until(id).unwrap_or(0);
        let shift = evacuation.metaslab_shift;
        for metaslab in 0..evacuation.metaslabs {
            let start = metaslab << shift;
            if start >= until {
                break;
            }
            let within = start..((metaslab + 1) << shift).min(until);
            let metaslab = u32::try_from(metaslab).map_err(|_| PoolError::NoSuchDevice)?;
            let live = self.store().allocated_in(id, metaslab, &within).await?;
            for range in live {
                self.store().free_remapped(tx.txg(), id, &range)?;
            }
        }
        let config = self.top_config(id)?;
        let table = evacuation.table.get();
        let vdev_zap = ObjectId(config.zap_top.unwrap_or(0));
        let counts = table.counts.is_some();
        self.end_counting(id, vdev_zap, counts, tx).await?;
        self.hierarchy().features().decr(FEATURE, tx).await?;
        table.free(self.mos(), tx).await?;
        self.tree().forget_mapping(id);
        self.tree().update_config(config.guid, |vdev| {
            vdev.non_allocating = false;
            for key in [table::IS_REMOVING, table::MAPPING, table::BIRTHS] {
                vdev.extra.remove(key);
            }
        });
        self.end_evacuation(phys, Stage::Canceled, tx).await?;
        if self.vdev_properties.number(vdev_zap, "allocating") != Some(0) {
            self.store().set_allocating(id, true);
        } else {
            self.tree()
                .update_config(config.guid, |vdev| vdev.non_allocating = true);
        }
        self.log_removal("vdev remove canceled", &config, tx).await
    }
}

fn none_active() -> PoolError {
    PoolError::InUse("there is no active removal")
}
