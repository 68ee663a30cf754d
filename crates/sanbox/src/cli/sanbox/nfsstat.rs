//! `sanbox nfsstat`: what clients of NFS ask for, by client, operation and dataset, since the daemon began or again and again.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use engine::{Client, RequestTimes};
use manage::database::seconds_since_epoch;
use nfs::{ClientCounts, OPERATIONS, PROCEDURES_V3, VERSIONS};
use serde_json::{Value, json};

use super::Arguments;
use super::sample::Sample;
use crate::cli::format::{Column, clock, decimal_number, nice_bytes, nice_time, table};
use crate::cli::zpool::repeat;
use crate::cli::{Exit, Outcome, Session};
use crate::serve::shares::NfsClients;

/// What is known at a moment.
struct Seen {
    at: Instant,
    clients: Vec<ClientCounts>,
    /// Paths that clients of version 3 have said they mounted.
    mounted: Vec<(IpAddr, String)>,
    /// Requests to datasets by NFS.
    datasets: BTreeMap<(String, IpAddr), RequestTimes>,
}

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let mut operands = args.operands.clone();
    let repeat = repeat(session, &mut operands)?;
    if let Some(extra) = operands.first() {
        return Err(session.misuse(format!("unexpected argument '{extra}'")));
    }
    let only = match args.long("client") {
        None => None,
        Some(text) => Some(
            text.parse::<IpAddr>()
                .map_err(|_| session.misuse(format!("--client {text}: not an address")))?,
        ),
    };
    let mut before = look(session, only).await?;
    if args.has_long("csv") && !args.has('H') {
        session.out.line("time,client,version,operation,calls");
    }
    let Some(interval) = repeat.interval else {
        return show(session, args, &before, None);
    };
    let mut shown = 0;
    loop {
        session.out.flush().await?;
        tokio::time::sleep(interval).await;
        let now = look(session, only).await?;
        let seconds = now.at.duration_since(before.at).as_secs_f64().max(0.001);
        show(session, args, &now.since(&before), Some(seconds))?;
        before = now;
        shown += 1;
        if repeat.count.is_some_and(|count| shown >= count) {
            return Ok(());
        }
    }
}

/// Looks at what all clients, or one, have asked for.
async fn look(session: &Session, only: Option<IpAddr>) -> Result<Seen, Exit> {
    let Some(NfsClients { counts, mounted }) = session.appliance.nfs_clients() else {
        return Err(session.fail("no daemon runs; start 'sanbox serve'"));
    };
    let wanted = |client: Option<IpAddr>| only.is_none_or(|only| client == Some(only));
    let mut datasets: BTreeMap<_, RequestTimes> = BTreeMap::new();
    let sample = Sample::of(session, None).await;
    for dataset in sample.pools.into_iter().flat_map(|pool| pool.seen.datasets) {
        for (client, times) in dataset.requests {
            if let Client::Address("nfs", address) = client
                && wanted(Some(address))
            {
                let row = datasets.entry((dataset.name.clone(), address));
                row.or_default().merge(&times);
            }
        }
    }
    Ok(Seen {
        at: Instant::now(),
        clients: counts.into_iter().filter(|c| wanted(c.client)).collect(),
        mounted: mounted.into_iter().filter(|m| wanted(Some(m.0))).collect(),
        datasets,
    })
}

impl Seen {
    /// Returns what came after an earlier moment.
    fn since(&self, before: &Self) -> Self {
        let clients = self.clients.iter().map(|now| {
            let then = before.clients.iter().find(|then| then.client == now.client);
            then.map_or_else(|| now.clone(), |then| counts_since(now, then))
        });
        let datasets = self.datasets.iter().map(|(key, now)| {
            let mut times = *now;
            if let Some(then) = before.datasets.get(key) {
                times.requests = now.requests.saturating_sub(then.requests);
                times.waited = now.waited.saturating_sub(then.waited);
                for (now, then) in times.waited_ns.iter_mut().zip(&then.waited_ns) {
                    *now = now.saturating_sub(*then);
                }
            }
            (key.clone(), times)
        });
        Self {
            at: self.at,
            clients: clients.collect(),
            mounted: self.mounted.clone(),
            datasets: datasets.collect(),
        }
    }
}

fn counts_since(now: &ClientCounts, then: &ClientCounts) -> ClientCounts {
    let each = |now: &[u64], then: &[u64]| -> Vec<u64> {
        let pairs = now.iter().zip(then);
        pairs.map(|(now, then)| now.saturating_sub(*then)).collect()
    };
    let mut calls = now.calls;
    for (now, then) in calls.iter_mut().zip(&then.calls) {
        *now = now.saturating_sub(*then);
    }
    ClientCounts {
        client: now.client,
        calls,
        procedures_v3: each(&now.procedures_v3, &then.procedures_v3),
        operations_v4: each(&now.operations_v4, &then.operations_v4),
        received_bytes: now.received_bytes.saturating_sub(then.received_bytes),
        sent_bytes: now.sent_bytes.saturating_sub(then.sent_bytes),
    }
}

/// What the rows call a client.
fn name(client: Option<IpAddr>) -> String {
    client.map_or_else(|| "others".to_owned(), |client| client.to_string())
}

/// The kinds of calls that were made, by version and name: those of a client, or of all.
fn operations<'a>(
    clients: impl Iterator<Item = &'a ClientCounts>,
) -> BTreeMap<(&'static str, &'static str), u64> {
    let mut operations = BTreeMap::new();
    for counts in clients {
        let v3 = PROCEDURES_V3.iter().zip(&counts.procedures_v3);
        let v4 = OPERATIONS.iter().zip(&counts.operations_v4);
        let each = v3
            .map(|(name, count)| ("3", *name, *count))
            .chain(v4.map(|(name, count)| ("4", *name, *count)));
        for (version, name, count) in each.filter(|(_, _, count)| *count > 0) {
            *operations.entry((version, name)).or_default() += count;
        }
    }
    operations
}

/// Shows it; `seconds` is how long it took to come, for rates, or `None` for all since the daemon began.
fn show(session: &Session, args: &Arguments, seen: &Seen, seconds: Option<f64>) -> Outcome {
    if args.has('j') {
        session.out.line(as_json(seen, seconds).to_string());
        return Ok(());
    }
    if args.has_long("csv") {
        csv(session, seen);
        return Ok(());
    }
    let tables = [
        clients_table(args, seen, seconds),
        operations_table(args, seen, seconds),
        datasets_table(args, seen, seconds),
    ];
    if seconds.is_some() && !args.has('H') {
        session.out.line(clock());
    }
    if seen.clients.is_empty() && seconds.is_none() {
        session.out.error("no client has asked for anything by NFS");
    }
    let shown: Vec<String> = tables.into_iter().flatten().collect();
    session.out.text(shown.join("\n"));
    Ok(())
}

/// A count, or how many in a second.
fn number(count: u64, seconds: Option<f64>) -> u64 {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate for people"
    )]
    seconds.map_or(count, |seconds| (count as f64 / seconds).round() as u64)
}

fn shown(args: &Arguments, columns: &[Column], rows: &[Vec<String>]) -> Option<String> {
    (!rows.is_empty()).then(|| table(columns, rows, args.has('H')))
}

fn clients_table(args: &Arguments, seen: &Seen, seconds: Option<f64>) -> Option<String> {
    let rows = seen.clients.iter().map(|counts| {
        let versions = VERSIONS.iter().zip(&counts.calls);
        let versions = versions.filter(|(_, calls)| **calls > 0);
        let versions: Vec<&str> = versions.map(|(version, _)| *version).collect();
        let mounted = seen.mounted.iter();
        let mounted = mounted.filter(|(client, _)| Some(*client) == counts.client);
        let mounted: Vec<&str> = mounted.map(|(_, path)| path.as_str()).collect();
        let or_none = |words: &[&str]| match words {
            [] => "-".to_owned(),
            words => words.join(","),
        };
        vec![
            name(counts.client),
            or_none(&versions),
            decimal_number(number(counts.calls.iter().sum(), seconds)),
            nice_bytes(number(counts.received_bytes, seconds)),
            nice_bytes(number(counts.sent_bytes, seconds)),
            or_none(&mounted),
        ]
    });
    let titles = match seconds {
        None => ["CALLS", "RECEIVED", "SENT"],
        Some(_) => ["CALLS/S", "RECEIVED/S", "SENT/S"],
    };
    let [calls, received, sent] = titles.map(Column::right);
    let columns = [
        Column::left("CLIENT"),
        Column::left("VERSIONS"),
        calls,
        received,
        sent,
        Column::left("MOUNTED"),
    ];
    shown(args, &columns, &rows.collect::<Vec<_>>())
}

fn operations_table(args: &Arguments, seen: &Seen, seconds: Option<f64>) -> Option<String> {
    let operations = operations(seen.clients.iter());
    let total = |of: &str| -> u64 {
        let same = operations.iter().filter(|((version, _), _)| *version == of);
        same.map(|(_, count)| count).sum()
    };
    let mut sorted: Vec<_> = operations.iter().collect();
    // As many first, version by version.
    sorted.sort_by_key(|((version, _), count)| (*version, std::cmp::Reverse(**count)));
    let rows = sorted.into_iter().map(|((version, name), count)| {
        let permille = (count * 1000).checked_div(total(version)).unwrap_or(0);
        vec![
            (*version).to_owned(),
            (*name).to_owned(),
            number(*count, seconds).to_string(),
            format!("{}.{}%", permille / 10, permille % 10),
        ]
    });
    let columns = [
        Column::left("VERSION"),
        Column::left("OPERATION"),
        Column::right(seconds.map_or("CALLS", |_| "CALLS/S")),
        Column::right("SHARE"),
    ];
    shown(args, &columns, &rows.collect::<Vec<_>>())
}

fn datasets_table(args: &Arguments, seen: &Seen, seconds: Option<f64>) -> Option<String> {
    let active = seen.datasets.iter().filter(|(_, times)| times.requests > 0);
    let rows = active.map(|((dataset, client), times)| {
        let mean = times.total_ns().checked_div(times.requests).unwrap_or(0);
        vec![
            dataset.clone(),
            client.to_string(),
            decimal_number(number(times.requests, seconds)),
            decimal_number(number(times.waited, seconds)),
            nice_time(mean),
        ]
    });
    let columns = [
        Column::left("DATASET"),
        Column::left("CLIENT"),
        Column::right(seconds.map_or("REQUESTS", |_| "REQUESTS/S")),
        Column::right(seconds.map_or("WAITED", |_| "WAITED/S")),
        Column::right("WAIT"),
    ];
    shown(args, &columns, &rows.collect::<Vec<_>>())
}

/// A row for each client and kind of call that was made.
fn csv(session: &Session, seen: &Seen) {
    let time = seconds_since_epoch();
    for counts in &seen.clients {
        for ((version, operation), calls) in operations(std::iter::once(counts)) {
            let client = name(counts.client);
            session
                .out
                .line(format!("{time},{client},{version},{operation},{calls}"));
        }
    }
}

fn as_json(seen: &Seen, seconds: Option<f64>) -> Value {
    let clients = seen.clients.iter().map(|counts| {
        let calls: BTreeMap<_, _> = VERSIONS.iter().zip(counts.calls).collect();
        let each = operations(std::iter::once(counts));
        let of = |wanted: &str| -> BTreeMap<&str, u64> {
            let same = each.iter().filter(|((version, _), _)| *version == wanted);
            same.map(|((_, name), count)| (*name, *count)).collect()
        };
        let mounted = seen.mounted.iter();
        let mounted = mounted.filter(|(client, _)| Some(*client) == counts.client);
        json!({
            "client": name(counts.client),
            "calls": calls,
            "received_bytes": counts.received_bytes,
            "sent_bytes": counts.sent_bytes,
            "procedures_v3": of("3"),
            "operations_v4": of("4"),
            "mounted": mounted.map(|(_, path)| path).collect::<Vec<_>>(),
        })
    });
    let datasets = seen.datasets.iter().map(|((dataset, client), times)| {
        json!({
            "dataset": dataset,
            "client": client.to_string(),
            "requests": times.requests,
            "waited": times.waited,
            "waited_ns": times.total_ns(),
        })
    });
    json!({
        "seconds": seconds,
        "clients": clients.collect::<Vec<_>>(),
        "datasets": datasets.collect::<Vec<_>>(),
    })
}
