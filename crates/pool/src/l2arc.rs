//! The cache devices (L2ARC) of a pool: opened for the cache when the pool is opened, when they are added, and when they are
//! back; closed when they are removed.
//!
//! A cache device is never needed: one that is away, foreign or broken costs nothing but what it would have answered.
// OpenZFS: module/zfs/spa.c, spa_load_l2cache; module/zfs/arc.c, l2arc_add_vdev

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc::{CacheDevice, CacheDeviceStats};
use ondisk::label::LABEL_SIZE;
use vdev::{OpenMode, VdevStats};

use crate::auxiliary::{AuxiliaryDevice, is_label_of};
use crate::pool::ImportedPool;
use crate::status::{Health, IoTotals, VdevStatus};

/// How long the pool waits for a cache device to be opened.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

impl ImportedPool {
    /// Puts the cache devices that are there, and not in use yet, to use. `fresh`: what they hold is forgotten. Those that
    /// cannot be opened are shown as such; one that does not answer is waited for only so long.
    pub(crate) async fn open_cache_devices(self: &Rc<Self>, fresh: bool) {
        for device in self.devices.auxiliaries.caches.devices() {
            if self.cache_device(device.config.guid.0).is_some() {
                continue;
            }
            let imported = self.clone();
            let opening = self.handle().spawn("opening a cache device", async move {
                let used = imported.open_cache_device(&device, fresh).await.is_some();
                imported
                    .devices
                    .auxiliaries
                    .caches
                    .set_found(device.config.guid, used);
            });
            // A task of its own: it continues after the timeout.
            runtime::timeout(self.handle(), OPEN_TIMEOUT, opening).await;
        }
    }

    async fn open_cache_device(&self, device: &AuxiliaryDevice, fresh: bool) -> Option<()> {
        let path = device.path()?;
        let mode = if self.session.readonly {
            OpenMode::ReadOnly
        } else {
            OpenMode::ReadWrite
        };
        let disk = vdev::open_disk(self.handle(), &path, mode).await.ok()?;
        let guid = device.config.guid;
        let wanted = is_label_of(&disk, guid).await
            && !self.lifecycle.is_closed()
            && self.devices.auxiliaries.caches.find(guid).is_some();
        if !wanted {
            return None;
        }
        let size = disk.size_bytes() / LABEL_SIZE * LABEL_SIZE;
        let pool_guid = self.config.guid();
        self.cache()
            .add_device(CacheDevice {
                guid: guid.0,
                pool_guid,
                disk,
                ashift: device.config.ashift.clamp(9, 16),
                size,
                writable: !self.session.readonly,
                fresh,
            })
            .await;
        Some(())
    }

    /// Reopens cache devices that failed or were missing.
    pub(crate) async fn reopen_cache_devices(self: &Rc<Self>) {
        for device in self.cache().devices() {
            if device.failed {
                self.cache().remove_device(device.guid).await;
            }
        }
        self.open_cache_devices(false).await;
    }

    /// Closes all cache devices; their contents stay for the next import.
    pub(crate) async fn close_cache_devices(&self) {
        for device in self.cache().devices() {
            self.cache().remove_device(device.guid).await;
        }
    }

    /// Returns what the cache says of a device.
    pub(crate) fn cache_device(&self, guid: u64) -> Option<CacheDeviceStats> {
        let devices = self.cache().devices();
        devices.into_iter().find(|device| device.guid == guid)
    }

    /// Fills in what `zpool status`, `list -v` and `iostat -v` show of a cache device in use.
    pub(crate) fn fill_cache_status(&self, status: &mut VdevStatus) {
        let Some(stats) = self.cache_device(status.guid) else {
            return;
        };
        if stats.failed {
            status.health = Health::Faulted;
            status.note = Some("too many errors".to_owned());
        }
        status.size_bytes = stats.size_bytes;
        status.allocated_bytes = stats.allocated_bytes;
        status.fragmentation_percent = Some(0);
        status.read_errors = stats.read_errors;
        status.write_errors = stats.write_errors;
        status.checksum_errors = stats.checksum_errors;
        status.io = IoTotals {
            read_ops: stats.read_ops,
            write_ops: stats.write_ops,
            read_bytes: stats.read_bytes,
            write_bytes: stats.write_bytes,
            ..IoTotals::default()
        };
        status.detail = Arc::new(VdevStats {
            read_errors: stats.read_errors,
            write_errors: stats.write_errors,
            checksum_errors: stats.checksum_errors,
            read_ops: stats.read_ops,
            write_ops: stats.write_ops,
            read_bytes: stats.read_bytes,
            write_bytes: stats.write_bytes,
            ..VdevStats::default()
        });
    }
}
