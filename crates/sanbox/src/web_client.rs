//! Requests to web servers: addresses, connections with TLS, single requests by hyper, and the fetch of a small document.
//!
//! Guarantees: an answer is bounded in bytes. One of [`fetch`] and [`post`] is bounded in time, too, and is zeroed when dropped: keys of
//! datasets come this way, which is why hyper, whose buffers are not zeroed, does not carry them. Nothing that was asked for with TLS
//! comes without it. Files of certificates are read by [`paths::call`], since they may lie on a mount of ours.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Bytes;
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

use crate::paths;

/// How long a fetch may take, redirections included.
// OpenZFS: lib/libzfs/libzfs_crypto.c, get_key_material_https (CURLOPT_TIMEOUT_MS)
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);
/// Redirections that are followed.
const REDIRECTIONS_MAX: u32 = 10;
/// Bytes of an answer, its head included.
const ANSWER_BYTES_MAX: usize = 80 << 10;
/// Bytes of certificates that are read from one file, and files of a directory.
const CERTIFICATE_BYTES_MAX: u64 = 4 << 20;
const CERTIFICATE_FILES_MAX: usize = 1024;
/// Where distributions keep the certificates that machines trust.
const TRUSTED: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// A connection, in the clear or not.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// The address of a document: `http://` or `https://`, host, port and path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    /// The connection is encrypted.
    pub(crate) tls: bool,
    /// Host and port as they were written.
    pub(crate) authority: String,
    /// Path and query, from the first `/` on.
    pub(crate) path: String,
}

impl Url {
    /// Takes an address apart.
    ///
    /// # Errors
    /// Another scheme, no host, a user's name in it, or letters that a request must not hold.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let (scheme, rest) = text.split_once("://").unwrap_or_default();
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => bail!("the URL begins neither with https:// nor with http://"),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(at);
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        ensure!(
            plain(authority) && plain(path),
            "the URL holds spaces or other letters than ASCII"
        );
        ensure!(!authority.contains('@'), "the URL holds the name of a user");
        let path = if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("/{path}")
        };
        let url = Self {
            tls,
            authority: authority.to_owned(),
            path,
        };
        ensure!(!url.host().is_empty(), "the URL names no host");
        Ok(url)
    }

    fn port(&self) -> Option<&str> {
        // The address of an IPv6 host stands in brackets.
        let end = self.authority.rfind(']').map_or(0, |at| at + 1);
        let after = self.authority.get(end..)?;
        after.rsplit_once(':').map(|(_, port)| port)
    }

    fn host(&self) -> &str {
        let port = self.port().map_or(0, |port| port.len() + 1);
        &self.authority[..self.authority.len() - port]
    }

    /// Host and port to connect to.
    pub(crate) fn server(&self) -> String {
        let of_scheme = if self.tls { "443" } else { "80" };
        let port = self.port().filter(|port| !port.is_empty());
        format!("{}:{}", self.host(), port.unwrap_or(of_scheme))
    }

    /// The address that a redirection from here leads to.
    fn join(&self, location: &str) -> anyhow::Result<Self> {
        if location.contains("://") {
            let url = Self::parse(location)?;
            ensure!(url.tls || !self.tls, "it redirects to where TLS is not");
            return Ok(url);
        }
        let scheme = if self.tls { "https" } else { "http" };
        if let Some(rest) = location.strip_prefix("//") {
            return Self::parse(&format!("{scheme}://{rest}"));
        }
        let folder = match location.strip_prefix('/') {
            Some(_) => "",
            None => self.path.rsplit_once('/').map_or("", |(folder, _)| folder),
        };
        let slash = if location.starts_with('/') { "" } else { "/" };
        let authority = &self.authority;
        Self::parse(&format!("{scheme}://{authority}{folder}{slash}{location}"))
    }
}

/// What is trusted, and what is shown to servers that ask for it. By default what the machine trusts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trust {
    /// Certificates of authorities, or of one server itself.
    pub(crate) file: Option<PathBuf>,
    /// A directory of such files.
    pub(crate) directory: Option<PathBuf>,
    /// The client's own certificate.
    pub(crate) certificate: Option<PathBuf>,
    /// Its key; by default it is in the file of the certificate.
    pub(crate) key: Option<PathBuf>,
}

impl Trust {
    /// Trusts the certificates of this file, if there is one.
    pub(crate) fn of_file(file: Option<&Path>) -> Self {
        Self {
            file: file.map(Path::to_owned),
            ..Self::default()
        }
    }

    async fn connector(&self) -> anyhow::Result<TlsConnector> {
        Ok(TlsConnector::from(self.client_config().await?))
    }

    /// Returns what connections with TLS are made by.
    ///
    /// # Errors
    /// The certificates cannot be read.
    pub(crate) async fn client_config(&self) -> anyhow::Result<Arc<ClientConfig>> {
        let trust = self.clone();
        let file = [&self.file, &self.directory, &self.certificate];
        let file = file.into_iter().flatten().next().cloned();
        let file = file.unwrap_or_else(|| PathBuf::from(TRUSTED[0]));
        let config = paths::call(&file, move || trust.config()).await;
        let config = config.map_err(anyhow::Error::msg)??;
        Ok(Arc::new(config))
    }

    /// Reads the files; for a thread that may wait.
    fn config(&self) -> anyhow::Result<ClientConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let (roots, only) = self.roots()?;
        let chains = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let verifier = Verifier {
            chains: chains.build().context("choosing what to trust")?,
            only,
            provider: provider.clone(),
        };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("choosing the versions of TLS")?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let Some(own) = &self.certificate else {
            return Ok(config.with_no_client_auth());
        };
        let chain = certificates(own)?;
        let key = read(self.key.as_ref().unwrap_or(own)).map(Zeroizing::new)?;
        let key = PrivateKeyDer::from_pem_slice(&key);
        let key = key.with_context(|| format!("{} holds no key", own.display()))?;
        let config = config.with_client_auth_cert(chain, key);
        config.with_context(|| format!("using the certificate {}", own.display()))
    }

    /// The certificates that are trusted, and the one of a file that was named and holds no other.
    fn roots(&self) -> anyhow::Result<(RootCertStore, Option<CertificateDer<'static>>)> {
        let trusted = || TRUSTED.iter().map(Path::new).find(|path| path.exists());
        let mut found = Vec::new();
        let mut only = None;
        if let Some(file) = &self.file {
            found = certificates(file)?;
            only = found.first().filter(|_| found.len() == 1).cloned();
        }
        if let Some(directory) = &self.directory {
            let entries = std::fs::read_dir(directory);
            let entries = entries.with_context(|| format!("reading {}", directory.display()))?;
            for entry in entries.take(CERTIFICATE_FILES_MAX) {
                // What is no file of certificates may lie there, too.
                found.extend(certificates(&entry?.path()).unwrap_or_default());
            }
        } else if self.file.is_none() {
            let file = trusted().context("this machine has no file of certificates to trust")?;
            found = certificates(file)?;
        }
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(found);
        ensure!(added > 0, "no certificate to trust is found");
        Ok((roots, only))
    }
}

/// Trusts chains that end in a known authority, and a server that shows the very certificate which alone was named as trusted: those
/// that people make for themselves are authorities and servers in one, and often name no host.
#[derive(Debug)]
struct Verifier {
    chains: Arc<WebPkiServerVerifier>,
    only: Option<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.only.as_ref().is_some_and(|only| only == shown) {
            return Ok(ServerCertVerified::assertion());
        }
        self.chains
            .verify_server_cert(shown, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
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

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    use std::io::Read as _;
    let reading = || format!("reading {}", path.display());
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).with_context(reading)?;
    let file = &mut file.take(CERTIFICATE_BYTES_MAX);
    file.read_to_end(&mut bytes).with_context(reading)?;
    Ok(bytes)
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let pem = read(path)?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(&pem).flatten().collect();
    ensure!(!found.is_empty(), "{} holds no certificate", path.display());
    Ok(found)
}

/// Begins TLS on a connection to `host`.
///
/// # Errors
/// The certificates cannot be read, or the server is not trusted.
pub(crate) async fn secured(
    stream: impl Stream + 'static,
    host: &str,
    trust: &Trust,
) -> anyhow::Result<Box<dyn Stream>> {
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
    let name = name.with_context(|| format!("'{host}' is no host"))?;
    let stream = trust.connector().await?.connect(name, stream).await;
    Ok(Box::new(stream.context("TLS")?))
}

/// Connects to the server of an address.
///
/// # Errors
/// Nothing answers there, or as [`secured`].
pub(crate) async fn connect(url: &Url, trust: &Trust) -> anyhow::Result<Box<dyn Stream>> {
    let server = url.server();
    let stream = TcpStream::connect(&server).await;
    let stream = stream.with_context(|| format!("connecting to {server}"))?;
    match url.tls {
        true => secured(stream, url.host(), trust).await,
        false => Ok(Box::new(stream)),
    }
}

/// Sends a request on a connection of its own, and returns the whole answer, of at most `bytes_max` bytes. Redirections are not followed;
/// how long it may take the caller decides.
///
/// # Errors
/// The request's address is none, or as [`connect`]; or the answer is too long or breaks off.
pub(crate) async fn exchange<B>(
    mut request: Request<B>,
    trust: &Trust,
    bytes_max: usize,
) -> anyhow::Result<Response<Bytes>>
where
    B: hyper::body::Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let url = Url::parse(&request.uri().to_string())?;
    let stream = connect(&url, trust).await?;
    let host = HeaderValue::from_str(&url.authority)?;
    request.headers_mut().insert(HOST, host);
    *request.uri_mut() = url.path.parse::<Uri>()?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let answering = async {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, bytes_max).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("reading the answer: {error}"))?;
        anyhow::Ok(Response::from_parts(head, body.to_bytes()))
    };
    let mut answering = std::pin::pin!(answering);
    tokio::select! {
        answer = &mut answering => answer,
        // The end of the connection may come with the end of the answer.
        ended = connection => {
            ended?;
            answering.await
        }
    }
}

/// Why a document was not fetched.
#[derive(Debug)]
pub(crate) enum FetchError {
    /// The server answered with this status.
    Status(u16),
    /// There is no answer, or none that can be read.
    Failed(String),
}

impl From<anyhow::Error> for FetchError {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(format!("{error:#}"))
    }
}

/// Fetches a document of at most 64 KiB, and follows redirections.
///
/// # Errors
/// [`FetchError`].
pub(crate) async fn fetch(address: &str, trust: &Trust) -> Result<Zeroizing<Vec<u8>>, FetchError> {
    let fetching = async {
        let mut url = Url::parse(address)?;
        for _ in 0..REDIRECTIONS_MAX {
            let answer = ask(&url, trust, None).await?;
            match (answer.status, &answer.location) {
                (200..=299, _) => return Ok(answer.body),
                // RFC 9110, 15.4: these lead to the same document elsewhere.
                (301 | 302 | 303 | 307 | 308, Some(location)) => url = url.join(location)?,
                (status, _) => return Err(FetchError::Status(status)),
            }
        }
        Err(FetchError::Failed("it redirects too often".to_owned()))
    };
    match timeout(FETCH_TIMEOUT, fetching).await {
        Ok(fetched) => fetched,
        Err(_) => Err(FetchError::Failed(format!(
            "no answer within {FETCH_TIMEOUT:?}"
        ))),
    }
}

/// A form that is posted, and what lets in there.
pub(crate) struct Form<'a> {
    /// Fields, as `application/x-www-form-urlencoded` has them.
    pub(crate) fields: Zeroizing<String>,
    /// The value of `Authorization`, if there is one.
    pub(crate) authorization: Option<&'a str>,
}

/// Posts a form, and returns the document of at most 64 KiB that it is answered with. Redirections are not followed.
///
/// # Errors
/// [`FetchError`].
pub(crate) async fn post(
    address: &str,
    form: &Form<'_>,
    trust: &Trust,
) -> Result<Zeroizing<Vec<u8>>, FetchError> {
    let url = Url::parse(address)?;
    let answer = timeout(FETCH_TIMEOUT, ask(&url, trust, Some(form))).await;
    let late = |_| FetchError::Failed(format!("no answer within {FETCH_TIMEOUT:?}"));
    let answer = answer.map_err(late)??;
    match answer.status {
        200..=299 => Ok(answer.body),
        status => Err(FetchError::Status(status)),
    }
}

struct Answer {
    status: u16,
    location: Option<String>,
    body: Zeroizing<Vec<u8>>,
}

async fn ask(url: &Url, trust: &Trust, form: Option<&Form<'_>>) -> anyhow::Result<Answer> {
    let mut stream = connect(url, trust).await?;
    let method = form.map_or("GET", |_| "POST");
    let mut request = Zeroizing::new(format!(
        "{method} {} HTTP/1.1\r\nhost: {}\r\nuser-agent: sanbox\r\naccept: */*\r\nconnection: close\r\n",
        url.path, url.authority
    ));
    if let Some(form) = form {
        let length = form.fields.len();
        request.push_str("content-type: application/x-www-form-urlencoded\r\n");
        request.push_str(&format!("content-length: {length}\r\n"));
        if let Some(authorization) = form.authorization {
            request.push_str(&format!("authorization: {authorization}\r\n"));
        }
    }
    request.push_str("\r\n");
    if let Some(form) = form {
        request.push_str(&form.fields);
    }
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    // It never grows, so that no copy of its bytes is left behind.
    let mut bytes = Zeroizing::new(vec![0; ANSWER_BYTES_MAX]);
    let mut filled = 0;
    loop {
        ensure!(filled < bytes.len(), "the answer is too long");
        let read = match stream.read(&mut bytes[filled..]).await {
            Ok(read) => read,
            // Without close_notify the end may be a cut: only what the length of the answer covers counts.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => bail!("cut off"),
            Err(error) => return Err(error.into()),
        };
        filled += read;
        if let Some(answer) = answer(&bytes[..filled], read == 0)? {
            return Ok(answer);
        }
        ensure!(read > 0, "the answer was cut off");
    }
}

/// Reads an answer (RFC 9112); `None` when more of it is to come. `ended` says that nothing more comes.
fn answer(bytes: &[u8], ended: bool) -> anyhow::Result<Option<Answer>> {
    let mut rest = bytes;
    let (status, lines) = loop {
        let Some(at) = rest.windows(4).position(|four| four == b"\r\n\r\n") else {
            return Ok(None);
        };
        let head = std::str::from_utf8(&rest[..at]).context("the answer is not one of HTTP")?;
        rest = &rest[at + 4..];
        let mut lines = head.split("\r\n");
        let mut first = lines.next().unwrap_or_default().split(' ');
        let (version, status) = (first.next().unwrap_or_default(), first.next());
        let status: Option<u16> = status.and_then(|status| status.parse().ok());
        let status = status.filter(|_| version.starts_with("HTTP/1."));
        match status.context("the answer is not one of HTTP")? {
            // RFC 9110, 15.2: another answer follows.
            100..=199 => {}
            status => break (status, lines),
        }
    };
    let field = |wanted: &str| {
        let fields = lines.clone().filter_map(|line| line.split_once(':'));
        let mut found = fields.filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
        found.next().map(|(_, value)| value.trim())
    };
    let location = field("location").map(str::to_owned);
    let body = if !(200..300).contains(&status) || status == 204 {
        Some(Zeroizing::default())
    } else if field("transfer-encoding")
        .is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"))
    {
        unchunked(rest)?
    } else if let Some(length) = field("content-length") {
        let length: usize = length.parse().context("the answer has no length")?;
        ensure!(length <= ANSWER_BYTES_MAX, "the answer is too long");
        rest.get(..length).map(|body| Zeroizing::new(body.to_vec()))
    } else {
        ended.then(|| Zeroizing::new(rest.to_vec()))
    };
    Ok(body.map(|body| Answer {
        status,
        location,
        body,
    }))
}

/// Joins the chunks of a body (RFC 9112, 7.1); `None` when more of it is to come.
fn unchunked(mut bytes: &[u8]) -> anyhow::Result<Option<Zeroizing<Vec<u8>>>> {
    // As long as what it is made of: it does not grow, either.
    let mut body = Zeroizing::new(Vec::with_capacity(bytes.len()));
    loop {
        let Some(at) = bytes.windows(2).position(|two| two == b"\r\n") else {
            return Ok(None);
        };
        let size = std::str::from_utf8(&bytes[..at]).unwrap_or_default();
        let size = size.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16).context("a chunk has no length")?;
        ensure!(size <= ANSWER_BYTES_MAX, "the answer is too long");
        let (from, end) = (at + 2, at + 2 + size);
        if size == 0 {
            return Ok(Some(body));
        }
        let Some(rest) = bytes.get(end + 2..) else {
            return Ok(None);
        };
        body.extend_from_slice(&bytes[from..end]);
        bytes = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        let server = |text: &str| Url::parse(text).map(|url| url.server()).unwrap_or_default();
        assert_eq!(server("https://box/key"), "box:443");
        assert_eq!(server("HTTP://box:81"), "box:81");
        assert_eq!(server("http://[::1]/key"), "[::1]:80");
        assert_eq!(server("https://[::1]:8443/key"), "[::1]:8443");
        for refused in [
            "https://",
            "https://:1/",
            "ftp://box/",
            "https://user@box/",
            "http://box/a b",
            "box",
        ] {
            assert!(Url::parse(refused).is_err(), "{refused}");
        }
        let from = Url::parse("https://box/a/b?c").expect("an address");
        let joined = |to: &str| from.join(to).map(|url| url.authority + &url.path);
        assert_eq!(joined("/x").ok().as_deref(), Some("box/x"));
        assert_eq!(joined("x").ok().as_deref(), Some("box/a/x"));
        assert_eq!(joined("//other/x").ok().as_deref(), Some("other/x"));
        assert!(joined("http://box/x").is_err(), "TLS is given up");
    }

    #[test]
    fn answers_are_read_whole_or_not_at_all() {
        let read = |text: &str, ended| {
            let answer = answer(text.as_bytes(), ended).map_err(|error| error.to_string())?;
            Ok::<_, String>(answer.map(|answer| (answer.status, answer.body.to_vec())))
        };
        let ok = |body: &str| Ok(Some((200, body.as_bytes().to_vec())));
        let length = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n";
        assert_eq!(read(length, false), Ok(None));
        assert_eq!(read(&format!("{length}secretly"), false), ok("secr"));
        assert_eq!(read("HTTP/1.0 200 OK\r\n\r\nsecret", false), Ok(None));
        assert_eq!(read("HTTP/1.0 200 OK\r\n\r\nsecret", true), ok("secret"));
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n3;x=y\r\nsec\r\n";
        assert_eq!(read(chunked, false), Ok(None));
        assert_eq!(
            read(&format!("{chunked}3\r\nret\r\n0\r\n\r\n"), false),
            ok("secret")
        );
        let early = format!("HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n{length}abcd");
        assert_eq!(read(&early, false), ok("abcd"));
        assert_eq!(
            read("HTTP/1.1 404 No\r\n\r\n", false),
            Ok(Some((404, Vec::new())))
        );
        for hostile in [
            "SSH-2.0-OpenSSH\r\n\r\n",
            "HTTP/1.1 abc\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        ] {
            assert!(read(hostile, true).is_err(), "{hostile}");
        }
    }
}
