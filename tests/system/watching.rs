//! What tells an administrator what goes on: `zpool iostat` in all its forms, arcstat, zilstat, top, tune, and the metrics, before
//! a daemon that has done some work.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::Value;
use tests::{free_port, skip};

use crate::cli::Place;

/// A daemon with a pool that was written and read, and the port of its metrics.
fn busy() -> (Place, u16) {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 256M a b && zpool create tank mirror $PWD/a $PWD/b && zfs create tank/fs && zfs create -o sync=disabled tank/lazy",
    );
    assert_eq!(made, "");
    let port = free_port();
    let text = port.to_string();
    place.serve(&[
        "--nfs-port",
        "0",
        "--metrics-port",
        &text,
        "--memory",
        "512M",
    ]);
    let worked = place.run(
        "head -c 20000000 /dev/urandom > f; sanbox put f tank/fs:/ && zpool sync tank && sanbox cat tank/fs:/f | cmp - f",
    );
    assert_eq!(worked, "");
    (place, port)
}

#[test]
fn iostat_shows_latencies_queues_and_histograms_as_openzfs_does() {
    let (mut place, _) = busy();
    let latency = place.run("zpool iostat -v -l tank");
    let lines: Vec<&str> = latency.lines().collect();
    assert!(
        lines[0].contains("total_wait") && lines[0].contains("asyncq_wait"),
        "{latency}"
    );
    assert!(lines[1].starts_with("pool"), "{latency}");
    assert_eq!(lines[1].split_whitespace().count(), 1 + 6 + 11, "{latency}");
    assert_eq!(lines.len(), 3 + 1 + 3 + 1, "{latency}");
    let both = place.run("zpool iostat -lqH tank");
    assert_eq!(
        both.trim_end().split('\t').count(),
        1 + 6 + 11 + 14,
        "{both}"
    );
    let times = place.run("zpool iostat -w tank");
    assert!(
        times.contains("latency") && times.contains("scrub"),
        "{times}"
    );
    // Heading, 37 buckets, a line.
    assert_eq!(times.lines().count(), 3 + 37 + 1, "{times}");
    let sizes = place.run("zpool iostat -rp tank");
    assert_eq!(sizes.lines().count(), 3 + 16 + 1, "{sizes}");
    let exact = place.run("zpool iostat -rHp tank | awk '$1 == 131072 {print NF}'");
    assert_eq!(exact, "15\n");
    let refused = place.run("zpool iostat -wl tank");
    assert!(refused.contains("isn't allowed with"), "{refused}");
    place.stop();
}

#[test]
fn caches_logs_and_requests_are_shown() {
    let (mut place, _) = busy();
    let table = place.run("sanbox arcstat");
    let heading = "time  read  ddread  ddh%  dmread  dmh%  pread  ph%   size      c  avail";
    assert_eq!(table.lines().next().map(str::trim), Some(heading));
    assert_eq!(table.lines().count(), 2, "{table}");
    let lists = place.run("sanbox arcstat -x | head -1");
    assert!(lists.contains("mfug  mrug"), "{lists}");
    let some = place.run("sanbox arcstat -p -f hits,size,x4%");
    let numbers: Vec<u64> = some
        .split_whitespace()
        .filter_map(|w| w.parse().ok())
        .collect();
    assert_eq!(numbers.len(), 3, "{some}");
    assert!(numbers[0] > 0 && numbers[1] > 1 << 20, "{some}");
    assert!(
        place
            .run("sanbox arcstat -f nonsense")
            .contains("Incompatible field")
    );
    assert!(place.run("sanbox arcstat -v").lines().count() > 40);

    let log = place.run("sanbox zilstat");
    let heading = "time     cc     ic    idc    idb    iic    iib    imnc    imnw    imsc    imsw";
    assert_eq!(log.lines().next().map(str::trim), Some(heading), "{log}");
    assert_eq!(log.lines().count(), 2, "{log}");
    let each = place.run("sanbox zilstat -a -i 0.2 1");
    assert!(each.contains("cc/s") && each.contains("tank/fs"), "{each}");
    let counts = place.run("sanbox zilstat -d tank/fs -s , -f ds,cc,cwc,ic,imc,tes% | tail -1");
    let cells: Vec<&str> = counts.trim().split(',').map(str::trim).collect();
    assert_eq!((cells.len(), cells[0]), (6, "tank/fs"), "{counts}");
    assert!(
        place
            .run("sanbox zilstat -f cc,nonsense")
            .contains("Invalid column definition")
    );
    assert!(
        place
            .run("sanbox zilstat -v")
            .contains("imsw : zil_itx_metaslab_slog_write")
    );
    let why = place.run("sanbox zilstat -w");
    assert!(why.contains("tank: there is no log device"), "{why}");

    let top = place.run("sanbox top -b -I 0.5 -n 2");
    assert_eq!(top.matches("ms/o  %busy  Name").count(), 2, "{top}");
    assert!(top.contains("where the waiting went"), "{top}");
    assert!(!top.contains('\u{1b}'), "{top}");
    place.stop();
}

#[test]
fn limits_change_while_the_daemon_runs() {
    let (mut place, _) = busy();
    assert!(place.run("sanbox tune").contains("l2arc_write_max"));
    assert_eq!(place.run("sanbox tune zfs_arc_max=8M l2arc_headroom=2"), "");
    let size = place.run("sanbox arcstat -p -f size,c");
    let numbers: Vec<u64> = size
        .split_whitespace()
        .filter_map(|w| w.parse().ok())
        .collect();
    assert!(numbers[0] <= 8 << 20 && numbers[1] <= 8 << 20, "{size}");
    let listed = place.run("sanbox tune -H | grep -E 'arc_max|headroom'");
    assert_eq!(listed, "zfs_arc_max\t8388608\nl2arc_headroom\t2\n");
    let refused = place.run("sanbox tune l2arc_mfuonly=3; sanbox tune arc=1");
    assert!(
        refused.contains("not between 0 and 2") && refused.contains("no such limit"),
        "{refused}"
    );
    place.stop();
}

#[test]
fn prometheus_finds_the_names_that_dashboards_use() {
    let (mut place, port) = busy();
    let get = |path: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        let request = format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("asked");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    };
    let page = get("/metrics");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    for name in [
        "zfs_pool_health{pool=\"tank\"} 0",
        "zfs_pool_allocated_bytes{pool=\"tank\"} ",
        "zfs_pool_size_bytes{pool=\"tank\"} ",
        "zfs_dataset_used_bytes{name=\"tank/fs\",pool=\"tank\",type=\"filesystem\"} ",
        "zfs_dataset_available_bytes{",
        "node_zfs_arc_hits ",
        "node_zfs_arc_size ",
        "node_zfs_arc_c_max ",
        "node_zfs_arc_mru_ghost_hits ",
        "node_zfs_zpool_state{zpool=\"tank\",state=\"online\"} 1",
        "node_zfs_zpool_nwritten{zpool=\"tank\"} ",
        "node_zfs_zpool_dataset_nread{zpool=\"tank\",dataset=\"tank/fs\"} 20000000\n",
        "node_zfs_zpool_dataset_nwritten{zpool=\"tank\",dataset=\"tank/fs\"} 20000000\n",
        "node_zfs_zpool_dataset_zil_commit_count{zpool=\"tank\",dataset=\"tank/fs\"} ",
        "node_zfs_zil_zil_itx_metaslab_slog_write 0\n",
        "node_zfs_dmu_tx_dmu_tx_assigned ",
        "zfs_pool_capacity_ratio{pool=\"tank\"} 0.",
        "zfs_pool_deduplication_ratio{pool=\"tank\"} 1.000000\n",
        "zfs_pool_freeing_bytes{pool=\"tank\"} 0\n",
        "zfs_pool_leaked_bytes{pool=\"tank\"} 0\n",
        "zfs_dataset_compression_ratio{name=\"tank/fs\",pool=\"tank\",type=\"filesystem\"} ",
        "zfs_dataset_used_by_snapshot_bytes{",
        "zfs_scrape_collector_success{collector=\"dataset-volume\"} 1\n",
        "sanbox_vdev_flush_seconds_total{pool=\"tank\",vdev=\"mirror-0\"} ",
        "sanbox_arc_whatif_hits_total{size=\"0.5\"} ",
        "sanbox_requests_total{dataset=\"tank/fs\",client=\"local\"} ",
        "sanbox_request_wait_seconds_total{dataset=\"tank/fs\",client=\"local\",phase=\"log\"} ",
        "sanbox_vdev_device_seconds_total{pool=\"tank\"",
        "process_resident_memory_bytes ",
        "sanbox_memory_ceiling_bytes 536870912",
    ] {
        assert!(
            page.contains(&format!("\n{name}")),
            "{name} is missing in\n{page}"
        );
    }
    // Each family once, with its kind.
    let mut kinds: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("# TYPE"))
        .collect();
    let all = kinds.len();
    kinds.dedup();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds.len(), all);
    assert!(get("/nothing").starts_with("HTTP/1.1 404"));
    dashboard_asks_for_what_there_is(&page);
    // One that says nothing does not keep others out.
    let _silent = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    assert!(get("/metrics").contains("node_zfs_arc_hits"));
    place.stop();
}

/// Words of the dashboard's queries that are none of metrics or labels.
const FUNCTIONS: &[&str] = &["by", "increase", "label_values", "rate", "sum", "topk"];

/// Each metric that the dashboard asks for is in the page, and some line of it has each label that the query or the legend names.
fn dashboard_asks_for_what_there_is(page: &str) {
    let path = tests::root().join("docs/grafana/sanbox.json");
    let text = std::fs::read_to_string(path).expect("a dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut queries: Vec<(String, String)> = Vec::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for panel in list(&dashboard["panels"]) {
        let targets = list(&panel["targets"]);
        queries.extend(
            targets
                .iter()
                .map(|target| (text(&target["expr"]), text(&target["legendFormat"]))),
        );
    }
    for variable in list(&dashboard["templating"]["list"]) {
        queries.push((text(&variable["query"]["query"]), String::new()));
    }
    queries.retain(|(query, _)| !query.is_empty());
    assert!(queries.len() > 40, "{queries:?}");
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
    for (query, legend) in &queries {
        // Values of labels, in quotes, and ranges of time name nothing.
        let outside: String = query.split('"').step_by(2).collect();
        let outside: Vec<&str> = outside.split(['[', ']']).step_by(2).collect();
        let outside = outside.concat();
        let words = outside.split(|c| !is_name(c)).filter(|word| {
            word.starts_with(|c: char| c.is_ascii_alphabetic()) && !FUNCTIONS.contains(word)
        });
        let (metrics, mut labels): (Vec<&str>, Vec<&str>) =
            words.partition(|word| word.contains('_'));
        labels.extend(
            legend
                .split("{{")
                .skip(1)
                .filter_map(|rest| rest.split("}}").next()),
        );
        assert!(!metrics.is_empty(), "{query}");
        for metric in metrics {
            assert!(
                page.contains(&format!("\n# TYPE {metric} ")),
                "{metric} of {query} is missing"
            );
            let lines = page
                .lines()
                .filter(|line| line.starts_with(&format!("{metric}{{")));
            let lines: Vec<&str> = lines.collect();
            for label in &labels {
                let named = format!("{label}=\"");
                assert!(
                    lines.iter().any(|line| line.contains(&named)),
                    "{label} of {query}: {lines:?}"
                );
            }
        }
    }
}

/// What a real client asks for is told by client, version, operation and dataset; where its answers are judged, in other tests.
#[test]
fn nfsstat_tells_what_clients_ask_for() {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 256M a && zpool create -O mountpoint=/share -O sharenfs=rw,no_root_squash tank $PWD/a && echo text > f && sanbox put f tank:/f",
    );
    assert_eq!(made, "");
    let refused = place.run("sanbox nfsstat 2>&1");
    assert!(refused.contains("start 'sanbox serve'"), "{refused}");
    let port = free_port().to_string();
    place.serve(&["--nfs-port", &port, "--listen", "127.0.0.1", "--no-portmap"]);
    assert_eq!(
        place.run("sanbox nfsstat 2>&1"),
        "no client has asked for anything by NFS\n"
    );
    if place.run("command -v nfs-cat").is_empty() {
        skip(
            "what nfsstat tells of clients",
            "nfs-cat (libnfs-utils) is not installed",
        );
        place.stop();
        return;
    }
    for version in [3, 4] {
        let url =
            format!("nfs://127.0.0.1/share/f?nfsport={port}&mountport={port}&version={version}");
        assert_eq!(place.run(&format!("nfs-cat '{url}'")), "text\n");
    }
    let told: Value = serde_json::from_str(&place.run("sanbox nfsstat -j")).expect("JSON");
    let client = &told["clients"][0];
    assert_eq!(client["client"], "127.0.0.1", "{told}");
    assert_eq!(client["procedures_v3"]["read"], 1, "{told}");
    assert_eq!(client["operations_v4"]["read"], 1, "{told}");
    assert_eq!(client["operations_v4"]["open"], 1, "{told}");
    let compounds = client["calls"]["4.0"].as_u64().expect("a count");
    assert!(compounds > 2, "{told}");
    assert!(client["received_bytes"].as_u64() > Some(500), "{told}");
    assert_eq!(told["datasets"][0]["dataset"], "tank", "{told}");
    let table = place.run("sanbox nfsstat");
    assert!(table.contains("127.0.0.1  3,4.0"), "{table}");
    let rows = place.run("sanbox nfsstat --csv | grep ,127.0.0.1,3,read, | cut -d, -f2-");
    assert_eq!(rows, "127.0.0.1,3,read,1\n");
    let other = place.run("sanbox nfsstat -j --client 192.0.2.7");
    assert!(other.contains(r#""clients":[]"#), "{other}");
    // Again and again: rates of what came meanwhile, and nothing came.
    let rates = place.run("sanbox nfsstat 0.2 2");
    assert_eq!(rates.matches("CALLS/S").count(), 2, "{rates}");
    assert!(!rates.contains("OPERATION"), "{rates}");
    let wrong = place.run("sanbox nfsstat --client nonsense 2>&1");
    assert!(wrong.contains("not an address"), "{wrong}");
    place.stop();
}
