//! Users whom an LDAP directory or an OpenID Connect provider knows: they have no password here, and their role anew at each log-in.
//!
//! A user of the appliance itself is never taken for one of these, whatever the name: an account that an owner made is not taken over from elsewhere.

use std::net::IpAddr;

use rusqlite::params;

use super::{AccountError, AccountTables, Accounts, NewSession, Role, User, check_name};

/// Who knows users beside the appliance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directory {
    /// The LDAP directory.
    Ldap,
    /// The OpenID Connect provider.
    Oidc,
}

impl Directory {
    /// Returns its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ldap => "ldap",
            Self::Oidc => "oidc",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Ldap, Self::Oidc];
        all.into_iter().find(|directory| directory.as_str() == name)
    }
}

/// Why a directory lets a user not in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Wrong name or password.
    Credentials,
    /// The user is in no group that has a role here.
    NoRole,
    /// It does not answer, or not as it should: for the log, in words.
    Unavailable(String),
}

impl Accounts {
    /// Whether the appliance itself has a password of this user, so that no directory is asked.
    #[must_use]
    pub fn has_password(&self, name: &str) -> bool {
        let tables = self.tables();
        let user = tables.users.get(name);
        user.is_some_and(|user| !user.password.is_empty())
    }

    /// Checks that a log-in may be tried from this address: the same bounds hold for all ways in.
    ///
    /// # Errors
    /// [`AccountError::Wait`], [`AccountError::Credentials`] for what is no name.
    pub fn may_try(&self, name: &str, address: IpAddr, now: u64) -> Result<(), AccountError> {
        let is_name = check_name(name).is_ok();
        let counted = if is_name { name } else { "" };
        let mut tables = self.tables();
        if let Some(seconds) = tables.attempts.wait(address, counted, now) {
            return Err(AccountError::Wait(seconds));
        }
        if !is_name {
            tables.attempts.failed(address, counted, now);
            return Err(AccountError::Credentials);
        }
        Ok(())
    }

    /// Counts a log-in that failed.
    pub fn failed(&self, name: &str, address: IpAddr, now: u64) {
        self.tables().attempts.failed(address, name, now);
    }

    /// Begins a session of a user whom a directory knows, or counts a failure of its password. A second factor that the user has here is
    /// asked for behind a password; a provider has its own.
    ///
    /// # Errors
    /// As [`Accounts::log_in`]; [`AccountError::Directory`] when it does not answer, [`AccountError::NoRole`],
    /// [`AccountError::NotOfDirectory`] when there is a user of that name whom it does not know.
    pub async fn log_in_by(
        &self,
        directory: Directory,
        name: &str,
        answer: Result<Role, Refusal>,
        code: Option<&str>,
        origin: (IpAddr, u64),
    ) -> Result<NewSession, AccountError> {
        let (address, now) = origin;
        let role = match answer {
            Ok(role) => role,
            Err(Refusal::Credentials) => {
                self.tables().attempts.failed(address, name, now);
                return Err(AccountError::Credentials);
            }
            Err(Refusal::NoRole) => return Err(AccountError::NoRole(name.to_owned())),
            Err(Refusal::Unavailable(_)) => return Err(AccountError::Directory),
        };
        if directory == Directory::Ldap {
            match self.check_second_factor(name, code, now).await {
                Err(AccountError::SecondFactor) => {
                    self.tables().attempts.failed(address, name, now);
                    return Err(AccountError::SecondFactor);
                }
                checked => checked?,
            }
        }
        self.admit(directory, name, role, now).await?;
        self.tables().attempts.succeeded(address, name);
        self.begin_session(name, now)
    }

    /// Makes a user of a directory, or gives one the role that the user has there now.
    async fn admit(
        &self,
        directory: Directory,
        name: &str,
        role: Role,
        now: u64,
    ) -> Result<(), AccountError> {
        let _changes = self.changes.lock().await;
        check_name(name)?;
        let known = self.tables().check_admission(directory, name)?;
        let source = directory.as_str();
        if known != Some(role) {
            let stored = name.to_owned();
            self.database
                .call(move |sql| {
                    let transaction = sql.transaction()?;
                    transaction.execute(
                        "INSERT INTO user VALUES (?1, ?2, '', ?3) ON CONFLICT (name) DO UPDATE SET role = ?2",
                        params![stored, role.as_str(), now],
                    )?;
                    transaction.execute(
                        "INSERT OR REPLACE INTO directory_user VALUES (?1, ?2)",
                        params![stored, source],
                    )?;
                    transaction.commit()
                })
                .await?;
        }
        let mut tables = self.tables();
        let user = tables.users.entry(name.to_owned()).or_insert(User {
            role,
            password: String::new(),
            created: now,
        });
        user.role = role;
        tables.directory.insert(name.to_owned(), directory);
        Ok(())
    }
}

impl AccountTables {
    /// Returns the role that a user of a directory has had so far; none of one who is new.
    fn check_admission(
        &self,
        directory: Directory,
        name: &str,
    ) -> Result<Option<Role>, AccountError> {
        match (self.users.get(name), self.directory.get(name)) {
            (Some(user), Some(known)) if *known == directory => Ok(Some(user.role)),
            (Some(_), _) => Err(AccountError::NotOfDirectory(name.to_owned())),
            (None, _) if self.users.len() >= super::USERS_MAX => Err(AccountError::Full),
            (None, _) => Ok(None),
        }
    }

    /// Reads who is a user of a directory.
    pub(super) fn load_directory(&mut self, sql: &rusqlite::Connection) -> rusqlite::Result<()> {
        let mut rows = sql.prepare("SELECT user, source FROM directory_user")?;
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            let source: String = row.get(1)?;
            if let Some(directory) = Directory::from_name(&source) {
                self.directory.insert(row.get(0)?, directory);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{PASSWORD, opened, with_owner};
    use super::super::{NewKey, NewSession};
    use super::*;

    const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    async fn by(
        accounts: &Accounts,
        directory: Directory,
        name: &str,
        answer: Result<Role, Refusal>,
        now: u64,
    ) -> Result<NewSession, AccountError> {
        let logged = accounts.log_in_by(directory, name, answer, None, (HOME, now));
        logged.await
    }

    #[tokio::test]
    async fn users_of_a_directory_have_their_role_anew_and_no_key() {
        let place = tempfile::tempdir().expect("a directory");
        let (accounts, _) = with_owner(&place).await;
        let ldap = Directory::Ldap;
        let bob = by(&accounts, ldap, "bob", Ok(Role::Operator), 1).await;
        assert_eq!(bob.expect("in").session.role, Role::Operator);
        drop(accounts);
        let accounts = opened(&place, 2).await;
        let users = accounts.users();
        assert_eq!(
            (users[1].name.as_str(), users[1].directory),
            ("bob", Some("ldap"))
        );
        let bob = by(&accounts, ldap, "bob", Ok(Role::Viewer), 3)
            .await
            .expect("in");
        assert_eq!(bob.session.role, Role::Viewer);
        let key = NewKey {
            name: "k".to_owned(),
            role: None,
            datasets: Vec::new(),
            expires: None,
        };
        let key = accounts.make_key("bob", key, Role::Owner, 4).await;
        assert!(
            matches!(key, Err(AccountError::Key(_))),
            "it would outlive the user there"
        );
        // Nor can they be given a password, which the directory would not know of.
        let passwd = accounts.reset_password("bob", PASSWORD).await;
        assert!(matches!(passwd, Err(AccountError::OfDirectory(_))));
        accounts.remove_user("bob").await.expect("removed");
        assert!(accounts.session(&bob.secret, 5).is_none());
        assert_eq!(opened(&place, 6).await.users().len(), 1);
    }

    #[tokio::test]
    async fn nobody_elsewhere_takes_over_a_user_of_the_appliance() {
        let place = tempfile::tempdir().expect("a directory");
        let (accounts, _) = with_owner(&place).await;
        let added = accounts.add_user("script", None, Role::Owner, 1);
        added.await.expect("added");
        for name in ["ann", "script"] {
            for directory in [Directory::Ldap, Directory::Oidc] {
                let taken = by(&accounts, directory, name, Ok(Role::Viewer), 1).await;
                assert!(
                    matches!(taken, Err(AccountError::NotOfDirectory(_))),
                    "{name}"
                );
            }
        }
        assert!(accounts.has_password("ann") && !accounts.has_password("script"));
        by(&accounts, Directory::Ldap, "eve", Ok(Role::Viewer), 1)
            .await
            .expect("in");
        let other = by(&accounts, Directory::Oidc, "eve", Ok(Role::Owner), 1).await;
        assert!(matches!(other, Err(AccountError::NotOfDirectory(_))));
        assert_eq!(accounts.role("eve"), Some(Role::Viewer));
        for bad in ["Eve", "", "a b", "../x"] {
            let bad = by(&accounts, Directory::Oidc, bad, Ok(Role::Owner), 1).await;
            assert!(matches!(bad, Err(AccountError::Name)));
        }
    }

    #[tokio::test]
    async fn refusals_are_told_apart_and_wrong_passwords_cost_time() {
        let place = tempfile::tempdir().expect("a directory");
        let (accounts, _) = with_owner(&place).await;
        let ldap = Directory::Ldap;
        let none = by(&accounts, ldap, "bob", Err(Refusal::NoRole), 1).await;
        assert!(matches!(none, Err(AccountError::NoRole(_))));
        let down = Err(Refusal::Unavailable("down".to_owned()));
        let down = by(&accounts, ldap, "bob", down, 1).await;
        assert!(matches!(down, Err(AccountError::Directory)));
        for _ in 0..8 {
            accounts.may_try("bob", HOME, 1).ok();
            let wrong = by(&accounts, ldap, "bob", Err(Refusal::Credentials), 1).await;
            assert!(matches!(wrong, Err(AccountError::Credentials)));
        }
        let blocked = accounts.may_try("bob", HOME, 1);
        assert!(matches!(blocked, Err(AccountError::Wait(_))));
        assert!(accounts.role("bob").is_none(), "nobody was made");
        // A local owner is let in while the directory is down.
        let ann = accounts.log_in("ann", PASSWORD, None, "::2".parse().expect("an address"), 1);
        ann.await.expect("in");
    }
}
