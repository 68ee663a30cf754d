//! `zpool create`.

use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;

use engine::{EngineError, FeatureBase, PoolError, PoolSpec, VdevSpec};

use super::bad_name;
use crate::appliance::{KnownPool, devices};
use crate::cli::getopt::Opt;
use crate::cli::{Exit, Outcome, Session, setting};

#[derive(Default)]
struct Options {
    force: bool,
    dry_run: bool,
    no_features: bool,
    altroot: Option<String>,
    mountpoint: Option<String>,
    properties: Vec<(String, String)>,
    root_properties: Vec<(String, String)>,
}

pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let mut options = Options::default();
    let operands = session.options(arguments, ":fndR:m:o:O:t:", &[], |session, option| {
        match option {
            Opt::Short('f', _) => options.force = true,
            Opt::Short('n', _) => options.dry_run = true,
            Opt::Short('d', _) => options.no_features = true,
            Opt::Short('R', Some(root)) => options.altroot = Some(root),
            Opt::Short('m', Some(mountpoint)) => options.mountpoint = Some(mountpoint),
            Opt::Short('o', Some(text)) => {
                let Some((name, value)) = setting(&text) else {
                    return Err(session.fail("missing '=' for -o option"));
                };
                if options.properties.iter().any(|(known, _)| *known == name) {
                    return Err(
                        session.misuse(format!("property '{name}' specified multiple times"))
                    );
                }
                if name == "altroot" {
                    options.altroot = Some(value);
                } else {
                    options.properties.push((name, value));
                }
            }
            Opt::Short('O', Some(text)) => {
                let Some((name, value)) = setting(&text) else {
                    return Err(session.fail("missing '=' for -O option"));
                };
                if name == "mountpoint" {
                    options.mountpoint = Some(value);
                } else if options
                    .root_properties
                    .iter()
                    .any(|(known, _)| *known == name)
                {
                    return Err(
                        session.misuse(format!("property '{name}' specified multiple times"))
                    );
                } else {
                    options.root_properties.push((name, value));
                }
            }
            _ => return Err(session.fail("temporary names (-t) are not supported yet")),
        }
        Ok(())
    })?;
    let Some((name, layout)) = operands.split_first() else {
        return Err(session.misuse("missing pool name argument"));
    };
    if layout.is_empty() {
        return Err(session.misuse("missing vdev specification"));
    }
    if name.contains('/') {
        session.out.error(format!(
            "cannot create '{name}': invalid character '/' in pool name"
        ));
        return Err(session.fail("use 'zfs create' to create a dataset"));
    }
    let layout = Layout::read(session, layout, options.force)?;
    if let Some(root) = options
        .altroot
        .as_deref()
        .filter(|root| !root.starts_with('/'))
    {
        return Err(session.fail(format!(
            "invalid alternate root '{root}': must be an absolute path"
        )));
    }
    if let Some(point) = options.mountpoint.as_deref()
        && !point.starts_with('/')
        && !matches!(point, "legacy" | "none")
    {
        return Err(session.fail(format!(
            "invalid mountpoint '{point}': must be an absolute path, 'legacy', or 'none'"
        )));
    }
    if let Some(why) = bad_name(name) {
        session.out.error(format!("cannot create '{name}': {why}"));
        return Err(session.fail("pool name may have been omitted"));
    }
    if session.appliance.mounts_by_itself() {
        empty_mountpoint(session, name, &options)?;
    }
    if !options.dry_run && session.appliance.known_pool(name).await.is_some() {
        return Err(session.fail(format!("cannot create '{name}': pool already exists")));
    }
    in_use_here(session, &layout.all(), options.force).await?;
    let drawing = options.dry_run.then(|| dry_run(name, &layout));
    let mut root_properties = options.root_properties;
    if let Some(mountpoint) = options.mountpoint {
        root_properties.push(("mountpoint".to_owned(), mountpoint));
    }
    let spec = PoolSpec {
        name: name.clone(),
        vdevs: layout.normal,
        dedup: layout.dedup,
        special: layout.special,
        logs: layout.logs,
        properties: options.properties,
        features: if options.no_features {
            FeatureBase::None
        } else {
            FeatureBase::Implemented
        },
        force: options.force,
        altroot: options.altroot.map(PathBuf::from),
        command: Some(session.line.clone()),
        ..PoolSpec::default()
    };
    if let Some(drawing) = drawing {
        if let Err(error) = engine::Engine::check_pool(&spec, &root_properties) {
            return Err(session.fail(format!("cannot create '{name}': {error}")));
        }
        session.out.text(drawing);
        return Ok(());
    }
    match session.appliance.create_pool(spec, &root_properties).await {
        Ok(_) => Ok(()),
        Err(EngineError::Pool(PoolError::DeviceInUse {
            path,
            reason,
            forceable,
        })) => {
            session.out.error("invalid vdev specification");
            session.out.error(if forceable {
                "use '-f' to override the following errors:"
            } else {
                "the following errors must be manually repaired:"
            });
            Err(session.fail(format!("{} {reason}", path.display())))
        }
        Err(EngineError::PoolExists(_)) => {
            Err(session.fail(format!("cannot create '{name}': pool already exists")))
        }
        Err(EngineError::Property(error)) => {
            Err(session.fail(format!("cannot create '{name}': {error}")))
        }
        Err(error) => Err(session.fail(format!("cannot create '{name}': {error}"))),
    }
}

/// A vdev specification: `mirror a b special mirror c d log e`.
#[derive(Debug, Default)]
struct Layout {
    normal: Vec<VdevSpec>,
    dedup: Vec<VdevSpec>,
    special: Vec<VdevSpec>,
    logs: Vec<VdevSpec>,
}

impl Layout {
    /// Reads a specification. A word such as `log` says what all vdevs behind it are for, up to the next such word.
    // OpenZFS: cmd/zpool/zpool_vdev.c, construct_spec (roles, messages), check_replication (logs are left out)
    fn read(session: &Session, words: &[String], force: bool) -> Result<Self, Exit> {
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
        if !force {
            let mut data = layout.normal.clone();
            data.extend_from_slice(&layout.dedup);
            data.extend_from_slice(&layout.special);
            same_redundancy(session, &data)?;
            alike(session, &data)?;
        }
        Ok(layout)
    }

    fn all(&self) -> Vec<VdevSpec> {
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

/// Reads the vdevs of one role: `a b`, `mirror a b mirror c d`, `raidz2 a b c d`.
fn layout_of(session: &Session, words: &[String]) -> Result<Vec<VdevSpec>, Exit> {
    let mut vdevs = Vec::new();
    let mut rest = words;
    while let Some((word, after)) = rest.split_first() {
        let kind = word.as_str();
        let is_grouping = kind == "mirror"
            || ["raidz", "draid"]
                .iter()
                .any(|prefix| kind.starts_with(prefix))
            || matches!(kind, "spare" | "log" | "cache" | "special" | "dedup");
        if !is_grouping {
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
        let is_keyword = |word: &String| {
            matches!(
                word.as_str(),
                "mirror" | "spare" | "log" | "cache" | "special" | "dedup"
            ) || ["raidz", "draid"]
                .iter()
                .any(|prefix| word.starts_with(prefix))
        };
        let count = after.iter().position(is_keyword).unwrap_or(after.len());
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

/// Refuses devices of pools that are imported here.
async fn in_use_here(session: &Session, vdevs: &[VdevSpec], force: bool) -> Outcome {
    let real = |path: &PathBuf| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    for known in session.appliance.pools().await {
        let KnownPool::Open(pool) = known else {
            continue;
        };
        let Ok(status) = pool.status().await else {
            continue;
        };
        let taken: Vec<PathBuf> = devices(&status.root).iter().map(real).collect();
        for path in vdevs.iter().flat_map(VdevSpec::paths) {
            if taken.contains(&real(path)) {
                session.out.error("invalid vdev specification");
                session.out.error(if force {
                    "the following errors must be manually repaired:"
                } else {
                    "use '-f' to override the following errors:"
                });
                return Err(session.fail(format!(
                    "{} is part of active pool '{}'",
                    path.display(),
                    pool.name()
                )));
            }
        }
    }
    Ok(())
}

/// Refuses a device of another pool that is imported here. (The pool itself knows its own.)
pub(super) async fn not_in_other_pools(
    session: &Session,
    own: &engine::PoolHandle,
    path: &std::path::Path,
    force: bool,
) -> Outcome {
    let real = |path: &PathBuf| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    let path = path.to_owned();
    for known in session.appliance.pools().await {
        let KnownPool::Open(pool) = known else {
            continue;
        };
        let Ok(status) = pool.status().await else {
            continue;
        };
        let taken = devices(&status.root)
            .iter()
            .any(|own| real(own) == real(&path));
        if pool.guid() != own.guid() && taken {
            session.out.error("invalid vdev specification");
            session.out.error(if force {
                "the following errors must be manually repaired:"
            } else {
                "use '-f' to override the following errors:"
            });
            return Err(session.fail(format!(
                "{} is part of active pool '{}'",
                path.display(),
                pool.name()
            )));
        }
    }
    Ok(())
}

/// Refuses pools whose top-level vdevs differ in redundancy: their weakest part is the pool's.
fn same_redundancy(session: &Session, vdevs: &[VdevSpec]) -> Outcome {
    let Some((first, others)) = vdevs.split_first() else {
        return Ok(());
    };
    // OpenZFS: cmd/zpool/zpool_vdev.c, check_replication (what is compared, in which words)
    let redundancy = |vdev: &VdevSpec| match vdev {
        VdevSpec::Single(path) if path.starts_with("/dev") => ("disk", 1, 0),
        VdevSpec::Single(_) => ("file", 1, 0),
        VdevSpec::Mirror(paths) => ("mirror", paths.len(), 0),
        VdevSpec::Raidz { parity, paths } => ("raidz", paths.len(), usize::from(*parity)),
    };
    let (name, ways, parity) = redundancy(first);
    for vdev in others {
        let (other_name, other_ways, other_parity) = redundancy(vdev);
        let bare = |name: &str| matches!(name, "disk" | "file");
        let complaint = if bare(name) && bare(other_name) {
            continue;
        } else if let ("raidz", "mirror") | ("mirror", "raidz") = (name, other_name) {
            // As many devices may fail in both: good enough.
            let (parity, ways) = match name {
                "raidz" => (parity, other_ways),
                _ => (other_parity, ways),
            };
            if parity + 1 == ways {
                continue;
            }
            format!(
                "mismatched replication level: raidz and mirror vdevs with different redundancy, \
                 {parity} vs. {} ({ways}-way) are present",
                ways - 1
            )
        } else if name != other_name {
            format!("mismatched replication level: both {name} and {other_name} vdevs are present")
        } else if parity != other_parity {
            format!(
                "mismatched replication level: both {parity} and {other_parity} device parity \
                 {name} vdevs are present"
            )
        } else if ways != other_ways {
            format!(
                "mismatched replication level: both {ways}-way and {other_ways}-way {name} vdevs \
                 are present"
            )
        } else {
            continue;
        };
        session.out.error("invalid vdev specification");
        session
            .out
            .error("use '-f' to override the following errors:");
        return Err(session.fail(complaint));
    }
    Ok(())
}

/// Refuses groups of devices whose sizes differ, or of files and devices: the smallest is all's.
// OpenZFS: cmd/zpool/zpool_vdev.c, get_replication (what is compared, in which words)
fn alike(session: &Session, vdevs: &[VdevSpec]) -> Outcome {
    /// Labels and rounding may differ by this much.
    const TOLERANCE_BYTES: u64 = 16 << 20;
    for vdev in vdevs {
        let (kind, paths) = match vdev {
            VdevSpec::Mirror(paths) => ("mirror", paths),
            VdevSpec::Raidz { paths, .. } => ("raidz", paths),
            _ => continue,
        };
        let is_file = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|data| data.is_file());
        let files = paths.iter().filter(|path| is_file(path)).count();
        let sizes: Vec<u64> = paths.iter().filter_map(size_of).collect();
        let (least, most) = (sizes.iter().min(), sizes.iter().max());
        let complaint = if files != 0 && files != paths.len() {
            format!("{kind} contains both files and devices")
        } else if let (Some(least), Some(most)) = (least, most)
            && most - least > TOLERANCE_BYTES
        {
            format!("{kind} contains devices of different sizes")
        } else {
            continue;
        };
        session.out.error("invalid vdev specification");
        session
            .out
            .error("use '-f' to override the following errors:");
        return Err(session.fail(complaint));
    }
    Ok(())
}

/// The size of a file or device, in bytes.
fn size_of(path: &PathBuf) -> Option<u64> {
    use std::io::{Seek as _, SeekFrom};
    let mut file = std::fs::File::open(path).ok()?;
    file.seek(SeekFrom::End(0)).ok()
}

/// Refuses a mount point of the root file system that is there and not empty.
// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_create (words)
fn empty_mountpoint(session: &Session, name: &str, options: &Options) -> Outcome {
    let point = match options.mountpoint.as_deref() {
        Some("none" | "legacy") => return Ok(()),
        Some(point) => point.to_owned(),
        None => format!("/{name}"),
    };
    let off = ("canmount".to_owned(), "off".to_owned());
    if options.root_properties.contains(&off) {
        return Ok(());
    }
    let place = format!("{}{point}", options.altroot.as_deref().unwrap_or(""));
    let complaint = match std::fs::read_dir(&place) {
        Ok(entries) => match entries.count() {
            0 => return Ok(()),
            _ => format!("mountpoint '{place}' exists and is not empty"),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => format!("mountpoint '{place}' : {error}"),
    };
    session.out.error(complaint);
    Err(session.fail("use '-m' option to provide a different default"))
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

fn dry_run(name: &str, layout: &Layout) -> String {
    let mut text = format!("would create '{name}' with the following layout:\n\n\t{name}\n");
    let parts = [
        ("", &layout.normal),
        ("dedup", &layout.dedup),
        ("special", &layout.special),
        ("logs", &layout.logs),
    ];
    for (title, vdevs) in parts {
        if !vdevs.is_empty() && !title.is_empty() {
            text.push_str(&format!("\t{title}\n"));
        }
        vdev_lines(&mut text, vdevs);
    }
    text
}

fn vdev_lines(text: &mut String, vdevs: &[VdevSpec]) {
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
