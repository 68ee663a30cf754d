//! The sockets and the TLS of replication between appliances, whose protocol is `manage::peer`: this appliance's identity, connections to
//! peers, and what their connections are checked by.
//!
//! TLS 1.3 alone, both sides show a certificate, and what counts of it is its SHA-256: no authority, no name and no date. Sessions are not
//! resumed, so that each connection proves the key anew.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use manage::database::seconds_since_epoch;
use manage::peer::message::{PROTOCOL, Paired};
use manage::peer::pairing::Code;
use manage::peer::{
    BoxedLink, Connector, Fingerprint, Identity, PeerBook, PeerEndpoint, PeerLinks, pair,
};
use manage::replication::{Job, Location, RemoteEndpoint, ReplicationError, Switchover};
use manage::state::StateDirectory;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, PeerIncompatible,
    ServerConfig, SignatureScheme,
};
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Bytes that are read from a connection at once, or written to it: TLS by itself reads 4 KiB, and writes 64 KiB.
pub(crate) const TRANSFER_BYTES: usize = 256 << 10;

/// How long a connection may take, and its handshake.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// What this appliance shows of itself.
pub(crate) struct OwnIdentity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    /// By what others know it.
    pub(crate) fingerprint: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl OwnIdentity {
    /// Reads it from the state directory, or makes it there; for a thread that may wait.
    fn load(state: &StateDirectory) -> anyhow::Result<Self> {
        let files = Identity::load_or_make(state.path())?;
        let certificate = CertificateDer::from_pem_slice(files.certificate.as_bytes());
        let certificate = certificate.context("reading replication-identity.pem")?;
        let key = PrivateKeyDer::from_pem_slice(files.key.as_bytes());
        Ok(Self {
            fingerprint: Fingerprint::of(&certificate),
            key: key.context("reading replication-identity.pem")?,
            certificate,
            provider: Arc::new(rustls::crypto::aws_lc_rs::default_provider()),
        })
    }

    /// What connects to the appliance that has this certificate; to any, for a pairing.
    fn client(&self, expected: Option<Fingerprint>) -> anyhow::Result<TlsConnector> {
        let verifier = Known {
            expected,
            provider: self.provider.clone(),
        };
        let config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let chain = vec![self.certificate.clone()];
        let mut config = config.with_client_auth_cert(chain, self.key.clone_key())?;
        config.alpn_protocols = vec![PROTOCOL.as_bytes().to_vec()];
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        Ok(TlsConnector::from(Arc::new(config)))
    }

    /// What lets peers in, and others while an invitation waits.
    pub(crate) fn server(&self, book: &Arc<PeerBook>) -> anyhow::Result<ServerConfig> {
        let verifier = Welcome {
            book: book.clone(),
            provider: self.provider.clone(),
        };
        let config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(Arc::new(verifier));
        let chain = vec![self.certificate.clone()];
        let mut config = config.with_single_cert(chain, self.key.clone_key())?;
        config.alpn_protocols = vec![PROTOCOL.as_bytes().to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

/// Trusts the certificate of one peer.
#[derive(Debug)]
struct Known {
    /// `None` for a pairing, in which the code proves whose it is.
    expected: Option<Fingerprint>,
    provider: Arc<CryptoProvider>,
}

/// Trusts the certificates of peers.
#[derive(Debug)]
struct Welcome {
    book: Arc<PeerBook>,
    provider: Arc<CryptoProvider>,
}

/// No side speaks TLS 1.2.
fn no_tls12() -> Result<HandshakeSignatureValid, rustls::Error> {
    Err(PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig.into())
}

impl ServerCertVerifier for Known {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let is_known = |known| known == Fingerprint::of(shown);
        match self.expected.is_none_or(is_known) {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let known = &self.provider.signature_verification_algorithms;
        known.supported_schemes()
    }
}

impl ClientCertVerifier for Welcome {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let shown = Fingerprint::of(shown);
        match self.book.is_welcome(&shown, seconds_since_epoch()) {
            true => Ok(ClientCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let known = &self.provider.signature_verification_algorithms;
        known.supported_schemes()
    }
}

/// Connects to `HOST:PORT`; returns the connection and the certificate that is shown there.
///
/// # Errors
/// Nothing answers there, or something else does: in words.
async fn connect(
    own: &OwnIdentity,
    address: &str,
    expected: Option<Fingerprint>,
) -> Result<(BoxedLink, Fingerprint), String> {
    let connector = own.client(expected);
    let connector = connector.map_err(|error| format!("{error:#}"))?;
    let opened = timeout(HANDSHAKE_TIMEOUT, TcpStream::connect(address)).await;
    let stream = match opened {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(format!("{address}: {error}")),
        Err(_) => return Err(format!("{address}: no answer")),
    };
    let stream = settled(stream);
    // The name is not looked at.
    let name = ServerName::try_from("replication.sanbox").map_err(|error| error.to_string())?;
    let shaken = timeout(HANDSHAKE_TIMEOUT, connector.connect(name, stream)).await;
    let mut stream = match shaken {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            let is_other = error
                .get_ref()
                .and_then(|inner| inner.downcast_ref::<rustls::Error>())
                .is_some_and(|inner| matches!(inner, rustls::Error::InvalidCertificate(_)));
            return Err(match is_other {
                true => format!(
                    "{address} has another certificate than the peer that was paired: if it was set up anew, pair it again ('sanbox peer add')"
                ),
                false => format!("{address}: TLS: {error}"),
            });
        }
        Err(_) => return Err(format!("{address}: no answer to TLS")),
    };
    stream.get_mut().1.set_buffer_limit(Some(TRANSFER_BYTES));
    let shown = stream.get_ref().1.peer_certificates();
    let shown = shown
        .and_then(|chain| chain.first())
        .map(|own| Fingerprint::of(own));
    match shown {
        Some(shown) => Ok((Box::new(stream), shown)),
        None => Err(format!("{address} shows no certificate")),
    }
}

/// What is set of each connection: small requests go at once, a link that is gone is noticed in the end, and what comes fast is read in large
/// pieces.
pub(crate) fn settled(stream: TcpStream) -> BufReader<TcpStream> {
    // Both are improvements only.
    let _ = stream.set_nodelay(true);
    let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
    BufReader::with_capacity(TRANSFER_BYTES, stream)
}

/// The peers of this appliance, as its commands, its jobs and its server use them.
pub(crate) struct PeerService {
    state: StateDirectory,
    book: Arc<PeerBook>,
    own: Arc<OnceLock<Arc<OwnIdentity>>>,
    links: OnceLock<Arc<PeerLinks>>,
    /// Where peers are answered, or why not; `None` while it is not needed.
    pub(crate) listening: watch::Sender<Option<Result<Vec<SocketAddr>, String>>>,
}

impl PeerService {
    /// Returns the peers of a state directory; nothing is read yet.
    pub(crate) fn new(state: &StateDirectory) -> Arc<Self> {
        Arc::new(Self {
            state: state.clone(),
            book: PeerBook::new(state.path()),
            own: Arc::default(),
            links: OnceLock::new(),
            listening: watch::Sender::new(None),
        })
    }

    /// The peers that are known, and the invitations.
    pub(crate) fn book(&self) -> &Arc<PeerBook> {
        &self.book
    }

    /// Returns the side of a job that is on another machine; the dataset, where it is in a pool of this one.
    pub(crate) fn endpoint_elsewhere(
        self: &Arc<Self>,
        job: &Job,
        location: Location,
    ) -> Result<Box<dyn Switchover>, String> {
        Ok(match location {
            Location::Ssh { host, .. } => Box::new(RemoteEndpoint::new(&host, &job.ssh)),
            Location::Peer { peer, dataset } => {
                // What a job's file says wrong was refused before.
                let compression = job.compression().unwrap_or_default();
                let links = self.links().clone();
                Box::new(PeerEndpoint::new(links, &peer, &dataset, compression))
            }
            Location::Local(dataset) => return Err(dataset),
        })
    }

    /// Connections to the peers.
    pub(crate) fn links(self: &Arc<Self>) -> &Arc<PeerLinks> {
        self.links
            .get_or_init(|| PeerLinks::new(Box::new(PeerConnector(Arc::downgrade(self)))))
    }

    /// What this appliance shows of itself, made at the first time.
    ///
    /// # Errors
    /// It can be neither read nor made: in words.
    pub(crate) async fn own(&self) -> Result<Arc<OwnIdentity>, String> {
        if let Some(own) = self.own.get() {
            return Ok(own.clone());
        }
        let (state, kept) = (self.state.clone(), self.own.clone());
        // The state directory may be slow to answer.
        let load = move || -> anyhow::Result<Arc<OwnIdentity>> {
            let own = Arc::new(OwnIdentity::load(&state)?);
            Ok(kept.get_or_init(|| own).clone())
        };
        let loaded = tokio::task::spawn_blocking(load).await;
        let loaded = loaded.map_err(|error| error.to_string())?;
        loaded.map_err(|error| format!("{error:#}"))
    }

    /// Redeems the code of an invitation at `address`; returns what is granted there, and the certificate of who made the code.
    ///
    /// # Errors
    /// In words.
    pub(crate) async fn pair(
        &self,
        address: &str,
        code: &Code,
        calls_itself: &str,
    ) -> Result<(Paired, Fingerprint), String> {
        let own = self.own().await?;
        let (link, shown) = connect(&own, address, None).await?;
        let paired = pair(link, code, (&shown, &own.fingerprint), calls_itself).await;
        Ok((paired?, shown))
    }
}

/// Connects to the peers of an appliance.
struct PeerConnector(std::sync::Weak<PeerService>);

impl Connector for PeerConnector {
    fn connect<'a>(&'a self, peer: &'a str) -> BoxFuture<'a, Result<BoxedLink, ReplicationError>> {
        async move {
            let failed = |why: String| ReplicationError::Failed(why);
            let service = self.0.upgrade();
            let service = service.ok_or_else(|| failed("the appliance is ending".to_owned()))?;
            let peers = service.book.peers();
            let peers = peers.map_err(|error| failed(error.to_string()))?;
            let known = peers.named(peer).map_err(|error| failed(error.to_string()))?;
            if known.address.is_empty() {
                return Err(failed(format!(
                    "peer '{peer}' has no address: it was invited and comes here; it has the job, or is paired in the other direction, too"
                )));
            }
            let own = service.own().await.map_err(failed)?;
            let connected = connect(&own, &known.address, Some(known.certificate)).await;
            let unreachable = |why| ReplicationError::Unreachable {
                place: format!("peer '{peer}'"),
                why,
            };
            Ok(connected.map_err(unreachable)?.0)
        }
        .boxed()
    }
}
