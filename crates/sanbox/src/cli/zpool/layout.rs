//! Vdev specifications of `zpool create` and `add`: `mirror a b special mirror c d log e`, and whose devices they name.

use std::collections::BTreeSet;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use engine::{PoolError, PoolHandle, PoolStatus, VdevSpec, VdevStatus};

use super::draid;
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
    pub(super) caches: Vec<PathBuf>,
    pub(super) spares: Vec<PathBuf>,
}

impl Layout {
    /// Reads a specification. A word such as `log` says what all vdevs behind it are for, up to the next such word.
    // OpenZFS: cmd/zpool/zpool_vdev.c, construct_spec (roles, messages)
    pub(super) fn read(session: &Session, words: &[String]) -> Result<Self, Exit> {
        const ROLES: [&str; 5] = ["log", "special", "dedup", "cache", "spare"];
        let is_role = |word: &String| ROLES.contains(&word.as_str());
        let mut layout = Self::default();
        let (mut role, mut rest) = ("", words);
        let mut seen = BTreeSet::new();
        loop {
            let count = rest.iter().position(is_role).unwrap_or(rest.len());
            let (section, behind) = rest.split_at(count);
            let spread = |word: &&String| is_group(word) && *word != "mirror";
            if role == "log"
                && let Some(word) = section.iter().find(spread)
            {
                let kind = &word[..5];
                return Err(session.fail(format!(
                    "invalid vdev specification: unsupported 'log' device: {kind}"
                )));
            }
            if matches!(role, "special" | "dedup") && section.iter().any(|w| w.starts_with("draid"))
            {
                return Err(
                    session.fail("invalid vdev specification: unsupported 'special' device: draid")
                );
            }
            // Spares and cache devices are single devices; a group behind them is an ordinary vdev again.
            let singles = match role {
                "spare" | "cache" => section.iter().position(|word| is_group(word)),
                _ => Some(0),
            };
            let (singles, grouped) = section.split_at(singles.unwrap_or(section.len()));
            for word in singles {
                let path = device(session, word)?;
                if role == "spare" {
                    layout.spares.push(path);
                } else {
                    layout.caches.push(path);
                }
            }
            let vdevs = layout_of(session, grouped)?;
            match role {
                "" | "spare" | "cache" => layout.normal.extend(vdevs),
                "log" => layout.logs.extend(vdevs),
                "special" => layout.special.extend(vdevs),
                _ => layout.dedup.extend(vdevs),
            }
            let Some((word, after)) = behind.split_first() else {
                break;
            };
            if matches!(word.as_str(), "log" | "cache" | "spare") && !seen.insert(word.as_str()) {
                return Err(session.fail(format!(
                    "invalid vdev specification: '{word}' can be specified only once"
                )));
            }
            let bare = matches!(word.as_str(), "spare" | "cache");
            if after
                .first()
                .is_none_or(|next| is_role(next) || (bare && is_group(next)))
            {
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

    /// All devices but the spares.
    fn devices(&self) -> Vec<PathBuf> {
        let parts = [&self.normal, &self.dedup, &self.special, &self.logs];
        let vdevs = parts.into_iter().flatten();
        let paths = vdevs.flat_map(|vdev| vdev.paths().iter().cloned());
        paths.chain(self.caches.iter().cloned()).collect()
    }
}

/// Whether a word begins a group of devices: `mirror`, `raidz2`.
fn is_group(word: &str) -> bool {
    word == "mirror" || word.starts_with("raidz") || draid::parity_of(word).is_some()
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
    is_group(word) || matches!(word, "spare" | "log" | "cache" | "special" | "dedup")
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
        let spread = draid::parity_of(kind);
        let parity = spread.or_else(|| raidz_parity(kind));
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
            Some(_) if spread.is_some() => {
                let asked = draid::read(kind, count as u64).map_err(|lines| {
                    for line in lines {
                        session.out.error(line);
                    }
                    Exit(1)
                })?;
                VdevSpec::Draid {
                    parity: asked.parity,
                    data: asked.data,
                    spares: asked.spares,
                    paths,
                }
            }
            Some(parity) => VdevSpec::Raidz { parity, paths },
        });
        rest = &after[count..];
    }
    Ok(vdevs)
}

/// Refuses devices of pools that are imported here. Spares may be shared, as long as none of the pools uses them.
pub(super) async fn in_use_here(session: &Session, layout: &Layout, force: bool) -> Outcome {
    for known in session.appliance.pools().await {
        let KnownPool::Open(pool) = known else {
            continue;
        };
        let Ok(status) = pool.status().await else {
            continue;
        };
        for path in layout.devices() {
            refuse_taken(session, &pool, &status, &path, false, force)?;
        }
        for path in &layout.spares {
            refuse_taken(session, &pool, &status, path, true, force)?;
        }
    }
    Ok(())
}

/// Refuses a device of another pool that is imported here. (The pool itself knows its own.)
pub(super) async fn not_in_other_pools(
    session: &Session,
    own: &PoolHandle,
    path: &Path,
    force: bool,
) -> Outcome {
    let own_spare = match own.status().await {
        Ok(status) => status
            .spares
            .iter()
            .any(|s| s.path.as_deref() == Some(path)),
        Err(_) => false,
    };
    for known in session.appliance.pools().await {
        let KnownPool::Open(pool) = known else {
            continue;
        };
        let Ok(status) = pool.status().await else {
            continue;
        };
        if pool.guid() != own.guid() {
            refuse_taken(session, &pool, &status, path, own_spare, force)?;
        }
    }
    Ok(())
}

// OpenZFS: cmd/zpool/zpool_vdev.c, check_file_generic (words)
fn refuse_taken(
    session: &Session,
    pool: &PoolHandle,
    status: &PoolStatus,
    path: &Path,
    as_spare: bool,
    force: bool,
) -> Outcome {
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let wanted = real(path);
    let among = |vdevs: &[VdevStatus]| {
        let paths = vdevs.iter().filter_map(|vdev| vdev.path.as_deref());
        paths.map(real).any(|path| path == wanted)
    };
    let in_tree = devices(&status.root).iter().any(|own| real(own) == wanted);
    let complaint = if in_tree || among(&status.caches) {
        format!(
            "{} is part of active pool '{}'",
            path.display(),
            pool.name()
        )
    } else if among(&status.spares) && !as_spare {
        format!(
            "{} is reserved as a hot spare for pool {}",
            path.display(),
            pool.name()
        )
    } else {
        return Ok(());
    };
    Err(refuse_devices(session, !force, &complaint))
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
    if draid::is_spare_name(word) {
        return Err(session.fail(format!(
            "cannot open '{word}': dRAID spares can only be used to replace primary vdevs"
        )));
    }
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

/// Draws a device to be added as `-n` shows it.
pub(super) fn device_line(text: &mut String, depth: usize, path: &Path) {
    let path = path.to_string_lossy();
    let shown = path.strip_prefix("/dev/").unwrap_or(&path).to_owned();
    text.push_str(&format!("\t{:depth$}{shown}\n", ""));
}

/// Draws vdevs to be made as `-n` shows them.
pub(super) fn vdev_lines(text: &mut String, vdevs: &[VdevSpec]) {
    let line = device_line;
    for vdev in vdevs {
        match vdev {
            VdevSpec::Single(path) => line(text, 2, path),
            _ => {
                let paths = vdev.paths();
                let kind = match vdev {
                    VdevSpec::Raidz { parity, .. } => format!("raidz{parity}"),
                    VdevSpec::Draid {
                        parity,
                        data,
                        spares,
                        ..
                    } => format!("draid{parity}:{data}d:{}c:{spares}s", paths.len()),
                    _ => "mirror".to_owned(),
                };
                text.push_str(&format!("\t  {kind}\n"));
                for path in paths {
                    line(text, 4, path);
                }
            }
        }
    }
}
