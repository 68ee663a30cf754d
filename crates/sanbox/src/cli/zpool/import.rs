//! `zpool import`, `zpool export` and `zpool destroy`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use engine::{
    Candidate, Ending, EngineError, Health, ImportPolicy, PoolError, PoolState, Rewind, Rewound,
    StatusReason, VdevStatus,
};

use super::{NameStyle, Subject, bad_name, name_width, sections, subject, subjects};
use crate::cli::command::{Command, Word, options};
use crate::cli::format::{date_with_seconds, plain_words};
use crate::cli::{Exit, Outcome, Session, setting};

options! {
    DestroyOption {
        Force = short('f', "unmount what is in use"),
    }
}

/// The declaration of `zpool destroy`.
pub(super) const DESTROY: Command = Command {
    name: "destroy",
    summary: "destroy a pool",
    usage: "\tdestroy [-f] <pool>\n",
    flags: DestroyOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool],
    examples: &[(
        "zpool destroy tank",
        "give up the pool; until its disks are reused, zpool import -D brings it back",
    )],
    ..Command::NEW
};

options! {
    ImportOption {
        All = short('a', "all pools found"),
        Unused1 = short('C', "refused: it has no meaning"),
        Cachefile(String) = valued('c', "cachefile", "take the list of pools from this file"),
        Directory(String) = valued('d', "dir", "look for devices here; may be repeated"),
        Destroyed = short('D', "destroyed pools"),
        Unused2 = short('E', "refused: it has no meaning"),
        Force = short('f', "though another system may use the pool"),
        Rewind = short('F', "go back a little when the newest state is damaged"),
        LoadKeys = short('l', "ask for the keys of encrypted datasets"),
        MissingLogs = short('m', "without its log devices; what only they hold is lost"),
        DryRun = short('n', "with -F, only say how far back"),
        Unmounted = short('N', "mount and share nothing"),
        Property(String) = valued('o', "property=value", "a property, or mount options"),
        Altroot(String) = valued('R', "root", "mount below this directory"),
        Scan = short('s', "look at devices rather than caches, as is done anyhow"),
        Temporary = short('t', "the new name is for this import only"),
        Txg(String) = valued('T', "txg", "the state at this transaction group"),
        Verbatim = short('V', "refused: the configuration is always read from the devices"),
        Extreme = short('X', "with -F, however far"),
        RewindToCheckpoint = long("rewind-to-checkpoint", None, "go back to the checkpoint; everything since is lost"),
    }
}

/// The declaration of `zpool import`.
pub(super) const IMPORT: Command = Command {
    name: "import",
    summary: "find pools and import them",
    usage: "\timport [-d dir] [-D]\n\
         \timport [-o mntopts] [-o property=value] ... \n\
         \t    [-d dir | -c cachefile] [-D] [-l] [-f] [-m] [-N] [-R root] [-F [-n]] -a\n\
         \timport [-o mntopts] [-o property=value] ... \n\
         \t    [-d dir | -c cachefile] [-D] [-l] [-f] [-m] [-N] [-R root] [-F [-n]]\n\
         \t    [--rewind-to-checkpoint] <pool | id> [newpool]\n",
    flags: ImportOption::FLAGS,
    words: &[Word::Text, Word::Text],
    examples: &[
        (
            "zpool import -d /srv/disks",
            "say which pools the directory's disks hold",
        ),
        ("zpool import -d /srv/disks tank", "import one of them"),
        (
            "zpool import -o readonly=on -d /srv/disks tank rescue",
            "look into a pool without writing to it, under another name",
        ),
        (
            "zpool import -m -d /srv/disks tank",
            "import a pool whose log devices are gone: what only they held is lost",
        ),
        (
            "zpool import -Fn -d /srv/disks tank",
            "say how far back a pool would have to go whose newest state is damaged; without -n it goes back",
        ),
        (
            "zpool import -T 1234 -o readonly=on -d /srv/disks tank",
            "look at the pool as it was at a transaction group that its labels still know",
        ),
    ],
    ..Command::NEW
};

options! {
    ExportOption {
        All = short('a', "all pools"),
        Force = short('f', "unmount what is in use"),
        HardForce = short('F', "as -f"),
    }
}

/// The declaration of `zpool export`.
pub(super) const EXPORT: Command = Command {
    name: "export",
    summary: "let go of pools",
    usage: "\texport [-af] <pool> ...\n",
    flags: ExportOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool],
    examples: &[(
        "zpool export tank",
        "write everything out and let go of the disks, ready for another machine",
    )],
    ..Command::NEW
};

const NO_MEANING: &str = "the option has no meaning";
const NOT_VERBATIM: &str =
    "the configuration is always read from the devices; import the pool without the option";

#[derive(Default)]
struct Options {
    all: bool,
    places: Vec<PathBuf>,
    destroyed: bool,
    force: bool,
    temporary: bool,
    altroot: Option<PathBuf>,
    readonly: bool,
    dry_run: bool,
    rewind: bool,
    extreme: bool,
    txg: Option<u64>,
    scan: bool,
    cachefile: Option<PathBuf>,
    load_keys: bool,
    unmounted: bool,
    missing_logs: bool,
    rewind_to_checkpoint: bool,
    properties: BTreeMap<String, String>,
}

impl Options {
    fn read(session: &Session, arguments: &[String]) -> Result<(Self, Vec<String>), Exit> {
        let mut options = Self::default();
        let operands = session.read_options(arguments, |session, option| {
            match option {
                ImportOption::All => options.all = true,
                ImportOption::Directory(path) => options.places.push(session.path(path)),
                ImportOption::Destroyed => options.destroyed = true,
                ImportOption::Force => options.force = true,
                ImportOption::Temporary => options.temporary = true,
                ImportOption::DryRun => options.dry_run = true,
                ImportOption::Rewind => options.rewind = true,
                ImportOption::Extreme => options.extreme = true,
                ImportOption::Txg(text) => options.txg = Some(txg(session, &text)?),
                ImportOption::Cachefile(file) => options.cachefile = Some(session.path(file)),
                ImportOption::MissingLogs => options.missing_logs = true,
                ImportOption::Scan => options.scan = true,
                ImportOption::LoadKeys => options.load_keys = true,
                ImportOption::Unmounted => options.unmounted = true,
                ImportOption::Altroot(root) => options.altroot = Some(PathBuf::from(root)),
                ImportOption::Property(text) => options.property(session, &text)?,
                ImportOption::RewindToCheckpoint => options.rewind_to_checkpoint = true,
                // OpenZFS reads the two and does nothing with them.
                ImportOption::Unused1 => return Err(refused(session, 'C', NO_MEANING)),
                ImportOption::Unused2 => return Err(refused(session, 'E', NO_MEANING)),
                ImportOption::Verbatim => return Err(refused(session, 'V', NOT_VERBATIM)),
            }
            Ok(())
        })?;
        Ok((options, operands))
    }

    /// Takes `-o`.
    fn property(&mut self, session: &Session, text: &str) -> Outcome {
        let Some((name, value)) = setting(text) else {
            return Err(session.fail(format!(
                "zpool import -o {text}: mount options are not applied at an import; use 'zfs mount -o {text}'"
            )));
        };
        match name.as_str() {
            "readonly" => self.readonly = value == "on",
            "altroot" => self.altroot = Some(PathBuf::from(value)),
            _ => drop(self.properties.insert(name, value)),
        }
        Ok(())
    }
}

/// Reads `-T`.
fn txg(session: &Session, text: &str) -> Result<u64, Exit> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| session.misuse("invalid txg value"))
}

/// Refuses an option by its name.
fn refused(session: &Session, letter: char, why: &str) -> Exit {
    session.fail(format!("zpool import -{letter}: {why}"))
}

pub(super) async fn import(session: &Session, arguments: &[String]) -> Outcome {
    let (options, operands) = Options::read(session, arguments)?;
    if options.cachefile.is_some() && !options.places.is_empty() {
        return Err(session.misuse("-c is incompatible with -d"));
    }
    if options.cachefile.is_some() && options.scan {
        return Err(session.misuse("-c is incompatible with -s"));
    }
    if options.load_keys && options.unmounted {
        return Err(session.misuse("-l is incompatible with -N"));
    }
    if options.load_keys && !options.all && operands.is_empty() {
        return Err(session.misuse("-l is only meaningful during an import"));
    }
    if (options.dry_run || options.extreme) && !options.rewind {
        return Err(session.misuse("-n or -X only meaningful with -F"));
    }
    if options.all && !operands.is_empty() || operands.len() > 2 {
        return Err(session.misuse("too many arguments"));
    }
    if let Some(root) = options.altroot.as_ref().filter(|root| !root.is_absolute()) {
        return Err(session.fail(format!("bad alternate root '{}'", root.display())));
    }
    let remembered = match &options.cachefile {
        Some(file) => Some(remembered(session, file)?),
        None => None,
    };
    let places = match &remembered {
        Some(pools) => pools.values().flatten().cloned().collect(),
        None => search_places(session, &options.places),
    };
    let found = match session.appliance.engine().discover(places).await {
        Ok(found) => found,
        Err(error) => return Err(session.fail(format!("cannot discover pools: {error}"))),
    };
    for (place, why) in &found.rejected {
        if options.places.contains(place) {
            session
                .out
                .error(format!("cannot search '{}': {why}", place.display()));
        }
    }
    let imported_ones = session.appliance.known_guids().await;
    let mut candidates = Vec::new();
    for candidate in found.pools {
        let imported = imported_ones.contains(&candidate.guid);
        let destroyed = candidate.state == PoolState::Destroyed;
        let wanted = remembered
            .as_ref()
            .is_none_or(|pools| pools.contains_key(&candidate.guid));
        if !imported && wanted && destroyed == options.destroyed {
            candidates.push(candidate);
        }
    }
    match operands.first() {
        Some(name) => import_one(session, &options, candidates, name, operands.get(1)).await,
        None if options.all => import_all(session, &options, candidates).await,
        None => {
            for candidate in &mut candidates {
                session.appliance.judge_host(candidate).await;
            }
            show(session, &candidates);
            Ok(())
        }
    }
}

/// Returns the pools a cache file (`zpool.cache`) remembers, by guid, with the paths of their devices.
fn remembered(session: &Session, file: &Path) -> Result<BTreeMap<u64, Vec<PathBuf>>, Exit> {
    // OpenZFS: lib/libzutil/zutil_import.c, zpool_find_import_cached (words; ours name the file, too)
    let bytes = std::fs::read(file).map_err(|error| {
        session.fail(format!(
            "failed to open cache file '{}': {}",
            file.display(),
            plain_words(&error)
        ))
    })?;
    engine::cache_file_devices(&bytes).map_err(|why| {
        session.fail(format!(
            "invalid or corrupt cache file contents '{}': {why}",
            file.display()
        ))
    })
}

/// Pools that are imported or exported at the same time; each has a thread of its own, and waits for its disks.
const AT_ONCE: usize = 8;

/// Where to look for pools: what was said, else the environment, else the disks of this machine.
fn search_places(session: &Session, given: &[PathBuf]) -> Vec<PathBuf> {
    if !given.is_empty() {
        return given.to_vec();
    }
    if let Some(list) = session.caller.environment.get("ZPOOL_IMPORT_PATH") {
        return list
            .split(':')
            .filter(|dir| !dir.is_empty())
            .map(PathBuf::from)
            .collect();
    }
    // OpenZFS: lib/libzutil/os/linux/zutil_import_os.c, zpool_default_search_paths
    [
        "/dev/disk/by-vdev",
        "/dev/mapper",
        "/dev/disk/by-partlabel",
        "/dev/disk/by-partuuid",
        "/dev/disk/by-label",
        "/dev/disk/by-uuid",
        "/dev/disk/by-id",
        "/dev/disk/by-path",
        "/dev",
    ]
    .iter()
    .map(PathBuf::from)
    .filter(|dir| dir.is_dir())
    .collect()
}

async fn import_one(
    session: &Session,
    options: &Options,
    candidates: Vec<Candidate>,
    name: &str,
    new_name: Option<&String>,
) -> Outcome {
    if let Some(new_name) = new_name
        && let Some(why) = bad_name(new_name)
    {
        return Err(session.fail(format!("cannot import '{name}' as '{new_name}': {why}")));
    }
    let guid = name.parse::<u64>().ok().filter(|guid| *guid != 0);
    let mut matching: Vec<Candidate> = candidates
        .into_iter()
        .filter(|candidate| guid.map_or(candidate.name == name, |guid| candidate.guid == guid))
        .collect();
    if matching.len() > 1 {
        session.out.error(format!(
            "cannot import '{name}': more than one matching pool"
        ));
        return Err(session.fail("import by numeric ID instead"));
    }
    let wanted = new_name.map_or(name, String::as_str);
    let taken = session.appliance.known_pool(wanted).await.is_some();
    let Some(candidate) = matching.pop() else {
        if taken && guid.is_none() {
            session.out.error(format!(
                "cannot import '{name}': a pool with that name is already created/imported,"
            ));
            return Err(session.fail("and no additional pools with that name were found"));
        }
        return Err(session.fail(format!("cannot import '{name}': no such pool available")));
    };
    let shown = candidate.name.clone();
    let final_name = new_name.cloned().unwrap_or_else(|| shown.clone());
    if session.appliance.known_pool(&final_name).await.is_some() {
        session.out.error(format!(
            "cannot import '{final_name}': a pool with that name already exists"
        ));
        return Err(
            session.fail("use the form 'zpool import <pool | id> <newpool>' to give it a new name")
        );
    }
    import_candidate(session, options, candidate, new_name.cloned()).await
}

async fn import_all(session: &Session, options: &Options, candidates: Vec<Candidate>) -> Outcome {
    if candidates.is_empty() {
        session.out.error("no pools available to import");
        return Ok(());
    }
    let mut failed = false;
    let mut left = candidates.into_iter();
    loop {
        let some: Vec<_> = left.by_ref().take(AT_ONCE).collect();
        if some.is_empty() {
            break;
        }
        let imports = some
            .into_iter()
            .map(|candidate| import_candidate(session, options, candidate, None));
        let outcomes = engine::join_all(imports).await;
        failed |= outcomes.iter().any(Result::is_err);
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

fn policy_of(session: &Session, options: &Options, new_name: Option<String>) -> ImportPolicy {
    ImportPolicy {
        force: options.force,
        readonly: options.readonly,
        destroyed: options.destroyed,
        missing_logs: options.missing_logs,
        rewind_to_checkpoint: options.rewind_to_checkpoint,
        altroot: options.altroot.clone(),
        new_name,
        temporary_name: options.temporary,
        properties: options.properties.clone(),
        command: Some(session.line.clone()),
        rewind: match options.txg {
            // OpenZFS: -T means -F -X as well.
            Some(txg) => Some(Rewind {
                extreme: true,
                txg: Some(txg),
            }),
            None if options.rewind && !options.dry_run => Some(Rewind {
                extreme: options.extreme,
                txg: None,
            }),
            None => None,
        },
        ..ImportPolicy::default()
    }
}

async fn import_candidate(
    session: &Session,
    options: &Options,
    candidate: Candidate,
    new_name: Option<String>,
) -> Outcome {
    let name = candidate.name.clone();
    let policy = policy_of(session, options, new_name.clone());
    let cannot_import = |error: &dyn std::fmt::Display| match &new_name {
        Some(new_name) => format!("cannot import '{name}' as '{new_name}': {error}"),
        None => format!("cannot import '{name}': {error}"),
    };
    let known = candidate.clone();
    match session
        .appliance
        .import_pool(candidate, policy.clone(), !options.unmounted)
        .await
    {
        Ok(pool) => {
            if let Some(rewound) = pool.rewound() {
                session.out.text(exclaim(&name, &rewound, false));
            }
            if options.load_keys {
                crate::cli::zfs::keys::load_all(session, &pool).await?;
                session.appliance.keys_loaded(&pool).await;
            }
            Ok(())
        }
        Err(EngineError::Pool(error)) if error.is_damage() => {
            let asked = Rewind {
                extreme: options.extreme,
                txg: None,
            };
            let assessed = match policy.rewind {
                // What can be done was tried.
                Some(_) => None,
                None => {
                    let policy = ImportPolicy {
                        rewind: Some(asked),
                        ..policy
                    };
                    session.appliance.assess_rewind(known, policy).await
                }
            };
            if options.dry_run {
                if let Some(rewound) = &assessed {
                    session.out.text(exclaim(&name, rewound, true));
                }
                return Err(Exit(1));
            }
            session.out.error(cannot_import(&error));
            session.out.text(explain(&name, assessed.as_ref()));
            Err(Exit(1))
        }
        Err(EngineError::Pool(PoolError::MissingLogs { missing })) => {
            name_missing_logs(session, &missing);
            Err(session.fail(format!(
                "cannot import '{name}': one or more devices is currently unavailable"
            )))
        }
        Err(EngineError::Pool(error @ PoolError::UnsupportedForRead { .. })) => {
            Err(session.fail(format!("cannot import '{name}': {error}")))
        }
        Err(error) => Err(session.fail(cannot_import(&error))),
    }
}

fn name_missing_logs(session: &Session, missing: &[String]) {
    session
        .out
        .line("The devices below are missing or corrupted, use '-m' to import the pool anyway:");
    for device in missing {
        session.out.line(format!("\t    {device} [log]"));
    }
    session.out.line("");
}

/// What going back has cost, or would.
// OpenZFS: lib/libzfs/libzfs_pool.c, zpool_rewind_exclaim (words)
fn exclaim(name: &str, rewound: &Rewound, dry_run: bool) -> String {
    let time = date_with_seconds(rewound.time);
    let mut text = if dry_run {
        format!("Would be able to return {name} to its state as of {time}.\n")
    } else {
        format!("Pool {name} returned to its state as of {time}.\n")
    };
    let verb = if dry_run {
        "Would discard"
    } else {
        "Discarded"
    };
    if let Some(lost) = lost_time(rewound) {
        text.push_str(&format!("{verb} approximately {lost} of transactions.\n"));
    }
    text
}

/// Says how much time is lost by going back, `None` for less than a second.
fn lost_time(rewound: &Rewound) -> Option<String> {
    match rewound.lost_seconds {
        0 => None,
        seconds @ 1..=120 => Some(format!("{seconds} seconds")),
        seconds => Some(format!("{} minutes", (seconds + 30) / 60)),
    }
}

/// What can be done about a pool whose newest state is damaged.
// OpenZFS: lib/libzfs/libzfs_pool.c, zpool_explain_recover (words)
fn explain(name: &str, rewound: Option<&Rewound>) -> String {
    let Some(rewound) = rewound else {
        return "\tDestroy and re-create the pool from\n\ta backup source.\n".to_owned();
    };
    let time = date_with_seconds(rewound.time);
    let mut text = format!(
        "\tRecovery is possible, but will result in some data loss.\n\
         \tReturning the pool to its state as of {time}\n\tshould correct the problem.  "
    );
    if let Some(lost) = lost_time(rewound) {
        text.push_str(&format!(
            "Approximately {lost} of data\n\tmust be discarded, irreversibly.  "
        ));
    }
    text.push_str(&format!(
        "Recovery can be attempted\n\tby executing 'zpool import -F {name}'.  A scrub of the pool\n\
         \tis strongly recommended after recovery.\n"
    ));
    text
}

/// Lists what could be imported.
fn show(session: &Session, candidates: &[Candidate]) {
    if candidates.is_empty() {
        session.out.error("no pools available to import");
        return;
    }
    for (index, candidate) in candidates.iter().enumerate() {
        if index > 0 {
            session.out.line("");
        }
        session.out.text(candidate_text(candidate));
    }
}

fn candidate_text(candidate: &Candidate) -> String {
    let status = candidate;
    let destroyed = if status.state == PoolState::Destroyed {
        " (DESTROYED)"
    } else {
        ""
    };
    let mut text = format!(
        "  pool: {}\n    id: {}\n state: {}{destroyed}\n",
        candidate.name,
        candidate.guid,
        status.health.as_str()
    );
    let details: String = status
        .details
        .iter()
        .map(|detail| format!("\t{detail}\n"))
        .collect();
    let reason = match status.reason {
        StatusReason::MissingDeviceReplicated
        | StatusReason::MissingDevice
        | StatusReason::BadGuidSum => {
            Some("One or more devices are missing from the system.\n".to_owned())
        }
        StatusReason::CorruptLabelReplicated | StatusReason::CorruptLabel => {
            Some("One or more devices contains corrupted data.\n".to_owned())
        }
        StatusReason::CorruptData => Some("The pool data is corrupted.\n".to_owned()),
        StatusReason::CorruptPool => Some("The pool metadata is corrupted.\n".to_owned()),
        StatusReason::OfflineDevice => Some("One or more devices are offlined.\n".to_owned()),
        StatusReason::VersionNewer => {
            Some("The pool is formatted using an incompatible version.\n".to_owned())
        }
        StatusReason::VersionOlder => {
            Some("The pool is formatted using a legacy on-disk version.\n".to_owned())
        }
        StatusReason::FeaturesDisabled => Some(
            "Some supported features are not enabled on the pool.\n\t(Note that they may be \
             intentionally disabled if the\n\t'compatibility' property is set.)\n"
                .to_owned(),
        ),
        StatusReason::UnsupportedFeatureRead => Some(format!(
            "The pool uses the following feature(s) not supported on this system:\n{details}"
        )),
        StatusReason::UnsupportedFeatureWrite => Some(format!(
            "The pool can only be accessed in read-only mode on this system. It\n\tcannot be \
             accessed in read-write mode because it uses the following\n\tfeature(s) not supported \
             on this system:\n{details}"
        )),
        StatusReason::HostidActive => {
            Some("The pool is currently imported by another system.\n".to_owned())
        }
        StatusReason::HostidMismatch => {
            Some("The pool was last accessed by another system.\n".to_owned())
        }
        StatusReason::FaultedDeviceReplicated | StatusReason::FaultedDevice => {
            Some("One or more devices are faulted.\n".to_owned())
        }
        StatusReason::Resilvering => {
            Some("One or more devices were being resilvered.\n".to_owned())
        }
        _ => None,
    };
    if let Some(reason) = reason {
        text.push_str(&format!("status: {reason}"));
    }
    let action = match (status.health, status.reason) {
        (Health::Online, StatusReason::FeaturesDisabled | StatusReason::VersionOlder) => {
            "The pool can be imported using its name or numeric identifier, though\n\tsome features \
             will not be available without an explicit 'zpool upgrade'."
        }
        (Health::Online, StatusReason::HostidMismatch) => {
            "The pool can be imported using its name or numeric identifier and\n\tthe '-f' flag."
        }
        (Health::Online, _) => "The pool can be imported using its name or numeric identifier.",
        (Health::Degraded, _) => {
            "The pool can be imported despite missing or damaged devices.  The\n\tfault tolerance of \
             the pool may be compromised if imported."
        }
        (_, StatusReason::VersionNewer) => {
            "The pool cannot be imported.  Access the pool on a system running newer\n\tsoftware, or \
             recreate the pool from backup."
        }
        (_, StatusReason::UnsupportedFeatureRead) => {
            "The pool cannot be imported. Access the pool on a system that supports\n\tthe required \
             feature(s), or recreate the pool from backup."
        }
        (_, StatusReason::UnsupportedFeatureWrite) => {
            "The pool cannot be imported in read-write mode. Import the pool with\n\t'-o \
             readonly=on', access the pool on a system that supports the\n\trequired feature(s), or \
             recreate the pool from backup."
        }
        (_, StatusReason::MissingDevice | StatusReason::BadGuidSum) => {
            "The pool cannot be imported. Attach the missing\n\tdevices and try again."
        }
        _ => "The pool cannot be imported due to damaged devices or data.",
    };
    let exported = format!(
        "The pool must be exported from {} (hostid={:x})\n\tbefore it can be safely imported.",
        candidate.hostname, candidate.hostid
    );
    let action = match status.reason {
        StatusReason::HostidActive => &exported,
        _ => action,
    };
    text.push_str(&format!("action: {action}\n"));
    if let StatusReason::HostidActive | StatusReason::HostidMismatch = status.reason {
        text.push_str("   see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-EY\n");
    }
    text.push_str("config:\n\n");
    let style = NameStyle::default();
    let width = name_width(&status.root, style).max(10);
    vdev_lines(&mut text, &status.root, &candidate.name, 0, width, style);
    text
}

fn vdev_lines(
    text: &mut String,
    vdev: &VdevStatus,
    name: &str,
    depth: usize,
    width: usize,
    style: NameStyle,
) {
    let rest = width.saturating_sub(depth);
    text.push_str(&format!(
        "\t{:depth$}{name:<rest$}  {}",
        "",
        vdev.health.as_str()
    ));
    if let Some(note) = &vdev.note {
        text.push_str("  ");
        text.push_str(note);
    }
    text.push('\n');
    if depth == 0 {
        for (title, tops) in sections(vdev) {
            if let Some(title) = title {
                text.push_str(&format!("\t{title}\t\n"));
            }
            for top in tops {
                vdev_lines(text, top, &style.name(top), 2, width, style);
            }
        }
        return;
    }
    for child in &vdev.children {
        vdev_lines(text, child, &style.name(child), depth + 2, width, style);
    }
}

pub(super) async fn export(session: &Session, arguments: &[String]) -> Outcome {
    let (mut all, mut force) = (false, false);
    let names = session.read_options(arguments, |_, option| {
        match option {
            ExportOption::All => all = true,
            ExportOption::Force | ExportOption::HardForce => force = true,
        }
        Ok(())
    })?;
    if all && !names.is_empty() {
        return Err(session.misuse("too many arguments"));
    }
    if !all && names.is_empty() {
        return Err(session.misuse("missing pool argument"));
    }
    let (pools, mut failed) = subjects(session, &names).await;
    let mut left = pools.into_iter();
    loop {
        let some: Vec<_> = left.by_ref().take(AT_ONCE).collect();
        if some.is_empty() {
            break;
        }
        let exports = some
            .into_iter()
            .map(|pool| export_one(session, pool, force));
        failed |= engine::join_all(exports).await.iter().any(Result::is_err);
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

async fn export_one(session: &Session, pool: Subject, force: bool) -> Outcome {
    let (name, outcome) = match pool {
        Subject::Open(pool) => {
            let name = pool.name().to_owned();
            let ending = Ending::Export {
                command: Some((session.line.clone(), session.caller.uid)),
            };
            let outcome = session.appliance.end_pool(&name, ending, force).await;
            (name, outcome)
        }
        // Nothing is open: only the memory of it has to go.
        Subject::Closed(cached, _) => {
            session.appliance.forget(cached.guid).await;
            (cached.name, Ok(()))
        }
    };
    outcome.map_err(|error| session.fail(format!("cannot export '{name}': {error}")))
}

pub(super) async fn destroy(session: &Session, arguments: &[String]) -> Outcome {
    let mut force = false;
    let names = session.read_options(arguments, |_, DestroyOption::Force| {
        force = true;
        Ok(())
    })?;
    let [name] = names.as_slice() else {
        return Err(session.misuse(if names.is_empty() {
            "missing pool argument"
        } else {
            "too many arguments"
        }));
    };
    if name.contains('/') {
        session.out.error(format!(
            "cannot open '{name}': invalid character '/' in pool name"
        ));
        return Err(session.fail("use 'zfs destroy' to destroy a dataset"));
    }
    match subject(session, name).await? {
        Subject::Open(pool) => {
            // Before anything of it is unmounted.
            pool.check_nothing_immutable()
                .await
                .map_err(|error| session.fail(format!("cannot destroy '{name}': {error}")))?;
            let ending = Ending::Destroy {
                command: Some((session.line.clone(), session.caller.uid)),
            };
            match session.appliance.end_pool(pool.name(), ending, force).await {
                Ok(()) => Ok(()),
                Err(EngineError::Busy(_)) => Err(session.fail(format!(
                    "could not destroy '{name}': could not unmount datasets"
                ))),
                Err(error) => Err(session.fail(format!("cannot destroy '{name}': {error}"))),
            }
        }
        Subject::Closed(_, error) => Err(session.fail(format!("cannot destroy '{name}': {error}"))),
    }
}
