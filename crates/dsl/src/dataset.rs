//! Stub.
#![allow(
    clippy::unused_async,
    unused_variables,
    reason = "first landing: signatures only"
)]
use crate::error::Result;
use crate::property::*;
use crate::types::*;
use dmu::{Objset, Tx};
use ondisk::{Guid, ObjectId, Txg};
use std::rc::Rc;

/// An open file system, volume or snapshot. While a handle exists it cannot be destroyed.
#[derive(Clone)]
pub struct Dataset(Rc<()>);

impl Dataset {
    /// Its full name now (a rename changes it).
    pub fn name(&self) -> String {
        unimplemented!()
    }
    /// Its identity.
    pub fn guid(&self) -> Guid {
        unimplemented!()
    }
    /// Identity for `fsid` of file systems, unique within the machine: 56 bits.
    pub fn fsid(&self) -> u64 {
        unimplemented!()
    }
    /// Its object in the meta-objset.
    pub fn object(&self) -> ObjectId {
        unimplemented!()
    }
    /// File system, volume or snapshot.
    pub fn kind(&self) -> DatasetKind {
        unimplemented!()
    }
    /// Txg it was created in.
    pub fn create_txg(&self) -> Txg {
        unimplemented!()
    }
    /// Its objects.
    pub fn objset(&self) -> &Objset {
        unimplemented!()
    }
    /// Whether it refuses changes (a snapshot, or a pool imported read-only; the property `readonly` is the caller's).
    pub fn is_read_only(&self) -> bool {
        unimplemented!()
    }
    /// Begins a transaction: reserves the space against quotas and the pool, then joins the open group.
    pub async fn begin(&self, estimate: Estimate) -> Result<Tx> {
        unimplemented!()
    }
    /// The effective number of a native property (recordsize, compression, atime, ...), from memory.
    pub fn number(&self, property: Property) -> u64 {
        unimplemented!()
    }
    /// The effective text of a native property, from memory.
    pub fn text(&self, property: Property) -> String {
        unimplemented!()
    }
    /// Grows whenever a property in force here changed.
    pub fn properties_version(&self) -> u64 {
        unimplemented!()
    }
    /// Space as `statfs` wants it.
    pub fn space(&self) -> SpaceInfo {
        unimplemented!()
    }
    /// Declares that a feature is needed by what is being written (`large_dnode`, ...); counted at the next sync.
    pub fn needs_feature(&self, name: &'static str) {
        unimplemented!()
    }
}
