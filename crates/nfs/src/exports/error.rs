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
    /// A security flavour other than AUTH_SYS.
    #[error("security flavour '{flavour}' is not supported (only sys is)")]
    Flavour {
        /// The flavour as written.
        flavour: String,
    },
    /// A client that is no address, network, name or pattern.
    #[error("cannot understand the client '{client}'")]
    Client {
        /// The client as written.
        client: String,
    },
}
