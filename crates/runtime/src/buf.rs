//! Buffers that cross the disk seam: owned, aligned, counted, immutable once shared.
//!
//! A buffer is filled as an [`IoBufMut`] and then frozen into an [`IoBuf`], which can be cloned and sliced without
//! copying and sent between threads. Memory that came from [`IoBufMut`] starts at a multiple of [`ALIGNMENT`], so
//! it can be used for direct I/O; an `IoBuf` made from a `Vec`, or a slice at an odd address, may not be aligned, and
//! the host driver then copies before it writes.
//!
//! Does not know disks.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use crate::arena::{LARGEST, arena};
use crate::mapping;

/// Alignment in bytes of memory allocated here: the largest logical sector in common use, and the page size.
pub const ALIGNMENT: usize = 4096;

/// A block of initialised bytes, aligned to [`ALIGNMENT`]: of the arena, mapped by itself, or of the heap.
struct Memory {
    start: NonNull<u8>,
    /// A multiple of [`ALIGNMENT`], never zero.
    capacity: usize,
}

// SAFETY: `Memory` owns its bytes exclusively; shared access is read-only (through `Arc<Memory>` only `&[u8]` is
// handed out), so moving it to or sharing it with another thread is sound.
unsafe impl Send for Memory {}
// SAFETY: see above; no interior mutability.
unsafe impl Sync for Memory {}

impl Memory {
    /// `zero`: the bytes must be zero; else they are only initialised.
    fn new(len: usize, zero: bool) -> Self {
        let capacity = len
            .max(1)
            .checked_next_multiple_of(ALIGNMENT)
            .expect("buffer length fits");
        if let Some(buf) = arena().and_then(|arena| arena.take(capacity)) {
            let mut memory = Self {
                start: buf.start,
                capacity: buf.capacity,
            };
            if zero && !buf.is_zero {
                memory.bytes_mut()[..len].fill(0);
            }
            return memory;
        }
        if Self::is_mapped(capacity) {
            let start = mapping::map(capacity);
            let start = start.unwrap_or_else(|| handle_alloc_error(Self::layout(capacity)));
            return Self { start, capacity };
        }
        let layout = Self::layout(capacity);
        // SAFETY: the layout has a non-zero size.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(raw) else {
            handle_alloc_error(layout)
        };
        Self { start, capacity }
    }

    /// Whether memory of this size has a mapping of its own. Miri has no mappings to speak of.
    fn is_mapped(capacity: usize) -> bool {
        capacity > LARGEST && !cfg!(miri)
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGNMENT).expect("buffer length fits the address space")
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `start` points to `capacity` bytes owned by `self`, initialised by the allocator or (arena, mappings) by
        // the kernel.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.capacity) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes the access exclusive.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.capacity) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let address = self.start.as_ptr() as usize;
        if let Some(arena) = arena()
            && arena.chunk_of(address).is_some()
        {
            arena.give_back(self.start);
            return;
        }
        if Self::is_mapped(self.capacity) {
            // SAFETY: mapped in `new` with this very length, and not used afterwards.
            unsafe { mapping::unmap(self.start, self.capacity) };
            return;
        }
        // SAFETY: allocated from the heap in `new` with this very layout, and not used afterwards.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.capacity)) };
    }
}

/// A writable, exclusively owned, aligned buffer.
pub struct IoBufMut {
    memory: Memory,
    len: usize,
}

impl IoBufMut {
    /// Returns a buffer of `len` zero bytes.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self {
            memory: Memory::new(len, true),
            len,
        }
    }

    /// Returns a buffer of `len` bytes whose content is unspecified (though initialised): for callers that
    /// overwrite all of it. Cheaper than [`IoBufMut::zeroed`] when memory is reused.
    #[must_use]
    pub fn scratch(len: usize) -> Self {
        Self {
            memory: Memory::new(len, false),
            len,
        }
    }

    /// Makes the buffer immutable and shareable, without copying.
    #[must_use]
    pub fn freeze(self) -> IoBuf {
        let len = self.len;
        IoBuf {
            storage: Storage::Aligned(Arc::new(self.memory)),
            start: 0,
            len,
        }
    }

    /// Shortens the buffer to its first `len` bytes; does nothing when it is already shorter.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Deref for IoBufMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory.bytes()[..self.len]
    }
}

impl DerefMut for IoBufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        &mut self.memory.bytes_mut()[..len]
    }
}

impl fmt::Debug for IoBufMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoBufMut({} bytes)", self.len)
    }
}

#[derive(Clone)]
enum Storage {
    Empty,
    Aligned(Arc<Memory>),
    Vector(Arc<Vec<u8>>),
}

/// An immutable, counted buffer. Cloning and slicing share the memory.
#[derive(Clone)]
pub struct IoBuf {
    storage: Storage,
    start: usize,
    len: usize,
}

impl IoBuf {
    /// Returns an empty buffer.
    #[must_use]
    pub const fn empty() -> Self {
        Self {
            storage: Storage::Empty,
            start: 0,
            len: 0,
        }
    }

    /// Returns `len` zero bytes.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        IoBufMut::zeroed(len).freeze()
    }

    /// Whether both are the very same bytes in memory (not only equal ones). While both are held, they are equal then.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq::<[u8]>(&**self, &**other)
    }

    /// Returns an aligned copy of `bytes`.
    #[must_use]
    pub fn copy_from(bytes: &[u8]) -> Self {
        let mut buf = IoBufMut::scratch(bytes.len());
        buf.copy_from_slice(bytes);
        buf.freeze()
    }

    /// Returns the part `range` (in bytes, relative to this buffer) without copying.
    ///
    /// # Panics
    /// When the range is not inside the buffer.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "slice {range:?} of a buffer of {} bytes",
            self.len
        );
        Self {
            storage: self.storage.clone(),
            start: self.start + range.start,
            len: range.end - range.start,
        }
    }

    /// Returns a writable copy.
    #[must_use]
    pub fn to_mut(&self) -> IoBufMut {
        let mut buf = IoBufMut::scratch(self.len);
        buf.copy_from_slice(self);
        buf
    }

    /// Returns the buffer as writable without copying when it is the only holder (and it is a whole aligned
    /// buffer), else a copy.
    #[must_use]
    pub fn into_mut(self) -> IoBufMut {
        match self {
            Self {
                storage: Storage::Aligned(memory),
                start: 0,
                len,
            } => match Arc::try_unwrap(memory) {
                Ok(memory) => IoBufMut { memory, len },
                Err(memory) => Self {
                    storage: Storage::Aligned(memory),
                    start: 0,
                    len,
                }
                .to_mut(),
            },
            shared => shared.to_mut(),
        }
    }

    /// Returns the bytes of memory that this buffer keeps from being reused, however short a slice of it this is. The
    /// memory may be shared with other buffers.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        match &self.storage {
            Storage::Empty => 0,
            Storage::Aligned(memory) => memory.capacity,
            Storage::Vector(vector) => vector.capacity(),
        }
    }

    /// Returns true when the bytes start at a multiple of `alignment` in memory.
    #[must_use]
    pub fn is_aligned_to(&self, alignment: usize) -> bool {
        (self.as_ptr() as usize).is_multiple_of(alignment)
    }
}

impl Deref for IoBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.storage {
            Storage::Empty => &[],
            Storage::Aligned(memory) => &memory.bytes()[self.start..self.start + self.len],
            Storage::Vector(vector) => &vector[self.start..self.start + self.len],
        }
    }
}

impl AsRef<[u8]> for IoBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Vec<u8>> for IoBuf {
    /// Takes the vector without copying; the result need not be aligned.
    fn from(vector: Vec<u8>) -> Self {
        let len = vector.len();
        Self {
            storage: Storage::Vector(Arc::new(vector)),
            start: 0,
            len,
        }
    }
}

impl From<IoBufMut> for IoBuf {
    fn from(buf: IoBufMut) -> Self {
        buf.freeze()
    }
}

impl Default for IoBuf {
    fn default() -> Self {
        Self::empty()
    }
}

impl PartialEq for IoBuf {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for IoBuf {}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_zeroed_and_shared() {
        let mut buf = IoBufMut::zeroed(5000);
        assert!(buf.iter().all(|&byte| byte == 0));
        buf[4999] = 7;
        let buf = buf.freeze();
        assert!(buf.is_aligned_to(ALIGNMENT));
        let tail = buf.slice(4096..5000);
        assert_eq!(tail.len(), 904);
        assert_eq!(tail[903], 7);
        assert_eq!(tail.slice(903..904).as_ptr(), &raw const buf[4999]);
    }

    #[test]
    fn into_mut_reuses_memory_only_when_alone() {
        let buf = IoBuf::copy_from(b"abc");
        let address = buf.as_ptr();
        let alone = buf.into_mut();
        assert_eq!(alone.as_ptr(), address);
        let shared = alone.freeze();
        let other = shared.clone();
        let mut copy = shared.into_mut();
        copy[0] = b'x';
        assert_eq!(&*other, b"abc");
    }

    #[test]
    fn vectors_are_taken_without_copy() {
        let vector = vec![1_u8; 10];
        let address = vector.as_ptr();
        let buf = IoBuf::from(vector);
        assert_eq!(buf.as_ptr(), address);
        assert_eq!(buf.slice(1..2).memory_bytes(), buf.memory_bytes());
        assert_eq!(IoBuf::empty().len(), 0);
    }
}
