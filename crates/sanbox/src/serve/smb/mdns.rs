//! The file by which avahi tells machines nearby of the shares: there while Samba runs and other hosts reach it, gone with it.
//!
//! A file, and not smbd's own registration: that tells of what was shared as smbd began, and of shares for this machine alone.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tokio::sync::Mutex;

use crate::logging::SMB;
use crate::paths;

/// Where avahi-daemon is asked; there while it runs.
const AVAHI_SOCKET: &str = "/run/avahi-daemon/socket";

/// See the module.
pub(super) struct Advertisement {
    /// Where avahi looks for service groups; empty: nothing is told.
    directory: PathBuf,
    file: PathBuf,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    /// The service group of what is shared with other hosts; `None` while nothing is.
    text: Option<String>,
    is_running: bool,
    /// What the file holds.
    written: Option<String>,
    /// What a killed daemon left was looked for.
    is_cleared: bool,
    problem: Option<String>,
}

impl Advertisement {
    /// Nothing is told yet.
    pub(super) fn new(directory: &Path, port: u16) -> Self {
        Self {
            directory: directory.to_owned(),
            file: directory.join(format!("sanbox-smb-{port}.service")),
            told: Mutex::default(),
        }
    }

    /// Takes down what is shared with other hosts, as avahi reads it; `None` for nothing.
    pub(super) async fn describe(&self, text: Option<String>) {
        let mut told = self.told.lock().await;
        told.text = text;
        self.follow(&mut told).await;
    }

    /// Takes down whether Samba runs.
    pub(super) async fn set_running(&self, is_running: bool) {
        let mut told = self.told.lock().await;
        told.is_running = is_running;
        self.follow(&mut told).await;
    }

    /// Says in a sentence how machines nearby find the shares.
    pub(super) async fn status(&self) -> String {
        let told = self.told.lock().await;
        if self.directory.as_os_str().is_empty() {
            return "not announced by mDNS: avahi_services is empty".to_owned();
        }
        if let Some(problem) = &told.problem {
            return format!("not announced by mDNS: {problem}");
        }
        if told.text.is_none() {
            return "not announced by mDNS: nothing is shared with other hosts".to_owned();
        }
        if told.written.is_none() {
            return "not announced by mDNS: Samba does not run".to_owned();
        }
        let socket = Path::new(AVAHI_SOCKET);
        let is_there = paths::call(socket, || Path::new(AVAHI_SOCKET).exists()).await;
        let file = self.file.display();
        match is_there {
            Ok(true) => format!("announced by mDNS: avahi reads {file}"),
            _ => {
                format!("not announced by mDNS: avahi-daemon does not run, which would read {file}")
            }
        }
    }

    /// Makes the file what is to be told.
    async fn follow(&self, told: &mut Told) {
        if self.directory.as_os_str().is_empty() {
            return;
        }
        let wanted = told.text.clone().filter(|_| told.is_running);
        if told.is_cleared && told.written == wanted {
            return;
        }
        let (directory, file, text) = (self.directory.clone(), self.file.clone(), wanted.clone());
        let change = move || replace(&directory, &file, text.as_deref());
        let changed = match paths::call(&self.directory, change).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Err(format!(
                "there is no directory {} (Debian: apt install avahi-daemon)",
                self.directory.display()
            )),
            Ok(Err(error)) => Err(format!("{}: {error}", self.file.display())),
            Err(why) => Err(why),
        };
        match changed {
            Ok(()) => {
                told.is_cleared = true;
                told.written = wanted;
                told.problem = None;
            }
            Err(why) => {
                if told.problem.as_ref() != Some(&why) {
                    tracing::info!(target: SMB, "shares are not announced by mDNS: {why}");
                }
                told.problem = Some(why);
            }
        }
    }
}

/// Replaces or removes the file, which is read whole or not at all. Takes a path.
fn replace(directory: &Path, file: &Path, text: Option<&str>) -> io::Result<()> {
    let Some(text) = text else {
        return match std::fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    };
    // avahi reads what ends with ".service" only.
    let mut fresh = tempfile::NamedTempFile::new_in(directory)?;
    io::Write::write_all(&mut fresh, text.as_bytes())?;
    fresh
        .as_file()
        .set_permissions(Permissions::from_mode(0o644))?;
    fresh.as_file().sync_all()?;
    fresh.persist(file).map(drop).map_err(|failed| failed.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_file_is_there_while_samba_runs_and_something_is_shared() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("sanbox-smb-445.service");
        let held = || std::fs::read_to_string(&file).ok();
        // What a killed daemon left.
        std::fs::write(&file, "old").expect("written");
        let told = Advertisement::new(directory.path(), 445);
        told.describe(Some("one".to_owned())).await;
        assert_eq!(held(), None);
        told.set_running(true).await;
        assert_eq!(held().as_deref(), Some("one"));
        told.describe(Some("two".to_owned())).await;
        assert_eq!(held().as_deref(), Some("two"));
        let mode = std::fs::metadata(&file)
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o644);
        told.describe(None).await;
        assert_eq!(held(), None);
        let entries = std::fs::read_dir(directory.path()).expect("readable");
        assert_eq!(entries.count(), 0);

        let nowhere = Advertisement::new(&directory.path().join("avahi"), 445);
        nowhere.set_running(true).await;
        nowhere.describe(Some("one".to_owned())).await;
        assert!(nowhere.status().await.contains("apt install avahi-daemon"));
    }
}
