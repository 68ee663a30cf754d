//! Bonus buffers of the dataset layer: directories, datasets, lists of block pointers, deadlists.
//!
//! OpenZFS: include/sys/dsl_dir.h, dsl_dataset.h, bpobj.h, dsl_deadlist.h.

use crate::bytes::{need, put_bytes, put_u64, slice_at, u64_at};
use crate::words::word_struct;
use crate::{BlockPointer, Result};

/// Bits of [`DslDirPhys::flags`].
pub mod dir_flags {
    /// The breakdown of used space is kept (always set).
    pub const USED_BREAKDOWN: u64 = 1;
}

/// Bits of [`DslDatasetPhys::flags`].
pub mod dataset_flags {
    /// A receive into it did not finish.
    pub const INCONSISTENT: u64 = 1;
    pub const NOPROMOTE: u64 = 2;
    /// `unique_bytes` is right (always set).
    pub const UNIQUE_ACCURATE: u64 = 4;
    /// Destroy when the last hold or clone goes.
    pub const DEFER_DESTROY: u64 = 8;
    /// File names are compared without case.
    pub const CASE_INSENSITIVE: u64 = 0x1_0000;
}

/// Keys of a dataset or directory object that was made a ZAP.
pub mod zapified_keys {
    pub const BOOKMARKS: &str = "com.delphix:bookmarks";
    pub const IVSET_GUID: &str = "com.datto:ivset_guid";
    pub const REMAP_DEADLIST: &str = "com.delphix:remap_deadlist";
    pub const FILESYSTEM_COUNT: &str = "com.joyent:filesystem_count";
    pub const SNAPSHOT_COUNT: &str = "com.joyent:snapshot_count";
    pub const CRYPTO_KEY: &str = "com.datto:crypto_key_obj";
    pub const LIVELIST: &str = "com.delphix:livelist";
    pub const SNAPSHOTS_CHANGED: &str = "com.ixsystems:snapshots_changed";
}

/// What a directory's used space is made of; indexes of [`DslDirPhys::used_breakdown`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsedBy {
    Head = 0,
    Snapshots = 1,
    Children = 2,
    ChildReservations = 3,
    Refreservation = 4,
}

/// A dataset directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DslDirPhys {
    /// Not used by OpenZFS.
    pub creation_time: u64,
    /// The directory's head dataset; 0 for `$MOS` and `$FREE`.
    pub head_dataset_obj: u64,
    /// 0 for the root.
    pub parent_obj: u64,
    /// The snapshot it was cloned from (`$ORIGIN@$ORIGIN` for plain datasets).
    pub origin_obj: u64,
    /// ZAP: child name to directory object.
    pub child_dir_zapobj: u64,
    /// Bytes, with children and reservations.
    pub used_bytes: u64,
    pub compressed_bytes: u64,
    pub uncompressed_bytes: u64,
    pub quota: u64,
    pub reserved: u64,
    pub props_zapobj: u64,
    /// Delegated permissions, or 0.
    pub deleg_zapobj: u64,
    /// Bits of [`dir_flags`].
    pub flags: u64,
    /// Bytes by [`UsedBy`]; their sum is `used_bytes`.
    pub used_breakdown: [u64; 5],
    /// ZAP of head datasets cloned from this directory's snapshots, or 0.
    pub clones: u64,
}

impl DslDirPhys {
    /// Encoded bytes.
    pub const SIZE: usize = 256;

    /// Decodes the bonus of a directory.
    ///
    /// # Errors
    /// Only when `buf` is too short.
    pub fn decode(buf: &[u8]) -> Result<Self> {
        need(buf, Self::SIZE, "dsl directory")?;
        let w = |i: usize| u64_at(buf, 8 * i);
        Ok(Self {
            creation_time: w(0),
            head_dataset_obj: w(1),
            parent_obj: w(2),
            origin_obj: w(3),
            child_dir_zapobj: w(4),
            used_bytes: w(5),
            compressed_bytes: w(6),
            uncompressed_bytes: w(7),
            quota: w(8),
            reserved: w(9),
            props_zapobj: w(10),
            deleg_zapobj: w(11),
            flags: w(12),
            used_breakdown: [w(13), w(14), w(15), w(16), w(17)],
            clones: w(18),
        })
    }

    /// Encodes to a bonus buffer.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let [head, snap, child, child_rsrv, refrsrv] = self.used_breakdown;
        let words = [
            self.creation_time,
            self.head_dataset_obj,
            self.parent_obj,
            self.origin_obj,
            self.child_dir_zapobj,
            self.used_bytes,
            self.compressed_bytes,
            self.uncompressed_bytes,
            self.quota,
            self.reserved,
            self.props_zapobj,
            self.deleg_zapobj,
            self.flags,
            head,
            snap,
            child,
            child_rsrv,
            refrsrv,
            self.clones,
        ];
        let mut out = vec![0; Self::SIZE];
        for (i, w) in words.iter().enumerate() {
            put_u64(&mut out, 8 * i, *w);
        }
        out
    }
}

/// A dataset: a head or a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DslDatasetPhys {
    pub dir_obj: u64,
    pub prev_snap_obj: u64,
    pub prev_snap_txg: u64,
    /// 0 for a head; for a snapshot the next newer one, or the head.
    pub next_snap_obj: u64,
    /// ZAP: snapshot name to dataset object; 0 in snapshots.
    pub snapnames_zapobj: u64,
    /// Snapshot: 1 plus its clones; head: 0.
    pub num_children: u64,
    /// Seconds since 1970.
    pub creation_time: u64,
    pub creation_txg: u64,
    pub deadlist_obj: u64,
    pub referenced_bytes: u64,
    pub compressed_bytes: u64,
    pub uncompressed_bytes: u64,
    pub unique_bytes: u64,
    /// 56 bits, unique in the host.
    pub fsid_guid: u64,
    pub guid: u64,
    /// Bits of [`dataset_flags`].
    pub flags: u64,
    /// The objset.
    pub bp: BlockPointer,
    /// ZAP of datasets that have this snapshot as previous one without being its next, or 0.
    pub next_clones_obj: u64,
    /// Properties of a snapshot, or 0.
    pub props_obj: u64,
    /// Holds of a snapshot, or 0.
    pub userrefs_obj: u64,
}

impl DslDatasetPhys {
    /// Encoded bytes.
    pub const SIZE: usize = 320;

    /// Decodes the bonus of a dataset.
    ///
    /// # Errors
    /// Only when `buf` is too short.
    pub fn decode(buf: &[u8]) -> Result<Self> {
        need(buf, Self::SIZE, "dsl dataset")?;
        let w = |i: usize| u64_at(buf, 8 * i);
        Ok(Self {
            dir_obj: w(0),
            prev_snap_obj: w(1),
            prev_snap_txg: w(2),
            next_snap_obj: w(3),
            snapnames_zapobj: w(4),
            num_children: w(5),
            creation_time: w(6),
            creation_txg: w(7),
            deadlist_obj: w(8),
            referenced_bytes: w(9),
            compressed_bytes: w(10),
            uncompressed_bytes: w(11),
            unique_bytes: w(12),
            fsid_guid: w(13),
            guid: w(14),
            flags: w(15),
            bp: BlockPointer::decode(slice_at(buf, 128, BlockPointer::SIZE))?,
            next_clones_obj: w(32),
            props_obj: w(33),
            userrefs_obj: w(34),
        })
    }

    /// Encodes to a bonus buffer.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let words = [
            self.dir_obj,
            self.prev_snap_obj,
            self.prev_snap_txg,
            self.next_snap_obj,
            self.snapnames_zapobj,
            self.num_children,
            self.creation_time,
            self.creation_txg,
            self.deadlist_obj,
            self.referenced_bytes,
            self.compressed_bytes,
            self.uncompressed_bytes,
            self.unique_bytes,
            self.fsid_guid,
            self.guid,
            self.flags,
        ];
        let mut out = vec![0; Self::SIZE];
        for (i, w) in words.iter().enumerate() {
            put_u64(&mut out, 8 * i, *w);
        }
        put_bytes(&mut out, 128, &self.bp.encode());
        put_u64(&mut out, 256, self.next_clones_obj);
        put_u64(&mut out, 264, self.props_obj);
        put_u64(&mut out, 272, self.userrefs_obj);
        out
    }

    /// True for a snapshot.
    #[must_use]
    pub const fn is_snapshot(&self) -> bool {
        self.num_children != 0
    }
}

word_struct! {
    /// Bonus of a list of block pointers.
    pub struct BpobjPhys[48] as "bpobj header" {
        /// Pointers in this object itself.
        num_blkptrs @ 0,
        /// Deflated bytes, with sub-objects.
        bytes @ 8,
        /// Stored bytes, with sub-objects.
        comp @ 16,
        /// Logical bytes, with sub-objects.
        uncomp @ 24,
        /// Object listing sub-objects, or 0.
        subobjs @ 32,
        num_subobjs @ 40,
    }
}

word_struct! {
    /// Bonus of a deadlist.
    pub struct DeadlistPhys[320] as "deadlist header" {
        /// Deflated bytes.
        used @ 0,
        comp @ 8,
        uncomp @ 16,
    }
}

/// The txg that a deadlist's entry is of, from its key: blocks in the entry were born after it. `None` for a malformed key.
#[must_use]
pub fn deadlist_key(name: &[u8]) -> Option<u64> {
    let hex = std::str::from_utf8(name).ok()?;
    u64::from_str_radix(hex, 16).ok()
}

/// Bonus bytes of a list of block pointers that also counts the entries marked as freed. OpenZFS: include/sys/bpobj.h,
/// `bpo_num_freed`.
pub const BPOBJ_FREED_SIZE: usize = BpobjPhys::SIZE + 8;

/// Entries marked as freed in a list of block pointers; `None` when its bonus does not count them.
#[must_use]
pub fn bpobj_num_freed(bonus: &[u8]) -> Option<u64> {
    need(bonus, BPOBJ_FREED_SIZE, "bpobj header").ok()?;
    Some(u64_at(bonus, BpobjPhys::SIZE))
}

/// Sets the count of entries marked as freed in the bonus of a list of block pointers that has one.
pub fn set_bpobj_num_freed(bonus: &mut [u8], count: u64) {
    put_u64(bonus, BpobjPhys::SIZE, count);
}

/// The form of a block pointer that lists of freed blocks store: without checksum (unless deduplicated) and fill; of
/// embedded ones only properties and birth.
#[must_use]
pub fn bpobj_entry(bp: &BlockPointer) -> BlockPointer {
    let mut w = *bp.words();
    if bp.is_embedded() {
        let mut kept = [0; 16];
        (kept[6], kept[10]) = (w[6], w[10]);
        return BlockPointer::from_words(kept);
    }
    if !bp.is_dedup() {
        (w[12], w[13], w[14], w[15]) = (0, 0, 0, 0);
    }
    w[11] = 0;
    BlockPointer::from_words(w)
}

/// An entry of a list of a clone's own blocks that marks the end of a block. OpenZFS: include/sys/bpobj.h, BP_SET_FREE.
#[must_use]
pub fn freed_entry(entry: &BlockPointer) -> BlockPointer {
    let mut w = *entry.words();
    w[11] = 1;
    BlockPointer::from_words(w)
}

/// Takes an entry of a list of a clone's own blocks apart: the block, and whether its end is marked.
#[must_use]
pub fn livelist_entry(entry: &BlockPointer) -> (BlockPointer, bool) {
    let mut w = *entry.words();
    let freed = w[11] & 1 != 0;
    w[11] = 0;
    (BlockPointer::from_words(w), freed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bonuses_round_trip() {
        let mut bytes = vec![0; 320];
        for (i, b) in bytes.iter_mut().enumerate().take(280) {
            *b = u8::try_from(i % 251).unwrap();
        }
        assert_eq!(DslDatasetPhys::decode(&bytes).unwrap().encode(), bytes);
        let mut dir = bytes[..256].to_vec();
        dir[152..].fill(0);
        assert_eq!(DslDirPhys::decode(&dir).unwrap().encode(), dir);
        assert_eq!(BpobjPhys::decode(&bytes).unwrap().encode(), bytes[..48]);
        assert!(DeadlistPhys::decode(&bytes[..319]).is_err());
    }

    #[test]
    fn deadlist_keys() {
        let check = |name: &[u8], expect| assert_eq!(deadlist_key(name), expect, "{name:?}");
        check(b"0", Some(0));
        check(b"1f", Some(31));
        check(b"ffffffffffffffff", Some(u64::MAX));
        check(b"10000000000000000", None);
        check(b"", None);
        check(b"x", None);
        check(&[0xff], None);
    }

    #[test]
    fn freed_entries_are_counted_in_a_long_bonus_only() {
        let mut bonus = vec![0; BPOBJ_FREED_SIZE];
        assert_eq!(bpobj_num_freed(&bonus), Some(0));
        set_bpobj_num_freed(&mut bonus, 9);
        assert_eq!(bpobj_num_freed(&bonus), Some(9));
        assert_eq!(bpobj_num_freed(&bonus[..BpobjPhys::SIZE]), None);
        // A mark on an entry comes off again.
        let bp = BlockPointer::from_words([3; 16]);
        let entry = bpobj_entry(&bp);
        assert_eq!(livelist_entry(&entry), (entry, false));
        assert_eq!(livelist_entry(&freed_entry(&entry)), (entry, true));
    }
}
