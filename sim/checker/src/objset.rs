//! Walking one objset: every dnode, every pointer below it, with fill counts, sizes, births and used space.

use std::collections::BTreeMap;
use std::rc::Rc;

use ondisk::{BlockPointer, DnodePhys, ObjectType, ObjsetPhys, bytes};

use super::blocks::{Bookmark, Checker};
use super::report::Kind;

/// What one pointer adds to its dataset's accounting.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockRef {
    pub(super) bp: BlockPointer,
    pub(super) dsize: u64,
}

/// What a pointer says of a block: vdev, offset and logical birth.
pub(super) type Place = (u32, u64, u64);

impl BlockRef {
    pub(super) fn comp(&self) -> u64 {
        self.bp.accounted_compressed()
    }

    pub(super) fn uncomp(&self) -> u64 {
        self.bp.accounted_uncompressed()
    }

    /// Identity across datasets; `None` for blocks inside their pointer.
    pub(super) fn place(&self) -> Option<Place> {
        if self.bp.is_embedded() {
            return None;
        }
        let dva = self.bp.dvas()[0];
        Some((dva.vdev, dva.offset, self.bp.birth().0))
    }
}

/// Everything found in one objset.
pub(super) struct Tree {
    /// The dataset's object number; 0 for the meta object set.
    pub(super) id: u64,
    pub(super) phys: ObjsetPhys,
    pub(super) objects: BTreeMap<u64, DnodePhys>,
    /// Every pointer that is not a hole, the objset's own first.
    pub(super) refs: Vec<BlockRef>,
    /// Data block pointers of metadata objects.
    pub(super) data: BTreeMap<u64, BTreeMap<u64, BlockPointer>>,
    /// Largest data block of objects of other types that is not a hole.
    pub(super) last_block: BTreeMap<u64, u64>,
}

/// State of the walk of one object.
struct Walk<'t> {
    objset: u64,
    object: u64,
    dnode: &'t DnodePhys,
    refs: &'t mut Vec<BlockRef>,
    data: Vec<(u64, BlockPointer)>,
    used: u64,
    last_block: Option<u64>,
    /// Dnodes found in data blocks of the meta dnode.
    dnodes: Vec<(u64, DnodePhys)>,
}

/// Objects whose numbers are negative: the accounting objects.
pub(super) const USER_USED: u64 = u64::MAX;
pub(super) const GROUP_USED: u64 = u64::MAX - 1;
pub(super) const PROJECT_USED: u64 = u64::MAX - 2;

impl Checker<'_> {
    /// Walks the objset behind `root`; `None` when its block cannot be read.
    pub(super) fn walk_objset(&mut self, root: &BlockPointer, id: u64) -> Option<Tree> {
        let at = Bookmark {
            objset: id,
            object: 0,
            level: 0,
            block: 0,
        };
        if root.object_type() != ObjectType::OBJSET || root.level() != 0 {
            self.report.error(
                Kind::BlockPointer,
                format!("{at}: not a pointer to an objset: {root}"),
            );
            return None;
        }
        let block = self.load(root, at)?;
        let phys = match ObjsetPhys::decode(&block) {
            Ok(phys) => phys,
            Err(e) => {
                self.report.error(Kind::Objset, format!("{at}: {e}"));
                return None;
            }
        };
        let mut tree = Tree {
            id,
            phys: phys.clone(),
            objects: BTreeMap::new(),
            refs: vec![BlockRef {
                bp: *root,
                dsize: self.dsize(root),
            }],
            data: BTreeMap::new(),
            last_block: BTreeMap::new(),
        };
        let (found, fill) = self.walk_object(&mut tree, 0, &phys.meta_dnode, true);
        if fill != root.fill() {
            self.report.error(
                Kind::Fill,
                format!(
                    "{at}: objset fill is {}, it has {fill} objects",
                    root.fill()
                ),
            );
        }
        for (object, dnode) in found {
            self.walk_object(&mut tree, object, &dnode, false);
            tree.objects.insert(object, dnode);
        }
        for (object, dnode) in [
            (USER_USED, &phys.user_used),
            (GROUP_USED, &phys.group_used),
            (PROJECT_USED, &phys.project_used),
        ] {
            if !dnode.is_free() {
                self.walk_object(&mut tree, object, dnode, false);
            }
        }
        self.report.objects += tree.objects.len() as u64;
        Some(tree)
    }

    /// Walks one object's blocks; returns the dnodes in it (of the meta dnode) and the total fill.
    fn walk_object(
        &mut self,
        tree: &mut Tree,
        object: u64,
        dnode: &DnodePhys,
        is_meta: bool,
    ) -> (Vec<(u64, DnodePhys)>, u64) {
        let at = Bookmark {
            objset: tree.id,
            object,
            level: 0,
            block: 0,
        };
        let mut walk = Walk {
            objset: tree.id,
            object,
            dnode,
            refs: &mut tree.refs,
            data: Vec::new(),
            used: 0,
            last_block: None,
            dnodes: Vec::new(),
        };
        let mut fill = 0;
        for (i, bp) in (0..).zip(&dnode.block_pointers) {
            fill += self.walk_pointer(&mut walk, bp, dnode.levels - 1, i, self.txg, is_meta);
        }
        if let Some(spill) = &dnode.spill {
            self.walk_spill(&mut walk, spill);
        }
        if dnode.used_bytes() != walk.used {
            self.report.error(
                Kind::Dnode,
                format!(
                    "{at}: dnode says {} bytes are used, its blocks take {}",
                    dnode.used_bytes(),
                    walk.used
                ),
            );
        }
        if walk
            .last_block
            .is_some_and(|last| last > dnode.max_block_id)
        {
            self.report.error(
                Kind::Dnode,
                format!(
                    "{at}: block {:?} is beyond the last block {}",
                    walk.last_block, dnode.max_block_id
                ),
            );
        }
        if dnode.addressable_blocks() <= dnode.max_block_id {
            self.report.error(
                Kind::Dnode,
                format!(
                    "{at}: {} levels cannot address block {}",
                    dnode.levels, dnode.max_block_id
                ),
            );
        }
        let Walk {
            data,
            dnodes,
            last_block,
            ..
        } = walk;
        if dnode.object_type.is_metadata() && !is_meta {
            tree.data.insert(object, data.into_iter().collect());
        } else if let Some(last) = last_block {
            tree.last_block.insert(object, last);
        }
        (dnodes, fill)
    }

    /// Walks one pointer of an object and what is below; returns its fill.
    fn walk_pointer(
        &mut self,
        walk: &mut Walk<'_>,
        bp: &BlockPointer,
        level: u8,
        block: u64,
        youngest: u64,
        is_meta: bool,
    ) -> u64 {
        let at = Bookmark {
            objset: walk.objset,
            object: walk.object,
            level,
            block,
        };
        if bp.birth().0 > youngest {
            let text = format!(
                "{at}: born in txg {}, what points to it in {youngest}: {bp}",
                bp.birth()
            );
            self.report.error(Kind::BlockPointer, text);
        }
        if bp.is_hole() {
            return 0;
        }
        if !self.pointer_is_sane(bp, at) {
            return bp.fill();
        }
        let size = if level == 0 {
            walk.dnode.data_block_size()
        } else {
            walk.dnode.indirect_block_size()
        };
        if bp.level() != level || bp.object_type() != walk.dnode.object_type || bp.lsize() != size {
            let text =
                format!("{at}: level, type or size is not the object's ({size} bytes): {bp}");
            self.report.error(Kind::BlockPointer, text);
        }
        let dsize = self.dsize(bp);
        walk.used += dsize;
        walk.refs.push(BlockRef { bp: *bp, dsize });
        if level == 0 {
            walk.last_block = walk.last_block.max(Some(block));
            let fill = self.walk_data(walk, bp, at, is_meta);
            if fill != bp.fill() {
                self.report.error(
                    Kind::Fill,
                    format!("{at}: fill is {}, should be {fill}", bp.fill()),
                );
            }
            return fill;
        }
        let Some(data) = self.load(bp, at) else {
            return bp.fill();
        };
        let children: Vec<BlockPointer> = BlockPointer::decode_all(&data).collect();
        let shift = walk.dnode.pointers_shift();
        let mut fill = 0;
        for (i, child) in (0u64..).zip(&children) {
            if !child.is_zero() {
                let number = block.checked_shl(shift).unwrap_or(0) | i;
                fill += self.walk_pointer(walk, child, level - 1, number, bp.birth().0, is_meta);
            }
        }
        if fill != bp.fill() {
            self.report.error(
                Kind::Fill,
                format!("{at}: fill is {}, its children have {fill}", bp.fill()),
            );
        }
        fill
    }

    /// Verifies a data block; returns what its fill must be.
    fn walk_data(
        &mut self,
        walk: &mut Walk<'_>,
        bp: &BlockPointer,
        at: Bookmark,
        is_meta: bool,
    ) -> u64 {
        if is_meta {
            let Some(data) = self.load(bp, at) else {
                return bp.fill();
            };
            return self.collect_dnodes(walk, &data, at);
        }
        if walk.dnode.object_type.is_metadata() {
            walk.data.push((at.block, *bp));
            self.load(bp, at);
        } else {
            self.verify(bp, at);
        }
        1
    }

    fn collect_dnodes(&mut self, walk: &mut Walk<'_>, data: &[u8], at: Bookmark) -> u64 {
        let slots = data.len() / ondisk::DNODE_MIN_SIZE;
        let mut slot = 0;
        let mut found = 0;
        while slot < slots {
            let rest = data
                .get(slot * ondisk::DNODE_MIN_SIZE..)
                .unwrap_or_default();
            let object = at.block * slots as u64 + slot as u64;
            slot += 1;
            match DnodePhys::decode(rest) {
                Ok(dnode) if dnode.is_free() => {
                    if !bytes::is_zero(bytes::slice_at(rest, 0, ondisk::DNODE_MIN_SIZE)) {
                        let text = format!(
                            "objset {} object {object}: a free slot is not zero",
                            walk.objset
                        );
                        self.report.error(Kind::Dnode, text);
                    }
                }
                Ok(dnode) => {
                    slot += dnode.slots() - 1;
                    found += 1;
                    if object == 0 {
                        self.report.error(
                            Kind::Dnode,
                            format!("objset {}: object 0 is used", walk.objset),
                        );
                    }
                    walk.dnodes.push((object, dnode));
                }
                Err(e) => {
                    found += 1;
                    self.report.error(
                        Kind::Dnode,
                        format!("objset {} object {object}: {e}", walk.objset),
                    );
                }
            }
        }
        found
    }

    fn walk_spill(&mut self, walk: &mut Walk<'_>, bp: &BlockPointer) {
        let at = Bookmark {
            objset: walk.objset,
            object: walk.object,
            level: 0,
            block: u64::MAX,
        };
        if bp.is_hole() {
            self.report
                .error(Kind::Dnode, format!("{at}: the spill pointer is a hole"));
            return;
        }
        if !self.pointer_is_sane(bp, at) {
            return;
        }
        if bp.level() != 0 || bp.object_type() != walk.dnode.bonus_type {
            self.report.error(
                Kind::BlockPointer,
                format!("{at}: not a spill pointer: {bp}"),
            );
        }
        let dsize = self.dsize(bp);
        walk.used += dsize;
        walk.refs.push(BlockRef { bp: *bp, dsize });
        self.load(bp, at);
    }

    /// Checks a pointer against the format and the vdev tree.
    pub(super) fn pointer_is_sane(&mut self, bp: &BlockPointer, at: Bookmark) -> bool {
        let fault = match bp.check() {
            Err(e) => Some(e.to_string()),
            Ok(()) if !bp.is_little_endian() => Some("big-endian block".to_owned()),
            Ok(()) => bp.copies().find_map(|dva| match self.tops.get(&dva.vdev) {
                None => Some(format!("vdev {} does not exist", dva.vdev)),
                Some(top) => {
                    let want = if dva.gang {
                        dva.asize
                    } else {
                        top.asize_of(bp.psize(), bp.physical_birth().0)
                    };
                    let end = dva
                        .offset
                        .checked_add(dva.asize)
                        .filter(|e| top.asize == 0 || *e <= top.asize);
                    if dva.offset & ((1 << top.ashift) - 1) != 0 || end.is_none() {
                        Some(format!("impossible offset {:#x}", dva.offset))
                    } else if dva.asize != want {
                        Some(format!("allocated size {} is not {want}", dva.asize))
                    } else {
                        None
                    }
                }
            }),
        };
        match fault {
            Some(fault) => {
                self.report
                    .error(Kind::BlockPointer, format!("{at}: {fault}: {bp}"));
                false
            }
            None => true,
        }
    }

    /// The data blocks of a metadata object.
    pub(super) fn object_blocks(&mut self, tree: &Tree, object: u64) -> BTreeMap<u64, Rc<Vec<u8>>> {
        let mut out = BTreeMap::new();
        for (block, bp) in tree.data.get(&object).into_iter().flatten() {
            let at = Bookmark {
                objset: tree.id,
                object,
                level: 0,
                block: *block,
            };
            if let Some(data) = self.load(bp, at) {
                out.insert(*block, data);
            }
        }
        out
    }

    /// The first `len` bytes of a metadata object, holes as zeros; limited to what its blocks can hold.
    pub(super) fn object_bytes(&mut self, tree: &Tree, object: u64, len: u64) -> Vec<u8> {
        let Some(dnode) = tree.objects.get(&object) else {
            return Vec::new();
        };
        let size = dnode.data_block_size();
        let blocks = self.object_blocks(tree, object);
        // Bounded by what is stored plus one block, so that a hostile length allocates nothing.
        let stored = blocks
            .keys()
            .next_back()
            .map_or(0, |last| (last + 1) * size)
            .max(size);
        let mut out = vec![0; bytes::index(len.min(stored))];
        for (block, data) in blocks {
            let start = bytes::index(block * size);
            if let Some(room) = out.get_mut(start..) {
                let n = room.len().min(data.len());
                room[..n].copy_from_slice(&data[..n]);
            }
        }
        out
    }
}
