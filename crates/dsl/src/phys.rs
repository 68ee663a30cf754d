//! Byte layouts of the dataset objects' bonus buffers.
//!
//! OpenZFS: include/sys/dsl_dir.h, dsl_dataset.h, dsl_deadlist.h, bpobj.h, bptree.h.

use ondisk::bytes::{need, put_bytes, put_u64, slice_at, u64_at};
use ondisk::{BlockPointer, DecodeError, ObjectId};

type Result<T> = std::result::Result<T, DecodeError>;

/// The parts `used_bytes` of a directory is made of, indexes of `used_breakdown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Used {
    /// The dataset itself.
    Head = 0,
    /// Its snapshots.
    Snap = 1,
    /// Child directories.
    Child = 2,
    /// Reservations of child directories not yet filled.
    ChildReservation = 3,
    /// The dataset's refreservation not yet filled.
    RefReservation = 4,
}

/// A directory: the place of a dataset in the tree, with the space of everything below.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DirPhys {
    pub(crate) creation_time: u64,
    pub(crate) head_dataset: ObjectId,
    pub(crate) parent: ObjectId,
    pub(crate) origin: ObjectId,
    pub(crate) child_map: ObjectId,
    pub(crate) used: u64,
    pub(crate) compressed: u64,
    pub(crate) uncompressed: u64,
    pub(crate) quota: u64,
    pub(crate) reserved: u64,
    pub(crate) props: ObjectId,
    pub(crate) delegation: ObjectId,
    pub(crate) flags: u64,
    pub(crate) breakdown: [u64; 5],
    pub(crate) clones: ObjectId,
}

impl DirPhys {
    pub(crate) const SIZE: usize = 256;
    /// `used_breakdown` is maintained.
    pub(crate) const FLAG_USED_BREAKDOWN: u64 = 1;

    pub(crate) fn decode(buf: &[u8]) -> Result<Self> {
        need(buf, Self::SIZE, "dataset directory")?;
        let mut breakdown = [0; 5];
        for (i, slot) in breakdown.iter_mut().enumerate() {
            *slot = u64_at(buf, 104 + 8 * i);
        }
        Ok(Self {
            creation_time: u64_at(buf, 0),
            head_dataset: ObjectId(u64_at(buf, 8)),
            parent: ObjectId(u64_at(buf, 16)),
            origin: ObjectId(u64_at(buf, 24)),
            child_map: ObjectId(u64_at(buf, 32)),
            used: u64_at(buf, 40),
            compressed: u64_at(buf, 48),
            uncompressed: u64_at(buf, 56),
            quota: u64_at(buf, 64),
            reserved: u64_at(buf, 72),
            props: ObjectId(u64_at(buf, 80)),
            delegation: ObjectId(u64_at(buf, 88)),
            flags: u64_at(buf, 96),
            breakdown,
            clones: ObjectId(u64_at(buf, 144)),
        })
    }

    pub(crate) fn encode(&self) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        let words = [
            self.creation_time,
            self.head_dataset.0,
            self.parent.0,
            self.origin.0,
            self.child_map.0,
            self.used,
            self.compressed,
            self.uncompressed,
            self.quota,
            self.reserved,
            self.props.0,
            self.delegation.0,
            self.flags,
        ];
        for (i, word) in words.iter().chain(&self.breakdown).enumerate() {
            put_u64(&mut out, 8 * i, *word);
        }
        put_u64(&mut out, 144, self.clones.0);
        out
    }
}

/// A dataset: a head or a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DatasetPhys {
    pub(crate) dir: ObjectId,
    pub(crate) prev_snap: ObjectId,
    pub(crate) prev_snap_txg: u64,
    pub(crate) next_snap: ObjectId,
    pub(crate) snapnames: ObjectId,
    pub(crate) num_children: u64,
    pub(crate) creation_time: u64,
    pub(crate) creation_txg: u64,
    pub(crate) deadlist: ObjectId,
    pub(crate) referenced: u64,
    pub(crate) compressed: u64,
    pub(crate) uncompressed: u64,
    pub(crate) unique: u64,
    pub(crate) fsid_guid: u64,
    pub(crate) guid: u64,
    pub(crate) flags: u64,
    pub(crate) bp: BlockPointer,
    pub(crate) next_clones: ObjectId,
    pub(crate) props: ObjectId,
    pub(crate) user_refs: ObjectId,
}

impl DatasetPhys {
    pub(crate) const SIZE: usize = 320;
    pub(crate) const FLAG_INCONSISTENT: u64 = 1;
    pub(crate) const FLAG_UNIQUE_ACCURATE: u64 = 4;
    pub(crate) const FLAG_DEFER_DESTROY: u64 = 8;
    /// File names of the file system may be looked up ignoring case.
    pub(crate) const FLAG_CASE_INSENSITIVE: u64 = 1 << 16;

    pub(crate) fn decode(buf: &[u8]) -> Result<Self> {
        need(buf, Self::SIZE, "dataset")?;
        Ok(Self {
            dir: ObjectId(u64_at(buf, 0)),
            prev_snap: ObjectId(u64_at(buf, 8)),
            prev_snap_txg: u64_at(buf, 16),
            next_snap: ObjectId(u64_at(buf, 24)),
            snapnames: ObjectId(u64_at(buf, 32)),
            num_children: u64_at(buf, 40),
            creation_time: u64_at(buf, 48),
            creation_txg: u64_at(buf, 56),
            deadlist: ObjectId(u64_at(buf, 64)),
            referenced: u64_at(buf, 72),
            compressed: u64_at(buf, 80),
            uncompressed: u64_at(buf, 88),
            unique: u64_at(buf, 96),
            fsid_guid: u64_at(buf, 104),
            guid: u64_at(buf, 112),
            flags: u64_at(buf, 120),
            bp: BlockPointer::decode(slice_at(buf, 128, BlockPointer::SIZE))?,
            next_clones: ObjectId(u64_at(buf, 256)),
            props: ObjectId(u64_at(buf, 264)),
            user_refs: ObjectId(u64_at(buf, 272)),
        })
    }

    pub(crate) fn encode(&self) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        let words = [
            self.dir.0,
            self.prev_snap.0,
            self.prev_snap_txg,
            self.next_snap.0,
            self.snapnames.0,
            self.num_children,
            self.creation_time,
            self.creation_txg,
            self.deadlist.0,
            self.referenced,
            self.compressed,
            self.uncompressed,
            self.unique,
            self.fsid_guid,
            self.guid,
            self.flags,
        ];
        for (i, word) in words.iter().enumerate() {
            put_u64(&mut out, 8 * i, *word);
        }
        put_bytes(&mut out, 128, &self.bp.encode());
        put_u64(&mut out, 256, self.next_clones.0);
        put_u64(&mut out, 264, self.props.0);
        put_u64(&mut out, 272, self.user_refs.0);
        out
    }

    /// Snapshots have no map of snapshots of their own.
    pub(crate) fn is_snapshot(&self) -> bool {
        self.num_children != 0
    }
}

/// Sizes of a list of block pointers: allocated (deflated), physical and logical bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) used: u64,
    pub(crate) compressed: u64,
    pub(crate) uncompressed: u64,
}

impl Sizes {
    pub(crate) fn add(&mut self, other: Self) {
        self.used += other.used;
        self.compressed += other.compressed;
        self.uncompressed += other.uncompressed;
    }

    /// Subtracts, stopping at zero: totals of a damaged pool may be too small.
    pub(crate) fn sub(&mut self, other: Self) {
        self.used = self.used.saturating_sub(other.used);
        self.compressed = self.compressed.saturating_sub(other.compressed);
        self.uncompressed = self.uncompressed.saturating_sub(other.uncompressed);
    }
}

/// Bonus of a list of block pointers. Older ones are shorter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BpobjPhys {
    pub(crate) block_pointers: u64,
    pub(crate) sizes: Sizes,
    pub(crate) subobjs: ObjectId,
    pub(crate) subobj_count: u64,
}

impl BpobjPhys {
    /// The size written today (livelists have one more word).
    pub(crate) const SIZE: usize = 48;

    pub(crate) fn decode(buf: &[u8]) -> Result<Self> {
        need(buf, 16, "block pointer list")?;
        // u64_at reads zero past the end, which is what the shorter old forms mean.
        Ok(Self {
            block_pointers: u64_at(buf, 0),
            sizes: Sizes {
                used: u64_at(buf, 8),
                compressed: u64_at(buf, 16),
                uncompressed: u64_at(buf, 24),
            },
            subobjs: ObjectId(u64_at(buf, 32)),
            subobj_count: u64_at(buf, 40),
        })
    }

    /// Writes the fields over `buf`, the existing bonus, leaving what lies past them.
    pub(crate) fn encode_into(&self, buf: &mut [u8]) {
        let words = [
            self.block_pointers,
            self.sizes.used,
            self.sizes.compressed,
            self.sizes.uncompressed,
            self.subobjs.0,
            self.subobj_count,
        ];
        for (i, word) in words.iter().enumerate() {
            if buf.len() >= 8 * i + 8 {
                put_u64(buf, 8 * i, *word);
            }
        }
    }
}

/// Bonus of a deadlist.
pub(crate) const DEADLIST_PHYS_SIZE: usize = 320;

/// Decodes the totals of a deadlist.
pub(crate) fn decode_deadlist(buf: &[u8]) -> Result<Sizes> {
    need(buf, DEADLIST_PHYS_SIZE, "deadlist")?;
    Ok(Sizes { used: u64_at(buf, 0), compressed: u64_at(buf, 8), uncompressed: u64_at(buf, 16) })
}

/// Encodes the totals of a deadlist.
pub(crate) fn encode_deadlist(sizes: Sizes) -> [u8; DEADLIST_PHYS_SIZE] {
    let mut out = [0; DEADLIST_PHYS_SIZE];
    put_u64(&mut out, 0, sizes.used);
    put_u64(&mut out, 8, sizes.compressed);
    put_u64(&mut out, 16, sizes.uncompressed);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        let bytes: Vec<u8> = (0..320u32).map(|i| u8::try_from(i % 251).expect("below 251")).collect();
        let mut dir = bytes[..256].to_vec();
        dir[152..].fill(0);
        assert_eq!(DirPhys::decode(&dir).expect("long enough").encode().to_vec(), dir);
        let mut ds = bytes.clone();
        ds[280..].fill(0);
        assert_eq!(DatasetPhys::decode(&ds).expect("long enough").encode().to_vec(), ds);
        let mut list = bytes[..56].to_vec();
        let phys = BpobjPhys::decode(&list).expect("long enough");
        let copy = list.clone();
        phys.encode_into(&mut list);
        assert_eq!(list, copy);
        assert!(DirPhys::decode(&bytes[..255]).is_err());
    }
}
