//! Injecting faults into reads of blocks of a store.

use vdev::VdevError;

use crate::{BlockStore, DataFault, InjectedDataFault};

impl BlockStore {
    /// Injects a fault into reads of blocks from now on, under a number that no other fault has. It lasts until
    /// [`BlockStore::clear_fault`]. Blocks in a cache are not read.
    ///
    /// # Errors
    /// [`VdevError::TooManyFaults`]: there are [`vdev::FAULTS_MAX`].
    pub fn inject_fault(&self, id: u64, fault: DataFault) -> Result<(), VdevError> {
        self.faults().add(id, fault)
    }

    /// Ends a fault; returns whether there was one of that number.
    pub fn clear_fault(&self, id: u64) -> bool {
        self.faults().remove(id)
    }

    /// Returns the faults that are injected into reads of blocks, oldest first.
    #[must_use]
    pub fn injected_faults(&self) -> Vec<InjectedDataFault> {
        self.faults().list()
    }
}
