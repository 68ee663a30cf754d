//! What a file system needs of its dataset: transactions, settings, space.

use dmu::{CLONED_BLOCK_BYTES, Objset, Owner, Tx, TxWeight};
use dsl::property::Property;
use dsl::{Dataset, Estimate};
use ondisk::Txg;
use zil::Zilog;

use crate::sa::Attrs;
use crate::{FsError, FsResult};

/// What a transaction that changes attributes and a few ZAP blocks makes dirty, roughly.
pub(crate) const META_BYTES: u64 = 32 << 10;
/// What a transaction that frees more than it takes makes dirty, roughly: ZAP blocks, dnodes, indirect blocks.
const FREEING_BYTES: u64 = 64 << 10;

/// What a transaction is about to do, for the write throttle and for quotas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Makes about so many bytes dirty, and may need that much new space.
    Bytes(u64),
    /// Writes `blocks` blocks of content, each of `block` bytes.
    Content { blocks: u64, block: u64 },
    /// Clones `blocks` blocks, which count `shared` bytes (deflated).
    Clones { blocks: u64, shared: u64 },
    /// Frees more than it takes: works on a full pool too.
    Frees,
}

/// When changes have to be on stable storage, the `sync` property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncSetting {
    Standard,
    Always,
    Disabled,
}

/// The dataset's properties that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) read_only: bool,
    pub(crate) atime: bool,
    pub(crate) relatime: bool,
    pub(crate) record_size: u32,
    pub(crate) xattr_sa: bool,
    pub(crate) xattr: bool,
    pub(crate) sync: SyncSetting,
    /// Synchronous writes go to their place, and the log points there (`logbias`).
    pub(crate) log_for_throughput: bool,
    /// Slots of new dnodes.
    pub(crate) dnode_slots: u8,
    pub(crate) long_names: bool,
    /// New files and directories carry a project id.
    pub(crate) project_quota: bool,
    /// `snapdir` as its stored number: hidden 0, visible 1, disabled 2.
    pub(crate) snapdir: u64,
    pub(crate) acl_type: AclType,
    pub(crate) acl_mode: AclMode,
    pub(crate) acl_inherit: AclInherit,
}

/// Which access control lists files may have beside their modes, the property `acltype`. A stored ACL that says more
/// than a mode counts in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AclType {
    Off,
    Posix,
    Nfsv4,
}

/// What a new mode makes of a stored ACL, the property `aclmode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AclMode {
    Discard,
    GroupMask,
    Passthrough,
    Restricted,
}

impl AclMode {
    pub(crate) fn is_restricted(self) -> bool {
        self == Self::Restricted
    }
}

/// Which entries new files take over from their directory's ACL, the property `aclinherit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AclInherit {
    Discard,
    NoAllow,
    Restricted,
    Passthrough,
    PassthroughX,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            read_only: false,
            atime: true,
            relatime: true,
            record_size: 128 << 10,
            xattr_sa: true,
            xattr: true,
            sync: SyncSetting::Standard,
            dnode_slots: 1,
            log_for_throughput: false,
            long_names: false,
            project_quota: true,
            snapdir: 0,
            acl_type: AclType::Off,
            acl_mode: AclMode::Discard,
            acl_inherit: AclInherit::Restricted,
        }
    }
}

/// Space of a file system in bytes, and objects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Space {
    pub(crate) referenced: u64,
    pub(crate) available: u64,
    pub(crate) objects: u64,
}

/// The dataset, or a bare objset.
pub(crate) struct Backing {
    os: Objset,
    dataset: Option<Dataset>,
}

impl Backing {
    pub(crate) fn of_objset(os: Objset) -> Self {
        Self { os, dataset: None }
    }

    pub(crate) fn dataset(&self) -> Option<&Dataset> {
        self.dataset.as_ref()
    }

    pub(crate) fn of_dataset(dataset: Dataset) -> Self {
        Self {
            os: dataset.objset().clone(),
            dataset: Some(dataset),
        }
    }

    pub(crate) fn objset(&self) -> &Objset {
        &self.os
    }

    /// The intent log; a bare objset has none.
    pub(crate) fn log(&self) -> Option<Zilog> {
        self.dataset.as_ref().and_then(Dataset::log)
    }

    /// Whether blocks may be clones; not of a bare objset, whose references nothing counts.
    pub(crate) fn allows_cloning(&self) -> bool {
        self.dataset.as_ref().is_some_and(Dataset::allows_cloning)
    }

    /// Whether entries of lists of extended attributes have a record.
    pub(crate) fn logs_attributes(&self) -> bool {
        self.dataset.as_ref().is_some_and(Dataset::logs_attributes)
    }

    pub(crate) fn fsid(&self) -> u64 {
        self.dataset
            .as_ref()
            .map_or_else(|| self.os.id(), Dataset::fsid)
    }

    /// The head dataset this is, or is a snapshot of; 0 of a bare objset.
    pub(crate) fn head(&self) -> u64 {
        self.dataset
            .as_ref()
            .map_or(0, |dataset| dataset.head_object().0)
    }

    /// Whether this is a snapshot.
    pub(crate) fn is_snapshot(&self) -> bool {
        self.dataset
            .as_ref()
            .is_some_and(|dataset| dataset.kind() == dsl::property::DatasetKind::Snapshot)
    }

    /// Grows when [`Backing::settings`] may have changed.
    pub(crate) fn settings_version(&self) -> u64 {
        self.dataset.as_ref().map_or(0, Dataset::settings_version)
    }

    pub(crate) fn settings(&self) -> Settings {
        let read_only = self.os.is_read_only();
        let Some(dataset) = &self.dataset else {
            return Settings {
                read_only,
                ..Settings::default()
            };
        };
        let number = |property| dataset.number(property);
        let name = |property: Property| property.index_name(number(property)).unwrap_or_default();
        let xattr = Property::Xattr
            .index_name(number(Property::Xattr))
            .unwrap_or("sa");
        let sync = Property::Sync
            .index_name(number(Property::Sync))
            .unwrap_or("standard");
        Settings {
            read_only: read_only || dataset.is_read_only() || number(Property::ReadOnly) != 0,
            atime: number(Property::Atime) != 0,
            relatime: number(Property::Relatime) != 0,
            record_size: u32::try_from(number(Property::RecordSize))
                .unwrap_or(128 << 10)
                .clamp(512, 16 << 20),
            // "on" has meant "sa" since 2.3.
            xattr_sa: xattr != "dir",
            xattr: xattr != "off",
            sync: match sync {
                "always" => SyncSetting::Always,
                "disabled" => SyncSetting::Disabled,
                _ => SyncSetting::Standard,
            },
            dnode_slots: dnode_slots(
                Property::DnodeSize
                    .index_name(number(Property::DnodeSize))
                    .unwrap_or("legacy"),
            ),
            log_for_throughput: Property::LogBias.index_name(number(Property::LogBias))
                == Some("throughput"),
            long_names: number(Property::LongName) != 0,
            project_quota: dataset.has_projects(),
            snapdir: number(Property::SnapDir),
            acl_type: match name(Property::AclType) {
                "posix" => AclType::Posix,
                "nfsv4" => AclType::Nfsv4,
                _ => AclType::Off,
            },
            acl_mode: match name(Property::AclMode) {
                "groupmask" => AclMode::GroupMask,
                "passthrough" => AclMode::Passthrough,
                "restricted" => AclMode::Restricted,
                _ => AclMode::Discard,
            },
            acl_inherit: match name(Property::AclInherit) {
                "discard" => AclInherit::Discard,
                "noallow" => AclInherit::NoAllow,
                "passthrough" => AclInherit::Passthrough,
                "passthrough-x" => AclInherit::PassthroughX,
                _ => AclInherit::Restricted,
            },
        }
    }

    /// Begins a transaction. With `promised`, what it does was acknowledged before a crash: then it may use the room that
    /// is kept back, and no quota stands in its way.
    pub(crate) async fn begin(&self, weight: Weight, promised: bool) -> FsResult<Tx> {
        if let Some(dataset) = &self.dataset {
            let mut estimate = match weight {
                Weight::Bytes(bytes) => Estimate::bytes(bytes),
                Weight::Content { blocks, block } => Estimate::blocks(blocks, block, META_BYTES),
                Weight::Clones { blocks, shared } => {
                    Estimate::clones(shared, META_BYTES + blocks * CLONED_BLOCK_BYTES)
                }
                Weight::Frees => Estimate::freeing(FREEING_BYTES),
            };
            estimate.net_free |= promised;
            return Ok(dataset.begin(estimate).await?);
        }
        let weight = match weight {
            Weight::Bytes(bytes) => TxWeight::bytes(bytes),
            Weight::Content { blocks, block } => TxWeight::bytes(blocks * block + META_BYTES),
            Weight::Clones { blocks, .. } => {
                TxWeight::bytes(META_BYTES + blocks * CLONED_BLOCK_BYTES)
            }
            Weight::Frees => TxWeight::unthrottled(),
        };
        Ok(self.os.services().clock.begin(weight).await?)
    }

    /// Refuses when the owner of a file has reached a quota; `creating` counts files as well.
    pub(crate) async fn check_quota(&self, attrs: &Attrs, creating: bool) -> FsResult<()> {
        let Some(dataset) = &self.dataset else {
            return Ok(());
        };
        let owner = Owner {
            uid: attrs.uid,
            gid: attrs.gid,
            project: attrs.project.unwrap_or(0),
        };
        if dataset.over_quota(owner, creating).await? {
            Err(FsError::Quota)
        } else {
            Ok(())
        }
    }

    pub(crate) async fn wait_synced(&self, txg: Txg) -> FsResult<()> {
        Ok(self.os.services().clock.wait_synced(txg).await?)
    }

    pub(crate) fn open_txg(&self) -> Txg {
        self.os.services().clock.open_txg()
    }

    pub(crate) fn space(&self) -> Space {
        let objects = self.os.object_count();
        match &self.dataset {
            Some(dataset) => {
                let space = dataset.space();
                Space {
                    referenced: space.referenced,
                    available: space.available,
                    objects,
                }
            }
            None => Space {
                referenced: 0,
                available: 1 << 40,
                objects,
            },
        }
    }

    /// Declares that objects with more than one slot are about to be made.
    pub(crate) fn needs_large_dnodes(&self) {
        if let Some(dataset) = &self.dataset {
            dataset.needs_feature("large_dnode");
        }
    }

    /// Declares that a name longer than readers without the feature expect is about to be made.
    pub(crate) fn needs_long_names(&self) {
        if let Some(dataset) = &self.dataset {
            dataset.needs_feature("longname");
        }
    }
}

/// Slots of a new dnode for a value of the property `dnodesize`.
fn dnode_slots(value: &str) -> u8 {
    match value {
        // OpenZFS: module/zfs/dsl_prop.c and zfs_mknode: auto is 1 KiB, so that small xattrs need no spill block.
        "auto" | "1k" => 2,
        "2k" => 4,
        "4k" => 8,
        "8k" => 16,
        "16k" => 32,
        _ => 1,
    }
}
