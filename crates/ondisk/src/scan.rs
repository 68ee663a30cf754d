//! The state of a scrub or resilver (the entry `scan` of the meta-objset's directory), and the names of damaged blocks
//! in the error logs (`errlog_last`, `errlog_scrub`).
//!
//! OpenZFS: include/sys/dsl_scan.h (dsl_scan_phys_t), include/sys/zio.h (zbookmark_err_phys_t).

/// [`ScanPhys::bookmark`] objset of a scan that is between two datasets.
pub const DESTROYED_OBJSET: u64 = u64::MAX;
/// Bit of [`ScanPhys::flags`]: the scrub is paused.
pub const SCRUB_PAUSED: u64 = 1 << 1;

/// Values of [`ScanPhys::func`].
pub mod scan_func {
    /// Never scanned.
    pub const NONE: u64 = 0;
    /// Reads every copy.
    pub const SCRUB: u64 = 1;
    /// Brings devices up to date.
    pub const RESILVER: u64 = 2;
}

/// Values of [`ScanPhys::state`].
pub mod scan_state {
    /// Never scanned.
    pub const NONE: u64 = 0;
    /// Under way (or paused).
    pub const SCANNING: u64 = 1;
    /// Came to its end.
    pub const FINISHED: u64 = 2;
    /// Ended early.
    pub const CANCELED: u64 = 3;
}

/// How far a scan has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScanPhys {
    /// One of [`scan_func`].
    pub func: u64,
    /// One of [`scan_state`].
    pub state: u64,
    /// ZAP: datasets still to be visited (hex of the object) to the txg after which their blocks were born; 0 for none.
    pub queue_obj: u64,
    /// Only blocks born after this txg.
    pub min_txg: u64,
    /// Only blocks born in or before this txg.
    pub max_txg: u64,
    /// As `min_txg`, for the dataset being visited.
    pub cur_min_txg: u64,
    /// As `max_txg`, for the dataset being visited.
    pub cur_max_txg: u64,
    /// Seconds since 1970.
    pub start_time: u64,
    /// Seconds since 1970; 0 before the end.
    pub end_time: u64,
    /// Bytes to look at, all copies.
    pub to_examine: u64,
    /// Bytes looked at.
    pub examined: u64,
    /// Bytes that need no look.
    pub skipped: u64,
    /// Bytes repaired or resilvered.
    pub processed: u64,
    /// Blocks that could not be repaired.
    pub errors: u64,
    /// Last class of the dedup table to be visited.
    pub ddt_class_max: u64,
    /// Place in the dedup tables: class, type, checksum, cursor.
    pub ddt_bookmark: [u64; 4],
    /// Place in the datasets: objset, object, level, block. All zero at the start.
    pub bookmark: [u64; 4],
    /// Bits.
    pub flags: u64,
}

impl ScanPhys {
    /// Number of words.
    pub const WORDS: usize = 24;

    /// Decodes the value of the directory entry; `None` when it is too short. Newer writers may append words.
    #[must_use]
    pub fn from_words(words: &[u64]) -> Option<Self> {
        let w = words.first_chunk::<{ Self::WORDS }>()?;
        let [
            func,
            state,
            queue_obj,
            min_txg,
            max_txg,
            cur_min_txg,
            cur_max_txg,
            start_time,
            end_time,
            to_examine,
            examined,
            skipped,
            processed,
            errors,
            ddt_class_max,
            d0,
            d1,
            d2,
            d3,
            b0,
            b1,
            b2,
            b3,
            flags,
        ] = *w;
        Some(Self {
            func,
            state,
            queue_obj,
            min_txg,
            max_txg,
            cur_min_txg,
            cur_max_txg,
            start_time,
            end_time,
            to_examine,
            examined,
            skipped,
            processed,
            errors,
            ddt_class_max,
            ddt_bookmark: [d0, d1, d2, d3],
            bookmark: [b0, b1, b2, b3],
            flags,
        })
    }

    /// Encodes to the value of the directory entry.
    #[must_use]
    pub fn to_words(&self) -> Vec<u64> {
        let mut words = vec![
            self.func,
            self.state,
            self.queue_obj,
            self.min_txg,
            self.max_txg,
            self.cur_min_txg,
            self.cur_max_txg,
            self.start_time,
            self.end_time,
            self.to_examine,
            self.examined,
            self.skipped,
            self.processed,
            self.errors,
            self.ddt_class_max,
        ];
        words.extend(self.ddt_bookmark);
        words.extend(self.bookmark);
        words.push(self.flags);
        words
    }
}

/// A damaged block, as the error logs name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct DamagedBlock {
    /// Dataset object; with `head_errlog` that of the head.
    pub objset: u64,
    /// Object.
    pub object: u64,
    /// Level (-1 the objset block, -2 the intent log).
    pub level: i64,
    /// Block number at that level.
    pub block: u64,
    /// Txg of birth; 0 in logs without `head_errlog`.
    pub birth: u64,
}

impl DamagedBlock {
    /// Returns the key in a log without `head_errlog`: `objset:object:level:block`, in hex.
    #[must_use]
    pub fn plain_key(&self) -> String {
        format!(
            "{:x}:{:x}:{:x}:{:x}",
            self.objset, self.object, self.level, self.block
        )
    }

    /// Returns the key in a head's own log: `object:level:block:birth`, in hex.
    #[must_use]
    pub fn head_key(&self) -> String {
        format!(
            "{:x}:{:x}:{:x}:{:x}",
            self.object, self.level, self.block, self.birth
        )
    }

    /// Reads [`DamagedBlock::plain_key`].
    #[must_use]
    pub fn from_plain_key(key: &[u8]) -> Option<Self> {
        let [objset, object, level, block] = four(key)?;
        Some(Self {
            objset,
            object,
            level: signed(level),
            block,
            birth: 0,
        })
    }

    /// Reads [`DamagedBlock::head_key`] of the head `objset`.
    #[must_use]
    pub fn from_head_key(objset: u64, key: &[u8]) -> Option<Self> {
        let [object, level, block, birth] = four(key)?;
        Some(Self {
            objset,
            object,
            level: signed(level),
            block,
            birth,
        })
    }
}

/// Levels are written as 64 bits by old writers and as 32 by new ones.
fn signed(level: u64) -> i64 {
    match u32::try_from(level) {
        Ok(short) => i64::from(short.cast_signed()),
        Err(_) => level.cast_signed(),
    }
}

fn four(key: &[u8]) -> Option<[u64; 4]> {
    let text = std::str::from_utf8(key).ok()?;
    let mut parts = text
        .split(':')
        .map(|part| u64::from_str_radix(part, 16).ok());
    let found = [
        parts.next()??,
        parts.next()??,
        parts.next()??,
        parts.next()??,
    ];
    parts.next().is_none().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scans_survive_encoding() {
        let words: Vec<u64> = (1..=24).collect();
        let scan = ScanPhys::from_words(&words).unwrap();
        assert_eq!(scan.bookmark, [20, 21, 22, 23]);
        assert_eq!(scan.flags, 24);
        assert_eq!(scan.to_words(), words);
        assert_eq!(ScanPhys::from_words(&words[..23]), None);
    }

    #[test]
    fn damaged_blocks_are_named_as_openzfs_names_them() {
        let block = DamagedBlock {
            objset: 0x36,
            object: 2,
            level: 0,
            block: 0x1f,
            birth: 0x2a,
        };
        assert_eq!(block.plain_key(), "36:2:0:1f");
        assert_eq!(block.head_key(), "2:0:1f:2a");
        assert_eq!(DamagedBlock::from_head_key(0x36, b"2:0:1f:2a"), Some(block));
        let objset = DamagedBlock::from_plain_key(b"36:0:ffffffffffffffff:0").unwrap();
        assert_eq!(objset.level, -1);
        assert_eq!(objset.plain_key(), "36:0:ffffffffffffffff:0");
        for bad in ["", "1:2:3", "1:2:3:4:5", "x:2:3:4", "1:2:3:\u{e9}"] {
            assert_eq!(DamagedBlock::from_plain_key(bad.as_bytes()), None);
        }
    }
}
