//! Calls about the history: where the time of requests went, by phase, client, dataset, protocol, pool, vdev and disk, and why.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use engine::PHASES;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{Problem, Shared};
use crate::database::seconds_since_epoch;
use crate::history::sample::{DiskSpan, LATENCY_BUCKETS, PoolSpan, RequestSpan, percentile_us};
use crate::history::{Explanation, HistoryPoint};

/// Points of an answer when none are asked for, and at most.
const POINTS: usize = 120;
const POINTS_MAX: usize = 1000;
/// Seconds of an answer when no begin is asked for.
const SECONDS: u64 = 600;
/// Seconds that an explanation looks at when no begin is asked for.
const WHY_SECONDS: u64 = 60;
/// Series of an answer: those that waited longest.
const SERIES_MAX: usize = 50;

/// What the series of an answer are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum By {
    /// What requests waited for.
    #[default]
    Phase,
    /// Clients.
    Client,
    /// Datasets.
    Dataset,
    /// Protocols.
    Protocol,
    /// Pools.
    Pool,
    /// Top-level vdevs.
    Vdev,
    /// Disks.
    Disk,
}

/// Which part of the history.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct HistoryQuery {
    /// Begin, seconds since 1970 (ten minutes before the end).
    from: Option<u64>,
    /// End, seconds since 1970 (now).
    to: Option<u64>,
    /// Points, at most 1000 (120); there are fewer where the history is coarser.
    points: Option<usize>,
    /// `phase`, `client`, `dataset`, `protocol`, `pool`, `vdev` or `disk` (`phase`).
    #[param(inline)]
    by: Option<By>,
    /// Only this pool.
    pool: Option<String>,
    /// Only requests of this client.
    client: Option<String>,
    /// Only requests to this dataset.
    dataset: Option<String>,
    /// Only requests by this protocol.
    protocol: Option<String>,
    /// `json` or `csv` (`json`).
    format: Option<String>,
}

/// What was counted in a span of time. Of requests: how many, such as waited, and for how long; of vdevs and disks: operations, and the time
/// at the device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Counts {
    requests: u64,
    waited: u64,
    wait_ns: u64,
    read_bytes: u64,
    written_bytes: u64,
    /// Half of those that waited did so for less, in microseconds.
    p50_us: u64,
    /// All but one in a hundred did so for less, in microseconds.
    p99_us: u64,
}

/// A series.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Series {
    /// The phase, client, dataset, protocol, pool, vdev or disk.
    key: String,
    /// All points together.
    total: Counts,
    /// How many were how fast: entry i counts from 2^i to 2^(i+1) microseconds.
    latency: Vec<u64>,
    /// One entry for each of the answer's times.
    points: Vec<Counts>,
}

/// Part of the history.
#[derive(Serialize, ToSchema)]
pub(super) struct HistoryView {
    /// Ends of the points, seconds since 1970.
    times: Vec<u64>,
    /// How long each was, in seconds.
    seconds: Vec<u64>,
    /// At most 50, those that waited longest first.
    series: Vec<Series>,
    /// Why the newest points are kept in memory alone, and lost at a restart; none when they are stored.
    unsaved: Option<String>,
}

/// What is to be explained.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WhyQuery {
    /// Begin, seconds since 1970 (a minute before the end).
    from: Option<u64>,
    /// End, seconds since 1970 (now).
    to: Option<u64>,
    /// Only requests of this client.
    client: Option<String>,
    /// Only requests to this dataset and those below it.
    dataset: Option<String>,
}

/// What is counted under one key, before it is shown.
#[derive(Clone, Default)]
struct Sum {
    counts: Counts,
    latency: [u64; LATENCY_BUCKETS],
}

impl Sum {
    fn add_latency(&mut self, latency: &[u64; LATENCY_BUCKETS]) {
        for (sum, more) in self.latency.iter_mut().zip(latency) {
            *sum += more;
        }
    }

    fn add_requests(&mut self, row: &RequestSpan) {
        self.counts.requests += row.requests;
        self.counts.waited += row.waited;
        self.counts.wait_ns += row.wait_ns();
        self.add_latency(&row.latency);
    }

    fn add_disk(&mut self, disk: &DiskSpan) {
        self.counts.requests += disk.reads + disk.writes;
        self.counts.waited += disk.reads + disk.writes;
        self.counts.wait_ns += disk.device_ns;
        self.counts.read_bytes += disk.read_bytes;
        self.counts.written_bytes += disk.written_bytes;
        self.add_latency(&disk.latency);
    }

    fn merge(&mut self, more: &Self) {
        self.counts.requests += more.counts.requests;
        self.counts.waited += more.counts.waited;
        self.counts.wait_ns += more.counts.wait_ns;
        self.counts.read_bytes += more.counts.read_bytes;
        self.counts.written_bytes += more.counts.written_bytes;
        self.add_latency(&more.latency);
    }

    fn shown(&self) -> Counts {
        Counts {
            p50_us: percentile_us(&self.latency, 50),
            p99_us: percentile_us(&self.latency, 99),
            ..self.counts.clone()
        }
    }
}

impl HistoryQuery {
    fn wants(&self, row: &RequestSpan) -> bool {
        let is = |wanted: &Option<String>, value: &str| {
            wanted.as_ref().is_none_or(|wanted| wanted == value)
        };
        is(&self.client, &row.client)
            && is(&self.dataset, &row.dataset)
            && is(&self.protocol, &row.protocol)
    }

    /// Adds up a pool's part of a point by the key that is asked for.
    fn add(&self, by: By, pool: &PoolSpan, sums: &mut BTreeMap<String, Sum>) {
        let mut at = |key: String, add: &dyn Fn(&mut Sum)| add(sums.entry(key).or_default());
        match by {
            By::Vdev | By::Disk => {
                for disk in &pool.disks {
                    let name = if by == By::Disk {
                        &disk.name
                    } else {
                        &disk.top
                    };
                    let key = format!("{}: {name}", pool.name);
                    at(key, &|sum| sum.add_disk(disk));
                }
            }
            By::Phase => {
                for row in pool.requests.iter().filter(|row| self.wants(row)) {
                    let phases = PHASES.iter().zip(&row.waited_ns);
                    for (phase, ns) in phases.filter(|(_, ns)| **ns > 0) {
                        at(phase.as_str().to_owned(), &|sum| sum.counts.wait_ns += ns);
                    }
                }
            }
            By::Client | By::Dataset | By::Protocol | By::Pool => {
                for row in pool.requests.iter().filter(|row| self.wants(row)) {
                    let key = match by {
                        By::Client => &row.client,
                        By::Dataset => &row.dataset,
                        By::Protocol => &row.protocol,
                        _ => &pool.name,
                    };
                    at(key.clone(), &|sum| sum.add_requests(row));
                }
            }
        }
    }

    fn series(&self, points: &[HistoryPoint]) -> Vec<Series> {
        let by = self.by.unwrap_or_default();
        let mut totals: BTreeMap<String, Sum> = BTreeMap::new();
        let mut columns = Vec::with_capacity(points.len());
        for point in points {
            let mut sums = BTreeMap::new();
            for pool in &point.span.pools {
                if self.pool.as_ref().is_none_or(|wanted| *wanted == pool.name) {
                    self.add(by, pool, &mut sums);
                }
            }
            for (key, sum) in &sums {
                totals.entry(key.clone()).or_default().merge(sum);
            }
            columns.push(sums);
        }
        let mut totals: Vec<(String, Sum)> = totals.into_iter().collect();
        totals.sort_by_key(|(_, sum)| std::cmp::Reverse((sum.counts.wait_ns, sum.counts.requests)));
        totals.truncate(SERIES_MAX);
        let series = totals.into_iter().map(|(key, sum)| Series {
            points: columns
                .iter()
                .map(|sums| sums.get(&key).map(Sum::shown).unwrap_or_default())
                .collect(),
            total: sum.shown(),
            latency: sum.latency.to_vec(),
            key,
        });
        series.collect()
    }
}

fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Problem> {
    let query = query.map_err(|error| Problem::bad_request(error.body_text()))?;
    Ok(query.0)
}

/// Part of the history, as series: each second of the last hour, each 10 s of the last day, each 5 min of 30 days. As `csv`, a line for each
/// point of each series.
#[utoipa::path(get, path = "/api/v1/history", params(HistoryQuery),
    responses((status = 200, body = HistoryView), (status = 400, body = Problem)))]
pub(super) async fn show_history(
    State(api): Shared,
    asked: Result<Query<HistoryQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let asked = query(asked)?;
    let count = asked.points.unwrap_or(POINTS);
    if !(1..=POINTS_MAX).contains(&count) {
        return Err(Problem::bad_request(format!("points is 1 to {POINTS_MAX}")));
    }
    let to = asked.to.unwrap_or_else(seconds_since_epoch);
    let from = asked.from.unwrap_or(to.saturating_sub(SECONDS));
    if from >= to {
        return Err(Problem::bad_request("from is not before to"));
    }
    let points = api.history.range(from, to, count);
    let view = HistoryView {
        times: points.iter().map(|point| point.time).collect(),
        seconds: points.iter().map(|point| point.span.seconds).collect(),
        series: asked.series(&points),
        unsaved: api.history.unsaved(),
    };
    match asked.format.as_deref() {
        None | Some("json") => Ok(Json(view).into_response()),
        Some("csv") => {
            let kind = [(header::CONTENT_TYPE, "text/csv; charset=utf-8")];
            Ok((kind, csv(&view)).into_response())
        }
        Some(_) => Err(Problem::bad_request("format is json or csv")),
    }
}

fn csv(view: &HistoryView) -> String {
    let mut text =
        "time,seconds,key,requests,waited,wait_ns,read_bytes,written_bytes,p50_us,p99_us\r\n"
            .to_owned();
    for series in &view.series {
        // RFC 4180, 2: quotes are doubled.
        let key = series.key.replace('"', "\"\"");
        for ((time, seconds), counts) in view.times.iter().zip(&view.seconds).zip(&series.points) {
            let Counts {
                requests,
                waited,
                wait_ns,
                read_bytes,
                written_bytes,
                p50_us,
                p99_us,
            } = counts;
            let _ = write!(
                text,
                "{time},{seconds},\"{key}\",{requests},{waited},{wait_ns},{read_bytes},{written_bytes},{p50_us},{p99_us}\r\n"
            );
        }
    }
    text
}

/// Says why requests were slow: a sentence, and the causes by how much of the waiting they explain.
#[utoipa::path(get, path = "/api/v1/history/why", params(WhyQuery),
    responses((status = 200, body = Explanation), (status = 400, body = Problem)))]
pub(super) async fn explain(
    State(api): Shared,
    asked: Result<Query<WhyQuery>, QueryRejection>,
) -> Result<Json<Explanation>, Problem> {
    let asked = query(asked)?;
    let to = asked.to.unwrap_or_else(seconds_since_epoch);
    let from = asked.from.unwrap_or(to.saturating_sub(WHY_SECONDS));
    if from >= to {
        return Err(Problem::bad_request("from is not before to"));
    }
    let (client, dataset) = (asked.client.as_deref(), asked.dataset.as_deref());
    Ok(Json(api.history.explain(from, to, client, dataset)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Span;

    #[test]
    fn series_are_by_what_is_asked_for() {
        let row = |client: &str, dataset: &str, ns: u64| RequestSpan {
            dataset: dataset.to_owned(),
            client: client.to_owned(),
            protocol: "nfs".to_owned(),
            requests: 10,
            waited: 5,
            waited_ns: [0, 0, ns, 0, 0, 0, 2 * ns, 0, 0, 0],
            ..RequestSpan::default()
        };
        let disk = DiskSpan {
            name: "/dev/sda".to_owned(),
            top: "mirror-0".to_owned(),
            reads: 7,
            read_bytes: 4096,
            ..DiskSpan::default()
        };
        let pool = PoolSpan {
            name: "tank".to_owned(),
            disks: vec![disk],
            requests: vec![row("a", "tank/x", 5), row("b", "tank/y\"z", 50)],
            ..PoolSpan::default()
        };
        let point = |time| HistoryPoint {
            time,
            span: Span {
                seconds: 1,
                pools: vec![pool.clone()],
                ..Span::default()
            },
        };
        let points = [point(1), point(2)];
        let asked = |words: &str| -> HistoryQuery {
            let uri = format!("/?{words}").parse().expect("a path");
            Query::try_from_uri(&uri).expect("a query").0
        };
        for (words, keys, wait) in [
            ("", "device log", 220),
            ("by=client", "b a", 300),
            ("by=client&client=a", "a", 30),
            ("by=dataset&client=a", "tank/x", 30),
            ("by=protocol", "nfs", 330),
            ("by=pool", "tank", 330),
            ("by=pool&pool=other", "", 0),
            ("by=disk", "tank: /dev/sda", 0),
            ("by=vdev", "tank: mirror-0", 0),
        ] {
            let series = asked(words).series(&points);
            let found: Vec<_> = series.iter().map(|one| one.key.as_str()).collect();
            assert_eq!(found.join(" "), keys, "{words}");
            let first = series.first().map_or(0, |one| one.total.wait_ns);
            assert_eq!(first, wait, "{words}");
            assert!(series.iter().all(|one| one.points.len() == 2), "{words}");
        }
        let view = HistoryView {
            times: vec![1, 2],
            seconds: vec![1, 1],
            series: asked("by=dataset&client=b").series(&points),
            unsaved: None,
        };
        assert!(
            csv(&view).ends_with("2,1,\"tank/y\"\"z\",10,5,150,0,0,0,0\r\n"),
            "{}",
            csv(&view)
        );
    }
}
