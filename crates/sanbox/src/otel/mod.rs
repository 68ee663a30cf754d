//! OpenTelemetry: metrics, and spans of calls of the API and of commands, sent to a collector by OTLP over HTTP.
//!
//! Guarantees: nothing is sent, and no span kept, before `[otel] endpoint` or `OTEL_EXPORTER_OTLP_ENDPOINT` names a collector. One that is
//! slow or gone holds up nothing: spans wait for it within bounds, and the log says once that it is gone and once that it is back.
//! Command lines are sent as the log of jobs has them, without secrets.
// OpenTelemetry: OTLP Specification 1.x, "OTLP/HTTP"; SDK environment variables of the OTLP exporter.

pub(crate) mod message;
pub(crate) mod span;

use std::sync::Weak;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use manage::api::Peer;
use manage::config::Otel;
use prost::Message;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::appliance::Appliance;
use crate::logging::SANBOX;
use crate::serve::metrics::{self, Family, Page, Point};
use crate::web_client::{Trust, Url, exchange};
use message::{
    Attribute, ExportAnswer, Gauge, InstrumentationScope, Metric, MetricData, MetricsExport,
    NumberDataPoint, NumberValue, Resource, ResourceMetrics, ResourceSpans, ScopeMetrics,
    ScopeSpans, SpanData, SpanKind, Sum, TraceExport,
};
use span::{BegunSpan, SpanContext, SpanQueue};

/// How long ended spans wait for others before they are sent.
const SPANS_EVERY: Duration = Duration::from_secs(5);
/// How long the collector may take, and the pools to say their metrics.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long what is left may take at the end of the daemon.
const LAST_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest wait before spans are offered again.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Bytes of an answer.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Metrics count since the daemon began (`AggregationTemporality`).
const CUMULATIVE: i32 = 2;

/// Where metrics and spans go, and what is said of their source.
pub(crate) struct OtelExporter {
    /// The base of the URLs, without a slash at its end.
    endpoint: String,
    /// Headers of each request, which may be secret.
    headers: HeaderMap,
    interval: Duration,
    trust: Trust,
    resource: Resource,
    /// When counting began, in nanoseconds since 1970.
    started: u64,
    queue: &'static SpanQueue,
}

/// Why an export failed.
enum ExportFailure {
    /// The same may be offered again.
    Later(anyhow::Error),
    /// The collector does not want it.
    Refused(anyhow::Error),
}

impl OtelExporter {
    /// Returns what sends metrics and spans; `None` where no collector is named. Spans are kept from now on.
    ///
    /// # Errors
    /// The URL of the collector or the headers for it cannot be used.
    pub(crate) fn new(settings: &Otel, host_name: Option<String>) -> anyhow::Result<Option<Self>> {
        let variable = |name: &str| std::env::var(name).ok().filter(|set| !set.is_empty());
        let endpoint = match settings.endpoint.as_str() {
            "" => variable("OTEL_EXPORTER_OTLP_ENDPOINT"),
            set => Some(set.to_owned()),
        };
        let Some(endpoint) = endpoint else {
            return Ok(None);
        };
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        Url::parse(&endpoint).with_context(|| format!("the collector {endpoint}"))?;
        let headers = variable("OTEL_EXPORTER_OTLP_HEADERS").unwrap_or_default();
        let headers = read_headers(&headers).context("OTEL_EXPORTER_OTLP_HEADERS")?;
        let mut attributes = vec![
            Attribute::text("service.name", "sanbox"),
            Attribute::text("service.version", env!("CARGO_PKG_VERSION")),
        ];
        if let Some(name) = host_name {
            attributes.push(Attribute::text("service.instance.id", name.clone()));
            attributes.push(Attribute::text("host.name", name));
        }
        Ok(Some(Self {
            endpoint,
            headers,
            interval: Duration::from_secs(settings.interval_seconds.max(1)),
            trust: Trust::of_file(settings.ca_file.as_deref()),
            resource: Resource { attributes },
            started: span::now(),
            queue: span::begin(),
        }))
    }

    /// Sends metrics and spans until the task is ended.
    pub(crate) async fn run(&self, appliance: Weak<Appliance>) {
        tracing::info!(
            target: SANBOX,
            "metrics and traces go to the collector {}",
            self.endpoint
        );
        tokio::join!(self.send_metrics(appliance), self.send_spans());
    }

    /// Sends the spans that are left, when the daemon ends.
    pub(crate) async fn send_last(&self) {
        let sending = async {
            loop {
                let spans = self.queue.take();
                if spans.is_empty() {
                    return;
                }
                let export = self.trace_export(spans);
                if self.post("/v1/traces", &export).await.is_err() {
                    return;
                }
            }
        };
        let _ = timeout(LAST_TIMEOUT, sending).await;
    }

    async fn send_metrics(&self, appliance: Weak<Appliance>) {
        let mut each = interval(self.interval);
        each.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut known = CollectorState::default();
        loop {
            each.tick().await;
            let Some(appliance) = appliance.upgrade() else {
                return;
            };
            // A pool that does not answer is in the alerts, and the next look may find the others.
            let Ok(page) = timeout(EXPORT_TIMEOUT, metrics::page(&appliance)).await else {
                continue;
            };
            drop(appliance);
            let sent = self.post("/v1/metrics", &self.metrics_of(&page)).await;
            known.note(sent, "metrics", 0);
        }
    }

    async fn send_spans(&self) {
        let mut known = CollectorState::default();
        let mut wait = SPANS_EVERY;
        loop {
            let _ = timeout(wait, self.queue.is_full.notified()).await;
            let began = Instant::now();
            loop {
                let spans = self.queue.take();
                if spans.is_empty() {
                    known.note(Ok(()), "spans", self.queue.take_dropped(0));
                    wait = SPANS_EVERY;
                    break;
                }
                let count = spans.len();
                let export = self.trace_export(spans);
                let sent = self.post("/v1/traces", &export).await;
                let lost = match &sent {
                    Err(ExportFailure::Refused(_)) => count,
                    Err(ExportFailure::Later(_)) => {
                        self.queue.give_back(export.into_spans().collect());
                        0
                    }
                    Ok(()) => 0,
                };
                let failed = matches!(sent, Err(ExportFailure::Later(_)));
                known.note(sent, "spans", self.queue.take_dropped(lost));
                if failed {
                    wait = (2 * wait).min(RETRY_MAX);
                    // A full queue must not have it offered without a pause.
                    sleep(wait.saturating_sub(began.elapsed())).await;
                    break;
                }
            }
        }
    }

    fn trace_export(&self, spans: Vec<SpanData>) -> TraceExport {
        TraceExport {
            resource_spans: vec![ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![ScopeSpans {
                    scope: Some(scope()),
                    spans,
                }],
            }],
        }
    }

    async fn post(&self, path: &str, message: &impl Message) -> Result<(), ExportFailure> {
        let asking = self.ask(path, message.encode_to_vec());
        match timeout(EXPORT_TIMEOUT, asking).await {
            Ok(answer) => answer,
            Err(_) => Err(ExportFailure::Later(anyhow::anyhow!(
                "no answer within {EXPORT_TIMEOUT:?}"
            ))),
        }
    }

    async fn ask(&self, path: &str, body: Vec<u8>) -> Result<(), ExportFailure> {
        let request = hyper::Request::post(format!("{}{path}", self.endpoint));
        let request = request.body(Full::new(Bytes::from(body)));
        let mut request = request.map_err(|error| ExportFailure::Refused(error.into()))?;
        request.headers_mut().extend(self.headers.clone());
        let protobuf = HeaderValue::from_static("application/x-protobuf");
        request.headers_mut().insert(CONTENT_TYPE, protobuf);
        let answer = exchange(request, &self.trust, ANSWER_BYTES_MAX).await;
        let answer = answer.map_err(ExportFailure::Later)?;
        match answer.status().as_u16() {
            200..=299 => taken(answer.body()).map_err(ExportFailure::Refused),
            // The statuses after which the specification has clients try again.
            status @ (429 | 502..=504) => Err(ExportFailure::Later(anyhow::anyhow!(
                "it answers with status {status}"
            ))),
            status => Err(ExportFailure::Refused(anyhow::anyhow!(
                "it answers with status {status}"
            ))),
        }
    }

    fn metrics_of(&self, page: &Page) -> MetricsExport {
        let now = span::now();
        let metrics = page.families().iter();
        let metrics = metrics.map(|family| self.metric(family, now)).collect();
        MetricsExport {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(self.resource.clone()),
                scope_metrics: vec![ScopeMetrics {
                    scope: Some(scope()),
                    metrics,
                }],
            }],
        }
    }

    fn metric(&self, family: &Family, now: u64) -> Metric {
        let points = family.points.iter();
        let data_points = points.map(|point| self.data_point(point, now)).collect();
        let data = match family.kind {
            "counter" => MetricData::Sum(Sum {
                data_points,
                aggregation_temporality: CUMULATIVE,
                is_monotonic: true,
            }),
            _ => MetricData::Gauge(Gauge { data_points }),
        };
        Metric {
            name: family.name.clone(),
            description: family.help.clone(),
            data: Some(data),
        }
    }

    fn data_point(&self, point: &Point, now: u64) -> NumberDataPoint {
        let labels = point.labels.iter();
        let value = match (point.value.parse(), point.value.parse()) {
            (Ok(integer), _) => Some(NumberValue::Integer(integer)),
            (_, Ok(float)) => Some(NumberValue::Float(float)),
            _ => None,
        };
        NumberDataPoint {
            attributes: labels
                .map(|(label, value)| Attribute::text(label, value.as_str()))
                .collect(),
            start_time_unix_nano: self.started,
            time_unix_nano: now,
            value,
        }
    }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "sanbox".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Reads the answer of a collector that took an export, or a part of it.
fn taken(body: &[u8]) -> anyhow::Result<()> {
    // Some answer with nothing, or with JSON, though that is not what they are asked.
    let answer = ExportAnswer::decode(body).unwrap_or_default();
    match answer.partial_success {
        Some(partial) if partial.rejected > 0 => bail!(
            "it refused {} of them: {}",
            partial.rejected,
            partial.error_message.escape_debug()
        ),
        _ => Ok(()),
    }
}

/// Reads `name=value,...`, values percent-encoded, as W3C Baggage has them.
fn read_headers(text: &str) -> anyhow::Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for pair in text.split(',').map(str::trim).filter(|one| !one.is_empty()) {
        // The value may be secret: it is not shown.
        let (name, value) = pair.split_once('=').context("a header without '='")?;
        let name = name.trim();
        let known = HeaderName::try_from(name).with_context(|| format!("'{name}'"))?;
        let value = percent_decoded(value.trim()).with_context(|| format!("'{name}'"))?;
        let mut value = HeaderValue::from_bytes(&value).with_context(|| format!("'{name}'"))?;
        value.set_sensitive(true);
        headers.insert(known, value);
    }
    Ok(headers)
}

fn percent_decoded(text: &str) -> anyhow::Result<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first != b'%' {
            decoded.push(*first);
            continue;
        }
        ensure!(rest.len() >= 2, "ends within a percent-encoded byte");
        let (digits, behind) = rest.split_at(2);
        let byte = data_encoding::HEXLOWER_PERMISSIVE.decode(digits);
        decoded.extend(byte.context("holds '%' without two hexadecimal digits")?);
        rest = behind;
    }
    Ok(decoded)
}

/// Whether the collector takes what it is sent, so that only changes are logged.
#[derive(Default)]
struct CollectorState {
    is_failing: bool,
    /// What was lost while it failed.
    lost: u64,
}

impl CollectorState {
    fn note(&mut self, sent: Result<(), ExportFailure>, what: &str, lost: u64) {
        self.lost = self.lost.saturating_add(lost);
        match sent {
            Ok(()) if self.is_failing || self.lost > 0 => {
                let lost = std::mem::take(&mut self.lost);
                self.is_failing = false;
                tracing::info!(
                    target: SANBOX,
                    "the collector takes {what} again; {lost} were lost meanwhile"
                );
            }
            Ok(()) => {}
            Err(ExportFailure::Later(error) | ExportFailure::Refused(error)) => {
                if !self.is_failing {
                    tracing::warn!(target: SANBOX, "the collector takes no {what}: {error:#}");
                }
                self.is_failing = true;
            }
        }
    }
}

/// Has each call of the API be a span, within that of its client if it names one (`traceparent`).
pub(crate) async fn traced(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>();
    let route = route.filter(|_| span::are_kept());
    let Some(route) = route.map(|route| route.as_str().to_owned()) else {
        return next.run(request).await;
    };
    let parent = request.headers().get("traceparent");
    let parent = parent.and_then(|text| SpanContext::from_traceparent(text.to_str().ok()?));
    let method = request.method().clone();
    let mut span = BegunSpan::new(SpanKind::Server, &format!("{method} {route}"), parent);
    span.text("http.request.method", method.as_str());
    span.text("http.route", &route);
    span.text("url.path", request.uri().path());
    if let Some(Peer(peer)) = request.extensions().get::<Peer>() {
        span.text("client.address", &peer.ip().to_string());
    }
    let answer = match span.context() {
        Some(context) => context.scope(next.run(request)).await,
        None => next.run(request).await,
    };
    let status = answer.status();
    span.number("http.response.status_code", i64::from(status.as_u16()));
    span.end(status.is_server_error().then(|| status.as_str()));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_and_never_shown() {
        let headers = read_headers("api-key=se%63ret%3D, x=1,").expect("headers");
        assert_eq!(headers["api-key"], "secret=");
        assert_eq!(headers["x"], "1");
        assert!(!format!("{headers:?}").contains("secret"));
        for wrong in [
            "secret",
            "a b=secret",
            "x=secret%3",
            "x=secret%zz",
            "x=secret%0a",
        ] {
            let error = read_headers(wrong).expect_err(wrong);
            assert!(!format!("{error:#}").contains("secret"), "{error:#}");
        }
    }
}
