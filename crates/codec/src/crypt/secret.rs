//! Memory for keys: not swapped, not in a core dump, not seen by a forked child, zeroed when dropped.
//!
//! Zeroing is certain. The rest is asked of the system and does without where it refuses: beyond the limit on locked memory
//! (`ulimit -l`) a key may be swapped ([`may_be_swapped`]), since a pool that cannot be opened would be the greater loss. A page of its own for each
//! secret: what is locked and unlocked holds nothing else, and no other secret's lock ends with it. Not covered: the AES key
//! schedules that the ciphers expand from a key live on the heap and are zeroed by their libraries.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mm;
use zeroize::Zeroize as _;

/// Bytes a secret may have: a page of the smallest size there is.
pub const SECRET_LEN_MAX: usize = 4096;

/// The last secret that was made could not be locked.
static MAY_BE_SWAPPED: AtomicBool = AtomicBool::new(false);

/// Returns whether the system refused to lock the last secret that was made: it may be swapped.
#[must_use]
pub fn may_be_swapped() -> bool {
    MAY_BE_SWAPPED.load(Ordering::Relaxed)
}

/// The system has no memory left for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("map memory: {0}")]
pub struct MapError(rustix::io::Errno);

/// Bytes that are not to leak, of a fixed length. It prints as `Secret`.
pub struct Secret {
    page: NonNull<u8>,
    len: usize,
}

// SAFETY: the page belongs to this value alone, and is written only through `&mut`.
unsafe impl Send for Secret {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for Secret {}

impl Secret {
    /// Returns `len` zero bytes in memory of their own.
    ///
    /// # Errors
    /// [`MapError`].
    ///
    /// # Panics
    /// When `len` is 0 or more than [`SECRET_LEN_MAX`].
    pub fn zeroed(len: usize) -> Result<Self, MapError> {
        assert!(
            (1..=SECRET_LEN_MAX).contains(&len),
            "a secret of {len} bytes does not fit its page"
        );
        // SAFETY: a new private mapping at an address the system chooses; it aliases nothing.
        let mapped = unsafe {
            mm::mmap_anonymous(
                std::ptr::null_mut(),
                SECRET_LEN_MAX,
                mm::ProtFlags::READ | mm::ProtFlags::WRITE,
                mm::MapFlags::PRIVATE,
            )
        }
        .map_err(MapError)?;
        let page = NonNull::new(mapped.cast::<u8>()).expect("an anonymous mapping is never at 0");
        // SAFETY: the whole range is the mapping made above; none of the three changes what it holds in this process.
        unsafe {
            // Refusals are allowed, see the head of this file.
            let locked = mm::mlock(mapped, SECRET_LEN_MAX);
            MAY_BE_SWAPPED.store(locked.is_err(), Ordering::Relaxed);
            let _ = mm::madvise(mapped, SECRET_LEN_MAX, mm::Advice::LinuxDontDump);
            let _ = mm::madvise(mapped, SECRET_LEN_MAX, mm::Advice::LinuxWipeOnFork);
        }
        Ok(Self { page, len })
    }

    /// Returns a secret that `fill` has written. The bytes are never anywhere else on the way.
    ///
    /// # Errors
    /// [`MapError`].
    ///
    /// # Panics
    /// As [`Self::zeroed`].
    pub fn filled(len: usize, fill: impl FnOnce(&mut [u8])) -> Result<Self, MapError> {
        let mut secret = Self::zeroed(len)?;
        fill(secret.bytes_mut());
        Ok(secret)
    }

    /// Its bytes, to be copied nowhere.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes of the mapping, which lives as long as `self` and was zeroed by the system.
        unsafe { std::slice::from_raw_parts(self.page.as_ptr(), self.len) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `bytes`; the mutable borrow of `self` makes it the only one.
        unsafe { std::slice::from_raw_parts_mut(self.page.as_ptr(), self.len) }
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.bytes_mut().zeroize();
        // SAFETY: the mapping belongs to this value and is not used again. Unmapping unlocks it.
        let unmapped = unsafe { mm::munmap(self.page.as_ptr().cast(), SECRET_LEN_MAX) };
        debug_assert!(unmapped.is_ok(), "a mapping of our own cannot be refused");
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel says about the page: `lo` locked, `dd` not dumped, `wf` wiped on fork.
    #[test]
    fn the_page_is_locked_not_dumped_and_wiped_on_fork() {
        let secret = Secret::filled(32, |bytes| bytes.fill(7)).expect("32 bytes can be locked");
        let address = secret.bytes().as_ptr().addr();
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("read smaps");
        let mut inside = false;
        let mut flags = None;
        for line in maps.lines() {
            let range = line
                .split_once(' ')
                .and_then(|(range, _)| range.split_once('-'))
                .and_then(|(from, to)| {
                    Some((
                        usize::from_str_radix(from, 16).ok()?,
                        usize::from_str_radix(to, 16).ok()?,
                    ))
                });
            if let Some((from, to)) = range {
                inside = (from..to).contains(&address);
            } else if inside && let Some(found) = line.strip_prefix("VmFlags:") {
                flags = Some(found.to_owned());
            }
        }
        let flags = flags.expect("the page is mapped");
        for flag in ["lo", "dd", "wf"] {
            assert!(
                flags.split_whitespace().any(|found| found == flag),
                "{flag} is not in {flags}"
            );
        }
        assert_eq!(secret.bytes(), [7; 32]);
        assert_eq!(format!("{secret:?}"), "Secret");
    }
}
