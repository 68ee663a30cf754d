//! Sessions of users: begun by a log-in, ended by a log-out or by time.

use rusqlite::params;

use super::{AccountError, Accounts, SessionUser, USE_STORED_SECONDS, no_secret};
use crate::secret::{self, SecretHash};

/// Seconds without a request after which a session ends (OWASP ASVS 4.0, 3.3.2).
pub const SESSION_IDLE_SECONDS: u64 = 30 * 60;
/// Seconds after which a session ends in any case.
pub const SESSION_SECONDS: u64 = 12 * 3600;
/// Sessions of one user; for one more the oldest ends.
pub(super) const SESSIONS_OF_USER_MAX: usize = 32;

#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) user: String,
    pub(super) csrf: String,
    pub(super) created: u64,
    pub(super) used: u64,
    /// `used` as it is in the database.
    pub(super) stored: u64,
}

impl Session {
    pub(super) fn is_over(&self, now: u64) -> bool {
        now.saturating_sub(self.used) >= SESSION_IDLE_SECONDS
            || now.saturating_sub(self.created) >= SESSION_SECONDS
    }
}

/// A session that has just begun.
#[derive(Clone, Debug)]
pub struct NewSession {
    /// What the client shows from now on.
    pub secret: String,
    /// The session.
    pub session: SessionUser,
}

impl Accounts {
    /// Returns the user of the session with this secret, and counts the use; `None` when it has ended or never was.
    #[must_use]
    pub fn session(&self, secret: &str, now: u64) -> Option<SessionUser> {
        let hash = secret::hash(secret);
        let mut tables = self.tables();
        let session = tables.sessions.get_mut(&hash)?;
        if session.is_over(now) {
            tables.sessions.remove(&hash);
            self.forget_session(hash);
            return None;
        }
        session.used = now.max(session.used);
        if session.used - session.stored >= USE_STORED_SECONDS {
            let used = session.used;
            session.stored = used;
            self.database.record(move |sql| {
                sql.execute(
                    "UPDATE session SET used = ?2 WHERE hash = ?1",
                    params![hash, used],
                )
                .map(|_| ())
            });
        }
        let (name, csrf) = (session.user.clone(), session.csrf.clone());
        let role = tables.role_of(&name)?;
        Some(SessionUser {
            name,
            role,
            csrf,
            session: hash,
            key: None,
        })
    }

    /// Whether a session goes on, or a key is valid; this does not count as a use of it.
    #[must_use]
    pub fn is_current(&self, session: SecretHash, now: u64) -> bool {
        let tables = self.tables();
        let key = tables.keys.get(&session);
        let session = tables.sessions.get(&session);
        session.is_some_and(|session| !session.is_over(now))
            || key.is_some_and(|key| !key.is_over(now))
    }

    /// Ends a session.
    pub fn log_out(&self, session: SecretHash) {
        self.tables().sessions.remove(&session);
        self.forget_session(session);
    }

    pub(super) fn begin_session(&self, name: &str, now: u64) -> Result<NewSession, AccountError> {
        let secret = secret::generate().map_err(no_secret)?;
        let hash = secret::hash(&secret);
        let session = Session {
            user: name.to_owned(),
            csrf: secret::derived(&secret, "csrf"),
            created: now,
            used: now,
            stored: now,
        };
        let mut tables = self.tables();
        let Some(role) = tables.role_of(name) else {
            return Err(AccountError::Credentials);
        };
        let over = |(hash, session): (&SecretHash, &Session)| session.is_over(now).then_some(*hash);
        let mut ended: Vec<SecretHash> = tables.sessions.iter().filter_map(over).collect();
        let own = tables
            .sessions
            .iter()
            .filter(|(hash, session)| session.user == name && !ended.contains(hash));
        let mut own: Vec<(u64, SecretHash)> =
            own.map(|(hash, session)| (session.used, *hash)).collect();
        own.sort_unstable();
        let beyond = (own.len() + 1).saturating_sub(SESSIONS_OF_USER_MAX);
        ended.extend(own.iter().take(beyond).map(|(_, hash)| *hash));
        for hash in ended {
            tables.sessions.remove(&hash);
            self.forget_session(hash);
        }
        tables.sessions.insert(hash, session.clone());
        let csrf = session.csrf.clone();
        self.database.record(move |sql| {
            sql.execute(
                "INSERT INTO session VALUES (?1, ?2, ?3, ?4, ?4)",
                params![hash, session.user, session.csrf, now],
            )
            .map(|_| ())
        });
        Ok(NewSession {
            secret,
            session: SessionUser {
                name: name.to_owned(),
                role,
                csrf,
                session: hash,
                key: None,
            },
        })
    }

    fn forget_session(&self, hash: SecretHash) {
        self.database.record(move |sql| {
            sql.execute("DELETE FROM session WHERE hash = ?1", [hash])
                .map(|_| ())
        });
    }
}
