//! `zfs snapshot`, `rollback`, `clone`, `promote`, `bookmark`, `hold`, `holds` and `release`.

use engine::property::DatasetKind;
use engine::{
    DatasetFilter, DatasetInfo, EngineError, Hold, PoolHandle, PropertyQuery, Refusal,
    SnapshotRequest,
};

use super::destroy::{Dependent, dependents, destroy_batches};
use super::{bad_name, open};
use crate::appliance::missing_parents;
use crate::cli::command::{Command, Word, options};
use crate::cli::format::date;
use crate::cli::{Exit, Outcome, Session, pool_part, setting};

options! {
    SnapshotOption {
        Recursive = short('r', "of everything below, too, at one moment"),
        Property(String) = valued('o', "property=value", "a property of the snapshots"),
    }
}

/// The declaration of `zfs snapshot`.
pub(super) const SNAPSHOT: Command = Command {
    name: "snapshot",
    aliases: &["snap"],
    summary: "make snapshots",
    usage: "\tsnapshot [-r] [-o property=value] ... <filesystem|volume>@<snap> ...\n",
    flags: SnapshotOption::FLAGS,
    says_missing: false,
    words: &[Word::Dataset],
    examples: &[
        ("zfs snapshot tank/home@monday", "freeze what is there now"),
        (
            "zfs snapshot -r tank@before-upgrade",
            "everything below too, at one moment",
        ),
    ],
    ..Command::NEW
};

options! {
    RollbackOption {
        Recursive = short('r', "destroy newer snapshots and bookmarks"),
        Clones = short('R', "and their clones"),
        Force = short('f', "as without: Linux unmounts no clone that is in use"),
    }
}

/// The declaration of `zfs rollback`.
pub(super) const ROLLBACK: Command = Command {
    name: "rollback",
    summary: "go back to a snapshot",
    usage: "\trollback [-rRf] <snapshot>\n",
    flags: RollbackOption::FLAGS,
    says_missing: false,
    words: &[Word::Snapshot],
    examples: &[(
        "zfs rollback tank/home@monday",
        "give up everything written since; newer snapshots must go first (-r)",
    )],
    ..Command::NEW
};

options! {
    CloneOption {
        Property(String) = valued('o', "property=value", "a property of the clone"),
        Parents = short('p', "with missing parents"),
    }
}

/// The declaration of `zfs clone`.
pub(super) const CLONE: Command = Command {
    name: "clone",
    summary: "make a writable copy of a snapshot",
    usage: "\tclone [-p] [-o property=value] ... <snapshot> <filesystem|volume>\n",
    flags: CloneOption::FLAGS,
    says_missing: false,
    words: &[Word::Snapshot, Word::Dataset],
    examples: &[(
        "zfs clone tank/home@monday tank/trial",
        "a writable copy that takes no space yet",
    )],
    ..Command::NEW
};

/// The declaration of `zfs promote`.
pub(super) const PROMOTE: Command = Command {
    name: "promote",
    summary: "let a clone own the snapshots it came from",
    usage: "\tpromote <clone-filesystem>\n",
    says_missing: false,
    words: &[Word::Dataset],
    examples: &[(
        "zfs promote tank/trial",
        "let the copy own the snapshots, so that the original can be destroyed",
    )],
    ..Command::NEW
};

/// The declaration of `zfs bookmark`.
pub(super) const BOOKMARK: Command = Command {
    name: "bookmark",
    summary: "make a bookmark of a snapshot or a bookmark",
    usage: "\tbookmark <snapshot|bookmark> <newbookmark>\n",
    says_missing: false,
    words: &[Word::Snapshot, Word::Text],
    ..Command::NEW
};

options! {
    HoldOption {
        Recursive = short('r', "the snapshots of everything below, too"),
        Temporary = short('t', "accepted as by OpenZFS, where it is left from an earlier version"),
    }
}

/// The declaration of `zfs hold`.
pub(super) const HOLD: Command = Command {
    name: "hold",
    summary: "keep snapshots from being destroyed",
    usage: "\thold [-r] <tag> <snapshot> ...\n",
    flags: HoldOption::FLAGS,
    says_missing: false,
    words: &[Word::Text, Word::Snapshot],
    examples: &[(
        "zfs hold keep tank/home@monday",
        "nobody destroys it until zfs release keep tank/home@monday",
    )],
    ..Command::NEW
};

options! {
    HoldsOption {
        Recursive = short('r', "the snapshots of everything below, too"),
        Scripted = short('H', "no headings, tabs between the columns"),
        Exact = short('p', "times in seconds since 1970"),
    }
}

/// The declaration of `zfs holds`.
pub(super) const HOLDS: Command = Command {
    name: "holds",
    summary: "show what keeps snapshots",
    usage: "\tholds [-rHp] <snapshot> ...\n",
    flags: HoldsOption::FLAGS,
    says_missing: false,
    words: &[Word::Snapshot],
    ..Command::NEW
};

options! {
    ReleaseOption {
        Recursive = short('r', "the snapshots of everything below, too"),
    }
}

/// The declaration of `zfs release`.
pub(super) const RELEASE: Command = Command {
    name: "release",
    summary: "let go of held snapshots",
    usage: "\trelease [-r] <tag> <snapshot> ...\n",
    flags: ReleaseOption::FLAGS,
    says_missing: false,
    words: &[Word::Text, Word::Snapshot],
    ..Command::NEW
};

/// Reads an `-o property=value` into a list.
fn property(session: &Session, text: &str, into: &mut Vec<(String, String)>) -> Outcome {
    let Some((name, value)) = setting(text) else {
        return Err(session.fail("missing '=' for property=value argument"));
    };
    if into.iter().any(|(known, _)| *known == name) {
        return Err(session.fail(format!("property '{name}' specified multiple times")));
    }
    into.push((name, value));
    Ok(())
}

/// Says what was refused; `prefix` is what comes before the name.
pub(super) fn say_refusals(session: &Session, prefix: &str, refused: &[Refusal]) -> Outcome {
    for refusal in refused {
        let Refusal { name, error } = refusal;
        session.out.error(format!("{prefix}'{name}': {error}"));
    }
    if refused.is_empty() {
        Ok(())
    } else {
        Err(Exit(1))
    }
}

pub(super) async fn snapshot(session: &Session, arguments: &[String]) -> Outcome {
    let mut recursive = false;
    let mut properties = Vec::new();
    let names = session.read_options(arguments, |session, option| {
        match option {
            SnapshotOption::Property(text) => property(session, &text, &mut properties)?,
            SnapshotOption::Recursive => recursive = true,
        }
        Ok(())
    })?;
    if names.is_empty() {
        return Err(session.misuse("missing snapshot argument"));
    }
    let mut pool: Option<PoolHandle> = None;
    for name in &names {
        let Some((dataset, _)) = name.split_once('@') else {
            return Err(session.usage_only());
        };
        match open_head(session, dataset).await {
            Ok(found) => {
                pool.get_or_insert(found);
            }
            Err(_) => return Err(session.usage_only()),
        }
    }
    let several = recursive || names.len() > 1;
    let none = |exit: Exit| {
        if several {
            session.out.error("no snapshots were created");
        }
        exit
    };
    let Some(pool) = pool else { return Ok(()) };
    for name in &names {
        let why = bad_name(name, DatasetKind::Snapshot).or_else(|| {
            let percent = name.contains('%');
            percent.then(|| "invalid character '%' in name".to_owned())
        });
        if let Some(why) = why {
            let said = session.fail(format!("cannot create snapshot '{name}': {why}"));
            return Err(none(said));
        }
        if pool_part(name) != pool.name() {
            session
                .out
                .error("cannot create snapshots : source and target pools differ");
            return Err(none(Exit(1)));
        }
    }
    let dataset_of = |name: &str| name.split('@').next().unwrap_or("").to_owned();
    let mut datasets: Vec<String> = names.iter().map(|name| dataset_of(name)).collect();
    datasets.sort();
    if datasets.windows(2).any(|pair| pair[0] == pair[1])
        && names
            .iter()
            .collect::<std::collections::BTreeSet<_>>()
            .len()
            == names.len()
    {
        session
            .out
            .error("cannot create snapshots : multiple snapshots of same fs not allowed");
        return Err(none(Exit(1)));
    }
    let request = SnapshotRequest {
        names,
        recursive,
        properties,
    };
    match pool.snapshot(request).await {
        Ok(refused) if refused.is_empty() => {
            session.record(&pool).await;
            Ok(())
        }
        Ok(refused) => {
            let said = say_refusals(session, "cannot create snapshot ", &refused);
            said.map_err(none)
        }
        Err(error) => Err(none(
            session.fail(format!("cannot create snapshots : {error}")),
        )),
    }
}

/// Opens a file system or volume that a command names.
async fn open_head(session: &Session, name: &str) -> Result<PoolHandle, Exit> {
    if let Some(why) = bad_name(name, DatasetKind::Filesystem) {
        return Err(session.fail(format!("cannot open '{name}': {why}")));
    }
    Ok(open(session, name, &PropertyQuery::None).await?.0)
}

/// Opens a snapshot that a command names.
async fn open_snapshot(session: &Session, name: &str) -> Result<PoolHandle, Exit> {
    if !name.contains('@') {
        return Err(session.fail(format!(
            "cannot open '{name}': missing '@' delimiter in snapshot name"
        )));
    }
    Ok(open(session, name, &PropertyQuery::None).await?.0)
}

fn rollback_failed(session: &Session, name: &str, error: &EngineError) -> Exit {
    session.fail(format!("cannot rollback '{name}': {error}"))
}

/// The snapshots and bookmarks of a dataset that were made after the txg `created`.
async fn younger_than(
    pool: &PoolHandle,
    dataset: &str,
    created: u64,
) -> Result<Vec<DatasetInfo>, EngineError> {
    let filter = DatasetFilter {
        root: dataset.to_owned(),
        depth: Some(1),
        kinds: vec![DatasetKind::Snapshot, DatasetKind::Bookmark],
    };
    let query = PropertyQuery::Named(vec!["clones".to_owned()]);
    let mut found = pool.datasets(&filter, &query).await?;
    let own = |name: &str| name.split(['@', '#']).next() == Some(dataset);
    found.retain(|info| own(&info.name) && info.create_txg > created);
    Ok(found)
}

/// Snapshots and bookmarks with the clones that depend on them and what is below those, and the names of the latter. What depends on
/// something is in front of it.
async fn with_dependents(
    pool: &PoolHandle,
    younger: Vec<DatasetInfo>,
) -> Result<(Vec<Dependent>, Vec<String>), EngineError> {
    let mut doomed = Vec::new();
    let mut cloned = Vec::new();
    for DatasetInfo { name, kind, .. } in younger {
        if kind == DatasetKind::Snapshot {
            let below = dependents(pool, &name).await?;
            cloned.extend(below.iter().map(|d| d.name.clone()));
            doomed.extend(below);
        }
        doomed.push(Dependent { name, kind });
    }
    Ok((doomed, cloned))
}

fn refuse_younger(session: &Session, target: &str, younger: &[DatasetInfo]) -> Exit {
    session.out.error(format!(
        "cannot rollback to '{target}': more recent snapshots or bookmarks exist"
    ));
    session
        .out
        .error("use '-r' to force deletion of the following snapshots and bookmarks:");
    for (i, info) in younger.iter().enumerate() {
        if i == 32 {
            session
                .out
                .error("Output limited to 32 snapshots/bookmarks");
            break;
        }
        session.out.error(&info.name);
    }
    Exit(1)
}

/// Destroys what stands between a dataset and the snapshot that it goes back to.
async fn destroy_doomed(
    session: &Session,
    pool: &PoolHandle,
    dataset: &str,
    doomed: Vec<Dependent>,
) -> Outcome {
    let (bookmarks, rest): (Vec<_>, Vec<_>) = doomed
        .into_iter()
        .partition(|d| d.kind == DatasetKind::Bookmark);
    destroy_batches(session, pool, &rest, false).await?;
    let bookmarks: Vec<String> = bookmarks.into_iter().map(|d| d.name).collect();
    if bookmarks.is_empty() {
        return Ok(());
    }
    let destroyed = pool.destroy_bookmarks(&bookmarks).await;
    match destroyed {
        Ok(_) => Ok(()),
        Err(error) => Err(rollback_failed(session, dataset, &error)),
    }
}

pub(super) async fn rollback(session: &Session, arguments: &[String]) -> Outcome {
    let (mut recursive, mut clones) = (false, false);
    let operands = session.read_options(arguments, |_, option| {
        match option {
            RollbackOption::Recursive => recursive = true,
            RollbackOption::Clones => {
                recursive = true;
                clones = true;
            }
            RollbackOption::Force => {}
        }
        Ok(())
    })?;
    let [target] = operands.as_slice() else {
        return Err(session.misuse(if operands.is_empty() {
            "missing dataset argument"
        } else {
            "too many arguments"
        }));
    };
    let pool = open_snapshot(session, target).await?;
    let fail = |name: &str, error: &EngineError| rollback_failed(session, name, error);
    let (dataset, _) = target.split_once('@').unwrap_or((target, ""));
    let created = match pool.dataset(target, &PropertyQuery::None).await {
        Ok(info) => info.create_txg,
        Err(error) => return Err(fail(dataset, &error)),
    };
    let younger = younger_than(&pool, dataset, created).await;
    let younger = younger.map_err(|error| fail(dataset, &error))?;
    if !younger.is_empty() && !recursive {
        return Err(refuse_younger(session, target, &younger));
    }
    let doomed = with_dependents(&pool, younger).await;
    let (doomed, cloned) = doomed.map_err(|error| fail(dataset, &error))?;
    if !cloned.is_empty() && !clones {
        session.out.error(format!(
            "cannot rollback to '{target}': clones of previous snapshots exist"
        ));
        session
            .out
            .error("use '-R' to force deletion of the following clones and dependents:");
        for name in cloned {
            session.out.error(name);
        }
        return Err(Exit(1));
    }
    destroy_doomed(session, &pool, dataset, doomed).await?;
    // What stands on a volume's device would be of another time.
    if let Ok(info) = pool.dataset(dataset, &PropertyQuery::None).await
        && session.appliance.device_in_use(info.guid).await
    {
        return Err(fail(dataset, &EngineError::Busy(dataset.to_owned())));
    }
    let outcome = pool.rollback(dataset, Some(target)).await;
    if outcome.is_err() {
        session.appliance.datasets_changed().await;
    }
    match outcome {
        Ok(()) => {
            session.record(&pool).await;
            session.appliance.datasets_changed().await;
            Ok(())
        }
        Err(EngineError::NotNewest(_)) => Err(session.fail(format!(
            "cannot rollback '{dataset}': there is a snapshot or bookmark more recent than '{target}'"
        ))),
        Err(error) => Err(fail(dataset, &error)),
    }
}

pub(super) async fn clone(session: &Session, arguments: &[String]) -> Outcome {
    let mut parents = false;
    let mut properties = Vec::new();
    let operands = session.read_options(arguments, |session, option| {
        match option {
            CloneOption::Property(text) => property(session, &text, &mut properties)?,
            CloneOption::Parents => parents = true,
        }
        Ok(())
    })?;
    let (source, target) = match operands.as_slice() {
        [] => return Err(session.misuse("missing source dataset argument")),
        [_] => return Err(session.misuse("missing target dataset argument")),
        [source, target] => (source, target),
        _ => return Err(session.misuse("too many arguments")),
    };
    let pool = open_snapshot(session, source).await?;
    let refuse = |why: &str| Err(session.fail(format!("cannot create '{target}': {why}")));
    if let Some(why) = bad_name(target, DatasetKind::Filesystem) {
        return refuse(&why);
    }
    if !target.contains('/') && target != pool.name() {
        return refuse("missing dataset name");
    }
    if pool_part(target) != pool.name() {
        return match session.appliance.pool_of(target).await {
            Ok(_) => refuse("source and target pools differ"),
            Err(_) => refuse(&format!("no such pool '{}'", pool_part(target))),
        };
    }
    if parents && pool.dataset(target, &PropertyQuery::None).await.is_ok() {
        return Ok(());
    }
    let new = missing_parents(&pool, target, parents).await;
    match pool
        .clone_snapshot(source, target, &properties, parents)
        .await
    {
        Ok(()) => {
            session.record(&pool).await;
            session.appliance.datasets_changed().await;
            session.appliance.mount_all_created(&pool, &new).await;
            session.appliance.mount_created(&pool, target).await;
            Ok(())
        }
        Err(error) => refuse(&error.to_string()),
    }
}

pub(super) async fn promote(session: &Session, arguments: &[String]) -> Outcome {
    let operands = session.operands(arguments)?;
    let [name] = operands.as_slice() else {
        return Err(session.misuse(if operands.is_empty() {
            "missing clone filesystem argument"
        } else {
            "too many arguments"
        }));
    };
    let pool = open_head(session, name).await?;
    match pool.promote(name).await {
        Ok(()) => {
            session.record(&pool).await;
            session.appliance.datasets_changed().await;
            Ok(())
        }
        Err(EngineError::Conflicts { names, origin }) => {
            let first = names.first().map_or("", String::as_str);
            Err(session.fail(format!(
                "cannot promote '{name}': conflicting snapshot '{first}' from parent '{origin}'"
            )))
        }
        Err(error) => Err(session.fail(format!("cannot promote '{name}': {error}"))),
    }
}

pub(super) async fn bookmark(session: &Session, arguments: &[String]) -> Outcome {
    let operands = session.operands(arguments)?;
    let (source, name) = match operands.as_slice() {
        [] => return Err(session.misuse("missing source argument")),
        [_] => return Err(session.misuse("missing bookmark argument")),
        [source, name, ..] => (source.clone(), name.clone()),
    };
    if !source.contains(['@', '#']) {
        return Err(session.misuse(format!(
            "invalid source name '{source}': must contain a '@' or '#'"
        )));
    }
    if !name.contains('#') {
        return Err(session.misuse(format!(
            "invalid bookmark name '{name}': must contain a '#'"
        )));
    }
    let dataset = |full: &str| full.split(['@', '#']).next().unwrap_or("").to_owned();
    let (source, name) = match (source.starts_with(['@', '#']), name.starts_with('#')) {
        (true, true) => {
            return Err(
                session.misuse("either source or bookmark must be specified as full dataset paths")
            );
        }
        (false, true) => (source.clone(), format!("{}{name}", dataset(&source))),
        (true, false) => (format!("{}{source}", dataset(&name)), name),
        (false, false) => (source, name),
    };
    let Ok((pool, _)) = open(session, &source, &PropertyQuery::None).await else {
        return Err(session.usage_only());
    };
    let refuse = |why: &str| Err(session.fail(format!("cannot create bookmark '{name}': {why}")));
    if bad_name(&name, DatasetKind::Bookmark).is_some() {
        return refuse("invalid argument");
    }
    if pool_part(&name) != pool.name() {
        return refuse("bookmark is in a different pool");
    }
    let refused = match pool.create_bookmarks(&[(name.clone(), source)]).await {
        Ok(refused) => refused,
        Err(error) => return refuse(&error.to_string()),
    };
    match refused.into_iter().next() {
        None => {
            session.record(&pool).await;
            Ok(())
        }
        Some(Refusal {
            error: EngineError::DatasetExists(_),
            ..
        }) => refuse("bookmark exists"),
        Some(refusal) => refuse(&refusal.error.to_string()),
    }
}

pub(super) async fn hold(session: &Session, arguments: &[String]) -> Outcome {
    let mut recursive = false;
    let operands = session.read_options(arguments, |_, option| {
        match option {
            HoldOption::Recursive => recursive = true,
            // OpenZFS reads it and does nothing with it either.
            HoldOption::Temporary => {}
        }
        Ok(())
    })?;
    hold_each(session, &operands, recursive, false).await
}

pub(super) async fn release(session: &Session, arguments: &[String]) -> Outcome {
    let mut recursive = false;
    let operands = session.read_options(arguments, |_, ReleaseOption::Recursive| {
        recursive = true;
        Ok(())
    })?;
    hold_each(session, &operands, recursive, true).await
}

async fn hold_each(
    session: &Session,
    operands: &[String],
    recursive: bool,
    release: bool,
) -> Outcome {
    let Some((tag, names)) = operands
        .split_first()
        .filter(|(_, names)| !names.is_empty())
    else {
        return Err(session.usage_only());
    };
    if !release && tag.starts_with('.') {
        return Err(session.misuse("tag may not start with '.'"));
    }
    let mut failed = false;
    for name in names {
        failed |= hold_one(session, name, tag, recursive, release)
            .await
            .is_err();
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

async fn hold_one(
    session: &Session,
    name: &str,
    tag: &str,
    recursive: bool,
    release: bool,
) -> Outcome {
    let Some((dataset, short)) = name.split_once('@') else {
        return Err(session.fail(format!("'{name}' is not a snapshot")));
    };
    let pool = open_head(session, dataset).await?;
    let verb = if release {
        "cannot release hold from snapshot"
    } else {
        "cannot hold snapshot"
    };
    let failed = |error: EngineError| session.fail(format!("{verb} '{name}': {error}"));
    let mut names = vec![name.to_owned()];
    if recursive {
        let filter = DatasetFilter {
            root: dataset.to_owned(),
            depth: None,
            kinds: vec![DatasetKind::Snapshot],
        };
        let all = pool
            .datasets(&filter, &PropertyQuery::None)
            .await
            .map_err(failed)?;
        names = all
            .into_iter()
            .map(|info| info.name)
            .filter(|full| full.split_once('@').is_some_and(|(_, s)| s == short))
            .collect();
    }
    if release {
        // Snapshots without the hold are passed over as long as one has it.
        let holds = pool.holds(&names, false).await.map_err(failed)?;
        let with = |name: &String| holds.iter().any(|h| h.snapshot == *name && h.tag == tag);
        names.retain(with);
        if names.is_empty() {
            return Err(failed(EngineError::NoSuchTag(name.to_owned())));
        }
    }
    if names.is_empty() {
        return Err(failed(EngineError::DatasetNotFound(name.to_owned())));
    }
    let refused = if release {
        pool.release(&names, tag, false).await
    } else {
        pool.hold(&names, tag, false).await
    };
    let refused = refused.map_err(failed)?;
    say_refusals(session, &format!("{verb} "), &refused)?;
    session.record(&pool).await;
    Ok(())
}

pub(super) async fn holds(session: &Session, arguments: &[String]) -> Outcome {
    let (mut recursive, mut scripted, mut literal) = (false, false, false);
    let names = session.read_options(arguments, |_, option| {
        match option {
            HoldsOption::Recursive => recursive = true,
            HoldsOption::Scripted => scripted = true,
            HoldsOption::Exact => literal = true,
        }
        Ok(())
    })?;
    if names.is_empty() {
        return Err(session.usage_only());
    }
    let mut failed = false;
    let mut all: Vec<Hold> = Vec::new();
    let mut seen = 0;
    let mut name_width = 0;
    for name in &names {
        let Some((dataset, short)) = name.split_once('@') else {
            session.out.error(format!("'{name}' is not a snapshot"));
            failed = true;
            continue;
        };
        let start = if recursive { dataset } else { name.as_str() };
        let Ok((pool, _)) = open(session, start, &PropertyQuery::None).await else {
            failed = true;
            continue;
        };
        let full = format!("{dataset}@{short}");
        match pool.holds(std::slice::from_ref(&full), recursive).await {
            Ok(found) => {
                seen += 1;
                if !recursive {
                    name_width = name_width.max(full.len());
                }
                all.extend(found);
            }
            Err(error) => {
                session
                    .out
                    .error(format!("cannot get holds of '{name}': {error}"));
                failed = true;
            }
        }
    }
    let tag_width = all.iter().map(|h| h.tag.len()).max().unwrap_or(0);
    let name_width = all
        .iter()
        .map(|h| h.snapshot.len())
        .max()
        .unwrap_or(0)
        .max(name_width);
    if !scripted {
        let (name, tag) = ("NAME", "TAG");
        session
            .out
            .line(format!("{name:name_width$}  {tag:tag_width$}  TIMESTAMP"));
    }
    for Hold {
        snapshot,
        tag,
        time,
    } in &all
    {
        let when = if literal && scripted {
            time.to_string()
        } else {
            date(*time)
        };
        session.out.line(if scripted {
            format!("{snapshot}\t{tag}\t{when}")
        } else {
            format!("{snapshot:name_width$}  {tag:tag_width$}  {when}")
        });
    }
    if seen == 0 {
        session.out.error("no datasets available");
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}
