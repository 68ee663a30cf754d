//! `zfs upgrade`: the versions of file systems. sanbox makes and keeps the newest only; older ones are read.
// OpenZFS: cmd/zfs/zfs_main.c, zfs_do_upgrade (words)

use engine::property::DatasetKind;
use engine::{DatasetFilter, DatasetInfo, PoolHandle, PropertyQuery};

use super::open;
use crate::appliance::KnownPool;
use crate::cli::command::{Command, Word, options};
use crate::cli::{Exit, Outcome, Session};

options! {
    UpgradeOption {
        Recursive = short('r', "what lies below, too"),
        Versions = short('v', "list the versions"),
        Version(String) = valued('V', "version", "to this version"),
        All = short('a', "all file systems"),
    }
}

/// The declaration of `zfs upgrade`.
pub(super) const UPGRADE: Command = Command {
    name: "upgrade",
    summary: "upgrade file systems to a newer version",
    usage: "\tupgrade [-v]\n\
         \tupgrade [-r] [-V version] <-a | filesystem ...>\n",
    flags: UpgradeOption::FLAGS,
    says_missing: false,
    words: &[Word::Dataset],
    ..Command::NEW
};

/// The newest version of a file system's layout.
const NEWEST: u64 = 5;

const VERSIONS: &str = "\
The following filesystem versions are supported:

VER  DESCRIPTION
---  --------------------------------------------------------
 1   Initial ZFS filesystem version
 2   Enhanced directory entries
 3   Case insensitive and filesystem user identifier (FUID)
 4   userquota, groupquota properties
 5   System attributes

For more information on a particular version, including supported releases,
see the ZFS Administration Guide.

";

pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let (mut every, mut recursive, mut versions) = (false, false, false);
    let mut wanted = NEWEST;
    let names = session.read_options(arguments, |session, option| {
        match option {
            UpgradeOption::All => every = true,
            UpgradeOption::Recursive => recursive = true,
            UpgradeOption::Versions => versions = true,
            UpgradeOption::Version(text) => {
                wanted = match text.parse() {
                    Err(_) if text == "current" => NEWEST,
                    Ok(number) if (1..=NEWEST).contains(&number) => number,
                    _ => return Err(session.misuse(format!("invalid version {text}"))),
                };
            }
        }
        Ok(())
    })?;
    let upgrade = every || recursive || !names.is_empty();
    if every && !names.is_empty() || versions && upgrade {
        return Err(session.usage_only());
    }
    if versions {
        session.out.text(VERSIONS);
        return Ok(());
    }
    let depth = if names.is_empty() || recursive {
        None
    } else {
        Some(0)
    };
    let mut roots: Vec<(PoolHandle, String)> = Vec::new();
    for name in &names {
        let (pool, info) = open(session, name, &PropertyQuery::None).await?;
        roots.push((pool, info.name));
    }
    if names.is_empty() {
        for known in session.appliance.pools().await {
            if let KnownPool::Open(pool) = known {
                let name = pool.name().to_owned();
                roots.push((pool, name));
            }
        }
    }
    let mut found: Vec<(PoolHandle, DatasetInfo, u64)> = Vec::new();
    for (pool, root) in &roots {
        let filter = DatasetFilter {
            root: root.clone(),
            depth,
            kinds: vec![DatasetKind::Filesystem],
        };
        let query = PropertyQuery::Named(vec!["version".to_owned()]);
        let listed = pool.datasets(&filter, &query).await;
        let listed =
            listed.map_err(|error| session.fail(format!("cannot open '{root}': {error}")))?;
        for info in listed {
            let version = info.property("version").and_then(|p| p.value.number());
            found.push((pool.clone(), info, version.unwrap_or(NEWEST)));
        }
    }
    if upgrade {
        return upgrade_all(session, &found, wanted).await;
    }
    session.out.line(format!(
        "This system is currently running ZFS filesystem version {NEWEST}.\n"
    ));
    found.retain(|(_, _, version)| *version < NEWEST);
    if found.is_empty() {
        session
            .out
            .line("All filesystems are formatted with the current version.");
        return Ok(());
    }
    session.out.line(
        "The following filesystems are out of date, and can be upgraded.  After being\n\
         upgraded, these filesystems (and any 'zfs send' streams generated from\n\
         subsequent snapshots) will no longer be accessible by older software versions.\n\n\n\
         VER  FILESYSTEM\n---  ------------",
    );
    for (_, info, version) in found {
        session.out.line(format!("{version:2}   {}", info.name));
    }
    Ok(())
}

/// Makes all of these file systems ones of version `wanted`.
// OpenZFS: cmd/zfs/zfs_main.c, upgrade_set_callback (words)
async fn upgrade_all(
    session: &Session,
    found: &[(PoolHandle, DatasetInfo, u64)],
    wanted: u64,
) -> Outcome {
    let (mut upgraded, mut already, mut failed) = (0, 0, 0);
    let needed = engine::pool_version::for_file_system(wanted);
    for (pool, info, version) in found {
        let name = &info.name;
        if pool.version().await.unwrap_or(0) < needed {
            session.out.line(format!(
                "{name}: can not be upgraded; the pool version needs to first be upgraded\nto version {needed}\n"
            ));
            failed += 1;
        } else if *version < wanted {
            let settings = [("version".to_owned(), wanted.to_string())];
            match pool.set_dataset_properties(name, &settings).await {
                Ok(()) => upgraded += 1,
                Err(error) => {
                    session
                        .out
                        .error(format!("cannot set property for '{name}': {error}"));
                    failed += 1;
                }
            }
        } else if *version > wanted {
            session.out.line(format!(
                "{name}: can not be downgraded; it is already at version {version}"
            ));
            failed += 1;
        } else {
            already += 1;
        }
    }
    session.out.line(format!("{upgraded} filesystems upgraded"));
    if already > 0 {
        session
            .out
            .line(format!("{already} filesystems already at this version"));
    }
    if failed == 0 { Ok(()) } else { Err(Exit(1)) }
}
