//! Locks of processes on a mount (fcntl), in the table that all protocols share.
//!
//! The kernel's locks of a FUSE file system are ours once it asks for them: closing a file ends those of its process (flush), and the
//! last close those of the open file itself. A process that waits is looked at from time to time: the library that speaks FUSE does
//! not pass interruptions on, and a process that is to end must not wait for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::{ByteRange, FileLocks, HeldLock, LockMode, LockOutcome, LockRefusal, LockedFile};
use fuser::Errno;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The kernel's last offset (`OFFSET_MAX`): a lock up to it is one to the end of the file.
const OFFSET_MAX: u64 = i64::MAX as u64;
/// How often it is looked whether a process that waits got a signal.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);
/// How long a process waits whose signals cannot be seen from here (one of another PID namespace).
const UNSEEN_WAIT_MAX: Duration = Duration::from_secs(30);
/// fcntl(2) of Linux on every architecture we build for.
const F_RDLCK: i32 = 0;
const F_WRLCK: i32 = 1;
const F_UNLCK: i32 = 2;

/// Who locks what of a file.
#[derive(Clone, Copy)]
pub(super) struct Locker {
    pub(super) file: LockedFile,
    /// What the kernel calls the owner.
    pub(super) owner: u64,
    /// The open file it locks through.
    pub(super) handle: u64,
    /// The thread that asked, as numbered in our PID namespace; 0 is one of another.
    pub(super) thread: u32,
}

/// A lock as the kernel says it.
#[derive(Clone, Copy)]
pub(super) struct KernelLock {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) kind: i32,
    pub(super) process: u32,
}

impl KernelLock {
    pub(super) const UNLOCKED: Self = Self {
        first: 0,
        last: OFFSET_MAX,
        kind: F_UNLCK,
        process: 0,
    };

    pub(super) fn is_exclusive(self) -> bool {
        matches!(self.mode(), Ok(LockMode::Exclusive))
    }

    fn range(self) -> Result<ByteRange, Errno> {
        let last = if self.last >= OFFSET_MAX {
            u64::MAX
        } else {
            self.last
        };
        ByteRange::new(self.first, last).ok_or(Errno::EINVAL)
    }

    fn mode(self) -> Result<LockMode, Errno> {
        match self.kind {
            F_RDLCK => Ok(LockMode::Shared),
            F_WRLCK => Ok(LockMode::Exclusive),
            _ => Err(Errno::EINVAL),
        }
    }
}

/// The owners that locked through one open file, with the files in the table.
type Lockers = BTreeSet<(LockedFile, u64)>;

/// The locks through one mount.
pub(super) struct MountLocks {
    locks: Arc<FileLocks>,
    mount: u64,
    last_handle: AtomicU64,
    by_handle: Mutex<BTreeMap<u64, Lockers>>,
    /// Which process an owner was last, for those who ask.
    processes: Mutex<BTreeMap<u64, u32>>,
}

impl MountLocks {
    pub(super) fn new(locks: Arc<FileLocks>) -> Self {
        Self {
            mount: locks.new_mount(),
            locks,
            last_handle: AtomicU64::new(0),
            by_handle: Mutex::default(),
            processes: Mutex::default(),
        }
    }

    /// Returns a number for a file that is opened.
    pub(super) fn new_handle(&self) -> u64 {
        self.last_handle.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn owner(&self, owner: u64) -> engine::LockOwner {
        engine::LockOwner::Mount {
            mount: self.mount,
            owner,
        }
    }

    /// Returns the lock in the way of a lock (F_GETLK).
    pub(super) fn test(&self, locker: &Locker, lock: KernelLock) -> Result<KernelLock, Errno> {
        let owner = self.owner(locker.owner);
        let held = self
            .locks
            .conflict(locker.file, owner, lock.range()?, lock.mode()?);
        Ok(held.map_or(KernelLock::UNLOCKED, |held| self.seen(&held)))
    }

    fn seen(&self, held: &HeldLock<engine::LockOwner>) -> KernelLock {
        let processes = self.processes.lock();
        let processes = processes.unwrap_or_else(PoisonError::into_inner);
        let process = match held.owner {
            engine::LockOwner::Mount { mount, owner } if mount == self.mount => {
                processes.get(&owner).copied()
            }
            _ => None,
        };
        KernelLock {
            first: held.range.first(),
            last: held.range.last().min(OFFSET_MAX),
            kind: match held.mode {
                LockMode::Shared => F_RDLCK,
                LockMode::Exclusive => F_WRLCK,
            },
            process: process.unwrap_or(0),
        }
    }

    /// Locks or unlocks (F_SETLK; with `wait` F_SETLKW).
    pub(super) async fn set(
        &self,
        locker: Locker,
        lock: KernelLock,
        wait: bool,
    ) -> Result<(), Errno> {
        let (owner, range) = (self.owner(locker.owner), lock.range()?);
        if lock.kind == F_UNLCK {
            let unlocked = self.locks.unlock(locker.file, owner, range);
            return unlocked.map_err(errno);
        }
        let mode = lock.mode()?;
        self.note(&locker, lock.process);
        if !wait {
            return self
                .locks
                .lock(locker.file, owner, range, mode)
                .map_err(errno);
        }
        let (granted, mut is_granted) = oneshot::channel();
        let grant = move || {
            let _gone = granted.send(());
        };
        let outcome = self
            .locks
            .lock_or_wait(locker.file, owner, range, mode, grant);
        let LockOutcome::Waiting(waiting) = outcome.map_err(errno)? else {
            return Ok(());
        };
        let mut waited = Duration::ZERO;
        loop {
            match timeout(SIGNAL_INTERVAL, &mut is_granted).await {
                Ok(Ok(())) => return Ok(()),
                // The mount is gone, and with it what it waits for.
                Ok(Err(_)) => return Err(Errno::ENOLCK),
                Err(_) => waited += SIGNAL_INTERVAL,
            }
            let why = match locker.thread {
                0 if waited > UNSEEN_WAIT_MAX => Errno::ENOLCK,
                0 => continue,
                // The kernel begins again where the signal does not end the wait.
                thread if has_signal(thread) => Errno::EINTR,
                _ => continue,
            };
            if self.locks.cancel(waiting) {
                return Err(why);
            }
        }
    }

    fn note(&self, locker: &Locker, process: u32) {
        let by_handle = self.by_handle.lock();
        let mut by_handle = by_handle.unwrap_or_else(PoisonError::into_inner);
        let lockers = by_handle.entry(locker.handle).or_default();
        lockers.insert((locker.file, locker.owner));
        drop(by_handle);
        let processes = self.processes.lock();
        let mut processes = processes.unwrap_or_else(PoisonError::into_inner);
        processes.insert(locker.owner, process);
    }

    /// Ends the locks of an owner in a file: its process closed it.
    pub(super) fn closed(&self, file: LockedFile, owner: u64) {
        self.locks.release(file, self.owner(owner));
    }

    /// Ends what was locked through an open file that was closed for the last time.
    pub(super) fn closed_last(&self, handle: u64) {
        let by_handle = self.by_handle.lock();
        let lockers = by_handle
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&handle);
        for (file, owner) in lockers.into_iter().flatten() {
            self.closed(file, owner);
            let processes = self.processes.lock();
            let mut processes = processes.unwrap_or_else(PoisonError::into_inner);
            processes.remove(&owner);
        }
    }

    /// Ends everything: the mount is gone.
    pub(super) fn end(&self) {
        let of_mount =
            |owner| matches!(owner, engine::LockOwner::Mount { mount, .. } if mount == self.mount);
        self.locks.release_where(of_mount);
    }
}

fn errno(refusal: LockRefusal) -> Errno {
    match refusal {
        LockRefusal::Held(_) => Errno::EAGAIN,
        LockRefusal::TooMany => Errno::ENOLCK,
        LockRefusal::Deadlock => Errno::EDEADLK,
    }
}

/// Returns whether a signal waits for a thread that does not block it, or the thread is gone (proc(5): status).
fn has_signal(thread: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{thread}/status")) else {
        return true;
    };
    signal_waits(&status)
}

fn signal_waits(status: &str) -> bool {
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
            .unwrap_or(0)
    };
    (set("SigPnd:") | set("ShdPnd:")) & !set("SigBlk:") != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_are_not_blocked_end_a_wait() {
        let check = |pending: &str, shared: &str, blocked: &str, expect| {
            let status =
                format!("Name:\tx\nSigPnd:\t{pending}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\n");
            assert_eq!(signal_waits(&status), expect, "{status}");
        };
        check(
            "0000000000000000",
            "0000000000000000",
            "0000000000000000",
            false,
        );
        check(
            "0000000000000100",
            "0000000000000000",
            "0000000000000000",
            true,
        );
        check(
            "0000000000000000",
            "0000000000002000",
            "0000000000000000",
            true,
        );
        check(
            "0000000000000000",
            "0000000000002000",
            "0000000000002000",
            false,
        );
        assert!(has_signal(u32::MAX));
    }

    #[tokio::test]
    async fn what_was_locked_through_a_file_ends_with_its_last_close() {
        let table = Arc::new(FileLocks::default());
        let (one, two) = (MountLocks::new(table.clone()), MountLocks::new(table));
        let file = LockedFile {
            fs: 1,
            file: engine::FileId {
                object: 2,
                generation: 3,
            },
        };
        let locker = |owner, handle| Locker {
            file,
            owner,
            handle,
            thread: 0,
        };
        let lock = |kind| KernelLock {
            first: 0,
            last: OFFSET_MAX,
            kind,
            process: 7,
        };
        assert!(one.set(locker(5, 1), lock(F_WRLCK), false).await.is_ok());
        let seen = one.test(&locker(6, 2), lock(F_RDLCK)).expect("a lock");
        assert_eq!(
            (seen.last, seen.kind, seen.process),
            (OFFSET_MAX, F_WRLCK, 7)
        );
        // The same owner of another mount is another.
        let refused = two.set(locker(5, 1), lock(F_RDLCK), false).await;
        assert!(matches!(refused, Err(errno) if errno.code() == Errno::EAGAIN.code()));
        one.closed_last(2);
        assert!(two.set(locker(5, 1), lock(F_RDLCK), false).await.is_err());
        one.closed_last(1);
        assert!(two.set(locker(5, 1), lock(F_RDLCK), true).await.is_ok());
        two.end();
        assert!(one.set(locker(5, 1), lock(F_WRLCK), false).await.is_ok());
    }
}
