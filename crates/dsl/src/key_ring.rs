//! Keys that are loaded: wrapping keys by encryption root, and the keys of datasets that they have opened.
//!
//! Guarantees: the keys of a dataset stay while an object set or an intent log uses them, and leave the memory when the wrapping
//! key is unloaded. It does not know where keys are stored.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use codec::crypt::WrappingKey;
use ondisk::ObjectId;
use zio::BlockKeys;

/// The keys that are loaded.
#[derive(Default)]
pub(crate) struct KeyRing {
    /// Wrapping keys, by the directory of their encryption root.
    wrapping: RefCell<BTreeMap<ObjectId, Arc<WrappingKey>>>,
    /// Keys of datasets, by their key object, with the encryption root.
    opened: RefCell<BTreeMap<ObjectId, (ObjectId, BlockKeys)>>,
}

impl KeyRing {
    /// Whether the key of an encryption root is loaded.
    pub(crate) fn is_loaded(&self, root: ObjectId) -> bool {
        self.wrapping.borrow().contains_key(&root)
    }

    pub(crate) fn wrapping_key(&self, root: ObjectId) -> Option<Arc<WrappingKey>> {
        self.wrapping.borrow().get(&root).cloned()
    }

    pub(crate) fn load(&self, root: ObjectId, key: Arc<WrappingKey>) {
        self.wrapping.borrow_mut().insert(root, key);
    }

    pub(crate) fn opened(&self, key_object: ObjectId) -> Option<BlockKeys> {
        let opened = self.opened.borrow();
        opened.get(&key_object).map(|(_, keys)| keys.clone())
    }

    /// Keeps the keys of a dataset, unless another task has opened them meanwhile; returns those that are kept.
    pub(crate) fn keep(&self, key_object: ObjectId, root: ObjectId, keys: BlockKeys) -> BlockKeys {
        let mut opened = self.opened.borrow_mut();
        opened.entry(key_object).or_insert((root, keys)).1.clone()
    }

    /// Drops the keys of a key object that is destroyed.
    pub(crate) fn forget(&self, key_object: ObjectId) {
        self.opened.borrow_mut().remove(&key_object);
    }

    /// Notes that the key of another encryption root wraps a key object now.
    pub(crate) fn move_to(&self, key_object: ObjectId, root: ObjectId) {
        if let Some((of, _)) = self.opened.borrow_mut().get_mut(&key_object) {
            *of = root;
        }
    }

    /// Makes another directory the encryption root of all that one was the root of.
    pub(crate) fn pass_on(&self, from: ObjectId, to: ObjectId) {
        let mut wrapping = self.wrapping.borrow_mut();
        if let Some(key) = wrapping.remove(&from) {
            wrapping.insert(to, key);
        }
        for (root, _) in self.opened.borrow_mut().values_mut() {
            if *root == from {
                *root = to;
            }
        }
    }

    /// Whether keys of datasets of an encryption root are used by what is open.
    pub(crate) fn is_in_use(&self, root: ObjectId) -> bool {
        let opened = self.opened.borrow();
        opened
            .values()
            .any(|(of, keys)| *of == root && !keys.is_idle())
    }

    /// Drops the wrapping key of an encryption root and all that it opened.
    pub(crate) fn unload(&self, root: ObjectId) {
        self.wrapping.borrow_mut().remove(&root);
        self.opened.borrow_mut().retain(|_, (of, _)| *of != root);
    }
}
