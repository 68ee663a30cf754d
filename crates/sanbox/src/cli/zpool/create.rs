//! `zpool create`.

use std::path::PathBuf;

use engine::{EngineError, FeatureBase, NewKey, PoolError, PoolSpec, supported_features};

use super::bad_name;
use super::compatibility::Requested;
use super::layout::{Layout, device_line, in_use, in_use_here, vdev_lines};
use crate::cli::command::{Command, Word, options};
use crate::cli::zfs::keys::{self, KeyInput};
use crate::cli::{Exit, NOTHING_SERVED, Outcome, Session, setting};

options! {
    CreateOption {
        Force = short('f', "use devices that seem to be in use, and mix kinds of redundancy"),
        DryRun = short('n', "show what would be made, and make nothing"),
        NoFeatures = short('d', "enable no feature but those set with -o feature@...=enabled"),
        Altroot(String) = valued('R', "root", "mount below this directory, and forget the pool at the next start"),
        Mountpoint(String) = valued('m', "mountpoint", "mount point of the pool's file system"),
        Property(String) = valued('o', "property=value", "a property of the pool"),
        RootProperty(String) = valued('O', "file-system-property=value", "a property of the pool's file system"),
        TemporaryName(String) = valued('t', "name", "have the pool go by this name until its export, by the other on disk"),
    }
}

/// The declaration of `zpool create`.
pub(super) const CREATE: Command = Command {
    name: "create",
    summary: "create a pool",
    usage: "\tcreate [-fnd] [-o property=value] ... \n\
         \t    [-O file-system-property=value] ... \n\
         \t    [-m mountpoint] [-R root] [-t name] <pool> <vdev> ...\n",
    flags: CreateOption::FLAGS,
    words: &[Word::Text, Word::Device],
    examples: &[
        (
            "zpool create tank mirror /dev/sdb /dev/sdc",
            "a pool that survives the loss of one disk",
        ),
        (
            "zpool create tank raidz2 /dev/sd[b-g]",
            "six disks, any two of which may fail",
        ),
        (
            "zpool create -n tank mirror a b mirror c d",
            "show what would be made, and make nothing",
        ),
        (
            "zpool create tank mirror a b special mirror c d log mirror e f",
            "metadata on two fast disks, synchronous writes logged on two others",
        ),
        (
            "zpool create -o ashift=12 -O compression=zstd tank /srv/disk0",
            "a pool on a plain file, for 4 KiB sectors, with zstd for every dataset",
        ),
        (
            "zpool create -t new -R /mnt tank mirror /dev/sdb /dev/sdc",
            "a pool for another machine, which has it as 'tank', though there is a 'tank' here",
        ),
    ],
    ..Command::NEW
};

#[derive(Default)]
struct Options {
    force: bool,
    dry_run: bool,
    no_features: bool,
    altroot: Option<String>,
    mountpoint: Option<String>,
    properties: Vec<(String, String)>,
    root_properties: Vec<(String, String)>,
    temporary_name: Option<String>,
}

impl Options {
    fn read(session: &Session, arguments: &[String]) -> Result<(Self, Vec<String>), Exit> {
        let mut options = Self::default();
        let operands = session.read_options(arguments, |session, option| {
            match option {
                CreateOption::Force => options.force = true,
                CreateOption::DryRun => options.dry_run = true,
                CreateOption::NoFeatures => options.no_features = true,
                CreateOption::Altroot(root) => options.altroot = Some(root),
                CreateOption::Mountpoint(mountpoint) => options.mountpoint = Some(mountpoint),
                CreateOption::Property(text) => options.property(session, &text)?,
                CreateOption::RootProperty(text) => options.root_property(session, &text)?,
                CreateOption::TemporaryName(name) => options.temporary(session, name)?,
            }
            Ok(())
        })?;
        Ok((options, operands))
    }

    /// Takes `-o`.
    fn property(&mut self, session: &Session, text: &str) -> Outcome {
        let Some((name, value)) = setting(text) else {
            return Err(session.fail("missing '=' for -o option"));
        };
        if self.properties.iter().any(|(known, _)| *known == name) {
            return Err(session.misuse(format!("property '{name}' specified multiple times")));
        }
        if name == "altroot" {
            self.altroot = Some(value);
        } else {
            self.properties.push((name, value));
        }
        Ok(())
    }

    /// Takes `-t`. Such a pool is not remembered, unless it is asked for.
    fn temporary(&mut self, session: &Session, name: String) -> Outcome {
        if name.contains('/') {
            session.out.error(format!(
                "cannot create '{name}': invalid character '/' in temporary name"
            ));
            return Err(session.fail("use 'zfs create' to create a dataset"));
        }
        if let Some(why) = bad_name(&name) {
            return Err(session.fail(format!("cannot create '{name}': {why}")));
        }
        self.temporary_name = Some(name);
        Ok(())
    }

    /// Takes `-O`.
    fn root_property(&mut self, session: &Session, text: &str) -> Outcome {
        let Some((name, value)) = setting(text) else {
            return Err(session.fail("missing '=' for -O option"));
        };
        if name == "mountpoint" {
            self.mountpoint = Some(value);
            return Ok(());
        }
        if self.root_properties.iter().any(|(known, _)| *known == name) {
            return Err(session.misuse(format!("property '{name}' specified multiple times")));
        }
        self.root_properties.push((name, value));
        Ok(())
    }
}

pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let (mut options, operands) = Options::read(session, arguments)?;
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
    let layout = Layout::read(session, layout)?;
    if !options.force {
        layout.check_replication(session, None)?;
    }
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
    let name_in_use = options.temporary_name.as_ref().unwrap_or(name);
    if session.appliance.mounts_by_itself() {
        empty_mountpoint(session, name_in_use, &options)?;
    }
    if !options.dry_run && session.appliance.known_pool(name_in_use).await.is_some() {
        return Err(session.fail(format!(
            "cannot create '{name_in_use}': pool already exists"
        )));
    }
    in_use_here(session, &layout, options.force).await?;
    let drawing = options.dry_run.then(|| dry_run(name, &layout));
    leave_out(session, &mut options)?;
    let mut root_properties = options.root_properties;
    if let Some(mountpoint) = options.mountpoint {
        root_properties.push(("mountpoint".to_owned(), mountpoint));
    }
    let mut spec = PoolSpec {
        name: name.clone(),
        temporary_name: options.temporary_name,
        vdevs: layout.normal,
        dedup: layout.dedup,
        special: layout.special,
        logs: layout.logs,
        spares: layout.spares,
        caches: layout.caches,
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
    spec.key = root_key(session, &spec, &root_properties).await?;
    match session.appliance.create_pool(spec, &root_properties).await {
        Ok(_) => {
            session.out.hint(NOTHING_SERVED);
            Ok(())
        }
        Err(EngineError::Pool(error @ PoolError::DeviceInUse { .. })) => {
            Err(in_use(session, &error))
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

/// Takes the key of the root file system, if its properties ask for one.
async fn root_key(
    session: &Session,
    spec: &PoolSpec,
    root_properties: &[(String, String)],
) -> Result<Option<NewKey>, Exit> {
    let refuse = |why: &str| session.fail(format!("cannot create '{}': {why}", spec.name));
    let planned = session
        .appliance
        .engine()
        .plan_root_key(spec, root_properties)
        .await;
    match planned.map_err(|error| refuse(&error.to_string()))? {
        Some(planned) => {
            let key = keys::new_key(session, &mut KeyInput::new(session), &planned, None).await;
            Ok(Some(key.map_err(|why| refuse(&why))?))
        }
        None => Ok(None),
    }
}

/// Leaves out the features that `-o compatibility=` does not ask for.
// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_create (words)
fn leave_out(session: &Session, options: &mut Options) -> Outcome {
    let given = &options.properties;
    let Some((_, compatibility)) = given.iter().find(|(name, _)| name == "compatibility") else {
        return Ok(());
    };
    let requested =
        Requested::of(compatibility).map_err(|why| session.fail(format!("Error: {why}")))?;
    for feature in supported_features() {
        let property = format!("feature@{}", feature.name);
        let said = options
            .properties
            .iter()
            .find(|(name, _)| *name == property);
        match said.map(|(_, value)| value.as_str()) {
            _ if requested.has(feature.name) => {}
            None => options.properties.push((property, "disabled".to_owned())),
            Some("enabled") => session.out.error(format!(
                "Warning: feature \"{}\" enabled but is not in specified 'compatibility' feature set.",
                feature.name
            )),
            Some(_) => {}
        }
    }
    Ok(())
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
    for (title, paths) in [("cache", &layout.caches), ("spares", &layout.spares)] {
        if !paths.is_empty() {
            text.push_str(&format!("\t{title}\n"));
        }
        for path in paths {
            device_line(&mut text, 2, path);
        }
    }
    text
}
