//! `[acme]` of `sanbox.toml`: a certificate for the console from an authority that speaks ACME (RFC 8555). Off where no name is set.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use toml_edit::{DocumentMut, Item, Table};

/// Let's Encrypt.
const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";
/// Names in one certificate.
const NAMES_MAX: usize = 100;

/// By what the appliance proves that a name is its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AcmeChallenge {
    /// A document at port 80 of the name (RFC 8555, 8.3).
    #[default]
    #[serde(rename = "http-01")]
    Http,
    /// A certificate at port 443 of the name (RFC 8737).
    #[serde(rename = "tls-alpn-01")]
    TlsAlpn,
}

impl AcmeChallenge {
    /// Returns its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http-01",
            Self::TlsAlpn => "tls-alpn-01",
        }
    }

    /// Returns the one of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Http, Self::TlsAlpn];
        all.into_iter().find(|one| one.as_str() == name)
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Acme {
    /// Names that browsers call the console by. Empty: no certificate by ACME.
    pub names: Vec<String>,
    /// Where the authority writes to, as a mail address. Empty: nowhere.
    pub contact: String,
    /// The terms of the authority are agreed to; without that it gives no certificate.
    pub terms_agreed: bool,
    /// The authority's directory (Let's Encrypt).
    pub directory: String,
    /// `http-01` or `tls-alpn-01`: the authority comes to port 80, or to port 443, of each name.
    pub challenge: AcmeChallenge,
    /// The TCP port of this machine that port 80 of the names leads to, for `http-01` (80). It is open while the authority is expected.
    pub http_port: u16,
    /// Certificates to trust in place of the machine's, for an authority of one's own.
    pub ca_file: Option<PathBuf>,
}

impl Default for Acme {
    fn default() -> Self {
        Self {
            names: Vec::new(),
            contact: String::new(),
            terms_agreed: false,
            directory: LETS_ENCRYPT.to_owned(),
            challenge: AcmeChallenge::default(),
            http_port: 80,
            ca_file: None,
        }
    }
}

impl Acme {
    /// Whether a certificate is to be had.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !self.names.is_empty()
    }

    /// Checks what is set.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !self.is_on() {
            return Ok(());
        }
        if self.names.len() > NAMES_MAX {
            return Err(format!("[acme] names: at most {NAMES_MAX}"));
        }
        for name in &self.names {
            check_name(name).map_err(|why| format!("[acme] names: '{name}' {why}"))?;
        }
        if self.challenge == AcmeChallenge::TlsAlpn
            && let Some(name) = self.names.iter().find(|name| is_address(name))
        {
            return Err(format!(
                "[acme] names: tls-alpn-01 proves no address, such as '{name}'"
            ));
        }
        let contact = &self.contact;
        let plain = contact
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !b"?#,:".contains(&byte));
        if !contact.is_empty() && (!contact.contains('@') || !plain) {
            return Err(format!("[acme] contact: '{contact}' is no mail address"));
        }
        if !self.directory.starts_with("https://") {
            return Err("[acme] directory: it begins with https://".to_owned());
        }
        if !self.terms_agreed {
            return Err(
                "[acme] terms_agreed: authorities give certificates to those who agree to their terms alone"
                    .to_owned(),
            );
        }
        if self.http_port == 0 {
            return Err("[acme] http_port: 1 to 65535".to_owned());
        }
        Ok(())
    }

    /// Puts these settings into the text of `sanbox.toml`; the other lines stay as they are.
    ///
    /// # Errors
    /// The text is no configuration.
    pub fn put_into(&self, text: &str) -> Result<String, String> {
        let mut document: DocumentMut = text
            .parse()
            .map_err(|error: toml_edit::TomlError| error.to_string())?;
        if *self == Self::default() {
            document.remove("acme");
            return Ok(document.to_string());
        }
        let mut table = Table::new();
        let mut put = |name: &str, value: toml_edit::Value| table.insert(name, Item::Value(value));
        put("names", self.names.iter().collect());
        put("contact", self.contact.as_str().into());
        put("terms_agreed", self.terms_agreed.into());
        put("directory", self.directory.as_str().into());
        put("challenge", self.challenge.as_str().into());
        put("http_port", i64::from(self.http_port).into());
        if let Some(file) = &self.ca_file {
            put("ca_file", file.to_string_lossy().into_owned().into());
        }
        document.insert("acme", Item::Table(table));
        Ok(document.to_string())
    }
}

/// Whether a name is an address rather than a name of DNS.
#[must_use]
pub fn is_address(name: &str) -> bool {
    name.parse::<IpAddr>().is_ok()
}

/// Says what is wrong with a name.
fn check_name(name: &str) -> Result<(), &'static str> {
    if is_address(name) {
        return Ok(());
    }
    if name.starts_with("*.") {
        return Err("stands for many names, which neither http-01 nor tls-alpn-01 proves");
    }
    let label = |label: &str| {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        (1..=63).contains(&label.len()) && label.bytes().all(fits) && !label.starts_with('-')
    };
    match name.len() <= 253 && name.split('.').all(label) {
        true => Ok(()),
        false => Err("is no name of DNS in small letters"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn settings_are_put_into_the_file_and_taken_out() {
        let text = "# mine\n[nfs]\nport = 2049 # as ever\n";
        let acme = Acme {
            names: vec!["nas.example.org".to_owned(), "192.0.2.1".to_owned()],
            contact: "ann@example.org".to_owned(),
            terms_agreed: true,
            http_port: 8080,
            ca_file: Some(PathBuf::from("/etc/ca.pem")),
            ..Acme::default()
        };
        let with = acme.put_into(text).expect("set");
        assert_eq!(Config::parse(&with).expect("parses").acme, acme);
        assert!(with.starts_with(text), "{with}");
        assert_eq!(Acme::default().put_into(&with).expect("set"), text);
    }

    #[test]
    fn what_no_authority_takes_is_refused() {
        let good = "names = ['a.example']\nterms_agreed = true\n";
        for (more, why) in [
            ("", None),
            ("contact = 'ann@example.org'", None),
            ("contact = 'ann'", Some("no mail address")),
            ("contact = 'a@b?subject=x'", Some("no mail address")),
            ("directory = 'http://x/'", Some("https://")),
            ("http_port = 0", Some("http_port")),
            ("challenge = 'dns-01'", Some("dns-01")),
        ] {
            let parsed = Config::parse(&format!("[acme]\n{good}{more}\n"));
            match (parsed, why) {
                (Ok(_), None) => {}
                (Err(error), Some(why)) => assert!(error.contains(why), "{more}: {error}"),
                (parsed, _) => panic!("{more}: {parsed:?}"),
            }
        }
        for name in ["*.example.org", "a b", "a..b", "", "-a", "BOX", "a/../b"] {
            let text = format!("[acme]\nnames = ['{name}']\nterms_agreed = true\n");
            Config::parse(&text).expect_err(name);
        }
        let text = "[acme]\nnames = ['192.0.2.1']\nterms_agreed = true\nchallenge = 'tls-alpn-01'";
        Config::parse(text).expect_err("an address");
        Config::parse("[acme]\nnames = ['a.example']").expect_err("no agreement");
    }
}
