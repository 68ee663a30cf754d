//! Redaction: the list of a snapshot's blocks that all of its redaction snapshots have changed, with a bookmark that keeps it.
//!
//! ```text
//!   changes of snapshot 1 -+
//!   changes of snapshot 2 -+-> ranges in all of them -> blocks that the redacted snapshot has -> list, txg by txg
//!   ...                   -+
//! ```
//!
//! The changes of a snapshot are its blocks younger than the redacted snapshot, holes, and deleted objects with all their blocks. All
//! are walked at once, in the order of object and block, so memory does not grow with what changed. The list is written a block of it
//! per txg; when the walk is interrupted, it goes on from there when it is asked for again. OpenZFS: module/zfs/dmu_redact.c.

use std::collections::BTreeSet;
use std::rc::Rc;

use dmu::{
    DNODES_OF_BLOCK, FIRST_ACCOUNTING, ObjectInfo, Objset, Traversal, TraverseItem,
    TraverseOptions, Tx,
};
use ondisk::redaction::{ENTRY_BLOCKS_MAX, RedactedBlocks, RedactionHeader};
use ondisk::{DnodePhys, ObjectId, ObjsetType, Txg};

use crate::bookmark::BookmarkSource;
use crate::change_log::Concerned;
use crate::dataset::Dataset;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, RedactionError, Result};
use crate::hierarchy::Hierarchy;
use crate::lists_in_use::ListHold;
use crate::namecheck::{self, split};
use crate::property::DatasetKind;
use crate::redaction_list::ENTRIES_OF_BLOCK;
use crate::sync_task::SyncTask;

/// The object with the names of the others, and its entry of the deleted files that are still open.
const MASTER_NODE: ObjectId = ObjectId(1);
const UNLINKED_SET: &str = "DELETE_QUEUE";

/// Object and block.
type Position = (u64, u64);

/// Blocks from the first to the last; those of objects in between are all meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockRange {
    first: Position,
    last: Position,
}

impl BlockRange {
    fn of_object(object: u64) -> Self {
        Self {
            first: (object, 0),
            last: (object, u64::MAX),
        }
    }

    /// Takes up a range that begins where this one ends.
    fn extend(&mut self, next: &Self) -> bool {
        let (object, block) = self.last;
        let follows = if block == u64::MAX {
            object.checked_add(1) == Some(next.first.0) && next.first.1 == 0
        } else {
            next.first == (object, block + 1)
        };
        if follows {
            self.last = next.last;
        }
        follows
    }
}

/// What a redaction goes by, once all was found.
struct Redaction {
    base: Dataset,
    snapshots: Vec<Dataset>,
    /// Name of the bookmark.
    name: String,
    /// The list of an interrupted redaction, and how far it has come.
    begun: Option<(ListHold, Position)>,
}

/// Makes the bookmark with an empty list.
struct CreateRedaction {
    name: String,
    snapshot: String,
    guids: Vec<u64>,
}

impl SyncTask for CreateRedaction {
    type Checked = BookmarkSource;
    type Output = ListHold;

    fn name(&self) -> &'static str {
        "redact"
    }

    fn concerned(&self) -> Concerned {
        Concerned::Nothing
    }

    async fn check(&self, pool: &Rc<DslPool>, _: Option<Txg>) -> Result<BookmarkSource> {
        pool.check_new_list(self.guids.len())?;
        pool.check_bookmark(&self.name, &self.snapshot).await
    }

    async fn apply(self, pool: &Rc<DslPool>, source: BookmarkSource, tx: &Tx) -> Result<ListHold> {
        let header = RedactionHeader {
            snapshots: self.guids,
            ..RedactionHeader::default()
        };
        let list = pool.create_list(&header, tx).await?;
        pool.create_bookmark(&self.name, source, Some(list), tx)
            .await?;
        Ok(pool.lists_in_use.hold(list))
    }
}

impl Hierarchy {
    /// Makes a redaction bookmark of a snapshot: the list of its blocks that all `redaction_snapshots`, which descend from it, have
    /// changed. `bookmark` is its name without the dataset's. One that was interrupted goes on. The list is on disk, and complete,
    /// when this returns.
    ///
    /// # Errors
    /// `NotFound`; `Exists`; `FeatureDisabled`; `BadName` and `NameTooLong`; `Redaction`; `KeyNotLoaded`; `ReadOnly`; of reading. After
    /// an error of reading or writing the bookmark stays, with a list that is not complete.
    pub async fn redact(
        &self,
        snapshot: &str,
        bookmark: &str,
        redaction_snapshots: &[String],
    ) -> Result<()> {
        let pool = self.pool();
        if pool.read_only {
            return Err(DslError::ReadOnly);
        }
        let found = {
            let _names = pool.config.read().await;
            pool.find_redaction(snapshot, bookmark, redaction_snapshots)
                .await?
        };
        let guids: Vec<u64> = found.snapshots.iter().map(|s| s.guid().0).collect();
        let (hold, from) = match found.begun {
            Some(begun) => begun,
            None => {
                let task = CreateRedaction {
                    name: found.name,
                    snapshot: snapshot.to_owned(),
                    guids,
                };
                (pool.run(task).await?, (0, 0))
            }
        };
        let mut sources = Vec::new();
        for dataset in &found.snapshots {
            let since = found.base.create_txg();
            sources.push(ChangedRanges::new(pool, dataset, since, from).await?);
        }
        let mut common = CommonRanges::new(sources).await?;
        let mut base = BaseObjects {
            objset: found.base.objset(),
            current: None,
        };
        let mut list = ListWriter {
            pool: pool.clone(),
            hold,
            pending: Vec::new(),
            run: None,
        };
        while let Some(mut range) = common.next().await? {
            // A hole of many objects may begin before the place to go on from.
            range.first = range.first.max(from);
            if range.first <= range.last {
                base.redact(&range, &mut list).await?;
            }
        }
        list.finish().await
    }
}

impl DslPool {
    /// Finds the snapshots of a redaction and holds them, and finds the list of an interrupted one.
    async fn find_redaction(
        self: &Rc<Self>,
        snapshot: &str,
        bookmark: &str,
        redaction_snapshots: &[String],
    ) -> Result<Redaction> {
        let base = self.redaction_snapshot(snapshot).await?;
        let mut snapshots: Vec<Dataset> = Vec::new();
        for (at, name) in redaction_snapshots.iter().enumerate() {
            // Of a name that is given twice, the last counts.
            if redaction_snapshots[at + 1..].contains(name) {
                continue;
            }
            let found = self.redaction_snapshot(name).await?;
            let (from, to) = (base.state(), found.state());
            if !self
                .is_earlier(&from.dir(), base.create_txg(), to.dir(), found.create_txg())
                .await?
            {
                return Err(RedactionError::NotDescendant.into());
            }
            snapshots.push(found);
        }
        if snapshots.is_empty() {
            return Err(RedactionError::NotDescendant.into());
        }
        let head = split(snapshot).head;
        let name = format!("{head}#{bookmark}");
        namecheck::check(&name, DatasetKind::Bookmark)?;
        let begun = self.begun_redaction(&name, head, &snapshots).await?;
        Ok(Redaction {
            base,
            snapshots,
            name,
            begun,
        })
    }

    async fn redaction_snapshot(self: &Rc<Self>, name: &str) -> Result<Dataset> {
        let found = self.find(name).await?;
        if found.snapshot.is_none() {
            return Err(RedactionError::NotDescendant.into());
        }
        let dataset = self.open_dataset(found).await?;
        if dataset.state().is_redacted() {
            return Err(RedactionError::AlreadyRedacted.into());
        }
        Ok(dataset)
    }

    /// The list of a bookmark of this name, if it is one of an interrupted redaction by the same snapshots.
    async fn begun_redaction(
        self: &Rc<Self>,
        name: &str,
        head: &str,
        snapshots: &[Dataset],
    ) -> Result<Option<(ListHold, Position)>> {
        let exists = || DslError::Exists { name: name.into() };
        let Some(dir) = self.find_dir(head).await? else {
            return Ok(None);
        };
        let head = ObjectId(dir.phys().head_dataset_obj);
        let short = split(name).bookmark;
        let all = self.stored_bookmarks(head).await?;
        let Some((_, bookmark)) = all.iter().find(|(known, _)| Some(&**known) == short) else {
            return Ok(None);
        };
        if bookmark.redaction_obj == 0 {
            return Err(exists());
        }
        let list = ObjectId(bookmark.redaction_obj);
        let header = self.header_of_entries(list).await?;
        let same = header.snapshots.len() == snapshots.len()
            && snapshots
                .iter()
                .all(|snapshot| header.snapshots.contains(&snapshot.guid().0));
        if !same {
            return Err(RedactionError::OtherSnapshots.into());
        }
        if header.is_complete() {
            return Err(exists());
        }
        if self.lists_in_use.contains(list) {
            return Err(DslError::Busy { name: name.into() });
        }
        let from = (header.last_object, header.last_block);
        Ok(Some((self.lists_in_use.hold(list), from)))
    }
}

/// The ranges of blocks that a snapshot has changed, or has no longer, in order.
struct ChangedRanges {
    pool: Rc<DslPool>,
    objset: Objset,
    traversal: Traversal,
    /// The set of files that are deleted as soon as they are closed.
    unlinked: Option<ObjectId>,
    /// Shifts of the pointers of the table of dnodes and of the object being visited.
    table_shift: u32,
    shift: u32,
    /// The object being visited is deleted.
    deleted: Option<u64>,
    /// A range that the next one may lengthen.
    building: Option<BlockRange>,
    steps: usize,
}

impl ChangedRanges {
    async fn new(
        pool: &Rc<DslPool>,
        dataset: &Dataset,
        since: Txg,
        from: Position,
    ) -> Result<Self> {
        let objset = dataset.objset();
        let visit = TraverseOptions {
            objset_id: objset.id(),
            min_birth: since,
            holes: true,
            unborn_holes: true,
            dnodes: true,
            resume: (from != (0, 0)).then_some((ObjectId(from.0), from.1)),
            ..TraverseOptions::default()
        };
        let mut unlinked = None;
        if objset.kind() == ObjsetType::ZFS {
            let set = dmu::zap::lookup_u64(&objset, MASTER_NODE, UNLINKED_SET).await?;
            if let Some(set) = set.map(ObjectId)
                && dmu::zap::count(&objset, set).await? != 0
            {
                unlinked = Some(set);
            }
        }
        Ok(Self {
            pool: pool.clone(),
            traversal: Traversal::new(objset.services(), objset.root(), visit),
            objset,
            unlinked,
            table_shift: 0,
            shift: 0,
            deleted: None,
            building: None,
            steps: 0,
        })
    }

    async fn next(&mut self) -> Result<Option<BlockRange>> {
        while let Some(item) = self.traversal.next().await? {
            self.pool.yield_every(self.steps).await;
            self.steps += 1;
            let Some(range) = self.range_of(&item).await? else {
                continue;
            };
            if let Some(building) = &mut self.building {
                if building.extend(&range) {
                    continue;
                }
                if range.first <= building.last {
                    return Err(DslError::corrupt("order of blocks", item.object));
                }
            }
            if let Some(done) = self.building.replace(range) {
                return Ok(Some(done));
            }
        }
        Ok(self.building.take())
    }

    async fn range_of(&mut self, item: &TraverseItem) -> Result<Option<BlockRange>> {
        let object = item.object.0;
        if object >= FIRST_ACCOUNTING.0 {
            return Ok(None);
        }
        if let Some(dnode) = &item.dnode {
            return self.dnode(object, dnode).await;
        }
        let Ok(level) = u32::try_from(item.level) else {
            return Ok(None);
        };
        if self.deleted == Some(object) {
            return Ok(None);
        }
        if item.bp.is_hole() {
            return Ok(Some(self.hole(object, level, item.block)));
        }
        Ok((level == 0 && object != 0).then_some(BlockRange {
            first: (object, item.block),
            last: (object, item.block),
        }))
    }

    async fn dnode(&mut self, object: u64, dnode: &DnodePhys) -> Result<Option<BlockRange>> {
        // The table's own dnode comes as object 0, and so does the slot of that number, which is never used.
        if object == 0 {
            if !dnode.is_free() {
                self.table_shift = dnode.pointers_shift();
            }
            return Ok(None);
        }
        self.shift = dnode.pointers_shift();
        let mut is_deleted = dnode.is_free();
        if let Some(set) = self.unlinked
            && !is_deleted
        {
            let name = format!("{object:x}");
            is_deleted = dmu::zap::lookup(&self.objset, set, &name).await?.is_some();
        }
        self.deleted = is_deleted.then_some(object);
        Ok(self.deleted.map(BlockRange::of_object))
    }

    /// All that a hole covers; one in the table of dnodes covers objects.
    fn hole(&self, object: u64, level: u32, block: u64) -> BlockRange {
        let shift = if object == 0 {
            self.table_shift
        } else {
            self.shift
        };
        let span = 1_u64
            .checked_shl(shift.saturating_mul(level))
            .unwrap_or(u64::MAX);
        let first = span.saturating_mul(block);
        let last = first.saturating_add(span - 1);
        if object == 0 {
            BlockRange {
                first: (first.saturating_mul(DNODES_OF_BLOCK), 0),
                last: (
                    last.saturating_mul(DNODES_OF_BLOCK)
                        .saturating_add(DNODES_OF_BLOCK - 1),
                    u64::MAX,
                ),
            }
        } else {
            BlockRange {
                first: (object, first),
                last: (object, last),
            }
        }
    }
}

/// The ranges that several snapshots have changed all.
struct CommonRanges {
    sources: Vec<ChangedRanges>,
    /// The first block of the range at hand of each source.
    firsts: Vec<Position>,
    /// The ranges at hand with the number of their source: by their first blocks, and by their last.
    by_first: BTreeSet<(Position, usize)>,
    by_last: BTreeSet<(Position, usize)>,
}

impl CommonRanges {
    async fn new(sources: Vec<ChangedRanges>) -> Result<Self> {
        let mut all = Self {
            firsts: vec![(0, 0); sources.len()],
            sources,
            by_first: BTreeSet::new(),
            by_last: BTreeSet::new(),
        };
        for number in 0..all.sources.len() {
            all.pull(number).await?;
        }
        Ok(all)
    }

    async fn pull(&mut self, number: usize) -> Result<()> {
        if let Some(range) = self.sources[number].next().await? {
            self.firsts[number] = range.first;
            self.by_first.insert((range.first, number));
            self.by_last.insert((range.last, number));
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Option<BlockRange>> {
        // Where one source has ended, nothing is common any more.
        while self.by_last.len() == self.sources.len() {
            let (Some(&(first, _)), Some(&(last, ends))) =
                (self.by_first.last(), self.by_last.first())
            else {
                return Ok(None);
            };
            // The range that ends first has no part in what comes behind it.
            self.by_last.remove(&(last, ends));
            self.by_first.remove(&(self.firsts[ends], ends));
            self.pull(ends).await?;
            if first <= last {
                return Ok(Some(BlockRange { first, last }));
            }
        }
        Ok(None)
    }
}

/// The objects of the redacted snapshot whose blocks may be left out.
struct BaseObjects {
    objset: Objset,
    /// The one last found. None lies between what was looked for then and it; ranges come in order, and nothing is looked for behind the
    /// one at hand, so that none lies before it that is still to come.
    current: Option<ObjectInfo>,
}

impl BaseObjects {
    /// Notes the blocks that the redacted snapshot has of a range.
    async fn redact(&mut self, range: &BlockRange, list: &mut ListWriter) -> Result<()> {
        let mut from = range.first.0;
        let mut objects = 0;
        while from <= range.last.0
            && let Some(info) = self.object_from(from).await?
            && info.object.0 <= range.last.0
        {
            list.pool.yield_every(objects).await;
            objects += 1;
            let object = info.object.0;
            let first = if object == range.first.0 {
                range.first.1
            } else {
                0
            };
            let mut last = info.max_block_id;
            if object == range.last.0 {
                last = last.min(range.last.1);
            }
            if first <= last {
                list.add(object, first, last, info.block_size).await?;
            }
            from = object + 1;
        }
        Ok(())
    }

    /// The first object with this number or a higher one that holds data.
    async fn object_from(&mut self, object: u64) -> Result<Option<ObjectInfo>> {
        let known = self.current.filter(|info| info.object.0 >= object);
        if known.is_some() {
            return Ok(known);
        }
        let mut after = ObjectId(object.saturating_sub(1));
        while let Some(found) = self.objset.next_object(after).await? {
            let info = self.objset.object_info(found).await?;
            if !info.object_type.is_metadata() {
                self.current = Some(info);
                return Ok(self.current);
            }
            after = found;
        }
        Ok(None)
    }
}

/// Puts blocks that follow each other into entries, and writes them.
struct ListWriter {
    pool: Rc<DslPool>,
    hold: ListHold,
    /// Entries that are not written yet: a block of the list at most.
    pending: Vec<RedactedBlocks>,
    /// The last entry, which may become longer.
    run: Option<RedactedBlocks>,
}

impl ListWriter {
    async fn add(&mut self, object: u64, first: u64, last: u64, block_bytes: u32) -> Result<()> {
        let mut block = first;
        let mut left = (last - first).saturating_add(1);
        while left > 0 {
            let count = left.min(ENTRY_BLOCKS_MAX);
            let lengthened = self.run.filter(|run| {
                run.object == object
                    && run.block + run.count() == block
                    && run.count() + count <= ENTRY_BLOCKS_MAX
            });
            if let Some(run) = lengthened {
                let count = run.count() + count;
                self.run = Some(RedactedBlocks::new(object, run.block, count, block_bytes));
            } else {
                let entry = RedactedBlocks::new(object, block, count, block_bytes);
                self.pending.extend(self.run.replace(entry));
                if self.pending.len() >= ENTRIES_OF_BLOCK {
                    self.write((object, block)).await?;
                }
            }
            block += count;
            left -= count;
        }
        Ok(())
    }

    /// Writes what is pending: all before a place is in the list then.
    async fn write(&mut self, before: Position) -> Result<()> {
        assert!(
            self.pending.len() <= ENTRIES_OF_BLOCK,
            "a block of the list is written at once"
        );
        let entries = std::mem::take(&mut self.pending);
        let list = self.hold.list();
        let append = async move |pool: &Rc<DslPool>, tx: &Tx| {
            pool.poison_on_error(pool.append_to_list(list, &entries, before, tx))
                .await
        };
        let nothing = Concerned::Nothing;
        self.pool.submit("redact", nothing, append).await
    }

    async fn finish(mut self) -> Result<()> {
        if self.pending.len() >= ENTRIES_OF_BLOCK
            && let Some(run) = self.run
        {
            self.write((run.object, run.block)).await?;
        }
        self.pending.extend(self.run.take());
        self.write((u64::MAX, u64::MAX)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_where_one_ends_and_the_other_begins() {
        let check = |mut range: BlockRange, next: BlockRange, joined: bool| {
            assert_eq!(range.extend(&next), joined, "{range:?} {next:?}");
        };
        let blocks = |object, first, last| BlockRange {
            first: (object, first),
            last: (object, last),
        };
        check(blocks(3, 0, 4), blocks(3, 5, 9), true);
        check(blocks(3, 0, 4), blocks(3, 6, 9), false);
        check(blocks(3, 0, 4), blocks(4, 5, 9), false);
        check(blocks(3, 0, u64::MAX), blocks(4, 0, 0), true);
        check(blocks(3, 0, u64::MAX), blocks(4, 1, 1), false);
        check(blocks(3, 0, u64::MAX), blocks(5, 0, 0), false);
        check(BlockRange::of_object(u64::MAX), blocks(0, 0, 0), false);
    }
}
