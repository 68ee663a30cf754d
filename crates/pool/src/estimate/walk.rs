//! The walk over the blocks of files and volumes: each once, in the oldest dataset that holds it.

use dmu::{Traversal, TraverseItem, TraverseOptions};
use ondisk::dsl::{DslDatasetPhys, UsedBy};
use ondisk::{BlockPointer, ObjectId, Txg};
use runtime::Instant;
use zio::{Bookmark, IoClass, ReadProps};

use crate::PoolError;
use crate::pool::ImportedPool;
use crate::scan::{datasets_below, is_unreadable_by_design};

/// Pointers looked at before other tasks get their turn.
const VISITS_IN_TURN: u32 = 128;
const _: () = assert!(VISITS_IN_TURN.is_power_of_two());
/// How often damage is looked at again from a newer root before it counts.
const ATTEMPTS: u32 = 4;

/// Where a walk is.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockWalk {
    /// Datasets still to be visited, the next one last, each with the txg after which its own blocks were born.
    todo: Vec<(u64, u64)>,
    /// The object and block of the last of them to go on with.
    place: (u64, u64),
    attempts: u32,
    /// Bytes of what was visited.
    pub(super) visited_bytes: u64,
    /// Bytes the datasets say they have.
    pub(super) total_bytes: u64,
    /// Pointers whose blocks below could not be read.
    pub(super) unreadable: u64,
}

/// A block of a file or volume, and its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataBlock {
    pub(super) objset: u64,
    pub(super) object: u64,
    pub(super) block: u64,
    pub(super) bp: BlockPointer,
}

impl DataBlock {
    /// How it is read: as a scan does, for it may have been freed and overwritten since.
    pub(super) fn read_props(&self) -> ReadProps {
        ReadProps {
            class: IoClass::Scrub,
            bookmark: Bookmark {
                objset: self.objset,
                object: self.object,
                level: 0,
                block: self.block,
            },
        }
    }
}

/// Why a pass over a dataset ended.
enum PassEnd {
    Complete,
    /// The time is over.
    Paused,
    /// There was damage that may be none: look again from a newer root.
    Again,
}

impl BlockWalk {
    pub(super) fn is_done(&self) -> bool {
        self.todo.is_empty()
    }
}

impl ImportedPool {
    /// Begins a walk over a head and what lies below it with all snapshots, or over one snapshot.
    pub(super) async fn begin_walk(&self, dataset: ObjectId) -> Result<BlockWalk, PoolError> {
        let bonus = self.mos().bonus(dataset).await?;
        let phys = DslDatasetPhys::decode(&bonus.bytes)
            .map_err(|error| PoolError::Corrupt(format!("dataset {}: {error}", dataset.0)))?;
        if phys.is_snapshot() {
            return Ok(BlockWalk {
                todo: vec![(dataset.0, 0)],
                total_bytes: phys.referenced_bytes,
                ..BlockWalk::default()
            });
        }
        let (datasets, dirs) = datasets_below(self.mos(), phys.dir_obj).await?;
        let of_dir = |used: UsedBy| {
            dirs.values()
                .map(move |dir| dir.used_breakdown[used as usize])
        };
        let sizes = of_dir(UsedBy::Head).chain(of_dir(UsedBy::Snapshots));
        let own = datasets.iter();
        let own = own.filter(|(_, phys)| dirs.contains_key(&phys.dir_obj));
        Ok(BlockWalk {
            todo: own
                .map(|(object, phys)| (*object, phys.prev_snap_txg))
                .rev()
                .collect(),
            total_bytes: sizes.fold(0, u64::saturating_add),
            ..BlockWalk::default()
        })
    }

    /// Goes on with a walk until then, at least a little.
    pub(super) async fn walk_blocks(
        &self,
        walk: &mut BlockWalk,
        until: Instant,
        mut visit: impl FnMut(&DataBlock),
    ) -> Result<(), PoolError> {
        while let Some(&(objset, min_txg)) = walk.todo.last() {
            let end = match self.settled_root(objset).await? {
                Some(root) if !root.is_hole() => {
                    let at = (objset, Txg(min_txg), root);
                    self.pass(walk, at, until, &mut visit).await?
                }
                // Gone since, or empty.
                _ => PassEnd::Complete,
            };
            match end {
                PassEnd::Complete => {
                    walk.todo.pop();
                    walk.place = (0, 0);
                    walk.attempts = 0;
                }
                PassEnd::Paused => return Ok(()),
                PassEnd::Again => walk.attempts += 1,
            }
            if self.handle().now() >= until {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn pass(
        &self,
        walk: &mut BlockWalk,
        (objset, min_birth, root): (u64, Txg, BlockPointer),
        until: Instant,
        visit: &mut impl FnMut(&DataBlock),
    ) -> Result<PassEnd, PoolError> {
        assert!(
            objset != 0 && !root.is_hole(),
            "a pass is over a dataset that has something"
        );
        let taken = self.clock().last_synced();
        let (object, block) = walk.place;
        let options = TraverseOptions {
            objset_id: objset,
            min_birth,
            skip_errors: true,
            background: true,
            resume: Some((ObjectId(object), block)),
            ..TraverseOptions::default()
        };
        let mut traversal = Traversal::new(self.services(), root, options);
        let mut visits = 0;
        let mut moved = false;
        while let Some(item) = traversal.next().await? {
            if let Some(error) = &item.error {
                let stale = self.clock().last_synced().0 > taken.0 + 1;
                if stale && walk.attempts < ATTEMPTS && !is_unreadable_by_design(error) {
                    return Ok(PassEnd::Again);
                }
                walk.unreadable += 1;
                continue;
            }
            walk.visited_bytes = walk
                .visited_bytes
                .saturating_add(self.store().dsize(&item.bp));
            if item.level == 0 && item.object.0 != 0 {
                walk.place = (item.object.0, item.block.saturating_add(1));
                walk.attempts = 0;
                moved = true;
            }
            if let Some(block) = data_block(objset, &item) {
                visit(&block);
            }
            visits += 1;
            if visits % VISITS_IN_TURN == 0 {
                self.handle().yield_now().await;
                if moved && self.handle().now() >= until {
                    return Ok(PassEnd::Paused);
                }
            }
        }
        Ok(PassEnd::Complete)
    }
}

/// The block of an item that is data of a file or volume.
fn data_block(objset: u64, item: &TraverseItem) -> Option<DataBlock> {
    let bp = item.bp;
    let data =
        item.level == 0 && item.object.0 != 0 && !bp.is_hole() && !bp.object_type().is_metadata();
    data.then_some(DataBlock {
        objset,
        object: item.object.0,
        block: item.block,
        bp,
    })
}
