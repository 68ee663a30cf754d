//! Who may use the API: the one-time setup, users with their roles, sessions; API keys (`keys`) and second factors (`totp`).
//!
//! Everything needed to answer a request is in memory; the database is written, never waited for by a request that only reads.
//! Users are changed in the database first: what was answered holds after a restart. Sessions and setup links are stored where that
//! is possible, and hold for this run where it is not. Passwords are kept as argon2id hashes, secrets as SHA-256 hashes.

mod directory;
mod error;
mod groups;
mod keys;
mod password;
mod session;
mod ssh_keys;
mod totp;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::params;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use utoipa::ToSchema;

use crate::attempts::Attempts;
use crate::database::{self, Database, Opened};
use crate::secret::{self, SecretHash};

pub use directory::{Directory, Refusal};
pub use error::AccountError;
use error::no_secret;
use groups::Group;
pub use groups::{GroupEntry, NewGroup, groups_of_machine};
use keys::ApiKey;
pub use keys::{KeyUse, KeyView, NewKey};
use password::{check_password, hash_password, verify_password};
use session::Session;
pub use session::{NewSession, SESSION_IDLE_SECONDS, SESSION_SECONDS};
use ssh_keys::KeptSshKey;
pub use ssh_keys::{SshKey, SshKeyView};
use totp::SecondFactor;
#[cfg(test)]
pub(crate) use totp::code_of_base32;
pub use totp::{Enrolment, SecondFactorState};

/// Characters of a password, at least (OWASP ASVS 4.0, 2.1.1).
pub const PASSWORD_CHARACTERS_MIN: usize = 12;
/// Bytes of a password, at most.
pub const PASSWORD_BYTES_MAX: usize = 256;
/// The file of the state directory that has the groups, in the form of `/etc/group`.
pub const GROUPS_FILE: &str = "groups";
/// Users.
const USERS_MAX: usize = 1000;
/// Setup links that are valid at a time: those of the last starts.
const SETUP_TOKENS_MAX: usize = 8;
/// Passwords hashed at a time: each takes 19 MiB and a processor for some time.
const HASHINGS_MAX: usize = 2;
/// The use of a session is stored no more often than this, in seconds.
const USE_STORED_SECONDS: u64 = 60;

/// What a user may do. Each may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Look.
    Viewer,
    /// Change datasets, snapshots and shares.
    Operator,
    /// Everything.
    Owner,
}

impl Role {
    /// Returns its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Owner => "owner",
        }
    }

    /// Returns the role of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Viewer, Self::Operator, Self::Owner]
            .into_iter()
            .find(|role| role.as_str() == name)
    }
}

#[derive(Clone, Debug)]
struct User {
    role: Role,
    /// PHC string of argon2id; empty when no password lets the user in.
    password: String,
    created: u64,
}

/// The user of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionUser {
    /// Name.
    pub name: String,
    /// Role now.
    pub role: Role,
    /// What the client repeats in each change that it asks for; empty with a key, which no page can make a browser show.
    pub csrf: String,
    /// The session, or the key.
    pub session: SecretHash,
    /// The API key that was shown in place of a session.
    pub key: Option<KeyUse>,
}

impl SessionUser {
    /// Whether it is a key for some datasets alone.
    #[must_use]
    pub fn is_for_datasets(&self) -> bool {
        self.key
            .as_ref()
            .is_some_and(|key| !key.datasets.is_empty())
    }

    /// Whether what was shown reaches a dataset, snapshot or bookmark: a key may be for some alone.
    #[must_use]
    pub fn reaches(&self, name: &str) -> bool {
        self.key.as_ref().is_none_or(|key| key.reaches(name))
    }

    /// Returns who it is as logs show it.
    #[must_use]
    pub fn shown(&self) -> String {
        match &self.key {
            Some(key) => format!("{} (key {})", self.name, key.name),
            None => self.name.clone(),
        }
    }
}

/// A user, for a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct UserEntry {
    /// Name.
    pub name: String,
    /// Role: the own one, or a higher one of a group.
    pub role: Role,
    /// The user's own role.
    pub own_role: Role,
    /// Creation, seconds since 1970.
    pub created: u64,
    /// A password lets the user in; without one only API keys do.
    pub password: bool,
    /// A log-in needs a second factor.
    pub second_factor: bool,
    /// Who knows the user in place of the appliance: `ldap` or `oidc`. The role is then that of the last log-in.
    pub directory: Option<&'static str>,
}

#[derive(Debug, Default)]
struct AccountTables {
    users: BTreeMap<String, User>,
    sessions: BTreeMap<SecretHash, Session>,
    keys: BTreeMap<SecretHash, ApiKey>,
    ssh_keys: Vec<KeptSshKey>,
    groups: BTreeMap<String, Group>,
    /// Users who have no password here because others know them.
    directory: BTreeMap<String, Directory>,
    factors: BTreeMap<String, SecondFactor>,
    setup_tokens: Vec<SecretHash>,
    attempts: Attempts,
}

/// See the module.
#[derive(Debug)]
pub struct Accounts {
    database: Database,
    tables: Mutex<AccountTables>,
    hashings: Semaphore,
    /// Changes of users, one at a time: each is checked, stored, and then in force.
    changes: tokio::sync::Mutex<()>,
    /// Compared with when there is no such user, so that the answer takes as long.
    no_user: String,
    /// The groups in the form of `/etc/group`.
    groups_file: PathBuf,
}

impl Accounts {
    /// Opens the accounts in the database at `path`, making it if need be. `now` is in seconds since 1970, here and everywhere.
    ///
    /// # Errors
    /// The database can be neither read nor made.
    pub async fn open(path: PathBuf, now: u64) -> Result<(Self, Opened), AccountError> {
        let groups_file = path.with_file_name(GROUPS_FILE);
        let (database, how) = Database::open(path).await?;
        let tables = database.call(move |sql| load(sql, now)).await?;
        let no_user = hash_password(&secret::generate().map_err(no_secret)?)?;
        let accounts = Self {
            database,
            tables: Mutex::new(tables),
            hashings: Semaphore::new(HASHINGS_MAX),
            changes: tokio::sync::Mutex::default(),
            no_user,
            groups_file,
        };
        accounts.write_groups();
        Ok((accounts, how))
    }

    /// Returns the database, for what else is kept in it.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Whether there is no owner yet who can log in.
    #[must_use]
    pub fn needs_setup(&self) -> bool {
        let is_owner = |user: &User| user.role == Role::Owner && !user.password.is_empty();
        !self.tables().users.values().any(is_owner)
    }

    /// Makes a setup token, valid until an owner was made with one. It is on the disk when this returns, if the disk takes it.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub async fn new_setup_token(&self, now: u64) -> Result<String, AccountError> {
        let token = secret::generate().map_err(no_secret)?;
        let hash = secret::hash(&token);
        {
            let mut tables = self.tables();
            let beyond = (tables.setup_tokens.len() + 1).saturating_sub(SETUP_TOKENS_MAX);
            tables.setup_tokens.drain(..beyond);
            tables.setup_tokens.push(hash);
        }
        let _ = self
            .database
            .call(move |sql| {
                sql.execute(
                    "INSERT INTO setup_token VALUES (?1, ?2)",
                    params![hash, now],
                )?;
                sql.execute(
                    "DELETE FROM setup_token WHERE hash NOT IN
                     (SELECT hash FROM setup_token ORDER BY created DESC, rowid DESC LIMIT ?1)",
                    [SETUP_TOKENS_MAX as u64],
                )
            })
            .await;
        Ok(token)
    }

    /// Makes the owner with a setup token, which ends all of these, and begins a session. Durable on return.
    ///
    /// # Errors
    /// [`AccountError::SetupToken`], [`AccountError::Wait`], a bad name or password, [`AccountError::Database`].
    pub async fn set_up(
        &self,
        token: &str,
        name: &str,
        password: &str,
        address: IpAddr,
        now: u64,
    ) -> Result<NewSession, AccountError> {
        let _changes = self.changes.lock().await;
        let hash = secret::hash(token);
        let is_valid = self.needs_setup() && {
            let mut tables = self.tables();
            if let Some(seconds) = tables.attempts.wait(address, "", now) {
                return Err(AccountError::Wait(seconds));
            }
            let is_valid = tables.setup_tokens.contains(&hash);
            if !is_valid {
                tables.attempts.failed(address, "", now);
            }
            is_valid
        };
        if !is_valid {
            return Err(AccountError::SetupToken);
        }
        self.insert_user(name, Some(password), Role::Owner, now)
            .await?;
        self.tables().setup_tokens.clear();
        self.begin_session(name, now)
    }

    /// Begins a session of a user who knows the password, and shows the code of the second factor if there is one.
    ///
    /// # Errors
    /// [`AccountError::Credentials`], [`AccountError::SecondFactorNeeded`], [`AccountError::SecondFactor`], [`AccountError::Wait`],
    /// [`AccountError::Busy`].
    pub async fn log_in(
        &self,
        name: &str,
        password: &str,
        code: Option<&str>,
        address: IpAddr,
        now: u64,
    ) -> Result<NewSession, AccountError> {
        self.verify(name, password, address, now).await?;
        match self.check_second_factor(name, code, now).await {
            Err(AccountError::SecondFactor) => {
                self.tables().attempts.failed(address, name, now);
                return Err(AccountError::SecondFactor);
            }
            checked => checked?,
        }
        self.tables().attempts.succeeded(address, name);
        self.begin_session(name, now)
    }

    /// Checks a password, and counts a wrong one.
    async fn verify(
        &self,
        name: &str,
        password: &str,
        address: IpAddr,
        now: u64,
    ) -> Result<(), AccountError> {
        // Names that are none are counted as one, so that they fill no memory.
        let counted = if check_name(name).is_ok() { name } else { "" };
        let (known, stored) = {
            let tables = self.tables();
            if let Some(seconds) = tables.attempts.wait(address, counted, now) {
                return Err(AccountError::Wait(seconds));
            }
            let user = tables.users.get(name);
            let stored = user.map(|user| &user.password);
            let stored = stored.filter(|password| !password.is_empty());
            (stored.is_some(), stored.unwrap_or(&self.no_user).clone())
        };
        let is_right = password.len() <= PASSWORD_BYTES_MAX && {
            let password = password.to_owned();
            self.hashing(move || verify_password(&password, &stored))
                .await?
        };
        if known && is_right {
            return Ok(());
        }
        self.tables().attempts.failed(address, counted, now);
        Err(AccountError::Credentials)
    }

    /// Returns the role of a user: the own one, or a higher one of a group.
    #[must_use]
    pub fn role(&self, name: &str) -> Option<Role> {
        self.tables().role_of(name)
    }

    /// Lists the users in the order of their names.
    #[must_use]
    pub fn users(&self) -> Vec<UserEntry> {
        let tables = self.tables();
        let entry = |(name, user): (&String, &User)| UserEntry {
            name: name.clone(),
            role: tables.role_of(name).unwrap_or(user.role),
            own_role: user.role,
            created: user.created,
            password: !user.password.is_empty(),
            second_factor: tables.has_second_factor(name),
            directory: tables
                .directory
                .get(name)
                .map(|directory| directory.as_str()),
        };
        tables.users.iter().map(entry).collect()
    }

    /// Makes a user; without a password one who has API keys only. Durable on return.
    ///
    /// # Errors
    /// A bad name or password, [`AccountError::Exists`], [`AccountError::Database`].
    pub async fn add_user(
        &self,
        name: &str,
        password: Option<&str>,
        role: Role,
        now: u64,
    ) -> Result<(), AccountError> {
        let _changes = self.changes.lock().await;
        self.insert_user(name, password, role, now).await
    }

    /// Removes a user, and ends the user's sessions and keys. Durable on return.
    ///
    /// # Errors
    /// [`AccountError::Missing`], [`AccountError::LastOwner`], [`AccountError::Database`].
    pub async fn remove_user(&self, name: &str) -> Result<(), AccountError> {
        let _changes = self.changes.lock().await;
        self.tables().check_not_last_owner(name)?;
        let stored = name.to_owned();
        self.database
            .call(move |sql| {
                let transaction = sql.transaction()?;
                for of_user in [
                    "DELETE FROM user WHERE name = ?1",
                    "DELETE FROM session WHERE user = ?1",
                    "DELETE FROM api_key WHERE user = ?1",
                    "DELETE FROM ssh_key WHERE user = ?1",
                    "DELETE FROM second_factor WHERE user = ?1",
                    "DELETE FROM group_member WHERE user = ?1",
                    "DELETE FROM directory_user WHERE user = ?1",
                ] {
                    transaction.execute(of_user, [&stored])?;
                }
                transaction.commit()
            })
            .await?;
        let mut tables = self.tables();
        tables.users.remove(name);
        tables.sessions.retain(|_, session| session.user != name);
        tables.keys.retain(|_, key| key.user != name);
        tables.ssh_keys.retain(|kept| !kept.is_of(name));
        tables.factors.remove(name);
        tables.directory.remove(name);
        tables.leave_groups(name);
        drop(tables);
        self.write_groups();
        Ok(())
    }

    /// Changes a user's role, that of the user's sessions and keys with it. Durable on return.
    ///
    /// # Errors
    /// [`AccountError::Missing`], [`AccountError::LastOwner`], [`AccountError::Database`].
    pub async fn change_role(&self, name: &str, role: Role) -> Result<(), AccountError> {
        let _changes = self.changes.lock().await;
        if role == Role::Owner {
            self.role(name)
                .ok_or_else(|| AccountError::Missing(name.to_owned()))?;
        } else {
            self.tables().check_not_last_owner(name)?;
        }
        let stored = name.to_owned();
        self.database
            .call(move |sql| {
                let change = "UPDATE user SET role = ?2 WHERE name = ?1";
                sql.execute(change, params![stored, role.as_str()])
            })
            .await?;
        if let Some(user) = self.tables().users.get_mut(name) {
            user.role = role;
        }
        Ok(())
    }

    /// Changes a user's own password, and ends the user's other sessions. Durable on return.
    ///
    /// # Errors
    /// [`AccountError::Credentials`] when `current` is not the password, a bad password, [`AccountError::Wait`],
    /// [`AccountError::Database`].
    pub async fn change_password(
        &self,
        user: &SessionUser,
        current: &str,
        new: &str,
        address: IpAddr,
        now: u64,
    ) -> Result<(), AccountError> {
        check_password(new)?;
        self.verify(&user.name, current, address, now).await?;
        self.store_password(&user.name, new, Some(user.session))
            .await
    }

    /// Gives a user a new password, and ends all of the user's sessions. Durable on return.
    ///
    /// # Errors
    /// [`AccountError::Missing`], a bad password, [`AccountError::Database`].
    pub async fn reset_password(&self, name: &str, new: &str) -> Result<(), AccountError> {
        check_password(new)?;
        self.store_password(name, new, None).await
    }

    /// Stores a password, and ends all sessions of the user but `own`.
    async fn store_password(
        &self,
        name: &str,
        new: &str,
        own: Option<SecretHash>,
    ) -> Result<(), AccountError> {
        let _changes = self.changes.lock().await;
        self.role(name)
            .ok_or_else(|| AccountError::Missing(name.to_owned()))?;
        if self.tables().directory.contains_key(name) {
            return Err(AccountError::OfDirectory(name.to_owned()));
        }
        let password = new.to_owned();
        let hashed = self.hashing(move || hash_password(&password)).await??;
        let (user, stored) = (name.to_owned(), hashed.clone());
        self.database
            .call(move |sql| {
                let transaction = sql.transaction()?;
                transaction.execute(
                    "UPDATE user SET password = ?2 WHERE name = ?1",
                    params![user, stored],
                )?;
                transaction.execute(
                    "DELETE FROM session WHERE user = ?1 AND hash IS NOT ?2",
                    params![user, own],
                )?;
                transaction.commit()
            })
            .await?;
        let mut tables = self.tables();
        if let Some(known) = tables.users.get_mut(name) {
            known.password = hashed;
        }
        tables
            .sessions
            .retain(|hash, session| session.user != name || Some(*hash) == own);
        Ok(())
    }

    /// Makes a user; the caller holds `changes`. The setup tokens end with the first owner.
    async fn insert_user(
        &self,
        name: &str,
        password: Option<&str>,
        role: Role,
        now: u64,
    ) -> Result<(), AccountError> {
        check_name(name)?;
        password.map_or(Ok(()), check_password)?;
        {
            let tables = self.tables();
            if tables.users.contains_key(name) {
                return Err(AccountError::Exists(name.to_owned()));
            }
            if tables.users.len() >= USERS_MAX {
                return Err(AccountError::Full);
            }
        }
        let hashed = match password.map(str::to_owned) {
            Some(password) => self.hashing(move || hash_password(&password)).await??,
            None => String::new(),
        };
        let user = User {
            role,
            password: hashed,
            created: now,
        };
        let (key, stored) = (name.to_owned(), user.clone());
        self.database
            .call(move |sql| {
                let transaction = sql.transaction()?;
                transaction.execute(
                    "INSERT INTO user VALUES (?1, ?2, ?3, ?4)",
                    params![key, stored.role.as_str(), stored.password, stored.created],
                )?;
                if stored.role == Role::Owner && !stored.password.is_empty() {
                    transaction.execute("DELETE FROM setup_token", [])?;
                }
                transaction.commit()
            })
            .await?;
        self.tables().users.insert(name.to_owned(), user);
        Ok(())
    }

    fn tables(&self) -> MutexGuard<'_, AccountTables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AccountTables {
    /// Fails when the user is the only owner who can log in, or is none.
    fn check_not_last_owner(&self, name: &str) -> Result<(), AccountError> {
        let user = self.users.get(name);
        let user = user.ok_or_else(|| AccountError::Missing(name.to_owned()))?;
        let is_owner = |user: &&User| user.role == Role::Owner && !user.password.is_empty();
        if is_owner(&user) && self.users.values().filter(is_owner).count() == 1 {
            return Err(AccountError::LastOwner(name.to_owned()));
        }
        Ok(())
    }
}

fn load(sql: &rusqlite::Connection, now: u64) -> rusqlite::Result<AccountTables> {
    let mut tables = AccountTables::default();
    let mut users = sql.prepare("SELECT name, role, password, created FROM user")?;
    let mut rows = users.query([])?;
    while let Some(row) = rows.next()? {
        let role: String = row.get(1)?;
        // A role that is not known gives nothing.
        let Some(role) = Role::from_name(&role) else {
            continue;
        };
        let user = User {
            role,
            password: row.get(2)?,
            created: row.get(3)?,
        };
        tables.users.insert(row.get(0)?, user);
    }
    let mut sessions = sql.prepare("SELECT hash, user, csrf, created, used FROM session")?;
    let mut rows = sessions.query([])?;
    while let Some(row) = rows.next()? {
        let used = row.get(4)?;
        let session = Session {
            user: row.get(1)?,
            csrf: row.get(2)?,
            created: row.get(3)?,
            used,
            stored: used,
        };
        if !session.is_over(now) && tables.users.contains_key(&session.user) {
            tables.sessions.insert(row.get(0)?, session);
        }
    }
    let mut tokens = sql.prepare("SELECT hash FROM setup_token ORDER BY created, rowid")?;
    let hashes = tokens.query_map([], |row| row.get(0))?;
    tables.setup_tokens = hashes.collect::<rusqlite::Result<_>>()?;
    // A database that cannot be written may be one that an older program made.
    if database::has_table(sql, "api_key")? {
        tables.load_keys(sql)?;
        tables.load_second_factors(sql)?;
    }
    if database::has_table(sql, "user_group")? {
        tables.load_groups(sql)?;
        tables.load_directory(sql)?;
    }
    if database::has_table(sql, "ssh_key")? {
        tables.ssh_keys = ssh_keys::load(sql)?;
    }
    Ok(tables)
}

fn check_name(name: &str) -> Result<(), AccountError> {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    let begins = name.as_bytes().first().is_some_and(u8::is_ascii_lowercase);
    if begins && name.len() <= 32 && name.bytes().all(allowed) {
        Ok(())
    } else {
        Err(AccountError::Name)
    }
}

#[cfg(test)]
mod tests {
    use super::session::SESSIONS_OF_USER_MAX;
    use super::*;

    const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    pub(super) const PASSWORD: &str = "correct horse battery";

    pub(super) async fn opened(directory: &tempfile::TempDir, now: u64) -> Accounts {
        let path = directory.path().join("state.db");
        Accounts::open(path, now).await.expect("opens").0
    }

    pub(super) async fn with_owner(directory: &tempfile::TempDir) -> (Accounts, NewSession) {
        let accounts = opened(directory, 0).await;
        let token = accounts.new_setup_token(0).await.expect("a token");
        let session = accounts.set_up(&token, "ann", PASSWORD, HOME, 0).await;
        (accounts, session.expect("set up"))
    }

    #[tokio::test]
    async fn setup_links_hold_over_a_restart_until_one_is_used() {
        let directory = tempfile::tempdir().expect("a directory");
        let first = opened(&directory, 0).await.new_setup_token(0).await;
        let first = first.expect("a token");
        let accounts = opened(&directory, 1).await;
        let second = accounts.new_setup_token(1).await.expect("a token");
        let wrong = accounts.set_up("nonsense", "ann", PASSWORD, HOME, 1).await;
        assert!(matches!(wrong, Err(AccountError::SetupToken)));
        let short = accounts.set_up(&first, "ann", "short", HOME, 1).await;
        assert!(matches!(short, Err(AccountError::Password)));
        assert!(accounts.needs_setup());
        accounts
            .set_up(&first, "ann", PASSWORD, HOME, 1)
            .await
            .expect("set up");
        assert!(!accounts.needs_setup());
        for token in [&first, &second] {
            let used = accounts.set_up(token, "eve", PASSWORD, HOME, 2).await;
            assert!(matches!(used, Err(AccountError::SetupToken)));
        }
        assert!(!opened(&directory, 3).await.needs_setup());
    }

    #[tokio::test]
    async fn sessions_end_idle_or_old_and_hold_over_a_restart() {
        let directory = tempfile::tempdir().expect("a directory");
        let (accounts, new) = with_owner(&directory).await;
        let known = accounts.session(&new.secret, 60).expect("a session");
        assert_eq!((known.name.as_str(), known.role), ("ann", Role::Owner));
        assert_eq!(known, new.session);
        // Calls are done in order: after this one the use is stored.
        accounts.database().call(|_| Ok(())).await.expect("stored");
        drop(accounts);
        let accounts = opened(&directory, 60 + SESSION_IDLE_SECONDS - 1).await;
        let mut now = 60 + SESSION_IDLE_SECONDS - 1;
        assert!(accounts.session(&new.secret, now).is_some());
        while now + SESSION_IDLE_SECONDS / 2 < SESSION_SECONDS {
            now += SESSION_IDLE_SECONDS / 2;
            assert!(accounts.session(&new.secret, now).is_some(), "at {now}");
        }
        assert!(accounts.session(&new.secret, SESSION_SECONDS).is_none());
        let again = accounts
            .log_in("ann", PASSWORD, None, HOME, 5)
            .await
            .expect("in");
        assert!(
            accounts
                .session(&again.secret, 5 + SESSION_IDLE_SECONDS)
                .is_none()
        );
        assert!(accounts.session("", 5).is_none());
    }

    #[tokio::test]
    async fn log_ins_fail_alike_and_not_for_ever() {
        let directory = tempfile::tempdir().expect("a directory");
        let (accounts, _) = with_owner(&directory).await;
        for name in ["ann", "nobody", "no name!"] {
            let wrong = accounts.log_in(name, "wrong password", None, HOME, 0).await;
            assert!(matches!(wrong, Err(AccountError::Credentials)), "{name}");
        }
        accounts
            .log_in("ann", PASSWORD, None, HOME, 0)
            .await
            .expect("in");
        for _ in 0..5 {
            let _ = accounts
                .log_in("ann", "wrong password", None, HOME, 0)
                .await;
        }
        let blocked = accounts.log_in("ann", PASSWORD, None, HOME, 0).await;
        assert!(matches!(blocked, Err(AccountError::Wait(_))));
        accounts
            .log_in("ann", PASSWORD, None, HOME, 10)
            .await
            .expect("in");
    }

    #[tokio::test]
    async fn users_come_and_go_with_their_sessions() {
        let directory = tempfile::tempdir().expect("a directory");
        let (accounts, ann) = with_owner(&directory).await;
        let bad = accounts
            .add_user("Bob", Some(PASSWORD), Role::Viewer, 1)
            .await;
        assert!(matches!(bad, Err(AccountError::Name)));
        accounts
            .add_user("bob", Some(PASSWORD), Role::Viewer, 1)
            .await
            .expect("added");
        let twice = accounts
            .add_user("bob", Some(PASSWORD), Role::Owner, 1)
            .await;
        assert!(matches!(twice, Err(AccountError::Exists(_))));
        let bob = accounts
            .log_in("bob", PASSWORD, None, HOME, 2)
            .await
            .expect("in");
        assert_eq!(bob.session.role, Role::Viewer);
        accounts.remove_user("bob").await.expect("removed");
        assert!(accounts.session(&bob.secret, 2).is_none());
        let last = accounts.remove_user("ann").await;
        assert!(matches!(last, Err(AccountError::LastOwner(_))));
        let other = accounts
            .log_in("ann", PASSWORD, None, HOME, 3)
            .await
            .expect("in");
        accounts
            .change_password(&ann.session, PASSWORD, "another password", HOME, 3)
            .await
            .expect("changed");
        assert!(accounts.session(&ann.secret, 3).is_some());
        assert!(accounts.session(&other.secret, 3).is_none());
        assert!(
            accounts
                .log_in("ann", PASSWORD, None, HOME, 4)
                .await
                .is_err()
        );
        let accounts = opened(&directory, 5).await;
        accounts
            .log_in("ann", "another password", None, HOME, 5)
            .await
            .expect("in");
        assert_eq!(accounts.users().len(), 1);
    }

    #[tokio::test]
    async fn a_user_has_a_bounded_number_of_sessions() {
        let directory = tempfile::tempdir().expect("a directory");
        let (accounts, first) = with_owner(&directory).await;
        for at in 1..=SESSIONS_OF_USER_MAX as u64 {
            accounts.begin_session("ann", at).expect("a session");
        }
        assert!(accounts.session(&first.secret, 40).is_none());
        assert_eq!(accounts.tables().sessions.len(), SESSIONS_OF_USER_MAX);
    }
}
