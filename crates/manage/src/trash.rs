//! The trash: a dataset that is destroyed where [`TRASH_PROPERTY`] is set is kept for that time, and can be restored until then.
//!
//! ```text
//! tank/vm/a  --destroy-->  tank/.trash/20261128T070005Z-a   org.sanbox:trash-from=tank/vm/a  trash-until=...  trash-by=ann
//! ```
//!
//! It is a dataset as any other, so that `zfs list` shows it and its space. In the trash it does nothing: settings that mount, share or map it are
//! put aside on the dataset itself ([`SETTINGS_PROPERTY`]), and come back with it. An encrypted dataset stays below its encryption root.
//! What a crash interrupts, [`settle`] ends: names change in one transaction group, and each step after it can be made again.

use std::collections::BTreeMap;

use engine::property::{DatasetKind, Source, Value};
use engine::{CreateDataset, DatasetFilter, DatasetInfo, EngineError, PoolHandle, PropertyQuery};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::policy;

/// How long what is destroyed is kept: `12h`, `30d` or `4w`; `off`, or nothing, is not at all. It is inherited.
pub const TRASH_PROPERTY: &str = "org.sanbox:trash";
/// Until when a dataset of the trash is kept (UTC).
pub const UNTIL_PROPERTY: &str = "org.sanbox:trash-until";
/// What it was called.
pub const FROM_PROPERTY: &str = "org.sanbox:trash-from";
/// Who destroyed it.
pub const BY_PROPERTY: &str = "org.sanbox:trash-by";
/// Its settings that act on the machine, as JSON; those that were received are `null`.
const SETTINGS_PROPERTY: &str = "org.sanbox:trash-settings";
/// Of the pool's own dataset: the file systems that hold trash besides `POOL/.trash`, as JSON. To look through all datasets
/// each time would cost more than what is there.
const CONTAINERS_PROPERTY: &str = "org.sanbox:trash-containers";
/// The file system that holds the trash.
const CONTAINER: &str = ".trash";
/// What follows the pool's name in that of the dataset that holds its trash.
pub const CONTAINER_PATH: &str = "/.trash";
/// Settings that act on the machine.
const ACTING: &[&str] = &[
    "mountpoint",
    "sharenfs",
    "sharesmb",
    "org.sanbox:lun",
    "org.sanbox:lu",
    "org.sanbox:nbd",
    policy::PROPERTY,
];

/// A dataset in the trash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct TrashEntry {
    /// Its name now.
    pub dataset: String,
    /// What it was called.
    pub from: String,
    /// Who destroyed it, as far as known.
    pub by: String,
    /// Until when it is kept, seconds since 1970; none when that cannot be read: then until it is emptied.
    pub until: Option<i64>,
    /// Bytes that come free with it and all below it.
    pub used_bytes: u64,
}

/// Why something of the trash was not done.
#[derive(Debug, thiserror::Error)]
pub enum TrashError {
    /// The property is no time.
    #[error("{TRASH_PROPERTY} of '{0}' is '{1}': neither off nor 12h, 30d or 4w, at most 3650d")]
    NoTime(String, String),
    /// It is not in the trash.
    #[error("'{0}' is not in the trash: 'sanbox trash list' shows what is")]
    NotThere(String),
    /// The engine's.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Whether a dataset is in the trash, by its name: destroying it there is for good.
#[must_use]
pub fn is_trashed(name: &str) -> bool {
    name.split('/').rev().skip(1).any(|part| part == CONTAINER)
}

/// Whether a dataset is the top of what was put there at once.
fn is_entry(name: &str) -> bool {
    name.rsplit('/').nth(1) == Some(CONTAINER)
}

fn text<'a>(info: &'a DatasetInfo, name: &str) -> Option<&'a str> {
    match info.property(name).map(|property| &property.value) {
        Some(Value::Text(text)) => Some(text),
        _ => None,
    }
}

fn query(names: &[&str]) -> PropertyQuery {
    PropertyQuery::Named(names.iter().map(|name| (*name).to_owned()).collect())
}

async fn below(
    pool: &PoolHandle,
    root: &str,
    names: &[&str],
) -> Result<Vec<DatasetInfo>, EngineError> {
    let filter = DatasetFilter {
        root: root.to_owned(),
        depth: None,
        kinds: vec![DatasetKind::Filesystem, DatasetKind::Volume],
    };
    pool.datasets(&filter, &query(names)).await
}

/// Returns for how many seconds a dataset is kept when it is destroyed; `None` when it is not.
///
/// # Errors
/// The property is no time, or the dataset is not there.
pub async fn kept_seconds(pool: &PoolHandle, name: &str) -> Result<Option<u64>, TrashError> {
    if is_trashed(name) || name.ends_with("/.trash") {
        return Ok(None);
    }
    let info = pool.dataset(name, &query(&[TRASH_PROPERTY])).await?;
    match text(&info, TRASH_PROPERTY) {
        None | Some("off" | "-" | "") => Ok(None),
        Some(time) => match policy::hours(time) {
            Some(hours) => Ok(Some(u64::from(hours) * 3600)),
            None => Err(TrashError::NoTime(name.to_owned(), time.to_owned())),
        },
    }
}

/// Returns the name of the file system that takes a dataset: below its encryption root, which it cannot leave.
fn container_of(name: &str, encryption_root: Option<&str>) -> String {
    let pool = name.split('/').next().unwrap_or_default();
    let root = encryption_root.filter(|root| *root != name && *root != "-");
    format!("{}/{CONTAINER}", root.unwrap_or(pool))
}

/// Puts a dataset and what is below it into the trash; it must not be mounted or in use. Returns its name there.
///
/// It is there on stable storage when this returns, and nothing mounts or shares it.
///
/// # Errors
/// The engine's: it is busy, or the caller may not rename it.
pub async fn put(
    pool: &PoolHandle,
    name: &str,
    seconds: u64,
    by: &str,
    now: Timestamp,
) -> Result<String, TrashError> {
    let info = pool.dataset(name, &query(&["encryptionroot"])).await?;
    let container = container_of(name, text(&info, "encryptionroot"));
    make_container(pool, &container).await?;
    let last = name.rsplit('/').next().unwrap_or(name);
    let at = now.strftime("%Y%m%dT%H%M%SZ");
    let until = now.as_second() + i64::try_from(seconds).unwrap_or(i64::MAX / 2);
    let until = Timestamp::from_second(until).unwrap_or(Timestamp::MAX);
    // Before the new name, so that whatever is in the trash says what it is.
    let marks = [
        (FROM_PROPERTY.to_owned(), name.to_owned()),
        (UNTIL_PROPERTY.to_owned(), until.to_string()),
        (BY_PROPERTY.to_owned(), by.to_owned()),
    ];
    pool.set_dataset_properties(name, &marks).await?;
    let mut number = 0;
    let entry = loop {
        let suffix = if number == 0 {
            String::new()
        } else {
            format!("-{number}")
        };
        let entry = format!("{container}/{at}{suffix}-{last}");
        match pool.rename_dataset(name, &entry, false).await {
            Ok(()) => break entry,
            Err(EngineError::DatasetExists(_)) if number < 100 => number += 1,
            Err(error) => {
                for (mark, _) in &marks {
                    let _ = pool.inherit(name, mark, false).await;
                }
                return Err(error.into());
            }
        }
    };
    put_settings_aside(pool, &entry).await?;
    Ok(entry)
}

async fn make_container(pool: &PoolHandle, name: &str) -> Result<(), EngineError> {
    let off = |names: &[&str]| -> Vec<(String, String)> {
        let setting = |name: &&str| ((*name).to_owned(), "off".to_owned());
        names.iter().map(setting).collect()
    };
    let mut properties = off(&[
        "canmount",
        "sharenfs",
        "sharesmb",
        "org.sanbox:nbd",
        policy::PROPERTY,
    ]);
    properties.push(("mountpoint".to_owned(), "none".to_owned()));
    let request = CreateDataset {
        name: name.to_owned(),
        volume: false,
        properties,
        parents: false,
        dry_run: false,
        key: None,
    };
    match pool.create_dataset(request).await {
        Ok(()) | Err(EngineError::DatasetExists(_)) => {}
        Err(error) => return Err(error),
    }
    let mut known = containers(pool).await?;
    if !known.iter().any(|known| known == name) {
        known.push(name.to_owned());
        remember(pool, known).await?;
    }
    Ok(())
}

/// Keeps the settings that act on the machine in one property, and takes them away, of a dataset and all below it.
async fn put_settings_aside(pool: &PoolHandle, top: &str) -> Result<(), EngineError> {
    let wanted: Vec<&str> = ACTING.iter().copied().chain([SETTINGS_PROPERTY]).collect();
    for info in below(pool, top, &wanted).await? {
        let mut kept = settings_of(&info);
        let before = kept.len();
        let mut acting = Vec::new();
        for name in ACTING {
            let Some(property) = info.property(name) else {
                continue;
            };
            let value = match (&property.source, &property.value) {
                (Source::Local, Value::Text(text)) => Some(text.clone()),
                (Source::Received, _) => None,
                _ => continue,
            };
            acting.push(*name);
            kept.entry((*name).to_owned()).or_insert(value);
        }
        if kept.len() > before {
            let text = serde_json::to_string(&kept).unwrap_or_default();
            let setting = [(SETTINGS_PROPERTY.to_owned(), text)];
            pool.set_dataset_properties(&info.name, &setting).await?;
        }
        for name in acting {
            pool.inherit(&info.name, name, false).await?;
        }
    }
    Ok(())
}

fn settings_of(info: &DatasetInfo) -> BTreeMap<String, Option<String>> {
    let own = info.property(SETTINGS_PROPERTY);
    let own = own.filter(|property| matches!(property.source, Source::Local));
    match own.map(|property| &property.value) {
        Some(Value::Text(text)) => serde_json::from_str(text).unwrap_or_default(),
        _ => BTreeMap::new(),
    }
}

/// Brings back the settings of a dataset that has left the trash.
async fn bring_settings_back(pool: &PoolHandle, info: &DatasetInfo) -> Result<(), EngineError> {
    let (local, received): (Vec<_>, Vec<_>) = settings_of(info)
        .into_iter()
        .filter(|(name, _)| ACTING.contains(&name.as_str()))
        .partition(|(_, value)| value.is_some());
    let local: Vec<(String, String)> = local
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect();
    if !local.is_empty() {
        pool.set_dataset_properties(&info.name, &local).await?;
    }
    for (name, _) in received {
        pool.inherit(&info.name, &name, true).await?;
    }
    for mark in [
        UNTIL_PROPERTY,
        FROM_PROPERTY,
        BY_PROPERTY,
        SETTINGS_PROPERTY,
    ] {
        let own = info.property(mark).map(|property| &property.source);
        if matches!(own, Some(Source::Local)) {
            pool.inherit(&info.name, mark, false).await?;
        }
    }
    Ok(())
}

const MARKS: &[&str] = &[
    UNTIL_PROPERTY,
    FROM_PROPERTY,
    BY_PROPERTY,
    SETTINGS_PROPERTY,
];

/// Returns the file systems that hold trash, as far as known.
async fn containers(pool: &PoolHandle) -> Result<Vec<String>, EngineError> {
    let root = pool
        .dataset(pool.name(), &query(&[CONTAINERS_PROPERTY]))
        .await?;
    let known = text(&root, CONTAINERS_PROPERTY).and_then(|text| serde_json::from_str(text).ok());
    let mut all: Vec<String> = known.unwrap_or_default();
    all.insert(0, format!("{}/{CONTAINER}", pool.name()));
    Ok(all)
}

/// Remembers the file systems that hold trash besides that of the pool, which are `all`.
async fn remember(pool: &PoolHandle, mut all: Vec<String>) -> Result<(), EngineError> {
    let own = format!("{}/{CONTAINER}", pool.name());
    all.retain(|name| *name != own);
    let text = serde_json::to_string(&all).unwrap_or_default();
    let setting = [(CONTAINERS_PROPERTY.to_owned(), text)];
    pool.set_dataset_properties(pool.name(), &setting).await
}

/// Lists what is in the trash of a pool, the first to go first.
///
/// # Errors
/// The engine's.
pub async fn entries(pool: &PoolHandle) -> Result<Vec<TrashEntry>, EngineError> {
    let wanted = query(&[UNTIL_PROPERTY, FROM_PROPERTY, BY_PROPERTY, "used"]);
    let mut found = Vec::new();
    for container in containers(pool).await? {
        let filter = DatasetFilter {
            root: container,
            depth: Some(1),
            kinds: vec![DatasetKind::Filesystem, DatasetKind::Volume],
        };
        match pool.datasets(&filter, &wanted).await {
            Ok(below) => found.extend(
                below
                    .iter()
                    .filter(|info| is_entry(&info.name))
                    .map(entry_of),
            ),
            Err(EngineError::DatasetNotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    found.sort_by_key(|entry| entry.until.unwrap_or(i64::MAX));
    Ok(found)
}

fn entry_of(info: &DatasetInfo) -> TrashEntry {
    let time = text(info, UNTIL_PROPERTY).and_then(|text| text.parse::<Timestamp>().ok());
    let used = info.property("used").and_then(|used| used.value.number());
    TrashEntry {
        from: text(info, FROM_PROPERTY).unwrap_or("-").to_owned(),
        by: text(info, BY_PROPERTY).unwrap_or("-").to_owned(),
        until: time.map(Timestamp::as_second),
        used_bytes: used.unwrap_or(0),
        dataset: info.name.clone(),
    }
}

/// Ends what was interrupted: settings of what is in the trash are put aside, those of what has left it come back.
///
/// # Errors
/// The engine's.
pub async fn settle(pool: &PoolHandle) -> Result<(), EngineError> {
    let names = below(pool, pool.name(), &[]).await?;
    let holds = |info: &&DatasetInfo| info.name.ends_with("/.trash");
    let mut there: Vec<String> = names
        .iter()
        .filter(holds)
        .map(|info| info.name.clone())
        .collect();
    if there.is_empty() {
        return Ok(());
    }
    // Those whose dataset was renamed are known by their old names.
    let mut known = containers(pool).await?;
    known.retain(|name| there.contains(name));
    there.sort_unstable();
    known.sort_unstable();
    if known != there {
        remember(pool, there).await?;
    }
    for entry in names.iter().filter(|info| is_entry(&info.name)) {
        put_settings_aside(pool, &entry.name).await?;
    }
    let marked = below(pool, pool.name(), MARKS).await?;
    let left = marked.iter().filter(|info| !is_trashed(&info.name));
    for info in left.filter(|info| !settings_of(info).is_empty()) {
        bring_settings_back(pool, info).await?;
    }
    Ok(())
}

/// Takes a dataset out of the trash, to the name it had or another. Returns its name, and those below it.
///
/// # Errors
/// It is not in the trash; the name is taken or has no parent any more.
pub async fn restore(
    pool: &PoolHandle,
    entry: &str,
    to: Option<&str>,
) -> Result<Vec<String>, TrashError> {
    let all = entries(pool).await?;
    let known = all.iter().find(|known| known.dataset == entry);
    let known = known.ok_or_else(|| TrashError::NotThere(entry.to_owned()))?;
    let to = to.unwrap_or(&known.from);
    pool.rename_dataset(entry, to, false).await?;
    let restored = below(pool, to, MARKS).await?;
    for info in &restored {
        bring_settings_back(pool, info).await?;
    }
    Ok(restored.into_iter().map(|info| info.name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_is_in_the_trash_and_where_it_belongs() {
        for (name, trashed, entry) in [
            ("tank", false, false),
            ("tank/.trash", false, false),
            ("tank/.trash/x", true, true),
            ("tank/.trash/x/y", true, false),
            ("tank/a/.trash/x", true, true),
            ("tank/a.trash/x", false, false),
        ] {
            assert_eq!(
                (is_trashed(name), is_entry(name)),
                (trashed, entry),
                "{name}"
            );
        }
        for (name, root, container) in [
            ("tank/a/b", None, "tank/.trash"),
            ("tank/a/b", Some("-"), "tank/.trash"),
            ("tank/a/b", Some("tank/a"), "tank/a/.trash"),
            ("tank/a", Some("tank/a"), "tank/.trash"),
            ("tank/a", Some("tank"), "tank/.trash"),
        ] {
            assert_eq!(container_of(name, root), container, "{name} {root:?}");
        }
    }
}
