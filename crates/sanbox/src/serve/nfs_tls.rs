//! TLS of NFS (RFC 9289): handshakes on connections whose client asked for it by RPC.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use manage::certificate::{self, CertificateFiles};
use manage::database::seconds_since_epoch;
use nfs::TransportSecurity;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::SingleCertAndKey;
use rustls::version::TLS13;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::certified::certified_key;

/// RFC 9289, section 8.2.
const ALPN: &[u8] = b"sunrpc";
/// How long a client may take for the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The certificate of the console, shown to clients of NFS, and the authorities of their own.
pub(crate) struct NfsTls {
    /// The state directory.
    directory: PathBuf,
    names: Vec<String>,
    /// Certificates of the authorities whose clients are known, in PEM; without them no client is asked for a certificate.
    authorities: Option<PathBuf>,
    /// The certificate of this run, where none can be stored.
    unstored: OnceLock<CertificateFiles>,
}

impl NfsTls {
    /// Returns what makes and shows the certificate in `directory`, which is made for `names` if there is none.
    pub(crate) fn new(
        directory: PathBuf,
        names: Vec<String>,
        authorities: Option<PathBuf>,
    ) -> Arc<Self> {
        Arc::new(Self {
            directory,
            names,
            authorities,
            unstored: OnceLock::new(),
        })
    }

    /// Does the handshake.
    ///
    /// # Errors
    /// The client's, that the certificate or the authorities cannot be read, and that it takes too long.
    pub(crate) async fn accept(
        self: &Arc<Self>,
        stream: TcpStream,
    ) -> io::Result<(TlsStream<TcpStream>, TransportSecurity)> {
        // Read each time: a mount is rare, and the certificate may be a new one.
        let own = Arc::clone(self);
        let config = spawn_blocking(move || own.config()).await;
        let config = config.map_err(io::Error::other)?;
        let config = config.map_err(|error| io::Error::other(format!("{error:#}")))?;
        let handshake = TlsAcceptor::from(Arc::new(config)).accept(stream);
        let stream = timeout(HANDSHAKE_TIMEOUT, handshake).await??;
        let security = match stream.get_ref().1.peer_certificates() {
            Some([_, ..]) => TransportSecurity::MutualTls,
            _ => TransportSecurity::Tls,
        };
        Ok((stream, security))
    }

    fn config(&self) -> anyhow::Result<ServerConfig> {
        let names = self.names.clone();
        let files = certificate::load_or_make(&self.directory, names, seconds_since_epoch())?;
        let files = match files.is_stored {
            true => &files,
            false => self.unstored.get_or_init(|| files),
        };
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let own = certified_key(&files.certificates, &files.key, &provider)
            .context("console-cert.pem and console-key.pem")?;
        // RFC 9289, section 5: no earlier version.
        let config = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .context("choosing the version of TLS")?;
        let config = match &self.authorities {
            None => config.with_no_client_auth(),
            Some(path) => {
                let reading = || format!("reading {} ([nfs] tls_clients)", path.display());
                let mut roots = RootCertStore::empty();
                for authority in CertificateDer::pem_file_iter(path).with_context(reading)? {
                    let authority = authority.with_context(reading)?;
                    roots.add(authority).with_context(reading)?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                // Which shares want one, their `xprtsec` says.
                let verifier = verifier.allow_unauthenticated();
                config.with_client_cert_verifier(verifier.build().with_context(reading)?)
            }
        };
        let own = SingleCertAndKey::from(own);
        let mut config = config.with_cert_resolver(Arc::new(own));
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(config)
    }
}
