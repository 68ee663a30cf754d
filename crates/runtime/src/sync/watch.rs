//! A value whose changes can be waited for. Waiters see the latest value, not every one.

use std::cell::{Ref, RefCell};
use std::rc::Rc;

use super::event::Event;

/// A watched value. Clones share it.
pub struct Watch<T> {
    value: Rc<RefCell<T>>,
    changed: Event,
}

impl<T> Clone for Watch<T> {
    fn clone(&self) -> Self {
        Self {
            value: self.value.clone(),
            changed: self.changed.clone(),
        }
    }
}

impl<T> Watch<T> {
    /// Makes a watched value; `name` reads well after "waits for".
    #[must_use]
    pub fn new(name: &'static str, value: T) -> Self {
        Self {
            value: Rc::new(RefCell::new(value)),
            changed: Event::new(name),
        }
    }

    /// Looks at the value. The borrow must not be held across an await.
    #[must_use]
    pub fn borrow(&self) -> Ref<'_, T> {
        self.value.borrow()
    }

    /// Replaces the value and wakes the waiters.
    pub fn set(&self, value: T) {
        let old = self.value.replace(value);
        self.changed.notify_all();
        drop(old);
    }

    /// Changes the value in place and wakes the waiters.
    pub fn update<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(&mut self.value.borrow_mut());
        self.changed.notify_all();
        result
    }

    /// Waits for the next change.
    pub async fn changed(&self) {
        self.changed.wait().await;
    }

    /// Waits until the value is as wanted; returns at once when it is already.
    pub async fn wait_until(&self, mut wanted: impl FnMut(&T) -> bool) {
        loop {
            if wanted(&self.value.borrow()) {
                return;
            }
            self.changed.wait().await;
        }
    }
}

impl<T: Clone> Watch<T> {
    /// Returns a copy of the value.
    #[must_use]
    pub fn get(&self) -> T {
        self.value.borrow().clone()
    }
}
