//! `zpool`: pools, in OpenZFS 2.3's grammar, words and exit codes.

mod activity;
mod add;
mod checkpoint;
mod compatibility;
mod create;
mod dedup;
mod devices;
mod draid;
mod events;
pub(crate) mod get;
mod history;
mod import;
mod iostat;
mod labelclear;
mod layout;
mod leaf_work;
mod list;
mod remove;
mod replication;
mod scan;
mod split;
mod status;
mod upgrade;
mod vdev_properties;
mod wait;

pub(crate) use self::activity::vdev_guid;
use std::path::Path;
use std::time::Duration;

use engine::pool_property::PROPERTIES;
use engine::{AllocationBias, EngineError, Health, PoolHandle, PoolStatus, VdevStatus};
use manage::database::seconds_since_epoch;

use super::command::{Table, entry};
use super::{Exit, Outcome, Session, run_entry, version};
use crate::appliance::{CachedPool, KnownPool};

/// What `-c` of `iostat` and `status` is answered: a daemon would run the scripts with its own rights, for any user.
const NO_SCRIPTS: &str = "Can't run -c, disabled by sanbox (no scripts are run).";

/// The commands, in OpenZFS's order.
pub(crate) const TABLE: Table = &[
    &[entry!(version::VERSION, version::zpool)],
    &[
        entry!(create::CREATE, create::run),
        entry!(import::DESTROY, import::destroy),
    ],
    &[
        entry!(add::ADD, add::run),
        entry!(remove::REMOVE, remove::run),
    ],
    &[entry!(labelclear::LABELCLEAR, labelclear::run)],
    &[
        entry!(checkpoint::CHECKPOINT, checkpoint::run),
        entry!(dedup::PREFETCH, dedup::prefetch),
    ],
    &[
        entry!(list::LIST, list::run),
        entry!(iostat::IOSTAT, iostat::run),
        entry!(status::STATUS, status::run),
    ],
    &[
        entry!(devices::ONLINE, devices::online),
        entry!(devices::OFFLINE, devices::offline),
        entry!(scan::CLEAR, scan::clear),
        entry!(devices::REOPEN, devices::reopen),
    ],
    &[
        entry!(devices::ATTACH, devices::attach),
        entry!(devices::DETACH, devices::detach),
        entry!(devices::REPLACE, devices::replace),
        entry!(split::SPLIT, split::split),
    ],
    &[
        entry!(leaf_work::INITIALIZE, leaf_work::initialize),
        entry!(scan::RESILVER, scan::resilver),
        entry!(scan::SCRUB, scan::scrub),
        entry!(leaf_work::TRIM, leaf_work::trim),
    ],
    &[
        entry!(import::IMPORT, import::import),
        entry!(import::EXPORT, import::export),
        entry!(upgrade::UPGRADE, upgrade::run),
        entry!(split::REGUID, split::reguid),
    ],
    &[
        entry!(history::HISTORY, history::history),
        entry!(events::EVENTS, events::run),
    ],
    &[
        entry!(get::GET, get::get),
        entry!(get::SET, get::set),
        entry!(history::SYNC, history::sync),
    ],
    &[entry!(wait::WAIT, wait::run)],
    &[entry!(dedup::DDTPRUNE, dedup::prune)],
];

/// Runs a `zpool` command.
pub(crate) async fn run(session: &mut Session, arguments: &[String]) -> Outcome {
    run_entry(session, "zpool", TABLE, |_| property_list(), arguments).await
}

/// The list of properties that follows the usage of `get`, `set` and `list`.
fn property_list() -> String {
    let mut text = "\nthe following properties are supported:\n".to_owned();
    text.push_str(&format!("\n\t{:<19}  EDIT   VALUES\n\n", "PROPERTY"));
    let mut rows: Vec<_> = PROPERTIES.iter().collect();
    rows.sort_by_key(|row| (row.settable, row.name));
    for row in rows {
        let edit = if row.settable { " YES   " } else { "  NO   " };
        let values = if row.values.is_empty() {
            "-"
        } else {
            row.values
        };
        text.push_str(&format!("\t{:<19}  {edit}{values}\n", row.name));
    }
    text.push_str(&format!(
        "\t{:<19}   YES   disabled | enabled | active\n",
        "feature@..."
    ));
    text.push_str(
        "\nThe feature@ properties must be appended with a feature name.\nSee zpool-features(7).\n",
    );
    text
}

/// A pool a command acts on: imported, or known and not to be opened.
#[allow(clippy::large_enum_variant, reason = "few at a time, and not for long")]
pub(super) enum Subject {
    Open(PoolHandle),
    Closed(CachedPool, EngineError),
}

impl Subject {
    /// Returns the pool if it is open; else says why it is not.
    fn open(&self, session: &Session) -> Option<&PoolHandle> {
        match self {
            Self::Open(pool) => Some(pool),
            Self::Closed(cached, error) => {
                session.out.error(unavailable(&cached.name, error));
                None
            }
        }
    }
}

/// Returns the pools named, or all when none is named; says which do not exist and returns
/// whether one was missing.
pub(super) async fn subjects(session: &Session, names: &[String]) -> (Vec<Subject>, bool) {
    let mut found = Vec::new();
    let mut missing = false;
    if names.is_empty() {
        for known in session.appliance.pools().await {
            found.push(match known {
                KnownPool::Open(pool) => Subject::Open(pool),
                KnownPool::Closed(cached, error) => Subject::Closed(cached, error),
            });
        }
        return (found, false);
    }
    for name in names {
        match subject(session, name).await {
            Ok(subject) => found.push(subject),
            Err(_) => missing = true,
        }
    }
    (found, missing)
}

/// Returns the pool named; says so when there is none.
pub(super) async fn subject(session: &Session, name: &str) -> Result<Subject, Exit> {
    if let Some(why) = bad_name(name) {
        return Err(session.fail(format!("cannot open '{name}': {why}")));
    }
    match session.appliance.known_pool(name).await {
        Some(KnownPool::Open(pool)) => Ok(Subject::Open(pool)),
        Some(KnownPool::Closed(cached, error)) => Ok(Subject::Closed(cached, error)),
        None => Err(session.fail(format!("cannot open '{name}': no such pool"))),
    }
}

/// Returns the imported pool named; says why there is none.
pub(crate) async fn open_pool(session: &Session, name: &str) -> Result<PoolHandle, Exit> {
    match subject(session, name).await? {
        Subject::Open(pool) => Ok(pool),
        Subject::Closed(_, error) => Err(session.fail(unavailable(name, &error))),
    }
}

/// Says that a pool is known and cannot be opened, and why.
pub(crate) fn unavailable(name: &str, error: &EngineError) -> String {
    format!("cannot open '{name}': pool I/O is currently unavailable: {error}")
}

/// Why a name cannot be a pool's, if so.
pub(super) fn bad_name(name: &str) -> Option<String> {
    // OpenZFS: module/zcommon/zfs_namecheck.c, pool_namecheck; lib/libzfs, zpool_name_valid
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.: ".contains(c);
    if name.len() >= 256 {
        return Some("name is too long".to_owned());
    }
    if let Some(bad) = name.chars().find(|c| !allowed(*c)) {
        return Some(format!("invalid character '{bad}' in pool name"));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Some("name must begin with a letter".to_owned());
    }
    if matches!(name, "mirror" | "raidz" | "draid") {
        return Some("pool name is reserved".to_owned());
    }
    None
}

/// How vdevs are named: `-g`, `-L`, `-P`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NameStyle {
    pub(super) guid: bool,
    pub(super) real_path: bool,
    pub(super) full_path: bool,
}

impl NameStyle {
    /// Returns the name of a vdev as the commands print it.
    pub(super) fn name(self, vdev: &VdevStatus) -> String {
        if self.guid {
            return vdev.guid.to_string();
        }
        let Some(path) = &vdev.path else {
            return vdev.name.clone();
        };
        if vdev.health == Health::Unavail
            && vdev.note.as_deref().is_some_and(|n| n.starts_with("was "))
        {
            return vdev.guid.to_string();
        }
        let real = if self.real_path {
            std::fs::canonicalize(path).ok()
        } else {
            None
        };
        let path = real.as_deref().unwrap_or(path);
        if self.full_path || vdev.kind == "file" {
            return path.to_string_lossy().into_owned();
        }
        strip_directory(path)
    }
}

/// A device's name without the directories that device names are known by.
fn strip_directory(path: &Path) -> String {
    let text = path.to_string_lossy();
    for directory in [
        "/dev/disk/by-vdev/",
        "/dev/mapper/",
        "/dev/disk/by-partlabel/",
        "/dev/disk/by-partuuid/",
        "/dev/disk/by-label/",
        "/dev/disk/by-uuid/",
        "/dev/disk/by-id/",
        "/dev/disk/by-path/",
        "/dev/",
    ] {
        if let Some(rest) = text.strip_prefix(directory) {
            return rest.to_owned();
        }
    }
    text.into_owned()
}

/// Whether a vdev has space of its own: the pool and its top-level vdevs, not the disks below.
pub(super) fn has_space(vdev: &VdevStatus) -> bool {
    vdev.size_bytes != 0 && (vdev.path.is_none() || vdev.fragmentation_percent.is_some())
}

/// The top-level vdevs in the sections they are shown in, empty ones left out: ordinary ones first, without a title.
// OpenZFS: cmd/zpool/zpool_main.c, print_class_vdevs and its callers (order, titles)
pub(super) fn sections(root: &VdevStatus) -> Vec<(Option<&'static str>, Vec<&VdevStatus>)> {
    let titles = [
        (AllocationBias::None, None),
        (AllocationBias::Dedup, Some("dedup")),
        (AllocationBias::Special, Some("special")),
        (AllocationBias::Log, Some("logs")),
    ];
    titles
        .into_iter()
        .map(|(bias, title)| {
            let tops = root.children.iter().filter(|top| top.bias == bias);
            (title, tops.collect::<Vec<_>>())
        })
        .filter(|(_, tops)| !tops.is_empty())
        .collect()
}

/// Widest name of a pool's vdevs, its cache devices and spares among them.
pub(super) fn status_width(status: &PoolStatus, style: NameStyle) -> usize {
    let others = status.caches.iter().chain(&status.spares);
    others
        .map(|device| style.name(device).len() + 2)
        .fold(name_width(&status.root, style), usize::max)
}

/// Widest name of a vdev tree, each level indented by two, in bytes.
pub(super) fn name_width(root: &VdevStatus, style: NameStyle) -> usize {
    fn below(vdev: &VdevStatus, depth: usize, style: NameStyle) -> usize {
        let own = if depth == 0 {
            vdev.name.len()
        } else {
            style.name(vdev).len() + depth
        };
        vdev.children
            .iter()
            .map(|child| below(child, depth + 2, style))
            .fold(own, usize::max)
    }
    below(root, 0, style)
}

/// The `[interval [count]]` at the end of some commands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Repeat {
    pub(crate) interval: Option<Duration>,
    pub(crate) count: Option<u64>,
}

impl Repeat {
    /// Waits for the next of the rounds, of which so many are over; false when there is none.
    ///
    /// # Errors
    /// The output is gone.
    pub(crate) async fn goes_on(&self, session: &Session, rounds: u64) -> Result<bool, Exit> {
        let Some(interval) = self.interval else {
            return Ok(false);
        };
        if self.count.is_some_and(|count| rounds >= count) {
            return Ok(false);
        }
        session.out.flush().await?;
        tokio::time::sleep(interval).await;
        Ok(true)
    }
}

/// Takes the interval and the count off the end of the operands.
pub(crate) fn repeat(session: &Session, operands: &mut Vec<String>) -> Result<Repeat, Exit> {
    let number = |text: &String| text.parse::<f64>().ok();
    let mut repeat = Repeat {
        interval: None,
        count: None,
    };
    let Some(last) = operands.last().and_then(number) else {
        return Ok(repeat);
    };
    if last == 0.0 {
        return Err(session.misuse("interval cannot be zero"));
    }
    operands.pop();
    let mut interval = last;
    if let Some(before) = operands.last().and_then(number) {
        if before == 0.0 {
            return Err(session.misuse("interval cannot be zero"));
        }
        operands.pop();
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a float turns into the nearest integer of the range"
        )]
        let count = last as u64;
        repeat.count = Some(count);
        interval = before;
    }
    repeat.interval = Some(Duration::try_from_secs_f64(interval.abs()).unwrap_or(Duration::MAX));
    Ok(repeat)
}

/// The time stamp of `-T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stamp {
    None,
    Date,
    Unix,
}

impl Stamp {
    pub(super) fn of(session: &Session, text: &str) -> Result<Self, Exit> {
        match text.chars().next() {
            Some('d') => Ok(Self::Date),
            Some('u') => Ok(Self::Unix),
            _ => Err(session.misuse(format!("invalid argument '{text}' for -T option"))),
        }
    }

    pub(super) fn print(self, session: &Session) {
        let now = seconds_since_epoch();
        match self {
            Self::None => {}
            Self::Date => session.out.line(super::format::date_with_seconds(now)),
            Self::Unix => session.out.line(now.to_string()),
        }
    }
}
