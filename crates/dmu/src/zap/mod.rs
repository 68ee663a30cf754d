//! ZAPs in objects: micro (one block of names to numbers) and fat (a hash table of leaf blocks).
//!
//! A ZAP starts micro, grows by 512 bytes, and becomes fat when it passes 128 KiB or gets a long name or another value than
//! one number. Blocks are edited in place in the transaction's layer; no block is decoded as a whole.
//!
//! Operations on one ZAP exclude each other (readers share). A change in an older transaction group than the newest change
//! of the ZAP is made in every newer version too, separately, so that each version stays consistent in itself.

mod fat;
mod micro;
mod micro_index;
mod value;

use std::rc::Rc;

use ondisk::zap::{self as codec, BlockKind, FatHeader};
use ondisk::{ObjectId, ObjectType, Txg};

pub use value::ZapValue;

pub(crate) use micro_index::MicroIndex;
use value::{Key, Position, normal};

use crate::dnode::{Block, Core, Dnode, NEWEST};
use crate::error::{DmuError, Result};
use crate::objset::Objset;
use crate::txg::Tx;
use crate::types::AllocSpec;
use runtime::IoBufMut;

/// An entry, as a cursor returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZapEntry {
    /// The key without its NUL; for integer keys their big-endian bytes.
    pub name: Vec<u8>,
    /// The value.
    pub value: ZapValue,
    /// Cookie that continues after this entry. At least 2^28; stable over changes of other entries and over restarts.
    pub next_cookie: u64,
}

/// How to create a ZAP.
#[derive(Debug, Clone)]
pub struct ZapSpec {
    /// Object type.
    pub object_type: ObjectType,
    /// Normalization of names (`u8_textprep` bits), 0 for byte-exact.
    pub normalization: u64,
    /// Flags: 1 48-bit hashes, 2 integer keys, 4 keys are hashes. Non-zero makes the ZAP fat from the start.
    pub flags: u64,
    /// Bonus type and length.
    pub bonus: (ObjectType, u16),
    /// Slots of the dnode.
    pub slots: u8,
    /// Log2 of the fat block size, 0 for 14.
    pub fat_block_shift: u8,
    /// Log2 of the indirect block size, 0 for 17.
    pub indirect_shift: u8,
}

impl ZapSpec {
    /// A plain ZAP of a type.
    #[must_use]
    pub fn new(object_type: ObjectType) -> Self {
        Self {
            object_type,
            normalization: 0,
            flags: 0,
            bonus: (ObjectType::NONE, 0),
            slots: 1,
            fat_block_shift: 0,
            indirect_shift: 0,
        }
    }

    fn block_shift(&self) -> u32 {
        if self.fat_block_shift == 0 {
            codec::FAT_BLOCK_SHIFT
        } else {
            u32::from(self.fat_block_shift)
        }
    }

    fn alloc(&self) -> AllocSpec {
        let size = if self.flags == 0 {
            512
        } else {
            1 << self.block_shift()
        };
        AllocSpec::new(self.object_type)
            .block_size(size)
            .indirect_shift(self.indirect_shift)
            .bonus(self.bonus.0, self.bonus.1)
            .slots(self.slots)
    }
}

/// What is known of a ZAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZapInfo {
    /// One block of names to numbers.
    pub is_micro: bool,
    /// Entries.
    pub entries: u64,
    /// Normalization bits.
    pub normalization: u64,
    /// Flags.
    pub flags: u64,
    /// Leaf blocks.
    pub leafs: u64,
}

/// What to do with a key.
#[derive(Clone, Copy)]
pub(crate) enum Op<'a> {
    Add(&'a ZapValue),
    Update(&'a ZapValue),
    Remove,
    Increment(i64),
}

/// A ZAP in one view.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) os: &'a Objset,
    pub(crate) dnode: &'a Rc<Dnode>,
    pub(crate) txg: Txg,
}

impl View<'_> {
    pub(crate) fn object(&self) -> ObjectId {
        self.dnode.id
    }

    pub(crate) fn corrupt(&self, block: u64, error: &ondisk::DecodeError) -> DmuError {
        self.os.corrupt(self.dnode.id, 0, block, error.what)
    }

    pub(crate) fn limit(&self, what: &'static str) -> DmuError {
        DmuError::ZapLimit {
            object: self.dnode.id,
            what,
        }
    }

    /// Runs `f` on a block's bytes; a hole where a block must be is corruption.
    pub(crate) async fn with<R>(&self, block: u64, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let found = self
            .os
            .with_block(self.dnode, self.txg, block, |bytes| bytes.map(f))
            .await?;
        found.ok_or_else(|| {
            self.os
                .corrupt(self.dnode.id, 0, block, "ZAP block, missing")
        })
    }

    async fn kind(&self) -> Result<BlockKind> {
        match self.with(0, codec::block_kind).await? {
            Some(kind @ (BlockKind::Micro | BlockKind::FatHeader)) => Ok(kind),
            _ => Err(self.os.corrupt(self.dnode.id, 0, 0, "ZAP")),
        }
    }

    /// Whether no newer version exists.
    pub(crate) fn is_top(&self) -> bool {
        self.dnode
            .state
            .borrow()
            .layers
            .iter()
            .all(|l| l.txg <= self.txg)
    }

    /// The txgs newer than this view that have changes of the object, newest first; not those in which it is another object.
    fn newer(&self) -> Vec<Txg> {
        let state = self.dnode.state.borrow();
        let above = state.layers.iter().filter(|l| l.txg > self.txg);
        let mut newer: Vec<Txg> = above
            .take_while(|l| !l.reset && !l.core.is_free())
            .map(|l| l.txg)
            .collect();
        newer.reverse();
        newer
    }

    /// Makes blocks changeable in this view's txg, and gives every newer version its own copy as it was, so that what is done
    /// to them here does not show there. Until the next await they stay so.
    pub(crate) async fn own(&self, blocks: &[u64], tx: &Tx) -> Result<()> {
        loop {
            let newer = self.newer();
            for &txg in &newer {
                let above = self.os.0.services.clock.syncing_tx(txg);
                for &block in blocks {
                    Box::pin(self.os.own_block(self.dnode, block, &above)).await?;
                }
            }
            for &block in blocks {
                self.os.own_block(self.dnode, block, tx).await?;
            }
            if self.newer() == newer {
                return Ok(());
            }
        }
    }

    /// Edits a block that `own` made ours.
    pub(crate) fn edit<R>(&self, block: u64, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut state = self.dnode.state.borrow_mut();
        let layer = state
            .layers
            .iter_mut()
            .find(|l| l.txg == self.txg && !l.frozen);
        let data = layer
            .and_then(|l| l.blocks.get_mut(&block))
            .expect("the block was made ours before");
        let out = f(data.edit());
        drop(state);
        self.dnode.bump();
        out
    }

    /// Stores a whole new block.
    pub(crate) fn put(&self, block: u64, bytes: &[u8], tx: &Tx) {
        let at = self.os.dirty_layer(self.dnode, tx);
        let mut state = self.dnode.state.borrow_mut();
        let layer = &mut state.layers[at];
        layer.core.max_block_id = layer.core.max_block_id.max(block);
        let mut data = IoBufMut::scratch(bytes.len());
        data.copy_from_slice(bytes);
        if layer.blocks.insert(block, Block::Own(data)).is_none() {
            tx.add_dirty(bytes.len() as u64);
        }
        drop(state);
        self.dnode.bump();
    }

    /// Frees blocks that `own` made ours.
    pub(crate) fn free(&self, range: std::ops::Range<u64>, tx: &Tx) {
        let at = self.os.dirty_layer(self.dnode, tx);
        let mut state = self.dnode.state.borrow_mut();
        let layer = &mut state.layers[at];
        for block in range.clone() {
            layer.blocks.remove(&block);
        }
        layer.freed.union(range);
        drop(state);
        self.dnode.bump();
    }

    pub(crate) fn block_size(&self) -> usize {
        self.dnode
            .with_core(self.txg, |core| core.block_size as usize)
    }

    async fn apply(&self, key: Key<'_>, op: Op<'_>, tx: &Tx) -> Result<u64> {
        match self.kind().await? {
            BlockKind::Micro => match micro::apply(self, key, op, tx).await? {
                Some(done) => Ok(done),
                None => {
                    Box::pin(micro::upgrade(self, tx)).await?;
                    fat::apply(self, key, op, tx).await
                }
            },
            _ => fat::apply(self, key, op, tx).await,
        }
    }

    async fn find(&self, key: Key<'_>) -> Result<Option<ZapValue>> {
        match self.kind().await? {
            BlockKind::Micro => Ok(micro::find(self, key).await?.map(ZapValue::from)),
            _ => fat::find(self, key).await,
        }
    }
}

/// Creates a ZAP.
///
/// # Errors
/// As `Objset::allocate`.
pub async fn create(os: &Objset, spec: &ZapSpec, tx: &Tx) -> Result<ObjectId> {
    let object = os.allocate(spec.alloc(), tx).await?;
    fill_new(os, object, spec, tx).await?;
    Ok(object)
}

/// Creates a ZAP with entries whose names are all different. Where one block holds them this is one step: neither does the block
/// grow, nor are names looked for among those before.
///
/// # Errors
/// As [`create`] and [`add`].
pub async fn create_with(
    os: &Objset,
    spec: &ZapSpec,
    entries: &[(String, u64)],
    tx: &Tx,
) -> Result<ObjectId> {
    let salt = new_salt(os);
    let block = Some(spec).filter(|spec| spec.flags == 0);
    let Some(block) = block.and_then(|spec| micro::filled(salt, spec.normalization, entries))
    else {
        let object = create(os, spec, tx).await?;
        for (name, value) in entries {
            add_u64(os, object, name, *value, tx).await?;
        }
        return Ok(object);
    };
    let size = u32::try_from(block.len()).expect("at most 128 KiB");
    let object = os.allocate(spec.alloc().block_size(size), tx).await?;
    let dnode = os.dnode(object).await?;
    let view = View {
        os,
        dnode: &dnode,
        txg: tx.txg(),
    };
    assert!(view.is_top(), "a new object has no newer versions");
    view.put(0, &block, tx);
    Ok(object)
}

/// Creates a ZAP with a given object number.
///
/// # Errors
/// As `Objset::allocate_at`.
pub async fn create_at(os: &Objset, object: ObjectId, spec: &ZapSpec, tx: &Tx) -> Result<()> {
    os.allocate_at(object, spec.alloc(), tx).await?;
    fill_new(os, object, spec, tx).await
}

/// Makes an allocated, empty object a ZAP (zapification keeps the bonus). Its block size must be a multiple of 512 up to
/// 128 KiB.
///
/// # Errors
/// `NoSuchObject`.
pub async fn format(os: &Objset, object: ObjectId, normalization: u64, tx: &Tx) -> Result<()> {
    let dnode = os.dnode(object).await?;
    let salt = new_salt(os);
    let view = View {
        os,
        dnode: &dnode,
        txg: tx.txg(),
    };
    let mut bytes = vec![0; view.block_size().min(codec::micro::BLOCK_MAX)];
    codec::micro::format(&mut bytes, salt, normalization);
    for txg in view.newer() {
        let above = os.services().clock.syncing_tx(txg);
        View { txg, ..view }.put(0, &bytes, &above);
    }
    view.put(0, &bytes, tx);
    Ok(())
}

/// Makes one of the objset's built-in ZAPs.
pub(crate) async fn format_special(
    os: &Objset,
    dnode: &Rc<Dnode>,
    object_type: ObjectType,
    tx: &Tx,
) -> Result<()> {
    let at = os.dirty_layer(dnode, tx);
    for layer in &mut dnode.state.borrow_mut().layers[at..] {
        layer.core = Core {
            object_type,
            pointers: 3,
            ..Core::free()
        };
        layer.reset = true;
    }
    format(os, dnode.id, 0, tx).await
}

async fn fill_new(os: &Objset, object: ObjectId, spec: &ZapSpec, tx: &Tx) -> Result<()> {
    if spec.flags == 0 {
        return format(os, object, spec.normalization, tx).await;
    }
    let dnode = os.dnode(object).await?;
    let view = View {
        os,
        dnode: &dnode,
        txg: tx.txg(),
    };
    let header = FatHeader::new(
        spec.block_shift(),
        new_salt(os),
        spec.normalization,
        spec.flags,
    );
    fat::create(&view, &header, view.block_size(), tx);
    Ok(())
}

fn new_salt(os: &Objset) -> u64 {
    os.services().handle.random_u64() | 1
}

/// Describes a ZAP.
///
/// # Errors
/// `NoSuchObject`, `Corrupt`, read errors.
pub async fn info(os: &Objset, object: ObjectId) -> Result<ZapInfo> {
    let dnode = os.dnode(object).await?;
    let _pass = dnode.gate.read().await;
    let view = View {
        os,
        dnode: &dnode,
        txg: NEWEST,
    };
    match view.kind().await? {
        BlockKind::Micro => micro::info(&view).await,
        _ => {
            let header = fat::header(&view).await?;
            Ok(ZapInfo {
                is_micro: false,
                entries: header.entry_count,
                normalization: header.norm_flags,
                flags: header.flags,
                leafs: header.leaf_count,
            })
        }
    }
}

/// Looks a name up, byte-exact.
///
/// # Errors
/// `NoSuchObject` for the object, `Corrupt`, read errors.
pub async fn lookup(
    os: &Objset,
    object: ObjectId,
    name: impl AsRef<[u8]>,
) -> Result<Option<ZapValue>> {
    find(os, object, Key::Name(name.as_ref())).await
}

/// Looks a single number up.
///
/// # Errors
/// `ZapShape` when the value is something else; as `lookup`.
pub async fn lookup_u64(
    os: &Objset,
    object: ObjectId,
    name: impl AsRef<[u8]>,
) -> Result<Option<u64>> {
    match lookup(os, object, name).await? {
        None => Ok(None),
        Some(value) => value
            .as_u64()
            .map(Some)
            .ok_or(DmuError::ZapShape { object }),
    }
}

/// Looks a name up under the ZAP's normalization; returns the value, the stored name, and whether several names match.
/// A byte-exact match is preferred.
///
/// # Errors
/// As `lookup`.
pub async fn lookup_normalized(
    os: &Objset,
    object: ObjectId,
    name: impl AsRef<[u8]>,
) -> Result<Option<(ZapValue, Vec<u8>, bool)>> {
    let name = name.as_ref();
    let dnode = os.dnode(object).await?;
    let _pass = dnode.gate.read().await;
    let view = View {
        os,
        dnode: &dnode,
        txg: NEWEST,
    };
    let (norm, same_hash) = match view.kind().await? {
        BlockKind::Micro => micro::with_hash(&view, name).await?,
        _ => fat::with_hash(&view, name).await?,
    };
    let wanted = normal(name, norm);
    let mut found: Option<(ZapValue, Vec<u8>)> = None;
    let mut matches = 0;
    for (stored, value) in same_hash {
        if normal(&stored, norm) == wanted {
            matches += 1;
            if found.is_none() || stored == name {
                found = Some((value, stored));
            }
        }
    }
    Ok(found.map(|(value, stored)| (value, stored, matches > 1)))
}

/// Adds an entry.
///
/// # Errors
/// `ZapEntryExists` when the name is taken; `ZapLimit`.
pub async fn add(
    os: &Objset,
    object: ObjectId,
    name: impl AsRef<[u8]>,
    value: &ZapValue,
    tx: &Tx,
) -> Result<()> {
    modify(os, object, Key::Name(name.as_ref()), Op::Add(value), tx)
        .await
        .map(drop)
}

/// Adds an entry with one number.
///
/// # Errors
/// As `add`.
pub async fn add_u64(
    os: &Objset,
    object: ObjectId,
    name: impl AsRef<[u8]>,
    value: u64,
    tx: &Tx,
) -> Result<()> {
    add(os, object, name, &ZapValue::from(value), tx).await
}

/// Adds or replaces an entry.
///
/// # Errors
/// `ZapLimit`; as `lookup`.
pub async fn update(
    os: &Objset,
    object: ObjectId,
    name: impl AsRef<[u8]>,
    value: &ZapValue,
    tx: &Tx,
) -> Result<()> {
    modify(os, object, Key::Name(name.as_ref()), Op::Update(value), tx)
        .await
        .map(drop)
}

/// Adds or replaces an entry with one number.
///
/// # Errors
/// As `update`.
pub async fn update_u64(
    os: &Objset,
    object: ObjectId,
    name: impl AsRef<[u8]>,
    value: u64,
    tx: &Tx,
) -> Result<()> {
    update(os, object, name, &ZapValue::from(value), tx).await
}

/// Removes an entry.
///
/// # Errors
/// `ZapNoEntry` when there is none.
pub async fn remove(os: &Objset, object: ObjectId, name: impl AsRef<[u8]>, tx: &Tx) -> Result<()> {
    modify(os, object, Key::Name(name.as_ref()), Op::Remove, tx)
        .await
        .map(drop)
}

/// Adds `delta` to a number (absent counts as 0); a result of 0 removes the entry. Returns the new number.
///
/// # Errors
/// `ZapShape` when the value is no number; as `update`.
pub async fn increment(
    os: &Objset,
    object: ObjectId,
    name: impl AsRef<[u8]>,
    delta: i64,
    tx: &Tx,
) -> Result<u64> {
    modify(
        os,
        object,
        Key::Name(name.as_ref()),
        Op::Increment(delta),
        tx,
    )
    .await
}

/// Number of entries.
///
/// # Errors
/// As `info`.
pub async fn count(os: &Objset, object: ObjectId) -> Result<u64> {
    Ok(info(os, object).await?.entries)
}

/// Up to `max` entries from `cookie` on (0: from the start), in hash order. An empty answer is the end.
///
/// # Errors
/// As `lookup`.
pub async fn cursor(
    os: &Objset,
    object: ObjectId,
    cookie: u64,
    max: usize,
) -> Result<Vec<ZapEntry>> {
    let dnode = os.dnode(object).await?;
    let _pass = dnode.gate.read().await;
    let view = View {
        os,
        dnode: &dnode,
        txg: NEWEST,
    };
    match view.kind().await? {
        BlockKind::Micro => micro::list(&view, Position::from_cookie(cookie, 0), max).await,
        _ => fat::list(&view, cookie, max).await,
    }
}

/// All entries (for small ZAPs), in hash order.
///
/// # Errors
/// As `lookup`.
pub async fn entries(os: &Objset, object: ObjectId) -> Result<Vec<ZapEntry>> {
    let mut all = Vec::new();
    let mut cookie = 0;
    loop {
        let some = cursor(os, object, cookie, 1024).await?;
        let Some(last) = some.last() else {
            return Ok(all);
        };
        cookie = last.next_cookie;
        all.extend(some);
    }
}

/// Adds the key `hex(value)` with the value `value`.
///
/// # Errors
/// As `add`.
pub async fn add_int(os: &Objset, object: ObjectId, value: u64, tx: &Tx) -> Result<()> {
    add_u64(os, object, format!("{value:x}"), value, tx).await
}

/// Removes the key `hex(value)`.
///
/// # Errors
/// As `remove`.
pub async fn remove_int(os: &Objset, object: ObjectId, value: u64, tx: &Tx) -> Result<()> {
    remove(os, object, format!("{value:x}"), tx).await
}

/// Adds the key `hex(key)`.
///
/// # Errors
/// As `add`.
pub async fn add_int_key(
    os: &Objset,
    object: ObjectId,
    key: u64,
    value: u64,
    tx: &Tx,
) -> Result<()> {
    add_u64(os, object, format!("{key:x}"), value, tx).await
}

/// Adds or replaces the key `hex(key)`.
///
/// # Errors
/// As `update`.
pub async fn update_int_key(
    os: &Objset,
    object: ObjectId,
    key: u64,
    value: u64,
    tx: &Tx,
) -> Result<()> {
    update_u64(os, object, format!("{key:x}"), value, tx).await
}

/// Looks the key `hex(key)` up.
///
/// # Errors
/// As `lookup_u64`.
pub async fn lookup_int_key(os: &Objset, object: ObjectId, key: u64) -> Result<Option<u64>> {
    lookup_u64(os, object, format!("{key:x}")).await
}

/// Looks an integer key up (ZAPs with flag 2).
///
/// # Errors
/// As `lookup`.
pub async fn lookup_u64_key(
    os: &Objset,
    object: ObjectId,
    key: &[u64],
) -> Result<Option<ZapValue>> {
    find(os, object, Key::Words(key)).await
}

/// Adds an integer key.
///
/// # Errors
/// As `add`.
pub async fn add_u64_key(
    os: &Objset,
    object: ObjectId,
    key: &[u64],
    value: &ZapValue,
    tx: &Tx,
) -> Result<()> {
    modify(os, object, Key::Words(key), Op::Add(value), tx)
        .await
        .map(drop)
}

/// Adds or replaces an integer key.
///
/// # Errors
/// As `update`.
pub async fn update_u64_key(
    os: &Objset,
    object: ObjectId,
    key: &[u64],
    value: &ZapValue,
    tx: &Tx,
) -> Result<()> {
    modify(os, object, Key::Words(key), Op::Update(value), tx)
        .await
        .map(drop)
}

/// Removes an integer key.
///
/// # Errors
/// As `remove`.
pub async fn remove_u64_key(os: &Objset, object: ObjectId, key: &[u64], tx: &Tx) -> Result<()> {
    modify(os, object, Key::Words(key), Op::Remove, tx)
        .await
        .map(drop)
}

async fn find(os: &Objset, object: ObjectId, key: Key<'_>) -> Result<Option<ZapValue>> {
    let dnode = os.dnode(object).await?;
    let _pass = dnode.gate.read().await;
    View {
        os,
        dnode: &dnode,
        txg: NEWEST,
    }
    .find(key)
    .await
}

async fn modify(os: &Objset, object: ObjectId, key: Key<'_>, op: Op<'_>, tx: &Tx) -> Result<u64> {
    os.check_writable()?;
    key.check(object)?;
    if let Op::Add(value) | Op::Update(value) = op
        && value.to_stored().len() > codec::VALUE_MAX
    {
        return Err(DmuError::ZapLimit {
            object,
            what: "a value is at most 8192 bytes",
        });
    }
    let dnode = os.dnode(object).await?;
    let _pass = dnode.gate.write().await;
    let view = View {
        os,
        dnode: &dnode,
        txg: tx.txg(),
    };
    let newer = view.newer();
    if newer.is_empty() {
        return view.apply(key, op, tx).await;
    }
    // The newest version decides; the older ones follow, each from its own state.
    let mut outcome = None;
    for txg in newer {
        let above = os.services().clock.syncing_tx(txg);
        let view = View { txg, ..view };
        if outcome.is_none() {
            outcome = Some(view.apply(key, op, &above).await?);
        } else {
            follow(&view, key, op, &above).await?;
        }
    }
    let alone = follow(&view, key, op, tx).await?;
    Ok(outcome.unwrap_or(alone))
}

/// Applies an operation that succeeded in a newer version; entries may already be as wanted here.
async fn follow(view: &View<'_>, key: Key<'_>, op: Op<'_>, tx: &Tx) -> Result<u64> {
    let op = match op {
        Op::Add(value) => Op::Update(value),
        op => op,
    };
    match view.apply(key, op, tx).await {
        Err(DmuError::ZapNoEntry { .. }) => Ok(0),
        other => other,
    }
}

/// The number an increment gives.
pub(crate) fn incremented(old: u64, delta: i64) -> u64 {
    old.saturating_add_signed(delta)
}
