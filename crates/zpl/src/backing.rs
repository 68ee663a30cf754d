//! What a file system needs of its dataset: transactions, settings, space.

use dmu::{Objset, Tx, TxWeight};
use ondisk::Txg;

use crate::{FsError, FsResult};

/// What a transaction is about to do, for the write throttle and for quotas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Makes about so many bytes dirty, and may need that much new space.
    Bytes(u64),
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
    /// Slots of new dnodes.
    pub(crate) dnode_slots: u8,
    pub(crate) long_names: bool,
    /// New files and directories carry a project id.
    pub(crate) project_quota: bool,
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
            long_names: false,
            project_quota: true,
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

pub(crate) struct Backing {
    os: Objset,
}

impl Backing {
    pub(crate) fn of_objset(os: Objset) -> Self {
        Self { os }
    }

    pub(crate) fn objset(&self) -> &Objset {
        &self.os
    }

    pub(crate) fn fsid(&self) -> u64 {
        self.os.id()
    }

    pub(crate) async fn settings(&self) -> Settings {
        Settings { read_only: self.os.is_read_only(), ..Settings::default() }
    }

    pub(crate) async fn begin(&self, weight: Weight) -> FsResult<Tx> {
        let weight = match weight {
            Weight::Bytes(bytes) => TxWeight::bytes(bytes),
            Weight::Frees => TxWeight::unthrottled(),
        };
        Ok(self.os.services().clock.begin(weight).await?)
    }

    pub(crate) fn is_synced(&self, txg: Txg) -> bool {
        self.os.services().clock.last_synced() >= txg
    }

    pub(crate) async fn wait_synced(&self, txg: Txg) -> FsResult<()> {
        Ok(self.os.services().clock.wait_synced(txg).await?)
    }

    pub(crate) fn open_txg(&self) -> Txg {
        self.os.services().clock.open_txg()
    }

    pub(crate) async fn space(&self) -> FsResult<Space> {
        let _: Option<FsError> = None;
        Ok(Space { referenced: 0, available: 1 << 40, objects: self.os.object_count() })
    }
}
