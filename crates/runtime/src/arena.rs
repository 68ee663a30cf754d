//! Where I/O buffers live: one reserved region of address space, cut into chunks, cut into buffers of equal size.
//!
//! Three reasons not to use the heap: a freed buffer is used again while it is warm, without page faults (a fresh
//! 128 KiB costs more in faults than its checksum); chunks are huge-page sized and aligned; and a chunk can be
//! registered with an io_uring once instead of pinning pages for each operation.
//!
//! Fresh memory comes in huge pages, a chunk at a time, which is the cheapest where the kernel has it. A virtual machine's host
//! may have to find it first, which takes up to ten times as long as small pages do (docs/measurements/2026-12-01-memory.md):
//! each first touch of a chunk is timed, and after a slow one the next chunks get small pages.
//!
//! ```text
//!   region:  | chunk 0 | chunk 1 | chunk 2 | ...reserved, not yet touched...
//!   chunk 1: | 128 KiB | 128 KiB | ... 16 buffers of its size class ... |
//! ```
//!
//! Buffers above the largest class (1 MiB) have mappings of their own (`mapping`); the others come from the heap when the region is
//! used up or cannot be had.
//! Knows nothing of disks; `host::Uring` asks which chunk an address is in.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

/// Bytes in a chunk: a huge page.
pub(crate) const CHUNK: usize = 2 << 20;

/// Address space to reserve; halved until the kernel agrees. It costs nothing until it is touched.
const REGION_MAX: usize = 64 << 30;
const REGION_MIN: usize = 64 << 20;

/// Sizes of buffers, in bytes: powers of two and the halves between, to waste at most a third.
const CLASSES: [usize; 17] = {
    let kib = [
        4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 640, 768, 1024,
    ];
    let mut bytes = [0; 17];
    let mut index = 0;
    while index < kib.len() {
        bytes[index] = kib[index] << 10;
        index += 1;
    }
    bytes
};

/// The largest buffer served, in bytes.
pub(crate) const LARGEST: usize = CLASSES[CLASSES.len() - 1];

/// Words of a chunk's bitmaps: a bit for each buffer of the smallest class.
const WORDS: usize = CHUNK / CLASSES[0] / 64;

/// A huge page that takes longer to come than this is slow: small pages for the same memory take 0.6 ms.
const HUGE_SLOW: Duration = Duration::from_millis(1);

/// Chunks that get small pages after a slow huge one, before a huge one is tried again: one of 5 ms costs them an eighth then.
const SMALL_AFTER_SLOW: usize = 64;

/// A fresh buffer of small pages of at least so many bytes gets them in one call instead of by a fault each.
const POPULATE_MIN: usize = 16 << 10;

/// Whole free chunks kept with their memory until [`keep_free`] says otherwise; those beyond give it back to the kernel at once.
const FREE_CHUNKS_KEPT: usize = 32;

static FREE_CHUNKS: AtomicUsize = AtomicUsize::new(FREE_CHUNKS_KEPT);

/// Keeps at least so many bytes of free buffers for the next user instead of giving them back to the kernel, which
/// clears them again first. What a transaction group frees when it has synced (its own buffers and those of what it
/// replaced) the next one takes again: an eighth of the cache is about that. For the whole process; the highest value
/// counts.
pub fn keep_free(bytes: usize) {
    FREE_CHUNKS.fetch_max(bytes / CHUNK, Ordering::Relaxed);
}

/// Chunks that may be registered with an io_uring, unless [`register_at_most`] says less.
static REGISTERED_CHUNKS: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Limits how much buffer memory is registered with io_urings from now on. What is registered saves work for each transfer,
/// and stays resident whole and for good. For the whole process; the lowest value counts.
pub fn register_at_most(bytes: usize) {
    REGISTERED_CHUNKS.fetch_min(bytes / CHUNK, Ordering::Relaxed);
}

/// Gives about so many bytes of free memory back to the kernel, whatever [`keep_free`] was set to: that of free buffers, except
/// what is registered with an io_uring, and when that is not enough that of the heap. More than that would be taken again at
/// once, and cleared first. Takes some milliseconds, and is to be called when memory is short; from any thread.
pub fn give_back_free(bytes: usize) {
    let given = arena().map_or(0, |arena| arena.give_back_free(bytes));
    if given >= bytes {
        return;
    }
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    // SAFETY: may be called at any time from any thread. The allocator keeps what is free in the middle of its heaps, which is
    // a quarter of the whole process after many small files (docs/measurements/2026-11-22-memory.md).
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Keeps so many bytes of free buffers ready, with their memory, from now on: takes from the kernel what is missing, one chunk at
/// a time while `may` allows it, and returns when it is there or may not be taken. [`give_back_idle`] leaves as much. To be called
/// again when some was used, from a thread that has nothing else to do: a fresh GiB takes 0.2 s, and where a virtual machine's
/// host has to find the memory first, three (docs/measurements/2026-11-26-memory.md).
pub fn prefault(bytes: usize, may: impl Fn() -> bool) {
    if let Some(arena) = arena() {
        arena.prefault(bytes / CHUNK, may);
    }
}

/// Waits until half of what [`prefault`] keeps ready was used, or for so long.
pub fn wait_for_prefault(longest: Duration) {
    if let Some(arena) = arena() {
        arena.wait_for_prefault(longest);
    }
}

/// Gives half of the buffer memory back to the kernel that has been free since the last call. To be called now and then, at
/// intervals that are longer than a transaction group; from any thread.
pub fn give_back_idle() {
    if let Some(arena) = arena() {
        arena.give_back_idle();
    }
}

pub(crate) struct Arena {
    base: usize,
    chunks_max: usize,
    state: Mutex<ArenaState>,
    /// Fewer than half of the chunks to keep ready are there.
    is_low: Condvar,
    /// Chunks that get small pages before huge ones are tried again.
    small_left: AtomicUsize,
}

#[derive(Default)]
struct ArenaState {
    /// Chunks ever used, in order.
    chunks: Vec<Chunk>,
    /// Free chunks that have their memory: the one that was used last is taken first.
    free_warm: VecDeque<usize>,
    /// Free chunks whose memory the kernel has.
    free_cold: Vec<usize>,
    /// The fewest there were in `free_warm` since [`Arena::give_back_idle`].
    idle: usize,
    /// Chunks to keep in `free_warm`: [`Arena::prefault`].
    ready: usize,
    /// By class: chunks that have both used and free buffers (or have just been taken).
    partial: [Vec<usize>; CLASSES.len()],
}

struct Chunk {
    class: usize,
    free_count: usize,
    free: [u64; WORDS],
    /// Buffers never written since the kernel gave the pages: they are zero.
    untouched: [u64; WORDS],
    /// Index in its class's `partial`.
    partial_index: Option<usize>,
    /// An io_uring holds its pages: they must stay.
    pinned: bool,
    /// The memory of all its buffers is there.
    is_backed: bool,
    /// The pages the kernel was told to take for it.
    advised: Pages,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pages {
    Unsaid,
    Huge,
    Small,
}

/// A buffer of the arena.
pub(crate) struct ArenaBuf {
    pub(crate) start: NonNull<u8>,
    pub(crate) capacity: usize,
    /// All bytes are zero.
    pub(crate) is_zero: bool,
}

/// Returns the process's arena; `None` when it cannot be had (or under miri, which has no mmap to speak of).
pub(crate) fn arena() -> Option<&'static Arena> {
    static ARENA: OnceLock<Option<Arena>> = OnceLock::new();
    ARENA.get_or_init(Arena::reserve).as_ref()
}

impl Arena {
    fn reserve() -> Option<Self> {
        if cfg!(miri) {
            return None;
        }
        let mut size = REGION_MAX;
        while size >= REGION_MIN {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no memory of ours.
            let mapped = unsafe {
                mmap_anonymous(
                    std::ptr::null_mut(),
                    size,
                    ProtFlags::READ | ProtFlags::WRITE,
                    flags,
                )
            };
            if let Ok(start) = mapped {
                let base = (start as usize).next_multiple_of(CHUNK);
                let chunks_max = (start as usize + size - base) / CHUNK;
                return Some(Self {
                    base,
                    chunks_max,
                    state: Mutex::default(),
                    is_low: Condvar::new(),
                    small_left: AtomicUsize::new(0),
                });
            }
            size /= 2;
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, ArenaState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a buffer of at least `len` bytes; `None` when it is too large or the region is used up.
    pub(crate) fn take(&self, len: usize) -> Option<ArenaBuf> {
        let class = CLASSES.iter().position(|&size| size >= len)?;
        let capacity = CLASSES[class];
        let mut state = self.lock();
        let number = match state.partial[class].last() {
            Some(&number) => number,
            None => self.start_chunk(&mut state, class)?,
        };
        let chunk = &mut state.chunks[number];
        let word = chunk
            .free
            .iter()
            .position(|&word| word != 0)
            .expect("a partial chunk has a free buffer");
        let bit = chunk.free[word].trailing_zeros() as usize;
        let mask = 1 << bit;
        chunk.free[word] &= !mask;
        chunk.free_count -= 1;
        let is_zero = chunk.untouched[word] & mask != 0;
        chunk.untouched[word] &= !mask;
        let needs_memory = is_zero && !chunk.is_backed;
        let is_first = chunk.free_count + 1 == CHUNK / capacity;
        if chunk.free_count == 0 {
            chunk.partial_index = None;
            state.partial[class].pop();
        }
        drop(state);
        let address = self.base + number * CHUNK + (word * 64 + bit) * capacity;
        let start = NonNull::new(std::ptr::with_exposed_provenance_mut(address))?;
        if needs_memory {
            if is_first && self.back_with_huge_page(number) {
                self.lock().chunks[number].is_backed = true;
            } else if capacity >= POPULATE_MIN {
                populate(start, capacity);
            }
        }
        Some(ArenaBuf {
            start,
            capacity,
            is_zero,
        })
    }

    /// Gives a buffer back. `start` came from [`Arena::take`] and is not used any more.
    pub(crate) fn give_back(&self, start: NonNull<u8>) {
        let offset = start.as_ptr() as usize - self.base;
        let number = offset / CHUNK;
        let mut state = self.lock();
        let state = &mut *state;
        let chunk = &mut state.chunks[number];
        let class = chunk.class;
        let index = offset % CHUNK / CLASSES[class];
        let mask = 1_u64 << (index % 64);
        assert!(
            chunk.free[index / 64] & mask == 0,
            "a buffer is given back once"
        );
        chunk.free[index / 64] |= mask;
        chunk.free_count += 1;
        let partial_index = *chunk.partial_index.get_or_insert_with(|| {
            state.partial[class].push(number);
            state.partial[class].len() - 1
        });
        // The last chunk of a class stays, or alternating take and give back would rebuild it each time.
        if chunk.free_count == CHUNK / CLASSES[class] && state.partial[class].len() > 1 {
            chunk.partial_index = None;
            state.partial[class].swap_remove(partial_index);
            if let Some(&moved) = state.partial[class].get(partial_index) {
                state.chunks[moved].partial_index = Some(partial_index);
            }
            self.retire(state, number);
        }
    }

    fn retire(&self, state: &mut ArenaState, number: usize) {
        state.free_warm.push_back(number);
        if state.free_warm.len() > FREE_CHUNKS.load(Ordering::Relaxed) {
            self.cool(state);
        }
    }

    /// Gives the memory of the chunk back to the kernel that has been free longest. Returns whether there was one that may.
    fn cool(&self, state: &mut ArenaState) -> bool {
        for partial_index in 0..state.free_warm.len() {
            let number = state.free_warm[partial_index];
            let chunk = &mut state.chunks[number];
            let start = std::ptr::with_exposed_provenance_mut(self.base + number * CHUNK);
            // SAFETY: the whole chunk lies in our region and no buffer of it is in use.
            if chunk.pinned || unsafe { madvise(start, CHUNK, Advice::LinuxDontNeed) }.is_err() {
                continue;
            }
            chunk.untouched = [u64::MAX; WORDS];
            chunk.is_backed = false;
            state.free_warm.remove(partial_index);
            state.free_cold.push(number);
            state.idle = state.idle.min(state.free_warm.len());
            return true;
        }
        false
    }

    fn prefault(&self, chunks: usize, may: impl Fn() -> bool) {
        self.lock().ready = chunks;
        while may() {
            let Some(number) = self.chunk_to_prefault() else {
                return;
            };
            // Without the lock: this is what takes time. Only the chunk's first users would have to wait for it otherwise.
            let is_backed =
                self.back_with_huge_page(number) || populate(self.start_of(number), CHUNK);
            let mut state = self.lock();
            if !is_backed {
                state.free_cold.push(number);
                return;
            }
            state.chunks[number].is_backed = true;
            // Behind those that were used: their memory is warm.
            state.free_warm.push_front(number);
        }
    }

    /// Takes a chunk without memory off its list, or a new one, if there are fewer than should be ready.
    fn chunk_to_prefault(&self) -> Option<usize> {
        let mut state = self.lock();
        if state.free_warm.len() >= state.ready {
            return None;
        }
        match state.free_cold.pop() {
            Some(number) => Some(number),
            None => self.add_chunk(&mut state),
        }
    }

    fn wait_for_prefault(&self, longest: Duration) {
        let state = self.lock();
        let enough = |state: &mut ArenaState| state.free_warm.len() >= state.ready / 2;
        let _ = self.is_low.wait_timeout_while(state, longest, enough);
    }

    fn give_back_idle(&self) {
        // One chunk at a time, here and below: others wait for the lock.
        let state = self.lock();
        let unused = state.idle.saturating_sub(state.ready);
        drop(state);
        for _ in 0..unused.div_ceil(2) {
            self.cool(&mut self.lock());
        }
        let mut state = self.lock();
        state.idle = state.free_warm.len();
    }

    fn give_back_free(&self, bytes: usize) -> usize {
        let mut given = 0;
        while given < bytes && self.cool(&mut self.lock()) {
            given += CHUNK;
        }
        let mut number = 0;
        while given < bytes
            && let Some(touched) = self.give_back_chunk(number)
        {
            given += touched;
            number += 1;
        }
        given
    }

    /// Gives the touched free buffers of a chunk back to the kernel and returns their bytes; `None` when there is no such chunk.
    fn give_back_chunk(&self, number: usize) -> Option<usize> {
        let mut state = self.lock();
        let chunk = state.chunks.get_mut(number)?;
        if chunk.pinned {
            return Some(0);
        }
        let size = CLASSES[chunk.class];
        let slots = CHUNK / size;
        let is_touched = |chunk: &Chunk, slot: usize| {
            let (word, mask) = (slot / 64, 1 << (slot % 64));
            chunk.free[word] & mask != 0 && chunk.untouched[word] & mask == 0
        };
        let (mut slot, mut given) = (0, 0);
        while slot < slots {
            let first = slot;
            while slot < slots && is_touched(chunk, slot) {
                slot += 1;
            }
            if slot == first {
                slot += 1;
                continue;
            }
            let address = self.base + number * CHUNK + first * size;
            let start = std::ptr::with_exposed_provenance_mut(address);
            let bytes = (slot - first) * size;
            // SAFETY: the range lies in a chunk of our region, and no buffer of it is in use while we hold the lock.
            if unsafe { madvise(start, bytes, Advice::LinuxDontNeed) }.is_ok() {
                given += bytes;
                chunk.is_backed = false;
                for slot in first..slot {
                    chunk.untouched[slot / 64] |= 1 << (slot % 64);
                }
            }
        }
        if chunk.free_count == slots && (0..slots).all(|slot| !is_touched(chunk, slot)) {
            // The form that `start_chunk` tests for.
            chunk.untouched = [u64::MAX; WORDS];
        }
        Some(given)
    }

    /// Whether the chunk is one that may be registered with an io_uring.
    pub(crate) fn may_pin(number: usize) -> bool {
        number < REGISTERED_CHUNKS.load(Ordering::Relaxed)
    }

    fn start_chunk(&self, state: &mut ArenaState, class: usize) -> Option<usize> {
        let slots = CHUNK / CLASSES[class];
        let mut all = [0; WORDS];
        for slot in 0..slots {
            all[slot / 64] |= 1 << (slot % 64);
        }
        let free = match state.free_warm.pop_back() {
            Some(number) => Some(number),
            None => state.free_cold.pop(),
        };
        state.idle = state.idle.min(state.free_warm.len());
        if state.free_warm.len() + 1 == state.ready / 2 {
            self.is_low.notify_one();
        }
        let number = match free {
            Some(number) => number,
            None => self.add_chunk(state)?,
        };
        let chunk = &mut state.chunks[number];
        // Whether a buffer of another size was touched is known for whole chunks only.
        let untouched = if chunk.untouched == [u64::MAX; WORDS] {
            [u64::MAX; WORDS]
        } else {
            [0; WORDS]
        };
        *chunk = Chunk {
            class,
            free_count: slots,
            free: all,
            untouched,
            partial_index: None,
            pinned: chunk.pinned,
            is_backed: chunk.is_backed,
            advised: chunk.advised,
        };
        state.chunks[number].partial_index = Some(state.partial[class].len());
        state.partial[class].push(number);
        Some(number)
    }

    /// Returns a chunk that was never used, without buffers.
    fn add_chunk(&self, state: &mut ArenaState) -> Option<usize> {
        let number = state.chunks.len();
        if number >= self.chunks_max {
            return None;
        }
        state.chunks.push(Chunk {
            class: 0,
            free_count: 0,
            free: [0; WORDS],
            untouched: [u64::MAX; WORDS],
            partial_index: None,
            pinned: false,
            is_backed: false,
            advised: Pages::Unsaid,
        });
        Some(number)
    }

    /// Gives a chunk without memory a huge page, or says that it should have small ones. Returns whether all of its memory is there.
    ///
    /// Not to be called with the lock: this takes up to milliseconds. Buffers of the chunk may be in use meanwhile.
    #[allow(
        clippy::disallowed_types,
        clippy::disallowed_methods,
        reason = "what the kernel takes is real time, and changes nothing that a simulation sees"
    )]
    fn back_with_huge_page(&self, number: usize) -> bool {
        let counted_down = |left: usize| left.checked_sub(1);
        let (relaxed, left) = (Ordering::Relaxed, &self.small_left);
        let takes_small = left.fetch_update(relaxed, relaxed, counted_down).is_ok();
        let (pages, advice) = if takes_small {
            (Pages::Small, Advice::LinuxNoHugepage)
        } else {
            (Pages::Huge, Advice::LinuxHugepage)
        };
        let start = self.start_of(number);
        let was = std::mem::replace(&mut self.lock().chunks[number].advised, pages);
        if was != pages {
            // SAFETY: the chunk lies in our region; the advice changes no content. Refusal is harmless: there are pages in any case.
            let _ = unsafe { madvise(start.as_ptr().cast(), CHUNK, advice) };
        }
        if takes_small {
            return false;
        }
        let before = std::time::Instant::now();
        let is_backed = populate(start, CHUNK);
        if before.elapsed() > HUGE_SLOW {
            self.small_left.store(SMALL_AFTER_SLOW, relaxed);
        }
        is_backed
    }

    fn start_of(&self, number: usize) -> NonNull<u8> {
        NonNull::new(std::ptr::with_exposed_provenance_mut(
            self.base + number * CHUNK,
        ))
        .expect("no mapping begins at 0")
    }

    /// Returns the number of the chunk that holds the address.
    pub(crate) fn chunk_of(&self, address: usize) -> Option<usize> {
        let number = address.checked_sub(self.base)? / CHUNK;
        (number < self.chunks_max).then_some(number)
    }

    /// Keeps the chunk's pages from now on and returns its address, for registering it with the kernel.
    pub(crate) fn pin(&self, number: usize) -> usize {
        self.lock().chunks[number].pinned = true;
        self.base + number * CHUNK
    }
}

/// Has the kernel give the memory of a range of the arena now, if it has not. Returns whether it is there.
fn populate(start: NonNull<u8>, bytes: usize) -> bool {
    // SAFETY: the range lies in our region, and its content stays as it is.
    unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxPopulateWrite) }.is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Bytes of the arena that have memory, by the kernel's account.
    fn resident(arena: &Arena) -> usize {
        let used = arena.lock().chunks.len() * CHUNK;
        let mut pages = vec![0_u8; used / 4096];
        let start = std::ptr::with_exposed_provenance_mut(arena.base);
        // SAFETY: the range is mapped, and there is a byte for each of its pages.
        assert_eq!(unsafe { libc::mincore(start, used, pages.as_mut_ptr()) }, 0);
        pages.iter().filter(|&page| page & 1 != 0).count() * 4096
    }

    /// Random takes and give-backs against a map of what is held: no overlap, right sizes, zero when promised.
    #[test]
    fn buffers_do_not_overlap() {
        let Some(arena) = Arena::reserve() else {
            return;
        };
        let mut held: BTreeMap<usize, (usize, u8)> = BTreeMap::new();
        let mut random = 1_u64;
        for step in 0..20_000_u32 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let draw = usize::try_from(random >> 40).expect("24 bits");
            if held.len() > 100 || (draw.is_multiple_of(3) && !held.is_empty()) {
                let nth = draw % held.len();
                let (&address, &(capacity, fill)) = held.iter().nth(nth).expect("inside");
                held.remove(&address);
                let start = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(address))
                    .expect("not null");
                // SAFETY: held by this test and initialised below.
                let bytes = unsafe { std::slice::from_raw_parts(start.as_ptr(), capacity) };
                assert!(bytes[0] == fill && bytes[capacity - 1] == fill);
                arena.give_back(start);
            } else {
                let len = draw % LARGEST + 1;
                let buf = arena.take(len).expect("there is room");
                assert!(buf.capacity >= len && (buf.capacity <= 4096 || buf.capacity < len * 2));
                let address = buf.start.as_ptr() as usize;
                assert!(address.is_multiple_of(4096));
                let before = held.range(..=address).next_back();
                assert!(before.is_none_or(|(&start, &(capacity, _))| start + capacity <= address));
                let after = held.range(address..).next();
                assert!(after.is_none_or(|(&start, _)| address + buf.capacity <= start));
                // SAFETY: the buf is ours, mapped and (being anonymous memory) initialised.
                let bytes =
                    unsafe { std::slice::from_raw_parts_mut(buf.start.as_ptr(), buf.capacity) };
                if buf.is_zero {
                    assert!(
                        bytes[0] == 0
                            && bytes[buf.capacity / 2] == 0
                            && bytes[buf.capacity - 1] == 0
                    );
                }
                let fill = step.to_le_bytes()[0] | 1;
                (bytes[0], bytes[buf.capacity / 2], bytes[buf.capacity - 1]) = (fill, fill, fill);
                held.insert(address, (buf.capacity, fill));
            }
        }
    }

    #[test]
    fn what_is_free_is_given_back_and_is_zero_then() {
        let Some(arena) = Arena::reserve() else {
            return;
        };
        let take = |fill: u8| {
            let buf = arena.take(64 << 10).expect("there is room");
            // SAFETY: the buf is ours and mapped.
            unsafe { buf.start.as_ptr().write_bytes(fill, buf.capacity) };
            buf
        };
        let bufs: Vec<ArenaBuf> = (1..=100).map(take).collect();
        for (index, buf) in bufs.iter().enumerate() {
            if index % 3 != 0 {
                arena.give_back(buf.start);
            }
        }
        assert_eq!(arena.give_back_free(usize::MAX), 66 * (64 << 10));
        assert_eq!(
            arena.give_back_free(usize::MAX),
            0,
            "nothing is given back twice"
        );
        for (index, buf) in bufs.iter().enumerate().step_by(3) {
            // SAFETY: held since it was filled.
            let bytes = unsafe { std::slice::from_raw_parts(buf.start.as_ptr(), buf.capacity) };
            let fill = u8::try_from(index + 1).expect("a small number");
            assert!(bytes.iter().all(|&byte| byte == fill));
        }
        for _ in 0..66 {
            let buf = arena.take(64 << 10).expect("there is room");
            // SAFETY: the buf is ours and mapped.
            let bytes = unsafe { std::slice::from_raw_parts(buf.start.as_ptr(), buf.capacity) };
            assert!(buf.is_zero && bytes.iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn unused_memory_goes_back_in_the_end() {
        let Some(arena) = Arena::reserve() else {
            return;
        };
        let use_for_a_moment = |count: usize| {
            let take = |_| {
                let buf = arena.take(LARGEST).expect("there is room");
                // SAFETY: the buf is ours and mapped.
                unsafe { buf.start.as_ptr().write_bytes(1, buf.capacity) };
                buf
            };
            let bufs: Vec<ArenaBuf> = (0..count).map(take).collect();
            let fresh = bufs.iter().filter(|buf| buf.is_zero).count();
            for buf in bufs {
                arena.give_back(buf.start);
            }
            fresh
        };
        assert_eq!(use_for_a_moment(40), 40);
        arena.give_back_idle();
        assert_eq!(
            use_for_a_moment(40),
            0,
            "what is needed again and again stays"
        );
        arena.give_back_idle();
        assert_eq!(use_for_a_moment(40), 0);
        for _ in 0..6 {
            arena.give_back_idle();
        }
        assert!(use_for_a_moment(40) > 30);
    }

    #[test]
    fn what_is_ready_has_its_memory_and_stays() {
        let Some(arena) = Arena::reserve() else {
            return;
        };
        let resident = || resident(&arena);
        arena.prefault(10, || false);
        assert_eq!(resident(), 0, "nothing is taken that may not be");
        arena.prefault(10, || true);
        assert_eq!(resident(), 10 * CHUNK);
        for _ in 0..8 {
            arena.give_back_idle();
        }
        assert_eq!(resident(), 10 * CHUNK, "what is ready is not idle");

        let take = |_| arena.take(LARGEST).expect("there is room");
        let bufs: Vec<ArenaBuf> = (0..12).map(take).collect();
        assert!(bufs.iter().all(|buf| buf.is_zero));
        assert_eq!(resident(), 10 * CHUNK, "what was ready is taken first");
        // Six of ten chunks are used.
        arena.wait_for_prefault(Duration::from_secs(3600));
        arena.prefault(10, || true);
        assert_eq!(resident(), 16 * CHUNK);
    }

    #[test]
    fn after_a_slow_huge_page_buffers_get_the_memory_they_need() {
        let Some(arena) = Arena::reserve() else {
            return;
        };
        let take = || arena.take(LARGEST).expect("there is room");
        arena.small_left.store(1, Ordering::Relaxed);
        let small = [take(), take()];
        assert!(small.iter().all(|buf| buf.is_zero));
        assert_eq!(resident(&arena), 2 * LARGEST);
        arena.give_back_free(usize::MAX);
        let first_of_huge = take();
        assert_eq!(resident(&arena), 2 * LARGEST + CHUNK);
        assert!(first_of_huge.is_zero && take().is_zero);
        assert_eq!(resident(&arena), 2 * LARGEST + CHUNK);

        arena.small_left.store(1, Ordering::Relaxed);
        let buf = arena.take(128 << 10).expect("there is room");
        assert_eq!(resident(&arena), 2 * LARGEST + CHUNK + (128 << 10));
        arena.give_back(buf.start);
    }

    #[test]
    fn a_pinned_chunk_keeps_its_memory() {
        let Some(arena) = Arena::reserve() else {
            return;
        };
        let buf = arena.take(LARGEST).expect("there is room");
        let number = arena
            .chunk_of(buf.start.as_ptr() as usize)
            .expect("in the region");
        arena.pin(number);
        arena.give_back(buf.start);
        assert_eq!(arena.give_back_free(usize::MAX), 0);
    }

    #[test]
    fn too_large_is_refused() {
        let Some(arena) = Arena::reserve() else {
            return;
        };
        assert!(arena.take(LARGEST + 1).is_none());
        assert!(arena.chunk_of(0).is_none());
    }
}
