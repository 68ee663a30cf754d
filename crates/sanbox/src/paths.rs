//! System calls on paths.
//!
//! A path may lead through a mount of this very process: below the mount point of another dataset, or wherever a user points
//! to. Such a call (stat, mkdir, open, mount, umount, readdir) ends when the mount has answered, so a thread that answers
//! anything must not make it: it is made on a thread of its own, and waited for no longer than a deadline. What is answered
//! meanwhile does not depend on it. Files of the kernel (`/proc`, `/sys`) are on no mount of ours and may be read anywhere.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};
use tokio::sync::{Semaphore, oneshot};

/// How long a call is waited for: much longer than a busy pool takes to answer.
const DEADLINE: Duration = Duration::from_secs(60);
/// Calls at once, those included that were given up and have not ended.
const CALLS_MAX: usize = 64;

static CALLS: Semaphore = Semaphore::const_new(CALLS_MAX);

/// Makes a call that takes a path, on a thread of its own, and waits a minute for it at most.
///
/// What a call returns after the deadline is dropped on its thread.
///
/// # Errors
/// The path did not answer in time, too many others do not, or there is no thread left.
pub(crate) async fn call<T: Send + 'static>(
    path: &Path,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    call_within(DEADLINE, path, call).await
}

/// As [`call`], with a deadline.
///
/// # Errors
/// As of [`call`].
pub(crate) async fn call_within<T: Send + 'static>(
    deadline: Duration,
    path: &Path,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let late = |_| format!("{}: no answer within {deadline:?}", path.display());
    let made = async {
        let permit = CALLS.acquire().await.expect("never closed");
        let (sender, outcome) = oneshot::channel();
        std::thread::Builder::new()
            .name("path call".to_owned())
            .spawn(move || {
                let _ = sender.send(call());
                drop(permit);
            })
            .map_err(|error| error.to_string())?;
        let gone = || format!("{}: the call ended in a panic", path.display());
        outcome.await.map_err(|_| gone())
    };
    tokio::time::timeout(deadline, made).await.map_err(late)?
}

/// A mount of this process's mount table, as far as it is of interest here.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// The minor number of its device; the name of a FUSE file system's connection.
    pub(crate) minor: u32,
    pub(crate) point: PathBuf,
    /// Such as `fuse`.
    pub(crate) file_system: String,
    /// What is mounted: for ours, the dataset.
    pub(crate) source: String,
}

/// Returns the mount table, outer mounts before those inside them. Asks no file system anything.
pub(crate) fn mount_table() -> Vec<MountEntry> {
    let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    text.split(|byte| *byte == b'\n')
        .filter_map(mount_entry)
        .collect()
}

/// Reads a line of `mountinfo`: `36 35 98:0 /root /point options [tag...] - type source options`. man 5 proc_pid_mountinfo.
fn mount_entry(line: &[u8]) -> Option<MountEntry> {
    let mut words = line.split(|byte| *byte == b' ');
    let device = String::from_utf8_lossy(words.nth(2)?).into_owned();
    let point = unescape(words.nth(1)?);
    let mut rest = words.skip_while(|word| *word != b"-").skip(1);
    let (file_system, source) = (rest.next()?, rest.next()?);
    Some(MountEntry {
        minor: device.split_once(':')?.1.parse().ok()?,
        point: PathBuf::from(point),
        file_system: String::from_utf8_lossy(file_system).into_owned(),
        source: unescape(source).to_string_lossy().into_owned(),
    })
}

/// Resolves the octal escapes of the mount table (blanks, newlines, backslashes).
fn unescape(word: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, others)) = rest.split_first() {
        let digits = (*first == b'\\').then(|| others.get(..3)).flatten();
        let octal = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = others.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    OsString::from_vec(bytes)
}

/// Returns the FUSE connection mounted last at a path.
pub(crate) fn connection_at(point: &Path) -> Option<u32> {
    let mut table = mount_table().into_iter().rev();
    let found = table.find(|mount| {
        mount.point.as_os_str().as_bytes() == point.as_os_str().as_bytes()
            && mount.file_system.starts_with("fuse")
    });
    found.map(|mount| mount.minor)
}

/// Returns where a FUSE connection is mounted, the last place first.
pub(crate) fn points_of(connection: u32) -> Vec<PathBuf> {
    let table = mount_table().into_iter().rev();
    let own =
        table.filter(|mount| mount.minor == connection && mount.file_system.starts_with("fuse"));
    own.map(|mount| mount.point).collect()
}

/// Returns the FUSE connections that are mounted anywhere here.
pub(crate) fn connections() -> BTreeSet<u32> {
    let fuse = mount_table()
        .into_iter()
        .filter(|mount| mount.file_system.starts_with("fuse"));
    fuse.map(|mount| mount.minor).collect()
}

/// Clears away a mount whose process is gone; leaves any other path as it is. Takes a path.
pub(crate) fn clear_dead(point: &Path) {
    // Several may lie on each other. A stat may be answered from the kernel's cache, a statfs never is.
    for _ in 0..16 {
        if rustix::fs::statfs(point).err() != Some(rustix::io::Errno::NOTCONN) {
            return;
        }
        let detached = unmount(point, UnmountFlags::DETACH).is_ok() || {
            let helper = std::process::Command::new("fusermount3")
                .arg("-uz")
                .arg(point)
                .status();
            helper.is_ok_and(|status| status.success())
        };
        if !detached {
            return;
        }
    }
}

/// Clears away what a killed process left mounted: file systems of these pools, and the files of volumes at `volumes`. What
/// another process serves stays. Takes paths.
pub(crate) fn clear_stale(pools: &[String], volumes: &Path) {
    for mount in mount_table() {
        let pool = crate::names::pool_part(&mount.source);
        let is_ours = pools.iter().any(|own| own == pool) || mount.point == volumes;
        // `fuse`, or `fuse.zfs` where a helper program mounted it.
        if is_ours && mount.file_system.starts_with("fuse") {
            clear_dead(&mount.point);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_path_that_does_not_answer_is_given_up_at_the_deadline() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let deadline = Duration::from_millis(50);
        let stuck = call_within(deadline, Path::new("/stuck"), move || held.recv()).await;
        assert_eq!(
            stuck.expect_err("late"),
            "/stuck: no answer within 50ms".to_owned()
        );
        // Others are made meanwhile.
        assert_eq!(call(Path::new("/"), || 7).await, Ok(7));
        drop(release);
    }

    #[test]
    fn the_mount_table_is_read() {
        let line =
            br"512 29 0:57 / /srv/a\040b rw,nosuid shared:4 - fuse.zfs tank/a\134b rw,user_id=0";
        let expect = MountEntry {
            minor: 57,
            point: PathBuf::from("/srv/a b"),
            file_system: "fuse.zfs".to_owned(),
            source: "tank/a\\b".to_owned(),
        };
        assert_eq!(mount_entry(line), Some(expect));
        for bad in [&b""[..], b"512 29 0:57 / /srv rw", b"512 29 x / / - a b"] {
            assert_eq!(mount_entry(bad), None);
        }
        assert!(
            mount_table()
                .iter()
                .any(|mount| mount.point == Path::new("/"))
        );
    }
}
