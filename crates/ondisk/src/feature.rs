//! The table of pool features: identities, where each is counted, and what each depends on.
//!
//! OpenZFS: include/zfeature_common.h, module/zcommon/zfeature_common.c (2.3). Descriptions are our own words.

/// One pool feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// Identity on disk, like `org.illumos:lz4_compress`.
    pub guid: &'static str,
    /// Short name, as in the `feature@NAME` property.
    pub name: &'static str,
    /// Counted in `features_for_write`: software that lacks it may still open the pool read-only. Else in
    /// `features_for_read`: without it the pool cannot be opened.
    pub read_only_compatible: bool,
    /// When active, also listed in the labels: needed before the meta object set can be read.
    pub needed_by_mos: bool,
    /// Becomes active as soon as it is enabled.
    pub activate_on_enable: bool,
    /// Activated dataset by dataset; the count is the number of datasets.
    pub per_dataset: bool,
    /// Short names of the features that are enabled first.
    pub depends_on: &'static [&'static str],
    /// One phrase for listings.
    pub description: &'static str,
}

impl Feature {
    /// The feature with this guid.
    #[must_use]
    pub fn by_guid(guid: &str) -> Option<&'static Self> {
        ALL.iter().find(|f| f.guid == guid)
    }

    /// The feature with this short name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|f| f.name == name)
    }
}

const R: u8 = 0;
const W: u8 = 1;
const MOS: u8 = 2;
const ACT: u8 = 4;
const DS: u8 = 8;

const fn feature(
    guid: &'static str,
    name: &'static str,
    bits: u8,
    depends_on: &'static [&'static str],
    description: &'static str,
) -> Feature {
    Feature {
        guid,
        name,
        read_only_compatible: bits & W != 0,
        needed_by_mos: bits & MOS != 0,
        activate_on_enable: bits & ACT != 0,
        per_dataset: bits & DS != 0,
        depends_on,
        description,
    }
}

const EXT: &[&str] = &["extensible_dataset"];

/// All features, in the order in which OpenZFS enables them.
pub const ALL: &[Feature] = &[
    feature(
        "com.delphix:async_destroy",
        "async_destroy",
        W,
        &[],
        "Destroy file systems in the background.",
    ),
    feature(
        "com.delphix:empty_bpobj",
        "empty_bpobj",
        W,
        &[],
        "Snapshots share one empty block pointer list.",
    ),
    feature(
        "org.illumos:lz4_compress",
        "lz4_compress",
        R | ACT,
        &[],
        "LZ4 compression.",
    ),
    feature(
        "com.joyent:multi_vdev_crash_dump",
        "multi_vdev_crash_dump",
        R,
        &[],
        "Crash dumps to several vdevs.",
    ),
    feature(
        "com.delphix:spacemap_histogram",
        "spacemap_histogram",
        W,
        &[],
        "Space maps keep free-size histograms.",
    ),
    feature(
        "com.delphix:enabled_txg",
        "enabled_txg",
        W,
        &[],
        "Remember when each feature was enabled.",
    ),
    feature(
        "com.delphix:hole_birth",
        "hole_birth",
        R | MOS | ACT,
        &["enabled_txg"],
        "Holes keep their birth txg.",
    ),
    feature(
        "com.delphix:zpool_checkpoint",
        "zpool_checkpoint",
        W,
        &[],
        "Pool state that can be rewound to.",
    ),
    feature(
        "com.delphix:spacemap_v2",
        "spacemap_v2",
        W | ACT,
        &[],
        "Space map entries for large ranges.",
    ),
    feature(
        "com.delphix:extensible_dataset",
        "extensible_dataset",
        R,
        &[],
        "Datasets carry further attributes.",
    ),
    feature(
        "com.delphix:bookmarks",
        "bookmarks",
        W,
        EXT,
        "Bookmarks of snapshots.",
    ),
    feature(
        "com.joyent:filesystem_limits",
        "filesystem_limits",
        W,
        EXT,
        "Limits on file systems and snapshots.",
    ),
    feature(
        "com.delphix:embedded_data",
        "embedded_data",
        R | MOS | ACT,
        &[],
        "Small blocks live in their pointer.",
    ),
    feature(
        "com.delphix:livelist",
        "livelist",
        W,
        EXT,
        "Clones remember their own blocks for fast destroy.",
    ),
    feature(
        "com.delphix:log_spacemap",
        "log_spacemap",
        W,
        &["spacemap_v2"],
        "One space map log per txg.",
    ),
    feature(
        "org.open-zfs:large_blocks",
        "large_blocks",
        R | DS,
        EXT,
        "Blocks above 128 KiB.",
    ),
    feature(
        "org.zfsonlinux:large_dnode",
        "large_dnode",
        R | DS,
        EXT,
        "Dnodes above 512 bytes.",
    ),
    feature(
        "org.illumos:sha512",
        "sha512",
        R | DS,
        EXT,
        "SHA-512/256 checksums.",
    ),
    feature(
        "org.illumos:skein",
        "skein",
        R | DS,
        EXT,
        "Skein checksums.",
    ),
    feature(
        "org.illumos:edonr",
        "edonr",
        R | DS,
        EXT,
        "Edon-R checksums.",
    ),
    feature(
        "com.delphix:redaction_bookmarks",
        "redaction_bookmarks",
        R,
        &["bookmark_v2", "extensible_dataset", "bookmarks"],
        "Bookmarks that list redacted blocks.",
    ),
    feature(
        "com.delphix:redacted_datasets",
        "redacted_datasets",
        R | DS,
        EXT,
        "Datasets with redacted blocks.",
    ),
    feature(
        "com.delphix:bookmark_written",
        "bookmark_written",
        R,
        &["bookmark_v2", "extensible_dataset", "bookmarks"],
        "Space written since a bookmark.",
    ),
    feature(
        "com.delphix:device_removal",
        "device_removal",
        R | MOS,
        &[],
        "Top-level vdevs can be removed.",
    ),
    feature(
        "com.delphix:obsolete_counts",
        "obsolete_counts",
        W,
        &["extensible_dataset", "device_removal"],
        "Mappings of removed vdevs shrink.",
    ),
    feature(
        "org.zfsonlinux:userobj_accounting",
        "userobj_accounting",
        W | DS,
        EXT,
        "Objects counted per user.",
    ),
    feature(
        "com.datto:bookmark_v2",
        "bookmark_v2",
        R,
        &["extensible_dataset", "bookmarks"],
        "Larger bookmarks.",
    ),
    feature(
        "com.datto:encryption",
        "encryption",
        R | DS,
        &["extensible_dataset", "bookmark_v2"],
        "Encryption.",
    ),
    feature(
        "org.zfsonlinux:project_quota",
        "project_quota",
        W | DS,
        EXT,
        "Quotas per project.",
    ),
    feature(
        "org.zfsonlinux:allocation_classes",
        "allocation_classes",
        W,
        &[],
        "Vdevs for special data.",
    ),
    feature(
        "com.datto:resilver_defer",
        "resilver_defer",
        W,
        &[],
        "New resilvers wait for the running one.",
    ),
    feature(
        "org.openzfs:device_rebuild",
        "device_rebuild",
        W,
        &[],
        "Sequential rebuild of mirrors and draid.",
    ),
    feature(
        "org.freebsd:zstd_compress",
        "zstd_compress",
        R | DS,
        EXT,
        "Zstandard compression.",
    ),
    feature(
        "org.openzfs:draid",
        "draid",
        R | MOS,
        &[],
        "Distributed spares and parity.",
    ),
    feature(
        "org.openzfs:zilsaxattr",
        "zilsaxattr",
        W | DS,
        EXT,
        "Intent log of attributes kept in the inode.",
    ),
    feature(
        "com.delphix:head_errlog",
        "head_errlog",
        R | ACT,
        &[],
        "Error log per head dataset.",
    ),
    feature(
        "org.openzfs:blake3",
        "blake3",
        R | DS,
        EXT,
        "BLAKE3 checksums.",
    ),
    feature(
        "com.fudosecurity:block_cloning",
        "block_cloning",
        W,
        &[],
        "Files share blocks by reference.",
    ),
    feature(
        "com.klarasystems:vdev_zaps_v2",
        "vdev_zaps_v2",
        R | MOS,
        &[],
        "The root vdev has attributes.",
    ),
    feature(
        "com.delphix:redaction_list_spill",
        "redaction_list_spill",
        R,
        &["redaction_bookmarks"],
        "Redaction bookmarks of many snapshots.",
    ),
    feature(
        "org.openzfs:raidz_expansion",
        "raidz_expansion",
        R | MOS,
        &[],
        "Raidz vdevs can grow by a disk.",
    ),
    feature(
        "com.klarasystems:fast_dedup",
        "fast_dedup",
        W,
        &[],
        "Faster deduplication tables.",
    ),
    feature(
        "org.zfsonlinux:longname",
        "longname",
        R | DS,
        EXT,
        "File names up to 1023 bytes.",
    ),
    feature(
        "com.klarasystems:large_microzap",
        "large_microzap",
        W | DS,
        &["extensible_dataset", "large_blocks"],
        "Small dictionaries above 128 KiB.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_unique_and_dependencies_exist() {
        for (i, f) in ALL.iter().enumerate() {
            assert!(
                ALL.iter()
                    .skip(i + 1)
                    .all(|g| g.guid != f.guid && g.name != f.name),
                "{}",
                f.name
            );
            assert!(f.guid.ends_with(&format!(":{}", f.name)));
            assert!(
                f.depends_on.iter().all(|d| Feature::by_name(d).is_some()),
                "{}",
                f.name
            );
        }
    }
}
