//! The bptree: destroyed datasets whose blocks are still to be freed, and the traversal that frees them step by step.
//!
//! An object lists the root pointers of destroyed datasets, each with the txg its blocks must be
//! younger than (older ones belong to the origin) and a bookmark of how far the traversal came. The walk
//! visits children before parents, so that it can always be resumed: what is above the bookmark
//! still exists. The pages of a walk are those of OpenZFS (module/zfs/bptree.c, dmu_traverse.c), so
//! either side can finish what the other began.
//!
//! Guarantees: a step frees at most the blocks it was allowed to, in bounded memory.

use dmu::{AllocSpec, Objset, Tx};
use ondisk::bptree::{BptreeEntryPhys, BptreePhys, ZbookmarkPhys};
use ondisk::{BlockPointer, DNODE_MIN_SIZE, DnodePhys, ObjectId, ObjectType, ObjsetPhys};
use runtime::IoBuf;
use zio::{IoClass, ReadProps};

use crate::error::{DslError, Result};
use crate::object_directory::LIST_BLOCK;
use crate::space::Sizes;

/// The objset number bookmarks of destroyed datasets carry.
const DESTROYED_OBJSET: u64 = u64::MAX;
/// Block number that stands for an object's spill block.
const SPILL_BLOCK: u64 = u64::MAX;
/// Dnodes of the meta-dnode count as blocks of object 0.
const META_DNODE: u64 = 0;
/// Puts blocks of the meta-dnode before the blocks of the objects in them. OpenZFS:
/// include/sys/zio.h, `COMPARE_META_LEVEL`.
const META_LEVEL: u64 = 0x100;
const DNODES_PER_BLOCK: u64 = 32;
const ENTRY_BYTES: u64 = BptreeEntryPhys::SIZE as u64;

const USER_USED: u64 = u64::MAX;
const GROUP_USED: u64 = u64::MAX - 1;
const PROJECT_USED: u64 = u64::MAX - 2;
const _: () = assert!(DNODES_PER_BLOCK * DNODE_MIN_SIZE as u64 == 16 << 10);
const _: () = assert!(PROJECT_USED < GROUP_USED && GROUP_USED < USER_USED);

/// Where a walk stands: the first level-0 block that was not freed. All zero before the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resume {
    object: u64,
    block: u64,
    /// False before the start.
    started: bool,
}

impl Resume {
    /// The resume point of a stored bookmark.
    fn from_bookmark(bookmark: &ZbookmarkPhys) -> Self {
        Self {
            object: bookmark.object,
            block: bookmark.blkid,
            started: *bookmark != ZbookmarkPhys::default(),
        }
    }

    fn to_bookmark(self) -> ZbookmarkPhys {
        if !self.started {
            return ZbookmarkPhys::default();
        }
        ZbookmarkPhys {
            objset: DESTROYED_OBJSET,
            object: self.object,
            level: 0,
            blkid: self.block,
        }
    }
}

fn sizes_of_header(phys: &BptreePhys) -> Sizes {
    Sizes {
        used: phys.bytes,
        compressed: phys.comp,
        uncompressed: phys.uncomp,
    }
}

fn set_sizes(phys: &mut BptreePhys, sizes: Sizes) {
    phys.bytes = sizes.used;
    phys.comp = sizes.compressed;
    phys.uncomp = sizes.uncompressed;
}

/// Makes an empty list of destroyed datasets. Syncing context.
pub(crate) async fn create(mos: &Objset, tx: &Tx) -> Result<ObjectId> {
    assert!(tx.is_syncing(), "create happens in syncing context");
    let len = u16::try_from(BptreePhys::SIZE).expect("40 bytes");
    let spec = AllocSpec::new(ObjectType::UINT64_METADATA)
        .block_size(LIST_BLOCK)
        .bonus(ObjectType::UINT64_METADATA, len);
    Ok(mos.allocate(spec, tx).await?)
}

/// Reads the bonus.
pub(crate) async fn read(mos: &Objset, object: ObjectId) -> Result<BptreePhys> {
    let bonus = mos.bonus(object).await?;
    BptreePhys::decode(&bonus.bytes)
        .map_err(|_| DslError::corrupt("list of destroyed datasets", object))
}

async fn write(mos: &Objset, object: ObjectId, phys: BptreePhys, tx: &Tx) -> Result<()> {
    mos.set_bonus(object, ObjectType::UINT64_METADATA, &phys.encode(), tx)
        .await?;
    Ok(())
}

/// Adds a destroyed dataset. Syncing context.
pub(crate) async fn add(
    mos: &Objset,
    object: ObjectId,
    bp: BlockPointer,
    min_birth: u64,
    sizes: Sizes,
    tx: &Tx,
) -> Result<()> {
    assert!(tx.is_syncing(), "add happens in syncing context");
    let mut phys = read(mos, object).await?;
    let entry = BptreeEntryPhys {
        bp,
        birth_txg: min_birth,
        bookmark: ZbookmarkPhys::default(),
    };
    let at = phys.end * ENTRY_BYTES;
    mos.write(object, at, &entry.encode(), tx).await?;
    phys.end += 1;
    let mut left = sizes_of_header(&phys);
    left.add(sizes);
    set_sizes(&mut phys, left);
    write(mos, object, phys, tx).await
}

/// How far a step came.
pub(crate) enum Progress {
    /// Everything is freed.
    Finished,
    /// There is more to free.
    More,
    /// A block on the way cannot be read; everything before it is freed, and noted so.
    Failed(DslError),
}

/// Frees up to `budget` blocks of the oldest destroyed datasets; `free` is called for each block
/// and returns its sizes. Syncing context.
pub(crate) async fn step(
    mos: &Objset,
    object: ObjectId,
    budget: u64,
    tx: &Tx,
    mut free: impl AsyncFnMut(&BlockPointer) -> Result<Sizes>,
) -> Result<Progress> {
    assert!(tx.is_syncing(), "step happens in syncing context");
    let mut phys = read(mos, object).await?;
    let mut left = budget;
    while phys.begin < phys.end {
        let at = phys.begin * ENTRY_BYTES;
        let bytes = mos.read(object, at, BptreeEntryPhys::SIZE).await?;
        let mut entry = BptreeEntryPhys::decode(&bytes).map_err(|source| DslError::Decode {
            what: "destroyed dataset",
            object,
            source,
        })?;
        let mut walk = Walk {
            mos,
            min_birth: entry.birth_txg,
            resume: Resume::from_bookmark(&entry.bookmark),
            left,
            freed: Sizes::default(),
            free: &mut free,
            broken: None,
        };
        let flow = walk.objset(&entry.bp).await?;
        left = walk.left;
        let broken = walk.broken.take();
        let mut remaining = sizes_of_header(&phys);
        remaining.sub(walk.freed);
        set_sizes(&mut phys, remaining);
        match flow {
            Flow::Paused(resume) => {
                entry.bookmark = resume.to_bookmark();
                mos.write(object, at, &entry.encode(), tx).await?;
                write(mos, object, phys, tx).await?;
                return Ok(broken.map_or(Progress::More, Progress::Failed));
            }
            Flow::Done => {
                phys.begin += 1;
                mos.free_range(object, at, ENTRY_BYTES, tx).await?;
            }
        }
    }
    set_sizes(&mut phys, Sizes::default());
    write(mos, object, phys, tx).await?;
    Ok(Progress::Finished)
}

/// Frees all blocks of an objset born after `min_birth`; `free` is called for each and returns its sizes. Syncing context.
///
/// # Errors
/// That of a block on the way that cannot be read, after which the txg must not be committed; those of `free`.
pub(crate) async fn free_all(
    mos: &Objset,
    bp: &BlockPointer,
    min_birth: u64,
    tx: &Tx,
    mut free: impl AsyncFnMut(&BlockPointer) -> Result<Sizes>,
) -> Result<()> {
    assert!(tx.is_syncing(), "blocks are freed in syncing context");
    let mut walk = Walk {
        mos,
        min_birth,
        resume: Resume::default(),
        left: u64::MAX,
        freed: Sizes::default(),
        free: &mut free,
        broken: None,
    };
    walk.objset(bp).await?;
    walk.broken.take().map_or(Ok(()), Err)
}

enum Flow {
    Done,
    Paused(Resume),
}

struct Walk<'a, F> {
    mos: &'a Objset,
    min_birth: u64,
    resume: Resume,
    left: u64,
    freed: Sizes,
    free: &'a mut F,
    /// Why the walk had to pause.
    broken: Option<DslError>,
}

/// What is needed of a dnode to find its blocks.
#[derive(Clone, Copy)]
struct Shape {
    object: u64,
    pointers_shift: u32,
}

impl<F: AsyncFnMut(&BlockPointer) -> Result<Sizes>> Walk<'_, F> {
    async fn objset(&mut self, bp: &BlockPointer) -> Result<Flow> {
        if self.skip(bp) {
            return Ok(Flow::Done);
        }
        let objset = match self.read(bp, ObjectId(0), -1, 0).await {
            Ok(bytes) => ObjsetPhys::decode(&bytes).map_err(|source| DslError::Decode {
                what: "destroyed object set",
                object: ObjectId(0),
                source,
            }),
            Err(error) => Err(error),
        };
        let objset = match objset {
            Ok(objset) => objset,
            Err(error) => return Ok(self.stop(error, self.resume)),
        };
        // The accounting objects follow all others; their numbers are negative, and ascending.
        let dnodes = [
            (META_DNODE, &objset.meta_dnode),
            (PROJECT_USED, &objset.project_used),
            (GROUP_USED, &objset.group_used),
            (USER_USED, &objset.user_used),
        ];
        for (object, dnode) in dnodes {
            if let Flow::Paused(at) = self.dnode(object, dnode).await? {
                return Ok(Flow::Paused(at));
            }
        }
        self.free(bp).await?;
        Ok(Flow::Done)
    }

    async fn dnode(&mut self, object: u64, dnode: &DnodePhys) -> Result<Flow> {
        if dnode.is_free() {
            return Ok(Flow::Done);
        }
        if object != META_DNODE && self.resume.started && object < self.resume.object {
            return Ok(Flow::Done);
        }
        let shape = Shape {
            object,
            pointers_shift: dnode.pointers_shift(),
        };
        let top = u32::from(dnode.levels) - 1;
        for (index, bp) in (0u64..).zip(&dnode.block_pointers) {
            if let Flow::Paused(at) = Box::pin(self.block(bp, shape, top, index)).await? {
                return Ok(Flow::Paused(at));
            }
        }
        if let Some(bp) = &dnode.spill {
            return Box::pin(self.block(bp, shape, 0, SPILL_BLOCK)).await;
        }
        Ok(Flow::Done)
    }

    async fn block(
        &mut self,
        bp: &BlockPointer,
        shape: Shape,
        level: u32,
        number: u64,
    ) -> Result<Flow> {
        if self.skip(bp) || completed(self.resume, shape, level, number) {
            return Ok(Flow::Done);
        }
        let meta = shape.object == META_DNODE;
        if level > 0 {
            let bytes = self
                .read(bp, ObjectId(shape.object), i64::from(level), number)
                .await;
            let bytes = match bytes {
                Ok(bytes) => bytes,
                Err(error) => {
                    let span = level.saturating_mul(shape.pointers_shift);
                    let first = number.checked_shl(span).unwrap_or(u64::MAX);
                    return Ok(self.stop(error, first_below(shape.object, first)));
                }
            };
            let first = number.wrapping_shl(shape.pointers_shift);
            for (child, index) in BlockPointer::decode_all(&bytes).zip(first..) {
                let flow = Box::pin(self.block(&child, shape, level - 1, index)).await?;
                if let Flow::Paused(at) = flow {
                    return Ok(Flow::Paused(at));
                }
            }
        } else {
            let here = Resume {
                object: shape.object,
                block: number,
                started: true,
            };
            // Stopped at a block of dnodes: the objects in it are freed, the block is not.
            let children_done = meta && self.resume == here;
            if meta
                && !children_done
                && let Flow::Paused(at) = self.dnode_block(bp, number).await?
            {
                return Ok(Flow::Paused(at));
            }
            if self.left == 0 {
                return Ok(Flow::Paused(here));
            }
        }
        self.free(bp).await?;
        Ok(Flow::Done)
    }

    async fn dnode_block(&mut self, bp: &BlockPointer, number: u64) -> Result<Flow> {
        let bytes = match self.read(bp, ObjectId(META_DNODE), 0, number).await {
            Ok(bytes) => bytes,
            Err(error) => return Ok(self.stop(error, first_below(META_DNODE, number))),
        };
        let mut slot = 0;
        while (slot + 1) * DNODE_MIN_SIZE <= bytes.len() {
            let index = u64::try_from(slot).expect("below 32 or so");
            let object = number.wrapping_mul(DNODES_PER_BLOCK).wrapping_add(index);
            let dnode = match DnodePhys::decode(&bytes[slot * DNODE_MIN_SIZE..]) {
                Ok(dnode) => dnode,
                Err(source) => {
                    let what = "dnode of a destroyed dataset";
                    let error = DslError::Decode {
                        what,
                        object: ObjectId(object),
                        source,
                    };
                    let at = Resume {
                        object: object.max(1),
                        block: 0,
                        started: true,
                    };
                    return Ok(self.stop(error, at));
                }
            };
            if let Flow::Paused(at) = Box::pin(self.dnode(object, &dnode)).await? {
                return Ok(Flow::Paused(at));
            }
            slot += if dnode.is_free() { 1 } else { dnode.slots() };
        }
        Ok(Flow::Done)
    }

    fn stop(&mut self, error: DslError, at: Resume) -> Flow {
        self.broken = Some(error);
        Flow::Paused(at)
    }

    fn skip(&self, bp: &BlockPointer) -> bool {
        bp.is_hole() || bp.birth().0 <= self.min_birth
    }

    async fn free(&mut self, bp: &BlockPointer) -> Result<()> {
        let sizes = (self.free)(bp).await?;
        self.freed.add(sizes);
        self.left = self.left.saturating_sub(1);
        Ok(())
    }

    async fn read(
        &self,
        bp: &BlockPointer,
        object: ObjectId,
        level: i64,
        block: u64,
    ) -> Result<IoBuf> {
        let bookmark = zio::Bookmark {
            objset: DESTROYED_OBJSET,
            object: object.0,
            level,
            block,
        };
        let props = ReadProps {
            class: IoClass::AsyncRead,
            bookmark,
        };
        Ok(self.mos.services().cache().read(bp, props).await?)
    }
}

/// The resume point before everything below the given level-0 block: of a block of dnodes, its first
/// object, since a bookmark at such a block itself says that its objects are done.
fn first_below(object: u64, block: u64) -> Resume {
    if object == META_DNODE {
        let first = block.saturating_mul(DNODES_PER_BLOCK);
        Resume {
            object: first.max(1),
            block: 0,
            started: true,
        }
    } else {
        Resume {
            object,
            block,
            started: true,
        }
    }
}

/// Whether everything below this block lies before the resume point.
fn completed(at: Resume, shape: Shape, level: u32, number: u64) -> bool {
    if !at.started {
        return false;
    }
    if number == SPILL_BLOCK {
        return at.object > shape.object;
    }
    let next = number.saturating_add(1);
    let span = level.saturating_mul(shape.pointers_shift);
    let first = next
        .checked_shl(span)
        .filter(|f| f >> span == next)
        .unwrap_or(u64::MAX);
    let canonical = |object: u64, block: u64, level: u64| {
        // Of the same place the higher level comes first, as in a walk from above.
        if object == META_DNODE {
            (
                block.saturating_mul(DNODES_PER_BLOCK),
                0,
                u64::MAX - (level + META_LEVEL),
            )
        } else {
            (object, block, u64::MAX - level)
        }
    };
    canonical(shape.object, first, u64::from(level)) <= canonical(at.object, at.block, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk_completed(resume: (u64, u64), at: (u64, u32, u64)) -> bool {
        let resume = Resume {
            object: resume.0,
            block: resume.1,
            started: true,
        };
        let shape = Shape {
            object: at.0,
            pointers_shift: 10,
        };
        completed(resume, shape, at.1, at.2)
    }

    #[test]
    fn what_lies_before_the_bookmark_is_done() {
        // Stopped in object 40 at block 2000.
        let check = |at, expect| assert_eq!(walk_completed((40, 2000), at), expect, "{at:?}");
        check((40, 0, 1999), true);
        check((40, 0, 2000), false);
        check((40, 1, 0), true);
        check((40, 1, 1), false);
        check((40, 2, 0), false);
        check((40, 0, SPILL_BLOCK), false);
        check((39, 0, SPILL_BLOCK), true);
        // Dnode blocks: object 40 is in block 1 (objects 32..64).
        check((0, 0, 0), true);
        check((0, 0, 1), false);
        check((0, 5, 0), false);
        // Stopped at a block of dnodes.
        assert!(!walk_completed((0, 3), (0, 0, 3)));
        assert!(walk_completed((0, 3), (0, 0, 2)));
        // The first object of a block: the block before is done.
        assert!(walk_completed((64, 0), (0, 0, 1)));
        assert!(!walk_completed((64, 0), (0, 0, 2)));
    }

    #[test]
    fn resume_points_round_trip() {
        for resume in [
            Resume::default(),
            Resume {
                object: 5,
                block: 6,
                started: true,
            },
        ] {
            assert_eq!(Resume::from_bookmark(&resume.to_bookmark()), resume);
        }
    }
}
