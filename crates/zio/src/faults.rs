//! Faults that an administrator injects into reads of blocks, to rehearse damage (`zinject -t`, `zinject -b`).
//!
//! Guarantees: without a fault, a read costs one test of a flag; what is injected takes the way of the real failure, so that it is
//! counted, reported and made up for by other copies as that is; bytes on the devices stay as they are.
//! Does not know files: a fault names objsets, objects, levels and blocks, as a [`Bookmark`] does.
// OpenZFS: module/zfs/zio_inject.c, zio_match_handler (which blocks a record is for)

use std::cell::{Cell, RefCell};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ondisk::{BlockPointer, ObjectType};
use runtime::{Handle, IoBuf};
use vdev::{FAULTS_MAX, Frequency, InjectedError, VdevError};

use crate::types::Expect;
use crate::{Bookmark, CorruptReason};

/// The blocks that a fault is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultyBlocks {
    /// Blocks of an object, by their numbers at a level.
    Object {
        /// Objset.
        objset: u64,
        /// Object; 0 for the dnodes of the objset.
        object: u64,
        /// Level.
        level: u32,
        /// Numbers at that level.
        blocks: RangeInclusive<u64>,
    },
    /// All blocks of the meta-objset, or those of one type.
    MetaObjset(Option<ObjectType>),
}

impl FaultyBlocks {
    fn contains(&self, bookmark: Bookmark, of: ObjectType) -> bool {
        match self {
            Self::Object {
                objset,
                object,
                level,
                blocks,
            } => {
                bookmark.objset == *objset
                    && bookmark.object == *object
                    && bookmark.level == i64::from(*level)
                    && blocks.contains(&bookmark.block)
            }
            Self::MetaObjset(only) => {
                bookmark.objset == 0 && only.is_none_or(|object_type| object_type == of)
            }
        }
    }
}

/// A fault to be injected into reads of blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFault {
    /// Of which blocks.
    pub blocks: FaultyBlocks,
    /// What happens: [`InjectedError::Io`], [`InjectedError::Checksum`], [`InjectedError::Decompress`] or [`InjectedError::Decrypt`];
    /// anything else has no effect.
    pub error: InjectedError,
    /// To which copies, a bit for each of the three places of a pointer; 0 for all. What comes of the bytes (decompression, authentication)
    /// is of no copy.
    pub copies: u8,
    /// How often.
    pub frequency: Frequency,
}

/// A fault that is injected, with how often it could have been, and was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectedDataFault {
    /// Its number.
    pub id: u64,
    /// The fault.
    pub fault: DataFault,
    /// Reads it is for.
    pub matched: u64,
    /// Reads it was injected into.
    pub injected: u64,
}

/// The faults of a store.
#[derive(Default)]
pub(crate) struct DataFaults {
    /// Whether there is any.
    any: Cell<bool>,
    faults: RefCell<Vec<Entry>>,
}

struct Entry {
    id: u64,
    fault: DataFault,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    matched: AtomicU64,
    injected: AtomicU64,
}

/// A fault that is for the copy being read.
#[derive(Clone)]
pub(crate) struct FaultOfRead {
    error: InjectedError,
    frequency: Frequency,
    counts: Arc<Counts>,
    /// The checks of a read may run on other threads: chance is a number drawn before, and how many checks there were.
    seed: u64,
    checks: Arc<AtomicU64>,
}

impl FaultOfRead {
    /// Whether the fault is injected this time.
    fn strikes(&self) -> bool {
        let check = self.checks.fetch_add(1, Ordering::Relaxed);
        self.counts.matched.fetch_add(1, Ordering::Relaxed);
        let strikes = self.frequency.includes(mixed(self.seed, check));
        let injected = &self.counts.injected;
        injected.fetch_add(u64::from(strikes), Ordering::Relaxed);
        strikes
    }

    /// Why the bytes of a block that passed its checksum are none, this time.
    pub(crate) fn spoils(&self) -> Option<CorruptReason> {
        let reason = match self.error {
            InjectedError::Decompress => CorruptReason::Decompress,
            InjectedError::Decrypt => CorruptReason::Authentication,
            _ => return None,
        };
        self.strikes().then_some(reason)
    }

    /// Whether the read fails, this time.
    pub(crate) fn fails(&self) -> bool {
        self.error == InjectedError::Io && self.strikes()
    }

    /// Whether the bytes are taken for wrong ones, this time.
    fn rejects(&self) -> bool {
        self.error == InjectedError::Checksum && self.strikes()
    }
}

/// Returns the `n`th of the random numbers that begin with a seed (splitmix64).
fn mixed(seed: u64, n: u64) -> u64 {
    let z = seed.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A check that rejects bytes when the fault strikes.
pub(crate) fn rejecting<T: 'static>(
    fault: Option<&FaultOfRead>,
    check: vdev::Check<T>,
) -> vdev::Check<T> {
    match fault.cloned() {
        Some(fault) if fault.error == InjectedError::Checksum => {
            Arc::new(move |bytes: &IoBuf| check.judge(bytes).filter(|_| !fault.rejects()))
        }
        _ => check,
    }
}

impl DataFaults {
    /// Returns the fault that is for a copy of a block, the oldest one of several.
    pub(crate) fn of(
        &self,
        handle: &Handle,
        bp: &BlockPointer,
        bookmark: Bookmark,
        copy: usize,
        expect: Expect,
    ) -> Option<FaultOfRead> {
        if !self.any.get() || expect == Expect::MaybeWritten {
            return None;
        }
        let faults = self.faults.borrow();
        let entry = faults.iter().find(|entry| {
            let of_bytes = matches!(
                entry.fault.error,
                InjectedError::Decompress | InjectedError::Decrypt
            );
            let copies = entry.fault.copies;
            let is_copy = copies == 0 || of_bytes || copies & (1 << copy.min(7)) != 0;
            is_copy && entry.fault.blocks.contains(bookmark, bp.object_type())
        })?;
        Some(FaultOfRead {
            error: entry.fault.error,
            frequency: entry.fault.frequency,
            counts: Arc::clone(&entry.counts),
            seed: handle.random_u64(),
            checks: Arc::default(),
        })
    }

    /// See [`crate::BlockStore::inject_fault`].
    pub(crate) fn add(&self, id: u64, fault: DataFault) -> Result<(), VdevError> {
        let mut faults = self.faults.borrow_mut();
        if faults.len() >= FAULTS_MAX {
            return Err(VdevError::TooManyFaults);
        }
        assert!(
            faults.iter().all(|entry| entry.id != id),
            "the fault {id} is injected once"
        );
        faults.push(Entry {
            id,
            fault,
            counts: Arc::default(),
        });
        self.any.set(true);
        Ok(())
    }

    pub(crate) fn remove(&self, id: u64) -> bool {
        let mut faults = self.faults.borrow_mut();
        let before = faults.len();
        faults.retain(|entry| entry.id != id);
        self.any.set(!faults.is_empty());
        faults.len() < before
    }

    pub(crate) fn list(&self) -> Vec<InjectedDataFault> {
        let faults = self.faults.borrow();
        let faults = faults.iter().map(|entry| InjectedDataFault {
            id: entry.id,
            fault: entry.fault.clone(),
            matched: entry.counts.matched.load(Ordering::Relaxed),
            injected: entry.counts.injected.load(Ordering::Relaxed),
        });
        faults.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bookmark(objset: u64, object: u64, level: i64, block: u64) -> Bookmark {
        Bookmark {
            objset,
            object,
            level,
            block,
        }
    }

    #[test]
    fn blocks_of_an_object() {
        let blocks = FaultyBlocks::Object {
            objset: 54,
            object: 2,
            level: 0,
            blocks: 3..=4,
        };
        let file = ObjectType::PLAIN_FILE_CONTENTS;
        let check = |at, expect| assert_eq!(blocks.contains(at, file), expect, "{at:?}");
        check(bookmark(54, 2, 0, 3), true);
        check(bookmark(54, 2, 0, 4), true);
        check(bookmark(54, 2, 0, 2), false);
        check(bookmark(54, 2, 0, 5), false);
        check(bookmark(54, 2, 1, 3), false);
        check(bookmark(54, 3, 0, 3), false);
        check(bookmark(55, 2, 0, 3), false);
        check(bookmark(0, 2, 0, 3), false);
    }

    #[test]
    fn blocks_of_the_meta_objset() {
        let any = FaultyBlocks::MetaObjset(None);
        let maps = FaultyBlocks::MetaObjset(Some(ObjectType::SPACE_MAP));
        let at = bookmark(0, 61, 0, 0);
        assert!(any.contains(at, ObjectType::SPACE_MAP));
        assert!(any.contains(at, ObjectType::DNODE));
        assert!(maps.contains(at, ObjectType::SPACE_MAP));
        assert!(!maps.contains(at, ObjectType::DNODE));
        let elsewhere = bookmark(1, 61, 0, 0);
        assert!(!any.contains(elsewhere, ObjectType::SPACE_MAP));
    }

    #[test]
    fn a_frequency_is_met_and_repeats_by_seed() {
        let strikes = |seed| {
            let fault = FaultOfRead {
                error: InjectedError::Checksum,
                frequency: Frequency::from_percent(20.0).expect("a percentage"),
                counts: Arc::default(),
                seed,
                checks: Arc::default(),
            };
            let struck: Vec<bool> = (0..10_000).map(|_| fault.strikes()).collect();
            assert_eq!(fault.counts.matched.load(Ordering::Relaxed), 10_000);
            struck
        };
        let count = strikes(1).into_iter().filter(|strikes| *strikes).count();
        assert!((1_800..2_200).contains(&count), "{count} of 10000");
        assert_eq!(strikes(7), strikes(7));
        assert_ne!(strikes(7), strikes(8));
    }
}
