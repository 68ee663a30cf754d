//! `[otel]` of `sanbox.toml`: metrics and traces to an OpenTelemetry collector (OTLP 1.x over HTTP, protobuf). Off where no endpoint is set.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Otel {
    /// Base URL of the collector, such as `http://localhost:4318`: `/v1/metrics` and `/v1/traces` are appended. Empty: nothing is sent.
    pub endpoint: String,
    /// Seconds between two exports of the metrics, 1 to 3600.
    pub interval_seconds: u64,
    /// Certificates to trust in place of the machine's, for `https://`.
    pub ca_file: Option<PathBuf>,
}

impl Default for Otel {
    fn default() -> Self {
        Self {
            endpoint: String::new(),
            interval_seconds: 60,
            ca_file: None,
        }
    }
}

impl Otel {
    /// Checks what is set.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub(crate) fn check(&self) -> Result<(), String> {
        let endpoint = &self.endpoint;
        let known = ["http://", "https://"];
        if !endpoint.is_empty() && !known.iter().any(|scheme| endpoint.starts_with(scheme)) {
            return Err("[otel] endpoint: it begins with http:// or https://".to_owned());
        }
        if !(1..=3600).contains(&self.interval_seconds) {
            return Err("[otel] interval_seconds: 1 to 3600".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[test]
    fn only_what_can_be_used_is_taken() {
        for (line, fits) in [
            ("endpoint = 'http://localhost:4318'", true),
            (
                "endpoint = 'https://collector/otlp'\nca_file = '/etc/ca.pem'",
                true,
            ),
            ("endpoint = ''", true),
            ("endpoint = 'localhost:4317'", false),
            ("interval_seconds = 0", false),
            ("interval_seconds = 3601", false),
            ("protocol = 'grpc'", false),
        ] {
            let parsed = Config::parse(&format!("[otel]\n{line}\n"));
            assert_eq!(parsed.is_ok(), fits, "{line}: {parsed:?}");
        }
    }
}
