//! Finding blocks: through the layers of changes, then through the tree on disk.
//!
//! A sync may put a new tree in place while a read of the old one is under way; the generation of the base tells, and the read
//! starts over. Old blocks are not reused for three txgs, except that the syncing txg rewrites its own blocks in place: such
//! a read may fail its checksum, and then the generation has changed too.

use std::rc::Rc;

use ondisk::{BlockPointer, ObjectId, Txg};
use runtime::IoBuf;
use zio::IoClass;

use crate::cloned_block::ClonedBlock;
use crate::dnode::{Base, Dnode, NEWEST, Peek, shl, shr, span_shift};
use crate::error::Result;
use crate::objset::Objset;
use crate::tree::decode;

/// Objects per objset that keep their last level-1 block at hand (at most 128 KiB each).
const RECENT_MAX: usize = 64;

impl Objset {
    /// The block that holds a byte of an object, in the version on disk: its pointer (a hole when there is none), its number, and the
    /// size of the object's blocks in bytes.
    ///
    /// # Errors
    /// `NoSuchObject`, read errors.
    pub async fn stored_block(
        &self,
        object: ObjectId,
        offset: u64,
    ) -> Result<(BlockPointer, u64, u32)> {
        let dnode = self.dnode(object).await?;
        let size = dnode.with_core(NEWEST, |core| core.block_size);
        let block = offset / u64::from(size);
        Ok((self.base_pointer(&dnode, block).await?, block, size))
    }

    /// The pointer to a data block in the version on disk; a hole when there is none.
    pub(crate) async fn base_pointer(&self, dnode: &Dnode, block: u64) -> Result<BlockPointer> {
        if let Some(bp) = recent_pointer(dnode, block) {
            return Ok(bp);
        }
        // Boxed, as all ways that may wait for a disk are here: the futures of the quick ways stay small.
        Box::pin(self.find_pointer(dnode, block)).await
    }

    async fn find_pointer(&self, dnode: &Dnode, block: u64) -> Result<BlockPointer> {
        loop {
            let (base, generation) = {
                let state = dnode.state.borrow();
                (Rc::clone(&state.base), state.generation)
            };
            match self.walk(dnode, &base, generation, block).await {
                Ok(bp) => return Ok(bp),
                Err(error) if dnode.state.borrow().generation == generation => return Err(error),
                Err(_) => {}
            }
        }
    }

    async fn walk(
        &self,
        dnode: &Dnode,
        base: &Base,
        generation: u64,
        block: u64,
    ) -> Result<BlockPointer> {
        let mut bp = top_pointer(base, block);
        for level in (1..base.levels).rev() {
            if bp.is_hole() {
                return Ok(BlockPointer::HOLE);
            }
            let number = shr(block, span_shift(base.fan_shift(), level));
            let buf = self.indirect(dnode, &bp, level, number, base).await?;
            bp = self.go_down(dnode, base, generation, (level, block), &buf);
        }
        Ok(bp)
    }

    /// The pointer without waiting: if the dnode itself, the level-1 block last used or the cache has all that leads to it.
    fn pointer_at_hand(&self, dnode: &Dnode, block: u64) -> Option<BlockPointer> {
        if let Some(bp) = recent_pointer(dnode, block) {
            return Some(bp);
        }
        let (base, generation) = {
            let state = dnode.state.borrow();
            (Rc::clone(&state.base), state.generation)
        };
        let mut bp = top_pointer(&base, block);
        for level in (1..base.levels).rev() {
            if bp.is_hole() {
                return Some(BlockPointer::HOLE);
            }
            let buf = self.0.services.blocks().peek(&bp)?;
            if !is_sound(&base, &bp, level, &buf) {
                return None;
            }
            bp = self.go_down(dnode, &base, generation, (level, block), &buf);
        }
        Some(bp)
    }

    /// The pointer below the indirect block at `level` on the way to a data block.
    fn go_down(
        &self,
        dnode: &Dnode,
        base: &Base,
        generation: u64,
        (level, block): (u8, u64),
        buf: &IoBuf,
    ) -> BlockPointer {
        let fan = base.fan_shift();
        if level == 1 {
            self.keep_recent(dnode, generation, shr(block, fan), buf);
        }
        pointer_in(buf, shr(block, span_shift(fan, level - 1)), fan)
    }

    /// Remembers the level-1 block last used; of the objects that did so longest ago, the memory is given back.
    fn keep_recent(&self, dnode: &Dnode, generation: u64, number: u64, buf: &IoBuf) {
        let mut state = dnode.state.borrow_mut();
        if state.generation != generation {
            return;
        }
        let is_new = state.recent_l1.replace((number, buf.clone())).is_none();
        drop(state);
        if !is_new {
            return;
        }
        let mut ring = self.0.recent.borrow_mut();
        ring.push_back(dnode.id);
        if ring.len() > RECENT_MAX
            && let Some(oldest) = ring.pop_front()
            && oldest != dnode.id
            && let Some(oldest) = self.0.table.borrow().get(&oldest)
        {
            oldest.state.borrow_mut().recent_l1 = None;
        }
    }

    /// Whether a block of the version on disk is in the cache, as far as can be told without reading.
    pub(crate) fn is_cached(&self, dnode: &Dnode, block: u64) -> bool {
        self.pointer_at_hand(dnode, block)
            .is_some_and(|bp| bp.is_hole() || self.0.services.blocks().has(&bp))
    }

    async fn indirect(
        &self,
        dnode: &Dnode,
        bp: &BlockPointer,
        level: u8,
        number: u64,
        base: &Base,
    ) -> Result<IoBuf> {
        let buf = match self.0.services.blocks().peek(bp) {
            Some(buf) => buf,
            None => {
                self.read_block(bp, dnode.id, level, number, IoClass::SyncRead)
                    .await?
            }
        };
        if !is_sound(base, bp, level, &buf) {
            return Err(self.corrupt(dnode.id, level, number, "indirect block"));
        }
        Ok(buf)
    }

    /// The bytes of a data block in the version on disk; `None` for a hole.
    pub(crate) async fn base_block(&self, dnode: &Dnode, block: u64) -> Result<Option<IoBuf>> {
        if let Some(found) = self.block_at_hand(dnode, block) {
            return Ok(found);
        }
        Box::pin(self.load_block(dnode, block)).await
    }

    /// The block without waiting, if its pointer is at hand and its bytes are in the cache.
    pub(crate) fn block_at_hand(&self, dnode: &Dnode, block: u64) -> Option<Option<IoBuf>> {
        let bp = self.pointer_at_hand(dnode, block)?;
        if bp.is_hole() {
            return Some(None);
        }
        let buf = self.0.services.blocks().peek(&bp)?;
        (buf.len() == dnode.state.borrow().base.core.block_size as usize).then_some(Some(buf))
    }

    async fn load_block(&self, dnode: &Dnode, block: u64) -> Result<Option<IoBuf>> {
        loop {
            let (generation, size) = {
                let state = dnode.state.borrow();
                (state.generation, state.base.core.block_size as usize)
            };
            let bp = self.base_pointer(dnode, block).await?;
            if bp.is_hole() {
                if dnode.state.borrow().generation == generation {
                    return Ok(None);
                }
                continue;
            }
            if let Some(buf) = self.0.services.blocks().peek(&bp)
                && buf.len() == size
            {
                return Ok(Some(buf));
            }
            let read = self
                .read_block(&bp, dnode.id, 0, block, IoClass::SyncRead)
                .await;
            match read {
                Ok(buf) if buf.len() == size => return Ok(Some(buf)),
                read => {
                    if dnode.state.borrow().generation == generation {
                        read?;
                        return Err(self.corrupt(dnode.id, 0, block, "size of data block"));
                    }
                }
            }
        }
    }

    /// The bytes of a data block in a view, shared; `None` for zeros.
    pub(crate) async fn block(
        &self,
        dnode: &Dnode,
        view: Txg,
        block: u64,
    ) -> Result<Option<IoBuf>> {
        loop {
            let (generation, clone) = {
                let mut state = dnode.state.borrow_mut();
                match state.peek(view, block) {
                    Peek::Data(_) => return Ok(state.share(view, block)),
                    Peek::Hole => return Ok(None),
                    Peek::Clone(clone) => (state.generation, Some(Rc::clone(clone))),
                    Peek::Base => (state.generation, None),
                }
            };
            let read = self.unchanged_block(dnode, block, clone.as_deref()).await;
            if is_unchanged(dnode, view, block, generation) {
                return read;
            }
        }
    }

    /// Runs `f` on the bytes of a data block in a view, without sharing them (so later changes need no copy); `None` is zeros.
    pub(crate) async fn with_block<R>(
        &self,
        dnode: &Dnode,
        view: Txg,
        block: u64,
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R> {
        loop {
            let (generation, clone) = {
                let state = dnode.state.borrow();
                match state.peek(view, block) {
                    Peek::Data(data) => return Ok(f(Some(data))),
                    Peek::Hole => return Ok(f(None)),
                    Peek::Clone(clone) => (state.generation, Some(Rc::clone(clone))),
                    Peek::Base => (state.generation, None),
                }
            };
            let read = self.unchanged_block(dnode, block, clone.as_deref()).await;
            if is_unchanged(dnode, view, block, generation) {
                return Ok(f(read?.as_deref()));
            }
        }
    }

    /// The bytes of a block that no layer has in memory: those of a clone, or of the version on disk.
    async fn unchanged_block(
        &self,
        dnode: &Dnode,
        block: u64,
        clone: Option<&ClonedBlock>,
    ) -> Result<Option<IoBuf>> {
        match clone {
            Some(clone) => self.read_clone(dnode, clone, block).await.map(Some),
            None => self.base_block(dnode, block).await,
        }
    }

    /// The first block at or after `from` that has data in the version on disk.
    pub(crate) async fn next_base_block(&self, dnode: &Dnode, from: u64) -> Result<Option<u64>> {
        loop {
            let (base, generation) = {
                let state = dnode.state.borrow();
                (Rc::clone(&state.base), state.generation)
            };
            let found = self.search(dnode, &base, from).await;
            if dnode.state.borrow().generation == generation {
                return found;
            }
        }
    }

    async fn search(&self, dnode: &Dnode, base: &Base, from: u64) -> Result<Option<u64>> {
        let fan = base.fan_shift();
        let mut at = from;
        'down: while !base.core.is_free() && at <= base.core.max_block_id {
            let top = shr(at, span_shift(fan, base.levels - 1));
            if top >= u64::from(base.core.pointers) {
                return Ok(None);
            }
            let mut bp = base.bps[usize::try_from(top).expect("below three")];
            let mut level = base.levels - 1;
            loop {
                if bp.is_hole() {
                    let shift = span_shift(fan, level);
                    at = shl(shr(at, shift) + 1, shift);
                    continue 'down;
                }
                if level == 0 {
                    return Ok(Some(at));
                }
                let number = shr(at, span_shift(fan, level));
                let buf = self.indirect(dnode, &bp, level, number, base).await?;
                if level == 1 {
                    // The rest of this block without going down again.
                    let end = shl(number + 1, fan).min(base.core.max_block_id + 1);
                    for block in at..end {
                        if !pointer_in(&buf, block, fan).is_hole() {
                            return Ok(Some(block));
                        }
                    }
                    at = end;
                    continue 'down;
                }
                bp = pointer_in(&buf, shr(at, span_shift(fan, level - 1)), fan);
                level -= 1;
            }
        }
        Ok(None)
    }

    /// Whether a block of a view reads as zeros because nothing is stored.
    pub(crate) async fn is_hole(&self, dnode: &Dnode, view: Txg, block: u64) -> Result<bool> {
        match dnode.state.borrow().peek(view, block) {
            Peek::Data(_) | Peek::Clone(_) => return Ok(false),
            Peek::Hole => return Ok(true),
            Peek::Base => {}
        }
        Ok(self.base_pointer(dnode, block).await?.is_hole())
    }
}

/// Whether what was read of a block that is not in memory is still what a view has.
fn is_unchanged(dnode: &Dnode, view: Txg, block: u64, generation: u64) -> bool {
    let state = dnode.state.borrow();
    let now = state.peek(view, block);
    state.generation == generation && matches!(now, Peek::Clone(_) | Peek::Base)
}

/// The pointer in the dnode that leads to a data block; a hole past its end.
fn top_pointer(base: &Base, block: u64) -> BlockPointer {
    let top = shr(block, span_shift(base.fan_shift(), base.levels - 1));
    if base.core.is_free() || block > base.core.max_block_id || top >= u64::from(base.core.pointers)
    {
        return BlockPointer::HOLE;
    }
    base.bps[usize::try_from(top).expect("below three")]
}

/// Whether a block can be the indirect one at `level` that the pointer says it is.
fn is_sound(base: &Base, bp: &BlockPointer, level: u8, buf: &IoBuf) -> bool {
    buf.len() == 1 << base.core.indirect_shift && bp.level() == level
}

/// The pointer, if the dnode itself or the level-1 block last used has it.
fn recent_pointer(dnode: &Dnode, block: u64) -> Option<BlockPointer> {
    let state = dnode.state.borrow();
    let base = &state.base;
    if base.core.is_free() || block > base.core.max_block_id {
        return Some(BlockPointer::HOLE);
    }
    if base.levels == 1 {
        let at = usize::try_from(block).ok()?;
        return (at < usize::from(base.core.pointers)).then(|| base.bps[at]);
    }
    let (number, buf) = state.recent_l1.as_ref()?;
    let fan = base.fan_shift();
    (shr(block, fan) == *number).then(|| pointer_in(buf, block, fan))
}

/// The pointer of child `child` (numbered over the whole level) in its parent's bytes.
fn pointer_in(buf: &[u8], child: u64, fan: u32) -> BlockPointer {
    let slot = usize::try_from(child & ((1 << fan) - 1)).expect("a slot of an indirect block");
    decode(&buf[slot * BlockPointer::SIZE..(slot + 1) * BlockPointer::SIZE])
}
