//! `sanbox sums`: a digest of each object of datasets, to compare replicas by, or what other programs read.

use std::fmt::Write as _;

use engine::{DatasetFilter, DatasetKind, PropertyQuery};

use super::Arguments;
use crate::cli::{Exit, Outcome, Session};

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    if args.operands.is_empty() {
        return Err(session.misuse("missing dataset argument"));
    }
    let mut failed = false;
    for name in &args.operands {
        let pool = match session.appliance.pool_of(name).await {
            Ok(pool) => pool,
            Err(error) => return Err(session.fail(format!("cannot open '{name}': {error}"))),
        };
        let filter = DatasetFilter {
            root: name.clone(),
            depth: if args.has('r') { None } else { Some(0) },
            kinds: vec![
                DatasetKind::Filesystem,
                DatasetKind::Volume,
                DatasetKind::Snapshot,
            ],
        };
        let datasets = match pool.datasets(&filter, &PropertyQuery::None).await {
            Ok(datasets) => datasets,
            Err(error) => return Err(session.fail(format!("cannot open '{name}': {error}"))),
        };
        for dataset in datasets {
            failed |= print(session, &pool, &dataset.name).await?;
        }
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

/// Prints the objects of one dataset; whether something could not be read.
async fn print(session: &Session, pool: &engine::PoolHandle, name: &str) -> Result<bool, Exit> {
    let (mut after, mut failed) = (0, false);
    loop {
        let sums = match pool.object_sums(name, after).await {
            Ok(sums) => sums,
            Err(error) => {
                session.fail(format!("cannot read '{name}': {error}"));
                return Ok(true);
            }
        };
        let Some(last) = sums.last() else {
            return Ok(failed);
        };
        after = last.object;
        for object in &sums {
            match &object.sum {
                Ok(sum) => {
                    let mut hex = String::with_capacity(2 * sum.len());
                    for byte in sum {
                        write!(hex, "{byte:02x}").expect("strings take what they are given");
                    }
                    session.out.line(format!(
                        "{name} {} {} {} {hex}",
                        object.object, object.object_type, object.block_size
                    ));
                }
                Err(error) => {
                    session.fail(format!(
                        "cannot read '{name}' object {}: {error}",
                        object.object
                    ));
                    failed = true;
                }
            }
        }
        session.out.flush().await?;
    }
}
