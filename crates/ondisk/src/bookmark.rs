//! Bookmarks of datasets: the value of an entry in a head's ZAP of bookmarks.
//!
//! OpenZFS: include/sys/dsl_bookmark.h, `zfs_bookmark_phys_t`.

/// Words of the first version of a bookmark.
const WORDS_V1: usize = 3;
/// Words of a bookmark with the feature `bookmark_v2`.
const WORDS_V2: usize = 12;

/// Bits of [`BookmarkPhys::flags`].
pub mod bookmark_flags {
    /// The space words are valid. OpenZFS: `ZBM_FLAG_HAS_FBN`.
    pub const HAS_SPACE: u64 = 1;
    /// The snapshot still exists. OpenZFS: `ZBM_FLAG_SNAPSHOT_EXISTS`.
    pub const SNAPSHOT_EXISTS: u64 = 2;
}

/// A stored bookmark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BookmarkPhys {
    /// Guid of the snapshot.
    pub guid: u64,
    pub creation_txg: u64,
    /// Seconds since 1970.
    pub creation_time: u64,
    /// Object of a redaction list, or 0.
    pub redaction_obj: u64,
    /// Bits of [`bookmark_flags`].
    pub flags: u64,
    /// Deflated, stored and logical bytes that the snapshot referred to.
    pub referenced: [u64; 3],
    /// Of these, the bytes that were freed before the next snapshot.
    pub freed_before_next: [u64; 3],
    pub ivset_guid: u64,
    /// Whether it is stored in the long form; the short one ends with the creation time.
    pub is_v2: bool,
}

impl BookmarkPhys {
    /// Decodes the words of a ZAP entry; missing ones are zero, further ones ignored.
    #[must_use]
    pub fn decode(words: &[u64]) -> Self {
        let w = |i: usize| words.get(i).copied().unwrap_or(0);
        Self {
            guid: w(0),
            creation_txg: w(1),
            creation_time: w(2),
            redaction_obj: w(3),
            flags: w(4),
            referenced: [w(5), w(6), w(7)],
            freed_before_next: [w(8), w(9), w(10)],
            ivset_guid: w(11),
            is_v2: words.len() > WORDS_V1,
        }
    }

    /// Encodes to the words of a ZAP entry.
    #[must_use]
    pub fn encode(&self) -> Vec<u64> {
        let [used, comp, uncomp] = self.referenced;
        let [freed_used, freed_comp, freed_uncomp] = self.freed_before_next;
        let mut words = vec![
            self.guid,
            self.creation_txg,
            self.creation_time,
            self.redaction_obj,
            self.flags,
            used,
            comp,
            uncomp,
            freed_used,
            freed_comp,
            freed_uncomp,
            self.ivset_guid,
        ];
        words.truncate(if self.is_v2 { WORDS_V2 } else { WORDS_V1 });
        words
    }

    /// Whether the space words are valid.
    #[must_use]
    pub const fn has_space(&self) -> bool {
        self.flags & bookmark_flags::HAS_SPACE != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_round_trip() {
        let all: Vec<u64> = (1..=13).collect();
        let check = |words: &[u64], expect: &[u64]| {
            assert_eq!(BookmarkPhys::decode(words).encode(), expect);
        };
        check(&all[..3], &all[..3]);
        check(&all[..12], &all[..12]);
        check(&all, &all[..12]);
        check(&all[..2], &[1, 2, 0]);
        check(&all[..4], &[1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert!(BookmarkPhys::decode(&all).has_space());
        assert!(!BookmarkPhys::decode(&all[..3]).has_space());
    }
}
