//! Removals of top-level vdevs: how far the newest one is, and the tables that say where the blocks of a removed vdev are.
//!
//! ```text
//! mapping   entries of 24 bytes { source, address }, sorted by source; bonus { end, bytes, entries [, object of counts] }
//! births    entries of 16 bytes { end, txg }; bonus { entries }
//! ```
// OpenZFS: include/sys/vdev_indirect_mapping.h, vdev_indirect_mapping_entry_phys_t and vdev_indirect_mapping_phys_t;
// include/sys/vdev_indirect_births.h, vdev_indirect_birth_entry_phys_t; include/sys/vdev_impl.h, spa_removing_phys_t

use crate::bytes::{need, put_u64, u64_at};
use crate::words::word_struct;
use crate::{DecodeError, Result};

/// Unset in a vdev number: no vdev.
pub const NO_VDEV: u64 = u64::MAX;
/// A flag in a word of an address that is not part of the offset: a gang block, or in a source unused.
const FLAG: u64 = 1 << 63;

/// How far the newest removal is. The numbers are the on-disk ones.
// OpenZFS: include/sys/fs/zfs.h, dsl_scan_state_t
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Evacuating = 1,
    Finished = 2,
    Canceled = 3,
}

/// What the directory says of removals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovalPhys {
    pub stage: Stage,
    /// The vdev that is being or was removed.
    pub vdev: u64,
    /// The vdev that was removed last, or [`NO_VDEV`].
    pub previous: u64,
    /// Seconds since 1970.
    pub start: u64,
    /// Seconds since 1970.
    pub end: u64,
    /// Bytes to be copied in all.
    pub to_copy: u64,
    /// Bytes copied.
    pub copied: u64,
}

impl RemovalPhys {
    /// Words of the value.
    pub const WORDS: usize = 7;

    /// Decodes the value; `None` in a pool that nothing was ever removed from.
    ///
    /// # Errors
    /// [`DecodeError`] when it is too short or in an unknown state.
    pub fn from_words(words: &[u64]) -> Result<Option<Self>> {
        let Some(words) = words.first_chunk::<{ Self::WORDS }>() else {
            return Err(DecodeError::new("state is damaged", words.len() * 8));
        };
        let [stage, vdev, previous, start, end, to_copy, copied] = *words;
        let stage = match stage {
            0 => return Ok(None),
            1 => Stage::Evacuating,
            2 => Stage::Finished,
            3 => Stage::Canceled,
            _ => return Err(DecodeError::new("state is unknown", 0)),
        };
        Ok(Some(Self {
            stage,
            vdev,
            previous,
            start,
            end,
            to_copy,
            copied,
        }))
    }

    /// Encodes the value.
    #[must_use]
    pub fn to_words(&self) -> Vec<u64> {
        vec![
            self.stage as u64,
            self.vdev,
            self.previous,
            self.start,
            self.end,
            self.to_copy,
            self.copied,
        ]
    }
}

/// Bonus of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IndirectMappingPhys {
    /// End of the last entry's source in bytes.
    pub end: u64,
    /// Bytes that the entries map.
    pub bytes: u64,
    /// Number of entries.
    pub entries: u64,
    /// Object with a `u32` of obsolete bytes per entry; `None` in a mapping without counts.
    pub counts_object: Option<u64>,
}

impl IndirectMappingPhys {
    /// Bytes without and with counts.
    pub const SIZES: (usize, usize) = (24, 32);

    /// Decodes a bonus.
    ///
    /// # Errors
    /// Only when `buf` is too short.
    pub fn decode(buf: &[u8]) -> Result<Self> {
        need(buf, Self::SIZES.0, "indirect mapping header")?;
        let counts = (buf.len() >= Self::SIZES.1).then(|| u64_at(buf, 24));
        Ok(Self {
            end: u64_at(buf, 0),
            bytes: u64_at(buf, 8),
            entries: u64_at(buf, 16),
            counts_object: counts.filter(|&object| object != 0),
        })
    }

    /// Encodes a bonus.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (plain, with_counts) = Self::SIZES;
        let mut out = vec![0; self.counts_object.map_or(plain, |_| with_counts)];
        put_u64(&mut out, 0, self.end);
        put_u64(&mut out, 8, self.bytes);
        put_u64(&mut out, 16, self.entries);
        if let Some(object) = self.counts_object {
            put_u64(&mut out, 24, object);
        }
        out
    }
}

/// An entry of a mapping: a run of a removed vdev's bytes and where they are now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IndirectMappingEntryPhys {
    /// Offset on the removed vdev in bytes.
    pub source: u64,
    /// Length in bytes: less than 8 GiB.
    pub len: u64,
    /// Top-level vdev it was copied to: 24 bits.
    pub vdev: u32,
    /// Offset there in bytes.
    pub offset: u64,
}

impl IndirectMappingEntryPhys {
    /// Encoded bytes.
    pub const SIZE: usize = 24;

    /// Decodes an entry.
    ///
    /// # Errors
    /// [`DecodeError`] when `buf` is too short or an offset is beyond 64 bits.
    pub fn decode(buf: &[u8]) -> Result<Self> {
        need(buf, Self::SIZE, "indirect mapping entry")?;
        let scaled = |at: usize| {
            let sectors = u64_at(buf, at) & !FLAG;
            let bytes = sectors.checked_mul(512);
            bytes.ok_or(DecodeError::new("indirect mapping entry", at))
        };
        // Words of an address: size in the low 24 bits, vdev above 32, all in units of 512.
        let word = u64_at(buf, 8);
        Ok(Self {
            source: scaled(0)?,
            len: (word & 0xff_ffff) << 9,
            vdev: crate::bytes::low32(word >> 32 & 0xff_ffff),
            offset: scaled(16)?,
        })
    }

    /// Encodes an entry. All but the vdev are whole sectors of 512 bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        put_u64(&mut out, 0, self.source >> 9);
        put_u64(&mut out, 8, u64::from(self.vdev) << 32 | self.len >> 9);
        put_u64(&mut out, 16, self.offset >> 9);
        out
    }
}

word_struct! {
    /// An entry of births: what lies before an end, and not before that of the entry before, was copied in a txg.
    pub struct IndirectBirthPhys[16] as "indirect birth" {
        /// Offset on the removed vdev in bytes.
        end @ 0,
        txg @ 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_round_trip() {
        let entry = IndirectMappingEntryPhys {
            source: 3 << 9,
            len: 0xff_ffff << 9,
            vdev: 0xab_cdef,
            offset: 1 << 40,
        };
        assert_eq!(IndirectMappingEntryPhys::decode(&entry.encode()), Ok(entry));
        assert!(IndirectMappingEntryPhys::decode(&[0xff; 24]).is_err());
        assert!(IndirectMappingEntryPhys::decode(&[0; 23]).is_err());
        for counts_object in [None, Some(7)] {
            let header = IndirectMappingPhys {
                end: 1,
                bytes: 2,
                entries: 3,
                counts_object,
            };
            assert_eq!(IndirectMappingPhys::decode(&header.encode()), Ok(header));
        }
        let birth = IndirectBirthPhys { end: 5, txg: 6 };
        assert_eq!(IndirectBirthPhys::decode(&birth.encode()), Ok(birth));
    }

    #[test]
    fn the_state_of_removals_is_known_or_refused() {
        let words = [2, 1, NO_VDEV, 10, 20, 30, 40];
        let phys = RemovalPhys::from_words(&words).unwrap().unwrap();
        assert_eq!((phys.stage, phys.copied), (Stage::Finished, 40));
        assert_eq!(phys.to_words(), words);
        assert_eq!(RemovalPhys::from_words(&[0; 7]), Ok(None));
        assert!(RemovalPhys::from_words(&[1; 6]).is_err());
        assert!(RemovalPhys::from_words(&[4; 7]).is_err());
    }
}
