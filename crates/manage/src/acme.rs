//! What became of a certificate by ACME (RFC 8555): the one that was issued, when it is renewed, and how long an authority is left alone
//! after a failure. It is kept in the state directory, so that a daemon that is started again and again asks no authority more often.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::config::Acme;
use crate::state::replace_file;

/// The file of the state directory.
const FILE: &str = "acme.json";
/// The file of the state directory that has the account at the authority, with its key.
pub const ACCOUNT_FILE: &str = "acme-account.json";
/// Seconds after the first failure; each further one doubles them. Let's Encrypt takes five failures an hour for an account and a name.
const FIRST_WAIT_SECONDS: u64 = 15 * 60;
/// The longest wait after a failure.
const WAIT_SECONDS_MAX: u64 = 24 * 3600;
/// The longest that an authority's wish to be left alone is obeyed, so that a date by mistake does not end renewals.
const ASKED_SECONDS_MAX: u64 = 7 * 86_400;

/// A certificate that was issued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issued {
    /// Its names, as they were set.
    pub names: Vec<String>,
    /// The directory of who issued it.
    pub directory: String,
    /// Its SHA-256 fingerprint.
    pub fingerprint: String,
    /// The end of its validity, seconds since 1970.
    pub ends: u64,
    /// When it is to be renewed, seconds since 1970.
    pub renewed_at: u64,
}

/// Why there is no certificate, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AcmeFailure {
    /// What happened.
    pub fact: String,
    /// What to do about it.
    pub next_step: String,
}

/// See the module. Times are in seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AcmeProgress {
    /// The certificate that was issued last.
    pub issued: Option<Issued>,
    /// The last attempt.
    pub tried: Option<u64>,
    /// What became of it, if it failed.
    pub failure: Option<AcmeFailure>,
    /// Attempts that failed, one after the other.
    pub failures: u32,
    /// The settings of those.
    failed_with: Option<Acme>,
    /// No attempt with the same settings before this time.
    wait_until: u64,
    /// No attempt at the same authority before this time: it said so.
    asked_until: u64,
}

impl AcmeProgress {
    /// Reads what is known; nothing where there is no file, or a damaged one.
    #[must_use]
    pub fn read(state: &Path) -> Self {
        let text = std::fs::read(state.join(FILE)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Keeps it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, state: &Path) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(self)?;
        replace_file(&state.join(FILE), &text)
    }

    /// Returns when a certificate is to be asked for; 0 is at once. `in_use` is the fingerprint of the console's.
    #[must_use]
    pub fn next_attempt(&self, settings: &Acme, in_use: Option<&str>) -> u64 {
        let wanted = self
            .issued
            .as_ref()
            .filter(|issued| issued.names == settings.names)
            .filter(|issued| issued.directory == settings.directory)
            .filter(|issued| in_use == Some(issued.fingerprint.as_str()))
            .map_or(0, |issued| issued.renewed_at);
        let waits = self.failed_with.as_ref() == Some(settings);
        let own = if waits { self.wait_until } else { 0 };
        wanted.max(own).max(self.asked_until(settings))
    }

    /// Returns until when the authority of these settings is to be left alone, because it said so; 0 where it did not.
    #[must_use]
    pub fn asked_until(&self, settings: &Acme) -> u64 {
        let failed = self.failed_with.as_ref();
        let same = failed.is_some_and(|failed| failed.directory == settings.directory);
        if same { self.asked_until } else { 0 }
    }

    /// Notes a certificate, whose validity begins and ends at these times. `random` spreads the renewals of many appliances.
    pub fn succeeded(&mut self, now: u64, mut issued: Issued, begins: u64, random: u64) {
        // Let's Encrypt asks for renewal when a third of the lifetime is left (letsencrypt.org/docs/integration-guide).
        let lifetime = issued.ends.saturating_sub(begins);
        let at = issued.ends.saturating_sub(lifetime / 3);
        issued.renewed_at = at.saturating_sub(random % (lifetime / 30 + 1));
        *self = Self {
            issued: Some(issued),
            tried: Some(now),
            ..Self::default()
        };
    }

    /// Notes a failure. `retry_at` is when the authority wants to be asked again, if it said so.
    pub fn failed(
        &mut self,
        now: u64,
        settings: &Acme,
        failure: AcmeFailure,
        retry_at: Option<u64>,
        random: u64,
    ) {
        if self.failed_with.as_ref() != Some(settings) {
            self.failures = 0;
        }
        let doubled = FIRST_WAIT_SECONDS << self.failures.min(10);
        let wait = doubled.min(WAIT_SECONDS_MAX);
        self.wait_until = now + wait + random % (wait / 10);
        let most = now + ASKED_SECONDS_MAX;
        self.asked_until = retry_at.map_or(0, |retry| retry.min(most));
        self.failures = self.failures.saturating_add(1);
        self.failure = Some(failure);
        self.tried = Some(now);
        self.failed_with = Some(settings.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;
    const NOW: u64 = 2_000_000_000;

    fn settings(name: &str) -> Acme {
        Acme {
            names: vec![name.to_owned()],
            ..Acme::default()
        }
    }

    fn issued(settings: &Acme) -> Issued {
        Issued {
            names: settings.names.clone(),
            directory: settings.directory.clone(),
            fingerprint: "AA".to_owned(),
            ends: NOW + 90 * DAY,
            renewed_at: 0,
        }
    }

    #[test]
    fn renewed_when_a_third_of_the_lifetime_is_left() {
        let own = settings("box.example.org");
        let mut progress = AcmeProgress::default();
        assert_eq!(progress.next_attempt(&own, None), 0);
        for random in [0, 1_234_567, u64::MAX] {
            progress.succeeded(NOW, issued(&own), NOW, random);
            let at = progress.next_attempt(&own, Some("AA"));
            assert!((NOW + 57 * DAY..=NOW + 60 * DAY).contains(&at), "{at}");
        }
        assert_eq!(progress.next_attempt(&own, Some("BB")), 0, "another one");
        let other = settings("other.example.org");
        assert_eq!(progress.next_attempt(&other, Some("AA")), 0);
        let moved = Acme {
            directory: "https://ca/".to_owned(),
            ..own.clone()
        };
        assert_eq!(progress.next_attempt(&moved, Some("AA")), 0);
    }

    #[test]
    fn failures_are_further_and_further_apart_and_the_authority_is_obeyed() {
        let own = settings("box.example.org");
        let mut progress = AcmeProgress::default();
        progress.succeeded(NOW, issued(&own), NOW, 0);
        let due = NOW + 60 * DAY;
        let mut waits = Vec::new();
        for _ in 0..10 {
            progress.failed(due, &own, AcmeFailure::default(), None, 0);
            waits.push(progress.next_attempt(&own, Some("AA")) - due);
        }
        assert_eq!(waits[..3], [900, 1800, 3600]);
        assert_eq!(waits[9], DAY);
        let issued = progress.issued.as_ref().expect("the one before");
        assert_eq!(issued.fingerprint, "AA");
        // Other settings are tried at once, unless the authority wants to be left alone.
        let other = settings("other.example.org");
        assert_eq!(progress.next_attempt(&other, Some("AA")), 0);
        let asked = Some(due + 2 * DAY);
        progress.failed(due, &own, AcmeFailure::default(), asked, 0);
        assert_eq!(progress.next_attempt(&other, None), due + 2 * DAY);
        progress.failed(due, &own, AcmeFailure::default(), Some(u64::MAX), 0);
        assert_eq!(progress.asked_until(&own), due + 7 * DAY);
        let moved = Acme {
            directory: "https://ca/".to_owned(),
            ..own.clone()
        };
        assert_eq!(progress.next_attempt(&moved, None), 0);
        progress.succeeded(due, super::tests::issued(&own), due, 0);
        assert_eq!((progress.failures, progress.failure.as_ref()), (0, None));
    }

    #[test]
    fn kept_and_read_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut progress = AcmeProgress::default();
        let own = settings("box.example.org");
        progress.failed(NOW, &own, AcmeFailure::default(), Some(NOW + 5), 7);
        progress.write(directory.path()).expect("written");
        assert_eq!(AcmeProgress::read(directory.path()), progress);
        std::fs::write(directory.path().join(FILE), "half").expect("written");
        assert_eq!(
            AcmeProgress::read(directory.path()),
            AcmeProgress::default()
        );
    }
}
