//! By what an appliance is known to others: a key, and a certificate of it that it made itself, in the state directory. They stay the same as
//! long as that does: those that were paired with it know the certificate by its SHA-256, and nothing else of it counts.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::certificate::CertificateError;
use crate::secret::{SecretHash, hex, unhex};
use crate::state::replace_file;

/// The SHA-256 of a certificate: by this a peer is known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint(pub SecretHash);

impl Fingerprint {
    /// Returns that of a certificate in DER.
    #[must_use]
    pub fn of(certificate: &[u8]) -> Self {
        Self(Sha256::digest(certificate).into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

impl FromStr for Fingerprint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("'{text}' is no fingerprint: 64 hexadecimal digits");
        unhex(text).map(Self).ok_or_else(unknown)
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.to_string()
    }
}

/// The key and the certificate of an appliance, in PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

impl Identity {
    /// Returns what the state directory has, made at the first time. It is on the disk when this returns, readable by its owner only.
    ///
    /// # Errors
    /// The file cannot be read or written, or holds something else; no key can be made.
    pub fn load_or_make(state: &Path) -> Result<Self, CertificateError> {
        let path = state.join("replication-identity.pem");
        match fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text).ok_or_else(|| CertificateError::Io {
                path,
                source: io::Error::new(
                    io::ErrorKind::InvalidData,
                    "it holds no key and certificate; without the file another is made, and all peers have to be paired anew",
                ),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = Self::make()?;
                let written = made.write(&path);
                written.map_err(|source| CertificateError::Io { path, source })?;
                Ok(made)
            }
            Err(source) => Err(CertificateError::Io { path, source }),
        }
    }

    fn make() -> Result<Self, CertificateError> {
        let mut params = rcgen::CertificateParams::new(vec!["replication.sanbox".to_owned()])?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "sanbox replication");
        // No side looks at these times: clocks may be wrong, and who is known stays known until it is removed.
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        // RFC 5280, 4.1.2.5: "the GeneralizedTime value of 99991231235959Z" is for certificates without an end.
        params.not_after = rcgen::date_time_ymd(9999, 12, 31);
        let key = rcgen::KeyPair::generate()?;
        Ok(Self {
            certificate: params.self_signed(&key)?.pem(),
            key: key.serialize_pem(),
        })
    }

    /// Takes the two parts of the file apart.
    fn parse(text: &str) -> Option<Self> {
        let at = text.find("-----BEGIN PRIVATE KEY-----")?;
        let (certificate, key) = text.split_at(at);
        let is_certificate = certificate.starts_with("-----BEGIN CERTIFICATE-----");
        (is_certificate && key.contains("-----END PRIVATE KEY-----")).then(|| Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
        })
    }

    /// Writes both in one file: no power cut parts a key from its certificate.
    fn write(&self, path: &Path) -> io::Result<()> {
        replace_file(path, format!("{}{}", self.certificate, self.key).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn an_identity_is_made_once_and_its_file_is_private() {
        let directory = tempfile::tempdir().expect("a directory");
        let load = || Identity::load_or_make(directory.path());
        let made = load().expect("made");
        let read = load().expect("read");
        assert_eq!(
            (&read.certificate, &read.key),
            (&made.certificate, &made.key)
        );
        assert!(!format!("{read:?}").contains("PRIVATE"));
        let path = directory.path().join("replication-identity.pem");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(&path, &made.certificate).expect("written");
        let error = load().expect_err("refused").to_string();
        assert!(error.contains("paired anew"), "{error}");
    }

    #[test]
    fn fingerprints_are_read_as_they_are_written() {
        let one = Fingerprint::of(b"a certificate");
        assert_eq!(one.to_string().parse(), Ok(one));
        for text in ["", "12", &"z".repeat(64)] {
            assert!(text.parse::<Fingerprint>().is_err(), "{text}");
        }
    }
}
