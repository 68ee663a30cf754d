//! What a command changes, found by looking at what it names before and after it: of that `sanbox undo` takes back what it can.
//!
//! A look that fails makes the change one that cannot be undone, and never holds up the command's answer otherwise.

use std::sync::Arc;

use engine::pool_property::PropertyEntry as PoolPropertyEntry;
use engine::property::{self, Attribute, DatasetKind, Property, Source};
use engine::{Cred, DatasetFilter, DatasetInfo, ListLimit, PoolHandle, PropertyQuery};
use manage::policy;
use manage::trash;
use manage::undo::{Plan, PropertyState, UndoableChange, ValueOrigin};

use crate::appliance::Appliance;
use crate::cli::command::Command;
use crate::cli::getopt::Getopt;
use crate::cli::help;
use crate::cli::zfs::numbered;
use crate::logging;
use crate::serve::iscsi::MAP_PROPERTY;
use crate::tuning::{self, Tunables};

/// Datasets whose property is looked at, of `zfs inherit -r`.
const DATASETS_MAX: usize = 1000;
/// Properties that do not go back: a volume that shrinks loses data, a format stays, and keys are changed by commands of their own.
const ONE_WAY: &[&str] = &["volsize", "version", "keylocation", "keyformat"];

/// One thing that a command names, as it was before.
pub(crate) enum Observed {
    Property {
        dataset: String,
        name: String,
        inheritable: bool,
        before: PropertyState,
    },
    PoolProperty {
        pool: String,
        name: String,
        before: String,
    },
    /// There is nothing of this name yet.
    Making {
        name: String,
        recursive: bool,
    },
    Renaming {
        from: String,
        to: String,
        guid: u64,
        recursive: bool,
    },
    Destroying {
        name: String,
        guid: u64,
    },
    Tunables(Tunables),
    LogLevels(String),
    /// A job is undone.
    Undoing(Arc<Plan>),
}

/// The words behind a command's name.
struct CommandWords {
    /// Letters of the options that take no value.
    options: String,
    operands: Vec<String>,
}

impl CommandWords {
    /// Reads them as the command does; `None` when it refuses them.
    fn read(command: &Command, arguments: &[String]) -> Option<Self> {
        let mut words = Getopt::new(arguments, command.flags);
        let mut options = String::new();
        while let Some(given) = words.next().ok()? {
            let flag = command.flags.get(given.index)?;
            options.extend(flag.short.filter(|_| flag.value.is_none()));
        }
        Some(Self {
            options,
            operands: words.operands(),
        })
    }

    fn operands(&self) -> Vec<&str> {
        self.operands.iter().map(String::as_str).collect()
    }
}

/// Looks at what a command is about to change.
pub(crate) async fn look(
    appliance: &Arc<Appliance>,
    tool: &str,
    arguments: &[String],
) -> Vec<Observed> {
    let read = || {
        let (name, rest) = arguments.split_first()?;
        let command = help::command(tool, name)?;
        Some((command.name, CommandWords::read(command, rest)?))
    };
    let Some((command, words)) = read() else {
        return Vec::new();
    };
    match (tool, command) {
        ("zfs", "set") => settings(appliance, &words.operands()).await,
        ("zfs", "inherit") => inherited(appliance, &words).await,
        ("zfs", "create" | "clone") => making(appliance, &words, true).await,
        ("zfs", "snapshot") => making(appliance, &words, false).await,
        ("zfs", "rename") => renaming(appliance, &words).await,
        ("zfs", "destroy") => destroying(appliance, &words).await,
        ("zpool", "set") => pool_settings(appliance, &words.operands()).await,
        ("sanbox", "policy" | "target") => of_own(appliance, &words).await,
        ("sanbox", "tune") => vec![Observed::Tunables(appliance.tunables())],
        ("sanbox", "log") => {
            let levels = log_levels().map(Observed::LogLevels);
            levels.into_iter().collect()
        }
        ("sanbox", "undo") => {
            let undone = manage::commands::undoes(tool, arguments).zip(appliance.jobs());
            let plan = undone.and_then(|(id, jobs)| jobs.undo(id));
            plan.map(Observed::Undoing).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// Returns what has changed since, after the command ended with this exit code.
pub(crate) async fn changes(
    appliance: &Arc<Appliance>,
    observed: Vec<Observed>,
    exit: u8,
) -> Option<Plan> {
    let mut plan = Plan::default();
    for one in observed {
        match one {
            Observed::Undoing(undone) => return undone.reversed().filter(|_| exit == 0),
            Observed::Tunables(before) => {
                let now = appliance.tunables();
                plan.0.extend(tuned(&before, &now));
            }
            other => plan.0.extend(change(appliance, other).await),
        }
    }
    (!plan.0.is_empty()).then_some(plan)
}

async fn change(appliance: &Appliance, observed: Observed) -> Option<UndoableChange> {
    match observed {
        Observed::Property {
            dataset,
            name,
            inheritable,
            before,
        } => {
            let after = property_state(appliance, &dataset, &name).await?;
            (!before.is_same(&after)).then_some(UndoableChange::Property {
                dataset,
                name,
                inheritable,
                before,
                after,
            })
        }
        Observed::PoolProperty { pool, name, before } => {
            let after = pool_property(appliance, &pool, &name).await?;
            (before != after).then_some(UndoableChange::PoolProperty {
                pool,
                name,
                before,
                after,
            })
        }
        Observed::Making { name, recursive } => made(appliance, name, recursive).await,
        Observed::Renaming {
            from,
            to,
            guid,
            recursive,
        } => {
            let now = dataset(appliance, &to).await?;
            (now.guid == guid).then_some(UndoableChange::Renamed {
                from,
                to,
                guid,
                recursive,
            })
        }
        Observed::Destroying { name, guid } => {
            let pool = appliance.pool_of(&name).await.ok()?;
            let mut entries = trash::entries(&pool).await.ok()?;
            entries.retain(|entry| entry.from == name);
            for entry in entries {
                let found = dataset(appliance, &entry.dataset).await;
                if found.is_some_and(|found| found.guid == guid) {
                    return Some(UndoableChange::Trashed {
                        from: name,
                        entry: entry.dataset,
                        guid,
                    });
                }
            }
            None
        }
        Observed::LogLevels(before) => {
            let after = log_levels()?;
            (before != after).then_some(UndoableChange::LogLevels { before, after })
        }
        Observed::Tunables(_) | Observed::Undoing(_) => None,
    }
}

/// The levels of the log, without modules that have that of all.
fn log_levels() -> Option<String> {
    let text = logging::levels()?.to_string();
    let all = text.split(',').next().unwrap_or_default().to_owned();
    let own = |word: &&str| word.split_once('=').is_none_or(|(_, level)| level != all);
    Some(text.split(',').filter(own).collect::<Vec<_>>().join(","))
}

fn tuned(before: &Tunables, after: &Tunables) -> Vec<UndoableChange> {
    let rows = tuning::TABLE.iter();
    let changed = rows.filter(|row| tuning::show(row, before) != tuning::show(row, after));
    let change = |row: &tuning::Row| UndoableChange::Tunable {
        name: row.name.to_owned(),
        before: tuning::show(row, before),
        after: tuning::show(row, after),
    };
    changed.map(change).collect()
}

async fn made(appliance: &Appliance, name: String, recursive: bool) -> Option<UndoableChange> {
    let is_snapshot = name.contains('@');
    if !is_snapshot {
        // What the making itself wrote, and the mount, is counted when it is on disk.
        let pool = appliance.pool_of(&name).await.ok()?;
        pool.sync().await.ok()?;
    }
    let info = dataset(appliance, &name).await?;
    // A clone that holds a block of its own may hold another one later that takes the same room.
    if is_clone(&info) && number(&info, "written") != Some(0) {
        return None;
    }
    Some(UndoableChange::Made {
        guid: info.guid,
        txg: info.create_txg,
        written_bytes: written(&info).filter(|_| !is_snapshot),
        name,
        recursive,
    })
}

fn number(info: &DatasetInfo, name: &str) -> Option<u64> {
    info.property(name)?.value.number()
}

/// What a dataset holds that no snapshot has. A small file takes no block, and is counted in what is referenced before compression.
fn written(info: &DatasetInfo) -> Option<u64> {
    Some(number(info, "written")? + number(info, "logicalreferenced")?)
}

fn is_clone(info: &DatasetInfo) -> bool {
    let origin = info
        .property("origin")
        .and_then(|origin| origin.value.text());
    origin.is_some_and(|origin| !origin.is_empty() && origin != "-")
}

/// What tells how much a dataset holds, and where it comes from.
fn content_query() -> PropertyQuery {
    let names = ["written", "logicalreferenced", "used", "origin"];
    PropertyQuery::Named(names.map(str::to_owned).to_vec())
}

/// A dataset with what was written to it.
async fn dataset(appliance: &Appliance, name: &str) -> Option<DatasetInfo> {
    let pool = appliance.pool_of(name).await.ok()?;
    pool.dataset(name, &content_query()).await.ok()
}

/// The stored name of a property that goes back, and whether it can be inherited.
fn known_property(name: &str) -> Option<(String, bool)> {
    let numbered = numbered(name);
    let Some(native) = Property::from_name(&numbered) else {
        let inheritable = property::is_user_property(&numbered);
        return (inheritable || numbered.contains('@')).then_some((numbered, inheritable));
    };
    let goes_back = !ONE_WAY.contains(&native.name());
    let inheritable = native.descriptor().attribute == Attribute::Inherit;
    goes_back.then(|| (native.name().to_owned(), inheritable))
}

fn state_of(info: &DatasetInfo, name: &str) -> PropertyState {
    let Some(found) = info.property(name) else {
        // 'none' takes a quota of a user away.
        let value = if name.contains('@') { "none" } else { "" };
        return PropertyState {
            value: value.to_owned(),
            origin: ValueOrigin::Unset,
        };
    };
    let value = match (found.native, found.value.number(), found.value.text()) {
        // 'zfs set' takes no 0 for these.
        (
            Some(
                Property::Quota
                | Property::RefQuota
                | Property::Reservation
                | Property::RefReservation,
            ),
            Some(0),
            _,
        ) => "none".to_owned(),
        (Some(native), ..) => property::display(native, &found.value, true),
        (None, Some(0), _) => "none".to_owned(),
        (None, Some(number), _) => number.to_string(),
        (None, None, text) => text.unwrap_or_default().to_owned(),
    };
    let origin = match found.source {
        Source::Local => ValueOrigin::Local,
        Source::Received => ValueOrigin::Received,
        _ => ValueOrigin::Unset,
    };
    // Quotas of users have no source.
    let is_quota = found.native.is_none() && name.contains('@') && value != "none";
    PropertyState {
        value,
        origin: if is_quota { ValueOrigin::Local } else { origin },
    }
}

async fn property_state(appliance: &Appliance, dataset: &str, name: &str) -> Option<PropertyState> {
    let pool = appliance.pool_of(dataset).await.ok()?;
    let query = PropertyQuery::Named(vec![name.to_owned()]);
    let info = pool.dataset(dataset, &query).await.ok()?;
    Some(state_of(&info, name))
}

async fn observe(appliance: &Appliance, dataset: &str, name: &str) -> Option<Observed> {
    let (name, inheritable) = known_property(name)?;
    Some(Observed::Property {
        dataset: dataset.to_owned(),
        before: property_state(appliance, dataset, &name).await?,
        name,
        inheritable,
    })
}

/// `NAME=VALUE... DATASET...`
async fn settings(appliance: &Appliance, operands: &[&str]) -> Vec<Observed> {
    let (settings, datasets): (Vec<&str>, Vec<&str>) = operands
        .iter()
        .copied()
        .partition(|word| word.contains('='));
    let mut found = Vec::new();
    for dataset in datasets {
        for (name, _) in settings.iter().filter_map(|word| word.split_once('=')) {
            found.extend(observe(appliance, dataset, name).await);
        }
    }
    found
}

async fn inherited(appliance: &Appliance, words: &CommandWords) -> Vec<Observed> {
    let Some((name, datasets)) = words.operands.split_first() else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for dataset in datasets {
        if words.options.contains('r') {
            found.extend(below(appliance, dataset, name).await.unwrap_or_default());
        } else {
            found.extend(observe(appliance, dataset, name).await);
        }
    }
    found
}

/// A property of a dataset and those below it; none where there are too many.
async fn below(appliance: &Appliance, root: &str, name: &str) -> Option<Vec<Observed>> {
    let (name, inheritable) = known_property(name)?;
    let pool = appliance.pool_of(root).await.ok()?;
    let filter = DatasetFilter {
        root: root.to_owned(),
        depth: None,
        kinds: vec![DatasetKind::Filesystem, DatasetKind::Volume],
    };
    let query = PropertyQuery::Named(vec![name.clone()]);
    let found = pool.datasets(&filter, &query).await.ok()?;
    let observed = |info: DatasetInfo| Observed::Property {
        before: state_of(&info, &name),
        name: name.clone(),
        inheritable,
        dataset: info.name,
    };
    (found.len() <= DATASETS_MAX).then(|| found.into_iter().map(observed).collect())
}

/// What is made: the last operand of `zfs create` and `zfs clone`, each of `zfs snapshot`.
async fn making(appliance: &Appliance, words: &CommandWords, is_last_alone: bool) -> Vec<Observed> {
    let first = match is_last_alone {
        true => words.operands.len().saturating_sub(1),
        false => 0,
    };
    let mut found = Vec::new();
    for name in words.operands.iter().skip(first) {
        if dataset(appliance, name).await.is_none() {
            found.push(Observed::Making {
                name: name.clone(),
                // 'zfs create' has no such option.
                recursive: words.options.contains('r'),
            });
        }
    }
    found
}

async fn renaming(appliance: &Appliance, words: &CommandWords) -> Vec<Observed> {
    let [from, to] = words.operands()[..] else {
        return Vec::new();
    };
    // The new name of a snapshot may be given without its dataset.
    let to = match from.split_once('@') {
        Some((of, _)) if !to.contains('@') => format!("{of}@{to}"),
        Some((of, _)) if to.starts_with('@') => format!("{of}{to}"),
        _ => to.to_owned(),
    };
    let info = dataset(appliance, from).await.filter(|_| from != to);
    let renaming = info.map(|info| Observed::Renaming {
        from: from.to_owned(),
        to,
        guid: info.guid,
        recursive: words.options.contains('r'),
    });
    renaming.into_iter().collect()
}

/// A dataset that is destroyed may go into the trash.
async fn destroying(appliance: &Appliance, words: &CommandWords) -> Vec<Observed> {
    let mut found = Vec::new();
    for name in words.operands.iter().filter(|name| !name.contains('@')) {
        let info = dataset(appliance, name).await;
        found.extend(info.map(|info| Observed::Destroying {
            name: name.clone(),
            guid: info.guid,
        }));
    }
    found
}

/// What commands of our own set as properties: policies, and which targets show a volume.
async fn of_own(appliance: &Appliance, words: &CommandWords) -> Vec<Observed> {
    let observed = match words.operands()[..] {
        ["set" | "clear", dataset, ..] => observe(appliance, dataset, policy::PROPERTY).await,
        ["map" | "unmap", _, volume, ..] => observe(appliance, volume, MAP_PROPERTY).await,
        _ => None,
    };
    observed.into_iter().collect()
}

async fn pool_property(appliance: &Appliance, pool: &str, name: &str) -> Option<String> {
    let pool = appliance.pool_of(pool).await.ok()?;
    let entries = pool.properties().await.ok()?;
    let found = entries.iter().find(|entry| entry.name == name);
    let value = found.map_or_else(String::new, PoolPropertyEntry::exact);
    Some(if value == "-" { String::new() } else { value })
}

async fn pool_settings(appliance: &Appliance, operands: &[&str]) -> Vec<Observed> {
    let [setting, pool] = operands[..] else {
        return Vec::new();
    };
    let name = setting.split_once('=').map(|(name, _)| name);
    // A feature that is enabled stays so.
    let Some(name) = name.filter(|name| !name.starts_with("feature@") && *name != "version") else {
        return Vec::new();
    };
    let before = pool_property(appliance, pool, name).await;
    let observed = before.map(|before| Observed::PoolProperty {
        pool: pool.to_owned(),
        name: name.to_owned(),
        before,
    });
    observed.into_iter().collect()
}

/// Says why a change cannot be undone any more; nothing when all is as it was left.
pub(crate) async fn conflict(appliance: &Appliance, change: &UndoableChange) -> Option<String> {
    match change {
        UndoableChange::Property {
            dataset,
            name,
            inheritable,
            after,
            ..
        } => {
            let Some(now) = property_state(appliance, dataset, name).await else {
                return Some(format!("'{dataset}' does not exist any more"));
            };
            // What cannot be inherited is set to its default where it was not set.
            let same = now.is_same(after) || !*inheritable && now.value == after.value;
            let said = |state: &PropertyState| match state.origin {
                ValueOrigin::Local => format!("'{}'", state.value),
                ValueOrigin::Received => "as it was received".to_owned(),
                ValueOrigin::Unset => "not set".to_owned(),
            };
            (!same).then(|| differs(name, dataset, &said(&now), &said(after)))
        }
        UndoableChange::PoolProperty {
            pool, name, after, ..
        } => {
            let Some(now) = pool_property(appliance, pool, name).await else {
                return Some(format!("pool '{pool}' is not open"));
            };
            let quoted = |value: &str| format!("'{value}'");
            (now != *after).then(|| differs(name, pool, &quoted(&now), &quoted(after)))
        }
        UndoableChange::Tunable { name, after, .. } => {
            let now = appliance.tunables();
            let row = tuning::TABLE.iter().find(|row| row.name == name)?;
            let now = tuning::show(row, &now);
            (now != *after)
                .then(|| differs(name, "the appliance", &now.to_string(), &after.to_string()))
        }
        UndoableChange::LogLevels { after, .. } => {
            let now = log_levels().unwrap_or_default();
            (now != *after).then(|| differs("log", "the appliance", &now, after))
        }
        UndoableChange::Made { .. }
        | UndoableChange::Renamed { .. }
        | UndoableChange::Trashed { .. } => conflict_of_names(appliance, change).await,
    }
}

fn differs(name: &str, of: &str, now: &str, after: &str) -> String {
    format!("'{name}' of '{of}' was changed since: it is {now}, and was {after}")
}

async fn conflict_of_names(appliance: &Appliance, change: &UndoableChange) -> Option<String> {
    let (name, guid, free) = match change {
        UndoableChange::Made { name, guid, .. } => (name, guid, None),
        UndoableChange::Renamed { from, to, guid, .. } => (to, guid, Some(from)),
        UndoableChange::Trashed { from, entry, guid } => (entry, guid, Some(from)),
        _ => return None,
    };
    let Some(info) = dataset(appliance, name).await else {
        return Some(format!("'{name}' does not exist any more"));
    };
    if info.guid != *guid {
        return Some(format!("'{name}' is another dataset now"));
    }
    if let Some(free) = free
        && dataset(appliance, free).await.is_some()
    {
        return Some(format!("there is another '{free}' now"));
    }
    let UndoableChange::Made {
        txg,
        recursive,
        written_bytes,
        ..
    } = change
    else {
        return None;
    };
    let pool = appliance.pool_of(name).await.ok()?;
    match written_bytes {
        None if *recursive => other_snapshots(&pool, name, *txg).await,
        None => None,
        Some(before) => written_since(&pool, name, *before).await,
    }
}

/// Of snapshots of one name: one that was not made with the others.
async fn other_snapshots(pool: &PoolHandle, name: &str, txg: u64) -> Option<String> {
    let (root, short) = name.split_once('@')?;
    let filter = DatasetFilter {
        root: root.to_owned(),
        depth: None,
        kinds: vec![DatasetKind::Filesystem, DatasetKind::Volume],
    };
    let datasets = pool.datasets(&filter, &PropertyQuery::None).await.ok()?;
    for info in datasets {
        let snapshot = format!("{}@{short}", info.name);
        let found = pool.dataset(&snapshot, &PropertyQuery::None).await;
        if found.is_ok_and(|found| found.create_txg != txg) {
            return Some(format!("'{snapshot}' was made at another time"));
        }
    }
    None
}

/// A dataset that was made: what it holds since.
async fn written_since(pool: &PoolHandle, name: &str, before: u64) -> Option<String> {
    let failed = |error: engine::EngineError| Some(format!("'{name}': {error}"));
    if let Err(error) = pool.sync().await {
        return failed(error);
    }
    let filter = DatasetFilter {
        root: name.to_owned(),
        depth: Some(1),
        kinds: vec![
            DatasetKind::Filesystem,
            DatasetKind::Volume,
            DatasetKind::Snapshot,
        ],
    };
    match pool.datasets(&filter, &content_query()).await {
        Ok(found) if found.len() > 1 => Some(format!(
            "'{name}' has snapshots or datasets below it since: 'zfs destroy -r {name}' would destroy them, too"
        )),
        Ok(found) => {
            let Some(info) = found.first() else {
                return Some(format!("'{name}' does not exist any more"));
            };
            let is_new = info.kind == DatasetKind::Filesystem && !is_clone(info);
            let is_same = written(info) == Some(before) && (!is_new || is_empty(pool, name).await);
            (!is_same).then(|| {
                format!(
                    "'{name}' was written to since: 'zfs destroy {name}' would destroy that, too"
                )
            })
        }
        Err(error) => failed(error),
    }
}

/// Whether the root directory of a file system has no entry; not where that cannot be read. A new name takes no block.
async fn is_empty(pool: &PoolHandle, name: &str) -> bool {
    let Ok(fs) = pool.open_fs(name).await else {
        return false;
    };
    let Ok(root) = fs.root().await else {
        return false;
    };
    let limit = ListLimit {
        entries: 8,
        bytes: usize::MAX,
        entry_overhead_bytes: 0,
        attrs: false,
    };
    let listing = fs.readdir(root.id, 0, limit, &Cred::root()).await;
    let own = |name: &[u8]| matches!(name, b"." | b".." | b".zfs");
    listing.is_ok_and(|listing| listing.entries.iter().all(|entry| own(&entry.name)))
}

/// What of a snapshot is lost with it, for the user to know before.
pub(crate) async fn loses(appliance: &Appliance, change: &UndoableChange) -> Option<u64> {
    let UndoableChange::Made { name, .. } = change else {
        return None;
    };
    let info = dataset(appliance, name).await?;
    let used = info.property("used")?.value.number()?;
    name.contains('@').then_some(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_their_values_are_no_operands() {
        let words: Vec<String> = "create -s -V 1G -oa=b -o c=d -- -x"
            .split(' ')
            .map(str::to_owned)
            .collect();
        let create = help::command("zfs", &words[0]).expect("a command");
        let words = CommandWords::read(create, &words[1..]).expect("understood");
        assert_eq!(
            (words.options.as_str(), words.operands()),
            ("s", vec!["-x"])
        );
    }

    #[test]
    fn what_goes_one_way_is_not_looked_at() {
        assert_eq!(known_property("volsize"), None);
        assert_eq!(known_property("keylocation"), None);
        assert_eq!(
            known_property("rdonly"),
            Some(("readonly".to_owned(), true))
        );
        assert_eq!(known_property("quota"), Some(("quota".to_owned(), false)));
        assert_eq!(known_property("a:b"), Some(("a:b".to_owned(), true)));
        assert_eq!(known_property("nonsense"), None);
    }
}
