//! The device tree as configuration: from and to the `vdev_tree` nvlists of labels and the pool's config object.

use std::path::PathBuf;

use ondisk::Guid;
use ondisk::nvlist::{NvList, NvValue};

use crate::VdevError;

/// Deepest nesting accepted (root, top-level, spare, replacing, leaf are 5).
const DEPTH_MAX: usize = 8;
/// `aux_state` of a leaf that the administrator declared faulted.
const EXTERNAL: &str = "external";
/// Flag of a raidz that another child is being added to.
const EXPANDING: &str = "raidz_expanding";
/// Most vdevs accepted in one tree.
const VDEVS_MAX: usize = 4096;
const _: () = assert!(DEPTH_MAX > 1 && VDEVS_MAX <= u32::MAX as usize);

/// Kind of a vdev, by its type string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VdevKind {
    /// A block device.
    Disk,
    /// A plain file.
    File,
    /// Copies on all children.
    Mirror,
    /// Blocks spread over the children with one to three rows of parity.
    Raidz,
    /// The same in groups that rotate over more children, with spare space among them.
    Draid,
    /// The spare space of a draid, as much as one child has.
    DistributedSpare,
    /// A place in the root's list left by a removed log device.
    Hole,
    /// A top-level vdev whose configuration was not found.
    Missing,
    /// A removed top-level vdev whose blocks live elsewhere.
    Indirect,
    /// A leaf and the one that is to take its place: the same bytes on both.
    Replacing,
    /// A leaf and the spare that stands in for it: the same bytes on both.
    Spare,
    /// Anything else, by its type string.
    Other(String),
}

impl VdevKind {
    /// Returns the kind for a type string.
    pub fn parse(text: &str) -> Self {
        match text {
            "disk" => Self::Disk,
            "file" => Self::File,
            "mirror" => Self::Mirror,
            "raidz" => Self::Raidz,
            "draid" => Self::Draid,
            "dspare" => Self::DistributedSpare,
            "replacing" => Self::Replacing,
            "spare" => Self::Spare,
            "hole" => Self::Hole,
            "missing" => Self::Missing,
            "indirect" => Self::Indirect,
            other => Self::Other(other.to_owned()),
        }
    }

    /// Returns the type string.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Disk => "disk",
            Self::File => "file",
            Self::Mirror => "mirror",
            Self::Raidz => "raidz",
            Self::Draid => "draid",
            Self::DistributedSpare => "dspare",
            Self::Replacing => "replacing",
            Self::Spare => "spare",
            Self::Hole => "hole",
            Self::Missing => "missing",
            Self::Indirect => "indirect",
            Self::Other(text) => text,
        }
    }

    /// Returns true for vdevs without children: devices, and what stands for one.
    pub fn is_leaf(&self) -> bool {
        matches!(self, Self::Disk | Self::File | Self::DistributedSpare)
    }

    /// Returns true for vdevs that are a device themselves.
    pub fn is_device(&self) -> bool {
        matches!(self, Self::Disk | Self::File)
    }
}

/// One vdev of the configuration. Fields that do not apply are `None`, 0 or empty.
///
/// Source of the keys: OpenZFS `module/zfs/vdev_label.c`, `vdev_config_generate`.
#[derive(Debug, Clone, PartialEq)]
pub struct VdevConfig {
    /// What it is.
    pub kind: VdevKind,
    /// Index in the parent.
    pub id: u64,
    /// Identity, never 0 for a real vdev.
    pub guid: Guid,
    /// Path as stored (a hint).
    pub path: Option<String>,
    /// Where the device was found this time; [`VdevConfig::path`] when `None`. Never stored.
    pub open_path: Option<PathBuf>,
    /// Txg in which the vdev was added, 0 if unknown.
    pub create_txg: u64,
    /// Sector shift (top-level).
    pub ashift: u8,
    /// Allocatable bytes (top-level).
    pub asize: u64,
    /// Object number of the metaslab array (top-level), 0 = not created yet.
    pub metaslab_array: u64,
    /// log2 of the metaslab size (top-level).
    pub metaslab_shift: u8,
    /// Holds intent-log blocks only (top-level).
    pub is_log: bool,
    /// Which blocks it is for (top-level). Stored in the vdev's own ZAP, never in these lists; [`VdevConfig::is_log`]
    /// implies [`AllocationBias::Log`].
    pub bias: AllocationBias,
    /// No new blocks may be placed here (top-level).
    pub non_allocating: bool,
    /// Object number of the dirty-time-log space map (leaf).
    pub dtl: Option<u64>,
    /// Administratively offline (leaf).
    pub offline: bool,
    /// Faulted by the administrator, which lasts over an import; what the engine finds out by itself does not (leaf).
    /// OpenZFS: module/zfs/vdev.c, vdev_alloc (`faulted` counts where `aux_state` is `external`)
    pub faulted: bool,
    /// Removed (leaf).
    pub removed: bool,
    /// Per-vdev ZAP of a leaf (config object only).
    pub zap_leaf: Option<u64>,
    /// Per-vdev ZAP of a top-level vdev (config object only).
    pub zap_top: Option<u64>,
    /// Every other key, kept so that it is written back unchanged.
    pub extra: NvList,
    /// Children (mirror, raidz, draid).
    pub children: Vec<Self>,
}

/// The whole tree: the root vdev.
#[derive(Debug, Clone, PartialEq)]
pub struct TreeConfig {
    /// Guid of the root vdev = the pool's guid.
    pub guid: Guid,
    /// `create_txg` of the root.
    pub create_txg: u64,
    /// Other keys of the root (kept unchanged).
    pub extra: NvList,
    /// Top-level vdevs by id.
    pub tops: Vec<VdevConfig>,
}

/// Where a configuration is going to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigTarget {
    /// A device label: without the per-vdev ZAP object numbers.
    Label,
    /// The pool's config object.
    PoolConfig,
}

impl TreeConfig {
    /// Decodes the `vdev_tree` of a pool config object (type `root`).
    ///
    /// # Errors
    /// [`VdevError::BadConfig`] when it is not a device tree.
    pub fn from_nvlist(list: &NvList) -> Result<Self, VdevError> {
        if list.str("type") != Some("root") {
            return Err(bad("the tree's root is not of type 'root'"));
        }
        let guid = Guid(list.u64("guid").ok_or(bad("root guid"))?);
        let children = list.lists("children").unwrap_or(&[]);
        let mut budget = VDEVS_MAX;
        let mut tops = Vec::with_capacity(children.len().min(VDEVS_MAX));
        for (index, child) in children.iter().enumerate() {
            let top = VdevConfig::decode(child, DEPTH_MAX, &mut budget)?;
            if top.id != index as u64 {
                return Err(bad("a top-level vdev's id is not its place"));
            }
            tops.push(top);
        }
        let mut extra = NvList::new();
        for (name, value) in list.iter() {
            if !matches!(
                name,
                b"type" | b"id" | b"guid" | b"create_txg" | b"children"
            ) {
                extra.insert(name, value.clone());
            }
        }
        Ok(Self {
            guid,
            create_txg: list.u64("create_txg").unwrap_or(0),
            extra,
            tops,
        })
    }

    /// Encodes the whole tree for the pool's config object.
    #[must_use]
    pub fn to_nvlist(&self) -> NvList {
        let mut list = NvList::new();
        list.insert("type", "root");
        list.insert("id", 0_u64);
        list.insert("guid", self.guid.0);
        if self.create_txg != 0 {
            list.insert("create_txg", self.create_txg);
        }
        for (name, value) in self.extra.iter() {
            list.insert(name, value.clone());
        }
        let children: Vec<NvList> = self
            .tops
            .iter()
            .map(|top| top.to_nvlist(ConfigTarget::PoolConfig, true))
            .collect();
        list.insert("children", children);
        list
    }

    /// Returns the sum of all guids with the root's, modulo 2^64 (the uberblock's `guid_sum`).
    #[must_use]
    pub fn guid_sum(&self) -> u64 {
        fn add(vdev: &VdevConfig) -> u64 {
            vdev.children
                .iter()
                .fold(vdev.guid.0, |sum, child| sum.wrapping_add(add(child)))
        }
        self.tops
            .iter()
            .fold(self.guid.0, |sum, top| sum.wrapping_add(add(top)))
    }

    /// Returns the vdev with this guid, at any depth.
    pub fn find_mut(&mut self, guid: Guid) -> Option<&mut VdevConfig> {
        fn find(vdev: &mut VdevConfig, guid: Guid) -> Option<&mut VdevConfig> {
            if vdev.guid == guid {
                return Some(vdev);
            }
            vdev.children.iter_mut().find_map(|child| find(child, guid))
        }
        self.tops.iter_mut().find_map(|top| find(top, guid))
    }

    /// Returns the raidz vdevs whose last child may be listed too early. OpenZFS lists a child some groups before it says that the
    /// vdev is being expanded; until then the blocks are where they were without it.
    // OpenZFS: module/zfs/spa.c, spa_vdev_attach
    #[must_use]
    pub fn perhaps_before_expansion(&self) -> Vec<Guid> {
        let least = |top: &VdevConfig| usize::from(top.nparity().unwrap_or(1)) + 2;
        let tops = self.tops.iter().filter(|top| {
            top.kind == VdevKind::Raidz && !top.is_expanding() && top.children.len() >= least(top)
        });
        tops.map(|top| top.guid).collect()
    }

    /// Has the last child of a raidz vdev count as one that nothing was moved to yet. Such a vdev is for reading alone.
    pub fn set_before_expansion(&mut self, top: Guid) {
        if let Some(top) = self.find_mut(top) {
            top.extra.insert_flag(EXPANDING);
        }
    }

    /// Returns every leaf, in tree order.
    #[must_use]
    pub fn leaves(&self) -> Vec<&VdevConfig> {
        fn collect<'a>(vdev: &'a VdevConfig, into: &mut Vec<&'a VdevConfig>) {
            if vdev.kind.is_leaf() {
                into.push(vdev);
            }
            for child in &vdev.children {
                collect(child, into);
            }
        }
        let mut leaves = Vec::new();
        for top in &self.tops {
            collect(top, &mut leaves);
        }
        leaves
    }
}

impl VdevConfig {
    /// Makes a vdev with no optional field set.
    #[must_use]
    pub fn new(kind: VdevKind, id: u64, guid: Guid) -> Self {
        Self {
            kind,
            id,
            guid,
            path: None,
            open_path: None,
            create_txg: 0,
            ashift: 0,
            asize: 0,
            metaslab_array: 0,
            metaslab_shift: 0,
            is_log: false,
            bias: AllocationBias::None,
            non_allocating: false,
            dtl: None,
            offline: false,
            faulted: false,
            removed: false,
            zap_leaf: None,
            zap_top: None,
            extra: NvList::new(),
            children: Vec::new(),
        }
    }

    /// Decodes one top-level vdev (the `vdev_tree` of a label).
    ///
    /// # Errors
    /// [`VdevError::BadConfig`] when it is not a vdev.
    pub fn from_nvlist(list: &NvList) -> Result<Self, VdevError> {
        Self::decode(list, DEPTH_MAX, &mut { VDEVS_MAX })
    }

    /// Returns which blocks the vdev is for.
    #[must_use]
    pub fn allocation_bias(&self) -> AllocationBias {
        if self.is_log {
            AllocationBias::Log
        } else {
            self.bias
        }
    }

    /// Returns whether this vdev, or one below it, has the guid.
    #[must_use]
    pub fn holds(&self, guid: Guid) -> bool {
        self.guid == guid || self.children.iter().any(|child| child.holds(guid))
    }

    /// Marks a raidz as one that another child is being added to, or takes the mark away.
    pub(crate) fn set_expanding(&mut self, expanding: bool) {
        match expanding {
            true => self.extra.insert_flag(EXPANDING),
            false => drop(self.extra.remove(EXPANDING)),
        }
    }

    /// Returns true for a raidz that another child is being added to.
    #[must_use]
    pub fn is_expanding(&self) -> bool {
        self.extra.has(EXPANDING)
    }

    /// Returns true for a spare that stands in for another leaf.
    #[must_use]
    pub fn is_spare(&self) -> bool {
        self.extra.u64("is_spare") == Some(1)
    }

    /// Returns which spare of its draid a distributed spare is; `None` for other vdevs.
    #[must_use]
    pub fn spare_number(&self) -> Option<u32> {
        let number = self.extra.u64("spareid").unwrap_or(0);
        let is_one = self.kind == VdevKind::DistributedSpare;
        is_one.then(|| u32::try_from(number).unwrap_or(u32::MAX))
    }

    /// Returns the rows of parity of a raidz, if it says so.
    #[must_use]
    pub fn nparity(&self) -> Option<u8> {
        let parity = self.extra.u64("nparity")?;
        Some(u8::try_from(parity).unwrap_or(u8::MAX))
    }

    /// Returns the type as vdevs are named by it: `mirror`, `raidz2`, `draid1:4d:11c:1s`.
    // OpenZFS: lib/libzfs/libzfs_pool.c, zpool_vdev_name
    #[must_use]
    pub fn type_name(&self) -> String {
        let number = |key| self.extra.u64(key).unwrap_or(0);
        match self.kind {
            VdevKind::Raidz => format!("raidz{}", self.nparity().unwrap_or(1)),
            VdevKind::Draid => format!(
                "draid{}:{}d:{}c:{}s",
                self.nparity().unwrap_or(1),
                number("draid_ndata"),
                self.children.len(),
                number("draid_nspares")
            ),
            _ => self.kind.as_str().to_owned(),
        }
    }

    /// Returns where to open a leaf: where it was found, else where it was last time.
    #[must_use]
    pub fn device_path(&self) -> Option<PathBuf> {
        self.open_path
            .clone()
            .or_else(|| self.path.as_ref().map(PathBuf::from))
    }

    fn decode(list: &NvList, depth: usize, budget: &mut usize) -> Result<Self, VdevError> {
        if depth == 0 || *budget == 0 {
            return Err(bad("the tree is too large"));
        }
        *budget -= 1;
        let kind = VdevKind::parse(list.str("type").ok_or(bad("vdev type"))?);
        let guid = Guid(list.u64("guid").ok_or(bad("vdev guid"))?);
        let mut vdev = Self::new(kind, list.u64("id").ok_or(bad("vdev id"))?, guid);
        let external = list.str("aux_state") == Some(EXTERNAL);
        for (name, value) in list.iter() {
            let number = if let NvValue::U64(number) = value {
                Some(*number)
            } else {
                None
            };
            match (name, number) {
                (b"type" | b"id" | b"guid" | b"children", _) => {}
                (b"path", _) => vdev.path = list.str("path").map(str::to_owned),
                (b"create_txg", Some(n)) => vdev.create_txg = n,
                (b"ashift", Some(n)) => {
                    vdev.ashift = u8::try_from(n).map_err(|_| bad("ashift"))?;
                }
                (b"asize", Some(n)) => vdev.asize = n,
                (b"metaslab_array", Some(n)) => vdev.metaslab_array = n,
                (b"metaslab_shift", Some(n)) => {
                    vdev.metaslab_shift = u8::try_from(n).map_err(|_| bad("metaslab_shift"))?;
                }
                (b"is_log", Some(n)) => vdev.is_log = n != 0,
                (b"non_allocating", Some(n)) => vdev.non_allocating = n != 0,
                (b"DTL", Some(n)) => vdev.dtl = Some(n),
                (b"offline", Some(n)) => vdev.offline = n != 0,
                (b"faulted", Some(n)) => vdev.faulted = n != 0 && external,
                (b"aux_state", _) => {}
                (b"removed", Some(n)) => vdev.removed = n != 0,
                (b"com.delphix:vdev_zap_leaf", Some(n)) => vdev.zap_leaf = Some(n),
                (b"com.delphix:vdev_zap_top", Some(n)) => vdev.zap_top = Some(n),
                _ => vdev.extra.insert(name, value.clone()),
            }
        }
        for child in list.lists("children").unwrap_or(&[]) {
            vdev.children.push(Self::decode(child, depth - 1, budget)?);
        }
        Ok(vdev)
    }

    /// Encodes the vdev with its children, in OpenZFS's order of keys. `top` says that it is a top-level vdev.
    #[must_use]
    pub fn to_nvlist(&self, target: ConfigTarget, top: bool) -> NvList {
        let mut list = NvList::new();
        list.insert("type", self.kind.as_str());
        list.insert("id", self.id);
        list.insert("guid", self.guid.0);
        if let Some(path) = &self.path {
            list.insert("path", path.as_str());
        }
        let late = |name: &[u8]| {
            let early = matches!(name, b"devid" | b"phys_path" | b"whole_disk" | b"nparity");
            !early && !name.starts_with(b"draid_")
        };
        for (name, value) in self.extra.iter().filter(|(name, _)| !late(name)) {
            list.insert(name, value.clone());
        }
        if top {
            list.insert("metaslab_array", self.metaslab_array);
            list.insert("metaslab_shift", u64::from(self.metaslab_shift));
            list.insert("ashift", u64::from(self.ashift));
            list.insert("asize", self.asize);
            list.insert("is_log", u64::from(self.is_log));
            if self.non_allocating {
                list.insert("non_allocating", 1_u64);
            }
        }
        if let Some(dtl) = self.dtl {
            list.insert("DTL", dtl);
        }
        if self.create_txg != 0 {
            list.insert("create_txg", self.create_txg);
        }
        if target == ConfigTarget::PoolConfig {
            if let Some(zap) = self.zap_leaf {
                list.insert("com.delphix:vdev_zap_leaf", zap);
            }
            if let Some(zap) = self.zap_top {
                list.insert("com.delphix:vdev_zap_top", zap);
            }
        }
        for (name, set) in [
            ("offline", self.offline),
            ("faulted", self.faulted),
            ("removed", self.removed),
        ] {
            if set {
                list.insert(name, 1_u64);
            }
        }
        if self.faulted {
            list.insert("aux_state", EXTERNAL);
        }
        for (name, value) in self.extra.iter().filter(|(name, _)| late(name)) {
            // Per-vdev ZAP numbers belong to the config object only.
            if target == ConfigTarget::PoolConfig || !name.starts_with(b"com.klarasystems:") {
                list.insert(name, value.clone());
            }
        }
        if !self.children.is_empty() {
            let children: Vec<NvList> = self
                .children
                .iter()
                .map(|child| child.to_nvlist(target, false))
                .collect();
            list.insert("children", children);
        }
        list
    }
}

const fn bad(what: &'static str) -> VdevError {
    VdevError::BadConfig { what }
}

/// Which blocks a top-level vdev is set aside for. Everything else goes to the vdevs without a bias.
// OpenZFS: include/sys/vdev_impl.h, vdev_alloc_bias_t
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum AllocationBias {
    /// Ordinary blocks.
    #[default]
    None,
    /// Blocks of intent logs, and nothing else ever.
    Log,
    /// Metadata, and small blocks of files where a dataset asks for it.
    Special,
    /// Deduplication tables.
    Dedup,
}

impl AllocationBias {
    /// Returns the bias stored under this word in a top-level vdev's ZAP; unknown words are no bias.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text {
            "log" => Self::Log,
            "special" => Self::Special,
            "dedup" => Self::Dedup,
            _ => Self::None,
        }
    }

    /// Returns the word stored for it, `None` for no bias.
    #[must_use]
    pub fn as_str(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Log => Some("log"),
            Self::Special => Some("special"),
            Self::Dedup => Some("dedup"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror() -> TreeConfig {
        let mut top = VdevConfig::new(VdevKind::Mirror, 0, Guid(7));
        top.ashift = 12;
        top.asize = 1 << 28;
        top.metaslab_shift = 24;
        top.zap_top = Some(40);
        for (id, guid) in [(0, 8), (1, 9)] {
            let mut leaf = VdevConfig::new(VdevKind::File, id, Guid(guid));
            leaf.path = Some(format!("/pool/d{id}"));
            leaf.zap_leaf = Some(41 + id);
            leaf.extra.insert("fru", "bay 3");
            top.children.push(leaf);
        }
        TreeConfig {
            guid: Guid(5),
            create_txg: 4,
            extra: NvList::new(),
            tops: vec![top],
        }
    }

    #[test]
    fn tree_survives_encoding() {
        let tree = mirror();
        assert_eq!(
            TreeConfig::from_nvlist(&tree.to_nvlist()).expect("decodes"),
            tree
        );
        assert_eq!(tree.guid_sum(), 5 + 7 + 8 + 9);
        assert_eq!(tree.leaves().len(), 2);
    }

    #[test]
    fn labels_carry_no_object_numbers_of_zaps() {
        let label = mirror().tops[0].to_nvlist(ConfigTarget::Label, true);
        let decoded = VdevConfig::from_nvlist(&label).expect("decodes");
        assert_eq!(decoded.zap_top, None);
        assert_eq!(decoded.children[0].zap_leaf, None);
        assert_eq!(decoded.children[1].path.as_deref(), Some("/pool/d1"));
    }

    #[test]
    fn hostile_trees_are_refused() {
        let mut list = NvList::new()
            .with("type", "mirror")
            .with("id", 0_u64)
            .with("guid", 1_u64);
        for _ in 0..20 {
            list = NvList::new()
                .with("type", "mirror")
                .with("id", 0_u64)
                .with("guid", 1_u64)
                .with("children", vec![list]);
        }
        assert!(VdevConfig::from_nvlist(&list).is_err());
        assert!(VdevConfig::from_nvlist(&NvList::new()).is_err());
        let huge = NvList::new()
            .with("type", "file")
            .with("id", 0_u64)
            .with("guid", 1_u64)
            .with("ashift", 1_u64 << 40);
        assert!(VdevConfig::from_nvlist(&huge).is_err());
    }
}
