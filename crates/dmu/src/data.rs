//! Reading, writing and freeing the data of objects.
//!
//! A write of a whole block needs no read; a partial one merges into the block's bytes as of its transaction group. Concurrent
//! writers of different parts of one block may interleave at any await: the merge itself happens between two awaits.

use std::ops::Range;
use std::rc::Rc;

use ondisk::{ObjectId, Txg};
use runtime::{IoBuf, IoBufMut, join_all};

use crate::allocate::check_block_size;
use crate::dnode::{Block, Dnode, NEWEST, Peek};
use crate::error::{DmuError, Result};
use crate::objset::Objset;
use crate::txg::Tx;

/// A dirty block's part below this size is copied out to readers; above, the block is shared and copied if written again.
const COPY_OUT_BYTES: usize = 32 << 10;
/// Blocks that may share one buffer: an NFS write of 1 MiB in blocks of 128 KiB.
const SLICES_MAX: usize = 8;
const _: () = assert!(SLICES_MAX > 0 && COPY_OUT_BYTES > 0);

/// The part of one block that an operation touches.
struct Part {
    block: u64,
    within: usize,
    len: usize,
    /// Offset in the caller's range.
    at: usize,
}

/// Cuts a byte range into blocks.
fn parts(block_size: u32, offset: u64, len: usize) -> impl Iterator<Item = Part> {
    let size = block_size as usize;
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= len {
            return None;
        }
        let position = offset + at as u64;
        let within = usize::try_from(position % size as u64).expect("below the block size");
        let part = Part {
            block: position / size as u64,
            within,
            len: (size - within).min(len - at),
            at,
        };
        at += part.len;
        Some(part)
    })
}

impl Objset {
    /// Reads `len` bytes at `offset`; holes and everything past the end are zeros.
    ///
    /// # Errors
    /// `NoSuchObject`; `Read` or `Corrupt` naming the block.
    pub async fn read(&self, object: ObjectId, offset: u64, len: usize) -> Result<IoBuf> {
        let dnode = self.dnode(object).await?;
        check_range(offset, len as u64)?;
        self.read_ahead(&dnode, offset, len as u64);
        let size = dnode.with_core(NEWEST, |core| core.block_size);
        if len == 0 {
            return Ok(IoBuf::empty());
        }
        let within = usize::try_from(offset % u64::from(size)).expect("below the block size");
        if within + len <= size as usize {
            return self
                .read_part(
                    &dnode,
                    Part {
                        block: offset / u64::from(size),
                        within,
                        len,
                        at: 0,
                    },
                )
                .await;
        }
        let pieces = self.read_parts(&dnode, size, offset, len).await?;
        let mut out = IoBufMut::scratch(len);
        let mut at = 0;
        for piece in pieces {
            out[at..at + piece.len()].copy_from_slice(&piece);
            at += piece.len();
        }
        Ok(out.freeze())
    }

    /// Reads without joining: one buffer per block touched, in order, covering exactly the range.
    ///
    /// # Errors
    /// As `read`.
    pub async fn read_bufs(&self, object: ObjectId, offset: u64, len: usize) -> Result<Vec<IoBuf>> {
        let dnode = self.dnode(object).await?;
        check_range(offset, len as u64)?;
        self.read_ahead(&dnode, offset, len as u64);
        let size = dnode.with_core(NEWEST, |core| core.block_size);
        self.read_parts(&dnode, size, offset, len).await
    }

    async fn read_parts(
        &self,
        dnode: &Dnode,
        size: u32,
        offset: u64,
        len: usize,
    ) -> Result<Vec<IoBuf>> {
        let first = usize::try_from(offset % u64::from(size)).expect("below the block size");
        let mut bufs = Vec::with_capacity((first + len).div_ceil(size as usize));
        let mut parts = parts(size, offset, len).peekable();
        while let Some(part) = parts.peek() {
            let Some(bytes) = self.part_at_hand(dnode, part) else {
                // Boxed, as all that may wait for a disk.
                let rest = parts.map(|part| self.read_part(dnode, part));
                for bytes in Box::pin(join_all(rest)).await {
                    bufs.push(bytes?);
                }
                break;
            };
            bufs.push(bytes);
            parts.next();
        }
        Ok(bufs)
    }

    /// The bytes of a part that is in memory, where that is known without waiting.
    fn part_at_hand(&self, dnode: &Dnode, part: &Part) -> Option<IoBuf> {
        let range = part.within..part.within + part.len;
        match dnode.state.borrow().peek(NEWEST, part.block) {
            Peek::Data(Block::Own(data)) if part.len < COPY_OUT_BYTES => {
                return Some(copy_range(data, range));
            }
            Peek::Data(Block::Shared(data)) if data.len() >= range.end => {
                return Some(data.slice(range));
            }
            Peek::Data(_) => return None,
            Peek::Clone(clone) => {
                let data = self.0.services.blocks().peek(&clone.bp)?;
                return Some(part_of(Some(data), range));
            }
            Peek::Hole => return Some(IoBuf::zeroed(part.len)),
            Peek::Base => {}
        }
        self.block_at_hand(dnode, part.block)
            .map(|data| part_of(data, range))
    }

    async fn read_part(&self, dnode: &Dnode, part: Part) -> Result<IoBuf> {
        if let Some(bytes) = self.part_at_hand(dnode, &part) {
            return Ok(bytes);
        }
        let data = self.block(dnode, NEWEST, part.block).await?;
        Ok(part_of(data, part.within..part.within + part.len))
    }

    /// Writes bytes at an offset. Whole blocks are not read first.
    ///
    /// # Errors
    /// `NoSuchObject`, `ReadOnly`; `Invalid` for a second block of an object whose block size is no power of two; read errors of
    /// blocks written in part.
    pub async fn write(&self, object: ObjectId, offset: u64, bytes: &[u8], tx: &Tx) -> Result<()> {
        let dnode = self.dnode(object).await?;
        self.write_dnode(&dnode, offset, bytes, None, tx).await
    }

    /// Writes a buffer at an offset; whole blocks of it are kept without a copy.
    ///
    /// # Errors
    /// As `write`.
    pub async fn write_buf(
        &self,
        object: ObjectId,
        offset: u64,
        data: IoBuf,
        tx: &Tx,
    ) -> Result<()> {
        let dnode = self.dnode(object).await?;
        self.write_dnode(&dnode, offset, &data, Some(&data), tx)
            .await
    }

    /// As `write_buf`, of the bytes that are there: their blocks are written even where nothing of them changes.
    ///
    /// # Errors
    /// As `write`.
    pub async fn write_anew(
        &self,
        object: ObjectId,
        offset: u64,
        data: IoBuf,
        tx: &Tx,
    ) -> Result<()> {
        let size = u64::from(self.object_info(object).await?.block_size);
        let end = offset.saturating_add(data.len() as u64);
        self.write_buf(object, offset, data, tx).await?;
        let mut anew = self.0.written_anew.borrow_mut();
        let of_txg = anew.entry(tx.txg()).or_default();
        of_txg.extend((offset / size..end.div_ceil(size)).map(|block| (object, block)));
        Ok(())
    }

    pub(crate) async fn write_dnode(
        &self,
        dnode: &Rc<Dnode>,
        offset: u64,
        bytes: &[u8],
        owner: Option<&IoBuf>,
        tx: &Tx,
    ) -> Result<()> {
        self.check_writable()?;
        check_range(offset, bytes.len() as u64)?;
        let (size, _) = shape(dnode, tx.txg())?;
        if offset + bytes.len() as u64 > u64::from(size) && !size.is_power_of_two() {
            return Err(DmuError::Invalid {
                what: "more than one block needs a block size that is a power of two",
            });
        }
        for part in parts(size, offset, bytes.len()) {
            let source = part.at..part.at + part.len;
            // A slice that keeps a much larger buffer alive is copied instead. The slices of one write are written out and
            // leave the cache at about the same time.
            let whole = owner
                .filter(|o| part.len == size as usize && o.len() <= SLICES_MAX * part.len)
                .map(|o| o.slice(source.clone()));
            self.write_part(dnode, &part, &bytes[source], whole, tx)
                .await?;
        }
        Ok(())
    }

    async fn write_part(
        &self,
        dnode: &Rc<Dnode>,
        part: &Part,
        bytes: &[u8],
        whole: Option<IoBuf>,
        tx: &Tx,
    ) -> Result<()> {
        let size = dnode.with_core(tx.txg(), |core| core.block_size as usize);
        let mut loaded = None;
        loop {
            if part.len < size {
                self.own_clones(dnode, part.block, tx).await?;
            }
            if self.merge(dnode, part, bytes, whole.as_ref(), loaded.take(), tx) {
                return Ok(());
            }
            loaded = Some(self.load_older(dnode, part.block, tx).await?);
        }
    }

    /// Puts bytes into a block of `tx`'s layer and of every newer one. False when the block's bytes on disk are needed first.
    fn merge(
        &self,
        dnode: &Rc<Dnode>,
        part: &Part,
        bytes: &[u8],
        whole: Option<&IoBuf>,
        loaded: Option<(u64, Option<IoBuf>)>,
        tx: &Tx,
    ) -> bool {
        let given = part.within..part.within + bytes.len();
        let Some(at) = self.make_own(dnode, part.block, given, loaded, tx) else {
            return false;
        };
        let mut state = dnode.state.borrow_mut();
        for (depth, layer) in state.layers[at..].iter_mut().enumerate() {
            if depth > 0 && layer.reset {
                break;
            }
            layer.core.max_block_id = layer.core.max_block_id.max(part.block);
            let size = layer.core.block_size as usize;
            let was_clone = layer.clones.remove(&part.block).is_some();
            assert!(
                depth == 0 || !was_clone || bytes.len() == size,
                "a clone that is written in part was made the object's own before"
            );
            if depth > 0 && !layer.blocks.contains_key(&part.block) {
                if !was_clone && !layer.freed.contains(part.block) {
                    continue;
                }
                layer
                    .blocks
                    .insert(part.block, Block::Own(IoBufMut::zeroed(size)));
            }
            let data = layer.blocks.get_mut(&part.block).expect("made above");
            match whole {
                Some(buf) if buf.len() == data.len() || data.is_empty() => {
                    *data = Block::Shared(buf.clone());
                }
                _ => {
                    if data.is_empty() {
                        *data = Block::Own(IoBufMut::scratch(size));
                    }
                    let end = (part.within + bytes.len()).min(data.len());
                    if part.within < end {
                        data.edit()[part.within..end].copy_from_slice(&bytes[..end - part.within]);
                    }
                }
            }
        }
        drop(state);
        tx.add_changed(bytes.len() as u64);
        dnode.bump();
        true
    }

    /// Makes sure the layer of `tx` has the block; returns the layer's index, or `None` when its bytes on disk are needed and not
    /// given. What of the block is `given`, the caller overwrites next: it holds anything until then, and a block that is given
    /// whole is left empty.
    fn make_own(
        &self,
        dnode: &Rc<Dnode>,
        block: u64,
        given: Range<usize>,
        loaded: Option<(u64, Option<IoBuf>)>,
        tx: &Tx,
    ) -> Option<usize> {
        let at = self.dirty_layer(dnode, tx);
        let mut state = dnode.state.borrow_mut();
        let size = state.layers[at].core.block_size as usize;
        if state.layers[at].blocks.contains_key(&block) {
            return Some(at);
        }
        // What a ZAP changes is counted with its block, what a writer changes as it goes.
        let all_counts = given.is_empty();
        let data = if given == (0..size) {
            Block::Shared(IoBuf::empty())
        } else {
            Block::Own(match state.peek(tx.txg(), block) {
                Peek::Data(data) => copy_around(data, size, given),
                Peek::Hole => copy_around(&[], size, given),
                Peek::Clone(_) | Peek::Base => match loaded {
                    Some((generation, bytes)) if generation == state.generation => {
                        copy_around(bytes.as_deref().unwrap_or_default(), size, given)
                    }
                    _ => return None,
                },
            })
        };
        // Written whole, else it is not here any more.
        state.layers[at].clones.remove(&block);
        state.layers[at].blocks.insert(block, data);
        if all_counts {
            tx.add_dirty(size as u64);
        } else {
            tx.add_block(size as u64);
        }
        Some(at)
    }

    /// Makes block `block` changeable in `tx`'s layer and no other, loading it first. For callers that apply their change to every
    /// newer view themselves (ZAPs).
    pub(crate) async fn own_block(&self, dnode: &Rc<Dnode>, block: u64, tx: &Tx) -> Result<()> {
        let mut loaded = None;
        loop {
            self.own_clones(dnode, block, tx).await?;
            let made = self.make_own(dnode, block, 0..0, loaded.take(), tx);
            if made.is_some() {
                return Ok(());
            }
            loaded = Some(self.load_older(dnode, block, tx).await?);
        }
    }

    /// The bytes of a block as `tx` finds them where they are not in memory: on disk, or cloned in an older layer. With the
    /// generation for which that holds.
    async fn load_older(&self, dnode: &Dnode, block: u64, tx: &Tx) -> Result<(u64, Option<IoBuf>)> {
        let (generation, clone) = {
            let state = dnode.state.borrow();
            let clone = match state.peek(tx.txg(), block) {
                Peek::Clone(clone) => Some(Rc::clone(clone)),
                _ => None,
            };
            (state.generation, clone)
        };
        let bytes = match clone {
            Some(clone) => Some(self.read_clone(dnode, &clone, block).await?),
            None => self.base_block(dnode, block).await?,
        };
        Ok((generation, bytes))
    }

    /// Frees a range: whole blocks become holes, the rest zeros. `len` of `u64::MAX` means to the end, and lets the object forget
    /// its last blocks.
    ///
    /// # Errors
    /// As `write`.
    pub async fn free_range(&self, object: ObjectId, offset: u64, len: u64, tx: &Tx) -> Result<()> {
        self.check_writable()?;
        let dnode = self.dnode(object).await?;
        let (size, max) = shape(&dnode, tx.txg())?;
        let size = u64::from(size);
        let to_end = len == u64::MAX;
        let object_end = (max + 1).saturating_mul(size);
        let end = if to_end {
            object_end.max(offset)
        } else {
            offset.saturating_add(len).min(object_end)
        };
        if offset >= end {
            return Ok(());
        }
        let first_whole = offset.div_ceil(size);
        let end_whole = if to_end { max + 1 } else { end / size };
        // Partial blocks at the edges are zeroed, unless they are holes already.
        if !offset.is_multiple_of(size) {
            self.zero(&dnode, offset, end.min(first_whole * size), size, tx)
                .await?;
        }
        if end_whole >= first_whole && !end.is_multiple_of(size) && !to_end {
            self.zero(&dnode, end_whole * size, end, size, tx).await?;
        }
        if first_whole >= end_whole {
            return Ok(());
        }
        let at = self.dirty_layer(&dnode, tx);
        let mut state = dnode.state.borrow_mut();
        let mut released = 0;
        for (depth, layer) in state.layers[at..].iter_mut().enumerate() {
            if depth > 0 && layer.reset {
                break;
            }
            let mut tail = layer.blocks.split_off(&first_whole);
            let mut kept = tail.split_off(&end_whole);
            if depth == 0 {
                released += tail.values().map(|b| b.len() as u64).sum::<u64>();
            }
            layer.blocks.append(&mut kept);
            let mut clones = layer.clones.split_off(&first_whole);
            layer.clones.append(&mut clones.split_off(&end_whole));
            layer
                .freed
                .union(first_whole..if to_end { u64::MAX } else { end_whole });
            if to_end {
                let last_dirty = layer.last_block().unwrap_or(0);
                layer.core.max_block_id = layer
                    .core
                    .max_block_id
                    .min(first_whole.saturating_sub(1))
                    .max(last_dirty);
            }
        }
        drop(state);
        tx.clock().sub_dirty(tx.txg(), released);
        dnode.bump();
        Ok(())
    }

    async fn zero(&self, dnode: &Rc<Dnode>, from: u64, to: u64, size: u64, tx: &Tx) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let mut all_holes = true;
        for view in views_from(dnode, tx.txg()) {
            all_holes &= self.is_hole(dnode, view, from / size).await?;
        }
        if all_holes {
            return Ok(());
        }
        let zeros = vec![0; usize::try_from(to - from).expect("less than a block")];
        self.write_dnode(dnode, from, &zeros, None, tx).await
    }

    /// Changes the data block size of an object with at most one block, keeping its bytes.
    ///
    /// # Errors
    /// `Invalid` when the object has more than one block or the size is no multiple of 512.
    pub async fn set_block_size(&self, object: ObjectId, bytes: u32, tx: &Tx) -> Result<()> {
        self.check_writable()?;
        check_block_size(bytes)?;
        let dnode = self.dnode(object).await?;
        self.set_block_size_dnode(&dnode, bytes, true, tx).await
    }

    /// `write_through` also changes newer layers (ZAPs do that themselves).
    pub(crate) async fn set_block_size_dnode(
        &self,
        dnode: &Rc<Dnode>,
        bytes: u32,
        write_through: bool,
        tx: &Tx,
    ) -> Result<()> {
        let (old, max) = if write_through {
            shape(dnode, tx.txg())?
        } else {
            dnode.with_core(tx.txg(), |core| (core.block_size, core.max_block_id))
        };
        if old == bytes {
            return Ok(());
        }
        if max != 0 {
            return Err(DmuError::Invalid {
                what: "the block size of an object with several blocks is fixed",
            });
        }
        self.own_clones(dnode, 0, tx).await?;
        if !matches!(dnode.state.borrow().peek(tx.txg(), 0), Peek::Hole) {
            self.own_block(dnode, 0, tx).await?;
        }
        let at = self.dirty_layer(dnode, tx);
        let mut state = dnode.state.borrow_mut();
        let end = if write_through {
            state.layers.len()
        } else {
            at + 1
        };
        for layer in &mut state.layers[at..end] {
            layer.core.block_size = bytes;
            // A newer layer without the block sees the one of this layer.
            if let Some(data) = layer.blocks.get_mut(&0) {
                *data = Block::Own(copy_sized(data, bytes as usize));
            }
        }
        if !state.layers[at].blocks.contains_key(&0) {
            state.layers[at].freed.union(0..1);
        }
        tx.add_dirty(u64::from(bytes));
        drop(state);
        dnode.bump();
        Ok(())
    }

    /// The first byte at or after `offset` that is in a block with data; `None` when there is none.
    ///
    /// # Errors
    /// `NoSuchObject`, read errors.
    pub async fn next_data(&self, object: ObjectId, offset: u64) -> Result<Option<u64>> {
        let dnode = self.dnode(object).await?;
        let size = dnode.with_core(NEWEST, |core| u64::from(core.block_size));
        let from = offset / size;
        let mut on_disk_from = from;
        let on_disk = loop {
            let Some(block) = self.next_base_block(&dnode, on_disk_from).await? else {
                break None;
            };
            let hidden = dnode.state.borrow().hidden(NEWEST, block);
            match hidden {
                Some(range) if range.end == u64::MAX => break None,
                Some(range) => on_disk_from = range.end,
                None => break Some(block),
            }
        };
        let state = dnode.state.borrow();
        let mut in_memory = state.next_dirty(NEWEST, from);
        // A block written in an older layer may have been freed in a newer one.
        while let Some(block) = in_memory
            && matches!(state.peek(NEWEST, block), Peek::Hole)
        {
            in_memory = state.next_dirty(NEWEST, block + 1);
        }
        let first = on_disk.into_iter().chain(in_memory).min();
        Ok(first.map(|block| (block * size).max(offset)))
    }

    /// The first byte at or after `offset` that is in a hole; everything behind the last block is one.
    ///
    /// # Errors
    /// `NoSuchObject`, read errors.
    pub async fn next_hole(&self, object: ObjectId, offset: u64) -> Result<u64> {
        self.next_hole_before(object, offset, u64::MAX).await
    }

    /// As [`Objset::next_hole`], but looks no further than the block that holds `limit`: an answer at or past it means that there
    /// is no hole before.
    ///
    /// # Errors
    /// `NoSuchObject`, read errors.
    pub async fn next_hole_before(&self, object: ObjectId, offset: u64, limit: u64) -> Result<u64> {
        let dnode = self.dnode(object).await?;
        let (size, max) = dnode.with_core(NEWEST, |core| {
            (u64::from(core.block_size), core.max_block_id)
        });
        let max = max.min(limit / size);
        let mut block = offset / size;
        while block <= max && !self.is_hole(&dnode, NEWEST, block).await? {
            block += 1;
        }
        Ok((block * size).max(offset))
    }
}

/// The views that a change in txg `from` concerns: its own and every newer one with changes of the same object.
fn views_from(dnode: &Dnode, from: Txg) -> Vec<Txg> {
    let state = dnode.state.borrow();
    let newer = state
        .layers
        .iter()
        .filter(|l| l.txg > from)
        .take_while(|l| !l.reset);
    std::iter::once(from).chain(newer.map(|l| l.txg)).collect()
}

/// Block size, and the largest block of any version that a change in txg `from` concerns.
fn shape(dnode: &Dnode, from: Txg) -> Result<(u32, u64)> {
    let (size, mut max) = dnode.with_core(from, |core| (core.block_size, core.max_block_id));
    for view in views_from(dnode, from) {
        let newer = dnode.with_core(view, |core| (core.block_size, core.max_block_id));
        if newer.0 != size {
            // A change of the block size keeps other writers of the object out meanwhile.
            return Err(DmuError::Invalid {
                what: "the block size was changed in a newer transaction group",
            });
        }
        max = max.max(newer.1);
    }
    Ok((size, max))
}

fn check_range(offset: u64, len: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= i64::MAX.unsigned_abs() => Ok(()),
        _ => Err(DmuError::TooLarge {
            what: "objects end at 2^63 bytes",
        }),
    }
}

/// A part of a block; `None` is zeros.
fn part_of(block: Option<IoBuf>, range: Range<usize>) -> IoBuf {
    match block {
        Some(data) if data.len() >= range.end => data.slice(range),
        // The block size may have changed while we waited; what is not there reads as zeros.
        Some(data) => copy_range(&data, range),
        None => IoBuf::zeroed(range.len()),
    }
}

fn copy_range(data: &[u8], range: Range<usize>) -> IoBuf {
    let start = range.start.min(data.len());
    copy_sized(
        &data[start..range.end.clamp(start, data.len())],
        range.len(),
    )
    .freeze()
}

/// The bytes in a buffer of `size`, cut or with zeros behind them.
fn copy_sized(data: &[u8], size: usize) -> IoBufMut {
    copy_around(data, size, 0..0)
}

/// As [`copy_sized`], but for a range that the caller overwrites, which is left as it is.
fn copy_around(data: &[u8], size: usize, given: Range<usize>) -> IoBufMut {
    let mut out = IoBufMut::scratch(size);
    for kept in [0..given.start.min(size), given.end.min(size)..size] {
        let have = kept.start.min(data.len())..kept.end.min(data.len());
        out[have.clone()].copy_from_slice(&data[have.clone()]);
        out[kept.start.max(have.end)..kept.end].fill(0);
    }
    out
}
