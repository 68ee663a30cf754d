//! A chain of certificates and its key, read to be shown by TLS.

use anyhow::{Context as _, ensure};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// Reads a chain and the key of its first certificate, both in PEM.
///
/// # Errors
/// Either cannot be read, the chain is empty, or the key is that of another certificate.
pub(crate) fn certified_key(
    certificates: &str,
    key: &str,
    provider: &CryptoProvider,
) -> anyhow::Result<CertifiedKey> {
    let chain = CertificateDer::pem_slice_iter(certificates.as_bytes());
    let chain: Vec<CertificateDer<'static>> = chain
        .collect::<Result<_, _>>()
        .context("reading the certificate")?;
    ensure!(!chain.is_empty(), "there is no certificate");
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).context("reading the key")?;
    CertifiedKey::from_der(chain, key, provider).context("using the certificate with the key")
}
