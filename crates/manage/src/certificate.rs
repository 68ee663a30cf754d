//! The certificate of the console: made at the first start into the state directory, or the administrator's own in the same files.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};

const ONE_DAY_SECONDS: u64 = 86_400;
/// Days until a certificate ends. Clients come to take none that is valid for more than 398 days, of any issuer (CA/Browser Forum
/// Baseline Requirements 6.3.2; Apple's: 825, support.apple.com/103769); the day before today is one of them.
const VALID_DAYS: u64 = 396;
/// Days before its end at which a certificate is made anew.
const RENEWED_DAYS: u64 = 30;
/// Begins the line before a certificate that was made here. It says when the certificate ends, in seconds since 1970; what an
/// administrator puts into the file has no such line (RFC 7468, 2: text before a certificate is ignored).
const MADE_HERE: &str = "Made by sanbox, to be made anew before ";
/// The line before a certificate that [`install`] put there.
const ISSUED: &str = "Issued by an authority that speaks ACME";

/// Held from the first of the two files to the last: otherwise the certificate of one would be met with the key of another.
static FILES: Mutex<()> = Mutex::new(());

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
    /// It is in the directory: the next look there finds the same one.
    pub is_stored: bool,
}

/// Returns the certificate in `directory`, made for `names` (DNS names and addresses) if there is none, or if the one made here ends
/// soon after `now` (seconds since 1970). The key is readable by its owner only. A directory that cannot be written gives a
/// certificate for this run alone.
///
/// # Errors
/// The files are there and cannot be read, or none can be made.
pub fn load_or_make(
    directory: &Path,
    names: Vec<String>,
    now: u64,
) -> Result<CertificateFiles, CertificateError> {
    let _alone = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let (cert_path, key_path) = (
        directory.join("console-cert.pem"),
        directory.join("console-key.pem"),
    );
    if let (Some(certificates), Some(key)) = (read(&cert_path)?, read(&key_path)?) {
        let end = certificates
            .lines()
            .find_map(|line| line.strip_prefix(MADE_HERE)?.parse::<u64>().ok());
        if end.is_none_or(|end| now + RENEWED_DAYS * ONE_DAY_SECONDS < end) {
            return Ok(CertificateFiles {
                certificates,
                key,
                is_stored: true,
            });
        }
    }
    let mut params = rcgen::CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "sanbox");
    // Begun a day ago: the clocks of clients may be behind.
    let end = now + ONE_DAY_SECONDS * VALID_DAYS;
    let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    params.not_before = at(now - ONE_DAY_SECONDS).into();
    params.not_after = at(end).into();
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let key = rcgen::KeyPair::generate()?;
    let certificates = format!("{MADE_HERE}{end}\n{}", params.self_signed(&key)?.pem());
    let key = key.serialize_pem();
    // One that is lost with this process is better than no console: the log shows its fingerprint.
    let stored = write([(&key_path, &key), (&cert_path, &certificates)]);
    Ok(CertificateFiles {
        certificates,
        key,
        is_stored: stored.is_ok(),
    })
}

/// Returns the SHA-256 fingerprint of a certificate as browsers show it: pairs of hexadecimal digits.
#[must_use]
pub fn fingerprint(der: &[u8]) -> String {
    let digest = Sha256::digest(der);
    let pairs: Vec<String> = digest.iter().map(|byte| format!("{byte:02X}")).collect();
    pairs.join(":")
}

/// Puts a certificate that was issued into the directory, where the next look finds it. The key is readable by its owner only. One of the
/// administrator's own, which was there, is kept as `console-cert.before.pem` and `console-key.before.pem`.
///
/// # Errors
/// A file cannot be read or written; the certificate before then stays.
pub fn install(directory: &Path, certificates: &str, key: &str) -> Result<(), CertificateError> {
    let _alone = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let path = |name: &str| directory.join(name);
    let (cert_path, key_path) = (path("console-cert.pem"), path("console-key.pem"));
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| CertificateError::Io { path, source }
    };
    if let (Some(own), Some(own_key)) = (read(&cert_path)?, read(&key_path)?) {
        let is_known = |line: &str| line.starts_with(MADE_HERE) || line == ISSUED;
        if !own.lines().any(is_known) {
            let kept = [
                path("console-cert.before.pem"),
                path("console-key.before.pem"),
            ];
            write([(&kept[1], &own_key), (&kept[0], &own)]).map_err(io(&kept[0]))?;
        }
    }
    let certificates = format!("{ISSUED}\n{certificates}");
    write([(&key_path, key), (&cert_path, &certificates)]).map_err(io(&cert_path))
}

/// Returns a request for a certificate with these names (PKCS #10, in DER), and its new key in PEM.
///
/// # Errors
/// None can be made.
pub fn request(names: Vec<String>) -> Result<(Vec<u8>, String), CertificateError> {
    let mut params = rcgen::CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    let key = rcgen::KeyPair::generate()?;
    let request = params.serialize_request(&key)?;
    Ok((request.der().to_vec(), key.serialize_pem()))
}

/// Returns the certificate by which a name is proved in TLS (RFC 8737, 3) and its key (PKCS #8), both in DER. `digest` is the SHA-256 of the
/// key authorization.
///
/// # Errors
/// None can be made.
pub fn for_challenge(name: &str, digest: &[u8]) -> Result<(Vec<u8>, Vec<u8>), CertificateError> {
    let mut params = rcgen::CertificateParams::new(vec![name.to_owned()])?;
    params.custom_extensions = vec![rcgen::CustomExtension::new_acme_identifier(digest)];
    let key = rcgen::KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok((certificate.der().to_vec(), key.serialize_der()))
}

/// Returns the end of a certificate's validity, in seconds since 1970; `None` where it is not understood.
#[must_use]
pub fn end_of_validity(der: &[u8]) -> Option<u64> {
    validity(der).map(|(_, end)| end)
}

/// Returns when a certificate's validity begins and ends, in seconds since 1970; `None` where it is not understood.
#[must_use]
pub fn validity(der: &[u8]) -> Option<(u64, u64)> {
    // RFC 5280, 4.1: Certificate, its TBSCertificate, and in it version [0], serialNumber, signature, issuer and validity.
    const SEQUENCE: u8 = 0x30;
    let (_, certificate, _) = element(der)?;
    let (_, mut fields, _) = element(certificate)?;
    let mut sequences = 0;
    loop {
        let (tag, content, rest) = element(fields)?;
        sequences += usize::from(tag == SEQUENCE);
        if sequences == 3 {
            let (tag, begin, behind) = element(content)?;
            let begin = time(tag, std::str::from_utf8(begin).ok()?)?;
            let (tag, end, _) = element(behind)?;
            return Some((begin, time(tag, std::str::from_utf8(end).ok()?)?));
        }
        fields = rest;
    }
}

/// Returns the tag, the content and what is behind an element of DER (X.690, 8.1).
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let len = digits
                .iter()
                .fold(0, |len, digit| len << 8 | usize::from(*digit));
            (len, rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((*tag, content, rest))
}

/// Reads a time of RFC 5280, 4.1.2.5: `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`.
fn time(tag: u8, text: &str) -> Option<u64> {
    let text = match tag {
        // Years below 50 are of this century.
        0x17 if text.get(..2)?.parse::<u64>().ok()? < 50 => format!("20{text}"),
        0x17 => format!("19{text}"),
        _ => text.to_owned(),
    };
    let number = |at: usize, len: usize| text.get(at..at + len)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(4, 2)?, number(6, 2)?);
    let seconds = number(8, 2)? * 3600 + number(10, 2)? * 60 + number(12, 2)?;
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days of the Gregorian calendar, with years that begin in March: the leap day is their last.
    let (year, month) = if month <= 2 {
        (year - 1, month + 9)
    } else {
        (year, month - 3)
    };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 306 + 5) / 10 + day - 1;
    // 1 March of year 0 to 1 January 1970.
    Some(days.checked_sub(719_468)? * 86_400 + seconds)
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

/// Writes files that go together: none takes its place before all are written, so that a full disk parts no key from its certificate.
fn write(files: [(&Path, &str); 2]) -> std::io::Result<()> {
    let new = |path: &Path| path.with_extension("new");
    for (path, text) in files {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(new(path))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
    }
    for (path, _) in files {
        fs::rename(new(path), path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_end_of_a_certificate_is_read() {
        let mut params = rcgen::CertificateParams::new(vec!["box".to_owned()]).expect("a name");
        params.not_after = rcgen::date_time_ymd(2027, 2, 28);
        let key = rcgen::KeyPair::generate().expect("a key");
        let made = params.self_signed(&key).expect("a certificate");
        // 'date -d 2027-02-28T00:00:00Z +%s'
        assert_eq!(end_of_validity(made.der()), Some(1_803_772_800));
        for end in 0..made.der().len().min(200) {
            let _ = end_of_validity(&made.der()[..end]);
        }
        params.not_before = rcgen::date_time_ymd(2027, 2, 27);
        let made = params.self_signed(&key).expect("a certificate");
        let (begin, end) = (1_803_772_800 - ONE_DAY_SECONDS, 1_803_772_800);
        assert_eq!(validity(made.der()), Some((begin, end)));
        assert_eq!(time(0x17, "700101000000Z"), Some(0));
        assert_eq!(time(0x18, "20240229120000Z"), Some(1_709_208_000));
        assert_eq!(time(0x18, "2024"), None);
    }

    #[test]
    fn made_once_and_the_key_is_private() {
        let directory = tempfile::tempdir().expect("a directory");
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let load = |names: &[String], now| load_or_make(directory.path(), names.to_vec(), now);
        let now = 1_800_000_000;
        let made = load(&names, now).expect("a certificate");
        assert!(made.certificates.contains("BEGIN CERTIFICATE"));
        assert_eq!(
            load(&names, now + 360 * ONE_DAY_SECONDS).expect("read"),
            made
        );
        let renewed = load(&names, now + 370 * ONE_DAY_SECONDS).expect("made anew");
        assert_ne!(renewed, made);
        // The administrator's own stays, whatever the date.
        let (_, own) = made.certificates.split_once('\n').expect("two lines");
        fs::write(directory.path().join("console-cert.pem"), own).expect("written");
        let kept = load(&names, now + 9_000 * ONE_DAY_SECONDS).expect("read");
        assert_eq!(kept.certificates, own);
        let key = fs::metadata(directory.path().join("console-key.pem")).expect("there");
        assert_eq!(key.permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn one_that_is_issued_takes_the_place_and_the_administrators_own_is_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        let names = || vec!["localhost".to_owned()];
        let now = 1_800_000_000;
        load_or_make(directory.path(), names(), now).expect("a certificate");
        install(directory.path(), "chain", "key").expect("installed");
        assert!(!at("console-cert.before.pem").exists(), "made here");
        install(directory.path(), "chain 2", "key 2").expect("installed");
        assert!(!at("console-cert.before.pem").exists(), "issued");
        // It is made anew by nobody here, whatever the date.
        let issued = load_or_make(directory.path(), names(), u64::MAX / 2).expect("read");
        assert_eq!(issued.key, "key 2");
        assert!(issued.certificates.ends_with("\nchain 2"));
        fs::write(at("console-cert.pem"), "own").expect("written");
        fs::write(at("console-key.pem"), "own key").expect("written");
        install(directory.path(), "chain 3", "key 3").expect("installed");
        let kept = ["console-cert.before.pem", "console-key.before.pem"].map(at);
        let kept = kept.map(|path| fs::read_to_string(path).expect("kept"));
        assert_eq!(kept, ["own", "own key"]);
    }

    #[test]
    fn one_that_cannot_be_stored_is_said_to_be_lost() {
        let directory = tempfile::tempdir().expect("a directory");
        let names = || vec!["localhost".to_owned()];
        let now = 1_800_000_000;
        let gone = directory.path().join("gone");
        let [first, second] =
            [(); 2].map(|()| load_or_make(&gone, names(), now).expect("a certificate"));
        assert!(!first.is_stored && !second.is_stored && first != second);
        let stored = load_or_make(directory.path(), names(), now).expect("a certificate");
        assert!(stored.is_stored);
        // The renewed one cannot be stored whole: both files stay as they are.
        fs::create_dir(directory.path().join("console-cert.new")).expect("made");
        let later = now + 370 * ONE_DAY_SECONDS;
        let renewed = load_or_make(directory.path(), names(), later).expect("a certificate");
        assert!(!renewed.is_stored && renewed.key != stored.key);
        let again = load_or_make(directory.path(), names(), now).expect("read");
        assert_eq!(again, stored);
    }
}
