//! Passwords: what they must be like, and their argon2id hashes.

use std::time::Duration;

use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordHasher as _, PasswordVerifier as _};
use zxcvbn::zxcvbn;

use super::{AccountError, Accounts, PASSWORD_BYTES_MAX, PASSWORD_CHARACTERS_MIN, no_secret};
use crate::secret;

/// How long a log-in waits for its turn.
const HASHING_TIMEOUT: Duration = Duration::from_secs(5);
/// The least estimate of the guesses that a new password withstands: a million. The 30,000 passwords that are used most often, whatever their
/// case, words of languages alone and repetitions are below it (ASVS 4.0.3, 2.1.7).
const GUESSES_MIN: u64 = 1_000_000;

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

/// Checks what a new password is like: its length, and that it is none of those that are tried first.
pub(super) fn check_password(password: &str) -> Result<(), AccountError> {
    if password.chars().count() < PASSWORD_CHARACTERS_MIN || password.len() > PASSWORD_BYTES_MAX {
        return Err(AccountError::Password);
    }
    if zxcvbn(password, &["sanbox"]).guesses() < GUESSES_MIN {
        return Err(AccountError::KnownPassword);
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_that_are_tried_first_are_refused() {
        for known in [
            "1q2w3e4r5t6y",
            "Password1234",
            "QwertyUiop123",
            "aaaaaaaaaaaaaaaa",
            "121212121212",
            "swordfishswordfish",
            "sanboxsanboxsan",
        ] {
            let checked = check_password(known);
            assert!(
                matches!(checked, Err(AccountError::KnownPassword)),
                "{known}"
            );
        }
        for short in ["", "password", "elevenlette"] {
            assert!(matches!(check_password(short), Err(AccountError::Password)));
        }
        for good in ["correct horse battery", "\u{fc}ber sieben Berge"] {
            assert!(check_password(good).is_ok(), "{good}");
        }
    }
}
