//! The object set: opening and creating, its header, the table of objects in memory.
//!
//! Idle objects leave the table when it is larger than `DNODES_MAX`; an object with changes, or one that is held, stays.
//! Blocks are not kept here: clean ones live in the cache, changed ones in the layers of their object.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use ondisk::zil::ZilHeader;
use ondisk::{BlockPointer, DnodePhys, ObjectId, ObjectType, ObjsetPhys, ObjsetType, Txg};
use runtime::IoBuf;
use zio::{Bookmark, IoClass};

use crate::blocks::{DnodeCrypts, EarlyWrites, StoredForms};
use crate::counted_objects::Counting;
use crate::dnode::{Base, Core, DNODE_BLOCK, Dnode, NEWEST, OBJECT_MAX, SLOTS};
use crate::error::{DmuError, Result};
use crate::free_slots::Allocator;
use crate::txg::Tx;
use crate::types::{ObjsetOptions, Services, TableShape, WritePolicy};
use crate::wait::Gate;

/// Objects kept in memory per objset before idle ones leave.
const DNODES_MAX: usize = 16 << 10;
/// Idle objects looked at per arrival once the table is full.
const SWEEP: usize = 32;
const _: () = assert!(SWEEP < DNODES_MAX);
/// Levels a dataset's table of dnodes is created with (enough for 2^48 objects).
const META_LEVELS_DATASET: u8 = 6;
/// Bytes of dirty memory charged per changed object.
pub(crate) const DIRTY_DNODE_BYTES: u64 = 1024;

/// The object of the table of dnodes itself, for error reports.
pub(crate) const META_DNODE: ObjectId = ObjectId(0);
/// Usage by user.
pub(crate) const USER_USED: ObjectId = ObjectId(u64::MAX);
/// Usage by group.
pub(crate) const GROUP_USED: ObjectId = ObjectId(u64::MAX - 1);
/// Usage by project.
pub(crate) const PROJECT_USED: ObjectId = ObjectId(u64::MAX - 2);
/// Objects from here on are those of accounting, which streams do not bring.
pub const FIRST_ACCOUNTING: ObjectId = PROJECT_USED;

/// An object set. Clones are handles to the same one; open a root pointer once only.
#[derive(Clone)]
pub struct Objset(pub(crate) Rc<ObjsetShared>);

/// Changes of the header in one transaction group.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HeaderChange {
    pub(crate) flags: Option<u64>,
    pub(crate) zil: Option<ZilHeader>,
    pub(crate) portable_mac: Option<[u8; 32]>,
}

pub(crate) struct ObjsetShared {
    pub(crate) services: Services,
    pub(crate) id: u64,
    pub(crate) kind: ObjsetType,
    pub(crate) options: ObjsetOptions,
    pub(crate) policy: Cell<WritePolicy>,
    /// The table of dnodes, as an object.
    pub(crate) meta: Rc<Dnode>,
    /// The three usage ZAPs, in the order user, group, project.
    pub(crate) usage: [Rc<Dnode>; 3],
    /// Counts of what owners use that are being completed.
    pub(crate) counting: RefCell<Option<Counting>>,
    pub(crate) counting_gate: Gate,
    pub(crate) header: RefCell<Header>,
    pub(crate) root: Cell<BlockPointer>,
    pub(crate) table: RefCell<BTreeMap<ObjectId, Rc<Dnode>>>,
    sweep_at: Cell<ObjectId>,
    /// Objects with changes, per txg.
    pub(crate) dirty: RefCell<BTreeMap<Txg, BTreeMap<ObjectId, Rc<Dnode>>>>,
    pub(crate) allocator: Allocator,
    /// Objects that keep a level-1 block at hand, oldest first.
    pub(crate) recent: RefCell<VecDeque<ObjectId>>,
    /// Groups being synced now; syncs of one objset never overlap.
    pub(crate) syncing: Cell<bool>,
    /// Blocks written to their place before their txg syncs.
    pub(crate) early_writes: RefCell<BTreeMap<Txg, EarlyWrites>>,
    /// Blocks that come compressed.
    pub(crate) stored_forms: RefCell<BTreeMap<Txg, StoredForms>>,
    /// Blocks of txgs that are to be written even where nothing of them changes.
    pub(crate) written_anew: RefCell<BTreeMap<Txg, BTreeSet<(ObjectId, u64)>>>,
    /// Of blocks of dnodes that come encrypted.
    pub(crate) dnode_crypts: RefCell<BTreeMap<Txg, DnodeCrypts>>,
}

/// The header as on disk and its pending changes.
pub(crate) struct Header {
    pub(crate) flags: u64,
    pub(crate) zil: ZilHeader,
    pub(crate) portable_mac: [u8; 32],
    pub(crate) local_mac: [u8; 32],
    pub(crate) pending: BTreeMap<Txg, HeaderChange>,
}

impl std::fmt::Debug for Objset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Objset")
            .field("id", &self.0.id)
            .field("kind", &self.0.kind)
            .finish_non_exhaustive()
    }
}

impl Objset {
    /// Opens the objset whose block `root` points to. Reads that block.
    ///
    /// # Errors
    /// `Read`, `Decode`; `Invalid` when `root` is a hole.
    pub async fn open(
        services: &Services,
        root: BlockPointer,
        options: ObjsetOptions,
    ) -> Result<Self> {
        if root.is_hole() {
            return Err(DmuError::Invalid {
                what: "the root pointer of an object set is a hole",
            });
        }
        let bookmark = Bookmark {
            objset: options.objset_id,
            object: 0,
            level: -1,
            block: 0,
        };
        let bytes = services
            .blocks()
            .read(&root, IoClass::SyncRead, bookmark, options.policy.cache)
            .await
            .map_err(|source| DmuError::Read {
                objset: options.objset_id,
                object: META_DNODE,
                level: 0,
                block: 0,
                source: std::sync::Arc::new(source),
            })?;
        let phys = ObjsetPhys::decode(&bytes).map_err(|source| DmuError::Decode {
            what: "object set",
            source,
        })?;
        let meta = &phys.meta_dnode;
        if meta.object_type != ObjectType::DNODE || meta.data_block_size() != u64::from(DNODE_BLOCK)
        {
            return Err(DmuError::Corrupt {
                objset: options.objset_id,
                object: META_DNODE,
                level: 0,
                block: 0,
                what: "table of dnodes",
            });
        }
        Ok(Self::build(services, root, options, &phys))
    }

    /// Makes an empty objset in memory; it reaches the disk with the sync of `tx`'s txg.
    #[must_use]
    pub fn create(services: &Services, kind: ObjsetType, options: ObjsetOptions, tx: &Tx) -> Self {
        let levels = if kind == ObjsetType::META {
            1
        } else {
            META_LEVELS_DATASET
        };
        let table = TableShape {
            levels,
            ..TableShape::default()
        };
        Self::create_shaped(services, kind, options, table, tx)
    }

    /// As [`Objset::create`], with a table of dnodes of a given shape: that of a raw stream, whose MACs cover it.
    #[must_use]
    pub fn create_shaped(
        services: &Services,
        kind: ObjsetType,
        options: ObjsetOptions,
        table: TableShape,
        tx: &Tx,
    ) -> Self {
        let meta = Base {
            core: Core {
                object_type: ObjectType::DNODE,
                block_size: DNODE_BLOCK,
                pointers: 3,
                indirect_shift: table.indirect_shift,
                checksum: table.checksum,
                compression: table.compression,
                max_block_id: table.max_block_id,
                ..Core::free()
            },
            levels: table.levels,
            ..Base::free()
        };
        let flags = if kind == ObjsetType::ZFS && options.owner_of.is_some() {
            options.create_flags
        } else {
            0
        };
        let phys = ObjsetPhys {
            meta_dnode: meta.to_phys(),
            zil_header: ZilHeader::default(),
            objset_type: kind,
            flags,
            portable_mac: [0; 32],
            local_mac: [0; 32],
            user_used: DnodePhys::default(),
            group_used: DnodePhys::default(),
            project_used: DnodePhys::default(),
        };
        let os = Self::build(services, BlockPointer::HOLE, options, &phys);
        os.mark_dirty(tx);
        os
    }

    fn build(
        services: &Services,
        root: BlockPointer,
        options: ObjsetOptions,
        phys: &ObjsetPhys,
    ) -> Self {
        let special = |id, phys: &DnodePhys| Dnode::new(id, Base::from_phys(phys));
        let meta = special(META_DNODE, &phys.meta_dnode);
        let first_free = meta.base().core.max_block_id + 1;
        Self(Rc::new(ObjsetShared {
            services: services.clone(),
            id: options.objset_id,
            kind: phys.objset_type,
            policy: Cell::new(options.policy),
            options,
            meta,
            usage: [
                special(USER_USED, &phys.user_used),
                special(GROUP_USED, &phys.group_used),
                special(PROJECT_USED, &phys.project_used),
            ],
            counting: RefCell::default(),
            counting_gate: Gate::default(),
            header: RefCell::new(Header {
                flags: phys.flags,
                zil: phys.zil_header,
                portable_mac: phys.portable_mac,
                local_mac: phys.local_mac,
                pending: BTreeMap::new(),
            }),
            root: Cell::new(root),
            table: RefCell::default(),
            sweep_at: Cell::new(ObjectId(0)),
            dirty: RefCell::default(),
            early_writes: RefCell::default(),
            stored_forms: RefCell::default(),
            written_anew: RefCell::default(),
            dnode_crypts: RefCell::default(),
            allocator: Allocator::new(first_free),
            recent: RefCell::default(),
            syncing: Cell::new(false),
        }))
    }

    /// The services it works with.
    #[must_use]
    pub fn services(&self) -> &Services {
        &self.0.services
    }

    /// Number of the dataset object, 0 for the meta-objset.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> ObjsetType {
        self.0.kind
    }

    /// The root pointer as of the last sync; a hole before the first.
    #[must_use]
    pub fn root(&self) -> BlockPointer {
        self.0.root.get()
    }

    /// Whether it refuses changes.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.0.options.read_only
    }

    /// Replaces the write policy, for blocks written from now on.
    pub fn set_policy(&self, policy: WritePolicy) {
        self.0.policy.set(policy);
    }

    /// The write policy.
    #[must_use]
    pub fn policy(&self) -> WritePolicy {
        self.0.policy.get()
    }

    /// `os_flags` (accounting completeness: 1, 2, 4), with pending changes.
    #[must_use]
    pub fn flags(&self) -> u64 {
        let header = self.0.header.borrow();
        header
            .pending
            .values()
            .rev()
            .find_map(|p| p.flags)
            .unwrap_or(header.flags)
    }

    /// Sets `os_flags` in the txg of `tx`.
    pub fn set_flags(&self, flags: u64, tx: &Tx) {
        self.change_header(tx, |change| change.flags = Some(flags));
    }

    /// Sets the portable MAC of an object set that comes encrypted, in the txg of `tx`. With keys it is computed, and this does nothing.
    pub fn set_portable_mac(&self, mac: [u8; 32], tx: &Tx) {
        self.change_header(tx, |change| change.portable_mac = Some(mac));
    }

    /// The intent log's header as last set.
    #[must_use]
    pub fn zil_header(&self) -> ZilHeader {
        let header = self.0.header.borrow();
        header
            .pending
            .values()
            .rev()
            .find_map(|p| p.zil)
            .unwrap_or(header.zil)
    }

    /// Sets the intent log's header in the txg of `tx`.
    pub fn set_zil_header(&self, zil: ZilHeader, tx: &Tx) {
        self.change_header(tx, |change| change.zil = Some(zil));
    }

    /// Drops an intent log header that came with the block but belongs to another objset (a clone begins with its
    /// origin's block). On disk it goes with the next sync that has anything to write.
    pub fn discard_zil_header(&self) {
        self.0.header.borrow_mut().zil = ZilHeader::default();
    }

    /// Makes the sync of `tx`'s txg write the objset block even if no object changed.
    pub fn mark_dirty(&self, tx: &Tx) {
        self.change_header(tx, |_| {});
    }

    /// Changes what the sync of `tx`'s txg writes into the objset block, and makes it write the block.
    fn change_header(&self, tx: &Tx, change: impl FnOnce(&mut HeaderChange)) {
        let mut header = self.0.header.borrow_mut();
        change(header.pending.entry(tx.txg()).or_default());
    }

    /// Whether the sync of `txg` has anything to write.
    #[must_use]
    pub fn is_dirty(&self, txg: Txg) -> bool {
        self.0.dirty.borrow().contains_key(&txg)
            || self.0.header.borrow().pending.contains_key(&txg)
    }

    /// Number of allocated objects as of the last sync.
    #[must_use]
    pub fn object_count(&self) -> u64 {
        self.0.meta.base().fill()
    }

    /// The dnodes that are stored in the objset block itself: the table of dnodes and the usage ZAPs. For checkers.
    #[must_use]
    pub fn inline_dnodes(&self) -> Vec<(ObjectId, DnodePhys)> {
        let mut out = vec![(META_DNODE, self.0.meta.base().to_phys())];
        out.extend(self.0.usage.iter().map(|dn| (dn.id, dn.base().to_phys())));
        out
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.0.options.read_only {
            Err(DmuError::ReadOnly)
        } else {
            Ok(())
        }
    }

    pub(crate) fn corrupt(
        &self,
        object: ObjectId,
        level: u8,
        block: u64,
        what: &'static str,
    ) -> DmuError {
        DmuError::Corrupt {
            objset: self.0.id,
            object,
            level,
            block,
            what,
        }
    }

    pub(crate) async fn read_block(
        &self,
        bp: &BlockPointer,
        object: ObjectId,
        level: u8,
        block: u64,
        class: IoClass,
    ) -> Result<IoBuf> {
        let bookmark = Bookmark {
            objset: self.0.id,
            object: object.0,
            level: i64::from(level),
            block,
        };
        self.0
            .services
            .blocks()
            .read(bp, class, bookmark, self.policy().cache)
            .await
            .map_err(|source| DmuError::Read {
                objset: self.0.id,
                object,
                level,
                block,
                source: std::sync::Arc::new(source),
            })
    }

    /// The object in its newest version.
    pub(crate) async fn dnode(&self, object: ObjectId) -> Result<Rc<Dnode>> {
        let dnode = self.dnode_any(object).await?;
        match dnode {
            Some(dnode) if !dnode.is_free(NEWEST) => Ok(dnode),
            _ => Err(DmuError::NoSuchObject { object }),
        }
    }

    /// The object if it is in memory or on disk, perhaps free in its newest version.
    pub(crate) async fn dnode_any(&self, object: ObjectId) -> Result<Option<Rc<Dnode>>> {
        if let Some(at) = USER_USED.0.checked_sub(object.0)
            && at < 3
        {
            return Ok(Some(Rc::clone(
                &self.0.usage[usize::try_from(at).expect("below 3")],
            )));
        }
        if object.0 == 0 || object.0 > OBJECT_MAX {
            return Err(DmuError::NoSuchObject { object });
        }
        if let Some(dnode) = self.in_memory(object) {
            return Ok(Some(dnode));
        }
        Box::pin(self.load_dnode(object)).await
    }

    async fn load_dnode(&self, object: ObjectId) -> Result<Option<Rc<Dnode>>> {
        loop {
            if let Some(dnode) = self.in_memory(object) {
                return Ok(Some(dnode));
            }
            let block = object.0 / SLOTS;
            let generation = self.0.meta.state.borrow().generation;
            let Some(bytes) = self.base_block(&self.0.meta, block).await? else {
                if self.0.meta.state.borrow().generation == generation
                    && self.in_memory(object).is_none()
                {
                    return Ok(None);
                }
                continue;
            };
            if self.0.meta.state.borrow().generation != generation {
                // A sync put a newer table in place while we read.
                continue;
            }
            if let Some(dnode) = self.in_memory(object) {
                return Ok(Some(dnode));
            }
            let slot = usize::try_from(object.0 % SLOTS).expect("a slot number fits");
            let starts = ondisk::dnode_starts(&bytes);
            if starts & (1 << slot) == 0 {
                return Ok(None);
            }
            let phys =
                DnodePhys::decode(&bytes[slot * 512..]).map_err(|source| DmuError::Decode {
                    what: "dnode",
                    source,
                })?;
            let mut base = Base::from_phys(&phys);
            if self.0.services.is_raw() {
                base.core.encrypted_bonus = base.core.bonus_area(&bytes[slot * 512..]);
            }
            let dnode = Dnode::new(object, base);
            self.insert(Rc::clone(&dnode));
            return Ok(Some(dnode));
        }
    }

    pub(crate) fn in_memory(&self, object: ObjectId) -> Option<Rc<Dnode>> {
        let table = self.0.table.borrow();
        let dnode = table.get(&object)?;
        dnode.touched.set(true);
        Some(Rc::clone(dnode))
    }

    /// Puts an object into the table and lets some idle ones go if it is full.
    pub(crate) fn insert(&self, dnode: Rc<Dnode>) {
        let mut table = self.0.table.borrow_mut();
        table.insert(dnode.id, dnode);
        if table.len() <= DNODES_MAX {
            return;
        }
        let from = self.0.sweep_at.get();
        let mut idle = Vec::new();
        let mut last = ObjectId(0);
        for (&id, dnode) in table.range(from..).take(SWEEP) {
            last = ObjectId(id.0 + 1);
            // Held, changed and recently used objects stay.
            if Rc::strong_count(dnode) == 1 && !dnode.is_dirty() && !dnode.touched.replace(false) {
                idle.push(id);
            }
        }
        self.0.sweep_at.set(last);
        for id in idle {
            table.remove(&id);
        }
    }

    /// Makes (or finds) the layer of `tx`'s txg and registers the object as dirty.
    pub(crate) fn dirty_layer(&self, dnode: &Rc<Dnode>, tx: &Tx) -> usize {
        let (at, is_new) = dnode.state.borrow_mut().layer(tx.txg());
        if is_new {
            self.0
                .dirty
                .borrow_mut()
                .entry(tx.txg())
                .or_default()
                .insert(dnode.id, Rc::clone(dnode));
            tx.add_dirty(DIRTY_DNODE_BYTES);
        }
        at
    }
}
