//! Mounting file systems on this machine by FUSE: the registry of mounts.
//!
//! A mount ends by `zfs unmount`, by `umount` from outside, or with the process. A mount left by a
//! killed process is found dead (`Transport endpoint is not connected`) and cleared away at the next start, or when
//! something is mounted there again. Mount points often lie on other mounts of this process: see [`crate::paths`] and [`guard`].

mod adapter;
mod attach;
mod convert;
pub(crate) mod flags;
pub(crate) mod guard;
mod ioctl;
mod locks;
mod nodes;
mod real_names;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::property::Property;
use engine::{FileLocks, FsHandle};
use fuser::{Config, SessionACL, SessionUnmounter};
use futures_util::future::join_all;
use tokio::sync::watch;

use adapter::Adapter;
use guard::Guard;
use locks::MountLocks;
use nodes::{INNER_ROOT_NAME, Shared};

use crate::logging::MOUNT;
use crate::paths;

/// How often the thread that notifies a kernel of changes looks whether the mount has ended.
const WATCH_PATIENCE: Duration = Duration::from_secs(1);

/// How long a mount that was taken away is waited for to end.
const DETACH_TIMEOUT: Duration = Duration::from_secs(3);

/// How long mounts that others unmounted are waited for to end.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);

/// Threads that all mounts have together for requests, beyond one for each.
const SESSION_THREADS: usize = 1024;

/// How a dataset is mounted, from its properties and the command line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MountFlags {
    /// Nothing may be written.
    pub(crate) readonly: bool,
    /// Device nodes are not honoured (`devices=off`).
    pub(crate) no_devices: bool,
    /// Set-id bits are not honoured (`setuid=off`).
    pub(crate) no_setuid: bool,
    /// Programs may not run (`exec=off`).
    pub(crate) no_exec: bool,
    /// The directory must be empty (`overlay=off`).
    pub(crate) needs_empty: bool,
    /// Access control lists beside modes (`acltype`).
    pub(crate) lists: Lists,
    /// Samba uses the mount: see [`Shared`].
    pub(crate) for_samba: bool,
}

/// Which access control lists a mount knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Lists {
    /// Modes alone.
    #[default]
    Off,
    /// POSIX lists, which the kernel checks.
    Posix,
    /// NFSv4 lists, which are checked here after the kernel has checked the mode.
    Nfsv4,
}

struct Mounted {
    /// Tells this mount from an earlier one of the same dataset.
    number: u64,
    guid: u64,
    dataset: String,
    point: PathBuf,
    unmounter: Arc<Mutex<SessionUnmounter>>,
    /// The kernel's number of it.
    connection: Option<u32>,
    /// It is nowhere in the tree of files any more, and lasts as long as something uses it.
    detached: bool,
    /// Properties in force otherwise than the dataset says, until it is unmounted.
    overridden: Vec<(Property, bool)>,
}

/// The mounts this process holds.
pub(crate) struct Mounts {
    list: Arc<Mutex<Vec<Mounted>>>,
    /// Datasets that are being mounted.
    beginning: Mutex<BTreeSet<u64>>,
    /// Counts the mounts that began.
    count: AtomicU64,
    /// Counts the mounts that ended.
    ended: watch::Sender<u64>,
    threads: usize,
    /// The locks of all files.
    locks: Arc<FileLocks>,
    /// Started with the first mount.
    guard: Mutex<Option<Arc<Guard>>>,
}

/// A dataset that is being mounted, until dropped.
struct Beginning<'a> {
    beginning: &'a Mutex<BTreeSet<u64>>,
    guid: u64,
}

impl Drop for Beginning<'_> {
    fn drop(&mut self) {
        let beginning = self.beginning.lock();
        beginning
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.guid);
    }
}

impl Mounts {
    /// Returns no mounts; what is locked through them is in `locks`.
    pub(crate) fn new(threads: usize, locks: Arc<FileLocks>) -> Self {
        Self {
            list: Arc::default(),
            beginning: Mutex::default(),
            count: AtomicU64::new(0),
            ended: watch::Sender::new(0),
            threads: threads.clamp(1, 64),
            locks,
            guard: Mutex::default(),
        }
    }

    /// The threads of one more mount: fewer where there are very many, since a process may only have so many (systemd allows a
    /// service 4,915 on a small machine).
    fn threads_of_another(&self) -> usize {
        let mounts = self.locked().len() + 1;
        self.threads.min((SESSION_THREADS / mounts).max(1))
    }

    /// Returns the table of what is locked through the mounts.
    pub(crate) fn locks(&self) -> &Arc<FileLocks> {
        &self.locks
    }

    /// Returns the guard of this process's mounts, starting it if need be; `None` where it cannot be started.
    pub(crate) fn guard(&self) -> Option<Arc<Guard>> {
        let mut guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner);
        if guard.is_none() {
            match Guard::start() {
                Ok(started) => *guard = Some(Arc::new(started)),
                Err(error) => {
                    tracing::warn!(
                        target: MOUNT,
                        "mounts have no guard, so their users may hang if this process is killed: {error}"
                    );
                }
            }
        }
        guard.clone()
    }

    /// Reserves a dataset that is about to be mounted; `None` when it is mounted or being mounted.
    fn begin(&self, guid: u64) -> Option<Beginning<'_>> {
        let mut beginning = self
            .beginning
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if self.mounted(guid).is_some() || !beginning.insert(guid) {
            return None;
        }
        drop(beginning);
        Some(Beginning {
            beginning: &self.beginning,
            guid,
        })
    }

    fn locked(&self) -> MutexGuard<'_, Vec<Mounted>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns where a dataset is mounted.
    pub(crate) fn mounted(&self, guid: u64) -> Option<PathBuf> {
        self.locked()
            .iter()
            .find(|mount| mount.guid == guid && !mount.detached)
            .map(|mount| mount.point.clone())
    }

    /// Returns datasets and mount points in the order of mounting, without what was detached.
    pub(crate) fn attached(&self) -> Vec<(String, PathBuf)> {
        let list = self.locked();
        let attached = list.iter().filter(|mount| !mount.detached);
        attached
            .map(|mount| (mount.dataset.clone(), mount.point.clone()))
            .collect()
    }

    /// Returns datasets and mount points in the order of mounting, also of what was detached and is still in use.
    pub(crate) fn list(&self) -> Vec<(String, PathBuf)> {
        self.locked()
            .iter()
            .map(|mount| (mount.dataset.clone(), mount.point.clone()))
            .collect()
    }

    /// Returns guids, names and mount points of the datasets of a pool that are mounted, in the order of mounting.
    pub(crate) fn of_pool(&self, pool: &str) -> Vec<(u64, String, PathBuf)> {
        let list = self.locked();
        let of_pool = list
            .iter()
            .filter(|mount| mount.dataset.split('/').next() == Some(pool));
        of_pool
            .map(|mount| (mount.guid, mount.dataset.clone(), mount.point.clone()))
            .collect()
    }

    /// Mounts a file system.
    ///
    /// Must be called within a tokio runtime, which then carries the requests.
    pub(crate) async fn mount(
        &self,
        fs: FsHandle,
        dataset: &str,
        point: &Path,
        flags: MountFlags,
    ) -> Result<(), String> {
        let Some(_beginning) = self.begin(fs.guid()) else {
            return Err("filesystem already mounted".to_owned());
        };
        let wanted = point.to_owned();
        let prepared = paths::call(point, move || {
            paths::clear_dead(&wanted);
            std::fs::create_dir_all(&wanted)?;
            // OpenZFS: lib/libzfs/libzfs_mount.c, zfs_mount_at
            if flags.needs_empty && std::fs::read_dir(&wanted)?.next().is_some() {
                let why = format!("directory '{}' is not empty", wanted.display());
                return Err(io::Error::other(why));
            }
            std::fs::canonicalize(&wanted)
        });
        let point = prepared.await?.map_err(|error| error.to_string())?;
        let root = fs.root().await.map_err(|error| error.to_string())?;
        let guid = fs.guid();
        let runtime = tokio::runtime::Handle::current();
        let (watch, fs) = fs.watch();
        let locks = MountLocks::new(self.locks.clone());
        let shared = Arc::new(Shared::new(fs.clone(), root.id, flags, locks));
        let knows = Arc::downgrade(&shared);
        fs.watch_only(move |what| knows.upgrade().is_some_and(|shared| shared.knows(what)));
        let adapter = Adapter::new(shared.clone(), runtime.clone());
        let is_root = rustix::process::geteuid().is_root();
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let name = match flags.for_samba {
            true => samba_source(number),
            false => dataset.to_owned(),
        };
        let mut config = Config::default();
        // Others may look only where the kernel allows it: always for root.
        config.acl = if is_root {
            SessionACL::All
        } else {
            SessionACL::Owner
        };
        let threads = self.threads_of_another();
        config.n_threads = Some(threads);
        config.clone_fd = threads > 1;
        let (at, guard) = (point.clone(), self.guard());
        let begun = paths::call(&point, move || -> io::Result<_> {
            let session = attach::begin(adapter, &at, name, flags, config)?;
            let connection = paths::connection_at(&at);
            if let (Some(guard), Some(connection)) = (&guard, connection) {
                guard.add(connection);
            }
            Ok((session, connection, guard.zip(connection)))
        });
        let (mut session, connection, guarded) = begun.await?.map_err(|error| explain(&error))?;
        let kernel = session.notifier();
        shared.meet(session.notifier());
        let (over, locked) = (Arc::new(AtomicBool::new(false)), shared.clone());
        let ends = over.clone();
        std::thread::Builder::new()
            .name("fuse changes".to_owned())
            .spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    match watch.next(WATCH_PATIENCE) {
                        Ok(Some(event)) => {
                            shared.invalidate(&kernel, &event.invalidation, &runtime);
                        }
                        Ok(None) => {}
                        Err(()) => return,
                    }
                }
            })
            .map_err(|error| error.to_string())?;
        let unmounter = Arc::new(Mutex::new(session.unmount_callable()));
        self.locked().push(Mounted {
            number,
            guid,
            dataset: dataset.to_owned(),
            point: point.clone(),
            unmounter,
            connection,
            detached: false,
            overridden: Vec::new(),
        });
        let (list, ended, at) = (self.list.clone(), self.ended.clone(), point.clone());
        let run = move || {
            if let Err(error) = session.run() {
                tracing::warn!(target: MOUNT, "a mount ended: {error}");
                if connection.is_some() && paths::connection_at(&at) == connection {
                    let _ = rustix::mount::unmount(&at, rustix::mount::UnmountFlags::DETACH);
                }
            }
            ends.store(true, Ordering::Relaxed);
            locked.locks.end();
            if let Some((guard, connection)) = guarded {
                guard.ended(connection);
            }
            list.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .retain(|mount| mount.number != number);
            ended.send_modify(|count| *count += 1);
        };
        std::thread::Builder::new()
            .name(format!("fuse {dataset}"))
            .spawn(run)
            .map_err(|error| error.to_string())?;
        if flags.for_samba {
            let at = point.clone();
            let entered = paths::call(&point, move || enter_inner_root(&at)).await;
            if let Err(why) = entered.and_then(|entered| entered.map_err(|error| error.to_string()))
            {
                let _ = self.unmount_name(dataset, true).await;
                return Err(why);
            }
        }
        Ok(())
    }

    /// Unmounts the file system of a dataset; with `force` also when files are open in it.
    pub(crate) async fn unmount_name(&self, dataset: &str, force: bool) -> Result<(), String> {
        let number = self.take_away(dataset, force).await?;
        match tokio::time::timeout(DETACH_TIMEOUT, self.mount_ended(number)).await {
            Ok(()) => Ok(()),
            // A process may have its working directory there without end.
            Err(_) if force => {
                self.note_detached(&[number]);
                Ok(())
            }
            // Another mount hides it, or another mount namespace has it, too.
            Err(_) => Err("pool or dataset is busy".to_owned()),
        }
    }

    /// Ends the mounts of the datasets that `which` says, also busy ones, those below others first. They are waited for together, and not for
    /// ever: what is in use by a process or another mount namespace stays there.
    pub(crate) async fn unmount_all(&self, which: impl Fn(&str) -> bool) {
        let mut taken = Vec::new();
        for (dataset, _) in self.list().into_iter().rev() {
            if which(&dataset) {
                taken.extend(self.take_away(&dataset, true).await);
            }
        }
        let ended = taken.into_iter().map(|number| self.mount_ended(number));
        let _ = tokio::time::timeout(DETACH_TIMEOUT, join_all(ended)).await;
    }

    /// Takes a mount away from the tree of files, and returns its number: it ends when nothing uses it any more.
    async fn take_away(&self, dataset: &str, force: bool) -> Result<u64, String> {
        if crate::appliance::is_delegated() {
            return Err("permission denied".to_owned());
        }
        let found = {
            let list = self.locked();
            let of_dataset = list.iter().filter(|mount| mount.dataset == dataset);
            // One in the tree before those that were detached.
            let found = of_dataset.min_by_key(|mount| mount.detached);
            found.map(|mount| {
                let (at, unmounter) = (mount.point.clone(), mount.unmounter.clone());
                (mount.number, mount.connection, at, unmounter)
            })
        };
        let Some((number, connection, point, unmounter)) = found else {
            return Err("not currently mounted".to_owned());
        };
        let at = point.clone();
        let unmount = move || -> Result<(), String> {
            use rustix::mount::{UnmountFlags, unmount};
            // Without force a busy mount is refused, which the library's own way does not do.
            let flags = if force {
                UnmountFlags::DETACH
            } else {
                UnmountFlags::empty()
            };
            let busy = || Err("pool or dataset is busy".to_owned());
            // mount(8) may have mounted it at other places, too.
            let points = connection.map_or(vec![at], paths::points_of);
            for point in points {
                if connection.is_some() && paths::connection_at(&point) != connection {
                    // It would be the one over it that goes.
                    return busy();
                }
                match unmount(&point, flags) {
                    Ok(()) | Err(rustix::io::Errno::INVAL) => {}
                    Err(rustix::io::Errno::BUSY) => return busy(),
                    // Not root: the helper program does it.
                    Err(_) => {
                        let mut unmounter =
                            unmounter.lock().unwrap_or_else(PoisonError::into_inner);
                        unmounter.unmount().map_err(|error| error.to_string())?;
                    }
                }
            }
            Ok(())
        };
        paths::call(&point, unmount).await??;
        Ok(number)
    }

    /// Changes how a dataset is mounted.
    ///
    /// # Errors
    /// It is not mounted, or the kernel refuses.
    pub(crate) async fn remount(&self, guid: u64, flags: MountFlags) -> Result<(), String> {
        use rustix::mount::{MountFlags as Kernel, mount_remount};
        let point = self.mounted(guid).ok_or("not currently mounted")?;
        let is_root = rustix::process::geteuid().is_root();
        if !is_root {
            return Ok(());
        }
        let kernel = attach::kernel_flags(flags);
        // Of the mount point, and of the file system: FUSE refuses writes by the second.
        let at = point.clone();
        let change = move || {
            mount_remount(&at, kernel | Kernel::BIND, c"")
                .and_then(|()| mount_remount(&at, kernel, c""))
                .map_err(|error| error.to_string())
        };
        paths::call(&point, change).await?
    }

    /// Notes that a mount has properties of its own until it ends.
    pub(crate) fn override_properties(&self, guid: u64, properties: &[(Property, bool)]) {
        if let Some(mount) = self
            .locked()
            .iter_mut()
            .find(|mount| mount.guid == guid && !mount.detached)
        {
            for (property, on) in properties {
                mount.overridden.retain(|(known, _)| known != property);
                mount.overridden.push((*property, *on));
            }
        }
    }

    /// Returns the properties that a mount has otherwise than its dataset.
    pub(crate) fn overridden(&self, guid: u64) -> Vec<(Property, bool)> {
        let list = self.locked();
        let mount = list
            .iter()
            .find(|mount| mount.guid == guid && !mount.detached);
        mount.map_or_else(Vec::new, |mount| mount.overridden.clone())
    }

    /// Knows a mounted dataset by its new name.
    pub(crate) fn renamed(&self, guid: u64, dataset: &str) {
        let mut list = self.locked();
        for mount in list.iter_mut().filter(|mount| mount.guid == guid) {
            dataset.clone_into(&mut mount.dataset);
        }
    }

    /// Waits until the mounts have ended that were unmounted by others: umount(8) does not wait for the process that held it.
    pub(crate) async fn settle(&self) {
        let held: Vec<(u64, u32)> = {
            let list = self.locked();
            let attached = list.iter().filter(|mount| !mount.detached);
            let connected = attached.map(|mount| mount.connection.map(|c| (mount.number, c)));
            connected.flatten().collect()
        };
        if held.is_empty() {
            return;
        }
        let mounted = paths::connections();
        let gone = held
            .into_iter()
            .filter(|(_, connection)| !mounted.contains(connection));
        let gone: Vec<u64> = gone.map(|(number, _)| number).collect();
        let ended = gone.iter().map(|number| self.mount_ended(*number));
        if tokio::time::timeout(SETTLE_TIMEOUT, join_all(ended))
            .await
            .is_err()
        {
            // A process uses it, which may be without end.
            self.note_detached(&gone);
        }
    }

    /// Notes that mounts are nowhere in the tree of files any more.
    fn note_detached(&self, numbers: &[u64]) {
        let mut list = self.locked();
        for mount in list
            .iter_mut()
            .filter(|mount| numbers.contains(&mount.number))
        {
            mount.detached = true;
        }
    }

    /// Waits until a mount has ended.
    async fn mount_ended(&self, number: u64) {
        self.wait_while_held(|mount| mount.number == number).await;
    }

    /// Waits until a dataset's mounts have ended.
    pub(crate) async fn ended(&self, guid: u64) {
        self.wait_while_held(|mount| mount.guid == guid).await;
    }

    /// Waits until no mount is left that `which` says.
    async fn wait_while_held(&self, which: impl Fn(&Mounted) -> bool) {
        let is_held = || self.locked().iter().any(&which);
        let mut changes = self.ended.subscribe();
        while is_held() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Mounts the root directory of a mount of Samba's in place of the mount's root, see [`nodes`]. Takes a path.
fn enter_inner_root(point: &Path) -> io::Result<()> {
    use rustix::mount::{
        MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount,
    };
    let here = rustix::fs::CWD;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let root = open_tree(here, point.join(INNER_ROOT_NAME), flags)?;
    unmount(point, UnmountFlags::DETACH)?;
    move_mount(
        root,
        "",
        here,
        point,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )?;
    Ok(())
}

/// What the mount table calls a mount of Samba's. Samba makes the device number of a file's id of it, by adding up its characters, each
/// shifted by a number of bits that depends on its place: with five digits at the end no two come to the same.
fn samba_source(number: u64) -> String {
    format!("sanbox-smb-{:05}", number % 100_000)
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "FUSE is not available here (no /dev/fuse)".to_owned(),
        io::ErrorKind::PermissionDenied => {
            format!("this user may not mount here: {error}")
        }
        _ => error.to_string(),
    }
}
