//! Dictionaries in objects: micro (one block of names to numbers) and fat (a hash table of leaf blocks).
#![allow(clippy::unused_async, unused_variables, reason = "first landing: signatures only")]
use ondisk::{ObjectId, ObjectType};

use crate::error::Result;
use crate::objset::Objset;
use crate::txg::Tx;

/// A value: an array of integers of one width.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ZapValue {
    /// Bytes; strings are stored with their terminating NUL.
    U8(Vec<u8>),
    /// 16-bit integers.
    U16(Vec<u16>),
    /// 32-bit integers.
    U32(Vec<u32>),
    /// 64-bit integers.
    U64(Vec<u64>),
}

/// An entry, as a cursor returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZapEntry {
    /// The key without its NUL; for integer keys their big-endian bytes.
    pub name: Vec<u8>,
    /// The value.
    pub value: ZapValue,
    /// Cookie that continues after this entry. Never 0; stable over changes of other entries and over restarts.
    pub next_cookie: u64,
}

/// How to create a dictionary.
#[derive(Debug, Clone)]
pub struct ZapSpec {
    /// Object type.
    pub object_type: ObjectType,
    /// Normalization of names (`u8_textprep` bits), 0 for byte-exact.
    pub normalization: u64,
    /// Flags: 1 48-bit hashes, 2 integer keys, 4 keys are hashes. Non-zero makes the dictionary fat from the start.
    pub flags: u64,
    /// Bonus type and length.
    pub bonus: (ObjectType, u16),
    /// Slots of the dnode.
    pub slots: u8,
    /// Log2 of the fat block size, 0 for 14.
    pub fat_block_shift: u8,
    /// Log2 of the indirect block size, 0 for 17.
    pub indirect_shift: u8,
}

impl ZapSpec {
    /// A plain dictionary of a type.
    #[must_use]
    pub fn new(object_type: ObjectType) -> Self {
        Self { object_type, normalization: 0, flags: 0, bonus: (ObjectType::NONE, 0), slots: 1, fat_block_shift: 0, indirect_shift: 0 }
    }
}

/// What is known of a dictionary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZapInfo {
    /// One block of names to numbers.
    pub is_micro: bool,
    /// Entries.
    pub entries: u64,
    /// Normalization bits.
    pub normalization: u64,
    /// Flags.
    pub flags: u64,
    /// Leaf blocks.
    pub leafs: u64,
}

/// Creates a dictionary.
pub async fn create(os: &Objset, spec: &ZapSpec, tx: &Tx) -> Result<ObjectId> { unimplemented!() }
/// Creates a dictionary with a given object number.
pub async fn create_at(os: &Objset, object: ObjectId, spec: &ZapSpec, tx: &Tx) -> Result<()> { unimplemented!() }
/// Makes an allocated, empty object a dictionary (zapification keeps the bonus).
pub async fn format(os: &Objset, object: ObjectId, normalization: u64, tx: &Tx) -> Result<()> { unimplemented!() }
/// Describes a dictionary.
pub async fn info(os: &Objset, object: ObjectId) -> Result<ZapInfo> { unimplemented!() }
/// Looks a name up, byte-exact.
pub async fn lookup(os: &Objset, object: ObjectId, name: impl AsRef<[u8]>) -> Result<Option<ZapValue>> { unimplemented!() }
/// Looks a single number up.
pub async fn lookup_u64(os: &Objset, object: ObjectId, name: impl AsRef<[u8]>) -> Result<Option<u64>> { unimplemented!() }
/// Looks a name up under the dictionary's normalization; returns the stored name too, and whether several match.
pub async fn lookup_normalized(os: &Objset, object: ObjectId, name: impl AsRef<[u8]>) -> Result<Option<(ZapValue, Vec<u8>, bool)>> { unimplemented!() }
/// Adds an entry; `ZapEntryExists` when the name is taken.
pub async fn add(os: &Objset, object: ObjectId, name: impl AsRef<[u8]>, value: &ZapValue, tx: &Tx) -> Result<()> { unimplemented!() }
/// Adds an entry with one number.
pub async fn add_u64(os: &Objset, object: ObjectId, name: impl AsRef<[u8]>, value: u64, tx: &Tx) -> Result<()> { unimplemented!() }
/// Adds or replaces an entry.
pub async fn update(os: &Objset, object: ObjectId, name: impl AsRef<[u8]>, value: &ZapValue, tx: &Tx) -> Result<()> { unimplemented!() }
/// Adds or replaces an entry with one number.
pub async fn update_u64(os: &Objset, object: ObjectId, name: impl AsRef<[u8]>, value: u64, tx: &Tx) -> Result<()> { unimplemented!() }
/// Removes an entry; `ZapNoEntry` when there is none.
pub async fn remove(os: &Objset, object: ObjectId, name: impl AsRef<[u8]>, tx: &Tx) -> Result<()> { unimplemented!() }
/// Adds `delta` to a number (absent counts as 0); a result of 0 removes the entry. Returns the new number.
pub async fn increment(os: &Objset, object: ObjectId, name: impl AsRef<[u8]>, delta: i64, tx: &Tx) -> Result<u64> { unimplemented!() }
/// Number of entries.
pub async fn count(os: &Objset, object: ObjectId) -> Result<u64> { unimplemented!() }
/// Up to `max` entries from `cookie` on (0: from the start), in hash order. An empty answer is the end.
pub async fn cursor(os: &Objset, object: ObjectId, cookie: u64, max: usize) -> Result<Vec<ZapEntry>> { unimplemented!() }
/// All entries (small dictionaries).
pub async fn entries(os: &Objset, object: ObjectId) -> Result<Vec<ZapEntry>> { unimplemented!() }
/// Adds the key `hex(value)` with the value `value`.
pub async fn add_int(os: &Objset, object: ObjectId, value: u64, tx: &Tx) -> Result<()> { unimplemented!() }
/// Removes the key `hex(value)`.
pub async fn remove_int(os: &Objset, object: ObjectId, value: u64, tx: &Tx) -> Result<()> { unimplemented!() }
/// Adds the key `hex(key)`.
pub async fn add_int_key(os: &Objset, object: ObjectId, key: u64, value: u64, tx: &Tx) -> Result<()> { unimplemented!() }
/// Adds or replaces the key `hex(key)`.
pub async fn update_int_key(os: &Objset, object: ObjectId, key: u64, value: u64, tx: &Tx) -> Result<()> { unimplemented!() }
/// Looks the key `hex(key)` up.
pub async fn lookup_int_key(os: &Objset, object: ObjectId, key: u64) -> Result<Option<u64>> { unimplemented!() }
/// Looks an integer key up (dictionaries with flag 2).
pub async fn lookup_u64_key(os: &Objset, object: ObjectId, key: &[u64]) -> Result<Option<ZapValue>> { unimplemented!() }
/// Adds an integer key.
pub async fn add_u64_key(os: &Objset, object: ObjectId, key: &[u64], value: &ZapValue, tx: &Tx) -> Result<()> { unimplemented!() }
/// Adds or replaces an integer key.
pub async fn update_u64_key(os: &Objset, object: ObjectId, key: &[u64], value: &ZapValue, tx: &Tx) -> Result<()> { unimplemented!() }
/// Removes an integer key.
pub async fn remove_u64_key(os: &Objset, object: ObjectId, key: &[u64], tx: &Tx) -> Result<()> { unimplemented!() }
