//! The answers by which an authority is shown that a name is this appliance's, while an order is under way. Nothing is in it at other times.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::server::ClientHello;
use rustls::sign::CertifiedKey;

/// The protocol that an authority asks for in TLS to see the certificate of a challenge (RFC 8737, 6.2).
pub(crate) const ACME_TLS: &[u8] = b"acme-tls/1";
/// Where a document is asked for (RFC 8555, 8.3).
const WELL_KNOWN: &str = "/.well-known/acme-challenge/";

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Challenges(Mutex<Answers>);

#[derive(Debug, Default)]
struct Answers {
    /// Documents by their tokens.
    documents: BTreeMap<String, String>,
    /// Certificates by the names that they prove.
    certificates: BTreeMap<String, Arc<CertifiedKey>>,
}

impl Challenges {
    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a token answered by a document.
    pub(crate) fn put_document(&self, token: &str, document: &str) {
        let mut answers = self.answers();
        answers
            .documents
            .insert(token.to_owned(), document.to_owned());
    }

    /// Has a name answered by a certificate.
    pub(crate) fn put_certificate(&self, name: &str, certificate: CertifiedKey) {
        let mut answers = self.answers();
        answers
            .certificates
            .insert(name.to_owned(), Arc::new(certificate));
    }

    /// Forgets all of them.
    pub(crate) fn clear(&self) {
        *self.answers() = Answers::default();
    }

    /// Returns the document that the target of an HTTP request is answered with, if it is one of these.
    pub(crate) fn document(&self, target: &str) -> Option<String> {
        let token = target.strip_prefix(WELL_KNOWN)?;
        self.answers().documents.get(token).cloned()
    }

    /// Returns the certificate of a name that is being proved.
    pub(crate) fn certificate(&self, hello: &ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name()?.to_ascii_lowercase();
        self.answers().certificates.get(&name).cloned()
    }
}

/// Whether a client asks for the certificate of a challenge.
pub(crate) fn is_for_challenge(hello: &ClientHello<'_>) -> bool {
    let mut asked = hello.alpn().into_iter().flatten();
    asked.any(|protocol| protocol == ACME_TLS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_there_while_they_are_expected() {
        let challenges = Challenges::default();
        challenges.put_document("token", "token.thumb");
        let at = |target: &str| challenges.document(target);
        let known = "/.well-known/acme-challenge/token";
        assert_eq!(at(known).as_deref(), Some("token.thumb"));
        for other in ["/", "/.well-known/acme-challenge/", "/token", "token"] {
            assert_eq!(at(other), None, "{other}");
        }
        challenges.clear();
        assert_eq!(challenges.document(known), None);
    }
}
