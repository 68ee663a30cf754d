//! The disks of this machine, and files that serve as such: what the kernel says of them, and what they hold.
//!
//! Guarantees: a device that does not answer holds up no other, and is asked once, not again while the question is open.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::Engine;
use futures_util::future::join_all;
use manage::api::{Device, DeviceContent, DeviceKind};

use crate::paths;

/// Smallest device that a vdev can be made of (OpenZFS: SPA_MINDEVSIZE).
const DEVICE_BYTES_MIN: u64 = 64 << 20;
/// How long the kernel may take to list them, and a device to say what it holds.
const LIST_TIMEOUT: Duration = Duration::from_millis(800);
const CONTENT_TIMEOUT: Duration = Duration::from_millis(600);
/// Block devices that are no disks, by the beginning of their names.
const NO_DISKS: [&str; 5] = ["ram", "zram", "sr", "fd", "nbd"];
/// Unit of sizes in `/sys/block`, whatever the device's sectors are.
const SYSFS_SECTOR_BYTES: u64 = 512;
/// Sectors of files, as new vdevs take them.
const FILE_SECTOR_BYTES: u32 = 4096;

/// What is known of devices between two questions.
#[derive(Default)]
pub(super) struct Asked {
    /// Devices whose content is being looked at.
    open: Arc<Mutex<BTreeSet<String>>>,
    /// The list as it was read last.
    last: Arc<Mutex<Option<Vec<Device>>>>,
}

impl Asked {
    /// Lists the block devices, and the files in some directories. Where that takes too long, as on a machine that does very much else, the list
    /// is the one that was read last; a list that comes late is there for the next question.
    ///
    /// # Errors
    /// The kernel, or the file system of a directory, did not answer in time, and has not answered before.
    pub(super) async fn devices(
        &self,
        state: &Path,
        directories: &[PathBuf],
    ) -> Result<Vec<Device>, String> {
        let (own, directories) = (state.to_owned(), directories.to_owned());
        let look = move || {
            let mut devices = block_devices(Path::new("/sys/block"), &own);
            devices.extend(directories.iter().flat_map(|directory| files(directory)));
            devices
        };
        self.listed(LIST_TIMEOUT, look).await
    }

    async fn listed(
        &self,
        timeout: Duration,
        look: impl FnOnce() -> Vec<Device> + Send + 'static,
    ) -> Result<Vec<Device>, String> {
        let last = self.last.clone();
        let keeping = move || {
            let devices = look();
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            *last = Some(devices.clone());
            devices
        };
        let listed = paths::call_within(timeout, Path::new("/sys/block"), keeping).await;
        listed.or_else(|why| {
            let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            last.clone().ok_or(why)
        })
    }

    /// Returns what each of some devices holds.
    pub(super) async fn contents(&self, engine: &Engine, paths: Vec<String>) -> Vec<DeviceContent> {
        join_all(paths.into_iter().map(|path| self.content(engine, path))).await
    }

    async fn content(&self, engine: &Engine, path: String) -> DeviceContent {
        let asked = self.open.clone();
        let is_new = |set: &Mutex<BTreeSet<String>>| {
            let mut set = set.lock().unwrap_or_else(PoisonError::into_inner);
            set.insert(path.clone())
        };
        if !is_new(&asked) {
            return DeviceContent::Unanswered;
        }
        let engine = engine.clone();
        // Goes on behind the deadline: the device is asked again when it has answered.
        let asking = tokio::spawn(async move {
            let content = engine.device_content(PathBuf::from(&path)).await;
            let mut set = asked.lock().unwrap_or_else(PoisonError::into_inner);
            set.remove(&path);
            content
        });
        match tokio::time::timeout(CONTENT_TIMEOUT, asking).await {
            Ok(Ok(Ok(None))) => DeviceContent::Free,
            Ok(Ok(Ok(Some(what)))) => DeviceContent::Held(what),
            Ok(Ok(Err(error))) => DeviceContent::Unreadable(error.to_string()),
            Ok(Err(error)) => DeviceContent::Unreadable(error.to_string()),
            Err(_) => DeviceContent::Unanswered,
        }
    }
}

fn files(directory: &Path) -> Vec<Device> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(data) = entry.metadata() else {
            continue;
        };
        if !data.is_file() || data.len() < DEVICE_BYTES_MIN {
            continue;
        }
        let path = entry.path();
        let real = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
        found.push(Device {
            path: text(&path),
            names: vec![text(&path), text(&real)],
            kind: DeviceKind::File,
            size_bytes: data.len(),
            model: None,
            serial: None,
            rotational: None,
            sector_bytes: FILE_SECTOR_BYTES,
            used_by_machine: None,
        });
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Reads a file of the kernel; none when it is missing or empty.
fn word(path: PathBuf) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim().trim_matches('\0').trim().to_owned();
    (!text.is_empty()).then_some(text)
}

fn number(path: PathBuf) -> Option<u64> {
    word(path)?.parse().ok()
}

/// What the machine mounts and swaps to.
struct MachineUse {
    /// Numbers of mounted devices, with the mount point.
    mounts: Vec<(String, String)>,
    /// Devices with swap areas.
    swaps: Vec<String>,
    /// Names below `/dev/disk/by-id` and the devices they lead to.
    links: Vec<(String, String)>,
}

impl MachineUse {
    fn look() -> Self {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        // `36 35 98:0 /root /point options ...`: man 5 proc_pid_mountinfo
        let mount = |line: &str| {
            let mut words = line.split(' ').skip(2);
            Some((words.next()?.to_owned(), words.nth(1)?.to_owned()))
        };
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        let swap = |line: &str| line.split_whitespace().next().map(str::to_owned);
        let by_id = Path::new("/dev/disk/by-id");
        let link = |entry: fs::DirEntry| {
            let real = fs::canonicalize(entry.path()).ok()?;
            Some((text(&entry.path()), text(&real)))
        };
        let entries = fs::read_dir(by_id).into_iter().flatten().flatten();
        let mut links: Vec<_> = entries.filter_map(link).collect();
        links.sort();
        Self {
            mounts: table.lines().filter_map(mount).collect(),
            swaps: swaps.lines().skip(1).filter_map(swap).collect(),
            links,
        }
    }

    /// What a device with this number and name is used for.
    fn of(&self, at: &Path, name: &str) -> Option<String> {
        let own = word(at.join("dev")).unwrap_or_default();
        if let Some((_, point)) = self.mounts.iter().find(|(device, _)| *device == own) {
            return Some(format!("is mounted at {point}"));
        }
        if self.swaps.contains(&format!("/dev/{name}")) {
            return Some("is a swap area".to_owned());
        }
        let mut holders = fs::read_dir(at.join("holders")).into_iter().flatten();
        let holder = holders.next()?.ok()?;
        let holder = holder.file_name().to_string_lossy().into_owned();
        Some(format!("is a part of {holder}"))
    }
}

fn block_devices(sys: &Path, state: &Path) -> Vec<Device> {
    let uses = MachineUse::look();
    let entries = fs::read_dir(sys).into_iter().flatten().flatten();
    let mut found: Vec<Device> = entries
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            block_device(&entry.path(), &name, &uses, state)
        })
        .collect();
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

fn block_device(at: &Path, name: &str, uses: &MachineUse, state: &Path) -> Option<Device> {
    if NO_DISKS.iter().any(|prefix| name.starts_with(prefix)) {
        return None;
    }
    let size_bytes = number(at.join("size"))? * SYSFS_SECTOR_BYTES;
    // '!' stands for '/' in names of the kernel.
    let node = format!("/dev/{}", name.replace('!', "/"));
    let there = fs::metadata(&node).is_ok_and(|data| data.file_type().is_block_device());
    // Devices of our own volumes are no disks for pools.
    let backing = word(at.join("loop/backing_file"));
    let own = backing.is_some_and(|file| Path::new(&file).starts_with(state));
    if size_bytes < DEVICE_BYTES_MIN || !there || own {
        return None;
    }
    let mut nodes = vec![node.clone()];
    let mut used = uses.of(at, name);
    for entry in fs::read_dir(at).into_iter().flatten().flatten() {
        let part = entry.file_name().to_string_lossy().into_owned();
        if entry.path().join("partition").exists() {
            nodes.push(format!("/dev/{part}"));
            used = used.or_else(|| {
                let what = uses.of(&entry.path(), &part)?;
                Some(format!("has a partition, {part}, which {what}"))
            });
        }
    }
    let links = uses.links.iter();
    let links = links.filter(|(_, real)| nodes.contains(real));
    let links: Vec<String> = links.map(|(link, _)| link.clone()).collect();
    // The maker's name and the serial number say more to a person than a number of the standards.
    let is_number = |link: &&String| {
        let name = link.rsplit('/').next().unwrap_or_default();
        name.starts_with("wwn-") || name.starts_with("nvme-eui") || name.starts_with("nvme-nvme")
    };
    let whole = |link: &&String| !link.contains("-part");
    let best = links.iter().filter(whole).find(|link| !is_number(link));
    let path = best.or_else(|| links.iter().find(whole)).cloned();
    let sector = number(at.join("queue/physical_block_size"));
    let names = nodes.into_iter().chain(links.clone()).collect();
    Some(Device {
        path: path.unwrap_or(node),
        names,
        kind: DeviceKind::Disk,
        size_bytes,
        model: word(at.join("device/model")),
        serial: word(at.join("device/serial")).or_else(|| word(at.join("serial"))),
        rotational: number(at.join("queue/rotational")).map(|rotates| rotates == 1),
        sector_bytes: sector
            .and_then(|bytes| bytes.try_into().ok())
            .unwrap_or(512),
        used_by_machine: used,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_list_that_takes_too_long_is_the_last_one() {
        let asked = Asked::default();
        let directory = tempfile::tempdir().expect("a directory");
        let file = fs::File::create(directory.path().join("a")).expect("made");
        file.set_len(64 << 20).expect("sized");
        let devices = files(directory.path());
        let slow = |devices: Vec<Device>| {
            move || {
                std::thread::sleep(Duration::from_millis(300));
                devices
            }
        };
        let soon = Duration::from_millis(20);
        let first = asked.listed(soon, slow(devices.clone())).await;
        assert!(first.is_err(), "there is none yet");
        tokio::time::sleep(Duration::from_millis(600)).await;
        let again = asked.listed(soon, slow(Vec::new())).await;
        assert_eq!(again.expect("the one that came late").len(), 1);
        let now = asked
            .listed(Duration::from_secs(60), slow(Vec::new()))
            .await;
        assert!(now.expect("in time").is_empty());
    }

    #[test]
    fn files_of_the_size_of_a_device_are_offered() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        for (name, bytes) in [("b", 64 << 20), ("a", 128 << 20), ("small", 1 << 20)] {
            let file = fs::File::create(at(name)).expect("made");
            file.set_len(bytes).expect("sized");
        }
        fs::create_dir(at("c")).expect("made");
        let found = files(directory.path());
        let paths: Vec<_> = found.iter().map(|device| device.path.clone()).collect();
        assert_eq!(paths, [text(&at("a")), text(&at("b"))]);
        assert_eq!(found[0].size_bytes, 128 << 20);
        assert!(files(&at("nowhere")).is_empty());
    }

    #[test]
    fn what_is_no_disk_is_left_out() {
        let sys = tempfile::tempdir().expect("a directory");
        for name in ["ram0", "sr0", "gone0"] {
            fs::create_dir(sys.path().join(name)).expect("made");
            fs::write(sys.path().join(name).join("size"), "4194304\n").expect("written");
        }
        // 'gone0' has no node in /dev.
        assert!(block_devices(sys.path(), Path::new("/nowhere")).is_empty());
    }
}
