//! The object set: stub of the public surface.
#![allow(clippy::unused_async, unused_variables, reason = "first landing: signatures only")]
use std::ops::Range;
use std::rc::Rc;

use ondisk::zil::ZilHeader;
use ondisk::{BlockPointer, Compression, ObjectId, ObjectType, ObjsetType, Txg};
use runtime::IoBuf;

use crate::error::Result;
use crate::txg::Tx;
use crate::types::{AllocSpec, Bonus, Ledger, ObjectInfo, ObjsetOptions, Services, WritePolicy};

/// An object set. Clones are handles to the same one; at most one should be open per root pointer.
#[derive(Clone)]
pub struct Objset(Rc<()>);

impl Objset {
    /// Opens the objset whose block `root` points to. Reads that block.
    ///
    /// # Errors
    /// `Read`, `Corrupt`, `Decode`, `ForeignByteOrder`; `Invalid` when `root` is a hole.
    pub async fn open(services: &Services, root: BlockPointer, options: ObjsetOptions) -> Result<Self> { unimplemented!() }
    /// Makes an empty objset in memory; it reaches the disk with the sync of `tx`'s group. Accounting is complete from birth
    /// when the options have an `owner_of` and the type is `Zfs`.
    pub fn create(services: &Services, kind: ObjsetType, options: ObjsetOptions, tx: &Tx) -> Self { unimplemented!() }
    /// The services it works with.
    pub fn services(&self) -> &Services { unimplemented!() }
    /// Number of the dataset object, 0 for the meta-objset.
    pub fn id(&self) -> u64 { unimplemented!() }
    /// Its kind.
    pub fn kind(&self) -> ObjsetType { unimplemented!() }
    /// The root pointer as of the last sync.
    pub fn root(&self) -> BlockPointer { unimplemented!() }
    /// Whether it refuses changes.
    pub fn is_read_only(&self) -> bool { unimplemented!() }
    /// Replaces the write policy for blocks written from now on.
    pub fn set_policy(&self, policy: WritePolicy) { unimplemented!() }
    /// The write policy.
    pub fn policy(&self) -> WritePolicy { unimplemented!() }
    /// `os_flags` (accounting completeness: 1, 2, 4).
    pub fn flags(&self) -> u64 { unimplemented!() }
    /// Sets `os_flags` in `tx`'s group.
    pub fn set_flags(&self, flags: u64, tx: &Tx) { unimplemented!() }
    /// The intent log's header as last set.
    pub fn zil_header(&self) -> ZilHeader { unimplemented!() }
    /// Sets the intent log's header in `tx`'s group (syncing context).
    pub fn set_zil_header(&self, header: ZilHeader, tx: &Tx) { unimplemented!() }
    /// Makes the sync of `tx`'s group write the objset block even if no object changed.
    pub fn mark_dirty(&self, tx: &Tx) { unimplemented!() }
    /// Whether the sync of `txg` has anything to write.
    pub fn is_dirty(&self, txg: Txg) -> bool { unimplemented!() }
    /// Number of allocated objects as of the last sync.
    pub fn object_count(&self) -> u64 { unimplemented!() }

    /// Describes an object.
    pub async fn object_info(&self, object: ObjectId) -> Result<ObjectInfo> { unimplemented!() }
    /// The bonus buffer.
    pub async fn bonus(&self, object: ObjectId) -> Result<Bonus> { unimplemented!() }
    /// Replaces type, length and bytes of the bonus.
    pub async fn set_bonus(&self, object: ObjectId, bonus_type: ObjectType, bytes: &[u8], tx: &Tx) -> Result<()> { unimplemented!() }
    /// The spill block's bytes, if there is one.
    pub async fn spill(&self, object: ObjectId) -> Result<Option<IoBuf>> { unimplemented!() }
    /// Replaces or removes the spill block; its length must be a multiple of 512, at most 128 KiB.
    pub async fn set_spill(&self, object: ObjectId, bytes: Option<&[u8]>, tx: &Tx) -> Result<()> { unimplemented!() }
    /// Reads `len` bytes at `offset`; holes and everything past the end are zeros.
    pub async fn read(&self, object: ObjectId, offset: u64, len: usize) -> Result<IoBuf> { unimplemented!() }
    /// Reads without joining: one buffer per block touched, in order, covering exactly the range.
    pub async fn read_bufs(&self, object: ObjectId, offset: u64, len: usize) -> Result<Vec<IoBuf>> { unimplemented!() }
    /// Starts reading blocks of the range into the cache, without waiting.
    pub fn prefetch(&self, object: ObjectId, range: Range<u64>) { unimplemented!() }
    /// Writes bytes at an offset. Whole blocks are not read first.
    pub async fn write(&self, object: ObjectId, offset: u64, bytes: &[u8], tx: &Tx) -> Result<()> { unimplemented!() }
    /// Writes a buffer at an offset; whole blocks are kept without a copy.
    pub async fn write_buf(&self, object: ObjectId, offset: u64, data: IoBuf, tx: &Tx) -> Result<()> { unimplemented!() }
    /// Frees a range: whole blocks become holes, the rest zeros. `len` of `u64::MAX` means to the end.
    pub async fn free_range(&self, object: ObjectId, offset: u64, len: u64, tx: &Tx) -> Result<()> { unimplemented!() }
    /// Changes the data block size of an object with at most one block.
    pub async fn set_block_size(&self, object: ObjectId, bytes: u32, tx: &Tx) -> Result<()> { unimplemented!() }
    /// Allocates an object with a number of our choice.
    pub async fn allocate(&self, spec: AllocSpec, tx: &Tx) -> Result<ObjectId> { unimplemented!() }
    /// Allocates an object with a given number.
    pub async fn allocate_at(&self, object: ObjectId, spec: AllocSpec, tx: &Tx) -> Result<()> { unimplemented!() }
    /// Changes the type of an object (zapification).
    pub async fn set_object_type(&self, object: ObjectId, object_type: ObjectType, tx: &Tx) -> Result<()> { unimplemented!() }
    /// Fixes the compression of an object's data (`dn_compress`).
    pub async fn set_object_compression(&self, object: ObjectId, compression: Compression, tx: &Tx) -> Result<()> { unimplemented!() }
    /// Frees an object and everything in it.
    pub async fn free_object(&self, object: ObjectId, tx: &Tx) -> Result<()> { unimplemented!() }
    /// The next allocated object with a number greater than `after`.
    pub async fn next_object(&self, after: ObjectId) -> Result<Option<ObjectId>> { unimplemented!() }
    /// The first byte at or after `offset` that is in a block with data.
    pub async fn next_data(&self, object: ObjectId, offset: u64) -> Result<Option<u64>> { unimplemented!() }
    /// The first byte at or after `offset` that is in a hole; the end of the last block counts as one.
    pub async fn next_hole(&self, object: ObjectId, offset: u64) -> Result<u64> { unimplemented!() }
    /// Writes everything dirty of `txg`, bottom-up, and returns the new root pointer.
    pub async fn sync(&self, txg: Txg, pass: u32, ledger: &mut dyn Ledger) -> Result<BlockPointer> { unimplemented!() }
}
