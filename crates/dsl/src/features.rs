//! Stub.
#![allow(
    clippy::unused_async,
    unused_variables,
    reason = "first landing: signatures only"
)]
use crate::error::Result;
use dmu::{Objset, Tx};
use ondisk::feature::Feature;

/// The feature counts of a pool.
#[derive(Clone)]
pub struct Features(std::rc::Rc<()>);

impl Features {
    /// Reads the feature objects of a pool's meta-objset.
    pub async fn open(mos: &Objset) -> Result<Self> {
        unimplemented!()
    }
    /// Whether the feature may be used; by short name.
    pub fn is_enabled(&self, name: &str) -> bool {
        unimplemented!()
    }
    /// Whether the feature is in use; by short name.
    pub fn is_active(&self, name: &str) -> bool {
        unimplemented!()
    }
    /// Uses of a feature; `None` when disabled; by short name.
    pub fn refcount(&self, name: &str) -> Option<u64> {
        unimplemented!()
    }
    /// Guids in the pool that this version does not know, with their counts: (needed to read, needed to write).
    pub fn unknown(&self) -> (Vec<(String, u64)>, Vec<(String, u64)>) {
        unimplemented!()
    }
    /// Active features that the labels and the configuration must name.
    pub fn active_in_labels(&self) -> Vec<&'static Feature> {
        unimplemented!()
    }
    /// Enables a feature and those it depends on. Syncing context.
    pub async fn enable(&self, name: &str, tx: &Tx) -> Result<()> {
        unimplemented!()
    }
    /// Adds a use. Syncing context.
    pub async fn incr(&self, name: &str, tx: &Tx) -> Result<()> {
        unimplemented!()
    }
    /// Removes a use. Syncing context.
    pub async fn decr(&self, name: &str, tx: &Tx) -> Result<()> {
        unimplemented!()
    }
    /// Sets the count (features whose count the pool computes, such as `spacemap_histogram`). Syncing context.
    pub async fn set_refcount(&self, name: &str, count: u64, tx: &Tx) -> Result<()> {
        unimplemented!()
    }
    /// Grows with every change.
    pub fn version(&self) -> u64 {
        unimplemented!()
    }
}
