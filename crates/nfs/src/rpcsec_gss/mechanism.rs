//! What this crate asks of Kerberos, which is done elsewhere.

use std::future::Future;
use std::pin::Pin;

/// Takes the proofs of clients, for the service `nfs` of this machine.
pub trait KerberosAcceptor: Send + Sync {
    /// Takes the token that a client begins with. Many may be under way.
    fn accept(&self, token: Vec<u8>) -> AcceptedToken;
}

/// What becomes of a token.
pub type AcceptedToken =
    Pin<Box<dyn Future<Output = Result<AcceptedContext, RefusedToken>> + Send>>;

/// The keys that a client and this server have agreed on. Calls may come from several threads at the same time.
pub trait SecurityContext: Send + Sync {
    /// Returns the checksum of a message, at most 400 bytes; `None` when the context is good for nothing any more.
    fn mic(&self, message: &[u8]) -> Option<Vec<u8>>;
    /// Returns whether the checksum is the client's, of this message.
    fn verify_mic(&self, message: &[u8], mic: &[u8]) -> bool;
    /// Encrypts a message; `None` when the context is good for nothing any more.
    fn wrap(&self, message: &[u8]) -> Option<Vec<u8>>;
    /// Decrypts a message; `None` when the client did not encrypt it so.
    fn unwrap(&self, wrapped: &[u8]) -> Option<Vec<u8>>;
}

/// A client that has proved who it is.
pub struct AcceptedContext {
    /// Its keys.
    pub context: Box<dyn SecurityContext>,
    /// What it is to be sent.
    pub token: Vec<u8>,
    /// Who it is.
    pub user: KerberosUser,
    /// How long the proof is good for, in seconds; `None` for ever.
    pub lifetime_seconds: Option<u32>,
}

/// Whom a client has proved to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KerberosUser {
    /// With the realm: `user@REALM`.
    pub principal: String,
    /// The numbers of the user of this machine that it is; one that is none is the anonymous user of each share.
    pub ids: Option<UnixIds>,
}

/// The numbers of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixIds {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}

/// A token that proves nothing, and what the client is told (RFC 2744, section 3.9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedToken {
    /// Major status; not 0.
    pub major: u32,
    /// Minor status.
    pub minor: u32,
    /// What the client is to be sent nevertheless; mostly nothing.
    pub token: Vec<u8>,
}
