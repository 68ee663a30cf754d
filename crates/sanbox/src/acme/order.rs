//! One order of a certificate (RFC 8555, 7.4): the account, the proofs of the names, the request, the certificate.

use std::net::IpAddr;
use std::time::Duration;

use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, ChallengeType, Error, Identifier, NewAccount,
    NewOrder, Order, OrderStatus, Problem, RetryPolicy,
};
use manage::acme::{ACCOUNT_FILE, AcmeFailure};
use manage::certificate;
use manage::config::{Acme as Settings, AcmeChallenge};
use manage::state::StateDirectory;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};

use super::challenges::Challenges;
use super::http::{AuthorityClient, RetryAt};
use crate::certified::certified_key;
use crate::web_client::Trust;

/// How long the authority may look at the names, and how long it may make the certificate.
const STEP_TIMEOUT: Duration = Duration::from_secs(90);

/// What an order needs of the appliance.
pub(super) struct Ordering<'a> {
    pub(super) settings: &'a Settings,
    pub(super) state: &'a StateDirectory,
    pub(super) challenges: &'a Challenges,
    pub(super) retry_at: RetryAt,
}

/// A certificate and its key, in PEM.
pub(super) struct Ordered {
    pub(super) certificates: String,
    pub(super) key: String,
}

/// The account as it is kept.
#[derive(Serialize, Deserialize)]
struct KeptAccount {
    directory: String,
    contact: String,
    credentials: AccountCredentials,
}

/// A problem of RFC 8555, 6.7, by its short name.
fn is_problem(problem: &Problem, name: &str) -> bool {
    let given = problem.r#type.as_deref().unwrap_or_default();
    given.strip_prefix("urn:ietf:params:acme:error:") == Some(name)
}

impl Ordering<'_> {
    fn client(&self) -> Box<AuthorityClient> {
        Box::new(AuthorityClient {
            trust: Trust::of_file(self.settings.ca_file.as_deref()),
            retry_at: self.retry_at.clone(),
        })
    }

    /// Orders the certificate.
    pub(super) async fn run(&self) -> Result<Ordered, AcmeFailure> {
        let names = self.settings.names.iter();
        let identifiers: Vec<Identifier> = names.map(|name| identifier(name)).collect();
        let mut order = match self.new_order(&identifiers, self.kept()).await {
            // An authority that has forgotten the account is given a new one.
            Err(Error::Api(problem)) if is_problem(&problem, "accountDoesNotExist") => {
                self.new_order(&identifiers, None).await
            }
            order => order,
        }
        .map_err(|error| self.failure(&error))?;
        self.prove(&mut order).await?;
        let made = certificate::request(self.settings.names.clone());
        let (request, key) = made.map_err(|error| own_failure(&error.to_string()))?;
        let policy = RetryPolicy::new().timeout(STEP_TIMEOUT);
        let finalized = order.finalize_csr(&request).await;
        finalized.map_err(|error| self.failure(&error))?;
        let certificates = order.poll_certificate(&policy).await;
        let certificates = certificates.map_err(|error| self.failure(&error))?;
        check(&certificates, &key).map_err(|why| own_failure(&why))?;
        Ok(Ordered { certificates, key })
    }

    /// The account of before, if it is one at this authority.
    fn kept(&self) -> Option<KeptAccount> {
        let text = std::fs::read(self.state.path().join(ACCOUNT_FILE)).ok()?;
        let kept: KeptAccount = serde_json::from_slice(&text).ok()?;
        (kept.directory == self.settings.directory).then_some(kept)
    }

    async fn new_order(
        &self,
        identifiers: &[Identifier],
        kept: Option<KeptAccount>,
    ) -> Result<Order, Error> {
        let contact = match self.settings.contact.as_str() {
            "" => Vec::new(),
            mail => vec![format!("mailto:{mail}")],
        };
        let contacts: Vec<&str> = contact.iter().map(String::as_str).collect();
        let builder = Account::builder_with_http(self.client());
        let account = match kept {
            Some(kept) if kept.contact == self.settings.contact => {
                builder.from_credentials(kept.credentials).await?
            }
            Some(kept) => {
                let text = serde_json::to_vec(&kept.credentials)?;
                let account = builder.from_credentials(kept.credentials).await?;
                account.update_contacts(&contacts).await?;
                self.keep(serde_json::from_slice(&text)?)?;
                account
            }
            None => {
                let new = NewAccount {
                    contact: &contacts,
                    terms_of_service_agreed: self.settings.terms_agreed,
                    only_return_existing: false,
                };
                let directory = self.settings.directory.clone();
                let (account, credentials) = builder.create(&new, directory, None).await?;
                self.keep(credentials)?;
                account
            }
        };
        account.new_order(&NewOrder::new(identifiers)).await
    }

    fn keep(&self, credentials: AccountCredentials) -> Result<(), Error> {
        let kept = KeptAccount {
            directory: self.settings.directory.clone(),
            contact: self.settings.contact.clone(),
            credentials,
        };
        let text = serde_json::to_string(&kept)?;
        let written = self.state.write_secret(ACCOUNT_FILE, &text);
        written
            .map(drop)
            .map_err(|error| Error::Other(error.into()))
    }

    /// Has the authority see that the names are this appliance's.
    async fn prove(&self, order: &mut Order) -> Result<(), AcmeFailure> {
        let wanted = match self.settings.challenge {
            AcmeChallenge::Http => ChallengeType::Http01,
            AcmeChallenge::TlsAlpn => ChallengeType::TlsAlpn01,
        };
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.map_err(|error| self.failure(&error))?;
            if authorization.status == AuthorizationStatus::Valid {
                continue;
            }
            let name = authorization.identifier().to_string();
            let Some(mut challenge) = authorization.challenge(wanted.clone()) else {
                return Err(AcmeFailure {
                    fact: format!(
                        "The authority does not take {} for {name}.",
                        self.settings.challenge.as_str()
                    ),
                    next_step: "Choose the other kind of proof ('sanbox certificate acme ... --challenge').".to_owned(),
                });
            };
            let proof = challenge.key_authorization();
            match self.settings.challenge {
                AcmeChallenge::Http => self
                    .challenges
                    .put_document(&challenge.token, proof.as_str()),
                AcmeChallenge::TlsAlpn => {
                    let shown = challenge_certificate(&name, proof.digest().as_ref());
                    let shown = shown.map_err(|why| own_failure(&why))?;
                    self.challenges.put_certificate(&name, shown);
                }
            }
            let ready = challenge.set_ready().await;
            ready.map_err(|error| self.failure(&error))?;
        }
        let policy = RetryPolicy::new().timeout(STEP_TIMEOUT);
        let failure = match order.poll_ready(&policy).await {
            Ok(OrderStatus::Ready) => return Ok(()),
            // All of it was proved some time ago.
            Err(_) if order.state().status == OrderStatus::Valid => return Ok(()),
            Ok(_) => None,
            Err(error) => Some(self.failure(&error)),
        };
        let refused = self.refused(order).await;
        Err(refused.or(failure).unwrap_or_else(|| AcmeFailure {
            fact: "The authority did not find that the names are this appliance's, and does not say why.".to_owned(),
            next_step: self.reachable("the names"),
        }))
    }

    /// Why the authority does not believe a name.
    async fn refused(&self, order: &mut Order) -> Option<AcmeFailure> {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.ok()?;
            authorization.refresh().await.ok()?;
            let name = authorization.identifier().to_string();
            let mut challenges = authorization.challenges.iter();
            if let Some(problem) = challenges.find_map(|challenge| challenge.error.as_ref()) {
                return Some(self.challenge_failure(&name, problem));
            }
        }
        None
    }

    fn challenge_failure(&self, name: &str, problem: &Problem) -> AcmeFailure {
        let detail = problem.detail.as_deref().unwrap_or("no reason is given");
        let port = self.outer_port();
        let (fact, next_step) = if is_problem(problem, "connection") {
            (
                format!("The authority does not reach port {port} of {name}: {detail}"),
                self.reachable(name),
            )
        } else if is_problem(problem, "dns") {
            (
                format!("The authority finds no address of {name}: {detail}"),
                format!("Give {name} a record (A or AAAA) in DNS that leads to this appliance."),
            )
        } else if is_problem(problem, "caa") {
            (
                format!("The records of {name} allow this authority no certificate: {detail}"),
                "Change the CAA record in DNS, or choose another authority.".to_owned(),
            )
        } else {
            (
                format!(
                    "Something else than this appliance answers at port {port} of {name}: {detail}"
                ),
                self.reachable(name),
            )
        };
        AcmeFailure { fact, next_step }
    }

    /// The port that the authority comes to (RFC 8555, 8.3; RFC 8737, 3).
    fn outer_port(&self) -> u16 {
        match self.settings.challenge {
            AcmeChallenge::Http => 80,
            AcmeChallenge::TlsAlpn => 443,
        }
    }

    fn reachable(&self, name: &str) -> String {
        let (outer, inner) = match self.settings.challenge {
            AcmeChallenge::Http => (80, format!("port {}", self.settings.http_port)),
            AcmeChallenge::TlsAlpn => (443, "the console's port".to_owned()),
        };
        format!(
            "Port {outer} of {name} has to lead to {inner} of this machine, from where the authority is: look at DNS, the forwarding of the \
             router and firewalls."
        )
    }

    fn failure(&self, error: &Error) -> AcmeFailure {
        let directory = &self.settings.directory;
        match error {
            Error::Api(problem) if is_problem(problem, "rateLimited") => AcmeFailure {
                fact: format!("The authority wants no further order now: {}", said(problem)),
                next_step: "Nothing: it is asked again later. Each change of names counts there as an order.".to_owned(),
            },
            Error::Api(problem) if is_problem(problem, "externalAccountRequired") => AcmeFailure {
                fact: "The authority wants an account that was made elsewhere (external account binding).".to_owned(),
                next_step: "Choose an authority without; such accounts are not supported.".to_owned(),
            },
            Error::Api(problem) => AcmeFailure {
                fact: format!("The authority refuses: {}", said(problem)),
                next_step: "Change what it names ('sanbox certificate acme'), and try again ('sanbox certificate renew').".to_owned(),
            },
            Error::Timeout(_) => AcmeFailure {
                fact: format!("The authority was not done within {} s.", STEP_TIMEOUT.as_secs()),
                next_step: "Nothing: it is asked again later.".to_owned(),
            },
            Error::Json(_) => AcmeFailure {
                fact: format!("What {directory} answers is not ACME: {error}"),
                next_step: "The address has to be that of the directory, which authorities tell in their documents.".to_owned(),
            },
            Error::Other(why) => AcmeFailure {
                fact: format!("The authority does not answer: {why}"),
                next_step: format!(
                    "Look whether this machine reaches it ('curl {directory}'); one of your own needs its certificate as --ca-file."
                ),
            },
            _ => own_failure(&error.to_string()),
        }
    }
}

fn said(problem: &Problem) -> String {
    let detail = problem.detail.clone();
    detail.unwrap_or_else(|| problem.r#type.clone().unwrap_or_default())
}

fn own_failure(why: &str) -> AcmeFailure {
    AcmeFailure {
        fact: format!("No certificate came of the order: {why}"),
        next_step: "It is tried again later; the log of the daemon says more.".to_owned(),
    }
}

fn identifier(name: &str) -> Identifier {
    match name.parse::<IpAddr>() {
        Ok(address) => Identifier::Ip(address),
        Err(_) => Identifier::Dns(name.to_owned()),
    }
}

fn challenge_certificate(name: &str, digest: &[u8]) -> Result<CertifiedKey, String> {
    let made = certificate::for_challenge(name, digest).map_err(|error| error.to_string())?;
    let (certificate, key) = made;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key));
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let key = provider.key_provider.load_private_key(key);
    let key = key.map_err(|error| error.to_string())?;
    // Whether both go together is not asked: the extension of the challenge is critical, and no check of rustls knows it.
    Ok(CertifiedKey::new(
        vec![CertificateDer::from(certificate)],
        key,
    ))
}

/// Whether a chain can be served with a key.
fn check(certificates: &str, key: &str) -> Result<(), String> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let certified = certified_key(certificates, key, &provider);
    certified
        .map(drop)
        .map_err(|error| format!("the authority's answer: {error:#}"))
}
