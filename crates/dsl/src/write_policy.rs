//! The write policy of blocks (checksum, compression, copies) that follows from properties and features.

use dmu::{BlockKinds, CacheUse, WritePolicy};
use ondisk::{ChecksumKind, Compression, pool_version};

use crate::features::Features;
use crate::property::{DEDUP_VERIFY, Property};
use crate::property_zap::PropertyScope;

/// The number of bits of a compression value that name the method; the rest is zstd's level.
const COMPRESSION_BITS: u32 = 7;

/// The write policy of a dataset with the given properties.
pub(crate) fn write_policy(scope: &PropertyScope, features: &Features) -> WritePolicy {
    let lz4 = features.is_active("lz4_compress");
    let default_compression = if lz4 {
        Compression::LZ4
    } else {
        Compression::LZJB
    };
    let value = scope.number(Property::Compression);
    let method = u8::try_from(value & ((1 << COMPRESSION_BITS) - 1)).unwrap_or(0);
    let level = u8::try_from(value >> COMPRESSION_BITS).unwrap_or(0);
    let compression = match Compression(method) {
        Compression::INHERIT | Compression::ON => default_compression,
        other => other,
    };
    let checksum = match small(scope.number(Property::Checksum)) {
        0 | 1 => ChecksumKind::FLETCHER4,
        other => ChecksumKind(other),
    };
    let strong_enough = [
        ChecksumKind::FLETCHER4,
        ChecksumKind::SHA256,
        ChecksumKind::SHA512,
        ChecksumKind::SKEIN,
        ChecksumKind::EDONR,
        ChecksumKind::BLAKE3,
    ];
    let metadata_checksum = if strong_enough.contains(&checksum) {
        checksum
    } else {
        ChecksumKind::FLETCHER4
    };
    let dedup = dedup(scope.number(Property::Dedup));
    let most = most_copies(features);
    let copies = small(scope.number(Property::Copies)).clamp(1, most);
    let more = (copies + 1).min(most);
    // 0 all, 1 most, 2 some, 3 none (zfsprops(7), redundant_metadata).
    let (metadata_copies, indirect_copies) = match scope.number(Property::RedundantMetadata) {
        0 => (more, more),
        1 | 2 => (more, copies),
        _ => (copies, copies),
    };
    WritePolicy {
        checksum,
        metadata_checksum,
        dedup,
        compression,
        compression_level: if compression == Compression::ZSTD {
            level
        } else {
            0
        },
        metadata_compression: default_compression,
        copies,
        metadata_copies,
        indirect_copies,
        special_small_bytes: scope.number(Property::SpecialSmallBlocks),
        embedded_data: features.is_active("embedded_data"),
        hole_birth: features.is_active("hole_birth"),
        accounting_room: features.has_version(pool_version::USERSPACE),
        counts_bytes: features.has_version(pool_version::RAIDZ_DEFLATE),
        cache: CacheUse {
            memory: kept_in_memory(scope),
            devices: kinds(scope.number(Property::SecondaryCache)),
        },
        read_ahead: kinds(scope.number(Property::Prefetch)),
    }
}

/// What stays in memory: with `direct=always` no data.
fn kept_in_memory(scope: &PropertyScope) -> BlockKinds {
    let kept = kinds(scope.number(Property::PrimaryCache));
    match Property::Direct.index_name(scope.number(Property::Direct)) {
        Some("always") => kept.min(BlockKinds::Metadata),
        _ => kept,
    }
}

/// The kinds of blocks that `primarycache`, `secondarycache` and `prefetch` choose among.
fn kinds(value: u64) -> BlockKinds {
    match value {
        0 => BlockKinds::Nothing,
        1 => BlockKinds::Metadata,
        _ => BlockKinds::All,
    }
}

/// How many copies a block may have.
// OpenZFS: module/zfs/spa_misc.c, spa_max_replication
pub(crate) fn most_copies(features: &Features) -> u8 {
    if features.has_version(pool_version::DITTO_BLOCKS) {
        3
    } else {
        1
    }
}

/// What the property `dedup` asks for. Equal checksums that are not cryptographic do not make blocks equal.
// OpenZFS: module/zfs/dmu_objset.c, dedup_changed_cb; module/zfs/dmu.c, dmu_write_policy
fn dedup(value: u64) -> Option<(ChecksumKind, zio::Dedup)> {
    let checksum = match ChecksumKind(small(value & !DEDUP_VERIFY)) {
        ChecksumKind::INHERIT | ChecksumKind::OFF => return None,
        ChecksumKind::ON => ChecksumKind::SHA256,
        other => other,
    };
    let equal = match value & DEDUP_VERIFY != 0 || checksum == ChecksumKind::EDONR {
        true => zio::Dedup::Verify,
        false => zio::Dedup::Trust,
    };
    Some((checksum, equal))
}

fn small(number: u64) -> u8 {
    u8::try_from(number).unwrap_or(0)
}

/// The feature a block of a dataset needs for its size, compression or checksum.
pub(crate) fn features_of_block(bp: &ondisk::BlockPointer) -> impl Iterator<Item = &'static str> {
    let large = (bp.lsize() > ondisk::OLD_MAX_BLOCK_SIZE).then_some("large_blocks");
    let zstd = (bp.compression() == Compression::ZSTD).then_some("zstd_compress");
    let checksum = if bp.is_embedded() {
        None
    } else {
        match bp.checksum_kind() {
            ChecksumKind::SHA512 => Some("sha512"),
            ChecksumKind::SKEIN => Some("skein"),
            ChecksumKind::EDONR => Some("edonr"),
            ChecksumKind::BLAKE3 => Some("blake3"),
            _ => None,
        }
    };
    [large, zstd, checksum].into_iter().flatten()
}
