//! `zpool add`.

use engine::{AddSpec, AllocationBias, EngineError, PoolError, PoolStatus, VdevSpec, VdevStatus};

use super::layout::{Layout, device_line, in_use, in_use_here, vdev_lines};
use super::{NameStyle, bad_name, open_pool};
use crate::cli::command::{Command, Word, options};
use crate::cli::{Exit, Outcome, Session, setting};

options! {
    AddOption {
        Force = short('f', "all that the --allow options allow"),
        Guid = short('g', "show devices by guid"),
        RealPath = short('L', "show devices by the path that links lead to"),
        DryRun = short('n', "show the pool as it would be, and change nothing"),
        FullPath = short('P', "show devices by their whole path"),
        Property(String) = valued('o', "property=value", "ashift=N: sector size of the new vdevs, as a power of two"),
        AllowInUse = long("allow-in-use", None, "also devices that seem to be in use"),
        AllowReplicationMismatch = long("allow-replication-mismatch", None, "also another kind of redundancy than the pool has"),
        AllowAshiftMismatch = long("allow-ashift-mismatch", None, "also another sector size than the pool has"),
    }
}

/// The declaration of `zpool add`.
pub(super) const ADD: Command = Command {
    name: "add",
    summary: "add devices to a pool",
    usage: "\tadd [-afgLnP] [-o property=value] <pool> <vdev> ...\n",
    flags: AddOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool, Word::Device],
    examples: &[
        (
            "zpool add -n tank mirror sde sdf",
            "show the pool as it would be with two more disks, and change nothing",
        ),
        (
            "zpool add tank log mirror nvme0n1 nvme1n1",
            "synchronous writes are logged on two fast disks from now on",
        ),
        (
            "zpool add tank spare sdx",
            "a hot spare, which takes over by itself when a disk fails",
        ),
        (
            "zpool add tank special mirror nvme0n1 nvme1n1",
            "new metadata goes to two fast disks",
        ),
    ],
    ..Command::NEW
};

#[derive(Default)]
struct Options {
    force: bool,
    dry_run: bool,
    any_device: bool,
    any_replication: bool,
    any_sector_size: bool,
    ashift: Option<u8>,
    style: NameStyle,
}

// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_add; lib/libzfs/libzfs_pool.c, zpool_add (words)
pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let mut options = Options::default();
    let operands = session.read_options(arguments, |session, option| {
        match option {
            AddOption::Force => options.force = true,
            AddOption::Guid => options.style.guid = true,
            AddOption::RealPath => options.style.real_path = true,
            AddOption::DryRun => options.dry_run = true,
            AddOption::FullPath => options.style.full_path = true,
            AddOption::Property(text) => {
                let Some((name, value)) = setting(&text) else {
                    return Err(session.misuse("missing '=' for -o option"));
                };
                if name != "ashift" {
                    return Err(session.misuse(format!("property '{name}' cannot be set here")));
                }
                options.ashift = ashift(session, &value)?;
            }
            AddOption::AllowInUse => options.any_device = true,
            AddOption::AllowReplicationMismatch => options.any_replication = true,
            AddOption::AllowAshiftMismatch => options.any_sector_size = true,
        }
        Ok(())
    })?;
    let Some((name, words)) = operands.split_first() else {
        return Err(session.misuse("missing pool name argument"));
    };
    if words.is_empty() {
        return Err(session.misuse("missing vdev specification"));
    }
    if options.force {
        if options.any_device || options.any_replication || options.any_sector_size {
            return Err(session.misuse(
                "'-f' option is not allowed with '--allow-replication-mismatch', '--allow-ashift-mismatch', or '--allow-in-use'",
            ));
        }
        options.any_device = true;
        options.any_replication = true;
        options.any_sector_size = true;
    }
    if let Some(why) = bad_name(name) {
        return Err(session.fail(format!("cannot open '{name}': {why}")));
    }
    let pool = open_pool(session, name).await?;
    let layout = Layout::read(session, words)?;
    in_use_here(session, &layout, options.any_device).await?;
    let status = match pool.status().await {
        Ok(status) => status,
        Err(error) => return Err(session.fail(format!("cannot add to '{name}': {error}"))),
    };
    if !options.any_replication {
        layout.check_replication(session, Some(&status.root))?;
    }
    if options.dry_run {
        session.out.text(drawn(&status, &layout, options.style));
        return Ok(());
    }
    let spec = AddSpec {
        vdevs: layout.normal,
        dedup: layout.dedup,
        special: layout.special,
        logs: layout.logs,
        spares: layout.spares,
        caches: layout.caches,
        ashift: options.ashift,
        force: options.any_device,
        any_sector_size: options.any_sector_size,
    };
    match pool.add(spec).await {
        Ok(()) => {
            session.record(&pool).await;
            session.appliance.devices_changed(&pool).await;
            Ok(())
        }
        Err(EngineError::Pool(error @ PoolError::DeviceInUse { .. })) => {
            Err(in_use(session, &error))
        }
        Err(EngineError::Pool(PoolError::DeviceTooSmall { .. })) => Err(session.fail(format!(
            "cannot add to '{name}': device is less than the minimum size (64M)"
        ))),
        Err(error) => Err(session.fail(format!("cannot add to '{name}': {error}"))),
    }
}

/// The pool as it would be, class by class: what is there with its names, then what is new.
fn drawn(status: &PoolStatus, layout: &Layout, style: NameStyle) -> String {
    let (name, root) = (&status.name, &status.root);
    let mut text = format!("would update '{name}' to the following configuration:\n\n\t{name}\n");
    let parts: [(AllocationBias, &str, &[VdevSpec]); 4] = [
        (AllocationBias::None, "", &layout.normal),
        (AllocationBias::Dedup, "dedup", &layout.dedup),
        (AllocationBias::Special, "special", &layout.special),
        (AllocationBias::Log, "logs", &layout.logs),
    ];
    for (bias, title, new) in parts {
        let tops: Vec<&VdevStatus> = root.children.iter().filter(|t| t.bias == bias).collect();
        if tops.is_empty() && new.is_empty() {
            continue;
        }
        if !title.is_empty() {
            text.push_str(&format!("\t{title}\n"));
        }
        for top in tops {
            // Only the ordinary vdevs are numbered.
            present(&mut text, top, 2, style, bias == AllocationBias::None);
        }
        vdev_lines(&mut text, new);
    }
    let parts = [
        ("cache", &status.caches, &layout.caches),
        ("spares", &status.spares, &layout.spares),
    ];
    for (title, own, new) in parts {
        if !(own.is_empty() && new.is_empty()) {
            text.push_str(&format!("\t{title}\n"));
        }
        for device in own {
            present(&mut text, device, 2, style, false);
        }
        for path in new {
            device_line(&mut text, 2, path);
        }
    }
    text
}

fn present(text: &mut String, vdev: &VdevStatus, depth: usize, style: NameStyle, numbered: bool) {
    let mut shown = style.name(vdev);
    if !numbered && vdev.path.is_none() && !style.guid {
        let end = shown.rfind('-').unwrap_or(shown.len());
        shown.truncate(end);
    }
    text.push_str(&format!("\t{:depth$}{shown}\n", ""));
    for child in &vdev.children {
        present(text, child, depth + 2, style, numbered);
    }
}

/// Reads the value of `-o ashift`; none lets the device decide.
pub(super) fn ashift(session: &Session, value: &str) -> Result<Option<u8>, Exit> {
    match value.parse() {
        Ok(0) => Ok(None),
        Ok(shift @ 9..=16) => Ok(Some(shift)),
        _ => Err(session.misuse(format!(
            "property 'ashift' number {value} is invalid, only values between 9 and 16 are allowed."
        ))),
    }
}
