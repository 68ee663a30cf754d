//! `zpool status`: reads the options, makes a model of each pool, and shows it as text or JSON.

mod explain;
mod json;
mod model;
mod text;

use engine::DedupStatistics;
use serde_json::Map;

use super::{NO_SCRIPTS, NameStyle, Stamp, Subject, dedup, repeat, subjects};
use crate::cli::command::{Command, Word, options};
use crate::cli::{Exit, Outcome, Session, json as forms};
use json::pool_json;
use model::PoolModel;
pub(super) use model::STATE_CLOSED;
use text::pool_text;

options! {
    StatusOption {
        Scripts(String) = valued('c', "script,...", "refused: scripts are not run"),
        Json = both('j', "json", None, "print JSON"),
        DirectIo = short('d', "with errors of direct I/O"),
        DedupTable = short('D', "with statistics of the deduplication tables"),
        OnlyUnhealthyVdevs = short('e', "only devices that are not healthy"),
        Guid = short('g', "show devices by guid"),
        Initialize = short('i', "with the progress of initializing"),
        RealPath = short('L', "show devices by the path that links lead to"),
        Exact = short('p', "exact numbers"),
        FullPath = short('P', "show devices by their whole path"),
        Slow = short('s', "with operations that were slow"),
        Trim = short('t', "with the progress of trimming"),
        Stamp(String) = valued('T', "d|u", "print the time before each round, as a date or in seconds since 1970"),
        Verbose = short('v', "with damaged files by name"),
        OnlyUnhealthyPools = short('x', "only pools that need attention"),
        Power = long("power", None, "refused: sanbox cannot switch the power of disk slots"),
        JsonInt = long("json-int", None, "with -j, numbers as numbers"),
        JsonFlatVdevs = long("json-flat-vdevs", None, "with -j, devices without their tree"),
        JsonPoolKeyGuid = long("json-pool-key-guid", None, "with -j, pools by guid"),
    }
}

/// The declaration of `zpool status`.
pub(super) const STATUS: Command = Command {
    name: "status",
    summary: "show the health of pools and devices",
    usage: "\tstatus [--power] [-j [--json-int, --json-flat-vdevs, ...\n\
         \t    --json-pool-key-guid]] [-c [script1,script2,...]] [-dDegiLpPstvx] ...\n\
         \t    [-T d|u] [pool] [interval [count]]\n",
    flags: StatusOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool],
    text: &[
        "Scripts of -c are not run: a daemon would run them with its own rights, for any user.",
    ],
    examples: &[
        ("zpool status -x", "only pools that need attention"),
        (
            "zpool status -v tank",
            "every device with its errors, and damaged files by name",
        ),
        ("zpool status -j", "the same as JSON"),
    ],
    ..Command::NEW
};

/// What is to be shown, and how.
#[derive(Clone, Copy, Default)]
struct Options {
    only_unhealthy_pools: bool,
    only_unhealthy_vdevs: bool,
    exact: bool,
    slow: bool,
    verbose: bool,
    dio: bool,
    dedup: bool,
    trim: bool,
    initialize: bool,
    json: bool,
    integers: bool,
    flat: bool,
    by_guid: bool,
    style: NameStyle,
}

pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let mut options = Options::default();
    let mut stamp = Stamp::None;
    let mut operands = session.read_options(arguments, |session, option| {
        match option {
            StatusOption::Scripts(_) => return Err(session.fail(NO_SCRIPTS)),
            StatusOption::Json => options.json = true,
            StatusOption::DirectIo => options.dio = true,
            StatusOption::DedupTable => options.dedup = true,
            StatusOption::Power => {
                return Err(session.fail("zpool status --power: disk slots cannot be powered"));
            }
            StatusOption::OnlyUnhealthyVdevs => options.only_unhealthy_vdevs = true,
            StatusOption::Guid => options.style.guid = true,
            StatusOption::Initialize => options.initialize = true,
            StatusOption::RealPath => options.style.real_path = true,
            StatusOption::Exact => options.exact = true,
            StatusOption::FullPath => options.style.full_path = true,
            StatusOption::Slow => options.slow = true,
            StatusOption::Trim => options.trim = true,
            StatusOption::Stamp(form) => stamp = Stamp::of(session, &form)?,
            StatusOption::Verbose => options.verbose = true,
            StatusOption::OnlyUnhealthyPools => options.only_unhealthy_pools = true,
            StatusOption::JsonInt => options.integers = true,
            StatusOption::JsonFlatVdevs => options.flat = true,
            StatusOption::JsonPoolKeyGuid => options.by_guid = true,
        }
        Ok(())
    })?;
    if !options.json {
        for (given, name) in [
            (options.integers, "json-int"),
            (options.flat, "json-flat-vdevs"),
            (options.by_guid, "json-pool-key-guid"),
        ] {
            if given {
                return Err(session.misuse(format!("'{name}' only works with '-j' option")));
            }
        }
    }
    let again = repeat(session, &mut operands)?;
    let mut rounds = 0;
    loop {
        stamp.print(session);
        let (pools, missing) = subjects(session, &operands).await;
        print(session, &pools, operands.is_empty(), options).await;
        rounds += 1;
        if missing {
            return Err(Exit(1));
        }
        if !again.goes_on(session, rounds).await? {
            return Ok(());
        }
    }
}

/// Returns what `-D` asks for of an open pool.
async fn dedup_statistics(
    session: &Session,
    pool: &Subject,
    options: Options,
) -> Option<DedupStatistics> {
    let Subject::Open(pool) = pool else {
        return None;
    };
    if !options.dedup {
        return None;
    }
    match pool.dedup_statistics().await {
        Ok(statistics) => Some(statistics),
        Err(error) => {
            let name = pool.name();
            session
                .out
                .error(format!("zpool status -D: {name}: {error}"));
            None
        }
    }
}

async fn print(session: &Session, pools: &[Subject], all: bool, options: Options) {
    let mut objects = Map::new();
    let mut first = true;
    for pool in pools {
        let Some(model) = PoolModel::of(session, pool).await else {
            continue;
        };
        let (status, healthy) = (&model.status, model.is_healthy());
        if options.json {
            if !(options.only_unhealthy_pools && healthy) {
                let key = if options.by_guid {
                    status.guid.to_string()
                } else {
                    status.name.clone()
                };
                let mut object = pool_json(&model, options);
                if let Some(found) = dedup_statistics(session, pool, options).await {
                    object["dedup_stats"] =
                        dedup::statistics_json(&found, options.exact, options.integers);
                }
                objects.insert(key, object);
            }
            continue;
        }
        if options.only_unhealthy_pools && healthy {
            if !all {
                session
                    .out
                    .line(format!("pool '{}' is healthy", status.name));
                first = false;
            }
            continue;
        }
        if !first {
            session.out.line("");
        }
        first = false;
        let mut damaged = None;
        if options.verbose
            && status.data_errors > 0
            && let Subject::Open(pool) = pool
        {
            damaged = pool.damaged_files().await.ok();
            for file in damaged.iter_mut().flatten() {
                at_mount_point(&session.appliance.mounts().list(), file);
            }
        }
        session
            .out
            .text(pool_text(&model, damaged.as_deref(), options));
        if let Some(found) = dedup_statistics(session, pool, options).await {
            session
                .out
                .text(dedup::statistics_text(&found, options.exact));
        }
    }
    if options.json {
        session
            .out
            .line(forms::envelope("zpool status", "pools", objects));
    } else if pools.is_empty() && all {
        session.out.error("no pools available");
    } else if first && options.only_unhealthy_pools && all {
        session.out.line("all pools are healthy");
    }
}

/// Names a damaged file by where it is mounted, if it is.
// OpenZFS: lib/libzfs/libzfs_pool.c, zpool_obj_to_path_impl
fn at_mount_point(mounts: &[(String, std::path::PathBuf)], file: &mut String) {
    for (dataset, point) in mounts {
        let path = file.strip_prefix(dataset.as_str());
        let path = path.and_then(|path| path.strip_prefix(':'));
        if let Some(path) = path.filter(|path| path.starts_with('/')) {
            let point = point.to_string_lossy();
            *file = format!("{}{path}", point.trim_end_matches('/'));
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn damaged_files_are_named_by_their_mounts() {
        let mounts = [
            ("tank".to_owned(), "/".into()),
            ("tank/a".to_owned(), "/srv/a".into()),
        ];
        for (file, expect) in [
            ("tank:/f", "/f"),
            ("tank/a:/dir/f", "/srv/a/dir/f"),
            ("tank/a:<0x2>", "tank/a:<0x2>"),
            ("tank/a@monday:/f", "tank/a@monday:/f"),
            ("tank/ab:/f", "tank/ab:/f"),
        ] {
            let mut named = file.to_owned();
            super::at_mount_point(&mounts, &mut named);
            assert_eq!(named, expect);
        }
    }
}
