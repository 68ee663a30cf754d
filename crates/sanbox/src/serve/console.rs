//! HTTPS: the socket of the REST API and of the console in the browser.
//!
//! Guarantees: connections at once are bounded, as a whole and for one client; one that sends no request, or takes no answer, is
//! closed. Where all are taken one without a request ends for another, so that idle ones keep no browser out. A state directory that
//! cannot be written, or a port that is taken, is logged and stops nothing else. A certificate that was replaced, or is to be renewed,
//! is in use soon without a restart; connections that are open stay.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use manage::api::{self, Api, Peer};
use manage::certificate::{self, CertificateError, CertificateFiles};
use manage::config::Config;
use manage::database::seconds_since_epoch;
use manage::jobs::{Jobs, Notice};
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::acme::challenges::{ACME_TLS, Challenges, is_for_challenge};
use crate::appliance::Appliance;
use crate::certified::certified_key;
use crate::logging::CONSOLE;
use crate::otel;
use crate::serve::admission::{Admission, AdmissionLimits, ConnectionPermit, WorkUnderWay};
use crate::serve::redirect;

/// How long a client may take for the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may be without a request, or a request's head be on its way.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a client may take nothing of an answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the files of the certificate are looked at.
const CERTIFICATE_EVERY: Duration = Duration::from_secs(5);
/// How often the events of the pools are passed on.
const EVENTS_EVERY: Duration = Duration::from_millis(500);
/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// Connections of one client, as a share of all: a browser needs six.
const CLIENT_SHARE: usize = 4;

/// Serves the console until the task is ended; returns when it cannot.
pub(crate) async fn serve(appliance: Arc<Appliance>, api: Arc<Api>) {
    if let Err(error) = run(&appliance, api).await {
        tracing::error!(target: CONSOLE, "no console: {error:#}");
    }
}

async fn run(appliance: &Arc<Appliance>, api: Arc<Api>) -> anyhow::Result<()> {
    let config = appliance.config();
    let addresses = addresses(config);
    let mut listeners = Vec::new();
    for address in &addresses {
        match TcpListener::bind(address).await {
            Ok(listener) => listeners.push(listener),
            // A machine without IPv6 has no such loopback.
            Err(error) if config.listen.is_empty() && address.is_ipv6() => {
                let _ = error;
            }
            Err(error) => {
                tracing::error!(target: CONSOLE, "no console at {address}: {error}");
            }
        }
    }
    if listeners.is_empty() {
        return Ok(());
    }
    let files = certificate_files(appliance, &addresses)?;
    let challenges = appliance.acme().challenges().clone();
    let (tls, fingerprint) = tls(&files, &challenges)?;
    let renewal = CertificateRenewal {
        appliance: Arc::downgrade(appliance),
        addresses,
        files,
    };
    let token = match api.accounts.needs_setup() {
        true => Some(api.accounts.new_setup_token(seconds_since_epoch()).await?),
        false => None,
    };
    announce(&listeners, token.as_deref(), &fingerprint);
    let jobs = api.jobs.clone();
    let server = Arc::new(ConsoleServer {
        tls: RwLock::new(tls),
        challenges,
        router: api::router(api),
        admission: Admission::new(admission_limits(config.console.connections_max)),
    });
    let accepting = listeners
        .into_iter()
        .map(|listener| accept(listener, server.clone()));
    let publishing = publish_events(Arc::downgrade(appliance), jobs);
    let accepting = futures_util::future::join_all(accepting);
    tokio::join!(accepting, publishing, renewal.run(&server));
    Ok(())
}

/// Puts a certificate that has taken the place of the one in use to use, and has the one made here renewed in time.
struct CertificateRenewal {
    appliance: Weak<Appliance>,
    addresses: Vec<SocketAddr>,
    /// The certificate in use.
    files: CertificateFiles,
}

impl CertificateRenewal {
    async fn run(mut self, server: &ConsoleServer) {
        let mut told = None;
        loop {
            sleep(CERTIFICATE_EVERY).await;
            let Some(appliance) = self.appliance.upgrade() else {
                return;
            };
            let addresses = self.addresses.clone();
            // A state disk that hangs holds up nothing else.
            let load = move || certificate_files(&appliance, &addresses);
            let error = match tokio::task::spawn_blocking(load).await {
                // Where none can be stored, another one is made at each look: clients keep that which they know.
                Ok(Ok(files)) if !files.is_stored || files == self.files => None,
                Ok(Ok(files)) => self.replace(files, server).err(),
                Ok(Err(error)) => Some(error.into()),
                Err(error) => Some(error.into()),
            };
            let error = error.map(|error| format!("{error:#}"));
            if let Some(error) = error.as_ref().filter(|error| told.as_ref() != Some(*error)) {
                tracing::warn!(target: CONSOLE, "the certificate before stays in use: {error}");
            }
            told = error;
        }
    }

    /// Puts another certificate to use. One that does not go with its key is perhaps replaced by halves.
    fn replace(&mut self, files: CertificateFiles, server: &ConsoleServer) -> anyhow::Result<()> {
        let (tls, fingerprint) = tls(&files, &server.challenges)?;
        *server.tls.write().unwrap_or_else(PoisonError::into_inner) = tls;
        tracing::info!(
            target: CONSOLE,
            "another certificate is in use, with the SHA-256 fingerprint {fingerprint}"
        );
        self.files = files;
        Ok(())
    }
}

/// Passes the events of the pools on to the clients that follow, from now on.
async fn publish_events(appliance: Weak<Appliance>, jobs: Arc<Jobs>) {
    let mut seen = None;
    loop {
        {
            let Some(appliance) = appliance.upgrade() else {
                return;
            };
            let events = appliance.engine().events().after(seen.unwrap_or(0));
            let first = seen.is_none();
            seen = Some(events.last().map_or(seen.unwrap_or(0), |(id, _)| *id));
            // What was before is in the lists that a client reads.
            for (id, event) in events.iter().filter(|_| !first) {
                let data = serde_json::json!({
                    "id": id,
                    "class": event.str("class"),
                    "pool": event.str("pool"),
                });
                jobs.publish(Notice {
                    event: "pool",
                    data: data.to_string(),
                });
            }
        }
        sleep(EVENTS_EVERY).await;
    }
}

/// Where to listen: as chosen, or at this machine alone.
fn addresses(config: &Config) -> Vec<SocketAddr> {
    let loopback = [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ];
    let chosen = match config.listen.as_slice() {
        [] => &loopback,
        chosen => chosen,
    };
    let port = config.console.port;
    chosen
        .iter()
        .map(|address| SocketAddr::new(*address, port))
        .collect()
}

/// Says where the console is, how to set it up, and by what the browser knows it.
fn announce(listeners: &[TcpListener], token: Option<&str>, fingerprint: &str) {
    let at = listeners.first().and_then(|known| known.local_addr().ok());
    let Some(mut at) = at else {
        return;
    };
    if at.ip().is_unspecified() {
        at.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    match token {
        // Behind '#': browsers send that part to no one.
        Some(token) => tracing::warn!(
            target: CONSOLE,
            "no owner yet: set up the console at https://{at}/setup#{token} (valid until it is used)"
        ),
        None => tracing::info!(target: CONSOLE, "console at https://{at}/"),
    }
    tracing::info!(
        target: CONSOLE,
        "its certificate has the SHA-256 fingerprint {fingerprint}"
    );
}

/// The certificate of the state directory, made for these addresses if need be.
fn certificate_files(
    appliance: &Appliance,
    addresses: &[SocketAddr],
) -> Result<CertificateFiles, CertificateError> {
    let names = certificate_names(appliance, addresses.iter().map(SocketAddr::ip));
    certificate::load_or_make(appliance.state().path(), names, seconds_since_epoch())
}

/// What clients call an appliance that is served at these addresses.
pub(super) fn certificate_names(
    appliance: &Appliance,
    addresses: impl IntoIterator<Item = IpAddr>,
) -> Vec<String> {
    let mut names = vec![
        "localhost".to_owned(),
        Ipv4Addr::LOCALHOST.to_string(),
        Ipv6Addr::LOCALHOST.to_string(),
    ];
    names.extend(appliance.host_name());
    for address in addresses {
        let name = address.to_string();
        if !address.is_unspecified() && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Shows the console's certificate, and to an authority that of a challenge.
#[derive(Debug)]
struct ShownCertificates {
    own: Arc<CertifiedKey>,
    challenges: Arc<Challenges>,
}

impl ResolvesServerCert for ShownCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if is_for_challenge(&hello) {
            return self.challenges.certificate(&hello);
        }
        Some(self.own.clone())
    }
}

/// What serves TLS with a certificate, and the certificate's fingerprint.
fn tls(
    files: &CertificateFiles,
    challenges: &Arc<Challenges>,
) -> anyhow::Result<(TlsAcceptor, String)> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let own = certified_key(&files.certificates, &files.key, &provider)
        .context("console-cert.pem and console-key.pem")?;
    let first = own.cert.first();
    let fingerprint = certificate::fingerprint(first.expect("a chain that is not empty"));
    let shown = ShownCertificates {
        own: Arc::new(own),
        challenges: challenges.clone(),
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("choosing the versions of TLS")?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(shown));
    config.alpn_protocols = vec![b"http/1.1".to_vec(), ACME_TLS.to_vec()];
    Ok((TlsAcceptor::from(Arc::new(config)), fingerprint))
}

/// One client cannot take all connections.
fn admission_limits(connections_max: usize) -> AdmissionLimits {
    let connections_max = connections_max.max(CLIENT_SHARE);
    AdmissionLimits {
        connections_max,
        client_max: connections_max / CLIENT_SHARE,
        replaces_idle: true,
        ..AdmissionLimits::default()
    }
}

/// What the connections share.
struct ConsoleServer {
    tls: RwLock<TlsAcceptor>,
    challenges: Arc<Challenges>,
    router: axum::Router,
    admission: Arc<Admission>,
}

impl ConsoleServer {
    fn tls(&self) -> TlsAcceptor {
        self.tls
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

async fn accept(listener: TcpListener, server: Arc<ConsoleServer>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // One too many is turned away.
                if let Some(permit) = server.admission.admit(Some(peer.ip())) {
                    let (server, permit) = (server.clone(), Arc::new(permit));
                    tokio::spawn(async move {
                        tokio::select! {
                            () = connection(stream, peer, &server, &permit) => {}
                            () = permit.evicted() => {}
                        }
                    });
                }
            }
            // No descriptor is left: others may close theirs.
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    server: &ConsoleServer,
    permit: &Arc<ConnectionPermit>,
) {
    let _ = stream.set_nodelay(true);
    let mut first = [0];
    match timeout(HANDSHAKE_TIMEOUT, stream.peek(&mut first)).await {
        Ok(Ok(1)) if redirect::is_plain(first[0]) => {
            // A broken connection is the client's affair.
            let _ = timeout(
                HANDSHAKE_TIMEOUT,
                redirect::answer(stream, &server.challenges, None),
            )
            .await;
            return;
        }
        Ok(Ok(1)) => {}
        _ => return,
    }
    let stream = WatchedStream {
        stream,
        stalled: None,
    };
    let handshake = timeout(HANDSHAKE_TIMEOUT, server.tls().accept(stream));
    let Ok(Ok(stream)) = handshake.await else {
        return;
    };
    // RFC 8737, 3: the handshake was all that the authority came for.
    if stream.get_ref().1.alpn_protocol() == Some(ACME_TLS) {
        return;
    }
    let service = server
        .router
        .clone()
        .layer(from_fn(otel::traced))
        .layer(axum::Extension(Peer(peer)))
        .layer(from_fn_with_state(permit.clone(), counted));
    // A broken connection is the client's affair.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
        .await;
}

/// Keeps a connection from being ended for another one until the answer has gone out.
async fn counted(
    State(permit): State<Arc<ConnectionPermit>>,
    request: Request,
    next: Next,
) -> Response {
    permit.note_request();
    let work = permit.begin_work();
    let answer = next.run(request).await;
    answer.map(|body| {
        Body::new(CountedBody {
            body,
            permit,
            _work: work,
        })
    })
}

/// The body of an answer, while which the connection has work under way.
struct CountedBody {
    body: Body,
    permit: Arc<ConnectionPermit>,
    _work: WorkUnderWay,
}

impl hyper::body::Body for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for CountedBody {
    fn drop(&mut self) {
        // What is left of a long answer is on its way: this connection is not the one that has been silent longest.
        self.permit.note_request();
    }
}

/// A connection that breaks when the client takes nothing for a while.
struct WatchedStream {
    stream: TcpStream,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl WatchedStream {
    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.stalled = None;
            return polled;
        }
        let deadline = || Box::pin(tokio::time::sleep_until(Instant::now() + WRITE_TIMEOUT));
        let stalled = self.stalled.get_or_insert_with(deadline);
        stalled
            .as_mut()
            .poll(context)
            .map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(context, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch(context, polled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_console_is_for_this_machine_unless_addresses_are_chosen() {
        let mut config = Config::default();
        assert!(addresses(&config).iter().all(|at| at.ip().is_loopback()));
        config.listen = vec!["192.0.2.1".parse().expect("an address")];
        assert_eq!(
            addresses(&config),
            vec!["192.0.2.1:8443".parse().expect("one")]
        );
    }
}
