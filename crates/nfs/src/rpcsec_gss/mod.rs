//! RPCSEC_GSS version 1 (RFC 2203) with Kerberos 5: calls whose caller is proved, and which are signed or encrypted if the client wants that.
//!
//! A client makes a context by sending a token, and names it in its calls from then on:
//!
//! ```text
//!  INIT, a token ->                        <- a handle, a token
//!  DATA: handle, number, MIC | arguments ->       <- MIC of the number | results
//!                              in krb5i:  the number and the arguments, and their MIC
//!                              in krb5p:  the number and the arguments, encrypted
//!  DESTROY ->                              <- MIC
//! ```
//!
//! What is in a call is answered as any other one: this wraps [`Server`]'s answering of calls. Kerberos takes one token, so there are no
//! contexts half made: CONTINUE_INIT finds none.

mod call;
pub(crate) mod contexts;
mod mechanism;
mod window;
pub(crate) mod wire;

pub use mechanism::{
    AcceptedContext, AcceptedToken, KerberosAcceptor, KerberosUser, RefusedToken, SecurityContext,
    UnixIds,
};
