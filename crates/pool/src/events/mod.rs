//! What happens to pools and their devices, as lists of names and values in OpenZFS's form (`zpool events`).
//!
//! One log serves all pools of a process, so that the end of a pool is in it, too. It is bounded: the oldest events go.
//! Device errors and state changes come from the device tree and are reported here, rate-limited by kind and device.
// OpenZFS: module/zfs/zfs_fm.c (classes, contents), module/zfs/fm.c (log); include/sys/fm, include/sys/sysevent (names)

mod log;

use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use ondisk::history::keys;
use ondisk::scan::DamagedBlock;
use ondisk::{Guid, NvList, NvValue};
use runtime::Handle;
use vdev::{Health, LeafEvent, LeafEventKind, LeafEvents, VdevConfig, VdevKind};

use self::log::EVENTS_MAX;
pub use self::log::EventLog;
use crate::lifecycle;
use crate::pool::{ImportedPool, Pool};

/// Reports of one kind about one device in a second.
// OpenZFS: module/zfs/vdev.c, zfs_checksum_events_per_second, zfs_slow_io_events_per_second
const REPORTS_PER_SECOND: u32 = 20;
const _: () = assert!(EVENTS_MAX > REPORTS_PER_SECOND as usize);
/// `ECKSUM`: what wrong bytes are called.
const ECKSUM: i32 = 52;

/// The events of all pools of a process, the newest [`KEPT`]. Clones are the same log.
/// Starts to report device events. Those of the import itself are dropped, except for devices that could not be opened.
pub(crate) fn begin(pool: &Pool) {
    let imported = &pool.0;
    let notices = imported.tree().events();
    drop(notices.take());
    for leaf in imported.tree().leaves() {
        if leaf.health == Health::Unavailable {
            let before = NvList::new().with("prev_state", 0_u64);
            imported.report("vdev.open_failed", Some(leaf.guid), before);
        }
    }
    let task = report_devices(Rc::downgrade(imported), notices, imported.handle().clone());
    drop(imported.handle().spawn("events of devices", task));
}

async fn report_devices(pool: Weak<ImportedPool>, notices: LeafEvents, handle: Handle) {
    // Reports in the second, by kind and device.
    let mut counts: BTreeMap<(&'static str, Guid), u32> = BTreeMap::new();
    let mut second = 0;
    loop {
        notices.wait().await;
        let Some(imported) = pool.upgrade() else {
            return;
        };
        if imported.lifecycle.is_closed() {
            return;
        }
        let now = handle.wall_clock().seconds;
        if now != second {
            second = now;
            counts.clear();
        }
        for notice in notices.take() {
            let kind = kind_of(&notice.what);
            let count = counts.entry((kind, notice.leaf)).or_default();
            *count += 1;
            if *count <= REPORTS_PER_SECOND {
                imported.report_notice(kind, &notice);
            }
        }
    }
}

fn kind_of(what: &LeafEventKind) -> &'static str {
    match what {
        LeafEventKind::ChecksumError { .. } => "checksum",
        LeafEventKind::IoError { .. } => "io",
        LeafEventKind::Slow { .. } => "delay",
        LeafEventKind::SitOut => "sitout",
        LeafEventKind::ProbeFailed => "probe_failure",
        LeafEventKind::Health { .. } => "statechange",
    }
}

/// The number of a device's state.
// OpenZFS: include/sys/fs/zfs.h, vdev_state_t
fn state_number(health: Health) -> u64 {
    match health {
        Health::Offline => 2,
        Health::Removed => 3,
        Health::Unavailable => 4,
        Health::Faulted => 5,
        Health::Degraded => 6,
        Health::Online => 7,
    }
}

/// A leaf and the vdev above it.
fn find<'a>(
    vdev: &'a VdevConfig,
    guid: Guid,
    parent: Option<&'a VdevConfig>,
) -> Option<(&'a VdevConfig, Option<&'a VdevConfig>)> {
    if vdev.guid == guid {
        return Some((vdev, parent));
    }
    let mut children = vdev.children.iter();
    children.find_map(|child| find(child, guid, Some(vdev)))
}

fn kind_name(kind: &VdevKind) -> &str {
    match kind {
        VdevKind::Disk => "disk",
        VdevKind::File => "file",
        VdevKind::Mirror => "mirror",
        VdevKind::Raidz => "raidz",
        VdevKind::Draid => "draid",
        VdevKind::DistributedSpare => "dspare",
        VdevKind::Hole => "hole",
        VdevKind::Missing => "missing",
        VdevKind::Indirect => "indirect",
        VdevKind::Replacing => "replacing",
        VdevKind::Spare => "spare",
        VdevKind::Other(name) => name,
    }
}

impl ImportedPool {
    /// Posts an operation or its outcome: `sysevent.fs.zfs.NAME`.
    pub(crate) fn notify(&self, name: &str, vdev: Option<Guid>, more: NvList) {
        self.post("sysevent", name, vdev, more);
    }

    fn post(&self, class: &str, name: &str, vdev: Option<Guid>, more: NvList) {
        let mut list = NvList::new();
        list.insert("version", NvValue::U8(0));
        list.insert("class", format!("{class}.fs.zfs.{name}"));
        self.add_pool(&mut list);
        if let Some(guid) = vdev {
            let leaves = self.tree().leaves();
            let leaf = leaves.iter().find(|leaf| leaf.guid == guid);
            list.insert("vdev_guid", guid.0);
            let state = leaf.map_or(7, |leaf| state_number(leaf.health));
            list.insert("vdev_state", state);
            if let Some(leaf) = leaf {
                list.insert("vdev_path", leaf.path.as_str());
            }
        }
        self.finish(list, more);
    }

    /// Posts a fault: `ereport.fs.zfs.NAME`.
    pub(crate) fn report(&self, name: &str, leaf: Option<Guid>, more: NvList) {
        let mut detector = NvList::new();
        detector.insert("version", NvValue::U8(0));
        detector.insert("scheme", "zfs");
        detector.insert("pool", self.config.guid());
        if let Some(leaf) = leaf {
            detector.insert("vdev", leaf.0);
        }
        let mut list = NvList::new();
        list.insert("class", format!("ereport.fs.zfs.{name}"));
        list.insert("ena", self.handle().now().as_nanos() << 12 | 1);
        list.insert("detector", detector);
        self.add_pool(&mut list);
        let failmode = match self.properties.number("failmode") {
            Some(lifecycle::FAILMODE_CONTINUE) => "continue",
            Some(lifecycle::FAILMODE_PANIC) => "panic",
            _ => "wait",
        };
        list.insert("pool_failmode", failmode);
        if let Some(leaf) = leaf {
            self.add_leaf(&mut list, leaf);
        }
        self.finish(list, more);
    }

    fn add_pool(&self, list: &mut NvList) {
        list.insert("pool", self.config.name());
        list.insert("pool_guid", self.config.guid());
        list.insert("pool_state", self.config.label_state());
        list.insert("pool_context", 0_i32);
    }

    fn add_leaf(&self, list: &mut NvList, guid: Guid) {
        let tree = self.tree().config();
        let found = tree
            .tops
            .iter()
            .find_map(|top| Some((top, find(top, guid, None)?)));
        let Some((top, (leaf, parent))) = found else {
            return;
        };
        list.insert("vdev_guid", guid.0);
        list.insert("vdev_type", kind_name(&leaf.kind));
        if let Some(path) = &leaf.path {
            list.insert("vdev_path", path.as_str());
        }
        list.insert("vdev_ashift", u64::from(top.ashift));
        if let Some(stats) = self.tree().leaf_stats(guid) {
            list.insert("vdev_read_errors", stats.read_errors);
            list.insert("vdev_write_errors", stats.write_errors);
            list.insert("vdev_cksum_errors", stats.checksum_errors);
            list.insert("vdev_delays", stats.slow_ios);
        }
        match parent {
            Some(parent) => {
                list.insert("parent_guid", parent.guid.0);
                list.insert("parent_type", kind_name(&parent.kind));
            }
            None => {
                list.insert("parent_guid", tree.guid.0);
                list.insert("parent_type", "root");
            }
        }
    }

    fn finish(&self, mut list: NvList, more: NvList) {
        for (name, value) in more.iter() {
            list.insert(name, value.clone());
        }
        self.events.post(list, self.handle().wall_clock());
    }

    fn report_notice(&self, kind: &'static str, notice: &LeafEvent) {
        let leaf = Some(notice.leaf);
        let place = |error: i32, offset: u64, size: u64| {
            NvList::new()
                .with("zio_err", error)
                .with("zio_offset", offset)
                .with("zio_size", size)
        };
        match notice.what {
            LeafEventKind::ChecksumError { offset, size } => {
                self.report(kind, leaf, place(ECKSUM, offset, size));
            }
            LeafEventKind::IoError {
                offset,
                size,
                errno,
            } => self.report(kind, leaf, place(errno, offset, size)),
            LeafEventKind::Slow {
                offset,
                size,
                nanoseconds,
            } => {
                let more = place(0, offset, size).with("zio_delta", nanoseconds);
                self.report(kind, leaf, more);
            }
            LeafEventKind::SitOut => self.report(kind, leaf, NvList::new()),
            LeafEventKind::ProbeFailed => {
                self.report(kind, leaf, NvList::new().with("prev_state", 0_u64));
            }
            LeafEventKind::Health { from, to } => {
                let before = state_number(from);
                if to == Health::Removed {
                    self.post("resource", "removed", leaf, NvList::new());
                }
                if matches!(to, Health::Unavailable) {
                    let more = NvList::new().with("prev_state", before);
                    self.report("vdev.open_failed", leaf, more);
                }
                let more = NvList::new().with("vdev_laststate", before);
                self.post("resource", kind, leaf, more);
            }
        }
    }

    /// Reports a block of which no copy is right.
    pub(crate) fn report_damage(&self, block: &DamagedBlock) {
        let more = NvList::new()
            .with("zio_err", ECKSUM)
            .with("zio_objset", block.objset)
            .with("zio_object", block.object)
            .with("zio_level", block.level)
            .with("zio_blkid", block.block);
        self.report("data", None, more);
    }

    /// Posts a record of the pool's history.
    // OpenZFS: module/zfs/spa_history.c, spa_history_log_notify (order); include/sys/fs/zfs.h, ZFS_EV_HIST_CMD and its like
    pub(crate) fn notify_history(&self, record: &NvList) {
        const NAMES: [(&str, &str); 10] = [
            (keys::COMMAND, "history_command"),
            (keys::INTERNAL_NAME, "history_internal_name"),
            (keys::ZONE, "history_zone"),
            (keys::HOST, "history_hostname"),
            (keys::DATASET_NAME, "history_dsname"),
            (keys::INTERNAL_STR, "history_internal_str"),
            (keys::DATASET_ID, "history_dsid"),
            (keys::TXG, "history_txg"),
            (keys::TIME, "history_time"),
            (keys::WHO, "history_who"),
        ];
        let mut more = NvList::new();
        for (stored, shown) in NAMES {
            if let Some(value) = record.get(stored) {
                more.insert(shown, value.clone());
            }
        }
        self.notify("history_event", None, more);
    }
}
