//! The index of a micro ZAP in memory: slots by hash and differentiator, and the free ones.

use std::collections::BTreeMap;

use ondisk::zap::{hash, micro as block};

use super::value::normal;
use crate::error::DmuError;

/// Index of the newest version of a micro ZAP.
pub(crate) struct MicroIndex {
    /// `Dnode::version` it describes.
    pub(super) version: u64,
    pub(super) salt: u64,
    pub(super) norm: u64,
    pub(super) by_hash: BTreeMap<(u64, u32), u16>,
    pub(super) free: Vec<u16>,
}

impl MicroIndex {
    pub(super) fn build(bytes: &[u8], version: u64) -> std::result::Result<Self, BuildError> {
        let (salt, norm) = block::header(bytes)?;
        let mut index = Self {
            version,
            salt,
            norm,
            by_hash: BTreeMap::new(),
            free: Vec::new(),
        };
        for slot in (0..block::slots(bytes.len())).rev() {
            let number = u16::try_from(slot).unwrap_or(u16::MAX);
            match block::entry(bytes, slot) {
                Some(entry) => {
                    let hash = hash(salt, &normal(entry.name, norm), 0);
                    index.by_hash.insert((hash, entry.cd), number);
                }
                None => index.free.push(number),
            }
        }
        Ok(index)
    }

    /// The entry of a name.
    pub(super) fn find(&self, bytes: &[u8], name: &[u8], hash: u64) -> Option<Found> {
        self.by_hash
            .range((hash, 0)..=(hash, u32::MAX))
            .find_map(|(&(_, cd), &slot)| {
                let entry = block::entry(bytes, usize::from(slot))?;
                (entry.name == name).then_some(Found {
                    slot: entry.slot,
                    value: entry.value,
                    cd,
                })
            })
    }

    /// Lowest differentiator no entry of the hash has.
    pub(super) fn free_cd(&self, hash: u64) -> u32 {
        let mut cd = 0;
        for (&(_, taken), _) in self.by_hash.range((hash, 0)..=(hash, u32::MAX)) {
            if taken != cd {
                break;
            }
            cd += 1;
        }
        cd
    }
}

/// Why there is no index.
pub(super) enum BuildError {
    Decode(ondisk::DecodeError),
    Other(DmuError),
}

impl From<ondisk::DecodeError> for BuildError {
    fn from(error: ondisk::DecodeError) -> Self {
        Self::Decode(error)
    }
}

impl From<DmuError> for BuildError {
    fn from(error: DmuError) -> Self {
        Self::Other(error)
    }
}

/// An entry of the block.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) slot: usize,
    pub(super) value: u64,
    pub(super) cd: u32,
}
