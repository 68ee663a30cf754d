//! Vdev specifications of `zpool create` and `add`: `mirror a b special mirror c d log e`, and whose devices they name.

use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;

use engine::{PoolError, VdevSpec, VdevStatus};

use super::replication::{Vdev, complaints};
use crate::appliance::{KnownPool, devices};
use crate::cli::{Exit, Outcome, Session};

/// A vdev specification: `mirror a b special mirror c d log e`.
#[derive(Debug, Default)]
pub(super) struct Layout {
    pub(super) normal: Vec<VdevSpec>,
    pub(super) dedup: Vec<VdevSpec>,
    pub(super) special: Vec<VdevSpec>,
    pub(super) logs: Vec<VdevSpec>,
}

impl Layout {
    /// Reads a specification. A word such as `log` says what all vdevs behind it are for, up to the next such word.
    // OpenZFS: cmd/zpool/zpool_vdev.c, construct_spec (roles, messages)
    pub(super) fn read(session: &Session, words: &[String]) -> Result<Self, Exit> {
        const ROLES: [&str; 5] = ["log", "special", "dedup", "cache", "spare"];
        let is_role = |word: &String| ROLES.contains(&word.as_str());
        let mut layout = Self::default();
        let (mut role, mut rest, mut logs) = ("", words, 0);
        loop {
            let count = rest.iter().position(is_role).unwrap_or(rest.len());
            let (section, behind) = rest.split_at(count);
            if role == "log" && section.iter().any(|word| word.starts_with("raidz")) {
                return Err(
                    session.fail("invalid vdev specification: unsupported 'log' device: raidz")
                );
            }
            let vdevs = layout_of(session, section)?;
            match role {
                "" => layout.normal.extend(vdevs),
                "log" => layout.logs.extend(vdevs),
                "special" => layout.special.extend(vdevs),
                _ => layout.dedup.extend(vdevs),
            }
            let Some((word, after)) = behind.split_first() else {
                break;
            };
            logs += u32::from(word == "log");
            if logs > 1 {
                return Err(
                    session.fail("invalid vdev specification: 'log' can be specified only once")
                );
            }
            if matches!(word.as_str(), "cache" | "spare") {
                return Err(session.fail(format!(
                    "invalid vdev specification: '{word}' is not supported by this version of sanbox yet"
                )));
            }
            if after.first().is_none_or(is_role) {
                return Err(session.fail(format!(
                    "invalid vdev specification: '{word}' requires at least 1 devices"
                )));
            }
            (role, rest) = (word.as_str(), after);
        }
        Ok(layout)
    }

    /// Refuses vdevs that can lose fewer devices than the others, of the pool with this root too if there is one.
    pub(super) fn check_replication(
        &self,
        session: &Session,
        pool: Option<&VdevStatus>,
    ) -> Outcome {
        let data = [&self.normal, &self.dedup, &self.special];
        let data: Vec<Vdev> = data.into_iter().flatten().map(Vdev::of_spec).collect();
        let complaints = complaints(pool, &data);
        if complaints.is_empty() {
            return Ok(());
        }
        session.out.error("invalid vdev specification");
        session
            .out
            .error("use '-f' to override the following errors:");
        for complaint in complaints {
            session.out.error(complaint);
        }
        Err(Exit(1))
    }

    /// All vdevs.
    pub(super) fn all(&self) -> Vec<VdevSpec> {
        let parts = [&self.normal, &self.dedup, &self.special, &self.logs];
        parts.into_iter().flatten().cloned().collect()
    }
}

/// Returns the parity that a word such as `raidz2` asks for.
fn raidz_parity(word: &str) -> Option<u8> {
    match word {
        "raidz" | "raidz1" => Some(1),
        "raidz2" => Some(2),
        "raidz3" => Some(3),
        _ => None,
    }
}

/// Whether a word begins something new instead of naming a device.
fn is_grouping(word: &str) -> bool {
    matches!(
        word,
        "mirror" | "spare" | "log" | "cache" | "special" | "dedup"
    ) || ["raidz", "draid"]
        .iter()
        .any(|prefix| word.starts_with(prefix))
}

/// Reads the vdevs of one role: `a b`, `mirror a b mirror c d`, `raidz2 a b c d`.
fn layout_of(session: &Session, words: &[String]) -> Result<Vec<VdevSpec>, Exit> {
    let mut vdevs = Vec::new();
    let mut rest = words;
    while let Some((word, after)) = rest.split_first() {
        let kind = word.as_str();
        if !is_grouping(word) {
            vdevs.push(VdevSpec::Single(device(session, word)?));
            rest = after;
            continue;
        }
        let parity = raidz_parity(kind);
        if kind != "mirror" && parity.is_none() {
            return Err(session.fail(format!(
                "invalid vdev specification: '{kind}' is not supported by this version of sanbox yet"
            )));
        }
        let count = after
            .iter()
            .position(|word| is_grouping(word))
            .unwrap_or(after.len());
        let least = usize::from(parity.unwrap_or(1)) + 1;
        if count < least {
            return Err(session.fail(format!(
                "invalid vdev specification: {kind} requires at least {least} devices"
            )));
        }
        if parity.is_some() && count > 255 {
            return Err(session.fail(format!(
                "invalid vdev specification: {kind} supports no more than 255 devices"
            )));
        }
        let devices: Result<Vec<_>, _> = after[..count]
            .iter()
            .map(|word| device(session, word))
            .collect();
        let paths = devices?;
        vdevs.push(match parity {
            None => VdevSpec::Mirror(paths),
            Some(parity) => VdevSpec::Raidz { parity, paths },
        });
        rest = &after[count..];
    }
    Ok(vdevs)
}

/// Refuses devices of pools that are imported here, but for those of `own`: a pool knows its own devices.
pub(super) async fn in_use_here(
    session: &Session,
    paths: impl IntoIterator<Item = &PathBuf>,
    own: Option<u64>,
    force: bool,
) -> Outcome {
    let real = |path: &PathBuf| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    let paths: Vec<(&PathBuf, PathBuf)> =
        paths.into_iter().map(|path| (path, real(path))).collect();
    for known in session.appliance.pools().await {
        let KnownPool::Open(pool) = known else {
            continue;
        };
        if own == Some(pool.guid()) {
            continue;
        }
        let Ok(status) = pool.status().await else {
            continue;
        };
        let taken: Vec<PathBuf> = devices(&status.root).iter().map(real).collect();
        if let Some((path, _)) = paths.iter().find(|(_, real)| taken.contains(real)) {
            let why = format!(
                "{} is part of active pool '{}'",
                path.display(),
                pool.name()
            );
            return Err(refuse_devices(session, !force, &why));
        }
    }
    Ok(())
}

/// Says that a device cannot be had, and whether force would help.
pub(super) fn in_use(session: &Session, error: &PoolError) -> Exit {
    let forceable = matches!(
        error,
        PoolError::DeviceInUse {
            forceable: true,
            ..
        }
    );
    refuse_devices(session, forceable, &error.to_string())
}

fn refuse_devices(session: &Session, forceable: bool, why: &str) -> Exit {
    session.out.error("invalid vdev specification");
    session.out.error(if forceable {
        "use '-f' to override the following errors:"
    } else {
        "the following errors must be manually repaired:"
    });
    session.fail(why)
}

/// Finds the device or file a word names.
pub(super) fn device(session: &Session, word: &str) -> Result<PathBuf, Exit> {
    let path = if word.starts_with('/') {
        PathBuf::from(word)
    } else {
        let device = PathBuf::from("/dev").join(word);
        let by_id = PathBuf::from("/dev/disk/by-id").join(word);
        if by_id.exists() {
            by_id
        } else if device.exists() && !word.contains("..") {
            device
        } else {
            let relative = session.path(word);
            if !word.contains('/') && !relative.exists() {
                session
                    .out
                    .error(format!("cannot open '{word}': no such device in /dev"));
                return Err(session.fail("must be a full path or shorthand device name"));
            }
            relative
        }
    };
    match std::fs::metadata(&path) {
        Err(error) => {
            let text = match error.kind() {
                std::io::ErrorKind::NotFound => "No such file or directory".to_owned(),
                std::io::ErrorKind::PermissionDenied => "Permission denied".to_owned(),
                _ => error.to_string(),
            };
            Err(session.fail(format!("cannot open '{}': {text}", path.display())))
        }
        Ok(data) if data.is_file() || data.file_type().is_block_device() => {
            // Aliases of one disk must not pass for two.
            Ok(path)
        }
        Ok(_) => Err(session.fail(format!(
            "cannot use '{}': must be a block device or regular file",
            path.display()
        ))),
    }
}

/// Draws vdevs to be made as `-n` shows them.
pub(super) fn vdev_lines(text: &mut String, vdevs: &[VdevSpec]) {
    let line = |text: &mut String, depth: usize, path: &PathBuf| {
        let path = path.to_string_lossy();
        let shown = path.strip_prefix("/dev/").unwrap_or(&path).to_owned();
        text.push_str(&format!("\t{:depth$}{shown}\n", ""));
    };
    for vdev in vdevs {
        match vdev {
            VdevSpec::Single(path) => line(text, 2, path),
            VdevSpec::Mirror(paths) | VdevSpec::Raidz { paths, .. } => {
                match vdev.parity() {
                    0 => text.push_str("\t  mirror\n"),
                    parity => text.push_str(&format!("\t  raidz{parity}\n")),
                }
                for path in paths {
                    line(text, 4, path);
                }
            }
        }
    }
}
