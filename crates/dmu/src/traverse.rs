//! Visiting every block of an objset, in pre-order: an object's pointers from the top down, objects in order of number.
//!
//! Works on what is on disk (a root pointer), not on changes in memory; for destroying datasets, for checkers and for send.
//! Subtrees born at or before `min_birth` are left out unread.

use std::collections::VecDeque;

use arc::CacheUse;
use ondisk::{BlockPointer, DnodePhys, ObjectId, ObjectType, ObjsetPhys, Txg};
use runtime::IoBuf;
use zio::{Bookmark, IoClass};

use crate::dnode::shl;
use crate::error::{DmuError, Result};
use crate::types::Services;

/// Which blocks to visit.
#[derive(Debug, Clone, Copy, Default)]
pub struct TraverseOptions {
    /// Number of the dataset object, for errors.
    pub objset_id: u64,
    /// Only blocks born after this txg (0: all).
    pub min_birth: Txg,
    /// Visit holes that have a birth too.
    pub holes: bool,
    /// Visit holes without a birth as well: those that were never anything else, and those of pools without `hole_birth`.
    pub unborn_holes: bool,
    /// Visit every dnode, free ones too, before what it points to.
    pub dnodes: bool,
    /// A damaged or unreadable block is reported as an item and passed over, instead of ending the traversal.
    pub skip_errors: bool,
    /// Reads are those of a scan: of low priority, and not remembered as damage when they fail.
    pub background: bool,
    /// Begin at this object and level-0 block: what comes before is neither read nor visited (but for the blocks that
    /// lead there).
    pub resume: Option<(ObjectId, u64)>,
}

/// Objects from here on are the accounting ones, which are visited last.
const ACCOUNTING: u64 = u64::MAX - 2;
/// Bytes of a block of the dnode table (every writer uses this size).
const TABLE_BLOCK: u64 = 16 << 10;
const _: () = assert!(TABLE_BLOCK == crate::dnode::DNODE_BLOCK as u64);
const _: () = assert!(ACCOUNTING > crate::dnode::OBJECT_MAX);

impl TraverseOptions {
    /// Whether a whole subtree lies before the place to begin at.
    fn is_done(&self, object: ObjectId, is_table: bool, shift: u32, level: u8, block: u64) -> bool {
        let Some((resume, first)) = self.resume else {
            return false;
        };
        let shift = shift.saturating_mul(u32::from(level));
        let end = shl(block.saturating_add(1), shift);
        if is_table {
            return resume.0 >= ACCOUNTING || end.saturating_mul(TABLE_BLOCK / 512) <= resume.0;
        }
        object == resume && end <= first
    }

    fn is_object_done(&self, object: ObjectId) -> bool {
        self.resume.is_some_and(|(resume, _)| {
            object.0 != 0 && object < resume && object.0 < ACCOUNTING && resume.0 < ACCOUNTING
        })
    }
}

/// One visited block.
#[derive(Debug, Clone)]
pub struct TraverseItem {
    /// The object; 0 for the table of dnodes and for the objset block.
    pub object: ObjectId,
    /// Level; [`TraverseItem::OBJSET`], [`TraverseItem::SPILL`] and [`TraverseItem::DNODE`] are none.
    pub level: i8,
    /// Number of the block in its level.
    pub block: u64,
    /// The pointer; a hole for a dnode.
    pub bp: BlockPointer,
    /// The dnode, of an item that stands for one.
    pub dnode: Option<Box<DnodePhys>>,
    /// Why what is below could not be visited.
    pub error: Option<DmuError>,
}

impl TraverseItem {
    /// "Level" of the objset block.
    pub const OBJSET: i8 = -1;
    /// "Level" of a spill block.
    pub const SPILL: i8 = -2;
    /// "Level" of a dnode.
    pub const DNODE: i8 = -3;
}

/// A traversal under way. `next` gives the items one by one; memory is bounded by the depth of the trees.
pub struct Traversal {
    services: Services,
    options: TraverseOptions,
    /// What is still to be done, last first.
    stack: Vec<Work>,
    ready: VecDeque<TraverseItem>,
}

enum Work {
    Root(BlockPointer),
    /// A dnode's pointers, and its spill pointer.
    Dnode {
        object: ObjectId,
        dnode: Box<DnodePhys>,
    },
    Block {
        object: ObjectId,
        is_table: bool,
        fan_shift: u32,
        level: u8,
        block: u64,
        bp: BlockPointer,
    },
    /// Pointers of an indirect block from `at` on.
    Children {
        object: ObjectId,
        is_table: bool,
        fan_shift: u32,
        level: u8,
        block: u64,
        bytes: IoBuf,
        at: usize,
    },
    /// Dnodes of a block of the table from slot `at` on.
    Dnodes {
        block: u64,
        bytes: IoBuf,
        at: usize,
    },
    Item(TraverseItem),
}

impl Traversal {
    /// Starts at the objset's block pointer.
    #[must_use]
    pub fn new(services: &Services, root: BlockPointer, options: TraverseOptions) -> Self {
        Self {
            services: services.clone(),
            options,
            stack: vec![Work::Root(root)],
            ready: VecDeque::new(),
        }
    }

    /// Starts at one object's dnode (visits that object only).
    #[must_use]
    pub fn of_object(
        services: &Services,
        object: ObjectId,
        dnode: DnodePhys,
        options: TraverseOptions,
    ) -> Self {
        let work = Work::Dnode {
            object,
            dnode: Box::new(dnode),
        };
        Self {
            services: services.clone(),
            options,
            stack: vec![work],
            ready: VecDeque::new(),
        }
    }

    /// The next block, or `None` at the end.
    ///
    /// # Errors
    /// `Read`, `Decode`, `Corrupt`, unless errors are to be skipped. After an error the traversal goes on behind the damage.
    pub async fn next(&mut self) -> Result<Option<TraverseItem>> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(Some(item));
            }
            let Some(work) = self.stack.pop() else {
                return Ok(None);
            };
            self.step(work).await?;
        }
    }

    fn wanted(&self, bp: &BlockPointer) -> bool {
        if bp.is_hole() {
            let unborn = self.options.unborn_holes && bp.birth() == Txg(0);
            return self.options.holes && (unborn || bp.birth() > self.options.min_birth);
        }
        bp.birth() > self.options.min_birth
    }

    async fn step(&mut self, work: Work) -> Result<()> {
        match work {
            Work::Item(item) => self.ready.push_back(item),
            Work::Root(bp) => self.root(bp).await?,
            Work::Dnode { object, dnode } => self.dnode(object, &dnode),
            Work::Block {
                object,
                is_table,
                fan_shift,
                level,
                block,
                bp,
            } => {
                self.block(object, is_table, fan_shift, level, block, bp)
                    .await?;
            }
            Work::Children {
                object,
                is_table,
                fan_shift,
                level,
                block,
                bytes,
                at,
            } => {
                let Some(raw) = bytes.get(at * BlockPointer::SIZE..(at + 1) * BlockPointer::SIZE)
                else {
                    return Ok(());
                };
                let bp = BlockPointer::decode(raw).expect("128 bytes are a block pointer");
                let child = shl(block, fan_shift).saturating_add(at as u64);
                self.stack.push(Work::Children {
                    object,
                    is_table,
                    fan_shift,
                    level,
                    block,
                    bytes,
                    at: at + 1,
                });
                let done = self
                    .options
                    .is_done(object, is_table, fan_shift, level - 1, child);
                if self.wanted(&bp) && !done {
                    self.stack.push(Work::Block {
                        object,
                        is_table,
                        fan_shift,
                        level: level - 1,
                        block: child,
                        bp,
                    });
                }
            }
            Work::Dnodes { block, bytes, at } => self.dnodes(block, bytes, at)?,
        }
        Ok(())
    }

    /// Visits the dnode in slot `at` of a block of them, and then those behind it.
    fn dnodes(&mut self, block: u64, bytes: IoBuf, at: usize) -> Result<()> {
        if (at + 1) * 512 > bytes.len() {
            return Ok(());
        }
        let slots = bytes.len() / 512;
        let object = ObjectId(block.saturating_mul(slots as u64).saturating_add(at as u64));
        let decoded = DnodePhys::decode(&bytes[at * 512..]);
        let taken = decoded.as_ref().map_or(1, DnodePhys::slots);
        self.stack.push(Work::Dnodes {
            block,
            at: at + taken,
            bytes,
        });
        match decoded {
            Ok(dnode) => {
                let visited = self.options.dnodes || !dnode.is_free();
                if visited && !self.options.is_object_done(object) {
                    self.stack.push(Work::Dnode {
                        object,
                        dnode: Box::new(dnode),
                    });
                }
                Ok(())
            }
            Err(source) => {
                let what = "dnode";
                let error = DmuError::Decode { what, source };
                self.fail(object, 0, 0, BlockPointer::HOLE, error)
            }
        }
    }

    async fn root(&mut self, bp: BlockPointer) -> Result<()> {
        if !self.wanted(&bp) {
            return Ok(());
        }
        let item = TraverseItem {
            object: ObjectId(0),
            level: TraverseItem::OBJSET,
            block: 0,
            bp,
            dnode: None,
            error: None,
        };
        self.ready.push_back(item);
        if bp.is_hole() {
            return Ok(());
        }
        let bytes = match self.read(&bp, ObjectId(0), -1, 0).await {
            Ok(bytes) => bytes,
            Err(error) => return self.fail(ObjectId(0), -1, 0, bp, error),
        };
        match ObjsetPhys::decode(&bytes) {
            Ok(phys) => {
                for (back, dnode) in [phys.project_used, phys.group_used, phys.user_used]
                    .into_iter()
                    .enumerate()
                {
                    if !dnode.is_free() {
                        let object = ObjectId(u64::MAX - 2 + back as u64);
                        self.stack.push(Work::Dnode {
                            object,
                            dnode: Box::new(dnode),
                        });
                    }
                }
                self.stack.push(Work::Dnode {
                    object: ObjectId(0),
                    dnode: Box::new(phys.meta_dnode),
                });
                Ok(())
            }
            Err(source) => self.fail(
                ObjectId(0),
                -1,
                0,
                bp,
                DmuError::Decode {
                    what: "object set",
                    source,
                },
            ),
        }
    }

    fn dnode(&mut self, object: ObjectId, dnode: &DnodePhys) {
        if self.options.dnodes {
            self.ready.push_back(TraverseItem {
                object,
                level: TraverseItem::DNODE,
                block: 0,
                bp: BlockPointer::HOLE,
                dnode: Some(Box::new(dnode.clone())),
                error: None,
            });
        }
        if let Some(bp) = dnode.spill
            && self.wanted(&bp)
        {
            self.stack.push(Work::Item(TraverseItem {
                object,
                level: TraverseItem::SPILL,
                block: 0,
                bp,
                dnode: None,
                error: None,
            }));
        }
        let is_table = object.0 == 0 && dnode.object_type == ObjectType::DNODE;
        let (fan_shift, level) = (dnode.pointers_shift(), dnode.levels.saturating_sub(1));
        for (i, bp) in dnode.block_pointers.iter().enumerate().rev() {
            let done = self
                .options
                .is_done(object, is_table, fan_shift, level, i as u64);
            if self.wanted(bp) && !done {
                self.stack.push(Work::Block {
                    object,
                    is_table,
                    fan_shift,
                    level,
                    block: i as u64,
                    bp: *bp,
                });
            }
        }
    }

    async fn block(
        &mut self,
        object: ObjectId,
        is_table: bool,
        fan_shift: u32,
        level: u8,
        block: u64,
        bp: BlockPointer,
    ) -> Result<()> {
        let shown = i8::try_from(level).unwrap_or(i8::MAX);
        self.ready.push_back(TraverseItem {
            object,
            level: shown,
            block,
            bp,
            dnode: None,
            error: None,
        });
        if bp.is_hole() || (level == 0 && !is_table) {
            return Ok(());
        }
        let bytes = match self.read(&bp, object, i64::from(level), block).await {
            Ok(bytes) => bytes,
            Err(error) => return self.fail(object, shown, block, bp, error),
        };
        if level > 0 {
            self.stack.push(Work::Children {
                object,
                is_table,
                fan_shift,
                level,
                block,
                bytes,
                at: 0,
            });
        } else {
            self.stack.push(Work::Dnodes {
                block,
                bytes,
                at: 0,
            });
        }
        Ok(())
    }

    fn fail(
        &mut self,
        object: ObjectId,
        level: i8,
        block: u64,
        bp: BlockPointer,
        error: DmuError,
    ) -> Result<()> {
        if !self.options.skip_errors {
            return Err(error);
        }
        self.ready.push_back(TraverseItem {
            object,
            level,
            block,
            bp,
            dnode: None,
            error: Some(error),
        });
        Ok(())
    }

    async fn read(
        &self,
        bp: &BlockPointer,
        object: ObjectId,
        level: i64,
        block: u64,
    ) -> Result<IoBuf> {
        let objset = self.options.objset_id;
        let bookmark = Bookmark {
            objset,
            object: object.0,
            level,
            block,
        };
        let class = if self.options.background {
            IoClass::Scrub
        } else {
            IoClass::SyncRead
        };
        self.services
            .blocks()
            .read(bp, class, bookmark, CacheUse::default())
            .await
            .map_err(|source| DmuError::Read {
                objset,
                object,
                level: u8::try_from(level).unwrap_or(0),
                block,
                source: std::sync::Arc::new(source),
            })
    }
}
