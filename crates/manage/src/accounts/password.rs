//! Passwords: what they must be like, and their argon2id hashes.

use std::time::Duration;

use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordHasher as _, PasswordVerifier as _};

use super::{AccountError, Accounts, PASSWORD_BYTES_MAX, PASSWORD_CHARACTERS_MIN, no_secret};
use crate::secret;

/// How long a log-in waits for its turn.
const HASHING_TIMEOUT: Duration = Duration::from_secs(5);

impl Accounts {
    /// Runs work that costs memory and time on a thread of its own, a few at a time.
    pub(super) async fn hashing<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, AccountError> {
        let turn = tokio::time::timeout(HASHING_TIMEOUT, self.hashings.acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            return Err(AccountError::Busy);
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|error| AccountError::Secret(error.to_string()))
    }
}

pub(super) fn check_password(password: &str) -> Result<(), AccountError> {
    if password.chars().count() >= PASSWORD_CHARACTERS_MIN && password.len() <= PASSWORD_BYTES_MAX {
        Ok(())
    } else {
        Err(AccountError::Password)
    }
}

pub(super) fn hash_password(password: &str) -> Result<String, AccountError> {
    let salt = secret::random::<16>().map_err(no_secret)?;
    let hash = Argon2::default().hash_password_with_salt(password.as_bytes(), &salt);
    let hash: PasswordHash = hash.map_err(|error| AccountError::Secret(error.to_string()))?;
    Ok(hash.to_string())
}

pub(super) fn verify_password(password: &str, stored: &str) -> bool {
    let verify = |stored| Argon2::default().verify_password(password.as_bytes(), &stored);
    PasswordHash::new(stored).is_ok_and(|stored| verify(stored).is_ok())
}
