//! Certificates of the console by ACME: what is set, one attempt at a time, and what became of it.
//!
//! Guarantees: an attempt ends in time; one that fails leaves the certificate that is in use; the port of plain HTTP is open during an
//! attempt alone; an authority that asked to be left alone is.

pub(crate) mod challenges;
mod http;
mod listener;
mod order;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use manage::acme::{AcmeFailure, AcmeProgress, Issued};
use manage::certificate;
use manage::config::{Acme as Settings, AcmeChallenge, Config};
use manage::database::seconds_since_epoch;
use manage::state::StateDirectory;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

use challenges::Challenges;
use http::RetryAt;
use order::Ordering;

/// How long an attempt may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(300);

/// See the module.
#[derive(Default)]
pub(crate) struct Acme {
    settings: watch::Sender<Settings>,
    challenges: Arc<Challenges>,
    attempt: Mutex<()>,
}

/// Where an attempt is made: the state directory, and how the appliance is reached.
pub(crate) struct Surroundings<'a> {
    pub(crate) state: &'a StateDirectory,
    pub(crate) config: &'a Config,
}

/// Whether an attempt waits until one is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// Only if one is due.
    Due,
    /// At once, unless the certificate in use is the one that is set.
    Unmet,
    /// At once, unless the authority asked for time.
    Now,
}

impl Acme {
    /// What is set at the start.
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings: watch::Sender::new(settings),
            ..Self::default()
        }
    }

    /// What is set, now and from now on.
    pub(crate) fn settings(&self) -> &watch::Sender<Settings> {
        &self.settings
    }

    /// The answers to an authority.
    pub(crate) fn challenges(&self) -> &Arc<Challenges> {
        &self.challenges
    }

    /// Whether an attempt is under way.
    pub(crate) fn is_trying(&self) -> bool {
        self.attempt.try_lock().is_err()
    }

    /// Asks for a certificate; returns none if none is due. What becomes of it is kept in the state directory.
    pub(crate) async fn attempt(
        &self,
        surroundings: &Surroundings<'_>,
        when: When,
    ) -> Result<Option<Issued>, AcmeFailure> {
        let _alone = self.attempt.lock().await;
        self.attempt_alone(surroundings, when).await
    }

    /// Changes the settings, and asks for a certificate with them before the daemon does so by itself.
    pub(crate) async fn attempt_with(
        &self,
        settings: Settings,
        surroundings: &Surroundings<'_>,
    ) -> Result<Option<Issued>, AcmeFailure> {
        let _alone = self.attempt.lock().await;
        self.settings.send_replace(settings);
        self.attempt_alone(surroundings, When::Unmet).await
    }

    async fn attempt_alone(
        &self,
        surroundings: &Surroundings<'_>,
        when: When,
    ) -> Result<Option<Issued>, AcmeFailure> {
        let settings = self.settings.borrow().clone();
        let state = surroundings.state;
        let mut progress = AcmeProgress::read(state.path());
        let now = seconds_since_epoch();
        let in_use = fingerprint_in(state.path());
        let is_due = settings.is_on() && progress.next_attempt(&settings, in_use.as_deref()) <= now;
        let is_wanted = match when {
            When::Due => is_due,
            When::Unmet => is_due || progress.failure.is_some(),
            When::Now => true,
        };
        if !is_wanted {
            return Ok(None);
        }
        if progress.asked_until(&settings) > now {
            let seconds = progress.asked_until(&settings) - now;
            return Err(AcmeFailure {
                fact: format!("The authority asked to be left alone for another {seconds} s."),
                next_step: "Wait; it is asked again then.".to_owned(),
            });
        }
        let retry_at = RetryAt::default();
        let ordering = self.order(surroundings, &settings, retry_at.clone());
        let outcome = match timeout(ATTEMPT_TIMEOUT, ordering).await {
            Ok(outcome) => outcome,
            Err(_) => Err(AcmeFailure {
                fact: format!("The order was not done within {ATTEMPT_TIMEOUT:?}."),
                next_step: "Nothing: it is tried again later.".to_owned(),
            }),
        };
        self.challenges.clear();
        let random = manage::secret::random::<8>().map_or(0, u64::from_le_bytes);
        let now = seconds_since_epoch();
        let outcome = outcome.map(|(issued, begins)| {
            progress.succeeded(now, issued, begins, random);
            progress.issued.clone()
        });
        if let Err(failure) = &outcome {
            progress.failed(now, &settings, failure.clone(), retry_at.get(), random);
        }
        // Without it the certificate is asked for once more at the next start.
        if let Err(error) = progress.write(state.path()) {
            tracing::warn!(target: crate::logging::CONSOLE, "what became of the certificate is not kept: {error}");
        }
        outcome
    }

    /// Returns the certificate that was put into the state directory, and when its validity begins.
    async fn order(
        &self,
        surroundings: &Surroundings<'_>,
        settings: &Settings,
        retry_at: RetryAt,
    ) -> Result<(Issued, u64), AcmeFailure> {
        let Surroundings { state, config } = surroundings;
        let _listening = match settings.challenge {
            AcmeChallenge::Http => Some(self.listen(&config.listen, config, settings).await?),
            AcmeChallenge::TlsAlpn => None,
        };
        let ordering = Ordering {
            settings,
            state,
            challenges: &self.challenges,
            retry_at,
        };
        let ordered = ordering.run().await?;
        let broken = |why: String| AcmeFailure {
            fact: format!("The certificate that was issued cannot be used: {why}"),
            next_step: "Make room on the disk of the state directory, or mount it writable."
                .to_owned(),
        };
        let own = CertificateDer::from_pem_slice(ordered.certificates.as_bytes());
        let own = own.map_err(|error| broken(error.to_string()))?;
        let validity = certificate::validity(&own);
        let (begins, ends) = validity.ok_or_else(|| broken("its dates".to_owned()))?;
        certificate::install(state.path(), &ordered.certificates, &ordered.key)
            .map_err(|error| broken(error.to_string()))?;
        let issued = Issued {
            names: settings.names.clone(),
            directory: settings.directory.clone(),
            fingerprint: certificate::fingerprint(&own),
            ends,
            renewed_at: 0,
        };
        Ok((issued, begins))
    }

    async fn listen(
        &self,
        addresses: &[IpAddr],
        config: &Config,
        settings: &Settings,
    ) -> Result<tokio::task::JoinSet<()>, AcmeFailure> {
        let (port, console) = (settings.http_port, config.console.port);
        let listening = listener::listen(addresses, port, console, &self.challenges).await;
        listening.map_err(|why| AcmeFailure {
            fact: format!("The port that the authority comes to cannot be listened at: {why}"),
            next_step: "Give the port free, or choose another one that port 80 of the names leads to ('--http-port').".to_owned(),
        })
    }
}

/// The fingerprint of the certificate in a state directory.
pub(crate) fn fingerprint_in(state: &Path) -> Option<String> {
    let pem = std::fs::read(state.join("console-cert.pem")).ok()?;
    let der = CertificateDer::from_pem_slice(&pem).ok()?;
    Some(certificate::fingerprint(&der))
}
