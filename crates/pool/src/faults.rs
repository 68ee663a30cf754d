//! Faults that an administrator injects into a pool in use, to rehearse failures (`zinject`).
//!
//! They are not stored: an export ends them, and so does the end of the process. Those of devices are kept and injected by `vdev`, those
//! of blocks by `zio`.

use ondisk::Guid;
use vdev::{DeviceFault, FAULTS_MAX, VdevError};
use zio::DataFault;

use crate::PoolError;
use crate::pool::Pool;

/// A fault to be injected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Into the I/O of a device.
    Device(DeviceFault),
    /// Into reads of blocks.
    Data(DataFault),
}

/// A fault that is injected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectedFault {
    /// Its number.
    pub id: u64,
    /// The fault.
    pub fault: Fault,
    /// I/Os it is for.
    pub matched: u64,
    /// I/Os it was injected into.
    pub injected: u64,
}

/// What can be made of a device at once, without waiting for it to fail (`zinject -A`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceAction {
    /// It counts as one that gives wrong bytes.
    Degrade,
    /// It is taken out of service, or only degraded where no other device has its data.
    Fault,
}

impl Pool {
    /// Injects a fault from now on, under a number that no other one of the pool has. Blocks in the cache are not read: drop them with
    /// [`arc::Cache::clear`].
    ///
    /// # Errors
    /// There are as many as there may be; a delay has no latency or lanes.
    pub fn inject_fault(&self, id: u64, fault: Fault) -> Result<(), PoolError> {
        if self.injected_faults().len() >= FAULTS_MAX {
            return Err(VdevError::TooManyFaults.into());
        }
        match fault {
            Fault::Device(fault) => self.0.tree().inject_fault(id, fault)?,
            Fault::Data(fault) => self.0.store().inject_fault(id, fault)?,
        }
        Ok(())
    }

    /// Ends a fault; returns whether the pool had one of that number.
    pub fn clear_fault(&self, id: u64) -> bool {
        self.0.tree().clear_fault(id) || self.0.store().clear_fault(id)
    }

    /// Returns the faults that are injected, by number.
    #[must_use]
    pub fn injected_faults(&self) -> Vec<InjectedFault> {
        let of_devices = self.0.tree().injected_faults().into_iter();
        let of_devices = of_devices.map(|injected| InjectedFault {
            id: injected.id,
            fault: Fault::Device(injected.fault),
            matched: injected.matched,
            injected: injected.injected,
        });
        let of_blocks = self.0.store().injected_faults().into_iter();
        let of_blocks = of_blocks.map(|injected| InjectedFault {
            id: injected.id,
            fault: Fault::Data(injected.fault),
            matched: injected.matched,
            injected: injected.injected,
        });
        let mut all: Vec<InjectedFault> = of_devices.chain(of_blocks).collect();
        all.sort_by_key(|injected| injected.id);
        all
    }

    /// Makes a device count as one that failed; `zpool clear` ends that.
    ///
    /// # Errors
    /// `NoSuchDevice`, `ReadOnly`, `Suspended`.
    pub async fn act_on_device(&self, leaf: u64, action: DeviceAction) -> Result<(), PoolError> {
        self.0.writable()?;
        match action {
            DeviceAction::Degrade => self.0.tree().degrade_leaf(Guid(leaf))?,
            DeviceAction::Fault => self.0.tree().fault_leaf(Guid(leaf))?,
        }
        // What it misses from now on is recorded with each txg; a spare may take over.
        self.sync().await?;
        Ok(())
    }
}
