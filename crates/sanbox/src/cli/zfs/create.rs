//! `zfs create`, `zfs destroy` and `zfs rename`.

use engine::property::DatasetKind;
use engine::{
    CreateDataset, DatasetFilter, DestroyOptions, EngineError, PoolHandle, PropertyQuery,
};

use super::{bad_name, flag, open};
use crate::cli::getopt::Opt;
use crate::cli::{Exit, Outcome, Session, dataset_clause, pool_part, setting};

pub(super) async fn create(session: &Session, arguments: &[String]) -> Outcome {
    let (mut parents, mut dry_run, mut verbose, mut parseable) = (false, false, false, false);
    let (mut volume, mut volume_only, mut unmounted) = (false, false, false);
    let mut properties: Vec<(String, String)> = Vec::new();
    let operands = session.options(arguments, ":PV:b:nso:puv", &[], |session, option| {
        match option {
            Opt::Short('V', _) => volume = true,
            Opt::Short('P', _) => {
                verbose = true;
                parseable = true;
            }
            Opt::Short('p', _) => parents = true,
            Opt::Short('b' | 's', _) => volume_only = true,
            Opt::Short('n', _) => dry_run = true,
            Opt::Short('u', _) => unmounted = true,
            Opt::Short('v', _) => verbose = true,
            Opt::Short('o', Some(text)) => {
                let Some((name, value)) = setting(&text) else {
                    return Err(session.misuse("missing '=' for property=value argument"));
                };
                if properties.iter().any(|(known, _)| *known == name) {
                    return Err(
                        session.misuse(format!("property '{name}' specified multiple times"))
                    );
                }
                properties.push((name, value));
            }
            _ => {}
        }
        Ok(())
    })?;
    if volume_only && !volume {
        return Err(session.misuse("'-s' and '-b' can only be used when creating a volume"));
    }
    if unmounted && volume {
        return Err(session.misuse("'-u' can only be used when creating a filesystem"));
    }
    let [name] = operands.as_slice() else {
        return Err(session.misuse(match operands.len() {
            0 if volume => "missing volume argument",
            0 => "missing filesystem argument",
            _ => "too many arguments",
        }));
    };
    let verb = if dry_run {
        "cannot verify"
    } else {
        "cannot create"
    };
    if volume {
        return Err(session.fail(format!("{verb} '{name}': volumes are not supported yet")));
    }
    if let Some(why) = bad_name(name, DatasetKind::Filesystem) {
        return Err(session.fail(format!("{verb} '{name}': {why}")));
    }
    let pool = match session.appliance.pool_of(name).await {
        Ok(pool) => pool,
        Err(_) if !name.contains('/') => {
            return Err(session.fail(format!("{verb} '{name}': missing dataset name")));
        }
        Err(EngineError::PoolNotFound(pool)) => {
            return Err(session.fail(format!("{verb} '{name}': no such pool '{pool}'")));
        }
        Err(error) => return Err(session.fail(format!("{verb} '{name}': {error}"))),
    };
    if let Some(reason) = crate::appliance::check_share_settings(&properties) {
        return Err(session.fail(format!("{verb} '{name}': {reason}")));
    }
    let existed = pool.dataset(name, &PropertyQuery::None).await.is_ok();
    if existed && parents {
        // With -p an existing dataset is no error.
        return Ok(());
    }
    if verbose {
        let parent = name
            .rsplit_once('/')
            .map_or(name.as_str(), |(parent, _)| parent);
        let parent_exists = pool.dataset(parent, &PropertyQuery::None).await.is_ok();
        if parents && !parent_exists {
            session.out.line(match (parseable, dry_run) {
                (true, _) => format!("create_ancestors\t{name}"),
                (false, true) => format!("would create ancestors of {name}"),
                (false, false) => format!("create ancestors of {name}"),
            });
        }
        session.out.line(match (parseable, dry_run) {
            (true, _) => format!("create\t{name}"),
            (false, true) => format!("would create {name}"),
            (false, false) => format!("create {name}"),
        });
        for (property, value) in &properties {
            session.out.line(if parseable {
                format!("property\t{property}\t{value}")
            } else {
                format!("\t{property}={value}")
            });
        }
    }
    let request = CreateDataset {
        name: name.clone(),
        properties,
        parents,
        dry_run,
    };
    match pool.create_dataset(request).await {
        Ok(()) => {}
        Err(EngineError::ParentNotFound(_)) if !name.contains('/') => {
            return Err(session.fail(format!("{verb} '{name}': missing dataset name")));
        }
        Err(error) => return Err(session.fail(format!("{verb} '{name}': {error}"))),
    }
    if !dry_run {
        session.record(&pool).await;
        session.appliance.datasets_changed().await;
        if !unmounted {
            session.appliance.mount_created(&pool, name).await;
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Default)]
struct DestroyFlags {
    dry_run: bool,
    verbose: bool,
    parseable: bool,
    recursive: bool,
    force: bool,
}

pub(super) async fn destroy(session: &Session, arguments: &[String]) -> Outcome {
    let mut flags = DestroyFlags::default();
    let operands = session.options(arguments, "vpndfrR", &[], |_, option| {
        flags.verbose |= flag(&option, 'v') || flag(&option, 'p');
        flags.parseable |= flag(&option, 'p');
        flags.dry_run |= flag(&option, 'n');
        flags.force |= flag(&option, 'f');
        flags.recursive |= flag(&option, 'r') || flag(&option, 'R');
        Ok(())
    })?;
    let [name] = operands.as_slice() else {
        return Err(session.misuse(if operands.is_empty() {
            "missing dataset argument"
        } else {
            "too many arguments"
        }));
    };
    if let Some((dataset, snapshot)) = name.split_once('@') {
        let (_, info) = open(session, dataset, &PropertyQuery::None).await?;
        let _ = (info, snapshot);
        return Err(session.fail("could not find any snapshots to destroy; check snapshot names."));
    }
    if name.contains('#') {
        return Err(session.fail(format!("bookmark '{name}' does not exist.")));
    }
    let (pool, _) = open(session, name, &PropertyQuery::None).await?;
    if !name.contains('/') && !flags.recursive {
        session.out.error(format!(
            "cannot destroy '{name}': operation does not apply to pools"
        ));
        session.out.error(format!(
            "use 'zfs destroy -r {name}' to destroy all datasets in the pool"
        ));
        return Err(session.fail(format!(
            "use 'zpool destroy {name}' to destroy the pool itself"
        )));
    }
    let all_kinds = super::ALL_KINDS.to_vec();
    let filter = DatasetFilter {
        root: name.clone(),
        depth: None,
        kinds: all_kinds,
    };
    let below = match pool.datasets(&filter, &PropertyQuery::None).await {
        Ok(found) => found,
        Err(error) => {
            return Err(session.fail(format!(
                "cannot destroy '{name}': {}",
                dataset_clause(&error)
            )));
        }
    };
    let mut doomed: Vec<(String, u64)> = below.into_iter().map(|i| (i.name, i.object)).collect();
    if doomed.len() > 1 && !flags.recursive {
        let kind = "filesystem";
        session
            .out
            .error(format!("cannot destroy '{name}': {kind} has children"));
        session
            .out
            .error("use '-r' to destroy the following datasets:");
        for (child, _) in doomed.iter().skip(1) {
            session.out.error(child);
        }
        return Err(Exit(1));
    }
    // Children first; the root of a pool itself stays.
    doomed.reverse();
    let spare_root = !name.contains('/');
    let mut failed = false;
    for (victim, _) in doomed
        .iter()
        .filter(|(victim, _)| !(spare_root && victim == name))
    {
        if flags.verbose {
            session.out.line(match (flags.parseable, flags.dry_run) {
                (true, _) => format!("destroy\t{victim}"),
                (false, true) => format!("would destroy {victim}"),
                (false, false) => format!("will destroy {victim}"),
            });
        }
        if !flags.dry_run {
            failed |= destroy_one(session, &pool, victim, flags.force)
                .await
                .is_err();
        }
    }
    if !flags.dry_run {
        session.record(&pool).await;
        session.appliance.datasets_changed().await;
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

async fn destroy_one(session: &Session, pool: &PoolHandle, name: &str, force: bool) -> Outcome {
    if session.appliance.unmount_for(name, force).await.is_err() {
        return Err(session.fail(format!("cannot destroy '{name}': dataset is busy")));
    }
    match pool.destroy_dataset(name, DestroyOptions::default()).await {
        Ok(()) => Ok(()),
        Err(error) => Err(session.fail(format!("cannot destroy '{name}': {error}"))),
    }
}

pub(super) async fn rename(session: &Session, arguments: &[String]) -> Outcome {
    let (mut parents, mut recursive, mut unmounted) = (false, false, false);
    let operands = session.options(arguments, "pruf", &[], |_, option| {
        parents |= flag(&option, 'p');
        recursive |= flag(&option, 'r');
        unmounted |= flag(&option, 'u');
        Ok(())
    })?;
    let (from, to) = match operands.as_slice() {
        [] => return Err(session.misuse("missing source dataset argument")),
        [_] => return Err(session.misuse("missing target dataset argument")),
        [from, to] => (from, to),
        _ => return Err(session.misuse("too many arguments")),
    };
    if recursive && parents {
        return Err(session.misuse("-p and -r options are mutually exclusive"));
    }
    if unmounted && parents {
        return Err(session.misuse("-u and -p options are mutually exclusive"));
    }
    if recursive && !from.contains('@') {
        return Err(session.misuse("source dataset for recursive rename must be a snapshot"));
    }
    let (pool, info) = open(session, from, &PropertyQuery::None).await?;
    if info.kind == DatasetKind::Snapshot {
        return Err(session.fail(format!(
            "cannot rename to '{to}': renaming snapshots is not supported yet"
        )));
    }
    let refuse = |why: &str| Err(session.fail(format!("cannot rename to '{to}': {why}")));
    if from == to {
        return Ok(());
    }
    if let Some(why) = bad_name(to, DatasetKind::Filesystem) {
        return refuse(&why);
    }
    if pool_part(from) != pool_part(to) {
        return refuse("datasets must be within same pool");
    }
    if !from.contains('/') {
        return refuse("invalid argument for this pool operation");
    }
    if to
        .strip_prefix(from.as_str())
        .is_some_and(|rest| rest.starts_with('/'))
    {
        return refuse("New dataset name cannot be a descendant of current dataset name");
    }
    match pool.rename_dataset(from, to, parents).await {
        Ok(()) => {
            session.record(&pool).await;
            session.appliance.datasets_changed().await;
            Ok(())
        }
        Err(error) => refuse(&error.to_string()),
    }
}
