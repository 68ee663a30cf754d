//! A fair lock with shared and exclusive holders, held across awaits.
//!
//! A waiting writer stops later readers, so writers do not starve.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use super::semaphore::{Permit, Semaphore};

/// All permits at once make an exclusive holder.
const ALL: usize = usize::MAX >> 1;

/// A value with many readers or one writer. Clones are the same lock.
pub struct RwLock<T> {
    permits: Semaphore,
    value: Rc<UnsafeCell<T>>,
}

impl<T> Clone for RwLock<T> {
    fn clone(&self) -> Self {
        Self {
            permits: self.permits.clone(),
            value: self.value.clone(),
        }
    }
}

/// Shared access; released when dropped.
pub struct RwLockReadGuard<T> {
    value: Rc<UnsafeCell<T>>,
    _permit: Permit,
}

/// Exclusive access; released when dropped.
pub struct RwLockWriteGuard<T> {
    value: Rc<UnsafeCell<T>>,
    permit: Permit,
}

impl<T> RwLock<T> {
    /// Makes a lock; `name` reads well after "waits for".
    #[must_use]
    pub fn new(name: &'static str, value: T) -> Self {
        Self {
            permits: Semaphore::new(name, ALL),
            value: Rc::new(UnsafeCell::new(value)),
        }
    }

    /// Waits for shared access.
    pub async fn read(&self) -> RwLockReadGuard<T> {
        let permit = self.permits.acquire(1).await;
        RwLockReadGuard {
            value: self.value.clone(),
            _permit: permit,
        }
    }

    /// Waits for exclusive access.
    pub async fn write(&self) -> RwLockWriteGuard<T> {
        let permit = self.permits.acquire(ALL).await;
        RwLockWriteGuard {
            value: self.value.clone(),
            permit,
        }
    }

    /// Takes shared access if exclusive access is neither held nor awaited.
    #[must_use]
    pub fn try_read(&self) -> Option<RwLockReadGuard<T>> {
        let permit = self.permits.try_acquire(1)?;
        Some(RwLockReadGuard {
            value: self.value.clone(),
            _permit: permit,
        })
    }

    /// Takes exclusive access if the lock is free.
    #[must_use]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<T>> {
        let permit = self.permits.try_acquire(ALL)?;
        Some(RwLockWriteGuard {
            value: self.value.clone(),
            permit,
        })
    }

    /// Returns true when the lock is held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.permits.available() < ALL
    }
}

impl<T> RwLockWriteGuard<T> {
    /// Becomes a reader without letting another writer in between.
    #[must_use]
    pub fn downgrade(mut self) -> RwLockReadGuard<T> {
        self.permit.give_back(ALL - 1);
        RwLockReadGuard {
            value: self.value,
            _permit: self.permit,
        }
    }
}

impl<T> Deref for RwLockReadGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard holds a permit, so no write guard exists (a write guard holds all permits); everything
        // is on one thread (`Rc` is `!Send`).
        unsafe { &*self.value.get() }
    }
}

impl<T> Deref for RwLockWriteGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard holds all permits, so no other guard exists.
        unsafe { &*self.value.get() }
    }
}

impl<T> DerefMut for RwLockWriteGuard<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds all permits, so no other guard exists, and `&mut self` makes this the only
        // reference through it.
        unsafe { &mut *self.value.get() }
    }
}

#[cfg(test)]
mod tests {
    //! For miri: the guards' references never overlap. Fairness and exclusion under random schedules are tested in
    //! `sim/world/tests/sync.rs`.

    use super::*;
    use crate::host::block_thread_on;

    #[test]
    fn guards_give_sound_access() {
        let lock = RwLock::new("the lock", vec![1]);
        let other = lock.clone();
        {
            let mut guard = block_thread_on(lock.write());
            guard.push(2);
            assert!(other.try_read().is_none() && other.try_write().is_none());
            let reader = guard.downgrade();
            let second = block_thread_on(other.read());
            assert_eq!((reader.len(), second.len()), (2, 2));
            assert!(lock.try_write().is_none());
        }
        drop(lock);
        other.try_write().expect("is free").push(3);
        assert_eq!(*block_thread_on(other.read()), [1, 2, 3]);
        assert!(!other.is_held());
    }

    #[test]
    fn a_guard_outlives_its_lock() {
        let lock = RwLock::new("the lock", String::from("kept"));
        let guard = block_thread_on(lock.read());
        drop(lock);
        assert_eq!(&*guard, "kept");
    }
}
