//! The state directory: one appliance's memory. It holds the lock that lets one process at a time
//! run the pools, the list of imported pools, the configuration file and the control socket.
//!
//! The lock is an advisory `flock`, which the kernel releases however the process ends, so that a
//! killed daemon needs no cleaning up.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

/// What can go wrong with the state directory.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file of it cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The list of pools is not as we write it.
    #[error("{}: {source}; the pools themselves are untouched and can be imported again", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
}

/// Name of the archive that `sanbox support` makes.
pub const SUPPORT_BUNDLE: &str = "support.tar";
/// File of the clients of NFSv4 that may reclaim after a restart.
const NFS_CLIENTS: &str = "nfs-clients";
/// The longest such file: 8192 clients with names of 1 KiB, in hexadecimal digits, take 17 MB.
const NFS_CLIENTS_BYTES_MAX: u64 = 32 << 20;

/// The state directory.
#[derive(Clone, Debug)]
pub struct StateDirectory {
    path: PathBuf,
}

/// Held while this process runs the pools of the state directory.
#[derive(Debug)]
pub struct StateLock {
    file: File,
}

/// What the lock file says, in its second line, of a process that ends with the commands that it works for.
const WORKER_MARK: &str = "worker";

impl StateLock {
    /// Notes that this process works for commands and ends with them: a daemon that starts waits for it.
    pub fn mark_worker(&mut self) {
        // Without the note a daemon that starts is refused, as it is beside another daemon.
        let _ = self.file.write_all(format!("{WORKER_MARK}\n").as_bytes());
    }
}

/// A vdev of an imported pool, as remembered: what is shown of it while its disks are away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedVdev {
    /// As it is shown: `mirror-0`, or a path.
    pub name: String,
    /// `disk`, `file`, `mirror`, ...
    pub kind: String,
    /// Unique number.
    pub guid: u64,
    /// Where a leaf was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// `log`, `special` or `dedup`, when it is for these blocks only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Children in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Self>,
}

impl CachedVdev {
    /// Returns a leaf of which only the path is known.
    #[must_use]
    pub fn leaf(path: &Path) -> Self {
        Self {
            name: path.to_string_lossy().into_owned(),
            kind: "file".to_owned(),
            path: Some(path.to_owned()),
            ..Self::default()
        }
    }
}

/// An imported pool, as remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedPool {
    /// Name.
    pub name: String,
    /// Unique number.
    pub guid: u64,
    /// Where its devices were.
    pub devices: Vec<PathBuf>,
    /// Top-level vdevs; none when a version before this one remembered the pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vdevs: Vec<CachedVdev>,
    /// Spares.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spares: Vec<CachedVdev>,
    /// Cache devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<CachedVdev>,
    /// Alternate root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub altroot: Option<PathBuf>,
    /// Imported read-only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub readonly: bool,
    /// Imported without the log devices that were missing (`-m`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub missing_logs: bool,
    /// Imported read-only at its checkpoint.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_checkpoint: bool,
    /// Host id that this program had when it opened the pool last; none when a version before this one remembered it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostid: Option<u64>,
    /// The property `cachefile`, when set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cachefile: Option<String>,
    /// The import ends with this boot of the machine (`-R`, `cachefile=none`): the kernel's boot
    /// identifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_boot: Option<String>,
}

/// The imported pools.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolCache {
    /// In the order of their names.
    pub pools: Vec<CachedPool>,
}

impl PoolCache {
    /// Adds a pool, or replaces what was remembered of it.
    pub fn put(&mut self, pool: CachedPool) {
        self.pools
            .retain(|known| known.guid != pool.guid && known.name != pool.name);
        self.pools.push(pool);
        self.pools.sort_by(|left, right| left.name.cmp(&right.name));
    }

    /// Forgets a pool.
    pub fn remove(&mut self, guid: u64) {
        self.pools.retain(|known| known.guid != guid);
    }
}

impl StateDirectory {
    /// Returns the directory that commands use when none is named: of the machine for root, of the
    /// user otherwise.
    #[must_use]
    pub fn default_path(is_root: bool) -> PathBuf {
        if is_root {
            return PathBuf::from("/var/lib/sanbox");
        }
        let absolute = |name| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|p| p.is_absolute())
        };
        match (absolute("XDG_STATE_HOME"), absolute("HOME")) {
            (Some(state), _) => state.join("sanbox"),
            (None, Some(home)) => home.join(".local/state/sanbox"),
            (None, None) => PathBuf::from("/var/lib/sanbox"),
        }
    }

    /// Opens the directory, making it if need be, readable by its owner only.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|source| StateError::Io {
                path: path.to_owned(),
                source,
            })?;
        let path = fs::canonicalize(path).map_err(|source| StateError::Io {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self { path })
    }

    /// Names a directory without opening or making it, for commands that only want to know where it
    /// would be.
    #[must_use]
    pub fn unopened(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    /// Returns where the directory is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns where the control socket is.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path.join("control.sock")
    }

    /// Returns where the configuration is.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.path.join("sanbox.toml")
    }

    /// Replaces the configuration; the one before is kept as `sanbox.toml.before`. After a power cut it is the old or the new one.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_config(&self, text: &str) -> Result<(), StateError> {
        let path = self.config();
        match fs::read(&path) {
            Ok(before) => self.replace("sanbox.toml.before", &before)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(StateError::Io { path, source }),
        }
        self.replace("sanbox.toml", text.as_bytes())
    }

    /// Remembers that a daemon runs, until [`Self::mark_ended`]. Returns whether an earlier one did not come that far: it was
    /// killed, or the machine went down. The caller has the lock.
    ///
    /// # Errors
    /// The mark cannot be written; a later start then does not know.
    pub fn mark_running(&self) -> Result<bool, StateError> {
        let path = self.path.join("running");
        let was_running = path.exists();
        fs::write(&path, format!("{}\n", std::process::id()))
            .map_err(|source| StateError::Io { path, source })?;
        Ok(was_running)
    }

    /// Remembers that the daemon ended as it should.
    pub fn mark_ended(&self) {
        // One that stays is a warning too much at the next start.
        let _ = fs::remove_file(self.path.join("running"));
    }

    /// Takes the lock if no process has it.
    ///
    /// # Errors
    /// The lock file cannot be opened.
    pub fn try_lock(&self) -> Result<Option<StateLock>, StateError> {
        let path = self.path.join("lock");
        let failed = |source| StateError::Io {
            path: path.clone(),
            source,
        };
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path);
        let mut file = match opened {
            // The disk takes nothing any more: the lock holds all the same, and only the number below is not written.
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => File::open(&path),
            opened => opened,
        }
        .map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(failed(errno.into())),
        }
        // The process that holds it, for people who look; the lock itself decides.
        let _ = file.set_len(0);
        let _ = file.write_all(format!("{}\n", std::process::id()).as_bytes());
        Ok(Some(StateLock { file }))
    }

    /// Returns the process that holds the lock, as far as it is known.
    #[must_use]
    pub fn lock_holder(&self) -> Option<u32> {
        let text = fs::read_to_string(self.path.join("lock")).ok()?;
        text.lines().next()?.parse().ok()
    }

    /// Whether the lock is held by a process that works for commands and ends with them ([`StateLock::mark_worker`]).
    #[must_use]
    pub fn is_held_by_worker(&self) -> bool {
        let text = fs::read_to_string(self.path.join("lock"));
        text.is_ok_and(|text| text.lines().nth(1) == Some(WORKER_MARK))
    }

    /// Reads the list of imported pools; pools of an earlier boot that were to end with it are left
    /// out.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub fn read_pools(&self) -> Result<PoolCache, StateError> {
        let path = self.path.join("pools.json");
        let mut text = String::new();
        match File::open(&path).and_then(|mut file| file.read_to_string(&mut text)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(PoolCache::default());
            }
            Err(source) => return Err(StateError::Io { path, source }),
        }
        let mut cache: PoolCache =
            serde_json::from_str(&text).map_err(|source| StateError::Damaged { path, source })?;
        let boot = boot_identifier();
        cache
            .pools
            .retain(|pool| pool.until_boot.is_none() || pool.until_boot == boot);
        Ok(cache)
    }

    /// Replaces the list of imported pools; after a power cut it is the old or the new one.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_pools(&self, cache: &PoolCache) -> Result<(), StateError> {
        let path = self.path.join("pools.json");
        let text = serde_json::to_string_pretty(cache).map_err(|source| StateError::Damaged {
            path: path.clone(),
            source,
        })?;
        self.replace("pools.json", format!("{text}\n").as_bytes())
    }

    /// Keeps the archive of `sanbox support`, in place of an earlier one.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_support(&self, archive: &[u8]) -> Result<(), StateError> {
        self.replace(SUPPORT_BUNDLE, archive)
    }

    /// Keeps a secret in a file that its owner alone can read, and returns where. After a power cut it is the old or the new one.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_secret(&self, name: &str, secret: &str) -> Result<PathBuf, StateError> {
        self.replace(name, format!("{secret}\n").as_bytes())?;
        Ok(self.path.join(name))
    }

    /// Reads the iSCSI targets.
    ///
    /// # Errors
    /// They cannot be read, or are damaged.
    pub fn read_targets(&self) -> Result<crate::targets::Targets, StateError> {
        let path = self.path.join("targets.json");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(crate::targets::Targets::default());
            }
            Err(source) => return Err(StateError::Io { path, source }),
        };
        serde_json::from_str(&text).map_err(|source| StateError::Damaged { path, source })
    }

    /// Replaces the iSCSI targets, secrets included: the file is its owner's alone.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write_targets(&self, targets: &crate::targets::Targets) -> Result<(), StateError> {
        let path = self.path.join("targets.json");
        let text = serde_json::to_string_pretty(targets)
            .map_err(|source| StateError::Damaged { path, source })?;
        self.replace("targets.json", format!("{text}\n").as_bytes())
    }

    /// Reads the events an earlier process left; nothing when there are none.
    #[must_use]
    pub fn read_events(&self) -> Vec<u8> {
        fs::read(self.path.join("events")).unwrap_or_default()
    }

    /// Replaces the events kept for the next process.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write_events(&self, bytes: &[u8]) -> Result<(), StateError> {
        self.replace("events", bytes)
    }

    /// Returns the record of NFSv4's clients that an earlier process left; nothing when there is none.
    ///
    /// # Errors
    /// It cannot be read, or is longer than any that is written.
    pub fn read_nfs_clients(&self) -> Result<Vec<u8>, StateError> {
        let path = self.path.join(NFS_CLIENTS);
        let mut record = Vec::new();
        let read = File::open(&path).and_then(|file| {
            file.take(NFS_CLIENTS_BYTES_MAX + 1)
                .read_to_end(&mut record)
        });
        match read {
            Ok(length) if length as u64 > NFS_CLIENTS_BYTES_MAX => {
                let source = io::Error::from(io::ErrorKind::FileTooLarge);
                Err(StateError::Io { path, source })
            }
            Ok(_) => Ok(record),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(StateError::Io { path, source }),
        }
    }

    /// Replaces the record of NFSv4's clients; it is stable on return.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_nfs_clients(&self, record: &[u8]) -> Result<(), StateError> {
        self.replace(NFS_CLIENTS, record)
    }

    /// Returns the number that stands for this host in pools' labels where the machine has none of
    /// its own: made once, kept with the state.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub fn hostid(&self, fresh: impl FnOnce() -> u32) -> Result<u32, StateError> {
        let path = self.path.join("hostid");
        if let Ok(text) = fs::read_to_string(&path)
            && let Ok(hostid) = u32::from_str_radix(text.trim(), 16)
            && hostid != 0
        {
            return Ok(hostid);
        }
        let hostid = fresh().max(1);
        self.replace("hostid", format!("{hostid:08x}\n").as_bytes())?;
        Ok(hostid)
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), StateError> {
        let path = self.path.join(name);
        replace_file(&path, bytes).map_err(|source| StateError::Io { path, source })
    }
}

/// Replaces a file of a state directory, readable by its owner only. After a power cut it is the old or the new one; it is the new one, on
/// the disk, when this returns.
///
/// # Errors
/// The file, or the one beside it that is written first (its name and `.new`), cannot be written.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    let directory = path.parent().unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

/// Returns what tells this boot of the machine from others, where the kernel says.
#[must_use]
pub fn boot_identifier() -> Option<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str, guid: u64) -> CachedPool {
        CachedPool {
            name: name.to_owned(),
            guid,
            devices: vec![PathBuf::from("/disks/a")],
            ..CachedPool::default()
        }
    }

    #[test]
    fn remembers_pools_and_forgets_those_of_another_boot() {
        let directory = tempfile::tempdir().expect("a directory");
        let state = StateDirectory::open(directory.path()).expect("opens");
        assert_eq!(state.read_pools().expect("reads"), PoolCache::default());
        let mut cache = PoolCache::default();
        cache.put(pool("tank", 1));
        cache.put(CachedPool {
            until_boot: Some("another".to_owned()),
            ..pool("gone", 2)
        });
        cache.put(CachedPool {
            readonly: true,
            ..pool("tank", 1)
        });
        state.write_pools(&cache).expect("writes");
        let read = state.read_pools().expect("reads");
        assert_eq!(
            read.pools,
            [CachedPool {
                readonly: true,
                ..pool("tank", 1)
            }]
        );
    }

    #[test]
    fn one_holds_the_lock() {
        let directory = tempfile::tempdir().expect("a directory");
        let state = StateDirectory::open(directory.path()).expect("opens");
        let held = state.try_lock().expect("locks");
        assert!(held.is_some());
        assert!(state.try_lock().expect("asks").is_none());
        assert_eq!(state.lock_holder(), Some(std::process::id()));
        drop(held);
        assert!(state.try_lock().expect("locks again").is_some());
    }

    #[test]
    fn a_hostid_is_made_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let state = StateDirectory::open(directory.path()).expect("opens");
        assert_eq!(state.hostid(|| 7).expect("makes"), 7);
        assert_eq!(state.hostid(|| 8).expect("reads"), 7);
    }
}
