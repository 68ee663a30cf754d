//! Bytes of one file that become those of another without being copied: both have the same blocks afterwards.
//!
//! As a write, the clone takes ranges, then the file's lock, then a transaction; the range of the source is held, too, from before
//! its blocks are looked up until they are cloned. Blocks that are not on disk yet are waited for.
//! Facts: OpenZFS: module/zfs/zfs_vnops.c, `zfs_clone_range` (which ranges can be cloned, and what is refused).

use std::rc::Rc;

use dmu::Cloneable;
use ondisk::BlockPointer;
use ondisk::zil_record::CloneRange;
use runtime::sync::{RangeGuard, WHOLE_RANGE};

use crate::backing::Weight;
use crate::fs::{Fs, SIZE_MAX};
use crate::permission::{self, READ, WRITE};
use crate::znode::Znode;
use crate::{Cred, FileId, FsError, FsResult, Stability, WccAttr, Written, flags};

/// What is cloned.
#[derive(Clone, Copy)]
pub struct CloneSource<'a> {
    /// The file system, of the same pool.
    pub fs: &'a Fs,
    /// The file, perhaps the same one.
    pub file: FileId,
    /// First byte: where a block begins.
    pub offset: u64,
    /// Bytes: whole blocks, unless the range reaches the end of both files.
    pub len: u64,
    /// The whole blocks of another length are enough.
    pub may_be_shorter: bool,
}

impl std::fmt::Debug for CloneSource<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CloneSource")
            .field("file", &self.file)
            .field("offset", &self.offset)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// Both ranges, locked, and what their blocks are.
struct LockedRanges<'a> {
    block: u64,
    shape: CloneShape,
    _guards: [RangeGuard<'a>; 2],
}

/// How ranges are cloned.
struct CloneShape {
    /// Bytes.
    len: u64,
    /// The target's only block gets this size.
    grown: Option<u32>,
}

/// A part of a clone that one transaction makes.
struct Part {
    from: u64,
    to: u64,
    len: u64,
    block: u64,
    grown: Option<u32>,
}

impl Fs {
    /// Makes bytes of a file those of another one, without copying them. Long ranges take several transactions; when one in the
    /// middle fails, what was cloned before it is reported. Bytes past the end of the source are not there to be cloned. It is as
    /// durable on return as a write with this stability.
    ///
    /// # Errors
    /// Where the bytes can be copied, but not cloned: [`FsError::CrossDevice`] (another pool or key, deduplicated blocks),
    /// [`FsError::Invalid`] (not at the ends of blocks, other block sizes, overlapping ranges), [`FsError::NotSupported`] (the
    /// feature `block_cloning` is disabled). Those of [`Fs::read`] and [`Fs::write`].
    pub async fn clone_range(
        &self,
        id: FileId,
        offset: u64,
        source: CloneSource<'_>,
        stability: Stability,
        cred: &Cred,
    ) -> FsResult<Written> {
        self.check_writable()?;
        if !self.0.backing.allows_cloning() {
            return Err(FsError::NotSupported);
        }
        if !self.os().can_share_with(source.fs.os()) {
            return Err(FsError::CrossDevice);
        }
        let origin = source.fs.regular(source.file).await?;
        let target = self.regular(id).await?;
        check_access(&origin, &target, offset, cred)?;
        source.fs.check_written_elsewhere(&origin, cred)?;
        let len = source.len.min(origin.size().saturating_sub(source.offset));
        let mut done = 0;
        let mut before = target.wcc();
        if len > 0 {
            let is_same = Rc::ptr_eq(&origin, &target);
            let ends = [offset.checked_add(len), source.offset.checked_add(len)];
            let [Some(end), Some(source_end)] = ends else {
                return Err(FsError::TooLarge);
            };
            if is_same && source.offset < end && offset < source_end {
                return Err(FsError::Invalid);
            }
            if end > SIZE_MAX {
                return Err(FsError::TooLarge);
            }
            let source = CloneSource { len, ..source };
            let mut locked = self.lock_both(&source, &origin, &target, offset).await?;
            let len = locked.shape.len;
            while done < len {
                let most = locked.block * CloneRange::BLOCKS_MAX as u64;
                let part = Part {
                    from: source.offset + done,
                    to: offset + done,
                    len: most.min(len - done),
                    block: locked.block,
                    grown: locked.shape.grown.take(),
                };
                match self
                    .clone_part(source.fs, &origin, &target, &part, cred)
                    .await
                {
                    Ok(seen) if done == 0 => before = seen,
                    Ok(_) => {}
                    Err(error) if done == 0 => return Err(error),
                    Err(_) => break,
                }
                done += part.len;
            }
            source.fs.accessed(&origin);
        }
        assert!(done <= source.len, "no more is cloned than was asked for");
        let stability = self.stabilize(&target, stability).await?;
        Ok(Written {
            count: done,
            stability,
            change: self.change_of(before, &target).await?,
        })
    }

    /// Takes both ranges, the target's to the end of its last block, and checks that they can be cloned.
    async fn lock_both<'a>(
        &self,
        source: &CloneSource<'_>,
        origin: &'a Rc<Znode>,
        target: &'a Rc<Znode>,
        offset: u64,
    ) -> FsResult<LockedRanges<'a>> {
        // Locks of all files are taken in one order, so that no two clones wait for each other.
        let origin_first = (source.fs.os().id(), origin.object, source.offset)
            < (self.os().id(), target.object, offset);
        // The only block of the target grows to the source's size: that touches all of it.
        let mut whole = origin.block_size.get() != target.block_size.get();
        loop {
            let block = u64::from(origin.block_size.get().max(512));
            // Ranges of one file that share a block would wait for each other.
            if !source.offset.is_multiple_of(block) || !offset.is_multiple_of(block) {
                return Err(FsError::Invalid);
            }
            let end = (offset + source.len).next_multiple_of(block);
            let wanted = if whole { WHOLE_RANGE } else { offset..end };
            let shared = || {
                origin
                    .ranges
                    .shared(source.offset..source.offset + source.len)
            };
            let exclusive = || target.ranges.exclusive(wanted.clone());
            let guards = if origin_first {
                let first = shared().await;
                [first, exclusive().await]
            } else {
                let first = exclusive().await;
                [shared().await, first]
            };
            if origin.dead.get() || target.dead.get() {
                return Err(FsError::Stale);
            }
            let differs = origin.block_size.get() != target.block_size.get();
            if u64::from(origin.block_size.get().max(512)) != block || (differs && !whole) {
                whole = differs;
                continue;
            }
            let shape = self.check_ranges(source, origin, target, offset)?;
            return Ok(LockedRanges {
                block,
                shape,
                _guards: guards,
            });
        }
    }

    /// Checks that ranges can be cloned, and how.
    fn check_ranges(
        &self,
        source: &CloneSource<'_>,
        origin: &Znode,
        target: &Znode,
        offset: u64,
    ) -> FsResult<CloneShape> {
        let (size, ours) = (origin.block_size.get(), target.block_size.get());
        let block = u64::from(size);
        let mut len = source.len;
        // Others may have cut the source off meanwhile.
        if source.offset + len > origin.size() {
            return Err(FsError::Invalid);
        }
        let differs = size != ours;
        if size < ours || (differs && target.size() > u64::from(ours)) {
            return Err(FsError::Invalid);
        }
        if offset != 0 && !size.is_power_of_two() {
            return Err(FsError::Invalid);
        }
        // The last block is cloned as a whole: it must be the last of both.
        let is_end = source.offset + len >= origin.size() && offset + len >= target.size();
        if !is_end && source.may_be_shorter {
            len -= len % block;
        }
        if len == 0 || (!len.is_multiple_of(block) && !is_end) {
            return Err(FsError::Invalid);
        }
        // A file of one small block that gets a second one would keep that size for all that it becomes.
        let keeps_small = len <= block
            && size < self.settings().record_size
            && target.size() <= block
            && offset + len > block;
        if keeps_small {
            return Err(FsError::Invalid);
        }
        let grown = differs.then_some(size);
        Ok(CloneShape { len, grown })
    }

    /// Clones a part in one transaction. The caller holds both ranges.
    async fn clone_part(
        &self,
        from: &Self,
        origin: &Znode,
        target: &Rc<Znode>,
        part: &Part,
        cred: &Cred,
    ) -> FsResult<WccAttr> {
        let attrs = target.attrs.borrow().clone();
        self.check_quota(&attrs, false).await?;
        let count = part.len.div_ceil(part.block);
        let first = part.from / part.block;
        let blocks = loop {
            let found = from.os().cloneable(origin.object_id(), first, count);
            match found.await? {
                Cloneable::Blocks(blocks) => break blocks,
                Cloneable::NotBefore(txg) => from.0.backing.wait_synced(txg).await?,
                Cloneable::Never => return Err(FsError::CrossDevice),
            }
        };
        let range = CloneRange {
            object: target.object,
            offset: part.to,
            length: part.len,
            block_size: part.block,
            blocks,
        };
        self.put_clones(target, range, part.grown, cred).await
    }

    /// Puts clones into a file and logs that, in one transaction. The caller holds the range, all of the file if its block grows.
    pub(crate) async fn put_clones(
        &self,
        target: &Rc<Znode>,
        range: CloneRange,
        grown: Option<u32>,
        cred: &Cred,
    ) -> FsResult<WccAttr> {
        let id = target.object_id();
        let _lock = target.exclusive().await?;
        self.check_delegations(target, cred)?;
        let before = target.wcc();
        self.drop_capability(target).await?;
        let mut attrs = target.attrs.borrow().clone();
        attrs.size = attrs.size.max(range.offset + range.length);
        self.touch_content(&mut attrs, cred);
        let plan = self.plan_for(target, &attrs).await?;
        let weight = Weight::Clones {
            blocks: range.blocks.len() as u64,
            shared: self.shared_bytes(&range.blocks),
        };
        let tx = self.begin(weight).await?;
        if let Some(size) = grown {
            self.os().set_block_size(id, size, &tx).await?;
            target.set_block_size(size);
        }
        let lost_set_id = attrs.mode != target.attrs.borrow().mode;
        let first = range.offset / range.block_size;
        let cloned = self.os().clone_blocks(id, first, &range.blocks, &tx);
        cloned.await?;
        self.store(target, attrs, &plan, &tx).await?;
        self.log_clones(range, target, &tx);
        if lost_set_id {
            self.log_mode(target, &tx);
        }
        Ok(before)
    }

    /// What blocks count in space accounting, in bytes.
    fn shared_bytes(&self, blocks: &[BlockPointer]) -> u64 {
        let store = self.os().services().store();
        blocks.iter().map(|bp| store.dsize(bp)).sum()
    }
}

/// Checks that the source may be read and the target written.
fn check_access(origin: &Znode, target: &Znode, offset: u64, cred: &Cred) -> FsResult<()> {
    permission::check_content(&origin.attrs.borrow(), cred, READ)?;
    permission::check_content(&target.attrs.borrow(), cred, WRITE)?;
    // The flags of the source stay behind: a clone would be out of quarantine.
    if origin.flags() & flags::AV_QUARANTINED != 0 {
        return Err(FsError::Access);
    }
    let forbidden = target.flags() & (flags::IMMUTABLE | flags::READONLY) != 0
        || (target.flags() & flags::APPENDONLY != 0 && offset != target.size());
    if forbidden {
        return Err(FsError::NotPermitted);
    }
    Ok(())
}
