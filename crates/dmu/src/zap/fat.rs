//! Fat ZAPs: header block, table of leaf numbers by the top bits of the hash, leaf blocks edited in place.
//!
//! Each step first reads and makes ours every block it touches, and then changes them without an await in between.

use ondisk::DecodeError;
use ondisk::bytes::{of_u64s, put_u64, u64_at};
use ondisk::zap::{
    FatHeader, InsertError, Leaf, LeafEntry, NewEntry, PointerTable, chunks_for, hash_bits,
};

use super::value::{Key, Position};
use super::{Op, View, ZapEntry, ZapValue, incremented};
use crate::error::{DmuError, Result};
use crate::txg::Tx;

/// Bytes of a table entry.
const ENTRY: usize = 8;
const _: () = assert!(ENTRY == size_of::<u64>());

/// The header.
pub(crate) async fn header(view: &View<'_>) -> Result<FatHeader> {
    view.with(0, FatHeader::decode)
        .await?
        .map_err(|e| view.corrupt(0, &e))
}

/// Makes the object an empty fat ZAP with one leaf. Block 0, if there was one, must be ours.
pub(crate) fn create(view: &View<'_>, header: &FatHeader, block_size: usize, tx: &Tx) {
    let at = view.os.dirty_layer(view.dnode, tx);
    {
        let core = &mut view.dnode.state.borrow_mut().layers[at].core;
        core.block_size = u32::try_from(block_size).expect("ZAP blocks are small");
    }
    let mut first = vec![0; block_size];
    header.encode_into(&mut first);
    for i in 0..1_u64 << header.pointer_table.shift {
        FatHeader::set_embedded_entry(&mut first, i, 1);
    }
    view.put(0, &first, tx);
    view.put(
        1,
        &Leaf::create(block_size, 0, 0, header.norm_flags != 0).into_inner(),
        tx,
    );
}

/// Where a key belongs.
struct LeafPosition {
    header: FatHeader,
    hash: u64,
    leaf: u64,
}

async fn leaf_of(
    view: &View<'_>,
    header: &FatHeader,
    embedded: Option<u64>,
    hash: u64,
) -> Result<u64> {
    let leaf = match embedded {
        Some(leaf) => leaf,
        None => {
            let (block, slot) = table_place(
                &header.pointer_table,
                header.table_index(hash),
                view.block_size(),
            );
            view.with(block, |bytes| word(bytes, slot)).await?
        }
    };
    if leaf == 0 || leaf >= header.free_block {
        return Err(view.os.corrupt(view.object(), 0, 0, "ZAP pointer table"));
    }
    Ok(leaf)
}

/// Block and entry in it of entry `index` of an external table.
fn table_place(table: &PointerTable, index: u64, block_size: usize) -> (u64, usize) {
    let per_block = (block_size / ENTRY) as u64;
    (
        table.block + index / per_block,
        usize::try_from(index % per_block).expect("below the entries of a block"),
    )
}

fn word(bytes: &[u8], slot: usize) -> u64 {
    u64_at(bytes, slot * ENTRY)
}

async fn locate(view: &View<'_>, key: Key<'_>) -> Result<LeafPosition> {
    let (header, hash, embedded) = view
        .with(0, |bytes| -> Result<_> {
            let header = FatHeader::decode(bytes).map_err(|e| view.corrupt(0, &e))?;
            if !key.fits(header.flags) {
                return Err(view.limit("this ZAP has another kind of key"));
            }
            let hash = key.hash(header.salt, header.norm_flags, header.flags)?;
            let embedded = (header.pointer_table.blocks == 0)
                .then(|| FatHeader::embedded_entry(bytes, header.table_index(hash)));
            Ok((header, hash, embedded))
        })
        .await??;
    let leaf = leaf_of(view, &header, embedded, hash).await?;
    Ok(LeafPosition { header, hash, leaf })
}

/// Runs `f` on a leaf that must cover `hash`.
async fn with_leaf<R>(
    view: &View<'_>,
    block: u64,
    hash: u64,
    f: impl FnOnce(&Leaf<&[u8]>) -> std::result::Result<R, DecodeError>,
) -> Result<R> {
    view.with(block, |bytes| {
        let leaf = Leaf::open(bytes)?;
        if !leaf.covers(hash) {
            return Err(DecodeError::new("ZAP leaf prefix", 16));
        }
        f(&leaf)
    })
    .await?
    .map_err(|e| view.corrupt(block, &e))
}

/// The value of a key.
pub(crate) async fn find(view: &View<'_>, key: Key<'_>) -> Result<Option<ZapValue>> {
    let place = locate(view, key).await?;
    let stored = key.to_stored();
    with_leaf(view, place.leaf, place.hash, |leaf| {
        let Some(entry) = leaf.find(place.hash, &stored, key.int_size())? else {
            return Ok(None);
        };
        Ok(Some(ZapValue::from_stored(
            entry.value_int_size,
            leaf.value(&entry)?,
        )))
    })
    .await
}

/// Normalization, and the entries whose hash is that of `name`.
pub(crate) async fn with_hash(
    view: &View<'_>,
    name: &[u8],
) -> Result<(u64, Vec<(Vec<u8>, ZapValue)>)> {
    let place = locate(view, Key::Name(name)).await?;
    let found = with_leaf(view, place.leaf, place.hash, |leaf| {
        let mut found = Vec::new();
        for entry in leaf.with_hash(place.hash)? {
            let mut stored = leaf.name(&entry, 1)?;
            stored.pop();
            found.push((
                stored,
                ZapValue::from_stored(entry.value_int_size, leaf.value(&entry)?),
            ));
        }
        Ok(found)
    })
    .await?;
    Ok((place.header.norm_flags, found))
}

/// What a leaf must do.
enum Action<'a> {
    Insert {
        cd: Option<u32>,
        int_size: u8,
        value: &'a [u8],
    },
    Replace {
        entry: LeafEntry,
        int_size: u8,
        value: &'a [u8],
    },
    Remove {
        entry: LeafEntry,
    },
}

/// Applies an operation; returns the number of an increment.
pub(crate) async fn apply(view: &View<'_>, key: Key<'_>, op: Op<'_>, tx: &Tx) -> Result<u64> {
    let stored = key.to_stored();
    loop {
        let place = locate(view, key).await?;
        let found = with_leaf(view, place.leaf, place.hash, |leaf| {
            let Some(entry) = leaf.find(place.hash, &stored, key.int_size())? else {
                return Ok(None);
            };
            let number = match op {
                Op::Increment(_) => {
                    ZapValue::from_stored(entry.value_int_size, leaf.value(&entry)?).as_u64()
                }
                _ => None,
            };
            Ok(Some((entry, number)))
        })
        .await?;
        let mut outcome = 0;
        let bytes;
        let action = match (op, found) {
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
            (Op::Remove, Some((entry, _))) => Action::Remove { entry },
            (Op::Add(value) | Op::Update(value), None) => {
                bytes = value.to_stored();
                Action::Insert {
                    cd: None,
                    int_size: value.int_size(),
                    value: &bytes,
                }
            }
            (Op::Update(value), Some((entry, _))) => {
                bytes = value.to_stored();
                Action::Replace {
                    entry,
                    int_size: value.int_size(),
                    value: &bytes,
                }
            }
            (Op::Increment(delta), found) => {
                let old = match found {
                    Some((_, None)) => {
                        return Err(DmuError::ZapShape {
                            object: view.object(),
                        });
                    }
                    Some((_, Some(number))) => number,
                    None => 0,
                };
                outcome = incremented(old, delta);
                bytes = outcome.to_be_bytes().to_vec();
                match found {
                    None if outcome == 0 => return Ok(0),
                    None => Action::Insert {
                        cd: None,
                        int_size: 8,
                        value: &bytes,
                    },
                    Some((entry, _)) if outcome == 0 => Action::Remove { entry },
                    Some((entry, _)) => Action::Replace {
                        entry,
                        int_size: 8,
                        value: &bytes,
                    },
                }
            }
        };
        if act(view, key, &stored, &place, &action, tx).await? {
            return Ok(outcome);
        }
        Box::pin(split(view, &place, key.int_size(), tx)).await?;
    }
}

/// Adds a number with a known differentiator (conversion of a micro ZAP).
pub(crate) async fn insert_with_cd(
    view: &View<'_>,
    name: &[u8],
    value: u64,
    cd: u32,
    tx: &Tx,
) -> Result<()> {
    let key = Key::Name(name);
    let stored = key.to_stored();
    let value = value.to_be_bytes();
    loop {
        let place = locate(view, key).await?;
        let action = Action::Insert {
            cd: Some(cd),
            int_size: 8,
            value: &value,
        };
        if act(view, key, &stored, &place, &action, tx).await? {
            return Ok(());
        }
        Box::pin(split(view, &place, 1, tx)).await?;
    }
}

/// Changes a leaf. False when it is too full.
async fn act(
    view: &View<'_>,
    key: Key<'_>,
    stored: &[u8],
    place: &LeafPosition,
    action: &Action<'_>,
    tx: &Tx,
) -> Result<bool> {
    match action {
        // The header counts the entries.
        Action::Insert { .. } | Action::Remove { .. } => view.own(&[0, place.leaf], tx).await?,
        Action::Replace { .. } => view.own(&[place.leaf], tx).await?,
    }
    let done = view.edit(
        place.leaf,
        |bytes| -> std::result::Result<i64, InsertError> {
            let mut leaf = Leaf::open(bytes)?;
            match action {
                Action::Insert {
                    cd,
                    int_size,
                    value,
                } => {
                    if chunks_for(stored.len(), value.len()) > leaf.chunk_count() {
                        return Err(InsertError::Corrupt(DecodeError::new(TOO_BIG, 0)));
                    }
                    let cd = match cd {
                        Some(cd) => *cd,
                        None => leaf.free_cd(place.hash)?,
                    };
                    leaf.insert(&NewEntry {
                        hash: place.hash,
                        cd,
                        name: stored,
                        name_int_size: key.int_size(),
                        value_int_size: *int_size,
                        value,
                    })?;
                    Ok(1)
                }
                Action::Replace {
                    entry,
                    int_size,
                    value,
                } => {
                    leaf.set_value(entry, *int_size, value)?;
                    Ok(0)
                }
                Action::Remove { entry } => {
                    leaf.remove(entry)?;
                    Ok(-1)
                }
            }
        },
    );
    match done {
        Ok(0) => Ok(true),
        Ok(delta) => {
            edit_header(view, |header| {
                header.entry_count = header.entry_count.saturating_add_signed(delta);
            })?;
            Ok(true)
        }
        Err(InsertError::Full) => Ok(false),
        Err(InsertError::Corrupt(error)) if error.what == TOO_BIG => Err(view.limit(TOO_BIG)),
        Err(InsertError::Corrupt(error)) => Err(view.corrupt(place.leaf, &error)),
    }
}

const TOO_BIG: &str = "an entry must fit into a leaf block";

fn edit_header(view: &View<'_>, change: impl FnOnce(&mut FatHeader)) -> Result<()> {
    view.edit(0, |bytes| {
        let mut header = FatHeader::decode(bytes)?;
        change(&mut header);
        header.encode_into(bytes);
        Ok(())
    })
    .map_err(|e: DecodeError| view.corrupt(0, &e))
}

/// Splits a leaf in two by the next bit of the hash; grows the table first when it has no such bit.
async fn split(view: &View<'_>, place: &LeafPosition, name_int_size: u8, tx: &Tx) -> Result<()> {
    let table = place.header.pointer_table;
    let (prefix, prefix_len) = with_leaf(view, place.leaf, place.hash, |leaf| {
        Ok((leaf.prefix(), u64::from(leaf.prefix_len())))
    })
    .await?;
    if prefix_len >= table.shift {
        return grow_table(view, &place.header, tx).await;
    }
    // The upper half of the leaf's stretch of the table will point to the new leaf.
    let below = table.shift - prefix_len;
    let first = (prefix << below) + (1 << (below - 1));
    let end = (prefix + 1) << below;
    let block_size = view.block_size();
    let mut blocks = vec![0, place.leaf];
    if table.blocks != 0 {
        let from = table_place(&table, first, block_size).0;
        let to = table_place(&table, end - 1, block_size).0;
        blocks.extend(from..=to);
    }
    view.own(&blocks, tx).await?;
    let high = view
        .edit(place.leaf, |bytes| Leaf::open(bytes)?.split(name_int_size))
        .map_err(|e| view.corrupt(place.leaf, &e))?;
    let new = place.header.free_block;
    view.put(new, &high.into_inner(), tx);
    if table.blocks == 0 {
        view.edit(0, |bytes| {
            for index in first..end {
                FatHeader::set_embedded_entry(bytes, index, new);
            }
        });
    } else {
        let mut index = first;
        while index < end {
            let (block, slot) = table_place(&table, index, block_size);
            let here = ((block_size / ENTRY - slot) as u64).min(end - index);
            view.edit(block, |bytes| {
                let count = usize::try_from(here).expect("within a block");
                for slot in slot..slot + count {
                    put_u64(bytes, slot * ENTRY, new);
                }
            });
            index += here;
        }
    }
    edit_header(view, |header| {
        header.free_block = new + 1;
        header.leaf_count += 1;
    })
}

/// Doubles the table, in one step: every entry becomes two.
async fn grow_table(view: &View<'_>, header: &FatHeader, tx: &Tx) -> Result<()> {
    let table = header.pointer_table;
    // OpenZFS: module/zfs/zap.c, zap_grow_ptrtbl
    if table.shift + 2 >= u64::from(hash_bits(header.flags)) {
        return Err(view.limit("the ZAP is full"));
    }
    let block_size = view.block_size();
    let entries_old = 1_u64 << table.shift;
    let mut blocks = vec![0];
    blocks.extend(table.block..table.block + table.blocks);
    view.own(&blocks, tx).await?;
    let mut old = Vec::with_capacity(usize::try_from(entries_old).expect("a table fits memory"));
    if table.blocks == 0 {
        view.edit(0, |bytes| {
            old.extend((0..entries_old).map(|i| FatHeader::embedded_entry(bytes, i)));
            let half = bytes.len() / 2;
            bytes[half..].fill(0);
        });
    } else {
        for block in table.block..table.block + table.blocks {
            view.edit(block, |bytes| {
                old.extend((0..bytes.len() / ENTRY).map(|slot| word(bytes, slot)));
            });
        }
        old.truncate(usize::try_from(entries_old).expect("a table fits memory"));
    }
    let new_block = header.free_block;
    let doubled: Vec<u64> = old.iter().flat_map(|&leaf| [leaf, leaf]).collect();
    let doubled = of_u64s(&doubled);
    let mut count = 0;
    for bytes in doubled.chunks(block_size) {
        let mut whole = bytes.to_vec();
        whole.resize(block_size, 0);
        view.put(new_block + count, &whole, tx);
        count += 1;
    }
    if table.blocks != 0 {
        view.free(table.block..table.block + table.blocks, tx);
    }
    edit_header(view, |header| {
        header.pointer_table = PointerTable {
            block: new_block,
            blocks: count,
            shift: table.shift + 1,
            next_block: 0,
            blocks_copied: 0,
        };
        header.free_block = new_block + count;
    })
}

/// Entries from a cookie on, in hash order.
pub(crate) async fn list(view: &View<'_>, cookie: u64, max: usize) -> Result<Vec<ZapEntry>> {
    let header = header(view).await?;
    let words = Key::Words(&[0]).fits(header.flags);
    let name_int_size = if words { 8 } else { 1 };
    let mut from = Position::from_cookie(cookie, header.flags);
    let mut out = Vec::new();
    while out.len() < max {
        let embedded = if header.pointer_table.blocks == 0 {
            let index = header.table_index(from.hash);
            Some(
                view.with(0, |bytes| FatHeader::embedded_entry(bytes, index))
                    .await?,
            )
        } else {
            None
        };
        let leaf = leaf_of(view, &header, embedded, from.hash).await?;
        let room = max - out.len();
        let (entries, next) = with_leaf(view, leaf, from.hash, |leaf| {
            let mut entries = Vec::new();
            for entry in leaf.entries()? {
                let position = Position {
                    hash: entry.hash,
                    cd: entry.cd,
                };
                if position < from {
                    continue;
                }
                if entries.len() >= room {
                    break;
                }
                let mut name = leaf.name(&entry, name_int_size)?;
                if !words {
                    name.pop();
                }
                entries.push(ZapEntry {
                    name,
                    value: ZapValue::from_stored(entry.value_int_size, leaf.value(&entry)?),
                    next_cookie: position.cookie_after(header.flags),
                });
            }
            let len = leaf.prefix_len();
            let next = if len == 0 {
                None
            } else {
                (leaf.prefix() + 1).checked_mul(1 << (64 - len))
            };
            Ok((entries, next))
        })
        .await?;
        out.extend(entries);
        match next {
            Some(hash) => from = Position { hash, cd: 0 },
            None => break,
        }
    }
    Ok(out)
}
