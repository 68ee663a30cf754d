//! Deadlists: the blocks a dataset no longer refers to but an older snapshot does.
//!
//! A ZAP maps the creation txg of each older snapshot to a list of the blocks that were
//! born after it (and before the next one), so that destroying a snapshot finds whole lists.
//! Datasets made before version 26 have one flat list of all blocks instead, also after an upgrade of the pool, until the next
//! snapshot is taken. OpenZFS: module/zfs/dsl_deadlist.c.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use dmu::zap::{self, ZapSpec, ZapValue};
use dmu::{Objset, Tx};
use ondisk::dsl::{DeadlistPhys, deadlist_key};
use ondisk::{BlockPointer, ObjectId, ObjectType, Txg};

use crate::bpobj::Bpobj;
use crate::empty_bpobj::EmptyBpobj;
use crate::error::{DslError, Result};
use crate::space::{Sizes, sizes_of};

/// An open deadlist.
pub(crate) struct Deadlist {
    mos: Objset,
    object: ObjectId,
    totals: Cell<Sizes>,
    /// The newest txg whose blocks were added to a livelist.
    pub(crate) kept: Cell<Txg>,
    /// By the txg a block must be younger than.
    entries: RefCell<BTreeMap<u64, Entry>>,
    /// The list of all blocks, where there are no entries.
    flat: Option<Bpobj>,
}

#[derive(Clone)]
struct Entry {
    object: ObjectId,
    open: Option<Bpobj>,
}

impl Deadlist {
    /// Makes an empty deadlist without entries. Syncing context.
    pub(crate) async fn create(mos: &Objset, tx: &Tx) -> Result<ObjectId> {
        assert!(tx.is_syncing(), "create happens in syncing context");
        Ok(zap::create(mos, &Self::spec(), tx).await?)
    }

    fn spec() -> ZapSpec {
        ZapSpec {
            bonus: (
                ObjectType::DEADLIST_HDR,
                u16::try_from(DeadlistPhys::SIZE).expect("320 bytes"),
            ),
            ..ZapSpec::new(ObjectType::DEADLIST)
        }
    }

    /// Opens a deadlist: reads its totals and the numbers of its lists.
    pub(crate) async fn open(mos: &Objset, object: ObjectId) -> Result<Self> {
        if is_flat(mos, object).await? {
            return Ok(Self {
                mos: mos.clone(),
                object,
                totals: Cell::default(),
                kept: Cell::new(Txg(0)),
                entries: RefCell::default(),
                flat: Some(Bpobj::open(mos, object).await?),
            });
        }
        let totals = Self::totals_of(mos, object).await?;
        let mut entries = BTreeMap::new();
        for entry in zap::entries(mos, object).await? {
            match (deadlist_key(&entry.name), entry.value) {
                (Some(txg), ZapValue::U64(value)) if value.len() == 1 => {
                    entries.insert(
                        txg,
                        Entry {
                            object: ObjectId(value[0]),
                            open: None,
                        },
                    );
                }
                _ => return Err(DslError::corrupt("deadlist entry", object)),
            }
        }
        Ok(Self {
            mos: mos.clone(),
            object,
            totals: Cell::new(totals),
            kept: Cell::new(Txg(0)),
            entries: RefCell::new(entries),
            flat: None,
        })
    }

    /// The one list of all its blocks, if it has no entries.
    pub(crate) fn flat(&self) -> Option<&Bpobj> {
        self.flat.as_ref()
    }

    /// Total sizes of a deadlist that is not open.
    pub(crate) async fn totals_of(mos: &Objset, object: ObjectId) -> Result<Sizes> {
        if is_flat(mos, object).await? {
            return Ok(Bpobj::open(mos, object).await?.sizes());
        }
        let bonus = mos.bonus(object).await?;
        let phys = DeadlistPhys::decode(&bonus.bytes).map_err(|source| DslError::Decode {
            what: "deadlist",
            object,
            source,
        })?;
        Ok(Sizes {
            used: phys.used,
            compressed: phys.comp,
            uncompressed: phys.uncomp,
        })
    }

    /// Makes a deadlist with the entries of this one that are older than `before`, and one for `added`, all empty. A snapshot of a
    /// dataset with many makes one of as many entries, so that they are written at once. Syncing context.
    pub(crate) async fn clone_keys(
        &self,
        before: u64,
        added: Option<u64>,
        empty: &EmptyBpobj,
        tx: &Tx,
    ) -> Result<Self> {
        assert!(tx.is_syncing(), "clone keys happens in syncing context");
        assert!(self.flat.is_none(), "a flat list has no entries");
        let mut keys: Vec<u64> = {
            let entries = self.entries.borrow();
            entries.range(..before).map(|(key, _)| *key).collect()
        };
        let is_new = |key: &u64| keys.binary_search(key).is_err();
        let added = added.filter(is_new);
        keys.extend(added);
        let shared = match u64::try_from(keys.len()).expect("a count") {
            0 => None,
            count => empty.alloc_many(count, tx).await?,
        };
        let mut entries = BTreeMap::new();
        for key in keys {
            let object = match shared {
                Some(shared) => shared,
                None => empty.alloc(tx).await?,
            };
            entries.insert(key, Entry { object, open: None });
        }
        let stored: Vec<(String, u64)> = entries
            .iter()
            .map(|(key, entry)| (format!("{key:x}"), entry.object.0))
            .collect();
        Ok(Self {
            mos: self.mos.clone(),
            object: zap::create_with(&self.mos, &Self::spec(), &stored, tx).await?,
            totals: Cell::default(),
            kept: Cell::new(Txg(0)),
            entries: RefCell::new(entries),
            flat: None,
        })
    }

    /// Adds an entry for blocks born after `min_txg`. Syncing context.
    pub(crate) async fn add_key(&self, min_txg: u64, empty: &EmptyBpobj, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "add key happens in syncing context");
        if self.flat.is_some() {
            return Ok(());
        }
        let list = empty.alloc(tx).await?;
        zap::add_int_key(&self.mos, self.object, min_txg, list.0, tx).await?;
        self.entries.borrow_mut().insert(
            min_txg,
            Entry {
                object: list,
                open: None,
            },
        );
        Ok(())
    }

    /// Adds dead blocks to the entries of their birth txgs. Syncing context.
    pub(crate) async fn insert(
        &self,
        blocks: &[BlockPointer],
        empty: &EmptyBpobj,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "insert happens in syncing context");
        if let Some(list) = &self.flat {
            return list.append(blocks, tx).await;
        }
        let mut by_key: BTreeMap<u64, Vec<BlockPointer>> = BTreeMap::new();
        let store = self.mos.services().store().clone();
        let mut totals = self.totals.get();
        for bp in blocks {
            let key = self.key_for(bp)?;
            totals.add(sizes_of(bp, store.dsize(bp)));
            by_key.entry(key).or_default().push(*bp);
        }
        for (key, blocks) in by_key {
            let list = self.list_for_writing(key, empty, tx).await?;
            list.append(&blocks, tx).await?;
        }
        self.set_totals(totals, tx).await
    }

    /// Marks blocks as freed in the entries of their birth txgs, as livelists do. Syncing context.
    pub(crate) async fn insert_freed(
        &self,
        blocks: &[BlockPointer],
        empty: &EmptyBpobj,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "insert freed happens in syncing context");
        let store = self.mos.services().store().clone();
        let mut by_key: BTreeMap<u64, Vec<BlockPointer>> = BTreeMap::new();
        let mut totals = self.totals.get();
        for bp in blocks {
            let key = self.key_for(bp)?;
            totals.sub(sizes_of(bp, store.dsize(bp)));
            by_key.entry(key).or_default().push(*bp);
        }
        for (key, blocks) in by_key {
            let list = self.list_for_writing(key, empty, tx).await?;
            list.append_freed(&blocks, tx).await?;
        }
        self.set_totals(totals, tx).await
    }

    /// The key of the entry a block's birth belongs to.
    fn key_for(&self, bp: &BlockPointer) -> Result<u64> {
        let entries = self.entries.borrow();
        let older = entries.range(..bp.birth().0).next_back();
        let (key, _) = older
            .or_else(|| entries.first_key_value())
            .ok_or_else(|| DslError::corrupt("deadlist without entries", self.object))?;
        Ok(*key)
    }

    /// The keys of the entries, the oldest first.
    pub(crate) fn keys(&self) -> Vec<u64> {
        self.entries.borrow().keys().copied().collect()
    }

    pub(crate) fn has_key(&self, key: u64) -> bool {
        self.entries.borrow().contains_key(&key)
    }

    /// The newest key and its list; no list where nothing was ever written to it.
    pub(crate) async fn newest(&self) -> Result<Option<(u64, Option<Bpobj>)>> {
        let newest = self.entries.borrow().last_key_value().map(|(key, _)| *key);
        match newest {
            Some(key) => Ok(Some((key, self.list_at(key).await?))),
            None => Ok(None),
        }
    }

    /// The list of a key, open; `None` for one without blocks.
    pub(crate) async fn list_at(&self, key: u64) -> Result<Option<Bpobj>> {
        let Some(entry) = self.entries.borrow().get(&key).cloned() else {
            return Ok(None);
        };
        let list = match entry.open {
            Some(list) => list,
            None => Bpobj::open(&self.mos, entry.object).await?,
        };
        Ok(Some(list).filter(|list| !list.is_empty()))
    }

    /// Empties an entry but keeps it. Syncing context.
    pub(crate) async fn clear_key(&self, key: u64, empty: &EmptyBpobj, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "clear key happens in syncing context");
        let Some(entry) = self.entries.borrow().get(&key).cloned() else {
            return Ok(());
        };
        if empty.is_shared(entry.object) {
            return Ok(());
        }
        let mut totals = self.totals.get();
        totals.sub(Bpobj::open(&self.mos, entry.object).await?.sizes());
        Bpobj::destroy(&self.mos, entry.object, tx).await?;
        let object = empty.alloc(tx).await?;
        zap::update_int_key(&self.mos, self.object, key, object.0, tx).await?;
        self.entries
            .borrow_mut()
            .insert(key, Entry { object, open: None });
        self.set_totals(totals, tx).await
    }

    /// Destroys an entry with the blocks in it. Syncing context.
    pub(crate) async fn destroy_key(&self, key: u64, empty: &EmptyBpobj, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "destroy key happens in syncing context");
        self.clear_key(key, empty, tx).await?;
        if !self.has_key(key) {
            return Ok(());
        }
        let object = self.take_entry(key, tx).await?;
        if empty.is_shared(object) {
            empty.release(tx).await
        } else {
            Bpobj::destroy(&self.mos, object, tx).await
        }
    }

    async fn list_for_writing(&self, key: u64, empty: &EmptyBpobj, tx: &Tx) -> Result<Bpobj> {
        let entry = self.entries.borrow().get(&key).cloned();
        let entry = entry.expect("the key was found in the entries");
        if let Some(list) = entry.open {
            return Ok(list);
        }
        let mut object = entry.object;
        if empty.is_shared(object) {
            object = if empty.counts_freed() {
                Bpobj::create_counting_freed(&self.mos, tx).await?
            } else {
                Bpobj::create(&self.mos, crate::object_directory::LIST_BLOCK, tx).await?
            };
            empty.release(tx).await?;
            zap::update_int_key(&self.mos, self.object, key, object.0, tx).await?;
        }
        let list = Bpobj::open(&self.mos, object).await?;
        let entry = Entry {
            object,
            open: Some(list.clone()),
        };
        self.entries.borrow_mut().insert(key, entry);
        Ok(list)
    }

    /// Sizes of the blocks in entries from `from` up to, but without, `to`.
    pub(crate) async fn space_range(
        &self,
        from: u64,
        to: u64,
        empty: &EmptyBpobj,
    ) -> Result<Sizes> {
        let mut sizes = Sizes::default();
        if from >= to {
            return Ok(sizes);
        }
        if let Some(list) = &self.flat {
            return list.space_range(from, to).await;
        }
        let entries: Vec<Entry> = {
            let entries = self.entries.borrow();
            entries.range(from..to).map(|(_, e)| e.clone()).collect()
        };
        for entry in entries {
            if empty.is_shared(entry.object) {
                continue;
            }
            let list = match entry.open {
                Some(list) => list,
                None => Bpobj::open(&self.mos, entry.object).await?,
            };
            sizes.add(list.sizes());
        }
        Ok(sizes)
    }

    /// Total sizes.
    pub(crate) fn totals(&self) -> Sizes {
        match &self.flat {
            Some(list) => list.sizes(),
            None => self.totals.get(),
        }
    }

    /// Moves the lists of all entries from `from` on to the end of another list, and removes the
    /// entries. Syncing context.
    pub(crate) async fn move_to(
        &self,
        list: &Bpobj,
        from: u64,
        empty: &EmptyBpobj,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "move to happens in syncing context");
        let keys: Vec<u64> = {
            let entries = self.entries.borrow();
            entries.range(from..).map(|(key, _)| *key).collect()
        };
        let mut moved = Sizes::default();
        for key in keys {
            let object = self.take_entry(key, tx).await?;
            if !empty.is_shared(object) {
                moved.add(Bpobj::open(&self.mos, object).await?.sizes());
            }
            empty.enqueue(object, list, tx).await?;
        }
        let mut totals = self.totals.get();
        totals.sub(moved);
        self.set_totals(totals, tx).await
    }

    /// Moves the lists of another deadlist to the entries of their birth txgs, and frees the other
    /// deadlist. Syncing context.
    pub(crate) async fn merge(&self, other: &Self, empty: &EmptyBpobj, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "merge happens in syncing context");
        if let Some(list) = &other.flat {
            let insert = async |blocks: &[BlockPointer]| self.insert(blocks, empty, tx).await;
            list.each_chunk(insert).await?;
            return Bpobj::destroy(&self.mos, other.object, tx).await;
        }
        assert!(
            self.flat.is_none(),
            "only a flat list becomes part of another"
        );
        let mut totals = self.totals.get();
        let theirs: Vec<(u64, ObjectId)> = {
            let entries = std::mem::take(&mut *other.entries.borrow_mut());
            entries.iter().map(|(key, e)| (*key, e.object)).collect()
        };
        let mut shared = 0;
        for (key, object) in theirs {
            if empty.is_shared(object) {
                shared += 1;
                continue;
            }
            totals.add(Bpobj::open(&self.mos, object).await?.sizes());
            self.enqueue_into(key, object, empty, tx).await?;
        }
        empty.release_many(shared, tx).await?;
        self.mos.free_object(other.object, tx).await?;
        self.set_totals(totals, tx).await
    }

    /// Removes an entry, if there is one; its blocks move to the next older one. Syncing context.
    pub(crate) async fn remove_key(&self, key: u64, empty: &EmptyBpobj, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "remove key happens in syncing context");
        if !self.entries.borrow().contains_key(&key) {
            return Ok(());
        }
        if self.entries.borrow().range(..key).next_back().is_none() {
            return Err(DslError::corrupt("first deadlist entry", self.object));
        }
        let object = self.take_entry(key, tx).await?;
        self.enqueue_into(key, object, empty, tx).await
    }

    /// Empties all entries but keeps them. Syncing context.
    pub(crate) async fn clear(&self, empty: &EmptyBpobj, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "clear happens in syncing context");
        if let Some(list) = &self.flat {
            list.drain(u64::MAX, tx, async |_, _| Ok(())).await?;
            return Ok(());
        }
        let keys: Vec<(u64, ObjectId)> = {
            let entries = self.entries.borrow();
            entries.iter().map(|(key, e)| (*key, e.object)).collect()
        };
        for (key, object) in keys {
            if empty.is_shared(object) {
                continue;
            }
            Bpobj::destroy(&self.mos, object, tx).await?;
            let object = empty.alloc(tx).await?;
            zap::update_int_key(&self.mos, self.object, key, object.0, tx).await?;
            let entry = Entry { object, open: None };
            self.entries.borrow_mut().insert(key, entry);
        }
        self.set_totals(Sizes::default(), tx).await
    }

    pub(crate) fn object(&self) -> ObjectId {
        self.object
    }

    /// Removes an entry and returns its list.
    async fn take_entry(&self, key: u64, tx: &Tx) -> Result<ObjectId> {
        zap::remove_int(&self.mos, self.object, key, tx).await?;
        let entry = self.entries.borrow_mut().remove(&key);
        Ok(entry.expect("the key was found in the entries").object)
    }

    /// Moves a whole list into the entry for blocks born after `key`.
    async fn enqueue_into(
        &self,
        key: u64,
        object: ObjectId,
        empty: &EmptyBpobj,
        tx: &Tx,
    ) -> Result<()> {
        let (at, entry) = {
            let entries = self.entries.borrow();
            let older = entries.range(..=key).next_back();
            let (at, entry) = older
                .or_else(|| entries.first_key_value())
                .ok_or_else(|| DslError::corrupt("deadlist without entries", self.object))?;
            (*at, entry.clone())
        };
        if empty.is_shared(entry.object) {
            empty.release(tx).await?;
            zap::update_int_key(&self.mos, self.object, at, object.0, tx).await?;
            self.entries
                .borrow_mut()
                .insert(at, Entry { object, open: None });
            return Ok(());
        }
        let list = match entry.open {
            Some(list) => list,
            None => Bpobj::open(&self.mos, entry.object).await?,
        };
        empty.enqueue(object, &list, tx).await
    }

    async fn set_totals(&self, totals: Sizes, tx: &Tx) -> Result<()> {
        let phys = DeadlistPhys {
            used: totals.used,
            comp: totals.compressed,
            uncomp: totals.uncompressed,
        };
        self.mos
            .set_bonus(self.object, ObjectType::DEADLIST_HDR, &phys.encode(), tx)
            .await?;
        self.totals.set(totals);
        Ok(())
    }

    /// Frees a deadlist with its lists; the blocks in them are not freed. Syncing context.
    pub(crate) async fn destroy(
        mos: &Objset,
        object: ObjectId,
        empty: &EmptyBpobj,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "destroy happens in syncing context");
        if is_flat(mos, object).await? {
            return Bpobj::destroy(mos, object, tx).await;
        }
        let list = Self::open(mos, object).await?;
        let objects: Vec<ObjectId> = list.entries.borrow().values().map(|e| e.object).collect();
        let mut shared = 0;
        for entry in objects {
            if empty.is_shared(entry) {
                shared += 1;
            } else {
                Bpobj::destroy(mos, entry, tx).await?;
            }
        }
        empty.release_many(shared, tx).await?;
        mos.free_object(object, tx).await?;
        Ok(())
    }
}

/// Whether a deadlist is one flat list. An error when the object is no deadlist at all.
async fn is_flat(mos: &Objset, object: ObjectId) -> Result<bool> {
    match mos.object_info(object).await?.object_type {
        ObjectType::DEADLIST => Ok(false),
        ObjectType::BPOBJ => Ok(true),
        _ => Err(DslError::corrupt("deadlist", object)),
    }
}
