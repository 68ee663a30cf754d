//! The certificate of the console: made at the first start into the state directory, or the administrator's own in the same files.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file of it cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// None can be made.
    #[error("making a certificate: {0}")]
    Make(#[from] rcgen::Error),
}

/// A certificate chain and its key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// Certificates, the server's first.
    pub certificates: String,
    /// Private key.
    pub key: String,
}

/// Returns the certificate in `directory`, made for `names` (DNS names and addresses) if there is none. The key is readable by its
/// owner only. A directory that cannot be written gives a certificate for this run alone.
///
/// # Errors
/// The files are there and cannot be read, or none can be made.
pub fn load_or_make(
    directory: &Path,
    names: Vec<String>,
) -> Result<CertificateFiles, CertificateError> {
    let (cert_path, key_path) = (
        directory.join("console-cert.pem"),
        directory.join("console-key.pem"),
    );
    if let (Some(certificates), Some(key)) = (read(&cert_path)?, read(&key_path)?) {
        return Ok(CertificateFiles { certificates, key });
    }
    let mut params = rcgen::CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "sanbox");
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let key = rcgen::KeyPair::generate()?;
    let made = CertificateFiles {
        certificates: params.self_signed(&key)?.pem(),
        key: key.serialize_pem(),
    };
    // A new one at each start is better than no console: the log shows its fingerprint.
    let _ = write(&key_path, &made.key).and_then(|()| write(&cert_path, &made.certificates));
    Ok(made)
}

/// Returns the SHA-256 fingerprint of a certificate as browsers show it: pairs of hexadecimal digits.
#[must_use]
pub fn fingerprint(der: &[u8]) -> String {
    let digest = Sha256::digest(der);
    let pairs: Vec<String> = digest.iter().map(|byte| format!("{byte:02X}")).collect();
    pairs.join(":")
}

fn read(path: &Path) -> Result<Option<String>, CertificateError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(CertificateError::Io {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Writes a file that is whole or not there.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn made_once_and_the_key_is_private() {
        let directory = tempfile::tempdir().expect("a directory");
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made = load_or_make(directory.path(), names.clone()).expect("a certificate");
        assert!(made.certificates.contains("BEGIN CERTIFICATE"));
        let again = load_or_make(directory.path(), names).expect("the same");
        assert_eq!(made, again);
        let key = fs::metadata(directory.path().join("console-key.pem")).expect("there");
        assert_eq!(key.permissions().mode() & 0o777, 0o600);
    }
}
