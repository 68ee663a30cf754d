//! Metrics for Prometheus at `/metrics` of a loopback port: under the names that dashboards for ZFS use (those of zfs_exporter in
//! `exporter`, of node_exporter's zfs collector in `node`), and ours, which begin with `sanbox_`, in `own`.
//!
//! Guarantees: a scrape looks only at what is in memory and at the datasets' properties; slow or silent clients are let go.

mod exporter;
mod node;
mod own;

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::appliance::Appliance;
use crate::cli::sanbox::sample::Sample;

/// Scrapes at once; more wait.
const AT_ONCE: usize = 4;
/// How long a client may take to ask or to take the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest request looked at.
const REQUEST_MAX: usize = 8 << 10;

/// Answers scrapes until it is aborted.
pub(crate) async fn serve(listener: TcpListener, appliance: Arc<Appliance>) {
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let appliance = appliance.clone();
                tokio::spawn(async move {
                    let _permit = permit;
                    // A client that hangs up needs no more.
                    let _ = timeout(3 * CLIENT_TIMEOUT, answer(stream, &appliance)).await;
                });
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Listens at a port of this machine only.
pub(crate) async fn listen(port: u16) -> std::io::Result<TcpListener> {
    TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await
}

async fn answer(mut stream: TcpStream, appliance: &Appliance) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST_MAX {
        let mut piece = [0; 1024];
        let read = timeout(CLIENT_TIMEOUT, stream.read(&mut piece)).await??;
        if read == 0 {
            break;
        }
        request.extend_from_slice(&piece[..read]);
    }
    let line = request
        .split(|byte| *byte == b'\r')
        .next()
        .unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_whitespace();
    let (method, path) = (words.next(), words.next().unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    let (status, kind, body) = match (method, path) {
        (Some("GET" | "HEAD"), "/metrics") => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            ("200 OK", kind, scrape(appliance).await)
        }
        (Some("GET" | "HEAD"), "/") => (
            "200 OK",
            "text/plain",
            "sanbox: metrics are at /metrics\n".to_owned(),
        ),
        (Some("GET" | "HEAD"), _) => ("404 Not Found", "text/plain", "not found\n".to_owned()),
        _ => (
            "405 Method Not Allowed",
            "text/plain",
            "only GET\n".to_owned(),
        ),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let body = if method == Some("HEAD") { "" } else { &body };
    let whole = format!("{head}{body}");
    timeout(CLIENT_TIMEOUT, stream.write_all(whole.as_bytes())).await??;
    stream.shutdown().await
}

/// The text of a scrape.
async fn scrape(appliance: &Appliance) -> String {
    page(appliance).await.text()
}

/// Returns all metrics as they are now.
pub(crate) async fn page(appliance: &Appliance) -> Page {
    let sample = Sample::take(appliance.open_pools()).await;
    let mut page = Page::default();
    node::all(&mut page, &sample);
    for pool in &sample.pools {
        exporter::pool(&mut page, &pool.status);
    }
    exporter::datasets(&mut page, &appliance.open_pools()).await;
    own::all(&mut page, &sample);
    own::memory(&mut page, &appliance.memory_plan());
    page
}

/// A page of metrics: families in the order of their first line.
#[derive(Default)]
pub(crate) struct Page {
    families: Vec<Family>,
}

/// The metrics of one name.
pub(crate) struct Family {
    pub(crate) name: String,
    pub(crate) help: String,
    /// `counter`, `gauge` or `untyped`.
    pub(crate) kind: &'static str,
    pub(crate) points: Vec<Point>,
}

/// A metric.
pub(crate) struct Point {
    /// Names and values.
    pub(crate) labels: Vec<(String, String)>,
    /// A decimal number.
    pub(crate) value: String,
}

impl Page {
    /// Returns the families.
    pub(crate) fn families(&self) -> &[Family] {
        &self.families
    }

    fn gauge(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: u64) {
        self.line(name, help, "gauge", labels, value.to_string());
    }

    fn counter(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: u64) {
        self.line(name, help, "counter", labels, value.to_string());
    }

    /// As node_exporter shows what it reads from the kernel.
    fn untyped(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        let help = format!("kstat {name}");
        self.line(name, &help, "untyped", labels, value.to_string());
    }

    /// A ratio, given in hundredths.
    fn hundredths(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: u64) {
        let value = format!("{}.{:02}", value / 100, value % 100);
        self.line(name, help, "gauge", labels, value);
    }

    fn seconds(&mut self, name: &str, help: &str, labels: &[(&str, &str)], nanoseconds: u64) {
        let value = format!(
            "{}.{:09}",
            nanoseconds / 1_000_000_000,
            nanoseconds % 1_000_000_000
        );
        self.line(name, help, "counter", labels, value);
    }

    fn line(
        &mut self,
        name: &str,
        help: &str,
        kind: &'static str,
        labels: &[(&str, &str)],
        value: String,
    ) {
        let known = self.families.iter().position(|known| known.name == name);
        let at = known.unwrap_or(self.families.len());
        if known.is_none() {
            self.families.push(Family {
                name: name.to_owned(),
                help: help.to_owned(),
                kind,
                points: Vec::new(),
            });
        }
        let labels = labels.iter();
        let labels = labels.map(|(label, value)| ((*label).to_owned(), (*value).to_owned()));
        self.families[at].points.push(Point {
            labels: labels.collect(),
            value,
        });
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for family in &self.families {
            let Family {
                name, help, kind, ..
            } = family;
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
            for point in &family.points {
                text.push_str(name);
                for (index, (label, value)) in point.labels.iter().enumerate() {
                    let before = if index == 0 { '{' } else { ',' };
                    let value = value
                        .replace('\\', "\\\\")
                        .replace('"', "\\\"")
                        .replace('\n', "\\n");
                    let _ = write!(text, "{before}{label}=\"{value}\"");
                }
                if !point.labels.is_empty() {
                    text.push('}');
                }
                let _ = writeln!(text, " {}", point.value);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_stay_together_and_labels_are_escaped() {
        let mut page = Page::default();
        page.gauge("a", "first", &[("pool", "ta\"nk")], 1);
        page.counter("b", "second", &[], 2);
        page.gauge("a", "first", &[("pool", "x"), ("vdev", "y")], 3);
        page.seconds("c", "third", &[], 1_500_000_000);
        assert_eq!(
            page.text(),
            "# HELP a first\n# TYPE a gauge\na{pool=\"ta\\\"nk\"} 1\na{pool=\"x\",vdev=\"y\"} 3\n\
             # HELP b second\n# TYPE b counter\nb 2\n\
             # HELP c third\n# TYPE c counter\nc 1.500000000\n"
        );
    }
}
