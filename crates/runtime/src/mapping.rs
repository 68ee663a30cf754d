//! Memory of buffers that are too large for the arena: a mapping each, given back to the kernel as a whole.
//!
//! The heap would keep it, unless it is told otherwise ([`map_large_blocks_of_heap`]). Its allocator raises the size from which it maps blocks singly to that of the largest one freed (32 MiB at
//! most), so that after the first buffer of 16 MiB the next ones lie in the heaps of the threads that took them, with what is free between them:
//! 70 MiB of a process that may take 512 (docs/measurements/2026-11-29-rates.md).

use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Has the heap map each block of 8 MiB and more for itself, from now on and for the whole process. Libraries keep such blocks for what
/// hardly ever comes: each thread that serves a mount has one of 16 MiB for the largest request. Mapped, it takes the pages that
/// were used; in a heap it is cleared first where another block was before, and takes all of them. Smaller ones, such as a message of a MiB,
/// come and go quickly, and are used again.
pub fn map_large_blocks_of_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    {
        /// In bytes; of free memory at the end of a heap as much is kept.
        const MAPPED_MIN: libc::c_int = 8 << 20;
        // SAFETY: both may be set at any time from any thread; the allocator takes them for what comes then. mallopt(3): to set one ends
        // that both follow the largest block that was freed.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_MIN);
            libc::mallopt(libc::M_TRIM_THRESHOLD, MAPPED_MIN);
        }
    }
}

/// Maps `len` zero bytes, a multiple of the page size; `None` when the kernel refuses.
pub(crate) fn map(len: usize) -> Option<NonNull<u8>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no memory of ours.
    let mapped =
        unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the mapping is ours; the advice changes no content. Refusal is harmless.
    let _ = unsafe { madvise(mapped, len, Advice::LinuxHugepage) };
    NonNull::new(mapped.cast())
}

/// Ends a mapping.
///
/// # Safety
/// `start` and `len` are those of a [`map`] that was not ended yet, and none of its bytes is used afterwards.
pub(crate) unsafe fn unmap(start: NonNull<u8>, len: usize) {
    // SAFETY: the caller's promise.
    if unsafe { munmap(start.as_ptr().cast(), len) }.is_err() {
        // Neighbours that the kernel joined cannot be split where its table of mappings is full: the addresses stay, their memory need not.
        // SAFETY: as above; nothing reads it. Refusal is harmless.
        let _ = unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxDontNeed) };
    }
}
