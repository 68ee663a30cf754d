//! Making a new device tree: checks of the devices a user named, sizes, sector shift, guids.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ondisk::nvlist::NvList;
use ondisk::{Guid, label};
use runtime::{Disk, DiskInfo, DiskKind, Handle};

use crate::labels::LabelSet;
use crate::leaf::{check_size, open_disk};
use crate::tree::layout_of;
use crate::{
    ASHIFT_MAX, ASHIFT_MIN, AllocationBias, Draid, Layout, MIN_DEVICE_BYTES, OpenMode, Raidz,
    TreeConfig, VdevConfig, VdevError, VdevKind,
};

/// Sector shift of files unless another is asked for: 4 KiB, the page and the sector of nearly all storage below.
const FILE_ASHIFT: u8 = 12;
/// Largest sector shift taken from a device's own word (`zfs_vdev_max_auto_ashift`).
const ASHIFT_DEVICE_MAX: u8 = 14;
/// Bytes at the front of a device that are searched for foreign signatures.
const SIGNATURE_BYTES: u64 = 128 << 10;
const _: () = assert!(FILE_ASHIFT <= ASHIFT_DEVICE_MAX && ASHIFT_DEVICE_MAX <= crate::ASHIFT_MAX);
const _: () = assert!(SIGNATURE_BYTES <= crate::MIN_DEVICE_BYTES);
/// Offset, magic and name of what a device may hold (values as libblkid documents them).
const SIGNATURES: &[(usize, &[u8], &str)] = &[
    (0x438, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an xfs file system"),
    (0x10040, b"_BHRfS_M", "a btrfs file system"),
    (512, b"EFI PART", "a GPT partition table"),
    (4096, b"EFI PART", "a GPT partition table"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (82, b"FAT32   ", "a FAT file system"),
    (54, b"FAT1", "a FAT file system"),
    (0, b"LUKS\xba\xbe", "a LUKS encrypted volume"),
    (0x218, b"LVM2 001", "an LVM physical volume"),
    (4096, b"\xfc\x4e\x2b\xa9", "a Linux software RAID member"),
    (0xff6, b"SWAPSPACE2", "a swap area"),
    (0x8001, b"CD001", "an ISO 9660 file system"),
    (510, b"\x55\xaa", "an MBR partition table or boot sector"),
];

/// A device named for a new vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafSpec {
    /// Path of the device or file (absolute, as it will be stored).
    pub path: PathBuf,
}

/// A new top-level vdev: a single leaf, a mirror of two or more, a raidz, or a draid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopSpec {
    /// One leaf: a plain vdev. Several: a mirror, a raidz, or a draid.
    pub leaves: Vec<LeafSpec>,
    /// Which blocks it is for.
    pub bias: AllocationBias,
    /// Rows of parity of a raidz or draid, 0 for the others.
    pub parity: u8,
    /// What makes it a draid.
    pub draid: Option<DraidSpec>,
    /// Sector shift asked for; `None` lets the devices decide.
    pub ashift: Option<u8>,
}

/// What a new draid is, besides its leaves and its parity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraidSpec {
    /// Columns of each stripe that hold data.
    pub data: u32,
    /// Distributed spares.
    pub spares: u32,
}

/// A new tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeSpec {
    /// Top-level vdevs in order.
    pub tops: Vec<TopSpec>,
}

/// What a device already holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskUse {
    /// Nothing recognised.
    Free,
    /// A label of a pool.
    Pool {
        /// Its name.
        name: String,
        /// `state` of the label: 0 active, 1 exported, 2 destroyed, 3 spare, 4 cache.
        state: u64,
        /// Its guid.
        pool_guid: u64,
        /// Guid of the device there.
        guid: u64,
    },
    /// Something else with a known signature, e.g. `ext4`, `xfs`, `a GPT partition table`.
    Foreign {
        /// What it is, as a noun phrase.
        what: &'static str,
    },
}

/// A device that was refused because of what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The device.
    pub path: PathBuf,
    /// What was found on it.
    pub found: DiskUse,
}

/// Opens and measures every device of `spec` and returns the configuration of a new tree with fresh guids. Nothing is
/// written. The second value lists devices that hold data; the caller refuses those unless forced
/// (exported and destroyed pools are listed too, so that the caller can tell).
///
/// # Errors
/// A device that cannot be opened, is too small, is named twice or needs larger sectors than asked for.
pub async fn plan(
    handle: &Handle,
    spec: &TreeSpec,
) -> Result<(TreeConfig, Vec<Conflict>), VdevError> {
    let mut tree = TreeConfig {
        guid: fresh_guid(handle),
        create_txg: ondisk::TXG_INITIAL.0,
        extra: NvList::new(),
        tops: Vec::new(),
    };
    let (tops, conflicts) = plan_tops(handle, spec).await?;
    tree.tops = tops;
    Ok((tree, conflicts))
}

/// As [`plan`], for top-level vdevs that are to join a tree there is: their ids count from 0, and nothing is said of
/// when they were created.
///
/// # Errors
/// As [`plan`].
pub async fn plan_tops(
    handle: &Handle,
    spec: &TreeSpec,
) -> Result<(Vec<VdevConfig>, Vec<Conflict>), VdevError> {
    let mut conflicts = Vec::new();
    let mut seen = BTreeSet::new();
    if spec.tops.is_empty() {
        return Err(VdevError::BadConfig {
            what: "no device was named",
        });
    }
    let mut tops = Vec::new();
    for (id, top) in spec.tops.iter().enumerate() {
        tops.push(plan_top(handle, id as u64, top, &mut seen, &mut conflicts).await?);
    }
    Ok((tops, conflicts))
}

async fn plan_top(
    handle: &Handle,
    id: u64,
    spec: &TopSpec,
    seen: &mut BTreeSet<PathBuf>,
    conflicts: &mut Vec<Conflict>,
) -> Result<VdevConfig, VdevError> {
    let mut leaves = Vec::new();
    let mut asize = u64::MAX;
    let mut sector_shift = ASHIFT_MIN;
    for (index, leaf) in spec.leaves.iter().enumerate() {
        if !seen.insert(leaf.path.clone()) {
            return Err(VdevError::BadConfig {
                what: "a device is named twice",
            });
        }
        // Opened for writing, so that a device that is busy or write-protected is found out before anything is written.
        let disk = open_disk(handle, &leaf.path, OpenMode::ReadWrite).await?;
        check_size(&disk, 0)?;
        match examine(&disk).await {
            DiskUse::Free => {}
            found => conflicts.push(Conflict {
                path: leaf.path.clone(),
                found,
            }),
        }
        let info = disk.info();
        asize = asize.min(label::leaf_asize(info.size_bytes));
        sector_shift = sector_shift.max(sector_shift_of(&leaf.path, info, spec.ashift)?);
        let kind = match info.kind {
            DiskKind::File => VdevKind::File,
            DiskKind::Block => VdevKind::Disk,
        };
        let mut config = VdevConfig::new(kind, index as u64, fresh_guid(handle));
        config.path = Some(leaf.path.to_string_lossy().into_owned());
        if config.kind == VdevKind::Disk {
            config.extra.insert("whole_disk", 0_u64);
        }
        config.create_txg = ondisk::TXG_INITIAL.0;
        leaves.push(config);
    }
    let mut top = top_over(handle, id, spec, leaves)?;
    let ashift = spec.ashift.unwrap_or(sector_shift.min(ASHIFT_DEVICE_MAX));
    if !(ASHIFT_MIN..=ASHIFT_MAX).contains(&ashift) {
        return Err(VdevError::BadConfig {
            what: "ashift must be 9 to 16",
        });
    }
    top.id = id;
    top.ashift = ashift;
    let each = asize & !(label::LABEL_SIZE - 1);
    top.asize = layout_of(&top)?.asize_from(each);
    if top.asize == 0 {
        // Of a draid there is room for one group at least.
        return Err(VdevError::TooSmall {
            path: spec.leaves[0].path.clone(),
            size_bytes: each,
            needed_bytes: MIN_DEVICE_BYTES,
        });
    }
    top.metaslab_shift = metaslab_shift_for(top.asize);
    top.is_log = spec.bias == AllocationBias::Log;
    top.bias = spec.bias;
    Ok(top)
}

/// The sectors that a device wants, unless `ashift` is given; that must not be below what it can write.
fn sector_shift_of(path: &Path, info: &DiskInfo, ashift: Option<u8>) -> Result<u8, VdevError> {
    // A file's sectors are those of the file system below; only devices know better than the default.
    if info.kind == DiskKind::File {
        return Ok(FILE_ASHIFT);
    }
    if let Some(have) = ashift
        && info.logical_sector_bytes > 1_u32.checked_shl(u32::from(have)).unwrap_or(u32::MAX)
    {
        let needed = u8::try_from(info.logical_sector_bytes.ilog2()).unwrap_or(u8::MAX);
        return Err(VdevError::SectorSize {
            path: path.to_owned(),
            needed,
            have,
        });
    }
    let shift = info.physical_sector_bytes.max(512).ilog2();
    Ok(u8::try_from(shift).unwrap_or(ASHIFT_MAX))
}

/// Makes the configuration of a top-level vdev over its leaves, still without sizes.
fn top_over(
    handle: &Handle,
    id: u64,
    spec: &TopSpec,
    mut leaves: Vec<VdevConfig>,
) -> Result<VdevConfig, VdevError> {
    let group = |kind, leaves| {
        let mut top = VdevConfig::new(kind, id, fresh_guid(handle));
        top.create_txg = ondisk::TXG_INITIAL.0;
        top.children = leaves;
        top
    };
    match leaves.len() {
        0 => Err(VdevError::BadConfig {
            what: "a vdev without devices",
        }),
        _ if spec.draid.is_some() => draid_of(handle, id, spec, leaves),
        width if spec.parity > 0 => {
            // OpenZFS: module/zcommon, get_parity and is_valid_config: more children than parity, at most 255.
            if spec.parity > 3 || width <= usize::from(spec.parity) || width > 255 {
                return Err(VdevError::BadConfig {
                    what: "a raidz of an impossible width",
                });
            }
            let mut raidz = group(VdevKind::Raidz, leaves);
            raidz.extra.insert("nparity", u64::from(spec.parity));
            Ok(raidz)
        }
        1 => Ok(leaves.remove(0)),
        _ => Ok(group(VdevKind::Mirror, leaves)),
    }
}

/// Makes the configuration of a draid, with its groups: as few as come out even on its children.
// OpenZFS: cmd/zpool/zpool_vdev.c, draid_config_by_type; module/zfs/vdev_draid.c, vdev_draid_init (limits)
fn draid_of(
    handle: &Handle,
    id: u64,
    spec: &TopSpec,
    leaves: Vec<VdevConfig>,
) -> Result<VdevConfig, VdevError> {
    let impossible = VdevError::BadConfig {
        what: "a draid of an impossible shape",
    };
    let (Some(DraidSpec { data, spares }), Ok(children)) =
        (spec.draid, u32::try_from(leaves.len()))
    else {
        return Err(impossible);
    };
    let width = data.saturating_add(u32::from(spec.parity));
    let groups = draid_groups(children, width, spares);
    if spares > 100 || Draid::new(children, spec.parity, data, spares, groups).is_none() {
        return Err(impossible);
    }
    let mut draid = VdevConfig::new(VdevKind::Draid, id, fresh_guid(handle));
    draid.create_txg = ondisk::TXG_INITIAL.0;
    for (key, number) in [
        ("nparity", u32::from(spec.parity)),
        ("draid_ndata", data),
        ("draid_nspares", spares),
        ("draid_ngroups", groups),
    ] {
        draid.extra.insert(key, u64::from(number));
    }
    draid.children = leaves;
    Ok(draid)
}

/// The fewest groups of a draid that come out even on its children, 0 if there are none.
fn draid_groups(children: u32, width: u32, spares: u32) -> u32 {
    let disks = children.saturating_sub(spares);
    let even = |groups: &u32| disks > 0 && groups.saturating_mul(width).is_multiple_of(disks);
    (1..=255).find(even).unwrap_or(0)
}

/// A top-level vdev to be, as far as sizes go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopShape {
    /// Bytes of each device.
    pub device_bytes: Vec<u64>,
    /// Rows of parity of a raidz or draid, 0 for a single device and a mirror.
    pub parity: u8,
    /// What makes it a draid.
    pub draid: Option<DraidSpec>,
    /// Sector shift.
    pub ashift: u8,
}

/// What a top-level vdev offers while it is empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NewSpace {
    /// Bytes in its metaslabs, parity included: what `zpool list` counts.
    pub size_bytes: u64,
    /// Those bytes as datasets see them, without parity.
    pub deflated_bytes: u64,
}

impl TopShape {
    /// Returns what a new vdev of this shape offers. Touches no device.
    ///
    /// # Errors
    /// `BadConfig` for a shape that no vdev can have, `TooSmall` when its devices are.
    pub fn new_space(&self) -> Result<NewSpace, VdevError> {
        let impossible = VdevError::BadConfig {
            what: "a vdev of an impossible shape",
        };
        let Ok(width) = u32::try_from(self.device_bytes.len()) else {
            return Err(impossible);
        };
        let layout = match (self.draid, self.parity) {
            (Some(DraidSpec { data, spares }), parity) => {
                let groups = draid_groups(width, data.saturating_add(u32::from(parity)), spares);
                let draid = Draid::new(width, parity, data, spares, groups);
                draid.filter(|_| spares <= 100).map(Layout::Draid)
            }
            (None, 0) => (width > 0).then_some(Layout::Copies),
            (None, parity @ 1..=3) => {
                let raidz = Raidz {
                    width,
                    parity,
                    expanded: Vec::new(),
                    expanding: false,
                };
                (width > u32::from(parity) && width <= 255).then_some(Layout::Raidz(raidz))
            }
            _ => None,
        };
        let layout = layout.ok_or(impossible)?;
        if !(ASHIFT_MIN..=ASHIFT_MAX).contains(&self.ashift) {
            return Err(VdevError::BadConfig {
                what: "ashift must be 9 to 16",
            });
        }
        let least = self.device_bytes.iter().copied().min().unwrap_or(0);
        let each = label::leaf_asize(least) & !(label::LABEL_SIZE - 1);
        let asize = layout.asize_from(each);
        if least < MIN_DEVICE_BYTES || asize == 0 {
            return Err(VdevError::TooSmall {
                path: PathBuf::new(),
                size_bytes: least,
                needed_bytes: MIN_DEVICE_BYTES,
            });
        }
        let shift = metaslab_shift_for(asize);
        let spans = (0..asize >> shift).map(|at| layout.metaslab_span(self.ashift, shift, at));
        let size_bytes = spans.map(|span| span.end - span.start).sum();
        Ok(NewSpace {
            size_bytes,
            deflated_bytes: (size_bytes >> 9) * layout.deflate_ratio(self.ashift),
        })
    }
}

/// Returns the sector shift that a new vdev takes from a device with these physical sectors.
#[must_use]
pub fn ashift_for(physical_sector_bytes: u32) -> u8 {
    let shift = physical_sector_bytes.max(512).ilog2();
    u8::try_from(shift)
        .unwrap_or(ASHIFT_MAX)
        .min(ASHIFT_DEVICE_MAX)
}

/// Returns what the device at `path` holds.
///
/// # Errors
/// [`VdevError::Open`] when it cannot be opened.
pub async fn disk_use(handle: &Handle, path: &Path) -> Result<DiskUse, VdevError> {
    let disk = open_disk(handle, path, OpenMode::ReadOnly).await?;
    Ok(examine(&disk).await)
}

async fn examine(disk: &Disk) -> DiskUse {
    if let Ok(labels) = LabelSet::read(disk).await
        && let Some(config) = labels.best_config()
    {
        // A spare or cache label has no pool name.
        return DiskUse::Pool {
            name: config.str("name").unwrap_or_default().to_owned(),
            state: config.u64("state").unwrap_or(0),
            pool_guid: config.u64("pool_guid").unwrap_or(0),
            guid: config.u64("guid").unwrap_or(0),
        };
    }
    let len = disk.info().size_bytes.min(SIGNATURE_BYTES);
    let Ok(head) = disk
        .read(0, usize::try_from(len).expect("a bounded length"))
        .await
    else {
        return DiskUse::Free;
    };
    SIGNATURES
        .iter()
        .find(|(at, magic, _)| head.get(*at..*at + magic.len()) == Some(*magic))
        .map_or(DiskUse::Free, |&(_, _, what)| DiskUse::Foreign { what })
}

pub(crate) fn fresh_guid(handle: &Handle) -> Guid {
    loop {
        // 0 means "none" in several places of the format.
        let guid = handle.random_u64();
        if guid != 0 {
            return Guid(guid);
        }
    }
}

/// Returns the metaslab shift of a new top-level vdev of `asize` allocatable bytes.
/// Source of the rule: OpenZFS `vdev_metaslab_set_size`.
pub fn metaslab_shift_for(asize: u64) -> u8 {
    // highbit is one-based: the position of the top bit counted from 1.
    let highbit = |x: u64| 64 - x.leading_zeros();
    let count = asize >> 29;
    let mut shift = if count < 16 {
        highbit(asize / 16)
    } else if count > 200 {
        highbit(asize / 200)
    } else {
        29
    };
    shift = shift.max(24);
    if shift > 34 {
        shift = 34;
        if asize >> shift > 131_072 {
            shift = highbit(asize / 131_072);
        }
    }
    u8::try_from(shift).expect("a bit position fits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metaslab_shifts_follow_openzfs() {
        for (asize, expect) in [
            (129_499_136, 24),
            (517_996_544, 25),
            (8 << 30, 29),
            (100 << 30, 29),
            (1 << 40, 33),
            (16 << 40, 34),
            (1 << 52, 36),
        ] {
            assert_eq!(metaslab_shift_for(asize), expect, "asize {asize}");
        }
    }
}
