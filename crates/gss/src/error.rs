//! What can go wrong.

use std::path::PathBuf;

use thiserror::Error;

/// The library's name, with the number of its interface: the one that MIT has had since 2007 (1.6).
pub(crate) const LIBRARY: &str = "libgssapi_krb5.so.2";

/// Kerberos cannot be used on this machine.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The library, or a function of it, is not there.
    #[error("{LIBRARY} cannot be loaded")]
    Library(#[from] libloading::Error),
    /// The path of the keytab cannot be given to the library.
    #[error("{} cannot be the path of a keytab: it contains a byte of zero", .0.display())]
    Path(PathBuf),
}

/// A call that the library refused, in its words.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text}")]
pub struct GssError {
    /// The major status (RFC 2744, section 3.9.1).
    pub major: u32,
    /// The minor status, of the mechanism.
    pub minor: u32,
    /// What both mean.
    pub text: String,
    /// What the client is to be sent nevertheless; mostly nothing.
    pub token: Vec<u8>,
}
