//! Writing one transaction group of an objset: objects, then usage, then the table of dnodes, then the objset block.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use ondisk::{
    BlockPointer, Compression, OBJSET_SIZE_WITHOUT_ACCOUNTING, ObjectId, ObjectType, ObjsetPhys,
    Txg, dnode_flags,
};
use range_tree::RangeTree;
use runtime::{IoBuf, JoinHandle};

use crate::dnode::{Base, DNODE_BLOCK, Dnode, Frozen, SLOTS};
use crate::error::{DmuError, Result};
use crate::objset::{DIRTY_DNODE_BYTES, HeaderChange, META_DNODE, Objset};
use crate::stored_form::SPILL_BLOCK;
use crate::tree::{BlockWrite, DnodePatch, Effects, Leaf, SyncContext, Tree};
use crate::types::Ledger;
use crate::usage::UsageDelta;
use crate::wait::Limit;

/// Objects under way at once.
const WINDOW_OBJECTS: usize = 64;
/// Writes under way at once per objset.
const WRITES_MAX: usize = 128;
const _: () = assert!(WINDOW_OBJECTS > 0 && WRITES_MAX > 0);
const _: () = assert!(
    crate::dnode::OBJECT_MAX < u64::MAX - 3,
    "usage is no ordinary object"
);

/// An object whose new dnode must go into the table.
struct Synced {
    dnode: Rc<Dnode>,
    old_slots: usize,
}

impl Objset {
    /// Writes everything changed in `txg`, bottom-up, and returns the new root pointer; births and frees (of the objset block
    /// too) go to the ledger. May be called again in the same txg after further changes in syncing context: blocks born in
    /// `txg` are then rewritten in place where their size allows. Without changes it returns the old root.
    ///
    /// The blocks are durable once the store has settled and the devices were flushed. One sync of an objset at a time.
    ///
    /// # Errors
    /// Read and write errors. After an error the objset must not be used any more: the txg cannot be completed.
    ///
    /// # Panics
    /// When a sync of this objset is under way.
    pub async fn sync(&self, txg: Txg, pass: u32, ledger: &mut dyn Ledger) -> Result<BlockPointer> {
        if !self.is_dirty(txg) {
            return Ok(self.0.root.get());
        }
        self.check_writable()?;
        assert!(pass > 0, "passes count from one");
        assert!(
            !self.0.syncing.replace(true),
            "one sync of an object set at a time"
        );
        let context = Rc::new(SyncContext {
            services: self.0.services.clone(),
            objset: self.0.id,
            txg,
            pass,
            policy: self.0.policy.get(),
            effects: Effects::default(),
            limit: Limit::new(WRITES_MAX),
            early_writes: RefCell::new(
                self.0
                    .early_writes
                    .borrow_mut()
                    .remove(&txg)
                    .unwrap_or_default(),
            ),
            stored_forms: RefCell::new(
                self.0
                    .stored_forms
                    .borrow_mut()
                    .remove(&txg)
                    .unwrap_or_default(),
            ),
            written_anew: RefCell::new(
                self.0
                    .written_anew
                    .borrow_mut()
                    .remove(&txg)
                    .unwrap_or_default(),
            ),
            dnode_crypts: RefCell::new(
                self.0
                    .dnode_crypts
                    .borrow_mut()
                    .remove(&txg)
                    .unwrap_or_default(),
            ),
            overwritten: RefCell::default(),
        });
        let work = self.sync_all(Rc::clone(&context));
        let result = context.effects.draining(ledger, work).await;
        assert!(
            self.0.syncing.replace(false),
            "the sync of an object set ends once"
        );
        result
    }

    async fn sync_all(&self, context: Rc<SyncContext>) -> Result<BlockPointer> {
        let txg = context.txg;
        let header = self
            .0
            .header
            .borrow_mut()
            .pending
            .remove(&txg)
            .unwrap_or_default();
        let os_flags = header.flags.unwrap_or(self.0.header.borrow().flags);
        let usage = Rc::new(UsageDelta::new(self, os_flags, txg, context.pass));
        let dirty = self.0.dirty.borrow_mut().remove(&txg).unwrap_or_default();
        let (special, ordinary): (Vec<_>, Vec<_>) =
            dirty.into_values().partition(|d| is_special(d.id));

        let mut synced = self.sync_objects(&context, ordinary, &usage).await?;
        usage.store(self, txg).await?;
        let more = self.0.dirty.borrow_mut().remove(&txg).unwrap_or_default();
        let mut all_special: BTreeMap<ObjectId, Rc<Dnode>> =
            special.into_iter().map(|d| (d.id, d)).collect();
        all_special.extend(more);
        let nobody = Rc::new(UsageDelta::none(txg));
        self.sync_objects(&context, all_special.into_values().collect(), &nobody)
            .await?;

        context.free_unused_early_writes();
        let meta = self.sync_meta(&context, &mut synced).await?;
        let root = self.write_root(&context, header, &meta).await?;
        // From here on the new version is the one on disk. The synced dnodes were held until now, so that none could be read
        // again from the old table.
        {
            let mut state = self.0.meta.state.borrow_mut();
            state.base = Rc::new(meta);
            state.generation += 1;
            state.recent_l1 = None;
        }
        self.0.root.set(root);
        // Until now a reader of the old tree may have needed them; the devices no longer have them.
        for bp in context.overwritten.take() {
            self.0.services.blocks().forget(&bp);
        }
        self.0
            .services
            .clock
            .sub_dirty(txg, DIRTY_DNODE_BYTES * synced.len() as u64);
        let mut table = self.0.table.borrow_mut();
        for Synced { dnode, .. } in synced {
            let freed = dnode.base().core.is_free();
            if freed {
                self.0.allocator.note_freed(dnode.id);
            }
            let gone = freed && !dnode.is_dirty();
            // Two holders: the table and this list.
            if gone && Rc::strong_count(&dnode) == 2 {
                table.remove(&dnode.id);
            }
        }
        Ok(root)
    }

    async fn sync_objects(
        &self,
        context: &Rc<SyncContext>,
        dnodes: Vec<Rc<Dnode>>,
        usage: &Rc<UsageDelta>,
    ) -> Result<Vec<Synced>> {
        let mut synced = Vec::with_capacity(dnodes.len());
        let mut under_way: VecDeque<JoinHandle<Result<()>>> = VecDeque::new();
        let mut outcome = Ok(());
        for dnode in dnodes {
            let Some(frozen) = dnode.freeze(context.txg) else {
                continue;
            };
            let base = dnode.base();
            synced.push(Synced {
                old_slots: if base.core.is_free() {
                    0
                } else {
                    usize::from(base.core.slots())
                },
                dnode: Rc::clone(&dnode),
            });
            let work = sync_object(
                self.clone(),
                Rc::clone(context),
                dnode,
                frozen,
                Rc::clone(usage),
            );
            under_way.push_back(context.services.handle.spawn("sync of an object", work));
            if under_way.len() >= WINDOW_OBJECTS
                && let Some(first) = under_way.pop_front()
            {
                outcome = outcome.and(first.await);
                if outcome.is_err() {
                    break;
                }
            }
        }
        // Nothing may still be writing when a failure is reported.
        for task in under_way {
            let result = task.await;
            outcome = outcome.and(result);
        }
        outcome.map(|()| synced)
    }

    /// Writes the table of dnodes with the synced ones in it; returns its new dnode.
    async fn sync_meta(&self, context: &Rc<SyncContext>, synced: &mut [Synced]) -> Result<Base> {
        let old = self.0.meta.base();
        let mut dirty: BTreeMap<u64, Leaf> = BTreeMap::new();
        for Synced { dnode, old_slots } in synced.iter() {
            let patch = DnodePatch {
                dnode: Rc::clone(dnode),
                old_slots: *old_slots,
            };
            match dirty
                .entry(dnode.id.0 / SLOTS)
                .or_insert_with(|| Leaf::Dnodes(Vec::new()))
            {
                Leaf::Dnodes(patches) => patches.push(patch),
                Leaf::Data(_) | Leaf::Clone(_) => unreachable!("the table has only dnodes"),
            }
        }
        let mut new = Base::clone(&old);
        let Some((&last, _)) = dirty.last_key_value() else {
            return Ok(new);
        };
        new.core.max_block_id = new.core.max_block_id.max(last);
        let tree = Rc::new(Tree {
            context: Rc::clone(context),
            object: META_DNODE,
            object_type: ObjectType::DNODE,
            compression: Compression::INHERIT,
            compressibility: None,
            block_size: u64::from(DNODE_BLOCK),
            indirect_shift: old.core.indirect_shift,
            levels_old: old.levels,
            levels_min: 1,
            bps_old: old.bps,
            pointers: old.core.pointers,
            dirty: RefCell::new(dirty),
            freed: RangeTree::default(),
            used: Cell::new(0),
        });
        new.levels = tree.levels_for(new.core.max_block_id);
        assert!(
            new.levels >= old.levels,
            "the table of dnodes does not lose levels"
        );
        new.bps = tree.write(new.levels).await?;
        note_used(&mut new, tree.used.get(), context);
        Ok(new)
    }

    async fn write_root(
        &self,
        context: &Rc<SyncContext>,
        change: HeaderChange,
        meta: &Base,
    ) -> Result<BlockPointer> {
        let phys = {
            let mut header = self.0.header.borrow_mut();
            if let Some(flags) = change.flags {
                header.flags = flags;
            }
            if let Some(zil) = change.zil {
                header.zil = zil;
            }
            if let Some(mac) = change.portable_mac {
                header.portable_mac = mac;
                // What is counted by owner is not complete in what was received.
                header.local_mac = [0; 32];
            }
            let [user, group, project] = &self.0.usage;
            ObjsetPhys {
                meta_dnode: meta.to_phys(),
                zil_header: header.zil,
                objset_type: self.0.kind,
                flags: header.flags,
                portable_mac: header.portable_mac,
                local_mac: header.local_mac,
                user_used: user.base().to_phys(),
                group_used: group.base().to_phys(),
                project_used: project.base().to_phys(),
            }
        };
        let what = BlockWrite {
            object: META_DNODE,
            object_type: ObjectType::OBJSET,
            level: 0,
            block: 0,
            fill: meta.fill(),
            is_spill: false,
            compression: Compression::INHERIT,
        };
        let mut block = phys.encode();
        if !self.policy().accounting_room {
            block.truncate(OBJSET_SIZE_WITHOUT_ACCOUNTING);
        }
        if let Some(keys) = context.services.keys() {
            keys.authenticate_objset(&mut block);
        }
        let (root, _) = context
            .write(IoBuf::copy_from(&block), &what, &self.0.root.get(), None)
            .await?;
        if root.is_hole() {
            return Err(DmuError::Invalid {
                what: "an object set block cannot be a hole",
            });
        }
        assert!(
            root.birth() == context.txg,
            "the root of an object set is written in its txg"
        );
        Ok(root)
    }
}

fn is_special(object: ObjectId) -> bool {
    object.0 > u64::MAX - 3
}

fn apply(used: u64, delta: i64) -> u64 {
    // Saturating: a wrong number found on disk must not stop the pool.
    used.saturating_add_signed(delta)
}

/// Writes one object's changes and puts its new version in place.
async fn sync_object(
    os: Objset,
    context: Rc<SyncContext>,
    dnode: Rc<Dnode>,
    frozen: Frozen,
    usage: Rc<UsageDelta>,
) -> Result<()> {
    let old = dnode.base();
    let mut new = Base::clone(&old);
    let made = frozen.reset || old.core.is_free();
    if made || frozen.core.is_free() {
        if !old.core.is_free() {
            let tree = tree_of(
                &context,
                &dnode,
                &old,
                BTreeMap::new(),
                RangeTree::default(),
            );
            tree.free_all().await?;
            if old.core.has_spill && !old.spill.is_hole() {
                context.free_block(&old.spill);
            }
        }
        new = Base::free();
    }
    new.core = frozen.core;
    if new.core.is_free() {
        new = Base::free();
    } else {
        let grows = new.levels < new.core.levels_min;
        let has_blocks = !frozen.blocks.is_empty() || !frozen.clones.is_empty();
        if has_blocks || !frozen.freed.is_empty() || grows {
            let written = frozen.blocks.into_iter();
            let written = written.map(|(id, data)| (id, Leaf::Data(data)));
            let cloned = frozen.clones.into_iter();
            let cloned = cloned.map(|(id, clone)| (id, Leaf::Clone(clone)));
            let dirty = written.chain(cloned).collect();
            let tree = tree_of(&context, &dnode, &new, dirty, frozen.freed);
            new.levels = tree.levels_for(new.core.max_block_id);
            new.bps = tree.write(new.levels).await?;
            note_used(&mut new, tree.used.get(), &context);
        }
        if let Some(spill) = frozen.spill {
            sync_spill(&context, dnode.id, spill, &mut new).await?;
        }
        if !new.core.has_spill {
            new.spill = BlockPointer::HOLE;
        }
    }
    usage.note(&os, dnode.id, made, &old, &mut new);
    dnode.settle(context.txg, new);
    Ok(())
}

/// Writes an object's changed spill block, or frees the one that it has no more.
async fn sync_spill(
    context: &SyncContext,
    object: ObjectId,
    spill: Option<IoBuf>,
    new: &mut Base,
) -> Result<()> {
    let used = match spill {
        Some(data) => {
            let what = BlockWrite {
                object,
                object_type: new.core.bonus_type,
                level: 0,
                block: SPILL_BLOCK,
                fill: 1,
                is_spill: true,
                compression: Compression::INHERIT,
            };
            let len = data.len() as u64;
            let (bp, used) = context.write(data, &what, &new.spill, None).await?;
            context.services.clock.sub_dirty(context.txg, len);
            new.spill = bp;
            used
        }
        None if new.spill.is_hole() => return Ok(()),
        None => {
            context.free_block(&new.spill);
            let used = -context.signed_dsize(&new.spill);
            new.spill = BlockPointer::HOLE;
            used
        }
    };
    note_used(new, used, context);
    Ok(())
}

fn note_used(base: &mut Base, delta: i64, context: &SyncContext) {
    base.used = apply(base.used, delta);
    if context.policy.counts_bytes {
        base.flags |= dnode_flags::USED_BYTES;
    }
}

fn tree_of(
    context: &Rc<SyncContext>,
    dnode: &Rc<Dnode>,
    base: &Base,
    dirty: BTreeMap<u64, Leaf>,
    freed: RangeTree,
) -> Rc<Tree> {
    let is_data = !base.core.object_type.is_metadata();
    Rc::new(Tree {
        context: Rc::clone(context),
        object: dnode.id,
        object_type: base.core.object_type,
        compression: base.core.compression,
        compressibility: is_data.then(|| Rc::clone(&dnode.compressibility)),
        block_size: u64::from(base.core.block_size),
        indirect_shift: base.core.indirect_shift,
        levels_old: base.levels,
        levels_min: base.core.levels_min,
        bps_old: base.bps,
        pointers: base.core.pointers,
        dirty: RefCell::new(dirty),
        freed,
        used: Cell::new(0),
    })
}
