//! What is set for the whole appliance: limits that can be changed while it runs, its log, its certificate, and who is told of alerts.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Problem, Shared};
use crate::acme::AcmeFailure;

/// How long the state directory may take to tell of the certificate.
const READ_TIMEOUT: Duration = Duration::from_millis(700);

/// A limit that can be changed while pools are in use, by `sanbox tune`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Tunable {
    /// Its name: OpenZFS's where it has one.
    pub name: &'static str,
    /// What it does, and its unit.
    pub effect: &'static str,
    /// Now.
    pub value: u64,
    /// Where nothing is said.
    pub default: u64,
    /// The least value.
    pub least: u64,
    /// The largest value.
    pub most: u64,
}

/// The certificate of the console.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CertificateView {
    /// SHA-256 fingerprint, as browsers show it.
    pub fingerprint: String,
    /// The end of its validity, seconds since 1970, where it is understood.
    pub ends: Option<u64>,
}

/// A certificate by ACME: what is set, and what became of it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct AcmeView {
    /// Names of the certificate. Empty: it is off.
    pub names: Vec<String>,
    /// The mail address that the authority knows; empty for none.
    pub contact: String,
    /// The authority's directory.
    pub directory: String,
    /// `http-01` or `tls-alpn-01`.
    pub challenge: &'static str,
    /// An order is under way.
    pub running: bool,
    /// When one is asked for next, seconds since 1970; in the past: at once.
    pub next: u64,
    /// Why the last order failed.
    pub failure: Option<AcmeFailure>,
}

/// A channel of alerts, as it is configured; without what lets in there.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChannelSetting {
    /// Its name, for `sanbox alert channel remove`.
    pub name: String,
    /// `mail`, `webhook`, `syslog` or `snmp`.
    pub kind: &'static str,
    /// Whom it reaches: addresses, or a host.
    pub to: String,
    /// The least severity that is told.
    pub severity: String,
}

/// Settings of the appliance.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct Settings {
    /// Limits.
    pub tunables: Vec<Tunable>,
    /// Levels of the log, as `sanbox log` shows them; none in a process without one.
    pub log_levels: Option<String>,
    /// The modules that can have a level of their own.
    pub log_modules: &'static [&'static str],
    /// None when it cannot be read.
    pub certificate: Option<CertificateView>,
    /// The authority that it comes from; none when the state directory cannot be read.
    pub acme: Option<AcmeView>,
    /// Channels of alerts.
    pub channels: Vec<ChannelSetting>,
    /// How often the report is mailed: `off`, `daily`, `weekly` or `monthly`.
    pub report_every: String,
    /// When `sanbox support` made its archive, seconds since 1970; none without one.
    pub support_made: Option<u64>,
    /// The state directory, which has `sanbox.toml`, `console-cert.pem` and `console-key.pem`.
    pub state_directory: String,
}

/// Says what is set for the whole appliance.
#[utoipa::path(get, path = "/api/v1/settings", responses((status = 200, body = Settings), (status = 503, body = Problem)))]
pub(super) async fn show_settings(State(api): Shared) -> Result<Json<Settings>, Problem> {
    let settings = tokio::time::timeout(READ_TIMEOUT, api.backend.settings()).await;
    let silent = |_| {
        let detail = "the state directory does not answer: its disk may hang";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    };
    Ok(Json(settings.map_err(silent)?))
}
