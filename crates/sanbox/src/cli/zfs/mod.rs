//! `zfs`: datasets, in OpenZFS 2.3's grammar, words and exit codes.

mod allow;
mod change;
mod change_key;
mod create;
mod destroy;
mod diff;
mod get;
mod key_file;
pub(super) mod keys;
mod list;
mod mount;
mod mount_helper;
mod program;
mod project;
mod receive;
mod redact;
mod rewrite;
mod rotate_key;
mod send;
mod snapshot;
mod unsupported;
mod upgrade;
mod userspace;
mod wait;

use engine::property::{Attribute, DatasetKind, PROPERTIES, Property};
use engine::{DatasetFilter, DatasetInfo, EngineError, PoolHandle, PropertyQuery};
use serde_json::{Value, json};

pub(super) use self::destroy::destroy_tree;
pub(super) use self::mount_helper::{HelperCall, run as mount_helper};
pub(crate) use self::userspace::numbered;
use super::command::{Table, entry};
use super::zpool::unavailable;
use super::{Exit, Outcome, Session, dataset_clause, json as forms, pool_part, run_entry, version};
use crate::appliance::KnownPool;

/// The commands, in OpenZFS's order; last those that it does not have.
pub(crate) const TABLE: Table = &[
    &[entry!(version::VERSION, version::zfs)],
    &[
        entry!(create::CREATE, create::create),
        entry!(destroy::DESTROY, destroy::destroy),
    ],
    &[
        entry!(snapshot::SNAPSHOT, snapshot::snapshot),
        entry!(snapshot::ROLLBACK, snapshot::rollback),
        entry!(snapshot::CLONE, snapshot::clone),
        entry!(snapshot::PROMOTE, snapshot::promote),
        entry!(create::RENAME, create::rename),
        entry!(snapshot::BOOKMARK, snapshot::bookmark),
        entry!(program::PROGRAM, program::run),
    ],
    &[entry!(list::LIST, list::run)],
    &[
        entry!(change::SET, change::set),
        entry!(get::GET, get::run),
        entry!(change::INHERIT, change::inherit),
        entry!(upgrade::UPGRADE, upgrade::run),
    ],
    &[
        entry!(userspace::USERSPACE, userspace::run),
        entry!(userspace::GROUPSPACE, userspace::run),
        entry!(userspace::PROJECTSPACE, userspace::run),
    ],
    &[entry!(project::PROJECT, project::run)],
    &[
        entry!(mount::MOUNT, mount::mount),
        entry!(mount::UNMOUNT, mount::unmount),
        entry!(mount::SHARE, mount::share),
        entry!(mount::UNSHARE, mount::unshare),
    ],
    &[
        entry!(send::SEND, send::run),
        entry!(receive::RECEIVE, receive::run),
    ],
    &[entry!(allow::ALLOW, allow::allow)],
    &[entry!(allow::UNALLOW, allow::unallow)],
    &[
        entry!(snapshot::HOLD, snapshot::hold),
        entry!(snapshot::HOLDS, snapshot::holds),
        entry!(snapshot::RELEASE, snapshot::release),
        entry!(diff::DIFF, diff::run),
        entry!(keys::LOAD_KEY, keys::load_keys),
        entry!(keys::UNLOAD_KEY, keys::unload_keys),
        entry!(change_key::CHANGE_KEY, change_key::run),
        entry!(redact::REDACT, redact::run),
        entry!(wait::WAIT, wait::run),
        entry!(rewrite::REWRITE, rewrite::run),
        entry!(unsupported::ZONE),
        entry!(unsupported::UNZONE),
    ],
    &[
        entry!(key_file::KEY, key_file::run),
        entry!(rotate_key::ROTATE_KEY, rotate_key::run),
    ],
];

/// Runs a `zfs` command.
pub(crate) async fn run(session: &mut Session, arguments: &[String]) -> Outcome {
    run_entry(session, "zfs", TABLE, property_list, arguments).await
}

/// The list of properties that follows the usage of `get`, `set`, `inherit` and `list`.
fn property_list(command: &str) -> String {
    let mut text = "\nThe following properties are supported:\n".to_owned();
    text.push_str(&format!(
        "\n\t{:<14} {}  {}   {}\n\n",
        "PROPERTY", "EDIT", "INHERIT", "VALUES"
    ));
    let mut rows: Vec<_> = PROPERTIES.iter().filter(|row| row.visible).collect();
    rows.sort_by_key(|row| (row.attribute != Attribute::ReadOnly, row.name));
    for row in rows {
        if command == "inherit" && row.attribute != Attribute::Inherit {
            continue;
        }
        let edit = if row.attribute == Attribute::ReadOnly {
            "  NO"
        } else {
            " YES"
        };
        let inherit = if row.attribute == Attribute::Inherit {
            "    YES"
        } else {
            "     NO"
        };
        let values = if row.values.is_empty() {
            "-"
        } else {
            row.values
        };
        text.push_str(&format!(
            "\t{:<15} {edit}   {inherit}   {values}\n",
            row.name
        ));
    }
    for user in [
        "userused@...",
        "groupused@...",
        "projectused@...",
        "userobjused@...",
    ] {
        text.push_str(&format!("\t{user:<15}   NO        NO   <size>\n"));
    }
    for user in ["userquota@...", "groupquota@...", "projectquota@..."] {
        text.push_str(&format!("\t{user:<15}  YES        NO   <size> | none\n"));
    }
    text.push_str(
        "\t{:<15}   NO        NO   <size>\n"
            .replace("{:<15}", "written@<snap> ")
            .as_str(),
    );
    text.push_str(
        "\nSizes are specified in bytes with standard units such as K, M, G, etc.\n\n\
         User-defined properties can be specified by using a name containing a colon (:).\n\n\
         The {user|group|project}[obj]{used|quota}@ properties must be appended with\n\
         a user|group|project specifier of one of these forms:\n\
         \x20   POSIX name      (eg: \"matt\")\n    POSIX id        (eg: \"126829\")\n\
         \x20   SMB name@domain (eg: \"matt@sun\")\n    SMB SID         (eg: \"S-1-234-567-89\")\n",
    );
    text
}

/// Why a name cannot be a dataset's, if so.
fn bad_name(name: &str, kind: DatasetKind) -> Option<String> {
    // OpenZFS: module/zcommon/zfs_namecheck.c; lib/libzfs/libzfs_dataset.c, zfs_validate_name
    if name.len() >= 256 {
        return Some("name is too long".to_owned());
    }
    if name.starts_with('/') {
        return Some("leading slash in name".to_owned());
    }
    if name.ends_with('/') {
        return Some("trailing slash in name".to_owned());
    }
    let marks = name.matches(['@', '#']).count();
    if marks > 1 {
        return Some("multiple '@' and/or '#' delimiters in name".to_owned());
    }
    if name.split(['/', '@', '#']).any(str::is_empty) {
        return Some("empty component or misplaced '@' or '#' delimiter in name".to_owned());
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.: /@#%".contains(c);
    if let Some(bad) = name.chars().find(|c| !allowed(*c)) {
        return Some(format!("invalid character '{bad}' in name"));
    }
    if name
        .split(['/', '@', '#'])
        .any(|part| matches!(part, "." | ".."))
    {
        return Some("self reference, '.' is found in name".replace(
            if name.split('/').any(|part| part == "..") {
                "self reference, '.'"
            } else {
                "\0"
            },
            "parent reference, '..'",
        ));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Some("pool doesn't begin with a letter".to_owned());
    }
    match kind {
        DatasetKind::Filesystem | DatasetKind::Volume if name.contains('@') => {
            Some("snapshot delimiter '@' is not expected here".to_owned())
        }
        DatasetKind::Filesystem | DatasetKind::Volume if name.contains('#') => {
            Some("bookmark delimiter '#' is not expected here".to_owned())
        }
        DatasetKind::Filesystem | DatasetKind::Volume if name.contains('%') => {
            Some("invalid character '%' in name".to_owned())
        }
        _ => None,
    }
}

/// Returns a dataset that a command names; says why there is none.
async fn open(
    session: &Session,
    name: &str,
    query: &PropertyQuery,
) -> Result<(PoolHandle, DatasetInfo), Exit> {
    if let Some(why) = bad_name(name, DatasetKind::Snapshot) {
        return Err(session.fail(format!("cannot open '{name}': {why}")));
    }
    let found = async {
        let pool = session.appliance.pool_of(name).await?;
        let info = pool.dataset(name, query).await?;
        Ok::<_, EngineError>((pool, info))
    };
    match found.await {
        Ok(found) => Ok(found),
        Err(error) => {
            Err(session.fail(format!("cannot open '{name}': {}", dataset_clause(&error))))
        }
    }
}

/// Which datasets a listing command means.
struct Selection<'a> {
    names: &'a [String],
    /// Levels below the named ones; `None` is all. Not looked at when none is named.
    depth: Option<u32>,
    kinds: Vec<DatasetKind>,
    /// The depth was given by the user, and also limits a listing without names.
    limited: bool,
    /// Snapshots are listed besides, with what lies below, where the pool's property `listsnapshots` is on.
    list_snapshots: bool,
}

// OpenZFS: cmd/zfs/zfs_iter.c, zfs_include_snapshots
async fn lists_snapshots(pool: &PoolHandle) -> bool {
    let properties = pool.properties().await.unwrap_or_default();
    let found = properties
        .iter()
        .find(|entry| entry.name == "listsnapshots");
    found.is_some_and(|entry| entry.display() == "on")
}

/// Returns the datasets selected, and whether one named was missing (which has been said).
async fn select(
    session: &Session,
    selection: &Selection<'_>,
    query: &PropertyQuery,
) -> (Vec<DatasetInfo>, bool) {
    let mut found: Vec<DatasetInfo> = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    let mut failed = false;
    let mut starts: Vec<(PoolHandle, String, Option<u32>)> = Vec::new();
    if selection.names.is_empty() {
        let depth = if selection.limited {
            selection.depth
        } else {
            None
        };
        for known in session.appliance.pools().await {
            match known {
                KnownPool::Open(pool) => {
                    let name = pool.name().to_owned();
                    starts.push((pool, name, depth));
                }
                KnownPool::Closed(cached, error) => {
                    session.out.error(unavailable(&cached.name, &error));
                    failed = true;
                }
            }
        }
    }
    for name in selection.names {
        let Ok(name) = &dataset_at(session, name).await else {
            failed = true;
            continue;
        };
        match open(session, name, &PropertyQuery::None).await {
            Ok((pool, info)) => {
                let alone = selection.depth == Some(0) && !selection.limited;
                if alone && !selection.kinds.contains(&info.kind) {
                    session.out.error(format!(
                        "cannot open '{name}': operation not applicable to datasets of this type"
                    ));
                    failed = true;
                } else {
                    starts.push((pool, name.clone(), selection.depth));
                }
            }
            Err(_) => failed = true,
        }
    }
    let once = starts.len() == 1;
    for (pool, root, depth) in starts {
        let mut kinds = selection.kinds.clone();
        let goes_below = depth != Some(0);
        if selection.list_snapshots && goes_below && lists_snapshots(&pool).await {
            kinds.push(DatasetKind::Snapshot);
        }
        let filter = DatasetFilter {
            root: root.clone(),
            depth,
            kinds,
        };
        match pool.datasets(&filter, query).await {
            Ok(datasets) => {
                for mut info in datasets {
                    if once || seen.insert(info.name.clone()) {
                        session.appliance.fill_in(&mut info);
                        found.push(info);
                    }
                }
            }
            Err(error) => {
                session
                    .out
                    .error(format!("cannot open '{root}': {}", dataset_clause(&error)));
                failed = true;
            }
        }
    }
    (found, failed)
}

/// Returns the dataset a word names: a path means the one mounted there.
// OpenZFS: lib/libzfs/libzfs_dataset.c, zfs_path_to_zhandle
async fn dataset_at(session: &Session, word: &str) -> Result<String, Exit> {
    if !word.starts_with('/') && !word.starts_with("./") {
        return Ok(word.to_owned());
    }
    let path = session.path(word);
    // For a delegated user this process must not find out which paths exist: the path is taken as it is written.
    let looks = !crate::appliance::is_delegated();
    let looked = tokio::task::spawn_blocking(move || match looks {
        true => std::fs::canonicalize(path),
        false => Ok(path),
    });
    let path = match looked.await {
        Ok(Ok(path)) => path,
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(session.fail(format!("cannot open '{word}': No such file or directory")));
        }
        _ => return Err(session.fail(format!("cannot open '{word}'"))),
    };
    let mounts = session.appliance.mounts().list();
    let inside = mounts
        .into_iter()
        .filter(|(_, point)| path.starts_with(point));
    match inside.max_by_key(|(_, point)| point.as_os_str().len()) {
        Some((dataset, _)) => Ok(dataset),
        None => Err(session.fail(format!("cannot open '{word}': not a ZFS filesystem"))),
    }
}

/// Reads the `-t` of `list` and `get`.
fn kinds(session: &Session, list: &str) -> Result<Vec<DatasetKind>, Exit> {
    let mut kinds = Vec::new();
    for word in list.split(',') {
        match word {
            "filesystem" | "fs" => kinds.push(DatasetKind::Filesystem),
            "volume" | "vol" => kinds.push(DatasetKind::Volume),
            "snapshot" | "snap" => kinds.push(DatasetKind::Snapshot),
            "bookmark" => kinds.push(DatasetKind::Bookmark),
            "all" => kinds.extend(ALL_KINDS),
            _ => return Err(session.misuse(format!("invalid type '{word}'"))),
        }
    }
    Ok(kinds)
}

const ALL_KINDS: [DatasetKind; 4] = [
    DatasetKind::Filesystem,
    DatasetKind::Volume,
    DatasetKind::Snapshot,
    DatasetKind::Bookmark,
];

/// Reads the `-d` of `list` and `get`.
fn depth(session: &Session, text: &str) -> Result<u32, Exit> {
    match text.parse::<u32>() {
        Ok(depth) => Ok(depth),
        Err(_) if text.starts_with('-') => {
            Err(session.misuse(format!("{text} can not be negative")))
        }
        Err(_) => Err(session.misuse(format!("{text} is not an integer"))),
    }
}

/// Reads a list of property names: native ones by name or column heading, user properties, space
/// of users and snapshots.
fn property_names(session: &Session, list: &str) -> Result<Vec<String>, Exit> {
    let mut names = Vec::new();
    for word in list.split(',') {
        names.push(property_name(session, word)?);
    }
    Ok(names)
}

fn property_name(session: &Session, word: &str) -> Result<String, Exit> {
    if let Some(native) = Property::from_name(&word.to_ascii_lowercase()) {
        return Ok(native.name().to_owned());
    }
    if engine::property::is_user_property(word)
        || engine::property::split_user_space(word).is_some()
        || word.starts_with("written@")
        || word.starts_with("written#")
    {
        return Ok(word.to_owned());
    }
    Err(session.misuse(format!("bad property list: invalid property '{word}'")))
}

/// A property's value and source of a dataset, as shown.
fn shown(info: &DatasetInfo, name: &str, literal: bool) -> Option<(String, String)> {
    if name == "name" {
        return Some((info.name.clone(), "-".to_owned()));
    }
    let property = info.property(&userspace::numbered(name))?;
    Some((
        text_of_property(property, literal),
        property.source.to_string(),
    ))
}

fn text_of_property(property: &engine::DatasetProperty, literal: bool) -> String {
    property
        .value
        .number()
        .filter(|_| property.native.is_none())
        .and_then(|number| userspace::shown(&property.name, number, literal))
        .unwrap_or_else(|| text_of(property.native, &property.value, literal))
}

fn text_of(native: Option<Property>, value: &engine::property::Value, literal: bool) -> String {
    match (native, value.number(), value.text()) {
        (Some(native), Some(seconds), _) if engine::property::is_date(native) && !literal => {
            super::format::date(seconds)
        }
        (Some(native), ..) => engine::property::display(native, value, literal),
        (None, Some(number), _) if literal => number.to_string(),
        (None, Some(number), _) => super::format::nice_bytes(number),
        (None, None, text) => text.unwrap_or("-").to_owned(),
    }
}

/// What every JSON form says of a dataset.
fn dataset_json(info: &DatasetInfo, integers: bool) -> Value {
    let mut object = json!({
        "name": info.name,
        "type": info.kind.as_str().to_ascii_uppercase(),
        "pool": pool_part(&info.name),
        "createtxg": forms::text(&info.create_txg.to_string(), integers),
    });
    if let Some((dataset, snapshot)) = info.name.split_once('@') {
        object["dataset"] = Value::from(dataset);
        object["snapshot_name"] = Value::from(snapshot);
    }
    object
}

/// Datasets in the order of their names, a dataset before its snapshots and these by age.
fn name_order(left: &DatasetInfo, right: &DatasetInfo) -> std::cmp::Ordering {
    let (left_set, left_snap) = parts(&left.name);
    let (right_set, right_snap) = parts(&right.name);
    left_set
        .cmp(right_set)
        .then_with(|| match (left_snap, right_snap) {
            (None, None) => std::cmp::Ordering::Equal,
            (None, Some(_)) => std::cmp::Ordering::Less,
            (Some(_), None) => std::cmp::Ordering::Greater,
            (Some(left_snap), Some(right_snap)) => left
                .create_txg
                .cmp(&right.create_txg)
                .then(left_snap.cmp(right_snap)),
        })
}

/// A dataset's name and its snapshot's.
fn parts(name: &str) -> (&str, Option<&str>) {
    match name.split_once('@') {
        Some((dataset, snapshot)) => (dataset, Some(snapshot)),
        None => (name, None),
    }
}
