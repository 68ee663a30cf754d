//! Plain types of the public surface: what objects are made of, how blocks are written, who owns an object.

use std::rc::Rc;

use arc::{BlockKinds, CacheUse};
use ondisk::{BlockPointer, ChecksumKind, Compression, ObjectId, ObjectType};
use runtime::Handle;
use zio::{BlockKeys, Protection};

use crate::blocks::Blocks;
use crate::txg::TxgClock;

/// What every objset of a pool works with. Cheap to clone.
#[derive(Clone)]
pub struct Services {
    /// Tasks, time and randomness.
    pub handle: Handle,
    /// The pool's transaction groups.
    pub clock: TxgClock,
    blocks: Blocks,
}

impl Services {
    /// Objsets of the pool behind `store`, read through `cache`.
    #[must_use]
    pub fn new(handle: Handle, cache: arc::Cache, store: zio::BlockStore, clock: TxgClock) -> Self {
        Self {
            handle,
            clock,
            blocks: Blocks::Pool {
                cache,
                store,
                protection: Protection::None,
            },
        }
    }

    /// The same for a dataset whose blocks are protected: with keys, what is read is decrypted and authenticated, and what is
    /// written encrypted; of [`Protection::Raw`], encrypted blocks cannot be read, and are written as they came.
    #[must_use]
    pub fn protected(&self, protection: Protection) -> Self {
        let mut protected = self.clone();
        match &mut protected.blocks {
            Blocks::Pool {
                protection: slot, ..
            } => *slot = protection,
            #[cfg(test)]
            Blocks::Memory(_) => unreachable!("tests in memory encrypt nothing"),
        }
        protected
    }

    /// Whether blocks of an encrypted dataset are written as they come.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        match &self.blocks {
            Blocks::Pool { protection, .. } => matches!(protection, Protection::Raw),
            #[cfg(test)]
            Blocks::Memory(_) => false,
        }
    }

    /// The keys of the encrypted dataset that this is for.
    #[must_use]
    pub fn keys(&self) -> Option<&BlockKeys> {
        match &self.blocks {
            Blocks::Pool { protection, .. } => protection.keys(),
            #[cfg(test)]
            Blocks::Memory(_) => None,
        }
    }

    #[cfg(test)]
    pub(crate) fn in_memory(
        handle: Handle,
        clock: TxgClock,
        store: crate::tests::memory::MemoryStore,
    ) -> Self {
        Self {
            handle,
            clock,
            blocks: Blocks::Memory(store),
        }
    }

    /// The cache that blocks are read through.
    #[must_use]
    pub fn cache(&self) -> &arc::Cache {
        match &self.blocks {
            Blocks::Pool { cache, .. } => cache,
            #[cfg(test)]
            Blocks::Memory(_) => unreachable!("tests in memory have no cache"),
        }
    }

    /// The store that blocks are written to.
    #[must_use]
    pub fn store(&self) -> &zio::BlockStore {
        match &self.blocks {
            Blocks::Pool { store, .. } => store,
            #[cfg(test)]
            Blocks::Memory(_) => unreachable!("tests in memory have no store"),
        }
    }

    pub(crate) fn blocks(&self) -> &Blocks {
        &self.blocks
    }
}

/// How blocks of an objset are written; numbers are the on-disk enumerations, already resolved (never inherit or on). Set from
/// the dataset's properties; may be changed at any time, for blocks written later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WritePolicy {
    /// Checksum of file data.
    pub checksum: ChecksumKind,
    /// Checksum of metadata (fletcher4 unless the dataset's is stronger).
    pub metadata_checksum: ChecksumKind,
    /// Blocks of file data that equal one stored already refer to it: the checksum they have then, and what makes them equal.
    pub dedup: Option<(ChecksumKind, zio::Dedup)>,
    /// Compression of file data (2 is off).
    pub compression: Compression,
    /// zstd level code, else 0.
    pub compression_level: u8,
    /// Compression of metadata (lz4 when the pool has it, else lzjb).
    pub metadata_compression: Compression,
    /// Copies of file data, 1 to 3.
    pub copies: u8,
    /// Copies of metadata, usually `copies + 1`, 3 in the meta-objset.
    pub metadata_copies: u8,
    /// Copies of level-1 blocks of file data (`redundant_metadata=most` lowers it).
    pub indirect_copies: u8,
    /// Blocks of files stored in at most this many bytes may go to special vdevs (`special_small_blocks`), 0 for none.
    pub special_small_bytes: u64,
    /// The feature `embedded_data` is enabled.
    pub embedded_data: bool,
    /// The feature `hole_birth` is active.
    pub hole_birth: bool,
    /// Whether objset blocks have room for the objects that count space by owner: not in pools before version 15.
    pub accounting_room: bool,
    /// Whether dnodes count the space that they use in bytes: in pools before version 3 they count sectors of 512.
    pub counts_bytes: bool,
    /// Which blocks, written or read, the caches keep.
    pub cache: CacheUse,
    /// Of which objects the blocks that a reader is expected to need next are read ahead.
    pub read_ahead: BlockKinds,
}

impl WritePolicy {
    /// The policy of a meta-objset: three copies of everything, lz4, fletcher4.
    #[must_use]
    pub fn meta_objset() -> Self {
        Self {
            checksum: ChecksumKind::FLETCHER4,
            metadata_checksum: ChecksumKind::FLETCHER4,
            dedup: None,
            compression: Compression::LZ4,
            compression_level: 0,
            metadata_compression: Compression::LZ4,
            copies: 3,
            metadata_copies: 3,
            indirect_copies: 3,
            special_small_bytes: 0,
            embedded_data: true,
            hole_birth: true,
            accounting_room: true,
            counts_bytes: true,
            cache: CacheUse::default(),
            read_ahead: BlockKinds::All,
        }
    }

    /// The policy of a dataset with default properties: fletcher4, lz4, one copy of data and two of metadata.
    #[must_use]
    pub fn dataset() -> Self {
        Self {
            copies: 1,
            metadata_copies: 2,
            indirect_copies: 2,
            ..Self::meta_objset()
        }
    }
}

/// Who is charged for an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// User id (FUID).
    pub uid: u64,
    /// Group id (FUID).
    pub gid: u64,
    /// Project id, 0 by default.
    pub project: u64,
}

/// Finds the owner in a bonus buffer of the given type; `None` when the object is charged to no owner.
pub type OwnerOf = fn(bonus_type: ObjectType, bonus: &[u8]) -> Option<Owner>;

/// How an objset is opened or created.
#[derive(Debug, Clone)]
pub struct ObjsetOptions {
    /// Number of the dataset object, 0 for the meta-objset. Used in errors and bookmarks only.
    pub objset_id: u64,
    /// How blocks are written.
    pub policy: WritePolicy,
    /// Changes are refused.
    pub read_only: bool,
    /// Reads owners out of bonus buffers; without it usage is not accounted.
    pub owner_of: Option<OwnerOf>,
    /// `os_flags` given to an objset at its creation: which kinds of usage accounting are complete from birth (1 users and
    /// groups, 2 object counts, 4 projects; the last two need their features activated by the caller). Only with `owner_of`.
    pub create_flags: u64,
}

impl ObjsetOptions {
    /// Options of a meta-objset.
    #[must_use]
    pub fn meta_objset() -> Self {
        Self {
            objset_id: 0,
            policy: WritePolicy::meta_objset(),
            read_only: false,
            owner_of: None,
            create_flags: 0,
        }
    }

    /// Options of a dataset with default properties.
    #[must_use]
    pub fn dataset(objset_id: u64) -> Self {
        Self {
            objset_id,
            policy: WritePolicy::dataset(),
            read_only: false,
            owner_of: None,
            create_flags: 0,
        }
    }
}

/// The shape of an objset's table of dnodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableShape {
    /// Levels of its tree, 1 to 12.
    pub levels: u8,
    /// Log2 of the size of its indirect blocks, 12 to 17.
    pub indirect_shift: u8,
    /// Its own checksum, or inherit.
    pub checksum: ChecksumKind,
    /// Its own compression, or inherit.
    pub compression: Compression,
    /// Largest block of dnodes ever in use.
    pub max_block_id: u64,
}

impl Default for TableShape {
    /// That of a new meta-objset.
    fn default() -> Self {
        Self {
            levels: 1,
            indirect_shift: 17,
            checksum: ChecksumKind::INHERIT,
            compression: Compression::INHERIT,
            max_block_id: 0,
        }
    }
}

/// What a raw stream says of a dnode besides what an object is allocated with: the MAC of its block covers all of it.
#[derive(Debug, Clone, Copy)]
pub struct EncryptedDnode<'a> {
    /// Its own checksum, or inherit.
    pub checksum: ChecksumKind,
    /// Its own compression, or inherit.
    pub compression: Compression,
    /// Log2 of the size of its indirect blocks, 12 to 17.
    pub indirect_shift: u8,
    /// Levels of its tree, 1 to 12.
    pub levels: u8,
    /// Number of its block pointers, 1 to 3.
    pub pointers: u8,
    /// Largest block ever in use.
    pub max_block_id: u64,
    /// The bonus area as it is stored, up to the spill pointer or the dnode's end.
    pub bonus_area: &'a [u8],
}

/// What a step of a rewrite wrote anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewritten {
    /// Bytes.
    pub bytes: u64,
    /// Where to go on; `None` at the end.
    pub next: Option<u64>,
}

/// What to allocate. `AllocSpec::new(type)` gives the defaults of the format.
#[derive(Debug, Clone)]
pub struct AllocSpec {
    /// Object type .
    pub object_type: ObjectType,
    /// Data block size in bytes: a multiple of 512, 512 to 16 MiB. 0 means 512.
    pub block_size: u32,
    /// Log2 of the size of indirect blocks, 12 to 17. 0 means 17.
    pub indirect_shift: u8,
    /// Type of the bonus, `NONE` for none.
    pub bonus_type: ObjectType,
    /// Length of the bonus in bytes (zero-filled).
    pub bonus_len: u16,
    /// Size of the dnode in 512-byte slots, 1 to 32. 0 means 1.
    pub slots: u8,
}

impl AllocSpec {
    /// An object of a type, with 512-byte blocks, 128 KiB indirect blocks, no bonus, one slot.
    #[must_use]
    pub fn new(object_type: ObjectType) -> Self {
        Self {
            object_type,
            block_size: 0,
            indirect_shift: 0,
            bonus_type: ObjectType::NONE,
            bonus_len: 0,
            slots: 1,
        }
    }

    /// Sets the data block size in bytes.
    #[must_use]
    pub fn block_size(mut self, bytes: u32) -> Self {
        self.block_size = bytes;
        self
    }

    /// Sets log2 of the indirect block size.
    #[must_use]
    pub fn indirect_shift(mut self, shift: u8) -> Self {
        self.indirect_shift = shift;
        self
    }

    /// Sets type and length of the bonus.
    #[must_use]
    pub fn bonus(mut self, bonus_type: ObjectType, bonus_len: u16) -> Self {
        self.bonus_type = bonus_type;
        self.bonus_len = bonus_len;
        self
    }

    /// Sets the dnode's size in 512-byte slots.
    #[must_use]
    pub fn slots(mut self, slots: u8) -> Self {
        self.slots = slots;
        self
    }
}

/// What is known of an object, in its newest version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectInfo {
    /// The object.
    pub object: ObjectId,
    /// Object type.
    pub object_type: ObjectType,
    /// Type of the bonus, `NONE` for none.
    pub bonus_type: ObjectType,
    /// Length of the bonus in bytes.
    pub bonus_len: u16,
    /// Longest bonus the dnode can hold now, in bytes (less when there is a spill block).
    pub bonus_len_max: u16,
    /// Data block size in bytes.
    pub block_size: u32,
    /// Log2 of the indirect block size.
    pub indirect_shift: u8,
    /// Levels of the block tree, as of the last sync; more where a raw stream has said so since.
    pub levels: u8,
    /// Number of block pointers in the dnode.
    pub pointers: u8,
    /// Largest block number ever in use (0 for an empty object).
    pub max_block_id: u64,
    /// Allocated (deflated) bytes as of the last sync.
    pub used_bytes: u64,
    /// Blocks with data as of the last sync.
    pub fill_count: u64,
    /// 512-byte slots of the dnode.
    pub slots: u8,
    /// The object has a spill block.
    pub has_spill: bool,
    /// On-disk dnode flags as of the last sync.
    pub flags: u8,
    /// Changes that are not on disk exist.
    pub dirty: bool,
}

/// A bonus buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bonus {
    /// Its type.
    pub bonus_type: ObjectType,
    /// Its bytes.
    pub bytes: Rc<[u8]>,
}

/// Records the block pointers that come and go while an objset is synced. Calls are synchronous recordings; what must follow
/// from them is done after `sync` returned.
pub trait Ledger {
    /// `bp` was written and is now referenced. In-place rewrites are not reported.
    fn block_born(&mut self, bp: &BlockPointer);
    /// `bp` is no longer referenced by the newest version of the objset.
    fn block_freed(&mut self, bp: &BlockPointer);
}

/// A ledger that records nothing.
#[derive(Debug, Default, Clone, Copy)]
pub struct NoLedger;

impl Ledger for NoLedger {
    fn block_born(&mut self, _bp: &BlockPointer) {}
    fn block_freed(&mut self, _bp: &BlockPointer) {}
}
