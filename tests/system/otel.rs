//! Metrics and spans at a collector of OpenTelemetry (`tests/interop/otel.py`, which reads them by the field numbers of OTLP; `otel.sh` has
//! it read them by the classes that OpenTelemetry publishes).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::process::{Command, Stdio};

use serde_json::json;
use tests::free_port;

use crate::cli::{Ended, Place, wait_for};
use crate::console::{owner, serve_with};

/// A span as the collector tells it: `[zfs create] internal trace=... span=... parent=... error=...`.
struct ToldSpan<'a> {
    name: &'a str,
    rest: &'a str,
}

impl<'a> ToldSpan<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let (name, rest) = line.strip_prefix("span [")?.split_once("] ")?;
        Some(Self { name, rest })
    }

    fn field(&self, key: &str) -> &'a str {
        let mut words = self.rest.split(' ');
        let found = words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("no {key}: {}", self.rest))
    }
}

fn collector(place: &Place, port: u16) -> Ended {
    let told = place.path("work/told");
    let told = File::options().create(true).append(true).open(told);
    let told = told.expect("a file");
    let mut python = Command::new("python3");
    python
        .arg(tests::root().join("tests/interop/otel.py"))
        .arg(port.to_string())
        .current_dir(place.path("work"))
        .stdout(told.try_clone().expect("another"))
        .stderr(told)
        .stdin(Stdio::null());
    Ended(python.spawn().expect("python runs"))
}

/// Waits until the collector was told of a span of this name with `word` in it; returns its line.
fn span(place: &Place, name: &str, word: &str) -> String {
    wait_for(name, || {
        let told = fs::read_to_string(place.path("work/told")).unwrap_or_default();
        let mut lines = told.lines();
        let found = lines.find(|line| {
            ToldSpan::read(line).is_some_and(|span| span.name == name && span.rest.contains(word))
        });
        found.map(str::to_owned).ok_or_else(|| told.clone())
    })
}

fn says(place: &Place, words: &str) {
    wait_for(words, || {
        let log = place.log();
        log.contains(words).then_some(()).ok_or(log)
    });
}

#[test]
fn metrics_and_spans_reach_a_collector_that_comes_and_goes() {
    let mut place = Place::new();
    place.set("OTEL_EXPORTER_OTLP_HEADERS", "api-key=key%3D1");
    let at = free_port();
    let made = place.run(&format!(
        "mkdir -p $SANBOX_STATE; \
         printf \"[otel]\\nendpoint = 'http://127.0.0.1:{at}/'\\ninterval_seconds = 1\\n\" > $SANBOX_STATE/sanbox.toml; \
         echo 200 > status; truncate -s 128M disk && zpool create tank $PWD/disk"
    ));
    assert_eq!(made, "");
    // Nobody is there yet: it is said once, nothing waits for it, and what was done is told later.
    let port = serve_with(&mut place, &[]);
    assert_eq!(
        place.run("zfs create -o 'org.x:y=early bird' tank/early"),
        ""
    );
    says(&place, "the collector takes no metrics");
    let _collector = collector(&place, at);
    says(&place, "the collector takes metrics again");
    let early = span(&place, "zfs create", "early");
    assert!(
        early.contains("process.command_line=zfs create -o"),
        "{early}"
    );
    assert!(early.contains(" internal "), "{early}");

    let browser = owner(&place, port);
    the_job_of_a_call_is_within_it(&place, &browser);

    assert_eq!(place.run("zfs destroy tank/no >/dev/null 2>&1"), "[1]\n");
    let failed = span(&place, "zfs destroy", "tank/no");
    let failed = ToldSpan::read(&failed).expect("a span");
    assert_eq!(failed.field("error"), "2");
    assert!(failed.rest.contains("exit code 1"), "{}", failed.rest);

    same_numbers_as_prometheus(&place);

    // One that takes long holds up no command, and the end of the daemon by no more than seconds.
    place.run("echo hang > status");
    assert_eq!(place.run("timeout 5 zfs create tank/hang"), "");
    let began = std::time::Instant::now();
    place.stop();
    assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    let told = fs::read_to_string(place.path("work/told")).expect("there");
    assert!(!told.contains("Error"), "{told}");
}

/// A call of a client that names its own span, and the command that it gives.
fn the_job_of_a_call_is_within_it(place: &Place, browser: &crate::console::Browser<'_>) {
    let parent = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let body = json!({"tool": "zfs", "arguments": ["snapshot", "tank/early@one"]});
    let (status, _) = browser.ask_with("POST", "/api/v1/commands", Some(&body), &[parent]);
    assert_eq!(status, 202);
    let job = span(place, "zfs snapshot", "tank/early@one");
    let call = span(place, "POST /api/v1/commands", "0af7651916cd43dd");
    let [job, call] = [&job, &call].map(|line| ToldSpan::read(line).expect("a span"));
    assert_eq!(call.field("parent"), "b7ad6b7169203331");
    assert_eq!(call.field("http.response.status_code"), "202");
    assert_eq!(call.field("error"), "0");
    assert_eq!(job.field("trace"), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(job.field("parent"), call.field("span"));
}

/// The collector's numbers of what changes seldom are those that Prometheus is told.
fn same_numbers_as_prometheus(place: &Place) {
    let told = fs::read_to_string(place.path("work/told")).expect("there");
    let mut last = BTreeMap::new();
    for line in told.lines().filter_map(|line| line.strip_prefix("metric ")) {
        if let Some((name, value)) = line.rsplit_once(' ') {
            last.insert(name, value);
        }
    }
    assert!(last.len() > 100, "{last:?}");
    assert_eq!(last["zfs_pool_size_bytes{pool=tank} gauge"], "117440512");
    let read = last.keys().filter(|name| name.starts_with("sanbox_arc_"));
    assert!(read.count() > 3, "{last:?}");
    let counters = last.keys().filter(|name| name.ends_with(" sum"));
    assert!(counters.count() > 10, "{last:?}");
}
