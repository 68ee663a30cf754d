//! `zfs create` and `zfs rename`.

use engine::property::{DatasetKind, parse_number};
use engine::{CreateDataset, DatasetInfo, EngineError, PoolHandle, PropertyQuery};

use super::keys::{self, KeyInput};
use super::{bad_name, open};
use crate::appliance::missing_parents;
use crate::cli::command::{Command, Word, options};
use crate::cli::{Exit, NOTHING_SERVED, Outcome, Session, pool_part, setting};
use crate::follow::{self, Affected, Change};

options! {
    CreateOption {
        Parsable = short('P', "say what was made, for scripts"),
        Volume(String) = valued('V', "size", "a volume of this size"),
        BlockSize(String) = valued('b', "blocksize", "block size of the volume"),
        DryRun = short('n', "make nothing"),
        Sparse = short('s', "a volume without a reservation"),
        Property(String) = valued('o', "property=value", "a property"),
        Parents = short('p', "with missing parents"),
        Unmounted = short('u', "do not mount it"),
        Verbose = short('v', "say what was made"),
    }
}

/// The declaration of `zfs create`.
pub(super) const CREATE: Command = Command {
    name: "create",
    summary: "create a file system or a volume",
    usage: "\tcreate [-Pnpuv] [-o property=value] ... <filesystem>\n\
         \tcreate [-Pnpsv] [-b blocksize] [-o property=value] ... -V <size> <volume>\n",
    flags: CreateOption::FLAGS,
    words: &[Word::Dataset],
    examples: &[
        ("zfs create tank/home", "a file system"),
        (
            "zfs create -p -o compression=zstd -o recordsize=1M tank/media/films",
            "with its parents and properties",
        ),
    ],
    ..Command::NEW
};

options! {
    RenameOption {
        Parents = short('p', "with missing parents"),
        Recursive = short('r', "the snapshots of everything below, too"),
        Unmounted = short('u', "leave it mounted where it is"),
        Force = short('f', "unmount what is in use"),
    }
}

/// The declaration of `zfs rename`.
pub(super) const RENAME: Command = Command {
    name: "rename",
    summary: "rename datasets and snapshots",
    usage: "\trename [-f] <filesystem|volume|snapshot> <filesystem|volume|snapshot>\n\
         \trename -p [-f] <filesystem|volume> <filesystem|volume>\n\
         \trename -u [-f] <filesystem> <filesystem>\n\
         \trename -r <snapshot> <snapshot>\n",
    flags: RenameOption::FLAGS,
    says_missing: false,
    words: &[Word::Dataset],
    examples: &[(
        "zfs rename tank/home tank/people",
        "snapshots and children move along",
    )],
    ..Command::NEW
};

/// What `zfs create` is asked for.
#[derive(Default)]
struct Asked {
    parents: bool,
    dry_run: bool,
    verbose: bool,
    parseable: bool,
    /// In bytes; of a volume.
    volume_size: Option<u64>,
    sparse: bool,
    /// An option of volumes was given.
    volume_only: bool,
    unmounted: bool,
    properties: Vec<(String, String)>,
}

impl Asked {
    fn take(&mut self, session: &Session, option: CreateOption) -> Outcome {
        match option {
            CreateOption::Volume(text) => match parse_number(&text) {
                Ok(size) => self.volume_size = Some(size),
                Err(error) => {
                    return Err(session.fail(format!("bad volume size '{text}': {error}")));
                }
            },
            CreateOption::Parsable => {
                self.verbose = true;
                self.parseable = true;
            }
            CreateOption::Parents => self.parents = true,
            CreateOption::Sparse => {
                self.volume_only = true;
                self.sparse = true;
            }
            CreateOption::BlockSize(text) => {
                self.volume_only = true;
                match parse_number(&text) {
                    Ok(size) => {
                        let size = size.to_string();
                        self.properties.push(("volblocksize".to_owned(), size));
                    }
                    Err(error) => {
                        return Err(
                            session.fail(format!("bad volume block size '{text}': {error}"))
                        );
                    }
                }
            }
            CreateOption::DryRun => self.dry_run = true,
            CreateOption::Unmounted => self.unmounted = true,
            CreateOption::Verbose => self.verbose = true,
            CreateOption::Property(text) => {
                let Some((name, value)) = setting(&text) else {
                    return Err(session.misuse("missing '=' for property=value argument"));
                };
                if self.properties.iter().any(|(known, _)| *known == name) {
                    return Err(
                        session.misuse(format!("property '{name}' specified multiple times"))
                    );
                }
                self.properties
                    .push((super::userspace::numbered(&name), value));
            }
        }
        Ok(())
    }

    fn kind(&self) -> DatasetKind {
        match self.volume_size {
            Some(_) => DatasetKind::Volume,
            None => DatasetKind::Filesystem,
        }
    }

    /// Checks that options and operands go together; returns the name of the new dataset.
    fn check<'a>(&self, session: &Session, operands: &'a [String]) -> Result<&'a String, Exit> {
        let volume = self.volume_size.is_some();
        if self.volume_only && !volume {
            return Err(session.misuse("'-s' and '-b' can only be used when creating a volume"));
        }
        if self.unmounted && volume {
            return Err(session.misuse("'-u' can only be used when creating a filesystem"));
        }
        match operands {
            [name] => Ok(name),
            [] if volume => Err(session.misuse("missing volume argument")),
            [] => Err(session.misuse("missing filesystem argument")),
            _ => Err(session.misuse("too many arguments")),
        }
    }

    /// Adds the properties that follow from a volume's size.
    async fn plan_volume(
        &mut self,
        session: &Session,
        pool: &PoolHandle,
        size: u64,
    ) -> Result<(), EngineError> {
        let properties = &mut self.properties;
        let plan = pool.plan_volume(size, self.sparse, properties).await?;
        warn_of_block_size(session, plan.block_size, properties);
        properties.insert(0, ("volsize".to_owned(), plan.size.to_string()));
        if plan.block_size != VOLUME_BLOCK_DEFAULT
            && !properties.iter().any(|(name, _)| name == "volblocksize")
        {
            properties.push(("volblocksize".to_owned(), plan.block_size.to_string()));
        }
        if let Some(bytes) = plan.reservation {
            properties.push(("refreservation".to_owned(), bytes.to_string()));
        }
        Ok(())
    }

    /// Says what is made, or would be.
    fn announce(&self, session: &Session, name: &str) {
        let (parseable, dry_run) = (self.parseable, self.dry_run);
        if self.parents {
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
        for (property, value) in &self.properties {
            session.out.line(if parseable {
                format!("property\t{property}\t{value}")
            } else {
                format!("\t{property}={value}")
            });
        }
    }
}

pub(super) async fn create(session: &Session, arguments: &[String]) -> Outcome {
    let mut asked = Asked::default();
    let operands =
        session.read_options(arguments, |session, option| asked.take(session, option))?;
    let name = asked.check(session, &operands)?;
    let verb = match asked.dry_run {
        true => "cannot verify",
        false => "cannot create",
    };
    let refuse = |why: &str| session.fail(format!("{verb} '{name}': {why}"));
    let kind = asked.kind();
    let volume = kind == DatasetKind::Volume;
    if let Some(why) = bad_name(name, kind) {
        return Err(refuse(&why));
    }
    let pool = session.appliance.pool_of(name).await;
    let pool = pool.map_err(|error| refuse(&clause_of(&error, name)))?;
    if let Some(reason) = crate::appliance::check_share_settings(&asked.properties) {
        return Err(refuse(&reason));
    }
    if let Some(size) = asked.volume_size {
        let planned = asked.plan_volume(session, &pool, size).await;
        planned.map_err(|error| refuse(&error.to_string()))?;
    }
    let existed = pool.dataset(name, &PropertyQuery::None).await.is_ok();
    if existed && asked.parents {
        // With -p an existing dataset is no error.
        return Ok(());
    }
    if asked.verbose {
        asked.announce(session, name);
    }
    let planned = match asked.dry_run {
        true => Ok(None),
        false => pool.plan_key(name, kind, &asked.properties).await,
    };
    let key = match planned.map_err(|error| refuse(&error.to_string()))? {
        Some(planned) => {
            let key = keys::new_key(session, &mut KeyInput::new(session), &planned, None).await;
            Some(key.map_err(|why| refuse(&why))?)
        }
        None => None,
    };
    let (dry_run, is_mounted) = (asked.dry_run, !asked.unmounted && !volume);
    let mut new = missing_parents(&pool, name, asked.parents).await;
    new.extend(is_mounted.then(|| name.clone()));
    let request = CreateDataset {
        name: name.clone(),
        volume,
        properties: asked.properties,
        parents: asked.parents,
        dry_run,
        key,
    };
    match pool.create_dataset(request).await {
        Ok(()) => {}
        Err(error @ EngineError::ParentNotFound(_)) => {
            return Err(refuse(&clause_of(&error, name)));
        }
        Err(error) => return Err(refuse(&error.to_string())),
    }
    if !dry_run {
        session.record(&pool).await;
        session.appliance.datasets_changed().await;
        session.appliance.mount_all_created(&pool, &new).await;
        session.out.hint(NOTHING_SERVED);
    }
    Ok(())
}

/// Why there is no pool for a new dataset.
fn clause_of(error: &EngineError, name: &str) -> String {
    match error {
        _ if !name.contains('/') => "missing dataset name".to_owned(),
        EngineError::PoolNotFound(pool) => format!("no such pool '{pool}'"),
        error => error.to_string(),
    }
}

/// Block size of a volume when none is asked for, in bytes.
const VOLUME_BLOCK_DEFAULT: u64 = 16 << 10;

/// Says that a block size below the default wastes space, as OpenZFS does.
fn warn_of_block_size(session: &Session, size: u64, properties: &[(String, String)]) {
    let asked = properties.iter().any(|(name, _)| name == "volblocksize");
    if asked && size < VOLUME_BLOCK_DEFAULT {
        session.out.error(format!(
            "Warning: volblocksize ({size}) is less than the default minimum block size \
             ({VOLUME_BLOCK_DEFAULT}).\nTo reduce wasted space a volblocksize of \
             {VOLUME_BLOCK_DEFAULT} is recommended."
        ));
    }
}

/// Checks that the options make sense for what is to be renamed.
// OpenZFS: cmd/zfs/zfs_main.c, zfs_do_rename
fn check_renamed(session: &Session, info: &DatasetInfo, parents: bool, unmounted: bool) -> Outcome {
    let makes_sense = match info.kind {
        DatasetKind::Filesystem => true,
        DatasetKind::Volume => !unmounted,
        DatasetKind::Snapshot | DatasetKind::Bookmark => !parents && !unmounted,
    };
    match makes_sense {
        true => Ok(()),
        false => Err(session.fail(format!(
            "cannot open '{}': operation not applicable to datasets of this type",
            info.name
        ))),
    }
}

pub(super) async fn rename(session: &Session, arguments: &[String]) -> Outcome {
    let (mut parents, mut recursive, mut unmounted, mut force) = (false, false, false, false);
    let operands = session.read_options(arguments, |_, option| {
        match option {
            RenameOption::Force => force = true,
            RenameOption::Parents => parents = true,
            RenameOption::Recursive => recursive = true,
            RenameOption::Unmounted => unmounted = true,
        }
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
    check_renamed(session, &info, parents, unmounted)?;
    if info.kind == DatasetKind::Snapshot {
        return rename_snapshot(session, &pool, from, to, recursive).await;
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
    let change = (!unmounted).then_some(Change::Name);
    let affected = Affected::unmount(&session.appliance, &pool, from, change, force)
        .await
        .map_err(|why| session.fail(why))?;
    let new = missing_parents(&pool, to, parents).await;
    let renamed = pool.rename_dataset(from, to, parents).await;
    let now = if renamed.is_ok() { to } else { from };
    follow::renamed(&session.appliance, &pool, now).await;
    session.appliance.mount_all_created(&pool, &new).await;
    let mounted = affected.mount_again(&session.appliance, &pool, now).await;
    match renamed {
        Ok(()) => {
            session.record(&pool).await;
            session.appliance.datasets_changed().await;
            mounted.map_err(|why| session.fail(why))
        }
        Err(error) => refuse(&error.to_string()),
    }
}

/// OpenZFS: lib/libzfs/libzfs_dataset.c, `zfs_rename`.
async fn rename_snapshot(
    session: &Session,
    pool: &PoolHandle,
    from: &str,
    to: &str,
    recursive: bool,
) -> Outcome {
    let (dataset, _) = from.split_once('@').unwrap_or((from, ""));
    // A new name without its dataset is of the same.
    let full = if to.contains('@') {
        to.strip_prefix('@')
            .map_or_else(|| to.to_owned(), |short| format!("{dataset}@{short}"))
    } else {
        format!("{dataset}@{to}")
    };
    let to = full.as_str();
    let refuse = |why: &str| Err(session.fail(format!("cannot rename to '{to}': {why}")));
    if to.split('@').next() != Some(dataset) {
        return refuse("snapshots must be part of same dataset");
    }
    if let Some(why) = bad_name(to, DatasetKind::Snapshot) {
        return refuse(&why);
    }
    if from == to {
        return Ok(());
    }
    match pool.rename_snapshot(from, to, recursive).await {
        Ok(()) => {
            session.record(pool).await;
            Ok(())
        }
        Err(EngineError::DatasetExists(name)) if recursive => {
            let was = from.split_once('@').map_or("", |(_, short)| short);
            let below = name.split('@').next().unwrap_or("");
            session.out.error(format!(
                "cannot rename '{below}@{was}': a child dataset already has a snapshot with the new name"
            ));
            Err(Exit(1))
        }
        Err(error) => refuse(&error.to_string()),
    }
}
