//! Changes a block of a pool and computes every checksum above it anew, up to the uberblock: what results is wrong in exactly one
//! place, as a bug in a writer would leave it.
//!
//! Knows pools of disks and mirrors, also removed ones, whose blocks are little-endian and not encrypted.

use std::path::{Path, PathBuf};
use std::process::Command;

use codec::{checksum, compress};
use ondisk::bytes::u64_at;
use ondisk::{
    BlockPointer, ChecksumKind, Compression, DnodePhys, Dva, NvList, ObjectType, Uberblock, bytes,
    label,
};
use tempfile::TempDir;

/// What is done to a block's logical bytes.
pub(crate) type Change<'c> = &'c mut dyn FnMut(&mut Surgeon, &mut Vec<u8>);

/// A pool in memory.
pub(crate) struct Surgeon {
    pub(crate) name: String,
    pub(crate) disks: Vec<Vec<u8>>,
    /// Which top-level vdev each disk is of, by its label.
    tops: Vec<Option<u64>>,
    /// Where the blocks of a removed vdev are.
    moved: Vec<Moved>,
    ashift: u64,
    ub: Uberblock,
}

/// An entry of the table of a removed vdev.
#[derive(Clone, Copy, Debug)]
struct Moved {
    removed: u64,
    from: u64,
    len: u64,
    vdev: u64,
    offset: u64,
}

impl Surgeon {
    /// Unpacks a golden pool of the repository.
    pub(crate) fn unpack(name: &str) -> Self {
        let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
        let archive = archive.join(format!("{name}.tar.zst"));
        let dir = TempDir::new().expect("a directory for the images");
        let status = Command::new("tar")
            .args(["--sparse", "--zstd", "-xf"])
            .arg(&archive)
            .arg("-C")
            .arg(dir.path())
            .status()
            .expect("tar runs");
        assert!(
            status.success(),
            "tar could not unpack {}",
            archive.display()
        );
        // Disks that are missing on purpose leave gaps in the numbers.
        let disks = (0..16)
            .filter_map(|i| std::fs::read(dir.path().join(format!("d{i}.img"))).ok())
            .collect();
        Self::open(name, disks)
    }

    fn open(name: &str, disks: Vec<Vec<u8>>) -> Self {
        let at = usize::try_from(label::NVLIST.0).unwrap();
        let tops = disks.iter().map(|disk| {
            let config = NvList::decode(&disk[at..]).ok()?;
            config.list("vdev_tree")?.u64("id")
        });
        let tops = tops.collect();
        let config = NvList::decode(&disks[0][at..]).expect("label 0 decodes");
        let ashift = config
            .list("vdev_tree")
            .and_then(|t| t.u64("ashift"))
            .expect("ashift");
        let slot = label::uberblock_slot_size(ashift);
        let ring = usize::try_from(label::RING.0).unwrap();
        let ub = disks[0][ring..ring + label::RING.1]
            .chunks(slot)
            .filter_map(|s| Uberblock::decode(s).ok())
            .max_by(Uberblock::cmp_currency)
            .expect("an uberblock");
        Self {
            name: name.to_owned(),
            disks,
            tops,
            moved: Vec::new(),
            ashift,
            ub,
        }
    }

    /// The configuration in the meta object set.
    pub(crate) fn config(&self) -> NvList {
        let (_, config) = self.find(ObjectType::PACKED_NVLIST);
        let len = usize::try_from(u64_at(&config.bonus, 0)).unwrap();
        NvList::decode(&self.data(&config, 0).unwrap()[..len]).expect("the configuration")
    }

    /// Reads where the blocks of removed vdevs are. Until then no such block can be read.
    pub(crate) fn read_tables(&mut self) {
        let mut moved = Vec::new();
        let config = self.config();
        for top in config.list("vdev_tree").unwrap().lists("children").unwrap() {
            let Some(object) = top.u64("com.delphix:indirect_object") else {
                continue;
            };
            let table = self.object(object);
            let data = self.data(&table, 0).expect("a table");
            let count = usize::try_from(u64_at(&table.bonus, 16)).unwrap();
            for entry in data.chunks(24).take(count) {
                let at = |word: u64| (word & !(1 << 63)) << 9;
                moved.push(Moved {
                    removed: top.u64("id").unwrap(),
                    from: at(u64_at(entry, 0)),
                    len: (u64_at(entry, 8) & 0xff_ffff) << 9,
                    vdev: u64_at(entry, 8) >> 32,
                    offset: at(u64_at(entry, 16)),
                });
            }
        }
        self.moved = moved;
    }

    /// An object of the meta object set.
    pub(crate) fn object(&self, object: u64) -> DnodePhys {
        let mut all = self.dnodes(&self.rootbp()).into_iter();
        all.find(|(n, _)| *n == object)
            .expect("the object is there")
            .1
    }

    /// A disk of a vdev.
    pub(crate) fn disk_of(&self, vdev: u32) -> usize {
        let mut tops = self.tops.iter();
        tops.position(|top| *top == Some(u64::from(vdev)))
            .expect("a disk")
    }

    /// Disks and bytes where a copy of a block is.
    fn places(&self, dva: Dva, len: usize) -> Vec<(usize, usize)> {
        let (mut vdev, mut offset) = (u64::from(dva.vdev), dva.offset);
        while let Some(run) = self
            .moved
            .iter()
            .find(|run| run.removed == vdev && (run.from..run.from + run.len).contains(&offset))
        {
            assert!(offset + len as u64 <= run.from + run.len, "a split block");
            (vdev, offset) = (run.vdev, run.offset + (offset - run.from));
        }
        let disks = (0..self.disks.len()).filter(|&disk| self.tops[disk] == Some(vdev));
        disks.map(|disk| (disk, device_byte(offset))).collect()
    }

    /// Writes the images to a directory, for zdb.
    pub(crate) fn save(&self, dir: &Path) -> Vec<PathBuf> {
        let write = |(i, image): (usize, &Vec<u8>)| {
            use std::io::{Seek as _, SeekFrom, Write as _};
            let path = dir.join(format!("d{i}.img"));
            let mut file = std::fs::File::create(&path).expect("image can be created");
            file.set_len(image.len() as u64)
                .expect("image can be sized");
            for (n, chunk) in (0u64..).zip(image.chunks(1 << 16)) {
                if !bytes::is_zero(chunk) {
                    file.seek(SeekFrom::Start(n << 16)).expect("seek");
                    file.write_all(chunk).expect("write");
                }
            }
            path
        };
        self.disks.iter().enumerate().map(write).collect()
    }

    /// The logical bytes of a block.
    pub(crate) fn read(&self, bp: &BlockPointer) -> Vec<u8> {
        let stored = if bp.is_embedded() {
            bp.embedded_payload()
        } else {
            let mut places = bp.copies().flat_map(|dva| self.places(dva, psize(bp)));
            let (disk, at) = places.next().expect("a copy on a disk that is there");
            self.disks[disk][at..at + psize(bp)].to_vec()
        };
        let lsize = usize::try_from(bp.lsize()).unwrap();
        match bp.compression() {
            Compression::OFF => stored,
            Compression::LZ4 => {
                compress::decompress(compress::Algorithm::Lz4, &stored, lsize).expect("lz4")
            }
            other => panic!("compression {other}"),
        }
    }

    /// Stores new logical bytes at the same place and returns the pointer with the new checksum.
    fn write(&mut self, bp: &BlockPointer, data: &[u8]) -> BlockPointer {
        let packed = match bp.compression() {
            Compression::OFF => data.to_vec(),
            _ => {
                let max = if bp.is_embedded() {
                    BlockPointer::EMBEDDED_MAX
                } else {
                    psize(bp)
                };
                compress::compress(compress::Algorithm::Lz4, data, max).expect("still fits")
            }
        };
        if bp.is_embedded() {
            let (lsize, kind) = (bp.lsize(), bp.object_type());
            return BlockPointer::embedded(
                &packed,
                lsize,
                bp.compression(),
                kind,
                bp.level(),
                bp.birth(),
            )
            .expect("still fits");
        }
        let mut stored = packed;
        stored.resize(psize(bp), 0);
        assert_eq!(bp.checksum_kind(), ChecksumKind::FLETCHER4);
        for dva in bp.copies() {
            let places = self.places(dva, stored.len());
            assert!(!places.is_empty(), "every copy is written");
            for (disk, at) in places {
                self.disks[disk][at..at + stored.len()].copy_from_slice(&stored);
            }
        }
        let mut new = *bp;
        new.set_checksum(checksum::fletcher4(&stored));
        new
    }

    fn in_tree(
        &mut self,
        bp: &BlockPointer,
        dn: &DnodePhys,
        level: u8,
        block: u64,
        change: Change<'_>,
    ) -> BlockPointer {
        let mut data = self.read(bp);
        if level == 0 {
            change(self, &mut data);
        } else {
            let shift = dn.pointers_shift();
            let i = block >> (shift * u32::from(level - 1)) & ((1 << shift) - 1);
            let at = usize::try_from(i).unwrap() * BlockPointer::SIZE;
            let child = BlockPointer::decode(&data[at..]).unwrap();
            let child = self.in_tree(&child, dn, level - 1, block, change);
            child.encode_into(&mut data[at..]);
        }
        self.write(bp, &data)
    }

    fn in_dnode(&mut self, dnode: &mut [u8], block: u64, change: Change<'_>) {
        let dn = DnodePhys::decode(dnode).expect("dnode");
        let i = dn.top_pointer_index(block).expect("block is addressable");
        let bp = self.in_tree(&dn.block_pointers[i], &dn, dn.levels - 1, block, change);
        bp.encode_into(&mut dnode[64 + i * BlockPointer::SIZE..]);
    }

    /// Changes a data block of an object; object 0 is the meta dnode, whose blocks are dnodes.
    fn in_objset(
        &mut self,
        root: &BlockPointer,
        object: u64,
        block: u64,
        change: Change<'_>,
    ) -> BlockPointer {
        let mut objset = self.read(root);
        let mut meta = objset[..512].to_vec();
        if object == 0 {
            self.in_dnode(&mut meta, block, change);
        } else {
            self.in_dnode(&mut meta, object / 32, &mut |s, data| {
                let at = slot(object);
                s.in_dnode(&mut data[at..], block, change);
            });
        }
        objset[..512].copy_from_slice(&meta);
        self.write(root, &objset)
    }

    /// Changes a data block of an object of the meta object set.
    pub(crate) fn mos(&mut self, object: u64, block: u64, change: Change<'_>) {
        let root = self.ub.rootbp;
        self.ub.rootbp = self.in_objset(&root, object, block, change);
        self.checksum_uberblocks();
    }

    /// Changes the dnode of an object of the meta object set.
    pub(crate) fn mos_dnode(&mut self, object: u64, change: &mut dyn FnMut(&mut [u8])) {
        self.mos(0, object / 32, &mut |_, data| {
            change(&mut data[slot(object)..][..512]);
        });
    }

    /// Changes a data block of an object of a dataset.
    pub(crate) fn dataset(&mut self, dataset: u64, object: u64, block: u64, change: Change<'_>) {
        self.mos(0, dataset / 32, &mut |s, data| {
            let dnode = &mut data[slot(dataset)..][..512];
            let dn = DnodePhys::decode(dnode).expect("dataset dnode");
            let at = 64 + BlockPointer::SIZE * dn.block_pointers.len() + 128;
            let root = BlockPointer::decode(&dnode[at..]).unwrap();
            s.in_objset(&root, object, block, change)
                .encode_into(&mut dnode[at..]);
        });
    }

    /// Changes the dnode of an object of a dataset.
    pub(crate) fn dataset_dnode(
        &mut self,
        dataset: u64,
        object: u64,
        change: &mut dyn FnMut(&mut [u8]),
    ) {
        self.dataset(dataset, 0, object / 32, &mut |_, data| {
            change(&mut data[slot(object)..][..512]);
        });
    }

    /// The dnodes of an objset, with their numbers.
    pub(crate) fn dnodes(&self, root: &BlockPointer) -> Vec<(u64, DnodePhys)> {
        let meta = DnodePhys::decode(&self.read(root)).unwrap();
        let mut out = Vec::new();
        for block in 0..=meta.max_block_id {
            let Some(data) = self.data(&meta, block) else {
                continue;
            };
            for (i, chunk) in (0u64..).zip(data.chunks(512)) {
                if let Ok(dn) = DnodePhys::decode(chunk)
                    && !dn.is_free()
                {
                    out.push((block * 32 + i, dn));
                }
            }
        }
        out
    }

    /// A data block of an object; `None` for a hole.
    pub(crate) fn data(&self, dn: &DnodePhys, block: u64) -> Option<Vec<u8>> {
        let mut bp = dn.block_pointers[dn.top_pointer_index(block)?];
        for level in (1..dn.levels).rev() {
            if bp.is_hole() {
                return None;
            }
            let shift = dn.pointers_shift();
            let i = block >> (shift * u32::from(level - 1)) & ((1 << shift) - 1);
            bp = BlockPointer::decode_all(&self.read(&bp)).nth(usize::try_from(i).unwrap())?;
        }
        (!bp.is_hole()).then(|| self.read(&bp))
    }

    pub(crate) fn rootbp(&self) -> BlockPointer {
        self.ub.rootbp
    }

    /// The first object of the meta object set of this type.
    pub(crate) fn find(&self, kind: ObjectType) -> (u64, DnodePhys) {
        self.dnodes(&self.rootbp())
            .into_iter()
            .find(|(_, d)| d.object_type == kind)
            .expect("an object of the type")
    }

    /// Every ring slot that holds the newest uberblock gets the new root.
    fn checksum_uberblocks(&mut self) {
        let size = label::uberblock_slot_size(self.ashift);
        for disk in &mut self.disks {
            for which in 0..label::LABEL_COUNT {
                let base = label::label_offset(disk.len() as u64, which).unwrap() + label::RING.0;
                for n in 0..label::uberblock_slots(self.ashift) as u64 {
                    let at = base + n * size as u64;
                    let start = usize::try_from(at).unwrap();
                    let slot = &mut disk[start..start + size];
                    if Uberblock::decode(slot).is_ok_and(|u| u.txg == self.ub.txg) {
                        self.ub.encode(slot);
                        label::set_checksum(slot, label::label_verifier(at), checksum::sha256);
                    }
                }
            }
        }
    }
}

fn slot(object: u64) -> usize {
    usize::try_from(object % 32).unwrap() * 512
}

fn psize(bp: &BlockPointer) -> usize {
    usize::try_from(bp.psize()).unwrap()
}

pub(crate) fn device_byte(offset: u64) -> usize {
    usize::try_from(offset + label::DATA_START).unwrap()
}
