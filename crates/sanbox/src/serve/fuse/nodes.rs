//! What the kernel knows of a mount: files by number, the snapshots among them, and the names it found them by; and having
//! it forget what was changed by another way.
//!
//! A file has the number of its object; files of snapshots have a number for the snapshot in the upper 16 bits, which
//! lasts as long as the kernel knows a file of it.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use engine::{
    Attr, CONTROL_SHADOW, CONTROL_SNAPSHOTS, Cred, FileId, FsError, FsHandle, Invalidation,
    ListLimit, Listing, is_control,
};
use fuser::{FileAttr, INodeNo, Notifier};

use super::convert::{device_out, kind, root, system_time};
use super::locks::MountLocks;
use super::real_names::RealNames;
use super::{Lists, MountFlags};

/// The kernel's number for the root of the mount: the root directory, whatever its object number is.
const ROOT: u64 = 1;
/// The kernel's number for the root directory of a mount of Samba's, which is one below the root of the mount: Linux makes a mount's root
/// before it knows that lists are cached, and from 6.18.42 on (6.6.148, 6.12.101) asks for the root's with each path that leads through it. No
/// object has this number, nor any directory of `.zfs`.
/// Linux: fs/fuse/inode.c, fuse_init_inode; fs/posix_acl.c, __forget_cached_acl
const INNER_ROOT: u64 = 0xfffe_ffff_ffff;
/// The name of that directory.
pub(super) const INNER_ROOT_NAME: &str = "root";
/// Bits of an object number.
const OBJECT_BITS: u32 = 48;
/// Entries fetched for one directory request, at least and at most.
const ENTRIES_MIN: usize = 16;
const ENTRIES_MAX: usize = 1024;
/// Names remembered of one file: what the kernel has of further ones it trusts for a second.
const NAMES_MAX: usize = 4;

/// How many entries of a directory one answer of the kernel's size holds, from what the last ones held: what is fetched and does not
/// fit is fetched again.
struct Fit(AtomicUsize);

impl Fit {
    fn new(entries: usize) -> Self {
        Self(AtomicUsize::new(entries))
    }

    fn entries(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes note that so many of the fetched entries fitted.
    fn note(&self, fitted: usize, fetched: usize) {
        let entries = if fitted < fetched {
            fitted + fitted / 8
        } else if fetched >= self.entries() {
            // There may be room for more.
            fetched * 2
        } else {
            return;
        };
        let entries = entries.clamp(ENTRIES_MIN, ENTRIES_MAX);
        self.0.store(entries, Ordering::Relaxed);
    }
}

/// A file system that files of a mount lie in: the one mounted (view 0) or one of its snapshots.
#[derive(Clone)]
pub(super) struct MountedView {
    pub(super) fs: FsHandle,
    pub(super) view: u16,
}

/// A file the kernel knows.
struct Node {
    id: FileId,
    view: u16,
    lookups: u64,
    /// Directories and the names in them, the newest last.
    names: Vec<(u64, Vec<u8>)>,
}

/// A snapshot with files that the kernel knows.
struct View {
    fs: FsHandle,
    nodes: usize,
}

#[derive(Default)]
struct Known {
    nodes: HashMap<u64, Node>,
    views: BTreeMap<u16, View>,
}

/// See the module.
pub(super) struct Shared {
    fs: FsHandle,
    /// Another one after a whole stream was received in the file system's place (`zfs receive -F`).
    root: Mutex<FileId>,
    /// The kernel's number for it.
    root_number: u64,
    /// Which access control lists the mount knows.
    pub(super) lists: Lists,
    /// Samba uses the mount. The space that a file takes is told by its size, and not as it is, which changes once more when what was
    /// written reaches the disk: a client that comes back after its connection broke gets the files that it had open only where all is
    /// as it was. Names are told without regard to case, see [`super::real_names`].
    pub(super) for_samba: bool,
    pub(super) real_names: RealNames,
    /// What is locked through the mount.
    pub(super) locks: MountLocks,
    /// The kernel, once it is there.
    kernel: OnceLock<Notifier>,
    known: Mutex<Known>,
    /// Entries of an answer with their files' attributes, and without.
    fit: [Fit; 2],
}

impl Shared {
    pub(super) fn new(fs: FsHandle, root: FileId, flags: MountFlags, locks: MountLocks) -> Self {
        Self {
            fs,
            root: Mutex::new(root),
            root_number: if flags.for_samba { INNER_ROOT } else { ROOT },
            lists: flags.lists,
            for_samba: flags.for_samba,
            real_names: RealNames::new(flags.for_samba),
            locks,
            kernel: OnceLock::new(),
            known: Mutex::default(),
            fit: [Fit::new(192), Fit::new(512)],
        }
    }

    /// Takes note of the kernel this mount is for.
    pub(super) fn meet(&self, kernel: Notifier) {
        let _ = self.kernel.set(kernel);
    }

    /// Has the kernel forget the attributes of a file: a request changed more of them than it knows.
    pub(super) fn changed(&self, ino: u64) {
        if let Some(kernel) = self.kernel.get() {
            // It may have forgotten by itself.
            let _ = kernel.inval_inode(INodeNo(ino), -1, 0);
        }
    }

    fn root(&self) -> FileId {
        *self.root.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds the file with a number of the kernel's.
    pub(super) fn at(&self, ino: u64) -> Result<(MountedView, FileId), FsError> {
        let here = |id| {
            let fs = self.fs.clone();
            Ok((MountedView { fs, view: 0 }, id))
        };
        if ino == self.root_number || ino == ROOT {
            return here(self.root());
        }
        let known = self.known();
        let node = known.nodes.get(&ino).ok_or(FsError::Stale)?;
        match known.views.get(&node.view) {
            _ if node.view == 0 => here(node.id),
            Some(view) => {
                let mounted = MountedView {
                    fs: view.fs.clone(),
                    view: node.view,
                };
                Ok((mounted, node.id))
            }
            None => Err(FsError::Stale),
        }
    }

    /// The kernel's number for an object.
    pub(super) fn object_number(&self, view: u16, object: u64) -> u64 {
        if view == 0 && object == self.root().object {
            self.root_number
        } else {
            u64::from(view) << OBJECT_BITS | object
        }
    }

    /// Finds a name in a directory.
    pub(super) async fn find(
        &self,
        dir: u64,
        name: &[u8],
        cred: &Cred,
    ) -> Result<(MountedView, Attr), FsError> {
        let (mounted, id) = self.at(dir)?;
        if dir == ROOT && dir != self.root_number {
            if name != INNER_ROOT_NAME.as_bytes() {
                return Err(FsError::NotFound);
            }
            let attr = mounted.fs.getattr(id).await?;
            return Ok((mounted, attr));
        }
        let found = mounted.fs.find(id, name, cred).await?;
        let mounted = match found.elsewhere {
            None => mounted,
            Some(fs) => MountedView {
                view: if fs.head().is_some() {
                    self.known().view(&fs)?
                } else {
                    0
                },
                fs,
            },
        };
        Ok((mounted, found.attr))
    }

    /// Lists a directory from a cookie on, as much as one answer holds.
    pub(super) async fn list(
        &self,
        ino: u64,
        offset: u64,
        attrs: bool,
        cred: &Cred,
    ) -> Result<(MountedView, Listing), FsError> {
        let limit = ListLimit {
            entries: self.fit(attrs).entries(),
            bytes: usize::MAX,
            entry_overhead_bytes: 0,
            attrs,
        };
        let (mounted, id) = self.at(ino)?;
        let listing = mounted.fs.readdir(id, offset, limit, cred).await?;
        Ok((mounted, listing))
    }

    fn fit(&self, attrs: bool) -> &Fit {
        let [with, without] = &self.fit;
        if attrs { with } else { without }
    }

    /// Takes note that an answer held so many of the entries that were listed for it.
    pub(super) fn fitted(&self, attrs: bool, entries: usize, listed: usize) {
        self.fit(attrs).note(entries, listed);
    }

    /// Counts one more use of a file by the kernel, found by a name; returns its number.
    pub(super) fn remember(
        &self,
        mounted: &MountedView,
        id: FileId,
        dir: u64,
        name: &[u8],
    ) -> Result<u64, FsError> {
        let ino = self.object_number(mounted.view, id.object);
        if ino == self.root_number {
            return Ok(ino);
        }
        let mut known = self.known();
        // Another file may have had it meanwhile.
        let view = match mounted.view {
            0 => 0,
            _ => known.view(&mounted.fs)?,
        };
        let ino = self.object_number(view, id.object);
        let mut added = false;
        let node = known.nodes.entry(ino).or_insert_with(|| {
            added = true;
            Node {
                id,
                view,
                lookups: 0,
                names: Vec::new(),
            }
        });
        // The number was reused by a new file: what the kernel holds of the old one is stale.
        node.id = id;
        node.lookups += 1;
        if !(is_control(id) && dir == self.root_number) {
            node.add_name(dir, name);
        }
        if added && let Some(view) = known.views.get_mut(&view) {
            view.nodes += 1;
        }
        Ok(ino)
    }

    /// Takes note of the new name of a file that was renamed.
    pub(super) async fn renamed(&self, dir: u64, name: &[u8]) {
        let Ok((mounted, attr)) = self.find(dir, name, &root()).await else {
            return;
        };
        let ino = self.object_number(mounted.view, attr.id.object);
        if let Some(node) = self.known().nodes.get_mut(&ino) {
            node.add_name(dir, name);
        }
    }

    pub(super) fn forget(&self, ino: u64, count: u64) {
        let mut known = self.known();
        let Some(node) = known.nodes.get_mut(&ino) else {
            return;
        };
        node.lookups = node.lookups.saturating_sub(count);
        if node.lookups > 0 {
            return;
        }
        let view = node.view;
        known.nodes.remove(&ino);
        if let Some(entry) = known.views.get_mut(&view) {
            entry.nodes -= 1;
            if entry.nodes == 0 {
                known.views.remove(&view);
            }
        }
    }

    pub(super) fn attr(&self, ino: u64, attr: &Attr) -> FileAttr {
        let space = if self.for_samba { attr.size } else { attr.used };
        FileAttr {
            ino: INodeNo(ino),
            size: attr.size,
            blocks: space.div_ceil(512),
            atime: system_time(attr.atime),
            mtime: system_time(attr.mtime),
            ctime: system_time(attr.ctime),
            crtime: system_time(attr.crtime),
            kind: kind(attr.file_type),
            perm: u16::try_from(attr.mode & 0o7777).unwrap_or(0),
            nlink: u32::try_from(attr.links).unwrap_or(u32::MAX),
            uid: attr.uid,
            gid: attr.gid,
            rdev: device_out(attr.rdev),
            blksize: attr.block_size,
            flags: 0,
        }
    }

    /// Whether the kernel may have to forget something.
    pub(super) fn knows(&self, what: &Invalidation) -> bool {
        match what {
            Invalidation::Content(id, ..)
            | Invalidation::Attributes(id)
            | Invalidation::Name(id, _) => self.known_number(id).is_some(),
            Invalidation::Snapshots | Invalidation::Root | Invalidation::Everything => true,
        }
    }

    /// The kernel's number of a file that it knows.
    fn known_number(&self, id: &FileId) -> Option<INodeNo> {
        let ino = self.object_number(0, id.object);
        let known = ino == self.root_number || self.known().nodes.contains_key(&ino);
        known.then_some(INodeNo(ino))
    }

    /// Has the kernel forget what is no longer so. Called on a thread that serves no requests: the kernel may hold locks
    /// here that requests under way release.
    pub(super) fn invalidate(
        &self,
        kernel: &Notifier,
        what: &Invalidation,
        runtime: &tokio::runtime::Handle,
    ) {
        let number = |id: &FileId| self.known_number(id);
        // The kernel may have forgotten by itself, or the mount be gone: neither is a failure.
        match what {
            Invalidation::Content(id, from, length) => {
                if let Some(ino) = number(id) {
                    let from = i64::try_from(*from).unwrap_or(0);
                    // No length means to the end.
                    let length = length.map_or(0, |length| i64::try_from(length).unwrap_or(0));
                    let _ = kernel.inval_inode(ino, from, length);
                }
            }
            Invalidation::Attributes(id) => {
                if let Some(ino) = number(id) {
                    let _ = kernel.inval_inode(ino, -1, 0);
                }
            }
            Invalidation::Name(dir, name) => {
                if let Some(dir) = number(dir) {
                    let _ = kernel.inval_entry(dir, OsStr::from_bytes(name));
                }
            }
            Invalidation::Snapshots => {
                let dirs = [
                    self.snapshots(),
                    self.object_number(0, CONTROL_SHADOW.object),
                ];
                self.check_names(kernel, runtime, |dir| dirs.contains(&dir));
                for dir in dirs {
                    let _ = kernel.inval_inode(INodeNo(dir), -1, 0);
                }
            }
            Invalidation::Root => {
                let _ = kernel.inval_inode(INodeNo(self.root_number), -1, 0);
            }
            Invalidation::Everything => {
                // A file system that is going away has none: requests say so.
                if let Ok(root) = runtime.block_on(self.fs.root()) {
                    *self.root.lock().unwrap_or_else(PoisonError::into_inner) = root.id;
                }
                let files: Vec<u64> = {
                    let known = self.known();
                    let own = known.nodes.iter().filter(|(_, node)| node.view == 0);
                    own.map(|(ino, _)| *ino).collect()
                };
                for ino in files.into_iter().chain([self.root_number]) {
                    let _ = kernel.inval_inode(INodeNo(ino), 0, 0);
                }
                self.check_names(kernel, runtime, |_| true);
            }
        }
    }

    /// Looks again for every name known in some directories. Those that still lead to the same file stay: other file systems
    /// may be mounted on them, and would go with the name.
    fn check_names(
        &self,
        kernel: &Notifier,
        runtime: &tokio::runtime::Handle,
        wanted: impl Fn(u64) -> bool,
    ) {
        let names: Vec<(u64, Vec<u8>, FileId, u16)> = {
            let known = self.known();
            let nodes = known.nodes.values();
            nodes
                .filter(|node| node.view == 0 || wanted(self.snapshots()))
                .flat_map(|node| {
                    let all = node.names.iter();
                    all.map(|(dir, name)| (*dir, name.clone(), node.id, node.view))
                })
                .filter(|(dir, ..)| wanted(*dir))
                .collect()
        };
        for (dir, name, id, view) in names {
            let found = runtime.block_on(self.find(dir, &name, &root()));
            let same = found.is_ok_and(|(mounted, attr)| attr.id == id && mounted.view == view);
            if !same {
                let _ = kernel.inval_entry(INodeNo(dir), OsStr::from_bytes(&name));
            }
        }
    }

    fn snapshots(&self) -> u64 {
        self.object_number(0, CONTROL_SNAPSHOTS.object)
    }
}

impl Known {
    /// The number of a snapshot's view, made if need be.
    fn view(&mut self, fs: &FsHandle) -> Result<u16, FsError> {
        // The guid's upper bits, so that numbers of files are mostly the same after a restart.
        let first = u16::try_from(fs.guid() >> OBJECT_BITS).unwrap_or(1).max(1);
        let mut number = first;
        loop {
            match self.views.get(&number) {
                Some(view) if view.fs.guid() == fs.guid() => return Ok(number),
                Some(_) => number = number.checked_add(1).unwrap_or(1),
                None => break,
            }
            if number == first {
                return Err(FsError::Busy);
            }
        }
        // Found and not remembered.
        self.views.retain(|_, view| view.nodes > 0);
        let view = View {
            fs: fs.clone(),
            nodes: 0,
        };
        self.views.insert(number, view);
        Ok(number)
    }
}

impl Node {
    fn add_name(&mut self, dir: u64, name: &[u8]) {
        let same = |known: &(u64, Vec<u8>)| known.0 == dir && known.1 == name;
        if self.names.iter().any(same) {
            return;
        }
        if self.names.len() == NAMES_MAX {
            self.names.remove(0);
        }
        self.names.push((dir, name.to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_entries_are_fetched_as_fit() {
        let fit = Fit::new(512);
        fit.note(24, 512);
        assert_eq!(fit.entries(), 27);
        // The end of a directory says nothing.
        fit.note(3, 3);
        assert_eq!(fit.entries(), 27);
        for _ in 0..9 {
            fit.note(fit.entries(), fit.entries());
        }
        assert_eq!(fit.entries(), ENTRIES_MAX);
        fit.note(0, ENTRIES_MAX);
        assert_eq!(fit.entries(), ENTRIES_MIN);
    }
}
