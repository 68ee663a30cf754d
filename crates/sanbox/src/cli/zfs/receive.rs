//! `zfs receive`: makes snapshots of the streams on standard input.
//!
//! OpenZFS: cmd/zfs/zfs_main.c, lib/libzfs/libzfs_sendrecv.c (words, forms of the output).

use std::time::Instant;

use engine::{EngineError, PropertyQuery, ReceiveRequest};

use crate::cli::format::nice_bytes;
use crate::cli::getopt::Opt;
use crate::cli::{Exit, Outcome, Session};

#[derive(Default)]
struct Options {
    force: bool,
    verbose: bool,
    no_mount: bool,
    /// The first option that we know and cannot do.
    unsupported: Option<char>,
}

pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let mut options = Options::default();
    let operands = session.options(arguments, "o:x:dehMnuvFsAc", &[], |_, option| {
        match option {
            Opt::Short('F', _) => options.force = true,
            Opt::Short('v', _) => options.verbose = true,
            Opt::Short('u', _) => options.no_mount = true,
            // Holds are not in the streams that are received, and mounts are never in the way.
            Opt::Short('h' | 'M', _) => {}
            Opt::Short(letter, _) => {
                options.unsupported.get_or_insert(letter);
            }
            Opt::Long(..) => {}
        }
        Ok(())
    })?;
    let target = match operands.as_slice() {
        [] => return Err(session.misuse("missing snapshot argument")),
        [target] => target,
        _ => return Err(session.misuse("too many arguments")),
    };
    if let Some(letter) = options.unsupported {
        return Err(session.fail(format!(
            "zfs receive -{letter}: not supported by this version of sanbox yet"
        )));
    }
    let (dataset, snapshot) = match target.split_once('@') {
        Some((dataset, snapshot)) => (dataset, Some(snapshot.to_owned())),
        None => (target.as_str(), None),
    };
    let pool = session.appliance.pool_of(dataset).await;
    let pool =
        pool.map_err(|_| session.fail(format!("cannot open '{dataset}': dataset does not exist")))?;
    let existed = pool.dataset(dataset, &PropertyQuery::None).await.is_ok();
    let Some(input) = &session.input else {
        return Err(session.fail("cannot receive: there is no input"));
    };
    let began = Instant::now();
    let request = ReceiveRequest {
        dataset: dataset.to_owned(),
        snapshot,
        force: options.force,
    };
    let stream = pool.receive(request).await;
    let stream = stream.map_err(|error| refused(session, &error))?;
    while let Some(chunk) = input.next().await {
        if !stream.write(chunk).await {
            break;
        }
    }
    let received = stream.finish().await;
    let received = received.map_err(|error| refused(session, &error))?;
    if received.iter().any(|one| one.without_properties) {
        session.out.error(
            "warning: the stream carries properties or holds, which are not taken over by this version of sanbox yet",
        );
    }
    if options.verbose {
        for one in &received {
            let kind = if one.incremental {
                "incremental"
            } else {
                "full"
            };
            session.out.line(format!(
                "receiving {kind} stream of {} into {}",
                one.from, one.name
            ));
            let seconds = began.elapsed().as_secs_f64().max(0.01);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "a rate that is shown with three digits"
            )]
            let rate = (one.bytes as f64 / seconds) as u64;
            session.out.line(format!(
                "received {} stream in {seconds:.2} seconds ({}/sec)",
                nice_bytes(one.bytes),
                nice_bytes(rate)
            ));
        }
    }
    session.record(&pool).await;
    if !existed && !options.no_mount {
        session.appliance.mount_created(&pool, dataset).await;
    }
    Ok(())
}

fn refused(session: &Session, error: &EngineError) -> Exit {
    match error {
        EngineError::NoSource(_) | EngineError::Modified(_) => {
            session.fail(format!("cannot receive incremental stream: {error}"))
        }
        EngineError::DatasetExists(name) if !name.contains('@') => session.fail(format!(
            "cannot receive new filesystem stream: destination '{name}' exists\nmust specify -F to overwrite it"
        )),
        EngineError::DatasetNotFound(name) => session.fail(format!(
            "cannot receive incremental stream: destination '{name}' does not exist"
        )),
        other => session.fail(format!("cannot receive: {other}")),
    }
}
