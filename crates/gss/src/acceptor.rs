//! What takes the first token of a client.

use crate::context::SecurityContext;
use crate::error::{GssError, LoadError};
use crate::ffi::{self, Functions};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

/// Takes clients of one service, by the keys in a keytab. Clones of its `Arc` may accept at the same time.
pub struct Acceptor {
    functions: Arc<Functions>,
    service: &'static str,
    keytab: CString,
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acceptor")
            .field("service", &self.service)
            .field("keytab", &self.keytab)
            .finish_non_exhaustive()
    }
}

/// A client that has proved who it is.
#[derive(Debug)]
pub struct AcceptedContext {
    /// Its context.
    pub context: SecurityContext,
    /// What it is to be sent.
    pub token: Vec<u8>,
    /// Who it is, with the realm: `user@REALM`.
    pub principal: String,
    /// The user of this machine that it is by krb5.conf: those of the default realm by their names, and by `auth_to_local`.
    pub local_name: Option<String>,
    /// How long the context is good for, in seconds: as long as the client's ticket. `None` for ever.
    pub lifetime_seconds: Option<u32>,
}

impl Acceptor {
    /// Loads the library, for keys of `service` (such as `nfs`) of any host in `keytab`, which need not be there yet.
    ///
    /// # Errors
    /// The library is not on this machine, or the path contains a zero.
    pub fn new(service: &'static str, keytab: &Path) -> Result<Self, LoadError> {
        let path = [b"FILE:", keytab.as_os_str().as_bytes()].concat();
        Ok(Self {
            functions: Functions::load()?,
            service,
            keytab: CString::new(path).map_err(|_| LoadError::Path(keytab.to_owned()))?,
        })
    }

    /// Checks that the keytab can be read and has a key of the service. It reads files.
    ///
    /// # Errors
    /// Why not, in the library's words.
    pub fn check(&self) -> Result<(), GssError> {
        ffi::check_keytab(&self.functions, self.service, &self.keytab)
    }

    /// Takes the token that a client begins with. It reads the keytab and krb5.conf: it may wait for a disk.
    ///
    /// # Errors
    /// The token is not a proof for this service: damaged, expired, for another key, or from a clock that is off.
    pub fn accept(&self, token: &[u8]) -> Result<AcceptedContext, GssError> {
        let accepted = ffi::accept(&self.functions, self.service, &self.keytab, token)?;
        Ok(AcceptedContext {
            context: SecurityContext::new(accepted.context),
            token: accepted.token,
            principal: accepted.principal,
            local_name: accepted.local_name,
            lifetime_seconds: accepted.lifetime_seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the library is, as on the machines that tests run on.
    fn acceptor(keytab: &Path) -> Option<Acceptor> {
        match Acceptor::new("nfs", keytab) {
            Ok(acceptor) => Some(acceptor),
            Err(error) => {
                assert!(matches!(error, LoadError::Library(_)), "{error}");
                None
            }
        }
    }

    #[test]
    fn a_keytab_that_is_not_there_is_told_by_its_name() {
        let Some(acceptor) = acceptor(Path::new("/nowhere/nfs.keytab")) else {
            return;
        };
        let error = acceptor.check().expect_err("no keytab");
        assert!(error.text.contains("/nowhere/nfs.keytab"), "{error}");
        let error = acceptor.accept(b"a token").expect_err("no keytab");
        assert!(error.text.contains("/nowhere/nfs.keytab"), "{error}");
        let zero = Acceptor::new("nfs", Path::new("/a\0b")).expect_err("a zero");
        assert!(matches!(zero, LoadError::Path(_)), "{zero}");
    }
}
