//! Redaction lists that are read or lengthened: their bookmarks cannot be destroyed meanwhile.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use ondisk::ObjectId;

/// Lists in use, with how many use them. Clones are handles to the same ones.
#[derive(Clone, Default)]
pub(crate) struct ListsInUse(Rc<RefCell<BTreeMap<ObjectId, usize>>>);

impl ListsInUse {
    /// Whether a list is in use.
    pub(crate) fn contains(&self, list: ObjectId) -> bool {
        self.0.borrow().contains_key(&list)
    }

    /// Begins to use a list.
    pub(crate) fn hold(&self, list: ObjectId) -> ListHold {
        *self.0.borrow_mut().entry(list).or_insert(0) += 1;
        ListHold {
            all: self.clone(),
            list,
        }
    }
}

/// Keeps a list, and so its bookmark, from being destroyed.
pub(crate) struct ListHold {
    all: ListsInUse,
    list: ObjectId,
}

impl Drop for ListHold {
    fn drop(&mut self) {
        let mut all = self.all.0.borrow_mut();
        let uses = all.get_mut(&self.list).expect("a hold is counted");
        *uses -= 1;
        if *uses == 0 {
            all.remove(&self.list);
        }
    }
}

impl ListHold {
    pub(crate) fn list(&self) -> ObjectId {
        self.list
    }
}
