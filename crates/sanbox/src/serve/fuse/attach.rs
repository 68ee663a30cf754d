//! Begins a session with the kernel on a mount of its own.
//!
//! As root the mount is made here, and the session knows nothing of it: the library unmounts its path once more when its session is over
//! (fuser 0.18, `mnt::is_mounted` has the wrong sign), which takes away whatever is mounted there then. Who is not root has the library
//! call its helper program; what a user of that kind mounts over another mount of its own may be lost with it.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use fuser::{Config, MountOption, Session};
use rustix::mount::{MountFlags as KernelFlags, UnmountFlags, mount, unmount};

use super::MountFlags;
use super::adapter::Adapter;

/// The kernel's device of all sessions.
const DEVICE: &str = "/dev/fuse";

/// Mounts at a path and begins to serve there. `source` is what the mount table calls it. Takes a path.
pub(super) fn begin(
    adapter: Adapter,
    at: &Path,
    source: String,
    flags: MountFlags,
    mut config: Config,
) -> io::Result<Session<Adapter>> {
    if !rustix::process::geteuid().is_root() {
        config.mount_options = options_of_a_user(source, flags);
        return Session::new(adapter, at, &config);
    }
    let mode = std::fs::metadata(at)?.mode();
    let device: OwnedFd = File::options().read(true).write(true).open(DEVICE)?.into();
    let options = format!(
        "fd={},rootmode={mode:o},user_id=0,group_id={},default_permissions,allow_other",
        device.as_raw_fd(),
        rustix::process::getgid().as_raw()
    );
    let options = CString::new(options)?;
    mount(
        source.as_str(),
        at,
        "fuse",
        kernel_flags(flags),
        Some(options.as_c_str()),
    )?;
    let begun = Session::from_fd(adapter, device, config.acl, config);
    if begun.is_err() {
        let _ = unmount(at, UnmountFlags::DETACH);
    }
    begun
}

/// What the helper program is asked for: it allows neither devices nor programs of other users.
fn options_of_a_user(source: String, flags: MountFlags) -> Vec<MountOption> {
    vec![
        MountOption::FSName(source),
        MountOption::Subtype("zfs".to_owned()),
        MountOption::DefaultPermissions,
        if flags.readonly {
            MountOption::RO
        } else {
            MountOption::RW
        },
        MountOption::NoDev,
        MountOption::NoSuid,
        if flags.no_exec {
            MountOption::NoExec
        } else {
            MountOption::Exec
        },
    ]
}

/// The kernel's flags of a mount.
pub(super) fn kernel_flags(flags: MountFlags) -> KernelFlags {
    let mut kernel = KernelFlags::empty();
    kernel.set(KernelFlags::RDONLY, flags.readonly);
    kernel.set(KernelFlags::NODEV, flags.no_devices);
    kernel.set(KernelFlags::NOSUID, flags.no_setuid);
    kernel.set(KernelFlags::NOEXEC, flags.no_exec);
    kernel
}
