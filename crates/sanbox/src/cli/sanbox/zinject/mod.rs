//! `zinject`: faults that are injected into pools in use, to rehearse failures. Called as `sanbox zinject`, or through a link of that name.

mod arguments;
mod list;

use std::path::PathBuf;

use engine::{BlocksOfFile, DataFault, DeviceFault, EngineError, Fault, FaultyBlocks, PoolHandle};

use self::arguments::{Blocks, DataWork, DeviceWork, Work};
use crate::appliance::{Delayed, mount_query};
use crate::cli::zpool::{open_pool, vdev_guid};
use crate::cli::{Exit, Outcome, Session};

pub(super) async fn run(session: &Session, words: &[String]) -> Outcome {
    let words = match arguments::read(words, session.command().flags) {
        Ok(words) => words,
        Err(refusal) => {
            session.out.error(refusal.message);
            if refusal.with_usage {
                session.print_usage();
            }
            return Err(Exit(refusal.code));
        }
    };
    match &words.work {
        Work::List => return list::run(session).await,
        Work::Help => {
            session
                .out
                .text(crate::cli::help::text_of_own(session.command()));
            return Ok(());
        }
        _ => {}
    }
    if !session.appliance.is_daemon() {
        return Err(session.fail(
            "no daemon runs: what is injected ends with the process that has the pools; start one with 'sanbox serve'",
        ));
    }
    match words.work {
        Work::List | Work::Help => Ok(()),
        Work::FlushCaches => flush_caches(session).await,
        Work::Cancel(None) => cancel_all(session).await,
        Work::Cancel(Some(id)) => cancel(session, id).await,
        Work::Act(action, device, pool) => {
            let pool = open_pool(session, &pool).await?;
            let leaf = device_of(session, &pool, &device).await?;
            let done = pool.act_on_device(leaf, action).await;
            done.map_err(|error| session.fail(error.to_string()))
        }
        Work::Device(work) => {
            let (pool, fault) = device_fault(session, work).await?;
            add(session, &pool, fault, words.flush_caches, words.quiet).await
        }
        Work::Data(work) => {
            let (pool, dataset, fault) = data_fault(session, work).await?;
            let dataset = dataset.filter(|_| words.remount);
            let mounted = match &dataset {
                Some(name) => Some(unmount(session, name).await?),
                None => None,
            };
            let added = add(session, &pool, fault, words.flush_caches, words.quiet).await;
            if let (Some(name), Some(point)) = (&dataset, mounted) {
                mount(session, &pool, name, point).await?;
            }
            added
        }
        Work::Delay(of, seconds, pool) => delay(session, of, seconds, &pool, words.quiet).await,
    }
}

/// Says why a handler was not added.
fn not_added(session: &Session, error: &EngineError) -> Exit {
    session.fail(format!("failed to add handler: {error}"))
}

async fn add(
    session: &Session,
    pool: &PoolHandle,
    fault: Fault,
    flush: bool,
    quiet: bool,
) -> Outcome {
    let id = session.appliance.faults().next_id();
    let added = pool.inject_fault(id, fault.clone()).await;
    added.map_err(|error| not_added(session, &error))?;
    if flush {
        flush_caches(session).await?;
    }
    if quiet {
        session.out.line(id.to_string());
    } else {
        session.out.text(list::added(id, pool.name(), &fault));
    }
    Ok(())
}

/// Forgets what the caches of all pools hold, as OpenZFS, where they have one cache, does.
async fn flush_caches(session: &Session) -> Outcome {
    for pool in session.appliance.open_pools() {
        match pool.flush_cache().await {
            // It was exported meanwhile.
            Ok(()) | Err(EngineError::PoolClosed) => {}
            Err(error) => return Err(session.fail(format!("{}: {error}", pool.name()))),
        }
    }
    Ok(())
}

async fn cancel(session: &Session, id: u64) -> Outcome {
    let mut found = session.appliance.faults().clear(id);
    for pool in session.appliance.open_pools() {
        found |= pool.clear_fault(id).await.unwrap_or(false);
    }
    if !found {
        return Err(session.fail(format!(
            "failed to remove handler {id}: No such file or directory"
        )));
    }
    session.out.line(format!("removed handler {id}"));
    Ok(())
}

async fn cancel_all(session: &Session) -> Outcome {
    for delay in session.appliance.faults().delays() {
        session.appliance.faults().clear(delay.id);
    }
    for pool in session.appliance.open_pools() {
        for injected in pool.injected_faults().await.unwrap_or_default() {
            drop(pool.clear_fault(injected.id).await);
        }
    }
    session.out.line("removed all registered handlers");
    Ok(())
}

async fn device_of(session: &Session, pool: &PoolHandle, device: &str) -> Result<u64, Exit> {
    let hexadecimal = device.strip_prefix("0x");
    let guid = hexadecimal.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let word = guid.map_or_else(|| device.to_owned(), |guid| guid.to_string());
    match vdev_guid(pool, &word).await? {
        Some(guid) => Ok(guid),
        None => Err(session.fail(format!(
            "cannot find device '{device}' in pool '{}'",
            pool.name()
        ))),
    }
}

async fn device_fault(session: &Session, work: DeviceWork) -> Result<(PoolHandle, Fault), Exit> {
    let pool = open_pool(session, &work.pool).await?;
    let leaf = device_of(session, &pool, &work.device).await?;
    let fault = DeviceFault {
        leaf: engine::Guid(leaf),
        effect: work.effect,
        io: work.io,
        frequency: work.frequency,
        fail_fast: work.fail_fast,
    };
    Ok((pool, Fault::Device(fault)))
}

/// Returns the pool, the dataset of a file, and the fault.
async fn data_fault(
    session: &Session,
    work: DataWork,
) -> Result<(PoolHandle, Option<String>, Fault), Exit> {
    let fault = |blocks| {
        Fault::Data(DataFault {
            blocks,
            error: work.error,
            copies: work.copies,
            frequency: work.frequency,
        })
    };
    let (path, part, level) = match work.blocks {
        Blocks::MetaObjset(pool, only) => {
            let pool = open_pool(session, &pool).await?;
            return Ok((pool, None, fault(FaultyBlocks::MetaObjset(only))));
        }
        Blocks::Bookmark(pool, [objset, object, level, block]) => {
            let pool = open_pool(session, &pool).await?;
            let level = u32::try_from(level).unwrap_or(u32::MAX);
            let blocks = block..=block;
            let blocks = FaultyBlocks::Object {
                objset,
                object,
                level,
                blocks,
            };
            return Ok((pool, None, fault(blocks)));
        }
        Blocks::Content { path, level, range } => (path, BlocksOfFile::Content(range), level),
        Blocks::Dnode { path, level } => (path, BlocksOfFile::Dnode, level),
    };
    let (dataset, object) = file_of(session, &path).await?;
    let pool = session.appliance.pool_of(&dataset).await;
    let pool = pool.map_err(|error| not_added(session, &error))?;
    match pool.faulty_blocks(&dataset, object, part, level).await {
        Ok(blocks) => Ok((pool, Some(dataset), fault(blocks))),
        Err(error) => Err(not_added(session, &error)),
    }
}

/// Returns the dataset and the object number of a file in one of our mounts.
async fn file_of(session: &Session, path: &str) -> Result<(String, u64), Exit> {
    use std::os::unix::fs::MetadataExt as _;
    let asked = PathBuf::from(path);
    // It may lie on a mount of this process, and be slow to answer.
    let looked = tokio::task::spawn_blocking(move || {
        let real = std::fs::canonicalize(asked)?;
        let number = std::fs::symlink_metadata(&real)?.ino();
        Ok::<_, std::io::Error>((real, number))
    });
    let Ok(Ok((real, object))) = looked.await else {
        return Err(session.fail(format!("cannot find mountpoint for '{path}'")));
    };
    let mounts = session.appliance.mounts().list();
    let inside = mounts
        .into_iter()
        .filter(|(_, point)| real.starts_with(point));
    match inside.max_by_key(|(_, point)| point.as_os_str().len()) {
        Some((dataset, _)) => Ok((dataset, object)),
        None => Err(session.fail(format!("invalid path '{path}': not a ZFS filesystem"))),
    }
}

async fn unmount(session: &Session, dataset: &str) -> Result<PathBuf, Exit> {
    let mounts = session.appliance.mounts();
    let found = mounts.list().into_iter().find(|(name, _)| name == dataset);
    let unmounted = mounts.unmount_name(dataset, false).await;
    match (unmounted, found) {
        (Ok(()), Some((_, point))) => Ok(point),
        (Err(why), _) => Err(session.fail(format!("cannot unmount '{dataset}': {why}"))),
        (Ok(()), None) => {
            Err(session.fail(format!("cannot unmount '{dataset}': not currently mounted")))
        }
    }
}

async fn mount(session: &Session, pool: &PoolHandle, dataset: &str, point: PathBuf) -> Outcome {
    let mounted = match pool.dataset(dataset, &mount_query()).await {
        Ok(info) => session.appliance.mount(pool, &info, &point, true).await,
        Err(error) => Err(error.to_string()),
    };
    mounted.map_err(|why| session.fail(format!("cannot mount '{dataset}': {why}")))
}

async fn delay(session: &Session, of: Delayed, seconds: u64, pool: &str, quiet: bool) -> Outcome {
    let imported = session
        .appliance
        .open_pools()
        .iter()
        .any(|open| open.name() == pool);
    match (of, imported) {
        (Delayed::Import, true) => {
            return Err(session.fail("failed to add handler: pool already imported"));
        }
        (Delayed::Export, false) => {
            let missing = EngineError::PoolNotFound(pool.to_owned());
            return Err(not_added(session, &missing));
        }
        _ => {}
    }
    match session.appliance.faults().delay(pool, of, seconds) {
        Ok(id) if quiet => session.out.line(id.to_string()),
        Ok(id) => {
            session.out.text(format!(
                "{} time: {seconds} seconds\n",
                list::heading(id, pool)
            ));
        }
        Err(why) => return Err(session.fail(format!("failed to add handler: {why}"))),
    }
    Ok(())
}
