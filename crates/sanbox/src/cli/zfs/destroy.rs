//! `zfs destroy`: datasets with what depends on them, snapshots by name and range, bookmarks.
//!
//! OpenZFS: cmd/zfs/zfs_main.c, `zfs_do_destroy`.

use std::collections::{BTreeMap, BTreeSet};

use engine::property::DatasetKind;
use engine::{
    DatasetFilter, DatasetInfo, DestroyOptions, EngineError, PoolHandle, PropertyQuery, Refusal,
};

use manage::database::seconds_since_epoch;
use manage::trash;

use super::open;
use crate::cli::command::{Command, Word, options};
use crate::cli::format::{date, nice_bytes};
use crate::cli::{Exit, Outcome, Session, dataset_clause, user_name};
use crate::follow;

options! {
    DestroyOption {
        Verbose = short('v', "say what is destroyed"),
        Parsable = short('p', "the same, for scripts"),
        DryRun = short('n', "destroy nothing"),
        Defer = short('d', "snapshots: when the last hold and clone is gone"),
        Force = short('f', "as without: Linux unmounts nothing that is in use"),
        Recursive = short('r', "with what lies below"),
        Clones = short('R', "with clones, too"),
    }
}

/// The declaration of `zfs destroy`.
pub(super) const DESTROY: Command = Command {
    name: "destroy",
    summary: "destroy datasets, snapshots and bookmarks",
    usage: "\tdestroy [-fnpRrv] <filesystem|volume>\n\
         \tdestroy [-dnpRrv] <filesystem|volume>@<snap>[%<snap>][,...]\n\
         \tdestroy <filesystem|volume>#<bookmark>\n",
    flags: DestroyOption::FLAGS,
    says_missing: false,
    words: &[Word::Dataset],
    examples: &[
        ("zfs destroy tank/old", "a file system and its contents"),
        (
            "zfs destroy -nvr tank/old",
            "show what that would destroy, with everything below it",
        ),
        (
            "zfs destroy -nv tank/home@monday%friday",
            "show what destroying a run of snapshots would free",
        ),
    ],
    ..Command::NEW
};

#[derive(Clone, Copy, Default)]
struct Flags {
    dry_run: bool,
    verbose: bool,
    parseable: bool,
    recursive: bool,
    clones: bool,
    defer: bool,
}

/// Something that must go before something else can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dependent {
    pub(super) name: String,
    pub(super) kind: DatasetKind,
}

pub(super) async fn destroy(session: &Session, arguments: &[String]) -> Outcome {
    let mut flags = Flags::default();
    let operands = session.read_options(arguments, |_, option| {
        match option {
            DestroyOption::Verbose => flags.verbose = true,
            DestroyOption::Parsable => {
                flags.verbose = true;
                flags.parseable = true;
            }
            DestroyOption::DryRun => flags.dry_run = true,
            DestroyOption::Defer => flags.defer = true,
            DestroyOption::Recursive => flags.recursive = true,
            DestroyOption::Clones => {
                flags.recursive = true;
                flags.clones = true;
            }
            DestroyOption::Force => {}
        }
        Ok(())
    })?;
    let [name] = operands.as_slice() else {
        return Err(session.misuse(if operands.is_empty() {
            "missing dataset argument"
        } else {
            "too many arguments"
        }));
    };
    if let Some((dataset, spec)) = name.split_once('@') {
        return destroy_snapshots(session, dataset, spec, flags).await;
    }
    if name.contains('#') {
        return destroy_bookmark(session, name, flags).await;
    }
    destroy_dataset(session, name, flags).await
}

async fn destroy_bookmark(session: &Session, name: &str, flags: Flags) -> Outcome {
    // OpenZFS ends these with -1, which a shell sees as 255.
    let refuse = |what: &str| {
        session
            .out
            .error(format!("{what} is not supported with bookmark"));
        Err(Exit(255))
    };
    if flags.dry_run {
        return refuse("dryrun");
    }
    if flags.defer {
        return refuse("defer destroy");
    }
    if flags.recursive {
        return refuse("recursive");
    }
    let missing = || session.fail(format!("bookmark '{name}' does not exist."));
    let Ok(pool) = session.appliance.pool_of(name).await else {
        return Err(missing());
    };
    if pool.dataset(name, &PropertyQuery::None).await.is_err() {
        return Err(missing());
    }
    let failed = |error: &EngineError| session.fail(format!("cannot destroy bookmark: {error}"));
    match pool.destroy_bookmarks(&[name.to_owned()]).await {
        Ok(refused) => {
            if let Some(refusal) = refused.first() {
                return Err(failed(&refusal.error));
            }
            session.record(&pool).await;
            Ok(())
        }
        Err(error) => Err(failed(&error)),
    }
}

/// Says what is going to happen to a dataset.
fn announce(session: &Session, name: &str, flags: Flags) {
    if flags.verbose {
        session.out.line(match (flags.parseable, flags.dry_run) {
            (true, _) => format!("destroy\t{name}"),
            (false, true) => format!("would destroy {name}"),
            (false, false) => format!("will destroy {name}"),
        });
    }
}

/// Lists datasets of a pool with their clones.
async fn listed(
    pool: &PoolHandle,
    root: &str,
    depth: Option<u32>,
    kinds: &[DatasetKind],
) -> Result<Vec<DatasetInfo>, EngineError> {
    let filter = DatasetFilter {
        root: root.to_owned(),
        depth,
        kinds: kinds.to_vec(),
    };
    let query = PropertyQuery::Named(vec!["clones".to_owned()]);
    pool.datasets(&filter, &query).await
}

fn clones_of(info: &DatasetInfo) -> Vec<String> {
    info.property("clones")
        .and_then(|property| property.value.text())
        .filter(|text| !text.is_empty())
        .map(|text| text.split(',').map(str::to_owned).collect())
        .unwrap_or_default()
}

/// The snapshots of a dataset that a `a,b%c` means, oldest first.
fn matching<'a>(spec: &str, all: &'a [DatasetInfo]) -> Vec<&'a DatasetInfo> {
    let places: BTreeMap<&str, usize> = all
        .iter()
        .enumerate()
        .filter_map(|(place, info)| Some((info.name.split_once('@')?.1, place)))
        .collect();
    let at = |name: &str| places.get(name).copied();
    let mut chosen = BTreeSet::new();
    for part in spec.split(',') {
        match part.split_once('%') {
            None => chosen.extend(at(part)),
            Some((first, last)) => {
                let from = if first.is_empty() { Some(0) } else { at(first) };
                let to = if last.is_empty() {
                    all.len().checked_sub(1)
                } else {
                    at(last)
                };
                if let (Some(from), Some(to)) = (from, to)
                    && from <= to
                {
                    chosen.extend(from..=to);
                }
            }
        }
    }
    chosen.into_iter().filter_map(|i| all.get(i)).collect()
}

async fn destroy_snapshots(session: &Session, dataset: &str, spec: &str, flags: Flags) -> Outcome {
    let (pool, _) = open(session, dataset, &PropertyQuery::None).await?;
    let failed = |error: &EngineError| {
        let clause = dataset_clause(error);
        session.fail(format!("cannot destroy snapshots: {clause}"))
    };
    let mut datasets = vec![dataset.to_owned()];
    if flags.recursive {
        let kinds = [DatasetKind::Filesystem, DatasetKind::Volume];
        let found = listed(&pool, dataset, None, &kinds).await;
        let found = found.map_err(|error| failed(&error))?;
        datasets = found.into_iter().map(|info| info.name).collect();
    }
    let mut doomed: Vec<String> = Vec::new();
    let mut reclaim = 0;
    let mut blocked = false;
    for dataset in &datasets {
        let own = format!("{dataset}@");
        let all: Vec<DatasetInfo> = listed(&pool, dataset, Some(1), &[DatasetKind::Snapshot])
            .await
            .map_err(|error| failed(&error))?
            .into_iter()
            .filter(|info| info.name.starts_with(&own))
            .collect();
        let chosen = matching(spec, &all);
        for info in &chosen {
            if !flags.clones && !flags.defer && !clones_of(info).is_empty() {
                let below = dependents(&pool, &info.name)
                    .await
                    .map_err(|error| failed(&error))?;
                blocked |= refuse_clones(session, &info.name, "snapshot", &below);
            }
            doomed.push(info.name.clone());
        }
        if flags.verbose {
            reclaim += announce_ranges(session, &pool, &all, &chosen, flags)
                .await
                .map_err(|error| failed(&error))?;
        }
    }
    if blocked {
        return Err(Exit(1));
    }
    if doomed.is_empty() {
        return Err(session.fail("could not find any snapshots to destroy; check snapshot names."));
    }
    if flags.verbose {
        session.out.line(match (flags.parseable, flags.dry_run) {
            (true, _) => format!("reclaim\t{reclaim}"),
            (false, true) => format!("would reclaim {}", nice_bytes(reclaim)),
            (false, false) => format!("will reclaim {}", nice_bytes(reclaim)),
        });
    }
    if flags.dry_run {
        return Ok(());
    }
    if flags.clones {
        let mut below = Vec::new();
        for name in &doomed {
            let more = dependents(&pool, name).await;
            below.extend(more.map_err(|error| failed(&error))?);
        }
        let mut seen = BTreeSet::new();
        below.retain(|d| seen.insert(d.name.clone()));
        // Those of clones below the dataset go with the clones.
        doomed.retain(|name| !seen.contains(name));
        for dependent in &below {
            announce(session, &dependent.name, flags);
        }
        destroy_batches(session, &pool, &below, false).await?;
    }
    destroy_names(session, &pool, &doomed, flags.defer).await?;
    session.record(&pool).await;
    session.appliance.datasets_changed().await;
    Ok(())
}

/// Says which snapshots go and returns what that frees, range by range.
async fn announce_ranges(
    session: &Session,
    pool: &PoolHandle,
    all: &[DatasetInfo],
    chosen: &[&DatasetInfo],
    flags: Flags,
) -> Result<u64, EngineError> {
    let wanted: BTreeSet<&str> = chosen.iter().map(|info| info.name.as_str()).collect();
    let mut freed = 0;
    let mut range: Option<(&str, &str)> = None;
    for info in all {
        let name = info.name.as_str();
        if wanted.contains(name) {
            announce(session, name, flags);
            range = Some((range.map_or(name, |(first, _)| first), name));
        } else if let Some((first, last)) = range.take() {
            freed += pool.would_free(first, last).await?;
        }
    }
    if let Some((first, last)) = range {
        freed += pool.would_free(first, last).await?;
    }
    Ok(freed)
}

/// Says that clones stand in the way, if there are any.
fn refuse_clones(session: &Session, name: &str, kind: &str, clones: &[Dependent]) -> bool {
    if clones.is_empty() {
        return false;
    }
    session.out.error(format!(
        "cannot destroy '{name}': {kind} has dependent clones"
    ));
    session
        .out
        .error("use '-R' to destroy the following datasets:");
    for clone in clones {
        session.out.error(&clone.name);
    }
    true
}

/// What depends on a dataset or snapshot, in the order in which it can be destroyed: children and
/// clones with theirs first.
pub(super) async fn dependents(
    pool: &PoolHandle,
    name: &str,
) -> Result<Vec<Dependent>, EngineError> {
    let kinds = [
        DatasetKind::Filesystem,
        DatasetKind::Volume,
        DatasetKind::Snapshot,
    ];
    let mut known: BTreeMap<String, DatasetInfo> = BTreeMap::new();
    let mut children: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut roots = vec![name.to_owned()];
    while let Some(root) = roots.pop() {
        if known.contains_key(&root) {
            continue;
        }
        for info in listed(pool, &root, None, &kinds).await? {
            roots.extend(clones_of(&info));
            if known.contains_key(&info.name) {
                continue;
            }
            if let Some(cut) = info.name.rfind(['/', '@']) {
                let parent = info.name[..cut].to_owned();
                children.entry(parent).or_default().push(info.name.clone());
            }
            known.insert(info.name.clone(), info);
        }
    }
    // Without recursion: a step is entered, what it depends on is put on top, then it is left.
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    let mut work = vec![(name.to_owned(), false)];
    while let Some((at, left)) = work.pop() {
        let Some(info) = known.get(&at) else { continue };
        if left {
            if at != name {
                found.push(Dependent {
                    name: at,
                    kind: info.kind,
                });
            }
            continue;
        }
        if !seen.insert(at.clone()) {
            continue;
        }
        work.push((at.clone(), true));
        if info.kind == DatasetKind::Snapshot {
            let clones = clones_of(info);
            work.extend(clones.into_iter().rev().map(|clone| (clone, false)));
        } else {
            let own = children.get(&at).cloned().unwrap_or_default();
            // The last put is the first done: file systems before snapshots.
            let (snapshots, below): (Vec<_>, Vec<_>) =
                own.into_iter().partition(|child| child.contains('@'));
            work.extend(snapshots.into_iter().rev().map(|child| (child, false)));
            work.extend(below.into_iter().rev().map(|child| (child, false)));
        }
    }
    Ok(found)
}

/// Says what lies below a dataset that is to be destroyed without it.
fn refuse_children(session: &Session, name: &str, kind: &str, own: &[Dependent]) -> Exit {
    session
        .out
        .error(format!("cannot destroy '{name}': {kind} has children"));
    session
        .out
        .error("use '-r' to destroy the following datasets:");
    for child in own {
        session.out.error(&child.name);
    }
    Exit(1)
}

/// Says that the pool's own dataset is not destroyed.
fn refuse_pool(session: &Session, name: &str) -> Exit {
    session.out.error(format!(
        "cannot destroy '{name}': operation does not apply to pools"
    ));
    session.out.error(format!(
        "use 'zfs destroy -r {name}' to destroy all datasets in the pool"
    ));
    session.fail(format!(
        "use 'zpool destroy {name}' to destroy the pool itself"
    ))
}

async fn destroy_dataset(session: &Session, name: &str, flags: Flags) -> Outcome {
    let (pool, info) = open(session, name, &PropertyQuery::None).await?;
    if flags.defer {
        return Err(session.fail(format!(
            "cannot open '{name}': operation not applicable to datasets of this type"
        )));
    }
    if !name.contains('/') && !flags.recursive {
        return Err(refuse_pool(session, name));
    }
    let failed = |error: &EngineError| {
        session.fail(format!(
            "cannot destroy '{name}': {}",
            dataset_clause(error)
        ))
    };
    let mut doomed = dependents(&pool, name)
        .await
        .map_err(|error| failed(&error))?;
    let below = |other: &str| {
        other
            .strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(['/', '@']))
    };
    let (own, clones): (Vec<_>, Vec<_>) = doomed.iter().cloned().partition(|d| below(&d.name));
    if !own.is_empty() && !flags.recursive {
        return Err(refuse_children(session, name, info.kind.as_str(), &own));
    }
    if flags.recursive && !flags.clones && refuse_clones(session, name, info.kind.as_str(), &clones)
    {
        return Err(Exit(1));
    }
    // The root of a pool itself stays.
    if name.contains('/') {
        doomed.push(Dependent {
            name: name.to_owned(),
            kind: info.kind,
        });
    }
    for victim in &doomed {
        announce(session, &victim.name, flags);
    }
    if !name.contains('/') {
        announce(session, name, flags);
    }
    if let Some(seconds) = kept(session, &pool, name).await? {
        return discard(
            session,
            &pool,
            name,
            seconds,
            &doomed,
            &clones,
            flags.dry_run,
        )
        .await;
    }
    if flags.dry_run {
        return Ok(());
    }
    let outcome = destroy_batches(session, &pool, &doomed, flags.recursive).await;
    session.record(&pool).await;
    session.appliance.datasets_changed().await;
    outcome
}

/// Destroys a dataset with its snapshots and what is below it, for good. What cannot be destroyed, such as what has clones elsewhere, stays.
pub(in crate::cli) async fn destroy_tree(
    session: &Session,
    pool: &PoolHandle,
    name: &str,
) -> Outcome {
    let failed = |error: &EngineError| {
        session.fail(format!(
            "cannot destroy '{name}': {}",
            dataset_clause(error)
        ))
    };
    let mut doomed = dependents(pool, name)
        .await
        .map_err(|error| failed(&error))?;
    let outside = |one: &&Dependent| !one.name.starts_with(&format!("{name}/"));
    let mut clones = doomed
        .iter()
        .filter(|one| one.kind != DatasetKind::Snapshot);
    if let Some(clone) = clones.find(outside) {
        let why = format!(
            "cannot destroy '{name}': '{}' is a clone of a snapshot of it",
            clone.name
        );
        return Err(session.fail(why));
    }
    let info = pool.dataset(name, &PropertyQuery::None).await;
    doomed.push(Dependent {
        kind: info.map_err(|error| failed(&error))?.kind,
        name: name.to_owned(),
    });
    let outcome = destroy_batches(session, pool, &doomed, false).await;
    session.record(pool).await;
    session.appliance.datasets_changed().await;
    outcome
}

/// For how many seconds the trash keeps a dataset, if it does.
async fn kept(session: &Session, pool: &PoolHandle, name: &str) -> Result<Option<u64>, Exit> {
    let kept = trash::kept_seconds(pool, name).await;
    let kept = kept.map_err(|error| session.fail(format!("cannot destroy '{name}': {error}")))?;
    // What would be kept would be below it.
    if kept.is_some() && !name.contains('/') {
        let off = format!(
            "'zfs set {}=off {name}' turns it off",
            trash::TRASH_PROPERTY
        );
        let why = format!(
            "cannot destroy '{name}': its trash is on. Destroy what is below it one by one; {off}"
        );
        return Err(session.fail(why));
    }
    Ok(kept)
}

/// Puts a dataset into the trash in place of destroying it.
async fn discard(
    session: &Session,
    pool: &PoolHandle,
    name: &str,
    seconds: u64,
    doomed: &[Dependent],
    clones: &[Dependent],
    dry_run: bool,
) -> Outcome {
    if let Some(clone) = clones.first() {
        let why = format!(
            "cannot destroy '{name}': the trash does not take clones elsewhere, such as {}",
            clone.name
        );
        return Err(session.fail(why));
    }
    let until = date(seconds_since_epoch() + seconds);
    if dry_run {
        session.out.error(format!(
            "note: '{name}' would be kept in the trash until {until}"
        ));
        return Ok(());
    }
    for one in doomed
        .iter()
        .filter(|one| one.kind != DatasetKind::Snapshot)
    {
        set_free(session, pool, &one.name, name).await?;
    }
    let uid = u64::from(session.caller.uid);
    let by = user_name(uid).unwrap_or_else(|| uid.to_string());
    let put = trash::put(pool, name, seconds, &by, jiff::Timestamp::now()).await;
    let entry = match put {
        Ok(entry) => entry,
        Err(error) => return Err(session.fail(format!("cannot destroy '{name}': {error}"))),
    };
    follow::renamed(&session.appliance, pool, &entry).await;
    session.record(pool).await;
    session.appliance.datasets_changed().await;
    session.out.error(format!(
        "note: '{name}' is in the trash until {until}: 'sanbox trash restore {entry}' brings it back"
    ));
    Ok(())
}

/// Destroys datasets in order, snapshots that follow each other at once. With `go_on`, what fails
/// does not keep the rest from going.
pub(super) async fn destroy_batches(
    session: &Session,
    pool: &PoolHandle,
    doomed: &[Dependent],
    go_on: bool,
) -> Outcome {
    let mut failed = false;
    let mut batch: Vec<String> = Vec::new();
    for victim in doomed {
        if victim.kind == DatasetKind::Snapshot {
            batch.push(victim.name.clone());
            continue;
        }
        let snapshots = std::mem::take(&mut batch);
        let outcome = match destroy_names(session, pool, &snapshots, false).await {
            Ok(()) => destroy_one(session, pool, &victim.name).await,
            Err(exit) => Err(exit),
        };
        match outcome {
            Err(exit) if !go_on => return Err(exit),
            Err(_) => failed = true,
            Ok(()) => {}
        }
    }
    failed |= destroy_names(session, pool, &batch, false).await.is_err();
    if failed { Err(Exit(1)) } else { Ok(()) }
}

async fn destroy_names(
    session: &Session,
    pool: &PoolHandle,
    names: &[String],
    defer: bool,
) -> Outcome {
    if names.is_empty() {
        return Ok(());
    }
    let released = session
        .appliance
        .release_devices(|name| names.iter().any(|own| own == name));
    if let Err(busy) = released.await {
        return Err(session.fail(format!("cannot destroy snapshot {busy}: dataset is busy")));
    }
    let refused = match pool.destroy_snapshots(names, defer).await {
        Ok(refused) => refused,
        Err(error) => return Err(session.fail(format!("cannot destroy snapshots: {error}"))),
    };
    for Refusal { name, error } in &refused {
        let clause = match error {
            EngineError::HasClones(_) => "snapshot is cloned".to_owned(),
            other => other.to_string(),
        };
        session
            .out
            .error(format!("cannot destroy snapshot {name}: {clause}"));
    }
    if refused.is_empty() {
        Ok(())
    } else {
        Err(Exit(1))
    }
}

/// Ends what this machine does with a dataset. `about` is what is to be destroyed.
async fn set_free(session: &Session, pool: &PoolHandle, name: &str, about: &str) -> Outcome {
    let busy = || session.fail(format!("cannot destroy '{about}': dataset is busy"));
    // Linux unmounts nothing that is busy, `-f` or not.
    // OpenZFS: tests/zfs-tests/tests/functional/cli_root/zfs_destroy/zfs_destroy_004_pos.ksh
    if session.appliance.unmount_for(name).await.is_err() {
        return Err(busy());
    }
    if let Ok(info) = pool.dataset(name, &PropertyQuery::None).await
        && session.appliance.volume_users(info.guid) > 0
    {
        return Err(busy());
    }
    let snapshots = format!("{name}@");
    let is_own = |other: &str| other == name || other.starts_with(&snapshots);
    let released = session.appliance.release_devices(is_own).await;
    released.map_err(|_| busy())
}

async fn destroy_one(session: &Session, pool: &PoolHandle, name: &str) -> Outcome {
    set_free(session, pool, name, name).await?;
    match pool.destroy_dataset(name, DestroyOptions::default()).await {
        Ok(()) => Ok(()),
        Err(error) => Err(session.fail(format!("cannot destroy '{name}': {error}"))),
    }
}
