//! Second factors: codes by time of an authenticator (RFC 6238), and recovery codes for when it is lost.
//!
//! A code counts for its own 30 s and those beside it, and once. The shared secret has to be kept as it is, in the database that only
//! the appliance's user may read; recovery codes have 80 random bits and are kept as hashes, each is good for one log-in.

use std::collections::BTreeSet;

use aws_lc_rs::hmac;
use rusqlite::params;
use serde::Serialize;
use utoipa::ToSchema;

use super::{AccountError, AccountTables, Accounts, no_secret};
use crate::secret::{self, SecretHash};

/// Bytes of a shared secret: those of the hash (RFC 4226, 4: at least 128 bits, recommended 160).
const SECRET_BYTES: usize = 20;
/// Seconds for which a code counts (RFC 6238, 5.2: recommended 30).
const STEP_SECONDS: u64 = 30;
/// Steps by which the clocks may differ (RFC 6238, 5.2: at most one step for delay).
const STEPS_BESIDE: u64 = 1;
/// Recovery codes that an enrolment gives.
const RECOVERY_CODES: usize = 8;
/// Bytes of a recovery code.
const RECOVERY_BYTES: usize = 10;
/// RFC 4648, 6.
const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// What an authenticator needs to know.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Enrolment {
    /// The shared secret in base 32, to type.
    pub secret: String,
    /// The same as a link, to show as a QR code.
    pub uri: String,
}

/// Whether a user has a second factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct SecondFactorState {
    /// A log-in needs a code.
    pub enabled: bool,
    /// Recovery codes that are left.
    pub recovery_codes: usize,
}

#[derive(Clone, Debug)]
pub(super) struct SecondFactor {
    secret: [u8; SECRET_BYTES],
    /// The user has shown a code of it.
    confirmed: bool,
    /// The step of the newest code that was used.
    step: u64,
    recovery: BTreeSet<SecretHash>,
}

impl SecondFactor {
    /// Returns the step that a code is of, if it counts now.
    fn step_of(&self, code: &str, now: u64) -> Option<u64> {
        let current = now / STEP_SECONDS;
        let steps = current.saturating_sub(STEPS_BESIDE)..=current + STEPS_BESIDE;
        // The hashes are compared: the time taken tells nothing of the code.
        let shown = secret::hash(code);
        steps
            .filter(|step| *step > self.step)
            .find(|step| secret::hash(&code_at(&self.secret, *step)) == shown)
    }
}

/// Returns the code of a step: six digits.
fn code_at(secret: &[u8], step: u64) -> String {
    // RFC 4226, 5.3 and 5.4.
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret);
    let tag = hmac::sign(&key, &step.to_be_bytes());
    let bytes = tag.as_ref();
    let offset = usize::from(bytes.last().copied().unwrap_or(0) & 0xf);
    let word: [u8; 4] = bytes
        .get(offset..offset + 4)
        .and_then(|word| word.try_into().ok())
        .expect("a tag of 20 bytes has 4 behind any offset below 16");
    format!(
        "{:06}",
        (u32::from_be_bytes(word) & 0x7fff_ffff) % 1_000_000
    )
}

/// Returns bytes in base 32 without padding.
fn base32(bytes: &[u8]) -> String {
    let bit = |at: usize| bytes.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1);
    let digit = |group: usize| {
        let value = (group * 5..group * 5 + 5).fold(0, |value, at| value << 1 | bit(at));
        char::from(BASE32[usize::from(value)])
    };
    (0..(bytes.len() * 8).div_ceil(5)).map(digit).collect()
}

/// Returns what a recovery code is kept as; case, spaces and dashes do not count.
fn recovery_hash(code: &str) -> SecretHash {
    let plain = code.chars().filter(char::is_ascii_alphanumeric);
    let plain: String = plain.map(|letter| letter.to_ascii_uppercase()).collect();
    secret::hash(&plain)
}

fn new_recovery_codes() -> Result<Vec<String>, AccountError> {
    let one = |_| {
        let code = base32(&secret::random::<RECOVERY_BYTES>().map_err(no_secret)?);
        let groups: Vec<&str> = (0..4)
            .map(|group| &code[group * 4..group * 4 + 4])
            .collect();
        Ok(groups.join("-"))
    };
    (0..RECOVERY_CODES).map(one).collect()
}

impl Accounts {
    /// Returns whether a user has a second factor.
    #[must_use]
    pub fn second_factor(&self, user: &str) -> SecondFactorState {
        let tables = self.tables();
        let factor = tables.factors.get(user).filter(|factor| factor.confirmed);
        SecondFactorState {
            enabled: factor.is_some(),
            recovery_codes: factor.map_or(0, |factor| factor.recovery.len()),
        }
    }

    /// Begins the enrolment of a second factor: it counts when [`Self::confirm_second_factor`] was shown a code of it.
    ///
    /// # Errors
    /// [`AccountError::SecondFactorExists`], [`AccountError::Database`].
    pub async fn enrol_second_factor(&self, user: &str) -> Result<Enrolment, AccountError> {
        let _changes = self.changes.lock().await;
        if self.second_factor(user).enabled {
            return Err(AccountError::SecondFactorExists(user.to_owned()));
        }
        let factor = SecondFactor {
            secret: secret::random().map_err(no_secret)?,
            confirmed: false,
            step: 0,
            recovery: BTreeSet::new(),
        };
        let secret = base32(&factor.secret);
        self.store_second_factor(user, factor).await?;
        // https://github.com/google/google-authenticator/wiki/Key-Uri-Format
        let uri = format!("otpauth://totp/sanbox:{user}?secret={secret}&issuer=sanbox");
        Ok(Enrolment { secret, uri })
    }

    /// Has log-ins of a user need the second factor from now on, and returns recovery codes, which are shown once. Durable on return.
    ///
    /// # Errors
    /// [`AccountError::SecondFactor`] when it is not the code of now, [`AccountError::SecondFactorMissing`] without enrolment,
    /// [`AccountError::SecondFactorExists`], [`AccountError::Database`].
    pub async fn confirm_second_factor(
        &self,
        user: &str,
        code: &str,
        now: u64,
    ) -> Result<Vec<String>, AccountError> {
        let _changes = self.changes.lock().await;
        let known = self.tables().factors.get(user).cloned();
        let mut factor = known.ok_or_else(|| AccountError::SecondFactorMissing(user.to_owned()))?;
        if factor.confirmed {
            return Err(AccountError::SecondFactorExists(user.to_owned()));
        }
        factor.step = factor
            .step_of(code, now)
            .ok_or(AccountError::SecondFactor)?;
        factor.confirmed = true;
        let codes = new_recovery_codes()?;
        factor.recovery = codes.iter().map(|code| recovery_hash(code)).collect();
        self.store_second_factor(user, factor).await?;
        Ok(codes)
    }

    /// Removes a user's second factor. Durable on return.
    ///
    /// # Errors
    /// [`AccountError::SecondFactorMissing`], [`AccountError::Database`].
    pub async fn remove_second_factor(&self, user: &str) -> Result<(), AccountError> {
        let _changes = self.changes.lock().await;
        if !self.tables().factors.contains_key(user) {
            return Err(AccountError::SecondFactorMissing(user.to_owned()));
        }
        let stored = user.to_owned();
        self.database
            .call(move |sql| sql.execute("DELETE FROM second_factor WHERE user = ?1", [stored]))
            .await?;
        self.tables().factors.remove(user);
        Ok(())
    }

    /// Checks the code that goes with a right password, and uses it up.
    ///
    /// # Errors
    /// [`AccountError::SecondFactorNeeded`] without a code, [`AccountError::SecondFactor`] with a wrong one; a recovery code whose use
    /// cannot be stored, which could then be used again, is not taken: [`AccountError::Database`].
    pub async fn check_second_factor(
        &self,
        user: &str,
        code: Option<&str>,
        now: u64,
    ) -> Result<(), AccountError> {
        let changed = {
            let mut tables = self.tables();
            let factor = tables
                .factors
                .get_mut(user)
                .filter(|factor| factor.confirmed);
            let Some(factor) = factor else {
                return Ok(());
            };
            let code = code.ok_or(AccountError::SecondFactorNeeded)?;
            if let Some(step) = factor.step_of(code.trim(), now) {
                factor.step = step;
                let user = user.to_owned();
                self.database.record(move |sql| {
                    let used = "UPDATE second_factor SET step = ?2 WHERE user = ?1";
                    sql.execute(used, params![user, step]).map(|_| ())
                });
                return Ok(());
            }
            if !factor.recovery.remove(&recovery_hash(code)) {
                return Err(AccountError::SecondFactor);
            }
            factor.clone()
        };
        self.store_second_factor(user, changed).await
    }

    async fn store_second_factor(
        &self,
        user: &str,
        factor: SecondFactor,
    ) -> Result<(), AccountError> {
        let (name, stored) = (user.to_owned(), factor.clone());
        self.database
            .call(move |sql| {
                let recovery: Vec<_> = stored
                    .recovery
                    .iter()
                    .map(|hash| secret::hex(hash))
                    .collect();
                sql.execute(
                    "INSERT OR REPLACE INTO second_factor VALUES (?1, ?2, ?3, ?4, ?5)",
                    params![
                        name,
                        stored.secret,
                        stored.confirmed,
                        stored.step,
                        recovery.join(" ")
                    ],
                )
            })
            .await?;
        self.tables().factors.insert(user.to_owned(), factor);
        Ok(())
    }
}

impl AccountTables {
    pub(super) fn has_second_factor(&self, user: &str) -> bool {
        self.factors
            .get(user)
            .is_some_and(|factor| factor.confirmed)
    }

    pub(super) fn load_second_factors(
        &mut self,
        sql: &rusqlite::Connection,
    ) -> rusqlite::Result<()> {
        let mut factors =
            sql.prepare("SELECT user, secret, confirmed, step, recovery FROM second_factor")?;
        let mut rows = factors.query([])?;
        while let Some(row) = rows.next()? {
            let recovery: String = row.get(4)?;
            let factor = SecondFactor {
                secret: row.get(1)?,
                confirmed: row.get(2)?,
                step: row.get(3)?,
                recovery: recovery
                    .split_whitespace()
                    .filter_map(secret::unhex)
                    .collect(),
            };
            self.factors.insert(row.get(0)?, factor);
        }
        Ok(())
    }
}

/// Returns the code that an authenticator shows which was told `secret`.
#[cfg(test)]
pub(crate) fn code_of_base32(secret: &str, now: u64) -> Option<String> {
    let mut bits = Vec::new();
    for letter in secret.bytes() {
        let value = BASE32.iter().position(|known| *known == letter)?;
        bits.extend((0..5).rev().map(|bit| u8::from(value >> bit & 1 == 1)));
    }
    let bytes = bits.chunks_exact(8);
    let bytes: Vec<u8> = bytes
        .map(|bits| bits.iter().fold(0, |byte, bit| byte << 1 | bit))
        .collect();
    Some(code_at(&bytes, now / STEP_SECONDS))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{PASSWORD, opened, with_owner};
    use super::*;

    /// RFC 6238, appendix B, the rows of SHA-1, of which the last six digits count here; RFC 4648, 10.
    #[test]
    fn codes_are_those_of_the_standard() {
        for (time, code) in [
            (59_u64, "287082"),
            (1_111_111_109, "081804"),
            (1_111_111_111, "050471"),
            (1_234_567_890, "005924"),
            (2_000_000_000, "279037"),
            (20_000_000_000, "353130"),
        ] {
            assert_eq!(code_at(b"12345678901234567890", time / 30), code);
        }
        for (bytes, text) in [
            ("", ""),
            ("f", "MY"),
            ("foob", "MZXW6YQ"),
            ("foobar", "MZXW6YTBOI"),
        ] {
            assert_eq!(base32(bytes.as_bytes()), text);
        }
    }

    #[tokio::test]
    async fn log_ins_need_the_code_once_it_is_confirmed_and_each_counts_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let (accounts, _) = with_owner(&directory).await;
        let address = "127.0.0.1".parse().expect("an address");
        accounts.enrol_second_factor("ann").await.expect("begun");
        let secret = accounts.tables().factors["ann"].secret;
        let code = |at: u64| code_at(&secret, at / STEP_SECONDS);
        // Not confirmed: the password is enough, so that a user is not locked out by a setup that was not finished.
        accounts
            .log_in("ann", PASSWORD, None, address, 1000)
            .await
            .expect("in");
        let wrong = accounts
            .confirm_second_factor("ann", &code(9000), 1000)
            .await;
        assert!(matches!(wrong, Err(AccountError::SecondFactor)));
        let (now, shown) = (1000, code(1000));
        let confirmed = accounts.confirm_second_factor("ann", &shown, now);
        let recovery = confirmed.await.expect("confirmed");
        assert_eq!(recovery.len(), RECOVERY_CODES);
        let log_in = async |code: Option<&str>, now| {
            accounts.log_in("ann", PASSWORD, code, address, now).await
        };
        let needed = log_in(None, 1100).await;
        assert!(matches!(needed, Err(AccountError::SecondFactorNeeded)));
        for used in [&code(1000), &code(9000), "", "ABCD"] {
            let refused = log_in(Some(used), 1010).await;
            assert!(matches!(refused, Err(AccountError::SecondFactor)), "{used}");
        }
        log_in(Some(&code(1100)), 1110).await.expect("in");
        let again = log_in(Some(&code(1100)), 1110).await;
        assert!(matches!(again, Err(AccountError::SecondFactor)));
        // The clock of the authenticator is a step ahead.
        log_in(Some(&code(1140)), 1115).await.expect("in");
        let spoken = recovery[0].to_lowercase().replace('-', " ");
        log_in(Some(&spoken), 1120).await.expect("in");
        assert!(log_in(Some(&recovery[0]), 1120).await.is_err());
        assert_eq!(
            accounts.second_factor("ann").recovery_codes,
            RECOVERY_CODES - 1
        );
        let accounts = opened(&directory, 2000).await;
        assert!(accounts.users()[0].second_factor);
        let again = accounts
            .log_in("ann", PASSWORD, Some(&recovery[0]), address, 5000)
            .await;
        assert!(matches!(again, Err(AccountError::SecondFactor)));
        accounts.remove_second_factor("ann").await.expect("removed");
        accounts
            .log_in("ann", PASSWORD, None, address, 6000)
            .await
            .expect("in");
    }
}
