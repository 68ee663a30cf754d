//! `zpool labelclear`.

use std::path::{Path, PathBuf};

use engine::{DeviceLabel, EngineError, Health, PoolState, VdevStatus};

use crate::appliance::KnownPool;
use crate::cli::command::{Command, Word, options};
use crate::cli::{Outcome, Session};

options! {
    LabelClearOption {
        Force = short('f', "also of a device that an exported pool wants back"),
    }
}

/// The declaration of `zpool labelclear`.
pub(super) const LABELCLEAR: Command = Command {
    name: "labelclear",
    summary: "remove the labels of a pool from a device",
    usage: "\tlabelclear [-f] <vdev>\n",
    flags: LabelClearOption::FLAGS,
    says_missing: false,
    words: &[Word::Device],
    examples: &[(
        "zpool labelclear -f /dev/sdz",
        "remove the label of an exported pool from a disk that is to be used for something else",
    )],
    ..Command::NEW
};

// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_labelclear (words)
pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let mut force = false;
    let operands = session.read_options(arguments, |_, LabelClearOption::Force| {
        force = true;
        Ok(())
    })?;
    let [word] = operands.as_slice() else {
        return Err(session.misuse(if operands.is_empty() {
            "missing vdev name"
        } else {
            "too many arguments"
        }));
    };
    let path = find(session, word);
    let Some(path) = path.filter(|path| path.exists()) else {
        return Err(session.fail(if word.starts_with('/') {
            format!("failed to open {word}: No such file or directory")
        } else {
            format!("failed to find device {word}, try specifying absolute path instead")
        }));
    };
    let shown = path.display();
    let label = match session.appliance.engine().device_label(path.clone()).await {
        Ok(Some(label)) => label,
        Ok(None) => return Err(session.fail(format!("failed to read label from {shown}"))),
        Err(error) => return Err(session.fail(format!("failed to open {shown}: {error}"))),
    };
    if let Some(user) = use_of(session, &path, &label).await {
        let offline = if force {
            ". Offline the disk first to clear its label."
        } else {
            ""
        };
        if !(force && user.offline) {
            return Err(session.fail(format!(
                "{shown} is a member ({}) of pool \"{}\"{offline}",
                user.state, user.pool
            )));
        }
    } else if !force
        && let Some(state) = label.state
        && state != PoolState::Destroyed
    {
        let state = match state {
            PoolState::Exported => "exported",
            _ => "potentially active",
        };
        session
            .out
            .error("use '-f' to override the following error:");
        return Err(session.fail(format!(
            "{shown} is a member of {state} pool \"{}\"",
            label.pool
        )));
    }
    match session.appliance.engine().clear_labels(path.clone()).await {
        Ok(()) => Ok(()),
        Err(EngineError::Pool(error)) => {
            Err(session.fail(format!("failed to clear label for {shown}: {error}")))
        }
        Err(_) => Err(session.fail(format!("failed to clear label for {shown}"))),
    }
}

fn find(session: &Session, word: &str) -> Option<PathBuf> {
    if word.starts_with('/') {
        return Some(PathBuf::from(word));
    }
    let here = session.path(word);
    if here.exists() {
        return Some(here);
    }
    let named = ["/dev/disk/by-id", "/dev"].map(|dir| Path::new(dir).join(word));
    named.into_iter().find(|path| path.exists())
}

/// How a pool of this appliance uses a device.
struct DeviceUse {
    pool: String,
    state: &'static str,
    offline: bool,
}

async fn use_of(session: &Session, path: &Path, label: &DeviceLabel) -> Option<DeviceUse> {
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let wanted = real(path);
    fn leaves<'a>(vdev: &'a VdevStatus, into: &mut Vec<&'a VdevStatus>) {
        if vdev.children.is_empty() {
            into.push(vdev);
        }
        vdev.children.iter().for_each(|child| leaves(child, into));
    }
    for known in session.appliance.pools().await {
        let pool = match known {
            KnownPool::Open(pool) => pool,
            // It may well need the device to be opened again.
            KnownPool::Closed(cached, _) if cached.guid == label.pool_guid => {
                return Some(DeviceUse {
                    pool: cached.name,
                    state: "ACTIVE",
                    offline: false,
                });
            }
            KnownPool::Closed(..) => continue,
        };
        let Ok(status) = pool.status().await else {
            continue;
        };
        let mut own = Vec::new();
        leaves(&status.root, &mut own);
        let parts = [
            ("ACTIVE", own),
            ("L2CACHE", status.caches.iter().collect()),
            ("SPARE", status.spares.iter().collect()),
        ];
        for (state, devices) in parts {
            let found = devices
                .into_iter()
                .find(|device| device.path.as_deref().is_some_and(|p| real(p) == wanted));
            if let Some(device) = found {
                return Some(DeviceUse {
                    pool: pool.name().to_owned(),
                    state,
                    offline: matches!(device.health, Health::Offline | Health::Faulted),
                });
            }
        }
    }
    None
}
