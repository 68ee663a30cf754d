//! Micro ZAPs: one block, linear or (when large) with an index in memory over hash and differentiator.

use std::collections::BTreeMap;

use ondisk::zap::micro::MicroZap;
use ondisk::zap::{self as codec, FatHeader, hash, micro as block};

use super::micro_index::{BuildError, Found, MicroIndex};
use super::value::{Key, Position, normal};
use super::{Op, View, ZapEntry, ZapInfo, ZapValue, fat, incremented};
use crate::error::{DmuError, Result};
use crate::txg::Tx;

/// Blocks up to this size are searched linearly: 64 entries are quicker compared than an index is built.
const LINEAR_BYTES: usize = 4096;
/// Blocks grow by this many bytes.
const GROWTH: usize = 512;
const _: () = assert!(GROWTH.is_multiple_of(64) && LINEAR_BYTES.is_multiple_of(GROWTH));

/// Makes the index current if the ZAP is large enough for one; tells whether it is there.
async fn indexed(view: &View<'_>) -> Result<bool> {
    if view.block_size() <= LINEAR_BYTES || !view.is_top() {
        return Ok(false);
    }
    let version = view.dnode.version.get();
    if view
        .dnode
        .micro
        .borrow()
        .as_ref()
        .is_some_and(|i| i.version == version)
    {
        return Ok(true);
    }
    match view
        .with(0, |bytes| MicroIndex::build(bytes, version))
        .await?
    {
        Ok(index) => *view.dnode.micro.borrow_mut() = Some(index),
        Err(BuildError::Decode(error)) => return Err(view.corrupt(0, &error)),
        Err(BuildError::Other(error)) => return Err(error),
    }
    Ok(view.dnode.version.get() == version)
}

async fn header(view: &View<'_>) -> Result<(u64, u64)> {
    view.with(0, block::header)
        .await?
        .map_err(|e| view.corrupt(0, &e))
}

async fn search(view: &View<'_>, name: &[u8]) -> Result<Option<Found>> {
    if indexed(view).await? {
        let (salt, norm) = view
            .dnode
            .micro
            .borrow()
            .as_ref()
            .map(|i| (i.salt, i.norm))
            .expect("the index was just made");
        let hash = hash(salt, &normal(name, norm), 0);
        let dnode = view.dnode;
        return view
            .with(0, |bytes| {
                dnode
                    .micro
                    .borrow()
                    .as_ref()
                    .and_then(|index| index.find(bytes, name, hash))
            })
            .await;
    }
    view.with(0, |bytes| {
        block::entries(bytes)
            .find(|e| e.name == name)
            .map(|e| Found {
                slot: e.slot,
                value: e.value,
                cd: e.cd,
            })
    })
    .await
}

/// The value of a name.
pub(crate) async fn find(view: &View<'_>, key: Key<'_>) -> Result<Option<u64>> {
    match key {
        Key::Name(name) => Ok(search(view, name).await?.map(|f| f.value)),
        Key::Words(_) => Ok(None),
    }
}

/// Applies an operation; `None` when the ZAP must become fat first.
pub(crate) async fn apply(
    view: &View<'_>,
    key: Key<'_>,
    op: Op<'_>,
    tx: &Tx,
) -> Result<Option<u64>> {
    let Key::Name(name) = key else {
        return Err(view.limit("integer keys need a ZAP made for them"));
    };
    let found = search(view, name).await?;
    let (new, was) = match (op, found) {
        (Op::Add(_), Some(_)) => {
            return Err(DmuError::ZapEntryExists {
                object: view.object(),
            });
        }
        (Op::Remove, None) => {
            return Err(DmuError::ZapNoEntry {
                object: view.object(),
            });
        }
        (Op::Remove, Some(found)) => (None, Some(found)),
        (Op::Add(value) | Op::Update(value), found) => match value.as_u64() {
            Some(number) => (Some(number), found),
            None => return Ok(None),
        },
        (Op::Increment(delta), found) => {
            let number = incremented(found.map_or(0, |f| f.value), delta);
            if number == 0 && found.is_none() {
                return Ok(Some(0));
            }
            ((number != 0).then_some(number), found)
        }
    };
    match (new, was) {
        (Some(number), Some(found)) => {
            own(view, tx).await?;
            view.edit(0, |bytes| block::set_value(bytes, found.slot, number));
            keep_index(view, |_| {});
            Ok(Some(number))
        }
        (None, Some(found)) => {
            let (salt, norm) = header(view).await?;
            let hash = hash(salt, &normal(name, norm), 0);
            own(view, tx).await?;
            view.edit(0, |bytes| block::clear(bytes, found.slot));
            keep_index(view, |index| {
                index.by_hash.remove(&(hash, found.cd));
                index.free.extend(u16::try_from(found.slot));
            });
            Ok(Some(0))
        }
        (Some(number), None) => insert(view, name, number, tx).await,
        (None, None) => Ok(Some(0)),
    }
}

/// Makes the block ours and carries the index over: the bytes stay the same.
async fn own(view: &View<'_>, tx: &Tx) -> Result<()> {
    view.own(&[0], tx).await
}

async fn insert(view: &View<'_>, name: &[u8], value: u64, tx: &Tx) -> Result<Option<u64>> {
    if name.len() > block::NAME_MAX {
        return Ok(None);
    }
    let (salt, norm) = header(view).await?;
    let hash = hash(salt, &normal(name, norm), 0);
    let has_index = indexed(view).await?;
    let (slot, cd) = if has_index {
        let index = view.dnode.micro.borrow();
        let index = index.as_ref().expect("the index was just made");
        (
            index.free.last().map(|&s| usize::from(s)),
            index.free_cd(hash),
        )
    } else {
        view.with(0, |bytes| -> Result<_> {
            Ok((block::free_slot(bytes), linear_cd(bytes, salt, norm, hash)?))
        })
        .await??
    };
    own(view, tx).await?;
    let slot = match slot {
        Some(slot) => slot,
        None => {
            let size = view.block_size();
            if size + GROWTH > block::BLOCK_MAX {
                return Ok(None);
            }
            let grown = u32::try_from(size + GROWTH).expect("at most 128 KiB");
            view.os
                .set_block_size_dnode(view.dnode, grown, false, tx)
                .await?;
            keep_index(view, |index| {
                let new = block::slots(size)..block::slots(size + GROWTH);
                index.free.extend(new.rev().flat_map(u16::try_from));
            });
            block::slots(size)
        }
    };
    view.edit(0, |bytes| block::put(bytes, slot, name, value, cd));
    keep_index(view, |index| {
        index
            .by_hash
            .insert((hash, cd), u16::try_from(slot).unwrap_or(u16::MAX));
        index.free.retain(|&s| usize::from(s) != slot);
    });
    Ok(Some(value))
}

/// Lowest differentiator no entry of the hash has.
fn linear_cd(bytes: &[u8], salt: u64, norm: u64, wanted: u64) -> Result<u32> {
    let mut taken = Vec::new();
    for entry in block::entries(bytes) {
        if hash(salt, &normal(entry.name, norm), 0) == wanted {
            taken.push(entry.cd);
        }
    }
    taken.sort_unstable();
    Ok(taken
        .into_iter()
        .fold(0, |cd, t| if t == cd { cd + 1 } else { cd }))
}

/// After a change of the block that the index follows by `change`.
fn keep_index(view: &View<'_>, change: impl FnOnce(&mut MicroIndex)) {
    let mut slot = view.dnode.micro.borrow_mut();
    let Some(index) = slot.as_mut() else { return };
    // Every step bumps the version once; an index further behind belongs to something else.
    let now = view.dnode.version.get();
    if index.version + 1 == now && view.is_top() {
        change(index);
        index.version = now;
    } else {
        *slot = None;
    }
}

pub(crate) async fn info(view: &View<'_>) -> Result<ZapInfo> {
    let (_, normalization) = header(view).await?;
    let entries = view
        .with(0, |bytes| block::entries(bytes).count() as u64)
        .await?;
    Ok(ZapInfo {
        is_micro: true,
        entries,
        normalization,
        flags: 0,
        leafs: 0,
    })
}

/// Normalization, and the entries whose hash is that of `name`.
pub(crate) async fn with_hash(
    view: &View<'_>,
    name: &[u8],
) -> Result<(u64, Vec<(Vec<u8>, ZapValue)>)> {
    let (salt, norm) = header(view).await?;
    let wanted = hash(salt, &normal(name, norm), 0);
    let found = view
        .with(0, |bytes| -> Result<Vec<_>> {
            let mut found = Vec::new();
            for entry in block::entries(bytes) {
                if hash(salt, &normal(entry.name, norm), 0) == wanted {
                    found.push((entry.name.to_vec(), ZapValue::from(entry.value)));
                }
            }
            Ok(found)
        })
        .await??;
    Ok((norm, found))
}

/// Entries from a position on, in hash order.
pub(crate) async fn list(view: &View<'_>, from: Position, max: usize) -> Result<Vec<ZapEntry>> {
    let entry_of = |bytes: &[u8], slot: usize, position: Position| {
        block::entry(bytes, slot).map(|e| ZapEntry {
            name: e.name.to_vec(),
            value: ZapValue::from(e.value),
            next_cookie: position.cookie_after(0),
        })
    };
    if indexed(view).await? {
        let dnode = view.dnode;
        return view
            .with(0, |bytes| {
                let index = dnode.micro.borrow();
                let Some(index) = index.as_ref() else {
                    return Vec::new();
                };
                let after = index.by_hash.range((from.hash, from.cd)..);
                after
                    .filter_map(|(&(hash, cd), &slot)| {
                        entry_of(bytes, usize::from(slot), Position { hash, cd })
                    })
                    .take(max)
                    .collect()
            })
            .await;
    }
    let (salt, norm) = header(view).await?;
    view.with(0, |bytes| -> Result<Vec<ZapEntry>> {
        let mut all = Vec::new();
        for entry in block::entries(bytes) {
            let position = Position {
                hash: hash(salt, &normal(entry.name, norm), 0),
                cd: entry.cd,
            };
            if position >= from {
                all.push((position, entry.slot));
            }
        }
        all.sort_unstable();
        Ok(all
            .into_iter()
            .take(max)
            .filter_map(|(position, slot)| entry_of(bytes, slot, position))
            .collect())
    })
    .await?
}

/// The block of a ZAP with entries whose names are all different; `None` when one block cannot hold them.
pub(crate) fn filled(salt: u64, norm: u64, entries: &[(String, u64)]) -> Option<Vec<u8>> {
    let fits = |(name, _): &(String, u64)| (1..=block::NAME_MAX).contains(&name.len());
    if entries.len() > block::slots(block::BLOCK_MAX) || !entries.iter().all(fits) {
        return None;
    }
    let mut with_hash: BTreeMap<u64, u32> = BTreeMap::new();
    let entries = entries.iter().map(|(name, value)| {
        let hash = hash(salt, &normal(name.as_bytes(), norm), 0);
        let others = with_hash.entry(hash).or_default();
        let cd = *others;
        *others += 1;
        (name.clone().into_bytes(), *value, cd)
    });
    let zap = MicroZap {
        salt,
        norm_flags: norm,
        entries: entries.collect(),
    };
    Some(zap.encode(GROWTH))
}

/// Makes the ZAP fat, keeping salt, normalization and differentiators.
pub(crate) async fn upgrade(view: &View<'_>, tx: &Tx) -> Result<()> {
    let (salt, norm) = header(view).await?;
    let entries: Vec<(Vec<u8>, u64, u32)> = view
        .with(0, |bytes| {
            block::entries(bytes)
                .map(|e| (e.name.to_vec(), e.value, e.cd))
                .collect()
        })
        .await?;
    view.own(&[0], tx).await?;
    let header = FatHeader::new(codec::FAT_BLOCK_SHIFT, salt, norm, 0);
    fat::create(view, &header, 1 << codec::FAT_BLOCK_SHIFT, tx);
    *view.dnode.micro.borrow_mut() = None;
    // Everything below is in memory in this txg's layer, so nothing waits and no other task sees the halves.
    for (name, value, cd) in entries {
        fat::insert_with_cd(view, &name, value, cd, tx).await?;
    }
    Ok(())
}
