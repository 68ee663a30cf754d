//! The guard of the mounts: a process beside this one that ends its FUSE connections when it is killed.
//!
//! A thread that waits in the kernel for a mount to answer cannot be killed once the request has been read, and while it
//! waits it keeps the descriptors open by which its own process would have answered: without help from outside, a process
//! that is killed while one of its threads waits for one of its mounts stays for ever, and all users of the mount with it.
//! Invalidations wait like that for locks of requests under way, and so does whatever opens a path.
//! The kernel signals the guard when the thread that started it dies; the guard then aborts the connections in its list.
// Linux: fs/fuse/dev.c, request_wait_answer; fs/fuse/dir.c, fuse_reverse_inval_entry; fs/fuse/control.c (abort).

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Sender};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::signal::unix::{SignalKind, signal};

/// The word that makes the program the guard of the process whose number follows.
pub(crate) const COMMAND: &str = "guard-mounts-of";

/// The connections that the guard aborts.
pub(crate) struct Guard {
    changes: Sender<Change>,
}

enum Change {
    Added(u32),
    Ended(u32),
}

impl Guard {
    /// Starts the guard.
    ///
    /// # Errors
    /// The machine has no thread or process left.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (changes, received) = mpsc::channel();
        let (started, outcome) = mpsc::channel();
        // The guard hears of the death of the thread that started it, so this one stays, and does nothing that could keep it.
        std::thread::Builder::new()
            .name("mount guard".to_owned())
            .spawn(move || {
                let guard = Command::new("/proc/self/exe")
                    .arg0("sanbox")
                    .args([COMMAND, &std::process::id().to_string()])
                    .current_dir("/")
                    .stdin(Stdio::piped())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    // ^C at a terminal is not for it.
                    .process_group(0)
                    .spawn();
                let mut guard = match guard {
                    Ok(guard) => guard,
                    Err(error) => return drop(started.send(Err(error))),
                };
                let _ = started.send(Ok(()));
                if let Some(mut changes) = guard.stdin.take() {
                    for change in received {
                        // A guard that was killed is missed only if this process is killed, too.
                        let _ = match change {
                            Change::Added(connection) => writeln!(changes, "+{connection}"),
                            Change::Ended(connection) => writeln!(changes, "-{connection}"),
                        };
                    }
                }
                let _ = guard.wait();
            })?;
        outcome.recv().map_err(std::io::Error::other)??;
        Ok(Self { changes })
    }

    /// Has a connection aborted when this process dies.
    pub(crate) fn add(&self, connection: u32) {
        let _ = self.changes.send(Change::Added(connection));
    }

    /// A connection has ended by itself.
    pub(crate) fn ended(&self, connection: u32) {
        let _ = self.changes.send(Change::Ended(connection));
    }
}

/// Runs the guard of a process, until that process has gone.
pub(crate) fn main(process: &str) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let watched = process.parse().ok().and_then(Pid::from_raw);
    match (runtime, watched) {
        (Ok(runtime), Some(process)) => match runtime.block_on(watch(process)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        _ => ExitCode::FAILURE,
    }
}

async fn watch(process: Pid) -> std::io::Result<()> {
    let mut death = signal(SignalKind::user_defined1())?;
    // A service manager asks every process of a service to end; this one ends after the other.
    let _ended_last = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
        signal(SignalKind::hangup())?,
    );
    set_parent_process_death_signal(Some(Signal::USR1))?;
    let mut connections = BTreeSet::new();
    let mut changes = BufReader::new(tokio::net::unix::pipe::Receiver::from_owned_fd(
        rustix::io::dup(std::io::stdin())?,
    )?)
    .lines();
    // A parent that died before it was asked for gives no signal.
    while getppid() == Some(process) {
        let line = tokio::select! {
            // What was written before the end comes first.
            biased;
            line = changes.next_line() => line?,
            _ = death.recv() => None,
        };
        let Some(line) = line else { break };
        match line.split_at_checked(1) {
            Some(("+", number)) => drop(number.parse().map(|number| connections.insert(number))),
            Some(("-", number)) => {
                drop(
                    number
                        .parse()
                        .map(|number: u32| connections.remove(&number)),
                );
            }
            _ => {}
        }
    }
    let control = control();
    for connection in connections {
        abort(control.as_ref(), connection);
    }
    Ok(())
}

/// A mount of FUSE's control file system that no other process sees; for processes that may mount.
fn control() -> Option<OwnedFd> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
    fsconfig_create(&context).ok()?;
    let none = MountAttrFlags::empty();
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, none).ok()
}

fn abort(control: Option<&OwnedFd>, connection: u32) {
    let (flags, mode) = (OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    let own = control.map(|control| openat(control, format!("{connection}/abort"), flags, mode));
    let file = match own {
        Some(Ok(file)) => Ok(file),
        _ => {
            let path = format!("/sys/fs/fuse/connections/{connection}/abort");
            openat(CWD, path, flags, mode)
        }
    };
    if let Ok(file) = file {
        let _ = rustix::io::write(file, b"1");
    }
}
