//! What of destroyed datasets and snapshots is still to be freed, some in each txg (`async_destroy`).
//!
//! ```text
//!  destroyed snapshot  -> free_bpobj        blocks only it referred to
//!  destroyed head      -> bptree            roots to be traversed
//!  destroyed clone     -> deleted clones    livelists
//!  removed vdevs       -> obsolete bpobj    old locations to be marked obsolete
//! ```

use std::cell::{Cell, RefCell};

use ondisk::{BlockPointer, ObjectId};

use crate::bpobj::Bpobj;
use crate::error::{DslError, Result};
use crate::object_directory::OBJECT_DIRECTORY;

/// Blocks freed asynchronously in one txg, unless set otherwise: some hundred milliseconds.
const BLOCKS_MAX: u64 = 20_000;

/// Blocks of a sublist of a destroyed clone that are still to be freed.
#[derive(Debug)]
pub(crate) struct SublistFrees {
    pub(crate) livelist: ObjectId,
    pub(crate) key: u64,
    pub(crate) blocks: Vec<BlockPointer>,
}

/// The queues of asynchronous frees of a pool.
pub(crate) struct AsyncDestroy {
    /// Blocks of destroyed snapshots; a pool before version 26 has none.
    free_bpobj: RefCell<Option<Bpobj>>,
    bptree: Cell<Option<ObjectId>>,
    deleted_clones: Cell<Option<ObjectId>>,
    obsolete_bpobj: Cell<Option<ObjectId>>,
    /// Blocks of the clone that is being freed now.
    sublist: RefCell<Option<SublistFrees>>,
    blocks_max: Cell<u64>,
    error: RefCell<Option<DslError>>,
}

impl AsyncDestroy {
    pub(crate) fn new(free_bpobj: Option<Bpobj>) -> Self {
        Self {
            free_bpobj: RefCell::new(free_bpobj),
            bptree: Cell::new(None),
            deleted_clones: Cell::new(None),
            obsolete_bpobj: Cell::new(None),
            sublist: RefCell::default(),
            blocks_max: Cell::new(BLOCKS_MAX),
            error: RefCell::default(),
        }
    }

    /// The list of blocks of destroyed snapshots.
    ///
    /// # Errors
    /// `Corrupt` in a pool that has none, since its deadlists must be of the form that needs none.
    pub(crate) fn free_bpobj(&self) -> Result<Bpobj> {
        let list = self.free_bpobj.borrow().clone();
        list.ok_or_else(|| DslError::corrupt("list of blocks to be freed", OBJECT_DIRECTORY))
    }

    /// Gives a pool that is upgraded to version 26 its list of blocks to be freed.
    pub(crate) fn set_free_bpobj(&self, list: Bpobj) {
        *self.free_bpobj.borrow_mut() = Some(list);
    }

    /// The bptree of destroyed datasets, if there are any.
    pub(crate) fn bptree(&self) -> Option<ObjectId> {
        self.bptree.get()
    }

    pub(crate) fn set_bptree(&self, object: Option<ObjectId>) {
        self.bptree.set(object);
    }

    /// The ZAP of livelists of destroyed clones, if there are any.
    pub(crate) fn deleted_clones(&self) -> Option<ObjectId> {
        self.deleted_clones.get()
    }

    pub(crate) fn set_deleted_clones(&self, object: Option<ObjectId>) {
        self.deleted_clones.set(object);
    }

    /// The list of pointers to be marked obsolete at their removed vdevs, if there are any.
    pub(crate) fn obsolete_bpobj(&self) -> Option<ObjectId> {
        self.obsolete_bpobj.get()
    }

    pub(crate) fn set_obsolete_bpobj(&self, object: Option<ObjectId>) {
        self.obsolete_bpobj.set(object);
    }

    /// Takes the blocks left of a sublist, if the last step ended within it.
    pub(crate) fn take_sublist(&self, livelist: ObjectId, key: u64) -> Option<SublistFrees> {
        let left = self.sublist.borrow_mut().take();
        left.filter(|left| left.livelist == livelist && left.key == key)
    }

    /// Keeps the blocks left of a sublist for the next step.
    pub(crate) fn keep_sublist(&self, left: SublistFrees) {
        assert!(
            !left.blocks.is_empty(),
            "a finished sublist is destroyed, not kept"
        );
        *self.sublist.borrow_mut() = Some(left);
    }

    /// Blocks freed in one txg at most.
    pub(crate) fn blocks_max(&self) -> u64 {
        self.blocks_max.get()
    }

    pub(crate) fn set_blocks_max(&self, blocks: u64) {
        self.blocks_max.set(blocks.max(1));
    }

    /// Suspends asynchronous frees until the next import.
    pub(crate) fn suspend(&self, error: DslError) {
        *self.error.borrow_mut() = Some(error);
    }

    /// Why asynchronous frees are suspended, if they are.
    pub(crate) fn error(&self) -> Option<DslError> {
        self.error.borrow().clone()
    }

    /// Whether anything is queued that can be freed.
    pub(crate) fn has_work(&self) -> bool {
        self.error.borrow().is_none()
            && (self.bptree.get().is_some()
                || self.deleted_clones.get().is_some()
                || self.obsolete_bpobj.get().is_some()
                || self.has_blocks_of_snapshots())
    }

    /// Whether blocks of destroyed snapshots wait to be freed.
    pub(crate) fn has_blocks_of_snapshots(&self) -> bool {
        let list = self.free_bpobj.borrow();
        list.as_ref().is_some_and(|list| !list.is_empty())
    }
}
