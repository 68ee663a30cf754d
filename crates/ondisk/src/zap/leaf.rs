//! Leaf blocks of a fat ZAP: a hash table of entries in 24-byte chunks, worked on in place.
//!
//! ```text
//! 0 mark | 16 prefix | 24 magic | 28 free chunks | 30 entries | 32 prefix length | 34 free list | 36 flags
//! 48 hash heads, u16 each, block/32 of them | chunks of 24 bytes
//! chunk: 252 entry | 251 21 bytes of a name or value | 253 free
//! ```
//! Walks through chunk lists are bounded by the number of chunks, so that a corrupt list ends in an error.
//! OpenZFS: include/sys/zap_leaf.h.

use super::LEAF;
use crate::bytes::{
    index, low16, put_bytes, put_u8, put_u16, put_u32, put_u64, slice_at, u8_at, u16_at, u32_at,
    u64_at,
};
use crate::{DecodeError, Result};

/// Data bytes in an array chunk.
pub const ARRAY_BYTES: usize = 21;

pub(super) const MAGIC: u32 = 0x02ab_1eaf;
pub(super) const HEADER: usize = 48;
pub(super) const CHUNK: usize = 24;
pub(super) const NONE: u16 = 0xffff;
pub(super) const ENTRY: u8 = 252;
pub(super) const ARRAY: u8 = 251;
pub(super) const FREE: u8 = 253;
const SORTED_CD: u8 = 1;

/// Chunks an entry takes with a stored name and value of these many bytes.
#[must_use]
pub const fn chunks_for(name_bytes: usize, value_bytes: usize) -> usize {
    1 + name_bytes.div_ceil(ARRAY_BYTES) + value_bytes.div_ceil(ARRAY_BYTES)
}

/// The leaf has too few free chunks: it must be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InsertError {
    #[error("the leaf is full")]
    Full,
    #[error(transparent)]
    Corrupt(#[from] DecodeError),
}

/// An entry to insert.
#[derive(Debug, Clone, Copy)]
pub struct NewEntry<'a> {
    pub hash: u64,
    pub cd: u32,
    /// As stored: a string with its NUL, or big-endian integers.
    pub name: &'a [u8],
    /// Bytes of each integer of the name: 1 for strings, 8 for integer keys.
    pub name_int_size: u8,
    /// Bytes of each integer of the value: 1, 2, 4 or 8.
    pub value_int_size: u8,
    /// Big-endian integers, packed.
    pub value: &'a [u8],
}

/// One entry's chunk, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafEntry {
    /// Number of its chunk.
    pub chunk: u16,
    pub value_int_size: u8,
    /// Next entry in the hash chain.
    pub(super) next: u16,
    pub(super) name_chunk: u16,
    /// Integers in the name: bytes with the NUL for strings, words for integer keys.
    pub name_ints: u16,
    pub(super) value_chunk: u16,
    /// Integers in the value.
    pub value_ints: u16,
    pub cd: u32,
    pub hash: u64,
}

impl LeafEntry {
    /// Bytes of the stored value.
    #[must_use]
    pub fn value_bytes(&self) -> usize {
        usize::from(self.value_ints) * usize::from(self.value_int_size)
    }
}

/// A leaf block: `B` is its bytes, borrowed or owned, a power of two long.
#[derive(Debug, Clone)]
pub struct Leaf<B> {
    block: B,
}

impl<B: AsRef<[u8]>> Leaf<B> {
    /// Takes a block as a leaf.
    ///
    /// # Errors
    /// [`DecodeError`] when it is not one, or its size is not a power of two from 512 bytes to 1 MiB.
    pub fn open(block: B) -> Result<Self> {
        let b = block.as_ref();
        if !b.len().is_power_of_two() || !(512..=1 << 20).contains(&b.len()) {
            return Err(DecodeError::new("zap leaf size", b.len()));
        }
        if u64_at(b, 0) != LEAF || u32_at(b, 24) != MAGIC {
            return Err(DecodeError::new("zap leaf magic", 24));
        }
        if u16_at(b, 32) > 64 {
            return Err(DecodeError::new("zap leaf prefix length", 32));
        }
        Ok(Self { block })
    }

    /// Gives the bytes back.
    #[must_use]
    pub fn into_inner(self) -> B {
        self.block
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.block.as_ref()
    }

    /// log2 of the number of hash heads.
    pub(super) fn hash_shift(&self) -> u32 {
        self.bytes().len().trailing_zeros() - 5
    }

    /// Number of hash heads.
    pub(super) fn heads(&self) -> usize {
        1 << self.hash_shift()
    }

    /// Number of chunks.
    #[must_use]
    pub fn chunk_count(&self) -> usize {
        (self.bytes().len() - 2 * self.heads()) / CHUNK - 2
    }

    fn chunk_at(&self, chunk: u16) -> Result<usize> {
        let at = HEADER + 2 * self.heads() + CHUNK * usize::from(chunk);
        if usize::from(chunk) < self.chunk_count() {
            Ok(at)
        } else {
            Err(DecodeError::new("zap leaf chunk number", at))
        }
    }

    /// The chunk's bytes.
    pub(super) fn chunk(&self, chunk: u16) -> Result<&[u8]> {
        let at = self.chunk_at(chunk)?;
        Ok(slice_at(self.bytes(), at, CHUNK))
    }

    /// Top bits of every hash in this leaf, right-aligned.
    #[must_use]
    pub fn prefix(&self) -> u64 {
        u64_at(self.bytes(), 16)
    }

    /// How many bits [`Self::prefix`] has.
    #[must_use]
    pub fn prefix_len(&self) -> u32 {
        u32::from(u16_at(self.bytes(), 32))
    }

    #[must_use]
    pub fn free_chunks(&self) -> usize {
        usize::from(u16_at(self.bytes(), 28))
    }

    #[must_use]
    pub fn entry_count(&self) -> usize {
        usize::from(u16_at(self.bytes(), 30))
    }

    pub(super) fn free_head(&self) -> u16 {
        u16_at(self.bytes(), 34)
    }

    /// True when entries of one chain are kept in order of their differentiator (normalized ZAPs).
    #[must_use]
    pub fn is_sorted_by_cd(&self) -> bool {
        u8_at(self.bytes(), 36) & SORTED_CD != 0
    }

    /// True when `hash` belongs into this leaf.
    #[must_use]
    pub fn covers(&self, hash: u64) -> bool {
        match self.prefix_len() {
            0 => true,
            len => hash >> (64 - len.min(64)) == self.prefix(),
        }
    }

    pub(super) fn bucket(&self, hash: u64) -> usize {
        let skip = self.prefix_len() + self.hash_shift();
        let shifted = if skip >= 64 {
            hash
        } else {
            hash >> (64 - skip)
        };
        index(shifted) & (self.heads() - 1)
    }

    pub(super) fn head(&self, bucket: usize) -> u16 {
        u16_at(self.bytes(), HEADER + 2 * bucket)
    }

    pub(super) fn entry_in(&self, chunk: u16) -> Result<LeafEntry> {
        let c = self.chunk(chunk)?;
        if u8_at(c, 0) != ENTRY {
            return Err(DecodeError::new(
                "zap leaf entry chunk",
                self.chunk_at(chunk)?,
            ));
        }
        let value_int_size = u8_at(c, 1);
        if !matches!(value_int_size, 1 | 2 | 4 | 8) {
            return Err(DecodeError::new(
                "zap leaf value integer size",
                self.chunk_at(chunk)? + 1,
            ));
        }
        Ok(LeafEntry {
            chunk,
            value_int_size,
            next: u16_at(c, 2),
            name_chunk: u16_at(c, 4),
            name_ints: u16_at(c, 6),
            value_chunk: u16_at(c, 8),
            value_ints: u16_at(c, 10),
            cd: u32_at(c, 12),
            hash: u64_at(c, 16),
        })
    }

    /// The entries of one hash chain.
    fn chain(&self, bucket: usize) -> impl Iterator<Item = Result<LeafEntry>> + '_ {
        let mut next = self.head(bucket);
        let mut left = self.chunk_count() + 1;
        std::iter::from_fn(move || {
            if next == NONE {
                return None;
            }
            left -= 1;
            let entry = if left == 0 {
                Err(DecodeError::new(
                    "zap leaf chain, loops",
                    HEADER + 2 * bucket,
                ))
            } else {
                self.entry_in(next)
            };
            next = entry.as_ref().map_or(NONE, |e| e.next);
            Some(entry)
        })
    }

    /// The entries with exactly this hash, in order of differentiator.
    ///
    /// # Errors
    /// [`DecodeError`] when the chain is corrupt.
    pub fn with_hash(&self, hash: u64) -> Result<Vec<LeafEntry>> {
        let mut found = Vec::new();
        for e in self.chain(self.bucket(hash)) {
            let e = e?;
            if e.hash == hash {
                found.push(e);
            }
        }
        found.sort_by_key(|e| e.cd);
        Ok(found)
    }

    /// The entry whose stored name is `name` (with its NUL, or as big-endian integers).
    ///
    /// # Errors
    /// [`DecodeError`] when the chain or a name is corrupt.
    pub fn find(&self, hash: u64, name: &[u8], name_int_size: u8) -> Result<Option<LeafEntry>> {
        for e in self.with_hash(hash)? {
            if self.name(&e, name_int_size)? == name {
                return Ok(Some(e));
            }
        }
        Ok(None)
    }

    /// Lowest differentiator that no entry of this hash has.
    ///
    /// # Errors
    /// [`DecodeError`] when the chain is corrupt.
    pub fn free_cd(&self, hash: u64) -> Result<u32> {
        let mut cd = 0;
        for e in self.with_hash(hash)? {
            if e.cd == cd {
                cd += 1;
            }
        }
        Ok(cd)
    }

    /// All entries, in order of hash and differentiator.
    ///
    /// # Errors
    /// [`DecodeError`] when a chain is corrupt.
    pub fn entries(&self) -> Result<Vec<LeafEntry>> {
        let mut all = Vec::new();
        for bucket in 0..self.heads() {
            for e in self.chain(bucket) {
                all.push(e?);
            }
            // Chains that join each other would otherwise multiply the work.
            if all.len() > self.chunk_count() {
                return Err(DecodeError::new("zap leaf chains, joined", HEADER));
            }
        }
        all.sort_by_key(|e| (e.hash, e.cd));
        Ok(all)
    }

    fn array(&self, first: u16, len: usize) -> Result<Vec<u8>> {
        if len > self.chunk_count() * ARRAY_BYTES {
            return Err(DecodeError::new(
                "zap leaf array length",
                self.chunk_at(first).unwrap_or(0),
            ));
        }
        let mut out = Vec::with_capacity(len);
        let mut next = first;
        while out.len() < len {
            let c = self.chunk(next)?;
            if u8_at(c, 0) != ARRAY {
                return Err(DecodeError::new(
                    "zap leaf array chunk",
                    self.chunk_at(next)?,
                ));
            }
            let take = (len - out.len()).min(ARRAY_BYTES);
            out.extend_from_slice(slice_at(c, 1, take));
            next = u16_at(c, 22);
        }
        Ok(out)
    }

    /// The stored name: with its NUL, or as big-endian integers.
    ///
    /// # Errors
    /// [`DecodeError`] when its chunks are corrupt.
    pub fn name(&self, e: &LeafEntry, name_int_size: u8) -> Result<Vec<u8>> {
        self.array(
            e.name_chunk,
            usize::from(e.name_ints) * usize::from(name_int_size),
        )
    }

    /// The stored value: big-endian integers, packed.
    ///
    /// # Errors
    /// [`DecodeError`] when its chunks are corrupt.
    pub fn value(&self, e: &LeafEntry) -> Result<Vec<u8>> {
        self.array(e.value_chunk, e.value_bytes())
    }
}

impl Leaf<Vec<u8>> {
    /// An empty leaf of `block_size` bytes (a power of two from 512).
    #[must_use]
    pub fn create(block_size: usize, prefix: u64, prefix_len: u16, sorted_by_cd: bool) -> Self {
        debug_assert!(block_size.is_power_of_two() && (512..=1 << 20).contains(&block_size));
        let mut leaf = Self {
            block: vec![0; block_size.next_power_of_two().clamp(512, 1 << 20)],
        };
        leaf.reset(prefix, prefix_len, sorted_by_cd);
        leaf
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Leaf<B> {
    /// Empties the leaf.
    fn reset(&mut self, prefix: u64, prefix_len: u16, sorted_by_cd: bool) {
        let chunks = low16(self.chunk_count() as u64);
        let heads = self.heads();
        let b = self.block.as_mut();
        b.fill(0);
        put_u64(b, 0, LEAF);
        put_u64(b, 16, prefix);
        put_u32(b, 24, MAGIC);
        put_u16(b, 28, chunks);
        put_u16(b, 32, prefix_len);
        put_u8(b, 36, if sorted_by_cd { SORTED_CD } else { 0 });
        if let Some(table) = b.get_mut(HEADER..HEADER + 2 * heads) {
            table.fill(0xff);
        }
        for i in 0..chunks {
            let at = HEADER + 2 * heads + CHUNK * usize::from(i);
            put_u8(b, at, FREE);
            put_u16(b, at + 22, if i + 1 == chunks { NONE } else { i + 1 });
        }
    }

    fn take_chunk(&mut self) -> Result<u16> {
        let chunk = self.free_head();
        let c = self.chunk(chunk)?;
        let free = self.free_chunks();
        if u8_at(c, 0) != FREE || free == 0 {
            return Err(DecodeError::new("zap leaf free list", 34));
        }
        let next = u16_at(c, 22);
        let b = self.block.as_mut();
        put_u16(b, 34, next);
        put_u16(b, 28, low16(free as u64 - 1));
        Ok(chunk)
    }

    fn release_chunk(&mut self, chunk: u16) -> Result<()> {
        let at = self.chunk_at(chunk)?;
        let (head, free) = (self.free_head(), self.free_chunks());
        let b = self.block.as_mut();
        put_bytes(b, at, &[0; CHUNK]);
        put_u8(b, at, FREE);
        put_u16(b, at + 22, head);
        put_u16(b, 34, chunk);
        put_u16(b, 28, low16(free as u64 + 1));
        Ok(())
    }

    fn put_array(&mut self, data: &[u8]) -> Result<u16> {
        let mut first = NONE;
        let mut link = None;
        for piece in data.chunks(ARRAY_BYTES) {
            let chunk = self.take_chunk()?;
            let at = self.chunk_at(chunk)?;
            let b = self.block.as_mut();
            put_bytes(b, at, &[0; CHUNK]);
            put_u8(b, at, ARRAY);
            put_bytes(b, at + 1, piece);
            put_u16(b, at + 22, NONE);
            match link {
                None => first = chunk,
                Some(previous) => put_u16(b, previous, chunk),
            }
            link = Some(at + 22);
        }
        Ok(first)
    }

    fn release_array(&mut self, first: u16) -> Result<()> {
        let mut next = first;
        let mut left = self.chunk_count();
        while next != NONE {
            let c = self.chunk(next)?;
            if u8_at(c, 0) != ARRAY || left == 0 {
                return Err(DecodeError::new(
                    "zap leaf array chunk",
                    self.chunk_at(next)?,
                ));
            }
            let after = u16_at(c, 22);
            self.release_chunk(next)?;
            next = after;
            left -= 1;
        }
        Ok(())
    }

    /// Adds an entry and returns it. The caller chose a differentiator ([`Self::free_cd`]) and knows that the name is
    /// not there yet.
    ///
    /// # Errors
    /// [`InsertError::Full`] when there are not enough free chunks (nothing was changed), or a corrupt leaf.
    pub fn insert(&mut self, e: &NewEntry<'_>) -> std::result::Result<LeafEntry, InsertError> {
        if chunks_for(e.name.len(), e.value.len()) > self.free_chunks() {
            return Err(InsertError::Full);
        }
        let value_ints = e.value.len() / usize::from(e.value_int_size.max(1));
        let name_ints = e.name.len() / usize::from(e.name_int_size.max(1));
        let chunk = self.take_chunk()?;
        let name_chunk = self.put_array(e.name)?;
        let value_chunk = self.put_array(e.value)?;
        let at = self.chunk_at(chunk)?;
        let b = self.block.as_mut();
        put_bytes(b, at, &[0; CHUNK]);
        put_u8(b, at, ENTRY);
        put_u8(b, at + 1, e.value_int_size);
        put_u16(b, at + 2, NONE);
        put_u16(b, at + 4, name_chunk);
        put_u16(b, at + 6, low16(name_ints as u64));
        put_u16(b, at + 8, value_chunk);
        put_u16(b, at + 10, low16(value_ints as u64));
        put_u32(b, at + 12, e.cd);
        put_u64(b, at + 16, e.hash);
        self.link(chunk, e.hash, e.cd)?;
        let count = self.entry_count();
        put_u16(self.block.as_mut(), 30, low16(count as u64 + 1));
        Ok(self.entry_in(chunk)?)
    }

    /// Links an entry chunk into its chain, before the first entry of greater differentiator.
    fn link(&mut self, chunk: u16, hash: u64, cd: u32) -> Result<()> {
        let bucket = self.bucket(hash);
        let mut place = HEADER + 2 * bucket;
        for e in self.chain(bucket) {
            let e = e?;
            if e.cd > cd {
                break;
            }
            place = self.chunk_at(e.chunk)? + 2;
        }
        let next = u16_at(self.bytes(), place);
        let at = self.chunk_at(chunk)?;
        let b = self.block.as_mut();
        put_u16(b, at + 2, next);
        put_u16(b, place, chunk);
        Ok(())
    }

    /// Removes an entry found in this leaf.
    ///
    /// # Errors
    /// [`DecodeError`] when the entry is not in its chain or the leaf is corrupt.
    pub fn remove(&mut self, entry: &LeafEntry) -> Result<()> {
        let bucket = self.bucket(entry.hash);
        let mut place = HEADER + 2 * bucket;
        let mut found = false;
        for e in self.chain(bucket) {
            let e = e?;
            if e.chunk == entry.chunk {
                found = true;
                break;
            }
            place = self.chunk_at(e.chunk)? + 2;
        }
        if !found {
            return Err(DecodeError::new(
                "zap leaf chain, entry missing",
                HEADER + 2 * bucket,
            ));
        }
        let current = self.entry_in(entry.chunk)?;
        put_u16(self.block.as_mut(), place, current.next);
        self.release_array(current.name_chunk)?;
        self.release_array(current.value_chunk)?;
        self.release_chunk(entry.chunk)?;
        let count = self.entry_count().saturating_sub(1);
        put_u16(self.block.as_mut(), 30, low16(count as u64));
        Ok(())
    }

    /// Replaces the value of an entry found in this leaf and returns the entry as it is now.
    ///
    /// # Errors
    /// [`InsertError::Full`] when the new value does not fit (nothing was changed), or a corrupt leaf.
    pub fn set_value(
        &mut self,
        entry: &LeafEntry,
        value_int_size: u8,
        value: &[u8],
    ) -> std::result::Result<LeafEntry, InsertError> {
        let current = self.entry_in(entry.chunk)?;
        let freed = current.value_bytes().div_ceil(ARRAY_BYTES);
        if value.len().div_ceil(ARRAY_BYTES) > self.free_chunks() + freed {
            return Err(InsertError::Full);
        }
        self.release_array(current.value_chunk)?;
        let value_chunk = self.put_array(value)?;
        let at = self.chunk_at(entry.chunk)?;
        let b = self.block.as_mut();
        put_u8(b, at + 1, value_int_size);
        put_u16(b, at + 8, value_chunk);
        put_u16(
            b,
            at + 10,
            low16((value.len() / usize::from(value_int_size.max(1))) as u64),
        );
        Ok(self.entry_in(entry.chunk)?)
    }

    /// Splits the leaf by the next bit of the hash: this one keeps the entries whose bit is 0, the returned one (same
    /// size, to be written to a new block) has the others.
    ///
    /// `name_int_size` is 1, or 8 for ZAPs with integer keys.
    ///
    /// # Errors
    /// [`DecodeError`] when the leaf is corrupt (then it is unchanged) or cannot be split further.
    pub fn split(&mut self, name_int_size: u8) -> Result<Leaf<Vec<u8>>> {
        let len = self.prefix_len();
        if len >= 63 {
            return Err(DecodeError::new("zap leaf prefix length", 32));
        }
        let (prefix, sorted) = (self.prefix(), self.is_sorted_by_cd());
        let size = self.bytes().len();
        let new_len = low16(u64::from(len) + 1);
        let mut low = Leaf::create(size, prefix << 1, new_len, sorted);
        let mut high = Leaf::create(size, prefix << 1 | 1, new_len, sorted);
        for e in self.entries()? {
            let (name, value) = (self.name(&e, name_int_size)?, self.value(&e)?);
            let target = if e.hash >> (63 - len) & 1 == 1 {
                &mut high
            } else {
                &mut low
            };
            let new = NewEntry {
                hash: e.hash,
                cd: e.cd,
                name: &name,
                name_int_size,
                value_int_size: e.value_int_size,
                value: &value,
            };
            match target.insert(&new) {
                Ok(_) => {}
                Err(InsertError::Corrupt(e)) => return Err(e),
                Err(InsertError::Full) => return Err(DecodeError::new("zap leaf chunk count", 28)),
            }
        }
        self.block.as_mut().copy_from_slice(low.bytes());
        Ok(high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zap::hash;

    fn add(
        leaf: &mut Leaf<Vec<u8>>,
        name: &str,
        value: u64,
    ) -> std::result::Result<LeafEntry, InsertError> {
        let h = hash(0x1234_5679, name.as_bytes(), 0);
        let stored = [name.as_bytes(), &[0]].concat();
        let cd = leaf.free_cd(h)?;
        leaf.insert(&NewEntry {
            hash: h,
            cd,
            name: &stored,
            name_int_size: 1,
            value_int_size: 8,
            value: &value.to_be_bytes(),
        })
    }

    fn get(leaf: &Leaf<Vec<u8>>, name: &str) -> Option<u64> {
        let h = hash(0x1234_5679, name.as_bytes(), 0);
        let e = leaf
            .find(h, &[name.as_bytes(), &[0]].concat(), 1)
            .unwrap()?;
        Some(u64::from_be_bytes(
            leaf.value(&e).unwrap().try_into().unwrap(),
        ))
    }

    #[test]
    fn geometry_of_a_16k_leaf() {
        let leaf = Leaf::create(16384, 0, 0, false);
        assert_eq!(
            (leaf.heads(), leaf.chunk_count(), leaf.free_chunks()),
            (512, 638, 638)
        );
        leaf.check(1).unwrap();
    }

    #[test]
    fn fills_splits_and_empties() {
        let mut leaf = Leaf::create(16384, 0, 0, true);
        let mut names = Vec::new();
        loop {
            let name = format!("{:width$}", names.len(), width = 1 + names.len() % 60);
            match add(&mut leaf, &name, names.len() as u64) {
                Ok(_) => names.push(name),
                Err(InsertError::Full) => break,
                Err(e) => panic!("{e}"),
            }
        }
        leaf.check(1).unwrap();
        let mut high = leaf.split(1).unwrap();
        leaf.check(1).unwrap();
        high.check(1).unwrap();
        assert_eq!(leaf.entry_count() + high.entry_count(), names.len());
        assert!(leaf.entry_count() > 50 && high.entry_count() > 50);
        for (i, name) in names.iter().enumerate() {
            let h = hash(0x1234_5679, name.as_bytes(), 0);
            let home = if leaf.covers(h) { &mut leaf } else { &mut high };
            assert_eq!(get(home, name), Some(i as u64));
            let e = home
                .find(h, &[name.as_bytes(), &[0]].concat(), 1)
                .unwrap()
                .unwrap();
            let e = home.set_value(&e, 1, &[7; 100]).unwrap();
            assert_eq!(home.value(&e).unwrap(), [7; 100]);
            home.remove(&e).unwrap();
            assert_eq!(get(home, name), None);
        }
        assert_eq!((leaf.free_chunks(), high.free_chunks()), (638, 638));
        leaf.check(1).unwrap();
        high.check(1).unwrap();
    }

    #[test]
    fn equal_hashes_get_distinct_differentiators() {
        let mut leaf = Leaf::create(512, 0, 0, false);
        for (cd, name) in [(0, b"a\0"), (1, b"b\0"), (2, b"c\0")] {
            assert_eq!(leaf.free_cd(5 << 60).unwrap(), cd);
            let e = NewEntry {
                hash: 5 << 60,
                cd,
                name,
                name_int_size: 1,
                value_int_size: 1,
                value: &[],
            };
            leaf.insert(&e).unwrap();
        }
        let b = leaf.find(5 << 60, b"b\0", 1).unwrap().unwrap();
        leaf.remove(&b).unwrap();
        assert_eq!(leaf.free_cd(5 << 60).unwrap(), 1);
        leaf.check(1).unwrap();
    }

    #[test]
    fn a_looping_chain_is_an_error() {
        let mut leaf = Leaf::create(512, 0, 0, false);
        let e = add(&mut leaf, "x", 1).unwrap();
        let at = leaf.chunk_at(e.chunk).unwrap();
        let mut block = leaf.into_inner();
        put_u16(&mut block, at + 2, e.chunk);
        let leaf = Leaf::open(block).unwrap();
        assert!(
            leaf.entries().is_err() && leaf.with_hash(e.hash).is_err() && leaf.check(1).is_err()
        );
    }
}
