//! `zpool status`: reads the options, makes a model of each pool, and shows it as text or JSON.

mod explain;
mod json;
mod model;
mod text;

use serde_json::Map;

use super::{NO_SCRIPTS, NameStyle, Stamp, Subject, repeat, subjects};
use crate::cli::getopt::{Long, Opt};
use crate::cli::{Exit, Outcome, Session, json as forms};
use json::pool_json;
use model::PoolModel;
use text::pool_text;

/// What is to be shown, and how.
#[derive(Clone, Copy, Default)]
struct Options {
    only_unhealthy_pools: bool,
    only_unhealthy_vdevs: bool,
    exact: bool,
    slow: bool,
    verbose: bool,
    dio: bool,
    trim: bool,
    initialize: bool,
    json: bool,
    integers: bool,
    flat: bool,
    by_guid: bool,
    style: NameStyle,
}

pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    const LONGS: &[Long] = &[
        Long {
            name: "power",
            value: false,
        },
        Long {
            name: "json",
            value: false,
        },
        Long {
            name: "json-int",
            value: false,
        },
        Long {
            name: "json-flat-vdevs",
            value: false,
        },
        Long {
            name: "json-pool-key-guid",
            value: false,
        },
    ];
    let mut options = Options::default();
    let mut stamp = Stamp::None;
    let mut operands =
        session.options(arguments, "c:jdDegiLpPstT:vx", LONGS, |session, option| {
            match option {
                Opt::Short('c', _) => return Err(session.fail(NO_SCRIPTS)),
                Opt::Short('j', _) | Opt::Long("json", _) => options.json = true,
                Opt::Short('d', _) => options.dio = true,
                Opt::Short('e', _) => options.only_unhealthy_vdevs = true,
                Opt::Short('g', _) => options.style.guid = true,
                Opt::Short('i', _) => options.initialize = true,
                Opt::Short('L', _) => options.style.real_path = true,
                Opt::Short('p', _) => options.exact = true,
                Opt::Short('P', _) => options.style.full_path = true,
                Opt::Short('s', _) => options.slow = true,
                Opt::Short('t', _) => options.trim = true,
                Opt::Short('T', Some(form)) => stamp = Stamp::of(session, &form)?,
                Opt::Short('v', _) => options.verbose = true,
                Opt::Short('x', _) => options.only_unhealthy_pools = true,
                Opt::Long("json-int", _) => options.integers = true,
                Opt::Long("json-flat-vdevs", _) => options.flat = true,
                Opt::Long("json-pool-key-guid", _) => options.by_guid = true,
                _ => {}
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
                objects.insert(key, pool_json(&model, options));
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
        }
        session
            .out
            .text(pool_text(&model, damaged.as_deref(), options));
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
