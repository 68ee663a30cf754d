//! `zpool split` and `zpool reguid`.

use std::path::{Path, PathBuf};

use engine::{
    AllocationBias, EngineError, ImportPolicy, PoolError, PoolHandle, SplitSpec, VdevStatus,
};

use super::activity::vdev_guid;
use super::{NameStyle, bad_name, open_pool};
use crate::cli::command::{Command, Word, options};
use crate::cli::{Exit, Outcome, Session, setting};

options! {
    SplitOption {
        Guid = short('g', "show devices by guid"),
        RealPath = short('L', "show devices by the path that links lead to"),
        Altroot(String) = valued('R', "altroot", "import the new pool below this directory"),
        LoadKeys = short('l', "load the keys of encrypted datasets; only with -R"),
        DryRun = short('n', "show what would be made, and make nothing"),
        Property(String) = valued('o', "property=value", "a property of the new pool"),
        FullPath = short('P', "show devices by their whole path"),
    }
}

/// The declaration of `zpool split`.
pub(super) const SPLIT: Command = Command {
    name: "split",
    summary: "make a pool of one half of each mirror",
    usage: "\tsplit [-gLnPl] [-R altroot] [-o mntopts]\n\
         \t    [-o property=value] <pool> <newpool> [<device> ...]\n",
    flags: SplitOption::FLAGS,
    words: &[Word::Pool, Word::Text, Word::Device],
    examples: &[
        (
            "zpool split -n tank copy",
            "show which halves of the mirrors would become the pool copy",
        ),
        (
            "zpool split tank copy",
            "make them a pool of its own, ready to be imported anywhere",
        ),
    ],
    ..Command::NEW
};

options! {
    ReguidOption {
        Guid(String) = valued('g', "guid", "this one"),
    }
}

/// The declaration of `zpool reguid`.
pub(super) const REGUID: Command = Command {
    name: "reguid",
    summary: "give a pool another guid",
    usage: "\treguid [-g guid] <pool>\n",
    flags: ReguidOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool],
    examples: &[(
        "zpool reguid tank",
        "a new guid, so that the pool and a copy of its disks can be told apart",
    )],
    ..Command::NEW
};

#[derive(Default)]
struct Options {
    dry_run: bool,
    altroot: Option<String>,
    properties: Vec<(String, String)>,
    mount_options: bool,
    load_keys: bool,
    style: NameStyle,
}

// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_split; lib/libzfs/libzfs_pool.c, zpool_vdev_split (words)
pub(super) async fn split(session: &Session, arguments: &[String]) -> Outcome {
    let mut options = Options::default();
    let operands = session.read_options(arguments, |_, option| {
        match option {
            SplitOption::Guid => options.style.guid = true,
            SplitOption::RealPath => options.style.real_path = true,
            SplitOption::FullPath => options.style.full_path = true,
            SplitOption::DryRun => options.dry_run = true,
            SplitOption::Altroot(root) => options.altroot = Some(root),
            SplitOption::Property(text) => match setting(&text) {
                Some((name, value)) if name == "altroot" => options.altroot = Some(value),
                Some(pair) => options.properties.push(pair),
                None => options.mount_options = true,
            },
            SplitOption::LoadKeys => options.load_keys = true,
        }
        Ok(())
    })?;
    if options.altroot.is_none() && options.mount_options {
        return Err(session.misuse("setting mntopts is only valid when importing the pool"));
    }
    if options.altroot.is_none() && options.load_keys {
        return Err(session.misuse("loading keys is only valid when importing the pool"));
    }
    let (name, new, words) = match operands.as_slice() {
        [] => return Err(session.misuse("Missing pool name")),
        [_] => return Err(session.misuse("Missing new pool name")),
        [name, new, words @ ..] => (name, new, words),
    };
    if let Some(root) = options.altroot.as_deref().filter(|r| !r.starts_with('/')) {
        return Err(session.fail(format!("bad alternate root '{root}'")));
    }
    let pool = open_pool(session, name).await?;
    let refuse = |why: String| session.fail(format!("Unable to split {name}: {why}"));
    if bad_name(new).is_some() {
        return Err(refuse("invalid name".to_owned()));
    }
    if session.appliance.known_pool(new).await.is_some() {
        return Err(refuse("pool already exists".to_owned()));
    }
    let mut devices = Vec::new();
    for word in words {
        match vdev_guid(&pool, word).await? {
            Some(guid) => devices.push(guid),
            None => {
                let what = "Device list must include at most one disk from each mirror";
                return Err(refuse(what.to_owned()));
            }
        }
    }
    let plan = match pool.plan_split(devices.clone()).await {
        Ok(plan) => plan,
        Err(error) => return Err(refuse(error.to_string().trim_end().to_owned())),
    };
    if options.dry_run {
        let status = pool.status().await;
        let status = status.map_err(|error| refuse(error.to_string()))?;
        session
            .out
            .text(drawn(new, &plan, &status.root, options.style));
        return Ok(());
    }
    let places: Vec<PathBuf> = plan.into_iter().map(|(path, _)| path).collect();
    let spec = SplitSpec {
        name: new.clone(),
        devices,
        properties: options.properties,
    };
    if let Err(error) = pool.split(spec).await {
        return Err(refuse(match error {
            EngineError::Pool(PoolError::NoReplicas) => "pool or dataset is busy".to_owned(),
            other => other.to_string(),
        }));
    }
    session.record(&pool).await;
    session.appliance.devices_changed(&pool).await;
    let Some(altroot) = options.altroot else {
        return Ok(());
    };
    let pool = take_in(session, new, places, PathBuf::from(altroot)).await?;
    if options.load_keys {
        crate::cli::zfs::keys::load_all(session, &pool).await?;
        session.appliance.keys_loaded(&pool).await;
    }
    Ok(())
}

/// Imports the new pool, as `-R` asks.
async fn take_in(
    session: &Session,
    name: &str,
    places: Vec<PathBuf>,
    altroot: PathBuf,
) -> Result<PoolHandle, Exit> {
    let failed = |why: String| {
        session.fail(format!(
            "Split was successful, but '{name}' could not be imported: {why}"
        ))
    };
    let found = session.appliance.engine().discover(places).await;
    let found = found.map_err(|error| failed(error.to_string()))?;
    let candidate = found.pools.into_iter().find(|pool| pool.name == name);
    let Some(candidate) = candidate else {
        return Err(failed("no such pool available".to_owned()));
    };
    let policy = ImportPolicy {
        altroot: Some(altroot),
        ..ImportPolicy::default()
    };
    match session.appliance.import_pool(candidate, policy, true).await {
        Ok(pool) => Ok(pool),
        Err(error) => Err(failed(error.to_string())),
    }
}

fn drawn(
    name: &str,
    plan: &[(PathBuf, AllocationBias)],
    root: &VdevStatus,
    style: NameStyle,
) -> String {
    let mut text = format!("would create '{name}' with the following layout:\n\n");
    let parts = [
        (AllocationBias::None, name),
        (AllocationBias::Dedup, "dedup"),
        (AllocationBias::Special, "special"),
    ];
    for (bias, title) in parts {
        let paths: Vec<_> = plan.iter().filter(|(_, of)| *of == bias).collect();
        if !paths.is_empty() {
            text.push_str(&format!("\t{title}\n"));
        }
        for (path, _) in paths {
            let device = leaf_at(root, path).map(|leaf| style.name(leaf));
            let device = device.unwrap_or_else(|| path.display().to_string());
            text.push_str(&format!("\t  {device}\n"));
        }
    }
    text
}

fn leaf_at<'a>(vdev: &'a VdevStatus, path: &Path) -> Option<&'a VdevStatus> {
    if vdev.children.is_empty() && vdev.path.as_deref() == Some(path) {
        return Some(vdev);
    }
    vdev.children.iter().find_map(|child| leaf_at(child, path))
}

// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_reguid; lib/libzfs/libzfs_pool.c, zpool_set_guid
pub(super) async fn reguid(session: &Session, arguments: &[String]) -> Outcome {
    let mut guid = None;
    let operands = session.read_options(arguments, |session, ReguidOption::Guid(text)| {
        match text.parse() {
            Ok(number) => guid = Some(number),
            Err(_) => return Err(session.misuse(format!("invalid GUID: {text}"))),
        }
        Ok(())
    })?;
    let [name] = operands.as_slice() else {
        return Err(session.misuse(if operands.is_empty() {
            "missing pool name"
        } else {
            "too many arguments"
        }));
    };
    let pool: PoolHandle = open_pool(session, name).await?;
    let refuse = |why: &str| session.fail(format!("cannot reguid '{name}': {why}"));
    if let Some(guid) = guid
        && session.appliance.known_guids().await.contains(&guid)
    {
        return Err(refuse("pool already exists"));
    }
    let before = pool.guid();
    match pool.reguid(guid).await {
        Ok(_) => {
            session.record(&pool).await;
            session.appliance.guid_changed(before, &pool).await;
            Ok(())
        }
        Err(error) => Err(refuse(&error.to_string())),
    }
}
