//! A fair lock with one holder, held across awaits.

use std::ops::{Deref, DerefMut};

use super::rwlock::{RwLock, RwLockWriteGuard};

/// A value with one user at a time. Clones are the same lock.
pub struct Mutex<T> {
    lock: RwLock<T>,
}

impl<T> Clone for Mutex<T> {
    fn clone(&self) -> Self {
        Self {
            lock: self.lock.clone(),
        }
    }
}

/// Access to the value; released when dropped.
pub struct MutexGuard<T> {
    guard: RwLockWriteGuard<T>,
}

impl<T> Mutex<T> {
    /// Makes a lock; `name` reads well after "waits for".
    #[must_use]
    pub fn new(name: &'static str, value: T) -> Self {
        Self {
            lock: RwLock::new(name, value),
        }
    }

    /// Waits for access.
    pub async fn lock(&self) -> MutexGuard<T> {
        MutexGuard {
            guard: self.lock.write().await,
        }
    }

    /// Takes access if the lock is free and the queue is empty.
    #[must_use]
    pub fn try_lock(&self) -> Option<MutexGuard<T>> {
        Some(MutexGuard {
            guard: self.lock.try_write()?,
        })
    }

    /// Returns true when the lock is held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.lock.is_held()
    }
}

impl<T> Deref for MutexGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
