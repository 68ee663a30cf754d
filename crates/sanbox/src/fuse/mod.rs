//! The FUSE adapter: a dataset as a directory of this machine.
//!
//! Each request of the kernel becomes one call on the engine's door and is answered when that call is; requests run
//! concurrently. The kernel checks permissions by the attributes it is given (`default_permissions`), and the engine once
//! more. Names and attributes are not kept by the kernel between calls, since NFS clients change the same files.
//!
//! An inode number of the kernel is the file's object number, but for the root directory, which the kernel calls 1 (the
//! object of that number, the master node, is no file).

mod convert;
mod nodes;
mod operations;

use anyhow::{Context as _, Result};
use engine::FsHandle;
use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use nodes::Nodes;
use operations::Shared;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// How a dataset is mounted; from its properties and the command line.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MountOptions {
    /// Nothing may be written.
    pub(crate) readonly: bool,
    /// Device nodes are honoured (`devices`).
    pub(crate) devices: bool,
    /// Set-id bits are honoured (`setuid`).
    pub(crate) setuid: bool,
    /// Programs may run (`exec`).
    pub(crate) exec: bool,
    /// Reading updates access times (`atime`).
    pub(crate) atime: bool,
}

/// A mounted dataset. Dropping it unmounts.
pub(crate) struct Mounted {
    directory: PathBuf,
    session: BackgroundSession,
}

/// The file system as FUSE sees it.
struct Adapter {
    fs: FsHandle,
    tasks: tokio::runtime::Handle,
    nodes: Mutex<Nodes>,
}

/// Mounts a dataset on a directory, which must exist. Requests are served by tasks on `tasks`.
///
/// # Errors
/// When the root directory cannot be read, or the kernel refuses the mount.
pub(crate) async fn mount(
    fs: FsHandle,
    tasks: tokio::runtime::Handle,
    dataset: &str,
    directory: &Path,
    options: MountOptions,
) -> Result<Mounted> {
    let root = fs
        .root()
        .await
        .with_context(|| format!("read the root of {dataset}"))?;
    let either = |yes, this, that| if yes { this } else { that };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(dataset.to_owned()),
        MountOption::Subtype("sanbox".to_owned()),
        MountOption::DefaultPermissions,
        either(options.readonly, MountOption::RO, MountOption::RW),
        either(options.devices, MountOption::Dev, MountOption::NoDev),
        either(options.setuid, MountOption::Suid, MountOption::NoSuid),
        either(options.exec, MountOption::Exec, MountOption::NoExec),
        either(options.atime, MountOption::Atime, MountOption::NoAtime),
    ];
    // Others may look only where the kernel allows it: always for root, else if /etc/fuse.conf says so.
    config.acl = if rustix::process::geteuid().is_root() {
        SessionACL::All
    } else {
        SessionACL::Owner
    };
    config.n_threads = Some(2);
    config.clone_fd = true;
    let adapter = Adapter {
        fs,
        tasks,
        nodes: Mutex::new(Nodes::new(root.id)),
    };
    let session = fuser::spawn_mount(Shared(Arc::new(adapter)), directory, &config)
        .with_context(|| format!("mount on {}", directory.display()))?;
    Ok(Mounted {
        directory: directory.to_path_buf(),
        session,
    })
}

impl Mounted {
    /// Returns where it is mounted.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns whether somebody unmounted it from outside.
    pub(crate) fn is_over(&self) -> bool {
        self.session.guard.is_finished()
    }

    /// Unmounts, and waits for the last request.
    ///
    /// # Errors
    /// When the file system is in use.
    pub(crate) fn unmount(self) -> Result<()> {
        let Self { directory, session } = self;
        session
            .umount_and_join()
            .with_context(|| format!("unmount {}", directory.display()))
    }
}
