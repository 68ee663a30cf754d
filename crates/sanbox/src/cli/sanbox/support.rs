//! `sanbox support`: what a helper from elsewhere wants to see, in one archive: the output of commands that only look.
//!
//! No file of a dataset, no password, key or secret is in it; names of datasets, hosts and users are. A command that does not answer, as one that
//! waits for a disk that hangs, is told of as such in its place, and holds up the others no longer than its deadline.

use std::time::Duration;

use engine::Timestamp;
use manage::database::seconds_since_epoch;
use manage::state::SUPPORT_BUNDLE;
use tokio::sync::mpsc;

use super::tar::{self, Entry, EntryType};
use crate::cli::format::nice_bytes;
use crate::cli::out::Out;
use crate::cli::{self, Outcome, Session};

/// How long a command may take.
const PART_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of a command's output that are kept: the end.
const PART_BYTES_MAX: usize = 1 << 20;
/// Chunks of output on their way.
const CHUNKS_MAX: usize = 16;

/// The files of the archive with the commands that they are the output of.
const PARTS: &[(&str, &str, &[&str])] = &[
    ("version", "zpool", &["version"]),
    ("doctor", "sanbox", &["doctor"]),
    ("why", "sanbox", &["why"]),
    ("zpool-status", "zpool", &["status", "-v", "-s", "-t", "-i"]),
    ("zpool-list", "zpool", &["list", "-v"]),
    ("zpool-get", "zpool", &["get", "all"]),
    ("zpool-iostat", "zpool", &["iostat", "-v", "-l"]),
    ("zpool-events", "zpool", &["events", "-v"]),
    ("zpool-history", "zpool", &["history", "-l"]),
    ("zfs-list", "zfs", &["list", "-o", "space"]),
    (
        "zfs-get",
        "zfs",
        &["get", "-r", "-s", "local,received", "all"],
    ),
    ("alerts", "sanbox", &["alert", "list"]),
    ("checks", "sanbox", &["checks"]),
    ("jobs", "sanbox", &["job", "list", "-n", "1000"]),
    ("policies", "sanbox", &["policy", "show"]),
    ("replication", "sanbox", &["replication", "list"]),
    ("targets", "sanbox", &["target", "show"]),
    ("initiators", "sanbox", &["target", "sessions"]),
    ("nfs", "sanbox", &["nfsstat"]),
    ("smb", "sanbox", &["smb", "status"]),
    ("cache", "sanbox", &["arcstat", "-a"]),
    ("log-devices", "sanbox", &["zilstat", "-w"]),
    ("top", "sanbox", &["top", "-b"]),
    ("limits", "sanbox", &["tune"]),
    ("log-levels", "sanbox", &["log"]),
];

pub(super) async fn run(session: &Session) -> Outcome {
    let began = seconds_since_epoch();
    let mut archive = Vec::new();
    let settings = super::config::text(session).await;
    let settings = settings.unwrap_or_else(|_| "the settings cannot be read\n".to_owned());
    add(&mut archive, "settings.toml", settings.as_bytes(), began);
    add(&mut archive, "machine.txt", machine().as_bytes(), began);
    for (name, tool, words) in PARTS {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let said = output(session, tool, &words).await;
        add(&mut archive, &format!("{name}.txt"), &said, began);
        session.out.line(manage::commands::line(tool, &words));
        // What is done is told as it is done; without a reader there is no use in going on.
        session.out.flush().await?;
    }
    let rest = tar::end(archive.len() as u64);
    archive.resize(archive.len() + rest, 0);
    let state = session.appliance.state();
    let written = state.write_support(&archive);
    written.map_err(|error| session.fail(error.to_string()))?;
    session.out.line(format!(
        "{} ({}): names of datasets, hosts and users are in it, and no secrets; look through it before it is given away",
        state.path().join(SUPPORT_BUNDLE).display(),
        nice_bytes(archive.len() as u64)
    ));
    Ok(())
}

/// What the machine is.
fn machine() -> String {
    let mut text = String::new();
    for path in [
        "/etc/os-release",
        "/proc/version",
        "/proc/loadavg",
        "/proc/meminfo",
        "/proc/self/status",
        "/proc/self/limits",
        "/proc/pressure/io",
        "/proc/pressure/memory",
        "/proc/partitions",
    ] {
        let read = std::fs::read_to_string(path);
        let read = read.unwrap_or_else(|error| format!("{error}\n"));
        text.push_str(&format!("== {path}\n{read}\n"));
    }
    text
}

/// Runs a command, and returns what it said, with its exit code below.
async fn output(session: &Session, tool: &str, words: &[String]) -> Vec<u8> {
    let (sender, mut said) = mpsc::channel(CHUNKS_MAX);
    let out = Out::channel(sender, None);
    let caller = session.caller.clone();
    let part = Session::new(session.appliance.clone(), out, caller, tool, words, None);
    let mut kept = Vec::new();
    let keep = async {
        while let Some((_, bytes)) = said.recv().await {
            kept.extend(bytes);
            if kept.len() > 2 * PART_BYTES_MAX {
                kept.drain(..kept.len() - PART_BYTES_MAX);
            }
        }
    };
    let run = cli::run_within(part, tool, words);
    let both = async { tokio::join!(run, keep).0 };
    let end = match tokio::time::timeout(PART_TIMEOUT, both).await {
        Ok(exit) => format!("\n(exit code {})\n", exit.0),
        Err(_) => format!("\n(no answer within {} s)\n", PART_TIMEOUT.as_secs()),
    };
    let from = kept.len().saturating_sub(PART_BYTES_MAX);
    kept.drain(..from);
    kept.extend(end.into_bytes());
    kept
}

fn add(archive: &mut Vec<u8>, name: &str, bytes: &[u8], time: u64) {
    let time = Timestamp {
        seconds: i64::try_from(time).unwrap_or(0),
        nanoseconds: 0,
    };
    let size = bytes.len() as u64;
    let entry = Entry {
        name: format!("sanbox-support/{name}").into_bytes(),
        entry_type: EntryType::Regular {
            size,
            data: vec![(0, size)],
        },
        mode: 0o600,
        uid: 0,
        gid: 0,
        atime: time,
        mtime: time,
        ctime: time,
        xattrs: Vec::new(),
    };
    archive.extend(entry.head());
    archive.extend(bytes);
    archive.resize(archive.len() + tar::padding(size), 0);
}
