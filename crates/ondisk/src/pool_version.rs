//! Versions of pools: what each number brought that changes how a pool is read or written.
//!
//! A pool is of one of the versions 1 to 28, or of version 5000, whose capabilities are counted as features. A pool keeps
//! its version until it is upgraded, and nothing is written in it that its version does not know.
//!
//! OpenZFS: include/sys/fs/zfs.h, SPA_VERSION_*.

/// The first version.
pub const INITIAL: u64 = 1;
/// Metadata has a second copy, data can have up to three.
pub const DITTO_BLOCKS: u64 = 2;
/// Space is counted without parity ("deflated"); dnodes count bytes; lists of blocks count sizes; raidz2; spares.
pub const RAIDZ_DEFLATE: u64 = 3;
/// The history of commands.
pub const HISTORY: u64 = 4;
pub const GZIP_COMPRESSION: u64 = 5;
/// The pool property `bootfs`, the first one.
pub const BOOTFS: u64 = 6;
/// Log vdevs.
pub const SLOGS: u64 = 7;
pub const DELEGATED_PERMISSIONS: u64 = 8;
/// `refquota` and `refreservation`; the unique bytes of datasets are right.
pub const REFRESERVATION: u64 = 9;
/// Cache vdevs.
pub const L2CACHE: u64 = 10;
/// Snapshots list their clones, every dataset descends from `$ORIGIN`, scans can be continued.
pub const ORIGIN: u64 = 11;
pub const SNAPSHOT_PROPERTIES: u64 = 12;
/// Directories know what their space is used by.
pub const USED_BREAKDOWN: u64 = 13;
pub const PASSTHROUGH_X: u64 = 14;
/// Space is counted by user and group.
pub const USERSPACE: u64 = 15;
pub const RAIDZ3: u64 = 17;
/// Holds of snapshots.
pub const USERREFS: u64 = 18;
/// Log vdevs can be removed, and leave holes.
pub const HOLES: u64 = 19;
pub const ZLE_COMPRESSION: u64 = 20;
pub const DEDUP: u64 = 21;
pub const RECEIVED_PROPERTIES: u64 = 22;
/// Blocks of the intent log have their trailer at the start, and take no more room than they need.
pub const SLIM_ZIL: u64 = 23;
/// System attributes: file systems of version 5, spill blocks.
pub const SYSTEM_ATTRIBUTES: u64 = 24;
/// The state of scans has its present form.
pub const SCAN: u64 = 25;
/// Deadlists by birth, frees in the background, directories list their clones.
pub const DEADLISTS: u64 = 26;
/// Several snapshots in one txg.
pub const FAST_SNAPSHOTS: u64 = 27;
/// Several replacements at once; the last version without features.
pub const BEFORE_FEATURES: u64 = 28;
/// Features say what a pool knows.
pub const FEATURES: u64 = 5000;

/// Whether pools of this version exist.
#[must_use]
pub const fn is_known(version: u64) -> bool {
    (version >= INITIAL && version <= BEFORE_FEATURES) || version == FEATURES
}

/// The oldest pool version that can hold a file system of a version.
// OpenZFS: module/zcommon/zfs_comutil.c, zfs_spa_version_map
#[must_use]
pub const fn for_file_system(version: u64) -> u64 {
    match version {
        0..=2 => INITIAL,
        3 => REFRESERVATION,
        4 => USERSPACE,
        _ => SYSTEM_ATTRIBUTES,
    }
}

/// The newest version of file systems that a pool of a version can hold.
#[must_use]
pub const fn newest_file_system(pool_version: u64) -> u64 {
    let mut version = 5;
    while for_file_system(version) > pool_version {
        version -= 1;
    }
    version
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_pools_and_file_systems() {
        for (pool, newest) in [
            (1, 2),
            (8, 2),
            (9, 3),
            (14, 3),
            (15, 4),
            (23, 4),
            (24, 5),
            (5000, 5),
        ] {
            assert_eq!(newest_file_system(pool), newest, "{pool}");
        }
        assert!(is_known(1) && is_known(28) && is_known(5000));
        assert!(!is_known(0) && !is_known(29) && !is_known(4999) && !is_known(5001));
    }
}
