//! `sanbox trash`: what was destroyed and is kept for a while.

use engine::PoolHandle;
use manage::trash::{self, TrashEntry};

use super::{Arguments, print_table};
use crate::appliance::KnownPool;
use crate::cli::format::{date, nice_bytes};
use crate::cli::zfs::destroy_tree;
use crate::cli::{Exit, Outcome, Session, dataset_clause};

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let words: Vec<&str> = args.operands.iter().map(String::as_str).collect();
    match words[..] {
        [] | ["list"] => list(session, args).await,
        ["restore", entry] => restore(session, entry, None).await,
        ["restore", entry, to] => restore(session, entry, Some(to)).await,
        ["empty", ref names @ ..] if names.is_empty() == args.has('a') => {
            empty(session, args, names).await
        }
        _ => Err(session.misuse("list, restore DATASET [NAME], empty DATASET ... or empty -a")),
    }
}

/// What is in the trash of all open pools.
async fn all(session: &Session) -> Result<Vec<(PoolHandle, TrashEntry)>, Exit> {
    let mut found = Vec::new();
    for known in session.appliance.pools().await {
        let KnownPool::Open(pool) = known else {
            continue;
        };
        let entries = trash::entries(&pool).await;
        let entries = entries.map_err(|error| session.fail(dataset_clause(&error)))?;
        found.extend(entries.into_iter().map(|entry| (pool.clone(), entry)));
    }
    Ok(found)
}

fn until(entry: &TrashEntry) -> String {
    let seconds = entry.until.and_then(|until| u64::try_from(until).ok());
    seconds.map_or_else(|| "-".to_owned(), date)
}

async fn list(session: &Session, args: &Arguments) -> Outcome {
    let found = all(session).await?;
    let row = |(_, entry): &(PoolHandle, TrashEntry)| {
        vec![
            entry.dataset.clone(),
            match args.has('H') {
                true => entry.used_bytes.to_string(),
                false => nice_bytes(entry.used_bytes),
            },
            until(entry),
            entry.by.clone(),
            entry.from.clone(),
        ]
    };
    let rows: Vec<_> = found.iter().map(row).collect();
    print_table(
        session,
        args,
        &["DATASET", "FREES", "UNTIL", "BY", "WAS"],
        &rows,
    );
    Ok(())
}

async fn restore(session: &Session, entry: &str, to: Option<&str>) -> Outcome {
    let refused = |why: String| session.fail(format!("cannot restore '{entry}': {why}"));
    let pool = session.appliance.pool_of(entry).await;
    let pool = pool.map_err(|error| refused(dataset_clause(&error)))?;
    let restored = trash::restore(&pool, entry, to).await;
    let names = restored.map_err(|error| refused(error.to_string()))?;
    session.record(&pool).await;
    session.appliance.mount_all_created(&pool, &names).await;
    session.appliance.datasets_changed().await;
    session.out.line(format!(
        "{entry} is {} again",
        names.first().map_or("", String::as_str)
    ));
    Ok(())
}

/// Destroys what is in the trash: these, or all.
async fn empty(session: &Session, args: &Arguments, names: &[&str]) -> Outcome {
    let mut found = all(session).await?;
    for name in names {
        if !found.iter().any(|(_, entry)| entry.dataset == **name) {
            return Err(session.fail(trash::TrashError::NotThere((*name).to_owned()).to_string()));
        }
    }
    found.retain(|(_, entry)| args.has('a') || names.contains(&entry.dataset.as_str()));
    if args.has('n') {
        for (_, entry) in &found {
            let (name, frees) = (&entry.dataset, nice_bytes(entry.used_bytes));
            session
                .out
                .line(format!("would destroy {name}, which frees {frees}"));
        }
        return Ok(());
    }
    let mut outcome = Ok(());
    for (pool, entry) in &found {
        if let Err(exit) = destroy_tree(session, pool, &entry.dataset).await {
            outcome = Err(exit);
        }
    }
    outcome
}
