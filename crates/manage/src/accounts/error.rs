//! Why requests about accounts fail.

use super::{PASSWORD_BYTES_MAX, PASSWORD_CHARACTERS_MIN, USERS_MAX};
use crate::database::DatabaseError;

/// Why a request about accounts failed.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// The setup link was used already, or was never valid.
    #[error(
        "this setup link is not valid: 'sanbox serve' prints a new one at its next start while there is no owner"
    )]
    SetupToken,
    /// Wrong name or wrong password.
    #[error("wrong name or password")]
    Credentials,
    /// Name and password are right, and the user has a second factor.
    #[error("the code of the authenticator is needed, or a recovery code")]
    SecondFactorNeeded,
    /// The code is not the one of this moment, or was used already.
    #[error("this code is not valid: it may be too old, or the clocks differ")]
    SecondFactor,
    /// There is a second factor already.
    #[error("'{0}' has a second factor already: remove it first")]
    SecondFactorExists(String),
    /// There is none.
    #[error("'{0}' has no second factor")]
    SecondFactorMissing(String),
    /// What was asked for a key is more than its user may, or makes no sense.
    #[error("{0}")]
    Key(String),
    /// Too many log-ins failed.
    #[error("too many log-ins failed: try again in {0} s")]
    Wait(u64),
    /// Too many log-ins at a time.
    #[error("too many log-ins at once: try again")]
    Busy,
    /// The name is none.
    #[error(
        "a name has 1 to 32 of the characters a-z, 0-9, '.', '_' and '-', and begins with a letter"
    )]
    Name,
    /// The password is too short or too long.
    #[error(
        "a password has at least {PASSWORD_CHARACTERS_MIN} characters and at most {PASSWORD_BYTES_MAX} bytes"
    )]
    Password,
    /// The password is one of those that are tried first.
    #[error("this password would be guessed soon: choose another one")]
    KnownPassword,
    /// There is such a user.
    #[error("user '{0}' exists already")]
    Exists(String),
    /// There is no such user.
    #[error("there is no user '{0}'")]
    Missing(String),
    /// There is such a group.
    #[error("group '{0}' exists already")]
    GroupExists(String),
    /// There is no such group.
    #[error("there is no group '{0}'")]
    GroupMissing(String),
    /// What was asked for a group makes no sense.
    #[error("{0}")]
    Group(String),
    /// The directory does not answer. Why is in the log of accounts.
    #[error(
        "the directory of users does not answer: who has a password of the appliance itself can log in"
    )]
    Directory,
    /// Who is known elsewhere is in no group that has a role here.
    #[error("'{0}' is in no group that has a role on this appliance")]
    NoRole(String),
    /// There is a user of that name whom the directory does not know.
    #[error("'{0}' is a user of the appliance itself: no other log-in can be of that name")]
    NotOfDirectory(String),
    /// The directory has the password of the user.
    #[error("the password of '{0}' is changed in the directory that knows the user")]
    OfDirectory(String),
    /// One owner must be left.
    #[error("'{0}' is the only owner")]
    LastOwner(String),
    /// No more users.
    #[error("there are {USERS_MAX} users already")]
    Full,
    /// The change cannot be stored.
    #[error("{0}")]
    Database(#[from] DatabaseError),
    /// The kernel gives no random bytes, or the hash cannot be made.
    #[error("no secret can be made: {0}")]
    Secret(String),
}

pub(super) fn no_secret(error: std::io::Error) -> AccountError {
    AccountError::Secret(error.to_string())
}
