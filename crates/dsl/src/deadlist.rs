//! Deadlists: the blocks a dataset no longer refers to but an older snapshot does.
//!
//! A dictionary maps the creation txg of each older snapshot to a list of the blocks that were
//! born after it (and before the next one), so that destroying a snapshot finds whole lists.
//! OpenZFS: module/zfs/dsl_deadlist.c.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use dmu::zap::{self, ZapSpec, ZapValue};
use dmu::{Objset, Tx};
use ondisk::dsl::DeadlistPhys;
use ondisk::{BlockPointer, ObjectId, ObjectType};

use crate::bpobj::Bpobj;
use crate::empty::EmptyBpobj;
use crate::error::{DslError, Result};
use crate::space::{Sizes, sizes_of};

/// An open deadlist.
pub(crate) struct Deadlist {
    mos: Objset,
    object: ObjectId,
    totals: Cell<Sizes>,
    /// By the txg a block must be younger than.
    entries: RefCell<BTreeMap<u64, Entry>>,
}

#[derive(Clone)]
struct Entry {
    object: ObjectId,
    open: Option<Bpobj>,
}

impl Deadlist {
    /// Makes an empty deadlist without entries. Syncing context.
    pub(crate) async fn create(mos: &Objset, tx: &Tx) -> Result<ObjectId> {
        let spec = ZapSpec {
            bonus: (
                ObjectType::DEADLIST_HDR,
                u16::try_from(DeadlistPhys::SIZE).expect("320 bytes"),
            ),
            ..ZapSpec::new(ObjectType::DEADLIST)
        };
        Ok(zap::create(mos, &spec, tx).await?)
    }

    /// Opens a deadlist: reads its totals and the numbers of its lists.
    pub(crate) async fn open(mos: &Objset, object: ObjectId) -> Result<Self> {
        if mos.object_info(object).await?.object_type != ObjectType::DEADLIST {
            return Err(DslError::Unsupported {
                what: "a deadlist of a pool before version 26",
            });
        }
        let totals = Self::totals_of(mos, object).await?;
        let mut entries = BTreeMap::new();
        for entry in zap::entries(mos, object).await? {
            let txg = std::str::from_utf8(&entry.name)
                .ok()
                .and_then(|hex| u64::from_str_radix(hex, 16).ok());
            match (txg, entry.value) {
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
            entries: RefCell::new(entries),
        })
    }

    /// Total sizes of a deadlist that is not open.
    pub(crate) async fn totals_of(mos: &Objset, object: ObjectId) -> Result<Sizes> {
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

    /// Makes a deadlist with the entries of this one that are older than `before`, all empty.
    /// Syncing context.
    pub(crate) async fn clone_keys(
        &self,
        before: u64,
        empty: &EmptyBpobj,
        tx: &Tx,
    ) -> Result<ObjectId> {
        let object = Self::create(&self.mos, tx).await?;
        let keys: Vec<u64> = self
            .entries
            .borrow()
            .range(..before)
            .map(|(key, _)| *key)
            .collect();
        for key in keys {
            let list = empty.take(tx).await?;
            zap::add_int_key(&self.mos, object, key, list.0, tx).await?;
        }
        Ok(object)
    }

    /// Adds an entry for blocks born after `min_txg`. Syncing context.
    pub(crate) async fn add_key(&self, min_txg: u64, empty: &EmptyBpobj, tx: &Tx) -> Result<()> {
        let list = empty.take(tx).await?;
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

    /// Puts dead blocks into the entries their births belong to. Syncing context.
    pub(crate) async fn insert(
        &self,
        blocks: &[BlockPointer],
        empty: &EmptyBpobj,
        tx: &Tx,
    ) -> Result<()> {
        let mut by_key: BTreeMap<u64, Vec<BlockPointer>> = BTreeMap::new();
        let store = self.mos.services().store().clone();
        let mut totals = self.totals.get();
        for bp in blocks {
            let key = {
                let entries = self.entries.borrow();
                let older = entries.range(..bp.birth().0).next_back();
                let (key, _) = older
                    .or_else(|| entries.first_key_value())
                    .ok_or_else(|| DslError::corrupt("deadlist without entries", self.object))?;
                *key
            };
            totals.add(sizes_of(bp, store.dsize(bp)));
            by_key.entry(key).or_default().push(*bp);
        }
        for (key, blocks) in by_key {
            let list = self.list_for_writing(key, empty, tx).await?;
            list.append(&blocks, tx).await?;
        }
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

    async fn list_for_writing(&self, key: u64, empty: &EmptyBpobj, tx: &Tx) -> Result<Bpobj> {
        let entry = self.entries.borrow().get(&key).cloned();
        let entry = entry.expect("the key was found in the entries");
        if let Some(list) = entry.open {
            return Ok(list);
        }
        let mut object = entry.object;
        if empty.is_shared(object) {
            object = Bpobj::create(&self.mos, crate::directory::LIST_BLOCK, tx).await?;
            empty.give_back(tx).await?;
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

    /// Frees a deadlist with its lists; the blocks in them are not freed. Syncing context.
    pub(crate) async fn destroy(
        mos: &Objset,
        object: ObjectId,
        empty: &EmptyBpobj,
        tx: &Tx,
    ) -> Result<()> {
        let list = Self::open(mos, object).await?;
        let objects: Vec<ObjectId> = list.entries.borrow().values().map(|e| e.object).collect();
        for entry in objects {
            if empty.is_shared(entry) {
                empty.give_back(tx).await?;
            } else {
                Bpobj::destroy(mos, entry, tx).await?;
            }
        }
        mos.free_object(object, tx).await?;
        Ok(())
    }
}
