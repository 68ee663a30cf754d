//! Passwords: what they must be like, and their argon2id hashes.

use std::collections::BTreeSet;
use std::time::Duration;

use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordHasher as _, PasswordVerifier as _};

use super::{AccountError, Accounts, PASSWORD_BYTES_MAX, PASSWORD_CHARACTERS_MIN, no_secret};
use crate::secret;

/// How long a log-in waits for its turn.
const HASHING_TIMEOUT: Duration = Duration::from_secs(5);
/// Different characters of a password, at least.
const CHARACTERS_DISTINCT_MIN: usize = 5;
/// Passwords of 12 characters and more among the 30,000 that were used most often where lists of passwords became public (as the project
/// zxcvbn counts them), in small letters. ASVS 2.1.7 asks for the 1,000 most frequent ones that the rules allow; there are no more of them.
const KNOWN: &str = include_str!("known_passwords.txt");

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
    if is_known(&password.to_lowercase()) {
        return Err(AccountError::KnownPassword);
    }
    Ok(())
}

/// Whether this is in the list, is a part of it twice and more, or hardly varies at all.
fn is_known(password: &str) -> bool {
    let letters: Vec<char> = password.chars().collect();
    let distinct: BTreeSet<char> = letters.iter().copied().collect();
    let repeats = |length: usize| {
        let mut parts = letters.chunks(length);
        let first = parts.next().unwrap_or_default();
        parts.all(|part| first.starts_with(part))
    };
    distinct.len() < CHARACTERS_DISTINCT_MIN
        || (1..=letters.len() / 2).any(repeats)
        || KNOWN.lines().any(|known| known == password)
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
            "Sanbox-sanbox-",
            "swordfishSwordfish",
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
        for good in [
            "correct horse battery",
            "\u{fc}ber sieben Berge",
            "swordfishSwordfish!",
        ] {
            assert!(check_password(good).is_ok(), "{good}");
        }
    }
}
