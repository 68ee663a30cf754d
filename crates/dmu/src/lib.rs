//! `dmu`: object sets, objects and transactions.
//!
//! An [`Objset`] is a numbered set of objects; an object is a sparse array of blocks with a small bonus buffer. Changes are made
//! under a [`Tx`] of the open transaction group and reach the disk when the pool's loop calls [`Objset::sync`] for that txg.
//! [`zap`] stores ZAPs in objects. See ARCHITECTURE.md.
//!
//! Guarantees: a reader sees the newest change; the sync of a txg sees exactly the changes of that txg and older; a block
//! handed to the block store is never modified. Everything runs on one thread.
//!
//! It does not know datasets, files or the intent log.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod allocate;
mod blocks;
mod clone_blocks;
mod cloned_block;
mod compressibility;
mod counted_objects;
mod counting;
mod data;
mod dnode;
mod early_write;
mod error;
mod free_slots;
mod lookup;
mod objects;
mod objset;
mod prefetch;
mod readers;
mod stored_form;
mod syncing;
mod traverse;
mod tree;
mod txg;
mod types;
mod usage;
mod wait;
pub mod zap;

#[cfg(test)]
mod tests;

pub use arc::{BlockKinds, CacheUse};
pub use clone_blocks::Cloneable;
pub use cloned_block::CLONED_BLOCK_BYTES;
pub use counting::CountingPass;
pub use dnode::SLOTS as DNODES_OF_BLOCK;
pub use error::{DmuError, Result};
pub use objset::{FIRST_ACCOUNTING, Objset};
pub use traverse::{Traversal, TraverseItem, TraverseOptions};
pub use txg::{Tx, TxWeight, TxgClock, TxgCounters, TxgOptions};
pub use types::{
    AllocSpec, Bonus, EncryptedDnode, Ledger, NoLedger, ObjectInfo, ObjsetOptions, Owner, OwnerOf,
    Rewritten, Services, TableShape, WritePolicy,
};
