//! What can be wrong with a `sharenfs` value.

use thiserror::Error;

/// A `sharenfs` value that is not understood. Nothing is shared by half: the whole value is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GrammarError {
    /// Nothing is there.
    #[error("an empty list of options")]
    Empty,
    /// An option that does not exist, or not with this value.
    #[error("unknown share option '{option}'")]
    Option {
        /// The option as written.
        option: String,
    },
    /// A security flavour that there is not.
    #[error("security flavour '{flavour}' is not supported (sys, krb5, krb5i and krb5p are)")]
    Flavour {
        /// The flavour as written.
        flavour: String,
    },
    /// Options of a flavour of their own, as exports(5) has them.
    #[error("there is one list of security flavours in a share's options, such as sec=sys:krb5")]
    FlavoursTwice,
    /// A client that is no address, network, name or pattern.
    #[error("cannot understand the client '{client}'")]
    Client {
        /// The client as written.
        client: String,
    },
}
